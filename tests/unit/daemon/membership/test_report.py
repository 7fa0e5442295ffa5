"""What a node says of itself: what is new, when it is new, and nothing that harms the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio

from swarmnode import __version__, limits
from swarmnode.daemon.membership.report import PeerReport, Reporter, SelfReport, peer_report
from swarmnode.daemon.membership.shared_state import StateKeeper
from swarmnode.env import Env
from swarmnode.net.services import ScopedServices, Services
from swarmnode.protocol.crdt.events import Update
from swarmnode.protocol.identity import Identity

ME = Identity.from_seed(b"m" * 32)
LEASE_S = int(limits.STATE_LEASE_S)
FIRST = SelfReport(
    role="trainer",
    state="starting",
    addresses=("mem:me",),
    counters={"steps": 0, "tokens": 0, "exchanges": 0, "seconds": 0},
    numbers={"loss": None, "eval_loss": None, "step_time_s": None},
    step=0,
)


@dataclass
class Rig:
    """A reporter, what there is to say, and what was said when."""

    keeper: StateKeeper
    now: SelfReport = FIRST
    members: int = 1
    said: list[tuple[float, Update]] = field(default_factory=list)

    def __post_init__(self) -> None:
        say = self.keeper.say

        def record(update: Update) -> None:
            self.said.append((trio.current_time(), update))
            say(update)

        self.keeper.say = record  # type: ignore[method-assign]
        self.reporter = Reporter(self.keeper, ME.peer_id, lambda: self.now, lambda: self.members)

    @property
    def peer_report(self) -> PeerReport:
        return peer_report(self.keeper, ME.peer_id, trio.current_time())


@asynccontextmanager
async def rig(home: Path, *, epoch: int = 1) -> AsyncIterator[Rig]:
    async def everybody(_peer: object) -> bool:
        return True

    keeper = StateKeeper(
        identity=ME,
        swarm_id=b"s" * 32,
        boot_epoch=epoch,
        journal=home / "journal",
        services=ScopedServices(Services(), "tag", everybody),
        env=Env(trio.current_time, lambda: 1e9 + trio.current_time()),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        yield Rig(keeper)
        nursery.cancel_scope.cancel()


# --- what -------------------------------------------------------------------------------------


async def test_all_is_said_once_then_what_is_new(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.reporter.say_now()
        node.reporter.say_now()
        ((_, first),) = node.said
        me = str(ME.peer_id)
        assert first.leases == {
            ("member", me): LEASE_S,
            ("role", "trainer"): LEASE_S,
            ("version", __version__): LEASE_S,
            ("address", "mem:me"): LEASE_S,
        }
        assert first.registers == {"state": "starting", "lineage": "", "sketches": ""}, (
            "a loss that is unknown is not said"
        )
        assert first.counters == FIRST.counters
        assert first.maxima == {"step": 0}

        node.now = replace(
            FIRST,
            state="training",
            addresses=("mem:moved",),
            counters={**FIRST.counters, "steps": 3},
            numbers={"loss": 2.5},
            step=3,
        )
        node.reporter.say_now()
        assert node.said[1][1] == Update(
            {("address", "mem:moved"): LEASE_S, ("address", "mem:me"): 0},
            {"steps": 3},
            {"state": "training", "loss": 2.5},
            {"step": 3},
        )
        await trio.sleep(0.1)
        assert node.peer_report == PeerReport(
            peer=ME.peer_id,
            state="training",
            role="trainer",
            version=__version__,
            addresses=("mem:moved",),
            counters={**FIRST.counters, "steps": 3},
            numbers={"loss": 2.5},
        )
        assert node.keeper.view.members(trio.current_time()) == (ME.peer_id,)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
async def test_the_loss_of_a_lost_model_does_not_silence_the_node(
    autojump_clock, tmp_path: Path, loss: float
) -> None:
    async with rig(tmp_path) as node:
        node.now = replace(FIRST, state="failed", numbers={"loss": loss, "eval_loss": 1.0})
        node.reporter.say_now()
        await trio.sleep(0.1)
        assert node.peer_report.state == "failed"
        assert node.peer_report.numbers == {"eval_loss": 1.0}


async def test_what_no_record_can_hold_is_said_to_the_owner_and_not_again(
    autojump_clock, tmp_path: Path, caplog
) -> None:
    async with rig(tmp_path) as node:
        node.now = replace(FIRST, addresses=("h" * 300,))
        node.reporter.say_now()
        node.reporter.say_now()
        assert caplog.text.count("not said in the shared state") == 1
        node.now = replace(node.now, state="training")
        node.reporter.say_now()
        await trio.sleep(0.1)
        assert node.peer_report.state == "training"


async def test_totals_go_on_over_a_restart(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.now = replace(
            FIRST, counters={"steps": 50, "tokens": 500, "exchanges": 4, "seconds": 100}
        )
        with trio.move_on_after(1):
            await node.reporter.run()
    async with rig(tmp_path, epoch=2) as node:
        node.now = replace(
            FIRST, counters={"steps": 60, "tokens": 600, "exchanges": 1, "seconds": 7}
        )
        with trio.move_on_after(1):
            await node.reporter.run()
        assert node.peer_report.counters == {
            "steps": 60,  # the worker counts on from its snapshot
            "tokens": 600,
            "exchanges": 5,
            "seconds": 107,
        }


async def test_a_goodbye_takes_back_that_we_are_here_but_no_total(
    autojump_clock, tmp_path: Path
) -> None:
    async with rig(tmp_path) as node:
        node.now = replace(FIRST, state="training", counters={**FIRST.counters, "steps": 9})
        node.reporter.say_now()
        await trio.sleep(0.1)
        node.reporter.say_goodbye()
        await trio.sleep(0.1)
        report = node.peer_report
        assert (report.state, report.role, report.addresses) == ("left", None, ())
        assert report.counters["steps"] == 9
        assert node.keeper.view.members(trio.current_time()) == ()


# --- when -------------------------------------------------------------------------------------


async def run_for(node: Rig, seconds: float) -> list[float]:
    """Run the reporter; return when it spoke."""
    began = len(node.said)
    with trio.move_on_after(seconds):
        await node.reporter.run()
    return [time for time, _ in node.said[began:]]


async def train(node: Rig) -> None:
    while True:
        await trio.sleep(0.3)
        node.now = replace(node.now, step=node.now.step + 1, counters={"steps": node.now.step + 1})


@pytest.mark.parametrize(
    ("members", "pause_s"),
    [(1, limits.REPORT_S_MIN), (8, limits.REPORT_S_MIN), (100, 100 * limits.REPORT_MEMBER_S)],
)
async def test_each_speaks_the_rarer_the_more_there_are(
    autojump_clock, tmp_path: Path, members: int, pause_s: float
) -> None:
    async with rig(tmp_path) as node, trio.open_nursery() as nursery:
        node.members = members
        nursery.start_soon(train, node)
        times = await run_for(node, 10 * pause_s + 1)
        assert 10 <= len(times) <= 11
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(abs(pause - pause_s) <= limits.REPORT_LOOK_S for pause in pauses)
        nursery.cancel_scope.cancel()


async def test_a_change_of_state_is_said_at_once(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as node, trio.open_nursery() as nursery:
        node.members = 1000

        async def change() -> None:
            await trio.sleep(60)
            node.now = replace(node.now, state="paused")

        nursery.start_soon(change)
        times = await run_for(node, 100)
        assert len(times) == 2
        assert 60 <= times[1] <= 60 + limits.REPORT_LOOK_S


async def test_time_alone_is_little_news(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as node, trio.open_nursery() as nursery:

        async def age() -> None:
            while True:
                node.now = replace(node.now, counters={"seconds": int(trio.current_time())})
                await trio.sleep(1)

        nursery.start_soon(age)
        times = await run_for(node, 10 * limits.REPORT_TIME_S)
        assert len(times) <= 11
        nursery.cancel_scope.cancel()


# --- what others say --------------------------------------------------------------------------


async def test_what_makes_no_sense_counts_as_not_said(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        assert node.peer_report == PeerReport(ME.peer_id)
        node.keeper.say(
            Update(
                leases={("role", "emperor"): 300, ("version", "0.1"): 300, ("x", "y"): 300},
                counters={"steps": 1},
                registers={"state": "dancing", "loss": "high", "speed": 1.5},
            )
        )
        await trio.sleep(0.1)
        assert node.peer_report == PeerReport(
            ME.peer_id, version="0.1", counters={"steps": 1}, numbers={"speed": 1.5}
        )


async def test_what_is_leased_ends_with_silence(autojump_clock, tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.reporter.say_now()
        await trio.sleep(1)
        node.keeper.core.handle_deadline = lambda now: None  # type: ignore[method-assign]
        node.keeper.core.next_deadline = lambda: None  # type: ignore[method-assign]
        await trio.sleep(1.4 * limits.STATE_LEASE_S)
        report = node.peer_report
        assert (report.role, report.version, report.addresses) == (None, "", ())
        assert report.state == "starting", "the last word stands"
