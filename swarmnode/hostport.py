"""Addresses to listen at and to dial, as settings spell them."""

from __future__ import annotations

import re
from typing import NamedTuple

from swarmnode.errors import ConfigError

ANY_INTERFACE = "*"
_HOST = re.compile(r"\[[^\s\[\]]+\]|[^\s\[\]:]+")


class HostPort(NamedTuple):
    """A parsed address; ``host`` None is every interface."""

    host: str | None
    port: int


def parse_host_port(text: str, *, setting: str) -> HostPort:
    """Take ``HOST:PORT``, ``[IPV6]:PORT`` or ``*:PORT`` apart.

    Raises:
        ConfigError: It is none of these; ``setting`` says where the text stands.
    """
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(
            f"{setting}: expected HOST:PORT, [IPV6]:PORT or *:PORT with a port of 0 to 65535, "
            f"got {text[:80]!r}"
        )
    return HostPort(None if host == ANY_INTERFACE else host.strip("[]"), int(port))


def is_loopback(host: str | None) -> bool:
    """Return whether only this machine reaches ``host``: localhost, 127.0.0.0/8 or ::1."""
    if host is None or host.lower() == "localhost":
        return host is not None
    import ipaddress  # 3 ms that the command line does not need

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name: whatever it resolves to, it is not known to be ours
        return False
