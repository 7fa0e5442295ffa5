"""The log while members die, networks part and sessions break: no round is ever different anywhere.

Whole shells over virtual sessions in virtual time.
"""

from __future__ import annotations

import random

import pytest
import trio

from swarmnode import limits
from swarmnode.protocol.gossip import group_events, log_book
from tests.kits.log_kit import (
    Writer,
    check_agreement,
    everybody_changed,
    part,
    rejoin,
    writers,
)


@pytest.mark.parametrize("seed", range(15))
async def test_deaths_partitions_and_lost_words_change_no_round(autojump_clock, seed: int) -> None:
    rng = random.Random(seed)
    async with writers(5, delay_s=0.02, step_s=0.1) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 2 for w in all_of_them), 120)
        up = list(all_of_them)
        for _ in range(3):
            await trio.sleep(rng.uniform(0, 0.5))
            match rng.randrange(3):
                case 0 if len(up) > 3:
                    victim = up.pop(rng.randrange(len(up)))
                    victim.node.die()
                    everybody_changed(up)
                case 1:
                    n = rng.randrange(1, len(up))
                    side = rng.sample(up, n)
                    other = [w for w in up if w not in side]
                    part(made, side, other)
                    await trio.sleep(rng.uniform(0, 30))
                    await rejoin(made, side, other)
                case _:
                    one, two = rng.sample(up, 2)
                    made.network.cut(one.node.name, two.node.name)
                    await trio.sleep(rng.uniform(0, 1))
                    await one.node.dial(two.node.peer, two.node.address)
        target = max(w.log_round for w in up) + 5
        # Where too many are dead, those that are left go on after a while.
        within_s = limits.LOG_GONE_S if has_lost_its_majority(up) else 0.0
        await made.until(lambda: all(w.log_round >= target for w in up), within_s + 300)
        check_agreement(*all_of_them)
        assert not any(writer.halts for writer in up)


def has_lost_its_majority(up: list[Writer]) -> bool:
    """Whether too many of the members of the newest round are dead."""
    books = [w.log._book for w in up if w.log._has_begun]
    newest = max(books, key=lambda book: book.next)
    return not group_events.has_majority(newest.members, [w.node.peer for w in up])


async def test_a_log_whose_majority_died_stands_still_for_a_while(autojump_clock) -> None:
    """Seeds 111 and 163 of the test above, before it knew of this."""
    async with writers(3) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 3 for w in all_of_them))
        last, *victims = sorted(all_of_them, key=lambda w: w.node.peer, reverse=True)
        for victim in victims:
            victim.node.die()
        everybody_changed([last])
        await trio.sleep(5)
        before = last.log_round
        await trio.sleep(120)
        assert last.log_round == before
        assert has_lost_its_majority([last])
        assert last.log.state.startswith("waiting for a majority of round")
        # Alone, it waits for longer: its own line may be what is broken.
        last.step_s = 10.0
        await trio.sleep(limits.LOG_GONE_ALONE_S - 300)
        assert last.log_round == before
        await made.until(lambda: last.log_round >= before + 2, 300)
        check_agreement(*all_of_them)


async def split_for_a_while() -> None:
    async with writers(4) as (made, all_of_them):
        await made.until(lambda: all(len(w.rounds) >= 3 for w in all_of_them))
        part(made, all_of_them[:2], all_of_them[2:])
        await trio.sleep(20)
        check_agreement(*all_of_them)


async def test_two_halves_never_both_go_on(autojump_clock) -> None:
    await split_for_a_while()


async def test_canary_a_log_without_majorities_is_found(autojump_clock, monkeypatch) -> None:
    for module in (group_events, log_book):  # in runs, and in rounds that are read
        monkeypatch.setattr(module, "has_majority", lambda _electorate, _view: True)
    with pytest.raises(BaseExceptionGroup) as caught:
        await split_for_a_while()
    assert caught.group_contains(AssertionError, match="differs")
