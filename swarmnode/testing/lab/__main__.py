"""``python -m swarmnode.testing.lab RUN [--plot FILE]``: see runs.py.

One JSON object on standard output, as from ``swarmnode.worker.offline``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.runtime import end_with_parent


def main() -> int:
    """Run one simulation; return the exit status."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="swarmnode.testing.lab")
    parser.add_argument("run")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    try:
        figures = _execute(arguments.run, arguments.plot)
    # The whole process is one question: the caller gets one line, whatever went wrong.
    except Exception as error:  # noqa: BLE001
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}))
        return EXIT_STATUS[kind]
    print(json.dumps(figures, allow_nan=False), flush=True)
    return 0


def _execute(run_text: str, picture: Path | None) -> dict[str, Any]:
    import torch  # here, so that its absence is one line like any other failure

    from swarmnode.testing.lab.plot import plot
    from swarmnode.testing.lab.runs import execute, parse_run

    torch.set_num_threads(1)  # its vectors are small: a second core would only wait
    run = parse_run(run_text)
    outcome = execute(run)
    if picture is not None:
        plot(run, outcome, picture)
    return outcome.figures


if __name__ == "__main__":
    sys.exit(main())
