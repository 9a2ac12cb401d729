"""Groups of dead letters: by task and error."""

from collections.abc import Iterable
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


def grouped(found: Iterable[DeadLetter]) -> list[Group]:
    """Return the groups of dead letters, those with the most first."""
    times: dict[tuple[str, str], list[int]] = {}
    for each in found:
        times.setdefault((each.task, each.error), []).append(each.at)
    groups = [Group(task, error, len(at), max(at), min(at)) for (task, error), at in times.items()]
    return sorted(groups, key=lambda group: -group.dead_letters)
