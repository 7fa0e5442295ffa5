"""Real daemons behind NATs find the best way there is; all 55 pairs: ``tests/lab/matrix.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.matrix import all_pairs, expected_path, is_right, measure

# One pair for each way, and for each reason why there is no better one.
PAIRS = (
    ("none", "port-restricted"),
    ("cgnat", "port-restricted"),
    ("full-cone", "symmetric"),
    ("symmetric", "cgnat-sym"),
    ("udp-blocked", "tcp-443"),
)
FAR_PAIRS = (
    pytest.param(("port-restricted", "port-restricted"), id="port-restricted:port-restricted"),
    pytest.param(PAIRS[-1], marks=pytest.mark.soak, id=":".join(PAIRS[-1])),
)
LATE_MS = 15  # the kernel's clock, on a busy machine


@pytest.mark.parametrize("pair", PAIRS, ids=":".join)
def test_two_nodes_exchange_by_the_best_way(
    able: None, tmp_path: Path, pair: tuple[str, str]
) -> None:
    said: list[str] = []
    result = measure(*pair, tmp_path, said.append)
    assert result.exchanged, said
    assert result.path == expected_path(*pair)


@pytest.mark.parametrize("pair", FAR_PAIRS)
def test_the_ways_are_the_same_at_a_distance(
    able: None, tmp_path: Path, pair: tuple[str, str]
) -> None:
    """40 ms on each of four uplinks."""
    said: list[str] = []
    result = measure(*pair, tmp_path, said.append, delay_ms=40)
    assert result.rtt_ms == pytest.approx(160, abs=LATE_MS)
    assert result.exchanged, said
    assert result.path == expected_path(*pair)
    assert is_right(result.as_condition())
    assert "Connected" in result.told or "relays" in result.told, result.told


def test_a_port_that_the_router_maps_is_dialled(able: None, tmp_path: Path) -> None:
    """Nothing could be punched here; a volunteer has dialled the mapped port back before."""
    said: list[str] = []
    result = measure("symmetric+upnp", "symmetric", tmp_path, said.append, expected="direct")
    assert result.exchanged, said
    assert result.path == "direct"


def test_the_matrix_is_whole() -> None:
    pairs = all_pairs()
    assert len(pairs) == len(set(pairs)) == 55
    expected = [expected_path(a, b) for a, b in pairs]
    assert {way: expected.count(way) for way in set(expected)} == {
        "direct": 9,
        "punched-tcp": 21,
        "rtc": 4,
        "relay": 21,
    }
