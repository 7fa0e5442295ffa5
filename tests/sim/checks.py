"""What has to hold after every simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable

import numpy as np
import trio

from swarmnode.daemon.status.phases import Member
from swarmnode.processes.audit import Audit, audit_histories
from swarmnode.testing.fake_files import Vector
from swarmnode.testing.swarm import SimNode, SimSwarm

SUM_ERROR_MAX = 1e-6


def pull(_step: int, x: Vector) -> Vector:
    """Train towards the point (1, 1, ...)."""
    change: Vector = 0.0005 * (1.0 - x)
    return change


async def until(condition: Callable[[], bool], limit_s: float, poll_s: float = 0.01) -> float:
    """Wait in virtual time for a condition; return how long it took."""
    started = trio.current_time()
    while not condition():
        assert trio.current_time() - started <= limit_s, f"not within {limit_s} s"
        await trio.sleep(poll_s)
    return trio.current_time() - started


async def everybody_exchanges(swarm: SimSwarm, limit_s: float = 30.0) -> float:
    """Wait until every node that is up has committed an exchange from now on."""
    before = {node.index: node.status.exchanges_committed for node in swarm.up}
    return await until(
        lambda: all(node.status.exchanges_committed > before[node.index] for node in swarm.up),
        limit_s,
        poll_s=0.25,
    )


def state_digests(nodes: Iterable[SimNode]) -> set[bytes]:
    """Return the digests of what the nodes hold of the shared state: one if they agree."""
    return {node.part.state.core.digest() for node in nodes}


def are_one_swarm(nodes: Collection[SimNode]) -> bool:
    """Whether all of them hold the same state, and each holds just the others for alive."""
    everybody = tuple(sorted(node.peer for node in nodes))
    return (
        all(isinstance(node.running.view.membership, Member) for node in nodes)
        and all(node.part.members.live() == everybody for node in nodes)
        and len(state_digests(nodes)) == 1
    )


async def cut_at_random(swarm: SimSwarm, seconds: float, mean_pause_s: float = 0.7) -> int:
    """Break the links of random pairs at random moments; return how many links broke."""
    rng = random.Random(f"cuts/{swarm.seed}")
    broken = 0
    with trio.move_on_after(seconds):
        while True:
            await trio.sleep(rng.expovariate(1 / mean_pause_s))
            one, other = rng.sample(range(len(swarm.nodes)), 2)
            broken += swarm.cut(one, other)
    return broken


def doubts(swarm: SimSwarm) -> set[str]:
    """Return the exchanges that a responder gave up without knowing the decision."""
    return {entry["xid"] for node in swarm.nodes for entry in node.history if entry.get("in_doubt")}


def check_atomic(
    swarm: SimSwarm, *, killed: tuple[SimNode, ...] = (), but: Collection[str] = ()
) -> Audit:
    """Compare all histories; nothing may be half applied, ``but`` for these exchanges."""
    audit = audit_histories(swarm.histories(), killed=[str(node.peer) for node in killed])
    assert set(audit.half_applied) <= set(but)
    return audit


def check_conserved(
    swarm: SimSwarm, *, crashed: tuple[SimNode, ...] = (), but: Collection[str] = ()
) -> None:
    """The sum is where it belongs, but for exactly what the crashed nodes took with them.

    An exchange that one ledger alone holds must have had a crashed node on one of its sides,
    or be one of ``but``.
    """
    alone = swarm.one_sided()
    peers = {str(node.peer) for node in crashed}
    for xid, (index, _) in alone.items():
        if xid.hex() in but:
            continue
        node = swarm.nodes[index]
        partner = next(entry["peer"] for entry in node.history if entry["xid"] == xid.hex())
        assert partner in peers or str(node.peer) in peers, (
            f"{xid.hex()} counts on {node.name} only"
        )
    unpaired = np.sum([change for _, change in alone.values()], axis=0) if alone else 0.0
    error = np.abs(swarm.total() - swarm.expected_total() - unpaired).max()
    assert error < SUM_ERROR_MAX


async def end(
    swarm: SimSwarm, *, crashed: tuple[SimNode, ...] = (), but_doubts: bool = False
) -> Audit:
    """Stop every node in order, then check that all was atomic and nothing was lost.

    ``but_doubts``: after partitions longer than EXCHANGE_IN_DOUBT_S, what was given up in doubt
    may count on the initiator's side (two generals); nothing else may.
    """
    await swarm.leave_all()
    assert [node.failure for node in swarm.nodes] == [None] * len(swarm.nodes)
    but = doubts(swarm) if but_doubts else set()
    check_conserved(swarm, crashed=crashed, but=but)
    return check_atomic(swarm, but=but)
