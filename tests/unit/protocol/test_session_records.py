"""Records: what is sealed opens once, in order, with the right key, and not otherwise."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LimitExceeded, MalformedMessage
from swarmnode.net.records import SEND_TURN_BYTES_MIN, SEND_TURN_S, next_body_bytes
from swarmnode.protocol.session.buffers import RECYCLED_BUFFER_BYTES_MIN, BufferPool
from swarmnode.protocol.session.inbox import Inbox
from swarmnode.protocol.session.records import (
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    CipherName,
    Opener,
    Role,
    Sealer,
    plaintext_bytes,
)

SECRET = bytes(range(32))
INLINE = limits.DATA_INLINE_BYTES_MAX


def seal(sealer: Sealer, plaintext: bytes) -> bytes:
    out = memoryview(bytearray(RECORD_BYTES_MAX))
    return bytes(out[: sealer.seal_into(memoryview(plaintext), out)])


def unseal(opener: Opener, record: bytes) -> bytes:
    out = bytearray(len(record) - RECORD_OVERHEAD_BYTES)
    opener.open_into(memoryview(record), memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("cipher", list(CipherName))
@pytest.mark.parametrize("size", [1, 1000, limits.RECORD_PLAINTEXT_BYTES_MAX])
def test_a_record_opens_to_what_was_sealed(cipher: CipherName, size: int) -> None:
    plaintext = bytes(i % 251 for i in range(size))
    record = seal(Sealer(SECRET, cipher, Role.CLIENT), plaintext)
    assert len(record) == size + RECORD_OVERHEAD_BYTES
    assert plaintext_bytes(memoryview(record)[:4]) == size
    assert unseal(Opener(SECRET, cipher, Role.CLIENT), record) == plaintext


def test_keys_change_with_the_epoch_without_a_message() -> None:
    cipher = CipherName.AES_256_GCM
    sealer = Sealer(SECRET, cipher, Role.SERVER, rekey_records=3)
    opener = Opener(SECRET, cipher, Role.SERVER, rekey_records=3)
    records = [seal(sealer, b"same") for _ in range(10)]
    assert len(set(records)) == 10
    assert [unseal(opener, record) for record in records] == [b"same"] * 10
    never_changes = Opener(SECRET, cipher, Role.SERVER, rekey_records=1000)
    for record in records[:3]:
        unseal(never_changes, record)
    with pytest.raises(AuthenticationFailed, match="record 3"):
        unseal(never_changes, records[3])


@pytest.mark.parametrize("position", [0, 3, 4, 10, -1])
def test_a_changed_bit_is_noticed(position: int) -> None:
    record = bytearray(seal(Sealer(SECRET, CipherName.AES_256_GCM, Role.CLIENT), b"payload"))
    record[position] ^= 1
    with pytest.raises(AuthenticationFailed, match="changed on its way"):
        unseal(Opener(SECRET, CipherName.AES_256_GCM, Role.CLIENT), bytes(record))


def test_records_cannot_be_repeated_dropped_or_turned_back() -> None:
    cipher = CipherName.CHACHA20_POLY1305
    sealer = Sealer(SECRET, cipher, Role.CLIENT)
    first, second = seal(sealer, b"one"), seal(sealer, b"two")
    repeated = Opener(SECRET, cipher, Role.CLIENT)
    unseal(repeated, first)
    with pytest.raises(AuthenticationFailed):
        unseal(repeated, first)
    with pytest.raises(AuthenticationFailed):
        unseal(Opener(SECRET, cipher, Role.CLIENT), second)
    with pytest.raises(AuthenticationFailed):  # a record of ours, sent back to us
        unseal(Opener(SECRET, cipher, Role.SERVER), first)


def test_lengths_that_no_record_has_are_refused_before_anything_is_read() -> None:
    with pytest.raises(MalformedMessage, match="16 bytes"):
        plaintext_bytes(memoryview((16).to_bytes(4, "big")))
    too_long = limits.RECORD_PLAINTEXT_BYTES_MAX + 17
    with pytest.raises(LimitExceeded, match=str(too_long)):
        plaintext_bytes(memoryview(too_long.to_bytes(4, "big")))
    for size in (1, limits.RECORD_PLAINTEXT_BYTES_MAX):
        assert plaintext_bytes(memoryview((size + 16).to_bytes(4, "big"))) == size


def test_each_side_counts_the_records_of_a_direction() -> None:
    cipher = CipherName.AES_256_GCM
    sealer, opener = Sealer(SECRET, cipher, Role.CLIENT), Opener(SECRET, cipher, Role.CLIENT)
    assert (sealer.records, opener.records) == (0, 0)
    for number in (1, 2):
        unseal(opener, seal(sealer, b"payload"))
        assert (sealer.records, opener.records) == (number, number)


def test_slow_turns_shrink_and_fast_turns_grow() -> None:
    size = limits.FRAME_DATA_BYTES_MAX
    for _ in range(10):
        size = next_body_bytes(size, size, 4 * SEND_TURN_S)
    assert size == SEND_TURN_BYTES_MIN
    # A small frame that was stuck says nothing about how large a turn may be.
    assert next_body_bytes(2 * size, 100, 1.0) == 2 * size
    for _ in range(10):
        size = next_body_bytes(size, size, 0.0)
    assert size == limits.FRAME_DATA_BYTES_MAX


# --- inbox and buffers -----------------------------------------------------------------------


def put(inbox: Inbox, data: bytes) -> int:
    inbox.destination(len(data))[:] = data
    return inbox.commit(len(data))


def test_bytes_keep_their_order_whichever_way_they_come() -> None:
    inbox = Inbox(BufferPool())
    inbox.append(memoryview(b"ab"))
    assert put(inbox, b"cd") == 0
    inbox.append(memoryview(b"ef"))
    assert inbox.unread_bytes == 6
    buffer = bytearray(5)
    assert inbox.read_into(memoryview(buffer)) == 5
    assert bytes(buffer) == b"abcde"
    assert bytes(inbox.take()) == b"f"
    assert inbox.unread_bytes == 0
    assert bytes(inbox.take()) == b""


def test_a_lent_buffer_is_filled_directly_as_long_as_nothing_waits() -> None:
    inbox = Inbox(BufferPool())
    buffer = bytearray(6)
    inbox.lend(memoryview(buffer))
    assert put(inbox, b"abc") == 3
    assert inbox.waits_for_more()
    assert put(inbox, b"defg") == 0  # does not fit: goes the other way
    assert put(inbox, b"h") == 0  # would fit, but must not overtake
    assert not inbox.waits_for_more()
    assert inbox.take_back() == 3
    assert inbox.read_into(memoryview(buffer)[3:]) == 3
    assert bytes(buffer) == b"abcdef"
    assert inbox.unread_bytes == 2


def test_a_piece_that_was_begun_is_given_from_where_it_is() -> None:
    inbox = Inbox(BufferPool())
    for data in (b"abcdef", b"xyz", b"12"):
        put(inbox, data)
    buffer = memoryview(bytearray(2))
    assert inbox.read_into(buffer) == 2
    assert inbox.unread_bytes == 9
    assert inbox.take_whole(4) is None, "it is no whole piece any more"
    assert inbox.read_into(buffer) == 2
    assert bytes(inbox.take()) == b"ef"
    assert inbox.unread_bytes == 5
    assert inbox.read_into(memoryview(bytearray(3))) == 3
    whole = inbox.take_whole(2)
    assert whole is not None
    assert bytes(whole) == b"12"
    assert inbox.unread_bytes == 0
    assert inbox.read_into(buffer) == 0


def test_what_is_forgotten_is_no_part_of_what_comes_next() -> None:
    inbox = Inbox(BufferPool())
    inbox.append(memoryview(b"abc"))
    inbox.read_into(memoryview(bytearray(1)))
    inbox.clear()
    assert inbox.unread_bytes == 0
    inbox.append(memoryview(b"def"))
    assert inbox.unread_bytes == 3
    assert bytes(inbox.take()) == b"def"


def test_small_pieces_are_joined_up_to_a_size() -> None:
    for n_bytes, sizes in ((1, [INLINE]), (2, [INLINE - 1, 2])):
        inbox = Inbox(BufferPool())
        for size in (INLINE - 1, n_bytes):
            inbox.append(memoryview(bytes(size)))
        assert [len(inbox.take()) for _ in sizes] == sizes
        assert inbox.unread_bytes == 0


def test_each_buffer_that_is_lent_is_filled_from_its_beginning_to_its_end() -> None:
    inbox = Inbox(BufferPool())
    assert not inbox.waits_for_more()
    assert inbox.take_back() == 0, "none was lent"
    for _ in range(2):
        buffer = bytearray(6)
        inbox.lend(memoryview(buffer))
        assert put(inbox, b"ab") == 2
        assert inbox.waits_for_more()
        assert put(inbox, b"cdef") == 4
        assert not inbox.waits_for_more(), "it is full"
        assert bytes(buffer) == b"abcdef"
        assert inbox.take_back() == 6
        assert inbox.take_back() == 0
        assert inbox.unread_bytes == 0


def test_memory_is_used_again_only_when_no_view_of_it_is_left() -> None:
    pool = BufferPool()
    size = RECYCLED_BUFFER_BYTES_MIN
    first = pool.get(size)
    kept = memoryview(first)
    address = id(first)
    del first
    assert id(pool.get(size)) != address  # a view of it is alive
    kept.release()
    del kept
    assert id(pool.get(size)) == address
    assert len(pool.get(1)) == 1


def test_a_pool_hands_out_all_that_it_keeps_before_it_makes_new_ones() -> None:
    size = RECYCLED_BUFFER_BYTES_MIN
    pool = BufferPool(3)
    held = [pool.get(size) for _ in range(3)]
    for buffer in held:
        buffer[0] = 1
    del held, buffer
    again = [pool.get(size) for _ in range(3)]
    assert [buffer[0] for buffer in again] == [1, 1, 1]
    assert pool.get(size)[0] == 0, "all are in use"
    del again
    pool.clear()
    assert [pool.get(size)[0] for _ in range(3)] == [0, 0, 0], "given back to the system"


def test_memory_of_a_size_that_is_asked_for_no_more_is_the_first_to_go() -> None:
    size = RECYCLED_BUFFER_BYTES_MIN
    pool = BufferPool(2)
    pool.get(size)[0] = 1
    pool.get(size + 1)[0] = 1
    pool.get(size + 2)[0] = 1
    assert pool.get(size + 1)[0] == 1
    assert pool.get(size)[0] == 0, "given up for the third"
