"""The five methods that every sans-IO core has.

A core is fed events together with the time they happened at, and gives back
effects for a shell to carry out. It never calls out, never waits and never
asks for the time, so one core runs under Trio, in a simulator and in a
property test alike.

Event and effect types are frozen records that each core defines: dataclasses, and
msgspec structs where there are many of them, which cost a fifth to make. A shell
drains ``poll_effects`` after every ``handle`` and ``handle_deadline``, so
nothing re-enters a core.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

EventT = TypeVar("EventT", contravariant=True)
EffectT = TypeVar("EffectT")
StatisticsT = TypeVar("StatisticsT", covariant=True)


class Core(Protocol[EventT, EffectT, StatisticsT]):
    """What a shell needs to know about any core."""

    def handle(self, event: EventT, now: float) -> None:
        """Take in one event that happened at ``now`` (seconds, monotonic)."""

    def poll_effects(self) -> list[EffectT]:
        """Return what is to be done, in order, and forget it."""

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""

    def handle_deadline(self, now: float) -> None:
        """Act on every deadline at or before ``now``."""

    def statistics(self) -> StatisticsT:
        """Return a frozen record of counters."""
