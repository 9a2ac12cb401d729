"""Tables for operators, and JSON lines for programs. Stored text cannot forge a row or a line, or control the terminal."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

#: The maximum number of characters of a long text in a table.
_CELL = 60

Row = tuple[str, ...]


def print_table(header: Row, rows: Sequence[Row], nothing: str) -> None:
    """Print rows below a header, each cell in one line; without rows, print a sentence."""
    shown = [header, *(tuple(map(line, row)) for row in rows)]
    click.echo("\n".join(_lines(shown)) if rows else nothing)


def print_json(facts: Iterable[Mapping[str, Any]]) -> None:
    """Print one object in each line."""
    for fact in facts:
        click.echo(json.dumps(fact).replace("\x7f", r"\u007f"))  # the one control character that JSON does not escape


def short(text: str) -> str:
    """Return the beginning of a text, in one line."""
    shown = line(text[: _CELL + 1])
    return shown if len(shown) <= _CELL else f"{shown[: _CELL - 1]}…"


def line(text: str) -> str:
    """Return text that stays in its line: it escapes line ends, cursor and direction controls, and invalid characters."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown or "-"


def block(text: str) -> str:
    """Return text of several lines, each of them escaped as by ``line``."""
    return "\n".join(line(each) if each else "" for each in text.split("\n"))


def time(at_ms: int) -> str:
    """Return a time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _lines(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
