"""Spans of time in words."""

from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


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
