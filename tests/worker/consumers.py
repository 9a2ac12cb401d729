"""A worker's consumer and its requests, as far as a batch consumer looks at them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.worker.state import task_accepted
from kombu import Queue
from kombu.asynchronous.semaphore import LaxBoundedSemaphore


class Request:
    """A request."""

    def __init__(self, number: int, *, embedded: dict[str, Any] | None = None, **headers: Any) -> None:
        self.id, self.name = f"message {number}", "a.task"
        self.message = SimpleNamespace(channel=SimpleNamespace(qos=None), ack_log_error=lambda *_: self.acknowledge())
        self.request_dict = headers
        self._payload = ([{"device": "d1", "celsius": number}], {}, embedded or {"callbacks": None, "chain": None})
        self.delivery_info = {"redelivered": False}
        self.time_limits = (None, None)
        self.ignore_result = True
        self.task = SimpleNamespace(ignore_result=True, app=Celery("worker", set_as_current=False))
        self.acknowledged = False
        self._already_cancelled = False
        self.worker_pid: int | None = None
        self.time_start: float | None = None
        self.is_batched = False
        self.acks = 0
        self.events: list[str] = []
        self.is_revoked = False
        self.stamps: dict[str, str] = {}

    def acknowledge(self) -> None:
        self.acknowledged = True
        self.acks += 1

    def revoked(self) -> bool:
        return self.is_revoked

    def on_accepted(self, pid: int, accepted_at: float) -> None:
        self.worker_pid, self.time_start = pid, accepted_at
        task_accepted(self)
        self.events.append("task-started")

    def send_event(self, kind: str, **_: Any) -> None:
        self.events.append(kind)


class Consumer:
    """A consumer, whose pool and timer do what they are asked when they are told to."""

    def __init__(self, prefetched: int = 8, processes: int = 1, *, prefork: bool = True) -> None:
        self.alone: list[Request] = []
        self.timed: list[Callable[[], None]] = []
        self.lingers_s: list[float] = []  #: after which each of them is called
        self.jobs: list[dict[str, Any]] = []
        self.decremented = 0
        self.restart_count = 0
        self.connection_errors = (OSError,)
        self.qos = SimpleNamespace(value=prefetched, decrement_eventually=self._decrement)
        self.timer = SimpleNamespace(call_after=self._call_after)
        self.app = Celery("worker", set_as_current=False)
        self.event_dispatcher = SimpleNamespace(enabled=True, groups={"worker"})  # as for a worker's heartbeats
        self.task_consumer: Any = SimpleNamespace(queues=[Queue("one"), Queue("two")])
        self.task_buckets: dict[str, Any] = {}
        self.pool = SimpleNamespace(
            apply_async=self._apply, num_processes=processes, uses_semaphore=prefork, active=True, is_green=False
        )
        self.call_soon = lambda call, *args: call(*args)
        semaphore = LaxBoundedSemaphore(processes)
        self.controller = SimpleNamespace(
            semaphore=semaphore,
            _quick_acquire=semaphore.acquire,
            _quick_release=semaphore.release,
            _process_task=self.alone.append,
        )

    def on_task_request(self, request: Request) -> None:
        self.alone.append(request)

    def end(self, number: int, how: str, *result: Any) -> None:
        """Have the pool end a job: it releases its place, and reports its result."""
        if self.pool.uses_semaphore:
            self.controller._quick_release()
        self.jobs[number][how](*result)

    @property
    def sizes(self) -> list[int]:
        """How many messages each job has."""
        return [len(job["parts"]) for job in self.jobs]

    def _call_after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timed.append(call)
        self.lingers_s.append(seconds)

    def _decrement(self) -> None:
        self.decremented += 1

    def _apply(self, target: Any, args: Any, **callbacks: Any) -> None:
        self.jobs.append({"target": target, "parts": args[0], **callbacks})
