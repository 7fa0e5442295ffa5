"""What a relay decides: which peers get a circuit, whose turn it is, and what it forgets."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from swarmnode import limits
from swarmnode.protocol.relay import events
from swarmnode.protocol.relay.accounts import RELAY_ACCOUNTS_MAX, RELAY_CONNECTS_BURST, Quota
from swarmnode.protocol.relay.core import RELAY_CONNECTS_ALL_BURST, RelayCore
from swarmnode.protocol.uplink import Line
from swarmnode.wire.connect.relay import LegAnswer, Refusal, Reserved
from tests.unit.protocol.relay.circuits_kit import PIECE, UNLIMITED, A, B, C, Crowd, Relay, peer

# --- reservations -----------------------------------------------------------------------------


def test_a_reservation_ends_with_its_time_its_session_or_a_word() -> None:
    relay = Relay()
    granted = Reserved(int(limits.RELAY_RESERVATION_S), load=1, circuits=16)
    assert relay.reserve(B) == granted
    relay.now = limits.RELAY_RESERVATION_S - 1
    assert relay.reserve(B) == granted
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


def test_an_office_is_placed_and_one_machine_with_many_keys_does_not_take_a_large_relay() -> None:
    relay = Relay(Quota(reservations_max=200))
    for number in range(64):
        assert isinstance(relay.reserve(peer(100 + number), "192.0.2.1"), Reserved)
    refusal = relay.reserve(peer(200), "192.0.2.1")
    assert isinstance(refusal, Refusal)
    assert refusal.code == "full"
    assert "64 reservations from your address" in refusal.reason
    assert isinstance(relay.reserve(peer(100), "192.0.2.1"), Reserved), "renewing takes no room"


def test_places_that_are_all_taken_are_shared_anew_between_addresses() -> None:
    relay = Relay(Quota(reservations_max=12))
    for number in range(12):
        assert isinstance(relay.reserve(peer(100 + number), "192.0.2.1"), Reserved)
    assert isinstance(relay.reserve(peer(200), "192.0.2.1"), Refusal), "it has all of them"
    for number in range(6):
        relay.command += 1
        asked = events.ReserveAsked(relay.command, peer(300 + number), "192.0.2.2")
        lost, answered = relay.feed(asked)
        assert isinstance(lost, events.PlaceLost)
        assert lost.peer == peer(111 - number), "the newest of the crowd"
        assert isinstance(answered, events.Answered)
        assert isinstance(answered.answer, Reserved)
    assert isinstance(relay.reserve(peer(310), "192.0.2.2"), Refusal), "both have six"
    assert isinstance(relay.reserve(peer(300), "192.0.2.2"), Reserved), "renewing takes no room"
    lost, _answered = relay.feed(events.ReserveAsked(99, peer(400), "192.0.2.3"))
    assert isinstance(lost, events.PlaceLost)
    assert relay.core.statistics().reservations == 12


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


def test_who_waits_for_a_target_that_leaves_is_told_at_once() -> None:
    relay = Relay()
    relay.reserve(B)
    relay.reserve(C)
    assert isinstance(relay.ask(A, B), events.Offer)
    assert isinstance(relay.ask(A, C), events.Offer)
    (effect,) = relay.feed(events.PeerGone(B))
    refusal = Refusal("absent", "the target has just left")
    assert effect == events.Answered(relay.command - 1, refusal)


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
    relay.now = 9999.0
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


def test_a_relay_without_a_bound_of_its_own_keeps_to_the_line_from_the_first_second_on() -> None:
    relay = Relay()
    relay.line.limit(10e6)
    relay.reserve(B)
    circuit = relay.open(A, B)
    moved = move(relay, {(circuit, 0): PIECE}, 0.8)
    assert 8e6 <= moved[circuit] < 11e6, "what came in a quarter of a second passes at once"


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


# --- shares ---------------------------------------------------------------------------------------


def test_a_newcomer_displaces_the_surplus_of_those_that_have_many() -> None:
    relay = Crowd(12)
    for one in range(4):  # four peers, each with the three others twice
        for other in range(one + 1, 4):
            assert relay.connect(one, other) == relay.connect(other, one) == []
    assert relay.degrees() == {0: 6, 1: 6, 2: 6, 3: 6}
    relay.wait(limits.RELAY_HOLD_S)
    for newcomer in range(4, 8):
        (closed,) = relay.connect(newcomer, newcomer - 4)
        assert isinstance(closed, events.CircuitClosed)
    degrees = relay.degrees()
    assert all(degrees[newcomer] == 1 for newcomer in range(4, 8))
    assert sum(degrees.values()) == 24


def test_all_that_ask_have_about_as_many_circuits_in_the_end() -> None:
    """The first eight take everything; then 24 others come, and all ask at random."""
    relay, rng = Crowd(48), random.Random(7)
    while relay.core.statistics().circuits_open < 48:
        relay.connect(*rng.sample(range(8), 2))
    changes = 0
    for _ in range(600):
        relay.wait(2.0)
        effects = relay.connect(*rng.sample(range(32), 2))
        changes += any(isinstance(each, events.CircuitClosed) for each in effects)
    degrees = relay.degrees()
    assert set(degrees) == set(range(32))
    assert max(degrees.values()) - min(degrees.values()) <= 2
    squares = sum(each**2 for each in degrees.values())
    assert sum(degrees.values()) ** 2 / (32 * squares) >= 0.95
    assert changes < 120, "it comes to rest"


def test_a_circuit_is_held_for_a_while_and_a_spare_one_goes_first() -> None:
    relay = Crowd(3)
    for other in (1, 2, 3):
        relay.connect(0, other)
    (refused,) = relay.connect(4, 5)
    assert isinstance(refused, events.Answered), "each was opened just now"
    relay.wait(limits.RELAY_HOLD_S)
    relay.now += limits.RELAY_SPARE_S
    relay.core.try_pass(1, PIECE, relay.now)
    relay.core.try_pass(2, limits.RELAY_WORD_BYTES_MAX, relay.now)  # a ping is no use
    relay.core.try_pass(3, PIECE, relay.now)
    (closed,) = relay.connect(4, 5)
    assert isinstance(closed, events.CircuitClosed)
    assert closed.circuit == 2


def test_a_question_alone_takes_no_circuit_from_others() -> None:
    relay = Crowd(2)
    relay.connect(0, 1)
    relay.connect(0, 1)
    relay.wait(limits.RELAY_HOLD_S)
    offer = relay.ask(peer(4), peer(5))
    assert isinstance(offer, events.Offer)
    relay.feed(events.OfferAnswered(offer.circuit, None))
    relay.advance(relay.now + limits.RELAY_SETUP_S)
    assert relay.core.statistics().circuits_open == 2
    assert relay.degrees() == {0: 2, 1: 2}


def test_only_so_many_may_wait_for_the_places_of_others_at_once() -> None:
    relay = Crowd(2)
    relay.connect(0, 1)
    relay.connect(0, 1)
    relay.wait(limits.RELAY_HOLD_S)
    for number in range(2, 2 + limits.RELAY_OVERBOOKED_MAX):
        assert isinstance(relay.ask(peer(number), peer(number + 1)), events.Offer)
    assert relay.refusal(peer(30), peer(31)).reason == "no room for another circuit"


def test_keys_of_one_machine_do_not_fill_a_relay_among_themselves() -> None:
    """62 keys behind one address, a circuit each, against two peers that have none."""
    relay = Crowd(31, peers=2)
    for number in range(100, 162):
        relay.reserve(peer(number), relay.host(number))
    for number in range(100, 162, 2):
        assert relay.connect(number, number + 1) == []
    assert relay.core.statistics().circuits_open == 31
    relay.wait(limits.RELAY_HOLD_S)
    (closed,) = relay.connect(0, 1)
    assert isinstance(closed, events.CircuitClosed)
    assert relay.degrees()[0] == 1


def test_a_relay_tells_how_much_is_taken_and_what_each_may_have() -> None:
    relay = Crowd(20, peers=10)
    answer = relay.reserve(peer(0), "192.0.2.0")
    assert isinstance(answer, Reserved)
    assert (answer.load, answer.circuits) == (15, 4)
    for other in range(1, 10):
        relay.connect(0, other)
    answer = relay.reserve(peer(0), "192.0.2.0")
    assert isinstance(answer, Reserved)
    assert (answer.load, answer.circuits) == (45, 4)
