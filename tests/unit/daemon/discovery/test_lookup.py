"""Swarms that others claim to exist: grouped by key, and no author believed alone."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.daemon.discovery.lookup import (
    Claim,
    FoundSwarm,
    Via,
    claims_of_lan,
    claims_of_records,
    gather,
    merge,
)
from swarmnode.ids import PeerId, encode_base32
from swarmnode.protocol.dht.records import OpenRecord
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.lan import LanPeer
from swarmnode.protocol.swarm import parse_link
from swarmnode.wire import dht
from swarmnode.wire.connect.beacon import LanSwarm
from swarmnode.wire.swarm import Signed

KEY, OTHER_KEY = bytes(32), b"\1" * 32


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def claim(
    author: int,
    members: int | None = 1,
    *,
    key: bytes = KEY,
    via: Via = "dht",
    addresses: tuple[str, ...] = (),
    created_at: int = 100,
) -> Claim:
    return Claim("demo", key, via, peer(author), addresses, members, created_at)


def only(*claims: Claim) -> FoundSwarm:
    (found,) = gather(claims)
    return found


def test_claims_about_one_key_are_one_swarm() -> None:
    found = gather([claim(1), claim(2), claim(3, key=OTHER_KEY)])
    assert [swarm.key for swarm in found] == [encode_base32(KEY), encode_base32(OTHER_KEY)]
    assert {swarm.name for swarm in found} == {"demo"}


def test_one_key_under_two_names_is_two_swarms() -> None:
    """Any peer can claim any key under any name: the manifest says which is true."""
    other = Claim("other", KEY, "dht", peer(9), (), 1, 100)
    assert [swarm.name for swarm in gather([claim(1), claim(2), other])] == ["demo", "other"]


@pytest.mark.parametrize(
    ("claimed", "believed"),
    [
        ((7,), 7),
        ((5, 10**15), 5),
        ((5, 6, 10**15), 6),
        ((1, 1, 1, 5), 4),  # there are at least as many as say so
        ((0,), 1),
        ((None,), None),
    ],
)
def test_no_single_author_makes_a_swarm_large(
    claimed: tuple[int | None, ...], believed: int | None
) -> None:
    assert only(*(claim(n, members) for n, members in enumerate(claimed))).members == believed


def test_an_author_that_speaks_twice_counts_once() -> None:
    found = only(claim(1, 3, via="lan"), claim(1, 900), claim(1, 900))
    assert found.members == 3  # the beacon is fresher
    assert found.via == ("lan", "dht")


def test_the_middle_age_is_believed() -> None:
    ages = (1, 50, 60)
    found = only(*(claim(n, created_at=created_at) for n, created_at in enumerate(ages)))
    assert found.created_at == 50


def test_the_largest_come_first_then_the_oldest_and_the_list_has_an_end() -> None:
    claims = [
        claim(n, members, key=bytes([n]) * 32, created_at=created_at)
        for n, (members, created_at) in enumerate([(1, 5), (9, 5), (9, 4)])
    ]
    assert [(swarm.members, swarm.created_at) for swarm in gather(claims)] == [
        (9, 4),
        (9, 5),
        (1, 5),
    ]
    flood = [claim(n, key=n.to_bytes(32, "big")) for n in range(2 * limits.SWARMS_LISTED_MAX)]
    listed = gather([*flood, claim(0, 50, key=b"\xff" * 32)])
    assert len(listed) == limits.SWARMS_LISTED_MAX
    assert listed[0].members == 50


def test_every_author_gives_one_address_before_any_gives_two() -> None:
    found = only(
        claim(1, addresses=("a.example:1", "b.example:1")), claim(2, addresses=("c.example:2",))
    )
    assert [hint.partition("@")[2] for hint in found.peers] == [
        "a.example:1",
        "c.example:2",
        "b.example:1",
    ]


@pytest.mark.parametrize(
    "address",
    ["[fe80::1%eth0]:7337", "*:7337", "nonsense", "host:0", "host:99999", "a b:1", "\x1b[2J:1"],
)
def test_what_strangers_write_cannot_spoil_a_link(address: str) -> None:
    assert only(claim(1, addresses=(address,))).peers == ()


def test_the_link_holds_as_many_peers_as_fit() -> None:
    long_host = "h" * 250
    claims = [claim(n, addresses=(f"{long_host}{n}:1",)) for n in range(8)]
    link = only(*claims).link()
    assert link.swarm_key == KEY
    assert 0 < len(link.hints) < 8
    assert parse_link(str(link)) == link


def test_a_swarm_of_this_home_comes_first_and_its_age_is_known() -> None:
    found = gather([claim(1, 3), claim(2, 90, key=OTHER_KEY)])
    home = [
        Claim("demo", KEY, "home", created_at=77),
        Claim("mine", bytes([7]) * 32, "home"),
    ]
    merged = merge(home, found)
    assert [(swarm.name, swarm.members, swarm.created_at, swarm.via) for swarm in merged] == [
        ("demo", 3, 77, ("home", "dht")),
        ("mine", None, None, ("home",)),
        ("demo", 90, 100, ("dht",)),
    ]


def test_claims_come_from_records_of_that_name_and_from_beacons() -> None:
    author = Identity.from_seed(bytes(32))

    def opened(record: dht.Record) -> OpenRecord:
        return OpenRecord(author.peer_id, record, Signed(b"", author.public_key, bytes(64)))

    record = dht.SwarmRecord(0, 0, 60, ("h:1",), KEY, "demo", 4, 100)
    renamed = dht.SwarmRecord(0, 0, 60, ("h:1",), KEY, "demo2", 4, 100)
    peer_record = dht.PeerRecord(0, 0, 60, ("h:1",))
    records = [opened(one) for one in (record, renamed, peer_record)]
    assert claims_of_records("demo", records) == [
        Claim("demo", KEY, "dht", author.peer_id, ("h:1",), 4, 100)
    ]
    swarms = (LanSwarm("demo", KEY, 4, 100), LanSwarm("other", OTHER_KEY, 1, 5))
    assert claims_of_lan([LanPeer(author.peer_id, "h:1", swarms, 0.0)]) == [
        Claim("demo", KEY, "lan", author.peer_id, ("h:1",), 4, 100),
        Claim("other", OTHER_KEY, "lan", author.peer_id, ("h:1",), 1, 5),
    ]
