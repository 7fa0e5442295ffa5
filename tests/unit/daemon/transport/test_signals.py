"""Signals: what is carried, what is taken, and what is not, whoever would like it to be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

import pytest
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport.signals import DELIVER_SERVICE, Received, Signals
from swarmnode.errors import (
    AuthenticationFailed,
    MalformedMessage,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat.signals import (
    SIGNALS_BURST,
    SIGNALS_PER_PEER_BURST,
    SIGNALS_PER_S,
    Postbox,
    SignalStatistics,
    sign_signal,
)
from swarmnode.wire.connect.signal import Deliver, Signal
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.relay_kit import UNIX_START_S, Node, nodes

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
MALLORY = Identity.from_seed(b"m" * 32)
CARRIER = Identity.from_seed(b"c" * 32).peer_id
NOW = 1000.0
UNIX_S = 1_800_000_000.0


def nonces() -> Iterator[bytes]:
    return (number.to_bytes(16, "big") for number in count())


NONCES = nonces()


def signed(
    payload: bytes = b"offer",
    *,
    author: Identity = ALICE,
    target: PeerId = BOB.peer_id,
    unix_s: float = UNIX_S,
) -> Signed:
    return sign_signal(author, target, "punch", payload, unix_s=unix_s, nonce=next(NONCES))


# --- the target ---------------------------------------------------------------------------------


def test_a_signal_is_taken_once() -> None:
    postbox = Postbox(BOB.peer_id)
    signal = signed()
    taken = postbox.take(CARRIER, signal, now=NOW, unix_s=UNIX_S)
    assert (taken.author, taken.kind, taken.payload) == (ALICE.peer_id, "punch", b"offer")
    for other in (CARRIER, MALLORY.peer_id):
        with pytest.raises(AuthenticationFailed, match="it was here before"):
            postbox.take(other, signal, now=NOW + 1, unix_s=UNIX_S + 1)
    postbox.take(CARRIER, signed(), now=NOW + 2, unix_s=UNIX_S + 2)


@pytest.mark.parametrize("off_s", [-limits.SIGNAL_WINDOW_S, limits.SIGNAL_WINDOW_S])
def test_a_signal_is_never_taken_again_however_late_it_is_repeated(off_s: float) -> None:
    """While the author's clock is off as far as it may be, in either direction."""
    postbox = Postbox(BOB.peer_id)
    signal = signed(unix_s=UNIX_S + off_s)
    postbox.take(CARRIER, signal, now=NOW, unix_s=UNIX_S)
    for later_s in range(0, 3 * int(limits.SIGNAL_WINDOW_S), 100):
        with pytest.raises(AuthenticationFailed):
            postbox.take(CARRIER, signal, now=NOW + later_s, unix_s=UNIX_S + later_s)
    # ... and is forgotten when no node would take it any more.
    later_s = 3 * int(limits.SIGNAL_WINDOW_S)
    postbox.take(
        CARRIER, signed(unix_s=UNIX_S + later_s), now=NOW + later_s, unix_s=UNIX_S + later_s
    )
    assert postbox.statistics().nonces == 1


@pytest.mark.parametrize("off_s", [-601, 601, -1e9])
def test_a_signal_of_another_time_says_how_far_the_clocks_are_apart(off_s: float) -> None:
    signal = signed(unix_s=UNIX_S + off_s)
    with pytest.raises(AuthenticationFailed, match=f"differ by {abs(off_s):.0f} s, 600 s are"):
        Postbox(BOB.peer_id).take(CARRIER, signal, now=NOW, unix_s=UNIX_S)


def test_what_is_forged_or_meant_for_others_is_refused() -> None:
    real = signed()
    forged = [
        Signed(real.body, MALLORY.public_key, real.signature),
        Signed(real.body[:-1] + b"!", real.public_key, real.signature),
        Signed(real.body, real.public_key, MALLORY.sign("signal/1", real.body)),
        Signed(real.body, real.public_key, ALICE.sign("manifest", real.body)),
        Signed(real.body, real.public_key, bytes(64)),
        signed(target=MALLORY.peer_id),
    ]
    postbox = Postbox(BOB.peer_id)
    for signal in forged:
        with pytest.raises(AuthenticationFailed):
            postbox.take(CARRIER, signal, now=NOW, unix_s=UNIX_S)
    assert postbox.statistics().refused_total == len(forged)
    assert postbox.statistics().nonces == 0
    postbox.take(CARRIER, real, now=NOW, unix_s=UNIX_S)


