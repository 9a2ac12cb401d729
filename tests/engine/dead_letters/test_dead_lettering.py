"""Dead-lettering: a dead letter, and a tombstone in the journal."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_sagas.core.requests.requests import Addressed
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import (
    TEXT_CHARACTERS,
    TRACEBACK_CHARACTERS,
    close,
    dead_letter_of,
    keep_dead_letter,
    locate,
)
from celery_sagas.engine.handling import handle
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.session import Delivery, Session
from celery_sagas.errors import (
    CorrelationError,
    InvalidMessage,
    NewerState,
    StoreError,
    StoreUnavailable,
    TooManyDeliveries,
    UnreadableState,
)
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import ID, KEY, DeadLetter, Lookup
from tests.engine.conftest import Boom, Engine, Order, handler, send, starter


def place(order: State, order_id: str, total: int = 1) -> None:
    """Start an order."""
    assert isinstance(order, Order)
    order.total += total


def pay(order: State, order_id: str) -> None:
    """Pay it."""
    send(order, "receipt")


PLACE, PAY = starter(place), handler(pay)
HERE = Lookup(("order",), KEY, "42")


def dead_letter(message_id: str = "m1", step: StepDefinition = PLACE, error: Exception | None = None) -> DeadLetter:
    """Return a dead letter."""
    return dead_letter_of(step.name, message_id, "order", error or Boom("no"), "{}")


def failing(error: Exception) -> Callable[[], None]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


def dead_letters(backend: MemoryBackend) -> list[str]:
    """Return the ids of the kept dead letters."""
    return [kept.id for kept in backend.dead.list(10)]


class TestLetter:
    """What it says."""

    def test_id_is_that_of_the_message_and_its_step(self) -> None:
        """Whatever failed, and however often."""
        assert dead_letter().id == dead_letter(error=KeyError("other")).id
        assert len({dead_letter().id, dead_letter("m2").id, dead_letter(step=PAY).id}) == 3
        assert dead_letter("x" * 255 + "1").id != dead_letter("x" * 255 + "2").id  # of which the dead letter shows the beginning

    def test_error_is_described(self) -> None:
        def fail() -> None:
            raise Boom("it\0 broke \ud800")

        with pytest.raises(Boom) as caught:
            fail()
        made = dead_letter(error=caught.value)

        assert (made.error, made.text) == ("Boom", "it\\0 broke \\ud800")
        assert "in fail" in made.traceback
        assert made.traceback.rstrip().endswith("it\\0 broke \\ud800")

    def test_texts_are_bounded(self) -> None:
        """Of a traceback the end is kept."""
        made = dead_letter(error=Boom("\ud800" * 30_000 + "the end"))

        assert len(made.text) == TEXT_CHARACTERS
        assert len(made.traceback) == TRACEBACK_CHARACTERS
        assert made.traceback.rstrip().endswith("the end")

    def test_error_without_a_text(self) -> None:
        """Its class is known at least."""

        class Mute(Exception):
            def __str__(self) -> str:
                raise KeyError

        made = dead_letter(error=Mute())

        assert (made.error, made.text) == ("Mute", "its text cannot be read: KeyError")

    def test_names_that_no_store_takes(self) -> None:
        """Any producer may choose a task's id."""
        made = dead_letter_of("order.place", "\ud800\0" + "x" * 300, "order", Boom(), "{}")

        assert made.message_id.startswith("\\ud800\\0xxx")
        assert len(made.message_id) == 255


