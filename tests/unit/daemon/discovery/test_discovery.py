"""The DHT of running nodes: peers and records are found, also by nodes that no peer can dial."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.discovery.dht import DHT_SERVICE, Discovery
from swarmnode.errors import DeadlineExceeded, Overloaded, Refused, StorageError
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.store.contacts import load_contacts
from swarmnode.testing.memory_network import MemoryNetwork
from swarmnode.wire import dht as wire
from swarmnode.wire.packing import decode_record, encode_record
from tests.kits.party_kit import Party
from tests.kits.session_kit import NETWORK_ID

KEY = name_key("demo")
SWARM_KEY = b"k" * 32


class Finder(Party):
    """A node that takes part in the DHT."""

    def __init__(
        self, links: MemoryNetwork, name: str, home: Path, *, key: str = "", epoch: int = 1
    ) -> None:
        super().__init__(links, name, key)
        self.remembered = home / self.peer.short / "contacts"
        self.scope = trio.CancelScope()
        self.discovery = Discovery(
            identity=self.identity,
            network_id=NETWORK_ID,
            boot_epoch=epoch,
            network=self.network,
            services=self.services,
            env=self.env,
            remembered=self.remembered,
        )

    async def run_in(self, nursery: trio.Nursery, *, is_reachable: bool = True) -> None:
        await nursery.start(self._take_part, is_reachable)

    async def _take_part(self, is_reachable: bool, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await self.start(nursery, listen=is_reachable)
                if is_reachable:
                    self.discovery.reachable_at((self.address,))
                await nursery.start(self.discovery.run)
                task_status.started()

    def meets(self, other: Party) -> None:
        self.discovery.discovered(other.peer, (other.address,))

    @property
    def contacts(self) -> set[PeerId]:
        return {PeerId(each.peer) for each in self.discovery.core.good_contacts()}


class World:
    def __init__(self, home: Path, nursery: trio.Nursery) -> None:
        self.home = home
        self.nursery = nursery
        self.links = MemoryNetwork(delay_s=0.01)

    async def add(self, name: str, *, is_reachable: bool = True, **options: Any) -> Finder:
        made = Finder(self.links, name, self.home, **options)
        await made.run_in(self.nursery, is_reachable=is_reachable)
        return made

    async def add_all(self, names: str) -> list[Finder]:
        """Nodes that all know the first one."""
        first, *others = [await self.add(name) for name in names]
        for other in others:
            other.meets(first)
        await trio.sleep(30)
        return [first, *others]


@asynccontextmanager
async def world(home: Path) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(home, nursery)
        nursery.cancel_scope.cancel()


def swarm_record(address: str) -> wire.SwarmRecord:
    return wire.SwarmRecord(0, 0, 7200, (address,), SWARM_KEY, "demo", 1, 1)


# --- finding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["ab", "abcde"])
async def test_what_one_publishes_all_get(autojump_clock, tmp_path: Path, names: str) -> None:
    async with world(tmp_path) as here:
        nodes = await here.add_all(names)
        a, b = nodes[:2]
        published = await b.discovery.publish(KEY, swarm_record(b.address))
        assert published.asked == published.replicas == len(nodes) - 1
        for node in nodes:
            answer = await node.discovery.get(KEY)
            (found,) = answer.records
            assert found.author == b.peer
            assert found.record.addresses == (b.address,)
            assert (await node.discovery.get(swarm_key_key(SWARM_KEY))).records == ()
        await a.discovery.publish(KEY, swarm_record(a.address))
        authors = {each.author for each in (await b.discovery.get(KEY)).records}
        assert authors == {a.peer, b.peer}


async def test_a_peer_is_found_by_its_id_with_few_answers(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        nodes = await here.add_all("abcde")
        for node in nodes:
            draft = wire.PeerRecord(0, 0, 7200, (node.address,))
            await node.discovery.publish(bytes(node.peer), draft)
        asker, wanted = nodes[1], nodes[4]
        found = await asker.discovery.get(bytes(wanted.peer), quorum=limits.DHT_QUORUM)
        assert [each.record.addresses for each in found.records] == [(wanted.address,)]


async def test_all_learn_of_all_and_bootstrap(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        nodes = await here.add_all("abcde")
        for node in nodes:
            assert node.discovery.bootstrapped.is_set()
            assert node.contacts == {other.peer for other in nodes if other is not node}


async def test_what_is_withdrawn_is_not_published_again(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b = await here.add_all("ab")
        await a.discovery.publish(KEY, swarm_record(a.address))
        a.discovery.withdraw(KEY)
        assert len((await b.discovery.get(KEY)).records) == 1
        await trio.sleep(7201)
        assert (await b.discovery.get(KEY)).records == ()


async def test_a_record_is_kept_alive_by_its_author(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b = await here.add_all("ab")
        await a.discovery.publish(KEY, swarm_record(a.address))
        await trio.sleep(8000)  # longer than it lives
        assert len((await b.discovery.get(KEY)).records) == 1


async def test_a_node_that_knows_no_peer_still_holds_its_own(
    autojump_clock, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        a = await here.add("a")
        published = await a.discovery.publish(KEY, swarm_record(a.address))
        assert (published.asked, published.replicas) == (0, 0)
        assert [each.author for each in (await a.discovery.get(KEY)).records] == [a.peer]
        b = await here.add("b")
        b.meets(a)
        await trio.sleep(5)
        assert [each.author for each in (await b.discovery.get(KEY)).records] == [a.peer]


# --- nodes that cannot be reached -------------------------------------------------------------


async def test_who_cannot_be_dialled_uses_the_dht_and_is_in_no_table(
    autojump_clock, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        a, b, c = await here.add_all("abc")
        hidden = await here.add("h", is_reachable=False)
        hidden.meets(a)
        await trio.sleep(30)
        await hidden.discovery.publish(KEY, swarm_record("mem:relay"))
        assert [each.author for each in (await c.discovery.get(KEY)).records] == [hidden.peer]
        assert hidden.contacts == {a.peer, b.peer, c.peer}
        for node in (a, b, c):
            assert hidden.peer not in node.contacts


async def test_who_says_a_wrong_address_is_in_no_table(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b = await here.add_all("ab")
        liar = await here.add("l", is_reachable=False)
        liar.discovery.reachable_at(("mem:nobody",))
        liar.meets(a)
        await trio.sleep(30)
        assert liar.contacts == {a.peer, b.peer}
        assert a.contacts == {b.peer}
        assert b.contacts == {a.peer}


async def test_a_contact_that_is_gone_is_dropped_and_lookups_go_on(
    autojump_clock, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        nodes = await here.add_all("abcde")
        gone, *others = nodes
        gone.scope.cancel()
        began = trio.current_time()
        await others[0].discovery.publish(KEY, swarm_record("mem:b"))
        assert len((await others[3].discovery.get(KEY)).records) == 1
        assert trio.current_time() - began < 1.0, "a refused dial is known at once"
        await trio.sleep(600)
        for node in others:
            assert gone.peer not in node.contacts


async def test_a_contact_that_is_silent_slows_a_lookup_little(
    autojump_clock, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        nodes = await here.add_all("abcde")
        here.links.partition(["c"], ["a", "b", "d", "e"])
        began = trio.current_time()
        await nodes[1].discovery.publish(KEY, swarm_record("mem:b"))
        assert trio.current_time() - began < 2 * limits.DHT_SLOW_S_MAX


async def test_two_halves_that_meet_become_one(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        left = await here.add_all("abc")
        right = await here.add_all("def")
        await left[1].discovery.publish(KEY, swarm_record("mem:b"))
        right[2].meets(left[2])
        await trio.sleep(120)
        for node in (*left, *right):
            assert len(node.contacts) == 5
            assert len((await node.discovery.get(KEY)).records) == 1


# --- over a restart ---------------------------------------------------------------------------


async def test_a_restart_needs_no_link(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b, c = await here.add_all("abc")
        c.discovery.remember()
        c.scope.cancel()
        await trio.sleep(10)
        again = await here.add("again", key="c", epoch=2)
        await trio.sleep(10)
        assert again.contacts == {a.peer, b.peer}
        assert again.discovery.bootstrapped.is_set()


async def test_good_peers_are_written_down_now_and_then(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b = await here.add_all("ab")
        assert load_contacts(a.remembered) == ()
        await trio.sleep(limits.DHT_REMEMBER_S)
        assert [PeerId(each.peer) for each in load_contacts(a.remembered)] == [b.peer]


async def test_a_node_that_met_none_keeps_what_it_knew(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b = await here.add_all("ab")
        a.discovery.remember()
        a.scope.cancel()
        b.scope.cancel()
        await trio.sleep(1)
        again = await here.add("again", key="a", epoch=2)
        await trio.sleep(2 * limits.DHT_REMEMBER_S)
        again.discovery.remember()
        assert [PeerId(each.peer) for each in load_contacts(again.remembered)] == [b.peer]


async def test_a_disk_that_refuses_stops_nothing(autojump_clock, tmp_path: Path, caplog) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    async with world(tmp_path) as here:
        a = Finder(here.links, "a", tmp_path / "file")
        await a.run_in(here.nursery)
        assert "cannot be read" in caplog.text
        b = await here.add("b")
        b.meets(a)
        await trio.sleep(2 * limits.DHT_REMEMBER_S)
        assert "not written down" in caplog.text
        with pytest.raises(StorageError):
            a.discovery.remember()
        assert a.contacts == {b.peer}


# --- what goes wrong --------------------------------------------------------------------------


async def test_too_many_commands_at_once_are_refused(
    autojump_clock, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("swarmnode.protocol.dht.core.DHT_OPERATIONS_MAX", 1)
    monkeypatch.setattr("swarmnode.protocol.dht.core.DHT_OPERATIONS_QUEUED_MAX", 2)
    async with world(tmp_path) as here:
        a, _ = await here.add_all("ab")
        outcomes: list[str] = []

        async def ask() -> None:
            try:
                await a.discovery.get(KEY)
                outcomes.append("found")
            except Overloaded as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert outcomes.count("found") == 3
        assert sum("try again later" in outcome for outcome in outcomes) == 2
        assert a.discovery._waiting == {}


async def test_a_command_has_a_deadline(autojump_clock, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "DHT_COMMAND_S", 0.1)
    async with world(tmp_path) as here:
        a, _ = await here.add_all("ab")
        here.links.partition(["a"], ["b"])
        with pytest.raises(DeadlineExceeded, match="GetRecords"):
            await a.discovery.get(KEY)
        await trio.sleep(60)
        assert a.discovery._waiting == {}
        here.links.heal()
        await trio.sleep(60)
        assert (await a.discovery.get(KEY)).records == ()


async def test_a_caller_that_stops_waiting_leaves_nothing_behind(
    autojump_clock, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        a, _ = await here.add_all("ab")
        with trio.move_on_after(0.001):
            await a.discovery.get(KEY)
        await trio.sleep(1)
        assert a.discovery._waiting == {}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", encode_record(wire.Pong(1)), encode_record(wire.Contact(bytes(32), ()))],
)
async def test_a_request_that_is_none_is_refused(
    autojump_clock, tmp_path: Path, payload: bytes
) -> None:
    async with world(tmp_path) as here:
        a, b = await here.add_all("ab")
        session = await a.connect(b)
        with pytest.raises(Refused):
            await session.request(DHT_SERVICE, payload, deadline_s=1)
        answer = await session.request(DHT_SERVICE, encode_record(wire.Ping(9, ())), deadline_s=1)
        assert decode_record(answer, wire.Message) == wire.Pong(9)  # type: ignore[arg-type]
        assert b.discovery._answers == {}


@pytest.mark.parametrize(
    "reply",
    [b"\xc1", encode_record(wire.Ping(1, ())), encode_record(wire.Stored(1, "stored"))],
    ids=["junk", "a request", "another answer"],
)
async def test_a_peer_that_answers_nonsense_counts_as_silent(
    autojump_clock, tmp_path: Path, reply: bytes
) -> None:
    async with world(tmp_path) as here:
        a = await here.add("a")
        fool = Party(here.links, "f")

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            return reply

        fool.services.add_request(DHT_SERVICE, answer)
        await fool.start(here.nursery)
        a.meets(fool)
        await trio.sleep(60)
        statistics = a.discovery.core.statistics()
        assert statistics.contacts == 0
        assert statistics.requests_unanswered > 0
        assert statistics.requests_served == 0
        assert a.discovery._answers == {}
        assert (await a.discovery.get(KEY)).records == ()


async def test_we_are_no_contact_of_ours(autojump_clock, tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a = await here.add("a")
        a.meets(a)
        a.discovery.discovered(PeerId(bytes(32)), ())
        await trio.sleep(60)
        assert a.transport.dials == 0
