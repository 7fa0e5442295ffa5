"""What one host may cost: dials to a third party, private networks, places of strangers."""

from __future__ import annotations

import hashlib
import ipaddress
from itertools import count

import pytest

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.hosts import (
    TRUSTED_ADDRESSES_MAX,
    DialBudget,
    Identities,
    Places,
    SharedNetworks,
    block_of,
    find_work,
    is_worked,
    site_of,
)

VICTIM = "203.0.113.9"


def dials_in(budget: DialBudget, addresses: list[str], seconds: float, every_s: float = 0.1) -> int:
    """Try each address again and again; return how many dials were allowed."""
    steps = int(seconds / every_s)
    return sum(
        budget.try_take(address, step * every_s) for step in range(steps) for address in addresses
    )


# --- dials ----------------------------------------------------------------------------------------


def test_a_host_is_dialled_less_than_once_a_second_whatever_its_ports_and_peers_are() -> None:
    addresses = [f"{VICTIM}:{port}" for port in range(2000, 2040)]
    assert dials_in(DialBudget(), addresses, 120) <= 120
    assert dials_in(DialBudget(), addresses, 20) <= 20


def test_other_spellings_of_a_host_are_the_same_host() -> None:
    budget = DialBudget()
    assert dials_in(budget, [f"{VICTIM}:1", f"[::ffff:{VICTIM}]:1"], 1.0) == limits.DIAL_HOST_BURST
    names = [f"{number}.example.org:7337" for number in range(50)]
    assert dials_in(budget, names, 0.1) == limits.DIAL_HOST_BURST, "names may lead to one host"


def test_a_dial_that_the_right_peer_answers_costs_nothing() -> None:
    budget = DialBudget()
    for number in range(64):  # nodes of one machine, or behind one router
        assert budget.try_take(f"192.0.2.1:{7000 + number}", 0.0)
        budget.give_back(f"192.0.2.1:{7000 + number}")


def test_hosts_do_not_take_from_each_other_and_loopback_is_no_third_party() -> None:
    budget = DialBudget()
    assert dials_in(budget, [f"198.51.100.{number}:1" for number in range(100)], 0.1) == 100
    assert dials_in(budget, ["127.0.0.1:7337", "[::1]:7337", "mem:a", "relay:x@y:1/z"], 1.0) == 40


def test_what_is_kept_of_hosts_is_bounded() -> None:
    budget = DialBudget()
    hosts = [f"198.18.{n // 256}.{n % 256}:1" for n in range(limits.DIAL_HOSTS_MAX + 9)]
    assert dials_in(budget, hosts[:1], 1.0) == limits.DIAL_HOST_BURST
    assert not budget.try_take(hosts[0], 1.0)
    for host in hosts[1:]:
        for _ in range(limits.DIAL_HOST_BURST):
            budget.take(host, 1.5)
    assert not budget.try_take(hosts[-1], 1.5)
    assert budget.try_take(hosts[0], 1.5), "the first of many is forgotten"


# --- private networks -----------------------------------------------------------------------------

HOME = (ipaddress.ip_network("192.168.7.0/24"), ipaddress.ip_network("127.0.0.0/8"))


def usable(*addresses: str, met: tuple[str, ...] = ()) -> tuple[str, ...]:
    return SharedNetworks(lambda: HOME, lambda: met).usable(addresses)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:80",
        "172.16.3.4:7337",
        "192.168.0.1:7337",
        "169.254.1.1:7337",
        "[fd00::1]:7337",
        "[fe80::1]:7337",
        "127.0.0.1:7337",
        "[::1]:7337",
        "0.0.0.0:7337",
        "[::]:7337",
        "224.0.0.1:7337",
        "[::ffff:10.0.0.1]:7337",
        "[64:ff9b::a00:1]:7337",
        "relay:sn1r@10.0.0.1:7337/sn1t",
    ],
)
def test_private_addresses_of_other_networks_are_not_dialled(address: str) -> None:
    assert usable(address) == ()


@pytest.mark.parametrize(
    "address",
    [
        "192.168.7.9:7337",
        "203.0.113.7:1",
        "[2001:db8::1]:1",
        "mem:a",
        "relay:sn1@192.0.2.1:1/sn1t",
    ],
)
def test_public_ones_and_those_of_a_network_that_is_shared_are(address: str) -> None:
    assert usable(address) == (address,)


def test_a_network_in_which_a_peer_is_met_is_shared() -> None:
    assert usable("10.2.0.7:1", met=("10.1.0.5:7337",)) == ("10.2.0.7:1",)
    assert usable("127.0.0.1:1", met=("127.0.0.1:7337",)) == ("127.0.0.1:1",)
    assert usable("127.0.0.1:1", met=("192.0.2.1:7337",)) == ()


