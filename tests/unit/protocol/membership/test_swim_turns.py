"""When a failure detector does what, to the second, what it then sends, and to whom."""

from __future__ import annotations

import random

import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LocalProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.membership import swim_events as events
from swarmnode.protocol.membership.health import SuspicionTimes
from swarmnode.protocol.membership.swim_events import Changed, MemberState, Send, SwimStatistics
from swarmnode.wire.swim import Ack, Claim, Nack, Ping, PingRequest, Sync
from tests.unit.protocol.membership.swim_kit import (
    IDS,
    PEERS,
    SHORTEST_S,
    Bench,
    Trusting,
    changes,
    claim,
    made_up,
    sent,
    stranger,
)

PERIOD_S, ACK_S = limits.SWIM_PERIOD_S, limits.SWIM_ACK_S
EARLIEST, LATEST = 0.0, 1.0


class Drawn(random.Random):
    """Draws always the same place of a range: its beginning, its end, or between."""

    def __init__(self, place: float) -> None:
        super().__init__(1)
        self.place = place

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.place


def bench_at(place: float, n_members: int = 3) -> Bench:
    return Bench(n_members, rng=Drawn(place))


def probed(bench: Bench) -> tuple[int, int]:
    """Go on to the next probe; return (number of the peer, seq)."""
    target, ping = bench.next_ping()
    return IDS.index(target), ping.seq


def answer_all(bench: Bench, seconds: float, *, out_of_reach: int = 0) -> list[events.Effect]:
    """Let time pass in which every member answers, one of them others only; return all effects."""
    until, effects = bench.now + seconds, []
    while (due := bench.core.next_deadline()) is not None and due <= until:
        new = bench.step(due)
        effects += new
        for peer, ping in sent(new, Ping):
            assert isinstance(ping, Ping)
            helper = peer
            if peer == IDS[out_of_reach]:
                helper, _ = sent(bench.feed(events.SendFailed(peer)), PingRequest)[0]
            if helper in IDS:
                effects += bench.receive(IDS.index(helper), Ack(ping.seq, ()))
    bench.now = until
    return effects


def send_all_news(bench: Bench) -> None:
    """Let two members ask until they have heard all there is."""
    while bench.core.statistics().rumours:
        for number in (1, 2):
            bench.receive(number, Ping(1, ()))


def suspect(bench: Bench, number: int) -> None:
    """Let others say that one does not answer."""
    bench.hear(claim(number, doubt="suspect", by=(8,)))


def kill(bench: Bench, *numbers: int) -> None:
    for number in numbers:
        bench.hear(claim(number, doubt="dead"))
    answer_all(bench, SuspicionTimes.for_swarm(9).shortest_s + 0.1)
    assert all(bench.state(number) is MemberState.DEAD for number in numbers)


# --- periods ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "first_s", "period_s"),
    [
        (EARLIEST, 0.0, PERIOD_S * (1 - limits.SWIM_JITTER)),
        (LATEST, PERIOD_S, PERIOD_S * (1 + limits.SWIM_JITTER)),
    ],
)
def test_a_period_is_as_long_as_it_is_drawn(place: float, first_s: float, period_s: float) -> None:
    bench = bench_at(place)
    began_at = bench.now
    number, seq = probed(bench)
    assert bench.now == pytest.approx(began_at + first_s)
    for _ in range(3):
        bench.receive(number, Ack(seq, ()))
        before = bench.now
        number, seq = probed(bench)
        assert bench.now == pytest.approx(before + period_s)


@pytest.mark.parametrize(
    ("place", "first_s", "interval_s"),
    [
        (EARLIEST, 0.0, limits.SWIM_SYNC_S * (1 - limits.SWIM_JITTER)),
        (LATEST, limits.SWIM_SYNC_S, limits.SWIM_SYNC_S * (1 + limits.SWIM_JITTER)),
    ],
)
def test_views_are_compared_with_one_member_now_and_then(
    place: float, first_s: float, interval_s: float
) -> None:
    bench = bench_at(place, 2)
    compared_at = []
    until = bench.now + 3 * limits.SWIM_SYNC_S
    while (due := bench.core.next_deadline()) is not None and due <= until:
        effects = bench.step(due)
        for peer, question in sent(effects, Sync):
            assert peer == IDS[1]
            assert isinstance(question, Sync)
            assert question.wants_reply
            assert question.claims == (claim(0),)
            compared_at.append(bench.now)
        for _, ping in sent(effects, Ping):
            assert isinstance(ping, Ping)
            bench.receive(1, Ack(ping.seq, ()))
    first = 100.0 + first_s
    assert compared_at[:2] == pytest.approx([first, first + interval_s])


