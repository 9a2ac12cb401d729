"""Series: the rules by which a timeout comes again and again. They are pure, and stored as values of JSON.

The times of a crontab are those of its time zone's clocks, also on the days on which these are changed. One at which it is due
in certain hours comes once a day: at its first time if that comes twice, and when the clocks are set forward if it is left out.
One that is due in every hour counts real hours: it comes again in an hour that comes twice, and not in one that is left out.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

#: The first and the last number of each field of a crontab: minute, hour, day of the month, month, day of the week (0: Sunday).
_FIELDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_HOURS: Final = 24
_DAY: Final = timedelta(days=1)
#: The 29th of February falls on a certain day of the week at least once in 40 years.
_MOST_DAYS: Final = 41 * 366

Numbers = tuple[int, ...]


class Interval(NamedTuple):
    """Each time comes so long after the one before, counted from the first, so that delays do not add up."""

    first: int  #: milliseconds since the epoch
    every: int  #: milliseconds

    def following(self, after: int) -> int:
        """Return the first of its times after another, in milliseconds since the epoch."""
        if after < self.first:
            return self.first
        return self.first + ((after - self.first) // self.every + 1) * self.every

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"first": self.first, "ms": self.every}


class Crontab(NamedTuple):
    """The times at which the clocks of a time zone show one of these minutes, on a day for which all other fields hold."""

    minutes: Numbers
    hours: Numbers
    days: Numbers  #: of the month
    months: Numbers
    weekdays: Numbers  #: 0 is Sunday
    zone: str  #: the name of the time zone

    def following(self, after: int) -> int:
        """Return the first of its times after another, in milliseconds since the epoch.

        Raises:
            ValueError: There is none.
        """
        day = datetime.fromtimestamp(after / 1000, ZoneInfo(self.zone)).date() - _DAY  # whose times may be left out until today
        for _ in range(_MOST_DAYS):
            if self._has(day) and (times := _times_on(self, day)) and times[-1] > after:
                return times[bisect_right(times, after)]
            if day == date.max:
                break
            day += _DAY
        raise ValueError(f"the crontab {self.text!r} never comes")

    @property
    def text(self) -> str:
        """The fields in the order of a line of a crontab."""
        fields = zip((self.minutes, self.hours, self.days, self.months, self.weekdays), _FIELDS, strict=True)
        return " ".join("*" if numbers == _all(*ends) else ",".join(map(str, numbers)) for numbers, ends in fields)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"crontab": self.text, "zone": self.zone}

    def _has(self, day: date) -> bool:
        return day.month in self.months and day.day in self.days and day.isoweekday() % 7 in self.weekdays


Series = Interval | Crontab


def series_from_json(value: object) -> Series:
    """Return the series that JSON values describe.

    Raises:
        ValueError: They do not describe one.
    """
    if isinstance(value, Mapping):
        first, every, crontab, zone = (value.get(name) for name in ("first", "ms", "crontab", "zone"))
        if isinstance(first, int) and isinstance(every, int) and every > 0:
            return Interval(first, every)
        if isinstance(crontab, str) and isinstance(zone, str):
            return _crontab(crontab, zone)
    raise ValueError(f"{value!r} is no series")


def _crontab(text: str, zone: str) -> Crontab:
    try:
        ZoneInfo(zone)
    except (KeyError, OSError) as exc:  # KeyError: it is unknown here
        raise ValueError(f"the time zone {zone!r} is unknown here") from exc
    minutes, hours, days, months, weekdays = (_read(*field) for field in zip(text.split(" "), _FIELDS, strict=True))
    return Crontab(minutes, hours, days, months, weekdays, zone)


def _read(text: str, ends: tuple[int, int]) -> Numbers:
    if text == "*":
        return _all(*ends)
    numbers = tuple(map(int, text.split(",")))
    if not set(numbers) <= set(_all(*ends)):
        raise ValueError(f"{text!r} is no field of a crontab, from {ends[0]} to {ends[1]}")
    return numbers


def _all(first: int, last: int) -> Numbers:
    return tuple(range(first, last + 1))


@lru_cache(maxsize=256)
def _times_on(crontab: Crontab, day: date) -> Numbers:
    """Return the times on a day, in order; the last ones may be those of the next day, to which clocks were set forward."""
    zone, is_hourly = ZoneInfo(crontab.zone), len(crontab.hours) == _HOURS
    local = (datetime(day.year, day.month, day.day, hour, minute) for hour in crontab.hours for minute in crontab.minutes)
    times = {time for each in local for time in _times_of(each.replace(tzinfo=zone), is_hourly=is_hourly)}
    return tuple(sorted(times))


def _times_of(local: datetime, *, is_hourly: bool) -> Iterator[int]:
    """Yield when clocks show a time, in milliseconds since the epoch."""
    first, second = (round(local.replace(fold=fold).timestamp()) for fold in (0, 1))
    if first <= second:
        yield first * 1000
        if is_hourly:
            yield second * 1000
    elif not is_hourly:  # it is left out: with fold 0 it is after the change, with fold 1 before it
        yield _change_between(second, first, local.tzinfo) * 1000


def _change_between(before: int, after: int, zone: Any) -> int:
    """Return when clocks are changed between two times, in seconds since the epoch."""
    offset = datetime.fromtimestamp(before, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after
