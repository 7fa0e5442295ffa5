import errno
import logging
import os

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import torch

from swarmnode.errors import ConfigError, CorruptRecord, SpecMismatch, StorageError, StorageFull
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.bytes_lm import BytesLM
from swarmnode.tasks.digits import Digits
from swarmnode.tensor.snapshot_format import FETCHED_NAME, About
from swarmnode.worker.model.state import LOSSES_MAX, build_state
from swarmnode.worker.snapshots import restore, tensorfile
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from tests.conftest import open_files

ABOUT = About(task="t", task_version=1, task_config={}, layout_hash="0" * 64, step=1, tokens=2)
SMALL_LM = {"dim": 16, "layers": 1, "heads": 2, "context": 8, "batch": 2, "probe_windows": 4}


class WithMomentum(PairAverage):
    """A strategy that keeps a vector beside the parameters, as outer optimizers do."""

    def __init__(self, x, n_fragments=4):
        super().__init__({}, x)
        self.momentum = torch.zeros_like(x)

        self.residual = torch.zeros_like(x)
        self.fragment_rounds = torch.zeros(n_fragments)

    def buffers(self):
        return {
            "momentum": self.momentum,
            "residual": self.residual,
            "fragment_rounds": self.fragment_rounds,
        }

    def shipped(self):
        return {"momentum"}


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
    strategy.residual += 0.5
    strategy.fragment_rounds += 3
    with SnapshotStore(tmp_path / "snapshots") as store:
        yield store, state, strategy, store.save(state, strategy)


def test_a_restored_node_goes_on_exactly(trained):
    store, state, _, _ = trained
    fresh, strategy = new_state(seed=99)
    assert store.restore(fresh, strategy)
    assert (fresh.step, fresh.tokens) == (3, 3 * 16)
    assert torch.equal(fresh.arena.flat, state.arena.flat)
    assert strategy.momentum.eq(0.25).all()
    assert strategy.residual.eq(0.5).all()

    train(state, 4)
    train(fresh, 4)
    assert torch.equal(fresh.arena.flat, state.arena.flat), "the optimizer's state is part of it"


def test_how_the_loss_fell_is_in_a_snapshot_and_comes_from_no_peer(trained):
    store, state, strategy, path = trained
    for step in range(1000):
        state.step = step
        state.note_loss(5 - step / 1000)
    state.note_loss(float("nan"))
    assert LOSSES_MAX // 2 <= len(state.losses) <= LOSSES_MAX
    assert state.losses == sorted(state.losses)
    assert state.losses[0] == (0, 5.0)
    assert state.losses[-1][0] > 990
    newest = store.save(state, strategy)
    fresh, other = new_state(seed=99)
    assert store.restore(fresh, other)
    assert fresh.losses == state.losses
    newest.replace(newest.with_name(FETCHED_NAME))
    path.unlink()
    joined, other = new_state(seed=99)
    assert store.restore(joined, other)
    assert joined.losses == []


def test_a_snapshot_says_where_in_the_log_its_weights_are(trained):
    store, state, strategy, path = trained
    assert b"log_head" not in path.read_bytes(), "it is of no log"
    state.log_head = bytes(range(32))
    newest = store.save(state, strategy)
    fresh, other = new_state(seed=99)
    assert store.restore(fresh, other)
    assert fresh.log_head == state.log_head
    newest.replace(newest.with_name(FETCHED_NAME))
    joined, other = new_state(seed=99)
    joined.log_head = b"another" * 4
    assert store.restore(joined, other)
    assert joined.log_head == state.log_head


def test_an_empty_directory_restores_nothing(tmp_path):
    state, strategy = new_state()
    with SnapshotStore(tmp_path / "none") as store:
        assert not store.restore(state, strategy)
    assert state.step == 0


