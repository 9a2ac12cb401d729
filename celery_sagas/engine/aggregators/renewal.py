"""Renewal: the lease is extended while a function runs."""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from celery_sagas.errors import StoreError

logger = logging.getLogger("celery_sagas")

#: How often a lease is renewed before it would end: two renewals may fail.
_IN_A_LEASE = 3


class Renewal:
    """Renews a lease in a thread of its own, over a connection of its own, until the block ends.

    Args:
        renew: Renews the lease; returns whether it still exists.
        lease_s: The duration of the lease.
        for_s: Seconds until the run's time limit ends it: the lease of a run that was killed, or should have been, is not
            renewed. ``None`` without a limit.
        subject: The lease's owner, for the log.
    """

    def __init__(self, renew: Callable[[], bool], lease_s: float, for_s: float | None, subject: str) -> None:
        self._renew = renew
        self._pause_s = lease_s / _IN_A_LEASE
        self._until = None if for_s is None else time.monotonic() + for_s
        self._subject = subject
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-sagas-renewal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            if self._until is not None and time.monotonic() >= self._until:
                return
            if not self._try():
                return

    def _try(self) -> bool:
        """Renew the lease once; return whether to continue."""
        try:
            if self._renew() or self._ended.is_set():
                return True
        except StoreError as exc:
            logger.warning("the lease of %s was not renewed, and is tried again: %s", self._subject, exc)
            return True
        except Exception:
            if not self._ended.is_set():  # else the process ends, and closes what is used here
                logger.exception("the lease of %s is renewed no more", self._subject)
            return False
        logger.warning("%s has lost its lease: its items are flushed again", self._subject)
        return False
