"""Documents, one after the other: from files of this node, or streamed from the Hugging Face hub.

A folder may hold text (each file a document), JSON lines and Parquet (each record one), in any
depth; files count in the order of their paths. So all nodes that have the same files number the
documents alike, and shard s of n is every n-th document from s on. A data set of the hub has
files too, and as many of its shards as can be are whole files, so that a node need not read what
is another's: see :class:`HubDocuments`.

Where a record has a list of messages, each with a role and a content, in place of a text, that is a
conversation, which the task makes one text of.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

from msgspec import Meta

from swarmnode import limits
from swarmnode.tasks.base import DataError
from swarmnode.tasks.text import load_corpus
from swarmnode.tasks.tokens import TOKENIZER_FILE

_JSON_LINES = frozenset({".jsonl", ".ndjson"})
_PARQUET = ".parquet"
_PARQUET_ROWS = 256  # at a time
_HASH_BLOCK_BYTES = 1 << 20
# Of an epoch: enough for nodes to share out, few enough that reading past others' costs little.
_FOLDER_SHARDS = 16
_HUB_SHARDS_MIN = 16
_MESSAGES_MAX = 4096  # of one conversation
_COMMIT = re.compile(r"[0-9a-f]{40}")

# OWNER/NAME[@REVISION]. A link comes from a stranger: what it says is a name, and never a path.
DataSetName = Annotated[
    str, Meta(pattern=r"^(?:\w[\w.-]{0,95}/\w[\w.-]{0,95}(?:@\w[\w./-]{0,95})?)?$")
]

# From messages, each with a role and a content, to one text.
Render = Callable[[list[dict[str, str]]], str]


class Documents(Protocol):
    """Attributes: ``n_shards`` of an epoch, which follows from the data alone."""

    n_shards: int

    def first(self, n: int) -> Iterator[str]:
        """Yield the first ``n`` documents: the held-out ones."""

    def shard(self, shard: int, n_shards: int, held_out: int) -> Iterator[str]:
        """Yield the documents of a shard, but no held-out one. Raises DataError."""

    def fingerprint(self, *more: bytes) -> str:
        """Return a hex SHA-256 of the data and of ``more``."""


def conversation(messages: list[dict[str, str]]) -> str:
    """Return messages as ChatML, for a model whose tokenizer says nothing of its own."""
    return "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)


def open_documents(
    data_dir: str,
    *,
    dataset: str,
    subset: str,
    split: str,
    text_field: str,
    render: Render = conversation,
) -> Documents:
    """Return the data set of the hub if one is named, else what is in the folder.

    With both, the folder has the data set: a clone of its repository, at that commit by the word of
    who names it. Raises DataError.
    """
    if dataset:
        return HubDocuments(data_dir, dataset, subset, split, text_field, render)
    if data_dir:
        return FolderDocuments(Path(data_dir), text_field, render)
    return CorpusDocuments()


class FolderDocuments:
    """Text, JSON lines and Parquet in a folder."""

    n_shards = _FOLDER_SHARDS

    def __init__(self, folder: Path, text_field: str, render: Render) -> None:
        if not folder.is_dir():
            raise DataError(f"data_dir: expected a folder, {folder} is none")
        self._text_field, self._render = text_field, render
        paths = (path for path in folder.rglob("*") if path.is_file())
        self._paths = sorted(path for path in paths if path.name != TOKENIZER_FILE)
        self._folder = folder
        if not self._paths:
            raise DataError(f"data_dir: no file in {folder}; put text, .jsonl or .parquet there")

    def all(self) -> Iterator[str]:
        """Yield every document."""
        for path in self._paths:
            if path.suffix in _JSON_LINES:
                yield from self._json_lines(path)
            elif path.suffix == _PARQUET:
                yield from self._parquet(path)
            else:
                yield from _text_file(path)

    def first(self, n: int) -> Iterator[str]:
        """See ``Documents``."""
        return islice(self.all(), n)

    def shard(self, shard: int, n_shards: int, held_out: int) -> Iterator[str]:
        """See ``Documents``."""
        return islice(self.all(), held_out + shard, None, n_shards)

    def fingerprint(self, *more: bytes) -> str:
        """See ``Documents``; reads every file once."""
        digest = hashlib.sha256(b"".join(more))
        for path in self._paths:
            digest.update(f"{path.relative_to(self._folder)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(_HASH_BLOCK_BYTES):
                    digest.update(block)
        return digest.hexdigest()

    def _json_lines(self, path: Path) -> Iterator[str]:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}:{number}: expected a JSON object") from error
                yield _text_of(record, self._text_field, f"{path}:{number}", self._render)

    def _parquet(self, path: Path) -> Iterator[str]:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise DataError(
                f"{path} needs pyarrow: pip install '.[data]' in the clone of swarmnode"
            ) from error
        with parquet.ParquetFile(path) as file:
            if self._text_field not in file.schema_arrow.names:
                raise DataError(_no_field(self._text_field, path, file.schema_arrow.names))
            for rows in file.iter_batches(_PARQUET_ROWS, columns=[self._text_field]):
                for record in rows.to_pylist():
                    yield _text_of(record, self._text_field, str(path), self._render)


class CorpusDocuments:
    """The texts that come with Python, a paragraph group each."""

    n_shards = _FOLDER_SHARDS

    def __init__(self) -> None:
        self._texts = load_corpus("").decode().split("\n\n\n")

    def first(self, n: int) -> Iterator[str]:
        """See ``Documents``."""
        return iter(self._texts[:n])

    def shard(self, shard: int, n_shards: int, held_out: int) -> Iterator[str]:
        """See ``Documents``."""
        return iter(self._texts[held_out + shard :: n_shards])

    def fingerprint(self, *more: bytes) -> str:
        """See ``Documents``."""
        return hashlib.sha256(b"".join((*more, load_corpus("")))).hexdigest()


class HubDocuments:
    """A data set of the Hugging Face hub, streamed by the library ``datasets``.

    With many files shard s has every n-th of them, whole. With few, each file makes several shards
    of every k-th document. Nothing is executed that the data set brings: the library refuses.

    Args:
        clone: a folder that has it; "": the hub is asked, for exactly one commit.
        name: NAME@COMMIT, which the fingerprint goes by: it is too long to be read first.
    """

    def __init__(
        self, clone: str, name: str, subset: str, split: str, text_field: str, render: Render
    ) -> None:
        try:
            import datasets
        except ImportError as error:
            raise DataError(
                f"data set {name} needs the library datasets: pip install '.[data]' in the clone"
                " of swarmnode"
            ) from error
        repository, _, commit = name.partition("@")
        if not clone:
            _check_is_of_hub(repository, commit)
        try:
            builder: Any = datasets.load_dataset_builder(
                clone or repository, subset or None, revision=None if clone else commit
            )
            # Where it reaches no hub, the library takes the newest of its cache.
            is_other = not clone and builder.hash != commit
            if not is_other:
                self._stream: Any = builder.as_streaming_dataset(split=split)
        # Whatever the hub, the network or the files are like, it is one line for the caller.
        except (OSError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())[:200]
            where = clone or "the hub"
            raise DataError(f"data set {name}: cannot be opened at {where}: {why}") from error
        if is_other:
            raise DataError(
                f"data set {name}: the hub cannot be reached, and the cache here has another commit"
            )
        self._about = f"{name}\0{subset}\0{split}\0{text_field}"
        self._text_field, self._render = text_field, render
        self._n_files = max(1, self._stream.num_shards)
        parts = -(-_HUB_SHARDS_MIN // self._n_files)
        self.n_shards = min(self._n_files * parts, limits.SHARDS_PER_EPOCH_MAX)

    def first(self, n: int) -> Iterator[str]:
        """See ``Documents``."""
        first_file = self._stream.shard(num_shards=self._n_files, index=0, contiguous=False)
        return (self._text(record) for record in first_file.take(n))

    def shard(self, shard: int, n_shards: int, held_out: int) -> Iterator[str]:
        """See ``Documents``; the held-out ones are the first of the first file."""
        n_groups = min(self._n_files, n_shards)
        group, part = shard % n_groups, shard // n_groups
        records = self._stream.shard(num_shards=n_groups, index=group, contiguous=False)
        n_parts = len(range(group, n_shards, n_groups))
        begin = part + (held_out if group == 0 else 0)
        return (self._text(record) for record in islice(records, begin, None, n_parts))

    def fingerprint(self, *more: bytes) -> str:
        """See ``Documents``."""
        return hashlib.sha256(b"".join((*more, self._about.encode()))).hexdigest()

    def _text(self, record: Any) -> str:
        return _text_of(record, self._text_field, self._about.split("\0", 1)[0], self._render)


def _check_is_of_hub(repository: str, commit: str) -> None:
    """Refuse what is no commit, or what the library would take for a folder here."""
    if not _COMMIT.fullmatch(commit):
        raise DataError(
            f"data set {repository}: expected its commit as well, dataset={repository}@ and 40"
            " hexadecimal digits, which `create` fills in: others come to train on other data"
        )
    if Path(repository).exists():
        raise DataError(
            f"data set {repository}: there is a file of that name in {Path.cwd()}, which would be"
            " read in its place: start in another folder"
        )


def _text_file(path: Path) -> Iterator[str]:
    """Yield the text of a file, unless it is none."""
    size = path.stat().st_size
    if size > limits.CORPUS_BYTES_MAX:
        raise DataError(
            f"data_dir: {path} has {size} bytes, more than one document may have: cut it into"
            " several, or make it .jsonl"
        )
    data = path.read_bytes()
    if b"\0" in data:
        return
    try:
        yield data.decode()
    except UnicodeDecodeError:
        return


def _text_of(record: Any, field: str, where: str, render: Render) -> str:
    text = record.get(field) if isinstance(record, dict) else None
    if isinstance(text, list) and _are_messages(text):
        text = render([{key: one[key] for key in ("role", "content")} for one in text])
    if not isinstance(text, str):
        raise DataError(_no_field(field, where, record if isinstance(record, dict) else ()))
    return text


def _are_messages(found: list[Any]) -> bool:
    return 0 < len(found) <= _MESSAGES_MAX and all(
        isinstance(one, dict)
        and isinstance(one.get("role"), str)
        and isinstance(one.get("content"), str)
        for one in found
    )


def _no_field(field: str, where: object, found: Any) -> str:
    names = ", ".join(list(found)[:8]) or "none"
    return (
        f"{where}: expected a text in the field {field!r}, got the fields {names}; set text_field"
    )
