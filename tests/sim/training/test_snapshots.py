"""Newcomers among holders that are gone, lie, or have not heard; and what claims say."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from swarmnode import limits
from swarmnode.cli.node.control import status_lines
from swarmnode.daemon.status.phases import Member, Training
from swarmnode.daemon.worker.link import WorkerLink
from swarmnode.daemon.worker.trainer import Trainer
from swarmnode.ipc.control import Configure
from swarmnode.protocol.crdt.document import SnapshotEntry
from swarmnode.protocol.crdt.events import Update
from swarmnode.store.checkpoints import newest
from swarmnode.tensor.snapshot_format import FETCHED_NAME, About, encode_header, lay_out
from swarmnode.testing.fake_files import read_fetched, write_snapshot
from swarmnode.testing.fake_worker import FakeWorker
from swarmnode.testing.swarm import SimNode, SimSwarm, sim_swarm
from swarmnode.wire.crdt import SnapshotClaim
from tests.sim.checks import pull, until

# One that knows nothing of the swarm's model begins at 100, the swarm is near 1.
TRAINING = FakeWorker(np.zeros(0), drift=pull)
NEWCOMER = FakeWorker(np.full(640, 100.0), drift=pull)
FAR = 50.0
AHEAD_STEPS = 150  # of what honest nodes offer, for the next seven seconds
# What is well held and so far behind spares no copy (SNAPSHOT_NEW_SHARE); three times as far in a
# row is not absurd yet.
FURTHER = 1.2


def offered(node: SimNode) -> list[SnapshotEntry]:
    """Return what is held, as a node sees it."""
    match node.running.view.membership:
        case Member(part=part):
            return list(part.state.view.snapshots(trio.current_time()))
    return []


async def join(swarm: SimSwarm) -> tuple[SimNode, float]:
    """Start a newcomer; return it, and how long it took until it trained."""
    newcomer = swarm.add(FakeWorker(NEWCOMER.initial, drift=pull))
    await swarm.start(newcomer.index)
    return newcomer, await until(lambda: newcomer.status.state == "training", 120, poll_s=0.1)


async def offer_file(node: SimNode, path: Path, step: int) -> None:
    """Let a node claim that this file is the swarm's model, far ahead of all others."""
    blobs = node.running.view.member().blobs
    name = await blobs.add_file(path)
    claim = SnapshotClaim(name, step, blobs.held()[name], int(limits.STATE_LEASE_S))
    node.part.state.say(Update(snapshots={name: claim}))


async def offer_by_both(swarm: SimSwarm, path: Path) -> None:
    """Let two nodes, in two networks, claim that this is the model, and a little further."""
    step = max(entry.step for entry in offered(swarm.nodes[0])) + 1
    for node in swarm.nodes[:2]:
        await offer_file(node, path, step)


def garbage(folder: Path) -> Path:
    path = folder / "garbage"
    path.write_bytes(b"no model" * 1000)
    return path


def of_another_model(folder: Path) -> Path:
    data = np.full(640, 7.0).tobytes()
    about = About(
        task="fake",
        task_version=1,
        task_config={},
        layout_hash="11" * 32,
        step=1,
        tokens=1,
        hashes={"model/x": hashlib.sha256(data).hexdigest()},
    )
    path = folder / "other"
    path.write_bytes(encode_header(lay_out({"model/x": ("F64", (640,))}), about) + data)
    return path


@pytest.mark.parametrize(
    ("make", "why"), [(garbage, "header"), (of_another_model, "is a snapshot of another model")]
)
async def test_what_is_no_snapshot_of_the_model_is_passed_over(
    tmp_path, autojump_clock, caplog, make, why: str
) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await until(lambda: bool(offered(swarm.nodes[0])), 60, poll_s=0.5)
        await offer_by_both(swarm, make(tmp_path))
        await trio.sleep(1)
        newcomer, _ = await join(swarm)
        (said,) = [r for r in caplog.records if "another one is tried" in r.getMessage()]
        assert why in said.fields["why"]
        assert np.abs(newcomer.worker.x).max() < FAR
        assert len(newcomer.running.view.member().snapshots.claims) == 1


