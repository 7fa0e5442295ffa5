"""A lookup ends whatever its peers do, asks no peer twice, and finds all that there are to find."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.ids import PeerId
from swarmnode.protocol.dht.keys import AddressGroups, key_bytes, number_of
from swarmnode.protocol.dht.lookup import Lookup
from swarmnode.wire.dht import Contact

TARGET = number_of(hashlib.sha256(b"target").digest())
OWN = number_of(hashlib.sha256(b"own").digest())


def peer(number: int) -> Contact:
    return Contact(
        hashlib.sha256(b"%d" % number).digest(), (f"100.{number >> 8}.{number & 255}.1:1",)
    )


def distance(contact: Contact) -> int:
    return number_of(contact.peer) ^ TARGET


@dataclass
class Network:
    """Peers that know some others; drives one lookup in an order drawn from a seed."""

    seed: int
    n_peers: int
    reliable: float  # share of peers that answer in time
    known_each: int
    rng: random.Random = field(init=False)
    asked: list[PeerId] = field(default_factory=list)
    answered: set[PeerId] = field(default_factory=set)
    slow_calls: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.peers = [peer(number) for number in range(self.n_peers)]
        self.tables = {
            contact.peer: self.rng.sample(self.peers, min(self.known_each, self.n_peers))
            for contact in self.peers
        }

    def closest_known(self, contact: Contact, count: int) -> list[Contact]:
        return sorted(self.tables[contact.peer], key=distance)[:count]

    def run(self, lookup: Lookup, alpha: int) -> None:
        """Until it is finished; a peer answers, or is slow, and then answers late or fails."""
        waiting: list[Contact] = []
        slow: list[Contact] = []
        for _ in range(50 * self.n_peers + 50):
            while (contact := lookup.next_contact()) is not None:
                assert contact.peer not in self.asked, "asked twice"
                self.asked.append(PeerId(contact.peer))
                waiting.append(contact)
            assert len(waiting) == lookup.in_flight <= alpha
            if lookup.is_finished():
                return
            assert waiting or slow, "nothing under way, and not finished"
            self.step(lookup, waiting, slow)
        raise AssertionError("no end")

    def step(self, lookup: Lookup, waiting: list[Contact], slow: list[Contact]) -> None:
        queue = waiting if waiting and (not slow or self.rng.random() < 0.7) else slow
        contact = queue.pop(self.rng.randrange(len(queue)))
        who = PeerId(contact.peer)
        if self.rng.random() < self.reliable:
            self.answered.add(who)
            lookup.answered(who, self.closest_known(contact, limits.DHT_BUCKET_CONTACTS))
        elif queue is waiting and self.rng.random() < 0.5:
            lookup.slow(who)
            slow.append(contact)
        else:
            lookup.failed(who)


networks = st.builds(
    Network,
    seed=st.integers(0, 2**32 - 1),
    n_peers=st.integers(1, 80),
    reliable=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    known_each=st.integers(1, 40),
)


@given(
    network=networks,
    paths=st.integers(1, 4),
    k=st.integers(1, 20),
    alpha=st.integers(1, 5),
    n_seeds=st.integers(0, 20),
)
@settings(max_examples=150, deadline=None)
def test_a_lookup_ends_and_keeps_to_its_window(
    network: Network, paths: int, k: int, alpha: int, n_seeds: int
) -> None:
    seeds = network.rng.sample(network.peers, min(n_seeds, network.n_peers))
    lookup = Lookup(TARGET, OWN, seeds, AddressGroups(), paths=paths, k=k, alpha=alpha)
    network.run(lookup, alpha)
    found = lookup.closest()
    distances = [distance(contact) for contact in found]
    assert distances == sorted(set(distances))
    assert len(found) == min(k, len(network.answered))
    assert {PeerId(contact.peer) for contact in found} <= network.answered
    assert lookup.asked == len(network.asked)
    assert 0 <= lookup.hops() <= lookup.rounds() <= network.n_peers


@given(seed=st.integers(0, 2**32 - 1), n_peers=st.integers(1, 120), paths=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_honest_peers_lead_to_the_closest(seed: int, n_peers: int, paths: int) -> None:
    """Everybody knows everybody near, and some far; so every path leads to the k closest."""
    network = Network(seed, n_peers, 1.0, n_peers)
    seeds = network.rng.sample(network.peers, min(3, n_peers))
    lookup = Lookup(TARGET, OWN, seeds, AddressGroups(), paths=paths)
    network.run(lookup, limits.DHT_LOOKUP_PARALLEL)
    expected = sorted(network.peers, key=distance)[: limits.DHT_BUCKET_CONTACTS]
    assert lookup.closest() == expected


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_an_attacker_on_one_path_does_not_steer_the_others(seed: int) -> None:
    """A liar names only accomplices, which are closer to the target than any other peer."""
    network = Network(seed, 60, 1.0, 60)
    rng = network.rng
    accomplices = [
        Contact(key_bytes(TARGET ^ rng.getrandbits(200)), (f"100.200.{n}.1:1",)) for n in range(20)
    ]
    for liar in [network.peers[0], *accomplices]:
        network.tables[liar.peer] = accomplices
    seeds = network.peers[:3]
    lookup = Lookup(TARGET, OWN, seeds, AddressGroups(), paths=3)
    network.run(lookup, limits.DHT_LOOKUP_PARALLEL)
    honest = sorted(network.peers[1:], key=distance)[:10]
    assert {PeerId(contact.peer) for contact in honest} <= network.answered


def test_invented_peers_end_a_lookup_in_bounded_requests() -> None:
    lookup = Lookup(TARGET, OWN, [peer(0)], AddressGroups())
    closer = 2**255
    while (contact := lookup.next_contact()) is not None:
        closer -= 1
        invented = Contact(
            key_bytes(TARGET ^ closer), (f"100.{closer >> 8 & 255}.{closer & 255}.1:1",)
        )
        lookup.answered(PeerId(contact.peer), [invented])
    assert lookup.is_finished()
    assert lookup.asked <= limits.DHT_LOOKUP_REQUESTS_MAX


def test_one_network_cannot_fill_a_lookup() -> None:
    crowd = [Contact(key_bytes(TARGET ^ n), (f"203.0.113.{n}:1",)) for n in range(1, 100)]
    lookup = Lookup(TARGET, OWN, [*crowd, peer(1)], AddressGroups(), alpha=100)
    asked = [contact for _ in range(100) if (contact := lookup.next_contact()) is not None]
    assert len(asked) == limits.DHT_GROUP_TABLE_MAX + 1


def test_a_late_answer_still_counts() -> None:
    lookup = Lookup(TARGET, OWN, [peer(0)], AddressGroups())
    assert lookup.next_contact() == peer(0)
    lookup.slow(PeerId(peer(0).peer))
    assert lookup.is_finished()
    lookup.answered(PeerId(peer(0).peer), [peer(1)])
    assert not lookup.is_finished()
    assert lookup.next_contact() == peer(1)


def test_answers_of_strangers_are_ignored() -> None:
    lookup = Lookup(TARGET, OWN, [peer(0)], AddressGroups())
    lookup.answered(PeerId(peer(9).peer), [peer(1)])
    lookup.failed(PeerId(peer(9).peer))
    assert lookup.next_contact() == peer(0)
    assert lookup.next_contact() is None
