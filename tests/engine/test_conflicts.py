"""What rivals do to each other: their writes are put before each operation of the store."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_sagas.engine.conflicts import LOCK_MS, LOCKED_RUNS, Conflicts, pause
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import (
    KeyTaken,
    RevisionConflict,
    SagaAlreadyExists,
    SagaNotFound,
    StillUnsent,
    StoreUnavailable,
    UnreadableState,
)
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Change, Effects, Entry, Found, Record
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Boom, Engine, Order, alone, handler, send, starter


def place(order: Order, order_id: str) -> None:
    """Start, or count."""
    order.total += 1
    send(order, "placed")


def add(order: Order, order_id: str) -> None:
    """Count."""
    order.total += 1
    send(order, "added")


def add_ten(order: Order, order_id: str) -> None:
    """Count, as a rival."""
    order.total += 10


def finish(order: Order, order_id: str) -> None:
    """End."""
    order.complete()


def track(order: Order, order_id: str, tracking: str | None) -> None:
    """Change an alternate key."""
    order.tracking = tracking


PLACE, ADD, ADD_TEN, FINISH, TRACK = starter(place), handler(add), handler(add_ten), handler(finish), starter(track)


def call(action: Callable[[], object]) -> Callable[[], None]:
    """Forget what an action returns."""

    def act() -> None:
        action()

    return act


class TestUpdateRaces:
    """The loser runs again from find."""

    def test_nothing_is_lost(self, engine: Engine, rival: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        store.once_before("update", *[call(lambda: rival.handle(ADD_TEN, order_id="42"))] * 3)

        outcome = engine.handle(ADD, order_id="42")

        assert engine.data()["total"] == 32
        assert (outcome.kind, outcome.version) == (Kind.HANDLED, 5)
        assert store.calls == ["find", "update"] * 4
        assert [message.task for message in engine.publisher.published] == ["placed", "added"]

    @alone
    def test_loser_pauses(self, engine: Engine, rival: Engine, pauses: list[float]) -> None:
        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", *[call(lambda: rival.handle(ADD_TEN, order_id="42"))] * 3)

        engine.handle(ADD, order_id="42")

        assert len(pauses) == 3
        assert all(0 < slept <= 0.25 for slept in pauses)

    def test_instance_that_a_rival_completed(self, engine: Engine, rival: Engine) -> None:
        """The update does not bring it back."""
        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", call(lambda: rival.handle(FINISH, order_id="42")))

        outcome = engine.handle(ADD, order_id="42")

        assert (outcome.kind, outcome.reason) == (Kind.IGNORED, "completed")
        assert engine.record() is None
        assert [message.task for message in engine.publisher.published] == ["placed"]

    def test_policy_is_asked_again(self, engine: Engine, rival: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", call(lambda: rival.handle(FINISH, order_id="42")))

        with pytest.raises(SagaNotFound):
            engine.handle(handler(add, if_missing="raise"), order_id="42")

    def test_completion_of_an_instance_that_a_rival_changed(self, engine: Engine, rival: Engine) -> None:
        """Delete compares the version too."""
        totals: list[int] = []

        def finish(order: Order, order_id: str) -> None:
            totals.append(order.total)
            order.complete()

        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("delete", call(lambda: rival.handle(ADD_TEN, order_id="42")))

        assert engine.handle(handler(finish), order_id="42").kind is Kind.COMPLETED
        assert totals == [1, 11]

    def test_instance_that_a_rival_completed_and_started_anew(self, engine: Engine, rival: Engine) -> None:
        """The new one is at version 1 again: the id is compared too."""
        engine.handle(PLACE, order_id="42")

        def restart() -> None:
            rival.handle(FINISH, order_id="42")
            rival.handle(TRACK, order_id="42", tracking="T9")

        engine.interpose().once_before("update", restart)
        engine.handle(ADD, order_id="42")

        assert engine.data() == {"order_id": "42", "total": 1, "tracking": "T9", "email": None, "note": ""}

    def test_rival_handles_the_same_message(self, engine: Engine, rival: Engine) -> None:
        """The journal inside the commit is the guard; the look-up in find only saves work."""
        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", call(lambda: rival.handle(ADD, order_id="42", id="m1")))

        outcome = engine.handle(ADD, order_id="42", id="m1")

        assert outcome.kind is Kind.DUPLICATE
        assert engine.data()["total"] == 2
        assert (len(rival.publisher.published), len(engine.publisher.published)) == (1, 1)  # "added", and "placed" before

    @pytest.mark.parametrize("operation", ["insert", "record"])
    def test_rival_handles_the_same_starter(self, engine: Engine, rival: Engine, operation: str) -> None:
        step = PLACE if operation == "insert" else starter(finish)
        engine.interpose().once_before(operation, call(lambda: rival.handle(step, order_id="42", id="m1")))

        assert engine.handle(step, order_id="42", id="m1").kind is Kind.DUPLICATE
        assert len(engine.entries()) == 1

    @alone
    def test_lost_reply_of_a_commit(self, engine: Engine) -> None:
        """The message comes again, under another attempt: what it decided stands."""

        def lose() -> None:
            raise StoreUnavailable("store", "the reply was lost")

        store = engine.interpose()
        store.once_after("insert", lose)
        with pytest.raises(StoreUnavailable):
            engine.handle(PLACE, order_id="42", id="m1")

        with pytest.raises(StillUnsent):  # what it sends is under the lease of the run that lost its reply
            engine.handle(PLACE, order_id="42", id="m1")
        assert engine.data()["total"] == 1


class TestStartRaces:
    """The loser of a start race goes on with the winner's instance, as its policy says."""

    def lost(self, engine: Engine, rival: Engine) -> None:
        engine.interpose().once_before("insert", call(lambda: rival.handle(PLACE, order_id="42")))

    def test_loser_continues(self, engine: Engine, rival: Engine) -> None:
        self.lost(engine, rival)

        outcome = engine.handle(PLACE, order_id="42")

        assert (outcome.kind, outcome.is_new, outcome.version) == (Kind.HANDLED, False, 2)
        assert engine.data()["total"] == 2

    def test_loser_is_ignored(self, engine: Engine, rival: Engine) -> None:
        self.lost(engine, rival)

        assert engine.handle(starter(place, if_exists="ignore"), order_id="42").reason == "exists"
        assert engine.data()["total"] == 1

    def test_loser_raises(self, engine: Engine, rival: Engine) -> None:
        self.lost(engine, rival)

        with pytest.raises(SagaAlreadyExists):
            engine.handle(starter(place, if_exists="raise"), order_id="42")

    def test_winner_that_has_ended_again_is_followed_by_a_new_instance(self, engine: Engine, rival: Engine) -> None:
        rival.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", call(lambda: rival.handle(FINISH, order_id="42")))

        assert engine.handle(PLACE, order_id="42").kind is Kind.STARTED


