from __future__ import annotations

import ast
import io
import json
import logging
import re
from pathlib import Path

import pytest

import swarmnode
from swarmnode.log_format import LOG_TRACEBACK_CHARACTERS_MAX, LOG_VALUE_CHARACTERS_MAX
from swarmnode.telemetry.logs import LogFormat, configure_logging, get_logger

PACKAGE = Path(swarmnode.__file__).parent


def configured(log_format: LogFormat) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(log_format, "info", stream)
    return stream


def test_text_line_for_people() -> None:
    stream = configured("text")
    get_logger("swarmnode.daemon.app").info("peer joined", peer="sn1abc", rtt_s=0.1 + 0.2, n=3)
    line = stream.getvalue()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    ", line)
    assert line.endswith("daemon.app: peer joined peer=sn1abc rtt_s=0.3 n=3\n")


def test_json_line_for_machines() -> None:
    stream = configured("json")
    get_logger("swarmnode.net").warning(
        "peer refused", peer="sn1abc", n=3, ok=True, none=None, loss=float("nan"), raw=b"\x01\xff"
    )
    event = json.loads(stream.getvalue(), parse_constant=pytest.fail)
    assert re.fullmatch(r"[-0-9]{10}T[:0-9]{8}\.\d{3}Z", event.pop("time"))
    assert event == {
        "level": "warning",
        "logger": "swarmnode.net",
        "event": "peer refused",
        "peer": "sn1abc",
        "n": 3,
        "ok": True,
        "none": None,
        "loss": "nan",
        "raw": "01ff",
    }


def test_lower_layers_log_fields_without_this_module() -> None:
    stream = configured("text")
    logging.getLogger("swarmnode.net.web.http").error("failed", extra={"fields": {"path": "/x"}})
    assert stream.getvalue().endswith("net.web.http: failed path=/x\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_text_from_a_peer_cannot_forge_a_line(log_format: LogFormat) -> None:
    stream = configured(log_format)
    hostile = "x\n2026-01-01T00:00:00Z error fake\r\x1b[2J\u2028\x9b"
    get_logger("swarmnode.x").info("said", text=hostile)
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert not re.search(r"[\r\x1b\u2028\x9b]", line)
    quoted = line.partition("text=")[2] if log_format == "text" else line
    said = json.loads(quoted)
    assert (said if log_format == "text" else said["text"]) == hostile


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_one_value_cannot_fill_the_log(log_format: LogFormat) -> None:
    stream = configured(log_format)
    get_logger("swarmnode.x").info("said", text="a" * 10**6)
    assert len(stream.getvalue()) < LOG_VALUE_CHARACTERS_MAX + 200


def test_fields_cannot_replace_what_the_log_says() -> None:
    stream = configured("json")
    get_logger("swarmnode.x").error("real", level="info", event="fake", time="never", name="n")
    event = json.loads(stream.getvalue())
    assert (event["level"], event["event"], event["name"]) == ("error", "real", "n")
    assert event["time"] != "never"


def test_traceback() -> None:
    for log_format in ("text", "json"):
        stream = configured("text" if log_format == "text" else "json")
        try:
            raise RuntimeError("a bug")
        except RuntimeError:
            get_logger("swarmnode.x").exception("failed", where="here")
        output = stream.getvalue()
        assert "RuntimeError: a bug" in output
        if log_format == "json":
            assert "RuntimeError: a bug" in json.loads(output)["traceback"]


def test_level_and_last_configuration_count() -> None:
    first = configured("text")
    second = configured("text")
    get_logger("swarmnode.x").debug("hidden")
    get_logger("swarmnode.x").info("shown once")
    assert first.getvalue() == ""
    assert second.getvalue().count("shown once") == 1
    configure_logging("text", "debug", second)
    get_logger("swarmnode.x").debug("now shown")
    assert "now shown" in second.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_an_exception_says_cannot_forge_a_line(log_format: LogFormat) -> None:
    stream = configured(log_format)
    try:
        raise RuntimeError(
            "x\n2026-01-01T00:00:00Z error   fake: event\r\x1b[2J\u2028" + "a" * 10**6
        )
    except RuntimeError:
        get_logger("swarmnode.x").exception("failed")
    output = stream.getvalue()
    assert len(output) < 2 * LOG_TRACEBACK_CHARACTERS_MAX
    assert not re.search(r"[\r\x1b\u2028]", output)
    if log_format == "json":
        assert output.count("\n") == 1
    else:
        assert all(line.startswith("    ") for line in output.splitlines()[1:])


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_other_libraries_go_through_the_same_handler(
    log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = configured(log_format)
    other = logging.getLogger("another.package")  # whose level is not set here
    other.warning("peer said %s", "x\n2026-01-01T00:00:00Z error\x1b[2J")
    other.info("not asked for")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "\x1b" not in line
    if log_format == "json":
        event = json.loads(line)
        assert (event["logger"], event["event"]) == ("another.package", "peer said %s")
        assert event["message"].startswith("peer said x 2026")
    else:
        assert "warning another.package: peer said x 2026" in line


def test_every_event_has_one_key() -> None:
    """An event is a fixed sentence: what differs from one time to the next is a field."""
    levels = {"debug", "info", "warning", "error", "exception"}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in levels
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in {"_log", "_logger"}
            ):
                is_fixed = bool(node.args) and isinstance(node.args[0], ast.Constant)
                has_names = all(keyword.arg is not None for keyword in node.keywords)
                if not (is_fixed and has_names):
                    wrong.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert not wrong
