"""How strangers who have a name or a link, and no peer that lives, are told of members.

Three kinds of words, all of them hostile until proven, and no more than hints after that, since
the id in a hint is proven in the handshake:

*Items* of the mainline DHT (BEP 44, mutable). A swarm has a *meeting key* besides its own. The
swarm's key signs a *grant* for it once, which stands in the manifest; members hand the meeting
key's seed to each other in the shared state, so that any of them can write where live members
are when the creator is gone. A link names the meeting key (r=); its item is found with that.
A name alone leads to NAME_SLOTS items whose keys follow from network and name, so that every
reader could write them: they say which swarm keys there are, each proven by its grant, and the
item of the meeting key is read then.

*TXT records* of DNS: ``sn1…@HOST:PORT``, or a link.

*Lists of entry nodes*: lines of hints under one signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, ConfigError, MalformedMessage, SwarmNodeError
from swarmnode.ids import PUBLIC_KEY_BYTES, PeerId, decode_base32
from swarmnode.protocol.hosts import ip_of
from swarmnode.protocol.identity import Identity, Signer, verify
from swarmnode.protocol.swarm import Hint, SwarmLink, parse_link
from swarmnode.wire.meeting import MeetingItem
from swarmnode.wire.packing import decode_record, encode_record

_GRANT_DOMAIN = "meeting/1"
_LIST_DOMAIN = "entry-nodes/1"
_LIST_HEADER = "swarmnode entry nodes v1"
_SIGNATURE = "signature "
SALT = b"swarmnode/1"
# One is a place that any reader of the name may overwrite; who wants all of them writes for ever.
NAME_SLOTS = 4
# BEP 44: a bencoded value has at most 1000 bytes, four of them say how long it is.
ITEM_BYTES_MAX = 996
# An item that is older says where members were; members write one anew before.
ITEM_FRESH_S = 600.0
_CLOCK_SKEW_S = 3600
SEED_BYTES = 32


def make_grant(name: str, swarm: Signer, meeting_key: bytes) -> bytes:
    """Return the meeting key and the swarm key's signature that it may speak for this name."""
    return meeting_key + swarm.sign(_GRANT_DOMAIN, meeting_key + name.encode())


def open_grant(grant: bytes, name: str, swarm_key: bytes) -> bytes:
    """Return the meeting key of a grant. Raises AuthenticationFailed."""
    key, signature = grant[:PUBLIC_KEY_BYTES], grant[PUBLIC_KEY_BYTES:]
    verify(swarm_key, _GRANT_DOMAIN, key + name.encode(), signature, what="meeting key")
    return key


def name_identity(network: str, name: str, slot: int) -> Identity:
    """Return the key of a place for a name: no secret, it follows from what it is made of."""
    text = f"swarmnode/name-slot/1\0{network}\0{name}\0{slot}"
    return Identity.from_seed(hashlib.sha256(text.encode()).digest())


def slot_of(swarm_key: bytes) -> int:
    """Return which of a name's places a swarm writes."""
    return swarm_key[0] % NAME_SLOTS


def meeting_identity(text: object, meeting_key: bytes) -> Identity | None:
    """Return the identity of the meeting key if a member's word is its seed, else None."""
    if not isinstance(text, str) or len(text) > 2 * SEED_BYTES:
        return None
    try:
        seed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(seed) != SEED_BYTES:
        return None
    identity = Identity.from_seed(seed)
    return identity if identity.public_key == meeting_key else None


def seed_text(identity: Identity) -> str:
    """Return what members say to each other, so that each can write the item."""
    return base64.b64encode(identity.seed()).decode()


# --- items ---------------------------------------------------------------------------------------


def encode_item(item: MeetingItem, hints: Sequence[Hint]) -> bytes:
    """Return the value of an item with as many of these hints as it may have."""
    for count in range(min(len(hints), limits.BOOTSTRAP_HINTS_MAX), -1, -1):
        value = encode_record(
            MeetingItem(
                item.name,
                item.swarm,
                item.grant,
                item.at,
                item.members,
                item.made,
                tuple(bytes(hint.peer) for hint in hints[:count]),
                tuple(hint.address for hint in hints[:count]),
            )
        )
        if len(value) <= ITEM_BYTES_MAX:
            return value
    raise MalformedMessage("an item without hints is larger than one may be")


