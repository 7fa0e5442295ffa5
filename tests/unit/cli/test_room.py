"""Whether a model fits into the memory that is there, by what the system says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode.cli.swarm.room import check_room, free_memory
from swarmnode.errors import Refused

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 4 GiB free and no control groups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4194304 kB\n")
    return tmp_path


def put_into_group(machine: Path, path: str, **files: str) -> None:
    (machine / "proc/self/cgroup").write_text("1:cpu:/elsewhere\n0::/outer/inner\n")
    folder = machine / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def test_a_machine_without_limits_has_what_it_says(machine: Path) -> None:
    assert free_memory(machine) == (4 * GIB, "this machine")


def test_the_narrowest_group_around_us_counts(machine: Path) -> None:
    put_into_group(machine, "outer/inner", max="max\n", current="5\n")
    assert free_memory(machine) == (4 * GIB, "this machine")
    put_into_group(machine, "outer", max=f"{3 * GIB}\n", current=f"{2 * GIB}\n")
    assert free_memory(machine) == (GIB, "this control group (container)")
    # What it holds of files would be given back.
    put_into_group(machine, "outer", stat=f"anon 7\ninactive_file {GIB}\n")
    assert free_memory(machine) == (2 * GIB, "this control group (container)")


def test_groups_of_version_1_are_known(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("9:memory:/box\n")
    folder = machine / "sys/fs/cgroup/memory/box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.usage_in_bytes").write_text("0\n")
    assert free_memory(machine) == (GIB, "this control group (container)")


def test_a_model_that_does_not_fit_is_refused_with_both_figures(machine: Path) -> None:
    check_room("llama-150m", GIB // 2, machine)
    with pytest.raises(Refused, match=r"takes 8\.0 GB of memory, this machine has 4\.3 GB free"):
        check_room("own", 1_000_000_000, machine)


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path, machine: Path) -> None:
    check_room("own", 0, machine)  # a size that only the task knows
    assert free_memory(tmp_path / "nothing") == (None, "this machine")
    check_room("own", 10**12, tmp_path / "nothing")
