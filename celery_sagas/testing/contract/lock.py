"""``SagaStore.lock``."""

from celery_sagas.stores.ports import Backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    MINUTE,
    by_key,
    change,
    complete,
    conflict,
    effects,
    found,
    outgoing,
    start,
    update,
)
from celery_sagas.testing.view import nothing_written


class LockContract(StoreFixtures):
    """Locking instances."""

    def test_lock_is_shown(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        assert backend.sagas.lock(start(backend), "me", MINUTE)
        assert found(open_backend(prefix), by_key()).locked_by == "me"

    def test_reserving_changes_neither_version_nor_time(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        clock.advance(5)
        backend.sagas.lock(record, "me", MINUTE)
        assert found(backend, by_key()) == record._replace(locked_by="me")

    def test_commits_under_another_holder_conflict(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        for lock_owner in ("", "somebody else"):
            with nothing_written(backend), conflict("locked"):
                backend.sagas.update(record, change(), effects(record, outgoing(), lock_owner=lock_owner))
            with nothing_written(backend), conflict("locked"):
                backend.sagas.delete(record, effects(record, outgoing(), lock_owner=lock_owner))

    def test_commits_of_the_holder_pass(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        backend.sagas.update(record, change(), effects(record, lock_owner="me"))
        assert found(backend, by_key()).version == 2

    def test_holder_that_found_an_older_version_conflicts(self, backend: Backend) -> None:
        """A lock keeps rivals away, it does not replace the comparison."""
        record = start(backend)
        update(backend, record)
        backend.sagas.lock(record, "me", MINUTE)
        with nothing_written(backend), conflict("version"):
            backend.sagas.update(record, change(), effects(record, lock_owner="me"))

    def test_another_holder_does_not_get_it(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        assert not backend.sagas.lock(record, "somebody else", MINUTE)
        assert found(backend, by_key()).locked_by == "me"

    def test_lock_expires_by_the_stores_clock(self, backend: Backend, clock: Clock) -> None:
        """A lock owner that died does not block the instance."""
        record = start(backend)
        backend.sagas.lock(record, "me", 1_000)
        clock.advance(999)
        assert not backend.sagas.lock(record, "somebody else", 1_000)
        clock.advance(1)
        assert backend.sagas.lock(record, "somebody else", 1_000)

    def test_lock_is_over_at_its_end_for_a_find_as_for_a_commit(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", 1_000)
        clock.advance(1_000)
        assert found(backend, by_key()).locked_by == ""
        assert update(backend, record).version == 2

    def test_expired_lock_does_not_stop_commits(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", 1_000)
        clock.advance(1_001)
        update(backend, record)

    def test_holder_that_was_late_passes_if_nobody_came_between(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", 1_000)
        clock.advance(1_001)
        backend.sagas.update(record, change(), effects(record, lock_owner="me"))

    def test_reserving_again_begins_the_time_anew(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", 1_000)
        clock.advance(900)
        assert backend.sagas.lock(record, "me", 1_000)
        clock.advance(900)
        assert found(backend, by_key()).locked_by == "me"
        clock.advance(200)
        assert found(backend, by_key()).locked_by == ""

    def test_any_version_is_locked(self, backend: Backend) -> None:
        """A run that has lost a race locks the outcome."""
        record = start(backend)
        update(backend, record)
        assert backend.sagas.lock(record, "me", MINUTE)
        assert found(backend, by_key()).locked_by == "me"

    def test_instance_that_is_gone_is_not_locked(self, backend: Backend) -> None:
        record = start(backend)
        complete(backend, record)
        assert not backend.sagas.lock(record, "me", MINUTE)

    def test_instance_that_has_restarted_is_another_one(self, backend: Backend) -> None:
        record = start(backend)
        complete(backend, record)
        start(backend)
        assert not backend.sagas.lock(record, "me", MINUTE)
        assert found(backend, by_key()).locked_by == ""

    def test_lock_ends_with_the_instance(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        backend.sagas.delete(record, effects(record, lock_owner="me"))
        update(backend, start(backend))

    def test_other_instances_are_not_locked(self, backend: Backend) -> None:
        other = start(backend, "43")
        backend.sagas.lock(start(backend), "me", MINUTE)
        update(backend, other)
