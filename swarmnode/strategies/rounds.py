"""When a strategy's rounds begin, and which fragment is due in between.

A round is so many local steps. The number may change from one round to the next, where a pacer
fits it to a node's speed; a round that has begun ends as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from swarmnode import limits
from swarmnode.strategies.base import Strategy
from swarmnode.strategies.ranges import outside

_ROUND = 0


class Rounds:
    """Counts rounds of ``steps`` local steps, each with ``n_fragments`` moments.

    Fragment p of round r is due floor(p steps / n_fragments) steps after the round began.

    Attributes:
        state: int64 [3]: round, the step that it began at, its steps. A buffer of the strategy,
            so that a node goes on where it was, and a joiner in the round where its peer is,
            with the steps of its own.
    """

    def __init__(self, steps: int, n_fragments: int = 1) -> None:
        self.state = torch.tensor([0, 0, steps])
        self._n_fragments = n_fragments
        self._next_steps = self._most_steps = steps

    def set_steps(self, steps: int) -> None:
        """Let the next round, and those after it, have so many steps."""
        self._next_steps = max(steps, self._n_fragments)

    def refusal(self, state: torch.Tensor) -> str | None:
        """Return why ``state``, of a peer or a file, is none, or None.

        No pacer lets a round have more steps than the settings say.
        """
        number, begin, steps = state.tolist()
        longest = max(self._most_steps, self._n_fragments)
        return (
            outside("rounds", number, 0, limits.TRAINED_STEPS_MAX)
            or outside("the step at which the round began", begin, 0, limits.TRAINED_STEPS_MAX)
            or outside("the steps of a round", steps, self._n_fragments, longest)
        )

    @property
    def number(self) -> int:
        """The round that this node is in, or its peers are as far as it knows."""
        return int(self.state[_ROUND])

    def catch_up(self, number: int) -> None:
        """Go on as round ``number`` if peers are there already."""
        self.state[_ROUND] = max(self.number, number)

    def go_to(self, number: int) -> None:
        """Go on as round ``number``, as those do with whom to meet; it may be an earlier one."""
        self.state[_ROUND] = number

    def due(self, step: int) -> list[tuple[int, int]]:
        """Return (fragment, round) of what is due after local step ``step``; call it for each."""
        number, begin, steps = self.state.tolist()
        if not begin <= step < begin + steps:
            if step == begin + steps:
                number, begin, steps = number + 1, step, self._next_steps
            else:
                begin = step - 1  # the rounds came from a peer, the steps are our own
            self.state.copy_(torch.tensor([number, begin, steps]))
        since = step - begin
        n = self._n_fragments
        return [(p, number) for p in range(n) if p * steps // n == since]


class InRounds(Strategy):
    """A strategy whose rounds have ``config.every`` local steps unless a pacer finds others.

    It makes its ``rounds``, and has their state among its buffers as ``rounds``.
    """

    rounds: Rounds

    def check_received(self, received: Mapping[str, torch.Tensor]) -> str | None:
        state = received.get("rounds")
        return None if state is None else self.rounds.refusal(state)

    def round_steps(self) -> int:
        return int(self.config.every)

    def set_round_steps(self, steps: int) -> None:
        self.rounds.set_steps(steps)
