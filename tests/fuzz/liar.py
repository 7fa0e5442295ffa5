"""A member of a conversation that lies now and then, and numbers out of what an input says."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from swarmnode.errors import MalformedMessage
from swarmnode.wire.packing import decode_record, encode_record
from tests.fuzz.draw import Draw

LATENCIES_S = (0.001, 0.02, 0.05, 0.3, 2.0, 40.0)
WAITS_S = (0.0, 0.01, 0.1, 1.0, 5.0, 20.0, 100.0)
TURNS_MAX = 24  # of what happens beside a conversation
_HONEST = 160  # of 256 words of the liar so many go as they are
_SAID_MAX = 16


class Bytes(random.Random):
    """What an input says, as numbers between 0 and 1; at its end all are 0."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(0)
        self._draw = draw

    def random(self) -> float:
        return self._draw.byte() / 256


class Liar:
    """What becomes of the words of one member."""

    def __init__(self, draw: Draw, message_type: Any) -> None:
        self._draw, self._type = draw, message_type
        self._said: list[Any] = []
        self.lies = 0

    def words(self, message: Any) -> list[Any]:
        """Return what is said in place of a message."""
        draw = self._draw
        draw.learn(message)
        self._said = [*self._said[1 - _SAID_MAX :], message]
        if draw.byte() < _HONEST:
            return [message]
        self.lies += 1
        how = draw.below(6)
        if how == 0:
            return []
        if how == 1:
            return [message, message]
        if how == 2:
            return [draw.choose(self._said)]
        if how == 3:
            return [*filter(self.may_be_said, [draw.value(self._type)]), message]
        altered = self._altered(message)
        return [altered] if self.may_be_said(altered) else [message]

    def _altered(self, message: Any) -> Any:
        name = self._draw.choose(message.__struct_fields__)
        return msgspec.structs.replace(message, **{name: self._draw.field_of(type(message), name)})

    def may_be_said(self, message: Any) -> bool:
        """Whether the wire takes it: what it refuses never comes to a core."""
        try:
            decode_record(encode_record(message), self._type)
        except MalformedMessage:
            return False
        return True
