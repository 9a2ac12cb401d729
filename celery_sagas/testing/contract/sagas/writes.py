"""``SagaStore.insert``, ``update`` and ``delete``: the instance and its keys."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Lookup, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    NAMES,
    Keys,
    by_id,
    by_key,
    by_tracking,
    change,
    claim,
    complete,
    conflict,
    effects,
    found,
    handled,
    ids,
    is_there,
    new_record,
    outgoing,
    start,
    update,
)
from celery_sagas.testing.view import OTHER, nothing_written

T1 = (("tracking", "T1"),)


class InsertContract(StoreFixtures):
    """Committing new instances."""

    def test_new_instance_is_stored_at_version_1(self, backend: Backend, clock: Clock) -> None:
        new = new_record()
        backend.sagas.insert(new, effects(new))
        assert found(backend, by_key()) == Record(
            id=new.id,
            saga="order",
            key="42",
            version=1,
            schema_version=3,
            data=new.data,
            pending=new.pending,
            created_at=clock.now,
            updated_at=clock.now,
        )

    def test_alternate_keys_are_stored_with_it(self, backend: Backend) -> None:
        record = start(backend, keys=(("email", "a@b.c"), ("tracking", "T1")))
        assert found(backend, by_tracking("T1")) == record

    def test_key_is_unique(self, backend: Backend) -> None:
        start(backend)
        self._insert_conflicts(backend, names=("order",))

    def test_key_is_unique_under_former_names(self, backend: Backend) -> None:
        start(backend, names=("purchase",))
        self._insert_conflicts(backend)

    def test_inserted_alternate_key_is_unique(self, backend: Backend) -> None:
        start(backend, "43", keys=T1)
        self._insert_conflicts(backend, names=("order",), keys=T1)

    def test_inserted_alternate_key_is_unique_under_former_names(self, backend: Backend) -> None:
        start(backend, "43", names=("purchase",), keys=T1)
        self._insert_conflicts(backend, keys=T1)

    def test_one_taken_key_among_free_ones_conflicts(self, backend: Backend) -> None:
        start(backend, "43", keys=T1)
        self._insert_conflicts(backend, keys=(("email", "T2"), ("tracking", "T1"), ("zone", "T3")))

    def _insert_conflicts(self, backend: Backend, names: tuple[str, ...] = ("order", "purchase"), **values: object) -> None:
        record = new_record("42", names=names, **values)  # type: ignore[arg-type]
        with nothing_written(backend), conflict("unique"):
            backend.sagas.insert(record, effects(record, outgoing()))

    def test_instance_without_alternate_keys_takes_none(self, backend: Backend) -> None:
        """A null key is left out, and is not unique."""
        start(backend, "42")
        start(backend, "43")

    def test_one_value_may_stand_under_several_properties(self, backend: Backend) -> None:
        start(backend, "42", keys=(("email", "T1"), ("tracking", "T1")))
        with conflict("unique"):
            start(backend, "43", keys=(("email", "T1"),))

    def test_keys_of_another_saga_do_not_matter(self, backend: Backend) -> None:
        start(backend, names=(OTHER,), keys=T1)
        start(backend, keys=T1)

    @pytest.mark.parametrize("former", ["order", "purchase"])
    def test_completed_instance_starts_again(self, backend: Backend, former: str) -> None:
        """It is a new instance with the same keys, at version 1 under another id."""
        first = start(backend, names=(former,), keys=T1)
        complete(backend, first)
        second = start(backend, keys=T1)
        assert second.version == 1
        assert second.id != first.id
        assert found(backend, by_tracking("T1")) == second
        assert backend.sagas.find(by_id(first.id)).record is None


T2 = (("tracking", "T2"),)


class UpdateContract(StoreFixtures):
    """Committing changes."""

    def test_update_writes_the_change_and_adds_one_to_the_version(self, backend: Backend, clock: Clock) -> None:
        record = start(backend)
        clock.advance(5)
        backend.sagas.update(record, change(data='{"total": 7}'), effects(record))
        assert found(backend, by_key()) == record._replace(
            version=2,
            schema_version=4,
            data='{"total": 7}',
            pending='{"request": "row"}',
            updated_at=record.created_at + 5,
        )

    def test_update_keeps_the_former_name(self, backend: Backend) -> None:
        record = start(backend, names=("purchase",))
        assert update(backend, record).saga == "purchase"

    def test_unchanged_state_is_written_too(self, backend: Backend) -> None:
        """A rival that found the same version must not pass."""
        record = start(backend)
        backend.sagas.update(record, change(data=record.data), effects(record))
        assert found(backend, by_key()).version == 2

    def test_update_of_a_stale_version_conflicts(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        update(backend, record)
        self._update_conflicts(backend, record, "version", added=T2, removed=T1)

    def test_update_of_a_version_from_the_future_conflicts(self, backend: Backend) -> None:
        record = start(backend)
        self._update_conflicts(backend, record._replace(version=2), "version")

    def test_update_of_an_instance_that_has_restarted_conflicts(self, backend: Backend) -> None:
        """It is at version 1 again, under another id."""
        record = start(backend, keys=T1)
        complete(backend, record)
        start(backend, keys=T1)
        self._update_conflicts(backend, record, "version", added=T2, removed=T1)

    def test_update_of_an_instance_that_is_gone_conflicts(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        complete(backend, record)
        self._update_conflicts(backend, record, "version", added=T2, removed=T1)

    def _update_conflicts(self, backend: Backend, record: Record, reason: str, added: Keys = (), removed: Keys = ()) -> None:
        with nothing_written(backend), conflict(reason):
            backend.sagas.update(record, change(added=added, removed=removed), effects(record, outgoing()))

    def test_own_lock_ends_with_the_update(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        backend.sagas.update(record, change(), effects(record, lock_owner="me"))
        assert found(backend, by_key()).locked_by == ""
        assert backend.sagas.lock(record, "somebody else", MINUTE)

    def test_alternate_key_is_added(self, backend: Backend) -> None:
        changed = update(backend, start(backend), added=T1)
        assert found(backend, by_tracking("T1")) == changed

    def test_alternate_key_that_is_not_named_stays(self, backend: Backend) -> None:
        """The keys come as a difference."""
        record = start(backend, keys=(("email", "T1"), ("tracking", "T1")))
        update(backend, record, added=T2, removed=T1)
        assert is_there(backend, Lookup(NAMES, "email", "T1"))

    def test_alternate_keys_swap_their_values(self, backend: Backend) -> None:
        record = start(backend, keys=(("email", "T1"), ("tracking", "T2")))
        swapped = (("email", "T2"), ("tracking", "T1"))
        changed = update(backend, record, added=swapped, removed=(("email", "T1"), ("tracking", "T2")))
        for property, value in swapped:
            assert found(backend, Lookup(NAMES, property, value)) == changed
        for property, value in (("email", "T1"), ("tracking", "T2")):
            assert not is_there(backend, Lookup(NAMES, property, value))

    def test_removed_alternate_key_is_free_for_others(self, backend: Backend) -> None:
        update(backend, start(backend, keys=T1), removed=T1)
        start(backend, "43", keys=T1)

    def test_removed_alternate_key_of_another_saga_stays(self, backend: Backend) -> None:
        parcel = start(backend, names=(OTHER,), keys=T1)
        update(backend, start(backend, keys=T1), removed=T1)
        assert found(backend, by_tracking("T1", (OTHER,))) == parcel

    def test_alternate_key_of_a_completed_instance_can_be_added(self, backend: Backend) -> None:
        complete(backend, start(backend, "43", keys=T1))
        changed = update(backend, start(backend), added=T1)
        assert found(backend, by_tracking("T1")) == changed

    def test_alternate_key_is_removed_and_added_again(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        record = update(backend, record, removed=T1)
        record = update(backend, record, added=T1)
        assert found(backend, by_tracking("T1")) == record

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("rival_name", NAMES)
    def test_added_alternate_key_is_unique(self, backend: Backend, name: str, rival_name: str) -> None:
        """It is unique across a former name, too, whichever of the two instances has it."""
        record = start(backend, names=(name,))
        start(backend, "43", names=(rival_name,), keys=T1)
        self._update_conflicts(backend, record, "unique", added=(("email", "T1"), *T1))

    def test_taken_alternate_key_leaves_the_removed_one(self, backend: Backend) -> None:
        record = start(backend, keys=T2)
        start(backend, "43", keys=T1)
        self._update_conflicts(backend, record, "unique", added=T1, removed=T2)

    def test_alternate_key_is_added_under_a_former_name(self, backend: Backend) -> None:
        changed = update(backend, start(backend, names=("purchase",), keys=T1), added=T2, removed=T1)
        assert found(backend, by_tracking("T2")) == changed
        assert not is_there(backend, by_tracking("T1"))

    def test_many_updates_follow_each_other(self, backend: Backend) -> None:
        record = start(backend)
        for number in range(20):
            record = update(
                backend,
                record,
                added=(("tracking", f"T{number + 1}"),),
                removed=(("tracking", f"T{number}"),) if number else (),
            )
        assert record.version == 21
        assert found(backend, by_tracking("T20")) == record


class DeleteContract(StoreFixtures):
    """Committing the end of instances."""

    def test_deleted_instance_is_gone(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        complete(backend, record)
        for lookup in (by_id(record.id), by_key(), by_tracking("T1")):
            assert not is_there(backend, lookup)

    def test_delete_of_a_stale_version_conflicts(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        update(backend, record, outgoing("scheduled"))
        self._delete_conflicts(backend, record)

    def test_delete_of_a_version_from_the_future_conflicts(self, backend: Backend) -> None:
        record = start(backend)
        self._delete_conflicts(backend, record._replace(version=2))

    def test_delete_of_an_instance_that_has_restarted_conflicts(self, backend: Backend) -> None:
        """It is at version 1 again, under another id."""
        record = start(backend, keys=T1)
        complete(backend, record)
        start(backend, "42", outgoing("scheduled"), keys=T1)
        self._delete_conflicts(backend, record)

    def test_delete_of_an_instance_that_is_gone_conflicts(self, backend: Backend) -> None:
        record = start(backend, keys=T1)
        complete(backend, record)
        self._delete_conflicts(backend, record)

    def _delete_conflicts(self, backend: Backend, record: Record) -> None:
        with nothing_written(backend), conflict("version"):
            backend.sagas.delete(record, effects(record, outgoing()))

    def test_keys_are_free_for_others(self, backend: Backend) -> None:
        complete(backend, start(backend, keys=T1))
        other = start(backend, "43", keys=T1)
        assert found(backend, by_tracking("T1")) == other

    def test_keys_of_a_former_name_are_free_for_others(self, backend: Backend) -> None:
        complete(backend, start(backend, names=("purchase",), keys=T1))
        start(backend, keys=T1)

    def test_keys_of_others_stay(self, backend: Backend) -> None:
        other = start(backend, "43", keys=(("tracking", "T2"),))
        complete(backend, start(backend, keys=T1))
        assert found(backend, by_tracking("T2")) == other

    def test_timeouts_series_and_deadlines_go_with_it_and_sent_rows_stay(self, backend: Backend, clock: Clock) -> None:
        sent, later = outgoing(), outgoing(due_at=clock.now + MINUTE)
        scheduled, deadline = outgoing("scheduled", due_at=clock.now + MINUTE), outgoing("deadline")
        record = start(backend, "42", sent, scheduled, deadline, outgoing("series", due_at=clock.now + MINUTE))
        record = update(backend, record, later, outgoing("scheduled"), outgoing("deadline", due_at=clock.now + MINUTE))
        complete(backend, record)
        assert backend.outbox.count() == 2
        clock.advance(HOUR)
        assert set(ids(claim(backend))) == {sent.id, later.id}

    def test_row_that_is_leased_goes_with_it_too(self, backend: Backend) -> None:
        record = start(backend, "42", outgoing("scheduled"), outgoing("deadline"))
        rows = claim(backend, "relay")
        complete(backend, record)
        assert len(rows) == 2
        assert backend.outbox.count() == 0
        assert backend.outbox.confirm("relay", ids(rows)) == 0

    def test_thousand_scheduled_rows_go_with_it(self, backend: Backend, clock: Clock) -> None:
        kept = outgoing()
        other = outgoing("scheduled", due_at=clock.now + MINUTE)
        start(backend, "43", other)
        record = start(backend, "42", kept)
        for _ in range(2):
            rows = [outgoing("scheduled", due_at=clock.now + number) for number in range(1, 501)]
            record = update(backend, record, *rows)
        complete(backend, record)
        assert backend.outbox.count() == 2
        clock.advance(HOUR)
        assert ids(claim(backend)) == [kept.id, other.id]

    def test_rows_of_others_stay(self, backend: Backend) -> None:
        """Those of the same key stay too, after it has started again."""
        record = start(backend)
        start(backend, "43", outgoing("scheduled"), outgoing("deadline"))
        complete(backend, record)
        restarted = start(backend, "42", outgoing("scheduled"))
        assert backend.outbox.count() == 3
        complete(backend, restarted)
        assert backend.outbox.count() == 2

    def test_rows_of_the_deleting_commit_are_sent(self, backend: Backend) -> None:
        farewell = outgoing()
        complete(backend, start(backend), farewell)
        assert ids(claim(backend)) == [farewell.id]

    def test_journal_stays(self, backend: Backend) -> None:
        """It distinguishes a completed instance from one that never existed."""
        line = complete(backend, start(backend))
        assert handled(backend, line) is not None
        assert backend.journal.outcome_of(["order"], "42") == handled(backend, line)
        assert [entry.outcome for entry in backend.journal.history(["order"], "42", 9)] == ["started", "completed"]

    def test_own_lock_does_not_stand_in_the_way(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", MINUTE)
        backend.sagas.delete(record, effects(record, lock_owner="me"))
        assert not is_there(backend, by_key())
