"""Several payloads of one vector: their mean and inner products, without decoding them whole."""

from __future__ import annotations

import numpy as np
import pytest

from swarmnode.errors import LocalProtocolError, MalformedMessage, WorkerError
from swarmnode.tensor.codec import CODEC_NAMES, available_isas, get_codec
from swarmnode.tensor.magnitude import UNKNOWN, Sizes
from tests.unit.tensor.codec_kit import Elements, decoded, encoded, gaussian

on_every_isa = pytest.mark.parametrize("isa", available_isas())
of_every_codec = pytest.mark.parametrize("name", CODEC_NAMES)
# Less than a block, a tile of the mean and one more, a row of the products, whole spans of T3B320.
LENGTHS = (1, 63, 64, 65, 1280, 1281, 4096, 5000, 20_480, 24_577)


def shares(name, n_elems, n=3):
    """Return payloads, of values of different sizes, and what they decode to."""
    codec = get_codec(name, "numpy")
    payloads = [encoded(codec, gaussian(n_elems, seed) * 10.0**seed) for seed in range(n)]
    return payloads, np.stack([decoded(codec, payload, n_elems) for payload in payloads])


def exact_mean(rows, weights, divisor):
    """Sum in float64 in order, divide, round: what the contract says."""
    summed = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        summed += row.astype(np.float64) * weight
    return (summed / divisor).astype(np.float32)


@on_every_isa
@of_every_codec
def test_the_mean_has_the_bits_of_decoding_summing_and_encoding(isa, name):
    codec = get_codec(name, isa)
    for n_elems in LENGTHS:
        payloads, rows = shares(name, n_elems)
        for weights, divisor in (([1.0, 0.125, 1 / 3], 35 / 24), ([1.0, 1.0, 2.0], 4.0)):
            out = bytearray(codec.payload_bytes(n_elems))
            codec.encode_mean(payloads, weights, divisor, out, n_elems)
            assert out == encoded(codec, exact_mean(rows, weights, divisor)), n_elems


@on_every_isa
@of_every_codec
def test_products_have_the_bits_of_numpy_row_by_row_of_4096(isa, name):
    for n_elems in LENGTHS:
        payloads, rows = shares(name, n_elems)
        gram = np.ones((3, 3))  # what is there is added to
        get_codec(name, isa).add_products(payloads, n_elems, gram.data)
        expected = np.ones((3, 3))
        for begin in range(0, n_elems, 4096):
            wide = rows[:, begin : begin + 4096].astype(np.float64)
            for i in range(3):
                expected[i, i:] += np.add.reduce(wide[i:] * wide[i], axis=1)
        assert gram.tobytes() == expected.tobytes(), n_elems


@on_every_isa
@of_every_codec
def test_a_payload_is_measured_as_what_it_decodes_to(isa, name):
    codec = get_codec(name, isa)
    for n_elems in LENGTHS:
        payload = shares(name, n_elems, n=1)[0][0]
        out = np.empty(n_elems, np.float32)
        assert codec.measure(payload, n_elems) == codec.decode_measured(payload, out.data), n_elems


@on_every_isa
def test_sixty_four_payloads_are_the_most(isa):
    codec = get_codec("Q8B64", isa)
    payloads, rows = shares("Q8B64", 200, n=1)
    out = bytearray(codec.payload_bytes(200))
    codec.encode_mean(payloads * 64, [1.0] * 64, 64.0, out, 200)
    assert out == encoded(codec, rows[0])
    gram = np.zeros((64, 64))
    codec.add_products(payloads * 64, 200, gram.data)
    assert np.ptp(gram[np.triu_indices(64)]) == 0 < gram[0, 63]


@on_every_isa
@of_every_codec
def test_one_payload_that_breaks_a_rule_leaves_everything_as_it_was(isa, name):
    codec = get_codec(name, isa)
    payloads, _ = shares(name, 5000)
    payloads[1][:] = b"\xff" * len(payloads[1])
    out, gram = bytearray(b"\x11" * len(payloads[0])), np.ones((3, 3))
    with pytest.raises(MalformedMessage):
        codec.encode_mean(payloads, [1.0] * 3, 3.0, out, 5000)
    with pytest.raises(MalformedMessage):
        codec.add_products(payloads, 5000, gram.data)
    with pytest.raises(MalformedMessage):
        codec.measure(payloads[1], 5000)
    assert set(out) == {0x11}
    assert (gram == 1).all()
    with pytest.raises(MalformedMessage, match="expected"):
        codec.encode_mean([payloads[0], payloads[2][:-1]], [1.0] * 2, 2.0, out, 5000)


@on_every_isa
def test_a_mean_that_is_not_finite_is_not_sent(isa):
    codec = get_codec("RAW32", isa)
    payloads = [np.full(3000, 3e38, "f4").tobytes()] * 2
    out = bytearray(12_000)
    with pytest.raises(WorkerError, match="element 0 is"):
        codec.encode_mean(payloads, [1.0] * 2, 1.0, out, 3000)
    assert set(out) == {0xFF}


def test_models_of_float64_have_no_groups():
    codec = get_codec("RAW64")
    with pytest.raises(LocalProtocolError, match="float32 only"):
        codec.measure(bytes(8), 1)


def test_sizes_are_those_of_decoding_and_validated_where_they_do_not_count():
    codec = get_codec("Q8B64")
    payload = encoded(codec, gaussian(1000) * 1e9)
    own, measured, unscaled = Sizes(), Sizes(), Sizes()
    own.decode(Elements(codec), encoded(codec, gaussian(1000)), bytearray(4000))
    measured.measure(Elements(codec), payload, 1000)
    unscaled.measure(Elements(codec, is_scaled=False), payload, 1000)
    decoded_sizes = Sizes()
    decoded_sizes.decode(Elements(codec), payload, bytearray(4000))
    assert measured.refusal(own, UNKNOWN) == decoded_sizes.refusal(own, UNKNOWN) != ""
    assert unscaled.refusal(own, UNKNOWN) == ""
    with pytest.raises(MalformedMessage):
        unscaled.measure(Elements(codec, is_scaled=False), b"\xff" * len(payload), 1000)
