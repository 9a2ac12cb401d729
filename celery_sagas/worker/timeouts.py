"""Timeouts: messages that an instance schedules for itself, once or in a series, and that end with it."""

import logging
import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import crontab

from celery_sagas.clock import LAST_MS, time_s
from celery_sagas.core.context import StepContext
from celery_sagas.core.correlation import check_own_key
from celery_sagas.core.delays import Delay, seconds_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import address_headers
from celery_sagas.worker.series import in_series, series_of
from celery_sagas.worker.targets import step_of

logger = logging.getLogger("celery_sagas")

_NAME_CHARACTERS = 255


def due_time(after: Delay | None, at: datetime | None = None, *, since: int | None = None) -> int:
    """Return when something is due, in milliseconds since the epoch.

    Args:
        after: A ``timedelta`` or seconds.
        at: An aware time.
        since: The start of ``after``, in milliseconds since the epoch; now if left out.

    Raises:
        TypeError: Not exactly one of them is given, or it is of another type.
        ValueError: The time is naive, or beyond all dates.
    """
    if (after is None) == (at is None):
        raise TypeError("a timeout is due after= a time or at= a time: give one of them")
    now_s = time_s() if since is None else since / 1000
    due_s = now_s + seconds_of("after", after) if after is not None else _timestamp(at)
    if not math.isfinite(due_s) or due_s * 1000 > LAST_MS:
        raise ValueError(f"{after if after is not None else at!r} is beyond all dates")
    return max(1, int(due_s * 1000))


def waiting(due_at: int) -> int:
    """Return a future due time, or 0: messages that are due are sent at once, and in eager mode all are."""
    is_due = due_at <= time_s() * 1000 or current_app().conf.task_always_eager
    return 0 if is_due else due_at


def schedule(
    context: StepContext,
    saga: SagaDefinition,
    target: Any,
    *,
    after: Delay | None,
    at: datetime | None,
    every: timedelta | crontab | None,
    name: str | None,
) -> str:
    """Add a timeout or a series to the instance on which a step runs; return its id.

    Raises:
        TypeError: The target cannot be scheduled, or a time has another type.
        ValueError: A time is naive, or beyond all dates; or the series never comes, or too often.
        ConfigurationError: It is a crontab, and the app's time zone has no name.
        MisuseError: It does not belong to this saga.
        InvalidMessage: Its arguments do not fit the step.
        CorrelationError: They name another instance.
    """
    start = due_time(after, at) if every is None or after is not None or at is not None else None
    first, series = (start or 1, None) if every is None else series_of(every, start)
    _check_name(name)
    sending = context.require_sending("schedule")
    step, signature = step_of(saga, target, "a timeout")
    signature = (current_app().tasks[step.name].si() if signature is None else signature).clone()
    arguments = step.arguments.validate(step.arguments.bind(signature.args or (), signature.kwargs or {}))
    check_own_key(step.rule, arguments, saga.name, context.view.key)
    id = sending.next_id()
    address = address_headers(context.view.id, id, first if series else 0)
    signature.options["headers"] = {**(signature.options.get("headers") or {}), **address}
    message = sending.serialize(signature, lambda: id)
    if message.due_at:
        raise TypeError("schedule() was given a signature with a countdown or eta: use after= or at=")
    if signature.options.get("expires") is not None:
        raise TypeError("schedule() was given a signature that expires: a timeout ends with its instance, or by unschedule()")
    message = due_later(message, first, step.name)
    context.pending.schedule(name or id, in_series(message, first, series) if series else message, first, series)
    return id


def due_later(message: SerializedMessage, at: int, step: str) -> SerializedMessage:
    """Return a message that is sent to a step at a time, or not at all in eager mode."""
    if not current_app().conf.task_always_eager:
        return replace(message, due_at=waiting(at))
    _warn_of_eager_mode(step)
    return replace(message, due_at=at)


def _warn_of_eager_mode(step: str) -> None:
    """Log, once in a process, that timeouts are not sent in eager mode."""
    if not _told:
        _told.append(True)
        logger.warning("%s is due later, and nothing that is scheduled runs while task_always_eager is set", step)


_told: list[bool] = []


def _check_name(name: str | None) -> None:
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS):
        raise TypeError(f"the name of a timeout is a text of 1 to {_NAME_CHARACTERS} characters, not {name!r}")


def _timestamp(at: Any) -> float:
    if not isinstance(at, datetime):
        raise TypeError(f"at= takes a datetime, not {type(at).__name__}")
    if at.tzinfo is None:
        raise ValueError(f"at= takes an aware time, and {at!r} names no time zone")
    return at.timestamp()
