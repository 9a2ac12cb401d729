"""The task that receives the answers of gathers' members: it collects them, and the last one ends the gather."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.app.task import Context
from kombu.utils.json import dumps, loads

from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import GATHER, ReplyKind
from celery_sagas.engine.requests.gathering import Gather, Member
from celery_sagas.errors import InvalidMessage, PublishError, StoreError
from celery_sagas.worker.celery_internals import on_finalise
from celery_sagas.worker.durable import DurableTask, add_durable_task
from celery_sagas.worker.failures.redelivery import redeliver_if_it_helps, redeliver_or_requeue
from celery_sagas.worker.headers import ADDRESS, read_address, read_retry_of, task_of
from celery_sagas.worker.runtime import Runtime, runtime_of

logger = logging.getLogger("celery_sagas")

#: What a member may be notified of, or the deadline of the gather.
_OUTCOMES = frozenset({ReplyKind.ANSWER, ReplyKind.FAILURE, ReplyKind.UNCERTAIN, ReplyKind.DEADLINE})


class GatherTask(DurableTask):
    """Receives the outcome of a member: its answer, before the arguments that the gather put on its ``link``; or a failure."""

    abstract = True

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, producer: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """Collect the answer, or publish it.

        Celery calls this when a member has ended. In case of an error, the message is handled as one from a worker without this
        library.
        """
        if producer is None and not kwargs and self.collects(args or (), options.get("headers") or {}):
            return self.AsyncResult(task_id or "")
        return super().apply_async(args, kwargs, task_id, producer, *rest, **options)

    def collects(self, args: Sequence[Any], headers: Mapping[str, Any]) -> bool:
        """Collect an answer in this process, if the saga is defined here and its instance is found; return whether it did."""
        if self.app.conf.task_always_eager or len(args) != 5:
            return False
        try:
            value, saga, request, position, task = args
            address, definition = read_address(Context(headers=dict(headers), task=self.name)), registry.saga_named(saga)
            if address is None or definition is None or address.came != ReplyKind.ANSWER:
                return False
            member = Member(position, ReplyKind.ANSWER, loads(dumps(value)), task, address.id)  # as if it were published
            return _collect(runtime_of(self.app), Gather(definition, saga, address.instance_id, request), member)
        except Exception as exc:
            logger.debug("an answer to the gather %s is published: %r", args[2], exc)
            return False


def take(self: GatherTask, value: Any = None, saga: str = "", request: str = "", position: int = -1, task: str = "") -> None:
    """Receive the outcome of a member of a gather, or the end of the gather's time.

    Args:
        self: The task.
        value: The answer, or the failure.
        saga: The stored name of the saga that gathers.
        request: The id of its request.
        position: The member's position.
        task: The member's task.
    """
    address, definition = read_address(self.request), registry.saga_named(saga)
    if address is None or address.came not in _OUTCOMES or definition is None:
        known = address is not None and address.came in _OUTCOMES
        problem = ("saga", f"this worker knows no saga {saga!r}") if known else (ADDRESS, "the header has no outcome of a member")
        raise InvalidMessage(self.name, [problem])
    runtime, gather = runtime_of(self.app), Gather(definition, saga, address.instance_id, request)
    try:
        if address.came == ReplyKind.DEADLINE:
            _conclude(self, runtime, gather)
        elif not _collect(runtime, gather, Member(position, _outcome(address.came), value, task, address.id)):
            level = logging.WARNING if read_retry_of(self.request) else logging.DEBUG
            logger.log(level, "%s[%s] comes too late for the gather %s of %s", task, address.id, request, saga)
    except StoreError as exc:
        redeliver_if_it_helps(self, runtime.publisher, exc)
        raise


def gather_of(request: Any) -> Gather | None:
    """Return the gather of a request's message; ``None`` if it has none, or its saga is not defined here."""
    args: Sequence[Any] = request.args or ()
    if task_of(request) != GATHER or len(args) < 3 or (address := read_address(request)) is None:
        return None
    definition = registry.saga_named(str(args[1]))
    return None if definition is None else Gather(definition, str(args[1]), address.instance_id, str(args[2]))


def _outcome(came: str) -> ReplyKind:
    """Return the kind of a member's outcome: the first one counts, whatever follows."""
    return ReplyKind.FAILURE if came == ReplyKind.UNCERTAIN else ReplyKind(came)


def _collect(runtime: Runtime, gather: Gather, member: Member) -> bool:
    """Collect the outcome of a member; return whether an instance waits for it."""
    try:
        return runtime.gathering_of(gather.saga).collect(gather, member)
    except PublishError as exc:
        logger.warning("the gather %s of %s is complete, and is ended by a relay later: %s", gather.request, gather.name, exc)
        return True


def _conclude(task: GatherTask, runtime: Runtime, gather: Gather) -> None:
    """End a gather whose time is over. No other message does that: while the broker is away, this one is redelivered later."""
    try:
        runtime.gathering_of(gather.saga).conclude(gather, is_over=True)
    except PublishError as exc:
        if exc.connection:
            redeliver_or_requeue(task, runtime.publisher, exc)
        raise


def install_gather(app: Celery) -> None:
    """Register the task that receives the answers of members."""
    add_durable_task(app, GatherTask, take, GATHER, {"serializer": "json"})


on_finalise(install_gather)
