"""``--where`` and ``--scan``: instances chosen by their states, which are read."""

from collections.abc import Iterator

import click

from celery_sagas.cli import tables
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import UnreadableState
from celery_sagas.operate.choosing import matching
from celery_sagas.operate.where import where_of
from celery_sagas.stores.instances import Glance
from celery_sagas.worker.runtime import Runtime


class Scan:
    """Finds those of the first so many chosen instances for which an expression holds; without an expression all of them.

    Those that cannot be read are named on the standard error.
    """

    def __init__(self, runtime: Runtime, saga: SagaDefinition, expression: str | None, most: int) -> None:
        """Read the expression.

        Raises:
            MisuseError: It is none, or names what the saga does not have, or what is hidden.
        """
        self._backend = runtime.backends.of(saga)
        self._saga = saga
        self._test = None if expression is None else where_of(saga, expression, runtime.settings.hidden)
        self._most = most
        self._looked_at = 0
        self._last: Glance | None = None
        self._is_cut = self._has_failed = False

    def find(self, chosen: Iterator[Glance]) -> Iterator[Glance]:
        """Yield those that are found."""
        if self._test is None:
            yield from chosen
            return
        for found in matching(self._backend, self._saga, self._limited(chosen), self._test):
            if isinstance(found, UnreadableState):
                self._has_failed = True
                click.echo(f"Error: {tables.line(str(found))}", err=True)
            else:
                yield found

    def tell(self, *, oldest_first: bool, by_begin: bool) -> None:
        """Say on the standard error how far it has looked, if there are more.

        Args:
            oldest_first: Whether the chosen instances come in this order.
            by_begin: Whether they come in the order in which they began, not in that of their last changes.
        """
        if self._is_cut and self._last is not None:
            at = tables.time(self._last.created_at if by_begin else self._last.updated_at)
            text = f"Looked at {self._looked_at:,} of more, {'up' if oldest_first else 'back'} to {at}"
            click.echo(f"{text}: --scan looks at more.", err=True)

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
