"""One member of a group mean, fed word by word: what others say, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.group_events import Effect, Send, plan_id
from swarmnode.wire.exchange import group as wire

IDS = tuple(PeerId(bytes([n]) * 32) for n in range(1, 9))
GID, OTHER_GID = bytes(16), b"2" * 16
RESULT, OTHER_RESULT = b"r" * 32, b"o" * 32
ENLIST_S, TRANSFER_S = 5.0, 70.0
WEIGHT = 2.0
_DEADLINES_MAX = 1000  # more than any run has


def raw(peers: Iterable[PeerId]) -> tuple[bytes, ...]:
    return tuple(map(bytes, peers))


class OneMember:
    """Number ``own`` of IDS among the first ``n``, in a run that begins at ``now``.

    ``begin``: what else Begin says. Every method returns what the core wants done then.
    """

    def __init__(self, n: int = 3, own: int = 0, *, now: float = 0.0, **begin: Any) -> None:
        self.members, self.self_id = IDS[:n], IDS[own]
        self.others = tuple(peer for peer in self.members if peer != self.self_id)
        self.core = GroupCore(self.self_id)
        self.pieces_max = begin.pop("pieces_max", 8)
        self.begun = self.begin(now=now, **begin)

    def begin(self, gid: bytes = GID, *, now: float = 0.0, **begin: Any) -> list[Effect]:
        said: dict[str, Any] = {"members": self.members, "weight": WEIGHT, "enlist_s": ENLIST_S}
        said |= {"pieces_max": self.pieces_max, "transfer_s": TRANSFER_S}
        return self.feed(events.Begin(gid, **(said | begin)), now)

    def feed(self, event: events.Event, now: float) -> list[Effect]:
        self.core.handle(event, now)
        return self.core.poll_effects()

    def hear(self, peer: PeerId, message: wire.Message, now: float) -> list[Effect]:
        return self.feed(events.Received(peer, message), now)

    def wait(self, now: float) -> list[Effect]:
        self.core.handle_deadline(now)
        return self.core.poll_effects()

    def wait_until(self, is_there: Callable[[Effect], bool]) -> tuple[float, list[Effect]]:
        """Let deadlines pass until there is such an effect; return when, and all of that time."""
        for _ in range(_DEADLINES_MAX):
            now = self.core.next_deadline()
            assert now is not None, "it waits for nothing"
            effects = self.wait(now)
            if any(map(is_there, effects)):
                return now, effects
        raise AssertionError("it goes on for ever")

    def wait_before(self, end: float) -> list[Effect]:
        """Let all deadlines pass that are before that; return what is done."""
        effects: list[Effect] = []
        for _ in range(_DEADLINES_MAX):
            now = self.core.next_deadline()
            if now is None or now >= end:
                return effects
            effects += self.wait(now)
        raise AssertionError("it goes on for ever")

    # --- the phases --------------------------------------------------------------------------

    def enlist(self, *peers: PeerId, now: float) -> list[Effect]:
        """These have come, by default all."""
        effects: list[Effect] = []
        for peer in peers or self.others:
            effects += self.hear(peer, wire.Enlist(GID, False), now)
        return effects

    def flush(
        self,
        *peers: PeerId,
        now: float,
        view: Iterable[PeerId] | None = None,
        prepared: Iterable[PeerId] = (),
        wants_answer: bool = False,
    ) -> list[Effect]:
        """These, by default all others, say which view they have: by default that of all."""
        effects: list[Effect] = []
        for peer in peers or self.others:
            said = raw(self.members if view is None else view)
            message = wire.Flush(GID, said, raw(prepared), wants_answer)
            effects += self.hear(peer, message, now)
        return effects

    def agree(self, now: float) -> list[Effect]:
        """All come, and say the same."""
        return self.enlist(now=now) + self.flush(now=now)

    @property
    def plan(self) -> bytes:
        """The name of the mean over all members."""
        return plan_id(GID, self.members)

    def load(self, now: float, **weight: float) -> list[Effect]:
        return self.feed(events.Loaded(GID, **weight), now)

    def share(
        self, peer: PeerId, piece: int, now: float, weight: float = WEIGHT, plan: bytes = b""
    ) -> list[Effect]:
        return self.hear(peer, wire.Share(GID, piece, weight, plan or self.plan), now)

    def sum(self, peer: PeerId, piece: int, now: float, plan: bytes = b"") -> list[Effect]:
        return self.hear(peer, wire.Sum(GID, plan or self.plan, piece), now)

    def reduced(self, piece: int, now: float, plan: bytes = b"") -> list[Effect]:
        return self.feed(events.Reduced(GID, plan or self.plan, piece), now)

    def assembled(self, now: float, plan: bytes = b"", result: bytes = RESULT) -> list[Effect]:
        return self.feed(events.Assembled(GID, plan or self.plan, result), now)

    def prepared(
        self, peer: PeerId, now: float, plan: bytes = b"", result: bytes = RESULT
    ) -> list[Effect]:
        return self.hear(peer, wire.Prepared(GID, plan or self.plan, result), now)

    def want(
        self,
        peer: PeerId,
        shares: Iterable[int],
        sums: Iterable[int],
        now: float,
        plan: bytes = b"",
    ) -> list[Effect]:
        message = wire.Want(GID, plan or self.plan, tuple(shares), tuple(sums))
        return self.hear(peer, message, now)

    def prepare(self, now: float) -> list[Effect]:
        """Come to the whole mean over all members, from the first word on."""
        own = self.members.index(self.self_id)
        effects = self.agree(now) + self.load(now)
        for peer in self.others:
            effects += self.share(peer, own, now)
        effects += self.reduced(own, now)
        for piece, peer in enumerate(self.members):
            if piece != own:
                effects += self.sum(peer, piece, now)
        return effects + self.assembled(now)

    # --- what is said ------------------------------------------------------------------------

    def tell(self, message: wire.Message, *peers: PeerId) -> list[Effect]:
        """A message to these, by default to all others."""
        return [Send(peer, message) for peer in peers or self.others]


def said(effects: Iterable[Effect], kind: type[wire.Message]) -> list[Send]:
    """Return the messages of a kind among what is to be done."""
    return [each for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]


def charged(effects: Iterable[Effect]) -> dict[PeerId, float]:
    """Return who is to pay for a wait, and for how long."""
    return {each.peer: each.held_s for each in effects if isinstance(each, events.HeldRound)}


def outcomes(effects: Iterable[Effect]) -> list[events.Commit | events.Abort]:
    return [each for each in effects if isinstance(each, events.Commit | events.Abort)]
