"""Error feedback: nothing is lost, only late."""

from __future__ import annotations

import numpy as np
import pytest

from swarmnode.errors import WorkerError
from swarmnode.tensor.codec import CODEC_NAMES, available_isas, get_codec
from swarmnode.tensor.feedback import encode_with_feedback
from tests.unit.tensor.codec_kit import gaussian

NAMES = [name for name in CODEC_NAMES if get_codec(name).needs_error_feedback]
FLOAT_MAX = np.finfo(np.float32).max


def test_who_needs_it() -> None:
    assert NAMES == ["SIGN64", "TK4", "TK2"]
    assert get_codec("TK4K512").needs_error_feedback


@pytest.mark.parametrize("name", ["SIGN64", "TK4", "TK4K1024", "TK2", "Q4B64"])
def test_what_was_sent_and_the_residual_sum_up_to_what_was_given(name: str) -> None:
    """1000 steps: sum of sent + e = sum of given."""
    codec = get_codec(name)
    n_elems = 4160
    residual = np.zeros(n_elems, dtype=np.float32)
    sent, given = np.zeros(n_elems), np.zeros(n_elems)
    payload = bytearray(codec.payload_bytes(n_elems))
    out = np.empty(n_elems, dtype=np.float32)
    rng = np.random.default_rng(1)
    for _ in range(1000):
        values = rng.standard_normal(n_elems, dtype=np.float32)
        encode_with_feedback(codec, values, residual, payload)
        codec.decode(payload, out.data)
        sent += out
        given += values
    scale = np.linalg.norm(given)
    assert np.linalg.norm(sent + residual - given) <= 1e-5 * scale
    assert np.linalg.norm(residual) > 0


def test_a_constant_gradient_arrives_in_full_only_with_feedback() -> None:
    codec = get_codec("TK4")
    values = gaussian(4096, 3)
    residual = np.zeros_like(values)
    payload = bytearray(codec.payload_bytes(values.size))
    out, received = np.empty_like(values), np.zeros(4096)
    for _ in range(400):
        encode_with_feedback(codec, values, residual, payload)
        codec.decode(payload, out.data)
        received += out
    error = np.linalg.norm(received / 400 - values) / np.linalg.norm(values)
    assert error < 0.2
    codec.encode(values, payload)
    codec.decode(payload, out.data)
    assert np.linalg.norm(out - values) / np.linalg.norm(values) > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_every_implementation_leaves_the_same_residual(name: str) -> None:
    results = set()
    for isa in available_isas():
        codec = get_codec(name, isa)
        residual = gaussian(5000, 1)
        payload = bytearray(codec.payload_bytes(5000))
        encode_with_feedback(codec, gaussian(5000, 2), residual, payload)
        results.add((residual.tobytes(), bytes(payload)))
    assert len(results) == 1


@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite_leave_the_residual_alone(name: str) -> None:
    codec = get_codec(name)
    values, residual = gaussian(100, 1), gaussian(100, 2)
    values[50] = np.nan
    before = residual.copy()
    with pytest.raises(WorkerError, match="expected finite values, got NaN or infinity"):
        encode_with_feedback(codec, values, residual, bytearray(codec.payload_bytes(100)))
    assert (residual == before).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_that_overflows_clears_the_residual(name: str) -> None:
    codec = get_codec(name)
    values = np.full(100, FLOAT_MAX, dtype=np.float32)
    residual = values.copy()
    with pytest.raises(WorkerError, match="NaN or infinity"):
        encode_with_feedback(codec, values, residual, bytearray(codec.payload_bytes(100)))
    assert not residual.any()
