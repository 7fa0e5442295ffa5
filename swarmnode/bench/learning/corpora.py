"""Texts that lie on any machine that trains, for findings on what was not tuned on them.

``code``: sources of the standard library, of ``email``, ``http`` and ``xml``. ``english``: what
the docstrings of its modules outside of packages say. Each is the same wherever the version of
Python is; :func:`describe` names what they were made from. How long rounds of ``bytes-lm`` are was
chosen on ``english``: what trains by that has other and longer texts, sources of torch and the
docstrings of sympy, which comes with it.
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
# Eight nodes read them two or three times in 1,200 steps. What they read sixteen times, data
# parallelism seems to learn by heart: it was worse than a swarm, with no gain to keep a part of.
_UNTUNED_BYTES_MAX = 4_000_000
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
    """Return code and docs by name: what nothing of ``bytes-lm`` was chosen on.

    Raises:
        ConfigError: there is no torch, which brings sympy, or they have no sources here.
    """
    code, docs = _root_of("torch") / "_inductor", _root_of("sympy")
    sources = (path.read_bytes() for path in sorted(code.rglob("*.py")))
    said = (text.encode() for text in _docstrings(sorted(docs.rglob("*.py"))))
    return {
        "code": _checked(_joined(sources, _UNTUNED_BYTES_MAX), f"the sources of torch in {code}"),
        "docs": _checked(_joined(said, _UNTUNED_BYTES_MAX), f"the sources of sympy in {docs}"),
    }


def _root_of(package: str) -> Path:
    """Return where a package lies, which is not imported so. Raises ConfigError."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ConfigError(f"expected {package}, which is a text to learn here; install torch")
    return Path(found.origin).parent


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
    """Return what code and docs are, likewise. Raises ConfigError, as :func:`read_untuned`."""
    texts = read_untuned()  # or says that there is no torch
    torch, sympy = (importlib.metadata.version(name) for name in ("torch", "sympy"))
    return (
        f"sources of torch {torch.partition('+')[0]}'s _inductor (code) and the docstrings of"
        f" sympy {sympy} (docs), on which nothing was chosen but, by the bytes that an earlier run"
        f" sent, from which mean on rounds grow; SHA-256 {_hashes(texts)}"
    )


def _hashes(texts: Mapping[str, bytes]) -> str:
    hashes = {name: hashlib.sha256(text).hexdigest()[:_DIGITS] for name, text in texts.items()}
    return " and ".join(f"{name} {digits}" for name, digits in hashes.items())


def _joined(parts: Iterable[bytes], bytes_max: int = _BYTES_MAX) -> bytes:
    """Return the first of them, up to so many bytes: whole characters of UTF-8."""
    text = b""
    for part in parts:
        text += part + b"\n\n"
        if len(text) >= bytes_max:
            break
    return text[:bytes_max].decode(errors="ignore").encode()


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
