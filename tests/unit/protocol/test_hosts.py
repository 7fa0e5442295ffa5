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
    ip_of,
    is_loopback,
    is_near,
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


def owing(budget: DialBudget, number: int, n_dials: int, now: float = 0.0) -> str:
    """Dial a host so often that it owes; return its address."""
    address = f"198.18.{number // 256}.{number % 256}:1"
    for _ in range(n_dials):
        budget.take(address, now)
    return address


def left_of(budget: DialBudget, address: str, now: float) -> int:
    """Return how many dials of a host are due now, all of which are taken."""
    return sum(budget.try_take(address, now) for _ in range(2 * limits.DIAL_HOST_BURST))


def test_a_dial_beyond_the_burst_is_due_when_one_of_it_is_paid_back() -> None:
    budget, address = DialBudget(), f"{VICTIM}:1"
    assert left_of(budget, address, 100.0) == limits.DIAL_HOST_BURST
    due_s = limits.DIAL_HOST_INTERVAL_S
    assert budget.wait_s(address, 100.0) == due_s
    assert not budget.try_take(address, 100.0)
    assert budget.wait_s(address, 100.0) == due_s, "what was not dialled costs nothing"
    budget.take(address, 100.0)  # one that will be dialled when it is due
    assert budget.wait_s(address, 100.0) == 2 * due_s
    assert left_of(budget, address, 100.0 + 2 * due_s) == 1
    budget.give_back(address)
    assert left_of(budget, address, 100.0 + 2 * due_s) == 1
    assert left_of(budget, address, 9_999.0) == limits.DIAL_HOST_BURST, "rest is no credit"


def test_what_is_no_third_party_waits_for_nothing_and_is_given_nothing_back() -> None:
    budget = DialBudget()
    for address in ("127.0.0.1:1", "mem:a", f"{VICTIM}:1"):
        budget.give_back(address)
        assert budget.wait_s(address, 0.0) == 0.0
    assert left_of(budget, f"{VICTIM}:1", 0.0) == limits.DIAL_HOST_BURST


def test_one_host_too_many_pushes_out_the_one_that_is_free_first() -> None:
    budget, full = DialBudget(), limits.DIAL_HOST_BURST
    later, first, last = (owing(budget, number, full + number) for number in (2, 1, 3))
    for number in range(4, limits.DIAL_HOSTS_MAX + 1):
        owing(budget, number, full + 4)
    budget.take(last, 0.0)  # it is known: none goes
    assert [budget.wait_s(each, 0.0) > 0.0 for each in (later, first, last)] == [True] * 3
    owing(budget, 0, full + 4)
    assert [budget.wait_s(each, 0.0) > 0.0 for each in (later, first, last)] == [True, False, True]


def test_hosts_that_owe_nothing_make_room_before_one_that_does() -> None:
    budget = DialBudget()
    owes = owing(budget, 0, 4 * limits.DIAL_HOST_BURST)
    for number in range(1, limits.DIAL_HOSTS_MAX):
        owing(budget, number, 1)
    later = 2 * limits.DIAL_HOST_INTERVAL_S
    for number in range(2):
        owing(budget, limits.DIAL_HOSTS_MAX + number, 5 * limits.DIAL_HOST_BURST, later)
    assert budget.wait_s(owes, later) > 0.0


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


def test_a_network_is_not_shared_for_a_peer_of_another_one() -> None:
    assert usable("10.2.0.7:1", met=("192.168.1.1:1", "mem:a", "host:1")) == ()
    assert usable("10.2.0.7:1", met=("203.0.113.7:1",)) == ()
    assert usable("127.0.0.1:1", met=("mem:a", "[::1]:1")) == ("127.0.0.1:1",)
    shared = SharedNetworks(lambda: HOME, lambda: ())
    assert shared.usable(("192.168.7.9:1", "10.0.0.1:1", "mem:a")) == ("192.168.7.9:1", "mem:a")


def test_what_was_given_last_is_trusted_longest() -> None:
    shared = SharedNetworks(lambda: (), lambda: ())
    old = tuple(f"10.0.0.1:{port}" for port in range(TRUSTED_ADDRESSES_MAX))
    shared.trust(old)
    assert shared.usable(old) == old
    shared.trust(old[:1])
    shared.trust(("10.0.0.2:1",))
    assert shared.usable((*old, "10.0.0.2:1")) == (old[0], *old[2:], "10.0.0.2:1")


@pytest.mark.parametrize(
    ("address", "ip", "is_local", "is_close"),
    [
        ("127.0.0.1:7337", "127.0.0.1", True, True),
        ("[::1]:7337", "::1", True, True),
        ("[::ffff:10.0.0.1]:1", "10.0.0.1", False, True),
        ("172.16.0.1:1", "172.16.0.1", False, True),
        ("100.64.0.1:1", "100.64.0.1", False, True),
        ("224.0.0.1:1", "224.0.0.1", False, True),
        ("[fe80::1]:1", "fe80::1", False, True),
        ("203.0.113.9:1", "203.0.113.9", False, False),
        ("[2001:db8::1]:1", "2001:db8::1", False, False),
    ],
)
def test_addresses_are_near_or_lead_elsewhere(
    address: str, ip: str, is_local: bool, is_close: bool
) -> None:
    found = ip_of(address)
    assert found == ipaddress.ip_address(ip)
    assert found is not None
    assert (is_loopback(address), is_near(found)) == (is_local, is_close)


def test_an_address_of_ipv4_within_one_of_ipv6_is_near_where_it_is() -> None:
    assert is_near(ipaddress.ip_address("::ffff:10.0.0.1"))
    assert not is_near(ipaddress.ip_address("::ffff:203.0.113.9"))


