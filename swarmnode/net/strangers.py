"""Ways to peers that no hint, no contact and no beacon leads to, asked side by side.

::

    entries    the signed list of entry nodes           nodes of the network
    dns        TXT records of zones                     nodes of the network, members
    mainline   items of the BitTorrent DHT              members

Each is off without its word in the setting ``rendezvous``. A node asks while it has no neighbour
in its swarm; a visitor, for a name. And a member writes the swarm's item, so that others find it:
whichever of them looks first when the item is old, or names the dead. What is found are hints.
Loaded by nodes that strangers elsewhere could reach, and where a name is looked up.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Protocol

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig, is_loopback, parse_host_port
from swarmnode.errors import ConfigError, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.mainline import INSTALL, WELL_KNOWN, ItemStore, is_installed, open_mainline
from swarmnode.protocol import meeting
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import Hint, SwarmLink
from swarmnode.wire.meeting import MeetingItem
from swarmnode.wire.swarm import Manifest

# Entry nodes that this version knows: none runs yet. docs/operator.md says how to be listed.
ENTRY_NODES = ""
ENTRY_NODES_KEY = ""
REGISTER = "meeting"  # of the shared state: the seed of the meeting key
# Hints that are good lead to a member in this time; then nothing else is asked.
GRACE_S = 1.0
_ASK_AGAIN_S = (5.0, 600.0)
# Whether the item is good is looked up so often by each member that can: more rarely where many.
_CHECK_S = 60.0
_LOOK_S = 1.0
_LOOK_S_MAX = 10.0
_DNS_S = 4.0
# Words of members that may be the seed, looked at in one go: each costs the making of a key.
_WORDS_MAX = 32
_log = logging.getLogger(__name__)

Via = Literal["entries", "dns", "mainline"]
OpenStore = Callable[..., AbstractAsyncContextManager[ItemStore]]
AskTxt = Callable[[str, Sequence[str]], Awaitable[list[str]]]


class Sought(NamedTuple):
    """What is looked for: a swarm by its name, or one alone by its key."""

    name: str
    swarm_key: bytes = b""  # b"": whichever has the name
    meeting_key: bytes = b""  # b"": what the name leads to says it
    zones: tuple[str, ...] = ()

    @classmethod
    def by(cls, link: SwarmLink) -> Sought:
        """Return what leads to the members of this swarm."""
        return cls(link.name, link.swarm_key, link.meeting, link.zones)


class Told(NamedTuple):
    """What one of the ways has said; nodes of the network where no swarm is named."""

    via: Via
    hints: list[Hint]
    name: str = ""
    swarm_key: bytes = b""
    members: int | None = None
    made: int | None = None


class Insider(Protocol):
    """A node's part in its swarm, as far as it is asked here."""

    manifest: Manifest
    self_id: PeerId
    state: Any
    members: Any

    @property
    def sessions(self) -> Mapping[PeerId, Any]:
        """With our neighbours."""

    def peer_report(self, peer: PeerId) -> Any:
        """Return what a peer says of itself."""

    def is_trusted(self, peer: PeerId) -> bool:
        """Whether this node thinks no less of a peer than of a stranger."""


