"""What a node is to others behind NATs: its quota as a relay, its NAT's name, its addresses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.config import NodeConfig
from swarmnode.daemon.transport.nat import Nat, nat_kind, relay_quota, wants_nat
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel
from swarmnode.net.relays.address import RelayAddress
from swarmnode.net.relays.legs import RelayedChannel
from swarmnode.protocol.nat.behaviour import Dependence, NatBehaviour
from swarmnode.protocol.nat.reach import Reachability
from swarmnode.protocol.nat.stun import Endpoint
from swarmnode.protocol.relay.accounts import Quota, role_quota
from swarmnode.testing.memory_network import MemoryNetwork
from tests.kits.party_kit import Party, parties
from tests.sim.checks import until


def config(**changes: Any) -> NodeConfig:
    return NodeConfig(home=Path("/nowhere"), **changes)


# --- the relay's quota --------------------------------------------------------------------------


def test_every_node_relays_a_little() -> None:
    assert relay_quota(config()) == Quota()
    assert relay_quota(config(relay_bytes_per_s=7)) == Quota(bytes_per_s=7)


def test_a_relay_by_profession_gives_all_that_there_is_or_what_it_was_told() -> None:
    quota = relay_quota(config(role="relay"))
    assert quota.reservations_max > limits.RELAY_RESERVATIONS_MAX
    assert quota.circuits_max > limits.RELAY_CIRCUITS_MAX
    shares = ("bytes_per_s", "peer_bytes_per_s", "bytes_per_day", "peer_bytes_per_day")
    assert [getattr(quota, share) for share in shares] == [None] * 4
    assert relay_quota(config(role="relay", relay_bytes_per_s=9)).bytes_per_s == 9


def test_a_relay_by_profession_is_bounded_by_its_memory_its_descriptors_and_its_line() -> None:
    gib = 1024 * limits.MIB
    roomy = role_quota(2 * gib, 65_536, None)
    assert roomy.circuits_max == 819, "a quarter of the memory, 640 KiB each"
    assert roomy.reservations_max == 1024, "an eighth, 256 KiB each"
    assert roomy.reservations_per_host_max == 256
    few_files = role_quota(2 * gib, 1_024, None)
    assert (few_files.circuits_max, few_files.reservations_max) == (256, 256)
    assert role_quota(2 * gib, 65_536, 2_500_000.0).circuits_max == 152, "16 KiB a second each"
    small = role_quota(gib // 8, 256, 1_000.0)
    assert (small.circuits_max, small.reservations_max) == (64, 64), "as any volunteer"


@pytest.mark.parametrize("role", ["trainer", "keeper", "relay", "monitor"])
def test_a_node_that_does_not_want_to_relay_gives_nothing(role: str) -> None:
    quota = relay_quota(config(role=role, relay=False, relay_bytes_per_s=9))
    assert (quota.reservations_max, quota.circuits_max) == (0, 0)


# --- the NAT's name -----------------------------------------------------------------------------

HERE = Endpoint("11.11.11.100", 7337)


@pytest.mark.parametrize(
    ("answers", "is_translated", "mapping", "kind"),
    [
        (0, None, Dependence.UNKNOWN, "udp-blocked"),
        (2, False, Dependence.NONE, "none"),
        (1, False, Dependence.UNKNOWN, "none"),
        (2, True, Dependence.NONE, "cone"),
        (2, True, Dependence.ADDRESS, "symmetric"),
        (2, True, Dependence.PORT, "symmetric"),
        (1, True, Dependence.UNKNOWN, "unknown"),
    ],
)
def test_names_of_nats(
    answers: int, is_translated: bool | None, mapping: Dependence, kind: str
) -> None:
    public = HERE if answers else None
    seen = NatBehaviour(answers, is_translated, mapping, Dependence.PORT, None, public)
    assert nat_kind(seen) == kind


def test_before_a_peer_was_asked_the_nat_has_no_name() -> None:
    assert nat_kind(None) == "unknown"


@pytest.mark.parametrize(
    ("listen", "wanted"),
    [
        ("*:7337", True),
        ("192.168.1.2:7337", True),
        ("[::]:7337", True),
        ("127.0.0.1:7337", False),
        ("[::1]:7337", False),
    ],
)
def test_a_node_on_loopback_has_no_nat_before_it(listen: str, wanted: bool) -> None:
    assert wants_nat(config(listen=listen)) is wanted


# --- addresses ----------------------------------------------------------------------------------


def nat_of(party: Party, known: Reachability, *relays: str) -> Nat:
    nat = Nat(
        config(),
        network=party.network,
        services=party.services,
        identity=party.identity,
        transport=party.transport,
        env=party.env,
    )
    nat.reach = SimpleNamespace(reachability=known)  # type: ignore[assignment]
    nat.places.addresses = lambda: relays  # type: ignore[method-assign]
    return nat


def test_what_strangers_have_confirmed_is_told_before_guesses_and_relays() -> None:
    party = Party(MemoryNetwork(), "a")
    known = Reachability(
        hosts=("11.11.11.100",),
        guesses=("12.12.12.12",),
        endpoints=(("11.11.11.100", 7337), ("2a00:f00d::2", 7337)),
        tentative=(("11.11.11.100", 40_000), ("11.11.11.100", 7337)),
        refusals=((443, "no connection"),),
    )
    nat = nat_of(party, known, "relay:x@11.11.11.10:443/y")
    assert nat.addresses() == (
        "11.11.11.100:7337",
        "[2a00:f00d::2]:7337",
        "11.11.11.100:40000",
        "relay:x@11.11.11.10:443/y",
    ), "each once; what peers only think to see is not to be dialled"
    assert nat.reachable == "yes"


def test_whether_strangers_get_in() -> None:
    links = MemoryNetwork()
    some = Reachability(tentative=(("11.11.11.100", 7337),), refusals=((7337, "silence"),))
    none = Reachability(hosts=("11.11.11.100",), refusals=((7337, "silence"),))
    found = [nat_of(Party(links, "a"), each).reachable for each in (some, none, Reachability())]
    assert found == ["yes", "no", "unknown"]
    assert nat_of(Party(links, "a"), Reachability()).addresses() == ()


async def test_peers_without_a_public_address_are_asked_nothing_and_hold_no_place(
    autojump_clock: MockClock,
) -> None:
    async with parties("a", "b") as (a, b):
        nat = nat_of(a, Reachability())
        await a.connect(b)
        assert nat.stun_servers() == ()
        assert nat._candidates() == []
        assert await nat.survey() is None
        snapshot = nat.snapshot()
        assert (snapshot.kind, snapshot.reachable, snapshot.mapper) == (
            "unknown",
            "unknown",
            "none",
        )
        assert snapshot.relays_held == 0


async def test_relays_by_profession_are_preferred_and_none_while_we_are_reached(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parties("a", "b", "c") as (a, b, c):
        nat = nat_of(a, Reachability())
        for other in (b, c):
            await a.connect(other)
        at = {b.peer: "11.11.11.10:7337", c.peer: "11.11.11.20:443"}
        monkeypatch.setattr(nat, "_dialled_address", at.__getitem__)
        nat.prefers = lambda peer: peer == c.peer
        assert [peer for peer, _ in nat._candidates()] == [c.peer, b.peer]
        nat.prefers = lambda peer: peer == b.peer
        assert [peer for peer, _ in nat._candidates()] == [b.peer, c.peer]
        at[b.peer] = "192.168.1.7:7337"
        assert nat._candidates() == [(c.peer, "11.11.11.20:443")]
        some = Reachability(tentative=(("11.11.11.100", 7337),))
        nat.reach = SimpleNamespace(reachability=some)  # type: ignore[assignment]
        assert len(nat._candidates()) == 1, "a guess is not enough"
        sure = Reachability(endpoints=(("11.11.11.100", 7337),))
        nat.reach = SimpleNamespace(reachability=sure)  # type: ignore[assignment]
        assert nat._candidates() == []


# --- relayed sessions ---------------------------------------------------------------------------


async def test_better_ways_are_looked_for_from_the_first_relayed_session_on(
    autojump_clock: MockClock,
) -> None:
    relay = PeerId(b"r" * 32)
    async with parties("a", "b") as (a, b), trio.open_nursery() as nursery:
        nat = Nat(
            config(port_mapping=False),
            network=a.network,
            services=a.services,
            identity=a.identity,
            transport=a.transport,
            env=a.env,
        )
        await nursery.start(nat.run, "127.0.0.1:0")
        await a.connect(b)
        assert nat.whys == {}, "a direct session needs no better way"
        session = a.session(b)
        assert session is not None
        await session.aclose("again, through a relay")

        async def accept_relayed(channel: Channel) -> None:
            await a.network.listener.accept(RelayedChannel(channel, "relay:sn1r@mem:r", relay))

        async def dial_relayed(_address: str) -> Channel:
            return await b.transport.dial("mem:a-relayed")

        transport = a.links.transport("a-relayed")
        await nursery.start(transport.serve, "mem:a-relayed", accept_relayed)
        b.network.ways.dial_relayed = dial_relayed
        await b.network.connect(a.peer, (str(RelayAddress(relay, "mem:r", a.peer)),))
        await until(lambda: b.peer in nat.whys, limits.UPGRADE_TRY_S["direct"] + 1)
        nursery.cancel_scope.cancel()
