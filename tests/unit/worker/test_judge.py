"""Snapshots whose hashes are right and whose numbers are not: none is used, the next one is."""

import math
import random

import pytest
import torch

from swarmnode.strategies.base import Context, StepInfo, TaskFacts
from swarmnode.strategies.registry import build_strategy
from swarmnode.tasks.digits import Digits
from swarmnode.tensor.snapshot_format import FETCHED_NAME
from swarmnode.worker.model.state import build_state
from swarmnode.worker.snapshots.atoms import about, atoms
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.snapshots.tensorfile import read_tensors, write_tensors
from swarmnode.worker.training.learn import local_step

ME = b"a" * 32
STREAMING, DILOCO, NOLOCO = ("streaming", {}), ("diloco", {"every": 32}), ("noloco", {})
PAIRS = ("pair-average", {})


def fresh(kind):
    state = build_state(Digits({}), swarm_seed=7, device="cpu")
    strategy = build_strategy(*kind, state.arena.flat)
    return state, strategy


def begin(state, strategy):
    facts = TaskFacts("digits")
    layout = state.arena.layout
    strategy.start(
        Context(
            self_id=ME,
            seed=1,
            rng=random.Random(1),
            layout=layout,
            members=(ME,),
            facts=facts,
        )
    )


def trained(kind, steps=40):
    state, strategy = fresh(kind)
    begin(state, strategy)
    train(state, strategy, steps)
    return state, strategy


def train(state, strategy, steps):
    batches = state.batches(3)
    for _ in range(steps):
        local_step(state, strategy, next(batches))
        strategy.after_step(StepInfo(state.step, float(state.step), 1.0, 0.1))


def fill(begin, end, value):
    """Return a change of all floating tensors whose names begin and end so."""

    def change(tensors):
        found = [
            tensor
            for name, tensor in tensors.items()
            if name.startswith(begin) and name.endswith(end) and tensor.is_floating_point()
        ]
        assert found, "nothing of this name: the test would show nothing"
        for tensor in found:
            tensor.fill_(value)

    return change


def put(name, *values):
    def change(tensors):
        tensors[name].copy_(torch.tensor(values, dtype=tensors[name].dtype))

    return change


BRICKS = {
    "NaN moments": (STREAMING, fill("optimizer/", "/exp_avg", math.nan), "exp_avg is not finite"),
    "infinite second moments": (
        STREAMING,
        fill("optimizer/", "/exp_avg_sq", math.inf),
        "exp_avg_sq is not finite",
    ),
    "negative second moments": (
        STREAMING,
        fill("optimizer/", "/exp_avg_sq", -1.0),
        "expected no negative values",
    ),
    "negative steps": (STREAMING, fill("optimizer/", "/step", -5.0), "/step: expected a whole"),
    "absurd steps": (STREAMING, fill("optimizer/", "/step", 3e38), "/step: expected a whole"),
    "a leap": (STREAMING, fill("optimizer/", "/exp_avg", 3e37), "learning rates"),
    "huge weights": (STREAMING, fill("model/", "weight", 1e30), "expected values up to"),
    "round 2^63-1": (STREAMING, put("strategy/rounds", 2**63 - 1, 0, 32), "rounds: expected"),
    "rounds of no steps": (STREAMING, put("strategy/rounds", 5, 0, 0), "the steps of a round"),
    "endless rounds": (STREAMING, put("strategy/rounds", 5, 0, 2**40), "the steps of a round"),
    "negative rounds": (NOLOCO, put("strategy/rounds", -5, -3, -7), "rounds: expected"),
    "NaN slow weights": (STREAMING, fill("strategy/phi", "", math.nan), "phi is not finite"),
    "huge slow weights": (NOLOCO, fill("strategy/phi", "", 1e30), "strategy/phi: expected"),
    "huge momentum": (STREAMING, fill("strategy/m", "", 3e38), "strategy/m: expected"),
    "lineage NaN": (DILOCO, fill("strategy/lineage", "", math.nan), "lineage is not finite"),
    "lineage -1": (DILOCO, fill("strategy/lineage", "", -1.0), "lineage: expected a whole"),
    "lineage 2^24": (DILOCO, put("strategy/lineage", 2**24, 0), "lineage: expected a whole"),
}


