"""A batch in parts: tensors are cut along their first dimension, in tuples, lists and maps too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any


def split_batch(batch: Any, examples_max: int) -> list[tuple[Any, int]]:
    """Return (part, its examples) in order, each of at most ``examples_max`` examples.

    Raises:
        ValueError: its tensors do not agree on how many examples there are.
    """
    n_examples = count_examples(batch)
    cuts = [*range(0, n_examples, examples_max), n_examples]
    return [(_cut(batch, begin, end), end - begin) for begin, end in pairwise(cuts)]


def count_examples(batch: Any) -> int:
    """Return the length of the first dimension, which all tensors of a batch share.

    Raises:
        ValueError: they do not, or there is none.
    """
    lengths = {int(each.shape[0]) if each.ndim else 0 for each in _tensors(batch)}
    if len(lengths) != 1 or not min(lengths):
        raise ValueError(
            "expected tensors whose first dimension counts the examples of the batch, got lengths"
            f" {sorted(lengths)}: the task says in split() how its batches are cut"
        )
    return lengths.pop()


def _tensors(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list):
        for part in batch:
            yield from _tensors(part)
    else:
        yield batch


def _cut(batch: Any, begin: int, end: int) -> Any:
    if isinstance(batch, dict):
        return {name: _cut(part, begin, end) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_cut(part, begin, end) for part in batch)
    return batch[begin:end]
