"""``swarmnode bench fidelity``: claims of papers, tried here, and the page about it.

The experiments in virtual time need torch, so they run in a process of their own
(``swarmnode.testing.fidelity``); those with real nodes are run from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import msgspec

from swarmnode.bench.fidelity.finding import Finding
from swarmnode.bench.fidelity.page import taken
from swarmnode.processes.worker_tools import stream_offline

# Those with real nodes, by name: where each is.
_WITH_NODES = {
    "daemons": "swarmnode.bench.fidelity.daemons:run_daemons",
    "default": "swarmnode.bench.fidelity.default:run_default",
}
_MODULE = "swarmnode.testing.fidelity"


def run_fidelity(only: Sequence[str], *, is_quick: bool) -> Iterator[Finding]:
    """Yield findings, each as soon as it is there.

    Args:
        only: names of experiments; all of them if empty.
        is_quick: runs too short to judge anything by, to see that all works.

    Raises:
        SwarmNodeError: an experiment failed, or there is none of such a name.
    """
    in_virtual_time = [name for name in only if name not in _WITH_NODES]
    flags = ["--quick"] if is_quick else []
    if in_virtual_time or not only:
        for answer in stream_offline(*flags, "--", *in_virtual_time, module=_MODULE):
            yield msgspec.convert(answer, Finding)
    for name, where in _WITH_NODES.items():
        if name in only or not only:
            module, _, function = where.partition(":")
            yield getattr(import_module(module), function)(is_quick=is_quick)


def format_finding(finding: Finding) -> str:
    """Return it as lines for a person."""
    lines = [f"{finding.name}: {_word(finding)} ({taken(finding)})"]
    for check in finding.checks:
        mark = "  " if check.holds or finding.is_quick else "! "
        bounds = " ".join(
            f"{sign} {bound:g}"
            for sign, bound in ((">=", check.low), ("<=", check.high))
            if bound is not None
        )
        value = "no number" if check.value is None else f"{check.value:g}"
        error = "" if check.error is None else f" ± {check.error:.1g}"
        lines.append(f"{mark}{check.what:66} {value:>10}{error:10}  {bounds}")
    if finding.fails_isolated is not None:
        n_failing, n_checks = len(finding.fails_isolated), len(finding.checks)
        lines.append(f"  without exchange {n_failing} of {n_checks} figures are not as expected")
    return "\n".join(lines)


def _word(finding: Finding) -> str:
    if finding.is_quick:
        return "a quick run, not judged"
    if finding.holds:
        return "holds"
    return "DOES NOT HOLD" if finding.is_shown else "NOT SHOWN"


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all of it for ``--json``."""
    return {
        "holds": all(finding.holds for finding in findings),
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }
