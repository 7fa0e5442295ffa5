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


QUARTER = WINDOW // 4
EIGHTH_OF_A_QUARTER = QUARTER // 8 - message_cost(0)  # what costs that much
assert EIGHTH_OF_A_QUARTER <= limits.RTC_MESSAGE_BYTES_MAX


def test_each_quarter_of_the_window_that_was_read_is_granted_to_the_byte() -> None:
    ledger = ReadLedger()
    for quarter in (1, 2, 3):
        assert [ledger.read(EIGHTH_OF_A_QUARTER) for _ in range(8)] == [
            *[None] * 7,
            quarter * QUARTER,
        ]
    for n_bytes in (EIGHTH_OF_A_QUARTER - 1, *[EIGHTH_OF_A_QUARTER] * 7):
        assert ledger.read(n_bytes) is None
    assert ledger.read(0) == 4 * QUARTER - 1 + message_cost(0)


def test_the_window_may_be_filled_to_its_last_byte_and_no_further() -> None:
    for last, is_too_much in ((EIGHTH_OF_A_QUARTER, False), (EIGHTH_OF_A_QUARTER + 1, True)):
        guard = ReadWindow()
        for granted in (0, QUARTER):  # of what comes after a credit it is the same
            if granted:
                guard.granted(granted)
            for _ in range(31 if not granted else 7):
                guard.received(EIGHTH_OF_A_QUARTER)
            if is_too_much:
                with pytest.raises(LimitExceeded, match="more was sent"):
                    guard.received(last)
                break
            guard.received(last)
    ReadWindow().received(limits.RTC_MESSAGE_BYTES_MAX)


def sent_eighths(n: int) -> SendWindow:
    sender = SendWindow()
    for _ in range(n):
        assert sender.message_bytes(EIGHTH_OF_A_QUARTER) == EIGHTH_OF_A_QUARTER
        sender.sent(EIGHTH_OF_A_QUARTER)
    return sender


def test_a_credit_grants_a_quarter_or_more_of_what_was_sent() -> None:
    sender = sent_eighths(31)
    for total in (QUARTER - 1, 31 * QUARTER // 8 + 1):
        with pytest.raises(LimitExceeded):
            sender.credited(total)
    sender.credited(QUARTER)
    with pytest.raises(LimitExceeded):
        sender.credited(2 * QUARTER - 1)
    sender.credited(2 * QUARTER)
    sender.credited(31 * QUARTER // 8)
    with pytest.raises(LimitExceeded):
        sender.credited(31 * QUARTER // 8)


def test_a_message_is_as_long_as_there_is_room_if_that_is_worth_it() -> None:
    sender = sent_eighths(31)
    room = EIGHTH_OF_A_QUARTER
    assert sender.message_bytes(limits.RTC_MESSAGE_BYTES_MAX) == room
    worth = 4 * limits.KIB
    sender.sent(room - worth - message_cost(0))
    assert sender.message_bytes(room) == sender.message_bytes(worth) == worth
    assert sender.message_bytes(worth - 1) == worth - 1
    sender = sent_eighths(31)
    sender.sent(room - worth - message_cost(0) + 1)
    assert sender.message_bytes(room) == sender.message_bytes(worth) == 0
    assert sender.message_bytes(worth - 1) == worth - 1
    sender.credited(31 * QUARTER // 8)
    assert sender.message_bytes(WINDOW) == limits.RTC_MESSAGE_BYTES_MAX
    fresh = SendWindow()
    assert fresh.message_bytes(WINDOW) == limits.RTC_MESSAGE_BYTES_MAX
