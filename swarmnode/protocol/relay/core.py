"""The relay of one node: which peers can be reached through it, and which circuits there are.

::

    ConnectAsked ─> offered ──OfferAnswered──> waiting ──both Attached──> open ─> gone
                      │ declined, silent          │ RELAY_SETUP_S           │ a leg ended, silence,
                      └────────> refused          └──> legs told            └ share used up, too old

The relay learns which peer talks to which, when and how much; what they say is the ciphertext of
their own session. It connects only with peers that hold a reservation, which take a session each,
so it is no open proxy, and it never dials any node.

Bounds: reservations, circuits, circuits of one peer, bandwidth and volume of one peer and of all
(``Quota``), questions per second of one peer and of all. An open circuit may outlive the sessions
of its peers: its legs may be connections of their own.

What is full is shared anew when another peer asks. A reservation takes the place of the newest one
of the address that has most, if that has more. A circuit takes the place of one that is spare, as
nothing went over it for RELAY_SPARE_S, or else is worth less (``Worths``); not before both legs are
there, and none that was not open for RELAY_HOLD_S.

Hot path: :meth:`try_pass` is called for every piece and is no event. If it says no, Waiting is fed.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.blobs.bucket import TokenBucket
from swarmnode.protocol.relay import RelayStatistics, events
from swarmnode.protocol.relay.accounts import (
    Account,
    Accounts,
    Allowance,
    End,
    Ends,
    Flow,
    Quota,
    Shaper,
    Worths,
    rate_bucket,
)
from swarmnode.protocol.uplink import Line
from swarmnode.wire.connect.relay import (
    TOKEN_BYTES,
    Granted,
    LegAnswer,
    Refusal,
    RefusalCode,
    Reserved,
)

# Questions for circuits, of all peers together: each may wake up another node.
_RELAY_CONNECTS_ALL_PER_S = 16.0
RELAY_CONNECTS_ALL_BURST = 128

_RETRY_S_MAX = 7 * 86_400
# Sums of the same numbers in another order are no gain.
_NO_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class _Reservation:
    host: str
    until: float


@dataclass(slots=True, eq=False)
class _Circuit:
    number: int
    command: int
    ends: Ends
    flow: Flow
    began_at: float
    moved_at: float
    used_at: float  # for more than the words of a session that is idle
    state: Literal["offered", "waiting", "open"] = "offered"
    legs: list[int | None] = field(default_factory=lambda: [None, None])

    @property
    def peers(self) -> tuple[PeerId, PeerId]:
        """Its source and its target."""
        source, target = self.ends
        return source.peer, target.peer

    def is_held(self, now: float) -> bool:
        """Whether it was not of use yet, and gives way to no other."""
        return self.state != "open" or now < self.began_at + limits.RELAY_HOLD_S

    def is_spare(self, now: float) -> bool:
        """Whether its peers do without it."""
        return now >= self.used_at + limits.RELAY_SPARE_S

    @property
    def deadline(self) -> float:
        """When it is over if nothing happens."""
        if self.state != "open":
            return self.began_at + limits.RELAY_SETUP_S
        return min(self.moved_at + limits.RELAY_IDLE_S, self.began_at + limits.RELAY_CIRCUIT_S)


class RelayCore:
    """All decisions of a relay.

    ``secret``: 32 bytes that no peer can guess, for its tokens. ``line``: of this node, outwards.
    """

    def __init__(self, secret: bytes, quota: Quota, line: Line) -> None:
        self._secret = secret
        self._quota = quota
        self._effects: list[events.Effect] = []
        self._reservations: dict[PeerId, _Reservation] = {}
        self._circuits: dict[int, _Circuit] = {}
        self._tokens: dict[bytes, tuple[_Circuit, int]] = {}
        self._accounts = Accounts(quota)
        self._shaper = Shaper(rate_bucket(quota.bytes_per_s), line)
        self._volume = Allowance(quota.bytes_per_day)
        self._asks = TokenBucket(_RELAY_CONNECTS_ALL_PER_S, float(RELAY_CONNECTS_ALL_BURST))
        self._n_circuits = 0
        self._relayed_bytes = 0
        self._refused: dict[str, int] = {}
        self._why_none = ""

    # --- the five methods -----------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> None:
        """Take in one event."""
        match event:
            case events.ReserveAsked():
                self._on_reserve(event, now)
            case events.ConnectAsked():
                self._on_connect(event, now)
            case events.OfferAnswered():
                self._on_offer_answered(event)
            case events.Attached():
                self._on_attached(event, now)
            case events.Waiting():
                self._on_waiting(event, now)
            case events.CircuitEnded(circuit=number):
                self._close(number, "one side has closed it")
            case events.LegGone(leg=leg):
                self._on_leg_gone(leg)
            case events.PeerGone(peer=peer):
                self._on_peer_gone(peer)
            case events.Allowed(why_not=why_not):
                self._on_allowed(why_not)

    def poll_effects(self) -> list[events.Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when :meth:`handle_deadline` wants to be called, or None."""
        moments = [circuit.deadline for circuit in self._circuits.values()]
        moments += [each.until for each in self._reservations.values()]
        passing = self._shaper.next_deadline()
        if passing is not None:
            moments.append(passing)
        return min(moments, default=None)

    def handle_deadline(self, now: float) -> None:
        """Let wait what has waited long enough; end what is silent, late or old."""
        self._release(now)
        for peer in [peer for peer, each in self._reservations.items() if each.until <= now]:
            del self._reservations[peer]
        for circuit in [each for each in self._circuits.values() if each.deadline <= now]:
            self._end_in_time(circuit, now)

    def statistics(self) -> RelayStatistics:
        """Return counters."""
        return RelayStatistics(
            reservations=len(self._reservations),
            circuits_open=sum(each.state == "open" for each in self._circuits.values()),
            accounts=len(self._accounts),
            circuits_total=self._n_circuits,
            refused_total=dict(self._refused),
            relayed_bytes=self._relayed_bytes,
        )

    # --- bytes ----------------------------------------------------------------------------

    def try_pass(self, number: int, n_bytes: int, now: float) -> bool:
        """Whether a piece of an open circuit may be sent at once; if not, feed Waiting."""
        circuit = self._circuits.get(number)
        if circuit is None or self._is_spent(circuit, now):
            return False
        if not self._shaper.try_pass(circuit.flow, n_bytes, now):
            return False
        self._count(circuit, n_bytes, now)
        return True

    def _on_waiting(self, event: events.Waiting, now: float) -> None:
        circuit = self._circuits.get(event.circuit)
        if circuit is None:
            return
        if self._is_spent(circuit, now):
            self._close(circuit.number, "the share of bytes for a day is used up")
            return
        # Counted now: it is here, and its turn comes.
        self._count(circuit, event.n_bytes, now)
        self._shaper.wait(circuit.flow, event.side, event.n_bytes)
        self._release(now)

    def _release(self, now: float) -> None:
        for flow, side in self._shaper.release(now):
            self._circuits[flow.circuit].moved_at = now
            self._effects.append(events.Passed(flow.circuit, side))

    def _is_spent(self, circuit: _Circuit, now: float) -> bool:
        return self._volume.is_spent(now) or circuit.flow.account.volume.is_spent(now)

    def _count(self, circuit: _Circuit, n_bytes: int, now: float) -> None:
        circuit.moved_at = now
        if n_bytes > limits.RELAY_WORD_BYTES_MAX:
            circuit.used_at = now
        circuit.flow.account.volume.spend(n_bytes, now)
        self._volume.spend(n_bytes, now)
        self._relayed_bytes += n_bytes

    def has_reservation(self, peer: PeerId) -> bool:
        """Whether a peer is to be reached through us."""
        return peer in self._reservations

    # --- the owner's word -----------------------------------------------------------------

    def _on_allowed(self, why_not: str) -> None:
        """Relay for others, or nothing any more: then who has a place here looks for another."""
        self._why_none = why_not
        if why_not:
            self._reservations.clear()
            for number in list(self._circuits):
                self._close(number, why_not, code="quota")

    # --- reservations ---------------------------------------------------------------------

    def _on_reserve(self, event: events.ReserveAsked, now: float) -> None:
        if event.is_release:
            self._reservations.pop(event.peer, None)
            self._effects.append(events.Answered(event.command, Reserved(0)))
            return
        if self._why_none:
            self._refuse(event.command, "quota", self._why_none)
            return
        places = Counter(
            each.host for peer, each in self._reservations.items() if peer != event.peer
        )
        most_here = self._quota.reservations_per_host_max
        if places[event.host] >= most_here:
            self._refuse(event.command, "full", f"{most_here} reservations from your address")
        elif not self._has_place(event, places):
            self._refuse(event.command, "full", "no room for another reservation")
        else:
            until = now + limits.RELAY_RESERVATION_S
            self._reservations[event.peer] = _Reservation(event.host, until)
            lifetime_s = int(limits.RELAY_RESERVATION_S)
            answer = Reserved(lifetime_s, load=self._load(now), circuits=self._share())
            self._effects.append(events.Answered(event.command, answer))

    def _has_place(self, event: events.ReserveAsked, places: Counter[str]) -> bool:
        """Whether there is a place, which may be one that the most crowded address loses.

        Of that the newest goes: the others are told to many peers by now.
        """
        if places.total() < self._quota.reservations_max:
            return True
        crowded = max(places, key=lambda host: places[host], default="")
        if event.peer in self._reservations or places[crowded] <= places[event.host] + 1:
            return False
        newest = next(
            peer for peer, each in reversed(self._reservations.items()) if each.host == crowded
        )
        del self._reservations[newest]
        why = f"{places[crowded]} reservations from your address, others had none left"
        self._effects.append(events.PlaceLost(newest, why))
        return True

    def _load(self, now: float) -> int:
        """Return how much is taken, in percent: circuits, places or bytes, whichever is more."""
        if self._volume.worthwhile_in_s(now) > 0:
            return 100
        taken = (
            len(self._circuits) / max(1, self._quota.circuits_max),
            len(self._reservations) / max(1, self._quota.reservations_max),
        )
        return min(100, math.floor(100 * max(taken)))

    def _share(self) -> int:
        """Return how many circuits each peer has, if all that may want some have equally many."""
        peers = set(self._reservations)
        for each in self._circuits.values():
            peers.update(each.peers)
        even = 2 * self._quota.circuits_max // max(1, len(peers))
        least = max(limits.RELAY_CIRCUITS_PER_PEER_MIN, even)
        return min(least, self._quota.circuits_per_peer_max)

    def _on_peer_gone(self, peer: PeerId) -> None:
        self._reservations.pop(peer, None)
        for circuit in list(self._circuits.values()):
            if circuit.state == "offered" and peer in circuit.peers:
                self._close(circuit.number, "the target has just left", code="absent")

    # --- setting up -----------------------------------------------------------------------

    def _on_connect(self, event: events.ConnectAsked, now: float) -> None:
        account = self._accounts.of(event.source, now)
        if account is None or not self._asks.has(0, now):
            self._refuse(event.command, "rate", "too many peers ask at once", 1.0)
            return
        if not account.asks.try_take(1, now):
            self._refuse(event.command, "rate", "too many questions", account.asks.free_at() - now)
            return
        self._asks.spend(1, now)
        if event.target not in self._reservations or event.target == event.source:
            self._refuse(event.command, "absent", "the target has no reservation here")
            return
        if self._refuse_for_quota(event, account, now):
            return
        self._offer(event, account, now)

    def _refuse_for_quota(self, event: events.ConnectAsked, account: Account, now: float) -> bool:
        """Answer if there is no room, or no bytes are left; return whether it was answered."""
        degrees = Counter(peer for each in self._circuits.values() for peer in each.peers)
        n_source, n_target = degrees[event.source], degrees[event.target]
        most = self._quota.circuits_per_peer_max
        if max(n_source, n_target) >= most:
            whose = "you have" if n_source >= n_target else "the target has"
            self._refuse(event.command, "full", f"{whose} {most} circuits here")
        elif not self._may_get_room(self._ends_of(event), now):
            self._refuse(event.command, "full", "no room for another circuit")
        elif (wait_s := account.volume.worthwhile_in_s(now)) > 0:
            self._refuse(event.command, "quota", "your share of bytes is used up", wait_s)
        elif (wait_s := self._volume.worthwhile_in_s(now)) > 0:
            self._refuse(event.command, "quota", "the relay has used up its bytes", wait_s)
        else:
            return False
        return True

    def _ends_of(self, event: events.ConnectAsked) -> Ends:
        target_host = self._reservations[event.target].host
        return End(event.source, event.host), End(event.target, target_host)

    def _may_get_room(self, ends: Ends, now: float) -> bool:
        """Whether a new circuit will have a place, as far as can be said before it is open."""
        n_more = len(self._circuits) - self._quota.circuits_max
        if n_more < 0:
            return True
        return n_more < limits.RELAY_OVERBOOKED_MAX and bool(self.giving_way(ends, now))

    def giving_way(self, ends: Ends, now: float, *, number: int = 0) -> list[int]:
        """Return which circuits give way to a new one, first the one that does.

        ``number``: its own, if it is under way.
        """
        circuits = [each for each in self._circuits.values() if not each.is_held(now)]
        spare = [each for each in circuits if each.is_spare(now)]
        if spare:
            return [each.number for each in sorted(spare, key=lambda each: each.used_at)]
        worths = Worths(each.ends for each in self._circuits.values() if each.number != number)
        gains = {
            each: worths.of_new(ends, each.ends) - worths.of_old(each.ends, ends)
            for each in circuits
        }
        less = [each for each in circuits if gains[each] > _NO_GAIN]
        quiet_at = now - limits.RELAY_QUIET_S
        less.sort(key=lambda each: (each.moved_at > quiet_at, -gains[each], each.moved_at))
        return [each.number for each in less]

    def _make_room(self, circuit: _Circuit, now: float) -> bool:
        """Close another circuit where there must be one less; return whether that was possible."""
        n_open = sum(each.state == "open" for each in self._circuits.values())
        if n_open < self._quota.circuits_max:
            return True
        for number in self.giving_way(circuit.ends, now, number=circuit.number)[:1]:
            self._close(number, "its place is for peers that have fewer")
            return True
        return False

    def _offer(self, event: events.ConnectAsked, account: Account, now: float) -> None:
        self._n_circuits += 1
        number = self._n_circuits
        ends = self._ends_of(event)
        circuit = _Circuit(number, event.command, ends, Flow(number, account), now, now, now)
        self._circuits[number] = circuit
        for side in (0, 1):
            self._tokens[self._token(number, side)] = (circuit, side)
        token = self._token(number, 1)
        self._effects.append(events.Offer(number, event.source, event.target, token))

    def _on_offer_answered(self, event: events.OfferAnswered) -> None:
        circuit = self._circuits.get(event.circuit)
        if circuit is None or circuit.state != "offered":
            return
        if event.declined_because is not None:
            self._close(circuit.number, event.declined_because, code="declined")
            return
        circuit.state = "waiting"
        rates = (self._quota.bytes_per_s, self._quota.peer_bytes_per_s)
        slowest = min((rate for rate in rates if rate is not None), default=0)
        granted = Granted(self._token(circuit.number, 0), int(slowest), as_tls=True)
        self._effects.append(events.Answered(circuit.command, granted))

    def _on_attached(self, event: events.Attached, now: float) -> None:
        circuit, side = self._tokens.pop(event.token, (None, 0))
        if circuit is not None and event.peer not in (None, circuit.peers[side]):
            circuit = None  # it is no secret of this peer's, but the token is lost
        if circuit is None:
            self._effects.append(events.LegRefused(event.leg, LegAnswer.UNKNOWN))
            return
        circuit.legs[side] = event.leg
        one, other = circuit.legs
        # The target may be faster than the answer to its own acceptance.
        if one is not None and other is not None:
            if not self._make_room(circuit, now):
                self._close(circuit.number, "no room for another circuit any more", code="full")
                return
            circuit.state = "open"
            circuit.began_at = circuit.moved_at = circuit.used_at = now
            self._effects.append(events.Joined(circuit.number, (one, other)))

    # --- ending ---------------------------------------------------------------------------

    def _end_in_time(self, circuit: _Circuit, now: float) -> None:
        if circuit.state == "offered":
            self._close(circuit.number, "the target did not answer")
        elif circuit.state == "waiting":
            self._close(circuit.number, "the other side did not come", leg_answer=LegAnswer.ALONE)
        elif now >= circuit.moved_at + limits.RELAY_IDLE_S:
            self._close(circuit.number, f"nothing came for {limits.RELAY_IDLE_S:g} s")
        else:
            self._close(circuit.number, f"it is {limits.RELAY_CIRCUIT_S / 3600:g} hours old")

    def _on_leg_gone(self, leg: int) -> None:
        for circuit in self._circuits.values():
            if leg in circuit.legs:
                self._close(circuit.number, "one side has closed it")
                return

    def _close(
        self,
        number: int,
        why: str,
        *,
        code: RefusalCode = "setup",
        leg_answer: LegAnswer = LegAnswer.CLOSED,
    ) -> None:
        """End a circuit and tell the side that waits for it; no-op for one that is over.

        Args:
            code: what the source is told if it has no answer yet.
            leg_answer: what a leg is told that waits for the other.
        """
        circuit = self._circuits.pop(number, None)
        if circuit is None:
            return
        for side in (0, 1):
            self._tokens.pop(self._token(number, side), None)
        self._shaper.drop(circuit.flow)
        if circuit.state == "open":
            self._effects.append(events.CircuitClosed(number, why))
            return
        if circuit.state == "offered":
            self._refuse(circuit.command, code, why)
        for leg in _present(circuit.legs):
            self._effects.append(events.LegRefused(leg, leg_answer))

    def _refuse(self, command: int, code: RefusalCode, reason: str, retry_s: float = 0.0) -> None:
        self._refused[code] = self._refused.get(code, 0) + 1
        retry = min(_RETRY_S_MAX, math.ceil(max(0.0, retry_s)))
        refusal = Refusal(code, reason[: limits.REASON_BYTES_MAX], retry)
        self._effects.append(events.Answered(command, refusal))

    def _token(self, number: int, side: int) -> bytes:
        """Return the token of one side of a circuit: a peer that knows others cannot guess it."""
        name = number.to_bytes(8, "big") + bytes([side])
        return hashlib.sha256(b"swarmnode/relay token\0" + self._secret + name).digest()[
            :TOKEN_BYTES
        ]


def _present(legs: Iterable[int | None]) -> Iterable[int]:
    return (leg for leg in legs if leg is not None)
