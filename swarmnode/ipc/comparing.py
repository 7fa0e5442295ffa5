"""Two candidates for a part of a group's mean, and which of them the worker finds better.

The daemon has no model. It puts both into the room of a slot that it has, where the mean will be,
and the worker tries them on the public probe between two steps::

    worker                     daemon
                    <--Compare--                which of the two is better?
      --Compared-->
"""

from __future__ import annotations

from swarmnode.ipc.records import Message, NotNegative
from swarmnode.wire.records import Count


class Compare(Message, frozen=True, tag="compare"):
    """The room of a slot begins with two candidates, one after the other: say which is better.

    Compared with this ``ticket`` follows. The slot stays the daemon's. ``begin``: the first element
    in the first view; ``numel``: elements of each candidate.
    """

    ticket: Count
    slot: Count
    generation: Count
    begin: Count
    numel: Count


class Compared(Message, frozen=True, tag="compared"):
    """Candidate ``best``, 0 or 1, has the lower loss; the last one if there is no telling.

    ``seconds``: that the worker took no step for it.
    """

    ticket: Count
    best: Count
    seconds: NotNegative = 0.0
