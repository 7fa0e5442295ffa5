"""Pieces that two members make: who lies is found out, and who dies holds up nobody."""

import random

import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import group_events as events
from swarmnode.protocol.gossip.group_events import plan_id
from swarmnode.protocol.gossip.witnesses import (
    DOUBT_KEEP_S,
    WITNESS_SHARE,
    Doubts,
    witnessed_by,
)
from swarmnode.testing.group_world import GroupWorld, Member

PEERS = sorted(PeerId(bytes([number]) * 32) for number in range(16))


class LyingMaker(Member):
    """What it makes of its piece is something else."""

    def reduce(self, piece, contributors, weights):
        return tuple(-value for value in super().reduce(piece, contributors, weights))


class LyingWitness(Member):
    """It says that others make something else."""

    def witness(self, piece, contributors, weights):
        return (*super().witness(piece, contributors, weights), 0.0)


class Silent(Member):
    """It is of an earlier version, which knows no witnesses."""

    def carry_out(self, effect):
        if isinstance(effect, events.Send) and hasattr(effect.message, "witness"):
            message = type(effect.message)(
                effect.message.gid, effect.message.plan, effect.message.result
            )
            effect = events.Send(effect.peer, message)
        super().carry_out(effect)


class WaryMaker(LyingMaker):
    """It lies unless it is asked for what its piece is made of before it has made it."""

    is_asked = has_made = False

    def carry_out(self, effect):
        if isinstance(effect, events.SendShare) and not self.has_made:
            self.is_asked |= effect.piece == sorted(self.world.by_id).index(self.peer_id)
        super().carry_out(effect)

    def reduce(self, piece, contributors, weights):
        self.has_made = True
        if self.is_asked:
            return Member.reduce(self, piece, contributors, weights)
        return super().reduce(piece, contributors, weights)


def run(n, seed=1, *, first=Member, is_witness=lambda _: True, **options):
    made = []

    def make(*args):
        made.append((Member if made else first)(*args))
        return made[-1]

    world = GroupWorld(n, seed, make=make, n_pieces=16, **options)
    world.has_witnesses, world.is_witness = True, is_witness
    world.begin()
    world.run()
    return world


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
def test_each_piece_is_made_twice_and_the_mean_is_as_ever(n):
    world = run(n)
    world.check()
    sent = sum(member.numbers_sent for member in world.members)
    assert sent == 3 * 16 * (n - 1), "shares to two members, sums as without"


@pytest.mark.parametrize("n_witnesses", range(5))
def test_who_lets_its_piece_pass_asks_for_no_shares(n_witnesses):
    world = run(4, is_witness=lambda number: number < n_witnesses)
    world.check()
    sent = sum(member.numbers_sent for member in world.members)
    assert sent == (2 * 4 + n_witnesses) * 4 * 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("first", [LyingMaker, LyingWitness, WaryMaker])
def test_a_lie_is_in_no_mean_and_the_liar_is_one_of_two_who_are_doubted(first, seed):
    world = run(5, seed, first=first)
    liar = world.members[0].peer_id
    for member in world.members[1:]:
        assert isinstance(member.outcome, events.Abort)
        ((maker, witness),) = member.outcome.differ
        assert liar == (witness if first is LyingWitness else maker)
        assert maker != witness


def test_a_lie_gets_through_where_the_witness_lets_it_pass():
    world = run(5, first=LyingMaker, is_witness=lambda _: False)
    assert all(isinstance(member.outcome, events.Commit) for member in world.members)
    assert len({member.outcome.result for member in world.members}) == 1


def test_all_are_witnesses_while_one_of_the_members_is_faulty():
    rng, doubts = random.Random(1), Doubts()
    tossed = [doubts.is_witness(0.0, rng) for _ in range(2000)]
    assert sum(tossed) / len(tossed) == pytest.approx(WITNESS_SHARE, abs=0.05)
    doubts.add(PEERS[0], PEERS[1], 0.0)
    assert all(doubts.is_witness(DOUBT_KEEP_S - 1, rng) for _ in range(100))
    assert not all(doubts.is_witness(DOUBT_KEEP_S, rng) for _ in range(100))


def test_a_member_that_knows_no_witnesses_holds_up_no_other():
    world = run(5, first=Silent)
    world.check()


def test_members_may_die_at_any_moment():
    rng = random.Random(7)
    for seed in range(60):
        n = rng.randrange(3, 8)
        victims = rng.sample(range(n), rng.randrange(1, n - 1))
        deaths = [(rng.randrange(200), victim) for victim in victims]
        world = run(n, seed, deaths=deaths, is_witness=lambda number: number % 3 > 0)
        world.check()


@pytest.mark.parametrize("n", [2, 3, 5, 16])
def test_every_piece_has_one_witness_and_it_is_not_its_maker(n):
    for number in range(50):
        plan = plan_id(bytes([number]) * 16, PEERS[:n])
        found = [witnessed_by(peer, plan, PEERS[:n], n) for peer in PEERS[:n]]
        assert sorted(found) == list(range(n))
        assert all(piece != index for index, piece in enumerate(found))


def test_of_fewer_pieces_some_are_witness_of_none():
    found = [witnessed_by(peer, bytes(16), PEERS, 3) for peer in PEERS]
    assert sorted(piece for piece in found if piece is not None) == [0, 1, 2]


@pytest.mark.parametrize(("n", "n_liars"), [(4, 1), (8, 2), (16, 4)])
def test_liars_are_left_out_after_a_few_rounds_and_no_other_member(n, n_liars):
    rng = random.Random(3)
    members, doubts, rounds = PEERS[:n], Doubts(), 0
    liars = set(rng.sample(members, n_liars))
    while not liars <= doubts.faulty(n, float(rounds)):
        assert rounds < 12
        plan = plan_id(rng.randbytes(16), members)
        for witness in members:
            maker = members[witnessed_by(witness, plan, members, n)]
            if (maker in liars) != (witness in liars):  # two of them cover for each other
                doubts.add(maker, witness, float(rounds))
        rounds += 1
        assert doubts.faulty(n, float(rounds)) <= liars
    assert not doubts.faulty(n, rounds + DOUBT_KEEP_S)
