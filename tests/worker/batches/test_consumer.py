"""The batch consumer: messages that wait together are handed out together, and run one by one where that cannot be."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.worker.state import active_requests

from celery_sagas.worker.batches import consumer as module
from celery_sagas.worker.batches.consumer import LEAST, SLOW_S, BatchConsumer, Settled, is_followed
from tests.worker.consumers import Consumer, Request


class Batches(BatchConsumer):
    """Hands out at most five messages at once."""

    linger_s = 0.005
    most = 5

    @property
    def target(self) -> Callable[[Sequence[Any]], Settled]:
        return lambda parts: Settled([])

    def part_of(self, request: Any) -> Any:
        if "unreadable" in request.request_dict:
            raise ValueError("it cannot be read")
        return request.id

    def runs_alone(self, request: Any) -> bool:
        return is_followed(request)


class UrgentBatches(Batches):
    """Sends what nothing precedes at once."""

    def is_urgent(self) -> bool:
        return self.is_idle()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def receive(batches: Batches, count: int, **headers: Any) -> list[Request]:
    """Receive messages; return their requests."""
    requests = [Request(number, **headers) for number in range(count)]
    for request in requests:
        batches.on_task_request(request)
    return requests


def test_what_waits_goes_when_its_time_is_over() -> None:
    consumer = Consumer()
    receive(Batches(consumer), 2)
    assert consumer.jobs == []
    (end,) = consumer.timed
    end()
    assert consumer.jobs[0]["parts"] == ["message 0", "message 1"]
    end()
    assert len(consumer.jobs) == 1, "nothing waited"


def test_a_full_batch_goes_at_once() -> None:
    consumer = Consumer(prefetched=100)
    receive(Batches(consumer), 5)
    assert consumer.sizes == [5]


def test_what_waits_goes_when_no_more_is_received() -> None:
    """The broker delivers no more before something is acknowledged."""
    consumer = Consumer(prefetched=4)
    receive(Batches(consumer), 4)
    assert consumer.sizes == [4]
    receive(Batches(consumer), 3)
    assert consumer.sizes == [4]


def test_messages_that_are_being_handled_count_as_received() -> None:
    consumer = Consumer(prefetched=4, processes=2)
    batches = UrgentBatches(consumer)
    receive(batches, 4)
    assert consumer.sizes == [1, 3]


def test_no_limit_of_prefetched_messages() -> None:
    consumer = Consumer(prefetched=0, processes=2)
    receive(Batches(consumer), 11)
    assert consumer.sizes == [5, 5]


class LargeBatches(Batches):
    """Hands out at most fifty messages at once."""

    most = 50


class LingeringBatches(LargeBatches):
    """Waits for more messages after large batches."""

    most_linger_s = 0.02


@pytest.mark.parametrize(
    ("processes", "count", "sizes"),
    [(2, 1, [1]), (2, LEAST, [LEAST]), (2, 17, [9, 8]), (3, 20, [7, 7, 6]), (3, 10, [5, 5]), (1, 40, [40]), (1, 50, [50])],
)
def test_what_waits_is_handed_out_evenly_in_its_order(processes: int, count: int, sizes: list[int]) -> None:
    """A few messages go to one process: the others take those that come next."""
    consumer = Consumer(prefetched=200, processes=processes)
    receive(LargeBatches(consumer), count)
    for end in consumer.timed:
        end()
    assert consumer.sizes == sizes
    assert [part for job in consumer.jobs for part in job["parts"]] == [f"message {number}" for number in range(count)]


def test_a_pool_in_one_process_gets_two_batches_at_once() -> None:
    consumer = Consumer(prefetched=60, processes=50, prefork=False)
    receive(LargeBatches(consumer), 60)
    for end in consumer.timed:
        end()
    assert consumer.sizes == [10, 10]


def test_another_batch_waits_while_one_runs_in_each_place() -> None:
    """Else a place would be idle until messages were acknowledged, and others received."""
    consumer = Consumer(prefetched=60, processes=2)
    batches = LargeBatches(consumer)
    receive(batches, 19)
    assert consumer.sizes == []
    receive(batches, 1)
    assert consumer.sizes == [10, 10]
    receive(batches, 20)
    consumer.end(0, "callback", Settled([]))
    assert consumer.sizes == [10, 10, 20]


def test_messages_wait_longer_after_a_large_batch() -> None:
    """Where many come, waiting gathers many: each batch has a trip of its own to the broker, to the pool and to the store."""
    consumer = Consumer(prefetched=200)
    batches = LingeringBatches(consumer)
    for count in (1, 1, 4, 8, 40, 1, 1):
        receive(batches, count)
        consumer.timed.pop()()
        consumer.end(len(consumer.jobs) - 1, "callback", Settled([]))
    assert consumer.lingers_s == pytest.approx([0.005, 0.005, 0.005, 0.008, 0.016, 0.02, 0.005])


class TestPlaces:
    """A batch waits for a place of the pool, as a task does, and takes what waits by then."""

    @pytest.mark.parametrize(("prefork", "processes"), [(True, 1), (False, 1)])
    def test_messages_wait_for_a_place(self, prefork: bool, processes: int) -> None:
        consumer = Consumer(prefetched=100, processes=processes, prefork=prefork)
        batches = LargeBatches(consumer)
        for count in (1, 2, 3):
            receive(batches, count)
            for end in consumer.timed:
                end()
        assert consumer.sizes == [1]
        consumer.end(0, "callback", Settled([]))
        assert consumer.sizes == [1, 5]

    def test_a_task_that_was_there_first_has_its_place_first(self) -> None:
        consumer = Consumer(prefetched=100, processes=1)
        batches, order = LargeBatches(consumer), list[str]()
        receive(batches, 1)
        consumer.timed.pop()()
        consumer.controller._quick_acquire(order.append, "task")
        receive(batches, 2)
        consumer.timed.pop()()
        consumer.end(0, "callback", Settled([]))
        assert (order, consumer.sizes) == (["task"], [1])

    def test_a_place_that_is_not_needed_any_more_is_free_again(self) -> None:
        consumer = Consumer(prefetched=100, processes=1)
        batches = LargeBatches(consumer)
        receive(batches, 1)
        consumer.timed.pop()()
        (request,) = receive(batches, 1)
        consumer.timed.pop()()
        request.is_revoked = True
        consumer.end(0, "callback", Settled([]))
        assert (consumer.sizes, consumer.controller.semaphore.value) == ([1], 1)

    def test_what_comes_after_a_task_does_not_overtake_it(self) -> None:
        consumer = Consumer(prefetched=100, processes=1)
        consumer.on_task_request = partial(consumer.controller._quick_acquire, consumer.alone.append)  # type: ignore[method-assign]
        batches = LargeBatches(consumer)
        for _ in range(2):
            receive(batches, 1)
            consumer.timed.pop()()
        [alone] = receive(batches, 1, embedded={"chain": [{"task": "next"}]})
        receive(batches, 1)
        consumer.timed.pop()()
        for number in range(2):
            assert (consumer.sizes, consumer.alone) == ([1] * (number + 1), [])
            consumer.end(number, "callback", Settled([]))
        assert (consumer.sizes, consumer.alone) == ([1, 1], [alone])
        consumer.controller._quick_release()
        assert consumer.sizes == [1, 1, 1]

    def test_messages_that_another_thread_closes_while_their_place_is_used_are_handed_out(self) -> None:
        consumer = Consumer(prefetched=100, processes=1)
        batches = LargeBatches(consumer)
        for _ in range(2):
            receive(batches, 1)
            consumer.timed.pop()()
        others: list[Callable[[], object]] = [partial(receive, batches, 1, embedded={"chain": [{"task": "next"}]})]

        class Closed(deque[Any]):
            """Is filled just after it was found empty."""

            def popleft(self) -> Any:
                try:
                    return super().popleft()
                except IndexError:
                    if others:
                        others.pop()()
                    raise

        batches._closed = Closed()
        consumer.end(0, "callback", Settled([]))
        assert (len(consumer.alone), consumer.sizes) == (1, [1, 1])

    @pytest.mark.parametrize("pool", [{"is_green": True}, {"uses_semaphore": True}], ids=["greenlets", "processes"])
    def test_a_pool_that_may_wait_for_a_place_is_given_nothing_while_it_reports(self, pool: dict[str, bool]) -> None:
        """It would wait for what it does itself. The pool of processes is that of a worker without an event loop."""
        consumer = Consumer(prefetched=100, prefork=False)
        vars(consumer.pool).update(pool)
        consumer.controller.semaphore = None
        batches = LargeBatches(consumer)
        requests = receive(batches, 2)
        consumer.timed.pop()()
        receive(batches, 1)
        consumer.timed.pop()()
        consumer.end(0, "callback", Settled([1]))
        assert (consumer.alone, consumer.sizes) == ([], [2])
        for call in consumer.timed:
            call()
        assert (consumer.alone, consumer.sizes) == (requests[1:], [2, 1])

    def test_nothing_is_handed_out_once_the_pool_ends(self) -> None:
        """Celery calls what is left in its event loop when that ends."""
        consumer = Consumer(prefetched=100, processes=1)
        batches = LargeBatches(consumer)
        receive(batches, 1)
        consumer.timed.pop()()
        receive(batches, 1)
        consumer.timed.pop()()
        consumer.pool.active = False
        consumer.end(0, "callback", Settled([]))
        receive(batches, 1, embedded={"chain": [{"task": "next"}]})
        assert consumer.sizes == [1]

    def test_what_a_batch_leaves_comes_before_what_waits(self) -> None:
        """In the order of arrival: messages may be about one instance."""
        consumer = Consumer(prefetched=100, processes=1)
        batches = LargeBatches(consumer)
        first = receive(batches, 3)
        consumer.timed.pop()()
        soon: list[Callable[[], None]] = []
        consumer.call_soon = lambda call, *args: soon.append(partial(call, *args))
        receive(batches, 2)
        consumer.timed.pop()()
        consumer.end(0, "callback", Settled([1, 2]))
        soon.pop()()
        assert (consumer.alone, consumer.sizes) == ([first[1]], [3])

    def test_what_two_batches_leave_runs_in_the_order_of_arrival(self) -> None:
        consumer = Consumer(prefetched=30, processes=2)
        batches = Batches(consumer)
        first, second = receive(batches, 5), receive(batches, 5)
        assert consumer.sizes == [5, 5]
        consumer.end(0, "callback", Settled([1, 2, 3]))
        consumer.end(1, "callback", Settled([0]))
        for _ in range(2):
            consumer.controller._quick_release()
        assert consumer.alone == [*first[1:4], second[0]]

    def test_a_message_that_runs_alone_does_not_overtake_those_that_wait(self) -> None:
        consumer = Consumer(prefetched=100, processes=1)
        batches = LargeBatches(consumer)
        receive(batches, 2)
        [alone] = receive(batches, 1, embedded={"chain": [{"task": "next"}]})
        assert (consumer.sizes, consumer.alone) == ([2], [alone])


class Many(Batches):
    """Hands out at most a thousand messages at once."""

    most = 1_000


class TestInOneProcess:
    """A pool in the worker's process reports where it is given something to do."""

    def test_however_many_messages_run_alone_the_places_are_free_again(self) -> None:
        consumer = Consumer(prefetched=0, processes=1, prefork=False)
        batches = Many(consumer)
        requests = receive(batches, 1_000)
        consumer.timed.pop()()
        consumer.end(0, "callback", Settled(range(1_000)))
        assert consumer.alone == requests
        receive(batches, 1)
        consumer.timed.pop()()
        assert consumer.sizes == [1_000, 1]

    def test_a_task_that_raises_gives_its_place_to_the_next(self) -> None:
        consumer = Consumer(prefetched=0, processes=1, prefork=False)

        def fail(request: Any) -> None:
            consumer.alone.append(request)
            if len(consumer.alone) == 1:
                raise ValueError(request.id)

        consumer.on_task_request = fail  # type: ignore[method-assign]
        batches = Many(consumer)
        requests = receive(batches, 3)
        consumer.timed.pop()()
        with pytest.raises(ValueError, match="message 0"):
            consumer.end(0, "callback", Settled([0, 1, 2]))
        assert consumer.alone == requests
        receive(batches, 1)
        consumer.timed.pop()()
        assert consumer.sizes == [3, 1]

    def test_a_batch_whose_report_fails_was_sent(self) -> None:
        """Its messages do not run again."""
        consumer = Consumer(prefetched=0, processes=1, prefork=False)

        def report(target: Any, args: Any, *, callback: Callable[[object], None], **_: Any) -> None:
            callback(Settled([5]))  # which it does not have

        consumer.pool.apply_async = report
        receive(Many(consumer), 1)
        with pytest.raises(IndexError):
            consumer.timed.pop()()
        assert consumer.alone == []


