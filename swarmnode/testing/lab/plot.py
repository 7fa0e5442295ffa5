"""What happened in a run, as a picture."""

from __future__ import annotations

from pathlib import Path

from swarmnode.errors import ConfigError
from swarmnode.testing.lab.runs import Outcome, Run

_LINEAR = frozenset({"accuracy", "local_accuracy"})


def plot(run: Run, outcome: Outcome, path: Path) -> None:
    """Write one panel for each figure over time; the suffix of ``path`` says the format.

    Raises:
        ConfigError: matplotlib is missing or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib: pip install '.[plot]' in the clone of swarmnode"
        ) from error
    names = [name for name in (outcome.history or [{}])[0] if name != "t"]
    figure = Figure(figsize=(4.0 * max(len(names), 1), 3.2), layout="constrained")
    for number, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), number + 1)
        axes.plot([p["t"] for p in outcome.history], [p[name] for p in outcome.history])
        axes.set_yscale("linear" if name in _LINEAR else "log")
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("local steps")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(f"{run.strategy}, {run.task}, {run.topology}, {run.nodes} nodes")
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--plot {path}: {error}") from error
