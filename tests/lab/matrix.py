"""Every kind of NAT against every other, with real daemons: how they reach each other.

    python tests/lab/matrix.py [--pairs symmetric:cgnat,none:firewall] [--json]
    python tests/lab/matrix.py --conditions all [--json]      broken lines: ``conditions.py``

For each pair two daemons with torch workers, each behind a NAT of its own, and one volunteer at a
public address that relays and does not train. They know the volunteer's address and nothing else,
have to find each other, and exchange a model of 1 M parameters. Needs root, see ``natlab.py``.

    connect_s  from the moment the second one listens to the first session between the two
    seconds    from the moment both could exchange (joined, worker ready, session open) to the
               first exchange that both have committed
    path       of that session when it has not changed for a while, as both sides see it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from swarmnode.protocol.swarm import Hint
from swarmnode.tensor.layout import Layout
from tests.kits.daemon_kit import make_home, new_swarm, wait_until
from tests.lab.lab_daemon import LabDaemon
from tests.lab.natlab import NAT_TYPES, NatLab

NUMEL = 1_000_000
RELAY_PORT, PORT = 443, 7337
_DEADLINE_S = 60.0
# What can be punched has been by then: a try is at most this long after the session began.
_SETTLE_S = 25.0
# Kinds whose TCP mapping is another one for each destination, and those without any UDP.
_SYMMETRIC = ("symmetric", "cgnat-sym")
_TCP_ONLY = ("udp-blocked", "tcp-443")
_UDP_OPEN = ("full-cone", "addr-restricted")


@dataclass(frozen=True)
class Result:
    """One pair. ``expected`` is what the measurements of single punches say."""

    a: str
    b: str
    path: str
    exchanged: bool
    seconds: float
    connect_s: float
    expected: str


def expected_path(a: str, b: str) -> str:
    """Return the best path that physics allows between two kinds."""
    kinds = {a, b}
    if "none" in kinds:
        # Only ports 80 and 443 get out of there, and no node listens on them but relays.
        return "relay" if "tcp-443" in kinds else "direct"
    if "tcp-443" in kinds:
        return "relay"
    if not kinds & set(_SYMMETRIC):
        return "punched-tcp"
    if kinds & set(_UDP_OPEN) and not kinds & set(_TCP_ONLY):
        return "rtc"
    return "relay"


def all_pairs() -> list[tuple[str, str]]:
    """Return the 55 pairs."""
    return list(combinations_with_replacement(NAT_TYPES, 2))


def measure(
    a: str, b: str, folder: Path, tell: Callable[[str], None], *, expected: str = ""
) -> Result:
    """Build a lab for one pair, let its daemons meet, and return what came of it.

    ``expected`` is the best path, if it is not the one of :func:`expected_path`.
    """
    expected = expected or expected_path(a, b)
    swarm = new_swarm()
    signed = swarm.signed(
        numel=NUMEL,
        task_config={"dim": NUMEL, "batch": 1, "lr": 1e-8},
        layout_hash=Layout.of([("weight", (1, NUMEL), "float32")]).layout_hash,
    )
    ids = {name: make_home(folder / name, swarm, signed).peer_id for name in ("pub0", "c0", "c1")}
    with NatLab([a, b], public=1) as lab:
        link = str(swarm.link(Hint(ids["pub0"], f"{lab.ip('pub0')}:{RELAY_PORT}")))
        relay = LabDaemon(lab, "pub0", folder, link, "--role", "relay", port=7337)
        relay.wait(lambda s: s["state"] == "serving", "the relay")
        first = LabDaemon(lab, "c0", folder, link, port=PORT)
        second = LabDaemon(lab, "c1", folder, link, port=PORT)
        nodes = ((first, str(ids["c1"])), (second, str(ids["c0"])))
        try:
            return _watch(a, b, nodes, expected)
        except AssertionError as error:
            tell(f"{a} {b}: {error}")
            return Result(a, b, "none", False, _DEADLINE_S, _DEADLINE_S, expected)
        finally:
            for daemon in (first, second, relay):
                daemon.kill()


def _watch(a: str, b: str, nodes: tuple[tuple[LabDaemon, str], ...], expected: str) -> Result:
    (first, other), (second, one) = nodes
    second.wait(bool, "the second daemon")
    listened_at = time.monotonic()
    wait_until(lambda: first.path_to(other) and second.path_to(one), "a session", _DEADLINE_S)
    connect_s = time.monotonic() - listened_at
    for daemon, _ in nodes:
        daemon.wait(lambda s: s["state"] == "training", "training")
    ready_at = time.monotonic()
    wait_until(
        lambda: all(d.status().get("exchanges_committed") for d, _ in nodes),
        "an exchange",
        _DEADLINE_S,
    )
    seconds = time.monotonic() - ready_at
    with contextlib.suppress(AssertionError):  # the table says what it is instead
        wait_until(lambda: first.path_to(other) == expected, "the best path", _SETTLE_S)
    path = first.path_to(other)
    is_whole = all(d.wait(bool, "its status")["exchanges_half_applied"] == 0 for d, _ in nodes)
    return Result(a, b, path, is_whole, round(seconds, 2), round(connect_s, 2), expected)


def measure_all(pairs: list[tuple[str, str]], tell: Callable[[str], None]) -> Iterator[Result]:
    """Yield the result of each pair."""
    for a, b in pairs:
        with tempfile.TemporaryDirectory(prefix="swarmnode-matrix-") as folder:
            yield measure(a, b, Path(folder), tell)


def as_table(results: list[Result]) -> str:
    """Return the results for people, as Markdown: the path, and the seconds to connect."""
    cells = {(r.a, r.b): r for r in results}
    kinds = [kind for kind in NAT_TYPES if any(kind in pair for pair in cells)]
    rows = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for a in kinds:
        found = [cells.get((a, b)) for b in kinds]
        rows.append(f"| **{a}** | {' | '.join(map(_as_cell, found))} |")
    return "\n".join(rows)


def _as_cell(result: Result | None) -> str:
    if result is None:
        return ""
    if not result.exchanged:
        return "**nothing**"
    other = "" if result.path == result.expected else f", expected {result.expected}"
    return f"{result.path} {result.connect_s:.1f}{other}"


def summary(results: list[Result]) -> dict[str, Any]:
    """Return counts and medians."""
    relayed = [r.seconds for r in results if r.path == "relay"]
    direct = [r.seconds for r in results if r.path not in ("relay", "none")]
    return {
        "pairs": len(results),
        "exchanged": sum(r.exchanged for r in results),
        "as_expected": sum(r.path == r.expected for r in results),
        "median_s_direct": statistics.median(direct) if direct else None,
        "median_s_relayed": statistics.median(relayed) if relayed else None,
        "median_connect_s": statistics.median(r.connect_s for r in results) if results else None,
    }


def _run_conditions(wanted: str, *, as_json: bool, parser: argparse.ArgumentParser) -> int:
    from tests.lab.broken.conditions import CONDITIONS, measure_all

    names = [*CONDITIONS] if wanted == "all" else wanted.split(",")
    if not set(names) <= CONDITIONS.keys():
        parser.error(f"expected all, or some of {', '.join(CONDITIONS)}; got {wanted}")

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = list(measure_all(names, tell))
    right = sum(each.pop("is_right") for each in found)
    if as_json:
        print(json.dumps({"conditions": found}))
    else:
        print(f"{right} of {len(found)} as they should be")
    return 0 if right == len(found) else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", help="a:b,c:d; all 55 without it")
    parser.add_argument("--conditions", help="all, or a,b,c of conditions.py, instead of pairs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.conditions:
        return _run_conditions(options.conditions, as_json=options.json, parser=parser)
    pairs = all_pairs()
    if options.pairs:
        pairs = [tuple(pair.split(":")) for pair in options.pairs.split(",")]
        for pair in pairs:
            if len(pair) != 2 or not set(pair) <= set(NAT_TYPES):
                parser.error(f"expected a:b of {', '.join(NAT_TYPES)}; got {':'.join(pair)}")
    results = []

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    for result in measure_all(pairs, tell):
        results.append(result)
        tell(
            f"{result.a:16} {result.b:16} {result.path:12} {result.seconds:6.2f} s"
            f" (connected after {result.connect_s:.2f} s)"
        )
    if options.json:
        print(json.dumps({"pairs": [asdict(r) for r in results], "summary": summary(results)}))
    else:
        print(as_table(results))
        print(json.dumps(summary(results)))
    return 0 if all(r.exchanged for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
