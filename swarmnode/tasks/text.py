"""Text corpora as bytes: the prose that comes with Python, or a folder of the user's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

from swarmnode import limits
from swarmnode.tasks.base import DataError

HELD_OUT_SHARE = 0.1


def load_corpus(data_dir: str) -> bytes:
    """Return the text of ``data_dir``, or Python's own documentation where that is empty.

    Raises:
        DataError: no folder, no text in it, or more than ``limits.CORPUS_BYTES_MAX``.
    """
    return _read_folder(Path(data_dir)) if data_dir else _python_topics()


def _python_topics() -> bytes:
    """Return about 0.46 MB of English: the texts behind ``help('if')`` and its like."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:  # some distributions split it off
        raise DataError(
            "expected the module pydoc_data of Python, which is not installed; "
            "install Python's documentation topics or name a folder of text as data_dir"
        ) from error
    return "\n".join(topics[key] for key in sorted(topics)).encode()


def _read_folder(folder: Path) -> bytes:
    if not folder.is_dir():
        raise DataError(f"data_dir: expected a folder of text files, {folder} is none")
    texts: list[bytes] = []
    total_bytes = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes()
        if not _is_text(text):
            continue
        total_bytes += len(text)
        if total_bytes > limits.CORPUS_BYTES_MAX:
            raise DataError(
                f"data_dir: {folder} holds more than {limits.CORPUS_BYTES_MAX} bytes of text, "
                "which would not fit in memory; name a smaller folder"
            )
        texts.append(text)
    if not texts:
        raise DataError(f"data_dir: no text file (UTF-8) in {folder}; put some there")
    return b"\n".join(texts)


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def split(corpus: bytes) -> tuple[bytes, bytes]:
    """Return (training part, held-out tail)."""
    cut = int(len(corpus) * (1 - HELD_OUT_SHARE))
    return corpus[:cut], corpus[cut:]


def corpus_hash(corpus: bytes) -> str:
    """Return the hex SHA-256 of the corpus and of the way in which it is split."""
    digest = hashlib.sha256(f"held out: last {HELD_OUT_SHARE}\n".encode())
    digest.update(corpus)
    return digest.hexdigest()
