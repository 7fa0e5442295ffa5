"""Group means over sessions: their members, what the worker is told, and what breaks a rule."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.collective.groups import Groups
from swarmnode.ids import PeerId
from swarmnode.ipc.records import ViewShape
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group_events import MeanEnded
from swarmnode.tensor.codec import get_codec
from swarmnode.tensor.pieces import count_grains, cut_chunks, cut_pieces
from swarmnode.wire.exchange import group as wire
from swarmnode.wire.packing import encode_record
from swarmnode.wire.session import Priority
from tests.kits.lessor_kit import KEY, SWARM_ID, FakeLessor, Party, PartyNode, intent, party

WORDS, PAYLOADS = "group/2@tag", "group-payload/2@tag"


class Member:
    """A node that averages in groups."""

    def __init__(self, node: PartyNode, numel: int, codec_name: str) -> None:
        self.node = node
        seed = int.from_bytes(node.peer[:4], "big")
        vector = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
        self.lessor = FakeLessor(vector)
        self.groups = Groups(
            node.communicator(), swarm_id=SWARM_ID, codec_name=codec_name, lessor=self.lessor
        )
        self.run = self.groups.run

    @property
    def mean(self) -> np.ndarray:
        (mean,) = self.lessor.means.values()
        return mean

    def sees_the_death(self) -> None:
        self.groups.partners_changed()


@asynccontextmanager
async def members(
    n: int, numel: int = 640, codec_name: str = "RAW32", delay_s: float = 0.01
) -> AsyncIterator[tuple[Party, list[Member]]]:
    async with party(delay_s) as made:
        found = []
        for number in range(n):
            member: Member = await made.add(
                f"m{number}", lambda node: Member(node, numel, codec_name)
            )
            found.append(member)
        yield made, found


def through(codec_name: str, vector: np.ndarray) -> np.ndarray:
    codec = get_codec(codec_name)
    payload = bytearray(codec.payload_bytes(vector.size))
    codec.encode(vector.data, payload)
    out = np.empty_like(vector)
    codec.decode(payload, out.data)
    return out


async def test_all_have_the_same_weighted_mean_and_know_whose(autojump_clock) -> None:
    async with members(4, codec_name="Q8B64") as (made, all_of_them):
        weights = [8.0, 2.0, 8.0, 8.0]
        for member, weight in zip(all_of_them, weights, strict=True):
            member.groups.intent_posted(intent(weight=weight))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        ids = tuple(sorted(bytes(member.node.peer) for member in all_of_them))
        for member in all_of_them:
            assert member.lessor.told == [("apply", 1, None, ids)]
            assert np.array_equal(member.mean, all_of_them[0].mean)
        sent = [through("Q8B64", member.lessor.vector) for member in all_of_them]
        exact = sum(
            (w * s.astype(np.float64) for w, s in zip(weights, sent, strict=True)),
            np.zeros(640),
        ) / sum(weights)
        # A sum goes through the codec too, and its maker holds what the others decode.
        assert np.array_equal(all_of_them[0].mean, through("Q8B64", exact.astype(np.float32)))


@pytest.mark.parametrize(("numel", "is_long"), [(2**16, False), (2**18 + 512, True)])
async def test_what_takes_long_is_done_in_a_thread(autojump_clock, numel, is_long) -> None:
    """A mean of fifty million elements stops the event loop for no longer than a chunk takes."""
    called: list[str] = []

    async def in_thread(function, *arguments):
        called.append(function.__name__)
        return function(*arguments)

    async with members(2, numel=numel, codec_name="Q8B64") as (made, all_of_them):
        for member in all_of_them:
            member.node.env.in_thread = in_thread
            member.groups.intent_posted(intent(views=(ViewShape("delta", "", numel),)))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
    assert {tuple(member.lessor.kinds) for member in all_of_them} == {("apply",)}
    assert sorted(called) == (["_encode_means"] * 2 + ["hash_payload"] * 2 if is_long else [])


async def test_views_with_codecs_of_their_own_and_chunks(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "CODEC_CHUNK_ELEMS", 4096)
    views = (
        ViewShape("delta", "E3M0", 10_000),
        ViewShape("phi", "", 5_000),
        ViewShape("place", "RAW32", 3),
    )
    async with members(3, numel=15_003, codec_name="BF16") as (made, all_of_them):
        for member in all_of_them:
            member.groups.intent_posted(intent(views=views))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        assert {tuple(member.lessor.kinds) for member in all_of_them} == {("apply",)}
        mean = all_of_them[0].mean
        for codec, begin, end in (("E3M0", 0, 10_000), ("BF16", 10_000, 15_000)):
            parts = [through(codec, m.lessor.vector[begin:end].copy()) for m in all_of_them]
            exact = np.mean([part.astype(np.float64) for part in parts], axis=0)
            assert np.array_equal(mean[begin:end], through(codec, exact.astype(np.float32)))
        assert all(np.array_equal(member.mean, mean) for member in all_of_them)
        sent = sum(member.groups.runs.sent_bytes for member in all_of_them)
        received = sum(member.groups.runs.received_bytes for member in all_of_them)
        assert sent == received > 0


@pytest.mark.parametrize("n_pieces", [1, 2, 3, 16, 63, 64])
def test_pieces_are_runs_of_whole_blocks_as_nearly_equal_as_can_be(n_pieces: int) -> None:
    views = (ViewShape("a", "E3M0", 507_904 * 2 + 1), ViewShape("b", "", 5), ViewShape("c", "", 0))
    made = cut_chunks(views, "Q8B64")
    assert [chunk.numel for chunk in made] == [507_904, 507_904, 1, 5]
    assert count_grains(made) == 2 * 1984 + 2
    pieces = cut_pieces(made, n_pieces)
    assert len(pieces) == n_pieces
    sizes = [sum(-(-part.numel // 256) for part in piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    reached = [0, 0, 0, 0]
    for part in sum(pieces, ()):
        assert part.begin == reached[part.number]
        assert part.begin % 256 == 0
        reached[part.number] = part.end
    assert reached == [chunk.numel for chunk in made]


@pytest.mark.parametrize("name", ["RAW32", "BF16", "Q8B64", "Q4B64", "E3M0", "Q2B64", "T3B320"])
def test_the_parts_of_a_payload_decode_to_the_parts_of_the_vector(name: str) -> None:
    vector = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    codec = get_codec(name)
    payload = bytearray(codec.payload_bytes(1000))
    codec.encode(vector.data, payload)
    whole = through(name, vector)
    grain = max(codec.block_elems, 256)
    for begin, end in ((0, grain), (grain, 3 * grain), (3 * grain, 1000), (0, 1000)):
        part = codec.part(payload, begin, end)
        assert len(part) == codec.payload_bytes(end - begin)
        values = np.empty(end - begin, np.float32)
        codec.decode(part, values.data)
        assert np.array_equal(values, whole[begin:end])


async def test_what_the_node_sent_counts_as_it_was_sent(autojump_clock) -> None:
    async with members(2, codec_name="Q4B64") as (made, all_of_them):
        own = {}
        for member in all_of_them:
            apply = member.lessor.apply

            def note(lease, xid, partner=None, present=(), *, apply=apply, member=member):
                own[member.node.peer] = np.frombuffer(lease.own, np.float32).copy()
                return apply(lease, xid, partner, present)

            member.lessor.apply = note  # type: ignore[method-assign]
            member.groups.intent_posted(intent())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        for member in all_of_them:
            expected = through("Q4B64", member.lessor.vector)
            assert np.array_equal(own[member.node.peer], expected)


async def test_a_late_member_is_waited_for_and_nothing_is_lent_meanwhile(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        for member in all_of_them[:2]:
            member.groups.intent_posted(intent())
        await trio.sleep(30)
        assert not any(member.lessor.lent for member in all_of_them)
        all_of_them[2].groups.intent_posted(intent())
        await made.until(lambda: all(member.lessor.told for member in all_of_them), 2.0)
        assert len(all_of_them[0].lessor.told[0][3]) == 3


async def test_the_second_round_waits_for_a_share_of_the_time_between_rounds(
    autojump_clock,
) -> None:
    async with members(3) as (made, all_of_them):
        for round_number in (1, 2):
            for member in all_of_them[:2] if round_number == 2 else all_of_them:
                member.groups.intent_posted(intent(round_number, round=round_number))
            posted_at = trio.current_time()
            await made.until(lambda n=round_number: len(all_of_them[0].lessor.told) == n)
            if round_number == 1:
                await trio.sleep(20 - (trio.current_time() - posted_at))
        assert 14.9 < trio.current_time() - posted_at < 16
        assert len(all_of_them[0].lessor.told[1][3]) == 2


async def test_a_straggler_has_a_whole_step_to_hear_the_call(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        *two, late = all_of_them
        for member in two:
            member.groups.call_s = lambda: 10.0
        for round_number in (1, 2):
            for member in two:
                member.groups.intent_posted(intent(round_number, round=round_number))
            await trio.sleep(9)
            late.groups.intent_posted(intent(round_number, round=round_number))
            await made.until(lambda n=round_number: len(late.lessor.told) == n)
        assert all(len(told[3]) == 3 for member in all_of_them for told in member.lessor.told)


async def test_the_next_intent_takes_the_place_of_one_that_waits_in_silence(autojump_clock) -> None:
    async with members(2) as (made, (one, two)):
        one.groups.intent_posted(intent(1, round=1))
        await trio.sleep(1)
        one.groups.intent_posted(intent(2, round=2))
        two.groups.intent_posted(intent(1, round=2))
        await made.until(lambda: one.lessor.told and two.lessor.told)
        assert [told[:2] for told in one.lessor.told] == [("apply", 2)]


async def test_a_member_that_is_alone_is_told_at_once(autojump_clock) -> None:
    async with members(1) as (_, (one,)):
        one.groups.intent_posted(intent())
        assert one.lessor.told == [("drop", 1, "no other member is there")]


async def test_a_round_that_is_over_cannot_be_had_again(autojump_clock) -> None:
    async with members(2) as (made, (one, two)):
        for member in (one, two):
            member.groups.intent_posted(intent())
        await made.until(lambda: one.lessor.told and two.lessor.told)
        one.groups.intent_posted(intent(2))
        assert one.lessor.told[-1][:2] == ("drop", 2)
        assert one.groups.refused_total == 1
        one.groups.intent_posted(intent(3, views=(), round=9))
        assert one.lessor.told[-1][:2] == ("drop", 3)


async def test_a_worker_that_lends_nothing_leaves_the_others_to_it(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        all_of_them[0].lessor.refuses = "busy: its slots are lent"
        for member in all_of_them:
            member.groups.intent_posted(intent())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        assert all_of_them[0].lessor.told == [("drop", 1, "local: busy: its slots are lent")]
        assert all(len(member.lessor.told[0][3]) == 2 for member in all_of_them[1:])


async def test_values_that_are_not_finite_are_given_back(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        all_of_them[0].lessor.vector[5] = np.nan
        for member in all_of_them:
            member.groups.intent_posted(intent())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        (told,) = all_of_them[0].lessor.told
        assert told[0] == "give_back"
        assert "expected finite values" in told[2]
        assert all(member.lessor.kinds == ["apply"] for member in all_of_them[1:])


async def test_a_slow_step_delays_and_does_not_break(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        all_of_them[1].lessor.step_s = 45.0
        for member in all_of_them:
            member.groups.intent_posted(intent())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        assert all(len(member.lessor.told[0][3]) == 3 for member in all_of_them)


async def test_a_worker_that_dies_ends_its_runs_and_is_told_nothing(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        one = all_of_them[0]
        one.lessor.step_s = 5.0
        for member in all_of_them:
            member.groups.intent_posted(intent())
        await trio.sleep(1)
        one.groups.worker_gone()
        await made.until(lambda: all(member.lessor.told for member in all_of_them[1:]))
        await trio.sleep(10)
        assert one.lessor.told == []
        assert all(len(member.lessor.told[0][3]) == 2 for member in all_of_them[1:])


async def test_above_the_most_the_same_ones_meet_and_the_others_train_beside(
    autojump_clock, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 16)
    async with members(18) as (made, all_of_them):
        for number in (1, 2):
            for member in all_of_them:
                member.groups.intent_posted(
                    intent(number, round=number, lineage=number, base_version=b"v%d" % number)
                )
            await made.until(
                lambda number=number: all(len(m.lessor.told) == number for m in all_of_them)
            )
        ordered = sorted(all_of_them, key=lambda member: member.node.peer)
        present = tuple(bytes(member.node.peer) for member in ordered[:16])
        for member in ordered[:16]:
            assert member.lessor.told == [("apply", n, None, present) for n in (1, 2)]
            assert not member.groups.is_beside
        for member in ordered[16:]:
            assert member.lessor.kinds == ["drop", "drop"]
            assert "all places of the group" in member.lessor.told[0][2]
            assert member.groups.is_beside


async def test_who_knows_few_of_the_members_forms_no_second_group(
    autojump_clock, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 16)
    async with members(18) as (made, all_of_them):
        ordered = sorted(all_of_them, key=lambda member: member.node.peer)
        known = tuple(member.node.peer for member in ordered[2:])  # it takes itself for the 16th
        ordered[17].node.partners = lambda: known  # type: ignore[method-assign]
        ordered[16].node.partners = lambda: known  # type: ignore[method-assign]
        for member in ordered:
            member.groups.intent_posted(intent(lineage=1))
        await made.until(lambda: all(member.lessor.told for member in ordered), 300)
        means = {told[3] for member in ordered for told in member.lessor.told if told[0] == "apply"}
        assert len(means) == 1


@pytest.mark.parametrize("size", [0, 16])
async def test_a_strategy_with_lineages_is_never_cut(autojump_clock, size, monkeypatch) -> None:
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 16)
    async with members(5) as (_made, all_of_them):
        one = all_of_them[0]
        many = tuple(PeerId(bytes([number]) * 32) for number in range(1, 40))
        one.node.partners = lambda: (*many, one.node.peer)  # type: ignore[method-assign]
        for number in range(1, 4):
            found, is_full = one.groups._members(
                intent(round=number, lineage=3, group_size_max=size)
            )
            assert found == many[:16]
            assert is_full


async def test_groups_of_a_size_are_slices_of_the_rounds_order(autojump_clock) -> None:
    async with members(5) as (made, all_of_them):
        for member in all_of_them:
            member.groups.intent_posted(intent(group_size_max=2))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        groups = {told[3] for member in all_of_them for told in member.lessor.told if told[3:]}
        assert sorted(len(group) for group in groups) == [2, 2]
        assert len({peer for group in groups for peer in group}) == 4
        assert sorted(kind for m in all_of_them for kind in m.lessor.kinds)[-1] == "drop"


# --- means of a lineage -------------------------------------------------------------------------


def next_mean(number: int = 1, **more: Any) -> Any:
    return intent(number, round=number, lineage=3, base_version=b"v3", **more)


async def test_whatever_their_rounds_are_those_on_one_mean_make_the_next(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        for number, member in enumerate(all_of_them):
            member.groups.intent_posted(next_mean(1 + 7 * number))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        assert {tuple(member.lessor.kinds) for member in all_of_them} == {("apply",)}


async def test_without_a_quorum_nothing_comes_of_it_and_it_is_tried_again(autojump_clock) -> None:
    async with members(5) as (made, all_of_them):
        few, others = all_of_them[:2], all_of_them[2:]
        for member in few:
            member.groups.intent_posted(next_mean(1))
        await made.until(lambda: all(member.lessor.told for member in few), 200)
        assert {member.lessor.told[0][2] for member in few} <= {
            "too few are left",
            "no other member is there",
        }
        answered = dict.fromkeys(others, 0) | dict.fromkeys(few, 1)
        for number in range(2, 5):  # two of them at a later attempt than the rest
            for member, n_told in answered.items():
                if len(member.lessor.told) == n_told:
                    member.groups.intent_posted(next_mean(number))
                    answered[member] += 1
            await trio.sleep(2)
            for member in all_of_them:
                if "apply" in member.lessor.kinds:
                    answered[member] = -1
        assert all("apply" in member.lessor.kinds for member in all_of_them)
        assert len({member.mean.tobytes() for member in all_of_them}) == 1
        assert len({member.lessor.told[-1][3] for member in all_of_them}) == 1


async def test_who_is_behind_is_told_so_at_once(autojump_clock) -> None:
    async with members(3) as (made, (*two, late)):
        for member in two:
            member.groups.intent_posted(next_mean())
        await made.until(lambda: all(member.lessor.told for member in two), 200)
        assert [member.lessor.kinds for member in two] == [["apply"], ["apply"]]
        late.groups.intent_posted(next_mean())
        await made.until(lambda: late.lessor.told, 1)
        assert late.lessor.kinds == ["drop"]


async def test_a_round_that_enlists_is_held_for_one_that_shows_that_it_is_behind(
    autojump_clock,
) -> None:
    """The mean was made without it, so that what it had asked for meanwhile was behind again."""
    async with members(3) as (made, (one, two, late)):
        for member in (one, two):
            member.groups.catch_up_bytes = lambda: 20_000_000
            member.groups.intent_posted(intent(1, lineage=4, base_version=b"v4"))
        await trio.sleep(1)
        late.groups.intent_posted(next_mean())
        await made.until(lambda: late.lessor.told, 1)
        await trio.sleep(200)
        assert not one.lessor.told
        late.groups.intent_posted(intent(2, lineage=4, base_version=b"v4"))
        await made.until(lambda: one.lessor.told and two.lessor.told, 2)
        assert [len(member.lessor.told[-1][3]) for member in (one, two, late)] == [3, 3, 3]


async def test_one_whose_worker_takes_no_steps_is_not_waited_for(autojump_clock) -> None:
    async with members(5) as (made, (one, two, *resting)):
        one.node.party.resting.update(each.node.peer for each in resting)
        for member in (one, two):
            member.groups.intent_posted(next_mean())
        await made.until(lambda: one.lessor.told and two.lessor.told, 1)
        assert len(one.lessor.told[0][3]) == 2, "nor does it count in the majority"


async def test_those_that_still_start_are_part_of_the_first_mean_of_all(autojump_clock) -> None:
    """Half of a swarm that was started together was on no lineage for half a minute."""
    async with members(3) as (made, (one, two, starting)):
        one.node.party.resting.add(starting.node.peer)
        for member in (one, two):
            member.groups.intent_posted(intent(lineage=0, base_version=b"v0"))
        await trio.sleep(5)
        assert not one.lessor.told
        one.node.party.resting.clear()
        starting.groups.intent_posted(intent(lineage=0, base_version=b"v0"))
        await made.until(lambda: one.lessor.told and starting.lessor.told, 2)
        assert len(one.lessor.told[0][3]) == 3


@pytest.mark.parametrize("n_claiming", [1, 2])
async def test_half_of_the_others_must_say_that_there_was_a_first_mean(
    autojump_clock, n_claiming: int
) -> None:
    """One that lied let others begin without those that still started."""
    async with members(5) as (_made, (one, two, starting, *claiming)):
        for member in (one, two):
            member.node.party.resting.add(starting.node.peer)
            member.groups.intent_posted(intent(lineage=0, base_version=b"v0"))
        for member in claiming[:n_claiming]:
            member.groups.intent_posted(next_mean())
        await trio.sleep(1)
        assert [bool(member.lessor.told) for member in (one, two)] == [n_claiming == 2] * 2


async def test_a_roll_waits_for_a_majority_of_those_that_train_now(autojump_clock) -> None:
    """It waited for two minutes for one that had begun to rest, and knew none that had come."""
    async with members(3) as (made, (one, two, three)):
        resting = one.node.party.resting
        resting.add(three.node.peer)
        one.groups.intent_posted(next_mean())
        await trio.sleep(1)
        resting.add(two.node.peer)
        resting.discard(three.node.peer)
        one.sees_the_death()
        three.groups.intent_posted(next_mean())
        await made.until(lambda: one.lessor.told and three.lessor.told, 2)
        assert one.lessor.kinds == three.lessor.kinds == ["apply"]


async def test_a_roll_is_begun_anew_a_few_times_only(autojump_clock) -> None:
    async with members(3) as (made, (one, two, three)):
        resting = one.node.party.resting
        one.groups.intent_posted(next_mean())
        for number in range(20):
            resting.clear()
            resting.add((two, three)[number % 2].node.peer)
            one.sees_the_death()
        two.groups.intent_posted(next_mean())
        three.groups.intent_posted(next_mean())
        await made.until(lambda: two.lessor.told and three.lessor.told, 2)
        assert one.groups.runs.statistics().aborted_total == {"local": 4}


async def test_one_that_others_do_not_know_yet_to_rest_tells_them(autojump_clock) -> None:
    async with members(3) as (made, (one, two, resting)):
        for member in (one, two):
            member.groups.intent_posted(next_mean())
        resting.node.party.resting.add(resting.node.peer)
        await made.until(lambda: one.lessor.told and two.lessor.told, 1)
        assert len(one.lessor.told[0][3]) == 2


async def test_workers_that_went_back_make_a_mean_anew_under_another_name(autojump_clock) -> None:
    async with members(2) as (made, (one, two)):
        for number in (1, 2):
            for member in (one, two):
                member.groups.intent_posted(next_mean(number))
            await made.until(lambda n=number: len(one.lessor.told) == len(two.lessor.told) == n)
            for member in (one, two):
                member.groups.worker_gone()
        assert one.lessor.kinds == two.lessor.kinds == ["apply", "apply"]


async def test_two_are_a_group_and_one_is_none(autojump_clock) -> None:
    async with members(2) as (made, (one, two)):
        for member in (one, two):
            member.groups.intent_posted(next_mean())
        await made.until(lambda: one.lessor.told and two.lessor.told)
        assert one.lessor.kinds == two.lessor.kinds == ["apply"]
        two.node.die()
        one.sees_the_death()
        one.groups.intent_posted(intent(2, lineage=4, base_version=b"v4"))
        assert one.lessor.told[-1] == ("drop", 2, "no other member is there")


async def test_what_became_of_each_is_in_the_history(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        records: list[list[MeanEnded]] = [[] for _ in all_of_them]
        for member, into in zip(all_of_them, records, strict=True):
            member.groups.on_record = into.append
            member.groups.intent_posted(next_mean())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        ended = [record for (record,) in records]
        assert len({(each.gid, each.contributors, each.result) for each in ended}) == 1
        assert len(ended[0].contributors) == 3
        assert len(ended[0].result) == 32
        all_of_them[2].lessor.refuses = "busy: all slots are lent"
        for member in all_of_them:
            member.groups.intent_posted(intent(2, lineage=4, base_version=b"v4"))
        await made.until(lambda: all(len(m.lessor.told) == 2 for m in all_of_them))
        assert [len(each) for each in records] == [2, 2, 1], "nothing was lent for the last one"


@pytest.mark.parametrize("seed", range(25))
async def test_whichever_member_dies_the_others_agree(autojump_clock, seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randrange(3, 6)
    async with members(n, codec_name="Q8B64", delay_s=0.02) as (made, all_of_them):
        for member in all_of_them:
            member.lessor.step_s = rng.uniform(0, 0.2)
            member.groups.intent_posted(intent())
        victims = rng.sample(all_of_them, rng.randrange(1, n - 1))
        for victim in victims:
            await trio.sleep(rng.uniform(0, 0.3))
            victim.node.die()
            if rng.random() < 0.5:
                for member in all_of_them:
                    member.sees_the_death()
        survivors = [member for member in all_of_them if member not in victims]
        await made.until(lambda: all(member.lessor.told for member in survivors), 20)
        assert {tuple(member.lessor.kinds) for member in survivors} == {("apply",)}
        assert len({member.mean.tobytes() for member in survivors}) == 1
        assert len({member.lessor.told[0][3] for member in survivors}) == 1
        assert not any(member.lessor.lent for member in survivors)


@pytest.mark.parametrize("seed", range(10))
async def test_a_partition_ends_with_one_mean_in_each_part(autojump_clock, seed: int) -> None:
    rng = random.Random(seed)
    async with members(5, delay_s=0.02) as (made, all_of_them):
        for member in all_of_them:
            member.groups.intent_posted(intent())
        await trio.sleep(rng.uniform(0, 0.4))
        parts = (["m0", "m1"], ["m2", "m3", "m4"])
        for one in parts[0]:
            for two in parts[1]:
                made.network.cut(one, two)
        made.network.partition(*parts)
        await made.until(lambda: all(member.lessor.told for member in all_of_them), 60)
        means: dict[tuple[bytes, ...], set[bytes]] = {}
        for member in all_of_them:
            if member.lessor.kinds == ["apply"]:
                present = member.lessor.told[0][3]
                means.setdefault(present, set()).add(member.mean.tobytes())
        assert all(len(each) == 1 for each in means.values())
        # A mean of all may have been finished in one part only if it was prepared in both.
        applied = [m for m in all_of_them if m.lessor.kinds == ["apply"]]
        assert {m.node.name for m in applied} in ({*parts[0], *parts[1]}, {*parts[1]}, {*parts[0]})


# --- members that break a rule ----------------------------------------------------------------


async def begin_with_a_stranger(one: Member) -> bytes:
    """Let ``one`` post an intent; the others speak by hand. Return the run's name."""
    request = intent()
    gid = events.group_id(KEY, request.tag, 0, request.round, b"")
    one.groups.intent_posted(request)
    await trio.sleep(0.1)
    return gid


