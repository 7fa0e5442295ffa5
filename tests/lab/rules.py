"""The nftables rule sets that make routers of the lab what their names say.

Mapping: ``masquerade`` keeps the source port, so a mapping is endpoint-independent as long
as no two clients want one port; ``masquerade fully-random`` takes a new port for each
destination (symmetric). Filtering: conntrack alone is address- and port-dependent. Looser
filtering is a DNAT of ports that a client has opened, remembered in dynamic sets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_TO_CLIENT = "dnat ip to meta l4proto . th dport map @mapped"
_NO_UDP = ("udp-blocked", "tcp-443")
_DYNAMIC = "flags dynamic,timeout; timeout {}s; size 65535;"

# A machine with a public address that lets nothing in but answers.
FIREWALL = """flush ruleset
table inet fw {
  chain input { type filter hook input priority filter; policy drop;
    iifname "lo" accept
    meta l4proto { icmp, icmpv6 } accept
    ct state established,related accept
  }
}
"""

# The table that miniupnpd writes its mappings to.
UPNP = """table inet upnp {
  chain forward_upnp { }
  chain pre_upnp { }
  chain post_upnp { }
  chain forward { type filter hook forward priority filter - 1; policy accept; jump forward_upnp; }
  chain pre { type nat hook prerouting priority dstnat - 1; policy accept; jump pre_upnp; }
  chain post { type nat hook postrouting priority srcnat - 1; policy accept; jump post_upnp; }
}
"""

FORGET = "flush map ip nat mapped\nflush set ip nat peers\n"


@dataclass(frozen=True)
class Router:
    """What decides the rules of one router; its devices are named ``wan`` and ``lan``."""

    kind: str
    modifiers: Collection[str]
    wan_ip: str
    lan_network: str
    udp_timeout_s: int


def router_rules(router: Router) -> str:
    """Return the whole configuration of ``router`` for ``nft -f``."""
    dynamic = _DYNAMIC.format(router.udp_timeout_s)
    nat = [
        "  map mapped { type inet_proto . inet_service : ipv4_addr . inet_service; "
        f"{dynamic} }}\n",
        f"  set peers {{ type ipv4_addr . inet_service; {dynamic} }}\n",
        _chain("forward", "filter", "forward", "filter", _forward(router), policy="drop"),
        _chain("input", "filter", "input", "filter", _input(router)),
        _chain("pre", "nat", "prerouting", "dstnat", _prerouting(router)),
        _chain("post", "nat", "postrouting", "srcnat", _postrouting(router)),
    ]
    firewall = _chain("forward", "filter", "forward", "filter", _forward6(router), policy="drop")
    return f"flush ruleset\ntable ip nat {{\n{''.join(nat)}}}\ntable ip6 fw {{\n{firewall}}}\n"


def _chain(
    name: str, kind: str, hook: str, priority: str, rules: list[str], *, policy: str = "accept"
) -> str:
    body = "\n    ".join(rules)
    head = f"type {kind} hook {hook} priority {priority}; policy {policy};"
    return f"  chain {name} {{\n    {head}\n    {body}\n  }}\n"


def _forward(router: Router) -> list[str]:
    rules = ["meta l4proto udp drop"] if router.kind in _NO_UDP else []
    if router.kind not in ("symmetric", *_NO_UDP):
        # Remember what clients opened: public port -> client address and port.
        rules.append(
            'iifname "lan" meta l4proto { tcp, udp } '
            "update @mapped { meta l4proto . th sport : ip saddr . th sport }"
        )
    if router.kind == "addr-restricted":
        rules.append(
            'iifname "lan" oifname "wan" meta l4proto udp update @peers { ip daddr . udp sport }'
        )
    if router.kind == "tcp-443":
        rules.append('iifname "lan" oifname "wan" meta l4proto tcp tcp dport != { 80, 443 } drop')
    accepted = ("ct state established,related,untracked", 'iifname "lan"', "ct status dnat")
    return rules + [f"{match} accept" for match in accepted]


def _forward6(router: Router) -> list[str]:
    """IPv6 is routed, not translated, behind a stateful firewall."""
    no_udp = ["meta l4proto udp drop"] if router.kind in _NO_UDP else []
    return [
        "meta l4proto icmpv6 accept",
        *no_udp,
        "ct state established,related accept",
        'iifname "lan" accept',
    ]


def _input(router: Router) -> list[str]:
    """Unsolicited packets to the router itself would leave state that breaks hole punching."""
    if "input-accept" in router.modifiers:
        return []
    return [
        "ct state established,related accept",
        'iifname "wan" meta l4proto { tcp, udp } drop',
    ]


def _prerouting(router: Router) -> list[str]:
    rules = []
    if router.kind == "full-cone":
        rules.append(f'iifname "wan" meta l4proto udp {_TO_CLIENT}')
    if router.kind == "addr-restricted":
        rules.append(f'iifname "wan" meta l4proto udp ip saddr . udp dport @peers {_TO_CLIENT}')
    if "hairpin" in router.modifiers:
        rules.append(
            f'iifname "lan" ip daddr {router.wan_ip} meta l4proto {{ tcp, udp }} {_TO_CLIENT}'
        )
    return rules


def _postrouting(router: Router) -> list[str]:
    rules = []
    if "hairpin" in router.modifiers:
        rules.append(
            f'oifname "lan" ip saddr {router.lan_network} ct status dnat '
            f"meta l4proto {{ tcp, udp }} snat to {router.wan_ip}"
        )
    random_ports = " fully-random" if router.kind == "symmetric" else ""
    return [*rules, f'oifname "wan" masquerade{random_ports}']
