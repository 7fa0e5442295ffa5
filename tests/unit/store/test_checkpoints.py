"""Snapshots as a keeper sees them: any bit that flips is noticed, and it is known where."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from swarmnode import limits
from swarmnode.errors import CorruptRecord, StorageError
from swarmnode.store.checkpoints import (
    CheckpointInfo,
    has_fresh,
    newest,
    set_aside,
    verify_checkpoint,
)
from swarmnode.tensor import snapshot_format
from swarmnode.tensor.snapshot_format import About, encode_header, lay_out
from swarmnode.worker.snapshots.tensorfile import write_tensors

LAYOUT_HASH = hashlib.sha256(b"layout").hexdigest()
ABOUT = About(
    task="synthetic", task_version=1, task_config={}, layout_hash=LAYOUT_HASH, step=7, tokens=56
)
TENSORS = {
    "model/weight": torch.arange(6.0).reshape(2, 3),
    "optimizer/weight/exp_avg": torch.full((2, 3), 0.5, dtype=torch.bfloat16),
    "strategy/rounds": torch.tensor([3, 4]),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot-000000000007.safetensors"
    write_tensors(path, TENSORS, ABOUT)
    return path


def test_a_good_one_says_what_it_is(path: Path) -> None:
    assert verify_checkpoint(path) == CheckpointInfo(
        step=7,
        tokens=56,
        task="synthetic",
        layout_hash=bytes.fromhex(LAYOUT_HASH),
        n_tensors=3,
        size_bytes=path.stat().st_size,
    )


def test_a_flipped_bit_is_noticed_in_every_byte_and_its_place_named(path: Path) -> None:
    good = path.read_bytes()
    data_begin = 8 + int.from_bytes(good[:8], "little")
    shapes = {"strategy/rounds": ("I64", [2]), "model/weight": ("F32", [2, 3])}
    shapes["optimizer/weight/exp_avg"] = ("BF16", [2, 3])
    place = ["its header|does not begin|says that its header"] * data_begin
    for entry in lay_out(shapes):
        place += [f"tensor {entry.name} is not what"] * (entry.end - entry.begin)
    assert len(place) == len(good)
    for at, where in enumerate(place):
        flip(path, at)
        with pytest.raises(CorruptRecord, match=f"{path} is damaged: .*({where})"):
            verify_checkpoint(path)
        flip(path, at)
    verify_checkpoint(path)


def flip(path: Path, at: int) -> None:
    """Flip one bit of one byte, another bit in each byte."""
    with path.open("r+b") as file:
        file.seek(at)
        octet = file.read(1)[0]
        file.seek(at)
        file.write(bytes([octet ^ 1 << at % 8]))


def test_every_length_but_the_right_one_is_noticed(path: Path) -> None:
    good = path.read_bytes()
    for size_bytes in [*range(0, len(good), 7), len(good) - 1]:
        path.write_bytes(good[:size_bytes])
        with pytest.raises(CorruptRecord):
            verify_checkpoint(path)
    path.write_bytes(good + b"x")
    with pytest.raises(CorruptRecord, match=rf"expected {len(good)} bytes, found {len(good) + 1}"):
        verify_checkpoint(path)


def test_tensors_longer_than_a_piece_are_checked_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_PIECE_BYTES", 10)
    assert verify_checkpoint(path).n_tensors == 3
    flip(path, path.stat().st_size - 1)
    with pytest.raises(CorruptRecord, match="tensor optimizer/weight/exp_avg"):
        verify_checkpoint(path)


def forged(path: Path, change: dict[str, object]) -> Path:
    """Write a file whose header hash is right, as whoever makes one up can."""
    entries = lay_out({"model/a": ("F32", [2]), "model/b": ("U8", [2])})
    hashes = {"model/a": hashlib.sha256(bytes(8)).hexdigest()}
    hashes["model/b"] = hashlib.sha256(bytes(2)).hexdigest()
    first = msgspec.structs.asdict(ABOUT) | {"hashes": hashes}
    entry = {"name": "model/a", "dtype": "F32", "shape": (2,), "begin": 0, "end": 8}
    first |= {key: value for key, value in change.items() if key in first}
    entry |= {key: value for key, value in change.items() if key in entry}
    header = encode_header([snapshot_format.Entry(**entry), entries[1]], About(**first))  # type: ignore[arg-type]
    path.write_bytes(header + bytes(10))
    return path


def test_the_forged_file_is_good_but_for_what_is_changed(path: Path) -> None:
    assert verify_checkpoint(forged(path, {})).n_tensors == 2


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F31"},
        {"shape": (3,)},
        {"shape": (-2,)},
        {"shape": (2**62, 2**62)},
        {"shape": (1,) * 65},
        {"shape": (2**61,) * 64},
        {"begin": 1},
        {"begin": -8, "end": 0},
        {"end": 2**62 - 1},
        {"begin": 8, "end": 0},
        {"name": "model/c"},
        {"hashes": {}},
        {"layout_hash": "not hex"},
        {"step": -1},
        {"step": 10**12},
        {"tokens": 1.5},
        {"task": None},
    ],
    ids=repr,
)
def test_a_forged_header_is_refused(path: Path, change: dict[str, object]) -> None:
    with pytest.raises(CorruptRecord, match="its header"):
        verify_checkpoint(forged(path, change))


@pytest.mark.parametrize("text", [b"{}", b"[" * 100_000, b'{"__metadata__":1}', b"\xff" * 99])
def test_nonsense_is_refused(path: Path, text: bytes) -> None:
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CorruptRecord):
        verify_checkpoint(path)
    prefix = b'{"__metadata__":{"header_sha256":"'
    zeros = b"0" * 64
    length = (len(prefix) + 64 + len(text)).to_bytes(8, "little")
    digits = hashlib.sha256(length + prefix + zeros + text).hexdigest().encode()
    path.write_bytes(length + prefix + digits + text)
    with pytest.raises(CorruptRecord, match="its header is none of ours"):
        verify_checkpoint(path)


def test_a_header_of_gigabytes_is_not_read(path: Path) -> None:
    path.write_bytes((2**40).to_bytes(8, "little"))
    with pytest.raises(CorruptRecord, match="says that its header has 1099511627776"):
        verify_checkpoint(path)
    names = {f"{n:0900d}": ("U8", [0]) for n in range(20_000)}
    with pytest.raises(StorageError, match="the model has too many tensors"):
        encode_header(lay_out(names), ABOUT)


def test_the_bytes_of_the_format_do_not_change(path: Path) -> None:
    """Another implementation, or an older node, has written it: change the version, not this."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == "0b93cee46631bb0f5a279172967a5e5a785cd15601423f9df6d665dec8b36305"


