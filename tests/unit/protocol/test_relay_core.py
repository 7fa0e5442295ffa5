"""What a relay decides: which peers get a circuit, whose turn it is, and what it forgets."""

from __future__ import annotations

from collections import Counter

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.relay import events
from swarmnode.protocol.relay.accounts import RELAY_ACCOUNTS_MAX, RELAY_CONNECTS_BURST, Quota
from swarmnode.protocol.relay.core import RELAY_CONNECTS_ALL_BURST, RelayCore
from swarmnode.protocol.uplink import Line
from swarmnode.wire.connect.relay import Granted, LegAnswer, Refusal, Reserved

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
        self.core = RelayCore(b"s" * 32, quota, Line())
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


# --- reservations -----------------------------------------------------------------------------


def test_a_reservation_ends_with_its_time_its_session_or_a_word() -> None:
    relay = Relay()
    assert relay.reserve(B) == Reserved(int(limits.RELAY_RESERVATION_S))
    relay.now = limits.RELAY_RESERVATION_S - 1
    assert relay.reserve(B) == Reserved(int(limits.RELAY_RESERVATION_S))
    relay.advance(relay.now + limits.RELAY_RESERVATION_S - 1)
    assert relay.core.statistics().reservations == 1
    relay.advance(relay.now + 2)
    assert relay.core.statistics().reservations == 0
    relay.reserve(B)
    assert relay.reserve(B, is_release=True) == Reserved(0)
    assert relay.refusal(A, B).code == "absent"
    relay.reserve(B)
    relay.feed(events.PeerGone(B))
    assert relay.refusal(A, B).code == "absent"


def test_reservations_are_bounded_and_one_household_cannot_take_them_all() -> None:
    relay = Relay(Quota(reservations_max=12))
    for number in range(limits.RELAY_RESERVATIONS_PER_HOST_MAX):
        assert isinstance(relay.reserve(peer(100 + number), "192.0.2.1"), Reserved)
    refusal = relay.reserve(peer(200), "192.0.2.1")
    assert isinstance(refusal, Refusal)
    assert refusal.code == "full"
    assert "8 reservations from your address" in refusal.reason
    for number in range(4):
        assert isinstance(relay.reserve(peer(300 + number), "192.0.2.2"), Reserved)
    assert isinstance(relay.reserve(peer(400), "192.0.2.3"), Refusal)
    assert isinstance(relay.reserve(peer(300), "192.0.2.2"), Reserved), "renewing takes no room"


# --- setting up -------------------------------------------------------------------------------


def test_only_peers_with_a_reservation_are_reached_and_none_reaches_itself() -> None:
    relay = Relay()
    assert relay.refusal(A, B).code == "absent"
    relay.reserve(A)
    assert relay.refusal(A, A).code == "absent"


def test_a_target_may_decline_and_may_be_silent() -> None:
    relay = Relay()
    relay.reserve(B)
    offer = relay.ask(A, B)
    assert isinstance(offer, events.Offer)
    (effect,) = relay.feed(events.OfferAnswered(offer.circuit, "busy"))
    assert isinstance(effect, events.Answered)
    assert effect.answer == Refusal("declined", "busy")
    assert isinstance(relay.ask(A, B), events.Offer)
    (effect,) = relay.advance(relay.now + limits.RELAY_SETUP_S)
    assert isinstance(effect, events.Answered)
    assert isinstance(effect.answer, Refusal)
    assert effect.answer.code == "setup"
    assert relay.feed(events.OfferAnswered(offer.circuit, None)) == [], "too late"


def test_who_comes_alone_is_told_so() -> None:
    relay = Relay()
    relay.reserve(B)
    _, ours, theirs = relay.grant(A, B)
    assert relay.attach(ours) == []
    assert relay.advance(limits.RELAY_SETUP_S) == [events.LegRefused(1, LegAnswer.ALONE)]
    assert relay.attach(theirs) == [events.LegRefused(2, LegAnswer.UNKNOWN)]
    assert relay.core.next_deadline() == limits.RELAY_RESERVATION_S


