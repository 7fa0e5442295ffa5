"""The relays of a node that may need none: what dials and holds them is loaded when one is needed.

Most nodes are reached directly and reach all others so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from swarmnode.env import Env
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, ChannelHandler
from swarmnode.net.services import Services

if TYPE_CHECKING:
    from swarmnode.net.relays.relay import ConnectPeer, DialAddress, RelayHolder, Relays

_LOOK_S = 2.0  # as often as one that is loaded looks for relays


class Places:
    """Our places at relays, and what goes through relays; see ``relay.py`` for both parts.

    ``candidates`` gives relays and where they are dialled; empty while none is needed.
    ``on_change`` hears whenever :meth:`addresses` gives something else.
    """

    def __init__(
        self,
        services: Services,
        connect: ConnectPeer,
        dial: DialAddress,
        candidates: Callable[[], Sequence[tuple[PeerId, str]]],
        env: Env,
        *,
        own_id: PeerId,
        on_change: Callable[[], None],
    ) -> None:
        self._services = services
        self._connect = connect
        self._dial = dial
        self._candidates = candidates
        self._env = env
        self._own_id = own_id
        self._on_change = on_change
        self._loaded: tuple[tuple[Relays, RelayHolder], ...] = ()  # one, once it is needed
        self._looking = trio.Event()

    async def run(self, handle_channel: ChannelHandler) -> None:
        """Hold places as soon as there are candidates, and hand on what comes, until cancelled."""
        while not self._loaded and not self._candidates():
            self._looking = trio.Event()
            with trio.move_on_after(_LOOK_S):
                await self._looking.wait()
        relays, holder = self._load()
        async with trio.open_nursery() as nursery:
            await nursery.start(relays.run, handle_channel)
            nursery.start_soon(holder.run)

    async def dial(self, address: str) -> Channel:
        """Connect to a peer ``relay:RELAY@HOST:PORT/TARGET``. Raises DialFailed, ConfigError."""
        relays, _ = self._load()
        return await relays.dial(address)

    def look_again(self) -> None:
        """There may be other candidates now."""
        self._looking.set()
        for _, holder in self._loaded:
            holder.look_again()

    @property
    def held(self) -> Mapping[PeerId, str]:
        """The relays that we can be reached through, and where they are dialled."""
        return {peer: at for relays, _ in self._loaded for peer, at in relays.held.items()}

    @property
    def loads(self) -> Mapping[PeerId, int]:
        """Of relays that have said how much of theirs is taken, in percent."""
        return {peer: load for relays, _ in self._loaded for peer, load in relays.loads.items()}

    @property
    def circuits(self) -> int:
        """How many circuits are ours at the relays that we hold; 0: they do not say."""
        return sum(relays.circuits for relays, _ in self._loaded)

    def addresses(self) -> tuple[str, ...]:
        """Return under which addresses others reach us through relays."""
        return tuple(at for _, holder in self._loaded for at in holder.addresses())

    def refusals(self) -> Mapping[PeerId, str]:
        """Return why some relays are not used just now."""
        return {peer: why for _, holder in self._loaded for peer, why in holder.refusals().items()}

    def _load(self) -> tuple[Relays, RelayHolder]:
        if not self._loaded:
            from swarmnode.net.relays.relay import RelayHolder, Relays

            relays = Relays(self._services, self._connect, self._dial)
            holder = RelayHolder(
                relays,
                self._candidates,
                self._env,
                own_id=self._own_id,
                on_change=self._on_change,
            )
            self._loaded = ((relays, holder),)
            self._looking.set()
        return self._loaded[0]
