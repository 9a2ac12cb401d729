"""Messages that are handled together: each has the effect that it has alone, and their operations share round trips."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.outbox.publishing import Receipt
from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.engine.session import Delivery, Session
from celery_sagas.engine.waves import BATCH_S, SLOW_S, Batch, BatchedMessage
from celery_sagas.errors import InvalidMessage, MessageError, Retry
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Operation
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Boom, Engine, Order, handler, patient, send, starter


def place(order: Order, order_id: str, total: int = 1) -> None:
    """Start, or go on."""
    if total < 0:
        raise Boom
    order.total += total
    send(order, f"charge {order_id} {total}")


def finish(order: Order, order_id: str) -> None:
    """End."""
    order.complete()


PLACE, FINISH = starter(place), handler(finish)


@pytest.fixture
def engine(backend: MemoryBackend) -> Engine:
    return Engine(backend)


@pytest.fixture
def calls(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The operations of each call of the store."""
    seen: list[list[str]] = []
    perform = backend.many

    def many(operations: Sequence[Operation]) -> list[Any]:
        seen.append([type(operation).__name__ for operation in operations])
        return perform(operations)

    monkeypatch.setattr(backend, "many", many)
    return seen


def delivery(step: StepDefinition, id: str, /, **arguments: Any) -> Delivery:
    return Delivery(step, id, arguments, Session(id), lambda function, first, **rest: function(first, **rest))


def place_each(engine: Engine, *keys: str) -> list[Outcome | None]:
    """Handle a message for each of these keys, in one batch."""
    return engine.handle_together(*(delivery(PLACE, f"m{number}", order_id=key) for number, key in enumerate(keys)))


def kinds(outcomes: list[Outcome | None]) -> list[Kind | None]:
    return [outcome and outcome.kind for outcome in outcomes]


def test_messages_of_different_instances_share_each_call(engine: Engine, calls: list[list[str]]) -> None:
    assert kinds(place_each(engine, "1", "2", "3")) == [Kind.STARTED] * 3
    assert calls == [["Find"] * 3, ["Insert"] * 3]
    assert [engine.data(key)["total"] for key in "123"] == [1, 1, 1]


def test_messages_of_one_instance_go_in_successive_waves_in_the_order_of_their_arrival(
    engine: Engine, calls: list[list[str]]
) -> None:
    outcomes = place_each(engine, "1", "2", "1", "1")
    assert [outcome and outcome.version for outcome in outcomes] == [1, 1, 2, 3]
    assert calls == [["Find"] * 2, ["Insert"] * 2, ["Find"], ["Update"], ["Find"], ["Update"]]


def test_what_a_wave_sends_is_published_together_after_its_commits(engine: Engine, calls: list[list[str]]) -> None:
    seen: list[tuple[int, list[str]]] = []
    engine.publisher.publish_many = lambda rows: seen.append((len(calls), [row.task for row in rows])) or _nothing()  # type: ignore
    place_each(engine, "1", "2", "1")
    assert seen == [(2, ["charge 1 1", "charge 2 1"])]
    assert [row.task for row in engine.publisher.published] == ["charge 1 1", "charge 2 1", "charge 1 1"]


def _nothing() -> Receipt:
    return Receipt()


@pytest.mark.parametrize(
    "bad",
    [delivery(PLACE, "bad", order_id="2", total=-1), delivery(PLACE, "bad"), delivery(PLACE, "bad", order_id="2", total="many")],
    ids=["handler", "no key", "argument"],
)
def test_a_message_that_fails_affects_no_other(engine: Engine, bad: Delivery) -> None:
    outcomes = engine.handle_together(delivery(PLACE, "m1", order_id="1"), bad, delivery(PLACE, "m3", order_id="3"))
    assert kinds(outcomes) == [Kind.STARTED, None, Kind.STARTED]
    assert engine.record("2") is None
    assert engine.entry(PLACE, "bad") is None
    assert len(engine.publisher.published) == 2


