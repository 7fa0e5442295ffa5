"""Values as people write them in settings: sizes, rates, durations, and addresses.

``8 GB``, ``10 Mbit/s``, ``2h``; ``HOST:PORT``, ``[IPV6]:PORT``, ``*:PORT``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from swarmnode.errors import ConfigError

# For fields of the settings, which say themselves what they expect.
SIZE_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,3})? ?([kMGT]i?)?B)?$"
SIZE_EXPECTED = 'a size such as "8 GB" or "512 MiB", or "" for no limit'
RATE_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,3})? ?(([kMGT]i?)?B|[kMG]bit)/s)?$"
RATE_EXPECTED = 'a rate such as "500 kB/s" or "10 Mbit/s", or "" for no limit'

PROXY_PATTERN = (
    r"^(auto|off|http://([^\s/@:]*(:[^\s/@]*)?@)?(\[[0-9A-Fa-f:.]+\]|[^\s\[\]/@:]+):[0-9]{1,5}/?)$"
)
PROXY_EXPECTED = '"auto", "off" or "http://[USER:PASSWORD@]HOST:PORT"'

_QUANTITY = re.compile(r"([0-9.]+) ?([kMGT]i?)?(B|bit)(/s)?")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_DURATION = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,7})s)?")
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(k|M|B|T|)")
_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_UNITS_S = (86_400, 3600, 60, 1)


def parse_bytes(text: str) -> int:
    """Return the bytes, or bytes a second, of a text that fits one of the patterns; "" is 0."""
    if not text:
        return 0
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ConfigError(f"expected {SIZE_EXPECTED}; got {text[:80]!r}")
    number, scale, unit, _ = found.groups()
    factor = {**_DECIMAL, **_BINARY}[scale or ""]
    return round(float(number) * factor / (8 if unit == "bit" else 1))


def parse_count(text: str) -> int:
    """Return the number of ``300M``, ``2.5B``, ``40k`` or ``1_000``. Raises ConfigError."""
    found = _COUNT.fullmatch(text.strip().replace("_", "").replace(",", ""))
    count = round(float(found[1]) * _THOUSANDS[found[2]]) if found else 0
    if not count:
        raise ConfigError(f"expected a number such as 300M, 2.5B or 1000000, got {text[:80]!r}")
    return count


def parse_duration_s(text: str) -> float:
    """Return the seconds of ``2h``, ``90m``, ``1d12h`` or ``45s``. Raises ConfigError."""
    found = _DURATION.fullmatch(text.replace(" ", ""))
    parts = found.groups() if found is not None else ()
    seconds = sum(int(part or 0) * unit_s for part, unit_s in zip(parts, _UNITS_S, strict=False))
    if not seconds:
        raise ConfigError(f"expected a time such as 2h, 90m, 1d or 45s, got {text[:80]!r}")
    return float(seconds)


def hide_password(text: str) -> str:
    """Return a text that may be the address of a proxy, without its user and password."""
    head = text[: text.find("://") + 3] if "://" in text else ""
    return f"{head}***@{text.rpartition('@')[2]}" if "@" in text else text


def show_bytes(n_bytes: float) -> str:
    """Return a size in words, decimal."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def show_duration(seconds: float) -> str:
    """Return a duration in words, to about a percent."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 72 else f"{round(hours / 24)} days"


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
