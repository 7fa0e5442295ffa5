"""What serves the intents of a worker, by their kind, and what of the rounds stands still.

All but pairs are put together here, and beside them what compares the lineage of this node's slow
weights with what the other members say of theirs:

::

    PostedIntent(lineage) -> own chain -> register "lineage" of the shared state -> the others
    a round ends  -> on another lineage than most? -> Stray -> worker -> PULL of a peer on it
                  -> other slow weights than most at the same place? -> the same

The comparisons are ``protocol/gossip/lineages.py`` and ``sketches.py``. What members say is
believed here as far as it is in a PULL: a node asks for weights of a member that it would otherwise
ask at random.

A node that trains looks busy whatever becomes of its rounds: its steps count up. What the swarm
makes of them is looked at whenever the status or the metrics are asked for; what stands still:

=========  =====================================================================
log        no round of the log closes
group      rounds of the group come to nothing, one after the other
lineage    members average on different lineages of the slow weights
full       others have all places of the group: this node trains beside it
=========  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from swarmnode import limits
from swarmnode.daemon.collective.groups import Groups
from swarmnode.daemon.collective.rounds import Rounds
from swarmnode.daemon.exchange.pair.exchanges import Exchanges
from swarmnode.daemon.exchange.pull import Pulls
from swarmnode.daemon.membership.report import PeerReport
from swarmnode.daemon.membership.swarm import Communicator, SwarmPart
from swarmnode.daemon.worker.leases import IntentHandler, Lessor
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.ids import PeerId
from swarmnode.ipc.control import Called, PostedIntent, Stray
from swarmnode.protocol.gossip.group_events import MeanEnded
from swarmnode.protocol.gossip.lineages import Lineage, Standing, judge
from swarmnode.protocol.gossip.sketches import Sketches
from swarmnode.protocol.identity import Signer
from swarmnode.strategies.installed import look_at_strategy
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

if TYPE_CHECKING:
    from swarmnode.daemon.collective.gathers import Gathers
    from swarmnode.daemon.collective.log import Log

_log = get_logger("swarmnode.daemon.exchange")
# Waiting is no standstill before. A round of the log waits LOG_GRACE_S_MAX for a slow member, and
# within ten seconds a person who looks should know.
_LOG_STILL_S = 8.0


_ALONE = Standing(
    n_alike=1, n_members=1, n_strongest=1, strongest=(), is_weaker=False, is_apart=False
)


class Lineages:
    """The lineage of this node, and how it stands.

    Args:
        said: what the other members that train now say of theirs.
        post: sends a message to the worker.
    """

    def __init__(
        self, said: Callable[[], Mapping[PeerId, PeerReport]], post: Callable[[Stray], None]
    ) -> None:
        self.sketches = Sketches()
        self._said = said
        self._post = post
        self._own: Lineage | None = None
        self._has_committed = self._has_pulled = False  # since the chain was looked at
        self._may_ask = False  # once a round: what comes of it shows in the next

    @property
    def text(self) -> str:
        """This node's chain as the others are told; "" without one, or before the first round."""
        return "" if self._own is None else self._own.said

    def intent_posted(self, intent: PostedIntent) -> None:
        """A round begins: this is where the worker is."""
        if intent.lineage is None:
            return
        if self._own is None:
            self._own = Lineage.of(intent.lineage, intent.base_version)
        is_next = self._has_committed and not self._has_pulled
        moved = self._own.then(intent.lineage, intent.base_version, is_next=is_next)
        follows = not self._has_pulled and (moved is self._own or len(moved.hashes) > 1)
        if moved is not self._own:
            self._own = moved
            self._has_committed = False
        self._has_pulled = False
        self._may_ask = True
        match intent.sketch:
            case value, length:
                self.sketches.note(moved.hashes[0], value, length, follows=follows)
            case _:
                self.sketches.forget()

    def round_ended(self, is_committed: bool) -> None:
        """A mean was applied, or nothing came of the round; ask for another lineage if need be."""
        self._has_committed |= is_committed
        if self._may_ask:
            self._may_ask = not self.look()

    def look(self) -> bool:
        """Return whether others' slow weights are to stay: the worker is told to take them over."""
        standing = self.standing()
        if standing.is_weaker:
            _log.warning(
                "on another lineage than most",
                alike=standing.n_alike,
                members=standing.n_members,
                strongest=standing.n_strongest,
            )
        elif others := self.preferred_here():
            _log.warning("other slow weights than most at the same place", others=len(others))
        else:
            return False
        self._post(Stray(is_here=not standing.is_weaker))
        return True

    def pulled(self) -> None:
        """The worker may have gone over to what a peer gave."""
        self._has_pulled = True

    def worker_gone(self) -> None:
        """The next worker begins with a snapshot: its chain is not known."""
        self._own = None
        self.sketches.forget()
        self._has_committed = self._has_pulled = self._may_ask = False

    def standing(self) -> Standing:
        """Return how this node's lineage stands now; one without a lineage stands alone."""
        if self._own is None:
            return _ALONE
        read = {peer: Lineage.parse(report.lineage) for peer, report in self._said().items()}
        return judge(self._own, {peer: each for peer, each in read.items() if each is not None})

    def preferred(self) -> Collection[PeerId]:
        """Return the peers whose slow weights are to stay: those to ask for them first."""
        standing = self.standing()
        return (
            standing.strongest
            if standing.is_weaker
            else self.preferred_here() or standing.strongest
        )

    def preferred_here(self) -> tuple[PeerId, ...]:
        """Return the members with what most hold where this node is, if it holds something else."""
        return self.sketches.others({peer: each.sketches for peer, each in self._said().items()})


