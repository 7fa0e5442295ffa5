"""The shared state of a swarm on a running node: the Trio shell of ``protocol/crdt``.

::

    say(Update) -> core -Persist-> journal (thread, fsync) -Persisted-> core -Send-> neighbours

What others say is written to the journal as well, without waiting: a crash forgets some of it,
and the first comparison with a neighbour brings it back. While the disk is full our own words
gather in the core, and training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.env import Env
from swarmnode.errors import MalformedMessage, StorageError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.services import ScopedServices
from swarmnode.net.session import Session
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.crdt.views import View
from swarmnode.protocol.identity import Identity
from swarmnode.store.journal import Journal
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import crdt as wire
from swarmnode.wire.compression import decode_message, encode_message
from swarmnode.wire.crdt import SnapshotClaim
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority
from swarmnode.wire.swarm import Signed

STATE_SERVICE = "state/1"
ADDRESS = "address"  # the set in which each says where it can be dialled
_log = get_logger("swarmnode.daemon.membership")


class StateKeeper:
    """Holds, saves and spreads what the members of a swarm say of themselves.

    Attributes:
        core: to be read.
        disk_failure: why our own words do not get out, "" if they do.
        journal_bytes: size of the journal on disk.
        is_open: whether the journal has been read: before that nothing may be said.
        on_changed: told of every author whose part has changed, and in what.
        on_key_elsewhere: another node signs with our key, in this boot epoch.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        swarm_id: bytes,
        boot_epoch: int,
        journal: Path,
        services: ScopedServices,
        env: Env,
    ) -> None:
        self.disk_failure = ""
        self.journal_bytes = 0
        self.is_open = False
        self.on_changed: Callable[[PeerId, frozenset[str]], None] = lambda _author, _names: None
        self.on_key_elsewhere: Callable[[int], None] = lambda _epoch: None
        self._self_id = identity.peer_id
        self._path = journal
        self._env = env
        self._tasks = Tasks()
        self._outboxes: dict[PeerId, trio.MemorySendChannel[bytes]] = {}
        self._to_write: list[events.Persist] = []
        self._write_wanted = trio.Event()
        self._service_name = services.name(STATE_SERVICE)
        self.core = SharedState(
            identity,
            swarm_id,
            epoch=boot_epoch,
            wall_unix_s=env.wall(),
            now=env.monotonic(),
            rng=env.rng,
        )
        self._driver: CoreDriver[events.Event, events.Effect] = CoreDriver(
            self.core, self._carry_out, now=env.monotonic
        )
        services.add_request(STATE_SERVICE, self._receive)

    @property
    def view(self) -> View:
        """What the state says."""
        return self.core.view

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the journal, then keep and spread the state until cancelled.

        Raises:
            StorageError: the journal cannot be opened.
        """
        journal = await self._env.in_thread(Journal, self._path)
        try:
            self._restore(journal)
            self.is_open = True
            async with self._tasks.open() as nursery:
                nursery.start_soon(self._driver.run)
                nursery.start_soon(self._write, journal)
                nursery.start_soon(self._follow_clock)
                task_status.started()
                await trio.sleep_forever()
        finally:
            journal.close()

    def say(self, update: events.Update) -> None:
        """Say something about this node; see ``events.Update``."""
        self._driver.feed(update)

    def fingerprint(self) -> str:
        """Return hexadecimal digits that are equal on nodes that hold the same records."""
        return self.view.ledger.index.digest("").fingerprint.hex()

    def own_claims(self) -> dict[bytes, SnapshotClaim]:
        """Return which snapshots this node said it held, in its earlier life too."""
        ledger = self.view.ledger
        if self._self_id not in ledger.chains:
            return {}
        return ledger.document.snapshots.of(ledger.chains[self._self_id].actor)

    def stored_addresses(self) -> dict[PeerId, tuple[str, ...]]:
        """Return where other peers said that they were, also those not heard of lately."""
        found: dict[PeerId, list[str]] = {}
        for actor, (name, element) in self.view.ledger.document.leases.said():
            if name == ADDRESS:
                found.setdefault(actor.peer, []).append(element)
        return {peer: tuple(addresses) for peer, addresses in found.items()}

    async def _follow_clock(self) -> None:
        """Say so if the wall clock was set: a machine may start years off, and learn the time."""
        offset_s = self._env.wall() - self._env.monotonic()
        while True:
            await trio.sleep(limits.STATE_CLOCK_LOOK_S)
            wall_unix_s = self._env.wall()
            moved_s = wall_unix_s - self._env.monotonic() - offset_s
            if abs(moved_s) > limits.STATE_CLOCK_SET_S:
                _log.warning("the clock of this machine was set", by_s=round(moved_s))
                offset_s += moved_s
                self._driver.feed(events.ClockSet(wall_unix_s))

    # --- neighbours -----------------------------------------------------------------------

    def neighbour_up(self, session: Session) -> None:
        """Part of ``NeighbourWatcher``."""
        send, receive = trio.open_memory_channel[bytes](limits.STATE_OUTBOX_MAX)
        self._outboxes[session.peer] = send
        self._tasks.start_soon(self._send_all, session, receive)
        self._driver.feed(events.NeighbourUp(session.peer))

    def neighbour_down(self, peer: PeerId) -> None:
        """Part of ``NeighbourWatcher``."""
        if peer in self._outboxes:
            self._outboxes.pop(peer).close()
        self._driver.feed(events.NeighbourDown(peer))

    async def _send_all(self, session: Session, outbox: trio.MemoryReceiveChannel[bytes]) -> None:
        """Send in order: a record makes sense after the ones before it only."""
        async for payload in outbox:
            try:
                await session.request(
                    self._service_name,
                    payload,
                    deadline_s=limits.PEER_REQUEST_DEADLINE_S,
                    priority=Priority.STATE,
                )
            except SwarmNodeError as error:
                # The next comparison finds what is missing.
                _log.debug("state not sent", peer=session.peer.short, why=str(error))

    async def _receive(self, peer: PeerId, payload: bytes) -> bytes:
        self._driver.feed(events.Received(peer, decode_message(payload)))
        return b""

    # --- effects --------------------------------------------------------------------------

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Send(peer, message):
                self._post(peer, message)
            case events.Persist():
                self._persist(effect)
            case events.Changed(author, names):
                self.on_changed(author, names)
            case events.Ban(author):
                _log.warning("a peer signed two histories: it is out", peer=author.short)
            case events.Penalise(peer, why):
                _log.warning("a neighbour sent bad state", peer=peer.short, why=why)
            case events.KeyElsewhere(epoch=epoch):
                self.on_key_elsewhere(epoch)

    def _post(self, peer: PeerId, message: wire.Message) -> None:
        if peer not in self._outboxes:
            return
        try:
            self._outboxes[peer].send_nowait(encode_message(message))
        except trio.WouldBlock:
            _log.debug("a slow neighbour misses some state", peer=peer.short)
        except trio.BrokenResourceError:
            pass  # its session has just ended

    # --- journal --------------------------------------------------------------------------

    def _restore(self, journal: Journal) -> None:
        self.journal_bytes = journal.statistics().size_bytes
        found = journal.recovered
        if found.cut_bytes:
            _log.warning(
                "the journal of the shared state was damaged; neighbours bring back what is lost",
                cut_bytes=found.cut_bytes,
                why=found.reason,
                saved_as=str(found.saved_as),
            )
        records: list[Signed] = []
        for payload in found.records:
            try:
                records.append(decode_record(payload, Signed))
            except MalformedMessage as error:  # of another version
                _log.warning("a record of the journal is left out", why=str(error))
        journal.let_go()
        self._driver.feed(events.Restored(tuple(records)))

    def _persist(self, effect: events.Persist) -> None:
        is_own = effect.sequence is not None
        if is_own or len(self._to_write) < limits.STATE_WRITES_WAITING_MAX:
            self._to_write.append(effect)
            self._write_wanted.set()

    async def _write(self, journal: Journal) -> None:
        """Write what waits, a batch at a time; our own words go out once they are on disk."""
        while True:
            await self._write_wanted.wait()
            self._write_wanted = trio.Event()
            batch, self._to_write = self._to_write, []
            while batch and not await self._write_batch(journal, batch):
                # What others say comes again with the next comparison; our own word waits.
                batch = [each for each in batch if each.sequence is not None]
                await trio.sleep(limits.STATE_DISK_RETRY_S)

    async def _write_batch(self, journal: Journal, batch: list[events.Persist]) -> bool:
        """Return whether it is on disk."""
        own = [each.sequence for each in batch if each.sequence is not None]
        try:
            await self._env.in_thread(_append, journal, batch, bool(own))
        except StorageError as error:
            self._note_failure(error)
            return False
        # Before the journal is rotated: a new generation holds what the core shows to others.
        for sequence in own:
            self._driver.feed(events.Persisted(sequence))
        try:
            await self._rotate_if_long(journal)
        except StorageError as error:
            self._note_failure(error)  # the old generation goes on
        else:
            self.disk_failure = ""
        self.journal_bytes = journal.statistics().size_bytes
        return True

    def _note_failure(self, error: StorageError) -> None:
        if str(error) != self.disk_failure:  # said once: it is tried again and again
            _log.error("the shared state is not written down; training goes on", why=str(error))
        self.disk_failure = str(error)

    async def _rotate_if_long(self, journal: Journal) -> None:
        if journal.needs_rotation(self.core.statistics().held_bytes):
            payloads = [encode_record(signed) for signed in self.core.journal_records()]
            await self._env.in_thread(journal.rotate, payloads)


def _append(journal: Journal, batch: Iterable[events.Persist], must_sync: bool) -> None:
    for each in batch:
        journal.append(encode_record(each.record))
    if must_sync:
        journal.sync()
