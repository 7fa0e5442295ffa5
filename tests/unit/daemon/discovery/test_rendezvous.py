"""Looking for peers of a swarm: at first often, then rarely, and often again when alone."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.discovery.rendezvous import SwarmRendezvous
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, Overloaded
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.wire import dht as wire

SWARM_KEY = b"k" * 32


def peer(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(32, "big")).peer_id


SELF = peer(0)


class FakeDiscovery:
    """A DHT that knows what it is told to."""

    def __init__(self) -> None:
        self.met: list[tuple[PeerId, tuple[str, ...]]] = []
        self.asked_at: list[float] = []
        self.published: list[tuple[bytes, wire.Record]] = []
        self.withdrawn: list[bytes] = []
        self.found: dict[PeerId, tuple[str, ...]] = {}
        self.failure: Exception | None = None

    def discovered(self, who: PeerId, addresses: tuple[str, ...]) -> None:
        self.met.append((who, addresses))

    def usable(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(address for address in addresses if address != "mem:elsewhere")

    async def get(self, key: bytes, *, quorum: int = 0) -> Any:
        assert key == swarm_key_key(SWARM_KEY)
        assert quorum == 0, "of many authors"
        self.asked_at.append(trio.current_time())
        if self.failure is not None:
            raise self.failure
        records = [
            SimpleNamespace(author=who, record=SimpleNamespace(addresses=addresses))
            for who, addresses in self.found.items()
        ]
        return SimpleNamespace(records=records)

    async def publish(self, key: bytes, draft: wire.Record) -> None:
        if self.failure is not None:
            raise self.failure
        self.published.append((key, draft))

    def withdraw(self, key: bytes) -> None:
        self.withdrawn.append(key)


class Rig:
    def __init__(self, *hints: Hint) -> None:
        self.discovery = FakeDiscovery()
        self.is_lonely = False
        self.told: list[tuple[PeerId, tuple[str, ...]]] = []
        self.rendezvous = SwarmRendezvous(
            SwarmLink("demo", SWARM_KEY, hints),
            discovery=self.discovery,  # type: ignore[arg-type]
            self_id=SELF,
            env=Env(trio.current_time, lambda: 0.0, random.Random(1)),
            is_lonely=lambda: self.is_lonely,
        )
        self.rendezvous.on_found = lambda who, addresses: self.told.append((who, addresses))


def test_peers_of_the_link_are_candidates_and_contacts_of_the_dht_but_we_are_not() -> None:
    rig = Rig(Hint(peer(1), "mem:1"), Hint(peer(1), "mem:one"), Hint(SELF, "mem:me"))
    assert rig.rendezvous.candidates == {peer(1): ("mem:1", "mem:one")}
    assert rig.discovery.met == [(peer(1), ("mem:1", "mem:one"))]


def test_who_was_found_is_passed_on_each_time_and_the_oldest_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(limits, "SWARM_CANDIDATES_MAX", 2)
    rig = Rig()
    for number in (1, 2, 1, 3):
        rig.rendezvous.found(peer(number), (f"mem:{number}",))
    rig.rendezvous.found(SELF, ("mem:me",))
    rig.rendezvous.found(peer(4), ())
    assert [who for who, _ in rig.told] == [peer(1), peer(2), peer(1), peer(3)]
    assert rig.rendezvous.candidates == {peer(1): ("mem:1",), peer(3): ("mem:3",)}


async def test_what_the_dht_names_is_found(autojump_clock) -> None:
    rig = Rig()
    found = {peer(1): ("mem:1",), SELF: ("mem:me",), peer(2): (), peer(3): ("mem:elsewhere",)}
    rig.discovery.found = found  # any node can store a record that leads into our LAN
    with trio.move_on_after(0.1):
        await rig.rendezvous.run()
    assert rig.told == [(peer(1), ("mem:1",))]
    assert rig.rendezvous.lookups == 1


async def pauses(rig: Rig, seconds: float) -> list[float]:
    with trio.move_on_after(seconds):
        await rig.rendezvous.run()
    return [later - earlier for earlier, later in itertools.pairwise(rig.discovery.asked_at)]


async def test_a_node_among_others_asks_less_and_less(autojump_clock) -> None:
    found = await pauses(Rig(), 4 * 3600)
    for index, pause_s in enumerate(found):
        usual_s = min(limits.SWARM_LOOKUP_S_MIN * 2**index, limits.SWARM_LOOKUP_S)
        assert pause_s == pytest.approx(usual_s, rel=0.251)
    assert len(set(found)) == len(found), "jitter"


async def test_a_lonely_node_goes_on_asking(autojump_clock) -> None:
    rig = Rig()
    rig.is_lonely = True
    assert max(await pauses(rig, 3600)) <= limits.SWARM_LOOKUP_S_LONELY * 1.25


async def test_a_node_that_becomes_lonely_asks_soon(autojump_clock) -> None:
    rig = Rig()

    async def lose_all() -> None:
        await trio.sleep(1800)
        rig.is_lonely = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_all)
        await pauses(rig, 3600)
    times = rig.discovery.asked_at
    late = [time for time in times if time > 1800]
    assert late[0] - 1800 <= limits.SWARM_LOOKUP_S_LONELY
    assert len(late) > 1800 / limits.SWARM_LOOKUP_S_LONELY / 1.25


@pytest.mark.parametrize("failure", [DeadlineExceeded("DHT", 60.0), Overloaded("busy")])
async def test_a_dht_that_does_not_answer_is_asked_again(autojump_clock, failure) -> None:
    rig = Rig()
    rig.discovery.failure = failure
    assert len(await pauses(rig, 30)) >= 3
    assert rig.rendezvous.lookups == 0
    with pytest.raises(type(failure)):
        await rig.rendezvous.publish(("mem:me",), 1, 1)


async def test_we_are_published_under_the_key_and_under_the_name_until_we_leave(
    autojump_clock,
) -> None:
    rig = Rig()
    many = tuple(f"mem:{number}" for number in range(9))
    await rig.rendezvous.publish(many, members=3, created_at=17)
    keys = [swarm_key_key(SWARM_KEY), name_key("demo")]
    assert {key for key, _ in rig.discovery.published} == {*keys}  # both at once
    record = rig.discovery.published[0][1]
    assert isinstance(record, wire.SwarmRecord)
    assert record.addresses == many[: limits.DHT_ADDRESSES_MAX]
    assert (record.swarm_key, record.name, record.members) == (SWARM_KEY, "demo", 3)
    assert record.created_at == 17
    rig.rendezvous.withdraw()
    assert rig.discovery.withdrawn == keys
