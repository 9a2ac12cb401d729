"""What a user's function raises: an ``Exception``, whatever it was, and its frames."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

#: Modules whose errors end a greenlet, or tell it that its time is over.
_GREEN = frozenset({"eventlet", "gevent", "greenlet"})
#: Modules whose frames are above those of a user's function.
_ABOVE = frozenset({"celery", "celery_sagas", "contextlib"})


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


def below(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on; of an error that the library raised itself, the last frame."""
    while traceback is not None and traceback.tb_next is not None and _is_above(traceback):
        traceback = traceback.tb_next
    return traceback


def _is_above(traceback: TracebackType) -> bool:
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] in _ABOVE
