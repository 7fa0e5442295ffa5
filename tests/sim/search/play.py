"""One scenario on the virtual clock: whole daemons, faults in their order, what must hold after.

What is promised, by the first word of a violation::

    ended      no honest node ends by itself
    logged     no error and no traceback in what nodes log
    moving     when all is over, every node exchanges again, or its log goes on
    agreed     ... and all honest members hold each other for alive, and the same shared state
    bits       nodes with the same outer steps behind them hold the same slow weights, at once or,
               where one of them lies, in the end
    atomic     no exchange, mean or gathering counts on one side only, or with two results
    conserved  sums of all parameters are where they belong (strategy "sums", no attack)
    leaving    Ctrl-C is done within seconds
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio
import trio.testing

from swarmnode import limits
from swarmnode.daemon.status.phases import Training
from swarmnode.processes.audit import audit_histories
from swarmnode.strategies.a2cid2 import A2CiD2
from swarmnode.strategies.dadao import Dadao
from swarmnode.strategies.diloco import DiLoCo
from swarmnode.strategies.noloco import NoLoCo
from swarmnode.strategies.one_byte import BOUNDED, OneByte
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.strategies.sparse import Sparse
from swarmnode.strategies.streaming import Streaming
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, SimSwarm, make_identity, sim_swarm
from tests.kits.hostile.attacks import ATTACKS, replaced_parts
from tests.sim.checks import are_one_swarm, check_conserved, doubts, pull, until
from tests.sim.search.scenario import Fault, Scenario
from tests.sim.search.transitions import Transition, recorded
from tests.sim.strategy_worker import StrategyWorker

NUMEL = 64
# Afterwards: a peer of the link that left and came back knows no peer; it is looked for now and
# then. A round with members that are slow takes its time.
_AGREE_S = 2 * limits.HINT_REDIAL_S
_MOVE_S = 120.0
_LEAVE_S = 2.0
# States are compared at one moment: on slow lines there is always a word on its way.
_FAST_S = 0.01
# Nodes take a mean in at steps of their own: not at every moment have two the same behind them.
_LOOKS = 12
_LINEAGES = ("streaming", "diloco", "sparse")
_IN_PAIRS = ("sums", "pair-average", "noloco", "a2cid2", "dadao")
_CRASHES_MAX = 3  # of a worker: one more within ten minutes ends its node, as it says
_SLOWER = 10.0

_MAKERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pair-average": lambda x: PairAverage({"every": 4}, x),
    "noloco": lambda x: NoLoCo({"every": 4}, x),
    "a2cid2": lambda x: A2CiD2({"rate": 0.3}, x),
    # By rounds of two steps, which a mean takes as well: there is always one on its way.
    "streaming": lambda x: Streaming({"every": 4, "fragments": 2}, x),
    "diloco": lambda x: DiLoCo({"every": 4, "lr": 0.4}, x),
    "sparse": lambda x: Sparse({"every": 6, "kept": 32, "lr": 1.0}, x),
    "one-byte": lambda x: OneByte({"lr": 1e-3} | BOUNDED, x),
    "dadao": lambda x: Dadao({}, x),
}


@dataclass
class Played:
    """What came of it; ``violation`` is empty if all promises hold."""

    scenario: Scenario
    transitions: frozenset[Transition]
    node_s: float
    violation: str
    story: list[str] = field(repr=False)

    @property
    def promise(self) -> str:
        """Which one is broken."""
        return self.violation.partition(":")[0]


class Broken(Exception):
    """A promise does not hold."""


class _Logged(logging.Handler):
    """Errors that nodes survive are bugs all the same."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            cause = record.exc_info[1] if record.exc_info else ""
            self.errors.append(f"{record.name}: {record.getMessage()} {cause!r}")


