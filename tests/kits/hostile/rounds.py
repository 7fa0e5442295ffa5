"""A member that holds up groups and gatherings, at each point of the protocol where it can.

It takes part in every round up to that point, answers probes all the while, and never says that it
leaves: only their own clock tells the others that nothing more comes. And one that speaks for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import msgspec
import trio

from swarmnode.daemon.collective.messages import GatherRounds
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.wire.exchange import group as wire

# What the others wait for, each with what it takes the place of: nothing after it comes, either.
RoundStall = Literal["enlist", "flush", "share", "sum", "prepared"]
ROUND_STALLS: tuple[RoundStall, ...] = get_args(RoundStall)
HONEST_RUNS = 3


def is_withheld(effect: events.Effect, stall: RoundStall) -> bool:
    """Whether a staller does not do what its core wants."""
    match effect:
        case events.Send(message=wire.Leave() | wire.Finished()):
            return True  # it would free those who wait
        case events.Send(message=wire.Enlist()):
            first: RoundStall = "enlist"
        case events.Send(message=wire.Flush()):
            first = "flush"
        case events.SendShare() | events.Send(message=wire.Want()):
            first = "share"
        case events.SendSum():
            first = "sum"
        case events.Send(message=wire.Prepared()):
            first = "prepared"
        case _:
            return False
    return ROUND_STALLS.index(stall) <= ROUND_STALLS.index(first)


class ChangedRuns(GroupRuns):
    """In place of :class:`GroupRuns`; a subclass says what it does ``instead_of`` an effect."""

    def instead_of(self, effect: events.Effect) -> Iterator[events.Effect]:
        """Yield what it does."""
        yield effect

    def _carry_out(self, effect: events.Effect) -> None:
        for each in self.instead_of(effect):
            super()._carry_out(each)


class LateRuns(ChangedRuns):
    """... from its fourth mean on, as one that comes to a swarm that runs.

    The very first round of all waits for as long as a slow step may take.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commits = 0

    def instead_of(self, effect: events.Effect) -> Iterator[events.Effect]:
        self._commits += isinstance(effect, events.Commit)
        behaves = self._commits < HONEST_RUNS
        yield from (effect,) if behaves else super().instead_of(effect)


class SilentRuns(ChangedRuns):
    """In place of :class:`GroupRuns`; a subclass has its ``stall``."""

    stall: RoundStall

    def instead_of(self, effect: events.Effect) -> Iterator[events.Effect]:
        if not is_withheld(effect, self.stall):
            yield effect


class StallingRuns(LateRuns, SilentRuns):
    """... from its fourth mean on."""


class ClaimingRuns(GroupRuns):
    """In place of :class:`GroupRuns`: says that it holds the mean, and gives its own share for it.

    With that said in its first word about a view, and none but it to ask, what it gave was once
    what all the others applied.
    """

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.SendSum():
                return  # its own share has gone in its place
            case events.Send(message=wire.Flush(prepared=())):
                claim = msgspec.structs.replace(effect.message, prepared=effect.message.view)
                effect = replace(effect, message=claim)
        super()._carry_out(effect)
        if isinstance(effect, events.UsePlan) and effect.gid in self._runs:
            self._pretend(self._runs[effect.gid], effect.n_pieces)

    def _pretend(self, run: Any, n_pieces: int) -> None:
        for piece in range(n_pieces):
            load = self._share_later(run, wire.Share(run.begin.gid, piece, 1.0, run.plan))
            for peer in run.members:
                self._send(run, peer, wire.Sum(run.begin.gid, run.plan, piece), load)


