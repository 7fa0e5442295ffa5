"""Signed words between two peers that have no way to each other yet.

::

    author ──Carry──> carrier ──Deliver──> target        both hops are sessions, answered by Taken

What the target checks: the author's signature over body and purpose, that it is meant, that the
author's clock is right within SIGNAL_WINDOW_S, and that this nonce of this author is new. The
carrier is believed in one thing only, ``observed``: where it sees the author. It carries for peers
that have a session with it, and to such: one hop, so nothing can go round in circles.

Bounds: signals of one author and of all, at the carrier and at the target; SIGNAL_BYTES_MAX; nonces
are kept as long as they could be repeated, and when there are SIGNAL_NONCES_MAX nothing more is
taken rather than one be forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, MalformedMessage, Overloaded
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs.bucket import Rates, TokenBucket
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire.connect.signal import NONCE_BYTES, Signal
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed

# Of all authors together.
SIGNALS_PER_S = 5.0
SIGNALS_BURST = 64
# One author's: an offer, its answer and a second try, for eight partners at once.
SIGNALS_PER_PEER_PER_S = 0.5
SIGNALS_PER_PEER_BURST = 32
# Of the peers that we carry signals for, or had some from.
_SIGNAL_PEERS_MAX = 1024

_DOMAIN = "signal/1"
# The other fields of a signal, packed.
_BODY_BYTES_MAX = limits.SIGNAL_BYTES_MAX + 256


@dataclass(frozen=True, slots=True)
class SignalStatistics:
    """Counters of one node, as a carrier and as a target."""

    carried_total: int
    taken_total: int
    refused_total: int
    nonces: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A signal that was checked."""

    author: PeerId
    kind: str
    payload: bytes


def sign_signal(
    identity: Identity, target: PeerId, kind: str, payload: bytes, *, unix_s: float, nonce: bytes
) -> Signed:
    """Return what only ``target`` will take, once and soon."""
    assert len(nonce) == NONCE_BYTES
    assert len(payload) <= limits.SIGNAL_BYTES_MAX
    body = encode_record(Signal(target, kind, int(unix_s * 1000), nonce, payload))
    return Signed(body, identity.public_key, identity.sign(_DOMAIN, body))


def author_of(signed: Signed) -> PeerId:
    """Return whose signal this is, if its signature is right."""
    return PeerId.from_public_key(signed.public_key)


class Postbox:
    """What a node remembers so that signals cannot be repeated, forged or too many."""

    def __init__(self, own_id: PeerId) -> None:
        self._own_id = own_id
        self._seen: set[tuple[PeerId, bytes]] = set()
        self._expiries: deque[tuple[float, tuple[PeerId, bytes]]] = deque()
        self._all = TokenBucket(SIGNALS_PER_S, SIGNALS_BURST)
        # Of what a carrier brings, every signature costs some 0.1 ms, also a wrong one.
        self._carriers: Rates[PeerId] = Rates(SIGNALS_PER_S, SIGNALS_BURST, _SIGNAL_PEERS_MAX)
        self._authors: Rates[PeerId] = _peer_rates()
        self._targets: Rates[PeerId] = _peer_rates()
        self._carried = self._taken = self._refused = 0

    def statistics(self) -> SignalStatistics:
        """Return counters."""
        return SignalStatistics(self._carried, self._taken, self._refused, len(self._seen))

    def carry(self, neighbour: PeerId, target: PeerId, signed: Signed, now: float) -> None:
        """Check what a neighbour wants brought to ``target``.

        Raises:
            AuthenticationFailed: it is another author's, or forged.
            MalformedMessage: too long.
            Overloaded: too many.
        """
        try:
            self._admit(neighbour, now)
            if not self._targets.try_take(target, now):
                raise Overloaded("too many signals for this target")
            if author_of(signed) != neighbour:
                raise AuthenticationFailed("expected a signal of your own, got another peer's")
            _check(signed)
        except (AuthenticationFailed, MalformedMessage, Overloaded):
            self._refused += 1
            raise
        self._carried += 1

    def take(self, via: PeerId, signed: Signed, *, now: float, unix_s: float) -> Taken:
        """Return the signal, which is meant for us, new and of the peer that signed it.

        Args:
            via: the peer that has carried it.
            now: monotonic, for rates and for how long a nonce is kept.
            unix_s: wall clock, to compare with the author's.

        Raises:
            AuthenticationFailed: forged, repeated, too old, or meant for another node.
            MalformedMessage: no signal, or too long.
            Overloaded: too many.
        """
        try:
            if not self._carriers.try_take(via, now):
                raise Overloaded(f"too many signals through {via.short}")
            taken = self._take(signed, now, unix_s)
        except (AuthenticationFailed, MalformedMessage, Overloaded):
            self._refused += 1
            raise
        self._taken += 1
        return taken

    def _take(self, signed: Signed, now: float, unix_s: float) -> Taken:
        author = author_of(signed)
        _check(signed)  # before it counts as one of its author's
        self._admit(author, now)
        signal = decode_record(signed.body, Signal)
        if signal.target != self._own_id:
            raise AuthenticationFailed(f"signal of {author.short}: meant for another peer")
        off_s = signal.created_at_ms / 1000 - unix_s
        if abs(off_s) > limits.SIGNAL_WINDOW_S:
            raise AuthenticationFailed(
                f"signal of {author.short}: its clock and ours differ by {abs(off_s):.0f} s, "
                f"{limits.SIGNAL_WINDOW_S:g} s are allowed; set the clock that is wrong"
            )
        self._remember((author, signal.nonce), now)
        return Taken(author, signal.kind, signal.payload)

    def _admit(self, peer: PeerId, now: float) -> None:
        if not self._authors.try_take(peer, now):
            raise Overloaded(f"too many signals of {peer.short}")
        if not self._all.try_take(1, now):
            raise Overloaded("too many signals")

    def _remember(self, name: tuple[PeerId, bytes], now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            self._seen.discard(self._expiries.popleft()[1])
        if name in self._seen:
            raise AuthenticationFailed(f"signal of {name[0].short}: it was here before")
        if len(self._seen) >= limits.SIGNAL_NONCES_MAX:
            raise Overloaded("too many signals")
        self._seen.add(name)
        self._expiries.append((now + limits.SIGNAL_NONCE_KEEP_S, name))


def _peer_rates() -> Rates[PeerId]:
    return Rates(SIGNALS_PER_PEER_PER_S, SIGNALS_PER_PEER_BURST, _SIGNAL_PEERS_MAX)


def _check(signed: Signed) -> None:
    if len(signed.body) > _BODY_BYTES_MAX:
        raise MalformedMessage(
            f"signal of {len(signed.body)} bytes, at most {_BODY_BYTES_MAX} are allowed"
        )
    what = f"signal of {author_of(signed).short}"
    verify(signed.public_key, _DOMAIN, signed.body, signed.signature, what=what)
