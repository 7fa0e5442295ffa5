"""What a node keeps, of which there is a bound: files, and what is in memory, by its metrics."""

from __future__ import annotations

import contextlib
import http.client
import re
from dataclasses import dataclass
from pathlib import Path

from swarmnode import limits
from swarmnode.daemon.snapshots.blobs import snapshot_bytes_max
from swarmnode.protocol.membership.contacts import CONTACTS_MAX
from swarmnode.protocol.trust import PEERS_MAX
from swarmnode.store.contacts import CONTACTS_FILE_BYTES_MAX
from swarmnode.store.files import HISTORY_LINE_BYTES_MAX
from tests.conftest import HANGS_S
from tests.kits.daemon_kit import Daemon
from tests.process.life_kit import NAME

DIM = 2048
_SNAPSHOT_BYTES = snapshot_bytes_max(DIM)
_TWO_FILES_BYTES = 2 * (16 * limits.MIB + HISTORY_LINE_BYTES_MAX)
_BUCKETS = 256  # one for each bit of an id


@dataclass(frozen=True)
class Thing:
    """Something that a node keeps.

    Attributes:
        files: what their paths in its home begin with.
        metric: by which the node says it, if it is no file.
    """

    name: str
    most: float
    why: str
    files: tuple[str, ...] = ()
    metric: str = ""

    @property
    def unit(self) -> str:
        return "bytes" if self.files or self.metric.endswith("_bytes") else ""


THINGS = (
    Thing("history", _TWO_FILES_BYTES, "two files of 16 MiB", ("exchanges.jsonl",)),
    Thing("log", _TWO_FILES_BYTES, "two files of 16 MiB", ("node.log",)),
    Thing(
        "log of the worker",
        limits.WORKER_LOG_BYTES_MAX + limits.LOG_RELAYED_BYTES_MAX,
        "WORKER_LOG_BYTES_MAX, and what is not yet cut",
        (f"swarms/{NAME}/worker.log",),
    ),
    Thing("contacts on disk", CONTACTS_FILE_BYTES_MAX, "CONTACTS_FILE_BYTES_MAX", ("contacts",)),
    Thing(
        "journal of the state",
        limits.JOURNAL_BYTES_MAX,
        "JOURNAL_BYTES_MAX",
        (f"swarms/{NAME}/state.journal",),
    ),
    Thing(
        "journal of trust",
        4 * 64 * PEERS_MAX,
        "PEERS_MAX of 64 bytes, four times over before it is written anew",
        (f"swarms/{NAME}/trust.journal",),
    ),
    Thing(
        "snapshots",
        (limits.SNAPSHOTS_KEPT + 1) * _SNAPSHOT_BYTES,
        "SNAPSHOTS_KEPT, and one that is being written",
        (f"swarms/{NAME}/snapshots/",),
    ),
    Thing(
        "snapshots for others",
        (limits.SNAPSHOT_BLOBS_MAX + 1) * _SNAPSHOT_BYTES,
        "SNAPSHOT_BLOBS_MAX, and one that arrives",
        (f"swarms/{NAME}/blobs/",),
    ),
    Thing("members known", CONTACTS_MAX, "CONTACTS_MAX", metric="peers"),
    Thing(
        "contacts of the DHT",
        _BUCKETS * limits.DHT_BUCKET_CONTACTS,
        "DHT_BUCKET_CONTACTS for each bit of an id",
        metric="dht_contacts",
    ),
    Thing("records of the DHT", limits.DHT_RECORDS_MAX, "DHT_RECORDS_MAX", metric="dht_records"),
    Thing(
        "authors of the state", limits.STATE_AUTHORS_MAX, "STATE_AUTHORS_MAX", metric="crdt_authors"
    ),
    Thing("state", limits.STATE_BYTES_MAX, "STATE_BYTES_MAX", metric="crdt_held_bytes"),
    Thing("peers in trust", PEERS_MAX, "PEERS_MAX", metric="trust_peers"),
)
# Whatever is in a home and no thing above, keys and settings: a few files of a page each.
REST = Thing("all else on disk", 2 * limits.MIB, "keys, marks and totals of a page each")

_SAMPLE = re.compile(r"^swarmnode_(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def scraped(address: str) -> str:
    """Return the metrics of the node that gives them there. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection(address, timeout=HANGS_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def held(node: Daemon, metrics: str) -> dict[str, float]:
    """Return how much a node keeps of each thing; what it does not say is left out."""
    said: dict[str, float] = {}
    for name, value in _SAMPLE.findall(metrics):
        said[name] = said.get(name, 0.0) + float(value)  # one for each label
    sizes = _sizes(node.home)
    found: dict[str, float] = {}
    for thing in THINGS:
        if thing.files:
            mine = [path for path in sizes if path.startswith(thing.files)]
            found[thing.name] = sum(sizes.pop(path) for path in mine)
        elif thing.metric in said:
            found[thing.name] = said[thing.metric]
    found[REST.name] = sum(sizes.values())
    return found


def _sizes(home: Path) -> dict[str, int]:
    """Return how many bytes each file of a home has, by its path in there."""
    found = {}
    for path in home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # moved or removed meanwhile
            if path.is_file():
                found[str(path.relative_to(home))] = path.lstat().st_size
    return found
