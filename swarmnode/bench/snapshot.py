"""``swarmnode bench snapshot``: what saving snapshots costs a training worker.

The worker's own loop of steps and saves runs in a process with torch; every other window of
training goes without saves, for comparison.
"""

from __future__ import annotations

from typing import Any

from swarmnode.processes.worker_tools import run_offline


def run_snapshot_bench(n_params: int, rounds: int, period_s: float) -> dict[str, Any]:
    """Return the figures of SGD, which keeps nothing, and of AdamW, which keeps twice the model.

    Raises:
        SwarmNodeError: the process failed, or a snapshot could not be written.
    """
    arguments = ["--params", str(n_params), "--rounds", str(rounds), "--period", str(period_s)]
    return {
        "optimizers": [
            run_offline("bench_snapshot", "--optimizer", optimizer, *arguments)
            for optimizer in ("sgd", "adamw")
        ]
    }


def format_snapshot_bench(result: dict[str, Any]) -> str:
    """Return the result as text."""
    lines = []
    for one in result["optimizers"]:
        saving = f"with one every {one['period_s']:g} s"
        lines += [
            f"{one['optimizer']}: {one['params']:,} parameters, a snapshot of"
            f" {one['snapshot_bytes'] / 1e6:.0f} MB, written in {one['write_s']:.2f} s",
            f"  {'a step takes, in ms:':<28} {'median':>8} {'mean':>8} {'longest':>8}",
            f"  {'without snapshots':<28} {one['step_ms_median']:8.1f} {one['step_ms_mean']:8.1f}"
            f" {one['step_ms_max']:8.1f}",
            f"  {saving:<28} {one['step_ms_median_saving']:8.1f} {one['step_ms_mean_saving']:8.1f}"
            f" {one['step_ms_max_saving']:8.1f}",
            f"  {'ratio':<28} {one['ratio_median']:8.3f} {one['ratio_mean']:8.3f}",
            f"  ratio of the means at the regular period of {one['regular_period_s']:.0f} s:"
            f" {one['ratio_regular']:.4f}",
        ]
    return "\n".join(lines)
