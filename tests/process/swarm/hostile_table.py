"""Every hostile node of ``tests/kits/hostile`` among five honest ones, beside a run in peace.

::

    python -m tests.process.swarm.hostile_table [--steps N] [--only NAME ...] [--meet NAME ...]

prints a row for each way to meet and each attack: what the honest come to as a share of the same
in peace, which is run before and after every three attacks, so that whatever else the machine does
is in both. It exits with 1 where one of them is beyond what a node may lose.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.process.swarm.hostile_party import Outcome, Setting, run

PAIRS = Setting("pair-average", (("every", 16),), steps=3000)
# As `create` has them for this task, with a round that is long enough for so small a model: its
# step is a tenth of one of the task's own.
GROUPS = Setting("streaming", (("every", 48),), steps=3000)
GATHERINGS = Setting("sparse", (("every", 250),), steps=2500)
LIES = ("sign-flip", "scaled", "huge", "stale", "shuffled-text")
STALLS = ("unanswered", "accepted", "offered", "trickled", "ready", "pending", "unready")
CUTS = ("round-cuts", "round-cuts-late", "round-cuts-one", "round-ousts")
OF_ALL = ("boasts", "addresses")
CASES: dict[Setting, tuple[str, ...]] = {
    PAIRS: (*LIES, *(f"pair-{stall}" for stall in STALLS), *OF_ALL),
    GROUPS: (
        *LIES,
        *(f"round-{stall}" for stall in ("enlist", "flush", "share", "sum", "prepared")),
        *CUTS,
        *OF_ALL,
    ),
    GATHERINGS: ("round-flush", "round-share", "withheld", "huge", "round-cuts", "round-cuts-one"),
}
# Only where they are asked for by name: among real nodes these take more than is allowed.
BETWEEN_TWO = {GROUPS: ("round-names-share", "round-frames", "round-slights")}
COMMITS_SHARE = 0.8
LOSS_RATIO = 1.03
MEMORY_RATIO = 1.25
CPU_RATIO = 2.0
_ATTACKS_BETWEEN = 3  # two runs in peace
_COLUMNS = "{:12} {:16} {:>8} {:>7} {:>7} {:>7} {:>8}  {}"


@dataclass(frozen=True)
class Beside:
    """What the honest come to beside an attack, each as a share of the same in peace."""

    commits: float
    loss: float
    memory: float
    cpu: float
    refused: int
    broken: int

    @classmethod
    def of(cls, attacked: Outcome, peace: Sequence[Outcome]) -> Beside:
        """Compare a run with one or several in peace."""

        def mean(values: Iterator[float]) -> float:
            return sum(values) / len(peace)

        return cls(
            commits=attacked.commits_per_step / mean(each.commits_per_step for each in peace),
            loss=attacked.loss / mean(each.loss for each in peace),
            memory=attacked.memory_bytes / mean(each.memory_bytes for each in peace),
            cpu=attacked.cpu_per_step / mean(each.cpu_per_step for each in peace),
            refused=attacked.refused,
            broken=attacked.restarts + attacked.half_applied,
        )

    def short(self) -> list[str]:
        """Return in what it is beyond what a node may lose."""
        held = {
            "commits": self.commits >= COMMITS_SHARE,
            "loss": self.loss <= LOSS_RATIO,
            "memory": self.memory <= MEMORY_RATIO,
            "cpu": self.cpu <= CPU_RATIO,
            "broken": self.broken == 0,
        }
        return [name for name, is_held in held.items() if not is_held]


def main() -> int:
    """Run all that is asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=0, help="of each node; 0: of each setting")
    parser.add_argument("--only", nargs="+", default=[], metavar="ATTACK")
    parser.add_argument(
        "--meet", nargs="+", default=[], choices=[each.strategy for each in CASES], metavar="NAME"
    )
    asked = parser.parse_args()
    head = ("meet", "attack", "commits", "loss", "memory", "cpu", "refused", "")
    print(_COLUMNS.format(*head), flush=True)
    n_short = 0
    for setting, attacks in CASES.items():
        if asked.meet and setting.strategy not in asked.meet:
            continue
        named = (*attacks, *BETWEEN_TWO.get(setting, ()))
        chosen = [each for each in named if each in asked.only] if asked.only else attacks
        n_short += _rows(replace(setting, steps=asked.steps or setting.steps), chosen)
    return 1 if n_short else 0


def _rows(setting: Setting, attacks: Sequence[str]) -> int:
    """Print a row for each attack, and return how many are short."""
    before, n_short = _in_folder(setting, "none") if attacks else None, 0
    for first in range(0, len(attacks), _ATTACKS_BETWEEN):
        found = {
            attack: _in_folder(setting, attack)
            for attack in attacks[first : first + _ATTACKS_BETWEEN]
        }
        after = _in_folder(setting, "none")
        assert before is not None
        for attack, outcome in found.items():
            beside = Beside.of(outcome, (before, after))
            short = beside.short()
            n_short += bool(short)
            ratios = (beside.commits, beside.loss, beside.memory, beside.cpu)
            figures = [f"{ratio:.3f}" for ratio in ratios]
            words = f"SHORT: {', '.join(short)}" if short else "held"
            row = (setting.strategy, attack, *figures, beside.refused, words)
            print(_COLUMNS.format(*row), flush=True)
        before = after
    return n_short


def _in_folder(setting: Setting, attack: str) -> Outcome:
    with (
        tempfile.TemporaryDirectory(
            prefix="swarmnode-hostile-", ignore_cleanup_errors=True
        ) as folder,
        contextlib.redirect_stdout(sys.stderr),  # what the nodes say
    ):
        return run(Path(folder), attack, setting)


if __name__ == "__main__":
    sys.exit(main())
