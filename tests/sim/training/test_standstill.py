"""Training together that stands still says so, and two lineages become one again."""

from __future__ import annotations

import numpy as np
import torch
import trio

from swarmnode import limits
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.one_byte import OneByte
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from tests.sim.checks import are_one_swarm, until
from tests.sim.strategy_worker import StrategyWorker

ONE_BYTE = StrategyWorker(np.zeros(0), lambda x: OneByte({"lr": 1e-3}, x))
DILOCO = StrategyWorker(np.zeros(0), lambda x: DiLoCo({"every": 40, "lr": 0.4}, x))


def standstills(node: SimNode) -> set[str]:
    """Return the kinds that the metrics of a node say."""
    values = node.running.readings.read().values["swarmnode_standstill"]
    return {kind for (kind,), value in values.items() if value}


async def test_a_log_without_a_majority_says_so_within_ten_seconds(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 3, numel=8, worker=ONE_BYTE) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        left = swarm.nodes[0]
        await until(lambda: left.worker.strategy.round > 20, 60, poll_s=0.1)
        assert all(node.status.alarm == "" for node in swarm.nodes)
        await swarm.kill(1)
        await swarm.kill(2)
        killed_at, step = trio.current_time(), left.status.step
        why = "no round of the log has closed for"  # besides that the node is alone
        await until(lambda: why in left.status.alarm, 10, poll_s=0.1)
        alarm = left.status.alarm
        assert "\n" not in alarm
        assert left.status.step > step
        assert standstills(left) == {"log"}
        closed = left.worker.strategy.round
        await trio.sleep(20)
        assert left.worker.strategy.round == closed
        assert "waiting for a majority of round" in left.status.alarm  # they are known to be gone
        await swarm.start(1)
        await until(lambda: left.worker.strategy.round > closed, 30, poll_s=0.1)
        await until(lambda: left.status.alarm == "", 15, poll_s=0.1)
        assert standstills(left) == set()
        assert trio.current_time() > killed_at + 20


async def test_a_log_goes_on_when_most_members_are_gone_for_good(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 5, numel=8, worker=ONE_BYTE) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        left = swarm.nodes[:2]
        await until(lambda: all(node.worker.strategy.round > 20 for node in left), 60, poll_s=0.1)
        for gone in (2, 3, 4):
            await swarm.kill(gone)
        killed_at = trio.current_time()
        await until(lambda: all(standstills(node) == {"log"} for node in left), 30, poll_s=0.5)
        closed = max(node.worker.strategy.round for node in left)
        # That one of them starts again changes nothing: it finds the other's log.
        await swarm.kill(1)
        await swarm.start(1)
        await trio.sleep(60)
        assert max(node.worker.strategy.round for node in left) <= closed
        await until(
            lambda: all(node.worker.strategy.round > closed + 5 for node in left),
            limits.LOG_GONE_S,
            poll_s=2.0,
        )
        assert trio.current_time() > killed_at + limits.LOG_GONE_S
        await until(lambda: all(node.status.alarm == "" for node in left), 60, poll_s=1.0)
        # One of the gone comes back after all, and follows.
        await swarm.start(2)
        back = swarm.nodes[2]
        await until(lambda: back.worker.strategy.round > closed + 5, 60, poll_s=0.5)
        assert all("halted" not in node.status.alarm for node in swarm.up)


async def test_a_group_whose_rounds_come_to_nothing_says_so(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, numel=8, worker=DILOCO) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        left = swarm.nodes[0]
        await until(lambda: left.worker.strategy.lineage[0] > 3, 60, poll_s=0.1)
        await until(lambda: left.status.alarm == "", 10, poll_s=0.1)
        await swarm.kill(1)
        await swarm.kill(2)
        await until(lambda: "rounds of the group came to nothing" in left.status.alarm, 10)
        assert standstills(left) == {"group"}
        await swarm.start(1)
        await until(lambda: left.status.alarm == "", 60, poll_s=0.1)


async def test_the_first_node_of_a_swarm_waits_without_an_alarm(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 1, numel=8, worker=DILOCO) as swarm:
        for _ in range(60):
            await trio.sleep(0.5)
            assert swarm.nodes[0].status.alarm == ""
        assert swarm.nodes[0].status.exchanges_aborted > 3


