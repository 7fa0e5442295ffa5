from __future__ import annotations

import errno
import os
import random
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError, CorruptRecord, StorageError
from swarmnode.protocol.identity import Identity
from swarmnode.store import keys
from swarmnode.store.files import write_new
from swarmnode.store.keys import (
    load_identity,
    load_or_create_identity,
    next_boot_epoch,
    skip_boot_epochs,
)
from tests.kits.disk_recorder import after_death


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "home" / "node.key"
    made = load_or_create_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again = load_or_create_identity(path)
    assert (again.peer_id, again.seed()) == (made.peer_id, made.seed())


def test_file_format_is_fixed(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    path.write_text(
        "swarmnode ed25519 key v1\n"
        "seed aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq\n"
        "id sn1kzdvvj2umnduyauf35o36k6kw462mujvra46tn3uqgzovmihocga\n"
    )
    path.chmod(0o600)
    identity = Identity.from_seed(bytes(range(32)))
    assert keys._encode_key(identity) == path.read_bytes()
    assert load_identity(path).peer_id == identity.peer_id


def test_missing_key_is_not_made_by_loading(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_identity(tmp_path / "swarm.key")
    assert list(tmp_path.iterdir()) == []


def test_of_two_first_starts_both_get_the_stored_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.key"
    winner = Identity.generate()

    def other_is_first(target: Path, data: bytes) -> bool:
        assert write_new(target, keys._encode_key(winner))
        return write_new(target, data)

    monkeypatch.setattr(keys, "write_new", other_is_first)
    assert load_or_create_identity(path).peer_id == winner.peer_id


@pytest.mark.parametrize("nth", range(1, 30))
def test_a_key_that_is_used_survives_a_power_failure_whatever_made_it(
    nth: int, tmp_path: Path
) -> None:
    """Its maker may have been killed before it could see to that."""
    path, left = tmp_path / "home" / "node" / "key", tmp_path / "left"
    left.mkdir()
    recorder = after_death(tmp_path / "home", nth, lambda: load_or_create_identity(path))
    with recorder.attached():
        used = load_or_create_identity(path)
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    assert load_identity(left / "node" / "key").peer_id == used.peer_id


def test_open_permissions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    load_or_create_identity(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"mode 0644.*chmod 600 {path}"):
        load_or_create_identity(path)


def test_every_damaged_byte_is_noticed_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    load_or_create_identity(path)
    good = path.read_bytes()
    seed = good.split()[5]
    for at in range(len(good) - 1):  # all but the last line's end
        for damaged in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ConfigError, match="is damaged") as caught:
                load_or_create_identity(path)
            assert seed.decode() not in str(caught.value)
            assert path.read_bytes() == damaged


def test_full_disk_makes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError):
        load_or_create_identity(tmp_path / "node.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: [], "expected 'swarmnode ed25519 key v1' in its first line"),
        (lambda lines: ["swarmnode ed25519 key v2", *lines[1:]], "in its first line"),
        (lambda lines: lines[:2], "expected a 'seed' line and an 'id' line after it"),
        (lambda lines: [*lines, "more"], "expected a 'seed' line and an 'id' line after it"),
        (lambda lines: [lines[0], lines[2], lines[1]], "expected a 'seed' line and an 'id' line"),
        (lambda lines: [*lines[:2], lines[2][3:]], "expected a 'seed' line and an 'id' line"),
        (lambda lines: [lines[0], lines[1][5:], lines[2]], "expected a 'seed' line"),
        (lambda lines: [lines[0], "seed 1", lines[2]], "its seed is not base32"),
        (lambda lines: [lines[0], "seed ", lines[2]], "its seed has 0 bytes instead of 32"),
        (lambda lines: [lines[0], f"seed {'a' * 50}", lines[2]], "its seed has 31 bytes"),
        (lambda lines: [lines[0], f"seed {'a' * 53}", lines[2]], "its seed has 33 bytes"),
        (lambda lines: [*lines[:2], f"{lines[2]}a"], "do not belong together"),
    ],
)
def test_a_damaged_key_says_what_was_expected(
    change: Callable[[list[str]], list[str]], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "node.key"
    made = load_or_create_identity(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["", *change(lines)]).removeprefix("\n"))
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_identity(path)
    path.write_text("\n".join(lines))  # an editor may drop the last line's end
    assert load_identity(path).peer_id == made.peer_id


