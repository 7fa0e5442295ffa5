"""The log over sessions: the same rounds in the same order everywhere, whoever comes or goes."""

from __future__ import annotations

import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.collective.log import LOG_SERVICE
from swarmnode.errors import Refused
from swarmnode.protocol.gossip.log_book import LogBook
from swarmnode.wire.exchange.log import LogAsk, LogGive, LogRound
from swarmnode.wire.packing import decode_record, encode_record
from tests.kits.log_kit import (
    Writer,
    check_agreement,
    everybody_changed,
    join,
    part,
    rejoin,
    writers,
)


async def test_all_see_the_same_rounds_with_a_record_of_each(autojump_clock) -> None:
    async with writers(4) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 20 for w in all_of_them))
        assert check_agreement(*all_of_them) >= 20
        full = [r for r in all_of_them[0].rounds if len(r.records) == 4]
        assert len(full) >= 15
        # Each record is that of its round: no member's came late in a swarm at rest.
        assert all(record.round == r.round for r in full[1:] for record in r.records)


async def test_one_node_alone_has_a_log_after_a_moment(autojump_clock) -> None:
    async with writers(1) as (made, (one,)):
        begun_at = trio.current_time()
        await made.until(lambda: len(one.rounds) >= 3)
        assert limits.LOG_FOUND_S <= trio.current_time() - begun_at < limits.LOG_FOUND_S + 2
        assert [len(records.records) for records in one.rounds[:3]] == [1, 1, 1]


async def test_a_late_joiner_catches_up_and_takes_part(autojump_clock) -> None:
    async with writers(3) as (made, all_of_them):
        await made.until(lambda: len(all_of_them[0].rounds) >= 10)
        late = await join(made, "late")
        newest = await join(made, "newest", all_of_them[0].log_round)
        everybody_changed(all_of_them)
        everyone = [*all_of_them, late, newest]
        target = all_of_them[0].log_round + 15
        await made.until(lambda: all(w.log_round >= target for w in everyone))
        assert late.rounds[0].round == 0
        check_agreement(*everyone)
        last = all_of_them[0].by_number()[target - 1].records
        assert len(last) == 5
        assert not any(writer.halts for writer in everyone)


async def test_a_member_with_nothing_to_say_holds_no_other_up(autojump_clock) -> None:
    async with writers(3) as (made, all_of_them):
        await made.until(lambda: len(all_of_them[0].rounds) >= 5)
        all_of_them[2].may_publish = False
        begun_at, before = trio.current_time(), all_of_them[0].log_round
        await made.until(lambda: all_of_them[0].log_round >= before + 20)
        assert trio.current_time() - begun_at < limits.LOG_GRACE_S_MAX + 20
        assert len(all_of_them[0].rounds[-1].records) == 2
        check_agreement(*all_of_them)


async def test_a_slow_members_record_is_in_the_next_round(autojump_clock) -> None:
    async with writers(3) as (made, all_of_them):
        all_of_them[2].step_s = 8.0
        await made.until(lambda: len(all_of_them[0].rounds) >= 30, 600)
        check_agreement(*all_of_them)
        slow = bytes(all_of_them[2].node.peer)
        late = [
            record.round - r.round
            for r in all_of_them[0].rounds
            for record in r.records
            if record.author == slow
        ]
        assert late
        assert all(-8 <= by <= 0 for by in late)


async def test_a_worker_that_comes_up_again_is_told_what_it_missed(autojump_clock) -> None:
    async with writers(3) as (made, all_of_them):
        one = all_of_them[0]
        await made.until(lambda: len(one.rounds) >= 10)
        one.restart_worker(4)
        await made.until(lambda: len(one.rounds) >= 20)
        check_agreement(*all_of_them)


async def test_a_minority_waits_and_catches_up(autojump_clock) -> None:
    async with writers(5) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 5 for w in all_of_them))
        few, many = all_of_them[:2], all_of_them[2:]
        part(made, few, many)
        before = [w.log_round for w in few]
        await made.until(lambda: all(w.log_round >= max(before) + 10 for w in many), 120)
        assert all(w.log_round <= old + 1 for w, old in zip(few, before, strict=True))
        assert all(w.log.state.startswith("waiting for a majority") for w in few)
        await rejoin(made, few, many)
        target = many[0].log_round + 10
        await made.until(lambda: all(w.log_round >= target for w in all_of_them), 120)
        check_agreement(*all_of_them)
        assert not any(writer.halts for writer in all_of_them)


async def test_two_logs_are_noticed_and_the_smaller_side_halts(autojump_clock) -> None:
    async with writers(1) as (made, (lonely,)):
        await made.until(lambda: len(lonely.rounds) >= 3)
        part(made, [lonely], [])
        made.alive.discard(lonely.node.peer)
        others = []
        for name in ("x", "y"):
            writer = await made.add(name, Writer)
            others.append(writer)
            for node in [w.node for w in others]:
                node.sessions.pop(lonely.node.peer, None)
        everybody_changed(others)
        await made.until(lambda: all(w.log_round >= 6 for w in others), 120)
        made.alive.add(lonely.node.peer)
        await rejoin(made, [lonely], others)
        await made.until(lambda: lonely.halts, 120)
        assert "there are two logs" in lonely.halts[0]
        assert not any(w.halts for w in others)
        target = others[0].log_round + 5
        await made.until(lambda: all(w.log_round >= target for w in others), 120)
        check_agreement(*others)
        # A newer model brings it back.
        lonely.rounds = []
        lonely.first = lonely.log_round = others[0].log_round
        lonely.log.worker_gone()
        lonely.log.worker_ready(lonely.log_round)
        await made.until(lambda: len(lonely.rounds) >= 5, 120)
        check_agreement(lonely, *others)


