"""What becomes of a torch process that the command line asks: each way in which it can end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from swarmnode.daemon.discovery.rendezvous import parse_version
from swarmnode.errors import ConfigError, SpecMismatch, SwarmNodeError, WorkerError
from swarmnode.processes import worker_tools
from swarmnode.processes.worker_tools import run_offline, stream_offline


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Return what makes the process run some Python instead of the worker."""

    def use(code: str) -> None:
        monkeypatch.setattr(
            worker_tools, "worker_command", lambda _module, *a: [sys.executable, "-c", code, *a]
        )

    return use


def test_the_last_line_of_json_is_the_answer(script) -> None:  # type: ignore[no-untyped-def]
    script("print('a task greets you'); print('{\"n\": 1}'); print('[2]'); print('{\"n\": 3}')")
    assert list(stream_offline("describe")) == [{"n": 1}, {"n": 3}]
    assert run_offline("describe") == {"n": 3}


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("raise SystemExit(0)", WorkerError, "ended without an answer"),
        ("1 / 0", WorkerError, "ended with status 1: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", WorkerError, "ended with status 3: it said nothing"),
        ("import os; os.kill(os.getpid(), 9)", WorkerError, "was killed: out of memory?"),
        ("import os; os.kill(os.getpid(), 15)", WorkerError, "ended without an answer"),
    ],
)
def test_an_end_without_an_answer_says_why(script, code, error, message) -> None:  # type: ignore[no-untyped-def]
    script(code)
    with pytest.raises(error, match=message.replace("?", r"\?")):
        run_offline("describe")


@pytest.mark.parametrize(
    ("kind", "error", "exit_code"),
    [
        ("torch-missing", ConfigError, 2),
        ("task-unknown", ConfigError, 2),
        ("layout", SpecMismatch, 4),
        ("out-of-memory", WorkerError, 1),
        ("crash", WorkerError, 1),
    ],
)
def test_a_failure_keeps_its_line_and_gets_its_exit_code(  # type: ignore[no-untyped-def]
    script, kind: str, error: type[SwarmNodeError], exit_code: int
) -> None:
    failed = json.dumps({"failed": kind, "message": "because"})
    script(f"print({failed!r}); raise SystemExit(9)")
    with pytest.raises(error, match=r"^because$") as raised:
        run_offline("describe")
    assert raised.value.exit_code == exit_code


def test_arguments_that_no_process_can_have_are_one_line(script) -> None:  # type: ignore[no-untyped-def]
    script("pass")
    with pytest.raises(WorkerError, match="cannot start a process that has torch: Argument list"):
        run_offline("generate", "x" * 4_000_000)


def test_closing_the_stream_ends_the_process(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script("import os, time; print('{\"pid\": %d}' % os.getpid(), flush=True); time.sleep(60)")
    stream = stream_offline("alone")
    pid = next(stream)["pid"]
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.1.0", (0, 1)),
        ("1.2.3", (1, 2, 3)),
        ("1.10", (1, 10)),
        ("2.0rc1", (2,)),
        ("1.2.dev3+local", (1, 2)),
        ("", ()),
        ("newest", ()),
    ],
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers
