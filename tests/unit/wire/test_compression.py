"""Compressed messages of the shared state: what is written, what is read, what is refused."""

from __future__ import annotations

import hashlib
import tracemalloc

import pytest
import zstandard

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage, RemoteProtocolError
from swarmnode.wire import crdt
from swarmnode.wire.compression import decode_message, encode_message
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.swarm import Signed
from tests.golden.messages import UNPACKED, load_vectors

LARGEST = limits.MESSAGE_BYTES_MAX
MAGIC = bytes.fromhex("28b52ffd")


def push(n_records: int) -> crdt.Push:
    """Return a message of about 400 bytes a record, a third of them as random as a signature."""

    def digest(number: int) -> bytes:
        return hashlib.sha256(b"%d" % number).digest()

    return crdt.Push(
        tuple(
            crdt.Carried(Signed(bytes(128) + digest(n), digest(-n), 2 * digest(n + 1)), 3)
            for n in range(n_records)
        )
    )


def frame_of(content: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(content)  # type: ignore[arg-type]


def framed(frame: bytes) -> bytes:
    return encode_record(crdt.Compressed(frame))


def header(size_bytes: int, *, window_byte: int) -> bytes:
    """Return the head of a frame that says its size in eight bytes, and its window in one."""
    return MAGIC + bytes([0b1100_0000, window_byte]) + size_bytes.to_bytes(8, "little")


# --- what is written --------------------------------------------------------------------------


def test_a_long_message_travels_compressed_and_comes_back() -> None:
    message = push(100)
    plain, sent = encode_record(message), encode_message(message)
    assert len(sent) < len(plain) / 2
    assert isinstance(decode_record(sent, crdt.Compressed), crdt.Compressed)
    assert decode_message(sent) == decode_message(plain) == message


def test_a_short_message_travels_as_it_is() -> None:
    for message in (push(1), push(2), crdt.Listing("", ())):
        assert len(encode_record(message)) < limits.STATE_COMPRESS_BYTES_MIN
        assert encode_message(message) == encode_record(message)


def test_what_does_not_shrink_travels_as_it_is() -> None:
    noise = hashlib.shake_256(b"").digest(6096)
    message = crdt.Push((crdt.Carried(Signed(noise[96:], noise[:32], noise[32:96]), 0),))
    assert encode_message(message) == encode_record(message)


def test_what_shrinks_more_than_a_reader_takes_travels_as_it_is() -> None:
    message = crdt.Push((crdt.Carried(Signed(bytes(8000), bytes(32), bytes(64)), 0),))
    assert encode_message(message) == encode_record(message)
    assert decode_message(encode_message(message)) == message


# --- what is read -----------------------------------------------------------------------------


def test_the_recorded_frame_holds_the_recorded_message() -> None:
    assert decode_message(load_vectors()["crdt/zstd"]) == UNPACKED


@pytest.mark.parametrize("level", [-5, 1, 3, 19, 22])
@pytest.mark.parametrize("has_checksum", [False, True])
def test_frames_of_other_writers_are_read(level: int, has_checksum: bool) -> None:
    message = push(100)
    frame = frame_of(encode_record(message), level=level, write_checksum=has_checksum)
    assert decode_message(framed(frame)) == message


def test_the_largest_message_is_read() -> None:
    def message_of(last_bytes: int) -> crdt.Push:
        sizes = (2**16, 2**16, 2**16, last_bytes)
        noise = [hashlib.shake_256(bytes([number])).digest(2**13) for number in range(4)]
        bodies = [start.ljust(size, b"\0") for start, size in zip(noise, sizes, strict=True)]
        records = (Signed(body, bytes(32), bytes(64)) for body in bodies)
        return crdt.Push(tuple(crdt.Carried(record, 0) for record in records))

    excess_bytes = len(encode_record(message_of(2**16 - 1))) - LARGEST
    message = message_of(2**16 - 1 - excess_bytes)
    assert len(encode_record(message)) == LARGEST
    assert len(encode_message(message)) < LARGEST / 4
    assert decode_message(encode_message(message)) == message


# --- what is refused --------------------------------------------------------------------------


def test_a_bomb_costs_no_memory() -> None:
    bombs = [
        frame_of(bytes(LARGEST + 1)),
        frame_of(bytes(2**26)),
        header(2**62, window_byte=0x40),
        header(2**63 - 1, window_byte=0x40) + bytes(1000),
    ]
    messages = [framed(bomb) for bomb in bombs]
    tracemalloc.start()
    for message in messages:
        with pytest.raises(LimitExceeded, match="this one says"):
            decode_message(message)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < LARGEST / 2


def test_a_few_bytes_do_not_become_many() -> None:
    plain = encode_record(crdt.Push((crdt.Carried(Signed(bytes(8000), bytes(32), bytes(64)), 0),)))
    frame = frame_of(plain)
    assert len(frame) * limits.STATE_EXPANSION_MAX < len(plain) < LARGEST
    with pytest.raises(LimitExceeded, match=f"may become {16 * len(frame)}, this one says"):
        decode_message(framed(frame))


def test_a_window_larger_than_any_message_is_refused() -> None:
    plain = encode_record(push(100))
    stream = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, format=0)
    ).compressobj()
    unsized = stream.compress(plain) + stream.flush()
    assert zstandard.get_frame_parameters(unsized).window_size == 2**27
    # The same with its size: four bytes of it after the descriptor of the window.
    assert unsized[4] == 0
    sized = (
        MAGIC + bytes([0b1000_0000, unsized[5]]) + len(plain).to_bytes(4, "little") + unsized[6:]
    )
    assert zstandard.ZstdDecompressor().decompress(sized) == plain, "it is sound but for that"
    with pytest.raises(LimitExceeded, match="window of at most 262144"):
        decode_message(framed(sized))