def test_a_key_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    made = load_or_create_identity(path)
    whole = path.read_bytes()
    path.write_bytes(whole.rstrip().ljust(limits.KEY_FILE_BYTES_MAX))
    assert load_identity(path).peer_id == made.peer_id
    path.write_bytes(whole.rstrip().ljust(limits.KEY_FILE_BYTES_MAX + 1))
    with pytest.raises(CorruptRecord, match="at most"):
        load_identity(path)


def test_a_home_that_others_may_have_gone_on_with_skips_what_they_may_have_used(
    tmp_path: Path,
) -> None:
    path = tmp_path / "boot_epoch"
    previous = path.with_name("boot_epoch.previous")
    skip_boot_epochs(path, 7)
    assert next_boot_epoch(path) > 7
    used = next_boot_epoch(path)
    skip_boot_epochs(path, 2)
    assert next_boot_epoch(path) > used
    used = next_boot_epoch(path)
    path.write_bytes(b"junk")
    skip_boot_epochs(path, 2)
    assert next_boot_epoch(path) > used
    path.write_bytes(b"junk")
    previous.write_bytes(b"junk")
    skip_boot_epochs(path, 100)
    assert next_boot_epoch(path) > 100


def test_each_copy_of_the_epoch_is_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "boot_epoch"
    previous = path.with_name("boot_epoch.previous")
    assert next_boot_epoch(path) == 1
    assert (path.read_bytes(), previous.read_bytes()) == (b"1 83dcefb7\n", b"0 f4dbdf21\n")
    for damaged in (b"0 f4dbdf21", b"00 f4dbdf21\n", b"0 f4dbdf22\n", b"-1 f4dbdf21\n", b" \n"):
        path.write_bytes(damaged)
        previous.write_bytes(b"0 f4dbdf21\n")
        assert next_boot_epoch(path) == 2, "one more than the copy may have been used"
        path.write_bytes(damaged)
        previous.unlink()
        with pytest.raises(CorruptRecord, match="both damaged") as caught:
            next_boot_epoch(path)
        assert caught.value.path == str(path)
        path.unlink()
        previous.write_bytes(damaged)
        with pytest.raises(CorruptRecord, match="both damaged"):
            next_boot_epoch(path)


def test_epoch_grows_by_one(tmp_path: Path) -> None:
    assert [next_boot_epoch(tmp_path / "boot_epoch") for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", [b"", b"9", b"9 00000000\n", b"\0" * 12, b"1" * 5000])
@pytest.mark.parametrize("n_before", [1, 2, 5])
def test_torn_epoch_never_repeats(tmp_path: Path, damage: bytes, n_before: int) -> None:
    path = tmp_path / "boot_epoch"
    used = [next_boot_epoch(path) for _ in range(n_before)]
    path.write_bytes(damage)
    for _ in range(3):
        epoch = next_boot_epoch(path)
        assert epoch > used[-1]
        used.append(epoch)


def test_lost_epoch_file_never_repeats(tmp_path: Path) -> None:
    path = tmp_path / "boot_epoch"
    last = [next_boot_epoch(path) for _ in range(3)][-1]
    path.unlink()
    assert next_boot_epoch(path) > last


def test_torn_previous_copy_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "boot_epoch"
    next_boot_epoch(path)
    path.with_name("boot_epoch.previous").write_bytes(b"junk")
    assert next_boot_epoch(path) == 2


def test_epoch_never_repeats_whichever_write_a_crash_cuts_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "boot_epoch"
    last = next_boot_epoch(path)
    real_fsync = os.fsync
    for nth in range(1, 5):  # two files, each synced with its directory
        n_calls = 0

        def crash(fd: int, nth: int = nth) -> None:
            nonlocal n_calls
            n_calls += 1
            if n_calls == nth:
                raise OSError(errno.EIO, "cut off")
            real_fsync(fd)

        monkeypatch.setattr(os, "fsync", crash)
        with pytest.raises(StorageError):
            next_boot_epoch(path)
        monkeypatch.setattr(os, "fsync", real_fsync)
        epoch = next_boot_epoch(path)
        assert epoch > last
        last = epoch


def test_both_copies_damaged_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "boot_epoch"
    path.write_bytes(b"junk")
    with pytest.raises(CorruptRecord, match="both damaged"):
        next_boot_epoch(path)
