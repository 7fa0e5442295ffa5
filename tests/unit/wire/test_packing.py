"""Records to bytes and back: what is accepted, and what never reaches a caller."""

from __future__ import annotations

import msgpack
import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import MalformedMessage
from swarmnode.ids import PeerId
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.records import PeerIdBytes


class Greeting(msgspec.Struct, frozen=True):
    peer: PeerIdBytes
    text: str = ""


def test_a_peer_id_travels_as_its_bytes() -> None:
    peer = PeerId(bytes(range(32)))
    decoded = decode_record(encode_record(Greeting(peer, "hi")), Greeting)
    assert decoded == Greeting(bytes(peer), "hi")
    assert type(decoded.peer) is bytes


def test_unknown_fields_are_ignored_and_wrong_ones_are_not() -> None:
    newer = msgpack.packb({"peer": bytes(32), "text": "x", "later": 1})
    assert decode_record(newer, Greeting) == Greeting(bytes(32), "x")
    for wrong in ({"peer": bytes(31)}, {"peer": "x" * 32}, {}, [], None, {"peer": bytes(32), 1: 2}):
        with pytest.raises(MalformedMessage, match="expected a Greeting"):
            decode_record(msgpack.packb(wrong), Greeting)


def test_hostile_bytes_are_refused_before_they_cost_anything() -> None:
    deep = b"\x91" * 5000 + b"\xc0"
    huge_text = b"\xdb" + (2**31).to_bytes(4, "big")
    for bad in (b"", b"\xc1", deep, huge_text, msgpack.packb({"peer": bytes(32)}) + b"\0"):
        with pytest.raises(MalformedMessage):
            decode_record(bad, Greeting)
    with pytest.raises(MalformedMessage, match="at most"):
        decode_record(bytes(limits.MESSAGE_BYTES_MAX + 1), Greeting)
