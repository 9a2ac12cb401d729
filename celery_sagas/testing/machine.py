"""A state machine that plays operations in any order against a simple model. It needs hypothesis."""

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from celery_sagas.errors import AlreadyHandled, RevisionConflict
from celery_sagas.stores.instances import Page
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, AuditEntry, Effects, Entry, Handling, Lookup, NewRecord, Record
from celery_sagas.testing.buffer_machine import BufferMachine
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import NewBackend, StoreFixtures
from celery_sagas.testing.model import ALREADY_HANDLED, DONE, Model
from celery_sagas.testing.plays import (
    KEYS,
    PROPERTIES,
    STEPS,
    VALUES,
    ClaimPlay,
    DeliverPlay,
    HandlePlay,
    LockPlay,
    Play,
    PlayedInstance,
    PlayedMessage,
    SettlePlay,
    SwitchPlay,
    WaitPlay,
    plays,
)
from celery_sagas.testing.samples import HOUR, NAMES, Keys, audited, by_key, change, entry, ids, new_record

#: The same games in every run. A game that fails is not made smaller: on a server that takes minutes.
BOUNDED = settings(
    max_examples=10,
    stateful_step_count=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class MachineContract(StoreFixtures):
    """Any order of operations gives the model's results."""

    #: How many games of how many plays; to look into a failure, override it and add ``Phase.shrink``.
    bounds = BOUNDED

    def test_store_behaves_as_the_model(self, new_backend: NewBackend) -> None:
        game: Any = partial(StoreMachine, new_backend)  # any callable will do, hypothesis only annotates a class
        run_state_machine_as_test(game, settings=self.bounds)

    @pytest.mark.usefixtures("aggregators")
    def test_buffers_behave_as_those_in_memory(self, new_backend: NewBackend) -> None:
        match: Any = partial(BufferMachine, new_backend)
        run_state_machine_as_test(match, settings=self.bounds)


class StoreMachine(RuleBasedStateMachine):
    """One game: a prefix that is new, and a model that is empty.

    It has one rule, since hypothesis leaves out rules at random, and a game without commits tests nothing.
    """

    def __init__(self, new_backend: NewBackend) -> None:
        super().__init__()
        self.clock = Clock()
        self.backend = new_backend(f"machine-{uuid.uuid4().hex}", self.clock)
        self.backend.prepare(create_schema=True, processes=1)
        self.model = Model(self.clock)
        self.rows = 0  #: how many rows the commits have decided
        self.commits = 0  #: how many there were
        self.seen: dict[str, list[Record | None]] = {key: [] for key in KEYS}

    @rule(play=plays)
    def play(self, play: Play) -> None:
        """Play one operation, and compare the answers."""
        match play:
            case HandlePlay():
                self._handle(play)
            case LockPlay():
                self._lock(play)
            case ClaimPlay():
                self._claim(play)
            case SettlePlay():
                self._settle(play)
            case DeliverPlay():
                count = self.backend.deliveries.count(play.step, play.message_id)
                assert count == self.model.deliver(play.step, play.message_id)
            case SwitchPlay():
                self._switch(play)
            case WaitPlay():
                self._wait(play)
        if self.backend.has_instances:
            self._compare_pages()

    def teardown(self) -> None:
        """Compare everything once more, and what is left in the outbox."""
        try:
            self._compare()
            self.clock.advance(HOUR)
            self._claim(ClaimPlay("the end", limit=1_000, lease_ms=500, cause=None))
        finally:
            self.backend.close()

    def _handle(self, play: HandlePlay) -> None:
        record = self._found(play.subject)
        if play.how == "ignored":
            self._record(play.message)
        elif record is None:
            new = new_record(play.subject.key, names=play.names, keys=play.alternates, tags=_tags(play))
            self._insert(new, play.message)
        elif play.how == "completed":
            self._delete(record, play.message)
        else:
            self._update(record, play)

    def _found(self, subject: PlayedInstance) -> Record | None:
        """Return the record that is found by the key now, or one that was found earlier."""
        seen = self.seen[subject.key]
        if subject.age and len(seen) >= subject.age:
            return seen[-subject.age]
        seen.append(self.backend.sagas.find(by_key(subject.key)).record)
        return seen[-1]

    def _insert(self, record: NewRecord, message: PlayedMessage) -> None:
        effects = self._effects(message, record, "started")
        self._commit(lambda: self.backend.sagas.insert(record, effects), self.model.insert(record, effects))

    def _update(self, record: Record, play: HandlePlay) -> None:
        made = change(data=f'"{play.message.message_id}"', cancelled=tuple(self._row_ids(play.cancelled)))
        made = made._replace(**self._difference(record, play))
        effects = self._effects(play.message, record, "handled")
        self._commit(lambda: self.backend.sagas.update(record, made, effects), self.model.update(record, made, effects))

    def _difference(self, record: Record, play: HandlePlay) -> dict[str, Any]:
        held = self.model.instances.get(record.id)
        wanted = {
            "keys": ({*play.alternates}, held.keys if held else set()),
            "tags": ({*_tags(play)}, held.tags if held else set()),
        }
        added = {f"added_{what}": tuple(sorted(new - old)) for what, (new, old) in wanted.items()}
        return added | {f"removed_{what}": tuple(sorted(old - new)) for what, (new, old) in wanted.items()}

    def _row_ids(self, positions: list[int]) -> list[str]:
        """Return the ids of rows that are counted from the newest."""
        return [f"row {self.rows - position}" for position in positions]

    def _delete(self, record: Record, message: PlayedMessage) -> None:
        effects = self._effects(message, record, "completed")
        self._commit(lambda: self.backend.sagas.delete(record, effects), self.model.delete(record, effects))

    def _record(self, message: PlayedMessage) -> None:
        effects = self._effects(message, None, "ignored")
        self._commit(lambda: self.backend.sagas.record(effects), self.model.record(effects))

    def _effects(self, message: PlayedMessage, about: NewRecord | Record | None, outcome: str) -> Effects:
        self.commits += 1
        audit_id = f"audit {self.commits}" if self.backend.has_audit else ""
        effects = message.effects(about, outcome, self.clock.now, first_row=self.rows + 1, audit_id=audit_id)
        self.rows += len(effects.outgoing)
        return effects

    def _commit(self, commit: Callable[[], None], answers: set[str]) -> None:
        assert _answer(commit) in answers

    def _switch(self, play: SwitchPlay) -> None:
        if not self.backend.has_switches:
            return
        self.commits += 1
        made = audited(entry(), action=play.how, id=f"audit {self.commits}")
        switches = self.backend.switches
        changed = switches.hold(play.name, made) if play.how == "hold" else switches.release(play.name, made)
        assert changed == self.model.switch(play.how, play.name, made)
        assert switches.held() == sorted(self.model.switches.values())

    def _lock(self, play: LockPlay) -> None:
        record = self._found(play.subject)
        if record is not None:
            locked = self.backend.sagas.lock(record, play.lock_owner, play.for_ms)
            assert locked == self.model.lock(record, play.lock_owner, play.for_ms)

    def _claim(self, play: ClaimPlay) -> None:
        """Claim, and compare with what is due; rows that are due for equally long may come in any order."""
        claimed = self.backend.outbox.claim_due(play.token, play.limit, play.lease_ms, play.cause)
        due = self.model.due(play.cause)
        due_since = {row.message.id: row.due_since for row in due}
        assert [due_since.get(id) for id in ids(claimed)] == [row.due_since for row in due[: play.limit]]
        assert len(set(ids(claimed))) == len(claimed)
        assert claimed == [self.model.rows[id].message for id in ids(claimed)]
        self.model.lease(ids(claimed), play.token, play.lease_ms)

    def _settle(self, play: SettlePlay) -> None:
        rows = self._row_ids(play.rows)
        if play.how == "confirm":
            assert self.backend.outbox.confirm(play.token, rows) == self.model.confirm(play.token, rows)
        elif play.how == "keep":
            kept = self.backend.outbox.confirm(play.token, rows, play.delay_ms + 1)
            assert kept == self.model.confirm(play.token, rows, play.delay_ms + 1)
        elif play.how == "release":
            released = self.backend.outbox.release(play.token, rows, play.delay_ms)
            assert released == self.model.release(play.token, rows, play.delay_ms)
        elif play.how == "reschedule":
            new = self.model.following(rows, play.delay_ms)
            assert self.backend.outbox.reschedule(play.token, new) == self.model.reschedule(play.token, new)
        else:
            failed = self.backend.outbox.fail(play.token, rows[0], "broken", play.delay_ms)
            assert failed == self.model.fail(play.token, rows[0], play.delay_ms)

    def _wait(self, play: WaitPlay) -> None:
        self._compare()
        self.clock.advance(play.ms)
        if play.purge_older_than_ms is not None:
            old = self.model.old(play.purge_older_than_ms)
            assert self.backend.journal.purge(play.purge_older_than_ms, 1_000) == len(old)
            self.model.forget(old)
            forgotten = self.model.forget_deliveries(play.purge_older_than_ms)
            assert self.backend.deliveries.purge(play.purge_older_than_ms, 1_000) == forgotten
            if self.backend.has_audit:
                removed = self.model.forget_audit(play.purge_older_than_ms)
                assert self.backend.audit.purge(play.purge_older_than_ms, 1_000) == removed

    def _compare_pages(self) -> None:
        """Compare all pages, and a count."""
        instances = self.backend.instances
        for name in NAMES:
            listed = self.model.listed(name)
            assert _ids(partial(instances.page, name, 3)) == listed
            assert _ids(partial(instances.page, name, 3, oldest_first=True)) == listed[::-1]
            for tag in (("size", "1"), (PROPERTIES[0], VALUES[0])):
                assert _ids(partial(instances.tagged, name, tag, 3)) == self.model.listed(name, tag)
            assert instances.count(name, 2, ("size", "1")) == len(self.model.listed(name, ("size", "1"))[:2])

    def _compare_audit(self) -> None:
        assert _audited(self.backend) == self.model.audited()
        for names in (NAMES, NAMES[1:]):
            assert _audited(self.backend, names) == self.model.audited(names)
            for key in (*KEYS, ""):
                assert _audited(self.backend, names, key) == self.model.audited(names, key)

    def _compare(self) -> None:
        """Compare everything that can be seen without changing it."""
        alternates = [(name, value) for name in PROPERTIES for value in VALUES]
        for property, value in [*((KEY, key) for key in KEYS), *alternates]:
            lookup, handling = Lookup(NAMES, property, value), Handling(STEPS[:1], "message 1")
            assert self.backend.sagas.find(lookup, handling)[:2] == self.model.find(lookup, handling)
        for key in (*KEYS, ""):
            history = self.backend.journal.history(NAMES, key, 1_000)
            assert history == sorted(history, key=lambda entry: (entry.at, entry.version))
            assert sorted(history, key=repr) == sorted(self.model.history(NAMES, key), key=repr)
        lately = _lately(self.backend)
        assert sorted(lately, key=repr) == sorted(self.model.journal.values(), key=repr)
        assert [entry.at for entry in lately] == sorted((entry.at for entry in lately), reverse=True)
        if self.backend.has_audit:
            self._compare_audit()
        assert self.backend.outbox.count() == len(self.model.rows)
        assert [row.id for row in self.backend.outbox.tried(self.clock.now, 500)] == self.model.tried()
        for cause in (entry(step=step, message_id=f"message {number}") for step in STEPS for number in (1, 2, 3)):
            assert self.backend.outbox.count_leased(cause) == self.model.leased(cause)


def _tags(play: HandlePlay) -> Keys:
    """Return the tags of the instance that a play writes: some are alternate keys too, and several instances may have one."""
    return tuple(sorted({("size", str(len(play.alternates))), *play.alternates}))


def _ids(read: Callable[..., Page]) -> list[str]:
    """Return the ids of all pages."""
    page = read()
    found = list(page.instances)
    while page.after:
        page = read(after=page.after)
        found += page.instances
    return [glance.id for glance in found]


def _lately(backend: Backend) -> list[Entry]:
    """Return all entries of the journal, by calls that go on where the one before has ended."""
    page = backend.journal.recent(3)
    found = list(page.entries)
    while page.after:
        page = backend.journal.recent(3, page.after)
        found += page.entries
    return found


def _audited(backend: Backend, names: Sequence[str] = (), key: str | None = None) -> list[AuditEntry]:
    """Return all entries of the audit, likewise."""
    page = backend.audit.recent(3, "", names, key)
    found = list(page.entries)
    while page.after:
        page = backend.audit.recent(3, page.after, names, key)
        found += page.entries
    return found


def _answer(commit: Callable[[], None]) -> str:
    try:
        commit()
    except RevisionConflict as exc:
        return exc.reason
    except AlreadyHandled:
        return ALREADY_HANDLED
    return DONE
