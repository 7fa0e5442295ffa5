"""Checks the exchange histories of several nodes against each other.

The promise is that an exchange counts on both sides or on neither. A node that
was killed may have lost what it had not written to disk yet: its partner's
commit then stands alone, and so does everything since the victim's last
snapshot. That is counted apart, because no protocol can prevent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Audit:
    """Distinct exchanges over all nodes."""

    committed: int
    aborted: int
    declined: int
    half_applied: tuple[str, ...]  # ids: one living side applied it, the other did not
    lost_in_kill: int


def audit_histories(histories: Mapping[str, Iterable[Entry]]) -> Audit:
    """Compare the histories of the nodes, given by peer id; each in order of writing."""
    outcomes: dict[str, dict[str, str]] = {}  # exchange -> node -> outcome
    applied: set[tuple[str, str]] = set()
    partners: dict[tuple[str, str], tuple[str, int]] = {}
    boots: dict[str, set[int]] = {node: set() for node in histories}
    for node, entries in histories.items():
        for entry in entries:
            xid = entry["xid"]
            boots[node].add(entry["boot"])
            if entry["event"] == "applied":
                applied.add((xid, node))
                continue
            outcomes.setdefault(xid, {})[node] = entry["outcome"]
            partners[xid, node] = (entry["peer"], entry["boot"])
    half: list[str] = []
    lost = 0
    for xid, sides in outcomes.items():
        for node in [node for node, outcome in sides.items() if outcome == "committed"]:
            peer, boot = partners[xid, node]
            if peer not in histories:
                continue
            if boot < max(boots[node]):
                lost += (xid, node) not in applied  # this side was killed afterwards
            elif sides.get(peer) == "committed":
                half += [xid] if (xid, node) not in applied else []
            elif peer not in sides and len(boots[peer]) > 1:
                lost += 1
            else:
                half.append(xid)
    kinds = [set(sides.values()) for sides in outcomes.values()]
    return Audit(
        committed=sum("committed" in kind for kind in kinds),
        aborted=sum("aborted" in kind and "committed" not in kind for kind in kinds),
        declined=sum(kind == {"declined"} for kind in kinds),
        half_applied=tuple(dict.fromkeys(half)),
        lost_in_kill=lost,
    )
