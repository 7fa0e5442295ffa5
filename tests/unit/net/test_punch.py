"""Hole punching: what is agreed on, what it may dial, and the connection that both sides keep."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import (
    ChannelBroken,
    ConfigError,
    DeadlineExceeded,
    DialFailed,
    MalformedMessage,
    Overloaded,
    Refused,
    RemoteProtocolError,
)
from swarmnode.ids import PeerId
from swarmnode.net.channel import Channel, aclose_forcefully, give_up
from swarmnode.net.handshake import establish
from swarmnode.net.punch import Puncher, dial_from
from swarmnode.net.tcp import TcpChannel, TcpTransport, parse_address
from swarmnode.protocol.identity import Identity
from swarmnode.protocol.nat.punch import (
    Attempts,
    Invited,
    Inviter,
    PunchPlan,
    Sides,
    Start,
    choose_targets,
    make_address,
    offer_name,
)
from swarmnode.protocol.session.records import Role
from swarmnode.wire.connect.punch import PunchAddress, PunchAnswer, PunchGo, PunchOffer

SMALL, GREAT = PeerId(bytes(32)), PeerId(b"\xff" * 32)
OURS = (make_address("11.11.11.100", 7337), make_address("192.168.1.2", 7337))
THEIRS = (make_address("11.11.11.200", 40_000), make_address("192.168.1.3", 7337))
NEIGHBOUR = (make_address("11.11.11.100", 40_000), make_address("192.168.1.3", 7337))
NONCE = bytes(16)


def sides(own: PeerId = SMALL, peer: PeerId = GREAT) -> Sides:
    return Sides(own, peer, OURS if own == SMALL else THEIRS)


# --- what is agreed on ----------------------------------------------------------------------------


def test_both_begin_at_the_same_moment() -> None:
    """A way of 0.1 s there and 0.1 s back, and the clocks of both are one here."""
    inviter = Inviter(sides(), nonce=NONCE, now=10.0)
    invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="", now=10.1)
    go, ours = inviter.handle_answer(invited.answer, observed="", now=10.2)
    theirs = invited.handle_go(go, now=10.3)
    assert ours.at == pytest.approx(theirs.at)
    assert ours.plan == PunchPlan((("11.11.11.200", 40_000),), limits.PUNCH_ATTEMPT_S, False)
    assert theirs.plan == PunchPlan((("11.11.11.100", 7337),), limits.PUNCH_ATTEMPT_S, True)
    assert go.round_trip_ms == 200


@pytest.mark.parametrize(("round_trip_s", "attempt_s"), [(0.01, 0.6), (0.4, 0.8), (5.0, 2.0)])
def test_a_long_way_gets_long_attempts(round_trip_s: float, attempt_s: float) -> None:
    inviter = Inviter(sides(), nonce=NONCE, now=0.0)
    answer = PunchAnswer(offer_name(inviter.offer), THEIRS)
    go, start = inviter.handle_answer(answer, observed="", now=round_trip_s)
    invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="", now=0.0)
    assert start.plan.attempt_s == pytest.approx(attempt_s)
    assert invited.handle_go(go, now=1.0).plan.attempt_s == pytest.approx(attempt_s)


@given(st.integers(), st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=20, max_size=20))
def test_attempts_are_few_and_end(seed: int, outcomes: list[tuple[float, bool]]) -> None:
    """Whatever becomes of each: it lasts so long, and is refused or not answered."""
    attempts = Attempts(100.0, Random(seed))
    made: list[float] = []
    now = 99.0
    for lasts_s, is_refused in outcomes:
        begins_at = attempts.next_at(now)
        if begins_at is None:
            break
        made.append(begins_at)
        if is_refused:
            attempts.refused()
        now = begins_at + lasts_s
    assert made[0] == 100.0
    assert len(made) <= limits.PUNCH_ATTEMPTS_MAX
    assert made[-1] < 100.0 + limits.PUNCH_S
    assert all(later - earlier >= limits.PUNCH_PAUSE_S_MIN for earlier, later in pairwise(made))


@pytest.mark.parametrize(("lasts_s", "n_made"), [(0.0, limits.PUNCH_ATTEMPTS_MAX), (1.0, 5)])
def test_attempts_end_with_their_number_or_their_time(lasts_s: float, n_made: int) -> None:
    attempts, now = Attempts(100.0, Random(1)), 100.0
    made: list[float] = []
    while len(made) < 20 and (begins_at := attempts.next_at(now)) is not None:
        made.append(begins_at)
        now = begins_at + lasts_s
    assert len(made) == n_made


def test_who_is_refused_is_soon_back_and_then_less_and_less() -> None:
    attempts = Attempts(0.0, Random(1))
    made: list[float] = []
    while (begins_at := attempts.next_at(made[-1] if made else 0.0)) is not None:
        made.append(begins_at)
        attempts.refused()
    assert made[1] < 0.2
    assert 8 <= len(made) <= limits.PUNCH_ATTEMPTS_MAX
    assert made[-1] - made[-2] > 0.5


class Longest(Random):
    """Draws the greatest number that there may be."""

    def uniform(self, a: float, b: float) -> float:
        assert (a, b) == (limits.PUNCH_PAUSE_S_MIN, limits.PUNCH_PAUSE_S_MAX)
        return b


def test_each_refusal_makes_the_pause_longer_and_a_silence_does_not() -> None:
    attempts, pause_s = Attempts(100.0, Longest()), limits.PUNCH_PAUSE_S_MAX
    assert attempts.next_at(99.0) == 100.0
    for n_refused in (0, 1, 2):
        for _ in range(2):
            expected = 101.0 + pause_s * limits.PUNCH_REFUSED_GROWTH**n_refused
            assert attempts.next_at(101.0) == pytest.approx(expected)
        attempts.refused()


def test_no_attempt_begins_when_the_time_is_over() -> None:
    pause_s = limits.PUNCH_PAUSE_S_MAX
    for late_s, is_made in ((-0.01, True), (0.01, False)):
        attempts = Attempts(100.0, Longest())
        attempts.next_at(100.0)
        begins_at = attempts.next_at(100.0 + limits.PUNCH_S - pause_s + late_s)
        assert (begins_at is not None) is is_made
    attempts = Attempts(0.0, Longest())
    attempts.next_at(0.0)
    now = limits.PUNCH_S - pause_s
    assert now + pause_s == limits.PUNCH_S
    assert attempts.next_at(now) is None


def test_words_count_until_their_time_is_over_and_no_longer() -> None:
    for late_s, is_late in ((0.0, False), (0.001, True)):
        now = limits.PUNCH_OFFER_S + late_s
        inviter = Inviter(sides(), nonce=NONCE, now=0.0)
        invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="", now=0.0)
        if is_late:
            with pytest.raises(DeadlineExceeded):
                inviter.handle_answer(invited.answer, observed="", now=now)
            with pytest.raises(DeadlineExceeded):
                invited.handle_go(PunchGo(invited.answer.offer, 100), now=now)
        else:
            go, start = inviter.handle_answer(invited.answer, observed="", now=now)
            assert go.round_trip_ms == 1000 * limits.PUNCH_OFFER_S
            assert start.at == now + limits.PUNCH_OFFER_S / 2
            assert invited.handle_go(go, now=now).at == now


def test_what_each_side_says_names_the_offer_and_its_own_addresses() -> None:
    inviter = Inviter(sides(), nonce=NONCE, now=0.0)
    assert inviter.offer == PunchOffer(NONCE, OURS)
    invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="11.11.11.100:9", now=0.0)
    assert invited.answer == PunchAnswer(offer_name(inviter.offer), THEIRS)
    assert invited.plan == PunchPlan((("11.11.11.100", 7337),), limits.PUNCH_ATTEMPT_S, True)
    go, _ = inviter.handle_answer(invited.answer, observed="11.11.11.200:9", now=0.0001)
    assert go == PunchGo(offer_name(inviter.offer), 1)
    with pytest.raises(Refused, match=r"none of its 2 addresses"):
        inviter.handle_answer(invited.answer, observed="11.11.11.9:9", now=0.1)
    with pytest.raises(Refused, match=r"none of its 2 addresses"):
        Invited(sides(GREAT, SMALL), inviter.offer, observed="11.11.11.9:9", now=0.0)


def test_words_about_another_offer_are_refused() -> None:
    inviter = Inviter(sides(), nonce=NONCE, now=0.0)
    other = PunchOffer(b"\1" * 16, OURS)
    with pytest.raises(RemoteProtocolError, match="another offer"):
        inviter.handle_answer(PunchAnswer(offer_name(other), THEIRS), observed="", now=0.1)
    invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="", now=0.0)
    with pytest.raises(RemoteProtocolError, match="another offer"):
        invited.handle_go(PunchGo(offer_name(other), 100), now=0.1)


def test_the_word_to_begin_counts_once() -> None:
    invited = Invited(sides(GREAT, SMALL), PunchOffer(NONCE, OURS), observed="", now=0.0)
    go = PunchGo(invited.answer.offer, 100)
    invited.handle_go(go, now=0.1)
    with pytest.raises(RemoteProtocolError, match="got two"):
        invited.handle_go(go, now=0.2)


def test_late_words_say_what_was_waited_for() -> None:
    inviter = Inviter(sides(), nonce=NONCE, now=0.0)
    invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="", now=0.0)
    late = limits.PUNCH_OFFER_S + 0.1
    with pytest.raises(DeadlineExceeded, match=f"punch with {GREAT.short}: an answer"):
        inviter.handle_answer(invited.answer, observed="", now=late)
    with pytest.raises(DeadlineExceeded, match=f"punch with {SMALL.short}: the word to begin"):
        invited.handle_go(PunchGo(invited.answer.offer, 100), now=late)


def test_words_are_late_by_what_has_passed_since_the_offer() -> None:
    began_at = 100 * limits.PUNCH_OFFER_S
    inviter = Inviter(sides(), nonce=NONCE, now=began_at)
    invited = Invited(sides(GREAT, SMALL), inviter.offer, observed="", now=began_at)
    in_time = began_at + limits.PUNCH_OFFER_S - 0.1
    go, _ = inviter.handle_answer(invited.answer, observed="", now=in_time)
    assert invited.handle_go(go, now=in_time)


# --- what it may dial -----------------------------------------------------------------------------


def hosts(theirs: tuple[PunchAddress, ...], observed: str = "") -> list[str]:
    return [host for host, _ in choose_targets(theirs, OURS, observed)]


def addresses(*texts: str) -> tuple[PunchAddress, ...]:
    return tuple(make_address(text, 7337) for text in texts)


def test_private_addresses_count_only_behind_the_same_nat() -> None:
    assert hosts(THEIRS) == ["11.11.11.200"]
    assert hosts(NEIGHBOUR) == ["11.11.11.100", "192.168.1.3"]


def test_no_node_dials_itself() -> None:
    assert hosts(OURS) == []
    assert choose_targets((OURS[0], *NEIGHBOUR), OURS, "")[0] == ("11.11.11.100", 40_000)


def test_a_list_of_third_parties_is_cut_to_one_host_of_each_family() -> None:
    many = addresses("11.11.11.201", "11.11.11.202", "2a00:f00d::201", "2a00:f00d::202")
    assert hosts(many) == ["11.11.11.201", "2a00:f00d::201"]
    two_ports = (make_address("11.11.11.200", 40_001), *THEIRS)
    assert hosts(two_ports) == ["11.11.11.200", "11.11.11.200"]


def test_so_many_addresses_are_dialled_and_no_more() -> None:
    many = tuple(
        make_address("11.11.11.200", 40_000 + n) for n in range(limits.PUNCH_ADDRESSES_MAX + 1)
    )
    ports = [port for _, port in choose_targets(many, OURS, "")]
    assert ports == [40_000 + n for n in range(limits.PUNCH_ADDRESSES_MAX)]


def test_only_the_host_that_the_carrier_saw_is_dialled() -> None:
    claimed = addresses("11.11.11.201", "2a00:f00d::201")
    assert hosts(claimed, "11.11.11.201:52000") == ["11.11.11.201", "2a00:f00d::201"]
    assert hosts(claimed, "11.11.11.200:52000") == ["2a00:f00d::201"]
    assert hosts(claimed, "[2a00:f00d::202]:52000") == ["11.11.11.201"]
    assert hosts(claimed, "192.168.1.7:52000") == hosts(claimed, "nonsense") == hosts(claimed)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
        "10.0.0.1", "100.64.0.1", "192.168.1.3", "::1", "::", "fe80::1", "ff02::1", "fd00::1",
        "::ffff:11.11.11.200", "64:ff9b::0b0b:0b0b", "2002:0b0b:0b0b::1",
    ],
)  # fmt: skip
def test_what_no_peer_behind_another_nat_has_is_not_dialled(host: str) -> None:
    assert hosts(addresses(host)) == []
    inviter = Inviter(sides(), nonce=NONCE, now=0.0)
    with pytest.raises(Refused, match="none of its 1 addresses"):
        inviter.handle_answer(
            PunchAnswer(offer_name(inviter.offer), addresses(host)), observed="", now=0.1
        )
    with pytest.raises(Refused, match="none of its 1 addresses"):
        Invited(sides(), PunchOffer(NONCE, addresses(host)), observed="", now=0.0)


def test_an_address_of_seven_bytes_is_none() -> None:
    with pytest.raises(MalformedMessage, match="4 or 16 bytes"):
        choose_targets((PunchAddress(bytes(7), 7337),), OURS, "")


@given(
    st.lists(
        st.builds(
            PunchAddress,
            st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
            st.integers(limits.PUNCH_PORT_MIN, 65_535),
        ),
        min_size=1,
        max_size=limits.PUNCH_ADDRESSES_MAX,
    ),
    st.text(max_size=30),
)
def test_whatever_is_offered_little_is_dialled(theirs: list[PunchAddress], observed: str) -> None:
    targets = choose_targets(theirs, OURS, observed)
    offered = {(address.host, address.port) for address in theirs}
    assert {(make_address(*target).host, target[1]) for target in targets} <= offered
    assert len({host for host, _ in targets if ":" not in host}) <= 1
    assert len({host for host, _ in targets if ":" in host}) <= 1


# --- the connection that both keep ----------------------------------------------------------------


@dataclass
class Node:
    """A listener, and a puncher that is asked first."""

    port: int
    puncher: Puncher
    others: list[str] = field(default_factory=list)  # accepted, and no punch's
    came: trio.Event = field(default_factory=trio.Event)

    async def next_other(self) -> str:
        await self.came.wait()
        return self.others[0]

    def start(self, *ports: int, we_choose: bool, at: float = 0.0) -> Start:
        targets = tuple(("127.0.0.1", port) for port in ports)
        plan = PunchPlan(targets, limits.PUNCH_ATTEMPT_S, we_choose)
        return Start(plan, at or trio.current_time())


@asynccontextmanager
async def node(*, claims: bool = True) -> AsyncIterator[Node]:
    made: Node

    async def handle(channel: Channel) -> None:
        assert isinstance(channel, TcpChannel)
        if not (claims and made.puncher.claim(channel)):
            made.others.append(channel.description)
            made.came.set()
            await channel.receive_into(memoryview(bytearray(1)))

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(TcpTransport().serve, "127.0.0.1:0", handle)
        port = parse_address(bound)[1]
        env = Env(trio.current_time, trio.current_time, Random(port))
        made = Node(port, Puncher(port, env=env))
        yield made
        nursery.cancel_scope.cancel()


async def punch(puncher: Puncher, start: Start) -> TcpChannel:
    """Keep an appointment that was just made."""
    with puncher.appoint(start.plan) as appointment:
        return await appointment.keep(start)


async def talk(puncher: Puncher, start: Start, word: bytes, heard: list[bytes]) -> None:
    """Punch, say a word, hear one; whoever chooses speaks first."""
    channel = await punch(puncher, start)
    buffer = memoryview(bytearray(8))
    try:
        for turn in (start.plan.we_choose, not start.plan.we_choose):
            if turn:
                await channel.send_all(memoryview(word))
            else:
                heard.append(bytes(buffer[: await channel.receive_into(buffer)]))
    finally:
        await aclose_forcefully(channel)


@pytest.mark.parametrize("chooser_first", [True, False])
async def test_two_nodes_keep_the_same_connection(chooser_first: bool) -> None:
    """On loopback there is no crossing of packets: the later one's listener hands it over."""
    heard: list[bytes] = []
    async with node() as chooser, node() as follower:
        now = trio.current_time()
        late, early = now + 0.05, now
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                talk,
                chooser.puncher,
                chooser.start(follower.port, we_choose=True, at=early if chooser_first else late),
                b"chosen",
                heard,
            )
            nursery.start_soon(
                talk,
                follower.puncher,
                follower.start(chooser.port, we_choose=False, at=late if chooser_first else early),
                b"yes",
                heard,
            )
        assert heard == [b"chosen", b"yes"]
        assert chooser.others == follower.others == []