def lineages(swarm: SimSwarm) -> set[tuple[float, ...]]:
    """Return the newest mean of each node: its count and hash."""
    return {tuple(node.worker.strategy.lineage.tolist()) for node in swarm.up}


def split(swarm: SimSwarm, *sides: tuple[int, ...]) -> None:
    """Give each side slow weights and a lineage of its own, as two means in one round do."""
    count = float(swarm.nodes[0].worker.strategy.lineage[0]) + 1
    for number, side in enumerate(sides, 1):
        for index in side:
            strategy = swarm.nodes[index].worker.strategy
            strategy.phi += 100 * number
            strategy.lineage[0], strategy.lineage[1] = count, 1000.0 * number  # the hash


async def test_two_halves_that_both_close_rounds_meet_again(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 4, numel=8, worker=DILOCO) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: all(n.worker.strategy.lineage[0] > 3 for n in swarm.nodes), 60)
        await until(lambda: len(lineages(swarm)) == 1, 30)
        split(swarm, (0, 2), (1, 3))
        said: set[tuple[int, str]] = set()

        def are_one_again() -> bool:
            said.update((n.index, kind) for n in swarm.nodes for kind in standstills(n))
            return len(lineages(swarm)) == 1 and len(said) == len(swarm.nodes)

        took_s = await until(are_one_again, 30, poll_s=0.1)
        assert said == {(index, "lineage") for index in range(4)}
        assert took_s < 20  # rounds are two seconds long, reports three
        phi = [node.worker.strategy.phi for node in swarm.nodes]
        assert all(torch.equal(each, phi[0]) for each in phi)
        await until(lambda: all(n.status.alarm == "" for n in swarm.nodes), 30, poll_s=0.1)
        before = [float(node.worker.strategy.lineage[0]) for node in swarm.nodes]
        await trio.sleep(20)  # and all four average again
        after = [float(node.worker.strategy.lineage[0]) for node in swarm.nodes]
        assert all(now > then + 3 for then, now in zip(before, after, strict=True))
        assert len(lineages(swarm)) <= 2  # of one chain, a round apart at most
        assert max(after) - min(after) <= 1


async def test_parts_of_which_none_is_a_quorum_meet_again(tmp_path, autojump_clock) -> None:
    """None of their rounds ends: that others wait elsewhere is what tells them."""
    async with sim_swarm(tmp_path, 5, numel=8, worker=DILOCO) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: all(n.worker.strategy.lineage[0] > 3 for n in swarm.nodes), 60)
        await until(lambda: len(lineages(swarm)) == 1, 30)
        split(swarm, (0, 1), (2, 3), (4,))
        count = float(swarm.nodes[0].worker.strategy.lineage[0])

        def have_gone_on() -> bool:
            return all(n.worker.strategy.lineage[0] > count + 1 for n in swarm.nodes)

        assert await until(have_gone_on, 150, poll_s=0.1) < 30  # rounds of two seconds
        assert len(lineages(swarm)) <= 2  # of one chain, a round apart at most


async def test_a_minority_goes_over_to_a_lineage_with_fewer_rounds(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 5, numel=8, worker=DILOCO) as swarm:
        await until(lambda: are_one_swarm(swarm.nodes), 30, poll_s=0.1)
        await until(lambda: all(n.worker.strategy.lineage[0] > 3 for n in swarm.nodes), 60)
        await until(lambda: len(lineages(swarm)) == 1, 30)
        split(swarm, (0, 1, 2), (3, 4))
        for node in swarm.nodes[3:]:
            node.worker.strategy.lineage[0] += 2
        # Two of five are no quorum: they get no further, and the others soon are.
        count = float(swarm.nodes[4].worker.strategy.lineage[0])
        phi = [node.worker.strategy.phi for node in swarm.nodes]
        await until(lambda: all(float(each.mean()) < 250 for each in phi), 20, poll_s=0.1)
        assert float(swarm.nodes[0].worker.strategy.lineage[0]) <= count + 2
        await until(lambda: len(lineages(swarm)) == 1, 30, poll_s=0.1)
        await until(lambda: all(n.status.alarm == "" for n in swarm.nodes), 30, poll_s=0.1)
