"""Tables for operators, and JSON lines for programs. Stored text cannot forge a row or a line, or control the terminal."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any, Final

import click

from celery_sagas.operate.spans import time_text
from celery_sagas.operate.texts import block as block
from celery_sagas.operate.texts import json_text as json_text
from celery_sagas.operate.texts import line as line
from celery_sagas.operate.texts import sentence as sentence

#: The maximum number of characters of a long text in a table.
_CELL = 60
#: The maximum width of a column: a longer cell moves those behind it, in its own row.
_WIDEST = 100
#: Where a command's context has the zone in which it shows times.
_ZONE: Final = f"{__name__}.zone"

Row = tuple[str, ...]


def print_table(header: Row, rows: Sequence[Row], nothing: str) -> None:
    """Print rows below a header, each cell in one line; without rows, print a sentence."""
    click.echo("\n".join(aligned([header, *rows])) if rows else nothing)


def aligned(rows: Sequence[Row]) -> list[str]:
    """Return a line for each row, with its cells below those of the others; they stay in their line."""
    shown = [tuple(map(line, row)) for row in rows]
    widths = [_width(0, column) for column in zip(*shown, strict=True)][:-1]  # the last one may be long: it is not filled up
    return ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in shown]


class Feed:
    """A table whose rows come one after the other: a column grows when it must."""

    def __init__(self, header: Row) -> None:
        self._widths = [0] * len(header)
        self.print([header])

    def print(self, rows: Iterable[Row]) -> None:
        """Print rows, each cell in one line."""
        for cells in (tuple(map(line, row)) for row in rows):
            self._widths = [_width(width, [cell]) for cell, width in zip(cells, self._widths, strict=True)]
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)).rstrip())


def _width(width: int, cells: Iterable[str]) -> int:
    return min(max(width, *map(len, cells)), _WIDEST)


def print_json(facts: Iterable[Mapping[str, Any]]) -> None:
    """Print one object in each line."""
    for fact in facts:
        click.echo(json_text(json.dumps(fact)))


def short(text: str) -> str:
    """Return the beginning of a text, in one line."""
    shown = line(text[: _CELL + 1])
    return shown if len(shown) <= _CELL else f"{shown[: _CELL - 1]}…"


def time(at_ms: int) -> str:
    """Return a time in the zone in which the command shows times; of one beyond all dates, the first or the last one."""
    return time_text(at_ms, zone())


def zone() -> tzinfo | None:
    """Return the zone in which the command shows times; ``None``: that of this machine."""
    context = click.get_current_context(silent=True)
    return context.meta.get(_ZONE, UTC) if context else UTC


def _show_local_times(context: click.Context, parameter: click.Parameter, is_local: bool) -> None:
    context.meta[_ZONE] = None if is_local else UTC


#: Has a command show times in the zone of this machine.
LOCAL = click.option(
    "--local",
    is_flag=True,
    expose_value=False,
    callback=_show_local_times,
    help="Show times in the time zone of this machine, in the place of UTC; not those of --json.",
)
