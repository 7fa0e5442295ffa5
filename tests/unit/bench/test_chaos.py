"""What ``swarmnode chaos`` makes of what it has seen, and that its faults follow from the seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.bench.chaos.findings import Evidence, format_outcome, judge, outcome
from swarmnode.bench.chaos.node import SITE, Life, Sample, begun_step, is_spent, is_there, sample_of
from swarmnode.bench.chaos.plan import (
    ENDING,
    LASTING,
    NETWORK,
    SMALL,
    WEIGHTS,
    Fault,
    Kind,
    kinds_of,
    network_faults,
    node_faults,
)
from swarmnode.bench.chaos.run import STRATEGIES, keep_words
from swarmnode.bench.chaos.world import rules
from swarmnode.processes.audit import Entry

MB = 1_000_000


def ended(xid: str, peer: str, outcome: str = "committed", **more: Any) -> Entry:
    entry = {"event": "finished", "xid": xid, "peer": peer, "outcome": outcome, "boot": 1}
    return {**entry, **more}


def merged(xid: str) -> Entry:
    return {"event": "applied", "xid": xid, "boot": 1}


def whole() -> Evidence:
    """Two nodes, of which nothing is wrong."""
    found = Evidence()
    found.histories = {"a": [ended("1", "b"), merged("1")], "b": [ended("1", "a"), merged("1")]}
    found.promises = [("n1", 70, 70)]
    found.heard, found.heard_last = {"a": 100}, {"a": 104}
    return found


def test_what_is_as_promised_is_no_violation() -> None:
    verdict = judge(whole())
    assert verdict.violations == ()
    assert verdict.audit.committed == 1


def test_an_exchange_on_one_side_is_found_with_what_both_have_written() -> None:
    found = whole()
    found.histories["b"] = [ended("1", "a", "aborted")]
    verdict = judge(found)
    assert verdict.half_applied == ("1",)
    assert verdict.violations == (
        "half applied: 1, a: finished committed 1, applied 1; b: finished aborted 1",
    )


def test_two_results_of_one_round_are_found() -> None:
    found = whole()
    for peer, result in (("a", "aa"), ("b", "bb")):
        entry = {"event": "finished", "xid": "2", "present": ["a", "b"], "boot": 1}
        entry |= {"outcome": "committed", "result": result}
        found.histories[peer] = [*found.histories[peer], entry, merged("2")]
    assert judge(found).half_applied == ("2",)
    assert "a: finished committed 1 aa, applied 1; b: finished committed 1 bb" in "".join(
        judge(found).violations
    )


def test_what_the_nodes_wrote_stays(tmp_path: Path) -> None:
    folder = tmp_path / "chaos"
    for name in ("daemon.log", "exchanges.jsonl", "exchanges.jsonl.1", "node.key"):
        (folder / "n3").mkdir(parents=True, exist_ok=True)
        (folder / "n3" / name).write_text(name)
    kept = keep_words(folder)
    assert sorted(path.name for path in (kept / "n3").iterdir()) == [
        "daemon.log",
        "exchanges.jsonl",
        "exchanges.jsonl.1",
    ]
    assert (kept / "n3" / "daemon.log").read_text() == "daemon.log"


def test_what_a_node_itself_calls_in_doubt_is_counted_apart() -> None:
    found = whole()
    found.histories["b"] = [ended("1", "a", "aborted", in_doubt=True)]
    verdict = judge(found)
    assert (verdict.half_applied, verdict.in_doubt, verdict.violations) == ((), 1, ())


def test_what_a_node_with_a_full_disk_has_not_written_proves_nothing() -> None:
    found = whole()
    found.histories["b"] = []
    assert judge(found).half_applied == ("1",)
    found.incomplete = {"b"}
    assert judge(found).half_applied == ()
    found.histories["b"] = [ended("1", "a", "aborted")]
    assert judge(found).half_applied == ("1",), "but what it has written does"


def test_a_snapshot_that_was_promised_and_is_gone_is_found() -> None:
    found = whole()
    found.promises = [("n1", 70, 69)]
    assert judge(found).lost == ("lost: n1 had promised step 70, and began again at 69",)


def test_steps_that_were_heard_of_and_are_gone_are_found() -> None:
    found = whole()
    found.heard_last = {"a": 99}
    assert judge(found).lost == ("lost: 100 steps of a had been heard of, 99 are left",)


def test_an_exchange_that_is_lost_where_nothing_was_killed_is_found() -> None:
    found = whole()
    found.histories["a"] = [ended("1", "b"), {"event": "lost", "xid": "1", "boot": 1}]
    assert judge(found).lost == ("lost: exchange 1 of a, which was not touched",)
    found.hit = {"a"}
    assert judge(found).lost == ()


def test_a_process_that_is_left_and_a_log_that_complains_are_found() -> None:
    found = whole()
    found.orphans = ["4711: python worker"]
    found.logs = {"n0/daemon.log": "fine\nTraceback (most recent call last):\n  x\n"}
    found.mishaps = ["n1 is down"]
    assert judge(found).violations == (
        "orphan: 4711: python worker",
        "n1 is down",
        "n0/daemon.log has said 1 times: Traceback (most recent call last):",
    )


def test_two_logs_are_a_fault_where_one_has_begun() -> None:
    begins = "info daemon.collective: a log begins round={} head={}\n"
    differs = 'warning daemon.collective: the log differs why="there are two logs"\n'
    one, other = begins.format(0, "8b7e254a"), begins.format(57, "b81ee60c")
    found = whole()
    found.logs = {"n0": one, "n1": one + differs}
    assert len(judge(found).violations) == 1
    found.logs["n1"] += other
    assert judge(found).violations == ()


def life(hours: float = 1.0, **last: int) -> Life:
    """A process that grows evenly to ``last``."""
    first = {"rss_bytes": 60 * MB, "fds": 20, "memfds": 1, "threads": 4}
    samples = [
        Sample(hours * 36 * i, **{k: v + (last.get(k, v) - v) * i // 100 for k, v in first.items()})
        for i in range(101)
    ]
    return Life(0, "daemon", 1, samples)


@pytest.mark.parametrize(
    ("last", "what"),
    [
        ({"rss_bytes": 63 * MB}, "memory grows by 3.0 MB an hour"),
        ({"fds": 90}, "fds went from 31 to 78"),
        ({"memfds": 9}, "holds 7 segments"),
        ({"threads": 60}, "threads went from 12 to 51"),
    ],
)
def test_what_leaks_is_found(last: dict[str, int], what: str) -> None:
    found = whole()
    found.lives = [life(**last)]
    (violation,) = judge(found).violations
    assert what in violation
    found.lives = [life()]
    assert judge(found).violations == ()


def test_the_slope_of_minutes_is_said_and_not_judged() -> None:
    found = whole()
    found.lives = [life(0.2, rss_bytes=61 * MB)]
    figures = outcome(1, 12, [found], {})
    assert figures["rss_slope_mb_per_h"] == pytest.approx(5, rel=0.05)
    assert figures["violations"] == []
    found.lives = [life(0.05, rss_bytes=61 * MB)]
    assert outcome(1, 3, [found], {})["rss_slope_mb_per_h"] is None


def test_the_outcome_has_all_figures_and_what_was_left_out() -> None:
    found = whole()
    fault = {"kind": "kill-both", "rejoin_s": 9.0, "torch_s": 4.0}
    slow = {"kind": "kill-worker", "rejoin_s": 30.0, "torch_s": 4.0}
    short = {"kind": "stop-both", "rejoin_s": 0.2, "torch_s": 0.0}
    beside = {"kind": "restart", "rejoin_s": 99.0, "torch_s": 1.0, "is_beside_another": True}
    found.faults = [fault, slow, short, beside]
    figures = outcome(3, 5, [found], {"partition": "needs root"})
    assert list(figures)[:11] == [
        "seed", "minutes", "faults", "half_applied", "lost_acknowledged", "orphans",
        "rejoin_p50_s", "rejoin_p95_s", "commit_ratio", "rss_slope_mb_per_h", "violations",
    ]  # fmt: skip
    assert figures["faults"][-1] == {"kind": "partition", "left_out": "needs root"}
    assert (figures["rejoin_p50_s"], figures["rejoin_p95_s"]) == (26.0, 26.0)
    assert figures["commit_ratio"] == 1.0
    text = format_outcome(figures)
    assert "4 faults in 5 minutes, seed 3: 0 half applied" in text
    assert "left out: partition: needs root" in text


def rejoined(*rejoins_s: float) -> Evidence:
    found = whole()
    found.faults = [{"kind": "restart", "rejoin_s": s + 4.0, "torch_s": 4.0} for s in rejoins_s]
    return found


def test_nodes_that_are_slow_to_be_back_are_a_violation_of_a_long_run() -> None:
    quick = [9.0] * 18
    slow = rejoined(*quick, 21.5, 22.0)
    (violation,) = outcome(1, 30, [slow], {})["violations"]
    assert violation == (
        "slow: the p95 of 20 rejoins is 22.0 s beyond the import of torch, expected at most 20 s"
    )
    assert outcome(1, 29, [slow], {})["violations"] == [], "too short to judge"
    assert outcome(1, 30, [rejoined(*quick, 22.0)], {})["violations"] == [], "too few to judge"
    assert outcome(1, 30, [rejoined(*quick, 9.0, 9.0, 20.0)], {})["violations"] == []
    several = [rejoined(*quick), rejoined(21.5, 22.0)]
    assert len(outcome(1, 60, several, {})["violations"]) == 1, "of all strategies together"


# --- faults ---------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_faults_and_another_gives_others() -> None:
    kinds = {*WEIGHTS}
    plans = [list(islice(node_faults(seed, 2, 600.0, kinds), 40)) for seed in "112"]
    assert plans[0] == plans[1] != plans[2]
    assert {fault.kind for fault in islice(node_faults("1", 0, 600.0, kinds), 300)} == kinds
    assert list(islice(node_faults("1", 3, 600.0, kinds), 40)) != plans[0], "each node has its own"


BACK_S = 40.0  # a node is back after a kill on a busy machine (docs/development.md)
AS_ROOT: set[Kind] = {"partition", "broken-link", "lossy-line", "full-disk", "read-only-home"}
ALL: set[Kind] = {*WEIGHTS, *NETWORK}


def drawn(seed: str, seconds: float, kinds: set[Kind], nodes: int = 6) -> set[Kind]:
    """Return the kinds that come within a run, as far as nodes are back as slowly as that."""
    series = [node_faults(seed, n, seconds, kinds_of(n, kinds)) for n in range(nodes)]
    series.append(network_faults(seed, nodes, seconds, kinds & NETWORK.keys()))
    return {fault.kind for faults in series for fault in within(faults, seconds)}


def within(faults: Iterator[Fault], seconds: float) -> Iterator[Fault]:
    now_s = 0.0
    for fault in faults:
        now_s += fault.after_s
        if now_s + fault.lasts_s >= seconds:
            return
        yield fault
        now_s += fault.lasts_s + BACK_S


@pytest.mark.parametrize(
    "left_out", [set(), {"upgrade"}, AS_ROOT, {*AS_ROOT, "upgrade"}], ids=lambda s: str(sorted(s))
)
def test_an_hour_has_each_kind_of_fault_that_the_machine_can_do(left_out: set[Kind]) -> None:
    for seed in range(1, 6):
        for strategy in STRATEGIES:
            assert drawn(f"{seed}/{strategy}", 3600.0, ALL - left_out) == ALL - left_out


def test_no_node_meets_a_fault_that_is_not_for_it() -> None:
    assert kinds_of(LASTING, ALL) == ALL - NETWORK.keys() - ENDING - {"full-disk"}
    assert kinds_of(SMALL, ALL) == {*WEIGHTS}
    assert kinds_of(5, ALL - {"upgrade"}) == {*WEIGHTS} - {"full-disk", "upgrade"}


def test_faults_are_bounded_by_the_length_of_the_run_and_by_what_can_be_had() -> None:
    few = list(islice(node_faults("1", 0, 60.0, {*WEIGHTS} - ENDING), 200))
    assert not {fault.kind for fault in few} & ENDING
    assert max(fault.lasts_s for fault in few) <= 15.0
    long = list(islice(node_faults("1", 0, 3600.0, {"stop-both"}), 200))
    assert 100 < max(fault.lasts_s for fault in long) <= 120
    assert list(node_faults("1", 0, 60.0, set())) == []


def test_a_partition_has_two_sides_and_a_link_two_ends_and_a_line_loses_some() -> None:
    faults = list(islice(network_faults("1", 6, 600.0, {*NETWORK}), 100))
    for fault in faults:
        if fault.kind == "partition":
            assert 1 <= len(fault.nodes) <= 3
        elif fault.kind == "broken-link":
            assert len({*fault.nodes}) == 2
        else:
            assert len(fault.nodes) == 1
            assert 0.02 <= fault.force <= 0.3


def test_the_rules_of_a_line_are_what_nft_is_told() -> None:
    text = rules(["10.77.0.2", "10.77.0.3"], 0.05)
    assert "ip saddr { 10.77.0.2, 10.77.0.3 } drop;numgen random mod 10000 < 500 drop;" in text
    assert "ip daddr { 10.77.0.2, 10.77.0.3 } drop;numgen random mod 10000 < 500 drop;" in text
    assert "drop" not in rules((), 0.0)


def test_where_a_worker_began_is_read_from_the_log_and_not_from_the_status() -> None:
    line = "2026-11-24T05:02:40Z info    daemon.worker: worker ready device=cpu step={} numel=8\n"
    said = "swarmnode: starting (restarting the worker): step 1,638, 3 peers\n"
    assert begun_step(line.format(0) + said + line.format(1655) + said) == 1655
    assert begun_step(said) == 0


# --- processes ------------------------------------------------------------------------------


def test_a_node_whose_daemon_lasts_is_spared_before_it_gives_up_on_its_worker() -> None:
    """158 faults of 14 minutes on an idle machine ended one that way, which is no fault of its."""
    n, window_s = limits.WORKER_RESTARTS_MAX - 1, limits.WORKER_RESTARTS_WINDOW_S
    sampled = [Sample(60.0 * k, MB, 9, 1, 3) for k in range(n)]
    workers = [Life(0, "worker", k, [sample]) for k, sample in enumerate(sampled)]
    daemon = Life(0, "daemon", 99, [Sample(0.0, MB, 9, 1, 3)])
    assert is_spent([daemon, *workers], window_s - 1)
    assert not is_spent([daemon, *workers[1:]], window_s - 1)
    assert not is_spent([daemon, *workers], window_s), "the first of them counts no more"


def test_a_clock_is_wrong_by_what_its_file_says_now(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    clock = tmp_path / "clock"
    code = (
        "import time, pathlib\n"
        f"clock = pathlib.Path({str(clock)!r})\n"
        "a = time.time(); clock.write_text('3600'); b, c = time.time(), time.time_ns()\n"
        "clock.write_text('-60'); d = time.time()\n"
        "print(round((b - a) / 10), round((c / 1e9 - a) / 10), round((d - a) / 10))\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "SWARMNODE_CHAOS_CLOCK": str(clock)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout.split() == ["360", "360", "-6"]


def test_the_import_of_torch_is_timed(tmp_path: Path) -> None:
    """Also where no file can be opened any more by then, as in a worker's sandbox."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "torch.py").write_text("value = 7\n")
    locked = (
        "import sys\ndef no(event, args):\n if event == 'open' and args[1] == 'w': raise OSError"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            f"{locked}\nsys.addaudithook(no)\nimport torch; print(torch.value)",
        ],
        env={"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert process.communicate(timeout=60)[0] == b"7\n"
    assert 0 <= float((tmp_path / f"torch-{process.pid}").read_text()) < 60


def test_what_a_process_holds_is_read_and_one_that_has_ended_is_known() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import os; f = os.memfd_create('x'); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = sample_of(process.pid, 5.0)
        assert seen is not None
        assert (seen.at_s, seen.memfds, seen.threads) == (5.0, 1, 1)
        assert seen.fds >= 4
        assert seen.rss_bytes > MB
        assert is_there(process.pid)
        process.kill()
    assert not is_there(process.pid)
    assert sample_of(process.pid, 6.0) is None
