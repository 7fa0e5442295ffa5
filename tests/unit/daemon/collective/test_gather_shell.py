"""Gatherings over sessions: all get the same messages, whoever dies, is late or lies."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.collective.gathers import Gathers
from swarmnode.daemon.collective.messages import Round
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import ViewShape
from swarmnode.protocol.gossip.gather_set import Announced, RunTerms
from swarmnode.tensor.codec import get_codec
from swarmnode.wire.exchange import gather as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.session import Priority
from tests.kits.lessor_kit import FakeLessor, Party, PartyNode, intent, party

NUMEL, CODEC = 20_000, "TK2"
WORDS, FETCHES = "gather-word/1@tag", "gather-fetch/1@tag"


def posted(number: int = 1, **fields: object) -> PostedIntent:
    views = (ViewShape("message", CODEC, NUMEL),)
    return intent(number, "gather", **{"tag": "sparse", "views": views, "round": number, **fields})


class Member:
    """A node that gathers."""

    def __init__(self, node: PartyNode) -> None:
        self.node = node
        seed = int.from_bytes(node.peer[:4], "big")
        vector = np.random.default_rng(seed).standard_normal(NUMEL).astype(np.float32)
        self.lessor = FakeLessor(vector)
        self.gathers = Gathers(
            node.communicator(), codec_name="Q8B64", signer=node.identity, lessor=self.lessor
        )
        self.ended: list[bool] = []
        self.gathers.on_end = self.ended.append
        self.run = self.gathers.run

    @property
    def message(self) -> bytes:
        codec = get_codec(CODEC)
        payload = bytearray(codec.payload_bytes(NUMEL))
        codec.encode(self.lessor.vector.data, payload)
        return bytes(payload)

    @property
    def received(self) -> bytes:
        (room,) = self.lessor.means.values()
        return room.tobytes()


@asynccontextmanager
async def members(n: int) -> AsyncIterator[tuple[Party, list[Member]]]:
    async with party() as made:
        yield made, [await made.add(f"m{number}", Member) for number in range(n)]


def in_order(some: list[Member]) -> list[Member]:
    return sorted(some, key=lambda member: member.node.peer)


def check_same(some: list[Member], of: list[Member]) -> None:
    """All of ``some`` were given the messages of ``of``, in order of their ids."""
    expected = b"".join(member.message for member in in_order(of))
    for member in some:
        assert member.lessor.told == [
            ("apply", 1, None, tuple(bytes(each.node.peer) for each in in_order(of)))
        ]
        assert member.received[: len(expected)] == expected
        assert member.ended == [True]


@pytest.mark.parametrize("n", [2, 4, 9])
async def test_all_get_the_messages_of_all(n: int, autojump_clock) -> None:
    async with members(n) as (made, all_of_them):
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        check_same(all_of_them, all_of_them)
        sent = [member.gathers.messages.sent_bytes for member in all_of_them]
        assert sent == [(n - 1) * len(all_of_them[0].message)] * n


async def test_what_was_sent_counts_as_it_was_sent(autojump_clock) -> None:
    async with members(2) as (made, all_of_them):
        lent = []
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        one = all_of_them[0]
        await made.until(lambda: one.lessor.lent)
        lent = one.lessor.lent[0]
        await made.until(lambda: one.lessor.told)
        out = np.zeros(NUMEL, np.float32)
        get_codec(CODEC).decode(one.message, out.data)
        assert np.array_equal(np.frombuffer(lent.own, np.float32), out)


async def test_one_that_copies_another_is_thought_less_of_by_all_but_itself(autojump_clock) -> None:
    async with members(5) as (made, all_of_them):
        *honest, copyist = all_of_them
        copyist.lessor.vector = honest[0].lessor.vector * 1.1
        copyist.lessor.step_s = 1.0  # it has to have it first
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        check_same(all_of_them, all_of_them)
        for member in honest:
            assert member.node.trust.seen_total == {"copy": 1}
            assert member.node.trust.counts(copyist.node.peer).copied == 1
        assert copyist.node.trust.seen_total == {}


async def test_one_that_dies_takes_only_its_own_message_with_it(autojump_clock) -> None:
    async with members(5) as (made, all_of_them):
        dead, *others = all_of_them
        dead.lessor.step_s = 30.0  # its worker gives nothing
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        await trio.sleep(2)
        dead.node.die()
        for member in others:
            member.gathers.partners_changed()
        await made.until(lambda: all(member.lessor.told for member in others))
        check_same(others, others)


async def test_one_that_never_comes_is_waited_for_until_the_roll_closes(autojump_clock) -> None:
    async with members(4) as (made, all_of_them):
        late, *others = all_of_them
        for member in others:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in others), 200)
        check_same(others, others)
        late.gathers.intent_posted(posted())
        await made.until(lambda: late.lessor.told, 200)
        assert late.lessor.kinds == ["drop"]


async def test_one_that_is_called_comes_before_it_is_due(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        for member in all_of_them:
            member.gathers.intent_posted(posted(1, lineage=0))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        *due, other = all_of_them
        called: list[int] = []

        def come(lineage: int) -> None:
            called.append(lineage)
            if len(called) == 1:  # its step ends, and it posts what it has
                other.gathers.intent_posted(posted(9, base_version=b"next", lineage=1))

        other.gathers.on_call = come
        for member in due:
            member.gathers.intent_posted(posted(3, base_version=b"next", lineage=1))
        await made.until(lambda: all(len(member.lessor.told) == 2 for member in all_of_them))
        assert called[0] == 1
        everyone = tuple(bytes(each.node.peer) for each in in_order(all_of_them))
        assert [member.lessor.told[1][3] for member in all_of_them] == [everyone] * 3


async def test_one_that_is_behind_is_told_at_once(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        late, *others = all_of_them
        for member in others:
            member.gathers.intent_posted(posted(1, lineage=0))
        await made.until(lambda: all(member.lessor.told for member in others), 200)
        began_at = trio.current_time()
        late.gathers.intent_posted(posted(1, lineage=0))
        await made.until(lambda: late.lessor.told)
        assert late.lessor.kinds == ["drop"]
        assert trio.current_time() - began_at < 5


async def test_one_that_is_early_by_more_than_its_roll_is_open_waits_for_the_others(
    autojump_clock,
) -> None:
    async with members(4) as (made, all_of_them):
        early, *others = all_of_them
        for number in (1, 2):  # a second apart: from the second on rolls are open for few seconds
            early.gathers.intent_posted(posted(number))
            await trio.sleep(0 if number == 1 else 5 * limits.GROUP_ENLIST_S_MIN)
            for member in others:
                member.gathers.intent_posted(posted(number))
            await made.until(lambda n=number: all(len(m.lessor.told) == n for m in all_of_them))
        assert [member.lessor.kinds for member in all_of_them] == [["apply", "apply"]] * 4


async def test_less_than_a_majority_gathers_nothing(autojump_clock) -> None:
    async with members(5) as (made, all_of_them):
        some = all_of_them[:2]
        for member in some:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in some), 300)
        assert {tuple(member.lessor.kinds) for member in some} == {("drop",)}
        assert all(member.ended == [False] for member in some)


async def test_other_weights_before_are_another_run(autojump_clock) -> None:
    async with members(4) as (made, all_of_them):
        for number, member in enumerate(all_of_them):
            member.gathers.intent_posted(posted(base_version=b"b" if number == 0 else b"a"))
        other, *others = all_of_them
        await made.until(lambda: all(member.lessor.told for member in others), 300)
        check_same(others, others)
        await made.until(lambda: other.lessor.told, 300)
        assert other.lessor.kinds == ["drop"]


async def test_an_author_that_gives_other_bytes_than_it_signed_is_left_out(
    autojump_clock, monkeypatch
) -> None:
    async with members(4) as (made, all_of_them):
        liar, *others = all_of_them
        take_for = type(liar.gathers.messages)._give

        async def lie(self, session, stream):
            if self is not liar.gathers.messages:
                await take_for(self, session, stream)
                return
            await stream.receive_message(max_bytes=0)
            await stream.send_message(encode_record(wire.GatherGiven(len(liar.message))))
            await stream.send(bytes(len(liar.message)))

        monkeypatch.setattr(type(liar.gathers.messages), "_give", lie)
        liar.node.registry._streams[FETCHES] = lambda s, t: lie(liar.gathers.messages, s, t)
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in others), 300)
        check_same(others, others)


@pytest.mark.parametrize("are_usual", [False, True], ids=["first", "usual"])
@pytest.mark.parametrize("number", range(4))  # one of them makes the set
async def test_one_that_announces_a_message_and_gives_it_to_none_is_left_out_soon(
    number: int, are_usual: bool, autojump_clock
) -> None:
    async def hang(session, stream):
        await trio.sleep_forever()

    async with members(4) as (made, all_of_them):
        liar = all_of_them[number]
        others = [member for member in all_of_them if member is not liar]
        liar.node.registry._streams[FETCHES] = hang
        for member in all_of_them if are_usual else ():
            member.gathers.patience.note_commit(0.05)
        began_at = trio.current_time()
        for member in all_of_them:
            member.gathers.intent_posted(posted(lineage=0))
        await made.until(lambda: all(member.lessor.told for member in others), 300)
        check_same(others, others)
        assert trio.current_time() - began_at < 4 * limits.GATHER_GRACE_S


class SelfishTerms(RunTerms):
    """Of whom makes the set, its own message is all that it puts in."""

    def make_set(self, entries: Iterable[Announced]) -> bytes:
        ordered = sorted(entries, key=lambda each: each.author)
        return super().make_set(ordered[:1])


async def test_who_makes_a_set_of_its_own_message_alone_is_left_out(autojump_clock) -> None:
    """It is the one with the smallest id, and a key is drawn as often as one likes."""
    async with members(5) as (made, all_of_them):
        liar, *honest = in_order(all_of_them)
        rounds = liar.gathers.messages
        open_round = rounds.open

        async def open_selfish(terms: RunTerms, check: Callable[[bytes], None]) -> Round:
            own = SelfishTerms(terms.gid, terms.members, terms.size_bytes, terms.verify)
            return await open_round(own, check)

        rounds.open = open_selfish
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in honest))
        check_same(honest, honest)


async def test_a_message_that_is_no_payload_is_left_out(autojump_clock) -> None:
    async with members(4) as (made, all_of_them):
        bad, *others = all_of_them
        messages = bad.gathers.messages
        publish = None

        async def opened(terms, check):
            found = await type(messages).open(messages, terms, check)
            nonlocal publish
            publish = found.publish

            def publish_garbage(announced, data):
                garbage = b"\xff" * len(data)
                digest = hashlib.sha256(garbage).digest()
                publish(terms.announce(bad.node.identity, digest), garbage)

            found.publish = publish_garbage
            return found

        messages.open = opened
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        await made.until(lambda: all(member.lessor.told for member in others), 300)
        check_same(others, others)


async def test_a_worker_that_goes_away_leaves_the_others_to_it(autojump_clock) -> None:
    async with members(4) as (made, all_of_them):
        gone, *others = all_of_them
        for member in all_of_them:
            member.gathers.intent_posted(posted())
        gone.gathers.worker_gone()
        await made.until(lambda: all(member.lessor.told for member in others), 300)
        check_same(others, others)
        assert gone.lessor.told == []


async def test_the_next_round_takes_the_place_of_one_that_waits(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        one = all_of_them[0]
        one.gathers.intent_posted(posted(1))
        await trio.sleep(1)
        one.gathers.intent_posted(posted(2))
        await trio.sleep(1)
        assert one.lessor.told == [], "the worker has replaced it itself"
        for member in all_of_them[1:]:
            member.gathers.intent_posted(posted(2))
        await made.until(lambda: all(member.lessor.told for member in all_of_them))
        assert {member.lessor.told[0][:2] for member in all_of_them} == {("apply", 2)}


async def test_messages_that_are_too_long_are_refused_at_once(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "GATHER_ROUND_BYTES_MAX", 800)
    async with members(2) as (_, all_of_them):
        one = all_of_them[0]
        one.gathers.intent_posted(posted())
        ((kind, _, why),) = one.lessor.told
        assert kind == "drop"
        assert why.startswith("local: expected messages of up to 400 bytes from 2 members")


# --- members that ask ----------------------------------------------------------------------------


async def ask(asker: Member, giver: Member, record: object) -> object:
    session = asker.node.sessions[giver.node.peer]
    async with await session.open_stream(FETCHES, priority=Priority.BULK) as stream:
        await stream.send_message(encode_record(record))
        await stream.send_end()
        header, _ = await stream.receive_message(max_bytes=0)
        return decode_record(header, wire.Message)


async def test_a_run_that_is_not_known_here_is_asked_for_again(autojump_clock) -> None:
    async with members(2) as (_, (one, two)):
        answer = await ask(one, two, wire.Fetch(bytes(16), bytes(32)))
        assert answer == wire.NotGiven(is_busy=True)


async def test_a_message_is_given_to_each_member_twice_at_most(autojump_clock) -> None:
    async with members(3) as (made, all_of_them):
        one, two, _ = all_of_them
        two.gathers.intent_posted(posted())
        all_of_them[2].gathers.intent_posted(posted())
        one.gathers.intent_posted(posted())
        await made.until(lambda: two.gathers.messages._rounds)
        (found,) = two.gathers.messages._rounds.values()
        await made.until(lambda: found.held())
        digest = found.held()[0].digest
        given = [found.take_for(one.node.peer, digest) is not None for _ in range(4)]
        assert given.count(True) <= limits.GATHER_GIVEN_MAX
        assert found.take_for(b"x" * 32, digest) is None


async def test_a_word_that_is_none_ends_nothing(autojump_clock) -> None:
    async with members(2) as (made, (one, two)):
        session = one.node.sessions[two.node.peer]
        have = wire.Have(bytes(16), (bytes(32),))
        assert await session.request(WORDS, encode_record(have), deadline_s=5.0) == b""
        for member in (one, two):
            member.gathers.intent_posted(posted())
        await made.until(lambda: one.lessor.told and two.lessor.told)
        check_same([one, two], [one, two])
