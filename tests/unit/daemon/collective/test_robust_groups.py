"""Group means by a rule: each piece is made of all shares, and the worker says which candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio

from swarmnode.daemon.collective.payload import RobustPayload
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.ids import PeerId
from swarmnode.ipc.control import ViewShape
from swarmnode.limits import EXCHANGE_VIEW_S
from swarmnode.protocol.gossip import group_events as events
from swarmnode.strategies.merging.rules import candidates, encode_parts, find_rule
from swarmnode.tensor.pieces import cut_chunks
from tests.kits.lessor_kit import FakeLessor, Tossed, intent, party
from tests.unit.daemon.collective.test_group_shell import members

NUMEL = 4096
VIEWS = (ViewShape("delta", "RAW32", NUMEL),)


async def made_by(n, n_hostile, rule, *, prefers=1, compare_s=0.0, views=VIEWS):
    """Return the mean of members who share a direction, but for the first; and all of them."""
    shared = np.random.default_rng(1).standard_normal(NUMEL).astype(np.float32)
    async with members(n, numel=NUMEL) as (made, all_of_them):
        ordered = sorted(all_of_them, key=lambda member: member.node.peer)
        for number, member in enumerate(ordered):
            member.lessor.vector += shared
            if number < n_hostile:
                member.lessor.vector = -10 * shared
            member.lessor.prefers, member.lessor.compare_s = prefers, compare_s
        for member in ordered:
            member.groups.intent_posted(intent(views=views, merge=rule))
        await made.until(lambda: all(member.lessor.told for member in ordered), 4 * EXCHANGE_VIEW_S)
    assert {member.lessor.told[0][0] for member in ordered} == {"apply"}
    assert all(np.array_equal(member.mean, ordered[0].mean) for member in ordered)
    return shared, ordered


@pytest.mark.parametrize(
    "rule", ["best-of", "nnm-trimmed", "clipped-mean", "trimmed-mean", "sybil-mean"]
)
async def test_two_of_eight_who_turn_it_around_are_outweighed(autojump_clock, rule) -> None:
    shared, ordered = await made_by(8, 2, rule)
    mean = ordered[0].mean
    assert mean @ shared > 0.5 * np.linalg.norm(mean) * np.linalg.norm(shared)


async def test_the_mean_lets_them_turn_it(autojump_clock) -> None:
    shared, ordered = await made_by(8, 2, "mean")
    assert ordered[0].mean @ shared < 0


async def test_what_a_rule_takes_more_than_the_mean_is_counted(autojump_clock) -> None:
    _, ruled = await made_by(8, 0, "sybil-mean")
    assert all(member.groups.rule_s > 0 for member in ruled)
    _, plain = await made_by(8, 0, "mean")
    assert not any(member.groups.rule_s for member in plain)


@pytest.mark.parametrize("prefers", [0, 1])
async def test_the_worker_of_who_makes_a_piece_takes_one_of_two(autojump_clock, prefers) -> None:
    _, ordered = await made_by(8, 2, "best-of", prefers=prefers)
    begins = sorted(begin for member in ordered for begin, _ in member.lessor.compared)
    assert begins == [number * NUMEL // 8 for number in range(8)]
    rows = np.stack([member.lessor.vector for member in ordered])
    for member in ordered:
        ((begin, compared),) = member.lessor.compared
        end = begin + NUMEL // 8
        piece = rows[:, begin:end]
        found = candidates(find_rule("best-of"), lambda piece=piece: iter([piece]), [1.0] * 8)
        assert compared == [each.tobytes() for each in found]
        assert np.array_equal(member.mean[begin:end], found[prefers])


async def test_a_worker_that_does_not_answer_leaves_it_at_the_last(autojump_clock) -> None:
    _, slow = await made_by(8, 2, "best-of", prefers=0, compare_s=EXCHANGE_VIEW_S + 1)
    _, quick = await made_by(8, 2, "best-of", prefers=1)
    assert np.array_equal(slow[0].mean, quick[0].mean)


async def test_views_are_looked_at_one_by_one(autojump_clock) -> None:
    """What is hostile in one view has no say about the other; the probe knows the first only."""
    views = (ViewShape("delta", "RAW32", 1000), ViewShape("phi", "RAW32", NUMEL - 1000))
    _, ordered = await made_by(8, 2, "best-of", prefers=0, views=views)
    assert all(begin < 1000 for member in ordered for begin, _ in member.lessor.compared)
    assert 1 <= sum(len(member.lessor.compared) for member in ordered) < 8


@pytest.mark.parametrize("factor", [300, 1e30])
async def test_a_share_that_only_some_find_too_large_ends_no_round(autojump_clock, factor) -> None:
    """What is too large beside one's own vector depends on that, and the others' may be larger."""
    async with members(6, numel=NUMEL) as (made, all_of_them):
        liar, *honest = sorted(all_of_them, key=lambda member: member.node.peer)
        for number, member in enumerate(honest):
            member.lessor.vector *= 1 + 4 * (number % 2)
        liar.lessor.vector[:] = factor
        for member in (liar, *honest):
            member.groups.intent_posted(intent(views=VIEWS, merge="sybil-mean"))
        await made.until(lambda: all(member.lessor.told for member in honest), 4 * EXCHANGE_VIEW_S)
    ids = tuple(sorted(bytes(member.node.peer) for member in (liar, *honest)))
    for member in honest:
        assert member.lessor.told == [("apply", 1, None, ids)], "one mean, of all of them"
        along = abs(float(member.mean.sum())) / NUMEL**0.5  # as far as the liar pulls
        assert along < 4, "and nothing of the liar in it: clipped it would come to 13"
    assert any(member.groups.payloads_refused_total for member in honest), "it is counted"


async def lying(call, *args):
    """Do what is asked, but for what this member makes of its piece: that is turned around."""
    found = call(*args)
    if call is encode_parts:
        found = [bytearray((-np.frombuffer(each, np.float32)).tobytes()) for each in found]
    return found


async def test_who_lies_about_its_piece_spoils_rounds_until_it_is_left_out(autojump_clock) -> None:
    numel = 262_400  # so many are averaged in a thread, where the liar does as it likes
    async with members(5, numel=numel) as (made, all_of_them):
        liar, *honest = all_of_them
        liar.node.env.in_thread = lying
        for member in honest:
            member.node.env.rng = Tossed(0.0)  # a witness from the first round on
        for number in range(1, 9):
            for member in all_of_them:
                about = {"lineage": 0, "base_version": b"v", "round": number}
                views = (ViewShape("delta", "RAW32", numel),)
                member.groups.intent_posted(intent(number, views=views, merge="best-of", **about))
            await made.until(lambda n=number: all(len(m.lessor.told) == n for m in honest))
            if honest[0].lessor.kinds[-1] == "apply":
                break
    *before, last = honest[0].lessor.told
    assert before, "a lie ends a round"
    assert {told[0] for told in before} == {"give_back"}
    assert last[3] == tuple(sorted(bytes(member.node.peer) for member in honest))
    assert {tuple(member.lessor.kinds) for member in honest} == {tuple(honest[0].lessor.kinds)}
    for member in honest:
        seen = member.node.trust
        assert seen.counts(liar.node.peer).refused > 0, "remembered over a restart, too"
        assert not any(seen.counts(other.node.peer).refused for other in honest)


class _PutTogetherSlowly(RobustPayload):
    """Of a large model on a slow machine: the first plan is replaced while that goes on."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.replaced, self.plans = trio.Event(), set()

    def use_plan(self, plan: bytes, n_pieces: int, contributors: Sequence[PeerId]) -> None:
        super().use_plan(plan, n_pieces, contributors)
        self.plans.add(plan)
        if len(self.plans) == 2:
            self.replaced.set()

    async def assemble(self) -> bytes:
        found = await super().assemble()
        await self.replaced.wait()
        return found


