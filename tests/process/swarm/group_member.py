"""One member of a group mean as a process of its own: real sessions, and a worker of a few lines.

``python -m tests.process.swarm.group_member NUMBER``

It says its address, reads the addresses of all, connects, says that it is ready, reads ``go``,
takes part in one group mean, and says what came of it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import numpy as np
import trio

from swarmnode.daemon.collective.groups import Groups
from swarmnode.daemon.membership.swarm import Communicator
from swarmnode.daemon.transport.network import Network
from swarmnode.env import real_env
from swarmnode.ids import PeerId
from swarmnode.ipc.records import ViewShape
from swarmnode.net.services import ScopedServices, Services
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpTransport
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.trust import Trust
from tests.kits.lessor_kit import KEY, SWARM_ID, TAG, FakeLessor, intent
from tests.kits.session_kit import NETWORK_ID

CODECS = ("Q8B64", "RAW32", "BF16", "E3M0", "Q4B64", "Q8B64", "RAW32", "BF16")
VIEW_NUMEL = 131_072
VIEWS = tuple(ViewShape(f"v{n}", codec, VIEW_NUMEL) for n, codec in enumerate(CODECS))
NUMEL = VIEW_NUMEL * len(VIEWS)  # about a million


def identity_of(number: int) -> Identity:
    return Identity.from_seed(bytes([number]) * 32)


class Member:
    """Every member is known from the start; one without a session is not alive."""

    def __init__(self, number: int) -> None:
        self.identity = identity_of(number)
        self.env = real_env(trio.current_time)
        services = Services()
        self.network = Network(
            identity=self.identity,
            network_id=NETWORK_ID,
            transport=TcpTransport(),
            services=services,
            env=self.env,
        )
        self.network.keepers.append(lambda _peer: True)
        self.network.watchers.append(self)
        vector = np.random.default_rng(number).standard_normal(NUMEL).astype(np.float32)
        self.lessor = FakeLessor(vector)
        self.noticed_at = 0.0
        self.all_ids: tuple[PeerId, ...] = ()
        communicator = Communicator(
            self_id=self.identity.peer_id,
            key=KEY,
            partners=self,
            services=ScopedServices(services, TAG, self._may_use),
            live=self.live,
            trust=Trust(b"\x07" * 16),
            env=self.env,
        )
        self.groups = Groups(
            communicator, swarm_id=SWARM_ID, codec_name="Q8B64", lessor=self.lessor
        )

    @property
    def sessions(self) -> dict[PeerId, Session]:
        return self.network.sessions

    async def _may_use(self, _peer: PeerId) -> bool:
        return True

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """All that there are have a session."""

    def partners(self) -> tuple[PeerId, ...]:
        return self.all_ids

    def active(self) -> tuple[PeerId, ...]:
        return self.all_ids

    def live(self) -> tuple[PeerId, ...]:
        return tuple(sorted({*self.sessions, self.identity.peer_id}))

    def session_opened(self, session: Session) -> None:
        pass

    def session_closed(self, session: Session) -> None:
        self.noticed_at = self.noticed_at or time.monotonic()

    async def meet_all(self, addresses: list[str], number: int) -> None:
        self.all_ids = tuple(sorted(identity_of(n).peer_id for n in range(len(addresses))))
        # A dialled member must know where the other was: else it waits for it to come back.
        where = {identity_of(n).peer_id: (address,) for n, address in enumerate(addresses)}
        self.network.addresses_of = where.__getitem__
        for other, address in enumerate(addresses[:number]):
            await self.network.connect(identity_of(other).peer_id, (address,))
        while len(self.sessions) < len(addresses) - 1:  # noqa: ASYNC110
            await trio.sleep(0.01)

    async def average(self) -> dict[str, Any]:
        self.groups.intent_posted(intent(views=VIEWS))
        while not self.lessor.told:  # noqa: ASYNC110
            await trio.sleep(0.001)
        ended_at = time.monotonic()
        means = [hashlib.sha256(mean).hexdigest() for mean in self.lessor.means.values()]
        return {
            "told": self.lessor.told[0][0],
            "why": str(self.lessor.told[0][2]),
            "mean": "".join(means),
            "present": [peer.hex() for peer in self.lessor.told[0][3]] if means else [],
            "noticed_at": self.noticed_at,
            "ended_at": ended_at,
        }


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


async def read() -> Any:
    return json.loads(await trio.to_thread.run_sync(sys.stdin.readline))


async def main(number: int) -> None:
    member = Member(number)
    async with trio.open_nursery() as nursery:
        say(await nursery.start(member.network.run, "127.0.0.1:0"))
        await nursery.start(member.groups.run)
        await member.meet_all(await read(), number)
        say("ready")
        await read()
        say(await member.average())
        await read()  # others may still ask for the outcome
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
