"""Two candidates for a part of a mean: the worker tries them on the public probe."""

import pytest
import torch

from swarmnode.errors import LocalProtocolError
from swarmnode.ipc.comparing import Compare, Compared
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.merging.best_of import TRIAL_STEPS
from swarmnode.tasks.synthetic import Synthetic
from tests.kits.worker_kit import DIM, Rig


class Probed(Synthetic):
    """Its public probe: rows of what all nodes train on, with the loss of that."""

    name = "probed"

    def public_probe(self):
        return next(self.batches(7))


@pytest.fixture
def lent(tmp_path):
    """Return a rig whose share of a mean is lent, and the SlotReady."""
    settings = {"every": 2 * TRIAL_STEPS}
    rig = Rig(tmp_path, strategy=DiLoCo, settings=settings, task_type=Probed, has_public_probe=True)
    rig.step(2 * TRIAL_STEPS)
    intent = rig.intent()
    assert intent.kind == "group"
    yield rig, rig.ask(intent, peer=None)
    rig.close()


def compare(rig, ready, candidates, begin=0):
    _, room = rig.halves(ready)
    numel = len(candidates[0])
    room[: 2 * numel].copy_(torch.cat(candidates))
    rig.tell(Compare(5, ready.slot, ready.generation, begin, numel))
    (answer,) = rig.received(Compared)
    assert answer.ticket == 5
    assert answer.seconds > 0
    return answer.best


@pytest.mark.parametrize("better", [0, 1])
def test_the_one_that_lowers_the_loss_is_taken(lent, better):
    rig, ready = lent
    own, _ = rig.halves(ready)
    learnt, worse = own[: DIM // 2].clone(), -own[: DIM // 2]
    before = rig.x.clone()
    candidates = [learnt, worse] if better == 0 else [worse, learnt]
    assert compare(rig, ready, candidates) == better
    assert torch.equal(rig.x, before), "trying changes nothing"


def test_a_slot_that_was_given_back_is_not_looked_at(lent):
    rig, ready = lent
    rig.release(ready)
    rig.tell(Compare(6, ready.slot, ready.generation, 0, 1))
    (answer,) = rig.received(Compared)
    assert answer == Compared(6, 1)


def test_there_is_no_room_for_two_that_are_too_long(lent):
    rig, ready = lent
    with pytest.raises(LocalProtocolError, match="two candidates"):
        rig.tell(Compare(7, ready.slot, ready.generation, 0, 1 << 30))