def crowded_bench(n_members: int) -> Bench:
    """Return a core that so many members have told that they are there, itself included."""
    bench = Bench(3, notary=Trusting(), rng=Drawn(LATEST))
    for number in range(n_members - 3):
        peer, word = stranger(number)
        bench.feed(events.Received(peer, Sync(wants_reply=False, claims=(word,))))
    assert len(bench.core.live_members()) == n_members - 1
    return bench


@pytest.mark.parametrize(
    ("n_news", "n_syncs"), [(limits.SWIM_NEWS_MAX, 0), (limits.SWIM_NEWS_MAX + 1, 1)]
)
def test_with_more_news_than_pings_carry_views_are_compared_in_every_period(
    n_news: int, n_syncs: int
) -> None:
    bench = crowded_bench(n_news)
    assert bench.core.statistics().rumours == n_news
    bench.next_ping()
    assert len(sent(bench.advance(PERIOD_S), Sync)) == n_syncs


def test_a_node_that_is_unwell_probes_less_often_and_waits_longer() -> None:
    bench = bench_at(0.5, 6)
    number, seq = probed(bench)
    bench.receive(number, Ack(seq, ()))
    for incarnation in range(2):
        bench.hear(claim(0, 1, incarnation, doubt="suspect", by=(2,)))
    assert bench.core.statistics().health_score == 2
    number, seq = probed(bench)
    began_at = bench.now
    requests: list[object] = []
    while not requests:
        requests = [*sent(bench.step(bench.core.next_deadline() or 0.0), PingRequest)]
    assert bench.now == pytest.approx(began_at + 3 * ACK_S)
    bench.receive(number, Ack(seq, ()))
    assert bench.core.statistics().health_score == 1
    probed(bench)
    assert bench.now == pytest.approx(began_at + 3 * PERIOD_S)
    assert bench.core.statistics().probes_failed_total == 0


# --- probes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_nacks", range(limits.SWIM_HELPERS + 1))
def test_each_helper_that_is_silent_says_that_the_trouble_is_ours(n_nacks: int) -> None:
    bench = bench_at(0.5, 9)
    _, seq = probed(bench)
    requests = sent(bench.advance(ACK_S), PingRequest)
    assert all(isinstance(each, PingRequest) and each.seq == seq for _, each in requests)
    for helper, _ in requests[:n_nacks]:
        bench.receive(IDS.index(helper), Nack(seq))
        bench.receive(IDS.index(helper), Nack(seq + 1))
    bench.advance(PERIOD_S - ACK_S)
    statistics = bench.core.statistics()
    assert statistics.health_score == limits.SWIM_HELPERS - n_nacks
    assert statistics.probes_failed_total == statistics.suspected_total == 1


def test_without_helpers_a_failed_probe_says_a_little_that_the_trouble_is_ours() -> None:
    bench = bench_at(0.5, 2)
    probed(bench)
    bench.advance(PERIOD_S)
    assert bench.core.statistics().health_score == 1
    assert bench.state(1) is MemberState.SUSPECT


def test_an_answer_makes_up_for_one_sign_of_trouble() -> None:
    bench = bench_at(0.5, 6)
    bench.hear(claim(0, doubt="suspect", by=(2,)))
    assert bench.core.statistics().health_score == 1
    number, seq = probed(bench)
    bench.receive(number, Ack(seq + 1, ()))
    assert bench.core.statistics().health_score == 1, "it answers another one"
    bench.receive(number, Ack(seq, ()))
    assert bench.core.statistics().health_score == 0
    bench.hear(claim(0, 1, 1, doubt="suspect", by=(2,)))
    bench.receive(number, Ack(seq, ()))
    assert bench.core.statistics().health_score == 1, "answered twice"


def test_one_that_leaves_while_it_is_probed_is_not_suspected() -> None:
    bench = bench_at(0.5, 4)
    number, _ = probed(bench)
    bench.hear(claim(number, left="bye"), sender=number)
    bench.advance(PERIOD_S)
    assert bench.core.statistics().probes_failed_total == 0
    assert bench.core.statistics().health_score == 0


