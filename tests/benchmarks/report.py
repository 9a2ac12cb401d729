"""Prints the figures as a table."""

from rich.console import Console
from rich.table import Table


def report(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print("\n", table)
