"""Every unit test: what it does to the logs of this process ends with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Put back handlers and level: verbs of the command line set them for their process."""
    logger = logging.getLogger("swarmnode")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
