"""Actors and dots: the names that the shared state gives to writers and to their writes.

An *actor* is one life of a peer: (peer id, boot epoch). The epoch is on disk before it is
used, so a peer that crashed never writes twice under one name. A *dot* is one write of an
actor: (actor, sequence).
"""

from __future__ import annotations

from typing import NamedTuple

from swarmnode.ids import PeerId


class Actor(NamedTuple):
    """One life of a peer; a later life is greater."""

    peer: PeerId
    epoch: int


class Dot(NamedTuple):
    """One write; ``sequence`` counts from 1 without gaps."""

    actor: Actor
    sequence: int
