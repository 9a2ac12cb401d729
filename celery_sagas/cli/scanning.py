"""The options that choose instances: by an index, and by their states, which are read."""

from collections.abc import Iterator, Set
from typing import Any

import click

from celery_sagas.cli import tables
from celery_sagas.cli.addresses import value_of
from celery_sagas.cli.ages import milliseconds
from celery_sagas.cli.options import adding
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import UnreadableState
from celery_sagas.operate.choosing import Selection, matching
from celery_sagas.operate.where import where_of
from celery_sagas.stores.instances import Glance
from celery_sagas.worker.runtime import Runtime

#: Adds the options of ``selection_of``, and ``--scan``, to a command.
choices = adding(
    click.option("--by", metavar="FIELD=VALUE", help="Only instances with this value of a field in search_by."),
    click.option("--paused", is_flag=True, help="Only instances that an operator has paused."),
    click.option(
        "--idle",
        metavar="AGE",
        callback=milliseconds,
        help="Only instances that no message has changed for this time, such as 3d or 12h.",
    ),
    click.option(
        "--late",
        metavar="AGE",
        is_flag=False,
        flag_value="15m",
        callback=milliseconds,
        help="Only instances with a timeout, or a deadline, that is overdue for this time; without AGE for 15m.",
    ),
    click.option("--where", metavar="TEXT", help="Only instances for whose state this holds, such as 'total > 100'."),
    click.option(
        "--scan",
        "scanned",
        type=click.IntRange(min=1),
        default=10_000,
        show_default=True,
        help="How many --where looks at, at most.",
    ),
)


def selection_of(*, by: str | None, idle: int | None, late: int | None, **options: Any) -> Selection:
    """Return which instances a command line chooses.

    Raises:
        UsageError: More than one choice is given.
    """
    try:
        return Selection(by={} if by is None else value_of(by), idle_ms=idle, late_ms=late, **options)
    except TypeError as exc:
        raise click.UsageError(str(exc)) from exc


class Scan:
    """Finds the selected instances of a saga; of those with an expression, among the first so many that are chosen.

    Those that cannot be read are named on the standard error.
    """

    def __init__(self, runtime: Runtime, saga: SagaDefinition, selection: Selection, most: int) -> None:
        """Read the expression.

        Raises:
            MisuseError: It is none, or names what the saga does not have, or what is hidden.
        """
        self._backend = runtime.backends.of(saga)
        self._saga = saga
        self._selection = selection
        where = selection.where
        self._test = None if where is None else where_of(saga, where, runtime.settings.hidden)
        self._most = most
        self._looked_at = 0
        self._last: Glance | None = None
        self._cut: Set[str] = frozenset()
        self._is_cut = self._has_failed = False

    def find(self) -> Iterator[Glance]:
        """Yield those that are found."""
        chosen, self._cut = self._selection.chosen(self._backend, self._saga)
        if self._test is None:
            yield from chosen
            return
        for found in matching(self._backend, self._saga, self._limited(chosen), self._test):
            if isinstance(found, UnreadableState):
                self._has_failed = True
                click.echo(f"Error: {tables.line(str(found))}", err=True)
            else:
                yield found

    def tell(self) -> None:
        """Say on the standard error how far it has looked, if there are more."""
        if self._cut:
            click.echo("There may be more: not all messages that are overdue were looked at.", err=True)
        if self._is_cut and self._last is not None:
            click.echo(f"Looked at {self._looked_at:,} of more{self._how_far(self._last)}: --scan looks at more.", err=True)

    def _how_far(self, last: Glance) -> str:
        """Return up to which time it has looked, in the order in which the instances are found."""
        selection = self._selection
        if selection.late_ms is not None:
            return ""
        is_oldest_first = selection.oldest_first or selection.idle_ms is not None
        at = last.created_at if selection.by or selection.paused else last.updated_at
        return f", {'up' if is_oldest_first else 'back'} to {tables.time(at)}"

    def end(self) -> None:
        """Exit with status 1 if there were instances that cannot be read."""
        if self._has_failed:
            raise click.exceptions.Exit(1)

    def _limited(self, chosen: Iterator[Glance]) -> Iterator[Glance]:
        for glance in chosen:
            if self._looked_at == self._most:
                self._is_cut = True
                return
            self._looked_at += 1
            self._last = glance
            yield glance
