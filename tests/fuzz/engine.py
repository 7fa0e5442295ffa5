"""A fuzzer that learns: an input that reaches what none did before is kept, and mutated on.

What an input reaches are the blocks of ``instrument.py``, and what its target says of it: how a
decoder refused it, which transitions of a core it made. Seeded: the same seed and number of
executions find the same.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

import msgpack
import msgspec

from tests.fuzz.instrument import HITS, PLACES

INPUT_BYTES_MAX = 4096
_HANG_S = 20
_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xC0, 0xC1, 0xC4, 0xDC, 0xDE)

# What an error of msgspec quotes of an input: a tag, an enum's value, a field's name, numbers.
_CAME = re.compile(r"(?<=value )['\"].*['\"]|(?<=unknown field )`.*`|\d", re.DOTALL)

Words = frozenset[str]


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        run: takes an input, and returns what it says of how that went.
        covers: names of functions and classes that it tries, "MODULE:NAME".
        declared: errors by which it may refuse an input.
        seeds: inputs to begin with.
        words: pieces of inputs.
        tree_at: where in an input its msgpack begins, which is mutated as a tree as well.
        story: an input, as lines for people.
    """

    name: str
    run: Callable[[bytes], Words]
    covers: tuple[str, ...]
    declared: tuple[type[Exception], ...] = ()
    seeds: tuple[bytes, ...] = ()
    words: tuple[bytes, ...] = ()
    tree_at: int | None = None
    story: Callable[[bytes], Sequence[str]] = field(default=lambda data: [data.hex()])


class Hang(Exception):
    """An input that takes longer than any may."""


@dataclass(frozen=True)
class Found:
    """An input that fails its target, as short as it could be made."""

    target: str
    data: bytes
    error: str  # where it was raised, and which it is
    text: str


def _refused(error: BaseException) -> str:
    """Which refusal this is, without what came: of those there is no end."""
    cause = error.__cause__
    if isinstance(cause, msgspec.ValidationError):
        return _CAME.sub("", str(cause))
    return type(error).__name__


