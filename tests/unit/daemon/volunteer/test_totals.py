"""What a node gave: over restarts and kills, never twice, and lost by 30 s at most."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import trio
from trio.testing import MockClock

from swarmnode import limits
from swarmnode.daemon.volunteer.totals import Given, TotalsKeeper, TotalsView
from swarmnode.env import Env
from swarmnode.store.volunteer import (
    TOTALS_FILE_BYTES_MAX,
    TOTALS_SWARMS_MAX,
    Book,
    Mark,
    SwarmTotals,
    Totals,
    load_totals,
    save_totals,
)


@dataclass
class Life:
    """One life of a node that trains a step of 10 tokens a second."""

    path: Path
    swarm: str = "demo"
    now: Given = field(default_factory=lambda: Given(None, False, True, 0, 0, 0))

    async def live(self, seconds: float, *, killed: bool = False, begin: int = 0) -> TotalsView:
        """Run so long; a killed one has no last word."""
        keeper = TotalsKeeper(self.path, self.swarm, Env(trio.current_time, lambda: 0.0))
        began_s = trio.current_time()

        def given() -> Given:
            step = begin + int(trio.current_time() - began_s)
            return replace(
                self.now,
                mark=Mark(step, 10 * step),
                exchanges=step - begin,
                sent_bytes=step - begin,
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run, given)
            await trio.sleep(seconds)
            shown = keeper.shown(given())
            if killed:
                keeper._save = lambda _book: None  # type: ignore[method-assign]
            nursery.cancel_scope.cancel()
        return shown


async def test_totals_go_on_after_an_orderly_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "totals.json"
    first = await Life(path).live(100)
    assert (first.steps, first.tokens, first.exchanges_committed) == (100, 1000, 100)
    assert 100 - limits.TOTALS_LOOK_S <= first.trained_s <= 100  # from the first look on
    second = await Life(path).live(50, begin=100)
    assert (second.steps, second.tokens, second.exchanges_committed) == (150, 1500, 150)
    assert second.sent_bytes == 150


async def test_a_kill_costs_30_s_and_nothing_is_counted_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "totals.json"
    await Life(path).live(100, killed=True)
    saved = load_totals(path).all
    assert 70 <= saved.steps <= 100
    # Its snapshot is older than what was counted: steps up to there come a second time.
    after = await Life(path).live(80, begin=60)
    assert after.steps == 140
    assert after.tokens == 1400
    assert after.exchanges_committed == saved.exchanges_committed + 80


async def test_a_model_of_a_peer_counts_from_0(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "totals.json"
    await Life(path).live(100)
    fetched = Life(path)
    fetched.now = replace(fetched.now, is_anew=True)
    assert (await fetched.live(20)).steps == 120


async def test_each_swarm_and_all(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "totals.json"
    await Life(path, "one").live(10)
    shown = await Life(path, "two").live(20)
    assert shown.steps == 30
    assert {name: each.steps for name, each in shown.swarms.items()} == {"one": 10, "two": 20}


async def test_time_without_training_is_not_trained(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    paused = Life(tmp_path / "totals.json")
    paused.now = replace(paused.now, is_training=False)
    assert (await paused.live(60)).trained_s == 0.0


async def test_a_night_in_which_the_machine_slept_is_not_trained(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:

        async def sleep() -> None:
            await trio.sleep(50)
            autojump_clock.jump(8 * 3600.0)

        nursery.start_soon(sleep)
        life = Life(tmp_path / "totals.json")
        shown = await life.live(8 * 3600.0 + 100)
    assert 90 <= shown.trained_s <= 100 + 2 * limits.TOTALS_LOOK_S


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "totals.json"
    path.write_text('{"all": {"steps": -3}}')
    assert load_totals(path) == Book()
    assert (tmp_path / "totals.json.damaged").exists()
    assert not path.exists()


def test_the_sum_keeps_swarms_that_are_listed_no_more(tmp_path: Path) -> None:
    path, n = tmp_path / "totals.json", TOTALS_SWARMS_MAX + 5
    swarms = {f"{i:064}": SwarmTotals(Totals(steps=2**62, trained_s=float(i))) for i in range(n)}
    save_totals(path, Book(Totals(steps=n), swarms))
    assert path.stat().st_size < TOTALS_FILE_BYTES_MAX
    book = load_totals(path)
    assert book.all.steps == n
    assert set(book.swarms) == set(sorted(swarms)[5:])
