"""Five replicas on a bad network say the same in the end, and never differ where they agree."""

from __future__ import annotations

import random

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.wire.crdt import SnapshotClaim, StateRecord
from swarmnode.wire.packing import decode_record
from tests.kits.crdt_world import Net, ToySigner, World

BAD = Net(loss=0.2, duplication=0.2, delay_s=(0.001, 2.0))


def random_words(rng: random.Random, n_done: int) -> dict[str, object]:
    """Return what one node says next; ``n_done`` grows, as totals do."""
    kind = rng.randrange(6)
    if kind == 0:
        return {"leases": {("role", rng.choice("abcdef")): rng.choice([0, 30, 300])}}
    if kind == 1:
        addresses = {("address", f"tcp://192.0.2.{rng.randrange(8)}:1"): rng.choice([0, 300])}
        return {"leases": addresses}
    if kind == 2:
        return {"counters": {rng.choice(["steps", "tokens"]): n_done}}
    if kind == 3:
        return {"registers": {"loss": rng.random(), "state": rng.choice(["training", "paused"])}}
    if kind == 4:
        return {"maxima": {"step": n_done}}
    root = bytes([rng.randrange(4)]) * 32
    return {"snapshots": {root: SnapshotClaim(root, 7, 100, rng.choice([0, 300]))}}


def bad_run(seed: int, n_operations: int) -> World:
    """Operations under loss, duplication, reordering, partition and crashes; then calm."""
    world = World(5, seed, net=Net(BAD.loss, BAD.duplication, BAD.delay_s))
    rng = random.Random(seed)
    epochs = dict.fromkeys(world.ids, 1)
    for number in range(n_operations):
        world.update(rng.choice(world.ids), **random_words(rng, number))
        world.run(world.now + rng.expovariate(8.0))
        if rng.random() < 0.002:
            world.net.groups = {peer: rng.randrange(2) for peer in world.ids}
        elif rng.random() < 0.004:
            world.net.groups = {}
        elif rng.random() < 0.001:
            peer = rng.choice(world.ids)
            epochs[peer] += 1
            world.restart(peer, epochs[peer])
        if number % 500 == 0:
            world.check_vectors()
    world.net = Net()
    for peer in world.ids:
        world.update(peer, registers={"state": "stopped"})
    world.settle()
    return world


def check_end(world: World) -> None:
    world.check_vectors()
    assert len({state.digest() for state in world.states.values()}) == 1
    views = [state.view for state in world.states.values()]
    assert all(view.registers() == views[0].registers() for view in views)
    assert all(view.counters() == views[0].counters() for view in views)
    bans = sum(state.statistics().bans for state in world.states.values())
    assert bans == 0, "an honest node was taken for a liar"
    for journal in world.journals.values():
        dots: dict[tuple[bytes, int, int], bytes] = {}
        for signed in journal:
            record = decode_record(signed.body, StateRecord)
            dot = (signed.public_key, record.epoch, record.sequence)
            assert dots.setdefault(dot, signed.body) == signed.body, "a dot twice"


def test_in_a_small_swarm_words_are_passed_on_by_few_and_heard_by_all_in_a_moment() -> None:
    world = World(8, 5, net=Net(delay_s=(0.001, 0.05)))
    world.settle()
    before = sum(n_duplicates(world, peer) for peer in world.ids)
    for number in range(1, 51):
        author = world.ids[number % 8]
        world.update(author, maxima={"step": number})
        world.run(world.now + 1.0)
        assert all(state.view.maxima()["step"] == number for state in world.states.values())
    again = sum(n_duplicates(world, peer) for peer in world.ids) - before
    # Each of seven hears each word once, and again from two others at most, mostly. Where all pass
    # it on to six it is heard four times more.
    assert again / 50 / 7 < 2.2


def n_duplicates(world: World, peer: PeerId) -> int:
    return world.states[peer].statistics().records_total.get("duplicate", 0)


def test_ten_thousand_operations_end_in_equal_hashes() -> None:
    world = bad_run(1, 10_000)
    check_end(world)
    assert world.states[world.ids[0]].statistics().records_total["gap"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_two_hundred_thousand_operations_end_in_equal_hashes(seed: int) -> None:
    """Run: python -m pytest -n 2 -m slow tests/property/test_crdt_replicas.py"""
    check_end(bad_run(100 + seed, 10_000))


def test_a_healed_partition_agrees_within_a_minute() -> None:
    world = World(8, 3)
    world.net.groups = {peer: i % 2 for i, peer in enumerate(world.ids)}
    for number in range(200):
        world.update(world.rng.choice(world.ids), counters={"steps": number})
        world.run(world.now + 1.0)
    assert len({state.digest() for state in world.states.values()}) == 2
    world.net.groups = {}
    assert world.settle(60.0) <= 60.0


def test_two_that_agree_exchange_one_small_message() -> None:
    world = World(2, 1)
    for peer in world.ids:
        world.update(peer, leases={("member", str(peer)): 300})
    world.settle()
    world.messages.clear()
    world.run(world.now + limits.STATE_SYNC_INTERVAL_S * 0.74)
    rounds = limits.STATE_LEASE_S / 3 / limits.STATE_SYNC_INTERVAL_S - 2
    world.run(world.now + limits.STATE_LEASE_S / 3 * 0.6)
    kinds = [type(message).__name__ for _, _, message in world.messages]
    assert set(kinds) == {"Summary"}
    assert len(kinds) <= 2 * rounds


def test_two_peers_never_send_what_both_have() -> None:
    world = World(2, 5, net=Net(delay_s=(0.1, 0.1)))
    first, second = world.ids
    for number in range(500):
        world.update(world.rng.choice(world.ids), maxima={"step": number})
        world.run(world.now + world.rng.expovariate(1.0))
    world.settle()
    assert max(world.sent.values()) == 1
    both_ways = {s for a, _, s in world.sent if a == first} & {
        s for a, _, s in world.sent if a == second
    }
    assert not both_ways


def test_a_newcomer_needs_checkpoints_and_not_history() -> None:
    world = World(3, 7)
    for number in range(600):
        world.update(world.ids[number % 3], counters={"steps": number})
        world.run(world.now + 0.2)
    world.settle()
    newcomer = ToySigner.make(99)
    world.add(newcomer)
    world.connect_all()
    world.sent.clear()
    world.settle()
    received = sum(n for (_, to, _), n in world.sent.items() if to == newcomer.peer_id)
    assert received <= 3 * 3 * limits.STATE_CHECKPOINT_RECORDS
