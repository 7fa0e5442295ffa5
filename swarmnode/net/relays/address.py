"""``relay:RELAY@HOST:PORT/TARGET``: a peer that is reached through another one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.hosts import RELAYED_PREFIX

PREFIX = RELAYED_PREFIX
RELAY_SERVICE = "relay/1"
INCOMING_SERVICE = "relay-in/1"
LEG_SERVICE = "relay-leg/1"


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """``relay`` can be dialled at ``address``, and knows ``target``."""

    relay: PeerId
    address: str
    target: PeerId

    @classmethod
    def parse(cls, text: str) -> RelayAddress:
        """Read the text form. Raises ConfigError."""
        body = text.removeprefix(PREFIX)
        relay, at, rest = body.partition("@")
        address, slash, target = rest.rpartition("/")
        if body == text or not (at and slash and address) or is_relayed(address):
            raise ConfigError(f"expected {PREFIX}PEER@HOST:PORT/PEER, got {text[:300]!r}")
        return cls(PeerId.parse(relay), address, PeerId.parse(target))

    def __str__(self) -> str:
        return f"{PREFIX}{self.relay}@{self.address}/{self.target}"

    @property
    def way(self) -> str:
        """The relay for people; without a space, as no bytes come from an address of the peer."""
        return f"{PREFIX}{self.relay.short}@{self.address}"


def relays_of(addresses: Iterable[str]) -> tuple[PeerId, ...]:
    """Return the relays through which a peer is reached, of what it, or another, says."""
    relays = []
    for address in filter(is_relayed, addresses):
        with suppress(ConfigError):
            relays.append(RelayAddress.parse(address).relay)
    return tuple(relays)


def is_relayed(address: str) -> bool:
    """Whether an address is one of a peer behind a relay."""
    return address.startswith(PREFIX)
