"""STUN binding, as much of it as peers need of each other: bytes to records, and what is answered.

A question asks where it came from; the answer names the address that the server saw. A
question is filled up to STUN_QUESTION_BYTES, so that no answer is ever larger: an attacker
that forges the source of a question gains nothing. An indication is the probe of a NAT's filter.

Source: RFC 8489 (STUN) without authentication; RFC 5780 for CHANGE-REQUEST and OTHER-ADDRESS,
of which only the port is used: a peer has one address and two ports.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from swarmnode import limits
from swarmnode.errors import MalformedMessage

TRANSACTION_BYTES = 12

_HEADER = struct.Struct(">HHI12s")
_ATTRIBUTE = struct.Struct(">HH")
_COOKIE = 0x2112A442
_QUESTION, _INDICATION, _ANSWER = 0x0001, 0x0011, 0x0101
_CHANGE_REQUEST = 0x0003
_XOR_MAPPED_ADDRESS = 0x0020
_SOFTWARE = 0x8022
_OTHER_ADDRESS = 0x802C
_CHANGE_PORT = 0x2
_NO_PAD = bytes(16)  # of an address that is not hidden
_FAMILY_BYTES = {b"\x01": 4, b"\x02": 16}
# From here on attributes may be ignored by a program that does not know them.
_OPTIONAL_FROM = 0x8000

_CHANGE_ATTRIBUTE = struct.pack(">HHI", _CHANGE_REQUEST, 4, _CHANGE_PORT)
QUESTION_FILLER = "swarmnode".ljust(limits.STUN_QUESTION_BYTES - _HEADER.size - _ATTRIBUTE.size)
"""The SOFTWARE attribute that makes a bare question STUN_QUESTION_BYTES long."""


class Endpoint(NamedTuple):
    """Where datagrams come from or go to."""

    host: str
    port: int


@dataclass(frozen=True)
class Question:
    """Where do I come from? ``change_port``: answer from your other port."""

    transaction: bytes
    change_port: bool = False


@dataclass(frozen=True)
class Answer:
    """You come from ``mapped``. ``other_port``: I have a second port, 0: I have none."""

    transaction: bytes
    mapped: Endpoint
    other_port: int = 0


@dataclass(frozen=True)
class Indication:
    """The probe that was asked for elsewhere."""

    transaction: bytes


Message = Question | Answer | Indication


def encode_question(question: Question) -> bytes:
    """Return a question of STUN_QUESTION_BYTES."""
    body = _CHANGE_ATTRIBUTE if question.change_port else b""
    filler = QUESTION_FILLER[: len(QUESTION_FILLER) - len(body)].encode("ascii")
    body += _ATTRIBUTE.pack(_SOFTWARE, len(filler)) + filler
    return _HEADER.pack(_QUESTION, len(body), _COOKIE, question.transaction) + body


def encode_answer(answer: Answer) -> bytes:
    """Return an answer; at most 68 bytes."""
    pad = struct.pack(">I", _COOKIE) + answer.transaction
    mapped = _encode_endpoint(_XOR_MAPPED_ADDRESS, answer.mapped, pad)
    other = b""
    if answer.other_port:
        unspecified = "::" if ":" in answer.mapped.host else "0.0.0.0"  # noqa: S104 -- nowhere
        other = _encode_endpoint(_OTHER_ADDRESS, Endpoint(unspecified, answer.other_port), _NO_PAD)
    body = mapped + other
    return _HEADER.pack(_ANSWER, len(body), _COOKIE, answer.transaction) + body


def encode_indication(indication: Indication) -> bytes:
    """Return an indication: 20 bytes."""
    return _HEADER.pack(_INDICATION, 0, _COOKIE, indication.transaction)


def decode_stun(data: bytes) -> Message:
    """Read one datagram. Raises MalformedMessage for whatever is not a binding message."""
    if not _HEADER.size <= len(data) <= limits.STUN_BYTES_MAX:
        raise MalformedMessage(
            f"STUN: expected {_HEADER.size} to {limits.STUN_BYTES_MAX} bytes, got {len(data)}"
        )
    kind, n_bytes, cookie, transaction = _HEADER.unpack_from(data)
    if cookie != _COOKIE or n_bytes != len(data) - _HEADER.size or n_bytes % 4:
        raise MalformedMessage("STUN: wrong cookie or length")
    attributes = dict(_attributes(data))
    if kind == _QUESTION:
        return _question(transaction, attributes)
    if kind == _ANSWER:
        return _answer(transaction, attributes)
    if kind == _INDICATION:
        return Indication(transaction)
    raise MalformedMessage(f"STUN: message type {kind:#06x} is no binding")


def _question(transaction: bytes, attributes: dict[int, bytes]) -> Question:
    change = attributes.pop(_CHANGE_REQUEST, bytes(4))
    unknown = [kind for kind in attributes if kind < _OPTIONAL_FROM]
    if unknown:
        raise MalformedMessage(f"STUN question: attribute {unknown[0]:#06x} is not known here")
    flags = int.from_bytes(change, "big")
    if len(change) != 4 or flags & ~_CHANGE_PORT:
        raise MalformedMessage("STUN question: only the port can be changed")
    return Question(transaction, bool(flags))


def _answer(transaction: bytes, attributes: dict[int, bytes]) -> Answer:
    pad = struct.pack(">I", _COOKIE) + transaction
    mapped = attributes.get(_XOR_MAPPED_ADDRESS)
    if mapped is None:
        raise MalformedMessage("STUN answer: no address in it")
    other = attributes.get(_OTHER_ADDRESS)
    return Answer(
        transaction,
        _decode_endpoint(mapped, pad),
        _decode_endpoint(other, _NO_PAD).port if other is not None else 0,
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute; of two of one type the first counts."""
    position = _HEADER.size
    seen = set()
    while position < len(data):
        kind, n_bytes = _ATTRIBUTE.unpack_from(data, position)
        start = position + _ATTRIBUTE.size
        position = start + n_bytes + -n_bytes % 4
        if position > len(data):
            raise MalformedMessage("STUN: an attribute is longer than the message")
        if kind not in seen:
            seen.add(kind)
            yield kind, data[start : start + n_bytes]


