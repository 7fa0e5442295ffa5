"""Tensors to and from a file, written so that a crash leaves the old file or the new one.

Written here rather than by the library's ``save_file``: that one refuses tensors that share
a storage (all of ours do), keeps no hashes, and turns a full disk into a text. What is written
is a copy in the memory of the host, laid out as in the file: so the copy is made between two
steps, and a thread writes it while the next ones are taken. The format is that of
``tensor/snapshot_format.py``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import torch

from swarmnode.errors import StorageError, StorageFull
from swarmnode.tensor.snapshot_format import (
    About,
    Entry,
    encode_header,
    lay_out,
    read_entry,
    read_header,
)

Tensors = dict[str, torch.Tensor]

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}
_CHUNK_BYTES = 2**23
_DIGITS = 64  # of SHA-256 in hex
NEVER_LIVE = 2**63
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class HostCopy:
    """Tensors as they were when copied; valid until the next copy into the same buffer.

    Attributes:
        entries: of the file.
        copied: bytes of tensors, by name.
        live: tensors that are read as they are when it is their turn: contiguous, on the CPU.
        events: copies from a GPU that may be under way.
    """

    entries: tuple[Entry, ...]
    copied: Mapping[str, memoryview]
    live: Mapping[str, torch.Tensor]
    events: tuple[torch.cuda.Event, ...]

    def wait(self) -> None:
        """Return when all is copied."""
        for event in self.events:
            event.synchronize()

    def chunks(self, entry: Entry) -> Iterator[memoryview]:
        """Yield the bytes of a tensor, each valid until the next."""
        if entry.name not in self.live:
            yield self.copied[entry.name]
            return
        octets = self.live[entry.name].flatten().view(torch.uint8)
        chunk = torch.empty(min(_CHUNK_BYTES, octets.numel()), dtype=torch.uint8)
        for begin in range(0, octets.numel(), _CHUNK_BYTES):
            part = octets[begin : begin + _CHUNK_BYTES]
            yield chunk[: len(part)].copy_(part).numpy().data


class HostBuffer:
    """Memory that copies of tensors are made into, used again for the next copy."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensors: Tensors, live_bytes_min: int = NEVER_LIVE) -> HostCopy:
        """Copy ``tensors``. From a GPU this returns at once: kernels queued later come later.

        Args:
            live_bytes_min: of tensors on the CPU that are so large none is copied.

        Raises:
            StorageError: there is no memory for it, or a dtype that the format does not know.
        """
        held = {name: tensor.detach() for name, tensor in tensors.items()}
        entries = lay_out({name: (_dtype(name, t), t.shape) for name, t in held.items()})
        live = {
            name: tensor
            for name, tensor in held.items()
            if tensor.nbytes >= live_bytes_min and tensor.is_cpu and tensor.is_contiguous()
        }
        gpus = {tensor.device for tensor in held.values() if tensor.is_cuda}
        where = lay_out({e.name: (e.dtype, e.shape) for e in entries if e.name not in live})
        self._reserve(where[-1].end if where else 0, is_pinned=bool(gpus))
        memory = self._buffer.numpy().data
        for entry in where:
            tensor = tensors[entry.name].detach()  # a look may gather it from other processes
            _view(self._buffer, entry).copy_(tensor, non_blocking=tensor.is_cuda)
        events = tuple(torch.cuda.current_stream(gpu).record_event() for gpu in gpus)
        copied = {entry.name: memory[entry.begin : entry.end] for entry in where}
        return HostCopy(entries, copied, live, events)

    def _reserve(self, size_bytes: int, *, is_pinned: bool) -> None:
        if self._buffer.numel() >= size_bytes and self._buffer.is_pinned() >= is_pinned:
            return
        self._buffer = torch.empty(0, dtype=torch.uint8)  # not both at once
        try:
            self._buffer = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        except (MemoryError, RuntimeError) as error:  # torch has no narrower one for the CPU
            raise StorageError(
                f"no memory for a copy of {size_bytes} bytes to write from: free some"
            ) from error


