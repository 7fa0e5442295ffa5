"""What a node makes of its peers: it is kept over restarts, and said in the shared state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from swarmnode.daemon.membership.report import TrustKeeper
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.trust import HALF_LIFE_S, NEUTRAL, Seen
from swarmnode.store.journal import Journal
from tests.unit.daemon.membership.test_shared_state import Speaker, swarm

LIAR = PeerId(b"\x66" * 32)
SAID_WITHIN_S = 130.0  # a minute here, and a minute to be noticed


def keeper_of(node: Speaker, home: Path) -> TrustKeeper:
    keeper = TrustKeeper(node.keeper, home / f"{node.name}.trust", node.env)
    node.keeper.on_changed = lambda author, names: (
        keeper.heard(author) if "verdicts" in names and author != node.peer else None
    )
    return keeper


def note(keeper: TrustKeeper, peer: PeerId, seen: Seen, times: int = 1) -> None:
    for _ in range(times):
        keeper.book.note(peer, seen, trio.current_time())


@asynccontextmanager
async def running(keeper: TrustKeeper) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        yield
        nursery.cancel_scope.cancel()


async def test_what_two_of_three_were_harmed_by_the_third_hears_of(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world, trio.open_nursery() as nursery:
        nodes = [await world.add(name) for name in "abc"]
        for node in nodes[1:]:
            await nodes[0].connect(node)
        keepers = [keeper_of(node, tmp_path) for node in nodes]
        for keeper in keepers:
            await nursery.start(keeper.run)
        third = keepers[2].book
        for node in nodes[:2]:
            note(keepers[2], node.peer, Seen.USEFUL)
        for keeper in keepers[:2]:
            note(keeper, LIAR, Seen.REFUSED, 10)
        await trio.sleep(SAID_WITHIN_S)
        assert third.heard_of(LIAR) < NEUTRAL
        assert third.weight(LIAR, trio.current_time()) < third.own_weight(LIAR, trio.current_time())
        for keeper in keepers[:2]:
            note(keeper, LIAR, Seen.USEFUL, 20)
        for node in nodes[1:]:
            await nodes[0].connect(node)  # sessions that are not used have ended
        await trio.sleep(SAID_WITHIN_S)
        assert third.heard_of(LIAR) == NEUTRAL, "it was taken back"
        nursery.cancel_scope.cancel()


async def test_nothing_is_said_as_long_as_nothing_is_new(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        keeper, say = keeper_of(a, tmp_path), a.keeper.say
        said: list[Update] = []

        def record(update: Update) -> None:
            said.append(update)
            say(update)

        a.keeper.say = record  # type: ignore[method-assign]
        note(keeper, LIAR, Seen.REFUSED, 40)
        async with running(keeper):
            await trio.sleep(SAID_WITHIN_S)
            assert keeper.book.verdicts(trio.current_time()) == {LIAR: 2}
            await trio.sleep(61)
            assert a.keeper.view.verdicts_of(a.peer) == {LIAR: 2}
        assert [update.verdicts for update in said] == [{LIAR: 2}]


async def test_a_restart_begins_with_what_was_measured_before(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        first = keeper_of(a, tmp_path)
        async with running(first):
            note(first, LIAR, Seen.REFUSED, 5)  # and the node goes before it has looked again
        weight = first.book.weight(LIAR, trio.current_time())
        await trio.sleep(HALF_LIFE_S)
        second = keeper_of(a, tmp_path)
        async with running(second):
            now = trio.current_time()
            assert second.book.counts(LIAR).refused == 5
            assert weight < second.book.weight(LIAR, now) < NEUTRAL
            assert abs(second.book.weight(LIAR, now) - first.book.weight(LIAR, now)) < 1e-6


async def test_records_that_no_node_writes_are_left_out_and_the_others_are_read(
    autojump_clock, tmp_path: Path, caplog
) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        first = keeper_of(a, tmp_path)
        note(first, LIAR, Seen.REFUSED, 5)
        async with running(first):
            pass
        with Journal(tmp_path / "a.trust") as journal:
            journal.append(b"no record")
        second = keeper_of(a, tmp_path)
        async with running(second):
            assert second.book.counts(LIAR).refused == 5
        assert any("journal of trust was damaged" in r.getMessage() for r in caplog.records)


async def test_a_long_life_leaves_no_long_journal(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        keeper = keeper_of(a, tmp_path)
        sizes: list[int] = []

        async def in_thread(function: Any, *arguments: Any) -> Any:
            found = function(*arguments)
            sizes.append((tmp_path / "a.trust").stat().st_size)
            return found

        a.env.in_thread = in_thread
        async with running(keeper):
            for _ in range(12):
                for number in range(2000):
                    note(keeper, PeerId(number.to_bytes(32, "big")), Seen.USEFUL)
                await trio.sleep(61)  # one look of the keeper lies between any two of these
        assert max(sizes) < 2**20 + 2000 * 80
        assert sizes[-1] < max(sizes), "it was written anew"
