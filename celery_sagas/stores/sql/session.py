"""A connection, while one operation has it to itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from celery_sagas.stores.sql.statements import Build, Shape, Step, Values

if TYPE_CHECKING:
    from celery_sagas.stores.sql.database import Database

Row: TypeAlias = Sequence[Any]


class Session:
    """Runs statements, each as a transaction of its own unless one is begun."""

    def __init__(self, database: Database, cursor: DBAPICursor) -> None:
        self._database = database
        self._cursor = cursor
        self._is_open = False
        self._sent: tuple[str, Sequence[dict[str, object]]] = ("", ())

    def fetch(self, build: Build, shape: Shape, values: Values) -> list[Row]:
        """Run a statement and return its rows."""
        rows = self._run(build, shape, values).fetchall()
        return list(map(_decoded, rows)) if self._database.name == "mysql" else list(rows)

    def change(self, build: Build, shape: Shape, values: Values) -> int:
        """Run a statement and return how many rows it changed."""
        return self._run(build, shape, values).rowcount

    def change_each(self, build: Build, shape: Shape, rows: Sequence[Values]) -> None:
        """Run a statement with each of several rows: on SQLite without a trip, on MySQL as one ``INSERT`` of them all."""
        statement = self._database.statement(build, shape)
        self._observe(statement.text)
        self._sent = statement.text, [statement.bind(row) for row in rows]
        self._cursor.executemany(*self._sent)

    def commit_steps(self, steps: Sequence[Step]) -> bool:
        """Run the steps of a commit, all or none.

        Returns:
            ``False`` if nothing was written, because a required step changed no row.
        """
        if len(steps) == 1:
            return self._take(steps[0])
        self.begin()
        for step in steps:
            if not self._take(step):
                self.end("ROLLBACK")
                return False
        self.end("COMMIT")
        return True

    def change_all(self, steps: Sequence[Step]) -> int:
        """Run steps, all or none; return how many rows they changed."""
        if len(steps) > 1:
            self.begin()
        changed = sum(self.change(step.build, step.shape, step.values) for step in steps)
        if len(steps) > 1:
            self.end("COMMIT")
        return changed

    def _take(self, step: Step) -> bool:
        return self.change(step.build, step.shape, step.values) > 0 or not step.is_required

    def measure(self) -> int:
        """Return how large the last statement was, as PyMySQL has sent it: with its values. Bytes."""
        (text, rows), cursor = self._sent, cast(Any, self._cursor)
        return 1 + max((len(cursor.mogrify(text, row).encode()) for row in rows), default=len(text))  # 1: the command

    def begin(self) -> None:
        """Begin a transaction."""
        self._is_open = True
        self._execute(self._database.dialect.begin)

    def end(self, how: str) -> None:
        """End the transaction with ``COMMIT`` or ``ROLLBACK``."""
        self._execute(how)
        self._is_open = False

    def recover(self) -> bool:
        """Undo what an error left open (MySQL keeps it, to be committed with what comes next); tell whether that worked."""
        if not self._is_open:
            return True
        try:
            self.end("ROLLBACK")
        except self._database.driver.Error:
            return False
        return True

    @property
    def database(self) -> str:
        """The kind of the database."""
        return self._database.name

    def _run(self, build: Build, shape: Shape, values: Values) -> DBAPICursor:
        statement = self._database.statement(build, shape)
        return self._execute(statement.text, statement.bind(values))

    def _execute(self, text: str, *parameters: dict[str, object]) -> DBAPICursor:
        self._observe(text)
        self._sent = text, parameters
        self._cursor.execute(text, *parameters)
        return self._cursor

    def _observe(self, text: str) -> None:
        for observer in self._database.observers:
            observer(text)


def _decoded(row: Row) -> Row:
    """Return a row as text: MySQL returns what is compared byte by byte as bytes."""
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row)
