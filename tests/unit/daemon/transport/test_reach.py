"""How a node learns its own public address, and how others help it without harm to third ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.transport.reach import REACH_SERVICE, Reach, ReachAnswers
from swarmnode.errors import (
    AuthenticationFailed,
    DialFailed,
    MalformedMessage,
    Overloaded,
    Refused,
)
from swarmnode.ids import PeerId
from swarmnode.net.session import Session
from swarmnode.protocol.nat.reach import (
    AskDialBack,
    AskWhere,
    Changed,
    DialledBack,
    Effect,
    Event,
    PeerClosed,
    PeerOpened,
    PortsChanged,
    Reachability,
    ReachCore,
    Seen,
    network_of,
)
from swarmnode.wire.connect.reach import Answer, DialBack, SeenAt, WhereAmI
from swarmnode.wire.connect.reach import DialledBack as DialledBackRecord
from swarmnode.wire.packing import decode_record, encode_record
from tests.kits.relay_kit import Node, nodes

OWN = "93.184.216.34"
OTHER = "93.184.217.99"
PORT = 4001


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def host(number: int) -> str:
    """Return a public address in a network of its own."""
    return f"11.{number}.0.1"


class World:
    """A core and peers that answer what ``sees`` and ``reaches`` say; None: no answer."""

    def __init__(self) -> None:
        self.core = ReachCore()
        self.now = 0.0
        self.sees: Callable[[PeerId], str | None] = lambda _peer: OWN
        self.reaches: Callable[[PeerId, int], bool | None] = lambda _peer, _port: True
        self.asked: list[AskWhere | AskDialBack] = []
        self.known: list[Reachability] = []

    def feed(self, event: Event) -> None:
        self.core.handle(event, self.now)
        self.settle()

    def settle(self) -> None:
        while effects := self.core.poll_effects():
            for effect in effects:
                self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case AskWhere(peer=peer):
                self.asked.append(effect)
                self.core.handle(Seen(peer, self.sees(peer)), self.now)
            case AskDialBack(peer=peer, port=port):
                self.asked.append(effect)
                is_reached = self.reaches(peer, port)
                seen = self.sees(peer) or ""
                reason = "" if is_reached else "no connection"
                self.core.handle(DialledBack(peer, port, seen, is_reached, reason), self.now)
            case Changed(reachability=reachability):
                self.known.append(reachability)

    def meet(self, *numbers: int) -> None:
        for number in numbers:
            self.feed(PeerOpened(peer(number), host(number)))

    def advance(self, to: float) -> None:
        while (deadline := self.core.next_deadline()) is not None and deadline <= to:
            self.now = max(self.now, deadline)
            self.core.handle_deadline(self.now)
            self.settle()
            following = self.core.next_deadline()
            assert following is None or following > self.now, "it would spin"
        self.now = to


# --- votes --------------------------------------------------------------------------------------


def test_three_networks_make_an_address_and_fewer_make_a_guess() -> None:
    world = World()
    world.meet(1, 2)
    assert world.core.reachability == Reachability(guesses=(OWN,))
    world.meet(3)
    assert world.core.reachability == Reachability(hosts=(OWN,))


def test_many_peers_of_one_network_are_one_voice() -> None:
    world = World()
    for number in range(1, 6):
        world.feed(PeerOpened(peer(number), f"11.1.{number}.1"))
    assert world.core.reachability == Reachability(guesses=(OWN,))


def test_two_liars_do_not_get_their_way() -> None:
    world = World()
    world.sees = lambda who: OTHER if who in (peer(1), peer(2)) else OWN
    world.meet(1, 2, 3, 4, 5)
    assert world.core.reachability == Reachability(hosts=(OWN,))


def test_each_family_has_an_address_of_its_own() -> None:
    world = World()
    world.sees = lambda who: "2a00:1450::1" if who[-1] > 3 else OWN
    world.meet(1, 2, 3)
    for number in (4, 5, 6):
        world.feed(PeerOpened(peer(number), f"2a0{number}:1::1"))
    assert world.core.reachability.hosts == ("2a00:1450::1", OWN)


@pytest.mark.parametrize("where", ["127.0.0.1", "192.168.1.7", "100.64.3.4", "fe80::1", "x", ""])
def test_private_peers_know_nothing_of_public_addresses_and_private_addresses_are_none(
    where: str,
) -> None:
    world = World()
    for number in range(1, 5):
        world.feed(PeerOpened(peer(number), where))
    assert world.asked == []
    world.sees = lambda _peer: where
    world.feed(PortsChanged((PORT,)))
    world.meet(1, 2, 3, 4)
    assert world.asked == [AskWhere(peer(number)) for number in (1, 2, 3, 4)], "no dial-back"
    assert world.core.reachability == Reachability()


def test_networks_are_what_one_person_may_own() -> None:
    assert network_of("11.22.33.44") == network_of("11.22.0.1") != network_of("11.23.33.44")
    assert network_of("::ffff:11.22.33.44") == network_of("11.22.33.44")
    assert network_of("2a00:1450:1::1") == network_of("2a00:1450:2::1") is not None
    assert network_of("224.0.0.1") is network_of("0.0.0.0") is network_of("name.example") is None


# --- dial-back ----------------------------------------------------------------------------------


def test_an_endpoint_counts_when_three_networks_have_reached_it() -> None:
    world = World()
    world.feed(PortsChanged((PORT, 443)))
    world.reaches = lambda _peer, port: port == PORT
    world.meet(1, 2)
    assert world.core.reachability.endpoints == ()
    world.meet(3)
    known = world.core.reachability
    assert known.endpoints == ((OWN, PORT),)
    assert known.refusals == ((443, "no connection"),)
    assert world.known[-1] == known


def test_a_port_that_is_given_up_is_not_asked_for_and_does_not_count() -> None:
    world = World()
    world.feed(PortsChanged((PORT,)))
    world.meet(1, 2, 3)
    assert world.core.reachability.endpoints == ((OWN, PORT),)
    world.asked.clear()
    world.feed(PortsChanged((5000,)))
    assert world.core.reachability.endpoints == ((OWN, 5000),)
    assert {ask.port for ask in world.asked if isinstance(ask, AskDialBack)} == {5000}


def test_what_was_true_is_asked_again_and_a_change_is_noticed() -> None:
    world = World()
    world.feed(PortsChanged((PORT,)))
    world.meet(1, 2, 3, 4)
    n_asked = len(world.asked)
    world.advance(limits.REACH_RECHECK_S - 1)
    assert len(world.asked) == n_asked == 8
    world.sees = lambda _peer: OTHER
    world.advance(limits.REACH_RECHECK_S + 1)
    assert world.core.reachability == Reachability(hosts=(OTHER,), endpoints=((OTHER, PORT),))


def test_peers_that_are_gone_count_for_a_while_and_are_not_asked() -> None:
    world = World()
    world.feed(PortsChanged((PORT,)))
    world.meet(1, 2, 3)
    for number in (1, 2, 3):
        world.feed(PeerClosed(peer(number)))
    world.asked.clear()
    world.advance(limits.REACH_VOTE_S - 1)
    assert world.core.reachability.hosts == (OWN,)
    world.advance(limits.REACH_VOTE_S + 1)
    assert world.asked == []
    assert world.core.reachability == Reachability()
    assert world.core.next_deadline() is None


def test_peers_that_come_back_are_asked_again() -> None:
    world = World()
    world.meet(1, 2, 3)
    for number in (1, 2, 3):
        world.feed(PeerClosed(peer(number)))
    world.meet(1, 2, 3)
    world.sees = lambda _peer: OTHER
    world.advance(limits.REACH_RECHECK_S + 1)
    assert world.core.reachability.hosts == (OTHER,)


def test_peers_that_do_not_answer_are_asked_ever_more_rarely() -> None:
    world = World()
    world.sees = lambda _peer: None
    world.meet(1)
    world.advance(24 * 3600.0)
    assert 24 * 2 <= len(world.asked) <= 24 * 2 + 10
    world.sees = lambda _peer: OWN
    world.advance(world.now + limits.REACH_RECHECK_S)
    assert world.core.reachability.guesses == (OWN,)


def test_voters_are_bounded_and_of_many_networks() -> None:
    world = World()
    for number in range(1, 200):
        world.feed(PeerOpened(peer(number), f"11.1.{number}.1"))
    counts = world.core.statistics()
    assert (counts.voters, counts.networks) == (limits.REACH_VOTERS_MAX, 1)
    for number in range(200, 400):
        world.feed(PeerOpened(peer(number), host(number - 190)))
    counts = world.core.statistics()
    assert (counts.voters, counts.networks) == (limits.REACH_VOTERS_MAX, limits.REACH_VOTERS_MAX)
    assert world.core.reachability.hosts == (OWN,)


def test_what_was_not_asked_for_and_nonsense_count_for_nothing() -> None:
    world = World()
    world.sees = lambda _peer: "999.1.1.1"
    world.feed(PortsChanged((PORT,)))
    world.meet(1, 2, 3)
    for number in range(1, 10):
        for _ in range(3):
            world.feed(Seen(peer(number), OTHER))
            world.feed(DialledBack(peer(number), PORT, OTHER, True))
            world.feed(DialledBack(peer(number), PORT, "nonsense", True))
    assert world.core.reachability == Reachability()


# --- over sessions ------------------------------------------------------------------------------


class Helper:
    """A node that answers, and what it has dialled."""

    def __init__(self, node: Node, seen_at: str = f"{OWN}:50000") -> None:
        self.seen_at = seen_at
        self.dialled: list[tuple[PeerId, str]] = []
        self.error: Exception | None = None
        self.takes_s = 0.01
        ReachAnswers(
            node.services,
            node.env,
            sessions=node.sessions,
            address_of=self.address_of,
            probe=self.probe,
        )

    def address_of(self, _session: Session) -> str:
        return self.seen_at

    async def probe(self, peer: PeerId, address: str) -> None:
        self.dialled.append((peer, address))
        await trio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error


async def ask(session: Session, question: WhereAmI | DialBack) -> Answer:
    reply = await session.request(REACH_SERVICE, encode_record(question), deadline_s=10)
    answer: Answer = decode_record(reply, Answer)  # type: ignore[arg-type]
    return answer


async def test_a_helper_dials_only_the_address_that_it_sees(autojump_clock: MockClock) -> None:
    async with nodes("a", "h") as (a, h):
        helper = Helper(h)
        session = await a.connect(h.peer, (h.address,))
        assert await ask(session, WhereAmI()) == SeenAt(f"{OWN}:50000")
        reached = DialledBackRecord(f"{OWN}:{PORT}", True)
        assert await ask(session, DialBack(PORT)) == reached
        assert helper.dialled == [(a.peer, f"{OWN}:{PORT}")]
        for error, why in [
            (DialFailed("tcp 10.0.0.1:22: refused", address="x"), "no connection"),
            (AuthenticationFailed("it is sn1…"), "another node answers there"),
            (MalformedMessage("SSH-2.0"), "no node answers there"),
        ]:
            helper.error = error
            await trio.sleep(100)
            assert await ask(session, DialBack(PORT)) == DialledBackRecord(
                f"{OWN}:{PORT}", False, why
            )
        helper.takes_s = 60
        await trio.sleep(100)
        assert await ask(session, DialBack(PORT)) == DialledBackRecord(
            f"{OWN}:{PORT}", False, "no answer within 5 s"
        )


async def test_a_helper_dials_no_services_of_others_and_no_peer_it_does_not_see(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "h") as (a, h):
        helper = Helper(h)
        session = await a.connect(h.peer, (h.address,))
        for port in (1, 22, 25, 1023):
            with pytest.raises(Refused, match=f"port {port}: another service's"):
                await ask(session, DialBack(port))
        helper.seen_at = ""  # as of a session through a relay
        assert await ask(session, WhereAmI()) == SeenAt("")
        with pytest.raises(Refused, match="no address that could be dialled"):
            await ask(session, DialBack(PORT))
        assert helper.dialled == []
        helper.seen_at = "[2a00:1450::1]:50000"
        await ask(session, DialBack(443))
        assert helper.dialled == [(a.peer, "[2a00:1450::1]:443")]


async def test_dial_backs_are_rate_limited_for_one_address_and_at_once(
    autojump_clock: MockClock,
) -> None:
    async with nodes("a", "b", "h") as (a, b, h):
        helper = Helper(h)
        helper.takes_s = 3.0
        sessions = [await node.connect(h.peer, (h.address,)) for node in (a, b)]
        refused: list[str] = []

        async def try_it(session: Session) -> None:
            try:
                await ask(session, DialBack(PORT))
            except Overloaded as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(try_it, sessions[number % 2])
        assert len(helper.dialled) == limits.DIALBACKS_CONCURRENT_MAX
        for number in range(20):
            await try_it(sessions[number % 2])  # another key does not help
        n_allowed = limits.DIALBACKS_PER_HOST_BURST + 60 * limits.DIALBACKS_PER_HOST_PER_S
        assert len(helper.dialled) <= n_allowed + 1
        assert any("to your address" in each for each in refused)
        helper.seen_at = f"{OTHER}:1"
        await ask(sessions[0], DialBack(PORT))


@pytest.mark.parametrize(
    ("word", "is_asked"),
    [("tcp", True), ("proxied-tcp:192.168.1.9:3128", False)],  # they would see the proxy
)
async def test_a_node_learns_its_address_from_three_helpers_that_see_it(
    autojump_clock: MockClock, word: str, is_asked: bool
) -> None:
    async with nodes("a", "h", "i", "j", "k") as (a, *helpers):
        answering = [Helper(node) for node in helpers]
        answering[3].seen_at = f"{OTHER}:1"  # a liar
        known: list[Reachability] = []
        reach = Reach(a.env, sessions=a.sessions, on_change=known.append)
        reach.set_ports((PORT,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reach.run)
            for number, node in enumerate(helpers):
                session = await a.connect(node.peer, (node.address,))
                session._carrier.description = f"{word} {host(number + 1)}:4001"
                reach.session_opened(session)
            await trio.sleep(1)
            expected = Reachability(hosts=(OWN,), endpoints=((OWN, PORT),))
            assert known[-1:] == [expected] * is_asked
            assert reach.reachability == (expected if is_asked else Reachability())
            assert all(bool(helper.dialled) is is_asked for helper in answering)
            for node in helpers:
                await a.sessions[node.peer].aclose()
            nursery.cancel_scope.cancel()


async def test_helpers_that_do_not_know_the_question_or_answer_nonsense_change_nothing(
    autojump_clock: MockClock,
) -> None:
    async def nonsense(_peer: PeerId, _payload: bytes) -> bytes:
        return b"\xc1"

    async def another_answer(_peer: PeerId, payload: bytes) -> bytes:
        return encode_record(DialledBackRecord(f"{OWN}:{PORT}", True))

    async with nodes("a", "h", "i", "j") as (a, *helpers):
        helpers[0].services.add_request(REACH_SERVICE, nonsense)
        helpers[1].services.add_request(REACH_SERVICE, another_answer)
        reach = Reach(a.env, sessions=a.sessions, on_change=lambda _known: None)
        reach.set_ports((PORT,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reach.run)
            for number, node in enumerate(helpers):
                session = await a.connect(node.peer, (node.address,))
                session._carrier.description = f"tcp {host(number + 1)}:4001"
                reach.session_opened(session)
            await trio.sleep(3600)
            assert reach.reachability == Reachability()
            assert reach.statistics().asked_total < 30
            nursery.cancel_scope.cancel()
