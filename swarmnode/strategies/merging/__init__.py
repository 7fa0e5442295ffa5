"""Rules that make one step of the messages of a gathering: a module each, beside its paper.

A rule is a function of the messages in the order of their authors. It must give the same bits on
every machine: all members apply what it returns, and compare what comes of it. So it computes on
the CPU, in whole operations of float32 in a fixed order, never fused, and rounds what it takes
from sums to float32 before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from swarmnode.strategies.exchanges import Message

MergeRule = Callable[[Sequence[Message]], torch.Tensor]
