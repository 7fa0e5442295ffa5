"""Real nodes of one machine that begin to train at the same moment, from the first weights."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import trio

from swarmnode.errors import DeadlineExceeded, SwarmNodeError, WorkerError
from swarmnode.processes.node_process import NodeProcess

_HOLD_POLL_S = 0.1  # a worker loads for seconds before its first step
_POLL_S = 0.5
_START_DEADLINE_S = 180.0
_STOP_DEADLINE_S = 10.0


class Together:
    """Nodes of one swarm, started already."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self._nodes = nodes

    async def train(self, deadline_s: float) -> float:
        """Hold all until the last one is there, let all take their steps; return the seconds.

        Each was started with a number of steps. So none begins with a peer's snapshot.

        Raises:
            DeadlineExceeded: a node did not come, or did not end in time.
            WorkerError: one ended early, or began elsewhere than at step 0.
        """
        await self._wait("all nodes to be there", _START_DEADLINE_S, self._are_paused, _HOLD_POLL_S)
        began_s = trio.current_time()
        for node in self._nodes:
            await node.ask("POST", "/resume")
        await self._wait("all steps of every node", deadline_s, self._have_ended, _POLL_S)
        took_s = trio.current_time() - began_s
        self._check_beginnings()
        return took_s

    async def save_and_stop(self) -> None:
        """Write a snapshot of every model, then end all nodes. Raises SwarmNodeError."""
        for node in self._nodes:
            await node.ask("POST", "/snapshot")
        async with trio.open_nursery() as nursery:
            for node in self._nodes:
                nursery.start_soon(node.interrupt, _STOP_DEADLINE_S)

    async def _are_paused(self) -> bool:
        """Pause each before its worker has loaded; return whether all know all."""
        for node in self._nodes:
            if node.status.get("state") != "paused":
                with contextlib.suppress(SwarmNodeError):  # it is still starting
                    await node.ask("POST", "/pause")
        others = len(self._nodes) - 1
        return all(
            node.status.get("state") == "paused" and node.status["peers_connected"] >= others
            for node in self._nodes
        )

    async def _have_ended(self) -> bool:
        return all(node.status.get("state") == "stopped" for node in self._nodes)

    async def _wait(
        self, what: str, deadline_s: float, is_so: Callable[[], Awaitable[bool]], every_s: float
    ) -> None:
        with trio.move_on_after(deadline_s):
            while not await is_so():
                await trio.sleep(every_s)
                for node in self._nodes:
                    await node.poll()
            return
        raise DeadlineExceeded(f"waiting for {what}", deadline_s)

    def _check_beginnings(self) -> None:
        """Another start than from the first weights would compare two different things."""
        for node in self._nodes:
            log = (node.home / "daemon.log").read_text(errors="replace")
            beginnings = [line for line in log.splitlines() if ", from step " in line]
            if len(beginnings) != 1 or "from step 0 on" not in beginnings[0]:
                raise WorkerError(
                    f"expected {node.home.name} to begin at step 0, once: run it again"
                )
