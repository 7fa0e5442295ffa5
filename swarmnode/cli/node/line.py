"""The line of a node in one sentence that a volunteer understands, and what to do about it.

Facts come from the node (``status``, ``netcheck``) and from probes of this machine; here they get
their words, which a running node does without. :func:`headline` chooses the one thing that matters
most: a node that reaches no peer at all, then a wrong clock, then peers that cannot reach it, then
what only makes things slower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, Final, Literal, NamedTuple

from swarmnode import limits
from swarmnode.cli.node.probes import WEB_PORTS, Probed, Probes, Reached
from swarmnode.net.paths import PROXIED_WORD
from swarmnode.processes.client import ControlClient

TOPIC: Final = "connection"
Verdict = Literal["ok", "warn", "fail"]
_FRESH: Final = "ask for a fresh link (`swarmnode link` prints one on a node that runs)"
_NO_PORT: Final = (
    "no port can be forwarded through it; ask the provider for IPv6 or a public IPv4 address if"
    " others should reach this node directly"
)


class Headline(NamedTuple):
    """The sentence, and what to do."""

    verdict: Verdict
    text: str
    advice: str = ""

    def finding(self) -> dict[str, Any]:
        """Return it as ``netcheck`` shows its lines."""
        return {"topic": TOPIC, **self._asdict(), "peer": ""}


@dataclass(frozen=True)
class Seen:
    """What is known. ``findings``: of ``netcheck``, ``peers``: of ``peers``; as they come."""

    status: Mapping[str, Any]
    probed: Probed = field(default_factory=Probed)
    findings: Sequence[Mapping[str, Any]] = ()
    peers: Sequence[Mapping[str, Any]] = ()

    @property
    def state(self) -> str:
        """Return direct, punched, relayed, local or alone."""
        return str(self.status["connectivity"]["state"])

    @property
    def code(self) -> str:
        """Return what is in the way, as the node says; "" if nothing."""
        return str(self.status["connectivity"]["code"])

    def verdict_of(self, topic: str) -> str:
        """Return the verdict of the finding about a topic, "" if there is none."""
        return next((str(each["verdict"]) for each in self.findings if each["topic"] == topic), "")

    def text_of(self, topic: str) -> str:
        """Return the text of the finding about a topic, "" if there is none."""
        return next((str(each["text"]) for each in self.findings if each["topic"] == topic), "")


def check_line(client: ControlClient) -> list[dict[str, Any]]:
    """Return all findings, the one sentence first. Raises SwarmNodeError: no node answers."""
    probes = _probes_for(client.get("/status"))
    beyond = probes.beyond()
    path = f"/netcheck?beyond={beyond}" if beyond else "/netcheck"
    findings = client.get(path, deadline_s=limits.NETCHECK_S + 2)
    peers = client.get("/peers")
    # Asked again: what the node knows now, it may not have known when the probes began.
    seen = Seen(client.get("/status"), probes.result(), findings, peers)
    return [headline(seen).finding(), *of_bootstraps(seen), *findings]


def _probes_for(status: Mapping[str, Any]) -> Probes:
    boots: Sequence[Mapping[str, Any]] = status["bootstraps"]
    hosts = [each["address"].rpartition(":")[0] for each in boots]
    # Those that answer last: their packets may have to be small.
    by_need = sorted(boots, key=lambda each: bool(each["is_connected"]))
    return Probes(
        (each["address"] for each in by_need),
        target=next(filter(_is_ipv4, hosts), ""),
    )


def _is_ipv4(host: str) -> bool:
    try:
        return IPv4Address(host).is_global
    except ValueError:
        return False


def headline(seen: Seen) -> Headline:
    """Return the one sentence."""
    if seen.state == "alone":
        return _alone(seen)
    checks = (
        _clock,
        _unreached,
        _small_packets,
        _proxied,
        _behind_carrier,
        _tunnel,
        _relayed,
        _local,
    )
    for check in checks:
        found = check(seen)
        if found is not None:
            return found
    return Headline("ok", _fine(seen))


def of_bootstraps(seen: Seen) -> list[dict[str, Any]]:
    """Return a line for each address that the node was given."""
    found = []
    for each in seen.status["bootstraps"]:
        reached = seen.probed.reached.get(each["address"])
        text = f"{each['address']} ({each['peer'][:12]}…): "
        if each["is_connected"]:
            text += "connected"
        else:
            text += each["error"] or (f"{reached.answer} just now" if reached else "not tried yet")
        verdict = "ok" if each["is_connected"] else "warn"
        found.append({"topic": "bootstrap", "verdict": verdict, "text": text, "advice": "",
                      "peer": each["peer"]})  # fmt: skip
    return found


# --- no peer at all -------------------------------------------------------------------------------


def _alone(seen: Seen) -> Headline:
    boots = [each for each in seen.status["bootstraps"] if not each["is_connected"]]
    if not seen.probed.interface and seen.code in ("no-network", "no-route", "lost", "starting"):
        return Headline("fail", *_NO_NETWORK)
    causes = {each["address"]: _cause(each, seen.probed) for each in boots}
    by_weight = sorted(causes, key=lambda address: _WEIGHTS.index(causes[address]))
    if not by_weight:
        return _without_addresses(seen)
    address = by_weight[0]
    text, advice = _SENTENCES[causes[address]]
    proxy = next(map(_of_proxy, (each for each in boots if each["address"] == address)))
    if proxy and "{proxy}" not in text:
        text += " The proxy of this network does not lead there either: {proxy}."
    words = {"address": address, "proxy": proxy or seen.probed.proxy,
             "host": address.rpartition(":")[0].strip("[]"),
             "port": address.rpartition(":")[2], "interface": seen.probed.interface or "eth0",
             "web": _web_port(seen.probed.reached.get(address))}  # fmt: skip
    more = f" ({len(boots) - 1} more addresses fail, too: below)" if len(boots) > 1 else ""
    if seen.probed.is_tunnel:
        advice += f"; all traffic goes through the VPN {seen.probed.interface}: try without it"
    return Headline("fail", text.format(**words) + more, advice.format(**words))


def _without_addresses(seen: Seen) -> Headline:
    if seen.code == "none-known":
        return Headline(
            "warn",
            "This node knows no other: its link names none, and none was found on the LAN.",
            "if it is the first of its swarm, give others what `swarmnode link` prints; else "
            + _FRESH,
        )
    return Headline(
        "fail",
        "All other nodes have stopped answering: they have gone, or this line is cut.",
        "check that web pages open on this machine; the node goes on by itself; else " + _FRESH,
    )


def _cause(boot: Mapping[str, Any], probed: Probed) -> str:
    """Return the key of the sentence about an address: what was just seen counts first."""
    reached, said = probed.reached.get(boot["address"]), str(boot["cause"])
    if said in _OUT_OF_REACH and probed.proxy and not _of_proxy(boot):
        return "unnamed-proxy"
    if reached is None or (said == "proxy" and reached.answer != "open"):
        return said or "untried"
    if reached.answer == "open":
        if reached.greeting == "small-only":
            return "small-only"
        if reached.greeting == "mute":
            return "no-handshake"
        if said in _AFTER_OPENING:
            return said
        return "cut-off" if reached.greeting == "cut-off" else "untried"
    if reached.answer == "silent" and _web_port(reached):
        return "web-only"
    return reached.answer


def _of_proxy(boot: Mapping[str, Any]) -> str:
    """Return what the proxy said about an address that was dialled through it as well, or ""."""
    return str(boot["error"]).partition("through the proxy ")[2].replace(": it ", " ", 1)


def _web_port(reached: Reached | None) -> str:
    """Return the port of the web at which the same host answers, "" if it does not."""
    for port, answer in zip(WEB_PORTS, reached.web if reached else (), strict=False):
        if answer in ("open", "refused"):
            return str(port)
    return ""


_AFTER_OPENING: Final = ("no-handshake", "cut-off", "not-a-node", "other-key", "other-version",
                         "busy")  # fmt: skip
_OUT_OF_REACH: Final = ("silent", "no-name", "no-route")
_NO_NETWORK: Final = (
    "This machine has no network: no cable, no Wi-Fi, or no address from the router.",
    "connect it: the node goes on by itself as soon as there is a network",
)
# The sentence about an address that does not answer as it should, and what to do; the most telling
# first: where several fail, it is the one that is said.
_SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    "small-only": (
        "Large packets get lost on the way to {address}: small ones arrive there, but a router or"
        " a VPN between swallows the others and does not say so (MTU).",
        "set a smaller MTU: `sudo ip link set dev {interface} mtu 1280`, or in the router",
    ),
    "proxy": (
        "Only a proxy leads out of this network, and it does not let this node through to"
        " {address}: {proxy}.",
        'give user and password in the setting `proxy = "http://USER:PASSWORD@HOST:PORT"` if it'
        " wants them; most proxies let port 443 out only: ask for a link with a node at that port"
        " (one with `--role relay` listens there)",
    ),
    "unnamed-proxy": (
        "Nothing comes back from {address}, and this machine names a proxy, {proxy}, that the node"
        " does not use: it was started without it.",
        'set `proxy = "http://{proxy}"` in config.toml, with user and password if it wants them,'
        " and start the node again",
    ),
    "web-only": (
        "A firewall lets only web pages out of this network: {host} answers at port {web}, but not"
        " at port {port}, where its node listens.",
        "let TCP port {port} out in the firewall, use another network, or ask for a link with a"
        " node at port 443 (one with `--role relay` listens there)",
    ),
    "other-key": (
        "Another node answers at {address} than the link names: it was set up anew, or something"
        " on the way pretends to be it.",
        _FRESH,
    ),
    "not-a-node": (
        "Another program answers at {address}, and it is no node: perhaps the login page of this"
        " Wi-Fi, or the address belongs to another machine by now.",
        "open a web page and log in if it asks for it; else " + _FRESH,
    ),
    "other-version": (
        "The node at {address} speaks another version, or is of another network.",
        "update swarmnode here or there, and compare the setting `network`",
    ),
    "busy": (
        "The node at {address} turns this one away: it says why below.",
        "try later, or " + _FRESH,
    ),
    "cut-off": (
        "The connection to {address} opens, and is cut as soon as the node speaks: a firewall on"
        " the way does not let it through.",
        "ask who runs this network to let swarmnode out, or use another network",
    ),
    "no-handshake": (
        "The machine at {address} takes the connection and then says nothing: its node hangs, or"
        " something on the way swallows what is said.",
        "ask its owner to start it again; try this machine on another network",
    ),
    "blocked": (
        "This machine itself forbids connections to {address}: its firewall, or a VPN that is"
        " not connected.",
        "let outgoing TCP through in the firewall of this machine, or connect the VPN",
    ),
    "refused": (
        "The machine at {address} is there, but no node runs on it: it was stopped, or the link"
        " is old.",
        "ask its owner to start it, or " + _FRESH,
    ),
    "no-name": (
        "The name {host} cannot be looked up: name lookup (DNS) does not work on this machine, or"
        " there is no such name.",
        "check that web pages open on this machine; or ask for a link with an IP address in it",
    ),
    "no-route": (
        "No way leads to {address}: that machine is off, or the router here does not answer, or"
        " this machine has no address of that kind (IPv4 or IPv6).",
        "check that web pages open on this machine, else look at cable, Wi-Fi and router; if they"
        " do, " + _FRESH,
    ),
    "silent": (
        "Nothing at all comes back from {address}: that machine is off, or a firewall drops what"
        " this one sends.",
        "check that web pages open on this machine; if they do only through a proxy, name it in the"
        " setting `proxy`; if they do, " + _FRESH,
    ),
    "untried": (
        "The machine at {address} answers, and the session with its node is not up yet.",
        "look again in half a minute",
    ),
}
_WEIGHTS: Final = tuple(_SENTENCES)


# --- some peers -----------------------------------------------------------------------------------


def _clock(seen: Seen) -> Headline | None:
    skew_s = seen.status["clock_skew_s"] or 0.0
    if abs(skew_s) <= limits.CLOCK_ALARM_S:
        return None
    hours = abs(skew_s) / 3600
    amount = f"{hours / 24:.0f} days" if hours > 48 else f"{hours:.1f} hours"
    side = "behind" if skew_s > 0 else "ahead of"
    return Headline(
        "fail",
        f"This machine's clock is {amount} {side} that of the other nodes: what it says is dated"
        " wrong, and others do not believe it.",
        "set the clock: `sudo timedatectl set-ntp true`",
    )


def _small_packets(seen: Seen) -> Headline | None:
    """A node goes on with small segments; who does not look would never learn why it is slow."""
    for each in seen.status["bootstraps"]:
        reached = seen.probed.reached.get(each["address"])
        if each["is_connected"] and reached is not None and reached.greeting == "small-only":
            text, advice = _SENTENCES["small-only"]
            words = {"address": each["address"], "interface": seen.probed.interface or "eth0"}
            more = " This node sends small ones there, and is connected."
            return Headline("warn", text.format(**words) + more, advice.format(**words))
    return None


def _proxied(seen: Seen) -> Headline | None:
    ways = [each.get("way") or "" for each in seen.peers] + [
        each["text"] for each in seen.findings if each["topic"] == "peer"
    ]
    used = next(filter(None, (_PROXIED.search(way) for way in ways)), None)
    if used is None:
        return None
    return Headline(
        "warn",
        f"Connected through the proxy {used[1]}, as this network lets out little else:"
        f" {_how(seen)}.",
        "if it is your network, let TCP out in its firewall: members behind routers are then met"
        " without relays",
    )


def _lost_peers(seen: Seen) -> list[Mapping[str, Any]]:
    return [
        each
        for each in seen.peers
        if not each["connected"] and each["error"] and each["alive"] not in ("left",)
    ]


def _unreached(seen: Seen) -> Headline | None:
    """Others cannot reach this node, or it does not reach them."""
    lost = _lost_peers(seen)
    missed = f"{len(lost)} of {len(seen.peers)} other members are not reached"
    if seen.code in ("relays-full", "no-relay"):
        why = (
            "every relay says that it has no room"
            if seen.code == "relays-full"
            else "no node that it knows relays"
        )
        text = (
            "This node's router lets no others in, and no relay has a place for it"
            f" ({why}): nodes behind routers of their own cannot meet it"
        )
        if not lost:
            return Headline("warn", f"{text}.", _let_in(seen))
        return Headline("fail", f"{text}, {missed}.", _let_in(seen))
    if not lost or seen.state != "relayed" or any(each["connected"] for each in _members(seen)):
        return None
    cut = [each for each in lost if "reset" in each["error"] or "closed" in each["error"]]
    if cut:
        return Headline(
            "fail",
            f"Relays are reached, but connections through them are cut, and {missed}: a firewall"
            " on the way lets only what looks like a web page through.",
            "ask who runs this network to let swarmnode out, or use another network",
        )
    return Headline(
        "fail",
        f"Relays are reached, but {missed}: {lost[0]['error']}.",
        "look again in a minute; if it stays so, " + _let_in(seen),
    )


def _members(seen: Seen) -> list[Mapping[str, Any]]:
    """Return the others that are more than relays."""
    return [each for each in seen.peers if each["role"] != "relay"]


def _let_in(seen: Seen) -> str:
    relay = "let any machine with a public address join with `--role relay`"
    if _is_behind_carrier(seen):
        return f"{relay}; {_NO_PORT}"
    port = str(seen.status["address"]).rpartition(":")[2]
    return f"{relay}, or switch on UPnP in the router or forward TCP port {port} to this machine"


def _is_behind_carrier(seen: Seen) -> bool:
    return seen.text_of("carrier nat").startswith(("yes", "probably", "perhaps"))


def _behind_carrier(seen: Seen) -> Headline | None:
    if seen.verdict_of("carrier nat") != "warn" or not _is_behind_carrier(seen):
        return None
    return Headline(
        "warn",
        "The provider puts several homes behind one address (carrier NAT), so others cannot open a"
        f" connection to this node: {_how(seen)}.",
        _NO_PORT,
    )


def _tunnel(seen: Seen) -> Headline | None:
    if not seen.probed.is_tunnel:
        return None
    return Headline(
        "warn",
        f"All traffic of this machine goes through a VPN ({seen.probed.interface}): it costs speed,"
        f" and others get in only if the VPN lets them; {_how(seen)}.",
        "let swarmnode leave outside of the VPN (split tunnelling), if that may be",
    )


def _relayed(seen: Seen) -> Headline | None:
    if seen.state != "relayed" or not any(each["path"] == "relay" for each in seen.peers):
        return None  # where relays are all there is, nothing is slow
    blocked = seen.text_of("udp").startswith("blocked")
    why = ", and this network drops UDP" if blocked else ""
    return Headline(
        "warn",
        f"Other members are reached only through relays, which is slower{why}.",
        "let UDP out in the firewall" if blocked else _let_in(seen),
    )


def _local(seen: Seen) -> Headline | None:
    if seen.state != "local":
        return None
    return Headline(
        "ok",
        f"Connected on this machine and its LAN only: {_how(seen)}; no peer beyond is known.",
    )


def _fine(seen: Seen) -> str:
    return f"Connected: {_how(seen)}."


def _how(seen: Seen) -> str:
    """Return the peers by the way to them, in plain words."""
    ways: dict[str, int] = {}
    for each in seen.peers:
        if each["connected"]:
            words = _WAYS.get(each["path"], "directly")
            if _PROXIED.match(each.get("way") or ""):
                words = "through the proxy"
            ways[words] = ways.get(words, 0) + 1
    if not ways:
        return str(seen.status["connectivity"]["why"])
    total = sum(ways.values())
    peers = "1 peer is" if total == 1 else f"{total} peers are"
    return f"{peers} reached, " + ", ".join(f"{n} {words}" for words, n in sorted(ways.items()))


_PROXIED: Final = re.compile(rf"\b{PROXIED_WORD}:(\S+)")
_WAYS: Final = {
    "punched-tcp": "through both routers",
    "rtc": "through both routers over UDP",
    "relay": "through a relay",
}
