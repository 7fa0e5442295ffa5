"""Texts that lie on any machine that trains, for findings on what was not tuned on them.

``code``: sources of the standard library, of ``email``, ``http`` and ``xml``. ``english``: what
the docstrings of its modules outside of packages say. ``torch``: what those of its ``nn`` say. Each
is the same wherever the version of Python, or of torch, is; :func:`describe` names what they were
made from. How long rounds of ``bytes-lm`` are was chosen on ``english``: what trains by that has
``torch`` in its place.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import platform
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
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
    """Return code and english by name.

    Raises:
        ConfigError: the standard library has no sources here.
    """
    root = Path(sysconfig.get_path("stdlib"))
    whence = f"the sources of Python's standard library in {root}"
    return {
        "code": _checked(_joined(path.read_bytes() for path in _sources(root)), whence),
        "english": _checked(_said_in(sorted(root.glob("*.py"))), whence),
    }


@lru_cache(maxsize=1)
def read_untuned() -> dict[str, bytes]:
    """Return code and torch by name: what nothing of ``bytes-lm`` was chosen on.

    Raises:
        ConfigError: the standard library has no sources here, or there is no torch.
    """
    found = importlib.util.find_spec("torch")  # which is not imported so
    if found is None or found.origin is None:
        raise ConfigError("expected torch, whose documentation is a text to learn; install it")
    root = Path(found.origin).parent / "nn"
    said = _said_in(sorted(root.rglob("*.py")))
    return {
        "code": read_corpora()["code"],
        "torch": _checked(said, f"the sources of torch in {root}"),
    }


def _checked(text: bytes, whence: str) -> bytes:
    if len(text) < _BYTES_MIN:
        raise ConfigError(
            f"expected {whence}, got {len(text)} bytes of text: use an installation that comes"
            " with them"
        )
    return text


def _said_in(paths: list[Path]) -> bytes:
    return _joined(text.encode() for text in _docstrings(paths))


def write_texts(texts: Mapping[str, bytes], folder: Path) -> dict[str, Path]:
    """Write each text into a folder of its own below ``folder``; return those by name.

    Raises:
        OSError: they cannot be written.
    """
    folders = {}
    for name, text in texts.items():
        folders[name] = folder / name
        make_private_dir(folders[name])
        write_atomic(folders[name] / "text.txt", text)
    return folders


def describe() -> str:
    """Return what code and english are, as a part of a sentence, with their hashes.

    Raises:
        ConfigError: as :func:`read_corpora`.
    """
    return (
        f"sources of Python {platform.python_version()}'s {', '.join(_PACKAGES)} (code) and the"
        " docstrings of its modules outside of packages (english), on which"
        f" nothing was tuned; SHA-256 {_hashes(read_corpora())}"
    )


def describe_untuned() -> str:
    """Return what code and torch are, likewise. Raises ConfigError, as :func:`read_untuned`."""
    texts = read_untuned()  # or says that there is no torch
    torch_version = importlib.metadata.version("torch").partition("+")[0]  # of any build
    return (
        f"sources of Python {platform.python_version()}'s {', '.join(_PACKAGES)} (code) and the"
        f" docstrings of torch {torch_version}'s nn (torch), on which"
        f" nothing was tuned; SHA-256 {_hashes(texts)}"
    )


def _hashes(texts: Mapping[str, bytes]) -> str:
    hashes = {name: hashlib.sha256(text).hexdigest()[:_DIGITS] for name, text in texts.items()}
    return " and ".join(f"{name} {digits}" for name, digits in hashes.items())


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
