"""Which faults come, in which order and for how long: all of it follows from the seed.

Each node has a series of its own, one fault after the other, and so has the network. How long a
node is left in peace before the next fault counts from when it was back, so that a slow machine
meets the same faults as a fast one, only fewer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "kill-daemon",
    "kill-worker",
    "kill-both",
    "restart",
    "upgrade",
    "stop-daemon",
    "stop-worker",
    "stop-both",
    "full-disk",
    "read-only-home",
    "clock-jump",
    "partition",
    "broken-link",
    "lossy-line",
]

# Of a node; how often each comes, beside the others.
WEIGHTS: Mapping[Kind, float] = {
    "kill-daemon": 2.0,
    "kill-worker": 2.0,
    "kill-both": 2.0,
    "restart": 1.0,
    "upgrade": 2.0,
    "stop-daemon": 1.0,
    "stop-worker": 1.0,
    "stop-both": 1.0,
    "full-disk": 2.0,
    "read-only-home": 1.0,
    "clock-jump": 1.0,
}
NETWORK: Mapping[Kind, float] = {"partition": 1.0, "broken-link": 1.0, "lossy-line": 1.0}
# After these the daemon is another process, so that its memory tells nothing of a long life.
ENDING: frozenset[Kind] = frozenset({"kill-daemon", "kill-both", "restart", "upgrade"})
# After these a node, or its worker, comes back as a newcomer does.
REJOINING: frozenset[Kind] = ENDING | {"kill-worker"}
# Each may cost a node its worker; on too many in ten minutes a daemon gives up, as it is to.
WEARING: frozenset[Kind] = frozenset({"kill-worker", "stop-worker"})

# This node is never ended, so that one life of a daemon is as long as the run.
LASTING = 0
# This node's home lies on a small disk.
SMALL = 1

# Seconds, from and to; of which a run takes a quarter at most.
_LASTS_S: Mapping[Kind, tuple[float, float]] = {
    "kill-daemon": (0.2, 8.0),
    "kill-both": (0.2, 8.0),
    "restart": (0.2, 4.0),
    "upgrade": (10.0, 40.0),
    "stop-daemon": (1.0, 120.0),
    "stop-worker": (1.0, 120.0),
    "stop-both": (1.0, 120.0),
    "full-disk": (5.0, 30.0),
    "read-only-home": (5.0, 30.0),
    "clock-jump": (5.0, 60.0),
    "partition": (3.0, 60.0),
    "broken-link": (3.0, 60.0),
    "lossy-line": (5.0, 60.0),
}
_LASTS_SHARE_MAX = 0.25
_PEACE_MEAN_S = 20.0  # of a node, between two faults
_JUMPS_S = (0.5, 60.0, 3600.0, 86_400.0 * 400)
_LOSS = (0.02, 0.3)  # of all packets of a node, in each direction


@dataclass(frozen=True)
class Fault:
    """One of them.

    ``after_s``: from when the node was back from the one before. ``force``: seconds that a clock
    jumps, or the share of packets that is lost. ``nodes``: those that it hits; of a partition, one
    of its two sides. ``saves``: the node is asked for a snapshot before, which then is promised.
    """

    kind: Kind
    nodes: tuple[int, ...]
    after_s: float
    lasts_s: float
    force: float
    saves: bool


def kinds_of(node: int, kinds: Collection[Kind]) -> set[Kind]:
    """Return which of ``kinds`` can hit a node."""
    found = {*kinds} - NETWORK.keys()
    if node == LASTING:
        found -= ENDING
    if node != SMALL:
        found -= {"full-disk"}
    return found


def node_faults(seed: str, node: int, seconds: float, kinds: Collection[Kind]) -> Iterator[Fault]:
    """Yield the faults of one node, for ever, or none where no kind can be had."""
    rng = random.Random(f"chaos/{seed}/{node}")
    yield from _faults(rng, {k: w for k, w in WEIGHTS.items() if k in kinds}, (node,), seconds)


def network_faults(
    seed: str, n_nodes: int, seconds: float, kinds: Collection[Kind]
) -> Iterator[Fault]:
    """Yield the faults of the network, for ever, or none where no kind can be had."""
    rng = random.Random(f"chaos/{seed}/network")
    weights = {k: w for k, w in NETWORK.items() if k in kinds}
    yield from _faults(rng, weights, tuple(range(n_nodes)), seconds)


def _faults(
    rng: random.Random, weights: Mapping[Kind, float], nodes: tuple[int, ...], seconds: float
) -> Iterator[Fault]:
    if not weights:
        return
    while True:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        low, high = _LASTS_S.get(kind, (0.0, 0.0))
        most = max(low, min(high, _LASTS_SHARE_MAX * seconds))
        # Short ones are as many as long ones: most bugs are of a moment, some of an expiry.
        lasts_s = low * (most / low) ** rng.random() if low else 0.0
        yield Fault(
            kind,
            _hit(rng, kind, nodes),
            rng.expovariate(1 / _PEACE_MEAN_S),
            lasts_s,
            _force(rng, kind),
            rng.random() < 0.5,
        )


def _hit(rng: random.Random, kind: Kind, nodes: tuple[int, ...]) -> tuple[int, ...]:
    match kind:
        case "partition":
            return tuple(sorted(rng.sample(nodes, rng.randint(1, max(1, len(nodes) // 2)))))
        case "broken-link":
            return tuple(sorted(rng.sample(nodes, min(2, len(nodes)))))
        case "lossy-line":
            return (rng.choice(nodes),)
    return nodes


def _force(rng: random.Random, kind: Kind) -> float:
    match kind:
        case "clock-jump":
            return rng.choice(_JUMPS_S) * rng.choice((-1, 1))
        case "lossy-line":
            return rng.uniform(*_LOSS)
    return 0.0
