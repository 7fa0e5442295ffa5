"""A process with sessions and no swarm: it echoes messages until it is killed.

Arguments: the letter of its key, and, if it dials a peer, that one's id and address.
It prints its address.
"""

from __future__ import annotations

import random
import sys
import time

import trio

from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from tests.kits.session_kit import echo_messages

ECHO = "echo/1"


def identity_of(letter: str) -> Identity:
    return Identity.from_seed(letter.encode() * 32)


def make_network(letter: str) -> Network:
    """Return a network that echoes."""
    services = Services()
    services.add_stream(ECHO, echo_messages)
    return Network(
        identity=identity_of(letter),
        network_id=b"n" * 32,
        transport=TcpTransport(),
        services=services,
        env=Env(trio.current_time, time.time, random.Random()),
    )


async def main(*arguments: str) -> None:
    """Run until killed."""
    letter, *dials = arguments
    network = make_network(letter)
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(network.run, "127.0.0.1:0")
        if dials:
            await network.connect(PeerId.parse(dials[0]), (dials[1],))
        print(bound, flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
