"""A network inside one process, with the same interface as TCP.

Addresses are ``mem:NAME``. Time is Trio's, so a whole swarm runs on a
MockClock. A test may delay links, cut them (both ends notice), or partition
the nodes: as with TCP, bytes then wait unseen until the partition heals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from swarmnode import limits
from swarmnode.errors import ChannelBroken, ChannelClosed, ConfigError, DialFailed
from swarmnode.net.accept import run_accepted
from swarmnode.net.channel import ChannelHandler

MEMORY_LINK_BUFFER_BYTES = 1 * limits.MIB  # like a socket's two buffers

_PREFIX = "mem:"


class _Pipe:
    """One direction of a link: bytes with the time at which they arrive."""

    def __init__(self, network: MemoryNetwork, source: str, target: str) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._size_bytes = 0
        self._changed = trio.lowlevel.ParkingLot()
        self.is_ended = False  # the sender closed: readers get what is left, then the end
        self.is_abandoned = False  # the reader closed: a sender gets ChannelBroken
        self.is_broken = False

    async def send_all(self, data: memoryview, description: str) -> None:
        while len(data):
            n_bytes = self.send_nowait(data, description)
            data = data[n_bytes:]
            if n_bytes == 0:
                await self._changed.park()
        await trio.lowlevel.checkpoint()

    def send_nowait(self, data: memoryview, description: str) -> int:
        self._check_writable(description)
        piece = bytes(data[: MEMORY_LINK_BUFFER_BYTES - self._size_bytes])
        if piece:
            self._size_bytes += len(piece)
            arrives_at = trio.current_time() + self._network.delay_s
            self._pieces.append((arrives_at, piece))
            self.wake()
        return len(piece)

    async def receive_into(self, buffer: memoryview, description: str) -> int:
        await trio.lowlevel.checkpoint()
        while True:
            if self.is_abandoned:
                raise ChannelClosed(f"{description}: this side closed it")
            if self.is_broken:
                raise ChannelBroken(f"{description}: the link was cut")
            if self._pieces and not self._network.is_parted(self._source, self._target):
                arrives_at, piece = self._pieces[0]
                if arrives_at <= trio.current_time():
                    return self._take(buffer, piece)
                with trio.move_on_at(arrives_at):
                    await self._changed.park()
            elif self.is_ended and not self._pieces:
                return 0
            else:
                await self._changed.park()

    def _take(self, buffer: memoryview, piece: bytes) -> int:
        arrives_at, _ = self._pieces.popleft()
        n_bytes = min(len(buffer), len(piece))
        buffer[:n_bytes] = piece[:n_bytes]
        if n_bytes < len(piece):
            self._pieces.appendleft((arrives_at, piece[n_bytes:]))
        self._size_bytes -= n_bytes
        self.wake()
        return n_bytes

    def _check_writable(self, description: str) -> None:
        if self.is_ended:
            raise ChannelClosed(f"{description}: this side closed it")
        if self.is_broken:
            raise ChannelBroken(f"{description}: the link was cut")
        if self.is_abandoned:
            raise ChannelBroken(f"{description}: the other side closed it")

    def wake(self) -> None:
        self._changed.unpark_all()


class MemoryChannel:
    """One end of a link."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, peer: str) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False
        self._description = f"memory {_PREFIX}{peer}"

    @property
    def description(self) -> str:
        """``memory mem:NAME`` of the other side."""
        return self._description

    async def send_all(self, data: memoryview) -> None:
        """Send every byte; waits while the link's buffer is full."""
        await self._outgoing.send_all(data, self._description)

    def send_nowait(self, data: memoryview) -> int:
        """Send what the link's buffer takes now."""
        return self._outgoing.send_nowait(data, self._description)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most ``len(buffer)`` bytes."""
        if self._is_closed:
            raise ChannelClosed(f"{self._description}: this side closed it")
        return await self._incoming.receive_into(buffer, self._description)

    async def aclose(self) -> None:
        """Close both directions; what is on its way still arrives."""
        self._is_closed = True
        self._outgoing.is_ended = True
        self._incoming.is_abandoned = True
        self.wake()
        await trio.lowlevel.checkpoint()

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever pass again."""
        return self._incoming.is_broken or (self._incoming.is_ended and self._outgoing.is_ended)

    def cut(self) -> None:
        """Break both directions now, as a reset connection does."""
        self._incoming.is_broken = self._outgoing.is_broken = True
        self.wake()

    def wake(self) -> None:
        """Let every task that waits for this link look again."""
        self._incoming.wake()
        self._outgoing.wake()


