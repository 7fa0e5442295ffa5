"""Metrics of other members, asked for over the swarm's own sessions.

A volunteer behind a NAT is seen by Prometheus without an open port: an operator's Prometheus asks
their own node for ``/peers/ID/metrics``, and that node asks the peer, ``metrics/1``.

One question to a peer at a time; all callers within a second or so share the answer, as long as
the way that it came by is open; a peer that is silent costs its own page and no other.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.history import InThread
from swarmnode.errors import (
    ChannelBroken,
    DeadlineExceeded,
    LimitExceeded,
    ProtocolError,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.names import default_name
from swarmnode.net.session import Session
from swarmnode.wire.metrics import MetricsRequest, MetricsSnapshot
from swarmnode.wire.packing import decode_record, encode_record

if TYPE_CHECKING:
    from swarmnode.daemon.membership.swarm import SwarmPart
    from swarmnode.env import Env
    from swarmnode.telemetry.readings import Readings
    from swarmnode.telemetry.remote import PeerWords

METRICS_SERVICE = "metrics/1"


class Desk(Protocol):
    """Where the metrics of this node are read; see ``readings.py``."""

    async def look_at_machine(self, in_thread: InThread) -> None:
        """Bring what the machine says up to date."""

    def read(self) -> Readings:
        """Return everything as it is now."""
        ...


def share_metrics(
    desk: Callable[[], Desk], part: SwarmPart, self_id: PeerId, env: Env
) -> PeerMetrics:
    """Answer members of our swarm, and return what asks them; ``desk`` is asked for when needed."""

    async def read() -> Readings:
        await desk().look_at_machine(env.in_thread)
        return desk().read()

    services = part.members.services
    services.add_request(METRICS_SERVICE, MetricsService(read).answer)
    members = part.members
    return PeerMetrics(
        part.manifest.name,
        services.name(METRICS_SERVICE),
        members.connect,
        lambda: {self_id, *members.detector.members(), *members.sessions},
        lambda peer: part.peer_report(peer).name or default_name(peer),
    )


class MetricsService:
    """Answers ``metrics/1``; ``read`` returns what there is to say now."""

    def __init__(self, read: Callable[[], Awaitable[Readings]]) -> None:
        self._read = read
        self._answer = b""
        self._answered_at = -math.inf
        self._lock = trio.Lock()

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:  # noqa: ARG002
        """Return an encoded snapshot. Raises MalformedMessage."""
        decode_record(payload, MetricsRequest)
        from swarmnode.telemetry.remote import pack  # with the catalogue, once a member asks

        async with self._lock:
            if trio.current_time() >= self._answered_at + limits.METRICS_ANSWER_KEEP_S:
                self._answer = encode_record(pack(await self._read()))
                self._answered_at = trio.current_time()
        return self._answer


@dataclass(frozen=True)
class _Said:
    """The readings of a peer."""

    readings: Readings
    session: Session  # that it was asked by

    @property
    def is_open(self) -> bool:
        """Whether it may be told again: the peer may have died since."""
        return not (self.session.is_closed or self.session.is_suspended)

    def result(self) -> Readings:
        """Return them."""
        return self.readings


@dataclass(frozen=True)
class _Silent:
    """Why a peer said nothing."""

    error: SwarmNodeError
    is_open: ClassVar[bool] = True

    def result(self) -> Readings:
        """Raise the error, as one of its own for each caller."""
        if isinstance(self.error, ProtocolError | Refused):
            raise Refused(str(self.error))
        raise ChannelBroken(str(self.error))


@dataclass
class _Asked:
    """What came of asking a peer the last time; ``at`` is -inf as long as nothing is known."""

    words: PeerWords
    at: float = -math.inf
    answer: _Said | _Silent = _Silent(SwarmNodeError())
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_fresh(self) -> bool:
        """Whether it may be told again."""
        is_old = trio.current_time() >= self.at + limits.METRICS_PEER_KEEP_S
        return not is_old and self.answer.is_open


class PeerMetrics:
    """Asks members for their metrics.

    Args:
        swarm: name of the swarm that we have in common.
        service: the name of ``metrics/1`` in it.
        connect: returns a session with a member.
        members: all members of the swarm, this node too.
        name_of: what a member is called.
    """

    def __init__(
        self,
        swarm: str,
        service: str,
        connect: Callable[[PeerId], Awaitable[Session]],
        members: Callable[[], Collection[PeerId]],
        name_of: Callable[[PeerId], str],
    ) -> None:
        self._name_of = name_of
        self._swarm = swarm
        self._service = service
        self._connect = connect
        self._members = members
        self._asked: dict[PeerId, _Asked] = {}
        self._limit = trio.CapacityLimiter(limits.METRICS_FETCHES_MAX)

    async def fetch(self, peer: PeerId, deadline_s: float) -> Readings:
        """Return the readings of a member, ``METRICS_PEER_KEEP_S`` old at most.

        Raises:
            DeadlineExceeded: it did not answer in ``deadline_s``.
            ChannelBroken: it cannot be reached.
            Refused: it does not answer this, or its answer is none.
        """
        asked = self._record_of(peer)
        with trio.move_on_after(deadline_s):
            async with asked.lock:
                if not asked.is_fresh:
                    async with self._limit:
                        await self._ask(peer, asked)
            return asked.answer.result()
        raise DeadlineExceeded(f"metrics of {peer.short}", deadline_s)

    def _record_of(self, peer: PeerId) -> _Asked:
        """Return what is kept of a peer; peers that are no members any more are forgotten."""
        if peer not in self._asked:
            from swarmnode.telemetry.remote import PeerWords  # only where Prometheus asks

            for gone in self._asked.keys() - set(self._members()):
                del self._asked[gone]
            self._asked[peer] = _Asked(
                PeerWords(peer.short, self._swarm, partial(self._name_of, peer))
            )
        return self._asked[peer]

    async def _ask(self, peer: PeerId, asked: _Asked) -> None:
        asked.at = -math.inf  # nothing is known if this is cancelled
        try:
            session = await self._connect(peer)
            answer = await session.request(
                self._service,
                encode_record(MetricsRequest()),
                deadline_s=limits.METRICS_PEER_DEADLINE_S,
            )
            if len(answer) > limits.METRICS_SNAPSHOT_BYTES_MAX:
                raise LimitExceeded(
                    f"a snapshot of metrics has {len(answer)} bytes, at most"
                    f" {limits.METRICS_SNAPSHOT_BYTES_MAX} are read"
                )
            shorts = {member.short for member in self._members()}
            snapshot = decode_record(answer, MetricsSnapshot)
            asked.answer = _Said(asked.words.unpack(snapshot, shorts), session)
        except SwarmNodeError as error:
            asked.answer = _Silent(error)
        asked.at = trio.current_time()
