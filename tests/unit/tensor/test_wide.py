"""RAW64: float64 as it is, and nothing else."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from swarmnode.errors import LocalProtocolError, MalformedMessage, WorkerError
from swarmnode.tensor.codec import get_codec
from swarmnode.tensor.magnitude import Scale, Sizes
from tests.unit.tensor.codec_kit import Elements

VALUES = np.array([0.0, -0.0, 1 / 3, -1e-300, 5e-324, 1.7976931348623157e308])


def test_every_bit_survives() -> None:
    codec = get_codec("RAW64")
    payload, out = bytearray(codec.payload_bytes(6)), np.empty(6)
    codec.encode(VALUES, payload)
    assert bytes(payload) == struct.pack("<6d", *VALUES)
    codec.decode(payload, out)
    assert out.tobytes() == VALUES.tobytes()


def test_merging_is_two_products_and_a_sum() -> None:
    codec = get_codec("RAW64")
    target = np.array([1.0, 2.0])
    codec.merge(struct.pack("<2d", 3.0, 6.0), target, -1.0, 1.0)
    assert target.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_goes_neither_out_nor_in(bad: float) -> None:
    codec = get_codec("RAW64")
    payload, out = bytearray(16), np.ones(2)
    with pytest.raises(WorkerError, match="element 1 is NaN or infinity"):
        codec.encode(np.array([1.0, bad]), payload)
    with pytest.raises(MalformedMessage, match="NaN or infinite"):
        codec.decode(payload, out)
    with pytest.raises(MalformedMessage, match="NaN or infinite"):
        codec.decode(struct.pack("<2d", 1.0, bad), out)
    assert out.tolist() == [1.0, 1.0]


def test_other_sizes_and_float32_are_refused() -> None:
    codec = get_codec("RAW64")
    with pytest.raises(MalformedMessage, match="expected 16 bytes, got 8"):
        codec.decode(bytes(8), np.ones(2))
    with pytest.raises(LocalProtocolError, match="buffer of float64"):
        codec.encode(np.ones(2, np.float32), bytearray(16))


def test_how_large_it_is() -> None:
    part = Elements(get_codec("RAW64"))
    assert part.codec.decode_measured(struct.pack("<2d", 3.0, -4.0), np.zeros(2)) == (4.0, 25.0)
    sizes, own = Sizes(), Sizes()
    sizes.decode(part, struct.pack("<2d", 1e300, -4.0), np.zeros(2))
    own.decode(part, struct.pack("<2d", 1.0, 1.0), np.zeros(2))
    assert "expected values up to" in sizes.refusal(own, Scale(1.0, 1.0))
