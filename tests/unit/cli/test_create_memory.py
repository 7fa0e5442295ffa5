"""Whether `create` builds a model, by the memory that is there."""

from __future__ import annotations

import pytest

from swarmnode.cli.swarm.create import check_memory_for
from swarmnode.errors import Refused
from swarmnode.memory import MainMemory

GIB = 2**30
MACHINE = MainMemory(4 * GIB, 8 * GIB)


def test_a_model_that_does_not_fit_is_refused_with_both_figures() -> None:
    check_memory_for("llama-150m", GIB // 2, MACHINE)
    with pytest.raises(Refused, match=r"takes 8\.0 GB of memory, this machine has 4\.3 GB free"):
        check_memory_for("own", 1_000_000_000, MACHINE)


def test_it_says_that_a_container_is_what_is_full() -> None:
    with pytest.raises(Refused, match=r"this control group \(container\) has 1\.1 GB free"):
        check_memory_for("own", GIB, MainMemory(GIB, 2 * GIB, is_of_group=True))


def test_where_nothing_is_known_nothing_is_refused() -> None:
    check_memory_for("own", 0, MACHINE)  # a size that only the task knows
    check_memory_for("own", 10**12, None)
