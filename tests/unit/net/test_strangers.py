"""Strangers are asked while a node is alone, and members keep the item good: on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from swarmnode.config import NodeConfig
from swarmnode.ids import PeerId
from swarmnode.net.mainline import Item
from swarmnode.net.strangers import REGISTER, Sought, Strangers, Told
from swarmnode.protocol import meeting
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.wire.meeting import MeetingItem

SWARM, MEETING = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
SELF, PEER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (5, 6))
GRANT = meeting.make_grant("demo", SWARM, MEETING.public_key)
WALL = 1_800_000_000.0
HINT = Hint(PEER, "8.8.8.8:7337")
LINK = SwarmLink("demo", SWARM.public_key, (), b"", MEETING.public_key)


@dataclass
class FakeStore:
    """A mainline DHT in memory."""

    items: dict[bytes, bytes] = field(default_factory=dict)
    gets: int = 0
    puts: int = 0

    async def get(self, public_key: bytes, salt: bytes) -> Item | None:
        assert salt == meeting.SALT
        self.gets += 1
        await trio.sleep(1)
        return Item(self.items[public_key], 1) if public_key in self.items else None

    async def put(self, identity: Identity, salt: bytes, value: bytes) -> int:
        assert salt == meeting.SALT
        self.puts += 1
        self.items[identity.public_key] = value
        return 8

    @asynccontextmanager
    async def open(self, nodes: Sequence[str], *, is_local: bool) -> AsyncIterator[FakeStore]:
        assert nodes
        assert not is_local
        yield self


class FakePart:
    """A node's part in a swarm."""

    def __init__(self, *, alone: bool = False, registers: dict[Any, Any] | None = None) -> None:
        self.manifest: Any = SimpleNamespace(
            name="demo", swarm_key=SWARM.public_key, grant=GRANT, created_at=1_700_000_000
        )
        self.self_id = SELF
        self.sessions: dict[PeerId, Any] = {} if alone else {PEER: None}
        self.said: list[dict[str, Any]] = []
        view = SimpleNamespace(registers=lambda: registers or {})
        self.state = SimpleNamespace(
            is_open=True, view=view, say=lambda update: self.said.append(update.registers)
        )
        self.alive: tuple[PeerId, ...] = (SELF, PEER)
        self.members = SimpleNamespace(live=lambda: self.alive)
        self.distrusted: set[PeerId] = set()

    def peer_report(self, peer: PeerId) -> Any:
        last = 8 if peer == PEER else 9
        return SimpleNamespace(addresses=("10.0.0.1:7337", f"8.8.8.{last}:7337"))

    def is_trusted(self, peer: PeerId) -> bool:
        return peer not in self.distrusted


def strangers(store: FakeStore, told: list[Told], **settings: Any) -> Strangers:
    async def ask_txt(name: str, servers: Sequence[str]) -> list[str]:
        assert not servers
        if name != "_swarmnode.example.test":
            raise OSError("no such name")
        return [str(HINT), "junk"]

    return Strangers(
        NodeConfig(home=Path("/nowhere"), **settings),
        lambda: WALL + trio.current_time(),
        told.append,
        rng=random.Random(7),
        open_store=store.open,
        ask_txt=ask_txt,
    )


def written(store: FakeStore, owner: bytes = MEETING.public_key) -> MeetingItem:
    return meeting.decode_item(store.items[owner], WALL)


def an_item(*hints: Hint) -> bytes:
    draft = MeetingItem("demo", SWARM.public_key, GRANT, int(WALL), 3, 1_700_000_000)
    return meeting.encode_item(draft, hints)


def place() -> Identity:
    return meeting.name_identity("main", "demo", meeting.slot_of(SWARM.public_key))


