"""Which messages of a gathering are copies of others."""

from __future__ import annotations

import random

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.gather_set import COPY_OVERLAP, copies

N_ELEMS, N_KEPT = 16_384, 256


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def kept_by(n: int, common: float = 0.0) -> dict[PeerId, frozenset[int]]:
    """Return what members keep who share that much of it because their models are one."""
    rng = random.Random(f"{n}/{common}")
    shared = rng.sample(range(N_ELEMS), round(common * N_KEPT))
    return {
        peer(number): frozenset(
            [*shared, *rng.sample(range(N_ELEMS), N_KEPT - len(shared))],
        )
        for number in range(n)
    }


def mixed(own: frozenset[int], theirs: frozenset[int], share: float) -> frozenset[int]:
    """Return what keeps so much of another's positions."""
    n_theirs = round(share * len(theirs))
    return frozenset([*sorted(theirs)[:n_theirs], *sorted(own - theirs)[: N_KEPT - n_theirs]])


def test_members_that_train_on_different_data_copy_none() -> None:
    for n in (1, 2, 3, 8, 32):
        assert copies(kept_by(n)) == frozenset()


def test_the_later_one_of_two_that_are_the_same_is_the_copy() -> None:
    kept = kept_by(8)
    kept[peer(5)] = kept[peer(2)]
    assert copies(kept) == {peer(5)}
    backwards = dict(reversed(kept.items()))
    assert copies(backwards) == {peer(2)}


def test_a_copy_that_is_changed_in_half_of_its_positions_is_one_still() -> None:
    kept = kept_by(8)
    for share, is_copy in ((COPY_OVERLAP + 0.05, True), (COPY_OVERLAP - 0.1, False)):
        kept[peer(5)] = mixed(kept_by(8)[peer(5)], kept[peer(2)], share)
        assert (copies(kept) == {peer(5)}) == is_copy


def test_where_all_keep_much_of_the_same_only_the_same_again_is_a_copy() -> None:
    kept = kept_by(8, common=0.6)
    assert copies(kept) == frozenset(), "a small model: its largest changes are the same for all"
    kept[peer(7)] = kept[peer(0)]
    assert copies(kept) == {peer(7)}


def test_of_two_that_are_alone_none_knows_what_is_usual() -> None:
    kept = kept_by(2)
    kept[peer(1)] = kept[peer(0)]
    assert copies(kept) == frozenset()


def test_messages_of_nothing_and_dense_ones_are_no_copies() -> None:
    assert copies(dict.fromkeys(map(peer, range(4)), frozenset())) == frozenset()
    assert copies(dict.fromkeys(map(peer, range(4)), frozenset(range(100)))) == frozenset()
