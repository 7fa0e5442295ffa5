"""Attacks on what brings nodes behind NATs together, over real sessions and signed signals.

====================================  ==============================================================
forged offers, replayed offers        here; ``test_signals.py``
candidates of third parties           here; ``test_punch.py``, ``test_rtc_candidates.py``,
                                      ``process/test_rtc_hostile.py`` (checks from many sources)
offers of strangers, floods of them   here; ``test_punching.py``, ``test_rtc_ways.py``
reflection over UDP                   ``test_stun_server.py``; ``process/test_stun.py`` (probes)
reflection over TCP                   ``test_where.py``; ``test_reach.py`` (dial-backs)
relay floods                          here; ``test_relay.py``, ``test_relay_core.py``
====================================  ==============================================================
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport import ways
from swarmnode.daemon.transport.signals import CARRY_SERVICE, DELIVER_SERVICE, Signals
from swarmnode.errors import DialFailed, SwarmNodeError
from swarmnode.net.session import Session
from swarmnode.protocol.nat.punch import SIGNAL_KIND as PUNCH
from swarmnode.protocol.nat.signals import (
    SIGNALS_PER_PEER_BURST,
    SIGNALS_PER_PEER_PER_S,
    sign_signal,
)
from swarmnode.protocol.relay.accounts import RELAY_CONNECTS_BURST, RELAY_CONNECTS_PER_S, Quota
from swarmnode.wire.connect.punch import PunchOffer
from swarmnode.wire.connect.signal import Carry, Deliver
from swarmnode.wire.packing import encode_record
from swarmnode.wire.swarm import Signed
from tests.kits.relay_kit import Node, nodes
from tests.unit.daemon.transport.nat_kit import Lookouts, Neighbour, addresses, rtc_offer, running

ALICE_AT = "11.11.11.200:50000"
OFFERS = {
    PUNCH: encode_record(PunchOffer(bytes(16), addresses("11.11.11.200"))),
    "rtc": rtc_offer("11.11.11.200"),
}


class World:
    """Alice and Bob have sessions with a carrier, and with each other through it; so has Eve.

    Eve has a session with Bob too, and none with any node through the carrier.
    """

    def __init__(self, alice: Node, bob: Node, carrier: Node, eve: Node) -> None:
        self.alice, self.carrier, self.eve = alice, carrier, eve
        self.bob_node = bob
        for node in (alice, carrier, eve):
            self._signals(node)
        self.bob = Neighbour(self._signals(bob), bob.peer)
        self.bob.friends.add(alice.peer)

    def _signals(self, node: Node) -> Signals:
        return Signals(
            node.services,
            node.identity,
            node.env,
            sessions=node.sessions,
            address_of=lambda session: ALICE_AT if session.peer == self.alice.peer else "",
        )

    def signed(self, author: Node, kind: str, payload: bytes, nonce: int = 0) -> Signed:
        return sign_signal(
            author.identity,
            self.bob_node.peer,
            kind,
            payload,
            unix_s=author.env.wall(),
            nonce=nonce.to_bytes(16, "big"),
        )

    async def deliver(self, by: Node, signal: Signed, observed: str = ALICE_AT) -> None:
        """Bring a signal to Bob, as a carrier does; of Bob's answer nothing is believed."""
        session = by.sessions[self.bob_node.peer]
        delivery = encode_record(Deliver(observed, signal))
        await session.request(DELIVER_SERVICE, delivery, deadline_s=5)


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    lookouts = Lookouts()
    monkeypatch.setattr(ways, "dial_from", lookouts.dial_from)
    monkeypatch.setattr(ways, "ask_where", lookouts.ask_where)
    async with nodes("a", "b", "c", "e") as (alice, bob, carrier, eve):
        made = World(alice, bob, carrier, eve)
        for node in (alice, bob, eve):
            await node.connect(carrier.peer, (carrier.address,))
        await eve.connect(bob.peer, (bob.address,))
        async with running(made.bob):
            yield made


def dialled(w: World) -> int:
    """Return how often Bob has begun to do what an offer asks for."""
    return len(w.bob.puncher.plans) + len(w.bob.engine.answered)


# --- offers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OFFERS)
async def test_hostile_forged_offers_lead_to_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In the name of a peer whose offers are taken; whichever node brings them."""
    async with world(monkeypatch) as w:
        real = w.signed(w.alice, kind, OFFERS[kind])
        by_eve = w.signed(w.eve, kind, OFFERS[kind])
        forged = [
            Signed(by_eve.body, w.alice.identity.public_key, by_eve.signature),
            Signed(real.body[:-1] + b"!", real.public_key, real.signature),
            Signed(real.body, real.public_key, bytes(64)),
        ]
        for signal in forged:
            for carrier in (w.eve, w.carrier):
                with pytest.raises(SwarmNodeError):
                    await w.deliver(carrier, signal)
        await trio.sleep(30)
        assert w.bob.is_untouched
        await w.deliver(w.carrier, real)
        await trio.sleep(1)
        assert dialled(w) == 1, "the real one is taken"


@pytest.mark.parametrize("kind", OFFERS)
async def test_hostile_replayed_offers_and_their_candidates_count_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with world(monkeypatch) as w:
        signal = w.signed(w.alice, kind, OFFERS[kind])
        await w.deliver(w.carrier, signal)
        for _ in range(5):
            await trio.sleep(30)
            for carrier in (w.carrier, w.eve):
                with pytest.raises(SwarmNodeError, match="it was here before"):
                    await w.deliver(carrier, signal)
        assert dialled(w) == 1


@pytest.mark.parametrize("kind", OFFERS)
async def test_hostile_offers_of_a_peer_without_a_relayed_session_lead_to_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are signed and new: any key may sign something."""
    async with world(monkeypatch) as w:
        for nonce in range(10):
            signal = w.signed(w.eve, kind, OFFERS[kind], nonce)
            await w.deliver(w.eve, signal, observed="12.12.12.12:80")
        await trio.sleep(30)
        assert w.bob.is_untouched


