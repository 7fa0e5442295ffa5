"""Which member of a gathering is asked for which message, when, and which are told."""

from __future__ import annotations

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.gather import GatherCore, GatherStatistics
from swarmnode.protocol.gossip.gather_events import (
    Announce,
    Arrived,
    Cancel,
    Effect,
    Fetch,
    Forget,
    Heard,
    Held,
    Lost,
    NotGiven,
    Publish,
    Settled,
    Tell,
)
from swarmnode.protocol.gossip.gather_set import Announced
from swarmnode.testing.gather_world import GATHER_ID, GatherWorld
from swarmnode.wire.exchange.gather import Have

SMALL, LARGE = limits.GATHER_SPREAD_BYTES_MIN - 1, limits.GATHER_SPREAD_BYTES_MIN


class Gathering:
    """One core among ``n`` members, which are numbered in the order of their ids."""

    def __init__(self, n: int, own: int = 0, size_bytes: int = SMALL) -> None:
        self._world = GatherWorld(n, 1, size_bytes=size_bytes)
        self._members = sorted(self._world.members, key=lambda each: each.peer_id)
        self.ids: list[PeerId] = [each.peer_id for each in self._members]
        self.shown = [self.message(number) for number in range(n)]
        self.core = GatherCore(self.ids[own], self._world.terms)

    def message(self, author: int, content: int = 0) -> Announced:
        digest = bytes([author, content]) * 16
        return self._world.terms.announce(self._members[author].identity, digest)

    def announce(self, *authors: int, now: float = 0.0) -> list[Effect]:
        for author in authors:
            self.core.handle(Announce(self.shown[author]), now)
        return self.core.poll_effects()

    def hear(self, peer: int, *authors: int, now: float = 0.0) -> list[Effect]:
        have = Have(GATHER_ID, tuple(self.shown[author].digest for author in authors))
        self.core.handle(Heard(self.ids[peer], have), now)
        return self.core.poll_effects()

    def arrive(self, peer: int, author: int, now: float = 0.0) -> list[Effect]:
        self.core.handle(Arrived(self.ids[peer], self.shown[author].digest), now)
        return self.core.poll_effects()

    def fail(self, peer: int, author: int, now: float, *, is_wrong: bool = False) -> list[Effect]:
        failed = NotGiven(self.ids[peer], self.shown[author].digest, is_wrong)
        self.core.handle(failed, now)
        return self.core.poll_effects()

    def lose(self, peer: int, now: float = 0.0) -> list[Effect]:
        self.core.handle(Lost(self.ids[peer]), now)
        return self.core.poll_effects()

    def settle(self, *messages: Announced, now: float = 0.0) -> list[Effect]:
        self.core.handle(Settled(messages), now)
        return self.core.poll_effects()

    def wait(self, now: float) -> list[Effect]:
        self.core.handle_deadline(now)
        return self.core.poll_effects()

    def fetch(self, peer: int, author: int) -> Fetch:
        return Fetch(self.ids[peer], self.shown[author])

    def cancel(self, peer: int, author: int) -> Cancel:
        return Cancel(self.ids[peer], self.shown[author].digest)


# --- the own message --------------------------------------------------------------------------


def test_who_publishes_holds_its_message_and_tells_each_other_member_what_it_signed() -> None:
    at = Gathering(4, own=1)
    own = at.shown[1]
    at.lose(3)
    at.core.handle(Publish(own), 0.0)
    have = Have(GATHER_ID, (own.digest,), own.signed)
    told: list[Effect] = [Tell(at.ids[0], have), Tell(at.ids[2], have)]
    assert at.core.poll_effects() == [Held(own.digest), *told], "one that is gone hears nothing"
    assert at.core.is_held(own.digest)
    assert at.core.held() == at.core.known() == (own,)
    assert at.core.statistics() == GatherStatistics(1, 1, 0, 0)
    assert at.core.next_deadline() is None


