"""Every kind of NAT against every other, with real daemons: how they reach each other.

    python tests/lab/matrix.py [--pairs symmetric:cgnat,none:firewall] [--delay-ms 40] [--json]
    python tests/lab/matrix.py --conditions vpn,no-dns [...]  broken lines: ``broken/``
    python tests/lab/matrix.py --conditions all [...]         the 55 pairs, and all of those

For each pair two daemons with torch workers, each behind a NAT of its own, and one volunteer at a
public address that relays and does not train. They know the volunteer's address and nothing else,
have to find each other, and exchange a model of 1 M parameters. Needs root, see ``natlab.py``.

    name       the two kinds
    expected   the best path that physics allows
    path       of their session when it has not changed for a while, as both sides see it
    exchanged  both have committed an exchange, and none of them is half applied
    connect_s  from the moment the second one listens to the first session between the two
    seconds    from the moment both could exchange (joined, worker ready, session open) to the
               first exchange that both have committed
    rtt_ms     between the two, measured before they start: of each to the core, added
    told       the first sentence of ``netcheck`` on the first of them

``--delay-ms`` is how long a packet takes on the uplink of each site, in each direction: a round
trip takes twice that to a public host, and four times that between two sites.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from swarmnode.protocol.swarm import Hint
from swarmnode.tensor.layout import Layout
from tests.kits.daemon_kit import make_home, new_swarm, wait_until
from tests.lab.lab_daemon import LabDaemon, told
from tests.lab.natlab import NAT_TYPES, NatLab
from tests.lab.plain import round_trips_ms
from tests.lab.shaper import Shape

NUMEL = 1_000_000
RELAY_PORT, PORT = 443, 7337
_RTT_PORT = 80  # every kind lets it out, and no link names it
_DEADLINE_S = 60.0
# So small that no step changes a weight. Else two models walk away from each other while a line
# finds its rate, and the guard of exchanges has its say in what is measured of the line.
_LR = 1e-30
# What can be punched has been by then: a try is at most this long after the session began.
_SETTLE_S = 25.0
# Kinds whose TCP mapping is another one for each destination, and those without any UDP.
_SYMMETRIC = ("symmetric", "cgnat-sym")
_TCP_ONLY = ("udp-blocked", "tcp-443")
_UDP_OPEN = ("full-cone", "addr-restricted")


@dataclass(frozen=True)
class Result:
    """One pair: the fields are above. ``expected`` is what measurements of single punches say."""

    a: str
    b: str
    expected: str
    path: str = "none"
    exchanged: bool = False
    seconds: float = _DEADLINE_S
    connect_s: float = _DEADLINE_S
    rtt_ms: float = 0.0
    told: str = ""

    def as_condition(self) -> dict[str, Any]:
        """Return it with the fields that every line of the matrix has."""
        return {
            "name": f"{self.a}:{self.b}",
            "expected": self.expected,
            "path": self.path,
            "exchanged": self.exchanged,
            "seconds": self.seconds,
            "told": self.told,
            "rtt_ms": self.rtt_ms,
            "connect_s": self.connect_s,
        }


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
    a: str,
    b: str,
    folder: Path,
    tell: Callable[[str], None],
    *,
    expected: str = "",
    delay_ms: float = 0.0,
) -> Result:
    """Build a lab for one pair, let its daemons meet, and return what came of it.

    ``expected`` is the best path, if it is not the one of :func:`expected_path`.
    """
    expected = expected or expected_path(a, b)
    swarm = new_swarm()
    signed = swarm.signed(
        numel=NUMEL,
        task_config={"dim": NUMEL, "batch": 1, "lr": _LR},
        layout_hash=Layout.of([("weight", (1, NUMEL), "float32")]).layout_hash,
    )
    ids = {name: make_home(folder / name, swarm, signed).peer_id for name in ("pub0", "c0", "c1")}
    with NatLab([a, b], public=1, shape=Shape(delay_ms=delay_ms)) as lab:
        rtt_ms = sum(round_trips_ms(lab, ("c0", "c1"), "pub0", _RTT_PORT))
        link = str(swarm.link(Hint(ids["pub0"], f"{lab.ip('pub0')}:{RELAY_PORT}")))
        relay = LabDaemon(lab, "pub0", folder, link, "--role", "relay", port=7337)
        relay.wait(lambda s: s["state"] == "serving", "the relay")
        first = LabDaemon(lab, "c0", folder, link, port=PORT)
        second = LabDaemon(lab, "c1", folder, link, port=PORT)
        nodes = ((first, str(ids["c1"])), (second, str(ids["c0"])))
        try:
            found = _watch(Result(a, b, expected), nodes)
            return replace(found, rtt_ms=round(rtt_ms, 1), told=told(first.netcheck()[0]))
        except AssertionError as error:
            ends = [_last_line(daemon) for daemon in (first, second)]
            tell(f"{a} {b}: {error}; last exchanges: {' | '.join(ends)}")
            return Result(a, b, expected, rtt_ms=round(rtt_ms, 1))
        finally:
            for daemon in (first, second, relay):
                daemon.kill()


def _watch(pair: Result, nodes: tuple[tuple[LabDaemon, str], ...]) -> Result:
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
        wait_until(lambda: first.path_to(other) == pair.expected, "the best path", _SETTLE_S)
    return replace(
        pair,
        path=first.path_to(other) or "none",
        exchanged=all(d.wait(bool, "its status")["exchanges_half_applied"] == 0 for d, _ in nodes),
        seconds=round(seconds, 2),
        connect_s=round(connect_s, 2),
    )


def _last_line(daemon: LabDaemon) -> str:
    """Return what came of the last exchange of a node, "none" if it had none."""
    journal = daemon.home / "exchanges.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    return lines[-1] if lines else "none"


def measure_all(
    pairs: Iterable[tuple[str, str]],
    tell: Callable[[str], None],
    *,
    delay_ms: float = 0.0,
    jobs: int = 1,
) -> Iterator[Result]:
    """Yield the result of each pair; ``jobs`` labs are there at a time."""

    def one(pair: tuple[str, str]) -> Result:
        with tempfile.TemporaryDirectory(prefix="swarmnode-matrix-") as folder:
            return measure(*pair, Path(folder), tell, delay_ms=delay_ms)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, pairs)


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


def is_right(line: dict[str, Any]) -> bool:
    """Whether a line of the matrix is as it should be, by what stands in it."""
    is_met = line["path"] == line["expected"] and line["exchanged"] is (line["expected"] != "none")
    return bool(is_met and line.get("is_told", True))


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts and medians. Pairs are the lines that have ``connect_s``."""
    pairs = [line for line in lines if "connect_s" in line]
    relayed = [line["seconds"] for line in pairs if line["path"] == "relay"]
    direct = [line["seconds"] for line in pairs if line["path"] not in ("relay", "none")]
    return {
        "lines": len(lines),
        "pairs": len(pairs),
        "exchanged": sum(line["exchanged"] for line in lines),
        "as_expected": sum(map(is_right, lines)),
        "not_as_expected": [line["name"] for line in lines if not is_right(line)],
        "median_s_direct": statistics.median(direct) if direct else None,
        "median_s_relayed": statistics.median(relayed) if relayed else None,
        "median_connect_s": statistics.median(p["connect_s"] for p in pairs) if pairs else None,
        "median_rtt_ms": statistics.median(p["rtt_ms"] for p in pairs) if pairs else None,
    }


