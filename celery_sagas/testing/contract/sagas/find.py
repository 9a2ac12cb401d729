"""``SagaStore.find`` and ``lock``."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, Handling, Lookup
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    MINUTE,
    NAMES,
    by_id,
    by_key,
    by_tracking,
    change,
    complete,
    conflict,
    effects,
    entry,
    found,
    handled,
    is_there,
    new_record,
    outgoing,
    send,
    start,
    update,
)
from celery_sagas.testing.view import OTHER, nothing_written


class FindContract(StoreFixtures):
    """Finding instances and handled messages."""

    def test_missing_instance_is_none(self, backend: Backend) -> None:
        for property in (ID, KEY, "tracking"):
            record, handled, _ = backend.sagas.find(Lookup(NAMES, property, "unknown"))
            assert (record, handled) == (None, None)

    def test_each_find_returns_an_id_that_no_other_has(self, backend: Backend) -> None:
        assert len({backend.sagas.find(by_key()).new_id for _ in range(100)}) == 100

    def test_every_find_returns_a_fresh_copy(self, backend: Backend) -> None:
        start(backend)
        first, second = found(backend, by_key()), found(backend, by_key())
        assert first == second
        assert first is not second

    def test_instance_is_found_by_id_key_and_alternate_key(self, backend: Backend) -> None:
        record = start(backend, keys=(("email", "a@b.c"), ("tracking", "T1")))
        for property, value in ((ID, record.id), (KEY, "42"), ("email", "a@b.c"), ("tracking", "T1")):
            assert found(backend, Lookup(NAMES, property, value)) == record

    def test_value_is_found_under_its_own_property_only(self, backend: Backend) -> None:
        record = start(backend, keys=(("tracking", "T1"),))
        assert not is_there(backend, by_tracking("42"))
        assert not is_there(backend, by_key("T1"))
        assert not is_there(backend, by_id("42"))
        assert not is_there(backend, by_key(record.id))
        assert not is_there(backend, Lookup(NAMES, "email", "T1"))

    def test_instance_is_found_under_a_former_name(self, backend: Backend) -> None:
        record = start(backend, names=("purchase",), keys=(("tracking", "T1"),))
        for lookup in (by_key(), by_id(record.id), by_tracking("T1")):
            assert found(backend, lookup) == record
        assert record.saga == "purchase"

    def test_instance_under_a_new_name_is_not_found_by_old_code(self, backend: Backend) -> None:
        """Only the names of the look-up count."""
        record = start(backend, keys=(("tracking", "T1"),))
        for lookup in (by_key(names=("purchase",)), by_id(record.id, ("purchase",)), by_tracking("T1", ("purchase",))):
            assert not is_there(backend, lookup)

    def test_instance_of_another_saga_is_never_found(self, backend: Backend) -> None:
        record = start(backend, names=(OTHER,), keys=(("tracking", "T1"),))
        for lookup in (by_key(), by_id(record.id), by_tracking("T1")):
            assert not is_there(backend, lookup)

    def test_sagas_of_two_types_share_a_key(self, backend: Backend) -> None:
        order = start(backend, keys=(("tracking", "T1"),))
        parcel = start(backend, names=(OTHER,), keys=(("tracking", "T1"),))
        assert found(backend, by_key()).id == order.id
        assert found(backend, by_key(names=(OTHER,))).id == parcel.id
        assert found(backend, by_tracking("T1")).id == order.id
        assert found(backend, by_tracking("T1", (OTHER,))).id == parcel.id

    def test_instance_is_found_by_the_alternate_key_that_it_holds_now(self, backend: Backend) -> None:
        record = start(backend, keys=(("tracking", "T1"),))
        update(backend, record, added=(("tracking", "T2"),), removed=(("tracking", "T1"),))
        assert is_there(backend, by_tracking("T2"))
        assert not is_there(backend, by_tracking("T1"))

    def test_find_sees_what_another_process_has_committed_since(
        self, backend: Backend, open_backend: OpenBackend, prefix: str
    ) -> None:
        """No transaction, and so no old snapshot, is left open."""
        rival = open_backend(prefix)
        assert not is_there(backend, by_key())
        record = start(rival)
        assert found(backend, by_key()) == record
        assert found(rival, by_key()) == record
        changed = update(rival, record)
        assert found(backend, by_key()) == changed

    def test_handled_message_comes_with_its_entry(self, backend: Backend, clock: Clock) -> None:
        record = new_record()
        line = entry(record, outcome="started", version=1)
        backend.sagas.insert(record, effects(line=line))
        clock.advance(1)
        answer = backend.sagas.find(by_key(), Handling((line.step,), line.message_id))
        assert answer.record == found(backend, by_key())
        assert answer.handled is not None
        assert answer.handled.at == clock.now - 1
        assert (answer.handled.attempt, answer.handled.outcome, answer.handled.detail) == (line.attempt, "started", line.detail)
        assert (answer.handled.saga, answer.handled.key, answer.handled.instance_id) == ("order", "42", record.id)
        assert (answer.handled.step, answer.handled.message_id, answer.handled.version) == (line.step, line.message_id, 1)

    def test_handled_message_is_told_without_its_instance(self, backend: Backend) -> None:
        line = complete(backend, start(backend))
        answer = backend.sagas.find(by_key(), Handling((line.step,), line.message_id))
        assert answer.record is None
        assert answer.handled is not None
        assert answer.handled.outcome == "completed"

    @pytest.mark.parametrize("name", ["order.new_name", "order.old_name"])
    def test_message_handled_under_any_name_of_its_step_is_known(self, backend: Backend, name: str) -> None:
        line = send(backend, line=entry(step=name))
        answer = backend.sagas.find(by_key(), Handling(("order.new_name", "order.old_name"), line.message_id))
        assert answer.handled is not None
        assert answer.handled.step == name

    def test_message_handled_by_another_step_is_not_handled(self, backend: Backend) -> None:
        line = send(backend)
        assert backend.sagas.find(by_key(), Handling(("order.ship",), line.message_id)).handled is None
        assert backend.sagas.find(by_key(), Handling((line.step,), "another message")).handled is None

    def test_nothing_is_handled_without_a_handling(self, backend: Backend) -> None:
        start(backend)
        assert backend.sagas.find(by_key()).handled is None

    def test_lock_is_not_shown_once_it_has_expired(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        assert record.locked_by == ""
        backend.sagas.lock(record, "me", 1_000)
        clock.advance(999)
        assert found(backend, by_key()).locked_by == "me"
        clock.advance(2)
        assert found(backend, by_key()).locked_by == ""

    def test_found_record_can_be_passed_back_verbatim(self, backend: Backend) -> None:
        record = start(backend)
        for _ in range(3):
            line = entry(record)
            backend.sagas.update(record, change(), effects(line=line))
            assert handled(backend, line) is not None
            record = found(backend, by_key())
        assert record.version == 4


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
