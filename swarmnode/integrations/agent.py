"""A training loop of your own takes part in a swarm, as the worker of a node of this machine::

    agent = SwarmAgent.join(LINK, model, optimizer, home="node")
    for batch in batches:
        loss = train_on(batch)          # ends with optimizer.step()
        if not agent.step(loss.item(), tokens=batch.numel()):
            break                       # the node was told to leave
    agent.close()

The node is a process of its own, and the model stays in yours: its parameters are moved into one
vector, which every :meth:`SwarmAgent.step` merges with what was exchanged meanwhile. A step is
never held up by the network; it is while the node is paused.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from swarmnode import limits
from swarmnode.api.node import Node
from swarmnode.errors import ConfigError, DeadlineExceeded, SpecMismatch, SwarmNodeError
from swarmnode.ipc.control import Configure, WorkerFailed
from swarmnode.ipc.segment import Segment
from swarmnode.tasks.program import Evaluate, Program
from swarmnode.tensor.snapshot_format import find_snapshots
from swarmnode.worker.begin import begin
from swarmnode.worker.channel import Channel, DaemonGone
from swarmnode.worker.failures import classify
from swarmnode.worker.main import LAST_WORDS_S, wait_configure
from swarmnode.worker.model.arena import Arena
from swarmnode.worker.model.device import Device
from swarmnode.worker.model.state import TrainState
from swarmnode.worker.training.outer import OuterLoop

# A program that ends waits so long for the exchanges that it has lent its weights to.
_PROGRAM_END_S = 10.0


class SwarmAgent:
    """The worker of ``node``, in this process. Use it in a ``with`` block, or :meth:`close` it.

    Borrows: model and optimizer. The parameters that require a gradient must be float32, and lie
    where they will be trained; they keep their identity, so optimizers go on knowing them.

    Args:
        node: of a swarm that was made by :func:`create_swarm`.
        evaluate: returns the loss of the model on a held-out probe; needed for `finalize`.

    Raises:
        ConfigError: the swarm is of another kind, or the model cannot be trained together.
        SpecMismatch: it is another model than the swarm's, or begins from other weights.
        DeadlineExceeded: the node does not come up, or has a program already.
    """

    def __init__(
        self,
        node: Node,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        evaluate: Evaluate | None = None,
        deadline_s: float = limits.NODE_READY_S,
    ) -> None:
        _refuse_several_processes()
        self._own_node = ExitStack()  # closed last: the one that :meth:`join` started
        self._stack = ExitStack()
        with ExitStack() as stack:
            channel, segment = _connect(node, deadline_s)
            stack.enter_context(closing(segment))
            stack.enter_context(closing(channel))
            try:
                self._loop = stack.enter_context(
                    _begin(channel, segment, model, optimizer, evaluate)
                )
                self._loop.begin()
            except DaemonGone as error:
                raise SwarmNodeError(f"the node went away before it trained: {error}") from error
            except SwarmNodeError as error:
                kind, message = classify(error)
                with contextlib.suppress(DaemonGone):
                    channel.send(WorkerFailed(kind=kind, message=message))
                    channel.flush(LAST_WORDS_S)
                raise
            self._stack = stack.pop_all()
        self._channel = channel
        self._is_open = True

    @classmethod
    def join(
        cls,
        link: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        evaluate: Evaluate | None = None,
        **settings: Any,
    ) -> SwarmAgent:
        """Return the worker of a node that it starts, and that ends with it.

        Args:
            settings: as of :meth:`swarmnode.Node.join`.

        Raises:
            SwarmNodeError: as of both.
        """
        with ExitStack() as stack:
            node = stack.enter_context(Node.join(link, **settings))
            agent = cls(node, model, optimizer, evaluate=evaluate)
            agent._own_node = stack.pop_all()
        return agent

    @property
    def steps(self) -> int:
        """Local steps of this node, those before a restart included."""
        return self._loop.state.step

    @property
    def has_recipe(self) -> bool:
        """Whether the swarm sets the learning rates of the optimizer."""
        return self._loop.state.recipe is not None

    @property
    def is_taking_part(self) -> bool:
        """Whether :meth:`step` still does something."""
        return self._is_open and not self._loop.is_over

    def step(self, loss: float | None = None, *, tokens: int = 1) -> bool:
        """Say that the optimizer has taken a step; merge and exchange what is due.

        Blocks while the node is paused.

        Args:
            loss: of the step; None: unknown.
            tokens: what the step counts for in the swarm's progress: tokens, or examples.

        Returns:
            False: the node was told to leave, or is gone. All is saved; end, or train alone.

        Raises:
            Diverged: the loss was not finite for several steps in a row.
            ConfigError: something else changes the learning rate that the swarm's recipe sets.
        """
        if not self.is_taking_part:
            return False
        try:
            self._loop.took_step(loss, tokens)
        except DaemonGone:
            self._loop.end()
        if self._loop.is_over:
            self.close()
        return self.is_taking_part

    def note_loss(self, loss: float) -> None:
        """Say what the training loss is now, for steps that did not."""
        self._loop.reporter.loss = loss

    def note_evaluation(self, loss: float) -> None:
        """Say what the loss on held-out data is now."""
        self._loop.reporter.eval_loss = loss

    def close(self) -> None:
        """Take part no more: end the exchanges under way, and save. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        with self._own_node, self._stack:
            self._loop.leave(_PROGRAM_END_S)
            with contextlib.suppress(DaemonGone):
                self._channel.flush(LAST_WORDS_S)

    def __enter__(self) -> SwarmAgent:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def weights_hash(flat: torch.Tensor) -> str:
    """Return what a manifest says about the weights to begin from: float32 [numel]."""
    return hashlib.sha256(flat.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _begin(
    channel: Channel,
    segment: Segment,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    evaluate: Evaluate | None,
) -> contextlib.AbstractContextManager[OuterLoop]:
    configure = wait_configure(channel)
    task = Program(configure.task_config, evaluate=evaluate)
    arena = Arena(model)
    _check_layout(configure, arena)
    _check_weights(configure, task, arena)
    device = Device(arena.flat.device)
    state = TrainState(
        task, model, arena, optimizer, device, configure.swarm_seed, recipe=configure.recipe
    )
    return begin(
        configure,
        state,
        channel,
        segment,
        threads=torch.get_num_threads(),
        loop_type=OuterLoop,
        n_shards=0,
    )


def _check_layout(configure: Configure, arena: Arena) -> None:
    if configure.layout_hash not in (b"", arena.layout.layout_hash):
        raise SpecMismatch(
            "the swarm's model has other parameters than this program's, by their names and"
            f" shapes; here it has {arena.numel:,} numbers: build the model that the swarm trains"
        )


def _check_weights(configure: Configure, task: Program, arena: Arena) -> None:
    """Refuse to begin anew from weights that no other node began from."""
    expected = task.config.weights
    if not expected or find_snapshots(Path(configure.snapshot_dir)):  # those come first
        return
    if weights_hash(arena.flat) != expected:
        raise SpecMismatch(
            "the model begins from other weights than the swarm's: load the same checkpoint, or"
            " call torch.manual_seed with the same number before it is built"
        )


def _refuse_several_processes() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = torch.distributed.get_world_size()
        if size > 1:
            raise ConfigError(
                f"expected one training process for one node, got {size}: train with one process,"
                " or let each be a node of its own, with a home of its own"
            )


def _connect(node: Node, deadline_s: float) -> tuple[Channel, Segment]:
    """Wait until the node wants a program; return the way to it, and its slots."""
    path = node.config.paths.program_socket
    until = time.monotonic() + deadline_s
    status: dict[str, object] = {}
    while (sock := _try_connect(path)) is None:
        node.look(status)
        if status.get("worker_pid") is not None:
            raise ConfigError(
                f"swarm {status.get('swarm')}: its nodes train by themselves, a program cannot"
                " take part; make a swarm for it with swarmnode.integrations.swarm.create_swarm"
            )
        if time.monotonic() >= until:
            raise DeadlineExceeded(
                "waiting until the node wants a program that trains"
                f" ({status.get('state', 'no answer')}: {status.get('reason', 'not up')})",
                deadline_s,
            )
        node.wait_a_moment()
    sock.settimeout(limits.NODE_ASK_DEADLINE_S)
    try:
        _, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    except OSError:
        descriptors = []
    if not descriptors:
        sock.close()
        raise SwarmNodeError("the node hung up on the program: see node.log in its home")
    return Channel(sock), Segment(descriptors[0])


def _try_connect(path: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    return sock
