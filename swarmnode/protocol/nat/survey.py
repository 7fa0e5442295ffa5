"""Finds out what our NAT does: which mapping it makes, which datagrams it lets in.

RFC 5780 needs a server with two addresses. Here several peers take its place, each with one
address and two ports, and a peer that was never sent anything sends the probe of the filter.

Two sockets, so that the second one's filter has seen no peer yet:

1. mapping, socket 0: every server is asked where we come from, one of them at both ports;
2. filtering, socket 1: one server is asked to answer from its other port, another one (over a
   session with it) to send an indication; meanwhile each socket sends to the other's mapping,
   which shows hairpinning.

A server may lie. One liar among three changes nothing: a mapping counts as independent of the
server as soon as two hosts have seen the same one, and our public host is the one that most of
them name. Nothing is sent to an address that only one of them names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.protocol.nat.behaviour import Dependence, NatBehaviour
from swarmnode.protocol.nat.stun import (
    TRANSACTION_BYTES,
    Answer,
    Endpoint,
    Indication,
    Question,
    decode_stun,
    encode_indication,
    encode_question,
)

MAPPING_SOCKET, FILTER_SOCKET = 0, 1
# One may be down, and a probe is not repeated.
_PROBES_MAX = 2


# --- events and effects -----------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A datagram came to one of the two sockets."""

    socket: int
    data: bytes
    source: Endpoint


@dataclass(frozen=True)
class Send:
    """Send a datagram from one of the two sockets."""

    socket: int
    data: bytes
    target: Endpoint


@dataclass(frozen=True)
class AskForProbe:
    """Let ``server`` (an index) send an indication to our host, at this port."""

    server: int
    port: int
    transaction: bytes


Effect = Send | AskForProbe


@dataclass
class _Inquiry:
    """A datagram that is sent again until an answer comes, or its time is over."""

    socket: int
    data: bytes
    target: Endpoint
    retry_s: float
    next_at: float
    until: float


@dataclass
class _Findings:
    """What is known so far."""

    seen: dict[Endpoint, Endpoint] = field(default_factory=dict)  # by server and port
    came_from_other_port: bool | None = None  # None: not asked for
    came_from_other_host: bool | None = None
    hairpins: bool | None = None


