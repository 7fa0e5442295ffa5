"""What a run among faults has come to: the audit, what leaked, how soon nodes were back.

Acknowledged is, and must never be lost: a snapshot that a node said was written (it goes on from
there or later), the steps that any node has heard of another (counters of the shared state never
go back), and an exchange of a node whose worker was not touched.

An exchange in doubt is counted apart: a responder that hears nothing of the decision for
EXCHANGE_IN_DOUBT_S gives it up, and may be wrong about that (two generals). It says so itself.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from swarmnode.bench.chaos.node import Life, Sample
from swarmnode.bench.chaos.plan import REJOINING, Kind
from swarmnode.processes.audit import Audit, Entry, audit_histories

_MB = 1e6
_HOUR_S = 3600.0
_HASH_CHARACTERS = 9  # of a result: and "committed" is whole
# A process that has just begun still loads what it needs; a slope over minutes says nothing.
_WARM_UP_S = 120.0
_SLOPE_OF_S = 240.0
_SLOPE_JUDGED_S = 1800.0
_SLOPE_MB_PER_H_MAX = 2.1  # 2 MiB
# Of a run that is long enough to have twenty: below, the slowest of a few would be the judge.
_REJOIN_JUDGED_S = 1800.0
_REJOINS_JUDGED_MIN = 20
_REJOIN_P95_S_MAX = 20.0  # beyond the import of torch
# Sessions, their probes and dials come and go; what leaks does so with every fault.
_FDS_MORE_MAX = 32
_THREADS_MORE_MAX = 16
_MEMFDS_MAX = 4  # two for each worker, and those that are just being replaced
_TWO_LOGS = "the log differs"
_LOG_BEGINS = re.compile(r" a log begins .*\bhead=(\w+)")
_SAID_WRONG = (
    "Traceback (most recent call last)",
    _TWO_LOGS,
    "a part of a mean differs",
    "InvariantViolation",
)
_SHOWN_MAX = 5


@dataclass
class Evidence:
    """What was seen of one swarm.

    Attributes:
        histories: of exchanges, by peer id.
        incomplete: peers whose disk was full for a while.
        hit: peers of which a process was killed, stopped or told to end.
        promises: the node, the step of the snapshot that it promised, and where it began again.
        heard: the most steps that any node had heard of each peer; ``heard_last``: at the end.
        orphans: processes that outlived the daemon that they belonged to.
        logs: what the processes of each node have written.
        faults: as ``--json`` lists them.
        lives: what processes held.
        mishaps: nodes that ended by themselves, or did not come back.
    """

    histories: dict[str, list[Entry]] = field(default_factory=dict)
    incomplete: set[str] = field(default_factory=set)
    hit: set[str] = field(default_factory=set)
    promises: list[tuple[str, int, int]] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    heard_last: dict[str, int] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    mishaps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """One swarm, judged."""

    audit: Audit
    half_applied: tuple[str, ...]
    in_doubt: int
    lost: tuple[str, ...]  # a sentence for each
    violations: tuple[str, ...]


def judge(evidence: Evidence) -> Verdict:
    """Compare all that was seen with what is promised."""
    audit = audit_histories(evidence.histories, incomplete=evidence.incomplete)
    doubted = _doubted(evidence.histories)
    half = tuple(xid for xid in audit.half_applied if xid not in doubted)
    lost = tuple(_lost_acknowledged(evidence))
    violations = [
        *(f"half applied: {xid}, {_told(xid, evidence.histories)}" for xid in half),
        *lost,
        *(f"orphan: {each}" for each in evidence.orphans),
        *evidence.mishaps,
        *_said_wrong(evidence.logs),
        *_leaked(evidence.lives),
    ]
    in_doubt = len(doubted & {*audit.half_applied})
    return Verdict(audit, half, in_doubt, lost, tuple(violations))


def _doubted(histories: Mapping[str, Iterable[Entry]]) -> set[str]:
    return {
        entry["xid"] for entries in histories.values() for entry in entries if entry.get("in_doubt")
    }


def _told(xid: str, histories: Mapping[str, Iterable[Entry]]) -> str:
    """Return what each node has written of an exchange."""
    found = {
        peer[:12]: [
            " ".join(
                str(entry[key])[:_HASH_CHARACTERS]
                for key in ("event", "outcome", "boot", "result")
                if key in entry
            )
            for entry in entries
            if entry["xid"] == xid
        ]
        for peer, entries in histories.items()
    }
    return "; ".join(f"{peer}: {', '.join(lines)}" for peer, lines in found.items() if lines)


def _lost_acknowledged(evidence: Evidence) -> Iterable[str]:
    for node, promised, found in evidence.promises:
        if found < promised:
            yield f"lost: {node} had promised step {promised}, and began again at {found}"
    for peer, steps in evidence.heard.items():
        last = evidence.heard_last.get(peer, 0)
        if last < steps:
            yield f"lost: {steps} steps of {peer[:12]} had been heard of, {last} are left"
    for peer, entries in evidence.histories.items():
        if peer in evidence.hit:
            continue
        for entry in entries:
            if entry["event"] == "lost":
                yield f"lost: exchange {entry['xid']} of {peer[:12]}, which was not touched"


def _said_wrong(logs: Mapping[str, str]) -> Iterable[str]:
    """Yield what no node is to say.

    Who starts and hears no other begins a log of its own, and gives it up once it hears them: two
    that differ are a fault where one has begun.
    """
    begun = {head for text in logs.values() for head in _LOG_BEGINS.findall(text)}
    wrong = [words for words in _SAID_WRONG if words != _TWO_LOGS or len(begun) < 2]
    for name, text in logs.items():
        found = [line for line in text.splitlines() if any(words in line for words in wrong)]
        if found:
            yield f"{name} has said {len(found)} times: {found[0].strip()[:200]}"


# --- what processes hold --------------------------------------------------------------------


def leak_table(lives: Collection[Life]) -> list[dict[str, Any]]:
    """Return a row for each process that was seen for a while, the longest life first."""
    seen = [life for life in lives if len(life.samples) > 1]
    return [
        {
            "node": life.node,
            "process": life.process,
            "seen_s": round(life.samples[-1].at_s - life.samples[0].at_s, 1),
            "fds": _ends([sample.fds for sample in life.samples]),
            "memfds": _ends([sample.memfds for sample in life.samples]),
            "threads": _ends([sample.threads for sample in life.samples]),
            "rss_mb": _ends([sample.rss_bytes / _MB for sample in life.samples]),
            "rss_slope_mb_per_h": _slope(life),
        }
        for life in sorted(seen, key=lambda life: life.samples[0].at_s - life.samples[-1].at_s)
    ]


def _ends(values: Sequence[float]) -> list[float]:
    """Return the medians of the first and of the last third."""
    third = max(1, len(values) // 3)
    return [round(statistics.median(part), 1) for part in (values[:third], values[-third:])]


def _slope(life: Life) -> float | None:
    """Return how fast a process grows: the median over all pairs of samples (Theil, Sen)."""
    begin_s = life.samples[0].at_s + _WARM_UP_S
    warm = [sample for sample in life.samples if sample.at_s >= begin_s]
    if not warm or warm[-1].at_s - warm[0].at_s < _SLOPE_OF_S:
        return None
    found = [_growth(*pair) for pair in combinations(warm, 2) if pair[1].at_s > pair[0].at_s]
    return round(statistics.median(found), 2)


def _growth(early: Sample, late: Sample) -> float:
    grown_mb = (late.rss_bytes - early.rss_bytes) / _MB
    return grown_mb / (late.at_s - early.at_s) * _HOUR_S


def largest_slope(lives: Collection[Life]) -> float | None:
    """Return that of the process which grows fastest; None if none was seen for long enough."""
    return max((slope for life in lives if (slope := _slope(life)) is not None), default=None)


def _leaked(lives: Collection[Life]) -> Iterable[str]:
    for row in leak_table(lives):
        what = f"n{row['node']}'s {row['process']}, seen for {row['seen_s']:.0f} s"
        for name, more_max in (("fds", _FDS_MORE_MAX), ("threads", _THREADS_MORE_MAX)):
            first, last = row[name]
            if last - first > more_max:
                yield f"leak: {what}: {name} went from {first:.0f} to {last:.0f}"
        if row["memfds"][1] > _MEMFDS_MAX:
            yield f"leak: {what}: holds {row['memfds'][1]:.0f} segments"
        slope = row["rss_slope_mb_per_h"]
        if row["seen_s"] > _SLOPE_JUDGED_S and slope is not None and slope > _SLOPE_MB_PER_H_MAX:
            yield f"leak: {what}: memory grows by {slope} MB an hour"


# --- the report -----------------------------------------------------------------------------


def outcome(
    seed: int, minutes: float, swarms: Sequence[Evidence], left_out: Mapping[Kind, str]
) -> dict[str, Any]:
    """Return the figures of all swarms together, as ``--json`` prints them."""
    verdicts = [judge(evidence) for evidence in swarms]
    lives = [life for evidence in swarms for life in evidence.lives]
    faults = [fault for evidence in swarms for fault in evidence.faults]
    rejoins_s = [
        max(0.0, fault["rejoin_s"] - fault["torch_s"])
        for fault in faults
        if fault["kind"] in REJOINING
        and fault["rejoin_s"] is not None
        and not fault.get("is_beside_another")  # of the network: when its part ended is not known
    ]
    committed = sum(verdict.audit.committed for verdict in verdicts)
    aborted = sum(verdict.audit.aborted for verdict in verdicts)
    return {
        "seed": seed,
        "minutes": minutes,
        "faults": [*faults, *({"kind": k, "left_out": why} for k, why in left_out.items())],
        "half_applied": sum(len(verdict.half_applied) for verdict in verdicts),
        "lost_acknowledged": sum(len(verdict.lost) for verdict in verdicts),
        "orphans": sum(len(evidence.orphans) for evidence in swarms),
        "rejoin_p50_s": _quantile(rejoins_s, 0.5),
        "rejoin_p95_s": _quantile(rejoins_s, 0.95),
        "commit_ratio": round(committed / (committed + aborted), 4) if committed else 0.0,
        "rss_slope_mb_per_h": largest_slope(lives),
        "violations": [
            *(each for verdict in verdicts for each in verdict.violations),
            *_slow_to_rejoin(rejoins_s, minutes),
        ],
        "committed": committed,
        "aborted": aborted,
        "in_doubt": sum(verdict.in_doubt for verdict in verdicts),
        "lost_in_kill": sum(verdict.audit.lost_in_kill for verdict in verdicts),
        "left_behind": sum(verdict.audit.left_behind for verdict in verdicts),
        "leaks": leak_table(lives),
    }


def _slow_to_rejoin(rejoins_s: Collection[float], minutes: float) -> Iterable[str]:
    p95_s = _quantile(rejoins_s, 0.95)
    if minutes * 60 < _REJOIN_JUDGED_S or len(rejoins_s) < _REJOINS_JUDGED_MIN or p95_s is None:
        return
    if p95_s > _REJOIN_P95_S_MAX:
        yield (
            f"slow: the p95 of {len(rejoins_s)} rejoins is {p95_s:.1f} s beyond the import of"
            f" torch, expected at most {_REJOIN_P95_S_MAX:.0f} s"
        )


def _quantile(values: Collection[float], share: float) -> float | None:
    """Return the smallest value that this share of all does not pass."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else None


