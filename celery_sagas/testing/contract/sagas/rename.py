"""``SagaStore.rename`` and ``SagaStore.count``."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Handling, Lookup
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import (
    HOUR,
    MINUTE,
    STEP,
    Keys,
    by_id,
    by_key,
    by_tracking,
    change,
    claim,
    complete,
    conflict,
    effects,
    entry,
    found,
    ids,
    is_there,
    new_record,
    outgoing,
    start,
    update,
)

NAME, FORMER = ("order",), ("purchase",)
T1: Keys = (("tracking", "T1"),)
BOTH: Keys = (("email", "a=b:3"), ("tracking", "T1"))


class RenameContract(StoreFixtures):
    """Moving instances from a former name of their saga to its name."""

    def test_instances_are_counted_by_name(self, backend: Backend) -> None:
        start(backend, "42")
        for key in ("43", "44"):
            start(backend, key, names=FORMER, keys=(("tracking", key),))
        complete(backend, start(backend, "45", names=FORMER))
        assert backend.sagas.count(("order", "purchase", "parcel")) == {"order": 1, "purchase": 2, "parcel": 0}
        assert backend.sagas.count(FORMER) == {"purchase": 2}

    def test_instance_of_another_prefix_is_neither_counted_nor_moved(
        self, backend: Backend, open_backend: OpenBackend, prefix: str
    ) -> None:
        start(backend, names=FORMER)
        stranger = open_backend(prefix.upper())
        assert stranger.sagas.count(FORMER) == {"purchase": 0}
        assert _rename(stranger) == (0, [])
        assert backend.sagas.count(FORMER) == {"purchase": 1}

    def test_moved_instance_is_found_under_the_name_alone_and_is_as_it_was(self, backend: Backend, clock: Clock) -> None:
        record = update(backend, start(backend, names=FORMER, keys=BOTH), added=(("tracking", "T2"),), removed=T1)
        clock.advance(HOUR)
        assert _rename(backend) == (1, [])
        for lookup in (by_key(names=NAME), by_id(record.id, NAME), by_tracking("T2", NAME), Lookup(NAME, "email", "a=b:3")):
            assert found(backend, lookup) == record._replace(saga="order")
        for lookup in (by_key(names=FORMER), by_id(record.id, FORMER), by_tracking("T2", FORMER), by_tracking("T1")):
            assert not is_there(backend, lookup)
        assert backend.sagas.count(("order", "purchase")) == {"order": 1, "purchase": 0}

    def test_nothing_to_move(self, backend: Backend) -> None:
        start(backend, names=NAME, keys=T1)
        assert backend.sagas.rename("order", "purchase", 9) == (0, (), "")
        assert is_there(backend, by_tracking("T1", NAME))

    def test_instances_of_other_sagas_stay(self, backend: Backend) -> None:
        other, order = start(backend, "42", names=("parcel",), keys=T1), start(backend, "43", keys=T1, names=NAME)
        start(backend, "44", names=FORMER)
        assert _rename(backend) == (1, [])
        assert found(backend, by_tracking("T1", ("parcel",))) == other
        assert found(backend, by_tracking("T1", NAME)) == order

    def test_rows_timeouts_and_journal_stay_with_it(self, backend: Backend, clock: Clock) -> None:
        sent, timeout, cancelled = outgoing(), outgoing("scheduled", due_at=clock.now + MINUTE), outgoing("deadline")
        record = start(backend, "42", sent, timeout, cancelled, names=FORMER)
        line = entry(record)
        backend.sagas.update(record, change(), effects(record, line=line))
        assert _rename(backend) == (1, [])
        assert backend.sagas.find(by_key("43"), Handling((STEP,), line.message_id)).handled is not None
        moved = update(backend, found(backend, by_key(names=NAME)), cancelled=(cancelled.id,))
        assert ids(claim(backend)) == [sent.id]
        complete(backend, moved)
        clock.advance(HOUR)
        assert ids(claim(backend)) == [sent.id]
        assert backend.outbox.count() == 1

    def test_outcome_of_a_moved_instance_is_under_the_name(self, backend: Backend) -> None:
        start(backend, names=FORMER)
        _rename(backend)
        line = complete(backend, found(backend, by_key(names=NAME)))
        outcome = backend.journal.outcome_of(NAME, "42")
        assert outcome is not None
        assert outcome.message_id == line.message_id

    def test_keys_of_a_moved_instance_are_its_own(self, backend: Backend) -> None:
        start(backend, names=FORMER, keys=T1)
        _rename(backend)
        for new in (new_record(names=NAME), new_record("43", names=NAME, keys=T1)):
            with conflict("unique"):
                backend.sagas.insert(new, effects(new))

    def test_keys_of_a_moved_instance_are_free_when_it_ends(self, backend: Backend) -> None:
        start(backend, names=FORMER, keys=BOTH)
        _rename(backend)
        complete(backend, found(backend, by_key(names=NAME)))
        start(backend, names=NAME, keys=BOTH)
        start(backend, "43", names=FORMER)
        assert _rename(backend) == (1, [])

    def test_keys_of_a_moved_instance_change(self, backend: Backend) -> None:
        start(backend, names=FORMER, keys=BOTH)
        _rename(backend)
        update(backend, found(backend, by_key(names=NAME)), added=(("tracking", "T2"),), removed=T1)
        assert is_there(backend, by_tracking("T2", NAME))
        start(backend, "43", keys=T1)

    @pytest.mark.parametrize("commit", ["update", "delete"])
    def test_commit_of_what_was_found_under_the_former_name_conflicts(self, backend: Backend, commit: str) -> None:
        record = start(backend, names=FORMER)
        _rename(backend)
        with conflict("version"):
            if commit == "update":
                backend.sagas.update(record, change(), effects(record, outgoing()))
            else:
                backend.sagas.delete(record, effects(record, outgoing()))
        assert found(backend, by_key()) == record._replace(saga="order")
        assert backend.outbox.count() == 0

    def test_what_was_found_under_the_former_name_cannot_be_locked(self, backend: Backend) -> None:
        record = start(backend, names=FORMER)
        _rename(backend)
        assert not backend.sagas.lock(record, "me", MINUTE)
        assert found(backend, by_key()).locked_by == ""

    def test_repeat_of_a_commit_before_the_rename_returns(self, backend: Backend) -> None:
        """Its answer was lost, and the instance has moved since."""
        record = start(backend, names=FORMER)
        made = effects(record, outgoing())
        backend.sagas.update(record, change(), made)
        _rename(backend)
        backend.sagas.update(record, change(), made)
        assert found(backend, by_key(names=NAME)).version == 2

    def test_lock_stays(self, backend: Backend, clock: Clock) -> None:
        assert backend.sagas.lock(start(backend, names=FORMER), "me", MINUTE)
        _rename(backend)
        record = found(backend, by_key(names=NAME))
        assert record.locked_by == "me"
        with conflict("locked"):
            backend.sagas.delete(record, effects(record))
        assert not backend.sagas.lock(record, "you", MINUTE)
        backend.sagas.delete(record, effects(record, lock_owner="me"))

    def test_instance_whose_key_is_taken_keeps_its_former_name(self, backend: Backend) -> None:
        """Two workers with different code each started one."""
        mine, other = start(backend, names=FORMER, keys=T1), start(backend, names=NAME)
        start(backend, "43", names=FORMER)
        assert _rename(backend) == (1, [(mine.id, "42")])
        assert found(backend, by_key(names=FORMER)) == found(backend, by_tracking("T1")) == mine
        assert found(backend, by_key(names=NAME)) == other
        assert backend.sagas.count(("order", "purchase")) == {"order": 2, "purchase": 1}

    def test_instance_whose_alternate_key_is_taken_keeps_its_former_name(self, backend: Backend) -> None:
        mine = start(backend, names=FORMER, keys=BOTH)
        other = start(backend, "43", names=NAME, keys=T1)
        assert _rename(backend) == (0, [(mine.id, "42")])
        assert found(backend, by_tracking("T1", FORMER)) == found(backend, Lookup(FORMER, "email", "a=b:3")) == mine
        assert found(backend, by_tracking("T1", NAME)) == other
        complete(backend, other)
        assert _rename(backend) == (1, [])
        assert found(backend, by_tracking("T1", NAME)).id == mine.id

    def test_value_of_another_property_is_not_taken(self, backend: Backend) -> None:
        start(backend, names=FORMER, keys=(("email", "T1"),))
        start(backend, "T1", names=NAME, keys=T1)
        assert _rename(backend) == (1, [])

    @pytest.mark.parametrize("limit", [1, 3, 1_000])
    def test_limit_bounds_each_call_and_all_are_moved(self, backend: Backend, limit: int) -> None:
        """The number that keep their former names does not matter."""
        records = [start(backend, f"{number}", names=FORMER, keys=(("tracking", f"{number}"),)) for number in range(10)]
        stay = [start(backend, f"{number}", names=NAME).key for number in (0, 4, 9)]
        after, moved, conflicts = "", list[int](), set[tuple[str, str]]()
        while True:
            renamed = backend.sagas.rename("order", "purchase", limit, after)
            moved.append(renamed.moved)
            conflicts.update(renamed.conflicts)
            if not (after := renamed.after):
                break
        assert max(moved) <= limit
        assert sum(moved) == 7
        assert conflicts == {(record.id, record.key) for record in records if record.key in stay}
        assert backend.sagas.count(("order", "purchase")) == {"order": 10, "purchase": 3}

    def test_rename_that_was_left_begins_again(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """Its process may have been killed."""
        for number in range(10):
            start(backend, f"{number}", names=FORMER)
        assert backend.sagas.rename("order", "purchase", 4).moved <= 4
        _rename(open_backend(prefix))
        assert backend.sagas.count(("order", "purchase")) == {"order": 10, "purchase": 0}

    def test_two_renames_at_once(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        for number in range(6):
            start(backend, f"{number}", names=FORMER, keys=(("tracking", f"{number}"),))
        rival = open_backend(prefix)
        first = backend.sagas.rename("order", "purchase", 2)
        moved, conflicts = _rename(rival)
        again = backend.sagas.rename("order", "purchase", 9, first.after) if first.after else None
        assert first.moved + moved + (again.moved if again else 0) == 6
        assert not conflicts
        assert all(is_there(backend, by_tracking(f"{number}", NAME)) for number in range(6))

    def test_name_becomes_a_former_one_and_comes_back(self, backend: Backend) -> None:
        record = start(backend, names=FORMER, keys=T1)
        assert _rename(backend) == (1, [])
        assert _rename(backend, "purchase", "order") == (1, [])
        assert found(backend, Lookup(FORMER, KEY, "42")) == found(backend, by_tracking("T1", FORMER)) == record

    def test_former_names_are_compared_byte_by_byte(self, backend: Backend) -> None:
        for name in ("Purchase", "purchase ", "purchase.x", "purchasé"):
            start(backend, names=(name,))
        assert _rename(backend) == (0, [])
        assert backend.sagas.count(("purchase", "Purchase")) == {"purchase": 0, "Purchase": 1}


def _rename(backend: Backend, name: str = "order", former: str = "purchase") -> tuple[int, list[tuple[str, str]]]:
    """Rename to the end; return how many were moved, and which were not."""
    after, moved, conflicts = "", 0, list[tuple[str, str]]()
    while True:
        renamed = backend.sagas.rename(name, former, 100, after)
        moved += renamed.moved
        conflicts += renamed.conflicts
        if not (after := renamed.after):
            return moved, conflicts