def test_weights_are_readable_without_torch(trained, tmp_path):
    _, state, _, path = trained
    arrays = safetensors.numpy.load_file(path)
    expected = state.model.state_dict()["blocks.0.project.weight"].numpy()
    np.testing.assert_array_equal(arrays["model/blocks.0.project.weight"], expected)
    assert "model/bytes_out.weight" not in arrays, "tied to bytes_in.weight: kept once"

    exported = restore.export_weights(*tensorfile.read_tensors(path), tmp_path / "export")
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
    assert f"{newest} is damaged" in caplog.text
    assert "trying the one before it" in caplog.text
    assert not newest.exists(), "else it would count as one of those to keep"
    assert newest.with_name("damaged.safetensors").read_bytes() == data
    assert "damaged" not in "".join(path.name for path in store.paths())


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
    with pytest.raises(StorageError, match=r"tensor model/.* at step 4 is not finite"):
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
    with SnapshotStore(tmp_path / "snapshots") as store:
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
    tensorfile.write_tensors(tmp_path / "all.safetensors", tensors, ABOUT)
    read, about = tensorfile.read_tensors(tmp_path / "all.safetensors")
    assert about.hashes.keys() == tensors.keys()
    assert msgspec.structs.replace(about, hashes={}) == ABOUT
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_weights_are_found_where_people_point(trained, tmp_path, caplog):
    store, state, strategy, path = trained
    assert restore.read_weights(path)[0] == path
    assert restore.read_weights(path.parent)[0] == path
    exported = restore.export_weights(*tensorfile.read_tensors(path), tmp_path / "export")
    assert restore.read_weights(tmp_path / "export")[0] == exported
    with pytest.raises(ConfigError, match="expected an export, a snapshot or a folder"):
        restore.read_weights(tmp_path / "nothing")

    train(state, 1)
    flip(store.save(state, strategy))
    assert restore.read_weights(path.parent)[0] == path
    assert "trying the one before it" in caplog.text
    flip(path)
    with pytest.raises(CorruptRecord, match=r"snapshot-000000000003.* is damaged"):
        restore.read_weights(path.parent)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(100, np.float32)}, path)
    with pytest.raises(CorruptRecord, match="does not begin like a snapshot or an export"):
        tensorfile.read_tensors(path)


def test_a_dtype_without_a_name_is_an_alarm_and_no_crash(trained):
    store, state, strategy, _ = trained
    state.model.register_buffer("rotation", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(
        StorageError, match=r"tensor model/rotation: expected .*complex64; register"
    ):
        store.save(state, strategy)


def test_no_memory_for_a_copy_is_an_alarm_and_no_crash(trained, monkeypatch):
    _, state, strategy, path = trained
    with SnapshotStore(path.parent.parent / "other") as store:
        empty = torch.empty

        def no_memory(size, **options):
            if size:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return empty(size, **options)

        monkeypatch.setattr(torch, "empty", no_memory)
        with pytest.raises(StorageError, match="no memory for a copy of"):
            store.take(state, strategy)


# --- taken between two steps, written beside them --------------------------------------------


def test_what_is_written_is_the_state_when_it_was_taken(trained):
    store, state, strategy, _ = trained
    train(state, 1)
    expected = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    taken = store.take(state, strategy)
    train(state, 2)
    tensors, about = tensorfile.read_tensors(store.write(taken))
    assert about.step == 4
    for name, tensor in expected.items():
        assert torch.equal(tensors["model/" + name], tensor)


def test_what_is_read_in_passing_is_as_it_is_when_written_and_no_copy_is_made(trained, tmp_path):
    _, state, strategy, _ = trained
    with SnapshotStore(tmp_path / "passing", live_bytes_min=0) as store:
        taken = store.take(state, strategy, in_passing=True)
        assert not taken.copy.copied
        train(state, 2)
        tensors, _ = tensorfile.read_tensors(store.write(taken))
        for name, parameter in state.model.named_parameters():
            assert torch.equal(tensors["model/" + name], parameter)
        taken = store.take(state, strategy, in_passing=True)
        with torch.no_grad():
            state.arena.flat[-1] = torch.nan
        with pytest.raises(StorageError, match="is not finite: not worth keeping"):
            store.write(taken)
        assert len(store.paths()) == 1


def test_a_large_tensor_is_written_in_parts(tmp_path):
    """Of odd length, in two dtypes, and as little memory as one part."""
    numel = tensorfile._CHUNK_BYTES // 2 + 3
    tensors = {"a": torch.randn(numel), "b": torch.arange(numel), "c": torch.ones(3)}
    path = tmp_path / "snapshot-000000000001.safetensors"
    copy = tensorfile.HostBuffer().copy(tensors, live_bytes_min=1000)
    assert list(copy.copied) == ["c"]
    tensorfile.write_copy(path, copy, ABOUT, finite={"a"})
    found, _ = tensorfile.read_tensors(path)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)


def test_the_memory_of_a_copy_is_used_again(trained):
    store, state, strategy, _ = trained
    before = store._buffer._buffer.data_ptr()
    train(state, 1)
    store.save(state, strategy)
    assert store._buffer._buffer.data_ptr() == before


def test_two_workers_do_not_write_one_folder(trained):
    store, *_ = trained
    before = open_files()
    with pytest.raises(StorageError, match="another worker writes snapshots: it has held"):
        SnapshotStore(store._directory, lock_wait_s=0.0)
    assert open_files() == before
    store.close()
    SnapshotStore(store._directory, lock_wait_s=0.0).close()