async def test_a_name_leads_to_the_meeting_key_and_that_to_members(
    autojump_clock: MockClock,
) -> None:
    old = Hint(SELF, "8.8.4.4:7337")
    store, told = FakeStore({place().public_key: an_item(old)}), []
    store.items[MEETING.public_key] = an_item(HINT)
    await strangers(store, told).look(Sought("demo"))
    assert [(each.swarm_key, each.hints) for each in told] == [(SWARM.public_key, [HINT])]
    told.clear()
    del store.items[MEETING.public_key]  # then what any reader may write is better than nothing
    await strangers(store, told).look(Sought("demo"))
    assert [each.hints for each in told] == [[old]]


@pytest.mark.parametrize("value", [b"junk", b"", an_item(HINT)[:-1], bytes(5000)])
async def test_what_is_no_item_of_the_swarm_is_not_told(
    autojump_clock: MockClock, value: bytes
) -> None:
    store, told = FakeStore({place().public_key: value, MEETING.public_key: value}), []
    await strangers(store, told).look(Sought.by(LINK))
    assert told == []
    store.items[MEETING.public_key] = an_item(HINT)
    await strangers(store, told).look(Sought("demo", bytes(32), MEETING.public_key))
    assert told == []  # another swarm is meant


async def test_each_way_is_off_without_its_word(autojump_clock: MockClock) -> None:
    store, told = FakeStore({MEETING.public_key: an_item(HINT)}), []
    zones = ("example.test",)
    await strangers(store, told, dns_seeds=zones, rendezvous=("link",)).look(Sought.by(LINK))
    assert (told, store.gets) == ([], 0)
    await strangers(store, told, dns_seeds=zones, rendezvous=("dns",)).look(Sought.by(LINK))
    assert ([each.via for each in told], store.gets) == (["dns"], 0)
    await strangers(store, told, dns_seeds=zones, rendezvous=("mainline",)).look(Sought.by(LINK))
    assert [each.via for each in told] == ["dns", "mainline"]


async def test_a_node_with_a_neighbour_asks_no_stranger_and_one_alone_does(
    autojump_clock: MockClock,
) -> None:
    store, told = FakeStore({MEETING.public_key: an_item(HINT)}), []
    part = FakePart()
    part.manifest.grant = b""  # it can write nothing, so it has no other business
    asking = strangers(store, told)
    with trio.move_on_after(60):
        await asking.run(LINK, lambda: part, None)  # type: ignore[arg-type, return-value]
    assert (told, store.gets) == ([], 0)
    part.sessions.clear()
    with trio.move_on_after(15):
        await asking.run(LINK, lambda: part, None)  # type: ignore[arg-type, return-value]
    assert HINT in told[0].hints


async def test_a_member_hears_the_seed_says_it_and_writes_where_members_are(
    autojump_clock: MockClock,
) -> None:
    junk = {number: {REGISTER: f"junk {number}"} for number in range(40)}
    part = FakePart(registers={**junk, PEER: {REGISTER: meeting.seed_text(MEETING)}})
    store = FakeStore()
    with trio.move_on_after(120):
        await strangers(store, []).run(LINK, lambda: part, None)  # type: ignore[arg-type, return-value]
    assert part.said == [{REGISTER: meeting.seed_text(MEETING)}]
    for owner in (MEETING.public_key, place().public_key):
        item = written(store, owner)
        hints = sorted(meeting.hints_in(item), key=lambda hint: hint.address)
        assert hints == [Hint(PEER, "8.8.8.8:7337"), Hint(SELF, "8.8.8.9:7337")]
    assert store.puts == 2  # it is as good a minute later


async def test_peers_that_are_not_trusted_are_not_named_and_an_old_item_is_written_anew(
    autojump_clock: MockClock,
) -> None:
    part, store = FakePart(), FakeStore()
    part.distrusted.add(PEER)
    with trio.move_on_after(60):
        await strangers(store, []).run(LINK, lambda: part, MEETING)  # type: ignore[arg-type, return-value]
    assert [hint.peer for hint in meeting.hints_in(written(store))] == [SELF]
    with trio.move_on_after(meeting.ITEM_FRESH_S / 2):
        await strangers(store, []).run(LINK, lambda: part, MEETING)  # type: ignore[arg-type, return-value]
    assert store.puts == 4
