"""What this node gave over all its lives: counted while it runs, kept in its home.

A ``kill -9`` costs the last 30 s of it at most; an orderly end of the node, or an error, nothing,
and what a snapshot makes it train a second time is counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import trio

from swarmnode import limits
from swarmnode.env import Env
from swarmnode.errors import StorageError
from swarmnode.store.volunteer import Book, Mark, SwarmTotals, Totals, load_totals, save_totals
from swarmnode.telemetry.logs import get_logger

_log = get_logger("swarmnode.daemon.volunteer")


@dataclass(frozen=True)
class Given:
    """Counts since the start of the daemon.

    Attributes:
        mark: how far our model is, None while there is none.
        is_anew: this life began with a model of a peer, whose steps count from 0.
    """

    mark: Mark | None
    is_anew: bool
    is_training: bool
    exchanges: int
    sent_bytes: int
    received_bytes: int


class TotalsView(Totals, frozen=True):
    """Over all swarms, and of each by its name: ``totals`` of ``status --json``."""

    swarms: dict[str, Totals] = msgspec.field(default_factory=dict)


class TotalsKeeper:
    """Counts for one swarm, on top of what the home has of all."""

    def __init__(self, path: Path, swarm: str, env: Env) -> None:
        self._path = path
        self._swarm = swarm
        self._env = env
        self._book = _load(path)
        self._seen = Given(None, False, False, 0, 0, 0)
        self._seen_s = env.monotonic()
        self._has_begun = False  # in this life there was a model
        self._said = ""

    async def run(self, given: Callable[[], Given]) -> NoReturn:
        """Count and save until cancelled, and once more then."""
        saved_s = self._env.monotonic()
        try:
            while True:
                await trio.sleep(limits.TOTALS_LOOK_S)
                self._count(given())
                if self._env.monotonic() >= saved_s + limits.TOTALS_SAVE_S:
                    await self._env.in_thread(partial(self._save, self._book))
                    saved_s = self._env.monotonic()
        finally:
            self._count(given())
            self._save(self._book)  # here: nothing may be awaited in an end

    def shown(self, given: Given) -> TotalsView:
        """Return the totals as of now."""
        self._count(given)
        swarms = {name: each.given for name, each in sorted(self._book.swarms.items())}
        return TotalsView(**msgspec.structs.asdict(self._book.all), swarms=swarms)

    def _count(self, given: Given) -> None:
        """Add what has come since the last look."""
        before, self._seen = self._seen, given
        now = self._env.monotonic()
        # Two looks further apart: the daemon, or all of the machine, stood still between them.
        trained_s, self._seen_s = min(now - self._seen_s, 2 * limits.TOTALS_LOOK_S), now
        of_swarm = self._book.swarms.get(self._swarm, SwarmTotals())
        counted, mark = self._mark(of_swarm.mark, given)
        new = Totals(
            mark.step - counted.step,
            mark.tokens - counted.tokens,
            given.exchanges - before.exchanges,
            given.sent_bytes - before.sent_bytes,
            given.received_bytes - before.received_bytes,
            trained_s if given.is_training and before.is_training else 0.0,
        )
        swarms = self._book.swarms | {self._swarm: SwarmTotals(of_swarm.given + new, mark)}
        self._book = Book(self._book.all + new, swarms)

    def _save(self, book: Book) -> None:
        try:
            save_totals(self._path, book)
        except StorageError as error:
            if str(error) != self._said:  # said once: it is tried again and again
                _log.error("the totals of this node are not written down", why=str(error))
            self._said = str(error)

    def _mark(self, counted: Mark, given: Given) -> tuple[Mark, Mark]:
        """Return from where to count, and to where: what was counted is not counted again."""
        if given.mark is None:
            return counted, counted
        if given.is_anew and not self._has_begun:
            counted = Mark()  # none of our steps is in a model that a peer gave
        self._has_begun = True
        step, tokens = max(counted.step, given.mark.step), max(counted.tokens, given.mark.tokens)
        return counted, Mark(step, tokens)


def _load(path: Path) -> Book:
    try:
        return load_totals(path)
    except StorageError as error:  # it is for people to look at: training goes on
        _log.error("totals are counted from 0", why=str(error))
        return Book()
