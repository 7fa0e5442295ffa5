"""The one state of a node's line: what it is called, and what is said to be in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarmnode import limits
from swarmnode.errors import (
    AuthenticationFailed,
    ChannelBroken,
    DeadlineExceeded,
    DialFailed,
    MalformedMessage,
    NoNodeKey,
    Overloaded,
    SwarmNodeError,
    VersionMismatch,
)
from swarmnode.protocol.connectivity import (
    BOOTSTRAP_STATES,
    Bootstrap,
    Connectivity,
    Failures,
    LineFacts,
    Way,
    cause_of,
    judge,
    tally,
)

PUBLIC = "11.11.11.10"
DIRECT, PUNCHED, RTC, RELAYED = (
    Way(path, PUBLIC if path in ("direct", "punched-tcp") else "")
    for path in ("direct", "punched-tcp", "rtc", "relay")
)
RELAY = Way("direct", PUBLIC, is_relay=True)
LAN = Way("direct", "192.168.1.5")
LATE = limits.ALONE_ALARM_S
UNTRIED = LineFacts(bootstraps=(Bootstrap("sn1a", "x:1"),))


def dead(cause: Any, address: str = f"{PUBLIC}:7337") -> Bootstrap:
    return Bootstrap("sn1a", address, cause=cause, error=f"{address}: {cause}")


@pytest.mark.parametrize(
    ("line", "state", "code"),
    [
        (LineFacts(ways=(DIRECT, RELAYED)), "direct", ""),
        (LineFacts(ways=(Way("direct", "2a00:f00d::9"),)), "direct", ""),
        (LineFacts(ways=(RELAY, PUNCHED, RELAYED)), "punched", ""),
        (LineFacts(ways=(RELAY, RTC)), "punched", ""),
        (LineFacts(ways=(RELAY, RELAYED), relays_held=1), "relayed", ""),
        (LineFacts(ways=(RELAY,), relays_held=1), "relayed", ""),
        (LineFacts(ways=(RELAY,), is_reached="yes"), "direct", ""),
        (LineFacts(ways=(LAN, Way("direct", "127.0.0.1"))), "local", ""),
        (LineFacts(ways=(Way("direct", "fe80::1%eth0"),)), "local", ""),
        (LineFacts(ways=(LAN, RELAYED), relays_held=1), "relayed", ""),
        (LineFacts(ways=(Way("other"),)), "direct", ""),
        (LineFacts(ways=(DIRECT,), is_reached="no"), "direct", "no-relay"),
        (LineFacts(ways=(DIRECT,), is_reached="no", relays_refusing=1), "direct", "relays-full"),
        (
            LineFacts(ways=(DIRECT,), is_reached="no", relays_held=1, relays_refusing=1),
            "direct",
            "",
        ),
        (LineFacts(), "alone", "none-known"),
        (LineFacts(bootstraps=(Bootstrap("sn1a", "x:1"),)), "alone", "starting"),
        (LineFacts(bootstraps=(dead("silent"),)), "alone", "silent"),
        (LineFacts(bootstraps=(dead("silent"),), has_network=False), "alone", "no-network"),
        (LineFacts(lost=2, bootstraps=(dead("silent"),)), "alone", "lost"),
        (LineFacts(unreached=3, quiet_s=LATE), "alone", "lost"),
        (LineFacts(unreached=3), "alone", "starting"),
    ],
)
def test_every_line_has_a_state_and_what_is_wrong(line: LineFacts, state: str, code: str) -> None:
    found = judge(line)
    assert (found.state, found.code) == (state, code)
    assert found.why


def test_the_cause_that_most_addresses_share_is_said_and_of_equals_the_most_telling() -> None:
    line = LineFacts(bootstraps=(dead("refused"), dead("silent", "b:1"), dead("silent", "c:1")))
    found = judge(line)
    assert found.code == "silent"
    assert "none of 3 known addresses" in found.why
    assert "b:1: silent" in found.why
    assert judge(LineFacts(bootstraps=line.bootstraps[:2])).code == "refused"


def test_a_node_is_alarmed_when_it_has_been_alone_for_a_while() -> None:
    """A node that has just started is alone, and so is the first one of its swarm."""
    line = LineFacts(bootstraps=(dead("refused"),), quiet_s=LATE - 1)
    assert not judge(line).is_alarming
    assert judge(replace(line, quiet_s=LATE)).is_alarming
    assert judge(replace(line, has_network=False, quiet_s=LATE)).is_alarming
    assert judge(LineFacts(lost=1)).is_alarming
    assert judge(LineFacts(unreached=3, quiet_s=LATE)).is_alarming
    assert not judge(LineFacts(quiet_s=9e9)).is_alarming
    assert not judge(replace(line, ways=(DIRECT,), quiet_s=LATE)).is_alarming


def test_no_room_at_relays_is_alarming_where_peers_are_missed() -> None:
    line = LineFacts(ways=(DIRECT,), is_reached="no", relays_refusing=2)
    assert not judge(line).is_alarming
    assert judge(replace(line, unreached=1)).is_alarming


@pytest.mark.parametrize(
    ("error", "has_opened", "cause"),
    [
        (DialFailed("x", cause="refused"), False, "refused"),
        (DialFailed("x", cause="no-name"), False, "no-name"),
        (DialFailed("x"), False, "silent"),
        (DeadlineExceeded("connecting", 10), False, "silent"),
        (DeadlineExceeded("TLS", 10), True, "no-handshake"),
        (ChannelBroken("reset"), True, "cut-off"),
        (AuthenticationFailed("x"), True, "other-key"),
        (NoNodeKey("x"), True, "not-a-node"),
        (VersionMismatch("x"), True, "other-version"),
        (Overloaded("x"), True, "busy"),
        (MalformedMessage("x"), True, "not-a-node"),
    ],
)
def test_causes(error: SwarmNodeError, has_opened: bool, cause: str) -> None:
    assert cause_of(error, has_opened=has_opened) == cause


def test_of_each_address_the_last_failure_is_kept_until_it_works() -> None:
    failures = Failures()
    assert failures.of("a:1") == ("", "")
    failures.note("a:1", DialFailed("first"), has_opened=False)
    failures.note("a:1", DialFailed("then", cause="refused"), has_opened=False)
    # It was not dialled this time, so that says nothing of the address.
    failures.note("a:1", Overloaded("dialled often"), has_opened=False)
    assert failures.of("a:1") == ("refused", "then")
    failures.forget("a:1")
    assert failures.of("a:1") == ("", "")


def test_failures_have_a_bound_and_the_oldest_go() -> None:
    failures = Failures()
    for n in range(limits.DIAL_ERRORS_KEPT_MAX + 1):
        failures.note(f"a:{n}", DialFailed("x"), has_opened=False)
    assert failures.of("a:0") == ("", "")
    assert failures.of("a:1") != ("", "")


def test_an_address_that_failed_again_is_among_the_newest() -> None:
    failures = Failures()
    for n in (*range(limits.DIAL_ERRORS_KEPT_MAX), 0):
        failures.note(f"a:{n}", DialFailed("x"), has_opened=False)
    assert failures.of("a:1") == ("silent", "x"), "so many are kept"
    failures.note("b:1", Overloaded("full"), has_opened=True)
    assert failures.of("b:1") == ("busy", "full"), "the peer says so"
    assert failures.of("a:1") == ("", "")
    assert failures.of("a:0") == ("silent", "x")
    failures.forget("never:1")
    assert failures.of("a:2") == ("silent", "x")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (LineFacts(ways=(DIRECT,)), "1 peer: 1 direct"),
        (
            LineFacts(ways=(RELAYED, DIRECT, RELAYED), is_reached="yes"),
            "3 peers: 1 direct, 2 relay; strangers get in",
        ),
        (LineFacts(ways=(RELAY,)), "1 peer: 1 direct; relays only"),
        (LineFacts(ways=(LAN, LAN)), "2 peers on this machine or its LAN, none beyond"),
        (
            LineFacts(ways=(RTC,), is_reached="no"),
            "1 peer: 1 rtc; strangers do not get in, and no relay holds a place for this node",
        ),
        (LineFacts(has_network=False), "this machine has no network"),
        (LineFacts(lost=1), "no way any more for 1 session"),
        (LineFacts(lost=2), "no way any more for 2 sessions"),
        (
            LineFacts(bootstraps=(Bootstrap("sn1a", "x:1"), dead("silent", "y:1"))),
            "none of 2 known addresses answers as it should: y:1: silent",
        ),
        (UNTRIED, "1 known address to be dialled, and no answer yet"),
        (LineFacts(unreached=3), "3 peers to be dialled, and no answer yet"),
        (replace(UNTRIED, unreached=3), "1 known address to be dialled, and no answer yet"),
        (LineFacts(unreached=1, quiet_s=LATE), "no answer from 1 peer"),
        (LineFacts(unreached=3, quiet_s=LATE), "no answer from 3 peers"),
        (replace(UNTRIED, unreached=3, quiet_s=LATE), "no answer from 3 peers"),
        (replace(UNTRIED, quiet_s=LATE), "no answer from 1 known address"),
        (LineFacts(), "no address of another peer is known yet"),
    ],
)
def test_the_facts_are_said_in_words(line: LineFacts, why: str) -> None:
    assert judge(line).why == why


def test_addresses_are_counted_by_what_came_of_them() -> None:
    working = Bootstrap("sn1a", "x:1", is_connected=True, cause="silent")
    counted = tally([working, dead("silent"), dead("cut-off"), Bootstrap("sn1a", "x:1")])
    assert [counted[each] for each in BOOTSTRAP_STATES] == [1, 2, 1]


def test_nothing_is_alarming_by_itself() -> None:
    assert Connectivity("direct", "", "") == Connectivity("direct", "", "", is_alarming=False)
    assert not judge(LineFacts(has_network=False)).is_alarming
    assert not judge(LineFacts(bootstraps=(dead("silent"),), lost=0)).is_alarming
