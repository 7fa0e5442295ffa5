"""The peers that a node says it met, and what a swarm's exchanges look like as a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.exchange.history import (
    Meetings,
    SwarmMixing,
    letters_of,
    mixing_of,
    observed_rates,
)
from swarmnode.ids import PeerId
from swarmnode.strategies.topology import build_graph
from swarmnode.telemetry.metrics import MixingFigures
from swarmnode.wire.crdt import RegisterText


def peers(n: int) -> list[PeerId]:
    return sorted(PeerId(bytes([i * 7 % 256, i]) * 16) for i in range(1, n + 1))


def told(edges: dict[tuple[int, int], int], n: int) -> dict[PeerId, str]:
    """Return what n nodes say that have exchanged so often an hour."""
    ids = peers(n)
    said: dict[PeerId, list[str]] = {peer: [] for peer in ids}
    for (i, j), rate in edges.items():
        said[ids[i]].append(f"{letters_of(ids[j])}:{rate}")
        said[ids[j]].append(f"{letters_of(ids[i])}:{rate}")
    return {peer: " ".join(words) for peer, words in said.items()}


# --- what is said -------------------------------------------------------------------------------


def test_rates_are_of_the_last_ten_minutes() -> None:
    a, b = peers(2)
    meetings = Meetings()
    assert meetings.said(0.0) is None
    for second in range(0, 1200, 10):
        meetings.note(a, 1000.0 + second)
        if second % 40 == 0:
            meetings.note(b, 1000.0 + second)
    assert meetings.said(2200.0) == f"{letters_of(a)}:360 {letters_of(b)}:90"
    assert meetings.said(2200.0 + limits.MET_WINDOW_S + 1) == ""


def test_two_quick_exchanges_are_no_habit() -> None:
    (a,) = peers(1)
    meetings = Meetings()
    meetings.note(a, 5.0)
    meetings.note(a, 6.0)
    assert meetings.said(6.0) == f"{letters_of(a)}:120"


def test_it_is_the_same_for_a_while() -> None:
    (a,) = peers(1)
    meetings = Meetings()
    meetings.note(a, 0.0)
    first = meetings.said(0.0)
    meetings.note(a, 1.0)
    assert meetings.said(limits.MET_SAY_S - 1) == first == f"{letters_of(a)}:60"
    assert meetings.said(limits.MET_SAY_S) == f"{letters_of(a)}:120"


def test_it_fits_into_a_register_whatever_happens() -> None:
    meetings = Meetings()
    for round_number in range(40):
        for peer in peers(60):
            meetings.note(peer, float(round_number))
    said = meetings.said(41.0)
    assert said is not None
    assert len(said.split()) == limits.MET_PARTNERS_MAX
    assert msgspec.convert(said, RegisterText) == said
    fast = Meetings()
    for n in range(10_000):
        fast.note(peers(16)[n % 16], n * 1e-3)
    assert msgspec.convert(fast.said(10.0), RegisterText)


# --- the graph ----------------------------------------------------------------------------------


def test_the_graph_of_a_ring_is_found_again() -> None:
    ring = build_graph("ring", 8)
    assert ring is not None
    rates = observed_rates(told(dict.fromkeys(ring.edges, 3600), 8))
    assert rates == dict.fromkeys(ring.edges, 1.0)
    expected = ring.mixing()
    assert mixing_of(8, rates) == MixingFigures(expected.lambda2, expected.chi1, expected.chi2)


def test_what_one_end_left_out_the_other_says() -> None:
    said = told({(0, 1): 7200, (1, 2): 10}, 3)
    ids = peers(3)
    said[ids[1]] = f"{letters_of(ids[0])}:3600"
    assert observed_rates(said) == {(0, 1): 2.0, (1, 2): 10 / 3600}


def test_hostile_words_are_left_out() -> None:
    ids = peers(3)
    said = told({(0, 1): 3600, (1, 2): 3600}, 3)
    me = letters_of(ids[0])
    said[ids[0]] = f"{me}:9 zzzzzzzz:5 {letters_of(ids[2])}:0 :: {letters_of(ids[1])}:-3 \x1b[2J"
    assert observed_rates(said) == {(0, 1): 1.0, (1, 2): 1.0}


def test_a_swarm_in_parts_mixes_never() -> None:
    figures = mixing_of(4, observed_rates(told({(0, 1): 10, (2, 3): 10}, 4)))
    assert figures == MixingFigures(0.0, math.inf, math.inf)


# --- when it is computed --------------------------------------------------------------------------


class Calls:
    """Counts what runs in the thread."""

    def __init__(self) -> None:
        self.n = 0

    async def __call__(self, compute: Callable[[], Any]) -> Any:
        self.n += 1
        return compute()


async def test_it_is_computed_once_a_minute_for_all_callers(autojump_clock: MockClock) -> None:
    mixing, calls = SwarmMixing(), Calls()
    said = told({(0, 1): 60}, 2)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(mixing.refresh, said, calls)
    assert calls.n == 1
    assert mixing.figures is not None
    assert mixing.figures.lambda2 == pytest.approx(2 / 60)
    await trio.sleep(limits.MIXING_KEEP_S)
    await mixing.refresh(told({(0, 1): 120}, 2), calls)
    assert calls.n == 2
    assert mixing.figures.lambda2 == pytest.approx(4 / 60)


@pytest.mark.parametrize("n", [1, limits.MIXING_MEMBERS_MAX + 1])
async def test_not_for_one_and_not_for_too_many(autojump_clock: MockClock, n: int) -> None:
    mixing, calls = SwarmMixing(), Calls()
    said = dict.fromkeys((PeerId(i.to_bytes(32, "big")) for i in range(n)), "")
    await mixing.refresh(said, calls)
    assert (mixing.figures, calls.n) == (None, 0)