class TestUrgency:
    """The first message after a pause goes at once; while a batch runs, messages wait."""

    def test_first_message_goes_at_once(self, now: list[float]) -> None:
        consumer = Consumer(prefetched=100)
        receive(UrgentBatches(consumer), 3)
        assert consumer.sizes == [1]

    def test_messages_wait_just_after_a_batch(self, now: list[float]) -> None:
        consumer = Consumer(prefetched=100)
        batches = UrgentBatches(consumer)
        receive(batches, 1)
        consumer.end(0, "callback", Settled([]))
        receive(batches, 1)
        assert consumer.sizes == [1]
        now[0] += 0.006
        receive(batches, 1)
        assert consumer.sizes == [1, 2]


class TestResults:
    """What becomes of a batch."""

    def batch(self, count: int = 3, **headers: Any) -> tuple[Consumer, list[Request], Batches]:
        consumer = Consumer(prefetched=count, processes=10)
        batches = Batches(consumer)
        return consumer, receive(batches, count, **headers), batches

    def test_handled_messages_are_acknowledged_and_the_rest_runs_alone(self) -> None:
        consumer, requests, _ = self.batch()
        consumer.end(0, "callback", Settled([1]))
        assert [request.acks for request in requests] == [1, 0, 1]
        assert consumer.alone == requests[1:2]
        assert requests[1].delivery_info == {"redelivered": False}

    def test_events_are_those_of_tasks(self) -> None:
        consumer, requests, _ = self.batch()
        consumer.jobs[0]["accept_callback"](4711, 0.0)
        consumer.end(0, "callback", Settled([1], 0.3))
        assert [request.events for request in requests] == [
            ["task-started", "task-succeeded"],
            ["task-started"],
            ["task-started", "task-succeeded"],
        ]

    def test_messages_are_noted_as_those_of_a_batch_until_they_run_alone(self) -> None:
        """To terminate one would end the process that has the others, too."""
        consumer, requests, _ = self.batch()
        consumer.jobs[0]["accept_callback"](4711, 0.0)
        assert all(request.is_batched for request in requests)
        consumer.end(0, "callback", Settled([1]))
        assert [request.is_batched for request in requests] == [True, False, True]

    def test_time_limits_are_those_of_the_app(self) -> None:
        consumer = Consumer(prefetched=1)
        consumer.app.conf.update(task_time_limit=60, task_soft_time_limit=30)
        receive(Batches(consumer), 1)
        assert (consumer.jobs[0]["timeout"], consumer.jobs[0]["soft_timeout"]) == (60, 30)

    def test_a_time_limit_that_is_reported_twice_is_handled_once(self) -> None:
        """A pool of processes reports the failure, too; a pool of greenlets the time limit alone."""
        consumer, requests, _ = self.batch()
        consumer.jobs[0]["timeout_callback"](True, 30)
        assert consumer.alone == []
        consumer.end(0, "error_callback", _error())
        consumer.jobs[0]["timeout_callback"](False, 60)
        assert consumer.alone == requests

    def test_a_message_that_waits_as_a_task_belongs_to_no_process(self) -> None:
        """To terminate it would end what the process does meanwhile."""
        consumer, requests, _ = self.batch()
        consumer.jobs[0]["accept_callback"](4711, 0.0)
        assert requests[1].worker_pid == 4711
        consumer.end(0, "callback", Settled([1]))
        assert (requests[1].worker_pid, requests[1].time_start) == (None, None)
        assert requests[1] not in active_requests

    @pytest.mark.parametrize("how", ["error_callback", "callback"])
    def test_messages_that_a_shutdown_cancels_are_left_to_the_broker(self, how: str) -> None:
        consumer, requests, _ = self.batch()
        requests[1]._already_cancelled = True
        consumer.end(0, how, _error() if how == "error_callback" else Settled([1, 2]))
        assert requests[1] not in consumer.alone
        assert requests[1].acks == 0

    def test_nothing_runs_alone_once_the_worker_terminates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        consumer, requests, _ = self.batch()
        monkeypatch.setattr(module, "is_terminating", lambda: True)
        consumer.end(0, "callback", Settled([1, 2]))
        assert consumer.alone == []
        assert [request.acks for request in requests] == [1, 0, 0]

    @pytest.mark.parametrize("how", ["error_callback", "callback"])
    def test_everything_runs_alone_and_is_counted_if_its_process_dies(self, how: str) -> None:
        """Pools of threads and greenlets report that to the callback."""
        consumer, requests, _ = self.batch()
        consumer.end(0, how, _error())
        assert consumer.alone == requests
        assert [request.acks for request in requests] == [0, 0, 0]
        assert all(request.delivery_info["redelivered"] for request in requests)

    def test_the_pool_forgets_a_batch_that_cannot_be_sent(self) -> None:
        """At its end it would wait for it."""
        consumer, discarded = Consumer(prefetched=2, processes=2), list[object]()

        def fail(target: Any, args: Any, *, callback: Any, **_: Any) -> None:
            job = SimpleNamespace(_callback=callback, discard=lambda: discarded.append(callback))
            consumer.pool._pool = SimpleNamespace(_cache={1: job})
            raise RecursionError

        consumer.pool.apply_async = fail
        requests = receive(Batches(consumer), 2)
        assert len(discarded) == 1
        assert consumer.alone == requests

    def test_everything_runs_alone_if_it_cannot_be_handed_out(self) -> None:
        consumer, requests, _ = self.batch(unreadable=True)
        assert consumer.jobs == []
        assert consumer.alone == requests

    def test_messages_run_alone_for_a_while_after_a_slow_batch(self, now: list[float]) -> None:
        consumer, requests, batches = self.batch()
        consumer.end(0, "callback", Settled([1, 2], is_slow=True))
        assert consumer.alone == requests[1:]
        later = receive(batches, 2)
        assert consumer.alone[2:] == later
        now[0] += SLOW_S + 1
        receive(batches, 3)
        assert consumer.sizes == [3, 3]


@pytest.mark.parametrize("followed_by", ["callbacks", "errbacks", "chain", "chord"])
def test_a_message_that_others_follow_runs_alone(followed_by: str) -> None:
    consumer = Consumer()
    [request] = receive(Batches(consumer), 1, embedded={followed_by: [{"task": "next"}]})
    assert consumer.alone == [request]


def test_a_message_that_cannot_be_decoded_runs_alone() -> None:
    consumer, request = Consumer(), Request(0)
    del request._payload
    Batches(consumer).on_task_request(request)
    assert consumer.alone == [request]


def test_a_message_that_was_revoked_is_not_handled() -> None:
    consumer, request = Consumer(prefetched=1), Request(0)
    request.is_revoked = True
    Batches(consumer).on_task_request(request)
    assert (consumer.jobs, consumer.alone) == ([], [])


def test_a_message_that_has_waited_for_its_time_is_counted_no_more() -> None:
    consumer = Consumer(prefetched=1)
    Batches(consumer).apply_eta_task(Request(0))
    assert consumer.decremented == 1
    assert len(consumer.jobs) == 1


def _error() -> ExceptionInfo:
    try:
        return 1 / 0  # type: ignore[return-value]
    except ZeroDivisionError:
        return ExceptionInfo()
