"""A courier with a ledger of its own, and randomness that tells what it was asked."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.crdt.clock import HybridClock
from swarmnode.protocol.crdt.courier import Courier
from swarmnode.protocol.crdt.ledger import Ledger, Verdict
from swarmnode.protocol.crdt.records import Opened, open_record
from swarmnode.wire import crdt as wire
from tests.kits.crdt_world import NETWORK, WALL_UNIX_S, ToySigner, signed_record, verify_toy

_T = TypeVar("_T")
SIGNERS = sorted((ToySigner.make(number) for number in range(40)), key=lambda each: each.peer_id)
WE = SIGNERS[20]
PEERS = [each.peer_id for each in SIGNERS[21:]]  # we begin to compare with each of these
EARLIER_PEER = SIGNERS[0].peer_id


class Draws(random.Random):
    """Draws the share of each range that it is told, and the last of each choice."""

    share = 0.5

    def uniform(self, a: float, b: float) -> float:
        return a + self.share * (b - a)

    def choice(self, seq: Sequence[_T]) -> _T:  # type: ignore[override]
        return seq[-1]


@dataclass
class Post:
    """The courier of one node, and what it goes by."""

    courier: Courier
    ledger: Ledger
    draws: Draws

    def hold(self, opened: Opened, heard_at: float = 0.0, now: float = 0.0) -> Opened:
        """Let the ledger take a record in."""
        judgement = self.ledger.accept(opened.signed, now, heard_at)
        assert judgement.verdict is Verdict.ACCEPTED
        return opened

    def meet(self, *peers: PeerId, now: float = 0.0) -> None:
        """Sessions with these are open, and what they begin with is sent."""
        for peer in peers:
            self.courier.up(peer, now)
        self.courier.take()

    def sent(self) -> list[tuple[PeerId, wire.Message]]:
        """Return what was sent since the last call."""
        return [(send.peer, send.message) for send in self.courier.take()]

    def pushed(self) -> list[tuple[PeerId, list[Opened]]]:
        """Return the records of each message that was sent since, and of no other message."""
        found = []
        for peer, message in self.sent():
            assert isinstance(message, wire.Push)
            opened = [open_record(each.record, NETWORK) for each in message.records]
            found.append((peer, opened))
        return found


def make_post() -> Post:
    """Return a courier that knows no neighbour and no author."""
    clock = HybridClock(WALL_UNIX_S, 0.0)
    ledger = Ledger(WE.peer_id, NETWORK, clock, verify_toy, open_record)
    draws = Draws()
    return Post(Courier(WE.peer_id, ledger, clock, draws), ledger, draws)


def record_of(number: int, sequence: int = 1, **words: object) -> Opened:
    """Return a record of a stranger."""
    return signed_record(ToySigner.make(1000 + number), sequence, **words)  # type: ignore[arg-type]


def words_of_size(size_bytes: int, sequence: int = 1) -> dict[str, Any]:
    """Return words that make a record of so many bytes: from about 400 to 3000."""
    for n_full in range(15):
        full = {f"r{n:02}": "x" * 200 for n in range(n_full)}
        short = record_of(0, sequence, registers=full | {"rest": "x" * 32}).size_bytes
        if 0 <= size_bytes - short <= 200:
            return {"registers": full | {"rest": "x" * (32 + size_bytes - short)}}
    raise AssertionError(f"no words for {size_bytes} bytes")


@functools.cache
def strangers() -> tuple[Opened, ...]:
    """Return a record each of as many authors as a ledger holds."""
    return tuple(record_of(9000 + number) for number in range(limits.STATE_AUTHORS_MAX))


def words_that_fill(
    size_bytes: int, size_of: Callable[[tuple[wire.Lease, ...], dict[str, str]], int]
) -> tuple[tuple[wire.Lease, ...], dict[str, str]]:
    """Return leases and registers with which what is measured has so many bytes."""
    for n_leases in range(limits.STATE_LEASES_PER_AUTHOR_MAX):
        leases = tuple(wire.Lease("shard", f"{n:03}" + "x" * 150, 60) for n in range(n_leases))
        short = size_of(leases, {"state": "x" * 32})
        if 0 <= size_bytes - short <= 200:
            return leases, {"state": "x" * (32 + size_bytes - short)}
    raise AssertionError(f"no words for {size_bytes} bytes")
