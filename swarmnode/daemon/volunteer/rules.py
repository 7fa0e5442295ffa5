"""The owner's rules at work: looks at the machine, decides, and tells the parts of the node.

::

    machine -- looks --> Readings --+
    pause, resume, finish ----------+--> Policy --> Verdict --> trainer: rest, or give memory back
    files: pause, month's traffic --+                      --> sessions: tensors or none

Only what a rule asks about is looked at, and nothing wakes up where nothing can change.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.volunteer.machine import GpuUse, ProcessUse
from swarmnode.env import Env
from swarmnode.errors import Overloaded, StorageError
from swarmnode.net.traffic import Traffic
from swarmnode.protocol.uplink import Yielding
from swarmnode.protocol.volunteer import Policy, Readings, Rules, Verdict
from swarmnode.quantities import parse_bytes
from swarmnode.store.volunteer import TrafficLedger, load_pause, save_pause
from swarmnode.telemetry.logs import get_logger
from swarmnode.telemetry.metrics import LimitsSnapshot

_log = get_logger("swarmnode.daemon.volunteer")


class Machine(Protocol):
    """What can be looked at; the functions of ``daemon/volunteer/machine.py``, or a test's own."""

    def is_on_battery(self) -> bool | None: ...

    def is_metered(self) -> bool | None: ...

    def user_quiet_s(self, now_unix_s: float) -> float | None: ...

    def gpu_use(self, gpus: Collection[int], own_pids: Collection[int]) -> GpuUse: ...

    def process_use(self, pid: int) -> ProcessUse | None: ...

    def directory_bytes(self, root: Path) -> int: ...


class Held(Protocol):
    """What rests; see ``daemon/worker/trainer.py``."""

    worker_pid: int | None

    def pause(self, why: str) -> None: ...

    def resume(self) -> None: ...

    def unload(self) -> None: ...

    def load(self) -> None: ...


class _NoTrainer:
    """In place of what rests, in a node that trains nothing, or not yet."""

    worker_pid: int | None = None

    def pause(self, why: str) -> None: ...

    def resume(self) -> None: ...

    def unload(self) -> None: ...

    def load(self) -> None: ...


@dataclass
class _Look:
    """Something to look at now and then; ``take`` gives the readings that it changes."""

    every_s: float
    take: Callable[[], Awaitable[dict[str, Any]]]
    due_s: float = -math.inf


def rules_of(config: NodeConfig) -> Rules:
    """Return what the settings say. Raises ConfigError."""
    schedule = None
    if config.schedule:
        from swarmnode.schedule import parse_schedule  # few owners set one

        schedule = parse_schedule(config.schedule)
    return Rules(
        schedule=schedule,
        on_battery=config.pause_on_battery,
        on_metered=config.pause_on_metered,
        when_gpu_busy=config.pause_on_gpu_busy,
        user_quiet_s=config.pause_on_user_s,
        gpu_celsius_max=config.gpu_temperature_max,
        quota_bytes=parse_bytes(config.monthly_quota),
        disk_bytes=parse_bytes(config.disk),
        ram_bytes=parse_bytes(config.ram),
    )