def test_what_a_crash_left_half_written_is_removed(trained):
    store, _, _, path = trained
    store.close()
    leftover = path.with_name("snapshot-000000000004.tmp")
    leftover.write_bytes(b"half")
    with SnapshotStore(path.parent) as store:
        assert list(path.parent.iterdir()) == store.paths() == [path]


def test_a_file_that_cannot_be_read_is_not_taken_for_none(trained, monkeypatch):
    store, state, strategy, _ = trained
    train(state, 1)
    newest = store.save(state, strategy)
    path_type, really_open = type(newest), type(newest).open
    unreadable = {newest}

    def fails(path, mode):
        if path in unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return really_open(path, mode)

    monkeypatch.setattr(path_type, "open", fails)
    assert store.restore(*new_state())
    unreadable.update(store.paths())
    with pytest.raises(StorageError, match=r"cannot read .*Input/output error"):
        store.restore(*new_state())
    assert newest.exists(), "the disk may have been away, the file is good"


# --- into another node -------------------------------------------------------------------------


def rewritten(path, change):
    """Change the tensors of a snapshot; its hashes are right."""
    tensors, about = tensorfile.read_tensors(path)
    change(tensors)
    tensorfile.write_tensors(path, tensors, about)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_snapshot_of_another_dtype_loads(trained, dtype):
    store, state, _, path = trained
    rewritten(path, lambda tensors: tensors.update({n: t.to(dtype) for n, t in tensors.items()}))
    fresh, strategy = new_state(seed=99)
    assert store.restore(fresh, strategy)
    assert fresh.arena.flat.dtype == torch.float32
    torch.testing.assert_close(fresh.arena.flat, state.arena.flat, rtol=0.01, atol=0.001)
    matrix, vector = fresh.model.blocks[0].project.weight, fresh.model.norm.weight
    assert fresh.optimizer.state[matrix]["momentum_buffer"].dtype == torch.float32
    assert fresh.optimizer.state[vector]["exp_avg"].dtype == torch.float32
    train(fresh, 2)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_snapshot_goes_from_one_device_to_another(trained, device):
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[device]:
        pytest.skip(f"no {device} here")
    store, state, _, _ = trained
    there = build_state(BytesLM(SMALL_LM), swarm_seed=9, device=device)
    strategy = WithMomentum(there.arena.flat)
    assert store.restore(there, strategy)
    assert torch.equal(there.arena.flat.cpu(), state.arena.flat)
    train(there, 1)
    store.save(there, strategy)
    back, strategy = new_state()
    assert store.restore(back, strategy)
    assert torch.equal(there.arena.flat.cpu(), back.arena.flat)


def with_optimizer(make):
    state, strategy = new_state(seed=99)
    state.optimizer = make(state.model.parameters())
    return state, strategy


@pytest.mark.parametrize(
    ("make", "is_kept"),
    [
        (lambda p: torch.optim.AdamW(p, lr=0.5, foreach=True), True),
        (lambda p: torch.optim.Adam(p, lr=0.5), True),
        (lambda p: torch.optim.AdamW(p, lr=0.5, amsgrad=True), False),
        (lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), False),
        (lambda p: torch.optim.RMSprop(p, lr=0.5, momentum=0.9, centered=True), False),
    ],
    ids=["other-lr", "adam", "amsgrad", "sgd", "rmsprop"],
)
def test_other_settings_of_the_optimizer(trained, caplog, make, is_kept):
    store, state, old_strategy, _ = trained
    state.optimizer = torch.optim.AdamW(state.model.parameters())
    train(state, 1)
    store.save(state, old_strategy)
    fresh, strategy = with_optimizer(make)
    assert store.restore(fresh, strategy)
    assert torch.equal(fresh.arena.flat, state.arena.flat)
    assert fresh.optimizer.param_groups[0]["lr"] == 0.5
    name, parameter = next(fresh.model.named_parameters())
    assert bool(fresh.optimizer.state.get(parameter)) == is_kept
    assert ("begins anew" in caplog.text) != is_kept
    if is_kept:
        theirs = dict(state.model.named_parameters())[name]
        for key, value in state.optimizer.state[theirs].items():
            assert torch.equal(fresh.optimizer.state[parameter][key], value)
    assert all(parameter.grad is None for parameter in fresh.model.parameters())
    train(fresh, 2)
    assert torch.isfinite(fresh.arena.flat).all()


