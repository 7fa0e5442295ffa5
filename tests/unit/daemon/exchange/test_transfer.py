"""The payload of an exchange, with the real codecs: both sides end with the same two vectors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
import trio

from swarmnode.daemon.exchange.pair.intents import count_pieces, cut, pair_codecs
from swarmnode.daemon.exchange.pair.transfer import Transfer
from swarmnode.errors import ConfigError, MalformedMessage, WorkerError
from swarmnode.ipc.control import PostedIntent
from swarmnode.ipc.records import ViewShape
from swarmnode.limits import CODEC_CHUNK_ELEMS
from swarmnode.tensor.codec import CODEC_NAMES, get_codec

Floats = npt.NDArray[np.float32]

USUAL = get_codec("Q8B64")
# The largest error as a share of the largest value; 1 where the smaller ones may be lost.
ERROR_BOUNDS = {
    "RAW32": 0.0,
    "BF16": 2.0**-8,
    "Q8B64": 0.505 / 127,
    "Q4B64": 0.505 / 7,
    "E3M0": 0.415,
    "Q2B64": 1.0,
    "T3B320": 1.0,
    "SIGN64": 1.0,
    "TK4": 1.0,
    "TK2": 1.0,
}


def values(numel: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def intent_of(*views: ViewShape) -> PostedIntent:
    return PostedIntent(1, "pair", "x", 0, 1, "matching", views)


class Side:
    """One node's slot and its transfer."""

    def __init__(self, given: Floats, *codecs: str, numel: tuple[int, ...] = ()) -> None:
        sizes = numel or (given.size,)
        views = [ViewShape(f"v{n}", "", size) for n, size in enumerate(sizes)]
        self.own, self.room = given.copy(), np.full_like(given, np.nan)
        pieces = cut(intent_of(*views), [get_codec(name) for name in codecs])
        assert len(pieces) == count_pieces(intent_of(*views))
        self.transfer = Transfer(pieces)

    def lend(self) -> Transfer:
        self.transfer.lend(self.own.data.cast("B"), self.room.data.cast("B"))
        return self.transfer


def all_payloads(transfer: Transfer) -> list[bytes]:
    payloads = []
    while (chunk := transfer.encode_next()) is not None:
        index, payload = chunk
        assert index == len(payloads)
        payloads.append(bytes(payload))
        transfer.note_sent()
    return payloads


async def take_all(transfer: Transfer, payloads: Iterable[tuple[int, bytes]]) -> None:
    for index, payload in payloads:
        await transfer.take(index, memoryview(payload))


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("numel", [1, 640, CODEC_CHUNK_ELEMS, 2 * CODEC_CHUNK_ELEMS + 77])
async def test_both_sides_end_with_the_same_two_vectors(name: str, numel: int) -> None:
    given = values(numel, 1), values(numel, 2)
    sides = [Side(each, name) for each in given]
    a, b = (side.lend() for side in sides)
    from_a, from_b = all_payloads(a), all_payloads(b)
    await take_all(a, enumerate(from_b))
    await take_all(b, reversed(list(enumerate(from_a))))  # any order will do
    assert a.is_complete
    assert b.is_complete
    assert np.array_equal(sides[0].own, sides[1].room)
    assert np.array_equal(sides[0].room, sides[1].own)
    for side, was in zip(sides, given, strict=True):
        assert np.abs(side.own - was).max() <= ERROR_BOUNDS[name] * np.abs(was).max()
    assert a.sent_bytes == b.received_bytes == sum(map(len, from_a))


async def test_each_view_is_cut_and_encoded_on_its_own() -> None:
    numel = (CODEC_CHUNK_ELEMS + 1, 77)
    given = values(sum(numel), 1), values(sum(numel), 2)
    a, b = (Side(each, "E3M0", "RAW32", numel=numel) for each in given)
    payloads = all_payloads(a.lend())
    sizes = [(CODEC_CHUNK_ELEMS, "E3M0"), (1, "E3M0"), (77, "RAW32")]
    assert [len(p) for p in payloads] == [get_codec(c).payload_bytes(n) for n, c in sizes]
    await take_all(b.lend(), enumerate(payloads))
    assert np.array_equal(b.room[numel[0] :], given[0][numel[0] :])
    assert np.array_equal(b.room, a.own)
    assert not np.array_equal(b.room, given[0])