def test_helpers_are_different_members_and_those_with_a_session_first() -> None:
    bench = bench_at(0.5, 9)
    number, _ = probed(bench)
    others = [each for each in range(1, 9) if each != number]
    carriers = tuple(IDS[each] for each in (others[4], others[2], others[4]))
    requests = sent(bench.feed(events.SendFailed(IDS[number], carriers)), PingRequest)
    helpers = [peer for peer, _ in requests]
    assert helpers[:2] == [IDS[others[4]], IDS[others[2]]]
    assert len(set(helpers)) == len(helpers) == limits.SWIM_HELPERS
    assert bench.feed(events.SendFailed(IDS[number], carriers)) == [], "they are asked already"
    assert sent(bench.advance(ACK_S), PingRequest) == []


def test_that_another_member_cannot_be_reached_asks_no_helpers() -> None:
    bench = bench_at(0.5, 9)
    number, _ = probed(bench)
    other = next(each for each in range(1, 9) if each != number)
    assert bench.feed(events.SendFailed(IDS[other])) == []
    assert len(sent(bench.advance(ACK_S), PingRequest)) == limits.SWIM_HELPERS


# --- helping ----------------------------------------------------------------------------------


def test_a_helper_gives_up_at_most_of_the_time_that_the_asker_waits() -> None:
    bench = bench_at(LATEST, 5)
    [(_, ping)] = sent(bench.receive(1, PingRequest(33, IDS[2], ())), Ping)
    assert isinstance(ping, Ping)
    gives_up_at = bench.now + limits.SWIM_NACK_SHARE * (PERIOD_S - ACK_S)
    assert bench.core.next_deadline() == pytest.approx(gives_up_at)
    effects = bench.step(bench.core.next_deadline() or 0.0)
    assert effects == [Send(IDS[1], Nack(33))]
    assert sent(bench.receive(2, Ack(ping.seq, ())), Ack) == [], "too late"


def test_a_helper_answers_for_itself_and_says_no_for_strangers() -> None:
    bench = bench_at(0.5, 5)
    [(peer, ack)] = sent(bench.receive(1, PingRequest(33, IDS[0], ())), Ack)
    assert isinstance(ack, Ack)
    assert (peer, ack.seq) == (IDS[1], 33)
    assert bench.receive(1, PingRequest(34, IDS[8], ())) == [Send(IDS[1], Nack(34))]


def test_a_helper_has_only_so_many_requests_under_way() -> None:
    bench = bench_at(LATEST, 5)
    pings = []
    for seq in range(limits.SWIM_RELAYS_MAX):
        pings += sent(bench.receive(1, PingRequest(seq, IDS[2], ())), Ping)
    assert len(pings) == limits.SWIM_RELAYS_MAX
    assert bench.receive(3, PingRequest(99, IDS[4], ())) == [Send(IDS[3], Nack(99))]
    last = pings[-1][1]
    assert isinstance(last, Ping)
    [(peer, ack)] = sent(bench.receive(2, Ack(last.seq, ())), Ack)
    assert isinstance(ack, Ack)
    assert (peer, ack.seq) == (IDS[1], limits.SWIM_RELAYS_MAX - 1)
    assert sent(bench.receive(3, PingRequest(99, IDS[4], ())), Ping) != []


def test_a_request_for_one_that_cannot_be_reached_is_refused_at_once_and_no_other() -> None:
    bench = bench_at(LATEST, 5)
    bench.receive(1, PingRequest(33, IDS[2], ()))
    bench.receive(1, PingRequest(34, IDS[3], ()))
    bench.feed(events.SendFailed(IDS[2]))
    assert bench.core.next_deadline() == bench.now
    assert bench.step(bench.now) == [Send(IDS[1], Nack(33))]
    assert bench.core.next_deadline() == pytest.approx(bench.now + 0.8)


# --- members that others tell of --------------------------------------------------------------


