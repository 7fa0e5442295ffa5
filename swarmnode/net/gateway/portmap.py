"""Keeps a port of ours open in the home router: asked for, renewed, given back.

PCP, then NAT-PMP, then UPnP; the first that works stays. Only the default gateway is asked and
believed. A mapping says what the router promised, no more: whether strangers get in, a dial-back
of a volunteer shows.

    no gateway, or a public address of our own -> nothing to ask; looked at every PORTMAP_LOOK_S
    nothing works                              -> again after PORTMAP_RETRY_S, or in another place
    mapped                                     -> renewed at half of the lease; lost at its end
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from typing import Literal

import trio

from swarmnode.env import Env
from swarmnode.errors import MalformedMessage, Refused, SwarmNodeError, TransportError
from swarmnode.net.gateway.mapping import Granted, MapRequest, Method, MethodFactory, MethodName
from swarmnode.net.gateway.routes import Place, find_place
from swarmnode.net.tcp import format_address
from swarmnode.protocol.identity import Identity

# A router that gives shorter leases than a minute is not asked more often than this.
_PORTMAP_RENEW_S_MIN = 30.0
# Renewing failed, all ways were tried: again, as long as the lease lasts.
_PORTMAP_RENEW_RETRY_S = 60.0
# Nothing maps ports here: a setting may be changed, a router replaced by one of the same address.
PORTMAP_RETRY_S = 600.0
# Another network or another router is noticed in this time: reading two small files of the kernel.
PORTMAP_LOOK_S = 10.0
# Leaving takes less than 2 s in all; a router that does not answer keeps the lease until its end.
_PORTMAP_RELEASE_S = 0.5

_NONCE_DOMAIN = "pcp-nonce/1"

_log = logging.getLogger(__name__)


class BehindAnotherNat(Refused):
    """The router maps ports, but has no public address itself."""


@dataclass(frozen=True)
class Mapping:
    """What the router promised: connections to ``address`` come to us for ``lease_s``."""

    external: str
    port: int
    protocol: Literal["tcp"]
    method: MethodName
    lease_s: int

    @property
    def address(self) -> str:
        """HOST:PORT for others to dial."""
        return format_address(self.external, self.port)


@dataclass(frozen=True)
class _Held:
    """A mapping, and how to renew it and give it back."""

    method: Method
    granted: Granted
    expires_at: float


class PortMapper:
    """Maps one TCP port for as long as :meth:`run` runs.

    Attributes:
        external: what the router last said its own address is, public or not; "" before it did.
    """

    def __init__(
        self,
        port: int,
        *,
        identity: Identity,
        env: Env,
        find_place: Callable[[], Place] = find_place,
        methods: Sequence[MethodFactory] | None = None,
    ) -> None:
        self.external = ""
        self._port = port
        self._env = env
        # The same after a crash: PCP lets a mapping be renewed only with the nonce it began with.
        signed = identity.sign(_NONCE_DOMAIN, str(port).encode("ascii"))
        self._secret = hashlib.sha256(signed).digest()
        self._find_place = find_place
        self._methods = methods
        self._place: Place | None = None
        self._held: _Held | None = None
        self._mapping: Mapping | None = None
        self._why = "the router was not asked yet"
        self._next_at = 0.0
        self._wanted = trio.Event()
        self._changed = trio.Event()

    @property
    def mapping(self) -> Mapping | None:
        """The mapping that the router granted, or None."""
        return self._mapping

    @property
    def why(self) -> str:
        """Why there is no mapping, and what can be done; empty if there is one."""
        return self._why

    def refresh(self) -> None:
        """Ask the router now: strangers do not get in any more, or another address is seen."""
        self._wanted.set()

    async def wait_changed(self, known: Mapping | None) -> Mapping | None:
        """Wait until the mapping is another than ``known``; return it. Checkpoint: yes."""
        await trio.lowlevel.checkpoint()
        while self._mapping == known:
            await self._changed.wait()
        return self._mapping

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the mapping until cancelled, then give it back.

        Reports that it has started once the router was asked: 6 s at most where nothing answers.
        """
        try:
            await self._ask()
            task_status.started()
            while True:
                await self._wait()
                await self._ask()
        finally:
            await self._release()

    async def _wait(self) -> None:
        """Wait until it is time, a caller wants it, or we are somewhere else."""
        while not self._wanted.is_set():
            left_s = self._next_at - self._env.monotonic()
            if left_s <= 0 or self._where() != self._place:
                return
            with trio.move_on_after(min(left_s, PORTMAP_LOOK_S)):
                await self._wanted.wait()
        self._wanted = trio.Event()

    def _where(self) -> Place | None:
        """Return the place with a router to ask, or None and say why."""
        try:
            place = self._find_place()
        except TransportError as error:
            self._set_why(str(error))
            return None
        if ip_address(place.own).is_global:
            self._set_why(f"this machine's own address {place.own} is public: nothing to map")
            return None
        return place

    async def _ask(self) -> None:
        place = self._where()
        if place != self._place or place is None:
            self._place = place
            self.external = ""
            self._lose()  # the router that gave it is not ours any more
        self._next_at = self._env.monotonic() + PORTMAP_RETRY_S
        if place is None or (self._held is not None and await self._renew(self._held)):
            return
        wanted = MapRequest(place, self._port, self._secret, self._env.rng)
        reasons = []
        for make in self._methods if self._methods is not None else _all_methods():
            method = make(wanted)
            try:
                self._hold(method, await self._map(method, self._port))
            except BehindAnotherNat as error:
                reasons = [str(error)]
                break
            except SwarmNodeError as error:
                reasons.append(f"{method.name}: {error}")
            else:
                return
        self._failed(place, reasons)

    async def _renew(self, held: _Held) -> bool:
        try:
            self._hold(held.method, await self._map(held.method, held.granted.port))
        except SwarmNodeError as error:
            _log.info("%s: renewing the mapping failed: %s", held.method.name, error)
            return False
        return True

    async def _map(self, method: Method, external_port: int) -> Granted:
        granted = await method.map(external_port)
        if not granted.port:
            raise MalformedMessage("the router granted port 0")
        self.external = str(granted.external)
        if not _is_public(granted.external):
            await method.release(granted)
            raise BehindAnotherNat(
                f"the router's own address {granted.external} is not public: it is behind another "
                "NAT, perhaps the provider's, and a port mapped there leads nowhere; "
                "ask the provider for a public IPv4 address, or for IPv6"
            )
        return granted

    def _hold(self, method: Method, granted: Granted) -> None:
        now = self._env.monotonic()
        lease_s = max(float(granted.lease_s), 2 * _PORTMAP_RENEW_S_MIN)
        self._held = _Held(method, granted, now + lease_s)
        self._next_at = now + lease_s / 2
        mapping = Mapping(str(granted.external), granted.port, "tcp", method.name, granted.lease_s)
        if mapping != self._mapping:
            _log.info("port %d is mapped: %s (%s)", self._port, mapping.address, method.name)
        self._set(mapping, "")

    def _failed(self, place: Place, reasons: Sequence[str]) -> None:
        now = self._env.monotonic()
        if self._held is not None and now < self._held.expires_at:
            self._next_at = min(now + _PORTMAP_RENEW_RETRY_S, self._held.expires_at)
            return
        self._lose()
        self._set_why(
            f"the router {place.gateway} maps no port ({'; '.join(reasons)}); switch on UPnP or "
            f"NAT-PMP in its settings, or forward TCP port {self._port} to this machine there"
        )

    def _lose(self) -> None:
        self._held = None
        if self._mapping is not None:
            _log.info("port %d is not mapped any more: %s", self._port, self._mapping.address)
        self._set(None, self._why)

    def _set_why(self, why: str) -> None:
        if self._mapping is None:
            self._why = why

    def _set(self, mapping: Mapping | None, why: str) -> None:
        self._why = why
        if mapping != self._mapping:
            self._mapping = mapping
            self._changed.set()
            self._changed = trio.Event()

    async def _release(self) -> None:
        """Give the port back, also when cancelled; a router that is slow keeps it for the lease."""
        held = self._held
        self._lose()
        if held is None:
            return
        with trio.move_on_after(_PORTMAP_RELEASE_S) as scope:
            scope.shield = True
            try:
                await held.method.release(held.granted)
            except SwarmNodeError as error:
                _log.info("%s: giving the port back failed: %s", held.method.name, error)


def _all_methods() -> Sequence[MethodFactory]:
    """Load them here: a machine with a public address, or without a gateway, asks no router."""
    from swarmnode.net.gateway.methods import METHODS

    return METHODS


def _is_public(address: IPv4Address) -> bool:
    return address.is_global and not address.is_multicast
