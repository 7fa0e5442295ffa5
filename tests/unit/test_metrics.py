from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from swarmnode.telemetry import metrics
from swarmnode.telemetry.catalogue import render
from swarmnode.telemetry.metrics import Histogram, MixingFigures, NodeSnapshot

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FRESH = NodeSnapshot(
    version="0.1.0",
    python="3.11.7",
    native_isa="avx2",
    role="trainer",
    device="cpu",
    swarm="digits",
    state="starting",
    start_unix_s=1_700_000_000.0,
)


def busy() -> NodeSnapshot:
    durations = Histogram()
    for duration_s in (0.05, 0.3, 0.3, 500.0):
        durations.observe(duration_s)
    return replace(
        FRESH,
        state="training",
        peers=7,
        connections={"direct": 3, "relay": 1},
        sent_bytes={"tensor": 10**12, "control": 5},
        received_bytes={"state": 9},
        exchanges={"committed": 4, "in_doubt": 1},
        exchange_duration_s=durations.snapshot(),
        last_exchange_unix_s=1_700_000_100.0,
        steps=1000,
        tokens=64_000,
        step_duration_s=0.25,
        loss=math.nan,
        eval_loss=1.5,
        encode_s=2.5,
        worker_restarts=2,
        mixing=MixingFigures(0.5, 2.0, math.inf),
        strategy={"eta": 0.25, "pace": 1.0},
    )


def samples(snapshot: NodeSnapshot, accept: str = "") -> dict[tuple[str, frozenset[str]], float]:
    """Return value by name and label values, parsed as Prometheus does."""
    content_type, body = render(snapshot, accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def value(snapshot: NodeSnapshot, name: str, *labels: str) -> float:
    return samples(snapshot)[f"swarmnode_{name}", frozenset(labels)]


def test_values_arrive() -> None:
    node = busy()
    assert value(node, "build_info", "0.1.0", "3.11.7", "avx2") == 1
    assert value(node, "node_info", "trainer", "cpu", "digits") == 1
    assert value(node, "peers") == 7
    assert value(node, "connections", "relay") == 1
    assert value(node, "sent_bytes_total", "tensor") == 10**12
    assert value(node, "exchanges_total", "in_doubt") == 1
    assert value(node, "local_steps_total") == 1000
    assert value(node, "tokens_total") == 64_000
    assert value(node, "step_duration_seconds") == 0.25
    assert value(node, "encode_seconds_total") == 2.5
    assert value(node, "worker_restarts_total") == 2
    assert value(node, "swarm_lambda2") == 0.5
    assert value(node, "swarm_chi1") == 2.0
    assert value(node, "swarm_chi2") == math.inf
    assert value(node, "strategy_value", "eta") == 0.25
    assert value(node, "start_timestamp_seconds") == 1_700_000_000.0


def test_state_is_one_of_all() -> None:
    node = busy()
    states = {state: value(node, "state", state) for state in metrics.STATES}
    assert states == {state: float(state == "training") for state in metrics.STATES}


def test_every_label_value_starts_at_zero() -> None:
    for name, known in (
        ("connections", metrics.WAYS),
        ("sent_bytes_total", metrics.PLANES),
        ("received_bytes_total", metrics.PLANES),
        ("exchanges_total", metrics.EXCHANGE_RESULTS),
    ):
        assert {value(FRESH, name, label) for label in known} == {0.0}


def test_what_is_not_known_yet_is_absent_and_divergence_is_nan() -> None:
    fresh = {name for name, _ in samples(FRESH)}
    for name in ("loss", "eval_loss", "step_duration_seconds", "last_exchange_timestamp_seconds"):
        assert f"swarmnode_{name}" not in fresh
    assert math.isnan(value(busy(), "loss"))
    assert value(busy(), "eval_loss") == 1.5


def test_histogram_is_cumulated_and_bounds_are_inclusive() -> None:
    node = busy()
    name = "exchange_duration_seconds"
    assert value(node, f"{name}_bucket", "0.05") == 1
    assert value(node, f"{name}_bucket", "0.2") == 1
    assert value(node, f"{name}_bucket", "0.5") == 3
    assert value(node, f"{name}_bucket", "120.0") == 3
    assert value(node, f"{name}_bucket", "+Inf") == value(node, f"{name}_count") == 4
    assert value(node, f"{name}_sum") == pytest.approx(500.65)


def test_both_formats_say_the_same() -> None:
    text, openmetrics = samples(busy()), samples(busy(), OPENMETRICS)
    assert set(text) == set(openmetrics)
    assert all(text[key] == openmetrics[key] for key in text if key[0] != "swarmnode_loss")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/html", "text/plain; version=0.0.4"),
        (OPENMETRICS, "application/openmetrics-text"),
        ("\x00;;q=,,", "text/plain; version=0.0.4"),
    ],
)
def test_content_type_is_always_set(accept: str, expected: str) -> None:
    assert render(FRESH, accept)[0].startswith(expected)


def test_names_keep_to_the_conventions() -> None:
    for family in parse_text(render(busy())[1].decode()):
        assert re.fullmatch(r"swarmnode_[a-z_]+[12]?", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|milliseconds|mb|percent|created)(_|$)", family.name)
        if family.type == "gauge":
            assert not family.name.endswith("_total")
        for sample in family.samples:
            assert not set(sample.labels) & {"type", "instance", "job", "cluster", "quantile"}


def test_text_from_others_cannot_forge_a_sample() -> None:
    node = replace(FRESH, swarm='x"} 1\nswarmnode_peers 99\n', device="\\")
    assert value(node, "peers") == 0
    assert value(node, "node_info", "trainer", "\\", node.swarm) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "dancing"}, "unknown state 'dancing': expected one of starting, "),
        ({"sent_bytes": {"voice": 1}}, "unknown plane 'voice'"),
        ({"exchanges": {"lost": 1}}, "unknown result 'lost'"),
        ({"connections": {"pigeon": 1}}, "unknown way 'pigeon'"),
    ],
)
def test_unknown_label_values_are_a_bug(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(FRESH, **change)  # type: ignore[arg-type]


def test_two_nodes_in_one_process_do_not_meet() -> None:
    assert value(busy(), "peers") == 7
    assert value(FRESH, "peers") == 0
