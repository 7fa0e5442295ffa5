"""The payload of an exchange, with the real codecs: both slots end as exact negatives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
import trio

from swarmnode.daemon.transfer import Transfer
from swarmnode.errors import MalformedMessage, WorkerError
from swarmnode.limits import CODEC_CHUNK_ELEMS
from swarmnode.tensor.codec import CODEC_NAMES, Codec, get_codec

Floats = npt.NDArray[np.float32]

# The largest error as a share of the largest value; 1 where the smaller ones may be lost. RAW32
# rounds only the difference.
ERROR_BOUNDS = {
    "RAW32": 2.0**-24,
    "BF16": 2.0**-8,
    "Q8B64": 0.505 / 127,
    "Q4B64": 0.505 / 7,
    "E3M0": 0.415,
    "SIGN64": 1.0,
    "TK4": 1.0,
}


def values(numel: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def transfer_of(slot: Floats, codec: Codec) -> Transfer:
    return Transfer(slot.data.cast("B"), codec)


def all_payloads(transfer: Transfer) -> list[bytes]:
    payloads = []
    while (chunk := transfer.encode_next()) is not None:
        index, payload = chunk
        assert index == len(payloads)
        payloads.append(bytes(payload))
        transfer.note_sent()
    return payloads


async def merge_all(transfer: Transfer, payloads: Iterable[tuple[int, bytes]]) -> None:
    for index, payload in payloads:
        await transfer.merge(index, memoryview(payload))


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("numel", [1, 640, CODEC_CHUNK_ELEMS, 2 * CODEC_CHUNK_ELEMS + 77])
async def test_both_slots_end_as_exact_negatives(name: str, numel: int) -> None:
    codec = get_codec(name)
    slots = values(numel, 1), values(numel, 2)
    given = [slot.copy() for slot in slots]
    a, b = (transfer_of(slot, codec) for slot in slots)
    from_a, from_b = all_payloads(a), all_payloads(b)
    await merge_all(a, enumerate(from_b))
    await merge_all(b, reversed(list(enumerate(from_a))))  # any order will do
    assert a.is_complete
    assert b.is_complete
    assert np.array_equal(slots[0], -slots[1])
    wanted = given[1] - given[0]
    amax = np.abs(np.concatenate(given)).max()
    assert np.abs(slots[0] - wanted).max() <= 2 * ERROR_BOUNDS[name] * amax
    assert a.sent_bytes == b.received_bytes == sum(map(len, from_a))


async def test_a_chunk_that_is_early_waits_until_ours_is_encoded(autojump_clock) -> None:
    codec = get_codec("Q8B64")
    numel = 2 * CODEC_CHUNK_ELEMS
    slots = values(numel, 1), values(numel, 2)
    a, b = (transfer_of(slot, codec) for slot in slots)
    second = all_payloads(b)[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.merge, 1, memoryview(second))
        for expected in (0, 0):
            await trio.sleep(1)
            assert a.received_bytes == expected
            a.encode_next()
        await trio.sleep(1)
        assert a.received_bytes == len(second)


async def test_the_end_wakes_whoever_waits_and_leaves_the_slot_alone(autojump_clock) -> None:
    codec = get_codec("Q8B64")
    slot = values(640, 1)
    given = slot.copy()
    transfer = transfer_of(slot, codec)
    payload = all_payloads(transfer_of(values(640, 2), codec))[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transfer.merge, 0, memoryview(payload))
        await trio.sleep(1)
        transfer.end()
    assert transfer.encode_next() is None
    assert not transfer.is_complete
    assert np.array_equal(slot, given)


@pytest.mark.parametrize("change", [b"", b"\0"])
async def test_a_payload_of_the_wrong_length_changes_nothing(change: bytes) -> None:
    codec = get_codec("Q8B64")
    slot = values(640, 1)
    transfer = transfer_of(slot, codec)
    (ours,) = all_payloads(transfer)
    before = slot.copy()
    payload = ours + change if change else ours[:-1]
    with pytest.raises(MalformedMessage, match=f"expected {len(ours)} bytes of Q8B64"):
        await transfer.merge(0, memoryview(payload))
    assert np.array_equal(slot, before)


async def test_a_payload_with_an_infinite_scale_changes_nothing() -> None:
    codec = get_codec("Q8B64")
    slot = values(640, 1)
    transfer = transfer_of(slot, codec)
    (ours,) = all_payloads(transfer)
    before = slot.copy()
    with pytest.raises(MalformedMessage):
        await transfer.merge(0, memoryview(b"\xff" * len(ours)))
    assert np.array_equal(slot, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_our_own_values_must_be_finite(bad: float) -> None:
    slot = values(2 * CODEC_CHUNK_ELEMS, 1)
    slot[CODEC_CHUNK_ELEMS + 3] = bad
    transfer = transfer_of(slot, get_codec("Q4B64"))
    assert transfer.encode_next() is not None
    with pytest.raises(WorkerError, match="finite"):
        transfer.encode_next()
