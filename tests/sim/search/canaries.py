"""Bugs put into the product on purpose, at least one for each promise: the search must see them."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.sim.search.scenario import Fault, Scenario


@dataclass(frozen=True)
class Canary:
    """``place`` is ``module:Class.name``; ``plant`` makes of what is there what it becomes.

    Attributes:
        promises: those of which one must then be broken.
        scenario: in which it shows; None: only faults at the right moment show it.
    """

    place: str
    plant: Callable[[Callable[..., Any]], Callable[..., Any]]
    promises: tuple[str, ...]
    scenario: Scenario | None


def _calm(strategy: str, *faults: Fault, n_nodes: int = 2) -> Scenario:
    return Scenario(1, n_nodes, strategy, 15, 0.5, 0.01, "", faults)


def _drops_results(apply: Callable[..., Any]) -> Callable[..., Any]:
    """What has committed is given back unused, on every other call."""
    calls = iter(range(10**9))

    def apply_or_drop(lessor: Any, lease: Any, *args: Any) -> bool:
        if next(calls) % 2:
            lessor.give_back(lease, "a bug")
            return True
        return bool(apply(lessor, lease, *args))

    return apply_or_drop


def _forgets(_lookup: Callable[..., Any]) -> Callable[..., Any]:
    """How an exchange ended is not known afterwards, if the partner has to ask."""
    return lambda *_: None


def _differs(applying: Callable[..., Any]) -> Callable[..., Any]:
    """What a mean becomes depends on the node."""

    def apply_own(strategy: Any, exchange: Any) -> Iterator[None]:
        yield from applying(strategy, exchange)
        strategy.phi += strategy.ctx.self_id[-1] / 256

    return apply_own


def _raises(_handle_deadline: Callable[..., Any]) -> Callable[..., Any]:
    def handle_deadline(_core: Any, _now: float) -> None:
        raise KeyError("a bug")

    return handle_deadline


def _logs(handle: Callable[..., Any]) -> Callable[..., Any]:
    def handle_and_log(*args: Any) -> None:
        handle(*args)
        logging.getLogger("swarmnode.membership").error("a bug that is survived")

    return handle_and_log


def _hears_no(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A core that takes no notice of some events."""

    def plant(handle: Callable[..., Any]) -> Callable[..., Any]:
        def handle_others(core: Any, event: Any, now: float) -> None:
            if type(event).__name__ not in kinds:
                handle(core, event, now)

        return handle_others

    return plant


def _does_nothing(_stop: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_: None


_GOSSIP = "swarmnode.protocol.gossip"
_APPLY = "swarmnode.daemon.worker.leases:SlotLessor.apply"
_SWIM = "swarmnode.protocol.membership.swim:SwimCore"
CANARIES: dict[str, Canary] = {
    "drops-sums": Canary(_APPLY, _drops_results, ("conserved",), _calm("sums")),
    "drops-results": Canary(_APPLY, _drops_results, ("atomic",), _calm("noloco")),
    "forgets-outcomes": Canary(
        f"{_GOSSIP}.outcomes:OutcomeTable.lookup", _forgets, ("atomic", "conserved"), None
    ),
    "differs": Canary(
        "swarmnode.strategies.diloco:DiLoCo.applying", _differs, ("bits",), _calm("diloco")
    ),
    "raises": Canary(f"{_SWIM}.handle_deadline", _raises, ("ended",), _calm("sums")),
    "logs": Canary(f"{_SWIM}.handle", _logs, ("logged",), _calm("sums")),
    "hears-no-members": Canary(
        f"{_SWIM}.handle", _hears_no("Received"), ("agreed",), _calm("sums")
    ),
    "begins-nothing": Canary(
        f"{_GOSSIP}.exchange:ExchangeCore.handle", _hears_no("Begin"), ("moving",), _calm("sums")
    ),
    "stays": Canary("swarmnode.daemon.app.node:Node.stop", _does_nothing, ("leaving",),
        _calm("sums")),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have a bug in the product meanwhile."""
    canary = CANARIES[name]
    module_name, _, path = canary.place.partition(":")
    owner_name, _, last = path.partition(".")
    owner = getattr(importlib.import_module(module_name), owner_name)
    before = getattr(owner, last)
    own = last in vars(owner)
    setattr(owner, last, canary.plant(before))
    try:
        yield
    finally:
        if own:
            setattr(owner, last, before)
        else:
            delattr(owner, last)
