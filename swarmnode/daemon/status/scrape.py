"""What Prometheus asks this node for: its own metrics, those of its peers, and a list of these.

=======================  ==========================================================================
GET /metrics             this node, and the swarm as it sees it
GET /peers/ID/metrics    that member, asked over the swarm; 504 if it does not answer in time, so
                         that Prometheus sees it down
GET /sd                  one target for each member, in Prometheus' format for ``http_sd_configs``
GET /                    a page with links
GET /-/healthy, /-/ready  for orchestrators, see below
=======================  ==========================================================================

Every target is this node: no address that a peer says of itself reaches Prometheus, which would
otherwise ask whatever host a stranger names.

What an orchestrator asks: whether the process answers, and whether it does its work.

==================  ========================================================================
GET /-/healthy      200 as long as the node answers: paused, alone or not yet a member
GET /-/ready        200 for a member that trains, or keeps (serves) without a worker; else 503
==================  ========================================================================

Each answers with one line of text. A node that is not ready is not broken, and should not be
restarted for that: it waits for peers, or its owner's rules hold it.

Metrics and targets as files too, for setups where Prometheus does not ask this node over HTTP.

``metrics_textfile`` is for the textfile collector of node_exporter, ``metrics_file_sd`` for
``file_sd_configs``. Each is replaced as a whole, so that a reader never sees half of one.

Metrics of other members are asked for over the swarm's own sessions: a volunteer behind a NAT is
seen by Prometheus without an open port. An operator's Prometheus asks their own node for
``/peers/ID/metrics``, and that node asks the peer, ``metrics/1``. One question to a peer at a time;
all callers within a second or so share the answer, as long as the way that it came by is open; a
peer that is silent costs its own page and no other.

Most nodes are asked by neither Prometheus nor a member: this is imported with the first question.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import trio

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.status.phases import Member
from swarmnode.daemon.status.view import METRICS_SERVICE, NodeView
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    ConfigError,
    DeadlineExceeded,
    LimitExceeded,
    ProtocolError,
    Refused,
    StorageError,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.names import default_name
from swarmnode.net.session import Session
from swarmnode.net.web.routes import Handler, HttpError, Request, Response, json_response
from swarmnode.protocol.membership.swim_events import MemberState
from swarmnode.store.files import write_atomic
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.metrics import MetricsRequest, MetricsSnapshot
from swarmnode.wire.packing import decode_record, encode_record

if TYPE_CHECKING:
    from swarmnode.daemon.status.readings import ReadingsDesk
    from swarmnode.telemetry.readings import Readings
    from swarmnode.telemetry.remote import PeerWords

_TIMEOUT_HEADER = "x-prometheus-scrape-timeout-seconds"
_TEXT = "text/plain; charset=utf-8"
_AT_WORK = ("training", "serving")
_READABLE = 0o644  # by Prometheus and node_exporter, which are other users

_log = get_logger("swarmnode.daemon.status")


class Scraped(Protocol):
    """A node that has metrics; ``metrics_listener`` is where on TCP, empty: nowhere."""

    env: Env
    view: NodeView
    metrics_listener: str

    @property
    def readings(self) -> ReadingsDesk:
        """What reads them."""


class Metrics:
    """Answers who asks a node for metrics.

    Attributes:
        pages: what answers GET, by the path of its route.
    """

    def __init__(self, node: Scraped) -> None:
        self._node = node
        self._service = MetricsService(self._read)
        self.pages: Mapping[str, Handler] = {
            "/metrics": self._own,
            "/peers/{peer}/metrics": self._of_peer,
            "/sd": self._targets,
            "/": self._landing,
            "/-/healthy": self._healthy,
            "/-/ready": self._ready,
        }

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer a member, ``metrics/1``. Raises MalformedMessage."""
        return await self._service.answer(peer, payload)

    async def keep_files(self, config: NodeConfig) -> None:
        """Write the files of these settings every METRICS_FILE_S until cancelled."""
        from swarmnode.telemetry.exposition import render  # 3 MB, for nodes that write files

        node, textfile, file_sd = self._node, config.metrics_textfile, config.metrics_file_sd
        writer = _Writer(node)
        while True:
            if textfile:
                await node.readings.refresh(node.env.in_thread)
                await writer.write(Path(textfile), render(node.readings.read())[1])
            if file_sd:
                await writer.write(Path(file_sd), msgspec.json.encode(sd_targets(node)) + b"\n")
            await trio.sleep(limits.METRICS_FILE_S)

    async def _read(self) -> Readings:
        await self._node.readings.look_at_machine(self._node.env.in_thread)
        return self._node.readings.read()

    @cached_property
    def _peers(self) -> PeerMetrics:
        """What asks members. Raises NotRunning while we are none."""
        member = self._node.view.member()
        part, members = member.part, member.part.members
        return PeerMetrics(
            part.manifest.name,
            members.services.name(METRICS_SERVICE),
            members.connect,
            lambda: {member.self_id, *members.detector.members(), *members.sessions},
            lambda peer: part.peer_report(peer).name or default_name(peer),
        )

    # --- pages --------------------------------------------------------------------------------

    async def _own(self, request: Request) -> Response:
        await self._node.readings.refresh(self._node.env.in_thread)
        return _page(self._node.readings.read(), request)

    async def _of_peer(self, request: Request) -> Response:
        peer = _known_peer(self._node, request.parameter)
        if peer == self._node.view.node.self_id:
            return await self._own(request)
        try:
            found = await self._peers.fetch(peer, _deadline_s(request))
        except Refused as error:
            raise HttpError(502, f"{peer.short}: {error}") from error
        except SwarmNodeError as error:
            raise HttpError(504, f"{peer.short}: {error}") from error
        return _page(found, request)

    async def _targets(self, request: Request) -> Response:  # noqa: ARG002
        return json_response(sd_targets(self._node))

    async def _landing(self, request: Request) -> Response:  # noqa: ARG002
        return Response(
            b'<a href="/metrics">metrics of this node</a>, '
            b'<a href="/sd">targets for all of its swarm</a>\n',
            "text/html; charset=utf-8",
        )

    async def _healthy(self, request: Request) -> Response:  # noqa: ARG002
        return _line("healthy", 200)

    async def _ready(self, request: Request) -> Response:  # noqa: ARG002
        why_not = why_not_ready(self._node.view)
        state, _ = self._node.view.state()
        return _line(f"not ready: {why_not}", 503) if why_not else _line(f"ready: {state}", 200)


