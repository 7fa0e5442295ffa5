"""Does what a member sends help more on its own shard than on other data, and whose does not?

Gauntlet (J. Lidin et al., "Incentivizing permissionless distributed learning of LLMs", 2025) tells
by that who has trained what was assigned to it. Here eight members train agreed shards in the
laboratory, and member 0 looks at each of the others whenever it sees what that one sends. Four are
free riders: ``elsewhere`` trains as much, on other data; ``copy`` sends what another one sends,
``stale`` what it sent a round ago, and ``noise`` no more than that.

An audit of m batches of the member's and m of any data is 4 m evaluations. Which batches of a
shard are in a message no peer can know: its author has claimed the shard, and not told its place.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from swarmnode.strategies.base import Exchange, Intent, Strategy
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.sparse import Sparse
from swarmnode.tasks.base import Task
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.tasks import Adam
from swarmnode.testing.lab.text import TextTask
from swarmnode.testing.lab.world import Payload

Kind = Literal["honest", "elsewhere", "copy", "stale", "noise"]
Known = Literal["claimed", "trained"]  # which batches the audit draws from

N, BATCHES = 8, 4
RIDERS: dict[str, dict[int, Kind]] = {
    "sparse": {4: "elsewhere", 5: "copy", 6: "stale", 7: "noise"},
    "pairs": {4: "elsewhere", 5: "elsewhere", 6: "elsewhere", 7: "stale"},
}
_LR = 3e-3


@dataclass(frozen=True)
class Audit:
    """By how much more an update lowers the loss on the member's batches than on others."""

    seed: int
    member: int
    kind: Kind
    known: Known
    gain: float


class ShardedTask(TextTask):
    """Each node trains one shard after the other, of which none is another's in the epoch."""

    def __init__(self, task: Task, seed: int, riders: Mapping[int, Kind]) -> None:
        super().__init__(task, N, seed=seed, model_seed=seed)
        self._seed = seed
        self._riders = riders
        self._dealt = self._deal()
        self._elsewhere = [task.batches(1000 * seed + node) for node in range(N)]
        self.claimed: list[list[Any]] = [[] for _ in range(N)]
        self.trained: list[list[Any]] = [[] for _ in range(N)]
        self._batches = [self._feed(node) for node in range(N)]

    def shard(self, epoch: int, index: int) -> list[Any]:
        """Return the batches of a shard."""
        epoch_seed = 1000 * self._seed + epoch
        return [*self.text.shard_batches(epoch_seed, index, self.text.shards_per_epoch)]

    def losses(self, x: torch.Tensor, batches: list[Any]) -> torch.Tensor:
        """Return the loss of a model on each of some batches."""
        self._arena.flat.copy_(x)
        with torch.no_grad():
            return torch.tensor([float(self.text.loss(self._model, batch)) for batch in batches])

    def _deal(self) -> Iterator[tuple[int, int]]:
        rng = random.Random(f"{self._seed}/shards")
        for epoch in itertools.count():
            n_shards = self.text.shards_per_epoch
            yield from ((epoch, index) for index in rng.sample(range(n_shards), n_shards))

    def _feed(self, node: int) -> Iterator[Any]:
        while True:
            self.claimed[node] = self.shard(*next(self._dealt))
            for batch in self.claimed[node]:
                self.trained[node].append(batch)
                is_elsewhere = self._riders.get(node) == "elsewhere"
                yield next(self._elsewhere[node]) if is_elsewhere else batch


