"""Lineages: which node is on which, and which one stays."""

from __future__ import annotations

import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.lineages import KEPT_MAX, SAID_MAX, Lineage, judge, outlasts


def version(count: int, branch: int) -> bytes:
    return count.to_bytes(8, "big") + (1000 * branch + count).to_bytes(8, "big")


def chain(count: int, branch: int = 1, parted_at: int = 0, kept: int = SAID_MAX) -> Lineage:
    """A node at ``count``, on branch 1 before ``parted_at``."""
    first = max(0, count - kept + 1)
    made = None
    for at in range(first, count + 1):
        step = version(at, branch if at >= parted_at else 1)
        made = Lineage.of(at, step) if made is None else made.then(at, step, is_next=True)
    assert made is not None
    return made


def peer(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


def test_a_chain_is_said_and_read() -> None:
    made = chain(40, kept=200)
    assert len(made.hashes) == 41
    read = Lineage.parse(made.said)
    assert read is not None
    assert read.count == 40
    assert read.hashes == made.hashes[:SAID_MAX]
    assert len(made.said) <= 256
    assert len(chain(900, kept=900).hashes) == KEPT_MAX


@pytest.mark.parametrize("said", ["", "5", "5:", "5:abc", "-1:abcdef", "5:abcdef,", "9" * 10, "x"])
def test_what_makes_no_sense_says_nothing(said: str) -> None:
    assert Lineage.parse(said) is None


def test_a_step_that_is_not_the_next_begins_a_new_chain() -> None:
    made = chain(5)
    assert made.then(5, version(5, 1), is_next=False) is made
    assert made.then(6, version(6, 1), is_next=False).hashes == (version(6, 1)[-3:].hex(),)
    assert len(made.then(7, version(7, 1), is_next=True).hashes) == 1
    assert len(made.then(6, version(6, 1), is_next=True).hashes) == 7


def test_who_is_a_few_rounds_behind_is_of_the_same_lineage() -> None:
    assert chain(40).compare(chain(38)) is True
    assert chain(38).compare(chain(40)) is True
    assert chain(40).compare(chain(40, branch=2, parted_at=39)) is False
    assert chain(40).compare(chain(3)) is None
    assert chain(40, kept=200).compare(chain(3)) is True


def test_a_minority_sees_that_it_is_one_and_a_majority_that_it_is_not() -> None:
    few, many = chain(40, branch=2, parted_at=30), chain(20, branch=1)
    many = chain(38, branch=1)
    standing = judge(few, {peer(1): many, peer(2): many})
    assert standing.is_weaker
    assert standing.is_apart
    assert (standing.n_alike, standing.n_members, standing.n_strongest) == (1, 3, 2)
    assert standing.strongest == (peer(1), peer(2))
    other = judge(many, {peer(1): many, peer(3): few})
    assert not other.is_weaker
    assert other.is_apart
    assert other.strongest == (peer(1),)


def test_no_other_member_is_no_other_lineage() -> None:
    standing = judge(chain(5), {})
    assert not standing.is_weaker
    assert not standing.is_apart
    assert standing.strongest == ()


def test_members_far_behind_count_on_no_side_and_ask_themselves() -> None:
    ahead, behind = chain(90), chain(5)
    assert judge(ahead, {peer(1): behind}).n_members == 1
    standing = judge(behind, {peer(1): ahead, peer(2): ahead})
    assert standing.is_weaker
    assert not standing.is_apart


def test_of_two_halves_more_rounds_stay() -> None:
    longer, shorter = chain(30, branch=1), chain(20, branch=2, parted_at=18)
    assert outlasts(longer, shorter)
    assert not outlasts(shorter, longer)


@pytest.mark.parametrize("parted_at", [3, 17, 27])
@pytest.mark.parametrize("kept", [SAID_MAX, KEPT_MAX])
def test_both_halves_judge_alike_whatever_each_has_heard_of_the_other(parted_at, kept) -> None:
    verdicts = set()
    for mine in range(30, 33):
        for lag in range(3):
            one = chain(mine, branch=1, kept=kept)
            heard = chain(mine - lag, branch=2, parted_at=parted_at)
            verdicts.add(outlasts(one, heard))
            other = chain(mine, branch=2, parted_at=parted_at, kept=kept)
            verdicts.add(not outlasts(other, chain(mine - lag, branch=1)))
    assert len(verdicts) == 1


def test_three_lineages_leave_one() -> None:
    one, two, three = chain(9), chain(9, branch=2, parted_at=4), chain(9, branch=3, parted_at=6)
    everybody = [(1, one), (2, one), (3, two), (4, two), (5, two), (6, three)]
    for number, own in everybody:
        others = {peer(n): each for n, each in everybody if n != number}
        standing = judge(own, others)
        assert standing.is_weaker == (own is not two)
        assert set(standing.strongest) | {peer(number)} >= {peer(3), peer(4), peer(5)}
