"""The task that buffers an item: what becomes of its message."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import signals
from celery_sagas.errors import BufferFull, InvalidMessage, StoreUnavailable
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import MINUTE
from celery_sagas.worker.headers import MESSAGE_ID, REDELIVERIES
from celery_sagas.worker.operators import retry_of
from celery_sagas.worker.process.relay import groups_of
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.worker.aggregators.collectors import Reading, collector, counts, ids, unresolved

D1, D2, D3 = (Reading(device=f"d{number}") for number in (1, 2, 3))


class TestMessage:
    """An item is buffered under the id of its message."""

    def test_is_published_encoded(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector()
        collect.delay(D1)
        (message,) = worker.waiting()

        assert (message.task, message.args, message.kwargs) == ("shop.collect", [{"device": "d1", "celsius": 20.0}], {})

    def test_id_is_that_of_the_task(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector(size=9)
        result = collect.delay(D1)
        collect.apply_async((D2,), task_id="m2")
        assert [delivered.fate for delivered in worker.run()] == ["acked"] * 2

        assert ids(app) == [result.id, "m2"]

    def test_id_may_be_the_producers(self, app: Celery, worker: Worker) -> None:
        collect, _ = collector(size=9)
        for _ in range(2):
            collect.apply_async((D1,), headers={MESSAGE_ID: "mqtt-7"})
        worker.run()

        assert ids(app) == ["mqtt-7"]

    @pytest.mark.parametrize("id", ["", "x" * 256, "a\nb", 5])
    def test_id_that_no_store_keeps(self, app: Celery, worker: Worker, id: object) -> None:
        collect, _ = collector(size=9)
        with pytest.raises(InvalidMessage):
            collect.apply_async((D1,), headers={MESSAGE_ID: id})
        app.send_task("shop.collect", ({"device": "d1"},), headers={MESSAGE_ID: id})

        assert isinstance(worker.one().error, InvalidMessage)
        assert counts(app).buffered == 0

    def test_that_is_delivered_again_is_buffered_once(self, app: Celery, worker: Worker) -> None:
        collect, collected = collector()
        collect.delay(D1)
        delivered = worker.one()
        worker.deliver_again(delivered)
        collect.delay(D2)
        worker.run()
        worker.deliver_again(delivered)  # also after it was flushed

        assert collected.items == [[D1, D2]]
        assert counts(app).buffered == 0

    def test_without_a_memory_it_is_buffered_again(self, app: Celery, worker: Worker) -> None:
        """Once it was flushed, it is no longer tracked."""
        collect, collected = collector(size=1, dedupe_for=None)
        collect.delay(D1)
        delivered = worker.one()
        worker.run()
        worker.deliver_again(delivered)
        worker.run()

        assert collected.items == [[D1], [D1]]

    def test_flush_is_asked_for_and_confirmed(self, app: Celery, worker: Worker) -> None:
        collect, collected = collector()
        for reading in (D1, D2, D3):
            collect.delay(reading)

        assert [delivered.task for delivered in worker.run()] == ["shop.collect"] * 3 + ["shop.collect.flush"]
        assert collected.items == [[D1, D2]]
        assert collected.batches[0].reason == "size"

    def test_group_that_is_due_is_flushed_by_a_relay(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock()
        monkeypatch.setattr("celery_sagas.stores.memory.backend.wall_clock", clock)
        collect, collected = collector(size=None, within=60)
        collect.delay(D1)
        worker.run()
        clock.advance(MINUTE)
        groups = groups_of(runtime_of(app))
        assert groups is not None
        assert groups.backend is runtime_of(app).batches
        groups.ask(app.tasks["shop.collect.flush"].saga_aggregator, "")
        worker.run()

        assert (collected.items, collected.batches[0].reason) == ([[D1]], "age")


class TestInvalid:
    """What can never be buffered is kept as a dead letter."""

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [((), {}), (({"device": "d1"}, 5), {}), (({"device": "d1"},), {"celsius": 5}), (({"celsius": 5},), {}), ((None,), {})],
    )
    def test_is_a_dead_letter(self, app: Celery, worker: Worker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen: list[str] = []

        def note(dead_letter: Any, **_: Any) -> None:
            seen.append(dead_letter.id)

        signals.step_failed.connect(note)
        collector(group_by="device")
        app.send_task("shop.collect", args, kwargs, task_id="m1")

        delivered = worker.one()

        assert isinstance(delivered.error, InvalidMessage)
        assert delivered.fate == "acked"
        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.message_id, dead_letter.error) == ("shop.collect", "m1", "InvalidMessage")
        assert seen == [dead_letter.id]
        assert counts(app).buffered == 0

    def test_dead_letter_can_be_retried(self, app: Celery, worker: Worker) -> None:
        """When its code was fixed; under another id."""
        collector(size=9)
        app.send_task("shop.collect", ({"device": "d1"}, 5), task_id="m1")
        worker.run()
        (dead_letter,) = backend_of(app).dead.list(10)
        again = retry_of(app, dead_letter)

        assert (again.task, list(again.args)) == ("shop.collect", [{"device": "d1"}, 5])

    def test_too_large(self, new_app: NewApp) -> None:
        app = new_app(saga_max_state_bytes=1_000)
        collect, _ = collector(str)
        collect.delay("x" * 1_000)
        Worker(app).run()

        (dead_letter,) = backend_of(app).dead.list(10)
        assert "it has 1002 bytes, saga_max_state_bytes allows 1000" in dead_letter.text

    @pytest.mark.parametrize("value", [None, True, "", 1.5])
    def test_group_that_is_none(self, app: Celery, worker: Worker, value: object) -> None:
        """Neither its own producer may send it, nor does another's get through."""
        collect, _ = collector(dict, group_by="key")
        with pytest.raises(InvalidMessage):
            collect.delay({"key": value})
        app.send_task("shop.collect", ({"key": value},))

        assert isinstance(worker.one().error, InvalidMessage)
        assert counts(app).groups == 0


