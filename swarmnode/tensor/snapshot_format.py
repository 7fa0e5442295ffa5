"""The file of a snapshot or an export: safetensors that say what they are and prove their bytes.

::

    length of the header    8 bytes, little-endian
    header                  JSON: __metadata__, then {dtype, shape, data_offsets} by name
    data                    the tensors one after the other, the widest dtypes first, no gaps

``__metadata__`` holds ``header_sha256``, at a fixed place: the SHA-256 of all that precedes the
data, computed with these digits as zeros; and ``swarmnode``, an :class:`About` as JSON, with a
SHA-256 for each tensor. So a bit that flips anywhere is noticed, and it is known where. Names
in a snapshot (an export has the first kind only, without the prefix)::

    model/NAME          parameter or buffer, as in state_dict()
    optimizer/NAME/KEY  state of the optimizer for that parameter
    strategy/NAME       what the strategy keeps beside the parameters
    ema/NAME            mean of a parameter over the last steps, where the recipe has one

Free of torch: a keeper without it holds and checks snapshots too.

Source: the safetensors format, github.com/huggingface/safetensors, README "Format".
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from swarmnode import limits
from swarmnode.errors import CorruptRecord, StorageError

FETCHED_NAME: Final = "snapshot-000000000000.safetensors"  # fetched from a peer by the daemon
ITEM_BYTES: Final[Mapping[str, int]] = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}

_NAME = re.compile(r"snapshot-(\d{12})\.safetensors")
_LENGTH_BYTES: Final = 8
_ALIGNMENT_BYTES: Final = 8
_PREFIX: Final = b'{"__metadata__":{"header_sha256":"'
_DIGITS: Final = 64
_NO_DIGITS: Final = b"0" * _DIGITS

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of weights says about itself."""

    task: str
    task_version: int
    task_config: dict[str, Any]
    layout_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    step: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]  # twelve digits in the name of the file
    tokens: Count
    # Optimizer state that is no tensor, by the name that a tensor would have had.
    optimizer_values: dict[str, Any] = {}
    # SHA-256 of each tensor's bytes, in hex, by name; filled in when the file is written.
    hashes: dict[str, str] = {}
    # Steps, and the loss on the held-out data after them, of the node that wrote it.
    losses: list[tuple[Count, float]] | msgspec.UnsetType = msgspec.UNSET
    # The digest of the last round of the swarm's log that is in the weights, in hex.
    log_head: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | msgspec.UnsetType = (
        msgspec.UNSET
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file; ``begin`` and ``end`` are bytes of the data, ``end`` exclusive."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What precedes the data; the entries are in the order of their bytes."""

    about: About
    entries: tuple[Entry, ...]

    @property
    def data_bytes(self) -> int:
        """The length of the data."""
        return self.entries[-1].end if self.entries else 0


class _Place(msgspec.Struct, frozen=True):
    """An entry as it stands in the header."""

    dtype: str
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]  # as many as torch has
    data_offsets: tuple[Count, Count]


class _Metadata(msgspec.Struct, frozen=True):
    swarmnode: str


# --- names -----------------------------------------------------------------------------------


def snapshot_name(step: int) -> str:
    """Return the name of the file of a snapshot."""
    return f"snapshot-{step:012d}.safetensors"


