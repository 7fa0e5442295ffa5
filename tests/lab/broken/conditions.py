"""All conditions by name, and how they are measured.

``python tests/lab/matrix.py --conditions all --json`` runs them. In each a light node (a keeper
without torch) is started on the host c0, with others on pub0 and c1 as the condition says.
``netcheck`` is asked on c0 until its first sentence names the condition, for TELL_S at most. What
stands in the result: ``world.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.lab.broken.lines import LINES
from tests.lab.broken.networks import NETWORKS
from tests.lab.broken.world import Condition, measure

CONDITIONS: dict[str, Condition] = LINES | NETWORKS


def measure_all(
    names: Sequence[str], tell: Callable[[str], None], *, delay_ms: float = 0.0, jobs: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield the result of each condition; ``jobs`` labs are there at a time."""

    def one(name: str) -> dict[str, Any]:
        return measure(name, CONDITIONS[name], delay_ms)

    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(one, names):
            sentence = found["told"] if found["is_told"] else f"NOT TOLD: {found['told']}"
            tell(f"{found['name']:20} {found['path']:12} {found['seconds']:5.1f} s  {sentence}")
            yield found
