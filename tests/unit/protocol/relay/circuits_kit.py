"""A relay's core with what tests do to it, and one with peers that all have a place."""

from __future__ import annotations

from collections import Counter

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.relay import events
from swarmnode.protocol.relay.accounts import Quota
from swarmnode.protocol.relay.core import RelayCore
from swarmnode.protocol.uplink import Line
from swarmnode.wire.connect.relay import Granted, Refusal

UNLIMITED = Quota(
    bytes_per_s=None, peer_bytes_per_s=None, bytes_per_day=None, peer_bytes_per_day=None
)
PIECE = limits.RELAY_PIECE_BYTES


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


A, B, C = peer(1), peer(2), peer(3)


class Relay:
    """A core, with what every test does to it."""

    def __init__(self, quota: Quota = UNLIMITED) -> None:
        self.line = Line()
        self.core = RelayCore(b"s" * 32, quota, self.line)
        self.now = 0.0
        self.command = 0
        self.leg = 0

    def feed(self, event: events.Event) -> list[events.Effect]:
        self.core.handle(event, self.now)
        return self.core.poll_effects()

    def reserve(self, who: PeerId, host: str = "", *, is_release: bool = False) -> object:
        self.command += 1
        (effect,) = self.feed(events.ReserveAsked(self.command, who, host, is_release))
        assert isinstance(effect, events.Answered)
        assert effect.command == self.command
        return effect.answer

    def ask(self, source: PeerId, target: PeerId) -> events.Effect:
        """Return the offer or the refusal."""
        self.command += 1
        (effect,) = self.feed(events.ConnectAsked(self.command, source, target))
        return effect

    def refusal(self, source: PeerId, target: PeerId) -> Refusal:
        effect = self.ask(source, target)
        assert isinstance(effect, events.Answered), effect
        assert isinstance(effect.answer, Refusal)
        return effect.answer

    def grant(self, source: PeerId, target: PeerId) -> tuple[int, bytes, bytes]:
        """Return (circuit, the source's token, the target's)."""
        offer = self.ask(source, target)
        assert isinstance(offer, events.Offer), offer
        (effect,) = self.feed(events.OfferAnswered(offer.circuit, None))
        assert isinstance(effect, events.Answered)
        assert isinstance(effect.answer, Granted)
        return offer.circuit, effect.answer.token, offer.token

    def attach(self, token: bytes, who: PeerId | None = None) -> list[events.Effect]:
        self.leg += 1
        return self.feed(events.Attached(self.leg, token, who))

    def open(self, source: PeerId, target: PeerId) -> int:
        circuit, ours, theirs = self.grant(source, target)
        assert self.attach(ours) == []
        assert self.attach(theirs) == [events.Joined(circuit, (self.leg - 1, self.leg))]
        return circuit

    def advance(self, to: float) -> list[events.Effect]:
        """Let time pass, deadline by deadline."""
        effects = []
        while (deadline := self.core.next_deadline()) is not None and deadline <= to:
            self.now = max(self.now, deadline)
            self.core.handle_deadline(self.now)
            effects += self.core.poll_effects()
        self.now = to
        return effects


class Crowd(Relay):
    """A relay with so many circuits, and peers that all have a place."""

    def __init__(self, circuits_max: int, peers: int = 40) -> None:
        super().__init__(Quota(circuits_max=circuits_max, bytes_per_s=None, peer_bytes_per_s=None))
        self.pairs: dict[int, tuple[int, int]] = {}
        for number in range(peers):
            self.reserve(peer(number), self.host(number))

    @staticmethod
    def host(number: int) -> str:
        return f"192.0.2.{number}" if number < 100 else "198.51.100.7"

    def connect(self, one: int, other: int) -> list[events.Effect]:
        """Let two peers have a circuit, used at once; return what was closed or refused."""
        self.now += 1.0
        self.command += 1
        asked = events.ConnectAsked(self.command, peer(one), peer(other), self.host(one))
        (effect,) = self.feed(asked)
        if not isinstance(effect, events.Offer):
            return [effect]
        (answered,) = self.feed(events.OfferAnswered(effect.circuit, None))
        assert isinstance(answered, events.Answered)
        assert isinstance(answered.answer, Granted)
        self.attach(answered.answer.token)
        effects = self.attach(effect.token)
        for each in effects:
            if isinstance(each, events.Joined):
                self.pairs[each.circuit] = one, other
            elif isinstance(each, events.CircuitClosed):
                del self.pairs[each.circuit]
        return [each for each in effects if not isinstance(each, events.Joined)]

    def use_all(self) -> None:
        """Let an exchange pass over each circuit."""
        for number in self.pairs:
            assert self.core.try_pass(number, PIECE, self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass with all circuits used."""
        self.advance(self.now + seconds)
        self.use_all()

    def degrees(self) -> Counter[int]:
        return Counter(number for pair in self.pairs.values() for number in pair)
