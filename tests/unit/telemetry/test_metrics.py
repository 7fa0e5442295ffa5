from __future__ import annotations

import math
import re
import shutil
import subprocess
from typing import get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from swarmnode.net.paths import Path
from swarmnode.telemetry import catalogue, metrics
from swarmnode.telemetry.catalogue import BY_NAME, FAMILIES, Family
from swarmnode.telemetry.exposition import render
from swarmnode.telemetry.metrics import EXCHANGE_SECONDS_BOUNDS, Histogram, HistogramSnapshot
from swarmnode.telemetry.readings import Readings
from tests.deploy.promql import series

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
_EXAMPLES = {
    catalogue.VERSION: "0.1.0",
    catalogue.WORD: "cpu",
    catalogue.NAME: "digits",
    catalogue.FIGURE: "eta",
    catalogue.GPU: "0",
    catalogue.SHORT_ID: "sn1abcdefghi",
    catalogue.NODE_NAME: "calm-otter",
}


def example_of(label: catalogue.Label) -> str:
    """Return a value that the label may have."""
    if label.values:
        return label.values[0]
    return _EXAMPLES[label.pattern.removeprefix("(").removesuffix(")?")]


def full() -> Readings:
    """Return readings with at least one sample of every family."""
    readings = Readings()
    for number, family in enumerate(FAMILIES):
        name = family.name.removeprefix(catalogue.PREFIX)
        if family.kind == "histogram":
            durations = Histogram(family.bounds)
            for duration_s in (0.05, 0.3, 0.3, 500.0):
                durations.observe(duration_s)
            readings.observe(name, durations.snapshot())
        else:
            value = 1 if family.kind == "info" else number + 0.5
            readings.set(name, value, *map(example_of, family.labels))
    return readings


def samples(readings: Readings, accept: str = "") -> dict[tuple[str, frozenset[str]], float]:
    """Return value by name and label values, parsed as Prometheus does."""
    content_type, body = render(readings, accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def value(readings: Readings, name: str, *labels: str) -> float:
    return samples(readings)[f"swarmnode_{name}", frozenset(labels)]


def test_every_family_reaches_the_page_and_nothing_else_does() -> None:
    page = samples(full())
    assert {name for name, _ in page} == series().keys()
    assert page["swarmnode_build_info", frozenset({"0.1.0", "cpu"})] == 1
    readings = full()
    readings.values["swarmnode_made_up"] = {(): 1.0}
    assert samples(readings) == page


def test_the_ways_are_those_of_sessions() -> None:
    assert get_args(Path) == metrics.PATHS


def test_values_arrive() -> None:
    readings = Readings()
    readings.set("peers", 7, "alive")
    readings.each("sent_bytes_total", {"tensor": 10**12})
    readings.set("swarm_chi1", math.inf)
    readings.set("loss", 0.1)
    readings.set("eval_loss", None)
    readings.set("swarm_members", 3, "trainer", "training")
    assert value(readings, "peers", "alive") == 7
    assert value(readings, "sent_bytes_total", "tensor") == 10**12
    assert value(readings, "swarm_chi1") == math.inf
    assert value(readings, "loss") == 0.1
    assert value(readings, "swarm_members", "trainer", "training") == 3
    assert ("swarmnode_eval_loss", frozenset()) not in samples(readings)


def test_counters_start_at_zero_for_every_known_label_and_gauges_are_absent() -> None:
    page = samples(Readings())
    for family in FAMILIES:
        known = math.prod(len(label.values) for label in family.labels)
        found = [key for key in page if key[0] == family.name]
        assert len(found) == (known if family.kind == "counter" else 0), family.name
    assert set(page.values()) == {0.0}


def test_one_of_says_no_for_all_others() -> None:
    readings = Readings()
    readings.one_of("state", "training")
    states = {state: value(readings, "state", state) for state in metrics.STATES}
    assert states == {state: float(state == "training") for state in metrics.STATES}
    readings.one_of("paused", "battery", "schedule")
    assert [r for r in metrics.PAUSE_REASONS if readings.get("paused", r)] == [
        "schedule",
        "battery",
    ]


def test_histogram_is_cumulated_and_bounds_are_inclusive() -> None:
    readings, name = full(), "exchange_duration_seconds"
    assert value(readings, f"{name}_bucket", "0.05") == 1
    assert value(readings, f"{name}_bucket", "0.2") == 1
    assert value(readings, f"{name}_bucket", "0.5") == 3
    assert value(readings, f"{name}_bucket", "120.0") == 3
    assert value(readings, f"{name}_bucket", "+Inf") == value(readings, f"{name}_count") == 4
    assert value(readings, f"{name}_sum") == pytest.approx(500.65)


def test_both_formats_say_the_same() -> None:
    assert samples(full()) == samples(full(), OPENMETRICS)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/html", "text/plain; version=0.0.4"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text", "application/openmetrics-text;"),
        (PROMETHEUS_2_42, "application/openmetrics-text; version=1.0.0"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"),
        ("\x00;;q=,,", "text/plain; version=0.0.4"),
    ],
)
def test_content_type_is_always_set(accept: str, expected: str) -> None:
    assert render(Readings(), accept)[0].startswith(expected)