async def test_both_know_each_other_over_it() -> None:
    """The smaller id is the server of TLS, whichever side dialled, and proves its key."""
    small, great = sorted(
        (Identity.from_seed(bytes([number]) * 32) for number in (1, 2)), key=lambda who: who.peer_id
    )
    peers: list[PeerId] = []

    async def meet(puncher: Puncher, start: Start, own: Identity, other: Identity) -> None:
        channel = await punch(puncher, start)
        role = Role.CLIENT if start.plan.we_choose else Role.SERVER
        link = await establish(
            channel, identity=own, network_id=bytes(32), role=role, expected=other.peer_id
        )
        peers.append(link.peer)
        await channel.aclose()

    async with node() as one, node() as other, trio.open_nursery() as nursery:
        chooses = one.start(other.port, we_choose=True)
        follows = other.start(one.port, we_choose=False)
        nursery.start_soon(meet, one.puncher, chooses, great, small)
        nursery.start_soon(meet, other.puncher, follows, small, great)
    assert set(peers) == {small.peer_id, great.peer_id}


async def test_the_one_that_does_not_choose_waits_for_the_first_word() -> None:
    """Two connections open at once; it keeps the one on which it hears something."""
    async with node() as follower:
        listeners = [trio.socket.socket() for _ in range(2)]
        for listener in listeners:
            await listener.bind(("127.0.0.1", 0))
            listener.listen()
        ports = [listener.getsockname()[1] for listener in listeners]
        heard: list[bytes] = []
        async with trio.open_nursery() as nursery:
            start = follower.start(*ports, we_choose=False)
            nursery.start_soon(talk, follower.puncher, start, b"yes", heard)
            (silent, _), (speaking, _) = [await listener.accept() for listener in listeners]
            await speaking.send(b"chosen")
            assert await speaking.recv(8) == b"yes"
            with pytest.raises(ConnectionResetError):  # let go
                await silent.recv(8)
        assert heard == [b"chosen"]
        for sock in (*listeners, silent, speaking):
            sock.close()


