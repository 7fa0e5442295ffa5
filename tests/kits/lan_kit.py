"""A LAN in memory, and beacons made by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from random import Random

import trio

from swarmnode.env import Env
from swarmnode.net.lan.datagrams import Deliver
from swarmnode.net.lan.interfaces import Interface
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.lan import DOMAIN, LanCore, LanPeer, Met
from swarmnode.wire.connect.beacon import Beacon, LanSwarm
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed

NETWORK = bytes(range(32))
WALL_S = 1_800_000_000.0


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def swarm(number: int, name: str = "tiny-lm", members: int = 3) -> LanSwarm:
    return LanSwarm(name, number.to_bytes(32, "big"), members, 1_700_000_000)


def core_of(number: int, *, now: float = 0.0, boot: int = 1) -> LanCore:
    return LanCore(
        identity=identity(number), network_id=NETWORK, boot=boot, rng=Random(number), now=now
    )


def signed_by(author: Identity, beacon: Beacon) -> bytes:
    body = encode_record(beacon)
    return encode_record(Signed(body, author.public_key, author.sign(DOMAIN, body)))


def beacon(
    number: int, sequence: int = 1, *, boot: int = 1, port: int = 7337, network: bytes = NETWORK
) -> bytes:
    return signed_by(identity(number), Beacon(network, boot, sequence, port, (swarm(1),)))


def met(core: LanCore) -> list[LanPeer]:
    return [effect.peer for effect in core.poll_effects() if isinstance(effect, Met)]


def interface(host: str) -> Interface:
    return Interface("eth0", 2, 0x1043, (IPv4Interface(f"{host}/24"),))


@dataclass
class MemoryLan:
    """Everybody hears everybody, themselves too, at once; ``losses`` of the next are lost."""

    losses: int = 0
    datagrams: int = 0
    nets: list[MemoryNet] = field(default_factory=list)

    def net(self, host: str) -> MemoryNet:
        return MemoryNet(self, host)

    def carry(self, data: bytes, source: str) -> None:
        self.datagrams += 1
        if self.losses:
            self.losses -= 1
            return
        for net in self.nets:
            net.arrived.send_nowait((data, source))


class MemoryNet:
    """What one node has of it; a datagram leaves once for each interface."""

    def __init__(self, lan: MemoryLan, host: str) -> None:
        self.lan = lan
        self.host = host
        self.interfaces = [interface(host)]
        self.arrived, self._arriving = trio.open_memory_channel[tuple[bytes, str]](math.inf)

    def open(self) -> None:
        self.lan.nets.append(self)

    def rescan(self) -> tuple[Interface, ...]:
        return tuple(self.interfaces)

    def send(self, data: bytes) -> None:
        for _ in self.interfaces:
            self.lan.carry(data, self.host)

    async def listen(self, deliver: Deliver) -> None:
        async for data, source in self._arriving:
            deliver(data, source, True)

    def close(self) -> None:
        self.lan.nets.remove(self)


def virtual_env(seed: int) -> Env:
    """Time is Trio's, also on the wall."""
    return Env(trio.current_time, lambda: WALL_S + trio.current_time(), Random(seed))
