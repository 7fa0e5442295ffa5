"""The verdict on what ``create`` gives by default, from swarms that were never trained."""

from __future__ import annotations

import pytest

from swarmnode.bench.fidelity.default import Case, Size, fails_isolated, judge
from swarmnode.bench.learning.jobs import Trained
from swarmnode.bench.learning.outcome import SeedResult

STEPS = 100
SIZE = Size((2, 4), STEPS, (1, 2, 3), 2)
MODEL_BYTES = 4 * 1000  # of 1,000 parameters in float32


def cases(own: float, *, spread: float = 0.0, sent: float = 1 / 100) -> list[Case]:
    """Alone 2.4, data parallelism 2.0; ``sent``: part of data parallelism's bytes."""
    return [
        Case(
            text=text,
            nodes=nodes,
            isolated=2.45,
            result=SeedResult(
                seed=seed,
                alone=2.4,
                alone_lr=0.01,
                data_parallel=2.0,
                data_parallel_lr=0.02,
                swarm=Trained(
                    mean_loss=own - 0.01,
                    own_loss=own + spread * (seed - 2),
                    numel=1000,
                    exchange_bytes=sent * STEPS * MODEL_BYTES,
                ),
                sent_bytes=1.5 * sent * STEPS * MODEL_BYTES,
            ),
        )
        for nodes in SIZE.nodes
        for text in ("code", "english")
        for seed in SIZE.seeds
    ]


def test_own_models_are_judged_for_each_number_of_nodes() -> None:
    found = judge(cases(2.04), SIZE)
    shares = [check for check in found.checks if check.what.startswith("share")]
    assert [check.value for check in shares] == [pytest.approx(0.9)] * 2
    assert found.holds
    assert not judge(cases(2.35), SIZE).holds


def test_what_is_within_its_error_is_not_shown() -> None:
    found = judge(cases(2.2, spread=0.1), SIZE)
    check = found.checks[0]
    assert check.margin > 0
    assert not check.is_shown
    assert not found.holds


def test_snapshots_and_control_count() -> None:
    too_much = judge(cases(2.04, sent=1 / 25), SIZE)
    exchanged, everything = too_much.checks[-2:]
    assert (exchanged.value, everything.value) == (0.04, 0.06)
    assert not exchanged.holds
    assert not everything.holds


def test_without_exchange_no_share_is_kept() -> None:
    assert [what[:5] for what in fails_isolated(cases(2.04), SIZE)] == ["share", "share"]


def test_a_row_has_own_models_beside_the_mean() -> None:
    found = judge(cases(2.04, spread=0.01), SIZE)
    assert found.table is not None
    assert {len(row) for row in found.table.rows} == {len(found.table.header)}
    assert found.table.rows[0][:6] == ["2", "code", "2.4000", "2.0000", "2.0400", "2.0300"]
    assert found.table.rows[0][9:11] == ["1/100", "1/67"]
