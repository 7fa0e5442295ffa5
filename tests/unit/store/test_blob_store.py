"""Blobs on disk: what is kept, what is refused, what is found rotten."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from swarmnode import limits
from swarmnode.errors import CorruptRecord, MalformedMessage, Refused, StorageError, StorageFull
from swarmnode.protocol.blobs.merkle import (
    MerkleTree,
    blob_name,
    check_manifest,
    is_in_blob,
    leaf_hash,
    leaf_hashes,
)
from swarmnode.store.blobs import Blob, BlobStore
from swarmnode.store.shelf import NotHere, Shelf, Threads
from swarmnode.wire.blobs import BlobManifest
from tests.conftest import open_files
from tests.kits.disk_recorder import Recorder
from tests.kits.other_system import failing, other_system

CHUNK_BYTES = 100
SOURCE = random.Random(1).randbytes(5 * CHUNK_BYTES - 30)
CHUNKS = [SOURCE[i : i + CHUNK_BYTES] for i in range(0, len(SOURCE), CHUNK_BYTES)]
TREE = MerkleTree([leaf_hash(chunk) for chunk in CHUNKS])
MANIFEST = BlobManifest(len(SOURCE), CHUNK_BYTES, TREE.root)
NAME = blob_name(MANIFEST)
T = TypeVar("T")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def store(folder: Path) -> BlobStore:
    return BlobStore(folder, bytes_max=10 * len(SOURCE))


def put(blob: Blob, *indices: int) -> None:
    for index in indices:
        blob.write(index, CHUNKS[index], leaf_hash(CHUNKS[index]), TREE.proof(index))


def read(blob: Blob, *indices: int) -> list[tuple[bytes, tuple[bytes, ...]]]:
    chunks = [blob.read(index) for index in indices]
    return [(bytes(chunk), proof) for chunk, proof in chunks]


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    with path.open("r+b") as file:
        file.write(data)


def test_a_blob_is_one_file_once_it_is_complete(store: BlobStore) -> None:
    with store.begin(MANIFEST) as blob:
        assert blob.stored == frozenset()
        put(blob, 3, 0, 4, 1)
        assert blob.have() == bytes([0b11011])
        assert not blob.is_complete
        with pytest.raises(StorageError, match="1 of 5 chunks are missing"):
            blob.complete()
        put(blob, 2)
        blob.complete()
        blob.complete()
        assert blob.path.read_bytes() == SOURCE
    assert store.names() == [NAME]
    assert store.size_bytes() == len(SOURCE)


def test_a_partial_blob_is_kept_and_can_be_served_from(store: BlobStore) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, 4, 2)
    again = store.open(NAME)
    assert again is not None
    with again:
        assert again.stored == {2, 4}
        for index in (2, 4):
            chunk, proof = again.read(index)
            assert chunk == CHUNKS[index]
            assert is_in_blob(MANIFEST, index, leaf_hash(chunk), proof)
        with pytest.raises(KeyError):
            again.read(0)


def test_what_is_kept_of_a_blob_is_for_its_owner_alone(store: BlobStore, folder: Path) -> None:
    with store.begin(MANIFEST) as blob:
        for name, chunks in (("part", (0,)), ("data", (1, 2, 3, 4))):
            put(blob, *chunks)
            if name == "data":
                blob.complete()
            kept = list((folder / NAME.hex()).iterdir())
            assert {path.name for path in kept} == {"manifest", "proofs", name}
            assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


def test_a_chunk_that_does_not_belong_is_not_written(store: BlobStore, folder: Path) -> None:
    with store.begin(MANIFEST) as blob:
        leaf, proof = leaf_hash(CHUNKS[1]), TREE.proof(1)
        for index, chunk, wrong_leaf in (
            (0, CHUNKS[1], leaf),
            (1, CHUNKS[1][:-1], leaf),
            (1, CHUNKS[1], leaf_hash(CHUNKS[0])),
        ):
            with pytest.raises(CorruptRecord, match=f"chunk {index} does not belong"):
                blob.write(index, chunk, wrong_leaf, proof)
        assert blob.stored == frozenset()
    assert (folder / NAME.hex() / "part").read_bytes() == bytes(len(SOURCE))


@pytest.mark.parametrize("file", ["part", "proofs"])
def test_a_flipped_bit_in_a_partial_blob_costs_that_chunk_only(
    store: BlobStore, folder: Path, file: str
) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, 0, 1, 2)
    slot_bytes = 32 * 4 + 16
    flip_bit(folder / NAME.hex() / file, CHUNK_BYTES + 5 if file == "part" else slot_bytes)
    with store.begin(MANIFEST) as blob:
        assert blob.stored == {0, 2}


def test_what_rots_in_a_complete_blob_is_named_and_can_be_healed(store: BlobStore) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        blob.complete()
        flip_bit(blob.path, 3 * CHUNK_BYTES)
        assert blob.read(2)[0] == CHUNKS[2]
        with pytest.raises(CorruptRecord, match="chunk 3 is not what was written"):
            blob.read(3)
        assert blob.stored == {0, 1, 2, 4}
        assert not blob.is_complete
        put(blob, 3)
        blob.complete()
        assert blob.path.read_bytes() == SOURCE


SLOT_BYTES = 32 + 16 + 3 * 32  # hash, checksum, and of five chunks the longest proof


@pytest.mark.parametrize(
    ("offset", "is_lost"),
    [(0, True), (31, True), (32, False), (47, False), (48, True), (143, True)],
)
def test_a_chunk_is_believed_if_its_hash_and_proof_are_right_whatever_its_checksum_is(
    offset: int, is_lost: bool, store: BlobStore, folder: Path
) -> None:
    proofs = folder / NAME.hex() / "proofs"
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        blob.complete()
        assert proofs.stat().st_size == 5 * SLOT_BYTES
        flip_bit(proofs, SLOT_BYTES + offset)
        if is_lost:
            with pytest.raises(CorruptRecord, match="chunk 1 is not what was written") as caught:
                blob.read(1)
            assert caught.value.path == str(folder / NAME.hex())
            with pytest.raises(KeyError):
                blob.read_into(1, bytearray(CHUNK_BYTES))
        else:
            assert read(blob, 1) == [(CHUNKS[1], TREE.proof(1))]
        assert read(blob, 2) == [(CHUNKS[2], TREE.proof(2))]
        assert blob.is_complete is not is_lost
    with store.begin(MANIFEST) as blob:
        assert blob.stored == {0, 1, 2, 3, 4} - ({1} if is_lost else set())


def test_a_chunk_that_is_cut_short_on_disk_is_lost_and_so_is_the_next_of_it(
    store: BlobStore,
) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        os.truncate(blob.path.parent / "part", len(SOURCE) - 1)
        with pytest.raises(CorruptRecord, match="chunk 4 is not"):
            blob.read(4)
        with pytest.raises(StorageError, match="1 of 5 chunks are missing"):
            blob.complete()
        assert blob.have() == bytes([0b01111])


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_chunks_that_may_never_reach_the_disk_are_written_again(
    call: str, store: BlobStore, folder: Path
) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        with (
            other_system(**{call: failing(errno.EIO)}),
            pytest.raises(StorageError, match="cannot write to"),
        ):
            blob.flush() if call == "fdatasync" else blob.complete()
        assert blob.stored == frozenset()
        assert not (folder / NAME.hex() / "proofs").exists()
        with pytest.raises(StorageError, match="the disk has failed: begin anew"):
            put(blob, 0)
        with pytest.raises(StorageError, match="5 of 5 chunks are missing"):
            blob.complete()
    with store.begin(MANIFEST) as blob:
        assert blob.stored == frozenset()
        put(blob, *range(5))
        blob.flush()
        blob.complete()
        assert blob.path.read_bytes() == SOURCE


def test_a_blob_whose_name_may_be_lost_is_not_complete(store: BlobStore) -> None:
    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        with other_system(fsync=sync), pytest.raises(StorageError, match="cannot write to"):
            blob.complete()
        assert not blob.is_complete
        assert (blob.path.parent / "part").exists()
        blob.complete()
        assert blob.is_complete


def test_a_disk_that_writes_a_byte_at_a_time_gets_all_of_them(store: BlobStore) -> None:
    real = os.pwrite
    with (
        store.begin(MANIFEST) as blob,
        other_system(pwrite=lambda fd, data, offset: real(fd, data[:1], offset)),
    ):
        put(blob, *range(5))
    with store.begin(MANIFEST) as blob:
        assert read(blob, *range(5)) == [(CHUNKS[i], TREE.proof(i)) for i in range(5)]


def test_a_blob_that_is_closed_holds_no_file(store: BlobStore) -> None:
    before = open_files()
    blob = store.begin(MANIFEST)
    assert open_files() == before + 2
    blob.close()
    blob.close()
    assert open_files() == before
    with store.begin(MANIFEST) as same:
        assert same.has(0) is False
    assert open_files() == before


def test_a_file_of_another_size_is_checked_chunk_by_chunk(store: BlobStore) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        blob.complete()
        path = blob.path
    path.write_bytes(SOURCE[: 2 * CHUNK_BYTES + 7])
    with store.begin(MANIFEST) as blob:
        assert blob.stored == {0, 1}
        assert not blob.is_complete


def test_a_file_becomes_a_blob_without_a_copy(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "snapshot.safetensors"
    source.write_bytes(SOURCE)
    with store.add_file(source, chunk_bytes=CHUNK_BYTES) as blob:
        assert blob.name == NAME
        assert blob.is_complete
        assert blob.path.stat().st_ino == source.stat().st_ino
        assert [blob.read(index)[0] for index in range(5)] == CHUNKS
    with store.add_file(source, chunk_bytes=CHUNK_BYTES) as again:
        assert again.name == NAME
    source.unlink()
    opened = store.open(NAME)
    assert opened is not None
    with opened:
        assert opened.is_complete
        target = tmp_path / "other" / "model.safetensors"
        opened.link_to(target)
        opened.link_to(target)
    assert target.read_bytes() == SOURCE
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_where_links_do_not_work_bytes_are_copied(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source = tmp_path / "source"
    source.write_bytes(SOURCE)
    with store.add_file(source, chunk_bytes=CHUNK_BYTES) as blob:
        blob.link_to(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == SOURCE


def test_a_link_takes_the_place_of_what_a_crash_left_and_of_another_file(
    store: BlobStore, tmp_path: Path
) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
        blob.complete()
        target = tmp_path / "out" / "model"
        target.parent.mkdir()
        target.write_bytes(b"another")
        (target.parent / ".model.link.swarmnode-tmp").write_bytes(b"of a crash")
        before_ns = target.stat().st_mtime_ns
        os.utime(blob.path, (0, 0))  # it has been here for long
        blob.link_to(target)
        assert target.stat().st_mtime_ns >= before_ns, "a worker begins with the newest file"
        assert [path.name for path in target.parent.iterdir()] == ["model"]
        assert target.samefile(blob.path)


def test_a_blob_and_a_link_to_it_survive_a_power_failure(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    recorder = Recorder(home)
    with recorder.attached():
        store = BlobStore(home / "blobs", bytes_max=len(SOURCE))
        with store.begin(MANIFEST) as blob:
            put(blob, *range(5))
            blob.complete()
            blob.link_to(home / "model")
        store.close()
    left = tmp_path / "left"
    left.mkdir()
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    assert (left / "model").read_bytes() == SOURCE
    kept = BlobStore(left / "blobs", bytes_max=len(SOURCE)).open(NAME)
    assert kept is not None
    with kept:
        assert read(kept, *range(5)) == [(CHUNKS[i], TREE.proof(i)) for i in range(5)]


def test_a_file_that_becomes_a_blob_takes_the_place_of_a_part_of_it(
    store: BlobStore, tmp_path: Path
) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, 3)
    source = tmp_path / "source"
    source.write_bytes(SOURCE)
    with store.add_file(source, chunk_bytes=CHUNK_BYTES) as blob:
        assert blob.path.samefile(source), "its bytes are shared and not copied"


def test_a_file_of_more_chunks_than_a_blob_may_have_is_none(
    tmp_path: Path,
) -> None:
    most = limits.BLOB_CHUNKS_MAX
    store = BlobStore(tmp_path / "blobs", bytes_max=1)
    source = tmp_path / "source"
    for n_bytes in (0, most + 1):
        source.write_bytes(bytes(n_bytes))
        with pytest.raises(StorageError, match=f"1 to {most} bytes, this file has {n_bytes}"):
            store.add_file(source, chunk_bytes=1)
    source.write_bytes(bytes(1))
    store.add_file(source, chunk_bytes=1).close()


def test_a_file_that_becomes_a_blob_has_the_same_proofs_as_one_that_was_fetched(
    store: BlobStore, folder: Path, tmp_path: Path
) -> None:
    proofs = folder / NAME.hex() / "proofs"
    with store.begin(MANIFEST) as blob:
        put(blob, *range(5))
    fetched = proofs.read_bytes()
    store.remove(NAME)
    source = tmp_path / "source"
    source.write_bytes(SOURCE)
    store.add_file(source, chunk_bytes=CHUNK_BYTES).close()
    assert proofs.read_bytes() == fetched
    assert stat.S_IMODE(proofs.stat().st_mode) == 0o600


def test_only_what_is_complete_and_of_the_right_size_is_offered(
    store: BlobStore, folder: Path, tmp_path: Path
) -> None:
    sources = [SOURCE[:n_bytes] for n_bytes in (30, 20, 10)]
    names = []
    for number, data in enumerate(sources):
        (tmp_path / f"{number}").write_bytes(data)
        with store.add_file(tmp_path / f"{number}") as blob:
            names.append(blob.name)
    store.begin(MANIFEST).close()
    assert store.complete() == dict(zip(names, (30, 20, 10), strict=True))
    assert store.names() == sorted([*names, NAME])
    assert store.size_bytes() == 60 + len(SOURCE)
    (folder / names[0].hex() / "data").write_bytes(bytes(29))
    (folder / names[1].hex() / "data").unlink()
    assert store.complete() == {names[2]: 10}
    assert store.open(b"unknown") is None


def test_a_file_that_does_not_become_a_blob_is_left_alone_and_nothing_stays_open(
    store: BlobStore, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(SOURCE)
    before = open_files()

    def sync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "part":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with other_system(fsync=sync), pytest.raises(StorageError, match="cannot write to"):
        store.add_file(source, chunk_bytes=CHUNK_BYTES)
    assert open_files() == before
    assert source.read_bytes() == SOURCE
    with store.add_file(source, chunk_bytes=CHUNK_BYTES) as blob:
        assert blob.is_complete
        assert read(blob, 4) == [(CHUNKS[4], TREE.proof(4))]


def test_an_empty_file_is_no_blob(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(StorageError, match="this file has 0"):
        store.add_file(tmp_path / "empty")


def test_the_store_keeps_within_its_bytes(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", bytes_max=len(SOURCE) + 10)
    store.begin(MANIFEST).close()
    store.begin(MANIFEST).close()
    other = BlobManifest(11, CHUNK_BYTES, leaf_hash(b"other"))
    with pytest.raises(StorageFull, match="does not fit into the 10 that are left"):
        store.begin(other)
    store.remove(NAME)
    store.remove(NAME)
    store.begin(other).close()
    assert store.names() == [blob_name(other)]
    store.begin(BlobManifest(len(SOURCE) - 1, CHUNK_BYTES, TREE.root)).close()
    assert store.size_bytes() == len(SOURCE) + 10, "up to the last byte"


def test_a_folder_without_its_manifest_is_no_blob(store: BlobStore, folder: Path) -> None:
    with store.begin(MANIFEST) as blob:
        put(blob, 0)
    manifest = folder / NAME.hex() / "manifest"
    flip_bit(manifest, 20)
    assert store.names() == []
    assert store.open(NAME) is None
    with store.begin(MANIFEST) as blob:
        assert blob.stored == {0}


def test_a_manifest_in_the_folder_of_another_blob_makes_none_of_it(
    store: BlobStore, folder: Path
) -> None:
    other = BlobManifest(11, CHUNK_BYTES, leaf_hash(b"other"))
    for manifest in (MANIFEST, other):
        store.begin(manifest).close()
    whole = (folder / blob_name(other).hex() / "manifest").read_bytes()
    (folder / NAME.hex() / "manifest").write_bytes(whole)
    assert store.names() == [blob_name(other)]
    assert store.open(NAME) is None


def test_what_a_removal_that_was_killed_left_is_removed_by_the_next_start(
    store: BlobStore, folder: Path
) -> None:
    other = BlobManifest(11, CHUNK_BYTES, leaf_hash(b"other"))
    of_others = [folder / "notes", folder / ("0" * 64)]
    of_others[0].mkdir()
    of_others[1].touch()
    store.begin(other).close()
    with store.begin(MANIFEST) as blob:
        put(blob, 0)
    (folder / NAME.hex() / "manifest").unlink()
    store.close()
    store = BlobStore(folder, bytes_max=len(SOURCE))
    assert not (folder / NAME.hex()).exists()
    assert all(path.exists() for path in of_others)
    assert store.names() == [blob_name(other)]
    store.remove(b"")  # which names no folder but the store's own
    assert store.names() == [blob_name(other)]


def test_a_store_that_cannot_be_cleaned_is_not_locked(store: BlobStore, folder: Path) -> None:
    store.begin(MANIFEST).close()
    (folder / NAME.hex() / "manifest").unlink()
    store.close()
    before = open_files()
    with other_system(rmdir=failing(errno.EIO)), pytest.raises(StorageError, match="cannot clean"):
        BlobStore(folder, bytes_max=1)
    assert open_files() == before


def test_one_process_writes_at_a_time(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        BlobStore(tmp_path / "blobs", bytes_max=1)
    store.close()
    BlobStore(tmp_path / "blobs", bytes_max=1).close()


def test_a_blob_that_cannot_be_opened_keeps_no_file_open(store: BlobStore, folder: Path) -> None:
    (folder / NAME.hex() / "part").mkdir(parents=True)
    before = open_files()
    with pytest.raises(StorageError, match="cannot open"):
        store.begin(MANIFEST)
    assert open_files() == before


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="macOS cannot reserve room")
def test_a_blob_has_its_room_on_the_disk_before_any_chunk_of_it_is_here(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", bytes_max=2**20)
    manifest = BlobManifest(2**20, 2**16, TREE.root)
    with store.begin(manifest) as blob:
        assert blob.stored == frozenset()
        part = (blob.path.parent / "part").stat()
    assert part.st_size == manifest.size_bytes
    assert part.st_blocks * 512 >= manifest.size_bytes


async def at_once(work: Callable[[], T]) -> T:
    return work()


async def test_users_of_a_blob_share_it_and_the_last_one_closes_it(store: BlobStore) -> None:
    shelf = Shelf(store, at_once)
    before = open_files()
    for index in range(2):  # the next user has it opened anew
        async with shelf.begin(NAME, MANIFEST) as blob:
            async with shelf.open(NAME) as same:
                put(same, index)
            assert bytes(blob.read(index)[0]) == CHUNKS[index]
        assert open_files() == before


async def test_a_blob_that_was_replaced_is_opened_anew_for_the_next_user(store: BlobStore) -> None:
    shelf = Shelf(store, at_once)
    async with shelf.begin(NAME, MANIFEST) as old:
        put(old, 0)
        shelf.forget(NAME)
        async with shelf.open(NAME) as new:
            assert new is not old
            async with shelf.open(NAME) as same:
                assert same is new


async def test_a_blob_that_is_not_here_is_lent_to_none_and_nothing_stays_open(
    store: BlobStore,
) -> None:
    shelf = Shelf(store, at_once)
    before = open_files()
    for _ in range(2):
        with pytest.raises(NotHere):
            async with shelf.open(NAME):
                raise AssertionError("there is none")
        async with shelf.begin(NAME, MANIFEST) as blob:
            put(blob, 0)
        store.remove(NAME)
    assert open_files() == before


async def test_what_blocks_runs_in_a_few_threads_and_ends_as_it_ends_there() -> None:
    run, own = Threads(), threading.get_ident()
    all_at_once = threading.Barrier(limits.BLOB_THREADS_MAX)
    running: set[int] = set()
    most: list[int] = []

    def work() -> None:
        running.add(threading.get_ident())
        all_at_once.wait(timeout=60)
        most.append(len(running))
        all_at_once.wait(timeout=60)
        running.remove(threading.get_ident())

    async with trio.open_nursery() as nursery:
        for _ in range(2 * limits.BLOB_THREADS_MAX):
            nursery.start_soon(run, work)
    assert most == [limits.BLOB_THREADS_MAX] * 2 * limits.BLOB_THREADS_MAX
    assert await run(threading.get_ident) != own
    with pytest.raises(ZeroDivisionError):
        await run(lambda: 1 // 0)


def test_a_manifest_is_checked_against_the_name_of_its_blob() -> None:
    check_manifest(MANIFEST, NAME)
    for wrong in (
        BlobManifest(MANIFEST.size_bytes + 1, CHUNK_BYTES, TREE.root),
        BlobManifest(MANIFEST.size_bytes, CHUNK_BYTES - 1, TREE.root),
        BlobManifest(MANIFEST.size_bytes, CHUNK_BYTES, leaf_hash(b"")),
    ):
        with pytest.raises(MalformedMessage, match="another's"):
            check_manifest(wrong, NAME)
    endless = BlobManifest(2**30, 1, TREE.root)
    with pytest.raises(MalformedMessage, match="at most 65536"):
        check_manifest(endless, blob_name(endless))


def test_an_inner_node_does_not_pass_as_a_chunk() -> None:
    left, right = leaf_hash(CHUNKS[0]), leaf_hash(CHUNKS[1])
    two = MerkleTree([left, right])
    assert leaf_hash(left + right) != two.root


@pytest.mark.parametrize("n_bytes", [0, 1, 54, 55, 56, 62, 63, 64, 118, 119, 126, 127, 128, 5000])
def test_hashes_of_several_chunks_are_those_of_each(n_bytes: int) -> None:
    rng = random.Random(n_bytes)
    chunks = [rng.randbytes(n_bytes) for _ in range(3)] + [rng.randbytes(n_bytes + 1)]
    expected = [hashlib.sha256(b"\0" + chunk).digest() for chunk in chunks]
    assert leaf_hashes(chunks) == expected
    assert [leaf_hash(chunk) for chunk in chunks] == expected
