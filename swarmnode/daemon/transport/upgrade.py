"""From a relay to a better way: what every session on a poor way goes on trying.

::

    1. direct        each side dials the addresses of the other that it knows
    2. punched-tcp   both dial at one moment            \\ agreed on by signals that the relay
    3. rtc           ICE finds a way for UDP            /  carries; the side that dialled asks

Where a relay has no circuit for us, two and three are tried without any: what they need of the
relay is that it carries a few signals (:meth:`Upgrader.meet`).

The session moves to the first channel that comes about; exchanges that run on it go on. One that
runs on WebRTC goes on trying what stands above it, by signals through a relay of the peer. If a
channel breaks, the session finds a way through a relay again, and this begins anew. Most nodes
reach every peer directly: this is imported when the first session runs through a relay (``nat``).

Nodes that start together dial each other at the same moment, and keep one of the two sessions. The
tries belong to that one from then on, as perhaps the other side is to ask now; what was begun for
the other one is finished, as it leads to the same peer.

Two and three are in ``ways.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NoReturn, Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.driver import Tasks
from swarmnode.daemon.transport.network import Network
from swarmnode.daemon.transport.signals import Signals
from swarmnode.daemon.transport.ways import Punching, RtcWays, open_rtc_on_demand
from swarmnode.env import Env
from swarmnode.errors import DeadlineExceeded, DialFailed, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully, give_up
from swarmnode.net.paths import path_of
from swarmnode.net.punch import Puncher
from swarmnode.net.relays.address import RelayAddress, is_relayed, relays_of
from swarmnode.net.relays.legs import RelayedChannel
from swarmnode.net.session import Session
from swarmnode.net.traffic import Traffic
from swarmnode.telemetry.logs import get_logger

Whys = dict[PeerId, tuple[str, ...]]

_log = get_logger("swarmnode.daemon.transport")


class Inviting(Protocol):
    """A kind of way that two nodes agree on with the help of a third."""

    async def invite(self, peer: PeerId, via: PeerId) -> Channel:
        """Return a channel to the peer. Raises SwarmNodeError."""


class Upgrader:
    """See the module.

    Args:
        ways: the kinds to try after direct addresses, best first, each with its path's name.
        whys: takes why a peer with a relayed session has no better one, by peer; for people.
    """

    def __init__(
        self,
        network: Network,
        *,
        own_id: PeerId,
        ways: Callable[[], tuple[tuple[str, Inviting], ...]],
        whys: Whys,
        env: Env,
    ) -> None:
        self._whys = whys
        self._network = network
        self._own_id = own_id
        self._ways = ways
        self._env = env
        self._trying: dict[Session, trio.Event] = {}  # set when it is elsewhere, over or replaced
        self._limit = trio.CapacityLimiter(limits.UPGRADES_CONCURRENT_MAX)
        self._tasks = Tasks()
        network.watchers.append(self)
        network.on_moved = self.session_opened
        network.on_whereabouts = self.look_again

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for better ways until cancelled."""
        async with self._tasks.open():
            task_status.started()
            for session in self._network.sessions.values():
                self.session_opened(session)
            await trio.sleep_forever()

    def session_opened(self, session: Session) -> None:
        """Part of ``SessionWatcher``; also of sessions that go on over another channel."""
        self.look_again(session.peer)
        if self._tasks.are_open and session not in self._trying and self._is_to_better(session):
            self._trying[session] = trio.Event()
            self._tasks.start_soon(self._go_on_trying, session)

    def look_again(self, peer: PeerId) -> None:
        """This peer is said to be somewhere else: perhaps it can be dialled there."""
        for session, changed in self._trying.items():
            if session.peer == peer:
                changed.set()

    def session_closed(self, session: Session) -> None:
        """Part of ``SessionWatcher``."""
        self._whys.pop(session.peer, None)
        self.look_again(session.peer)

    async def meet(self, address: str) -> Channel:
        """Return a channel to a peer behind a relay, agreed on by signals that the relay carries.

        Raises:
            SwarmNodeError: no way was found; or there is a session by now.
        """
        way = RelayAddress.parse(address)
        errors: list[SwarmNodeError] = []
        for path, kind in self._ways():
            try:
                channel = await self._meet_by(kind, way.target, way.relay, path)
            except SwarmNodeError as error:
                errors.append(error)
                self._network.ways.tried[path, "failed"] += 1
                continue
            self._network.ways.tried[path, "ok"] += 1
            if self._own_id > way.target:
                return channel
            self._tasks.start_soon(self._begin, way.target, channel)
            await self._wait_begun(way.target)
            raise DialFailed(f"{path}: the other side begins the session", address=address)
        raise errors[-1]

    async def _meet_by(self, kind: Inviting, peer: PeerId, via: PeerId, path: str) -> Channel:
        with trio.move_on_after(limits.UPGRADE_TRY_S[path]):
            return await kind.invite(peer, via)
        raise DeadlineExceeded("connecting", limits.UPGRADE_TRY_S[path])

    async def _wait_begun(self, peer: PeerId) -> None:
        with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
            while peer not in self._network.sessions:  # noqa: ASYNC110
                await trio.sleep(limits.UPGRADE_LOOK_S)

    async def _begin(self, peer: PeerId, channel: Channel) -> None:
        try:
            await self._network.meet(peer, channel)
        except SwarmNodeError as error:
            _log.debug("did not meet", peer=peer.short, why=str(error))

    async def take(self, peer: PeerId, channel: Channel) -> None:
        """Move the session with a peer to this channel, whichever side began it.

        Both sides have the channel at about the same moment; the greater id asks for the session
        on it, as it is the one that chooses among several.
        """
        sessions = self._network.sessions
        if peer not in sessions:
            self._tasks.start_soon(self._begin, peer, channel)
        elif not _is_better(path_of(channel.description), sessions[peer]):
            give_up(channel)
            await aclose_forcefully(channel)
        elif self._own_id > peer:
            await self._network.migrate(sessions[peer], channel)
        else:
            self._tasks.start_soon(self._let_in, channel)
            await self._wait_moved(sessions[peer], channel)

    async def _let_in(self, channel: Channel) -> None:
        try:
            await self._network.listener.accept(channel)
        finally:
            give_up(channel)
            await aclose_forcefully(channel)

    async def _wait_moved(self, session: Session, channel: Channel) -> None:
        """Wait until the other side has taken the session there. Raises DeadlineExceeded."""
        with trio.move_on_after(limits.RESUME_HANDSHAKE_S):
            while session.channel is not channel and not session.is_closed:  # noqa: ASYNC110
                await trio.sleep(limits.UPGRADE_LOOK_S)
            return
        raise DeadlineExceeded(
            f"{session.peer.short} to take the session to {channel.description}",
            limits.RESUME_HANDSHAKE_S,
        )

    # --- trying -----------------------------------------------------------------------------

    def _is_to_better(self, session: Session) -> bool:
        """Whether it is the one with its peer, and poor; one that was replaced lives on a while."""
        return self._network.sessions.get(session.peer) is session and _is_poor(session)

    async def _go_on_trying(self, session: Session) -> None:
        peer, pause_s = session.peer, limits.UPGRADE_PAUSE_S_MIN
        try:
            while self._is_to_better(session):
                changed = self._trying[session] = trio.Event()
                path = path_of(session.channel_description)
                async with self._limit:
                    whys = await self._try_all(session)
                if not self._is_to_better(session):
                    return
                self._whys[peer] = whys
                if path_of(session.channel_description) != path:  # better: no cause to hurry
                    changed = self._trying[session] = trio.Event()
                with trio.move_on_after(pause_s * self._env.rng.uniform(0.75, 1.25)):
                    await changed.wait()
                    pause_s = limits.UPGRADE_PAUSE_S_MIN / 2  # another relay is another chance
                pause_s = min(2 * pause_s, limits.UPGRADE_PAUSE_S_MAX)
        finally:
            del self._trying[session]
            if not any(other.peer == peer for other in self._trying):
                self._whys.pop(peer, None)

    async def _try_all(self, session: Session) -> tuple[str, ...]:
        """Try every kind of way once; return why each did not work, nothing if one did."""
        whys: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try, session, "direct", self._dial_direct, whys)
            if session.outbound:
                await trio.sleep(limits.RELAY_HEAD_START_S)
                for path, way in self._ways():
                    if self._is_to_better(session) and _is_better(path, session):
                        await self._try(session, path, partial(self._invite, way=way), whys)
            if not self._is_to_better(session):
                nursery.cancel_scope.cancel()
        is_relayed = path_of(session.channel_description) == "relay"
        return tuple(whys) if is_relayed and not session.is_closed else ()

    async def _try(
        self,
        session: Session,
        path: str,
        attempt: Callable[[Session], Awaitable[None]],
        whys: list[str],
    ) -> None:
        try:
            with trio.move_on_after(limits.UPGRADE_TRY_S[path]) as scope:
                await attempt(session)
            if scope.cancelled_caught:
                raise DeadlineExceeded("connecting", limits.UPGRADE_TRY_S[path])
        except SwarmNodeError as error:
            whys.append(f"{path}: {str(error).removeprefix(f'{path}: ')}")
            _log.debug("no better way", peer=session.peer.short, path=path, why=str(error))
        if path != "direct":  # dials are counted where they are made
            now = self._network.sessions.get(session.peer, session)
            self._network.ways.tried[path, "failed" if _is_better(path, now) else "ok"] += 1

    async def _dial_direct(self, session: Session) -> None:
        """Dial the peer's own addresses, all at once; raises what the last one said."""
        addresses = self._network.addresses_of(session.peer)
        direct = [address for address in addresses if not is_relayed(address)]
        errors: list[SwarmNodeError] = []
        async with trio.open_nursery() as nursery:

            async def dial(address: str) -> None:
                try:
                    channel = await self._network.ways.open(address)
                    await self._network.migrate(session, channel, address)
                    nursery.cancel_scope.cancel()
                except SwarmNodeError as error:
                    errors.append(error)

            for address in direct:
                nursery.start_soon(dial, address)
        if errors and _is_poor(session):
            raise errors[-1]

    async def _invite(self, session: Session, *, way: Inviting) -> None:
        channel, peer = session.channel, session.peer
        if isinstance(channel, RelayedChannel):
            await self.take(peer, await way.invite(peer, channel.relay))
        elif channel is not None:
            await self.take(peer, await way.invite(peer, await self._relay_of(peer)))

    async def _relay_of(self, peer: PeerId) -> PeerId:
        """Return a relay that has a session with the peer, and one with us. Raises DialFailed …"""
        addresses = filter(is_relayed, self._network.addresses_of(peer))
        relays = [RelayAddress.parse(address) for address in addresses]
        if not relays:
            raise DialFailed(f"no relay of {peer.short} is known")
        known = [each for each in relays if self._network.connected(each.relay)]
        chosen = (known or relays)[0]
        await self._network.connect(chosen.relay, (chosen.address,))
        return chosen.relay


