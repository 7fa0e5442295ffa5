"""One log file of bounded size, every line of it in the format that was asked for."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.exceptions import Exit

from swarmnode.cli.swarm.join import errors_told, teller
from swarmnode.config import NodeConfig, load_config
from swarmnode.daemon.worker.process import WorkerLog
from swarmnode.errors import ConfigError, Refused
from swarmnode.telemetry.logs import (
    LogFile,
    configure_logging,
    get_logger,
    log_everything,
    relay_line,
)
from swarmnode.worker.main import Printed

PRIVATE = 0o600


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(logging.getLogger("py.warnings"), "handlers", [])
    yield
    logging.captureWarnings(capture=False)
    configure_logging("text", "info")


def config_of(tmp_path: Path, **settings: Any) -> NodeConfig:
    return load_config({"home": str(tmp_path), **settings}, {})


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- the file -------------------------------------------------------------------------------


def test_it_and_the_older_one_are_bounded_and_lose_nothing_in_between(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    log = LogFile(path, bytes_max=1000)
    lines = [f"{number:05} {'x' * 90}\n" for number in range(100)]
    for line in lines:
        log.write(line)
    log.close()
    older = tmp_path / "node.log.1"
    assert sorted(tmp_path.iterdir()) == [path, older]
    assert max(path.stat().st_size, older.stat().st_size) <= 1000
    kept = older.read_text() + path.read_text()
    assert kept == "".join(lines)[-len(kept) :]
    assert path.stat().st_mode & 0o777 == PRIVATE


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        log = LogFile(tmp_path / "node.log")
        log.write(text)
        log.close()
    assert (tmp_path / "node.log").read_text() == "one\ntwo\n"


def test_a_full_disk_costs_lines_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile(tmp_path / "node.log")
    with monkeypatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "write", full)
        log.write("lost\n")
        log.write("lost\n")
    log.write("kept\n")
    log.write("kept\n")
    log.close()
    said = (tmp_path / "node.log").read_text().splitlines()
    assert said[0].startswith("2 events before this one")
    assert said[1:] == ["kept", "kept"]


def test_a_file_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log_file: cannot write to .*/node\.log: No such"):
        configure_logging("text", "info", log_file=str(tmp_path / "no" / "node.log"))
    with pytest.raises(ConfigError, match="expected /PATH"):
        config_of(tmp_path, log_file="relative.log")


# --- every line -----------------------------------------------------------------------------


def test_in_json_every_line_is_an_event(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.log"
    config = config_of(tmp_path, log_format="json", log_file=str(path))
    configure_logging(config.log_format, config.log_level, log_file=config.log_file)
    log_everything()
    teller(config, as_json=False)("swarm tiny: 5 parameters")
    get_logger("swarmnode.daemon").info("peer joined", peer="sn1abc")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("this is\nold", stacklevel=1)
    relay_line("json", "Epoch 1/3 \x1b[2J done")
    relay_line("json", '{"time": "t", "level": "info", "event": "saved", "logger": "w"}')
    try:
        raise ValueError("a bug")
    except ValueError:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    with pytest.raises(Exit) as ended, errors_told(config, as_json=False):
        raise Refused("another node runs here")
    assert ended.value.exit_code == Refused.exit_code
    found = events(path)
    said = [event["event"] for event in found]
    assert said[:2] == ["swarm tiny: 5 parameters", "peer joined"]
    assert "this is old" in said[2]
    assert (said[3], found[3]["line"]) == ("printed", "Epoch 1/3 \x1b[2J done")
    assert said[4] == "saved"
    assert found[5]["traceback"].endswith("ValueError: a bug")
    assert (said[6], found[6]["exit_code"]) == ("another node runs here", 4)
    out, err = capfd.readouterr()
    assert out == ""
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["another node runs here"]


def test_without_a_file_what_is_told_has_the_format_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teller(config_of(tmp_path, log_format="json"), as_json=False)("listens on x")
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["level"]) == ("listens on x", "info")
    teller(config_of(tmp_path), as_json=False)("listens on x")
    assert capsys.readouterr().out == "swarmnode: listens on x\n"
    teller(config_of(tmp_path, log_format="json"), as_json=True)("listens on x")
    assert json.loads(capsys.readouterr().out) == {"event": "listens on x"}


def test_the_workers_lines_are_relayed_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_bytes(b"of an earlier worker\n")
    relayed: list[str] = []
    log = WorkerLog(path, relayed.append)
    os.write(log.fd, b"one\n\ntwo\nth")
    log.look()
    assert relayed == ["one", "two"]
    os.write(log.fd, b"ree\n" + b"y" * 100 + b"\n")
    log.look()
    log.look()
    assert relayed[2:] == ["three", "y" * 100]
    os.write(log.fd, b'{"event": "worker failed", "traceback": "Trace\\nValueError: new"}\n')
    assert log.last_line() == "ValueError: new"
    log.close()


def test_what_a_task_prints_becomes_events(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    printed = Printed()
    print("loss 0.5\nloss", end=" ", file=printed)
    print("0.4", file=printed)
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert fields == [{"line": "loss 0.5"}, {"line": "loss 0.4"}]
    assert isinstance(printed, io.TextIOBase)
