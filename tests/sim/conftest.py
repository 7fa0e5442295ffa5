"""Every simulation: virtual time that leaps over idleness, and no bug in the logs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from swarmnode.daemon.transport.resumer import Resumer


@pytest.fixture
def expected_errors() -> set[str]:
    """Messages at the level of an error that a test asks for: it adds them."""
    return set()


@pytest.fixture(autouse=True)
def no_bug_is_logged(caplog: pytest.LogCaptureFixture, expected_errors: set[str]) -> Iterator[None]:
    """Faults are logged in a sentence; a traceback or an error is a bug that was survived."""
    caplog.set_level(logging.INFO, logger="swarmnode")
    yield
    errors = [
        record
        for record in caplog.get_records("call")
        if record.exc_info or record.levelno >= logging.ERROR
    ]
    assert expected_errors <= {record.getMessage() for record in errors}
    bugs = [
        f"{record.name}: {record.getMessage()} {getattr(record, 'fields', '')}"
        for record in errors
        if record.exc_info or record.getMessage() not in expected_errors
    ]
    assert not bugs


@pytest.fixture
def channels_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends with its channel, as if each break were a long one."""
    monkeypatch.setattr(Resumer, "watch", lambda *_: None)


@pytest.fixture(autouse=True)
def disks_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, machines lose no power: what was written stays."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
