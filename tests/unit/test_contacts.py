"""The peer book: news spreads, forged records do not, silent peers are forgotten."""

from __future__ import annotations

import itertools
import random

import msgpack
import pytest

from swarmnode import limits
from swarmnode.errors import ConfigError
from swarmnode.ids import PeerId
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.membership.peerbook import (
    Dial,
    DialEnded,
    ExchangeLists,
    HintsGiven,
    PeerBook,
    RecordsReceived,
    SessionClosed,
    SessionOpened,
    sign_peer_record,
)
from swarmnode.protocol.swarm import Hint
from swarmnode.wire.membership import PeerRecord, PeerState, PeerStatus
from swarmnode.wire.swarm import Signed

NETWORK = b"n" * 32
ALL = [Identity.from_seed(bytes([i]) * 32) for i in range(12)]


def make_record(
    who: Identity,
    *,
    epoch: int = 1,
    sequence: int = 1,
    state: PeerState = "training",
    network: bytes = NETWORK,
    address: str = "",
    copies: int = 1,
) -> Signed:
    record = PeerRecord(
        network_id=network,
        public_key=who.public_key,
        addresses=(address or f"mem:{who.peer_id.short}",) * copies,
        role="trainer",
        version="0.1.0",
        boot_epoch=epoch,
        sequence=sequence,
        status=PeerStatus(state),
    )
    return sign_peer_record(record, who)


@pytest.fixture
def book() -> PeerBook:
    return PeerBook(ALL[0].peer_id, NETWORK, random.Random(1))


def dialled(book: PeerBook, now: float) -> list[PeerId]:
    book.handle_deadline(now)
    return [e.peer for e in book.poll_effects() if isinstance(e, Dial)]


def test_hint_is_dialled_and_lists_are_exchanged(book: PeerBook) -> None:
    book.handle(HintsGiven((Hint(ALL[1].peer_id, "mem:1"), Hint(ALL[0].peer_id, "mem:0"))), 0.0)
    assert dialled(book, 0.0) == [ALL[1].peer_id], "the hint, and never ourselves"
    book.handle(SessionOpened(ALL[1].peer_id), 0.1)
    book.handle(DialEnded(ALL[1].peer_id), 0.1)
    assert book.poll_effects() == [ExchangeLists(ALL[1].peer_id)]
    assert book.statistics().connected == 1


def test_news_reaches_everybody_by_gossip() -> None:
    books = [PeerBook(who.peer_id, NETWORK, random.Random(i)) for i, who in enumerate(ALL)]
    for own, who in zip(books, ALL, strict=True):
        own.own = make_record(who)
    for other in books[1:]:
        other.handle(RecordsReceived(books[0].list_for_peers(0.0)), 0.0)
        books[0].handle(RecordsReceived(other.list_for_peers(0.0)), 0.0)
    for other in books[1:]:
        other.handle(RecordsReceived(books[0].list_for_peers(1.0)), 1.0)
    expected = tuple(sorted(who.peer_id for who in ALL))
    assert all(book.members(1.0) == expected for book in books)


def test_only_newer_records_count(book: PeerBook) -> None:
    peer = ALL[1].peer_id
    book.handle(RecordsReceived((make_record(ALL[1], epoch=2, sequence=1),)), 0.0)
    book.handle(RecordsReceived((make_record(ALL[1], epoch=1, sequence=9, state="left"),)), 1.0)
    assert not book.entries[peer].has_left(), "an older boot epoch says nothing"
    book.handle(RecordsReceived((make_record(ALL[1], epoch=2, sequence=2, state="left"),)), 2.0)
    assert book.entries[peer].has_left()
    assert book.members(2.0) == (ALL[0].peer_id,)
    assert dialled(book, 2.0) == []


def test_forged_and_foreign_records_are_rejected(book: PeerBook) -> None:
    good = make_record(ALL[1])
    forged = Signed(good.body.replace(b"training", b"starting"), good.public_key, good.signature)
    foreign = make_record(ALL[2], network=b"x" * 32)
    stolen = Signed(good.body, ALL[3].public_key, ALL[3].sign("peer-record/1", good.body))
    junk = Signed(b"\xff\x00", ALL[4].public_key, good.signature)
    book.handle(RecordsReceived((forged, foreign, stolen, junk)), 0.0)
    assert book.statistics().records_rejected == 4
    assert book.statistics().known == 0
    book.handle(RecordsReceived((good,)), 0.0)
    assert book.statistics().known == 1


def test_a_large_record_cannot_fill_the_list(book: PeerBook) -> None:
    filler = {"network_id": NETWORK, "filler": "x" * limits.PEER_RECORD_BYTES_MAX}
    body = msgpack.packb(filler)
    large = Signed(body, ALL[1].public_key, ALL[1].sign("peer-record/1", body))
    book.handle(RecordsReceived((large,)), 0.0)
    assert book.statistics().records_rejected == 1
    with pytest.raises(ConfigError, match="advertise fewer or shorter addresses"):
        make_record(ALL[2], address="h" * 250, copies=8)
    full = limits.PEERS_KNOWN_MAX * (limits.PEER_RECORD_BYTES_MAX + 32 + 64 + 16)
    assert full <= limits.MESSAGE_BYTES_MAX, "a full list of the largest records is one message"


