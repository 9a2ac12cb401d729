"""The two files that probes look at: ``.alive``, which a worker touches while it goes on, and ``.ready``.

A worker that waits for its broker or its store goes on: to start it again would help nobody.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from celery import Celery

from celery_sagas.engine.sweeps import Tally
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import Settings
from celery_sagas.worker.process.relay import relay_of

logger = logging.getLogger("celery_sagas")

#: Seconds between two touches.
BEAT_S: Final = 5.0
#: Seconds after which an event loop, or a relay, that gives no sign counts as hanging.
SILENT_S: Final = 60.0


class Heartbeat:
    """Touches the files of a worker, in a thread of its own: while the broker is away, the worker's loop stands still.

    Args:
        app: Whose relay is looked at.
        settings: Its settings, with ``heartbeat``.
        is_busy: Whether a task runs in the worker's own loop, which stands still meanwhile.
    """

    def __init__(self, app: Celery, settings: Settings, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._app = app
        self._is_busy = is_busy
        # a sweep goes on for half a lease at most, and begins within the interval
        self._relay_silent_s = SILENT_S + settings.relay_interval + settings.lease_ttl / 2
        self._alive, self._ready = (Path(f"{settings.heartbeat}.{name}") for name in ("alive", "ready"))
        self._ticked_at: float | None = None  #: ``None``: the loop does not run
        self._began_at = time.monotonic()
        self._ended = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="celery-sagas-heartbeat", daemon=True)

    def start(self) -> None:
        """Say that the worker is alive and ready, and touch its file from now on.

        Raises:
            ConfigurationError: The files cannot be written.
        """
        try:
            self._alive.touch()
            self._ready.touch()
        except OSError as exc:
            remedy = "Set saga_heartbeat to the beginning of a path in a folder that exists, and that the worker may write"
            raise ConfigurationError(f"saga_heartbeat cannot be written: {exc}", remedy) from exc
        self._began_at = time.monotonic()
        self._thread.start()

    def tick(self) -> None:
        """Note that the worker's loop runs."""
        self._ticked_at = time.monotonic()

    def pause(self) -> None:
        """Note that the worker's loop does not run: it has no connection."""
        self._ticked_at = None

    def end_ready(self) -> None:
        """Say that the worker takes no more messages."""
        with suppress(OSError):
            self._ready.unlink(missing_ok=True)

    def end(self) -> None:
        """Say that the worker has ended."""
        self._ended.set()
        self.end_ready()
        with suppress(OSError):
            self._alive.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            if self.is_alive:
                self._touch()

    def _touch(self) -> None:
        try:
            self._alive.touch()
            self._is_failing = False
        except OSError as exc:
            if not self._is_failing:
                logger.error("saga_heartbeat cannot be written, and probes will end this worker: %s", exc)  # noqa: TRY400 - no bug
            self._is_failing = True

    @property
    def is_alive(self) -> bool:
        """Whether the worker goes on."""
        ticked_at = self._ticked_at
        is_looping = ticked_at is None or time.monotonic() - ticked_at < SILENT_S or self._is_busy()
        return is_looping and self._is_relay_alive()

    def _is_relay_alive(self) -> bool:
        relay = relay_of(self._app)
        return relay is None or (relay.is_running and all(self._goes_on(tally) for _, tally in relay.tallies))

    def _goes_on(self, tally: Tally) -> bool:
        """Return whether a relay sweeps, or its store or the broker is known to be away."""
        if tally.trouble is not None:
            return True
        if tally.last is None:
            return time.monotonic() - self._began_at < self._relay_silent_s
        return time.time() - tally.last.ended_at < self._relay_silent_s


def is_busy_in(pool: Any, active: Any) -> Callable[[], bool]:
    """Return what says whether a task runs in the worker's own loop: with the pool ``solo``, while one is active."""
    is_solo = "solo" in f"{type(pool).__module__}"
    return lambda: is_solo and bool(active)
