"""``python -m tests.sim.search.run``: whole daemons on the virtual clock, led by what cores did.

It begins with the kept corpus (``corpus.txt``, a scenario a line), and goes on for so many hours of
nodes' lives or seconds of this machine, whatever ends first. A promise that is broken is printed as
the story of the first scenario that breaks it, and after the search of one with less in it, with
its line for ``--replay``; then the exit code is 1. ``--blind`` draws all scenarios anew and knows
no corpus: the baseline.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

import msgspec

from tests.sim.search.canaries import CANARIES, planted
from tests.sim.search.play import Played, play
from tests.sim.search.scenario import Scenario, as_line, of_line
from tests.sim.search.search import Search, shrunk

CORPUS = Path(__file__).parent / "corpus.txt"
_KEPT_MAX = 24


def load() -> list[Scenario]:
    """Return the kept scenarios."""
    return [of_line(line) for line in CORPUS.read_text(encoding="ascii").splitlines()]


def keep(scenarios: list[Scenario]) -> None:
    text = "".join(f"{as_line(each)}\n" for each in scenarios[:_KEPT_MAX])
    CORPUS.write_text(text, encoding="ascii")


def tell(played: Played) -> None:
    """Print what came of one scenario as a story."""
    for line in played.story:
        print(f"    {line}")
    print(f"    --replay '{as_line(played.scenario)}'", flush=True)


def replay(line: str) -> int:
    """Tell one scenario; a line that is none is refused."""
    try:
        scenario = of_line(line)
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"expected a scenario as the search prints it: {error}\n")
        return 2
    played = play(scenario)
    tell(played)
    return 1 if played.violation else 0


def figures(search: Search, wall_s: float) -> str:
    hours = search.node_s / 3600
    cores = ", ".join(f"{core} {count}" for core, count in search.by_core().items())
    return (
        f"{search.n_played} scenarios, {hours:.2f} node-hours, {hours / wall_s * 60:.2f} a minute; "
        f"{len(search.counts)} transitions ({cores}); {len(search.kept)} kept, "
        f"{len(search.found)} violations"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.search.run", description=__doc__)
    parser.add_argument("--node-hours", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="learn nothing")
    parser.add_argument("--empty", action="store_true", help="begin without the corpus")
    parser.add_argument("--keep", action="store_true", help="what was learned, in the corpus")
    parser.add_argument("--plant", choices=CANARIES, help="put a bug in; end when it is seen")
    parser.add_argument("--tries", type=int, default=40, help="to make what fails smaller")
    parser.add_argument("--replay", metavar="LINE", help="tell one scenario, and nothing else")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return replay(options.replay)
    with planted(options.plant) if options.plant else contextlib.nullcontext():
        return go_on(options)


def go_on(options: argparse.Namespace) -> int:
    """Search as far as is asked for, and print what was found."""
    began = time.monotonic()
    search = Search(options.seed, is_blind=options.blind)
    if not options.blind and not options.empty:
        search.replay(load())
        print(f"corpus: {figures(search, time.monotonic() - began)}", flush=True)
    told: set[str] = set()
    while True:
        for symptom in search.found.keys() - told:
            told.add(symptom)
            print(f"BROKEN after {search.n_played} scenarios: {symptom}")
            tell(search.found[symptom])
        wall_s = time.monotonic() - began
        if options.plant and search.found:
            break
        if search.node_s >= options.node_hours * 3600 or wall_s >= options.seconds:
            break
        search.step()
    print(figures(search, time.monotonic() - began), flush=True)
    for symptom, played in search.found.items() if options.tries else ():
        print(f"SMALLER: {symptom}")
        tell(shrunk(played, options.tries))
    if options.keep:
        keep(search.smallest())
    return 1 if search.found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
