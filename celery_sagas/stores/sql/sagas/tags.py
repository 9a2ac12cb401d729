"""Tags as rows of ``saga_key``: commits write, move and remove them in the statements that do so with alternate keys.

The value of such a row is the digest of the saga, that of the tag, and the instance's id. So no instance takes a tag from
another, and the instances of a saga that have one tag lie side by side in the primary key, in the order of their ids.
"""

from typing import Final, TypeAlias

from celery_sagas.stores.operations import Commit, Insert, Update
from celery_sagas.stores.sql.digests import digest
from celery_sagas.stores.sql.tables import TAG

_Pairs: TypeAlias = tuple[tuple[str, str], ...]

#: Enough to keep sagas apart; should two have the same digest, a page of one passes over the instances of the other.
_SAGA_BYTES: Final = 8
#: The length of the digest of a saga.
SAGA_DIGITS: Final = 2 * _SAGA_BYTES


def digest_of_saga(prefix: str, saga: str) -> str:
    """Return the digest with which the tags of all instances under a name begin."""
    return digest(prefix, saga, size=_SAGA_BYTES)


def beginning_of(prefix: str, saga: str, tag: tuple[str, str]) -> str:
    """Return what precedes the instance's id in the values of a tag's rows."""
    return f"{digest_of_saga(prefix, saga)}{digest(*tag)}:"


def with_tag_rows(commit: Commit, prefix: str) -> Commit:
    """Return a commit that has property and value of rows in the place of its tags."""
    if isinstance(commit, Insert) and commit.new.tags:
        new = commit.new
        return commit._replace(new=new._replace(tags=_rows(prefix, new.names[0], new.id, new.tags)))
    if isinstance(commit, Update) and (commit.change.added_tags or commit.change.removed_tags):
        found, change = commit.record, commit.change
        added, removed = (_rows(prefix, found.saga, found.id, tags) for tags in (change.added_tags, change.removed_tags))
        return commit._replace(change=change._replace(added_tags=added, removed_tags=removed))
    return commit


def _rows(prefix: str, saga: str, id: str, tags: _Pairs) -> _Pairs:
    return tuple((TAG, f"{beginning_of(prefix, saga, tag)}{id}") for tag in tags)
