"""Nodes that take places of a relay: ``python -m tests.lab.broken.occupant RELAY ADDRESS N``."""

from __future__ import annotations

import random
import sys
import time

import msgspec
import trio

from swarmnode.config import NodeConfig
from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.net.relays.relay import Relays
from swarmnode.net.services import Services
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import network_id


async def occupy(relay: PeerId, address: str, count: int) -> None:
    """Hold ``count`` places until cancelled; says so in a line when it has them."""
    fields = msgspec.structs.fields(NodeConfig)
    network = next(each.default for each in fields if each.name == "network")
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            services, transport = Services(), TcpTransport()
            sessions = Network(
                identity=Identity.generate(),
                network_id=network_id(network),
                transport=transport,
                services=services,
                env=Env(trio.current_time, time.time, random.Random()),
            )
            sessions.keepers.append(lambda _peer: True)
            await nursery.start(sessions.run, "")
            relays = Relays(services, sessions.connect, transport.dial)
            await nursery.start(relays.run, sessions.listener.accept)
            await nursery.start(relays.keep, relay, address)
        print("full", flush=True)


if __name__ == "__main__":
    trio.run(occupy, PeerId.parse(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
