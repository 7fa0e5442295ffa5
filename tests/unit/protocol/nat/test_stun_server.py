"""What a peer answers to strangers, and how often."""

from __future__ import annotations

import struct
from ipaddress import ip_address

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
    StunStatistics,
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


def message(kind: int, attributes: bytes = b"", *, cookie: int = 0x2112A442) -> bytes:
    return struct.pack(">HHI12s", kind, len(attributes), cookie, TRANSACTION) + attributes


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack(">HH", kind, len(value)) + value + bytes(-len(value) % 4)


QUESTION, INDICATION, ANSWER = 0x0001, 0x0011, 0x0101
CHANGE, SOFTWARE, MAPPED = 0x0003, 0x8022, 0x0020


def test_a_message_has_as_many_bytes_as_a_datagram_may_have_and_as_it_says() -> None:
    longest = attribute(SOFTWARE, bytes(limits.STUN_BYTES_MAX - 24))
    assert decode_stun(message(INDICATION)) == Indication(TRANSACTION)
    assert decode_stun(message(QUESTION, longest)) == Question(TRANSACTION)
    too_long = message(QUESTION, longest + attribute(SOFTWARE, b""))
    with pytest.raises(MalformedMessage, match=f"20 to {limits.STUN_BYTES_MAX} bytes"):
        decode_stun(too_long)
    for wrong in (
        message(INDICATION)[:-1],
        message(INDICATION) + bytes(4),
        message(QUESTION, longest)[:-4],
        message(INDICATION, bytes(2)),
        message(INDICATION, cookie=0x2112A443),
    ):
        with pytest.raises(MalformedMessage):
            decode_stun(wrong)


@pytest.mark.parametrize("kind", [0x0000, 0x0002, 0x0010, 0x0012, 0x0100, 0x0102, 0x0111])
def test_other_kinds_of_messages_are_none(kind: int) -> None:
    with pytest.raises(MalformedMessage, match=f"message type {kind:#06x} is no binding"):
        decode_stun(message(kind))


def test_what_a_question_may_ask_is_known_and_the_rest_is_optional() -> None:
    for change, expected in ((bytes(4), False), (b"\0\0\0\2", True)):
        read = decode_stun(message(QUESTION, attribute(CHANGE, change)))
        assert read == Question(TRANSACTION, expected)
    for change in (b"\0\0\0\1", b"\0\0\0\4", b"\0\0\2", b"\0\0\0\0\2", b"\1\0\0\2"):
        with pytest.raises(MalformedMessage, match="only the port can be changed"):
            decode_stun(message(QUESTION, attribute(CHANGE, change)))
    optional = attribute(0x8000, b"x") + attribute(0xFFFF, b"")
    assert decode_stun(message(QUESTION, optional)) == Question(TRANSACTION)
    with pytest.raises(MalformedMessage, match="attribute 0x7fff is not known here"):
        decode_stun(message(QUESTION, attribute(0x7FFF, b"")))


@pytest.mark.parametrize("n_bytes", range(5))
def test_attributes_are_filled_up_to_words_and_of_two_of_a_type_the_first_counts(
    n_bytes: int,
) -> None:
    filler = attribute(SOFTWARE, bytes(n_bytes))
    yes, no = (attribute(CHANGE, bytes((0, 0, 0, flags))) for flags in (2, 0))
    for attributes, changes in ((yes + no, True), (no + filler + yes, False)):
        read = decode_stun(message(QUESTION, filler + attributes))
        assert read == Question(TRANSACTION, changes)


def test_an_attribute_ends_within_the_message() -> None:
    whole = attribute(SOFTWARE, bytes(4))
    assert decode_stun(message(INDICATION, whole)) == Indication(TRANSACTION)
    for n_bytes in (5, 8, 65_535):
        longer = struct.pack(">HH", SOFTWARE, n_bytes) + bytes(4)
        with pytest.raises(MalformedMessage, match="longer than the message"):
            decode_stun(message(INDICATION, longer))


def test_an_answer_without_an_address_is_none() -> None:
    with pytest.raises(MalformedMessage, match="no address in it"):
        decode_stun(message(ANSWER, attribute(SOFTWARE, b"test")))


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_an_answer_is_laid_out_as_in_the_rfc(host: str) -> None:
    """The address is hidden by the cookie and the transaction, the second port is not."""
    packed = ip_address(host).packed
    pad = struct.pack(">I12s", 0x2112A442, TRANSACTION)
    hidden = bytes(one ^ other for one, other in zip(packed, pad, strict=False))
    family = 1 if len(packed) == 4 else 2
    mapped = attribute(MAPPED, struct.pack(">BBH", 0, family, 4001 ^ 0x2112) + hidden)
    other = attribute(0x802C, struct.pack(">BBH", 0, family, 4002) + bytes(len(packed)))
    answer = Answer(TRANSACTION, Endpoint(host, 4001))
    assert encode_answer(answer) == message(ANSWER, mapped)
    both = Answer(TRANSACTION, Endpoint(host, 4001), 4002)
    assert encode_answer(both) == message(ANSWER, mapped + other)
    assert decode_stun(encode_answer(both)) == both


@pytest.mark.parametrize("change_port", [True, False])
def test_a_question_is_laid_out_as_in_the_rfc(change_port: bool) -> None:
    change = attribute(CHANGE, b"\0\0\0\2") if change_port else b""
    filler = b"swarmnode".ljust(limits.STUN_QUESTION_BYTES - 20 - len(change) - 4)
    expected = message(QUESTION, change + attribute(SOFTWARE, filler))
    assert encode_question(Question(TRANSACTION, change_port)) == expected
    assert len(expected) == limits.STUN_QUESTION_BYTES


def test_each_kind_of_silence_is_counted() -> None:
    server = StunServer()
    for number in range(2):
        server.answer(b"", SOURCE, 0.0, other_port=0)
        server.answer(bare_question(), SOURCE, 0.0, other_port=0)
        server.answer(ASKED, SOURCE, 0.0, other_port=0)
        assert server.statistics() == StunStatistics(number + 1, number + 1, 0, number + 1)
    for _ in range(limits.STUN_ANSWERS_PER_HOST_PER_S_MAX):
        server.answer(ASKED, SOURCE, 0.0, other_port=0)
    most = limits.STUN_ANSWERS_PER_HOST_PER_S_MAX
    assert server.statistics() == StunStatistics(most, 2, 2, 2)


def test_so_many_are_admitted_in_one_second_of_the_clock() -> None:
    server = StunServer()
    for second in (0, 7):
        hosts = [f"10.0.{n // 256}.{n % 256}" for n in range(limits.STUN_ANSWERS_PER_S_MAX)]
        assert all(server.admits(host, second + 0.5) for host in hosts)
        assert not server.admits("192.0.2.1", second + 0.999)
    assert server.admits("192.0.2.1", 8.0)


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
