"""What every test of the lab gets, and where there can be none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import namespaces
from tests.lab.natlab import NAT_TYPES, NatLab

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder: ``pytest -m lab`` runs it, the everyday run does not."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def able() -> None:
    """Skip where no lab can be built, and say why."""
    reason = namespaces.why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def every_type(able: None) -> Iterator[NatLab]:
    """One client of each type, c0 to c9, and two public hosts."""
    with NatLab(NAT_TYPES, public=2) as lab:
        yield lab