class Campaign:
    """One target, its corpus, and what is reached."""

    def __init__(self, target: Target, corpus: Sequence[bytes], seed: int) -> None:
        self.target = target
        self.executions = 0
        self.corpus: list[bytes] = []
        self.reached: set[str] = set()
        self._blocks = 0  # bit i of byte i: as HITS
        self._rng = random.Random(f"{target.name} {seed}")
        self.found: dict[str, Found] = {}
        for data in (*corpus, *target.seeds, b""):
            self.take(data)
        self.corpus = self.corpus or [b""]  # where nothing is marked

    @property
    def n_blocks(self) -> int:
        return self._blocks.bit_count()

    def take(self, data: bytes) -> bool:
        """Run an input; whether it reached something new, or failed as none did before."""
        blocks, words, found = self._run(data)
        if found is not None and found.error not in self.found:
            self.found[found.error] = self._shrunk(found)
            return True
        if blocks & ~self._blocks or not words <= self.reached:
            self._blocks |= blocks
            self.reached |= words
            self.corpus.append(data)
            return True
        return False

    def step(self) -> bool:
        return self.take(self._mutated())

    def _run(self, data: bytes) -> tuple[int, Words, Found | None]:
        self.executions += 1
        n_blocks = len(PLACES)
        HITS[:n_blocks] = bytes(n_blocks)
        found = None
        words: Words = frozenset()
        try:
            words = self.target.run(data)
        except self.target.declared as error:
            words = frozenset([_refused(error)])
        except Exception as error:  # what is not declared is a failure
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            text = "".join(traceback.format_exception(error))
            found = Found(self.target.name, data, f"{where} {type(error).__name__}", text)
        return int.from_bytes(HITS[:n_blocks], "little"), words, found

    def _shrunk(self, found: Found) -> Found:
        """Return the same failure, by as few bytes as cutting leads to."""
        size = max(1, len(found.data) // 2)
        while size:
            at = 0
            while at < len(found.data):
                shorter = found.data[:at] + found.data[at + size :]
                other = self._run(shorter)[2]
                if other is not None and other.error == found.error:
                    found = other
                else:
                    at += size
            size //= 2
        return found

    # --- mutations ----------------------------------------------------------------------

    def _mutated(self) -> bytes:
        rng = self._rng
        # The newest have been tried least.
        newest = self.corpus[-16:]
        data = rng.choice(newest if rng.random() < 0.3 else self.corpus)
        at = self.target.tree_at
        if at is not None and rng.random() < 0.6:
            with contextlib.suppress(Exception):  # it is no msgpack: mutated as bytes
                return data[:at] + self._mutated_tree(data[at:])
        out = bytearray(data)
        for _ in range(1 << rng.randrange(4)):
            self._mutate(out)
        return bytes(out[:INPUT_BYTES_MAX])

    def _mutate(self, out: bytearray) -> None:
        rng = self._rng
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(8)
        if kind == 0 and out:
            out[at - 1] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[at - 1] = rng.choice(_EDGES) if rng.random() < 0.5 else rng.randrange(256)
        elif kind == 2 and out:
            out[at - 1] = (out[at - 1] + rng.randint(-8, 8)) % 256
        elif kind == 3:
            del out[at : at + (1 << rng.randrange(7))]
        elif kind == 4:
            out[at:at] = rng.randbytes(1 << rng.randrange(4))
        elif kind == 5 and self.target.words:
            word = rng.choice(self.target.words)
            out[at : at + rng.choice((0, len(word)))] = word
        elif kind == 6:
            start = rng.randrange(len(out) + 1)
            out[at:at] = out[start : start + (1 << rng.randrange(6))]
        else:
            other = rng.choice(self.corpus)
            start = rng.randrange(len(other) + 1)
            out[at:] = other[start:]

    def _mutated_tree(self, data: bytes) -> bytes:
        tree = msgpack.unpackb(data, strict_map_key=False)
        for _ in range(1 + self._rng.randrange(3)):
            tree = self._other(tree)
        return bytes(msgpack.packb(tree))[:INPUT_BYTES_MAX]

    def _other(self, tree: object) -> object:
        rng = self._rng
        if isinstance(tree, dict) and tree and rng.random() < 0.9:
            key = rng.choice(list(tree))
            if rng.random() < 0.1:
                return {name: each for name, each in tree.items() if name != key}
            return tree | {key: self._other(tree[key])}
        if isinstance(tree, list) and tree and rng.random() < 0.9:
            at = rng.randrange(len(tree))
            change = rng.randrange(6)
            if change == 0:
                return tree[:at] + tree[at + 1 :]
            if change == 1:
                return tree[:at] + tree
            return [*tree[:at], self._other(tree[at]), *tree[at + 1 :]]
        if isinstance(tree, bytes) and rng.random() < 0.7:
            out = bytearray(tree)
            self._mutate(out)
            return bytes(out) if rng.random() < 0.5 else bytes(out)[: len(tree)].ljust(len(tree))
        if isinstance(tree, int) and rng.random() < 0.7:
            return tree + rng.choice((-1, 1, 2**31, -(2**31)))
        return rng.choice(
            [
                *(None, True, 0, -1, 2**63 - 1, 2**64 - 1, 0.5, float("nan"), float("inf")),
                *("", "a", "x" * 300, b"", b"\0" * 32, [], {}, [[]], {"t": "a"}),
            ]
        )


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Raise Hang in what takes far more CPU than any input may."""

    def raise_hang(_signal: int, _frame: FrameType | None) -> None:
        raise Hang(f"expected an end within {_HANG_S} s")

    before = signal.signal(signal.SIGVTALRM, raise_hang)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def rearm() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANG_S)
