"""The codec API: sizes, refusals, buffers, and the error that quantizing makes."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from swarmnode.errors import ConfigError, LocalProtocolError, MalformedMessage, WorkerError
from swarmnode.tensor.codec import CODEC_NAMES, Codec, available_isas, get_codec
from tests.unit.tensor.codec_kit import decoded, encoded, gaussian

FLOAT_MAX = float(np.finfo(np.float32).max)
NMSE_BOUNDS = {
    "RAW32": (0.0, 0.0),
    "BF16": (2.6e-6, 2.9e-6),
    "Q8B64": (3.2e-5, 4.0e-5),
    "Q4B64": (1.1e-2, 1.25e-2),
    "E3M0": (4.0e-2, 4.3e-2),
    "Q2B64": (0.114, 0.118),
    "T3B320": (0.188, 0.192),
    "SIGN64": (0.35, 0.38),
    "TK4": (0.87, 0.89),
    "TK2": (0.87, 0.89),
}
# The largest error, as a share of the largest value of a vector from N(0, 1).
ERROR_BOUNDS = {
    "RAW32": 0.0,
    "BF16": 2.0**-8,
    "Q8B64": 0.51 / 127,
    "Q4B64": 0.51 / 7,
    "E3M0": 0.415,
    "Q2B64": 1.0,
    "T3B320": 1.0,
    "SIGN64": 1.0,
    "TK4": 1.0,
    "TK2": 1.0,
}
# Bytes that no encoder writes, where they begin, and what is said of them.
HOSTILE_BYTES = {
    "RAW32": (-2, b"\x80\x7f", "a value is NaN or infinite"),
    "BF16": (-2, b"\x80\xff", "a value is NaN or infinite"),
    "Q8B64": (-2, b"\x01\x80", "a code is outside the range"),
    "Q4B64": (-2, b"\x88\x08", "a code is outside the range"),
    "E3M0": (-2, b"\x88\x80", "a code is outside the range"),
    "Q2B64": (0, b"\x08\x7f", "a scale is negative, not finite or too large"),
    "T3B320": (-2, b"\x00\xf3", "a code is outside the range"),
    "SIGN64": (0, b"\x80\xff", "a scale is negative, not finite or too large"),
    "TK4": (-2, b"\x88\x08", "a code is outside the range"),
    "TK2": (0, b"\x01\x78", "a scale is negative, not finite or too large"),
}


@pytest.fixture(params=[(name, isa) for name in CODEC_NAMES for isa in available_isas()], ids=str)
def codec(request: pytest.FixtureRequest) -> Codec:
    name, isa = request.param
    return get_codec(name, isa)


@pytest.mark.parametrize(
    ("name", "n_elems", "size_bytes"),
    [
        ("Q8B64", 0, 0),
        ("Q8B64", 1, 66),
        ("Q8B64", 64, 66),
        ("Q8B64", 65, 132),
        ("Q4B64", 0, 0),
        ("Q4B64", 65, 68),
        ("Q4B64", 262_144, 139_264),
        ("RAW32", 65, 260),
        ("BF16", 65, 130),
        ("E3M0", 1, 132),
        ("E3M0", 257, 264),
        ("Q2B64", 65, 36),
        ("T3B320", 1, 66),
        ("T3B320", 321, 132),
        ("SIGN64", 65, 20),
        ("TK4", 1, 130),
        ("TK4", 4097, 260),
        ("TK4K2048", 4097, 8196),
        ("TK2", 1, 86),
        ("TK2K8", 4097, 38),
        ("TK2K1000", 4096, 759),
        ("TK2K2048", 4097, 2 * 1286),
    ],
)
def test_payload_sizes(name: str, n_elems: int, size_bytes: int) -> None:
    assert get_codec(name).payload_bytes(n_elems) == size_bytes


def test_bits_per_element_count_the_scale() -> None:
    expected = [32, 16, 8.25, 4.25, 4.125, 2.25, 1.65, 1.25, 0.25390625, 0.16796875]
    assert [get_codec(name).bits_per_elem for name in CODEC_NAMES] == expected


def test_error_on_gaussian_values(codec: Codec) -> None:
    values = gaussian(1 << 20)
    error = decoded(codec, encoded(codec, values), values.size) - values
    nmse = float((error.astype(np.float64) ** 2).sum() / (values.astype(np.float64) ** 2).sum())
    low, high = NMSE_BOUNDS[codec.name]
    assert low <= nmse <= high


@pytest.mark.parametrize("n_elems", [0, 1, 63, 64, 65, 4095, 131_073])
def test_decode_writes_exactly_the_elements(codec: Codec, n_elems: int) -> None:
    values = gaussian(n_elems)
    guarded = np.full(n_elems + 2, 7.0, dtype=np.float32)
    codec.decode(encoded(codec, values), guarded[1:-1].data)
    assert guarded[0] == guarded[-1] == 7.0
    allowed = np.abs(values).max(initial=0.0) * ERROR_BOUNDS[codec.name]
    assert np.abs(guarded[1:-1] - values).max(initial=0.0) <= allowed


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 777, 2047, 2050])
def test_encode_refuses_what_is_not_finite(codec: Codec, bad: float, at: int) -> None:
    values = gaussian(2051)
    values[at] = bad
    payload = bytearray(codec.payload_bytes(values.size))
    first = at // codec.block_elems * codec.block_elems
    last = min(first + codec.block_elems - 1, 2050)
    which = f"elements {first} to {last} hold" if last > first else f"element {at} is"
    with pytest.raises(WorkerError, match=f"{which} NaN or infinity"):
        codec.encode(values.data, payload)
    with pytest.raises(MalformedMessage):
        codec.validate(payload, values.size)


@pytest.mark.parametrize("amax", [FLOAT_MAX, 1e38, 1.0, 2.0**-100, 2.0**-120, 2.0**-140, 0.0])
def test_decoded_values_stay_finite_and_near_the_largest(codec: Codec, amax: float) -> None:
    values = gaussian(640) / np.float32(8) * np.float32(amax)
    values[::64] = amax
    result = decoded(codec, encoded(codec, values), values.size)
    assert np.isfinite(result).all()
    assert np.abs(result.astype(np.float64)).max() <= amax * (1 + 2.0**-7)


def test_merge_is_two_products_and_a_sum(codec: Codec) -> None:
    values, own = gaussian(1000, seed=2), gaussian(1000, seed=3)
    payload = encoded(codec, values)
    own_weight, peer_weight = np.float32(0.7), np.float32(0.3)
    expected = own_weight * own + peer_weight * decoded(codec, payload, 1000)
    target = own.copy()
    codec.merge(payload, target.data, 0.7, 0.3)
    assert target.tobytes() == expected.tobytes()


def test_differences_of_a_pair_are_exact_negatives(codec: Codec) -> None:
    payloads = [encoded(codec, gaussian(333, seed)) for seed in (4, 5)]
    differences = [decoded(codec, payload, 333) for payload in payloads]
    codec.merge(payloads[1], differences[0].data, -1.0, 1.0)
    codec.merge(payloads[0], differences[1].data, -1.0, 1.0)
    assert (differences[0] == -differences[1]).all()
    assert np.abs(differences[0]).max() > 1.0


def test_a_malformed_payload_changes_nothing(codec: Codec) -> None:
    at, hostile, complaint = HOSTILE_BYTES[codec.name]
    payload = encoded(codec, gaussian(200_000))
    at %= len(payload)
    payload[at : at + 2] = hostile
    target = gaussian(200_000, seed=6)
    before = target.copy()
    with pytest.raises(MalformedMessage, match=complaint):
        codec.decode(payload, target.data)
    with pytest.raises(MalformedMessage, match=complaint):
        codec.merge(payload, target.data, 0.5, 0.5)
    assert (target == before).all()


@pytest.mark.parametrize("size_change", [-1, 1])
def test_a_payload_of_the_wrong_size_is_malformed(codec: Codec, size_change: int) -> None:
    payload = bytes(codec.payload_bytes(100) + size_change)
    out = np.zeros(100, dtype=np.float32)
    for use in (
        lambda: codec.validate(payload, 100),
        lambda: codec.decode(payload, out.data),
        lambda: codec.merge(payload, out.data, 0.5, 0.5),
    ):
        with pytest.raises(MalformedMessage, match=f"expected {codec.payload_bytes(100)} bytes"):
            use()


def test_every_kind_of_buffer_works(codec: Codec) -> None:
    values = gaussian(100)
    expected = encoded(codec, values)
    area = mmap.mmap(-1, 4096)
    area[3:403] = values.tobytes()
    sources = [values, values.tobytes(), bytearray(values.tobytes()), memoryview(area)[3:403]]
    for source in sources:
        payload = memoryview(bytearray(len(expected) + 1))[1:]
        codec.encode(source, payload)
        assert payload == expected
    codec.decode(memoryview(expected), memoryview(area)[5:405])
    assert area[5:405] == decoded(codec, expected, 100).tobytes()


@pytest.mark.parametrize(
    "values",
    [np.zeros(64), np.zeros(128, np.float32)[::2], np.zeros(64, np.int32), b"123"],
    ids=["float64", "not contiguous", "int32", "three bytes"],
)
def test_what_is_no_float32_is_our_bug(codec: Codec, values: object) -> None:
    with pytest.raises(LocalProtocolError, match="expected a contiguous buffer of float32"):
        codec.encode(values, bytearray(codec.payload_bytes(64)))


def test_buffers_to_write_must_fit_and_be_writable(codec: Codec) -> None:
    values = gaussian(64)
    payload = encoded(codec, values)
    for wrong in (bytes(len(payload)), bytearray(len(payload) + 1)):
        with pytest.raises(LocalProtocolError, match="expected a writable buffer"):
            codec.encode(values.data, wrong)
    with pytest.raises(LocalProtocolError, match="readonly=True"):
        codec.decode(payload, bytes(256))


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 3.5e38, -1e300])
def test_weights_must_be_finite(codec: Codec, weight: float) -> None:
    payload, target = encoded(codec, gaussian(64)), bytearray(256)
    for weights in ((weight, 0.5), (0.5, weight)):
        with pytest.raises(LocalProtocolError, match="expected finite float32 weights"):
            codec.merge(payload, target, *weights)


@pytest.mark.parametrize(
    "name",
    ["Q5", "TK4K64", "TK4K3", "TK4K0", "TK4K2050", "TK4K", "tk4", "TK2K64", "TK2K4", "TK2K2056"],
)
def test_unknown_names_list_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no codec '{name}': choose RAW32, BF16, .* or TK2"):
        get_codec(name)


def test_unknown_instruction_sets_list_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"no instruction set 'sse' here: choose .* or numpy"):
        get_codec("Q8B64", "sse")
