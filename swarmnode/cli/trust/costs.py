"""What training costs a machine, for ``swarmnode trust``: time of a step, memory, and traffic.

Members know what a step takes and what memory, and the node of this home has it from them; what
they say is bounded, and the median counts. Else the task, if it is installed here, is tried for a
moment in a process of its own (``worker/tools/trial.py``).

What a strategy sends follows from the manifest alone: torch may not be here, and nothing is to run.
The strategies say the same of themselves (``meeting`` in strategies/base.py); a test compares.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import msgspec

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.volunteer.machine import Footprint, computed, measured
from swarmnode.errors import SwarmNodeError
from swarmnode.ipc.names import PROGRAM_TASK
from swarmnode.ipc.spawn import worker_command, worker_environment
from swarmnode.memory import main_memory
from swarmnode.processes.client import ControlClient
from swarmnode.tasks.installed import look_at_task
from swarmnode.tensor.formats import Format, find_format
from swarmnode.wire.swarm import Manifest

# A step of less is none that a worker could take, one of more than a day none to plan with: a
# member that says so is wrong, or lies.
STEP_S_MIN = 1e-5
STEP_S_MAX = 86_400.0
# Members whose word is taken: more do not change a median.
_MEMBERS_MAX = 1000
# Starting Python and torch takes 4 s alone and 20 s on a machine that is busy; steps take 1.5 s.
_TRIAL_S = 30.0
_STEPS_S = 1.5
# The machine has other things to do while an unknown task is tried.
_MEMORY_SHARE = 0.8
_ANSWER_BYTES_MAX = 64 * 1024

_SWARM_CODEC = ""
_EVERY_MAX = 10**9
_RATE_MAX = 64


@dataclass(frozen=True)
class StepTime:
    """Seconds of a local step, and where they are from, in words."""

    seconds: float
    how: str


@dataclass(frozen=True)
class Measured:
    """What could be measured; ``why_not`` says what was in the way of the rest.

    ``here_s`` is a step of this machine, 0.0 if it took none, and ``step`` may be one of members.
    """

    step: StepTime | None = None
    footprint: Footprint | None = None
    why_not: str = ""
    here_s: float = 0.0
    tokens_per_step: int = 0
    members_s: tuple[float, ...] = ()


def measure(manifest: Manifest, config: NodeConfig) -> Measured:
    """Return what the node of this home knows of the swarm, and else what a trial shows."""
    members = _members_say(manifest.name, config)
    own = own_step(manifest.name, config)
    if own is not None:
        return replace(own, members_s=tuple(possible_steps(members)))
    said, tried = step_of_members(members), _tried(manifest, config)
    return replace(tried, step=said or tried.step, members_s=tuple(possible_steps(members)))


def own_step(name: str, config: NodeConfig) -> Measured | None:
    """Return what a step takes if a node of this home trains this swarm now."""
    with suppress(SwarmNodeError):
        status = ControlClient(config.paths).get("/status")
        if status["swarm"] == name and status["step_time_s"]:
            seconds = float(status["step_time_s"])
            step = StepTime(seconds, f"as measured here by this node: {_ms(seconds)} a step")
            tokens = round(status["tokens"] / max(1, status["step"]))
            why = "this machine trains it already"
            return Measured(step, None, why, here_s=seconds, tokens_per_step=tokens)
    return None


def _members_say(name: str, config: NodeConfig) -> Sequence[Any]:
    with suppress(SwarmNodeError):
        client = ControlClient(config.paths)
        if client.get("/status")["swarm"] == name:
            peers = client.get("/peers")
            return [peer.get("step_time_s") for peer in peers[:_MEMBERS_MAX]]
    return ()


def step_of_members(said: Iterable[Any]) -> StepTime | None:
    """Return the median of what members say a step takes; None if none says what can be."""
    times_s = possible_steps(said)
    if not times_s:
        return None
    median_s = statistics.median(times_s)
    count = len(times_s)
    members = "1 member" if count == 1 else f"{count:,} members"
    return StepTime(median_s, f"measured at {members}: {_ms(median_s)} a step")


def possible_steps(said: Iterable[Any]) -> list[float]:
    """Return what of that can be the time of a step."""
    return [
        float(each)
        for each in said
        if isinstance(each, int | float)
        and math.isfinite(each)
        and STEP_S_MIN <= each <= STEP_S_MAX
    ]


def _tried(manifest: Manifest, config: NodeConfig) -> Measured:
    python, data = _own_environment(manifest, config)
    why_not = _why_no_trial(manifest, config, has_task=bool(python))
    if why_not:
        return Measured(why_not=why_not)
    memory = main_memory()
    bound = round(_MEMORY_SHARE * memory.available_bytes) if memory is not None else 0
    command = worker_command(
        "swarmnode.worker.offline",
        "trial",
        *("--task", manifest.task, "--config", _json(manifest.task_config)),
        *("--strategy", manifest.strategy),
        *("--strategy-settings", _json(manifest.strategy_settings)),
        *("--device", config.device, "--seconds", str(_STEPS_S), "--memory-bytes", str(bound)),
        *("--data-dir", data),
        python=python,
    )
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TRIAL_S,
            check=False,
            env=worker_environment(python),
        )
    except subprocess.TimeoutExpired:
        return Measured(why_not=f"a step did not end within {_TRIAL_S:.0f} s")
    except OSError as error:
        return Measured(why_not=f"no process can be started: {error.strerror}")
    return _read(done.stdout[-_ANSWER_BYTES_MAX:], config)


def _own_environment(manifest: Manifest, config: NodeConfig) -> tuple[str, str]:
    """Return the Python and the folder of data that this home has for the swarm, "" for none."""
    if not manifest.environment:
        return "", ""
    from swarmnode.processes.environment import SwarmEnvironment  # few swarms have one

    kept = SwarmEnvironment(manifest.environment, config.paths.swarm(manifest.name))
    return kept.python, kept.data


def _why_no_trial(manifest: Manifest, config: NodeConfig, *, has_task: bool) -> str:
    """Return what keeps the task from being tried here, "" if nothing does.

    ``has_task``: the swarm's own environment has it.
    """
    installed = look_at_task(manifest.task)
    if manifest.task == PROGRAM_TASK:
        return "a program of yours trains it"
    if not has_task:
        if installed is None:
            return "the task is not installed here"
        if installed.version not in (None, manifest.task_version):
            return "another version of the task is installed here"
    if find_spec("torch") is None:
        return "torch is not installed here"
    if not computed(manifest, config, config.device).fits:
        return "memory would not do"
    return ""


def _read(said: bytes, config: NodeConfig) -> Measured:
    """Read the answer of a trial, the last line that is one; a task may have printed others."""
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        with suppress(ValueError, KeyError, TypeError):
            answer = json.loads(line)
            if "failed" in answer:
                return Measured(why_not=str(answer["message"])[:200])
            steps, took_s = int(answer["steps"]), float(answer["seconds"])
            how = f"measured here: {steps} steps in {took_s:.2g} s"
            parts = int(answer["parts"])
            cut = f", with batches in {parts} parts as memory is short" if parts > 1 else ""
            memory = measured(
                int(answer["main_bytes"]), int(answer["gpu_bytes"]), how + cut, config
            )
            seconds = max(STEP_S_MIN, took_s / max(1, steps))
            tokens = int(answer.get("tokens", 0))
            step = StepTime(seconds, how)
            return Measured(step, memory, here_s=seconds, tokens_per_step=tokens)
    return Measured(why_not="the trial ended without an answer: was it killed for its memory?")


def _json(settings: dict[str, Any]) -> str:
    return msgspec.json.encode(settings).decode()


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


@dataclass(frozen=True)
class Habits:
    """What a node sends, and how often.

    Attributes:
        sent: for each vector of the model's length, its codec.
        every_steps: at first; 0: not known.
        later_every_steps: the most that this grows to.
    """

    sent: tuple[Format, ...]
    every_steps: float
    later_every_steps: float


def habits(manifest: Manifest) -> Habits | None:
    """Return what a node sends, None if strategy, settings or codec are not known here."""
    known = _KNOWN.get(manifest.strategy)
    if known is None:
        return None
    try:
        codecs, every = known(manifest.strategy_settings)
        found = [find_format(codec or manifest.codec) for codec in codecs]
    except KeyError:  # settings of another version
        return None
    sent = tuple(each for each in found if each is not None)
    grows = manifest.strategy_settings.get("lengthen", 0)
    later = every * (limits.ROUND_LONGER_MAX if grows else 1)
    return Habits(sent, every, later) if len(sent) == len(found) else None


Said = tuple[tuple[str, ...], float]


def _every(settings: dict[str, Any]) -> float:
    """Return the local steps of a round; 0 for what is no number of steps."""
    stated = settings.get("every")
    return float(stated) if type(stated) is int and 0 < stated <= _EVERY_MAX else 0.0


def _steps_by_rate(settings: dict[str, Any]) -> float:
    """Return the local steps between two exchanges at random times; 0 if there are none."""
    stated = settings.get("rate")
    if not isinstance(stated, int | float) or isinstance(stated, bool):
        return 0.0
    return 1 / stated if 1 / _EVERY_MAX <= stated <= _RATE_MAX else 0.0


def _pair_average(settings: dict[str, Any]) -> Said:
    return (_SWARM_CODEC,), _steps_by_rate(settings) or _every(settings)


def _a2cid2(settings: dict[str, Any]) -> Said:
    return (_SWARM_CODEC,), _steps_by_rate(settings)


def _dadao(settings: dict[str, Any]) -> Said:
    del settings
    return ("RAW64",), 0.0


def _noloco(settings: dict[str, Any]) -> Said:
    return (_SWARM_CODEC, _SWARM_CODEC), _every(settings)


def _diloco(settings: dict[str, Any]) -> Said:
    # Shares to the members that sum, and sums: each about one model.
    return (_SWARM_CODEC, _SWARM_CODEC), _every(settings)


def _streaming(settings: dict[str, Any]) -> Said:
    delta, phi = str(settings["delta_codec"]), str(settings["weights_codec"])
    codecs: tuple[str, ...] = (delta, phi) if settings["gamma"] else (delta,)
    if settings["meet"] == "group":
        codecs = (*codecs, *codecs)
    return codecs, _every(settings)


def _sparse(settings: dict[str, Any]) -> Said:
    # Once to each other member. A manifest says nothing of them: as if there were one.
    kept = settings["kept"]
    return ("TK2" if kept == 64 else f"TK2K{kept}",), _every(settings)


_KNOWN: dict[str, Callable[[dict[str, Any]], Said]] = {
    "a2cid2": _a2cid2,
    "dadao": _dadao,
    "diloco": _diloco,
    "noloco": _noloco,
    "one-byte": lambda _settings: ((), 1.0),
    "pair-average": _pair_average,
    "sparse": _sparse,
    "streaming": _streaming,
}
