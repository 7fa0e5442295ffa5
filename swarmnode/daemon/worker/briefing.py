"""What the worker is told: its swarm and its owner's rules at first, then which others train.

First it is told the swarm's manifest, and what the owner of the node allows. Of the others it is
told which train, and how long a round is to be: both follow from what peers say of themselves, so
both are told seldom, however often that changes.

Here is also whether a node trains on other data than its swarm's creator, and what to say of it.
Other data is allowed, but not in silence: an owner who forgot `--data` trains on the task's own
text, and all other members on that too once models are averaged.

And ``Assigner``, which hears in return what a worker does with the shards that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.ids import PeerId
from swarmnode.ipc.control import (
    Configure,
    Members,
    Progress,
    RoundSteps,
    SwarmProgress,
    WorkerReady,
)
from swarmnode.protocol.pacing import pacer_of
from swarmnode.quantities import parse_bytes
from swarmnode.store.training_data import TrainingData
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.swarm import Manifest

_log = get_logger("swarmnode.daemon.worker")


@dataclass(frozen=True)
class TrainingChoice:
    """What the owner of a node decides about its share of the work."""

    device: str = "auto"
    threads: int = 0
    steps_max: int = 0  # 0: until told to stop
    data_dir: str = ""
    model_dir: str = ""  # what training goes on from
    own_data: bool = False  # other data than the creator's is meant
    python: str = ""  # of the swarm's environment; "": this one
    # Brings about what a manifest with an environment asks for, and says where it is; may ask.
    equip: Callable[[Manifest, TrainingChoice], TrainingChoice] = lambda _, choice: choice

    @property
    def remembered(self) -> TrainingData:
        """What of it counts after the next start too, unless something else is said."""
        return TrainingData(self.data_dir, self.own_data, self.model_dir)


def configure_of(
    manifest: Manifest, config: NodeConfig, choice: TrainingChoice, self_id: PeerId
) -> Configure:
    """Return it."""
    return Configure(
        task=manifest.task,
        task_config=manifest.task_config,
        strategy=manifest.strategy,
        strategy_settings=manifest.strategy_settings,
        swarm_seed=manifest.seed,
        # Every node has its own stream of batches, and the same one after a restart.
        shard_seed=int.from_bytes(self_id[:4], "big"),
        snapshot_dir=str(config.paths.swarm(manifest.name).snapshots),
        device=choice.device,
        steps_max=choice.steps_max,
        data_dir=choice.data_dir,
        model_dir=choice.model_dir,
        layout_hash=manifest.layout_hash,
        data_hash=manifest.data_hash.hex(),
        probe_hash=(manifest.probe_hash or b"").hex(),
        own_data=choice.own_data or bool(manifest.own_data),
        task_version=manifest.task_version,
        task_package=manifest.task_package or "",
        task_package_version=manifest.task_package_version or "",
        threads=choice.threads,
        gpus=config.gpus,
        gpu_memory_bytes=parse_bytes(config.gpu_memory),
        self_id=self_id,
        nproc=config.nproc,
        parallel=config.parallel,
        python=choice.python,
        log_format=config.log_format,
        log_level=config.log_level,
        sandbox=config.sandbox,
        home=str(config.home),
        topology=manifest.topology,
        recipe=manifest.recipe or None,
    )


def has_other_data(configure: Configure, ready: WorkerReady | None) -> bool:
    """Whether both fingerprints are known and differ."""
    if ready is None or not configure.data_hash or not ready.data_hash:
        return False
    return ready.data_hash != configure.data_hash


def data_alarm(configure: Configure, ready: WorkerReady | None) -> str:
    """Say that other data is trained on than the creator's, "" where it is not or is meant.

    The folder is not named: the page of the node shows this too.
    """
    if configure.own_data or not has_other_data(configure, ready):
        return ""
    if configure.data_dir:
        why = "the folder of --data has other files than its creator's, or they have changed since"
    else:
        why = "no --data was given, so it is the task's own"
    return (
        f"this node trains on other data than its creator: {why}; join with --data FOLDER and a"
        " copy of the creator's, or with --own-data if that is meant"
    )


def data_in_words(configure: Configure, ready: WorkerReady | None) -> str:
    """Say what is trained on, for `status`."""
    words = configure.data_dir or "the task's own"
    if has_other_data(configure, ready):
        words += "; this node trains on other data than its creator"
        words += ", as is meant" if configure.own_data else ""
    return words


def place_in_words(configure: Configure, ready: WorkerReady) -> str:
    """Say where a worker trains."""
    if configure.nproc == 1:
        return ready.device
    return f"{ready.device} in {configure.nproc} processes ({configure.parallel})"


class Assigner(Protocol):
    """Hears what the worker does with its shards; see ``daemon/membership/assignment.py``."""

    def worker_ready(self, ready: WorkerReady) -> None:
        """It trains."""

    def worker_gone(self) -> None:
        """It died."""

    def rests(self) -> None:
        """It is paused, or has done all that was asked."""

    def goes_on(self) -> None:
        """It trains again."""

    def finished(self, epoch: int, index: int) -> None:
        """It has trained a shard to the end."""


class NoAssigner:
    """The worker trains on its own stream of batches; no part asks what it does."""

    def worker_ready(self, ready: WorkerReady) -> None:
        """See ``Assigner``."""

    def worker_gone(self) -> None:
        """See ``Assigner``."""

    def rests(self) -> None:
        """See ``Assigner``."""

    def goes_on(self) -> None:
        """See ``Assigner``."""

    def finished(self, epoch: int, index: int) -> None:
        """See ``Assigner``."""


class NoBriefing:
    """In place of ``Briefing``: the worker knows of no member."""

    async def run(self) -> None:
        """See ``Briefing``."""
        await trio.sleep_forever()

    async def pace(self) -> None:
        """See ``Briefing``."""
        await trio.sleep_forever()

    async def follow(self) -> None:
        """See ``Briefing``."""
        await trio.sleep_forever()

    def worker_ready(self, ready: WorkerReady) -> None:
        """See ``Briefing``."""

    def worker_gone(self) -> None:
        """See ``Briefing``."""

    def progress(self, progress: Progress) -> None:
        """See ``Briefing``."""

    def call_s(self) -> float:
        """See ``Briefing``."""
        return 0.0

    def members_changed(self) -> None:
        """See ``Briefing``."""


class Briefing:
    """Looks at the others and tells the worker that runs now.

    Args:
        members: those that train now, ourselves included.
        speeds: seconds of a local step, as each other one of them says.
        post: sends a message to the worker, if there is one.

    Attributes:
        swarm: how far the swarm is; None: its manifest has no recipe that would follow it.
        on_ready: told that a worker is up, before that is told anything.
    """

    def __init__(
        self,
        self_id: PeerId,
        *,
        members: Callable[[], tuple[PeerId, ...]],
        speeds: Callable[[], Mapping[PeerId, float]],
        post: Callable[[Members | RoundSteps | SwarmProgress], None],
    ) -> None:
        self.swarm: Callable[[], SwarmProgress] | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self._self_id = self_id
        self._members = members
        self._speeds = speeds
        self._post = post
        self._is_ready = False
        self._told: tuple[bytes, ...] = ()
        self._pacer = pacer_of(1)  # of the worker's rounds
        self._steps = 0  # of a round, as the worker was told; 0: its strategy has none
        self._changed = trio.Event()

    async def run(self) -> None:
        """Tell of changed members until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self._tell_members()
            await trio.sleep(limits.MEMBERS_TOLD_S)

    async def pace(self) -> None:
        """Fit the rounds to the swarm until cancelled."""
        while True:
            await trio.sleep(limits.PACING_TOLD_S)
            self._tell_steps()

    async def follow(self) -> None:
        """Tell how far the swarm is until cancelled, if it has a recipe that follows that."""
        while self.swarm is not None:
            await trio.sleep(limits.SWARM_PROGRESS_TOLD_S)
            self.tell_progress()

    def tell_progress(self) -> None:
        """Tell it now."""
        if self._is_ready and self.swarm is not None:
            self._post(self.swarm())

    def worker_ready(self, ready: WorkerReady) -> None:
        """A new worker knows of no member, of no pace, and of no progress."""
        self._is_ready, self._told = True, ()
        self.on_ready()
        self.tell_progress()
        self._tell_members()
        self._steps = ready.round_steps
        self._pacer = pacer_of(max(1, ready.round_steps))

    def worker_gone(self) -> None:
        """There is no worker to tell."""
        self._is_ready, self._steps, self._pacer = False, 0, pacer_of(1)

    def progress(self, progress: Progress) -> None:
        """Take note of our own speed."""
        if progress.step_time_s > 0:
            self._pacer.note_step(progress.step_time_s)

    def call_s(self) -> float:
        """Return how long a member that is called to a mean may take to come; 0: not known."""
        return self._pacer.call_s(self._speeds().values())

    def members_changed(self) -> None:
        """A member came or went, or may have."""
        self._changed.set()

    def _tell_members(self) -> None:
        members = tuple(sorted({self._self_id, *self._members()}))
        if self._is_ready and members != self._told:
            self._told = members
            self._post(Members(members))

    def _tell_steps(self) -> None:
        if not self._steps:
            return
        steps = self._pacer.told_steps(self._speeds().values())
        if abs(steps - self._steps) > limits.PACING_CHANGE_SHARE * self._steps:
            self._steps = steps
            _log.info("rounds are fitted", steps=steps, own_step_s=round(self._pacer.step_s, 6))
            self._post(RoundSteps(steps))