class Strangers:
    """Asks, tells what it finds, and writes what others look for.

    Args:
        wall: Unix time.
        on_told: told of each answer.
        read_list: returns the list of entry nodes that the owner has named, "" without one.
        open_store, ask_txt: what there is to ask, if not the real ones.
    """

    def __init__(
        self,
        config: NodeConfig,
        wall: Callable[[], float],
        on_told: Callable[[Told], None],
        *,
        rng: random.Random,
        read_list: Callable[[], str] = str,
        open_store: OpenStore | None = None,
        ask_txt: AskTxt | None = None,
    ) -> None:
        self._config = config
        self._ways = frozenset(config.rendezvous)
        self._wall, self._rng = wall, rng
        self._on_told, self._read_list = on_told, read_list
        self._open_store = open_store or open_mainline
        self._ask_txt = ask_txt or query_txt
        self._has_mainline = "mainline" in self._ways and (open_store is not None or is_installed())
        self._identity: Identity | None = None  # of the meeting key, once a member has told us

    def ways(self) -> str:
        """Say where is looked, and what would be with the extra."""
        asked = []
        if "entries" in self._ways and (self._config.entry_nodes or ENTRY_NODES):
            asked.append("the list of entry nodes")
        if "dns" in self._ways and self._config.dns_seeds:
            asked.append(f"DNS ({', '.join(self._config.dns_seeds)})")
        if self._has_mainline:
            asked.append("the BitTorrent DHT")
        if "mainline" in self._ways and not self._has_mainline:
            asked.append(f"not in the BitTorrent DHT, which needs {INSTALL}")
        return ", ".join(asked)

    # --- asking --------------------------------------------------------------------------------

    async def look(self, sought: Sought) -> None:
        """Ask all ways at once; return when all have answered, or LOOKUP_STRANGERS_S are over."""
        with trio.move_on_after(limits.LOOKUP_STRANGERS_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.ask_entries, sought)
                if self._has_mainline:
                    nursery.start_soon(self._visit_mainline, sought)

    async def ask_entries(self, sought: Sought) -> None:
        """Ask the list of entry nodes and DNS."""
        if "entries" in self._ways:
            self._ask_list()
        if "dns" in self._ways:
            async with trio.open_nursery() as nursery:
                for zone in dict.fromkeys((*sought.zones, *self._config.dns_seeds)):
                    for name in (f"_swarmnode.{zone}", f"{sought.name}._swarmnode.{zone}"):
                        nursery.start_soon(self._ask_zone, name, sought)

    def _ask_list(self) -> None:
        key = self._config.entry_nodes_key or ENTRY_NODES_KEY
        try:
            if text := self._read_list() if self._config.entry_nodes else ENTRY_NODES:
                self._tell("entries", meeting.read_entries(text, key, self._wall()))
        except (SwarmNodeError, OSError) as error:
            _log.warning("the list of entry nodes is not used: %s", error)

    async def _ask_zone(self, name: str, sought: Sought) -> None:
        try:
            texts = await self._ask_txt(name, self._config.dns_servers)
        except (SwarmNodeError, OSError) as error:
            _log.info("DNS has nothing for us at %s: %s", name, error)
            return
        hints, links = meeting.read_txt(texts, sought.name, sought.swarm_key)
        self._tell("dns", hints)
        for link in links:
            self._on_told(Told("dns", list(link.hints), link.name, link.swarm_key))

    def _tell(self, via: Via, hints: list[Hint]) -> None:
        if hints:
            self._on_told(Told(via, hints))

    async def _visit_mainline(self, sought: Sought) -> None:
        try:
            async with self._open() as store:
                await self._ask_mainline(store, sought)
        except OSError as error:
            _log.warning("the BitTorrent DHT is not asked: %s", error)

    def _open(self) -> AbstractAsyncContextManager[ItemStore]:
        nodes = self._config.mainline_nodes or WELL_KNOWN
        hosts = [parse_host_port(node, setting="mainline_nodes").host for node in nodes]
        return self._open_store(nodes, is_local=all(map(is_loopback, hosts)))

    async def _ask_mainline(self, store: ItemStore, sought: Sought) -> None:
        """Read the item of the swarm, and those of its name, and tell which members they name."""
        asked: set[bytes] = set()
        items: dict[bytes, MeetingItem] = {}

        async def ask(public_key: bytes, *, is_own: bool) -> None:
            item = await self._read(store, public_key, sought)
            if item is None:
                return
            meeting_key = item.grant[: len(item.swarm)]
            if is_own and meeting_key == public_key:
                items[item.swarm] = item
                self._tell_item(item)
            elif not is_own and meeting_key not in asked:
                asked.add(meeting_key)
                await ask(meeting_key, is_own=True)
                if item.swarm not in items:  # what any reader may write, as there is no better
                    self._tell_item(item)

        async with trio.open_nursery() as nursery:
            if sought.meeting_key:
                asked.add(sought.meeting_key)
                nursery.start_soon(partial(ask, sought.meeting_key, is_own=True))
            for slot in range(meeting.NAME_SLOTS):
                place = meeting.name_identity(self._config.network, sought.name, slot).public_key
                nursery.start_soon(partial(ask, place, is_own=False))

    async def _read(
        self, store: ItemStore, public_key: bytes, sought: Sought
    ) -> MeetingItem | None:
        """Return what lies there if it is proven and of a swarm that is sought."""
        found = await store.get(public_key, meeting.SALT)
        if found is None:
            return None
        try:
            item = meeting.decode_item(found.value, self._wall())
        except SwarmNodeError as error:
            _log.info("an item is refused: %s", error)
            return None
        is_meant = item.name == sought.name and sought.swarm_key in (b"", item.swarm)
        return item if is_meant else None

    def _tell_item(self, item: MeetingItem) -> None:
        hints = meeting.hints_in(item)
        if hints:
            told = Told("mainline", hints, item.name, item.swarm, item.members, item.made)
            self._on_told(told)

    # --- for as long as a node runs --------------------------------------------------------------

    async def run(
        self, link: SwarmLink, part: Callable[[], Insider | None], own: Identity | None
    ) -> None:
        """Ask while the node is alone, and do what a member does for strangers, until cancelled.

        Args:
            part: in the swarm; None until the node is a member.
            own: the meeting key, where this home has created the swarm.
        """
        self._identity = own
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_while_alone, Sought.by(link), part)
            nursery.start_soon(self._carry, part)
            if self._has_mainline:
                nursery.start_soon(self._attend, Sought.by(link), part)

    async def _ask_while_alone(self, sought: Sought, part: Callable[[], Insider | None]) -> None:
        async for _ in self._while_alone(part):
            await self.ask_entries(sought)

    async def _while_alone(self, part: Callable[[], Insider | None]) -> AsyncIterator[None]:
        """Yield when it is time to ask, for as long as the node has no neighbour."""
        pause_s = _ASK_AGAIN_S[0]
        await trio.sleep(GRACE_S)
        while True:
            if _is_alone(part()):
                yield
                await trio.sleep(pause_s * self._rng.uniform(0.75, 1.25))
                pause_s = min(2 * pause_s, _ASK_AGAIN_S[1])
            else:
                pause_s = _ASK_AGAIN_S[0]
                await trio.sleep(_LOOK_S)

    async def _carry(self, part: Callable[[], Insider | None]) -> None:
        """Say the seed of the meeting key to the other members, once it is known and proven."""
        pause_s = _LOOK_S
        while True:
            insider = part()
            if insider is not None and insider.manifest.grant and insider.state.is_open:
                if self._say(insider):
                    return
                pause_s = min(2 * pause_s, _LOOK_S_MAX)
            await trio.sleep(pause_s)

    def _say(self, insider: Insider) -> bool:
        grant = insider.manifest.grant or b""
        key = meeting.open_grant(grant, insider.manifest.name, insider.manifest.swarm_key)
        if self._identity is None or self._identity.public_key != key:
            # This home did not create the swarm, or another one of that name.
            self._identity = self._heard(insider, key)
        if self._identity is None:
            return False
        insider.state.say(Update(registers={REGISTER: meeting.seed_text(self._identity)}))
        return True

    def _heard(self, insider: Insider, key: bytes) -> Identity | None:
        said = insider.state.view.registers().values()
        words = sorted({word for each in said if isinstance(word := each.get(REGISTER), str)})
        for word in self._rng.sample(words, min(len(words), _WORDS_MAX)):
            if (identity := meeting.meeting_identity(word, key)) is not None:
                return identity
        return None

    async def _attend(self, sought: Sought, part: Callable[[], Insider | None]) -> None:
        """Be in the mainline DHT while there is something to ask, or to write."""
        await trio.sleep(GRACE_S)
        while True:
            if self._has_business(part()):
                try:
                    async with self._open() as store, trio.open_nursery() as nursery:
                        nursery.start_soon(self._ask_store_while_alone, store, sought, part)
                        nursery.start_soon(self._write_now_and_then, store, part)
                        while self._has_business(part()):  # noqa: ASYNC110
                            await trio.sleep(_LOOK_S_MAX)
                        nursery.cancel_scope.cancel()
                except OSError as error:
                    _log.warning("the BitTorrent DHT is not joined: %s", error)
                    await trio.sleep(_CHECK_S)
            await trio.sleep(_LOOK_S)

    def _has_business(self, insider: Insider | None) -> bool:
        return _is_alone(insider) or bool(self._live(insider))

    async def _ask_store_while_alone(
        self, store: ItemStore, sought: Sought, part: Callable[[], Insider | None]
    ) -> None:
        async for _ in self._while_alone(part):
            await self._ask_mainline(store, sought)

    async def _write_now_and_then(
        self, store: ItemStore, part: Callable[[], Insider | None]
    ) -> None:
        while True:
            insider, pause_s = part(), _LOOK_S
            live = self._live(insider)
            if insider is not None and live:
                await self._write(store, insider, live)
                crowd = max(1.0, len(live) / limits.BOOTSTRAP_HINTS_MAX)
                pause_s = _CHECK_S * crowd * self._rng.uniform(0.75, 1.25)
            await trio.sleep(pause_s)

    def _live(self, insider: Insider | None) -> list[Hint]:
        """Return where strangers can dial members, neighbours and ourselves first; shuffled.

        Nothing, if this node cannot write that down.
        """
        if insider is None or self._identity is None:
            return []
        members = list(insider.members.live())
        self._rng.shuffle(members)
        members.sort(key=lambda peer: peer not in insider.sessions and peer != insider.self_id)
        is_here = is_loopback(self._config.listen_address.host)
        found = []
        for peer in members:
            if peer != insider.self_id and not insider.is_trusted(peer):
                continue
            addresses = insider.peer_report(peer).addresses
            shown = [each for each in addresses if is_here or meeting.is_public(each)]
            found += [Hint(peer, each) for each in shown[:1]]
        return found

    async def _write(self, store: ItemStore, insider: Insider, live: list[Hint]) -> None:
        """Write the swarm's item, and that of its name, where they are not good any more."""
        manifest, identity = insider.manifest, self._identity
        assert identity is not None, "else nothing is live"
        assert manifest.grant, "else there is no such identity"
        slot = meeting.slot_of(manifest.swarm_key)
        place = meeting.name_identity(self._config.network, manifest.name, slot)
        sought = Sought(manifest.name, manifest.swarm_key)
        now = self._wall()
        draft = MeetingItem(
            manifest.name,
            manifest.swarm_key,
            manifest.grant,
            int(now),
            len(insider.members.live()),
            manifest.created_at,
        )
        value = meeting.encode_item(draft, live)
        for owner in (identity, place):
            there = await self._read(store, owner.public_key, sought)
            if meeting.is_due(there, manifest.swarm_key, live, now):
                taken = await store.put(owner, meeting.SALT, value)
                _log.info("%d nodes of the BitTorrent DHT hold where members are", taken)


def _is_alone(insider: Insider | None) -> bool:
    return insider is None or not insider.sessions


async def query_txt(name: str, servers: Sequence[str]) -> list[str]:
    """Return the TXT records of a name.

    Args:
        servers: ``HOST:PORT`` of those to ask; none: those of the system.

    Raises:
        ConfigError: without the library.
        OSError: no server answers, or it has none.
    """
    if find_spec("dns") is None:
        raise ConfigError(f"DNS is not asked: {INSTALL}")
    import dns.asyncresolver  # of the extra
    import dns.exception

    try:
        resolver = dns.asyncresolver.Resolver(configure=not servers)
        if servers:
            host, port = parse_host_port(servers[0], setting="dns_servers")
            resolver.nameservers, resolver.port = [host or "127.0.0.1"], port
        answer = await resolver.resolve(name, "TXT", lifetime=_DNS_S)
    except dns.exception.DNSException as error:
        raise OSError(str(error)) from error
    records = list(answer)[: limits.TXT_RECORDS_MAX]
    texts = [b"".join(record.strings)[: limits.LINK_CHARACTERS_MAX] for record in records]
    return [text.decode("utf-8", "replace") for text in texts]
