"""What the worker trains next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from swarmnode import limits
from swarmnode.errors import LocalProtocolError
from swarmnode.ipc.control import (
    DropShard,
    Progress,
    ShardDone,
    Stop,
    TakeShard,
    decode_from_worker,
    decode_to_worker,
    encode_message,
)
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.training.loop import Feed
from tests.kits.worker_kit import Rig


def numbered(order: TakeShard) -> Iterator[str]:
    return (f"{order.epoch}/{order.index}:{number}" for number in range(order.n_shards))


@pytest.fixture
def feed() -> Feed:
    return Feed(numbered, sent.append)


sent: list[ShardDone] = []


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


def take(feed: Feed, n: int) -> list[str]:
    own = (f"own:{number}" for number in itertools.count())
    return [feed.next_batch(own) for _ in range(n)]


def test_shards_are_trained_in_order_and_the_own_stream_when_there_is_none(feed: Feed) -> None:
    assert take(feed, 1) == ["own:0"]
    feed.take(TakeShard(epoch=0, index=3, n_shards=2))
    feed.take(TakeShard(epoch=1, index=0, n_shards=1))
    assert take(feed, 2) == ["0/3:0", "0/3:1"]
    assert sent == [], "its last batch is only being trained"
    assert take(feed, 2) == ["1/0:0", "own:0"]
    assert sent == [ShardDone(epoch=0, index=3), ShardDone(epoch=1, index=0)]


def test_an_empty_shard_is_done_at_once(feed: Feed) -> None:
    feed.take(TakeShard(epoch=0, index=0, n_shards=0))
    assert take(feed, 1) == ["own:0"]
    assert sent == [ShardDone(epoch=0, index=0)]


def test_a_dropped_shard_is_left_in_the_middle_and_not_reported(feed: Feed) -> None:
    feed.take(TakeShard(epoch=0, index=1, n_shards=5))
    feed.take(TakeShard(epoch=0, index=2, n_shards=1))
    assert take(feed, 2) == ["0/1:0", "0/1:1"]
    feed.drop(DropShard(epoch=0, index=1))
    feed.drop(DropShard(epoch=9, index=9))
    assert take(feed, 2) == ["0/2:0", "own:0"]
    assert sent == [ShardDone(epoch=0, index=2)]


def test_more_than_a_peer_may_claim_is_refused(feed: Feed) -> None:
    for index in range(limits.SHARD_CLAIMS_MAX):
        feed.take(TakeShard(epoch=0, index=index, n_shards=1))
    with pytest.raises(LocalProtocolError, match="expected at most 2 shards at once"):
        feed.take(TakeShard(epoch=0, index=9, n_shards=1))


def test_the_messages_survive_the_wire() -> None:
    take_shard, drop = TakeShard(epoch=2, index=1, n_shards=4), DropShard(epoch=2, index=1)
    assert [decode_to_worker(encode_message(m)[4:]) for m in (take_shard, drop)] == [
        take_shard,
        drop,
    ]
    done = ShardDone(epoch=2, index=1)
    assert decode_from_worker(encode_message(done)[4:]) == done


def test_the_loop_trains_a_shard_and_says_so(tmp_path) -> None:
    trained = []

    class Noted(Synthetic):
        batches_per_shard = 6

        def loss(self, model, batch):
            trained.append(batch[0].clone())
            if len(trained) == 8:
                rig.send(Stop())
            return super().loss(model, batch)

    rig = Rig(tmp_path, steps_max=9, task_type=Noted)
    order = TakeShard(epoch=4, index=2, n_shards=256)
    rig.send(order)
    rig.loop.run(shard_seed=1)
    assert rig.received(ShardDone | Progress)[-1] == ShardDone(epoch=4, index=2)
    expected = [rows for rows, _ in rig.state.shard_batches(order)]
    assert len(expected) == 6
    assert all(map(torch.equal, trained, expected))
    own = next(rig.state.batches(1))[0]
    assert trained[6].shape == own.shape
    assert not torch.equal(trained[6], expected[0])
    rig.close()