def test_what_the_owner_gave_is_dialled_wherever_it_is_and_so_many_of_it_are_kept() -> None:
    shared = SharedNetworks(lambda: (), lambda: ())
    shared.trust(("10.0.0.1:1",))
    assert shared.usable(("10.0.0.1:1", "10.0.0.1:2")) == ("10.0.0.1:1",)
    shared.trust(tuple(f"10.0.0.2:{port}" for port in range(TRUSTED_ADDRESSES_MAX)))
    assert shared.usable(("10.0.0.1:1",)) == ()


# --- places ---------------------------------------------------------------------------------------


def test_blocks_are_what_one_owner_has() -> None:
    assert block_of("192.0.2.1") == block_of("192.0.2.250") != block_of("192.0.3.1")
    assert block_of("2001:db8:1:2::1") == block_of("2001:db8:1:f::9") != block_of("2001:db8:2::")
    assert block_of("memory mem:a") == "memory mem:a"


def test_one_block_crowds_out_itself_only() -> None:
    places: Places[int] = Places(in_all=8, per_block=6)
    numbers = count()
    for _ in range(100):  # a flood from one host
        has_place, _ = places.take("attacker", next(numbers))
        assert has_place
    assert len(places) == 6
    for honest in range(3):
        assert places.take(f"block {honest}", -1 - honest)[0]
    assert len(places) == 8, "the flood has given one up"


def test_the_oldest_of_the_most_crowded_block_makes_room() -> None:
    places: Places[str] = Places(in_all=3, per_block=3)
    assert places.take("a", "a1") == places.take("a", "a2") == (True, None)
    assert places.take("b", "b1") == (True, None)
    assert places.take("c", "c1") == (True, "a1")
    assert places.take("c", "c2") == (False, None), "each has one by now"
    places.give_back("a", "a1")
    places.give_back("b", "b1")
    assert places.take("c", "c2") == (True, None)


def test_a_full_block_lets_its_oldest_go() -> None:
    places: Places[str] = Places(in_all=9, per_block=2)
    assert [places.take("a", name)[1] for name in ("1", "2", "3", "4")] == [None, None, "1", "2"]
    assert len(places) == 2


# --- identities -----------------------------------------------------------------------------------

SWARM = b"s" * 32


def peer(number: int) -> PeerId:
    return PeerId(hashlib.sha256(b"%d" % number).digest())


def let_in(identities: Identities, n: int, *, at: str = VICTIM, has_worked: bool = False) -> int:
    return sum(
        identities.admit(f"{at}:{2000 + number}", peer(number), 0.0, has_worked=has_worked)
        for number in range(n)
    )


def test_members_of_one_network_are_bounded_and_keys_beyond_a_few_cost_work() -> None:
    identities = Identities()
    assert let_in(identities, 200) == limits.IDENTITIES_FREE_MAX
    assert let_in(identities, 200, has_worked=True) == limits.IDENTITIES_MAX
    assert let_in(identities, 8, at="198.51.100.7") == 8, "eight behind one router"
    for at in ("10.0.0.7", "127.0.0.1", "[fd00::1]"):
        assert let_in(identities, 200, at=at) == 200, "a network of its owner"


def test_who_was_let_in_stays_and_keys_do_not_take_turns() -> None:
    identities = Identities()
    let_in(identities, limits.IDENTITIES_FREE_MAX)
    almost = limits.IDENTITY_KEEP_S - 1
    assert identities.admit(f"{VICTIM}:1", peer(0), almost, has_worked=False)
    assert not identities.admit(f"{VICTIM}:1", peer(99), almost, has_worked=False)
    assert identities.admit(f"{VICTIM}:1", peer(99), limits.IDENTITY_KEEP_S, has_worked=False)


def test_work_is_for_one_key_and_one_swarm() -> None:
    work = find_work(SWARM, peer(1))
    assert is_worked(SWARM, peer(1), work)
    hashed = hashlib.sha256(b"swarmnode/proof-of-work/1\0" + SWARM + peer(1) + work)
    assert hashed.digest()[:2] == bytes(2), "what swarm.md says"
    assert not is_worked(SWARM, peer(2), work)
    assert not is_worked(b"t" * 32, peer(1), work)
    assert not is_worked(SWARM, peer(1), b"")
    assert not is_worked(SWARM, peer(1), work + b"x")


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2a00:1450:1:2:3::9", "2a00:1450:1:2::/64"),
        ("node.example", "node.example"),
    ],
)
def test_a_router_gives_its_machines_one_address_or_one_64(host: str, site: str) -> None:
    assert site_of(host) == site
