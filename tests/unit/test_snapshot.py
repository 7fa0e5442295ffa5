import errno
import logging
import os

import numpy as np
import pytest
import safetensors.numpy
import torch

from swarmnode.errors import ConfigError, CorruptRecord, SpecMismatch, StorageError, StorageFull
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.digits import Digits
from swarmnode.worker import snapshot, tensorfile
from swarmnode.worker.snapshot import SnapshotStore
from swarmnode.worker.state import build_state

SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 8, "batch": 2, "probe_windows": 4}


class WithMomentum(PairAverage):
    """A strategy that keeps a vector beside the parameters, as outer optimizers do."""

    def __init__(self, x):
        super().__init__({}, x)
        self.momentum = torch.zeros_like(x)

    def buffers(self):
        return {"momentum": self.momentum}


def new_state(config=SMALL_LM, seed=0):
    state = build_state(BytesLM(config), swarm_seed=seed, device="cpu")
    return state, WithMomentum(state.arena.flat)


def train(state, steps):
    batches = state.batches(5)
    for _ in range(steps):
        state.take_step(next(batches))


@pytest.fixture
def trained(tmp_path):
    """(store with one snapshot at step 3, the state then, its strategy, the file)."""
    state, strategy = new_state()
    train(state, 3)
    strategy.momentum += 0.25
    store = SnapshotStore(tmp_path / "snapshots")
    return store, state, strategy, store.save(state, strategy)


def test_a_restored_node_goes_on_exactly(trained):
    store, state, _, _ = trained
    fresh, strategy = new_state(seed=99)
    assert store.restore(fresh, strategy)
    assert (fresh.step, fresh.tokens) == (3, 3 * 16)
    assert torch.equal(fresh.arena.flat, state.arena.flat)
    assert strategy.momentum.eq(0.25).all()

    train(state, 4)
    train(fresh, 4)
    assert torch.equal(fresh.arena.flat, state.arena.flat), "the optimizer's state is part of it"


def test_an_empty_directory_restores_nothing(tmp_path):
    state, strategy = new_state()
    assert not SnapshotStore(tmp_path / "none").restore(state, strategy)
    assert state.step == 0


def test_weights_are_readable_without_torch(trained, tmp_path):
    _, state, _, path = trained
    arrays = safetensors.numpy.load_file(path)
    expected = state.model.state_dict()["blocks.0.project.weight"].numpy()
    np.testing.assert_array_equal(arrays["model/blocks.0.project.weight"], expected)
    assert "model/bytes_out.weight" not in arrays, "tied to bytes_in.weight: kept once"

    exported = snapshot.export_weights(*snapshot.read_weights_file(path), tmp_path / "export")
    weights = safetensors.numpy.load_file(exported)
    assert set(weights) == {name for name, _ in state.model.named_parameters()}
    state.model.load_state_dict({n: torch.tensor(w) for n, w in weights.items()}, strict=False)


def test_the_newest_two_are_kept(trained):
    store, state, strategy, first = trained
    for _ in range(2):
        train(state, 1)
        store.save(state, strategy)
    assert [path.name for path in store.paths()] == [
        "snapshot-000000000005.safetensors",
        "snapshot-000000000004.safetensors",
    ]
    assert not first.exists()
    assert sorted(first.parent.iterdir()) == sorted(store.paths()), "nothing temporary is left"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "header"])
def test_a_damaged_newest_falls_back_to_the_one_before(trained, damage, caplog):
    store, state, strategy, _ = trained
    train(state, 1)
    newest = store.save(state, strategy)
    data = bytearray(newest.read_bytes())
    if damage == "truncated":
        del data[-100:]
    elif damage == "flipped":
        data[-100] ^= 0x10
    elif damage == "empty":
        data.clear()
    else:
        data[20] ^= 0xFF
    newest.write_bytes(data)

    fresh, fresh_strategy = new_state()
    with caplog.at_level(logging.WARNING):
        assert store.restore(fresh, fresh_strategy)
    assert fresh.step == 3
    assert len(caplog.records) == 1
    assert "is damaged" in caplog.text
    assert "trying the one before it" in caplog.text


