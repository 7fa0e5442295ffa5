"""Whose word counts when members of one run go on without each other."""

from __future__ import annotations

import pytest

from swarmnode.ids import PeerId
from swarmnode.protocol.gossip.group import GroupCore
from swarmnode.protocol.gossip.group_events import Begin, Received, Send
from swarmnode.wire.exchange.group import Enlist, Flush

SELF, OTHER, THIRD, LEFT_OUT, STALLER = (PeerId(bytes([n]) * 32) for n in range(1, 6))
ALL = (SELF, OTHER, THIRD, LEFT_OUT, STALLER)
GID = bytes(16)


def view_after(*, came: tuple[PeerId, ...], doubted: frozenset[PeerId]) -> tuple[PeerId, ...]:
    """Return the view that is told when one member says that another is left out."""
    core = GroupCore(SELF)
    core.handle(Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, doubted=doubted), 0.0)
    for peer in came:
        core.handle(Received(peer, Enlist(GID, False)), 0.1)
    without = tuple(bytes(peer) for peer in ALL if peer != LEFT_OUT)
    core.handle(Received(STALLER, Flush(GID, without, ())), 0.2)
    told = [
        effect.message.view
        for effect in core.poll_effects()
        if isinstance(effect, Send) and isinstance(effect.message, Flush)
    ]
    return tuple(PeerId(peer) for peer in told[-1])


EARLY = (OTHER, LEFT_OUT, STALLER)


@pytest.mark.parametrize("came", [EARLY, (*EARLY, THIRD)], ids=["roll", "flush"])
def test_none_goes_without_another_on_the_word_of_one_that_held_rounds(
    came: tuple[PeerId, ...],
) -> None:
    if THIRD in came:  # of a roll none is told of a view before it closes
        assert view_after(came=came, doubted=frozenset({STALLER})) == (*ALL[:3], LEFT_OUT)
    assert view_after(came=came, doubted=frozenset()) == (*ALL[:3], STALLER)
    # Both have held rounds: then it is one word against another, and the first counts.
    both = frozenset({STALLER, LEFT_OUT})
    assert view_after(came=came, doubted=both) == (*ALL[:3], STALLER)


def test_one_that_no_word_came_of_is_left_out_on_any_word() -> None:
    silent = view_after(came=(OTHER, THIRD, STALLER), doubted=frozenset({STALLER}))
    assert silent == (*ALL[:3], STALLER)