class _Weather:
    """Lets faults hit a swarm, each at its time; they overlap."""

    def __init__(self, swarm: SimSwarm, scenario: Scenario, say: Callable[[str], None]) -> None:
        self._swarm = swarm
        self._scenario = scenario
        self._say = say
        self._crashes: dict[int, int] = {}
        self.crashed: set[int] = set()
        self.down_s = 0.0
        self._changing: set[int] = set()  # on their way down or up

    async def pass_by(self) -> None:
        """All of it; every node is up and whole again when it is over."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for fault in self._scenario.faults:
                nursery.start_soon(self._hit, fault, began + fault.at_s)
            await trio.sleep_until(began + self._scenario.seconds)

    async def _hit(self, fault: Fault, at_s: float) -> None:
        await trio.sleep_until(at_s)
        node = self._swarm.nodes[fault.who % self._scenario.n_all]
        other = self._swarm.nodes[fault.whom % self._scenario.n_all]
        if node.index in self._changing or node.node is None:
            return
        match fault.kind:
            case "cut":
                self._tell(f"the links of {node.name} and {other.name} break")
                self._swarm.cut(node.index, other.index)
            case "unplug":
                self._tell(f"all links of {node.name} break")
                self._swarm.unplug(node.index)
            case "kill" | "die":
                await self._kill(node, fault)
            case "leave":
                await self._leave(node, fault.lasts_s)
            case "crash-worker":
                self._crash(node)
            case "part":
                await self._part(fault)
            case "pause":
                await self._pause(node, fault.lasts_s)
            case "slow":
                await self._slow(node, fault.lasts_s)
            case "delay":
                await self._delay(fault)

    def _tell(self, what: str) -> None:
        self._say(what)

    async def _kill(self, node: SimNode, fault: Fault) -> None:
        how = "is killed" if fault.kind == "kill" else "loses its power"
        self._tell(f"{node.name} {how}, and is back after {fault.lasts_s:g} s")
        self.crashed.add(node.index)
        self._changing.add(node.index)
        await node.kill(unplug=fault.kind == "kill")
        await self._be_back(node, fault.lasts_s)

    async def _leave(self, node: SimNode, lasts_s: float) -> None:
        self._tell(f"{node.name} leaves, and is back after {lasts_s:g} s")
        self._changing.add(node.index)
        await _leaves_in_time(node)
        await self._be_back(node, lasts_s)

    async def _be_back(self, node: SimNode, lasts_s: float) -> None:
        if node.failure is not None:
            raise Broken(f"ended: {node.name}: {node.failure}")
        self.down_s += lasts_s
        await trio.sleep(lasts_s)
        await self._swarm.start(node.index)
        self._changing.discard(node.index)

    def _crash(self, node: SimNode) -> None:
        crashes = self._crashes.get(node.index, 0)
        if crashes < _CRASHES_MAX and node.running.view.work.has_worker:
            self._crashes[node.index] = crashes + 1
            self._tell(f"the worker of {node.name} dies")
            self.crashed.add(node.index)
            node.worker.crash()

    async def _part(self, fault: Fault) -> None:
        names = [node.name for node in self._swarm.nodes]
        split = 1 + fault.whom % (len(names) - 1)
        turned = names[fault.who % len(names) :] + names[: fault.who % len(names)]
        sides = sorted(turned[:split]), sorted(turned[split:])
        self._tell(f"{sides[0]} and {sides[1]} hear nothing of each other for {fault.lasts_s:g} s")
        self._swarm.network.partition(*sides)
        await trio.sleep(fault.lasts_s)
        self._swarm.network.heal()

    async def _pause(self, node: SimNode, lasts_s: float) -> None:
        work = node.running.view.work
        if isinstance(work, Training):
            self._tell(f"{node.name} pauses for {lasts_s:g} s")
            work.trainer.pause()
            await trio.sleep(lasts_s)
            work.trainer.resume()

    async def _slow(self, node: SimNode, lasts_s: float) -> None:
        self._tell(f"{node.name} trains at a tenth of its speed for {lasts_s:g} s")
        node.worker.step_s = self._scenario.step_s * _SLOWER
        await trio.sleep(lasts_s)
        node.worker.step_s = self._scenario.step_s

    async def _delay(self, fault: Fault) -> None:
        delay_s = (0.0, 0.05, 0.3, 1.0, 2.0)[fault.whom]
        self._tell(f"each way takes {delay_s:g} s, for {fault.lasts_s:g} s")
        self._swarm.network.delay_s = delay_s
        await trio.sleep(fault.lasts_s)
        self._swarm.network.delay_s = self._scenario.delay_s


# --- what must hold ---------------------------------------------------------------------------


def _moved(node: SimNode) -> int:
    """How often it has exchanged, or its log went on."""
    strategy = getattr(node.worker, "strategy", None)
    round_now = (strategy.log_round() or 0) if strategy is not None else 0
    return node.status.exchanges_committed + round_now


async def _leaves_in_time(node: SimNode) -> None:
    with trio.move_on_after(_LEAVE_S) as scope:
        await node.leave()
    if scope.cancelled_caught:
        raise Broken(f"leaving: {node.name} has not left within {_LEAVE_S:g} s")


async def _eventually(promise: str, what: str, holds: Callable[[], bool], limit_s: float) -> None:
    try:
        await until(holds, limit_s, poll_s=0.5)
    except AssertionError as error:
        raise Broken(f"{promise}: {what}, not within {limit_s:g} s") from error


def _odd(swarm: SimSwarm) -> str:
    """Return which node holds other slow weights than another where both stand, "" if none does."""
    found: dict[tuple[float, ...], torch.Tensor] = {}
    for node in swarm.up:
        strategy = getattr(node.worker, "strategy", None)
        if strategy is None or not hasattr(strategy, "phi") or not hasattr(strategy, "lineage"):
            continue
        lineage = tuple(strategy.lineage.tolist())
        if not torch.equal(found.setdefault(lineage, strategy.phi), strategy.phi):
            return f"{node.name} holds others by the same outer steps {lineage}"
    return ""


async def _check_bits(swarm: SimSwarm, within_s: float) -> None:
    """Look so often in a row that nodes are seen where others were: none may hold anything else."""
    until_s = trio.current_time() + within_s
    n_alike = 0
    while n_alike < _LOOKS:
        odd = _odd(swarm)
        if odd and trio.current_time() >= until_s:
            raise Broken(f"bits: {odd}" + (f", after {within_s:g} s" if within_s else ""))
        n_alike = 0 if odd else n_alike + 1
        await trio.sleep(0.3)


def _is_made_huge(scenario: Scenario) -> bool:
    """Whether a liar may make vectors so large that others refuse them for good.

    In pairs nothing is weighed here, as real workers do, and there are no slow weights that others
    could give.
    """
    return scenario.strategy in _IN_PAIRS and scenario.attack == "scaled"


async def _check_life(swarm: SimSwarm, honest: list[SimNode], *, moves: bool) -> None:
    for node in honest:
        if node.node is None:
            raise Broken(f"ended: {node.name}: {node.failure}")
    await _eventually(
        "agreed", "members hold each other for alive", lambda: are_one_swarm(honest), _AGREE_S
    )
    if not moves:
        return
    before = [_moved(node) for node in honest]
    await _eventually(
        "moving",
        "every node exchanges",
        lambda: all(_moved(node) > moved for node, moved in zip(honest, before, strict=True)),
        _MOVE_S,
    )


def _check_histories(honest: list[SimNode], say: Callable[[str], None]) -> None:
    histories = {str(node.peer): node.history for node in honest}
    doubted = {e["xid"] for history in histories.values() for e in history if e.get("in_doubt")}
    half = set(audit_histories(histories).half_applied) - doubted
    for xid in sorted(half):
        for node in honest:
            for entry in node.history:
                if entry["xid"] == xid:
                    told = {k: v for k, v in entry.items() if k not in ("xid", "unix_s")}
                    say(f"{node.name} wrote of {xid[:8]}: {told}")
    if half:
        raise Broken(f"atomic: {len(half)} exchanges are half applied, {sorted(half)[0][:8]} first")


async def _run(home: Path, scenario: Scenario, played: Played) -> None:
    began = trio.current_time()

    def say(what: str) -> None:
        played.story.append(f"{trio.current_time() - began:7.2f} s  {what}")

    worker: Any = FakeWorker(
        np.zeros(0), drift=pull, step_s=scenario.step_s, every=4, save_every=20
    )
    if scenario.strategy != "sums":
        make = _MAKERS[scenario.strategy]
        dtype = torch.float64 if scenario.strategy == "dadao" else torch.float32
        worker = StrategyWorker(np.zeros(NUMEL), make, step_s=scenario.step_s, dtype=dtype)
    async with sim_swarm(
        home,
        scenario.n_nodes,
        seed=scenario.seed,
        delay_s=scenario.delay_s,
        numel=NUMEL,
        worker=worker,
    ) as swarm:
        honest = list(swarm.nodes)
        say(f"{scenario.n_nodes} nodes have started, by {scenario.strategy}")
        if scenario.attack:
            hostile = swarm.add(replace(worker, initial=np.zeros(NUMEL)))
            hostile.worker = _Hostile(hostile.worker, scenario.attack)  # type: ignore[assignment]
            await swarm.start(hostile.index)
            say(f"{hostile.name} has started, and is hostile: {scenario.attack}")
        weather = _Weather(swarm, scenario, say)
        try:
            await weather.pass_by()
            for node in swarm.nodes[scenario.n_nodes :]:
                if node.node is not None:
                    await _leaves_in_time(node)
            say("it is over, and lines are fast")
            swarm.network.delay_s = min(scenario.delay_s, _FAST_S)
            await _check_life(swarm, honest, moves=not _is_made_huge(scenario))
            if scenario.strategy in _LINEAGES:
                # Who was given wrong weights by one that lies asks for others'.
                await _check_bits(swarm, _MOVE_S if scenario.attack else 0.0)
            async with trio.open_nursery() as nursery:
                for node in swarm.up:
                    nursery.start_soon(_leaves_in_time, node)
            for node in honest:
                if node.failure is not None:
                    raise Broken(f"ended: {node.name}: {node.failure}")
            if scenario.strategy == "sums" and not scenario.attack:
                _check_sums(swarm, weather)
            _check_histories(honest, say)
        finally:
            lasted_s = trio.current_time() - began
            played.node_s = lasted_s * scenario.n_all - weather.down_s


def _check_sums(swarm: SimSwarm, weather: _Weather) -> None:
    crashed = tuple(swarm.nodes[index] for index in sorted(weather.crashed))
    try:
        check_conserved(swarm, crashed=crashed, but=doubts(swarm))
    except AssertionError as error:
        raise Broken(f"conserved: {error}") from error


class _Hostile:
    """A worker that lies, in the place of an honest one."""

    def __init__(self, worker: Any, attack: str) -> None:
        self._worker = worker
        self.start = ATTACKS[attack].start_worker(worker.start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


@contextlib.contextmanager
def _quick_disk() -> Iterator[None]:
    """Processes are killed here, machines lose no power: what was written stays."""
    sync = os.fsync
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = sync


def play(scenario: Scenario) -> Played:
    """Run a scenario to its end, whatever that is."""
    played = Played(scenario, frozenset(), 0.0, "", [])
    logged = _Logged()
    logger = logging.getLogger("swarmnode")
    before = logger.level, logger.propagate
    logger.addHandler(logged)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    hostile = make_identity(scenario.n_nodes).peer_id
    attack = ATTACKS[scenario.attack or "none"]
    try:
        with (
            tempfile.TemporaryDirectory() as home,
            _quick_disk(),
            replaced_parts(attack, lambda peer: bool(scenario.attack) and peer == hostile),
            recorded() as recorder,
        ):
            clock = trio.testing.MockClock(autojump_threshold=0)
            try:
                trio.run(_run, Path(home), scenario, played, clock=clock)
            except Exception as errors:  # whatever a node raises is what is looked for
                played.violation = _first(errors)
            played.transitions = frozenset(recorder.seen)
    finally:
        logger.removeHandler(logged)
        logger.setLevel(before[0])
        logger.propagate = before[1]
    if logged.errors and not played.violation:
        played.violation = f"logged: {logged.errors[0]}"
    if played.violation:
        played.story.append(f"!! {played.violation}")
    return played


def _first(errors: Exception) -> str:
    """Return which promise is broken; an error that no check has raised is a bug of the product."""
    leaves = list(_leaves(errors))
    for error in leaves:
        if isinstance(error, Broken):
            return str(error)
    return f"ended: {type(leaves[0]).__name__}: {leaves[0]}"


def _leaves(errors: Exception) -> Iterator[Exception]:
    if isinstance(errors, ExceptionGroup):
        for each in errors.exceptions:
            yield from _leaves(each)
    else:
        yield errors