def test_only_so_many_that_others_tell_of_are_asked_in_a_period() -> None:
    bench = bench_at(0.5, 2)
    bench.hear(*(made_up(number) for number in range(30)))
    n_unmet = len(bench.core.live_members()) - 1
    assert n_unmet == 1
    while not (pings := sent(bench.step(bench.core.next_deadline() or 0.0), Ping)):
        pass
    assert len(pings) == 1 + limits.SWIM_HEARSAY_AT_ONCE
    seqs = [ping.seq for _, ping in pings if isinstance(ping, Ping)]
    assert len(set(seqs)) == len(seqs)


def test_one_that_answers_when_it_is_asked_has_been_met_and_others_hear_of_it() -> None:
    bench = bench_at(0.5, 2)
    bench.hear(claim(2), claim(3))
    bench.receive(3, Ack(1, ()))
    [(_, page)] = sent(bench.feed(events.Contact(IDS[7])), Sync)
    assert isinstance(page, Sync)
    assert sorted(keys_of(page.claims)) == sorted((IDS[0], IDS[1], IDS[3]))


class Counting(Trusting):
    """Counts the claims that are checked, which cost more than all else."""

    n_checks = 0

    def check(self, claim: Claim) -> None:
        self.n_checks += 1


def test_a_version_that_is_known_is_not_checked_again() -> None:
    notary = Counting()
    bench = Bench(3, notary=notary)
    assert notary.n_checks == 2
    bench.hear(claim(1), claim(2, doubt="suspect", by=(8,)), claim(0, doubt="suspect"))
    assert notary.n_checks == 2
    bench.hear(claim(1, 1, 1))
    assert notary.n_checks == 3


def test_one_that_finds_a_place_after_all_is_asked_no_more_than_other_members() -> None:
    bench = bench_at(0.5, 2)
    bench.hear(claim(2), claim(3))
    assert bench.state(3) is None, "one may live on the word of others"
    bench.receive(2, Nack(1))
    bench.hear(claim(3))
    assert bench.state(3) is MemberState.ALIVE
    bench.next_ping()
    assert len(sent(bench.effects, Ping)) == 1


@pytest.mark.parametrize(("late_s", "is_told"), [(-0.1, True), (0.0, False)])
def test_that_one_was_met_is_news_as_long_as_others_may_not_have_met_it(
    late_s: float, is_told: bool
) -> None:
    bench = bench_at(LATEST, 4)
    send_all_news(bench)
    bench.hear(claim(5))
    answer_all(bench, limits.SWIM_MENDING_S + late_s, out_of_reach=5)
    assert bench.state(5) is MemberState.ALIVE
    assert bench.core.statistics().rumours == 0
    bench.receive(5, Nack(1))
    assert bench.core.statistics().rumours == is_told


# --- doubts -----------------------------------------------------------------------------------


def test_a_suspect_is_warned_at_once_with_what_is_said_of_it() -> None:
    bench = bench_at(0.5, 4)
    effects = bench.hear(claim(3, doubt="suspect", by=(2,)))
    assert changes(effects) == [Changed(IDS[3], MemberState.ALIVE, MemberState.SUSPECT, 1)]
    [(peer, ping)] = sent(effects, Ping)
    assert peer == IDS[3]
    assert isinstance(ping, Ping)
    assert ping.news[:2] == (claim(0), claim(3, doubt="suspect", by=(2,)))
    assert sent(bench.hear(claim(3, doubt="suspect", by=(1,))), Ping) == [], "it knows"


def test_a_doubt_without_accusers_is_its_senders_and_no_member_accuses_itself() -> None:
    for by, accusers in (((), (2,)), ((3,), (2,)), ((3, 4), (4,))):
        bench = bench_at(0.5, 6)
        bench.hear(claim(3, doubt="suspect", by=by), sender=2)
        [(_, ack)] = sent(bench.receive(3, Ping(1, ())), Ack)
        assert isinstance(ack, Ack)
        assert ack.news[0] == claim(3, doubt="suspect", by=accusers)


@pytest.mark.parametrize(
    ("n_members", "state"),
    [
        (limits.SWIM_CONFIRMATIONS + 1, MemberState.DEAD),
        (limits.SWIM_CONFIRMATIONS + 2, MemberState.SUSPECT),
    ],
)
def test_no_member_waits_for_confirmations_where_too_few_could_confirm(
    n_members: int, state: MemberState
) -> None:
    bench = bench_at(0.5, n_members)
    suspect(bench, 3)
    answer_all(bench, SHORTEST_S + 0.1, out_of_reach=3)
    assert bench.state(3) is state


