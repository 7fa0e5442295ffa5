"""What members sign for a gathering, and which of its messages are copies of others."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip import gather_events
from swarmnode.protocol.gossip.gather import GatherCore
from swarmnode.protocol.gossip.gather_set import COPY_OVERLAP, Announced, RunTerms, copies
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire.exchange.gather import GatherSet
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed

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


def keepers(n_common: int, n_copied: int, sizes: tuple[int, ...]) -> dict[PeerId, frozenset[int]]:
    """Return what members keep of whom all share so many positions, and the first two more."""
    fresh = itertools.count(n_common + n_copied)
    kept = {}
    for number, size in enumerate(sizes):
        positions = set(range(n_common + n_copied if number < 2 else n_common))
        positions |= set(itertools.islice(fresh, size - len(positions)))
        kept[peer(number)] = frozenset(positions)
    return kept


@pytest.mark.parametrize(
    ("pair", "usual", "is_copy"),
    [
        (COPY_OVERLAP - 0.05, 0.0, False),
        (COPY_OVERLAP, 0.0, True),
        (0.5, 0.25, False),
        (0.55, 0.25, True),
        (0.75, 0.5, False),
        (0.8, 0.5, True),
    ],
)
def test_a_copy_shares_so_much_and_clearly_more_than_is_usual(
    pair: float, usual: float, is_copy: bool
) -> None:
    """Twice as much, or half of the way to all."""
    n_common = round(20 * usual)
    kept = keepers(n_common, round(20 * pair) - n_common, (20, 20, 20))
    assert copies(kept) == ({peer(1)} if is_copy else frozenset())


def test_of_two_that_keep_more_and_less_the_shorter_one_counts() -> None:
    for n_shared, is_copy in ((4, True), (3, False)):
        kept = keepers(0, n_shared, (40, 10, 40))
        assert copies(kept) == ({peer(1)} if is_copy else frozenset())


def test_one_that_keeps_nothing_is_like_no_other() -> None:
    kept = keepers(0, 10, (10, 10, 10, 10))
    kept[peer(9)] = frozenset()
    assert copies(kept) == {peer(1)}


# --- what is signed ------------------------------------------------------------------------------

GID = b"g" * 16
AUTHORS = sorted(
    (Identity.from_seed(bytes([n]) * 32) for n in range(1, 4)), key=lambda each: each.peer_id
)
STRANGER = Identity.from_seed(b"s" * 32)
TERMS = RunTerms(GID, frozenset(each.peer_id for each in AUTHORS), 100, verify)


def announced(author: Identity, terms: RunTerms = TERMS) -> Announced:
    return terms.announce(author, author.peer_id[:16] * 2)


def test_what_a_member_announces_is_read_back() -> None:
    for author in AUTHORS:
        own = announced(author)
        assert (own.author, own.digest, own.size_bytes) == (
            author.peer_id,
            author.peer_id[:16] * 2,
            100,
        )
        assert TERMS.read(own.signed) == own


def test_only_members_sign_for_this_run_and_of_its_size() -> None:
    with pytest.raises(MalformedMessage, match="no member of this run"):
        TERMS.read(announced(STRANGER).signed)
    author = AUTHORS[0]
    with pytest.raises(MalformedMessage, match="for another run"):
        TERMS.read(announced(author, replace(TERMS, gid=b"h" * 16)).signed)
    with pytest.raises(MalformedMessage, match="one of 101 bytes for this run"):
        TERMS.read(announced(author, replace(TERMS, size_bytes=101)).signed)
    signed = announced(author).signed
    forged = Signed(signed.body, signed.public_key, bytes(64))
    with pytest.raises(AuthenticationFailed, match="signature"):
        TERMS.read(forged)


def test_a_set_is_the_same_whatever_order_it_was_made_in() -> None:
    entries = [announced(author) for author in AUTHORS]
    data = TERMS.make_set(reversed(entries))
    assert data == TERMS.make_set(entries)
    assert TERMS.read_set(data) == tuple(entries)
    assert TERMS.read_set(TERMS.make_set([])) == ()


def test_a_set_that_is_of_another_run_or_has_one_twice_or_out_of_order_is_refused() -> None:
    one, two, three = (announced(author).signed for author in AUTHORS)
    for entries in ((one, one), (two, one, three), (one, three, two)):
        with pytest.raises(MalformedMessage, match="one message of each author, in order"):
            TERMS.read_set(encode_record(GatherSet(GID, entries)))
    other = replace(TERMS, gid=b"h" * 16)
    with pytest.raises(MalformedMessage, match="the set of this run, got another's"):
        TERMS.read_set(other.make_set([]))
    data = TERMS.make_set([announced(AUTHORS[0])])
    longer = data.replace(b"\xa3gid", b"\xd9\x03gid", 1)
    assert longer != data
    with pytest.raises(MalformedMessage, match="in its one encoding"):
        TERMS.read_set(longer)


def test_what_was_checked_before_is_not_checked_again() -> None:
    checked: list[str] = []

    def count(public_key: bytes, domain: str, body: bytes, signature: bytes, *, what: str) -> None:
        checked.append(what)
        verify(public_key, domain, body, signature, what=what)

    terms = replace(TERMS, verify=count)
    entries = [announced(author) for author in AUTHORS]
    found = terms.read_set(terms.make_set(entries), known=entries[:2])
    assert found == tuple(entries)
    assert checked == [f"message of {AUTHORS[2].peer_id.short}"]


def test_one_that_could_not_give_a_message_is_asked_again_unless_what_came_was_wrong() -> None:
    me, author, _ = AUTHORS
    message = announced(author)
    for event, is_asked in (
        (gather_events.NotGiven(author.peer_id, message.digest), True),
        (gather_events.NotGiven(author.peer_id, message.digest, is_wrong=True), False),
    ):
        core = GatherCore(me.peer_id, TERMS)
        core.handle(gather_events.Announce(message), 0.0)
        fetch = gather_events.Fetch(author.peer_id, message)
        assert core.poll_effects() == [fetch]
        core.handle(event, 1.0)
        core.handle_deadline(1.0 + limits.GATHER_RETRY_S)
        assert core.poll_effects() == [fetch] * is_asked
