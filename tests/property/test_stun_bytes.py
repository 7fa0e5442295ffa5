"""Any bytes at all: read as a message or refused, and never answered with more bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.protocol.nat.stun import (
    TRANSACTION_BYTES,
    Answer,
    Endpoint,
    Indication,
    Message,
    Question,
    StunServer,
    decode_stun,
    encode_answer,
    encode_indication,
    encode_question,
)

transactions = st.binary(min_size=TRANSACTION_BYTES, max_size=TRANSACTION_BYTES)
ports = st.integers(0, 65_535)
hosts = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
endpoints = st.builds(Endpoint, hosts, ports)
questions = st.builds(Question, transactions, st.booleans())
answers = st.builds(Answer, transactions, endpoints, ports)
indications = st.builds(Indication, transactions)

SOURCE = Endpoint("192.0.2.1", 4001)


def encode(message: Message) -> bytes:
    match message:
        case Question():
            return encode_question(message)
        case Answer():
            return encode_answer(message)
        case Indication():
            return encode_indication(message)


@given(st.one_of(questions, answers, indications))
def test_what_is_written_is_read(message: Message) -> None:
    assert decode_stun(encode(message)) == message


@given(questions, endpoints, ports)
def test_no_answer_is_larger_than_our_question(
    question: Question, source: Endpoint, other_port: int
) -> None:
    asked = encode_question(question)
    assert len(asked) == limits.STUN_QUESTION_BYTES
    assert len(encode_answer(Answer(question.transaction, source, other_port))) < len(asked)


def damaged(message: bytes, cut: int, position: int, value: int) -> bytes:
    changed = bytearray(message)
    changed[position % len(changed)] = value
    return bytes(changed[: len(changed) - cut % len(changed)])


anything = st.one_of(
    st.binary(max_size=limits.STUN_BYTES_MAX + 1),
    st.builds(
        damaged,
        st.one_of(questions, answers, indications).map(encode),
        st.one_of(st.just(0), st.integers(0, 100)),
        st.integers(0, 100),
        st.integers(0, 255),
    ),
)


@given(anything)
def test_hostile_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        message = decode_stun(data)
    except MalformedMessage:
        return
    assert len(message.transaction) == TRANSACTION_BYTES
    assert len(data) <= limits.STUN_BYTES_MAX


@given(anything, st.integers(1, 65_535))
def test_a_server_never_sends_more_than_it_got(data: bytes, other_port: int) -> None:
    reply = StunServer().answer(data, SOURCE, 0.0, other_port=other_port)
    assert reply is None or len(reply.data) <= len(data)


@pytest.mark.parametrize("n_bytes", [0, 19, limits.STUN_BYTES_MAX + 1, 65_000])
def test_what_is_no_datagram_of_stun_is_refused(n_bytes: int) -> None:
    with pytest.raises(MalformedMessage, match=f"expected 20 to 548 bytes, got {n_bytes}"):
        decode_stun(bytes(n_bytes))
