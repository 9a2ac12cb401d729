"""The live instances of a saga, read in pages."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from celery_sagas.core.keys import NotAKey
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.history import has_changed_it
from celery_sagas.engine.instance import ReadOutcomes, load_instance
from celery_sagas.errors import CorrelationError, DefinitionError, UnreadableState
from celery_sagas.stores.instances import Glance, Instances, Page, glance_at
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Entry, Record

StateT = TypeVar("StateT")
#: Returns the place of an instance in the order of a listing.
Place = Callable[[Glance], str]

#: How many states are read at once; each may have a megabyte.
_PAGE: Final = 50
#: More instances than there can be.
_EVERY: Final = 2**31 - 1


@dataclass(frozen=True)
class Listing(Generic[StateT]):
    """The live instances of a saga, or those with a value: iterate over them, or count them.

    Each iteration begins anew. Instances may begin, change and end meanwhile: one that is there all the time, and does not
    change, comes once, also if it is renamed. One that changes after its page was read may come with another value than the one
    that is listed. One that cannot be read raises ``UnreadableState`` or ``NewerState``, and ``next()`` goes on with the one
    after it; any other error ends the iteration.
    """

    _backend: Backend
    _saga: SagaDefinition
    _tag: tuple[str, str] | None
    _oldest_first: bool
    _read_outcomes: ReadOutcomes

    def __iter__(self) -> Iterator[StateT]:
        """Yield fresh, read-only copies, which are read in pages."""
        return map(self._load, self._records())  # unlike a generator, it goes on after an error

    def count(self, at_most: int | None = None) -> int:
        """Return how many instances there are.

        Args:
            at_most: Where to stop: a count costs what it counts.
        """
        if at_most is None and self._tag is None:
            return sum(self._backend.sagas.count(self._saga.names).values())
        most, counted = _EVERY if at_most is None else min(at_most, _EVERY), 0
        for name in self._saga.names:
            if counted < most:
                counted += self._backend.instances.count(name, most - counted, self._tag)
        return counted

    def _records(self) -> Iterator[Record | UnreadableState]:
        found = glances(self._backend, self._saga, self._tag, oldest_first=self._oldest_first)
        return (read for _, read in records_of(self._backend, self._saga, found))

    def _load(self, read: Record | UnreadableState) -> Any:
        if isinstance(read, UnreadableState):
            raise read
        return load_instance(self._saga, read, read_outcomes=self._read_outcomes)


def listing(
    backend: Backend, saga: SagaDefinition, by: Mapping[str, object], read_outcomes: ReadOutcomes, *, oldest_first: bool
) -> Listing[Any]:
    """Return the instances of a saga, or those with a value of a field in ``search_by``.

    Raises:
        DefinitionError: The saga is not listed by this field, or there are several.
        CorrelationError: The value is none of the field's.
        TypeError: ``oldest_first`` is given with a field.
    """
    if by and oldest_first:
        raise TypeError("oldest_first= is for all instances: those with a value are listed by when they began")
    return Listing(backend, saga, tag_of(saga, by), oldest_first, read_outcomes)


def count_live(backend: Backend, saga: SagaDefinition, at_most: int) -> int:
    """Count the instances of a saga; where the backend lists them, ``at_most`` under each of its names."""
    if not backend.has_instances:
        return sum(backend.sagas.count(saga.names).values())
    return sum(backend.instances.count(name, at_most) for name in saga.names)


def tag_of(saga: SagaDefinition, by: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the tag that instances with a value have; ``None`` if no field is named.

    Raises:
        DefinitionError: The saga is not listed by this field, or there are several.
        CorrelationError: The value is none of the field's.
    """
    if not by:
        return None
    if len(by) > 1 or not by.keys() <= saga.search_properties.keys():
        fields = ", ".join(saga.search_by) or "no field"
        remedy = f"It is listed by {fields}; search_by= declares more, and one is named at a time"
        raise DefinitionError(saga.cls.__qualname__, f"it cannot be listed by {' and '.join(by)}", remedy)
    ((name, value),) = by.items()
    part = saga.search_properties[name]
    try:
        return name, part.text(part.convert(value))
    except ValueError as exc:
        problem = "{} is no value of it: {}".format(*exc.args) if isinstance(exc, NotAKey) else str(exc)
        raise CorrelationError("", f"{name}: {problem}", saga.cls.__qualname__) from exc


