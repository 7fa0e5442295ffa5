"""Signals as a service: sending them over common neighbours.

``signal/1`` takes what neighbours want carried, ``signal-in/1`` what carriers bring. A room wanting
signals of a kind registers for it; the answer, if there is one, is a signal of its own, for which
``via`` names the carrier that reaches the author. Two nodes agree so on a way around their NATs
(``ways.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import InvariantViolation, Refused, SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat.signals import Postbox, SignalStatistics, sign_signal
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.connect.signal import NONCE_BYTES, Carry, Deliver, Taken
from swarmnode.wire.packing import decode_record, encode_record

CARRY_SERVICE = "signal/1"
DELIVER_SERVICE = "signal-in/1"
_log = get_logger("swarmnode.daemon.transport")


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that has been checked.

    Attributes:
        via: the neighbour that brought it; an answer goes the same way.
        observed: where it says that it sees the author, HOST:PORT, or "".
    """

    author: PeerId
    payload: bytes
    via: PeerId
    observed: str


OnSignal = Callable[[Received], None]


class Signals:
    """Sends, carries and takes signals.

    ``sessions`` are those with neighbours, ``address_of`` gives where the bytes of one come from
    ("" if its way has no address).
    """

    def __init__(
        self,
        services: Services,
        identity: Identity,
        env: Env,
        *,
        sessions: Mapping[PeerId, Session],
        address_of: Callable[[Session], str],
    ) -> None:
        self._identity = identity
        self._env = env
        self._sessions = sessions
        self._address_of = address_of
        self._postbox = Postbox(identity.peer_id)
        self._handlers: dict[str, OnSignal] = {}
        services.add_request(CARRY_SERVICE, self._carry)
        services.add_answer(DELIVER_SERVICE, self._take)

    def register(self, kind: str, on_signal: OnSignal) -> None:
        """Hand signals of this kind to ``on_signal``, which must neither wait nor raise."""
        if kind in self._handlers:
            raise InvariantViolation(f"signals of kind {kind!r} are registered twice")
        self._handlers[kind] = on_signal

    async def send(self, target: PeerId, kind: str, payload: bytes, *, via: PeerId) -> str:
        """Send a signal through a neighbour; return where the carrier sees the target, or "".

        Args:
            payload: at most SIGNAL_BYTES_MAX bytes.
            via: a peer that we have a session with.

        Raises:
            Refused, Overloaded: the carrier or the target says no.
            DeadlineExceeded, TransportError, MalformedMessage: it did not get there.
        """
        if via not in self._sessions:
            raise Refused(f"no session with {via.short}, which should carry a signal")
        nonce = self._env.token(NONCE_BYTES)
        unix_s = self._env.wall()
        signed = sign_signal(self._identity, target, kind, payload, unix_s=unix_s, nonce=nonce)
        answer = await self._sessions[via].request(
            CARRY_SERVICE,
            encode_record(Carry(target, signed)),
            deadline_s=limits.SIGNAL_DEADLINE_S,
        )
        return decode_record(answer, Taken).observed

    def statistics(self) -> SignalStatistics:
        """Return counters."""
        return self._postbox.statistics()

    async def _carry(self, peer: PeerId, payload: bytes) -> bytes:
        carry = decode_record(payload, Carry)
        target = PeerId(carry.target)
        self._postbox.carry(peer, target, carry.signal, self._env.monotonic())
        if target not in self._sessions or peer not in self._sessions:
            raise Refused(f"no session with {target.short} here")
        author, session = self._sessions[peer], self._sessions[target]
        deliver = Deliver(self._address_of(author), carry.signal)
        try:
            answer = await session.request(
                DELIVER_SERVICE, encode_record(deliver), deadline_s=limits.SIGNAL_DEADLINE_S
            )
            decode_record(answer, Taken)
        except SwarmNodeError as error:
            raise Refused(f"{target.short} did not take it: {error}") from error
        return encode_record(Taken(self._address_of(session)))

    def _take(self, peer: PeerId, payload: bytes) -> bytes:
        deliver = decode_record(payload, Deliver)
        now, unix_s = self._env.monotonic(), self._env.wall()
        taken = self._postbox.take(peer, deliver.signal, now=now, unix_s=unix_s)
        if taken.kind not in self._handlers:
            raise Refused(f"nothing here takes signals of kind {taken.kind!r}")
        _log.debug("signal", kind=taken.kind, author=taken.author.short, via=peer.short)
        received = Received(taken.author, taken.payload, peer, deliver.observed)
        self._handlers[taken.kind](received)
        return encode_record(Taken())