class MemoryNetwork:
    """The listening nodes, the links between nodes, and what is wrong with them.

    ``delay_s`` is one-way and counts for every byte sent from now on. The machines in ``refusing``
    refuse connections, though a node listens there.
    """

    def __init__(self, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.refusing: set[str] = set()
        self._listeners: dict[str, trio.MemorySendChannel[MemoryChannel]] = {}
        self._links: list[tuple[str, str, MemoryChannel]] = []
        self._sides: dict[str, int] = {}  # empty: no node is parted from another
        self._healed = trio.lowlevel.ParkingLot()

    def transport(self, name: str) -> MemoryTransport:
        """Return the transport of the node ``name``."""
        return MemoryTransport(self, name)

    def link(self, dialler: str, listener: str) -> tuple[MemoryChannel, MemoryChannel]:
        """Return the two ends of a new link, without a listener."""
        there = _Pipe(self, dialler, listener)
        back = _Pipe(self, listener, dialler)
        dialling_end = MemoryChannel(back, there, listener)
        self._links = [link for link in self._links if not link[2].is_over]
        self._links.append((dialler, listener, dialling_end))
        return dialling_end, MemoryChannel(there, back, dialler)

    def cut(self, one: str, other: str) -> int:
        """Break every link between two nodes; both ends notice. Returns how many."""
        cut = [end for a, b, end in self._links if {a, b} == {one, other}]
        for end in cut:
            end.cut()
        return len(cut)

    def partition(self, *sides: Iterable[str]) -> None:
        """Let no byte pass between nodes of different sides; a node on none reaches all."""
        self._sides = {name: number for number, side in enumerate(sides) for name in side}

    def heal(self) -> None:
        """End the partition: what waited arrives."""
        self._sides = {}
        self._healed.unpark_all()
        for _, _, end in self._links:
            end.wake()

    def is_parted(self, one: str, other: str) -> bool:
        """Whether a partition separates two nodes."""
        sides = {self._sides.get(one), self._sides.get(other)}
        return len(sides) == 2 and None not in sides

    async def connect(self, dialler: str, address: str) -> MemoryChannel:
        """Dial ``address`` as the node ``dialler``; see ``Transport.dial``."""
        listener = _name_of(address)
        while self.is_parted(dialler, listener):
            await self._healed.park()
        await trio.sleep(2 * self.delay_s)
        accepting = self._listeners.get(listener)
        if accepting is None or listener in self.refusing:
            raise _not_listening(address)
        near, far = self.link(dialler, listener)
        try:
            await accepting.send(far)
        except trio.BrokenResourceError as error:
            raise _not_listening(address) from error
        return near

    def listen(self, name: str) -> trio.MemoryReceiveChannel[MemoryChannel]:
        """Take the address ``mem:NAME``. Raises ConfigError if it is taken."""
        if name in self._listeners:
            raise ConfigError(f"cannot listen on {_PREFIX}{name}: the address is in use")
        sender, receiver = trio.open_memory_channel[MemoryChannel](limits.TCP_BACKLOG_MAX)
        self._listeners[name] = sender
        return receiver

    def stop_listening(self, name: str) -> None:
        """Give the address back."""
        del self._listeners[name]


class MemoryTransport:
    """One node's way into a :class:`MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self.name = name

    async def dial(self, address: str) -> MemoryChannel:
        """Connect to ``mem:NAME``; waits while a partition lies between."""
        return await self._network.connect(self.name, address)

    async def serve(
        self,
        address: str,
        handle_channel: ChannelHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept links until cancelled; see ``Transport.serve``."""
        name = _name_of(address)
        receiver = self._network.listen(name)
        try:
            async with receiver, trio.open_nursery() as nursery:
                task_status.started(f"{_PREFIX}{name}")
                async for channel in receiver:
                    nursery.start_soon(run_accepted, channel, handle_channel)
        finally:
            self._network.stop_listening(name)


def _not_listening(address: str) -> DialFailed:
    return DialFailed(f"{address}: no node listens there", address=address, cause="refused")


def _name_of(address: str) -> str:
    if not address.startswith(_PREFIX) or len(address) == len(_PREFIX):
        raise ConfigError(f"expected {_PREFIX}NAME, got {address!r}")
    return address[len(_PREFIX) :]
