"""What of macOS a Linux machine can check: all imports, and what runs there, without Linux's names.

Python has no names there for what only Linux's kernel does. A process takes them away, once
the libraries that know both systems are imported, and says that it is on macOS.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

# What the documentation of Python 3.11 has for Linux, or not for macOS, by module.
LINUX_ONLY = {
    "os": "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open sched_getaffinity"
    " sched_setaffinity sched_setscheduler fdatasync posix_fallocate posix_fadvise getxattr"
    " setxattr listxattr removexattr O_PATH O_TMPFILE O_DIRECT splice copy_file_range eventfd"
    " pipe2 getrandom getresuid setresuid P_PIDFD",
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo",
    "socket": "SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT TCP_INFO TCP_QUICKACK MSG_ERRQUEUE"
    " MSG_NOSIGNAL MSG_CMSG_CLOEXEC AF_NETLINK AF_PACKET SO_BINDTODEVICE SO_PEERCRED SO_PASSCRED"
    " SCM_CREDENTIALS SO_MARK SO_DOMAIN SO_PROTOCOL",
    "select": "epoll EPOLLIN EPOLLOUT EPOLL_CLOEXEC",
    "fcntl": "F_ADD_SEALS F_GET_SEALS F_SEAL_SHRINK F_SEAL_GROW F_SEAL_WRITE F_SETPIPE_SZ F_NOTIFY",
    "mmap": "MADV_REMOVE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MAP_POPULATE",
    "resource": "prlimit RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_SIGPENDING",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
}
# Where one of them may be, and why no other system comes there.
GUARDED = {
    "swarmnode/bench/exchange.py": "asks for it first",
    "swarmnode/cli/node/control.py": "asks for it first",
    "swarmnode/cli/node/probes.py": "AttributeError: there is no such queue",
    "swarmnode/cli/service/files.py": "asks for the system first",
    "swarmnode/daemon/app/start.py": "systemd alone sets NOTIFY_SOCKET",
    "swarmnode/daemon/worker/foreign.py": "of units of systemd",
    "swarmnode/daemon/worker/process.py": "asks for it first",
    "swarmnode/ipc/handover.py": "of units of systemd",
    "swarmnode/ipc/segment.py": "asks for it first",
    "swarmnode/net/records.py": "asks for it first",
    "swarmnode/net/tcp.py": "AttributeError: closing takes as long as the system likes",
    "swarmnode/bench/codec.py": "asks for it first",
    "swarmnode/store/files.py": "asks for it first",
    "swarmnode/testing/fidelity/allreduce.py": "asks for the system first",
    "swarmnode/worker/ranks/team.py": "asks for it first",
    "swarmnode/worker/runtime.py": "asks for it first",
    "swarmnode/worker/sandbox.py": "offered_here() says that only Linux has it",
}

PRELUDE = f"""
import asyncio, concurrent.futures, importlib, multiprocessing.shared_memory, pkgutil, sys
import tempfile, subprocess, cryptography.hazmat.primitives.ciphers.aead, numpy, trio
try:
    import torch
except ImportError:
    torch = None
for module, names in {LINUX_ONLY!r}.items():
    module = importlib.import_module(module)
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
assert not [name for name in sys.modules if name.startswith("swarmnode")]
sys.platform = "darwin"
"""


def on_macos(program: str, folder: Path) -> str:
    """Run a program on what looks to it like macOS; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def names_of_linux(path: Path) -> Iterator[str]:
    """Yield each name of Linux that a module reads from one of Python's."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id=module)):
                if name in LINUX_ONLY.get(module, "").split():
                    yield f"{module}.{name}"
            case ast.ImportFrom(module=str(module), names=names):
                known = LINUX_ONLY.get(module, "").split()
                yield from (f"{module}.{each.name}" for each in names if each.name in known)


def test_linux_is_asked_in_guarded_places_only() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(names_of_linux(path)))
        for path in (ROOT / "swarmnode").rglob("*.py")
    }
    found = {path: names for path, names in found.items() if names}
    assert {path: names for path, names in found.items() if path not in GUARDED} == {}
    assert not set(GUARDED) - set(found), "no such name there any more"


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    program = """
import swarmnode
failed = []
def broken(name):
    failed.append(f"{name}: {sys.exc_info()[1]!r}")
n = 0
for found in pkgutil.walk_packages(swarmnode.__path__, "swarmnode.", onerror=broken):
    if found.name.endswith("__main__"):
        continue
    n += 1
    try:
        importlib.import_module(found.name)
    except Exception as error:
        if not (isinstance(error, ImportError) and not str(error.name).startswith("swarmnode")):
            failed.append(f"{found.name}: {error!r}")
print(n, *failed, sep="\\n")
"""
    count, *failed = on_macos(program, tmp_path).splitlines()
    assert failed == []
    assert int(count) > 300


def test_slots_are_shared_in_memory_without_a_name(tmp_path: Path) -> None:
    program = """
import os, subprocess
from pathlib import Path
from swarmnode.ipc.segment import Owner, Segment
segment = Segment.create()
assert os.fstat(segment.fd).st_nlink == 0, "it has a name"
assert os.readlink(f"/proc/self/fd/{segment.fd}").startswith("/dev/shm/"), "it is on a disk"
other = '''
import os, sys
del os.memfd_create
from swarmnode.ipc.segment import Owner, Segment
worker = Segment(int(sys.argv[1]))
worker.format(numel=3, slots=2)
generation = worker.claim(1)
worker.slot_view(1)[:3] = b"abc"
worker.hand_over(1, generation, Owner.DAEMON)
'''
command = [sys.executable, "-c", other, str(segment.fd)]
subprocess.run(command, pass_fds=(segment.fd,), check=True)
segment.map()
print(bytes(segment.slot_view(1)[:3]).decode())
segment.close()
"""
    assert on_macos(program, tmp_path) == "abc\n"


def test_a_blob_is_fetched_and_stored(tmp_path: Path) -> None:
    program = """
from pathlib import Path
from swarmnode.protocol.blobs.merkle import leaf_hash
from swarmnode.store.blobs import BlobStore
path = Path("file")
path.write_bytes(bytes(range(256)) * 1000)
here, there = (BlobStore(Path(name), bytes_max=1 << 20) for name in ("here", "there"))
with here.add_file(path) as source, there.begin(source.manifest) as copy:
    for index in range(source.n_chunks):
        chunk, proof = source.read(index)
        copy.write(index, chunk, leaf_hash(chunk), proof)
    copy.flush()
    copy.complete()
    print(copy.path.read_bytes() == path.read_bytes())
"""
    assert on_macos(program, tmp_path) == "True\n"


def test_what_asks_the_kernel_does_without_it(tmp_path: Path) -> None:
    program = """
import os
from swarmnode.processes.children import running
from swarmnode.worker.runtime import core_count, drop_capabilities, end_with_parent
from swarmnode.worker.sandbox import offered_here
from swarmnode.cli.doctor.checks import clock_state
end_with_parent(); drop_capabilities()
assert clock_state() is None and running() == []
assert core_count() == os.cpu_count()
print(offered_here().no_landlock, "/", offered_here().no_seccomp)
"""
    assert on_macos(program, tmp_path).strip() == "only Linux has Landlock / only Linux has seccomp"