async def test_who_is_early_is_kept_for_the_appointment() -> None:
    """The inviter's packet overtakes its word to begin."""
    async with node() as inviter, node() as invited:
        heard: list[bytes] = []
        asked = inviter.start(invited.port, we_choose=True)
        began = invited.start(inviter.port, we_choose=False)
        with invited.puncher.appoint(began.plan) as appointment:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk, inviter.puncher, asked, b"early", heard)
                await wait_all_tasks_blocked()
                assert invited.others == []
                channel = await appointment.keep(began)
                buffer = memoryview(bytearray(8))
                assert await channel.receive_into(buffer) == 5
                await channel.send_all(memoryview(b"here"))
                await channel.aclose()
        assert heard == [b"here"]


async def test_who_is_early_for_nothing_is_let_go() -> None:
    async with node() as inviter, node() as invited:
        with invited.puncher.appoint(invited.start(inviter.port, we_choose=False).plan):
            channel = await dial_from(inviter.port, f"127.0.0.1:{invited.port}")
            await wait_all_tasks_blocked(0.05)
            assert invited.others == []
        with pytest.raises(ChannelBroken, match="reset"):
            await channel.receive_into(memoryview(bytearray(1)))
        await channel.aclose()


async def test_a_way_that_is_given_up_leaves_its_two_ports_free() -> None:
    """The kernel would keep them for a minute, for minutes if the last bytes get no answer."""
    async with node() as one, node() as other:
        for _ in range(2):
            channel = await dial_from(one.port, f"127.0.0.1:{other.port}")
            give_up(channel)
            await channel.aclose()
            assert kept(one.port, other.port) == []