async def test_hostile_punch_candidates_that_point_at_third_parties_are_not_dialled(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a peer whose offers are taken, over an honest carrier: it says where it sees him."""
    async with world(monkeypatch) as w:
        victims = addresses("12.12.12.12", "13.13.13.13", "14.14.14.14", "15.15.15.15")
        offer = encode_record(PunchOffer(bytes(16), victims))
        session: Session = w.alice.sessions[w.carrier.peer]
        carry = encode_record(Carry(w.bob_node.peer, w.signed(w.alice, PUNCH, offer)))
        await session.request(CARRY_SERVICE, carry, deadline_s=5)
        await trio.sleep(30)
        assert w.bob.is_untouched


async def test_hostile_a_carrier_in_league_with_the_author_gets_one_host_dialled_a_few_times(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most that a lie costs a third party: it is bounded, and needs the word to begin."""
    async with world(monkeypatch) as w:
        victims = addresses("12.12.12.12", "13.13.13.13")
        offer = encode_record(PunchOffer(bytes(16), victims))
        await w.deliver(w.eve, w.signed(w.alice, PUNCH, offer), observed="12.12.12.12:80")
        await trio.sleep(1)
        (plan,) = w.bob.puncher.plans
        assert plan.targets == (("12.12.12.12", 7337),)
        await trio.sleep(30)
        assert w.bob.puncher.kept == []
        # 60 bytes each.
        assert limits.PUNCH_ATTEMPTS_MAX <= 12


async def test_hostile_a_flood_of_signed_offers_is_stopped_by_the_listener(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(monkeypatch) as w:
        taken = 0
        for nonce in range(200):
            signal = w.signed(w.alice, "rtc", OFFERS["rtc"], nonce)
            try:
                await w.deliver(w.carrier, signal)
                taken += 1
            except SwarmNodeError:
                pass
        seconds = trio.current_time()
        assert taken <= SIGNALS_PER_PEER_BURST + 2 + SIGNALS_PER_PEER_PER_S * seconds
        assert w.bob.engine.open_now <= limits.UPGRADES_CONCURRENT_MAX


# --- relays -------------------------------------------------------------------------------------


async def test_hostile_a_flood_of_questions_to_a_relay_costs_others_nothing(
    autojump_clock: MockClock,
) -> None:
    """One peer asks for circuits as fast as it can; another one gets its own at once.

    To another target: so many circuits lead to one, whoever asked for them.
    """
    async with nodes("r", "t", "v", "e", "a", quota=Quota()) as (relay, target, victim, eve, alice):
        await target.keep(relay)
        await victim.keep(relay)
        await eve.connect(relay.peer, (relay.address,))
        outcomes: list[str] = []

        async def flood() -> None:
            for _ in range(20):
                try:
                    channel = await eve.relays.dial(victim.through(relay))
                    outcomes.append("circuit")
                    await channel.aclose()
                except DialFailed as error:
                    outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(flood)
            await trio.sleep(0.2)
            with trio.fail_after(3):
                session = await alice.connect(target.peer, (target.through(relay),))
                assert await session.request("echo", b"hello", deadline_s=3) == b"hello"
        made = outcomes.count("circuit")
        seconds = trio.current_time()
        assert made <= RELAY_CONNECTS_BURST + 1 + RELAY_CONNECTS_PER_S * seconds
        assert any("rate" in outcome for outcome in outcomes)
        statistics = relay.relay.statistics()
        assert statistics.circuits_open == 1, "Alice's"
        assert statistics.refused_total["rate"] > 100


async def test_hostile_a_flood_of_reservations_from_one_address_leaves_room_for_others(
    autojump_clock: MockClock,
) -> None:
    names = [f"e{number}" for number in range(limits.RELAY_RESERVATIONS_PER_HOST_MAX + 4)]
    quota = Quota(reservations_max=limits.RELAY_RESERVATIONS_PER_HOST_MAX + 8)
    async with nodes("r", "t", *names, quota=quota) as (relay, target, *flood):
        hosts = {node.peer: "12.12.12.12" for node in flood}
        relay.relay._host_of = lambda peer: hosts.get(peer, "11.11.11.100")
        for node in flood:
            await node.keep(relay)
        held = [node for node in flood if node.relays.held]
        assert len(held) == limits.RELAY_RESERVATIONS_PER_HOST_MAX
        await target.keep(relay)
        assert list(target.relays.held) == [relay.peer]
