"""S1: thousands of nodes made of real cores, on one seeded heap of events.

A *part* joins one core to a simulated node; a node has any number of parts, told apart by
the name of their service. The world carries messages between parts of one service and wakes
each part at its deadline. Nothing else happens, so a run follows from its seed alone: the
digest of all deliveries and reports is equal for equal seeds, in any process.

To let another core join: subclass :class:`Part` (``receive`` feeds the core, ``carry_out``
does one effect) and add it in what makes the nodes (``testing/simulate.py``).
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarmnode.errors import AuthenticationFailed, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.core import Core
from swarmnode.protocol.identity import Signer
from swarmnode.testing.net_model import NetworkModel, Place, Weather
from swarmnode.wire.packing import decode_record, encode_record

_HOUSEKEEPING_S = 30.0
_DELIVERY = struct.Struct(">dII")


class Part(ABC):
    """One core of one node and the shell that it would have; see the module's text.

    Args:
        as_bytes: encode and decode every message, as a real shell does.
    """

    service: str  # class attribute: equal on all nodes that talk to each other
    message_type: Any  # class attribute: the union that bytes are decoded to
    core: Core[Any, Any, Any]

    def __init__(self, node: Node, *, as_bytes: bool = False) -> None:
        self.node = node
        self.wake_at = math.inf  # the world's: when its core is woken next
        self.as_bytes = as_bytes

    @abstractmethod
    def start(self, now: float) -> None:
        """Feed the core what it needs to begin."""

    @abstractmethod
    def receive(self, source: PeerId, message: Any, observed: str, now: float) -> None:
        """Feed the core a message; ``observed`` is the address that it came from."""

    @abstractmethod
    def carry_out(self, effect: Any, now: float) -> None:
        """Do one effect of the core."""

    def pack(self, message: Any) -> Any:
        """Return the bytes that travel."""
        return encode_record(message)

    def unpack(self, message: Any) -> Any:
        """Return the message that arrived as bytes."""
        return decode_record(message, self.message_type)

    def feed(self, event: Any, now: float) -> None:
        """Give the core an event and do what follows."""
        self.core.handle(event, now)
        self.node.world.settle(self, now)


@dataclass(eq=False)
class Node:
    """One simulated node. Its number is never used again, nor is its identity."""

    world: World
    number: int
    place: Place
    signer: Signer
    rng: random.Random
    started_at: float
    is_up: bool = True
    parts: dict[str, Part] = field(default_factory=dict)
    peer_id: PeerId = field(init=False)

    def __post_init__(self) -> None:
        self.peer_id = self.signer.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it says that it can be dialled: most know that behind a NAT they cannot."""
        return (self.place.address,) if self.place.claims_address else ()

    def send(
        self,
        part: Part,
        target: PeerId,
        message: Any,
        *,
        anew: bool = False,
        by_relay: bool = False,
        is_open: bool = False,
    ) -> None:
        """Put a message to the same service of another node on its way.

        Whether it arrives is the network's business; NetworkModel says what the ways mean.
        """
        world = self.world
        node = world.find(target)
        if node is None:
            return
        now = world.now
        delay_s = world.network.delay_s(
            self.number, node.number, now, anew=anew, by_relay=by_relay, is_open=is_open
        )
        if delay_s is not None and node.is_up:
            packed = part.pack(message) if part.as_bytes else message
            world.at(now + delay_s, world.deliver, self, node, part.service, packed)


