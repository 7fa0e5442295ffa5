"""The core of one member by hand: its clock, claims of others, and what it did."""

from __future__ import annotations

import hashlib
import random

from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.claims import Ed25519Notary, Notary
from swarmnode.protocol.membership.health import SuspicionTimes
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.protocol.membership.swim_events import Changed, MemberState, Send
from swarmnode.wire.swim import Claim, Message, Ping, Sync

NETWORK = hashlib.sha256(b"network").digest()
PEERS = [
    Ed25519Notary(Identity.from_seed(hashlib.sha256(b"%d" % n).digest()), NETWORK) for n in range(9)
]
IDS = [PeerId.from_public_key(notary.public_key) for notary in PEERS]
SHORTEST_S = SuspicionTimes.for_swarm(9).shortest_s


def claim(
    number: int,
    epoch: int = 1,
    incarnation: int = 0,
    *,
    left: str | None = None,
    doubt: str = "none",
    by: tuple[int, ...] = (),
) -> Claim:
    signature = PEERS[number].sign(epoch, incarnation, left)
    accusers = tuple(bytes(IDS[one]) for one in by)
    key = PEERS[number].public_key
    return Claim(key, epoch, incarnation, signature, left, doubt, accusers)  # type: ignore[arg-type]


class Trusting:
    """The notary of peer 0, that takes any claim of others for signed."""

    public_key = PEERS[0].public_key
    sign = PEERS[0].sign

    def check(self, claim: Claim) -> None:
        pass


def stranger(number: int) -> tuple[PeerId, Claim]:
    """Return one of very many members, and a claim of it that no key has signed."""
    key = number.to_bytes(32, "big")
    return PeerId.from_public_key(key), Claim(key, 1, 0, bytes(64))


class Bench:
    """The core of peer 0, its clock, and what it did."""

    def __init__(
        self,
        n_members: int = 3,
        *,
        epoch: int = 1,
        notary: Notary = PEERS[0],
        rng: random.Random | None = None,
    ) -> None:
        self.core = SwimCore(notary, epoch, rng or random.Random(1))
        self.now = 100.0
        self.effects: list[events.Effect] = []
        for number in range(1, n_members):  # each says itself that it is there
            if PEERS[number] is not notary:
                self.hear(claim(number), sender=number)
        self.effects.clear()

    def feed(self, event: events.Event) -> list[events.Effect]:
        self.core.handle(event, self.now)
        new = self.core.poll_effects()
        self.effects += new
        return new

    def receive(self, number: int, message: Message) -> list[events.Effect]:
        return self.feed(events.Received(IDS[number], message))

    def hear(self, *claims: Claim, sender: int = 1) -> list[events.Effect]:
        return self.receive(sender, Sync(wants_reply=False, claims=claims))

    def advance(self, seconds: float) -> list[events.Effect]:
        """Let deadlines pass, each exactly when it is due."""
        until = self.now + seconds
        new: list[events.Effect] = []
        for _ in range(1000):
            due = self.core.next_deadline()
            if due is None or due > until:
                self.now = until
                return new
            new += self.step(due)
        raise AssertionError("deadlines without end")

    def step(self, due: float) -> list[events.Effect]:
        self.now = due
        self.core.handle_deadline(due)
        effects = self.core.poll_effects()
        self.effects += effects
        return effects

    def next_ping(self) -> tuple[PeerId, Ping]:
        """Go on until the core probes a peer."""
        for _ in range(100):
            due = self.core.next_deadline()
            assert due is not None
            for effect in self.step(due):
                if isinstance(effect, Send) and isinstance(effect.message, Ping):
                    return effect.peer, effect.message
        raise AssertionError("no probe")

    def state(self, number: int) -> MemberState | None:
        return self.core.state_of(IDS[number])


def sent(effects: list[events.Effect], kind: type) -> list[tuple[PeerId, Message]]:
    return [(e.peer, e.message) for e in effects if isinstance(e, Send) if type(e.message) is kind]


def changes(effects: list[events.Effect]) -> list[Changed]:
    return [effect for effect in effects if isinstance(effect, Changed)]


def made_up(number: int, epoch: int = 1) -> Claim:
    """A claim of a key that a liar holds, at which no node is."""
    notary = Ed25519Notary(Identity.from_seed(hashlib.sha256(b"x%d" % number).digest()), NETWORK)
    return Claim(notary.public_key, epoch, 0, notary.sign(epoch, 0, None))
