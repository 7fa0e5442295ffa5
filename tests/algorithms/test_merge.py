"""Merge rules on tensors, on models that never met, and at the end of a run."""

import hashlib

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.ipc.names import MERGE_RULES
from swarmnode.strategies import merge
from swarmnode.strategies.merge import (
    mean,
    merge_of,
    rda,
    share,
    share_numel,
    variance_corrected,
)
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.base import Task
from swarmnode.tensor.layout import Layout
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.digits import Digits
from swarmnode.testing.lab.tasks import Sgd
from swarmnode.worker.exchange.merges import evaluate_merge, recalibrate_batch_norm
from swarmnode.worker.model.state import build_state
from tests.algorithms.outer_kit import SEEDS

LAYOUT = Layout.of([("w", (64, 64), "float32"), ("b", (64,), "float32"), ("s", (), "float32")])


def models(n, shared=0.0, seed=0):
    """Return ``n`` vectors: a part that all share, and one of their own."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(LAYOUT.numel, generator=generator)
    return [
        0.1 * (shared * base + torch.randn(LAYOUT.numel, generator=generator)) for _ in range(n)
    ]


# --- the rules -----------------------------------------------------------------------------------


def test_the_mean_is_uniform_or_by_tokens():
    one, two = models(2)
    torch.testing.assert_close(mean([one, two]), (one + two) / 2)
    torch.testing.assert_close(mean([one, two], [1, 3]), (one + 3 * two) / 4)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_the_variance_of_models_that_never_met_comes_back(n):
    vectors = models(n)
    plain, corrected = mean(vectors), variance_corrected(vectors, LAYOUT)
    for _, begin, end in list(LAYOUT.spans())[:2]:
        target = torch.stack([vector[begin:end].var() for vector in vectors]).mean()
        assert plain[begin:end].var() / target == pytest.approx(1 / n, rel=0.4)
        assert corrected[begin:end].var() / target >= 0.995
        assert corrected[begin:end].mean() == pytest.approx(
            float(plain[begin:end].mean()), abs=1e-7
        )
    assert corrected[-1] == plain[-1]  # a scalar has no variance


def test_relatives_and_constants_are_only_averaged():
    relatives = models(4, shared=2.0)  # cosines about 0.8
    assert torch.equal(variance_corrected(relatives, LAYOUT), mean(relatives))
    flat = [torch.full((LAYOUT.numel,), value) for value in (1.0, 3.0)]
    assert torch.equal(variance_corrected(flat, LAYOUT), mean(flat))
    (alone,) = models(1)
    assert torch.equal(variance_corrected([alone], LAYOUT), alone)


def test_rda_keeps_the_length_where_directions_differ():
    one, two = models(2)
    merged = rda([one, two], LAYOUT)
    for _, begin, end in LAYOUT.spans():
        lengths = [float(vector[begin:end].norm()) for vector in (one, two)]
        if end - begin > 1:
            assert float(merged[begin:end].norm()) == pytest.approx(sum(lengths) / 2, rel=1e-5)
    assert float(mean([one, two]).norm()) < 0.8 * float(merged.norm())
    # A long one does not drown the other; opposite ones have no direction.
    large = rda([one, 1000 * two], LAYOUT)
    cosines = [torch.cosine_similarity(large[:4096], v[:4096], dim=0) for v in (one, two)]
    assert cosines[0] == pytest.approx(float(cosines[1]), abs=1e-3)
    assert rda([one, -one], LAYOUT).count_nonzero() == 0
    assert torch.allclose(rda([one, one], LAYOUT), one)


# --- by nodes that are apart ----------------------------------------------------------------------


def apart(rule, vectors, weights=()):
    """Return the merged model as nodes make it that exchange nothing but exact means."""
    shares = [share(rule, vector, LAYOUT) for vector in vectors]
    assert {len(each) for each in shares} == {share_numel(rule, LAYOUT)}
    return merge_of(rule, mean(shares, weights), LAYOUT, len(vectors))


@pytest.mark.parametrize("n", [1, 2, 5, 16])
@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_means_over_shares_give_what_the_rules_give(n, shared):
    vectors = models(n, shared)
    near = {"rtol": 1e-5, "atol": 1e-6}
    assert torch.equal(apart("mean", vectors), mean(vectors))
    weights = list(range(1, n + 1))
    assert torch.equal(apart("tokens", vectors, weights), mean(vectors, weights))
    corrected = variance_corrected(vectors, LAYOUT)
    torch.testing.assert_close(apart("variance-corrected", vectors), corrected, **near)
    torch.testing.assert_close(apart("rda", vectors), rda(vectors, LAYOUT), **near)


def test_constants_and_zeros_are_merged_apart_as_well():
    flat = [torch.full((LAYOUT.numel,), value) for value in (1.0, 3.0)]
    assert torch.equal(apart("variance-corrected", flat), mean(flat))
    zeros = [torch.zeros(LAYOUT.numel)] * 2
    for rule in MERGE_RULES:
        assert torch.equal(apart(rule, zeros), zeros[0])


def test_equal_models_stay_as_they_are():
    (vector,) = models(1)
    for rule in MERGE_RULES:
        torch.testing.assert_close(apart(rule, [vector] * 3), vector)


def test_what_is_no_share_is_refused():
    with pytest.raises(ConfigError, match=r"a merge rule among mean, tokens, .*, got 'median'"):
        share("median", torch.zeros(LAYOUT.numel), LAYOUT)
    with pytest.raises(ConfigError, match=r"merge rule rda: expected .* numbers for this model"):
        merge_of("rda", torch.zeros(5), LAYOUT, 2)


# --- models that began from eight different inits ------------------------------------------------


def train_strangers(rule, rounds, seed):
    """Return the mean local accuracy; each node meets 3 random peers after every 2 steps."""
    task = Digits(8, seed, widths=(64, 64, 64, 64, 64, 64, 10), same_init=False)
    optimizer = Sgd(task.x, 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    everybody = list(range(8))
    for _ in range(rounds):
        for _ in range(2):
            task.x -= optimizer.steps(everybody, task.gradients(everybody)[1])
        before = task.x.clone()
        for node in everybody:
            others = [i for i in torch.randperm(8, generator=generator).tolist() if i != node]
            task.x[node] = rule([before[i] for i in (node, *others[:3])], task.layout)
    return task.measure(task.x.mean(0), everybody)["local_accuracy"]


def plain_mean(vectors, layout):
    del layout
    return mean(vectors)


@SEEDS
def test_strangers_learn_with_the_correction_and_stand_still_without(seed):
    assert train_strangers(plain_mean, 30, seed) < 0.4
    assert train_strangers(variance_corrected, 30, seed) >= 0.9


def test_mutant_that_corrects_relatives_too_amplifies_their_noise(monkeypatch):
    relatives = models(4, shared=2.0)
    base = mean(models(400, shared=2.0))
    gated = variance_corrected(relatives, LAYOUT)
    monkeypatch.setattr(merge, "_RELATED", 2.0)
    ungated = variance_corrected(relatives, LAYOUT)
    assert (ungated - base).norm() > 1.1 * (gated - base).norm()


def test_mutant_with_the_absolute_epsilon_of_the_paper_leaves_variance_missing(monkeypatch):
    vectors = models(16)  # variance 0.01, so that 1e-4 is a hundredth of it
    monkeypatch.setattr(merge, "_EPSILON", 1e-2)
    corrected = variance_corrected(vectors, LAYOUT)
    assert corrected[:4096].var() < 0.95 * vectors[0][:4096].var()


# --- the end of a run ----------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["sparse", "none"])
@SEEDS
def test_one_merge_at_the_end_lifts_every_node(rate, seed):
    """Labels split by Dirichlet(0.1) over 16 nodes, momentum-free SGD, 2,000 steps."""
    task = Digits(16, seed, dirichlet=0.1)
    every = 100 if rate == "sparse" else 10_000  # 0.2 exchanges in 20 steps
    arena = Arena(
        task,
        lambda x: PairAverage({"every": every}, x),
        optimizer=Sgd(task.x, 0.05),
        seed=seed,
    )
    arena.run(2000)
    found = arena.measure()
    if rate == "sparse":
        assert found["accuracy"] >= 0.91
        assert found["accuracy"] - found["local_accuracy"] >= 0.05
    else:
        assert 0.5 <= found["accuracy"] <= 0.8


class Normed(Task):
    """Digits with BatchNorm, and for each seed only some of the labels."""

    name = "normed"
    version = 1
    tokens_per_batch = 64
    dirichlet = 0.3

    def build_model(self, seed):
        return torch.nn.Sequential(
            torch.nn.Linear(64, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(64, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 10),
        )

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def _data(self):
        return Digits(1, 1)

    def batches(self, seed):
        digits = Digits(8, 5, dirichlet=self.dirichlet)
        share = digits._shares[seed % 8]
        generator = torch.Generator().manual_seed(seed)
        while True:
            picked = share[torch.randint(len(share), (64,), generator=generator)]
            yield digits._pixels[picked], digits._labels[picked]

    def loss(self, model, batch):
        pixels, labels = batch
        return torch.nn.functional.cross_entropy(model(pixels), labels)

    def evaluate(self, model):
        pixels, labels = self._data()._test
        return float(torch.nn.functional.cross_entropy(model(pixels), labels))


class Even(Normed):
    """Every node has all labels, so that each model by itself is good."""

    dirichlet = None


def trained(task=Normed, n=4, steps=150, init_seeds=None):
    """Return states of nodes that averaged every 10 steps, or never where inits differ."""
    states = [
        build_state(task({}), swarm_seed=init_seeds[i] if init_seeds else 0, device="cpu")
        for i in range(n)
    ]
    batches = [state.task.batches(i) for i, state in enumerate(states)]
    for step in range(steps):
        for state, stream in zip(states, batches, strict=True):
            state.take_step(next(stream))
        if step % 10 == 9 and not init_seeds:
            merged = mean([state.arena.flat for state in states])
            for state in states:
                state.arena.flat.copy_(merged)
    return states


def statistics(state):
    return [buffer.clone() for buffer in state.model.buffers()]


def test_batch_norm_is_measured_anew_and_never_averaged():
    states = trained()
    merged = mean([state.arena.flat for state in states])
    node = states[0]
    before, counts = statistics(node), [int(b) for b in node.model.buffers() if b.dim() == 0]
    own = node.arena.flat.clone()

    found = evaluate_merge(node, merged, shard_seed=0)
    assert torch.equal(node.arena.flat, own)  # nothing of the training state has changed
    assert all(torch.equal(a, b) for a, b in zip(statistics(node), before, strict=True))
    assert [int(t) for t in found.tensors.values() if t.dim() == 0] == counts
    assert found.digest == hashlib.sha256(merged.numpy().tobytes()).digest()
    assert torch.equal(found.tensors["0.weight"].flatten(), merged[: 64 * 64])

    node.arena.flat.copy_(merged)
    for slot, buffers in enumerate(zip(*(statistics(s) for s in states), strict=True)):
        target = list(node.model.buffers())[slot]
        if target.dim():
            target.copy_(torch.stack(buffers).mean(0))
    averaged = node.evaluate()
    # On batches of one node's own labels the statistics are its own as well: mix all nodes' data.
    streams = [state.task.batches(i) for i, state in enumerate(states)]
    mixed = (batch for group in zip(*streams, strict=True) for batch in group)
    assert recalibrate_batch_norm(node, mixed) == 2
    assert node.evaluate() < averaged
    assert node.model.training
    assert all(norm.momentum == 0.1 for norm in node.model if hasattr(norm, "running_mean"))


def test_a_merge_within_one_basin_has_no_barrier_and_one_of_strangers_has():
    states = trained(Even, steps=100)
    found = evaluate_merge(states[0], mean([s.arena.flat for s in states]), shard_seed=0)
    assert found.loss - found.own_loss < 0.01

    strangers = trained(Even, steps=100, init_seeds=[1, 2, 3, 4])
    found = evaluate_merge(strangers[0], mean([s.arena.flat for s in strangers]), shard_seed=0)
    assert found.loss - found.own_loss > 0.05 * found.own_loss
