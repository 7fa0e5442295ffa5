import itertools
import math
import sys

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.tasks import installed, text
from swarmnode.tasks.base import (
    DataError,
    PositiveFloat,
    PositiveInt,
    Task,
    TaskConfig,
    count_examples,
    probe_hash,
)
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.digits import Digits
from swarmnode.tasks.installed import installed_tasks
from swarmnode.tasks.registry import UnknownTask, load_task
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.state import build_state

SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 8, "batch": 2, "probe_windows": 4}
BUILT_IN = [(BytesLM, SMALL_LM), (Digits, {"batch": 4}), (Synthetic, {"dim": 4})]


@pytest.mark.parametrize(("task_type", "config"), BUILT_IN)
def test_the_same_seed_gives_the_same_model_and_batches(task_type, config):
    states = [build_state(task_type(config), swarm_seed=3, device="cpu") for _ in range(2)]
    other = build_state(task_type(config), swarm_seed=4, device="cpu")
    assert torch.equal(states[0].arena.flat, states[1].arena.flat)
    assert not torch.equal(states[0].arena.flat, other.arena.flat)

    first, again, different = (
        next(itertools.islice(task_type(config).batches(seed), 2, None)) for seed in (1, 1, 2)
    )
    assert all(map(torch.equal, parts(first), parts(again)))
    assert not all(map(torch.equal, parts(first), parts(different)))


def parts(batch):
    return (batch,) if isinstance(batch, torch.Tensor) else batch


def test_a_task_says_how_groups_meet_and_not_which_rule_guards_them():
    class Trusting(Digits):
        group_settings = {"every": 12, "merge": "mean"}  # noqa: RUF012
        gather_settings = {"every": 30, "merge": "mean"}  # noqa: RUF012

    task = Trusting({})
    assert task.suited("streaming", {}) == {"every": 12}
    assert task.suited("streaming", {"merge": "mean"}) == {"every": 12, "merge": "mean"}
    assert task.suited("sparse", {"kept": 32}) == {"every": 30, "kept": 32}


@pytest.mark.parametrize(("task_type", "config"), BUILT_IN)
def test_training_lowers_the_loss_on_the_probe(task_type, config):
    state = build_state(task_type(config), swarm_seed=0, device="cpu")
    batches = state.batches(1)
    before = state.evaluate()
    for _ in range(30):
        assert math.isfinite(state.take_step(next(batches)))
    assert state.evaluate() < before
    assert state.step == 30
    assert state.tokens == 30 * state.task.tokens_per_batch


@pytest.mark.parametrize(("task_type", "config"), BUILT_IN)
def test_the_data_hash_is_stable(task_type, config):
    assert task_type(config).data_hash() == task_type(config).data_hash()
    assert len(task_type(config).data_hash()) == 64


def test_the_public_probe_is_the_same_everywhere_and_its_hash_follows_from_it(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(32, 127)) * 50)
    other = {"data_dir": str(tmp_path)}
    for task_type, config in ((Digits, {}), (BytesLM, {"context": 16})):
        task = task_type(config)
        probe = task.public_probe()
        assert count_examples(probe) * (1 if task_type is Digits else 16) >= 100
        assert probe_hash(task) == probe_hash(task_type(config))
        assert len(probe_hash(task)) == 64
        assert 0 < task.trivial_loss() < 6
    assert probe_hash(BytesLM({"context": 16}, **other)) != probe_hash(BytesLM({"context": 16}))
    assert probe_hash(Synthetic({})) == "", "it has none"


@pytest.mark.parametrize(("task_type", "config"), BUILT_IN)
def test_a_shard_is_the_same_on_every_node_and_ends(task_type, config, monkeypatch):
    monkeypatch.setattr(task_type, "batches_per_shard", 5)
    first, again, other, later = (
        [parts(batch)[0] for batch in task_type(config).shard_batches(epoch_seed, shard, 200)]
        for epoch_seed, shard in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert 0 < len(first) == len(again)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], later[0])


def test_an_epoch_of_text_visits_every_window_once(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(32, 127)) * 5)
    task = BytesLM(SMALL_LM, data_dir=str(tmp_path))
    train = task._text[0].tolist()
    for epoch_seed, n_shards in ((8, 3), (11, 7)):
        batches = [b for s in range(n_shards) for b in task.shard_batches(epoch_seed, s, n_shards)]
        offset = epoch_seed % 8
        n_windows = (len(train) - 1 - offset) // 8
        windows = [tuple(row) for batch in batches for row in batch.tolist()]
        expected = [tuple(train[at : at + 9]) for at in range(offset, offset + 8 * n_windows, 8)]
        assert sorted(windows) == sorted(expected)
        assert windows != expected
        assert batches[0].dtype == next(task.batches(0)).dtype


def test_an_epoch_of_digits_visits_every_example_once():
    task = Digits({"batch": 64})
    seen = [row for s in range(3) for pixels, _ in task.shard_batches(5, s, 3) for row in pixels]
    expected = task._examples[0][:1400]
    assert len(seen) == 1400
    assert torch.equal(torch.stack(seen).sort(0).values, expected.sort(0).values)