def test_a_leg_that_goes_away_while_it_waits_ends_the_circuit() -> None:
    relay = Relay()
    relay.reserve(B)
    _, ours, theirs = relay.grant(A, B)
    relay.attach(ours)
    assert relay.feed(events.LegGone(1)) == [events.LegRefused(1, LegAnswer.CLOSED)]
    assert relay.attach(theirs) == [events.LegRefused(2, LegAnswer.UNKNOWN)]


def test_a_token_counts_once_and_only_for_its_peer() -> None:
    relay = Relay()
    relay.reserve(B)
    circuit, ours, theirs = relay.grant(A, B)
    assert relay.attach(ours, A) == []
    assert relay.attach(ours, A) == [events.LegRefused(2, LegAnswer.UNKNOWN)]
    assert relay.attach(bytes(16)) == [events.LegRefused(3, LegAnswer.UNKNOWN)]
    assert relay.attach(theirs, C) == [events.LegRefused(4, LegAnswer.UNKNOWN)]
    assert relay.attach(theirs, B) == [events.LegRefused(5, LegAnswer.UNKNOWN)], "it was shown"
    assert circuit == 1


def test_tokens_differ_and_depend_on_the_secret() -> None:
    tokens = set()
    for secret in (b"s" * 32, b"t" * 32):
        relay = Relay()
        relay.core = RelayCore(secret, UNLIMITED, Line())
        relay.reserve(B)
        for _ in range(3):
            tokens |= set(relay.grant(A, B)[1:])
    assert len(tokens) == 12


def test_circuits_are_bounded_for_one_peer_and_in_all() -> None:
    relay = Relay(Quota(circuits_max=20, bytes_per_s=None, peer_bytes_per_s=None))
    for number in range(5):
        relay.reserve(peer(50 + number))
    for number in range(limits.RELAY_CIRCUITS_PER_PEER_MAX):
        relay.open(A, peer(50 + number % 5))
    assert relay.refusal(A, peer(50)).reason == "you have 16 circuits here"
    for number in range(4):
        relay.open(peer(60 + number), peer(50))
    assert relay.refusal(C, peer(50)).reason == "no room for another circuit"


def test_questions_are_rate_limited_for_one_peer_and_for_all() -> None:
    relay = Relay()
    codes = Counter(relay.refusal(A, B).code for _ in range(100))
    assert codes == {"absent": RELAY_CONNECTS_BURST + 1, "rate": 67}
    refusal = relay.refusal(A, B)
    relay.now += refusal.retry_s
    assert relay.refusal(A, B).code == "absent"
    codes = Counter(relay.refusal(peer(100 + n), B).code for n in range(10_000))
    assert codes["absent"] <= RELAY_CONNECTS_ALL_BURST
    assert relay.core.statistics().accounts <= RELAY_ACCOUNTS_MAX


def test_accounts_of_a_flood_are_forgotten_once_they_are_settled() -> None:
    relay = Relay()
    for number in range(RELAY_ACCOUNTS_MAX + 50):
        relay.now += 0.1
        relay.refusal(peer(1000 + number), B)
        assert relay.core.statistics().accounts <= RELAY_ACCOUNTS_MAX
    assert relay.core.statistics().accounts < 100


# --- bytes --------------------------------------------------------------------------------------


def test_a_share_that_is_used_up_ends_the_circuit_and_refuses_the_next() -> None:
    volume = 100 * PIECE
    relay = Relay(
        Quota(
            bytes_per_s=None, peer_bytes_per_s=None, bytes_per_day=None, peer_bytes_per_day=volume
        )
    )
    relay.reserve(B)
    circuit = relay.open(A, B)
    n_passed = 0
    while relay.core.try_pass(circuit, PIECE, relay.now):
        n_passed += 1
    assert n_passed == 101
    (effect,) = relay.feed(events.Waiting(circuit, 0, PIECE))
    assert isinstance(effect, events.CircuitClosed)
    assert "share of bytes" in effect.why
    refusal = relay.refusal(A, B)
    assert refusal.code == "quota"
    assert 3600 <= refusal.retry_s <= 2 * 3600, "an hour's part must be there"
    assert isinstance(relay.ask(C, B), events.Offer), "others have a share of their own"
    relay.now += refusal.retry_s
    relay.reserve(B)
    assert isinstance(relay.ask(A, B), events.Offer)