def glances(
    backend: Backend,
    saga: SagaDefinition,
    tag: tuple[str, str] | None,
    *,
    oldest_first: bool = False,
    at_once: int = _PAGE,
    after: str = "",
) -> Iterator[Glance]:
    """Yield the instances of a saga under all of its names, or those that have a tag.

    Those that were committed last come first, or those with a tag that began last; the other way round with ``oldest_first``,
    which is for instances without a tag. ``at_once`` are read with a page. With ``after``, the place of an instance, or its id if
    there is a tag, those that follow it.
    """
    by_place: Place = (lambda glance: glance.place) if tag is None else (lambda glance: glance.id)
    read = partial(_page, backend.instances, tag, by_place, at_once, oldest_first=oldest_first)
    is_behind = operator.gt if oldest_first else operator.lt
    ahead: dict[str, Page] = {}
    end, is_first = after, True
    while end or is_first:
        start, end, is_first = end, "", False
        # A rename moves instances to the first of the names, which is read last: none is missed, and some come twice.
        for name in reversed(saga.names):
            page = ahead[name] if name in ahead and ahead[name].after != start else read(name, start)
            if end and (not page.after or is_behind(page.after, end)):
                page = page._replace(after=end)  # what follows is read again, when the names before it are read so far
            ahead[name], end = page, page.after
        merged = {glance.id: glance for page in ahead.values() for glance in page.instances}.values()
        left = [each for each in merged if not start or is_behind(by_place(each), start)]
        shown = [each for each in left if not end or not is_behind(by_place(each), end)]
        yield from sorted(shown, key=by_place, reverse=not oldest_first)


def changed(backend: Backend, saga: SagaDefinition, entries: Iterable[Entry]) -> Iterator[Glance]:
    """Yield the instances that the messages of entries have changed, as they are now; not those that have ended since."""
    ids = iter(dict.fromkeys(entry.instance_id for entry in entries if has_changed_it(entry)))
    while part := list(islice(ids, _PAGE)):
        read = read_records(backend, saga, part)
        yield from (glance_at(record) for id in part if isinstance(record := read.get(id), Record))


def records_of(
    backend: Backend, saga: SagaDefinition, found: Iterator[Glance]
) -> Iterator[tuple[Glance, Record | UnreadableState]]:
    """Yield instances with their records, read in pages, or the errors of those that are damaged; not those that have ended."""
    while part := list(islice(found, _PAGE)):
        read = read_records(backend, saga, [glance.id for glance in part])
        yield from ((glance, read[glance.id]) for glance in part if glance.id in read)


def read_records(backend: Backend, saga: SagaDefinition, ids: Sequence[str]) -> Mapping[str, Record | UnreadableState]:
    """Return the instances with some ids, under whichever name they are; in the place of a record that is damaged, the error."""
    read: dict[str, Record | UnreadableState] = {}
    for name in reversed(saga.names):  # see glances()
        read |= _read(backend.instances, name, [id for id in ids if id not in read])
    return read


def _read(instances: Instances, name: str, ids: Sequence[str]) -> Mapping[str, Record | UnreadableState]:
    try:
        return {record.id: record for record in instances.read(name, ids)} if ids else {}
    except UnreadableState as exc:
        if len(ids) == 1:
            return {ids[0]: exc}
        return {id: each for one in ids for id, each in _read(instances, name, [one]).items()}


def _page(
    instances: Instances, tag: tuple[str, str] | None, by_place: Place, limit: int, name: str, after: str, *, oldest_first: bool
) -> Page:
    """Return the next page under a name that has an instance, or the last one; it ends with the place of its last instance."""
    while True:
        if tag is None:
            page = instances.page(name, limit, after, oldest_first=oldest_first)
        else:
            page = instances.tagged(name, tag, limit, after)
        if page.instances or not page.after:
            return page._replace(after=by_place(page.instances[-1]) if page.after else "")
        after = page.after