def test_the_own_message_is_kept_even_if_it_is_no_part_of_the_set() -> None:
    at = Gathering(3)
    at.core.handle(Publish(at.shown[0]), 0.0)
    at.core.poll_effects()
    assert at.settle(at.shown[1]) == [at.fetch(1, 1)]
    assert at.core.is_held(at.shown[0].digest)


def test_what_is_held_is_told_in_the_order_of_authors_and_one_message_of_each() -> None:
    at = Gathering(4, own=3)
    at.announce(2, 0)
    at.arrive(2, 2)
    assert at.core.held() == (at.shown[2],)
    at.arrive(0, 0)
    assert at.core.held() == (at.shown[0], at.shown[2])
    other = at.message(0, content=1)
    at.settle(at.shown[2], other)
    assert not at.core.is_held(at.shown[0].digest)
    assert not at.core.is_held(other.digest), "it is known, and not here"
    assert at.core.held() == (at.shown[2],)
    assert at.core.statistics() == GatherStatistics(1, 2, 0, 0)


# --- whom it asks -------------------------------------------------------------------------------


def test_authors_are_asked_from_the_one_behind_this_node_on_and_only_a_few_at_a_time() -> None:
    n = limits.GATHER_FETCHES_MAX + 4
    own = n - 3
    at = Gathering(n, own)
    behind = [*range(own + 1, n), *range(own)]
    at.core.handle(Publish(at.shown[own]), 0.0)
    at.core.poll_effects()
    # All become known at once, so that the order is that of the ids.
    asked = at.settle(*at.shown)
    assert asked == [at.fetch(peer, peer) for peer in behind[: limits.GATHER_FETCHES_MAX]]
    later = behind[limits.GATHER_FETCHES_MAX :]
    assert at.arrive(behind[1], behind[1]) == [
        Held(at.shown[behind[1]].digest),
        at.fetch(later[0], later[0]),
    ]
    assert at.wait(1.0) == [], "as many are on their way as may be"
    assert at.lose(behind[0], 1.0) == [
        at.cancel(behind[0], behind[0]),
        at.fetch(later[1], behind[0]),
    ]


def test_what_a_member_says_of_others_is_where_to_ask_and_not_what_they_signed() -> None:
    at = Gathering(4)
    have = Have(GATHER_ID, (at.shown[2].digest,))
    at.core.handle(Heard(at.ids[1], have, at.shown[2]), 0.0)
    assert at.core.known() == (), "an announcement counts from its author"
    at.core.handle(Heard(at.ids[2], have, at.shown[2]), 0.0)
    assert at.core.known() == (at.shown[2],)
    assert at.core.poll_effects() == [at.fetch(2, 2)]
    assert at.hear(0, 2) == at.hear(1, 2) == []
    assert at.fail(2, 2, 1.0) == [at.fetch(1, 2)], "itself is no holder"


def test_a_word_of_oneself_or_of_a_stranger_counts_for_nothing() -> None:
    at = Gathering(3)
    stranger = max(GatherWorld(4, 1).by_id.keys() - {*at.ids})
    for peer in (stranger, at.ids[0]):
        have = Have(GATHER_ID, (at.shown[1].digest,))
        at.core.handle(Announce(at.shown[1]), 0.0)
        at.core.handle(Heard(peer, have), 0.0)
    assert at.core.poll_effects() == [at.fetch(1, 1)]
    assert at.lose(1) == [at.cancel(1, 1)]
    mine = Have(GATHER_ID, (at.shown[0].digest,), at.shown[0].signed)
    at.core.handle(Heard(at.ids[0], mine, at.shown[0]), 0.0)
    assert at.core.known() == (at.shown[1],)


