"""All implementations against each other, and each against the rules, on generated values."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode.errors import MalformedMessage, WorkerError
from swarmnode.tensor.codec import CODEC_NAMES, Codec, available_isas, get_codec, get_measure
from swarmnode.tensor.layout import chunks

LEVELS = {"Q8B64": 127, "Q4B64": 7}
NAMES = (*CODEC_NAMES, "TK4K2", "TK4K500", "TK4K2048", "TK2K8", "TK2K1000", "TK2K2048")
SCALE_MIN = 2.0**-124
derandomized = settings(max_examples=150, deadline=None, derandomize=True)

codec_names = st.sampled_from(NAMES)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 300) | st.integers(0, 9000)


def finite(bits: np.ndarray) -> np.ndarray:
    """Any bits as float32, with the exponent of NaN and infinity lowered by one."""
    exponent = np.uint32(0x7F800000)
    return np.where(bits & exponent == exponent, bits ^ np.uint32(0x00800000), bits).view("f4")


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    """Finite float32 vectors: any bits, one magnitude, many ties, or special values."""
    rng = np.random.default_rng(draw(seeds))
    n_elems = draw(sizes)
    kind = draw(st.sampled_from(["bits", "gaussian", "few", "special"]))
    if kind == "bits":
        return finite(rng.integers(0, 2**32, n_elems, dtype=np.uint32))
    if kind == "gaussian":
        magnitude = np.float32(2.0) ** draw(st.integers(-149, 120))
        return rng.standard_normal(n_elems, dtype=np.float32) * np.float32(magnitude)
    if kind == "few":
        return rng.integers(-3, 4, n_elems).astype(np.float32)
    edges = [0x00000000, 0x80000000, 0x00000001, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000]
    return rng.choice(np.array(edges, dtype=np.uint32), n_elems).view(np.float32)


def encoded(codec: Codec, values: np.ndarray, reference: np.ndarray | None = None) -> bytes:
    payload = bytearray(codec.payload_bytes(values.size))
    try:
        codec.encode(values.data, payload, reference)
    except WorkerError:  # the difference of two finite values may be infinite
        assert reference is not None
        assert payload == b"\xff" * len(payload)
    return bytes(payload)


def roundtrip(codec: Codec, values: np.ndarray) -> np.ndarray:
    out = np.empty_like(values)
    codec.decode(encoded(codec, values), out.data)
    return out


def outcome(
    codec: Codec, payload: bytes, target: np.ndarray, reference: np.ndarray | None = None
) -> tuple[bytes, bytes] | str:
    """Return what decode and merge make of a payload, or the complaint, having changed nothing."""
    out, merged = np.full_like(target, 7.0), target.copy()
    try:
        found = codec.decode_measured(payload, out.data, reference)
        codec.merge(payload, merged.data, 0.75, -1.5, reference)
    except MalformedMessage as error:
        assert (out == 7.0).all()
        assert merged.tobytes() == target.tobytes()
        return str(error)
    assert np.isfinite(out).all()
    decoded = np.empty_like(out)
    codec.decode(payload, decoded.data, reference)
    assert decoded.tobytes() == out.tobytes()
    assert found == get_measure("numpy")(out.data), "measured while it was decoded"
    # Which NaN comes out of infinity - infinity is the processor's choice.
    merged[np.isnan(merged)] = np.nan
    return out.tobytes(), merged.tobytes()


@derandomized
@given(codec_names, vectors(), st.booleans())
def test_every_implementation_gives_the_same_bits(
    name: str, values: np.ndarray, has_reference: bool
) -> None:
    numpy_codec = get_codec(name, "numpy")
    target = values[::-1].copy()
    reference = np.roll(values, 7) if has_reference and numpy_codec.takes_reference else None
    payload = encoded(numpy_codec, values, reference)
    expected = outcome(numpy_codec, payload, target, reference)
    assert isinstance(expected, tuple) or reference is not None
    for isa in available_isas():
        codec = get_codec(name, isa)
        assert encoded(codec, values, reference) == payload, isa
        assert outcome(codec, payload, target, reference) == expected, isa


@derandomized
@given(codec_names, vectors(), st.data())
def test_mutated_payloads_are_refused_or_decoded_alike(
    name: str, values: np.ndarray, data: st.DataObject
) -> None:
    payload = bytearray(encoded(get_codec(name, "numpy"), values))
    for _ in range(data.draw(st.integers(0, 4)) if payload else 0):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    target = values[::-1].copy()
    takes_reference = get_codec(name).takes_reference
    reference = target if takes_reference and data.draw(st.booleans()) else None
    expected = outcome(get_codec(name, "numpy"), bytes(payload), target, reference)
    for isa in available_isas():
        codec = get_codec(name, isa)
        assert outcome(codec, bytes(payload), target, reference) == expected, isa


def of_group(
    codec: Codec, payloads: list[bytes], weights: list[float], n_elems: int
) -> tuple[bytes, bytes, list[tuple[float, float]]] | str:
    """Return the mean of payloads, their inner products and sizes, or the complaint."""
    out, gram = bytearray(codec.payload_bytes(n_elems)), np.ones((len(payloads),) * 2)
    try:
        codec.encode_mean(payloads, weights, sum(weights), out, n_elems)
        codec.add_products(payloads, n_elems, gram.data)
    except MalformedMessage as refused:
        assert not any(out)
        assert (gram == 1).all()
        return str(refused)
    codec.validate(out, n_elems)
    measured = [codec.measure(payload, n_elems) for payload in payloads]
    return bytes(out), gram.tobytes(), measured


@derandomized
@given(codec_names, vectors(), st.lists(st.floats(0.125, 1.0), min_size=1, max_size=9), st.data())
def test_groups_of_payloads_come_to_the_same_bits(
    name: str, values: np.ndarray, weights: list[float], data: st.DataObject
) -> None:
    """The mean of a group and its inner products, one of its payloads mutated at times."""
    numpy_codec = get_codec(name, "numpy")
    payloads = [
        encoded(numpy_codec, np.roll(values, 97 * number)) for number in range(len(weights))
    ]
    if payloads[-1] and data.draw(st.booleans()):
        mutated = bytearray(payloads[-1])
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
        payloads[-1] = bytes(mutated)
    expected = of_group(numpy_codec, payloads, weights, values.size)
    for isa in available_isas():
        assert of_group(get_codec(name, isa), payloads, weights, values.size) == expected, isa


@derandomized
@given(st.sampled_from(sorted(LEVELS)), vectors())
def test_the_error_is_at_most_half_a_step_of_the_block(name: str, values: np.ndarray) -> None:
    out = roundtrip(get_codec(name), values)
    for begin, end in chunks(values.size, 64):
        block = values[begin:end].astype(np.float64)
        step = np.abs(block).max() / LEVELS[name]
        # A scale is up to 2**-7 above amax / levels; a block under the smallest scale is zero.
        allowed = step * 0.5 * (1 + 2.0**-7) * (1 + 2.0**-20)
        error = np.abs(out[begin:end] - block)
        assert (error <= (allowed if step >= SCALE_MIN else np.abs(block))).all()


@derandomized
@given(vectors())
def test_e3m0_is_the_nearest_power_of_two_of_the_largest(values: np.ndarray) -> None:
    out = roundtrip(get_codec("E3M0"), values).astype(np.float64)
    for begin, end in chunks(values.size, 256):
        block, result = values[begin:end].astype(np.float64), out[begin:end]
        amax = np.abs(block).max()
        if amax < 2.0**-110:
            assert not result.any()
            continue
        is_kept = result != 0
        assert (np.abs(block[~is_kept]) <= amax * 2.0**-6.5 * (1 + 2.0**-20)).all()
        ratio = result[is_kept] / block[is_kept]
        assert (np.abs(np.log2(ratio)) <= 0.5 + 2.0**-20).all()
        assert np.array_equal(np.abs(result).max(), amax)


@derandomized
@given(vectors())
def test_bf16_is_within_half_a_unit_and_never_infinite(values: np.ndarray) -> None:
    out = roundtrip(get_codec("BF16"), values).astype(np.float64)
    allowed = np.maximum(np.abs(values.astype(np.float64)) * 2.0**-8, 2.0**-134)
    assert (np.abs(out - values) <= allowed).all()


@derandomized
@given(vectors())
def test_sign64_never_moves_a_block_away_from_itself(values: np.ndarray) -> None:
    """What error feedback rests on: the error is no longer than the vector."""
    out = roundtrip(get_codec("SIGN64"), values).astype(np.float64)
    for begin, end in chunks(values.size, 64):
        block = values[begin:end].astype(np.float64)
        error = np.linalg.norm(out[begin:end] - block)
        # The mean is rounded, and magnitudes below 2**-100 do not count in it.
        assert error <= np.linalg.norm(block) * (1 + 2.0**-7) + 2.0**-96


@derandomized
@given(vectors())
def test_q2b64_takes_the_nearer_of_its_two_sizes(values: np.ndarray) -> None:
    """But for the rounding of threshold and levels, which moves the middle by less than 2**-11."""
    codec = get_codec("Q2B64")
    payload, out = encoded(codec, values), roundtrip(codec, values).astype(np.float64)
    n_blocks = len(payload) // 18
    scale_bits = np.frombuffer(payload[: 2 * n_blocks], "<u2").astype(np.uint32)
    scales = (scale_bits << np.uint32(16)).view(np.float32).astype(np.float64)
    for scale, (begin, end) in zip(scales, chunks(values.size, 64), strict=True):
        block, result = values[begin:end].astype(np.float64), out[begin:end]
        assert (np.signbit(result) == np.signbit(block)).all()
        small, large = (np.abs(np.abs(block) - level * scale) for level in (0.5674, 1.8926))
        error = np.abs(result - block)
        assert (error <= np.minimum(small, large) + 2.0**-10 * scale + 2.0**-140).all()


@derandomized
@given(vectors())
def test_t3b320_takes_the_nearest_of_its_three_levels(values: np.ndarray) -> None:
    """Of the levels that its scale gives; magnitudes below 2**-100 count as zero."""
    codec = get_codec("T3B320")
    payload, out = encoded(codec, values), roundtrip(codec, values).astype(np.float64)
    n_blocks = len(payload) // 66
    scale_bits = np.frombuffer(payload[: 2 * n_blocks], "<u2").astype(np.uint32)
    scales = (scale_bits << np.uint32(16)).view(np.float32).astype(np.float64)
    for scale, (begin, end) in zip(scales, chunks(values.size, 320), strict=True):
        block, result = values[begin:end].astype(np.float64), out[begin:end]
        block[np.abs(block) < 2.0**-100] = 0.0
        nearest = np.minimum(np.abs(block), np.abs(np.abs(block) - scale))
        assert (np.abs(result - block) <= nearest).all()
        assert (result * block >= 0).all()
        rms = np.sqrt((block**2).sum() / 320)
        assert abs(scale - 1.2240064 * rms) <= 2.0**-8 * scale or scale == 2.0**128 - 2.0**120


@derandomized
@given(vectors(), st.sampled_from([2, 64, 500, 2048]))
def test_tk4_keeps_the_largest_and_of_equals_the_first(values: np.ndarray, kept: int) -> None:
    codec = get_codec("TK4" if kept == 64 else f"TK4K{kept}")
    payload = encoded(codec, values)
    n_tiles = len(payload) // (2 + 2 * kept)
    for tile, (begin, end) in enumerate(chunks(values.size, 4096)):
        magnitudes = np.zeros(4096)
        magnitudes[: end - begin] = np.abs(values[begin:end])
        expected = np.sort(np.argsort(-magnitudes, kind="stable")[:kept])
        codes = payload[2 * n_tiles + 2 * kept * tile :][: 3 * kept // 2]
        pairs = np.frombuffer(codes, np.uint8).reshape(-1, 3).astype(np.int64)
        first = pairs[:, 0] | (pairs[:, 1] & 15) << 8
        second = pairs[:, 1] >> 4 | pairs[:, 2] << 4
        assert np.array_equal(np.stack((first, second), axis=1).reshape(-1), expected)


@derandomized
@given(codec_names, vectors(), st.integers(1, 3))
def test_chunks_decode_to_the_same_as_the_whole(
    name: str, values: np.ndarray, chunk_blocks: int
) -> None:
    codec = get_codec(name)
    whole, pieces = roundtrip(codec, values), np.empty_like(values)
    for begin, end in chunks(values.size, max(codec.block_elems, 64) * chunk_blocks):
        codec.decode(encoded(codec, values[begin:end]), pieces[begin:end].data)
    assert whole.tobytes() == pieces.tobytes()
