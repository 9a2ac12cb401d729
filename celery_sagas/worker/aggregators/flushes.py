"""The flush requests that follow from buffered items, each published as a message."""

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from celery import Celery

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.engine.aggregators.buffering import buffer
from celery_sagas.engine.aggregators.sending import SendTerms
from celery_sagas.errors import PublishError
from celery_sagas.stores.items import NewItem
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.serialization import serialized
from celery_sagas.worker.timeouts import due_time, waiting

logger = logging.getLogger("celery_sagas")


def add_items(runtime: Runtime, definition: AggregatorDefinition, items: Sequence[tuple[str, NewItem]]) -> int:
    """Buffer items from this process; return how many are new.

    Raises:
        BufferFull: A group is full.
        StoreUnavailable: The store cannot be reached.
    """
    ask_for = functools.partial(ask, runtime, definition)
    return buffer(runtime.batches.aggregates, runtime.rules_of(definition), items, ask_for)


def ask(runtime: Runtime, definition: AggregatorDefinition, group: str, delay_s: float = 0.0) -> bool:
    """Request the flush of a group; if the broker is away, a relay does so when the flush request has expired.

    Returns:
        Whether the broker is available.
    """
    return _ask(runtime, definition, [group], delay_s)


def ask_for_the_rest(runtime: Runtime, definition: AggregatorDefinition, groups: Sequence[str]) -> None:
    """Request the flush of groups in two messages: so two processes of the pool go on with those of one."""
    middle = -(-len(groups) // 2)
    for part in filter(None, (groups[:middle], groups[middle:])):
        if not _ask(runtime, definition, part):
            return


def _ask(runtime: Runtime, definition: AggregatorDefinition, groups: Sequence[str], delay_s: float = 0.0) -> bool:
    try:
        publish_flush(runtime, definition, groups, delay_s)
    except PublishError as exc:
        shown = f"the group {groups[0]!r}" if len(groups) == 1 else f"{len(groups)} groups"
        logger.warning("%s: the flush of %s is asked for by a relay later: %s", definition.name, shown, exc)
        return False
    return True


def publish_flush(runtime: Runtime, definition: AggregatorDefinition, groups: Sequence[str], delay_s: float = 0.0) -> None:
    """Publish a message that flushes groups, at once or later.

    Raises:
        PublishError: It was not confirmed.
    """
    sent, publisher = runtime.app.tasks[definition.flush_name].si(*groups), runtime.publisher
    if delay_s:
        sent.set(countdown=delay_s)
    sent.freeze()
    publish = functools.partial(publisher.publish_signature, sent)
    if publisher.inline:
        _in_turn(publish)
    else:
        publish()


def send_terms_of(app: Celery, state_bytes: int) -> SendTerms:
    """Return what the functions of an app's aggregators send messages with.

    Args:
        app: The app.
        state_bytes: The maximum size of a message.
    """
    serialize = functools.partial(serialized, app, max_bytes=state_bytes)
    return SendTerms(serialize, lambda after: waiting(due_time(after)), state_bytes)


class _Turns(threading.local):
    """The work that waits in this thread (or greenlet); ``None`` while nothing runs."""

    waiting: deque[Callable[[], None]] | None = None


_turns = _Turns()


def _in_turn(work: Callable[[], None]) -> None:
    """Do work now, and then the work that it adds; if other work is being done in this thread, leave it to that call.

    Thus many flushes of a group run in the order of its items, and not nested in each other. An error propagates, and the
    work that still waits is dropped.
    """
    if _turns.waiting is not None:
        _turns.waiting.append(work)
        return
    _turns.waiting = deque([work])
    try:
        while _turns.waiting:
            _turns.waiting.popleft()()
    finally:
        _turns.waiting = None
