"""Rounds of the log: their one encoding, what follows what, and what binds the next attempt."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group_events import group_id
from swarmnode.protocol.gossip.log_book import (
    NO_DIGEST,
    LogBook,
    is_on_chain,
    read_chain,
    read_round,
)
from swarmnode.wire.exchange.log import LogEntry, LogGive, LogRound, LogShare
from swarmnode.wire.packing import encode_record

A, B, C, D = (PeerId(bytes([n]) * 32) for n in (1, 2, 3, 4))
KEY = b"k" * 32


def share(record: bytes | None, **bound: object) -> LogShare:
    return LogShare(record, 5, **bound)  # type: ignore[arg-type]


def filled(n: int, first: int = 0) -> LogBook:
    book = LogBook(first)
    for number in range(n):
        book.close(book.read(book.make([(A, share(b"%d" % number)), (B, share(None))])))
    return book


def test_a_round_holds_its_members_and_what_they_published_in_order() -> None:
    book = LogBook(7)
    data = book.make([(C, share(b"c")), (A, share(None)), (B, share(b"b"))])
    closed = book.read(data)
    assert closed.members == (A, B, C)
    assert [(e.author, e.payload, e.round) for e in closed.round.entries] == [
        (B, b"b", 5),
        (C, b"c", 5),
    ]
    assert (closed.round.number, closed.round.before) == (7, NO_DIGEST)
    assert closed.digest == hashlib.sha256(b"swarmnode/log-round\0" + data).digest()
    gid = book.gid(KEY, 0)
    book.close(closed)
    assert (book.next, book.head, book.members) == (8, closed.digest, (A, B, C))
    assert len({gid, book.gid(KEY, 0), book.gid(KEY, 1)}) == 3


ROUND = LogRound(0, NO_DIGEST, (A, B), (LogEntry(A, 5, b"a"), LogEntry(B, 5, b"b")))


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(ROUND, members=(B, A)),
        msgspec.structs.replace(ROUND, members=(A, A, B)),
        msgspec.structs.replace(ROUND, members=()),
        msgspec.structs.replace(ROUND, members=(A,)),
        msgspec.structs.replace(ROUND, entries=ROUND.entries[::-1]),
        msgspec.structs.replace(ROUND, entries=(ROUND.entries[0],) * 2),
        msgspec.structs.replace(ROUND, entries=(LogEntry(C, 5, b"c"),)),
        msgspec.structs.replace(ROUND, entries=(LogEntry(A, 5, b"x" * 65),)),
        msgspec.structs.replace(ROUND, before=b"short"),
    ],
    ids=repr,
)
def test_what_is_no_round_is_refused(bad: LogRound) -> None:
    assert read_round(encode_record(ROUND)).round == ROUND
    with pytest.raises(MalformedMessage):
        read_round(encode_record(bad))


def test_a_round_has_one_encoding() -> None:
    data = encode_record(ROUND)
    longer = b"\x85" + data[1:] + b"\xa1x\x01"  # an unknown field, which decoders skip
    with pytest.raises(MalformedMessage, match="one encoding"):
        read_round(longer)


def test_a_round_of_another_number_or_after_another_one_is_refused() -> None:
    book, other = filled(3), filled(2)
    with pytest.raises(MalformedMessage, match="expected round 3, got 2"):
        book.read(other.make([(A, share(b"x"))]))
    other.close(other.read(other.make([(A, share(b"x"))])))
    with pytest.raises(MalformedMessage, match="does not follow"):
        book.read(other.make([(A, share(b"x"))]))


def test_what_a_member_is_bound_to_becomes_the_round_and_the_latest_wins() -> None:
    book = filled(2)
    first = book.make([(A, share(b"first")), (B, share(None))])
    later = book.make([(A, share(b"later")), (C, share(None))])
    shares = [
        (A, share(b"new", bound_attempt=1, bound=first)),
        (B, share(b"new", bound_attempt=3, bound=later)),
        (C, share(b"new", bound_attempt=9, bound=b"no round")),
    ]
    assert book.make(shares) == later
    assert book.make(shares[:1]) == first
    unbound = [(A, share(b"new")), shares[2]]
    assert book.read(book.make(unbound)).round.entries[0].payload == b"new"


def test_a_round_needs_a_majority_of_the_members_of_the_one_before() -> None:
    """Else who makes one, or says that it is bound to one, is the whole electorate of the next."""
    book = LogBook(0)
    book.close(book.read(book.make([(peer, share(None)) for peer in (A, B, C, D)])))
    few: list[tuple[PeerId, ...]] = [(D,), (B, D), (C, D)]
    for names in few:
        alone = book.make([(peer, share(b"mine")) for peer in names])
        with pytest.raises(MalformedMessage, match=r"of the 4 members .* in round 1, got"):
            book.read(alone)
        bound = book.make([(A, share(None)), (D, share(None, bound_attempt=9, bound=alone))])
        assert bound != alone, "what is no round binds none"
    many: list[tuple[PeerId, ...]] = [(A, B), (A, D), (B, C, D)]
    for names in many:
        enough = book.make([(peer, share(b"ours")) for peer in names])
        assert book.read(enough).members == names


def test_those_who_are_left_go_on_anew_with_one_round() -> None:
    book, normal = LogBook(0), LogBook(0)
    for each in (book, normal):
        each.close(each.read(each.make([(peer, share(None)) for peer in (A, B, C, D)])))
    book.is_anew = True
    assert book.electorate == ()
    assert book.members == (A, B, C, D)
    few = book.make([(D, share(b"mine"))])
    chain = [*book.since(0, 1), few]
    book.close(book.read(few))
    assert not book.is_anew
    assert book.electorate == (D,)
    with pytest.raises(MalformedMessage, match="majority of the 1 members"):
        book.read(book.make([(A, share(None))]))
    # Others follow with what they have, as it is the same log; runs of both kinds do not mix.
    assert [closed.digest for closed in read_chain(normal.head, 1, chain[1:])] == [book.head]
    assert len({normal.gid(b"k", 0), normal.gid(b"k", 0, is_anew=True)}) == 2


def test_rounds_are_given_as_far_as_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_ROUNDS_KEPT", 5)
    book = filled(20, first=10)
    assert (book.first_kept, book.next) == (25, 30)
    assert [read_round(data).round.number for data in book.since(26, 3)] == [26, 27, 28]
    assert len(book.since(25, 100)) == 5
    assert book.since(24, 100) == book.since(30, 100) == ()
    assert book.before(30) == book.head
    assert book.before(29) == read_round(book.since(28, 1)[0]).digest
    assert book.before(24) == book.before(31) == b""
    monkeypatch.setattr(limits, "LOG_GIVEN_BYTES_MAX", 2 * len(book.since(25, 1)[0]) + 1)
    assert len(book.since(25, 100)) == 2


def test_a_fresh_book_begins_after_the_round_that_its_model_holds() -> None:
    old, fresh = filled(6), LogBook(4)
    assert (fresh.wanted, fresh.is_fresh, fresh.before(4)) == (3, True, b"")
    for closed in read_chain(b"", 3, old.since(3, 100)):
        fresh.close(closed)
    assert (fresh.next, fresh.head, fresh.members) == (6, old.head, (A, B))
    assert LogBook(0).wanted == 0


def test_chains_follow_from_a_digest_on() -> None:
    book = filled(4)
    rounds = book.since(1, 3)
    assert len(read_chain(book.before(1), 1, rounds)) == 3
    for before, first, given in (
        (NO_DIGEST, 1, rounds),
        (b"", 0, rounds),
        (b"", 1, rounds[::2]),
    ):
        with pytest.raises(MalformedMessage):
            read_chain(before, first, given)


def test_two_books_are_compared_at_a_round_that_both_know() -> None:
    book, longer, other = filled(3), filled(5), LogBook(0)
    while other.next < 5:
        other.close(other.read(other.make([(B, share(b"other"))])))
    founded = LogBook(3)  # by nodes that had restarted with a model of three rounds
    founded.close(founded.read(founded.make([(B, share(b"other"))])))
    for mine, theirs, alike in (
        (book, longer, True),
        (longer, book, True),
        (book, other, False),
        (other, book, False),
        (book, LogBook(3), None),
        (LogBook(3), book, None),
        (LogBook(3, known=book.head), book, True),
        (LogBook(3, known=book.head), longer, True),
        (LogBook(3, known=book.head), other, False),
        (LogBook(5, known=other.head), book, None),
        (LogBook(3, known=book.head), founded, None),
        (book, founded, False),
    ):
        head = b"" if theirs.is_fresh else theirs.head
        assert mine.is_alike(theirs.next, theirs.before(mine.next), head) is alike


def test_a_node_is_on_a_chain_as_far_as_it_has_come() -> None:
    chain = read_chain(b"", 2, filled(5).since(2, 100))
    digests = {each.round.number: each.digest for each in chain}
    for node, is_on in (
        (LogGive(9, 0, digests[4], b""), True),  # further on: it says what was before
        (LogGive(9, 0, b"other" * 8, b""), False),
        (LogGive(9, 0, b"", b""), None),
        (LogGive(4, 0, b"", digests[3]), True),  # its last round is the one before its next
        (LogGive(4, 0, b"", digests[4]), False),
        (LogGive(2, 0, b"", chain[0].round.before), True),
        (LogGive(4, 0, b"", b""), None),
        (LogGive(1, 0, b"", digests[2]), None),  # of no round of the chain
    ):
        assert is_on_chain(chain, node) is is_on


def test_a_book_that_holds_nothing_begins_at_its_first_round_and_gives_none() -> None:
    book = LogBook(7)
    assert (book.next, book.first_kept, book.wanted, book.head) == (7, 7, 6, NO_DIGEST)
    assert (book.is_fresh, book.members, book.since(7, 9)) == (True, (), ())
    assert book.get(6) is book.get(7) is book.get(8) is None
    assert book.before(6) == book.before(7) == b""
    assert (LogBook(1).wanted, LogBook(0).next) == (0, 0)


def test_a_book_that_holds_rounds_wants_the_next_and_gives_each_by_its_number() -> None:
    book = filled(3, first=7)
    assert (book.next, book.first_kept, book.wanted, book.is_fresh) == (10, 7, 10, False)
    kept = [book.get(number) for number in range(6, 11)]
    assert [each and each.round.number for each in kept] == [None, 7, 8, 9, None]
    assert [book.before(number) for number in (7, 8)] == [NO_DIGEST, kept[1] and kept[1].digest]
    assert book.since(7, 0) == ()
    assert [read_round(data).round.number for data in book.since(8, 1)] == [8]


def test_rounds_are_given_up_to_what_one_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    book = filled(4)
    sizes = [len(data) for data in book.since(0, 4)]
    for most_bytes, n in ((sum(sizes[:3]), 3), (sum(sizes[:3]) - 1, 2), (sizes[0] - 1, 0)):
        monkeypatch.setattr(limits, "LOG_GIVEN_BYTES_MAX", most_bytes)
        assert len(book.since(0, 4)) == n


def test_the_name_of_a_run_follows_from_the_round_what_was_before_it_and_the_attempt() -> None:
    book, other = filled(2), LogBook(2)
    assert book.gid(KEY, 0) == group_id(KEY, "log", 0, 2, book.head)
    assert book.gid(KEY, 3) == group_id(KEY, "log", 3, 2, book.head)
    assert other.gid(KEY, 0) == group_id(KEY, "log", 0, 2, NO_DIGEST)


def test_a_fresh_book_reads_the_round_that_is_open_whatever_was_before_it() -> None:
    old = filled(4)
    fresh = LogBook(3)
    (data,) = old.since(3, 1)
    fresh.close(fresh.read(data))
    assert (fresh.next, fresh.head) == (4, old.head)
    with pytest.raises(MalformedMessage, match="expected round 2, got 3"):
        LogBook(2).read(data)


def test_of_members_bound_alike_the_first_in_order_counts_and_none_where_none_is_bound() -> None:
    book = filled(2)
    one, two = (book.make([(A, share(each)), (B, share(None))]) for each in (b"one", b"two"))
    bound = [
        (C, share(b"c", bound_attempt=2, bound=two)),
        (B, share(b"b", bound_attempt=2, bound=one)),
        (A, share(b"a", bound_attempt=5)),
    ]
    assert book.make(bound) == one
    assert book.read(book.make(bound[2:])).members == (A,)
    stale = filled(1).make([(A, share(b"stale"))])
    assert book.make([(A, share(b"a", bound_attempt=9, bound=stale)), *bound[:2]]) == one


def test_a_chain_begins_where_it_is_asked_for_and_each_round_follows_the_one_before() -> None:
    rounds = filled(4).since(0, 4)
    chain = read_chain(NO_DIGEST, 0, rounds)
    assert [each.round.number for each in chain] == [0, 1, 2, 3]
    assert [each.round.before for each in chain[1:]] == [each.digest for each in chain[:-1]]
    assert read_chain(b"", 2, ()) == []
    other = LogBook(0)
    other.close(other.read(other.make([(B, share(b"other"))])))
    with pytest.raises(MalformedMessage, match="expected round 1 to follow the one before it"):
        read_chain(b"", 0, (*other.since(0, 1), *rounds[1:]))


def test_books_that_are_equally_far_are_compared_at_the_round_before() -> None:
    book, other = filled(3), filled(2)
    assert book.is_alike(3, book.head, b"") is True
    assert book.is_alike(3, b"o" * 32, b"") is False
    assert book.is_alike(3, b"", book.head) is None, "of ours it does not know what was before"
    assert other.is_alike(3, other.head, b"x" * 32) is True
    assert book.is_alike(2, b"", other.head) is True
    assert book.is_alike(2, other.head, b"") is None
    assert book.is_alike(9, book.head, b"") is True
