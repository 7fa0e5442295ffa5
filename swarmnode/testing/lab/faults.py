"""What goes wrong in the laboratory, and how exchanges are committed."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class Outage:
    """A node is gone from ``begin`` to ``end``; it comes back with a peer's snapshot."""

    node: int
    begin: float
    end: float


@dataclass(frozen=True)
class Cut:
    """The first half of the nodes and the second cannot reach each other meanwhile."""

    begin: float
    end: float


@dataclass(frozen=True)
class Faults:
    """One unit of time is a local step of a node of speed 1.

    Attributes:
        loss: share of the exchanges that come to nothing because one message before COMMIT is
            lost for good; the same share of COMMITs is lost, and asked for again.
        latency: mean time from the views to the commit; each takes half to one and a half of it.
        outages: nodes that crash.
        cut: a network in two parts.
    """

    loss: float = 0.0
    latency: float = 0.0
    outages: tuple[Outage, ...] = ()
    cut: Cut | None = None


class Commit(enum.Enum):
    """How the two sides of a pair decide. All but the first are known bugs, for tests."""

    ATOMIC = "atomic"  # both sides or neither, each once
    RESPONDER_EARLY = "responder early"  # the responder does not wait for COMMIT
    FORGETFUL = "forgetful"  # a COMMIT that is sent again is applied again


class Message(enum.IntEnum):
    """The messages of a pair in their order, as proto/gossip.md has them."""

    OFFER = 0
    ACCEPT = 1
    CHUNKS = 2
    READY = 3
    COMMIT = 4
