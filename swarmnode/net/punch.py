"""TCP simultaneous open: the connections of a punch plan, from the port that we listen on.

The kernel joins a packet that arrives with the connection that is being dialled to just that
address; one that comes before or after goes to the listener, which hands it over here
(:meth:`Puncher.claim`). What comes about is an ordinary kernel TCP connection.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field

import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import DialFailed, Overloaded
from swarmnode.net.tcp import TcpChannel, format_address, parse_address
from swarmnode.protocol.nat.punch import PunchPlan, Start, Target

# There is no way for its packets, now or later.
_HOPELESS = (errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM)


async def dial_from(local_port: int, address: str) -> TcpChannel:
    """Connect to ``address`` from a port that we listen on: the other side sees its mapping.

    Raises:
        DialFailed: nobody could be reached there.
        ConfigError: it is no address of ours.
    """
    host, port = parse_address(address)
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        reason = "no address"
    except OSError as error:
        found, reason = [], _words(error)
    for *_, where in found:
        try:
            return _channel(await _connect(local_port, (str(where[0]), port)))
        except OSError as error:
            reason = _words(error)
    raise DialFailed(f"tcp {address} from port {local_port}: {reason}", address=address)


class Puncher:
    """All punches of a node: they share its port."""

    def __init__(self, local_port: int, *, env: Env) -> None:
        """``local_port`` is the one that ``TcpTransport.serve`` listens on."""
        self._local_port = local_port
        self._env = env
        self._running: list[_Punch] = []

    def claim(self, channel: TcpChannel) -> bool:
        """Whether an accepted channel is the other end of a punch; then it is taken over.

        To be asked before anything is sent or received on it.
        """
        remote = channel.remote
        for punch in self._running:
            if remote is not None and remote in punch.plan.targets:
                punch.nursery.start_soon(_settle, punch, remote, channel.detach())
                return True
        return False

    async def punch(self, start: Start) -> TcpChannel:
        """Dial from the agreed moment on; return the connection that both sides keep.

        Checkpoint: yes. Cancelling it closes every connection.

        Raises:
            DialFailed: none came about, or the other side took none.
            Overloaded: PUNCHES_CONCURRENT_MAX run already.
        """
        if len(self._running) >= limits.PUNCHES_CONCURRENT_MAX:
            raise Overloaded(
                f"{limits.PUNCHES_CONCURRENT_MAX} TCP punches are under way: try again later"
            )
        plan = start.plan
        # Whoever does not choose may hear of the choice a round trip after the last attempt.
        patience_s = limits.PUNCH_S + (0.0 if plan.we_choose else limits.PUNCH_CHOICE_S)
        punch = _Punch(plan)
        try:
            async with trio.open_nursery() as punch.nursery:
                punch.nursery.cancel_scope.deadline = start.at + patience_s
                await self._dial_all(punch, start.at)
        except BaseException:
            if punch.winner is not None:
                punch.winner.close()
            raise
        if punch.winner is None:
            raise DialFailed(punch.explain(), address=format_address(*plan.targets[0]))
        return _channel(punch.winner)

    async def _dial_all(self, punch: _Punch, at: float) -> None:
        """Dial every target; the listener may hand connections over as long as this runs."""
        self._running.append(punch)
        try:
            async with trio.open_nursery() as nursery:
                for target in punch.plan.targets:
                    nursery.start_soon(self._dial, punch, target, at)
        finally:
            self._running.remove(punch)

    async def _dial(self, punch: _Punch, target: Target, at: float) -> None:
        for offset_s in punch.plan.slots(self._env.rng):
            await trio.sleep_until(at + offset_s)
            sock: socket.socket | None = None
            try:
                with trio.move_on_after(punch.plan.attempt_s):
                    sock = await _connect(self._local_port, target)
            except OSError as error:
                punch.reasons[target] = _words(error)
                if error.errno in _HOPELESS:
                    return
            if sock is not None and await _settle(punch, target, sock):
                return


@dataclass
class _Punch:
    """One punch under way."""

    plan: PunchPlan
    nursery: trio.Nursery = field(init=False)
    winner: socket.socket | None = None
    reasons: dict[Target, str] = field(default_factory=dict)

    def win(self, sock: socket.socket) -> None:
        """Keep this one, if it is the first."""
        if self.winner is None:
            self.winner = sock
            self.nursery.cancel_scope.cancel()
        else:
            sock.close()

    def explain(self) -> str:
        """Return why there is no winner, for each address."""
        told = "; ".join(
            f"{format_address(*target)}: {self.reasons.get(target, 'no answer')}"
            for target in self.plan.targets
        )
        return f"no connection by TCP punch in {limits.PUNCH_S:g} s ({told})"


async def _settle(punch: _Punch, target: Target, sock: socket.socket) -> bool:
    """Take an open connection: at once if we choose, else when the other side speaks on it.

    Returns False if it was closed instead.
    """
    if punch.plan.we_choose:
        punch.win(sock)
        return True
    try:
        await trio.lowlevel.wait_readable(sock)
        is_spoken = bool(sock.recv(1, socket.MSG_PEEK))
    except OSError as error:
        punch.reasons[target] = _words(error)
        is_spoken = False
    except BaseException:
        punch.reasons[target] = "connected, but the other side took no connection"
        sock.close()
        raise
    if is_spoken:
        punch.win(sock)
    else:
        sock.close()
    return is_spoken


async def _connect(local_port: int, target: Target) -> socket.socket:
    """Connect from a port that others share. Raises OSError. Cancelling it closes the socket."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("", local_port))
        try:
            sock.connect(target)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
        else:
            await trio.lowlevel.checkpoint()
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def _channel(sock: socket.socket) -> TcpChannel:
    return TcpChannel(trio.socket.from_stdlib_socket(sock))


def _words(error: OSError) -> str:
    return error.strerror or str(error)
