"""Credits of a data channel: bounded whoever reads slowly, and never stuck."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage
from swarmnode.protocol.nat.rtc_flow import (
    END,
    ReadLedger,
    ReadWindow,
    SendWindow,
    decode_credit,
    encode_credit,
    message_cost,
)

WINDOW = limits.RTC_WINDOW_BYTES


class Channel:
    """Two ends with a wire between them that keeps its order."""

    def __init__(self) -> None:
        self.sender = SendWindow()
        self.guard = ReadWindow()
        self.ledger = ReadLedger()
        self.wire: deque[int] = deque()
        self.inbox: deque[int] = deque()
        self.credits: deque[str] = deque()

    def send(self, wanted: int) -> int:
        n_bytes = self.sender.message_bytes(wanted)
        if n_bytes:
            self.sender.sent(n_bytes)
            self.wire.append(n_bytes)
        return n_bytes

    def arrive(self) -> None:
        if self.wire:
            self.guard.received(self.wire[0])
            self.inbox.append(self.wire.popleft())

    def read(self) -> None:
        if self.inbox:
            total = self.ledger.read(self.inbox.popleft())
            if total is not None:
                self.guard.granted(total)
                self.credits.append(encode_credit(total))

    def credit(self) -> None:
        if self.credits:
            total = decode_credit(self.credits.popleft())
            assert total is not None
            self.sender.credited(total)

    def settle(self) -> None:
        while self.wire or self.inbox or self.credits:
            self.arrive()
            self.read()
            self.credit()


steps = st.lists(
    st.one_of(
        st.integers(1, 3 * limits.RTC_MESSAGE_BYTES_MAX),
        st.sampled_from([1, 100, limits.RTC_MESSAGE_BYTES_MAX]),
        st.sampled_from(["arrive", "read", "credit"]),
    ),
    max_size=400,
)


@given(steps)
def test_the_window_holds_and_a_reader_sets_the_sender_free(steps: list[int | str]) -> None:
    channel = Channel()
    for step in steps:
        if isinstance(step, int):
            channel.send(step)
        else:
            getattr(channel, step)()
        held = sum(map(message_cost, [*channel.wire, *channel.inbox]))
        assert held <= WINDOW
        assert len(channel.credits) <= 4
    channel.settle()
    # All is read: there is room for three quarters of a window, whatever credit is still due.
    room = 0
    while n_bytes := channel.send(limits.RTC_MESSAGE_BYTES_MAX):
        room += message_cost(n_bytes)
    assert room >= WINDOW * 0.7


@given(st.integers(1, 10**18 - 1))
def test_credits_are_read_as_written(total: int) -> None:
    assert decode_credit(encode_credit(total)) == total


@given(st.text(max_size=60))
def test_other_text_is_refused(text: str) -> None:
    try:
        total = decode_credit(text)
    except MalformedMessage:
        return
    assert text == END if total is None else text == encode_credit(total)


@pytest.mark.parametrize("total", [0, 1, WINDOW // 4 - 1, WINDOW, 10**17])
def test_a_credit_that_no_honest_reader_gives_is_an_offence(total: int) -> None:
    sender = SendWindow()
    for _ in range(10):
        sender.sent(sender.message_bytes(30_000))
    with pytest.raises(LimitExceeded, match=f"credit {total} after 0, with 302560 sent"):
        sender.credited(total)
    sender.credited(WINDOW // 4)


def test_what_was_not_granted_may_not_be_sent() -> None:
    guard = ReadWindow()
    for _ in range(WINDOW // message_cost(1)):
        guard.received(1)
    with pytest.raises(LimitExceeded, match="more was sent than credit was given for"):
        guard.received(1)
    with pytest.raises(LimitExceeded, match="at most 32768 are allowed"):
        ReadWindow().received(limits.RTC_MESSAGE_BYTES_MAX + 1)


def test_a_crumb_of_room_is_not_worth_a_message() -> None:
    sender = SendWindow()
    while sender.message_bytes(30_000) == 30_000:
        sender.sent(30_000)
    assert sender.message_bytes(100_000) in (0, sender.message_bytes(4096 + 20_000))
    assert sender.message_bytes(1) == 1  # what is small anyway goes
