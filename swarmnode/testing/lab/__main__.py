"""``python -m swarmnode.testing.lab RUN [--plot FILE]``: see runs.py, and attacks/runs.py.

``--attack`` says that RUN is a run of an attack; without RUN it lists the attacks.

One JSON object on standard output, as from ``swarmnode.worker.offline``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmnode.errors import ConfigError
from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.runtime import end_with_parent

if TYPE_CHECKING:
    from swarmnode.testing.lab.runs import Outcome, Run

_LINEAR = frozenset({"accuracy", "local_accuracy"})


def main() -> int:
    """Run one simulation; return the exit status."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="swarmnode.testing.lab")
    parser.add_argument("run", nargs="?", default="")
    parser.add_argument("--attack", action="store_true")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.attack:
            figures = _attack(arguments.run)
        else:
            figures = _execute(arguments.run, arguments.plot)
    except Exception as error:  # noqa: BLE001 -- of one question: its answer says what went wrong
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}))
        return EXIT_STATUS[kind]
    print(json.dumps(figures, allow_nan=False), flush=True)
    return 0


def _execute(run_text: str, picture: Path | None) -> dict[str, Any]:
    import torch  # here, so that its absence is one line like any other failure

    from swarmnode.testing.lab.runs import execute, parse_run

    torch.set_num_threads(1)  # its vectors are small: a second core would only wait
    run = parse_run(run_text)
    outcome = execute(run)
    if picture is not None:
        _plot(run, outcome, picture)
    return outcome.figures


def _attack(run_text: str) -> dict[str, Any]:
    import torch  # as above

    from swarmnode.testing.lab.attacks.runs import execute_attack, known_attacks, parse_attack

    torch.set_num_threads(1)
    return execute_attack(parse_attack(run_text)) if run_text else known_attacks()


def _plot(run: Run, outcome: Outcome, path: Path) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
