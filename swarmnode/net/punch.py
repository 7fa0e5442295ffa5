"""TCP simultaneous open: the connections of a punch plan, from the port that we listen on.

The kernel joins a packet that arrives with the connection that is being dialled to just that
address; one that comes before or after goes to the listener, which hands it over here
(:meth:`Puncher.claim`). What comes about is an ordinary kernel TCP connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address

import trio

from swarmnode import limits
from swarmnode.env import Env, Rng
from swarmnode.errors import DialFailed, Overloaded
from swarmnode.net.paths import PUNCHED_WORD
from swarmnode.net.segments import limit_segments
from swarmnode.net.tcp import TcpChannel, format_address, parse_address, reset_when_closed
from swarmnode.protocol.nat.punch import Attempts, PunchPlan, Start, Target

# A documentation address (RFC 3849): nothing is sent there, the system says from where it would be.
_FAR_IPV6 = ("2001:db8::1", 9)
# There is no way for its packets, now or later.
_HOPELESS = (errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM)


async def dial_from(local_port: int, address: str) -> TcpChannel:
    """Connect to ``address`` from a port that we listen on: the other side sees its mapping.

    Raises:
        DialFailed: no peer could be reached there.
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
            sock = await _connect(local_port, (str(where[0]), port))
            reset_when_closed(sock, wanted=False)
            return TcpChannel(trio.socket.from_stdlib_socket(sock))
        except OSError as error:
            reason = _words(error)
    raise DialFailed(f"tcp {address} from port {local_port}: {reason}", address=address)


def own_ipv6() -> str:
    """Return the global IPv6 address that this machine speaks to the internet from, "" for none.

    There is no NAT there: peers find our port at it, whatever the relay was reached by.
    """
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.connect(_FAR_IPV6)
            host = ip_address(sock.getsockname()[0])
    except OSError:
        return ""
    return str(host) if host.is_global else ""


class Puncher:
    """All punches of a node: they share its port."""

    def __init__(self, local_port: int, *, env: Env) -> None:
        """``local_port`` is the one that ``TcpTransport.serve`` listens on."""
        self._local_port = local_port
        self._env = env
        self._appointments: list[Appointment] = []

    def claim(self, channel: TcpChannel) -> bool:
        """Whether an accepted channel is the other end of a punch; then it is taken over.

        To be asked before anything is sent or received on it.
        """
        remote = channel.remote
        for appointment in self._appointments:
            if remote is not None and remote in appointment.plan.targets:
                appointment.take(remote, channel.detach())
                return True
        return False

    @contextlib.contextmanager
    def appoint(self, plan: PunchPlan) -> Iterator[Appointment]:
        """From now on what the other side opens to our listener belongs to this punch.

        The invited side begins this with its answer: the first packet may be sooner than the go.

        Raises:
            Overloaded: PUNCHES_CONCURRENT_MAX are under way.
        """
        if len(self._appointments) >= limits.PUNCHES_CONCURRENT_MAX:
            raise Overloaded(
                f"{limits.PUNCHES_CONCURRENT_MAX} TCP punches are under way: try again later"
            )
        appointment = Appointment(plan, self._local_port, self._env.rng)
        self._appointments.append(appointment)
        try:
            yield appointment
        finally:
            self._appointments.remove(appointment)
            appointment.close()