@pytest.mark.parametrize("bad", [{}, {"order_id": "2", "total": "many"}], ids=["no key", "argument"])
def test_a_malformed_message_does_not_keep_others_of_its_instance_waiting(engine: Engine, bad: dict[str, Any]) -> None:
    """It fails alone, too, whatever the instance is by then: there is no order to keep."""
    outcomes = engine.handle_together(delivery(PLACE, "bad", **bad), delivery(PLACE, "m2", order_id="2"))
    assert kinds(outcomes) == [None, Kind.STARTED]
    with pytest.raises(MessageError) as raised:
        engine.handle(PLACE, id="bad", **bad)
    assert raised.value.retry is Retry.NEVER
    assert engine.data("2")["total"] == 1


def test_an_unreadable_state_affects_no_other_message(engine: Engine) -> None:
    engine.handle(PLACE, order_id="42")
    engine.rewrite(data="no JSON")
    assert kinds(place_each(engine, "1", "42", "3")) == [Kind.STARTED, None, Kind.STARTED]


def test_a_locked_instance_affects_no_other_message(engine: Engine, calls: list[list[str]]) -> None:
    engine.handle(PLACE, order_id="42")
    record = engine.record()
    assert record is not None
    engine.backend.sagas.lock(record, "another", 60_000)
    assert kinds(place_each(engine, "1", "42", "3")) == [Kind.STARTED, None, Kind.STARTED]
    assert calls == [["Find"] * 3, ["Insert"] * 2]


def test_a_conflict_is_resolved_within_the_batch(engine: Engine, rival: Engine) -> None:
    engine.handle(PLACE, order_id="1")
    engine.interpose().once_before("update", lambda: rival.handle(PLACE, order_id="1", total=10) and None)
    assert kinds(place_each(engine, "1", "2")) == [Kind.HANDLED, Kind.STARTED]
    assert engine.data("1")["total"] == 12


def test_a_message_with_too_many_conflicts_is_left(engine: Engine, rival: Engine) -> None:
    engine.handle(PLACE, order_id="1")
    retries = engine.services.conflict_retries
    store = engine.interpose()
    store.once_before("update", *[lambda: rival.handle(PLACE, order_id="1") and None] * (retries + 1))
    assert kinds(place_each(engine, "1", "2")) == [None, Kind.STARTED]
    assert store.calls.count("update") == retries + 1


def test_a_message_that_is_left_is_not_overtaken(engine: Engine) -> None:
    """Neither by a later one of the same instance, nor within its batch."""
    outcomes = engine.handle_together(
        delivery(PLACE, "m1", order_id="1"),
        delivery(PLACE, "m2", order_id="1", total=-1),
        delivery(PLACE, "m3", order_id="2"),
        delivery(PLACE, "m4", order_id="1"),
    )
    assert kinds(outcomes) == [Kind.STARTED, None, Kind.STARTED, None]


def track(order: Order, order_id: str, tracking: str) -> None:
    """Set an alternate key."""
    order.tracking = tracking


def deliver(order: Order, tracking: str, total: int = 1) -> None:
    """Go on, found by an alternate key."""
    order.total += total


def fail(order: Order, order_id: str) -> None:
    """Fail."""
    raise Boom


TRACK, DELIVER, FAIL = starter(track), handler(deliver, by="tracking"), handler(fail)