def sd_targets(node: Scraped) -> list[dict[str, Any]]:
    """Return all members that have not left as targets, those first that we know best.

    Without a listener for metrics there is nothing to point Prometheus at, and no target.
    """
    if not node.metrics_listener:
        return []
    peers = [node.view.node.self_id, *_members(node.view)][: limits.METRICS_TARGETS_MAX]
    shorts = Counter(peer.short for peer in peers)
    return [
        {
            "targets": [node.metrics_listener],
            "labels": {
                "__metrics_path__": f"/peers/{peer}/metrics",
                # Two that begin alike are no accident: neither may pass for the other.
                "instance": peer.short if shorts[peer.short] == 1 else str(peer),
                "swarm": node.view.node.swarm,
            },
        }
        for peer in peers
    ]


def _members(view: NodeView) -> list[PeerId]:
    """Return the others: those with a session first, then the live, then the dead."""
    match view.membership:
        case Member(part=part):
            return _ranked(part, view.node.self_id)
    return []


def _ranked(part: SwarmPart, self_id: PeerId) -> list[PeerId]:
    members = part.members
    states = members.detector.members()
    known = {peer for peer in {*states, *members.sessions} if peer != self_id}

    def rank(peer: PeerId) -> tuple[bool, bool, PeerId]:
        is_dead = members.detector.state_of(peer) is MemberState.DEAD
        return peer not in members.sessions, is_dead, peer

    left = {peer for peer in known if members.detector.state_of(peer) is MemberState.LEFT}
    return sorted(known - left, key=rank)


def _known_peer(node: Scraped, text: str) -> PeerId:
    try:
        peer = PeerId.parse(text)
    except ConfigError as error:
        raise HttpError(404, f"there is no such peer: {error}") from error
    if peer != node.view.node.self_id and peer not in _members(node.view):
        raise HttpError(404, f"{peer.short} is no member of the swarm, as far as is known here")
    return peer


def _deadline_s(request: Request) -> float:
    """Return how long a peer may take: less than Prometheus waits, as it says."""
    try:
        waits_s = float(request.headers.get(_TIMEOUT_HEADER, ""))
    except ValueError:
        waits_s = math.inf
    share_s = limits.METRICS_SCRAPE_TIME_SHARE * waits_s
    return min(share_s, limits.METRICS_PEER_DEADLINE_S) if share_s > 0 else 0.0


def _page(readings: Readings, request: Request) -> Response:
    from swarmnode.telemetry.exposition import render  # 3 MB, for nodes that are scraped

    content_type, body = render(readings, request.headers.get("accept", ""))
    return Response(body, content_type)


def why_not_ready(view: NodeView) -> str:
    """Return in a few words what is missing; "" for a member at work."""
    state, reason = view.state()
    missing = f"{state} ({reason})" if reason else state
    match view.membership:
        case Member():
            return "" if state in _AT_WORK else missing
    return f"no member of the swarm yet, {missing}"


def _line(text: str, status: int) -> Response:
    line = "".join(character if character.isprintable() else " " for character in text)
    return Response(f"{line}\n".encode(), _TEXT, status)


class _Writer:
    """Writes files; of failures in a row the log has the first."""

    def __init__(self, node: Scraped) -> None:
        self._node = node
        self._failed: set[Path] = set()

    async def write(self, path: Path, data: bytes) -> None:
        try:
            await self._node.env.in_thread(partial(write_atomic, path, data, mode=_READABLE))
        except StorageError as error:
            if path not in self._failed:
                _log.warning("metrics are not written", path=str(path), why=str(error))
            self._failed.add(path)
        else:
            self._failed.discard(path)


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
