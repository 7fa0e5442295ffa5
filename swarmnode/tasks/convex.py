"""What the convex tasks share: data in parts, which member has which, the bounds, and the optimum.

The objective is the mean over all parts of the data, in float64::

    f(x) = (1/P) Σ_p f_p(x),      f_p(x) = mean over the rows a of part p of ℓ(a·x, label)
                                           + ½ ridge ‖x‖²

Of n members, the one with index i has the parts i, i + n, i + 2n, … and the mean over them as its
own objective; it takes the whole of it in every step. So the mean over the members is f itself
where n divides P, and the optimum stays where it is as members come and go. Where n does not, the
parts of members that have fewer weigh more; more members than parts share them.

Every f_p, and so every member's objective, has a curvature from mu to L. Both are computed from the
data of all parts, so all members come to the same constants: they need the same data.

``evaluate`` is the distance to the optimum, ‖x − x*‖ / ‖x*‖, which a loss would hide behind its
last digit: a loss that is right to 1e-16 stands for a distance of 1e-8.
"""

from __future__ import annotations

import csv
import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from msgspec import Meta as Range

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.tasks.base import DataError, Task, TaskConfig, seed_of

LabelledRows = tuple[torch.Tensor, torch.Tensor]
_DIM_MAX = 4096
_NUMBERS_MAX = 2**24  # of generated data: 128 MiB
Size = Annotated[int, Range(ge=1, le=_DIM_MAX)]

# Of the largest curvature: below that, rounding decides which way is down.
_CURVATURE_MIN = 1e-9


class Parts(NamedTuple):
    """Rows float64 [n_parts, n_rows, dim] and their labels float64 [n_parts, n_rows]."""

    rows: torch.Tensor
    labels: torch.Tensor


