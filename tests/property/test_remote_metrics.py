"""Whatever another node says of itself, its page holds numbers and words that we know."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.telemetry.catalogue import BY_NAME, FAMILIES, PREFIX
from swarmnode.telemetry.exposition import render
from swarmnode.telemetry.readings import Readings
from swarmnode.telemetry.remote import METRICS_TEXTS_MAX, PeerWords, pack
from swarmnode.wire.metrics import (
    MetricFamily,
    MetricHistogram,
    MetricSample,
    MetricsSnapshot,
)
from swarmnode.wire.packing import decode_record, encode_record
from tests.deploy.promql import series
from tests.unit.telemetry.test_metrics import full

PEER, OTHER = "sn1aaaaaaaaa", "sn1abcdefghi"
KNOWN = [family.name.removeprefix(PREFIX) for family in FAMILIES]
WORDS = sorted({value for family in FAMILIES for label in family.labels for value in label.values})

names = st.one_of(st.sampled_from(KNOWN), st.from_regex(r"\A[a-z][a-z0-9_]{0,63}\Z"))
labels = st.lists(
    st.one_of(
        st.sampled_from([*WORDS, PEER, OTHER, "", "0", "0.1.0", 'x"} 1\n', "\\", "a\n"]),
        st.text(max_size=64),
    ),
    max_size=limits.METRICS_LABELS_MAX,
).map(tuple)
numbers = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -1.0, 1e308, math.nan, math.inf]))
families = st.builds(
    MetricFamily,
    names,
    st.lists(st.builds(MetricSample, labels, numbers), max_size=8).map(tuple),
)
histograms = st.builds(
    MetricHistogram,
    st.one_of(st.just("exchange_duration_seconds"), names),
    st.lists(st.integers(0, 2**63 - 1), max_size=limits.METRICS_BUCKETS_MAX).map(tuple),
    numbers,
)
snapshots = st.builds(
    MetricsSnapshot,
    st.lists(families, max_size=12).map(tuple),
    st.lists(histograms, max_size=3).map(tuple),
)


def check_page(readings: Readings) -> None:
    """Everything on it is in the catalogue, and every number is one."""
    for accept in ("", "application/openmetrics-text"):
        body = render(readings, accept)[1].decode()
        assert len(body) < 128 * limits.KIB
    for family in parse_text(render(readings)[1].decode()):
        for sample in family.samples:
            _, label_names = series()[sample.name]
            assert set(sample.labels) == set(label_names)
            assert math.isfinite(sample.value)
            known = BY_NAME.get(sample.name)
            for label in known.labels if known is not None else ():
                assert label.allows(sample.labels[label.name])
            assert not sample.name.startswith("swarmnode_swarm_")
            assert sample.labels.get("peer", PEER) in (PEER, OTHER)


@settings(max_examples=150, deadline=None)
@given(snapshot=snapshots)
def test_a_hostile_snapshot_becomes_a_page_of_ours_or_none(snapshot: MetricsSnapshot) -> None:
    came = decode_record(encode_record(snapshot), MetricsSnapshot)
    try:
        readings = PeerWords(PEER, "digits").unpack(came, {PEER, OTHER})
    except MalformedMessage:
        return
    check_page(readings)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), n_changes=st.integers(1, 6))
def test_bytes_that_were_changed_on_the_way_do_no_harm(seed: int, n_changes: int) -> None:
    rng = random.Random(seed)
    data = bytearray(encode_record(pack(full())))
    for _ in range(n_changes):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        came = decode_record(bytes(data), MetricsSnapshot)
        readings = PeerWords(PEER, "digits").unpack(came, {PEER, OTHER})
    except MalformedMessage:
        return
    check_page(readings)


def test_what_was_packed_is_what_is_shown() -> None:
    before = full()
    came = decode_record(encode_record(pack(before)), MetricsSnapshot)
    peer = PeerWords("sn1abcdefghi", "digits", lambda: "calm-otter")  # as the shared state says
    after = peer.unpack(came, {"sn1abcdefghi"})
    assert after.histograms == before.histograms
    for name, values in before.values.items():
        if not name.startswith("swarmnode_swarm_"):
            assert after.values[name] == values
    assert len(encode_record(pack(before))) < limits.METRICS_SNAPSHOT_BYTES_MAX / 2


def test_new_words_run_out_and_known_ones_stay() -> None:
    peer = PeerWords(PEER, "digits")

    def say(name: str) -> Readings:
        sample = MetricSample((name,), 1.0)
        return peer.unpack(MetricsSnapshot((MetricFamily("strategy_value", (sample,)),)), {PEER})

    for number in range(10_000):
        shown = say(f"word_{number}").get("strategy_value", f"word_{number}")
        assert shown == (1.0 if number < METRICS_TEXTS_MAX else None)
    assert say("word_0").get("strategy_value", "word_0") == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", math.nan),
        ("loss", -math.inf),
        ("local_steps_total", -1.0),
        ("build_info", math.inf),
    ],
)
def test_numbers_that_cannot_be_are_refused(name: str, value: float) -> None:
    n_labels = len(BY_NAME[PREFIX + name].labels)
    family = MetricFamily(name, (MetricSample(("",) * n_labels, value),))
    with pytest.raises(MalformedMessage, match="expected a finite"):
        PeerWords(PEER, "digits").unpack(MetricsSnapshot((family,)), {PEER})


@pytest.mark.parametrize(
    "histogram",
    [
        MetricHistogram("exchange_duration_seconds", (1, 2), 1.0),
        MetricHistogram("exchange_duration_seconds", (0,) * 12, -1.0),
        MetricHistogram("exchange_duration_seconds", (0,) * 12, math.nan),
    ],
)
def test_histograms_that_cannot_be_are_refused(histogram: MetricHistogram) -> None:
    with pytest.raises(MalformedMessage, match="expected 12 buckets"):
        PeerWords(PEER, "digits").unpack(MetricsSnapshot((), (histogram,)), {PEER})