async def say(member: Member, to: Member, *messages: wire.Message) -> None:
    session = member.node.sessions[to.node.peer]
    stream = await session.open_stream(WORDS, priority=Priority.CONTROL)
    for message in messages:
        await stream.send_message(encode_record(message))
    await stream.send_end()


async def send_piece(member: Member, to: Member, header: wire.Share, payload: bytes) -> Any:
    session = member.node.sessions[to.node.peer]
    stream = await session.open_stream(PAYLOADS, priority=Priority.BULK)
    await stream.send_message(encode_record(header))
    await stream.send(payload)
    await stream.send_end()
    return stream


@pytest.mark.parametrize("fault", ["short", "long", "not a payload", "word", "piece"])
async def test_a_member_that_breaks_a_rule_is_lost_and_disconnected(
    autojump_clock, fault: str
) -> None:
    async with members(2, codec_name="Q8B64") as (made, (one, two)):
        one, two = sorted((one, two), key=lambda m: m.node.peer)  # one owns the first piece
        gid = await begin_with_a_stranger(one)
        view = tuple(sorted((one.node.peer, two.node.peer)))
        enlist = wire.Enlist(gid, wants_answer=False)
        await say(two, one, enlist, wire.Flush(gid, view, ()))
        await trio.sleep(0.5)
        codec = get_codec("Q8B64")
        payload = bytearray(codec.payload_bytes(256))  # of 640 elements, in pieces of 256 and 384
        codec.encode(np.ones(256, np.float32).data, payload)
        share = wire.Share(gid, 0, 1.0, events.plan_id(gid, view))
        session = two.node.sessions[one.node.peer]
        match fault:
            case "short":
                await send_piece(two, one, share, bytes(payload[:-1]))
            case "long":
                await send_piece(two, one, share, bytes(payload) + b"x")
            case "not a payload":
                await send_piece(two, one, share, b"\xff" * len(payload))
            case "word":
                await say(two, one, share)
            case "piece":
                await say(two, one, wire.Want(gid, bytes(16), (3,), ()))
        await made.until(lambda: one.lessor.told, 20)
        assert one.lessor.told == [("give_back", 1, "no other member is left")]
        if fault != "short":  # a stream that ends early may be an accident
            await made.until(lambda: session.is_closed)