def _encode_endpoint(kind: int, endpoint: Endpoint, pad: bytes) -> bytes:
    packed = ip_address(endpoint.host).packed
    family = 1 if len(packed) == 4 else 2
    value = struct.pack(">BB", 0, family) + _xor(struct.pack(">H", endpoint.port), pad)
    value += _xor(packed, pad)
    return _ATTRIBUTE.pack(kind, len(value)) + value


def _decode_endpoint(value: bytes, pad: bytes) -> Endpoint:
    if len(value) - 4 != _FAMILY_BYTES.get(value[1:2]):
        raise MalformedMessage("STUN: an address of unknown family or length")
    port = int.from_bytes(_xor(value[2:4], pad), "big")
    return Endpoint(str(ip_address(_xor(value[4:], pad))), port)


def _xor(data: bytes, pad: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(data, pad, strict=False))


@dataclass(frozen=True)
class StunStatistics:
    """Counters since the start."""

    answered_total: int
    malformed_total: int
    limited_total: int  # over one of the rates
    short_total: int  # an answer would have been longer than the question


@dataclass(frozen=True)
class Reply:
    """What to send back to where the question came from."""

    data: bytes
    from_other_port: bool


class StunServer:
    """Answers as many questions a second as the limits allow, of one host and in all.

    Silent about the rest: a source may be forged, and then even a refusal hits a third party.
    """

    def __init__(self) -> None:
        self._second = 0
        self._admitted: Counter[str] = Counter()  # as many entries as answers of one second
        self._answered = 0
        self._malformed = 0
        self._limited = 0
        self._short = 0

    def answer(self, data: bytes, source: Endpoint, now: float, *, other_port: int) -> Reply | None:
        """Return the reply to a datagram; ``other_port`` is our second port, 0 if we have none."""
        try:
            question = decode_stun(data)
        except MalformedMessage:
            question = None
        if not isinstance(question, Question) or (question.change_port and not other_port):
            self._malformed += 1
            return None
        answer = encode_answer(Answer(question.transaction, source, other_port))
        if len(answer) > len(data):
            self._short += 1
            return None
        if not self.admits(source.host, now):
            return None
        self._answered += 1
        return Reply(answer, question.change_port)

    def admits(self, host: str, now: float) -> bool:
        """Count one datagram to ``host``; False if there have been too many in this second."""
        if int(now) != self._second:
            self._second = int(now)
            self._admitted.clear()
        if (
            self._admitted.total() >= limits.STUN_ANSWERS_PER_S_MAX
            or self._admitted[host] >= limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
        ):
            self._limited += 1
            return False
        self._admitted[host] += 1
        return True

    def statistics(self) -> StunStatistics:
        """Return a frozen record of counters."""
        return StunStatistics(self._answered, self._malformed, self._limited, self._short)
