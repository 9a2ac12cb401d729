"""Connections to PostgreSQL with bounded waits: neither its protocol nor TCP distinguishes a silent server from a busy one."""

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from sqlalchemy import Engine, event

T = TypeVar("T")


def bound_answers(engine: Engine, seconds: float) -> None:
    """Make an engine of PostgreSQL open connections that are closed when the server has been silent for this long.

    Whether the statement was run is then unknown, as it is when a connection breaks. Before release 3.2.13 psycopg does not
    report that it is still waiting, and the bound has no effect.
    """
    bounded = _bounded(engine.dialect.loaded_dbapi, seconds)
    event.listen(engine, "do_connect", lambda dialect, entry, args, named: bounded.connect(*args, **named))


def _bounded(driver: Any, seconds: float) -> Any:
    """Derive from psycopg's connections. All that they wait for, but for the connection itself, passes through ``wait``."""

    def time_out() -> None:
        raise driver.OperationalError(f"no answer within {seconds:g} s")

    class BoundedConnection(driver.Connection):  # type: ignore[misc]
        def wait(self, steps: Generator[Any, Any, T], *args: Any, **named: Any) -> T:
            try:
                answer: T = super().wait(_watched(steps, seconds, time_out), *args, **named)
            except driver.OperationalError:
                if self.pgconn.transaction_status == driver.pq.TransactionStatus.ACTIVE:
                    self.close()  # the answer may still come, and must not be read as that to another statement
                raise
            return answer

    return BoundedConnection


def _watched(steps: Generator[Any, Any, T], seconds: float, time_out: Callable[[], None]) -> Generator[Any, Any, T]:
    """Pass on what psycopg waits for, and what has become ready: nothing, every tenth of a second.

    The server counts as silent if a check that began too late has found nothing. After one that began in time, this process may
    have been held up itself, and the answer may have come meanwhile.
    """
    ready, last = None, time.monotonic()
    try:
        while True:
            waited_for, looked_at = steps.send(ready), time.monotonic()
            ready = yield waited_for
            if ready:
                last = time.monotonic()
            elif looked_at - last > seconds:
                time_out()
    except StopIteration as end:
        answer: T = end.value
        return answer
