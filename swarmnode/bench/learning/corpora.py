"""Two texts that lie on any machine with Python, on which nothing of swarmnode was tuned.

``code``: sources of the standard library, of ``email``, ``http`` and ``xml``. ``english``: what
the docstrings of its modules outside of packages say. Both are the same wherever the version of
Python is; :func:`describe` names what they were made from. What settings were tuned on is the text
that comes with ``bytes-lm`` (``pydoc_data``), and that is in neither.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from swarmnode.errors import ConfigError
from swarmnode.store.files import make_private_dir, write_atomic

_PACKAGES = ("email", "http", "xml")
_BYTES_MIN = 100_000  # less is no text to learn from: some distributions leave sources out
_BYTES_MAX = 600_000  # more than the runs here read once, and little enough to read quickly
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DIGITS = 12  # of a hash, for people


@lru_cache(maxsize=1)
def read_corpora() -> dict[str, bytes]:
    """Return the texts by name.

    Raises:
        ConfigError: the standard library has no sources here.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = {
        "code": _joined(path.read_bytes() for path in _sources(root)),
        "english": _joined(text.encode() for text in _docstrings(sorted(root.glob("*.py")))),
    }
    for name, text in found.items():
        if len(text) < _BYTES_MIN:
            raise ConfigError(
                f"expected the sources of Python's standard library in {root}, got {len(text)}"
                f" bytes of {name} text: use a Python that comes with them"
            )
    return found


def write_corpora(folder: Path) -> dict[str, Path]:
    """Write each text into a folder of its own below ``folder``; return those by name.

    Raises:
        ConfigError: as :func:`read_corpora`.
        OSError: they cannot be written.
    """
    folders = {}
    for name, text in read_corpora().items():
        folders[name] = folder / name
        make_private_dir(folders[name])
        write_atomic(folders[name] / "text.txt", text)
    return folders


def describe() -> str:
    """Return what the texts are, as a part of a sentence, with their hashes. Raises ConfigError."""
    hashes = " and ".join(
        f"{name} {hashlib.sha256(text).hexdigest()[:_DIGITS]}"
        for name, text in read_corpora().items()
    )
    return (
        f"sources of Python {platform.python_version()}'s {', '.join(_PACKAGES)} (code) and the"
        f" docstrings of its modules outside of packages (english), on which"
        f" nothing was tuned; SHA-256 {hashes}"
    )


def _joined(parts: Iterable[bytes]) -> bytes:
    """Return the first of them, up to so many bytes: whole characters of UTF-8."""
    text = b""
    for part in parts:
        text += part + b"\n\n"
        if len(text) >= _BYTES_MAX:
            break
    return text[:_BYTES_MAX].decode(errors="ignore").encode()


def _sources(root: Path) -> Iterator[Path]:
    for package in _PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def _docstrings(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, _DOCUMENTED):
                text = ast.get_docstring(node)
                if text:
                    yield text
