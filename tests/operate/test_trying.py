"""Steps that are tried: everything is as a worker would do it, and nothing is written or sent."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery

from celery_sagas.errors import (
    CorrelationError,
    InvalidMessage,
    KeyTaken,
    MisuseError,
    NewerState,
    SagaNotFound,
    StoreUnavailable,
)
from celery_sagas.operate import OperatedInstance, Operator, Tried
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import KEY, Lookup
from celery_sagas.worker.celery_internals import as_current_app
from tests.apps import NewApp, Worker, backend_of, interposed
from tests.contents import contents_of
from tests.every_store import stored_app, url
from tests.operate import shops

__all__ = ["stored_app", "url"]


@pytest.fixture
def worker(app: Celery) -> Worker:
    """A worker of the app."""
    return Worker(app)


@pytest.fixture
def shop(definitions: None) -> Any:
    return shops.define()


@pytest.fixture
def ann(app: Celery, shop: Any, worker: Worker) -> Operator:
    """An operator of an app with the order 42, whose card is charged."""
    shops.send(app, "order.place", order_id="42", tracking="1Z")
    worker.one()
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge(app.conf.task_default_queue)
    return Operator(app, "ann")


@pytest.fixture
def order(ann: Operator) -> OperatedInstance:
    return ann.instance("order", "42")


def sent(tried: Tried) -> list[tuple[str, str]]:
    """Return the kinds and the tasks of messages."""
    return [(each.kind, " | ".join(call.task for call in each.calls)) for each in tried.messages]


class TestEveryStore:
    """Wherever the sagas are kept."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_nothing_is_written_or_sent(
        self, app: Celery, ann: Operator, order: OperatedInstance, shop: Any, worker: Worker
    ) -> None:
        before = contents_of(app)
        trials: list[Callable[[], Tried]] = [
            lambda: ann.try_step(shop.place.s("43")),
            lambda: ann.try_step(shop.place.s("42")),
            lambda: ann.try_step(shop.sorry.s("43")),
            lambda: ann.try_step(shop.wait.s("43")),
            lambda: order.try_step(shop.pay.s(receipt="r")),
            lambda: order.try_step(shop.charged.s("yes")),
            lambda: order.try_step(shop.remind),
            lambda: order.try_step(shop.send_off),
            lambda: order.try_step(shop.finish),
            lambda: order.try_step(shop.direct),
            lambda: order.try_step(shop.broken),
        ]
        outcomes = [trial().outcome for trial in trials]

        assert [*map(str, outcomes)] == (
            [
                "started",
                "ignored",
                "missing",
                "deferred",
                "handled",
                "handled",
                "handled",
                "deferred",
                "completed",
                "handled",
                "None",
            ]
        )
        assert contents_of(app) == before
        assert worker.waiting() == []

    def test_locked_for_another_and_locks_for_none(self, app: Celery, order: OperatedInstance, shop: Any) -> None:
        """A message that has the instance locked makes no trial wait; and a worker commits while a handler is tried."""
        sagas = backend_of(app).sagas
        record = sagas.find(Lookup(("order",), KEY, "42")).record
        assert record is not None
        assert sagas.lock(record, "a message", 60_000)
        assert order.try_step(shop.track.s(code="2Z")).outcome == "handled"
        assert sagas.lock(record, "a message", 0)

        rival = Operator(app, "bob").instance("order", "42")
        shop.meanwhile.append(lambda: rival.patch("meanwhile", values={"city": "Bergen"}))
        assert order.try_step(shop.pay.s(receipt="r")).outcome == "handled"
        assert shop.Order.find("42").city == "Bergen"

    def test_key_of_another(self, app: Celery, ann: Operator, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        shops.send(app, "order.place", order_id="43", tracking="2Z")
        worker.one()
        with pytest.raises(KeyTaken, match="tracking='2Z'"):
            order.try_step(shop.track.s(code="2Z"))
        with pytest.raises(KeyTaken, match="tracking='2Z'"):
            ann.try_step(shop.place.s("44", tracking="2Z"))
        assert order.try_step(shop.track.s(code="1Z")).outcome == "handled"
        assert ann.try_step(shop.parcel.s("2Z")).key == "43"


class TestHandled:
    def test_as_a_worker_does_it(self, app: Celery, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        """State, version and messages are those of the message that comes later."""
        tried = order.try_step(shop.pay.s(receipt="r-17"))
        shops.send(app, "order.pay", order_id="42", receipt="r-17")
        worker.one()
        copy = shop.Order.find("42")

        assert (tried.saga, tried.step, tried.key, tried.id) == ("order", "order.pay", "42", copy.saga.id)
        assert (tried.outcome, tried.arrived_as, tried.ran) == ("handled", "a message", True)
        assert tried.version == copy.saga.version == 2
        assert tried.before is not None
        assert tried.after == {**tried.before, "notes": copy.notes, "card": "•••"}
        assert tried.changed == ("card", "notes")
        assert tried.ended == ("reminder",)
        published = [(each.task, list(each.args)) for each in worker.waiting()]
        *messages, event = [each.calls[0] for each in tried.messages if not each.due_at]
        assert [(each.task, list(each.args)) for each in messages] == published[:-1]
        assert published[-1] == ("celery_sagas.publish", [event.task, {"order_id": "42", "pin": "4711"}])

    def test_messages(self, order: OperatedInstance, shop: Any) -> None:
        tried = order.try_step(shop.pay.s(receipt="r-17"))

        chain, note, first, second, event, series = tried.messages
        assert sent(tried) == [
            ("request", f"{shops.charge.name} | {shops.ship.name}"),
            ("message", shops.mail.name),
            ("request", shops.ship.name),
            ("request", shops.ship.name),
            ("event", "tests.operate.shops.Paid"),
            ("series", "order.remind"),
        ]
        assert (chain.then, chain.otherwise, chain.until) == ("order.charged", "order.failed", 0)
        assert (first.then, second.then, note.then) == ("order.gathered", "order.gathered", "")
        assert event.calls[0].args == [{"order_id": "42", "pin": "•••"}]
        assert (series.name, series.due_at > 0) == ("daily", True)

    def test_started(self, ann: Operator, shop: Any) -> None:
        tried = ann.try_step(shop.place.s("43"))

        assert (tried.outcome, tried.key, tried.version, tried.before) == ("started", "43", 1, None)
        assert tried.after is not None
        assert tried.after["order_id"] == "43"
        request, timeout = tried.messages
        assert (request.kind, timeout.kind, timeout.name) == ("request", "timeout", "reminder")
        assert (request.then, request.otherwise) == ("order.charged", "order.failed")
        assert request.until
        assert timeout.due_at
        assert request.calls[0].kwargs == {"token": "•••"}

    def test_completed(self, order: OperatedInstance, shop: Any) -> None:
        tried = order.try_step(shop.finish)

        assert (tried.outcome, tried.changed) == ("completed", ("notes",))
        assert tried.after is not None
        assert tried.after["notes"] == ["done"]
        assert set(tried.ended) == {"reminder", shops.charge.name}

    def test_missing_instance(self, ann: Operator, shop: Any) -> None:
        tried = ann.try_step(shop.sorry.s("43"))
        assert (tried.outcome, tried.reason, tried.ran, sent(tried)) == (
            "missing",
            "missing",
            True,
            [("message", shops.mail.name)],
        )
        tried = ann.try_step(shop.track.s("43", "2Z"))
        assert (tried.outcome, tried.reason, tried.ran, tried.changed) == ("ignored", "missing", False, ())
        with pytest.raises(SagaNotFound, match="order_id='43'"):
            ann.try_step(shop.insist.s("43"))

    def test_answer_to_whoever_started_it(self, app: Celery, ann: Operator, shop: Any, worker: Worker) -> None:
        shops.send(app, "cart.fill", cart_id="c", order_id="43")
        for _ in range(2):
            worker.one()
        (answer,) = ann.instance("order", "43").try_step(shop.finish).messages
        assert (answer.kind, answer.calls[0].task, answer.calls[0].args) == ("answer", "cart.placed", ["•••"])

    def test_messages_that_waited(self, app: Celery, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        shops.send(app, "order.send_off", order_id="42")
        worker.one()
        tried = order.try_step(shop.settle)
        assert (tried.changed, sent(tried)) == (("status",), [("deferred", "order.send_off")])

    def test_paused(self, order: OperatedInstance, shop: Any) -> None:
        order.pause("INC-1")
        tried = order.try_step(shop.pay.s(receipt="r"))
        assert (tried.outcome, tried.reason, tried.ran, tried.messages) == ("deferred", "paused", False, ())
        assert tried.before == tried.after


class TestAwaited:
    """Timeouts, and outcomes of requests, find their instance by its id."""

    def test_timeout(self, order: OperatedInstance, shop: Any) -> None:
        for tried in (order.try_step(shop.remind), order.try_step("order.remind", awaited="reminder")):
            assert (tried.outcome, tried.arrived_as, tried.ended) == ("handled", "the timeout reminder", ("reminder",))

    def test_answer(self, order: OperatedInstance, shop: Any) -> None:
        tried = order.try_step(shop.charged.s("yes"))
        assert (tried.arrived_as, tried.ended) == (f"the answer of {shops.charge.name}", (shops.charge.name,))
        assert tried.after is not None
        assert tried.after["notes"] == ["yes"]

    def test_failure(self, order: OperatedInstance, shop: Any) -> None:
        tried = order.try_step(shop.failed)
        assert (tried.arrived_as, tried.outcome) == (f"the failure of {shops.charge.name}", "handled")
        assert tried.after is not None
        assert tried.after["notes"] == [f"error of {shops.charge.name}"]

    def test_gathered(self, app: Celery, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        shops.send(app, "order.pay", order_id="42", receipt="r")
        worker.one()
        tried = order.try_step(shop.gathered.s({"members": 2, "answers": {"0": "here"}}))
        assert (tried.arrived_as, tried.ended) == ("the outcomes of celery_sagas.gather", ("celery_sagas.gather",))
        assert tried.after is not None
        assert tried.after["notes"] == ["r", "here"]

    def test_failure_that_is_tried_again(self, app: Celery, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        """No step gets it: the engine sends the request again."""
        order.skip(shops.charge.name, "INC-1")
        shops.send(app, "order.ask_twice", order_id="42")
        worker.one()
        tried = order.try_step(shop.failed)
        assert (tried.outcome, tried.ran, sent(tried)) == ("retried", False, [("request", shops.charge.name)])

    def test_what_nobody_waits_for_is_a_message(self, order: OperatedInstance, shop: Any) -> None:
        order.skip(shops.charge.name, "INC-1")
        order.skip("reminder", "INC-1")
        assert order.try_step(shop.charged.s("yes")).arrived_as == "a message"
        assert order.try_step(shop.remind).outcome == "handled"

    def test_another_step(self, order: OperatedInstance, shop: Any) -> None:
        with pytest.raises(MisuseError, match=r"reminder of order '42' goes to order.remind, and not to order.charged"):
            order.try_step(shop.charged.s("yes"), awaited="reminder")
        with pytest.raises(MisuseError, match=r"does not wait for lost. It waits for reminder, "):
            order.try_step(shop.charged.s("yes"), awaited="lost")


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ({}, "receipt: Field required"),
            ({"receipt": []}, "receipt: Input should be a valid string"),
            ({"receipt": "r", "lost": 1}, "lost: Extra inputs are not permitted"),
        ],
    )
    def test_arguments(self, order: OperatedInstance, shop: Any, arguments: Any, problem: str) -> None:
        with pytest.raises(InvalidMessage, match=problem):
            order.try_step(shop.pay.s(**arguments))

    def test_another_instance(self, order: OperatedInstance, shop: Any) -> None:
        with pytest.raises(MisuseError, match=r"order '42' is meant, and the arguments of order.pay name '43'"):
            order.try_step(shop.pay.s("43", "r"))

    def test_no_instance_is_named(self, ann: Operator, shop: Any) -> None:
        with pytest.raises(CorrelationError, match="no instance of order caused it"):
            ann.try_step(shop.remind)

    def test_missing_instance(self, ann: Operator, shop: Any) -> None:
        with pytest.raises(SagaNotFound, match="order_id='43'"):
            ann.instance("order", "43").try_step(shop.remind)

    @pytest.mark.parametrize(("step", "error"), [("order.lost", MisuseError), ("order.(answered)", MisuseError), (7, TypeError)])
    def test_no_step(self, ann: Operator, order: OperatedInstance, step: Any, error: type[Exception]) -> None:
        for operated in (ann, order):
            with pytest.raises(error):
                operated.try_step(step)

    def test_transaction(self, order: OperatedInstance, shop: Any) -> None:
        with pytest.raises(MisuseError, match="a step with transaction= is not tried: its handler writes rows"):
            order.try_step(shop.book)

    def test_newer_state(self, app: Celery, order: OperatedInstance, shop: Any) -> None:
        instances = cast(MemoryBackend, backend_of(app))._state.instances
        for record in [*instances]:
            instances.put(record._replace(schema_version=2), frozenset())
        with pytest.raises(NewerState):
            order.try_step(shop.pay.s(receipt="r"))

    def test_store_that_is_away(self, app: Celery, order: OperatedInstance, shop: Any) -> None:
        def away() -> None:
            raise StoreUnavailable("memory://", "it is away")

        interposed(app).once_before("find", lambda: None, away)
        with pytest.raises(StoreUnavailable):
            order.try_step(shop.pay.s(receipt="r"))

    def test_inside_a_task(self, app: Celery, ann: Operator, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        refused: list[str] = []

        @app.task(name="operate")
        def operate() -> None:
            for trial in (lambda: order.try_step(shop.remind), lambda: ann.try_step(shop.place.s("43"))):
                with pytest.raises(MisuseError) as caught:
                    trial()
                refused.append(caught.value.problem)

        operate.delay()
        worker.run()
        assert [each.partition(" was tried ")[0] for each in refused] == ["order.remind", "order.place"]

    def test_inside_a_tried_handler(self, order: OperatedInstance, shop: Any) -> None:
        shop.meanwhile.append(lambda: order.try_step(shop.remind))
        tried = order.try_step(shop.pay.s(receipt="r"))
        assert isinstance(tried.error, MisuseError)


class TestHandler:
    def test_error(self, order: OperatedInstance, shop: Any) -> None:
        tried = order.try_step(shop.broken)

        assert isinstance(tried.error, KeyError)
        assert (tried.outcome, tried.key, tried.version, tried.ran) == (None, "42", 1, True)
        assert (tried.changed, sent(tried)) == ((), [("direct", shops.mail.name)])

    def test_what_it_publishes_by_itself_is_held_back(self, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        tried = order.try_step(shop.direct)

        assert sent(tried) == [("direct", shops.mail.name), ("direct", "order.track")]
        assert [call.args for each in tried.messages for call in each.calls] == [["by itself"], ["42", "by itself"]]
        assert worker.waiting() == []

    def test_retry_publishes_nothing(self, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        tried = order.try_step(shop.again)
        assert type(tried.error).__name__ == "Retry"
        assert worker.waiting() == []

    def test_other_threads_go_on(self, app: Celery, order: OperatedInstance, shop: Any, worker: Worker) -> None:
        """What they publish while a step is tried is sent."""

        def publish() -> None:
            with as_current_app(app):
                shops.mail.delay("meanwhile")

        def in_a_thread() -> None:
            thread = threading.Thread(target=publish)
            thread.start()
            thread.join()

        shop.meanwhile.append(in_a_thread)
        assert order.try_step(shop.pay.s(receipt="r")).outcome == "handled"
        assert [(each.task, each.args) for each in worker.waiting()] == [(shops.mail.name, ["meanwhile"])]

    def test_it_finds_what_is_stored(self, order: OperatedInstance, shop: Any) -> None:
        found: list[Any] = []
        shop.meanwhile.append(lambda: found.append(shop.Order.find("42")))
        order.try_step(shop.pay.s(receipt="r"))
        assert [each.tracking for each in found] == ["1Z"]


def test_eager_mode(new_app: NewApp, shop: Any, tmp_path: Path) -> None:
    """What a worker would send is not run."""
    app = new_app(eager=True)
    app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"
    tried = Operator(app, "ann").try_step(shop.place.s("42"))
    assert (tried.outcome, sent(tried)[0]) == ("started", ("request", shops.charge.name))
    assert shop.Order.find("42") is None


def test_publishing_goes_on_afterwards(order: OperatedInstance, shop: Any, worker: Worker) -> None:
    order.try_step(shop.direct)
    shops.mail.delay("later")
    assert [each.task for each in worker.waiting()] == [shops.mail.name]
