"""What a session core knows about one stream.

A stream leaves the table once both of its directions have finished: ours
when END or RESET was written out, the peer's when END or RESET came in. A
side that gets a RESET answers with its own unless its direction has finished,
so after a RESET each side knows exactly when no more DATA can be on its way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from swarmnode import limits
from swarmnode.protocol.session.inbox import Inbox
from swarmnode.protocol.uplink import Purpose
from swarmnode.wire.session import Priority


@dataclass(frozen=True, slots=True)
class Reset:
    """Why a stream ended early, and which side said so."""

    code: int  # a ResetCode, or a newer one that we do not know
    reason: str
    by_peer: bool


@dataclass(slots=True, eq=False)
class StreamState:
    """One stream; only the core changes it."""

    stream_id: int
    service: str
    priority: Priority
    is_local: bool  # we opened it
    inbox: Inbox
    purpose: Purpose
    deadline_ms: int  # how long the opener waits for an answer; 0: as long as it takes

    # --- what we send
    pending: deque[memoryview] = field(default_factory=deque)  # lent by the sender
    send_credit: int = limits.STREAM_WINDOW_BYTES
    open_due: bool = False
    end_due: bool = False
    reset_due: Reset | None = None
    stop_due: bool = False  # after our END: tell the peer that no task reads any more
    is_stopped: bool = False  # the peer was told
    is_cut: bool = False  # something queued was withdrawn
    send_finished: bool = False
    in_control_ring: bool = False
    in_data_ring: bool = False

    # --- what we receive
    arrived_bytes: int = 0
    receive_credit: int = limits.STREAM_WINDOW_BYTES
    window_bytes: int = limits.STREAM_WINDOW_BYTES
    credit_due: int = 0  # consumed, not yet given back
    end_received: bool = False
    receive_finished: bool = False  # by END or by RESET
    is_discarding: bool = False  # no task here wants what still comes

    reset: Reset | None = None  # the first one, ours or the peer's

    @property
    def is_ended(self) -> bool:
        """Whether no byte will come that is not in the inbox already."""
        return self.receive_finished or self.is_discarding

    @property
    def is_finished(self) -> bool:
        """Whether both directions are over."""
        return self.send_finished and self.receive_finished

    @property
    def can_send(self) -> bool:
        """Whether DATA may still be queued."""
        return not (self.end_due or self.send_finished or self.reset)

    def withdraw(self) -> None:
        """Forget what was queued and not yet written: its owner wants the memory back."""
        if self.pending:
            self.is_cut = True
            self.pending.clear()
