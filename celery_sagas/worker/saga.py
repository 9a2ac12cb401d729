"""``Saga``: the base class of users' sagas. Its fields are the state, and its decorators make the steps."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from celery import Celery
from celery.schedules import crontab

from celery_sagas.core.delays import Backoff, Delay
from celery_sagas.core.requests.answers import Failure, Gathered
from celery_sagas.core.requests.undo import RETRY, WITHIN_S
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.signatures import AnySignature, AnyTask, Piped, SignatureOf
from celery_sagas.core.state import State
from celery_sagas.engine.listing import Listing, listing
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.polling import Polling
from celery_sagas.engine.query import copy_of, outcome_of, refuse_in_task, wait_for
from celery_sagas.errors import DefinitionError
from celery_sagas.worker.asking.undo import cancel, compensate
from celery_sagas.worker.awaiting import finished, finished_async, in_thread
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.declaring import Declared
from celery_sagas.worker.requests.sending import Asking, gather, reply, request
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import current_session
from celery_sagas.worker.step import Step
from celery_sagas.worker.timeouts import due_time, schedule, waiting

SagaT = TypeVar("SagaT", bound="Saga")
P = ParamSpec("P")
R = TypeVar("R")


class Saga(Declared):
    """The state of a long-running, correlated process, kept between the messages of its steps.

    ``class Order(Saga, correlate_by="order_id", also_by="tracking")``. The class keywords:

    * ``correlate_by``: the field that is the key of an instance, never null; several make one composite key. Without it the
      class is abstract: fields and methods for others to inherit, no steps.
    * ``also_by``: alternate keys, each unique among live instances; a null one is not indexed. Those of an abstract class are
      inherited.
    * ``search_by``: fields by whose values ``all`` lists the instances, and ``celery sagas list``; those of an abstract class are
      inherited.
    * ``status_by``: the field that holds the status, annotated with a ``Literal`` of texts or an ``Enum`` of texts; that of an
      abstract class is inherited. Steps name statuses with ``when=`` and ``to=``.
    * ``name``: the stored name (default: the class name in snake case); ``formerly``: names that it had earlier.
    * ``schema_version``: of the state (default 1); raise it with an ``upgrade`` of your own.
    * ``history``: what the journal keeps of each message that a step has handled. ``"names"``: which fields it has changed;
      ``"values"``: also what they were, and are; ``"messages"``: the names, and its arguments, so that an instance can be
      replayed; ``("messages", "values")``: all of these; ``"off"``, the default: nothing.
    * ``keep``: for how long ``outcome`` has the final state of a finished instance: a ``timedelta`` or seconds, no longer than
      ``saga_journal_retention``.
    * ``max_idle``: after how long without a message ``celery sagas stuck`` lists an instance for which neither a timeout nor a
      deadline is due: a ``timedelta`` or seconds.
    * ``backend``: the backend that stores the instances, by its name in ``saga_backends``, instead of ``saga_backend``; that of
      an abstract class is inherited.
    """

    def send(
        self,
        signature: SignatureOf[R] | Piped,
        *,
        then: "Step[Self, Concatenate[R, ...], Any] | AnySignature | str | None" = None,
        otherwise: "Step[Self, Concatenate[Failure, ...], Any] | AnySignature | str | None" = None,
        within: Delay | None = None,
        after: Delay | None = None,
        undo: "AnyTask | AnySignature | None" = None,
        retry: Backoff | None = None,
        progress: "Step[Self, Concatenate[Any, ...], Any] | AnySignature | str | None" = None,
    ) -> str:
        """Send a message: stored with this step's commit, published after it, or not at all.

        A sent message survives the end of the instance; use ``schedule`` for one that ends with it. Its outcome is routed to this
        very instance, or to none if it has ended. One outcome is handled once; but an answer that comes after its deadline, when
        ``otherwise`` has run, still runs ``then``, and ``order.saga.message.late`` is true.

        Args:
            signature: A signature of one task, or a chain. It is encoded now: later changes of its arguments have no effect. A
                ``countdown`` or ``eta`` in its options has the effect of ``after``.
            then: The step that receives the answer, before its other arguments: the result of the task, or of the chain's last. A
                step, its name, or a signature of it (``quoted.s(provider="ups")``; ``.si()`` takes no answer). From a step
                that creates an instance the answer is what that instance gives to ``reply``, or ``None`` when it completes.
            otherwise: The step that receives a ``Failure`` instead, once the task's own retries are exhausted.
            within: How long an answer may take: a ``timedelta`` or seconds, from when the message is sent. After that
                ``otherwise`` receives a failure of the kind ``"deadline"``, and the message expires.
            after: How long it waits in the backend, not in the broker; a ``timedelta`` or seconds.
            undo: The task that takes back what this one has done, once ``compensate`` or ``cancel`` is called. A task, or a
                signature ``cancel.s(…)``, is given the answer before its arguments, and runs if there is one; ``cancel.si(…)``
                is given none, and runs if the message was sent, whatever came of it. It needs ``within`` and ``otherwise``.
            retry: How often the task is asked again, under a new id, if it fails, is lost, or does not answer ``within`` the
                time, which counts each time. ``otherwise`` receives the last failure.
            progress: The step that receives interim answers, before its other arguments: what an instance that the message
                creates gives to ``reply(…, last=False)``, as long as the request is open. Of a chain, that of the last task.

        Returns:
            The message's id; for a chain, its last task's. If the same message is handled again, it sends under the same id.

        Raises:
            TypeError: It is a group or a chord, or not a signature; ``within`` or ``retry`` is given without ``otherwise``, or
                ``undo`` without both; a chain is given ``undo`` or ``retry``; or ``undo`` takes the answer, and ``then`` leaves
                it out.
            ValueError: ``within`` is over before it begins, or beyond all dates.
            InvalidMessage: It cannot be encoded as JSON, or is larger than ``saga_max_state_bytes``; its task, or ``undo``, does
                not accept these arguments; or a step has no parameter for the outcome, or does not accept it.
            MisuseError: No step runs on this object; or a step does not belong to this saga.
        """
        context = self._in_step("send")
        due_at = None if after is None else waiting(due_time(after))
        given = Asking(then, otherwise, within, undo, retry, progress)
        if not given.is_request:
            return context.require_sending("send").send(signature, due_at)
        return request(context, _concrete(type(self)), signature, given, due_at)

    def gather(
        self,
        signatures: Iterable[SignatureOf[R] | Piped],
        *,
        then: "Step[Self, Concatenate[Gathered[R], ...], Any] | AnySignature | str",
        otherwise: "Step[Self, Concatenate[Gathered[R], ...], Any] | AnySignature | str | None" = None,
        at_least: int | None = None,
        within: Delay | None = None,
        undo: "AnyTask | AnySignature | None" = None,
        early: bool = False,
    ) -> str:
        """Send many messages, and have one step receive a ``Gathered`` of all outcomes.

        It runs once: when each member has answered or failed, or when ``within`` has passed; with ``early`` as soon as enough
        have answered. Later outcomes are dropped.
        Outcomes are collected in the backend, beside the instance, so that a thousand answers are one message to it. The first
        outcome of each member counts.

        Args:
            signatures: The members, 1 to 1,000: each of one task, or a chain, whose last task answers. They are encoded now.
            then: The step that receives the ``Gathered``, before its other arguments: a step, its name, or a signature of it.
            otherwise: The step that receives it instead of ``then`` if fewer than ``at_least`` members have answered. Without
                it ``then`` receives it in any case.
            at_least: How many members must answer; all if left out.
            within: How long it may take: a ``timedelta`` or seconds from now. After that the members expire, and those without an
                outcome are ``silent``.
            undo: The task that takes back what a member has done: it is given that member's answer before its arguments. Once
                the gather has ended, each member that has answered can be undone by itself. It needs ``within`` and
                ``otherwise``.
            early: Whether it ends as soon as ``at_least`` members have answered. With the commit of the step that gets these
                answers the others are revoked; what they answer is dropped.

        Returns:
            The gather's id. If the same message is handled again, it sends under the same ids.

        Raises:
            TypeError: A member is a group or a chord, or not a signature; ``within`` is given without ``otherwise``, or ``undo``
                without both; a member is a chain and has an ``undo``; or ``early`` is given without ``at_least``, or with
                ``undo``.
            ValueError: There are too few or too many members, or ``at_least`` is not between 1 and their number.
            InvalidMessage: A member cannot be encoded as JSON, or is larger than ``saga_max_state_bytes``; its task does not
                accept these arguments; or a step has no parameter for the outcomes, or does not accept them.
            MisuseError: No step runs on this object; or a step does not belong to this saga.
            ConfigurationError: The backend has no aggregators, and collects no answers: set ``saga_aggregator_backend``.
        """
        context, saga = self._in_step("gather"), _concrete(type(self))
        return gather(context, saga, signatures, then, otherwise, at_least, within, undo, early)

    def compensate(
        self,
        *,
        then: "Step[Self, ..., Any] | AnySignature | str | None" = None,
        parallel: bool = False,
        retry: Backoff = RETRY,
        within: Delay = WITHIN_S,
    ) -> None:
        """Undo what the requests of this instance have done: all that were sent with ``undo=`` before, the last outcome first.

        From this step's commit on, the outcome of such a request goes to its undo, and to no step. If a request has no outcome
        yet, that is awaited, at most until its deadline: an undo that were sent at once might overtake the work. What this very
        step has sent with ``undo=`` before is not sent at all. Other messages and timeouts are handled as ever. If it is called
        again meanwhile, what was sent since then is undone first, and what is given last applies.

        An undo that fails, or does not answer in time, is sent again under a new id. When that has failed too often it becomes
        a dead letter, an ``UndoFailed``: retry it when the cause is mended, or discard it, and the undo counts as done. Until
        then what is left waits for it.

        Args:
            then: The step that runs once everything is undone, even if there is nothing to undo; it receives no outcome. A
                step, its name, or a signature of it.
            parallel: Whether everything is undone at once, rather than one after the other.
            retry: How often each undo is tried again, and after which pauses.
            within: How long the answer to an undo may take, each time: a ``timedelta`` or seconds.

        Raises:
            TypeError: ``then``, ``retry`` or ``within`` has another type.
            ValueError: ``retry`` or ``within`` is out of its bounds.
            InvalidMessage: The arguments do not fit the step.
            MisuseError: The step does not belong to this saga; the instance was completed; or no step runs on this object.
        """
        context = self._in_step("compensate")
        compensate(context, _concrete(type(self)), then, parallel=parallel, retry=retry, within=within)

    def cancel(self, request: str) -> bool:
        """Stop waiting for a request, with this step's commit.

        Its message is withdrawn if it is not due yet, and its task is revoked. Of a gather, members that are not published yet
        are withdrawn, and the others revoked.

        Its task may have begun, and not notice. What comes of it is dropped, unless the request has an ``undo``: that runs as
        ``compensate`` would have it run, if the instance lives that long. A task whose undo takes the answer is not revoked.

        Args:
            request: The request's id, as ``send`` or ``gather`` has returned it.

        Returns:
            Whether it was waited for: ``False`` if it has an outcome, was cancelled before, or is unknown.

        Raises:
            MisuseError: No step runs on this object.
        """
        return cancel(self._in_step("cancel"), request)

    def reply(self, answer: Any = None, *, last: bool = True) -> bool:
        """Answer the ``send(…, then=)`` that started this instance, with this step's commit; now or in a year.

        The first one that is the last counts, and nothing is sent after it. An instance that completes without one answers with
        ``None``.

        Args:
            answer: Any value that can be encoded as JSON.
            last: Whether it is the answer. If not, it is an interim one, for the step in ``send(…, progress=)``: there may be any
                number of them, and the request stays open.

        Returns:
            Whether it was awaited: ``False`` if the message that started it requested no answer, or has one; or, of an interim
            one, if it named no step for these. Then nothing is sent.

        Raises:
            TypeError: ``last`` is no ``bool``.
            InvalidMessage: It cannot be encoded, or is too large.
            MisuseError: No step runs on this object.
        """
        return reply(self._in_step("reply"), answer, is_last=last)

    def schedule(
        self,
        target: "Step[Self, ..., Any] | AnySignature | str",
        *,
        after: Delay | None = None,
        at: datetime | None = None,
        every: timedelta | crontab | None = None,
        name: str | None = None,
    ) -> str:
        """Schedule a timeout, or a series of them: a message to this very instance, which ends with it.

        It is handled by this instance or by none: not if it was cancelled or replaced in the meantime, wherever it waited, and
        not by a later instance with the same key. It waits in the backend, so that it may be due in a year.

        A series goes on whatever becomes of its occurrences: one that fails is a dead letter. What was missed is not made up for:
        the next occurrence is always in the future, and one that was due when another one was handled is dropped.

        Args:
            target: A step of this saga, a signature of one (``remind.s("again")``), or its name.
            after: How long from now: a ``timedelta`` or seconds.
            at: When: an aware time, instead of ``after``.
            every: Again and again: after each ``timedelta`` of at least a second, without drift; or at the times of a ``crontab``
                of Celery's, in the app's time zone of now. ``after`` or ``at`` is when it begins, with the first time of
                a ``timedelta``, or with the next one of a ``crontab``; by default, as if it had last come now.
            name: A timeout with a name replaces the one with the same name; without a name, each call adds a timeout.

        Returns:
            Its id, with which ``unschedule`` cancels it if it has no name.

        Raises:
            TypeError: None of ``after``, ``at`` and ``every`` is given, or both of the first two; or one, or the target, is of
                another type.
            ValueError: The time is naive, or beyond all dates; or the series would come too often, or never.
            InvalidMessage: The arguments do not fit the step.
            MisuseError: The target does not belong to this saga, or no step runs on this object.
            ConfigurationError: ``every`` is a ``crontab``, and the app's ``timezone`` has no name.
        """
        context, saga = self._in_step("schedule"), _concrete(type(self))
        return schedule(context, saga, target, after=after, at=at, every=every, name=name)

    def unschedule(self, name: str) -> None:
        """Cancel the timeout or the series with a name, or this id; without one, do nothing.

        Raises:
            MisuseError: No step runs on this object.
        """
        self._in_step("unschedule").pending.unschedule(name)

    @overload
    @classmethod
    def find(cls, key: object, /) -> Self | None: ...
    @overload
    @classmethod
    def find(cls, /, *, id: str) -> Self | None: ...
    @overload
    @classmethod
    def find(cls, /, **by: object) -> Self | None: ...
    @classmethod
    def find(cls, key: object = None, /, **by: object) -> Self | None:
        """Return a fresh, read-only copy of an instance, or ``None``.

        Args:
            key: The correlation key; a tuple of all parts for a composite one.
            **by: Instead, an alternate key, ``tracking="1Z…"``, the parts of the correlation key, or the instance's id,
                ``id=order.saga.id``. A key of the saga's own that is named ``id`` takes precedence over the instance's id.

        Raises:
            DefinitionError: It is looked up by a property that is not a key of the saga, or by several at once.
            CorrelationError: The value is null, or not a value of the key's type.
            StoreError: The store is unavailable, or the instance cannot be read.
        """
        saga, runtime = _concrete(cls), runtime_of(current_app())
        found: Self | None = copy_of(runtime.backends.of(saga), saga, key, by, runtime.read_outcomes)
        return found

    @classmethod
    def all(cls, /, *, oldest_first: bool = False, **by: object) -> Listing[Self]:
        """Return the live instances of this saga, to iterate over or to count.

        Those that were committed last come first, within almost nine minutes those that began last.

        Args:
            oldest_first: The opposite order; not with a field.
            **by: One field in ``search_by``, and its value: only instances with this value, those that began last first.

        Raises:
            DefinitionError: The saga is not listed by this field.
            CorrelationError: The value is null, or not a value of the field's type.
            TypeError: ``oldest_first`` is given with a field.
            ConfigurationError: When it is iterated over: the backend lists no instances.
            StoreError: When it is iterated over: the store is unavailable, or an instance cannot be read.
        """
        saga, runtime = _concrete(cls), runtime_of(current_app())
        return listing(runtime.backends.of(saga), saga, by, runtime.read_outcomes, oldest_first=oldest_first)

    @classmethod
    def outcome(cls, key: object = None, /, **by: object) -> Outcome[Self] | None:
        """Return how the newest finished instance with this key ended, while it is remembered.

        With the class keyword ``keep`` its ``state`` is the final state, for so long: a read-only copy.

        Args:
            key: The correlation key; a tuple of all parts for a composite one.
            **by: The parts of the correlation key by name.

        Raises:
            DefinitionError: The properties are not those of the correlation key.
            CorrelationError: The value is null, or not a value of the key's type.
            StoreError: The store is unavailable, or the final state cannot be read.
        """
        saga = _concrete(cls)
        return outcome_of(runtime_of(current_app()).backends.of(saga), saga, key, by)

    @overload
    @classmethod
    def wait(cls, key: object = None, /, *, until: Callable[[Self], object], timeout: Delay, **by: object) -> Self: ...
    @overload
    @classmethod
    def wait(cls, key: object = None, /, *, until: Literal["completed"], timeout: Delay, **by: object) -> Outcome[Self]: ...
    @classmethod
    def wait(cls, key: object = None, /, *, until: Any, timeout: Delay, **by: object) -> Any:
        """Wait for a change that messages make to an instance: in a script, a web handler or a test, never in a task.

        The instance need not exist yet. It is checked repeatedly, with pauses of up to half a second.

        Args:
            key: The correlation key; a tuple of all parts for a composite one.
            until: A function of the state, ``lambda order: order.paid``, which receives a fresh, read-only copy at each check; or
                ``"completed"``.
            timeout: How long at most: a ``timedelta`` or seconds; with 0 it is checked once.
            **by: An alternate key, the parts of the correlation key by name, or the instance's ``id``; with ``"completed"`` the
                parts of the correlation key alone.

        Returns:
            The copy for which ``until`` is true; with ``"completed"`` the result of ``outcome``.

        Raises:
            WaitTimeout: The condition was not met in time; it is a ``TimeoutError``.
            SagaNotFound: The instance existed and has completed, and ``until`` was true at none of the checks.
            MisuseError: It was called inside a task.
            TypeError: ``until`` or ``timeout`` is of another type.
            ValueError: ``timeout`` is negative.
            DefinitionError: It is looked up by a property that is not a key of the saga, or that the journal does not record.
            CorrelationError: The value is null, or not a value of the key's type.
            StoreError: The store is unavailable, or the instance cannot be read.
        """
        app = current_app()
        refuse_in_task(f"{cls.__qualname__}.wait", current_session())
        return finished(app, partial(_waiting, app, _concrete(cls), key, by, until, timeout))

    @overload
    @classmethod
    async def find_async(cls, key: object, /) -> Self | None: ...
    @overload
    @classmethod
    async def find_async(cls, /, *, id: str) -> Self | None: ...
    @overload
    @classmethod
    async def find_async(cls, /, **by: object) -> Self | None: ...
    @classmethod
    async def find_async(cls, key: object = None, /, **by: object) -> Self | None:
        """Return what ``find`` returns, without blocking the event loop: the backend is waited for in a thread."""
        found: Self | None = await in_thread(current_app(), partial(cls.find, key, **by))
        return found

    @classmethod
    async def outcome_async(cls, key: object = None, /, **by: object) -> Outcome[Self] | None:
        """Return what ``outcome`` returns, without blocking the event loop: the backend is waited for in a thread."""
        return await in_thread(current_app(), partial(cls.outcome, key, **by))

    @overload
    @classmethod
    async def wait_async(
        cls, key: object = None, /, *, until: Callable[[Self], object], timeout: Delay, **by: object
    ) -> Self: ...
    @overload
    @classmethod
    async def wait_async(
        cls, key: object = None, /, *, until: Literal["completed"], timeout: Delay, **by: object
    ) -> Outcome[Self]: ...
    @classmethod
    async def wait_async(cls, key: object = None, /, *, until: Any, timeout: Delay, **by: object) -> Any:
        """Wait as ``wait`` does, without blocking the event loop: between two checks no thread is held.

        Each check, and so ``until``, runs in a thread.
        """
        app = current_app()
        refuse_in_task(f"{cls.__qualname__}.wait_async", current_session())
        return await finished_async(app, partial(_waiting, app, _concrete(cls), key, by, until, timeout))


def _waiting(app: Celery, saga: SagaDefinition, key: object, by: Mapping[str, object], until: Any, timeout: Any) -> Polling[Any]:
    runtime = runtime_of(app)
    return wait_for(runtime.backends.of(saga), saga, key, by, until=until, timeout=timeout, read_outcomes=runtime.read_outcomes)


def _concrete(cls: type[State]) -> SagaDefinition:
    if cls.__saga__ is None:
        raise DefinitionError(cls.__qualname__, "the saga is abstract", "Give it correlate_by=")
    return cls.__saga__
