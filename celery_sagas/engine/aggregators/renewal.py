"""Renewal: while a function runs, its lease is begun anew."""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from celery_sagas.errors import StoreError

logger = logging.getLogger("celery_sagas")

#: A lease is renewed so often in its time: two renewals may fail.
_IN_A_LEASE = 3


class Renewal:
    """Renews a lease in a thread of its own, over a connection of its own, until it is left.

    Args:
        renew: Renews the lease; returns whether there still is one.
        lease_s: How long it lasts.
        for_s: When the run is ended by its time limit, in seconds from now: nobody renews the lease of a run that has been
            killed, or that should have been. ``None`` without a limit.
        subject: Whose lease it is, for the log.
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
        """Renew it once; return whether to go on."""
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