def test_of_several_holders_the_one_that_gave_least_is_asked_then_the_lowest_id() -> None:
    at = Gathering(6)
    assert at.announce(1, 2) == [at.fetch(1, 1), at.fetch(2, 2)]
    assert at.arrive(1, 1) == [Held(at.shown[1].digest)]
    assert at.lose(5) == []
    assert at.announce(5) == []
    assert at.hear(1, 5) == [at.fetch(1, 5)]
    for peer in (2, 4, 3):
        at.hear(peer, 5)
    # 1 was asked twice and 2 once; of 3 and 4, which were not, the first.
    assert at.fail(1, 5, 0.0) == [at.fetch(3, 5)]
    assert at.fail(3, 5, 0.0) == [at.fetch(4, 5)]
    assert at.fail(4, 5, 0.0) == [at.fetch(2, 5)]
    assert at.fail(2, 5, 0.0) == []
    # All may be asked again: 3 and 4 once each so far.
    assert at.wait(limits.GATHER_RETRY_S) == [at.fetch(3, 5)]


def test_any_member_may_have_what_is_in_the_set_where_no_holder_is_left() -> None:
    at = Gathering(5)
    assert at.announce(2) == [at.fetch(2, 2)]
    assert at.lose(2) == [at.cancel(2, 2)], "before the set is known none else would have it"
    assert at.lose(1) == []
    assert at.settle(at.shown[2]) == [at.fetch(3, 2)]
    assert at.fail(3, 2, 0.0, is_wrong=True) == [at.fetch(4, 2)]
    assert at.wait(limits.GATHER_HEDGE_S) == [], "beside one that is asked no guess is made"
    assert at.core.statistics() == GatherStatistics(0, 1, 1, 0)


def test_what_is_lost_is_asked_of_others_and_a_member_that_speaks_again_is_back() -> None:
    at = Gathering(4)
    at.announce(1, 2)
    at.hear(3, 1)
    assert at.lose(1) == [at.cancel(1, 1), at.fetch(3, 1)], "only what it was asked for ends"
    assert at.lose(3) == [at.cancel(3, 1)]
    assert at.core.statistics().failed_total == 0, "a lost peer has not failed"
    assert at.hear(1) == [at.fetch(1, 1)]
    assert at.lose(3) == [], "nothing is asked of it"


# --- what comes ---------------------------------------------------------------------------------


def test_a_message_comes_once_and_one_that_is_not_known_never() -> None:
    at = Gathering(3)
    at.announce(1)
    assert at.arrive(1, 2) == []
    assert not at.core.is_held(at.shown[2].digest)
    assert at.arrive(1, 1) == [Held(at.shown[1].digest)]
    assert at.arrive(2, 1) == []
    assert at.core.statistics() == GatherStatistics(1, 1, 0, 0)


def test_a_fetch_that_comes_to_nothing_is_repeated_after_a_while_and_counted_once() -> None:
    at = Gathering(3)
    at.announce(1)
    assert at.fail(2, 1, 10.0) == [], "it was not asked"
    assert at.core.statistics().failed_total == 0
    assert at.fail(1, 1, 10.0) == []
    assert at.fail(1, 1, 10.0) == []
    assert at.core.statistics() == GatherStatistics(0, 1, 1, 0)
    due = 10.0 + limits.GATHER_RETRY_S
    assert at.core.next_deadline() == due
    assert at.wait(due - 0.01) == []
    assert at.wait(due) == [at.fetch(1, 1)]
    assert at.core.next_deadline() == due + limits.GATHER_HEDGE_S


def test_what_arrives_is_asked_of_none_any_more_and_no_retry_is_left() -> None:
    at = Gathering(3)
    at.announce(1)
    at.hear(2, 1)
    assert at.fail(1, 1, 0.0) == [at.fetch(2, 1)]
    assert at.arrive(2, 1) == [Held(at.shown[1].digest)]
    assert at.core.next_deadline() is None


def test_what_is_no_part_of_the_set_is_forgotten_held_or_not_and_the_rest_goes_on() -> None:
    at = Gathering(5)
    at.announce(1, 2, 3)
    at.arrive(1, 1)
    assert at.settle(at.shown[3], at.shown[4]) == [
        Forget(at.shown[1].digest),
        at.cancel(2, 2),
        Forget(at.shown[2].digest),
        at.fetch(4, 4),
    ]
    assert at.core.known() == (at.shown[3], at.shown[4])
    assert at.announce(2) == [], "of an author that is not in the set nothing is fetched"


