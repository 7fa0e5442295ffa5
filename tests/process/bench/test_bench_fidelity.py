"""The benchmark of claims from the command line, quickly: its processes, its page, its daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmnode.bench.fidelity import daemons as fidelity_daemons
from swarmnode.bench.fidelity.page import read_findings
from tests.kits.daemon_kit import swarmnode


def test_experiments_run_from_the_command_line_and_are_put_on_a_page(tmp_path: Path) -> None:
    page = tmp_path / "fidelity.md"
    done = swarmnode(
        tmp_path, "bench", "fidelity", "--only", "one-byte", "--only", "group-mean", "--quick",
        "--json", "--write", str(page),
    )  # fmt: skip
    assert done.code == 0, done.err
    findings = {finding["name"]: finding for finding in done.json["findings"]}
    assert findings.keys() == {"one-byte", "group-mean"}
    assert findings["group-mean"]["is_quick"]
    assert "not judged: a quick run" in page.read_text()
    assert [f.name for f in read_findings(tmp_path / "fidelity" / "findings.json")] == [*findings]
    assert (tmp_path / "fidelity" / "one-byte-loss.svg").stat().st_size > 1000


def test_an_experiment_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = swarmnode(tmp_path, "bench", "fidelity", "--only", "dido")
    assert done.code == 2
    assert "expected an experiment among dadao, a2cid2-rings," in done.err


@pytest.mark.slow
def test_daemons_are_compared_with_an_all_reduce(tmp_path: Path) -> None:
    done = swarmnode(tmp_path, "bench", "fidelity", "--only", "daemons", "--quick", "--json")
    assert done.code == 0, done.err
    (finding,) = done.json["findings"]
    checks = {check["what"]: check["value"] for check in finding["checks"]}
    # Both began with the same weights and saw the same batches, and learnt from them. Nodes that
    # exchange nothing have a mean that is 1.2 to 1.4 times as bad.
    assert checks["loss of the mean model over all-reduce's"] == pytest.approx(1.0, abs=0.1)
    # Measured by the kernel, not computed.
    assert checks["a rank's bytes over 2 (n−1)/n of all gradients"] == pytest.approx(1.0, abs=0.1)
    assert 0 < checks["bytes sent by a node over those of a rank"] < 0.2
    ours, theirs = finding["table"]["rows"]
    assert ours[0] == "streaming"
    assert float(theirs[1]) < 4.0  # it has learnt something: ln 256 is 5.5


def test_a_rank_begins_where_a_node_does_and_takes_its_batches(tmp_path: Path) -> None:
    """One node without a partner and one rank are the same training, to the last bit."""
    plan = fidelity_daemons.Plan(1, 40, fidelity_daemons.QUICK_PLAN.config)
    ours, theirs, _ = fidelity_daemons.run_both(tmp_path, plan)
    assert theirs.curve[-1][0] == 40
    assert ours.mean_loss == theirs.mean_loss
