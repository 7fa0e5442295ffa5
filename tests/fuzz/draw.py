"""Values of any type out of bytes, so that what mutates bytes mutates events and messages.

The same bytes give the same values. There are few of each kind, so that two events often mean the
same peer or exchange; and what a core has named in its effects is there to be named back.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec

from swarmnode.ids import PeerId

Maker = Callable[["Draw"], Any]
ChoiceT = TypeVar("ChoiceT")

_INTS = (0, 1, 2, 3, 7, 16, 255, 1000, 65_535, 2**31, 2**53, 2**63 - 1)
_FLOATS = (0.0, 1.0, 0.5, 3.0, 60.0, 1e-9, 1e9, 1e18, -1.0, 1e300, math.inf, math.nan)
_LENGTHS = (0, 1, 2, 3, 4, 12, 16, 24, 32, 64, 96)
_TEXTS = (
    "a", "b", "", "1:00ab12", "0/1", "1/0", "mean", "none", "10.0.0.1:7337", "[2001:db8::1]:7337",
    "11.22.33.44:5", "0123456789abcdef", "FP32", "0-1 1-2", "x" * 64, "x" * 260, "ж", "busy: full",
    "a" * 16, "7", "1.2.3", "candidate:1 1 UDP 1 1.2.3.4 5 typ host",
)  # fmt: skip
_LEARNED_MAX = 16


class Draw:
    """Reads ``data`` as a series of choices; when it is at its end, each choice is the first."""

    def __init__(self, data: bytes, makers: Mapping[Any, Maker], peers: Sequence[PeerId]) -> None:
        self._data = data
        self._at = 0
        self._makers = makers
        self.peers = peers
        self._learned: list[Any] = []

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, n: int) -> int:
        return self.byte() % n

    def choose(self, choices: Sequence[ChoiceT]) -> ChoiceT:
        return choices[self.below(len(choices))]

    def learn(self, value: Any, depth: int = 0) -> None:
        """Keep the names and numbers in an effect."""
        if isinstance(value, bytes) or (isinstance(value, int) and not isinstance(value, bool)):
            if value not in self._learned:
                self._learned.append(value)
                del self._learned[:-_LEARNED_MAX]
        elif dataclasses.is_dataclass(value) and depth < 4:
            for field in dataclasses.fields(value):
                self.learn(getattr(value, field.name), depth + 1)
        elif isinstance(value, msgspec.Struct) and depth < 4:
            for name in value.__struct_fields__:
                self.learn(getattr(value, name), depth + 1)
        elif isinstance(value, tuple) and depth < 4:
            for each in value[:4]:
                self.learn(each, depth + 1)

    # --- types --------------------------------------------------------------------------

    def value(self, hint: Any, *, meta: msgspec.Meta | None = None) -> Any:
        if hint in self._makers:
            return self._makers[hint](self)
        origin = typing.get_origin(hint)
        if origin is Annotated:
            inner, *notes = typing.get_args(hint)
            found = next((each for each in notes if isinstance(each, msgspec.Meta)), None)
            return self.value(inner, meta=found)
        if origin in (Union, types.UnionType):
            return self.value(self.choose(typing.get_args(hint)), meta=meta)
        if origin is Literal:
            return self.choose(typing.get_args(hint))
        if origin is not None:
            return self._many(origin, typing.get_args(hint), meta)
        return self._plain(hint, meta)

    def field_of(self, kind: type, name: str) -> Any:
        """Return a value for one field of a message."""
        return self.value(_hints(kind)[name])

    def _many(self, origin: Any, of: tuple[Any, ...], meta: msgspec.Meta | None) -> Any:
        fewest = (meta.min_length if meta else None) or 0
        most = (meta.max_length if meta else None) or 4
        if origin is tuple and Ellipsis not in of:
            return tuple(self.value(each) for each in of)
        size = min(fewest + self.below(4), most)
        if issubclass(origin, Mapping):
            return {self.value(of[0]): self.value(of[1]) for _ in range(size)}
        return (frozenset if issubclass(origin, frozenset) else tuple)(
            self.value(of[0]) for _ in range(size)
        )

    def _plain(self, hint: Any, meta: msgspec.Meta | None) -> Any:
        if hint is PeerId:
            return self.choose(self.peers)
        if hint in (None, type(None)):
            return None
        if hint is bool:
            return bool(self.below(2))
        if hint is int:
            return self._int(meta)
        if hint is float:
            return self.choose(_within(_FLOATS, meta) if meta else _FLOATS[:7])
        if hint is str:
            return self.choose(_texts(meta))
        if hint is bytes:
            return self._bytes(meta)
        if hint is msgspec.UnsetType:
            return msgspec.UNSET
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return self.choose(tuple(hint))
        if isinstance(hint, type):
            hints = _hints(hint)
            return hint(**{name: self.value(each) for name, each in hints.items()})
        raise TypeError(f"{hint}: teach tests/fuzz/draw.py to make one")

    def _int(self, meta: msgspec.Meta | None) -> int:
        known = [each for each in self._learned if isinstance(each, int)]
        choices = _within((*_INTS[:6], *_INTS[6:]), meta) if meta else _INTS[:5]
        known = [each for each in known if not meta or _is_within(each, meta)]
        return self.choose((*choices, *known)) if choices or known else int(meta.ge or 0)  # type: ignore[union-attr]

    def _bytes(self, meta: msgspec.Meta | None) -> bytes:
        fewest = (meta.min_length if meta else None) or 0
        most = meta.max_length if meta and meta.max_length is not None else 96
        lengths = [each for each in _LENGTHS if fewest <= each <= most] or [fewest]
        size = fewest if fewest == most else self.choose(lengths)
        known: list[bytes] = [each for each in self._learned if isinstance(each, bytes)]
        known += [bytes(each) for each in self.peers]
        known = [each for each in known if len(each) == size]
        which = self.below(len(known) + 4)
        return known[which - 4] if which >= 4 else bytes([which]) * size


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, msgspec.Struct):
        return {name: hints[name] for name in kind.__struct_fields__}
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return {each.name: hints[each.name] for each in fields if each.init}


def _is_within(value: float, meta: msgspec.Meta) -> bool:
    return (
        (meta.ge is None or value >= meta.ge)
        and (meta.le is None or value <= meta.le)
        and (meta.gt is None or value > meta.gt)
        and (meta.lt is None or value < meta.lt)
    )


def _within(values: Sequence[Any], meta: msgspec.Meta) -> list[Any]:
    bounds = [each for each in (meta.ge, meta.le) if each is not None]
    return [each for each in (*values, *bounds) if _is_within(each, meta)]


def _texts(meta: msgspec.Meta | None) -> tuple[str, ...]:
    return _texts_of(meta and (meta.min_length, meta.max_length, meta.pattern))


@functools.cache
def _texts_of(bounds: tuple[int | None, int | None, str | None] | None) -> tuple[str, ...]:
    if bounds is None:
        return _TEXTS
    fewest, most, pattern = bounds
    fit = [each for each in _TEXTS if (fewest or 0) <= len(each) <= (most or 1000)]
    return tuple(each for each in fit if pattern is None or re.search(pattern, each)) or ("a",)