def test_each_new_accuser_of_a_suspect_is_news_again() -> None:
    bench = bench_at(LATEST, 9)
    suspect(bench, 3)
    send_all_news(bench)
    bench.hear(claim(3, doubt="suspect", by=(8,)))
    assert bench.core.statistics().rumours == 0
    bench.hear(claim(3, doubt="suspect", by=(7,)))
    assert bench.core.statistics().rumours == 1


def test_a_doubt_of_one_that_is_gone_is_none() -> None:
    bench = bench_at(0.5, 9)
    kill(bench, 3)
    bench.hear(claim(4, left="bye"), sender=4)
    assert bench.hear(claim(3, doubt="suspect", by=(2,)), claim(4, doubt="dead", by=(2,))) == []
    assert bench.state(4) is MemberState.LEFT


def test_a_refutation_with_a_new_doubt_is_both() -> None:
    bench = bench_at(0.5, 9)
    suspect(bench, 3)
    effects = bench.hear(claim(3, 1, 1, doubt="suspect", by=(2,)))
    assert changes(effects) == [
        Changed(IDS[3], MemberState.SUSPECT, MemberState.ALIVE, 1),
        Changed(IDS[3], MemberState.ALIVE, MemberState.SUSPECT, 1),
    ]


def test_our_own_word_is_signed_anew_once_for_each_version_that_is_doubted() -> None:
    bench = bench_at(0.5, 4)
    assert bench.hear(claim(0)) == []
    assert bench.core.version_of(IDS[0]) == (1, 0)
    bench.hear(claim(0, doubt="suspect", by=(2,)), claim(0, doubt="dead", by=(3,)))
    assert bench.core.version_of(IDS[0]) == (1, 1)
    statistics = bench.core.statistics()
    assert (statistics.refuted_total, statistics.incarnation, statistics.health_score) == (1, 1, 1)
    assert bench.core.version_of(IDS[8]) is None
    assert bench.core.version_of(IDS[1]) == (1, 0)


# --- coming and going -------------------------------------------------------------------------


def test_the_dead_are_called_soon_where_many_are_and_are_told_what_is_held() -> None:
    bench = bench_at(LATEST, 9)
    kill(bench, *range(2, 9))
    calls = {peer for peer, _ in sent(answer_all(bench, 30.0), Sync) if peer != IDS[1]}
    assert len(calls) > 4
    for effect in bench.effects:
        if isinstance(effect, Send) and isinstance(effect.message, Sync) and effect.peer in calls:
            assert effect.message.wants_reply
            number = IDS.index(effect.peer)
            assert effect.message.claims[1:] in ((claim(number, doubt="dead"),), ())


@pytest.mark.parametrize("n_dead", [1, 6])
def test_a_call_is_due_after_so_many_seconds_as_are_drawn(n_dead: int) -> None:
    waits_s = []
    for seed in range(40):
        bench = Bench(9, rng=random.Random(seed))
        kill(bench, *range(1, 1 + n_dead))
        began_at = bench.now
        while not any(
            peer in IDS[1 : 1 + n_dead] for peer, _ in sent(answer_all(bench, 0.25), Sync)
        ):
            pass
        waits_s.append(bench.now - began_at)
    # As of one coin a second with the share of the dead among nine.
    assert sum(waits_s) / len(waits_s) == pytest.approx(limits.SWIM_RECALL_S * 9 / n_dead, rel=0.4)


@pytest.mark.parametrize("gone", ["dead", "left"])
def test_the_gone_are_remembered_for_so_long(gone: str) -> None:
    bench = bench_at(LATEST, 4)
    if gone == "dead":
        kill(bench, 3)
    else:
        bench.hear(claim(3, left="bye"), sender=3)
    answer_all(bench, limits.SWIM_GONE_KEEP_S - SHORTEST_S)
    assert IDS[3] in bench.core.members()
    assert IDS[3] not in bench.core.live_members()
    answer_all(bench, SHORTEST_S + 2 * limits.SWIM_SYNC_S)
    assert IDS[3] not in bench.core.members()