def _measured(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield the results of pairs, then lines of conditions, as they come."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    how = {"delay_ms": options.delay_ms, "jobs": options.jobs}
    for result in measure_all(_wanted_pairs(options, parser), say, **how):
        say(
            f"{result.a:16} {result.b:16} {result.path:12} {result.seconds:6.2f} s"
            f" (connected after {result.connect_s:.2f} s, round trip {result.rtt_ms:.1f} ms)"
        )
        yield result
    if options.conditions:
        from tests.lab.broken import conditions

        names = [*conditions.CONDITIONS]
        if options.conditions != "all":
            names = options.conditions.split(",")
        if not set(names) <= conditions.CONDITIONS.keys():
            known = ", ".join(conditions.CONDITIONS)
            parser.error(f"expected all, or some of {known}; got {options.conditions}")
        yield from conditions.measure_all(names, say, **how)


def _wanted_pairs(
    options: argparse.Namespace, parser: argparse.ArgumentParser
) -> list[tuple[str, str]]:
    if not options.pairs:
        return all_pairs() if options.conditions in ("", "all") else []
    pairs = []
    for text in options.pairs.split(","):
        a, _, b = text.partition(":")
        if not {a, b} <= set(NAT_TYPES):
            parser.error(f"expected a:b of {', '.join(NAT_TYPES)}; got {text}")
        pairs.append((a, b))
    return pairs


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", help="a:b,c:d; all 55 without it")
    parser.add_argument("--conditions", default="", help="all, or a,b,c of broken/")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each uplink and direction")
    parser.add_argument("--jobs", type=int, default=1, help="labs at a time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results, lines = [], []
    for found in _measured(options, parser):
        if isinstance(found, Result):
            results.append(found)
            lines.append(found.as_condition())
        else:
            lines.append(found)
    total = summary(lines) | {"delay_ms": options.delay_ms}
    if options.json:
        print(json.dumps({"conditions": lines, "summary": total}))
    else:
        print(as_table(results) if results else "")
        print(json.dumps(total))
    return 0 if total["as_expected"] == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
