"""The parent side of training, against a worker that says what a test wants."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from swarmnode import limits
from swarmnode.daemon.worker.briefing import Briefing
from swarmnode.daemon.worker.leases import BufferLease, NoLease
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.env import Env
from swarmnode.errors import (
    ConfigError,
    DeadlineExceeded,
    Overloaded,
    SpecMismatch,
    StorageError,
    SwarmNodeError,
    WorkerCrashed,
    WorkerError,
)
from swarmnode.ids import PeerId
from swarmnode.ipc.control import (
    Applied,
    Apply,
    Configure,
    Drop,
    FromWorker,
    Members,
    NoView,
    Pause,
    PostedIntent,
    Progress,
    Release,
    Resume,
    RoundSteps,
    SaveSnapshot,
    SlotReady,
    SnapshotFailed,
    SnapshotSaved,
    TakeView,
    ToWorker,
    Weigh,
    Weighed,
    WorkerFailed,
    WorkerReady,
)
from swarmnode.ipc.records import Partner, ViewShape
from swarmnode.ipc.segment import StaleSlot

CONFIGURE = Configure("t", {}, "pair-average", {}, 1, 2, "/nowhere")
NUMEL, HALF = 100, 640
READY = WorkerReady(
    bytes(32), 640, HALF, 2, step=0, tokens=0, device="fake", torch_version="", threads=1
)
PROGRESS = Progress(1, 1, 0.5, 0.5, 0.1)
INTENT = PostedIntent(
    5, "pair", "x", 2, 3, "matching", (ViewShape("x", "", NUMEL),), base_version=b"b"
)
PARTNER = Partner(bytes(32), step=4, tokens=40, weight=2.0, base_version=b"theirs")
SELF, OTHER, THIRD = (PeerId(bytes([n]) * 32) for n in (2, 1, 3))


class ScriptedLink:
    """A worker whose messages a test puts in; what it is sent is kept."""

    pid = 42

    def __init__(self) -> None:
        self.say, self._heard = trio.open_memory_channel[FromWorker | Exception](100)
        self.sent: list[ToWorker] = []
        self.is_deaf = False
        self.memory = np.zeros((2, 2 * HALF), np.float32)
        self.stale: set[int] = set()

    async def send(self, message: ToWorker) -> None:
        if self.is_deaf:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.sent.append(message)
        if isinstance(message, Apply | Release) and message.slot in self.stale:
            raise StaleSlot("gone")

    async def receive(self) -> FromWorker:
        message = await self._heard.receive()
        if isinstance(message, Exception):
            raise message
        return message

    def slot_view(self, slot: int, generation: int) -> memoryview:
        if slot in self.stale:
            raise StaleSlot("gone")
        return self.memory[slot].data.cast("B")


class Handler:
    """Stands in for the exchanges of one kind: keeps what it is told."""

    def __init__(self) -> None:
        self.intents: list[PostedIntent] = []
        self.losses = self.changes = 0

    def intent_posted(self, intent: PostedIntent) -> None:
        self.intents.append(intent)

    def worker_gone(self) -> None:
        self.losses += 1

    def partners_changed(self) -> None:
        self.changes += 1


class Rig:
    def __init__(self) -> None:
        self.links: list[ScriptedLink] = []
        self.handler = Handler()
        self.leases: list[BufferLease | str] = []
        self.lost: list[bytes] = []
        self.applied: list[Applied] = []
        self.failure: SwarmNodeError | None = None
        self.objection = ""  # to what the worker began with
        self.fetched = 0
        self.mended: list[WorkerFailed] = []
        self.trainer = Trainer(
            CONFIGURE,
            start_worker=self._start,
            env=Env(trio.current_time, lambda: 0.0, random.Random(1)),
            on_applied=self.applied.append,
            on_lost=self.lost.append,
            models=self,
        )
        self.trainer.handlers = {"pair": self.handler}
        self.lessor = self.trainer.lessor
        self.members: tuple[PeerId, ...] = (SELF,)
        self.speeds: dict[PeerId, float] = {}
        self.trainer.briefing = Briefing(
            SELF,
            members=lambda: self.members,
            speeds=lambda: self.speeds,
            post=self.trainer.post,
        )

    @asynccontextmanager
    async def _start(self, configure: Configure) -> AsyncIterator[ScriptedLink]:
        assert configure == CONFIGURE
        self.links.append(ScriptedLink())
        yield self.links[-1]

    async def mend(self, failed: WorkerFailed) -> bool:
        await trio.lowlevel.checkpoint()
        if failed.kind == "snapshot":
            self.mended.append(failed)
        return failed.kind == "snapshot"

    async def begin_anew(self) -> None:
        await trio.sleep(5.0)
        self.fetched += 1

    def complaint(self, _progress: Progress) -> str:
        return self.objection

    async def run(self) -> None:
        try:
            await self.trainer.run()
        except SwarmNodeError as error:
            self.failure = error

    async def hears(self, *messages: FromWorker | Exception) -> None:
        """Let the worker that runs say something; return when it has been taken in."""
        for message in messages:
            await self.links[-1].say.send(message)
        await trio.testing.wait_all_tasks_blocked()

    @property
    def sent(self) -> list[ToWorker]:
        """What the worker that runs was sent, without the lists of members."""
        return [m for m in self.links[-1].sent if not isinstance(m, Members)]

    async def borrow(self, intent: PostedIntent = INTENT, **options: Any) -> None:
        """Keep the lease, or why there is none."""
        try:
            self.leases.append(await self.lessor.borrow(intent, **options))
        except NoLease as error:
            self.leases.append(str(error))

    async def lend(self, ticket: int, slot: int = 0) -> BufferLease:
        """Borrow and be lent a slot."""
        self.nursery.start_soon(self.borrow)
        await trio.testing.wait_all_tasks_blocked()
        await self.hears(SlotReady(ticket, slot, ticket, step=24, tokens=99))
        lease = self.leases[-1]
        assert isinstance(lease, BufferLease)
        return lease

    nursery: trio.Nursery


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    async with trio.open_nursery() as nursery:
        made.nursery = nursery
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


def crash(why: str = "killed") -> WorkerCrashed:
    return WorkerCrashed(why)


async def test_intents_go_to_the_handler_of_their_kind(autojump_clock) -> None:
    async with rig() as it:
        group = PostedIntent(6, "group", "x", 0, 3, "all")
        log = PostedIntent(7, "log", "x", 0, 3, "all", is_open=True)
        await it.hears(READY, INTENT, group, log)
        assert it.handler.intents == [INTENT]
        assert it.sent == [Drop(6, "other: this node does nothing of the kind group")]


async def test_a_slot_is_lent_to_the_caller_that_asked_for_the_view(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        it.nursery.start_soon(it.borrow)
        await trio.testing.wait_all_tasks_blocked()
        it.nursery.start_soon(lambda: it.borrow(partner=PARTNER, round_number=9))
        await trio.testing.wait_all_tasks_blocked()
        assert it.sent == [
            TakeView(1, 5, round=3, base_version=b"b"),
            TakeView(2, 5, PARTNER.peer, 9, b"theirs", 4, 40, 2.0),
        ]
        await it.hears(SlotReady(2, 1, 7, step=24, tokens=99), NoView(1, "busy: not now"))
        lease, why = it.leases
        assert why == "busy: not now"
        assert isinstance(lease, BufferLease)
        assert (lease.intent, lease.slot, lease.generation, lease.step) == (INTENT, 1, 7, 24)
        lease.own[-4:] = lease.room[:4] = b"\0\0\x80\x3f"
        assert len(lease.own) == len(lease.room) == 4 * NUMEL
        assert list(np.flatnonzero(it.links[0].memory[1])) == [NUMEL - 1, HALF]


async def test_a_lease_ends_once(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        first, second = await it.lend(1), await it.lend(2, slot=1)
        assert it.lessor.apply(first, b"x" * 16, PARTNER)
        assert not it.lessor.apply(first, b"y" * 16, PARTNER)
        it.lessor.give_back(first, "twice")
        it.lessor.give_back(second, "w" * 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert it.sent[2:] == [Apply(0, 1, b"x" * 16, PARTNER), Release(1, 2, "w" * 256)]
        third = await it.lend(3)
        assert it.lessor.apply(third, b"z" * 16, present=(bytes(32), SELF))


async def test_a_view_that_no_caller_waits_for_any_more_goes_back(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        with trio.move_on_after(1):
            await it.borrow()
        with trio.move_on_after(1):
            await it.borrow()
        await it.hears(SlotReady(1, 0, 7, step=24, tokens=99), NoView(2, "busy"))
        assert it.sent[2:] == [Release(0, 7, "no caller waits for it any more")]
        assert it.leases == []


async def test_a_slot_that_comes_in_the_moment_of_giving_up_goes_back(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(it.borrow)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                it.lessor.slot_ready(SlotReady(1, 0, 7, step=24, tokens=99))
        await trio.testing.wait_all_tasks_blocked()
        assert [isinstance(message, Release) for message in it.sent] == [False, True]


async def test_a_worker_that_owes_many_views_is_asked_for_no_more(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        for _ in range(limits.TICKETS_MAX + 1):
            it.nursery.start_soon(it.borrow)
        await trio.testing.wait_all_tasks_blocked()
        assert it.leases == [f"busy: the worker owes {limits.TICKETS_MAX} views already"]


async def test_a_view_that_was_not_asked_for_is_a_broken_contract(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, SlotReady(9, 0, 7, step=24, tokens=99))
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        assert it.trainer.restarts == 1
        assert "no caller has ticket 9" in it.trainer.reason


async def test_a_slot_that_went_with_its_worker_is_neither_lent_nor_given_back(
    autojump_clock,
) -> None:
    async with rig() as it:
        await it.hears(READY)
        lease = await it.lend(1)
        it.links[0].stale.add(0)
        it.nursery.start_soon(it.borrow)
        await trio.testing.wait_all_tasks_blocked()
        await it.hears(SlotReady(2, 0, 8, step=24, tokens=99))
        assert it.leases[1] == "local: gone"
        it.lessor.give_back(lease, "why not")  # StaleSlot: receive() is about to say that it died
        await trio.testing.wait_all_tasks_blocked()
        assert it.failure is None


async def test_the_worker_is_asked_what_came_is_worth(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        lease = await it.lend(1)
        said: list[Weighed | str] = []

        async def weigh() -> None:
            try:
                said.append(await it.lessor.weigh(lease, PARTNER))
            except NoLease as error:
                said.append(str(error))

        it.nursery.start_soon(weigh)
        await trio.testing.wait_all_tasks_blocked()
        assert it.sent[-1] == Weigh(0, 1, PARTNER)
        weighed = Weighed(0, 1, "probe", 0.5)
        await it.hears(weighed)
        it.nursery.start_soon(weigh)
        await it.hears(crash())
        await weigh()  # of a worker that is gone
        assert said == [weighed, *["local: the worker went away"] * 2]


async def test_a_verdict_that_was_not_asked_for_is_a_broken_contract(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, Weighed(0, 1))
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        assert it.trainer.restarts == 1
        assert "it was not asked" in it.trainer.reason


async def test_a_death_ends_what_was_posted_and_lent(autojump_clock) -> None:
    async with rig() as it:
        await it.borrow()
        assert it.leases == ["local: the worker went away"]  # there is none yet
        await it.hears(READY)
        lease = await it.lend(1)
        it.nursery.start_soon(it.borrow)
        await it.hears(crash())
        assert it.leases[2:] == ["local: the worker went away"]
        assert it.handler.losses == 1
        assert not it.lessor.apply(lease, b"x" * 16, PARTNER)
        it.lessor.give_back(lease, "why not")
        assert it.lost == []


async def test_what_was_not_merged_is_lost_with_the_worker(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        for number in (1, 2):
            lease = await it.lend(number, slot=number - 1)
            assert it.lessor.apply(lease, b"%d" % number * 16, PARTNER)
        await it.hears(Applied(b"1" * 16, 25, 1))
        with trio.move_on_after(1) as waiting:
            await it.lessor.drain()
        assert waiting.cancelled_caught
        assert it.lessor.unmerged == {b"2" * 16}
        await it.hears(crash())
        await it.lessor.drain()
        assert it.lost == [b"2" * 16]
        assert it.trainer.applications.applied == 1


async def test_the_worker_is_told_which_members_train_but_not_all_the_time(autojump_clock) -> None:
    async with rig() as it:
        it.members = (SELF, OTHER)
        it.trainer.partners_changed()
        await trio.sleep(2 * limits.MEMBERS_TOLD_S)
        assert it.links[0].sent == []  # it does not know the model yet
        await it.hears(READY)
        told = [Members((OTHER, SELF))]
        assert it.links[0].sent == told
        it.members = (THIRD,)  # we have not heard of ourselves
        for _ in range(100):
            it.trainer.partners_changed()
            await trio.sleep(limits.MEMBERS_TOLD_S / 100)
        assert it.links[0].sent == [*told, Members((SELF, THIRD))]
        assert it.handler.changes == 101
        await it.hears(crash())
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        await it.hears(READY)
        assert it.links[1].sent == [Members((SELF, THIRD))]


async def test_rounds_are_fitted_to_the_fastest(autojump_clock) -> None:
    async with rig() as it:
        fields = {name: getattr(READY, name) for name in READY.__struct_fields__}
        await it.hears(WorkerReady(**{**fields, "round_steps": 64}))
        await trio.sleep(2 * limits.PACING_TOLD_S)
        assert it.sent == []  # no member has taken a step
        await it.hears(progress_at(0.4))
        for fastest, steps in ((0.38, []), (0.1, [16]), (0.102, [16]), (0.001, [16, 8])):
            it.speeds = {OTHER: fastest, THIRD: 7.0}
            for _ in range(2):
                await trio.sleep(limits.PACING_TOLD_S)
                await it.hears(progress_at(0.4))
            assert it.sent == [RoundSteps(n) for n in steps]


async def test_a_call_takes_a_step_of_the_slowest_as_far_as_speeds_are_known(
    autojump_clock,
) -> None:
    async with rig() as it:
        fields = {name: getattr(READY, name) for name in READY.__struct_fields__}
        await it.hears(WorkerReady(**{**fields, "round_steps": 64}))
        assert it.trainer.briefing.call_s() == 0.0
        await it.hears(progress_at(0.4))
        it.speeds = {OTHER: 0.8, THIRD: 2.0}
        assert it.trainer.briefing.call_s() == pytest.approx(2.5)


def progress_at(step_time_s: float) -> Progress:
    return Progress(1, 1, 0.5, 0.5, step_time_s)


async def test_many_messages_wait_until_the_worker_has_read_some(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        it.links[0].is_deaf = True
        told = 0

        async def tell_all() -> None:
            nonlocal told
            for told in range(10 * limits.TRAINER_OUTBOX_MAX):  # noqa: B007
                await it.trainer.tell(Drop(1, "x"))

        it.nursery.start_soon(tell_all)
        await trio.sleep(1)
        assert 0 < told <= limits.TRAINER_OUTBOX_MAX / 2 + 1
        await it.hears(crash())
        await trio.sleep(limits.WORKER_BACKOFF_S_MAX)
        assert told == 10 * limits.TRAINER_OUTBOX_MAX - 1


async def test_the_restart_budget(autojump_clock) -> None:
    async with rig() as it:
        for number in range(limits.WORKER_RESTARTS_MAX + 1):
            assert it.trainer.restarts == number
            await it.hears(READY, crash(f"death {number}"))
            await trio.sleep(limits.WORKER_BACKOFF_S_MAX)
        assert isinstance(it.failure, WorkerError)
        assert "last: death 5" in str(it.failure)
        assert len(it.links) == limits.WORKER_RESTARTS_MAX + 1


async def test_the_restart_budget_is_earned_back(autojump_clock) -> None:
    async with rig() as it:
        for _ in range(3 * limits.WORKER_RESTARTS_MAX):
            await it.hears(READY, crash())
            await trio.sleep(limits.WORKER_RESTARTS_WINDOW_S / limits.WORKER_RESTARTS_MAX + 1)
        assert it.failure is None


@pytest.mark.parametrize(
    ("kind", "error"), [("layout", SpecMismatch), ("config", ConfigError), ("data", ConfigError)]
)
async def test_what_a_restart_cannot_mend_ends_the_node(autojump_clock, kind, error) -> None:
    async with rig() as it:
        await it.hears(WorkerFailed(kind, "say why in one line"), crash())
        assert isinstance(it.failure, error)
        assert str(it.failure) == "say why in one line"
        assert len(it.links) == 1


async def test_what_a_restart_may_mend_is_restarted(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(WorkerFailed("out-of-memory", "too big"), crash())
        assert it.trainer.state == "starting"
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        assert len(it.links) == 2


async def test_a_worker_that_began_badly_begins_again_with_another_model(autojump_clock) -> None:
    async with rig() as it:
        progress = Progress(step=9, tokens=9, loss=2.3, eval_loss=2.3, step_time_s=0.1)
        await it.hears(READY, progress)
        assert len(it.links) == 1
        it.objection = "expected a probe loss like that of the others"
        await it.hears(progress)
        assert [failed.message for failed in it.mended] == [it.objection]
        assert len(it.links) == 2
        assert it.trainer.restarts == 0, "no death of its budget"


async def test_a_worker_that_says_nothing_does_not_count_as_training(autojump_clock) -> None:
    """The others would wait for it until it is ended."""
    async with rig() as it:
        await it.hears(READY, PROGRESS)
        await trio.sleep(limits.WORKER_QUIET_S - 1)
        assert it.trainer.state == "training"
        await trio.sleep(2.5)
        assert it.trainer.state == "starting"
        assert it.trainer.reason == "the worker has said nothing for 9 s"
        assert len(it.links) == 1


async def test_a_worker_that_was_silent_goes_on_as_after_a_rest(autojump_clock) -> None:
    """The others went on: it asks them how far they are before it counts as training."""
    async with rig() as it:
        await it.hears(READY, PROGRESS)
        await trio.sleep(2 * limits.WORKER_QUIET_S)
        assert it.sent == [Pause()], "read when it can be"
        await it.hears(PROGRESS)
        assert it.sent == [Pause(), Resume()]
        assert it.trainer.state == "starting", "what it says is older than that"
        await it.hears(PROGRESS)
        assert (it.trainer.state, it.trainer.reason) == ("training", "on fake")
        await it.hears(PROGRESS)
        assert it.sent == [Pause(), Resume()]


async def test_what_a_person_wants_outlives_a_silence(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY, PROGRESS)
        await trio.sleep(2 * limits.WORKER_QUIET_S)
        it.trainer.pause()
        await it.hears(PROGRESS)
        assert Resume() not in it.sent
        resting = Progress(1, 1, 0.5, 0.5, 0.1, paused=True)
        await it.hears(resting)
        await trio.sleep(2 * limits.WORKER_QUIET_S)
        assert (it.trainer.state, it.trainer.reason) == ("paused", "paused by hand")
        await it.hears(resting)
        assert Resume() not in it.sent


async def test_a_pause_outlives_the_worker(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        it.trainer.pause()
        await it.hears(Progress(1, 1, 0.5, 0.5, 0.1, paused=True))
        assert it.trainer.state == "paused"
        await it.hears(crash())
        await trio.sleep(limits.WORKER_BACKOFF_S_MIN)
        assert it.sent == [Pause()]
        it.trainer.resume()
        await it.hears(crash())
        await trio.sleep(2 * limits.WORKER_BACKOFF_S_MIN)
        assert it.sent == []


async def test_requests_of_people_leave_room_for_slots(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        leases = await it.lend(1), await it.lend(2, slot=1)
        it.links[0].is_deaf = True

        def ask_for_ever() -> None:
            for _ in range(10 * limits.TRAINER_OUTBOX_MAX):
                it.trainer.pause()

        with pytest.raises(Overloaded, match="has not read"):
            ask_for_ever()
        it.lessor.apply(leases[0], b"x" * 16, PARTNER)
        it.lessor.give_back(leases[1], "why not")


async def test_a_snapshot_on_request(autojump_clock) -> None:
    async with rig() as it:
        with pytest.raises(WorkerError, match="starting"):
            await it.trainer.save_snapshot(1)
        await it.hears(READY)
        got: list[Any] = []

        async def ask() -> None:
            try:
                got.append(await it.trainer.save_snapshot(5))
            except SwarmNodeError as error:
                got.append(error)

        async with trio.open_nursery() as nursery:
            for answer in (
                SnapshotSaved(1, 7, "here"),
                SnapshotFailed(2, 8, "no space"),
                crash(),
            ):
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                assert isinstance(it.sent[-1], SaveSnapshot)
                await it.hears(SnapshotSaved(0, 6, "by itself"))
                await it.hears(answer)
        assert got[0] == SnapshotSaved(1, 7, "here")
        assert isinstance(got[1], StorageError)
        assert isinstance(got[2], WorkerError)


async def test_a_snapshot_that_takes_too_long(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        with pytest.raises(DeadlineExceeded):
            await it.trainer.save_snapshot(5)


async def test_a_worker_begins_anew_with_a_model_of_the_others(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        lease = await it.lend(1)
        it.trainer.begin_anew("its log is another")
        await trio.testing.wait_all_tasks_blocked()
        assert it.trainer.worker_pid is not None  # what is lent is not lost
        it.lessor.give_back(lease, "over")
        await trio.sleep(1)
        expected = "fetching a model of the others: its log is another"
        assert (it.trainer.state, it.trainer.reason) == ("starting", expected)
        assert (len(it.links), it.fetched) == (1, 0)
        await trio.sleep(6)
        assert (len(it.links), it.fetched) == (2, 1)
        await it.hears(READY)
        assert it.trainer.state == "training"
        assert it.trainer.restarts == 0


async def test_who_begins_anew_for_ever_does_it_seldom(autojump_clock) -> None:
    async with rig() as it:
        for _ in range(3600):
            if it.trainer.worker_pid is not None:
                it.trainer.begin_anew("its log is another")
            await trio.sleep(1)
        assert 6 <= it.fetched <= 2 * 3600 / limits.WORKER_RESTARTS_WINDOW_S * 6
        assert it.failure is None


async def test_a_worker_gives_its_memory_back_and_comes_again(autojump_clock) -> None:
    async with rig() as it:
        await it.hears(READY)
        lease = await it.lend(1)
        it.trainer.pause("others use the GPU")
        it.trainer.unload()
        await it.hears(Progress(1, 1, 0.5, 0.5, 0.1, paused=True))
        assert len(it.links) == 1
        assert it.trainer.worker_pid is not None  # what is lent is not lost
        it.lessor.give_back(lease, "over")
        await trio.sleep(1)
        assert it.trainer.worker_pid is None
        assert (it.trainer.state, it.trainer.reason) == ("paused", "others use the GPU")
        await trio.sleep(3600)
        assert len(it.links) == 1
        assert it.trainer.restarts == 0
        it.trainer.load()
        it.trainer.resume()
        await trio.sleep(1)
        assert len(it.links) == 2