class IntentHandlers:
    """Pairs, group means, pulls, and what else the strategy of a swarm that is trained here wants.

    Gatherings and the log are most of the code of all kinds, and few strategies want them: neither
    is imported in a swarm whose strategy says that it wants others.

    Args:
        signer: this node's key.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        communicator: Communicator,
        *,
        manifest: Manifest,
        swarm_id: bytes,
        part: SwarmPart,
        trainer: Trainer,
        signer: Signer,
    ) -> None:
        codec_name, lessor = manifest.codec, trainer.lessor
        strategy = look_at_strategy(manifest.strategy)
        self.exchanges = exchanges
        self.groups = Groups(communicator, swarm_id=swarm_id, codec_name=codec_name, lessor=lessor)
        self.groups.lines = part.line_rates
        self.pulls = Pulls(communicator, codec_name=codec_name, lessor=lessor)
        self.lineages = Lineages(partial(_training, part, signer.peer_id), trainer.post)
        self._gathers: tuple[Gathers, ...] = ()  # one, if the strategy may want it; so the log
        if strategy.may_want("gather"):
            self._gathers = (_make_gathers(communicator, codec_name, lessor, signer),)
        self._logs: tuple[Log, ...] = ()
        if strategy.may_want("log"):
            self._logs = (_make_log(communicator, trainer),)
        for rounds in (self.groups, *self._gathers):
            rounds.on_call = lambda lineage: trainer.post(Called(lineage))
            rounds.on_intent = self.lineages.intent_posted
            rounds.on_apart = self._look_again
            rounds.on_end = self.lineages.round_ended
            rounds.on_worker_gone = self.lineages.worker_gone
            rounds.catch_up_bytes = lambda: self.pulls.given_bytes
        self.pulls.settled = lambda: self.rounds.settled()
        self.pulls.prefers, self.pulls.on_pulled = self.lineages.preferred, self.lineages.pulled

    def by_kind(self) -> dict[str, IntentHandler]:
        """Return the handler of each kind of intent."""
        found: dict[str, IntentHandler] = {
            "pair": self.exchanges,
            "group": self.groups,
            "pull": self.pulls,
        }
        found.update(("gather", each) for each in self._gathers)
        found.update(("log", each) for each in self._logs)
        return found

    def _look_again(self) -> None:
        if not self.pulls.is_asking:  # the next question takes the place of the last
            self.lineages.look()

    @property
    def rounds(self) -> Rounds:
        """Of the kinds that meet in rounds the one that this swarm's strategy wants."""
        return next((each for each in self._gathers if each.is_used), self.groups)

    def use_call_time(self, call_s: Callable[[], float]) -> None:
        """Let all know how long a member that is called may take to come, as members tell."""
        self.exchanges.core.patience.call_s = self.pulls.call_s = call_s
        for rounds in (self.groups, *self._gathers):
            rounds.call_s = call_s

    def record(self, on_record: Callable[[MeanEnded], None]) -> None:
        """Let a line of history be written of each round that ends."""
        for rounds in (self.groups, *self._gathers):
            rounds.on_record = on_record

    def note_committed(self, gids: Iterable[bytes]) -> None:
        """Means of an earlier life of this node: it began again before them, and has no second say.

        Else others who lack them could make them anew with it, under the same name, of other sums.
        """
        for rounds in (self.groups, *self._gathers):
            for gid in gids:
                rounds.note_committed(gid)

    def worker_ready(self, log_round: int, log_head: bytes) -> None:
        """A worker is up, whose model holds all rounds of the log before ``log_round``."""
        for log in self._logs:
            log.worker_ready(log_round, log_head)

    @property
    def log_rounds_total(self) -> int:
        """Rounds of the log that were closed or fetched since the start."""
        return sum(log.closed_total for log in self._logs)

    def round_bytes(self) -> tuple[int, int]:
        """Return the bytes of payloads sent and received in rounds, since the start."""
        every = [each.payload_bytes() for each in (self.groups, *self._gathers)]
        return sum(sent for sent, _ in every), sum(received for _, received in every)

    def standstills(self, now: float) -> Mapping[str, str]:
        """Return what stands still, and what to do, by the words above; ``now`` is monotonic."""
        found = {
            "log": "".join(_of_log(log, now) for log in self._logs),
            "group": _of_group(self.rounds, now),
            "lineage": _of_lineage(self.lineages),
            "full": _of_places(self.rounds),
        }
        return {kind: sentence for kind, sentence in found.items() if sentence}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for handler in (self.exchanges, self.groups, self.pulls):
                await nursery.start(handler.run)
            for gathers in self._gathers:
                await nursery.start(gathers.run)
            for log in self._logs:
                await nursery.start(log.run)
            task_status.started()


