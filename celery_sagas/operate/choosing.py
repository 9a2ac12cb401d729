"""Choosing instances: all of a saga, those with a value, the paused, the idle or the late ones.

These are found by indexes. For which of them an expression holds is found out by reading their states.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, NamedTuple

from celery_sagas.core.codec import decode
from celery_sagas.core.pending import PAUSED
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.instance import pending_of
from celery_sagas.engine.listing import glances, read_records, records_of, tag_of
from celery_sagas.errors import NewerState, UnreadableState
from celery_sagas.operate.where import Test
from celery_sagas.stores.instances import MOST, Glance, glance_at, slot_of
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxGlance, Record

#: How many instances, or rows of the outbox, are looked at.
LOOKED_AT: Final = 100_000
#: How many instances are read at once; each may have a megabyte.
_PAGE: Final = 50


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which instances of a saga are meant: all, or those that one of these chooses.

    Args:
        by: The value of a field in ``search_by``.
        paused: Those that an operator has paused.
        idle_ms: Those that no message has changed for this time, in milliseconds.
        late_ms: Those for which something is overdue for this time, in milliseconds.
        oldest_first: All, those first that no message has changed for the longest time.
        where: Of the chosen ones those for whose states this expression holds.

    Raises:
        TypeError: More than one choice is given.
    """

    by: Mapping[str, object] = field(default_factory=dict)
    paused: bool = False
    idle_ms: int | None = None
    late_ms: int | None = None
    oldest_first: bool = False
    where: str | None = None

    def __post_init__(self) -> None:
        choices = {"a field in search_by": bool(self.by), "paused": self.paused, "oldest first": self.oldest_first}
        choices |= {"idle": self.idle_ms is not None, "late": self.late_ms is not None}
        given = [name for name, is_given in choices.items() if is_given]
        if len(given) > 1:
            raise TypeError(f"choose by one of these: {', '.join(given)}")

    def chosen(self, backend: Backend, saga: SagaDefinition, after: str = "", looked_at: int | None = None) -> "Chosen":
        """Return the chosen instances of a saga, read in pages by an index, whatever their states are.

        Args:
            backend: Stores them.
            saga: Their saga.
            after: Where they begin: ``place_of`` the instance before; late ones have none.
            looked_at: How many messages are looked at for late ones, of each kind; ``None``: ``LOOKED_AT``.

        Raises:
            ValueError: ``after`` is no place.
            DefinitionError: The saga is not listed by this field.
            CorrelationError: The value is none of the field's.
        """
        if self.late_ms is not None:
            rows = LateRows(backend, backend.outbox.time() - self.late_ms, looked_at)
            return Chosen(_late_in(backend, saga, rows), rows.cut)
        if self.idle_ms is not None:
            return Chosen(idle_for(backend, saga, backend.outbox.time() - self.idle_ms, after))
        tag = PAUSED if self.paused else tag_of(saga, self.by)
        return Chosen(glances(backend, saga, tag, oldest_first=self.oldest_first, after=after))

    def place_of(self, glance: Glance) -> str:
        """Return where the instances go on that follow one; empty: that cannot be told."""
        if self.late_ms is not None:
            return ""
        return glance.id if self.by or self.paused else glance.place


class Chosen(NamedTuple):
    """The chosen instances of a saga."""

    found: Iterator[Glance]
    cut: Set[str] = frozenset()  #: once all are found: of what there may be more


def idle_for(backend: Backend, saga: SagaDefinition, before: int, after: str = "") -> Iterator[Glance]:
    """Yield the instances that no message has changed since a time (milliseconds since the epoch), the oldest slot first.

    With ``after``, the place of an instance, those that follow it.
    """
    oldest = glances(backend, saga, None, oldest_first=True, at_once=MOST, after=after)  # in a slot they are in no order of time
    near = takewhile(lambda glance: slot_of(glance.updated_at) <= slot_of(before), oldest)
    return (glance for glance in near if glance.updated_at <= before)


def matching(backend: Backend, saga: SagaDefinition, found: Iterator[Glance], test: Test) -> Iterator[Glance | UnreadableState]:
    """Yield those instances for whose states a test holds, as they are stored, and the errors of those that cannot be read.

    A state need not be one that today's class loads.
    """
    for _, read in records_of(backend, saga, found):
        try:
            if isinstance(read, UnreadableState):
                yield read
            elif test(decode(saga, read.key, read.data)):
                yield glance_at(read)
        except UnreadableState as exc:
            yield exc


