"""One node's beacon as a process, for tests that put it into a network namespace.

Commands on standard input, one a line; answers on standard output, one JSON map a line:
``run SEED`` listens on a TCP port and announces it, ``stop`` ends that, ``raw HEX`` sends any
datagram to the LAN, ``statistics`` tells the counters. A peer that is met is dialled.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import trio

from swarmnode.env import real_env
from swarmnode.errors import DialFailed
from swarmnode.net.channel import Channel
from swarmnode.net.lan.beacon import LanBeacon, LanPeer
from swarmnode.net.lan.datagrams import UdpNet
from swarmnode.net.tcp import TcpTransport, parse_address
from tests.kits.lan_kit import NETWORK, identity, swarm


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


async def lines() -> AsyncIterator[list[str]]:
    rest = b""
    stream = trio.lowlevel.FdStream(os.dup(0))
    async for piece in stream:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode("ascii").split()


class Node:
    """A beacon that can be asked for its counters, and the tasks that belong to it."""

    def __init__(self, seed: int) -> None:
        self._port = 0
        self._met, self._meetings = trio.open_memory_channel[LanPeer](100)
        self.beacon = LanBeacon(
            identity=identity(seed),
            network_id=NETWORK,
            port=lambda: self._port,
            swarms=lambda: (swarm(seed),),
            on_peer=self._on_peer,
            env=real_env(trio.current_time),
        )

    def _on_peer(self, peer: LanPeer) -> None:
        tell("met", peer=str(peer.peer), address=peer.address, swarms=len(peer.swarms))
        self._met.send_nowait(peer)

    async def run(self) -> None:
        tell("running")
        async with trio.open_nursery() as nursery:
            address = await nursery.start(TcpTransport().serve, "*:0", close)
            self._port = parse_address(address)[1]
            interfaces = await nursery.start(self.beacon.run)
            tell("started", interfaces=interfaces, port=self._port)
            async for peer in self._meetings:
                nursery.start_soon(dial, peer.address)


async def close(channel: Channel) -> None:
    await channel.aclose()


async def dial(address: str) -> None:
    try:
        channel = await TcpTransport().dial(address)
    except DialFailed as error:
        tell("unreachable", address=address, error=str(error))
        return
    tell("reached", address=address)
    await channel.aclose()


def send_raw(data: bytes) -> None:
    net = UdpNet()
    net.open()
    try:
        net.rescan()
        net.send(data)
    finally:
        net.close()


async def main() -> None:
    node = None
    scope = trio.CancelScope()

    async def run(node: Node) -> None:
        with scope:
            await node.run()
        tell("stopped")

    async with trio.open_nursery() as nursery:
        tell("ready")
        async for command, *arguments in lines():
            if command == "run":
                scope = trio.CancelScope()
                node = Node(int(arguments[0]))
                nursery.start_soon(run, node)
            elif command == "stop":
                scope.cancel()
            elif command == "raw":
                send_raw(bytes.fromhex(arguments[0]))
                tell("sent")
            elif command == "statistics":
                assert node is not None
                statistics = node.beacon.statistics()
                tell("statistics", refused=dict(statistics.refused_total), peers=statistics.peers)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
