"""Eight whole daemons: they meet, exchange, lose one, and the mean stays where it belongs."""

from __future__ import annotations

import numpy as np
import trio

from tests.sim.swarm import sim_swarm


async def test_eight_daemons_find_each_other_and_agree(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 8) as swarm:
        before = swarm.variance()
        await trio.sleep(60)
        assert all(node.status.peers_connected == 7 for node in swarm.nodes)
        for node in swarm.nodes:
            node.node._stop_reason = "pause"
        assert swarm.variance() < before / 1000
        assert abs(swarm.total() - swarm.expected_total()) < 1e-3
        print([n.status.exchanges_committed for n in swarm.nodes], swarm.variance(), swarm.total()-swarm.expected_total())
