"""Pulls over sessions: what comes, what is refused and why, and what happens to slots meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.exchange.pull import PULL_SERVICE, Pulls
from swarmnode.ipc.records import Partner, ViewShape
from swarmnode.net.stream import Stream
from swarmnode.tensor.codec import get_codec
from swarmnode.wire.exchange import pull as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority
from tests.kits.lessor_kit import KEY, FakeLessor, Party, PartyNode, intent, party

VIEWS = (ViewShape("phi", "RAW32", 600), ViewShape("b", "", 40))


def ask(number: int = 1, **fields: object) -> object:
    return intent(
        number, "pull", **{"tag": "catch-up", "views": VIEWS, "selector": "neighbour"} | fields
    )


def answer(number: int = 1, **fields: object) -> object:
    return ask(number, is_open=True, **fields)


class Member:
    """A node that pulls and gives."""

    def __init__(self, node: PartyNode, key: bytes = KEY) -> None:
        self.node = node
        seed = int.from_bytes(node.peer[:4], "big")
        self.lessor = FakeLessor(np.random.default_rng(seed).standard_normal(640).astype("f4"))
        self.pulls = Pulls(node.communicator(key), codec_name="Q8B64", lessor=self.lessor)
        self.run = self.pulls.run


@asynccontextmanager
async def members(n: int, key: bytes = KEY) -> AsyncIterator[tuple[Party, list[Member]]]:
    async with party() as made:
        yield (
            made,
            [
                await made.add(f"m{i}", lambda node, i=i: Member(node, key if i else KEY))
                for i in range(n)
            ],
        )


async def test_what_a_member_gives_is_applied_and_its_slot_goes_back(autojump_clock) -> None:
    async with members(2) as (made, (one, two)):
        two.pulls.intent_posted(answer(9, base_version=b"new", weight=3.0))
        one.pulls.intent_posted(ask(1, base_version=b"old", round=4, step=5, tokens=6))
        await made.until(lambda: one.lessor.told)
        came = Partner(two.node.peer, 11, 22, 3.0, b"new")
        assert one.lessor.told == [("apply", 1, came, ())]
        (got,) = one.lessor.means.values()
        assert np.array_equal(got[:600], two.lessor.vector[:600])
        payload = bytearray(get_codec("Q8B64").payload_bytes(40))
        get_codec("Q8B64").encode(two.lessor.vector[600:].copy().data, payload)
        there = np.empty(40, np.float32)
        get_codec("Q8B64").decode(payload, there.data)
        assert np.array_equal(got[600:], there)
        assert two.lessor.told == [("give_back", 9, "")]
        assert two.lessor.partners == [Partner(one.node.peer, 5, 6, 1.0, b"old")]
        assert (one.pulls.pulled_total, two.pulls.given_total) == (1, 1)


async def test_a_peer_is_asked_when_there_is_room_for_what_it_gives(autojump_clock) -> None:
    """A worker lends at the end of a step: asked before, the peer's answer would be old by one."""
    async with members(2) as (made, (one, two)):
        two.pulls.intent_posted(answer())
        one.lessor.step_s = 5.0
        one.pulls.intent_posted(ask())
        await trio.sleep(4.9)
        assert not two.lessor.partners
        await made.until(lambda: one.lessor.told)
        assert one.lessor.kinds == ["apply"]
        assert trio.current_time() < 5.5


async def test_who_gives_nothing_is_passed_over(autojump_clock) -> None:
    async with members(4) as (made, all_of_them):
        giver = all_of_them[2]
        giver.pulls.intent_posted(answer())
        all_of_them[0].pulls.intent_posted(ask())
        await made.until(lambda: all_of_them[0].lessor.told)
        told = all_of_them[0].lessor.told[0]
        assert told[:2] == ("apply", 1)
        assert told[2].peer == giver.node.peer


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("nothing", "no-wish: nothing to give of catch-up 0"),
        ("size", "incompatible: expected 641 elements, got 640"),
        ("key", "incompatible: another task, strategy, setting, layout or codec"),
        ("worker", "round: it is no further than this"),
        ("not finite", "expected finite values"),
    ],
)
async def test_a_refusal_says_why(autojump_clock, case: str, why: str) -> None:
    async with members(2, key=b"x" * 32 if case == "key" else KEY) as (made, (one, two)):
        if case == "size":
            two.pulls.intent_posted(answer(views=(*VIEWS, ViewShape("n", "", 1))))
        elif case != "nothing":
            two.pulls.intent_posted(answer())
        if case == "worker":
            two.lessor.refuses = "round: it is no further than this"
        if case == "not finite":
            two.lessor.vector[3] = np.inf
        one.pulls.intent_posted(ask())
        await made.until(lambda: one.lessor.told)
        assert one.lessor.told[0][:2] == ("give_back", 1)
        assert why in one.lessor.told[0][2]
        assert two.pulls.declined_total == 1
        assert not one.lessor.lent
        assert not two.lessor.lent