class _Runner:
    """A node with the runs of one kind, and how they ended."""

    def __init__(self, node) -> None:
        self.node, self.ended = node, []
        self.runs = GroupRuns("group", node.communicator())
        self.run = self.runs.run

    def begin(self, members) -> None:
        posted = intent(views=VIEWS, merge="sybil-mean")
        chunks, me = cut_chunks(VIEWS, "RAW32"), self.node.peer
        cargo = _PutTogetherSlowly(
            posted,
            chunks,
            FakeLessor(np.ones(NUMEL, np.float32)),
            me,
            self._end,
            lambda: None,
            in_thread=self.node.env.in_thread,
        )
        begin = events.Begin(bytes(16), members, 8, 1.0, 5.0, 70.0, has_witnesses=True)
        self.runs.begin(begin, cargo, cargo)

    def _end(self, _lease, how) -> None:
        self.ended.append(how)


async def test_a_member_may_die_while_the_mean_is_put_together(autojump_clock) -> None:
    """Those that are left make another one; of the first nothing is there to be hashed."""
    async with party() as made:
        runners = [await made.add(f"m{number}", _Runner) for number in range(4)]
        peers = tuple(sorted(each.node.peer for each in runners))
        for each in runners:
            each.begin(peers)
        await trio.sleep(3)
        dead, *left = runners
        dead.node.die()
        for each in left:
            each.runs.members_changed()
        await made.until(lambda: all(each.ended for each in left), 300)
        for each in left:
            (how,) = each.ended
            assert isinstance(how, events.Commit)
            assert how.contributors == tuple(sorted(one.node.peer for one in left))