def test_the_codecs_of_a_pair_are_known_and_stand_alone() -> None:
    views = ViewShape("x", "", 5), ViewShape("y", "E3M0", 5)
    assert [codec.name for codec in pair_codecs(intent_of(*views), USUAL)] == ["Q8B64", "E3M0"]
    for name, expected in (("Q9", "no codec 'Q9'"), ("TK4", "TK4 does not stand alone")):
        with pytest.raises(ConfigError, match=expected):
            pair_codecs(intent_of(ViewShape("x", name, 5)), USUAL)


async def test_nothing_is_sent_and_what_comes_waits_until_the_slot_is_there(autojump_clock) -> None:
    (payload,) = all_payloads(Side(values(640, 2), "Q8B64").lend())
    side = Side(values(640, 1), "Q8B64")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.transfer.take, 0, memoryview(payload))
        await trio.sleep(1)
        assert side.transfer.encode_next() is None
        assert side.transfer.received_bytes == 0
        assert len(all_payloads(side.lend())) == 1
    assert side.transfer.is_complete


async def test_the_end_wakes_waiting_callers_and_leaves_the_slot_alone(autojump_clock) -> None:
    (payload,) = all_payloads(Side(values(640, 2), "Q8B64").lend())
    side = Side(values(640, 1), "Q8B64")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.transfer.take, 0, memoryview(payload))
        await trio.sleep(1)
        side.transfer.end()
    assert side.transfer.encode_next() is None
    assert not side.transfer.is_complete
    assert np.array_equal(side.own, values(640, 1))
    assert np.isnan(side.room).all()


@pytest.mark.parametrize("change", [b"", b"\0"])
async def test_a_payload_of_the_wrong_length_changes_nothing(change: bytes) -> None:
    (ours,) = all_payloads(Side(values(640, 2), "Q8B64").lend())
    side = Side(values(640, 1), "Q8B64")
    payload = ours + change if change else ours[:-1]
    with pytest.raises(MalformedMessage, match=f"expected {len(ours)} bytes of Q8B64"):
        await side.transfer.take(0, memoryview(payload))  # it does not wait for the slot to say so
    side.lend()
    assert np.isnan(side.room).all()


async def test_a_payload_with_an_infinite_scale_changes_nothing() -> None:
    (ours,) = all_payloads(Side(values(640, 2), "Q8B64").lend())
    side = Side(values(640, 1), "Q8B64")
    with pytest.raises(MalformedMessage):
        await side.lend().take(0, memoryview(b"\xff" * len(ours)))
    assert np.isnan(side.room).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_our_own_values_must_be_finite(bad: float) -> None:
    given = values(2 * CODEC_CHUNK_ELEMS, 1)
    given[CODEC_CHUNK_ELEMS + 3] = bad
    transfer = Side(given, "Q4B64").lend()
    assert transfer.encode_next() is not None
    with pytest.raises(WorkerError, match="finite"):
        transfer.encode_next()


@pytest.mark.parametrize("name", ["RAW32", "BF16", "Q8B64", "Q4B64"])
def test_figures_of_a_sample_are_near_those_of_the_whole(name: str) -> None:
    given = values(50_000, 1)
    side = Side(given, name)
    transfer = side.lend()
    assert (transfer.encode_error_ratio, transfer.distance_ratio) == (None, None)
    all_payloads(transfer)
    error = np.linalg.norm(given - side.own) / np.linalg.norm(given)
    assert transfer.encode_error_ratio == pytest.approx(error, rel=0.2, abs=1e-9)
    side.room[:] = given + 0.1 * values(given.size, 2)
    transfer.measure()
    distance = np.linalg.norm(side.own - side.room) / np.linalg.norm(side.own + side.room)
    assert transfer.distance_ratio == pytest.approx(distance, rel=0.1)
    assert distance == pytest.approx(0.05, rel=0.5)


def test_zeros_have_no_ratio() -> None:
    side = Side(np.zeros(640, np.float32), "Q8B64")
    all_payloads(side.lend())
    side.room[:] = 0
    side.transfer.measure()
    assert (side.transfer.encode_error_ratio, side.transfer.distance_ratio) == (None, None)
