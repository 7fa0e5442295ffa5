"""What daemons exchange of a model of 4 M parameters over an uplink of 1 Mbit/s.

    python tests/lab/thin/four_million.py [--rate-mbit 1] [--thin 1] [--seconds 300]
        [--delay-ms 10] [--fast 1] [--strategy pair-average]

Daemons with torch workers at public addresses, and others behind lines of a rate that they are not
told. With ``--strategy streaming`` all of them make means together; where the fast ones are most,
they have to agree for whom they wait, and the thin one is in some of the means only.

``committed`` has the exchanges of each node so far, ``first_commit_s`` is counted from when all of
them train and see each other. Needs root, see ``natlab.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from swarmnode.protocol.swarm import Hint
from swarmnode.tensor.layout import Layout
from tests.kits.daemon_kit import make_home, new_swarm, wait_until
from tests.lab.lab_daemon import LabDaemon
from tests.lab.natlab import NatLab
from tests.lab.shaper import Shape

NUMEL = 4_000_000
_PORT = 7337
_READY_S = 240.0
_STRATEGIES: dict[str, dict[str, Any]] = {
    "pair-average": {"every": 8},
    "streaming": {"every": 64, "fragments": 1, "meet": "group"},
}
# So small that no step changes a weight: what is measured is the line, not what is learned.
_LR = 1e-30


def measure(
    folder: Path,
    rate_mbit: float,
    n_thin: int,
    seconds: float,
    delay_ms: float = 10.0,
    n_fast: int = 1,
    strategy: str = "pair-average",
) -> dict[str, Any]:
    """Let them train for so long, and return what has been exchanged."""
    swarm = new_swarm()
    signed = swarm.signed(
        numel=NUMEL,
        task_config={"dim": NUMEL, "batch": 1, "lr": _LR},
        strategy=strategy,
        strategy_settings=_STRATEGIES[strategy],
        layout_hash=Layout.of([("weight", (1, NUMEL), "float32")]).layout_hash,
    )
    fast = [f"pub{number}" for number in range(n_fast)]
    hosts = (*fast, *(f"c{number}" for number in range(n_thin)))
    ids = {host: make_home(folder / host, swarm, signed).peer_id for host in hosts}
    shape = Shape(delay_ms=delay_ms, rate_mbit=rate_mbit)
    with NatLab(["none"] * n_thin, public=n_fast, shape=shape) as lab:
        link = str(swarm.link(Hint(ids["pub0"], f"{lab.ip('pub0')}:{_PORT}")))
        nodes: list[LabDaemon] = []
        try:
            nodes += [LabDaemon(lab, host, folder, link, port=_PORT) for host in hosts]
            for node in nodes:
                node.wait(
                    lambda status: status["state"] == "training" and status["peers_connected"],
                    "training with another one",
                    _READY_S,
                )
            return _watch(nodes, seconds)
        finally:
            for node in nodes:
                node.kill()


def _watch(nodes: list[LabDaemon], seconds: float) -> dict[str, Any]:
    began_at = time.monotonic()
    firsts: list[float] = []

    def look() -> bool:
        passed_s = time.monotonic() - began_at
        if not firsts and min(_committed(nodes)) > 0:
            firsts.append(round(passed_s, 1))
        return passed_s >= seconds

    wait_until(look, "the end", seconds + 60)
    statuses = [node.wait(bool, "its status") for node in nodes]
    return {
        "nodes": [node.home.name for node in nodes],
        "committed": [status["exchanges_committed"] for status in statuses],
        "half_applied": sum(status["exchanges_half_applied"] for status in statuses),
        "first_commit_s": firsts[0] if firsts else seconds,
        "line_bytes_per_s": [status["line_bytes_per_s"] for status in statuses],
        "sent_bytes": [status["line_sent_bytes"] for status in statuses],
        "told": [status["follows_line"] for status in statuses],
    }


def _committed(nodes: list[LabDaemon]) -> list[int]:
    return [node.status().get("exchanges_committed", 0) for node in nodes]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rate-mbit", type=float, default=1)
    parser.add_argument("--thin", type=int, default=1, help="daemons behind such lines")
    parser.add_argument("--fast", type=int, default=1, help="daemons at public addresses")
    parser.add_argument("--strategy", choices=[*_STRATEGIES], default="pair-average")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--delay-ms", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swarmnode-thin-") as folder:
        found = measure(
            Path(folder),
            options.rate_mbit,
            options.thin,
            options.seconds,
            options.delay_ms,
            options.fast,
            options.strategy,
        )
        print(json.dumps(found))


if __name__ == "__main__":
    main()
