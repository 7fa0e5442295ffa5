"""What netcheck says of every kind of network, and what it advises."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmnode import limits
from swarmnode.cli.main import main
from swarmnode.daemon.status.netcheck import Finding, Known, PeerWay, find
from swarmnode.net.gateway.portmap import Mapping
from swarmnode.processes.client import ControlClient
from swarmnode.protocol.nat.behaviour import Dependence, NatBehaviour
from swarmnode.protocol.nat.reach import Reachability
from swarmnode.protocol.nat.stun import Endpoint
from swarmnode.protocol.relay import RelayStatistics
from swarmnode.protocol.relay.accounts import Quota

PUBLIC = "11.11.11.100"
NONE, ADDRESS, PORT, UNKNOWN = Dependence
PEER = PeerWay(peer="sn1" + "a" * 52, short="sn1aaaaaaaaa", path="direct", way="tcp 11.11.11.9:80")
REFUSED = Reachability(refusals=((7337, "no answer within 5 s"),))
OPEN = Reachability(hosts=(PUBLIC,), endpoints=((PUBLIC, 7337),))


def behind(
    mapping: Dependence, filtering: Dependence, *, hairpins: bool | None = False, answers: int = 3
) -> NatBehaviour:
    public = Endpoint(PUBLIC, 40_000) if answers else None
    is_translated = True if answers else None
    return NatBehaviour(answers, is_translated, mapping, filtering, hairpins, public)


CONE = behind(NONE, PORT)
HOME = Known(
    listen="*:7337",
    port=7337,
    has_nat=True,
    own=("192.168.1.2:7337",),
    told=("192.168.1.2:7337",),
    servers=3,
    is_surveyed=True,
    behaviour=CONE,
    reach=REFUSED,
    mapping_why="the router 192.168.1.1 maps no port (PCP: silent; UPnP: silent); switch on UPnP",
)
NO_NAT = NatBehaviour(3, False, NONE, NONE, None, Endpoint(PUBLIC, 40_000))
SERVER = replace(
    HOME,
    own=(f"{PUBLIC}:7337",),
    told=(f"{PUBLIC}:7337",),
    behaviour=NO_NAT,
    reach=OPEN,
    mapping_why=f"this machine's own address {PUBLIC} is public: nothing to map",
)


STATUS = {
    "connectivity": {"state": "direct", "code": "", "why": "1 peer: 1 direct"},
    "bootstraps": [],
    "clock_skew_s": None,
    "address": "*:7337",
}


def unasked(known: Known) -> Known:
    """Return what is known if no peer can say what our NAT does."""
    return replace(known, is_surveyed=False, behaviour=Known.behaviour)


def say(known: Known, topic: str) -> Finding:
    """Return what is found about one topic; there is one finding of each."""
    (found,) = [each for each in find(known) if each.topic == topic]
    return found


def has(found: Finding, verdict: str, *parts: str, advice: str | None = "") -> None:
    """Check a finding; ``advice``: a part of it, "" if there must be none."""
    assert found.verdict == verdict, found
    assert all(part in found.text for part in parts), found
    assert advice == found.advice if advice == "" else (advice or "") in found.advice, found


# --- kinds of NAT -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "verdict", "part", "advice"),
    [
        (behind(NONE, NONE), "ok", "full cone: all peers see 11.11.11.100", ""),
        (behind(NONE, ADDRESS), "ok", "address-restricted: all peers see", ""),
        (behind(NONE, PORT), "ok", "port-restricted: all peers see", ""),
        (behind(NONE, UNKNOWN), "ok", "cone: all peers see", ""),
        (behind(ADDRESS, PORT), "warn", "symmetric", "forward TCP port 7337"),
        (behind(PORT, PORT), "warn", "symmetric", "forward TCP port 7337"),
        (behind(UNKNOWN, PORT), "unknown", "one host only could tell", "two public peers"),
        (behind(UNKNOWN, UNKNOWN, answers=0), "unknown", "no answer", ""),
    ],
)
def test_every_kind_of_nat_has_its_name(
    behaviour: NatBehaviour, verdict: str, part: str, advice: str
) -> None:
    has(say(replace(HOME, behaviour=behaviour), "nat"), verdict, part, advice=advice)


def test_without_a_peer_to_ask_nothing_is_said_of_the_nat() -> None:
    advice = "it takes peers at public addresses"
    has(say(unasked(HOME), "nat"), "unknown", "no peer at a public address", advice=advice)


def test_a_symmetric_nat_is_no_matter_to_whom_a_port_is_open() -> None:
    known = replace(HOME, behaviour=behind(PORT, PORT), reach=OPEN)
    has(say(known, "nat"), "ok", "symmetric")


def test_a_public_machine_has_nothing_to_do() -> None:
    assert {each.verdict for each in find(SERVER)} <= {"ok"}
    assert "".join(each.advice for each in find(SERVER)) == ""
    has(say(SERVER, "nat"), "ok", "none: peers see this machine's own address 11.11.11.100")
    has(say(SERVER, "hairpin"), "ok", "not needed")
    has(say(SERVER, "port mapping"), "ok", "not needed")
    has(say(SERVER, "carrier nat"), "ok", "no")


def test_a_public_machine_that_is_the_first_of_its_swarm_is_told_nothing_frightening() -> None:
    known = replace(unasked(SERVER), servers=0, reach=Reachability())
    assert {each.verdict for each in find(known)} == {"ok", "unknown"}
    has(say(known, "nat"), "ok", "none: this machine has the public 11.11.11.100")
    has(say(known, "relays"), "ok", "none needed")


def test_a_firewall_is_not_taken_for_a_nat() -> None:
    filtered = NatBehaviour(3, False, NONE, PORT, None, Endpoint(PUBLIC, 40_000))
    known = replace(SERVER, behaviour=filtered, reach=REFUSED)
    advice = "let TCP port 7337 in, in the firewall"
    has(say(known, "nat"), "warn", "none, but a firewall", "answers only", advice=advice)
    has(say(known, "reachable"), "warn", "no answer within 5 s", advice=advice)
    assert "router" not in say(known, "reachable").advice


def test_a_listener_on_loopback_says_so_and_nothing_else() -> None:
    known = Known(listen="127.0.0.1:7337", port=7337, has_nat=False, own=(), told=(), peers=(PEER,))
    only, peer = find(known)
    has(only, "warn", "listens on 127.0.0.1:7337", "this machine", advice="--listen '*:7337'")
    assert peer.topic == "peer"


# --- UDP ----------------------------------------------------------------------------------------


def test_blocked_udp_is_told_from_no_peer_to_ask() -> None:
    blocked = replace(HOME, behaviour=behind(UNKNOWN, UNKNOWN, answers=0, hairpins=None))
    has(say(blocked, "udp"), "warn", "none of 3 peers answers", advice="let UDP out")
    has(say(unasked(HOME), "udp"), "unknown", "no peer at a public address")
    has(say(HOME, "udp"), "ok", "answers from 3 of 3 peers")
    has(say(blocked, "reachable"), "warn", advice="in the router")
    cut = replace(unasked(HOME), survey_error="STUN 11.11.11.9:80: Operation not permitted")
    has(say(cut, "udp"), "fail", "Operation not permitted", advice="let UDP out")
    has(say(cut, "nat"), "unknown", "Operation not permitted", advice=None)


# --- the provider's NAT -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"router": "100.64.1.2"}, "the router's own address 100.64.1.2 is not public"),
        ({"router": "192.168.0.7"}, "the router's own address 192.168.0.7 is not public"),
        ({"router": "11.11.22.5"}, "is 11.11.22.5, and peers see 11.11.11.100"),
        ({"beyond": "100.64.0.1"}, "probably: another router, 100.64.0.1"),
        ({"own": ("100.99.0.4:7337",)}, "own address 100.99.0.4 is one of a provider's NAT"),
        (
            {"mapping_why": "the router x maps no port (PCP: no room, or no public address); do"},
            "perhaps: the router says",
        ),
    ],
)
def test_a_carriers_nat_is_noticed_and_no_port_is_to_be_forwarded(
    changes: dict[str, Any], part: str
) -> None:
    known = replace(HOME, **changes)
    has(say(known, "carrier nat"), "warn", part, advice="public IPv4 address, or for IPv6")
    for topic in ("reachable", "port mapping"):
        assert "forward" not in say(known, topic).advice


def test_without_a_word_of_the_router_a_carriers_nat_stays_unknown() -> None:
    has(say(HOME, "carrier nat"), "unknown", "the router does not say")
    lonely = replace(unasked(HOME), router=PUBLIC)
    has(say(lonely, "carrier nat"), "unknown", "no peer says where it sees us")
    has(say(replace(HOME, router=PUBLIC), "carrier nat"), "ok", "no")
    assert "forward TCP port" in say(HOME, "reachable").advice


# --- ports, IPv6, hairpins ----------------------------------------------------------------------


def test_a_mapped_port_is_shown_and_doubted_if_no_peer_gets_in() -> None:
    mapping = Mapping(PUBLIC, 40_001, "tcp", "UPnP", 3600)
    known = replace(HOME, mapping=mapping, mapping_why="", router=PUBLIC)
    has(say(known, "port mapping"), "ok", "11.11.11.100:40001", "(UPnP)")
    shut = Reachability(refusals=((7337, "silent"), (40_001, "silent")))
    has(say(replace(known, reach=shut), "port mapping"), "warn", "no peer gets in", advice=None)
    some = Reachability(tentative=((PUBLIC, 40_001),), refusals=((40_001, "silent"),))
    has(say(replace(known, reach=some), "port mapping"), "ok", "11.11.11.100:40001")


def test_why_no_port_is_mapped_is_said_apart_from_what_to_do() -> None:
    found = say(HOME, "port mapping")
    has(found, "warn", "maps no port (PCP: silent; UPnP: silent)", advice="switch on UPnP")
    off = replace(HOME, wants_mapping=False, mapping_why="")
    has(say(off, "port mapping"), "warn", "switched off", advice="port_mapping = true")
    has(say(replace(off, reach=OPEN), "port mapping"), "ok", "switched off")
    bare = replace(HOME, mapping_why="there is no IPv4 default gateway")
    has(say(bare, "port mapping"), "warn", "there is no IPv4 default gateway")


def test_ipv6_is_counted_by_the_peers_that_it_leads_to() -> None:
    has(say(HOME, "ipv6"), "warn", "no public address", advice="switch on IPv6")
    over6 = replace(PEER, way="tcp [2a00:f00d::9]:443")
    known = replace(HOME, own=(*HOME.own, "[2a00:f00d::2]:7337"), peers=(PEER, over6))
    has(say(known, "ipv6"), "ok", "2a00:f00d::2; 1 peer reached over it")
    has(say(replace(HOME, own=("[fd00::1]:7337",)), "ipv6"), "warn", "no public", advice=None)


@pytest.mark.parametrize(
    ("hairpins", "verdict", "part"),
    [(True, "ok", "sends back"), (False, "ok", "on the LAN"), (None, "unknown", "not tried")],
)
def test_hairpins(hairpins: bool | None, verdict: str, part: str) -> None:
    known = replace(HOME, behaviour=behind(NONE, PORT, hairpins=hairpins))
    has(say(known, "hairpin"), verdict, part)


# --- being reached, relays ----------------------------------------------------------------------


def test_whether_strangers_get_in() -> None:
    has(say(replace(HOME, reach=OPEN), "reachable"), "ok", "yes, at 11.11.11.100:7337")
    some = Reachability(tentative=((PUBLIC, 7337),))
    has(say(replace(HOME, reach=some), "reachable"), "ok", "fewer than 3 networks")
    has(say(HOME, "reachable"), "warn", "port 7337: no answer within 5 s", advice="UPnP")
    nobody = replace(unasked(HOME), reach=Reachability())
    has(say(nobody, "reachable"), "unknown", "no peer could tell", advice="3 of them in different")


def test_which_relays_hold_a_place_and_which_do_not() -> None:
    held = replace(HOME, relays=("sn1r… at 11.11.11.9:443",), refusing=("sn1s…: it is full",))
    has(say(held, "relays"), "ok", "through sn1r… at 11.11.11.9:443; not sn1s…: it is full")
    many = replace(held, refusing=tuple(f"sn1{number}…: full" for number in range(99)))
    assert len(say(many, "relays").text) < 200
    missed = replace(HOME, peers=(PEER, replace(PEER, path="", error="silent")))
    has(say(missed, "relays"), "fail", "none", advice="--role relay")
    has(say(HOME, "relays"), "warn", "none", advice="--role relay")
    has(say(replace(HOME, reach=Reachability()), "relays"), "warn", "none", advice=None)
    has(say(replace(HOME, reach=OPEN), "relays"), "ok", "none needed")


def test_what_this_node_gives_as_a_relay() -> None:
    now = RelayStatistics(3, 2, 0, 9, {"absent": 5}, 1_500_000)
    known = replace(SERVER, relaying=now, quota=Quota(bytes_per_s=2_500_000))
    has(say(known, "relaying"), "ok", "3 of 64 places", "2 of 64", "at most 2.5 MB/s; 1.5 MB so")
    short = replace(now, refused_total={"full": 4, "quota": 1, "absent": 9})
    found = say(replace(known, relaying=short), "relaying")
    has(found, "warn", "5 refused for want of room", advice="relay_bytes_per_s")
    unlimited = replace(known, quota=Quota(bytes_per_s=None))
    has(say(unlimited, "relaying"), "ok", "as fast as the line")
    off = replace(known, quota=Quota(reservations_max=0, circuits_max=0))
    has(say(off, "relaying"), "ok", "switched off")
    has(say(replace(HOME, relaying=now), "relaying"), "ok", "once this node can be reached")


# --- peers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["direct", "punched-tcp", "rtc", "other"])
def test_a_direct_way_is_good_enough(path: Any) -> None:
    found = say(replace(HOME, peers=(replace(PEER, path=path),)), "peer")
    has(found, "ok", f"sn1aaaaaaaaa… {path}: tcp 11.11.11.9:80")
    assert found.peer == PEER.peer


def test_of_a_relayed_peer_is_said_why_and_which_side_can_do_something() -> None:
    relayed = replace(PEER, path="relay", way="relay:sn1r@11.11.11.9:443")
    fresh = replace(HOME, peers=(relayed,))
    has(say(fresh, "peer"), "warn", "relay:sn1r", advice="look again in a minute")
    tried = replace(relayed, whys=("direct: silence", "rtc: not open within 10 s"))
    known = replace(HOME, peers=(tried,))
    has(
        say(known, "peer"), "warn", "not better, as direct: silence; rtc: not", advice="its network"
    )
    symmetric = replace(known, behaviour=behind(PORT, PORT))
    has(say(symmetric, "peer"), "warn", advice="forward TCP port 7337")
    blocked = replace(known, behaviour=behind(UNKNOWN, UNKNOWN, answers=0))
    has(say(blocked, "peer"), "warn", advice="let UDP out")
    incoming = replace(tried, is_dialled=False)
    has(say(replace(HOME, peers=(incoming,)), "peer"), "warn", "other side to begin", advice=None)


def test_a_member_that_cannot_be_reached_is_listed_with_the_reason() -> None:
    lost = PeerWay(peer=PEER.peer, short=PEER.short, error="tcp 11.11.11.9:80: refused")
    has(say(replace(HOME, peers=(lost,)), "peer"), "warn", "not connected: tcp 11.11.11.9:80: ref")


def test_findings_are_one_line_and_have_few_words() -> None:
    """Whatever is known, each is a line or two for people, and JSON for programs."""
    for known in (HOME, SERVER, replace(unasked(HOME), reach=Reachability())):
        for found in find(known):
            assert "\n" not in found.text + found.advice
            assert not found.advice.endswith(".")
            assert found.verdict in ("ok", "warn", "fail", "unknown")
            assert msgspec.convert(msgspec.to_builtins(found), Finding) == found


# --- the verb -----------------------------------------------------------------------------------


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[list[Finding]], None]:
    """Let a node answer with these findings."""
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path))

    def set_answer(findings: list[Finding]) -> None:
        def get(_self: ControlClient, path: str, *, deadline_s: float = 0.0) -> Any:
            if path == "/status":
                return STATUS
            if path == "/peers":
                return []
            assert path.partition("?")[0] == "/netcheck"
            assert deadline_s > limits.NETCHECK_S
            return msgspec.to_builtins(findings)

        monkeypatch.setattr(ControlClient, "get", get)

    return set_answer


def test_the_verb_prints_lines_that_fit_and_keeps_addresses_whole(
    answer: Callable[[list[Finding]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    way = "relay:sn1" + "r" * 52 + "@11.11.11.9:443"
    answer([*find(HOME), Finding("peer", "warn", f"x \x1b[2J {way} {'word ' * 40}", "do this")])
    with pytest.raises(SystemExit) as stop:
        main(["netcheck"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert "\x1b" not in out
    assert way in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("ok       connection    Connected: 1 peer: 1 direct.")
    assert lines[2].startswith("ok       nat           port-restricted: all peers see")
    assert any(line.strip().startswith("-> switch on UPnP") for line in lines)


def test_the_verb_prints_json(
    answer: Callable[[list[Finding]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(find(HOME))
    with pytest.raises(SystemExit):
        main(["netcheck", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown[0]["topic"] == "connection"
    assert msgspec.convert(shown[1:], list[Finding]) == find(HOME)


def test_without_a_node_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWARMNODE_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit) as stop:
        main(["netcheck"])
    assert stop.value.code == 3
    err = capsys.readouterr().err
    assert "no swarmnode runs on" in err
    assert err.count("\n") == 1


def test_the_verb_ends_with_1_if_anything_fails(
    answer: Callable[[list[Finding]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer([Finding("relays", "fail", "none")])
    with pytest.raises(SystemExit) as stop:
        main(["netcheck"])
    assert stop.value.code == 1
    assert "fail     relays" in capsys.readouterr().out
