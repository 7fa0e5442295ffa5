"""The manifest of our swarm: kept on disk, given to every caller, fetched when missing."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

import trio

from swarmnode import __version__, limits
from swarmnode.config import Paths
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
from swarmnode.protocol.swarm import SwarmLink, open_manifest
from swarmnode.store.files import make_private_dir, read_file, write_atomic
from swarmnode.strategies.installed import check_installed
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Manifest, ManifestReply, ManifestRequest, Signed

MANIFEST_SERVICE = "manifest/1"
Candidates = Callable[[], Mapping[PeerId, tuple[str, ...]]]
_log = get_logger("swarmnode.daemon.discovery")


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
        """
        if not self._path.exists():
            return None
        try:
            signed = decode_record(
                read_file(self._path, bytes_max=limits.MESSAGE_BYTES_MAX), Signed
            )
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
        raise self._nobody(errors, len(candidates()))

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

    def _nobody(self, errors: dict[PeerId, SwarmNodeError], n_found: int) -> SwarmNodeError:
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
