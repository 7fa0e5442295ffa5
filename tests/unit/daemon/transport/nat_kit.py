"""What hole punches and WebRTC need of the world, without any: signals, a puncher, an engine."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from swarmnode.daemon.transport.signals import OnSignal, Received, Signals
from swarmnode.daemon.transport.ways import Punching, RtcOnDemand, RtcWays
from swarmnode.env import Env
from swarmnode.errors import (
    DeadlineExceeded,
    DialFailed,
    MalformedMessage,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.punch import Puncher
from swarmnode.protocol.nat.punch import PunchPlan, Start, make_address
from swarmnode.testing.memory_network import MemoryChannel, MemoryNetwork
from swarmnode.wire.connect.nat import RtcAnswer, RtcCandidate, RtcOffer
from swarmnode.wire.connect.punch import PunchAddress
from swarmnode.wire.packing import encode_record

RELAY = PeerId(b"r" * 32)
RELAY_AT = "11.11.11.10:443"
UNIX_S = 1_800_000_000.0


def fake_env(seed: int = 1) -> Env:
    return Env(trio.current_time, lambda: UNIX_S + trio.current_time(), random.Random(seed))


def some_channel() -> MemoryChannel:
    return MemoryNetwork().link("a", "b")[0]


def addresses(*texts: str) -> tuple[PunchAddress, ...]:
    return tuple(make_address(text, 7337) for text in texts)


@dataclass
class PostOffice:
    """Carries signals of all its customers at once, as a relay does that each has a session with.

    Attributes:
        sent: (author, target, kind, payload), in order.
        observed: where the relay sees a peer, HOST:PORT.
        is_lost: asked for each signal: whether it gets lost on its way.
    """

    sent: list[tuple[PeerId, PeerId, str, bytes]] = field(default_factory=list)
    observed: dict[PeerId, str] = field(default_factory=dict)
    is_lost: Callable[[PeerId, bytes], bool] = lambda _target, _payload: False
    handlers: dict[tuple[PeerId, str], OnSignal] = field(default_factory=dict)

    def signals_of(self, author: PeerId) -> Signals:
        return cast("Signals", Customer(self, author))

    def deliver(self, author: PeerId, target: PeerId, kind: str, payload: bytes) -> None:
        """Bring a signal that was checked, whoever made it."""
        handler = self.handlers.get((target, kind))
        if handler is None:
            raise Refused("nobody takes it")
        handler(Received(author, payload, RELAY, self.observed.get(author, "")))


@dataclass
class Customer:
    """In place of ``Signals``."""

    office: PostOffice
    own: PeerId

    def register(self, kind: str, on_signal: OnSignal) -> None:
        self.office.handlers[self.own, kind] = on_signal

    async def send(self, target: PeerId, kind: str, payload: bytes, *, via: PeerId) -> str:
        assert via == RELAY
        await trio.sleep(0.05)
        self.office.sent.append((self.own, target, kind, payload))
        if not self.office.is_lost(target, payload):
            self.office.deliver(self.own, target, kind, payload)
        return self.office.observed.get(target, "")


# --- punches ------------------------------------------------------------------------------------


@dataclass
class FakePuncher:
    """In place of ``Puncher``: what would be dialled is noted.

    Attributes:
        plans: of every appointment.
        kept: when each appointment that was kept began.
    """

    plans: list[PunchPlan] = field(default_factory=list)
    kept: list[Start] = field(default_factory=list)
    lasts_s: float = 0.1
    error: SwarmNodeError | None = None

    @contextmanager
    def appoint(self, plan: PunchPlan) -> Iterator[FakePuncher]:
        self.plans.append(plan)
        yield self

    async def keep(self, start: Start) -> MemoryChannel:
        self.kept.append(start)
        await trio.sleep(self.lasts_s)
        if self.error is not None:
            raise self.error
        return some_channel()


# --- WebRTC -------------------------------------------------------------------------------------


def description(kind: type[Any], *hosts: str, **more: Any) -> bytes:
    candidates = tuple(
        RtcCandidate("srflx", make_address(host, 5000).host, 5000) for host in hosts
    ) or (RtcCandidate("host", bytes([11, 11, 11, 1]), 5000),)
    return encode_record(kind("user", "p" * 22, bytes(32), candidates, **more))


def rtc_offer(*hosts: str) -> bytes:
    return description(RtcOffer, *hosts)


def rtc_answer(*hosts: str, offer: bytes = bytes(32)) -> bytes:
    return description(RtcAnswer, *hosts, offer=offer)


@dataclass
class FakeEngine:
    """In place of ``RtcOnDemand``.

    Attributes:
        offers: how many were made.
        answered: offers that were taken in: from then on addresses would be checked.
        connected: answers to ours that were taken in.
        open_now: offers and answers that were not closed yet.
    """

    offers: int = 0
    answered: list[bytes] = field(default_factory=list)
    connected: list[bytes] = field(default_factory=list)
    open_now: int = 0
    lasts_s: float = 0.1
    error: SwarmNodeError | None = None

    async def offer(self, _servers: tuple[str, ...]) -> FakePending:
        self.offers += 1
        await trio.lowlevel.checkpoint()
        return FakePending(self, rtc_offer())

    async def answer(self, offer: bytes, _servers: tuple[str, ...]) -> FakePending:
        self.answered.append(offer)
        await trio.lowlevel.checkpoint()
        return FakePending(self, rtc_answer())


@dataclass
class FakePending:
    """In place of ``PendingOffer`` and ``PendingAnswer``."""

    engine: FakeEngine
    description: bytes

    async def __aenter__(self) -> FakePending:
        self.engine.open_now += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.engine.open_now -= 1

    async def connect(self, answer: bytes | None = None) -> MemoryChannel:
        if answer is not None:
            self.engine.connected.append(answer)
            if answer != rtc_answer():
                raise MalformedMessage("rtc answer: expected one to our offer, got one to another")
        await trio.sleep(self.engine.lasts_s)
        if self.engine.error is not None:
            raise self.engine.error
        return some_channel()


# --- one node -----------------------------------------------------------------------------------


class Neighbour:
    """A node that talks to others through the relay only.

    Attributes:
        friends: whose invitations are taken, as there is a relayed session with them.
        taken: channels that others began.
    """

    def __init__(
        self,
        signals: Signals,
        peer: PeerId,
        *,
        relay_at: str = RELAY_AT,
        port: int = 7337,
        ipv6: str = "",
    ) -> None:
        self.peer = peer
        self.friends: set[PeerId] = set()
        self.taken: list[tuple[PeerId, Channel]] = []
        self.puncher, self.engine = FakePuncher(), FakeEngine()
        self.punching = Punching(
            signals,
            cast("Puncher", self.puncher),
            own_id=peer,
            port=port,
            address_of=lambda _relay: relay_at,
            may_invite=self.friends.__contains__,
            take=self.take,
            env=fake_env(peer[0]),
            own_ipv6=lambda: ipv6,
        )
        self.rtc = RtcWays(
            signals,
            cast("RtcOnDemand", self.engine),
            stun_servers=lambda: (RELAY_AT,),
            may_invite=self.friends.__contains__,
            take=self.take,
        )

    async def take(self, peer: PeerId, channel: Channel) -> None:
        self.taken.append((peer, channel))

    @property
    def is_untouched(self) -> bool:
        """Whether nothing that others wrote made it send anything to any node."""
        return not (self.puncher.plans or self.engine.answered or self.engine.connected)


@asynccontextmanager
async def running(*neighbours: Neighbour) -> AsyncIterator[None]:
    """Let them answer."""
    async with trio.open_nursery() as nursery:
        for each in neighbours:
            await nursery.start(each.punching.run)
            await nursery.start(each.rtc.run)
        yield
        nursery.cancel_scope.cancel()


class Lookouts:
    """In place of connections from listening ports to relays; a node is told by its port.

    Attributes:
        dialled: (port, address of the relay).
        open_now: connections that were not closed yet.
        hosts: at which host relays see the port; the first one for those not listed.
        is_down, is_silent: relays cannot be dialled, or do not say where they see the port.
    """

    def __init__(self) -> None:
        self.dialled: list[tuple[int, str]] = []
        self.open_now = 0
        self.hosts = {7337: "11.11.11.100"}
        self.is_down = self.is_silent = False

    async def dial_from(self, port: int, relay: str) -> LookoutChannel:
        await trio.sleep(0.02)
        if self.is_down:
            raise DialFailed(f"tcp {relay} from port {port}: refused", address=relay)
        self.dialled.append((port, relay))
        self.open_now += 1
        return LookoutChannel(self, (f"192.168.{port % 250}.2", port))

    async def ask_where(self, channel: LookoutChannel) -> tuple[str, int]:
        await trio.sleep(0.02)
        if self.is_silent:
            raise DeadlineExceeded("asking where a port is", 0.02)
        port = channel.local[1]
        return self.hosts.get(port, self.hosts[7337]), port


@dataclass
class LookoutChannel:
    """One of them."""

    lookouts: Lookouts
    local: tuple[str, int]

    async def aclose(self) -> None:
        self.lookouts.open_now -= 1
        await trio.lowlevel.checkpoint()
