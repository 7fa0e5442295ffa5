"""The parts of a strategy: four methods are enough, and what was written before goes on working."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from swarmnode.errors import InvariantViolation
from swarmnode.ipc.control import Applied, SlotReady
from swarmnode.strategies import base, parts
from swarmnode.strategies.base import (
    Exchange,
    Intent,
    Kind,
    Meeting,
    Meta,
    Offer,
    Selector,
    Sent,
    StepInfo,
    Strategy,
)
from swarmnode.strategies.kinds import LogOnly, RandomPairs
from swarmnode.strategies.outer import learnt, moment_map, momentum_step
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.rounds import InRounds, Rounds
from swarmnode.testing.lab.arena import Arena
from swarmnode.testing.lab.tasks import Sgd, Walk
from tests.algorithms.outer_kit import digits
from tests.kits.worker_kit import DIM, Rig
from tests.unit.test_docs import ROOT, blocks, table_after, text_of

PAGE = text_of(ROOT / "docs" / "strategies.md")
PARTS = [part for part in Strategy.__mro__ if part.__module__ == parts.__name__]

# Every method that a user's own strategy may have, with what it is called with.
INTERFACE = {
    "parse": ["settings"],
    "check": ["config", "facts"],
    "meeting": ["config"],
    "buffers": [],
    "shipped": [],
    "check_received": ["received"],
    "join": ["received"],
    "start": ["ctx"],
    "flow": ["t"],
    "gradient_point": [],
    "local_update": ["v"],
    "before_update": ["x"],
    "after_update": ["x"],
    "after_step": ["info"],
    "clock_rate": [],
    "on_clock": ["t"],
    "pace": [],
    "round_steps": [],
    "set_round_steps": ["steps"],
    "answers": [],
    "payload_numel": [],
    "view": ["intent", "name", "out"],
    "accept": ["offer"],
    "weigh": ["exchange"],
    "apply": ["exchange"],
    "viewing": ["intent", "name", "out"],
    "applying": ["exchange"],
    "on_abort": ["intent", "why"],
    "on_stray": [],
    "on_doubt": [],
    "on_resume": [],
    "on_call": ["lineage"],
    "weight": ["intent"],
    "prefer": ["intent", "begin", "candidates"],
    "on_records": ["round_number", "records"],
    "log_round": [],
    "on_membership": ["members"],
    "finalize": [],
    "metrics": [],
    "whole": ["name", "codec"],
}


def methods_of(owner: type) -> list[str]:
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, classmethod))
        if not isinstance(value, type)
    ]


# --- the interface --------------------------------------------------------------------------------


def test_the_methods_keep_their_names_and_what_they_are_called_with() -> None:
    found = {
        name: list(inspect.signature(getattr(Strategy, name)).parameters)
        for owner in (Strategy, *PARTS)
        for name in methods_of(owner)
    }
    bound = {"parse", "check", "meeting"}  # to the class
    assert found == {
        name: given if name in bound else ["self", *given] for name, given in INTERFACE.items()
    }
    abstract = Strategy.__abstractmethods__
    assert abstract == {"view", "apply"}, "what everybody must write"


def test_a_part_is_small_and_the_page_lists_it() -> None:
    table = table_after(PAGE, "writes those of\nthe parts that it has")
    for owner in (Strategy, *PARTS):
        names = methods_of(owner)
        assert 1 <= len(names) <= 12
        assert sorted(re.findall(r"`(\w+)`", table[owner.__name__][-1])) == sorted(names)
    assert len(table) == len(PARTS) + 1


def test_strategies_find_everything_in_base() -> None:
    for module in ("context", "exchanges"):
        module_name = f"swarmnode.strategies.{module}"
        for name, value in vars(sys.modules[module_name]).items():
            if isinstance(value, type) and value.__module__ == module_name:
                assert getattr(base, name) is value
                assert name in base.__all__


# --- four methods ---------------------------------------------------------------------------------


@pytest.fixture
def part_average(monkeypatch: pytest.MonkeyPatch) -> type[Strategy]:
    """The example of the page."""
    module = ModuleType("part_average")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # settings are read by its names
    exec(compile(blocks(PAGE, "python")[0], "part_average.py", "exec"), vars(module))
    found: type[Strategy] = module.PartAverage
    return found


def test_the_example_has_four_methods(part_average: type[Strategy]) -> None:
    assert methods_of(part_average) == ["meeting", "after_step", "view", "apply"]


def test_four_methods_train_and_exchange_in_the_laboratory(part_average: type[Strategy]) -> None:
    arena, figures = digits(part_average, {"every": 2, "parts": 2}, n=4, steps=120)
    assert arena.tally.exchanges == 2 * 60
    assert figures["accuracy"] > 0.85
    alone, _ = digits(part_average, {"every": 1000}, n=4, steps=120)
    assert alone.tally.exchanges == 0
    assert arena.consensus() < alone.consensus() / 4


@pytest.fixture
def rigs(part_average: type[Strategy], tmp_path: Path) -> Iterator[list[Rig]]:
    settings = {"every": 2, "parts": 2}
    made = [Rig(tmp_path / name, strategy=part_average, settings=settings) for name in "ab"]
    yield made
    for rig in made:
        rig.close()


def test_four_methods_train_and_exchange_in_the_worker(rigs: list[Rig]) -> None:
    one, two = rigs
    one.step(1)  # learns what the other does not
    two.step(2)
    one.step(1)
    one.x[DIM // 2 :] += 1.0
    sides = [rig.ask(rig.intent()) for rig in rigs]
    assert all(isinstance(side, SlotReady) for side in sides)
    before = [rig.x.clone() for rig in rigs]
    (own_one, room_one), (own_two, room_two) = (
        rig.halves(side) for rig, side in zip(rigs, sides, strict=True)
    )
    room_one.copy_(own_two)
    room_two.copy_(own_one)
    for rig, side in zip(rigs, sides, strict=True):
        rig.apply(side)
        assert len(rig.received(Applied)) == 1
    middle = (before[0] + before[1]) / 2
    for rig, old in zip(rigs, before, strict=True):
        assert torch.equal(rig.x[: DIM // 2], old[: DIM // 2]), "not the part of this round"
        torch.testing.assert_close(rig.x[DIM // 2 :], middle[DIM // 2 :])
        rig.step(2)
        assert rig.intent().round == 2


# --- parts that are worked out --------------------------------------------------------------------


class Quarter(RandomPairs, Strategy):
    """Two methods: it goes a quarter of the way at random times."""

    name = "quarter"

    def node_rate(self) -> float:
        return 1.0

    def apply(self, exchange: Exchange) -> None:
        self.x.add_(exchange.difference("x"), alpha=0.25)


class Counting(InRounds, Strategy):
    name = "counting"

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.rounds = Rounds(8)

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        out.copy_(self.x)

    def apply(self, exchange: Exchange) -> None:
        self.x.add_(exchange.difference("x"), alpha=0.5)


class Silent(LogOnly, Strategy):
    name = "silent"


def test_random_pairs_need_a_rate_and_what_becomes_of_what_came() -> None:
    task = Walk(8, 20, seed=1)
    arena = Arena(task, lambda x: Quarter({}, x), optimizer=Sgd(task.x, 0.0))
    mean, before = task.x.mean(0).clone(), arena.consensus()
    arena.run(40)
    assert arena.tally.exchanges == pytest.approx(8 * 40 / 2, rel=0.25)
    assert arena.consensus() < before / 1000
    torch.testing.assert_close(task.x.mean(0), mean)


def test_rounds_of_a_peer_are_judged_and_those_of_a_pacer_taken() -> None:
    strategy = Counting({}, torch.zeros(4))
    state = strategy.rounds.state
    assert strategy.check_received({}) is None
    assert strategy.check_received({"rounds": state}) is None
    assert "rounds: expected" in str(strategy.check_received({"rounds": state - 1}))
    strategy.set_round_steps(3)
    assert [step for step in range(1, 16) if strategy.rounds.due(step)] == [8, 11, 14]


def test_who_only_has_a_log_sends_no_vector() -> None:
    strategy = Silent({}, torch.zeros(4))
    assert strategy.meeting(None) == Meeting(Kind.LOG, 1.0, ())
    assert strategy.payload_numel() == 1
    with pytest.raises(InvariantViolation, match="silent: records of the log are all that is sent"):
        strategy.view(Intent(Kind.PAIR, 0), "x", torch.zeros(4))


# --- what was written before there were parts -----------------------------------------------------


class AsBefore(Strategy):
    """Pair averaging at random times as it was written when Strategy was one class."""

    name = "as-before"

    @classmethod
    def meeting(cls, config: Any) -> Meeting:
        return Meeting(Kind.PAIR, 1.0, (Sent(),))

    def after_step(self, info: StepInfo) -> Sequence[Intent]:
        return ()

    def clock_rate(self) -> float:
        return 0.5

    def on_clock(self, t: float) -> Sequence[Intent]:
        return self.answers()

    def answers(self) -> Sequence[Intent]:
        return (Intent(Kind.PAIR, 0, (self.whole("x"),), selector=Selector.NEIGHBOUR),)

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        out.copy_(self.x)

    def apply(self, exchange: Exchange) -> None:
        self.x.add_(exchange.difference("x").to(self.x.device), alpha=0.5)


def test_a_strategy_of_before_does_the_same_to_the_bit() -> None:
    def run(strategy: type[Strategy], settings: dict[str, Any]) -> str:
        task = Walk(6, 30, seed=2, noise=0.1)
        arena = Arena(task, lambda x: strategy(settings, x), optimizer=Sgd(task.x, 0.01), seed=5)
        arena.run(60)
        assert arena.tally.exchanges > 100
        return arena.digest()

    assert run(AsBefore, {}) == run(PairAverage, {"rate": 1.0})


@pytest.mark.parametrize(("beta", "gamma"), [(0.7, 0.7), (1.0, 0.5), (0.5, 1.0), (0.0, 0.0)])
def test_what_is_taken_of_a_node_is_its_fast_weights_in_the_measure_of_the_larger_rate(
    beta: float, gamma: float
) -> None:
    phi, delta = torch.tensor([3.0, -1.0]), torch.tensor([0.5, 2.0])
    whole = max(beta, gamma) or 1.0
    found = learnt({"phi": phi, "delta": delta}, beta, gamma)
    torch.testing.assert_close(found, (gamma * phi - beta * delta) / whole)
    if beta == gamma == 0.7:
        torch.testing.assert_close(found, phi - delta)
    torch.testing.assert_close(learnt({"delta": delta}, beta, gamma), -delta)


@pytest.mark.parametrize("nesterov", [False, True])
def test_among_all_nodes_the_map_of_moments_is_that_of_one_outer_step(nesterov: bool) -> None:
    """Of a deviation x and its momentum d: what becomes of x², x d and d²."""
    momentum, gamma = 0.6, 0.3
    for x, d in ((1.0, 0.0), (0.0, 1.0), (2.0, -0.5)):
        new_d = torch.tensor(d, dtype=torch.float64)
        pull = torch.tensor(-gamma * x, dtype=torch.float64)
        new_x = x + momentum_step(new_d, pull, momentum, nesterov=nesterov)
        found = moment_map(momentum, gamma, 1.0, nesterov=nesterov) @ [x * x, x * d, d * d]
        expected = [new_x * new_x, new_x * new_d, new_d * new_d]
        assert found == pytest.approx([float(each) for each in expected])


# --- what is not said -----------------------------------------------------------------------------


class SaysNothing(Strategy):
    name = "says-nothing"

    def view(self, intent: Intent, name: str, out: torch.Tensor) -> None:
        out.copy_(self.x)

    def apply(self, exchange: Exchange) -> None:
        pass


def test_of_a_strategy_that_says_nothing_nothing_is_asked_and_nothing_refused() -> None:
    strategy = SaysNothing({}, torch.zeros(4))
    assert strategy.version == 1
    assert (strategy.reads_in_passing, strategy.adds_up) == (False, False)
    assert strategy.meeting(strategy.config) == Meeting(Kind.PAIR, 0.0, (Sent(),))
    assert (strategy.buffers(), [*strategy.shipped()]) == ({}, [])
    assert strategy.check_received({"any": torch.zeros(1)}) is None
    assert strategy.gradient_point() is None
    assert (strategy.clock_rate(), strategy.pace(), strategy.round_steps()) == (0.0, 1.0, 0)
    assert (strategy.on_clock(1.0), strategy.answers(), strategy.log_round()) == ((), (), 0)
    assert (strategy.after_step(StepInfo(1, 1.0, 0.0, 0.1)), strategy.finalize()) == ((), ())
    intent = Intent(Kind.GROUP, 0, weight=0.25)
    assert strategy.weight(intent) == 0.25
    candidates = [torch.zeros(2), torch.ones(2)]
    assert [strategy.prefer(intent, 0, candidates[:n]) for n in (1, 2)] == [0, 1]
    meta = Meta(0, 0, 0.0)
    assert strategy.accept(Offer(b"p" * 32, intent, meta)) is None
    verdict = strategy.weigh(Exchange(intent, meta, {}, {}, 0))
    assert (verdict.refusal, verdict.share) == (None, 1.0)


def test_how_often_nodes_meet_is_what_the_settings_say() -> None:
    assert Quarter.meeting(type("Config", (), {"every": 7})()) == Meeting(Kind.PAIR, 7.0, (Sent(),))


class Keeps(SaysNothing):
    """Has buffers, and is told of each step."""

    def __init__(self, settings: dict[str, Any], x: torch.Tensor) -> None:
        super().__init__(settings, x)
        self.one, self.two = torch.zeros(2), torch.zeros(2)
        self.steps: list[list[float]] = []

    def buffers(self) -> dict[str, torch.Tensor]:
        return {"one": self.one, "two": self.two}

    def local_update(self, v: torch.Tensor) -> None:
        self.steps.append(v.tolist())


def test_who_joins_takes_of_the_buffers_those_that_came() -> None:
    strategy = Keeps({}, torch.zeros(2))
    assert [*strategy.shipped()] == ["one", "two"]
    strategy.join({"two": torch.ones(2)})
    assert (strategy.one.tolist(), strategy.two.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_a_step_is_what_the_parameters_were_less_what_they_are() -> None:
    x = torch.tensor([1.0, 2.0])
    strategy = Keeps({}, x)
    for moved in (0.5, 0.25):
        strategy.before_update(x)
        x.sub_(moved)
        strategy.after_update(x)
    assert strategy.steps == [[0.5, 0.5], [0.25, 0.25]]
    assert x.tolist() == [0.25, 1.25]