async def test_what_a_punch_did_not_keep_leaves_its_two_ports_free() -> None:
    """The other side took none of its connections; it is asked again half a minute later."""
    async with node() as one, node(claims=False) as mute:
        with trio.move_on_after(0.2):
            await punch(one.puncher, one.start(mute.port, we_choose=False))
        assert mute.others == [f"tcp 127.0.0.1:{one.port}"]
        assert kept(one.port, mute.port) == []


def kept(local_port: int, remote_port: int) -> list[str]:
    """Return what the kernel keeps from one port to another, whichever state it is in."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = (f"{local_port:04X}", f"{remote_port:04X}")
    return [
        f"state {state}"
        for _, local, remote, state, *_ in lines
        if (local.partition(":")[2], remote.partition(":")[2]) == ends
    ]


async def test_strangers_are_not_taken_for_the_other_side() -> None:
    async with (
        node() as listening,
        node() as other,
        node() as stranger,
        trio.open_nursery() as nursery,
    ):
        start = listening.start(other.port, we_choose=True, at=trio.current_time() + 60)
        nursery.start_soon(punch, listening.puncher, start)
        await wait_all_tasks_blocked()
        channel = await dial_from(stranger.port, f"127.0.0.1:{listening.port}")
        assert channel.remote == ("127.0.0.1", listening.port)
        assert await listening.next_other() == f"tcp 127.0.0.1:{stranger.port}"
        await channel.aclose()
        nursery.cancel_scope.cancel()


async def test_no_answer_says_so_for_every_address(autojump_clock: MockClock) -> None:
    async with node(claims=False) as alone:
        free = [closed_port() for _ in range(2)]
        with pytest.raises(DialFailed) as caught:
            await punch(alone.puncher, alone.start(*free, we_choose=True))
        assert str(caught.value) == (
            f"no connection by TCP punch in 5 s (127.0.0.1:{free[0]}: Connection refused; "
            f"127.0.0.1:{free[1]}: Connection refused)"
        )
        assert limits.PUNCH_S - 2 < trio.current_time() <= limits.PUNCH_S


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def test_the_side_that_does_not_choose_does_not_wait_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with node() as follower, node() as mute:
        with pytest.raises(DialFailed, match="the other side took no connection"):
            await punch(follower.puncher, follower.start(mute.port, we_choose=False))
        assert trio.current_time() == pytest.approx(limits.PUNCH_S + limits.PUNCH_CHOICE_S)


async def test_so_many_at_once_and_no_more(autojump_clock: MockClock) -> None:
    async with node() as busy, trio.open_nursery() as nursery:
        start = busy.start(closed_port(), we_choose=True, at=1000.0)
        for _ in range(limits.PUNCHES_CONCURRENT_MAX):
            nursery.start_soon(punch, busy.puncher, start)
        await wait_all_tasks_blocked()
        with pytest.raises(Overloaded, match="4 TCP punches"):
            await punch(busy.puncher, start)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_punch_leaves_nothing_open() -> None:
    """At whatever moment: filterwarnings would name a socket that was not closed."""
    async with node() as chooser, node() as follower:
        for number in range(40):
            with trio.move_on_after(0.0002 * number):
                async with trio.open_nursery() as nursery:
                    for each, other, chooses in (
                        (chooser, follower, True),
                        (follower, chooser, False),
                    ):
                        start = each.start(other.port, we_choose=chooses)
                        nursery.start_soon(talk, each.puncher, start, b"hello", [])


async def test_a_listener_shares_its_port_with_connections_only() -> None:
    async with node() as first, node() as second:
        with pytest.raises(ConfigError, match="the port is in use"):
            await TcpTransport().serve(f"127.0.0.1:{first.port}", aclose_forcefully)
        channel = await dial_from(first.port, f"127.0.0.1:{second.port}")
        assert await second.next_other() == f"tcp 127.0.0.1:{first.port}"
        await channel.aclose()
        with pytest.raises(DialFailed, match=f"from port {first.port}: Connection refused"):
            await dial_from(first.port, f"127.0.0.1:{closed_port()}")
        with pytest.raises(DialFailed, match=f"from port {first.port}: "):
            await dial_from(first.port, "no-such-host.invalid:7337")