class World:
    """Nodes, the network between them, and all that is going to happen."""

    def __init__(
        self,
        seed: int,
        weather: Weather,
        make_signer: Callable[[bytes], Signer],
        make_parts: Callable[[Node], list[Part]],
    ) -> None:
        self.now = 0.0
        self.seed = seed
        self.rng = random.Random(f"world/{seed}")
        self.network = NetworkModel(random.Random(f"network/{seed}"), weather)
        self.nodes: list[Node] = []
        self.up: dict[int, Node] = {}
        self.deliveries = 0
        self.violations: list[str] = []
        self._make_signer = make_signer
        self._make_parts = make_parts
        self._by_peer: dict[PeerId, Node] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._log = bytearray()  # what has happened since, not yet in the hash
        self.at(_HOUSEKEEPING_S, self._keep_house)

    # --- time ---------------------------------------------------------------------------

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Let something happen; what is set for one time happens in the order of setting."""
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, what, args))

    def run(self, until: float) -> None:
        """Let everything happen that is set for times up to ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, what, args = heapq.heappop(heap)
            what(*args)
        self.now = until

    # --- nodes --------------------------------------------------------------------------

    def boot(self, *, is_nated: bool = False, is_unaware: bool = False) -> Node:
        """Start one more node, perhaps behind a NAT, perhaps one that it does not know of."""
        number, place = self.network.attach(is_nated=is_nated, is_unaware=is_unaware)
        seed = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        rng = random.Random(f"node/{self.seed}/{number}")
        node = Node(self, number, place, self._make_signer(seed), rng, self.now)
        self.nodes.append(node)
        self.up[number] = node
        self._by_peer[node.peer_id] = node
        for part in self._make_parts(node):
            node.parts[part.service] = part
        for part in node.parts.values():
            part.start(self.now)
            self.settle(part, self.now)
        self.report(node, "boot")
        return node

    def kill(self, node: Node) -> None:
        """Let a node vanish without a word, for good."""
        node.is_up = False
        del self.up[node.number]
        self.network.detach(node.number)
        for part in node.parts.values():
            part.wake_at = math.inf
        node.parts = {}
        self.report(node, "kill")

    def node_of(self, peer: PeerId) -> Node:
        """Return the node with this id, up or not."""
        return self._by_peer[peer]

    # --- what parts use -----------------------------------------------------------------

    def find(self, peer: PeerId) -> Node | None:
        """Return the node with this id, up or not; None: there never was one."""
        return self._by_peer.get(peer)

    def settle(self, part: Part, now: float) -> None:
        """Do what a core wants done, and wake it when it wants to be woken."""
        core = part.core
        for effect in core.poll_effects():
            part.carry_out(effect, now)
        deadline = core.next_deadline()
        if deadline is not None and deadline < part.wake_at:
            part.wake_at = deadline
            self.at(deadline if deadline > now else now, self._wake, part, deadline)

    def report(self, node: Node, what: str, *details: object) -> None:
        """Let something that a node did count in the digest."""
        self._log += f"{self.now!r} {node.number} {what} {details!r}\n".encode()

    def violated(self, invariant: str, node: Node, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(
            f"t={self.now:.3f}s {invariant} violated at node {node.number}: {what}"
        )

    def digest(self) -> str:
        """Return a hash of everything that has happened so far."""
        self._hash_log()
        return self._hash.copy().hexdigest()

    def deliver(self, source: Node, target: Node, service: str, message: Any) -> None:
        """Let a message arrive."""
        part = target.parts.get(service)
        if part is None:  # the node died meanwhile, or does not offer this
            return
        now = self.now
        self.deliveries += 1
        self._log += _DELIVERY.pack(now, source.number, target.number)
        try:
            if part.as_bytes:
                message = part.unpack(message)
            part.receive(source.peer_id, message, source.place.address, now)
        except RemoteProtocolError as error:
            self.violated("I3", target, f"an honest node's message was refused: {error}")
        self.settle(part, now)

    # --- inside -------------------------------------------------------------------------

    def _wake(self, part: Part, deadline: float) -> None:
        if part.wake_at != deadline:
            return  # it died, or was woken earlier
        part.wake_at = math.inf
        due, now = part.core.next_deadline(), self.now
        if due is not None and due > now:  # what it was to be woken for has been settled
            part.wake_at = due
            self.at(due, self._wake, part, due)
            return
        part.core.handle_deadline(now)
        self.settle(part, now)

    def _hash_log(self) -> None:
        self._hash.update(self._log)
        self._log.clear()

    def _keep_house(self) -> None:
        self._hash_log()
        self.network.close_idle(self.now)
        self.at(self.now + _HOUSEKEEPING_S, self._keep_house)


@dataclass(frozen=True)
class ToyIdentity:
    """Stands in for :class:`swarmnode.protocol.identity.Identity`."""

    public_key: bytes
    peer_id: PeerId

    @classmethod
    def from_seed(cls, seed: bytes) -> ToyIdentity:
        """Return the same identity for the same 32 bytes."""
        public_key = hashlib.sha256(b"toy\0" + seed).digest()
        return cls(public_key, PeerId.from_public_key(public_key))

    def sign(self, domain: str, body: bytes) -> bytes:
        """Return 64 bytes that follow from the public key, the domain and the body."""
        return _signature(self.public_key, domain, body)


def toy_verify(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
    """Check a toy signature. Raises AuthenticationFailed that names ``what`` was forged."""
    if _signature(public_key, domain, body) != signature:
        raise AuthenticationFailed(f"{what}: the signature does not match its key")


def _signature(public_key: bytes, domain: str, body: bytes) -> bytes:
    return hashlib.blake2b(domain.encode() + b"\0" + body, key=public_key).digest()
