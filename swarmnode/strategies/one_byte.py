"""One byte: zeroth-order training where all that a node ever sends is one byte a step.

Source: E. Zelikman, Q. Huang, P. Liang, N. Haber, N. Goodman, "Just one byte (per gradient)", 2023,
and the authors' code; J. Spall, "Multivariate stochastic approximation using a simultaneous
perturbation gradient approximation", 1992 (SPSA); S. Malladi et al., "Fine-tuning language models
with just forward passes", 2023 (MeZO). In round t node k measures the loss of its batch along a
random direction that all can draw from (seed, t, k), and publishes the slope in the LOG::

    g = (loss(x + ε z) − loss(x − ε z)) / 2ε          z = z(seed, t, k) in {−1, 1}^d
    x ← x − lr / n Σ_k ĝ_k z(seed, t, k)              over the n records of a closed round

Every node applies the same records in the same order, so all of them keep the same bits: the sum
over records is a sequence of x += c z with c rounded to the dtype of x before, which is exact up
to one rounding an element on every machine. A late record is in a later round and keeps its z. A
newcomer needs one snapshot and the rounds since.

The byte: the sign, and q in 1..127 with |g| = exp(−9 + q/8); 0 is 0. That is 1.4e-4 to 968 within
6.5 %.

A record that lies. Slopes are about N(0, |∇|²), so those of a swarm are of one size; what a member
makes up can be anything, and moves the model of all. With ``bound`` set, a record counts as no more
than so many times the median size of the last ones, its round's among them, which fewer than half
of the members cannot choose; and as one of as many as have authors among those, so that who makes a
round gains no weight by leaving out the others'. Until there are some, none counts. All nodes find
the same.

Deviations. The authors draw z from N(0, I), which no library promises to repeat across versions
and devices; the signs here are bits of SHAKE-128, E zzᵀ = I as well. Their code computes a byte
without room for the sign and does not send it. They scale by 1/√n, here it is the mean. Only fit
for fine-tuning: the variance grows with the number of parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta as Range

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ipc.settings import PositiveFloat, Settings
from swarmnode.strategies.base import (
    Intent,
    Kind,
    Probe,
    Record,
    Selector,
    StepInfo,
    Strategy,
)
from swarmnode.strategies.kinds import LogOnly
from swarmnode.strategies.ranges import outside

_LOG_MIN, _LOG_STEP, _Q_MAX = -9.0, 0.125, 127
_SIGN = 0x80
# What new swarms have. Of 1, 1.5, 2, 3 and 4 it is the one with which a liar of five hinders least;
# from 4 on it can raise what is usual by making the model worse.
BOUNDED = {"bound": 1.5}

# So many records are enough to tell what is usual and few enough to follow it; with fewer than the
# least, who makes a swarm's first round would say it alone.
_RECENT_MIN, _RECENT_MAX = 8, 64
# By decimal arithmetic: the exp of C libraries differs in the last bit between machines.
_SIZES = (0.0, *(float((Decimal(q) / 8 - 9).exp()) for q in range(1, _Q_MAX + 1)))


def encode_slope(g: float) -> bytes:
    """Return ``g``, which is finite, as one byte; what is too large or too small is clipped."""
    if g == 0:
        return b"\0"
    q = round((math.log(abs(g)) - _LOG_MIN) / _LOG_STEP)
    return bytes([min(max(q, 1), _Q_MAX) | (_SIGN if g < 0 else 0)])


def decode_slope(payload: bytes) -> float:
    """Return the slope of a record. Raises MalformedMessage: it is not one byte of those above."""
    if len(payload) != 1 or payload[0] == _SIGN:
        raise MalformedMessage(f"expected a slope of one byte, got {payload[:16].hex()!r}")
    size = _SIZES[payload[0] & ~_SIGN]
    return -size if payload[0] & _SIGN else size


def draw_direction(seed: int, round_number: int, author: bytes, numel: int) -> torch.Tensor:
    """Return z: float32 [numel] of -1 and 1, the same on every machine."""
    material = b"swarmnode/one-byte\0%d/%d/" % (seed, round_number) + author
    octets = hashlib.shake_128(material).digest(-(-numel // 8))
    bits = np.unpackbits(np.frombuffer(octets, np.uint8), count=numel)
    return torch.from_numpy(bits.astype(np.float32)).mul_(2).sub_(1)


def _number_of(author: bytes) -> int:
    return int.from_bytes(author[:8], "big", signed=True) or 1


class OneByte(LogOnly, Strategy):
    """Slopes along shared random directions, in the log of the swarm."""

    name = "one-byte"

    class Config(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``lr``: of the mean over a round. ``epsilon``: how far from x the loss is measured.

        ``bound``: how often the usual size of a slope one may have; 0: none is bounded, as in
        swarms of before.
        """

        lr: PositiveFloat = 1e-3
        epsilon: Annotated[float, Range(gt=0.0, le=1.0)] = 1e-3
        bound: Annotated[float, Range(ge=0.0)] = 0.0

    config: Config

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.rounds_closed = torch.zeros(1, dtype=torch.int64)
        # Of the last records, the last one first: how large, and whose (0: there is none yet).
        self.recent = torch.zeros(_RECENT_MAX, dtype=torch.float64)
        self.authors = torch.zeros(_RECENT_MAX, dtype=torch.int64)
        self._measured: tuple[int, float] | None = None  # round, slope: still to be published
        self._published_round = -1
        self._malformed = self._bounded = 0

    def buffers(self) -> Mapping[str, torch.Tensor]:
        mine = {"rounds_closed": self.rounds_closed}
        seen = {"recent": self.recent, "authors": self.authors}
        return mine | seen if self.config.bound else mine

    def check_received(self, received: Mapping[str, torch.Tensor]) -> str | None:
        closed = received.get("rounds_closed")
        most = limits.TRAINED_STEPS_MAX
        if closed is not None and (why := outside("rounds_closed", int(closed), 0, most)):
            return why
        recent = received.get("recent")
        if recent is None or bool(((recent >= 0) & (recent <= _SIZES[-1])).all()):
            return None
        return f"recent: expected sizes of slopes from 0 to {_SIZES[-1]:.0f}, got others"

    @property
    def round(self) -> int:
        """The round of the log that is open, as far as this node knows."""
        return int(self.rounds_closed)

    def gradient_point(self) -> Probe | None:
        return self._probe

    def _probe(self, loss: Callable[[], float]) -> float:
        """Measure the slope for this round, once; then only the loss until the round closes."""
        if self._published_round == self.round:
            return loss()
        before = self.x.clone()
        z = self._direction(self.round, self.ctx.self_id)
        self.x.add_(z, alpha=self.config.epsilon)
        above = loss()
        self.x.copy_(before).sub_(z, alpha=self.config.epsilon)
        below = loss()
        self.x.copy_(before)
        slope = (above - below) / (2 * self.config.epsilon)
        if math.isfinite(slope):
            self._measured = (self.round, slope)
        return (above + below) / 2

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        del info
        if self._measured is None:
            return ()
        (round_number, slope), self._measured = self._measured, None
        self._published_round = round_number
        record = self.encode(slope)
        return (Intent(Kind.LOG, round_number, tag="slope", selector=Selector.ALL, record=record),)

    def on_records(self, round_number: int, records: Sequence[Record]) -> None:
        read: list[tuple[Record, float]] = []
        for record in records:
            try:
                read.append((record, self.decode(record.payload)))
            except MalformedMessage:  # every node drops it: the log is the same everywhere
                self._malformed += 1
        n, most = self._weigh(read) if self.config.bound else (len(records), math.inf)
        for record, slope in read:
            bounded = max(-most, min(slope, most))
            self._bounded += bounded != slope
            step = np.float32(self.config.lr * bounded / n)
            z = self._direction(record.round, record.author)
            self.x.sub_(z, alpha=float(step))
        self.rounds_closed.fill_(round_number + 1)

    def _weigh(self, read: Sequence[tuple[Record, float]]) -> tuple[int, float]:
        """Take note of a round; return of how many a record is one, and how large it may be."""
        sizes = torch.tensor([abs(slope) for _, slope in read], dtype=torch.float64)
        whose = torch.tensor([_number_of(record.author) for record, _ in read], dtype=torch.int64)
        self.recent.copy_(torch.cat((sizes, self.recent))[:_RECENT_MAX])
        self.authors.copy_(torch.cat((whose, self.authors))[:_RECENT_MAX])
        known = self.recent[self.recent > 0]
        usual = float(known.median()) if known.numel() >= _RECENT_MIN else 0.0
        return len({*self.authors.tolist()} - {0}), self.config.bound * usual

    def encode(self, slope: float) -> bytes:
        """Return what is published of a slope."""
        return encode_slope(slope)

    def decode(self, payload: bytes) -> float:
        """Return the slope that was published. Raises MalformedMessage."""
        return decode_slope(payload)

    def log_round(self) -> int:
        return self.round

    def metrics(self) -> dict[str, float]:
        octets = hashlib.sha256(self.x.cpu().numpy().tobytes()).digest()
        return {
            "rounds_closed": float(self.round),
            "malformed_records": float(self._malformed),
            "bounded_records": float(self._bounded),
            "state_digest": float(int.from_bytes(octets[:6], "big")),  # 48 bits: exact as a float
        }

    def _direction(self, round_number: int, author: bytes) -> torch.Tensor:
        z = draw_direction(self.ctx.seed, round_number, author, self.x.numel())
        return z.to(self.x.device)
