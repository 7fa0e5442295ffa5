"""One byte: all nodes keep the same bits, late records and late joiners included."""

import math
import struct

import pytest
import torch

from swarmnode.errors import MalformedMessage
from swarmnode.strategies.base import Context, Record, StepInfo, TaskFacts
from swarmnode.strategies.one_byte import OneByte, decode_slope, draw_direction, encode_slope
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.faults import Faults, Outage
from swarmnode.testing.lab.tasks import DIM, Logistic, Quadratic


def arena_of(strategy, n=4, lr=0.1, **kwargs):
    task = Logistic(n, 1)
    return Arena(task, lambda x: strategy({"lr": lr}, x), seed=1, **kwargs)


def hashes(arena):
    """Return the digests of the nodes that have applied the most rounds."""
    newest = max(node.strategy.round for node in arena.up)
    current = [node.strategy for node in arena.up if node.strategy.round == newest]
    return len(current), {strategy.metrics()["state_digest"] for strategy in current}


# --- the byte and the direction ------------------------------------------------------------------


def test_the_byte_is_within_seven_percent_over_seven_decades():
    worst = 0.0
    for number in range(2000):
        g = 1.5e-4 * (900 / 1.5e-4) ** (number / 1999)
        for signed in (g, -g):
            decoded = decode_slope(encode_slope(signed))
            assert math.copysign(1, decoded) == math.copysign(1, signed)
            worst = max(worst, abs(decoded / signed - 1))
    assert worst <= 0.065
    assert decode_slope(encode_slope(0.0)) == 0.0
    assert decode_slope(encode_slope(1e9)) == pytest.approx(968, rel=1e-3)
    assert decode_slope(encode_slope(-1e-9)) == pytest.approx(-1.4e-4, rel=0.01)


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\x01\x02"])
def test_what_is_no_such_byte_is_refused(payload):
    with pytest.raises(MalformedMessage, match="expected a slope of one byte"):
        decode_slope(payload)


def test_directions_are_signs_that_never_change():
    z = draw_direction(1, 2, b"k" * 32, 1000)
    assert set(z.tolist()) == {-1.0, 1.0}
    assert abs(float(z.mean())) < 0.1
    # Golden: other versions, devices and implementations must draw the same.
    assert (
        "".join("+" if value > 0 else "-" for value in z[:24].tolist())
        == "++--+-++++++---+-+---+-+"
    )
    assert not torch.equal(z, draw_direction(1, 3, b"k" * 32, 1000))
    assert not torch.equal(z, draw_direction(1, 2, b"l" * 32, 1000))


def test_the_mean_of_many_slopes_points_along_the_gradient():
    task = Logistic(1, 1)
    x = torch.zeros(DIM)
    x.requires_grad_(True)
    task.loss(x, task.rows, task.labels).backward()
    total = torch.zeros(DIM)
    for number in range(2000):
        z = draw_direction(0, number, b"k" * 32, DIM)
        values = [
            float(task.loss((s * 1e-3 * z).double(), task.rows.double(), task.labels.double()))
            for s in (1, -1)
        ]
        total += decode_slope(encode_slope((values[0] - values[1]) / 2e-3)) * z
    assert torch.cosine_similarity(total, x.grad, dim=0) >= 0.97


# --- the same bits -------------------------------------------------------------------------------


def test_all_nodes_keep_the_same_bits():
    arena = arena_of(OneByte)
    for _ in range(6):
        arena.run(64)
        assert hashes(arena)[0] == 4
        assert len(hashes(arena)[1]) == 1


def test_late_records_and_a_late_joiner_change_nothing_of_that():
    # Steps of a unit, records that take up to six: many come after their round has closed.
    faults = Faults(latency=4.0, outages=(Outage(2, 60.0, 200.0),))
    arena = arena_of(OneByte, faults=faults)
    arena.run(400)
    late = sum(
        record.round < number
        for number, records in enumerate(arena.gatherings.log)
        for record in records
    )
    assert late > 0
    drain(arena)
    assert hashes(arena) == (4, {arena.nodes[2].strategy.metrics()["state_digest"]})


def drain(arena):
    """Hand everybody the rounds of the log that they have not seen yet."""
    for node in arena.up:
        arena.gatherings._read_on(node.number)


