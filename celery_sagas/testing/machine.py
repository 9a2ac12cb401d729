"""A state machine that plays operations in any order against a simple model. It needs hypothesis."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_sagas.errors import AlreadyHandled, RevisionConflict
from celery_sagas.stores.records import KEY, Effects, Handling, Lookup, NewRecord, Record
from celery_sagas.testing import plays
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import NewBackend, StoreFixtures
from celery_sagas.testing.model import ALREADY_HANDLED, DONE, Model
from celery_sagas.testing.plays import Message
from celery_sagas.testing.samples import HOUR, NAMES, Keys, by_key, change, ids, new_record

#: The same examples in every run.
BOUNDED = settings(
    max_examples=30,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class MachineContract(StoreFixtures):
    """Any order of operations leads to what the model says."""

    #: How many games of how many operations are played.
    bounds = BOUNDED

    def test_store_behaves_as_the_model(self, new_backend: NewBackend) -> None:
        """PM-01 to PM-16, T6, T8, T13."""
        game: Any = partial(StoreMachine, new_backend)  # hypothesis takes any callable, and annotates a class
        run_state_machine_as_test(game, settings=self.bounds)


class StoreMachine(RuleBasedStateMachine):
    """One game: a new prefix, and a model that starts as empty."""

    def __init__(self, new_backend: NewBackend) -> None:
        super().__init__()
        self.clock = Clock()
        self.backend = new_backend(f"machine-{uuid.uuid4().hex}", self.clock)
        self.backend.prepare(create_schema=True, processes=1)
        self.model = Model(self.clock)
        self.rows = 0
        self.seen: list[Record | None] = [None]

    @rule(
        how=plays.outcomes,
        key=plays.keys,
        age=plays.ages,
        names=plays.names,
        alternates=plays.alternates(),
        message=plays.messages("sent", "scheduled", "deadline"),
    )
    def handle(self, how: str, key: str, age: int, names: tuple[str, ...], alternates: Keys, message: Message) -> None:
        """Commit what the instance that was found, now or some time ago, suggests."""
        record = self._subject(key, age)
        if how == "ignored":
            self._record(message)
        elif record is None:
            self._insert(new_record(key, names=names, keys=alternates), message)
        elif how == "completed":
            self._delete(record, message)
        else:
            self._update(record, alternates, message)

    @rule(key=plays.keys, age=plays.ages, holder=st.sampled_from(plays.HOLDERS[1:]), for_ms=plays.durations)
    def reserve(self, key: str, age: int, holder: str, for_ms: int) -> None:
        """Reserve an instance, if one was found."""
        record = self._subject(key, age)
        if record is not None:
            assert self.backend.sagas.reserve(record, holder, for_ms) == self.model.reserve(record, holder, for_ms)

    @rule(token=plays.tokens, limit=st.integers(1, 6), lease_ms=plays.durations, cause=st.none() | plays.handlings)
    def claim(self, token: str, limit: int, lease_ms: int, cause: Handling | None) -> None:
        """Claim rows that are due."""
        self._claim(token, limit, lease_ms, cause)

    @rule(how=st.sampled_from(["confirm", "release", "fail"]), token=plays.tokens, positions=plays.positions, ms=plays.durations)
    def settle(self, how: str, token: str, positions: list[int], ms: int) -> None:
        """Say what has become of rows, counted from the newest."""
        rows = [f"row {self.rows - position}" for position in positions]
        if how == "confirm":
            assert self.backend.outbox.confirm(token, rows) == self.model.confirm(token, rows)
        elif how == "release":
            assert self.backend.outbox.release(token, rows) == self.model.release(token, rows)
        else:
            failed = self.backend.outbox.fail(token, rows[0], "broken", ms)
            assert failed == self.model.fail(token, rows[0], ms)

    @rule(ms=plays.seconds, older_than_ms=st.none() | plays.durations)
    def let_time_pass(self, ms: int, older_than_ms: int | None) -> None:
        """Advance the clock, and perhaps purge the journal."""
        self.clock.advance(ms)
        if older_than_ms is not None:
            old = self.model.old(older_than_ms)
            assert self.backend.journal.purge(older_than_ms, 1_000) == len(old)
            self.model.forget(old)

    @invariant()
    def instances_are_as_in_the_model(self) -> None:
        alternates = [(name, value) for name in plays.PROPERTIES for value in plays.VALUES]
        for property, value in [(KEY, key) for key in plays.KEYS] + alternates:
            lookup, handling = Lookup(NAMES, property, value), Handling(plays.STEPS[:1], "message 1")
            answer = self.backend.sagas.find(lookup, handling)
            assert answer == self.model.find(lookup, handling)
            if answer.record is not None and answer.record not in self.seen:
                self.seen.append(answer.record)

    @invariant()
    def journal_is_as_in_the_model(self) -> None:
        for key in (*plays.KEYS, ""):
            history = self.backend.journal.history(NAMES, key, 1_000)
            assert history == sorted(history, key=lambda entry: (entry.at, entry.version))
            assert sorted(history, key=repr) == sorted(self.model.history(NAMES, key), key=repr)

    @invariant()
    def rows_are_as_many_as_in_the_model(self) -> None:
        assert self.backend.outbox.count() == len(self.model.rows)

    def teardown(self) -> None:
        try:
            self.clock.advance(HOUR)
            self._claim("the end", limit=1_000, lease_ms=500, cause=None)
        finally:
            self.backend.close()

    def _subject(self, key: str, age: int) -> Record | None:
        """Return what is found by the key now, or what was found at an earlier time."""
        found = [record for record in self.seen if record is None or record.key == key]
        return found[-age] if age and len(found) >= age else self.backend.sagas.find(by_key(key)).record

    def _record(self, message: Message) -> None:
        effects = self._effects(message, None, "ignored")
        self._commit(lambda: self.backend.sagas.record(effects), self.model.record(effects))

    def _insert(self, record: NewRecord, message: Message) -> None:
        effects = self._effects(message, record, "started")
        self._commit(lambda: self.backend.sagas.insert(record, effects), self.model.insert(record, effects))

    def _update(self, record: Record, alternates: Keys, message: Message) -> None:
        held = self.model.instances[record.id].keys if record.id in self.model.instances else set()
        added, removed = sorted(set(alternates) - held), sorted(held - set(alternates))
        made = change(data=f'"{message.message_id}"', added=tuple(added), removed=tuple(removed))
        effects = self._effects(message, record, "handled")
        self._commit(lambda: self.backend.sagas.update(record, made, effects), self.model.update(record, made, effects))

    def _delete(self, record: Record, message: Message) -> None:
        effects = replace(self._effects(message, record, "completed"), outgoing=())
        self._commit(lambda: self.backend.sagas.delete(record, effects), self.model.delete(record, effects))

    def _effects(self, message: Message, about: NewRecord | Record | None, outcome: str) -> Effects:
        effects = message.effects(about, outcome, self.clock.now, first_row=self.rows + 1)
        self.rows += len(effects.outgoing)
        return effects

    def _commit(self, commit: Callable[[], None], answers: set[str]) -> None:
        assert _answer(commit) in answers

    def _claim(self, token: str, limit: int, lease_ms: int, cause: Handling | None) -> None:
        """Claim, and compare with what is due; rows that are due for equally long may come in any order."""
        claimed = self.backend.outbox.claim_due(token, limit, lease_ms, cause)
        due = self.model.due(cause)
        due_since = {row.message.id: row.due_since for row in due}
        assert [due_since.get(id) for id in ids(claimed)] == [row.due_since for row in due[:limit]]
        assert all(row == self.model.rows[row.id].message for row in claimed)
        assert len(set(ids(claimed))) == len(claimed)
        self.model.lease(ids(claimed), token, lease_ms)


def _answer(commit: Callable[[], None]) -> str:
    try:
        commit()
    except RevisionConflict as exc:
        return exc.reason
    except AlreadyHandled:
        return ALREADY_HANDLED
    return DONE
