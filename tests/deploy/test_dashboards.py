"""Dashboards: as generated, as Grafana provisions them, and asking for what there is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarmnode.telemetry.catalogue import FAMILIES
from tests.deploy.kit import DEPLOY, load, needs, recorded, rules, run
from tests.deploy.promql import complaints, plain, sample_names, selectors

GRAFANA = DEPLOY / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, board in BOARDS.items():
        yield from ((name, panel) for panel in board["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    return [target["expr"] for _, panel in panels() for target in panel["targets"]]


def test_the_files_are_what_the_script_writes() -> None:
    run(sys.executable, GRAFANA / "generate.py", "--check")


def test_there_are_three_with_addresses_that_stay() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        "node": "swarmnode-node",
        "swarm": "swarmnode-swarm",
        "training": "swarmnode-training",
    }
    assert all("id" not in board for board in BOARDS.values())


@pytest.mark.parametrize("name", BOARDS)
def test_one_chooses_the_source_the_swarm_and_the_nodes(name: str) -> None:
    variables = {each["name"]: each for each in BOARDS[name]["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {"swarm"} <= variables.keys() <= {"datasource", "swarm", "instance"}
    text = json.dumps(BOARDS[name])
    for variable in variables:
        assert f"${variable}" in text or f"${{{variable}}}" in text
    assert ("$instance" in text) == ("instance" in variables)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_their_own_place_and_number(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    numbers = [panel["id"] for panel in BOARDS[name]["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in BOARDS[name]["panels"]:
        x, y, width, height = (panel["gridPos"][key] for key in ("x", "y", "w", "h"))
        assert 0 <= x < x + width <= 24
        cells = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_all_panels_ask_the_chosen_source() -> None:
    for _, panel in panels():
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert sources == [{"type": "prometheus", "uid": "${datasource}"}] * len(sources)


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_what_the_catalogue_has(expression: str) -> None:
    assert complaints(plain(expression), recorded()) == []
    assert "$swarm" in expression, "swarms would be mixed up"


@needs("promtool")
def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    made = [
        {"record": f"test:expression:{number}", "expr": plain(expression)}
        for number, expression in enumerate(sorted(set(expressions())))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": made}]}))
    assert f"{len(made)} rules found" in run("promtool", "check", "rules", file)


def test_nearly_every_metric_is_looked_at() -> None:
    """What no dashboard and no rule asks for is there for a closer look: that is little."""
    asked = {
        selector.metric
        for expression in (*map(plain, expressions()), *(rule.expr for rule in rules()))
        for selector in selectors(expression)
    }
    unseen = {family.name for family in FAMILIES if not asked.intersection(sample_names(family))}
    assert len(unseen) <= len(FAMILIES) // 4, sorted(unseen)


def test_grafana_is_told_where_the_files_and_the_source_are() -> None:
    (source,) = load(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    (provider,) = load(GRAFANA / "provisioning" / "dashboards" / "swarmnode.yml")["providers"]
    scrape_s = load(DEPLOY / "prometheus" / "prometheus.yml")["global"]["scrape_interval"]
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == scrape_s
    assert provider["type"] == "file"
    mounted = load(DEPLOY / "compose" / "compose.yaml")["services"]["grafana"]
    folder = provider["options"]["path"]
    assert f"../grafana/dashboards:{folder}:ro" in mounted["volumes"]
    assert source["url"] == "${PROMETHEUS_URL}"
    assert "PROMETHEUS_URL" in mounted["environment"]
