"""Batches in parts that fit into memory: gradients of micro-batches are summed up.

What a step learns is the same however its batch is cut: the task's loss is a mean over examples
(``Task.loss_is_mean``), and each part counts by how many it has. Data, their order, steps and
tokens do not change either. A part that is out of memory is cut in two, for good.

Source: gradient accumulation, as in Y. Huang et al., "GPipe", 2019, section 2.2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from swarmnode.ipc.control import BatchFit
from swarmnode.tasks.base import Task
from swarmnode.worker.failures import TooLittleMemory, is_out_of_memory

_AnswerT = TypeVar("_AnswerT")


class MicroBatches:
    """Cuts batches; ``parts`` is a power of two.

    Attributes:
        say: told how batches are cut, each time that this is news.
        needs: says in words what there must be and what there is, for the last error.
    """

    def __init__(self, task: Task, parts: int = 1) -> None:
        self._task = task
        self._parts = max(1, parts)
        self._examples = 0  # of the largest batch so far; 0: none yet
        self.say: Callable[[BatchFit], None] = lambda _fit: None
        self.needs: Callable[[], str] = lambda: "use another device or machine"

    @property
    def fit(self) -> BatchFit:
        """How batches are cut now."""
        size = math.ceil(self._examples / self._parts)
        return BatchFit(size, self._examples, self._parts, is_smallest=size <= 1)

    def cut(self, batch: Any) -> list[tuple[Any, int]]:
        """Return (part, its examples) in order; of a batch that cannot be cut, all of it."""
        whole = [(batch, 1)]
        if not self._task.loss_is_mean:
            self._note(1)
            return whole
        try:
            examples = sum(n for _, n in self._task.split(batch, sys.maxsize))
        except (ValueError, TypeError, AttributeError, IndexError):
            # No tensors of examples: nothing is wrong unless memory is short.
            self._note(1)
            return whole
        self._note(examples)
        size = self.fit.size
        return [(batch, examples)] if size >= examples else self._task.split(batch, size)

    def run(self, action: Callable[[], _AnswerT]) -> _AnswerT:
        """Return what ``action`` does with the parts of a batch, begun anew with smaller ones
        as long as memory does not do.

        Raises:
            TooLittleMemory: nothing is left to cut.
        """
        while True:
            try:
                return action()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                why = " ".join(str(error).split()) or type(error).__name__
            # The error is gone by now, and with it the frames that held the part's activations.
            self._halve(why)
            _give_back_cache()

    def _halve(self, why: str) -> None:
        before = self.fit
        if before.is_smallest:
            what = "one example" if self._task.loss_is_mean else "a batch, which cannot be cut,"
            raise TooLittleMemory(f"too little memory to train {what} here: {self.needs()}; {why}")
        while self.fit.size == before.size:
            self._parts *= 2
        self.say(self.fit)

    def _note(self, examples: int) -> None:
        if examples > self._examples:
            self._examples = examples
            self.say(self.fit)


def _give_back_cache() -> None:
    """Let the GPU have back what was kept for parts of the former size."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