class Riders:
    """See ``World.impostors``."""

    def __init__(self, kinds: Mapping[int, Kind]) -> None:
        self._kinds = {node: kind for node, kind in kinds.items() if kind != "elsewhere"}
        self.numbers = frozenset(self._kinds)
        self._before: dict[int, Payload] = {}
        self._generator = torch.Generator().manual_seed(5)

    def forge(self, sent: Mapping[int, tuple[Intent, Payload]]) -> dict[int, Payload]:
        """Return what those send who have learnt nothing."""
        found = {}
        for node, (_, own) in sent.items():
            match self._kinds.get(node):
                case "copy":
                    found[node] = copied(sent[min(sent)][1])
                case "stale":
                    found[node] = self._before.get(node, own)
                case "noise":
                    found[node] = {name: self._noise(values) for name, values in own.items()}
        self._before.update({node: copied(own) for node, (_, own) in sent.items()})
        return found

    def _noise(self, values: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(values.shape, generator=self._generator)
        return drawn * (values.norm() / drawn.norm())


def copied(payload: Payload) -> Payload:
    return {name: values.clone() for name, values in payload.items()}


class Auditor:
    """What member 0 finds out of the others."""

    def __init__(self, task: ShardedTask, seed: int, every: int, riders: Mapping[int, Kind]):
        self._task, self._seed, self._every, self._riders = task, seed, every, riders
        self._rng = random.Random(seed)
        self.found: list[Audit] = []

    def audit(self, member: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """Weigh an update of a member, which leads from one model to another."""
        anywhere = self._gain(before, after, [self._any_batch() for _ in range(BATCHES)])
        pools: dict[Known, list[Any]] = {
            "claimed": self._task.claimed[member],
            "trained": self._task.trained[member][-self._every :],
        }
        for known, pool in pools.items():
            own = self._gain(before, after, self._rng.sample(pool, min(BATCHES, len(pool))))
            kind = self._riders.get(member, "honest")
            self.found.append(Audit(self._seed, member, kind, known, own - anywhere))

    def _gain(self, before: torch.Tensor, after: torch.Tensor, batches: list[Any]) -> float:
        was = self._task.losses(before, batches)
        return float(((was - self._task.losses(after, batches)) / was).mean())

    def _any_batch(self) -> Any:
        n_shards = self._task.text.shards_per_epoch
        epoch = 500 + self._rng.randrange(100)  # dealt anew: of no member's shard
        return self._rng.choice(self._task.shard(epoch, self._rng.randrange(n_shards)))


def audits(task: Task, how: str, seed: int, *, rounds: int, every: int) -> list[Audit]:
    """Return what is found out in a run."""
    riders = RIDERS[how]
    sharded = ShardedTask(task, seed, riders)
    auditor = Auditor(sharded, seed, every, riders)
    make = {"sparse": audited_sparse, "pairs": audited_pairs}[how]
    arena = Arena(sharded, make(auditor, every), optimizer=Adam(sharded.x, _LR), seed=seed)
    arena.impostors = Riders(riders)
    arena.run(rounds * every + 2)
    return auditor.found


def number_of(peer: bytes) -> int:
    return int.from_bytes(peer, "big")


def audited_sparse(auditor: Auditor, every: int) -> Callable[[torch.Tensor], Strategy]:
    class Audited(Sparse):
        def apply(self, exchange: Exchange) -> None:
            is_ours = number_of(self.ctx.self_id) == 0
            for message in exchange.messages if is_ours else ():
                if (member := number_of(message.author)) != 0:
                    after = self.phi - self.config.lr * message.read()
                    auditor.audit(member, self.phi, after)
            super().apply(exchange)

    return lambda x: Audited({"every": every, "merge": "clipped-mean"}, x)


def audited_pairs(auditor: Auditor, every: int) -> Callable[[torch.Tensor], Strategy]:
    class Audited(PairAverage):
        def apply(self, exchange: Exchange) -> None:
            (peer,) = exchange.got
            auditor.audit(number_of(peer), exchange.sent["x"], exchange.partner.views["x"])
            super().apply(exchange)

    return lambda x: Audited({"every": every}, x)


def area(found: list[Audit], known: Known, of: int) -> float:
    """Return how often ``of`` audits of an honest member say more for it than as many of a rider.

    1/2: they tell nothing; it is the area under the ROC curve of their mean.
    """
    runs: dict[tuple[int, int, Kind], list[float]] = defaultdict(list)
    for each in found:
        if each.known == known:
            runs[each.seed, each.member, each.kind].append(each.gain)
    means: dict[bool, list[float]] = {True: [], False: []}
    for (_, _, kind), gains in runs.items():
        for begin in range(0, len(gains) - of + 1, of):
            means[kind == "honest"].append(sum(gains[begin : begin + of]) / of)
    honest, riders = torch.tensor(means[True]), torch.tensor(means[False])
    more = honest[:, None] - riders[None, :]
    return float((more > 0).double().mean() + (more == 0).double().mean() / 2)