def format_outcome(found: Mapping[str, Any]) -> str:
    """Return the figures as lines for a person."""
    done = [fault for fault in found["faults"] if "left_out" not in fault]
    slope = found["rss_slope_mb_per_h"]
    lines = [
        f"{len(done)} faults in {found['minutes']:g} minutes, seed {found['seed']}:"
        f" {found['half_applied']} half applied, {found['lost_acknowledged']} lost that was"
        f" acknowledged, {found['orphans']} orphans",
        f"{found['committed']} exchanges committed, {found['aborted']} aborted"
        f" ({found['commit_ratio']:.1%}), {found['in_doubt']} in doubt,"
        f" {found['lost_in_kill']} lost with what was killed",
        f"back after {_seconds(found['rejoin_p50_s'])} median, {_seconds(found['rejoin_p95_s'])}"
        " p95, beyond the import of torch",
        f"memory of the process that grows fastest: {'not known' if slope is None else slope} MB/h",
    ]
    lines += [
        f"  n{row['node']} {row['process']:6} {row['seen_s']:6.0f} s"
        + "".join(f"  {key} {row[key][0]:g} -> {row[key][1]:g}" for key in _COLUMNS)
        for row in found["leaks"][:_SHOWN_MAX]
    ]
    lines += [f"left out: {f['kind']}: {f['left_out']}" for f in found["faults"] if f not in done]
    return "\n".join(lines + [f"VIOLATION: {each}" for each in found["violations"]])


_COLUMNS = ("fds", "memfds", "threads", "rss_mb")


def _seconds(value: float | None) -> str:
    return "no time" if value is None else f"{value:.1f} s"
