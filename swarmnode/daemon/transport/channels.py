"""Channels to peers: those that we open, in a race, and those that others open to us.

A peer is dialled once for all callers that want it; direct addresses have a head start::

    0 s      the first address
    0.25 s   the second, or when the first has failed; and so on
    0.3 s    through the first relay, or when all direct ones have failed

The first on which the peer proves its key wins; what else was under way is let go. An address
that is heard of meanwhile takes part: a peer that has just found a relay is not reached otherwise.
Few TCP connections are dialled at once, and not in step: the table of a home router is small. A
relayed one is built of several, each of which counts by itself. One host is dialled seldom, however
many peers are said to be there (``protocol/hosts.py``).

A channel that a peer has opened is sorted by how it begins::

    where/1     where do I seem to come from?            -> answered here
    relay/1     a leg of a relayed connection            -> ``uses``, where this node relays
    swarmrs1    another way for a session that there is  -> ``greet``
    TLS         a new session                            -> ``greet``
    TLS 3.3     one of the first two, in the shape of TLS (``wire/connect/disguise.py``)
    (nothing)   the other end of a hole punch            -> ``claim``, before anything is read
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    DialFailed,
    MalformedMessage,
    Overloaded,
    ProtocolError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, Transport, aclose_forcefully, note_stall, receive_exactly
from swarmnode.net.relays.address import is_relayed
from swarmnode.net.session import Session
from swarmnode.net.tcp import TcpChannel
from swarmnode.net.tls import TLS_HEADER_BYTES
from swarmnode.net.where import answer_where
from swarmnode.protocol.connectivity import Failures
from swarmnode.protocol.hosts import DialBudget, Places, block_of
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.reach import WHERE_MAGIC
from swarmnode.wire.connect.relay import LEG_AS_TLS

_log = get_logger("swarmnode.daemon.transport")


DialRelayed = Callable[[str], Awaitable[Channel]]


class Ways:
    """Opens channels to addresses: ``HOST:PORT``, and ``relay:PEER@HOST:PORT/PEER``.

    Attributes:
        dial_relayed: dials through relays; refuses where this node does not use any.
        meet: finds a way to a peer behind a relay without a circuit, by words that it carries.
        tried: (path, "ok" or "failed"), counted also by the parts that find ways of other kinds.
    """

    def __init__(self, transport: Transport, env: Env) -> None:
        self.dial_relayed: DialRelayed = _use_no_relays
        self.meet: DialRelayed = _use_no_relays
        self.tried: Counter[tuple[str, str]] = Counter()
        self._transport = transport
        self._env = env
        self._dials = trio.CapacityLimiter(limits.DIALS_CONCURRENT_MAX)
        self._searches = trio.CapacityLimiter(limits.SEARCH_DIALS_CONCURRENT_MAX)
        self._budget = DialBudget()

    async def open(self, address: str) -> Channel:
        """Connect, when its host may be dialled again.

        Raises:
            DialFailed, DeadlineExceeded, ConfigError: no peer answers, or it is no address.
            Overloaded: its host was dialled often, and no peer that was meant has answered there.
        """
        await self._wait_for_turn(address)
        try:
            return await self._open(address, self._dials)
        except DialFailed as error:
            if error.cause != "busy":
                raise
            try:
                return await self.meet(address)
            except SwarmNodeError as other:
                why = f"{error}; without a circuit: {other}"
                raise DialFailed(why, address=address, cause="busy") from other

    async def open_again(self, address: str, *, is_home: bool = True) -> Channel:
        """Connect to a peer whose session has lost its channel: these do not wait for others.

        ``is_home``: at the host where the channel led to; another one is only said to be its own.

        Raises as :meth:`open`.
        """
        if not is_home:
            await self._wait_for_turn(address)
        return await self._open(address, self._searches)

    def proven(self, address: str) -> None:
        """The peer that was meant has answered there: that dial was none too many."""
        self._budget.give_back(address)

    async def _wait_for_turn(self, address: str) -> None:
        wait_s = self._budget.wait_s(address, self._env.monotonic())
        if wait_s > limits.DIAL_HOST_WAIT_S:
            raise Overloaded(
                f"{address}: expected a node at its host, which was dialled often and in vain:"
                f" it is dialled again in {wait_s:.0f} s"
            )
        self._budget.take(address, self._env.monotonic())
        if wait_s:
            await trio.sleep(wait_s)

    async def _open(self, address: str, limiter: trio.CapacityLimiter) -> Channel:
        path = "relay" if is_relayed(address) else "direct"
        try:
            if path == "relay":
                channel = await self.dial_relayed(address)
            else:
                channel = await self._open_direct(address, limiter)
        except SwarmNodeError:
            self.tried[path, "failed"] += 1
            raise
        self.tried[path, "ok"] += 1
        return channel

    async def _open_direct(self, address: str, limiter: trio.CapacityLimiter) -> Channel:
        async with limiter:
            if limiter.borrowed_tokens > 1:
                await trio.sleep(self._env.rng.uniform(0, limits.DIAL_JITTER_S))
            with trio.move_on_after(limits.DIAL_DEADLINE_S):
                return await self._transport.dial(address)
        raise DeadlineExceeded(f"connecting to {address}", limits.DIAL_DEADLINE_S)


async def _use_no_relays(address: str) -> Channel:
    raise DialFailed(f"{address}: this node uses no relays", address=address)


class StartSession(Protocol):
    """Makes a session of a channel that we have dialled."""

    async def __call__(self, channel: Channel, dialled: PeerId, *, is_probe: bool) -> Session:
        """Return it when it is open. Raises SwarmNodeError: no session came about."""


class Dialler:
    """Dials peers, once for all callers that want one.

    Args:
        start_soon: starts a dial as a task: it goes on if the caller that wanted the peer gives up.
        start: makes a session of a channel.
        register: takes in a new session, dialled at the first of these addresses.
        has_session: whether there is one with a peer by now.

    Attributes:
        errors: why the last attempt to reach a peer failed, of peers without a session.
        failures: the same of addresses.
    """

    def __init__(
        self,
        ways: Ways,
        *,
        start_soon: Callable[..., None],
        start: StartSession,
        register: Callable[[Session, tuple[str, ...]], Awaitable[None]],
        has_session: Callable[[PeerId], bool],
    ) -> None:
        self.errors: dict[PeerId, SwarmNodeError] = {}
        self.failures = Failures()
        self._ways = ways
        self._start_soon = start_soon
        self._start = start
        self._register = register
        self._has_session = has_session
        self._dials: dict[PeerId, trio.Event] = {}
        self._races: dict[PeerId, _Race] = {}

    def dial_shared(self, peer: PeerId, addresses: tuple[str, ...]) -> trio.Event:
        """Return what is set when the dial is over that all callers for this peer wait for."""
        if peer not in self._dials:
            done = self._dials[peer] = trio.Event()
            self._start_soon(self._dial_once, peer, addresses, done)
        return self._dials[peer]

    def may_be_at(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """If this peer is being dialled, dial it there as well."""
        if peer in self._races:
            for address, at_s in _in_order(addresses):
                self._enter(self._races[peer], address, at_s, _at_once())

    def found(self, peer: PeerId) -> None:
        """There is a session: callers that wait for a slow dial need not any more."""
        self.errors.pop(peer, None)
        if peer in self._dials:
            self._dials.pop(peer).set()

    async def probe(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Return if the peer itself can be dialled at one of the addresses.

        Raises what the last one said.
        """
        error: SwarmNodeError = DialFailed(f"no address of {peer.short} is known")
        for address in addresses:
            if not is_relayed(address):
                try:
                    await self.shake_hands_only(peer, address)
                    return
                except SwarmNodeError as failed:
                    error = failed
        raise error

    async def shake_hands_only(self, peer: PeerId, address: str) -> bytes:
        """Return the instance of the node that proves to be ``peer`` at this address."""
        channel = await self._ways.open(address)
        session = await self._start(channel, peer, is_probe=True)
        self._ways.proven(address)
        await session.aclose("only looking whether you answer")
        return session.instance

    def note_error(self, peer: PeerId, error: SwarmNodeError) -> None:
        """Keep why a peer cannot be reached."""
        self.errors.pop(peer, None)
        self.errors[peer] = error  # the newest last
        while len(self.errors) > limits.DIAL_ERRORS_KEPT_MAX:
            del self.errors[next(iter(self.errors))]

    def error_again(self, peer: PeerId) -> SwarmNodeError:
        """Return why a dial failed: an error of its own for each caller that waited for it."""
        if peer not in self.errors:
            return ChannelBroken(f"the session with {peer.short} ended at once")
        error = self.errors[peer]
        return (
            type(error)(error.operation, error.limit_s)
            if isinstance(error, DeadlineExceeded)
            else type(error)(str(error))
        )

    async def _dial_once(self, peer: PeerId, addresses: tuple[str, ...], done: trio.Event) -> None:
        try:
            await self._dial(peer, addresses)
        finally:
            if self._dials.get(peer) is done:
                del self._dials[peer]
            done.set()

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        if not addresses:
            self.note_error(peer, DialFailed(f"no address of {peer.short} is known"))
        async with trio.open_nursery() as nursery:
            race = _Race(peer, nursery)
            before = _at_once()
            for address, at_s in _in_order(addresses):
                before = self._enter(race, address, at_s, before)

    def _enter(self, race: _Race, address: str, at_s: float, before: trio.Event) -> trio.Event:
        """Let an address take part, if it does not yet; return what is set when it has failed."""
        if address in race.addresses or len(race.addresses) >= limits.CONTACT_ADDRESSES_MAX:
            return before
        race.addresses.append(address)
        self._races[race.peer] = race
        failed = trio.Event()
        race.nursery.start_soon(self._run, race, address, at_s, before, failed)
        return failed

    async def _run(
        self,
        race: _Race,
        address: str,
        at_s: float,
        before: trio.Event,
        failed: trio.Event,
    ) -> None:
        """Dial one address ``at_s`` after the first, or when all ``before`` have failed."""
        has_opened = False
        try:
            with trio.move_on_after(at_s):
                await before.wait()
            channel = await self._ways.open(address)
            has_opened = True
            is_last = is_relayed(address)  # else packets of another size may get through
            try:
                await self._try(race, channel, address, math.inf if is_last else limits.RACE_TURN_S)
            except DeadlineExceeded:
                if is_last or race.greeting.locked():  # it is another's turn
                    raise
                await self._try(race, await self._ways.open_again(address), address, math.inf)
        except SwarmNodeError as error:
            self.note_error(race.peer, error)
            self.failures.note(address, error, has_opened=has_opened)
            level = _log.warning if isinstance(error, ProtocolError) else _log.debug
            level("dial failed", peer=race.peer.short, address=address, why=str(error))
            await before.wait()
            failed.set()
        finally:
            race.n_over += 1
            is_over = race.n_over == len(race.addresses)
            if is_over and self._races.get(race.peer) is race:  # its nursery takes no task any more
                del self._races[race.peer]

    async def _try(self, race: _Race, channel: Channel, address: str, turn_s: float) -> None:
        is_taken = False
        race.hurry()
        try:
            async with race.greeting:
                if not self._has_session(race.peer):  # else it got through to us first
                    is_taken = True
                    with trio.move_on_after(turn_s) as race.turn:
                        session = await self._start(channel, race.peer, is_probe=False)
                        self._ways.proven(address)
                        self.failures.forget(address)
                        addresses = tuple(dict.fromkeys((address, *race.addresses)))
                        await self._register(session, addresses)
                    if race.turn.cancelled_caught:
                        note_stall(channel)
                        raise DeadlineExceeded(f"a handshake with {address}", limits.RACE_TURN_S)
                race.nursery.cancel_scope.cancel()
        finally:
            if not is_taken:
                await aclose_forcefully(channel)


