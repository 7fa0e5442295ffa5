"""A worker locks itself in before it loads a task: what code of others then cannot reach.

A task is a program that its author wrote, and a user runs. Where the kernel has what it takes, a
worker gives up what training does not need, for itself and for all that it starts (Linux):

========  ================================================================  ===================
part      what is given up                                                  by
========  ================================================================  ===================
files     writing but below its swarm's folders and a temporary one;        Landlock
          reading what the home keeps, keys of ssh and the like, devices
          that are no GPU; signals to other processes (from Linux 6.12)
network   sockets but Unix ones, and connecting to any that another         seccomp, and
          program listens on (a daemon can often do all that its user can)  Landlock for TCP
both      looking into other processes, mounting, loading into the kernel   seccomp, and for
                                                                            root capabilities
========  ================================================================  ===================

Neither needs a right, a namespace or a program to help, and both are inherited and final. Landlock
knows no exception from what is allowed, so of a folder with something hidden each entry is allowed
by itself: what is new in there afterwards cannot be read. It does not look at names, modes and
times of files: a task can list folders, and change the mode of a file of this user.

Both hold for the thread that asks for them and those that it starts: there must be no other yet.

Sources: landlock(7), seccomp(2), Documentation/userspace-api/landlock.rst, linux/filter.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swarmnode.errors import ConfigError
from swarmnode.ipc.control import Configure
from swarmnode.tasks.installed import BUILT_IN
from swarmnode.worker.runtime import drop_capabilities, prctl, system_call

# Beside the snapshots: temporary files, and what compilers keep.
SCRATCH_NAME = "scratch"

# --- what is asked for -----------------------------------------------------------------------


@dataclass(frozen=True)
class Offered:
    """What this machine has for it; ``why_none``: of either part, "" if it is there."""

    landlock: int = 0  # version of its interface
    no_landlock: str = ""
    no_seccomp: str = ""

    @property
    def words(self) -> str:
        """What a worker here would be kept from."""
        return _words(self, "")


def lock_in(configure: Configure) -> str:
    """Give up what training does not need; return what was given up or why not, for `status`.

    Raises:
        ConfigError: the owner wants all of it or no training, and not all can be had.
    """
    if configure.sandbox == "off":
        return "not sandboxed: the setting sandbox is off"
    if uses_gpu(configure) and configure.sandbox == "auto":
        return (
            "not sandboxed: with a GPU it is not tried unasked, as no driver was there to test it"
            ' with; the setting sandbox = "files" or "on" has it'
        )
    open_for, had = network_needed(configure), offered_here()
    if configure.sandbox == "on":
        _check_all(had, open_for)
    drop_capabilities()
    if not had.no_landlock:
        try:
            confine_files(configure, had.landlock, is_online=bool(open_for))
        except OSError as error:
            had = replace(had, no_landlock=f"the system refuses it ({error.strerror})")
    if not had.no_seccomp:
        try:
            confine_calls(filter_program(platform.machine(), is_online=bool(open_for)))
        except OSError as error:
            had = replace(had, no_seccomp=f"the system refuses it ({error.strerror})")
    if configure.sandbox == "on":
        _check_all(had, open_for)
    return _words(had, open_for)


def uses_gpu(configure: Configure, devices: Path = Path("/dev")) -> bool:
    """Return whether it is to train on a GPU, if this machine has one of NVIDIA or AMD."""
    is_there = any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()
    return is_there and configure.device != "cpu"


def network_needed(configure: Configure) -> str:
    """Return what the worker needs the network for, "" if for nothing.

    Known before code of others runs: a task of another package cannot say it for itself.
    """
    if configure.nproc > 1:
        return "the processes of --nproc talk over TCP"
    is_streamed = configure.task_config.get("dataset") and not configure.data_dir
    if configure.task in BUILT_IN and is_streamed:
        return "the data set is streamed from the Hugging Face hub"
    return "as the setting sandbox says" if configure.sandbox == "files" else ""


def offered_here() -> Offered:
    """Ask the kernel, and change nothing."""
    if sys.platform != "linux":
        return Offered(no_landlock="only Linux has Landlock", no_seccomp="only Linux has seccomp")
    if platform.machine() not in _MACHINES or sys.maxsize < 2**32:
        why = f"not known for {platform.machine()}"
        return Offered(no_landlock=why, no_seccomp=why)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        why = "other threads of this process run already"
        return Offered(no_landlock=why, no_seccomp=why)
    no_landlock = no_seccomp = ""
    try:
        version = system_call(_LANDLOCK_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        version, no_landlock = 0, f"this kernel has no Landlock ({error.strerror})"
    try:
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, 0)  # no program: bad address, if it is known
    except OSError as error:
        if error.errno != errno.EFAULT:
            no_seccomp = f"this kernel has no seccomp ({error.strerror})"
    return Offered(version, no_landlock, no_seccomp)


def _check_all(had: Offered, open_for: str) -> None:
    if had.no_landlock or had.no_seccomp or open_for:
        raise ConfigError(
            f"sandbox: it is on, and cannot be had whole ({_words(had, open_for)}); with auto the"
            " worker has what there is of it"
        )


def _words(offered: Offered, open_for: str) -> str:
    parts, lacking = [], []
    if offered.no_landlock:
        lacking.append(f"files: {offered.no_landlock}")
    else:
        parts.append("files")
    if offered.no_seccomp:
        lacking.append(f"network: {offered.no_seccomp}")
    elif open_for:
        lacking.append(f"the network is open: {open_for}")
    else:
        parts.append("network")
    if not parts:
        return f"not sandboxed: {'; '.join(lacking)}"
    return "; ".join([f"sandboxed ({', '.join(parts)})", *lacking])


# --- files: Landlock -------------------------------------------------------------------------

_WRITE_FILE, _READ_FILE = 1 << 1, 1 << 2
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SINCE = {_REFER: 2, _TRUNCATE: 3, _IOCTL_DEV: 5}  # versions of the interface

# Running programs and listing folders is not restricted: neither shows what is in a file.
_CHANGES = (
    *(_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK),
    *(_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV),
)
_DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
# No link and no pipe: the daemon reads what lies there, by its name.
_PLAIN = (
    _READ_FILE | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG
) | _REFER | _TRUNCATE  # fmt: skip
_ALL_KINDS = _PLAIN | _MAKE_SYM | _MAKE_SOCK | _MAKE_FIFO
_OF_A_FILE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1 << 0
_RULE_PATH_BENEATH = 1
_BIND_AND_CONNECT_TCP, _NET_SINCE = 0b11, 4
_ABSTRACT_SOCKETS_AND_SIGNALS, _SCOPES_SINCE = 0b11, 6

_DEVICES = (
    *("null", "zero", "full", "random", "urandom"),
    *("nvidia*", "nvhost*", "nvmap", "dri", "kfd", "dxg"),  # GPUs of NVIDIA, AMD, and of WSL
)
_SECRET_FOLDERS = (".ssh", ".gnupg", ".aws", ".kube", ".docker")  # of the user
_NOT_OF_A_WORKER = ("run", "swarms")  # of the home
_CACHES = {
    "TMPDIR": "tmp",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "PYTORCH_KERNEL_CACHE_PATH": "kernels",
    "CUDA_CACHE_PATH": "cuda",
    "HF_DATASETS_CACHE": "datasets",
    "HF_MODULES_CACHE": "modules",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
}


def confine_files(configure: Configure, version: int, *, is_online: bool) -> None:
    """Allow what a worker needs, and let go of the rest. Raises OSError.

    Args:
        version: of Landlock's interface; what it does not know yet stays allowed.
        is_online: leave TCP as it is.
    """
    _wake_gpus()
    snapshots = Path(configure.snapshot_dir)
    scratch = snapshots.with_name(SCRATCH_NAME)
    handled = _READ_FILE | sum(right for right in _CHANGES if _SINCE.get(right, 1) <= version)
    net = 0 if is_online or version < _NET_SINCE else _BIND_AND_CONNECT_TCP
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPES_SINCE else 0
    attributes = struct.pack("=QQQ", handled, net, scopes)
    size = 24 if version >= _SCOPES_SINCE else 16 if version >= _NET_SINCE else 8
    with contextlib.ExitStack() as stack:
        ruleset = system_call(_LANDLOCK_CREATE_RULESET, attributes[:size], size, 0)
        stack.callback(os.close, ruleset)
        for path, rights in writable(configure):
            _allow(ruleset, path, rights & handled)
        hidden = hidden_places(configure.home)
        for path in readable(configure, hidden):
            with contextlib.suppress(OSError):  # it has gone, or no file is ever read there
                _allow(ruleset, path, _READ_FILE)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        system_call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    _use_scratch(scratch)


def writable(configure: Configure) -> Iterator[tuple[Path, int]]:
    """Make the places that the worker may change; yield each with what may be done there.

    Raises OSError.
    """
    snapshots = Path(configure.snapshot_dir)
    for name, rights in ((snapshots.name, _PLAIN), ("merge", _PLAIN), (SCRATCH_NAME, _ALL_KINDS)):
        folder = snapshots.with_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder, rights
    lock = snapshots.with_name(snapshots.name + ".lock")
    os.close(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    yield lock, _READ_FILE | _WRITE_FILE
    shared = Path("/dev/shm")  # noqa: S108 -- where POSIX puts memory that processes share
    if shared.is_dir():
        yield shared, _PLAIN
    for pattern in _DEVICES:
        for device in Path("/dev").glob(pattern):
            yield device, _DEVICE
    if configure.task in BUILT_IN and configure.task_config.get("dataset"):
        for folder in _hub_folders(os.environ):
            folder.mkdir(parents=True, exist_ok=True)
            yield folder, _ALL_KINDS


def _hub_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the libraries of the Hugging Face hub keep what they have fetched."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    yield Path(environ.get("HF_HOME") or cache / "huggingface")
    if named := environ.get("HF_HUB_CACHE"):
        yield Path(named)


def hidden_places(home: str) -> frozenset[Path]:
    """Return the folders whose entries are allowed one by one, or not at all."""
    hidden = [Path("/dev"), *(Path.home() / name for name in _SECRET_FOLDERS)]
    if home:
        hidden += [Path(home), Path(home, "swarms")]
    return frozenset(Path(os.path.realpath(path)) for path in hidden)


def readable(configure: Configure, hidden: Collection[Path]) -> Iterator[Path]:
    """Yield places that hold nothing hidden, which together are what the worker may read.

    What the owner names, and where Python has its modules, may lie in a hidden place.
    """
    named = (configure.data_dir, configure.model_dir, sys.prefix, sys.base_prefix, *sys.path)
    roots = [Path("/"), *map(Path, filter(None, named)), *_folders_of(configure.home)]
    done: set[Path] = set()
    for root in roots:
        for path in _around(Path(os.path.realpath(root)), hidden):
            if path not in done:
                done.add(path)
                yield path


def _folders_of(home: str) -> Iterator[Path]:
    """Yield the folders of the home that are not the node's own; keys and tokens are files."""
    if not home:
        return
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if entry.name not in _NOT_OF_A_WORKER and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _around(root: Path, hidden: Collection[Path]) -> Iterator[Path]:
    """Yield what is at or below ``root``, without what is hidden, in as few places as can be."""
    if root in hidden:
        return
    below = [place for place in hidden if place.is_relative_to(root)]
    if not below:
        yield root
        return
    for child in _children(root, below):
        yield from _around(child, below)


