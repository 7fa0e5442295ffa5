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
def test_both_halves_judge_alike_whatever_each_has_heard_of_the_other(
    parted_at: int, kept: int
) -> None:
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


def test_what_is_said_has_room_for_so_many_means_and_so_large_a_count() -> None:
    one = "0123ab"
    for said, read in (
        ("0:" + one, Lineage(0, (one,))),
        ("9" * 9 + ":" + one, Lineage(10**9 - 1, (one,))),
        ("7:" + ",".join([one] * SAID_MAX), Lineage(7, (one,) * SAID_MAX)),
        ("7:" + ",".join([one] * (SAID_MAX + 1)), None),
        ("9" * 10 + ":" + one, None),
        ("7:" + one.upper(), None),
    ):
        assert Lineage.parse(said) == read
        assert read is None or read.said == said


def test_a_mean_is_told_by_the_end_of_what_it_is_called() -> None:
    made = Lineage.of(7, bytes(10) + b"\x01\x02\x03")
    assert made == Lineage(7, ("010203",))
    other = Lineage(7, ("ffffff", "aaaaaa"))
    assert other.then(7, b"\x01\x02\x03", is_next=True) == made, "another branch of that count"
    assert other.then(8, b"\x01\x02\x03", is_next=True) == Lineage(8, ("010203", *other.hashes))
    assert other.then(6, b"\x01\x02\x03", is_next=True) == Lineage(6, ("010203",))


def test_two_are_compared_at_the_last_count_that_both_know() -> None:
    own = chain(40)
    oldest = 40 - SAID_MAX + 1
    assert own.compare(chain(oldest)) is True
    assert own.compare(chain(oldest, branch=2)) is False
    assert own.compare(chain(oldest - 1)) is None
    assert chain(oldest - 1).compare(own) is None
    assert chain(40, branch=2, parted_at=41).compare(own) is True


def test_more_rounds_stay_where_it_is_no_delay_and_else_the_larger_hash_where_they_parted() -> None:
    low = Lineage(20, ("000001", "aaaaaa"))
    for count, hashes in (
        (20, ("ffffff", "aaaaaa")),
        (21, ("000000", "ffffff", "aaaaaa")),
        (22, ("000000", "000000", "ffffff", "aaaaaa")),
    ):
        high = Lineage(count, hashes)
        assert outlasts(high, low)
        assert not outlasts(low, high)
    smaller = Lineage(22, ("ffffff", "ffffff", "000000", "aaaaaa"))
    assert outlasts(low, smaller), "two rounds are the delay of what members say"
    assert not outlasts(smaller, low)
    longer = Lineage(23, ("ffffff", "ffffff", "ffffff", "000000", "aaaaaa"))
    assert outlasts(longer, low)
    assert not outlasts(low, longer)


def test_of_one_lineage_or_of_such_as_know_no_count_in_common_more_rounds_stay() -> None:
    assert outlasts(chain(31), chain(30))
    assert not outlasts(chain(30), chain(31))
    assert not outlasts(chain(30), chain(30))
    assert outlasts(chain(90), chain(5, branch=2))
    assert not outlasts(chain(5, branch=2), chain(90))
    one, other = Lineage(6, ("aaaaaa",)), Lineage(5, ("ffffff",))
    assert outlasts(one, other)
    assert not outlasts(other, one)


def test_where_it_is_forgotten_at_which_mean_they_parted_the_roundest_count_decides() -> None:
    """It is still known when the next means are there, so that the verdict stays."""
    ones = [f"{count:06x}" for count in range(20)]
    for decides, apart in ((16, range(14, 20)), (12, range(9, 16)), (18, range(17, 20))):
        counts = [*reversed(apart)]
        one = Lineage(counts[0], tuple(ones[count] for count in counts))
        other = ["ffffff" if count != decides else "000000" for count in counts]
        assert outlasts(one, Lineage(counts[0], tuple(other)))
        assert not outlasts(Lineage(counts[0], tuple(other)), one)


def test_where_they_parted_decides_as_long_as_the_mean_before_it_is_known() -> None:
    one = Lineage(17, ("aaaaaa", "ffffff", "000000", "bbbbbb"))
    other = Lineage(17, ("cccccc", "eeeeee", "111111", "bbbbbb"))
    assert outlasts(other, one)
    assert not outlasts(one, other)
    short, shorter = Lineage(17, one.hashes[:3]), Lineage(17, other.hashes[:3])
    assert outlasts(short, shorter), "at 16, and it is not known whether they parted at 15"


def test_a_member_of_which_nothing_can_be_told_counts_only_if_it_is_ahead() -> None:
    own = chain(40)
    ahead, behind = chain(90), chain(5)
    standing = judge(own, {peer(1): ahead, peer(2): behind, peer(3): chain(39)})
    assert (standing.n_alike, standing.n_members, standing.n_strongest) == (2, 3, 2)
    assert standing.strongest == (peer(3),)
    assert (standing.is_weaker, standing.is_apart) == (False, False)
    standing = judge(own, {peer(1): ahead, peer(2): ahead, peer(3): chain(39), peer(4): ahead})
    assert (standing.n_alike, standing.n_members, standing.n_strongest) == (2, 5, 3)
    assert standing.strongest == (peer(1), peer(2), peer(4))
    assert (standing.is_weaker, standing.is_apart) == (True, False)


def test_of_as_many_members_the_lineage_that_outlasts_the_other_is_the_strongest() -> None:
    own, longer = chain(20), chain(30, branch=2)
    standing = judge(own, {peer(2): longer, peer(1): own, peer(3): chain(29, branch=2)})
    assert (standing.is_weaker, standing.n_strongest) == (True, 2)
    assert standing.strongest == (peer(2), peer(3))
    standing = judge(longer, {peer(2): own, peer(1): chain(29, branch=2), peer(3): own})
    assert (standing.is_weaker, standing.n_strongest) == (False, 2)
    assert standing.strongest == (peer(1),)
    assert standing.is_apart