def test_how_many_shards_an_epoch_has_follows_from_the_data(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text" * 5000)
    windows = (18_000 - 1) // 8  # of the nine tenths that are not held out
    task = BytesLM(SMALL_LM, data_dir=str(tmp_path))
    assert task.shards_per_epoch == windows // (2 * 64) == 17
    assert Digits({}).shards_per_epoch == 1
    assert Synthetic({}).shards_per_epoch == 256


def test_a_wrong_setting_is_named():
    with pytest.raises(ConfigError, match="task bytes-lm: unknown setting 'layer'; known settings"):
        BytesLM({"layer": 2})
    with pytest.raises(
        ConfigError, match=r"task bytes-lm: setting lr: expected `float`.*got 'big'"
    ):
        BytesLM({"lr": "big"})
    with pytest.raises(ConfigError, match="setting batch: expected `int` >= 1, got 0"):
        BytesLM({"batch": 0})
    with pytest.raises(ConfigError, match="dim must be a multiple of heads, got dim 10 and heads"):
        BytesLM({"dim": 10})


def test_a_byte_model_begins_near_the_entropy_of_random_bytes():
    state = build_state(BytesLM({}), swarm_seed=0, device="cpu")
    assert state.evaluate() == pytest.approx(math.log(256), abs=0.15)


def test_tied_embeddings_count_once():
    model = BytesLM({}).build_model(0)
    assert Arena(model).numel == sum(p.numel() for p in model.parameters()) == 120_064


def test_generation_is_seeded_and_keeps_the_prompt():
    task = BytesLM(SMALL_LM)
    model = build_state(task, swarm_seed=0, device="cpu").model
    with torch.no_grad():
        texts = [task.generate(model, "ab", 12, temperature=0.9, seed=seed) for seed in (1, 1, 2)]
        greedy = {task.generate(model, "ab", 5, temperature=0.0, seed=seed) for seed in (1, 2)}
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("ab")
    assert len(greedy) == 1


def test_a_task_that_cannot_generate_says_so():
    task = Synthetic({})
    with pytest.raises(ConfigError, match="task synthetic cannot generate"):
        task.generate(task.build_model(0), "", 1, temperature=1.0, seed=0)


def test_synthetic_measures_the_distance_to_the_optimum():
    state = build_state(Synthetic({"dim": 4}), swarm_seed=0, device="cpu")
    state.arena.flat.copy_(state.task.optimum())
    assert state.evaluate() == 0.0
    state.arena.flat[2] += 3.0
    assert state.evaluate() == pytest.approx(3.0, rel=1e-6)


def test_a_folder_of_text_replaces_the_built_in_corpus(tmp_path):
    (tmp_path / "b.txt").write_text("world " * 40)
    (tmp_path / "a.md").write_text("hello " * 40)
    (tmp_path / "image.bin").write_bytes(b"\x00\xff" * 10)
    corpus = text.load_corpus(str(tmp_path))
    assert corpus == b"hello " * 40 + b"\n" + b"world " * 40

    task = BytesLM(SMALL_LM, data_dir=str(tmp_path))
    assert next(task.batches(0)).shape == (2, 9)
    assert task.data_hash() != BytesLM(SMALL_LM).data_hash()


def test_the_held_out_tail_is_never_trained_on():
    corpus = bytes(range(100))
    train, held_out = text.split(corpus)
    assert train + held_out == corpus
    assert len(held_out) == 10


def test_data_that_is_missing_or_too_short_is_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="expected a folder of text files"):
        text.load_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no text file"):
        text.load_corpus(str(tmp_path))
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataError, match="expected more than 9 bytes to train on"):
        next(BytesLM(SMALL_LM, data_dir=str(tmp_path)).batches(0))
    monkeypatch.setattr("swarmnode.limits.CORPUS_BYTES_MAX", 4)
    with pytest.raises(DataError, match="more than 4 bytes of text"):
        text.load_corpus(str(tmp_path))


def test_digits_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install '\.\[digits\]' in the clone"):
        next(Digits({}).batches(0))


def test_built_in_tasks_load_by_name():
    assert load_task("bytes-lm") is BytesLM
    assert {"bytes-lm", "digits", "synthetic"} <= set(installed_tasks())


def test_an_unknown_task_lists_what_is_installed():
    with pytest.raises(UnknownTask, match=r"'nope' is not installed.*digits, .*synthetic"):
        load_task("nope")


def test_what_is_no_task_is_refused(monkeypatch):
    monkeypatch.setitem(
        installed.BUILT_IN,
        "wrong",
        "json:dumps",
    )
    with pytest.raises(ConfigError, match="task 'wrong': expected json:dumps to be a subclass"):
        load_task("wrong")


class Parabola(Task):
    """The example of the documentation, to the letter."""

    name = "parabola"
    version = 1

    class Config(TaskConfig):
        width: PositiveInt = 4
        lr: PositiveFloat = 0.1

    config: Config
    tokens_per_batch = 1

    def build_model(self, seed):
        return torch.nn.Linear(self.config.width, 1)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.config.lr)

    def batches(self, seed):
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield torch.randn(8, self.config.width, generator=generator)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model):
        return float(self.loss(model, torch.eye(self.config.width)))


def test_a_task_of_thirty_lines_trains():
    state = build_state(Parabola({"width": 3}), swarm_seed=0, device="cpu")
    before = state.evaluate()
    batches = state.batches(0)
    for _ in range(50):
        state.take_step(next(batches))
    assert state.evaluate() < 0.01 * before
    with pytest.raises(ConfigError, match="task parabola: unknown setting 'height'"):
        Parabola({"height": 1})
