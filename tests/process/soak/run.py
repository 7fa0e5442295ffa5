"""Nodes at low duty for a day, and what of theirs grows: ``python -m tests.process.soak.run``.

Half of them live as long as the run. Of the others one leaves every quarter of an hour: it comes
back, or, every other time, a newcomer in its place, so that there is something to forget. What each
keeps (``held.py``), its memory, descriptors and threads are looked at all the time, and histories
are compared at the end as those of ``swarmnode chaos`` are.

``FOLDER/index.html`` is the summary, ``FOLDER/samples.jsonl`` has what was seen. Exit status 1: a
thing beyond its bound, memory that grows by more than 2.1 MB an hour, or what chaos would not pass.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from swarmnode.bench.chaos.findings import Evidence, judge
from swarmnode.bench.chaos.node import Life, sample_of
from swarmnode.errors import SwarmNodeError
from swarmnode.store.files import read_history
from tests.kits.daemon_kit import LOOPBACK, Daemon, free_port
from tests.process.life_kit import Party, interrupt, on_disk, peer_of
from tests.process.soak.held import DIM, REST, THINGS, held, scraped
from tests.process.soak.page import page

HOURS, NODES = 24.0, 8
NODES_MIN = 3  # one leaves, and two still have each other
LOOK_S = 30.0
CHANGES, CHANGE_S_MIN = 96, 180.0  # so often one leaves, in a day every quarter of an hour
AWAY_S = 60.0  # for so long, if it comes back
# A swarm that exchanges every few seconds, and leaves the machine to its owner.
SETTINGS = {"strategy": "streaming", "strategy_settings": {"every": 2000}}
DUTY = {"SWARMNODE_CPU_PERCENT": "2"}
# Of one life: a slope is over all pairs of samples.
SAMPLES_MAX = 400

# One that has just begun answers nothing.
_NOT_YET = (SwarmNodeError, OSError, http.client.HTTPException)

Say = Callable[[str], None]


@dataclass
class Soak:
    """What was seen: at which second how much of each thing, the most of all nodes."""

    at_s: list[float] = field(default_factory=list)
    seen: dict[str, list[float]] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    newcomers: int = 0
    returns: int = 0

    def violations(self) -> list[str]:
        """Say all that must not be."""
        found = list(judge(self.evidence).violations)
        for thing in (*THINGS, REST):
            most = max(self.seen.get(thing.name, [0.0]))
            if thing.name not in self.seen:
                found.append(f"{thing.name}: no node ever said how much")
            elif most > thing.most:
                found.append(f"{thing.name}: {most:.0f}, expected at most {thing.most:.0f}")
        return found


class _Run:
    """The nodes of one soak."""

    def __init__(self, party: Party, folder: Path, n_nodes: int, say: Say) -> None:
        self._party, self._folder, self._say = party, folder, say
        self._nodes = [self._join("creator", None)]
        while len(self._nodes) < n_nodes:
            self._nodes.append(self._join(f"n{len(self._nodes)}", self._nodes[0]))
        self._away: tuple[float, str, int] | None = None  # until when, its home, its place
        self._lives: dict[int, Life] = {}
        self._turn = 0
        self.soak = Soak()

    def _join(self, home: str, via: Daemon | None) -> Daemon:
        log = self._party.folder / home / "node.log"
        log.parent.mkdir(mode=0o700, exist_ok=True)
        flags = ("--metrics", f"{LOOPBACK}:{free_port()}")
        return self._party.join(home, *flags, via=via, SWARMNODE_LOG_FILE=str(log), **DUTY)

    def wait(self) -> None:
        for node in self._nodes:
            node.wait(lambda s: s["exchanges_applied"] > 0, "an exchange")
        self._say(f"{len(self._nodes)} nodes exchange")

    async def live(self, seconds: float) -> None:
        begin = trio.current_time()
        pause_s = max(CHANGE_S_MIN, seconds / CHANGES)
        change_s = pause_s
        with (self._folder / "samples.jsonl").open("w") as samples:
            while (at_s := trio.current_time() - begin) < seconds:
                seen = await trio.to_thread.run_sync(self._look, at_s)
                samples.write(json.dumps({"at_s": round(at_s), **seen}) + "\n")
                samples.flush()
                if self._away is not None and at_s >= self._away[0]:
                    await trio.to_thread.run_sync(self._come_back)
                if at_s >= change_s and at_s + 2 * AWAY_S < seconds:
                    change_s += pause_s
                    await trio.to_thread.run_sync(self._change, at_s)
                await trio.sleep_until(begin + at_s + LOOK_S)

    def end(self) -> None:
        """All leave, and what they have written is read."""
        if self._away is not None:
            self._come_back()
        for node in self._nodes:  # what runs is completed
            node.ask("/pause")
        for node in self._nodes:
            node.wait(lambda s: s["state"] == "paused", "a pause")
        for node in self._nodes:
            self._leave(node)
        for life in self._lives.values():
            life.samples = life.samples[:: max(1, len(life.samples) // SAMPLES_MAX)]
        self.soak.evidence.lives = list(self._lives.values())

    def _look(self, at_s: float) -> dict[str, float]:
        most: dict[str, float] = {}
        for place, node in enumerate(self._nodes):
            if self._away is not None and place == self._away[2]:
                continue
            with contextlib.suppress(
                SwarmNodeError, OSError, http.client.HTTPException
            ):  # it has just begun
                worker = int(node.status().get("worker_pid") or 0)
                self._sample(place, node.pid, worker, at_s)
                address = node.arguments()[node.arguments().index("--metrics") + 1]
                for name, value in held(node, scraped(address)).items():
                    most[name] = max(value, most.get(name, 0.0))
        self.soak.at_s.append(at_s)
        for name, value in most.items():
            self.soak.seen.setdefault(name, []).append(value)
        return most

    def _sample(self, place: int, daemon: int, worker: int, at_s: float) -> None:
        for name, pid in (("daemon", daemon), ("worker", worker)):
            sample = sample_of(pid, at_s) if pid else None
            if sample is not None:
                self._lives.setdefault(pid, Life(place, name, pid)).samples.append(sample)

    def _change(self, at_s: float) -> None:
        lasting = len(self._nodes) // 2
        place = lasting + self._turn % (len(self._nodes) - lasting)
        is_new = self._turn // (len(self._nodes) - lasting) % 2 == 1
        self._turn += 1
        node = self._nodes[place]
        self._leave(node)
        self._say(f"{at_s:6.0f} s  {node.home.name} left")
        if is_new:
            self.soak.newcomers += 1
            shutil.rmtree(node.home)
            self._nodes[place] = self._join(f"n{place}-{self._turn}", self._nodes[0])
        else:
            self.soak.returns += 1
            self._away = (at_s + AWAY_S, node.home.name, place)

    def _come_back(self) -> None:
        assert self._away is not None
        _, home, place = self._away
        self._away = None
        self._nodes[place] = self._join(home, self._nodes[0])

    def _leave(self, node: Daemon) -> None:
        interrupt(node)
        evidence, peer = self.soak.evidence, str(peer_of(node))
        evidence.hit.add(peer)
        evidence.histories[peer] = list(read_history(node.home / "exchanges.jsonl"))
        evidence.logs[node.home.name] = node.log
        worker_log = on_disk(node).worker_log
        evidence.logs[f"{node.home.name}, worker"] = worker_log.read_text(errors="replace")
        self._party.nodes.remove(node)


def soak(folder: Path, *, hours: float, n_nodes: int, say: Say) -> list[str]:
    """Run it; return what must not be. What was seen is in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swarmnode-soak-") as homes:
        party = Party(Path(homes), dim=DIM, **SETTINGS)
        try:
            run = _Run(party, folder, n_nodes, say)
            run.wait()
            trio.run(run.live, hours * 3600)
            run.end()
        finally:
            for node in party.nodes:
                node.kill()
    found = run.soak
    violations = found.violations()
    (folder / "index.html").write_text(page(found, hours=hours, n_nodes=n_nodes))
    return violations


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.soak.run", description=__doc__)
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--out", type=Path, default=Path("build") / "soak", metavar="FOLDER")
    options = parser.parse_args(arguments)
    if options.nodes < NODES_MIN or options.hours <= 0:
        parser.error(f"expected {NODES_MIN} nodes or more, and a time above 0")
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{(time.monotonic() - begin) / 3600:5.2f} h  {text}", flush=True)

    violations = soak(options.out, hours=options.hours, n_nodes=options.nodes, say=say)
    for each in violations:
        say(f"VIOLATION: {each}")
    say(f"{len(violations)} violations; {options.out / 'index.html'}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