def test_a_name_is_no_address() -> None:
    assert ip_of("host.example:7337") is None
    assert not is_loopback("localhost:7337")


# --- places ---------------------------------------------------------------------------------------


def test_blocks_are_what_one_owner_has() -> None:
    assert block_of("192.0.2.1") == block_of("192.0.2.250") != block_of("192.0.3.1")
    assert block_of("2001:db8:1:2::1") == block_of("2001:db8:1:f::9") != block_of("2001:db8:2::")
    assert block_of("memory mem:a") == "memory mem:a"
    for host in ("192.0.2.77", "192.0.2.77:7337", "[::ffff:192.0.2.77]:7337"):
        assert block_of(host) == "192.0.2.0/24"
    for host in ("2001:db8:1:2::1", "[2001:db8:1:2::1]:7337"):
        assert block_of(host) == "2001:db8:1::/48"


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


def test_a_stranger_is_let_in_only_where_its_block_has_fewer_by_two_than_the_most_crowded() -> None:
    places: Places[str] = Places(in_all=5, per_block=4)
    for name in ("a1", "a2", "a3", "b1", "c1"):
        assert places.take(name[0], name) == (True, None)
    assert places.take("b", "b2") == (True, "a1")
    assert places.take("b", "b3") == (False, None)
    assert len(places) == 5
    assert places.take("c", "c2") == (False, None), "two to one is no crowd"


def test_who_gives_a_place_back_that_it_has_not_takes_none_of_another() -> None:
    places: Places[str] = Places(in_all=3, per_block=2)
    places.take("a", "a1")
    places.take("a", "a2")
    places.give_back("a", "stranger")
    places.give_back("b", "a1")
    assert len(places) == 2
    places.give_back("a", "a2")
    assert len(places) == 1
    assert places.take("a", "a3") == (True, None)
    assert places.take("a", "a4") == (True, "a1")


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


def test_a_peer_that_moves_frees_its_place_and_one_that_may_not_keeps_it() -> None:
    identities, elsewhere = Identities(), "198.51.100.7"
    let_in(identities, limits.IDENTITIES_FREE_MAX)
    for number in range(100, 100 + limits.IDENTITIES_FREE_MAX - 1):
        assert identities.admit(f"{elsewhere}:1", peer(number), 0.0, has_worked=False)
    assert identities.admit(f"{elsewhere}:1", peer(0), 0.0, has_worked=False)
    assert not identities.admit(f"{elsewhere}:1", peer(1), 0.0, has_worked=False)
    assert identities.admit(f"{VICTIM}:1", peer(1), 0.0, has_worked=False), "it has its place"
    assert identities.admit(f"{VICTIM}:1", peer(99), 0.0, has_worked=False), "one was left"
    assert not identities.admit(f"{VICTIM}:1", peer(0), 0.0, has_worked=False)


def test_a_network_that_most_have_left_is_counted_to_the_last_one() -> None:
    identities, most = Identities(), limits.IDENTITIES_FREE_MAX
    let_in(identities, most)
    let_in(identities, most - 1, at="198.51.100.7")  # all but one move
    came = sum(
        identities.admit(f"{VICTIM}:1", peer(number), 0.0, has_worked=False)
        for number in range(100, 200)
    )
    assert came == most - 1


def test_the_peer_seen_least_lately_is_forgotten_where_they_are_too_many() -> None:
    identities, free = Identities(), limits.IDENTITIES_FREE_MAX
    let_in(identities, free)
    identities.admit(f"{VICTIM}:1", peer(0), 1.0, has_worked=False)
    for number in range(free, limits.IDENTITIES_KEPT_MAX):
        block = number // free
        at = f"198.18.{block}.1:1" if block < 256 else "198.19.0.1:1"
        assert identities.admit(at, peer(number), 1.0, has_worked=False)
        if number == limits.IDENTITIES_KEPT_MAX - 2:
            assert not identities.admit(f"{VICTIM}:1", peer(-1), 1.0, has_worked=False)
    assert identities.admit(f"{VICTIM}:1", peer(-1), 1.0, has_worked=False), "one was forgotten"


def test_what_no_address_tells_is_let_in() -> None:
    identities = Identities()
    for number in range(2 * limits.IDENTITIES_MAX):
        assert identities.admit("relayed", peer(number), 0.0, has_worked=False)


def test_work_begins_with_as_many_zero_bits_as_the_limit_says_and_the_first_is_found() -> None:
    whose = peer(37)
    found = int.from_bytes(find_work(SWARM, whose), "big")
    tried = [number.to_bytes(8, "big") for number in range(found + 1)]
    assert [is_worked(SWARM, whose, work) for work in tried] == [False] * found + [True]
    almost = [work for work in tried[:-1] if zero_bits(whose, work) == limits.WORK_BITS - 1]
    assert almost, "one bit too few is no work"
    assert zero_bits(whose, tried[-1]) >= limits.WORK_BITS


def zero_bits(whose: PeerId, work: bytes) -> int:
    digest = hashlib.sha256(b"swarmnode/proof-of-work/1\0" + SWARM + whose + work).digest()
    return 256 - int.from_bytes(digest, "big").bit_length()


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
        ("203.0.113.9:7337", "203.0.113.9"),
        ("[2a00:1450:1:2:3::9]:7337", "2a00:1450:1:2::/64"),
    ],
)
def test_a_router_gives_its_machines_one_address_or_one_64(host: str, site: str) -> None:
    assert site_of(host) == site
