"""``batch.send``: what a function sends is sent if its items are removed, once for every saga step."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, group
from celery.exceptions import Ignore

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.testing import collected
from celery_sagas.testing.samples import claim
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker
from tests.every_store import stored_app, url
from tests.worker.aggregators.collectors import Boom, Collected, collector, counts

__all__ = ["stored_app", "url"]


class Shop:
    """An aggregator of numbers, which sends each of them to a saga that adds them up."""

    def __init__(self, app: Celery) -> None:
        class Sum(Saga, correlate_by="name"):
            name: str
            total: int = 0
            count: int = 0

        @Sum.starts
        def count(total: Sum, name: str, number: int) -> None:
            total.total += number
            total.count += 1

        @app.task(name="plain")
        def plain(number: int) -> int:
            return number

        self.saga, self.count, self.plain = Sum, count, plain
        self.collect, self.given = collector(int, size=3)
        self.given.work = self.send_each

    def send_each(self, batch: Batch[int]) -> list[str]:
        """Send each number."""
        return [batch.send(self.count.s(name="all", number=number)) for number in batch]


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    return new_app()


@pytest.fixture
def shop(app: Celery) -> Shop:
    return Shop(app)


@pytest.fixture
def worker(app: Celery) -> Worker:
    return Worker(app)


class TestEveryStore:
    """Messages are stored with the removal of the items."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        return stored_app

    def test_messages_are_sent_and_items_are_removed(self, app: Celery, shop: Shop, worker: Worker) -> None:
        shop.collect.add_many([1, 2, 3])
        worker.run()
        found = shop.saga.find("all")
        assert found is not None
        assert (found.total, found.count) == (6, 3)
        assert (counts(app).buffered, runtime_of(app).backend.outbox.count()) == (0, 0)

    def test_function_that_raises_sends_nothing(self, app: Celery, shop: Shop, worker: Worker) -> None:
        def fail(batch: Batch[int]) -> None:
            shop.send_each(batch)
            raise Boom

        shop.given.work = fail
        shop.collect.add_many([1, 2, 3])
        worker.one()
        assert [message.task for message in worker.waiting()] == ["shop.collect.flush"]
        assert (counts(app).buffered, runtime_of(app).backend.outbox.count()) == (3, 0)

    def test_messages_of_a_process_that_has_died_are_sent_by_a_relay(
        self, app: Celery, shop: Shop, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The items are not flushed again for that."""
        runtime = runtime_of(app)
        dispatcher = runtime.dispatcher_of(runtime.batches)
        monkeypatch.setattr(dispatcher, "grace_s", 0.0)
        shop.collect.add_many([1, 2, 3])
        with monkeypatch.context() as patch:
            patch.setattr(dispatcher, "dispatch", lambda rows, at: None)
            worker.one()
        assert (worker.waiting(), runtime.backend.outbox.count()) == ([], 3)
        open_relay(runtime).sweep()
        worker.run()
        assert shop.saga.find("all").count == 3  # type: ignore[union-attr]
        assert (counts(app).buffered, len(shop.given.batches)) == (0, 1)


class TestOtherBackend:
    """Aggregators on another backend than sagas send from the outbox of theirs."""

    @pytest.fixture
    def app(self, new_app: NewApp) -> Celery:
        return new_app(saga_aggregator_backend=f"memory://{uuid4()}")

    def test_messages_are_sent(self, app: Celery, shop: Shop, worker: Worker) -> None:
        runtime, rows = runtime_of(app), list[int]()
        shop.collect.add_many([1, 2, 3])
        remove = runtime.batches.aggregates.remove
        runtime.batches.aggregates.remove = lambda *args, **how: (  # type: ignore[method-assign]
            remove(*args, **how),
            rows.extend(backend.outbox.count() for backend in runtime.backends),
        )[0]
        worker.run()
        assert rows == [0, 3]
        runtime.dispatcher_of(runtime.batches).confirmations.settle()
        assert [backend.outbox.count() for backend in runtime.backends] == [0, 0]
        assert shop.saga.find("all").count == 3  # type: ignore[union-attr]

    def test_relay_of_that_backend_sends_what_is_left(
        self, app: Celery, shop: Shop, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker was away."""
        runtime = runtime_of(app)
        monkeypatch.setattr(runtime.dispatcher_of(runtime.batches), "dispatch", lambda rows, at: None)
        monkeypatch.setattr(runtime.dispatcher_of(runtime.batches), "grace_s", 0.0)
        shop.collect.add_many([1, 2, 3])
        worker.one()
        open_relay(runtime).sweep()
        assert worker.waiting() == []
        open_relay(runtime, runtime.batches).sweep()
        worker.run()
        assert shop.saga.find("all").total == 6  # type: ignore[union-attr]


class TestFlush:
    """One run of the function."""

    def test_error_that_ignores_the_message_sends(self, app: Celery, shop: Shop, worker: Worker) -> None:
        """The items count as handled."""

        def ignore(batch: Batch[int]) -> None:
            shop.send_each(batch)
            raise Ignore

        shop.given.work = ignore
        shop.collect.add_many([1, 2, 3])
        worker.run()
        assert shop.saga.find("all").count == 3  # type: ignore[union-attr]
        assert counts(app).buffered == 0

    def test_retry_sends_nothing(self, app: Celery, shop: Shop, worker: Worker) -> None:
        @aggregator(size=1, bind=True, name="shop.again")
        def again(task: Any, batch: Batch[int]) -> None:
            batch.send(shop.plain.s(1))
            raise task.retry(countdown=0)

        again.add(1)
        worker.one()
        assert [message.task for message in worker.waiting()] == ["shop.again.flush"]
        assert runtime_of(app).backend.outbox.count() == 0

    def test_rejected_items_go_with_it(self, app: Celery, shop: Shop, worker: Worker) -> None:
        def reject(batch: Batch[int]) -> None:
            batch.reject(batch[0])
            batch.send(shop.plain.s(1))

        shop.given.work = reject
        shop.collect.add_many([1, 2, 3])
        worker.one()
        assert [message.task for message in worker.waiting()] == ["plain"]
        assert len(runtime_of(app).backend.dead.list(9)) == 1

    def test_message_is_one_that_the_flush_has_caused(self, app: Celery, shop: Shop, worker: Worker) -> None:
        """Celery's own headers say so, and its id is the one that was returned."""
        sent = list[str]()
        shop.given.work = lambda batch: sent.append(batch.send(shop.plain.s(1)))
        shop.collect.add_many([1, 2, 3])
        flush = worker.one()
        (message,) = worker.waiting()
        assert (message.id, message.headers["parent_id"], message.headers["root_id"]) == (sent[0], flush.id, flush.id)

    def test_chain(self, app: Celery, shop: Shop, worker: Worker) -> None:
        """The id is that of its last task."""
        sent = list[str]()
        shop.given.work = lambda batch: sent.append(batch.send(chain(shop.plain.s(5), shop.plain.s())))
        shop.collect.add_many([1, 2, 3])
        assert [message.task for message in worker.run()] == ["shop.collect.flush", "plain", "plain"]
        assert worker.done[-1].id == sent[0]

    def test_item_of_another_aggregator(self, app: Celery, shop: Shop, worker: Worker) -> None:
        other = Collected()

        @aggregator(size=1, name="shop.other")
        def pass_on(batch: Batch[int]) -> None:
            other(batch)

        shop.given.work = lambda batch: batch.send(pass_on.s(sum(batch)))
        shop.collect.add_many([1, 2, 3])
        worker.run()
        assert other.items == [[6]]

    @pytest.mark.parametrize(
        "options", [{"after": timedelta(hours=1)}, {"after": 3600}, {}], ids=["timedelta", "seconds", "countdown"]
    )
    def test_later(self, app: Celery, shop: Shop, worker: Worker, options: dict[str, Any]) -> None:
        """It waits in the backend."""
        signature = shop.plain.s(1) if options else shop.plain.s(1).set(countdown=3600)
        shop.given.work = lambda batch: batch.send(signature, **options)
        shop.collect.add_many([1, 2, 3])
        worker.run()
        assert (worker.waiting(), runtime_of(app).backend.outbox.count()) == ([], 1)
        assert claim(runtime_of(app).backend) == []

    def test_time_that_is_over_is_now(self, app: Celery, shop: Shop, worker: Worker) -> None:
        shop.given.work = lambda batch: batch.send(shop.plain.s(1), after=0)
        shop.collect.add_many([1, 2, 3])
        worker.one()
        assert [message.task for message in worker.waiting()] == ["plain"]

    @pytest.mark.parametrize(
        ("send", "error"),
        [
            (lambda shop, batch: batch.send(group(shop.plain.s(1), shop.plain.s(2))), TypeError),
            (lambda shop, batch: batch.send("plain"), TypeError),
            (lambda shop, batch: batch.send(shop.plain.s(object())), InvalidMessage),
            (lambda shop, batch: batch.send(shop.count.s("all")), InvalidMessage),
            (lambda shop, batch: batch.send(shop.plain.s(1), after="soon"), TypeError),
            (lambda shop, batch: batch.send(shop.plain.s(1).set(countdown=1), after=1), TypeError),
        ],
        ids=["group", "name", "argument", "step", "delay", "both"],
    )
    def test_what_cannot_be_sent_raises_at_the_call(
        self, app: Celery, shop: Shop, worker: Worker, send: Callable[[Shop, Batch[int]], object], error: type[Exception]
    ) -> None:
        raised = list[type[Exception]]()

        def fail(batch: Batch[int]) -> None:
            try:
                send(shop, batch)
            except Exception as exc:
                raised.append(type(exc))

        shop.given.work = fail
        shop.collect.add_many([1, 2, 3])
        worker.one()
        assert raised == [error]
        assert worker.waiting() == []


class TestEager:
    """Everything at once."""

    @pytest.fixture
    def app(self, eager: Celery) -> Celery:
        return eager

    def test_tasks_run_once_the_items_are_removed(self, app: Celery, shop: Shop) -> None:
        order = list[object]()

        @app.task(name="look")
        def look() -> None:
            order.append(shop.collect.count())

        def send(batch: Batch[int]) -> None:
            batch.send(look.si(), after=60)
            shop.send_each(batch)
            order.append("sent")

        shop.given.work = send
        shop.collect.add_many([1, 2, 3])
        assert order == ["sent", 0]
        assert shop.saga.find("all").total == 6  # type: ignore[union-attr]
        assert runtime_of(app).backend.outbox.count() == 0

    def test_function_that_raises_sends_nothing(self, app: Celery, shop: Shop) -> None:
        def fail(batch: Batch[int]) -> None:
            shop.send_each(batch)
            raise Boom

        shop.given.work = fail
        with pytest.raises(Boom):
            shop.collect.add_many([1, 2, 3])
        assert shop.saga.find("all") is None


class TestCollecting:
    """In a test, a batch is made by hand."""

    def test_messages_are_collected(self, app: Celery, shop: Shop, worker: Worker) -> None:
        """None leaves the process."""
        batch = Batch([1, 2])

        def send(batch: Batch[int]) -> int:
            batch.send(shop.plain.s(batch[0]))
            batch.send(shop.plain.s(number=batch[1]), after=timedelta(hours=1))
            return len(batch)

        shop.given.work = send
        assert shop.collect.handler(batch) == 2
        first, second = collected(batch).messages
        assert (first.task, first.args, first.due_at) == ("plain", (1,), None)
        assert second.kwargs == {"number": 2}
        assert second.due_at is not None
        assert worker.waiting() == []
        assert (collected(batch).timeouts, collected(batch).completed) == ({}, False)

    def test_batch_may_be_given_again(self, app: Celery, shop: Shop) -> None:
        """As a test of a function that may run twice does."""
        batch = Batch([1])
        shop.given.work = lambda batch: batch.send(shop.plain.s(batch[0]))
        assert shop.collect.handler(batch) != shop.collect.handler(batch)
        assert [message.args for message in collected(batch).messages] == [(1,), (1,)]

    def test_function_that_calls_another_with_its_batch(self, app: Celery, shop: Shop, worker: Worker) -> None:
        """The messages belong to the batch, in a test and in a flush."""

        @aggregator(size=1, name="shop.outer")
        def outer(batch: Batch[int]) -> None:
            shop.collect.handler(batch)
            batch.send(shop.plain.s(2))

        shop.given.work = lambda batch: batch.send(shop.plain.s(1))
        batch = Batch([1])
        outer.handler(batch)
        assert [message.args for message in collected(batch).messages] == [(1,), (2,)]
        outer.add(1)
        worker.one()
        assert [message.args for message in worker.waiting()] == [[1], [2]]

    def test_function_that_sends_nothing(self, app: Celery, shop: Shop) -> None:
        shop.given.work = len
        batch = Batch([1])
        shop.collect.handler(batch)
        assert collected(batch).messages == ()

    def test_bound_function(self, app: Celery, shop: Shop) -> None:
        @aggregator(size=1, bind=True, name="shop.bound")
        def bound(task: Any, batch: Batch[int]) -> None:
            batch.send(shop.plain.s(batch[0]))

        batch = Batch([7])
        bound.handler(None, batch=batch)
        assert [message.args for message in collected(batch).messages] == [(7,)]

    def test_batch_of_no_function(self, app: Celery, shop: Shop) -> None:
        with pytest.raises(MisuseError, match="no function was called"):
            collected(Batch([1]))

    def test_batch_of_a_flush(self, app: Celery, shop: Shop, worker: Worker) -> None:
        """Its messages were sent."""
        shop.collect.add_many([1, 2, 3])
        worker.one()
        with pytest.raises(MisuseError, match="no function was called"):
            collected(shop.given.batches[0])

    def test_after_its_function_has_ended(self, app: Celery, shop: Shop) -> None:
        batch = Batch([1])
        shop.collect.handler(batch)
        with pytest.raises(MisuseError, match="had ended"):
            batch.send(shop.plain.s(1))