async def test_no_peer_there_is_said_at_once(autojump_clock) -> None:
    async with members(1) as (made, (one,)):
        one.pulls.intent_posted(ask())
        await made.until(lambda: one.lessor.told)
        assert one.lessor.told == [("drop", 1, "unreachable: no peer to ask")]


async def test_an_own_worker_that_lends_nothing_ends_it(autojump_clock) -> None:
    async with members(3) as (made, (one, two, three)):
        for giver in (two, three):
            giver.pulls.intent_posted(answer())
        one.lessor.refuses = "busy: its slots are lent"
        one.pulls.intent_posted(ask())
        await made.until(lambda: one.lessor.told)
        assert one.lessor.told == [("drop", 1, "busy: its slots are lent")]
        assert two.pulls.given_total + three.pulls.given_total == 0


async def test_the_next_intent_and_the_death_of_the_worker_end_what_is_asked(
    autojump_clock,
) -> None:
    async with members(2) as (made, (one, two)):
        two.pulls.intent_posted(answer())
        two.lessor.step_s = 5.0
        one.pulls.intent_posted(ask(1))
        await trio.sleep(1)
        one.pulls.intent_posted(ask(2))
        await made.until(lambda: one.lessor.told)
        await made.until(lambda: len(one.lessor.told) == 2)
        assert [told[:2] for told in one.lessor.told] == [("give_back", 1), ("apply", 2)]
        one.pulls.intent_posted(ask(3))
        two.pulls.worker_gone()
        one.pulls.worker_gone()
        await trio.sleep(20)
        assert "apply" not in one.lessor.kinds[2:]
        told = len(one.lessor.told)
        one.pulls.intent_posted(ask(4))
        await made.until(lambda: len(one.lessor.told) > told)
        assert one.lessor.told[-1][2].endswith("no-wish: nothing to give of catch-up 0")


async def test_only_so_many_are_answered_at_once(autojump_clock) -> None:
    async with members(2 + limits.PULL_ANSWERS_MAX) as (made, (giver, *askers)):
        giver.pulls.intent_posted(answer())
        giver.lessor.step_s = 5.0
        for asker in askers:
            asker.pulls.intent_posted(ask())
        await made.until(lambda: all(asker.lessor.told for asker in askers))
        kinds = sorted(asker.lessor.kinds[0] for asker in askers)
        assert kinds == ["apply"] * limits.PULL_ANSWERS_MAX + ["give_back"]


async def hand_made(one: Member, two: Member, kind: str) -> None:
    """Let ``two`` answer in a way of its own."""

    async def serve(_session: object, stream: Stream) -> None:
        await stream.receive_message(0)
        if kind == "silent":
            await trio.sleep_forever()
        given = wire.Pull(KEY, "x", 0, 0, 1, 0, 0) if kind == "pull" else wire.Given(1, 1)
        await stream.send_message(encode_record(given))
        if kind == "stalls":
            await trio.sleep_forever()
        payload = bytearray(4 * 600 + get_codec("Q8B64").payload_bytes(40))
        if kind == "nan":
            payload[:4] = b"\xff" * 4
        await stream.send(payload[:-1] if kind == "short" else payload)
        if kind == "long":
            await stream.send(b"x")

    two.node.registry._streams[two.node.services.name(PULL_SERVICE)] = serve
    one.pulls.intent_posted(ask())


@pytest.mark.parametrize(
    ("kind", "why", "is_offence"),
    [
        ("silent", "to answer a pull of catch-up: no result within 65 s", False),
        ("stalls", "which gave it: no result within", False),
        ("pull", "got another pull", True),
        ("nan", "a value is NaN or infinite", True),
        ("short", "ended it after", False),
        ("long", "got more bytes", True),
    ],
)
async def test_a_giver_that_breaks_a_rule_or_is_silent(
    autojump_clock, kind: str, why: str, *, is_offence: bool
) -> None:
    async with members(2) as (made, (one, two)):
        session = one.node.sessions[two.node.peer]
        await hand_made(one, two, kind)
        await made.until(lambda: one.pulls.failed_total, 200)
        assert one.lessor.kinds == ["give_back"]
        assert session.is_closed == is_offence
        assert why in one.lessor.told[0][2]
        assert not one.lessor.lent


async def test_an_asker_that_says_nothing_or_nonsense(autojump_clock) -> None:
    async with members(2) as (_, (one, two)):
        one.pulls.intent_posted(answer())
        session = two.node.sessions[one.node.peer]
        name = one.node.services.name(PULL_SERVICE)
        for message in (None, wire.Given(1, 1)):
            stream = await session.open_stream(name, priority=Priority.BULK)
            if message is not None:
                await stream.send_message(encode_record(message))
            with pytest.raises(Exception, match=r"expected a pull|to say what it pulls"):
                await stream.receive()
        stream = await session.open_stream(name, priority=Priority.BULK)
        await stream.send_message(encode_record(wire.Pull(KEY, "x", 0, 0, 1, 0, 0)))
        data, _ = await stream.receive_message(0)
        declined = decode_record(data, wire.Declined)
        assert declined.reason == "no-wish: nothing to give of x 0"
        assert not one.lessor.lent


