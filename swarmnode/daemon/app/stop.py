"""How a node goes: at once, as far as exchanges let it, or after all that runs is completed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from swarmnode import limits
from swarmnode.daemon.volunteer.rules import Volunteer
from swarmnode.telemetry.logs import get_logger

if TYPE_CHECKING:
    from swarmnode.daemon.status.view import NodeView

_log = get_logger("swarmnode.daemon.app")


async def complete(view: NodeView, volunteer: Volunteer) -> None:
    """Begin nothing new, and return once every exchange that runs has ended and is merged."""
    volunteer.finish()
    exchanges, trainer = view.exchanges, view.trainer
    if exchanges is None or trainer is None:
        return
    with trio.move_on_after(limits.FINISH_S) as scope:
        await exchanges.drain()
        await trainer.lessor.wait_idle()
    if scope.cancelled_caught:
        _log.warning("not all exchanges ended in time", waited_s=limits.FINISH_S)


async def drain(view: NodeView) -> None:
    """Let a running exchange end if it is almost through, and give up what is not."""
    exchanges, trainer = view.exchanges, view.trainer
    if exchanges is None or trainer is None:
        return
    with trio.move_on_after(limits.LEAVE_DRAIN_S):
        await exchanges.drain()
    exchanges.give_up("leaving")
    with trio.move_on_after(limits.LEAVE_DECISION_S):
        await exchanges.drain()
    exchanges.give_up("leaving, and the partner is away", is_last=True)
    with trio.move_on_after(limits.LEAVE_DECISION_S):
        await trainer.lessor.drain()