async def better_sessions(
    network: Network,
    signals: Signals,
    *,
    own_id: PeerId,
    port: int,
    dialled_address: Callable[[PeerId], str],
    stun_servers: Callable[[], Sequence[str]],
    whys: Whys,
    traffic: Traffic,
    env: Env,
) -> NoReturn:
    """Better every session on a poor way, by all kinds of way, until cancelled.

    Args:
        port: that we listen on, and punch from.
        dialled_address: gives the HOST:PORT where we have reached a peer directly, or "".
        stun_servers: see ``RtcWays``.
        whys: see ``Upgrader``.
        traffic: where the datagrams of WebRTC count.
    """
    ways: list[tuple[str, Inviting]] = []
    upgrader = Upgrader(network, own_id=own_id, ways=lambda: tuple(ways), whys=whys, env=env)

    def may_invite(peer: PeerId) -> bool:
        """One that we reach through a relay, or would, as the swarm says."""
        if peer in network.sessions:
            return _is_poor(network.sessions[peer])
        return bool(relays_of(network.addresses_of(peer)))

    async def take(peer: PeerId, channel: Channel) -> None:
        """Move the session to a channel that the peer has begun; if not, it stays as it was."""
        try:
            await upgrader.take(peer, channel)
        except SwarmNodeError as error:
            _log.debug("not moved", peer=peer.short, why=str(error))

    puncher = Puncher(port, env=env)
    network.listener.claim = puncher.claim
    async with open_rtc_on_demand(traffic) as engine, trio.open_nursery() as nursery:
        punching = Punching(
            signals,
            puncher,
            own_id=own_id,
            port=port,
            address_of=dialled_address,
            may_invite=may_invite,
            take=take,
            env=env,
        )
        rtc = RtcWays(signals, engine, stun_servers=stun_servers, may_invite=may_invite, take=take)
        ways += [("punched-tcp", punching), ("rtc", rtc)]
        for part in (punching, rtc):
            await nursery.start(part.run)
        await nursery.start(upgrader.run)
        network.ways.meet = upgrader.meet
        await trio.sleep_forever()


# How far from the best; a direct or a punched way cannot be bettered.
_RANKS = {"relay": 2, "rtc": 1}


def _is_poor(session: Session) -> bool:
    """Whether it takes a way just now that can be bettered, or was lost and did so last."""
    return _is_better("direct", session)


def _is_better(path: str, session: Session) -> bool:
    """Whether it would gain by such a way."""
    rank = _RANKS.get(path_of(session.channel_description), 0)
    return not session.is_closed and _RANKS.get(path, 0) < rank
