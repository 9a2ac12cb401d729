"""Times, and spans of time, in words."""

from datetime import UTC, tzinfo
from typing import Final

from celery_sagas.clock import LAST_MS, utc_time

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
#: Of the number of units that an age has.
_DIGITS: Final = 6
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def span(ms: int) -> str:
    """Return a span in its greatest unit, and in days with their hours: ``5 d 1 h``, ``3 h``, ``0 s``.

    Args:
        ms: Milliseconds; of negative ones the amount counts.
    """
    seconds = (abs(ms) + 500) // 1000
    size, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    whole, rest = divmod(seconds, size)
    hours = rest // 3_600 if unit == "d" else 0
    return f"{whole:,} {unit} {hours} h" if hours else f"{whole:,} {unit}"


def time_text(at_ms: int, zone: tzinfo | None = UTC) -> str:
    """Return a time, with the name of its zone; of one that is beyond all dates, the first or the last one.

    Args:
        at_ms: Milliseconds since the epoch.
        zone: Its zone; ``None``: that of this machine.
    """
    at = utc_time(min(max(at_ms, 0), LAST_MS))
    try:
        shown = at.astimezone(zone)
    except (OverflowError, ValueError):  # there it is the next year, after the last one
        shown = at
    return shown.strftime("%Y-%m-%d %H:%M:%S %Z")


def age_ms(age: str) -> int:
    """Return an age, as operators write it, in milliseconds: ``1d``, ``12h``, ``30m``.

    Raises:
        ValueError: It is none.
    """
    number, unit = age[:-1], _UNITS_MS.get(age[-1:])
    if unit is None or not (number.isascii() and number.isdigit() and len(number) <= _DIGITS):
        raise ValueError(f"{age!r} is no time such as 1d, 12h, 30m or 2w")
    return int(number) * unit
