"""When a strategy's rounds begin, and which fragment of the flat vector is due in between.

A round is so many local steps. The number may change from one round to the next, where a pacer
fits it to a node's speed; a round that has begun ends as it was.

Source of the fragments: A. Douillard et al., "Streaming DiLoCo with overlapping communication",
2025, section 2: they are of about equal size and strided over the depth of the model, so that each
holds something of every part of it. Deviation: atoms are tensors, and parts of large ones, where
the paper deals whole transformer layers; a vector is all that is known here, and the peak of what
is sent at once is then close to 1/P for any model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.strategies.base import Strategy
from swarmnode.strategies.merging.pieces import piece_elems, pieces
from swarmnode.strategies.ranges import outside
from swarmnode.tensor.layout import Layout

_ROUND = 0
_GRAIN_ELEMS = 64  # of the codecs' blocks
_PIECES_A_STEP = 8  # of a fragment that is due: two million elements, four milliseconds
_ATOMS_PER_FRAGMENT = 8  # at the least: fragments differ by an eighth of their size at most


def refuse_rounds(name: str, every: int, fragments: int, overlap: int) -> None:
    """Raise ConfigError where fragments of a round would be due or under way together."""
    if fragments > every:
        raise ConfigError(
            f"strategy {name}: expected at most one fragment a step, got fragments {fragments} in"
            f" rounds of {every} steps"
        )
    if overlap and overlap * fragments >= every > 1:
        raise ConfigError(
            f"strategy {name}: expected overlap below every / fragments = {every / fragments:g}, so"
            f" that a fragment lands before the next is sent, got {overlap}; lower overlap or"
            " fragments"
        )


class Rounds:
    """Counts rounds of ``steps`` local steps, each with ``n_fragments`` moments.

    Fragment p of round r is due floor(p steps / n_fragments) steps after the round began.

    Attributes:
        state: int64 [3]: round, the step that it began at, its steps. A buffer of the strategy,
            so that a node goes on where it was, and a joiner in the round where its peer is,
            with the steps of its own.
        n_fragments: moments of a round.
    """

    def __init__(self, steps: int, n_fragments: int = 1, *, grow: bool = False) -> None:
        self.state = torch.tensor([0, 0, steps])
        self.n_fragments = n_fragments
        self._next_steps, self._most_steps = steps, steps * (limits.ROUND_LONGER_MAX if grow else 1)
        self._is_called = False

    def set_steps(self, steps: int) -> None:
        """Let the next round, and those after it, have so many steps."""
        self._next_steps = max(steps, self.n_fragments)

    def refusal(self, state: torch.Tensor) -> str | None:
        """Return why ``state``, of a peer or a file, is none, or None.

        No pacer lets a round have more steps than the settings say, or what they grow to.
        """
        number, begin, steps = state.tolist()
        longest, latest = max(self._most_steps, self.n_fragments), limits.TRAINED_STEPS_MAX
        return (
            outside("rounds", number, 0, latest)
            # A call brings the first round's moments forward, as if it had begun before step 0.
            or outside("the step at which the round began", begin, -longest, latest)
            or outside("the steps of a round", steps, self.n_fragments, longest)
        )

    @property
    def number(self) -> int:
        """The round that this node is in, or its peers are as far as it knows."""
        return int(self.state[_ROUND])

    def catch_up(self, number: int) -> None:
        """Go on as round ``number`` if peers are there already."""
        self.state[_ROUND] = max(self.number, number)

    def go_to(self, number: int) -> None:
        """Go on as round ``number``, as the peers to meet do; it may be an earlier one."""
        self.state[_ROUND] = number

    def call(self) -> None:
        """Let the next moment be now, or after the fewest steps that a pacer would ask for."""
        self._is_called = True

    def _brought_forward(self, since: int, steps: int) -> int:
        """Return by how much earlier the round is to have begun, where a call makes a moment due.

        A call at a moment that is due anyway is answered by it. ``since``: steps since it began.
        """
        if not self._is_called or not 0 < since <= steps:
            return 0
        moments = [*(p * steps // self.n_fragments for p in range(self.n_fragments)), steps]
        last = max(moment for moment in moments if moment < since)
        coming = min(moment for moment in moments if moment >= since)
        if since - last < limits.PACING_FEWEST_SHARE * (coming - last):
            return 0
        self._is_called = False
        return coming - since

    def due(self, step: int) -> list[tuple[int, int]]:
        """Return (fragment, round) of what is due after local step ``step``; call it for each."""
        before = self.state.tolist()
        number, begin, steps = before
        begin -= self._brought_forward(step - begin, steps)
        if not begin <= step < begin + steps:
            if step == begin + steps:
                number, begin, steps = number + 1, step, self._next_steps
            else:
                begin = step - 1  # the rounds came from a peer, the steps are our own
        if [number, begin, steps] != before:
            self.state.copy_(torch.tensor([number, begin, steps]))
        since = step - begin
        n = self.n_fragments
        return [(p, number) for p in range(n) if p * steps // n == since]


class Turns:
    """When the next round of a lineage is posted: one at a time, each on what came of the last.

    ::

        due after H steps, or at a call of others -> posted -> over -> the next, at once if due
    """

    def __init__(self) -> None:
        self._posted: bytes | None = None  # the base version of the round that is on its way
        self._is_due = False
        self._called: int | None = None  # for which round of the lineage others wait

    def call(self, lineage: int) -> None:
        """Others that have ``lineage`` rounds behind them wait for this node."""
        self._called = lineage

    def is_next_due(self, rounds: Rounds, step: int, lineage: int) -> bool:
        """Return whether to post a round now; call it once for each local step."""
        if self._posted is None and not self._is_due and self._called == lineage:
            rounds.call()
        self._is_due |= bool(rounds.due(step))
        return self._is_due and self._posted is None

    def post(self, base_version: bytes) -> None:
        """This round is on its way."""
        self._is_due, self._called, self._posted = False, None, base_version

    def end(self, base_version: bytes) -> bool:
        """A round is over; return whether it was the one on its way."""
        if base_version != self._posted:
            return False
        self._posted = None
        return True

    def leave(self) -> None:
        """Let go of what is on its way: it stands on slow weights that no node has any more.

        What it has learnt since is in no round yet. A straggler that was late waits until others
        call: they are not due, and would meet for its sake.
        """
        self._is_due |= self._posted is not None
        self._posted = None


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


@dataclass(frozen=True)
class Fragment:
    """Some ranges [begin, end) of a flat vector, in ascending order."""

    spans: tuple[tuple[int, int], ...]

    @property
    def numel(self) -> int:
        """Elements in all ranges together."""
        return sum(end - begin for begin, end in self.spans)

    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        """Return a copy of the elements of this fragment: [numel]."""
        return torch.cat([flat[begin:end] for begin, end in self.spans])

    def pieces(self, like: torch.Tensor, after: int = 0) -> Iterator[tuple[slice, slice]]:
        """Yield where pieces of this fragment lie: in it alone, and in the flat vector.

        ``like``: where they are; ``after``: so many elements, the end of a piece.
        """
        done = 0
        for begin, end in self.spans:
            for at in pieces(end - begin, piece_elems(like)):
                if done + at.start >= after:
                    yield (
                        slice(done + at.start, done + at.stop),
                        slice(begin + at.start, begin + at.stop),
                    )
            done += end - begin

    def add(self, flat: torch.Tensor, values: torch.Tensor, alpha: float = 1.0) -> None:
        """Add ``alpha`` times ``values`` [numel] to the elements of this fragment, in place."""
        for part, own in self._parts(flat, values):
            part.add_(own, alpha=alpha)

    def _parts(
        self, flat: torch.Tensor, values: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        done = 0
        for begin, end in self.spans:
            yield flat[begin:end], values[done : done + end - begin]
            done += end - begin


@dataclass
class _Flight:
    """``x``: fast weights as they were, of the first ``numel`` elements of the fragment."""

    step: int
    fragment: Fragment
    x: torch.Tensor
    numel: int = 0

    def look(self, x: torch.Tensor) -> None:
        """Copy some more of the fast weights, which are ``x`` now."""
        for at, part in islice(self.fragment.pieces(x, self.numel), _PIECES_A_STEP):
            self.x[at].copy_(x[part])
            self.numel = at.stop


class Flights:
    """The fragments that are under way, and the fast weights of each as they were when it was due.

    That is ``overlap`` local steps after it was sent; until then they go on changing. Of a large
    fragment they are looked at over several steps, so that none waits long for it. Without an
    overlap nothing is kept: what was sent says it.
    """

    def __init__(self, overlap: int) -> None:
        self._overlap = overlap
        self._step = 0
        self._flights: dict[int, _Flight] = {}

    def note_step(self, step: int, x: torch.Tensor) -> None:
        """Local step ``step`` has been taken, and came to ``x``."""
        self._step = step
        for flight in self._flights.values():
            if step >= flight.step + self._overlap and flight.numel < flight.fragment.numel:
                if not flight.x.numel():
                    flight.x = x.new_empty(flight.fragment.numel)
                flight.look(x)

    def begin(self, number: int, fragment: Fragment, x: torch.Tensor) -> None:
        """A fragment of ``x`` is sent."""
        if self._overlap:
            self._flights[number] = _Flight(self._step, fragment, x[:0])

    def end(self, number: int) -> torch.Tensor:
        """Forget a fragment; return its fast weights, of as many elements as were due already."""
        flight = self._flights.pop(number, None)
        return torch.empty(0) if flight is None else flight.x[: flight.numel]


def cut(layout: Layout, n: int) -> tuple[Fragment, ...]:
    """Return ``n`` fragments that share out the vector; fewer if it is too short.

    The same layout gives the same fragments on every node. In the order of the layout each atom
    goes to the fragment that has the fewest elements yet: equal ones are dealt in turn.
    """
    largest = -(-layout.numel // (n * _ATOMS_PER_FRAGMENT))
    largest = -(-largest // _GRAIN_ELEMS) * _GRAIN_ELEMS
    spans: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    sizes = [0] * n
    for begin, end in _atoms(layout, largest):
        least = sizes.index(min(sizes))
        sizes[least] += end - begin
        own = spans[least]
        if own and own[-1][1] == begin:
            own[-1] = (own[-1][0], end)
        else:
            own.append((begin, end))
    return tuple(Fragment(tuple(own)) for own in spans if own)


def layout_of(fragment: Fragment, layout: Layout) -> Layout:
    """Return where tensors lie in what :meth:`Fragment.gather` returns.

    Of a tensor that is shared out over fragments each part is one of its own.
    """
    parts = [
        (spec, min(end, last) - max(begin, first))
        for first, last in fragment.spans
        for spec, begin, end in layout.spans()
        if begin < last and first < end
    ]
    return Layout.of((f"{i}/{s.name}", (numel,), s.dtype) for i, (s, numel) in enumerate(parts))


def _atoms(layout: Layout, largest: int) -> Iterator[tuple[int, int]]:
    for _, begin, end in layout.spans():
        for at in range(begin, end, largest):
            yield at, min(at + largest, end)
