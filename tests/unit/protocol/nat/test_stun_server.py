"""What a peer answers to strangers, and how often."""

from __future__ import annotations

import struct

import pytest

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.protocol.nat.stun import (
    Answer,
    Endpoint,
    Indication,
    Question,
    Reply,
    StunServer,
    decode_stun,
    encode_answer,
    encode_indication,
    encode_question,
)

SOURCE = Endpoint("192.0.2.1", 4001)
TRANSACTION = bytes(range(12))
ASKED = encode_question(Question(TRANSACTION))


def test_the_answer_names_the_source_and_our_second_port() -> None:
    reply = StunServer().answer(ASKED, SOURCE, 0.0, other_port=9)
    assert reply is not None
    assert decode_stun(reply.data) == Answer(TRANSACTION, SOURCE, 9)
    assert not reply.from_other_port


def test_an_answer_of_rfc_5769_is_read() -> None:
    """Section 2.2 without its last two attributes, which need a password: 192.0.2.1:32853."""
    attributes = bytes.fromhex("8022000b7465737420766563746f7220002000080001a147e112a643")
    header = struct.pack(">HHI", 0x0101, len(attributes), 0x2112A442)
    transaction = bytes.fromhex("b7e7a701bc34d686fa87dfae")
    answer = decode_stun(header + transaction + attributes)
    assert answer == Answer(transaction, Endpoint("192.0.2.1", 32_853))


def test_who_asks_for_the_other_port_gets_it_if_there_is_one() -> None:
    asked = encode_question(Question(TRANSACTION, change_port=True))
    reply = StunServer().answer(asked, SOURCE, 0.0, other_port=9)
    assert isinstance(reply, Reply)
    assert reply.from_other_port
    server = StunServer()
    assert server.answer(asked, SOURCE, 0.0, other_port=0) is None
    assert server.statistics().malformed_total == 1


def bare_question(attributes: bytes = b"") -> bytes:
    return struct.pack(">HHI12s", 1, len(attributes), 0x2112A442, TRANSACTION) + attributes


def test_a_question_shorter_than_the_answer_gets_none() -> None:
    server = StunServer()
    assert server.answer(bare_question(), SOURCE, 0.0, other_port=0) is None
    assert server.statistics().short_total == 1
    filler = struct.pack(">HH8s", 0x8022, 8, b"x")
    reply = server.answer(bare_question(filler), SOURCE, 0.0, other_port=0)
    assert reply is not None
    assert len(reply.data) == len(bare_question(filler)) == 32


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        bytes(96),
        encode_answer(Answer(TRANSACTION, SOURCE)),
        encode_indication(Indication(TRANSACTION)),
        bare_question(struct.pack(">HHI", 0x0003, 4, 6).ljust(60, b"\0")),  # change the address
        bare_question(struct.pack(">HH72s", 0x0006, 72, b"user")),  # an attribute that is a must
        ASKED[:-1],
        ASKED + bytes(4),
    ],
)
def test_everything_else_is_silence(data: bytes) -> None:
    server = StunServer()
    assert server.answer(data, SOURCE, 0.0, other_port=9) is None
    assert server.statistics().malformed_total == 1


@pytest.mark.parametrize(
    "address",
    [b"", b"\0", b"\0\1", bytes(4), b"\0\1" + bytes(2), b"\0\1" + bytes(7), b"\0\1" + bytes(18),
     b"\0\2" + bytes(6), b"\0\3" + bytes(6), b"\0\3" + bytes(18)],
)  # fmt: skip
def test_an_address_of_unknown_family_or_length_is_refused(address: bytes) -> None:
    attribute = struct.pack(">HH", 0x0020, len(address)) + address + bytes(-len(address) % 4)
    data = struct.pack(">HHI12s", 0x0101, len(attribute), 0x2112A442, TRANSACTION) + attribute
    with pytest.raises(MalformedMessage, match="unknown family or length"):
        decode_stun(data)
    assert StunServer().answer(data, SOURCE, 0.0, other_port=9) is None


def test_one_host_gets_so_many_answers_a_second() -> None:
    server = StunServer()

    def answers(host: str, now: float) -> int:
        asked = [
            server.answer(ASKED, Endpoint(host, port), now, other_port=0) for port in range(100)
        ]
        return sum(reply is not None for reply in asked)

    assert answers("192.0.2.1", 5.0) == limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
    assert answers("192.0.2.1", 5.9) == 0
    assert answers("192.0.2.2", 5.9) == limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
    assert answers("192.0.2.1", 6.0) == limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
    assert server.statistics().answered_total == 3 * limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
    assert server.statistics().limited_total == 400 - server.statistics().answered_total


def test_all_together_get_so_many_and_memory_stays_small() -> None:
    server = StunServer()
    replies = [
        server.answer(ASKED, Endpoint(f"10.{n >> 8}.{n & 255}.1", 5), 1.0, other_port=0)
        for n in range(5000)
    ]
    assert sum(reply is not None for reply in replies) == limits.STUN_ANSWERS_PER_S_MAX
    assert len(server._admitted) <= limits.STUN_ANSWERS_PER_S_MAX