def test_what_is_too_long_or_no_signal_is_refused() -> None:
    postbox = Postbox(BOB.peer_id)
    too_long = encode_record(
        Signal(BOB.peer_id, "punch", int(UNIX_S * 1000), bytes(16), bytes(limits.SIGNAL_BYTES_MAX))
    )
    for body in (too_long + bytes(500), b"", b"\x80", b"\xc1", too_long[:-1]):
        signal = Signed(body, ALICE.public_key, ALICE.sign("signal/1", body))
        with pytest.raises(MalformedMessage):
            postbox.take(CARRIER, signal, now=NOW, unix_s=UNIX_S)


def test_floods_are_bounded_for_one_author_one_carrier_and_all() -> None:
    def how_many(postbox: Postbox, pairs: list[tuple[PeerId, Identity]]) -> int:
        taken = 0
        for carrier, author in pairs:
            try:
                postbox.take(carrier, signed(author=author), now=NOW, unix_s=UNIX_S)
                taken += 1
            except Overloaded:
                pass
        return taken

    authors = [Identity.from_seed(bytes([number]) * 32) for number in range(150)]
    carriers = [author.peer_id for author in authors]
    one_author = [(carrier, ALICE) for carrier in carriers]
    assert how_many(Postbox(BOB.peer_id), one_author) == SIGNALS_PER_PEER_BURST + 1
    one_carrier = [(CARRIER, author) for author in authors]
    assert how_many(Postbox(BOB.peer_id), one_carrier) == SIGNALS_BURST + 1
    postbox = Postbox(BOB.peer_id)
    assert how_many(postbox, list(zip(carriers, authors, strict=True))) == SIGNALS_BURST + 1
    postbox.take(CARRIER, signed(), now=NOW + 10, unix_s=UNIX_S)


def test_a_forger_does_not_use_up_the_share_of_the_author_that_he_names() -> None:
    postbox = Postbox(BOB.peer_id)
    real = signed()
    for number in range(200):
        forged = Signed(real.body, real.public_key, bytes([number]) * 64)
        with pytest.raises((AuthenticationFailed, Overloaded)):
            postbox.take(MALLORY.peer_id, forged, now=NOW, unix_s=UNIX_S)
    postbox.take(CARRIER, real, now=NOW, unix_s=UNIX_S)


def test_rates_fit_into_what_is_remembered() -> None:
    """Nothing is refused for want of room while the rates are kept."""
    most = SIGNALS_BURST + SIGNALS_PER_S * limits.SIGNAL_NONCE_KEEP_S
    assert most < limits.SIGNAL_NONCES_MAX


# --- the carrier --------------------------------------------------------------------------------


def test_a_carrier_carries_only_what_its_neighbour_has_signed() -> None:
    postbox = Postbox(CARRIER)
    postbox.carry(ALICE.peer_id, BOB.peer_id, signed(), NOW)
    with pytest.raises(AuthenticationFailed, match="of your own"):
        postbox.carry(MALLORY.peer_id, BOB.peer_id, signed(), NOW)
    real = signed()
    with pytest.raises(AuthenticationFailed, match="does not match its key"):
        postbox.carry(
            ALICE.peer_id, BOB.peer_id, Signed(real.body, real.public_key, bytes(64)), NOW
        )
    body = bytes(64_000)
    long = Signed(body, ALICE.public_key, ALICE.sign("signal/1", body))
    with pytest.raises(MalformedMessage):
        postbox.carry(ALICE.peer_id, BOB.peer_id, long, NOW)


def test_no_peer_is_flooded_through_a_carrier_not_even_by_many() -> None:
    postbox = Postbox(CARRIER)
    carried = 0
    for number in range(100):
        author = Identity.from_seed(bytes([number]) * 32)
        try:
            postbox.carry(author.peer_id, BOB.peer_id, signed(author=author), NOW)
            carried += 1
        except Overloaded:
            pass
    assert carried == SIGNALS_PER_PEER_BURST + 1


def signed_body(n_bytes: int) -> Signed:
    body = bytes(n_bytes)
    return Signed(body, ALICE.public_key, ALICE.sign("signal/1", body))


def test_a_signal_has_256_bytes_beside_its_payload_and_no_more() -> None:
    longest = limits.SIGNAL_BYTES_MAX + 256
    assert len(signed(bytes(limits.SIGNAL_BYTES_MAX)).body) <= longest
    postbox = Postbox(CARRIER)
    postbox.carry(ALICE.peer_id, BOB.peer_id, signed_body(longest), NOW)
    with pytest.raises(MalformedMessage, match=f"signal of {longest + 1} bytes, at most {longest}"):
        postbox.carry(ALICE.peer_id, BOB.peer_id, signed_body(longest + 1), NOW)
    assert postbox.statistics() == SignalStatistics(1, 0, 1, 0)