class NatSurvey:
    """The core; over when ``next_deadline()`` is None.

    Args:
        servers: of different hosts, STUN_SERVERS_MAX at most; the first is asked most.
        local: the endpoints of our two sockets as we know them.
        token: gives so many random bytes.
        can_probe: whether AskForProbe can be carried out.
    """

    def __init__(
        self,
        servers: Sequence[Endpoint],
        *,
        local: tuple[Endpoint, Endpoint],
        token: Callable[[int], bytes],
        can_probe: bool,
        now: float,
    ) -> None:
        self._servers = tuple(servers[: limits.STUN_SERVERS_MAX])
        self._local = local
        self._token = token
        self._can_probe = can_probe
        self._inquiries: dict[bytes, _Inquiry] = {}
        self._filter_question = b""
        self._other_port_question = b""
        self._probe = b""
        self._hairpin = b""
        self._other_ports: dict[Endpoint, int] = {}  # of a server; 0: none
        self._findings = _Findings()
        self._effects: list[Effect] = []
        self._over_at: float | None = None  # set when filtering begins
        for server in self._servers:
            self._ask_mapping(server, now)

    def handle(self, event: Received, now: float) -> None:
        """Take in a datagram; what is no answer to us is ignored."""
        try:
            message = decode_stun(event.data)
        except MalformedMessage:
            return
        inquiry = self._inquiries.get(message.transaction)
        if isinstance(message, Indication):
            self._take_indication(message)
        elif isinstance(message, Answer) and inquiry and event.socket == inquiry.socket:
            self._take_answer(message, inquiry, event.source, now)
        self._advance(now)

    def poll_effects(self) -> list[Effect]:
        """Return what is to be sent, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        """Return when something is to be sent again or given up; None: it is over."""
        times = [each.next_at for each in self._inquiries.values()]
        if self._over_at is not None:
            times.append(self._over_at)
        return min(times, default=None)

    def handle_deadline(self, now: float) -> None:
        """Send again, give up, go on to the second part."""
        for transaction, inquiry in list(self._inquiries.items()):
            if now >= inquiry.until:
                del self._inquiries[transaction]
            elif now >= inquiry.next_at:
                self._effects.append(Send(inquiry.socket, inquiry.data, inquiry.target))
                inquiry.retry_s *= 2
                inquiry.next_at = min(now + inquiry.retry_s, inquiry.until)
        if self._over_at is not None and now >= self._over_at:
            self._over_at = None  # what was asked last has ended just above
        self._advance(now)

    def statistics(self) -> NatBehaviour:
        """Return what is known so far."""
        found = self._findings
        mapped = [each for each in found.seen.values() if each.host == self._public_host()]
        return NatBehaviour(
            answers=len({server.host for server in found.seen}),
            is_translated=self._local[0] not in mapped if mapped else None,
            mapping=_mapping(found.seen),
            filtering=_filtering(found),
            hairpins=found.hairpins,
            public=max(mapped, key=mapped.count) if mapped else None,
        )

    def _public_host(self) -> str:
        """Return the host that most servers name; "" before the first answer."""
        named = {(server.host, mapped.host) for server, mapped in self._findings.seen.items()}
        hosts = [host for _, host in sorted(named)]
        return max(hosts, key=hosts.count, default="")

    # --- asking -----------------------------------------------------------------------------

    def _ask_mapping(self, target: Endpoint, now: float) -> None:
        transaction = self._token(TRANSACTION_BYTES)
        question = encode_question(Question(transaction))
        self._inquire(transaction, MAPPING_SOCKET, question, target, now)

    def _inquire(
        self, transaction: bytes, socket: int, data: bytes, target: Endpoint, now: float
    ) -> None:
        self._effects.append(Send(socket, data, target))
        self._inquiries[transaction] = _Inquiry(
            socket,
            data,
            target,
            retry_s=limits.STUN_RETRY_S,
            next_at=now + limits.STUN_RETRY_S,
            until=now + limits.STUN_ASK_S,
        )

    def _advance(self, now: float) -> None:
        if self._inquiries or self._filter_question or not self._findings.seen:
            return
        first = next(
            server
            for server, mapped in self._findings.seen.items()
            if mapped.host == self._public_host()
        )
        self._filter_question = self._token(TRANSACTION_BYTES)
        question = encode_question(Question(self._filter_question))
        self._inquire(self._filter_question, FILTER_SOCKET, question, first, now)

    # --- answers ----------------------------------------------------------------------------

    def _take_answer(self, answer: Answer, inquiry: _Inquiry, source: Endpoint, now: float) -> None:
        if answer.transaction == self._other_port_question:
            # Our plain question to the same server is through: only its port differs.
            if source.host == inquiry.target.host and source.port != inquiry.target.port:
                self._findings.came_from_other_port = True
                del self._inquiries[answer.transaction]
        elif source != inquiry.target:
            return
        elif answer.transaction == self._filter_question:
            del self._inquiries[answer.transaction]
            self._begin_filtering(inquiry.target, answer, now)
        else:
            del self._inquiries[answer.transaction]
            self._note_mapping(answer, inquiry.target, now)

    def _note_mapping(self, answer: Answer, target: Endpoint, now: float) -> None:
        is_first = not self._findings.seen
        self._findings.seen[target] = answer.mapped
        self._other_ports[target] = answer.other_port
        if is_first and answer.other_port:
            self._ask_mapping(Endpoint(target.host, answer.other_port), now)

    def _begin_filtering(self, server: Endpoint, answer: Answer, now: float) -> None:
        self._over_at = now + limits.STUN_ASK_S
        if self._other_ports.get(server):
            self._findings.came_from_other_port = False
            self._other_port_question = self._token(TRANSACTION_BYTES)
            data = encode_question(Question(self._other_port_question, change_port=True))
            self._inquire(self._other_port_question, FILTER_SOCKET, data, server, now)
        others = [
            number
            for number, other in enumerate(self._servers)
            if other.host != server.host
            and other in self._findings.seen
            and self._findings.seen[other].host == answer.mapped.host
        ]
        if others and self._can_probe:
            self._findings.came_from_other_host = False
            self._probe = self._token(TRANSACTION_BYTES)
            self._effects += [
                AskForProbe(number, answer.mapped.port, self._probe)
                for number in others[:_PROBES_MAX]
            ]
        if answer.mapped != self._local[FILTER_SOCKET] and others:
            self._begin_hairpin(answer.mapped, now)

    def _begin_hairpin(self, second: Endpoint, now: float) -> None:
        first = self.statistics().public
        if first is None or first.host != second.host:
            return  # one of them lied: that may be any machine's address
        self._findings.hairpins = False
        self._hairpin = self._token(TRANSACTION_BYTES)
        data = encode_indication(Indication(self._hairpin))
        # Both ways: each opens the filter for the other.
        self._effects.append(Send(MAPPING_SOCKET, data, second))
        self._inquire(self._hairpin, FILTER_SOCKET, data, first, now)

    def _take_indication(self, indication: Indication) -> None:
        if indication.transaction == self._probe:
            self._findings.came_from_other_host = True
        elif indication.transaction == self._hairpin:
            self._findings.hairpins = True
            self._inquiries.pop(self._hairpin, None)


def _mapping(seen: dict[Endpoint, Endpoint]) -> Dependence:
    by_host: dict[str, set[Endpoint]] = {}
    for server, mapped in seen.items():
        by_host.setdefault(server.host, set()).add(mapped)
    hosts = list(by_host.values())
    if any(one & other for i, one in enumerate(hosts) for other in hosts[:i]):
        return Dependence.NONE
    if any(len(mapped) > 1 for mapped in hosts):
        return Dependence.PORT
    return Dependence.ADDRESS if len(hosts) > 1 else Dependence.UNKNOWN


def _filtering(found: _Findings) -> Dependence:
    if found.came_from_other_host:
        return Dependence.NONE
    if found.came_from_other_port is None:
        return Dependence.UNKNOWN
    return Dependence.ADDRESS if found.came_from_other_port else Dependence.PORT
