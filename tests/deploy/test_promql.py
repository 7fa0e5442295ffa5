"""The checker of expressions finds what is wrong in them."""

from __future__ import annotations

import pytest

from tests.deploy.promql import Matcher, Selector, complaints, plain, selectors


def test_it_finds_what_an_expression_selects() -> None:
    expression = (
        'sum by (plane) (rate(swarmnode_sent_bytes_total{plane=~"a{1}|b", swarm="x y"}[5m])) > 3'
        " and on (job) time() - up == 1 or swarm:x:y > bool 2"
    )
    assert list(selectors(expression.replace("a{1}|b", "control|tensor"))) == [
        Selector(
            "swarmnode_sent_bytes_total",
            (Matcher("plane", "=~", "control|tensor"), Matcher("swarm", "=", "x y")),
        ),
        Selector("up", ()),
        Selector("swarm:x:y", ()),
    ]


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("swarmnode_tokens", "unknown metric swarmnode_tokens"),
        ("sum(something_else)", "unknown metric something_else"),
        ('swarmnode_loss{peer="a"}', "swarmnode_loss has no label peer"),
        ('swarmnode_state{state="asleep"}', "swarmnode_state: state is never 'asleep'"),
        ('swarmnode_state{state=~"training|asleep"}', "swarmnode_state: state is never 'asleep'"),
        ("sum by (planet) (swarmnode_loss)", "no label planet to group by"),
        ("rate(swarmnode_loss[5m])", "rate() of swarmnode_loss, which is no counter"),
        ("swarm:nothing:sum", "unknown metric swarm:nothing:sum"),
    ],
)
def test_it_complains_about(expression: str, complaint: str) -> None:
    assert complaints(expression, recorded=()) == [complaint]


def test_it_is_content_with_what_exists() -> None:
    expression = (
        "histogram_quantile(0.95, sum by (le) (rate(swarmnode_exchange_duration_seconds_bucket"
        '{swarm="$swarm", instance=~"$instance"}[$__rate_interval]))) > swarm:made:sum'
    )
    assert complaints(plain(expression), recorded={"swarm:made:sum"}) == []
