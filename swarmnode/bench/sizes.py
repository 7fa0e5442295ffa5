"""``swarmnode bench sizes``: one exchange of a pair at several sizes of the model.

Two measurements for each size, one after the other: an exchange between two daemons, and how long
the steps of a worker wait for its view and merge. Both take less memory than two nodes that train:
see ``bench/exchange.py`` and ``worker/tools/bench.py``.
"""

from __future__ import annotations

from typing import Any

from swarmnode.bench.exchange import run_exchange_bench
from swarmnode.processes.worker_tools import run_offline

_SHOWN = ("params", "wall_s_p50", "cpu_s", "bytes_sent", "memory_bytes")
_HEADER = (
    "| parameters | an exchange takes | CPU, both nodes | sent by each | steps that wait | each |"
    " at most | memory, both nodes |\n|---|---|---|---|---|---|---|---|"
)


def run_sizes_bench(params: tuple[int, ...], codec: str, repeats: int) -> dict[str, Any]:
    """Return a row for each size, as ``bench exchange`` and the worker say.

    Raises:
        SwarmNodeError: a process failed.
    """
    return {"codec": codec, "sizes": [_row(n_params, codec, repeats) for n_params in params]}


def format_sizes_bench(result: dict[str, Any]) -> str:
    """Return the rows as a table in Markdown."""
    return "\n".join([_HEADER, *map(_line, result["sizes"])])


def _row(n_params: int, codec: str, repeats: int) -> dict[str, Any]:
    exchange = run_exchange_bench(n_params, codec, repeats)
    pauses = run_offline("bench_pauses", "--params", str(n_params))
    return {name: exchange[name] for name in _SHOWN} | pauses


def _line(row: dict[str, Any]) -> str:
    cells = (
        f"{row['params']:,}",
        f"{row['wall_s_p50'] * 1e3:.0f} ms",
        f"{row['cpu_s'] * 1e3:.0f} ms",
        f"{row['bytes_sent'] / 1e6:.1f} MB",
        f"{row['steps_held_up']:.0f}",
        f"{row['pause_ms_p50']:.1f} ms",
        f"{row['pause_ms_max']:.1f} ms",
        f"{row['memory_bytes'] / 1e9:.2f} GB",
    )
    return f"| {' | '.join(cells)} |"
