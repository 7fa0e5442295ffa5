"""What goes into a DHT core and what comes out of it.

Every command carries a number that its answer repeats; the shell chooses it. Each command
is answered exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from swarmnode.ids import PeerId
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.wire import dht as wire

# --- events ------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True):
    """A message of an authenticated peer; ``observed`` is the address it came from, or ""."""

    peer: PeerId
    message: wire.Message
    observed: str = ""


@dataclass(frozen=True)
class SendFailed:
    """The request with this number could not be sent, and no answer to it will come."""

    peer: PeerId
    request: int


@dataclass(frozen=True)
class Discovered:
    """A node may be there: from a link, a beacon, the disk, or a swarm."""

    contacts: tuple[wire.Contact, ...]


@dataclass(frozen=True)
class Reachable:
    """Others can dial us at these addresses, none: they cannot, and we are in no table."""

    addresses: tuple[str, ...]


@dataclass(frozen=True)
class FindPeers:
    """Find the peers closest to a key -> ``PeersFound``."""

    command: int
    key: bytes


@dataclass(frozen=True)
class GetRecords:
    """Collect the records under a key -> ``RecordsFound``.

    With ``quorum`` the search ends once so many peers gave a record and every path that
    still goes on gave one; 0 asks all k that are closest, as one does for records of many
    authors.
    """

    command: int
    key: bytes
    quorum: int = 0


@dataclass(frozen=True)
class Publish:
    """Store a record at the k peers closest to a key -> ``Published``; again from time to time.

    ``record`` is a draft: the core sets ``sequence`` and ``issued_at`` and signs, at every
    publication anew. A later draft on the same subject and key takes its place.
    """

    command: int
    key: bytes
    record: wire.Record


@dataclass(frozen=True)
class Withdraw:
    """Publish nothing more under this key; what is stored expires by itself."""

    key: bytes


Command = FindPeers | GetRecords | Publish
Event = Received | SendFailed | Discovered | Reachable | Command | Withdraw

# --- effects -----------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """Send this to a peer over a session, dialled at ``addresses`` if there is none.

    An answer (no addresses) goes the way its request came. With ``anew`` a session that the
    peer dialled does not count: the point is to learn whether it can be dialled.
    """

    peer: PeerId
    addresses: tuple[str, ...]
    message: wire.Message
    anew: bool = False


@dataclass(frozen=True)
class PeersFound:
    """Peers that answered, nearest first; what the search cost."""

    command: int
    key: bytes
    contacts: tuple[wire.Contact, ...]
    hops: int
    rounds: int
    asked: int


@dataclass(frozen=True)
class RecordsFound:
    """The newest valid record of every author and subject, and how many peers held one."""

    command: int
    key: bytes
    records: tuple[OpenRecord, ...]
    holders: int
    contacts: tuple[wire.Contact, ...]
    hops: int
    rounds: int
    asked: int


@dataclass(frozen=True)
class Published:
    """``replicas`` of the ``asked`` peers closest to the key hold the record now.

    It comes when DHT_PUT_REPLICAS of them do, and the others get it a moment later; or with
    fewer when no peer is left to ask.
    """

    command: int
    key: bytes
    replicas: int
    asked: int


@dataclass(frozen=True)
class Refused:
    """The command was not carried out: too many are waiting."""

    command: int
    reason: str


@dataclass(frozen=True)
class Bootstrapped:
    """The neighbourhood of our own id is stable, ``contacts`` peers are in the table."""

    contacts: int


Effect = Send | PeersFound | RecordsFound | Published | Refused | Bootstrapped


@dataclass(frozen=True)
class DhtStatistics:
    """Counts for metrics."""

    contacts: int
    records: int
    publications: int
    operations: int
    requests_in_flight: int
    requests_sent: int
    requests_unanswered: int
    requests_served: int
    contacts_evicted: int
    contacts_limited: int
    records_rejected: tuple[tuple[str, int], ...]  # reason, count
    slow_after_s: float
    is_bootstrapped: bool
