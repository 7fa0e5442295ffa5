"""One merge of all members' models: over real sessions, with workers of a few lines."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.app.training import FINALIZE_SERVICE, MERGE_MEANS_SERVICE
from swarmnode.daemon.collective.finalize import Finalized, Finalizer
from swarmnode.daemon.collective.merge_part import groups_of
from swarmnode.daemon.collective.runs import GroupRuns
from swarmnode.daemon.worker.link import MergeDesk
from swarmnode.errors import ConfigError, DeadlineExceeded, Overloaded, SwarmNodeError, WorkerError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import (
    GiveShare,
    MergeFailed,
    MergeWeighed,
    ShareGiven,
    ToWorker,
    WeighMerge,
)
from swarmnode.ipc.names import MERGE_RULES
from swarmnode.net.session import Session
from swarmnode.strategies import merge
from swarmnode.tensor.layout import Layout
from swarmnode.wire.exchange import finalize as wire
from swarmnode.wire.packing import encode_record
from tests.kits.lessor_kit import KEY, Party, PartyNode, party

LAYOUT = Layout.of([("w", (64, 64), "float32"), ("b", (64,), "float32"), ("s", (), "float32")])
SERVICE = f"{FINALIZE_SERVICE}@tag"


class Member:
    """A node that takes part in merges; its worker answers at once, unless it is ``mute``."""

    def __init__(self, node: PartyNode, folder: Path) -> None:
        self.node = node
        seed = int.from_bytes(node.peer[:4], "big")
        self.x = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed))
        self.tokens = 100 * (seed % 7 + 1)
        self.desk = MergeDesk(self._post)
        self.asked: list[ToWorker] = []
        self.refuses = ""
        self.mute = False
        self.penalty = 0.0
        self.on_share: Callable[[], None] = lambda: None
        communicator = node.communicator(partners=self)
        self.runs = GroupRuns(MERGE_MEANS_SERVICE, communicator)
        self.finalizer = Finalizer(
            communicator,
            service=SERVICE,
            runs=self.runs,
            swarm=self,
            desk=self.desk,
            folder=folder / node.name,
        )
        communicator.services.add_request(FINALIZE_SERVICE, self.finalizer.answer)
        self.run = self.runs.run
        self.sessions = node.sessions
        self.partners = self.mergers = node.live
        self.strangers: set[PeerId] = set()

    def want(self, peers: tuple[PeerId, ...]) -> None:
        """None is dialled here: who has died stays away."""

    def is_in_good_standing(self, peer: PeerId) -> bool:
        return peer not in self.strangers

    async def connect(self, peer: PeerId) -> Session:
        await trio.lowlevel.checkpoint()
        session = self.node.sessions.get(peer)
        if session is None or session.is_closed:
            raise WorkerError("no way there")
        return session

    def _post(self, message: ToWorker) -> None:
        self.asked.append(message)
        if self.mute:
            return
        if self.refuses:
            assert isinstance(message, GiveShare | WeighMerge)
            self.desk.take(MergeFailed(message.request, self.refuses))
        elif isinstance(message, GiveShare):
            numbers = merge.share(message.rule, self.x, LAYOUT).numpy()
            numbers.tofile(message.path)
            self.desk.take(ShareGiven(message.request, len(numbers), 7, self.tokens))
            self.on_share()
        elif isinstance(message, WeighMerge):
            found = torch.from_numpy(np.fromfile(message.path, np.float32))
            merged = merge.merge_of(message.rule, found, LAYOUT, message.n)
            self.merged = merged
            digest = hashlib.sha256(merged.numpy().tobytes()).digest()
            own_loss = float(self.x.square().mean())
            loss = float(merged.square().mean()) + self.penalty
            self.desk.take(MergeWeighed(message.request, digest, loss, own_loss, message.folder))


@asynccontextmanager
async def members(n: int, folder: Path) -> AsyncIterator[tuple[Party, list[Member]]]:
    async with party(0.01) as made:
        found: list[Member] = []
        for number in range(n):
            found.append(await made.add(f"m{number}", lambda node: Member(node, folder)))
        yield made, found


def expected(rule: str, all_of_them: list[Member]) -> torch.Tensor:
    ordered = sorted(all_of_them, key=lambda member: member.node.peer)
    vectors = [member.x for member in ordered]
    if rule == "variance-corrected":
        return merge.variance_corrected(vectors, LAYOUT)
    if rule == "rda":
        return merge.rda(vectors, LAYOUT)
    weights = [member.tokens for member in ordered] if rule == "tokens" else []
    return merge.mean(vectors, weights)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def digest_of(x: torch.Tensor) -> str:
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("rule", MERGE_RULES)
async def test_all_come_to_what_the_rule_says(
    autojump_clock: MockClock, tmp_path: Path, rule: str
) -> None:
    async with members(4, tmp_path) as (_, all_of_them):
        found = await all_of_them[0].finalizer.finalize(rule)
        merged = all_of_them[0].merged
        torch.testing.assert_close(merged, expected(rule, all_of_them), rtol=1e-5, atol=1e-6)
        assert all(torch.equal(member.merged, merged) for member in all_of_them)
        assert found.digest == digest_of(merged)
        assert (found.agreed, found.members, found.contributors) == (4, 4, 4)
        assert found.tokens == sum(member.tokens for member in all_of_them)
        assert (found.left_out, found.problem, found.step) == ({}, "", 7)
        assert found.path == str(tmp_path / "m0" / "model")


async def test_only_the_asker_writes_a_model_and_nothing_else_is_left(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(3, tmp_path) as (_, all_of_them):
        await all_of_them[1].finalizer.finalize("mean")
        folders = [
            message.folder
            for member in all_of_them
            for message in member.asked
            if isinstance(message, WeighMerge)
        ]
        assert sorted(map(bool, folders)) == [False, False, True]
        assert not files_in(tmp_path)


async def test_one_node_alone_merges_with_itself(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with members(1, tmp_path) as (_, (alone,)):
        found = await alone.finalizer.finalize("mean")
        assert found.digest == digest_of(alone.x)
        assert (found.agreed, found.members, found.barrier) == (1, 1, 0.0)


async def test_who_has_no_model_is_left_out(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with members(4, tmp_path) as (_, all_of_them):
        all_of_them[2].refuses = "the parameters of this node are not finite"
        found = await all_of_them[0].finalizer.finalize("mean")
        assert (found.agreed, found.members, found.contributors) == (3, 4, 3)
        ((peer, why),) = found.left_out.items()
        assert peer == str(all_of_them[2].node.peer)
        assert "not finite" in why
        others = [member for member in all_of_them if not member.refuses]
        torch.testing.assert_close(others[0].merged, expected("mean", others))


async def test_a_member_that_dies_midway_does_not_stop_the_others(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(4, tmp_path) as (made, all_of_them):
        victim = all_of_them[3]

        def die_soon() -> None:
            made.nursery.start_soon(die)

        async def die() -> None:
            await trio.sleep(0.06)  # the means are under way
            victim.node.die()
            for member in all_of_them[:3]:
                member.runs.members_changed()

        all_of_them[0].on_share = die_soon
        found = await all_of_them[0].finalizer.finalize("mean")
        survivors = all_of_them[:3]
        assert (found.agreed, found.members) == (3, 4)
        assert found.left_out.keys() == {str(victim.node.peer)}
        assert len({digest_of(member.merged) for member in survivors}) == 1
        whole, rest = expected("mean", all_of_them), expected("mean", survivors)
        closest = min(float((survivors[0].merged - each).abs().max()) for each in (whole, rest))
        assert closest < 1e-6
        assert found.contributors in (3, 4)


async def test_one_merge_at_a_time(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with members(3, tmp_path) as (_, all_of_them):
        outcomes: list[Finalized | SwarmNodeError] = []

        async def ask(member: Member) -> None:
            try:
                outcomes.append(await member.finalizer.finalize("mean"))
            except SwarmNodeError as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, all_of_them[0])
            await trio.sleep(0.025)  # the others have been asked
            nursery.start_soon(ask, all_of_them[1])
        refused, found = sorted(outcomes, key=lambda each: isinstance(each, Finalized))
        assert isinstance(refused, Overloaded)
        assert "another merge is under way, asked for by" in str(refused)
        assert isinstance(found, Finalized)
        assert found.agreed == 3
        with pytest.raises(Overloaded, match=r"the last merge has only just been: try again in"):
            await all_of_them[2].finalizer.finalize("mean")
        await trio.sleep(limits.FINALIZE_PAUSE_S)
        assert (await all_of_them[2].finalizer.finalize("mean")).agreed == 3


@pytest.mark.parametrize(("n", "n_busy"), [(4, 1), (7, 2)])
async def test_fewer_than_a_third_that_say_they_are_busy_forbid_no_merge(
    autojump_clock: MockClock, tmp_path: Path, n: int, n_busy: int
) -> None:
    async with members(n, tmp_path) as (_, all_of_them):
        busy = await occupied(all_of_them, n_busy)
        found = await all_of_them[0].finalizer.finalize("mean")
        assert (found.agreed, found.members, found.contributors) == (n - n_busy, n, n - n_busy)
        assert found.left_out.keys() == {str(each.node.peer) for each in busy}
        assert all("another merge is under way" in why for why in found.left_out.values())


@pytest.mark.parametrize(("n", "n_busy"), [(3, 1), (6, 2)])
async def test_where_a_third_are_busy_there_is_another_merge(
    autojump_clock: MockClock, tmp_path: Path, n: int, n_busy: int
) -> None:
    async with members(n, tmp_path) as (_, all_of_them):
        await occupied(all_of_them, n_busy)
        with pytest.raises(Overloaded, match=r"takes no part: .*another merge is under way"):
            await all_of_them[0].finalizer.finalize("mean")


async def occupied(all_of_them: list[Member], n: int) -> list[Member]:
    """Return the n after the first, which the last one asked for a share and forgot."""
    prepare = encode_record(wire.Prepare(b"f" * 16, "mean"))
    for each in all_of_them[1 : 1 + n]:
        session = await all_of_them[-1].connect(each.node.peer)
        await session.request(SERVICE, prepare, deadline_s=5.0)
    return all_of_them[1 : 1 + n]


async def test_who_asks_again_too_soon_is_told_so(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(3, tmp_path) as (_, (asker, *_others)):
        for _ in range(2):
            await asker.finalizer.finalize("mean")
            await trio.sleep(limits.FINALIZE_PAUSE_S)
        with pytest.raises(Overloaded, match=r"one merge of .* in 10 minutes, got another"):
            await asker.finalizer.finalize("mean")


async def ask_and_forget(asker: Member, asked: Member, number: int) -> None:
    """Have a member build its share, for nothing. Raises what it answers."""
    fid = bytes([number]) * 16
    for message in (wire.Prepare(fid, "mean"), wire.Done(fid)):
        session = asker.sessions[asked.node.peer]
        await session.request(SERVICE, encode_record(message), deadline_s=5.0)


async def test_a_member_makes_others_build_their_share_once_in_ten_minutes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(2, tmp_path) as (_, (liar, other)):
        built = 0
        for number in range(120):  # an hour
            with suppress(SwarmNodeError):
                await ask_and_forget(liar, other, number)
                built += 1
            await trio.sleep(30)
        assert built <= 8
        assert len(other.asked) == built
        await other.finalizer.finalize("mean")


async def test_a_member_that_has_only_just_come_starts_no_merge(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(2, tmp_path) as (_, (liar, other)):
        other.strangers.add(liar.node.peer)
        with pytest.raises(SwarmNodeError, match="known here for 10 minutes"):
            await ask_and_forget(liar, other, 1)
        assert other.asked == []


async def test_two_askers_at_once_both_give_up_and_may_try_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(3, tmp_path) as (_, all_of_them):
        refused: list[str] = []

        async def ask(member: Member) -> None:
            with pytest.raises(Overloaded) as caught:
                await member.finalizer.finalize("mean")
            refused.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            for member in all_of_them[:2]:
                nursery.start_soon(ask, member)
        assert len(refused) == 2
        assert (await all_of_them[0].finalizer.finalize("mean")).agreed == 3


async def test_an_asker_that_vanishes_frees_the_others_after_a_while(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(3, tmp_path) as (_, all_of_them):
        first, second, _third = all_of_them
        prepare = encode_record(wire.Prepare(b"f" * 16, "mean"))
        session = await first.connect(second.node.peer)
        await session.request(SERVICE, prepare, deadline_s=5.0)
        with pytest.raises(Overloaded, match="another merge is under way"):
            await second.finalizer.finalize("mean")
        await trio.sleep(limits.FINALIZE_WORKER_S + limits.FINALIZE_WAIT_S)
        assert (await second.finalizer.finalize("mean")).agreed == 3


async def test_a_merge_that_was_given_up_does_not_end_the_next(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Its share is still waited for when the share for the next is there."""
    async with members(3, tmp_path) as (_, (first, second, third)):

        async def ask(member: Member, message: wire.Message) -> None:
            session = await member.connect(second.node.peer)
            await session.request(SERVICE, encode_record(message), deadline_s=300.0)

        async def ask_in_vain() -> None:
            with pytest.raises(SwarmNodeError, match="waiting for the worker to merge models"):
                await ask(first, wire.Prepare(b"f" * 16, "mean"))

        async with trio.open_nursery() as nursery:
            second.mute = True
            nursery.start_soon(ask_in_vain)
            await trio.sleep(limits.FINALIZE_WORKER_S / 2)
            await ask(first, wire.Done(b"f" * 16))
            second.mute = False
            await ask(third, wire.Prepare(b"t" * 16, "mean"))
        with pytest.raises(Overloaded, match=f"asked for by {third.node.peer.short}"):
            await second.finalizer.finalize("mean")