def test_a_node_that_replays_the_log_from_the_start_has_the_same_bits():
    arena = arena_of(OneByte)
    arena.run(100)
    fresh = alone()
    for number, records in enumerate(arena.gatherings.log):
        fresh.on_records(number, records)
    assert torch.equal(fresh.x, arena.nodes[0].strategy.x)


def alone(**settings):
    strategy = OneByte({"lr": 0.1, **settings}, torch.zeros(DIM))
    layout = Layout.of([("x", (DIM,), "float32")])
    me = bytes(32)
    strategy.start(Context(me, 1, None, layout, (me,), TaskFacts("logit")))
    return strategy


def test_a_record_keeps_its_direction_however_late_it_is():
    one, two = alone(), alone()
    record = Record(b"a" * 32, encode_slope(1.0), 3)
    one.on_records(3, [record])
    two.on_records(9, [record])
    assert torch.equal(one.x, two.x)
    expected = torch.full((DIM,), 0.1 * decode_slope(encode_slope(1.0)))
    torch.testing.assert_close(one.x, -expected * draw_direction(1, 3, b"a" * 32, DIM))


class Reordered(OneByte):
    """A known bug: records are applied in the order in which this node heard of them."""

    def on_records(self, round_number, records):
        own_first = sorted(records, key=lambda record: record.author != self.ctx.self_id)
        super().on_records(round_number, own_first)


class RoundOfTheLog(OneByte):
    """A known bug: the direction is that of the round in which the record came."""

    def _direction(self, round_number, author):
        is_own = author == self.ctx.self_id
        return super()._direction(round_number if is_own else self.round, author)


@pytest.mark.parametrize("mutant", [Reordered, RoundOfTheLog])
def test_mutants_lose_the_common_bits(mutant):
    arena = arena_of(mutant, faults=Faults(latency=4.0))
    arena.run(200)
    drain(arena)
    assert len(hashes(arena)[1]) > 1


def test_a_malformed_record_is_dropped_by_all():
    strategy = alone()
    strategy.on_records(0, [Record(b"a" * 32, b"\x80", 0), Record(b"b" * 32, b"xy", 0)])
    assert strategy.round == 1
    assert strategy.metrics()["malformed_records"] == 2
    assert strategy.x.count_nonzero() == 0


def test_the_model_is_as_it_was_after_a_measurement_and_one_round_has_one_record():
    strategy = alone()
    strategy.x.normal_(generator=torch.Generator().manual_seed(1))
    before = strategy.x.clone()
    seen = []
    strategy.gradient_point()(lambda: seen.append(strategy.x.clone()) or 1.0 + len(seen))
    assert torch.equal(strategy.x, before)
    assert not torch.equal(seen[0], seen[1])
    info = StepInfo(1, 1.0, 0.0, 0.1)
    (intent,) = strategy.after_step(info)
    assert (intent.round, len(intent.record)) == (0, 1)
    strategy.gradient_point()(lambda: 1.0)
    assert strategy.after_step(info) == ()


# --- what it learns ------------------------------------------------------------------------------


class Float(OneByte):
    """Four bytes in place of one."""

    def encode(self, slope):
        return struct.pack("<f", slope)

    def decode(self, payload):
        return struct.unpack("<f", payload)[0]


@pytest.mark.claim
def test_one_byte_learns_as_well_as_four():
    byte = arena_of(OneByte, n=8)
    byte.run(400)
    four = arena_of(Float, n=8)
    four.run(400)
    assert byte.measure()["loss"] <= four.measure()["loss"] + 0.01
    assert byte.measure()["loss"] < 0.5 * math.log(2)
    sent = sum(len(record.payload) for records in byte.gatherings.log for record in records)
    assert sent == 8 * 400


def test_it_works_in_float64_too():
    task = Quadratic.lsq(4, 1)
    task.has_poisson_steps = False
    arena = Arena(task, lambda x: OneByte({"lr": 0.02}, x), seed=1)
    before = arena.measure()["error"]
    arena.run(1500)
    assert arena.measure()["error"] < 0.05 * before
    assert len(hashes(arena)[1]) == 1