@pytest.mark.parametrize("factor", [3e37, 1000.0])
async def test_an_answer_that_is_implausibly_large_is_not_applied_and_another_peer_is_asked(
    autojump_clock, factor
) -> None:
    async with members(3) as (made, (one, liar, honest)):
        liar.lessor.vector *= np.float32(factor)
        liar.pulls.intent_posted(answer(9))
        one.pulls.intent_posted(ask(1))
        await made.until(lambda: one.lessor.told)
        assert one.lessor.kinds == ["give_back"]
        assert one.pulls.refused_total == 1
        assert one.node.trust.counts(liar.node.peer).refused == 1

        honest.pulls.intent_posted(answer(9))
        one.pulls.intent_posted(ask(2))
        await made.until(lambda: one.pulls.pulled_total)
        (got,) = one.lessor.means.values()
        assert np.array_equal(got[:600], honest.lessor.vector[:600])
        assert one.pulls.refused_total == 1, "the other one was asked first"


async def test_one_whose_worker_stands_still_is_passed_over_for_the_next(autojump_clock) -> None:
    """It was waited for for a minute, in which no round had a majority."""
    async with members(3) as (made, (one, stopped, giver)):
        for each in (stopped, giver):
            each.pulls.intent_posted(answer(9))
        stopped.lessor.step_s = 1e6
        one.pulls.prefers = lambda: (stopped.node.peer,)
        for number in range(1, 2 + limits.PULL_ANSWERS_MAX):
            one.pulls.intent_posted(ask(number))
            began = trio.current_time()
            await made.until(lambda n=number: one.pulls.pulled_total == n, 10)
            assert trio.current_time() - began >= limits.EXCHANGE_OFFER_S
            assert one.lessor.told[-1][2].peer == giver.node.peer
        assert stopped.pulls.declined_total == 0, "it answers none that has gone"


async def test_the_only_one_that_gives_is_waited_for_after_the_others(autojump_clock) -> None:
    async with members(3) as (made, (one, slow, _empty)):
        slow.pulls.intent_posted(answer(9))
        slow.lessor.step_s = 20.0
        one.pulls.prefers = lambda: (slow.node.peer,)
        one.pulls.intent_posted(ask())
        await made.until(lambda: one.lessor.told, 200)
        assert one.lessor.told[0][0] == "apply"
        assert trio.current_time() < limits.EXCHANGE_OFFER_S + 25


@pytest.mark.parametrize("reason", ["round: it is no further than this", "no-wish: nothing yet"])
async def test_where_another_one_gives_in_a_while_a_silent_one_is_not_waited_for_again(
    autojump_clock, reason: str
) -> None:
    async with members(3) as (made, (one, silent, other)):
        for each in (silent, other):
            each.pulls.intent_posted(answer(9))
        silent.lessor.step_s, other.lessor.refuses = 1e6, reason
        one.pulls.prefers = lambda: (silent.node.peer,)
        one.pulls.intent_posted(ask())
        await made.until(lambda: one.lessor.told, 200)
        assert one.lessor.told[0][0] == "give_back"
        is_soon = trio.current_time() < limits.EXCHANGE_OFFER_S + 1
        assert is_soon == reason.startswith("round"), "then the strategy asks again"


async def test_where_steps_are_long_a_giver_has_time_for_two(autojump_clock) -> None:
    async with members(3) as (made, (one, slow, other)):
        for each in (slow, other):
            each.pulls.intent_posted(answer(9))
        slow.lessor.step_s, one.pulls.call_s = 15.0, lambda: 10.0
        one.pulls.prefers = lambda: (slow.node.peer,)
        one.pulls.intent_posted(ask())
        await made.until(lambda: one.lessor.told, 200)
        assert one.lessor.told[0][2].peer == slow.node.peer


async def test_a_giver_waits_for_what_is_being_made_and_not_for_long(autojump_clock) -> None:
    """What stands before a mean that is made is behind as it arrives."""
    async with members(2) as (_made, (one, two)):
        two.pulls.intent_posted(answer(9))
        made = trio.Event()
        two.pulls.settled = made.wait
        one.pulls.intent_posted(ask())
        await trio.sleep(5)
        assert not two.lessor.partners
        made.set()
        await trio.sleep(1)
        assert one.pulls.pulled_total == 1

        two.pulls.settled = trio.sleep_forever
        one.pulls.intent_posted(ask(2))
        await trio.sleep(limits.PULL_SETTLED_S + 1)
        assert one.pulls.pulled_total == 2
