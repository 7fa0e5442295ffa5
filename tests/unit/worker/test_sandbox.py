"""What a worker gives up, without giving it up: places, the filter's program, and words."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmnode.ipc.control import Configure
from swarmnode.worker.sandbox import (
    Instruction,
    Offered,
    filter_program,
    hidden_places,
    network_needed,
    readable,
    uses_gpu,
    writable,
)

X86, ARM = "x86_64", "aarch64"
ARCH = {X86: 0xC000003E, ARM: 0xC00000B7}
I386 = 0x40000003
ALLOWED, EPERM, REFUSED = 0, errno.EPERM, errno.ECONNREFUSED
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET = 1, 2, 10, 16, 17
STREAM, DGRAM, CLOEXEC = 1, 2, 0o2000000
TIOCSTI, TIOCGWINSZ = 0x5412, 0x5413
NUMBERS = {  # as the tables of the kernel have them
    "openat": (257, 56),
    "clone": (56, 220),
    "sendmsg": (46, 211),
    "memfd_create": (319, 279),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "mount": (165, 40),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
}


def verdict(program: list[Instruction], arch: int, number: int, *arguments: int) -> int:
    """Run classic BPF over one system call, as the kernel does; return its errno, 0 if it may."""
    data = [number, arch, 0, 0]
    for argument in (*arguments, 0, 0)[:6]:
        data += [argument & 0xFFFF_FFFF, argument >> 32]
    place = accumulator = 0
    while True:
        code, if_true, if_false, k = program[place]
        place += 1
        if code == 0x20:
            accumulator = data[k // 4]
        elif code == 0x54:
            accumulator &= k
        elif code == 0x15:
            place += if_true if accumulator == k else if_false
        elif code == 0x35:
            place += if_true if accumulator >= k else if_false
        else:
            assert code == 0x06, f"instruction {code:#x}"
            return 0 if k == 0x7FFF_0000 else k & 0xFFFF


@pytest.fixture(params=[X86, ARM])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def asked(machine: str, call: str, *arguments: int, is_online: bool = False) -> int:
    number = NUMBERS[call][0 if machine == X86 else 1]
    program = filter_program(machine, is_online=is_online)
    return verdict(program, ARCH[machine], number, *arguments)


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        *((name, (), ALLOWED) for name in ("openat", "clone", "sendmsg", "memfd_create")),
        *((name, (), EPERM) for name in ("ptrace", "process_vm_readv", "process_vm_writev")),
        *((name, (), EPERM) for name in ("pidfd_getfd", "io_uring_setup", "open_by_handle_at")),
        *((name, (), EPERM) for name in ("mount", "unshare", "bpf", "keyctl")),
        *(("socket", (family, STREAM), EPERM) for family in (AF_INET, AF_INET6, AF_NETLINK)),
        ("socket", (AF_INET, DGRAM), EPERM),
        ("socket", (AF_PACKET, 3), EPERM),
        ("socket", (AF_UNIX, STREAM | CLOEXEC), ALLOWED),
        ("socket", (AF_UNIX, DGRAM), EPERM),
        ("socket", (AF_UNIX, DGRAM | CLOEXEC), EPERM),
        ("socket", (AF_INET << 32 | AF_UNIX, STREAM), ALLOWED),  # the kernel reads half of it too
        ("socketpair", (AF_UNIX, STREAM | CLOEXEC), ALLOWED),
        ("socketpair", (AF_UNIX, DGRAM | CLOEXEC), EPERM),
        ("connect", (3,), REFUSED),
        ("ioctl", (0, TIOCSTI), EPERM),
        ("ioctl", (0, TIOCGWINSZ), ALLOWED),
        ("prlimit64", (0, 7), ALLOWED),
        ("prlimit64", (1234, 7), EPERM),
    ],
)
def test_the_filter(machine: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    assert asked(machine, call, *arguments) == expected


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("socket", (AF_INET, STREAM), ALLOWED),
        ("socket", (AF_UNIX, DGRAM), ALLOWED),
        ("connect", (3,), ALLOWED),
        ("ptrace", (), EPERM),
        ("io_uring_setup", (), EPERM),
        ("prlimit64", (1234, 7), EPERM),
    ],
)
def test_the_filter_of_a_worker_that_needs_the_network(
    machine: str, call: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert asked(machine, call, *arguments, is_online=True) == expected


def test_the_numbers_of_another_machine_are_no_way_around_it() -> None:
    program = filter_program(X86, is_online=False)
    assert verdict(program, ARCH[X86], 1) == ALLOWED
    assert verdict(program, I386, 1) == EPERM
    assert verdict(program, ARCH[ARM], 1) == EPERM
    assert verdict(program, ARCH[X86], 0x4000_0000 | 1) == EPERM  # x32


# --- places ----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A node's home, with what is in one."""
    home = tmp_path / "user" / "home"
    for name in ("node.key", "dashboard.token", "run/control.sock", "venv/lib/module.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    for name in ("swarm.key", "link", "snapshots/snapshot-1", "data/text.txt"):
        for swarm in ("ours", "other"):
            (home / "swarms" / swarm / name).parent.mkdir(parents=True, exist_ok=True)
            (home / "swarms" / swarm / name).write_text("")
    (tmp_path / "user" / "way").symlink_to(home)
    (tmp_path / "user" / "notes").mkdir()
    return home


@pytest.fixture
def configured(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Configure]:
    monkeypatch.setenv("HOME", str(home.parent))
    (home.parent / ".ssh").mkdir()

    def make(**changes: object) -> Configure:
        fields: dict[str, object] = {
            "task": "synthetic",
            "task_config": {},
            "strategy": "pair-average",
            "strategy_settings": {},
            "swarm_seed": 1,
            "shard_seed": 2,
            "snapshot_dir": str(home / "swarms" / "ours" / "snapshots"),
            "home": str(home),
        }
        return Configure(**(fields | changes))  # type: ignore[arg-type]

    return make


def can_read(configure: Configure) -> Callable[[Path], bool]:
    hidden = hidden_places(configure.home)
    places = [*readable(configure, hidden), *(place for place, _ in writable(configure))]
    return lambda path: any(path.is_relative_to(place) for place in places)


def test_the_node_s_own_files_cannot_be_read(
    configured: Callable[..., Configure], home: Path
) -> None:
    may = can_read(configured())
    for name in ("node.key", "dashboard.token", "run/control.sock", "node.key.tmp"):
        assert not may(home / name), name
    for swarm, name in (("ours", "swarm.key"), ("ours", "link"), ("other", "snapshots/snapshot-1")):
        assert not may(home / "swarms" / swarm / name), name
    assert not may(home.parent / ".ssh" / "id_ed25519")
    assert not may(Path("/dev/mem"))


def test_everything_else_can(configured: Callable[..., Configure], home: Path) -> None:
    may = can_read(configured())
    for path in (
        *(Path("/usr/lib"), Path("/etc/hosts"), Path("/proc/meminfo"), Path("/sys/devices")),
        *(Path("/dev/null"), Path("/dev/shm/x"), Path(sys.prefix), Path(__file__)),
        *(home / "venv/lib/module.py", home / "swarms/ours/snapshots/snapshot-1"),
        home.parent / "notes" / "a",
    ):
        assert may(path), path


def test_a_link_to_a_hidden_place_is_no_way_in(
    configured: Callable[..., Configure], home: Path
) -> None:
    places = set(readable(configured(), hidden_places(str(home))))
    assert home.parent / "notes" in places
    assert home.parent / "way" not in places
    assert not {Path("/"), home.parent, home} & places


@pytest.mark.parametrize("name", ["data_dir", "model_dir"])
def test_what_the_owner_names_can_be_read_within_the_home_too(
    configured: Callable[..., Configure], home: Path, name: str
) -> None:
    named = home / "swarms" / "ours" / "data"
    assert not can_read(configured())(named / "text.txt")
    assert can_read(configured(**{name: str(named)}))(named / "text.txt")
    may = can_read(configured(**{name: str(home.parent)}))  # all of the user's files
    assert not may(home / "node.key")


def test_what_can_be_changed(configured: Callable[..., Configure], home: Path) -> None:
    swarm = home / "swarms" / "ours"
    places = dict(writable(configured()))
    ours = {path for path in places if path.is_relative_to(home)}
    assert ours == {swarm / name for name in ("snapshots", "snapshots.lock", "merge", "scratch")}
    assert all(str(path).startswith("/dev/") for path in places.keys() - ours)
    make_link = 1 << 12
    assert places[swarm / "scratch"] & make_link
    assert not places[swarm / "snapshots"] & make_link


def test_a_streamed_data_set_may_be_kept_where_the_hub_s_libraries_keep_it(
    configured: Callable[..., Configure], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent / "cache"))
    kept = home.parent / "cache" / "huggingface"
    assert kept in dict(writable(configured(task="llama-lm", task_config={"dataset": "a/b"})))
    assert kept not in dict(writable(configured(task="stranger", task_config={"dataset": "a/b"})))


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["nvidia0", "kfd"])
def test_a_worker_on_a_gpu_is_known(
    configured: Callable[..., Configure], tmp_path: Path, device: str
) -> None:
    (tmp_path / "nvidiactl").touch()  # of a driver without a card
    assert not uses_gpu(configured(device="auto"), tmp_path)
    (tmp_path / device).touch()
    assert uses_gpu(configured(device="auto"), tmp_path)
    assert uses_gpu(configured(device="cuda:0"), tmp_path)
    assert not uses_gpu(configured(device="cpu"), tmp_path)


def test_which_workers_need_the_network(configured: Callable[..., Configure]) -> None:
    streamed = {"task_config": {"dataset": "a/b"}}
    assert network_needed(configured()) == ""
    assert "--nproc" in network_needed(configured(nproc=2))
    assert "Hugging Face" in network_needed(configured(task="llama-lm", **streamed))
    assert network_needed(configured(task="llama-lm", data_dir="/clone", **streamed)) == ""
    assert network_needed(configured(task="stranger", **streamed)) == ""
    assert "sandbox" in network_needed(configured(sandbox="files"))


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        (Offered(7), "sandboxed (files, network)"),
        (Offered(7, no_seccomp="none"), "sandboxed (files); network: none"),
        (Offered(no_landlock="none"), "sandboxed (network); files: none"),
        (Offered(0, "none", "none"), "not sandboxed: files: none; network: none"),
    ],
)
def test_what_is_said_of_a_machine(offered: Offered, words: str) -> None:
    assert offered.words == words
