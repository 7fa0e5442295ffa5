"""Two nodes that have met through a relay, and ways to better that as a test wants them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from swarmnode.daemon.transport.upgrade import Upgrader, Whys
from swarmnode.errors import DialFailed
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.paths import path_of
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.legs import RelayedChannel
from swarmnode.net.session import Session
from swarmnode.testing.memory_network import MemoryChannel
from tests.kits.party_kit import Party, parties

RELAY = PeerId(b"r" * 32)
SECOND_LISTENER = "-relayed"  # of a node's second listener, to which its relay leads


class Described:
    """A channel in memory that says to be of another kind."""

    def __init__(self, channel: MemoryChannel, word: str) -> None:
        self.description = word
        self.send_all, self.send_nowait = channel.send_all, channel.send_nowait
        self.receive_into, self.aclose = channel.receive_into, channel.aclose


class Way:
    """A kind of way that the first node is the one to ask for.

    Attributes:
        began_at: when it was asked for, by either node.
        works: whether a channel comes about.
        word: with which the channels' descriptions begin; "": with that of channels in memory.
        via: the neighbour that helps.
    """

    def __init__(self, pair: Pair, lasts_s: float = 0.5) -> None:
        self.pair = pair
        self.lasts_s = lasts_s
        self.works = True
        self.word = ""
        self.via = RELAY
        self.began_at: list[float] = []
        self.far: list[MemoryChannel] = []

    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        assert via == self.via
        self.began_at.append(trio.current_time())
        await trio.sleep(self.lasts_s)
        if not self.works:
            raise DialFailed("no answer")
        own, other = self.pair.of(peer)
        near, far = own.links.link(own.name, other.name)
        self.far.append(far)
        self.pair.nursery.start_soon(self._take, other, own.peer, self._described(far))
        return self._described(near)

    def _described(self, channel: MemoryChannel) -> Channel:
        return Described(channel, self.word) if self.word else channel

    async def _take(self, other: Party, own: PeerId, far: Channel) -> None:
        await self.pair.upgraders[other.peer].take(own, far)


class Pair:
    """Two nodes, the first of which has dialled the second through a relay."""

    def __init__(self, a: Party, b: Party, nursery: trio.Nursery) -> None:
        self.a, self.b, self.nursery = a, b, nursery
        self.upgraders: dict[PeerId, Upgrader] = {}
        self.whys: dict[PeerId, Whys] = {}
        self.first, self.second = Way(self), Way(self)
        for own, other in ((a, b), (b, a)):
            own.network.ways.dial_relayed = self._dials_relayed(own, other)
            own.network.keepers.append(lambda _peer: True)
            self.may_be_at(own, other, is_direct=False)
            self.whys[own.peer] = {}
            self.upgraders[own.peer] = Upgrader(
                own.network,
                own_id=own.peer,
                ways=lambda: (("punched-tcp", self.first), ("rtc", self.second)),
                whys=self.whys[own.peer],
                env=own.env,
            )

    def of(self, peer: PeerId) -> tuple[Party, Party]:
        """Return the node that asks for a way to ``peer``, and that peer."""
        return (self.a, self.b) if peer == self.b.peer else (self.b, self.a)

    def may_be_at(self, own: Party, other: Party, *, is_direct: bool) -> None:
        known = [str(RelayAddress(RELAY, f"mem:{other.name}{SECOND_LISTENER}", other.peer))]
        known += [other.address] if is_direct else []
        own.network.addresses_of = lambda _peer: tuple(known)

    def _dials_relayed(self, own: Party, other: Party) -> Callable[[str], Awaitable[Channel]]:
        async def dial(address: str) -> Channel:
            leg = await own.transport.dial(RelayAddress.parse(address).address)
            return RelayedChannel(leg, "relay:sn1r@mem:r", RELAY)

        return dial

    async def open_doors(self) -> None:
        """Let both be reached through the relay too."""
        for party in (self.a, self.b):
            transport = party.links.transport(party.name + SECOND_LISTENER)
            accept = party.network.listener.accept

            async def accept_relayed(channel: Channel, accept: object = accept) -> None:
                await accept(RelayedChannel(channel, "relay:sn1r@mem:r", RELAY))  # type: ignore[operator]

            await self.nursery.start(
                transport.serve, f"mem:{party.name}{SECOND_LISTENER}", accept_relayed
            )

    async def meet(self, own: Party | None = None, other: Party | None = None) -> Session:
        own, other = own or self.a, other or self.b
        relayed = str(RelayAddress(RELAY, f"mem:{other.name}{SECOND_LISTENER}", other.peer))
        return await own.network.connect(other.peer, (relayed,))

    @property
    def theirs(self) -> Session:
        session = self.b.session(self.a)
        assert session is not None
        return session

    def paths(self) -> set[str]:
        """Return the kinds of way that both sides see; in-memory ones are of no kind."""
        sessions = (self.a.session(self.b), self.b.session(self.a))
        return {path_of(each.channel_description) for each in sessions if each is not None}


@asynccontextmanager
async def pair(names: str = "ab", delay_s: float = 0.01) -> AsyncIterator[Pair]:
    async with parties(*names, delay_s=delay_s) as (a, b), trio.open_nursery() as nursery:
        made = Pair(a, b, nursery)
        await made.open_doors()
        for upgrader in made.upgraders.values():
            await nursery.start(upgrader.run)
        yield made
        nursery.cancel_scope.cancel()
