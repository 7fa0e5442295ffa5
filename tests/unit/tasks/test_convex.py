"""The convex tasks: data in parts, bounds that hold, the optimum, and files of one's own."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmnode.errors import ConfigError
from swarmnode.tasks.base import DataError
from swarmnode.tasks.convex import Convex
from swarmnode.tasks.least_squares import LeastSquares
from swarmnode.tasks.logistic import Logistic
from swarmnode.worker.model.arena import Arena

SMALL: dict[str, Any] = {"parts": 12, "dim": 3, "rows": 20}
KINDS = (LeastSquares, Logistic)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def task(request: pytest.FixtureRequest) -> Convex:
    kind: type[Convex] = request.param
    return kind(SMALL)


def slope(task: Convex, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of this member's objective at x."""
    model = task.build_model(0)
    with torch.no_grad():
        next(model.parameters()).copy_(x[None])
    (batch,) = islice(task.batches(0), 1)
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    found = next(model.parameters()).grad
    assert found is not None
    return found.flatten()


@pytest.mark.parametrize("n_members", [1, 2, 3, 4, 6, 12])
def test_the_members_objectives_have_one_optimum_however_many_there_are(
    task: Convex, n_members: int
) -> None:
    slopes = []
    for index in range(n_members):
        task.placed(index, n_members)
        slopes.append(slope(task, task.optimum))
    assert float(torch.stack(slopes).mean(0).norm()) < 1e-14
    if n_members > 1:  # and each has another of its own
        assert min(float(each.norm()) for each in slopes) > 1e-3


def test_more_members_than_parts_share_them(task: Convex) -> None:
    for index in range(25):
        task.placed(index, 25)
        assert len(task.own[0]) == SMALL["rows"]


def test_the_curvature_is_within_its_bounds(task: Convex) -> None:
    generator = torch.Generator().manual_seed(1)
    low, high = task.strong_convexity, task.smoothness
    assert 0 < low < high
    for index in range(4):
        task.placed(index, 4)
        for _ in range(5):
            a, b = torch.randn(2, 3, generator=generator, dtype=torch.float64)
            bend = (slope(task, a) - slope(task, b)) @ (a - b) / (a - b).square().sum()
            assert low * (1 - 1e-12) <= float(bend) <= high * (1 + 1e-12)


def test_a_model_of_float64_is_an_arena_and_the_probe_is_the_distance(task: Convex) -> None:
    model = task.build_model(0)
    arena = Arena(model)
    assert arena.flat.dtype == torch.float64
    assert arena.layout.specs[0].dtype == "float64"
    assert task.evaluate(model) == pytest.approx(1.0)
    with torch.no_grad():
        arena.flat.copy_(task.optimum * (1 + 1e-13))
    assert task.evaluate(model) == pytest.approx(1e-13, rel=0.01)


def test_data_follow_from_the_settings(task: Convex) -> None:
    again, other = type(task)(SMALL), type(task)({**SMALL, "seed": 1})
    assert task.data_hash() == again.data_hash() != other.data_hash()
    assert torch.equal(task.parts.rows, again.parts.rows)


def test_nothing_is_dealt_out(task: Convex) -> None:
    assert task.shards_per_epoch == 0


def test_what_has_no_single_optimum_is_refused() -> None:
    task = LeastSquares({"parts": 2, "dim": 8, "rows": 4})
    with pytest.raises(ConfigError, match="set ridge above 0, or fewer parts"):
        task.strong_convexity  # noqa: B018
    assert LeastSquares({"parts": 2, "dim": 8, "rows": 4, "ridge": 0.1}).strong_convexity > 0
    with pytest.raises(ConfigError, match="ridge"):
        Logistic({"ridge": 0.0})
    with pytest.raises(ConfigError, match=r"expected at most 16,777,216 numbers in parts x rows"):
        LeastSquares({"parts": 4096, "dim": 64, "rows": 4096})


# --- data of one's own ------------------------------------------------------------------------


def test_a_folder_of_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,0,2\n0,1,3\n\n1,1,5\n")
    (tmp_path / "b.csv").write_text("2,1,7\n1,2,8\n9,9,9\n5,5,5\n")
    task = LeastSquares({"parts": 2, "ridge": 1e-9}, data_dir=str(tmp_path))
    assert task.dim == 2
    assert task.parts.rows.tolist() == [[[1, 0], [1, 1], [1, 2]], [[0, 1], [2, 1], [9, 9]]]
    assert task.parts.labels.tolist() == [[2, 5, 8], [3, 7, 9]]
    assert task.data_hash() != LeastSquares({"parts": 2}).data_hash()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "expected lines of finite numbers"),
        ("1,2\n1,nan\n", "expected lines of finite numbers"),
        ("1,2\n1,2,3\n", "of one length"),
        ("1\n2\n", "rows are numbers and a label"),
        ("", "rows are numbers and a label"),
        ("1,2\n", "expected at least 2 rows"),
        ("1,2\n\0", "expected"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        LeastSquares({"parts": 2}, data_dir=str(tmp_path)).parts  # noqa: B018


def test_classes_are_0_and_1(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,0\n2,2\n")
    with pytest.raises(DataError, match="expected labels 0 and 1"):
        Logistic({"parts": 1}, data_dir=str(tmp_path)).parts  # noqa: B018
