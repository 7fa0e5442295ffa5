"""Configuration, rules and alerts, judged by Prometheus's own tool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swarmnode.limits import STATE_BYTES_MAX
from tests.deploy.kit import DEPLOY, ROOT, RULES, Rule, load, needs, recorded, rules, run
from tests.deploy.promql import TARGET_LABELS, complaints, selectors

PROMETHEUS = DEPLOY / "prometheus"
STORIES = sorted((PROMETHEUS / "tests").glob("*.yml"))
ALERTS = [rule for rule in rules() if rule.is_alert]
_SHOWN = re.compile(r"\$labels\.(\w+)")

# By name in the order of the file: what an operator is promised to be told of.
PROMISED = {
    "SwarmnodeNodeDown",
    "SwarmnodePeerUnreachable",
    "SwarmnodeExchangeStalled",
    "SwarmnodeStandstill",
    "SwarmnodeLossNotFinite",
    "SwarmnodeDiverging",
    "SwarmnodeSwarmLossRising",
    "SwarmnodeExchangeFailureRatio",
    "SwarmnodeHalfApplied",
    "SwarmnodeAllRelayed",
    "SwarmnodeAlone",
    "SwarmnodeWorkerCrashLoop",
    "SwarmnodeDiskNearlyFull",
    "SwarmnodeClockSkew",
    "SwarmnodeStateGrowth",
    "SwarmnodeSwarmShrinking",
    "SwarmnodeOldVersions",
}


@needs("promtool")
@pytest.mark.parametrize("config", [PROMETHEUS / "prometheus.yml"], ids=lambda path: path.name)
def test_prometheus_takes_the_configuration(config: Path) -> None:
    assert "SUCCESS" in run("promtool", "check", "config", config)


@needs("promtool")
@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_stories_of_the_rules_come_true(story: Path) -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", story)


@needs("promtool")
def test_prometheus_takes_the_rules() -> None:
    assert "FAILED" not in run("promtool", "check", "rules", *RULES)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_a_rule_asks_for_what_the_catalogue_has(rule: Rule) -> None:
    assert list(selectors(rule.expr))
    assert complaints(rule.expr, recorded()) == []


def test_every_promised_alert_is_there() -> None:
    assert {alert.name for alert in ALERTS} == PROMISED


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_it_is_and_where_to_read_on(alert: Rule) -> None:
    assert set(alert.annotations) == {"summary", "description", "runbook"}
    assert alert.labels["severity"] in ("critical", "warning", "info")
    text = alert.annotations["summary"] + alert.annotations["description"]
    assert set(_SHOWN.findall(text)) <= TARGET_LABELS
    page, _, anchor = alert.annotations["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
    assert alert.name in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_a_story_in_which_it_fires_and_one_in_which_not(alert: Rule) -> None:
    fires = quiet = 0
    for group in load(PROMETHEUS / "tests" / "alerts.yml")["tests"]:
        quiet += sum(
            check["alertname"] == alert.name and not check["exp_alerts"]
            for check in group.get("alert_rule_test", [])
        )
        fires += sum(
            f'alertname="{alert.name}", alertstate="firing"' in check["expr"]
            and len(check["exp_samples"]) > 0
            for check in group.get("promql_expr_test", [])
        )
    assert fires
    assert quiet


def test_each_threshold_has_its_reason() -> None:
    lines = (PROMETHEUS / "rules" / "alerts.yml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if "- alert:" in line:
            assert lines[number - 1].strip().startswith("#"), line


def test_the_limit_in_the_alert_is_that_of_the_code() -> None:
    expression = next(alert.expr for alert in ALERTS if alert.name == "SwarmnodeStateGrowth")
    assert f"{STATE_BYTES_MAX // 2**20} * 1024 * 1024" in expression
