"""Swarms: links that name one, manifests that define one, and their signatures."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode

import msgspec

from swarmnode.errors import AuthenticationFailed, ConfigError, MalformedMessage, Refused
from swarmnode.ids import PUBLIC_KEY_BYTES, PeerId, decode_base32, encode_base32
from swarmnode.limits import (
    BOOTSTRAP_HINTS_MAX,
    LINK_CHARACTERS_MAX,
    MANIFEST_CLOCK_SKEW_S,
    ZONES_MAX,
)
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.records import Name
from swarmnode.wire.swarm import Manifest, Signed

# A zone of DNS, as people write it.
_ZONE = re.compile(r"(?=.{1,200}$)[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_SCHEME = "swarm:"
_DOMAIN = "manifest/1"


@dataclass(frozen=True)
class Hint:
    """Where a peer may be found: only ever a hint, the id is checked on the connection."""

    peer: PeerId
    address: str

    def __str__(self) -> str:
        return f"{self.peer}@{self.address}"

    @classmethod
    def parse(cls, text: str) -> Hint:
        """Read ``sn1…@HOST:PORT``. Raises ConfigError."""
        peer, at, address = text.partition("@")
        if not at or not address:
            raise ConfigError(f"expected a hint like sn1…@HOST:PORT, got {text[:120]!r}")
        return cls(PeerId.parse(peer), address)


@dataclass(frozen=True)
class SwarmLink:
    """``swarm:NAME?k=<key>&r=<meeting key>&b=<hint>…&d=<zone>…&i=<invite>``: all that one needs.

    ``meeting`` and ``zones`` lead to members where no hint does: see ``meeting.py``. A link with
    an invite is a secret: every reader can join in its place. ``invite`` is the token of
    :meth:`swarmnode.protocol.invites.Invite.encode`, b"" for none.
    """

    name: str
    swarm_key: bytes
    hints: tuple[Hint, ...] = ()
    invite: bytes = field(default=b"", repr=False)
    meeting: bytes = b""
    zones: tuple[str, ...] = ()

    def __str__(self) -> str:
        query = [("k", encode_base32(self.swarm_key))]
        if self.meeting:
            query.append(("r", encode_base32(self.meeting)))
        query += [("b", str(hint)) for hint in self.hints]
        query += [("d", zone) for zone in self.zones]
        if self.invite:
            query.append(("i", encode_base32(self.invite)))
        return f"{_SCHEME}{self.name}?{urlencode(query, safe='@:[]')}"

    @property
    def swarm_id(self) -> bytes:
        """The 32 bytes that what members sign for this swarm is bound to."""
        return swarm_id(self.swarm_key)

    @property
    def tag(self) -> str:
        """What sets the services of this swarm apart from those of others on one session."""
        return encode_base32(self.swarm_id[:10])

    @property
    def public(self) -> SwarmLink:
        """The link without its invite: fit to be shown, logged and passed on."""
        return replace(self, invite=b"")


def swarm_id(swarm_key: bytes) -> bytes:
    """Return the id of the swarm with this public key."""
    return hashlib.sha256(b"swarmnode/swarm/1\0" + swarm_key).digest()


def network_id(network: str) -> bytes:
    """Return the id of a network: both ends of a connection must name the same one.

    One network holds many swarms, whose members find each other through one DHT. Two networks
    never merge.
    """
    return hashlib.sha256(b"swarmnode/network/1\0" + network.encode("utf-8")).digest()


def parse_link(text: str) -> SwarmLink:
    """Read a link. Raises ConfigError that says which part is wrong and what it should be."""
    text = text.strip()
    if len(text) > LINK_CHARACTERS_MAX:
        raise ConfigError(f"a link has at most {LINK_CHARACTERS_MAX} characters, not {len(text)}")
    if not text.startswith(_SCHEME):
        raise ConfigError(f"expected a link like swarm:NAME?k=…&b=…, got {text[:60]!r}")
    name, question, query = text[len(_SCHEME) :].partition("?")
    check_name(name)
    if not question:
        raise ConfigError("the link has no ?k=…: copy it whole, as `swarmnode create` printed it")
    key = invite = meeting = b""
    hints: list[Hint] = []
    zones: list[str] = []
    for field_name, value in parse_qsl(query, keep_blank_values=True):
        if field_name == "k":
            key = decode_base32(value, what="the swarm key (k=) in the link")
        elif field_name == "b":
            hints.append(Hint.parse(value))
        elif field_name == "r":
            meeting = decode_base32(value, what="the meeting key (r=) in the link")
        elif field_name == "d" and _ZONE.fullmatch(value):
            zones.append(value)
        elif field_name == "i":
            invite = _decode_invite(value)
    if len(meeting) not in (0, PUBLIC_KEY_BYTES):
        raise ConfigError(f"the meeting key (r=) in the link has not {PUBLIC_KEY_BYTES} bytes")
    if len(key) != PUBLIC_KEY_BYTES:
        raise ConfigError(
            f"the swarm key (k=) in the link must have {PUBLIC_KEY_BYTES} bytes, it has {len(key)}:"
            " copy the link whole, as `swarmnode create` printed it"
        )
    if len(hints) > BOOTSTRAP_HINTS_MAX:
        raise ConfigError(
            f"a link names at most {BOOTSTRAP_HINTS_MAX} peers (b=), not {len(hints)}"
        )
    return SwarmLink(name, key, tuple(hints), invite, meeting, tuple(zones[:ZONES_MAX]))


def cut_note(text: str, link: SwarmLink) -> str:
    """Say that a shell seems to have cut a link at its first ``&``; "" if it does not look so.

    A link may have no peers, so that is a remark: the LAN and known nodes may lead on.
    """
    if link.hints or "&" in text:
        return ""
    return (
        f"the link of swarm {link.name!r} ends after its key and names no peer (b=): a shell cuts a"
        " link without quotes at the &, so put it in single quotes, 'swarm:NAME?k=…&b=…'"
    )


def _decode_invite(text: str) -> bytes:
    # Nothing of it may reach a message: those are printed and logged.
    with contextlib.suppress(ConfigError):
        if invite := decode_base32(text, what="invite"):
            return invite
    raise ConfigError(
        "the invite (i=) in the link is damaged: copy the link whole, as"
        " `swarmnode invite create` printed it"
    )


def check_name(name: str) -> str:
    """Return ``name`` if a swarm may be called so, else raise ConfigError."""
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"a swarm's name has 1-64 of a-z 0-9 . _ - and starts with a letter or digit,"
            f" not {name[:80]!r}"
        ) from error


def sign_manifest(manifest: Manifest, swarm_identity: Identity) -> Signed:
    """Sign with the swarm's own key, whose public half must be in the manifest."""
    if manifest.swarm_key != swarm_identity.public_key:
        raise ConfigError("a manifest is signed by the swarm key that it names")
    body = encode_record(manifest)
    return Signed(body, swarm_identity.public_key, swarm_identity.sign(_DOMAIN, body))


