"""Each reason not to train, by hand and on clocks that the test turns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmnode.protocol.volunteer import (
    GPU_QUIET_S,
    MEMORY_PAUSE_S,
    ManualPause,
    PauseReason,
    Policy,
    Readings,
    Rules,
    Verdict,
)
from swarmnode.schedule import parse_schedule
from swarmnode.telemetry.metrics import PAUSE_REASONS

REASONS = get_args(PauseReason)
GB = 10**9
FRIDAY_NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
CALM = Readings()
STRICT = Rules(
    schedule=parse_schedule(("mon-fri 08:00-18:00",)),
    when_gpu_busy=True,
    user_quiet_s=600,
    gpu_celsius_max=80,
    quota_bytes=100 * GB,
    disk_bytes=20 * GB,
    ram_bytes=8 * GB,
    zone=UTC,
)
BAD = Readings(
    on_battery=True,
    metered=True,
    user_quiet_s=60,
    gpu_others_share=0.5,
    gpu_celsius=85,
    month_bytes=100 * GB,
    month_ends_unix_s=FRIDAY_NOON + 10 * 86_400,
    disk_bytes=19 * GB,
    snapshot_bytes=2 * GB,
    worker_bytes=9 * GB,
)


def decide(
    readings: Readings, rules: Rules = STRICT, *, now: float = 0.0, wall: float = FRIDAY_NOON
) -> Verdict:
    return Policy(rules).decide(readings, now, wall)


def test_nothing_holds_a_calm_machine() -> None:
    verdict = decide(CALM)
    assert verdict.may_train
    assert verdict.may_carry_tensors
    assert not verdict.frees_memory
    assert (verdict.reason, verdict.until_unix_s, verdict.sentence()) == ("none", None, "")


@pytest.mark.parametrize(
    ("readings", "reason", "says", "until_s"),
    [
        (Readings(on_battery=True), "battery", "runs on battery", None),
        (Readings(metered=True), "metered", "metered", None),
        (Readings(user_quiet_s=60), "user", "this machine is in use", 540),
        (Readings(gpu_others_share=0.5), "gpu-busy", "others use 50%", GPU_QUIET_S),
        (Readings(gpu_celsius=80), "gpu-hot", "the GPU has 80 °C, the limit is 80 °C", None),
        (
            Readings(month_bytes=100 * GB, month_ends_unix_s=FRIDAY_NOON + 86_400),
            "quota",
            "this month's 100 GB of traffic are used up",
            86_400,
        ),
        (
            Readings(disk_bytes=19 * GB, snapshot_bytes=2 * GB),
            "disk",
            "take 19 GB of 20 GB, the next snapshot takes 2 GB",
            None,
        ),
        (
            Readings(worker_bytes=9 * GB),
            "memory",
            "more than the 8 GB that `ram` allows",
            MEMORY_PAUSE_S,
        ),
    ],
)
def test_each_reason(readings: Readings, reason: str, says: str, until_s: float | None) -> None:
    verdict = decide(readings)
    assert not verdict.may_train
    assert verdict.reasons == (reason,)
    assert says in verdict.sentence()
    assert verdict.until_unix_s == (None if until_s is None else FRIDAY_NOON + until_s)
    assert verdict.may_carry_tensors == (reason not in ("metered", "quota"))
    assert verdict.frees_memory == (reason in ("gpu-busy", "memory"))


def test_each_reason_is_only_one_where_its_rule_asks() -> None:
    lax = Rules(on_battery=False, on_metered=False)
    assert decide(BAD, lax).may_train


@pytest.mark.parametrize(
    "readings",
    [
        Readings(on_battery=False, metered=False, user_quiet_s=600, gpu_others_share=0.19),
        Readings(gpu_celsius=79, month_bytes=100 * GB - 1, worker_bytes=8 * GB),
        Readings(disk_bytes=18 * GB, snapshot_bytes=2 * GB),
    ],
)
def test_up_to_a_limit_nothing_holds(readings: Readings) -> None:
    assert decide(readings).may_train


def test_all_that_holds_is_named_in_order() -> None:
    policy = Policy(STRICT)
    policy.pause(FRIDAY_NOON)
    verdict = policy.decide(BAD, 0.0, FRIDAY_NOON + 8 * 3600)
    assert verdict.reasons == REASONS
    assert verdict.reason == "manual"
    assert verdict.until_unix_s is None  # a battery is charged when a person plugs it in
    assert verdict.sentence().count("; also ") == len(REASONS) - 1


def test_the_codes_are_those_of_the_metrics() -> None:
    assert ("none", *REASONS) == PAUSE_REASONS


def test_until_is_when_the_last_hold_ends() -> None:
    policy = Policy(replace(STRICT, user_quiet_s=600))
    policy.pause(FRIDAY_NOON, 3600)
    verdict = policy.decide(Readings(user_quiet_s=0), 0.0, FRIDAY_NOON)
    assert verdict.until_unix_s == FRIDAY_NOON + 3600


def test_by_default_battery_and_a_metered_line_hold_and_nothing_else_does() -> None:
    assert decide(BAD, Rules()).reasons == ("battery", "metered")
    assert decide(replace(BAD, user_quiet_s=0.0), Rules(on_battery=False)).reasons == ("metered",)
    least = Rules(quota_bytes=1, disk_bytes=20 * GB, ram_bytes=1)
    assert decide(Readings(disk_bytes=20 * GB), least).may_train, "nothing was seen"


def test_at_a_fifth_of_the_gpu_others_are_busy() -> None:
    verdict = decide(Readings(gpu_others_share=0.2))
    assert verdict.reasons == ("gpu-busy",)
    assert "others use 20% of the GPU" in verdict.sentence()
    assert decide(Readings(gpu_others_share=0.2), replace(STRICT, when_gpu_busy=False)).may_train


@pytest.mark.parametrize(
    ("reason", "relays"),
    [("schedule", False), ("metered", False), ("quota", False), ("battery", True), ("user", True)],
)
def test_outside_of_the_schedule_and_where_bytes_are_dear_nothing_is_relayed(
    reason: str, relays: bool
) -> None:
    readings = {
        "schedule": CALM,
        "metered": Readings(metered=True),
        "quota": Readings(month_bytes=100 * GB),
        "battery": Readings(on_battery=True),
        "user": Readings(user_quiet_s=0.0),
    }[reason]
    wall = FRIDAY_NOON + 8 * 3600 * (reason == "schedule")
    verdict = decide(readings, wall=wall)
    assert (verdict.reasons, verdict.may_relay) == ((reason,), relays)
    assert decide(CALM).may_relay


def test_a_hold_says_when_it_ends_as_time_goes_on() -> None:
    policy = Policy(STRICT)
    seen = Readings(gpu_others_share=0.5, worker_bytes=9 * GB)
    policy.decide(seen, 100.0, FRIDAY_NOON)
    holds = policy.decide(CALM, 110.0, FRIDAY_NOON + 10).holds
    ends = {hold.reason: hold.until_unix_s for hold in holds}
    assert ends == {"gpu-busy": FRIDAY_NOON + GPU_QUIET_S, "memory": FRIDAY_NOON + MEMORY_PAUSE_S}


def test_where_no_snapshot_is_to_come_none_is_spoken_of() -> None:
    said = decide(Readings(disk_bytes=21 * GB)).sentence()
    assert said == "files of this node take 21 GB of 20 GB: raise `disk`, or leave a swarm"


def test_a_hold_is_said_with_its_end_where_there_is_one() -> None:
    said = decide(Readings(on_battery=True, user_quiet_s=0.0)).sentence(UTC)
    assert said == (
        "this machine runs on battery; also this machine is in use"
        " (it has to be quiet for 10 min), until Fri 20 Nov 12:10"
    )


# --- by hand ------------------------------------------------------------------------------


def test_a_pause_by_hand_is_never_undone_by_itself() -> None:
    policy = Policy(STRICT)
    policy.pause(FRIDAY_NOON)
    for hour in range(14 * 24):  # the schedule opens and closes, everything changes and goes
        readings = BAD if hour % 3 == 0 else CALM
        verdict = policy.decide(readings, 3600.0 * hour, FRIDAY_NOON + 3600 * hour)
        assert verdict.reason == "manual"
    policy.resume()
    assert policy.decide(CALM, 1e7, FRIDAY_NOON).may_train


def test_a_pause_of_two_hours_ends_after_two_hours() -> None:
    policy = Policy(Rules())
    policy.pause(FRIDAY_NOON, 7200)
    verdict = policy.decide(CALM, 0.0, FRIDAY_NOON + 7199)
    assert verdict.reason == "manual"
    assert verdict.until_unix_s == FRIDAY_NOON + 7200
    assert policy.decide(CALM, 1.0, FRIDAY_NOON + 7200).may_train
    assert policy.manual is None


def test_a_new_pause_takes_the_place_of_the_old_one() -> None:
    policy = Policy(Rules())
    policy.pause(FRIDAY_NOON, 60)
    policy.pause(FRIDAY_NOON)
    assert policy.decide(CALM, 0.0, FRIDAY_NOON + 1e6).reason == "manual"
    policy.pause(FRIDAY_NOON, 60)
    assert policy.decide(CALM, 0.0, FRIDAY_NOON + 61).may_train


def test_a_pause_outlives_the_process() -> None:
    saved = Policy(Rules()).pause(FRIDAY_NOON, 7200)
    after = Policy(Rules(), saved)
    assert after.decide(CALM, 0.0, FRIDAY_NOON + 3600).reason == "manual"
    assert after.decide(CALM, 0.0, FRIDAY_NOON + 7201).may_train


def test_a_clock_that_was_wrong_does_not_stretch_a_pause() -> None:
    policy = Policy(Rules(), ManualPause(FRIDAY_NOON + 3.15e9, 7200))  # a hundred years ahead
    verdict = policy.decide(CALM, 0.0, FRIDAY_NOON)
    assert verdict.until_unix_s == FRIDAY_NOON + 7200


@pytest.mark.parametrize("kept", [ManualPause(FRIDAY_NOON, None), ManualPause(None, 7200)])
def test_a_pause_of_which_only_a_part_was_kept_has_no_end(kept: ManualPause) -> None:
    verdict = Policy(Rules(), kept).decide(CALM, 0.0, FRIDAY_NOON + 1e6)
    assert (verdict.reason, verdict.until_unix_s) == ("manual", None)


def test_resume_ends_what_was_said_by_hand_only() -> None:
    policy = Policy(STRICT)
    policy.pause(FRIDAY_NOON)
    policy.resume()
    verdict = policy.decide(CALM, 0.0, FRIDAY_NOON + 8 * 3600)
    assert verdict.reasons == ("schedule",)
    assert "outside of this node's schedule, until Mon 23 Nov 08:00" in verdict.sentence(UTC)


def test_finishing_holds_whatever_is_resumed() -> None:
    policy = Policy(Rules())
    policy.finish()
    policy.resume()
    assert "finishing" in policy.decide(CALM, 0.0, FRIDAY_NOON).sentence()


# --- what has to calm down ----------------------------------------------------------------


def test_a_busy_gpu_has_to_be_quiet_for_a_while() -> None:
    policy = Policy(STRICT)
    busy, quiet = Readings(gpu_others_share=0.9), Readings(gpu_others_share=0.0)
    assert "others use 90% of the GPU" in policy.decide(busy, 0.0, FRIDAY_NOON).sentence()
    waiting = policy.decide(quiet, GPU_QUIET_S - 1, FRIDAY_NOON)
    assert waiting.reason == "gpu-busy"
    assert "others used the GPU a moment ago" in waiting.sentence(), "not that they use 0%"
    assert policy.decide(quiet, GPU_QUIET_S, FRIDAY_NOON).may_train


def test_a_hot_gpu_has_to_cool_down() -> None:
    policy = Policy(STRICT)
    reasons = [
        policy.decide(Readings(gpu_celsius=celsius), 0.0, FRIDAY_NOON).reason
        for celsius in (79, 80, 79, 76, 75, 79, 81)
    ]
    hot = "gpu-hot"
    assert reasons == ["none", hot, hot, hot, "none", "none", hot]


def test_a_worker_that_was_too_large_is_tried_again_later() -> None:
    policy = Policy(STRICT)
    policy.decide(Readings(worker_bytes=9 * GB), 0.0, FRIDAY_NOON)
    gone = Readings(worker_bytes=None)
    waiting = policy.decide(gone, MEMORY_PAUSE_S - 1, FRIDAY_NOON)
    assert waiting.reason == "memory"
    assert [hold.until_unix_s for hold in waiting.holds] == [FRIDAY_NOON + 1]
    assert policy.decide(gone, MEMORY_PAUSE_S, FRIDAY_NOON).may_train


_MAYBE = st.none() | st.booleans()
_READINGS = st.builds(
    Readings,
    on_battery=_MAYBE,
    metered=_MAYBE,
    user_quiet_s=st.none() | st.floats(0, 1e6),
    gpu_others_share=st.none() | st.floats(0, 1),
    gpu_celsius=st.none() | st.floats(0, 120),
    month_bytes=st.integers(0, 200 * GB),
    month_ends_unix_s=st.just(FRIDAY_NOON + 1e6),
    disk_bytes=st.none() | st.integers(0, 40 * GB),
    worker_bytes=st.none() | st.integers(0, 16 * GB),
)


@given(st.lists(st.tuples(_READINGS, st.floats(0, 3600)), max_size=20), st.booleans())
def test_whatever_is_seen_the_verdict_says_why(
    seen: list[tuple[Readings, float]], is_paused: bool
) -> None:
    policy = Policy(STRICT)
    if is_paused:
        policy.pause(FRIDAY_NOON)
    now = 0.0
    for readings, seconds in seen:
        now += seconds
        verdict = policy.decide(readings, now, FRIDAY_NOON + now)
        assert verdict.may_train == (not verdict.holds)
        assert not (is_paused and verdict.may_train)
        assert all(hold.text for hold in verdict.holds)
        assert [r for r in REASONS if r in verdict.reasons] == list(verdict.reasons)
        assert all(
            hold.until_unix_s is None or hold.until_unix_s > FRIDAY_NOON + now
            for hold in verdict.holds
            if hold.reason != "quota"
        )