class TestLookups:
    """Messages of one instance may look it up in different ways: their order is kept."""

    @pytest.fixture
    def tracked(self, engine: Engine) -> Engine:
        engine.handle(TRACK, order_id="1", tracking="T1")
        return engine

    def test_they_go_in_successive_waves(self, tracked: Engine, calls: list[list[str]]) -> None:
        place_and_deliver = [delivery(PLACE, "m1", order_id="1"), delivery(DELIVER, "m2", tracking="T1")]
        assert kinds(tracked.handle_together(*place_and_deliver)) == [Kind.HANDLED, Kind.HANDLED]
        assert calls == [["Find", "Find"], ["Update"], ["Find"], ["Update"]], "no conflict"
        assert tracked.data("1")["total"] == 2

    def test_a_message_that_is_left_is_not_overtaken(self, tracked: Engine) -> None:
        outcomes = tracked.handle_together(
            delivery(FAIL, "m1", order_id="1"),
            delivery(DELIVER, "m2", tracking="T1"),
            delivery(PLACE, "m3", order_id="1"),
            delivery(DELIVER, "m4", tracking="T1"),
        )
        assert kinds(outcomes) == [None] * 4

    def test_what_an_earlier_message_sets_is_found(self, engine: Engine, calls: list[list[str]]) -> None:
        outcomes = engine.handle_together(
            delivery(TRACK, "m1", order_id="1", tracking="T1"),
            delivery(TRACK, "m2", order_id="2", tracking="T2"),
            delivery(DELIVER, "m3", tracking="T2"),
            delivery(DELIVER, "m4", tracking="T3"),
        )
        assert kinds(outcomes) == [Kind.STARTED, Kind.STARTED, Kind.HANDLED, Kind.IGNORED]

    def test_messages_that_find_nothing_share_a_wave(self, engine: Engine, calls: list[list[str]]) -> None:
        """None of them sets a key."""
        late = [delivery(DELIVER, f"m{number}", tracking=f"T{number}") for number in range(5)]
        assert kinds(engine.handle_together(*late)) == [Kind.IGNORED] * 5
        assert sum(operations.count("Find") for operations in calls) == 5

    def test_what_a_message_that_is_left_would_set_is_waited_for(self, engine: Engine) -> None:
        def track_and_fail(order: Order, order_id: str, tracking: str) -> None:
            order.tracking = tracking
            raise Boom

        outcomes = engine.handle_together(
            delivery(starter(track_and_fail), "m1", order_id="1", tracking="T1"),
            delivery(TRACK, "m2", order_id="1", tracking="T2"),
            delivery(DELIVER, "m3", tracking="T1"),
            delivery(DELIVER, "m4", tracking="T2"),
            delivery(PLACE, "m5", order_id="2"),
        )
        assert kinds(outcomes) == [None, None, None, None, Kind.STARTED]

    def test_what_is_left_before_its_instance_is_known_is_not_overtaken(self, engine: Engine) -> None:
        """An unrelated message has failed, which could have set the key."""
        outcomes = engine.handle_together(
            delivery(PLACE, "m1", order_id="2"),
            delivery(PLACE, "m2", order_id="1", total=-1),
            delivery(TRACK, "m3", order_id="2", tracking="T2"),
            delivery(DELIVER, "m4", tracking="T2"),
            delivery(FINISH, "m5", order_id="2"),
            delivery(PLACE, "m6", order_id="3"),
        )
        assert kinds(outcomes) == [Kind.STARTED, None, Kind.HANDLED, None, None, Kind.STARTED]

    def test_messages_that_are_found_by_their_keys_share_a_wave(self, tracked: Engine, calls: list[list[str]]) -> None:
        """None of them waits for what another may set."""
        outcomes = tracked.handle_together(
            delivery(DELIVER, "m1", tracking="T1"), delivery(PLACE, "m2", order_id="2"), delivery(FINISH, "m3", order_id="3")
        )
        assert kinds(outcomes) == [Kind.HANDLED, Kind.STARTED, Kind.IGNORED]
        assert calls[0] == ["Find"] * 3
        assert calls.count(["Find"]) == 0


def test_what_is_sent_may_be_published_in_the_context_of_its_handler(engine: Engine) -> None:
    calls: list[list[str]] = []
    inside: list[str] = []

    def publish(rows: Sequence[Any]) -> Receipt:
        calls.append([*inside, *(row.task for row in rows)])
        return Receipt()

    @contextmanager
    def run(name: str) -> Iterator[None]:
        inside.append(name)
        try:
            yield
        finally:
            inside.remove(name)

    def twice(order: Order, order_id: str) -> None:
        send(order, f"a {order_id}")
        send(order, f"b {order_id}")

    def within(call: Callable[[], None]) -> None:
        inside.append("context")
        call()
        inside.remove("context")

    engine.publisher.publish_many = publish  # type: ignore[method-assign]
    step = starter(twice)
    messages = [BatchedMessage(delivery(step, key, order_id=key), lambda key=key: run(key), within) for key in "12"]  # type: ignore[misc]
    patient(Batch(engine.services, messages, publishes_each=True)).handle()
    assert calls == [["1", "context", "a 1", "b 1"], ["2", "context", "a 2", "b 2"]]


