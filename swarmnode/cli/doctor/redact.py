"""What must not leave the machine, taken out of a text.

Two ways, because each misses something: what this node's files hold is looked for as it is, in
every spelling that is in use; and what looks like a secret is one. What stands for an address, a
path or a name is the same everywhere in a bundle, so that the reader still sees which is which.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import ipaddress
import json
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from swarmnode.config import Paths
from swarmnode.ids import encode_base32

_SECRET_BYTES_MIN = 16
_NAME_CHARACTERS_MIN = 3
_KEY_FILES = ("node.key", "swarms/*/swarm.key", "swarms/*/link")

_LINK = re.compile(r"\bswarm:([a-z0-9][a-z0-9._-]*)\?[^\s\"'<>`\\]+")
_INVITE = re.compile(r"([?&;](?:amp;)?i=)[^\s&\"'<>`\\]+")
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----", re.DOTALL)
_NAMED = re.compile(
    r"(?i)([\"']?[\w-]*(?:secret|token|password|passwd|api_?key|authorization|seed)[\w-]*[\"']?"
    r"\s*[:= ]\s*[\"']?(?:bearer |basic )?)([^\s\"',;&}]{8,})"
)
_USER_INFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?=[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:)[0-9a-fA-F:]+(?:[\d.]+)?(?![\w:])"
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_PEOPLE = re.compile(r"(/home/|/Users/|[A-Za-z]:\\+Users\\+)([^/\\\s\"':,)]+)")


class Redactor:
    """Takes secrets, addresses and names out of texts, the same way in each of them."""

    def __init__(
        self, *, secrets: Iterable[str], paths: dict[str, str], names: dict[str, str]
    ) -> None:
        """Set what is known.

        Args:
            secrets: texts that must not appear.
            paths: a path to what stands for it.
            names: of people, machines and hosts, to what stands for it.
        """
        self._known = dict.fromkeys(secrets, "<secret>")
        # The longest first: a home within a home, a name within a path.
        self._known |= dict(sorted(paths.items(), key=lambda item: -len(item[0])))
        self._names = names
        self._numbers: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return the text without what must not leave."""
        for known, placeholder in self._known.items():
            text = text.replace(known, placeholder)
        text = _PEM.sub("<secret>", text)
        text = _LINK.sub(lambda match: self._placeholder(f"swarm:{match[1]}?", match[0]), text)
        text = _INVITE.sub(r"\1<secret>", text)
        text = _NAMED.sub(r"\1<secret>", text)
        text = _USER_INFO.sub(r"\1<secret>@", text)
        text = _PEOPLE.sub(lambda match: match[1] + self._placeholder("user", match[2]), text)
        text = _MAC.sub(lambda match: self._placeholder("mac", match[0]), text)
        for pattern in (_IPV6, _IPV4):
            text = pattern.sub(lambda match: self._address(match[0]), text)
        for name, placeholder in self._names.items():
            text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", placeholder, text)
        return text

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text  # a time, a version
        mapped = getattr(address, "ipv4_mapped", None)
        if not (mapped or address).is_global:
            return text  # of no use elsewhere
        return self._placeholder("ip", str(mapped or address))

    def _placeholder(self, kind: str, value: str) -> str:
        """Return what stands for a value: the same for the same one."""
        if value.startswith("<"):
            return value
        prefix, name = (kind, "link") if kind.startswith("swarm:") else ("", kind)
        if (known := self._numbers.get(f"{name} {value}")) is None:
            number = 1 + sum(key.startswith(f"{name} ") for key in self._numbers)
            known = self._numbers[f"{name} {value}"] = f"{prefix}<{name}-{number}>"
        return known


def redactor_for(paths: Paths, hosts: Iterable[str] = ()) -> Redactor:
    """Return a redactor that knows the secrets of a home, its owner and this machine.

    ``hosts``: names of machines in the settings.
    """
    people, machine = _user_name(), socket.gethostname()
    names = {people: "<user>", machine: "<host>", machine.partition(".")[0]: "<host>"}
    for number, host in enumerate(sorted(set(hosts) - names.keys()), 1):
        names[host] = f"<host-{number}>"
    homes = {str(paths.home): "<home>", str(Path.home()): "~"}
    with contextlib.suppress(OSError):
        homes[str(paths.home.resolve())] = "<home>"
    return Redactor(
        secrets=_secrets_of(paths),
        paths={path: name for path, name in homes.items() if len(path) > 1},
        names={
            name: placeholder
            for name, placeholder in names.items()
            if len(name) >= _NAME_CHARACTERS_MIN and name not in ("root", "localhost")
        },
    )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, in a container
        return ""


def _secrets_of(paths: Paths) -> list[str]:
    """Return what the key files and links of a home hold, in every spelling that is in use."""
    found: set[str] = set()
    for pattern in _KEY_FILES:
        for path in paths.home.glob(pattern):
            with contextlib.suppress(OSError):
                found.update(_secrets_in(path.name, path.read_text("utf-8", "replace")))
    return sorted(found, key=len, reverse=True)


def _secrets_in(name: str, text: str) -> Iterable[str]:
    if name == "link":
        yield from (match[0] for match in _LINK.finditer(text))
        yield from re.findall(r"[?&]i=([^&\s]{8,})", text)
        return
    for word in re.findall(r"^seed (\S+)$", text, re.MULTILINE):
        yield word
        with contextlib.suppress(ValueError):
            raw = base64.b32decode(word.upper() + "=" * (-len(word) % 8))
            if len(raw) >= _SECRET_BYTES_MIN:
                spellings: tuple[Callable[[bytes], str], ...] = (
                    bytes.hex,
                    encode_base32,
                    lambda data: base64.b64encode(data).decode().rstrip("="),
                    lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
                    repr,
                    lambda data: json.dumps(repr(data))[1:-1],
                )
                for spell in spellings:
                    yield spell(raw)
                    yield spell(raw).upper()
