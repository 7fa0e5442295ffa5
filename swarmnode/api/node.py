"""A node from Python, in any loop or in none::

    with swarmnode.Node.join("swarm:NAME?k=…", home="node") as node:
        node.wait_ready()
        print(node.status()["step"])
        model.load_state_dict(node.model_state(), strict=False)

    async with swarmnode.Node.join("swarm:NAME?k=…", home="node") as node:  # Trio or asyncio
        await node.wait_ready()

The node runs in a process of its own for as long as the block is open (``api/process.py``). At
the end of the block, also by an exception or cancellation, it completes the exchange that is under
way, leaves its swarm and saves. If the program dies, so does it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from swarmnode import limits
from swarmnode.api.process import (
    NodeProcess,
    ask,
    ask_if_up,
    in_thread,
    in_thread_to_the_end,
    sleep,
)
from swarmnode.config import NodeConfig, load_config
from swarmnode.errors import ConfigError, DeadlineExceeded

if TYPE_CHECKING:
    import torch

Json = dict[str, Any]

# States in which a node does what it is there for, or would if it were let.
_READY = frozenset({"training", "serving", "paused", "stopped", "finished"})


class Node:
    """A node of this machine; every method asks it and returns when it has answered.

    Every method raises NotRunning when it does not run, and SwarmNodeError when it refuses.
    """

    def __init__(self, config: NodeConfig, process: NodeProcess | None = None) -> None:
        """See :meth:`join` and :meth:`running`."""
        self.config = config
        self._process = process

    @classmethod
    def join(
        cls,
        link: str,
        *,
        home: str | os.PathLike[str] | None = None,
        key: str | None = None,
        data: str | os.PathLike[str] | None = None,
        steps: int = 0,
        **settings: Any,
    ) -> Joining:
        """Return the context in which a node of the swarm ``link`` runs.

        Args:
            link: a link, or the name of a swarm that this home knows or that can be looked up.
            home: everything that the node owns; default as for the command line.
            key: the swarm's, where several have its name.
            data: a folder to train on.
            steps: stop training after so many; 0: never.
            settings: as in ``config.toml``, such as ``listen="*:7400"`` or ``role="keeper"``.

        Raises:
            ConfigError: a setting is unknown or wrong.
        """
        config = load_config({"home": home and str(home), **settings}, os.environ)
        arguments = ["join", link]
        if key:
            arguments += ["--key", key]
        if data:
            if not Path(data).is_dir():
                raise ConfigError(f"data: expected a folder, {data} is none")
            arguments += ["--data", str(Path(data).absolute())]
        if steps:
            arguments += ["--steps", str(steps)]
        return Joining(NodeProcess(config, settings, arguments))

    @classmethod
    def running(cls, home: str | os.PathLike[str] | None = None) -> Node:
        """Return the node that runs on ``home`` already; it is left running."""
        return cls(load_config({"home": home and str(home)}, os.environ))

    @property
    def home(self) -> Path:
        """Everything that the node owns."""
        return self.config.home

    @property
    def pid(self) -> int | None:
        """The daemon, if this program started it."""
        return self._process.pid if self._process is not None else None

    def wait_ready(self, deadline_s: float = limits.NODE_READY_S) -> Json:
        """Wait until it trains, or serves; return its status.

        A node of a swarm that programs train is ready when it waits for the program.

        Raises:
            SwarmNodeError: what it ended with, if it did.
            DeadlineExceeded: it still has not begun; the message says what it waits for.
        """
        until = time.monotonic() + deadline_s
        status: Json = {}
        while (found := self.look(status)) is None:
            if time.monotonic() >= until:
                raise _late(status, deadline_s)
            self.wait_a_moment()
        return found

    def look(self, status: Json) -> Json | None:
        """Return its status if it is ready; else None, and its status is in ``status``."""
        if self._process is not None:
            self._process.check_alive()
        said = ask_if_up(self.config, "/status") or {}
        if self.pid not in (None, said.get("pid")):  # another node of this home: ours will end
            return None
        status.update(said)
        is_ready = status.get("state") in _READY or self.config.paths.program_socket.exists()
        return status if status and is_ready else None

    def wait_a_moment(self) -> None:
        """Wait until it is worth looking again, or the node has ended."""
        if self._process is not None:
            self._process.wait_a_moment()
        else:
            select.select([], [], [], limits.NODE_LOOK_S)

    def status(self) -> Json:
        """Return what it is doing, and why; the keys are those of ``swarmnode status --json``."""
        found: Json = self._ask("GET", "/status")
        return found

    def peers(self) -> list[Json]:
        """Return the peers that it knows."""
        found: list[Json] = self._ask("GET", "/peers")
        return found

    def pause(self) -> None:
        """Stop training until :meth:`resume`."""
        self._ask("POST", "/pause")

    def resume(self) -> None:
        """Go on."""
        self._ask("POST", "/resume")

    def snapshot(self) -> Path:
        """Have the model written now; return the file."""
        answer = self._ask("POST", "/snapshot", limits.SNAPSHOT_REQUEST_DEADLINE_S)
        return Path(answer["path"])

    def model_state(self) -> dict[str, torch.Tensor]:
        """Return the model as it is now: tensors on the CPU by the names of ``state_dict()``.

        Parameters that are tied appear once, so load it with ``strict=False``. Needs torch.
        """
        from swarmnode.worker.snapshots.atoms import MODEL
        from swarmnode.worker.snapshots.restore import read_weights

        _, tensors, _ = read_weights(self.snapshot())
        return {
            name.removeprefix(MODEL): tensor
            for name, tensor in tensors.items()
            if name.startswith(MODEL)
        }

    def finalize(self, merge: str = "mean") -> Json:
        """Merge the models of all members; see ``swarmnode finalize``."""
        path = f"/finalize?merge={merge}"
        found: Json = self._ask("POST", path, limits.FINALIZE_DEADLINE_S)
        return found

    def leave(self) -> None:
        """Tell it to leave its swarm and stop; at the end of the block that happens anyway."""
        self._ask("POST", "/leave")

    def _ask(self, method: str, path: str, deadline_s: float = limits.NODE_ASK_DEADLINE_S) -> Any:
        return ask(self.config, method, path, deadline_s)


class AsyncNode:
    """As :class:`Node`, for Trio and asyncio: nothing blocks the loop, all can be cancelled.

    Attributes:
        node: the blocking one.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    async def wait_ready(self, deadline_s: float = limits.NODE_READY_S) -> Json:
        """See :meth:`Node.wait_ready`. Checkpoint: yes, as all here."""
        until = time.monotonic() + deadline_s
        status: Json = {}
        while (found := await in_thread(lambda: self.node.look(status))) is None:
            if time.monotonic() >= until:
                raise _late(status, deadline_s)
            await sleep(limits.NODE_LOOK_S)
        return found

    async def status(self) -> Json:
        """See :meth:`Node.status`."""
        return await in_thread(self.node.status)

    async def peers(self) -> list[Json]:
        """See :meth:`Node.peers`."""
        return await in_thread(self.node.peers)

    async def pause(self) -> None:
        """See :meth:`Node.pause`."""
        await in_thread(self.node.pause)

    async def resume(self) -> None:
        """See :meth:`Node.resume`."""
        await in_thread(self.node.resume)

    async def snapshot(self) -> Path:
        """See :meth:`Node.snapshot`."""
        return await in_thread(self.node.snapshot)

    async def model_state(self) -> dict[str, torch.Tensor]:
        """See :meth:`Node.model_state`."""
        return await in_thread(self.node.model_state)

    async def finalize(self, merge: str = "mean") -> Json:
        """See :meth:`Node.finalize`."""
        return await in_thread(lambda: self.node.finalize(merge))

    async def leave(self) -> None:
        """See :meth:`Node.leave`."""
        await in_thread(self.node.leave)


class Joining:
    """What :meth:`Node.join` returns: ``with`` gives a Node, ``async with`` an AsyncNode."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    def __enter__(self) -> Node:
        self._process.start()
        return Node(self._process.config, self._process)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.stop()

    async def __aenter__(self) -> AsyncNode:
        return AsyncNode(self.__enter__())

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stop: Callable[[], None] = self._process.stop
        await in_thread_to_the_end(stop)


def _late(status: Json, deadline_s: float) -> DeadlineExceeded:
    doing = f"{status['state']}: {status['reason']}" if status else "it does not answer yet"
    return DeadlineExceeded(f"waiting for the node to be ready ({doing})", deadline_s)
