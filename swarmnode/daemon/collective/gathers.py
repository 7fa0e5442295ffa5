"""Intents for a gathering: its members, how long they are waited for, and what becomes of it.

::

    PostedIntent --members, gid--> Round (fetches), GroupRuns.begin ... roll closed --> borrow
                                   ... Commit --> apply
                                       Abort ---> give_back

A round counts with a majority of the members that this node knows: of a network in two parts one
goes on at most. Members are at most GATHER_MEMBERS_MAX, those with the smallest ids; the others
train beside it and catch up.

The run of a gathering (``runs.py``) has one piece. Its shares are announcements, a few hundred
bytes; its sum is the set of the round, made by one member of what that member holds by then, so
that everything in it can be had of two. Each fetches what it lacks (``messages.py``), and what the
run compares is the SHA-256 over the set and over the bytes of all messages in it::

    load      borrow, encode, sign, offer to all
    reduce    wait for the messages of the contributors, up to a share of the time; make the set
    assemble  check the set, fetch what is missing, hash it all
    committed the messages lie in the lease's room, in the order of the set
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.collective.messages import GatherRounds, Round
from swarmnode.daemon.collective.rounds import Rounds, Topic, round_of, topic_of
from swarmnode.daemon.collective.runs import Payload
from swarmnode.daemon.driver import Tasks
from swarmnode.daemon.worker.leases import BufferLease, Lessor
from swarmnode.errors import Refused, RemoteProtocolError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import PostedIntent
from swarmnode.net.stream import Stream
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.gather_set import Announced, RunTerms, copies
from swarmnode.protocol.gossip.groups import seats
from swarmnode.protocol.identity import Signer, verify
from swarmnode.protocol.trust import Seen
from swarmnode.telemetry.logs import get_logger
from swarmnode.tensor import coded
from swarmnode.tensor.codec import Codec, get_codec
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.exchange.gather import GatherShare
from swarmnode.wire.packing import decode_record, encode_record

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import Communicator

GATHER_RUN_SERVICE = "gather-run"
# As many as one run holds, and as one round does.
_MEMBERS_MAX = min(limits.GATHER_MEMBERS_MAX, limits.GROUP_MEMBERS_MAX)
# A set of GATHER_MEMBERS_MAX announcements, each with a key and a signature.
_SET_BYTES_MAX = limits.GATHER_MEMBERS_MAX * limits.KIB
# Of the time that a sum may take: the rest is for members that then fetch what the set names.
_MAKE_SHARE = 0.3
# Four blocks of the sparse codecs: 256 positions, of which chance lets two members share four.
_COPY_SAMPLE_ELEMS = 16_384
_log = get_logger("swarmnode.daemon.collective")


class Gathers(Rounds):
    """The IntentHandler of gatherings.

    Args:
        codec_name: the swarm's.
        signer: this node's key.

    Attributes:
        is_used: whether the strategy gathers.
    """

    places = limits.GATHER_MEMBERS_MAX

    def __init__(
        self, communicator: Communicator, *, codec_name: str, signer: Signer, lessor: Lessor
    ) -> None:
        super().__init__(GATHER_RUN_SERVICE, communicator, lessor)
        self._codec_name = codec_name
        self._signer = signer
        self._live = communicator.live
        self._tasks = Tasks()
        self.messages = GatherRounds(communicator)
        self.is_used = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve intents until cancelled."""
        async with self._tasks.open() as nursery:
            await nursery.start(self.messages.run)
            await nursery.start(self.runs.run)
            task_status.started()
            await trio.sleep_forever()

    # --- as an IntentHandler -----------------------------------------------------------------

    def partners_changed(self) -> None:
        """Go on without the dead, and ask them for no message."""
        super().partners_changed()
        self.messages.members_changed(self._live())

    def payload_bytes(self) -> tuple[int, int]:
        """Return the bytes of payloads sent and received, those of messages too."""
        sent, received = super().payload_bytes()
        return sent + self.messages.sent_bytes, received + self.messages.received_bytes

    # --- inside --------------------------------------------------------------------------------

    def _refusal(self, intent: PostedIntent, gid: bytes, members: Collection[PeerId]) -> str:
        self.is_beside = self._self_id not in members
        if self.is_beside:
            return f"busy: {len(members)} others have all places of the gathering"
        if not (self._tasks.are_open and self.runs.may_begin(gid)) or gid in self._running:
            return "round: it is over here, too many run at once, or this node leaves"
        size_bytes = coded.coded_bytes(self._codec(intent), intent.numel)
        most = min(limits.GATHER_MESSAGE_BYTES_MAX, limits.GATHER_ROUND_BYTES_MAX // len(members))
        if size_bytes > most:
            return (
                f"local: expected messages of up to {most} bytes from {len(members)} members, got "
                f"{size_bytes}: choose a strategy that meets in groups or pairs"
            )
        return ""

    def _codec(self, intent: PostedIntent) -> Codec:
        return get_codec(intent.views[0].codec or self._codec_name)

    def _begin(self, intent: PostedIntent, topic: Topic, enlist_s: float) -> None:
        self.is_used = True
        gid = self._gid(intent, topic)
        members = seats(self._present(), _MEMBERS_MAX)
        if why := self._refusal(intent, gid, members):
            self.refused_total += 1
            self._failed(topic, gid)
            self._lessor.drop(intent, why)
            self.on_end(False)
            return
        self._note_begun(gid, topic)
        attempt = self._attempts[topic].number if topic in self._attempts else 0
        self._tasks.start_soon(self._open, intent, gid, attempt, members, enlist_s)

    async def _open(
        self,
        intent: PostedIntent,
        gid: bytes,
        attempt: int,
        members: tuple[PeerId, ...],
        enlist_s: float,
    ) -> None:
        codec = self._codec(intent)
        size_bytes = coded.coded_bytes(codec, intent.numel)
        terms = RunTerms(gid, frozenset(members), size_bytes, verify)
        try:
            messages = await self.messages.open(terms, partial(_check, codec, intent.numel))
        except Refused as error:
            self._ended(intent, gid, None, (), events.Abort(gid, str(error), in_doubt=False))
            return
        transfer_s = _transfer_limit_s(size_bytes, len(members))
        patience_s = self.patience.limit_s(transfer_s, 2 * self.call_s())
        cargo = GatherCargo(
            intent,
            codec,
            messages,
            self._lessor,
            self._signer,
            transfer_s,
            patience_s,
            self._note_held,
            partial(self.runs.lose, gid=gid),
            partial(self._ended, intent, gid),
            self._note_copies,
        )
        if gid not in self._running:  # the worker went away in this very moment
            self.messages.close(gid)
            return
        now = self._env.monotonic()
        begin = events.Begin(
            gid,
            self.patience.waited_for(members, self._self_id, now),
            1,
            intent.weight,
            enlist_s,
            transfer_s,
            electorate=members,
            # A node that is early by more than its roll is open would gather alone each time.
            quorum_s=limits.GROUP_ENLIST_S_MAX,
            patience_s=patience_s,
            lineage=intent.lineage,
            attempt=attempt,
            doubted=self.patience.doubted(members, now),
        )
        self.runs.begin(begin, cargo)

    def _give_up_quietly(self, gid: bytes, why: str) -> None:
        super()._give_up_quietly(gid, why)
        self._running.pop(gid, None)  # its round may still be opening: no run has begun

    def _ended(
        self,
        intent: PostedIntent,
        gid: bytes,
        lease: BufferLease | None,
        entries: tuple[Announced, ...],
        how: events.Commit | events.Abort,
    ) -> None:
        topic = topic_of(intent)
        now = self._env.monotonic()
        _, since = self._running.get(gid, (topic, now))  # given up while it was opening
        took_s = now - since
        self._note_over(gid, topic, is_in_vain=isinstance(how, events.Abort) or not entries)
        self.messages.close(gid)
        match how, lease:
            case events.Commit() as commit, BufferLease() as lent if entries:
                self._commit(intent, topic, lent, entries, commit, took_s)
                return
            case events.Abort(why=why, in_doubt=in_doubt), BufferLease():
                self.on_record(events.MeanEnded(gid, (), b"", why, in_doubt, took_s))
            case events.Abort(why=why), _:
                pass
            case _:
                why = "no message came in time"
        self._say_failure("nothing gathered", intent, why)
        self._come_to_nothing(intent, topic, lease, why)

    def _note_copies(self, authors: frozenset[PeerId]) -> None:
        for author in sorted(authors - {self._self_id}):
            self._trust.note(author, Seen.COPY, self._env.monotonic())
            _log.warning("a message of a gathering is a copy", peer=author.short)

    def _commit(
        self,
        intent: PostedIntent,
        topic: Topic,
        lease: BufferLease,
        entries: tuple[Announced, ...],
        commit: events.Commit,
        took_s: float,
    ) -> None:
        authors, result = tuple(each.author for each in entries), commit.result
        is_applied = self._apply(topic, lease, commit, authors)
        self.on_end(is_applied)
        self.on_record(
            events.MeanEnded(commit.gid, authors, result, "", False, took_s, is_lost=not is_applied)
        )
        _log.info(
            "gathered",
            tag=intent.tag,
            round=round_of(intent),
            messages=len(entries),
            result=result.hex()[:16],
            is_applied=is_applied,
        )


def _transfer_limit_s(size_bytes: int, n_members: int) -> float:
    """Return how long a phase may take: a slow step, and all messages at a slow uplink."""
    bytes_s = size_bytes * n_members / limits.EXCHANGE_RATE_BYTES_PER_S_MIN
    wanted_s = limits.EXCHANGE_TRANSFER_S_MIN + limits.EXCHANGE_VIEW_S + bytes_s
    return min(wanted_s, limits.GROUP_TRANSFER_S_MAX)


def _check(codec: Codec, numel: int, data: bytes) -> None:
    """Raise MalformedMessage unless every chunk of a message is valid."""
    for payload, n_elems in coded.sizes(codec, data, numel):
        codec.validate(payload, n_elems)


Ended = Callable[[BufferLease | None, tuple[Announced, ...], events.Commit | events.Abort], None]


class GatherCargo:
    """The cargo of one run.

    Args:
        messages: of this run; closed by the caller that opened it.
        transfer_s, patience_s: of the run.
        held: told which member has not given what it announced, and for how long it was waited for.
        lost: told which member the run is to go on without.
        ended: told of the lease, or that there was none, and of the messages in it.
        copied: told of the authors of messages that counted, and were copies of others.
    """

    def __init__(
        self,
        intent: PostedIntent,
        codec: Codec,
        messages: Round,
        lessor: Lessor,
        signer: Signer,
        transfer_s: float,
        patience_s: float,
        held: Callable[[PeerId, float], None],
        lost: Callable[[PeerId], None],
        ended: Ended,
        copied: Callable[[frozenset[PeerId]], None],
    ) -> None:
        self._intent = intent
        self._codec = codec
        self._messages = messages
        self._lessor = lessor
        self._signer = signer
        self._transfer_s = transfer_s
        # If the stage ended first in which this is fetched, no member would be blamed.
        self._patience_s, self._grace_s = patience_s, min(limits.GATHER_GRACE_S, patience_s / 2)
        self._held, self._lost = held, lost
        self._ended, self._copied = ended, copied
        self._loaded_at = 0.0
        self._set_maker = signer.peer_id  # of the set that came last
        self._lease: BufferLease | None = None
        self._share = self._digest = b""  # of the own message, once it is loaded
        self._plan = b""
        self._contributors: Sequence[PeerId] = ()  # of the plan
        self._set = b""
        self._entries: tuple[Announced, ...] = ()
        self._copies: frozenset[PeerId] = frozenset()  # who sent what another member had sent

    async def load(self) -> float:
        """Borrow the view, encode it and offer it; what the others decode takes its place."""
        self._loaded_at = trio.current_time()
        self._lease = lease = await self._lessor.borrow(self._intent)
        data = bytearray(coded.coded_bytes(self._codec, self._intent.numel))
        for payload, values in coded.parts(self._codec, data, lease.own):
            self._codec.encode(values, payload)
            self._codec.decode(payload, values)
            await trio.lowlevel.checkpoint()
        self._digest = hashlib.sha256(data).digest()
        own = self._messages.terms.announce(self._signer, self._digest)
        self._share = encode_record(GatherShare(own.signed))
        self._messages.publish(own, bytes(data))
        return 0.0

    def share(self, piece: int) -> Payload:  # noqa: ARG002
        """Return the announcement of the own message."""
        return [self._share]

    async def receive(self, stream: Stream, header: wire.Share | wire.Sum) -> Payload:
        """Read an announcement or a set. Raises RemoteProtocolError and what streams do."""
        data = await stream.receive_rest(_SET_BYTES_MAX)
        if isinstance(header, wire.Share):
            self._messages.terms.read(decode_record(data, GatherShare).announcement)
        else:
            self._messages.terms.read_set(data, self._messages.known())
            self._set_maker = stream.pump.peer
        return [data]

    def keep_share(self, peer: PeerId, piece: int, payload: Payload) -> None:  # noqa: ARG002
        """Fetch what it announces."""
        announced = self._messages.terms.read(
            decode_record(bytes(payload[0]), GatherShare).announcement
        )
        if announced.author == peer:
            self._messages.announce(announced)

    def use_plan(
        self,
        plan: bytes,
        n_pieces: int,  # noqa: ARG002
        contributors: Sequence[PeerId],
    ) -> None:
        """Let go of the set of an earlier plan."""
        if plan != self._plan:
            self._plan, self._set, self._contributors = plan, b"", contributors

    def keep_sum(self, piece: int, payload: Payload) -> None:  # noqa: ARG002
        """Keep the set."""
        self._set = bytes(payload[0])

    async def reduce(
        self,
        plan: bytes,
        piece: int,  # noqa: ARG002
        contributors: Sequence[PeerId],
        weights: Sequence[float],  # noqa: ARG002
    ) -> None:
        """Make the set of what is here in time: the rest has as long again as most have taken."""
        wanted = [each for each in self._messages.known() if each.author in contributors]
        began_at = trio.current_time()
        with trio.move_on_after(_MAKE_SHARE * self._transfer_s):
            await self._messages.wait_for(wanted, at_least=len(wanted) // 2 + 1)
            took_s = trio.current_time() - began_at
            with trio.move_on_after(max(took_s, self._grace_s)):
                await self._messages.wait_for(wanted)
            waited_s = trio.current_time() - began_at - took_s
            here = {each.digest for each in self._messages.held()}
            for author in (each.author for each in wanted if each.digest not in here):
                self._held(author, waited_s)
        if plan == self._plan:
            held = (each for each in self._messages.held() if each.author in contributors)
            self._set = self._messages.terms.make_set(held)
            self._set_maker = self._signer.peer_id

    def sum(self, piece: int) -> Payload:  # noqa: ARG002
        """Return the set."""
        return [self._set]

    async def assemble(self) -> bytes:
        """Fetch all messages of the set; return the SHA-256 over it and them.

        Raises WorkerError: it cannot be right.
        """
        plan, data = self._plan, self._set
        try:
            entries = self._messages.terms.read_set(data, self._messages.known())
        except RemoteProtocolError as error:
            raise WorkerError(str(error)) from error
        mine = [each.digest for each in entries if each.author == self._signer.peer_id]
        if mine not in ([], [self._digest]):
            raise WorkerError("the set says something else in this node's name: a key is stolen")
        if not self._is_enough(entries):
            self._lost(self._set_maker)
            await trio.sleep_forever()
        self._messages.settle(entries)
        if not await self._fetched(entries):
            await trio.sleep_forever()  # the others agree on a set of another member, or it ends
        found = hashlib.sha256(data)
        for each in entries:
            found.update(self._messages.data(each.digest))
            await trio.lowlevel.checkpoint()
        if plan == self._plan:  # else what comes of it is not what will be committed
            self._entries = entries
        if self._codec.needs_error_feedback:
            self._copies = copies(await self._kept(entries))
        return found.digest()

    def _is_enough(self, entries: Collection[Announced]) -> bool:
        """Whether a set of another member is what it may make: of more than half of all.

        Else the member that makes it chooses which messages count, its own alone if it likes.
        """
        is_own = self._set_maker == self._signer.peer_id
        if is_own or 2 * len(entries) > len(self._contributors):
            return True
        _log.warning(
            "a set has too few messages",
            maker=self._set_maker.short,
            messages=len(entries),
            members=len(self._contributors),
        )
        return False

    async def _fetched(self, entries: Collection[Announced]) -> bool:
        """Fetch what the set names; go on without its maker if that one does not give it.

        It holds all of it, or was not to make this set. Returns whether all is here.
        """
        began_at, is_here = trio.current_time(), False
        limit_s = min(max(began_at - self._loaded_at, self._grace_s), self._patience_s)
        try:
            with trio.move_on_after(limit_s):
                await self._messages.wait_for(entries)
                is_here = True
        finally:
            if not is_here:  # be it that the run has ended before
                self._held(self._set_maker, trio.current_time() - began_at)
        if not is_here:
            _log.warning("a set of messages is not given", maker=self._set_maker.short)
            self._lost(self._set_maker)
        return is_here

    async def _kept(self, entries: Collection[Announced]) -> dict[PeerId, frozenset[int]]:
        """Return which elements each message keeps, in the order in which they were announced."""
        wanted = {each.author: each.digest for each in entries}
        kept: dict[PeerId, frozenset[int]] = {}
        for each in self._messages.known():
            if wanted.get(each.author) == each.digest:
                data = self._messages.data(each.digest)
                kept[each.author] = coded.kept_positions(
                    self._codec, data, self._intent.numel, _COPY_SAMPLE_ELEMS
                )
                await trio.lowlevel.checkpoint()
        return kept

    def committed(self, commit: events.Commit) -> None:
        """Hand the lease on: its room holds the messages."""
        if self._lease is not None:
            at = 0
            for each in self._entries:
                data = self._messages.data(each.digest)
                self._lease.room[at : at + len(data)] = data
                at += len(data)
        self._copied(self._copies)
        self._ended(self._lease, self._entries, commit)

    def aborted(self, abort: events.Abort) -> None:
        """Hand the lease on: its room holds nothing of use."""
        self._ended(self._lease, (), abort)
