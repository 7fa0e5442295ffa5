"""Makes the golden results of rules: ``python -m tests.golden.rule_vectors``.

Two members make the same part of a group's mean, each by its own code, and nothing is applied where
they differ. So what a rule makes of given shares belongs to the version of the strategies that have
it. The command adds what is not there yet; what is there stays.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from swarmnode.ipc.records import ViewShape
from swarmnode.strategies.installed import look_at_strategy
from swarmnode.strategies.merging.rules import hashes_of
from swarmnode.strategies.merging.slot import GroupMerge
from swarmnode.tensor.pieces import Piece, cut_chunks, cut_pieces

PATH = Path(__file__).with_name("rules-v1.json")
RULES = sorted(get_args(GroupMerge))
STRATEGIES = ("diloco", "sparse", "streaming")  # those with a rule of groups
VIEWS = (ViewShape("delta", "Q8B64", 192), ViewShape("phi", "RAW32", 64))


@dataclass(frozen=True)
class Case:
    """The shares of some members: what each is times as long as others, and how it counts.

    Attributes:
        scales: of each; a negative one is what most have, turned around.
        shared: how much of a share all have in common, beside 1 of its own.
        weights: of each in a mean.
    """

    scales: tuple[float, ...]
    shared: float = 2.0
    weights: tuple[float, ...] = ()


CASES = {
    "three": Case((1, 1, 1), weights=(1.0, 0.5, 0.25)),
    "three-one-outsized": Case((1, 1, 1024)),
    "four-one-outsized": Case((1, 1, 1, 1024), weights=(1.0, 1.0, 0.5, 1.0)),
    "four-at-speeds": Case((4.5, 2.5, 1, 0.375), weights=(1.0, 1.0, 1.0, 0.5)),
    "five-one-turned": Case((1, 1, -1, 1, 1)),
    "seven-one-of-nothing": Case((1, 1, 1, 0, 1, 1, 1), weights=(1.0, 0.75, 1.0, 1.0, 0.5, 1, 1)),
    "eight-at-right-angles": Case((1, 1, 1, 1, 1, 1, 1, 1), shared=0.0),
    "nine-two-long": Case((1, 1, 1, 8, 1, 1, 1, 16, 1)),
}


def cut() -> Piece:
    """Return the one piece that all is."""
    (piece,) = cut_pieces(cut_chunks(VIEWS, "RAW32"), 1)
    return piece


def shares_of(name: str) -> list[list[bytearray]]:
    """Return of each member of a case the payloads of the parts."""
    case = CASES[name]
    numel = sum(view.numel for view in VIEWS)
    common = case.shared * _drawn(f"{name} all", numel)
    rows = [
        scale * (common + _drawn(f"{name} {number}", numel))
        for number, scale in enumerate(case.scales)
    ]
    return [list(_encoded(row.astype(np.float32), cut())) for row in rows]


def made(rule: str, name: str, maker: int = 1) -> list[str]:
    """Return a digest of what a member makes of a case, for each candidate."""
    shares = shares_of(name)
    weights = CASES[name].weights or (1.0,) * len(shares)
    return [found.hex()[:16] for found in hashes_of(rule, cut(), shares, weights, maker)]


def vectors() -> dict[str, Any]:
    """Return everything that the file holds."""
    return {
        "about": "What rules make of the shares that rule_vectors.py draws. See proto/group.md.",
        "strategies": {name: look_at_strategy(name).version for name in STRATEGIES},
        "shares": {name: _digest(shares_of(name)) for name in CASES},
        "made": {f"{rule} {name}": made(rule, name) for rule in RULES for name in CASES},
    }


def add(path: Path) -> list[str]:
    """Write what is not there yet; return the names."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    added = []
    for section, now in vectors().items():
        if isinstance(now, str):
            held.setdefault(section, now)
            continue
        there = held.setdefault(section, {})
        new = {name: value for name, value in now.items() if name not in there}
        there |= new
        added += [f"{section}: {name}" for name in new]
    if added:
        path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return added


def _drawn(seed: str, numel: int) -> NDArray[np.float64]:
    """Return whole multiples of 2⁻¹⁵ from -1 to 1, which no machine rounds: [numel]."""
    data = hashlib.shake_256(seed.encode()).digest(2 * numel)
    return np.frombuffer(data, "<i2").astype(np.float64) / 2**15


def _encoded(row: NDArray[np.float32], piece: Piece) -> Iterator[bytearray]:
    begin = 0
    for part in piece:
        payload = bytearray(part.codec.payload_bytes(part.numel))
        part.codec.encode(row[begin : begin + part.numel].data, payload)
        begin += part.numel
        yield payload


def _digest(shares: Sequence[Sequence[bytearray]]) -> str:
    whole = b"".join(bytes(payload) for share in shares for payload in share)
    return hashlib.sha256(whole).hexdigest()[:16]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}\n" for name in add(PATH)))