@pytest.fixture(params=BRICKS, ids=list(BRICKS))
def brick(request, tmp_path):
    """(strategy, what the log says, a folder with a fetched snapshot that harms)."""
    kind, change, said = BRICKS[request.param]
    state, strategy = trained(kind)
    tensors = {name: tensor.clone() for name, tensor in atoms(state, strategy).items()}
    change(tensors)
    folder = tmp_path / "snapshots"
    folder.mkdir()
    write_tensors(folder / FETCHED_NAME, tensors, about(state))
    return kind, said, folder


def test_a_peers_snapshot_that_would_harm_is_put_aside_and_named(brick, caplog):
    kind, said, folder = brick
    state, strategy = fresh(kind)
    before = state.arena.flat.clone()
    with SnapshotStore(folder) as store:
        assert not store.restore(state, strategy)
    assert said in caplog.text
    assert torch.equal(state.arena.flat, before), "nothing has changed"
    assert not (folder / FETCHED_NAME).exists(), "it is not tried again after a restart"
    assert (folder / "damaged.safetensors").exists()
    assert said in (folder / "damaged.txt").read_text()
    begin(state, strategy)
    train(state, strategy, 40)
    assert math.isfinite(state.evaluate())


@pytest.mark.parametrize("kind", [STREAMING, NOLOCO, DILOCO, PAIRS], ids=lambda kind: kind[0])
def test_an_honest_snapshot_is_taken(kind, tmp_path):
    donor, donors = trained(kind, 70)
    folder = tmp_path / "snapshots"
    folder.mkdir()
    write_tensors(folder / FETCHED_NAME, atoms(donor, donors), about(donor))
    state, strategy = fresh(kind)
    state.has_public_probe = True
    with SnapshotStore(folder) as store:
        assert store.restore(state, strategy)
    assert torch.equal(state.arena.flat, donor.arena.flat)


@pytest.mark.parametrize("what", ["model/", "strategy/phi"])
def test_a_peers_model_that_is_worse_than_a_new_one_is_put_aside(what, tmp_path, caplog):
    """All numbers are finite and of the size of weights: only the public probe tells."""
    donor, donors = trained(NOLOCO, 70)
    tensors = {name: tensor.clone() for name, tensor in atoms(donor, donors).items()}
    for name, tensor in tensors.items():
        if name.startswith(what):
            tensor.mul_(-3.0)
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for has_public_probe in (True, False):  # without one it passes, or this would show nothing
        write_tensors(folder / FETCHED_NAME, tensors, about(donor))
        state, strategy = fresh(NOLOCO)
        state.has_public_probe = has_public_probe
        with SnapshotStore(folder) as store:
            assert store.restore(state, strategy) is not has_public_probe
    assert "expected a loss on the public probe near" in caplog.text


def test_of_ones_own_files_the_older_one_is_taken_where_the_newer_would_harm(tmp_path, caplog):
    state, strategy = trained(STREAMING)
    with SnapshotStore(tmp_path / "snapshots") as store:
        older = store.save(state, strategy)
        train(state, strategy, 5)
        newer = store.save(state, strategy)
        tensors, said = read_tensors(newer)
        fill("optimizer/", "/exp_avg", math.nan)(tensors)
        write_tensors(newer, tensors, said)

        again, strategy = fresh(STREAMING)
        assert store.restore(again, strategy)
    assert again.step == 40, f"that of {older.name}"
    assert "exp_avg is not finite" in caplog.text


def test_a_mask_of_minus_infinities_is_no_damage(tmp_path):
    state, strategy = fresh(STREAMING)
    state.model.register_buffer("mask", torch.full((4,), -math.inf))
    with SnapshotStore(tmp_path / "snapshots") as store:
        store.save(state, strategy)
        assert store.restore(state, strategy)


def test_running_variances_below_zero_are_damage(tmp_path, caplog):
    def with_norm():
        state, strategy = fresh(STREAMING)
        state.model.add_module("norm", torch.nn.BatchNorm1d(3, affine=False))
        return state, strategy

    state, strategy = with_norm()
    state.model.norm.running_var.fill_(-1.0)
    with SnapshotStore(tmp_path / "snapshots") as store:
        store.save(state, strategy)
        assert not store.restore(*with_norm())
    assert "norm.running_var: expected no negative values" in caplog.text
