"""Blobs on disk, by the name of their content: written chunk by chunk, complete or not.

::

    FOLDER/lock             held by the one process that writes here
    FOLDER/NAME/manifest    size, chunk size, root: checked against NAME when read
    FOLDER/NAME/proofs      a slot a chunk: its hash, a checksum, and the proof of the hash
    FOLDER/NAME/part        the bytes, while some are missing; then renamed to
    FOLDER/NAME/data        the whole blob as one file

A chunk is there if its slot's proof leads to the root and its bytes have the slot's hash: no
journal and no fsync for each chunk. Whatever a crash leaves, half a chunk or a slot without its
bytes, fails that test and is fetched again. A blob that is not complete can be served from just
as well, since the proofs are kept.

What rots later is found when it is read and is missing from then on. Reading compares the
checksum, Poly1305 with a key that all know, seven times faster than the hash: a disk does
not forge, and the receiver of the chunk hashes it anyway.

All calls block for as long as the disk does; a Trio caller uses a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.poly1305 import Poly1305

from swarmnode import limits
from swarmnode.errors import CorruptRecord, RemoteProtocolError, StorageError, StorageFull
from swarmnode.protocol.blobs.holders import bitmap_of
from swarmnode.protocol.blobs.merkle import (
    MerkleTree,
    blob_name,
    check_manifest,
    chunk_size,
    is_in_blob,
    leaf_hash,
    leaf_hashes,
    n_chunks_of,
    proof_length,
)
from swarmnode.store.files import (
    HomeLock,
    IncomingFile,
    make_private_dir,
    read_file,
    reserve,
    storage_errors,
    sync_data,
    sync_directory,
    undone,
    write_at,
    write_atomic,
)
from swarmnode.wire.blobs import BlobManifest
from swarmnode.wire.packing import decode_record, encode_record

# Of a manifest file: a map of three numbers and a digest.
_BLOB_MANIFEST_FILE_BYTES_MAX = 4 * limits.KIB

_HASH_BYTES = 32
_CHECKSUM_BYTES = 16
_CHECKSUM_KEY = b"swarmnode: chunks of blobs, disk"


@dataclass(frozen=True)
class _Slot:
    """What is kept of a chunk beside its bytes."""

    leaf: bytes
    checksum: bytes
    proof: tuple[bytes, ...]

    def encode(self) -> bytes:
        return self.leaf + self.checksum + b"".join(self.proof)

    @classmethod
    def decode(cls, raw: bytes) -> _Slot:
        proof_at = _HASH_BYTES + _CHECKSUM_BYTES
        starts = range(proof_at, len(raw), _HASH_BYTES)
        proof = tuple(raw[start : start + _HASH_BYTES] for start in starts)
        return cls(raw[:_HASH_BYTES], raw[_HASH_BYTES:proof_at], proof)


class Blob:
    """One blob in a store. Made by :class:`BlobStore`; several threads may read it at once."""

    def __init__(self, folder: Path, manifest: BlobManifest) -> None:
        """Open what is there of it; what does not pass the test above counts as missing.

        Cost: reads and hashes every chunk that is on disk, unless the blob is complete.

        Raises:
            StorageFull: there is no room for all of it.
            StorageError: the disk fails.
        """
        self.manifest = manifest
        self.name = blob_name(manifest)
        self.n_chunks = n_chunks_of(manifest)
        self._folder = folder
        self._slot_bytes = _slot_bytes(self.manifest, 0)
        self._proofs_fd = self._fd = -1
        self._has_failed = False
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._open()
            undo.pop_all()

    # --- what is there -------------------------------------------------------------------

    @property
    def stored(self) -> frozenset[int]:
        """The chunks that are here."""
        return frozenset(self._stored)

    @property
    def is_complete(self) -> bool:
        """Whether it is one file under its final name. Raises StorageError."""
        with storage_errors(self.path, "read"):
            return self.path.exists()

    @property
    def path(self) -> Path:
        """Where the whole blob is, once it is complete."""
        return self._folder / "data"

    def have(self) -> bytes:
        """Return the bitmap of the chunks that are here."""
        return bitmap_of(set(self._stored), self.n_chunks)

    def has(self, index: int) -> bool:
        """Whether a chunk is here."""
        return index in self._stored

    def read(self, index: int) -> tuple[bytearray, tuple[bytes, ...]]:
        """Return a chunk and its proof. Raises as :meth:`read_into`."""
        if not self.has(index):
            raise KeyError(index)
        buffer = bytearray(chunk_size(self.manifest, index))
        return buffer, self.read_into(index, buffer)

    def read_into(self, index: int, buffer: bytearray) -> tuple[bytes, ...]:
        """Fill ``buffer``, of the size of the chunk, and return the proof of the chunk.

        Raises:
            CorruptRecord: its bytes have changed on disk; from now on it is missing.
            KeyError: it is not here.
            StorageError: the disk fails.
        """
        if not self.has(index):
            raise KeyError(index)
        assert len(buffer) == chunk_size(self.manifest, index)
        with storage_errors(self.path, "read"):
            n_bytes = os.preadv(self._fd, [buffer], self._offset(index))
        slot = self._read_slot(index)
        is_unchanged = slot.checksum == _checksum(buffer) or slot.leaf == leaf_hash(buffer)
        if n_bytes < len(buffer) or not (
            is_unchanged and is_in_blob(self.manifest, index, slot.leaf, slot.proof)
        ):
            self._lose(index)
            raise CorruptRecord(
                f"{self._folder}: chunk {index} is not what was written there: the disk may be "
                "failing; the chunk is fetched again",
                path=str(self._folder),
            )
        return slot.proof

    def link_to(self, path: Path) -> None:
        """Let it appear, complete, as a file of now under another path too: a copy without links.

        Raises:
            StorageFull, StorageError: as the disk says; an existing file is replaced or kept.
        """
        assert self.is_complete
        make_private_dir(path.parent)
        temporary = path.with_name(f".{path.name}.link.swarmnode-tmp")
        with storage_errors(path, "write"):
            temporary.unlink(missing_ok=True)
            try:
                temporary.hardlink_to(self.path)
                os.utime(temporary)
            except OSError:  # another file system, or one without links
                self._copy_to(path)
                return
            temporary.replace(path)
            temporary.unlink(missing_ok=True)  # replace does nothing between links of one file
            sync_directory(path.parent)

    # --- writing -------------------------------------------------------------------------

    def write(
        self, index: int, chunk: bytes | memoryview, leaf: bytes, proof: tuple[bytes, ...]
    ) -> None:
        """Write a chunk whose hash is ``leaf``: the caller has just computed it.

        Raises:
            CorruptRecord: it does not belong into this blob; nothing is written.
            StorageFull, StorageError: as the disk says.
        """
        size_bytes = chunk_size(self.manifest, index)
        if len(chunk) != size_bytes or not is_in_blob(self.manifest, index, leaf, proof):
            raise CorruptRecord(
                f"{self._folder}: chunk {index} does not belong to this blob",
                path=str(self._folder),
            )
        if self._has_failed:
            raise StorageError(f"{self._folder}: the disk has failed: begin anew")
        with storage_errors(self._folder, "write to"):
            write_at(self._fd, chunk, self._offset(index))
            slot = _Slot(leaf, _checksum(chunk), proof)
            write_at(self._proofs_fd, slot.encode(), index * self._slot_bytes)
        self._stored.add(index)

    def flush(self) -> None:
        """Let the disk begin with what was written, so that :meth:`complete` waits less.

        Raises:
            StorageError: the disk fails.
        """
        with storage_errors(self._folder, "write to"), self._must_sync():
            sync_data(self._fd)

    def complete(self) -> None:
        """Make it durable and give it its final name. Does nothing if that was done.

        Raises:
            StorageError: chunks are missing, or the disk fails.
        """
        if self.is_complete:
            return
        if len(self._stored) < self.n_chunks:
            missing = self.n_chunks - len(self._stored)
            raise StorageError(f"{self._folder}: {missing} of {self.n_chunks} chunks are missing")
        with storage_errors(self._folder, "write to"):
            with self._must_sync():
                os.fsync(self._fd)
                os.fsync(self._proofs_fd)
            self._part.replace(self.path)
            with undone(lambda: self.path.replace(self._part)):  # or it seems to be complete
                sync_directory(self._folder)

    def close(self) -> None:
        """Close its files."""
        for fd in (self._fd, self._proofs_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._proofs_fd = -1

    def __enter__(self) -> Blob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _must_sync(self) -> Iterator[None]:
        """Forget all chunks if it fails: they can still be read, but may never reach the disk.

        No later fsync brings them there, as the kernel takes them for written; writing them
        again does.
        """
        try:
            yield
        except OSError:
            self._has_failed = True
            self._stored.clear()
            with contextlib.suppress(OSError):
                (self._folder / "proofs").unlink()
            raise

    @property
    def _part(self) -> Path:
        return self._folder / "part"

    def _open(self) -> None:
        with storage_errors(self._folder, "open"):
            flags = os.O_RDWR | os.O_CREAT
            self._proofs_fd = os.open(self._folder / "proofs", flags, 0o600)
            os.truncate(self._proofs_fd, self.n_chunks * self._slot_bytes)
            if self.is_complete and self.path.stat().st_size != self.manifest.size_bytes:
                self.path.replace(self._part)
            is_complete = self.is_complete
            self._fd = os.open(self.path if is_complete else self._part, flags, 0o600)
            if not is_complete:
                os.truncate(self._fd, self.manifest.size_bytes)
                reserve(self._fd, self.manifest.size_bytes)  # full: say so now
        self._stored = {i for i in range(self.n_chunks) if is_complete or self._is_whole(i)}

    def _is_whole(self, index: int) -> bool:
        slot = self._read_slot(index)
        if not is_in_blob(self.manifest, index, slot.leaf, slot.proof):
            return False
        with storage_errors(self._folder, "read"):
            chunk = os.pread(self._fd, chunk_size(self.manifest, index), self._offset(index))
        return leaf_hash(chunk) == slot.leaf

    def _lose(self, index: int) -> None:
        self._stored.discard(index)
        with storage_errors(self._folder, "write to"), contextlib.suppress(FileNotFoundError):
            self.path.replace(self._part)

    def _offset(self, index: int) -> int:
        return index * self.manifest.chunk_bytes

    def _read_slot(self, index: int) -> _Slot:
        n_bytes = _slot_bytes(self.manifest, index)
        with storage_errors(self._folder, "read"):
            return _Slot.decode(os.pread(self._proofs_fd, n_bytes, index * self._slot_bytes))

    def _copy_to(self, path: Path) -> None:
        with IncomingFile(path) as copy:
            for index in range(self.n_chunks):
                copy.write(memoryview(self.read(index)[0]))
            copy.commit()


class BlobStore:
    """All blobs of a node, in one folder of bounded size. Any thread may call it."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """Take the lock of the folder.

        Raises:
            Refused: another process holds it.
            StorageError: the folder cannot be used.
        """
        self._folder = folder
        self._bytes_max = bytes_max
        self._reserving = threading.Lock()
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(HomeLock(folder / "lock"))
            self._finish_removals()
            undo.pop_all()

    def close(self) -> None:
        """Let another process write here."""
        self._lock.close()

    def names(self) -> list[bytes]:
        """Return the names of all blobs, complete or not, in order."""
        return [bytes.fromhex(path.name) for path, _ in self._manifests()]

    def complete(self) -> dict[bytes, int]:
        """Return the size in bytes of each blob that is complete, by name."""
        return {
            bytes.fromhex(folder.name): manifest.size_bytes
            for folder, manifest in self._manifests()
            if _has_data(folder, manifest)
        }

    def size_bytes(self) -> int:
        """Return the size of all blobs, with what is still missing of them."""
        return sum(manifest.size_bytes for _, manifest in self._manifests())

    def begin(self, manifest: BlobManifest) -> Blob:
        """Return the blob to write into: what is there of it already is kept.

        Raises:
            StorageFull: it does not fit into the bytes that the store may use, or on the disk.
            StorageError: the disk fails.
        """
        return Blob(self._reserve(manifest), manifest)

    def _reserve(self, manifest: BlobManifest) -> Path:
        """Return the folder of a blob, made if the blob fits."""
        folder = self._folder_of(blob_name(manifest))
        with self._reserving:
            if _manifest_in(folder) is None:
                self._check_room(manifest)
                make_private_dir(folder)
                write_atomic(folder / "manifest", encode_record(manifest))
        return folder

    def _check_room(self, manifest: BlobManifest) -> None:
        free_bytes = self._bytes_max - self.size_bytes()
        if manifest.size_bytes > free_bytes:
            raise StorageFull(
                f"{self._folder}: a blob of {manifest.size_bytes} bytes does not fit into the "
                f"{free_bytes} that are left of {self._bytes_max}: remove one, or allow more"
            )

    def open(self, name: bytes) -> Blob | None:
        """Return what there is of a blob, or None.

        Raises:
            StorageError: the disk fails.
        """
        folder = self._folder_of(name)
        manifest = _manifest_in(folder)
        return None if manifest is None else Blob(folder, manifest)

    def add_file(self, path: Path, *, chunk_bytes: int = limits.BLOB_CHUNK_BYTES) -> Blob:
        """Return a file as a complete blob. It shares its bytes: it may not be changed any more.

        Raises:
            StorageFull, StorageError: as for :meth:`begin`.
        """
        with storage_errors(path, "read"), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if not 0 < size_bytes <= chunk_bytes * limits.BLOB_CHUNKS_MAX:
                raise StorageError(
                    f"{path}: a blob has 1 to {chunk_bytes * limits.BLOB_CHUNKS_MAX} bytes, "
                    f"this file has {size_bytes}"
                )
            chunks = iter(lambda: file.read(chunk_bytes), b"")
            hashes = [
                (leaf, _checksum(chunk))
                for few in iter(lambda: list(itertools.islice(chunks, 2)), [])
                for chunk, leaf in zip(few, leaf_hashes(few), strict=True)
            ]
        tree = MerkleTree([leaf for leaf, _ in hashes])
        manifest = BlobManifest(size_bytes, chunk_bytes, tree.root)
        folder = self._reserve(manifest)
        with storage_errors(folder, "read"):
            is_here = (folder / "data").exists()
        if not is_here:
            slots = (_Slot(*both, tree.proof(index)) for index, both in enumerate(hashes))
            slot_bytes = _slot_bytes(manifest, 0)
            proofs = b"".join(slot.encode().ljust(slot_bytes, b"\0") for slot in slots)
            write_atomic(folder / "proofs", proofs)
            self._adopt(path, folder)
        with contextlib.ExitStack() as undo:
            blob = Blob(folder, manifest)
            undo.callback(blob.close)
            blob.complete()
            undo.pop_all()
        return blob

    def remove(self, name: bytes) -> None:
        """Remove a blob, if it is here."""
        folder = self._folder_of(name)
        with storage_errors(folder, "remove"), contextlib.suppress(FileNotFoundError):
            # First what makes it count, so that a crash leaves nothing that looks like a blob.
            (folder / "manifest").unlink()
            shutil.rmtree(folder)

    def _finish_removals(self) -> None:
        """Remove what a crash in a removal left: it counts nowhere, and would stay for ever."""
        with storage_errors(self._folder, "clean"):
            for folder in [*self._folder.glob("[0-9a-f]" * 64)]:
                if folder.is_dir() and not (folder / "manifest").exists():
                    shutil.rmtree(folder)

    def _adopt(self, path: Path, folder: Path) -> None:
        with storage_errors(folder, "write to"):
            part = folder / "part"
            part.unlink(missing_ok=True)
            try:
                part.hardlink_to(path)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, part)

    def _folder_of(self, name: bytes) -> Path:
        return self._folder / name.hex()

    def _manifests(self) -> Iterator[tuple[Path, BlobManifest]]:
        with storage_errors(self._folder, "read"):
            folders = sorted(path for path in self._folder.iterdir() if path.is_dir())
        for folder in folders:
            manifest = _manifest_in(folder)
            if manifest is not None:
                yield folder, manifest


def _manifest_in(folder: Path) -> BlobManifest | None:
    """Return the manifest of a blob's folder, or None if it has none that belongs there."""
    try:
        raw = read_file(folder / "manifest", bytes_max=_BLOB_MANIFEST_FILE_BYTES_MAX)
        manifest = decode_record(raw, BlobManifest)
        check_manifest(manifest, bytes.fromhex(folder.name))
    except (FileNotFoundError, RemoteProtocolError, CorruptRecord, ValueError):
        return None
    return manifest


def _has_data(folder: Path, manifest: BlobManifest) -> bool:
    try:
        return (folder / "data").stat().st_size == manifest.size_bytes
    except OSError:  # not there, or not to be read: either way nothing to offer
        return False


def _slot_bytes(manifest: BlobManifest, index: int) -> int:
    """Return the bytes of one slot: the first has the longest proof."""
    n_hashes = 1 + proof_length(index, n_chunks_of(manifest))
    return _HASH_BYTES * n_hashes + _CHECKSUM_BYTES


def _checksum(chunk: bytes | bytearray | memoryview) -> bytes:
    return Poly1305.generate_tag(_CHECKSUM_KEY, chunk)
