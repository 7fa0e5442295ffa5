"""What a node needs only for a rare event is imported when that comes, not when it starts."""

from __future__ import annotations

import ast

import pytest

from swarmnode.tooling.house import imported_by
from tests.tidy.test_tidy import PACKAGE, tree_of

# What starts a node, and what no import at the top of a module may lead to from there.
ON_DEMAND = {
    "swarmnode.cli.swarm.join": ("swarmnode.cli.swarm.lookup", "swarmnode.processes.client"),
    "swarmnode.daemon.app.start": ("swarmnode.daemon.worker.foreign",),
    "swarmnode.daemon.app.node": (
        "swarmnode.daemon.collective.finalize",
        "swarmnode.daemon.collective.merge_part",
        "swarmnode.daemon.discovery.lookup",
        "swarmnode.daemon.membership.admission",
        "swarmnode.daemon.status.netcheck",
        "swarmnode.daemon.status.overview",
        "swarmnode.daemon.status.owner",
        "swarmnode.daemon.status.readings",
        "swarmnode.daemon.status.scrape",
        "swarmnode.daemon.transport.relay",
        "swarmnode.daemon.transport.upgrade",
        "swarmnode.daemon.transport.ways",
        "swarmnode.net.gateway.methods",
        "swarmnode.net.nat_survey",
        "swarmnode.net.punch",
        "swarmnode.net.rtc.bridge",
        "swarmnode.net.rtc.engine",
        "swarmnode.protocol.invites",
        "swarmnode.protocol.nat.igd",
        "swarmnode.protocol.nat.pcp",
        "swarmnode.protocol.nat.stun",
        "swarmnode.protocol.nat.punch",
        "swarmnode.protocol.nat.survey",
        "swarmnode.protocol.relay.core",
        "swarmnode.schedule",
        "swarmnode.telemetry.catalogue",
        "swarmnode.tensor.reference",
        "swarmnode.wire.connect.punch",
        "swarmnode.wire.exchange.finalize",
        "swarmnode.wire.metrics",
    ),
    "swarmnode.worker.begin": (
        "swarmnode.strategies.merging.rules",
        "swarmnode.strategies.merging.safe_merge",
        "swarmnode.strategies.topology",
        "swarmnode.worker.exchange.merges",
    ),
    "swarmnode.worker.main": ("swarmnode.ipc.handover", "swarmnode.worker.ranks.team"),
}
PATHS = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def at_the_top(tree: ast.Module) -> ast.Module:
    """Return a module without its functions, and without what is for types only."""
    kept = [
        statement
        for statement in tree.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not (isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test))
    ]
    return ast.Module(kept, type_ignores=[])


def reached_from(start: str) -> set[str]:
    reached: set[str] = set()
    left = [start]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += imported_by(at_the_top(tree_of(PATHS[name])), PATHS)
    return reached


@pytest.mark.parametrize("start", ON_DEMAND)
def test_a_node_starts_without_what_rare_events_need(start: str) -> None:
    reached = reached_from(start)
    assert "swarmnode.limits" in reached, "the walk goes wrong"
    assert all(name in PATHS for name in ON_DEMAND[start])
    assert not reached & {*ON_DEMAND[start]}, "import it in the function that needs it"
