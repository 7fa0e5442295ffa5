"""Whether this machine may train now, and if not, why and until when.

The owner's rules and readings of the machine go in, a verdict comes out::

    settings ---- Rules --+
    sensors -- Readings --+--> Policy.decide(now, wall) --> Verdict: what holds, the first one first
    pause, resume, finish-+

Everything that holds is named, so that no one has to guess. What a person has said by hand comes
first, and nothing but a person, or the time that they named, ends it. ``now`` is monotonic and
counts what has to pass; ``wall`` is Unix time, for the schedule and for what outlives a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Literal

from swarmnode.quantities import show_bytes, show_duration

if TYPE_CHECKING:
    from swarmnode.schedule import WeeklySchedule

# A desktop draws with a few percent of a GPU; a game, a film or another model takes more.
_GPU_BUSY_SHARE = 0.2
# A player is in a menu now and then.
GPU_QUIET_S = 60.0
# Below the limit by this much before training goes on: else it would stop again at once.
_GPU_COOLER_CELSIUS = 5.0
# A worker that has grown over its limit is tried again after this.
MEMORY_PAUSE_S = 600.0

PauseReason = Literal[
    "manual",
    "schedule",
    "battery",
    "user",
    "gpu-busy",
    "gpu-hot",
    "metered",
    "quota",
    "disk",
    "memory",
]
# While one of these holds no tensor is sent or received either.
_SAVES_TRAFFIC = frozenset({"metered", "quota"})
# While one of these holds nothing is relayed for others: in the hours of the schedule, and in no
# others, this machine works for them.
_STOPS_RELAYING = _SAVES_TRAFFIC | {"schedule"}
# A worker that rests keeps its memory: for these it is ended, after it has saved.
_FREES_MEMORY = frozenset({"gpu-busy", "memory"})


@dataclass(frozen=True)
class Rules:
    """What the owner allows; 0 is no limit."""

    schedule: WeeklySchedule | None = None  # None: always
    on_battery: bool = True  # whether to pause for it, as the next two
    on_metered: bool = True
    when_gpu_busy: bool = False
    user_quiet_s: float = 0.0  # a person who did something within this time is there
    gpu_celsius_max: float = 0.0
    quota_bytes: int = 0  # of a month
    disk_bytes: int = 0
    ram_bytes: int = 0  # of the worker
    zone: tzinfo | None = None  # of the schedule; None: this machine's


@dataclass(frozen=True)
class Readings:
    """The machine as it was seen last; None is unknown, and unknown is no reason to pause."""

    on_battery: bool | None = None
    metered: bool | None = None
    user_quiet_s: float | None = None
    gpu_others_share: float | None = None  # of the busiest GPU, by processes that are not ours
    gpu_celsius: float | None = None  # of the hottest
    month_bytes: int = 0
    month_ends_unix_s: float | None = None
    disk_bytes: int | None = None
    snapshot_bytes: int = 0  # what the next snapshot adds
    worker_bytes: int | None = None


@dataclass(frozen=True)
class Hold:
    """One reason not to train; ``until_unix_s`` None: until something changes."""

    reason: PauseReason
    text: str
    until_unix_s: float | None = None

    def sentence(self, zone: tzinfo | None = None) -> str:
        """Return the text, and until when in local time."""
        if self.until_unix_s is None:
            return self.text
        local = datetime.fromtimestamp(self.until_unix_s, zone)
        return f"{self.text}, until {local:%a %d %b %H:%M}"


@dataclass(frozen=True)
class Verdict:
    """What holds now, in the order of PauseReason; nothing: train."""

    holds: tuple[Hold, ...] = ()

    @property
    def may_train(self) -> bool:
        """Whether nothing holds."""
        return not self.holds

    @property
    def may_carry_tensors(self) -> bool:
        """Whether tensors may pass the line."""
        return not any(hold.reason in _SAVES_TRAFFIC for hold in self.holds)

    @property
    def may_relay(self) -> bool:
        """Whether bytes of others may pass through this node."""
        return not any(hold.reason in _STOPS_RELAYING for hold in self.holds)

    @property
    def frees_memory(self) -> bool:
        """Whether the worker shall give its memory back, not only rest."""
        return any(hold.reason in _FREES_MEMORY for hold in self.holds)

    @property
    def reasons(self) -> tuple[PauseReason, ...]:
        """The codes of all reasons."""
        return tuple(hold.reason for hold in self.holds)

    @property
    def reason(self) -> str:
        """The code of the first reason, or "none"."""
        return self.holds[0].reason if self.holds else "none"

    @property
    def until_unix_s(self) -> float | None:
        """When the last hold ends; None: nothing holds, or one of them has no known end."""
        ends = [hold.until_unix_s for hold in self.holds]
        known = [end for end in ends if end is not None]
        return max(known) if ends and len(known) == len(ends) else None

    def sentence(self, zone: tzinfo | None = None) -> str:
        """Return every hold in words, "" if none."""
        return "; also ".join(hold.sentence(zone) for hold in self.holds)


@dataclass(frozen=True)
class ManualPause:
    """What a person asked for; both times None: until they resume.

    The length is kept beside the end: a clock that was wrong must not stretch a pause.
    """

    until_unix_s: float | None = None
    length_s: float | None = None


class Policy:
    """Applies the rules; see the module."""

    def __init__(self, rules: Rules, manual: ManualPause | None = None) -> None:
        """``manual``: the pause that was in force when the node stopped."""
        self.rules = rules
        self.manual = manual
        self._is_finishing = False
        self._is_hot = False
        self._gpu_busy_until_s: float | None = None
        self._memory_until_s: float | None = None

    def pause(self, wall: float, length_s: float | None = None) -> ManualPause:
        """Pause by hand, for a time or until :meth:`resume`; a new pause replaces an older one."""
        until = None if length_s is None else wall + length_s
        self.manual = ManualPause(until, length_s)
        return self.manual

    def resume(self) -> None:
        """End the pause by hand; what else holds goes on holding."""
        self.manual = None

    def finish(self) -> None:
        """Take no step any more: the node is about to leave."""
        self._is_finishing = True

    def decide(self, readings: Readings, now: float, wall: float) -> Verdict:
        """Return what holds."""
        return Verdict(tuple(self._holds(readings, now, wall)))

    def _holds(self, seen: Readings, now: float, wall: float) -> Iterator[Hold]:
        yield from self._by_hand(wall)
        yield from self._by_schedule(wall)
        if self.rules.on_battery and seen.on_battery:
            yield Hold("battery", "this machine runs on battery")
        yield from self._by_user(seen, wall)
        yield from self._by_gpu(seen, now, wall)
        if self.rules.on_metered and seen.metered:
            yield Hold("metered", "the connection is metered")
        yield from self._by_quota(seen)
        yield from self._by_disk(seen)
        yield from self._by_memory(seen, now, wall)

    def _by_hand(self, wall: float) -> Iterator[Hold]:
        if self._is_finishing:
            yield Hold(
                "manual", "finishing: exchanges that run are completed, then this node stops"
            )
            return
        manual = self.manual
        if manual is None:
            return
        if manual.until_unix_s is None or manual.length_s is None:
            yield Hold("manual", "paused by hand (`swarmnode resume` goes on)")
            return
        until = min(manual.until_unix_s, wall + manual.length_s)
        if wall >= until:
            self.manual = None
            return
        yield Hold("manual", "paused by hand (`swarmnode resume` goes on at once)", until)

    def _by_schedule(self, wall: float) -> Iterator[Hold]:
        schedule, zone = self.rules.schedule, self.rules.zone
        if schedule and not schedule.is_open(wall, zone):
            until = schedule.next_change(wall, zone)
            yield Hold("schedule", "outside of this node's schedule", until)

    def _by_user(self, seen: Readings, wall: float) -> Iterator[Hold]:
        quiet_s, wanted_s = seen.user_quiet_s, self.rules.user_quiet_s
        if quiet_s is not None and quiet_s < wanted_s:
            text = f"this machine is in use (it has to be quiet for {show_duration(wanted_s)})"
            yield Hold("user", text, wall + wanted_s - quiet_s)

    def _by_gpu(self, seen: Readings, now: float, wall: float) -> Iterator[Hold]:
        rules, others = self.rules, seen.gpu_others_share or 0.0
        if rules.when_gpu_busy and others >= _GPU_BUSY_SHARE:
            self._gpu_busy_until_s = now + GPU_QUIET_S
        if self._gpu_busy_until_s is not None and now < self._gpu_busy_until_s:
            until = wall + self._gpu_busy_until_s - now
            text = f"others use {others:.0%} of the GPU"
            if others < _GPU_BUSY_SHARE:
                text = "others used the GPU a moment ago"
            yield Hold("gpu-busy", text, until)
        celsius = seen.gpu_celsius
        if rules.gpu_celsius_max and celsius is not None:
            cool = rules.gpu_celsius_max - _GPU_COOLER_CELSIUS
            self._is_hot = celsius >= rules.gpu_celsius_max or (self._is_hot and celsius > cool)
            if self._is_hot:
                limit = f"the limit is {rules.gpu_celsius_max:.0f} °C"
                yield Hold("gpu-hot", f"the GPU has {celsius:.0f} °C, {limit}")

    def _by_quota(self, seen: Readings) -> Iterator[Hold]:
        quota = self.rules.quota_bytes
        if quota and seen.month_bytes >= quota:
            text = f"this month's {show_bytes(quota)} of traffic are used up"
            yield Hold("quota", text, seen.month_ends_unix_s)

    def _by_disk(self, seen: Readings) -> Iterator[Hold]:
        allowed, used = self.rules.disk_bytes, seen.disk_bytes
        if allowed and used is not None and used + seen.snapshot_bytes > allowed:
            need = f", the next snapshot takes {show_bytes(seen.snapshot_bytes)}"
            yield Hold(
                "disk",
                f"files of this node take {show_bytes(used)} of {show_bytes(allowed)}"
                f"{need if seen.snapshot_bytes else ''}: raise `disk`, or leave a swarm",
            )

    def _by_memory(self, seen: Readings, now: float, wall: float) -> Iterator[Hold]:
        allowed, used = self.rules.ram_bytes, seen.worker_bytes
        if allowed and used is not None and used > allowed:
            self._memory_until_s = now + MEMORY_PAUSE_S
        if self._memory_until_s is not None and now < self._memory_until_s:
            text = f"the worker needs more than the {show_bytes(allowed)} that `ram` allows"
            yield Hold("memory", text, wall + self._memory_until_s - now)
