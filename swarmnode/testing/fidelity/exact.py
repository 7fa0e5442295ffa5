"""What must be equal to the last bit: replicas that replay one byte, and means over groups."""

from __future__ import annotations

import random
import struct

import torch

from swarmnode.bench.fidelity.figures import check, claim, mean, number, standard_error
from swarmnode.bench.fidelity.finding import Finding, Plot, Table
from swarmnode.ids import PEER_ID_BYTES, PeerId
from swarmnode.protocol.gossip import group_events
from swarmnode.protocol.gossip.groups import grid
from swarmnode.strategies.base import Context
from swarmnode.strategies.one_byte import OneByte, decode_slope, draw_direction, encode_slope
from swarmnode.testing.fidelity.kit import Point, line
from swarmnode.testing.group_world import GroupWorld
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.faults import Faults, Outage
from swarmnode.testing.lab.isolation import is_isolated
from swarmnode.testing.lab.tasks import DIM, Logistic

_LR = 0.1
_PROBE = 1e-3  # how far a slope is measured from where the model is


class _Float(OneByte):
    """What one byte is compared with: the slope in four."""

    def encode(self, slope: float) -> bytes:
        return struct.pack("<f", slope)

    def decode(self, payload: bytes) -> float:
        value: float = struct.unpack("<f", payload)[0]
        return value


def one_byte(quick: bool) -> Finding:
    """Nodes that train on slopes alone, with late records, a crash and a late joiner."""
    seeds, counts, steps = ([1], [2, 8], 40) if quick else ([1, 2, 3], [2, 4, 8], 400)
    pairs = {n: [_pair(n, steps, seed) for seed in seeds] for n in counts}
    n, byte, (byte_curve, float_curve) = counts[-1], *pairs[counts[-1]][0]
    records = sum(len(r.payload) for rounds in byte.gatherings.log for r in rounds)
    # Records that take up to six steps, and a node that is gone for a third of the run.
    outage = Outage(1, 0.15 * steps, 0.5 * steps)
    stormy = [
        _arena(OneByte, n, seed, Faults(latency=4.0, outages=(outage,)))
        for n in counts
        for seed in seeds
    ]
    for arena in stormy:
        arena.run(steps)
    cosine = _cosine(100 if quick else 2000)
    return Finding(
        name="one-byte",
        title="One byte per node and step",
        source="E. Zelikman et al., “Just One Byte (per gradient): A Note on Low-Bandwidth"
        " Decentralized Language Model Finetuning Using Shared Randomness”, arXiv:2306.10015",
        claim="With directions from shared seeds, a node needs to send nothing but the slope along"
        " its own: one byte. All replicas stay equal, and a newcomer catches up by replaying.",
        experiment=f"Logistic regression in {DIM} dimensions, other data for each seed,"
        f" {', '.join(map(str, counts))} nodes, batches of 64, {steps} steps; differences of losses"
        " with their standard error. Then the same with records that come late and a node that is"
        " gone for a while: the log is replayed by a node that was never there.",
        seeds=seeds,
        checks=[
            check("different models among the nodes", _models([byte]), low=1, high=1),
            check(
                "the same, late records and a crash", max(map(_differing, stormy)), low=1, high=1
            ),
            check(
                "the same, with a newcomer that replays the log",
                max(map(_replayed, stormy)),
                low=1,
                high=1,
            ),
            check("bytes per node and step", records / (n * steps), low=1, high=1),
            *(
                claim(
                    f"loss with one byte less that with four, {n} nodes",
                    [one[-1][1] - four[-1][1] for _, (one, four) in found],
                    high=0.01,
                )
                for n, found in pairs.items()
            ),
            check("cosine of the mean slope and the gradient", cosine, low=0.6 if quick else 0.97),
        ],
        table=Table(
            header=["nodes", "payload", "loss in the end"],
            rows=[
                [str(n), payload, _with_error([curves[place][-1][1] for _, curves in found])]
                for n, found in pairs.items()
                for place, payload in enumerate(("one byte", "four bytes"))
            ],
        ),
        plots=[
            Plot(
                name="loss",
                title="Slopes of one byte and of four",
                x="steps",
                y="loss",
                series=[line("one byte", byte_curve), line("four bytes", float_curve, "dashes")],
            )
        ],
    )


def _pair(n: int, steps: int, seed: int) -> tuple[Arena, tuple[list[Point], list[Point]]]:
    """Return an arena of one byte after all steps, and the curves of one byte and of four."""
    byte, byte_curve = _learn(OneByte, n, steps, seed)
    return byte, (byte_curve, _learn(_Float, n, steps, seed)[1])


def _with_error(values: list[float]) -> str:
    error = f" ± {standard_error(values):.4f}" if len(values) > 1 else ""
    return f"{number(mean(values))}{error}"


def _arena(
    strategy: type[OneByte],
    n: int,
    seed: int,
    faults: Faults = Faults(),  # noqa: B008  frozen
) -> Arena:
    task = Logistic(n, seed)
    return Arena(task, lambda x: strategy({"lr": _LR}, x), seed=seed, faults=faults)


def _learn(strategy: type[OneByte], n: int, steps: int, seed: int) -> tuple[Arena, list[Point]]:
    arena = _arena(strategy, n, seed)
    curve = [(0.0, arena.measure()["loss"])]
    while arena.now < steps:
        arena.run(10)
        curve.append((arena.now, arena.measure()["loss"]))
    return arena, curve


def _differing(arena: Arena) -> int:
    return _models([arena])


def _models(arenas: list[Arena]) -> int:
    """Return how many different models the nodes hold that have applied the most rounds."""
    strategies = [node.strategy for arena in arenas for node in arena.up]
    rounds = [_as_one_byte(strategy).round for strategy in strategies]
    newest = [s for s, r in zip(strategies, rounds, strict=True) if r == max(rounds)]
    return len({s.x.numpy().tobytes() for s in newest})