def _late_in(backend: Backend, saga: SagaDefinition, rows: "LateRows") -> Iterator[Glance]:
    """Yield the instances that wait for a timeout or a deadline that is late, each once."""
    due = (row for row in rows if _is_awaited(row) and saga_of(row) == saga)
    found = set[str]()
    while page := list(islice(due, _PAGE)):
        yield from _late_on(backend, saga, page, found)


def _late_on(backend: Backend, saga: SagaDefinition, page: Sequence[OutboxGlance], found: set[str]) -> Iterator[Glance]:
    """Yield the instances that wait for messages on a page, without those that were found before, and add their ids."""
    read = read_records(backend, saga, list({row.instance_id for row in page} - found))
    for row in page:
        record = read.get(row.instance_id)
        if record is not None and row.instance_id not in found and row.message_id not in waiting_with(record):
            found.add(row.instance_id)
            yield _damaged(saga, row) if isinstance(record, UnreadableState) else glance_at(record)


def _is_awaited(row: OutboxGlance) -> bool:
    """Return whether an instance waits for a message: it is a timeout, a deadline or that of a series."""
    return row.kind != "sent" and bool(row.instance_id)


def count_late(backend: Backend, sagas: Sequence[SagaDefinition], before: int, at_most: int) -> dict[str, int]:
    """Count the instances of each saga for which something is late since a time, up to a number: the messages are read once."""
    found = {saga.name: set[str]() for saga in sagas}
    rows = filter(_is_awaited, LateRows(backend, before))
    while page := list(islice(rows, MOST)):
        owners = [saga_of(row) for row in page]
        for saga in sagas:
            due = (row for row, owner in zip(page, owners, strict=True) if owner == saga)
            while len(found[saga.name]) < at_most and (part := list(islice(due, _PAGE))):
                for _ in _late_on(backend, saga, part, found[saga.name]):
                    pass
    return {name: min(len(ids), at_most) for name, ids in found.items()}


def waiting_with(record: Record | UnreadableState) -> set[str]:
    """Return the ids of the messages that have come, and wait with an instance; none if that cannot be read."""
    try:
        return set() if isinstance(record, UnreadableState) else {each.id for each in pending_of(record).deferred}
    except (UnreadableState, NewerState):
        return set()


def _damaged(saga: SagaDefinition, row: OutboxGlance) -> Glance:
    return Glance(row.instance_id, saga.name, "", 0, 0, 0, None, 0, 0)


class LateRows:
    """The messages that were published before a time and not handled, could not be, or that no relay has taken since.

    Args:
        backend: Has them in its outbox.
        before: Milliseconds since the epoch.
        looked_at: How many of each of the two kinds are looked at; ``None``: ``LOOKED_AT``.
    """

    def __init__(self, backend: Backend, before: int, looked_at: int | None = None) -> None:
        self._outbox = backend.outbox
        self._before = before
        self._pages = (LOOKED_AT if looked_at is None else looked_at) // MOST
        self._cut = set[str]()

    @property
    def cut(self) -> Set[str]:
        """Once they were iterated over: of which of them there may be more."""
        return self._cut

    def __iter__(self) -> Iterator[OutboxGlance]:
        """Yield them, read in pages."""
        after = ""
        for _ in range(self._pages):
            page = self._outbox.tried(self._before, MOST, after)
            yield from page
            if not page:
                break
            after = page[-1].place
        else:
            self._cut.add("tried")
        yield from self.untried()

    def untried(self) -> Iterator[OutboxGlance]:
        """Yield those that no relay has taken, read in pages."""
        after, seen = "", set[str]()
        for _ in range(self._pages):
            page = self._outbox.overdue(self._before, MOST, after)
            yield from (row for row in page.rows if row.id not in seen)  # a relay that does not know it puts it off
            seen |= {row.id for row in page.rows}
            if not (after := page.after):
                return
        self._cut.add("untried")


def saga_of(row: OutboxGlance) -> SagaDefinition | None:
    """Return the saga a step of which has decided a message; ``None`` if it was none, or the app does not define it."""
    step = registry.step_named(row.step)
    return step.saga if step else registry.saga_named(row.step.rpartition(".")[0])
