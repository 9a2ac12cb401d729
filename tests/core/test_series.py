"""Series: when a timeout comes again, also on the days on which clocks are changed."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sagas.core.series import Crontab, Interval, series_from_json

LONDON, NEW_YORK, LORD_HOWE = "Europe/London", "America/New_York", "Australia/Lord_Howe"
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
#: Ten years.
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
HOURS, DAYS, MONTHS, WEEKDAYS = tuple(range(24)), tuple(range(1, 32)), tuple(range(1, 13)), tuple(range(7))

zones = pytest.mark.parametrize("zone", [LONDON, NEW_YORK])


def crontab(
    zone: str = "UTC",
    minutes: tuple[int, ...] = (0,),
    hours: tuple[int, ...] = HOURS,
    days: tuple[int, ...] = DAYS,
    months: tuple[int, ...] = MONTHS,
    weekdays: tuple[int, ...] = WEEKDAYS,
) -> Crontab:
    return Crontab(minutes, hours, days, months, weekdays, zone)


def at(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def times(series: Crontab | Interval, begin: datetime = BEGIN, end: datetime = END) -> list[datetime]:
    """Return when a series comes, each time asked for after the one before; in UTC."""

    def follow() -> Iterator[datetime]:
        last = at(begin) - 1
        while True:
            last = series.following(last)
            yield datetime.fromtimestamp(last / 1000, UTC)

    return list(takewhile(lambda time: time < end, follow()))


def clock(time: datetime, zone: str) -> str:
    """Return what clocks show."""
    return time.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M %Z")


def changes(zone: str) -> dict[date, timedelta]:
    """Return the days of the ten years on which clocks are set forward, or back, and by how much."""
    days = [date(2026, 1, 1) + number * DAY for number in range(3652)]
    midnights = [datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)) for day in days]
    lengths = {
        day: DAY - (later.astimezone(UTC) - time.astimezone(UTC))
        for day, (time, later) in zip(days, pairwise(midnights), strict=False)
    }
    return {day: change for day, change in lengths.items() if change}


class TestIntervals:
    def test_times_after_one_another(self) -> None:
        series = Interval(at(BEGIN), 60_000)
        assert times(series, BEGIN, BEGIN + 3 * MINUTE) == [BEGIN, BEGIN + MINUTE, BEGIN + 2 * MINUTE]

    def test_first_time_may_be_far_away(self) -> None:
        assert Interval(5_000, 1_000).following(0) == 5_000
        assert Interval(5_000, 1_000).following(4_999) == 5_000
        assert Interval(5_000, 1_000).following(5_000) == 6_000

    @given(st.integers(0, 10**13), st.integers(1, 10**10), st.integers(0, 10**13))
    def test_next_time_is_the_first_one_of_the_same_phase(self, first: int, every: int, after: int) -> None:
        """However many were missed."""
        following = Interval(first, every).following(after)
        assert following > after
        assert (following - first) % every == 0
        assert following == first or following - every <= after


class TestClocksThatChange:
    """Ten years of hours in London and New York."""

    def test_years_have_the_changes_that_are_tested(self) -> None:
        for zone in (LONDON, NEW_YORK):
            assert sorted(changes(zone).values()) == [-HOUR] * 10 + [HOUR] * 10

    @zones
    @pytest.mark.parametrize("hour", [0, 1, 2, 3, 9, 23])
    def test_once_a_day_at_its_time(self, zone: str, hour: int) -> None:
        """Unless the clocks leave it out: then when they are set forward."""
        begin, end = (time.replace(tzinfo=ZoneInfo(zone)) for time in (BEGIN, END))
        came = [time.astimezone(ZoneInfo(zone)) for time in times(crontab(zone, (30,), (hour,)), begin, end)]
        assert [time.date() for time in came] == [date(2026, 1, 1) + number * DAY for number in range(3652)]
        is_left_out = {LONDON: 1, NEW_YORK: 2}[zone] == hour
        others = [time for time in came if (time.hour, time.minute) != (hour, 30)]
        forward = [day for day, change in changes(zone).items() if change > timedelta(0)]
        assert [time.date() for time in others] == (forward if is_left_out else [])
        assert all((time.hour, time.minute) == (hour + 1, 0) for time in others)

    @zones
    def test_time_that_comes_twice_counts_the_first_time(self, zone: str) -> None:
        came = [time.astimezone(ZoneInfo(zone)) for time in times(crontab(zone, (30,), (1,)))]
        twice = [time for time in came if time.replace(fold=1).utcoffset() != time.replace(fold=0).utcoffset()]
        twice = [time for time in twice if changes(zone)[time.date()] < timedelta(0)]
        assert len(twice) == 10
        assert {time.fold for time in twice} == {0}

    @zones
    @pytest.mark.parametrize("minutes", [(0,), (7,), (0, 15, 30, 45)])
    def test_every_hour_is_every_real_hour(self, zone: str, minutes: tuple[int, ...]) -> None:
        came = times(crontab(zone, minutes))
        assert {later - time for time, later in pairwise(came)} == {HOUR / len(minutes)}

    @zones
    def test_some_hours_of_the_day(self, zone: str) -> None:
        """Those left out come together, those that come twice once."""
        came = times(crontab(zone, (0, 30), (0, 1, 2, 3)))
        counts = dict.fromkeys(changes(zone), 0)
        for time in came:
            day = time.astimezone(ZoneInfo(zone)).date()
            if day in counts:
                counts[day] += 1
        assert counts == {day: 6 if change > timedelta(0) else 8 for day, change in changes(zone).items()}

    def test_change_in_london(self) -> None:
        half_past_one = crontab(LONDON, (30,), (1,))
        spring = times(half_past_one, datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC))
        assert [clock(time, LONDON) for time in spring] == [
            "2026-03-28 01:30 GMT",
            "2026-03-29 02:00 BST",
            "2026-03-30 01:30 BST",
        ]
        autumn = times(half_past_one, datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 27, tzinfo=UTC))
        assert [clock(time, LONDON) for time in autumn] == [
            "2026-10-24 01:30 BST",
            "2026-10-25 01:30 BST",
            "2026-10-26 01:30 GMT",
        ]

    def test_change_in_new_york(self) -> None:
        spring = times(crontab(NEW_YORK, (30,), (2,)), datetime(2026, 3, 7, 5, tzinfo=UTC), datetime(2026, 3, 10, tzinfo=UTC))
        assert [clock(time, NEW_YORK) for time in spring] == [
            "2026-03-07 02:30 EST",
            "2026-03-08 03:00 EDT",
            "2026-03-09 02:30 EDT",
        ]
        hourly = times(crontab(NEW_YORK), datetime(2026, 11, 1, 4, tzinfo=UTC), datetime(2026, 11, 1, 8, tzinfo=UTC))
        assert [clock(time, NEW_YORK) for time in hourly] == [
            "2026-11-01 00:00 EDT",
            "2026-11-01 01:00 EDT",
            "2026-11-01 01:00 EST",
            "2026-11-01 02:00 EST",
        ]

    def test_clocks_that_change_by_half_an_hour(self) -> None:
        begin, end = datetime(2026, 10, 3, 15, tzinfo=UTC), datetime(2026, 10, 3, 16, tzinfo=UTC)
        came = times(crontab(LORD_HOWE, (15,), (1, 2)), begin - DAY, end)
        assert [clock(time, LORD_HOWE)[:16] for time in came][-3:] == ["2026-10-03 02:15", "2026-10-04 01:15", "2026-10-04 02:30"]

    def test_day_that_is_left_out(self) -> None:
        """Samoa had no 30th of December 2011."""
        came = times(crontab("Pacific/Apia", (0,), (9,)), datetime(2011, 12, 28, tzinfo=UTC), datetime(2012, 1, 1, tzinfo=UTC))
        assert [clock(time, "Pacific/Apia")[:16] for time in came] == [
            "2011-12-28 09:00",
            "2011-12-29 09:00",
            "2011-12-31 00:00",
            "2011-12-31 09:00",
            "2012-01-01 09:00",
        ]

    @given(
        st.sampled_from([LONDON, NEW_YORK, LORD_HOWE, "UTC"]),
        st.sets(st.integers(0, 59), min_size=1, max_size=3),
        st.sets(st.integers(0, 23), min_size=1, max_size=3),
        st.integers(at(BEGIN), at(END)),
    )
    def test_next_time_is_the_first_at_which_clocks_show_it(
        self, zone: str, minutes: set[int], hours: set[int], after: int
    ) -> None:
        """Looked for minute by minute, without any rule about changes."""
        series = crontab(zone, tuple(sorted(minutes)), tuple(sorted(hours)))
        following = series.following(after)
        here = ZoneInfo(zone)
        minute = after // 60_000 + 1
        while minute * 60_000 < following:
            shown = datetime.fromtimestamp(minute * 60, here)
            is_due = shown.hour in hours and shown.minute in minutes
            assert not is_due or shown.fold == 1, shown
            minute += 1
        shown = datetime.fromtimestamp(following / 1000, here)
        change = changes_at(following, here)
        assert change or (shown.hour in hours and shown.minute in minutes and shown.fold == 0)


def changes_at(ms: int, zone: ZoneInfo) -> bool:
    """Return whether clocks are set forward at a time."""
    before, after = (datetime.fromtimestamp(ms / 1000 + seconds, zone).utcoffset() for seconds in (-1, 0))
    return before != after


class TestDays:
    def test_all_fields_hold(self) -> None:
        """As in Celery: a day of the month and a day of the week are both meant."""
        friday_13th = crontab(hours=(9,), days=(13,), weekdays=(5,))
        came = times(friday_13th, BEGIN, BEGIN + 365 * DAY)
        assert [time.date().isoformat() for time in came] == ["2026-02-13", "2026-03-13", "2026-11-13"]

    def test_sunday_is_0(self) -> None:
        came = times(crontab(hours=(0,), weekdays=(0,)), BEGIN, BEGIN + 14 * DAY)
        assert [time.date().isoformat() for time in came] == ["2026-01-04", "2026-01-11"]

    def test_last_of_long_months(self) -> None:
        came = times(crontab(hours=(0,), days=(31,)), BEGIN, BEGIN + 365 * DAY)
        assert [time.month for time in came] == [1, 3, 5, 7, 8, 10, 12]

    def test_leap_day_on_a_certain_day_of_the_week(self) -> None:
        """There is none in 2100, so that it comes after forty years."""
        leap = crontab(hours=(0,), days=(29,), months=(2,), weekdays=(0,))
        came = times(leap, datetime(2080, 1, 1, tzinfo=UTC), datetime(2130, 1, 1, tzinfo=UTC))
        assert [time.year for time in came] == [2088, 2128]

    def test_day_that_never_comes(self) -> None:
        with pytest.raises(ValueError, match=r"the crontab '0 \* 30 2 \*' never comes"):
            crontab(days=(30,), months=(2,)).following(at(BEGIN))

    def test_after_all_dates(self) -> None:
        with pytest.raises(ValueError, match="never comes"):
            crontab(hours=(0,)).following(at(datetime(9999, 12, 31, 12, tzinfo=UTC)))


class TestStored:
    @pytest.mark.parametrize(
        "series",
        [
            Interval(5, 1_000),
            crontab(),
            crontab(LONDON, (0, 30), (9, 17), (1, 15), (6,), (1, 2, 3, 4, 5)),
        ],
    )
    def test_series_is_read_as_it_was_written(self, series: Interval | Crontab) -> None:
        assert series_from_json(series.to_json()) == series

    def test_crontab_is_written_as_a_line_of_one(self) -> None:
        written = crontab(LONDON, (0, 30), (9,), weekdays=(1, 5)).to_json()
        assert written == {"crontab": "0,30 9 * * 1,5", "zone": "Europe/London"}

    @pytest.mark.parametrize(
        "value",
        [
            None,
            {},
            [],
            "x",
            {"first": 1},
            {"first": 1, "ms": 0},
            {"first": "1", "ms": 5},
            {"crontab": "* * * * *"},
            {"crontab": "* * * *", "zone": "UTC"},
            {"crontab": "60 * * * *", "zone": "UTC"},
            {"crontab": "x * * * *", "zone": "UTC"},
            {"crontab": "* * 0 * *", "zone": "UTC"},
            {"crontab": "* * * * *", "zone": "Europe/Nowhere"},
            {"crontab": "* * * * *", "zone": "../../etc/passwd"},
            {"crontab": "* * * * *", "zone": ""},
        ],
    )
    def test_value_that_is_no_series(self, value: object) -> None:
        with pytest.raises(ValueError, match=r"."):
            series_from_json(value)
