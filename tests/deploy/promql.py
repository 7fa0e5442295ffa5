"""What an expression asks for, as far as it can be checked against the catalogue.

No parser: strings are cut out, then every name that is no function, keyword or label must be a
metric that exists. ``promtool`` says whether the rest is PromQL at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from swarmnode.telemetry.catalogue import BY_NAME, FAMILIES, Family, Kind

# Given by Prometheus to everything that comes from a target of our configuration.
TARGET_LABELS = frozenset({"job", "swarm", "instance"})
# Made by Prometheus itself.
OWN_SERIES = {
    "up": frozenset[str](),
    "scrape_duration_seconds": frozenset[str](),
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
}
GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
WORDS = GROUPING | {"and", "or", "unless", "bool", "offset", "inf", "nan"}
NEED_COUNTERS = frozenset({"rate", "increase", "irate"})

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_GROUPING = re.compile(rf"\b({'|'.join(GROUPING)})\s*\(([^)]*)\)")
_SELECTOR = re.compile(rf"(?P<name>{_NAME})\s*(?P<matchers>{{[^}}]*}})?")
_MATCHER = re.compile(rf'({_NAME})\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")')
_DURATION = re.compile(r"\[[^\]]*\]")
_CALL = re.compile(rf"\b({_NAME})\s*(?=\()")
_COUNTED = re.compile(rf"\b({'|'.join(NEED_COUNTERS)})\s*\(\s*({_NAME})")


@dataclass(frozen=True)
class Matcher:
    """``label op "value"`` of one selector."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True)
class Selector:
    """A metric, and what is asked of its labels."""

    metric: str
    matchers: tuple[Matcher, ...]


def plain(expression: str, interval: str = "5m") -> str:
    """Return the expression with Grafana's variables replaced as Grafana would."""
    return (
        expression.replace("$__rate_interval", interval)
        .replace("$instance", ".*")
        .replace("$swarm", "demo")
    )


def selectors(expression: str) -> Iterator[Selector]:
    """Yield what ``expression``, without variables, selects."""
    rest = _DURATION.sub("", _GROUPING.sub("", expression))
    functions = set(_CALL.findall(_STRING.sub('""', rest)))
    for found in _SELECTOR.finditer(_outside_strings(rest)):
        name = found["name"]
        if name not in functions and name.lower() not in WORDS:
            matchers = tuple(
                Matcher(label, operator, value[1:-1])
                for label, operator, value in _MATCHER.findall(found["matchers"] or "")
            )
            yield Selector(name, matchers)


def grouping_labels(expression: str) -> set[str]:
    """Return the labels in by, without, on, and the like."""
    found = _GROUPING.findall(_STRING.sub('""', expression))
    return {name.strip() for _, names in found for name in names.split(",") if name.strip()}


def sample_names(family: Family) -> tuple[str, ...]:
    """Return the names of the series of a family."""
    if family.kind == "histogram":
        return tuple(family.name + suffix for suffix in ("_bucket", "_sum", "_count"))
    return (family.name,)


def series() -> dict[str, tuple[Kind, tuple[str, ...]]]:
    """Return kind and label names of every series a page can have, by its name."""
    found: dict[str, tuple[Kind, tuple[str, ...]]] = {}
    for family in FAMILIES:
        for name in sample_names(family):
            bucket = ("le",) if name.endswith("_bucket") else ()
            found[name] = (family.kind, family.label_names + bucket)
    return found


def complaints(expression: str, recorded: Collection[str]) -> list[str]:
    """Return what in ``expression`` the catalogue does not know; ``recorded`` are rule names."""
    known = series()
    found, labels = [], set(TARGET_LABELS)
    for selector in selectors(expression):
        if selector.metric in recorded:
            allowed: Collection[str] = TARGET_LABELS
        elif selector.metric in OWN_SERIES:
            allowed = OWN_SERIES[selector.metric] | TARGET_LABELS
        elif selector.metric in known:
            allowed = TARGET_LABELS | set(known[selector.metric][1])
        else:
            found.append(f"unknown metric {selector.metric}")
            continue
        labels.update(allowed)
        for matcher in selector.matchers:
            if matcher.label not in allowed:
                found.append(f"{selector.metric} has no label {matcher.label}")
            else:
                found += _impossible(selector.metric, matcher)
    found += [f"no label {each} to group by" for each in grouping_labels(expression) - labels]
    for function, metric in _COUNTED.findall(expression):
        if metric in known and known[metric][0] not in ("counter", "histogram"):
            found.append(f"{function}() of {metric}, which is no counter")
    return found


def _impossible(metric: str, matcher: Matcher) -> Iterator[str]:
    """Complain about a value that the label never has."""
    family = BY_NAME.get(metric)
    for label in family.labels if family is not None else ():
        if label.name != matcher.label:
            continue
        values = [matcher.value] if "~" not in matcher.operator else matcher.value.split("|")
        for value in values:
            if value != ".*" and not label.allows(value):
                yield f"{metric}: {label.name} is never {value!r}"


def _outside_strings(expression: str) -> str:
    """Keep strings where they are the value of a matcher, and nowhere else."""
    parts = re.split(r"({[^}]*})", expression)
    return "".join(part if part.startswith("{") else _STRING.sub("", part) for part in parts)
