"""Every simulation: virtual time that leaps over idleness, and no bug in the logs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_bug_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Faults are logged in a sentence; a traceback or an error is a bug that was survived."""
    caplog.set_level(logging.INFO, logger="swarmnode")
    yield
    bugs = [
        f"{record.name}: {record.getMessage()} {getattr(record, 'fields', '')}"
        for record in caplog.records
        if record.exc_info or record.levelno >= logging.ERROR
    ]
    assert not bugs


@pytest.fixture(autouse=True)
def disks_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, machines lose no power: what was written stays."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