def test_no_neighbour_floods_many_peers_through_a_carrier_and_not_many_neighbours_either() -> None:
    def how_many(pairs: list[tuple[Identity, PeerId]]) -> int:
        postbox = Postbox(CARRIER)
        for author, target in pairs:
            with contextlib.suppress(Overloaded):
                postbox.carry(author.peer_id, target, signed(author=author), NOW)
        counts = postbox.statistics()
        assert counts.carried_total + counts.refused_total == len(pairs)
        return counts.carried_total

    authors = [Identity.from_seed(bytes([number]) * 32) for number in range(100)]
    targets = [author.peer_id for author in authors]
    assert how_many([(ALICE, target) for target in targets]) == SIGNALS_PER_PEER_BURST + 1
    assert how_many(list(zip(authors, reversed(targets), strict=True))) == SIGNALS_BURST + 1


def test_what_was_taken_and_what_was_refused_is_counted() -> None:
    postbox = Postbox(BOB.peer_id)
    for number in range(3):
        postbox.take(CARRIER, signed(), now=NOW, unix_s=UNIX_S)
        assert postbox.statistics() == SignalStatistics(0, number + 1, 0, number + 1)
    for number in range(2):
        with pytest.raises(AuthenticationFailed):
            postbox.take(CARRIER, signed(target=CARRIER), now=NOW, unix_s=UNIX_S)
        assert postbox.statistics() == SignalStatistics(0, 3, number + 1, 3)


def test_a_nonce_is_kept_as_long_as_it_could_be_repeated() -> None:
    postbox = Postbox(BOB.peer_id)
    for later_s in (0, 1):
        postbox.take(CARRIER, signed(), now=NOW + later_s, unix_s=UNIX_S)
    forgotten_at = NOW + limits.SIGNAL_NONCE_KEEP_S
    for now in (forgotten_at - 0.1, forgotten_at, forgotten_at + 1):
        postbox.take(CARRIER, signed(), now=now, unix_s=UNIX_S)
        assert postbox.statistics().nonces == 3, "the last two came as one was forgotten"


# --- over sessions ------------------------------------------------------------------------------


class Post:
    """Signals of one node, and what came."""

    def __init__(self, node: Node) -> None:
        self.received: list[Received] = []
        self.signals = Signals(
            node.services,
            node.identity,
            node.env,
            sessions=node.sessions,
            address_of=self.address_of,
        )
        self.signals.register("punch", self.received.append)

    def address_of(self, session: Session) -> str:
        return f"192.0.2.{session.peer[0]}:4001"


async def test_two_peers_without_a_way_talk_through_a_neighbour(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        posts = {node.name: Post(node) for node in (a, b, c)}
        await a.connect(c.peer, (c.address,))
        await b.connect(c.peer, (c.address,))
        seen = await posts["a"].signals.send(b.peer, "punch", b"offer", via=c.peer)
        assert seen == f"192.0.2.{b.peer[0]}:4001"
        (offer,) = posts["b"].received
        assert offer == Received(a.peer, b"offer", c.peer, f"192.0.2.{a.peer[0]}:4001")
        await posts["b"].signals.send(offer.author, "punch", b"answer", via=offer.via)
        assert posts["a"].received[0].payload == b"answer"
        assert posts["c"].received == []
        assert posts["c"].signals.statistics().carried_total == 2


async def test_why_a_signal_did_not_arrive_is_said(autojump_clock: MockClock) -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        posts = {node.name: Post(node) for node in (a, b, c)}
        with pytest.raises(Refused, match="no session with"):
            await posts["a"].signals.send(b.peer, "punch", b"", via=c.peer)
        await a.connect(c.peer, (c.address,))
        with pytest.raises(Refused, match=f"no session with {b.peer.short} here"):
            await posts["a"].signals.send(b.peer, "punch", b"", via=c.peer)
        await b.connect(c.peer, (c.address,))
        with pytest.raises(Refused, match="nothing here takes signals of kind 'dance'"):
            await posts["a"].signals.send(b.peer, "dance", b"", via=c.peer)
        b.env.wall = lambda: UNIX_START_S + 3600
        with pytest.raises(Refused, match="clock and ours differ by 3600 s"):
            await posts["a"].signals.send(b.peer, "punch", b"", via=c.peer)


async def test_a_carrier_that_repeats_what_it_has_carried_gets_nowhere(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        posts = {node.name: Post(node) for node in (a, b, c)}
        await a.connect(c.peer, (c.address,))
        to_bob = await c.connect(b.peer, (b.address,))
        signal = sign_signal(
            a.identity, b.peer, "punch", b"offer", unix_s=a.env.wall(), nonce=bytes(16)
        )
        delivery = encode_record(Deliver("203.0.113.9:80", signal))
        await to_bob.request(DELIVER_SERVICE, delivery, deadline_s=1)
        for _ in range(3):
            with pytest.raises(SwarmNodeError, match="it was here before"):
                await to_bob.request(DELIVER_SERVICE, delivery, deadline_s=1)
        assert len(posts["b"].received) == 1
        assert posts["a"].received == []