def _make_gathers(
    communicator: Communicator, codec_name: str, lessor: Lessor, signer: Signer
) -> Gathers:
    from swarmnode.daemon.collective.gathers import Gathers

    return Gathers(communicator, codec_name=codec_name, signer=signer, lessor=lessor)


def _make_log(communicator: Communicator, trainer: Trainer) -> Log:
    from swarmnode.daemon.collective.log import Log

    return Log(communicator, lessor=trainer.lessor, tell=trainer.tell, halted=trainer.begin_anew)


def _training(part: SwarmPart, self_id: PeerId) -> Mapping[PeerId, PeerReport]:
    """Return what the other members that train at this moment say."""
    reports = (part.peer_report(peer) for peer in part.partners() if peer != self_id)
    return {each.peer: each for each in reports if each.state == "training"}


def other_base_alarm(finished: Mapping[tuple[Any, Any, str], int], committed: int) -> str:
    """Return what to look at if no member has the base of the model that this node began with.

    A peer's snapshot may name another than the swarm's; a node that began with it meets no other.
    """
    refused = sum(count for (_, _, reason), count in finished.items() if reason == "base")
    if committed or refused < limits.BASE_REFUSALS_ALARM:
        return ""
    return (
        f"all {refused} offers came to nothing because the others' model began from another base"
        " than this node's, which trains alone: stop it, move its snapshots and blobs away, and"
        " join again"
    )


def _of_log(log: Log, now: float) -> str:
    if log.is_halted:
        return (
            f"the log is halted: {log.state.removeprefix('halted: ')}, and fetches it: if that"
            " comes to nothing for minutes, look with `swarmnode peers` whether the others train"
        )
    waited_s = log.wait.waited_s(now)
    if waited_s < _LOG_STILL_S:
        return ""
    return (
        f"no round of the log has closed for {waited_s:.0f} s ({log.state}), so nothing is learnt:"
        " start the missing members again; after"
        f" {limits.LOG_GONE_S / 60:.0f} minutes without a majority of them the log goes on with"
        f" those that are there, after {limits.LOG_GONE_ALONE_S / 60:.0f} if no other member is"
    )


def _of_group(groups: Rounds, now: float) -> str:
    failing = groups.failing(now)
    if not failing.rounds:
        return ""
    return (
        f"the last {failing.rounds} rounds of the group came to nothing, for"
        f" {now - failing.since:.0f} s ({failing.why}), so what is learnt here reaches no peer:"
        " look with `swarmnode peers` whether the others train and are connected, and start them"
        " again; if they are, rounds are too short for the line (strategy.every)"
    )


def _of_lineage(lineages: Lineages) -> str:
    standing = lineages.standing()
    if not standing.is_apart:
        return _of_place(lineages)
    n, n_alike = standing.n_members, standing.n_alike
    if not standing.is_weaker:
        return (
            f"{n - n_alike} of {n} members average apart from this one, on another lineage of the"
            f" slow weights: they catch up by themselves; if it lasts, restart them"
        )
    return (
        f"this node and {n_alike - 1} others of {n} members average apart from {n - n_alike}, on a"
        " lineage of the slow weights that will not stay: this node asks for that of the others;"
        " if it lasts, see with `swarmnode peers` that it is connected, and restart it"
    )


def _of_place(lineages: Lineages) -> str:
    n = len(lineages.preferred_here())
    if not n:
        return ""
    return (
        f"{n} other members hold the same slow weights as each other, and this node other ones at"
        " the same place: it was given wrong ones, and asks those members for theirs; if it lasts,"
        " see with `swarmnode peers` that it is connected, and restart it"
    )


def _of_places(rounds: Rounds) -> str:
    if not rounds.is_beside:
        return ""
    return (
        f"groups hold at most {rounds.places} members and others have all places: this"
        " node trains beside them, and takes a place when one is free; for more members create a"
        " swarm whose nodes meet in pairs (--set strategy.meet=pair)"
    )
