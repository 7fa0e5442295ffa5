"""Network namespaces: entering them, talking to the kernel in them, removing what was left."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

COMMAND_S = 20.0
_CLONE_NEWNET = 0x40000000
_NETLINK_NETFILTER = 12
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000

# Labs of this test suite; the number is the process that made them.
PREFIX = "snlab"


def own_prefix() -> str:
    """Return what the names of all namespaces that this process makes begin with."""
    return f"{PREFIX}{os.getpid()}-"


def why_not() -> str | None:
    """Return why no lab can be built here, or None."""
    if os.geteuid() != 0:
        return "the NAT lab makes network namespaces and needs root"
    missing = [name for name in ("ip", "nft", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"the NAT lab needs {' and '.join(missing)} (Debian: iproute2, nftables, util-linux)"
    probe = f"{own_prefix()}probe"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "netns", "exec", probe, "nft", "-f", "-", stdin="table ip t { }\n")
    except RuntimeError as error:
        return f"the NAT lab cannot make namespaces with nftables here: {error}"
    finally:
        remove(probe)
    return None


def run(*command: str, stdin: str | None = None) -> str:
    """Run a program to its end; RuntimeError says what it complained about."""
    done = subprocess.run(
        command, input=stdin, text=True, capture_output=True, timeout=COMMAND_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}\n{stdin or ''}")
    return done.stdout


def existing(pattern: str) -> list[str]:
    """Return the namespaces whose whole name matches."""
    lines = run("ip", "netns", "list").splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    return [name for name in names if re.fullmatch(pattern, name)]


def remove(name: str) -> None:
    """End what still runs in a namespace and remove it; it may be gone already."""
    found = subprocess.run(
        ["ip", "netns", "pids", name],
        text=True,
        capture_output=True,
        timeout=COMMAND_S,
        check=False,
    )
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(
        ["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_S, check=False
    )


def remove_leftovers(prefix: str = PREFIX) -> None:
    """Remove labs of processes that were killed before they could do it."""
    for name in existing(rf"{prefix}\d+-.*"):
        pid = name.removeprefix(prefix).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            remove(name)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in the namespace; sockets that are opened here stay there."""
    library = ctypes.CDLL(None, use_errno=True)
    with _descriptor("/proc/thread-self/ns/net") as home, _descriptor(f"/run/netns/{name}") as away:
        _enter(library, away)
        try:
            yield
        finally:
            _enter(library, home)


@contextlib.contextmanager
def _descriptor(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(library: ctypes.CDLL, descriptor: int) -> None:
    if library.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def forget_connections() -> None:
    """Delete all conntrack entries of the namespace that this thread is in."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
        netlink.bind((0, 0))
        # nlmsghdr(length, IPCTNL_MSG_CT_DELETE, REQUEST|ACK, sequence, port), nfgenmsg(AF_INET)
        head = struct.pack("=IHHII", 20, 0x0102, 5, 1, 0)
        netlink.send(head + bytes([socket.AF_INET, 0, 0, 0]))
        error = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    if error:
        raise OSError(-error, f"conntrack: {os.strerror(-error)}")


def open_tap(name: str, device: str) -> int:
    """Return a descriptor that reads and writes the frames of a TAP device."""
    with inside(name):
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH14x", device.encode("ascii"), _TAP_WITHOUT_HEADER)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
        return descriptor
