"""Signal receivers: they bracket each task with a session and stamp what is published in it.

Celery swallows a receiver's exceptions, so that none of them decides anything.
"""

from typing import Any

from celery import signals

from celery_sagas.engine.session import Session, close_session, current_session, open_session
from celery_sagas.worker.headers import read_causation, stamp
from celery_sagas.worker.internals import current_app
from celery_sagas.worker.runtime import close_runtime

_OPENED = "_celery_sagas_session"


def open_task_session(task: Any = None, task_id: str = "", **_: object) -> None:
    """Open the session of a task that begins, whether it is a step or a plain participant."""
    task.request.__dict__[_OPENED] = open_session(task_id, read_causation(task.request))


def close_task_session(task: Any = None, **_: object) -> None:
    """Close the session of a task that ended, however it did."""
    session: Session | None = task.request.__dict__.pop(_OPENED, None)
    if session is not None:
        close_session(session)


def stamp_message(headers: dict[str, Any] | None = None, **_: object) -> None:
    """Put the causation of the running task on a message that it publishes."""
    session = current_session()
    if session is not None and headers is not None:
        stamp(headers, session)


def close_process(sender: Any = None, **_: object) -> None:
    """Close this process's connections when a worker, or a process of its pool, ends."""
    close_runtime(getattr(sender, "app", None) or current_app())


def connect() -> None:
    """Connect the receivers; again changes nothing."""
    signals.task_prerun.connect(open_task_session, dispatch_uid="celery_sagas.open")
    signals.task_postrun.connect(close_task_session, dispatch_uid="celery_sagas.close")
    signals.before_task_publish.connect(stamp_message, dispatch_uid="celery_sagas.stamp")
    signals.worker_process_shutdown.connect(close_process, dispatch_uid="celery_sagas.process_shutdown")
    signals.worker_shutdown.connect(close_process, dispatch_uid="celery_sagas.shutdown")
