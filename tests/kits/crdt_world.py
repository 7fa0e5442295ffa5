"""Replicas of the shared state on a bad network, for tests: one heap of events, one seed.

Signatures are a keyed hash with a made-up key (a real one costs 100 µs); ``real=True`` uses
Ed25519. The disk acknowledges at once unless a test says otherwise.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmnode.errors import AuthenticationFailed
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.records import NO_HASH, Opened, seal
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire import crdt as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

NETWORK = hashlib.sha256(b"network").digest()
WALL_UNIX_S = 1.8e9


@dataclass(frozen=True)
class ToySigner:
    """Signs so that :func:`verify_toy` is content, and no other check is."""

    public_key: bytes
    peer_id: PeerId

    @classmethod
    def make(cls, number: int) -> ToySigner:
        key = hashlib.sha256(b"key %d" % number).digest()
        return cls(key, PeerId.from_public_key(key))

    def sign(self, domain: str, body: bytes) -> bytes:
        return _toy_signature(self.public_key, domain, body)


def verify_toy(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
    if signature != _toy_signature(public_key, domain, body):
        raise AuthenticationFailed(f"{what}: the signature does not match its key")


def _toy_signature(public_key: bytes, domain: str, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=public_key, person=domain.encode()[:16]).digest()


def signed_record(
    signer: ToySigner | Identity,
    sequence: int = 1,
    *,
    previous: bytes = NO_HASH,
    checkpoint: bool | None = None,
    swarm_id: bytes = NETWORK,
    epoch: int = 1,
    wall_unix_s: float = WALL_UNIX_S,
    **words: object,
) -> Opened:
    """Return a record as its author would sign it, whatever its author says."""
    record = wire.StateRecord(
        swarm_id=swarm_id,
        epoch=epoch,
        sequence=sequence,
        previous=previous,
        clock_ms=int(wall_unix_s * 1000),
        checkpoint=sequence == 1 if checkpoint is None else checkpoint,
        **words,  # type: ignore[arg-type]
    )
    return seal(record, signer)


@dataclass
class Net:
    """What happens to messages on their way."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: tuple[float, float] = (0.001, 0.001)
    groups: dict[PeerId, int] = field(default_factory=dict)  # no message between two groups