@pytest.mark.parametrize(
    ("reason", "told"), [("", "left"), ("x" * 64, "x" * 64), ("x" * 65, "x" * 64)]
)
def test_a_goodbye_has_a_reason_of_so_many_characters(reason: str, told: str) -> None:
    bench = bench_at(0.5, 3)
    for peer, farewell in sent(bench.feed(events.Leave(reason)), Sync):
        assert peer in IDS[1:3]
        assert farewell == Sync(wants_reply=False, claims=(claim(0, left=told),))
    assert len(bench.effects) == 2
    assert bench.core.next_deadline() is None
    assert bench.receive(1, Ping(1, ())) == []
    bench.core.handle_deadline(bench.now + 10.0)
    assert bench.core.poll_effects() == []
    with pytest.raises(LocalProtocolError, match="Leave after Leave"):
        bench.feed(events.Leave("again"))


def test_one_that_comes_back_from_the_dead_is_told_and_mended_for_so_long() -> None:
    bench = bench_at(LATEST, 9)
    kill(bench, 3)
    bench.hear(claim(3, incarnation=1), sender=3)
    n_syncs = len(sent(answer_all(bench, limits.SWIM_MENDING_S), Sync))
    assert n_syncs == pytest.approx(limits.SWIM_MENDING_S / PERIOD_S, abs=3)
    assert len(sent(answer_all(bench, limits.SWIM_MENDING_S), Sync)) <= 4


@pytest.mark.parametrize("was", ["left", "alive"])
def test_one_that_comes_back_from_elsewhere_mends_nothing(was: str) -> None:
    bench = bench_at(LATEST, 9)
    if was == "left":
        bench.hear(claim(3, left="bye"), sender=3)
    bench.hear(claim(3, 2), sender=3)
    assert len(sent(answer_all(bench, limits.SWIM_MENDING_S), Sync)) <= 4


def test_one_that_is_gone_and_was_never_met_comes_back_by_itself_or_if_there_is_room() -> None:
    bench = bench_at(LATEST, 2)
    bench.hear(claim(2))
    bench.hear(claim(2, left="bye"))
    bench.hear(claim(3))
    assert bench.state(3) is MemberState.ALIVE, "as many on the word of others as were met"
    bench.hear(claim(2, 2))
    assert bench.state(2) is MemberState.LEFT
    bench.hear(claim(2, 2), sender=2)
    assert bench.state(2) is MemberState.ALIVE


def test_members_that_find_no_room_among_those_that_are_there_are_counted() -> None:
    bench = crowded_bench(limits.SWIM_MEMBERS_MAX + 1)
    for n_refused in (1, 2):
        assert bench.hear(claim(5), sender=5) == []
        assert bench.core.statistics().table_full_total == n_refused
    assert bench.state(5) is None


# --- pages and news ---------------------------------------------------------------------------


def keys_of(claims: tuple[Claim, ...]) -> list[PeerId]:
    return [PeerId.from_public_key(each.key) for each in claims]


def test_a_page_is_filled_to_the_last_claim() -> None:
    bench = crowded_bench(limits.SWIM_SYNC_CLAIMS_MAX + 2)
    for said in ((), (claim(1, doubt="suspect", by=(8,)),)):
        bench.hear(*said)
        [(_, page)] = sent(bench.feed(events.Contact(IDS[1])), Sync)
        assert isinstance(page, Sync)
        assert keys_of(page.claims)[0] == IDS[0]
        assert page.claims[1 : 1 + len(said)] == said
        assert len(page.claims) == limits.SWIM_SYNC_CLAIMS_MAX


def test_a_ping_is_filled_with_news_to_the_last_claim() -> None:
    bench = crowded_bench(limits.SWIM_NEWS_MAX + 2)
    _, ping = bench.next_ping()
    assert keys_of(ping.news)[0] == IDS[0]
    assert len(set(keys_of(ping.news))) == len(ping.news) == limits.SWIM_NEWS_MAX
    news = news_for(bench, 1)
    assert IDS[1] not in keys_of(news)
    assert len(news) == limits.SWIM_NEWS_MAX - 1
    suspect(bench, 1)
    news = news_for(bench, 1)
    assert news[0] == claim(1, doubt="suspect", by=(8,))
    assert len(news) == limits.SWIM_NEWS_MAX - 1


def news_for(bench: Bench, number: int) -> tuple[Claim, ...]:
    """Let a member ping; return what it is told."""
    [(_, ack)] = sent(bench.receive(number, Ping(1, ())), Ack)
    assert isinstance(ack, Ack)
    return ack.news


