"""Series of timeouts: what ``schedule(every=)`` takes, and how a relay derives one occurrence from the one before."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab

from celery_sagas.clock import time_s
from celery_sagas.core.encoding import check_decoded
from celery_sagas.core.ids import derived_id
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.series import Crontab, Interval, Series, series_from_json
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.records import OutboxRow
from celery_sagas.worker import tracing
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import ADDRESS
from celery_sagas.worker.serialization import SERIES

_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=36_500)
_MILLISECOND = timedelta(milliseconds=1)


def series_of(every: Any, start: int | None) -> tuple[int, Series]:
    """Return when a series is due for the first time, in milliseconds since the epoch, and its rule.

    Args:
        every: A ``timedelta`` or a ``crontab``.
        start: When it begins; milliseconds since the epoch. ``None``: as if it had last been due now.

    Raises:
        TypeError: ``every`` is neither.
        ValueError: It is too short or too long, or never comes.
        ConfigurationError: The app's time zone has no name.
    """
    now = int(time_s() * 1000)
    if isinstance(every, timedelta):
        if not _SHORTEST <= every <= _LONGEST:
            raise ValueError(f"every={every!r} is not between a second and a hundred years")
        first = now + every // _MILLISECOND if start is None else start
        return first, Interval(first, every // _MILLISECOND)
    if type(every) is crontab:  # a subclass may compute its times in another way
        rule = _crontab(every)
        return rule.following(now if start is None else max(now, start - 1)), rule
    raise TypeError(f"every= takes a timedelta or a celery.schedules.crontab, not {type(every).__name__}")


def _crontab(every: Any) -> Crontab:
    fields = (every.minute, every.hour, every.day_of_month, every.month_of_year, every.day_of_week)
    minutes, hours, days, months, weekdays = (tuple(sorted(numbers)) for numbers in fields)
    return Crontab(minutes, hours, days, months, weekdays, _zone_name())


def _zone_name() -> str:
    """Return the name of the app's time zone."""
    zone: Any = current_app().timezone
    name = str(getattr(zone, "key", None) or getattr(zone, "zone", None) or zone)  # zone: of pytz
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ConfigurationError(
            f"the app's time zone, {name!r}, is none by whose name every process finds it, as a crontab needs",
            "Set timezone to a name such as 'Europe/London'",
        ) from exc
    return name


def in_series(message: SerializedMessage, at: int, series: Series) -> SerializedMessage:
    """Return a message as the first occurrence of a series: a relay publishes it, even if it is due at once."""
    payload = {**json.loads(message.payload), SERIES: series.to_json()}
    if tracing.tracer is not None:
        tracing.tracer.forget(payload["options"]["headers"])
    return replace(message, payload=json.dumps(payload), due_at=at)


def next_occurrence(row: OutboxRow, now: int) -> OutboxRow:
    """Return the row of a series with its next occurrence in the future; ids derive from the series and the time.

    Args:
        row: Its row.
        now: Milliseconds since the epoch.

    Raises:
        ValueError: It cannot be read here.
    """
    try:
        check_decoded(row.payload)
        sent = json.loads(row.payload)  # not kombu's, which would decode values of arguments
        due_at = series_from_json(sent[SERIES]).following(max(now, row.due_at))
        options = sent["options"]
        address = options["headers"][ADDRESS]
        address["due"] = due_at
        options["task_id"] = id = derived_id(address["timeout"], str(due_at))
    except (KeyError, TypeError) as exc:
        raise ValueError(f"it is no series: {exc!r}") from exc
    return row._replace(message_id=id, payload=json.dumps(sent), due_at=due_at, attempts=0)