def test_an_optimizer_without_state_needs_none(tmp_path):
    state, strategy = with_optimizer(lambda p: torch.optim.SGD(p, lr=0.1))
    train(state, 2)
    with SnapshotStore(tmp_path / "snapshots") as store:
        store.save(state, strategy)
        fresh, strategy = with_optimizer(lambda p: torch.optim.SGD(p, lr=0.1))
        assert store.restore(fresh, strategy)
    train(state, 2)
    train(fresh, 2)
    assert torch.equal(fresh.arena.flat, state.arena.flat)


class Counting(torch.optim.SGD):
    """An optimizer that keeps a plain number for each parameter, and one for its group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
        return super().step(closure)


def test_state_that_is_no_tensor_is_kept_too(tmp_path):
    def make(parameters):
        optimizer = Counting(parameters, lr=0.1)
        optimizer.param_groups[0]["k"] = 0
        return optimizer

    state, strategy = with_optimizer(make)
    train(state, 3)
    with SnapshotStore(tmp_path / "snapshots") as store:
        store.save(state, strategy)
        fresh, strategy = with_optimizer(make)
        assert store.restore(fresh, strategy)
    assert {entry["count"] for entry in fresh.optimizer.state.values()} == {3}
    assert fresh.optimizer.param_groups[0]["k"] == 0, "the group's are settings, not state"


def test_another_number_of_fragments_keeps_what_goes_by_parameter(trained, caplog):
    store, _, _, _ = trained
    fresh, _ = new_state(seed=99)
    strategy = WithMomentum(fresh.arena.flat, n_fragments=7)
    assert store.restore(fresh, strategy)
    assert strategy.momentum.eq(0.25).all()
    assert strategy.residual.eq(0.5).all()
    assert strategy.fragment_rounds.eq(0).all()
    assert "has no fragment_rounds of shape (7,)" in caplog.text


def test_a_joiner_takes_what_is_shipped_and_counts_from_zero(trained):
    store, state, _, path = trained
    path.rename(path.with_name(FETCHED_NAME))
    fresh, strategy = new_state(seed=99)
    assert store.restore(fresh, strategy)
    assert torch.equal(fresh.arena.flat, state.arena.flat)
    assert (fresh.step, fresh.tokens) == (0, 0)
    assert strategy.momentum.eq(0.25).all()
    assert strategy.residual.eq(0).all(), "it was about the other node"
    assert strategy.fragment_rounds.eq(0).all()


def test_what_a_peer_sent_cannot_stop_a_node(trained, caplog):
    store, _, _, path = trained
    fetched = path.with_name(FETCHED_NAME)

    def spoil(tensors):
        tensors["model/blocks.0.project.weight"][0, 0] = float("nan")

    rewritten(path.rename(fetched), spoil)
    fresh, strategy = new_state()
    before = fresh.arena.flat.clone()
    assert not store.restore(fresh, strategy)
    assert "tensor blocks.0.project.weight is not finite" in caplog.text

    other, other_strategy = new_state(SMALL_LM | {"dim": 32})
    store.save(other, other_strategy)
    assert store.paths() == [fetched]
    assert not store.restore(fresh, strategy)
    assert "belongs to another model" in caplog.text
    assert not store.paths()
    assert torch.equal(fresh.arena.flat, before)


@pytest.mark.parametrize("shape", [None, (3,)])
def test_a_tensor_that_does_not_fit_is_named(trained, shape):
    store, _, _, path = trained

    def change(tensors):
        tensors.pop("model/blocks.0.project.weight")
        if shape is not None:
            tensors["model/blocks.0.project.weight"] = torch.zeros(shape)

    rewritten(path, change)
    fresh, strategy = new_state()
    before = fresh.arena.flat.clone()
    with pytest.raises(SpecMismatch, match=r"expected a tensor blocks.0.project.weight of shape"):
        store.restore(fresh, strategy)
    assert torch.equal(fresh.arena.flat, before)


def test_a_folder_that_cannot_be_used_is_tried_again(tmp_path, caplog):
    state, strategy = new_state()
    train(state, 1)
    (tmp_path / "home").write_text("in the way")
    with SnapshotStore(tmp_path / "home" / "snapshots") as store:
        assert "cannot use" in caplog.text
        assert not store.restore(state, strategy)
        with pytest.raises(StorageError, match=r"cannot write .*Not a directory"):
            store.save(state, strategy)
        (tmp_path / "home").unlink()
        assert store.save(state, strategy).exists()
        with pytest.raises(StorageError, match="another worker writes"):
            SnapshotStore(tmp_path / "home" / "snapshots", lock_wait_s=0.0)
