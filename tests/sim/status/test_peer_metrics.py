"""One node shows the metrics of all: asked over the swarm, believed as little as possible."""

from __future__ import annotations

import json

import numpy as np
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families as parse_text

from swarmnode import limits
from swarmnode.daemon.status.control import metrics_routes
from swarmnode.net.web.routes import Request, Response, Router
from swarmnode.protocol.trust import Seen
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, make_identity, sim_swarm
from swarmnode.wire.metrics import MetricFamily, MetricSample, MetricsSnapshot
from swarmnode.wire.packing import encode_record
from tests.sim.checks import end, pull, until
from tests.sim.impostor import Impostor

TRAINING = FakeWorker(np.zeros(0), drift=pull)


async def get(node: SimNode, path: str, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await Router(metrics_routes(node.running)).answer(
        Request("GET", path, headers={"host": "evil.example", **named})
    )
    assert isinstance(answer, Response)
    return answer


async def scrape(node: SimNode, path: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples of a page by name; it must be there."""
    answer = await get(node, path)
    assert answer.status == 200, answer.body
    page: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(answer.body.decode()):
        for sample in family.samples:
            page.setdefault(sample.name, []).append((sample.labels, sample.value))
    return page


def path_of(node: SimNode) -> str:
    return f"/peers/{node.peer}/metrics"


async def test_a_page_names_the_members_that_are_thought_little_of(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        one, other, _ = swarm.nodes
        trust = one.running.view.member().part.trust
        trust.note(other.peer, Seen.FAULTY, trio.current_time())
        page = await scrape(one, path_of(one))
        ((labels, value),) = page["swarmnode_peer_trust_ratio"]
        assert labels["peer"] == other.peer.short
        assert value == pytest.approx(trust.own_weight(other.peer, trio.current_time()))
        assert page["swarmnode_trust_peers_low"][0][1] == 1


async def test_a_page_of_a_neighbour_and_of_oneself(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        await trio.sleep(20)
        one, other, _ = swarm.nodes
        page = await scrape(one, path_of(other))
        steps = page["swarmnode_local_steps_total"][0][1]
        assert abs(steps - other.status.step) <= 1.2 / other.worker.step_s
        committed = {labels["result"]: value for labels, value in page["swarmnode_exchanges_total"]}
        assert 0 < committed["committed"] <= other.status.exchanges_committed
        ((node, _),) = page["swarmnode_node_info"]
        assert (node["peer"], node["swarm"], node["role"]) == (other.peer.short, "sim", "trainer")
        neighbours = {labels["peer"] for labels, _ in page["swarmnode_peer_rtt_seconds"]}
        assert neighbours == {n.peer.short for n in swarm.nodes if n is not other}
        assert not [name for name in page if name.startswith("swarmnode_swarm_")]
        assert "swarmnode_peer_trust_ratio" not in page, "all think well of each other"
        own = await scrape(one, path_of(one))
        assert own.keys() == (await scrape(one, "/metrics")).keys()
        members = {
            (labels["role"], labels["state"]): value
            for labels, value in own["swarmnode_swarm_members"]
        }
        assert members["trainer", "training"] == 3
        assert sum(members.values()) == 3
        (value,) = own["swarmnode_swarm_steps"]
        assert value[1] == one.status.swarm_steps
        await end(swarm)


async def test_targets_are_this_node_whatever_others_say(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        node = swarm.nodes[0]
        assert json.loads((await get(node, "/sd")).body) == []  # no listener to point at
        node.running.metrics_listener = "127.0.0.1:7338"
        answer = await get(node, "/sd")
        assert (answer.status, answer.content_type) == (200, "application/json")
        targets = json.loads(answer.body)
        assert all(target["targets"] == ["127.0.0.1:7338"] for target in targets)
        assert {json.dumps(target["labels"], sort_keys=True) for target in targets} == {
            json.dumps(
                {
                    "__metrics_path__": path_of(each),
                    "instance": each.peer.short,
                    "swarm": "sim",
                },
                sort_keys=True,
            )
            for each in swarm.nodes
        }
        await swarm.kill(2)
        await trio.sleep(60)  # dead for the swarm: still a target, so that it is seen down
        assert len(json.loads((await get(node, "/sd")).body)) == 3
        await swarm.nodes[1].leave()
        await trio.sleep(5)
        assert len(json.loads((await get(node, "/sd")).body)) == 2


async def test_a_peer_without_a_session_is_connected_to(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await until(lambda: all(n.status.peers_connected == 2 for n in swarm.nodes), 10)
        await trio.sleep(10)
        one, _, other = swarm.nodes
        session = one.part.sessions[other.peer]
        session.close_nowait("a test")
        await session.wait_closed()
        await trio.lowlevel.checkpoint()
        assert other.peer not in one.part.sessions
        page = await scrape(one, path_of(other))
        assert page["swarmnode_local_steps_total"][0][1] > 0
        assert other.peer in one.part.sessions
        await end(swarm)


async def test_who_is_dead_or_silent_is_down_in_time_and_harms_no_other(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 4, worker=TRAINING) as swarm:
        await until(lambda: all(n.status.peers_connected == 3 for n in swarm.nodes), 10)
        one, other, silent, killed = swarm.nodes
        swarm.partition(range(2), range(2, 3))
        await swarm.kill(3)
        statuses: dict[str, int] = {}
        took: dict[str, float] = {}

        async def ask(node: SimNode) -> None:
            started = trio.current_time()
            answer = await get(one, path_of(node), x_prometheus_scrape_timeout_seconds="5")
            statuses[node.name] = answer.status
            took[node.name] = trio.current_time() - started

        async with trio.open_nursery() as nursery:
            for node in (other, silent, killed):
                nursery.start_soon(ask, node)
        assert statuses == {"n1": 200, "n2": 504, "n3": 504}
        assert took["n1"] < 0.5
        assert took["n2"] <= 0.8 * 5 + 0.01
        assert (
            await get(one, path_of(silent), x_prometheus_scrape_timeout_seconds="")
        ).status == 504
        await swarm.start(3)
        await trio.sleep(20)
        assert (await get(one, path_of(killed))).status == 200  # its return is seen


async def test_who_is_no_member_is_not_found(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        node = swarm.nodes[0]
        await until(lambda: node.status.peers_connected == 1, 10)
        stranger = make_identity(9).peer_id
        for path in (f"/peers/{stranger}/metrics", "/peers/sn1x/metrics", "/peers/%00/metrics"):
            assert (await get(node, path)).status == 404
        assert (await get(node, "/peers/..%2f..%2fetc/metrics")).status == 404
        await end(swarm)


async def test_answers_are_shared_for_a_moment(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        one, other = swarm.nodes
        await until(lambda: one.status.peers_connected == 1, 10)
        await trio.sleep(5)
        first = await scrape(one, path_of(other))
        await trio.sleep(limits.METRICS_PEER_KEEP_S - 0.5)
        name = "swarmnode_local_steps_total"
        assert (await scrape(one, path_of(other)))[name] == first[name]
        await trio.sleep(2)
        assert (await scrape(one, path_of(other)))[name] > first[name]
        await end(swarm)


async def test_no_answer_is_shared_once_its_peer_may_be_dead(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        one, other = swarm.nodes
        await until(lambda: one.status.peers_connected == 1, 10)
        assert (await get(one, path_of(other))).status == 200
        await swarm.kill(1)
        await trio.sleep(limits.METRICS_PEER_KEEP_S / 3)
        for _ in range(2):  # the second one is given up while the first answer would be fresh
            answer = await get(one, path_of(other), x_prometheus_scrape_timeout_seconds="0.5")
            assert answer.status == 504


async def test_a_liar_can_forge_no_series(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        node = swarm.nodes[0]
        await until(lambda: all(n.status.peers_connected == 1 for n in swarm.nodes), 10)
        liar = Impostor(swarm, b"l")
        said = [
            MetricFamily("local_steps_total", (MetricSample((), 7.0),)),
            MetricFamily("made_up", (MetricSample((), 1.0),)),
            MetricFamily("swarm_step", (MetricSample((), 10.0**9),)),
            MetricFamily("state", (MetricSample(('x"} 1\n',), 1.0),)),
            MetricFamily(
                "node_info",
                (MetricSample((node.peer.short, "other", "trainer", "cpu", "noloco"), 5.0),),
            ),
            MetricFamily("peer_rtt_seconds", (MetricSample(("sn1aaaaaaaaa",), 1.0),)),
        ]
        answers = [
            encode_record(MetricsSnapshot(tuple(said))),
            encode_record(MetricsSnapshot((MetricFamily("loss", (MetricSample((), np.inf),)),))),
            b"\xff" * 100,
            b"\x80" * (limits.METRICS_SNAPSHOT_BYTES_MAX + 1),
        ]

        async def answer(_peer: object, _payload: bytes) -> bytes:
            return answers.pop(0)

        liar.services.add_request(liar.name("metrics/1"), answer)
        await liar.join(0)
        await until(lambda: liar.peer in node.part.sessions, 10)
        path = f"/peers/{liar.peer}/metrics"
        page = await scrape(node, path)
        assert page["swarmnode_local_steps_total"] == [({}, 7.0)]
        assert not page.keys() & {
            "swarmnode_made_up",
            "swarmnode_swarm_step",
            "swarmnode_state",
            "swarmnode_peer_rtt_seconds",
        }
        ((info, value),) = page["swarmnode_node_info"]
        assert (info["peer"], info["swarm"], value) == (liar.peer.short, "sim", 1.0)
        while answers:
            await trio.sleep(limits.METRICS_PEER_KEEP_S + 0.1)
            assert (await get(node, path)).status == 502
        await end(swarm)


async def test_what_happens_to_a_worker_is_counted(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        node = swarm.nodes[0]
        await until(lambda: node.status.exchanges_committed > 2, 20)
        before = node.running.readings.read()
        assert before.get("worker_restarts_total") == 0
        assert before.get("loss_finite") == 1
        assert 0 < (before.get("encode_error_ratio") or 0) < 0.01
        assert 0 < (before.get("consensus_distance_ratio") or 0) < 2
        node.worker.crash()
        await until(lambda: node.status.worker_restarts == 1, 10)
        after = node.running.readings.read()
        assert after.get("worker_restarts_total") == 1
        failures = after.values["swarmnode_worker_failures_total"]
        assert sum(failures.values()) == 1
        assert (after.get("paused", "none"), after.get("paused", "manual")) == (1, 0)
        assert (after.get("local_steps_total") or 0) > 0


async def test_who_cannot_be_reached_is_counted_by_why(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        node = swarm.nodes[0]
        await until(lambda: node.status.peers_connected == 1, 10)
        node.part.members.found(make_identity(9).peer_id, ("mem:nobody",))
        await trio.sleep(30)
        readings = node.running.readings.read()
        dials, failed = (
            readings.get("dials_total"),
            readings.get("dial_failures_total", "unreachable"),
        )
        assert dials is not None
        assert failed is not None
        assert 0 < failed <= dials
        await end(swarm)
