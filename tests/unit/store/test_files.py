from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from swarmnode.errors import ConfigError, CorruptRecord, Refused, StorageError, StorageFull
from swarmnode.store import files
from swarmnode.store.files import (
    HISTORY_LINE_BYTES_MAX,
    STALE_TEMPORARY_S,
    HistoryFile,
    HomeLock,
    IncomingFile,
    make_private_dir,
    read_file,
    read_history,
    reserve,
    sync_data,
    write_atomic,
    write_new,
)
from tests.conftest import open_files
from tests.kits.disk_recorder import DEATH, Fault, Killed, Recorder, after_death
from tests.kits.other_system import BusyPath, other_system


class Disk:
    """Fails the n-th call of ``os.write`` or ``os.fsync`` with one error; counts from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def fail(self, call: str, nth: int, code: int, *, short: int = 0) -> None:
        real, count = getattr(os, call), 0

        def faulty(fd: int, *data: bytes) -> object:
            nonlocal count
            count += 1
            if count == nth:
                if short:
                    return real(fd, data[0][:short])
                raise OSError(code, os.strerror(code))
            if count > nth and short:
                raise OSError(code, os.strerror(code))
            return real(fd, *data)

        self._patch.setattr(os, call, faulty)

    def heal(self) -> None:
        self._patch.undo()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_written_file_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomic(path, b"one")
    write_atomic(path, b"two" * 100_000)
    assert read_file(path, bytes_max=300_000) == b"two" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_order_on_the_disk_is_data_then_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(fd: int) -> None:
        calls.append("sync dir" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        real_fsync(fd)

    def replace(self: Path, target: Path) -> Path:
        calls.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(tmp_path / "state", b"x")
    assert calls == ["sync file", "rename", "sync dir"]


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageError)],
)
def test_failed_write_keeps_the_old_content_and_leaves_nothing(
    tmp_path: Path, disk: Disk, call: str, code: int, error: type[StorageError]
) -> None:
    path = tmp_path / "state"
    write_atomic(path, b"old")
    disk.fail(call, 1, code)
    with pytest.raises(error, match="cannot write") as caught:
        write_atomic(path, b"new")
    assert type(caught.value) is error
    disk.heal()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_says_what_to_do(tmp_path: Path, disk: Disk) -> None:
    disk.fail("write", 1, errno.ENOSPC)
    with pytest.raises(StorageFull, match=r"no space is left .*free some.*SWARMNODE_HOME"):
        write_atomic(tmp_path / "state", b"x")


def test_write_new_never_replaces(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert write_new(path, b"first")
    assert not write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def write_incoming(path: Path, data: bytes) -> None:
    with IncomingFile(path) as incoming:
        incoming.write(memoryview(data))
        incoming.commit()


@pytest.mark.parametrize("write", [write_atomic, write_new, write_incoming])
def test_what_was_written_survives_a_power_failure_and_no_file_stays_open(
    write: Callable[[Path, bytes], object], tmp_path: Path
) -> None:
    home, left = tmp_path / "home", tmp_path / "left"
    home.mkdir()
    left.mkdir()
    before = open_files()
    recorder = Recorder(home)
    with recorder.attached():
        write(home / "state", b"whole")
    assert open_files() == before
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    assert (left / "state").read_bytes() == b"whole"


@pytest.mark.parametrize("nth", range(1, 12))
def test_whichever_of_two_was_first_with_a_new_file_what_both_take_for_it_is_durable(
    nth: int, tmp_path: Path
) -> None:
    path, left = tmp_path / "home" / "key", tmp_path / "left"
    left.mkdir()
    recorder = after_death(tmp_path / "home", nth, lambda: write_new(path, b"first"))
    with recorder.attached():
        is_second = write_new(path, b"second")
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    assert (left / "key").read_bytes() == (b"second" if is_second else b"first")


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_file_that_arrives_is_there_once_it_is_whole_and_nothing_stays_open(
    tmp_path: Path, is_whole: bool
) -> None:
    path = tmp_path / "model"
    before = open_files()
    with IncomingFile(path) as incoming:
        for piece in (b"one", b"two"):
            incoming.write(memoryview(piece))
            assert not path.exists()
        if is_whole:
            incoming.commit()
    assert open_files() == before
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == ({"model": b"onetwo"} if is_whole else {})


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"12345")
    assert read_file(path, bytes_max=5) == b"12345"
    with pytest.raises(CorruptRecord, match="at most 4 bytes") as caught:
        read_file(path, bytes_max=4)
    assert caught.value.path == str(path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "absent", bytes_max=1)
    with pytest.raises(StorageError, match="cannot read"):
        read_file(tmp_path, bytes_max=1)


@pytest.mark.parametrize("bit", range(9))
def test_a_secret_is_its_owners_alone(bit: int, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch()
    path.chmod(0o400 | 1 << bit)
    if bit >= 6:
        assert read_file(path, bytes_max=0, secret=True) == b""
    else:
        with pytest.raises(ConfigError, match=f"mode {0o400 | 1 << bit:04o}"):
            read_file(path, bytes_max=0, secret=True)
        assert read_file(path, bytes_max=0) == b""


def test_a_file_has_the_mode_that_its_writer_wants(tmp_path: Path) -> None:
    write_atomic(tmp_path / "public", b"", mode=0o644)
    write_new(tmp_path / "new", b"")
    with IncomingFile(tmp_path / "incoming") as incoming:
        incoming.commit()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"public": 0o644, "new": 0o600, "incoming": 0o600}


def test_room_is_taken_for_a_whole_file() -> None:
    taken: list[tuple[int, int, int]] = []
    with other_system(posix_fallocate=lambda *call: taken.append(call)):
        reserve(7, 1000)
    assert taken == [(7, 0, 1000)]


def test_where_no_room_can_be_taken_it_is_at_least_looked_for() -> None:
    room = SimpleNamespace(f_bavail=3, f_frsize=512)
    with other_system(posix_fallocate=None, fstatvfs=lambda _fd: room):
        reserve(7, 3 * 512)
        with pytest.raises(OSError, match="No space left") as caught:
            reserve(7, 3 * 512 + 1)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("has_fdatasync", [True, False])
def test_what_was_written_is_made_durable_as_cheaply_as_the_system_can(
    has_fdatasync: bool,
) -> None:
    calls: list[tuple[str, int]] = []
    fdatasync = (lambda fd: calls.append(("fdatasync", fd))) if has_fdatasync else None
    with other_system(fsync=lambda fd: calls.append(("fsync", fd)), fdatasync=fdatasync):
        sync_data(7)
    assert calls == [("fdatasync" if has_fdatasync else "fsync", 7)]


def test_secret_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_atomic(path, b"x")
    assert read_file(path, bytes_max=1, secret=True) == b"x"
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"mode 0640.*chmod 600 {path}"):
        read_file(path, bytes_max=1, secret=True)


def test_writing_into_a_missing_directory_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        write_atomic(tmp_path / "absent" / "state", b"x")


def test_private_directory(tmp_path: Path) -> None:
    made = tmp_path / "home"
    make_private_dir(made)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o755)
    make_private_dir(made)
    assert stat.S_IMODE(made.stat().st_mode) == 0o755  # the owner's choice
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the directory"):
        make_private_dir(tmp_path / "file")


@pytest.mark.parametrize("nth", range(1, 20))
def test_a_directory_that_a_killed_process_made_is_made_durable_by_the_next(
    nth: int, tmp_path: Path
) -> None:
    made = tmp_path / "home" / "swarm"
    recorder = Recorder(tmp_path, Fault(nth, DEATH))
    with recorder.attached(), contextlib.suppress(Killed):
        make_private_dir(made)
    recorder.heal()
    with recorder.attached():
        make_private_dir(made)
    left = recorder.disk.forget(random.Random(1), names=0, data=0)
    assert [*left.nodes] == ["home", "home/swarm"]
    assert {stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent)} == {0o700}


def test_second_daemon_on_a_home_is_told_which_is_there(tmp_path: Path) -> None:
    path = tmp_path / "home" / "home.lock"
    with HomeLock(path):
        before = open_files()
        with pytest.raises(Refused, match=rf"another swarmnode \(pid {os.getpid()}\) already runs"):
            HomeLock(path)
        assert open_files() == before
        assert path.exists()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    HomeLock(path).close()


def test_a_lock_names_its_holder_alone_and_one_without_a_name_is_held_all_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "home.lock"
    path.write_text("9" * 40)
    with HomeLock(path) as lock:
        assert path.read_text() == f"{os.getpid()}\n"
        path.write_text(" \n")
        with pytest.raises(Refused, match=r"\(pid unknown\) already runs on this home"):
            HomeLock(path)
        lock.close()
        HomeLock(path).close()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "home.lock"
    hold = (
        "import sys, pathlib; from swarmnode.store.files import HomeLock\n"
        "lock = HomeLock(pathlib.Path(sys.argv[1])); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(files.__file__).parents[2],
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Refused, match=f"pid {holder.pid}"):
            HomeLock(path)
        holder.kill()
    HomeLock(path).close()


def test_lock_removes_what_a_crash_left_and_nothing_else(tmp_path: Path) -> None:
    old, recent = tmp_path / ".state.1.swarmnode-tmp", tmp_path / ".state.2.swarmnode-tmp"
    kept = tmp_path / ".state.swarmnode"
    for path in (old, recent, kept):
        path.write_text("")
    long_ago_s = recent.stat().st_mtime - STALE_TEMPORARY_S - 10
    os.utime(old, (long_ago_s, long_ago_s))
    os.utime(kept, (long_ago_s, long_ago_s))
    HomeLock(tmp_path / "home.lock").close()
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, recent.name, "home.lock"}


def test_a_temporary_file_that_its_writer_takes_away_meanwhile_does_not_stop_a_start(
    tmp_path: Path,
) -> None:
    stale = tmp_path / ".state.1.swarmnode-tmp"
    stale.touch()
    os.utime(stale, (0, 0))
    HomeLock(BusyPath(tmp_path / "home.lock")).close()
    assert not stale.exists()


def entries(path: Path) -> list[object]:
    return [entry["n"] for entry in read_history(path)]


def test_history_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    assert entries(path) == []
    for n in range(3):
        history = HistoryFile(path)
        history.append({"n": n})
        history.close()
    assert entries(path) == [0, 1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_last_entries_of_a_history_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    history = HistoryFile(path)
    assert history.last(100) == []
    for n in range(30):
        history.append({"n": n})
    line = len(b'{"n":29}\n')
    assert history.last(10**6) == [{"n": n} for n in range(30)]
    assert history.last(3 * line + 1) == [{"n": n} for n in (27, 28, 29)]
    with path.open("ab") as file:
        file.write(b'{"n": torn\n')
    again = HistoryFile(path)
    assert again.last(3 * line)[-1] == {"n": 29}
    history.close()
    again.close()


def test_history_stays_within_two_files(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    history = HistoryFile(path, bytes_max=100)
    for n in range(200):
        history.append({"n": n})
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 200
    history.close()
    kept = entries(path)
    assert kept == list(range(200 - len(kept), 200))
    assert len(kept) > 8
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_of_the_history_is_filled_to_its_last_byte_before_the_next_begins(
    tmp_path: Path,
) -> None:
    path, older = tmp_path / "exchanges.jsonl", tmp_path / "exchanges.jsonl.1"
    line = b'{"n":1}\n'
    for _ in range(2):  # the second finds what the first has left
        history = HistoryFile(path, bytes_max=2 * len(line))
        history.append({"n": 1})
        assert not older.exists()
        history.close()
        history.close()
    assert path.read_bytes() == 2 * line
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    history = HistoryFile(path, bytes_max=2 * len(line))
    history.append({"n": 2})
    assert (older.read_bytes(), path.read_bytes()) == (2 * line, b'{"n":2}\n')
    history.append({"n": 22})
    history.append({"n": 3, "why": "a line that is longer than a file may be has one of its own"})
    assert older.read_bytes() == b'{"n":22}\n'
    history.append({"n": 4})
    history.close()
    assert entries(path) == [3, 4]


def test_a_line_of_the_history_has_its_words_in_order_and_no_space(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    history = HistoryFile(path)
    history.append({"b": [1, "é"], "a": {"d": None, "c": 0.5}})
    history.close()
    assert path.read_bytes() == b'{"a":{"c":0.5,"d":null},"b":[1,"\\u00e9"]}\n'


def test_a_rotation_keeps_no_file_open(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "exchanges.jsonl", bytes_max=1)
    before = open_files()
    for n in range(3):
        history.append({"n": n})
    assert open_files() == before
    history.close()
    assert open_files() < before


@pytest.mark.parametrize("tail", [b'{"n": 9', b"\0" * 50, b"\xff\n[1]\n", b"[" * 10_000])
def test_history_passes_over_what_a_crash_left(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "exchanges.jsonl"
    path.write_bytes(b'{"n":1}\n' + tail)
    history = HistoryFile(path)
    history.append({"n": 2})
    history.close()
    assert entries(path) == [1, 2]


def test_full_disk_leaves_no_half_line_in_the_history(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "exchanges.jsonl"
    history = HistoryFile(path)
    history.append({"n": 1})
    disk.fail("write", 1, errno.ENOSPC, short=3)
    with pytest.raises(StorageFull, match="cannot append to"):
        history.append({"n": 2})
    disk.heal()
    history.append({"n": 3})
    history.close()
    assert path.read_bytes() == b'{"n":1}\n{"n":3}\n'


def test_history_goes_on_after_a_rotation_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exchanges.jsonl"
    history = HistoryFile(path, bytes_max=10)
    history.append({"n": 1})
    with monkeypatch.context() as full:
        full.setattr(os, "open", lambda *_: raise_os_error(errno.ENOSPC))
        for n in (2, 3):
            with pytest.raises(StorageFull):
                history.append({"n": n})
    history.append({"n": 4})
    history.close()
    assert entries(path) == [1, 4]


def raise_os_error(number: int) -> int:
    raise OSError(number, os.strerror(number))


def test_history_line_is_bounded(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "exchanges.jsonl")
    with pytest.raises(StorageError, match="a line has at most"):
        history.append({"n": "x" * HISTORY_LINE_BYTES_MAX})
    history.close()


def test_a_line_of_the_most_bytes_there_may_be_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    longest = "x" * (HISTORY_LINE_BYTES_MAX - len('{"n":""}\n'))
    history = HistoryFile(path)
    for n in (longest, "next"):
        history.append({"n": n})
    with pytest.raises(StorageError, match="a line has at most"):
        history.append({"n": longest + "x"})
    history.close()
    assert entries(path) == [longest, "next"]