def write_copy(path: Path, copy: HostCopy, about: About, finite: Collection[str] = ()) -> None:
    """Write ``copy`` to ``path``, durable on return. Uses no torch but to wait for a GPU.

    Args:
        about: its hashes are replaced by those of the tensors.
        finite: names of tensors that are not worth keeping with a NaN or an infinity: all of
            float32, or all of float64.

    Raises:
        StorageFull: no space is left; ``path`` is as it was.
        StorageError: the disk failed otherwise, or a tensor is not finite; likewise.
    """
    copy.wait()
    temporary = path.with_suffix(".tmp")
    try:
        with storage_errors(path, "write"):
            # What lies there is of a crash, or a link that leads elsewhere.
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:
                _write(file, copy, about, finite)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Tensors, about: About) -> None:
    """Copy ``tensors`` and write them; see :func:`write_copy`."""
    write_copy(path, HostBuffer().copy(tensors), about)


def read_tensors(path: Path) -> tuple[Tensors, About]:
    """Return (tensors on the CPU, what the file says about itself), all checked.

    Raises:
        CorruptRecord: not what was written; the message names what is not.
        StorageError: it cannot be read.
    """
    with storage_errors(path, "read"), path.open("rb") as file:
        header = read_header(file, path)
        buffer = torch.empty(header.data_bytes, dtype=torch.uint8)
        memory = buffer.numpy().data
        for entry in header.entries:
            read_entry(file, entry, header, memory[entry.begin : entry.end], path)
    return {entry.name: _view(buffer, entry) for entry in header.entries}, header.about


@contextlib.contextmanager
def storage_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn what the system says into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StorageFull(f"no space left to {verb} {path.name} in {path.parent}") from error
        raise StorageError(f"cannot {verb} {path}: {error.strerror or error}") from error


def _write(file: BinaryIO, copy: HostCopy, about: About, finite: Collection[str]) -> None:
    """Hash and write the data, each with as few calls as there can be; the header comes last.

    None of them holds the interpreter's lock, but each takes it again when it ends; on a busy
    machine, training waits a millisecond for every time.
    """
    unknown = dict.fromkeys((entry.name for entry in copy.entries), "0" * _DIGITS)
    file.write(encode_header(copy.entries, msgspec.structs.replace(about, hashes=unknown)))
    hashes = {}
    for entry in copy.entries:
        digest = hashlib.sha256()
        for octets in copy.chunks(entry):
            if entry.name in finite and not _is_finite(octets, entry.dtype):
                raise StorageError(
                    f"tensor {entry.name} at step {about.step} is not finite: not worth keeping"
                )
            digest.update(octets)
            file.write(octets)
        hashes[entry.name] = digest.hexdigest()
    file.flush()
    known = encode_header(copy.entries, msgspec.structs.replace(about, hashes=hashes))
    if os.pwrite(file.fileno(), known, 0) != len(known):
        raise StorageError(f"cannot write the header of a snapshot of step {about.step} whole")


def _is_finite(octets: memoryview, dtype: str) -> bool:
    """Look at the sum first: a NaN or an infinity spoils it, and hardly anything else does."""
    values = np.frombuffer(octets, np.float64 if dtype == "F64" else np.float32)
    with np.errstate(all="ignore"):  # a sum may be too large
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def _dtype(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in _DTYPES:
        raise StorageError(
            f"tensor {name}: expected a dtype of {', '.join(map(str, _DTYPES))}, "
            f"got {tensor.dtype}; register the buffer with persistent=False, or change its dtype"
        )
    return _DTYPES[tensor.dtype]


def _view(buffer: torch.Tensor, entry: Entry) -> torch.Tensor:
    octets = buffer[entry.begin : entry.end]
    return octets.view(_TORCH_DTYPES[entry.dtype]).reshape(entry.shape)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
