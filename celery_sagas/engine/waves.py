"""Waves: the units of work of several messages proceed together, so that their operations share round trips.

All finds are performed at once, then the handlers run, then all commits are performed, then what they send is published. Messages
that look up their instance in the same way are handled in successive waves, in the order of their arrival.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from celery_sagas.engine.handling import Services
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.session import Attempt, Delivery
from celery_sagas.engine.unit_of_work import Handled, Steps, handle_once
from celery_sagas.errors import RevisionConflict, StoreError
from celery_sagas.stores.operations import Find, Operation
from celery_sagas.stores.records import Lookup, Outgoing

logger = logging.getLogger("celery_sagas")

#: Seconds after which a batch begins no other handler.
BATCH_S = 0.25


class BatchedMessage(NamedTuple):
    """A message of a batch."""

    delivery: Delivery
    running: Callable[[], AbstractContextManager[object]]  #: makes its task the running one, while its unit of work proceeds
    #: Calls a function in the context in which its handler has ended.
    in_context: Callable[[Callable[[], None]], None] = lambda call: call()


@dataclass(slots=True, eq=False)
class _Work:
    """A message of a batch, and its unit of work."""

    position: int
    message: BatchedMessage
    steps: Steps[Handled]
    conflicts: int = 0
    unique: int = 0  #: how many of the conflicts were about a key
    operation: Operation | None = None  #: for which the unit of work waits; ``None`` once it has ended
    lookup: Lookup | None = None  #: how its instance is looked up, once that is known

    def proceed(self, answer: Any) -> None:
        """Pass the answer of the operation to the unit of work, up to its next operation.

        Raises:
            StopIteration: The message is handled.
            Exception: It is not, and nothing was written.
        """
        with self.message.running():
            self.operation = self.steps.throw(answer) if isinstance(answer, StoreError) else self.steps.send(answer)


class Batch:
    """Messages that are handled together, for a bounded time.

    A message has its outcome once it was committed and what it sends was published. One without an outcome has to be handled
    alone: it failed, met too many conflicts, was handled before, or was not begun in time.

    Args:
        services: Those of this process.
        messages: In the order of their arrival.
        interruptions: Errors that end the batch, whichever message they strike.
        publishes_each: Whether what a message sends is published in its handler's context, apart from the others.
        clock: Returns seconds.
    """

    def __init__(
        self,
        services: Services,
        messages: Sequence[BatchedMessage],
        interruptions: tuple[type[Exception], ...] = (),
        *,
        publishes_each: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcomes: list[Outcome | None] = [None] * len(messages)  #: in the order of the messages
        self.is_cut = False  #: whether it took too long, and not all messages were begun
        self._services = services
        self._interruptions = interruptions
        self._publishes_each = publishes_each
        self._clock = clock
        self._works = [_Work(position, each, self._attempt(each.delivery)) for position, each in enumerate(messages)]
        self._until = clock() + BATCH_S
        self._handlers_s = 0.0  #: how long the handlers took
        self._has_run = False  #: whether a handler has run: a slow store must not keep all of them from it
        self._left = set[Lookup | None]()  #: of messages that are left: the later ones must not overtake them

    def handle(self) -> None:
        """Handle the messages.

        Raises:
            Exception: One of the interruptions, or an error of the store that is no ``StoreError``. A message without an outcome
                may have been committed, which its repeat finds in the journal.
        """
        try:
            waiting = [work for work in self._works if self._begin(work)]
            while waiting and not self.is_cut:
                self._run_wave(_first_of_each_lookup(waiting))
                waiting = [work for work in waiting if work.operation is not None and work.lookup not in self._left]
        finally:
            for work in self._works:
                work.steps.close()

    def _attempt(self, delivery: Delivery, unique: int = 0) -> Steps[Handled]:
        timed = delivery._replace(call=partial(self._call, delivery.call))
        return handle_once(timed, self._services.terms, Attempt(unique=unique))

    def _call(self, call: Callable[..., Any], function: Any, first: Any, /, **arguments: Any) -> Any:
        """Call a handler, and measure it."""
        began = self._clock()
        try:
            return call(function, first, **arguments)
        finally:
            self._handlers_s += self._clock() - began

    def _begin(self, work: _Work) -> bool:
        """Begin to handle a message, up to its find; return whether it is well-formed.

        A malformed one has no lookup, and keeps no other waiting: it fails alone, too, and changes nothing.
        """
        try:
            work.proceed(None)
        except self._interruptions:
            raise
        except Exception as exc:
            self._leave(work, exc)
        if isinstance(work.operation, Find):
            work.lookup = work.operation.lookup
        return work.operation is not None

    def _run_wave(self, wave: Sequence[_Work]) -> None:
        """Handle messages of different instances, and publish what they send."""
        began, done = self._clock(), list[tuple[_Work, Handled]]()
        while wave:
            answers = self._services.backend.many([work.operation for work in wave if work.operation is not None])
            wave = [work for work, answer in zip(wave, answers, strict=True) if self._proceed(work, answer, done)]
        self._publish(done, began)
        for work, handled in done:
            self.outcomes[work.position] = handled.outcome

    def _publish(self, done: Sequence[tuple[_Work, Handled]], began: float) -> None:
        """Publish what is due at once: all of it together, unless somebody listens who must see whose it is."""
        dispatch = self._services.dispatcher.dispatch
        if not self._publishes_each:
            dispatch([row for _, handled in done for row in _due(handled)], began)
            return
        for work, handled in done:
            with work.message.running():
                work.message.in_context(partial(dispatch, _due(handled), began))

    def _proceed(self, work: _Work, answer: Any, done: list[tuple[_Work, Handled]]) -> bool:
        """Pass an answer to a unit of work; return whether it has another operation in this wave."""
        if isinstance(work.operation, Find):
            if self._has_run and self._clock() > self._until:
                self.is_cut, work.operation = True, None
                return False
            self._has_run = True
        try:
            work.proceed(answer)
        except StopIteration as end:
            work.operation = None
            if end.value.handled_before is None:
                done.append((work, end.value))
            else:  # what it has left in the outbox must be published
                self._left.add(work.lookup)
        except RevisionConflict as conflict:
            self._begin_again(work, conflict)
        except self._interruptions:
            raise
        except Exception as exc:
            self._leave(work, exc)
        else:
            return True
        return False

    @property
    def is_slow(self) -> bool:
        """Whether it took too long because of its handlers, not because of the store."""
        return self.is_cut and self._handlers_s > BATCH_S / 2

    def _begin_again(self, work: _Work, conflict: RevisionConflict) -> None:
        """Have a message handled once more in the next wave, unless its rivals need a pause, or a lock."""
        work.conflicts += 1
        work.unique += conflict.reason == "unique"
        if conflict.reason == "locked" or work.conflicts > self._services.conflict_retries:
            self._leave(work, conflict)
        else:
            work.steps = self._attempt(work.message.delivery, work.unique)
            self._begin(work)

    def _leave(self, work: _Work, error: Exception) -> None:
        """Leave a message to be handled alone."""
        delivery, work.operation = work.message.delivery, None
        if work.lookup is not None:
            self._left.add(work.lookup)
        logger.debug("%s[%s] is handled alone: %r", delivery.step.name, delivery.message_id, error)


def _due(handled: Handled) -> list[Outgoing]:
    return [row for row in handled.outgoing if not row.due_at]


def _first_of_each_lookup(waiting: Sequence[_Work]) -> list[_Work]:
    firsts: dict[Lookup | None, _Work] = {}
    for work in waiting:
        firsts.setdefault(work.lookup, work)
    return list(firsts.values())
