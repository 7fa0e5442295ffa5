"""An audit of shards would tell free riders, though not at a cost that a node can bear.

So there is none: docs/threat-model.md has the figures, which these print.
"""

import pytest

from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.digits import Digits
from tests.algorithms.hostile.shard_audit import area, audits

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3)
TINY = {"dim": 32, "layers": 1, "heads": 2, "context": 32, "batch": 8}


class ManyShards(Digits):
    """Its 1,400 examples are one shard else."""

    batches_per_shard = 8


@pytest.mark.parametrize(
    ("task", "how", "rounds", "every"),
    [
        (ManyShards({"batch": 16}), "sparse", 80, 18),
        (ManyShards({"batch": 16}), "pairs", 240, 16),
        (BytesLM(TINY), "sparse", 60, 18),
    ],
    ids=["digits-sparse", "digits-pairs", "bytes-lm-sparse"],
)
def test_it_takes_many_audits_to_tell_a_free_rider(task, how, rounds, every):
    found = [each for seed in SEEDS for each in audits(task, how, seed, rounds=rounds, every=every)]
    areas = {
        known: {of: round(area(found, known, of), 3) for of in (1, 5, 10, 20)}
        for known in ("claimed", "trained")
    }
    print(task.name, how, areas)
    assert areas["trained"][20] > 0.8, "there is something to find"
    assert areas["claimed"][1] < 0.65, "it would be of use: see the threat model"
    assert areas["claimed"][5] < 0.8
