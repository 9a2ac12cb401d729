"""Ages, as operators write them: ``1d``, ``12h``, ``30m``."""

from typing import Final

import click

#: Of a number of units.
_DIGITS: Final = 6
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def milliseconds(context: click.Context, parameter: click.Parameter, age: str | None) -> int | None:
    """Read the age that an option has; it is its callback."""
    if age is None:
        return None
    number, unit = age[:-1], _UNITS_MS.get(age[-1:])
    if unit is None or not (number.isascii() and number.isdigit() and len(number) <= _DIGITS):
        raise click.BadParameter(f"{age!r} is no time such as 1d, 12h, 30m or 2w")
    return int(number) * unit
