"""The history of losses is bounded, and reaches back to the start however long a node lives."""

from __future__ import annotations

import itertools

from swarmnode import limits
from swarmnode.daemon.status.dashboard import LossHistory, Sample


def sample(at: float, **peers: float) -> Sample:
    return Sample(unix_s=at, step=int(at), members=3, own=1.0, swarm=2.0, peers=peers)


def test_samples_come_back_in_order() -> None:
    history = LossHistory()
    assert history.newest is None
    for at in range(5):
        history.add(sample(at, a=0.5))
    assert [each.unix_s for each in history.whole().samples] == [0, 1, 2, 3, 4]
    assert history.newest is not None
    assert history.newest.peers == {"a": 0.5}
    assert history.whole().generation == 0


def test_a_long_life_keeps_its_beginning_and_its_end() -> None:
    history = LossHistory(samples_max=16)
    at, interval_s = 0.0, history.interval_s
    for _ in range(100):
        history.add(sample(at))
        at += history.interval_s
    whole = history.whole()
    assert len(whole.samples) <= 16
    assert whole.generation > 5
    assert history.interval_s == interval_s * 2**whole.generation
    times = [each.unix_s for each in whole.samples]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] == at - history.interval_s
    gaps = [late - early for early, late in itertools.pairwise(times)]
    assert max(gaps) <= 2 * history.interval_s


def test_the_newest_sample_survives_thinning() -> None:
    history = LossHistory(samples_max=4)
    for at in range(5):
        history.add(sample(at))
    assert history.whole().generation == 1
    assert [each.unix_s for each in history.whole().samples] == [0, 2, 4]


def test_the_number_of_curves_is_bounded() -> None:
    history = LossHistory()
    history.add(sample(0, **{f"p{n}": 1.0 for n in range(100)}))
    history.add(sample(1, late=1.0, p0=2.0))
    first, second = history.whole().samples
    assert len(first.peers) == limits.DASHBOARD_CURVES_MAX
    assert second.peers == {"p0": 2.0}


def test_a_curve_that_has_no_point_left_makes_room() -> None:
    history = LossHistory(samples_max=4)
    history.add(sample(0))
    history.add(sample(1, gone=1.0))
    for at in range(2, 40):
        history.add(sample(at, **{f"p{n}": 1.0 for n in range(limits.DASHBOARD_CURVES_MAX)}))
    newest = history.newest
    assert newest is not None
    assert len(newest.peers) == limits.DASHBOARD_CURVES_MAX
    assert all("gone" not in each.peers for each in history.whole().samples)