def open_manifest(signed: Signed, *, swarm_key: bytes, now_unix_s: float) -> Manifest:
    """Verify and read a manifest.

    Raises:
        AuthenticationFailed: it is not signed by ``swarm_key``, or names another.
        MalformedMessage: the signed bytes are no manifest.
        Refused: it has expired, or says it was made in the future.
    """
    if signed.public_key != swarm_key:
        raise AuthenticationFailed(
            f"manifest: signed by {encode_base32(signed.public_key)[:12]}…,"
            f" the link names the swarm key {encode_base32(swarm_key)[:12]}…"
        )
    verify(swarm_key, _DOMAIN, signed.body, signed.signature, what="manifest")
    manifest = decode_record(signed.body, Manifest)
    if manifest.swarm_key != swarm_key:
        raise MalformedMessage("manifest: it names another swarm key than the one that signed it")
    if manifest.expires_at and now_unix_s >= manifest.expires_at:
        days = (now_unix_s - manifest.expires_at) / 86400
        raise Refused(
            f"the manifest of swarm {manifest.name!r} expired {days:.1f} days ago:"
            " ask its creator for a new link"
        )
    if manifest.created_at > now_unix_s + MANIFEST_CLOCK_SKEW_S:
        raise Refused(
            f"the manifest of swarm {manifest.name!r} was made in the future:"
            " check this machine's clock"
        )
    return manifest


def compatibility_key(manifest: Manifest) -> bytes:
    """Digest of all that two peers must share before they mix their parameters."""
    what = [
        manifest.task,
        manifest.task_version,
        manifest.layout_hash,
        manifest.strategy,
        manifest.strategy_version,
        manifest.strategy_settings,
        manifest.topology,
        manifest.codec,
    ]
    return hashlib.sha256(b"swarmnode/compatibility/1\0" + msgspec.msgpack.encode(what)).digest()