def test_silence_and_age_end_a_circuit() -> None:
    relay = Relay()
    relay.reserve(B)
    circuit = relay.open(A, B)
    relay.now = 100.0
    assert relay.core.try_pass(circuit, 1, relay.now)
    assert relay.advance(100 + limits.RELAY_IDLE_S - 1) == []
    (effect,) = relay.advance(100 + limits.RELAY_IDLE_S)
    assert effect == events.CircuitClosed(circuit, "nothing came for 120 s")
    assert not relay.core.try_pass(circuit, 1, relay.now)
    circuit = relay.open(A, B)
    ended: list[events.Effect] = []
    began_at = relay.now
    while not ended:
        relay.core.try_pass(circuit, 1, relay.now)
        ended = relay.advance(relay.now + 60)
    assert ended == [events.CircuitClosed(circuit, "it is 6 hours old")]
    assert relay.now - began_at == pytest.approx(limits.RELAY_CIRCUIT_S, abs=60)


def move(relay: Relay, pieces: dict[tuple[int, int], int], seconds: float) -> Counter[int]:
    """Let every direction send pieces of its size as fast as it may; return bytes by circuit."""
    moved: Counter[int] = Counter()
    end = relay.now + seconds
    ready = list(pieces)
    while relay.now < end:
        while ready:
            circuit, side = ready.pop(0)
            n_bytes = pieces[circuit, side]
            moved[circuit] += n_bytes
            if relay.core.try_pass(circuit, n_bytes, relay.now):
                ready.append((circuit, side))
                continue
            for effect in relay.feed(events.Waiting(circuit, side, n_bytes)):
                assert isinstance(effect, events.Passed)
                ready.append((effect.circuit, effect.side))
        deadline = relay.core.next_deadline()
        assert deadline is not None
        for effect in relay.advance(min(end, deadline)):
            assert isinstance(effect, events.Passed)
            ready.append((effect.circuit, effect.side))
    return moved


def test_bandwidth_is_shared_evenly_whatever_the_size_of_the_pieces() -> None:
    relay = Relay(
        Quota(
            bytes_per_s=1_000_000,
            peer_bytes_per_s=None,
            bytes_per_day=None,
            peer_bytes_per_day=None,
        )
    )
    relay.reserve(B)
    one, two, three = (relay.open(peer(10 + n), B) for n in range(3))
    pieces = {(one, 0): PIECE, (one, 1): 50_000, (two, 0): PIECE // 2, (three, 0): 10_000}
    moved = move(relay, pieces, 200.0)
    assert sum(moved.values()) == pytest.approx(204e6, rel=0.01)
    fair = sum(moved.values()) / 3
    assert all(n_bytes == pytest.approx(fair, rel=0.05) for n_bytes in moved.values())


def test_a_peer_at_its_own_limit_holds_up_no_other() -> None:
    relay = Relay(
        Quota(
            bytes_per_s=3_000_000,
            peer_bytes_per_s=1_000_000,
            bytes_per_day=None,
            peer_bytes_per_day=None,
        )
    )
    relay.reserve(B)
    greedy = [relay.open(A, B) for _ in range(8)]
    modest = relay.open(C, B)
    moved = move(relay, {(circuit, 0): PIECE for circuit in [*greedy, modest]}, 100.0)
    assert sum(moved[circuit] for circuit in greedy) == pytest.approx(104e6, rel=0.03)
    assert moved[modest] == pytest.approx(104e6, rel=0.03)


def test_what_waits_of_a_circuit_that_is_over_is_forgotten() -> None:
    relay = Relay(
        Quota(
            bytes_per_s=10_000, peer_bytes_per_s=None, bytes_per_day=None, peer_bytes_per_day=None
        )
    )
    relay.reserve(B)
    one, two = relay.open(A, B), relay.open(C, B)
    assert relay.core.try_pass(one, PIECE, relay.now)
    assert relay.feed(events.Waiting(one, 0, PIECE)) == []
    assert relay.core.try_pass(two, 0, relay.now) is False, "no circuit overtakes"
    assert relay.feed(events.Waiting(two, 0, 100)) == []
    assert relay.feed(events.CircuitEnded(one)) == [
        events.CircuitClosed(one, "one side has closed it")
    ]
    assert relay.advance(relay.now + 300.0)[0] == events.Passed(two, 0)
