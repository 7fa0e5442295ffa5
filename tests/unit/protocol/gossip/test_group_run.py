"""Whose word counts when members of one run go on without each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.group_events import (
    Abort,
    Begin,
    CutApart,
    Effect,
    HeldRound,
    Loaded,
    Named,
    PeerSilent,
    Received,
    Send,
    TakePayload,
    UsePlan,
)
from swarmnode.protocol.gossip.round_patience import RoundPatience
from swarmnode.wire.exchange.group import Enlist, Flush, Leave, Share

SELF, OTHER, THIRD, LEFT_OUT, STALLER = (PeerId(bytes([n]) * 32) for n in range(1, 6))
ALL = (SELF, OTHER, THIRD, LEFT_OUT, STALLER)
GID = bytes(16)


def views_told(
    *, came: tuple[PeerId, ...], doubted: frozenset[PeerId], gid: bytes = GID
) -> list[tuple[PeerId, ...]]:
    """Return the views that are told when a member says that another is left out.

    It is left out itself by a third, a little later.
    """
    core = GroupCore(SELF)
    core.handle(Begin(gid, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, doubted=doubted), 0.0)
    for peer in came:
        core.handle(Received(peer, Enlist(gid, False)), 0.1)
    for teller, missing in ((STALLER, LEFT_OUT), (OTHER, STALLER)):
        view = tuple(bytes(peer) for peer in ALL if peer != missing)
        core.handle(Received(teller, Flush(gid, view, ())), 0.2)
    return views_in(core.poll_effects())


def views_in(told: list[Effect]) -> list[tuple[PeerId, ...]]:
    """Return the views that are told, each once."""
    views = [
        effect.message.view
        for effect in told
        if isinstance(effect, Send) and isinstance(effect.message, Flush)
    ]
    return [tuple(map(PeerId, view)) for view in dict.fromkeys(views)]


EARLY = (OTHER, LEFT_OUT, STALLER)
FEWEST = ALL[:3]  # a majority; another word more, and nothing comes of the round


@pytest.mark.parametrize("came", [EARLY, (*EARLY, THIRD)], ids=["roll", "flush"])
def test_none_goes_without_another_on_the_word_of_one_that_held_rounds(
    came: tuple[PeerId, ...],
) -> None:
    assert views_told(came=came, doubted=frozenset({STALLER}))[-1] == (*FEWEST, LEFT_OUT)
    assert views_told(came=came, doubted=frozenset())[-1] == FEWEST
    # Both have held rounds: then it is one word against another, and a lot decides.
    both = frozenset({STALLER, LEFT_OUT})
    told = {views_told(came=came, doubted=both, gid=bytes([n]) * 16)[-1] for n in range(8)}
    assert told == {FEWEST, (*FEWEST, LEFT_OUT)}


def test_a_roll_stays_open_for_one_that_has_not_come_if_who_would_close_it_is_doubted() -> None:
    came = (OTHER, THIRD, STALLER)
    assert views_told(came=came, doubted=frozenset({STALLER})) == [(*FEWEST, LEFT_OUT)]
    assert views_told(came=came, doubted=frozenset())[-1] == FEWEST


@pytest.mark.parametrize("came", [(), ALL[1:]], ids=["at once", "in the flush"])
def test_who_says_that_nearly_all_are_gone_is_gone_itself(came: tuple[PeerId, ...]) -> None:
    core = GroupCore(SELF)
    core.handle(Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, lineage=1), 0.0)
    for peer in came:
        core.handle(Received(peer, Enlist(GID, False, 1)), 0.1)
    core.handle(Received(STALLER, Flush(GID, (bytes(SELF), bytes(STALLER)), ())), 0.2)
    told = core.poll_effects()
    assert [each for each in told if isinstance(each, CutApart | Abort)] == [CutApart(GID, STALLER)]
    assert views_in(told)[-1:] == ([without(STALLER)] if came else [])
    agree(core, without(STALLER), 0.3)
    assert means_of(core.poll_effects()) == [without(STALLER)]


def means_of(told: list[Effect]) -> list[tuple[PeerId, ...]]:
    """Return over whom means are made."""
    return [effect.contributors for effect in told if isinstance(effect, UsePlan)]


def agree(core: GroupCore, view: tuple[PeerId, ...], now: float) -> None:
    """Let all others of a view come, and tell it."""
    for peer in view[1:]:
        core.handle(Received(peer, Enlist(GID, False, 1)), now)
    for peer in view[1:]:
        core.handle(Received(peer, Flush(GID, tuple(map(bytes, view)), ())), now)


def without(*left_out: PeerId) -> tuple[PeerId, ...]:
    return tuple(peer for peer in ALL if peer not in left_out)


def tell(core: GroupCore, teller: PeerId, *left_out: PeerId, now: float = 0.2) -> None:
    """Let a member tell a view without some."""
    core.handle(Received(teller, Flush(GID, tuple(map(bytes, without(*left_out))), ())), now)


def begun(**changes: Any) -> GroupCore:
    """Return a core at which all have come."""
    core = GroupCore(SELF)
    core.handle(Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, **changes), 0.0)
    for peer in ALL[1:]:
        core.handle(Received(peer, Enlist(GID, False)), 0.1)
    return core


def test_only_the_first_pays_whose_word_has_left_out_others_if_nothing_comes_of_it() -> None:
    core = begun()
    tell(core, STALLER, LEFT_OUT)
    tell(core, THIRD, LEFT_OUT, OTHER)  # as others have told it since
    tell(core, THIRD, LEFT_OUT, STALLER)
    told = core.poll_effects()
    cuts = [each for each in told if isinstance(each, CutApart)]
    assert cuts == [CutApart(GID, STALLER)]
    assert [each.why for each in told if isinstance(each, Abort)] == ["too few are left"]


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "last"])
def test_a_doubted_member_that_never_agrees_is_waited_for_by_none(is_late: bool) -> None:
    core = begun(doubted=frozenset({STALLER}))
    if not is_late:
        tell(core, STALLER, LEFT_OUT)
    for peer in (OTHER, THIRD, LEFT_OUT):
        tell(core, peer)
    if is_late:
        tell(core, STALLER, LEFT_OUT)
    rest = without(STALLER)
    told = core.poll_effects()
    assert views_in(told)[-1] == rest
    agree(core, rest, 0.3)
    told += core.poll_effects()
    assert means_of(told) == [rest]
    assert not any(isinstance(each, HeldRound | CutApart) for each in told), "none has waited"


def test_a_doubted_member_that_leaves_a_mean_that_is_made_is_not_waited_for_either() -> None:
    core = begun(doubted=frozenset({STALLER}))
    for peer in ALL[1:]:
        tell(core, peer)
    core.handle(Loaded(GID), 0.2)
    plan = next(each.plan for each in core.poll_effects() if isinstance(each, UsePlan))
    for peer in (OTHER, THIRD, LEFT_OUT):
        core.handle(Received(peer, Share(GID, 0, 1.0, plan)), 0.3)
    tell(core, STALLER, LEFT_OUT, now=0.4)
    assert views_in(core.poll_effects()) == [without(STALLER)]


def test_one_that_will_never_agree_is_not_waited_for_once_all_else_has_come() -> None:
    core = begun(doubted=frozenset({STALLER}))
    for peer in ALL[1:]:
        tell(core, peer)
    core.handle(Loaded(GID), 0.2)
    plan = next(each.plan for each in core.poll_effects() if isinstance(each, UsePlan))
    tell(core, STALLER, LEFT_OUT, now=0.3)
    for peer in (OTHER, THIRD, LEFT_OUT):
        core.handle(Received(peer, Share(GID, 0, 1.0, plan)), 0.4)
    assert views_in(core.poll_effects()) == []
    _, told = deadlines_until(core, lambda effect: isinstance(effect, Send))
    assert views_in(told) == [without(STALLER)]


def test_what_a_member_told_before_counts_when_this_one_comes_to_the_same() -> None:
    core = begun(doubted=frozenset({STALLER}))
    tell(core, STALLER, LEFT_OUT)
    tell(core, OTHER, LEFT_OUT)
    tell(core, THIRD, LEFT_OUT)
    assert means_of(core.poll_effects()) == [without(LEFT_OUT)]


def test_a_member_for_which_a_roll_was_held_pays_for_no_wait() -> None:
    for behind, charged in ((frozenset(), {LEFT_OUT, STALLER}), ({STALLER}, {LEFT_OUT})):
        core = GroupCore(SELF)
        begin = Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, lineage=1)
        core.handle(replace(begin, behind=frozenset(behind), behind_s=6.0), 0.0)
        for peer in FEWEST[1:]:
            core.handle(Received(peer, Enlist(GID, False, 1)), 0.1)
        _, told = deadlines_until(core, lambda effect: isinstance(effect, HeldRound))
        assert {each.peer for each in told if isinstance(each, HeldRound)} == charged


def waiting_for_the_maker(**changes: Any) -> GroupCore:
    """Return the core of one that waits for the sums of SELF, from 0.0 on for two seconds."""
    core = GroupCore(OTHER)
    core.handle(Begin(GID, ALL, 1, 1.0, 5.0, 1.0, electorate=ALL, **changes), 0.0)
    others = [peer for peer in ALL if peer != OTHER]
    for peer in others:
        core.handle(Received(peer, Enlist(GID, False)), 0.0)
    for peer in others:
        tell(core, peer, now=0.0)
    core.poll_effects()
    return core


def paid(told: list[Effect]) -> dict[PeerId, float]:
    """Return who has held the others for how long."""
    return {each.peer: each.held_s for each in told if isinstance(each, HeldRound)}


@pytest.mark.parametrize("calls", [True, False], ids=["log", "group"])
def test_who_makes_all_of_a_round_pays_half_for_whom_it_leaves_out(calls: bool) -> None:
    """All wait for it alone, and only it knows whose share is missing."""
    core = waiting_for_the_maker(calls=calls)
    tell(core, SELF, STALLER, now=1.0)
    assert paid(core.poll_effects()) == {SELF: 0.5, STALLER: 0.5}


def test_of_two_the_one_that_is_doubted_pays_all() -> None:
    for doubted, charged in (
        ({SELF}, {SELF: 1.0}),
        ({STALLER}, {STALLER: 1.0}),
        ({SELF, STALLER}, {SELF: 0.5, STALLER: 0.5}),
        ({THIRD}, {SELF: 0.5, STALLER: 0.5}),
    ):
        core = waiting_for_the_maker(doubted=frozenset(doubted))
        tell(core, SELF, STALLER, now=1.0)
        assert paid(core.poll_effects()) == charged


@pytest.mark.parametrize(
    ("at", "charged", "notes"),
    [
        (0.6, {}, [Named(GID, STALLER, frozenset({SELF}))]),
        (0.8, {SELF: 0.4, STALLER: 0.4}, [Named(GID, STALLER, frozenset({SELF}), True)]),
        (1.75, {SELF: 1.75}, []),
    ],
    ids=["at once", "when its share may be what is missing", "when all have waited"],
)
def test_one_that_names_whom_the_others_wait_for_may_be_the_reason(
    at: float, charged: dict[PeerId, float], notes: list[Named]
) -> None:
    core = waiting_for_the_maker()
    tell(core, STALLER, SELF, now=at)
    told = core.poll_effects()
    assert paid(told) == charged
    assert [each for each in told if isinstance(each, Named)] == notes
    assert views_in(told) == [without(SELF)]


def test_the_word_of_a_doubted_member_ends_no_wait_before_its_time() -> None:
    core = waiting_for_the_maker(doubted=frozenset({STALLER}))
    tell(core, STALLER, SELF, now=0.8)
    assert core.poll_effects() == []
    core = waiting_for_the_maker(doubted=frozenset({STALLER}))
    tell(core, STALLER, SELF, now=1.75)
    assert views_in(core.poll_effects()) == [without(SELF)]


def test_a_doubted_member_that_was_waited_for_pays_and_is_left_out() -> None:
    core = waiting_for_the_maker(doubted=frozenset({SELF}))
    tell(core, SELF, STALLER, now=1.0)
    told = core.poll_effects()
    assert paid(told) == {SELF: 1.0}
    assert views_in(told) == [without(SELF)], "it never agrees"


def test_a_doubted_member_pays_once_however_often_it_says_so() -> None:
    core = begun(doubted=frozenset({STALLER}))
    tell(core, LEFT_OUT)
    for at in (2.1, 2.6, 3.1):
        tell(core, STALLER, LEFT_OUT, now=at)
    told = core.poll_effects()
    assert [each for each in told if isinstance(each, HeldRound)] == [HeldRound(GID, STALLER, 2.0)]


def test_none_pays_for_a_word_that_leaves_enough_of_them() -> None:
    core = GroupCore(SELF)
    core.handle(Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, lineage=1), 0.0)
    for peer in (OTHER, THIRD):
        core.handle(Received(peer, Enlist(GID, False, 1)), 0.1)
    core.handle(Received(OTHER, Flush(GID, tuple(map(bytes, FEWEST)), ())), 0.2)
    told = core.poll_effects()
    assert not any(isinstance(each, HeldRound | CutApart | Abort) for each in told)


def test_after_one_such_word_its_author_is_doubted_for_half_a_minute_and_not_left_out() -> None:
    patience = RoundPatience()
    patience.note_said(CutApart(GID, STALLER), 0.0)
    assert patience.doubted(ALL, 29.0) == {STALLER}
    assert patience.doubted(ALL, 31.0) == frozenset()
    assert patience.waited_for(ALL, SELF, 0.0) == ALL


def deadlines_until(
    core: GroupCore, is_last: Callable[[Effect], bool]
) -> tuple[float, list[Effect]]:
    """Let deadlines pass until one has such an effect; return when, and all that was done."""
    told: list[Effect] = []
    for _ in range(100):
        now = core.next_deadline()
        assert now is not None
        core.handle_deadline(now)
        effects = core.poll_effects()
        told += effects
        if any(map(is_last, effects)):
            return now, told
    raise AssertionError("it goes on for ever")


def told_by_all(*members: PeerId) -> GroupCore:
    """Return the core of the first, which has heard since 100.0 that the others are there."""
    core = GroupCore(members[0])
    core.handle(Begin(GID, members, 5, 1.0, 5.0, 70.0), 100.0)
    for peer in members[1:]:
        core.handle(Received(peer, Enlist(GID, False)), 100.5)
    return core


def test_who_is_silent_is_left_out_and_charged_with_the_time_for_which_it_was_waited_for() -> None:
    core = told_by_all(SELF, OTHER, THIRD)
    everyone = tuple(map(bytes, (SELF, OTHER, THIRD)))
    core.handle(Received(OTHER, Flush(GID, everyone, ())), 100.6)
    assert core.statistics().views_total == 1
    now, told = deadlines_until(core, lambda _: core.statistics().views_total > 1)
    assert now == 100.5 + limits.GROUP_FLUSH_S
    charged = [each for each in told if isinstance(each, HeldRound)]
    assert charged == [HeldRound(GID, THIRD, limits.GROUP_FLUSH_S)]
    assert core.statistics().views_total == 2


def test_of_two_members_neither_goes_on_alone_while_the_other_may_be_slow() -> None:
    core = told_by_all(SELF, OTHER)
    core.handle(PeerSilent(OTHER), 101.0)
    assert core.statistics().running == 1


@pytest.mark.parametrize(
    ("came", "lineage", "charged"),
    [((OTHER,), 3, set()), ((OTHER, THIRD), 3, {LEFT_OUT, STALLER}), ((OTHER, THIRD), None, set())],
    ids=["fewer than half", "a quorum", "no lineage"],
)
def test_who_misses_a_roll_pays_for_the_wait_only_if_half_of_the_members_called(
    came: tuple[PeerId, ...], lineage: int | None, charged: set[PeerId]
) -> None:
    core = GroupCore(SELF)
    begin = Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, quorum_s=9.0, lineage=lineage)
    core.handle(begin, 0.0)
    for peer in came:
        core.handle(Received(peer, Enlist(GID, False, lineage)), 0.5)
    core.poll_effects()
    _, told = deadlines_until(core, lambda each: isinstance(each, TakePayload | Abort))
    assert {each.peer for each in told if isinstance(each, HeldRound)} == charged


def test_where_no_other_member_comes_nothing_is_taken_of_the_worker() -> None:
    core = GroupCore(SELF)
    core.handle(Begin(GID, ALL, 5, 1.0, 5.0, 70.0), 0.0)
    _, told = deadlines_until(core, lambda _: not core.statistics().running)
    assert not any(isinstance(each, TakePayload | HeldRound) for each in told)
    assert [each.why for each in told if isinstance(each, Abort)] == ["no other member came"]


@pytest.mark.parametrize(
    ("refusing", "reason", "ends_s"),
    [
        (3, "behind: other rounds were made since", 5.0),
        (2, "behind: other rounds were made since", 20.0),
        (3, "left out of the view", 20.0),
    ],
)
def test_where_later_rounds_are_behind_most_members_none_waits_for_a_quorum(
    refusing: int, reason: str, ends_s: float
) -> None:
    """One that has not come may take a minute, and a mean would need another one, too."""
    core = GroupCore(SELF)
    begin = Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, quorum_s=20.0, lineage=7)
    core.handle(begin, 0.0)
    for peer in ALL[1 : 1 + refusing]:
        core.handle(Received(peer, Leave(GID, reason)), 0.1)
    at, _ = deadlines_until(core, lambda effect: isinstance(effect, Abort))
    assert at == ends_s


def test_a_member_that_tells_of_its_view_is_there_though_its_first_word_was_lost() -> None:
    core = GroupCore(SELF)
    core.handle(Begin(GID, (SELF, OTHER, THIRD), 5, 1.0, 5.0, 70.0), 0.0)
    core.handle(Received(OTHER, Flush(GID, tuple(map(bytes, (SELF, OTHER, THIRD))), ())), 0.5)
    deadlines_until(core, lambda _: core.statistics().views_total > 1)
    assert core.statistics().running == 1
