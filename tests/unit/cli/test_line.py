"""The one sentence about a node's line: what it names, and what it advises."""

from __future__ import annotations

from typing import Any

import pytest

from swarmnode.cli.node.line import Seen, headline, of_bootstraps
from swarmnode.cli.node.probes import Probed, Reached

ADDRESS = "11.11.11.10:7337"
NAMED = "relay.example.org:443"
UP = {"interface": "eth0"}


def boot(cause: str = "", address: str = ADDRESS, **more: Any) -> dict[str, Any]:
    error = f"tcp {address}: {cause}" if cause else ""
    return {"peer": "sn1" + "a" * 52, "address": address, "is_connected": False, "cause": cause,
            "error": error, **more}  # fmt: skip


def peer(path: str = "", **more: Any) -> dict[str, Any]:
    return {"peer": "sn1b", "connected": bool(path), "path": path, "error": "", "alive": "alive",
            "role": "trainer", **more}  # fmt: skip


def status(state: str = "direct", code: str = "", *boots: dict[str, Any], **more: Any) -> Any:
    line = {"state": state, "code": code, "why": "the facts"}
    shown = {"connectivity": line, "bootstraps": list(boots), "address": "*:7337"}
    return shown | {"clock_skew_s": None} | more


def topic(name: str, text: str, verdict: str = "warn") -> dict[str, Any]:
    return {"topic": name, "verdict": verdict, "text": text, "advice": "", "peer": ""}


CARRIER = topic("carrier nat", "yes: the router's own address 100.64.0.2 is not public")
LOST = peer(error="tcp 11.11.11.9:80: no result within 10 s")


@pytest.mark.parametrize(
    ("reached", "cause", "says", "advises"),
    [
        (Reached("refused"), "", "no node runs on it", "start it"),
        (
            Reached("silent", web=("silent", "silent")),
            "",
            "Nothing at all comes back",
            "fresh link",
        ),
        (Reached("silent", web=("refused",)), "silent", "only web pages out", "port 7337 out"),
        (Reached("silent", web=("silent", "open")), "", "answers at port 80", "port 443"),
        (Reached("no-name"), "", "The name relay.example.org cannot be", "IP address"),
        (Reached("no-route"), "", "No way leads to", "router"),
        (Reached("blocked"), "", "This machine itself forbids", "firewall of this machine"),
        (Reached("open", "small-only"), "no-handshake", "Large packets get lost", "dev eth0 mtu"),
        (Reached("open", "mute"), "no-handshake", "then says nothing", "another network"),
        (Reached("open", "cut-off"), "", "is cut as soon as", "another network"),
        (Reached("open", "answers"), "not-a-node", "Another program answers", "log in"),
        (Reached("open", "answers"), "other-key", "Another node answers", "fresh link"),
        (Reached("open", "answers"), "other-version", "another version", "update"),
        (Reached("open", "answers"), "busy", "turns this one away", "later"),
        (Reached("open", "answers"), "silent", "is not up yet", "half a minute"),
    ],
)
def test_a_node_alone_is_told_what_is_in_the_way(
    reached: Reached, cause: str, says: str, advises: str
) -> None:
    address = NAMED if reached.answer == "no-name" else ADDRESS
    seen = Seen(status("alone", cause, boot(cause, address)), Probed({address: reached}, **UP))
    found = headline(seen)
    assert found.verdict == "fail"
    assert says in found.text
    assert advises in found.advice
    assert "{" not in found.text + found.advice


@pytest.mark.parametrize("cause", ["refused", "silent", "no-name", "no-handshake", "blocked"])
def test_what_the_node_says_is_enough_where_nothing_was_probed(cause: str) -> None:
    found = headline(Seen(status("alone", cause, boot(cause)), Probed(**UP)))
    assert found.verdict == "fail"
    assert ADDRESS.partition(":")[0] in found.text


PROXY = "11.11.11.20:3128"


def through_proxy(said: str, cause: str = "silent") -> dict[str, Any]:
    error = f"tcp {ADDRESS}: silence; through the proxy {PROXY}: it {said}"
    return boot(cause) | {"error": error}


