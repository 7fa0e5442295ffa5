"""When a node asks where it is, whom, and what the answers amount to: each step by itself."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.nat.reach import (
    AskDialBack,
    AskWhere,
    Changed,
    DialledBack,
    Effect,
    Event,
    PeerClosed,
    PeerOpened,
    PortsChanged,
    Reachability,
    ReachCore,
    ReachStatistics,
    Seen,
)

OWN, OTHER = "93.184.216.34", "93.184.217.99"
PORT, MAPPED_PORT = 4001, 443
NOW = 1000.0


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def host(number: int) -> str:
    """Return a public address in a network of its own."""
    return f"11.{number}.0.1"


def core_with(*numbers: int, ports: tuple[int, ...] = ()) -> ReachCore:
    """Return a core that has just met these peers, and asked where they see it."""
    core = ReachCore()
    if ports:
        core.handle(PortsChanged(ports), NOW)
    for number in numbers:
        core.handle(PeerOpened(peer(number), host(number)), NOW)
    assert core.poll_effects() == [AskWhere(peer(number)) for number in numbers]
    return core


def questions(core: ReachCore) -> list[Effect]:
    return [each for each in core.poll_effects() if not isinstance(each, Changed)]


def met(core: ReachCore, number: int, address: str, now: float) -> bool:
    """Whether a peer that was met is asked."""
    core.handle(PeerOpened(peer(number), address), now)
    return AskWhere(peer(number)) in core.poll_effects()


# --- when it asks ---------------------------------------------------------------------------------


def test_who_does_not_answer_is_asked_after_pauses_that_double_up_to_the_recheck() -> None:
    core, now = core_with(1), NOW
    core.handle_deadline(now)
    assert core.poll_effects() == [], "one question at a time"
    pauses = [limits.REACH_RETRY_S * 2**n for n in range(6)] + [limits.REACH_RECHECK_S] * 2
    for pause_s in pauses:
        core.handle(Seen(peer(1), None), now)
        assert core.next_deadline() == now + pause_s
        core.handle_deadline(now + pause_s - 0.1)
        assert core.poll_effects() == []
        now += pause_s
        core.handle_deadline(now)
        assert core.poll_effects() == [AskWhere(peer(1))]
    core.handle(Seen(peer(1), OWN), now)
    assert core.next_deadline() == now + limits.REACH_RECHECK_S
    now += limits.REACH_RECHECK_S
    core.handle_deadline(now)
    core.handle(Seen(peer(1), None), now)
    assert core.next_deadline() == now + limits.REACH_RETRY_S, "it had answered in between"
    assert core.statistics() == ReachStatistics(1, 1, len(pauses) + 2)


@pytest.mark.parametrize(
    "answer",
    [
        DialledBack(peer(1), PORT, OWN, None),
        DialledBack(peer(1), PORT, "", True),
        DialledBack(peer(1), PORT, "192.168.1.7", False),
    ],
)
def test_who_does_not_dial_back_is_asked_again_after_the_same_pauses(answer: DialledBack) -> None:
    core = core_with(1, ports=(PORT,))
    core.handle(Seen(peer(1), OWN), NOW)
    assert questions(core) == [AskDialBack(peer(1), PORT)]
    core.handle(answer, NOW)
    assert core.next_deadline() == NOW + limits.REACH_RETRY_S
    assert core.reachability == Reachability(guesses=(OWN,))
    core.handle(PortsChanged((PORT, MAPPED_PORT)), NOW + 1)
    assert core.poll_effects() == [], "another port is no reason to ask sooner"
    now = NOW + limits.REACH_RETRY_S
    core.handle_deadline(now)
    assert core.poll_effects() == [AskDialBack(peer(1), PORT)]
    core.handle(DialledBack(peer(1), PORT, OWN, True), now)
    assert questions(core) == [AskDialBack(peer(1), MAPPED_PORT)]
    core.handle(DialledBack(peer(1), MAPPED_PORT, OWN, None), now)
    assert core.next_deadline() == now + limits.REACH_RETRY_S, "it had answered in between"


def test_each_answer_is_asked_for_again_when_it_is_old() -> None:
    core = core_with(1, ports=(PORT, MAPPED_PORT))
    core.handle(Seen(peer(1), OWN), NOW + 1)
    core.handle(DialledBack(peer(1), PORT, OWN, True), NOW + 2)
    assert questions(core) == [AskDialBack(peer(1), PORT), AskDialBack(peer(1), MAPPED_PORT)]
    core.handle(DialledBack(peer(1), MAPPED_PORT, OWN, True), NOW + 3)
    answers: list[tuple[float, Effect, Event]] = [
        (NOW + 1, AskWhere(peer(1)), Seen(peer(1), OWN)),
        (NOW + 2, AskDialBack(peer(1), PORT), DialledBack(peer(1), PORT, OWN, True)),
        (NOW + 3, AskDialBack(peer(1), MAPPED_PORT), DialledBack(peer(1), MAPPED_PORT, OWN, True)),
    ]
    for answered_at, question, answer in answers:
        due_at = answered_at + limits.REACH_RECHECK_S
        assert core.next_deadline() == due_at
        core.handle_deadline(due_at)
        assert questions(core) == [question]
        core.handle(answer, due_at)
    assert core.next_deadline() == NOW + 1 + 2 * limits.REACH_RECHECK_S
    assert core.statistics().asked_total == 6


def test_who_is_gone_counts_from_its_last_answer_and_is_then_forgotten() -> None:
    core = core_with(1, 2, 3)
    for number in (1, 2, 3):
        core.handle(Seen(peer(number), OWN), NOW + number)
        core.handle(PeerClosed(peer(number)), NOW + 10)
    core.handle(PeerClosed(peer(4)), NOW + 10)
    for number in (1, 2, 3):
        assert core.next_deadline() == NOW + number + limits.REACH_VOTE_S
        core.handle_deadline(NOW + number + limits.REACH_VOTE_S)
        assert core.statistics().voters == 3 - number
        assert core.reachability.guesses == ((OWN,) if number < 3 else ())
    assert core.next_deadline() is None


def test_what_an_open_peer_said_too_long_ago_does_not_count_and_it_is_asked_on() -> None:
    core = core_with(1, ports=(PORT,))
    core.handle(Seen(peer(1), OWN), NOW)
    core.handle(DialledBack(peer(1), PORT, OWN, True), NOW)
    expected = Reachability(guesses=(OWN,), tentative=((OWN, PORT),))
    assert core.reachability == expected
    core.handle_deadline(NOW + limits.REACH_RECHECK_S)
    core.poll_effects()
    core.handle_deadline(NOW + limits.REACH_VOTE_S - 0.1)
    assert core.reachability == expected
    now = NOW + limits.REACH_VOTE_S
    assert core.next_deadline() == now
    core.handle_deadline(now)
    assert core.poll_effects() == [Changed(Reachability())]
    assert core.next_deadline() == now + limits.REACH_VOTE_S
    core.handle(Seen(peer(1), OTHER), now + 1)
    assert questions(core) == [AskDialBack(peer(1), PORT)]
    assert core.reachability == Reachability(guesses=(OTHER,))


# --- who is asked ---------------------------------------------------------------------------------


def test_a_peer_that_comes_back_is_believed_as_before_unless_it_is_elsewhere() -> None:
    core = core_with(1)
    core.handle(Seen(peer(1), OWN), NOW)
    assert core.poll_effects() == [Changed(Reachability(guesses=(OWN,)))]
    core.handle(PeerClosed(peer(1)), NOW + 1)
    assert not met(core, 1, "11.1.200.7", NOW + 2)
    assert core.reachability == Reachability(guesses=(OWN,))
    assert core.next_deadline() == NOW + limits.REACH_RECHECK_S
    assert met(core, 1, host(2), NOW + 3)
    assert core.reachability == Reachability()
    assert core.next_deadline() == NOW + 3 + limits.REACH_VOTE_S


def test_a_peer_that_comes_back_while_it_is_asked_is_asked_anew() -> None:
    core = core_with(1)
    assert met(core, 1, host(1), NOW + 1)
    core.handle(PeerClosed(peer(1)), NOW + 2)
    core.handle(Seen(peer(1), OWN), NOW + 2)
    assert core.reachability == Reachability(), "its session is gone, and so is the question"
    assert met(core, 1, host(1), NOW + 3)


def test_when_there_is_no_room_one_that_is_gone_makes_it() -> None:
    core = core_with(*range(limits.REACH_VOTERS_MAX))
    assert not met(core, 50, host(50), NOW + 1)
    assert not met(core, 51, host(3), NOW + 1)
    core.handle(PeerClosed(peer(3)), NOW + 2)
    assert met(core, 51, host(4), NOW + 3), "even for one of a network that is there"
    assert core.statistics().voters == limits.REACH_VOTERS_MAX
    assert not met(core, 3, host(4), NOW + 4)


def test_a_peer_that_is_elsewhere_now_has_the_room_that_it_had() -> None:
    core = core_with(*range(limits.REACH_VOTERS_MAX))
    assert met(core, 3, host(50), NOW + 1)
    assert core.statistics().voters == core.statistics().networks == limits.REACH_VOTERS_MAX
    assert not met(core, 51, host(3), NOW + 2), "there is no more"


def test_when_there_is_no_room_the_second_of_a_network_makes_it_for_one_of_another() -> None:
    core = core_with(*range(2, limits.REACH_VOTERS_MAX + 1))
    assert met(core, 90, "11.2.0.90", NOW + 1)
    core.handle(Seen(peer(2), OWN), NOW + 5)
    assert not met(core, 91, host(7), NOW + 6)
    assert met(core, 92, host(92), NOW + 6)
    # It was the one not heard for longer that had to go.
    assert core.reachability.guesses == (OWN,)
    assert core.statistics().networks == core.statistics().voters == limits.REACH_VOTERS_MAX
    assert not met(core, 90, "11.2.0.90", NOW + 7)


def test_a_port_that_is_new_is_asked_for_at_once_and_one_that_is_gone_counts_no_more() -> None:
    core = core_with(1, ports=(PORT,))
    core.handle(Seen(peer(1), OWN), NOW)
    core.handle(DialledBack(peer(1), PORT, OWN, True), NOW)
    core.poll_effects()
    core.handle(PortsChanged((MAPPED_PORT, PORT)), NOW + 5)
    assert core.poll_effects() == [AskDialBack(peer(1), MAPPED_PORT)]
    core.handle(DialledBack(peer(1), MAPPED_PORT, OWN, False, "no connection"), NOW + 6)
    assert core.reachability == Reachability(
        guesses=(OWN,), tentative=((OWN, PORT),), refusals=((MAPPED_PORT, "no connection"),)
    )
    core.poll_effects()
    core.handle(PortsChanged((MAPPED_PORT,)), NOW + 7)
    assert core.poll_effects() == [
        Changed(Reachability(guesses=(OWN,), refusals=((MAPPED_PORT, "no connection"),)))
    ]
    assert core.next_deadline() == NOW + limits.REACH_RECHECK_S
    # What was said of it is forgotten.
    core.handle(PortsChanged((MAPPED_PORT, PORT)), NOW + 8)
    assert core.poll_effects() == [AskDialBack(peer(1), PORT)]


def test_an_answer_about_a_port_that_was_given_up_meanwhile_is_not_kept() -> None:
    core = core_with(1, ports=(PORT,))
    core.handle(Seen(peer(1), OWN), NOW)
    core.handle(PortsChanged((MAPPED_PORT,)), NOW)
    core.handle(DialledBack(peer(1), PORT, OWN, True), NOW)
    core.handle(PortsChanged((PORT,)), NOW)
    assert core.reachability == Reachability(guesses=(OWN,))


# --- what it amounts to ---------------------------------------------------------------------------


def seen_by(votes: list[str]) -> Reachability:
    core = core_with(*range(1, len(votes) + 1))
    for number, where in enumerate(votes, start=1):
        core.handle(Seen(peer(number), where), NOW)
    return core.reachability


def test_the_guess_is_what_most_say_and_where_as_many_do_the_first_in_order() -> None:
    assert seen_by([OTHER, OWN]).guesses == (OWN,)
    assert seen_by([OTHER, OWN, OTHER]).guesses == (OTHER,)
    six = "2a00:1450::1"
    assert seen_by([six, OWN]).guesses == (six, OWN)
    assert seen_by([six, OWN, OTHER, OWN, OTHER, OWN]) == Reachability((OWN,), (six,))
    assert seen_by([OTHER] * limits.REACH_VOTES + [OWN] * limits.REACH_VOTES).hosts == (OWN,)


def test_a_port_that_enough_have_reached_is_not_refused_and_of_others_the_last_reason_is_said() -> (
    None
):
    core = core_with(*range(1, limits.REACH_VOTES + 3), ports=(PORT,))
    for number in range(1, limits.REACH_VOTES + 3):
        core.handle(Seen(peer(number), OWN), NOW)
    for number in (1, 2):
        core.handle(DialledBack(peer(number), PORT, OWN, False, f"reason {number}"), NOW)
    assert core.reachability.refusals == ((PORT, "reason 2"),)
    for number in range(3, limits.REACH_VOTES + 3):
        assert core.reachability.endpoints == ()
        core.handle(DialledBack(peer(number), PORT, OWN, True), NOW)
    assert core.reachability == Reachability(hosts=(OWN,), endpoints=((OWN, PORT),))
