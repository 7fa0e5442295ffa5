"""Token buckets: a rate with a burst, of one thing or of many by name."""

from __future__ import annotations

import pytest

from swarmnode import limits
from swarmnode.protocol.blobs.bucket import Rates, TokenBucket

# A bucket says a moment after the exact one, so that none wakes just before it.
SOON = 1e-5


def test_a_bucket_without_a_burst_of_its_own_has_that_of_blobs() -> None:
    bucket = TokenBucket(7.5)
    assert bucket.has(7.5 * limits.BLOB_BURST_S, 0.0)
    assert not bucket.has(7.5 * limits.BLOB_BURST_S + 0.1, 50.0)


def test_one_taking_may_overdraw_it_and_no_second_one_before_it_is_paid() -> None:
    bucket = TokenBucket(10.0, 5.0)
    assert bucket.try_take(5, 0.0)
    assert bucket.try_take(20, 0.0), "nothing is owed"
    assert not bucket.try_take(0, 0.0)
    assert bucket.free_at() == pytest.approx(2.0, abs=SOON)
    assert bucket.free_at() > 2.0
    assert not bucket.try_take(1, 1.9)
    assert bucket.try_take(1, 2.0)


def test_what_cannot_wait_is_paid_for_later() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.spend(15, 0.0)
    bucket.spend(10, 0.5)
    assert bucket.free_at() == pytest.approx(0.5 + 1.5, abs=SOON)
    assert bucket.free_at(5) == pytest.approx(0.5 + 2.0, abs=SOON)


def test_it_says_when_so_much_is_free() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.spend(3, 100.0)
    assert bucket.free_at(2) == pytest.approx(100.0, abs=SOON)
    assert bucket.free_at(4) == pytest.approx(100.2, abs=SOON)
    assert bucket.has(2, 100.0)
    assert not bucket.has(4, 100.1)
    assert bucket.has(4, 100.2)


def test_it_is_full_when_everything_was_paid_back() -> None:
    bucket = TokenBucket(10.0, 5.0)
    assert bucket.is_full(0.0)
    bucket.spend(5, 0.0)
    assert not bucket.is_full(0.4)
    assert bucket.is_full(0.5)
    assert bucket.is_full(9.0)
    assert not bucket.has(6, 9.0), "silence saves up one burst, not more"


def test_at_another_rate_what_is_owed_stays_owed_and_what_is_saved_keeps_to_the_burst() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.spend(25, 0.0)
    bucket.change(5.0, 100.0, 1.0)
    assert bucket.free_at() == pytest.approx(3.0, abs=SOON)
    assert bucket.has(35, 10.0)
    bucket.change(1.0, 2.0, 10.0)
    assert bucket.has(2, 10.0)
    assert not bucket.has(3, 10.0)
    assert bucket.is_full(10.0)
    bucket.spend(3, 10.0)
    assert bucket.free_at() == pytest.approx(11.0, abs=SOON)


def test_each_name_has_its_own_share_and_too_many_names_are_refused() -> None:
    rates: Rates[str] = Rates(per_s=1.0, burst=1.0, names_max=2)
    assert [rates.try_take("anna", 0.0) for _ in range(3)] == [True, True, False]
    assert rates.try_take("bert", 0.0)
    assert not rates.try_take("cleo", 0.0)
    assert len(rates) == 2
    assert not rates.try_take("anna", 0.5)
    assert rates.try_take("bert", 0.5), "one that is known needs no room"
    assert rates.try_take("bert", 1.5)
    assert rates.try_take("cleo", 2.0), "of Anna's share nothing is used any more"
    assert len(rates) == 2
    assert not rates.try_take("anna", 2.0)
    assert not rates.try_take("dora", 2.0)
