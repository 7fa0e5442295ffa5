"""Beacons on the LAN: what is believed, what is refused, when something is sent, and how much."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio

from swarmnode import limits
from swarmnode.net.lan import datagrams
from swarmnode.net.lan.beacon import LanBeacon, LanPeer, LanSwarm
from swarmnode.net.lan.datagrams import DatagramNet, UdpNet
from swarmnode.net.lan.interfaces import Interface, list_interfaces
from swarmnode.protocol.lan import Announce, Heard, LanCore, LinkAdded
from swarmnode.wire.connect.beacon import Beacon
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.lan_kit import (
    NETWORK,
    MemoryLan,
    beacon,
    core_of,
    identity,
    interface,
    met,
    signed_by,
    swarm,
    virtual_env,
)

HOST = "192.0.2.7"


def hear(core: LanCore, data: bytes, now: float = 0.0, host: str = HOST) -> list[LanPeer]:
    core.handle(Heard(data, host, is_on_link=True), now)
    return met(core)


def refused(core: LanCore) -> dict[str, int]:
    return dict(core.statistics().refused_total)


def drop_hellos(core: LanCore) -> None:
    """Let the quick beacons of the start go by."""
    for _ in range(limits.LAN_HELLOS):
        core.handle_deadline(core.next_deadline())
    core.poll_effects()


# --- what is believed -------------------------------------------------------------------------


def test_what_one_signs_the_other_takes() -> None:
    author, reader = core_of(1), core_of(2)
    (peer,) = hear(reader, author.sign(7337, (swarm(1), swarm(2))), 5.0)
    assert peer.peer == identity(1).peer_id
    assert peer.address == "192.0.2.7:7337"
    assert peer.swarms == (swarm(1), swarm(2))
    assert peer.heard_at == 5.0
    assert reader.peers(5.0) == (peer,)


def test_the_largest_beacon_fits_into_one_datagram() -> None:
    crowd = tuple(
        LanSwarm(str(number) + "n" * 63, bytes(32), 2**63 - 1, 2**63 - 1) for number in range(9)
    )
    author = LanCore(
        identity=identity(1), network_id=NETWORK, boot=2**63 - 1, rng=Random(0), now=0.0
    )
    data = author.sign(65_535, crowd)
    assert len(data) <= limits.LAN_BEACON_BYTES_MAX
    (peer,) = hear(core_of(2), data)
    assert peer.swarms == crowd[: limits.LAN_SWARMS_MAX]


def test_only_news_is_told() -> None:
    author, reader = core_of(1), core_of(2)
    assert hear(reader, author.sign(7337, ()), 0.0)
    assert not hear(reader, author.sign(7337, ()), 30.0)
    assert hear(reader, author.sign(7337, (swarm(1),)), 60.0)
    assert [peer.address for peer in hear(reader, author.sign(7000, (swarm(1),)), 90.0)] == [
        f"{HOST}:7000"
    ]
    assert [
        peer.address for peer in hear(reader, author.sign(7000, (swarm(1),)), 99.0, "10.0.0.7")
    ] == ["10.0.0.7:7000"]
    assert reader.statistics().taken_total == 5


def test_a_copy_by_another_way_is_another_address() -> None:
    author, reader = core_of(1), core_of(2)
    for now in (0.0, 30.0):
        data = author.sign(7337, ())
        told = [
            peer.address
            for host in ("[fe80::1%eth0]", "192.0.2.7", "192.0.2.7", "[2001:db8::7]")
            for peer in hear(reader, data, now, host)
        ]
        if now == 0.0:
            assert told == ["[fe80::1%eth0]:7337", "192.0.2.7:7337", "[2001:db8::7]:7337"]
        else:
            assert not told
        # The address that only means something here is the last to try.
        assert [peer.address for peer in reader.peers(now)] == ["192.0.2.7:7337"]
    statistics = reader.statistics()
    assert (statistics.taken_total, statistics.copies_total) == (2, 6)
    assert not statistics.refused_total


def test_addresses_of_one_peer_are_capped() -> None:
    reader, data = core_of(2), beacon(1)
    told = [peer for host in range(9) for peer in hear(reader, data, 0.0, f"192.0.2.{host}")]
    assert len(told) == limits.LAN_HOSTS_PER_PEER_MAX


def test_a_peer_is_forgotten_after_three_missed_beacons_and_met_again() -> None:
    author, reader = core_of(1), core_of(2)
    hear(reader, author.sign(7337, ()), 0.0)
    last = 3 * limits.LAN_BEACON_S * (1 + limits.LAN_JITTER)
    assert reader.peers(last)
    assert not reader.peers(last + 1.0)
    assert reader.statistics().peers == 0
    assert hear(reader, author.sign(7337, ()), 200.0)


def test_a_restarted_peer_is_heard_at_once() -> None:
    reader = core_of(2)
    hear(reader, core_of(1, boot=1000).sign(7337, ()), 0.0)
    (peer,) = hear(reader, core_of(1, boot=1001).sign(7444, ()), 1.0)
    assert peer.address == f"{HOST}:7444"
    # Its clock was set back: a replay until the former life is forgotten.
    set_back = core_of(1, boot=500)
    assert not hear(reader, set_back.sign(7555, ()), 2.0)
    assert hear(reader, set_back.sign(7555, ()), 2.0 + limits.LAN_SILENCE_S)


# --- what is refused --------------------------------------------------------------------------


def resigned(number: int, body: bytes) -> bytes:
    author = identity(number)
    return encode_record(Signed(body, author.public_key, author.sign("lan-beacon/1", body)))


def forged() -> bytes:
    """The beacon of one author with the signature of another domain."""
    author = identity(1)
    body = encode_record(Beacon(NETWORK, 1, 9, 666, ()))
    return encode_record(Signed(body, author.public_key, author.sign("manifest/1", body)))


HUGE = encode_record(Signed(bytes(limits.LAN_BEACON_BYTES_MAX), identity(1).public_key, bytes(64)))
BAD: dict[str, tuple[str, bytes]] = {
    "nothing": ("malformed", b""),
    "noise": ("malformed", Random(1).randbytes(500)),
    "cut": ("malformed", beacon(1)[:-1]),
    "with-a-tail": ("malformed", beacon(1) + b"\0"),
    "no-such-port": ("malformed", beacon(1, port=65_536)),
    "too-many-swarms": (
        "malformed",
        signed_by(identity(1), Beacon(NETWORK, 1, 1, 1, tuple(swarm(n) for n in range(5)))),
    ),
    "bad-name": (
        "malformed",
        signed_by(identity(1), Beacon(NETWORK, 1, 1, 1, (swarm(1, "\x1b[2J"),))),
    ),
    "no-beacon": ("malformed", resigned(1, b"\x80")),
    "foreign": ("foreign", beacon(1, network=bytes(32))),
    "oversized": ("oversized", HUGE),
    "other-domain": ("forged", forged()),
    "flipped": ("forged", beacon(1)[:-1] + bytes([beacon(1)[-1] ^ 1])),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_beacons_are_counted_by_reason_and_nothing_else_happens(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    reason, data = BAD[name]
    core = core_of(2)
    drop_hellos(core)
    before = core.next_deadline()
    with caplog.at_level(logging.DEBUG):
        assert not hear(core, data)
    assert refused(core) == {reason: 1}
    assert core.peers(0.0) == ()
    assert core.next_deadline() == before
    assert not caplog.records


def test_replays_move_no_peer() -> None:
    core = core_of(2)
    first, second = beacon(1, 1), beacon(1, 2)
    hear(core, first, 0.0)
    hear(core, second, 0.5)
    assert not hear(core, first, 0.6, "192.0.2.66")  # an older one, at once
    assert not hear(core, second, 0.5 + limits.LAN_COPY_S + 0.1, "192.0.2.66")  # the last, later
    assert not hear(core, beacon(1, 2, port=666), 0.7)  # of the same number, other words
    assert refused(core) == {"replayed": 3}
    assert [peer.address for peer in core.peers(1.0)] == [f"{HOST}:7337"]


def test_a_forgery_of_a_known_peer_moves_no_peer() -> None:
    core = core_of(2)
    hear(core, beacon(1), 0.0)
    assert not hear(core, forged(), 1.0, "192.0.2.66")
    assert refused(core) == {"forged": 1}
    assert [peer.address for peer in core.peers(1.0)] == [f"{HOST}:7337"]


def test_from_elsewhere_than_the_lan_is_refused() -> None:
    core = core_of(2)
    core.handle(Heard(beacon(1), "203.0.113.9", is_on_link=False), 0.0)
    assert refused(core) == {"off-link": 1}
    assert core.peers(0.0) == ()


def test_our_own_are_no_news() -> None:
    core = core_of(1)
    sent = [core.sign(7337, ()) for _ in range(2)]
    for data in sent:
        assert not hear(core, data)
    statistics = core.statistics()
    assert (statistics.own_total, statistics.peers, statistics.sent_total) == (2, 0, 2)
    assert not statistics.refused_total


def test_made_up_keys_of_one_host_leave_room_for_others() -> None:
    core = core_of(0)
    n_peers = limits.LAN_PEERS_PER_HOST_MAX + 10
    for number in range(1, n_peers + 1):
        hear(core, beacon(number), 0.0)
    assert len(core.peers(0.0)) == limits.LAN_PEERS_PER_HOST_MAX
    assert refused(core) == {"crowded": 10}
    assert hear(core, beacon(n_peers + 1), 0.0, "192.0.2.8")
    assert not hear(core, beacon(1, 2), 1.0)  # a known peer stays known
    assert core.statistics().taken_total == limits.LAN_PEERS_PER_HOST_MAX + 2


def test_the_table_keeps_the_peers_heard_last() -> None:
    core = core_of(0)
    n_peers = limits.LAN_PEERS_MAX + 10
    for number in range(1, n_peers + 1):
        hear(core, beacon(number), number / 50, f"192.0.2.{number % 250}")
    peers = [peer.peer for peer in core.peers(6.0)]
    assert peers == [identity(number).peer_id for number in range(11, n_peers + 1)]


def test_a_flood_costs_so_many_checks_a_second_and_no_more() -> None:
    core = core_of(0)
    for _ in range(1000):
        hear(core, BAD["flipped"][1], 10.0)
    assert refused(core)["forged"] == limits.LAN_DATAGRAMS_PER_HOST_PER_S_MAX
    for number in range(1000):
        hear(core, BAD["flipped"][1], 10.5, f"198.51.100.{number}")
    assert refused(core)["forged"] == limits.LAN_DATAGRAMS_PER_S_MAX
    assert not hear(core, beacon(1), 10.9)
    assert refused(core)["too-many"] == 2001 - limits.LAN_DATAGRAMS_PER_S_MAX
    assert hear(core, beacon(1), 11.0)


def test_no_bytes_whatever_do_any_harm() -> None:
    rng = Random(7)
    core, whole = core_of(2), beacon(1)
    for step in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if bytes(data) != whole:
            assert not hear(core, bytes(data[: rng.randint(0, 2 * len(data))]), step / 100)
    assert core.statistics().taken_total == 0


# --- when something is sent -------------------------------------------------------------------


def sending_times(core: LanCore, until: float) -> list[float]:
    times = []
    while (now := core.next_deadline()) <= until:
        core.handle_deadline(now)
        times += [now for effect in core.poll_effects() if isinstance(effect, Announce)]
    return times


def test_three_beacons_at_once_then_one_every_half_minute() -> None:
    core = core_of(1, now=100.0)
    times = sending_times(core, 1000.0)
    assert times[:3] == [100.0, 100.25, 100.5]
    gaps = [later - earlier for earlier, later in pairwise(times[2:])]
    assert min(gaps) >= 27.0
    assert max(gaps) <= 33.0
    assert len(set(gaps)) == len(gaps) > 20
    core.handle_deadline(0.0)  # not yet
    assert not core.poll_effects()


def test_a_new_interface_starts_again() -> None:
    core = core_of(1)
    drop_hellos(core)
    core.handle(LinkAdded(), 10.0)
    assert sending_times(core, 11.0) == [10.0, 10.25, 10.5]


def test_a_newcomer_is_answered_once_within_a_second() -> None:
    core = core_of(1)
    drop_hellos(core)
    for number in range(2, 7):
        hear(core, beacon(number), 10.0, f"192.0.2.{number}")
    (answered_at,) = sending_times(core, 20.0)
    assert 10.0 <= answered_at <= 10.0 + limits.LAN_ANSWER_DELAY_S
    hear(core, beacon(2, 2), 21.0)  # known: no answer
    assert not sending_times(core, 22.0)


def test_strangers_cannot_make_us_talk_all_the_time() -> None:
    core = core_of(0)
    drop_hellos(core)
    now, spoken = 1.0, 0
    for number in range(1, 1001):
        now += 0.01
        hear(core, beacon(number), now, f"192.0.2.{number % 250}")
        spoken += len(sending_times(core, now))
    assert spoken <= 10.0 / limits.LAN_ANSWER_GAP_S + 1


def test_who_hears_enough_others_does_not_answer() -> None:
    core = core_of(0)
    drop_hellos(core)
    old = range(1, limits.LAN_ANSWERS_ENOUGH + 1)
    for number in old:
        hear(core, beacon(number), 1.0, f"192.0.2.{number}")
    assert len(sending_times(core, 5.0)) == 1
    hear(core, beacon(99), 10.0, "192.0.2.99")
    for number in old:
        hear(core, beacon(number, 2), 10.0, f"192.0.2.{number}")
    assert not sending_times(core, 12.0)


class Extreme(Random):
    """Draws the least, or the most."""

    def __init__(self, *, is_least: bool) -> None:
        super().__init__(0)
        self._is_least = is_least

    def uniform(self, a: float, b: float, /) -> float:
        return a if self._is_least else b


def extreme(*, is_least: bool) -> LanCore:
    rng = Extreme(is_least=is_least)
    core = LanCore(identity=identity(1), network_id=NETWORK, boot=1, rng=rng, now=0.0)
    drop_hellos(core)
    return core


@pytest.mark.parametrize("is_least", [True, False])
def test_beacons_and_answers_come_within_their_times_and_no_sooner_or_later(is_least: bool) -> None:
    core = extreme(is_least=is_least)
    spoke_at = (limits.LAN_HELLOS - 1) * limits.LAN_HELLO_S
    share = 1 - limits.LAN_JITTER if is_least else 1 + limits.LAN_JITTER
    planned = spoke_at + limits.LAN_BEACON_S * share
    assert core.next_deadline() == pytest.approx(planned)
    hear(core, beacon(2), spoke_at)
    assert core.next_deadline() == spoke_at + limits.LAN_ANSWER_GAP_S
    assert len(sending_times(core, spoke_at + 1.0)) == 1
    assert core.next_deadline() == pytest.approx(planned), "an answer moves no beacon"
    hear(core, beacon(3), 9.0)
    answer_at = 9.0 if is_least else 9.0 + limits.LAN_ANSWER_DELAY_S
    assert core.next_deadline() == answer_at
    core.handle_deadline(answer_at - 1e-9)
    assert not core.poll_effects()
    core.handle_deadline(answer_at)
    assert core.poll_effects() == [Announce()]


def test_a_beacon_answers_newcomers_too() -> None:
    core = extreme(is_least=False)
    beacon_at = core.next_deadline()
    hear(core, beacon(2), beacon_at - 0.1)
    assert sending_times(core, beacon_at + 1.0) == [beacon_at]


def test_one_heard_too_few_keeps_the_answer_and_the_next_newcomer_is_counted_for_anew() -> None:
    core = core_of(0)
    drop_hellos(core)
    few = range(1, limits.LAN_ANSWERS_ENOUGH)
    for number in few:
        hear(core, beacon(number), 1.0, f"192.0.2.{number}")
    assert len(sending_times(core, 5.0)) == 1
    for newcomer, now in ((98, 10.0), (99, 15.0)):
        hear(core, beacon(newcomer), now, f"192.0.2.{newcomer}")
        for number in few:
            hear(core, beacon(number, newcomer), now, f"192.0.2.{number}")
        assert len(sending_times(core, now + 2.0)) == 1


def test_a_node_that_only_asks_is_answered_and_is_none_to_dial() -> None:
    core = core_of(0)
    drop_hellos(core)
    assert not hear(core, beacon(1, 1, port=0), 5.0)
    assert not hear(core, beacon(1, 1, port=0), 5.0, "10.0.0.7")
    assert core.peers(5.0) == ()
    assert core.statistics().peers == 1
    assert len(sending_times(core, 7.0)) == 1
    (peer,) = hear(core, beacon(1, 2), 8.0)
    assert core.peers(8.0) == (peer,)


def test_a_peer_that_comes_another_way_is_met_there_once() -> None:
    core = core_of(2)
    hear(core, beacon(1, 1), 0.0)
    assert hear(core, beacon(1, 2), 9.0, "10.0.0.7")
    assert not hear(core, beacon(1, 2), 9.0), "where it was met before"
    assert not hear(core, beacon(1, 3), 18.0, "10.0.0.7")
    assert [peer.address for peer in core.peers(18.0)] == ["10.0.0.7:7337"]


def test_a_copy_counts_for_so_long_and_then_it_is_a_replay() -> None:
    core, data = core_of(2), beacon(1)
    hear(core, data, 5.0)
    assert hear(core, data, 5.0 + limits.LAN_COPY_S, "10.0.0.7")
    assert not hear(core, data, 5.001 + limits.LAN_COPY_S, "10.0.0.8")
    assert (core.statistics().copies_total, refused(core)) == (1, {"replayed": 1})


def test_a_datagram_may_be_so_long_and_no_longer() -> None:
    core = core_of(2)
    hear(core, bytes(limits.LAN_BEACON_BYTES_MAX))
    hear(core, bytes(limits.LAN_BEACON_BYTES_MAX + 1))
    assert refused(core) == {"malformed": 1, "oversized": 1}


def test_our_own_from_elsewhere_and_after_a_flood_are_still_our_own() -> None:
    core = core_of(1)
    sent = core.sign(7337, ())
    for _ in range(limits.LAN_DATAGRAMS_PER_HOST_PER_S_MAX + 1):
        core.handle(Heard(sent, HOST, is_on_link=False), 0.0)
    assert core.statistics().own_total == limits.LAN_DATAGRAMS_PER_HOST_PER_S_MAX + 1
    assert not refused(core)


def test_a_beacon_at_the_end_of_its_time_is_forgotten_however_one_looks() -> None:
    core, last = core_of(2), limits.LAN_SILENCE_S
    hear(core, beacon(1), 0.0)
    hear(core, beacon(3), 1.0, "192.0.2.8")
    assert len(core.peers(last - 1e-9)) == 2
    assert len(core.peers(last)) == 1
    hear(core, b"junk", last + 1.0)
    assert core.statistics().peers == 0


def test_numbers_of_beacons_go_up_and_those_of_a_later_start_are_newer() -> None:
    core = core_of(1)
    assert core.statistics().sent_total == 0
    reader = core_of(2)
    first, second = core.sign(7337, ()), core.sign(7337, ())
    assert (core.statistics().sent_total, first != second) == (2, True)
    assert hear(reader, second)
    assert not hear(reader, first)
    assert refused(reader) == {"replayed": 1}


# --- the shell, on virtual time ---------------------------------------------------------------


@dataclass
class Node:
    """A beacon and what it told."""

    number: int
    net: DatagramNet
    port: int = 7337
    swarms: tuple[LanSwarm, ...] = ()
    network_id: bytes = NETWORK
    met: list[LanPeer] = field(default_factory=list)
    beacon: LanBeacon = field(init=False)

    def __post_init__(self) -> None:
        self.heard = trio.Event()
        self.beacon = LanBeacon(
            identity=identity(self.number),
            network_id=self.network_id,
            port=lambda: self.port,
            swarms=lambda: self.swarms,
            on_peer=self._on_peer,
            env=virtual_env(self.number),
            net=self.net,
        )

    def _on_peer(self, peer: LanPeer) -> None:
        self.met.append(peer)
        self.heard.set()

    @property
    def names(self) -> list[int]:
        """Numbers of those that it knows now."""
        ids = {identity(number).peer_id: number for number in range(9)}
        return sorted(ids[peer.peer] for peer in self.beacon.peers(trio.current_time()))


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[None]:
    """Run a node for as long as the block takes."""
    async with trio.open_nursery() as nursery:
        await nursery.start(node.beacon.run)
        yield
        nursery.cancel_scope.cancel()


async def test_two_nodes_meet_within_a_second(autojump_clock: Any) -> None:
    lan = MemoryLan()
    first = Node(1, lan.net("192.0.2.1"), swarms=(swarm(5),))
    second = Node(2, lan.net("192.0.2.2"))
    async with running(first):
        await trio.sleep(100.0)
        began = trio.current_time()
        async with running(second):
            with trio.fail_after(1.0):
                await second.heard.wait()
            assert (
                trio.current_time() - began <= limits.LAN_ANSWER_DELAY_S + limits.LAN_ANSWER_GAP_S
            )
            (peer,) = second.met
            assert peer.peer == identity(1).peer_id
            assert peer.address == "192.0.2.1:7337"
            assert peer.swarms == (swarm(5),)
            assert [peer.peer for peer in first.met] == [identity(2).peer_id]
            await trio.sleep(600.0)
            assert (first.names, second.names) == ([2], [1])
            assert len(first.met) == len(second.met) == 1
        await trio.sleep(limits.LAN_SILENCE_S)
        assert first.names == []


async def test_lost_datagrams_cost_little(autojump_clock: Any) -> None:
    lan = MemoryLan(losses=2)
    first, second = Node(1, lan.net("192.0.2.1")), Node(2, lan.net("192.0.2.2"))
    async with running(first), running(second):
        await trio.sleep(1.0)
        assert (first.names, second.names) == ([2], [1])


async def test_a_node_without_a_port_asks_and_is_met_by_none(autojump_clock: Any) -> None:
    lan = MemoryLan()
    first = Node(1, lan.net("192.0.2.1"), port=0, swarms=(swarm(5),))
    second = Node(2, lan.net("192.0.2.2"))
    async with running(second):
        await trio.sleep(100.0)
        async with running(first):
            with trio.fail_after(1.0):
                await first.heard.wait()
            await trio.sleep(100.0)
            assert (first.names, second.names) == ([2], [])
            assert second.met == []


async def test_a_node_that_listens_later_is_met_then(autojump_clock: Any) -> None:
    lan = MemoryLan()
    first, second = Node(1, lan.net("192.0.2.1"), port=0), Node(2, lan.net("192.0.2.2"))
    async with running(first), running(second):
        await trio.sleep(100.0)
        first.port = 7444
        await trio.sleep(limits.LAN_BEACON_S * (1 + limits.LAN_JITTER))
        assert [peer.address for peer in second.met] == ["192.0.2.1:7444"]


def test_a_question_is_answered_once() -> None:
    core = core_of(2)
    drop_hellos(core)
    question = beacon(1, port=0)
    assert not hear(core, question, 10.0)
    assert core.peers(10.0) == ()
    assert len(sending_times(core, 12.0)) == 1
    assert not hear(core, beacon(1, 2, port=0), 12.0)
    assert not sending_times(core, 14.0)


async def test_an_interface_that_comes_later_is_found(autojump_clock: Any) -> None:
    lan = MemoryLan()
    net = lan.net("192.0.2.1")
    net.interfaces.clear()
    node = Node(1, net)
    async with running(node):
        await trio.sleep(1.0)
        assert lan.datagrams == len(node.beacon.interfaces) == 0
        net.interfaces.append(interface("192.0.2.1"))
        await trio.sleep(limits.LAN_RESCAN_S)
        assert "".join(node.beacon.interfaces) == "eth0"
        assert lan.datagrams == limits.LAN_HELLOS


async def test_another_lan_on_the_same_interface_hears_of_us_soon(autojump_clock: Any) -> None:
    lan = MemoryLan()
    net = lan.net("192.0.2.1")
    async with running(Node(1, net)):
        await trio.sleep(45.0)
        before = lan.datagrams
        net.interfaces[0] = interface("10.0.0.1")
        await trio.sleep(16.0)
        assert lan.datagrams >= before + limits.LAN_HELLOS


async def test_thirty_nodes_talk_little(autojump_clock: Any) -> None:
    """In calm one datagram a node in half a minute; a newcomer costs a few answers."""
    lan = MemoryLan()
    async with trio.open_nursery() as nursery:
        for number in range(10, 40):
            await nursery.start(Node(number, lan.net(f"192.0.2.{number}")).beacon.run)
        await trio.sleep(60.0)
        before = lan.datagrams
        await trio.sleep(300.0)
        calm = lan.datagrams - before
        assert 250 <= calm <= 350
        before = lan.datagrams
        newcomer = Node(1, lan.net("192.0.2.1"))
        await nursery.start(newcomer.beacon.run)
        await trio.sleep(1.0)
        assert lan.datagrams - before <= limits.LAN_HELLOS + 30
        assert len(newcomer.met) >= limits.LAN_ANSWERS_ENOUGH
        nursery.cancel_scope.cancel()


# --- real sockets -----------------------------------------------------------------------------


def loopback() -> tuple[Interface, ...]:
    return tuple(interface for interface in list_interfaces() if interface.is_loopback)


def test_interfaces_are_listed() -> None:
    found = list_interfaces()
    (lo,) = [interface for interface in found if interface.is_loopback]
    assert IPv4Interface("127.0.0.1/8") in lo.addresses
    assert lo.is_shared
    assert lo.has_multicast or lo.broadcasts == ("127.255.255.255",)
    assert len({interface.index for interface in found}) == len(found)


def test_broadcast_addresses_follow_from_the_networks() -> None:
    addresses = (
        IPv4Interface("192.0.2.7/26"),
        IPv4Interface("10.0.0.1/31"),
        IPv4Interface("10.9.9.9/32"),
        IPv6Interface("fe80::1/64"),
    )
    assert Interface("eth0", 2, 0x1043, addresses).broadcasts == ("192.0.2.63",)
    assert not Interface("wg0", 3, 0x51, addresses).is_shared
    assert not Interface("eth1", 4, 0x3, addresses).is_shared  # no carrier
    assert Interface("eth0", 2, 0x1043, addresses[3:]).has_ipv6


async def test_two_nodes_on_one_machine_meet_over_loopback() -> None:
    # Other runs of this test may share the port.
    network_id = hashlib.sha256(str(os.getpid()).encode()).digest()
    first, second = (
        Node(number, UdpNet(loopback), port=7000 + number, network_id=network_id)
        for number in (1, 2)
    )
    with trio.fail_after(5.0):
        async with running(first), running(second):
            assert first.beacon.interfaces == tuple(one.name for one in loopback())
            await first.heard.wait()
            await second.heard.wait()
    assert first.met[0].peer == identity(2).peer_id
    assert first.met[0].address == "127.0.0.1:7002"
    assert second.met[0].address == "127.0.0.1:7001"


async def test_what_the_system_refuses_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ghost = Interface("ghost0", 99_999, 0x1043, (IPv4Interface("192.0.2.7/24"),))
    net = UdpNet(lambda: (ghost, *loopback()))
    net.open()
    try:
        for _ in range(3):
            assert loopback()[0] in net.rescan()
            net.send(b"x")
    finally:
        net.close()
    told = [record.__dict__["fields"] for record in caplog.records]
    assert [one["way"] for one in told if one["interface"] == "ghost0"].count("IPv4 multicast") == 1
    assert len(told) == len({(one["interface"], one["way"]) for one in told})


async def test_a_taken_port_leaves_the_node_running(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise OSError(98, "Address already in use")

    def fail() -> Any:
        raise OSError("this system has no getifaddrs")

    monkeypatch.setattr(datagrams, "_open_ipv4", refuse)
    monkeypatch.setattr(datagrams, "_open_ipv6", refuse)
    node = Node(1, UdpNet(fail))
    async with running(node):
        assert node.beacon.interfaces == ()
    ways = [record.__dict__["fields"]["way"] for record in caplog.records]
    assert ways == ["IPv4", "IPv6", "list of interfaces"]
