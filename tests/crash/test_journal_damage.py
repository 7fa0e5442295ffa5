"""Every truncation and every flipped bit of a small journal, and every call that can fail."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.errors import CorruptRecord, Refused, StorageError, StorageFull
from swarmnode.store.journal import (
    JOURNAL_RECORD_BYTES_MAX,
    JOURNAL_ROTATE_BYTES_MIN,
    Journal,
    JournalStatistics,
    Recovery,
)
from tests.conftest import ROOT, open_files
from tests.kits.disk_recorder import after_death
from tests.kits.other_system import BusyPath, failing, other_system

HEAD_BYTES = 16  # of the file, and of each record
PAYLOADS = (b"", b"one", bytes(range(40)), b"\xff" * 17)


def written(path: Path, payloads: tuple[bytes, ...] = PAYLOADS) -> bytes:
    with Journal(path) as journal:
        for payload in payloads:
            journal.append(payload)
        journal.sync()
    return path.read_bytes()


def ends_of_records(data: bytes) -> list[int]:
    """Return where the journal may end without a torn record."""
    ends = [16]
    for payload in PAYLOADS:
        ends.append(ends[-1] + 16 + len(payload))
    assert ends[-1] == len(data)
    return ends


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is not the point where thousands of journals are opened."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "home" / "journal"
    written(path)
    with Journal(path) as journal:
        assert journal.recovered.records == PAYLOADS
        assert journal.recovered.cut_bytes == 0
        assert journal.append(b"five") == 5
        assert journal.sync() == 5
    with Journal(path) as journal:
        assert journal.recovered.records == (*PAYLOADS, b"five")
        journal.let_go()
        assert journal.recovered.records == ()
        assert journal.append(b"six") == 6


def test_every_truncation_is_cut_to_the_last_whole_record(tmp_path: Path, no_fsync: None) -> None:
    path = tmp_path / "journal"
    data = written(path)
    ends = ends_of_records(data)
    for length in range(16, len(data)):
        path.write_bytes(data[:length])
        n_whole = max(i for i, end in enumerate(ends) if end <= length)
        with Journal(path) as journal:
            recovered = journal.recovered
            assert recovered.records == PAYLOADS[:n_whole]
            assert recovered.cut_bytes == length - ends[n_whole]
            journal.append(b"after")
            journal.sync()
        if recovered.cut_bytes:
            assert recovered.saved_as is not None
            assert recovered.saved_as.read_bytes() == data[ends[n_whole] : length]
        with Journal(path) as journal:
            assert journal.recovered.records == (*PAYLOADS[:n_whole], b"after")


def test_every_flipped_bit_is_found_and_nothing_is_guessed(tmp_path: Path, no_fsync: None) -> None:
    path = tmp_path / "journal"
    data = written(path)
    ends = ends_of_records(data)
    for bit in range(16 * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        n_whole = max(i for i, end in enumerate(ends) if end <= bit // 8)
        with Journal(path) as journal:
            assert journal.recovered.records == PAYLOADS[:n_whole]
            assert journal.recovered.reason
            assert journal.recovered.saved_as is not None
            assert journal.recovered.saved_as.read_bytes() == bytes(damaged[ends[n_whole] :])
    assert len(list(tmp_path.glob("journal.torn-*"))) == 3  # the last few only


def test_a_damaged_or_foreign_beginning_is_set_aside_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path)
    for bad in (b"", b"swarm", b"\x00" * 64, bytes([data[0] ^ 1]) + data[1:]):
        path.write_bytes(bad)
        with Journal(path) as journal:
            recovered = journal.recovered
            assert (recovered.records, recovered.cut_bytes) == ((), len(bad))
            assert "expected a journal of swarmnode" in recovered.reason
            assert recovered.saved_as is not None
            assert recovered.saved_as.read_bytes() == bad
            journal.append(b"after")
            journal.sync()
        with Journal(path) as journal:
            assert journal.recovered.records == (b"after",)


def test_what_is_set_aside_is_numbered_from_one_and_the_last_few_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = []
    for number in range(1, 8):
        path.write_bytes(b"%d" % number)
        with Journal(path) as journal:
            saved_as = journal.recovered.saved_as
        assert saved_as == tmp_path / f"journal.torn-{number}"
        kept.append(saved_as)
    left = [each for each in kept if each.exists()]
    assert left == kept[-len(left) :]
    assert 1 < len(left) < len(kept)


def test_zeros_after_a_power_failure_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path)
    path.write_bytes(data + bytes(4096))
    with Journal(path) as journal:
        assert journal.recovered.records == PAYLOADS
        assert journal.recovered.cut_bytes == 4096


def test_a_record_of_an_older_generation_does_not_follow(tmp_path: Path) -> None:
    """Valid bytes in the wrong place: the sequence says so."""
    path = tmp_path / "journal"
    data = written(path)
    path.write_bytes(data + data[16:32])
    with Journal(path) as journal:
        assert journal.recovered.records == PAYLOADS
        assert journal.recovered.reason == "record 1 where 5 was expected"


def test_rotation_replaces_the_history(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for _ in range(300):
            journal.append(bytes(4096))
        assert journal.needs_rotation(1000)
        journal.rotate([b"snapshot", b"tail"])
        assert not journal.needs_rotation(1000)
        assert journal.append(b"next") == 3
        journal.sync()
        assert journal.statistics().rotations_total == 1
    with Journal(path) as journal:
        assert journal.recovered.records == (b"snapshot", b"tail", b"next")


def test_bounds_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        with pytest.raises(StorageError, match="at most 65536 bytes"):
            journal.append(bytes(JOURNAL_RECORD_BYTES_MAX + 1))
        monkeypatch.setattr(limits, "JOURNAL_BYTES_MAX", 1000)
        journal.append(bytes(900))
        with pytest.raises(StorageError, match="at most 1000 bytes: it must be rotated"):
            journal.append(bytes(1000 - 900 - 3 * HEAD_BYTES + 1))
        journal.append(bytes(1000 - 900 - 3 * HEAD_BYTES))
        assert journal.statistics().size_bytes == 1000
        with pytest.raises(StorageError, match="a snapshot of"):
            journal.rotate([bytes(900), bytes(100)])
        journal.sync()
        with Journal(tmp_path / "full") as full:
            full.rotate([bytes(1000 - 2 * HEAD_BYTES)])
            with pytest.raises(StorageError, match="a snapshot of 1001 bytes, at most 1000"):
                full.rotate([bytes(1000 - 2 * HEAD_BYTES + 1)])
    with Journal(path) as journal:
        assert journal.recovered.records == (bytes(900), bytes(1000 - 900 - 3 * HEAD_BYTES))
    path.write_bytes(path.read_bytes() + bytes(1000))
    with pytest.raises(CorruptRecord, match="larger"):
        Journal(path)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = "import pathlib, swarmnode.store.journal as j; "
    code += f"j.Journal(pathlib.Path({str(path)!r}))"
    with Journal(path), pytest.raises(Refused, match="another process has the journal"):
        Journal(path)
    with Journal(path):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Refused: another process has the journal" in done.stderr


class Faults:
    """Makes the n-th of the named calls fail, and every later one if it ``lasts``."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, nth: int, code: int) -> None:
        self.calls = 0
        self._real: Callable[..., object] = getattr(os, name)
        self._nth, self._code = nth, code
        patch.setattr(os, name, self._call)

    def _call(self, *arguments: object, **options: object) -> object:
        self.calls += 1
        if self.calls == self._nth:
            raise OSError(self._code, os.strerror(self._code))
        return self._real(*arguments, **options)


