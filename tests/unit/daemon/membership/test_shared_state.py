"""The shared state of a running node: what is said is on disk first, and reaches the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import zstandard

from swarmnode import limits
from swarmnode.daemon.membership import shared_state
from swarmnode.daemon.membership.shared_state import ADDRESS, STATE_SERVICE, StateKeeper
from swarmnode.errors import ChannelBroken, Refused, StorageFull
from swarmnode.ids import PeerId
from swarmnode.net.services import ScopedServices
from swarmnode.net.session import Session
from swarmnode.protocol.crdt.events import Update
from swarmnode.store.journal import Journal
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire import crdt as wire
from swarmnode.wire.compression import decode_message
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.party_kit import Party

SWARM_ID = b"s" * 32
NAME = f"{STATE_SERVICE}@tag"
FULL = "no space left on device"


class Disk:
    """Between a keeper and its journal: slow, or full, on demand."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.is_full = False
        self.may_rotate = True
        self.calls: list[str] = []

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await trio.sleep(self.delay_s)
        self.calls.append(function.__name__)
        if self.is_full and function.__name__ == "_append":
            raise StorageFull(FULL)
        if not self.may_rotate and function.__name__ == "rotate":
            raise StorageFull(FULL)
        return function(*arguments)


class Speaker(Party):
    """A node with shared state; whoever it has a session with is its neighbour."""

    def __init__(
        self,
        links: MemoryNetwork,
        name: str,
        home: Path,
        *,
        key: str = "",
        epoch: int = 1,
    ) -> None:
        super().__init__(links, name, key)
        self.disk = Disk()
        self.env.in_thread = self.disk.in_thread
        self.journal = home / f"{self.peer.short}.journal"
        self.changed: list[tuple[PeerId, frozenset[str]]] = []
        self.elsewhere: list[int] = []
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()

        async def everybody(peer: PeerId) -> bool:
            return True

        self.keeper = StateKeeper(
            identity=self.identity,
            swarm_id=SWARM_ID,
            boot_epoch=epoch,
            journal=self.journal,
            services=ScopedServices(self.services, "tag", everybody),
            env=self.env,
        )
        self.keeper.on_changed = lambda author, names: self.changed.append((author, names))
        self.keeper.on_key_elsewhere = self.elsewhere.append

    def session_opened(self, session: Session) -> None:
        if session.peer in {each.peer for each in self.opened}:
            self.keeper.neighbour_down(session.peer)
        super().session_opened(session)
        self.keeper.neighbour_up(session)

    def session_closed(self, session: Session) -> None:
        self.keeper.neighbour_down(session.peer)

    async def run_in(self, nursery: trio.Nursery) -> None:
        await nursery.start(self._live_on)

    async def _live_on(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.keeper.run)
                await self.start(nursery)
                task_status.started()
        self.stopped.set()

    async def kill(self) -> None:
        self.scope.cancel()
        await self.stopped.wait()

    def says(self, **counters: int) -> None:
        self.keeper.say(Update(counters=counters))

    def heard_of(self, other: Speaker) -> dict[str, int]:
        return self.keeper.view.counters_of(other.peer)

    @property
    def sequence(self) -> int:
        return self.keeper.core.statistics().own_sequence

    def held_on_disk(self) -> list[bytes]:
        with Journal(self.journal) as journal:
            return list(journal.recovered.records)


class Swarm:
    def __init__(self, home: Path, nursery: trio.Nursery) -> None:
        self.home = home
        self.nursery = nursery
        self.links = MemoryNetwork(delay_s=0.01)

    async def add(self, name: str, **options: Any) -> Speaker:
        made = Speaker(self.links, name, self.home, **options)
        await made.run_in(self.nursery)
        return made


def torn_tails(home: Path) -> int:
    return len(list(home.glob("*.torn-*")))


@asynccontextmanager
async def swarm(home: Path) -> AsyncIterator[Swarm]:
    async with trio.open_nursery() as nursery:
        yield Swarm(home, nursery)
        nursery.cancel_scope.cancel()


# --- from one to the others -------------------------------------------------------------------


