"""What ``swarmnode doctor`` looks at, each check on its own: none of them needs torch or Trio."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from swarmnode import __version__, limits
from swarmnode.config import NodeConfig, Paths, load_config, parse_host_port
from swarmnode.errors import ConfigError, NotRunning, SwarmNodeError
from swarmnode.processes.client import ControlClient

_GIB = 1024 * limits.MIB
Level = Literal["OK", "WARN", "FAIL"]

LIBRARIES = ("trio", "cryptography", "pyopenssl", "msgspec", "numpy", "aiortc", "h11", "torch")
_DISK_FREE_BYTES = (2 * _GIB, 256 * limits.MIB)  # WARN below, FAIL below
_MEMORY_FREE_BYTES = (1 * _GIB, 256 * limits.MIB)
_FSYNC_S = (0.05, 1.0)
_FSYNCS = 5
_SKEW_S = (60.0, limits.CLOCK_ALARM_S)
_FILES_MIN = 1024
_TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised
_ANSWER_S = 3.0


class Finding(NamedTuple):
    """One line: what was looked at, how it is, and what to do about it."""

    check: str
    level: Level
    said: str
    advice: str = ""


def versions() -> dict[str, str]:
    """Return what runs here, by name; libraries that are not installed are left out."""
    import ssl  # the version of OpenSSL; the daemon's TLS is cryptography's own

    from swarmnode.tensor.codec import active_isa

    found = {
        "swarmnode": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "native": active_isa(),
        "openssl": ssl.OPENSSL_VERSION,
    }
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def check_versions() -> Iterator[Finding]:
    """Which versions run here."""
    found = versions()
    said = ", ".join(f"{name} {text}" for name, text in found.items() if name not in LIBRARIES)
    if found["native"] == "numpy":
        advice = "Codecs run in numpy, many times slower: install a C compiler, then swarmnode."
        yield Finding("versions", "WARN", said, advice)
    else:
        yield Finding("versions", "OK", said)


def check_config(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the settings can be used."""
    try:
        config = load_config(flags, environ)
    except ConfigError as error:
        yield Finding("config", "FAIL", str(error), "Correct that line; docs/reference.md.")
        return
    there = "" if config.paths.config_file.exists() else " (no file: defaults)"
    yield Finding("config", "OK", f"{config.paths.config_file}{there}")


def check_rendezvous() -> Iterator[Finding]:
    """Whether swarms are found where no node is known: what that needs is an extra."""
    from importlib.util import find_spec

    from swarmnode.net.mainline import INSTALL, is_installed

    absent = [] if is_installed() else ["libtorrent (the BitTorrent DHT)"]
    absent += [] if find_spec("dns") else ["dnspython (seeds in DNS)"]
    if absent:
        said = (
            f"{' and '.join(absent)} not installed: swarms are found by hints and on the LAN only"
        )
        yield Finding("rendezvous", "OK", f"{said}; {INSTALL} adds that")
    else:
        yield Finding(
            "rendezvous", "OK", "by the BitTorrent DHT and by DNS, where no hint leads on"
        )


def check_home(paths: Paths) -> Iterator[Finding]:
    """Whether the home is this user's, and no other's."""
    home = paths.home
    if not home.exists():
        yield Finding("home", "OK", f"{home} is not there yet: the first `join` makes it")
        return
    status = home.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        advice = f"Run swarmnode as that user, or `chown -R $(id -un) {home}`."
        yield Finding("home", "FAIL", f"{home} belongs to uid {status.st_uid}", advice)
        return
    if not os.access(home, os.W_OK | os.X_OK):
        yield Finding("home", "FAIL", f"{home} cannot be written", f"Run `chmod 700 {home}`.")
        return
    secret = [paths.node_key, *paths.swarms.glob("*/swarm.key")]
    if open_ones := [path for path in secret if path.exists() and path.stat().st_mode & 0o077]:
        names = " ".join(map(str, open_ones))
        yield Finding(
            "home", "FAIL", f"others can read {names}", f"Run `chmod 600 {names}`; is a copy about?"
        )
    elif status.st_mode & 0o022:
        yield Finding("home", "WARN", f"others can write in {home}", f"Run `chmod 700 {home}`.")
    else:
        yield Finding("home", "OK", f"{home}, mode {status.st_mode & 0o777:04o}")


def check_disk(paths: Paths) -> Iterator[Finding]:
    """How much room there is, and how long it takes until a write is durable."""
    folder = _existing(paths.home)
    yield check_room(folder, shutil.disk_usage(folder).free)
    try:
        fsync_s = _fsync_s(folder)
    except OSError as error:
        yield Finding("fsync", "FAIL", f"cannot write in {folder}: {error.strerror}", "Free it.")
        return
    yield check_fsync(fsync_s)


def check_room(folder: Path, free_bytes: int) -> Finding:
    """Return whether so much room on the disk of ``folder`` is enough."""
    return _measured(
        Finding("disk", "OK", f"{free_bytes / _GIB:.1f} GiB free at {folder}"),
        -free_bytes,
        [-value for value in _DISK_FREE_BYTES],
        "Free some space: a snapshot takes about 12 bytes for each parameter.",
    )


def check_fsync(fsync_s: float) -> Finding:
    """Return whether a durable write that takes so long is quick enough."""
    return _measured(
        Finding("fsync", "OK", f"{fsync_s * 1e3:.1f} ms, the median of {_FSYNCS}"),
        fsync_s,
        _FSYNC_S,
        "Choose a --home on another disk: what a node says of itself waits for this.",
    )


