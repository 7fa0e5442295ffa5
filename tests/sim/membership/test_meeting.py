"""How nodes find each other again, and which ones they refuse."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import trio
from msgspec import structs

from swarmnode import limits
from swarmnode.daemon.discovery.rendezvous import MANIFEST_SERVICE
from swarmnode.errors import AuthenticationFailed, DeadlineExceeded, Refused
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.swarm import sign_manifest
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import (
    SWARM_KEY,
    UNIX_START_S,
    SimNode,
    SimSwarm,
    give_manifest,
    make_identity,
    make_manifest,
    sim_swarm,
)
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Manifest, ManifestReply, Signed
from tests.sim.checks import end, everybody_exchanges, pull, until
from tests.sim.impostor import Impostor

TRAINING = FakeWorker(np.zeros(0), drift=pull)


def add_node(swarm: SimSwarm, hints: tuple[int, ...]) -> SimNode:
    return swarm.add(replace(TRAINING, initial=np.full(640, float(len(swarm.nodes)))), hints)


def sessions_between(one: SimNode, other: SimNode) -> int:
    """Count the links that are alive, and check that both sides use the same one."""
    alive = [
        (a, b)
        for a, b, end in one.swarm.network._links
        if {a, b} == {one.name, other.name} and not end.is_over
    ]
    ours = one.part.sessions[other.peer]
    theirs = other.part.sessions[one.peer]
    assert ours.outbound != theirs.outbound
    return len(alive)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lead_s", [0.0, 0.011, 0.035])
async def test_two_that_dial_each_other_end_with_one_session(
    tmp_path, autojump_clock, seed: int, lead_s: float
) -> None:
    async with sim_swarm(tmp_path, 0, seed=seed) as swarm:
        one, other = add_node(swarm, (1,)), add_node(swarm, (0,))
        for node in swarm.nodes:
            give_manifest(node, make_manifest())
        await swarm.start(0)
        await trio.sleep(lead_s)
        await swarm.start(1)
        await trio.sleep(2)
        assert sessions_between(one, other) == 1
        assert one.part.members.book.statistics().dials <= 3
        await everybody_exchanges(swarm)
        assert sessions_between(one, other) == 1
        await end(swarm)


async def test_a_dial_that_waited_for_long_does_not_replace_a_session(
    tmp_path, autojump_clock
) -> None:
    """It was begun before the other side's dial got through: there is one session already."""
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await trio.sleep(5)
        one, other = swarm.nodes
        swarm.partition(range(1), range(1, 2))
        gone_s = limits.SILENCE_S + limits.RESUME_S + limits.PING_QUIET_S
        await until(lambda: not one.part.sessions, gone_s)
        await until(lambda: not other.part.sessions, gone_s)
        await trio.sleep(15)
        swarm.network.heal()
        await until(lambda: one.status.peers_connected == 1 == other.status.peers_connected, 5)
        await trio.sleep(1)
        session = one.part.sessions[other.peer]
        await trio.sleep(30)
        assert one.part.sessions[other.peer] is session
        assert sessions_between(one, other) == 1
        await end(swarm)


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("down_s", [0.1, 3, 8])
async def test_a_restarted_node_is_back_within_ten_seconds(
    tmp_path, autojump_clock, index: int, down_s: float
) -> None:
    async with sim_swarm(tmp_path, 4, worker=replace(TRAINING, save_every=20)) as swarm:
        await trio.sleep(10)
        await swarm.kill(index)
        await trio.sleep(down_s)
        await swarm.start(index)
        back = swarm.nodes[index]
        await until(lambda: back.status.peers_connected == 3, 10)
        await everybody_exchanges(swarm, 10)
        await end(swarm, crashed=(back,))