def test_snapshots_are_found_newest_first(path: Path) -> None:
    folder = path.parent
    assert newest(folder / "none") == []
    fetched = path.with_name(snapshot_format.FETCHED_NAME)
    for other in (
        fetched,
        path.with_name("snapshot-7.safetensors"),
        folder / "damaged.safetensors",
    ):
        other.touch()
    path.with_suffix(".tmp").touch()
    assert newest(folder) == [(7, path), (0, fetched)]


def test_a_snapshot_is_fresh_for_a_while(path: Path) -> None:
    written = path.stat().st_mtime
    older = path.with_name("snapshot-000000000006.safetensors")
    older.write_bytes(path.read_bytes())
    os.utime(older, (0.0, 0.0))
    assert has_fresh(path.parent, written + limits.SNAPSHOT_STALE_S - 1)
    assert not has_fresh(path.parent, written + limits.SNAPSHOT_STALE_S)
    assert not has_fresh(path.parent / "none", written)


def test_what_is_set_aside_last_is_what_a_person_finds(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    set_aside(folder)  # there is nothing
    for content in ("first", "second"):
        folder.mkdir()
        (folder / "file").write_text(content)
        set_aside(folder)
        assert not folder.exists()
    assert (tmp_path / "snapshots-aside" / "file").read_text() == "second"


def test_what_is_gone_is_no_corruption(path: Path) -> None:
    path.unlink()
    with pytest.raises(StorageError, match=r"cannot read .*No such file") as raised:
        verify_checkpoint(path)
    assert not isinstance(raised.value, CorruptRecord)


def test_a_keeper_needs_no_torch(path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from swarmnode.store.checkpoints import verify_checkpoint\n"
        f"print(verify_checkpoint(Path({str(path)!r})).step)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"