def test_a_proxy_that_does_not_let_the_node_out_is_named_with_what_it_says() -> None:
    said = "answers 407 No: it wants a user and a password"
    for answer in ("silent", "refused", "no-route"):
        seen = Probed({ADDRESS: Reached(answer)}, **UP)  # type: ignore[arg-type]
        found = headline(Seen(status("alone", "proxy", through_proxy(said, "proxy")), seen))
        assert found.verdict == "fail"
        assert f"let this node through to {ADDRESS}: {PROXY} {said}." in found.text
        assert "USER:PASSWORD@HOST:PORT" in found.advice
        assert "port 443" in found.advice


def test_a_proxy_that_helps_as_little_as_the_direct_way_is_told_beside_it() -> None:
    for said in ("answers 502 Bad Gateway", "cannot be reached"):
        seen = Probed({ADDRESS: Reached("silent")}, **UP)
        found = headline(Seen(status("alone", "silent", through_proxy(said)), seen))
        assert "Nothing at all comes back" in found.text
        assert found.text.endswith(f"{PROXY} {said}.")


def test_a_proxy_that_the_node_was_not_told_of_is_named() -> None:
    silent = {ADDRESS: Reached("silent")}
    seen = Probed(silent, **UP, proxy=PROXY)
    found = headline(Seen(status("alone", "silent", boot("silent")), seen))
    assert f"this machine names a proxy, {PROXY}, that the node does not use" in found.text
    assert f'`proxy = "http://{PROXY}"`' in found.advice
    # One that it uses is no news, and none is there without a reason.
    for boots, names in ((through_proxy("cannot be reached"), PROXY), (boot("silent"), "")):
        seen = Probed(silent, **UP, proxy=names)
        found = headline(Seen(status("alone", "silent", boots), seen))
        assert "Nothing at all comes back" in found.text
    assert "name it in the setting `proxy`" in found.advice


@pytest.mark.parametrize("is_member", [True, False])
def test_a_line_that_goes_through_a_proxy_says_so_in_one_sentence(is_member: bool) -> None:
    way = f"proxied-tcp:{PROXY} {ADDRESS}"
    if is_member:
        seen = Seen(status(), Probed(**UP), (CARRIER,), [peer("direct", way=way)])
    else:  # a relay of the network
        session = topic("peer", f"sn1aaaaaaaaa… direct: {way}", "ok")
        seen = Seen(
            status("relayed"), Probed(**UP), (session, CARRIER), [peer("relay", way="relay:")]
        )
    found = headline(seen)
    assert found.verdict == "warn"
    assert found.text.startswith(f"Connected through the proxy {PROXY}, as this network")
    words = "1 through the proxy" if is_member else "1 through a relay"
    assert found.text.endswith(f"1 peer is reached, {words}.")


def test_without_a_network_nothing_else_is_said() -> None:
    for code in ("no-network", "no-route", "starting"):
        found = headline(Seen(status("alone", code, boot("no-route"))))
        assert "no network" in found.text
        assert "goes on by itself" in found.advice


def test_of_several_addresses_the_most_telling_is_said_and_the_others_counted() -> None:
    other = boot("silent", "11.11.11.20:443")
    answers = {ADDRESS: Reached("refused"), other["address"]: Reached("silent")}
    found = headline(Seen(status("alone", "silent", boot(), other), Probed(answers, **UP)))
    assert "no node runs on it" in found.text
    assert "1 more addresses" in found.text


def test_the_first_node_of_a_swarm_is_no_failure() -> None:
    found = headline(Seen(status("alone", "none-known"), Probed(**UP)))
    assert found.verdict == "warn"
    assert "`swarmnode link`" in found.advice
    assert headline(Seen(status("alone", "lost"), Probed(**UP))).verdict == "fail"


def test_packets_that_have_to_be_small_are_named_though_it_works() -> None:
    boots = (boot(is_connected=True), boot(address=NAMED, is_connected=True))
    for greeting, verdict in (("small-only", "warn"), ("answers", "ok")):
        probed = Probed({NAMED: Reached("open", greeting)}, **UP)  # type: ignore[arg-type]
        found = headline(Seen(status("direct", "", *boots), probed, peers=[peer("direct")]))
        assert found.verdict == verdict
        assert ("Large packets get lost on the way to " + NAMED in found.text) is (
            verdict == "warn"
        )


