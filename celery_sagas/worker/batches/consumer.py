"""The batch consumer: it collects messages that wait in a worker, and hands them out to its pool in batches.

Celery's own strategy receives a message: revocation, expiry, an eta, rate limits and the event ``task-received`` are Celery's. A
message that a batch cannot handle runs as any task does, so that whatever goes wrong has no second code path.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from celery.worker.state import active_requests, task_ready, task_reserved

from celery_sagas.worker.batches.acknowledging import acknowledge_all
from celery_sagas.worker.batches.places import Places, places_of
from celery_sagas.worker.celery_internals import is_terminating
from celery_sagas.worker.failures.faults import UNREADABLE, check_request
from celery_sagas.worker.failures.unreadable import forget_job

logger = logging.getLogger("celery_sagas")

#: Seconds for which messages run as tasks after a batch with slow handlers, which gain nothing from it.
SLOW_S = 60.0
#: Messages that are handed to one process rather than divided: the others take those that come next.
LEAST = 8
#: Seconds that a message waits for others for each message of the batch before: where few come, waiting gathers nothing.
_LINGER_PER_MESSAGE_S = 0.002


class Settled(NamedTuple):
    """The result of a batch."""

    left: Sequence[int]  #: positions of the messages that must run as tasks
    seconds: float = 0.0  #: how long it took
    is_slow: bool = False  #: whether it took too long because of its handlers


class BatchConsumer(ABC):
    """Replaces a worker's consumer for some tasks, until the consumer connects again.

    A batch waits for a place of the pool as a task does, and takes the messages that wait by then. Messages with an eta are
    passed here when they may run. Messages under a rate limit, as by a remote control command, run as tasks.
    """

    #: Seconds that a message waits for others.
    linger_s: ClassVar[float]
    #: Seconds that it waits at most after a large batch.
    most_linger_s: ClassVar[float] = 0.0

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._places: Places = places_of(consumer)
        self._waiting: deque[Any] = deque()
        self._left: deque[Any] = deque()  #: by batches: they run as tasks, before all others
        self._closed: deque[Sequence[Any]] = deque()  #: batches that came before a message which runs as a task
        self._jobs: dict[object, int] = {}  #: the batches that the pool runs, with their sizes; 0: it has reported on it
        self._last_size = 0  #: of the batch before
        self._is_timed = False
        self._wants_place = False
        self._ended_at = 0.0
        self._slow_until = 0.0

    def __getattr__(self, name: str) -> Any:
        """Return the consumer's attribute."""
        return getattr(self._consumer, name)

    @property
    @abstractmethod
    def most(self) -> int:
        """The most messages of a batch."""

    @property
    @abstractmethod
    def target(self) -> Callable[[Sequence[Any]], Settled]:
        """The function that a process of the pool runs with the parts of the messages that ``part_of`` returns."""

    @abstractmethod
    def part_of(self, request: Any) -> Any:
        """Return what the process needs of a message; an error has all messages of its batch run as tasks."""

    @abstractmethod
    def runs_alone(self, request: Any) -> bool:
        """Return whether a message must run as a task."""

    def is_urgent(self) -> bool:
        """Return whether a message that nothing precedes is sent at once."""
        return False

    def on_task_request(self, request: Any) -> None:
        """Accept a message that may run now."""
        try:
            check_request(request)
            is_over, runs_alone = request.revoked(), self._is_slow() or self.runs_alone(request)
        except UNREADABLE:  # it fails again where it runs, and is refused
            is_over, runs_alone = False, True
        if is_over:  # or expired: it is acknowledged
            task_ready(request)
        elif runs_alone:
            self._run_after_waiting(request)
        else:
            self._add(request)

    def apply_eta_task(self, request: Any) -> None:
        """Accept a message whose eta has passed."""
        task_reserved(request)
        self.on_task_request(request)
        self._consumer.qos.decrement_eventually()

    def is_idle(self) -> bool:
        """Return whether no batch runs, or has run just now."""
        return not self._jobs and time.monotonic() - self._ended_at > self.linger_s

    @property
    def parts(self) -> int:
        """How many batches run at once."""
        return self._places.count

    def _is_slow(self) -> bool:
        return self._slow_until > 0 and time.monotonic() < self._slow_until

    def _add(self, request: Any) -> None:
        self._waiting.append(request)
        if self.is_urgent() or len(self._waiting) >= self._most_waiting():
            self._send()
        elif not self._is_timed:
            self._is_timed = True
            linger_s = min(self.most_linger_s, self._last_size * _LINGER_PER_MESSAGE_S)
            self._consumer.timer.call_after(max(self.linger_s, linger_s), self._end_linger)

    def _most_waiting(self) -> float:
        """Return how many messages may wait: beside those that are being handled, no more than may be prefetched are received.

        They are divided so that while a batch runs in each place, another one waits, and no place is idle.
        """
        prefetched, most = self._consumer.qos.value, self.most * self.parts
        running = sum(list(self._jobs.values()))  # a copy: threads of the pool remove theirs
        each = max(LEAST, prefetched / (self.parts + 1))
        return max(1, min(most, each, prefetched - running)) if prefetched else most

    def _end_linger(self) -> None:
        self._is_timed = False
        self._send()

    def _send(self) -> None:
        """Hand out the waiting messages once there is a place of the pool for them."""
        if self._waiting and not self._wants_place:
            self._wants_place = True
            self._places.acquire(self._use_place)

    def _run_after_waiting(self, request: Any) -> None:
        """Run a message as a task, after those that have come before it."""
        while batch := self._take(self.most):
            self._closed.append(batch)
            if not self._wants_place:
                self._places.acquire(self._use_place)
            self._wants_place = False
        self._consumer.on_task_request(request)

    def _use_place(self) -> None:
        """Use a place of the pool for what has come first: each place is requested for one of them."""
        if not self._consumer.pool.active:  # the worker ends, and the broker delivers again what waits
            return
        if request := next(_drained(self._left), None):
            self._places.run(request)
        elif batch := next(_drained(self._closed), None):
            self._hand_out(batch)
        else:
            self._wants_place = False
            waiting = self._take(_share(len(self._waiting), self.parts - len(self._jobs), self.most))
            # another thread may have closed meanwhile what the place was for
            self._hand_out(waiting or next(_drained(self._closed), []))
            self._send()

    def _take(self, most: int) -> list[Any]:
        """Take away the first waiting messages, and drop those that were revoked meanwhile."""
        taken = []
        for request in islice(_drained(self._waiting), most):
            if request.revoked():
                task_ready(request)
            else:
                taken.append(request)
        return taken

    def _hand_out(self, requests: Sequence[Any]) -> None:
        if not requests:
            self._places.release()
            return
        job, conf = object(), self._consumer.app.conf
        self._jobs[job] = self._last_size = len(requests)
        settle = partial(self._report, self._settle, job, requests)
        try:
            self._consumer.pool.apply_async(
                self.target,
                ([self.part_of(request) for request in requests],),
                accept_callback=partial(self._accept, requests),
                callback=settle,
                error_callback=partial(self._report, self._run_again, job, requests),
                timeout_callback=partial(self._time_out, job, requests),
                timeout=conf.task_time_limit,
                soft_timeout=conf.task_soft_time_limit,
            )
        except Exception as exc:  # such as a message that cannot be encoded
            if not self._jobs.get(job):  # it was sent: a pool in this process has reported on it
                raise
            logger.warning("%d messages run one by one, since their batch cannot be sent: %r", len(requests), exc)
            forget_job(self._consumer.pool, settle)
            self._run_as_tasks(requests)
            self._end(job, is_sent=False)

    def _accept(self, requests: Sequence[Any], pid: int, accepted_at: float) -> None:
        """Note that a process has the messages."""
        for request in requests:
            request.is_batched = True
            request.on_accepted(pid, accepted_at)

    def _report(self, call: Callable[..., object], job: object, *args: Any) -> None:
        if job in self._jobs:
            self._jobs[job] = 0
        self._places.report(partial(call, job, *args))

    def _settle(self, job: object, requests: Sequence[Any], settled: Any) -> None:
        """Acknowledge the handled messages, and run the rest as tasks."""
        if not isinstance(settled, Settled):  # a pool of threads or greenlets reports here that it was interrupted
            self._run_again(job, requests, settled)
            return
        if settled.is_slow:
            logger.info("messages of steps run one by one for %d s, since the handlers of a batch were slow", SLOW_S)
            self._slow_until = time.monotonic() + SLOW_S
        left, waiting = set(settled.left), _drained(self._waiting) if settled.is_slow else ()
        done = [request for number, request in enumerate(requests) if number not in left]
        for request in done:
            task_ready(request, successful=True)
            request.send_event("task-succeeded", result=None, runtime=settled.seconds / len(requests))
        acknowledge_all(self._consumer, done)
        self._run_as_tasks([*(requests[number] for number in settled.left), *waiting])
        self._end(job)

    def _time_out(self, job: object, requests: Sequence[Any], soft: bool, seconds: float) -> None:
        """Handle a time limit: a pool of processes has reported the failure before."""
        if not soft:
            self._report(self._run_again, job, requests, f"it has met its time limit of {seconds:g} s")

    def _run_again(self, job: object, requests: Sequence[Any], error: object) -> None:
        """Run the messages of a batch as tasks, as redelivered ones, once: one of them may have ended the process."""
        if job not in self._jobs:
            return
        logger.warning("%d messages run one by one, since their batch failed: %s", len(requests), error)
        for request in requests:
            request.delivery_info["redelivered"] = True
        self._run_as_tasks(requests)
        self._end(job)

    def _run_as_tasks(self, requests: Sequence[Any]) -> None:
        """Run messages as tasks; leave those that a shutdown or a lost connection has cancelled to the broker.

        They are in no process now: to terminate one would end what that process does meanwhile.
        """
        for request in requests:
            active_requests.discard(request)
            request.is_batched, request.worker_pid, request.time_start = False, None, None
            if not (request._already_cancelled or is_terminating()):
                self._left.append(request)
                self._places.acquire(self._use_place)

    def _end(self, job: object, *, is_sent: bool = True) -> None:
        self._jobs.pop(job, None)
        self._ended_at = time.monotonic()
        self._places.end(is_sent=is_sent)


def is_followed(request: Any) -> bool:
    """Return whether a link, the next of a chain or a chord waits for the end of a message's task, or may do so."""
    try:
        _, _, embedded = request._payload
        return any((embedded or {}).values())
    except Exception:  # what cannot be decoded fails where it runs, as in any task
        return True


def _drained(waiting: deque[Any]) -> Iterator[Any]:
    while True:
        try:
            yield waiting.popleft()
        except IndexError:  # another thread may have taken the last one
            return


def _share(waiting: int, free: int, most: int) -> int:
    """Return how many of the waiting messages a batch takes: the same number for each free place, and not too few."""
    parts = max(1, min(free, -(-waiting // LEAST)))
    return min(most, -(-waiting // parts))
