"""Lives of a store on a disk that forgets: what was acknowledged is there in the next one.

A life looks at what is there, and goes on from it. What it tries and what it was told is noted
between the calls that it makes, so of every moment it is known what must be found after it.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmnode.errors import SwarmNodeError
from swarmnode.testing.disk import Disk, Event, Told
from tests.kits.disk_recorder import Fault, Killed, Recorder

# What the disk keeps of what was not synced: all names but no data is what file systems with
# ordered names and late data do; data without names, those that write each folder on its own.
KEPT = [(1.0, 1.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 0.5), (0.5, 1.0), (0.5, 0.5)]
# A life after a failure is cut short itself in one of so many.
_AGAIN = 4
_TEMPORARY = ("swarmnode-tmp", ".tmp")  # names that nothing has after a life without a fault
_NEVER = 2**60  # no life makes so many calls


class Facts:
    """What may be found: of each subject the last acknowledged value, or one tried since."""

    def __init__(self, first: dict[str, Any], tried: dict[str, list[Any]] | None = None) -> None:
        self._first = first
        self._tried = tried or {}

    def take(self, fact: tuple[str, str, Any]) -> None:
        kind, subject, value = fact
        if kind == "done":
            self._tried[subject] = [value]
        else:
            self._tried.setdefault(subject, [self._first.get(subject)]).append(value)

    def allowed(self, subject: str) -> list[Any]:
        return self._tried.get(subject, [self._first.get(subject)])

    def copy(self) -> Facts:
        return Facts(self._first, {subject: [*values] for subject, values in self._tried.items()})


class Diary:
    """What a life tries and is told."""

    def __init__(self, facts: Facts, tell: Callable[[Any], None], rng: random.Random) -> None:
        self.facts = facts
        self.rng = rng
        self._tell = tell
        self.failures = 0

    def note(self, kind: str, subject: str, value: Any) -> None:
        self._tell((kind, subject, value))
        self.facts.take((kind, subject, value))

    @contextmanager
    def sets(self, subject: str, value: Any) -> Iterator[None]:
        """Try to make ``value`` what is found; a declared error leaves it open whether it is."""
        self.note("tried", subject, value)
        try:
            yield
        except SwarmNodeError:
            self.failures += 1
        else:
            self.note("done", subject, value)

    def found(self, subject: str, value: Any) -> None:
        """Check what is there: the next life must find it, too."""
        allowed = self.facts.allowed(subject)
        assert value in allowed, f"{subject}: found {value!r}, expected one of {allowed!r}"


@dataclass(frozen=True)
class Store:
    """``look`` checks what is there, ``act`` changes it; both go through the disk."""

    look: Callable[[Path, Diary], None]
    act: Callable[[Path, Diary], None]
    first: dict[str, Any] = field(default_factory=dict)


@dataclass
class Campaign:
    """Cuts the lives of one store short, at places that follow from ``seed``."""

    store: Store
    folder: Path
    seed: int
    cuts: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._numbers = itertools.count()

    def power_failures(self, n_cuts: int) -> None:
        """Live two lives, and look what is left of so many moments of them."""
        home, recorder, facts = self._new(None)
        with recorder.attached():
            for _ in range(2):
                self._live(home, recorder, facts)
        self._cut(recorder, Facts(self.store.first), n_cuts)
        shutil.rmtree(home)

    def every_fault(self, code: int, *, lasts: bool, at_most: int, n_cuts: int = 3) -> None:
        """Let the calls of a life fail, each in its turn, or ``at_most`` of them.

        With DEATH, the process is killed before them: the next one finds all that was written,
        synced or not, and must not take for durable what a power failure can still undo.
        """
        n_calls = self._with_fault(Fault(_NEVER, code), 0)
        chosen = range(1, n_calls + 1)
        if n_calls > at_most:
            chosen = sorted(self._rng.sample(chosen, at_most))
        for nth in chosen:
            self._with_fault(Fault(nth, code, lasts), n_cuts)

    def _with_fault(self, fault: Fault, n_cuts: int) -> int:
        seed = self.seed  # the same life each time
        home, recorder, facts = self._new(fault)
        with recorder.attached():
            self._live(home, recorder, facts, random.Random(seed))
            calls = recorder.calls
            recorder.heal()
            # The same machine goes on: a process that starts anew, then a power failure.
            for _ in range(2):
                self._live(home, recorder, facts, random.Random(seed + 1))
        self._cut(recorder, Facts(self.store.first), n_cuts)
        shutil.rmtree(home)
        return calls

    def _new(self, fault: Fault | None) -> tuple[Path, Recorder, Facts]:
        home = self.folder / f"home-{next(self._numbers)}"
        home.mkdir(mode=0o700)
        return home, Recorder(home, fault), Facts(self.store.first)

    def _live(
        self, home: Path, recorder: Recorder, facts: Facts, rng: random.Random | None = None
    ) -> None:
        diary = Diary(facts, recorder.tell, rng or self._rng)
        for part in (self.store.look, self.store.act):
            try:
                part(home, diary)
            except SwarmNodeError:
                if not recorder.is_faulty:
                    raise
                diary.failures += 1
            except (Killed, BaseExceptionGroup) as error:
                if isinstance(error, BaseExceptionGroup) and error.split(Killed)[1] is not None:
                    raise
                diary.failures += 1
                break
        self.failures += diary.failures
        left = [name for _, name in recorder.disk.tree if name.endswith(_TEMPORARY)]
        assert recorder.has_failed or not left, f"left behind: {left}"

    def _cut(self, recorder: Recorder, facts: Facts, n_cuts: int, *, again: bool = True) -> None:
        """Look at what is left of ``n_cuts`` moments, chosen at random and in their order."""
        events = recorder.events[recorder.n_taken :]
        places = sorted(self._rng.choices(range(len(events) + 1), k=n_cuts))
        disk = Disk()
        for event in recorder.events[: recorder.n_taken]:
            disk.apply(event)
        at = 0
        for place in places:
            for event in events[at:place]:
                _take(event, disk, facts)
            at = place
            self._look_at(disk, facts, again=again and self._rng.randrange(_AGAIN) == 0)

    def _look_at(self, disk: Disk, facts: Facts, *, again: bool) -> None:
        names, data = self._rng.choice(KEPT)
        image = self.folder / f"image-{next(self._numbers)}"
        image.mkdir(mode=0o700)
        disk.forget(self._rng, names=names, data=data).write_to(image)
        recorder = Recorder(image)
        known = facts.copy()
        with recorder.attached():
            self.store.look(image, Diary(known, recorder.tell, self._rng))
            if again:
                self.store.act(image, Diary(known, recorder.tell, self._rng))
                self.store.look(image, Diary(known, recorder.tell, self._rng))
        self.cuts += 1
        if again:
            self._cut(recorder, facts.copy(), 2, again=False)
        shutil.rmtree(image)


def _take(event: Event, disk: Disk, facts: Facts) -> None:
    if isinstance(event, Told):
        facts.take(event.fact)
    else:
        disk.apply(event)
