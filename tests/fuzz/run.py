"""``python -m tests.fuzz.run``: fuzzes decoders and cores from the kept corpus on.

What fails is printed, as short as it could be made, and lies in ``build/fuzz``; then the exit code
is 1. With ``--keep`` what reaches something new is added to ``tests/fuzz/corpus``.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz import instrument

if TYPE_CHECKING:
    from tests.fuzz.engine import Campaign, Found, Target

MODULES = ("decoders", "cores", "talks", "state_talks")
CORPUS = Path(__file__).parent / "corpus"
FOUND = Path("build") / "fuzz"
# A corpus that is kept stays small: what is longer is learned again.
_KEPT_BYTES_MAX = 512
_KEPT_MAX = 60


def load(name: str) -> list[bytes]:
    """Return the kept inputs of a target, a line each."""
    path = CORPUS / f"{name}.txt"
    text = path.read_text(encoding="ascii") if path.exists() else ""
    return [bytes.fromhex(line) for line in text.splitlines()]


def keep(name: str, corpus: list[bytes]) -> None:
    lines = [data.hex() for data in corpus if data and len(data) <= _KEPT_BYTES_MAX]
    text = "".join(f"{line}\n" for line in lines[:_KEPT_MAX])
    (CORPUS / f"{name}.txt").write_text(text, encoding="ascii")


def distilled(target: Target, corpus: list[bytes], seed: int) -> list[bytes]:
    """Return those that reach something, the short ones first."""
    from tests.fuzz.engine import Campaign

    return Campaign(target, sorted(corpus, key=len), seed).corpus


def fuzz(campaign: Campaign, *, seconds: float, executions: int) -> None:
    """Go on for so long, or for so many executions; both 0: as far as the corpus goes."""
    from tests.fuzz.engine import no_hang, rearm

    end = time.monotonic() + seconds
    with no_hang():
        while campaign.executions < executions or time.monotonic() < end:
            rearm()
            for _ in range(50):
                campaign.step()


def report(target: Target, found: Found) -> None:
    FOUND.mkdir(parents=True, exist_ok=True)
    place = found.error.replace(" ", "-").replace(":", "-")
    path = FOUND / f"{target.name}-{place}.hex"
    path.write_text(found.data.hex() + "\n", encoding="ascii")
    print(f"FAILED {target.name}: {found.error}; {len(found.data)} bytes in {path}")
    print(found.text)
    for line in target.story(found.data):
        print("   ", line)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--target", default="*", help="its name, with * for any")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each target")
    parser.add_argument("--executions", type=int, default=0, help="of each target at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="what was learned, in the corpus")
    options = parser.parse_args(arguments)
    instrument.install("swarmnode.wire", "swarmnode.protocol", "swarmnode.ids")
    from tests.fuzz.engine import Campaign

    targets = [
        target
        for module in (
            "tests.fuzz.decoders",
            "tests.fuzz.cores",
            "tests.fuzz.talks",
            "tests.fuzz.state_talks",
        )
        for target in importlib.import_module(module).TARGETS
        if fnmatch.fnmatch(target.name, options.target)
    ]
    if not targets:
        sys.stderr.write(f"expected the name of a target, got {options.target!r}\n")
        return 2
    total = failures = 0
    for target in targets:
        began = time.monotonic()
        campaign = Campaign(target, load(target.name), options.seed)
        fuzz(campaign, seconds=options.seconds, executions=options.executions)
        total += campaign.executions
        failures += len(campaign.found)
        print(
            f"{target.name:14} {campaign.executions:9} executions, {len(campaign.corpus):4} inputs,"
            f" {campaign.n_blocks:4} blocks, {len(campaign.reached):4} outcomes,"
            f" {len(campaign.found)} failures, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for found in campaign.found.values():
            report(target, found)
        if options.keep:
            keep(target.name, distilled(target, campaign.corpus, options.seed))
    print(f"{total} executions of {len(targets)} targets, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
