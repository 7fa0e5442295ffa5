"""A worker whose weights, reports and snapshots are lies by the time that the daemon sees them.

It stands between the daemon and a worker, real or simulated, which trains honestly behind it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from swarmnode.daemon.worker.link import StartWorker, WorkerLink
from swarmnode.ipc.control import (
    Configure,
    FromWorker,
    PostedIntent,
    Progress,
    SlotReady,
    SnapshotSaved,
    TakeView,
    ToWorker,
    WorkerReady,
)
from swarmnode.tasks.text import load_corpus, split

Values = npt.NDArray[np.floating]
Retrain = Callable[[Configure], Configure]  # what a worker is told to learn from
Forge = Callable[[str, Values], Values]  # name of the view, what an honest member sends
_HUGE = 1e30
_ASCII_END = 128
_STEPS_CLAIMED = 2**62
_FLOATS: dict[int, npt.DTypeLike] = {4: np.float32, 8: np.float64}


def sign_flip(_name: str, values: Values) -> Values:
    """Turn the model or the update around."""
    return -values


def scaled(_name: str, values: Values) -> Values:
    """Turn it around, ten times as long."""
    return -10 * values


def huge(_name: str, values: Values) -> Values:
    """As large as a codec carries, all of it finite."""
    return np.full_like(values, _HUGE)


class Stale:
    """What was sent in the first rounds, for ever."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], Values] = {}

    def __call__(self, name: str, values: Values) -> Values:
        """Return what was sent first under this name."""
        return self._first.setdefault((name, len(values)), values.copy())


def honest(_name: str, values: Values) -> Values:
    """Return what an honest member sends."""
    return values


class LyingLink:
    """A WorkerLink in front of another one.

    Args:
        forge: changes what is sent to others.
        is_boasting: what it says of itself is beyond what any member can have done.
        spoil: changes a snapshot before it is offered; None: it is as the worker wrote it.
    """

    def __init__(
        self,
        link: WorkerLink,
        forge: Forge,
        *,
        is_boasting: bool = False,
        spoil: Callable[[Path], None] | None = None,
    ) -> None:
        self._link = link
        self._forge = forge
        self._is_boasting = is_boasting
        self._spoil = spoil
        self._intents: dict[int, PostedIntent] = {}
        self._tickets: dict[int, int] = {}
        self._float: npt.DTypeLike = np.float32

    @property
    def pid(self) -> int | None:
        """That of the worker behind it."""
        return self._link.pid

    async def send(self, message: ToWorker) -> None:
        """Pass a message on."""
        if isinstance(message, TakeView):
            self._tickets[message.ticket] = message.number
        await self._link.send(message)

    async def receive(self) -> FromWorker:
        """Return the next message, or a lie in its place."""
        message = await self._link.receive()
        match message:
            case WorkerReady(value_bytes=value_bytes):
                self._float = _FLOATS[value_bytes]
            case PostedIntent(number=number):
                self._intents[number] = message
            case SlotReady(ticket=ticket, slot=slot, generation=generation):
                intent = self._intents[self._tickets.pop(ticket)]
                self._forge_views(intent, self._link.slot_view(slot, generation))
            case Progress() if self._is_boasting:
                return msgspec.structs.replace(
                    message,
                    step=_STEPS_CLAIMED,
                    tokens=_STEPS_CLAIMED,
                    loss=-1e5,
                    eval_loss=-1e5,
                    step_time_s=1e-5,
                )
            case SnapshotSaved(path=path) if self._spoil is not None:
                self._spoil(Path(path))
        return message

    def slot_view(self, slot: int, generation: int) -> memoryview:
        """Return a slot of the worker behind it."""
        return self._link.slot_view(slot, generation)

    def _forge_views(self, intent: PostedIntent, slot: memoryview) -> None:
        values = np.frombuffer(slot.cast("B"), dtype=self._float)
        begin = 0
        for view in intent.views:
            if view.is_scaled:  # counts beside the weights are checked by themselves
                part = values[begin : begin + view.numel]
                part[:] = self._forge(view.name, part)
            begin += view.numel


def as_told(configure: Configure) -> Configure:
    """Return what an honest worker learns from."""
    return configure


def shuffled_text(configure: Configure) -> Configure:
    """Let a worker of `bytes-lm` learn that any byte follows any other.

    The text that is held out is as it was, so its public probe is that of the swarm.
    """
    train, held_out = split(load_corpus(configure.data_dir))
    ascii_only = bytes(byte if byte < _ASCII_END else ord("?") for byte in train)
    shuffled = bytes(np.random.default_rng(0).permutation(np.frombuffer(ascii_only, np.uint8)))
    folder = Path(configure.snapshot_dir) / "shuffled"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_bytes(shuffled + held_out)
    return msgspec.structs.replace(configure, data_dir=str(folder))


def lying(
    start_worker: StartWorker, make: Callable[[WorkerLink], LyingLink], retrain: Retrain = as_told
) -> StartWorker:
    """Return what starts workers and puts a liar before each."""

    @asynccontextmanager
    async def start(configure: Configure) -> AsyncIterator[LyingLink]:
        async with start_worker(retrain(configure)) as link:
            yield make(link)

    return start
