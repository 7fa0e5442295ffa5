"""What a session that is over leaves behind: no memory, and nothing for the collector of cycles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.testing.memory_network import MemoryNetwork
from tests.kits.session_kit import echo_messages, session_pair, start_both

PAYLOAD = bytes(range(256)) * 2048


async def by_goodbye(one: Session, _network: MemoryNetwork) -> None:
    await one.aclose("enough")


async def by_a_cut(_one: Session, network: MemoryNetwork) -> None:
    network.cut("alice", "bob")


async def by_a_fault(one: Session, _network: MemoryNetwork) -> None:
    try:
        raise RemoteProtocolError("as its receiver raises it")
    except RemoteProtocolError as error:
        one.give_up(error)


WAYS = [by_goodbye, by_a_cut, by_a_fault]
End = Callable[[Session, MemoryNetwork], Awaitable[None]]


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def lived(end: End) -> tuple[Session, Session]:
    """Return the two ends of a session that carried what fills its buffers, and is over."""
    services, network = Services(), MemoryNetwork()
    services.add_stream("messages", echo_messages)
    ends = network.link("alice", "bob")
    async with trio.open_nursery() as nursery:
        alice, bob = await start_both(nursery, ends, services)
        async with await alice.open_stream("messages") as stream:
            await stream.send_message(b"", PAYLOAD)
            await stream.receive_message(limits.MIB)
        await end(alice, network)
        await alice.wait_closed()
        await bob.wait_closed()
    return alice, bob


def mapped() -> int:
    """Return how many buffers of sessions this process has."""
    return Path("/proc/self/maps").read_text().count("/dev/zero")


@pytest.mark.parametrize("end", WAYS)
async def test_the_collector_of_cycles_is_not_needed(uncollected, end: End) -> None:
    """Sessions and what they held were there until a full collection, ten minutes later."""
    gone = [weakref.ref(each) for each in await lived(end)]
    await trio.lowlevel.checkpoint()
    assert [each() for each in gone] == [None, None]


@pytest.mark.parametrize("end", WAYS)
async def test_its_buffers_go_although_it_is_still_named(uncollected, end: End) -> None:
    """Errors that were raised name what they came from, and so do the frames they went through."""
    before = mapped()
    sessions = await lived(end)
    assert mapped() == before
    assert [session.is_closed for session in sessions] == [True, True]
    assert sessions[0].statistics().core is not None


async def test_an_open_one_has_buffers(uncollected) -> None:
    """That they are counted at all."""
    before = mapped()
    async with session_pair():
        assert mapped() >= before + 8
