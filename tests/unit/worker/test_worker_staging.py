"""Copies between a GPU and the slots, beside the training: what waits for them, and what does not.

The GPU is played by memory of its own, whose copies are done when the test says so; where there is
a real one, it does the same.
"""

import pytest
import torch

from swarmnode.ipc.control import Applied, NoView, Pause, SlotReady, TakeView
from swarmnode.strategies.base import Exchange
from swarmnode.worker.exchange.handoff import Handoff
from swarmnode.worker.model.device import GpuStaging
from tests.kits.worker_kit import DIM, PEER, Rig


class Copy:
    """One that begins when it is made, and is whole when it is done."""

    def __init__(self, gpu, source, target):
        self._gpu, self._source, self._target = gpu, source.clone(), target
        self.waited = 0
        if target is not None:
            target.fill_(torch.nan)  # nothing may read it yet

    def is_done(self):
        if self._gpu.is_fast and self._target is not None:
            self._target.copy_(self._source)
        return self._gpu.is_fast

    def wait(self):
        self.waited += 1
        self._gpu.waits += 1
        if self._target is not None:
            self._target.copy_(self._source)

    def sum(self):
        return float(self._source.sum())


class Gpu:
    """A staging whose copies are done once it ``is_fast``."""

    def __init__(self):
        self.is_fast = self.is_full = False
        self.waits = 0
        self.locked = []

    def lock(self, memory):
        self.locked.append(memory.data_ptr())

    def room(self, numel):
        return None if self.is_full else torch.empty(numel)

    def down(self, view, out):
        return Copy(self, view, out)

    def up(self, exchange: Exchange):
        if self.is_full:
            return None
        return exchange.mapped(torch.Tensor.clone), Copy(self, torch.zeros(()), None)


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def rig(tmp_path, gpu):
    rig = Rig(tmp_path)
    loop = rig.loop
    loop.handoff = Handoff(rig.segment, rig.strategy, loop.intents, loop.now, lambda _vector: gpu)
    yield rig
    rig.close()


def ask(rig):
    rig.step(2)
    intent = rig.intent()
    rig.tell(TakeView(ticket=1, number=intent.number, peer=PEER, round=intent.round))


def lend(rig, gpu):
    gpu.is_fast = True
    ask(rig)
    rig.step()
    (ready,) = rig.received(SlotReady)
    return ready


def test_steps_go_on_while_a_view_is_copied_and_it_stays_as_it_was_taken(rig, gpu):
    ask(rig)
    seen = rig.x.clone()
    rig.step(5)
    assert rig.received(SlotReady) == []
    assert not torch.equal(rig.x, seen)
    gpu.is_fast = True
    rig.step()
    (ready,) = rig.received(SlotReady)
    own, _ = rig.halves(ready)
    assert torch.equal(own[:DIM], seen)
    assert gpu.waits <= 1, "no step has waited: what is done is waited for no time"
    assert ready.step == 2


def test_the_memory_that_is_copied_from_and_to_is_locked(rig, gpu):
    """Before training begins: of two slots, which are what is mostly in use."""
    assert len(set(gpu.locked)) == 4
    lend(rig, gpu)
    assert len(set(gpu.locked)) == 4


def test_a_merge_begins_when_all_that_came_is_there(rig, gpu):
    ready = lend(rig, gpu)
    gpu.is_fast = False
    own, room = rig.halves(ready)
    room[:DIM] = own[:DIM] + 2
    before = rig.x.clone()
    rig.apply(ready)
    rig.step(3)
    assert rig.received(Applied) == []
    assert (rig.x - before).abs().max() < 0.5
    gpu.is_fast = True
    rig.step()
    assert len(rig.received(Applied)) == 1
    assert (rig.x - before).min() > 0.5


def test_where_no_step_waits_the_copy_is_waited_for(rig, gpu):
    ask(rig)
    rig.tell(Pause())
    assert len(rig.received(SlotReady)) == 1
    assert gpu.waits == 1


def test_without_memory_on_the_gpu_the_slots_are_written_and_read_as_they_are(rig, gpu):
    gpu.is_full = True
    ready = lend(rig, gpu)
    own, room = rig.halves(ready)
    before = rig.x.clone()
    room[:DIM] = own[:DIM] + 2
    rig.apply(ready)
    rig.step()
    assert len(rig.received(Applied)) == 1
    assert (rig.x - before).min() > 0.5
    assert gpu.waits == 0


def test_a_view_that_is_not_finite_is_none(rig, gpu):
    gpu.is_fast = True
    rig.step(2)
    intent = rig.intent()
    rig.x[1] = torch.nan
    rig.loop.handoff.lend(TakeView(1, intent.number, peer=PEER))
    (answer,) = rig.loop.handoff.go_on()
    assert answer == NoView(1, "local: the parameters are not finite")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnGpu:
    """What only a real one can show."""

    def test_views_go_down_and_what_came_goes_up_unchanged(self):
        vector = torch.randn(3_000_001, device="cuda")
        staging = GpuStaging(vector)
        out = torch.zeros(len(vector))
        staging.lock(out)
        staging.lock(out)
        assert out.is_pinned()
        room = staging.room(len(vector))
        torch.mul(vector, 2, out=room)
        copied = staging.down(room, out)
        del room
        for _ in range(10):
            torch.randn(3_000_001, device="cuda")  # would lie where the view did
        copied.wait()
        assert copied.is_done()
        assert torch.equal(out, (vector * 2).cpu())
        assert copied.sum() == pytest.approx(float((vector * 2).sum()))

    def test_a_sum_that_is_not_finite_is_told(self):
        vector = torch.ones(10, device="cuda")
        vector[3] = torch.inf
        out = torch.zeros(10)
        copied = GpuStaging(vector).down(vector, out)
        copied.wait()
        assert copied.sum() == torch.inf

    def test_a_view_that_does_not_fit_has_no_room(self):
        assert GpuStaging(torch.ones(1, device="cuda")).room(2**45) is None
