"""A member that holds up groups and gatherings, at each point of the protocol where it can.

It takes part in every round up to that point, answers probes all the while, and never says that it
leaves: only their own clock tells the others that nothing more comes. And one that speaks for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import msgspec
import trio

from swarmnode.daemon.collective.messages import GatherRounds
from swarmnode.daemon.collective.runs import GroupRuns
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


class StallingRuns(GroupRuns):
    """In place of :class:`GroupRuns`; a subclass has its ``stall``.

    It behaves until it has been in HONEST_RUNS means, as one that comes to a swarm that runs: the
    very first round of all waits for as long as a slow step may take.
    """

    stall: RoundStall

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commits = 0

    def _carry_out(self, effect: events.Effect) -> None:
        self._commits += isinstance(effect, events.Commit)
        if self._commits < HONEST_RUNS or not is_withheld(effect, self.stall):
            super()._carry_out(effect)


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


class WithholdingRounds(GatherRounds):
    """In place of :class:`GatherRounds`: announces messages and gives none."""

    async def _give(self, session: Session, stream: Stream) -> None:
        await trio.sleep_forever()