def test_a_newer_word_of_a_member_is_passed_on_in_whatever_state_it_is() -> None:
    bench = bench_at(LATEST, 4)
    send_all_news(bench)
    bench.hear(claim(3, 1, 1), sender=3)
    assert news_for(bench, 1) == (claim(3, 1, 1),)
    doubt = claim(3, 1, 1, doubt="suspect", by=(8,))
    bench.hear(doubt)
    assert news_for(bench, 2) == (doubt,)
    bench.hear(claim(3, 1, 2), sender=3)
    assert news_for(bench, 1) == (claim(3, 1, 2),)


def test_that_we_are_there_after_all_is_told_to_everyone() -> None:
    bench = bench_at(LATEST, 4)
    send_all_news(bench)
    assert news_for(bench, 1) == ()
    bench.hear(claim(0, doubt="suspect", by=(2,)))
    assert news_for(bench, 1) == news_for(bench, 3) == (claim(0, 1, 1),)


def test_a_doubt_that_is_refuted_of_one_that_was_never_met_is_news_no_more() -> None:
    bench = bench_at(LATEST, 4)
    send_all_news(bench)
    bench.hear(claim(5))
    assert bench.core.statistics().rumours == 0
    suspect(bench, 5)
    assert news_for(bench, 2) == (claim(5, doubt="suspect", by=(8,)),)
    bench.hear(claim(5, 1, 1))
    assert bench.core.statistics().rumours == 1
    assert news_for(bench, 1) == ()
    assert bench.core.statistics().rumours == 0


def test_a_question_is_answered_by_what_it_asks() -> None:
    bench = bench_at(0.5, 4)
    own = claim(3)
    assert bench.receive(3, Sync(wants_reply=False, claims=(own,))) == []
    [(_, page)] = sent(bench.receive(3, Sync(wants_reply=True, claims=(own,))), Sync)
    assert isinstance(page, Sync)
    assert (page.wants_reply, page.digest) == (False, None)
    [(_, page)] = sent(bench.receive(3, Sync(True, (own,), bytes(16))), Sync)
    assert isinstance(page, Sync)
    assert (page.wants_reply, page.digest) == (True, None)
    assert sorted(keys_of(page.claims)) == sorted(IDS[:4])


def test_that_another_has_our_key_is_believed_only_of_what_that_key_has_signed() -> None:
    bench = bench_at(0.5, 3)
    key = PEERS[0].public_key
    for forged in (
        Claim(key, 9, 0, bytes(64)),
        Claim(key, 1, 7, bytes(64)),
        Claim(key, 1, 0, bytes(64), "bye"),
    ):
        with pytest.raises(AuthenticationFailed, match="claim of member") as caught:
            bench.hear(forged)
        assert caught.value.peer == str(IDS[1])
        assert bench.core.poll_effects() == []
    assert bench.hear(Claim(key, 1, 0, bytes(64))) == [], "no more than what we say ourselves"


def test_everything_is_counted() -> None:
    bench = bench_at(0.5, 6)
    kill(bench, 1)
    bench.hear(claim(2, left="bye"), sender=2)
    suspect(bench, 3)
    bench.hear(claim(0, doubt="suspect", by=(3,)))
    statistics = bench.core.statistics()
    assert statistics == SwimStatistics(
        alive=2,
        suspect=1,
        dead=1,
        left=1,
        incarnation=1,
        health_score=1,
        rumours=statistics.rumours,
        probes_total=statistics.probes_total,
        probes_failed_total=0,
        suspected_total=2,
        died_total=1,
        refuted_total=1,
        stalls_total=0,
        table_full_total=0,
    )
    assert statistics.rumours >= 3


def test_time_that_was_lost_is_a_sign_that_the_trouble_is_ours() -> None:
    bench = bench_at(0.5, 6)
    due = bench.core.next_deadline()
    assert due is not None
    bench.now = due + limits.SWIM_STALL_S + 0.5
    assert bench.step(bench.now) == []
    statistics = bench.core.statistics()
    assert (statistics.stalls_total, statistics.health_score) == (1, 1)
    assert bench.core.next_deadline() == pytest.approx(bench.now + limits.SWIM_STALL_GRACE_S)
