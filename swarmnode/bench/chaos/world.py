"""Where the nodes are: lines of their own, a small disk, homes that cannot be written.

With root each node has a network namespace on one bridge. All namespaces and mounts lie in a mount
namespace of this process: they are gone when it is, however it ends, and nothing of the machine's
own is touched. Without root all nodes share loopback, and what cannot be had is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from swarmnode.bench.chaos.plan import Kind
from swarmnode.errors import WorkerError
from swarmnode.processes.node_process import free_addresses

_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_NETNS = Path("/run/netns")  # of iproute2
_NEEDED = ("ip", "nft", "mount", "umount", "nsenter")
_COMMAND_S = 30.0
_HUB = "hub"
_PORT = 7337
_SMALL_DISK = "size=48m"
_BALLAST = "ballast"
_BESIDE = "-read-only"
_PIECES_BYTES = (1 << 20, 1 << 12, 1)
_AS_ROOT: tuple[Kind, ...] = (
    "partition",
    "broken-link",
    "lossy-line",
    "full-disk",
    "read-only-home",
)


@dataclass
class World:
    """Where the nodes are, and what cannot be had there."""

    addresses: list[str]
    left_out: dict[Kind, str] = field(default_factory=dict)

    @property
    def has_lines(self) -> bool:
        """Whether each node has a namespace of its own."""
        return not self.left_out

    def prefix(self, node: int) -> list[str]:
        """Return what a command begins with that runs on a node's host."""
        return [_found("ip"), "netns", "exec", f"n{node}"] if self.has_lines else []

    async def cut(self, side: Collection[int]) -> None:
        """Let these nodes and the others hear nothing of each other."""
        cut_off = {node for node in range(len(self.addresses)) if node not in side}
        await self._write_rules({node: rules([_host(n) for n in cut_off], 0.0) for node in side})

    async def part(self, one: int, other: int) -> None:
        """Let two nodes hear nothing of each other; all others hear both."""
        await self._write_rules({one: rules([_host(other)], 0.0)})

    async def lose(self, node: int, share: float) -> None:
        """Lose a share of a node's packets, in both directions."""
        await self._write_rules({node: rules((), share)})

    async def heal(self, nodes: Collection[int]) -> None:
        """Let these hear everything again."""
        await self._write_rules(dict.fromkeys(nodes, rules((), 0.0)))

    async def _write_rules(self, texts: Mapping[int, str]) -> None:
        """All at once: on a busy machine it takes seconds to start one program after the other."""
        async with trio.open_nursery() as nursery:
            for node, text in texts.items():
                command = [*self.prefix(node), _found("nft"), "-f", "-"]
                nursery.start_soon(trio.to_thread.run_sync, partial(_run, *command, stdin=text))


