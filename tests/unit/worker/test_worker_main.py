"""The beginning of a worker, in this process: from Configure to its first messages."""

import os
import socket

import pytest
import torch

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ipc.control import (
    Configure,
    Pause,
    PostedIntent,
    Progress,
    Stop,
    WorkerReady,
    decode_from_worker,
    encode_message,
)
from swarmnode.ipc.segment import Segment
from swarmnode.tensor.snapshot_format import FETCHED_NAME
from swarmnode.worker.channel import Channel
from swarmnode.worker.failures import SnapshotUnfit, classify
from swarmnode.worker.main import work
from swarmnode.worker.snapshots.tensorfile import read_tensors, write_tensors
from tests.kits.worker_kit import ME

DIM = 8


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Run a worker that is told all ``messages`` at once; return what it says and its segment."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    segments = []

    def run(strategy, *messages, settings=None):
        configure = Configure(
            task="synthetic",
            task_config={"dim": DIM},
            strategy=strategy,
            strategy_settings=settings or {},
            swarm_seed=1,
            shard_seed=2,
            snapshot_dir=str(tmp_path / "snapshots"),
            device="cpu",
            self_id=ME,
            threads=torch.get_num_threads(),
        )
        ours, theirs = socket.socketpair()
        segments.append(Segment.create())
        worker_segment = Segment(os.dup(segments[0].fd))
        with ours, theirs:
            for message in (configure, *messages):
                ours.sendall(encode_message(message))
            work(Channel(theirs), worker_segment)
            worker_segment.close()
            segments[0].map()
            return read_all(ours.recv(1 << 20)), segments[0]

    yield run
    for segment in segments:
        segment.close()


def read_all(data):
    messages = []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        messages.append(decode_from_worker(data[4:end]))
        data = data[end:]
    return messages


@pytest.mark.parametrize(
    ("strategy", "payload_numel", "round_steps", "answers"),
    [
        ("pair-average", DIM, 0, []),
        ("a2cid2", DIM, 0, ["pair"]),
        ("noloco", 2 * DIM, 50, []),
        ("diloco", 2 * DIM + 3, 100, ["pull"]),
        ("streaming", 2 * DIM + 3, 20, ["pull"]),
        ("one-byte", 1, 0, []),
    ],
)
def test_a_worker_says_what_its_strategy_is_like(
    begin, strategy, payload_numel, round_steps, answers
):
    messages, segment = begin(strategy, Stop())
    ready = messages[0]
    assert isinstance(ready, WorkerReady)
    assert (ready.numel, ready.payload_numel) == (DIM, payload_numel)
    assert (ready.round_steps, ready.log_round) == (round_steps, 0)
    assert (segment.numel, segment.slots) == (2 * payload_numel, limits.SLOTS_PER_WORKER)
    intents = [message for message in messages if isinstance(message, PostedIntent)]
    assert [(intent.kind, intent.is_open) for intent in intents] == [
        (kind, True) for kind in answers
    ]
    assert messages[1 : 1 + len(answers)] == intents, "answers follow at once"


def test_what_comes_right_behind_the_order_is_obeyed(begin):
    messages, _ = begin("pair-average", Pause(), Stop())
    (progress,) = [message for message in messages if isinstance(message, Progress)]
    assert progress.paused
    assert progress.step == 0


def test_an_order_that_is_none_is_refused():
    ours, theirs = socket.socketpair()
    segment = Segment.create()
    with ours, theirs:
        ours.sendall(encode_message(Pause()))
        with pytest.raises(MalformedMessage, match="expected what to train first"):
            work(Channel(theirs), segment)
    segment.close()


def test_what_was_fetched_and_is_unfit_ends_the_worker_and_the_next_one_begins(begin, tmp_path):
    messages, _ = begin("noloco", Stop())  # leaves a snapshot of its own
    assert isinstance(messages[0], WorkerReady)
    (own,) = (tmp_path / "snapshots").glob("snapshot-*.safetensors")
    fetched = own.rename(own.with_name(FETCHED_NAME))
    tensors, about = read_tensors(fetched)
    tensors["strategy/rounds"][0] = 2**63 - 1
    write_tensors(fetched, tensors, about)

    with pytest.raises(SnapshotUnfit, match="rounds: expected a whole number") as caught:
        begin("noloco", Stop())
    assert classify(caught.value)[0] == "snapshot"
    messages, _ = begin("noloco", Stop())
    assert isinstance(messages[0], WorkerReady), "it is put aside, and does not end the next one"