class TestUnread:
    """What this code cannot read, and its producer's could."""

    def test_is_kept(self, app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
        collector(size=1, group_by="device")
        app.send_task("shop.collect", ({"device": "d1", "celsius": "secret"},), task_id="m1")

        assert [delivered.fate for delivered in worker.run()] == ["acked"]
        ((group, item),) = unresolved(app)
        assert (item.id, group, item.payload) == ("m1", "d1", '{"device":"d1","celsius":"secret"}')
        assert backend_of(app).dead.list(10) == []
        assert "shop.collect[m1] cannot be read, and waits until it can be" in caplog.text
        assert "secret" not in caplog.text

    @pytest.mark.parametrize("error", [StoreUnavailable("memory://", "away"), BufferFull("shop.collect", "", 1)])
    def test_is_redelivered_later_as_it_came(
        self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        """Publishing it needs nobody who can read it."""
        collector(size=9)
        store = runtime_of(app).batches.aggregates
        app.send_task("shop.collect", ({"device": "d1", "celsius": "hot"},), task_id="m1")
        with monkeypatch.context() as away:
            away.setattr(store, "insert", raising(error))
            assert worker.one().fate == "acked"
        (again,) = worker.waiting()

        assert (again.id, again.args, again.headers[REDELIVERIES]) == ("m1", [{"device": "d1", "celsius": "hot"}], 1)
        worker.run()
        assert [item.id for _, item in unresolved(app)] == ["m1"]


def raising(error: Exception) -> Any:
    """Return what raises an error, whatever it is given."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


class TestLater:
    """What cannot be buffered now waits, and nothing is lost."""

    def test_full_buffer(self, app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
        collect, collected = collector(size=None, within=60, max_buffered=1)
        collect.apply_async((D1,), task_id="m1")
        collect.apply_async((D2,), task_id="m2")
        assert [worker.one().fate, worker.one().fate] == ["acked", "acked"]
        (again,) = worker.waiting()

        assert (again.id, again.headers[REDELIVERIES]) == ("m2", 1)
        assert "shop.collect[m2] is redelivered in" in caplog.text
        assert "max_buffered allows 1 items" in caplog.text
        collect.clear()
        worker.run()
        assert collect.read() == [D2]
        assert collected.items == []

    def test_store_that_is_away(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        collect, _ = collector(size=9)
        collect.delay(D1)
        with monkeypatch.context() as away:
            away.setattr(runtime_of(app).batches.aggregates, "insert", raising(StoreUnavailable("memory://", "away")))
            worker.one()
        worker.run()

        assert collect.read() == [D1]
        assert backend_of(app).dead.list(10) == []
