"""The step, and the instance, for which a line is logged: as attributes of its record, or as fields of structlog."""

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from celery import signals

from celery_sagas.core.registry import registry
from celery_sagas.worker.sessions import running_sessions

#: Outside of a step.
NONE: Final = "-"
_NOTHING: Final[Mapping[str, str]] = dict.fromkeys(("saga", "saga_step", "saga_instance", "saga_message"), NONE)


def saga_context() -> Mapping[str, str]:
    """Return the saga, the step, the instance and the message for which this thread, or greenlet, runs; ``"-"``: for none.

    The instance is known while the handler runs. There is no key, and nothing of the message or the state.
    """
    for session, name in running_sessions():
        step = registry.step_named(name)
        if step is not None:
            instance = session.causation.get(step.saga.name, NONE) if session.sending is not None else NONE
            message_id = session.message_id
            return {"saga": step.saga.name, "saga_step": step.name, "saga_instance": instance, "saga_message": message_id}
    return _NOTHING


class SagaFilter(logging.Filter):
    """Puts ``saga``, ``saga_step``, ``saga_instance`` and ``saga_message`` on every record; it drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Put them on a record, unless it has them."""
        for name, value in saga_context().items():
            record.__dict__.setdefault(name, value)
        return True


def add_saga_context(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put ``saga``, ``saga_step``, ``saga_instance`` and ``saga_message`` on an event: a processor for structlog."""
    for name, value in saga_context().items():
        event.setdefault(name, value)
    return event


def install() -> None:
    """Have the handlers that Celery sets up in this process put the context on each record: for ``worker_log_format``."""
    signals.after_setup_logger.connect(_add_filter, dispatch_uid="celery_sagas.logs")
    signals.after_setup_task_logger.connect(_add_filter, dispatch_uid="celery_sagas.logs")


def _add_filter(logger: logging.Logger, **_: object) -> None:
    for handler in logger.handlers:  # a filter of a logger would not see the records of those below it
        if not any(isinstance(each, SagaFilter) for each in handler.filters):
            handler.addFilter(SagaFilter())
