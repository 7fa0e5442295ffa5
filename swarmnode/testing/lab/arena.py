"""The virtual engine: n nodes with real strategy objects, in virtual time.

One unit of time is a local step of a node of speed 1. Everything follows from the seed. Events
are taken in order of their time; local steps that fall on the same moment are one batch, so a
swarm of equal nodes costs one batched gradient a step::

    step  ->  flow, gradient, optimizer or probe, local_update, after_step --intents--+
    clock ->  on_clock -----------------------------------------------------intents--+
                                                                                      v
    apply <- commit <- latency <- views <- which nodes meet (meetings.py, gatherings.py)
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from swarmnode.protocol.pacing import pacer_of
from swarmnode.strategies.base import Context, Intent, Kind, Needs, StepInfo, Strategy
from swarmnode.strategies.topology import Graph, observed
from swarmnode.testing.lab.codecs import RAW
from swarmnode.testing.lab.faults import Commit, Faults, Outage
from swarmnode.testing.lab.gatherings import Gatherings
from swarmnode.testing.lab.isolation import is_isolated
from swarmnode.testing.lab.meetings import Meetings
from swarmnode.testing.lab.standings import Standings
from swarmnode.testing.lab.tasks import LabTask, Optimizer
from swarmnode.testing.lab.world import Node, World

StrategyFactory = Callable[[torch.Tensor], Strategy]

_SAME_MOMENT = 1e-9  # of the end of a run: thirds of a unit do not add up to whole ones


class Arena(World):
    """Nodes, their strategies and the time.

    Args:
        make_strategy: returns a strategy over the vector that it is given.
        graph: of nodes that can meet; None: each node every other.
        speeds: of each node, in steps per unit of time; 1 for all by default.
        optimizer: None where strategies take gradients themselves.
        codec: of views that leave it to the swarm.
        guarded: whether pairs are weighed before they count, as nodes do; papers do not.
    """

    def __init__(
        self,
        task: LabTask,
        make_strategy: StrategyFactory,
        *,
        graph: Graph | None = None,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        speeds: Sequence[float] | None = None,
        faults: Faults = Faults(),  # noqa: B008  frozen
        commit: Commit = Commit.ATOMIC,
        codec: str = RAW,
        guarded: bool = False,
    ) -> None:
        super().__init__(task, graph, seed, faults, commit, codec)
        self._optimizer, self._make_strategy = optimizer, make_strategy
        self._weighs = guarded and not task.facts.is_convex
        self._public_probe = task.public_probe() if self._weighs else None
        self._steps: list[tuple[float, int, int]] = []
        self.gatherings = Gatherings(self)
        self.standings = Standings(self, is_on=self._weighs)
        self.meetings = Meetings(self, self.gatherings, self.standings)
        self.nodes = [self._build(i, 1.0 if speeds is None else speeds[i]) for i in range(task.n)]
        for node in self.nodes:
            self._start(node)
        self._pace()
        for outage in faults.outages:
            self._plan(outage)

    # --- time ----------------------------------------------------------------------------

    def run(self, duration: float) -> None:
        """Let ``duration`` units of time go by."""
        end = self.now + duration + _SAME_MOMENT
        while True:
            step_at = self._steps[0][0] if self._steps else math.inf
            event_at = self._events[0][0] if self._events else math.inf
            if min(step_at, event_at) > end:
                self.now = max(self.now, end - _SAME_MOMENT)
                return
            if event_at <= step_at:
                self.now, _, what = heapq.heappop(self._events)
                what()
            else:
                self.now = step_at
                self._take_steps(self._pop_steps())

    # --- nodes ---------------------------------------------------------------------------

    def crash(self, number: int) -> None:
        """Lose a node and all that it knew."""
        node = self.nodes[number]
        node.is_up = False
        node.life += 1
        node.held.clear()
        self.meetings.forget(number)
        self._tell_members()

    def rejoin(self, number: int) -> None:
        """Bring a node back with the snapshot of one that is alive."""
        donor = self.rng.choice(self.up)
        self.flow(donor)
        self.task.x[number].copy_(self.task.x[donor.number])
        old = self.nodes[number]
        node = self.nodes[number] = self._build(number, old.speed, life=old.life + 1)
        node.steps, node.t = donor.steps, donor.t
        shipped, theirs = donor.strategy.shipped(), donor.strategy.buffers()
        node.strategy.join({name: theirs[name].clone() for name in sorted(shipped)})
        if self._optimizer is not None:
            self._optimizer.forget(number)
        self.gatherings.join(number, donor.number)
        self._start(node)
        self._tell_members()

    def _build(self, number: int, speed: float, life: int = 0) -> Node:
        rng = random.Random(f"{self.seed}/node/{number}/{life}")
        strategy = self._make_strategy(self.task.x[number])
        return Node(number, self.ids[number], strategy, rng, speed, life=life, at=self.now)

    def _start(self, node: Node) -> None:
        context = Context(
            self_id=node.peer_id,
            seed=self.seed,
            rng=random.Random(f"{self.seed}/strategy/{node.number}/{node.life}"),
            layout=self.task.layout,
            members=self.ids,
            facts=self.task.facts,
            topology=self.graph,
            probe=self._public_probe,
            weighs=self._weighs,
            loss_trivial=self.task.loss_trivial,
        )
        node.strategy.start(context)
        self._plan_step(node)
        self._plan_ring(node)

    def _pace(self) -> None:
        """Fit all rounds to the speeds, as each daemon does by what the others say of theirs."""
        step_s = {node.number: 1 / node.speed for node in self.up}
        for node in self.up:
            if node.strategy.round_steps():
                pacer = pacer_of(node.strategy.round_steps())
                pacer.note_step(step_s[node.number])
                node.strategy.set_round_steps(pacer.told_steps(step_s.values()))

    def _tell_members(self) -> None:
        members = tuple(node.peer_id for node in self.up)
        for node in self.up:
            node.strategy.on_membership(members)
        self._pace()

    def _plan(self, outage: Outage) -> None:
        self.at(outage.begin, lambda: self.crash(outage.node))
        if math.isfinite(outage.end):
            self.at(outage.end, lambda: self.rejoin(outage.node))

    # --- clocks --------------------------------------------------------------------------

    def _plan_ring(self, node: Node) -> None:
        rate, life = node.strategy.clock_rate() * node.speed, node.life

        def ring() -> None:
            if node.life != life:
                return
            intents = node.strategy.on_clock(self.flow(node))
            self._post([(node, intent) for intent in intents])
            self._plan_ring(node)

        if rate:
            self.at(self.now + node.rng.expovariate(rate), ring)

    def _plan_step(self, node: Node) -> None:
        node.pace = node.strategy.pace()
        rate = node.speed * node.pace
        gap = node.rng.expovariate(rate) if self.task.has_poisson_steps else 1 / rate
        heapq.heappush(self._steps, (self.now + gap, node.number, node.life))

    def _pop_steps(self) -> list[Node]:
        """Return the nodes that step at this moment, in order of their numbers."""
        due = []
        while self._steps and self._steps[0][0] == self.now:
            _, number, life = heapq.heappop(self._steps)
            if self.nodes[number].life == life:
                due.append(self.nodes[number])
        return due

    # --- local steps ---------------------------------------------------------------------

    def _take_steps(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.flow(node)
        losses = self._learn(nodes)
        intents: list[tuple[Node, Intent]] = []
        for node in nodes:
            node.steps += 1
            self._apply_held(node)
            info = StepInfo(node.steps, node.t, losses[node.number], 1 / (node.speed * node.pace))
            intents += [(node, intent) for intent in node.strategy.after_step(info)]
            self._plan_step(node)
        self.tally.gradients += len(nodes)
        self._post(intents)

    def _learn(self, nodes: list[Node]) -> dict[int, float]:
        """Let each node learn from a batch of its own; return the losses by number."""
        losses: dict[int, float] = {}
        by_gradient = []
        for node in nodes:
            probe = node.strategy.gradient_point()
            if probe is None:
                by_gradient.append(node)
            else:
                losses[node.number] = probe(self.task.probe(node.number))
        if by_gradient:
            numbers = [node.number for node in by_gradient]
            found, gradients = self.task.gradients(numbers)
            losses.update(zip(numbers, found.tolist(), strict=True))
            self._descend(by_gradient, numbers, gradients)
        return losses

    def _descend(self, nodes: list[Node], numbers: list[int], gradients: torch.Tensor) -> None:
        needs = nodes[0].strategy.needs
        moved = gradients
        if needs is not Needs.GRADIENT:
            assert self._optimizer is not None, "this strategy wants a local optimizer"
            moved = self._optimizer.steps(numbers, gradients)
            self.task.x[numbers] -= moved
        if needs is not Needs.NOTHING:
            for node, v in zip(nodes, moved, strict=True):
                node.strategy.local_update(v)

    # --- exchanges -----------------------------------------------------------------------

    def _post(self, intents: list[tuple[Node, Intent]]) -> None:
        if is_isolated():
            for node, intent in intents:
                node.strategy.on_abort(intent, "exchange is switched off")
            return
        pairs = [(node, it) for node, it in intents if it.kind in (Kind.PAIR, Kind.PULL)]
        self.meetings.post(pairs)
        for node, intent in intents:
            if intent.kind in (Kind.GROUP, Kind.GATHER):
                self.gatherings.gather(node, intent)
            elif intent.kind is Kind.LOG:
                self.gatherings.publish(node, intent)

    def finalize(self) -> None:
        """Let every strategy end its run."""
        self._post([(node, intent) for node in self.up for intent in node.strategy.finalize()])

    def _apply_held(self, node: Node) -> None:
        due = [held for held in node.held if held[0] <= node.steps]
        if due:
            node.held = [held for held in node.held if held[0] > node.steps]
            for step, exchange in due:
                self.deliver(node, exchange, step)

    # --- figures -------------------------------------------------------------------------

    @property
    def x(self) -> torch.Tensor:
        """Return the parameters of the nodes that are alive: float64 [n_up, numel], a copy."""
        return self.task.x[[node.number for node in self.up]].double()

    def consensus(self) -> float:
        """Return (1/n) Σ ‖x_i − x̄‖² at this moment."""
        self.flow_all()
        x = self.x
        return float((x - x.mean(0)).square().sum(1).mean())

    def measure(self) -> dict[str, float]:
        """Return consensus and what the task measures, at this moment."""
        consensus = self.consensus()
        mean = self.x.mean(0).to(self.task.x.dtype)
        figures = self.task.measure(mean, [node.number for node in self.up])
        return {"consensus": consensus, **figures}

    def observed(self) -> Graph:
        """Return the graph that exchanges have completed on, with their rates."""
        return observed(self.task.n, self.tally.edges, max(self.now, _SAME_MOMENT))

    def digest(self) -> str:
        """Return a hash of all parameters and buffers: equal for equal runs."""
        found = hashlib.sha256()
        for node in self.nodes:
            tensors: dict[str, Any] = {"x": node.strategy.x, **node.strategy.buffers()}
            for name in sorted(tensors):
                found.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
        return found.hexdigest()