class Appointment:
    """One punch, from the moment on that both sides know of it."""

    def __init__(self, plan: PunchPlan, local_port: int, rng: Rng) -> None:
        self.plan = plan
        self._local_port = local_port
        self._rng = rng
        self._early: list[tuple[Target, socket.socket]] = []
        self._taking: trio.Nursery | None = None  # while we dial
        self._scope = trio.CancelScope()
        self._winner: socket.socket | None = None
        self._reasons: dict[Target, str] = {}

    def take(self, target: Target, sock: socket.socket) -> None:
        """Take in what this address opened to our listener."""
        reset_when_closed(sock)  # as those that we dial; see _connect
        if self._taking is not None:
            self._taking.start_soon(self._settle, target, sock)
        elif len(self._early) < limits.PUNCH_ADDRESSES_MAX:
            self._early.append((target, sock))
        else:
            sock.close()

    async def keep(self, start: Start) -> TcpChannel:
        """Dial from the agreed moment on; return the connection that both sides keep; once.

        Checkpoint: yes. Cancelling it closes every connection.

        Raises:
            DialFailed: none came about, or the other side took none.
        """
        self.plan = start.plan
        # The side that does not choose may hear of the choice a round trip after the last attempt.
        patience_s = limits.PUNCH_S + (0.0 if self.plan.we_choose else limits.PUNCH_CHOICE_S)
        self._scope.deadline = start.at + patience_s
        with self._scope:
            await self._dial_all(start.at)
        if self._winner is None:
            raise DialFailed(self._explain(), address=format_address(*self.plan.targets[0]))
        winner, self._winner = self._winner, None
        reset_when_closed(winner, wanted=False)
        return TcpChannel(trio.socket.from_stdlib_socket(winner), PUNCHED_WORD)

    def close(self) -> None:
        """Close what was not taken."""
        for _, sock in self._early:
            sock.close()
        if self._winner is not None:
            self._winner.close()

    async def _dial_all(self, at: float) -> None:
        """Dial every target; what the listener hands over meanwhile is settled beside it."""
        async with trio.open_nursery() as taking:
            for target, sock in self._early:
                taking.start_soon(self._settle, target, sock)
            self._early.clear()
            self._taking = taking
            try:
                async with trio.open_nursery() as dialling:
                    for target in self.plan.targets:
                        dialling.start_soon(self._dial, target, at)
            finally:
                self._taking = None

    async def _dial(self, target: Target, at: float) -> None:
        attempts = Attempts(at, self._rng)
        while (begins_at := attempts.next_at(trio.current_time())) is not None:
            await trio.sleep_until(begins_at)
            sock: socket.socket | None = None
            try:
                with trio.move_on_after(self.plan.attempt_s):
                    sock = await _connect(self._local_port, target)
            except OSError as error:
                self._reasons[target] = _words(error)
                if error.errno in _HOPELESS:
                    return
                attempts.refused()
            if sock is not None and await self._settle(target, sock):
                return

    async def _settle(self, target: Target, sock: socket.socket) -> bool:
        """Take an open connection: at once if we choose, else when the other side speaks on it.

        Returns False if it was closed instead.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            is_taken = self.plan.we_choose or await self._hears(target, sock)
            if is_taken and self._winner is None:
                self._winner = sock
                undo.pop_all()
                self._scope.cancel()
        return is_taken

    async def _hears(self, target: Target, sock: socket.socket) -> bool:
        """Wait until the other side has sent something; False if it closed the connection."""
        self._reasons[target] = "connected, but the other side took no connection"
        try:
            await trio.lowlevel.wait_readable(sock)
            return bool(sock.recv(1, socket.MSG_PEEK))
        except OSError as error:
            self._reasons[target] = _words(error)
            return False

    def _explain(self) -> str:
        told = "; ".join(
            f"{format_address(*target)}: {self._reasons.get(target, 'no answer')}"
            for target in self.plan.targets
        )
        return f"no connection by TCP punch in {limits.PUNCH_S:g} s ({told})"


async def _connect(local_port: int, target: Target) -> socket.socket:
    """Connect from a port that others share. Raises OSError. Cancelling it closes the socket."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Of two home lines one may carry less than the other's router believes: only a second punch
        # could tell.
        limit_segments(sock)
        # Nothing is lost with one that is let go, and the next try has the same two ports.
        reset_when_closed(sock)
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
        undo.pop_all()
    return sock


def _words(error: OSError) -> str:
    return error.strerror or str(error)
