"""From what a person names to a swarm, without a network: by a link, or by a name of this home.

Other names are looked up, by ``lookup``; a node that is started by its link is spared that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec

from swarmnode.config import NodeConfig, is_loopback
from swarmnode.errors import ConfigError, Refused
from swarmnode.ids import PUBLIC_KEY_BYTES, decode_base32, encode_base32
from swarmnode.protocol.swarm import SwarmLink, cut_note
from swarmnode.store.contacts import load_contacts
from swarmnode.store.swarms import is_link, resolve_link, stored_link, stored_links

KEY_LETTERS_MIN = 8
KEY_LETTERS_SHOWN = 12
_KEY_LETTERS = len(encode_base32(bytes(PUBLIC_KEY_BYTES)))


def known_here(
    text: str, key: str | None, config: NodeConfig, say: Callable[[str], None]
) -> SwarmLink | None:
    """Return the link to the swarm that a person means, None if it must be looked up.

    Args:
        key: of the swarm, in base32, or at least KEY_LETTERS_MIN letters of it.
        say: told if the link was cut.

    Raises:
        ConfigError: it is no link, no name, no key.
        Refused: this home has another swarm of that name.
    """
    wanted = check_key(key) if key else ""
    known = resolve_link(text, config.paths) if is_link(text) else stored_link(text, config.paths)
    if known is not None:
        _check_has_key(known, wanted, is_given=is_link(text))
        if is_link(text) and can_ask(config) and (note := cut_note(text, known)):
            say(f"{note}; looking for it elsewhere meanwhile")
        return known
    if len(wanted) == _KEY_LETTERS:
        return SwarmLink(text, decode_base32(wanted, what="--key"))
    return None


def check_key(text: str) -> str:
    """Return a key or the first letters of one. Raises ConfigError."""
    letters = text.lower().rstrip("…")
    if not re.fullmatch(f"[a-z2-7]{{{KEY_LETTERS_MIN},{_KEY_LETTERS}}}", letters):
        raise ConfigError(
            f"--key: expected {KEY_LETTERS_MIN} to {_KEY_LETTERS} letters of a swarm's key (a-z,"
            f" 2-7), got {text[:80]!r}"
        )
    return letters


def can_ask(config: NodeConfig) -> bool:
    """Whether there is a node that might answer."""
    if config.lan or config.bootstrap or load_contacts(config.paths.contacts):
        return True
    return asks_strangers(config) or any(link.hints for link in stored_links(config.paths))


def asks_strangers(config: NodeConfig) -> bool:
    """Whether a way that needs no node of the network is on, and what it needs is there."""
    ways = config.rendezvous
    is_here = is_loopback(config.listen_address.host) and not config.mainline_nodes
    return (
        ("mainline" in ways and not is_here and bool(find_spec("libtorrent")))
        or ("dns" in ways and bool(config.dns_seeds))
        or ("entries" in ways and bool(config.entry_nodes))
    )


def is_interactive() -> bool:
    """Whether a question would reach a person."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _check_has_key(link: SwarmLink, wanted: str, *, is_given: bool) -> None:
    key = encode_base32(link.swarm_key)
    if key.startswith(wanted):
        return
    if is_given:
        raise ConfigError(
            f"--key: the link names the key {key}, which does not start with {wanted}"
        )
    raise Refused(
        f"this home already holds another swarm named {link.name!r} (key"
        f" {key[:KEY_LETTERS_SHOWN]}…): use another --home for the one you mean"
    )
