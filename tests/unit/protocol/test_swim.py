"""Each transition of the failure detector, by hand."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.claims import Ed25519Notary
from swarmnode.protocol.membership.health import LivedClock, LocalHealth, SuspicionTimes
from swarmnode.protocol.membership.swim import SwimCore
from swarmnode.protocol.membership.swim_events import Changed, MemberState, Send
from swarmnode.protocol.membership.table import MemberTable, Rumours, retransmissions_max
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swim import Ack, Claim, Message, Nack, Ping, PingRequest, Sync
from tests.unit.protocol.membership.swim_kit import (
    IDS,
    PEERS,
    SHORTEST_S,
    Bench,
    changes,
    claim,
    made_up,
    sent,
)

# --- learning of members -----------------------------------------------------------------


def test_a_new_core_waits_for_its_first_event() -> None:
    bench = Bench(0)
    assert bench.core.next_deadline() is None
    assert bench.core.live_members() == ()


def test_contact_sends_all_and_asks_for_all() -> None:
    bench = Bench(4)
    [effect] = bench.feed(events.Contact(IDS[7]))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Sync)
    assert effect.message.wants_reply
    assert [PeerId.from_public_key(c.key) for c in effect.message.claims] == IDS[:4]


def test_a_sync_is_answered_once_and_never_with_a_question() -> None:
    bench = Bench(3)
    [(peer, reply)] = sent(bench.receive(5, Sync(wants_reply=True, claims=(claim(5),))), Sync)
    assert peer == IDS[5]
    assert isinstance(reply, Sync)
    assert not reply.wants_reply


def test_an_unknown_peer_that_pings_introduces_itself() -> None:
    bench = Bench(0)
    effects = bench.receive(3, Ping(7, (claim(3),)))
    assert changes(effects) == [Changed(IDS[3], None, MemberState.ALIVE, 1)]
    [(peer, ack)] = sent(effects, Ack)
    assert peer == IDS[3]
    assert isinstance(ack, Ack)
    assert ack.seq == 7


def test_no_new_member_is_learned_as_gone() -> None:
    bench = Bench(3)
    assert bench.hear(claim(5, left="bye"), claim(6, doubt="dead", by=(1,))) == []
    assert bench.state(5) is None
    assert bench.state(6) is None


def test_members_that_one_made_up_never_double_those_that_are_there() -> None:
    bench = Bench(5)
    for first in range(0, 600, 100):
        bench.hear(*(made_up(number) for number in range(first, first + 100)), sender=4)
        assert len(bench.core.live_members()) <= 8
    for _ in range(400):
        for effect in bench.step(bench.core.next_deadline() or 0.0):
            if isinstance(effect, Send) and isinstance(effect.message, Ping):
                if effect.peer in IDS[:5]:
                    bench.receive(IDS.index(effect.peer), Ack(effect.message.seq, ()))
                else:
                    bench.feed(events.SendFailed(effect.peer))
        assert len(bench.core.live_members()) <= 8
    assert sorted(bench.core.live_members()) == sorted(IDS[1:5]), "none of them has ever answered"
    bench.hear(*(made_up(number, epoch=2) for number in range(100)), sender=4)
    assert len(bench.core.live_members()) <= 8, "none is remembered as gone, to be brought back"


def test_members_are_spread_by_those_who_have_met_them() -> None:
    bench = Bench(3)
    bench.hear(claim(5), claim(6))
    assert bench.state(5) is MemberState.ALIVE, "there are no more such than those that were met"
    [(_, page)] = sent(bench.feed(events.Contact(IDS[7])), Sync)
    assert isinstance(page, Sync)
    assert {c.key for c in page.claims} == {PEERS[number].public_key for number in range(3)}
    [(_, ack)] = sent(bench.receive(1, Ping(1, (claim(1),))), Ack)
    assert isinstance(ack, Ack)
    assert claim(5) not in ack.news
    bench.receive(5, Ack(1, ()))
    [(_, ack)] = sent(bench.receive(1, Ping(2, (claim(1),))), Ack)
    assert isinstance(ack, Ack)
    assert claim(5) in ack.news
    assert claim(6) not in ack.news


def test_who_finds_no_place_is_asked_a_few_times_and_is_a_member_when_it_answers() -> None:
    bench = Bench(2)
    bench.hear(claim(2), claim(3), claim(4))
    assert sorted(bench.core.live_members()) == sorted(IDS[1:3])
    asked = [peer for peer, _ in sent(bench.advance(2 * limits.SWIM_PERIOD_S), Ping)]
    assert {IDS[3], IDS[4]} <= set(asked)
    effects = bench.receive(3, Ack(1, ()))
    assert changes(effects) == [Changed(IDS[3], None, MemberState.ALIVE, 1)]
    bench.advance(10 * limits.SWIM_PERIOD_S)
    bench.effects.clear()
    bench.advance(10 * limits.SWIM_PERIOD_S)
    assert IDS[4] not in [peer for peer, _ in sent(bench.effects, Ping)]
    assert IDS[4] not in bench.core.live_members()


def test_what_one_teller_makes_up_takes_no_room_of_others() -> None:
    bench = Bench(3)
    bench.hear(*(made_up(number) for number in range(2)))  # the places that there are
    bench.hear(claim(5), sender=2)
    flood = limits.SWIM_HEARSAY_MAX + 9
    bench.hear(*(made_up(number) for number in range(2, 2 + flood)), sender=1)
    effects = bench.receive(5, Ack(1, ()))
    assert changes(effects) == [Changed(IDS[5], None, MemberState.ALIVE, 1)]


def test_a_full_table_forgets_the_gone_first_then_members_that_never_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(2)
    bench.hear(claim(2))
    bench.hear(claim(3), sender=3)
    monkeypatch.setattr(limits, "SWIM_MEMBERS_MAX", 3)
    bench.hear(claim(3, left="bye"))
    bench.hear(claim(4), sender=4)
    assert bench.state(3) is None
    bench.hear(claim(5), sender=5)
    assert bench.state(2) is None
    assert bench.state(1) is MemberState.ALIVE
    for number in (4, 5):
        bench.hear(claim(number), sender=number)
    bench.hear(claim(6), sender=6)
    assert bench.state(6) is None
    assert bench.core.statistics().table_full_total == 1


def test_equal_views_send_no_page() -> None:
    anna, bert = Bench(4), Bench(4, notary=PEERS[3])
    bert.hear(claim(0), sender=0)
    questions: list[tuple[PeerId, Message]] = []
    while not questions:
        effects = anna.step(anna.core.next_deadline() or 0.0)
        for peer, ping in sent(effects, Ping):
            assert isinstance(ping, Ping)
            anna.receive(IDS.index(peer), Ack(ping.seq, ()))
        questions = sent(effects, Sync)
    [(_, question)] = questions
    assert isinstance(question, Sync)
    assert question.digest is not None
    assert len(question.claims) == 1
    assert bert.receive(0, question) == []
    bert.hear(claim(2, doubt="suspect", by=(1,)))
    assert bert.receive(0, question) == [], "a doubt alone travels as news"
    bert.hear(claim(5), sender=5)
    [(_, page)] = sent(bert.receive(0, question), Sync)
    assert isinstance(page, Sync)
    assert page.wants_reply
    [(_, answer)] = sent(anna.receive(3, page), Sync)
    assert isinstance(answer, Sync)
    assert not answer.wants_reply
    assert bert.receive(0, answer) == []
    assert sorted(anna.core.live_members()) == sorted([*IDS[1:4], IDS[5]])


def test_the_digest_follows_every_change() -> None:
    """What is added is taken away again: the way to a view leaves no trace in it."""
    straight, winding = Bench(4), Bench(0)
    for number in (4, 1, 2):
        winding.hear(claim(number), sender=number)
    winding.hear(claim(2, doubt="suspect", by=(1,)))
    winding.hear(claim(2, epoch=0), claim(4, left="bye"), claim(3))
    winding.hear(claim(3, doubt="suspect", by=(1,)))
    winding.advance(0.0)
    own = claim(0)
    assert winding.core._table.digest_with(own) == straight.core._table.digest_with(own)
    winding.hear(claim(1, incarnation=1))
    assert winding.core._table.digest_with(own) != straight.core._table.digest_with(own)
    straight.hear(claim(1, incarnation=1))
    assert winding.core._table.digest_with(own) == straight.core._table.digest_with(own)
    assert straight.core._table.digest_with(claim(0, incarnation=1)) != (
        straight.core._table.digest_with(own)
    )


# --- probing -----------------------------------------------------------------------------


def test_every_member_is_probed_once_in_a_round() -> None:
    bench = Bench(9)
    for _ in range(3):
        round_targets = []
        for _ in range(8):
            peer, ping = bench.next_ping()
            assert ping.news[0].key == PEERS[0].public_key
            round_targets.append(peer)
            bench.receive(IDS.index(peer), Ack(ping.seq, ()))
        assert sorted(round_targets) == sorted(IDS[1:])


def test_probes_are_counted() -> None:
    bench = Bench(4)
    assert bench.core.statistics().probes_total == 0
    for number in range(1, 4):
        peer, ping = bench.next_ping()
        bench.receive(IDS.index(peer), Ack(ping.seq, ()))
        assert bench.core.statistics().probes_total == number


def test_nodes_that_start_at_once_probe_at_any_time_of_the_first_period() -> None:
    first_s = []
    for seed in range(100):
        core = SwimCore(PEERS[0], 1, random.Random(seed))
        core.handle(events.Contact(IDS[1]), 100.0)
        due = core.next_deadline()
        assert due is not None
        first_s.append(due - 100.0)
    assert sum(each < limits.SWIM_PERIOD_S / 2 for each in first_s) == pytest.approx(50, abs=15)
    assert max(first_s) < limits.SWIM_PERIOD_S


def test_periods_differ_by_a_little_so_that_nodes_do_not_probe_in_step() -> None:
    bench, probed_at = Bench(9), []
    for _ in range(200):
        peer, ping = bench.next_ping()
        bench.receive(IDS.index(peer), Ack(ping.seq, ()))
        probed_at.append(bench.now)
    periods = [
        (later - earlier) / limits.SWIM_PERIOD_S for earlier, later in itertools.pairwise(probed_at)
    ]
    assert sum(periods) / len(periods) == pytest.approx(1, abs=limits.SWIM_JITTER / 5)
    assert min(periods) == pytest.approx(1 - limits.SWIM_JITTER, abs=0.01)
    assert max(periods) == pytest.approx(1 + limits.SWIM_JITTER, abs=0.01)


def test_silence_asks_helpers_then_suspects_then_declares_dead() -> None:
    bench = Bench(9)
    target, ping = bench.next_ping()
    requests = sent(bench.advance(limits.SWIM_ACK_S), PingRequest)
    assert len(requests) == limits.SWIM_HELPERS
    assert all(isinstance(m, PingRequest) and PeerId(m.target) == target for _, m in requests)
    assert all(helper != target for helper, _ in requests)
    assert bench.core.state_of(target) is MemberState.ALIVE
    effects = bench.advance(2 * limits.SWIM_PERIOD_S)
    assert Changed(target, MemberState.ALIVE, MemberState.SUSPECT, 1) in effects
    bench.hear(claim(IDS.index(target), doubt="suspect", by=(1, 2, 3, 4)))
    effects = bench.advance(SHORTEST_S + 1)
    assert Changed(target, MemberState.SUSPECT, MemberState.DEAD, 1) in effects
    assert ping.seq > 0


@pytest.mark.parametrize("through_helper", [False, True])
def test_an_ack_in_time_keeps_a_member_alive(through_helper: bool) -> None:
    bench = Bench(9)
    target, ping = bench.next_ping()
    source = target
    if through_helper:
        [(source, _), *_] = sent(bench.advance(limits.SWIM_ACK_S + 0.1), PingRequest)
    bench.receive(IDS.index(source), Ack(ping.seq, ()))
    due = bench.core.next_deadline()
    assert due is not None
    bench.advance(0.9)
    assert bench.core.state_of(target) is MemberState.ALIVE
    assert bench.core.statistics().probes_failed_total == 0


def test_an_ack_from_another_member_does_not_count() -> None:
    bench = Bench(9)
    target, ping = bench.next_ping()
    other = next(number for number in range(1, 9) if IDS[number] != target)
    bench.receive(other, Ack(ping.seq, ()))
    bench.advance(2 * limits.SWIM_PERIOD_S)
    assert bench.core.statistics().probes_failed_total >= 1


def test_what_cannot_be_sent_goes_to_helpers_at_once() -> None:
    bench = Bench(9)
    target, _ = bench.next_ping()
    assert len(sent(bench.feed(events.SendFailed(target)), PingRequest)) == limits.SWIM_HELPERS


def test_members_that_have_a_session_with_it_are_the_first_helpers() -> None:
    for carrier in range(1, 9):
        bench = Bench(9)
        target, _ = bench.next_ping()
        failed = events.SendFailed(target, (IDS[carrier], PeerId(b"?" * 32), target))
        asked = [peer for peer, _ in sent(bench.feed(failed), PingRequest)]
        assert len(asked) == limits.SWIM_HELPERS, "no stranger, and not the target itself"
        assert target not in asked
        assert asked[0] == IDS[carrier] or IDS[carrier] == target


def test_helper_relays_ping_and_ack() -> None:
    bench = Bench(5)
    [(target, ping)] = sent(bench.receive(1, PingRequest(33, IDS[2], ())), Ping)
    assert target == IDS[2]
    assert isinstance(ping, Ping)
    assert sent(bench.receive(3, Ack(ping.seq, ())), Ack) == []
    [(requester, ack)] = sent(bench.receive(2, Ack(ping.seq, ())), Ack)
    assert requester == IDS[1]
    assert isinstance(ack, Ack)
    assert ack.seq == 33


def test_helper_says_not_so_far() -> None:
    bench = Bench(5)
    bench.receive(1, PingRequest(33, IDS[2], ()))
    assert sent(bench.advance(limits.SWIM_PERIOD_S - limits.SWIM_ACK_S), Nack) == [
        (IDS[1], Nack(33))
    ]
    bench.receive(1, PingRequest(34, IDS[2], ()))
    bench.feed(events.SendFailed(IDS[2]))
    assert sent(bench.advance(0.0), Nack) == [(IDS[1], Nack(34))]


def test_helper_refuses_what_it_cannot_do() -> None:
    bench = Bench(5)
    assert sent(bench.receive(1, PingRequest(1, IDS[8], ())), Nack) == [(IDS[1], Nack(1))]
    for seq in range(limits.SWIM_RELAYS_MAX):
        assert sent(bench.receive(1, PingRequest(seq, IDS[2], ())), Ping)
    assert sent(bench.receive(1, PingRequest(99, IDS[2], ())), Nack) == [(IDS[1], Nack(99))]


# --- doubt and refutation ----------------------------------------------------------------


def test_a_doubt_about_us_is_refuted_with_the_next_incarnation() -> None:
    bench = Bench(5)
    bench.hear(claim(0, doubt="suspect", by=(2,)))
    assert bench.core.version_of(IDS[0]) == (1, 1)
    bench.hear(claim(0, doubt="suspect", by=(2,)))
    assert bench.core.version_of(IDS[0]) == (1, 1), "that doubt is about the past"
    [(_, ack)] = sent(bench.receive(3, Ping(1, (claim(3),))), Ack)
    assert isinstance(ack, Ack)
    assert claim(0, incarnation=1) in ack.news


def test_a_refutation_clears_a_suspicion_and_a_death() -> None:
    bench = Bench(5)
    bench.hear(claim(3, doubt="suspect", by=(2,)))
    assert bench.state(3) is MemberState.SUSPECT
    assert bench.hear(claim(3)) == []
    assert bench.state(3) is MemberState.SUSPECT, "the same incarnation refutes nothing"
    bench.hear(claim(3, incarnation=1))
    assert bench.state(3) is MemberState.ALIVE
    bench.hear(claim(3, incarnation=1, doubt="dead", by=(2,)))
    bench.advance(SHORTEST_S + 1)
    assert bench.state(3) is MemberState.DEAD
    assert changes(bench.hear(claim(3, incarnation=2))) == [
        Changed(IDS[3], MemberState.DEAD, MemberState.ALIVE, 1)
    ]


def test_dead_on_the_word_of_others_is_a_suspicion_first() -> None:
    bench = Bench(9)
    bench.hear(claim(3, doubt="dead", by=()))
    assert bench.state(3) is MemberState.SUSPECT
    bench.advance(SHORTEST_S - 0.1)
    assert bench.state(3) is MemberState.SUSPECT
    bench.advance(0.2)
    assert bench.state(3) is MemberState.DEAD


def test_confirmations_shorten_a_suspicion() -> None:
    times = SuspicionTimes.for_swarm(100)
    waits = [times.timeout_s(n) for n in range(limits.SWIM_CONFIRMATIONS + 2)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == pytest.approx(limits.SWIM_SUSPICION_SPREAD * waits[-1])
    assert waits[-1] == waits[-2] == pytest.approx(12.0)
    assert SuspicionTimes.for_swarm(2).timeout_s(0) == SuspicionTimes.for_swarm(2).shortest_s


def test_a_late_confirmation_ends_a_suspicion_and_is_no_stall() -> None:
    """Its deadline is then in the past, as it is for whoever slept."""
    bench = Bench(9)
    bench.hear(claim(3, doubt="suspect", by=(2,)))
    bench.advance(2 * SHORTEST_S)
    assert bench.state(3) is MemberState.SUSPECT
    bench.hear(claim(3, doubt="suspect", by=(4, 5, 6)))
    assert bench.core.next_deadline() == bench.now
    bench.advance(0.1)
    assert bench.state(3) is MemberState.DEAD
    assert bench.core.statistics().stalls_total == 0


def comparisons(bench: Bench, seconds: float) -> int:
    """Return how often views are compared while everybody answers pings."""
    until, n_syncs = bench.now + seconds, 0
    while (due := bench.core.next_deadline()) is not None and due <= until:
        effects = bench.step(due)
        n_syncs += len(sent(effects, Sync))
        for peer, ping in sent(effects, Ping):
            assert isinstance(ping, Ping)
            bench.receive(IDS.index(peer), Ack(ping.seq, ()))
    return n_syncs


def test_while_a_partition_heals_views_are_compared_in_every_period() -> None:
    bench = Bench(9)
    bench.hear(*(claim(n) for n in range(1, 9)))
    bench.hear(claim(3, doubt="dead"))
    comparisons(bench, SHORTEST_S + 1)
    assert bench.state(3) is MemberState.DEAD
    bench.hear(claim(3, incarnation=1))
    assert comparisons(bench, 30.0) >= 12
    assert comparisons(bench, 30.0) <= 4


def test_of_two_suspects_each_has_its_own_time() -> None:
    bench = Bench(9)
    bench.hear(claim(3, doubt="suspect", by=(1, 2, 4, 5)))
    bench.hear(claim(6, doubt="suspect", by=(2,)))
    comparisons(bench, SHORTEST_S)  # our own probes accuse nobody
    assert bench.state(3) is MemberState.DEAD
    assert bench.state(6) is MemberState.SUSPECT


def test_one_accuser_repeated_confirms_nothing() -> None:
    bench = Bench(9)
    for _ in range(4):
        bench.hear(claim(3, doubt="suspect", by=(2,)))
    bench.advance(SHORTEST_S + 1)
    assert bench.state(3) is MemberState.SUSPECT


def test_a_suspect_hears_of_it_first() -> None:
    bench = Bench(9)
    bench.hear(*(claim(n) for n in range(1, 9)), claim(3, doubt="suspect", by=(2,)))
    [(_, ack)] = sent(bench.receive(3, Ping(1, (claim(3),))), Ack)
    assert isinstance(ack, Ack)
    assert ack.news[0] == claim(3, doubt="suspect", by=(2,))


def test_an_old_version_changes_nothing() -> None:
    bench = Bench(5)
    bench.hear(claim(3, epoch=2))
    assert bench.hear(claim(3, epoch=1, incarnation=9, doubt="dead", by=(2,))) == []
    assert bench.core.version_of(IDS[3]) == (2, 0)
    assert bench.state(3) is MemberState.ALIVE


# --- leaving and coming back -------------------------------------------------------------


def test_leaving_tells_some_and_is_silent_afterwards() -> None:
    bench = Bench(5)
    effects = bench.feed(events.Leave("battery low"))
    assert sorted(peer for peer, _ in sent(effects, Sync)) == sorted(IDS[1:5])
    assert effects[0] == Send(
        effects[0].peer,  # type: ignore[union-attr]
        Sync(wants_reply=False, claims=(claim(0, left="battery low"),)),
    )
    assert bench.core.next_deadline() is None
    assert bench.receive(1, Ping(1, (claim(1),))) == []
    with pytest.raises(LocalProtocolError, match="after Leave"):
        bench.feed(events.Contact(IDS[1]))


def test_a_leaver_tells_those_first_whom_it_can_reach_at_once() -> None:
    bench = Bench(9)
    reach = frozenset(IDS[6:8])
    effects = bench.feed(events.Leave("power cut", reach))
    told = [peer for peer, _ in sent(effects, Sync)]
    assert len(set(told)) == limits.SWIM_FAREWELLS
    assert set(told[:2]) == reach


def test_who_left_returns_with_a_new_epoch_only() -> None:
    bench = Bench(5)
    [change] = changes(bench.hear(claim(3, left="bye")))
    assert change == Changed(IDS[3], MemberState.ALIVE, MemberState.LEFT, 1, "bye")
    assert IDS[3] not in bench.core.live_members()
    assert bench.hear(claim(3, incarnation=5)) == []
    assert bench.state(3) is MemberState.LEFT
    assert changes(bench.hear(claim(3, epoch=2))) == [
        Changed(IDS[3], MemberState.LEFT, MemberState.ALIVE, 2)
    ]


def test_a_restart_is_reported_even_if_no_member_noticed_the_crash() -> None:
    bench = Bench(5)
    assert changes(bench.hear(claim(3, incarnation=1))) == [], "it refuted a doubt"
    assert changes(bench.hear(claim(3, epoch=2))) == [
        Changed(IDS[3], MemberState.ALIVE, MemberState.ALIVE, 2)
    ]


def test_the_dead_are_called_now_and_then_and_forgotten_in_the_end() -> None:
    bench = Bench(3)
    bench.hear(claim(2, doubt="dead"))
    bench.hear(claim(1, doubt="dead"))
    bench.advance(SuspicionTimes.for_swarm(3).shortest_s + 0.1)
    assert bench.core.live_members() == ()
    called = {peer for peer, _ in sent(bench.advance(60.0), Sync)}
    assert called == {IDS[1], IDS[2]}
    for _ in range(40):
        bench.advance(100.0)
    assert bench.state(1) is None


def test_a_copied_key_is_noticed() -> None:
    bench = Bench(3, epoch=4)
    assert events.KeyConflict(5, 0) in bench.hear(claim(0, epoch=5))
    assert events.KeyConflict(4, 3) in bench.hear(claim(0, epoch=4, incarnation=3))
    assert bench.hear(claim(0, epoch=3, left="bye")) == [], "that was us, before"


# --- forgery -----------------------------------------------------------------------------


def test_a_forged_claim_convicts_its_sender_and_changes_nothing() -> None:
    bench = Bench(3)
    forged = Claim(PEERS[2].public_key, 9, 0, bytes(64))
    with pytest.raises(AuthenticationFailed, match="claim of member") as caught:
        bench.hear(claim(5), forged)
    assert caught.value.peer == str(IDS[1])
    assert bench.state(5) is None
    assert bench.core.version_of(IDS[2]) == (1, 0)


def test_a_claim_of_another_network_is_refused() -> None:
    other = Ed25519Notary(PEERS[5].identity, hashlib.sha256(b"other").digest())
    foreign = Claim(other.public_key, 1, 0, other.sign(1, 0, None))
    with pytest.raises(AuthenticationFailed):
        Bench(3).hear(foreign)


def test_a_goodbye_cannot_be_altered() -> None:
    true = claim(2, left="bye")
    for left in (None, "fired"):
        altered = Claim(true.key, 1, 7, true.signature, left)
        with pytest.raises(AuthenticationFailed):
            Bench(3).hear(altered)


def test_a_message_from_ourselves_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="from ourselves"):
        Bench(3).receive(0, Ping(1, ()))


# --- health and lost time ----------------------------------------------------------------


def test_health_slows_probes_down_and_recovers() -> None:
    health = LocalHealth()
    health.worsen(20)
    assert health.multiplier == limits.SWIM_HEALTH_MAX + 1
    for _ in range(20):
        health.improve()
    assert health.multiplier == 1


def test_a_failed_probe_with_all_nacks_is_not_our_fault() -> None:
    for nacks, score in ((True, 0), (False, limits.SWIM_HELPERS)):
        bench = Bench(9)
        _, ping = bench.next_ping()
        for helper, _ in sent(bench.advance(limits.SWIM_ACK_S), PingRequest):
            if nacks:
                bench.receive(IDS.index(helper), Nack(ping.seq))
        bench.next_ping()
        assert bench.core.statistics().health_score == score


def test_time_that_we_slept_counts_against_no_member() -> None:
    bench = Bench(9)
    target, ping = bench.next_ping()
    bench.hear(claim(8 if IDS[8] != target else 7, doubt="suspect", by=(1, 2, 3, 4)))
    bench.now += 3600.0
    bench.core.handle_deadline(bench.now)
    assert changes(bench.core.poll_effects()) == []
    bench.receive(IDS.index(target), Ack(ping.seq, ()))
    assert bench.core.state_of(target) is MemberState.ALIVE
    assert bench.core.statistics().stalls_total == 1
    assert changes(bench.advance(SHORTEST_S + 2)) != [], "the suspicion runs on, awake"


def test_the_clock_reaches_each_deadline_that_the_shell_reached() -> None:
    clock = LivedClock(lost_s=0.1 + 0.2)
    rng = random.Random(3)
    for _ in range(1000):
        due = rng.uniform(0, 1e6)
        lived, has_stalled = clock.lived(clock.monotonic(due), due)
        assert lived >= due
        assert not has_stalled


def test_after_a_stall_the_deadline_lies_ahead_so_that_what_arrived_is_read_first() -> None:
    clock = LivedClock()
    lived, has_stalled = clock.lived(100.0, 10.0)
    assert has_stalled
    assert lived == 10.0 - limits.SWIM_STALL_GRACE_S
    assert clock.monotonic(10.0) == 100.0 + limits.SWIM_STALL_GRACE_S
    assert clock.lived(101.0, None) == (lived + 1.0, False)


# --- rumours -----------------------------------------------------------------------------


def test_the_least_sent_news_goes_first_and_all_news_ends() -> None:
    rumours = Rumours()
    for peer in IDS[:4]:
        rumours.push(peer)
    assert rumours.take(2, 8) == IDS[:2]
    assert rumours.take(2, 8) == IDS[2:4]
    rumours.push(IDS[3])
    assert rumours.take(1, 8) == [IDS[3]]
    sent_count = 5
    while taken := rumours.take(3, 8):
        sent_count += len(taken)
    assert sent_count == 4 * retransmissions_max(8) + 1
    assert len(rumours) == 0


def test_news_about_the_receiver_waits_for_another_member() -> None:
    rumours = Rumours()
    rumours.push(IDS[1])
    assert rumours.take(5, 8, besides=(IDS[1],)) == []
    assert rumours.take(5, 8) == [IDS[1]]


# --- bounds ------------------------------------------------------------------------------


def test_the_largest_sync_fits_into_a_message() -> None:
    largest = Claim(bytes(32), 2**63 - 1, 2**63 - 1, bytes(64), None, "suspect", (bytes(32),) * 4)
    longest = Claim(bytes(32), 2**63 - 1, 2**63 - 1, bytes(64), "x" * 64)
    for one in (largest, longest):
        page = Sync(wants_reply=True, claims=(one,) * limits.SWIM_SYNC_CLAIMS_MAX)
        assert len(encode_record(page)) <= limits.MESSAGE_BYTES_MAX
        assert decode_record(encode_record(page), Sync) == page


def test_more_members_than_a_page_are_sent_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWIM_SYNC_CLAIMS_MAX", 4)
    bench = Bench(9)
    bench.hear(claim(1, doubt="suspect", by=(2,)))
    seen: set[bytes] = set()
    for _ in range(4):
        [(_, message)] = sent(bench.feed(events.Contact(IDS[1])), Sync)
        assert isinstance(message, Sync)
        assert len(message.claims) <= 4
        seen |= {one.key for one in message.claims}
    assert seen >= {notary.public_key for notary in PEERS[2:9]}


def test_news_never_passes_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWIM_NEWS_MAX", 3)
    bench = Bench(0)
    bench.hear(*(claim(number) for number in range(1, 9)), claim(2, doubt="suspect", by=(3,)))
    for _ in range(20):
        peer, ping = bench.next_ping()
        assert 1 <= len(ping.news) <= 3
        bench.receive(IDS.index(peer), Ack(ping.seq, ()))
    [(_, ack)] = sent(bench.receive(2, Ping(1, (claim(2),))), Ack)
    assert isinstance(ack, Ack)
    assert len(ack.news) <= 3


def test_the_dead_are_called_as_often_as_they_are_many_without_a_wake_in_each_period() -> None:
    table = MemberTable(random.Random(1))
    for number in range(1, 9):
        table.add(IDS[number], claim(number), 0.0, is_met=True)
    assert table.periods_until_call() == float("inf")  # there is none to call
    for n_dead in (1, 4):
        for number in range(1, n_dead + 1):
            member = table.get(IDS[number])
            assert member is not None
            table.set_state(member, MemberState.DEAD, 1.0)
        drawn = [table.periods_until_call() for _ in range(4000)]
        assert min(drawn) == 1
        # As of one coin a period with the share of the dead among nine: 9 / n_dead.
        assert sum(drawn) / len(drawn) == pytest.approx(9 / n_dead, rel=0.06)


def test_pages_go_round_through_all_members_in_turn() -> None:
    table = MemberTable(random.Random(1))
    for number in range(1, 9):
        table.add(IDS[number], claim(number), 0.0, is_met=True)
    pages = [table.page(3) for _ in range(8)]
    assert [member.peer for page in pages for member in page] == sorted(IDS[1:9]) * 3
    assert len(table) == len(table.page(8)) == 8