def test_a_message_that_was_handled_before_is_left(engine: Engine) -> None:
    """What it has left in the outbox must be published before it is acknowledged."""
    engine.handle(PLACE, id="m1", order_id="1")
    assert kinds(place_each(engine, "2", "1")) == [Kind.STARTED, None]
    assert engine.data("1")["total"] == 1


def test_the_same_message_twice_is_handled_once(engine: Engine) -> None:
    outcomes = engine.handle_together(*[delivery(PLACE, "m1", order_id="1")] * 2)
    assert kinds(outcomes) == [Kind.STARTED, None]
    assert engine.data("1")["total"] == 1


def test_an_instance_may_end_in_a_batch(engine: Engine) -> None:
    engine.handle(PLACE, order_id="1")
    outcomes = engine.handle_together(delivery(FINISH, "m1", order_id="1"), delivery(FINISH, "m2", order_id="1"))
    assert kinds(outcomes) == [Kind.COMPLETED, Kind.IGNORED]


def test_a_batch_that_takes_too_long_leaves_the_messages_that_it_has_not_begun(engine: Engine) -> None:
    now = [0.0]

    def slow(order: Order, order_id: str) -> None:
        now[0] += BATCH_S

    deliveries = [delivery(starter(slow), f"m{number}", order_id=str(number)) for number in range(5)]
    batch = Batch(engine.services, [BatchedMessage(each, _nowhere) for each in deliveries], clock=lambda: now[0])
    batch.handle()
    assert kinds(batch.outcomes) == [Kind.STARTED, Kind.STARTED, None, None, None]
    assert batch.is_cut
    assert batch.is_slow
    assert engine.record("3") is None


def test_handlers_that_each_take_little_time_are_not_slow(engine: Engine) -> None:
    """A busy machine makes the batch too long for all of them."""
    now = [0.0]

    def take(order: Order, order_id: str) -> None:
        now[0] += SLOW_S * 0.9

    deliveries = [delivery(starter(take), f"m{number}", order_id=str(number)) for number in range(int(BATCH_S / SLOW_S) * 2)]
    batch = Batch(engine.services, [BatchedMessage(each, _nowhere) for each in deliveries], clock=lambda: now[0])
    batch.handle()
    assert (batch.is_cut, batch.is_slow) == (True, False)


def test_a_batch_on_a_slow_store_is_cut_and_has_no_slow_handlers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    now, many = [0.0], engine.backend.many

    def slow(operations: Sequence[Operation]) -> list[Any]:
        now[0] += BATCH_S
        return many(operations)

    monkeypatch.setattr(engine.backend, "many", slow)
    deliveries = [delivery(PLACE, f"m{number}", order_id="1") for number in range(3)]
    batch = Batch(engine.services, [BatchedMessage(each, _nowhere) for each in deliveries], clock=lambda: now[0])
    batch.handle()
    assert kinds(batch.outcomes) == [Kind.STARTED, None, None]
    assert (batch.is_cut, batch.is_slow) == (True, False)


def test_what_happens_around_the_handlers_does_not_make_them_slow(engine: Engine) -> None:
    """Such as the validation of messages, or the answers of commits."""
    now = [0.0]

    @contextmanager
    def slowly() -> Iterator[None]:
        now[0] += BATCH_S
        yield

    messages = [BatchedMessage(delivery(PLACE, f"m{number}", order_id=str(number)), slowly) for number in range(3)]
    batch = Batch(engine.services, messages, clock=lambda: now[0])
    batch.handle()
    assert kinds(batch.outcomes) == [Kind.STARTED, None, None]
    assert (batch.is_cut, batch.is_slow) == (True, False)