@dataclass
class _Race:
    """All addresses of one peer, dialled at once."""

    peer: PeerId
    nursery: trio.Nursery
    addresses: list[str] = field(default_factory=list)
    n_over: int = 0
    greeting: trio.Lock = field(default_factory=trio.Lock)  # a peer has one session with us
    turn: trio.CancelScope = field(default_factory=trio.CancelScope)  # of the one that greets

    def hurry(self) -> None:
        """Another node is there: one silent at an old address must not block it."""
        if self.greeting.locked():
            self.turn.deadline = min(self.turn.deadline, trio.current_time() + limits.RACE_TURN_S)


def _at_once() -> trio.Event:
    """Return what the first address of a race waits for: nothing."""
    event = trio.Event()
    event.set()
    return event


def _in_order(addresses: tuple[str, ...]) -> list[tuple[str, float]]:
    """Return the addresses, relays last, and when each is dialled, in seconds after the first."""
    direct = [address for address in addresses if not is_relayed(address)]
    relayed = [address for address in addresses if is_relayed(address)]
    begins_s = ((direct, 0.0), (relayed, limits.RELAY_HEAD_START_S if direct else 0.0))
    return [
        (address, begin_s + number * limits.DIAL_STAGGER_S)
        for some, begin_s in begins_s
        for number, address in enumerate(some)
    ]


