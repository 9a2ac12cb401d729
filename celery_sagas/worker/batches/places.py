"""The places of a worker's pool, for which batches wait as tasks do."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

#: Places for batches where all tasks run in one process: one batch computes while the other waits for the store.
_IN_ONE_PROCESS = 2


class Places(ABC):
    """The places of a pool: each is for one batch, or one task."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""

    @abstractmethod
    def acquire(self, use: Callable[[], object]) -> None:
        """Call a function once it has a place, in the order of the calls."""

    @abstractmethod
    def release(self) -> None:
        """Give up a place that is not used."""

    @abstractmethod
    def end(self, *, is_sent: bool = True) -> None:
        """Give up the place of a job that has ended, or could not be sent to the pool."""

    @abstractmethod
    def run(self, request: Any) -> None:
        """Use a place for a task."""

    def report(self, call: Callable[[], object]) -> None:
        """Call a function that the pool reports to, and that may give it more to do."""
        call()


class Processes(Places):
    """The processes of a pool, shared with all tasks through Celery's semaphore; the pool releases those of jobs that end."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    @property
    def count(self) -> int:
        return int(self._consumer.pool.num_processes)

    def acquire(self, use: Callable[[], object]) -> None:
        """Call the function at once, or in the loop's next turn: the pool releases a place before it reports on its job."""
        is_free = True

        def grant() -> None:
            if is_free:
                use()
            else:
                self._consumer.call_soon(use)

        self._consumer.controller._quick_acquire(grant)
        is_free = False

    def release(self) -> None:
        self._consumer.controller._quick_release()

    def end(self, *, is_sent: bool = True) -> None:
        if not is_sent:
            self.release()

    def run(self, request: Any) -> None:
        self._consumer.controller._process_task(request)


class Slots(Places):
    """Places for batches in a pool of threads or greenlets, or a worker without an event loop; tasks need none.

    Its methods may be called from any thread, and have no lock: ``acquire`` and ``release`` each leave a trace before they look
    for the other's.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        #: Whether it waits for a free slot where it is given something to do: for ever, where it reports that one is free.
        self._may_block = consumer.pool.is_green or consumer.pool.uses_semaphore
        self._count = min(_IN_ONE_PROCESS, consumer.pool.num_processes or 1)
        self._free: deque[None] = deque([None] * self._count)
        self._wanted: deque[Callable[[], object]] = deque()
        self._granting: set[int] = set()  #: threads, or greenlets

    @property
    def count(self) -> int:
        return self._count

    def acquire(self, use: Callable[[], object]) -> None:
        self._wanted.append(use)
        self._grant()

    def release(self) -> None:
        self._free.append(None)
        self._grant()

    def end(self, *, is_sent: bool = True) -> None:
        self.release()

    def run(self, request: Any) -> None:
        try:
            self._consumer.on_task_request(request)
        finally:
            self.release()

    def report(self, call: Callable[[], object]) -> None:
        if self._may_block:  # the timer may wait for a slot: Celery has it run tasks whose eta has come, too
            self._consumer.timer.call_after(0, call)
        else:
            call()

    def _grant(self) -> None:
        """Use free slots; what is released, or wanted, meanwhile in this thread is left to the call that is under way.

        Raises:
            Exception: The first error of those that have used a slot, once no other is wanted.
        """
        thread, errors = get_ident(), list[Exception]()
        if thread in self._granting:
            return
        self._granting.add(thread)
        try:
            while use := self._next():
                try:
                    use()
                except Exception as exc:
                    errors.append(exc)
        finally:
            self._granting.discard(thread)
        if errors:
            raise errors[0]

    def _next(self) -> Callable[[], object] | None:
        """Take a free slot, and return what wants it."""
        while self._wanted:
            try:
                self._free.popleft()
            except IndexError:
                return None
            try:
                return self._wanted.popleft()
            except IndexError:  # another thread was faster
                self._free.append(None)
        return None


def places_of(consumer: Any) -> Places:
    """Return the places of the pool of a worker's consumer."""
    has_semaphore = consumer.pool.uses_semaphore and getattr(consumer.controller, "semaphore", None) is not None
    return Processes(consumer) if has_semaphore else Slots(consumer)
