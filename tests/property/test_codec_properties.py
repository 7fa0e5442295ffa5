"""All implementations against each other, and each against the rules, on generated values."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode.errors import MalformedMessage
from swarmnode.tensor.codec import CODEC_NAMES, Codec, available_isas, get_codec
from swarmnode.tensor.layout import chunks

LEVELS = {"Q8B64": 127, "Q4B64": 7}
SCALE_MIN = 2.0**-124
derandomized = settings(max_examples=150, deadline=None, derandomize=True)

codec_names = st.sampled_from(CODEC_NAMES)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 300)


def finite(bits: np.ndarray) -> np.ndarray:
    """Any bits as float32, with the exponent of NaN and infinity lowered by one."""
    exponent = np.uint32(0x7F800000)
    return np.where(bits & exponent == exponent, bits ^ np.uint32(0x00800000), bits).view("f4")


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    """Finite float32 vectors: any bits, one magnitude, or a few special values."""
    rng = np.random.default_rng(draw(seeds))
    n_elems = draw(sizes)
    kind = draw(st.sampled_from(["bits", "gaussian", "special"]))
    if kind == "bits":
        return finite(rng.integers(0, 2**32, n_elems, dtype=np.uint32))
    if kind == "gaussian":
        magnitude = np.float32(2.0) ** draw(st.integers(-149, 120))
        return rng.standard_normal(n_elems, dtype=np.float32) * np.float32(magnitude)
    edges = [0x00000000, 0x80000000, 0x00000001, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000]
    return rng.choice(np.array(edges, dtype=np.uint32), n_elems).view(np.float32)


def encoded(codec: Codec, values: np.ndarray) -> bytes:
    payload = bytearray(codec.payload_bytes(values.size))
    codec.encode(values.data, payload)
    return bytes(payload)


def outcome(codec: Codec, payload: bytes, target: np.ndarray) -> tuple[bytes, bytes] | str:
    """Return what decode and merge make of a payload, or the complaint, having changed nothing."""
    out, merged = np.full_like(target, 7.0), target.copy()
    try:
        codec.decode(payload, out.data)
        codec.merge(payload, merged.data, 0.75, -1.5)
    except MalformedMessage as error:
        assert (out == 7.0).all()
        assert merged.tobytes() == target.tobytes()
        return str(error)
    assert np.isfinite(out).all()
    # Which NaN comes out of infinity - infinity is the processor's choice.
    merged[np.isnan(merged)] = np.nan
    return out.tobytes(), merged.tobytes()


@derandomized
@given(codec_names, vectors())
def test_every_implementation_gives_the_same_bits(name: str, values: np.ndarray) -> None:
    numpy_codec = get_codec(name, "numpy")
    payload = encoded(numpy_codec, values)
    target = values[::-1].copy()
    expected = outcome(numpy_codec, payload, target)
    assert isinstance(expected, tuple)
    for isa in available_isas():
        codec = get_codec(name, isa)
        assert encoded(codec, values) == payload, isa
        assert outcome(codec, payload, target) == expected, isa


@derandomized
@given(codec_names, vectors(), st.data())
def test_mutated_payloads_are_refused_or_decoded_alike(
    name: str, values: np.ndarray, data: st.DataObject
) -> None:
    payload = bytearray(encoded(get_codec(name, "numpy"), values))
    for _ in range(data.draw(st.integers(0, 4)) if payload else 0):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    target = values[::-1].copy()
    expected = outcome(get_codec(name, "numpy"), bytes(payload), target)
    for isa in available_isas():
        assert outcome(get_codec(name, isa), bytes(payload), target) == expected, isa


@derandomized
@given(codec_names, vectors())
def test_the_error_is_at_most_half_a_step_of_the_block(name: str, values: np.ndarray) -> None:
    codec = get_codec(name)
    out = np.empty_like(values)
    codec.decode(encoded(codec, values), out.data)
    for begin, end in chunks(values.size, 64):
        block = values[begin:end].astype(np.float64)
        step = np.abs(block).max() / LEVELS[name]
        # A scale is up to 2**-7 above amax / levels; a block under the smallest scale is zero.
        allowed = step * 0.5 * (1 + 2.0**-7) * (1 + 2.0**-20)
        error = np.abs(out[begin:end] - block)
        assert (error <= (allowed if step >= SCALE_MIN else np.abs(block))).all()


@derandomized
@given(codec_names, vectors(), st.integers(1, 3))
def test_chunks_decode_to_the_same_as_the_whole(
    name: str, values: np.ndarray, chunk_blocks: int
) -> None:
    codec = get_codec(name)
    whole, pieces = np.empty_like(values), np.empty_like(values)
    codec.decode(encoded(codec, values), whole.data)
    for begin, end in chunks(values.size, 64 * chunk_blocks):
        codec.decode(encoded(codec, values[begin:end]), pieces[begin:end].data)
    assert whole.tobytes() == pieces.tobytes()