class CuttingRuns(ChangedRuns):
    """In place of :class:`GroupRuns`: tells each member that others are gone.

    As soon as a run begins, and whenever it says which view it has. A subclass says who is left.
    """

    said_with: tuple[type[wire.Message], ...] = (wire.Enlist, wire.Flush)

    def left(self, told: PeerId, members: Collection[PeerId]) -> Iterable[PeerId]:
        """Return the others that are left by what it tells this one: none."""
        return ()

    def instead_of(self, effect: events.Effect) -> Iterator[events.Effect]:
        if not isinstance(effect, events.Send) or not isinstance(effect.message, self.said_with):
            yield effect
            return
        if not isinstance(effect.message, wire.Flush):
            yield effect
        peer, gid = effect.peer, effect.message.gid
        others = self._runs[gid].members - {peer} if gid in self._runs else ()
        view = tuple(sorted({self._self_id, peer, *self.left(peer, others)}))
        yield events.Send(peer, wire.Flush(gid, view, ()))


class CuttingOneRuns(LateRuns, CuttingRuns):
    """... another one is gone for each that it tells, from its fourth mean on."""

    def left(self, told: PeerId, members: Collection[PeerId]) -> Iterable[PeerId]:
        ordered = sorted({*members, told})
        after = ordered[(ordered.index(told) + 1) % len(ordered)]
        return set(members) - {after}


class OustingRuns(LateRuns, CuttingRuns):
    """... that two are gone, the same for all others, from its fourth mean on; to these: none."""

    def left(self, told: PeerId, members: Collection[PeerId]) -> Iterable[PeerId]:
        ousted = sorted({*members, told})[:2]
        return set(members).difference(() if told in ousted else ousted)


class NamingRuns(LateRuns):
    """In place of :class:`GroupRuns`: waits, as if for another one, and says that this is gone.

    It does nothing from its ``stall`` on, towards any, until it has waited ``wait_share`` of what
    the others would; then it takes part again, without the one that it has named, always the same.
    With ``is_framing`` it holds back its share alone, and from that one alone: so the others wait
    for that one, which waits for it.
    """

    stall: RoundStall = "share"
    wait_share = 0.4
    is_framing = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_named: dict[bytes, bool] = {}  # in which runs it waits; and has said so

    def instead_of(self, effect: events.Effect) -> Iterator[events.Effect]:
        run = self._runs.get(getattr(getattr(effect, "message", effect), "gid", b""))
        if run is None or self._commits < HONEST_RUNS or not self._holds_back(run, effect):
            yield from super().instead_of(effect)
        elif run.begin.gid not in self._is_named:
            self._is_named[run.begin.gid] = False
            self._start(run, self._name)

    def _holds_back(self, run: Any, effect: events.Effect) -> bool:
        if self._is_named.get(run.begin.gid):
            return False
        if self.is_framing:
            return isinstance(effect, events.SendShare) and effect.peer == min(run.members)
        return is_withheld(effect, self.stall)

    async def _name(self, run: Any) -> None:
        begin = run.begin
        waited_s = begin.enlist_s if self.stall == "enlist" else begin.stage_s
        await trio.sleep(self.wait_share * waited_s)
        self._is_named[begin.gid] = True
        self.lose(min(run.members), begin.gid)


class FramingRuns(NamingRuns):
    """... and holds back its share alone, so that the others wait for the one that it names."""

    wait_share = 0.8
    is_framing = True


class SlightingRuns(LateRuns):
    """In place of :class:`GroupRuns`: keeps its share from one member, always the same."""

    def instead_of(self, effect: events.Effect) -> Iterator[events.Effect]:
        is_hostile = self._commits >= HONEST_RUNS and isinstance(effect, events.SendShare)
        if not is_hostile or effect.peer != min(self._runs[effect.gid].members):
            yield from super().instead_of(effect)


class CuttingLateRuns(CuttingRuns):
    """... in the midst of a run, when all have agreed on a view."""

    said_with = (wire.Want,)


class WithholdingRounds(GatherRounds):
    """In place of :class:`GatherRounds`: announces messages and gives none."""

    async def _give(self, session: Session, stream: Stream) -> None:
        await trio.sleep_forever()
