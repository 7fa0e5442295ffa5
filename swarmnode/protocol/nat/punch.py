"""What two nodes behind NATs dial, when and how often, so that they open one TCP connection.

Both dial at the same moment from the port that they listen on; the first packet of each opens
the way for the other's. What makes the moment the same::

    inviter                                   invited
    offer (its addresses)          ------>
                                   <------    answer (its addresses)
    go (how long that took)        ------>
    dials half a round trip later             dials when it hears it

Then both dial every address of the other, one packet an attempt. If more than one connection
comes about, the peer with the greater id takes one and speaks first; the other takes
the one on which it hears something. The smaller id is the server of TLS.

A stranger's offer can cost PUNCH_ADDRESSES_MAX addresses, one public host of each family, and
PUNCH_ATTEMPTS_MAX at each: some dozen packets of 60 bytes. Addresses count only from an offer or an
answer of this very punch.

Source: Trautwein et al., Decentralized Hole Punching, 2022 (DCUtR).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from swarmnode import limits
from swarmnode.env import Rng
from swarmnode.errors import DeadlineExceeded, MalformedMessage, Refused, RemoteProtocolError
from swarmnode.ids import PeerId
from swarmnode.protocol.nat.candidates import usable_candidates
from swarmnode.wire.connect.nat import RtcCandidate
from swarmnode.wire.connect.punch import PunchAddress, PunchAnswer, PunchGo, PunchOffer
from swarmnode.wire.packing import encode_record

SIGNAL_KIND = "punch"

Target = tuple[str, int]


@dataclass(frozen=True)
class PunchPlan:
    """What one side does from the agreed moment on."""

    targets: tuple[Target, ...]
    attempt_s: float  # one packet, and the wait for what it brings
    we_choose: bool


@dataclass
class Attempts:
    """The attempts at one target, at the most PUNCH_ATTEMPTS_MAX in PUNCH_S after ``at``."""

    at: float
    rng: Rng
    _made: int = 0
    _refused: int = 0

    def next_at(self, now: float) -> float | None:
        """Return when to dial, the last attempt having failed by ``now``; None: not again."""
        begins_at = self.at
        if self._made:
            pause_s = self.rng.uniform(limits.PUNCH_PAUSE_S_MIN, limits.PUNCH_PAUSE_S_MAX)
            begins_at = now + pause_s * limits.PUNCH_REFUSED_GROWTH**self._refused
        if self._made == limits.PUNCH_ATTEMPTS_MAX or begins_at >= self.at + limits.PUNCH_S:
            return None
        self._made += 1
        return begins_at

    def refused(self) -> None:
        """The last attempt was answered with a no, perhaps by a router."""
        self._refused += 1


@dataclass(frozen=True)
class Sides:
    """The two peers of a punch, and where the listening port of ours is."""

    own: PeerId
    peer: PeerId
    addresses: tuple[PunchAddress, ...]

    def plan(self, theirs: Sequence[PunchAddress], observed: str, round_trip_s: float) -> PunchPlan:
        """Return the plan. Raises Refused if none of their addresses may be dialled."""
        targets = choose_targets(theirs, self.addresses, observed)
        if not targets:
            raise Refused(
                f"punch with {self.peer.short}: none of its {len(theirs)} addresses can be "
                "reached from the internet, and it is not behind our own NAT"
            )
        attempt_s = max(limits.PUNCH_ATTEMPT_S, limits.PUNCH_ATTEMPT_ROUND_TRIPS * round_trip_s)
        return PunchPlan(
            targets, min(attempt_s, limits.PUNCH_ATTEMPT_S_MAX), we_choose=self.own > self.peer
        )


@dataclass(frozen=True)
class Start:
    """Carry out ``plan`` from ``at`` on, on the clock that ``now`` is read from."""

    plan: PunchPlan
    at: float


class Inviter:
    """The side that asks."""

    def __init__(self, sides: Sides, *, nonce: bytes, now: float) -> None:
        """Make the offer; ``nonce`` has 16 random bytes."""
        self.offer = PunchOffer(nonce, sides.addresses)
        self._sides = sides
        self._began_at = now
        self._name = offer_name(self.offer)

    def handle_answer(
        self, answer: PunchAnswer, *, observed: str, now: float
    ) -> tuple[PunchGo, Start]:
        """Return what to send at once, and what to do.

        ``observed`` is where the carrier saw the peer, HOST:PORT, or "".

        Raises:
            RemoteProtocolError: it answers another offer.
            DeadlineExceeded: it comes too late.
            Refused: nothing of it may be dialled.
            MalformedMessage: an address is none.
        """
        self._check(answer.offer, now)
        round_trip_s = now - self._began_at
        plan = self._sides.plan(answer.addresses, observed, round_trip_s)
        milliseconds = min(math.ceil(round_trip_s * 1000), limits.PUNCH_ROUND_TRIP_MS_MAX)
        return PunchGo(self._name, milliseconds), Start(plan, now + round_trip_s / 2)

    def _check(self, name: bytes, now: float) -> None:
        _check_name(self._name, name, self._sides.peer)
        _check_age(now - self._began_at, f"punch with {self._sides.peer.short}: an answer")


class Invited:
    """The side that is asked."""

    def __init__(self, sides: Sides, offer: PunchOffer, *, observed: str, now: float) -> None:
        """Take in an offer that ``sides.peer`` signed; raises as ``Inviter.handle_answer``."""
        self.answer = PunchAnswer(offer_name(offer), sides.addresses)
        self._sides = sides
        self._theirs = offer.addresses
        self._observed = observed
        self._began_at = now
        self._is_begun = False
        # The addresses to expect from now on: the inviter's first packet may be sooner than its go.
        self.plan = sides.plan(self._theirs, observed, 0.0)

    def handle_go(self, go: PunchGo, *, now: float) -> Start:
        """Return what to do; once.

        Raises:
            RemoteProtocolError: it belongs to another offer, or it came before.
            DeadlineExceeded: it comes too late.
        """
        _check_name(self.answer.offer, go.offer, self._sides.peer)
        _check_age(now - self._began_at, f"punch with {self._sides.peer.short}: the word to begin")
        if self._is_begun:
            raise RemoteProtocolError(
                "punch: expected one word to begin, got two", peer=str(self._sides.peer)
            )
        self._is_begun = True
        return Start(self._sides.plan(self._theirs, self._observed, go.round_trip_ms / 1000), now)


def offer_name(offer: PunchOffer) -> bytes:
    """Return what names an offer in its answer: SHA-256 of its bytes."""
    return hashlib.sha256(encode_record(offer)).digest()


def make_address(host: str, port: int) -> PunchAddress:
    """Build one from the text of an IP address. Raises ValueError for anything else."""
    return PunchAddress(ip_address(host).packed, port)


def choose_targets(
    theirs: Sequence[PunchAddress], ours: Sequence[PunchAddress], observed: str
) -> tuple[Target, ...]:
    """Return which addresses of the other side may be dialled, in its order.

    Private ones only if both are behind one NAT. Of public hosts one in each family: the one
    that the carrier saw (``observed``, HOST:PORT or ""), else the first. None of our own.

    Raises:
        MalformedMessage: an address is none.
    """
    usable = usable_candidates(
        [_as_candidate(address) for address in theirs if address not in ours],
        [_as_candidate(address) for address in ours],
    )
    hosts = _observed_host(observed)
    targets: list[Target] = []
    for candidate in usable:
        host = ip_address(candidate.address)
        if host.is_global and hosts.setdefault(host.version, candidate.address) != host.packed:
            continue
        targets.append((str(host), candidate.port))
    return tuple(targets[: limits.PUNCH_ADDRESSES_MAX])


def _as_candidate(address: PunchAddress) -> RtcCandidate:
    """The rules for addresses that may be sent to are those of WebRTC's."""
    if len(address.host) not in (4, 16):
        raise MalformedMessage(f"punch: expected 4 or 16 bytes of address, got {len(address.host)}")
    return RtcCandidate("host", address.host, address.port)


def _observed_host(observed: str) -> dict[int, bytes]:
    """Return the packed public host by its IP version, if there is one."""
    text = observed.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        host = ip_address(text)
    except ValueError:
        return {}
    return {host.version: host.packed} if host.is_global else {}


def _check_name(expected: bytes, got: bytes, peer: PeerId) -> None:
    if got != expected:
        raise RemoteProtocolError("punch: a word about another offer", peer=str(peer))


def _check_age(age_s: float, operation: str) -> None:
    if age_s > limits.PUNCH_OFFER_S:
        raise DeadlineExceeded(operation, limits.PUNCH_OFFER_S)
