"""Where a node in a lineage is, as it says; when one that is behind asks, and what it believes.

Its place is its lineage and the number of its round. Three float32 travel as a view, and a peer may
put anything there. So they are whole numbers in their range or refused, no lineage has more outer
steps than there were rounds, and no node is moved far ahead on one peer's word: beyond
ROUNDS_AHEAD_MAX a second peer must have said about the same. That does not stop peers that lie
together. Nor does a node take over what makes it much worse on the public probe, as it is or after
the step that its momentum would take: where lineages differ a little worse has to do, and before
its first mean what is no worse than the weights that all began with.

What is given names its place itself, and no hash of it is known to others, as the last bits may
differ between kinds of hardware. So each says the projection of a sample on signs that follow from
the place (the AMS sketch: N. Alon, Y. Matias, M. Szegedy, "The space complexity of approximating
the frequency moments", 1996, with one row): two differ by about the length of what their weights
differ in. Who prepares weights for one place is found out at the next, which has other elements and
signs.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from swarmnode.strategies.context import LossAt
from swarmnode.strategies.exchanges import Exchange, Intent
from swarmnode.strategies.merging.slot import is_mild
from swarmnode.strategies.ranges import not_finite, outside, too_large

# How far one peer's word may move a node on at once: a node that was away for longer than
# SNAPSHOT_STALE_S begins with a snapshot, and a round takes half a second at the least.
ROUNDS_AHEAD_MAX = 1024
# Peers whose words about a swarm that is further ahead are kept, to compare them.
_ROUNDS_SAID_MAX = 16

PLACE_NUMEL = 3
HASH_BITS = 24  # so that a lineage is two exact float32 numbers, and can be sent as a view
COUNT_MAX = 2**24
# What a sketch looks at of larger models, up to twice as many: a millisecond, in rounds of seconds.
SAMPLE_ELEMS = 2**16
ANY_LINEAGE = b""  # asked for by a node on the wrong one: also what is less far than its own

_ASKS_MAX = 3  # peers for each round that came to nothing: the answers are whole models
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """``count`` outer steps, ``hashed`` over the members that took part, in round ``round``."""

    count: int
    hashed: int
    round: int

    @property
    def version(self) -> bytes:
        """What orders lineages: the longer one is further, then the larger hash."""
        return self.count.to_bytes(8, "big") + self.hashed.to_bytes(8, "big")


def lineage_version(lineage: torch.Tensor) -> bytes:
    """Return the version of a lineage: [2], its outer steps and its hash."""
    count, hashed = (int(part) for part in lineage.tolist())
    return Place(count, hashed, 0).version


def extend_lineage(lineage: torch.Tensor, present: Iterable[bytes]) -> None:
    """Count an outer step, and hash over the members that took part in it."""
    material = lineage_version(lineage) + b"".join(present)
    hashed = int.from_bytes(hashlib.sha256(material).digest()[: HASH_BITS // 8], "big")
    lineage.copy_(torch.tensor([(int(lineage[0]) + 1) % COUNT_MAX, hashed]))


def sketch(weights: torch.Tensor, place: bytes) -> tuple[float, float] | None:
    """Return the projection of a sample of ``weights`` [numel], and the length of the sample.

    ``place``: where the weights stand in their lineage. None: they are no numbers.
    """
    stride = max(1, weights.numel() // SAMPLE_ELEMS)
    drawn = hashlib.shake_256(place)
    first = int.from_bytes(drawn.digest(8), "big") % stride
    sample = weights[first::stride].cpu().double().numpy()  # not all devices have doubles
    bits = np.frombuffer(drawn.digest(8 + -(-len(sample) // 8)), np.uint8)[8:]
    signs = 1.0 - 2.0 * np.unpackbits(bits, count=len(sample))
    projection, length = float((sample * signs).sum()), float(np.sqrt(np.square(sample).sum()))
    return (projection, length) if math.isfinite(length) else None


def lineage_refusal(lineage: torch.Tensor) -> str | None:
    """Return why these two numbers are no lineage, or None."""
    count, hashed = lineage.tolist()
    return outside("the outer steps of a lineage", count, 0, COUNT_MAX - 1) or outside(
        "the hash of a lineage", hashed, 0, 2**HASH_BITS - 1
    )


def read_place(numbers: torch.Tensor) -> Place | str:
    """Return what ``numbers`` [3] of a peer say, or why they are refused."""
    count, hashed, round_number = numbers.tolist()
    why = lineage_refusal(numbers[:2]) or outside("the round", round_number, 0, COUNT_MAX)
    if why:
        return why
    if count > round_number + ROUNDS_AHEAD_MAX:
        return f"expected as many outer steps as rounds at the most, got {count:g} in round " + (
            f"{round_number:g}"
        )
    return Place(int(count), int(hashed), int(round_number))


@dataclass
class Words:
    """What peers have said of a swarm that is far ahead of this node."""

    _said: dict[bytes, int] = field(default_factory=dict)

    def refusal(self, peer: bytes, place: Place, own_round: int) -> str | None:
        """Return why this node does not follow a peer to ``place``, or None."""
        ahead = max(place.round, place.count)
        if ahead <= own_round + ROUNDS_AHEAD_MAX:
            return None
        others = [said for other, said in self._said.items() if other != peer]
        self._said.pop(peer, None)
        self._said[peer] = ahead
        while len(self._said) > _ROUNDS_SAID_MAX:
            del self._said[next(iter(self._said))]
        if any(abs(said - ahead) <= ROUNDS_AHEAD_MAX for said in others):
            return None
        return (
            f"expected a place up to {ROUNDS_AHEAD_MAX} rounds ahead of round {own_round}, "
            f"got {ahead}, which no other peer has said"
        )


def no_harm(_vectors: Mapping[str, torch.Tensor]) -> str | None:
    """Refuse nothing, where there is no public probe."""
    return None


def harm_at(probe: LossAt, own: torch.Tensor, others: Iterable[torch.Tensor]) -> str | None:
    """Return why a model [numel] is not replaced by others, of which none may be much worse."""
    before = probe(own)
    for other in others:
        after = probe(other)
        if math.isfinite(before) and not is_mild(before, after):
            return f"expected a loss on the public probe near {before:.3g}, got {after:.3g}"
    return None


@dataclass
class CatchUps:
    """Counts what was asked and refused. ``is_stray``: most are on another lineage."""

    is_stray: bool = False
    refused: int = 0  # answers of peers
    _is_behind: bool = False
    _is_asking: bool = False  # an answer is on its way, which a second question would end
    _asks_left: int = 0  # for this round, where answers are refused
    _words: Words = field(default_factory=Words)

    def note_missed(self) -> None:
        """Take note that a round came to nothing."""
        self._is_behind, self._asks_left = True, _ASKS_MAX

    def note_unanswered(self) -> None:
        """Take note that no peer gave what was asked for."""
        self._is_asking = False

    def due(self, pull: Callable[[], Intent]) -> list[Intent]:
        """Return what is due after a step: one ``pull`` for a missed round, if all goes well.

        While an answer is on its way none: no answer that takes longer than a round would come to
        its end.
        """
        if self._is_asking:
            return []
        is_behind, is_stray = self._is_behind, self.is_stray
        self._is_behind = self.is_stray = False
        self._is_asking = is_behind or is_stray
        if is_stray:
            return [replace(pull(), base_version=ANY_LINEAGE)]
        return [pull()] if is_behind else []

    def place_of(
        self,
        exchange: Exchange,
        own_round: int,
        x: torch.Tensor,
        harm: Callable[[Mapping[str, torch.Tensor]], str | None] = no_harm,
    ) -> Place | None:
        """Return where a peer is that has answered, or None: it is refused, ask another.

        ``harm``: returns why vectors that are finite and in range are refused all the same.
        """
        self._is_asking = False
        ((peer, received),) = exchange.got.items()
        place = read_place(received.views["place"])
        if isinstance(place, Place):
            vectors = {name: view for name, view in received.views.items() if name != "place"}
            why = (
                self._words.refusal(peer, place, own_round)
                or not_finite(vectors)
                or too_large(vectors, x)
                or harm(vectors)
            )
            if not why:
                self._is_behind = self.is_stray = False  # that was said of where it stood before
                return place
        else:
            why = place
        self.refused += 1
        self._asks_left -= 1
        self._is_behind = self._is_behind or self._asks_left > 0  # another may be honest
        _log.warning("the answer of %s to a catch-up is refused: %s", peer.hex()[:8], why)
        return None
