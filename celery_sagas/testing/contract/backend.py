"""``Backend``: readiness, many operations at once, and the prefix that partitions everything."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.health import Subject
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import HOURLY, add, flush
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend
from celery_sagas.testing.contract.many import ManyContract
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    STEP,
    by_id,
    by_key,
    by_tracking,
    change,
    claim,
    complete,
    conflict,
    dead_letter,
    effects,
    entry,
    found,
    handled,
    ids,
    is_there,
    new_record,
    outgoing,
    send,
    start,
    update,
)
from celery_sagas.testing.view import nothing_written, view

T1 = (("tracking", "T1"),)
#: A trigger that fires an hour after the oldest item, or for three items.
TIMED = HOURLY._replace(size=3)


class BackendContract(ManyContract):
    """The requirements on every ``Backend``."""

    @pytest.fixture
    def other(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> Backend:
        """A backend on the same server under another prefix, which differs in its case alone."""
        other = open_backend(prefix.upper())
        other.prepare(create_schema=True, processes=1)
        return other

    def test_prepare_returns_a_list_of_warnings(self, backend: Backend) -> None:
        """There may be none: the store's own tests check their texts."""
        warnings = backend.prepare(create_schema=True, processes=1)
        assert isinstance(warnings, Sequence)
        assert not isinstance(warnings, str)
        assert all(isinstance(warning, str) for warning in warnings)

    def test_prepare_keeps_what_is_stored(self, backend: Backend) -> None:
        """It may be called any number of times."""
        start(backend, "42", outgoing(), keys=T1)
        with nothing_written(backend):
            backend.prepare(create_schema=True, processes=1)
            backend.prepare(create_schema=False, processes=1)

    def test_health_changes_nothing(self, backend: Backend) -> None:
        """There may be nothing to say: the store's own tests check the texts."""
        start(backend, "42", outgoing(), keys=T1)
        with nothing_written(backend):
            remarks = backend.health()
        assert not any(remark.subject is Subject.LAYOUT for remark in remarks)

    def test_many_workers_prepare_at_once(self, open_backend: OpenBackend, prefix: str) -> None:
        workers = [open_backend(prefix) for _ in range(4)]
        with ThreadPoolExecutor(len(workers)) as threads:
            done = [threads.submit(worker.prepare, create_schema=True, processes=1) for worker in workers]
            for future in done:
                future.result()
        start(workers[0])
        assert is_there(workers[-1], by_key())

    @pytest.fixture
    def noting(self, backend: Backend) -> Backend:
        """The backend, if it notes apps: it need not."""
        if type(backend).note_app is Backend.note_app:
            pytest.skip("this backend notes no apps")
        return backend

    def test_app_that_was_noted_last_is_returned(self, noting: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """It is returned to the next process."""
        assert noting.note_app("shop") == ""
        assert noting.note_app("shop") == "shop"
        assert open_backend(prefix).note_app("Shop") == "shop"
        assert noting.note_app("shop ") == "Shop"
        assert noting.note_app("läden\n" * 100) == "shop "
        assert noting.note_app("shop") == "läden\n" * 100

    def test_app_of_another_prefix_is_not_returned(self, noting: Backend, other: Backend) -> None:
        noting.note_app("shop")
        assert other.note_app("billing") == ""
        assert noting.note_app("shop") == "shop"

    def test_apps_that_are_noted_at_once(self, noting: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """Each is returned to one other."""
        names = [f"app {number}" for number in range(4)]
        opened = [open_backend(prefix) for _ in names]
        with ThreadPoolExecutor(len(names)) as threads:
            noted = list(threads.map(lambda each, name: each.note_app(name), opened, names))
        assert sorted([*noted, noting.note_app("last")]) == ["", *names]

    def test_noted_app_changes_nothing_else(self, noting: Backend) -> None:
        start(noting, "42", outgoing(), keys=T1)
        with nothing_written(noting):
            noting.note_app("shop")

    def test_backend_has_its_url(self, backend: Backend) -> None:
        assert "://" in backend.url

    @pytest.mark.parametrize("port", ["aggregates", "buffers"])
    def test_aggregators_are_there_or_say_what_to_set(self, backend: Backend, port: str) -> None:
        """A backend sets both ports, or neither."""
        if backend.has_aggregators:
            assert getattr(backend, port) is not None
        else:
            with pytest.raises(ConfigurationError, match="saga_aggregator_backend"):
                getattr(backend, port)

    def test_journal_is_kept_for_a_time(self, backend: Backend) -> None:
        """A message is handled exactly once within it."""
        assert backend.journal_retention_s > 0

    def test_backend_works_after_a_refused_commit(self, backend: Backend) -> None:
        """An error leaves nothing behind on the connection."""
        record = start(backend, keys=T1)
        for _ in range(30):
            with conflict("unique"):
                start(backend)
            with conflict("version"):
                backend.sagas.update(record._replace(version=9), change(), effects(record))
        assert found(backend, by_key()) == record

    def test_what_one_process_commits_another_sees(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        start(backend, "42", outgoing(), keys=T1)
        backend.dead.add(dead_letter())
        assert view(open_backend(prefix)) == view(backend)

    def test_data_outlives_the_backend(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """Committed data is there when the next process opens the backend."""
        start(backend, keys=T1)
        before = view(backend)
        backend.close()
        assert view(open_backend(prefix)) == before

    def test_instance_of_another_prefix_does_not_exist(self, backend: Backend, other: Backend) -> None:
        record = start(backend, keys=T1)
        for lookup in (by_key(), by_id(record.id), by_tracking("T1")):
            assert not is_there(other, lookup)
        assert not other.sagas.lock(record, "me", MINUTE)
        with conflict("version"):
            other.sagas.update(record, change(), effects(record))
        with conflict("version"):
            other.sagas.delete(record, effects(record))
        assert found(backend, by_key()) == record

    def test_same_commits_are_made_under_each_prefix(self, backend: Backend, other: Backend) -> None:
        """Keys, ids and messages of one prefix are free under another."""
        new = new_record(keys=T1)
        made = effects(None, outgoing(), line=entry(new))
        kept = dead_letter()
        for each in (backend, other):
            each.sagas.insert(new, made)
            each.dead.add(kept)
        assert view(other) == view(backend)
        assert backend.outbox.count() == 1

    def test_delete_touches_one_prefix(self, backend: Backend, other: Backend) -> None:
        new = new_record(keys=T1)
        made = effects(None, outgoing("scheduled"), outgoing("deadline"), line=entry(new))
        for each in (backend, other):
            each.sagas.insert(new, made)
        with nothing_written(other):
            complete(backend, found(backend, by_key()))
        assert is_there(other, by_tracking("T1"))
        assert not is_there(backend, by_tracking("T1"))

    def test_update_and_lock_touch_one_prefix(self, backend: Backend, other: Backend) -> None:
        new = new_record(keys=T1)
        for each in (backend, other):
            each.sagas.insert(new, effects(new))
        record = found(backend, by_key())
        with nothing_written(other):
            backend.sagas.lock(record, "me", MINUTE)
            backend.sagas.update(record, change(removed=T1), effects(record, lock_owner="me"))
            backend.sagas.lock(record, "me", MINUTE)

    def test_messages_of_another_prefix_are_not_handled(self, backend: Backend, other: Backend) -> None:
        line = send(backend, outgoing(), line=entry(key="42", outcome="completed"))
        assert handled(other, line) is None
        assert other.journal.history(["order"], "42", 9) == []
        assert other.journal.outcome_of(["order"], "42") is None

    def test_rows_of_another_prefix_are_not_claimed(self, backend: Backend, other: Backend) -> None:
        row = outgoing()
        line = send(backend, row)
        assert claim(other) == []
        assert other.outbox.claim_due("relay", 9, MINUTE, line) == []
        assert other.outbox.count() == 0
        assert ids(claim(backend, "relay")) == [row.id]
        assert other.outbox.confirm("relay", [row.id]) == 0
        assert other.outbox.release("relay", [row.id]) == 0
        assert not other.outbox.fail("relay", row.id, "broken", 0)
        assert claim(backend) == []

    def test_rows_of_another_prefix_are_not_cancelled(self, backend: Backend, other: Backend) -> None:
        new, row = new_record(), outgoing("scheduled")
        for each in (backend, other):
            each.sagas.insert(new, effects(new, row))
        with nothing_written(other):
            update(backend, found(backend, by_key()), cancelled=(row.id,))
        assert backend.outbox.count() == 0
        assert ids(claim(other)) == [row.id]

    def test_deliveries_of_another_prefix_are_not_counted(self, backend: Backend, other: Backend, clock: Clock) -> None:
        assert backend.deliveries.count(STEP, "message") == 1
        assert other.deliveries.count(STEP, "message") == 1
        clock.advance(HOUR)
        assert other.deliveries.purge(1_000, 9) == 1
        assert backend.deliveries.count(STEP, "message") == 2

    def test_entries_of_another_prefix_are_not_purged(self, backend: Backend, other: Backend, clock: Clock) -> None:
        line = send(backend)
        clock.advance(HOUR)
        assert other.journal.purge(1_000, 9) == 0
        assert handled(backend, line) is not None

    def test_dead_letters_of_another_prefix_are_not_seen(self, backend: Backend, other: Backend) -> None:
        kept = dead_letter()
        backend.dead.add(kept)
        assert other.dead.list(9) == []
        assert (backend.dead.count(), other.dead.count()) == (1, 0)
        assert other.dead.get(kept.id) is None
        assert not other.dead.remove(kept.id)
        assert backend.dead.get(kept.id) is not None

    def test_leases_last_longer_when_the_clock_goes_back(self, backend: Backend, clock: Clock) -> None:
        """Nothing is leased twice, and the owner of a lease may end it."""
        first, second = outgoing(), outgoing()
        send(backend, first)
        assert ids(claim(backend, "one")) == [first.id]
        clock.advance(-HOUR)
        send(backend, second)
        assert ids(claim(backend, "two", lease_ms=2 * HOUR)) == [second.id]
        clock.advance(HOUR - 1)
        assert claim(backend, "three", lease_ms=1) == []
        assert backend.outbox.confirm("one", [first.id]) == 1
        assert backend.outbox.confirm("two", [second.id]) == 1

    def test_commits_are_made_when_the_clock_goes_back(self, backend: Backend, clock: Clock) -> None:
        """No version is lost, nothing is handled twice, and no entry is purged early; only their order is that of their times."""
        record = start(backend, keys=T1)
        clock.advance(-HOUR)
        changed = update(backend, record)
        assert (changed.version, changed.id) == (record.version + 1, record.id)
        line = complete(backend, changed)
        assert handled(backend, line) is not None
        assert backend.journal.purge(MINUTE, 9) == 0
        assert {each.outcome for each in backend.journal.history(["order"], "42", 9)} == {"started", "handled", "completed"}
        ended = backend.journal.outcome_of(["order"], "42")
        assert ended is not None
        assert ended.message_id == line.message_id
        assert start(backend, keys=T1).id != record.id

    @pytest.mark.usefixtures("aggregators")
    def test_items_keep_their_order_when_the_clock_goes_back(self, backend: Backend, clock: Clock) -> None:
        """They are counted by their number, and wait for as long as the clock needs."""
        add(backend, TIMED, "a")
        clock.advance(-HOUR)
        add(backend, TIMED, "b")
        assert backend.aggregates.claim(TIMED, "", "early") is None
        add(backend, TIMED, "c")
        assert [item.id for item in flush(backend, TIMED).items] == ["a", "b", "c"]
