"""A loop, driven step by step with a real socketpair and a real segment in one process."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from concurrent.futures import wait

import torch

from swarmnode import limits
from swarmnode.ipc.control import (
    Apply,
    Configure,
    NoView,
    PostedIntent,
    Release,
    SlotReady,
    TakeView,
    Weigh,
    Weighed,
    decode_from_worker,
    encode_message,
)
from swarmnode.ipc.records import Partner
from swarmnode.ipc.segment import Owner, Segment
from swarmnode.strategies.pair_average import PairAverage
from swarmnode.tasks.synthetic import Synthetic
from swarmnode.worker.channel import Channel
from swarmnode.worker.model.prepare import Surroundings
from swarmnode.worker.model.state import build_state
from swarmnode.worker.snapshots.saver import Saver
from swarmnode.worker.snapshots.snapshot import SnapshotStore
from swarmnode.worker.training.loop import Loop

DIM = 8
ME, PEER, THIRD = (bytes([n]) * 32 for n in (1, 2, 3))
XID = b"x" * 16


class Rig:
    """A loop, and the daemon's ends of its socket and segment. Pair averaging, every = 2.

    ``clock``: how long pauses are; by default none takes any time, so all is done at once.
    """

    def __init__(
        self,
        directory,
        steps_max=0,
        strategy=PairAverage,
        settings=None,
        topology="",
        dim=DIM,
        recipe=None,
        task_type=Synthetic,
        has_public_probe=False,
        clock=lambda: 0.0,
        store=SnapshotStore,
    ):
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self._inbox = b""
        task = task_type({"dim": dim})
        self.state = build_state(task, swarm_seed=0, device="cpu", recipe=recipe)
        self.state.has_public_probe = has_public_probe
        self.channel = Channel(theirs)
        self.store = store(directory)
        self.strategy = strategy({"every": 2} if settings is None else settings, self.x)
        configure = Configure(
            task="synthetic",
            task_config={},
            strategy=strategy.name,
            strategy_settings={},
            swarm_seed=0,
            shard_seed=1,
            snapshot_dir="",
            self_id=ME,
            topology=topology,
        )
        surroundings = Surroundings(configure, self.state, self.strategy)
        self.segment = Segment.create()
        worker_segment = Segment(os.dup(self.segment.fd))
        words = self.x.element_size() // 4
        payload_numel = words * self.strategy.payload_numel()
        worker_segment.format(2 * payload_numel, limits.SLOTS_PER_WORKER)
        self.segment.map()
        self.loop = Loop(
            self.state,
            self.strategy,
            surroundings=surroundings,
            channel=self.channel,
            segment=worker_segment,
            saver=Saver(self.store, self.channel.send),
            rng=random.Random(0),
            steps_max=steps_max,
            clock=clock,
        )
        self._batches = self.state.batches(0)
        self._theirs, self._worker_segment = theirs, worker_segment
        self._tickets = 0

    @property
    def x(self):
        return self.state.arena.flat

    def step(self, n=1):
        for _ in range(n):
            self.loop.train_step(next(self._batches))

    # --- the daemon's side -------------------------------------------------------------------

    def send(self, *messages):
        for message in messages:
            if isinstance(message, Apply | Release):
                self.segment.hand_over(message.slot, message.generation, Owner.WORKER)
            self.socket.sendall(encode_message(message))

    def tell(self, *messages):
        """Have the loop obey messages between two steps, and nothing else."""
        self.send(*messages)
        for message in self.channel.poll():
            self.loop.obey(message)

    def received(self, kind=object):
        """Return what the loop has sent since, in order."""
        with contextlib.suppress(BlockingIOError):
            self._inbox += self.socket.recv(1 << 20)
        messages = []
        while len(self._inbox) >= (end := 4 + int.from_bytes(self._inbox[:4], "little")):
            messages.append(decode_from_worker(self._inbox[4:end]))
            self._inbox = self._inbox[end:]
        return [message for message in messages if isinstance(message, kind)]

    def intent(self):
        """Return the one intent that the loop has made since."""
        (intent,) = self.received(PostedIntent)
        return intent

    def ask(self, intent, peer=PEER, **about):
        """Ask for the views of an intent; return the SlotReady or NoView."""
        self._tickets += 1
        fields = {"round": intent.round, "base_version": intent.base_version} | about
        self.tell(TakeView(ticket=self._tickets, number=intent.number, peer=peer, **fields))
        (answer,) = self.received(SlotReady | NoView)
        assert answer.ticket == self._tickets
        return answer

    def halves(self, ready):
        """Return (own views, room for what comes) of a lent slot: [payload_numel]."""
        self.segment.check(ready.slot, ready.generation, Owner.DAEMON)
        own, room = self.segment.halves(ready.slot)
        own, room = (torch.frombuffer(half, dtype=self.x.dtype) for half in (own, room))
        return own, room

    def weigh(self, ready, peer=PEER, step=0):
        """Say that all of a partner's views is there; return what the worker thinks of it."""
        self.tell(Weigh(ready.slot, ready.generation, Partner(peer=peer, step=step, tokens=0)))
        (answer,) = self.received(Weighed)
        assert (answer.slot, answer.generation) == (ready.slot, ready.generation)
        return answer

    def apply(self, ready, xid=XID, peer=PEER, present=(), step=0):
        partner = Partner(peer=peer, step=step, tokens=0) if peer is not None else None
        self.tell(
            Apply(
                slot=ready.slot,
                generation=ready.generation,
                xid=xid,
                partner=partner,
                present=present,
            )
        )

    def release(self, ready, why="aborted"):
        self.tell(Release(slot=ready.slot, generation=ready.generation, why=why))

    # --- the end -----------------------------------------------------------------------------

    def wait_saved(self):
        """Wait for the snapshot that is being written, and let the loop say so."""
        wait([self.loop.saver._save.written])
        self.loop.saver.save_when_due(self.state, self.loop.strategy, last=False)

    def close(self):
        self.loop.saver.__exit__()
        self.store.close()
        self.socket.close()
        self._theirs.close()
        self.segment.close()
        self._worker_segment.close()
