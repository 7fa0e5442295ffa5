"""A real Prometheus with the configuration of the tree sees a real swarm through one node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.kit import needs
from tests.deploy.prometheus_kit import SCRAPE_S, Prometheus, Samples
from tests.deploy.promql import plain
from tests.deploy.test_dashboards import expressions
from tests.kits.daemon_kit import LOOPBACK, Daemon, free_port, wait_until
from tests.process.life_kit import Party, peer_of

pytestmark = [needs("prometheus"), pytest.mark.slow]

WATCHED_S = 20
SWARM = '{job="swarmnode", swarm="demo"}'


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    party = Party(tmp_path)
    try:
        yield party
    finally:
        party.close()


def test_one_prometheus_sees_the_whole_swarm_through_one_node(party: Party, tmp_path: Path) -> None:
    port = free_port()
    asked = party.join("creator", "--metrics", f"{LOOPBACK}:{port}")
    nodes = [asked, party.join("other", via=asked), party.keeper("keeper", via=asked)]
    short = {node.home.name: peer_of(node).short for node in nodes}
    trainers = [short["creator"], short["other"]]
    for node in nodes[:2]:
        node.wait_training()
    prometheus = Prometheus(tmp_path / "prometheus", port)
    try:
        everybody = dict.fromkeys(short.values(), 1.0)
        prometheus.wait(f"up{SWARM}", everybody)
        begin = time.monotonic()
        prometheus.wait("count(swarmnode_build_info)", {"": 3.0})
        wait_until(lambda: time.monotonic() > begin + WATCHED_S, "pages for a while")

        _check_queries(prometheus, trainers)
        _check_rules_and_dashboards(prometheus)
        _check_death_and_return(prometheus, nodes[2], everybody, short["keeper"])
        print(prometheus.scrape_times(SWARM))
    finally:
        prometheus.close()


def _check_queries(prometheus: Prometheus, trainers: list[str]) -> None:
    steps = prometheus.query(f"rate(swarmnode_local_steps_total{SWARM}[{WATCHED_S}s])")
    assert {name for name, rate in steps.items() if rate > 0} == set(trainers)
    keepers = prometheus.query('sum by (instance) (swarmnode_node_info{role="keeper"})')
    assert len(keepers) == 1
    assert keepers.keys().isdisjoint(trainers)
    sent = f"sum by (instance) (rate(swarmnode_sent_bytes_total{SWARM}[{WATCHED_S}s]))"
    assert all(rate > 0 for rate in prometheus.query(sent).values())
    members = prometheus.query("sum without (role, state) (swarmnode_swarm_members)")
    assert set(members.values()) == {3.0}
    # Whatever the list said, no node but the one was asked.
    (job,) = {each["scrapeUrl"].split("/peers/")[0] for each in _targets(prometheus)}
    assert job.startswith(f"http://{LOOPBACK}:")
    assert not any(
        "exported_swarm" in each
        for each in prometheus.get("labels")  # the name stands on the page and on the target
    )


def _check_rules_and_dashboards(prometheus: Prometheus) -> None:
    """Each is evaluated on real data: some mistakes, as in matching, only show there."""
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 25
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    firing = [each for each in prometheus.get("alerts")["alerts"] if each["state"] == "firing"]
    assert firing == [], "nothing is wrong with this swarm"
    asked = [plain(expression, f"{WATCHED_S}s") for expression in expressions()]
    empty = [expression for expression in asked if not prometheus.query(expression)]
    print(f"{len(asked) - len(empty)} of {len(asked)} expressions of the dashboards have data")
    assert len(empty) < len(asked) / 2, empty


def _check_death_and_return(
    prometheus: Prometheus, victim: Daemon, everybody: Samples, name: str
) -> None:
    victim.kill()
    killed = time.monotonic()
    prometheus.wait(f"up{SWARM}", everybody | {name: 0.0}, 2 * SCRAPE_S + 1.0)
    print(f"a killed node is down {time.monotonic() - killed:.1f} s later")
    wait_until(lambda: _is_alert_pending(prometheus, name), "an alert that waits", 10.0)
    victim.start()
    started = time.monotonic()
    prometheus.wait(f"up{SWARM}", everybody)
    print(f"and seen {time.monotonic() - started:.1f} s after it was started again")


def _is_alert_pending(prometheus: Prometheus, name: str) -> bool:
    alerts = prometheus.get("alerts")["alerts"]
    return any(
        each["labels"]["alertname"] == "SwarmnodePeerUnreachable"
        and each["labels"]["instance"] == name
        for each in alerts
    )


def _targets(prometheus: Prometheus) -> list[dict[str, Any]]:
    targets: list[dict[str, Any]] = prometheus.get("targets")["activeTargets"]
    return targets
