"""Sessions with neighbours: one for each peer, whoever dialled, however slowly."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from swarmnode.daemon.neighbours import PEERS_SERVICE, Neighbours
from swarmnode.env import Env
from swarmnode.errors import SwarmNodeError
from swarmnode.net.memory import MemoryChannel, MemoryNetwork, MemoryTransport
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.peerbook import sign_peer_record
from swarmnode.protocol.swarm import Hint
from swarmnode.wire.membership import PeerList, PeerRecord, PeerState, PeerStatus
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

NETWORK_ID = b"n" * 32


class SlowTransport(MemoryTransport):
    """Dialling takes so long, for a reason that only this side has."""

    dial_s = 0.0

    async def dial(self, address: str) -> MemoryChannel:
        await trio.sleep(self.dial_s)
        return await super().dial(address)


class Party:
    """One node's neighbours, without anything that needs them."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.identity = Identity.from_seed(name.encode() * 32)
        self.name = name
        self.transport = SlowTransport(network, name)
        self.ended: list[Session] = []
        self.state: PeerState = "training"
        self.sequence = 0
        self.neighbours = Neighbours(
            identity=self.identity,
            network_id=NETWORK_ID,
            transport=self.transport,
            services=Services(),
            env=Env(trio.current_time, lambda: 0.0, random.Random(name)),
            sign_own_record=self._sign,
        )
        self.neighbours.on_session_end = self.ended.append

    def _sign(self, bound: str) -> Signed:
        self.sequence += 1
        record = PeerRecord(
            network_id=NETWORK_ID,
            public_key=self.identity.public_key,
            addresses=(bound,),
            role="trainer",
            version="0.1.0",
            boot_epoch=1,
            sequence=self.sequence,
            status=PeerStatus(self.state),
        )
        return sign_peer_record(record, self.identity)

    async def start(self, nursery: trio.Nursery) -> None:
        assert await nursery.start(self.neighbours.run, f"mem:{self.name}") == f"mem:{self.name}"

    def knows(self, other: Party) -> None:
        hint = Hint(other.identity.peer_id, f"mem:{other.name}")
        self.neighbours.add_hints((hint,))

    def session(self, other: Party) -> Session | None:
        return self.neighbours.sessions.get(other.identity.peer_id)


@asynccontextmanager
async def parties(*names: str) -> AsyncIterator[list[Party]]:
    network = MemoryNetwork(delay_s=0.01)
    made = [Party(network, name) for name in names]
    async with trio.open_nursery() as nursery:
        for party in made:
            await party.start(nursery)
        yield made
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_a_slow_dial_does_not_replace_a_session_that_came_first(
    autojump_clock, names: str
) -> None:
    async with parties(*names) as (slow, quick):
        slow.transport.dial_s = 7.0  # past SESSION_CROSSING_S, where the newer session wins
        slow.knows(quick)
        quick.knows(slow)
        await trio.sleep(2)
        session = slow.session(quick)
        assert session is not None
        assert not session.outbound
        await trio.sleep(20)
        assert slow.session(quick) is session
        assert slow.ended == quick.ended == []
        statistics = slow.neighbours.book.statistics()
        assert (statistics.dials, statistics.dial_failures) == (1, 0)


async def test_the_newer_session_wins_because_its_peer_has_lost_the_old_one(
    autojump_clock,
) -> None:
    async with parties("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(10)
        old = a.session(b)
        assert old is not None
        del b.neighbours.sessions[a.identity.peer_id]  # as after a restart that nobody noticed
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.neighbours._dial, a.identity.peer_id, ("mem:a",))
            await trio.sleep(2)
            assert a.session(b) is not old
            assert a.ended == [old]
            assert a.neighbours.book.statistics().connected == 1
            nursery.cancel_scope.cancel()


async def test_the_first_list_says_where_we_listen(autojump_clock) -> None:
    async with parties("a", "b", "c") as (a, b, c):
        b.knows(a)
        c.knows(a)
        await trio.sleep(1)
        assert b.session(c) is not None or c.session(b) is not None


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode_record(PeerStatus("training"))])
async def test_a_list_that_is_none_is_refused_and_the_session_stays(
    autojump_clock, payload: bytes
) -> None:
    async with parties("a", "b") as (a, b):
        a.knows(b)
        await trio.sleep(1)
        session = a.session(b)
        assert session is not None
        with pytest.raises(SwarmNodeError):
            await session.request(PEERS_SERVICE, payload, deadline_s=2)
        good = encode_record(PeerList(()))
        answer = decode_record(await session.request(PEERS_SERVICE, good, deadline_s=2), PeerList)
        assert answer.records[0].public_key == b.identity.public_key


async def test_goodbye_ends_every_session_and_each_is_counted_once(autojump_clock) -> None:
    async with parties("a", "b", "c") as (a, b, c):
        b.knows(a)
        c.knows(a)
        await trio.sleep(2)
        a.state = "left"
        with trio.fail_after(1):
            await a.neighbours.say_goodbye("enough")
        await trio.sleep(0.1)
        assert len(a.ended) == 2
        assert a.neighbours.sessions == {}
        for party in (b, c):
            assert [s.peer for s in party.ended].count(a.identity.peer_id) == 1