# --- a second holder ----------------------------------------------------------------------------


def test_a_second_holder_is_asked_where_the_first_is_slow_and_no_third() -> None:
    at = Gathering(5)
    at.announce(1, now=10.0)
    for peer in (2, 3):
        at.hear(peer, 1, now=10.0)
    due = 10.0 + limits.GATHER_HEDGE_S
    assert at.core.next_deadline() == due
    assert at.wait(due - 0.01) == []
    assert at.wait(due) == [at.fetch(2, 1)]
    assert at.core.next_deadline() is None
    assert at.wait(due + limits.GATHER_HEDGE_S) == []
    assert at.core.statistics() == GatherStatistics(0, 1, 0, 1)
    assert at.lose(2, due + 1.0) == [at.cancel(2, 1)]
    assert at.core.next_deadline() == due, "the first is as slow as it was"
    assert at.wait(due + 1.0) == [at.fetch(3, 1)]
    assert at.core.statistics().hedged_total == 2
    assert at.arrive(3, 1, due + 2.0) == [at.cancel(1, 1), Held(at.shown[1].digest)]
    assert at.lose(1, due + 2.0) == [], "of it nothing is asked any more"


def test_where_there_is_no_second_holder_it_is_looked_for_again_later() -> None:
    at = Gathering(3)
    at.announce(1, now=10.0)
    due = 10.0 + limits.GATHER_HEDGE_S
    assert at.wait(due) == []
    assert at.core.statistics().hedged_total == 0
    assert at.core.next_deadline() == due + limits.GATHER_HEDGE_S
    assert at.hear(2, 1, now=due) == [], "its time begins anew"
    assert at.wait(due + limits.GATHER_HEDGE_S - 0.01) == []
    assert at.wait(due + limits.GATHER_HEDGE_S) == [at.fetch(2, 1)]


def test_each_message_that_is_slow_has_its_own_second_holder() -> None:
    at = Gathering(4)
    at.announce(1, now=0.0)
    at.announce(2, now=1.0)
    at.hear(3, 1, 2, now=1.0)
    assert at.core.next_deadline() == limits.GATHER_HEDGE_S, "that of the first one"
    assert at.wait(limits.GATHER_HEDGE_S) == [at.fetch(3, 1)]
    assert at.core.next_deadline() == 1.0 + limits.GATHER_HEDGE_S
    assert at.wait(1.0 + limits.GATHER_HEDGE_S) == [at.fetch(3, 2)]


# --- what is told -------------------------------------------------------------------------------


def test_of_small_messages_nothing_is_told_and_of_large_ones_a_moment_after_the_first() -> None:
    small, at = Gathering(4), Gathering(4, size_bytes=LARGE)
    for each in (small, at):
        each.announce(1, 2, 3, now=10.0)
        each.lose(3, now=10.0)
        each.arrive(1, 1, now=10.0)
    assert small.core.next_deadline() == 10.0 + limits.GATHER_HEDGE_S
    due = 10.0 + limits.GATHER_TELL_S
    assert at.core.next_deadline() == due
    at.arrive(2, 2, now=due - 0.1)
    assert at.core.next_deadline() == due, "it goes with the first"
    have = Have(GATHER_ID, (at.shown[1].digest, at.shown[2].digest))
    told: list[Effect] = [Tell(at.ids[1], have), Tell(at.ids[2], have)]
    assert at.wait(due) == told, "nothing goes to one that is gone"
    assert at.core.next_deadline() is None
    assert at.wait(due + 1.0) == [], "once"
    assert at.hear(3, now=20.0) == [at.fetch(3, 3)]
    at.arrive(3, 3, now=20.0)
    have = Have(GATHER_ID, (at.shown[3].digest,))
    assert at.wait(20.0 + limits.GATHER_TELL_S) == [Tell(peer, have) for peer in at.ids[1:]]
