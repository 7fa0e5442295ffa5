"""Each store on a disk that forgets: nothing acknowledged is lost, nothing torn reads as right."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmnode.errors import CorruptRecord
from swarmnode.store.keys import next_boot_epoch
from tests.crash.disk_rooms import ROOMS
from tests.crash.disk_stores import DAMAGES, STORES
from tests.kits.disk_kit import Campaign
from tests.kits.disk_recorder import DEATH

ALL = {**STORES, **ROOMS}
# In all, over the stores: each moment is looked at, and one in four goes on and is cut again.
SLOW_CUTS = 50_000
SEEDS = 8
FAULTS = [(errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where files are made and removed at once: in memory, where there is such a place."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.mark.parametrize("name", ALL)
def test_what_was_acknowledged_survives_a_power_failure(name: str, folder: Path) -> None:
    campaign = Campaign(ALL[name], folder, seed=1)
    campaign.power_failures(60)
    assert campaign.cuts >= 60
    assert not campaign.failures


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("code", "lasts"), FAULTS)
def test_a_call_that_fails_costs_nothing_acknowledged(
    name: str, code: int, lasts: bool, folder: Path
) -> None:
    campaign = Campaign(ALL[name], folder, seed=1)
    campaign.every_fault(code, lasts=lasts, at_most=8)
    assert campaign.failures


@pytest.mark.parametrize("name", ALL)
def test_what_a_killed_process_left_is_made_durable_by_the_next_one(
    name: str, folder: Path
) -> None:
    campaign = Campaign(ALL[name], folder, seed=1)
    campaign.every_fault(DEATH, lasts=True, at_most=8)
    assert campaign.failures


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_many_power_failures(name: str, seed: int, folder: Path) -> None:
    campaign = Campaign(ALL[name], folder, seed)
    n_cuts = SLOW_CUTS // len(ALL) // SEEDS + 1
    while campaign.cuts < n_cuts:
        campaign.power_failures(200)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("code", "lasts"), FAULTS)
def test_every_call_that_can_fail(name: str, code: int, lasts: bool, folder: Path) -> None:
    for seed in range(3):
        Campaign(ALL[name], folder, seed).every_fault(code, lasts=lasts, at_most=2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_call_that_a_process_may_die_before(name: str, folder: Path) -> None:
    for seed in range(3):
        Campaign(ALL[name], folder, seed).every_fault(DEATH, lasts=True, at_most=2000)


@pytest.mark.parametrize("name", DAMAGES)
def test_no_damage_reads_as_right(name: str, folder: Path) -> None:
    """Bits that flip, ends that are gone, what a crash left."""
    DAMAGES[name](folder)


def test_two_damaged_boot_epochs_are_named(folder: Path) -> None:
    path = folder / "boot_epoch"
    next_boot_epoch(path)
    path.write_bytes(b"1")
    (folder / "boot_epoch.previous").write_bytes(b"")
    with pytest.raises(CorruptRecord, match="both damaged"):
        next_boot_epoch(path)
