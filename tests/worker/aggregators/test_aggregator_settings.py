"""Where an aggregator is kept, and what its tasks have."""

import pytest
from celery import Celery, Task

from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp
from tests.worker.aggregators.collectors import Reading, collector, counts

D1, D2 = Reading(device="d1"), Reading(device="d2")


class TestSettings:
    """Where it is kept, and what its tasks have."""

    def test_another_backend(self, new_app: NewApp) -> None:
        app = new_app(saga_aggregator_backend="memory://batches-alone")
        collect, _ = collector(size=9)
        collect.add(D1)
        runtime = runtime_of(app)

        assert runtime.batches.url == "memory://batches-alone"
        assert runtime.backend.buffers.names() == []
        assert (collect.count(), counts(app).buffered) == (1, 1)
        collect.clear()

    def test_same_backend_by_default(self, new_app: NewApp) -> None:
        app = new_app()
        assert runtime_of(app).batches is runtime_of(app).backend

    def test_task_options_reach_the_task_that_flushes(self, app: Celery) -> None:
        options = {"time_limit": 30, "soft_time_limit": 20, "max_retries": 3, "rate_limit": "5/s", "ignore_result": False}
        collector(**options)
        flush, buffering = app.tasks["shop.collect.flush"], app.tasks["shop.collect"]

        assert {name: getattr(flush, name) for name in options} == options
        assert (buffering.time_limit, buffering.rate_limit, buffering.ignore_result) == (None, None, True)
        for task in (flush, buffering):
            assert (task.acks_late, task.reject_on_worker_lost) == (True, True)

    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_queue_and_priority_reach_both(self, app: Celery) -> None:
        collect, _ = collector(size=1, queue="slow", priority=4)
        collect.add(D1)
        collect.delay(D2)

        with app.connection_for_read() as connection, connection.SimpleQueue("slow") as queue:
            messages = [queue.get_nowait() for _ in range(2)]
            for message in messages:
                message.ack()
        assert {message.headers["task"] for message in messages} == {"shop.collect", "shop.collect.flush"}
        assert {message.properties["priority"] for message in messages} == {4}

    def test_base_of_ones_own(self, app: Celery) -> None:
        class Mine(Task):  # type: ignore[type-arg]
            colour = "red"

        collector(base=Mine)

        assert app.tasks["shop.collect.flush"].colour == "red"
        assert not isinstance(app.tasks["shop.collect"], Mine)

    def test_task_of_the_app(self, new_app: NewApp) -> None:
        """Such as one with ``delay_on_commit``."""

        class Mine(Task):  # type: ignore[type-arg]
            colour = "red"

        app = new_app(task_cls=Mine)
        collector()

        assert app.tasks["shop.collect.flush"].colour == app.tasks["shop.collect"].colour == "red"