class TestLocate:
    """Where a message looks."""

    def test_key(self) -> None:
        assert locate(PLACE, {"order_id": "42"}, {}) == HERE

    def test_timeout_goes_to_its_instance(self) -> None:
        """Whatever key its arguments name."""
        found = locate(PAY, {"order_id": "42"}, {}, Addressed("i1", "t1"))

        assert (found.property, found.value) == (ID, "i1")

    @pytest.mark.parametrize(
        ("bound", "error"),
        [({}, InvalidMessage), ({"order_id": "42", "x": 1}, InvalidMessage), ({"order_id": ""}, CorrelationError)],
    )
    def test_message_that_names_no_instance(self, bound: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            locate(PLACE, bound, {})


class TestDeadLetter:
    """The dead letter is kept, and the message does nothing any more."""

    def test_dead_letter_and_tombstone(self, engine: Engine, backend: MemoryBackend) -> None:
        kept = keep_dead_letter(backend, PLACE, dead_letter(), HERE)

        assert kept is not None
        assert backend.dead.get(kept.id) is not None
        assert kept.key == "42"
        entry = engine.entry(PLACE, "m1")
        assert entry is not None
        assert (entry.outcome, entry.key, entry.saga, entry.version) == ("failed", "42", "order", 0)
        assert json.loads(entry.detail) == {"error": "Boom", "dead_letter": kept.id}

    def test_instance_is_named(self, engine: Engine, backend: MemoryBackend) -> None:
        """By its key, also if the message names its id."""
        engine.handle(PLACE, order_id="42")
        record = engine.record()
        assert record is not None

        kept = keep_dead_letter(backend, PAY, dead_letter(step=PAY), Lookup(("order",), ID, record.id))

        assert kept is not None
        assert kept.key == "42"
        entry = engine.entry(PAY, "m1")
        assert entry is not None
        assert (entry.instance_id, entry.version) == (record.id, 1)
        assert engine.record() == record

    def test_redelivery_is_told_from_a_success(self, engine: Engine, backend: MemoryBackend) -> None:
        keep_dead_letter(backend, PLACE, dead_letter(), HERE)

        outcome = engine.handle(PLACE, id="m1", order_id="42")

        assert outcome.kind is Kind.FAILED
        assert engine.record() is None

    def test_other_messages_are_handled(self, engine: Engine, backend: MemoryBackend) -> None:
        keep_dead_letter(backend, PLACE, dead_letter(), HERE)

        assert engine.handle(PLACE, id="m2", order_id="42").kind is Kind.STARTED

    def test_again_changes_nothing(self, backend: MemoryBackend) -> None:
        """Also once the dead letter was discarded."""
        kept = keep_dead_letter(backend, PLACE, dead_letter(), HERE)
        assert kept is not None
        backend.dead.remove(kept.id)

        assert keep_dead_letter(backend, PLACE, dead_letter(), HERE) is None
        assert dead_letters(backend) == []

    def test_message_that_was_handled(self, engine: Engine, backend: MemoryBackend) -> None:
        """It did not fail."""
        engine.handle(PLACE, id="m1", order_id="42")

        assert keep_dead_letter(backend, PLACE, dead_letter(), HERE) is None
        assert dead_letters(backend) == []

    def test_run_that_commits_first_wins(self, engine: Engine, rival: Engine) -> None:
        """It goes on in another process, while its time is over."""
        store = engine.interpose()
        store.once_before("record", lambda: rival.handle(PLACE, id="m1", order_id="42"))

        assert keep_dead_letter(engine.services.backend, PLACE, dead_letter(), HERE) is None
        assert dead_letters(engine.backend) == []
        assert engine.data()["total"] == 1

    def test_run_that_commits_later_does_not(self, engine: Engine, rival: Engine, backend: MemoryBackend) -> None:
        store = engine.interpose()
        store.once_before("insert", lambda: keep_dead_letter(backend, PLACE, dead_letter(), HERE))

        outcome = engine.handle(PLACE, id="m1", order_id="42")

        assert outcome.kind is Kind.FAILED
        assert engine.record() is None
        assert dead_letters(backend) == [dead_letter().id]

    def test_rival_that_buries_too(self, engine: Engine, backend: MemoryBackend) -> None:
        store = engine.interpose()
        store.once_before("record", lambda: keep_dead_letter(backend, PLACE, dead_letter(), HERE))

        assert keep_dead_letter(engine.services.backend, PLACE, dead_letter(), HERE) is not None
        assert dead_letters(backend) == [dead_letter().id]

    def test_dead_letter_comes_first(self, engine: Engine, backend: MemoryBackend) -> None:
        """An interrupted dead-lettering is completed by the next one."""
        store = engine.interpose()

        def fail() -> None:
            raise StoreUnavailable("memory://", "away")

        store.once_before("record", fail)
        with pytest.raises(StoreUnavailable):
            keep_dead_letter(engine.services.backend, PLACE, dead_letter(), HERE)
        assert dead_letters(backend) == [dead_letter().id]
        assert engine.entry(PLACE, "m1") is None

        assert keep_dead_letter(backend, PLACE, dead_letter(), HERE) is not None
        assert dead_letters(backend) == [dead_letter().id]
        entry = engine.entry(PLACE, "m1")
        assert entry is not None
        assert entry.outcome == "failed"

    def test_dead_letter_of_an_interrupted_dead_lettering_goes_if_the_message_was_handled(
        self, engine: Engine, backend: MemoryBackend
    ) -> None:
        backend.dead.add(dead_letter())
        engine.handle(PLACE, id="m1", order_id="42")

        assert keep_dead_letter(backend, PLACE, dead_letter(), HERE) is None
        assert dead_letters(backend) == []

    def test_message_without_an_instance(self, backend: MemoryBackend) -> None:
        """It has a dead letter, and no tombstone: nobody knows where it would look."""
        assert keep_dead_letter(backend, PLACE, dead_letter(), None) == dead_letter()
        assert dead_letters(backend) == [dead_letter().id]

    @pytest.mark.parametrize("damage", [UnreadableState("order", "42", "no JSON"), StoreError("it is no hash")], ids=repr)
    def test_instance_that_is_never_readable(self, engine: Engine, backend: MemoryBackend, damage: StoreError) -> None:
        """It has a dead letter, and no tombstone: where that goes, only the instance could tell."""
        engine.interpose().once_before("find", failing(damage))

        assert keep_dead_letter(engine.services.backend, PLACE, dead_letter(), HERE) == dead_letter()._replace(key="42")
        assert dead_letters(backend) == [dead_letter().id]
        assert engine.entry(PLACE, "m1") is None

    @pytest.mark.parametrize("error", [StoreUnavailable("memory://", "away"), NewerState("order", "42", 2, 1)], ids=repr)
    def test_store_that_can_serve_later(self, engine: Engine, backend: MemoryBackend, error: StoreError) -> None:
        engine.interpose().once_before("find", failing(error))

        with pytest.raises(type(error)):
            keep_dead_letter(engine.services.backend, PLACE, dead_letter(), HERE)
        assert dead_letters(backend) == []


class TestClose:
    """Before a dead letter is retried."""

    def test_writes_what_is_missing(self, engine: Engine, backend: MemoryBackend) -> None:
        backend.dead.add(dead_letter())

        assert close(backend, PLACE, dead_letter(), HERE)
        assert engine.handle(PLACE, id="m1", order_id="42").kind is Kind.FAILED

    def test_message_that_was_handled_since(self, engine: Engine, backend: MemoryBackend) -> None:
        backend.dead.add(dead_letter())
        engine.handle(PLACE, id="m1", order_id="42")

        assert not close(backend, PLACE, dead_letter(), HERE)
        assert dead_letters(backend) == []

    def test_instance_that_is_never_readable(self, engine: Engine, backend: MemoryBackend) -> None:
        """As far as anybody can tell, the message failed."""
        backend.dead.add(dead_letter())
        engine.interpose().once_before("find", failing(UnreadableState("order", "42", "no JSON")))

        assert close(engine.services.backend, PLACE, dead_letter(), HERE)
        assert dead_letters(backend) == [dead_letter().id]

    def test_store_that_is_away(self, engine: Engine) -> None:
        engine.interpose().once_before("find", failing(StoreUnavailable("memory://", "away")))

        with pytest.raises(StoreUnavailable):
            close(engine.services.backend, PLACE, dead_letter(), HERE)


class TestRedelivery:
    """Deliveries are counted in the store, right before the handler runs."""

    def deliver(self, engine: Engine, step: StepDefinition, allowed: int | None) -> Any:
        """Deliver the message m1, for the first time or again."""
        session = Session("m1")

        def call(function: Any, first: Any, **arguments: Any) -> Any:
            return function(first, **arguments)

        return handle(engine.services, Delivery(step, "m1", {"order_id": "42"}, session, call, max_deliveries=allowed))

    def test_too_many(self, engine: Engine) -> None:
        """The first delivery counts too, though nobody knew then that it would."""
        runs: list[int] = []

        def crash(order: State, order_id: str) -> None:
            runs.append(1)
            raise Boom

        step = starter(crash)
        for allowed in (None, 3, 3):
            with pytest.raises(Boom):
                self.deliver(engine, step, allowed)
        with pytest.raises(TooManyDeliveries) as caught:
            self.deliver(engine, step, 3)

        assert caught.value.args == (step.name, "m1", 4, 3)
        assert len(runs) == 3

    def test_message_that_was_handled_is_not_counted(self, engine: Engine, backend: MemoryBackend) -> None:
        self.deliver(engine, PLACE, None)
        for _ in range(3):
            assert self.deliver(engine, PLACE, 1).kind is Kind.DUPLICATE

        assert backend.deliveries.count(PLACE.name, "m1") == 1

    @pytest.mark.parametrize(
        ("damage", "error"),
        [
            ({"schema_version": 99}, NewerState),
            ({"pending": '{"format": 99}'}, NewerState),
            ({"data": "{"}, UnreadableState),
            ({"pending": '{"keys": {}}'}, UnreadableState),
        ],
    )
    def test_state_that_cannot_be_loaded_is_not_counted(
        self, engine: Engine, backend: MemoryBackend, damage: dict[str, Any], error: type[Exception]
    ) -> None:
        """Nothing has ended the message's worker, however often it comes."""
        engine.handle(PLACE, order_id="42")
        engine.rewrite(**damage)
        for _ in range(3):
            with pytest.raises(error):
                self.deliver(engine, PLACE, 1)

        assert backend.deliveries.count(PLACE.name, "m1") == 1

    def test_store_that_is_away_is_not_counted(self, engine: Engine, backend: MemoryBackend) -> None:
        engine.interpose().once_before("find", *[failing(StoreUnavailable("memory://", "away"))] * 3)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                self.deliver(engine, PLACE, 1)

        assert backend.deliveries.count(PLACE.name, "m1") == 1

    def test_message_that_no_handler_runs_for_is_not_counted(self, engine: Engine, backend: MemoryBackend) -> None:
        assert self.deliver(engine, PAY, 1).kind is Kind.IGNORED
        assert backend.deliveries.count(PAY.name, "m1") == 1

    def test_function_for_what_is_missing_may_end_its_worker_too(self, engine: Engine, backend: MemoryBackend) -> None:
        step = handler(pay)
        step.if_missing = lambda missing, order_id: None

        with pytest.raises(TooManyDeliveries):
            self.deliver(engine, step, 1)
        assert backend.deliveries.count(step.name, "m1") == 2

    def test_too_many_end_a_lock(self, engine: Engine) -> None:
        """Others need not wait until it expires."""
        engine.handle(PLACE, order_id="42")
        services = engine.services
        engine.services = replace(services, conflict_retries=-1)  # every run locks

        with pytest.raises(TooManyDeliveries):
            self.deliver(engine, PLACE, 1)
        record = engine.record()
        assert record is not None
        assert record.locked_by == ""

    def test_conflict_is_no_delivery(self, engine: Engine, rival: Engine, backend: MemoryBackend) -> None:
        """The handler runs again, and the message came once."""
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        store.once_before("update", lambda: rival.handle(PLACE, order_id="42"))

        self.deliver(engine, PLACE, 10)

        assert store.calls.count("update") == 2
        assert backend.deliveries.count(PLACE.name, "m1") == 2


def add_one(order: Order, order_id: str) -> None:
    """Do nothing."""


def test_dead_letter_that_the_store_refuses_is_kept_without_its_message(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its message would come again indefinitely."""
    add = backend.dead.add

    def small(dead_letter: DeadLetter) -> None:
        if len(dead_letter.payload) > 100:
            raise StoreError("too large")
        add(dead_letter)

    monkeypatch.setattr(backend.dead, "add", small)
    made = dead_letter_of("order.add", "m1", "order", ValueError("x"), "x" * 101)
    kept = keep_dead_letter(backend, starter(add_one), made, None)

    assert kept is not None
    assert "unreadable" in backend.dead.list(1)[0].payload
