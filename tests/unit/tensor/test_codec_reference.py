"""Encoding the difference to a vector that both sides have."""

from __future__ import annotations

import numpy as np
import pytest

from swarmnode.errors import LocalProtocolError, WorkerError
from swarmnode.tensor.codec import CODEC_NAMES, Codec, available_isas, get_codec
from tests.unit.tensor.codec_kit import gaussian

FLOAT_MAX = np.finfo(np.float32).max
NAMES = [name for name in CODEC_NAMES if get_codec(name).takes_reference]


@pytest.fixture(params=[(name, isa) for name in NAMES for isa in available_isas()], ids=str)
def codec(request: pytest.FixtureRequest) -> Codec:
    name, isa = request.param
    return get_codec(name, isa)


def encoded(codec: Codec, values: np.ndarray, reference: np.ndarray | None) -> bytearray:
    payload = bytearray(codec.payload_bytes(values.size))
    codec.encode(values.data, payload, reference)
    return payload


def test_differences_are_for_the_codecs_of_weights() -> None:
    assert NAMES == ["Q8B64", "Q4B64", "E3M0", "Q2B64", "T3B320"]


@pytest.mark.parametrize("n_elems", [1, 256, 1000, 131_073])
def test_decoding_adds_the_decoded_difference(codec: Codec, n_elems: int) -> None:
    reference = gaussian(n_elems, 1)
    values = reference + np.float32(0.01) * gaussian(n_elems, 2)
    payload = encoded(codec, values, reference)
    assert payload == encoded(codec, values - reference, None)
    difference, out = np.empty_like(values), np.empty_like(values)
    codec.decode(payload, difference.data)
    codec.decode(payload, out.data, reference)
    assert (out == reference + difference).all()
    target = gaussian(n_elems, 3)
    expected = np.float32(0.7) * target + np.float32(0.3) * out
    codec.merge(payload, target.data, 0.7, 0.3, reference)
    assert (target == expected).all()


def test_the_error_is_that_of_the_difference_not_of_the_weights() -> None:
    codec = get_codec("Q8B64")
    reference = gaussian(1 << 16, 1)
    values = reference + np.float32(0.01) * gaussian(1 << 16, 2)
    error_without, error_with = (
        np.linalg.norm(decoded(codec, values, given) - values) for given in (None, reference)
    )
    assert error_with < error_without / 50


def decoded(codec: Codec, values: np.ndarray, reference: np.ndarray | None) -> np.ndarray:
    out = np.empty_like(values)
    codec.decode(encoded(codec, values, reference), out.data, reference)
    return out


def test_differences_of_a_pair_are_exact_negatives(codec: Codec) -> None:
    reference = gaussian(333, 1)
    payloads = [encoded(codec, reference + gaussian(333, seed), reference) for seed in (4, 5)]
    differences = [np.empty_like(reference), np.empty_like(reference)]
    for payload, out in zip(payloads, differences, strict=True):
        codec.decode(payload, out.data, reference)
    codec.merge(payloads[1], differences[0].data, -1.0, 1.0, reference)
    codec.merge(payloads[0], differences[1].data, -1.0, 1.0, reference)
    assert (differences[0] == -differences[1]).all()
    assert np.abs(differences[0]).max() > 0.5


def test_a_hostile_difference_saturates_instead_of_overflowing(codec: Codec) -> None:
    """Each is finite and the sum is not: 3e38 and 3e38."""
    signs = np.where(np.arange(256) % 2, -1.0, 1.0).astype(np.float32)
    payload = encoded(codec, signs * np.float32(3e38), None)
    out = np.empty(256, dtype=np.float32)
    codec.decode(payload, out.data, signs * np.float32(3e38))
    assert (out == signs * FLOAT_MAX).all()


def test_a_difference_that_is_not_finite_is_refused(codec: Codec) -> None:
    reference = np.full(300, -FLOAT_MAX, dtype=np.float32)
    values = reference.copy()
    values[280] = FLOAT_MAX
    with pytest.raises(WorkerError, match="NaN or infinity"):
        encoded(codec, values, reference)


def test_a_reference_must_be_as_long_as_the_values(codec: Codec) -> None:
    values, short = gaussian(100, 1), gaussian(99, 1)
    payload = bytearray(codec.payload_bytes(100))
    for use in (
        lambda: codec.encode(values.data, payload, short),
        lambda: codec.decode(payload, values.data, short),
        lambda: codec.merge(payload, values.data, 0.5, 0.5, short),
    ):
        with pytest.raises(LocalProtocolError, match="a reference of 100 elements, got 99"):
            use()


@pytest.mark.parametrize("name", [name for name in CODEC_NAMES if name not in NAMES])
def test_other_codecs_refuse_a_reference(name: str) -> None:
    codec = get_codec(name)
    values = gaussian(64, 1)
    with pytest.raises(LocalProtocolError, match=f"{name} takes no reference"):
        codec.encode(values, bytearray(codec.payload_bytes(64)), values)
