"""One key on two nodes: a copied home, or a backup that was restored elsewhere.

A node that signs with our key shows it in the failure detector and in the shared state; and peers
that talk to the other node refuse us. The younger one of the two stops, the older one goes on
and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from swarmnode import limits
from swarmnode.daemon.transport.network import Network
from swarmnode.env import Env
from swarmnode.errors import KeyInUse
from swarmnode.net.session import Session
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.transport")


class KeyGuard:
    """Judges what speaks for another node with our key.

    Args:
        fail: ends the node.

    Attributes:
        alarm: what a person should look at, "" while there is nothing.
    """

    def __init__(
        self, network: Network, boot_epoch: int, env: Env, fail: Callable[[KeyInUse], None]
    ) -> None:
        self.alarm = ""
        self._network = network
        self._boot_epoch = boot_epoch
        self._env = env
        self._fail = fail
        self._heard_at = math.inf  # when the first session began
        self._refusal: KeyInUse | None = None
        self._refused = trio.Event()
        network.on_key_in_use = self._note_refusal
        network.watchers.append(self)

    def session_opened(self, session: Session) -> None:  # noqa: ARG002
        """From the first one on we would hear of another node; a slow start does not count."""
        self._heard_at = min(self._heard_at, self._env.monotonic())

    def session_closed(self, session: Session) -> None:
        """Nothing follows from it."""

    async def run(self) -> None:
        """Judge refusals, a moment after the first: one peer may lie, all of them do not."""
        while True:
            await self._refused.wait()
            await trio.sleep(limits.KEY_CONFLICT_WAIT_S)
            self._refused = trio.Event()
            if self._network.key_refusals >= len(self._network.sessions):
                self._fail(KeyInUse.of_node(str(self._refusal)))

    def seen_elsewhere(self, epoch: int) -> None:
        """Something that our key signed, and we did not, came to us.

        If it came at once, the other was there before us; if later, we were, unless peers that
        know both turn us away.
        """
        error = KeyInUse.of_node(f"(start {epoch}, this is start {self._boot_epoch})")
        age_s = self._env.monotonic() - self._heard_at
        was_refused = self._refusal is not None and age_s < limits.KEY_CONFLICT_YOUNG_S
        if was_refused or age_s < limits.KEY_CONFLICT_NEW_S:
            self._fail(error)
        elif not self.alarm:
            self.alarm = str(error)
            _log.error("one key on two nodes", why=str(error))

    def _note_refusal(self, error: KeyInUse) -> None:
        """A peer would not have us, for another node with our key answers it."""
        self._refusal = error
        self._refused.set()