def decode_item(value: bytes, now_unix_s: float) -> MeetingItem:
    """Read an item, and prove that its swarm's key allows its meeting key to speak.

    Raises:
        MalformedMessage, AuthenticationFailed: it is none, or that is not so.
    """
    if len(value) > ITEM_BYTES_MAX:
        raise MalformedMessage(f"expected an item of {ITEM_BYTES_MAX} bytes, got {len(value)}")
    item = decode_record(value, MeetingItem)
    if len(item.peers) != len(item.addresses):
        raise MalformedMessage("expected an address for each peer of an item")
    if item.at > now_unix_s + _CLOCK_SKEW_S:
        raise MalformedMessage("the item was written in the future")
    open_grant(item.grant, item.name, item.swarm)
    return item


def hints_in(item: MeetingItem) -> list[Hint]:
    """Return where it says that members are."""
    pairs = zip(item.peers, item.addresses, strict=True)
    return [Hint(PeerId(peer), address) for peer, address in pairs]


def is_due(item: MeetingItem | None, swarm_key: bytes, live: Iterable[Hint], now: float) -> bool:
    """Whether a member should write an item anew.

    ``item``: what is there now, if anything. It is as good as a new one while it is fresh and
    most of the members in it are alive.
    """
    if item is None or item.swarm != swarm_key or not now - ITEM_FRESH_S / 2 < item.at:
        return True
    there, alive = set(item.peers), {bytes(hint.peer) for hint in live}
    enough = min(len(alive), limits.BOOTSTRAP_HINTS_MAX)
    return len(there & alive) < max(1, (enough + 1) // 2)


def is_public(address: str) -> bool:
    """Whether ``HOST:PORT`` is one that strangers elsewhere may dial."""
    ip = ip_of(address)
    return ip is not None and ip.is_global and not ip.is_multicast


# --- DNS -----------------------------------------------------------------------------------------


def read_txt(
    texts: Iterable[str], name: str, swarm_key: bytes
) -> tuple[list[Hint], list[SwarmLink]]:
    """Return what TXT records of a zone say: nodes of the network, and links to swarms.

    Args:
        name: of the swarm that is looked for; links to others are left out, "": all are.
        swarm_key: its key, b"" if whichever has the name is meant.
    """
    hints: list[Hint] = []
    links: list[SwarmLink] = []
    for text in list(texts)[: limits.TXT_RECORDS_MAX]:
        try:
            if text.startswith("swarm:"):
                link = parse_link(text).public
                if link.name == name and swarm_key in (b"", link.swarm_key):
                    links.append(replace(link, zones=()))
            elif text.startswith("sn1"):
                hints.append(Hint.parse(text[: limits.HINT_CHARACTERS_MAX]))
        except SwarmNodeError:
            continue  # a record for others, or for later versions
    return hints[: limits.ENTRY_NODES_MAX], links[: limits.BOOTSTRAP_HINTS_MAX]


# --- lists of entry nodes ------------------------------------------------------------------------


def sign_entries(hints: Sequence[Hint], expires_at: int, signer: Signer) -> str:
    """Return the text of a list that ``signer`` vouches for."""
    lines = [_LIST_HEADER, f"expires {expires_at}", *map(str, hints)]
    body = "\n".join(lines) + "\n"
    signature = signer.sign(_LIST_DOMAIN, body.encode())
    return f"{body}{_SIGNATURE}{base64.b64encode(signature).decode()}\n"


def read_entries(text: str, key: str, now_unix_s: float) -> list[Hint]:
    """Return the nodes of a signed list.

    Args:
        key: whose signature counts, in base32.

    Raises:
        AuthenticationFailed: another key has signed it, or it was changed since.
        ConfigError: it is no list, or it has expired.
    """
    body, found, tail = text.partition(_SIGNATURE)
    if not found or not body.startswith(_LIST_HEADER + "\nexpires "):
        raise ConfigError(f"expected a list that begins with {_LIST_HEADER!r} and ends signed")
    try:
        signature = base64.b64decode(tail.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationFailed("entry nodes: the signature is no base64") from error
    public = decode_base32(key, what="entry_nodes_key")
    verify(public, _LIST_DOMAIN, body.encode(), signature, what="list of entry nodes")
    _, expires, *lines = body.splitlines()
    expires_at = expires.removeprefix("expires ")
    if not expires_at.isdecimal() or int(expires_at) <= now_unix_s:
        raise ConfigError("the list of entry nodes has expired: take a newer one")
    hints = [Hint.parse(line) for line in lines if line.strip()]
    return hints[: limits.ENTRY_NODES_MAX]
