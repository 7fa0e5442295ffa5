"""One member of a group says what is not: the others have the mean that they would have anyway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from swarmnode.errors import RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.testing.group_world import GID, GroupWorld, Member, Piece
from swarmnode.wire.exchange import group as wire

MADE_UP = 1e6
_WRONG = bytes(31) + b"!"


class Heedful(Member):
    """Who breaks a rule is lost, as the shell has it."""

    def feed(self, event: events.Event) -> None:
        try:
            super().feed(event)
        except RemoteProtocolError as error:
            assert isinstance(event, events.Received)
            assert isinstance(self.world, LyingWorld)
            assert event.peer == self.world.liar.peer_id, "an honest member is accused"
            self.world.broken[self.peer_id] = str(error)
            super().feed(events.PeerLost(event.peer))


class LyingWorld(GroupWorld):
    """The last member behaves but for what :meth:`lies` makes of its words."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed, n_pieces=16, make=Heedful)
        self.broken: dict[PeerId, str] = {}  # why a member has lost the liar
        self.liar = self.members[-1]
        self.honest = self.members[:-1]
        self.ids = tuple(sorted(self.by_id))
        self.plan = events.plan_id(GID, self.ids)

    def lies(self, target: PeerId, message: Any, payload: Piece) -> Iterable[tuple[Any, Piece]]:
        """Return what it sends in the place of a message: here what it should."""
        return [(message, payload)]

    def send(self, source: Member, target: PeerId, message: Any, payload: Piece = ()) -> None:
        said = self.lies(target, message, payload) if source is self.liar else [(message, payload)]
        for each, numbers in said:
            super().send(source, target, each, numbers)

    def made_up_sums(self) -> list[tuple[Any, Piece]]:
        """Of all pieces of the plan over all members, whoever is to make them."""
        n = min(len(self.liar.payload), len(self.ids))
        return [
            (wire.Sum(GID, self.plan, piece), (MADE_UP,) * len(self.liar.payload[piece::n]))
            for piece in range(n)
        ]

    def means(self) -> set[tuple[tuple[PeerId, ...], bytes]]:
        """Return contributors and hash of what the others have finished with."""
        ends = [each.outcome for each in self.honest]
        return {(end.contributors, end.result) for end in ends if isinstance(end, events.Commit)}

    def check_honest(self, contributors: tuple[PeerId, ...] | None = None) -> None:
        """All others have finished, with the mean over those that are told."""
        self.run()
        for member in self.honest:
            assert isinstance(member.outcome, events.Commit), member.outcome
            assert contributors in (None, member.outcome.contributors)
            self.check_mean(member)
        assert len(self.means()) == 1


class ClaimsToHoldIt(LyingWorld):
    """It says that it holds the mean whole, and gives one of its own making to all that ask."""

    def lies(self, target: PeerId, message: Any, payload: Piece) -> Iterable[tuple[Any, Piece]]:
        if isinstance(message, wire.Flush):
            return [(msgspec.structs.replace(message, prepared=self.ids), ()), *self.made_up_sums()]
        return [(message, payload)] if not isinstance(message, wire.Sum) else []


@pytest.mark.parametrize("has_witnesses", [False, True])
@pytest.mark.parametrize("n", [3, 5, 8])
def test_none_can_hold_a_mean_before_the_first_view(n: int, has_witnesses: bool) -> None:
    """All asked the liar for the mean, and committed what it gave: 1,000,000 in each element."""
    world = ClaimsToHoldIt(n, 1)
    world.has_witnesses = has_witnesses
    world.begin()
    world.check_honest()
    assert world.broken
    assert all("prepared over an earlier view" in why for why in world.broken.values())


class SendsOneAway(ClaimsToHoldIt):
    """It claims so of the first view, in one of its making that leaves a member out."""

    def lies(self, target: PeerId, message: Any, payload: Piece) -> Iterable[tuple[Any, Piece]]:
        if not isinstance(message, wire.Prepared | wire.Want | wire.Flush):
            return [(message, payload)] if not isinstance(message, wire.Sum) else []
        smaller = self.ids[1:] if self.liar.peer_id != self.ids[0] else self.ids[:-1]
        flush = wire.Flush(GID, smaller, self.ids)
        first = [(message, ())] if message == wire.Flush(GID, self.ids, ()) else []
        return [*first, (flush, ()), *self.made_up_sums(), *first]


@pytest.mark.parametrize("has_witnesses", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_mean_that_one_member_claims_to_hold_is_not_kept(seed: int, has_witnesses: bool) -> None:
    world = SendsOneAway(8, seed)
    world.has_witnesses = has_witnesses
    world.begin()
    world.run()
    for member in world.honest:
        if isinstance(member.outcome, events.Commit):
            world.check_mean(member)
    assert len(world.means()) == 1, "those that it did not send away have one mean"


class LeavesItselfOut(LyingWorld):
    """A view without its sender."""

    def lies(self, target: PeerId, message: Any, payload: Piece) -> Iterable[tuple[Any, Piece]]:
        if isinstance(message, wire.Flush):
            others = tuple(peer for peer in self.ids if peer != self.liar.peer_id)
            return [(wire.Flush(GID, others, (bytes(32), _WRONG)), ())]
        return [(message, payload)]


@pytest.mark.parametrize("has_witnesses", [False, True])
def test_who_leaves_itself_out_of_a_view_has_no_say_about_its_plan(has_witnesses: bool) -> None:
    """It named the contributors, and a node ended: it was none of them."""
    world = LeavesItselfOut(5, 1)
    world.has_witnesses = has_witnesses
    world.begin()
    world.check_honest()
    assert world.broken
    assert all("with its sender in it" in why for why in world.broken.values())


class LiesAboutItsHash(LyingWorld):
    """It holds the mean, and says that it is another one."""

    def lies(self, target: PeerId, message: Any, payload: Piece) -> Iterable[tuple[Any, Piece]]:
        if isinstance(message, wire.Prepared):
            return [(msgspec.structs.replace(message, result=_WRONG), ())]
        return [(message, payload)]


@pytest.mark.parametrize("has_witnesses", [False, True])
@pytest.mark.parametrize("n", [3, 4, 7])
def test_one_that_lies_about_its_hash_ends_no_run_of_the_others(
    n: int, has_witnesses: bool
) -> None:
    world = LiesAboutItsHash(n, 2)
    world.has_witnesses = has_witnesses
    world.begin()
    world.check_honest(world.ids)


def test_of_two_that_differ_neither_finishes() -> None:
    world = LiesAboutItsHash(2, 2)
    world.begin()
    world.run()
    outcome = world.honest[0].outcome
    assert isinstance(outcome, events.Abort)
    assert "the hashes of the mean differ" in outcome.why


class SendsAllSums(LyingWorld):
    """It gives what others are to make, before they do, and to all but their makers."""

    def lies(self, target: PeerId, message: Any, payload: Piece) -> Iterable[tuple[Any, Piece]]:
        own = self.ids.index(self.liar.peer_id)
        made_up = [each for each in self.made_up_sums() if each[0].piece != own]
        return [(message, payload), *(made_up if isinstance(message, wire.Want) else [])]


@pytest.mark.parametrize("has_witnesses", [False, True])
def test_a_sum_counts_from_who_makes_it_only(has_witnesses: bool) -> None:
    world = SendsAllSums(5, 3)
    world.has_witnesses = has_witnesses
    world.begin()
    world.check_honest(world.ids)