def test_a_slow_store_does_not_keep_every_handler_from_running(engine: Engine) -> None:
    now = iter(range(100))
    batch = Batch(engine.services, [BatchedMessage(delivery(PLACE, "m1", order_id="1"), _nowhere)], clock=lambda: next(now))
    batch.handle()
    assert kinds(batch.outcomes) == [Kind.STARTED]


def test_an_interruption_ends_the_batch(engine: Engine) -> None:
    """What was committed and published before has its outcome."""

    class Interruption(Exception):
        """A time limit."""

    def interrupted(order: Order, order_id: str) -> None:
        raise Interruption

    deliveries = [
        delivery(PLACE, "m1", order_id="1"),
        delivery(PLACE, "m2", order_id="1"),
        delivery(starter(interrupted), "m3", order_id="1"),
        delivery(PLACE, "m4", order_id="1"),
    ]
    batch = patient(Batch(engine.services, [BatchedMessage(each, _nowhere) for each in deliveries], (Interruption,)))
    with pytest.raises(Interruption):
        batch.handle()
    assert kinds(batch.outcomes) == [Kind.STARTED, Kind.HANDLED, None, None]
    assert engine.data("1")["total"] == 2


def test_each_unit_of_work_proceeds_while_its_task_runs(engine: Engine) -> None:
    running: list[str] = []
    seen: list[list[str]] = []

    @contextmanager
    def run(name: str) -> Iterator[None]:
        running.append(name)
        try:
            yield
        finally:
            running.remove(name)

    def look(order: Order, order_id: str) -> None:
        seen.append(list(running))

    step = starter(look)
    messages = [BatchedMessage(delivery(step, name, order_id=name), lambda name=name: run(name)) for name in "abc"]  # type: ignore[misc]
    patient(Batch(engine.services, messages)).handle()
    assert seen == [["a"], ["b"], ["c"]]
    assert running == []


@contextmanager
def _nowhere() -> Iterator[None]:
    yield


@given(
    messages=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-1, 5) | st.just("many"), st.sampled_from([PLACE, PLACE, FINISH])),
        max_size=20,
    ),
    size=st.integers(1, 8),
)
def test_batches_have_the_effect_of_messages_one_by_one(messages: list[tuple[str, int | str, StepDefinition]], size: int) -> None:
    """Messages that a batch leaves are handled alone, after it; malformed ones fail there, and those whose handler raises."""
    together, alone = (Engine(MemoryBackend("memory://", prefix="", clock=Clock())) for _ in range(2))
    deliveries = [_delivery_of(number, *message) for number, message in enumerate(messages)]
    for start in range(0, len(deliveries), size):
        part = deliveries[start : start + size]
        for each, outcome in zip(part, together.handle_together(*part), strict=True):
            if outcome is None:
                _handle_alone(together, each)
    for each in deliveries:
        _handle_alone(alone, each)
    assert [_view(together, key) for key in "abc"] == [_view(alone, key) for key in "abc"]
    assert [_sent(together, key) for key in "abc"] == [_sent(alone, key) for key in "abc"]


def _handle_alone(engine: Engine, delivery: Delivery) -> None:
    with suppress(Boom, InvalidMessage):
        engine.handle(delivery.step, id=delivery.message_id, **delivery.bound)


def _delivery_of(number: int, key: str, total: int | str, step: StepDefinition) -> Delivery:
    arguments = {"order_id": key} if step is FINISH else {"order_id": key, "total": total}
    return delivery(step, f"m{number}", **arguments)


def _sent(engine: Engine, key: str) -> list[str]:
    return [row.task for row in engine.publisher.published if row.task.startswith(f"charge {key}")]


def _view(engine: Engine, key: str) -> object:
    record = engine.record(key)
    entries = [(entry.message_id, entry.outcome, entry.version) for entry in engine.entries(key)]
    return record and (record.version, record.data), sorted(entries)
