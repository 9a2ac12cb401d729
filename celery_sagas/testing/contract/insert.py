"""``SagaStore.insert``."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    by_id,
    by_key,
    by_tracking,
    complete,
    conflict,
    effects,
    found,
    new_record,
    outgoing,
    start,
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
