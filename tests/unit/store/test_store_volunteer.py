"""What a volunteer gives, and what it trains on: kept as it was said, and gone when it is over."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from swarmnode import limits
from swarmnode.config import Paths
from swarmnode.errors import ConfigError, StorageError
from swarmnode.protocol.volunteer import ManualPause
from swarmnode.store.training_data import TrainingData, load_training_data, save_training_data
from swarmnode.store.volunteer import (
    TOTALS_FILE_BYTES_MAX,
    TOTALS_SWARMS_MAX,
    Book,
    Mark,
    SwarmTotals,
    Totals,
    TrafficLedger,
    load_pause,
    load_totals,
    save_pause,
    save_totals,
)
from tests.kits.disk_recorder import Recorder

PAUSE = ManualPause(1_800_000_000.0, 60.0)
PAUSE_FILE_BYTES_MAX = 4 * limits.KIB
DATA_FILE_BYTES_MAX = 64 * limits.KIB


def names_after_a_power_failure(recorder: Recorder, left: Path) -> set[str]:
    """Return which files are still there if all is lost that was not synced."""
    left.mkdir()
    recorder.disk.forget(random.Random(1), names=0, data=0).write_to(left)
    return {path.name for path in left.rglob("*") if path.is_file()}


# --- the pause by hand ----------------------------------------------------------------------------


def test_a_pause_and_its_end_survive_a_power_failure(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    recorder = Recorder(home)
    with recorder.attached():
        save_pause(home / "pause", PAUSE)
        assert names_after_a_power_failure(recorder, tmp_path / "paused") == {"pause"}
        save_pause(home / "pause", None)
        assert names_after_a_power_failure(recorder, tmp_path / "ended") == set()


def test_a_pause_that_cannot_be_ended_is_said_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "pause").mkdir()
    with pytest.raises(StorageError, match="cannot remove"):
        save_pause(tmp_path / "pause", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"until_unix_s": 0, "length_s": 0}', ManualPause(0, 0)),
        ('{"until_unix_s": 5.5, "length_s": 7}', ManualPause(5.5, 7)),
        ('{"until_unix_s": -1, "length_s": 7}', ManualPause()),
        ('{"until_unix_s": 5, "length_s": -0.1}', ManualPause()),
        ('{"until_unix_s": 5, "length_s": NaN}', ManualPause()),
        ('{"until_unix_s": 5}', ManualPause()),
        ('{"until_unix_s": null, "length_s": null}', ManualPause()),
        ("7", ManualPause()),
        ("\xff", ManualPause()),
    ],
)
def test_a_pause_ends_only_at_a_time_that_can_be_read(
    text: str, expected: ManualPause, tmp_path: Path
) -> None:
    path = tmp_path / "pause"
    path.write_bytes(text.encode("latin-1"))
    assert load_pause(path) == expected


def test_a_pause_without_an_end_is_kept_as_one(tmp_path: Path) -> None:
    save_pause(tmp_path / "pause", ManualPause())
    assert load_pause(tmp_path / "pause") == ManualPause()


def test_a_file_of_a_pause_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "pause"
    save_pause(path, PAUSE)
    whole = path.read_bytes()
    path.write_bytes(whole.ljust(PAUSE_FILE_BYTES_MAX))
    assert load_pause(path) == PAUSE
    path.write_bytes(whole.ljust(PAUSE_FILE_BYTES_MAX + 1))
    assert load_pause(path) == ManualPause()


# --- the month's traffic --------------------------------------------------------------------------


def test_traffic_is_written_down_only_when_there_was_some(tmp_path: Path) -> None:
    path = tmp_path / "traffic"
    ledger = TrafficLedger(path)
    ledger.save()
    assert ledger.add("2026-11", 0) == 0
    ledger.save()
    assert not path.exists()
    assert [ledger.add("2026-11", n) for n in (5, 0, 7)] == [5, 5, 12]
    ledger.save()
    assert json.loads(path.read_text()) == {"2026-11": 12}
    path.unlink()
    ledger.save()
    assert not path.exists()
    ledger.add("2026-11", 1)
    ledger.save()
    assert TrafficLedger(path).add("2026-11", 0) == 13


def test_what_is_no_count_of_bytes_in_the_file_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "traffic"
    path.write_text('{"a": 3.7, "b": 0, "c": -1, "d": "9", "e": null, "f": 1e999}')
    ledger = TrafficLedger(path)
    assert [ledger.add(month, 1) for month in "abcdef"] == [4, 1, 1, 1, 1, 1]


# --- totals ---------------------------------------------------------------------------------------

ONE = Totals(1, 20, 300, 4_000, 50_000, 0.5)
OTHER = Totals(2, 30, 400, 5_000, 60_000, 0.25)


def test_totals_are_summed_each_by_itself() -> None:
    assert Totals(3, 50, 700, 9_000, 110_000, 0.75) == ONE + OTHER


def test_totals_come_back_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "totals"
    assert load_totals(path) == Book() == Book(Totals(0, 0, 0, 0, 0, 0.0), {})
    book = Book(ONE, {"demo": SwarmTotals(OTHER, Mark(7, 70)), "new": SwarmTotals()})
    save_totals(path, book)
    assert load_totals(path) == book
    assert SwarmTotals() == SwarmTotals(Totals(0, 0, 0, 0, 0, 0.0), Mark(0, 0))


def test_as_many_swarms_are_listed_as_there_is_room_for_those_that_were_given_most(
    tmp_path: Path,
) -> None:
    path = tmp_path / "totals"
    swarms = {f"{n}": SwarmTotals(Totals(trained_s=float(n))) for n in range(TOTALS_SWARMS_MAX + 1)}
    save_totals(path, Book(swarms=swarms))
    assert set(load_totals(path).swarms) == set(swarms) - {"0"}
    del swarms["0"]
    save_totals(path, Book(swarms=swarms))
    assert set(load_totals(path).swarms) == set(swarms)


@pytest.mark.parametrize("damage", [b"\xff", b"{", b"[]", b" " * (TOTALS_FILE_BYTES_MAX + 1)])
def test_damaged_totals_are_set_aside_as_they_are(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "totals"
    path.write_bytes(damage)
    assert load_totals(path) == Book()
    assert [each.name for each in tmp_path.iterdir()] == ["totals.damaged"]
    assert (tmp_path / "totals.damaged").read_bytes() == damage


def test_totals_are_read_up_to_the_size_that_a_file_may_have(tmp_path: Path) -> None:
    path = tmp_path / "totals"
    save_totals(path, Book(ONE))
    path.write_bytes(path.read_bytes().ljust(TOTALS_FILE_BYTES_MAX))
    assert load_totals(path) == Book(ONE)


def test_damaged_totals_that_cannot_be_set_aside_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "totals"
    path.write_bytes(b"{")
    (tmp_path / "totals.damaged").mkdir()
    with pytest.raises(StorageError, match="cannot set aside"):
        load_totals(path)


def test_what_begins_anew_since_a_file_is_damaged_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("pause", "traffic", "totals"):
        (tmp_path / name).write_bytes(b"{")
    load_pause(tmp_path / "pause")
    TrafficLedger(tmp_path / "traffic")
    load_totals(tmp_path / "totals")
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in said] == [
        "a pause without an end, its file is damaged",
        "this month's traffic is counted from 0",
        f"totals are counted from 0, the damaged file is now {tmp_path / 'totals.damaged'}",
    ]
    assert f"{tmp_path / 'pause'}: expected JSON" in said[0]


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [TrainingData("/data"), TrainingData(model="/model"), TrainingData("/data", True, "/model")],
)
def test_data_that_was_named_is_remembered_until_none_is(
    data: TrainingData, tmp_path: Path
) -> None:
    paths = Paths(tmp_path / "home")
    assert load_training_data("demo", paths) == TrainingData("", False, "")
    save_training_data("demo", paths, TrainingData())
    assert not paths.home.exists()
    save_training_data("demo", paths, data)
    assert load_training_data("demo", paths) == data
    assert load_training_data("other", paths) == TrainingData()
    save_training_data("demo", paths, TrainingData())
    assert load_training_data("demo", paths) == TrainingData()
    assert list(paths.swarm("demo").directory.iterdir()) == []


def test_data_that_was_taken_back_does_not_come_back_after_a_power_failure(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    recorder = Recorder(home)
    with recorder.attached():
        save_training_data("demo", Paths(home), TrainingData("/data"))
        assert names_after_a_power_failure(recorder, tmp_path / "named") == {"data.json"}
        save_training_data("demo", Paths(home), TrainingData())
        assert names_after_a_power_failure(recorder, tmp_path / "not") == set()


def test_a_damaged_choice_of_data_says_how_to_choose_again(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "home")
    save_training_data("demo", paths, TrainingData("/data"))
    path = paths.swarm("demo").directory / "data.json"
    whole = path.read_bytes()
    path.write_bytes(whole.ljust(DATA_FILE_BYTES_MAX))
    assert load_training_data("demo", paths) == TrainingData("/data")
    for damaged in (whole[:-1], b'{"folder": 7}', whole.ljust(DATA_FILE_BYTES_MAX + 1)):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"data\.json is damaged .*--data FOLDER"):
            load_training_data("demo", paths)
    for call in (
        lambda: load_training_data("../demo", paths),
        lambda: save_training_data("../demo", paths, TrainingData("/data")),
    ):
        with pytest.raises(ConfigError, match="a swarm's name has"):
            call()
