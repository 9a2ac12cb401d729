"""Trouble: what does not go on in a backend. It is found by indexes, however much is stored."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

from celery_sagas.core.pending import PAUSED
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.listing import glances, read_records
from celery_sagas.errors import UnreadableState
from celery_sagas.operate.choosing import LOOKED_AT, LateRows, idle_for, saga_of, waiting_with
from celery_sagas.operate.explain import LATE_MS, Verdict, explain
from celery_sagas.operate.facts import Facts, due_of, is_left_alone
from celery_sagas.operate.groups import GROUPED, grouped
from celery_sagas.operate.reading import facts_on
from celery_sagas.operate.spans import span
from celery_sagas.operate.switching import held_in
from celery_sagas.stores.instances import MOST, Glance
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, DeadLetter, Lookup, OutboxGlance, Record

FoundT = TypeVar("FoundT")
#: How many characters of an error are shown.
_ERROR = 100
#: How many instances with messages that were not handled are read: these may wait with them.
_READ = 10_000
#: How many instances are read at once; each may have a megabyte.
_PAGE = 50
#: A message, and the saga a step of which has decided it.
_Owned = tuple[OutboxGlance, SagaDefinition | None]


class Trouble(NamedTuple):
    """Something that does not go on. Its texts may have stored text in them, as it is."""

    verdict: str  #: as ``explain`` says it
    saga: str  #: the stored name; empty: it is of none, or of several
    key: str  #: empty: it is of no instance, of several, or of one that is gone or cannot be read
    id: str  #: of the instance; empty: it is of none, or of several
    since: int  #: milliseconds since the epoch
    for_ms: int  #: how long ago that was, by the store's clock, in milliseconds
    task: str  #: to which a message goes; empty: it is about none
    messages: int  #: how many; 0: that is not known
    sentence: str


@dataclass(frozen=True)
class Look:
    """A look at a backend.

    Args:
        backend: It is read; nothing is changed.
        sagas: Those that it stores.
        limit: How many troubles of each kind are returned at most, of each saga.
        idle_ms: Instances are reported that no message has changed for this time, in milliseconds; ``None``: none are.
        is_whole: Whether what belongs to none of these sagas is reported, too.
        late_ms: Messages are reported that were published, or are due, for this time and were not handled, in milliseconds.
        looked_at: How many messages, dead letters and instances are looked at, of each kind; ``None``: as many as operators wait
            for at a prompt.
    """

    backend: Backend
    sagas: Sequence[SagaDefinition]
    limit: int
    idle_ms: int | None = None
    is_whole: bool = True
    late_ms: int = LATE_MS
    looked_at: int | None = None
    cut: set[str] = field(default_factory=set)  #: once it has looked: of what there may be more
    untaken: set[str] = field(default_factory=set)  #: once it has looked: the tasks of late messages that no relay has taken

    def troubles(self) -> list[Trouble]:
        """Return what does not go on, each instance with the first of its troubles.

        Raises:
            StoreError: The store is away.
            ConfigurationError: Idle instances are asked for, or a saga has ``max_idle``, and the backend lists none.
        """
        now = self.backend.outbox.time()
        found = (
            self._held(now),
            self._paused(now),
            self._of_rows(now),
            self._of_dead_letters(now),
            self._left_alone(now),
            self._idle(now),
        )
        return each_once(trouble for part in found for trouble in part)

    def _held(self, now: int) -> Iterator[Trouble]:
        """Yield what operators hold."""
        for switch in held_in(self.backend):
            step, saga = registry.step_named(switch.name), registry.saga_named(switch.name)
            saga = step.saga if step else saga
            if saga in self.sagas or self.is_whole:
                subject = (saga.name if saga else "", "", "", switch.at, now - switch.at, step.name if step else "")
                yield Trouble(Verdict.HELD.value, *subject, 0, f"{switch.actor} holds {switch.name}: {switch.reason}")

    def _paused(self, now: int) -> Iterator[Trouble]:
        if not self.backend.has_instances:
            return
        for saga in self.sagas:
            for glance, facts in self._facts(saga, self._first(self.limit, glances(self.backend, saga, PAUSED)), now):
                if facts.pending is None:
                    yield _explained(facts, glance.updated_at)
                elif facts.pending.paused:  # it may have been resumed since the page was read
                    yield _explained(facts, facts.pending.paused.at)

    def _facts(self, saga: SagaDefinition, found: Iterator[Glance], now: int) -> Iterator[tuple[Glance, Facts]]:
        while page := list(islice(found, _PAGE)):
            yield from facts_on(self.backend, saga, page, now)

    def _first(self, most: int, found: Iterator[FoundT]) -> Iterator[FoundT]:
        """Yield so many at most; note whether there are more."""
        yield from islice(found, most)
        if next(found, None) is not None:
            self.cut.add("limit")

    def _most(self, most: int) -> int:
        return most if self.looked_at is None else min(most, self.looked_at)

    def _of_rows(self, now: int) -> Iterator[Trouble]:
        """Yield the messages that were not handled for long, cannot be published, or that no relay has taken."""
        rows = LateRows(self.backend, now - self.late_ms, self.looked_at)
        owners, shown, told = _Owners(self.backend), Counter[tuple[str, str]](), set[tuple[str, str, str]]()
        for page in self._pages(rows):
            self.untaken.update(row.task for row, _ in page if not row.tried_at)
            owners.read((row, saga) for row, saga in page if shown[_kind(row, saga)] < self.limit)
            for row, saga in page:
                kind = name, verdict = _kind(row, saga)
                about = name, verdict, row.instance_id
                if row.message_id in owners.waiting or about in told:
                    continue
                key = owners.key_of(row, saga)
                if shown[kind] == self.limit or key is None:
                    self.cut.add("limit")
                    continue
                shown[kind] += 1
                if row.instance_id:  # which may have a thousand timeouts
                    told.add(about)
                since = row.tried_at or row.due_at or row.available_at
                subject = name, key, row.instance_id, since, now - since, row.task
                yield Trouble(verdict, *subject, 1, _sentence(row, now))
        self.cut.update(rows.cut)

    def _pages(self, rows: Iterable[OutboxGlance]) -> Iterator[list[_Owned]]:
        """Yield what is meant of rows, in pages: the first has no more than is shown, since each instance of a page is read."""
        owned = ((row, saga_of(row)) for row in rows)
        meant = ((row, saga) for row, saga in owned if self.is_whole or saga in self.sagas)
        at_once = min(self.limit, _PAGE)
        while page := list(islice(meant, at_once)):
            yield page
            at_once = min(at_once * 2, _PAGE)  # many wait with their instances, or are of those that are shown

    def _of_dead_letters(self, now: int) -> Iterator[Trouble]:
        names = {name for saga in self.sagas for name in saga.names}
        newest = self._first(self._most(GROUPED), self._dead_letters())
        meant = [each for each in newest if self.is_whole or each.saga in names]
        for group in self._first(self.limit, iter(grouped(meant))):
            step = registry.step_named(group.task)
            count = f"{group.dead_letters:,} dead letter{'s' if group.dead_letters > 1 else ''}"
            sentence = f"{group.task} failed with {group.error}: {count}"
            about = (step.saga.name, group.key) if step else ("", "")
            since = group.oldest, now - group.oldest
            yield Trouble(Verdict.FAILING.value, *about, "", *since, group.task, group.dead_letters, sentence)

    def _dead_letters(self) -> Iterator[DeadLetter]:
        page = self.backend.dead.list(MOST)
        while page:
            yield from page
            page = self.backend.dead.list(MOST, page[-1].id)

    def _idle(self, now: int) -> Iterator[Trouble]:
        if self.idle_ms is None:
            return
        before = now - self.idle_ms
        for saga in self.sagas:
            for glance in self._first(self.limit, idle_for(self.backend, saga, before)):
                since = glance.updated_at, now - glance.updated_at
                yield Trouble(Verdict.IDLE.value, saga.name, glance.key, glance.id, *since, "", 1, "no message has changed it")

    def _left_alone(self, now: int) -> Iterator[Trouble]:
        """Yield the instances to which nothing is sure to come, and that no message has changed for longer than ``max_idle``."""
        for saga in self.sagas:
            if saga.max_idle_ms is not None:
                found = idle_for(self.backend, saga, now - saga.max_idle_ms)
                looked_at = self._facts(saga, self._first(self._most(LOOKED_AT), found), now)
                alone = (_explained(facts, glance.updated_at) for glance, facts in looked_at if self._is_alone(facts))
                yield from self._first(self.limit, alone)

    def _is_alone(self, facts: Facts) -> bool:
        """Return whether nothing is sure to come; what is overdue is not, unless its row is there, which is reported itself."""
        if not is_left_alone(facts, LATE_MS):
            return False
        rows = [due.row for due in due_of(facts) if due.row][:MOST]
        return not (rows and self.backend.outbox.read(rows))


class _Owners:
    """The instances of messages, each read once, up to ``_READ``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._keys = dict[str, str]()  # by their ids
        self.waiting = set[str]()  #: the ids of the messages that have come, and wait with them

    def read(self, rows: Iterable[_Owned]) -> None:
        """Read the instances of messages, up to ``_READ`` in all."""
        named = ((row.instance_id, saga) for row, saga in rows if row.instance_id and saga)
        unread = {id: saga for id, saga in named if id not in self._keys}
        unread = dict(islice(unread.items(), _READ - len(self._keys)))
        self._keys |= dict.fromkeys(unread, "")
        for saga in set(unread.values()):
            for record in self._records(saga, [id for id, owner in unread.items() if owner == saga]):
                self._keys[record.id] = record.key
                self.waiting |= waiting_with(record)

    def key_of(self, row: OutboxGlance, saga: SagaDefinition | None) -> str | None:
        """Return the key of a message's instance; empty: there is none that can be read; ``None``: it was not read."""
        return self._keys.get(row.instance_id, None if saga and row.instance_id else "")

    def _records(self, saga: SagaDefinition, ids: Sequence[str]) -> Iterator[Record]:
        """Yield the instances with some ids, without those that are gone or cannot be read."""
        if self._backend.has_instances:
            yield from (read for read in read_records(self._backend, saga, ids).values() if isinstance(read, Record))
            return
        for id in ids:
            with suppress(UnreadableState):
                if record := self._backend.sagas.find(Lookup(saga.names, ID, id)).record:
                    yield record


