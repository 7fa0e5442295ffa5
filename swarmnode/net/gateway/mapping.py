"""What a router is asked for and what it grants, whichever way it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from random import Random
from typing import Literal, Protocol

from swarmnode.net.gateway.routes import Place

MethodName = Literal["PCP", "NAT-PMP", "UPnP"]


@dataclass(frozen=True)
class MapRequest:
    """A TCP port of ours that should be reached from outside."""

    place: Place
    port: int
    secret: bytes  # the mapping's, the same after a crash: PCP takes its nonce from it
    rng: Random


@dataclass(frozen=True)
class Granted:
    """What the router promised."""

    external: IPv4Address
    port: int
    lease_s: int


class Method(Protocol):
    """One way to ask one router."""

    @property
    def name(self) -> MethodName:
        """What people call it."""

    async def map(self, external_port: int) -> Granted:
        """Ask for the port or for a longer lease; the router may give another port.

        Raises:
            SwarmNodeError: it cannot be had this way; the message says why.
        """

    async def release(self, granted: Granted) -> None:
        """Give the port back. Raises as :meth:`map`."""


MethodFactory = Callable[[MapRequest], Method]