def open_world(n_nodes: int) -> World:
    """Make it, in this process and for the rest of its life."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    why = f"not installed: {', '.join(missing)}" if missing else ""
    why = "needs root" if os.geteuid() != 0 else why
    if not why:
        try:
            _leave_mounts()
            _make_lines(n_nodes)
        except (OSError, WorkerError) as error:  # a container without the right to
            why = f"the system refused: {error}"
    if why:
        return World(free_addresses(n_nodes), dict.fromkeys(_AS_ROOT, why))
    return World([f"{_host(node)}:{_PORT}" for node in range(n_nodes)])


def rules(cut_hosts: Collection[str], lost_share: float) -> str:
    """Return what nft is told for one node; each word takes the place of the last."""
    cut = "ip {0} {{ " + ", ".join(cut_hosts) + " }} drop;" if cut_hosts else ""
    lost = f"numgen random mod 10000 < {round(lost_share * 10_000)} drop;" if lost_share else ""
    chain = "chain {0} {{ type filter hook {1} priority 0; {2} {3} }}"
    inward = chain.format("inward", "input", 'iif "lo" accept;', cut.format("saddr") + lost)
    outward = chain.format("outward", "output", 'oif "lo" accept;', cut.format("daddr") + lost)
    return (
        f"table inet chaos\ndelete table inet chaos\ntable inet chaos {{\n{inward}\n{outward}\n}}\n"
    )


def _leave_mounts() -> None:
    """From now on the rest of the machine sees nothing of what is mounted here or in a child."""
    library = ctypes.CDLL(None, use_errno=True)
    _NETNS.mkdir(parents=True, exist_ok=True)
    if library.unshare(_CLONE_NEWNS) or library.mount(None, b"/", None, _MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    mount("-t", "tmpfs", "tmpfs", str(_NETNS))


def _make_lines(n_nodes: int) -> None:
    ip = _found("ip")
    _run(ip, "netns", "add", _HUB)
    _run(ip, "-n", _HUB, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
    _run(ip, "-n", _HUB, "link", "set", "br0", "up")
    for node in range(n_nodes):
        name, port = f"n{node}", f"p{node}"
        _run(ip, "netns", "add", name)
        _run(ip, "link", "add", "eth0", "netns", name, "type", "veth",
             "peer", "name", port, "netns", _HUB)  # fmt: skip
        _run(ip, "-n", _HUB, "link", "set", port, "master", "br0", "up")
        _run(ip, "-n", name, "link", "set", "lo", "up")
        _run(ip, "-n", name, "addr", "add", f"{_host(node)}/16", "dev", "eth0")
        _run(ip, "-n", name, "link", "set", "eth0", "up")
        _run(ip, "netns", "exec", name, _found("nft"), "-f", "-", stdin=rules((), 0.0))


def _host(node: int) -> str:
    return f"10.77.{node // 250}.{node % 250 + 1}"


# --- disks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Give a folder a disk of its own, of a few megabytes, for the block."""
    folder.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"{_SMALL_DISK},mode=0700", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run([_found("umount"), "-l", str(folder)], check=False, timeout=_COMMAND_S)


def fill(home: Path) -> int:
    """Write until nothing more fits on the disk of ``home``; return the bytes."""
    written_bytes = 0
    with (home / _BALLAST).open("wb", buffering=0) as file:
        for size_bytes in _PIECES_BYTES:
            with contextlib.suppress(OSError):
                while n_bytes := file.write(bytes(size_bytes)):
                    written_bytes += n_bytes
    return written_bytes


def empty(home: Path) -> None:
    """Make room again."""
    (home / _BALLAST).unlink(missing_ok=True)


def forbid_writing(pid: int, home: Path) -> None:
    """Put ``home``, read-only, over itself where this process looks; open files stay writable.

    It is made so beside it: over it, a file that is opened meanwhile would keep it from that.
    """
    beside = home.with_name(home.name + _BESIDE)
    beside.mkdir(exist_ok=True)
    inside = ["-t", str(pid), "-m", _found("mount")]
    _run(_found("nsenter"), *inside, "--bind", str(home), str(beside))
    _run(_found("nsenter"), *inside, "-o", "remount,bind,ro", str(beside))
    _run(_found("nsenter"), *inside, "--move", str(beside), str(home))


def allow_writing(pid: int, home: Path) -> None:
    """Undo that. Raises WorkerError: the process is gone, and with it what it looked at."""
    _run(_found("nsenter"), "-t", str(pid), "-m", _found("umount"), "-l", str(home))


# --- programs -------------------------------------------------------------------------------


def mount(*arguments: str) -> None:
    """Mount for this process and its children. Raises WorkerError."""
    _run(_found("mount"), *arguments)


def _found(program: str) -> str:
    return shutil.which(program) or program


def _run(*command: str, stdin: str = "") -> None:
    try:
        done = subprocess.run(
            command,
            input=stdin,
            text=True,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkerError(f"{' '.join(command)}: no end within {_COMMAND_S:.0f} s") from error
    if done.returncode:
        raise WorkerError(f"{' '.join(command)}: {done.stderr.strip()}")
