"""What a link leads to: peers of its swarm, and the manifest.

Members of one swarm find each other in the link, on the LAN and in the DHT. A peer that is found is
a hint: that it is of our swarm it says itself, on a session that proves its key. The manifest is
kept on disk, given to every caller, and fetched of such a peer when it is missing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from swarmnode import __version__, limits
from swarmnode.config import NodeConfig, Paths, parse_host_port
from swarmnode.daemon.discovery.dht import Discovery
from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.errors import (
    AuthenticationFailed,
    ConfigError,
    DeadlineExceeded,
    MalformedMessage,
    Overloaded,
    ProtocolError,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.dht.keys import name_key, swarm_key_key
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import SwarmLink, open_manifest
from swarmnode.store.files import make_private_dir, read_file, write_atomic
from swarmnode.store.keys import load_identity
from swarmnode.strategies.installed import check_installed
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire import dht as wire
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Manifest, ManifestReply, ManifestRequest, Signed

if TYPE_CHECKING:
    from swarmnode.net.strangers import Insider, Strangers, Told

MANIFEST_SERVICE = "manifest/1"
Candidates = Callable[[], Mapping[PeerId, tuple[str, ...]]]
_log = get_logger("swarmnode.daemon.discovery")


class SwarmRendezvous:
    """Looks for peers of one swarm for as long as the node runs.

    Args:
        is_lonely: whether too few of them are connected: then the DHT is asked more often.
        elsewhere: asked with these settings, beyond the network's DHT, while no member is met.

    Attributes:
        insider: our part in the swarm, once we are a member.
        candidates: where peers of the swarm may be dialled, newest last.
        on_found: told of each of them, again when it is seen again.
    """

    def __init__(
        self,
        link: SwarmLink,
        *,
        discovery: Discovery,
        self_id: PeerId,
        env: Env,
        is_lonely: Callable[[], bool],
        elsewhere: NodeConfig | None = None,
    ) -> None:
        self.insider: Insider | None = None
        self._elsewhere = elsewhere
        self.candidates: dict[PeerId, tuple[str, ...]] = {}
        self.on_found: Callable[[PeerId, tuple[str, ...]], None] = lambda _peer, _addresses: None
        self.lookups = 0
        self._link = link
        self._discovery = discovery
        self._self_id = self_id
        self._env = env
        self._is_lonely = is_lonely
        for hint in link.hints:
            held = self.candidates.get(hint.peer, ())
            self.candidates[hint.peer] = (*held, hint.address)
        self.candidates.pop(self_id, None)
        for peer, addresses in self.candidates.items():
            discovery.discovered(peer, addresses)

    async def run(self) -> None:
        """Ask, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_dht)
            if self._elsewhere:
                strangers = make_strangers(self._elsewhere, self._env, self._told)
                own: Identity | None = None
                with suppress(FileNotFoundError):
                    own = load_identity(self._elsewhere.paths.swarm(self._link.name).meeting_key)
                await strangers.run(self._link, lambda: self.insider, own)

    def _told(self, told: Told) -> None:
        """Take hints: to members, or to nodes whose DHT knows some."""
        for hint in told.hints:
            if addresses := self._discovery.usable((hint.address,)):
                self._discovery.discovered(hint.peer, addresses)
                if told.swarm_key == self._link.swarm_key:
                    self.found(hint.peer, addresses)

    async def _ask_dht(self) -> None:
        """Ask the DHT now and then, soon while no peer is there."""
        pause_s = limits.SWARM_LOOKUP_S_MIN
        while True:
            await self._look_up()
            await self._pause(pause_s * self._env.rng.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, limits.SWARM_LOOKUP_S)

    async def _pause(self, longest_s: float) -> None:
        """Wait; not so long for a node that is lonely, or becomes so meanwhile."""
        until = trio.current_time() + longest_s
        while True:
            await trio.sleep(min(limits.SWARM_LOOKUP_S_LONELY, until - trio.current_time()))
            if trio.current_time() >= until or self._is_lonely():
                return

    def found(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """A node says that this peer is of our swarm."""
        if peer == self._self_id or not addresses:
            return
        self.candidates.pop(peer, None)
        self.candidates[peer] = addresses
        while len(self.candidates) > limits.SWARM_CANDIDATES_MAX:
            del self.candidates[next(iter(self.candidates))]
        self.on_found(peer, addresses)

    async def publish(self, addresses: tuple[str, ...], members: int, created_at: int) -> None:
        """Let others find us under the swarm's key and under its name; the core repeats it.

        Raises:
            SwarmNodeError: the DHT does not answer.
        """
        draft = wire.SwarmRecord(
            sequence=0,
            issued_at=0,
            ttl_s=limits.DHT_RECORD_TTL_S,
            addresses=addresses[: limits.DHT_ADDRESSES_MAX],
            swarm_key=self._link.swarm_key,
            name=self._link.name,
            members=members,
            created_at=created_at,
        )
        # Both at once: each takes as long as the slowest node asked, and dead ones are slow.
        failures: list[SwarmNodeError] = []

        async def publish(key: bytes) -> None:
            try:
                await self._discovery.publish(key, draft)
            except SwarmNodeError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for key in (swarm_key_key(self._link.swarm_key), name_key(self._link.name)):
                nursery.start_soon(publish, key)
        if failures:
            raise failures[0]

    def withdraw(self) -> None:
        """We leave: publish nothing more."""
        self._discovery.withdraw(swarm_key_key(self._link.swarm_key))
        self._discovery.withdraw(name_key(self._link.name))

    async def _look_up(self) -> None:
        try:
            answer = await self._discovery.get(swarm_key_key(self._link.swarm_key))
        except SwarmNodeError as error:
            _log.debug("the DHT does not answer", why=str(error))
            return
        self.lookups += 1
        for opened in answer.records:
            self.found(opened.author, self._discovery.usable(opened.record.addresses))


def make_strangers(config: NodeConfig, env: Env, on_told: Callable[[Told], None]) -> Strangers:
    """Return what asks beyond this network, and its DHT; see ``net/strangers.py``."""
    from swarmnode.net.strangers import Strangers  # few nodes have a use for it

    def read_list() -> str:
        data = read_file(Path(config.entry_nodes), bytes_max=limits.ENTRIES_BYTES_MAX)
        return data.decode("ascii", "replace")

    return Strangers(config, env.wall, on_told, rng=env.rng, read_list=read_list)


class ManifestKeeper:
    """Holds the signed manifest of one swarm once it is known."""

    def __init__(self, link: SwarmLink, paths: Paths, env: Env, services: Services) -> None:
        self.link = link
        self._path = paths.swarm(link.name).manifest
        self._env = env
        self._signed: Signed | None = None
        services.add_request(MANIFEST_SERVICE, self._answer)

    def load(self) -> Manifest | None:
        """Read and verify the manifest on disk, None if there is none for this swarm key.

        Raises:
            Refused: it has expired, or wants a newer swarmnode.
            AuthenticationFailed, ConfigError: it was tampered with or is damaged.
            CorruptRecord, StorageError: it is too large, or cannot be read.
        """
        try:
            data = read_file(self._path, bytes_max=limits.MESSAGE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            signed = decode_record(data, Signed)
            if signed.public_key != self.link.swarm_key:
                raise Refused(
                    f"this home already holds another swarm named {self.link.name!r}: use"
                    " another SWARMNODE_HOME for this link"
                )
            return self._take(signed)
        except MalformedMessage as error:
            raise ConfigError(
                f"{self._path} is damaged ({error}): remove it and join again"
            ) from error
        except AuthenticationFailed as error:
            raise AuthenticationFailed(
                f"{self._path} was tampered with ({error}): remove it and join again"
            ) from error

    async def fetch(self, network: Network, candidates: Candidates) -> Manifest:
        """Ask peers until one has a manifest that the link's key signed.

        ``candidates`` is asked again and again: a peer may be found late.

        Raises:
            DeadlineExceeded: no peer had it in time; the message says which were tried.
            Refused, AuthenticationFailed: what the peers of the link gave is expired or
                forged, or wants a newer swarmnode.
        """
        errors: dict[PeerId, SwarmNodeError] = {}
        with trio.move_on_after(limits.MANIFEST_FETCH_DEADLINE_S):
            while True:
                found: list[Manifest] = []
                with trio.move_on_after(limits.MANIFEST_ROUND_S):
                    async with trio.open_nursery() as nursery:
                        take = functools.partial(_take_first, found, nursery.cancel_scope)
                        for peer, addresses in list(candidates().items()):
                            nursery.start_soon(self._ask, network, peer, addresses, errors, take)
                if found:
                    return found[0]
                self._give_up_if_all_refuse(errors)
                await trio.sleep(limits.MANIFEST_RETRY_S)
        raise self._no_manifest(errors, len(candidates()))

    async def _ask(
        self,
        network: Network,
        peer: PeerId,
        addresses: tuple[str, ...],
        errors: dict[PeerId, SwarmNodeError],
        take: Callable[[Manifest], None],
    ) -> None:
        """Take the manifest if this peer has a good one; else note why not."""
        try:
            session = await network.connect(peer, addresses)
            take(await self._request(session))
        except SwarmNodeError as error:
            if str(error) != str(errors.get(peer, "")):  # said once: it is asked again and again
                is_wrong = isinstance(error, ProtocolError | Refused)
                level = _log.warning if is_wrong else _log.info
                level("no manifest", peer=peer.short, why=str(error))
            errors[peer] = error

    async def _request(self, session: Session) -> Manifest:
        manifest = self._take(await request_manifest(session, self.link.swarm_key))
        self.save()
        return manifest

    def _give_up_if_all_refuse(self, errors: dict[PeerId, SwarmNodeError]) -> None:
        """A peer of the link that is reached but proves to be wrong will not get better."""
        named = [hint.peer for hint in self.link.hints]
        wrong = [errors[peer] for peer in named if peer in errors]
        wrong = [error for error in wrong if isinstance(error, ProtocolError | Refused)]
        if wrong and len(wrong) == len(named):
            raise wrong[0]

    def save(self) -> None:
        """Keep the manifest on disk."""
        assert self._signed is not None
        make_private_dir(self._path.parent)
        write_atomic(self._path, encode_record(self._signed))

    def _take(self, signed: Signed) -> Manifest:
        manifest = open_manifest(signed, swarm_key=self.link.swarm_key, now_unix_s=self._env.wall())
        check_names(self.link, manifest)
        if parse_version(manifest.min_version) > parse_version(__version__):
            raise Refused(
                f"expected swarmnode >= {manifest.min_version}, this is {__version__}:"
                " update it: git pull in its clone, then the same pip install again there"
            )
        self._signed = signed
        return manifest

    def _no_manifest(self, errors: dict[PeerId, SwarmNodeError], n_found: int) -> SwarmNodeError:
        causes = "; ".join(f"{peer.short}: {error}" for peer, error in list(errors.items())[:3])
        asked = ", ".join(hint.address for hint in self.link.hints) or "none"
        return DeadlineExceeded(
            f"looking for the manifest of swarm {self.link.name!r} at the link's peers ({asked})"
            f" and wherever the DHT and the LAN lead ({n_found} peers in all)"
            f"{': ' + causes if causes else ''}",
            limits.MANIFEST_FETCH_DEADLINE_S,
        )

    async def _answer(self, peer: PeerId, payload: bytes) -> bytes:  # noqa: ARG002
        request = decode_record(payload, ManifestRequest)
        if self._signed is None or request.swarm_key != self.link.swarm_key:
            raise Overloaded("I do not hold that manifest yet")
        return encode_record(ManifestReply(self._signed))


async def request_manifest(session: Session, swarm_key: bytes) -> Signed:
    """Ask a peer for a manifest, whichever key signed what it gives.

    Raises:
        Overloaded: the peer does not hold it.
        DeadlineExceeded, TransportError, MalformedMessage: no answer, or none that it should be.
    """
    request = encode_record(ManifestRequest(swarm_key))
    answer = await session.request(
        MANIFEST_SERVICE, request, deadline_s=limits.PEER_REQUEST_DEADLINE_S
    )
    return decode_record(answer, ManifestReply).manifest


def check_strategy(manifest: Manifest) -> None:
    """Raise ConfigError or SpecMismatch unless the swarm's strategy is installed here."""
    check_installed(manifest.strategy, manifest.strategy_version)


def check_names(link: SwarmLink, manifest: Manifest) -> None:
    """Raise Refused unless both mean one name: files would land in another swarm's folder."""
    if manifest.name != link.name:
        raise Refused(
            f"the link calls the swarm {link.name!r}, its manifest {manifest.name!r}:"
            " ask for the link as `swarmnode create` printed it"
        )


def _take_first(found: list[Manifest], scope: trio.CancelScope, manifest: Manifest) -> None:
    """Note a manifest, and ask no more peers for it."""
    found.append(manifest)
    scope.cancel()


def parse_version(text: str) -> tuple[int, ...]:
    """Return the dotted numbers that a version begins with: (1, 2) for ``1.2.0rc1``."""
    found = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})*", text)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 1.2.0 is 1.2
    return tuple(numbers)


def can_be_told(address: str) -> bool:
    """Whether an address makes sense in a link: strangers wrote it."""
    with suppress(ConfigError):
        host, port = parse_host_port(address, setting="address")
        # One with a zone is good on this machine only.
        return host is not None and "%" not in host and port > 0
    return False
