"""Credits on a data channel: the window that SCTP in aiortc does not keep.

Binary messages are the bytes of the stream. Text messages are control: ``credit TOTAL`` and
``end``. A binary message costs its length and RTC_MESSAGE_COST_BYTES. What was sent and not
yet credited never costs more than RTC_WINDOW_BYTES, so a slow reader never holds more
than that. TOTAL is what all messages cost that were read whole, since the beginning.

The reader grants a quarter of the window at a time. A credit that grants less, or more than
was sent, is an offence, so credits cannot flood either.
"""

from __future__ import annotations

import re

from swarmnode import limits
from swarmnode.errors import LimitExceeded, MalformedMessage

END = "end"
_GRANT_BYTES = limits.RTC_WINDOW_BYTES // 4
# A message for so little room would cost more than it carries.
_WORTH_SENDING_BYTES = 4 * limits.KIB
_CREDIT = re.compile(r"credit ([1-9][0-9]{0,17})")


def message_cost(n_bytes: int) -> int:
    """Return what a binary message of so many bytes takes from the window."""
    return n_bytes + limits.RTC_MESSAGE_COST_BYTES


def encode_credit(total: int) -> str:
    """Return the text message that grants."""
    return f"credit {total}"


def decode_credit(text: str) -> int | None:
    """Return TOTAL, or None for ``end``. Raises MalformedMessage for any other text."""
    if text == END:
        return None
    match = _CREDIT.fullmatch(text)
    if match is None:
        raise MalformedMessage(f"data channel: expected 'credit TOTAL' or 'end', got {text[:40]!r}")
    return int(match[1])


class SendWindow:
    """How much the other side is ready to take."""

    def __init__(self) -> None:
        self._sent = 0
        self._credited = 0

    def message_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes the next message may have; 0: wait for credit."""
        room = limits.RTC_WINDOW_BYTES - (self._sent - self._credited)
        n_bytes = min(wanted_bytes, room - limits.RTC_MESSAGE_COST_BYTES)
        n_bytes = min(n_bytes, limits.RTC_MESSAGE_BYTES_MAX)
        return n_bytes if n_bytes >= min(wanted_bytes, _WORTH_SENDING_BYTES) else 0

    def sent(self, n_bytes: int) -> None:
        """Count a message that :meth:`message_bytes` allowed."""
        self._sent += message_cost(n_bytes)
        assert self._sent - self._credited <= limits.RTC_WINDOW_BYTES

    def credited(self, total: int) -> None:
        """Take in a credit. Raises LimitExceeded for one that no honest reader gives."""
        if not self._credited + _GRANT_BYTES <= total <= self._sent:
            raise LimitExceeded(
                f"data channel: credit {total} after {self._credited}, with {self._sent} sent"
            )
        self._credited = total


class ReadWindow:
    """What the other side may still send; kept where messages arrive."""

    def __init__(self) -> None:
        self._received = 0
        self._granted = 0

    def received(self, n_bytes: int) -> None:
        """Count a message. Raises LimitExceeded if it is too large or was not granted."""
        self._received += message_cost(n_bytes)
        if n_bytes > limits.RTC_MESSAGE_BYTES_MAX:
            raise LimitExceeded(
                f"data channel: message of {n_bytes} bytes, "
                f"at most {limits.RTC_MESSAGE_BYTES_MAX} are allowed"
            )
        if self._received - self._granted > limits.RTC_WINDOW_BYTES:
            raise LimitExceeded("data channel: more was sent than credit was given for")

    def granted(self, total: int) -> None:
        """Note that a credit goes out."""
        self._granted = total


class ReadLedger:
    """What was read, and when that is worth a credit; kept where messages are read."""

    def __init__(self) -> None:
        self._read = 0
        self._granted = 0

    def read(self, n_bytes: int) -> int | None:
        """Count a message that was read whole; return the TOTAL to grant now, if any."""
        self._read += message_cost(n_bytes)
        if self._read - self._granted < _GRANT_BYTES:
            return None
        self._granted = self._read
        return self._granted
