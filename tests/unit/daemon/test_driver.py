"""The driver of cores: order of effects, events fed by effects, deadlines on virtual time.

And the tasks of a part, before it runs and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from swarmnode.daemon.driver import CoreDriver, Tasks
from swarmnode.errors import InvariantViolation, RemoteProtocolError


@dataclass
class Echo:
    """A core that answers an event with so many effects, and has deadlines that are given."""

    deadlines: list[float] = field(default_factory=list)
    handled: list[tuple[str, float]] = field(default_factory=list)
    _effects: list[str] = field(default_factory=list)

    def handle(self, event: str, now: float) -> None:
        if event == "bad":
            raise RemoteProtocolError("a rule was broken")
        self.handled.append((event, now))
        self._effects += [f"{event}.{number}" for number in range(3)]

    def poll_effects(self) -> list[str]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return min(self.deadlines, default=None)

    def handle_deadline(self, now: float) -> None:
        due = [when for when in self.deadlines if when <= now]
        self.deadlines = [when for when in self.deadlines if when > now]
        self._effects += [f"deadline {when:g} at {now:g}" for when in due]

    def statistics(self) -> None:
        return None


def driver_of(core: Echo, carry_out: Callable[[str], None]) -> CoreDriver[str, str]:
    return CoreDriver(core, carry_out, now=trio.current_time)


async def test_effects_are_carried_out_before_feed_returns(autojump_clock) -> None:
    done: list[str] = []
    driver = driver_of(Echo(), done.append)
    driver.feed("a")
    assert done == ["a.0", "a.1", "a.2"]
    driver.feed("b")
    assert done[3:] == ["b.0", "b.1", "b.2"]


async def test_what_an_effect_feeds_comes_after_all_effects_before_it(autojump_clock) -> None:
    done: list[str] = []
    core = Echo()

    def carry_out(effect: str) -> None:
        done.append(effect)
        if effect == "a.0":
            driver.feed("b")
            driver.feed("c")
            assert [event for event, _ in core.handled] == ["a"]
        if effect == "b.1":
            driver.feed("d")

    driver = driver_of(core, carry_out)
    driver.feed("a")
    assert [effect.partition(".")[0] for effect in done] == [*"aaa", *"bbb", *"ccc", *"ddd"]


async def test_an_event_that_the_core_refuses_is_raised_and_hurts_nothing(autojump_clock) -> None:
    done: list[str] = []
    driver = driver_of(Echo(), done.append)
    with pytest.raises(RemoteProtocolError):
        driver.feed("bad")
    driver.feed("a")
    assert done == ["a.0", "a.1", "a.2"]


async def test_deadlines_are_kept_and_may_be_moved_by_events(autojump_clock) -> None:
    done: list[str] = []
    core = Echo(deadlines=[5.0, 2.0])

    def carry_out(effect: str) -> None:
        done.append(effect)
        if effect == "a.0":
            core.deadlines.append(trio.current_time() + 0.5)

    driver = driver_of(core, carry_out)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        await trio.sleep(3)
        assert done == ["deadline 2 at 2"]
        driver.feed("a")  # the timer is running for 5: it has to be set again
        await trio.sleep(0.75)
        assert done[-1] == "deadline 3.5 at 3.5"
        await trio.sleep(10)
        assert done[-1] == "deadline 5 at 5"
        assert len(done) == 6
        nursery.cancel_scope.cancel()


async def test_an_event_wakes_the_driver_only_if_something_is_due_earlier(autojump_clock) -> None:
    core = Echo(deadlines=[5.0])
    driver = driver_of(core, lambda _effect: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        await wait_all_tasks_blocked()
        (sleeper,) = nursery.child_tasks
        woken: list[str] = []

        class Watch(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                if task is sleeper:
                    woken.append(task.name)

        trio.lowlevel.add_instrument(watch := Watch())
        driver.feed("a")
        with pytest.raises(RemoteProtocolError):
            driver.feed("bad")
        await wait_all_tasks_blocked()
        assert woken == []
        core.deadlines.append(2.0)
        driver.feed("b")
        await wait_all_tasks_blocked()
        assert len(woken) == 1
        trio.lowlevel.remove_instrument(watch)
        nursery.cancel_scope.cancel()


async def test_a_deadline_in_the_past_is_handled_at_once(autojump_clock) -> None:
    done: list[str] = []
    await trio.sleep(7)
    driver = driver_of(Echo(deadlines=[1.0]), done.append)
    with trio.move_on_after(1):
        await driver.run()
    assert done == ["deadline 1 at 7"]


# --- tasks ------------------------------------------------------------------------------------


async def test_tasks_of_a_part_are_started_while_it_runs() -> None:
    tasks, done = Tasks(), list[str]()

    async def job(word: str) -> None:
        await trio.lowlevel.checkpoint()
        done.append(word)

    assert not tasks.are_open
    with pytest.raises(InvariantViolation, match="to run before"):
        tasks.start_soon(job, "early")
    async with tasks.open():
        assert tasks.are_open
        tasks.start_soon(job, "one")
    assert done == ["one"], "the end of the block waits for its tasks"
    assert not tasks.are_open


async def test_what_goes_on_at_the_end_of_a_part_may_start_others() -> None:
    tasks, done = Tasks(), list[bool]()

    async def last() -> None:
        await trio.lowlevel.checkpoint()
        done.append(tasks.are_open)

    async def first() -> None:
        await trio.lowlevel.checkpoint()
        tasks.start_soon(last)

    async with tasks.open():
        tasks.start_soon(first)
    assert done == [False]


async def test_a_task_that_reports_is_waited_for() -> None:
    tasks = Tasks()

    async def listen(*, task_status: trio.TaskStatus[str]) -> None:
        await trio.lowlevel.checkpoint()
        task_status.started("bound")

    async with tasks.open():
        assert await tasks.start(listen) == "bound"