class World:
    """Nodes that are all neighbours of each other."""

    def __init__(
        self, n_nodes: int, seed: int, *, net: Net | None = None, real: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.net = net or Net()
        self.now = 1000.0
        self.seen: dict[PeerId, list[events.Effect]] = {}
        self.sent: Counter[tuple[PeerId, PeerId, bytes]] = Counter()  # records, by link
        self.messages: list[tuple[PeerId, PeerId, wire.Message]] = []
        self.journals: dict[PeerId, list[Signed]] = {}
        self.states: dict[PeerId, SharedState] = {}
        self.signers: dict[PeerId, ToySigner | Identity] = {}
        self._real = real
        self._heap: list[tuple[float, int, PeerId, PeerId, bytes]] = []
        self._n_sent = 0
        for number in range(n_nodes):
            signer = (
                Identity.from_seed(bytes([number + 1]) * 32) if real else ToySigner.make(number)
            )
            self.add(signer)
        self.connect_all()

    def add(self, signer: ToySigner | Identity, epoch: int = 1) -> SharedState:
        peer = signer.peer_id
        self.signers[peer] = signer
        self.states[peer] = SharedState(
            signer,
            NETWORK,
            epoch=epoch,
            wall_unix_s=WALL_UNIX_S,
            now=self.now,
            rng=self.rng,
            verify=verify if self._real else verify_toy,
        )
        self.seen.setdefault(peer, [])
        self.journals.setdefault(peer, [])
        return self.states[peer]

    @property
    def ids(self) -> list[PeerId]:
        return sorted(self.states)

    def connect_all(self) -> None:
        for peer in self.ids:
            for other in self.ids:
                if peer != other:
                    self.handle(peer, events.NeighbourUp(other))

    def handle(self, peer: PeerId, event: events.Event) -> None:
        self.states[peer].handle(event, self.now)
        self._drain(peer)

    def update(self, peer: PeerId, **words: object) -> None:
        self.handle(peer, events.Update(**words))  # type: ignore[arg-type]

    def restart(self, peer: PeerId, epoch: int) -> SharedState:
        """A crash: only the journal is left."""
        journal = tuple(self.journals[peer])
        state = self.add(self.signers[peer], epoch)
        self.handle(peer, events.Restored(journal))
        for other in self.ids:
            if other != peer:
                self.handle(other, events.NeighbourDown(peer))
                self.handle(other, events.NeighbourUp(peer))
                self.handle(peer, events.NeighbourUp(other))
        return state

    def run(self, until: float) -> None:
        """Deliver messages and call deadlines, in order of time."""
        while True:
            due = [(d, peer) for peer, d in self._deadlines()]
            deadline = min(due, default=(until, None))
            arrival = self._heap[0][0] if self._heap else until
            if min(deadline[0], arrival) >= until:
                self.now = max(self.now, until)
                return
            if arrival <= deadline[0]:
                self._deliver()
            elif deadline[1] is not None:
                self.now = max(self.now, deadline[0])
                self.states[deadline[1]].handle_deadline(self.now)
                self._drain(deadline[1])

    def settle(self, limit_s: float = 120.0) -> float:
        """Run until all hold the same, calm; return how long that took."""
        start = self.now
        while self.now < start + limit_s:
            self.run(self.now + 1.0)
            if len({state.digest() for state in self.states.values()}) == 1 and not self._heap:
                return self.now - start
        raise AssertionError(f"no agreement within {limit_s} s")

    def check_vectors(self) -> None:
        """Equal version vectors mean equal bytes."""
        by_vector: dict[tuple[wire.Head, ...], bytes] = {}
        for state in self.states.values():
            canonical = state.canonical()
            assert by_vector.setdefault(state.version_vector(), canonical) == canonical

    def effects(self, peer: PeerId, kind: type) -> list[events.Effect]:
        return [effect for effect in self.seen[peer] if isinstance(effect, kind)]

    def inject(
        self, sender: PeerId, receiver: PeerId, records: Iterable[Opened], age_s: int = 0
    ) -> None:
        carried = tuple(wire.Carried(opened.signed, age_s) for opened in records)
        self.handle(receiver, events.Received(sender, wire.Push(carried)))

    def _deadlines(self) -> Iterable[tuple[PeerId, float]]:
        for peer, state in self.states.items():
            deadline = state.next_deadline()
            if deadline is not None:
                yield peer, deadline

    def _drain(self, peer: PeerId) -> None:
        for effect in self.states[peer].poll_effects():
            match effect:
                case events.Send(to, message):
                    self._send(peer, to, message)
                case events.Persist(record, sequence):
                    self.journals[peer].append(record)
                    if sequence is not None:
                        self.handle(peer, events.Persisted(sequence))
                case _:
                    self.seen[peer].append(effect)

    def _send(self, sender: PeerId, to: PeerId, message: wire.Message) -> None:
        self.messages.append((sender, to, message))
        if isinstance(message, wire.Push):
            for carried in message.records:
                self.sent[sender, to, carried.record.signature] += 1
        net = self.net
        if net.groups.get(sender) != net.groups.get(to) or self.rng.random() < net.loss:
            return
        data = encode_record(message)
        for _ in range(1 + (self.rng.random() < net.duplication)):
            self._n_sent += 1
            arrival = self.now + self.rng.uniform(*net.delay_s)
            heapq.heappush(self._heap, (arrival, self._n_sent, sender, to, data))

    def _deliver(self) -> None:
        arrival, _, sender, to, data = heapq.heappop(self._heap)
        self.now = max(self.now, arrival)
        if self.net.groups.get(sender) == self.net.groups.get(to):
            self.handle(to, events.Received(sender, decode_record(data, wire.Message)))  # type: ignore[arg-type]
