"""WebRTC and STUN between every two kinds of NAT: where UDP gets through, and where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any

import pytest

from swarmnode import limits
from tests.lab.hosts import Host
from tests.lab.natlab import NAT_TYPES, NatLab
from tests.lab.shaper import Shape

PORT = 7337
SERVERS = [f"11.11.11.{number}:{PORT}" for number in (10, 20, 30)]
DELAY = Shape(delay_ms=10)  # a round trip of 40 ms
GIVE_UP_S = 1.0  # what cannot work need not be tried for ten
WITHOUT_UDP = ("udp-blocked", "tcp-443")
# A port for every destination: reached only by peers that let in any port of a host.
SYMMETRIC = ("symmetric", "cgnat-sym")
OPEN_TO_ANY_PORT = ("none", "full-cone", "addr-restricted")

# Mapping, filtering. A carrier's NAT and the home's both count: the stricter one shows.
BEHAVIOUR = {
    "none": ("endpoint-independent", "endpoint-independent"),
    "firewall": ("endpoint-independent", "address-and-port-dependent"),
    "full-cone": ("endpoint-independent", "endpoint-independent"),
    "addr-restricted": ("endpoint-independent", "address-dependent"),
    "port-restricted": ("endpoint-independent", "address-and-port-dependent"),
    "symmetric": ("address-and-port-dependent", "address-and-port-dependent"),
    "cgnat": ("endpoint-independent", "address-and-port-dependent"),
    "cgnat-sym": ("address-and-port-dependent", "address-and-port-dependent"),
    "udp-blocked": ("unknown", "unknown"),
    "tcp-443": ("unknown", "unknown"),
}

Clients = dict[str, tuple[Host, Host]]
Pair = tuple[str, str]


@pytest.fixture(scope="module")
def clients(able: None) -> Iterator[Clients]:
    """Two clients of each type, each behind a router of its own."""
    sites = [kind for kind in NAT_TYPES for _ in range(2)]
    with NatLab(sites, public=3, shape=DELAY) as lab:
        for name in ("pub0", "pub1", "pub2"):
            Host(lab, name, "tests.lab.rtc_agent").ask("stun", port=PORT)
        hosts = [Host(lab, f"c{number}", "tests.lab.rtc_agent") for number in range(len(sites))]
        yield {kind: (hosts[2 * i], hosts[2 * i + 1]) for i, kind in enumerate(NAT_TYPES)}


def can_connect(one: str, other: str) -> bool:
    """Whether UDP can be punched between these kinds."""
    kinds = {one, other}
    if kinds & set(WITHOUT_UDP):
        return False
    if not kinds & set(SYMMETRIC):
        return True
    return bool(kinds & set(OPEN_TO_ANY_PORT))


def batches(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Yield all pairs, in batches in which each client, of two of a kind, takes part once."""
    left = list(pairs)
    while left:
        batch: list[Pair] = []
        for pair in left:
            if all(pair[0] != offers and pair[1] != answers for offers, answers in batch):
                batch.append(pair)
        left = [pair for pair in left if pair not in batch]
        yield batch


def connect(clients: Clients, pairs: list[Pair], give_up_s: float) -> list[tuple[Any, Any]]:
    """Connect all pairs at once; the first of each offers."""
    ends = [(clients[one][0], clients[other][1]) for one, other in pairs]
    for one, _ in ends:
        one.begin("offer", servers=SERVERS, give_up_s=give_up_s)
    for one, other in ends:
        other.begin("answer", offer=one.finish(), servers=SERVERS, give_up_s=give_up_s)
    answers = [other.finish() for _, other in ends]
    for (one, other), answer in zip(ends, answers, strict=True):
        if answer is not None:
            one.begin("connect", answer=answer)
            other.begin("connect", answer="")
    nobody = {"remote": None}
    return [
        (one.finish(), other.finish()) if answer is not None else (nobody, nobody)
        for (one, other), answer in zip(ends, answers, strict=True)
    ]


def test_every_kind_of_nat_is_told_by_its_behaviour(clients: Clients) -> None:
    for pair in clients.values():
        pair[0].begin("survey", servers=SERVERS)
    found = {kind: pair[0].finish() for kind, pair in clients.items()}
    shown = {kind: (each["mapping"], each["filtering"]) for kind, each in found.items()}
    assert shown == BEHAVIOUR
    untranslated = {kind for kind, each in found.items() if each["is_translated"] is False}
    assert untranslated == {"none", "firewall"}
    silent = {kind for kind, each in found.items() if each["answers"] == 0}
    assert silent == set(WITHOUT_UDP)


def test_channels_open_wherever_udp_gets_through(clients: Clients) -> None:
    pairs = [pair for pair in combinations_with_replacement(NAT_TYPES, 2) if can_connect(*pair)]
    assert len(pairs) == 27
    failed, took_s = {}, []
    for batch in batches(pairs):
        results = connect(clients, batch, limits.RTC_CONNECT_S)
        for pair, (ours, theirs) in zip(batch, results, strict=True):
            if ours["remote"] is None or theirs["remote"] is None:
                failed[pair] = (ours, theirs)
            else:
                took_s.append(ours["took_s"])
    print(
        f"{len(took_s)} open, median {sorted(took_s)[len(took_s) // 2]:.2f} s, {max(took_s):.2f} s"
    )
    assert failed == {}


def test_where_it_cannot_the_reason_is_said(clients: Clients) -> None:
    pairs = [
        pair
        for pair in combinations_with_replacement(NAT_TYPES, 2)
        if not can_connect(*pair) and "tcp-443" not in pair
    ]
    # Each takes seconds to be given up: every kind offers and answers, for fewer batches.
    turned = [pair[::-1] if number % 2 else pair for number, pair in enumerate(pairs)]
    for batch in batches(turned):
        for ours, theirs in connect(clients, batch, GIVE_UP_S):
            assert ours["remote"] is None
            assert theirs["remote"] is None
            assert ours.get("why", "rtc: ").startswith("rtc: ")


def test_where_there_is_ipv6_symmetric_nats_do_not_matter(able: None) -> None:
    """Nothing is translated, and both firewalls let in what they believe to be an answer."""
    with NatLab(["symmetric"] * 2, ipv6=True) as lab:
        hosts = [Host(lab, name, "tests.lab.rtc_agent") for name in ("c0", "c1")]
        ((ours, theirs),) = connect(
            {"symmetric": (hosts[0], hosts[1])}, [("symmetric", "symmetric")], 5.0
        )
        assert lab.ip6("c1") in ours["remote"]
        assert lab.ip6("c0") in theirs["remote"]