async def test_who_was_not_asked_to_prepare_takes_no_part(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(2, tmp_path) as (_, (first, second)):
        session = await first.connect(second.node.peer)
        me, other = (wire.Participant(member.node.peer, 1.0) for member in (first, second))
        for participants in ((me, other), (me,), (other, other)):
            message = wire.Merge(b"f" * 16, 0, participants)
            with pytest.raises(SwarmNodeError, match="not known here"):
                await session.request(SERVICE, encode_record(message), deadline_s=5.0)
        prepare = wire.Prepare(b"f" * 16, "mean")
        await session.request(SERVICE, encode_record(prepare), deadline_s=5.0)
        for participants in ((me,), (other, other)):
            message = wire.Merge(b"f" * 16, 0, participants)
            with pytest.raises(SwarmNodeError, match="expected every participant once"):
                await session.request(SERVICE, encode_record(message), deadline_s=5.0)


async def test_strangers_are_told_apart_from_relatives(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(2, tmp_path) as (_, all_of_them):
        monkeypatch.setattr(all_of_them[1], "x", -0.5 * all_of_them[0].x)
        found = await all_of_them[0].finalizer.finalize("mean")
        own = [float(member.x.square().mean()) for member in all_of_them]
        assert found.loss is not None
        assert found.barrier == pytest.approx(found.loss - sum(own) / 2)
        assert found.loss < sum(own) / 2  # the loss of these workers is smallest at 0
        assert found.problem == ""
        for member in all_of_them:
            member.penalty = 10.0
        await trio.sleep(limits.FINALIZE_PAUSE_S)
        found = await all_of_them[0].finalizer.finalize("mean")
        assert "trained apart for too long, or from other inits" in found.problem


async def test_a_rule_that_is_none(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with members(1, tmp_path) as (_, (alone,)):
        with pytest.raises(ConfigError, match=r"a merge rule among mean, tokens, .*, got 'median'"):
            await alone.finalizer.finalize("median")


async def test_the_own_worker_must_be_there(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with members(2, tmp_path) as (_, (first, _second)):
        first.mute = True
        with pytest.raises(DeadlineExceeded, match="the worker to merge models"):
            await first.finalizer.finalize("mean")
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(WorkerError, match="no merge: the worker died over it"):
                    await first.finalizer.finalize("mean")

            nursery.start_soon(ask)
            await trio.sleep(1.0)
            first.desk.worker_gone()
        first.mute = False
        assert (await first.finalizer.finalize("mean")).agreed == 2


async def test_a_swarm_larger_than_one_group_goes_through_a_grid(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FINALIZE_GROUP_MEMBERS_MAX", 4)
    monkeypatch.setattr(limits, "FINALIZE_GROUP_SIZE", 2)
    async with members(6, tmp_path) as (_, all_of_them):
        found = await all_of_them[0].finalizer.finalize("tokens")
        assert (found.agreed, found.members, found.contributors) == (6, 6, 6)
        torch.testing.assert_close(
            all_of_them[0].merged, expected("tokens", all_of_them), rtol=1e-5, atol=1e-6
        )


async def test_who_claims_all_the_tokens_does_not_replace_the_model(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with members(5, tmp_path) as (_, all_of_them):
        for member, tokens in zip(all_of_them, (100, 100, 400, 100, 10**18), strict=True):
            member.tokens = tokens
        await all_of_them[0].finalizer.finalize("tokens")
        all_of_them[4].tokens = int(100 * limits.FINALIZE_WEIGHT_MEDIANS_MAX)
        torch.testing.assert_close(
            all_of_them[0].merged, expected("tokens", all_of_them), rtol=1e-5, atol=1e-6
        )


def test_grids_keep_weights() -> None:
    rng = np.random.default_rng(1)
    for n in (17, 40, 64, 100):
        peers = [PeerId(hashlib.sha256(b"%d" % i).digest()) for i in range(n)]
        weights = {peer: float(rng.integers(1, 1000)) for peer in peers}
        values: dict[PeerId, Any] = {peer: rng.standard_normal() for peer in peers}
        exact = sum(weights[p] * values[p] for p in peers) / sum(weights.values())
        for groups in groups_of(weights, KEY):
            for group in groups:
                assert len(group.members) <= limits.FINALIZE_GROUP_MEMBERS_MAX
                total = sum(
                    w * values[p] for p, w in zip(group.members, group.weights, strict=True)
                )
                values |= dict.fromkeys(group.members, total / sum(group.weights))
        assert all(
            math.isclose(each, exact, rel_tol=1e-9, abs_tol=1e-12) for each in values.values()
        )
