"""Where each limit of a relay lies, what is said to whom there, and which circuit gives way."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.protocol.relay import RelayStatistics, events
from swarmnode.protocol.relay.accounts import RELAY_CONNECTS_BURST, RELAY_CONNECTS_PER_S, Quota
from swarmnode.protocol.relay.core import RELAY_CONNECTS_ALL_BURST
from swarmnode.wire.connect.relay import Granted, LegAnswer, Refusal, Reserved
from tests.unit.protocol.relay.circuits_kit import PIECE, A, B, C, Crowd, Relay, peer

DAY_S, HOUR_S = 86_400, 3600
RESERVATION_S = limits.RELAY_RESERVATION_S


def quota(
    *,
    circuits_max: int = limits.RELAY_CIRCUITS_MAX,
    bytes_per_s: float | None = None,
    peer_bytes_per_s: float | None = None,
    bytes_per_day: float | None = None,
    peer_bytes_per_day: float | None = None,
) -> Quota:
    return Quota(
        circuits_max=circuits_max,
        bytes_per_s=bytes_per_s,
        peer_bytes_per_s=peer_bytes_per_s,
        bytes_per_day=bytes_per_day,
        peer_bytes_per_day=peer_bytes_per_day,
    )


# --- what it tells ----------------------------------------------------------------------------


def test_everything_that_a_relay_does_is_counted() -> None:
    relay = Relay()
    relay.reserve(B)
    relay.reserve(C)
    circuit = relay.open(A, B)
    relay.grant(A, C)
    relay.refusal(B, A)
    relay.refusal(B, B)
    assert relay.core.try_pass(circuit, 1000, 0.0)
    assert relay.core.try_pass(circuit, 234, 0.0)
    assert relay.core.statistics() == RelayStatistics(
        reservations=2,
        circuits_open=1,
        accounts=2,
        circuits_total=2,
        refused_total={"absent": 2},
        relayed_bytes=1234,
    )
    relay.feed(events.CircuitEnded(circuit))
    assert relay.core.statistics().circuits_open == 0
    assert relay.core.statistics().circuits_total == 2
    assert (relay.core.has_reservation(B), relay.core.has_reservation(A)) == (True, False)


@pytest.mark.parametrize(
    ("bytes_per_s", "peer_bytes_per_s", "told"),
    [(None, None, 0), (2000.5, None, 2000), (None, 1000.0, 1000), (2000.0, 1000.0, 1000)],
)
def test_a_grant_tells_the_bandwidth_and_that_a_leg_may_look_like_tls(
    bytes_per_s: float | None, peer_bytes_per_s: float | None, told: int
) -> None:
    relay = Relay(quota(bytes_per_s=bytes_per_s, peer_bytes_per_s=peer_bytes_per_s))
    relay.reserve(B)
    offer = relay.ask(A, B)
    assert isinstance(offer, events.Offer)
    assert (offer.source, offer.target) == (A, B)
    (effect,) = relay.feed(events.OfferAnswered(offer.circuit, None))
    assert isinstance(effect, events.Answered)
    assert isinstance(effect.answer, Granted)
    assert (effect.answer.bytes_per_s, effect.answer.as_tls) == (told, True)
    assert effect.command == relay.command
    assert relay.feed(events.OfferAnswered(offer.circuit, None)) == [], "said twice"
    assert relay.feed(events.OfferAnswered(offer.circuit, "no")) == []


@pytest.mark.parametrize(
    ("taken", "of_circuits", "load"), [(0, 10, 1), (1, 10, 10), (2, 3, 66), (3, 3, 100)]
)
def test_the_load_is_the_part_of_circuits_or_places_that_is_taken_rounded_down(
    taken: int, of_circuits: int, load: int
) -> None:
    relay = Relay(quota(circuits_max=of_circuits))
    assert isinstance(relay.reserve(B), Reserved)
    for number in range(taken):
        relay.open(peer(10 + number), B)
    answer = relay.reserve(B)
    assert isinstance(answer, Reserved)
    assert answer.load == load


def test_a_relay_without_bytes_is_full_whatever_else_it_has() -> None:
    relay = Relay(quota(bytes_per_day=DAY_S))
    relay.reserve(B)
    circuit = relay.open(A, B)
    assert relay.core.try_pass(circuit, DAY_S - HOUR_S, 0.0)
    answer = relay.reserve(B)
    assert isinstance(answer, Reserved)
    assert answer.load == 1, "an hour's part is there"
    assert relay.core.try_pass(circuit, 1, 0.0)
    for now, load in ((0.0, 100), (0.5, 100), (1.0, 1)):
        relay.now = now
        answer = relay.reserve(B)
        assert isinstance(answer, Reserved)
        assert answer.load == load


def test_a_relay_with_one_place_or_one_circuit_is_full_when_it_is_taken() -> None:
    relay = Relay(Quota(reservations_max=1))
    answer = relay.reserve(B)
    assert isinstance(answer, Reserved)
    assert answer.load == 100
    relay = Relay(quota(circuits_max=1))
    relay.reserve(B)
    relay.open(A, B)
    answer = relay.reserve(B)
    assert isinstance(answer, Reserved)
    assert answer.load == 100


def test_a_relay_is_never_more_than_full() -> None:
    relay = Crowd(2)
    relay.connect(0, 1)
    relay.connect(0, 1)
    relay.now = 20.0
    relay.use_all()
    assert isinstance(relay.ask(peer(4), peer(5)), events.Offer), "a third one is under way"
    answer = relay.reserve(peer(0))
    assert isinstance(answer, Reserved)
    assert answer.load == 100


@pytest.mark.parametrize(
    ("circuits_max", "n_places", "circuits"),
    [(5, 1, 10), (64, 1, 16), (64, 8, 16), (64, 9, 14), (64, 32, 4), (64, 64, 2), (3, 20, 2)],
)
def test_each_peer_is_told_an_even_part_of_the_circuits(
    circuits_max: int, n_places: int, circuits: int
) -> None:
    relay = Relay(quota(circuits_max=circuits_max))
    for number in range(n_places):
        answer = relay.reserve(peer(100 + number))
    assert isinstance(answer, Reserved)
    assert answer.circuits == circuits


def test_peers_that_have_circuits_only_want_a_part_as_well() -> None:
    relay = Relay(quota(circuits_max=40))
    relay.reserve(B)
    for number in range(9):
        relay.open(peer(10 + number), B)
    answer = relay.reserve(B)
    assert isinstance(answer, Reserved)
    assert answer.circuits == 2 * 40 // 10


# --- what it refuses --------------------------------------------------------------------------


def test_the_owners_no_ends_everything_and_is_told_to_all() -> None:
    relay = Relay()
    for who in (A, B, C):
        relay.reserve(who)
    opened = relay.open(A, B)
    _, token, _ = relay.grant(A, C)
    relay.attach(token)
    leg = relay.leg
    offered = relay.ask(B, C)
    assert isinstance(offered, events.Offer)
    assert relay.feed(events.Allowed("on battery")) == [
        events.CircuitClosed(opened, "on battery"),
        events.LegRefused(leg, LegAnswer.CLOSED),
        events.Answered(relay.command, Refusal("quota", "on battery")),
    ]
    assert relay.reserve(A) == Refusal("quota", "on battery")
    assert relay.core.statistics().reservations == 0
    assert relay.core.next_deadline() is None
    assert relay.feed(events.Allowed("")) == []
    assert isinstance(relay.reserve(A), Reserved)


def test_that_the_owner_still_allows_it_ends_nothing() -> None:
    relay = Relay()
    relay.reserve(B)
    relay.open(A, B)
    assert relay.feed(events.Allowed("")) == []
    assert relay.core.statistics().circuits_open == 1
    assert relay.core.has_reservation(B)


def test_who_asks_too_often_is_told_when_to_ask_again() -> None:
    relay = Relay()
    for _ in range(RELAY_CONNECTS_BURST + 1):
        assert relay.refusal(A, B).code == "absent"
    refusal = relay.refusal(A, B)
    assert (refusal.code, refusal.reason) == ("rate", "too many questions")
    # Asked just then it would be a moment too early.
    assert refusal.retry_s == int(1 / RELAY_CONNECTS_PER_S) + 1
    relay.now += 1 / RELAY_CONNECTS_PER_S
    assert relay.refusal(A, B).code == "absent"
    assert relay.refusal(A, B).code == "rate"


def test_questions_of_all_peers_together_are_bounded_and_refused_ones_cost_nothing() -> None:
    relay = Relay()
    for _ in range(3 * RELAY_CONNECTS_BURST):
        relay.refusal(A, B)
    for number in range(RELAY_CONNECTS_ALL_BURST - RELAY_CONNECTS_BURST):
        assert relay.refusal(peer(100 + number), B).code == "absent"
    refusal = relay.refusal(C, B)
    assert refusal == Refusal("rate", "too many peers ask at once", 1)
    relay.now += 1.0
    answered = 0
    while relay.refusal(peer(1000 + answered), B).code == "absent":
        answered += 1
    assert answered == 16, "so many a second"


def test_of_two_with_many_circuits_the_one_that_has_more_is_named() -> None:
    most = limits.RELAY_CIRCUITS_PER_PEER_MAX
    relay = Relay()
    for number in range(3):
        relay.reserve(peer(50 + number))
    for _ in range(most):
        relay.open(peer(50), peer(51))
    assert relay.refusal(peer(50), peer(52)).reason == f"you have {most} circuits here"
    assert relay.refusal(peer(52), peer(51)).reason == f"the target has {most} circuits here"
    assert relay.refusal(peer(50), peer(51)).reason == f"you have {most} circuits here"
    assert relay.refusal(peer(50), peer(51)).code == "full"


@pytest.mark.parametrize("whose", ["peer", "all"])
def test_without_bytes_a_circuit_is_refused_until_an_hours_part_is_there(whose: str) -> None:
    per_day = float(DAY_S)
    relay = Relay(
        quota(peer_bytes_per_day=per_day) if whose == "peer" else quota(bytes_per_day=per_day)
    )
    relay.reserve(B)
    circuit = relay.open(A, B)
    assert relay.core.try_pass(circuit, DAY_S - HOUR_S + 10, 0.0)
    refusal = relay.refusal(A, B)
    reason = "your share of bytes is used up" if whose == "peer" else "the relay has used up its"
    assert refusal.code == "quota"
    assert refusal.reason.startswith(reason)
    assert refusal.retry_s == 11
    relay.now = 9.5
    assert relay.refusal(A, B).retry_s == 1
    relay.now = 10.0
    assert isinstance(relay.ask(A, B), events.Offer)


def test_a_refusal_names_no_longer_time_than_a_week() -> None:
    week_s = 7 * DAY_S
    relay = Relay(quota(peer_bytes_per_day=float(DAY_S)))
    relay.reserve(B)
    circuit = relay.open(A, B)
    assert relay.core.try_pass(circuit, week_s, 0.0)
    assert relay.refusal(A, B).retry_s == week_s - DAY_S + HOUR_S + 1
    other = relay.open(C, B)
    assert relay.core.try_pass(other, 2 * week_s, 0.0)
    assert relay.refusal(C, B).retry_s == week_s


def test_a_reason_is_no_longer_than_a_message_has_room_for() -> None:
    relay = Relay()
    relay.reserve(B)
    offer = relay.ask(A, B)
    assert isinstance(offer, events.Offer)
    (effect,) = relay.feed(events.OfferAnswered(offer.circuit, "x" * 5000))
    assert isinstance(effect, events.Answered)
    assert effect.answer == Refusal("declined", "x" * limits.REASON_BYTES_MAX)


def test_a_place_is_taken_from_the_largest_crowd_only_for_one_that_has_two_fewer() -> None:
    relay = Relay(Quota(reservations_max=3))
    for number, host in enumerate(("a", "a", "b")):
        assert isinstance(relay.reserve(peer(10 + number), host), Reserved)
    assert relay.reserve(peer(20), "b") == Refusal("full", "no room for another reservation")
    relay.command += 1
    lost, answered = relay.feed(events.ReserveAsked(relay.command, peer(20), "c"))
    assert lost == events.PlaceLost(
        peer(11), "2 reservations from your address, others had none left"
    )
    assert isinstance(answered, events.Answered)
    assert isinstance(relay.reserve(peer(21), "d"), Refusal), "all have one"
    assert isinstance(Relay(Quota(reservations_max=0)).reserve(A), Refusal)


# --- when it ends -----------------------------------------------------------------------------


def test_a_reservation_ends_at_its_time_and_is_asked_for_again_before() -> None:
    relay = Relay()
    relay.reserve(B)
    relay.now = 100.0
    relay.reserve(C)
    assert relay.core.next_deadline() == RESERVATION_S
    relay.core.handle_deadline(RESERVATION_S)
    assert (relay.core.has_reservation(B), relay.core.has_reservation(C)) == (False, True)
    assert relay.core.next_deadline() == 100.0 + RESERVATION_S
    assert relay.reserve(C, is_release=True) == Reserved(0)
    assert relay.core.next_deadline() is None


def test_the_time_to_set_up_counts_from_the_question_and_is_told_to_who_waits() -> None:
    relay = Relay()
    relay.reserve(B)
    relay.now = 10.0
    _, _, theirs = relay.grant(A, B)
    relay.now = 12.0
    relay.attach(theirs)
    assert relay.core.next_deadline() == 10.0 + limits.RELAY_SETUP_S
    assert relay.advance(10.0 + limits.RELAY_SETUP_S) == [
        events.LegRefused(relay.leg, LegAnswer.ALONE)
    ]
    assert relay.core.next_deadline() == RESERVATION_S


def test_who_asked_is_told_when_the_target_did_not_answer_in_time() -> None:
    relay = Relay()
    relay.reserve(B)
    assert isinstance(relay.ask(A, B), events.Offer)
    assert relay.core.next_deadline() == limits.RELAY_SETUP_S
    assert relay.advance(limits.RELAY_SETUP_S) == [
        events.Answered(relay.command, Refusal("setup", "the target did not answer"))
    ]
    assert relay.core.statistics().refused_total == {"setup": 1}


def test_an_open_circuits_time_counts_from_when_both_were_there() -> None:
    relay = Relay()
    relay.reserve(B)
    circuit, ours, theirs = relay.grant(A, B)
    relay.attach(ours)
    relay.now = 5.0
    relay.attach(theirs)
    assert relay.core.next_deadline() == 5.0 + limits.RELAY_IDLE_S
    while relay.now < 5.0 + limits.RELAY_CIRCUIT_S - 60:
        assert relay.core.try_pass(circuit, 1, relay.now)
        relay.reserve(B)
        relay.now += 60.0
    relay.core.try_pass(circuit, 1, relay.now)
    assert relay.core.next_deadline() == 5.0 + limits.RELAY_CIRCUIT_S
    assert relay.advance(relay.now + 60) == [events.CircuitClosed(circuit, "it is 6 hours old")]


def test_a_piece_that_had_to_wait_counts_when_it_passes() -> None:
    relay = Relay(quota(bytes_per_s=PIECE / 100))
    relay.reserve(B)
    circuit = relay.open(A, B)
    assert relay.core.try_pass(circuit, PIECE, 0.0)
    assert relay.feed(events.Waiting(circuit, 0, 1)) == []
    passes_at = relay.core.next_deadline()
    assert passes_at == pytest.approx(96.0, abs=1e-3)
    assert passes_at is not None
    assert relay.advance(passes_at) == [events.Passed(circuit, 0)]
    assert relay.core.next_deadline() == passes_at + limits.RELAY_IDLE_S
    assert relay.core.statistics().relayed_bytes == PIECE + 1


def test_a_circuit_of_which_nothing_may_pass_any_more_ends() -> None:
    relay = Relay(quota(bytes_per_day=1000.0))
    relay.reserve(B)
    circuit = relay.open(A, B)
    assert relay.core.try_pass(circuit, 1000, 0.0)
    assert relay.core.try_pass(circuit, 1, 0.0), "not a byte is owed yet"
    assert not relay.core.try_pass(circuit, 1, 0.0)
    assert relay.feed(events.Waiting(circuit, 0, 1)) == [
        events.CircuitClosed(circuit, "the share of bytes for a day is used up")
    ]
    assert relay.feed(events.Waiting(circuit, 0, 1)) == [], "it is over"
    assert relay.core.statistics().relayed_bytes == 1001


def test_a_leg_that_goes_away_ends_its_own_circuit_only() -> None:
    relay = Relay()
    relay.reserve(B)
    one, other = relay.open(A, B), relay.open(C, B)
    assert relay.feed(events.LegGone(99)) == []
    assert relay.feed(events.LegGone(3)) == [events.CircuitClosed(other, "one side has closed it")]
    assert relay.feed(events.LegGone(2)) == [events.CircuitClosed(one, "one side has closed it")]
    assert relay.feed(events.CircuitEnded(one)) == [], "told twice"


def test_a_peer_that_leaves_ends_only_what_it_was_asked_for() -> None:
    relay = Relay()
    for who in (B, C):
        relay.reserve(who)
    opened = relay.open(A, B)
    granted, _, _ = relay.grant(A, B)
    offered = relay.ask(C, B)
    assert isinstance(offered, events.Offer)
    other = relay.ask(A, C)
    assert isinstance(other, events.Offer)
    assert relay.feed(events.PeerGone(B)) == [
        events.Answered(relay.command - 1, Refusal("absent", "the target has just left"))
    ]
    assert relay.core.statistics().circuits_open == 1
    assert relay.core.try_pass(opened, 1, 0.0)
    assert relay.feed(events.CircuitEnded(granted)) == []
    assert relay.core.has_reservation(C)


# --- which gives way --------------------------------------------------------------------------


def full(n_circuits: int) -> Crowd:
    """Return a relay whose circuits are of pairs that have one each, opened a second apart."""
    relay = Crowd(n_circuits)
    for number in range(n_circuits):
        assert relay.connect(2 * number, 2 * number + 1) == []
    return relay


def gave_way(effects: list[events.Effect]) -> list[int]:
    return [each.circuit for each in effects if isinstance(each, events.CircuitClosed)]


def test_a_circuit_gives_way_from_the_moment_on_that_it_was_held_for_long_enough() -> None:
    for late_s, closed in ((-0.5, []), (0.0, [1])):
        relay = Crowd(2)
        relay.connect(0, 1)
        relay.connect(0, 1)
        relay.now = 1.0 + limits.RELAY_HOLD_S + late_s - 1.0  # a second passes before each
        assert gave_way(relay.connect(4, 5)) == closed


def test_a_circuit_is_spare_from_the_moment_on_that_it_was_of_no_use_for_long_enough() -> None:
    for late_s, closed in ((-0.5, []), (0.0, [1])):
        relay = full(2)
        relay.core.try_pass(2, PIECE, 5.0)
        relay.now = 1.0 + limits.RELAY_SPARE_S + late_s - 1.0
        assert gave_way(relay.connect(4, 5)) == closed, "one each is worth as much as another"


def test_a_word_is_no_use_and_more_than_a_word_is() -> None:
    for n_bytes, closed in ((limits.RELAY_WORD_BYTES_MAX, 1), (limits.RELAY_WORD_BYTES_MAX + 1, 2)):
        relay = full(2)
        relay.now = limits.RELAY_SPARE_S
        assert relay.core.try_pass(1, n_bytes, relay.now)
        relay.now += limits.RELAY_SPARE_S - 1.0
        assert gave_way(relay.connect(4, 5)) == [closed]


def test_of_spare_circuits_the_one_goes_that_was_of_no_use_for_longest() -> None:
    relay = full(3)
    for number, now in ((1, 8.0), (2, 6.0), (3, 7.0)):
        assert relay.core.try_pass(number, PIECE, now)
    relay.now = 100.0
    assert gave_way(relay.connect(10, 11)) == [2]


@pytest.mark.parametrize(
    ("quiet_s", "closed"), [(limits.RELAY_QUIET_S, 1), (limits.RELAY_QUIET_S - 0.1, 4)]
)
def test_one_in_the_midst_of_an_exchange_stays_if_there_is_another(
    quiet_s: float, closed: int
) -> None:
    relay = Crowd(5)
    for one, other in ((0, 1), (0, 1), (0, 1), (2, 3), (2, 3)):
        assert relay.connect(one, other) == []
    relay.now = 20.0
    for number in range(1, 6):
        moved_at = 20.0 if number < 4 else 15.0
        assert relay.core.try_pass(number, PIECE, moved_at)
    relay.now = 20.0 + quiet_s - 1.0  # a second passes before each
    assert gave_way(relay.connect(10, 11)) == [closed]


def test_of_circuits_that_are_worth_less_the_least_goes_and_then_the_longest_silent() -> None:
    relay = Crowd(5)
    for one, other in ((0, 1), (0, 1), (2, 3), (2, 3), (2, 3)):
        assert relay.connect(one, other) == []
    relay.now = 20.0
    for number, moved_at in ((1, 11.0), (2, 10.0), (3, 14.0), (4, 12.0), (5, 13.0)):
        assert relay.core.try_pass(number, PIECE, moved_at)
    assert gave_way(relay.connect(6, 7)) == [4]
    assert gave_way(relay.connect(8, 9)) == [2], "now all have two, and it is silent for longest"


def test_a_circuit_that_would_be_worth_as_much_as_another_takes_no_place() -> None:
    relay = full(2)
    relay.now = 20.0
    relay.use_all()
    (refused,) = relay.connect(10, 11)
    assert refused == events.Answered(relay.command, Refusal("full", "no room for another circuit"))


def test_two_that_want_the_same_place_get_it_once() -> None:
    relay = Crowd(2)
    relay.connect(0, 1)
    relay.connect(0, 1)
    relay.now = 20.0
    relay.use_all()
    first, second = relay.grant(peer(4), peer(5)), relay.grant(peer(6), peer(7))
    relay.attach(first[1])
    closed, joined = relay.attach(first[2])
    assert closed == events.CircuitClosed(1, "its place is for peers that have fewer")
    assert joined == events.Joined(first[0], (relay.leg - 1, relay.leg))
    relay.attach(second[1])
    assert relay.attach(second[2]) == [
        events.LegRefused(relay.leg - 1, LegAnswer.CLOSED),
        events.LegRefused(relay.leg, LegAnswer.CLOSED),
    ]
    assert relay.core.statistics().circuits_open == 2
