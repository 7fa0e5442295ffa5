"""How large a vector is, and what is too large beside one's own."""

import math

import numpy as np
import pytest

from swarmnode.errors import MalformedMessage
from swarmnode.tensor.codec import available_isas, get_codec, get_measure
from swarmnode.tensor.magnitude import (
    UNKNOWN,
    Magnitude,
    Scale,
    Sizes,
    measure,
    own_scale,
    refusal,
)
from tests.unit.tensor.codec_kit import Elements, encoded, gaussian

on_every_isa = pytest.mark.parametrize("isa", available_isas())


@on_every_isa
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 1000])
def test_it_is_the_largest_value_and_the_norm(isa, numel):
    values = np.random.default_rng(numel).standard_normal(numel).astype("f4")
    exact = values.astype("f8")
    said = Magnitude(*get_measure(isa)(values.data))
    assert said.largest == float(np.abs(exact).max(initial=0.0))
    assert said.norm == pytest.approx(float(np.linalg.norm(exact)))
    assert measure(memoryview(values.tobytes())) == said, "alignment and format do not matter"


@on_every_isa
def test_the_largest_float_has_a_norm_and_a_nan_is_refused(isa):
    huge = Magnitude(*get_measure(isa)(np.full(3, 3e38, "f4").data))
    assert math.isfinite(huge.norm)
    spoilt = Magnitude(*get_measure(isa)(np.array([1.0, np.nan], "f4").data))
    assert refusal(spoilt, Magnitude(1.0, 2.0), "v")


def in_lanes(values):
    """Return the largest value and the sum of squares as they are defined: in eight lanes."""
    largest, sums = 0.0, [0.0] * 8
    for index, value in enumerate(map(float, np.abs(values))):
        largest = value if value > largest else largest
        sums[index % 8] += value * value
    total = 0.0
    for lane in sums:  # sum() rounds in another way from Python 3.12 on
        total += lane
    return largest, total


def bits(numbers):
    return ["nan" if math.isnan(number) else number.hex() for number in numbers]


@on_every_isa
@pytest.mark.parametrize("numel", [5, 8, 1001, 100_003])
def test_every_instruction_set_gives_the_bits_of_eight_lanes(isa, numel):
    rng = np.random.default_rng(numel)
    values = (rng.standard_normal(numel) * 10.0 ** rng.integers(-30, 30, numel)).astype("f4")
    assert bits(get_measure(isa)(values.data)) == bits(in_lanes(values))


@on_every_isa
@pytest.mark.parametrize("at", [0, 3, 8, 12, 16, 17])
@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf, -np.inf, 1e-45, -0.0, 3.4e38])
def test_a_value_that_is_no_number_does_the_same_on_all_of_them(isa, odd, at):
    values = np.arange(18, dtype="f4")
    values[at] = odd
    found = get_measure(isa)(values.data)
    assert bits(found) == bits(in_lanes(values))
    assert math.isnan(found[1]) == math.isnan(odd)


@on_every_isa
@pytest.mark.parametrize("name", ["RAW32", "BF16", "Q8B64", "Q2B64", "T3B320", "SIGN64", "TK4"])
@pytest.mark.parametrize("numel", [1, 63, 8 * 4096 + 65, 2048 * 64 + 3])
def test_what_is_decoded_is_measured_with_the_same_bits(isa, name, numel):
    codec = get_codec(name, isa)
    payload = encoded(codec, gaussian(numel))
    plain, out = np.empty(numel, "f4"), np.empty(numel, "f4")
    found = codec.decode_measured(payload, out.data)
    codec.decode(payload, plain.data)
    assert out.tobytes() == plain.tobytes()
    assert bits(found) == bits(in_lanes(plain))


@on_every_isa
def test_an_invalid_payload_changes_and_counts_nothing(isa):
    codec = get_codec("Q8B64", isa)
    out, sizes = np.full(100, 7.0, "f4"), Sizes()
    with pytest.raises(MalformedMessage, match="a scale is"):
        sizes.decode(Elements(codec), b"\xff" * codec.payload_bytes(100), out.data)
    assert (out == 7.0).all()
    assert not sizes.refusal(Sizes(), UNKNOWN)


def test_what_is_not_of_the_weights_scale_is_decoded_and_not_measured():
    codec = get_codec("RAW32")
    out, sizes = np.empty(3, "f4"), Sizes()
    payload = np.full(3, 3e38, "f4").tobytes()
    sizes.decode(Elements(codec, is_scaled=False), payload, out.data)
    assert out.tobytes() == payload
    assert not sizes.refusal(Sizes(), UNKNOWN)
    sizes.decode(Elements(codec), payload, out.data)
    assert "view 0: expected values up to" in sizes.refusal(Sizes(), UNKNOWN)


def vector(value, numel=100):
    return Magnitude(abs(value), value**2 * numel)


@pytest.mark.parametrize(
    ("theirs", "is_refused"),
    [
        (vector(0.0), False),
        (vector(99.0), False),
        (vector(101.0), True),
        (Magnitude(999.0, 999.0**2), False),  # one element of a hundred
        (Magnitude(1001.0, 1001.0**2), True),
        (vector(3e38), True),
    ],
)
def test_a_norm_of_a_hundred_times_ones_own_is_the_most(theirs, is_refused):
    assert bool(refusal(theirs, vector(1.0), "v")) is is_refused


def test_in_a_long_vector_it_is_the_largest_value():
    own = vector(1.0, 10**8)
    assert not refusal(Magnitude(9_999.0, 10**8), own, "v")
    assert "expected values up to 1e+04, got 1e+04" in refusal(Magnitude(10_001.0, 10**8), own, "v")


def test_a_difference_of_zero_is_compared_by_the_weights():
    weights = Scale(0.5, 2.0)
    beside = own_scale(Magnitude(), weights, 100)
    assert not refusal(vector(4.9), beside, "v")
    assert refusal(vector(5.1), beside, "v")
    assert own_scale(vector(1.0), weights, 100) == vector(1.0), "the larger one counts"


def test_a_model_of_zeros_counts_as_one_of_ones():
    assert own_scale(Magnitude(), UNKNOWN, 100) == vector(1.0)