def workload(path: Path) -> int:
    """Append, sync and rotate, whatever fails; return the last acknowledged counter."""
    acknowledged = appended = 0
    try:
        with Journal(path) as journal:
            for step in range(1, 9):
                try:
                    journal.append(b"%d" % (appended + 1))
                    appended += 1
                    if step == 5:
                        journal.rotate([b"%d" % i for i in range(1, appended + 1)])
                    elif step % 2:
                        journal.sync()
                    else:
                        continue
                    acknowledged = appended
                except StorageError:
                    continue
    except StorageError:
        pass
    return acknowledged


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "open", "ftruncate"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_whatever_call_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    nth, acknowledged_ever = 0, set()
    while True:
        nth += 1
        path = tmp_path / f"{name}-{nth}" / "journal"
        with monkeypatch.context() as patch:
            faults = Faults(patch, name, nth, code)
            acknowledged = workload(path)
        acknowledged_ever.add(acknowledged)
        with Journal(path) as journal:
            counters = [int(payload) for payload in journal.recovered.records]
        assert counters == list(range(1, len(counters) + 1))
        assert len(counters) >= acknowledged
        if faults.calls < nth:
            break  # it was not called that often: all were tried
    assert max(acknowledged_ever) == 7


def test_a_full_disk_takes_the_half_record_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    real_write = os.write
    with Journal(path) as journal:
        journal.append(b"before")

        def half(fd: int, data: memoryview) -> int:
            if len(data) < 40:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real_write(fd, bytes(data)[: len(data) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(StorageFull, match="no space is left"):
                journal.append(bytes(100))
        journal.append(b"after")
        journal.sync()
    with Journal(path) as journal:
        assert journal.recovered.records == (b"before", b"after")


def test_a_failed_fsync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.append(b"one")
        with monkeypatch.context() as patch:
            Faults(patch, "fsync", 1, errno.EIO)
            with pytest.raises(StorageError):
                journal.sync()
        for use in (lambda: journal.append(b"two"), journal.sync, lambda: journal.rotate([])):
            with pytest.raises(StorageError, match="restart to read what is there"):
                use()


def test_a_prefix_is_read_whatever_follows_it(tmp_path: Path, no_fsync: None) -> None:
    """Whatever follows a valid prefix, its records are those of the prefix or continue them."""
    prefix = written(tmp_path / "one", (b"x",))
    second = written(tmp_path / "two", (b"x", b"y"))[len(prefix) :]
    path = tmp_path / "journal"
    for tail in (b"", b"\x00", bytes(16), b"\xff" * 64, second[:-1]):
        path.write_bytes(prefix + tail)
        with Journal(path) as journal:
            assert journal.recovered.records == (b"x",)
            assert journal.recovered.cut_bytes == len(tail)
        assert path.read_bytes() == prefix


def test_a_record_of_the_most_bytes_there_may_be_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    payloads = (bytes(JOURNAL_RECORD_BYTES_MAX), b"the next")
    written(path, payloads)
    with Journal(path) as journal:
        assert journal.recovered.records == payloads


@pytest.mark.parametrize("nth", range(1, 40))
def test_what_is_appended_to_a_journal_that_a_killed_process_made_survives_a_power_failure(
    nth: int, tmp_path: Path
) -> None:
    path, left = tmp_path / "home" / "swarm" / "journal", tmp_path / "left"
    left.mkdir()
    recorder = after_death(tmp_path / "home", nth, lambda: written(path, (b"of the first",)))
    with recorder.attached(), Journal(path) as journal:
        found = journal.recovered.records
        journal.append(b"of the second")
        journal.sync()
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    with Journal(left / "swarm" / "journal") as journal:
        assert journal.recovered.records == (*found, b"of the second")


def test_what_was_found_when_a_journal_was_opened_survives_a_power_failure(tmp_path: Path) -> None:
    """A killed process had appended it, and it was in the memory of the kernel only."""
    path, left = tmp_path / "home" / "journal", tmp_path / "left"
    left.mkdir()

    def append() -> None:
        with Journal(path) as journal:
            journal.append(b"not synced")

    recorder = after_death(tmp_path / "home", 10**6, append)
    with recorder.attached(), Journal(path) as journal:
        assert journal.recovered.records == (b"not synced",)
        assert journal.statistics().synced_records == 1
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    with Journal(left / "journal") as journal:
        assert journal.recovered.records == (b"not synced",)


# --- to the byte ----------------------------------------------------------------------------------


def test_what_a_journal_holds_and_what_of_it_is_durable_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        assert journal.recovered == Recovery(())
        assert journal.statistics() == JournalStatistics(HEAD_BYTES, 0, 0, 0)
        assert [journal.append(payload) for payload in (b"one", b"")] == [1, 2]
        size_bytes = HEAD_BYTES + 2 * HEAD_BYTES + 3
        assert journal.statistics() == JournalStatistics(size_bytes, 2, 0, 0)
        assert journal.sync() == 2
        assert journal.statistics() == JournalStatistics(size_bytes, 2, 2, 0)
        assert path.stat().st_size == size_bytes
        for n_rotations in (1, 2):
            journal.rotate([b"snapshot"])
            rotated = JournalStatistics(2 * HEAD_BYTES + 8, 1, 1, n_rotations)
            assert journal.statistics() == rotated
        assert journal.append(b"") == 2
    with Journal(path) as journal:
        assert journal.recovered == Recovery((b"snapshot", b""))
        assert journal.statistics() == JournalStatistics(3 * HEAD_BYTES + 8, 2, 2, 0)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"x", "the file ends within a header"),
        (b"x" * (HEAD_BYTES - 1), "the file ends within a header"),
        (struct.pack("<IQI", JOURNAL_RECORD_BYTES_MAX + 1, 2, 0), "a record of 65537 bytes"),
        (struct.pack("<IQI", JOURNAL_RECORD_BYTES_MAX, 2, 0), "the file ends within a record"),
        (struct.pack("<IQI", 1, 2, 0), "the file ends within a record"),
        (struct.pack("<IQI", 1, 2, 0) + b"x", "the checksum of record 2 is wrong"),
        (struct.pack("<IQI", 0, 2, 0), "the checksum of record 2 is wrong"),
    ],
)
def test_it_is_said_what_is_wrong_with_the_record_that_ends_a_journal(
    tail: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    whole = written(path, (b"one",))
    path.write_bytes(whole + tail)
    with Journal(path) as journal:
        saved_as = tmp_path / "journal.torn-1"
        assert journal.recovered == Recovery((b"one",), len(tail), saved_as, reason)
        assert journal.statistics() == JournalStatistics(len(whole), 1, 1, 0)
        assert saved_as.read_bytes() == tail
    assert path.read_bytes() == whole


def test_a_journal_is_laid_out_as_it_is_said(tmp_path: Path) -> None:
    head = struct.pack("<IQ", 3, 1)
    record = head + struct.pack("<I", zlib.crc32(head + b"one")) + b"one"
    assert written(tmp_path / "journal", (b"one",)) == b"swarmnode-jrnl\x01\n" + record


@pytest.mark.parametrize("n_tails", range(1, 6))
def test_the_last_three_tails_are_kept(n_tails: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for number in range(1, n_tails + 1):
        path.write_bytes(b"%d" % number)
        Journal(path).close()
    kept = {each.name: each.read_bytes() for each in tmp_path.glob("journal.torn-*")}
    first = max(1, n_tails - 2)
    assert kept == {f"journal.torn-{n}": b"%d" % n for n in range(first, n_tails + 1)}


def test_a_tail_that_a_person_takes_away_meanwhile_does_not_stop_a_start(tmp_path: Path) -> None:
    for number in range(1, 4):
        (tmp_path / f"journal.torn-{number}").touch()
    (tmp_path / "journal").write_bytes(b"")
    Journal(BusyPath(tmp_path / "journal")).close()
    kept = {each.name for each in tmp_path.glob("journal.torn-*")}
    assert kept == {f"journal.torn-{number}" for number in (2, 3, 4)}


def test_tails_are_numbered_on_from_the_greatest_number(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    (tmp_path / "journal.torn-mine").touch()
    for there, number in (("journal.torn-mine", 1), ("journal.torn-9", 10), ("journal.torn-5", 11)):
        (tmp_path / there).touch()
        path.write_bytes(b"")
        with Journal(path) as journal:
            assert journal.recovered.saved_as == tmp_path / f"journal.torn-{number}"


def test_a_journal_is_rotated_when_it_has_grown_to_four_snapshots_and_is_worth_it(
    tmp_path: Path,
) -> None:
    with Journal(tmp_path / "journal") as journal:
        records = [bytes(JOURNAL_RECORD_BYTES_MAX - HEAD_BYTES)] * 16
        records[0] = records[0][HEAD_BYTES:]
        for payload in records:
            journal.append(payload)
        assert journal.statistics().size_bytes == JOURNAL_ROTATE_BYTES_MIN
        assert not journal.needs_rotation(0)
        journal.append(b"")
        assert journal.needs_rotation(0)
        size_bytes = journal.statistics().size_bytes
        assert size_bytes % 4 == 0
        assert not journal.needs_rotation(size_bytes // 4)
        assert journal.needs_rotation(size_bytes // 4 - 1)


def test_a_journal_whose_tail_was_cut_off_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = written(path)
    before = open_files()
    path.write_bytes(whole + b"torn")
    Journal(path).close()
    assert open_files() == before


def test_a_journal_that_was_closed_takes_nothing_and_is_no_failed_disk(tmp_path: Path) -> None:
    path = tmp_path / "home" / "journal"
    before = open_files()
    journal = Journal(path)
    for _ in range(2):
        journal.close()
    assert open_files() == before
    for use in (lambda: journal.append(b""), journal.sync, lambda: journal.rotate([])):
        with pytest.raises(StorageError, match=r"the journal is closed$"):
            use()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {"journal": 0o600, "journal.lock": 0o600}


def test_a_journal_that_cannot_be_opened_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).close()
    before = open_files()
    with Journal(path):
        during = open_files()
        with pytest.raises(Refused):
            Journal(path)
        assert open_files() == during
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError):
        Journal(path)
    assert open_files() == before


@pytest.mark.parametrize(("nth", "goes_on"), [(1, True), (2, False)])
def test_a_rotation_that_fails_leaves_the_old_generation_or_none_to_append_to(
    nth: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first fsync is of the new file, the second of its name."""
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.append(b"old")
        journal.sync()
        with monkeypatch.context() as patch:
            Faults(patch, "fsync", nth, errno.EIO)
            with pytest.raises(StorageError):
                journal.rotate([b"new"])
        assert journal.statistics().rotations_total == 0
        if goes_on:
            assert journal.append(b"next") == 2
            journal.sync()
        else:
            with pytest.raises(StorageError, match="restart to read what is there"):
                journal.append(b"next")
    with Journal(path) as journal:
        assert journal.recovered.records == ((b"old", b"next") if goes_on else (b"new",))


def test_a_new_generation_that_cannot_be_opened_is_the_end_and_keeps_no_file_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        before = open_files()
        with other_system(fstat=failing(errno.EIO)), pytest.raises(StorageError, match="open"):
            journal.rotate([b"new"])
        assert open_files() == before
        with pytest.raises(StorageError, match="restart to read what is there"):
            journal.sync()
    with Journal(path) as journal:
        assert journal.recovered.records == (b"new",)


def test_a_rotation_leaves_no_file_open(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        before = open_files()
        for _ in range(2):
            journal.rotate([b"snapshot"])
        assert open_files() == before


def test_a_half_record_that_cannot_be_taken_back_is_the_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.append(b"one")
        journal.sync()
        with (
            other_system(write=failing(errno.ENOSPC), ftruncate=failing(errno.EIO)),
            pytest.raises(StorageFull),
        ):
            journal.append(b"two")
        with pytest.raises(StorageError, match="restart to read what is there"):
            journal.append(b"two")
    with Journal(path) as journal:
        assert journal.recovered == Recovery((b"one",))


def test_what_was_not_synced_when_an_fsync_failed_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.append(b"one")
        journal.sync()
        journal.append(b"two")
        with monkeypatch.context() as patch:
            Faults(patch, "fsync", 1, errno.EIO)
            with pytest.raises(StorageError, match="cannot sync"):
                journal.sync()
        assert journal.statistics().synced_records == 1
    with Journal(path) as journal:
        assert journal.recovered == Recovery((b"one",))
