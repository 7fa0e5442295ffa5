"""Whatever numbers a peer sends or a snapshot holds: no worker dies of them, and no model is lost.

Each run is repeated by its seed. Every day a few hundred of each; at night a million exchanges are
applied, over all strategies, and 16,000 snapshots loaded. Of a death the life and step are said.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.errors import CorruptRecord, SpecMismatch
from swarmnode.strategies.base import Context, StepInfo, Strategy, TaskFacts
from swarmnode.strategies.registry import build_strategy
from swarmnode.tasks.digits import Digits
from swarmnode.tensor.snapshot_format import FETCHED_NAME, About
from swarmnode.worker.model.state import TrainState, build_state
from swarmnode.worker.snapshots.restore import load_snapshot
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.snapshots.tensorfile import Tensors, read_tensors, write_tensors
from tests.property.models.worker_bench import WorkerBench

STRATEGIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pair-average", {"every": 1}),
    ("pair-average", {"every": 1, "merge": "variance-corrected"}),
    ("a2cid2", {"rate": 1.0}),
    ("noloco", {"every": 2}),
    ("streaming", {"every": 2, "fragments": 2, "meet": "pair"}),
    ("streaming", {"every": 2, "fragments": 2, "meet": "group"}),
    ("diloco", {"every": 2}),
    ("sparse", {"every": 2, "kept": 32}),
    ("one-byte", {"bound": 1.5}),
)
IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings in STRATEGIES]
PAIRED = [each for each in STRATEGIES if each[0] != "one-byte"]  # that one hears records only
PAIRED_IDS = IDS[: len(PAIRED)]
STEPS, RECORD_STEPS_AT_NIGHT = 400, 280_000
APPLIED_AT_NIGHT = 1_000_000 // len(PAIRED)
STEPS_FOR_ONE_MAX = 20  # steps for an exchange that is applied; a strategy that refuses all fails
SNAPSHOTS, SNAPSHOTS_AT_NIGHT = 20, 2_000
LIFE_STEPS = 100  # of one worker: another one begins with other weights


def live(name: str, settings: dict[str, Any], life: int, steps: int) -> int:
    """Let a worker take so many steps among hostile peers; return what it has applied."""
    bench = WorkerBench(name, settings, life)
    try:
        for _ in range(steps):
            bench.step()
    except BaseException:  # of a test, at a deadline too: this repeats it
        print(f"{name} {settings}: life {life}, step {bench.steps}")
        raise
    finally:
        bench.close()
    return bench.applied


def train(name: str, settings: dict[str, Any], steps: int) -> int:
    """The same for several workers, one after the other."""
    return sum(
        live(name, settings, life, min(LIFE_STEPS, steps - begin))
        for life, begin in enumerate(range(0, steps, LIFE_STEPS))
    )


@pytest.mark.parametrize(("name", "settings"), STRATEGIES, ids=IDS)
def test_no_exchange_kills_a_worker(name: str, settings: dict[str, Any]) -> None:
    applied = train(name, settings, STEPS)
    assert (applied > 10) == ((name, settings) in PAIRED), "it was hardly tried"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), PAIRED, ids=PAIRED_IDS)
def test_no_exchange_of_a_million_kills_a_worker(name: str, settings: dict[str, Any]) -> None:
    applied = life = 0
    while applied < APPLIED_AT_NIGHT:
        assert life * LIFE_STEPS < STEPS_FOR_ONE_MAX * APPLIED_AT_NIGHT, f"only {applied} applied"
        applied += live(name, settings, life, LIFE_STEPS)
        life += 1
    print(f"{applied} exchanges applied in {life * LIFE_STEPS} steps")


@pytest.mark.slow
def test_no_record_of_many_kills_a_worker() -> None:
    train("one-byte", {"bound": 1.5}, RECORD_STEPS_AT_NIGHT)


# --- snapshots ------------------------------------------------------------------------------

_ODD = (0.0, -0.0, -1.0, 0.5, 1e-45, 2.0**24, 2.0**53, 2.0**63, 1e30, 3.4e38, -3.4e38)
_NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


class Newcomer:
    """A worker that begins with a snapshot that a peer has made, and trains on."""

    def __init__(self, name: str, settings: dict[str, Any], folder: Path) -> None:
        self._name, self._settings = name, settings
        self._folder = folder
        donor, strategy = self._fresh(1)
        for _ in range(4):
            self._step(donor, strategy)
        with SnapshotStore(folder / "donor") as store:
            self._tensors, self._about = read_tensors(store.save(donor, strategy))
        self.taken = 0

    def begin(self, seed: int) -> None:
        """Change a few numbers of the donor's snapshot, load it, and train if it is taken."""
        rng = random.Random(seed)
        path = self._folder / FETCHED_NAME
        tensors, about = self._spoilt(rng)
        write_tensors(path, tensors, about)
        state, strategy = self._fresh(2)
        before = state.arena.flat.clone()
        try:
            load_snapshot(path, state, strategy)
        except (CorruptRecord, SpecMismatch):
            assert torch.equal(state.arena.flat, before), "a refusal changes nothing"
        else:
            self.taken += 1
        for _ in range(4):
            self._step(state, strategy)
        assert bool(torch.isfinite(state.arena.flat).all()), "the model is lost"

    def _spoilt(self, rng: random.Random) -> tuple[Tensors, About]:
        tensors = {name: tensor.clone() for name, tensor in self._tensors.items()}
        for name in rng.sample(sorted(tensors), rng.randrange(3)):
            _spoil(tensors[name], rng)
        values = dict(self._about.optimizer_values)
        for name in rng.sample(sorted(values), min(len(values), rng.randrange(2))):
            values[name] = rng.choice((*_ODD, *_NOT_FINITE, -1, 0, 2**63 - 1))
        counts = (0, 1, 2**31, 2**62, self._about.step)
        about = About(
            task=self._about.task,
            task_version=self._about.task_version,
            task_config=self._about.task_config,
            layout_hash=self._about.layout_hash,
            step=rng.choice(counts),
            tokens=rng.choice(counts),
            optimizer_values=values,
        )
        return tensors, about

    def _fresh(self, seed: int) -> tuple[TrainState, Strategy]:
        state = build_state(Digits({"hidden": 4, "batch": 4}), swarm_seed=seed, device="cpu")
        strategy = build_strategy(self._name, self._settings, state.arena.flat)
        strategy.start(
            Context(
                self_id=bytes(32),
                seed=1,
                rng=random.Random(seed),
                layout=state.arena.layout,
                members=(bytes(32),),
                facts=TaskFacts("digits"),
            )
        )
        self._batches: Iterator[Any] = state.batches(seed)
        return state, strategy

    def _step(self, state: TrainState, strategy: Strategy) -> None:
        loss = float(state.take_step(next(self._batches)))
        strategy.after_step(StepInfo(state.step, float(state.step), loss, 0.01))


def _spoil(tensor: torch.Tensor, rng: random.Random) -> None:
    values = (*_ODD, *_NOT_FINITE) if tensor.is_floating_point() else (-1, 0, 1, 2**31 - 1)
    value = rng.choice(values)
    flat = tensor.view(-1)
    if rng.random() < 0.5 or not flat.numel():
        tensor.fill_(value)
    else:
        flat[rng.randrange(flat.numel())] = value


def restore(name: str, settings: dict[str, Any], folder: Path, count: int) -> None:
    newcomer = Newcomer(name, settings, folder)
    for seed in range(count):
        try:
            newcomer.begin(seed)
        except BaseException:  # of a test, at a deadline too: this repeats it
            print(f"{name} {settings}: snapshot {seed}")
            raise
    assert newcomer.taken > 0


@pytest.mark.parametrize(("name", "settings"), PAIRED, ids=PAIRED_IDS)
def test_no_snapshot_kills_a_worker(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    restore(name, settings, tmp_path, SNAPSHOTS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), PAIRED, ids=PAIRED_IDS)
def test_no_snapshot_of_many_kills_a_worker(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    restore(name, settings, tmp_path, SNAPSHOTS_AT_NIGHT)