class Volunteer:
    """See the module.

    Args:
        machine: None where there is none to look at, in a simulation.
        on_event: told when training stops and goes on, for the terminal.

    Attributes:
        verdict: what holds now.
        readings: what was seen last.
        cpu_cores_used: by the worker, between the last two looks; None: not looked at.
        snapshot_bytes: what the next snapshot takes on the disk.
    """

    def __init__(
        self,
        config: NodeConfig,
        traffic: Traffic,
        machine: Machine | None,
        env: Env,
        on_event: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.rules = rules_of(config)
        self.config = config
        self.traffic = traffic
        self.verdict = Verdict()
        self.readings = Readings()
        self.cpu_cores_used: float | None = None
        self.snapshot_bytes = 0
        self._paths = config.paths
        self._machine = machine
        self._env = env
        self._on_event = on_event
        self._policy = Policy(self.rules, load_pause(config.paths.manual_pause))
        self._has_pause_file = self._policy.manual is not None
        # When, and seconds so far, of the last two looks at one worker.
        self._cpu_seen: deque[tuple[float, float]] = deque(maxlen=2)
        self._ledger = TrafficLedger(config.paths.traffic)
        self._ledger_saved_s = -math.inf
        self._counted_bytes = 0
        self._held: Held = _NoTrainer()
        self._is_told = True
        self._held_s: dict[str, float] = defaultdict(float)
        self._decided_s = env.monotonic()
        self._wake = trio.Event()
        self._changed = trio.Event()  # the verdict, since a caller looked
        self._looks = self._make_looks()
        traffic.up.limit(parse_bytes(config.upload))
        traffic.down.limit(parse_bytes(config.download))
        traffic.up.yielding = Yielding() if config.upload_yields else None

    # --- life -----------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look and decide until cancelled; ``start`` returns after the first verdict."""
        try:
            await self._take_turn()
            task_status.started()
            while True:
                with trio.move_on_after(self._wait_s()):
                    await self._wake.wait()
                self._wake = trio.Event()
                await self._take_turn()
        finally:
            if self.rules.quota_bytes:
                self._save_ledger()

    async def _take_turn(self) -> None:
        await self._look_around()
        self.decide()
        await self._keep_files()

    def hold(self, held: Held) -> None:
        """Let the verdict count for this trainer from now on."""
        self._held = held
        self._tell()

    async def wait_for_line(self) -> None:
        """Return as soon as tensors may be sent and received."""
        while not self.verdict.may_carry_tensors:
            await self._changed.wait()

    # --- a person's word ------------------------------------------------------------------

    async def pause(self, length_s: float | None = None) -> None:
        """Pause until :meth:`resume`, or for so long; also across restarts of the node.

        Raises:
            StorageError: it is paused now, but a restart will not know it.
        """
        self._policy.pause(self._env.wall(), length_s)
        self.decide()
        self._wake.set()
        save = partial(save_pause, self._paths.manual_pause, self._policy.manual)
        await self._env.in_thread(save)
        self._has_pause_file = True

    async def resume(self) -> None:
        """End a pause by hand. Raises StorageError: after a restart it would be there again."""
        self._policy.resume()
        self.decide()
        self._wake.set()
        await self._keep_pause_file()

    def finish(self) -> None:
        """Let nothing new begin: the node is about to leave."""
        self._policy.finish()
        self.decide()

    # --- deciding -------------------------------------------------------------------------

    def decide(self) -> None:
        """Weigh what was seen last, and tell the parts that it concerns."""
        now = self._env.monotonic()
        for hold in self.verdict.holds:
            self._held_s[hold.reason] += now - self._decided_s
        self._decided_s = now
        before = self.verdict
        self.verdict = verdict = self._policy.decide(self.readings, now, self._env.wall())
        if before.reasons != verdict.reasons:
            said = verdict.sentence()
            self._on_event(f"paused: {said}" if said else "nothing holds training any more")
            _log.info("verdict on training", holds=",".join(verdict.reasons), why=said)
        if before != verdict or not self._is_told:
            self._tell()

    def _tell(self) -> None:
        verdict, held = self.verdict, self._held
        self._changed.set()
        self._changed = trio.Event()
        no_tensors = "" if verdict.may_carry_tensors else f"paused: {verdict.reason}"
        self.traffic.why_no_tensors = no_tensors
        self.traffic.on_relaying("" if verdict.may_relay else verdict.sentence())
        if verdict.frees_memory:
            held.unload()
        else:
            held.load()
        try:
            if verdict.may_train:
                held.resume()
            else:
                held.pause(verdict.sentence())
            self._is_told = True
        except Overloaded:  # it reads nothing just now: it is told with the next look
            self._is_told = False

    def _wait_s(self) -> float:
        """Return how long nothing can change."""
        if not self._is_told:
            return limits.MEMORY_LOOK_S
        now, wall = self._env.monotonic(), self._env.wall()
        looks_s = min((look.due_s - now for look in self._looks), default=math.inf)
        ends = [hold.until_unix_s for hold in self.verdict.holds]
        if self.rules.schedule:
            ends.append(self.rules.schedule.next_change(wall, self.rules.zone))
        clocks_s = min((end - wall for end in ends if end is not None), default=math.inf)
        if clocks_s < math.inf:
            # The clock on the wall may jump, and a laptop sleeps: no wait for it is a long one. Nor
            # a very short one: what is over by the clock may wait for a look to be seen so.
            clocks_s = min(max(clocks_s, limits.CLOCK_WAIT_S_MIN), limits.MACHINE_SLOW_LOOK_S)
        return max(0.0, min(looks_s, clocks_s))

    # --- looking --------------------------------------------------------------------------

    def _make_looks(self) -> list[_Look]:
        rules, machine = self.rules, self._machine
        looks = [_Look(limits.QUOTA_LOOK_S, self._count_traffic)] if rules.quota_bytes else []
        if machine is None:
            return looks
        quick, slow = limits.MACHINE_LOOK_S, limits.MACHINE_SLOW_LOOK_S
        if rules.on_battery:
            looks.append(_Look(quick, partial(self._at_once, "on_battery", machine.is_on_battery)))
        if rules.on_metered:
            looks.append(_Look(slow, partial(self._aside, "metered", machine.is_metered)))
        if rules.user_quiet_s:
            looks.append(_Look(quick, partial(self._see_user, machine)))
        if rules.when_gpu_busy or rules.gpu_celsius_max:
            looks.append(_Look(quick, partial(self._see_gpus, machine)))
        if rules.disk_bytes:
            looks.append(_Look(slow, partial(self._see_disk, machine)))
        if rules.ram_bytes or self.config.cpu_percent < 100:
            looks.append(_Look(limits.MEMORY_LOOK_S, partial(self._see_worker, machine)))
        return looks

    async def _look_around(self) -> None:
        for look in self._looks:
            now = self._env.monotonic()
            if look.due_s <= now:
                look.due_s = now + look.every_s
                self.readings = replace(self.readings, **await look.take())

    async def _at_once(self, name: str, see: Callable[[], Any]) -> dict[str, Any]:
        return {name: see()}

    async def _aside(self, name: str, see: Callable[[], Any]) -> dict[str, Any]:
        return {name: await self._env.in_thread(see)}

    async def _see_user(self, machine: Machine) -> dict[str, Any]:
        see = partial(machine.user_quiet_s, self._env.wall())
        return {"user_quiet_s": await self._env.in_thread(see)}

    async def _see_gpus(self, machine: Machine) -> dict[str, Any]:
        own = [self._held.worker_pid] if self._held.worker_pid else []
        use = await self._env.in_thread(partial(machine.gpu_use, self.config.gpus, own))
        return {"gpu_celsius": use.celsius, "gpu_others_share": use.others_share}

    async def _see_disk(self, machine: Machine) -> dict[str, Any]:
        see = partial(machine.directory_bytes, self._paths.home)
        return {
            "disk_bytes": await self._env.in_thread(see),
            "snapshot_bytes": self.snapshot_bytes,
        }

    async def _see_worker(self, machine: Machine) -> dict[str, Any]:
        pid = self._held.worker_pid
        use = machine.process_use(pid) if pid is not None else None
        self.cpu_cores_used = None
        if use is None:
            self._cpu_seen.clear()
            return {"worker_bytes": None}
        self._cpu_seen.append((self._env.monotonic(), use.cpu_s))
        (began_s, cpu_s), (ended_s, cpu_then_s) = self._cpu_seen[0], self._cpu_seen[-1]
        if ended_s > began_s:
            self.cpu_cores_used = max(0.0, (cpu_then_s - cpu_s) / (ended_s - began_s))
        return {"worker_bytes": use.memory_bytes}

    # --- the month ------------------------------------------------------------------------

    async def _count_traffic(self) -> dict[str, Any]:
        local = datetime.fromtimestamp(self._env.wall(), self.rules.zone)
        first = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
        after = first.replace(year=local.year + local.month // 12, month=local.month % 12 + 1)
        total_bytes = self.traffic.up.total_bytes + self.traffic.down.total_bytes
        counted = self._ledger.add(f"{local:%Y-%m}", total_bytes - self._counted_bytes)
        self._counted_bytes = total_bytes
        return {"month_bytes": counted, "month_ends_unix_s": after.timestamp()}

    async def _keep_files(self) -> None:
        try:
            await self._keep_pause_file()
        except StorageError as error:
            _log.error("a pause that is over is still written down", why=str(error))
        now = self._env.monotonic()
        if self.rules.quota_bytes and now >= self._ledger_saved_s + limits.QUOTA_SAVE_S:
            self._ledger_saved_s = now
            await self._env.in_thread(self._save_ledger)

    async def _keep_pause_file(self) -> None:
        """A pause that is over is forgotten."""
        if self._has_pause_file and self._policy.manual is None:
            await self._env.in_thread(partial(save_pause, self._paths.manual_pause, None))
            self._has_pause_file = False

    def _save_ledger(self) -> None:
        """Write the month's traffic down. Runs in a thread, where the clock cannot be asked."""
        try:
            self._ledger.save()
        except StorageError as error:
            _log.error("this month's traffic is not written down", why=str(error))

    # --- what is said of it ---------------------------------------------------------------

    def held_s(self) -> dict[str, float]:
        """Return for how long each reason has held since the node started."""
        held_s = self._held_s.copy()
        for hold in self.verdict.holds:
            held_s[hold.reason] += self._env.monotonic() - self._decided_s
        return dict(held_s)

    def snapshot(self) -> LimitsSnapshot:
        """Return what the metrics say of limits."""
        up, down = self.traffic.up, self.traffic.down
        rates = {"upload": up.rate_bytes_per_s, "download": down.rate_bytes_per_s}
        return LimitsSnapshot(
            paused=self.verdict.reasons,
            bytes_per_s={name: rate for name, rate in rates.items() if rate},
            quota_bytes=self.rules.quota_bytes or None,
            quota_used_bytes=self.readings.month_bytes if self.rules.quota_bytes else None,
            throttled_s=self.held_s() | {"upload": up.throttled_s, "download": down.throttled_s},
            line_bytes={"upload": up.by_purpose(), "download": down.by_purpose()},
        )
