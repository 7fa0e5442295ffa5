"""A strategy in a worker's hands, and a daemon that gives it whatever a peer can make it give.

What the daemon checks before the worker sees it is checked here by the same functions: codecs
carry finite numbers only, views of the size of weights are measured, and records on the wire have
bounds. All else is drawn from what breaks arithmetic: the ends of ranges, what no integer is, what
overflows when it is squared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from swarmnode import limits
from swarmnode.errors import MalformedMessage, WorkerError
from swarmnode.ipc.control import Apply, PostedIntent, Release, SlotReady, TakeView, Weigh, Weighed
from swarmnode.ipc.records import Partner
from swarmnode.ipc.segment import Owner, Segment
from swarmnode.strategies.base import Context, Meta, Record, StepInfo, TaskFacts
from swarmnode.strategies.registry import build_strategy
from swarmnode.tensor import coded
from swarmnode.tensor.codec import get_codec
from swarmnode.tensor.layout import Layout
from swarmnode.tensor.magnitude import Scale, measure, own_scale, refusal
from swarmnode.worker.exchange.handoff import Handoff
from swarmnode.worker.exchange.intents import PendingIntents

Values = npt.NDArray[np.float32]
T = TypeVar("T")

NUMEL = 64
ME = bytes(32)
PEERS = tuple(bytes([n]) * 32 for n in range(1, 6))
_COUNTS = (0, 1, 2, 7, 2**24 - 1, 2**24, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1)
_WEIGHTS = (5e-324, 1e-300, 1e-9, 1.0, 1e9, 1e18)
_FLOATS = (
    *(0.0, -0.0, 0.5, 1.0, -1.0, 7.0, 2.0**24 - 1, 2.0**24, -(2.0**24), 2.0**31, 2.0**53, 2.0**63),
    *(1e-45, 1.2e-38, 1e19, 1e20, 1e30, 3.4e38, -3.4e38),
)
_BYTES = (b"", b"\0" * 32, b"\xff" * 32, b"\0" * 8, b"\x7f" + b"\xff" * 31)
_RECORD_BYTES_MAX = 64


class WorkerBench:
    """One worker's strategy, which lends, weighs and applies.

    Attributes:
        applied, refused: exchanges, by what became of them.
    """

    def __init__(self, name: str, settings: dict[str, Any], seed: int) -> None:
        self.rng = random.Random(f"{name}/{settings}/{seed}")
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(NUMEL, generator=generator)
        self._goal = torch.randn(NUMEL, generator=generator)
        self.strategy = build_strategy(name, settings, self.x)
        self.strategy.start(
            Context(
                self_id=ME,
                seed=1,
                rng=random.Random(seed),
                layout=Layout.of([("x", (NUMEL,), "float32")]),
                members=(ME, *PEERS),
                facts=TaskFacts("fuzz"),
                probe=self._loss,
                weighs=self.rng.random() < 0.5,  # a guard bans those who lie at every contact
            )
        )
        self.strategy.on_membership((ME, *PEERS))
        self._segment = Segment.create()
        self._segment.format(
            2 * max(1, self.strategy.payload_numel()) * len(PEERS), limits.SLOTS_PER_WORKER
        )
        self._posted: list[PostedIntent] = []
        self._intents = PendingIntents(self.strategy, self._posted.append)
        self._handoff = Handoff(self._segment, self.strategy, self._intents, self._now)
        self._state: Any = SimpleNamespace(step=0, tokens=0)
        self._tickets = 0
        self._next_record = 0
        self.applied = self.refused = 0

    @property
    def steps(self) -> int:
        """Local steps taken."""
        steps: int = self._state.step
        return steps

    def close(self) -> None:
        """Give the segment back."""
        self._segment.close()

    def step(self) -> None:
        """Take a local step, and let a peer do something about what is posted."""
        self.x.lerp_(self._goal, 0.01)
        self._state.step += 1
        self._state.tokens += 1
        step = self._state.step
        info = StepInfo(step, float(step), self._loss(self.x), 0.01)
        self._intents.post(self.strategy.after_step(info), self._state)
        self._intents.offer_answers(self._state)
        self.rng.choice(self._moves)()
        assert bool(torch.isfinite(self.x).all()), "the model is lost"

    @property
    def _moves(self) -> tuple[Callable[[], None], ...]:
        exchanges = (self._exchange,) * 15
        return (*exchanges, self._call, self._stray, self._meet_others, self._pace, self._log)

    def _loss(self, x: torch.Tensor) -> float:
        return float((x - self._goal).double().square().mean())

    # --- what a peer can say -------------------------------------------------------------

    def _count(self) -> int:
        return self.rng.choice((*_COUNTS, self.rng.randrange(64)))

    def _call(self) -> None:
        self.strategy.on_call(self._count())

    def _stray(self) -> None:
        self.strategy.on_stray()

    def _pace(self) -> None:
        self.strategy.set_round_steps(self.rng.choice((1, 1, 2, 3, 10)))

    def _meet_others(self) -> None:
        others = self.rng.sample(PEERS, self.rng.choice((0, 1, 5, 5, 5)))
        self.strategy.on_membership(tuple(sorted((ME, *others))))

    def _log(self) -> None:
        records = [
            Record(peer, self.rng.randbytes(self.rng.randrange(_RECORD_BYTES_MAX)), self._count())
            for peer in sorted(self.rng.sample(PEERS, 2))
        ]
        self.strategy.on_records(self.strategy.log_round(), records)

    # --- an exchange ---------------------------------------------------------------------

    def _exchange(self) -> None:
        alive = [each for each in self._posted if self._intents.find(each.number) is not None]
        self._posted[:] = alive
        offered = [each for each in alive if each.kind != "log"]
        if not offered:
            return
        intent = self.rng.choice(offered)
        partner = self._partner(intent)
        self._tickets += 1
        round_number = self._either(intent.round, self._count())
        order = TakeView(
            self._tickets,
            intent.number,
            partner.peer,
            round_number,
            partner.base_version,
            partner.step,
            partner.tokens,
            partner.weight,
        )
        self._handoff.lend(order)
        (lent,) = self._handoff.go_on()
        if isinstance(lent, SlotReady):
            self._deliver(intent, lent, partner)

    def _now(self) -> Meta:
        steps = self._state.step
        return Meta(steps, steps, float(steps))

    def _partner(self, intent: PostedIntent) -> Partner:
        """Return what a peer says of itself: mostly what is usual, or no exchange gets far."""
        return Partner(
            self.rng.choice(PEERS),
            self._either(self._state.step, self._count()),
            self._either(self._state.tokens, self._count()),
            self._either(1.0, self.rng.choice(_WEIGHTS)),
            self._either(intent.base_version, self.rng.choice(_BYTES)),
        )

    def _either(self, usual: T, odd: T) -> T:
        return usual if self.rng.random() < 0.85 else odd

    def _deliver(self, intent: PostedIntent, lent: SlotReady, partner: Partner) -> None:
        slot = self._segment.slot_view(lent.slot)
        own, room = np.frombuffer(slot, dtype=np.float32).reshape(2, -1)
        is_of_many = intent.kind in ("group", "gather")
        if intent.kind == "gather":
            is_plausible = self._fill_messages(intent, room)
        else:
            is_plausible = self._fill_views(intent, own, room, lent)
        if is_plausible and intent.kind == "pair":
            self._handoff.weigh(Weigh(lent.slot, lent.generation, partner))
            (weighed,) = self._handoff.go_on()
            assert isinstance(weighed, Weighed)
            is_plausible = not weighed.refusal
        self._segment.hand_over(lent.slot, lent.generation, Owner.WORKER)
        only_gives = intent.kind == "pull" and intent.is_open
        if only_gives or not is_plausible or self.rng.random() < 0.1:
            self.refused += 1
            self._handoff.release(Release(lent.slot, lent.generation, "refused"))
            return
        self.applied += 1
        present = tuple(sorted((ME, *PEERS))) if is_of_many else ()
        self._handoff.take(
            Apply(
                lent.slot,
                lent.generation,
                self._tickets.to_bytes(16, "big"),
                None if is_of_many else partner,
                present,
            )
        )
        self._handoff.merge_due(self._state.step, at_once=True)
        self._handoff.go_on()

    def _fill_views(self, intent: PostedIntent, own: Values, room: Values, lent: SlotReady) -> bool:
        """Write what a partner sends; return whether the daemon lets it through."""
        begin, is_plausible = 0, True
        scale = Scale(lent.weights_rms, lent.weights_largest)
        for view in intent.views:
            part = slice(begin, begin + view.numel)
            room[part] = self._hostile(own[part])
            begin += view.numel
            if view.is_scaled:
                beside = own_scale(measure(np.ascontiguousarray(own[part])), scale, view.numel)
                theirs = measure(np.ascontiguousarray(room[part]))
                is_plausible &= not refusal(theirs, beside, view.name)
        return is_plausible

    def _hostile(self, own: Values) -> Values:
        """Return finite float32 values, as a codec carries them."""
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return np.full_like(own, rng.choice(_FLOATS))
            case 1:
                return np.array([rng.choice(_FLOATS) for _ in own], dtype=np.float32)
            case 2:
                found = own.copy()
                if len(found):
                    found[rng.randrange(len(found))] = rng.choice(_FLOATS)
                return found
            case 3:
                return np.array([rng.gauss(0, 1) for _ in own], dtype=np.float32)
        scaled = own.astype(np.float64) * rng.choice((-10.0, -1.0, 0.0, 0.9, 1.0, 1.1, 50.0))
        return np.clip(scaled, -3.4e38, 3.4e38).astype(np.float32)

    def _fill_messages(self, intent: PostedIntent, room: Values) -> bool:
        """Write coded messages of all members, each of them valid by its codec."""
        codec = get_codec(intent.views[0].codec)
        numel = intent.views[0].numel
        at, data = 0, room.view(np.uint8)
        for _ in (ME, *PEERS):
            message = bytearray(coded.coded_bytes(codec, numel))
            values = self._hostile(np.zeros(numel, np.float32))
            try:
                for payload, floats in coded.parts(codec, message, values):
                    codec.encode(floats, payload)
                for _ in range(self.rng.randrange(3)):
                    message[self.rng.randrange(len(message))] = self.rng.randrange(256)
                for payload, n_elems in coded.sizes(codec, message, numel):
                    codec.validate(payload, n_elems)
            except (MalformedMessage, WorkerError):
                return False
            data[at : at + len(message)] = np.frombuffer(bytes(message), np.uint8)
            at += len(message)
        return True
