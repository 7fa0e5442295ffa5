"""The benchmark's result and text; how fast is not judged on a shared machine."""

from __future__ import annotations

import json

import pytest
import torch

from swarmnode.bench import snapshot as bench_snapshot
from swarmnode.bench.snapshot import format_snapshot_bench, run_snapshot_bench
from swarmnode.errors import StorageError, StorageFull
from swarmnode.worker import offline
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.tools import bench


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the torch process be this one."""
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)

    def run(*arguments: str) -> object:
        assert offline.main(list(arguments)) == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(bench_snapshot, "run_offline", run)


@pytest.mark.usefixtures("here")
def test_both_optimizers_are_measured() -> None:
    result = run_snapshot_bench(100_000, 1, 0.2)
    sgd, adamw = result["optimizers"]
    assert (sgd["optimizer"], adamw["optimizer"]) == ("sgd", "adamw")
    for one, copies in ((sgd, 1), (adamw, 3)):
        assert 80_000 < one["params"] < 130_000
        assert one["snapshot_bytes"] >= copies * 4 * one["params"]
        assert one["snapshot_bytes"] < copies * 4 * one["params"] + 30_000
        assert one["ratio_mean"] == pytest.approx(one["step_ms_mean_saving"] / one["step_ms_mean"])
        assert one["regular_period_s"] >= 10.0
        assert abs(one["ratio_regular"] - 1) < 0.5
    text = format_snapshot_bench(result).splitlines()
    assert text[0].startswith(f"sgd: {sgd['params']:,} parameters, a snapshot of 0 MB")
    assert len(text) == 12


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adamw", 3)])
def test_a_snapshot_has_what_the_named_optimizer_keeps(optimizer: str, copies: int) -> None:
    one = bench.bench_snapshots(50_000, optimizer, rounds=1, period_s=0.01)
    assert 0 <= one["snapshot_bytes"] - copies * 4 * one["params"] < 30_000


def test_a_snapshot_that_cannot_be_written_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageFull("no space left")

    monkeypatch.setattr(SnapshotStore, "write", full)
    with pytest.raises(StorageError, match="no space left"):
        bench.bench_snapshots(50_000, "sgd", rounds=1, period_s=0.1)
