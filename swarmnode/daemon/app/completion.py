"""What follows once the swarm has trained as much as it was to.

::

    all members are finished, or have had time to be
      the one with the lowest id   merges all models, and offers the result as a snapshot
      keepers                      fetch that as they fetch the newest one, and write it out

If the one that is to merge dies over it, the next one does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from swarmnode import limits
from swarmnode.daemon.exchange.merge.finalize import Finalizer
from swarmnode.daemon.membership.progress import ProgressWatch
from swarmnode.daemon.membership.swarm import SwarmPart
from swarmnode.daemon.snapshots.snapshots import Snapshots
from swarmnode.errors import SwarmNodeError
from swarmnode.ids import PeerId
from swarmnode.ipc.control import MERGE_RULES
from swarmnode.telemetry.logs import get_logger
from swarmnode.wire.admission import Role

_LOOK_S = 1.0
_log = get_logger("swarmnode.daemon.app")


class Completion:
    """Looks whether the swarm has reached its target, and does this node's part then.

    Args:
        finalizer: of a node that trains; None before it does.
        final_model: where a keeper writes it.
    """

    def __init__(
        self,
        *,
        part: SwarmPart,
        watch: ProgressWatch,
        snapshots: Snapshots,
        finalizer: Callable[[], Finalizer | None],
        role: Role,
        final_model: Path,
    ) -> None:
        self._part, self._watch, self._snapshots = part, watch, snapshots
        self._finalizer, self._role, self._final_model = finalizer, role, final_model
        self._merged_target = 0  # for which this node has merged the models
        self._written = b""  # the root of what a keeper has written out

    async def run(self) -> None:
        """Do so until cancelled, for each target anew."""
        since: float | None = None
        while True:
            await trio.sleep(_LOOK_S)
            if not self._watch.target.horizon.is_reached(self._watch.counted_tokens):
                since = None
                continue
            since = since if since is not None else trio.current_time()
            if self._role == "keeper":
                await self._write_out()
            elif self._is_our_turn(trio.current_time() - since):
                await self._merge()

    def _is_our_turn(self, waited_s: float) -> bool:
        target = self._watch.target.horizon.target_tokens
        if self._finalizer() is None or self._merged_target == target:
            return False
        if self._snapshots.is_merged_offered:
            return False
        states = {peer: self._state(peer) for peer in self._part.members.live()}
        if "training" in states.values() and waited_s < limits.COMPLETION_WAIT_S:
            return False
        finished = [peer for peer, state in states.items() if state == "finished"]
        return bool(finished) and min(finished) == self._part.self_id

    def _state(self, peer: PeerId) -> str | None:
        if peer == self._part.self_id:
            return self._part.report().state
        return self._part.peer_report(peer).state

    async def _merge(self) -> None:
        finalizer = self._finalizer()
        assert finalizer is not None, "it is our turn"
        target = self._watch.target.horizon.target_tokens
        try:
            found = await finalizer.finalize(MERGE_RULES[0])
            if found.problem:
                _log.warning("the merged model is not offered", why=found.problem)
            else:
                await self._snapshots.offer_merged(Path(found.path), found.loss)
        except (SwarmNodeError, OSError) as error:  # another one merges, members go: again
            _log.warning("the models are not merged yet", why=str(error))
            return
        self._merged_target = target
        _log.info(
            "the swarm is finished",
            target_tokens=target,
            contributors=found.contributors,
            agreed=found.agreed,
            members=found.members,
            path=found.path,
        )

    async def _write_out(self) -> None:
        """Put the furthest model that we hold where people find it."""
        path = self._final_model
        try:
            written = await self._snapshots.write_furthest(path, self._written)
        except (SwarmNodeError, OSError) as error:
            _log.warning("the model is not written out", path=str(path), why=str(error))
            return
        if written != self._written:
            self._written = written
            _log.info("the swarm is finished", path=str(path))