def _fsync_s(folder: Path) -> float:
    """Return the seconds that a small durable write takes. Raises OSError."""
    seconds = []
    path = folder / f".swarmnode-doctor-{os.getpid()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for _ in range(_FSYNCS):
            begin = time.perf_counter()
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
            seconds.append(time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(seconds)


def check_memory(meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """How much memory a worker could have."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * limits.KIB
    except (OSError, KeyError, ValueError):
        yield Finding("memory", "OK", "this system does not say how much is free")
        return
    yield _measured(
        Finding("memory", "OK", f"{free / _GIB:.1f} GiB free"),
        -free,
        [-value for value in _MEMORY_FREE_BYTES],
        "A worker takes 0.4 GiB and about 20 bytes for each parameter: end something else.",
    )


def check_clock(status: Mapping[str, Any] | None, state: int | None) -> Iterator[Finding]:
    """Whether the clock is synchronised, and what the neighbours of a running node say of it.

    ``state``: of :func:`clock_state`.
    """
    skew_s = (status or {}).get("clock_skew_s")
    if skew_s is not None:
        said = f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the neighbours"
        yield _measured(
            Finding("clock", "OK", said), abs(skew_s), _SKEW_S, "Set the clock of this machine."
        )
        return
    if state is None:
        yield Finding("clock", "OK", "this system does not say whether it is set")
    elif state == _TIME_ERROR:
        advice = "Run `timedatectl set-ntp true`, or install chrony; an hour off is too much."
        yield Finding("clock", "WARN", "it is not synchronised", advice)
    else:
        yield Finding("clock", "OK", "synchronised")


def clock_state() -> int | None:
    """Return the state of the kernel's clock, None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    room = ctypes.create_string_buffer(512)  # struct timex, all zero: change nothing
    state = ctypes.CDLL(None, use_errno=True).adjtimex(room)
    return state if state >= 0 else None


def check_ports(config: NodeConfig, *, is_running: bool) -> Iterator[Finding]:
    """Whether the ports can be had; while a node runs they are its own."""
    wanted = [("listen", config.listen)]
    for name in ("metrics", "dashboard"):
        address = getattr(config, name, "off")
        if address != "off":
            wanted.append((name, address))
    for setting, address in wanted:
        host, port = parse_host_port(address, setting=setting)
        kinds = [("TCP", socket.SOCK_STREAM)]
        if setting == "listen":
            kinds.append(("UDP", socket.SOCK_DGRAM))
        for kind, number in kinds:
            if is_running:
                yield Finding(f"port {setting}", "OK", f"{kind} {address}: the running node's")
            else:
                yield _bound(f"port {setting}", host, port, kind, number)


def _bound(check: str, host: str | None, port: int, kind: str, number: int) -> Finding:
    family = socket.AF_INET6 if ":" in (host or "") else socket.AF_INET
    with socket.socket(family, number) as sock:
        if number == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host or "", port))
            if number == socket.SOCK_STREAM:
                sock.listen(1)
        except OSError as error:
            said = f"{kind} {port}: {error.strerror}"
            return Finding(check, "FAIL", said, "Choose another port, or end what uses it.")
    return Finding(check, "OK", f"{kind} {port} is free")


class ProcessLimits(NamedTuple):
    """What a process of this user may take, None without a bound."""

    files: int | None
    memory_bytes: int | None


def process_limits() -> ProcessLimits | None:
    """Return those of this process, None where the system has none."""
    try:
        import resource
    except ImportError:
        return None
    soft = [resource.getrlimit(each)[0] for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)]
    return ProcessLimits(*(None if each == resource.RLIM_INFINITY else each for each in soft))


def check_limits(allowed: ProcessLimits) -> Finding:
    """Return whether these are enough."""
    files, memory = allowed
    said = "any number of open files" if files is None else f"{files} open files"
    if memory is not None:
        advice = "Torch reserves far more than it uses: run `ulimit -v unlimited` before."
        return Finding("limits", "WARN", f"{said}, {memory / _GIB:.1f} GiB address space", advice)
    if files is not None and files < _FILES_MIN:
        return Finding("limits", "WARN", said, f"Run `ulimit -n {_FILES_MIN}` before.")
    return Finding("limits", "OK", said)


def check_node(paths: Paths) -> tuple[Finding, dict[str, Any] | None]:
    """Return whether a node runs on this home, and its status."""
    try:
        status: dict[str, Any] = ControlClient(paths).get("/status", deadline_s=_ANSWER_S)
    except NotRunning:
        return Finding("node", "OK", "none runs on this home"), None
    except SwarmNodeError as error:
        return Finding("node", "FAIL", str(error), "Stop it, and start it again."), None
    said = f"{status['swarm']}: {status['state']}: {status['reason']}"
    if status["alarm"]:
        return Finding("node", "WARN", f"ALARM: {status['alarm']}", "See docs/errors.md."), status
    return Finding("node", "OK", said), status


def check_line(client: ControlClient, status: Mapping[str, Any]) -> Finding:
    """Return how a running node is connected: what ``netcheck`` says first."""
    from swarmnode.cli.node.line import check_line as look

    levels: dict[str, Level] = {"ok": "OK", "warn": "WARN", "fail": "FAIL"}
    try:
        first = look(client)[0]
    except SwarmNodeError as error:  # it has just stopped, or is too busy to say more
        found = status["connectivity"]
        return Finding("connection", "WARN", f"{found['state']}: {found['why']}", str(error))
    return Finding("connection", levels[first["verdict"]], first["text"], first["advice"])


def _measured(
    good: Finding, value: float, bounds: tuple[float, float] | list[float], advice: str
) -> Finding:
    """Return ``good``, or the same as WARN or FAIL if the value is above the bounds."""
    warn, fail = bounds
    level: Level = "FAIL" if value > fail else "WARN" if value > warn else "OK"
    return good if level == "OK" else good._replace(level=level, advice=advice)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