WaitLeft = Callable[[], Awaitable[None]]
"""Returns when an accepted channel is of no use any more."""

Greet = Callable[[Channel, bytes], Awaitable[WaitLeft]]
"""Finds the session that uses a channel, of which these bytes were read, from now on."""

Use = Callable[[Channel, bytes], Awaitable[None]]
"""Takes an accepted channel, and what it began with, until it is of no use any more."""

_CROWDED = "too many connections at once from its network that have proven nothing yet"
_T = TypeVar("_T")
_Scopes = Places[trio.CancelScope]


class Listener:
    """Takes in channels that others have opened, and sorts them.

    Attributes:
        refused: connections of strangers that came to nothing, by the kind of error.
        claim: takes an accepted channel that belongs to a hole punch.
        uses: what takes channels that are for no session of ours, by what they begin with.
    """

    def __init__(self, greet: Greet, env: Env) -> None:
        self.refused: Counter[str] = Counter()
        self.claim: Callable[[TcpChannel], bool] = lambda _channel: False
        self.uses: dict[bytes, Use] = {WHERE_MAGIC: self._tell_where}
        self._greet = greet
        self._env = env
        # A node that says nothing costs a descriptor only, so that more of them fit: they are many
        # before nodes that speak are held up by them.
        self._silent = _Scopes(limits.SILENT_STRANGERS_MAX, limits.SILENT_STRANGERS_PER_BLOCK_MAX)
        self._greeting = _Scopes(limits.STRANGERS_MAX, limits.STRANGERS_PER_BLOCK_MAX)
        self._askers = 0
        self._refusals_unsaid = 0
        self._refusal_said_at = -math.inf

    @property
    def strangers(self) -> int:
        """How many peers are being talked to that have proven nothing yet."""
        return len(self._silent) + len(self._greeting)

    async def accept(self, channel: Channel) -> None:
        """Take in a channel that a peer has opened; return when it is of no use any more.

        It brings a new session, or is another way for one that there is.
        """
        if isinstance(channel, TcpChannel) and self.claim(channel):
            return
        block = _block_of(channel)
        try:
            first_bytes = await _in_place(self._silent, block, partial(_receive_first, channel))
            sort = partial(self._sort, channel, first_bytes)
            wait_left = await _in_place(self._greeting, block, sort)
            await wait_left()
        except ChannelBroken as error:  # it went away: often we were there first
            self.refused["ChannelBroken"] += 1
            _log.debug("gone before it was known", channel=channel.description, why=str(error))
        except SwarmNodeError as error:
            kind = "TooManyStrangers" if str(error) == _CROWDED else type(error).__name__
            self.note_refusal(kind, channel.description, str(error))

    def note_refusal(self, kind: str, channel: str, why: str) -> None:
        """Count it, and say so now and then."""
        self.refused[kind] += 1
        self._refusals_unsaid += 1
        now = self._env.monotonic()
        if now >= self._refusal_said_at + limits.REFUSAL_LOG_INTERVAL_S:
            count = self._refusals_unsaid
            _log.info("refused a connection", channel=channel, why=why, refusals=count)
            self._refusals_unsaid, self._refusal_said_at = 0, now

    async def _sort(self, channel: Channel, first_bytes: bytes) -> WaitLeft:
        """Return what is left to do with a channel that begins so. Raises SwarmNodeError."""
        if first_bytes.startswith(LEG_AS_TLS):
            from swarmnode.net.relays.wrapped import receive_wrapped  # only a relay meets these

            first_bytes = await receive_wrapped(channel, first_bytes)
        for magic, use in self.uses.items():
            if magic.startswith(first_bytes[:TLS_HEADER_BYTES]):
                return partial(use, channel, first_bytes)
        if len(first_bytes) > TLS_HEADER_BYTES:
            raise MalformedMessage(f"{channel.description}: a greeting that is for nothing here")
        return await self._greet(channel, first_bytes)

    async def _tell_where(self, channel: Channel, first_bytes: bytes) -> None:
        """Tell a caller where its bytes come from. Raises SwarmNodeError."""
        if isinstance(channel, TcpChannel) and channel.remote is not None:
            if self._askers >= limits.WHERE_ASKERS_MAX:
                raise Overloaded("too many ask at once where they are")
            self._askers += 1
            try:
                await answer_where(channel, first_bytes, channel.remote)
            finally:
                self._askers -= 1


async def _in_place(places: _Scopes, block: str, run: Callable[[], Awaitable[_T]]) -> _T:
    """Return what ``run`` does while it has a place. Raises Overloaded: it has none (any more)."""
    with trio.CancelScope() as scope:
        has_place, loser = places.take(block, scope)
        if loser:
            loser.cancel()
        if has_place:
            try:
                return await run()
            finally:
                places.give_back(block, scope)
    raise Overloaded(_CROWDED)


def _block_of(channel: Channel) -> str:
    """Return what a stranger cannot choose freely: its block of addresses, or the way it came."""
    if isinstance(channel, TcpChannel) and channel.remote:
        return block_of(channel.remote[0])
    return channel.description


async def _receive_first(channel: Channel) -> bytes:
    """Return the bytes that tell what a channel is for."""
    first = bytearray(TLS_HEADER_BYTES)
    with trio.move_on_after(limits.HANDSHAKE_S):
        await receive_exactly(channel, memoryview(first))
        return bytes(first)
    raise DeadlineExceeded(f"{channel.description}: the first bytes", limits.HANDSHAKE_S)
