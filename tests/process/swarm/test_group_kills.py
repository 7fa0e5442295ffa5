"""Kill -9 of a member in the middle of a group mean: the others finish quickly, with equal bits."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.process.swarm.group_member import identity_of

FINISH_S_MAX = 2.0  # from the moment at which a survivor notices the death


class Process:
    """One member, spoken to by lines of JSON."""

    def __init__(self, number: int) -> None:
        command = [sys.executable, "-m", "tests.process.swarm.group_member", str(number)]
        self.popen = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, what: object) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(what) + "\n")
        self.popen.stdin.flush()

    def read(self) -> Any:
        assert self.popen.stdout is not None
        return json.loads(self.popen.stdout.readline() or "null")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def group(n: int) -> Iterator[list[Process]]:
    """Give members that have met, and wait for ``go``."""
    processes = [Process(number) for number in range(n)]
    try:
        addresses = [process.read() for process in processes]
        for process in processes:
            process.say(addresses)
        assert [process.read() for process in processes] == ["ready"] * n
        yield processes
    finally:
        for process in processes:
            process.close()


def undisturbed_s(n: int) -> float:
    with group(n) as processes:
        begun_at = time.monotonic()
        for process in processes:
            process.say("go")
        results = [process.read() for process in processes]
        assert len({result["mean"] for result in results}) == 1
        assert all(len(result["present"]) == n for result in results)
        return float(max(result["ended_at"] for result in results)) - begun_at


def kill_one(
    n: int, victim: int, after_s: float
) -> tuple[list[dict[str, Any]], bool, float, float]:
    """Return what became of the survivors, whether the victim's payload is in it, begin and death.

    All processes of a machine share the clock.
    """
    with group(n) as processes:
        begun_at = time.monotonic()
        for process in processes:
            process.say("go")
        with pytest.raises(subprocess.TimeoutExpired):  # else it has died by itself
            processes[victim].popen.wait(timeout=after_s)
        killed_at = time.monotonic()
        processes[victim].kill()
        survivors = [p for number, p in enumerate(processes) if number != victim]
        results = [process.read() for process in survivors]
        peer = identity_of(victim).peer_id.hex()
        return results, all(peer in result["present"] for result in results), begun_at, killed_at


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=pytest.mark.slow)], ids="{}-kills".format
)
def test_survivors_of_a_kill_finish_in_time_and_agree(kills: int) -> None:
    """So many kills before every survivor was through; others count for nothing."""
    rng = random.Random(kills)
    usual_s = {n: undisturbed_s(n) for n in (4, 5)[: 1 + (kills > 3)]}
    n_midway, tries, slowest_s = 0, 0, 0.0
    while n_midway < kills:
        tries += 1
        assert tries <= 4 * kills, f"only {n_midway} of {tries - 1} kills came in the middle"
        n = rng.choice(list(usual_s))
        after_s = rng.uniform(0, usual_s[n])
        results, has_victim, begun_at, killed_at = kill_one(n, rng.randrange(n), after_s)
        assert [result["told"] for result in results] == ["apply"] * (n - 1), results
        assert len({result["mean"] for result in results}) == 1
        assert len({tuple(result["present"]) for result in results}) == 1
        last_s = max(r["ended_at"] for r in results) - begun_at
        is_midway = begun_at + last_s > killed_at
        if not is_midway:  # the machine is faster now than it was, or was busy then
            usual_s[n] = min(usual_s[n], last_s)
        waits_s = [r["ended_at"] - r["noticed_at"] for r in results if r["noticed_at"]]
        took_s = max(waits_s, default=0.0)
        n_midway += is_midway
        slowest_s = max(slowest_s, took_s)
        print(
            f"kill {tries}: {n} members, {after_s * 1000:.0f} of {usual_s[n] * 1000:.0f} ms"
            f" after the start; "
            + (f"over {took_s * 1000:.0f} ms after it was noticed" if waits_s else "never noticed")
            + ("" if is_midway else ", all was over")
            + f", {'with' if has_victim else 'without'} the victim's payload"
        )
        assert took_s < FINISH_S_MAX
    print(f"{n_midway} kills in the middle of {tries}; the slowest end took {slowest_s:.2f} s")