async def test_a_node_that_went_silent_is_replaced_by_its_next_boot(
    tmp_path, autojump_clock
) -> None:
    """Power failure: no peer is told, and the old sessions look alive for a while."""
    async with sim_swarm(tmp_path, 3, worker=replace(TRAINING, save_every=20)) as swarm:
        await trio.sleep(10)
        victim = swarm.nodes[1]
        swarm.network.partition(["n1"], ["n0", "n2"])
        await victim.kill(unplug=False)
        await trio.sleep(2)
        swarm.network.heal()
        await swarm.start(1)
        await until(lambda: victim.status.peers_connected == 2, 10)
        await everybody_exchanges(swarm, 40)
        await end(swarm, crashed=(victim,))


async def test_a_node_of_another_network_is_refused(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        stranger = add_node(swarm, (0,))
        stranger.network = "other"
        await swarm.start(2)
        await until(lambda: stranger.node is None, 10)
        assert isinstance(stranger.failure, Exception)
        assert "network" in str(stranger.failure)
        assert swarm.nodes[0].running.view.node.network.listener.refused["VersionMismatch"] > 0
        assert swarm.nodes[0].status.peers_known == 1
        stranger.failure = None
        await end(swarm)


async def test_newcomers_that_ask_each_other_wait_for_the_holder_of_the_manifest(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        for hints in ((), (2,), (1, 0)):
            add_node(swarm, hints)
        give_manifest(swarm.nodes[0], make_manifest())
        await swarm.start(1)
        await swarm.start(2)
        await trio.sleep(10)
        assert [node.status.state for node in swarm.nodes[1:]] == ["syncing", "syncing"]
        await swarm.start(0)
        await until(lambda: all(node.status.state == "training" for node in swarm.nodes), 40)
        await everybody_exchanges(swarm)
        await end(swarm)


async def test_no_peer_has_the_manifest(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        newcomer = add_node(swarm, (3,))
        await swarm.start(0)
        await newcomer.down.wait()
        assert isinstance(newcomer.failure, DeadlineExceeded)
        assert "mem:n3" in str(newcomer.failure)


def expired() -> Signed:
    return sign_manifest(replace_manifest(expires_at=int(UNIX_START_S) - 86_400), SWARM_KEY)


def forged() -> Signed:
    forger = Identity.from_seed(b"f" * 32)
    return sign_manifest(replace_manifest(swarm_key=forger.public_key), forger)


def tampered() -> Signed:
    good = sign_manifest(make_manifest(), SWARM_KEY)
    return Signed(good.body.replace(b"Q8B64", b"Q4B64"), good.public_key, good.signature)


def replace_manifest(**changes: object) -> Manifest:
    return structs.replace(make_manifest(), **changes)


@pytest.mark.parametrize(
    ("make", "error"),
    [(expired, Refused), (forged, AuthenticationFailed), (tampered, AuthenticationFailed)],
)
async def test_a_bad_manifest_from_the_peer_of_the_link(
    tmp_path, autojump_clock, make, error
) -> None:
    async with sim_swarm(tmp_path, 0) as swarm:
        newcomer = add_node(swarm, ())
        liar = Impostor(swarm, bytes([2]))

        async def lie(_peer: PeerId, _payload: bytes) -> bytes:
            return encode_record(ManifestReply(make()))

        liar.services.add_request(MANIFEST_SERVICE, lie)
        assert liar.identity.peer_id == make_identity(1).peer_id
        newcomer.hints = (1,)
        await swarm.nursery.start(functools.partial(liar.serve, "n1"))
        await swarm.start(0)
        with trio.fail_after(10):
            await newcomer.down.wait()
        assert isinstance(newcomer.failure, error)
        assert not newcomer.paths.swarm("sim").manifest.exists()


async def test_a_liar_among_honest_peers_does_not_stop_a_newcomer(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        newcomer = add_node(swarm, (2, 0))
        liar = Impostor(swarm, bytes([3]))

        async def lie(_peer: PeerId, _payload: bytes) -> bytes:
            return encode_record(ManifestReply(forged()))

        liar.services.add_request(MANIFEST_SERVICE, lie)
        await swarm.nursery.start(functools.partial(liar.serve, "n2"))
        await swarm.start(1)
        await until(lambda: newcomer.status.state == "training", 20)
        await everybody_exchanges(swarm)
        await end(swarm)
