"""What happens to a swarm, in full: a scenario is drawn, changed, cut and written as one line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

NODES_MAX = 5
FAULTS_MAX = 24
SECONDS = (8, 20)
# By its sums, pairs of numbers are exact: "sums" is the fake worker, all others are strategies.
STRATEGIES = (
    *("sums", "pair-average", "noloco", "a2cid2", "streaming", "diloco", "sparse", "one-byte"),
    "dadao",
)
ATTACKS = (
    *("scaled", "stale", "boasts", "withheld", "snapshots"),
    *("pair-accepted", "pair-offered", "pair-ready", "pair-pending"),
    *("round-enlist", "round-share", "round-prepared"),
)
Kind = Literal[
    "cut", "unplug", "kill", "die", "leave", "crash-worker", "part", "pause", "slow", "delay"
]
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
_LASTS_S = (0.3, 1.0, 3.0, 8.0, 20.0)
_DELAYS_S = (0.0, 0.01, 0.05, 0.2, 1.0)

Node = Annotated[int, Meta(ge=0, lt=NODES_MAX)]
Seconds = Annotated[float, Meta(ge=0.0, le=float(SECONDS[-1]))]


class Fault(msgspec.Struct, frozen=True, array_like=True, order=True):
    """``who`` and ``whom`` are nodes, modulo how many there are; a part is of those up to whom."""

    at_s: Seconds
    kind: Kind
    who: Node
    whom: Node
    lasts_s: Annotated[float, Meta(ge=0.0, le=60.0)]


class Scenario(msgspec.Struct, frozen=True):
    """``n_nodes`` are honest; with an ``attack`` there is one more. Faults are in order of time."""

    seed: Annotated[int, Meta(ge=0)]
    n_nodes: Annotated[int, Meta(ge=2, le=NODES_MAX)]
    strategy: str
    seconds: Annotated[int, Meta(ge=1, le=SECONDS[-1])]
    step_s: Annotated[float, Meta(ge=0.05, le=5.0)]
    delay_s: Annotated[float, Meta(ge=0.0, le=1.0)]
    attack: str = ""
    faults: tuple[Fault, ...] = ()

    @property
    def n_all(self) -> int:
        """With the hostile one."""
        return self.n_nodes + bool(self.attack)


def as_line(scenario: Scenario) -> str:
    return msgspec.json.encode(scenario).decode()


def of_line(line: str) -> Scenario:
    """Raises msgspec.ValidationError: it is none, or of another version of the search."""
    return msgspec.json.decode(line, type=Scenario)


# --- chance -----------------------------------------------------------------------------------


def _fault(rng: random.Random, seconds: float) -> Fault:
    at_s = round(rng.uniform(0, seconds), 2)
    kind = rng.choice(KINDS)
    who, whom = rng.randrange(NODES_MAX), rng.randrange(NODES_MAX)
    return Fault(at_s, kind, who, whom, rng.choice(_LASTS_S))


def _attack(rng: random.Random) -> str:
    return rng.choice(ATTACKS) if rng.random() < 0.3 else ""


def drawn(rng: random.Random) -> Scenario:
    """Return any scenario."""
    seconds = rng.choice(SECONDS)
    return Scenario(
        seed=rng.randrange(1000),
        n_nodes=rng.choice((2, 2, 3, 3, 4)),
        strategy=rng.choice(STRATEGIES),
        seconds=seconds,
        step_s=rng.choice((0.2, 0.5, 1.0)),
        delay_s=rng.choice(_DELAYS_S),
        attack=_attack(rng),
        faults=tuple(sorted(_fault(rng, seconds) for _ in range(rng.randint(0, 10)))),
    )


def _with_faults(scenario: Scenario, faults: list[Fault]) -> Scenario:
    kept = sorted(each for each in faults if each.at_s <= scenario.seconds)
    return msgspec.structs.replace(scenario, faults=tuple(kept[:FAULTS_MAX]))


def _other_fault(fault: Fault, rng: random.Random, seconds: float) -> Fault:
    change = rng.randrange(4)
    if change == 0:
        shift_s = rng.choice((-0.05, 0.05, -0.5, 0.5, -3.0, 3.0))
        at_s = round(min(max(0.0, fault.at_s + shift_s), seconds), 2)
        return msgspec.structs.replace(fault, at_s=at_s)
    if change == 1:
        return msgspec.structs.replace(fault, kind=rng.choice(KINDS))
    if change == 2:
        who, whom = rng.randrange(NODES_MAX), rng.randrange(NODES_MAX)
        return msgspec.structs.replace(fault, who=who, whom=whom)
    return msgspec.structs.replace(fault, lasts_s=rng.choice(_LASTS_S))


def _changed_faults(scenario: Scenario, other: Scenario, rng: random.Random) -> Scenario:
    faults, seconds = list(scenario.faults), float(scenario.seconds)
    change = rng.randrange(6)
    if change == 0 and faults:
        faults.pop(rng.randrange(len(faults)))
    elif change == 1:
        faults += [_fault(rng, seconds) for _ in range(rng.randint(1, 4))]
    elif change == 2 and faults:  # the same again, soon after
        again = rng.choice(faults)
        at_s = round(min(again.at_s + rng.uniform(0.1, 5.0), seconds), 2)
        faults.append(msgspec.structs.replace(again, at_s=at_s))
    elif change == 3:
        at_s = rng.uniform(0, seconds)
        faults = [each for each in faults if each.at_s < at_s]
        faults += [each for each in other.faults if each.at_s >= at_s]
    elif faults:
        at = rng.randrange(len(faults))
        faults[at] = _other_fault(faults[at], rng, seconds)
    return _with_faults(scenario, faults)


def changed(scenario: Scenario, other: Scenario, rng: random.Random) -> Scenario:
    """Return a scenario that is like one, with some of another."""
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.7:
            scenario = _changed_faults(scenario, other, rng)
            continue
        fresh = drawn(rng)
        name = rng.choice(("seed", "n_nodes", "strategy", "step_s", "delay_s", "attack"))
        source = other if rng.random() < 0.3 else fresh
        scenario = msgspec.structs.replace(scenario, **{name: getattr(source, name)})
    return scenario


# --- less -------------------------------------------------------------------------------------


def simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with less in them, those with much less first."""
    replace: Callable[..., Scenario] = msgspec.structs.replace
    faults = scenario.faults
    size = len(faults)
    while size:
        for at in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:at] + faults[at + size :])
        size //= 2
    if scenario.attack:
        yield replace(scenario, attack="")
    if scenario.n_nodes > 2:
        yield replace(scenario, n_nodes=scenario.n_nodes - 1)
    last_s = faults[-1].at_s if faults else 0.0
    if scenario.seconds > last_s + 2:
        yield replace(scenario, seconds=int(last_s) + 2)
    if scenario.delay_s > _DELAYS_S[1]:
        yield replace(scenario, delay_s=_DELAYS_S[1])
