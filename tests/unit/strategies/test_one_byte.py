"""One byte: which byte a slope is, how it is measured, and what records do."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.strategies.base import (
    Context,
    Intent,
    Kind,
    Record,
    Selector,
    StepInfo,
    TaskFacts,
)
from swarmnode.strategies.one_byte import OneByte, decode_slope, draw_direction, encode_slope
from swarmnode.tensor.layout import Layout

ME = b"1" * 32
INFO = StepInfo(1, 1.0, 0.0, 0.1)
NUMEL = 13
SEED = 7


def started(**settings: Any) -> OneByte:
    node = OneByte(settings, torch.zeros(NUMEL))
    layout = Layout.of([("w", (NUMEL,), "float32")])
    node.start(Context(ME, SEED, random.Random(1), layout, (ME,), TaskFacts("any")))
    return node


def measured(node: OneByte, losses: Callable[[], float]) -> float:
    probe = node.gradient_point()
    assert probe is not None
    return probe(losses)


# --- the byte, and the direction ------------------------------------------------------------------


def test_every_byte_but_one_is_a_slope_of_its_own() -> None:
    sizes = [decode_slope(bytes([q])) for q in range(128)]
    assert sizes[0] == 0.0
    assert sizes[1:] == pytest.approx([math.exp(-9 + q / 8) for q in range(1, 128)], rel=1e-15)
    for q in range(256):
        if q != 128:
            assert encode_slope(decode_slope(bytes([q]))) == bytes([q])
            assert abs(decode_slope(bytes([q]))) == sizes[q % 128]
            assert (decode_slope(bytes([q])) < 0) is (q > 128)


def test_a_slope_is_the_nearest_byte_and_the_largest_and_smallest_are_clipped() -> None:
    for q in (1, 50, 126):
        middle = -9 + (q + 0.5) / 8
        assert encode_slope(math.exp(middle - 0.01)) == bytes([q])
        assert encode_slope(math.exp(middle + 0.01)) == bytes([q + 1])
    assert [encode_slope(g) for g in (1e-30, -1e-30)] == [b"\x01", b"\x81"]
    assert [encode_slope(g) for g in (1e30, -1e30)] == [b"\x7f", b"\xff"]
    assert [encode_slope(g) for g in (0.0, -0.0)] == [b"\0", b"\0"]
    assert encode_slope(1.0) == bytes([72])


@pytest.mark.parametrize("numel", [1, 8, 13, 16])
def test_a_short_direction_is_the_begin_of_a_long_one(numel: int) -> None:
    long = draw_direction(1, 2, b"k" * 32, 1000)
    assert torch.equal(draw_direction(1, 2, b"k" * 32, numel), long[:numel])
    assert not torch.equal(draw_direction(2, 2, b"k" * 32, 1000), long)


# --- a measurement --------------------------------------------------------------------------------


def test_the_slope_is_that_along_the_own_direction_of_the_round() -> None:
    node = started(epsilon=0.25)
    node.on_records(4, [])
    z = draw_direction(SEED, 5, ME, NUMEL)
    weights = torch.arange(NUMEL, dtype=torch.float32)
    at: list[torch.Tensor] = []

    def loss() -> float:
        at.append(node.x.clone())
        return 3.0 + float(weights @ node.x)

    node.x.fill_(1.0)
    assert measured(node, loss) == 3.0 + float(weights.sum())
    assert [x.tolist() for x in at] == [(1.0 + 0.25 * z).tolist(), (1.0 - 0.25 * z).tolist()]
    assert node.x.tolist() == [1.0] * NUMEL
    assert node.after_step(INFO) == (
        Intent(
            Kind.LOG,
            5,
            tag="slope",
            selector=Selector.ALL,
            record=encode_slope(float(weights @ z)),
        ),
    )


def test_a_round_is_measured_once_and_from_then_on_only_the_loss_is_asked_for() -> None:
    node, asked = started(), list[float]()

    def loss() -> float:
        asked.append(float(len(asked)))
        return asked[-1]

    assert node.after_step(INFO) == ()
    assert measured(node, loss) == 0.5
    assert len(node.after_step(INFO)) == 1
    assert measured(node, loss) == 2.0
    assert len(asked) == 3
    assert node.after_step(INFO) == ()
    node.on_records(0, [])
    assert measured(node, loss) == 3.5
    assert [intent.round for intent in node.after_step(INFO)] == [1]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_not_published(number: float) -> None:
    node = started()
    losses = iter([number, 1.0, 2.0, 1.0])
    measured(node, lambda: next(losses))
    assert node.after_step(INFO) == ()
    measured(node, lambda: next(losses))
    assert len(node.after_step(INFO)) == 1, "it may try again in the same round"


# --- records --------------------------------------------------------------------------------------


def stepped(lr: float, slopes: Sequence[float], n: int) -> torch.Tensor:
    x = torch.zeros(NUMEL)
    for number, slope in enumerate(slopes):
        z = draw_direction(SEED, 3, bytes([number]) * 32, NUMEL)
        x -= z * (lr * slope / n)
    return x


def test_a_step_is_the_mean_over_the_records_of_a_round() -> None:
    node, payloads = started(lr=0.5), [encode_slope(2.0), encode_slope(-3.0)]
    slopes = [decode_slope(payload) for payload in payloads]
    records = [Record(bytes([n]) * 32, each, 3) for n, each in enumerate(payloads)]
    node.on_records(3, records)
    assert torch.allclose(node.x, stepped(0.5, slopes, 2), rtol=1e-6)
    assert (node.round, node.log_round()) == (4, 4)

    with_nonsense = started(lr=0.5)
    with_nonsense.on_records(3, [*records, Record(b"9" * 32, b"\x80", 3)])
    assert torch.allclose(with_nonsense.x, stepped(0.5, slopes, 3), rtol=1e-6)
    assert with_nonsense.metrics()["malformed_records"] == 1.0


def heard(node: OneByte, number: int, *slopes: float, first_author: int = 1) -> list[float]:
    """Let a round pass, of authors of ascending numbers; return what it moved by along each z."""
    records = [
        Record(bytes([first_author + k]) * 32, encode_slope(slope), number)
        for k, slope in enumerate(slopes)
    ]
    z = [draw_direction(SEED, number, record.author, NUMEL) for record in records]
    node.x.zero_()
    node.on_records(number, records)
    # Of thirteen equations the few unknowns: how far along each direction.
    found = torch.linalg.lstsq(torch.stack(z, 1).double(), -node.x.double()[:, None]).solution
    return [float(each) for each in found[:, 0]]


def test_a_slope_counts_as_no_more_than_its_times_the_usual_one() -> None:
    node = started(lr=1.0, bound=2.0)
    one = decode_slope(encode_slope(1.0))
    assert heard(node, 0, 1.0, -1.0, 1.0) == pytest.approx([0.0] * 3, abs=1e-6)
    assert heard(node, 1, 1.0, 1.0, 1.0) == pytest.approx([0.0] * 3, abs=1e-6)
    assert node.metrics()["bounded_records"] == 6.0, "six are too few to say what is usual"
    assert heard(node, 2, 1.0, -1.5, -900.0) == pytest.approx(
        [one / 3, decode_slope(encode_slope(-1.5)) / 3, -2 * one / 3], rel=1e-5
    )
    assert node.metrics()["bounded_records"] == 7.0


def test_slopes_of_nothing_say_nothing_about_what_is_usual() -> None:
    node = started(lr=1.0, bound=2.0)
    for number in range(7):
        heard(node, number, 1.0)
    assert heard(node, 7, 0.0) == [0.0]
    assert heard(node, 8, 1.0) == pytest.approx([decode_slope(encode_slope(1.0))])


def test_a_record_is_one_of_as_many_as_publish_in_whichever_round_it_comes() -> None:
    node, one = started(lr=1.0, bound=2.0), decode_slope(encode_slope(1.0))
    for number in range(4):
        heard(node, number, 1.0, 1.0, 1.0, 1.0)
    assert heard(node, 4, 1.0, first_author=4) == pytest.approx([one / 4], rel=1e-5)
    for number in range(5, 5 + 63):
        heard(node, number, 1.0, first_author=4)
    assert heard(node, 70, 1.0, first_author=4) == pytest.approx([one], rel=1e-5)


def test_what_is_usual_travels_with_the_model() -> None:
    """A newcomer counts the next round as all others do."""
    old = started(lr=0.5, bound=1.5)
    for number in range(9):
        heard(old, number, 0.5 + number, -2.0)
    new = started(lr=0.5, bound=1.5)
    new.x.copy_(old.x)
    new.join({name: each.clone() for name, each in old.buffers().items()})
    for node in (old, new):
        heard(node, 9, 900.0, 1.0)
    assert torch.equal(old.x, new.x)
    assert set(started().buffers()) == {"rounds_closed"}, "swarms of before have no more"


def test_each_author_counts_as_one_whatever_its_id_is() -> None:
    node, one = started(lr=1.0, bound=2.0), decode_slope(encode_slope(1.0))
    authors = [bytes(32), bytes(7) + b"\x01" + bytes(24), b"\xff" * 32, b"\x80" + bytes(31)]
    for number in range(4):
        node.x.zero_()
        records = [Record(author, encode_slope(1.0), number) for author in authors]
        node.on_records(number, records)
    z = sum(draw_direction(SEED, 3, author, NUMEL) for author in authors)
    # The first two share a number, as 0 stands for none.
    assert torch.allclose(node.x, -z * one / 3)


@pytest.mark.parametrize("size", [-1.0, math.nan, math.inf, 1000.0])
def test_sizes_that_no_slope_has_are_refused_in_a_snapshot(size: float) -> None:
    node = started(bound=1.5)
    received = {name: each.clone() for name, each in node.buffers().items()}
    assert node.check_received(received) is None
    received["recent"][5] = size
    assert "recent: expected sizes of slopes from 0 to 968" in str(node.check_received(received))
    received["recent"][5] = decode_slope(b"\x7f")
    assert node.check_received(received) is None, "the largest one"


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\x01\x02", b"\x80\x01"])
def test_what_is_no_slope_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessage, match="expected a slope of one byte"):
        decode_slope(payload)


def test_metrics_say_how_far_a_node_is_and_which_bits_it_has() -> None:
    node = started()
    digest = hashlib.sha256(node.x.numpy().tobytes()).hexdigest()
    expected = {"rounds_closed": 0.0, "malformed_records": 0.0, "bounded_records": 0.0}
    assert node.metrics() == expected | {"state_digest": float(int(digest[:12], 16))}
    node.on_records(8, [])
    assert node.metrics()["rounds_closed"] == 9.0


def test_the_rounds_of_a_snapshot_are_judged_and_taken() -> None:
    node = started()
    assert {name: each.tolist() for name, each in node.buffers().items()} == {"rounds_closed": [0]}
    assert node.check_received({}) is None
    for rounds, is_fine in (
        (-1, False),
        (0, True),
        (limits.TRAINED_STEPS_MAX, True),
        (limits.TRAINED_STEPS_MAX + 1, False),
    ):
        why = node.check_received({"rounds_closed": torch.tensor([rounds])})
        assert (why is None) is is_fine
    node.join({"rounds_closed": torch.tensor([5])})
    assert node.round == 5


def test_what_a_manifest_does_not_say_is_what_it_always_was() -> None:
    unsaid = OneByte.parse({})
    assert (unsaid.lr, unsaid.epsilon, unsaid.bound) == (1e-3, 1e-3, 0.0)
    assert OneByte.version == 1
    assert not started().reads_in_passing
