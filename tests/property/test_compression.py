"""Whatever a frame holds: it is read as the message that it is, or refused as the peer's fault."""

from __future__ import annotations

import random

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.errors import RemoteProtocolError
from swarmnode.wire import crdt
from swarmnode.wire.compression import decode_message, encode_message
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed

DIGESTS = st.binary(min_size=32, max_size=32)
SIGNED = st.builds(
    Signed,
    st.binary(max_size=700) | st.integers(0, 3000).map(bytes),
    DIGESTS,
    st.binary(min_size=64, max_size=64),
)
CARRIED = st.builds(crdt.Carried, SIGNED, st.integers(0, 2**40))
HEADS = st.builds(crdt.Head, DIGESTS, st.integers(0, 9), st.integers(0, 9), DIGESTS)
MESSAGES = st.one_of(
    st.builds(crdt.Push, st.lists(CARRIED, min_size=1, max_size=40).map(tuple), st.booleans()),
    st.builds(crdt.Listing, st.just("a7"), st.lists(HEADS, max_size=40).map(tuple)),
    st.builds(crdt.Want, st.lists(HEADS, min_size=1, max_size=40).map(tuple)),
)


@given(MESSAGES)
def test_every_message_comes_back_and_never_longer(message: crdt.Message) -> None:
    sent = encode_message(message)
    assert decode_message(sent) == message
    assert len(sent) <= len(encode_record(message))


def read_or_refused(frame: bytes) -> None:
    """Read a frame; what it becomes is no longer than frames of that length may become."""
    try:
        message = decode_message(encode_record(crdt.Compressed(frame)))
    except RemoteProtocolError:
        return
    plain_bytes = zstandard.get_frame_parameters(frame).content_size
    assert plain_bytes <= min(limits.MESSAGE_BYTES_MAX, limits.STATE_EXPANSION_MAX * len(frame))
    assert not isinstance(message, crdt.Compressed)


@given(MESSAGES, st.data())
def test_a_frame_that_was_damaged_is_read_or_refused(
    message: crdt.Message, data: st.DataObject
) -> None:
    frame = bytearray(zstandard.compress(encode_record(message), level=1))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    # Half of the damage is to the header, where sizes and windows are.
    for _ in range(data.draw(st.integers(1, 8))):
        end = 16 if rng.random() < 0.5 else len(frame)
        frame[rng.randrange(min(end, len(frame)))] = rng.randrange(256)
    read_or_refused(bytes(frame))
    read_or_refused(bytes(frame[: rng.randrange(1, len(frame))]))


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=20))
def test_any_bytes_are_read_or_refused(noise: bytes, header: bytes) -> None:
    read_or_refused(noise)
    read_or_refused(bytes.fromhex("28b52ffd") + header + noise)
    read_or_refused(zstandard.compress(noise) + header)