def each_once(troubles: Iterable[Trouble]) -> list[Trouble]:
    """Return troubles without those of an instance that one before them is about, and without repeats of any."""
    first = dict[object, Trouble]()
    for trouble in troubles:
        about = (trouble.saga, trouble.key) if trouble.saga and trouble.key else trouble.id or trouble._replace(for_ms=0)
        first.setdefault(about, trouble)
    return list(first.values())


def _explained(facts: Facts, since: int) -> Trouble:
    """Return the trouble of an instance, as ``celery sagas show`` says it."""
    verdict, sentence = explain(facts)[:2]
    about = facts.saga.name, facts.key, facts.instance_id
    return Trouble(verdict.value, *about, since, facts.now - since, "", 1, sentence.removesuffix("."))


def _kind(row: OutboxGlance, saga: SagaDefinition | None) -> tuple[str, str]:
    """Return the name of a row's saga, empty if that is none, and the verdict about it."""
    return saga.name if saga else "", _verdict_of(row)


def _verdict_of(row: OutboxGlance) -> str:
    return (Verdict.UNSENT if row.attempts or row.kind == "sent" else Verdict.OVERDUE).value


def _sentence(row: OutboxGlance, now: int) -> str:
    if row.attempts:
        times = "once" if row.attempts == 1 else f"{row.attempts:,} times"
        return f"{row.task} could not be published, {times}: {row.error[:_ERROR]}"
    if row.tried_at:
        again = f"in {span(row.available_at - now)}" if row.available_at > now else "soon"
        return f"{row.task} was published, and not handled; it is published again {again}"
    return f"{row.task} waits in the outbox: no relay that knows it has taken it"
