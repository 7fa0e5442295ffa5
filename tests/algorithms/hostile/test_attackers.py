"""Swarms with an attacker in them, in the laboratory: what the guard of pairs is for.

Twelve nodes, two of which send other vectors than they have, digits of uneven labels. Each attack
ruins an unguarded swarm, or the test of the guard would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from swarmnode.ipc.control import Configure
from swarmnode.strategies.base import Intent
from swarmnode.strategies.merging.slot import ACCEPTED
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.base import probe_hash
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.tasks import Sgd
from swarmnode.worker.model.state import build_task
from tests.kits.hostile.lies import shuffled_text

N, ATTACKERS, EVERY, STEPS = 12, 2, 5, 400
OLD_STEPS = 200  # of what a replay sends


@dataclass
class Attacked:
    """Honest nodes at the end, of a run under one attack."""

    mean: float
    worst: float
    refused: int
    given: int
    bans: int
    contacts: int


Forge = Callable[["Swarm", torch.Tensor], torch.Tensor]


class Swarm:
    """The laboratory with attackers among the nodes."""

    def __init__(self, forge: Forge | None, *, guarded: bool, seed: int = 3) -> None:
        torch.manual_seed(seed)
        self.task = Digits(N, seed, dirichlet=0.5, widths=(64, 32, 10))
        self.first = self.task.x[0].clone()
        self.forge = forge
        self.made = 0
        optimizer = Sgd(self.task.x, 0.05, momentum=0.9)
        self.arena = Arena(self.task, self._build, optimizer=optimizer, seed=seed, guarded=guarded)

    @property
    def honest(self) -> torch.Tensor:
        """The models of the honest nodes: [n, numel]."""
        return self.task.x[self.n_attackers :]

    @property
    def n_attackers(self) -> int:
        return ATTACKERS if self.forge else 0

    def _build(self, x: torch.Tensor) -> PairAverage:
        number, self.made = self.made, self.made + 1
        settings = {"every": EVERY}
        if number < self.n_attackers:
            return Attacker(settings, x, self)
        return PairAverage(settings, x)

    def run(self) -> Attacked:
        self.arena.run(STEPS)
        found = [self.task.accuracy(x) for x in self.honest]
        guards = [node.strategy.guard for node in self.arena.nodes[self.n_attackers :]]
        totals = [guard.totals for guard in guards if guard is not None]
        return Attacked(
            mean=sum(found) / len(found),
            worst=min(found),
            refused=sum(each.refused.total() for each in totals),
            given=sum(each.given for each in totals),
            bans=sum(each.bans for each in totals),
            contacts=sum(each.contacts for each in totals),
        )


class Attacker(PairAverage):
    """Takes part as all do, and sends what its swarm's ``forge`` makes of what it has."""

    def __init__(self, settings, x: torch.Tensor, swarm: Swarm) -> None:
        super().__init__(settings, x)
        self.swarm = swarm

    def weigh(self, exchange):
        return ACCEPTED

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        super().view(intent, name, out)
        assert self.swarm.forge is not None
        out.copy_(self.swarm.forge(self.swarm, out))


def sign_flip(swarm: Swarm, own: torch.Tensor) -> torch.Tensor:
    del own
    return -swarm.honest.mean(0)


def stale(swarm: Swarm, own: torch.Tensor) -> torch.Tensor:
    """The first model of all, again and again, as if it were of now."""
    del own
    return swarm.first


ATTACKS: dict[str, Forge] = {"sign flip": sign_flip, "stale": stale}


@cache
def clean() -> Attacked:
    return Swarm(None, guarded=False).run()


def test_a_guard_costs_an_honest_swarm_little() -> None:
    guarded = Swarm(None, guarded=True).run()
    assert guarded.mean >= clean().mean - 0.01
    assert guarded.contacts > 400
    assert guarded.refused <= 0.25 * guarded.contacts
    assert guarded.bans == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_attackers_among_honest_nodes_change_little(name) -> None:
    undefended = Swarm(ATTACKS[name], guarded=False).run()
    assert undefended.mean < clean().mean - 0.1, "this attack does no harm: it shows nothing"
    guarded = Swarm(ATTACKS[name], guarded=True).run()
    assert guarded.mean >= clean().mean - 0.03
    assert guarded.worst >= 0.8
    assert guarded.refused + guarded.given > 20


# --- of the hostile node of tests/kits --------------------------------------------------------


def test_shuffled_text_teaches_nothing_and_is_weighed_by_the_same_probe(tmp_path: Path) -> None:
    told = Configure(
        task="bytes-lm",
        task_config={},
        strategy="streaming",
        strategy_settings={},
        swarm_seed=0,
        shard_seed=0,
        snapshot_dir=str(tmp_path),
    )
    learnt = build_task("bytes-lm", {}, shuffled_text(told).data_dir)
    honest = build_task("bytes-lm", {}, "")
    assert probe_hash(learnt) == probe_hash(honest)
    assert learnt.data_hash() != honest.data_hash()
    batch = next(learnt.batches(1))
    bigrams = torch.stack([batch[:, :-1], batch[:, 1:]]).flatten(1).unique(dim=1)
    usual = next(honest.batches(1))
    usual_bigrams = torch.stack([usual[:, :-1], usual[:, 1:]]).flatten(1).unique(dim=1)
    assert bigrams.shape[1] > 1.2 * usual_bigrams.shape[1]
