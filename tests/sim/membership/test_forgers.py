"""A member that sends hundreds of forged, foreign, oversized and replayed messages.

Nothing that an honest node says is changed by it, no node is taken for dead, all go on
training, and what is believed of strangers is bounded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.daemon.discovery.dht import DHT_SERVICE
from swarmnode.daemon.membership.members import SWIM_SERVICE
from swarmnode.daemon.membership.shared_state import STATE_SERVICE
from swarmnode.errors import SwarmNodeError
from swarmnode.net.session import Session
from swarmnode.protocol.membership.swim_events import Changed
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from swarmnode.wire import swim
from tests.sim import forgeries
from tests.sim.checks import end, everybody_exchanges, pull, until
from tests.sim.impostor import Impostor

TRAINING = FakeWorker(np.zeros(0), drift=pull)
ROUNDS = 30
STRANGERS = 300
CAP = 100


async def send_all(session: Session, service: str, payloads: Iterable[bytes]) -> Counter[str]:
    """Send one after the other; return what became of them."""
    results: Counter[str] = Counter()
    for payload in payloads:
        try:
            await session.request(service, payload, deadline_s=5)
            results["answered"] += 1
        except SwarmNodeError as error:
            results[type(error).__name__] += 1
    return results


async def check_unharmed(swarm: SimSwarm, attacker: Impostor) -> None:
    """Every honest node is right about every other one, and goes on."""
    for viewer, other in itertools.permutations(swarm.nodes, 2):
        view = viewer.view_of(other)
        assert (view.alive, view.state, view.role) == ("alive", "training", "trainer")
        # The more members there seem to be, the rarer each of them speaks.
        late_s = 12 + limits.REPORT_MEMBER_S * CAP
        assert 0 <= other.worker.step - view.step <= late_s / other.worker.step_s
        assert view.addresses == (f"mem:{other.name}",)
    for node in swarm.nodes:
        bans = node.part.state.view.ledger.bans
        assert bans.keys() <= {attacker.peer}
        assert node.status.alarm == ""
        assert len(node.part.state.view.ledger.chains) <= limits.STATE_AUTHORS_MAX
        assert len(node.part.members.detector.members()) <= limits.SWIM_MEMBERS_MAX
        assert node.running.view.node.discovery.core.statistics().records <= limits.DHT_RECORDS_MAX
    await everybody_exchanges(swarm)


@pytest.fixture
def small_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few hundred strangers too many."""
    for name in ("STATE_AUTHORS_MAX", "SWIM_MEMBERS_MAX", "DHT_RECORDS_MAX"):
        monkeypatch.setattr(limits, name, CAP)
    monkeypatch.setattr("swarmnode.protocol.membership.contacts.CONTACTS_MAX", CAP)


async def test_forged_shared_state(tmp_path, autojump_clock, small_caps) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(5)
        attacker = Impostor(swarm, b"i")
        victim, other = swarm.nodes[:2]
        # Else the forger is the only node that has told the victim what time it is.
        await until(lambda: victim.part.state.core.statistics().clock_skew_s is not None, 60)
        session = await attacker.join(0)
        state = attacker.name(STATE_SERVICE)
        for _ in range(ROUNDS):
            await send_all(session, state, forgeries.bad_state(attacker, victim, other))
            await trio.sleep(0.3)
        verdicts = victim.part.state.core.statistics().records_total
        for verdict in ("forged", "foreign", "future", "malformed", "oversized", "duplicate"):
            assert verdicts[verdict] >= ROUNDS, verdict
        await check_unharmed(swarm, attacker)
        swarm_id = attacker.link.swarm_id
        await send_all(session, state, forgeries.state_of_strangers(swarm_id, STRANGERS))
        await trio.sleep(10)
        assert victim.part.state.core.statistics().records_total["full"] > STRANGERS / 2
        await check_unharmed(swarm, attacker)
        await send_all(session, state, forgeries.two_histories(attacker))
        await trio.sleep(10)
        for node in swarm.nodes:
            assert attacker.peer in node.part.state.view.ledger.bans
        await check_unharmed(swarm, attacker)
        await end(swarm)


async def test_forged_failure_detection(tmp_path, autojump_clock, small_caps) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(5)
        attacker = Impostor(swarm, b"i")
        victim, other = swarm.nodes[:2]
        deaths: list[SimNode] = []
        for node in swarm.nodes:
            watch_deaths(node, swarm.nodes, deaths)
        session = await attacker.join(0)
        service = attacker.name(SWIM_SERVICE)
        replayed = forgeries.genuine_claim(victim, other)
        for _ in range(ROUNDS):
            await send_all(session, service, forgeries.bad_swim(attacker, victim, other))
            await trio.sleep(0.5)
        assert other.part.members.detector.statistics().refuted_total > 0
        old = swim.Sync(False, (attacker.claim(), replayed))
        await attacker.ask(session, SWIM_SERVICE, old)
        claims = forgeries.claims_of_strangers(attacker.link.swarm_id, attacker.claim(), STRANGERS)
        await send_all(session, service, claims)
        await trio.sleep(60)
        detector = victim.part.members.detector
        assert len(detector.live_members()) <= 2 * 3, "two others and the attacker, and as many"
        assert len(detector.members()) <= CAP
        await check_unharmed(swarm, attacker)
        assert not deaths
        await end(swarm)


def watch_deaths(node: SimNode, honest: list[SimNode], deaths: list[SimNode]) -> None:
    """Note whenever a node takes an honest one for dead or gone."""
    on_changed = node.part.members.on_changed

    def changed(change: Changed) -> None:
        on_changed(change)
        if change.peer in {each.peer for each in honest} and change.state in ("dead", "left"):
            deaths.append(node)

    node.part.members.on_changed = changed


async def test_forged_dht_records(tmp_path, autojump_clock, small_caps) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await trio.sleep(70)  # all of them have published where they are
        attacker = Impostor(swarm, b"i")
        sessions = [await attacker.join(index) for index in range(3)]
        before = [record_outcomes(node) for node in swarm.nodes]
        for _ in range(ROUNDS):
            for session in sessions:
                await send_all(session, DHT_SERVICE, forgeries.bad_dht(attacker, swarm.nodes[1]))
        for node, counted in zip(swarm.nodes, before, strict=True):
            rejected = record_outcomes(node)
            for kind in ("forged", "expired", "malformed", "oversized"):
                assert rejected[kind] >= counted[kind] + ROUNDS
        for session in sessions:
            await send_all(
                session, DHT_SERVICE, forgeries.records_of_strangers(attacker, STRANGERS // 2)
            )
        await check_unharmed(swarm, attacker)
        newcomer = swarm.add(FakeWorker(np.ones(640), drift=pull), (), bootstrap=(2,))
        await swarm.start(3)
        await until(lambda: newcomer.status.peers_connected == 3, 90, poll_s=0.5)
        await until(lambda: newcomer.status.state == "training", 30, poll_s=0.5)
        await trio.sleep(10)
        await check_unharmed(swarm, attacker)
        await end(swarm)


def record_outcomes(node: SimNode) -> Counter[str]:
    return Counter(dict(node.running.view.node.discovery.core.statistics().records_rejected))
