"""A message's effect is committed once, or nothing of it is."""

import json
from datetime import datetime

import pytest

from celery_sagas.core.state import State
from celery_sagas.engine.outcomes import Kind, Missing
from celery_sagas.errors import (
    CorrelationError,
    InvalidMessage,
    InvalidState,
    MisuseError,
    NewerState,
    PublishError,
    SagaAlreadyExists,
    SagaError,
    SagaNotFound,
    StillUnsent,
    UnreadableState,
)
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import GRACE_S, Boom, Engine, Order, alone, handler, send, starter


def place(order: Order, order_id: str, total: int = 1) -> None:
    """Start, or go on."""
    order.total += total
    send(order, "charge")


def add(order: Order, order_id: str, total: int) -> str:
    """Go on."""
    order.total += total
    return send(order, "charge")


def finish(order: Order, order_id: str) -> None:
    """End."""
    send(order, "bye")
    order.complete()


PLACE, ADD, FINISH = starter(place), handler(add), handler(finish)


def nothing(engine: Engine) -> None:
    """Expect that nothing was written or sent."""
    assert engine.record() is None
    assert engine.entries() == []
    assert engine.backend.outbox.count() == 0
    assert engine.publisher.published == []


class TestLifeOfAnInstance:
    """Insert, update, delete; each message is read, invoked and written once."""

    def test_first_message_inserts(self, engine: Engine) -> None:
        """The key is set from the message."""
        store = engine.interpose()

        outcome = engine.handle(PLACE, order_id="42", total=5)

        assert store.calls == ["find", "insert"]
        assert engine.data() == {"order_id": "42", "total": 5, "tracking": None, "email": None, "note": ""}
        record = engine.record()
        assert record is not None
        assert (outcome.kind, outcome.is_new, outcome.version) == (Kind.STARTED, True, 1)
        assert (record.id, record.version) == (outcome.instance_id, 1)

    def test_instances_have_ids_in_the_order_of_their_creation(self, engine: Engine) -> None:
        drawn = [engine.handle(PLACE, order_id=str(number)).instance_id for number in range(100)]
        assert drawn == sorted(drawn)

    def test_next_message_updates(self, engine: Engine) -> None:
        first = engine.handle(PLACE, order_id="42", total=5)
        store = engine.interpose()

        outcome = engine.handle(ADD, order_id="42", total=2)

        assert store.calls == ["find", "update"]
        assert engine.data()["total"] == 7
        assert (outcome.kind, outcome.is_new, outcome.version) == (Kind.HANDLED, False, 2)
        assert outcome.instance_id == first.instance_id

    def test_a_handler_that_changes_nothing_is_written_too(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")

        engine.handle(ADD, order_id="42", total=0)

        record = engine.record()
        assert record is not None
        assert record.version == 2

    def test_last_message_deletes(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()

        outcome = engine.handle(FINISH, order_id="42")

        assert store.calls == ["find", "delete"]
        assert engine.record() is None
        assert [entry.outcome for entry in engine.entries()] == ["started", "completed"]
        assert (outcome.kind, outcome.version) == (Kind.COMPLETED, 2)
        assert [message.task for message in engine.publisher.published] == ["charge", "bye"]

    def test_complete_at_birth_writes_journal_and_sends_only(self, engine: Engine) -> None:
        store = engine.interpose()

        outcome = engine.handle(starter(finish), order_id="42")

        assert store.calls == ["find", "record"]
        assert engine.record() is None
        assert [(entry.outcome, entry.instance_id) for entry in engine.entries()] == [("completed", outcome.instance_id)]
        assert [message.task for message in engine.publisher.published] == ["bye"]
        assert (outcome.kind, outcome.is_new) == (Kind.COMPLETED, True)

    def test_complete_at_birth_needs_no_valid_state(self, engine: Engine) -> None:
        def place(order: Order, order_id: str) -> None:
            order.total = "no number"  # type: ignore[assignment]
            order.order_id = "another"
            order.complete()

        assert engine.handle(starter(place), order_id="42").kind is Kind.COMPLETED

    def test_restart_after_completion_is_another_instance(self, engine: Engine) -> None:
        first = engine.handle(PLACE, order_id="42", total=5)
        engine.handle(FINISH, order_id="42")

        again = engine.handle(PLACE, order_id="42", total=1)

        assert (again.kind, again.version) == (Kind.STARTED, 1)
        assert again.instance_id != first.instance_id
        assert engine.data()["total"] == 1

    def test_result_of_the_handler_is_returned(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")

        assert engine.handle(ADD, order_id="42", total=1).result == engine.publisher.ids[-1]

    def test_view_of_the_instance(self, engine: Engine, clock: Clock) -> None:
        seen = []

        def look(order: Order, order_id: str) -> None:
            seen.append(order.saga)

        engine.handle(starter(look), order_id="42", id="m1")
        clock.advance(1000)
        engine.handle(starter(look), order_id="42", id="m2")
        engine.handle(starter(look), order_id="42", id="m3")

        assert [(view.is_new, view.version, view.key, view.name) for view in seen] == [
            (True, 0, "42", "order"),
            (False, 1, "42", "order"),
            (False, 2, "42", "order"),
        ]
        assert len({view.id for view in seen}) == 1
        assert seen[0].created_at is None
        assert (seen[2].updated_at - seen[2].created_at).total_seconds() == 1
        assert [(view.message.id, view.message.step) for view in seen] == [(f"m{n}", "order.look") for n in (1, 2, 3)]


class TestExactlyOnce:
    """An effect happens once for each step and message id."""

    def test_duplicate_does_nothing(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42", id="m1")
        engine.handle(ADD, order_id="42", total=5, id="m2")
        published = list(engine.publisher.published)

        outcome = engine.handle(ADD, order_id="42", total=5, id="m2")

        assert outcome.kind is Kind.DUPLICATE
        assert engine.data()["total"] == 6
        assert engine.publisher.published == published
        assert len(engine.entries()) == 2

    def test_duplicate_of_a_starter_after_completion_starts_nothing(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42", id="m1")
        engine.handle(FINISH, order_id="42")

        assert engine.handle(PLACE, order_id="42", id="m1").kind is Kind.DUPLICATE
        assert engine.record() is None

    @pytest.mark.parametrize("policy", ["ignore", "raise"])
    def test_journal_comes_before_the_policy_of_a_starter(self, engine: Engine, policy: str) -> None:
        step = starter(place, if_exists=policy)
        engine.handle(step, order_id="42", id="m1")

        assert engine.handle(step, order_id="42", id="m1").kind is Kind.DUPLICATE

    def test_journal_comes_before_the_policy_of_a_handler(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        step = handler(finish, if_missing="raise")
        engine.handle(step, order_id="42", id="m1")

        assert engine.handle(step, order_id="42", id="m1").kind is Kind.DUPLICATE

    def test_one_message_to_two_steps_is_handled_by_both(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42", total=1, id="m1")
        engine.handle(ADD, order_id="42", total=5, id="m1")

        assert engine.data()["total"] == 6

    def test_ignored_is_final(self, engine: Engine) -> None:
        engine.handle(ADD, order_id="42", total=5, id="m1")
        engine.handle(PLACE, order_id="42", total=1)

        assert engine.handle(ADD, order_id="42", total=5, id="m1").kind is Kind.DUPLICATE
        assert engine.data()["total"] == 1

    def test_message_handled_under_a_former_name_of_the_step_is_a_duplicate(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.handle(ADD, order_id="42", total=5, id="m1")

        def add_total(order: Order, order_id: str, total: int) -> None:
            raise AssertionError("it ran again")

        renamed = handler(add_total, formerly="order.add")

        assert engine.handle(renamed, order_id="42", total=5, id="m1").kind is Kind.DUPLICATE

    def test_what_follows_a_duplicate_belongs_to_its_instance(self, engine: Engine) -> None:
        """The worker may have died before it sent the task's ``link``, or the next of its chain."""
        first = engine.handle(PLACE, order_id="42", id="m1")

        outcome = engine.handle(PLACE, order_id="42", id="m1")

        assert engine.session is not None
        assert engine.session.causation == {"order": first.instance_id}
        assert (outcome.instance_id, outcome.key, outcome.version) == (first.instance_id, "42", 1)

    def test_duplicate_publishes_what_was_left(self, engine: Engine, clock: Clock) -> None:
        engine.publisher.errors = [PublishError("away", True)]
        engine.handle(PLACE, order_id="42", id="m1")
        assert (engine.publisher.ids, engine.backend.outbox.count()) == ([], 1)
        clock.advance(int(GRACE_S * 1000) + 1)

        engine.handle(PLACE, order_id="42", id="m1")

        assert [message.task for message in engine.publisher.published] == ["charge"]
        assert engine.backend.outbox.count() == 0

    def test_duplicate_leaves_rows_to_whoever_has_their_lease(self, engine: Engine, rival: Engine) -> None:
        engine.publisher.errors = [PublishError("away", True)]
        engine.handle(PLACE, order_id="42", id="m1")

        with pytest.raises(StillUnsent):
            rival.handle(PLACE, order_id="42", id="m1")

        assert rival.publisher.published == []
        assert rival.backend.outbox.count() == 1

    def test_duplicate_leaves_rows_of_other_messages_alone(self, engine: Engine, clock: Clock) -> None:
        engine.publisher.errors = [PublishError("away", True)]
        engine.handle(PLACE, order_id="42", id="m1")
        engine.handle(ADD, order_id="42", total=1, id="m2")
        published = engine.publisher.ids
        clock.advance(int(GRACE_S * 1000) + 1)

        engine.handle(ADD, order_id="42", total=1, id="m2")

        assert engine.publisher.ids == published
        assert engine.backend.outbox.count() == 1


class TestIdsOfWhatIsSent:
    """They are derived from the incoming message."""

    @alone
    def test_same_in_every_run(self, engine: Engine, rival: Engine) -> None:
        ids: list[str] = []

        def place(order: Order, order_id: str) -> None:
            ids.extend([send(order, "a"), send(order, "b")])
            if len(ids) == 2:
                raise Boom

        step = starter(place)
        with pytest.raises(Boom):
            engine.handle(step, order_id="42", id="m1")
        rival.handle(step, order_id="42", id="m1")

        assert ids[:2] == ids[2:]
        assert len(set(ids)) == 2
        assert rival.publisher.ids == ids[2:]

    def test_different_for_each_message_and_step(self, engine: Engine) -> None:
        def other(order: Order, order_id: str) -> None:
            send(order, "charge")

        engine.handle(PLACE, order_id="42", id="m1")
        engine.handle(PLACE, order_id="42", id="m2")
        engine.handle(starter(other), order_id="42", id="m1")

        assert len(set(engine.publisher.ids)) == 3

    def test_order_of_the_calls_is_kept(self, engine: Engine) -> None:
        def place(order: Order, order_id: str) -> None:
            for task in ("c", "a", "b"):
                send(order, task)

        engine.handle(starter(place), order_id="42")

        assert [message.task for message in engine.publisher.published] == ["c", "a", "b"]


class TestNothingIsLeftBehind:
    """A message that fails writes nothing and sends nothing."""

    @pytest.mark.parametrize("error", [Boom(), KeyboardInterrupt(), SystemExit(1)], ids=repr)
    def test_handler_that_raises(self, engine: Engine, error: BaseException) -> None:
        def place(order: Order, order_id: str) -> None:
            order.total = 5
            send(order, "charge")
            raise error

        with pytest.raises(type(error)):
            engine.handle(starter(place), order_id="42")

        nothing(engine)

    def test_handler_that_raises_on_an_instance(self, engine: Engine) -> None:
        def fail(order: Order, order_id: str) -> None:
            order.total = 99
            order.complete()
            send(order, "charge")
            raise Boom

        engine.handle(PLACE, order_id="42")
        before, sent = engine.record(), engine.publisher.ids

        with pytest.raises(Boom):
            engine.handle(handler(fail), order_id="42")

        assert engine.record() == before
        assert len(engine.entries()) == 1
        assert engine.publisher.ids == sent

    def test_failed_message_does_not_lead_to_the_instance(self, engine: Engine) -> None:
        def place(order: Order, order_id: str) -> None:
            raise Boom

        with pytest.raises(Boom):
            engine.handle(starter(place), order_id="42", causation={"order": "before", "parcel": "p"})

        assert engine.session is not None
        assert engine.session.causation == {"order": "before", "parcel": "p"}

    @alone
    def test_message_that_failed_can_be_handled_again(self, engine: Engine) -> None:
        fails = [True]

        def place(order: Order, order_id: str) -> None:
            if fails.pop():
                raise Boom

        step = starter(place)
        with pytest.raises(Boom):
            engine.handle(step, order_id="42", id="m1")
        fails.append(False)

        assert engine.handle(step, order_id="42", id="m1").kind is Kind.STARTED

    @pytest.mark.parametrize("arguments", [{}, {"order_id": "42", "total": "x"}, {"order_id": "42", "surplus": 1}], ids=str)
    def test_message_that_does_not_fit(self, engine: Engine, arguments: dict[str, object]) -> None:
        store = engine.interpose()

        with pytest.raises(InvalidMessage):
            engine.handle(PLACE, **arguments)  # type: ignore[arg-type]

        assert store.calls == []

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\0b"])
    def test_value_that_is_no_key(self, engine: Engine, key: str) -> None:
        with pytest.raises(CorrelationError):
            engine.handle(PLACE, order_id=key)

        nothing(engine)

    @pytest.mark.parametrize("key", ["43", None, 42])
    def test_changed_key(self, engine: Engine, key: object) -> None:
        def change(order: Order, order_id: str) -> None:
            order.order_id = key  # type: ignore[assignment]

        engine.handle(PLACE, order_id="42")
        before = engine.record()
        for step in (handler(change), starter(change)):
            if key == 42:  # the same text: what is stored would come back changed
                with pytest.raises(InvalidState, match="order_id"):
                    engine.handle(step, order_id="42")
            else:
                with pytest.raises(InvalidState, match=r"order_id.*(changed|null)"):
                    engine.handle(step, order_id="42")

        assert engine.record() == before
        assert engine.record("43") is None

    def test_changed_key_of_an_instance_that_ends(self, engine: Engine) -> None:
        def change(order: Order, order_id: str) -> None:
            order.order_id = "43"
            order.complete()

        engine.handle(PLACE, order_id="42")

        with pytest.raises(InvalidState, match="changed"):
            engine.handle(handler(change), order_id="42")
        assert engine.record() is not None

    def test_field_without_default_that_nobody_set(self, engine: Engine) -> None:
        class Parcel(State, correlate_by="order_id"):
            order_id: str
            weight: int

        def place(parcel: Parcel, order_id: str) -> None: ...

        with pytest.raises(InvalidState, match="weight: it is not set"):
            engine.handle(starter(place, saga=Parcel), order_id="42")

    def test_state_that_is_invalid(self, engine: Engine) -> None:
        def place(order: Order, order_id: str) -> None:
            order.total = "many"  # type: ignore[assignment]

        with pytest.raises(InvalidState, match="total"):
            engine.handle(starter(place), order_id="42")

        nothing(engine)

    @pytest.mark.parametrize("field", ["due", "dates", "named"])
    def test_argument_without_annotation_is_named(self, engine: Engine, field: str) -> None:
        class Parcel(State, correlate_by="order_id"):
            order_id: str
            due: datetime | None = None
            dates: list[datetime] = []
            named: dict[str, datetime] = {}

        def place(parcel, order_id: str, when, note=None):  # type: ignore[no-untyped-def]
            setattr(parcel, field, {"due": when, "dates": [when], "named": {"first": when}}[field])

        with pytest.raises(InvalidState) as raised:
            engine.handle(starter(place, saga=Parcel), order_id="42", when="2026-01-02T03:04:05Z")

        assert str(raised.value).startswith(f"The state of parcel '42' cannot be stored: {field}")
        assert str(raised.value).endswith(
            "Nothing was stored or sent; when of parcel.place has no annotation, and comes as JSON has it: annotate it."
        )

    def test_arguments_without_annotation_are_named(self, engine: Engine) -> None:
        """But for one that is the same object by chance."""

        class Parcel(State, correlate_by="order_id"):
            order_id: str
            due: datetime | None = None
            dates: list[datetime] = []

        def place(parcel, order_id, when, dates):  # type: ignore[no-untyped-def]
            parcel.due, parcel.dates = when, dates

        with pytest.raises(InvalidState) as raised:
            engine.handle(starter(place, saga=Parcel), order_id="1", when="soon", dates=["1", "late"])

        assert str(raised.value).endswith(
            "dates and when of parcel.place have no annotation, and come as JSON has it: annotate them."
        )

    def test_argument_without_annotation_that_is_not_to_blame(self, engine: Engine) -> None:
        def place(order, order_id):  # type: ignore[no-untyped-def]
            order.total = "many"

        with pytest.raises(InvalidState, match="fix the handler or the field's type"):
            engine.handle(starter(place), order_id="42")

    def test_messages_that_are_too_large_together(self, backend: MemoryBackend) -> None:
        """No database takes a commit of any size."""

        def place(order: Order, order_id: str, count: int) -> None:
            for _ in range(count):
                send(order, "x" * 900)

        engine = Engine(backend, state_bytes=1_000)
        step = starter(place)
        engine.handle(step, order_id="41", count=8)

        with pytest.raises(InvalidState, match="8 times saga_max_state_bytes"):
            engine.handle(step, order_id="42", count=9)
        assert engine.record() is None

    def test_messages_that_are_too_many(self, engine: Engine) -> None:
        def place(order: Order, order_id: str, count: int) -> None:
            for _ in range(count):
                send(order, "m")

        step = starter(place)
        engine.handle(step, order_id="41", count=1_000)
        with pytest.raises(InvalidState, match=r"sends 1001 messages, and 1,000 are allowed"):
            engine.handle(step, order_id="42", count=1_001)
        assert engine.record() is None

    def test_state_that_is_too_large(self, backend: MemoryBackend) -> None:
        def place(order: Order, order_id: str, text: str) -> None:
            order.note = text

        engine = Engine(backend, state_bytes=1_000)
        step = starter(place)
        engine.handle(step, order_id="41", text="x" * 100)

        with pytest.raises(InvalidState, match=r"saga_max_state_bytes allows 1000"):
            engine.handle(step, order_id="42", text="é" * 500)

        nothing(engine)

    def test_state_and_what_it_waits_for_are_bounded_together(self, backend: MemoryBackend) -> None:
        def place(order: Order, order_id: str, text: str, tracking: str) -> None:
            order.note, order.tracking = text, tracking

        engine = Engine(backend, state_bytes=1_000)
        step = starter(place)
        engine.handle(step, order_id="41", text="x" * 700, tracking="1")

        with pytest.raises(
            InvalidState, match=r"its fields have 9\d\d bytes and what it waits for .* has 1\d\d; .* allows 1000 together"
        ):
            engine.handle(step, order_id="42", text="x" * 750, tracking="y" * 100)

        nothing(engine)


class TestStored:
    """States that other code wrote."""

    def stored(self, engine: Engine, data: str, schema_version: int = 1) -> None:
        """Start an order, then put other data in its place."""
        engine.handle(PLACE, order_id="42")
        record = engine.record()
        assert record is not None
        memory = engine.backend.sagas._state  # type: ignore[attr-defined]
        memory.instances.put(record._replace(data=data, schema_version=schema_version), frozenset())

    def test_unknown_fields_are_written_back(self, engine: Engine) -> None:
        self.stored(engine, '{"order_id":"42","total":1,"gift":{"wrap":true}}')

        engine.handle(ADD, order_id="42", total=1)

        assert engine.data() == {
            "order_id": "42",
            "total": 2,
            "tracking": None,
            "email": None,
            "note": "",
            "gift": {"wrap": True},
        }

    def test_newer_state_is_left_alone(self, engine: Engine) -> None:
        self.stored(engine, '{"order_id":"42","total":1}', schema_version=2)
        before = engine.record()

        with pytest.raises(NewerState):
            engine.handle(ADD, order_id="42", total=1)

        assert engine.record() == before

    def test_newer_pending_map_is_left_alone(self, engine: Engine) -> None:
        self.stored(engine, '{"order_id":"42","total":1}')
        before = engine.rewrite(pending='{"format":99,"timeouts":[]}')

        with pytest.raises(NewerState, match=r"has pending map format 99, this code knows 3\."):
            engine.handle(ADD, order_id="42", total=1)

        assert engine.record() == before

    @pytest.mark.parametrize("data", ["[", "[]", '{"order_id":"42","total":"x"}'])
    def test_state_that_cannot_be_read(self, engine: Engine, data: str) -> None:
        self.stored(engine, data)

        with pytest.raises(UnreadableState):
            engine.handle(ADD, order_id="42", total=1)

    def test_alternate_key_added_to_existing_data_is_indexed_by_the_next_commit(self, engine: Engine) -> None:
        self.stored(engine, '{"order_id":"42","tracking":"T1"}')
        assert engine.record("T1", "tracking") is None

        engine.handle(ADD, order_id="42", total=1)

        assert engine.record("T1", "tracking") is not None


class TestPolicies:
    """What a message does when its instance is there, or is not."""

    def test_second_start_is_handled_by_default(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42", total=1)

        assert engine.handle(PLACE, order_id="42", total=5).kind is Kind.HANDLED
        assert engine.data()["total"] == 6

    def test_second_start_is_ignored(self, engine: Engine) -> None:
        step = starter(place, if_exists="ignore")
        first = engine.handle(step, order_id="42", total=1)
        before, sent = engine.record(), engine.publisher.ids

        outcome = engine.handle(step, order_id="42", total=5, id="m2")

        assert (outcome.kind, outcome.reason, outcome.instance_id) == (Kind.IGNORED, "exists", first.instance_id)
        assert (engine.record(), engine.publisher.ids) == (before, sent)
        entry = engine.entry(step, "m2")
        assert entry is not None
        assert (entry.outcome, entry.key, json.loads(entry.detail)) == ("ignored", "42", {"reason": "exists"})

    def test_second_start_raises(self, engine: Engine) -> None:
        step = starter(place, if_exists="raise")
        first = engine.handle(step, order_id="42", total=1)

        with pytest.raises(SagaAlreadyExists) as raised:
            engine.handle(step, order_id="42", id="m2")

        assert raised.value.args == ("order", "order_id", "42", first.instance_id)
        assert engine.entry(step, "m2") is None

    def test_missing_is_ignored_visibly(self, engine: Engine) -> None:
        outcome = engine.handle(ADD, order_id="42", total=1, id="m1")

        assert (outcome.kind, outcome.reason, outcome.is_new) == (Kind.IGNORED, "missing", False)
        assert engine.record() is None
        assert [entry.outcome for entry in engine.entries()] == ["ignored"]

    def test_completed_is_told_from_missing(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.handle(FINISH, order_id="42")

        assert engine.handle(ADD, order_id="42", total=1).reason == "completed"
        engine.backend.journal.purge(-1, 100)
        assert engine.handle(ADD, order_id="42", total=1).reason == "missing"

    @pytest.mark.parametrize("policy", ["raise", "defer"])
    def test_missing_raises(self, engine: Engine, policy: str) -> None:
        """To defer the message is the worker's work."""
        step = handler(add, if_missing=policy, defer_for=60 if policy == "defer" else None)

        with pytest.raises(SagaNotFound) as raised:
            engine.handle(step, order_id="42", total=1)

        assert raised.value.args == ("order", "order_id", "42", False)
        nothing(engine)

    def test_missing_raises_and_says_that_it_completed(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.handle(FINISH, order_id="42")

        with pytest.raises(SagaNotFound, match="has completed"):
            engine.handle(handler(add, if_missing="raise"), order_id="42", total=1)

    def test_missing_by_an_alternate_key(self, engine: Engine) -> None:
        def delivered(order: Order, tracking: str) -> None: ...

        with pytest.raises(SagaNotFound, match="tracking='T1'"):
            engine.handle(handler(delivered, if_missing="raise"), tracking="T1")

    def test_missing_by_causation(self, engine: Engine) -> None:
        def charged(order: Order, receipt: str) -> None: ...

        step = handler(charged)
        outcome = engine.handle(step, receipt="r", causation={"order": "gone"}, id="m1")

        assert (outcome.kind, outcome.instance_id) == (Kind.IGNORED, "gone")
        with pytest.raises(SagaNotFound, match="with id='gone'"):
            engine.handle(handler(charged, if_missing="raise"), receipt="r", causation={"order": "gone"})

    def test_function_for_what_is_missing(self, engine: Engine) -> None:
        """It sends, and its journal entry is the message's."""
        seen: list[Missing] = []

        def apologise(missing: Missing, order_id: str, total: int) -> str:
            seen.append(missing)
            return missing.send(["sorry", total])

        step = handler(add)
        step.if_missing = apologise
        store = engine.interpose()

        outcome = engine.handle(step, order_id="42", total=7, id="m1")

        assert store.calls == ["find", "record"]
        assert (outcome.kind, outcome.reason, outcome.result) == (Kind.MISSING, "missing", engine.publisher.ids[0])
        assert [message.payload for message in engine.publisher.published] == ['["sorry", 7]']
        assert [(entry.outcome, entry.message_id) for entry in engine.entries()] == [("missing", "m1")]
        (missing,) = seen
        assert (missing.saga, missing.property, missing.value, missing.completed) == ("order", "order_id", "42", False)
        assert (missing.step, missing.arguments) == (step.name, {"order_id": "42", "total": 7})
        assert "total" not in repr(missing)  # the arguments may be secret
        assert engine.handle(step, order_id="42", total=7, id="m1").kind is Kind.DUPLICATE
        with pytest.raises(MisuseError):
            missing.send("later")

    def test_function_for_what_is_missing_that_raises_leaves_nothing(self, engine: Engine) -> None:
        def apologise(missing: Missing, order_id: str, total: int) -> None:
            missing.send("sorry")
            raise Boom

        step = handler(add)
        step.if_missing = apologise

        with pytest.raises(Boom):
            engine.handle(step, order_id="42", total=7)

        nothing(engine)

    def test_function_for_what_is_missing_is_not_called_for_what_is_there(self, engine: Engine) -> None:
        step = handler(add)
        step.if_missing = lambda missing, **_: pytest.fail("it is there")
        engine.handle(PLACE, order_id="42")

        assert engine.handle(step, order_id="42", total=7).kind is Kind.HANDLED


class TestAfterTheStep:
    """A state that outlives its step is of no use."""

    def test_its_methods_refuse(self, engine: Engine) -> None:
        kept: list[Order] = []

        def place(order: Order, order_id: str) -> None:
            kept.append(order)

        engine.handle(starter(place), order_id="42")
        (order,) = kept

        for use in (lambda: send(order, "late"), order.complete):
            with pytest.raises(MisuseError, match="outside a step"):
                use()
        assert engine.backend.outbox.count() == 0

    def test_its_methods_refuse_after_a_failure(self, engine: Engine) -> None:
        kept: list[Order] = []

        def place(order: Order, order_id: str) -> None:
            kept.append(order)
            raise Boom

        with pytest.raises(Boom):
            engine.handle(starter(place), order_id="42")

        with pytest.raises(MisuseError):
            send(kept[0], "late")

    def test_each_run_has_a_state_and_arguments_of_its_own(self, engine: Engine, rival: Engine) -> None:
        """What a run did to them is not seen by the next."""
        seen: list[tuple[int, list[int]]] = []

        def place(order: Order, order_id: str, items: list[int]) -> None:
            seen.append((order.total, list(items)))
            order.total += 1
            items.append(99)

        engine.interpose().once_before("insert", lambda: rival.handle(PLACE, order_id="42", total=10) and None)

        engine.handle(starter(place), order_id="42", items=[1])

        assert seen == [(0, [1]), (10, [1])]
        assert engine.data()["total"] == 11


def test_every_error_of_a_bad_message_is_of_the_tree() -> None:
    """Style: one root."""
    assert all(
        issubclass(error, SagaError) for error in (InvalidMessage, InvalidState, CorrelationError, SagaNotFound, PublishError)
    )