def _as_one_byte(strategy: object) -> OneByte:
    assert isinstance(strategy, OneByte), "all nodes of this arena run it"
    return strategy


def _replayed(arena: Arena) -> int:
    """Return how many models there are with that of a node that replays the whole log."""
    fresh = OneByte({"lr": _LR}, torch.zeros(DIM))
    me = PeerId(bytes(PEER_ID_BYTES))
    task = arena.task
    fresh.start(Context(me, arena.seed, random.Random(0), task.layout, (me,), task.facts))
    models = {}
    for position, records in enumerate(arena.gatherings.log):
        fresh.on_records(position, records)
        models[fresh.round] = fresh.x.numpy().tobytes()
    found = {
        models.get(_as_one_byte(node.strategy).round) == node.strategy.x.numpy().tobytes()
        for node in arena.up
    }
    return 1 if found == {True} else 2


def _cosine(n_slopes: int) -> float:
    """Return how well the mean of slopes times directions points along the gradient."""
    task = Logistic(1, 1)
    x = torch.zeros(DIM, requires_grad=True)
    task.loss(x, task.rows, task.labels).backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None, "backward has been called"
    rows, labels = task.rows.double(), task.labels.double()
    total = torch.zeros(DIM)
    for step in range(n_slopes):
        z = draw_direction(0, step, b"k" * PEER_ID_BYTES, DIM)
        above, below = (float(task.loss(s * _PROBE * z.double(), rows, labels)) for s in (1, -1))
        total += decode_slope(encode_slope((above - below) / (2 * _PROBE))) * z
    return float(torch.cosine_similarity(total, x.grad, dim=0))


# --- group means ---------------------------------------------------------------------------------

_GRIDS = ((16, 4), (64, 4), (50, 4), (100, 8))  # members, size of a group


def group_mean(quick: bool) -> Finding:
    """Exact means by grids of groups, and groups whose members die at random moments."""
    seed = 5
    rows, worst = [], 0.0
    rounds = {}
    for n, size in _GRIDS:
        rounds[n], error = _grid_error(n, size)
        worst = max(worst, error)
        rows.append([f"{n} members in groups of {size}", str(rounds[n]), number(error)])
    deaths = _deaths(20 if quick else 1000, seed)
    return Finding(
        name="group-mean",
        title="Group means: exact, whichever member dies",
        source="M. Ryabinin, E. Gorbunov, V. Plokhotnyuk, G. Pekhimenko, “Moshpit SGD”, NeurIPS"
        " 2021; the agreement after failures is that of view-synchronous groups (K. Birman, T."
        " Joseph, 1987)",
        claim="All members hold the exact mean after log n / log M rounds of groups of M, with no"
        " master. If members die on the way, the others finish.",
        experiment="Grids over random numbers, by the weights that every node computes alone. Then"
        f" {deaths['runs']} runs of the group protocol on a network with random delays: 3 to 8"
        " members, one to all but two of which die at random moments; those who are left must all"
        " finish, with the same hash, on the exact weighted mean of those who count.",
        seeds=[seed],
        checks=[
            check("rounds for 16 members in groups of 4", rounds[16], low=2, high=2),
            check("rounds for 64 members in groups of 4", rounds[64], low=3, high=3),
            check("largest error of any member after the last round", worst, high=1e-12),
            check("share of runs in which all survivors finished", deaths["finished"], low=1.0),
            check("most different results in a run", deaths["results"], low=1, high=1),
            check("largest error against the mean of those who count", deaths["error"], high=1e-12),
            check(
                "longest time from the last death to the end (s), one death",
                deaths["slowest_s"],
                high=2.0,
            ),
        ],
        table=Table(header=["grid", "rounds", "largest error"], rows=rows),
        plots=[],
    )


def _grid_error(n: int, size: int) -> tuple[int, float]:
    """Return the rounds of a grid, and the largest deviation from the mean after them."""
    rng = random.Random(n)
    ids = [PeerId(i.to_bytes(PEER_ID_BYTES, "big")) for i in range(n)]
    values = {peer: rng.gauss(0, 1) for peer in ids}
    exact = mean(values.values())
    rounds = grid(b"fidelity", ids, size)
    for groups in rounds if not is_isolated() else ():
        after: dict[PeerId, float] = {}
        for group in groups:
            total = sum(group.weights)
            pairs = zip(group.members, group.weights, strict=True)
            merged = sum(values[peer] * weight for peer, weight in pairs) / total
            after.update(dict.fromkeys(group.members, merged))
        values |= after
    return len(rounds), max(abs(value - exact) for value in values.values())


def _deaths(runs: int, seed: int) -> dict[str, float]:
    """Let members die at any event of so many runs; say what became of the others."""
    rng = random.Random(seed)
    finished, results, error, slowest_s = 0, 0, 0.0, 0.0
    for number_ in range(runs):
        n = rng.randrange(3, 9)
        victims = rng.sample(range(n), rng.randrange(1, n - 1))
        world = GroupWorld(n, number_, deaths=[(rng.randrange(150), victim) for victim in victims])
        world.begin()
        world.run()
        survivors = world.survivors
        done = [m for m in survivors if isinstance(m.outcome, group_events.Commit)]
        finished += len(done) == len(survivors)
        results = max(results, len(world.results()))
        error = max(error, *(world.error(member) for member in done))
        if len(victims) == 1:
            ended_at = max(member.ended_at for member in survivors)
            slowest_s = max(slowest_s, ended_at - world.died_at)
    return {
        "runs": runs,
        "finished": finished / runs,
        "results": results,
        "error": error,
        "slowest_s": slowest_s,
    }
