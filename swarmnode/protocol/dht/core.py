"""The DHT of one node: Kademlia with signed records, without any IO.

::

    Command ──> Operation (a Lookup and what it is for) ──> Requests ──> Send
    Received ─> answer:  table, round trips, the lookup that asked
             └> request: answered from table and store; its sender is checked before it
                         gets into the table, as asking proves nothing

Which network this is, is the session's business: peers of another one never get this far.

Source: Maymounkov and Mazières, Kademlia (2002); disjoint paths from Baumgart and Mies,
S/Kademlia (2007). Deviations: a sliding window instead of rounds; no node republishes but
the author, so what its author no longer stands for ends; requests insert no node.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.events import Send
from swarmnode.protocol.dht.keys import AddressGroups, key_bytes, number_of
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.protocol.dht.operations import (
    CHECK,
    FindOperation,
    GetOperation,
    Operation,
    PublishOperation,
    Request,
    Requests,
)
from swarmnode.protocol.dht.records import Publications, RecordRules, RecordStore, rejection
from swarmnode.protocol.dht.table import Added, RoutingTable
from swarmnode.protocol.dht.upkeep import Check, LookUp, Meet, Sweep, Task, Upkeep
from swarmnode.protocol.identity import Signer
from swarmnode.wire import dht as wire
from swarmnode.wire.swarm import Signed

# Operations of the shell at once; more wait, and more than that are refused.
DHT_OPERATIONS_MAX = 16
DHT_OPERATIONS_QUEUED_MAX = 256
# Checks of strangers and of silent contacts in flight; a flood of strangers gets no more.
DHT_CHECKS_MAX = 16


@dataclass(frozen=True)
class DhtConfig:
    """What a core must be told.

    Args:
        rules: how records of this network are signed and checked.
        boot_epoch: larger at every start, on disk before it is used.
        unix_offset_s: what added to ``now`` gives Unix time; only for dates in records.
        groups: names networks, and knows those without a limit on their number in the table.
    """

    rules: RecordRules
    boot_epoch: int
    unix_offset_s: float
    groups: AddressGroups = field(default_factory=AddressGroups)


class DhtCore:
    """See the module's text; ``events`` names what goes in and comes out."""

    def __init__(self, signer: Signer, config: DhtConfig, rng: Rng, now: float) -> None:
        self.self_id = signer.peer_id
        self._rules = config.rules
        self._unix_offset_s = config.unix_offset_s
        self._groups = config.groups
        self.table = RoutingTable(self.self_id, self._groups)  # to be read, not changed
        self.store = RecordStore(self.self_id)  # likewise
        self._upkeep = Upkeep(self.table, rng, now)
        self._requests = Requests()
        self._publications = Publications(signer, config.rules, config.boot_epoch, rng)
        self._addresses: tuple[str, ...] = ()
        self._operations: dict[int, Operation] = {}
        self._last_operation = CHECK
        self._queue: deque[Callable[[float], None]] = deque()
        self._checked: dict[int, bool] = {}  # in flight: whether it is a Meet
        self._effects: list[events.Effect] = []
        self._counts: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    # --- the five methods ---------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> None:
        match event:
            case events.Received(peer, message, observed):
                self._received(peer, message, observed, now)
            case events.SendFailed(peer, request_id):
                request = self._requests.failed(peer, request_id)
                if request is not None:
                    self._gone(request, now)
            case events.Discovered(contacts):
                self._carry_out(self._upkeep.discovered(list(contacts), now), now)
                self._carry_out(self._upkeep.next_lookup(now), now)
            case events.Reachable(addresses):
                self._addresses = addresses[: limits.DHT_ADDRESSES_MAX]
            case events.Withdraw(key):
                self._publications.withdraw(key)
            case _:
                self._command(event, now)

    def poll_effects(self) -> list[events.Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        soonest = self._upkeep.next_deadline()
        for time in (self._requests.next_deadline(), self._publications.next_deadline()):
            if time is not None and time < soonest:
                soonest = time
        return soonest

    def handle_deadline(self, now: float) -> None:
        for request in self._requests.due(now):
            if self._requests.is_open(request):
                self._slow(request, now)
            else:
                self._gone(request, now)
        for key, signed in self._publications.due(now):
            self._publish_again(key, signed, now)
        self._carry_out(self._upkeep.due(now), now)

    def statistics(self) -> events.DhtStatistics:
        return events.DhtStatistics(
            contacts=len(self.table),
            records=len(self.store),
            publications=len(self._publications),
            operations=len(self._operations) + len(self._queue),
            requests_in_flight=len(self._requests),
            requests_sent=self._counts["sent"],
            requests_unanswered=self._counts["unanswered"],
            requests_served=self._counts["served"],
            contacts_evicted=self._counts["evicted"],
            contacts_limited=self._counts["limited"],
            records_rejected=tuple(sorted(self._rejected.items())),
            slow_after_s=self._requests.round_trips.slow_after_s(),
            is_bootstrapped=self._upkeep.is_bootstrapped,
        )

    def good_contacts(self) -> tuple[wire.Contact, ...]:
        """Return the peers to remember over a restart: those that have answered for longest."""
        healthy = [entry.contact for entry in self.table.entries() if entry.failures == 0]
        return tuple(healthy[: limits.DHT_REMEMBERED_MAX])

    # --- messages -----------------------------------------------------------------------

    def _received(self, peer: PeerId, message: wire.Message, observed: str, now: float) -> None:
        if peer == self.self_id:
            raise LocalProtocolError("a message from ourselves: the shell must not loop it back")
        match message:
            case wire.Pong() | wire.Found() | wire.Stored():
                self._answered(peer, message, observed, now)
                return
            case wire.Ping():
                answer: wire.Answer = wire.Pong(message.id)
            case wire.Find():
                answer = self._found(peer, message, now)
            case wire.Put():
                outcome = self._keep(message.key, message.record, now)
                answer = wire.Stored(message.id, outcome)
        self._counts["served"] += 1
        self._effects.append(Send(peer, (), answer))
        if message.addresses and self.table.wants(number_of(peer)):
            contact = wire.Contact(bytes(peer), message.addresses)
            self._carry_out([Check(contact)], now)

    def _found(self, peer: PeerId, message: wire.Find, now: float) -> wire.Found:
        target = number_of(message.key)
        entries = self.table.closest(target, limits.DHT_BUCKET_CONTACTS, only_healthy=True)
        contacts = tuple(entry.contact for entry in entries if entry.contact.peer != peer)
        records: tuple[Signed, ...] = ()
        if message.wants_records:
            records = tuple(held.signed for held in self.store.get(message.key, now))
        return wire.Found(message.id, contacts, records)

    def _keep(self, key: bytes, signed: Signed, now: float) -> wire.StoreOutcome:
        if self.store.has(key, signed, now):
            return "held"
        try:
            opened = self._rules.open(signed, key, now + self._unix_offset_s)
        except RemoteProtocolError as error:
            # Its sender may only pass it on; what a forger gains is this one word.
            self._rejected[rejection(error)] += 1
            return "refused"
        outcome = self.store.put(key, opened, now)
        if outcome == "full":
            self._rejected["full"] += 1
        return outcome

    def _answered(self, peer: PeerId, message: wire.Answer, observed: str, now: float) -> None:
        request = self._requests.answered(peer, message.id, now)
        if request is None:
            return  # it took longer than we waited
        if type(message) is not request.expects:
            self._gone(request, now)
            raise RemoteProtocolError(
                f"expected a {request.expects.__name__} as answer, got a {type(message).__name__}",
                peer=str(peer),
            )
        self._admit(request.contact, observed, now)
        was_meeting = self._check_ended(request)
        operation = self._operations.get(request.operation)
        match message:
            case wire.Found(contacts=contacts) if operation is None and was_meeting:
                self._upkeep.met(list(contacts), now)
            case wire.Found() if operation is not None:
                if isinstance(operation, GetOperation):
                    unix_s = now + self._unix_offset_s
                    operation.answered(peer, message.records, self._rules, unix_s)
                operation.lookup.answered(peer, message.contacts)
            case wire.Stored(outcome=outcome) if isinstance(operation, PublishOperation):
                operation.stored(peer, outcome)
        if operation is not None:
            self._advance(request.operation, operation, now)
        self._carry_out(self._upkeep.next_lookup(now), now)

    def _admit(self, contact: wire.Contact, observed: str, now: float) -> None:
        added = self.table.answered(contact, now, observed)
        number = number_of(contact.peer)
        if added is Added.NEW:
            self._upkeep.inserted(number, now)
        elif added is Added.LIMITED:
            self._counts["limited"] += 1
        elif added is Added.WAITING:
            oldest = self.table.buckets()[self.table.bucket_index(number)].entries[0]
            if now - oldest.seen_at >= limits.DHT_CHECK_SILENCE_S:
                self._carry_out([Check(oldest.contact)], now)

    # --- requests -----------------------------------------------------------------------

    def _ask(
        self,
        contact: wire.Contact,
        operation: int,
        expects: type[wire.Answer],
        make: Callable[[int], wire.Request],
        now: float,
        *,
        anew: bool = False,
    ) -> None:
        request = self._requests.open(contact, operation, expects, now)
        self._counts["sent"] += 1
        self._effects.append(Send(request.peer, contact.addresses, make(request.id), anew))

    def _slow(self, request: Request, now: float) -> None:
        operation = self._operations.get(request.operation)
        if operation is None:
            return
        operation.lookup.slow(request.peer)
        if isinstance(operation, PublishOperation):
            operation.gave_up(request.peer)
        self._advance(request.operation, operation, now)

    def _gone(self, request: Request, now: float) -> None:
        self._counts["unanswered"] += 1
        number = number_of(request.peer)
        self._check_ended(request)
        if number in self.table:
            evicted = self.table.unanswered(number)
            if evicted is None:
                self._upkeep.unanswered(number, now)
            else:
                self._counts["evicted"] += 1
                self._upkeep.lost.add(evicted.contact)
        operation = self._operations.get(request.operation)
        if operation is not None:
            operation.lookup.failed(request.peer)
            if isinstance(operation, PublishOperation):
                operation.gave_up(request.peer)
            self._advance(request.operation, operation, now)

    # --- operations ---------------------------------------------------------------------

    def _command(self, command: events.Command, now: float) -> None:
        if len(self._queue) < DHT_OPERATIONS_QUEUED_MAX:
            self._when_free(lambda then: self._begin(command, then), now)
        else:
            reason = f"{len(self._queue)} DHT operations are waiting: try again later"
            self._effects.append(events.Refused(command.command, reason))

    def _when_free(self, begin: Callable[[float], None], now: float) -> None:
        """Begin an operation now, or when enough others have ended."""
        if len(self._operations) < DHT_OPERATIONS_MAX:
            begin(now)
        else:
            self._queue.append(begin)

    def _begin(self, command: events.Command, now: float) -> None:
        key = bytes(command.key)  # a PeerId is a key, but not for the encoder
        match command:
            case events.FindPeers(number):
                self._start(FindOperation(key, self._lookup(key, 1), number), now)
            case events.GetRecords(number, _, quorum):
                lookup = self._lookup(key, limits.DHT_LOOKUP_PATHS)
                get = GetOperation(key, lookup, number, quorum)
                for held in self.store.get(key, now):
                    get.take(held)
                self._start(get, now)
            case events.Publish(number, _, record):
                signed = self._publications.add(key, record, now, now + self._unix_offset_s)
                if signed is None:
                    reason = f"{limits.DHT_PUBLICATIONS_MAX} records are published already"
                    self._effects.append(events.Refused(number, reason))
                else:
                    self._publish(number, key, signed, now)

    def _publish_again(self, key: bytes, signed: Signed, now: float) -> None:
        self._when_free(lambda then: self._publish(None, key, signed, then), now)

    def _publish(self, command: int | None, key: bytes, signed: Signed, now: float) -> None:
        self._keep(key, signed, now)
        lookup = self._lookup(key, limits.DHT_LOOKUP_PATHS)
        self._start(PublishOperation(key, lookup, command, signed), now)

    def _lookup(self, key: bytes, paths: int) -> Lookup:
        target = number_of(key)
        entries = self.table.closest(target, limits.DHT_BUCKET_CONTACTS)
        seeds = [entry.contact for entry in entries]
        if len(seeds) < limits.DHT_LOOKUP_PARALLEL:
            seeds += self._upkeep.hints.outside(self.table)
        return Lookup(target, self.table.self_number, seeds, self._groups, paths=paths)

    def _start(self, operation: Operation, now: float) -> None:
        self._last_operation += 1
        self._operations[self._last_operation] = operation
        self._advance(self._last_operation, operation, now)

    def _advance(self, number: int, operation: Operation, now: float) -> None:
        """Ask the peers there are to ask; end what is finished and begin what waited for it."""
        if number not in self._operations:
            return
        if isinstance(operation, PublishOperation):
            self._store(number, operation, now)
        elif not operation.is_finished():
            self._ask_more(number, operation, now)
        if not operation.is_finished():
            return
        del self._operations[number]
        self._ended(operation, now)
        if self._queue and len(self._operations) < DHT_OPERATIONS_MAX:
            self._queue.popleft()(now)

    def _ask_more(self, number: int, operation: Operation, now: float) -> None:
        while (contact := operation.lookup.next_contact()) is not None:
            self._ask(
                contact,
                number,
                wire.Found,
                lambda request_id: wire.Find(
                    request_id, self._addresses, operation.key, operation.wants_records
                ),
                now,
            )

    def _store(self, number: int, operation: PublishOperation, now: float) -> None:
        """Send the record to all peers that are to have it, once the lookup has come that far."""
        for contact in operation.targets():
            self._ask(
                contact,
                number,
                wire.Stored,
                lambda request_id: wire.Put(
                    request_id, self._addresses, operation.key, operation.signed
                ),
                now,
            )
        if not operation.is_storing:
            self._ask_more(number, operation, now)
        elif operation.is_enough():
            self._tell(operation)

    def _tell(self, operation: Operation) -> None:
        effect = operation.effect()
        if effect is not None:
            self._effects.append(effect)

    def _ended(self, operation: Operation, now: float) -> None:
        self._tell(operation)
        if isinstance(operation, GetOperation):
            self._rejected.update(operation.rejected)
        if type(operation) is Operation:
            if self._upkeep.ended(operation.lookup.target, now):
                self._effects.append(events.Bootstrapped(len(self.table)))
                self._publications.hasten(now)
            self._carry_out(self._upkeep.next_lookup(now), now)

    # --- upkeep -------------------------------------------------------------------------

    def _carry_out(self, tasks: list[Task], now: float) -> None:
        for task in tasks:
            match task:
                case LookUp(target):
                    key = key_bytes(target)
                    self._start(Operation(key, self._lookup(key, 1)), now)
                case Check(contact):
                    self._check(contact, now, is_meeting=False)
                case Meet(contact):
                    self._check(contact, now, is_meeting=True)
                case Sweep():
                    self.store.sweep(now)

    def _check_ended(self, request: Request) -> bool:
        """Forget a check that is over; return whether it was a Meet."""
        if request.operation != CHECK:
            return False
        return self._checked.pop(number_of(request.peer), False)

    def _check(self, contact: wire.Contact, now: float, *, is_meeting: bool) -> None:
        number = number_of(contact.peer)
        if number in self._checked or len(self._checked) >= DHT_CHECKS_MAX:
            return
        self._checked[number] = is_meeting
        if is_meeting:
            self._ask(
                contact,
                CHECK,
                wire.Found,
                lambda request_id: wire.Find(request_id, self._addresses, bytes(self.self_id)),
                now,
            )
        else:
            self._ask(
                contact,
                CHECK,
                wire.Pong,
                lambda request_id: wire.Ping(request_id, self._addresses),
                now,
                anew=number not in self.table,
            )
