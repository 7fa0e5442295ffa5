"""A loop whose views and merges take longer than one boundary between two steps may be held up."""

import threading

import pytest
import torch

from swarmnode import limits
from swarmnode.ipc.control import (
    Applied,
    NoView,
    Pause,
    Progress,
    SaveSnapshot,
    SlotReady,
    SnapshotSaved,
    TakeView,
    Weigh,
    Weighed,
)
from swarmnode.ipc.records import Partner
from swarmnode.strategies.merging.pieces import PIECE_ELEMS
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from tests.kits.worker_kit import PEER, XID, Rig

PIECES = 4
NUMEL = (PIECES - 1) * PIECE_ELEMS + 11


class Slow:
    """A clock by which everything takes so long that a boundary has time for one piece."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 0.75 * limits.STEP_PAUSE_S
        return self.now_s


class Waiting(SnapshotStore):
    """A disk that waits for the test, where it says so; all large tensors are read in passing."""

    def __init__(self, directory):
        super().__init__(directory, live_bytes_min=1000)
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, taken):
        assert self.may_write.wait(30)
        return super().write(taken)


@pytest.fixture
def make_rig(tmp_path):
    rigs = []

    def make(name="snapshots"):
        rigs.append(Rig(tmp_path / name, dim=NUMEL, clock=Slow(), store=Waiting))
        for group in rigs[-1].state.optimizer.param_groups:
            group["lr"] = 1e-3 / NUMEL  # a step moves each element by little
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def ask(rig):
    """Ask for the view of the intent that there is; its first piece is taken at once."""
    rig.step(2)
    intent = rig.intent()
    rig.tell(TakeView(ticket=1, number=intent.number, peer=PEER, round=intent.round))
    return intent


def lend(rig):
    ask(rig)
    rig.step(PIECES)
    (ready,) = rig.received(SlotReady)
    return ready


def merge(rig, ready):
    """Let the peer send what is larger by two in each element; merge the first piece of it."""
    own, room = rig.halves(ready)
    room[:NUMEL] = own[:NUMEL] + 2
    before = rig.x.clone()
    rig.apply(ready)
    rig.step()
    assert (rig.x - before > 0.5).sum() == PIECE_ELEMS


def test_a_view_is_taken_over_several_steps_and_lent_when_it_is_whole(make_rig):
    rig = make_rig()
    ask(rig)
    seen = [rig.x.clone()]
    while not (ready := rig.received(SlotReady)):
        rig.step()
        seen.append(rig.x.clone())
        assert len(seen) <= PIECES + 1
    own, _ = rig.halves(ready[0])
    for number, x in enumerate(seen[:PIECES]):
        part = slice(number * PIECE_ELEMS, min((number + 1) * PIECE_ELEMS, NUMEL))
        assert torch.equal(own[part], x[part]), "each piece is of the step at which it was taken"
    assert (ready[0].step, rig.state.step) == (2, 2 + PIECES), "it is no fresher than that"


def test_a_merge_counts_when_its_last_piece_is_in_the_model(make_rig):
    rig = make_rig()
    ready = lend(rig)
    merge(rig, ready)
    for number in range(1, PIECES):
        assert rig.received(Applied) == []
        before = rig.x.clone()
        rig.step()
        moved = rig.x - before
        part = slice(number * PIECE_ELEMS, min((number + 1) * PIECE_ELEMS, NUMEL))
        assert (moved[part] > 0.5).all()
        assert (moved > 0.5).sum() == len(moved[part]), "and no other piece"
    rig.step()
    (applied,) = rig.received(Applied)
    assert (applied.xid, applied.step) == (XID, rig.state.step)
    assert not rig.loop.handoff.is_lending


def test_a_snapshot_has_all_of_a_merge_that_was_half_done(make_rig, tmp_path):
    rig = make_rig()
    ready = lend(rig)
    rig.tell(SaveSnapshot(1))
    before = rig.x.clone()
    merge(rig, ready)
    assert rig.received(Applied) == []
    rig.loop.keep_books()
    rig.wait_saved()
    said = rig.received(Applied | SnapshotSaved)
    assert [type(message) for message in said] == [Applied, SnapshotSaved]
    rig.close()
    again = make_rig()
    assert again.store.restore(again.state, again.strategy)
    torch.testing.assert_close(again.x, before + 1, atol=1e-4, rtol=0)


def test_merges_wait_while_a_snapshot_is_read_in_passing(make_rig):
    """Slow weights, momentum and lineage in it are of one moment."""
    rig = make_rig()
    ready = lend(rig)
    rig.step()
    rig.store.may_write = threading.Event()
    rig.tell(SaveSnapshot(1))
    rig.loop.keep_books()
    assert rig.loop.saver.is_reading
    own, room = rig.halves(ready)
    room[:NUMEL] = own[:NUMEL] + 2
    before = rig.x.clone()
    rig.apply(ready)
    rig.step(3)
    rig.loop.settle()
    assert (rig.x - before).abs().max() < 0.5, "only steps were taken"
    rig.store.may_write.set()
    rig.wait_saved()
    assert not rig.loop.saver.is_reading
    rig.loop.settle()
    assert (rig.x - before).min() > 0.5
    assert len(rig.received(Applied)) == 1


def test_a_worker_that_dies_between_two_pieces_has_lost_the_merge_whole(make_rig):
    """What it was is on disk; nothing was said of the exchange, so history has it as lost."""
    rig = make_rig()
    ready = lend(rig)
    rig.store.save(rig.state, rig.strategy)
    saved = rig.x.clone()
    merge(rig, ready)
    rig.step()
    assert not torch.equal(rig.x, saved)
    assert rig.received(Applied) == []
    rig.close()  # as by kill -9: nothing is merged or saved any more
    again = make_rig()
    assert again.store.restore(again.state, again.strategy)
    assert torch.equal(again.x, saved)


@pytest.mark.parametrize("message", [Pause()])
def test_where_no_step_waits_it_is_brought_to_its_end_at_once(make_rig, message):
    rig = make_rig()
    ready = lend(rig)
    merge(rig, ready)
    rig.tell(message)
    assert len(rig.received(Applied)) == 1
    rig.loop.handoff.go_on()
    assert rig.received(Applied) == []


def test_what_is_asked_meanwhile_waits_its_turn(make_rig):
    """A verdict sees a model in which the merge before it is whole."""
    rig = make_rig()
    ready = lend(rig)
    merge(rig, ready)
    rig.step(PIECES - 2)  # one is left
    rig.tell(Weigh(ready.slot, ready.generation, Partner(peer=PEER, step=0, tokens=0)))
    rig.tell(TakeView(ticket=9, number=99, peer=PEER))
    assert rig.received(Applied | Weighed | NoView) == []
    rig.step(2 + 3)
    said = rig.received(Applied | Weighed | NoView)
    assert [type(message) for message in said] == [Applied, Weighed, NoView]


def test_a_view_with_a_nan_in_any_piece_is_none(make_rig):
    for at in (0, PIECE_ELEMS, NUMEL - 1):
        rig = make_rig(str(at))
        rig.step(2)
        intent = rig.intent()
        rig.x[at] = torch.nan
        rig.loop.handoff.lend(TakeView(1, intent.number, peer=PEER))
        (answer,) = rig.loop.handoff.go_on()
        assert answer == NoView(1, "local: the parameters are not finite")
        assert rig.loop.handoff.is_lending is False


def test_large_numbers_are_finite_though_their_sum_is_not(make_rig):
    rig = make_rig()
    rig.step(2)
    intent = rig.intent()
    rig.x.fill_(3e38)
    rig.loop.handoff.lend(TakeView(1, intent.number, peer=PEER))
    (answer,) = rig.loop.handoff.go_on()
    assert isinstance(answer, SlotReady)


def test_pauses_are_reported_each_once_and_no_longer_than_a_piece_beyond_the_limit(make_rig):
    rig = make_rig()
    lend(rig)
    rig.loop.reporter.report_soon()
    rig.loop.keep_books()
    rig.step(3)
    rig.loop.reporter.report_soon()
    rig.loop.keep_books()
    first, *_, last = rig.received(Progress)
    assert len(first.pauses_s) == PIECES
    shortest_s, longest_s = min(first.pauses_s), max(first.pauses_s)
    assert limits.STEP_PAUSE_S < shortest_s <= longest_s < 3 * limits.STEP_PAUSE_S
    assert len(last.pauses_s) == 1, "the view's last step; there was nothing else to do"
