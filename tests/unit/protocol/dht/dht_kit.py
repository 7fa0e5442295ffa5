"""A few DHT cores, or one and its peers made by hand, for tests."""

from __future__ import annotations

import hashlib
import random
from typing import TypeVar

from swarmnode.ids import PeerId
from swarmnode.protocol.dht import events
from swarmnode.protocol.dht.core import DhtConfig, DhtCore
from swarmnode.protocol.dht.keys import (
    LOOPBACK,
    AddressGroups,
    Network,
    key_bytes,
    number_of,
)
from swarmnode.protocol.dht.records import OpenRecord, RecordRules
from swarmnode.testing.world import ToyIdentity, toy_verify
from swarmnode.wire import dht as wire
from swarmnode.wire.swarm import Signed

UNIX_S = 1_800_000_000.0
RULES = RecordRules(bytes(32), toy_verify)
_EffectT = TypeVar("_EffectT")


def identity(number: int) -> ToyIdentity:
    """Return the identity of one peer, the same in every test."""
    return ToyIdentity.from_seed(hashlib.sha256(b"peer %d" % number).digest())


def contact(number: int, address: str = "") -> wire.Contact:
    """Return how to reach that peer: in a network of its own if no address is given."""
    address = address or f"100.{number // 200 % 200}.{number % 200}.1:7337"
    return wire.Contact(bytes(identity(number).peer_id), (address,))


def contact_at(distance: int, self_id: PeerId, address: str) -> wire.Contact:
    """Return a contact at this distance from a peer."""
    return wire.Contact(key_bytes(number_of(self_id) ^ distance), (address,))


def make_core(
    number: int = 0, *, addresses: tuple[str, ...] = (), exempt: tuple[Network, ...] = LOOPBACK
) -> DhtCore:
    """Return the core of one peer, at time 0."""
    config = DhtConfig(RULES, boot_epoch=1, unix_offset_s=UNIX_S, groups=AddressGroups(exempt))
    core = DhtCore(identity(number), config, random.Random(number), 0.0)
    core.handle(events.Reachable(addresses), 0.0)
    return core


def sends(core: DhtCore) -> list[events.Send]:
    """Drain a core; return what it wants sent."""
    return [effect for effect in core.poll_effects() if isinstance(effect, events.Send)]


def only(effects: list[events.Effect], kind: type[_EffectT]) -> _EffectT:
    """Return the one effect of a kind."""
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def answer(core: DhtCore, sent: events.Send, now: float, *contacts: wire.Contact) -> None:
    """Let the peer answer a request, with these contacts if it was a Find."""
    reply: wire.Answer
    match sent.message:
        case wire.Ping(id=number):
            reply = wire.Pong(number)
        case wire.Find(id=number):
            reply = wire.Found(number, tuple(contacts))
        case wire.Put(id=number):
            reply = wire.Stored(number, "stored")
        case other:
            raise AssertionError(f"{other} is no request")
    core.handle(events.Received(sent.peer, reply), now)


def signed_record(author: int, record: wire.Record, rules: RecordRules = RULES) -> Signed:
    """Sign a record in the name of a peer."""
    return rules.sign(record, identity(author))


def peer_record(sequence: int = 1, *, ttl_s: int = 7200, issued_at: float = UNIX_S) -> wire.Record:
    """Return a peer record."""
    return wire.PeerRecord(sequence, int(issued_at), ttl_s, ("192.0.2.1:7337",))


def provider_record(blob: bytes, sequence: int = 1, *, ttl_s: int = 7200) -> wire.Record:
    """Return a provider record."""
    return wire.ProviderRecord(sequence, int(UNIX_S), ttl_s, ("192.0.2.1:7337",), blob)


def swarm_record(
    swarm_key: bytes, name: str = "demo", sequence: int = 1, *, ttl_s: int = 7200
) -> wire.Record:
    """Return a swarm record."""
    return wire.SwarmRecord(
        sequence, int(UNIX_S), ttl_s, ("192.0.2.1:7337",), swarm_key, name, 4, int(UNIX_S)
    )


def opened(author: int, key: bytes, record: wire.Record) -> OpenRecord:
    """Sign a record and open it again."""
    return RULES.open(signed_record(author, record), key, UNIX_S)
