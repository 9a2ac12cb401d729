"""Commits as the statements that a kind of database runs for them."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from celery_sagas.stores.operations import Commit, Delete, Insert, Update
from celery_sagas.stores.records import Change, Effects, NewRecord, Record
from celery_sagas.stores.sql.connection.statements import Execution
from celery_sagas.stores.sql.sagas import postgresql, transactions
from celery_sagas.stores.sql.sagas.tags import with_tag_rows


class _Commits(Protocol):
    """The commits of a kind of database: their statements, in order."""

    def insert(self, record: NewRecord, effects: Effects) -> list[Execution]: ...
    def update(self, record: Record, change: Change, effects: Effects) -> list[Execution]: ...
    def delete(self, record: Record, effects: Effects) -> list[Execution]: ...
    def record(self, effects: Effects) -> list[Execution]: ...


class Prepared(NamedTuple):
    """A commit, and the statements for it."""

    commit: Commit  #: with rows of ``saga_key`` in the place of tags
    make_steps: Callable[..., list[Execution]]
    effects: Effects
    found: Record | None = None  #: the instance as it was found, if there was one
    adds_keys: bool = False

    @property
    def steps(self) -> list[Execution]:
        """The statements, in order."""
        return self.make_steps(*self.commit)


def preparing(database: str, prefix: str) -> Callable[[Commit], Prepared]:
    """Return what prepares the commits for a kind of database, under a prefix."""
    commits: _Commits = postgresql if database == "postgresql" else transactions

    def prepare(given: Commit) -> Prepared:
        commit = with_tag_rows(given, prefix)
        if isinstance(commit, Update):
            return Prepared(commit, commits.update, commit.effects, commit.record, bool(commit.change.added_keys))
        if isinstance(commit, Insert):
            return Prepared(commit, commits.insert, commit.effects)
        if isinstance(commit, Delete):
            return Prepared(commit, commits.delete, commit.effects, commit.record)
        return Prepared(commit, commits.record, commit.effects)

    return prepare
