"""``SagaStore.update``."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Lookup, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    MINUTE,
    NAMES,
    Keys,
    by_key,
    by_tracking,
    change,
    complete,
    conflict,
    effects,
    found,
    is_there,
    outgoing,
    start,
    update,
)
from celery_sagas.testing.view import OTHER, nothing_written

T1 = (("tracking", "T1"),)
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