def _children(root: Path, below: Iterable[Path]) -> list[Path]:
    """Return the entries, but no links: what one leads to has a place of its own."""
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if not entry.is_symlink()]
    except PermissionError:  # such as a /home in which users do not see each other
        return [root / place.relative_to(root).parts[0] for place in below]


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            rights &= _OF_A_FILE
        beneath = struct.pack("=Qi", rights, descriptor)
        system_call(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, beneath, 0)
    finally:
        os.close(descriptor)


def _use_scratch(scratch: Path) -> None:
    """Have temporary files and caches there, and begin with no temporary ones."""
    for variable, name in _CACHES.items():
        os.environ[variable] = str(scratch / name)
    temporary = scratch / _CACHES["TMPDIR"]
    shutil.rmtree(temporary, ignore_errors=True)  # of one that was killed
    with contextlib.suppress(OSError):  # a full disk is said where it is written to
        temporary.mkdir()
    tempfile.tempdir = None  # to be found anew


def _wake_gpus() -> None:
    """Have the driver's devices made: the helper that does it at their first use loses its right.

    It belongs to NVIDIA's driver, and does nothing where they are there.
    """
    helper = shutil.which("nvidia-modprobe")
    if helper and not Path("/dev/nvidia-uvm").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([helper, "-c", "0", "-u"], check=False, timeout=10.0)