def test_failed_dials_back_off_with_a_bound(book: PeerBook) -> None:
    book.handle(HintsGiven((Hint(ALL[1].peer_id, "mem:1"),)), 0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        assert dialled(book, now) == [ALL[1].peer_id]
        book.handle(DialEnded(ALL[1].peer_id), now)
        deadline = book.next_deadline()
        assert deadline is not None
        assert deadline > now
        pauses.append(deadline - now)
        now = deadline
    assert max(pauses) <= limits.REDIAL_BACKOFF_S_MAX
    assert book.statistics().dial_failures == 12


def test_dials_at_once_are_bounded(book: PeerBook) -> None:
    book.handle(HintsGiven(tuple(Hint(who.peer_id, "mem:x") for who in ALL)), 0.0)
    assert len(dialled(book, 0.0)) == limits.DIALS_CONCURRENT_MAX


def test_silent_peer_expires_and_comes_back(book: PeerBook) -> None:
    peer = ALL[1].peer_id
    book.handle(RecordsReceived((make_record(ALL[1]),)), 0.0)
    book.handle(SessionOpened(peer), 0.0)
    late = limits.PEER_RECORD_TTL_S + 1
    assert peer in book.members(late), "connected peers do not expire"
    book.handle(SessionClosed(peer), late)
    assert peer not in book.members(2 * late)
    assert dialled(book, 2 * late) == [peer], "a long outage must heal"
    book.handle(DialEnded(peer), 2 * late)
    assert book.entries[peer].dial_at >= 2 * late + 0.75 * limits.LOST_REDIAL_S, "but slowly"
    book.handle(RecordsReceived((make_record(ALL[1], epoch=2),)), 3 * late)
    assert peer in book.members(3 * late)
    assert dialled(book, 3 * late) == [peer]


def test_book_is_bounded(book: PeerBook) -> None:
    for i in range(limits.PEERS_KNOWN_MAX + 50):
        who = Identity.from_seed(i.to_bytes(32, "big"))
        book.handle(RecordsReceived((make_record(who),)), 0.0)
    assert len(book.entries) == limits.PEERS_KNOWN_MAX - 1
    assert len(book.list_for_peers(0.0)) <= limits.PEERS_KNOWN_MAX
    newcomer = Identity.from_seed(b"z" * 32)
    book.handle(RecordsReceived((make_record(newcomer),)), limits.PEER_RECORD_TTL_S + 1)
    assert newcomer.peer_id in book.entries, "an expired peer makes room"


def left_or_silent(book: PeerBook, peer: Identity, how: str) -> float:
    """Meet the peer, then lose it for good in one of two ways; return the time."""
    book.handle(SessionOpened(peer.peer_id), 0.0)
    book.handle(RecordsReceived((make_record(peer),)), 0.0)
    if how == "left":
        book.handle(RecordsReceived((make_record(peer, sequence=2, state="left"),)), 1.0)
        book.handle(SessionClosed(peer.peer_id), 1.0)
        return 1.0
    book.handle(SessionClosed(peer.peer_id), 1.0)
    book.handle(DialEnded(peer.peer_id), 1.0)
    return 1.0 + limits.PEER_RECORD_TTL_S + 1.0


def dials_until(book: PeerBook, now: float, end: float) -> list[float]:
    """Obey every deadline, let every dial fail; return when there were dials."""
    times = []
    while (deadline := book.next_deadline()) is not None and deadline <= end:
        assert deadline > now or not times
        now = max(now, deadline)
        for peer in dialled(book, now):
            times.append(now)
            book.handle(DialEnded(peer), now)
    return times


@pytest.mark.parametrize("how", ["left", "silent"])
def test_a_peer_of_the_link_is_looked_for_forever(book: PeerBook, how: str) -> None:
    book.handle(HintsGiven((Hint(ALL[1].peer_id, "mem:one"),)), 0.0)
    now = left_or_silent(book, ALL[1], how)
    times = [when for when in dials_until(book, now, 3600.0) if when > now]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) > 3600 / limits.HINT_REDIAL_S / 1.3
    assert all(0.7 < pause / limits.HINT_REDIAL_S < 1.3 for pause in pauses[1:])


@pytest.mark.parametrize("how", ["left", "silent"])
def test_another_peer_that_is_gone_is_looked_for_slowly_or_not(book: PeerBook, how: str) -> None:
    now = left_or_silent(book, ALL[1], how)
    dials = [when for when in dials_until(book, now, 3600.0) if when > now]
    assert len(dials) <= (0 if how == "left" else 3600.0 / (0.75 * limits.LOST_REDIAL_S))


def test_a_peer_of_the_link_is_never_forgotten(book: PeerBook) -> None:
    book.handle(HintsGiven((Hint(ALL[1].peer_id, "mem:one"),)), 0.0)
    now = left_or_silent(book, ALL[1], "left")
    for number in range(2 * limits.PEERS_KNOWN_MAX):
        stranger = Identity.from_seed(number.to_bytes(32, "little"))
        book.handle(RecordsReceived((make_record(stranger, state="left"),)), now + 1.0)
    assert ALL[1].peer_id in book.entries
