"""The mainline BitTorrent DHT, through libtorrent: mutable items (BEP 44), and nothing else of it.

libtorrent runs threads of its own. What it has to say is fetched now and then while a question
is open; nothing of it calls us. It checks the signature of an item against the key that was asked
for; what is in the item is whatever the holder of that key wrote.

The library is the optional extra ``rendezvous``: a node without it says so, and looks elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import trio

from swarmnode.protocol.identity import Identity
from swarmnode.protocol.meeting import ITEM_BYTES_MAX

INSTALL = "pip install '.[rendezvous]' in the clone of swarmnode"
# Nodes that introduce newcomers to the DHT, run by those who wrote its clients.
WELL_KNOWN = (
    "dht.libtorrent.org:25401",
    "router.bittorrent.com:6881",
    "dht.transmissionbt.com:6881",
)
_LOOK_S = 0.05
# The first answer is seldom the last: others may hold a newer item.
_NEWER_S = 1.0
_GET_S = 8.0
_PUT_S = 20.0
# A question of a node that knows none is answered at once, with nothing.
_BOOTSTRAP_S = 5.0
_NODES_ENOUGH = 8


class Item(NamedTuple):
    """What lies under a key: the bytes that its holder signed last."""

    value: bytes
    sequence: int


class ItemStore(Protocol):
    """Where items are kept: the mainline DHT, or what stands for it in a test."""

    async def get(self, public_key: bytes, salt: bytes) -> Item | None:
        """Return the newest item that is found in some seconds, None if none is."""

    async def put(self, identity: Identity, salt: bytes, value: bytes) -> int:
        """Write an item that is newer than what is there; return how many nodes took it."""


def is_installed() -> bool:
    """Whether the library is there."""
    return bool(find_spec("libtorrent"))


def expanded_key(identity: Identity) -> bytes:
    """Return a private key as libtorrent takes it: SHA-512 of the seed, clamped (RFC 8032)."""
    digest = bytearray(hashlib.sha512(identity.seed()).digest())
    digest[0] &= 248
    digest[31] = digest[31] & 63 | 64
    return bytes(digest)


def settings_of(nodes: Sequence[str], *, is_local: bool) -> dict[str, Any]:
    """Return the settings of a session that takes part in the DHT and does nothing else.

    Args:
        nodes: ``HOST:PORT`` of those to begin with.
        is_local: whether all of the DHT is on this machine, as in tests: it holds many nodes of
            one address then, which the real one refuses as an attack.
    """
    return {
        "listen_interfaces": "127.0.0.1:0" if is_local else "0.0.0.0:0,[::]:0",
        "dht_bootstrap_nodes": ",".join(nodes),
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_incoming_tcp": False,
        "enable_outgoing_tcp": False,
        "dht_restrict_routing_ips": not is_local,
        "dht_restrict_search_ips": not is_local,
        "dht_ignore_dark_internet": not is_local,
        "dht_upload_rate_limit": 1_000_000 if is_local else 16_000,
        "dht_block_ratelimit": 10_000 if is_local else 5,  # packets a second of one address
    }


@asynccontextmanager
async def open_mainline(nodes: Sequence[str], *, is_local: bool) -> AsyncIterator[ItemStore]:
    """Ask the DHT, and write to it, for as long as the block runs.

    To open and to close take a moment, in a thread: libtorrent waits for threads of its own.

    Raises:
        OSError: the library is missing, or it cannot be loaded.
    """
    sessions = [await trio.to_thread.run_sync(_start, settings_of(nodes, is_local=is_local))]
    try:
        store = _Session(sessions)
        await store.bootstrap()
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(sessions.clear)  # waits for the session's threads


def _start(settings: dict[str, Any]) -> Any:
    try:
        # Of the extra, and 10 MB.
        libtorrent: Any = import_module("libtorrent")
    except ImportError as error:  # it is there, and a library that it needs is not
        raise OSError(f"libtorrent cannot be loaded: {error}") from error

    heard = libtorrent.alert.category_t
    mask = int(heard.dht_notification) | int(heard.stats_notification)
    start: Any = libtorrent.session  # its stubs know its settings as one type for each name
    return start({**settings, "alert_mask": mask, "enable_dht": True})


class _Session:
    """Questions to libtorrent, and which answers are theirs."""

    def __init__(self, sessions: list[Any]) -> None:
        self._sessions = sessions  # the only place that holds it: it ends when it is taken out
        self._found: dict[tuple[bytes, bytes], Item] = {}
        self._complete: set[tuple[bytes, bytes]] = set()
        self._taken: dict[tuple[bytes, bytes], int] = {}
        self._nodes = 0

    async def bootstrap(self) -> None:
        """Wait until enough nodes are known, for some seconds at most."""
        with trio.move_on_after(_BOOTSTRAP_S):
            while self._nodes < _NODES_ENOUGH:
                self._sessions[0].post_dht_stats()
                await self._look()

    async def get(self, public_key: bytes, salt: bytes) -> Item | None:
        """Return the newest item that is found in some seconds, None if none is."""
        place = public_key, salt
        self._found.pop(place, None)
        self._complete.discard(place)
        self._sessions[0].dht_get_mutable_item(public_key, salt)
        with trio.move_on_after(_GET_S) as scope:
            while place not in self._complete:
                await self._look()
                if place in self._found:
                    scope.deadline = min(scope.deadline, trio.current_time() + _NEWER_S)
                    while place not in self._complete:
                        await self._look()
        return self._found.get(place)

    async def put(self, identity: Identity, salt: bytes, value: bytes) -> int:
        """Write an item that is newer than what is there; return how many nodes took it."""
        place = identity.public_key, salt
        self._taken.pop(place, None)
        # libtorrent gets what is there first, and counts on from its sequence number.
        self._sessions[0].dht_put_mutable_item(
            expanded_key(identity), identity.public_key, value, salt
        )
        with trio.move_on_after(_PUT_S):
            while place not in self._taken:
                await self._look()
        return self._taken.get(place, 0)

    async def _look(self) -> None:
        """Take what libtorrent has to say. Checkpoint: yes."""
        await trio.sleep(_LOOK_S)
        for alert in self._sessions[0].pop_alerts():
            match type(alert).__name__:
                case "dht_stats_alert":
                    self._nodes = sum(bucket["num_nodes"] for bucket in alert.routing_table)
                case "dht_mutable_item_alert":
                    self._note(alert)
                case "dht_put_alert":
                    place = _octets(alert.public_key), _octets(alert.salt)
                    self._taken[place] = int(alert.num_success)

    def _note(self, alert: Any) -> None:
        place = _octets(alert.key), _octets(alert.salt)
        value, sequence = alert.item, int(alert.seq)
        held = self._found.get(place)
        # The holder of the key may have written a number or a list; only bytes can be ours.
        is_ours = isinstance(value, bytes) and 0 < len(value) <= ITEM_BYTES_MAX
        if is_ours and (held is None or sequence >= held.sequence):
            self._found[place] = Item(value, sequence)
        if alert.authoritative:
            self._complete.add(place)


def _octets(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