class FullDisk:
    """A file that takes some bytes and then none, as a full disk does."""

    def __init__(self, file, space_bytes):
        self.file, self.space_bytes = file, space_bytes

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.file.close()

    def write(self, data):
        self.space_bytes -= len(data)
        if self.space_bytes < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)


@pytest.mark.parametrize("space_bytes", [0, 3000, 20_000])
def test_a_full_disk_loses_nothing_that_was_saved(trained, monkeypatch, space_bytes):
    store, state, strategy, first = trained
    before = first.read_bytes()
    train(state, 1)
    path_type = type(first)
    really_open = path_type.open
    monkeypatch.setattr(
        path_type, "open", lambda path, mode: FullDisk(really_open(path, mode), space_bytes)
    )
    with pytest.raises(StorageFull, match="no space left to write snapshot-000000000004"):
        store.save(state, strategy)
    monkeypatch.undo()
    assert list(first.parent.iterdir()) == [first]
    assert first.read_bytes() == before


def test_another_error_of_the_disk_is_named(trained, monkeypatch):
    store, state, strategy, _ = trained

    def broken(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        store.save(state, strategy)


def test_the_file_appears_only_when_it_is_durable(trained, monkeypatch):
    store, state, strategy, _ = trained
    train(state, 1)
    events = []
    really_sync, path_type = os.fsync, type(store.paths()[0])
    really_replace = path_type.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), really_sync(fd)))
    monkeypatch.setattr(
        path_type,
        "replace",
        lambda path, target: (events.append("rename"), really_replace(path, target)),
    )
    store.save(state, strategy)
    assert events == ["sync", "rename", "sync"], "data, then name, then the directory"


def test_parameters_that_are_not_finite_are_not_saved(trained):
    store, state, strategy, first = trained
    state.step += 1
    state.arena.flat[7] = float("nan")
    with pytest.raises(StorageError, match="at step 4 are not all finite"):
        store.save(state, strategy)
    assert store.paths() == [first]


def test_weights_of_another_model_are_refused(trained):
    store, *_ = trained
    bigger, strategy = new_state(SMALL_LM | {"dim": 32})
    with pytest.raises(SpecMismatch, match=r"expected weights of layout .* it belongs to another"):
        store.restore(bigger, strategy)


def test_buffers_travel_with_the_snapshot(tmp_path):
    state = build_state(Digits({}), swarm_seed=0, device="cpu")
    state.model.append(torch.nn.BatchNorm1d(10, affine=False))
    train(state, 2)
    strategy = PairAverage({}, state.arena.flat)
    store = SnapshotStore(tmp_path)
    store.save(state, strategy)
    counted = state.model[3].num_batches_tracked.clone()
    state.model[3].reset_running_stats()
    assert store.restore(state, strategy)
    assert state.model[3].num_batches_tracked == counted == 2
    assert state.arena.numel == 4810, "what is not trained is never averaged"


def test_every_dtype_survives(tmp_path):
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in tensorfile._DTYPES}
    tensors["scalar"] = torch.tensor(3.5)
    tensors["nothing"] = torch.empty(0, 4)
    tensors["transposed"] = torch.arange(6.0).reshape(2, 3).T
    tensorfile.write_tensors(tmp_path / "all.safetensors", tensors, "about")
    read, about = tensorfile.read_tensors(tmp_path / "all.safetensors")
    assert about == "about"
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_weights_are_found_where_people_point(trained, tmp_path):
    path = trained[3]
    assert snapshot.find_weights_file(path) == path
    assert snapshot.find_weights_file(path.parent) == path
    exported = snapshot.export_weights(*snapshot.read_weights_file(path), tmp_path / "export")
    assert snapshot.find_weights_file(tmp_path / "export") == exported
    with pytest.raises(ConfigError, match="expected an export, a snapshot or a folder"):
        snapshot.find_weights_file(tmp_path / "nothing")


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    tensorfile.write_tensors(path, {"a": torch.zeros(1)}, "not ours")
    with pytest.raises(CorruptRecord, match="is no snapshot or export of swarmnode"):
        snapshot.read_weights_file(path)