class Convex(Task):
    """A linear model without a bias on rows of numbers; a batch is (rows, labels) of this node."""

    eval_every_steps = 5
    exchange_every_steps = 32  # its steps take well under a millisecond

    class Config(TaskConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """``parts``: P. ``dim``, ``rows`` of each part and ``seed``: of data that is generated.

        With a folder of data these three follow from its files. ``ridge``: as above.
        """

        parts: Size = 24
        dim: Size = 8
        rows: Size = 200
        seed: Annotated[int, Range(ge=0, le=2**32 - 1)] = 0
        ridge: Annotated[float, Range(ge=0.0, le=1e6)] = 0.0

    config: Any

    def __init__(self, config: dict[str, Any], *, data_dir: str = "") -> None:
        super().__init__(config, data_dir=data_dir)
        config_numbers = self.config.parts * self.config.rows * (self.config.dim + 1)
        if not data_dir and config_numbers > _NUMBERS_MAX:
            raise ConfigError(
                f"task {self.name}: expected at most {_NUMBERS_MAX:,} numbers in parts x rows x"
                f" (dim + 1), got {config_numbers:,}: lower one of them"
            )
        self._index, self._n_members = 0, 1
        self._own: LabelledRows | None = None

    # --- what kind of regression it is ---------------------------------------------------

    @abstractmethod
    def draw_labels(self, scores: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return labels float64 [rows] of generated rows, by their products with the truth."""

    @abstractmethod
    def check_labels(self, labels: torch.Tensor) -> None:
        """Refuse labels of a file. Raises DataError."""

    @abstractmethod
    def losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return ℓ of each row by its product with x."""

    @abstractmethod
    def curvature(self, spectrum: torch.Tensor) -> tuple[float, float]:
        """Return bounds on the curvature of the data's share of all f_p, without the ridge.

        ``spectrum``: eigenvalues of AᵀA / rows, float64 [n_parts, dim].
        """

    @abstractmethod
    def find_optimum(self) -> torch.Tensor:
        """Return the x that minimises f: float64 [dim]."""

    # --- the data ------------------------------------------------------------------------

    @cached_property
    def parts(self) -> Parts:
        """All the data, read or generated. Raises DataError."""
        if self.data_dir:
            found = _deal(self._table, self.config.parts)
            self.check_labels(found.labels)
            return found
        drawn = [self._draw(part) for part in range(self.config.parts)]
        return Parts(*(torch.stack(each) for each in zip(*drawn, strict=True)))

    @cached_property
    def _table(self) -> list[list[float]]:
        return _read_folder(Path(self.data_dir))

    @property
    def dim(self) -> int:
        """Of x. No tensor is needed to know: the model is first built without values."""
        return len(self._table[0]) - 1 if self.data_dir else self.config.dim

    def _draw(self, part: int) -> LabelledRows:
        """Return a part whose truth is its own, so that nodes have to agree on something."""
        config = self.config
        generator = torch.Generator().manual_seed(seed_of(f"{config.seed}/{part}"))
        rows = torch.randn(config.rows, config.dim, generator=generator, dtype=torch.float64)
        truth = torch.randn(config.dim, generator=generator, dtype=torch.float64)
        return rows, self.draw_labels(rows @ truth, generator)

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        rows = self.parts.rows
        spectrum = torch.linalg.eigvalsh(rows.mT @ rows / rows.shape[1])
        low, high = (bound + self.config.ridge for bound in self.curvature(spectrum))
        if low < _CURVATURE_MIN * high:
            raise ConfigError(
                f"task {self.name}: expected data whose every part has one optimum, the smallest"
                f" curvature is {low:.3g} and the largest {high:.3g}: set ridge above 0, or fewer"
                " parts"
            )
        return low, high

    @property
    def strong_convexity(self) -> float:  # type: ignore[override]
        """The smallest curvature of any part, mu."""
        return self._bounds[0]

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        """The largest curvature of any part, L."""
        return self._bounds[1]

    @cached_property
    def optimum(self) -> torch.Tensor:
        """The x that minimises f: float64 [dim]."""
        return self.find_optimum()

    def data_hash(self) -> str:
        digest = hashlib.sha256(f"{self.name}/{self.version}/{self.config.parts}".encode())
        for each in self.parts:
            digest.update(each.contiguous().numpy().tobytes())
        return digest.hexdigest()

    # --- a task --------------------------------------------------------------------------

    def placed(self, index: int, n_members: int) -> None:
        self._index, self._n_members, self._own = index, n_members, None

    @property
    def own(self) -> LabelledRows:
        """The rows and labels of this member's parts."""
        if self._own is None:
            n_parts = len(self.parts.rows)
            first = self._index % n_parts
            chosen = list(range(first, n_parts, self._n_members))
            rows, labels = (each[chosen] for each in self.parts)
            self._own = rows.flatten(0, 1), labels.flatten()
        return self._own

    @property
    def tokens_per_batch(self) -> int:
        return int(self.parts.rows.shape[1])

    @property
    def shards_per_epoch(self) -> int:
        return 0

    def build_model(self, seed: int) -> torch.nn.Module:
        del seed  # all begin at zero
        model = torch.nn.Linear(self.dim, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(model.weight)
        return model

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1 / self.smoothness)

    def batches(self, seed: int) -> Iterator[LabelledRows]:
        del seed  # the whole of this member's data in every step
        while True:
            yield self.own

    def loss(self, model: torch.nn.Module, batch: LabelledRows) -> torch.Tensor:
        rows, labels = batch
        (x,) = model.parameters()
        found: torch.Tensor = self.losses(model(rows).squeeze(-1), labels).mean()
        ridge: torch.Tensor = self.config.ridge / 2 * x.square().sum()
        return found + ridge

    def evaluate(self, model: torch.nn.Module) -> float:
        x = next(model.parameters()).detach().cpu().flatten()
        distance, length = float((x - self.optimum).norm()), float(self.optimum.norm())
        return distance / length if length else distance


def _read_folder(folder: Path) -> list[list[float]]:
    """Return the rows of all .csv files in the order of their names, the label last."""
    paths = sorted(folder.glob("*.csv"))
    if sum(path.stat().st_size for path in paths) > limits.CORPUS_BYTES_MAX:
        raise DataError(
            f"data_dir: {folder} holds more than {limits.CORPUS_BYTES_MAX} bytes, which would not"
            " fit in memory; name a smaller folder"
        )
    rows = [row for path in paths for row in _read_rows(path)]
    if not rows or len(rows[0]) < 2:
        raise DataError(
            f"data_dir: expected .csv files in {folder} whose rows are numbers and a label, found"
            f" {len(paths)} files and {len(rows)} rows"
        )
    return rows


def _read_rows(path: Path) -> Iterator[list[float]]:
    with path.open(encoding="utf-8", newline="") as file:
        try:
            for row in csv.reader(file):
                if row:
                    yield [_number(cell) for cell in row]
        except (ValueError, csv.Error) as error:
            raise DataError(
                f"data_dir: {path.name}: expected lines of finite numbers with commas, the label"
                f" last and no heading, got {error}"
            ) from error


def _number(cell: str) -> float:
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError(f"the number {cell!r}")
    return value


def _deal(rows: list[list[float]], n_parts: int) -> Parts:
    """Return part p: the rows p, p + P, p + 2P, …; the last ones are left out, where P divides not.

    Raises:
        DataError: too few, or of different lengths.
    """
    widths = {len(row) for row in rows}
    n_rows = len(rows) // n_parts
    if len(widths) != 1 or not 2 <= min(widths) <= _DIM_MAX + 1 or not n_rows:
        raise DataError(
            f"data_dir: expected at least {n_parts} rows, one for each part, of one length from 2"
            f" to {_DIM_MAX + 1} numbers, got {len(rows)} of lengths"
            f" {sorted(widths)[:8]}"
        )
    table = torch.tensor(rows[: n_rows * n_parts], dtype=torch.float64)
    dealt = table.view(n_rows, n_parts, -1).transpose(0, 1)
    return Parts(dealt[:, :, :-1].contiguous(), dealt[:, :, -1].contiguous())