@pytest.mark.parametrize("is_other", [False, True], ids=["of the same log", "of another log"])
async def test_a_model_says_of_which_log_it_is(autojump_clock, is_other) -> None:
    """A node that begins with it has no round of its own that could tell the others."""
    async with writers(3) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 20 for w in all_of_them))
        (last,) = (r for r in all_of_them[0].rounds if r.round == 9)
        assert len(last.digest) == 32
        head = bytes(31) + b"x" if is_other else last.digest
        late = await join(made, "late", 10, head)
        everybody_changed(all_of_them)
        await made.until(lambda: late.halts or len(late.rounds) > 8, 60)
        assert bool(late.halts) == is_other
        check_agreement(*all_of_them)


async def test_a_worker_with_a_model_of_another_log_halts_its_node(autojump_clock) -> None:
    async with writers(3) as (made, all_of_them):
        one = all_of_them[0]
        await made.until(lambda: len(one.rounds) >= 10)
        for head, halts in ((one.rounds[3].digest, 0), (b"other" * 6, 1)):
            one.log.worker_gone()
            one.log.worker_ready(4, head)
            assert len(one.halts) == halts


async def test_rounds_that_no_member_keeps_halt_a_newcomer(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(limits, "LOG_ROUNDS_KEPT", 5)
    async with writers(2) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 20 for w in all_of_them))
        late = await join(made, "late", 3)
        everybody_changed(all_of_them)
        await made.until(lambda: late.halts, 60)
        assert late.halts == ["no peer has round 3 of the log any more"]
        late.log.worker_gone()
        late.first = late.log_round = all_of_them[0].log_round - 2
        late.log.worker_ready(late.log_round)
        await made.until(lambda: len(late.rounds) > 8, 60)
        check_agreement(late, *all_of_them)


# --- members that lie -----------------------------------------------------------------------------


def ask(writer: Writer, of: Writer, request: LogAsk) -> object:
    session = of.node.sessions[writer.node.peer]
    name = writer.node.services.name(LOG_SERVICE)
    return session.request(name, encode_record(request), deadline_s=1)


async def test_a_node_gives_what_it_has(autojump_clock) -> None:
    async with writers(2) as (made, (one, two)):
        one.log._is_halted = True
        with pytest.raises(Refused, match="no log now"):
            await ask(one, two, LogAsk(0, 5))  # type: ignore[misc]
        one.log._is_halted = False
        one.log.partners_changed()
        await made.until(lambda: min(len(one.rounds), len(two.rounds)) >= 5)
        give = decode_record(await ask(one, two, LogAsk(1, 3)), LogGive)  # type: ignore[misc]
        assert [decode_record(data, LogRound).number for data in give.rounds] == [1, 2, 3]
        give = decode_record(await ask(one, two, LogAsk(10**9, 3)), LogGive)  # type: ignore[misc]
        assert (give.rounds, give.before) == ((), b"")


async def test_a_liar_among_the_givers_is_outvoted(autojump_clock) -> None:
    async with writers(4) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 10 for w in all_of_them))
        liar = all_of_them[0]
        forged = LogBook(0)
        shares = [(w.node.peer, liar.log._share()) for w in all_of_them]
        while forged.next < 5000:
            forged.close(forged.read(forged.make(shares)))

        async def lie(_peer: object, payload: bytes) -> bytes:
            request = decode_record(payload, LogAsk)
            rounds = forged.since(request.first, request.rounds_max)
            before = forged.before(request.first)
            return encode_record(LogGive(forged.next, 0, before, forged.head, rounds))

        name = liar.node.services.name(LOG_SERVICE)
        liar.node.registry._requests[name] = lie
        late = await join(made, "late")
        everybody_changed(all_of_them)
        honest = [late, *all_of_them[1:]]
        target = all_of_them[1].log_round + 5
        await made.until(lambda: all(w.log_round >= target for w in honest), 120)
        check_agreement(*honest)
        assert not any(w.halts for w in honest)


async def test_those_who_are_left_go_on_when_a_majority_is_gone(autojump_clock) -> None:
    async with writers(5) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 5 for w in all_of_them))
        few, many = all_of_them[:2], all_of_them[2:]
        everybody_changed(few)
        for writer in many:
            writer.node.die()
            writer.step_s = 10.0
        for writer in few:
            writer.step_s = 1.0
        parted_at = trio.current_time()
        await trio.sleep(limits.LOG_GONE_S * 0.8)
        before = max(w.log_round for w in few)
        # One that comes meanwhile has not looked for as long, and holds no other up.
        late = await join(made, "late", before - 2)
        everybody_changed([*few, late])
        await made.until(lambda: all(w.log_round > before for w in [*few, late]), 300)
        assert limits.LOG_GONE_S <= trio.current_time() - parted_at < limits.LOG_GONE_S + 60
        await made.until(lambda: all(w.log_round > before + 9 for w in [*few, late]), 60)
        # Whoever has older rounds follows: nothing was founded anew.
        newest = await join(made, "newest", 2, few[0].by_number()[1].digest)
        everybody_changed([*few, late, newest])
        target = few[0].log_round + 5
        everyone = [*few, late, newest]
        await made.until(lambda: all(w.log_round >= target for w in everyone), 60)
        check_agreement(*everyone, *many)
        assert not any(w.halts for w in everyone)