# --- system calls: seccomp -------------------------------------------------------------------

_AUDIT_ARCH, _X32_BIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}, 0x4000_0000
# Numbers on x86-64 and on arm64.
_FORBIDDEN = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),  # it opens sockets that no filter sees
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
_SOCKET, _SOCKETPAIR, _CONNECT = (41, 198), (53, 199), (42, 203)
_PRLIMIT, _IOCTL = (302, 261), (16, 29)
_MACHINES = tuple(_AUDIT_ARCH)  # in the order of the numbers above

_AF_UNIX, _SOCK_DGRAM, _SOCK_TYPE_MASK = 1, 2, 0xF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # put words into the terminal of a person

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2

# struct seccomp_data; of an argument the lower half, as both machines are little-endian.
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENTS = 0, 4, 16
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST = 0x15, 0x35
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000  # the latter with an errno

Instruction = tuple[int, int, int, int]


def filter_program(machine: str, *, is_online: bool) -> list[Instruction]:
    """Return classic BPF as (code, jump if true, jump if false, operand).

    Args:
        machine: as ``platform.machine`` has it.
        is_online: leave sockets as they are.
    """
    column = _MACHINES.index(machine)
    forbidden = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _AT_ARCH),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCH[machine]),  # no calls by the numbers of another one
        forbidden,
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    if machine == "x86_64":
        program += [(_IF_AT_LEAST, 0, 1, _X32_BIT), forbidden]
    for numbers in _FORBIDDEN.values():
        program += [(_IF_EQUAL, 0, 1, numbers[column]), forbidden]
    program += _call(_IOCTL[column], _refused(1, [_TIOCSTI, _TIOCLINUX]))
    program += _call(_PRLIMIT[column], _only(0, 0))  # limits of this process, not of another
    if not is_online:
        # As if no program listened: libraries go on without one then (name services, MPS of CUDA).
        refused = (_RETURN, 0, 0, _FAIL | errno.ECONNREFUSED)
        program += [(_IF_EQUAL, 0, 1, _CONNECT[column]), refused]
        # A datagram names its receiver in memory that a filter does not see.
        no_datagrams = _refused(1, [_SOCK_DGRAM], mask=_SOCK_TYPE_MASK)
        program += _call(_SOCKET[column], [*_only(0, _AF_UNIX), *no_datagrams])
        program += _call(_SOCKETPAIR[column], no_datagrams)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _call(number: int, checks: list[Instruction]) -> list[Instruction]:
    """Let a call pass if its checks do; they end with the accumulator lost, so it ends here."""
    return [(_IF_EQUAL, 0, len(checks) + 1, number), *checks, (_RETURN, 0, 0, _ALLOW)]


def _only(argument: int, value: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * argument),
        (_IF_EQUAL, 1, 0, value),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
    ]


def _refused(argument: int, values: list[int], *, mask: int = 0xFFFF_FFFF) -> list[Instruction]:
    checks = [(_LOAD, 0, 0, _AT_ARGUMENTS + 8 * argument), (_AND, 0, 0, mask)]
    for value in values:
        checks += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    return checks


def confine_calls(program: list[Instruction]) -> None:
    """Have the kernel ask ``program`` about each call from now on. Raises OSError."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    about = struct.pack("@HP", len(program), ctypes.addressof(code))  # struct sock_fprog
    place = ctypes.create_string_buffer(about)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(place))
