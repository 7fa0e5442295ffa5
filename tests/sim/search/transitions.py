"""Which transitions cores make while a simulation runs: what a search of histories learns from.

A transition is::

    in this state, after this step of the same exchange, round or peer | event > effects | state

all of it as any shell sees it: the state is what the core says in ``statistics()``, each number as
0, 1 or more, and an event or effect is its name, with that of the message that it carries. The step
before is part of it for the cores of exchanges and of membership only. A book of the log has no
events: there, it is what becomes of its two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from swarmnode.protocol.blobs.fetch import FetchCore
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.dht.core import DhtCore
from swarmnode.protocol.gossip.exchange import ExchangeCore
from swarmnode.protocol.gossip.gather import GatherCore
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.log_book import LogBook
from swarmnode.protocol.membership.contacts import ContactBook
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.protocol.nat.reach import ReachCore
from swarmnode.protocol.relay.core import RelayCore
from swarmnode.protocol.shards.core import ShardCore

# What says in which state a core is; counters that only grow do not.
GAUGES: dict[type, tuple[str, ...]] = {
    ExchangeCore: ("is_busy", "intents"),
    GroupCore: ("running",),
    GatherCore: ("held", "known"),
    SwimCore: ("alive", "suspect", "dead", "left"),
    SharedState: (),  # adding up what it holds would be most of a run
    DhtCore: ("operations", "is_bootstrapped"),
    ContactBook: ("connected", "gone"),
    ShardCore: ("claims",),
    FetchCore: ("asked", "holders"),
    RelayCore: ("reservations", "circuits_open"),
    ReachCore: ("voters",),
}
NAMES = {
    ExchangeCore: "pairs", GroupCore: "group", GatherCore: "gather", SwimCore: "swim",
    SharedState: "crdt", DhtCore: "dht", ContactBook: "contacts", ShardCore: "shards",
    FetchCore: "fetch", RelayCore: "relay", ReachCore: "reach", LogBook: "log",
}  # fmt: skip
# What these do depends on the step before it; of the others each step stands for itself.
STEPWISE = (ExchangeCore, GroupCore, GatherCore, SwimCore)
_THREADS = ("xid", "gid", "digest", "peer")

Transition = tuple[str, str]  # of which core, and what
_Handle = Callable[[Any, Any, float], None]


def named(what: Any) -> str:
    """Return the name of an event or effect, with that of its message."""
    message = getattr(what, "message", None)
    inner = "" if message is None else f" {type(message).__name__}"
    return f"{type(what).__name__}{inner}"


def thread_of(event: Any) -> object:
    """Return to which exchange, round or peer an event belongs; None: to the core."""
    for owner in (getattr(event, "message", None), event):
        for name in _THREADS:
            found = getattr(owner, name, None)
            if found is not None:
                return found
    return None


class Recorder:
    """Takes down what cores do."""

    def __init__(self) -> None:
        self.seen: dict[Transition, int] = {}
        self._pending: dict[int, tuple[Any, str, object, str]] = {}
        self._last: dict[tuple[int, object], str] = {}
        self._kept: dict[int, Any] = {}  # so that no other core gets the same id

    def begin(self, core: Any, event: Any) -> None:
        """A core is about to take in an event; None: a deadline."""
        name = "deadline" if event is None else named(event)
        self._kept[id(core)] = core
        self._pending[id(core)] = (core, state_of(core), thread_of(event), name)

    def end(self, core: Any, effects: Sequence[Any]) -> None:
        """The effects of that event have been asked for."""
        begun = self._pending.pop(id(core), None)
        if begun is None:
            return
        _, before, thread, event = begun
        done = "+".join(sorted({named(each) for each in effects}))
        step = f"{event} > {done}"
        last = self._last.get((id(core), thread), "")
        self._last[id(core), thread] = step
        after = f" after {last or 'nothing'}" if isinstance(core, STEPWISE) else ""
        self.note(core, f"{before}{after} | {step} | {state_of(core)}")

    def note(self, core: Any, what: str) -> None:
        transition = NAMES[type(core)], what
        self.seen[transition] = self.seen.get(transition, 0) + 1


def state_of(core: Any) -> str:
    """Return the state of a core in a word."""
    gauges = GAUGES[type(core)]
    if not gauges:
        return ""
    said = core.statistics()
    return "".join("01+"[min(2, int(getattr(said, name)))] for name in gauges)


def _watched(recorder: Recorder, kind: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a core that tell the recorder."""
    handle: _Handle = vars(kind)["handle"]
    handle_deadline: Callable[[Any, float], None] = vars(kind)["handle_deadline"]
    poll_effects: Callable[[Any], list[Any]] = vars(kind)["poll_effects"]

    def watched_handle(core: Any, event: Any, now: float) -> None:
        recorder.begin(core, event)
        handle(core, event, now)

    def watched_deadline(core: Any, now: float) -> None:
        recorder.begin(core, None)
        handle_deadline(core, now)

    def watched_effects(core: Any) -> list[Any]:
        effects = poll_effects(core)
        recorder.end(core, effects)
        return effects

    return {
        "handle": watched_handle,
        "handle_deadline": watched_deadline,
        "poll_effects": watched_effects,
    }


def _watched_book(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    """Return the calls of a book that tell the recorder."""

    def watched(name: str) -> Callable[..., Any]:
        call = vars(LogBook)[name]

        def watched_call(book: LogBook, *args: Any) -> Any:
            before = f"{int(book.is_fresh)}{min(len(book.members), 9)}"
            became = "refused"
            try:
                result = call(book, *args)
                became = f"{int(book.is_fresh)}{min(len(book.members), 9)}"
            finally:
                recorder.note(book, f"{before} | {name} > {became}")
            return result

        return watched_call

    return {name: watched(name) for name in ("read", "close")}


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Take down what all cores of this process do meanwhile."""
    recorder = Recorder()
    methods: dict[type, dict[str, Callable[..., Any]]] = {
        kind: _watched(recorder, kind) for kind in GAUGES
    }
    methods[LogBook] = _watched_book(recorder)
    before = [(kind, name, vars(kind)[name]) for kind, each in methods.items() for name in each]
    for kind, each in methods.items():
        for name, method in each.items():
            setattr(kind, name, method)
    try:
        yield recorder
    finally:
        for kind, name, method in before:
            setattr(kind, name, method)
