"""What is special about each codec: its rounding, its edges, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from swarmnode.errors import MalformedMessage
from swarmnode.tensor.codec import Codec, available_isas, get_codec
from tests.unit.tensor.codec_kit import decoded, encoded

FLOAT_MAX = np.finfo(np.float32).max
BLOCK_NAMES = ("Q8B64", "Q4B64", "E3M0", "Q2B64", "T3B320", "SIGN64", "TK4", "TK2")


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def roundtrip(codec: Codec, values: np.ndarray) -> np.ndarray:
    return decoded(codec, encoded(codec, values), values.size)


def floats(*bits: int) -> np.ndarray:
    return np.array(bits, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_a_block_of_denormals_is_zero(name: str, isa: str) -> None:
    codec = get_codec(name, isa)
    values = np.full(256, 2.0**-149, dtype=np.float32)
    payload = encoded(codec, values)
    assert payload[:2] == b"\0\0"
    assert not decoded(codec, payload, 256).any()


@pytest.mark.parametrize(
    ("name", "payload", "expected"),
    [
        ("Q8B64", b"\x01\x00" + b"\x03" * 64, 3 * 2.0**-133),
        ("Q4B64", b"\x01\x00" + b"\xbb" * 32, 3 * 2.0**-133),
        ("E3M0", b"\x01\x00\x01\x00" + b"\xee" * 128, 0x8000 * 2.0**-149),
        ("SIGN64", b"\x01\x00" + b"\x00" * 8, 2.0**-133),
        # The product is rounded to a multiple of 2**-149: 1.8926 * 2**16 = 124033.4.
        ("Q2B64", b"\x01\x00" + b"\x00" * 8 + b"\xff" * 8, 124033 * 2.0**-149),
        ("T3B320", b"\x01\x00" + b"\x79" * 64, 2.0**-133),
        ("BF16", b"\x01\x00" * 64, 2.0**-133),
        ("RAW32", b"\x01\x00\x00\x00" * 64, 2.0**-149),
    ],
)
def test_denormals_of_another_encoder_decode_exactly(
    name: str, payload: bytes, expected: float, isa: str
) -> None:
    """Only the encoder may flush; half of 2**-133 + 2**-149 is a tie, which goes to even."""
    codec = get_codec(name, isa)
    assert (decoded(codec, payload, max(codec.block_elems, 64)) == np.float32(expected)).all()


def test_raw32_keeps_every_bit(isa: str) -> None:
    values = floats(0x80000000, 0x00000001, 0x7F7FFFFF, 0x3F800001, 0xFF7FFFFF)
    assert roundtrip(get_codec("RAW32", isa), values).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to even: down
        (0x3F818000, 0x3F82),  # and up
        (0x3F808001, 0x3F81),
        (0xBF808001, 0xBF81),
        (0x7F7FFFFF, 0x7F7F),  # not to infinity
        (0xFF7FFFFF, 0xFF7F),
        (0x80000000, 0x8000),
        (0x00008001, 0x0001),  # denormals as all others
        (0x007FFFFF, 0x0080),
    ],
)
def test_bf16_rounds_to_nearest_even(bits: int, rounded: int, isa: str) -> None:
    codec = get_codec("BF16", isa)
    payload = encoded(codec, np.repeat(floats(bits), 131))
    assert (np.frombuffer(payload, "<u2") == rounded).all()
    assert (decoded(codec, payload, 131).view(np.uint32) == rounded << 16).all()


@pytest.mark.parametrize("name", ["RAW32", "BF16"])
@pytest.mark.parametrize("at", [0, 63, 130])
def test_a_value_of_a_peer_must_be_finite(name: str, at: int, isa: str) -> None:
    codec = get_codec(name, isa)
    for bits in (0x7F80, 0xFF80, 0x7FC1):
        payload = bytearray(codec.payload_bytes(131))
        end = codec.payload_bytes(at + 1)
        payload[end - 2 : end] = bits.to_bytes(2, "little")
        with pytest.raises(MalformedMessage, match="a value is NaN or infinite"):
            codec.validate(payload, 131)


def test_e3m0_on_gaussian_values_is_as_published(isa: str) -> None:
    values = np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32)
    result = roundtrip(get_codec("E3M0", isa), values)
    is_kept = result != 0
    error = np.abs(result[is_kept] / values[is_kept].astype(np.float64) - 1)
    assert error.max() <= 0.415
    assert 0.02 <= 1 - is_kept.mean() <= 0.035
    cosine = result @ values / np.linalg.norm(result) / np.linalg.norm(values)
    assert cosine >= 0.975


def test_e3m0_levels(isa: str) -> None:
    """Level L stands for 2**(L - 7) of the largest; a zero is positive, whatever its sign."""
    codec = get_codec("E3M0", isa)
    powers = [2.0**e for e in range(0, -8, -1)]
    values = np.zeros(256, dtype=np.float32)
    values[:16] = [*powers, *(-power for power in powers)]
    values[16:19] = [-0.0, 0.72, 0.70]
    payload = encoded(codec, values * np.float32(3.0))
    assert payload[:4] == np.float32(3.0).tobytes()
    nibbles = [byte & 15 for byte in payload[4:23]]
    assert nibbles == [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 8, 8, 15, 14]
    expected = [*powers[:7], 0.0, *(-power for power in powers[:7]), 0.0, 0.0, 1.0, 0.5]
    assert (decoded(codec, payload, 256)[:19] == np.float32(3.0) * np.float32(expected)).all()


@pytest.mark.parametrize("bits", [0x80000000, 0xBF800000, 0x7F800000, 0x7FC00000, 0xFFFFFFFF])
def test_e3m0_refuses_scales_that_are_negative_or_not_finite(bits: int, isa: str) -> None:
    codec = get_codec("E3M0", isa)
    payload = encoded(codec, np.ones(512, dtype=np.float32))
    payload[4:8] = bits.to_bytes(4, "little")
    with pytest.raises(MalformedMessage, match="a scale is negative, not finite or too large"):
        codec.validate(payload, 512)


def test_sign64_is_the_mean_magnitude_with_signs(isa: str) -> None:
    codec = get_codec("SIGN64", isa)
    values = np.where(np.arange(128) % 3 == 0, -1.0, 1.0).astype(np.float32)
    values[:64] *= np.linspace(0.5, 1.5, 64, dtype=np.float32)
    values[64:] *= 3e38  # the sum of 64 of these would overflow
    payload = encoded(codec, values)
    result = decoded(codec, payload, 128)
    assert (np.sign(result) == np.sign(values)).all()
    assert (np.abs(result[:64]) == 1.0).all()
    assert np.allclose(np.abs(result[64:]), 3e38, rtol=2.0**-8)
    assert codec.needs_error_feedback


def test_q2b64_is_one_of_two_sizes_of_the_mean_magnitude(isa: str) -> None:
    """A size bit means more than 1.2303 of the mean; a zero is small, with the sign that it has."""
    codec = get_codec("Q2B64", isa)
    values = np.ones(64, dtype=np.float32)
    values[:8] = [1.2302, 1.2304, -1.2302, -1.2304, 0.0, -0.0, 1.0, -2.0788]
    payload = encoded(codec, values)
    assert payload[:2] == b"\x80\x3f"  # a mean of 1
    assert (payload[2], payload[10]) == (0b10101100, 0b10001010)
    assert payload[3:10] + payload[11:] == bytes(14)
    small, large = floats(0x3F114120, 0x3FF240B8)
    expected = [small, large, -small, -large, small, -small, small, -large]
    assert (decoded(codec, payload, 64)[:8] == expected).all()
    assert not codec.needs_error_feedback


def test_q2b64_and_sign64_have_the_same_scales_and_signs(isa: str) -> None:
    values = np.random.default_rng(7).standard_normal(1000, dtype=np.float32)
    signs = encoded(get_codec("SIGN64", isa), values)
    both = encoded(get_codec("Q2B64", isa), values)
    assert both[:32] == signs[:32]
    planes = np.frombuffer(both[32:], np.uint8).reshape(16, 2, 8)
    assert planes[:, 0].tobytes() == signs[32:]


def test_q2b64_stays_finite_at_its_largest_scale(isa: str) -> None:
    codec = get_codec("Q2B64", isa)
    values = np.full(64, FLOAT_MAX)
    values[:8] = 0
    payload = encoded(codec, values)
    assert payload[:2] == b"\x07\x7f"
    payload[10:] = b"\xff" * 8
    assert np.isfinite(decoded(codec, payload, 64)).all()
    payload[:2] = b"\x08\x7f"
    with pytest.raises(MalformedMessage, match="a scale is negative, not finite or too large"):
        codec.validate(payload, 64)


def test_t3b320_is_zero_up_to_half_of_its_scale(isa: str) -> None:
    """A byte has elements t, t + 64 ... t + 256, the lowest first; 2 is the trit of a negative."""
    codec = get_codec("T3B320", isa)
    values = np.zeros(320, dtype=np.float32)
    values[:64] = 1.0
    values[64:] = 0.25
    rms = np.sqrt(np.mean(values.astype(np.float64) ** 2))
    payload = encoded(codec, values)
    scale = floats(int.from_bytes(payload[:2], "little") << 16)[0]
    assert abs(scale - 1.2240 * rms) <= 2.0**-8 * scale
    assert payload[2:] == b"\x01" * 64
    values[[64, 128, 192, 256]] = [scale / 2, np.nextafter(scale / 2, 1), -0.5, -0.0]
    values[[0, 63, 319]] = [-1.0, -0.0, -1.0]
    changed = encoded(codec, values)
    assert changed[:2] == payload[:2]
    assert (changed[2], changed[65]) == (2 + 9 + 2 * 27, 2 * 81)
    result = decoded(codec, changed, 320)
    assert (result[[0, 1, 128, 192, 319]] == [-scale, scale, scale, -scale, -scale]).all()
    assert not result[[63, 64, 256]].view(np.uint32).any()
    assert not codec.needs_error_feedback


def test_t3b320_holds_every_byte_of_five_trits(isa: str) -> None:
    codec = get_codec("T3B320", isa)
    payload = bytearray(b"\x80\x3f" * 4 + bytes(range(243)) + bytes(13))
    trits = np.frombuffer(payload[8:], np.uint8)[:, None] // 3 ** np.arange(5) % 3
    expected = np.where(trits == 2, -1, trits).reshape(4, 64, 5).swapaxes(1, 2).reshape(-1)
    assert (decoded(codec, payload, 1280) == expected).all()
    for byte in range(243, 256):
        payload[-1] = byte
        with pytest.raises(MalformedMessage, match="a code is outside the range"):
            codec.validate(payload, 1280)


def test_t3b320_stays_finite_at_its_largest_scale(isa: str) -> None:
    codec = get_codec("T3B320", isa)
    payload = encoded(codec, np.full(320, FLOAT_MAX))
    assert payload == b"\x7f\x7f" + b"\x79" * 64
    assert np.isfinite(decoded(codec, payload, 320)).all()
    payload[:2] = b"\x80\x7f"
    with pytest.raises(MalformedMessage, match="a scale is negative, not finite or too large"):
        codec.validate(payload, 320)


def test_t3b320_counts_nothing_below_its_smallest(isa: str) -> None:
    """So a thread that flushes denormals writes the same bytes."""
    codec = get_codec("T3B320", isa)
    values = np.full(320, np.nextafter(np.float32(2.0**-100), np.float32(0)))
    assert not any(encoded(codec, values))
    values[5] = -(2.0**-100)
    payload = encoded(codec, values)
    assert payload[7] == 2
    assert sum(payload[2:]) == 2


@pytest.mark.parametrize(
    ("name", "n_elems", "at", "byte"),
    [
        ("Q8B64", 65, -1, 1),
        ("Q4B64", 65, -1, 0x98),
        ("E3M0", 257, -1, 0x98),
        ("SIGN64", 65, -8, 2),
        ("Q2B64", 65, -8, 2),
        ("Q2B64", 65, -16, 2),
        ("T3B320", 65, -63, 3),
        ("T3B320", 319, -1, 81),
    ],
)
def test_padding_must_be_zero(name: str, n_elems: int, at: int, byte: int, isa: str) -> None:
    codec = get_codec(name, isa)
    payload = encoded(codec, np.zeros(n_elems, dtype=np.float32))
    payload[at] = byte
    with pytest.raises(MalformedMessage, match="the padding of the last block is not zero"):
        codec.validate(payload, n_elems)


def test_tk4_names_no_element_behind_the_vector_but_as_zero(isa: str) -> None:
    codec = get_codec("TK4", isa)
    payload = encoded(codec, np.zeros(65, dtype=np.float32))
    payload[-35:-32] = (62 | 65 << 12).to_bytes(3, "little")  # the last two positions
    codec.validate(payload, 65)
    payload[-1] = 0x98  # the code of the last one is 1
    codec.validate(payload, 66)
    with pytest.raises(MalformedMessage, match="the padding of the last block is not zero"):
        codec.validate(payload, 65)


def test_tk4_keeps_the_largest_in_order_of_place(isa: str) -> None:
    codec = get_codec("TK4K4", isa)
    values = np.zeros(5000, dtype=np.float32)
    values[[7, 4095, 12, 300, 9]] = [-7.0, 5.0, 3.0, -2.0, 1.0]
    values[4999] = 1.0
    payload = encoded(codec, values)
    result = decoded(codec, payload, 5000)
    assert result.nonzero()[0].tolist() == [7, 12, 300, 4095, 4999]
    assert result[[7, 4095, 12, 300]].tolist() == [-7.0, 5.0, 3.0, -2.0]
    assert codec.needs_error_feedback


@pytest.mark.parametrize("name", ["TK4", "TK4K2", "TK4K2048"])
def test_tk4_breaks_ties_by_place(name: str, isa: str) -> None:
    codec = get_codec(name, isa)
    kept = (codec.payload_bytes(4096) - 2) // 2
    values = np.where(np.arange(4096) % 2, -7.0, 7.0).astype(np.float32)
    result = roundtrip(codec, values)
    assert result.nonzero()[0].tolist() == list(range(kept))
    assert (result[:kept] == values[:kept]).all()


def test_tk4_refuses_positions_that_do_not_ascend(isa: str) -> None:
    codec = get_codec("TK4", isa)
    for positions in (5 | 5 << 12, 6 | 5 << 12):
        payload = encoded(codec, np.ones(4096, dtype=np.float32))
        payload[2:5] = positions.to_bytes(3, "little")
        with pytest.raises(MalformedMessage, match="positions do not ascend"):
            codec.validate(payload, 4096)


def test_tk2_has_two_sizes_for_the_largest_in_order_of_place(isa: str) -> None:
    codec = get_codec("TK2K8", isa)
    values = np.zeros(4500, dtype=np.float32)
    places = [4095, 7, 12, 300, 9, 4, 70, 71]
    values[places] = [-8.0, 8.0, 8.0, -8.0, 1.0, -1.0, 1.0, 1.0]
    values[5] = 0.5
    result = roundtrip(codec, values)
    assert np.sort(places).tolist() == result[:4096].nonzero()[0].tolist()
    assert np.allclose(result[places], values[places], rtol=2.0**-8)
    assert codec.needs_error_feedback


def test_tk2_levels_are_the_means_of_what_they_stand_for(isa: str) -> None:
    codec = get_codec("TK2K8", isa)
    values = np.zeros(4096, dtype=np.float32)
    values[:8] = [10.0, -11.0, 12.0, 13.0, 100.0, 102.0, -104.0, 106.0]
    result = roundtrip(codec, values)
    assert np.allclose(result[:8], np.sign(values[:8]) * ([11.5] * 4 + [103.0] * 4), rtol=2.0**-10)


@pytest.mark.parametrize("high", [b"\x7f\x80", b"\xff\x01", b"\x7f\0"])
def test_tk2_refuses_another_number_of_positions_or_one_above_the_tile(
    high: bytes, isa: str
) -> None:
    codec = get_codec("TK2K8", isa)
    payload = encoded(codec, np.ones(4096, dtype=np.float32))
    payload[15:17] = high
    with pytest.raises(MalformedMessage, match="positions do not ascend, or are too many"):
        codec.validate(payload, 4096)
