"""Requests without tasks: answers, errors of every kind, deadlines, and what stays bounded."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from swarmnode import limits
from swarmnode.errors import (
    ChannelBroken,
    ChannelClosed,
    DeadlineExceeded,
    InvariantViolation,
    Overloaded,
    Refused,
    SwarmNodeError,
)
from swarmnode.ids import PeerId
from swarmnode.net.services import Services
from swarmnode.net.session import Session
from swarmnode.net.stream import Stream
from swarmnode.net.tcp import TcpChannel
from swarmnode.testing.memory_network import MemoryNetwork
from tests.kits.session_kit import ALICE, session_pair


@dataclass
class Answers:
    """Takes in what a session calls back with."""

    taken: list[bytes | SwarmNodeError] = field(default_factory=list)
    came: trio.Event = field(default_factory=trio.Event)

    def __call__(self, answer: bytes | SwarmNodeError) -> None:
        self.taken.append(answer)
        self.came.set()

    async def one(self) -> bytes | SwarmNodeError:
        await self.came.wait()
        (answer,) = self.taken
        return answer


async def ask(session: Session, service: str, payload: bytes = b"") -> bytes | SwarmNodeError:
    answers = Answers()
    assert session.ask(service, payload, deadline_s=5.0, on_answer=answers)
    return await answers.one()


def echo(_peer: PeerId, request: bytes) -> bytes:
    return request


def services(**handlers) -> Services:
    made = Services()
    for name, handler in handlers.items():
        made.add_answer(name, handler)
    return made


async def sleep_for_ever(_session: Session, _stream: Stream) -> None:
    await trio.sleep_forever()


async def test_asked_and_answered_without_a_task_both_ways_at_once() -> None:
    both = services(echo=echo)
    async with session_pair(both, own_services=both) as (alice, bob):
        assert await ask(alice, "echo", b"to bob") == b"to bob"
        assert await ask(bob, "echo", b"to alice") == b"to alice"
        assert await ask(alice, "echo") == b""
        assert alice.statistics().core.streams_open == 0
        assert bob.statistics().core.streams_open == 0


async def test_on_the_wire_it_is_a_request_like_any_other() -> None:
    async def echo_in_a_task(_peer: PeerId, request: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return request

    mixed = services(echo=echo)
    mixed.add_request("task", echo_in_a_task)
    async with session_pair(mixed) as (alice, _):
        assert await alice.request("echo", b"task asks", deadline_s=1) == b"task asks"
        assert await ask(alice, "task", b"task answers") == b"task answers"
        large = bytes(200_000)
        assert await ask(alice, "echo", large) == large


async def test_a_handler_knows_its_caller() -> None:
    async with session_pair(services(who=lambda peer, _: bytes(peer))) as (alice, _):
        assert await ask(alice, "who") == bytes(ALICE.peer_id)


@pytest.mark.parametrize(
    ("raised", "expected", "n_failed"),
    [
        (Refused("not for you"), Refused, 1),
        (Overloaded("later"), Overloaded, 0),
        (ZeroDivisionError("a bug"), ChannelBroken, 1),
    ],
)
async def test_what_a_handler_raises_reaches_its_caller_only(
    raised: Exception,
    expected: type[SwarmNodeError],
    n_failed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)

    def fail(_peer: PeerId, _request: bytes) -> bytes:
        raise raised

    async with session_pair(services(fail=fail, echo=echo)) as (alice, bob):
        error = await ask(alice, "fail")
        assert type(error) is expected
        assert "a bug" not in str(error)
        assert await ask(alice, "echo", b"still here") == b"still here"
        assert bob.statistics().handlers_failed == n_failed


async def test_a_service_that_is_not_offered_is_refused() -> None:
    async with session_pair(services()) as (alice, _):
        error = await ask(alice, "nothing")
        assert isinstance(error, Refused)
        assert "no service 'nothing' here" in str(error)


async def test_no_answer_in_time_frees_the_stream(autojump_clock: MockClock) -> None:
    silent = Services()
    silent.add_stream("silent", sleep_for_ever)
    async with session_pair(silent) as (alice, bob):
        start = trio.current_time()
        error = await ask(alice, "silent")
        assert isinstance(error, DeadlineExceeded)
        late_s = trio.current_time() - start - 5.0
        assert 0 <= late_s <= 1.5 * limits.PING_QUIET_S
        await trio.sleep(1)
        assert alice.statistics().core.streams_open == bob.statistics().core.streams_open == 0


async def test_when_the_session_ends_each_caller_is_told_once(autojump_clock: MockClock) -> None:
    silent, network = Services(), MemoryNetwork()
    silent.add_stream("silent", sleep_for_ever)
    async with session_pair(silent, network=network) as (alice, _):
        answers = Answers()
        for _ in range(3):
            assert alice.ask("silent", b"", deadline_s=5.0, on_answer=answers)
        await wait_all_tasks_blocked()
        assert network.cut("alice", "bob") == 1
        await alice.wait_closed()
        assert [type(answer) for answer in answers.taken] == 3 * [ChannelBroken]
        assert not alice.ask("silent", b"", deadline_s=5.0, on_answer=answers)
        await trio.sleep(10)
        assert len(answers.taken) == 3


async def test_an_answer_may_ask_the_next_question() -> None:
    async with session_pair(services(echo=echo)) as (alice, _):
        done, left = trio.Event(), [20]

        def on_answer(answer: bytes | SwarmNodeError) -> None:
            assert answer == b"again"
            left[0] -= 1
            if left[0]:
                assert alice.ask("echo", b"again", deadline_s=5.0, on_answer=on_answer)
            else:
                done.set()

        on_answer(b"again")
        await done.wait()


async def test_too_many_at_once_are_not_asked(autojump_clock: MockClock) -> None:
    silent = Services()
    silent.add_stream("silent", sleep_for_ever)
    async with session_pair(silent) as (alice, _):
        answers = Answers()
        for _ in range(limits.STREAMS_PER_SIDE_MAX):
            assert alice.ask("silent", b"", deadline_s=5.0, on_answer=answers)
        assert not alice.ask("silent", b"", deadline_s=5.0, on_answer=answers)
        assert answers.taken == []
        await trio.sleep(5 + 2 * limits.PING_QUIET_S)
        assert len(answers.taken) == limits.STREAMS_PER_SIDE_MAX
        assert alice.ask("silent", b"", deadline_s=5.0, on_answer=answers)


def test_one_service_has_one_handler() -> None:
    made = services(echo=echo)
    with pytest.raises(InvariantViolation, match="registered twice"):
        made.add_request("echo", lambda _peer, _request: None)  # type: ignore[arg-type,return-value]


async def test_tcp_sends_at_once_what_the_kernel_takes_and_says_when_it_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = trio.socket.from_stdlib_socket(socket.create_connection(server.getsockname()))
        theirs, _ = server.accept()
    with theirs:
        channel = TcpChannel(ours)
        assert channel.send_nowait(memoryview(b"hello")) == 5
        assert theirs.recv(16) == b"hello"
        block = memoryview(bytes(1 << 20))
        while channel.send_nowait(block):
            pass  # until both buffers are full
        await channel.aclose()
        with pytest.raises(ChannelClosed):
            channel.send_nowait(memoryview(b"x"))


async def test_a_tcp_channel_that_is_closed_is_not_waited_for() -> None:
    """Its socket has no descriptor any more, and Trio knows no answer to that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = trio.socket.from_stdlib_socket(socket.create_connection(server.getsockname()))
        theirs, _ = server.accept()
    with theirs:
        channel = TcpChannel(ours)
        buffer = memoryview(bytearray(100))
        theirs.send(b"less than fits")
        assert await channel.receive_into(buffer) == 14
        async with trio.open_nursery() as nursery:

            async def receive_while_it_is_closed() -> None:
                with pytest.raises(ChannelClosed):
                    await channel.receive_into(buffer)

            nursery.start_soon(receive_while_it_is_closed)
            await wait_all_tasks_blocked()
            await channel.aclose()
        with pytest.raises(ChannelClosed):
            await channel.receive_into(buffer)


async def test_a_session_whose_channel_is_closed_while_it_lingers_ends_quietly() -> None:
    async with session_pair(services()) as (alice, _):
        alice.close_nowait("over")
        await trio.testing.wait_all_tasks_blocked()
        assert alice.channel is not None
        await alice.channel.aclose()
        await alice.wait_closed()


async def test_what_does_not_fit_into_the_socket_follows(autojump_clock: MockClock) -> None:
    """A full link: the rest of a record goes out before anything else does."""
    network = MemoryNetwork()
    async with session_pair(services(echo=echo), network=network) as (alice, _):
        network.partition({"alice"}, {"bob"})
        answers = Answers()
        sizes = [limits.STREAM_WINDOW_BYTES - 1, 77, limits.STREAM_WINDOW_BYTES, 1, 100_000]
        sizes += 4 * [limits.STREAM_WINDOW_BYTES]  # more than a link holds
        for size in sizes:
            assert alice.ask("echo", bytes(size), deadline_s=60.0, on_answer=answers)
        await trio.sleep(1)
        assert answers.taken == []
        network.heal()
        await trio.sleep(1)
        lengths = [len(answer) for answer in answers.taken if isinstance(answer, bytes)]
        assert sorted(lengths) == sorted(sizes)
