"""Tensors in one safetensors file, written so that a crash leaves the old file or the new one.

Written here rather than by the library's ``save_file``: that one refuses tensors that share
a storage (all of ours do), copies everything once more, and turns a full disk into a text.
Reading goes through the library. The format has no checksum; a CRC-32 of the tensors is
kept in its metadata, because a torn file that happens to have the right length would
otherwise be trained on.

Source: the safetensors format, github.com/huggingface/safetensors, README "Format".
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
import torch

from swarmnode.errors import CorruptRecord, StorageError, StorageFull

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
_HEADER_ALIGNMENT = 8
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: str) -> None:
    """Write ``tensors`` and the text ``about`` to ``path``, durable on return.

    Raises:
        StorageFull: no space is left; ``path`` is as it was.
        StorageError: the disk failed otherwise; ``path`` is as it was.
    """
    temporary = path.with_suffix(".tmp")
    cpu = {name: _on_cpu(tensor) for name, tensor in sorted(tensors.items())}
    try:
        with temporary.open("wb") as file:
            file.write(_header(cpu, about))
            for tensor in cpu.values():
                file.write(_raw(tensor))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno in _NO_SPACE:
            raise StorageFull(f"no space left to write {path.name} in {path.parent}") from error
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def read_tensors(path: Path) -> tuple[Tensors, str]:
    """Return (tensors on the CPU, the text ``about``).

    Raises:
        CorruptRecord: not what was written.
        StorageError: it cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: Tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except safetensors.SafetensorError as error:
        raise CorruptRecord(f"{path} is damaged: {error}", path=str(path)) from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    if metadata.get("crc32") != f"{_crc32(tensors):08x}":
        raise CorruptRecord(f"{path} is damaged: its checksum differs", path=str(path))
    return tensors, metadata.get("swarmnode", "")


def _header(tensors: Tensors, about: str) -> bytes:
    """Return the length and the JSON that begin a safetensors file."""
    metadata = {"crc32": f"{_crc32(tensors):08x}", "format": "pt", "swarmnode": about}
    header: dict[str, object] = {"__metadata__": metadata}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def _crc32(tensors: Tensors) -> int:
    crc = 0
    for tensor in tensors.values():
        crc = zlib.crc32(_raw(tensor), crc)
    return crc


def _raw(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, not copied."""
    octets: npt.NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return octets.data


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
