"""The loop: steps, pauses, saves, ends; how the worker sends, and why it fails.

What it exchanges is in test_worker_exchange.py.
"""

import errno
import math
import os
import socket
import sys

import pytest
import torch

from swarmnode.errors import ConfigError, MalformedMessage, SpecMismatch, StorageFull
from swarmnode.ipc.control import (
    Applied,
    Pause,
    Progress,
    Resume,
    SaveSnapshot,
    SnapshotFailed,
    SnapshotSaved,
    Stop,
    encode_message,
)
from swarmnode.ipc.names import FAILURE_KINDS
from swarmnode.tasks.base import DataError
from swarmnode.tasks.registry import UnknownTask
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker import failures, runtime
from swarmnode.worker.channel import WORKER_OUTBOX_BYTES_MAX, DaemonGone
from swarmnode.worker.model import device
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.training.loop import DIVERGED_STEPS
from tests.kits.worker_kit import Rig


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_run_obeys_in_order_saves_and_ends(rig):
    rig.send(SaveSnapshot(request=9), Stop())
    rig.loop.run(shard_seed=1)
    (saved,) = rig.received(SnapshotSaved)
    assert (saved.request, saved.path) == (9, str(rig.store.paths()[0]))


def test_a_paused_loop_takes_no_step_and_still_reports(rig):
    rig.loop.obey(Pause())
    rig.send(Stop())
    rig.loop.run(shard_seed=1)
    (progress,) = rig.received(Progress)
    assert progress.paused
    assert progress.step == 0
    assert math.isnan(progress.loss)
    rig.loop.obey(Resume())
    assert not rig.loop.paused


def test_the_last_step_is_evaluated_and_saved(tmp_path):
    rig = Rig(tmp_path, steps_max=3)
    rig.socket.shutdown(socket.SHUT_WR)  # end of stream: the loop leaves after its first poll
    rig.loop.run(shard_seed=1)
    assert rig.state.step == 0
    rig.step(3)
    assert rig.loop.finished
    assert math.isfinite(rig.loop.reporter.eval_loss)
    rig.loop.saver.save_when_due(rig.state, rig.loop.strategy, last=rig.loop.finished)
    rig.wait_saved()
    assert rig.store.paths()[0].name == "snapshot-000000000003.safetensors"
    rig.close()


def test_a_dead_daemon_makes_the_loop_save_and_leave(rig):
    rig.step(2)
    rig.socket.close()
    rig.loop.run(shard_seed=1)
    assert rig.store.paths()[0].name == "snapshot-000000000002.safetensors"


def test_a_signal_makes_the_loop_save_and_leave(rig):
    rig.step(2)
    rig.channel.abandon("terminated")
    rig.loop.run(shard_seed=1)
    assert rig.store.paths()[0].name == "snapshot-000000000002.safetensors"


def test_a_full_disk_is_reported_and_training_goes_on(rig, monkeypatch):
    rig.step(1)
    monkeypatch.setattr(
        rig.store, "write", lambda _: (_ for _ in ()).throw(StorageFull("no space left"))
    )
    rig.loop.obey(SaveSnapshot(request=4))
    rig.loop.saver.save_when_due(rig.state, rig.loop.strategy, last=False)
    rig.wait_saved()
    failed = rig.received(SnapshotFailed)
    assert failed == [SnapshotFailed(request=4, step=1, message="no space left")]
    rig.step(1)
    assert rig.state.step == 2


def test_one_batch_that_overflows_is_left_out(rig):
    rows, labels = next(rig.state.batches(3))
    before = rig.state.arena.flat.clone()
    rig.loop.train_step((rows, labels * math.inf))
    assert torch.equal(rig.state.arena.flat, before)
    assert rig.state.step == 0
    rig.loop.train_step((rows, labels))
    assert rig.state.step == 1
    assert rig.loop.bad_steps == 0


def test_several_in_a_row_mean_that_the_model_is_lost(rig):
    rig.state.arena.flat.fill_(math.nan)
    rig.step(DIVERGED_STEPS - 1)
    with pytest.raises(failures.Diverged, match="the loss was nan in 5 steps in a row"):
        rig.step(1)


# --- channel ---------------------------------------------------------------------------------


def progress(step):
    return Progress(step=step, tokens=0, loss=0.0, eval_loss=0.0, step_time_s=0.0)


def test_a_daemon_that_reads_slowly_costs_heartbeats_and_nothing_else(rig):
    rig.channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for step in range(5000):
        rig.channel.send(progress(step))
    applied = Applied(xid=b"a" * 16, step=1, staleness_steps=0)
    rig.channel.send(applied)
    assert len(rig.channel._outbox) < 2 * WORKER_OUTBOX_BYTES_MAX

    messages = []
    while not messages or messages[-1] != applied:
        messages += rig.received()
        rig.channel.poll()
    steps = [message.step for message in messages[:-1]]
    assert steps == sorted(steps)
    assert len(steps) < 5000


def test_a_daemon_that_does_not_read_at_all_is_gone(rig):
    applied = Applied(xid=b"a" * 16, step=1, staleness_steps=0)

    def send_for_ever():
        while True:
            rig.channel.send(applied)

    with pytest.raises(DaemonGone, match="does not read"):
        send_for_ever()


