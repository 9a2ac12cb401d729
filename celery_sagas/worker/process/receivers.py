"""Signal receivers: they inspect messages that a running task publishes, and close connections when a process ends.

Celery swallows a receiver's exceptions, so that a receiver can enforce nothing. Only those of ``import_modules`` are raised,
by Celery's loader.
"""

import logging
import sys
from functools import partial
from types import FrameType
from typing import Any

from celery import Celery, signals

from celery_sagas.engine.session import Session
from celery_sagas.settings import backend_urls
from celery_sagas.stores.urls import check_secrets
from celery_sagas.worker import tracing
from celery_sagas.worker.celery_internals import current_app, running_requests
from celery_sagas.worker.failures.notifications import notify_of_eager_failure
from celery_sagas.worker.headers import hand_over, stamp, stamp_publication
from celery_sagas.worker.runtime import close_runtime, runtime_of
from celery_sagas.worker.sessions import current_session, new_publication, replacing_publication

logger = logging.getLogger("celery_sagas")

#: Modules whose frames do not identify the publishing code.
_LIBRARIES = frozenset({"celery", "kombu", "celery_sagas", "vine"})


def look_at_message(sender: Any = None, headers: dict[str, Any] | None = None, **_: object) -> None:
    """Put the causation and trace of the running task on a message that it publishes; log one that a step should have sent."""
    if headers is None:
        return
    if tracing.tracer is not None and not tracing.tracer.is_in(headers):
        for name, value in tracing.tracer.headers().items():
            headers.setdefault(name, value)
    session = current_session()
    if session is None:
        stamp_publication(headers, new_publication)
        return
    if headers.get("id") == session.task_id:
        _hand_over(headers, session)
        return
    stamp_publication(headers, partial(new_publication, session=session))
    stamp(headers, session)
    if session.sending is not None:
        _log_direct_publish(session.sending.step, str(sender))


def _hand_over(headers: dict[str, Any], session: Session) -> None:
    for request in running_requests():
        if request.id == session.task_id:
            hand_over(headers, request, replacing_publication(session))
            return


def _log_direct_publish(step: str, task: str) -> None:
    """Log a warning about a message that a step publishes directly, once for each place in the code."""
    place = _calling_place()
    if place in _logged or runtime_of(current_app()).settings.direct_publish == "allow":
        return
    _logged.add(place)
    logger.warning(
        "%s publishes %s itself (%s:%d): it is sent even if the step fails, and again whenever it runs. "
        "Use send(), or set saga_direct_publish = 'allow'",
        step,
        task,
        *place,
    )


#: Places that were logged in this process.
_logged: set[tuple[str, int]] = set()


def _calling_place() -> tuple[str, int]:
    """Return the file and line that called Celery to publish."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def close_process(sender: Any = None, **_: object) -> None:
    """Close this process's connections when a worker, or a process of its pool, ends."""
    close_runtime(getattr(sender, "app", None) or current_app())


def check_backend_urls(sender: Celery, **_: object) -> None:
    """Refuse a URL with a secret that Celery would show, before ``celery report`` shows it.

    Raises:
        ConfigurationError: A URL has a secret.
    """
    for url in backend_urls(sender.conf):
        check_secrets(url)


def connect() -> None:
    """Connect the receivers; a repeated call changes nothing."""
    signals.import_modules.connect(check_backend_urls, dispatch_uid="celery_sagas.import_modules")
    signals.before_task_publish.connect(look_at_message, dispatch_uid="celery_sagas.publish")
    signals.task_failure.connect(notify_of_eager_failure, dispatch_uid="celery_sagas.failure")
    signals.worker_process_shutdown.connect(close_process, dispatch_uid="celery_sagas.process_shutdown")
    signals.worker_shutdown.connect(close_process, dispatch_uid="celery_sagas.shutdown")