class TestAlternateKeys:
    """Each is unique among live instances."""

    def test_taken_at_the_start(self, engine: Engine) -> None:
        holder = engine.handle(TRACK, order_id="41", tracking="T1")

        with pytest.raises(KeyTaken) as raised:
            engine.handle(TRACK, order_id="42", tracking="T1")

        assert raised.value.args == ("order", "tracking", "T1", holder.instance_id, "41")
        assert f"tracking='T1' belongs to the live order '41' (instance {holder.instance_id})" in str(raised.value)
        assert engine.record() is None
        assert engine.entries() == []

    def test_taken_by_a_change(self, engine: Engine) -> None:
        engine.handle(TRACK, order_id="41", tracking="T1")
        engine.handle(TRACK, order_id="42", tracking="T2")
        before = engine.record()

        with pytest.raises(KeyTaken):
            engine.handle(TRACK, order_id="42", tracking="T1")

        assert engine.record() == before
        assert engine.record("T2", "tracking") == before

    def test_left_behind_by_an_instance_that_is_gone(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody removed the instance by hand: nobody will ever give the key up."""
        monkeypatch.setattr("celery_sagas.engine.conflicts._LONGEST_PAUSE_S", 0.0)
        engine.handle(TRACK, order_id="41", tracking="T1")
        find = engine.backend.sagas.find

        def find_nobody(lookup: Any, handling: Any = None) -> Any:
            return Found(None, None, "new") if lookup.property == "tracking" else find(lookup, handling)

        monkeypatch.setattr(engine.backend.sagas, "find", find_nobody)
        with pytest.raises(UnreadableState, match="tracking='T1' for an instance that is gone"):
            engine.handle(TRACK, order_id="42", tracking="T1")

    def test_given_up_by_its_holder_meanwhile(self, engine: Engine, rival: Engine) -> None:
        """A second failure looks the value up: it is taken only if somebody has it then."""
        engine.handle(TRACK, order_id="41", tracking="T1")
        store = engine.interpose()
        store.once_before("find", *[call(lambda: None)] * 2, call(lambda: rival.handle(FINISH, order_id="41")))

        assert engine.handle(TRACK, order_id="42", tracking="T1").kind is Kind.STARTED
        assert store.calls == ["find", "insert", "find", "insert", "find", "find", "insert"]

    @alone
    def test_another_conflict_is_no_first_failure(self, engine: Engine, rival: Engine) -> None:
        """Only a second uniqueness failure is looked into."""
        engine.handle(TRACK, order_id="41", tracking="T1")
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        store.once_before("update", call(lambda: rival.handle(ADD_TEN, order_id="42")))

        with pytest.raises(KeyTaken):
            engine.handle(TRACK, order_id="42", tracking="T1")

        assert store.calls == [*["find", "update"] * 3, "find"]

    def test_freed_before_the_second_run(self, engine: Engine, rival: Engine) -> None:
        engine.handle(TRACK, order_id="41", tracking="T1")
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        store.once_before("update", call(lambda: None), call(lambda: rival.handle(TRACK, order_id="41", tracking=None)))

        engine.handle(TRACK, order_id="42", tracking="T1")

        assert engine.data()["tracking"] == "T1"

    def test_value_that_was_changed_or_nulled_is_free(self, engine: Engine) -> None:
        engine.handle(TRACK, order_id="42", tracking="T1")
        engine.handle(TRACK, order_id="42", tracking="T2")
        assert engine.record("T1", "tracking") is None
        assert engine.record("T2", "tracking") == engine.record()

        engine.handle(TRACK, order_id="42", tracking=None)
        assert engine.record("T2", "tracking") is None
        engine.handle(TRACK, order_id="41", tracking="T2")

    def test_free_after_completion(self, engine: Engine) -> None:
        engine.handle(TRACK, order_id="42", tracking="T1")
        engine.handle(FINISH, order_id="42")

        assert engine.handle(TRACK, order_id="41", tracking="T1").kind is Kind.STARTED

    def test_null_is_not_unique(self, engine: Engine) -> None:
        engine.handle(TRACK, order_id="41", tracking=None)

        assert engine.handle(TRACK, order_id="42", tracking=None).kind is Kind.STARTED

    def test_same_value_under_another_property(self, engine: Engine) -> None:
        def mail(order: Order, order_id: str, email: str) -> None:
            order.email = email

        engine.handle(TRACK, order_id="41", tracking="X")

        assert engine.handle(starter(mail), order_id="42", email="X").kind is Kind.STARTED


class TestLock:
    """After ``conflict_retries`` the next run locks the instance: a slow handler is not starved."""

    @pytest.fixture
    def engine(self, backend: MemoryBackend) -> Engine:
        return Engine(backend, conflict_retries=2)

    @staticmethod
    def attack(engine: Engine, conflicts: list[str]) -> Callable[[], None]:
        """Return the write of a rival that does not look whether the instance is locked; why it fails is kept."""

        def write() -> None:
            try:
                add_ten_at_once(engine.backend, engine.record())
            except RevisionConflict as conflict:
                conflicts.append(conflict.reason)

        return write

    def test_slow_handler_wins_in_the_end(self, engine: Engine) -> None:
        conflicts: list[str] = []
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        store.once_before("update", *[self.attack(engine, conflicts)] * 20)

        outcome = engine.handle(ADD, order_id="42")

        assert store.calls == ["find", "update"] * 3 + ["find", "lock", "find", "update"]
        assert conflicts == ["locked"]
        assert outcome.version == 5
        assert engine.data()["total"] == 32

    def test_ends_with_the_commit(self, engine: Engine, rival: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", *[self.attack(engine, [])] * 3)
        engine.handle(ADD, order_id="42")

        assert rival.handle(ADD_TEN, order_id="42").kind is Kind.HANDLED

    def test_ends_with_a_failure(self, engine: Engine) -> None:
        runs: list[int] = []

        def fail(order: Order, order_id: str) -> None:
            runs.append(order.total)
            if len(runs) == 4:
                raise Boom

        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        store.once_before("update", *[self.attack(engine, [])] * 3)

        with pytest.raises(Boom):
            engine.handle(handler(fail), order_id="42")

        assert store.calls[-4:] == ["find", "lock", "find", "lock"]
        record = engine.record()
        assert record is not None
        assert record.locked_by == ""

    def test_ends_when_the_message_was_handled_meanwhile(self, engine: Engine, rival: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        attack = self.attack(engine, [])
        store.once_before("update", attack, attack, attack)
        store.once_before("lock", call(lambda: rival.handle(ADD, order_id="42", id="m1")))

        assert engine.handle(ADD, order_id="42", id="m1").kind is Kind.DUPLICATE
        record = engine.record()
        assert record is not None
        assert record.locked_by == ""

    def test_is_not_taken_for_an_instance_that_is_only_ignored(self, engine: Engine, rival: Engine) -> None:
        """Nothing would end it."""
        step = starter(place, if_exists="ignore")
        rival.handle(PLACE, order_id="42")
        record = engine.record()
        assert record is not None
        assert engine.backend.sagas.lock(record, "somebody", 30_000)
        store = engine.interpose()

        assert engine.handle(step, order_id="42").kind is Kind.IGNORED
        assert store.calls == ["find", "record"]

    @pytest.mark.parametrize(("took_s", "lasts_ms"), [(0.5, LOCK_MS), (100, 200_000)])
    def test_lasts_as_long_as_the_handler_needs(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, took_s: float, lasts_ms: int
    ) -> None:
        now = [0.0]
        monkeypatch.setattr("celery_sagas.engine.conflicts.time.monotonic", lambda: now[0])
        locked: list[int] = []
        lock = engine.backend.sagas.lock
        monkeypatch.setattr(
            engine.backend.sagas, "lock", lambda record, owner, ms: (locked.append(ms), lock(record, owner, ms))[1]
        )

        def slow(order: Order, order_id: str) -> None:
            now[0] += took_s

        engine.handle(PLACE, order_id="42")
        engine.interpose().once_before("update", *[self.attack(engine, [])] * 3)
        engine.handle(handler(slow), order_id="42")

        assert locked == [lasts_ms]

    def test_of_another_is_waited_for(self, engine: Engine, clock: Clock, pauses: list[float]) -> None:
        """The handler does not run in vain meanwhile."""
        engine.handle(PLACE, order_id="42")
        record = engine.record()
        assert record is not None
        engine.backend.sagas.lock(record, "somebody", 1_000)
        store = engine.interpose()
        store.once_before("find", *[call(lambda: clock.advance(250))] * 4)

        engine.handle(ADD, order_id="42")

        assert store.calls == [*["find"] * 4, "lock", "find", "update"]
        assert engine.data()["total"] == 2
        assert len(pauses) == 3

    def test_that_never_ends_puts_the_message_off(self, engine: Engine, pauses: list[float]) -> None:
        engine.handle(PLACE, order_id="42")
        record = engine.record()
        assert record is not None
        engine.backend.sagas.lock(record, "somebody", 10**9)

        with pytest.raises(RevisionConflict, match="locked"):
            engine.handle(ADD, order_id="42")

        assert len(pauses) == 2 + LOCKED_RUNS
        assert engine.data()["total"] == 1

    def test_of_an_instance_that_is_gone(self, engine: Engine, rival: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        attack = self.attack(engine, [])
        store.once_before("update", attack, attack, attack)
        store.once_before("lock", call(lambda: rival.handle(FINISH, order_id="42")))

        assert engine.handle(ADD, order_id="42").reason == "completed"

    def test_that_cannot_be_ended_is_logged(self, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
        def fail(order: Order, order_id: str) -> None:
            if order.total >= 31:
                raise Boom

        def away() -> None:
            raise StoreUnavailable("store", "away")

        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        attack = self.attack(engine, [])
        store.once_before("update", attack, attack, attack)
        store.once_before("lock", call(lambda: None), away)

        with pytest.raises(Boom):
            engine.handle(handler(fail), order_id="42")

        assert "stays locked for at most" in caplog.text


def add_ten_at_once(backend: MemoryBackend, record: Record | None) -> None:
    """Write what ADD_TEN would."""
    assert record is not None
    state = json.loads(record.data)
    change = Change(("order",), 1, json.dumps({**state, "total": state["total"] + 10}), "{}")
    entry = Entry("order.rival", str(record.version), "a", "handled", "order", "42", record.id, record.version + 1, "{}")
    backend.sagas.update(record, change, Effects(entry, lock_owner="rival"))


@pytest.mark.parametrize("seen", range(1, 40))
def test_pauses_grow_to_a_limit(seen: int) -> None:
    """Rivals are spread out, and none waits for long."""
    shortest, longest = pause(seen, 0.0), pause(seen, 1.0)
    assert 0 < shortest < longest <= 0.25
    assert pause(seen + 1, 0.5) >= pause(seen, 0.5)


def test_conflicts_that_outlast_everything_are_raised(pauses: list[float]) -> None:
    """The message is redelivered later then."""
    conflict = RevisionConflict("order", "42", "version")
    conflicts = Conflicts(retries=1)
    for _ in range(1 + LOCKED_RUNS):
        conflicts.wait(conflict)

    with pytest.raises(RevisionConflict):
        conflicts.wait(conflict)
    assert conflicts.locking
