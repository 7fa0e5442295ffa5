"""``python -m swarmnode.testing.fidelity [NAME...] [--quick]``: see the package's text.

One finding a line on standard output, as from ``swarmnode.worker.offline``.
"""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.runtime import end_with_parent


def main() -> int:
    """Run experiments, all of them unless some are named; return the exit status."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="swarmnode.testing.fidelity")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    try:
        _run(arguments.names, is_quick=arguments.quick)
    except Exception as error:  # noqa: BLE001 -- of one question: its answer says what went wrong
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}))
        return EXIT_STATUS[kind]
    return 0


def _run(names: list[str], *, is_quick: bool) -> None:
    import torch  # here, so that its absence is one line like any other failure

    from swarmnode.testing.fidelity.experiments import EXPERIMENTS, run_experiment

    torch.set_num_threads(1)  # its vectors are small: a second core would only wait
    for name in names or EXPERIMENTS:
        found = run_experiment(name, is_quick=is_quick)
        print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