def test_a_wrong_clock_comes_before_all_that_works() -> None:
    for skew_s, says in ((7200.0, "2.0 hours behind"), (-9 * 86_400.0, "9 days ahead")):
        found = headline(Seen(status(clock_skew_s=skew_s), peers=[peer("direct")]))
        assert (found.verdict, says in found.text) == ("fail", True), found
        assert "set-ntp" in found.advice
    assert headline(Seen(status(clock_skew_s=60.0), peers=[peer("direct")])).verdict == "ok"


@pytest.mark.parametrize(
    ("code", "says"), [("relays-full", "says that it has no room"), ("no-relay", "no node that it")]
)
def test_without_a_place_at_a_relay_it_fails_only_where_peers_are_missed(
    code: str, says: str
) -> None:
    found = headline(Seen(status("direct", code), peers=[peer("direct"), LOST]))
    assert found.verdict == "fail"
    assert says in found.text
    assert "1 of 2 other members" in found.text
    assert "forward TCP port 7337" in found.advice
    assert headline(Seen(status("direct", code), peers=[peer("direct")])).verdict == "warn"


def test_behind_a_carrier_no_port_is_to_be_forwarded() -> None:
    found = headline(Seen(status(), findings=[CARRIER], peers=[peer("punched-tcp")]))
    assert found.verdict == "warn"
    assert "carrier NAT" in found.text
    assert "1 peer is reached, 1 through both routers" in found.text
    full = headline(Seen(status("direct", "relays-full"), findings=[CARRIER], peers=[LOST]))
    for advice in (found.advice, full.advice):
        assert "no port can be forwarded" in advice
        assert "UPnP" not in advice
    fine = topic("carrier nat", CARRIER["text"], "ok")
    assert headline(Seen(status(), findings=[fine], peers=[peer("direct")])).verdict == "ok"


def test_a_vpn_is_named_by_its_interface() -> None:
    probed = Probed(interface="tun0", is_tunnel=True)
    found = headline(Seen(status(), probed, peers=[peer("direct")]))
    assert (found.verdict, "VPN (tun0)" in found.text) == ("warn", True)
    alone = headline(Seen(status("alone", "silent", boot("silent")), probed))
    assert "VPN tun0: try without it" in alone.advice


def test_relays_only_and_what_keeps_members_away() -> None:
    relay = peer("direct", role="relay")
    relayed = Seen(
        status("relayed"), findings=[topic("udp", "blocked: none")], peers=[peer("relay")]
    )
    found = headline(relayed)
    assert found.verdict == "warn"
    assert "only through relays" in found.text
    assert "drops UDP" in found.text
    cut = peer(error="relay:sn1r@11.11.11.10:443: Connection reset by peer")
    found = headline(Seen(status("relayed"), peers=[relay, cut]))
    assert found.verdict == "fail"
    assert "looks like a web page" in found.text
    found = headline(Seen(status("relayed"), peers=[relay, LOST]))
    assert found.verdict == "fail"
    assert "no result within 10 s" in found.text
    assert headline(Seen(status("relayed"), peers=[relay])).verdict == "ok"


def test_what_works_is_said_in_plain_words() -> None:
    peers = [peer("direct"), peer("direct"), peer("relay"), LOST]
    found = headline(Seen(status(), peers=peers))
    assert found == ("ok", "Connected: 3 peers are reached, 2 directly, 1 through a relay.", "")
    assert "LAN only" in headline(Seen(status("local"), peers=[peer("direct")])).text


def test_each_address_has_a_line_with_its_last_error() -> None:
    boots = (boot("refused"), boot(is_connected=True, address="a:1"), boot(address="b:1"))
    lines = of_bootstraps(Seen(status("direct", "", *boots), Probed({"b:1": Reached("silent")})))
    assert [line["verdict"] for line in lines] == ["warn", "ok", "warn"]
    assert "tcp 11.11.11.10:7337: refused" in lines[0]["text"]
    assert lines[1]["text"].endswith("connected")
    assert lines[2]["text"].endswith("silent just now")
