"""``python -m swarmnode.testing.learning JSON``: see the package's text."""

from __future__ import annotations

import json
import sys

import msgspec

from swarmnode.bench.learning.jobs import Evaluation, parse_jobs
from swarmnode.worker.failures import EXIT_STATUS, classify
from swarmnode.worker.runtime import end_with_parent


def main() -> int:
    """Run what the only argument says; return the exit status."""
    end_with_parent()
    try:
        _run(sys.argv[1])
    except Exception as error:  # noqa: BLE001 -- of one question: its answer says what went wrong
        kind, message = classify(error)
        print(json.dumps({"failed": kind, "message": message}))
        return EXIT_STATUS[kind]
    return 0


def _run(text: str) -> None:
    asked = parse_jobs(text)
    import torch  # here, so that its absence is one line like any other failure

    from swarmnode.testing.learning.runs import evaluate_snapshots, train

    torch.set_num_threads(1)  # its tensors are small, and the other cores have jobs of their own
    if isinstance(asked, Evaluation):
        print(msgspec.json.encode(evaluate_snapshots(asked)).decode(), flush=True)
        return
    for job in asked:
        print(msgspec.json.encode(train(job)).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
