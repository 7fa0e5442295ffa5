"""Which addresses of a stranger's offer are ever sent to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from swarmnode.errors import MalformedMessage
from swarmnode.protocol.nat.candidates import (
    candidate_host,
    is_worth_offering,
    make_candidate,
    usable_candidates,
)
from swarmnode.wire.connect.nat import RtcCandidate

OURS = (make_candidate("host", "192.168.7.2", 40_000), make_candidate("srflx", "11.0.0.1", 40_000))
LOOPBACK = (make_candidate("host", "127.0.0.1", 40_000),)


def usable(
    host: str, *more: str, port: int = 50_000, ours: tuple[RtcCandidate, ...] = OURS
) -> bool:
    theirs = [make_candidate("host", each, port) for each in (host, *more)]
    return theirs[0] in usable_candidates(theirs, ours)


@pytest.mark.parametrize("host", ["11.0.0.2", "8.8.8.8", "2606:4700::1"])
def test_public_addresses_are_tried(host: str) -> None:
    assert usable(host)


@pytest.mark.parametrize(
    "host", ["192.168.7.3", "10.0.0.1", "172.16.0.1", "100.64.0.1", "fd00::1", "192.0.2.1"]
)
def test_private_addresses_are_tried_behind_one_nat_only(host: str) -> None:
    assert not usable(host)
    assert not usable(host, "11.0.0.2")
    assert usable(host, "11.0.0.1")  # the other side shows the public address that we have


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "239.255.73.39",
        "255.255.255.255",
        "240.0.0.1",
        "169.254.169.254",
        "::",
        "fe80::1",
        "ff02::1",
        "::ffff:192.168.1.1",
        "::192.168.1.1",
        "2002:c0a8:101::1",
        "2001:0:c0a8:101::1",
        "64:ff9b::c0a8:101",
        "64:ff9b:1::c0a8:101",
    ],
)
def test_addresses_of_no_host_or_of_all_are_never_tried(host: str) -> None:
    assert not usable(host)
    assert not usable(host, "11.0.0.1")
    assert not usable(host, ours=LOOPBACK)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_is_for_those_on_loopback(host: str) -> None:
    assert not usable(host)
    assert not usable(host, "11.0.0.1")
    assert usable(host, ours=LOOPBACK)


@pytest.mark.parametrize("port", [1, 53, 123, 443, 1023])
def test_ports_of_services_are_never_tried(port: int) -> None:
    assert not usable("11.0.0.2", port=port)
    assert usable("11.0.0.2", port=1024)


def test_each_address_is_tried_once_and_in_order() -> None:
    one, two = (make_candidate("host", host, 5000) for host in ("11.0.0.9", "11.0.0.8"))
    assert usable_candidates([one, two, one, one], OURS) == (one, two)


def test_an_address_of_a_strange_length_is_refused() -> None:
    odd = RtcCandidate("host", bytes(5), 5000)
    with pytest.raises(MalformedMessage, match="expected 4 or 16 bytes of address, got 5"):
        usable_candidates([odd], OURS)
    with pytest.raises(MalformedMessage):
        candidate_host(odd)


@pytest.mark.parametrize(
    ("kind", "expected"), [("host", "host"), ("srflx", "srflx"), ("prflx", "host"), ("", "host")]
)
def test_a_candidate_says_whether_a_server_saw_it_and_what_it_is(kind: str, expected: str) -> None:
    for host in ("11.0.0.2", "2606:4700::1"):
        candidate = make_candidate(kind, host, 5000)
        assert candidate == RtcCandidate(expected, ip_address(host).packed, 5000)  # type: ignore[arg-type]
        assert candidate_host(candidate) == host


def test_a_name_is_no_candidate() -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        make_candidate("host", "secret.local", 5000)


def test_what_we_offer_can_be_reached_from_elsewhere() -> None:
    assert [is_worth_offering(host) for host in ("192.168.1.2", "2001:db8::1", "11.0.0.1")] == [
        True,
        True,
        True,
    ]
    assert not any(
        map(is_worth_offering, ("127.0.0.1", "::1", "fe80::1", "169.254.1.1", "0.0.0.0", "ff02::1"))
    )
