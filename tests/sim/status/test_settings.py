"""A node starts, and goes on, with each setting at another value than its default.

It runs for longer than whatever is done now and then (the month's traffic is saved each minute),
and what it does in threads is done in threads: see ``Env.in_thread``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from swarmnode import limits
from swarmnode.config import load_config
from swarmnode.store.files import make_private_dir
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimSwarm, sim_swarm
from tests.sim.checks import end
from tests.sim.every_setting import OF_THE_PROCESS, other_values, settings_by_name, write_config
from tests.unit.daemon.volunteer.test_volunteer import FakeMachine

UNUSED_FOR_S = 3600.0
OF_A_NODE = sorted(settings_by_name().keys() - OF_THE_PROCESS)
# Two saves of what is saved now and then, the first of which comes with the start.
RUN_S = 2 * limits.QUOTA_SAVE_S + limits.QUOTA_LOOK_S
LAZY = FakeWorker([], step_s=1.0)


def from_file(folder: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    """Write a ``config.toml``, and return what a node reads from it."""
    make_private_dir(folder)
    write_config(folder, chosen)
    config = load_config({"home": str(folder)}, {})
    settings = {name: getattr(config, name) for name in chosen}
    for name, value in settings.items():
        assert value != settings_by_name()[name].default, f"{name} is at its default"
    return settings


async def run_two_with(home: Path, settings: dict[str, Any]) -> SimSwarm:
    """Run two nodes with these settings until they have saved twice; they must have trained."""
    machine = FakeMachine(quiet_s=UNUSED_FOR_S)
    async with sim_swarm(home, 2, worker=LAZY, settings=settings, machine=machine) as swarm:
        await trio.sleep(RUN_S)
        for node in swarm.nodes:
            assert node.failure is None
            status = node.status
            assert status.state == ("training" if status.role == "trainer" else "serving"), status
            assert status.peers_alive == 1
        await end(swarm)
    return swarm


def test_each_setting_has_another_value(tmp_path: Path) -> None:
    values = other_values(tmp_path)
    assert values.keys() == settings_by_name().keys(), "a value for it goes into other_values"
    assert values.keys() > OF_THE_PROCESS


@pytest.mark.parametrize("name", OF_A_NODE)
async def test_a_node_runs_with_this_setting_alone(tmp_path, autojump_clock, name: str) -> None:
    chosen = {name: other_values(tmp_path)[name]}
    await run_two_with(tmp_path / "swarm", from_file(tmp_path / "home", chosen))


@pytest.mark.parametrize("role", ["trainer", "keeper"])
async def test_a_node_runs_with_all_of_them(tmp_path, autojump_clock, role: str) -> None:
    values = other_values(tmp_path)
    chosen = {name: values[name] for name in OF_A_NODE if (name, role) != ("role", "trainer")}
    swarm = await run_two_with(tmp_path / "swarm", from_file(tmp_path / "home", chosen))
    assert all(node.paths.traffic.exists() for node in swarm.nodes)
    assert (tmp_path / "node.prom").exists()
    assert (tmp_path / "targets.json").exists()
