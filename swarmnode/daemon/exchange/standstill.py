"""What of the training together stands still, although every node goes on: a sentence for each.

A node that trains looks busy whatever becomes of its rounds: its steps count up. What the swarm
makes of them is looked at here, whenever the status or the metrics are asked for.

=========  =====================================================================
log        no round of the log closes
group      rounds of the group come to nothing, one after the other
lineage    members average on different lineages of the slow weights
full       others have all places of the group: this node trains beside it
=========  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swarmnode import limits
from swarmnode.daemon.exchange.gather.gathers import Gathers
from swarmnode.daemon.exchange.group.groups import Groups
from swarmnode.daemon.exchange.lineages import Lineages
from swarmnode.daemon.exchange.log import Log

# Waiting is no standstill before. A round of the log waits LOG_GRACE_S_MAX for a slow member, and
# within ten seconds somebody who looks should know.
_LOG_STILL_S = 8.0


def find_standstills(
    log: Log, groups: Groups | Gathers, lineages: Lineages, now: float
) -> Mapping[str, str]:
    """Return what stands still, and what to do, by the words above; ``now`` is monotonic."""
    found = {
        "log": _of_log(log, now),
        "group": _of_group(groups, now),
        "lineage": _of_lineage(lineages),
        "full": _of_places(groups),
    }
    return {kind: sentence for kind, sentence in found.items() if sentence}


def other_base_alarm(finished: Mapping[tuple[Any, Any, str], int], committed: int) -> str:
    """Return what to look at if no member has the base of the model that this node began with.

    A peer's snapshot may name another than the swarm's; a node that began with it meets no other.
    """
    refused = sum(count for (_, _, reason), count in finished.items() if reason == "base")
    if committed or refused < limits.BASE_REFUSALS_ALARM:
        return ""
    return (
        f"all {refused} offers came to nothing because the others' model began from another base"
        " than this node's, which trains alone: stop it, move its snapshots and blobs away, and"
        " join again"
    )


def _of_log(log: Log, now: float) -> str:
    if log.is_halted:
        return (
            f"the log is halted: {log.state.removeprefix('halted: ')}: leave the swarm and join it"
            " anew, so that this node begins with a model of the others"
        )
    waited_s = log.wait.waited_s(now)
    if waited_s < _LOG_STILL_S:
        return ""
    return (
        f"no round of the log has closed for {waited_s:.0f} s ({log.state}), so nothing is learnt:"
        " start the missing members again; if they are gone for good, restart this node, which"
        " then goes on with those who are there"
    )


def _of_group(groups: Groups | Gathers, now: float) -> str:
    failing = groups.failing(now)
    if failing is None:
        return ""
    return (
        f"the last {failing.rounds} rounds of the group came to nothing, for"
        f" {now - failing.since:.0f} s ({failing.why}), so what is learnt here reaches nobody:"
        " look with `swarmnode peers` whether the others train and are connected, and start them"
        " again; if they are, rounds are too short for the line (strategy.every)"
    )


def _of_lineage(lineages: Lineages) -> str:
    standing = lineages.standing()
    if standing is None or not standing.is_apart:
        return ""
    n, n_alike = standing.n_members, standing.n_alike
    if not standing.is_weaker:
        return (
            f"{n - n_alike} of {n} members average apart from this one, on another lineage of the"
            f" slow weights: they catch up by themselves; if it lasts, restart them"
        )
    return (
        f"this node and {n_alike - 1} others of {n} members average apart from {n - n_alike}, on a"
        " lineage of the slow weights that will not stay: this node asks for that of the others;"
        " if it lasts, see with `swarmnode peers` that it is connected, and restart it"
    )


def _of_places(groups: Groups | Gathers) -> str:
    if not groups.is_beside:
        return ""
    return (
        f"groups hold at most {limits.GROUP_MEMBERS_MAX} members and others have all places: this"
        " node trains beside them, and takes a place when one is free; for more members create a"
        " swarm whose nodes meet in pairs (--strategy streaming)"
    )