async def test_payloads_that_were_not_asked_for_are_not_read(autojump_clock) -> None:
    async with members(2) as (_, (one, two)):
        gid = await begin_with_a_stranger(one)
        for header in (wire.Share(gid, 0, 1.0), wire.Share(bytes(16), 0, 1.0)):
            stream = await send_piece(two, one, header, b"x")
            with pytest.raises(Exception, match="not wanted here"):
                await stream.receive()
        assert one.groups.runs.received_bytes == 0
        assert not one.node.sessions[two.node.peer].is_closed


@pytest.mark.parametrize("value", [3e38, 1e30])
async def test_a_share_that_is_implausibly_large_is_in_no_mean(autojump_clock, value) -> None:
    async with members(4) as (made, (liar, *honest)):
        liar.lessor.vector[:] = value
        for member in (liar, *honest):
            member.groups.intent_posted(intent())
        await made.until(lambda: all(member.lessor.told for member in honest))
        ids = tuple(sorted(bytes(member.node.peer) for member in honest))
        for member in honest:
            assert member.lessor.told == [("apply", 1, None, ids)]
            assert np.abs(member.mean).max() < 10
        await made.until(lambda: liar.lessor.told)
        assert liar.lessor.told[0][0] == "give_back"
        assert sum(member.groups.payloads_refused_total for member in honest) >= 1
