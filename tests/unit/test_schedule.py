"""The weekly schedule: what is in a window, when it changes, and nights when the clock jumps."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmnode.errors import ConfigError
from swarmnode.quantities import parse_bytes, parse_duration_s, show_bytes, show_duration
from swarmnode.schedule import WeeklySchedule, parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("entries", "moment", "is_open"),
    [
        (("mon-fri 22:00-07:00",), "2026-11-20T22:00", True),  # a Friday
        (("mon-fri 22:00-07:00",), "2026-11-21T06:59", True),  # its night ends on Saturday
        (("mon-fri 22:00-07:00",), "2026-11-21T07:00", False),
        (("mon-fri 22:00-07:00",), "2026-11-21T23:00", False),
        (("mon-fri 22:00-07:00",), "2026-11-23T06:00", False),  # Monday morning is Sunday's night
        (("mon-fri 22:00-07:00", "sat,sun"), "2026-11-22T13:00", True),
        (("sun 22:00-07:00",), "2026-11-23T06:00", True),  # over the end of the week
        (("fri-mon",), "2026-11-23T12:00", True),
        (("fri-mon",), "2026-11-24T00:00", False),
        (("12:30-13:30",), "2026-11-24T13:29", True),
        (("MON,Wed 00:00-24:00",), "2026-11-25T23:59", True),
        ((), "2026-11-25T23:59", True),
    ],
)
def test_windows(entries: tuple[str, ...], moment: str, is_open: bool) -> None:
    assert parse_schedule(entries).is_open(at(moment), BERLIN) == is_open


@pytest.mark.parametrize(
    ("entries", "now", "change"),
    [
        (("mon-fri 22:00-07:00",), "2026-11-20T23:00", "2026-11-21T07:00"),
        (("mon-fri 22:00-07:00",), "2026-11-21T08:00", "2026-11-23T22:00"),
        (("sat,sun",), "2026-11-21T08:00", "2026-11-23T00:00"),
        (("sun 22:00-07:00",), "2026-11-22T23:00", "2026-11-23T07:00"),
        (("wed 01:00-02:00",), "2026-11-25T02:00", "2026-12-02T01:00"),  # a week from now
        # The clock goes from 02:00 to 03:00, and from 03:00 back to 02:00.
        (("02:15-02:45",), "2026-03-28T12:00", "2026-03-30T02:15"),  # no such time on the 29th
        (("01:00-02:30",), "2026-03-29T01:30", "2026-03-29T03:00"),
        (("22:00-07:00",), "2026-10-24T23:00", "2026-10-25T07:00"),
    ],
)
def test_the_next_change(entries: tuple[str, ...], now: str, change: str) -> None:
    schedule = parse_schedule(entries)
    assert schedule.next_change(at(now), BERLIN) == pytest.approx(at(change), abs=1)


def test_an_hour_that_comes_twice_is_open_twice() -> None:
    schedule = parse_schedule(("02:00-03:00",))
    begin = schedule.next_change(at("2026-10-25T01:30"), BERLIN)
    assert begin == at("2026-10-25T02:00", fold=0)
    end = schedule.next_change(begin, BERLIN)
    assert end == at("2026-10-25T03:00")
    assert end - begin == 2 * 3600


@pytest.mark.parametrize("entries", [(), ("mon-sun",), ("00:00-12:00", "12:00-24:00")])
def test_what_never_changes(entries: tuple[str, ...]) -> None:
    assert parse_schedule(entries).next_change(at("2026-11-21T08:00"), BERLIN) is None


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIMES = st.tuples(st.integers(0, 23), st.integers(0, 59))
_ENTRIES = st.builds(
    lambda a, b, s, e: f"{a}-{b} {s[0]:02}:{s[1]:02}-{e[0]:02}:{e[1]:02}",
    st.sampled_from(_DAYS),
    st.sampled_from(_DAYS),
    _TIMES,
    _TIMES.map(lambda t: (t[0], t[1])),
)


@given(
    st.lists(_ENTRIES, min_size=1, max_size=3),
    st.integers(int(at("2026-01-01T00:00")), int(at("2026-12-31T00:00"))),
)
def test_nothing_changes_before_the_next_change(entries: list[str], now: int) -> None:
    try:
        schedule = parse_schedule(tuple(entries))
    except ConfigError:
        return  # two times that are the same
    change = schedule.next_change(now, BERLIN)
    is_open = schedule.is_open(now, BERLIN)
    end = change if change is not None else now + 8 * 86_400
    for part in range(40):
        assert schedule.is_open(now + (end - 2 - now) * part / 40, BERLIN) == is_open
    if change is not None:
        assert change > now
        assert schedule.is_open(change, BERLIN) != is_open


def test_without_a_zone_it_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    noon = datetime.now(UTC).astimezone().replace(hour=12, minute=0, second=0).timestamp()
    schedule = parse_schedule(("11:00-13:00",))
    assert schedule.is_open(noon)
    assert schedule.next_change(noon) == pytest.approx(noon + 3600, abs=61)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("", "days, times, or both"),
        ("mon tue wed", "days, times, or both"),
        ("mon-fri 22-7", "times as HH:MM-HH:MM, not '22-7'"),
        ("funday", "days out of mon, tue"),
        ("mon-", "days out of mon, tue"),
        ("25:00-26:00", "times from 00:00 to 24:00"),
        ("10:75-11:00", "times from 00:00 to 24:00"),
        ("10:00-10:00", "two different times"),
        ("x" * 10_000, "days out of"),
    ],
)
def test_errors_say_what_was_expected(entry: str, says: str) -> None:
    with pytest.raises(ConfigError, match="schedule: expected") as error:
        parse_schedule((entry,))
    assert says in str(error.value)
    assert '"mon-fri 22:00-07:00"' in str(error.value)
    assert len(str(error.value)) < 300


@given(st.text(max_size=30))
def test_any_text_is_a_schedule_or_an_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_schedule((text,)), WeeklySchedule)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("", 0),
        ("8 GB", 8_000_000_000),
        ("512MiB", 536_870_912),
        ("1.5TB", 1_500_000_000_000),
        ("500 kB/s", 500_000),
        ("10 Mbit/s", 1_250_000),
        ("7 B", 7),
    ],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1d12h", 129_600), ("45s", 45)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0h", "two hours", "-1h", "2h3x", "1e9h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a time such as 2h"):
        parse_duration_s(text)


def test_words() -> None:
    assert [show_bytes(n) for n in (7, 1500, 2.5e9, 3e12)] == ["7 B", "1.5 kB", "2.5 GB", "3 TB"]
    assert [show_duration(s) for s in (5, 600, 7300, 4e5)] == ["5 s", "10 min", "2 h", "5 days"]