def of_no_numbers(folder: Path) -> Path:
    """A file whose hashes are right; only a worker sees that no node can train on it."""
    return write_snapshot(folder / "unfit", np.full(640, np.nan), step=1)


async def test_what_a_worker_cannot_begin_with_is_followed_by_the_next_and_not_served_again(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await until(lambda: bool(offered(swarm.nodes[0])), 60, poll_s=0.5)
        await offer_by_both(swarm, of_no_numbers(tmp_path))
        await trio.sleep(1)
        bad = offered(swarm.nodes[1])[0].root
        newcomer, _ = await join(swarm)
        assert np.abs(newcomer.worker.x).max() < FAR, "it has begun with the honest one"
        assert newcomer.status.worker_restarts == 0, "no death of its budget"
        assert [newcomer.view_of(node).refused for node in swarm.nodes[:2]] == [1, 1]
        assert all(newcomer.view_of(node).trust < 0.5 for node in swarm.nodes[:2])
        snapshots = newcomer.running.view.member().snapshots
        assert bad not in snapshots.claims
        assert bad not in snapshots._blobs.held()
        await trio.sleep(3 * limits.SNAPSHOT_REPLICATE_S)
        assert bad not in snapshots._blobs.held(), "not even as a replica"


async def test_after_one_refusal_what_else_a_liar_has_offered_comes_last(
    tmp_path, autojump_clock
) -> None:
    """Honest members, which cannot see what is wrong with it, hold copies of it by then."""
    async with sim_swarm(tmp_path, 5, worker=TRAINING) as swarm:
        await until(lambda: bool(offered(swarm.nodes[0])), 60, poll_s=0.5)
        # Trainers copy nothing in their first minute, and later only what is not just as well held.
        await trio.sleep_until(limits.SNAPSHOT_REPLICATE_S - 1)
        liar = swarm.nodes[4]
        for ahead in range(1, 4):
            path = write_snapshot(tmp_path / f"unfit{ahead}", np.full(640, np.nan), step=ahead)
            await offer_file(liar, path, round(FURTHER**ahead * liar.part.swarm_step()))
            await trio.sleep(limits.SNAPSHOT_REPLICATE_LOOK_S + 1)
        lies = [entry for entry in offered(swarm.nodes[0]) if liar.peer in entry.holders]
        assert sum(len(entry.holders) > 1 for entry in lies) > 1, "others have copied some"
        newcomer, _ = await join(swarm)
        assert np.abs(newcomer.worker.x).max() < FAR
        assert newcomer.view_of(liar).refused == 1


async def test_one_liar_does_not_choose_what_newcomers_begin_with(tmp_path, autojump_clock) -> None:
    """Its snapshot passes every check, and says that it is further than all others."""
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        await until(lambda: bool(offered(swarm.nodes[0])), 60, poll_s=0.5)
        await offer_file(swarm.nodes[2], useless(tmp_path), step=10**6)
        await trio.sleep(1)
        (bad,) = (entry.root for entry in offered(swarm.nodes[0]) if entry.step == 10**6)
        newcomer, took_s = await join(swarm)
        assert took_s < 60
        assert np.abs(newcomer.worker.x).max() < FAR
        await trio.sleep(3 * limits.SNAPSHOT_REPLICATE_LOOK_S)
        for node in (*swarm.nodes[:2], newcomer):
            snapshots = node.running.view.member().snapshots
            assert bad not in snapshots.claims, "none keeps it alive either"


def useless(folder: Path) -> Path:
    """A model that is whole, finite and of the right shape, and far from all others."""
    return write_snapshot(folder / "useless", np.full(640, 70.0), step=1)


async def test_a_newcomer_of_unfit_snapshots_alone_begins_from_the_seed(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 2, worker=FakeWorker(np.zeros(0), drift=pull, save_every=0)) as (
        swarm
    ):
        await until(lambda: all(node.status.step > 10 for node in swarm.nodes), 60, poll_s=0.5)
        await offer_file(swarm.nodes[1], of_no_numbers(tmp_path), step=10**6)
        await trio.sleep(1)
        newcomer, took_s = await join(swarm)
        assert took_s < 60
        assert newcomer.status.state == "training"


async def test_the_only_holder_of_the_newest_died_and_no_member_has_noticed(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await until(lambda: bool(offered(swarm.nodes[0])), 60, poll_s=0.5)
        step = max(entry.step for entry in offered(swarm.nodes[0]))
        path = write_snapshot(tmp_path / "newer", np.full(640, 3.0), 1)
        await offer_file(swarm.nodes[1], path, step + 10**6)
        await trio.sleep(0.5)
        await swarm.kill(1)
        newcomer, took_s = await join(swarm)
        assert took_s < 2 * limits.SNAPSHOT_ABANDONED_S
        assert np.abs(newcomer.worker.x).max() < FAR


async def test_a_keeper_copies_the_model_as_soon_as_it_is_there(tmp_path, autojump_clock) -> None:
    """The trainers may leave within its first minute."""
    async with sim_swarm(tmp_path, 2, worker=TRAINING) as swarm:
        await until(lambda: bool(offered(swarm.nodes[0])), 60, poll_s=0.5)
        keeper = swarm.add(NEWCOMER, role="keeper")
        await swarm.start(keeper.index)
        assert keeper.status.held_step is None
        await until(
            lambda: any(keeper.peer in entry.holders for entry in offered(keeper)),
            4 * limits.SNAPSHOT_REPLICATE_LOOK_S,
            poll_s=0.5,
        )
        held = [entry.step for entry in offered(keeper) if keeper.peer in entry.holders]
        assert keeper.status.held_step == max(held) > 0
        rows = dict(status_lines(msgspec.to_builtins(keeper.status)))
        assert rows["snapshot"].endswith(f"; of others that of step {max(held):,} of the swarm")


async def test_who_comes_after_all_others_have_left_counts_on_from_where_they_were(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        first = swarm.nodes[0]
        await until(lambda: bool(offered(first)), 60, poll_s=0.5)
        keeper = swarm.add(NEWCOMER, role="keeper")
        await swarm.start(keeper.index)
        await until(lambda: any(keeper.peer in e.holders for e in offered(keeper)), 60, poll_s=0.5)
        newcomer, _ = await join(swarm)
        left_at = first.status.step
        await first.leave()
        await until(
            lambda: any(set(e.holders) == {newcomer.peer} for e in offered(newcomer)), 60, poll_s=1
        )
        own = max(e.step for e in offered(newcomer) if newcomer.peer in e.holders)
        assert own >= left_at
        assert newcomer.status.step < left_at, "its own count began anew"


async def test_a_restarted_newcomer_waits_for_the_model_of_quiet_holders(
    tmp_path, autojump_clock
) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        first = swarm.nodes[0]
        await until(lambda: bool(offered(first)), 60, poll_s=0.5)
        first.running.view.training().trainer.pause()
        await trio.sleep(5)
        newcomer, _ = await join(swarm)
        await swarm.kill(newcomer.index)
        newcomer.worker = FakeWorker(NEWCOMER.initial, drift=pull)
        await swarm.start(newcomer.index)
        await until(lambda: newcomer.status.state == "training", 120, poll_s=0.1)
        assert np.abs(newcomer.worker.x).max() < FAR


class Beginner(FakeWorker):
    """It keeps to the model that it was given, in each life the newest that was fetched.

    Attributes:
        begun_with: the largest number of each model that it began with.
    """

    def __init__(self) -> None:
        super().__init__(np.full(640, 100.0), every=10**6)
        self.begun_with: list[float] = []

    @asynccontextmanager
    async def start(self, configure: Configure) -> AsyncIterator[WorkerLink]:
        fetched = read_fetched(Path(configure.snapshot_dir))
        if fetched is not None:
            self.lives = 0  # as a real worker does with one that is new
            self.begun_with.append(float(np.abs(fetched).max()))
        async with super().start(configure) as life:
            yield life


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_five_newcomers_at_once_begin_well_with_one_liar_of_six(
    tmp_path, autojump_clock, seed: int
) -> None:
    """It claims to be just ahead of the others, again and again, with a useless model."""
    async with sim_swarm(tmp_path, 6, seed=seed, worker=TRAINING) as swarm:
        await until(lambda: len(offered(swarm.nodes[0])) >= 2, 60, poll_s=0.5)
        liar = swarm.nodes[5]

        async def lie() -> None:
            while True:
                step = max(entry.step for entry in offered(liar)) + AHEAD_STEPS
                await offer_file(liar, useless(tmp_path), step)
                await trio.sleep(10)

        swarm.nursery.start_soon(lie)
        await trio.sleep(1)
        for _ in range(5):
            await swarm.start(swarm.add(Beginner()).index)
        await trio.sleep(60)
        for node in swarm.nodes[6:]:
            assert node.status.state == "training"
            assert np.abs(node.worker.x).max() < FAR


async def test_a_newcomer_that_began_badly_begins_again_within_a_minute(
    tmp_path, autojump_clock
) -> None:
    """Two liars of six have the same useless model, so that two networks seem to hold it."""
    async with sim_swarm(tmp_path, 6, worker=TRAINING) as swarm:
        await until(lambda: len(offered(swarm.nodes[3])) >= 2, 60, poll_s=0.5)
        # Beyond twice what most members have said by then it would count as no further than they.
        step = max(entry.step for entry in offered(swarm.nodes[3])) + AHEAD_STEPS // 2
        for node in swarm.nodes[:2]:
            await offer_file(node, useless(tmp_path), step)
        await trio.sleep(1)
        beginner = Beginner()
        await swarm.start(swarm.add(beginner, hints=(3,)).index)
        await trio.sleep(60)
        assert beginner.begun_with[0] > FAR
        assert len(beginner.begun_with) == 2
        assert np.abs(beginner.x).max() < FAR


def trainer_of(node: SimNode) -> Trainer:
    match node.running.view.work:
        case Training(trainer=trainer):
            return trainer
    raise AssertionError("it does not train")


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def own(folder: Path) -> dict[str, Path]:
    """Return what a worker has written."""
    return {hash_of(path): path for _, path in newest(folder) if path.name != FETCHED_NAME}


async def test_who_begins_anew_begins_with_what_others_made(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 3, worker=TRAINING) as swarm:
        node = swarm.nodes[2]
        await until(lambda: node.status.state == "training", 60, poll_s=0.5)
        trainer = trainer_of(node)
        folder = Path(trainer.configure.snapshot_dir)
        await trio.sleep(8 * limits.SNAPSHOT_OFFER_S)  # more of its own than it tries to fetch
        trainer.begin_anew("its log is another")
        await until(lambda: node.worker.lives == 2, 60, poll_s=0.1)
        fetched = folder / FETCHED_NAME
        assert hash_of(fetched) not in own(folder)
        assert all(path.stat().st_mtime <= fetched.stat().st_mtime for path in own(folder).values())


async def test_who_begins_anew_alone_begins_from_the_seed(tmp_path, autojump_clock) -> None:
    async with sim_swarm(tmp_path, 1, worker=TRAINING) as swarm:
        (node,) = swarm.nodes
        await until(lambda: node.status.state == "training", 60, poll_s=0.5)
        trainer = trainer_of(node)
        await until(lambda: trainer.saved_total > 1, 120, poll_s=0.5)
        folder = Path(trainer.configure.snapshot_dir)
        trainer.begin_anew("its log is another")
        await until(lambda: node.worker.lives == 2, 60, poll_s=0.1)
        assert own(folder.with_name("snapshots-aside"))
        assert not own(folder)