def test_names_keep_to_the_conventions() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    for family in FAMILIES:
        assert re.fullmatch(r"swarmnode_[a-z0-9]+(_[a-z0-9]+)*", family.name)
        assert family.help.endswith(".")
        assert not re.search(r"_(ms|milliseconds|mb|percent|created)(_|$)", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.name.endswith("_info") == (family.kind == "info"), family.name
        taken = {"type", "instance", "job", "cluster", "quantile", "le"}
        assert not set(family.label_names) & taken, family.name
        assert family.is_closed or family.kind == "info" or family.samples_max > 1, family.name


def test_labels_are_bounded() -> None:
    def most(family: Family) -> int:
        if not family.is_closed:
            return family.samples_max
        return math.prod(len(label.values) for label in family.labels)

    assert max(map(most, FAMILIES)) <= 50
    assert sum(map(most, FAMILIES)) <= 450


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_no_label_can_forge_a_line(accept: str) -> None:
    readings = Readings()
    forged = 'x"} 1\nswarmnode_swarm_step 99\n\\'
    readings.values["swarmnode_strategy_value"] = {(forged,): 1.0}
    page = samples(readings, accept)
    assert page["swarmnode_strategy_value", frozenset({forged})] == 1
    assert "swarmnode_swarm_step" not in {name for name, _ in page}


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("dancers", (), "unknown metric 'dancers'"),
        ("peers", ("dancing",), "unknown state 'dancing': expected one of alive, "),
        ("peers", (), r"expected labels \('state',\), got \(\)"),
        ("strategy_value", ("Ä",), "unknown name 'Ä'"),
        ("strategy_value", ("eta\n",), "unknown name"),
        ("peer_rtt_seconds", ("sn1" + "a" * 52,), "unknown peer"),
    ],
)
def test_what_the_catalogue_does_not_know_is_a_bug(
    name: str, labels: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Readings().set(name, 1, *labels)


def test_a_histogram_has_the_bounds_of_the_catalogue() -> None:
    with pytest.raises(ValueError, match="bounds"):
        Readings().observe("exchange_duration_seconds", HistogramSnapshot((1.0,), (0, 0)))
    assert BY_NAME["swarmnode_exchange_duration_seconds"].bounds == EXCHANGE_SECONDS_BOUNDS


def test_an_open_label_is_capped() -> None:
    readings = Readings()
    for number in range(100):
        readings.set("strategy_value", number, f"figure_{number}")
    assert len(readings.values["swarmnode_strategy_value"]) == metrics_cap("strategy_value")


def metrics_cap(name: str) -> int:
    return BY_NAME[catalogue.PREFIX + name].samples_max


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("readings", [Readings(), full()], ids=["fresh", "full"])
def test_promtool_finds_nothing_to_say(readings: Readings) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=render(readings)[1],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