def find_snapshots(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of the snapshots in a folder, newest first. Raises OSError."""
    if not folder.is_dir():
        return []
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


# --- writing ---------------------------------------------------------------------------------


def lay_out(tensors: Mapping[str, tuple[str, Iterable[int]]]) -> tuple[Entry, ...]:
    """Return where each tensor, given by its dtype and shape, lies in the data.

    The widest dtypes come first, so that each tensor begins at a multiple of its item.
    """
    entries = []
    begin = 0
    for name in sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name][0]], name)):
        dtype, shape = tensors[name][0], tuple(tensors[name][1])
        end = begin + ITEM_BYTES[dtype] * math.prod(shape)
        entries.append(Entry(name, dtype, shape, begin, end))
        begin = end
    return tuple(entries)


def encode_header(entries: Iterable[Entry], about: About) -> bytes:
    """Return all that precedes the data. Its length does not depend on the digits of hashes.

    Raises:
        StorageError: there are more names than a reader accepts.
    """
    metadata = {
        "header_sha256": _NO_DIGITS.decode(),
        "format": "pt",
        "swarmnode": msgspec.json.encode(about).decode(),
    }
    places = {e.name: _Place(e.dtype, e.shape, (e.begin, e.end)) for e in entries}
    text = msgspec.json.encode({"__metadata__": metadata, **places})
    assert text.startswith(_PREFIX)
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    if len(text) > limits.SNAPSHOT_HEADER_BYTES_MAX:
        raise StorageError(
            f"the names in a snapshot take {len(text)} bytes, expected at most "
            f"{limits.SNAPSHOT_HEADER_BYTES_MAX}: the model has too many tensors"
        )
    length = len(text).to_bytes(_LENGTH_BYTES, "little")
    digits = hashlib.sha256(length + text).hexdigest().encode()
    return length + _PREFIX + digits + text[len(_PREFIX) + _DIGITS :]


# --- reading ---------------------------------------------------------------------------------


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read and check what precedes the data; ``file`` stands at the data then.

    Raises:
        CorruptRecord: it is not what was written, or the file has another length.
        OSError: it cannot be read.
    """
    size_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    length = file.read(_LENGTH_BYTES)
    text_bytes = int.from_bytes(length, "little")
    text_bytes_max = min(limits.SNAPSHOT_HEADER_BYTES_MAX, size_bytes - _LENGTH_BYTES)
    if text_bytes > text_bytes_max:
        raise _damaged(
            path, f"it has {size_bytes} bytes, and says that its header has {text_bytes}"
        )
    text = file.read(text_bytes)
    _check_digits(length, text, path)
    header = _decode(text, path)
    expected_bytes = _LENGTH_BYTES + text_bytes + header.data_bytes
    if size_bytes != expected_bytes:
        raise _damaged(path, f"expected {expected_bytes} bytes, found {size_bytes}")
    return header


def read_entry(file: BinaryIO, entry: Entry, header: Header, into: memoryview, path: Path) -> None:
    """Read the next tensor, in the order of the entries, and check it.

    Args:
        into: as many bytes as the tensor has; or a piece of memory that is used again and
            again, for a caller that only checks whether the tensor is as it was written.

    Raises:
        CorruptRecord: it is not; the message names the tensor.
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    for window in _windows(entry.end - entry.begin, into):
        if file.readinto(window) != len(window):  # type: ignore[attr-defined]
            break
        digest.update(window)
    if digest.hexdigest() != header.about.hashes[entry.name]:
        raise _damaged(path, f"tensor {entry.name} is not what was written")


def _windows(size_bytes: int, into: memoryview) -> Iterator[memoryview]:
    """Yield pieces of ``into``, one after the other, or its beginning if it is too short."""
    for begin in range(0, size_bytes, limits.SNAPSHOT_PIECE_BYTES):
        piece_bytes = min(limits.SNAPSHOT_PIECE_BYTES, size_bytes - begin)
        at = begin if len(into) >= size_bytes else 0
        yield into[at : at + piece_bytes]


def _check_digits(length: bytes, text: bytes, path: Path) -> None:
    if not text.startswith(_PREFIX):
        raise _damaged(path, "it does not begin like a snapshot or an export of swarmnode")
    digits, rest = text[len(_PREFIX) :][:_DIGITS], text[len(_PREFIX) + _DIGITS :]
    expected = hashlib.sha256(length + _PREFIX + _NO_DIGITS + rest).hexdigest().encode()
    if digits != expected:
        raise _damaged(path, "its header is not what was written")


def _decode(text: bytes, path: Path) -> Header:
    """Read a header that is as its writer made it; which node that was is another question."""
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(parts.pop("__metadata__"), type=_Metadata)
        about = msgspec.json.decode(metadata.swarmnode, type=About)
        places = {name: msgspec.json.decode(raw, type=_Place) for name, raw in parts.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"its header is none of ours ({error})") from error
    entries = sorted(
        (Entry(name, p.dtype, p.shape, *p.data_offsets) for name, p in places.items()),
        key=lambda entry: (entry.begin, entry.end),
    )
    end = 0
    for entry in entries:
        item_bytes = ITEM_BYTES.get(entry.dtype, 0)
        size_bytes = item_bytes * math.prod(entry.shape)
        if (
            item_bytes == 0
            or entry.begin % item_bytes
            or (entry.begin, entry.end) != (end, end + size_bytes)
            or entry.name not in about.hashes
        ):
            raise _damaged(path, f"its header does not say where tensor {entry.name} is")
        end = entry.end
    return Header(about, tuple(entries))


def _damaged(path: Path, how: str) -> CorruptRecord:
    return CorruptRecord(f"{path} is damaged: {how}", path=str(path))
