"""What a user's function raises: an ``Exception``, whatever it was."""

from collections.abc import Iterator
from contextlib import contextmanager

#: Modules whose errors end a greenlet, or tell it that its time is over.
_GREEN = frozenset({"eventlet", "gevent", "greenlet"})


@contextmanager
def failing() -> Iterator[None]:
    """Have whatever is raised be an ``Exception``, unless it ends a process, a thread or a greenlet.

    ``asyncio.CancelledError`` is none. Celery would take it for the end of the process, and acknowledge the message.
    """
    try:
        yield
    except BaseException as exc:
        if isinstance(exc, Exception) or _is_end(exc):
            raise
        raise RuntimeError(f"{exc!r}, which is no Exception") from exc


def _is_end(error: BaseException) -> bool:
    modules = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, SystemExit | KeyboardInterrupt) or not modules.isdisjoint(_GREEN)
