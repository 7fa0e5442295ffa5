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


def views_told(*, came: tuple[PeerId, ...], doubted: frozenset[PeerId]) -> list[tuple[PeerId, ...]]:
    """Return the views that are told when a member says that another is left out.

    It is left out itself by a third, a little later.
    """
    core = GroupCore(SELF)
    core.handle(Begin(GID, ALL, 5, 1.0, 5.0, 70.0, electorate=ALL, doubted=doubted), 0.0)
    for peer in came:
        core.handle(Received(peer, Enlist(GID, False)), 0.1)
    for teller, missing in ((STALLER, LEFT_OUT), (OTHER, STALLER)):
        view = tuple(bytes(peer) for peer in ALL if peer != missing)
        core.handle(Received(teller, Flush(GID, view, ())), 0.2)
    told = [
        effect.message.view
        for effect in core.poll_effects()
        if isinstance(effect, Send) and isinstance(effect.message, Flush)
    ]
    return [tuple(map(PeerId, view)) for view in dict.fromkeys(told)]


EARLY = (OTHER, LEFT_OUT, STALLER)
FEWEST = ALL[:3]  # a majority; another word more, and nothing comes of the round


@pytest.mark.parametrize("came", [EARLY, (*EARLY, THIRD)], ids=["roll", "flush"])
def test_none_goes_without_another_on_the_word_of_one_that_held_rounds(
    came: tuple[PeerId, ...],
) -> None:
    assert views_told(came=came, doubted=frozenset({STALLER}))[-1] == (*FEWEST, LEFT_OUT)
    assert views_told(came=came, doubted=frozenset())[-1] == FEWEST
    # Both have held rounds: then it is one word against another, and each counts.
    both = frozenset({STALLER, LEFT_OUT})
    assert views_told(came=came, doubted=both)[-1] == FEWEST


def test_one_that_has_not_come_is_left_out_on_any_word() -> None:
    told = views_told(came=(OTHER, THIRD, STALLER), doubted=frozenset({STALLER}))
    assert told[-1] == FEWEST
