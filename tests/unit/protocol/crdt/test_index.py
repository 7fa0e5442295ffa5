"""Digests of ranges, the clock that stamps what is said, and what a record is made of."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from swarmnode import limits
from swarmnode.errors import AuthenticationFailed, LimitExceeded
from swarmnode.protocol.crdt.actors import Actor
from swarmnode.protocol.crdt.clock import HybridClock, Stamp
from swarmnode.protocol.crdt.records import (
    NO_HASH,
    RangeIndex,
    check_proof,
    open_record,
    seal,
    weigh,
)
from swarmnode.wire import crdt as wire
from swarmnode.wire.packing import encode_record
from tests.kits.crdt_world import NETWORK, WALL_UNIX_S, ToySigner, signed_record, verify_toy
from tests.unit.protocol.crdt.courier_kit import words_that_fill

AUTHOR = ToySigner.make(1000)
AHEAD_MS = int(limits.STATE_CLOCK_AHEAD_S * 1000)


def head(first: int, second: int = 0, *, epoch: int = 1, sequence: int = 1) -> wire.Head:
    """Return the head of a peer whose id begins with these bytes."""
    return wire.Head(bytes([first, second]) + bytes(30), epoch, sequence, NO_HASH)


def summed(*heads: wire.Head) -> bytes:
    total = sum(weigh(each).weight for each in heads)
    return (total % 2**256).to_bytes(32, "big")


# --- digests -----------------------------------------------------------------------------


def test_a_digest_is_the_number_and_the_sum_of_the_heads_of_its_range() -> None:
    index = RangeIndex()
    heads = [head(0x00), head(0x0F, 0xFF), head(0x10), head(0xA0), head(0xAF), head(0xB0)]
    for each in heads:
        index.put(weigh(each))
    zero, fifteen, sixteen, first_a, last_a, first_b = heads
    assert index.digest("") == wire.Range("", 6, summed(*heads))
    assert index.digest("0") == wire.Range("0", 2, summed(zero, fifteen))
    assert index.digest("a") == wire.Range("a", 2, summed(first_a, last_a))
    assert index.digest("1") == wire.Range("1", 1, summed(sixteen))
    assert index.digest("10") == wire.Range("10", 1, summed(sixteen))
    assert index.digest("0ff") == wire.Range("0ff", 1, summed(fifteen))
    assert index.digest("0f0") == wire.Range("0f0", 0, bytes(32))
    assert index.digest("c") == wire.Range("c", 0, bytes(32))
    assert index.heads("a") == [first_a, last_a]
    assert index.heads("") == heads
    assert index.get(first_b.peer) == first_b
    assert index.get(head(0xC0).peer) is None
    digits = "0123456789abcdef"
    assert index.split("") == tuple(index.digest(digit) for digit in digits)
    assert index.split("a") == tuple(index.digest("a" + digit) for digit in digits)


def test_a_later_head_takes_the_place_of_the_one_before_it() -> None:
    index = RangeIndex()
    early, late, beside = head(0xA0, sequence=1), head(0xA0, sequence=2), head(0xA1)
    for each in (early, beside, late):
        index.put(weigh(each))
    assert len(index) == 2
    for prefix in ("", "a"):
        assert index.digest(prefix) == wire.Range(prefix, 2, summed(late, beside))
    for prefix in ("a0", "a00"):
        assert index.digest(prefix) == wire.Range(prefix, 1, summed(late))
    index.remove(late.peer)
    index.remove(late.peer)  # once more
    assert index.get(late.peer) is None
    assert index.heads("a") == [beside]
    for prefix in ("", "a"):
        assert index.digest(prefix) == wire.Range(prefix, 1, summed(beside))
    assert index.digest("a0") == wire.Range("a0", 0, bytes(32))


@pytest.mark.parametrize("prefix", ["\n", "3\n", "a\n"])
def test_a_range_that_ends_in_a_line_break_is_empty_whatever_number_it_reads_as(
    prefix: str,
) -> None:
    index = RangeIndex()
    for first in range(16):
        index.put(weigh(head(first)))
    assert index.digest(prefix) == wire.Range(prefix, 0, bytes(32))
    assert index.heads(prefix) == []


# --- the clock ---------------------------------------------------------------------------


def test_a_clock_shows_the_time_of_day_from_its_start_on() -> None:
    clock = HybridClock(1000.0, 50.0)
    assert [clock.wall_ms(now) for now in (50.0, 51.5)] == [1_000_000, 1_001_500]
    clock.set_wall(2000.0, 60.0)
    assert clock.wall_ms(61.0) == 2_001_000


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_more_than_a_day_ahead_is_a_broken_clock(beyond_ms: int) -> None:
    clock = HybridClock(1000.0, 0.0)
    stamp = Stamp(1_000_000 + AHEAD_MS + beyond_ms, 5)
    assert clock.is_ahead(stamp, 0.0) is (beyond_ms == 1)


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_a_stamp_is_followed_half_as_far_as_it_is_allowed(beyond_ms: int) -> None:
    clock = HybridClock(1000.0, 0.0)
    stamp = Stamp(1_000_000 + AHEAD_MS // 2 + beyond_ms, 5)
    clock.observe(stamp, 0.0)
    follows = Stamp(stamp.wall_ms, 6)
    assert clock.next(0.0) == (Stamp(1_000_000, 0) if beyond_ms else follows)


def test_a_stamp_that_was_observed_before_does_not_turn_the_clock_back() -> None:
    clock = HybridClock(1000.0, 0.0)
    clock.observe(Stamp(1_009_000, 3), 0.0)
    clock.observe(Stamp(1_005_000, 9), 0.0)
    assert clock.next(0.0) == Stamp(1_009_000, 4)


@pytest.mark.parametrize("beyond_s", [0, 1])
def test_a_clock_that_was_set_back_by_more_than_a_day_forgets_its_stamps(beyond_s: int) -> None:
    clock = HybridClock(WALL_UNIX_S, 0.0)
    last = clock.next(0.0)
    set_to_s = WALL_UNIX_S - limits.STATE_CLOCK_AHEAD_S - beyond_s
    clock.set_wall(set_to_s, 0.0)
    anew = Stamp(int(set_to_s * 1000), 0)
    assert clock.next(0.0) == (anew if beyond_s else Stamp(last.wall_ms, 1))


@pytest.mark.parametrize("tick", [limits.STATE_CLOCK_TICKS_MAX - 1, limits.STATE_CLOCK_TICKS_MAX])
def test_after_the_last_tick_comes_the_next_millisecond(tick: int) -> None:
    clock = HybridClock(1000.0, 0.0)
    clock.observe(Stamp(1_000_000, tick), 0.0)
    is_last = tick == limits.STATE_CLOCK_TICKS_MAX
    assert clock.next(0.0) == (Stamp(1_000_001, 0) if is_last else Stamp(1_000_000, tick + 1))


def test_of_one_millisecond_the_ticks_begin_anew_in_the_next() -> None:
    clock = HybridClock(1000.0, 0.0)
    assert [clock.next(now) for now in (0.0, 0.0, 0.001, 0.001)] == [
        Stamp(1_000_000, 0),
        Stamp(1_000_000, 1),
        Stamp(1_000_001, 0),
        Stamp(1_000_001, 1),
    ]


# --- records -----------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_sealed() -> None:
    sealed = signed_record(AUTHOR, 4, epoch=3, counters={"steps": 1})
    opened = open_record(sealed.signed, NETWORK)
    assert opened == sealed
    assert opened.actor == Actor(AUTHOR.peer_id, 3)
    assert (opened.version, opened.sequence) == ((3, 4), 4)
    assert opened.stamp == Stamp(int(WALL_UNIX_S * 1000), 0)
    says = b"swarmnode/state/1\0" + sealed.signed.body
    assert opened.hash == hashlib.sha256(says).digest()
    assert opened.head == wire.Head(bytes(AUTHOR.peer_id), 3, 4, opened.hash)
    assert opened.weighed == weigh(opened.head)
    assert opened.size_bytes == len(sealed.signed.body) + 128, "with its key and its signature"


def test_a_record_may_be_as_large_as_the_limit() -> None:
    last = signed_record(AUTHOR).record

    def record_with(leases: tuple[wire.Lease, ...], registers: dict[str, str]) -> wire.StateRecord:
        return msgspec.structs.replace(last, leases=leases, registers=dict(registers))

    def size_of(leases: tuple[wire.Lease, ...], registers: dict[str, str]) -> int:
        return len(encode_record(record_with(leases, registers)))

    most = limits.STATE_RECORD_BYTES_MAX
    sealed = seal(record_with(*words_that_fill(most, size_of)), AUTHOR)
    assert len(sealed.signed.body) == most
    assert open_record(sealed.signed, NETWORK) == sealed
    larger = record_with(*words_that_fill(most + 1, size_of))
    match = f"at most {most} bytes, this one has {most + 1}"
    with pytest.raises(LimitExceeded, match=match):
        seal(larger, AUTHOR)
    body = encode_record(larger)
    with pytest.raises(LimitExceeded, match=match):
        open_record(msgspec.structs.replace(sealed.signed, body=body), NETWORK)


@pytest.mark.parametrize("is_first_forged", [True, False])
def test_a_proof_counts_with_both_signatures(is_first_forged: bool) -> None:
    signed = [signed_record(AUTHOR, maxima={"step": step}).signed for step in (1, 2)]
    assert check_proof(wire.Proof(*signed), NETWORK, verify_toy) == AUTHOR.peer_id
    place = 0 if is_first_forged else 1
    one = signed[place]
    signed[place] = type(one)(one.body, one.public_key, bytes(len(one.signature)))
    with pytest.raises(AuthenticationFailed, match="state record"):
        check_proof(wire.Proof(*signed), NETWORK, verify_toy)
