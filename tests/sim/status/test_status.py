"""What a node says of itself agrees with its history, and no counter ever falls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
import trio

from swarmnode.cli.node.control import bootstrap_lines, status_lines
from swarmnode.daemon.exchange.intent_handlers import other_base_alarm
from swarmnode.daemon.status.overview import overview_of
from swarmnode.protocol.connectivity import BOOTSTRAP_STATES
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import UNIX_START_S, SimNode, sim_swarm
from tests.sim.checks import end, pull, until

TRAINING = FakeWorker(np.zeros(0), drift=pull)


def sent_bytes(node: SimNode) -> Counter[str]:
    return Counter(node.status.sent_bytes)


async def test_status_peers_and_metrics_agree_with_the_history(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        await trio.sleep(10)
        node = swarm.nodes[0]
        status, view = node.status, node.running.view
        outcomes = Counter(e["outcome"] for e in node.history if e["event"] == "finished")
        merged = sum(e["event"] == "applied" for e in node.history)
        assert status.exchanges_committed == outcomes["committed"] > 10
        assert status.exchanges_declined == outcomes["declined"]
        assert status.exchanges_applied == merged
        assert (status.exchanges_half_applied, status.exchanges_in_doubt) == (0, 0)
        # A status is as old as the last report of the worker, a second at most.
        assert abs(status.step - node.worker.step) <= 1.2 / node.worker.step_s
        assert msgspec.json.decode(msgspec.json.encode(status))["state"] == "training"
        others = {peer.peer: peer for peer in view.peers()}
        assert others.keys() == {str(n.peer) for n in swarm.nodes[1:]}
        assert all(peer.connected and peer.state == "training" for peer in others.values())
        assert all(peer.step > 0 for peer in others.values())
        readings = node.running.readings.read()
        assert readings.get("exchanges_total", "committed") == status.exchanges_committed
        await end(swarm)


async def test_bytes_of_sessions_that_ended_stay_counted(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        node = swarm.nodes[0]
        before = sent_bytes(node)
        for _ in range(10):
            await trio.sleep(1)
            swarm.unplug(0)
            await trio.sleep(0.05)
            now = sent_bytes(node)
            assert all(now[plane] >= before[plane] for plane in before)
            before = now
        assert before["tensor"] > 0
        await end(swarm)


async def test_a_node_that_looks_for_the_manifest_says_so(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 1) as swarm:
        newcomer = SimNode(swarm, 1, FakeWorker(np.zeros(640)), swarm.nodes[0].identity, (5,))
        swarm.nodes.append(newcomer)
        await swarm.start(1)
        await trio.sleep(1)
        assert newcomer.status.state == "syncing"
        assert "manifest" in newcomer.status.reason
        assert newcomer.status.step == 0
        assert newcomer.running.view.state()[0] == "syncing"
        newcomer.running.readings.read()
        await newcomer.leave()


def test_a_node_that_all_refuse_for_its_base_says_so() -> None:
    refused = {("initiator", "declined", "base"): 4, ("responder", "declined", "base"): 1}
    assert "began from another base than this node's" in other_base_alarm(refused, committed=0)
    assert not other_base_alarm(refused, committed=1), "a peer has the same"
    assert not other_base_alarm({("initiator", "declined", "busy"): 50}, committed=0)


async def test_an_address_that_does_not_answer_is_said_wherever_one_looks(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        first, node = swarm.nodes[:2]
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        assert dict(overview(node)) == {"connected": 1}
        await swarm.kill(first.index)
        await until(lambda: any(each.error for each in node.status.bootstraps), 300)
        assert dict(overview(node)) == {"failing": 1}
        readings = node.running.readings.read()
        counts = {state: readings.get("bootstraps", state) for state in BOOTSTRAP_STATES}
        assert counts == {"connected": 0, "failing": 1, "untried": 0}
        said = msgspec.to_builtins(node.status)
        rows = dict(status_lines(said))
        # A node of the version before, which is about to be replaced, says less.
        newer = {"follows_line", "held_step"}
        assert dict(status_lines({k: v for k, v in said.items() if k not in newer})) == rows
        without = {"role": "keeper", "snapshot_path": None, "held_step": None}
        keeper = dict(status_lines(said | without))
        assert keeper["snapshot"] == "none of its own, as it does not train"
        address, _, error = rows["not reached"].partition(": ")
        assert (address, error) == ("mem:n0", node.status.bootstraps[0].error)
        await end(swarm)


def overview(node: SimNode) -> Mapping[str, int]:
    """Return what the page of a node shows of the addresses that it was given."""
    now = trio.current_time()
    return overview_of(node.running.view, now, UNIX_START_S + now).node.bootstraps


def test_of_many_such_addresses_the_first_are_shown() -> None:
    failing = [
        {"address": f"a:{n}", "is_connected": False, "error": "refused " * 40} for n in range(5)
    ]
    lines = bootstrap_lines([*failing, {"address": "b:1", "is_connected": True, "error": "old"}])
    assert [about for about, _ in lines] == ["not reached"] * 3 + [""]
    assert all(len(words) < 140 for _, words in lines)
    assert lines[-1][1].startswith("and 2 more")
