"""TCP hole punching between every two kinds of NAT: where it must work, and where it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from swarmnode import limits
from tests.lab.hosts import Host
from tests.lab.natlab import NAT_TYPES, NatLab
from tests.lab.shaper import Shape

PORT = 7337
REFLECTORS = ["11.11.11.10:443", "11.11.11.20:443"]
# A round trip of 40 ms: packets of both sides are under way when they begin within 10 ms.
DELAY = Shape(delay_ms=10)
CLOSED = {"symmetric", "cgnat-sym", "tcp-443"}
# One mapping for one inner address and port, whatever is filtered.
PUNCHABLE = ("none", "firewall", "full-cone", "addr-restricted", "port-restricted", "cgnat",
             "udp-blocked")  # fmt: skip
LEAD_S = 0.1  # by then all have been told
GIVE_UP_S = 1.0  # what cannot work need not be tried for five
REPEATS = 3


@dataclass(frozen=True)
class Client:
    """A client of the lab, and where two public hosts see its listening port."""

    host: Host
    kind: str
    seen: Sequence[str | None]

    @property
    def target(self) -> tuple[str, int]:
        assert self.seen[0] is not None
        host, _, port = self.seen[0].rpartition(":")
        return host, int(port)


@pytest.fixture(scope="module")
def clients(able: None) -> Iterator[dict[str, tuple[Client, Client]]]:
    """Two clients of each type, each behind a router of its own."""
    sites = [kind for kind in NAT_TYPES for _ in range(2)]
    with NatLab(sites, public=2, shape=DELAY) as lab:
        public = [Host(lab, name) for name in ("pub0", "pub1")]
        hosts = [Host(lab, f"c{number}") for number in range(len(sites))]
        ask_all(public, "reflect", ports=[443])
        ask_all(hosts, "listen", port=PORT)
        seen = ask_all(hosts, "observe", port=PORT, addresses=REFLECTORS)
        found = [Client(*each) for each in zip(hosts, sites, seen, strict=True)]
        yield {kind: (found[2 * i], found[2 * i + 1]) for i, kind in enumerate(NAT_TYPES)}


def ask_all(hosts: Sequence[Host], command: str, **arguments: Any) -> list[Any]:
    for host in hosts:
        host.begin(command, **arguments)
    return [host.finish() for host in hosts]


def punch(
    pairs: Sequence[tuple[Client, Client]], give_up_s: float = limits.PUNCH_S
) -> list[tuple[Any, Any]]:
    """Punch all pairs at once; the first of each chooses."""
    for one, other in pairs:
        one.host.begin("appoint", port=PORT, targets=[other.target], choose=True)
        other.host.begin("appoint", port=PORT, targets=[one.target], choose=False)
    finish_all(pairs)
    at = time.monotonic() + LEAD_S
    for one, other in pairs:
        one.host.begin("punch", at=at, give_up_s=give_up_s)
        other.host.begin("punch", at=at, give_up_s=give_up_s)
    return finish_all(pairs)


def finish_all(pairs: Sequence[tuple[Client, Client]]) -> list[tuple[Any, Any]]:
    return [(one.host.finish(), other.host.finish()) for one, other in pairs]


def is_punched(result: tuple[Any, Any], pair: tuple[Client, Client]) -> bool:
    """Whether both have the same connection, and it carried a word each way."""
    ours, theirs = result
    if ours["remote"] is None or theirs["remote"] is None:
        return False
    assert (ours["word"], theirs["word"]) == ("pong", "ping")
    assert tuple(ours["remote"]) == pair[1].target
    assert tuple(theirs["remote"]) == pair[0].target
    return True


def rounds(kinds: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield every two different kinds once, in rounds where each kind takes part once."""
    ring: list[str] = [*kinds, *([""] if len(kinds) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [pair for pair in pairs if "" not in pair]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def test_what_two_reflectors_see_tells_which_nodes_can_punch(
    clients: dict[str, tuple[Client, Client]],
) -> None:
    one_mapping = {
        kind for kind, pair in clients.items() if all(len(set(each.seen)) == 1 for each in pair)
    }
    assert one_mapping == {*PUNCHABLE, "tcp-443"}


def test_every_two_with_one_mapping_connect(clients: dict[str, tuple[Client, Client]]) -> None:
    """28 pairs, three times each, in both orders of choosing; the first attempt does it."""
    took_s: list[float] = []
    failed: list[tuple[str, str]] = []
    for turn in range(REPEATS):
        for kinds in (*rounds(PUNCHABLE), [(kind, kind) for kind in PUNCHABLE]):
            pairs = [(clients[one][0], clients[other][1]) for one, other in kinds]
            pairs = [pair[::-1] if turn % 2 else pair for pair in pairs]
            for result, pair in zip(punch(pairs), pairs, strict=True):
                if is_punched(result, pair):
                    took_s.append(result[0]["took_s"])
                else:
                    failed.append((pair[0].kind, pair[1].kind))
    print(f"{len(took_s)} punched, slowest {max(took_s, default=0):.3f} s; failed: {failed}")
    assert len(took_s) == 28 * REPEATS
    assert failed == []


def test_what_maps_by_destination_cannot(clients: dict[str, tuple[Client, Client]]) -> None:
    """Nor what lets hosts out to ports of the web only. A host without a NAT is just dialled."""
    pairs = [
        (clients[one][0], clients[other][1])
        for round_of in [*rounds(NAT_TYPES), [(kind, kind) for kind in NAT_TYPES]]
        for one, other in round_of
        if {one, other} & CLOSED and "none" not in (one, other)
    ]
    assert len(pairs) == 3 * 6 + 3 + 3
    for together in batched(pairs):
        for result, pair in zip(punch(together, GIVE_UP_S), together, strict=True):
            assert not is_punched(result, pair), f"{pair[0].kind} with {pair[1].kind}"


def batched(pairs: Sequence[tuple[Client, Client]]) -> Iterator[list[tuple[Client, Client]]]:
    """Yield them in batches in which no host takes part twice."""
    batch: list[tuple[Client, Client]] = []
    for pair in pairs:
        if {id(each.host) for each in pair} & {id(each.host) for old in batch for each in old}:
            yield batch
            batch = []
        batch.append(pair)
    yield batch


def test_routers_that_answer_strangers_are_punched_too(able: None) -> None:
    """There an early packet leaves state behind that turns the mapping into another one."""
    sites = ["port-restricted+input-accept", "cgnat+input-accept"] * 2
    with NatLab(sites, public=2, shape=DELAY) as lab:
        public = [Host(lab, name) for name in ("pub0", "pub1")]
        hosts = [Host(lab, f"c{number}") for number in range(len(sites))]
        ask_all(public, "reflect", ports=[443])
        ask_all(hosts, "listen", port=PORT)
        seen = ask_all(hosts, "observe", port=PORT, addresses=REFLECTORS)
        found = [Client(*each) for each in zip(hosts, sites, seen, strict=True)]
        pairs = [(found[0], found[1]), (found[2], found[3])]
        for result, pair in zip(punch(pairs), pairs, strict=True):
            assert is_punched(result, pair)


def test_where_there_is_ipv6_symmetric_nats_do_not_matter(able: None) -> None:
    """Nothing is translated, and both firewalls let in what they believe to be an answer."""
    with NatLab(["symmetric", "cgnat-sym", "symmetric"], ipv6=True) as lab:
        hosts = [Host(lab, name) for name in ("c0", "c2")]
        ask_all(hosts, "listen", port=PORT)
        seen = [[f"{lab.ip6(host.name)}:{PORT}"] for host in hosts]
        pair = tuple(Client(host, "symmetric", at) for host, at in zip(hosts, seen, strict=True))
        [result] = punch([(pair[0], pair[1])])
        assert is_punched(result, (pair[0], pair[1]))
        assert "c1" not in lab.addresses6
