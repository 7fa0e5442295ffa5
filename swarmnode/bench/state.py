"""``swarmnode bench state``: what a newcomer's first synchronisation costs, plain and compressed.

The cores of a member and of a newcomer talk to each other in this process. Every member that the
member knows has reported as a node that trains does; keys and signatures are real.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swarmnode import limits
from swarmnode.daemon.exchange.history import letters_of
from swarmnode.daemon.membership.report import SelfReport
from swarmnode.protocol.crdt import events
from swarmnode.protocol.crdt.replica import SharedState
from swarmnode.protocol.identity import Identity
from swarmnode.wire import crdt
from swarmnode.wire.compression import decode_message, encode_message
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed

_ROUNDS = 20
_UNIX_S = 1.8e9
_LIFE_S = 1200.0
_SNAPSHOTS = 3  # that each member holds
_PARTNERS = 8  # that each has met lately


def run_state_bench(members: int) -> dict[str, Any]:
    """Return bytes and milliseconds of CPU of the synchronisation with a swarm of that size."""
    swarm = _Swarm(random.Random(0), members)
    member, newcomer = swarm.member(), swarm.newcomer()
    began_s = time.thread_time()
    messages = _synchronise(member, newcomer)
    sync_s = time.thread_time() - began_s
    plain = [encode_record(message) for message in messages]
    sent = [encode_message(message) for message in messages]
    plain_bytes, sent_bytes = sum(map(len, plain)), sum(map(len, sent))
    return {
        "members": newcomer.core.statistics().authors,
        "messages": len(messages),
        "records": sum(len(m.records) for m in messages if isinstance(m, crdt.Push)),
        "plain_bytes": plain_bytes,
        "sent_bytes": sent_bytes,
        "times_smaller": plain_bytes / sent_bytes,
        "sync_cpu_ms": sync_s * 1e3,
        "plain_encode_cpu_ms": _cpu_ms(lambda: [encode_record(each) for each in messages]),
        "plain_decode_cpu_ms": _cpu_ms(lambda: [decode_message(each) for each in plain]),
        "encode_cpu_ms": _cpu_ms(lambda: [encode_message(each) for each in messages]),
        "decode_cpu_ms": _cpu_ms(lambda: [decode_message(each) for each in sent]),
    }


def format_state_bench(result: dict[str, Any]) -> str:
    """Return the figures as lines for a person."""
    return "\n".join(
        f"{name:<22} {value:,.2f}" if isinstance(value, float) else f"{name:<22} {value:,}"
        for name, value in result.items()
    )


@dataclass
class _Swarm:
    """Members that have trained for a while; what they say is chosen by ``rng``."""

    rng: random.Random
    n_members: int

    def __post_init__(self) -> None:
        self.swarm_id = self.rng.randbytes(32)
        self.identities = [self._identity() for _ in range(self.n_members)]
        lease_s = int(limits.STATE_LEASE_S)
        roots = [self.rng.randbytes(32) for _ in range(_SNAPSHOTS)]
        self.snapshots = {
            root: crdt.SnapshotClaim(root, 1000 * number, 2**28, lease_s, self.rng.random())
            for number, root in enumerate(roots)
        }

    def newcomer(self) -> _Side:
        return self._side(self._identity(), _LIFE_S)

    def member(self) -> _Side:
        """Return one that has read in its journal what all of them have said."""
        side = self._side(self._identity(), _LIFE_S)
        said = [signed for each in self.identities for signed in self._life(each)]
        side.core.handle(events.Restored(tuple(said)), _LIFE_S)
        side.core.poll_effects()
        return side

    def _identity(self) -> Identity:
        return Identity.from_seed(self.rng.randbytes(32))

    def _side(self, identity: Identity, now: float) -> _Side:
        epoch = self.rng.randrange(1, 10)
        core = SharedState(
            identity, self.swarm_id, epoch=epoch, wall_unix_s=_UNIX_S + now, now=now, rng=self.rng
        )
        return _Side(identity, core)

    def _life(self, identity: Identity) -> list[Signed]:
        """Return what one has said; how long ago its last checkpoint was differs from all."""
        core = self._side(identity, 0.0).core
        n_reports = self.rng.randrange(1, 3 * limits.STATE_CHECKPOINT_RECORDS)
        said, step = [], self.rng.randrange(100_000)
        for number in range(n_reports):
            step += self.rng.randrange(1, 100)
            update = self._report(identity, number, step)
            now = _LIFE_S * number / n_reports
            core.handle(update, now)
            for effect in core.poll_effects():
                if isinstance(effect, events.Persist) and effect.sequence is not None:
                    said.append(effect.record)
                    core.handle(events.Persisted(effect.sequence), now)
        return said

    def _report(self, identity: Identity, number: int, step: int) -> events.Update:
        """Return everything at first, and then what changes with every step."""
        rng = self.rng
        partners = rng.choices(self.identities, k=_PARTNERS)
        met = " ".join(f"{letters_of(each.peer_id)}:{rng.randrange(1, 60)}" for each in partners)
        whole = SelfReport(
            role="trainer",
            state="training",
            addresses=(f"192.0.2.{rng.randrange(256)}:{rng.randrange(1024, 65_536)}",),
            counters={"steps": step, "tokens": 4096 * step, "exchanges": step, "seconds": number},
            numbers={name: rng.random() for name in ("loss", "eval_loss", "step_time_s")},
            step=step,
            met=met if number % 3 == 0 else None,  # once a minute
        ).update(identity.peer_id, {})
        if number == 0:
            return events.Update(
                whole.leases, whole.counters, whole.registers, whole.maxima, self.snapshots
            )
        news = {name: value for name, value in whole.registers.items() if name != "state"}
        return events.Update({}, whole.counters, news, whole.maxima)


@dataclass(frozen=True)
class _Side:
    identity: Identity
    core: SharedState


def _synchronise(member: _Side, newcomer: _Side) -> list[crdt.Message]:
    """Let the two talk until they have nothing more to say; return all that was sent."""
    messages: list[crdt.Message] = []
    ways = ((member, newcomer), (newcomer, member))
    for side, other in ways:
        side.core.handle(events.NeighbourUp(other.identity.peer_id), _LIFE_S)
    n_before = -1
    while n_before < len(messages):
        n_before = len(messages)
        for side, other in ways:
            for effect in side.core.poll_effects():
                if isinstance(effect, events.Send):
                    messages.append(effect.message)
                    event = events.Received(side.identity.peer_id, effect.message)
                    other.core.handle(event, _LIFE_S)
    return messages


def _cpu_ms(work: Callable[[], object]) -> float:
    """Return the median CPU time; none of it waits for anything."""
    took_s = []
    for _ in range(_ROUNDS):
        began_s = time.thread_time()
        work()
        took_s.append(time.thread_time() - began_s)
    return statistics.median(took_s) * 1e3
