"""What each peer trains, over the real shared state with delays, deaths, joins and partitions."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.protocol.shards.words import read_element
from tests.property.models.shard_world import ShardWorld


@pytest.mark.parametrize("seed", range(4))
def test_every_shard_of_an_epoch_is_trained_once_and_never_in_parallel(seed: int) -> None:
    swarm = ShardWorld(8, seed)
    swarm.run(60.0)
    assert not list(swarm.overlaps())
    assert set(swarm.whole(0).values()) == set(swarm.whole(1).values()) == {1}
    assert max(swarm.whole(2).values()) == 1


@pytest.mark.parametrize(("settle_s", "is_clean"), [(limits.SHARD_SETTLE_S, True), (0.0, False)])
def test_shards_shorter_than_the_news_need_the_time_to_settle(
    settle_s: float, is_clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHARD_SETTLE_S", settle_s)
    swarm = ShardWorld(8, 1, shard_s=(0.2, 0.5))
    swarm.run(40.0)
    assert all(swarm.whole(0).values())
    assert (not list(swarm.overlaps())) == is_clean


def test_after_the_first_claims_have_settled_no_member_waits_for_a_shard() -> None:
    swarm = ShardWorld(8, 5)
    swarm.run(10.0)
    before = {peer: node.idle_s for peer, node in swarm.nodes.items()}
    assert max(before.values()) < limits.SHARD_SETTLE_S + 2.0
    swarm.run(50.0)
    assert max(swarm.nodes[peer].idle_s - before[peer] for peer in before) < 1.0


@pytest.mark.parametrize("seed", range(4))
def test_the_unfinished_shard_of_a_dead_peer_is_taken_over(seed: int) -> None:
    swarm = ShardWorld(8, seed)
    swarm.run(15.0)
    victim = swarm.world.ids[seed]
    lost = swarm.kill(victim).now_training
    assert lost is not None
    done_by_victim = {a.shard for a in swarm.log if a.peer == victim and a.is_whole}
    assert done_by_victim
    swarm.run(60.0)

    assert set(swarm.whole(0).values()) == {1}, "all is trained, and what it had done stays done"
    (heir,) = [a for a in swarm.log if a.shard == lost.shard and a.is_whole]
    assert heir.peer != victim
    assert not list(swarm.overlaps())


def test_a_newcomer_gets_work_and_takes_no_others() -> None:
    swarm = ShardWorld(7, 1)
    swarm.run(10.0)
    newcomer = swarm.join()
    swarm.run(50.0)
    assert sum(a.is_whole for a in swarm.log if a.peer == newcomer) > 3
    assert not list(swarm.overlaps())
    assert set(swarm.whole(0).values()) == {1}
    assert sum(n.core.statistics().lost_total for n in swarm.nodes.values()) < 10


def test_a_peer_that_starts_again_says_again_what_it_had_trained() -> None:
    swarm = ShardWorld(4, 2, n_shards=24)
    swarm.run(12.0)
    peer = swarm.world.ids[0]
    swarm.kill(peer)
    swarm.run(8.0)
    swarm.revive(peer)
    swarm.run(60.0)
    assert set(swarm.whole(0).values()) == {1}


def test_a_slow_peer_holds_no_other_up() -> None:
    swarm = ShardWorld(4, 3, n_shards=8, shard_s=(2.2, 2.6))
    slow = swarm.world.ids[0]
    swarm.nodes[slow].shard_s = 400.0
    swarm.run(60.0)
    began = next(a.shard.epoch for a in swarm.log if a.peer == slow)
    others = [a for a in swarm.log if a.peer != slow and a.is_whole]
    assert max(a.shard.epoch for a in others) > began + limits.SHARD_EPOCHS_OPEN
    assert not list(swarm.overlaps()), "its shard stays its own"


def test_two_sides_of_a_partition_train_the_same_and_stop_when_they_meet() -> None:
    swarm = ShardWorld(6, 4, shard_s=(8.0, 9.0), n_shards=64)
    swarm.run(5.0)
    ids = swarm.world.ids
    swarm.split({peer: number % 2 for number, peer in enumerate(ids)})
    swarm.run(60.0)
    during = len(list(swarm.overlaps()))
    assert during > 0, "no peer can know what the other side trains"
    swarm.heal()
    swarm.run(15.0)
    healed = len(swarm.log)
    swarm.run(60.0)
    later = swarm.log[healed:]
    assert later
    met = [pair for pair in swarm.overlaps() if pair[0] in later or pair[1] in later]
    assert not met
    counts = swarm.whole(0)
    assert all(counts.values())


def test_more_peers_than_shards_spread_over_epochs() -> None:
    swarm = ShardWorld(12, 6, n_shards=4)
    swarm.run(25.0)
    assert not list(swarm.overlaps())
    assert all(node.idle_s < 10.0 for node in swarm.nodes.values())


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for seed in (7, 7, 8):
        swarm = ShardWorld(5, seed)
        swarm.run(20.0)
        histories.append([(a.peer, a.shard, a.begun, a.ended) for a in swarm.log])
    assert histories[0] == histories[1] != histories[2]


def test_what_is_said_stays_small() -> None:
    swarm = ShardWorld(8, 9, n_shards=limits.SHARDS_PER_EPOCH_MAX)
    swarm.run(30.0)
    view = swarm.world.states[swarm.world.ids[0]].view
    for peer in swarm.world.ids:
        claims = view.of(peer, swarm.now)["shard"]
        assert 1 <= len(claims) <= limits.SHARD_CLAIMS_MAX
        assert all(read_element(element) for element in claims)
        texts = [str(text) for name, text in view.registers()[peer].items()]
        assert len(texts) <= limits.SHARD_EPOCHS_OPEN
        assert all(len(text) <= 256 for text in texts)
