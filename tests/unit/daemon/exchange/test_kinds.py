"""A node loads the code of those kinds of exchange that its swarm's strategy may want."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swarmnode.strategies.exchanges import Kind
from swarmnode.strategies.installed import InstalledStrategy, installed_strategies
from swarmnode.strategies.registry import find_strategy

_SAY_LOADED = (
    "import sys, swarmnode.daemon.app.node;"
    " print(*(each for each in sys.modules if each.startswith('swarmnode.daemon.')))"
)


@pytest.mark.parametrize("installed", installed_strategies().values(), ids=lambda each: each.name)
def test_kinds_are_those_of_the_class_and_there_are_such(installed: InstalledStrategy) -> None:
    assert find_strategy(installed.name).kinds.split() == [*installed.kinds]
    assert {*installed.kinds} <= {*Kind}


def test_a_strategy_that_says_nothing_may_want_any_kind() -> None:
    assert all(InstalledStrategy("a", 1, "b:C").may_want(kind) for kind in Kind)
    said = InstalledStrategy("a", 1, "b:C", ("pair",))
    assert [kind for kind in Kind if said.may_want(kind)] == [Kind.PAIR]


@pytest.mark.parametrize("meet", ["pair", "group"])
def test_streaming_says_every_kind_that_it_wants(meet: str) -> None:
    streaming = find_strategy("streaming")
    kind = streaming.meeting(streaming.parse({"meet": meet})).kind
    assert {kind, Kind.PULL} <= {*streaming.kinds.split()}  # to catch up


def test_gatherings_and_the_log_are_not_loaded_before_a_swarm_wants_them() -> None:
    command = [sys.executable, "-c", _SAY_LOADED]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "swarmnode.daemon.collective.groups" in loaded
    assert not {"swarmnode.daemon.collective.gathers", "swarmnode.daemon.collective.log"} & {
        *loaded
    }
