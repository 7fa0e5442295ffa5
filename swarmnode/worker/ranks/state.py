"""What all ranks do together: a step, a loss, a snapshot. Rank 0 orders it, and does it as well.

A batch of the task is shared out: each rank has an equal part of each micro-batch, which counts by
its examples, so that loss and gradient are those of one process. A loss is known to all ranks
before the backward pass: where one rank's is no number, none goes on.

An exchange touches rank 0 alone until it is merged. Then the flat vector is another one, and all
ranks take it before they do anything else.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from swarmnode.errors import ConfigError, InvariantViolation
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.ranks.hands import Hands, PartArena, local_of, part_of, whole_of
from swarmnode.worker.ranks.team import Team
from swarmnode.worker.snapshots.atoms import MODEL, OPTIMIZER, optimizer_state, weights

_Tensors = dict[str, torch.Tensor]
_Piece = tuple[Any, float]  # of a batch, and the share of it

_log = logging.getLogger(__name__)


@dataclass
class RankState(TrainState):
    """The training state of one rank; ``obey`` is called on all of them with the same orders."""

    hands: Hands = field(kw_only=True)
    place: tuple[float, int] | None = None  # of the swarm, as the task is told
    held: Sequence[float] = ()  # what each rank has of model and optimizer

    def obey(self, name: str, is_pushed: bool, *details: Any) -> float:
        """Do what rank 0 orders; return the loss that came of it."""
        if is_pushed:
            self.hands.push()
        match name:
            case "step":
                return self._step(*details)
            case "backward":
                return self._backward(*details)
            case "update":
                self._update(*details)
            case "loss":
                return self._loss(*details)
            case "evaluate":
                return TrainState.evaluate(self)
            case "probe":
                return TrainState.probe_loss(self)
            case "pull":
                self.hands.pull()
            case "gather":
                self._gather(*details)
            case "put":
                self._put(*details)
            case "fill":
                TrainState.fill_optimizer(self)
            case "settle":
                self._settle(*details)
            case "weigh":
                self.held = self._weigh()
            case _:
                raise InvariantViolation(f"expected an order of rank 0, got {name}")
        return math.nan

    # --- a step --------------------------------------------------------------------------

    def _step(
        self, pieces: Sequence[_Piece], lr: Sequence[float], place: tuple[float, int] | None
    ) -> float:
        if place is not None and place != self.place:
            self.place = place
            self.task.progressed(*place)
        value = self._backward(pieces)
        if math.isfinite(value):
            self._update(lr)
        return value

    def _update(self, lr: Sequence[float]) -> None:
        for group, each in zip(self.optimizer.param_groups, lr, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(each)
            else:
                group["lr"] = each
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _backward(self, pieces: Sequence[_Piece]) -> float:
        self.optimizer.zero_grad(set_to_none=True)  # a strategy that took them did so on rank 0
        value = self._sum_up(pieces)
        if math.isfinite(value):
            self.applied.clip()
        return value

    def _sum_up(self, pieces: Sequence[_Piece]) -> float:
        """Return the loss of all parts on all ranks; no gradients are left unless it is finite."""
        size, mean, is_whole = dist.get_world_size(), 0.0, False
        try:
            for number, (piece, share) in enumerate(pieces, 1):
                is_last = number == len(pieces)
                with contextlib.nullcontext() if is_last else self.hands.quiet():
                    loss = self._loss_of_piece(piece)
                    value = _sum_over_ranks(float(loss.detach()) * share)
                    if not math.isfinite(value):
                        return value
                    # Torch makes means over ranks, and the shares of all are 1 together.
                    (loss * (share * size)).backward()  # type: ignore[no-untyped-call]
                mean += value
            is_whole = True
            return mean
        finally:
            if not is_whole:
                self.optimizer.zero_grad(set_to_none=True)

    def _loss(self, pieces: Sequence[_Piece], seed: int) -> float:
        torch.manual_seed(seed + dist.get_rank())  # other dropout would be a difference of its own
        with torch.no_grad():
            own = math.fsum(float(self._loss_of_piece(piece)) * share for piece, share in pieces)
        return _sum_over_ranks(own)

    def _loss_of_piece(self, piece: Any) -> torch.Tensor:
        with self.device.autocast():
            return self.task.loss(self.hands.forward, self.device.move(piece))

    # --- snapshots -----------------------------------------------------------------------

    def _gather(self, atom: str) -> torch.Tensor:
        return whole_of(self._atom(atom))

    def _put(self, atom: str, found: torch.Tensor) -> None:
        with torch.no_grad():
            local_of(self._atom(atom)).copy_(found)

    def _settle(self, kept: set[str], values: dict[str, Any]) -> None:
        """Keep the state of the optimizer for these parameters alone, with these plain values."""
        for name, parameter in self.model.named_parameters():
            if name not in kept:
                self.optimizer.state.pop(parameter, None)
            for key in self.optimizer.state.get(parameter, {}):
                atom = f"{OPTIMIZER}{name}/{key}"
                if atom in values:
                    self.optimizer.state[parameter][key] = values[atom]

    def _atom(self, name: str) -> torch.Tensor:
        if name.startswith(OPTIMIZER):
            return optimizer_state(self)[0][name]
        return weights(self.model)[name.removeprefix(MODEL)]

    # --- figures -------------------------------------------------------------------------

    def _weigh(self) -> list[float]:
        """Return what each rank holds of model and optimizer; 1 is what one alone would."""
        held = [*self.model.parameters(), *optimizer_state(self)[0].values()]
        held_bytes = sum(local_of(each).nbytes for each in held)
        whole_bytes = sum(each.nbytes for each in held)
        shares = torch.zeros(dist.get_world_size(), dtype=torch.float64)
        shares[dist.get_rank()] = held_bytes / whole_bytes
        dist.all_reduce(shares)
        return [float(each) for each in shares]


@dataclass
class LeaderState(RankState):
    """That of rank 0, with which the loop of a worker trains as with any other."""

    team: Team = field(kw_only=True)
    seen_version: int = 0  # of the flat vector, when all ranks had it

    def take_step(self, *batches: Any) -> float:
        """See ``TrainState``."""
        value = self._deal("step", batches, self._lr, self.place)
        if math.isfinite(value):
            self._count_update(len(batches))
        if not self.held:
            _log.info(
                "each rank holds of model and optimizer, where one process would hold 1: %s",
                " ".join(f"{share:.3f}" for share in self.held_shares()),
            )
        return value

    def update(self, n_batches: int) -> None:
        """See ``TrainState``."""
        self._order("update", self._lr)
        self._count_update(n_batches)

    @property
    def _lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _count_update(self, n_batches: int) -> None:
        self.count_step(n_batches)
        self.hands.is_stale = not self.hands.is_whole

    def held_shares(self) -> Sequence[float]:
        """Return what each rank holds of model and optimizer, as a share of what one would."""
        self._order("weigh")
        return self.held

    def backward(self, *batches: Any) -> float:
        """See ``TrainState``."""
        return self._deal("backward", batches)

    def loss_of(self, *batches: Any) -> float:
        """See ``TrainState``."""
        return self._deal("loss", batches, torch.initial_seed() % 2**62)

    def evaluate(self) -> float:
        """See ``TrainState``."""
        return super().evaluate() if self.hands.is_whole else self._order("evaluate")

    def probe_loss(self) -> float:
        """See ``TrainState``."""
        return super().probe_loss() if self.hands.is_whole else self._order("probe")

    def progressed(self, swarm_tokens: float, target_tokens: int) -> None:
        """See ``TrainState``: all ranks hear it with the next step."""
        super().progressed(swarm_tokens, target_tokens)
        self.place = (swarm_tokens, target_tokens)

    def pull(self) -> None:
        """Bring the flat vector up to date."""
        if self.hands.is_stale:
            self.hands.is_stale = False
            self.team.tell_all("pull", False)
            self.hands.pull()

    # --- snapshots -----------------------------------------------------------------------

    def put(self, atom: str, own: torch.Tensor, found: torch.Tensor) -> None:
        """See ``TrainState``: each rank has its part of it."""
        for rank in range(1, self.team.size):
            part = part_of(own, found, rank)
            self.team.tell(rank, "put", False, atom, part.clone())
        local_of(own).copy_(part_of(own, found, 0))
        self.hands.is_stale = not self.hands.is_whole

    def fill_optimizer(self) -> None:
        """See ``TrainState``: some optimizers bring matrices together for a step."""
        self._order("fill")

    def restored(self) -> None:
        """See ``TrainState``."""
        named = self.model.named_parameters()
        kept = {name for name, each in named if self.optimizer.state.get(each)}
        self.team.tell_all("settle", False, kept, optimizer_state(self)[1])

    def gathered(self, tensors: _Tensors) -> _Tensors:
        """See ``TrainState``: one tensor after the other is brought together."""
        return tensors if self.hands.is_whole else _Gathered(tensors, self)

    def gather(self, atom: str) -> torch.Tensor:
        """Return a tensor whole."""
        self.team.tell_all("gather", False, atom)
        return self._gather(atom)

    # --- orders --------------------------------------------------------------------------

    def _deal(self, name: str, batches: Sequence[Any], *details: Any) -> float:
        """Give each rank its part of each micro-batch; return what comes of it."""
        dealt = self._cut(batches)
        is_pushed = self.look_for_news()
        for rank in range(1, self.team.size):
            self.team.tell(rank, name, is_pushed, dealt[rank], *details)
        return self.obey(name, is_pushed, dealt[0], *details)

    def _order(self, name: str, *details: Any) -> float:
        is_pushed = self.look_for_news()
        self.team.tell_all(name, is_pushed, *details)
        return self.obey(name, is_pushed, *details)

    def look_for_news(self) -> bool:
        """Return whether the flat vector has changed since this was asked, or all ranks had it."""
        flat = self.arena.room if isinstance(self.arena, PartArena) else self.arena.flat
        before, self.seen_version = self.seen_version, flat._version
        return before != self.seen_version

    def _cut(self, batches: Sequence[Any]) -> list[list[_Piece]]:
        """Return the pieces of each rank, as many for each: one that has none counts nothing."""
        size = self.team.size
        parts = [part for batch in batches for part, _ in self.micro.cut(batch)]
        cuts = [self._split(part) for part in parts]
        n_examples = sum(n for pieces in cuts for _, n in pieces)
        dealt: list[list[_Piece]] = [[] for _ in range(size)]
        for pieces in cuts:
            spare = [(pieces[0][0], 0)] * (size - len(pieces))
            for rank, (piece, n) in enumerate([*pieces, *spare]):
                dealt[rank].append((_alone(piece), n / n_examples))
        return dealt

    def _split(self, part: Any) -> list[tuple[Any, int]]:
        """Return at most as many pieces as there are ranks. Raises ConfigError."""
        try:
            whole = self.task.split(part, 2**31)
            n_examples = sum(n for _, n in whole)
            return self.task.split(part, -(-n_examples // self.team.size))
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"task {self.task.name}: expected batches that can be shared out over ranks"
                f" ({error}); train with --nproc 1"
            ) from error


class _Gathered(dict[str, torch.Tensor]):
    """Tensors of all ranks by their names; each is brought together when it is looked up."""

    def __init__(self, tensors: _Tensors, state: LeaderState) -> None:
        super().__init__(tensors)
        self._state = state

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = super().__getitem__(name)
        return tensor if local_of(tensor) is tensor else self._state.gather(name)


def _alone(piece: Any) -> Any:
    """Return a piece of a batch without the rest of its memory, as it is to be sent."""
    if isinstance(piece, torch.Tensor):
        return piece.clone()
    if isinstance(piece, dict):
        return {name: _alone(part) for name, part in piece.items()}
    return tuple(_alone(part) for part in piece)


def _sum_over_ranks(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)
