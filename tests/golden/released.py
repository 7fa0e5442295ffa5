"""What each released version has promised of its bytes: ``python -m tests.golden.released``.

``released/VERSION.json`` holds the vectors of ``messages.json`` as they were, each with what it was
read as, and a digest of every vector of the other files. The command writes the file of this
version (``swarmnode.__version__``), or adds to it what is not there yet; what is frozen stays.
"""

from __future__ import annotations

import enum
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from swarmnode import __version__
from swarmnode.wire.packing import decode_record
from tests.golden.messages import decoder_of, load_vectors

HERE = Path(__file__).parent
FOLDER = HERE / "released"
OTHERS = ("codecs-v1.json", "codecs-v1-more.json", "session-v1.json", "rules-v1.json")
_DIGITS = 16


def content(value: Any) -> Any:
    """Return what a record says, in JSON's words: all fields, those at their defaults too."""
    match value:
        case msgspec.UNSET:
            return "unset"
        case msgspec.Struct():
            fields = {name: content(getattr(value, name)) for name in value.__struct_fields__}
            tag = value.__struct_config__.tag
            return fields if tag is None else {"t": tag, **fields}
        case bytes():
            return value.hex()
        case enum.Enum():
            return value.value
        case tuple() | list():
            return [content(each) for each in value]
        case dict():
            return {name: content(each) for name, each in value.items()}
    return value


def read_now(name: str, data: bytes) -> Any:
    """Return what today's code makes of a message. Raises MalformedMessage."""
    return content(decode_record(data, decoder_of(name)))


def differs(frozen: Any, now: Any, where: str = "") -> str:
    """Return where ``now`` does not say what was frozen, "" if it does; new fields may be there."""
    match frozen, now:
        case dict(), dict():
            missing = [f"{where}/{name}" for name in frozen if name not in now]
            parts = [(frozen[name], now[name], name) for name in frozen if name in now]
        case list(), list() if len(frozen) == len(now):
            missing = []
            parts = [(*pair, str(at)) for at, pair in enumerate(zip(frozen, now, strict=True))]
        case _:
            is_same = type(frozen) is type(now) and frozen == now
            return "" if is_same else f"{where}: {frozen!r} is read as {now!r}"
    found = [differs(*pair, f"{where}/{name}") for *pair, name in parts]
    return "; ".join(missing + [each for each in found if each])


def digests_of(name: str) -> dict[str, str]:
    """Return a digest of each vector in one of the files that code reads bit by bit."""
    found = {}
    for section, held in json.loads((HERE / name).read_text(encoding="utf-8")).items():
        match held:
            case dict():
                vectors = list(held.items())
            case list():  # only ever longer, so that a number stays a name
                vectors = list(enumerate(held))
            case _:
                vectors = [] if section == "about" else [("", held)]
        for key, vector in vectors:
            text = json.dumps(vector, sort_keys=True)
            found[f"{section}/{key}"] = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return found


def freeze(path: Path) -> list[str]:
    """Write what is not frozen there yet; return the names."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    frozen = held.setdefault("messages", {})
    added = []
    for name, data in load_vectors().items():
        if name not in frozen:
            frozen[name] = {"bytes": data.hex(), "read": read_now(name, data)}
            added.append(name)
    for other in OTHERS:
        frozen = held.setdefault(other, {})
        new = {name: digest for name, digest in digests_of(other).items() if name not in frozen}
        frozen |= new
        added += [f"{other}: {name}" for name in new]
    if added:
        path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return added


if __name__ == "__main__":
    names = freeze(FOLDER / f"{__version__}.json")
    sys.stdout.write("".join(f"{name}\n" for name in names))
