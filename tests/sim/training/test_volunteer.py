"""A volunteer's controls on whole nodes: to finish or save traffic leaves nothing half applied."""

from __future__ import annotations

import trio

from swarmnode.protocol.gossip.events import Role
from swarmnode.protocol.gossip.flight import State
from swarmnode.testing.swarm import sim_swarm
from tests.sim.checks import end, everybody_exchanges, until
from tests.sim.training.test_workers import TRAINING, flight_is


async def test_a_node_that_finishes_completes_what_runs(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, delay_s=0.15, worker=TRAINING) as swarm:
        await everybody_exchanges(swarm)
        leaver = swarm.nodes[1]
        node = leaver.running
        await until(lambda: flight_is(leaver, Role.INITIATOR, State.TRANSFER), 60, 0.005)
        aborted = leaver.status.exchanges_aborted
        node.finish()
        await until(lambda: leaver.node is None, 30)
        assert node.view.node_status(trio.current_time()).exchanges_aborted == aborted
        await everybody_exchanges(swarm, 3)
        await end(swarm)


async def test_a_metered_node_passes_no_tensor_and_stays_a_member(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await everybody_exchanges(swarm)
        saver = swarm.nodes[1]
        volunteer = saver.running.volunteer
        volunteer.readings = type(volunteer.readings)(metered=True)
        volunteer.decide()
        await until(lambda: saver.status.state == "paused", 5)
        await trio.sleep(5)
        assert saver.status.paused_by == ("metered",)
        before = saver.status
        seconds = 60.0
        await trio.sleep(seconds)
        after = saver.status
        assert after.exchanges_committed == before.exchanges_committed
        # What others ask, several times a second here, and are refused.
        moved_bytes = after.received_bytes["tensor"] - before.received_bytes["tensor"]
        moved_bytes += after.sent_bytes["tensor"] - before.sent_bytes["tensor"]
        assert moved_bytes < 1000 * seconds
        assert saver.status.peers_alive == 2
        volunteer.readings = type(volunteer.readings)()
        volunteer.decide()
        await everybody_exchanges(swarm, 5)
        await until(lambda: saver.status.state == "training", 5)
        await end(swarm)