def test_messages_that_come_in_pieces_are_put_together(rig):
    data = encode_message(Pause()) + encode_message(SaveSnapshot(request=3))
    rig.socket.sendall(data[:3])
    assert rig.channel.poll() == []
    rig.socket.sendall(data[3:-1])
    assert rig.channel.poll() == [Pause()]
    rig.socket.sendall(data[-1:])
    assert rig.channel.poll() == [SaveSnapshot(request=3)]


@pytest.mark.parametrize("data", [b"\x01\x00\x00\x00\xc1", b"\xff\xff\xff\xff"])
def test_what_is_no_message_is_refused(rig, data):
    rig.socket.sendall(data)
    with pytest.raises(MalformedMessage):
        rig.channel.poll()


# --- arena, device, threads ------------------------------------------------------------------


def test_the_arena_is_the_model(rig):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    values = torch.cat([model[0].weight.detach().flatten(), torch.ones(2), torch.zeros(2)])
    arena = Arena(model)
    assert arena.names == ("0.weight", "1.weight", "1.bias")
    assert torch.equal(arena.flat, values)
    arena.flat.fill_(2.0)
    assert model[0].weight.eq(2.0).all()
    assert model[1].bias.eq(2.0).all()


def test_a_model_of_float64_is_an_arena_of_float64():
    arena = Arena(torch.nn.Linear(2, 2, dtype=torch.float64))
    assert arena.flat.dtype == torch.float64
    assert {spec.dtype for spec in arena.layout.specs} == {"float64"}


def test_a_model_that_cannot_be_averaged_is_refused():
    half = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(
        ConfigError, match=r"parameter weight: expected float32, got torch\.bfloat16"
    ):
        Arena(half)
    with pytest.raises(
        ConfigError, match=r"parameter 1\.weight: expected float32, got torch\.float64"
    ):
        Arena(mixed)
    with pytest.raises(ConfigError, match="no parameter that requires a gradient"):
        Arena(torch.nn.ReLU())


@pytest.mark.parametrize("setting", ["tpu", "cuda:x", "meta", "mps", "cuda", "cuda:7"])
def test_a_device_that_is_not_there_is_named(setting, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: expected"):
        device.choose_device(setting)
    assert str(device.choose_device("auto")) == "cpu"


def test_a_gpu_number_out_of_range_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="expected cuda:0 to cuda:1, got cuda:5"):
        device.choose_device("cuda:5")


def test_bfloat16_is_taken_on_a_cpu_only_where_it_is_faster(monkeypatch):
    task = Synthetic({"dim": 4})
    model = task.build_model(0)
    cpu = device.choose_device("cpu")
    assert device.with_fastest_precision(cpu, task, model) is cpu, "small models never try"

    monkeypatch.setattr(device, "_BF16_NUMEL_MIN", 1)
    for bf16_s, expected in [(0.9, None), (0.5, torch.bfloat16)]:
        times_s = {None: 1.0, torch.bfloat16: bf16_s}
        monkeypatch.setattr(
            device, "_pass_time_s", lambda option, *_, t=times_s: t[option.autocast_dtype]
        )
        chosen = device.with_fastest_precision(cpu, task, model)
        assert chosen.autocast_dtype == expected


def test_measuring_a_pass_leaves_no_gradient():
    task = Synthetic({"dim": 4})
    model = task.build_model(0)
    bf16 = device.Device(torch.device("cpu"), torch.bfloat16)
    assert device._pass_time_s(bf16, task, model, next(task.batches(0))) > 0
    assert model.weight.grad is None


def test_threads_leave_a_core_to_the_daemon(monkeypatch):
    monkeypatch.delenv("SWARMNODE_THREADS", raising=False)
    for cores, threads in [(1, 1), (2, 1), (8, 7)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert runtime.thread_count() == threads
    monkeypatch.setenv("SWARMNODE_THREADS", "3")
    assert runtime.thread_count() == 3
    monkeypatch.setenv("SWARMNODE_THREADS", "many")
    with pytest.raises(ConfigError, match="SWARMNODE_THREADS: expected a number from 1 on"):
        runtime.thread_count()


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "torch-missing"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "config"),
        (UnknownTask("no such task"), "task-unknown"),
        (DataError("no data"), "data"),
        (ConfigError("bad setting"), "config"),
        (MalformedMessage("what?"), "config"),
        (SpecMismatch("other layout"), "layout"),
        (StorageFull("full"), "disk-full"),
        (failures.Diverged("nan"), "diverged"),
        (failures.SnapshotUnfit("rounds"), "snapshot"),
        (MemoryError(), "out-of-memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out-of-memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
            "out-of-memory",
        ),
        (OSError(errno.EIO, "broken"), "crash"),
        (ZeroDivisionError("division by zero"), "crash"),
    ],
)
def test_every_failure_has_a_kind_and_one_line(error, kind):
    found, message = failures.classify(error)
    assert found == kind
    assert message
    assert "\n" not in message


def test_kinds_and_exit_statuses_belong_together():
    assert set(failures.EXIT_STATUS) == FAILURE_KINDS
    assert len(set(failures.EXIT_STATUS.values())) == len(FAILURE_KINDS)
    assert not {0, 2} & set(failures.EXIT_STATUS.values())


def test_memory_errors_are_told_apart_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert failures.classify(MemoryError())[0] == "out-of-memory"
    assert failures.classify(ValueError("x"))[0] == "crash"