def test_a_size_that_is_not_said_is_refused() -> None:
    frame = frame_of(encode_record(push(100)), write_content_size=False)
    with pytest.raises(MalformedMessage, match="says its size"):
        decode_message(framed(frame))


@pytest.mark.parametrize("error_bytes", [-1, 1, 500])
def test_another_size_than_the_header_says_is_refused(error_bytes: int) -> None:
    plain = encode_record(push(30))
    frame = frame_of(plain)
    assert frame[4] >> 6 == 1, "two bytes of size, less 256"
    said = (len(plain) - 256 + error_bytes).to_bytes(2, "little")
    with pytest.raises(MalformedMessage, match="one whole Zstandard frame"):
        decode_message(framed(frame[:5] + said + frame[7:]))


def test_anything_but_one_whole_frame_is_refused() -> None:
    frame = frame_of(encode_record(push(30)))
    skippable = bytes.fromhex("502a4d18") + (10).to_bytes(4, "little") + bytes(10)
    dictionary = zstandard.ZstdCompressionDict(encode_record(push(60)))
    with_id = zstandard.train_dictionary(4096, [encode_record(push(n)) for n in range(1, 60)])
    bad = [
        frame + b"\0",
        frame + frame,
        frame[:-1],
        frame[:6],
        b"\0",
        skippable,
        skippable + frame,
        frame_of(b""),
        encode_record(push(30)),
        frame_of(encode_record(push(30)), dict_data=dictionary),
        frame_of(encode_record(push(30)), dict_data=with_id),
    ]
    for each in bad:
        with pytest.raises(RemoteProtocolError):
            decode_message(framed(each))


def test_what_is_inside_is_a_message_and_not_compressed_again() -> None:
    message = push(30)
    inside = framed(frame_of(encode_record(message)))
    for content in (inside, encode_record(message)[:-1], encode_record(message) + b"\0", b"\xc1"):
        with pytest.raises(MalformedMessage):
            decode_message(framed(frame_of(content)))


def test_a_checksum_that_is_there_is_checked() -> None:
    frame = frame_of(encode_record(push(30)), write_checksum=True)
    with pytest.raises(MalformedMessage):
        decode_message(framed(frame[:-1] + bytes([frame[-1] ^ 1])))
