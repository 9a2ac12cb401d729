"""Groups of dead letters: by task and error."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from celery_sagas.stores.records import DeadLetter

#: How many dead letters are looked at, the newest ones.
GROUPED: Final = 10_000


class Group(NamedTuple):
    """The dead letters of one task with one error. Times are in milliseconds since the epoch."""

    task: str
    error: str
    dead_letters: int
    newest: int
    oldest: int
    key: str  #: of the instance that all of them are of; empty: they are of several, or of none


def grouped(found: Iterable[DeadLetter]) -> list[Group]:
    """Return the groups of dead letters, those with the most first."""
    parts: dict[tuple[str, str], list[DeadLetter]] = {}
    for each in found:
        parts.setdefault((each.task, each.error), []).append(each)
    return sorted((_group(part) for part in parts.values()), key=lambda group: -group.dead_letters)


def _group(part: Sequence[DeadLetter]) -> Group:
    times, keys = [each.at for each in part], {(each.saga, each.key) for each in part}
    key = part[0].key if len(keys) == 1 else ""
    return Group(part[0].task, part[0].error, len(part), max(times), min(times), key)
