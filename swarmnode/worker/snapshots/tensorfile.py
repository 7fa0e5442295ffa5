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
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
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
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class HostCopy:
    """Tensors as they were when copied; valid until the next copy into the same buffer."""

    entries: tuple[Entry, ...]
    data: memoryview  # as in the file
    events: tuple[torch.cuda.Event, ...]  # copies from a GPU that may be under way

    def floats(self, begin: int, end: int, dtype: str) -> npt.NDArray[np.floating[Any]]:
        """Return bytes of the data as what they are, or as if they were."""
        return np.frombuffer(self.data[begin:end], np.float64 if dtype == "F64" else np.float32)

    def wait(self) -> None:
        """Return when all is copied."""
        for event in self.events:
            event.synchronize()


class HostBuffer:
    """Memory that copies of tensors are made into, used again for the next copy."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensors: Tensors) -> HostCopy:
        """Copy ``tensors``. From a GPU this returns at once: kernels queued later come later.

        Raises:
            StorageError: there is no memory for it, or a dtype that the format does not know.
        """
        entries = lay_out({name: (_dtype(name, t), t.shape) for name, t in tensors.items()})
        gpus = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
        size_bytes = entries[-1].end if entries else 0
        self._reserve(size_bytes, is_pinned=bool(gpus))
        for entry in entries:
            tensor = tensors[entry.name].detach()
            _view(self._buffer, entry).copy_(tensor, non_blocking=tensor.is_cuda)
        events = tuple(torch.cuda.current_stream(gpu).record_event() for gpu in gpus)
        return HostCopy(entries, self._buffer.numpy().data[:size_bytes], events)

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
    _check_finite(copy, finite, about.step)
    temporary = path.with_suffix(".tmp")
    try:
        with storage_errors(path, "write"):
            with temporary.open("wb") as file:
                _write(file, copy, about)
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


def _write(file: BinaryIO, copy: HostCopy, about: About) -> None:
    """Hash and write the data, each with as few calls as there can be.

    None of them holds the interpreter's lock, but each takes it again when it ends; on a busy
    machine, training waits a millisecond for every time.
    """
    hashes = {
        entry.name: hashlib.sha256(copy.data[entry.begin : entry.end]).hexdigest()
        for entry in copy.entries
    }
    file.write(encode_header(copy.entries, msgspec.structs.replace(about, hashes=hashes)))
    file.write(copy.data)


def _check_finite(copy: HostCopy, names: Collection[str], step: int) -> None:
    """Look at one sum first: a NaN or an infinity spoils it, and hardly anything else does."""
    checked = [entry for entry in copy.entries if entry.name in names]
    if not checked:
        return
    with np.errstate(all="ignore"):  # what lies between them may be anything
        dtype = checked[0].dtype
        if np.isfinite(copy.floats(checked[0].begin, checked[-1].end, dtype).sum()):
            return
    for entry in checked:
        if not np.isfinite(copy.floats(entry.begin, entry.end, entry.dtype)).all():
            raise StorageError(
                f"tensor {entry.name} at step {step} is not finite: not worth keeping"
            )


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
