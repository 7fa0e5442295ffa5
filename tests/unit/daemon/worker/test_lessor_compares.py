"""Candidates for a part of a mean on their way to the worker, and its answer on the way back."""

from __future__ import annotations

import numpy as np
import trio
import trio.testing

from swarmnode.daemon.worker.leases import SlotLessor
from swarmnode.ipc.comparing import Compare, Compared
from swarmnode.ipc.control import Release, SlotReady
from tests.kits.lessor_kit import intent

NUMEL = 640
FIRST = np.arange(80, dtype=np.float32)
CANDIDATES = [memoryview(each).cast("B") for each in (FIRST, -FIRST)]


async def lending(nursery):
    """Return a lessor, what it says to the worker, its slot, and a lease of it."""
    said, slot = [], np.zeros(2 * NUMEL, np.float32)
    lessor = SlotLessor(said.append, lambda _xid: None)
    lessor.worker_ready(lambda _slot, _generation: slot.data.cast("B"), NUMEL)
    leases = []

    async def borrow():
        leases.append(await lessor.borrow(intent()))

    nursery.start_soon(borrow)
    await trio.testing.wait_all_tasks_blocked()
    lessor.slot_ready(SlotReady(said[0].ticket, 0, 7, step=1, tokens=1))
    await trio.testing.wait_all_tasks_blocked()
    return lessor, said, slot, leases[0]


async def test_both_lie_in_the_room_and_the_answer_comes_back() -> None:
    async with trio.open_nursery() as nursery:
        lessor, said, slot, lease = await lending(nursery)
        found = []

        async def compare():
            found.append(await lessor.compare(lease, 160, CANDIDATES))

        nursery.start_soon(compare)
        await trio.testing.wait_all_tasks_blocked()
        asked = said[-1]
        assert asked == Compare(asked.ticket, 0, 7, 160, 80)
        assert np.array_equal(slot[NUMEL : NUMEL + 160], np.concatenate([FIRST, -FIRST]))
        lessor.compared(Compared(asked.ticket + 1, 0))  # to a question that is over
        lessor.compared(Compared(asked.ticket, 0, 0.25))
        assert lessor.comparing_s == 0.25
        await trio.testing.wait_all_tasks_blocked()
        assert found == [0]


async def test_without_a_worker_it_is_the_last_one() -> None:
    async with trio.open_nursery() as nursery:
        lessor, _, _, lease = await lending(nursery)
        found = []

        async def compare():
            found.append(await lessor.compare(lease, 0, CANDIDATES))

        nursery.start_soon(compare)
        await trio.testing.wait_all_tasks_blocked()
        lessor.worker_gone()
        await trio.testing.wait_all_tasks_blocked()
        assert found == [1]
        assert await lessor.compare(lease, 0, CANDIDATES) == 1


async def test_what_does_not_fit_into_the_room_is_not_compared() -> None:
    async with trio.open_nursery() as nursery:
        lessor, said, _, lease = await lending(nursery)
        long = [np.zeros(NUMEL, np.float32).data.cast("B")] * 2
        assert await lessor.compare(lease, 0, long) == 1
        assert not any(isinstance(each, Compare) for each in said)


async def test_a_slot_that_comes_in_the_moment_in_which_its_round_ends_goes_back() -> None:
    """The round has no lease to give back yet: kept, the slot would be lent for ever."""
    said, slot = [], np.zeros(2 * NUMEL, np.float32)
    lessor = SlotLessor(said.append, lambda _xid: None)
    lessor.worker_ready(lambda _slot, _generation: slot.data.cast("B"), NUMEL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lessor.borrow, intent())
        await trio.testing.wait_all_tasks_blocked()
        lessor.slot_ready(SlotReady(said[0].ticket, 0, 7, step=1, tokens=1))
        nursery.cancel_scope.cancel()
    assert [(each.slot, each.generation) for each in said if isinstance(each, Release)] == [(0, 7)]
    await lessor.wait_idle()
