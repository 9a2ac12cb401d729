"""Waves: the units of work of several messages proceed together, so that their operations share round trips.

All finds are performed at once, then the handlers run, then all commits are performed, then what they send is published. One that
shares a transaction with its handler's rows is committed before the next handler runs. Messages that look up their instance in
the same way are handled in successive waves, in the order of their arrival. The last message that another has sent may be handled
in the next wave, instead of being published.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from celery_sagas.engine.handling import Driver, Services
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.session import Attempt, Delivery
from celery_sagas.engine.tracing import traced
from celery_sagas.engine.unit_of_work import Handled, Steps, handle_once
from celery_sagas.errors import RevisionConflict, StoreError
from celery_sagas.observers import observers
from celery_sagas.stores.operations import Begin, Commit, Find, Operation
from celery_sagas.stores.records import ID, KEY, Found, Lookup, Outgoing

logger = logging.getLogger("celery_sagas")

#: Seconds after which a batch begins no other handler.
BATCH_S = 0.25
#: Seconds that slow handlers take, on average. A busy machine makes all of them slower, but not as slow as this.
SLOW_S = 0.01


class BatchedMessage(NamedTuple):
    """A message of a batch."""

    delivery: Delivery
    running: Callable[[], AbstractContextManager[object]]  #: makes its task the running one, while its unit of work proceeds
    #: Calls a function in the context in which its handler has ended.
    in_context: Callable[[Callable[[], None]], None] = lambda call: call()


class HandOver(NamedTuple):
    """How a message is handed over to the process that has committed it."""

    most: int  #: how many messages may follow each message of a batch
    #: Returns the message of the last of these rows, if a step may handle it at once in this process. The others were sent before
    #: it, by the same message or by those that it follows in this batch, and are published. Raises nothing.
    take: Callable[[Sequence[Outgoing]], BatchedMessage | None]


class _Committed(NamedTuple):
    """A row of the outbox that another message of the batch has committed."""

    row: Outgoing
    by: "_Work"
    since: float  #: before its commit


@dataclass(slots=True, eq=False)
class _Work:
    """A message of a batch, and its unit of work."""

    message: BatchedMessage
    steps: Steps[Handled]
    committed: _Committed | None = None  #: its row, if it was handed over
    depth: int = 0  #: how many messages it follows
    published: Sequence[Outgoing] = ()  #: rows of those
    outcome: Outcome | None = None
    conflicts: int = 0
    unique: int = 0  #: how many of the conflicts were about a key
    operation: Operation | None = None  #: for which the unit of work waits; ``None`` once it has ended
    lookup: Lookup | None = None  #: how its instance is looked up, once that is known
    instance_id: str = ""  #: once it was found
    may_set_keys: bool = True  #: by which others are found then: unless it was itself looked up by one that no instance has

    def proceed(self, answer: Any) -> None:
        """Pass the answer of the operation to the unit of work, up to its next operation.

        Raises:
            StopIteration: The message is handled.
            Exception: It is not, and nothing was written.
        """
        # after a commit no code of the user's runs
        with nullcontext() if isinstance(self.operation, Commit) else self.message.running():
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
        hand_over: Whether, and how, what a message sends is handled in the next wave. What is not handled there is published at
            the end. If the process dies before, the lease on its row ends, and a relay publishes it.
        clock: Returns seconds.
    """

    def __init__(
        self,
        services: Services,
        messages: Sequence[BatchedMessage],
        interruptions: tuple[type[Exception], ...] = (),
        *,
        publishes_each: bool = False,
        hand_over: HandOver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_cut = False  #: whether it took too long, and not all messages were begun
        self._services = services
        self._interruptions = interruptions
        self._publishes_each = publishes_each
        self._hand_over = hand_over
        self._clock = clock
        self._works = [_Work(each, self._attempt(each.delivery)) for each in messages]
        self._followers: list[_Work] = []  #: that were handed over
        self._until = clock() + BATCH_S
        self._handlers_s = 0.0  #: how long the handlers took
        self._handlers = 0  #: how many have run
        self._has_run = False  #: whether a handler has run: a slow store must not keep all of them from it
        #: The lookups, instances and sagas of messages that are left: those that follow must not overtake them.
        self._left = set[Lookup | str | Sequence[str]]()
        self._left_unfound = set[Sequence[str]]()  #: sagas of those that have found no instance: they may be of any

    @property
    def outcomes(self) -> list[Outcome | None]:
        """The outcomes of the messages, in their order."""
        return [work.outcome for work in self._works]

    @property
    def handed_over(self) -> list[Outcome | None]:
        """The outcomes of the messages that were handed over, in the order in which they were taken."""
        return [work.outcome for work in self._followers]

    def handle(self) -> None:
        """Handle the messages.

        Raises:
            Exception: One of the interruptions, or an error of the store that is no ``StoreError``. A message without an outcome
                may have been committed, which its repeat finds in the journal.
        """
        try:
            self._run_waves()
        except Exception:
            self._publish_the_rest()
            raise
        else:
            self._publish_the_rest()
        finally:
            for work in (*self._works, *self._followers):
                work.steps.close()

    def _run_waves(self) -> None:
        waiting = [work for work in self._works if self._begin(work)]
        while waiting and not self.is_cut:
            waiting += [work for work in self._run_wave(_first_of_each_lookup(waiting)) if self._begin(work)]
            waiting = [work for work in waiting if work.operation is not None and work.lookup not in self._left]

    def _attempt(self, delivery: Delivery, unique: int = 0) -> Steps[Handled]:
        timed = delivery._replace(call=partial(self._call, delivery.call))
        return traced(handle_once(timed, self._services.terms, Attempt(unique=unique)), delivery.trace)

    def _call(self, call: Callable[..., Any], function: Any, first: Any, /, **arguments: Any) -> Any:
        """Call a handler, and measure it."""
        began = self._clock()
        try:
            return call(function, first, **arguments)
        finally:
            self._handlers_s += self._clock() - began
            self._handlers += 1

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

    def _run_wave(self, wave: Sequence[_Work]) -> list[_Work]:
        """Handle messages of different instances, and publish what they send; return what was handed over instead."""
        began, done = self._clock(), list[tuple[_Work, Handled]]()
        answered = self._first_of_each_instance(self._perform(wave))
        while answered:
            answered = self._perform([work for work, answer in answered if self._proceed(work, answer, done)])
        due = [(work, [row for row in handled.outgoing if not row.due_at]) for work, handled in done]
        followers = [follower for work, rows in due if (follower := self._take_last(work, rows, began))]
        self._publish([each for each in due if each[1]], began)
        for work, handled in done:
            work.outcome = handled.outcome
            if handled.cancelled or handled.unbegun:
                self._services.revoke(handled.outcome, handled.cancelled, handled.unbegun)
        if handled_rows := [work.committed.row.id for work, _ in done if work.committed]:
            self._services.dispatcher.confirmations.add(handled_rows)
        return followers

    def _perform(self, wave: Sequence[_Work]) -> list[tuple[_Work, Any]]:
        """Perform the operations for which these wait; return them with the answers."""
        began = time.perf_counter()
        answers = self._services.backend.many([work.operation for work in wave if work.operation is not None]) if wave else []
        performed = time.perf_counter() - began
        for work in wave:
            if (trace := work.message.delivery.trace) is not None:
                trace.performed = performed
        return list(zip(wave, answers, strict=True))

    def _first_of_each_instance(self, found: Sequence[tuple[_Work, Any]]) -> list[tuple[_Work, Any]]:
        """Return the first message of each instance; the others, which have looked it up in another way, begin again.

        So does one that found nothing by an alternate key: an earlier message of its saga may be about to set that.
        """
        firsts, before = list[tuple[_Work, Any]](), set[str | Sequence[str]]()
        for work, answer in found:
            record = answer.record if isinstance(answer, Found) else None
            work.instance_id = record.id if record else ""
            work.may_set_keys = record is not None or work.lookup is None or work.lookup.property in (KEY, ID)
            may_follow = {work.instance_id} if work.may_set_keys or work.lookup is None else {work.lookup.names}
            if may_follow & self._left or (record and work.lookup and work.lookup.names in self._left_unfound):
                self._leave(work, "an earlier message, which may be of its instance, is handled alone")
            elif may_follow & before:
                self._restart(work)
            else:
                firsts.append((work, answer))
                before |= _marks_of(work)
        return firsts

    def _restart(self, work: _Work) -> None:
        """Have a message handled from its find on, in the next wave."""
        work.steps.close()
        work.steps = self._attempt(work.message.delivery, work.unique)
        self._begin(work)

    def _take_last(self, work: _Work, rows: list[Outgoing], began: float) -> _Work | None:
        """Take away the last of the rows that a message has committed, if it may be handled in this process next."""
        hand_over = self._hand_over
        if not rows or hand_over is None or work.depth >= hand_over.most or self._clock() > self._until:
            return None
        taken: list[BatchedMessage | None] = []
        self._in_context_of(work, lambda: taken.append(hand_over.take([*work.published, *rows])))
        if (message := taken[0]) is None:
            return None
        committed = _Committed(rows.pop(), work, began)
        follower = _Work(message, self._attempt(message.delivery), committed, work.depth + 1, [*work.published, *rows])
        self._followers.append(follower)
        return follower

    def _publish(self, due: Sequence[tuple[_Work, Sequence[Outgoing]]], began: float) -> None:
        """Publish what is due at once: all of it together, unless somebody listens who must see whose it is."""
        dispatch = self._services.dispatcher.dispatch
        if not self._publishes_each:
            dispatch([row for _, rows in due for row in rows], began)
            return
        for work, rows in due:
            self._in_context_of(work, partial(dispatch, rows, began))

    def _publish_the_rest(self) -> None:
        """Publish what was handed over and not handled."""
        rest = [work.committed for work in self._followers if work.committed and work.outcome is None]
        if rest:
            self._publish([(each.by, [each.row]) for each in rest], min(each.since for each in rest))

    def _in_context_of(self, work: _Work, call: Callable[[], None]) -> None:
        if self._publishes_each:
            with work.message.running():
                work.message.in_context(call)
        else:
            call()

    def _proceed(self, work: _Work, answer: Any, done: list[tuple[_Work, Handled]]) -> bool:
        """Pass an answer to a unit of work; return whether it has another operation in this wave."""
        if isinstance(work.operation, Find):
            if self._has_run and self._clock() > self._until:
                self.is_cut, work.operation = True, None
                return False
            self._has_run = True
        try:
            work.proceed(answer)
            if isinstance(work.operation, Begin):
                self._end(work, self._drive(work), done)
        except StopIteration as end:
            self._end(work, end.value, done)
        except RevisionConflict as conflict:
            self._begin_again(work, conflict)
        except self._interruptions:
            raise
        except Exception as exc:
            self._leave(work, exc)
        else:
            return work.operation is not None
        return False

    def _drive(self, work: _Work) -> Handled:
        """Handle a message in a transaction of its own, up to its commit: what it has locked keeps no other of them waiting."""
        with work.message.running():
            return Driver(self._services.backend).drive(work.steps, work.operation)

    def _end(self, work: _Work, handled: Handled, done: list[tuple[_Work, Handled]]) -> None:
        """Note that a unit of work has ended."""
        work.operation = None
        if handled.handled_before is None:
            done.append((work, handled))
        else:  # what it has left in the outbox must be published
            self._leave(work, "it was handled before")

    @property
    def is_slow(self) -> bool:
        """Whether it took too long because of its handlers, beside which it matters little that they share round trips."""
        return self.is_cut and self._handlers_s > self._handlers * SLOW_S

    def _begin_again(self, work: _Work, conflict: RevisionConflict) -> None:
        """Have a message handled once more in the next wave, unless its rivals need a pause, or a lock."""
        step = work.message.delivery.step
        for observer in observers:
            observer.conflicted(step.saga.name, step.name)
        work.conflicts += 1
        work.unique += conflict.reason == "unique"
        if conflict.reason == "locked" or work.conflicts > self._services.conflict_retries:
            self._leave(work, conflict)
        else:
            self._restart(work)

    def _leave(self, work: _Work, reason: object) -> None:
        """Leave a message to be handled alone."""
        delivery, work.operation = work.message.delivery, None
        if work.lookup:
            self._left |= {work.lookup, *_marks_of(work)}
            if not work.may_set_keys:
                self._left_unfound.add(work.lookup.names)
        logger.debug("%s[%s] is handled alone: %r", delivery.step.name, delivery.message_id, reason)


def _marks_of(work: _Work) -> set[str | Sequence[str]]:
    """Return the id of a message's instance, and the names of its saga if one that finds nothing may be of that instance."""
    names = {work.lookup.names} if work.lookup and work.may_set_keys else set()
    return {*names, *({work.instance_id} - {""})}


def _first_of_each_lookup(waiting: Sequence[_Work]) -> list[_Work]:
    firsts: dict[Lookup | None, _Work] = {}
    for work in waiting:
        firsts.setdefault(work.lookup, work)
    return list(firsts.values())