async def test_what_one_says_the_others_know(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a, b, c = [await world.add(name) for name in "abc"]
        await a.connect(b)
        await b.connect(c)
        a.keeper.say(
            Update(
                leases={(ADDRESS, "mem:a"): 300},
                counters={"steps": 7},
                registers={"state": "training"},
            )
        )
        await trio.sleep(1)
        for node in (a, b, c):
            assert node.keeper.view.counters_of(a.peer) == {"steps": 7}
            assert node.keeper.view.registers_of(a.peer) == {"state": "training"}
            assert node.keeper.stored_addresses() == {a.peer: ("mem:a",)}
            assert (a.peer, frozenset({ADDRESS, "steps", "state"})) in node.changed
        assert a.keeper.core.digest() == c.keeper.core.digest()


async def test_what_was_said_before_they_met_is_found_by_comparing(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        for step in range(40):
            a.says(steps=step)
            b.says(steps=2 * step)
            await trio.sleep(0.1)
        await a.connect(b)
        await trio.sleep(1)
        assert a.heard_of(b) == {"steps": 78}
        assert b.heard_of(a) == {"steps": 39}


async def test_records_of_one_author_arrive_in_order_over_a_slow_way(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        seen: list[int] = []
        handler = b.services._requests[NAME]

        async def watched(peer: PeerId, payload: bytes) -> bytes:
            message: Any = decode_record(payload, wire.Message)  # type: ignore[arg-type]
            for carried in message.records if isinstance(message, wire.Push) else ():
                seen.append(decode_record(carried.record.body, wire.StateRecord).sequence)
            return await handler(peer, payload)

        b.services._requests[NAME] = watched
        await a.connect(b)
        await trio.sleep(1)
        world.links.delay_s = 0.4
        for step in range(30):
            a.says(steps=step)
            await trio.sleep(0.1)
        await trio.sleep(30)  # one message for each round trip
        assert b.heard_of(a) == {"steps": 29}
        assert seen == sorted(seen)
        assert len(seen) == len(set(seen)), "nothing is sent twice"
        assert b.keeper.core.statistics().records_total.get("gap", 0) == 0


async def test_a_neighbour_that_reads_slowly_misses_some_and_gets_it_by_comparing(
    autojump_clock, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "STATE_OUTBOX_MAX", 1)
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        await trio.sleep(1)
        world.links.delay_s = 1.0
        for step in range(100):
            a.says(steps=step)
            await trio.sleep(0.1)
        world.links.delay_s = 0.01
        await trio.sleep(3 * limits.STATE_SYNC_INTERVAL_S)
        assert b.heard_of(a) == {"steps": 99}
        assert a.keeper.core.digest() == b.keeper.core.digest()


async def test_what_is_long_travels_compressed(
    autojump_clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads: list[bytes] = []

    def note(payload: bytes) -> wire.Message:
        payloads.append(payload)
        return decode_message(payload)

    monkeypatch.setattr(shared_state, "decode_message", note)
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        for step in range(limits.STATE_CHECKPOINT_RECORDS - 1):
            a.says(steps=step)
            await trio.sleep(0.1)
        await a.connect(b)
        await trio.sleep(1)
        assert b.heard_of(a) == {"steps": step}
    longest, *others = sorted(payloads, key=len, reverse=True)
    held_bytes = b.keeper.core.statistics().held_bytes
    assert decode_record(longest, wire.Compressed).frame, "it is one"
    assert len(longest) < held_bytes / 2
    assert all(len(each) < limits.STATE_COMPRESS_BYTES_MIN for each in others)


async def test_a_new_session_goes_on_where_the_old_one_broke(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        session = await a.connect(b)
        a.says(steps=1)
        await trio.sleep(1)
        session.give_up(ChannelBroken("a test breaks it"))
        a.says(steps=2)
        await trio.sleep(1)
        assert b.heard_of(a) == {"steps": 1}
        assert a.keeper.core.statistics().neighbours == 0
        await b.connect(a)
        await trio.sleep(1)
        assert b.heard_of(a) == {"steps": 2}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode_record(wire.Head(bytes(32), 1, 1, bytes(32))),
        encode_record(wire.Compressed(b"no frame")),
        encode_record(wire.Compressed(zstandard.compress(bytes(2**24)))),
    ],
)
async def test_a_message_that_is_none_is_refused_and_the_session_stays(
    autojump_clock, tmp_path: Path, payload: bytes
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        session = await a.connect(b)
        with pytest.raises(Refused):
            await session.request(NAME, payload, deadline_s=1)
        a.says(steps=1)
        await trio.sleep(1)
        assert b.heard_of(a) == {"steps": 1}


async def test_who_signs_with_our_key_is_noticed(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        (tmp_path / "copy").mkdir()
        twin = Speaker(world.links, "twin", tmp_path / "copy", key="a", epoch=5)
        await twin.run_in(world.nursery)
        a.says(steps=1)
        twin.says(steps=1)
        await twin.connect(b)
        await trio.sleep(1)
        await twin.network.close("for now")
        await trio.sleep(1)
        await a.connect(b)
        await trio.sleep(2 * limits.STATE_SYNC_INTERVAL_S)
        assert set(a.elsewhere) == {5}


# --- the journal ------------------------------------------------------------------------------


async def test_nothing_leaves_before_it_is_on_disk(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        await trio.sleep(1)
        a.disk.delay_s = 3.0
        a.says(steps=1)
        await trio.sleep(2.9)
        assert (a.heard_of(a), b.heard_of(a)) == ({}, {})
        await trio.sleep(0.5)
        assert (a.heard_of(a), b.heard_of(a)) == ({"steps": 1}, {"steps": 1})


async def test_after_a_crash_everything_that_others_have_seen_is_there(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        b.keeper.say(Update({(ADDRESS, "mem:b"): 300}, {"steps": 5}))
        for step in range(25):  # more than one checkpoint
            a.says(steps=step)
            await trio.sleep(0.1)
        await a.kill()
        world.links.cut("a", "b")
        again = Speaker(world.links, "again", tmp_path, key="a", epoch=2)
        await again.run_in(world.nursery)
        assert again.heard_of(a) == b.heard_of(a) == {"steps": 24}
        assert again.heard_of(b) == {"steps": 5}
        assert again.keeper.stored_addresses() == {b.peer: ("mem:b",)}
        said = again.keeper.view.sets(again.env.monotonic())
        assert said[ADDRESS] == {"mem:b": frozenset({b.peer})}, "its lease runs on"
        assert again.keeper.view.sets(again.env.monotonic() + 300) == {}, "as long as it did"
        again.keeper.say(Update(registers={"state": "training"}))
        await again.connect(b)
        await trio.sleep(1)
        assert b.heard_of(a) == {"steps": 24}, "totals go on"
        assert b.keeper.view.registers_of(a.peer) == {"state": "training"}


async def test_a_torn_tail_is_cut_and_neighbours_bring_back_what_it_held(
    autojump_clock, tmp_path: Path, caplog
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        for step in range(5):
            a.says(steps=step)
            b.says(steps=step)
            await trio.sleep(0.2)
        await a.kill()
        data = a.journal.read_bytes()
        a.journal.write_bytes(data[:-7])
        again = Speaker(world.links, "again", tmp_path, key="a", epoch=2)
        await again.run_in(world.nursery)
        assert "damaged" in caplog.text
        assert torn_tails(tmp_path) == 1
        world.links.cut("a", "b")
        await again.connect(b)
        again.keeper.say(Update(registers={"state": "starting"}))
        await trio.sleep(2)
        assert again.heard_of(a) == again.heard_of(b) == {"steps": 4}
        assert again.keeper.core.digest() == b.keeper.core.digest()


async def test_records_of_another_version_are_left_out(
    autojump_clock, tmp_path: Path, caplog
) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        a.says(steps=3)
        await trio.sleep(0.1)
        await a.kill()
        with Journal(a.journal) as journal:
            journal.append(b"\xc1 of tomorrow")
            journal.sync()
        again = Speaker(world.links, "again", tmp_path, key="a", epoch=2)
        await again.run_in(world.nursery)
        assert "left out" in caplog.text
        assert again.heard_of(a) == {"steps": 3}


async def test_a_journal_that_another_process_has_open_is_said_to_be_the_reason(
    autojump_clock, tmp_path: Path
) -> None:
    party = Speaker(MemoryNetwork(), "a", tmp_path)
    with Journal(party.journal), pytest.raises(Refused, match="stop it first"):
        await party.keeper.run()


# --- a full disk ------------------------------------------------------------------------------


async def test_while_the_disk_is_full_our_words_gather_and_none_is_lost(
    autojump_clock, tmp_path: Path, caplog
) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        a.says(steps=1)
        await trio.sleep(1)
        a.disk.is_full = True
        for step in range(2, 100):
            a.says(steps=step)
            await trio.sleep(0.5)
        assert FULL in a.keeper.disk_failure
        assert b.heard_of(a) == {"steps": 1}, "nothing that a crash could take back is shown"
        assert a.sequence == 2
        b.says(steps=9)
        await trio.sleep(1)
        assert a.heard_of(b) == {"steps": 9}, "others are heard all the while"
        a.disk.is_full = False
        await trio.sleep(limits.STATE_DISK_RETRY_S + 1)
        assert a.keeper.disk_failure == ""
        assert b.heard_of(a) == {"steps": 99}
        assert caplog.text.count("training goes on") == 1
        await a.kill()
        assert a.held_on_disk()


async def test_words_of_others_that_wait_for_the_disk_are_bounded(
    autojump_clock, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "STATE_WRITES_WAITING_MAX", 3)
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        await trio.sleep(1)
        a.disk.delay_s = 60.0
        for step in range(20):
            b.says(steps=step)
            await trio.sleep(0.5)
        assert a.heard_of(b) == {"steps": 19}
        assert len(a.keeper._to_write) <= 3


# --- rotation ---------------------------------------------------------------------------------


@pytest.fixture
def short_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmnode.store.journal.JOURNAL_ROTATE_BYTES_MIN", 2 * limits.KIB)


@pytest.mark.usefixtures("short_journals")
async def test_a_journal_stays_short_and_whole(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        for step in range(200):
            a.says(steps=step)
            await trio.sleep(0.1)
        assert a.disk.calls.count("rotate") > 3
        assert a.journal.stat().st_size < 32 * limits.KIB
        await a.kill()
        again = Speaker(world.links, "again", tmp_path, key="a", epoch=2)
        await again.run_in(world.nursery)
        assert again.heard_of(a) == {"steps": 199}


@pytest.mark.usefixtures("short_journals")
async def test_what_others_have_seen_survives_a_crash_right_after_a_rotation(
    autojump_clock, tmp_path: Path
) -> None:
    async with swarm(tmp_path) as world:
        a = await world.add("a")
        step = 0
        for _ in range(5):
            rotations = a.disk.calls.count("rotate")
            while a.disk.calls.count("rotate") == rotations:
                step += 1
                a.says(steps=step)
                await trio.sleep(0.1)
            assert a.heard_of(a) == {"steps": step}
            copy = a.journal.with_name(f"after-{step}.journal")
            copy.write_bytes(a.journal.read_bytes())  # the disk, had we crashed now
            with Journal(copy) as journal:
                signed = [decode_record(raw, Signed) for raw in journal.recovered.records]
            records = [decode_record(each.body, wire.StateRecord) for each in signed]
            assert max(record.counters.get("steps", 0) for record in records) == step


@pytest.mark.usefixtures("short_journals")
async def test_a_rotation_that_fails_holds_no_caller_up(autojump_clock, tmp_path: Path) -> None:
    async with swarm(tmp_path) as world:
        a, b = [await world.add(name) for name in "ab"]
        await a.connect(b)
        a.disk.may_rotate = False
        for step in range(100):
            a.says(steps=step)
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert FULL in a.keeper.disk_failure
        assert b.heard_of(a) == {"steps": 99}
        a.disk.may_rotate = True
        a.says(steps=100)
        await trio.sleep(1)
        assert a.keeper.disk_failure == ""
        assert a.disk.calls.count("rotate") > 0
