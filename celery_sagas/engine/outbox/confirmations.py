"""Removing published rows from the outbox: in batches, without delaying any message."""

import atexit
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple

from celery_sagas.connections import BRIEF, OnFailure
from celery_sagas.engine.outbox.publishing import Publisher
from celery_sagas.errors import StoreError
from celery_sagas.forks import Process
from celery_sagas.observers import observers
from celery_sagas.stores.outbox import Outbox

logger = logging.getLogger("celery_sagas")

#: How long published rows are gathered. If this process is killed, the rows that it has not confirmed are sent again. Seconds.
GATHERED_FOR_S = 0.25
#: The maximum wait for the broker, where nothing can be done before it responds. Seconds.
SETTLED_IN_S = 5.0
_POLL_S = 0.002


class _Published(NamedTuple):
    id: str  #: of the row
    is_kept: bool
    at: float  #: when it was published


@dataclass
class Confirmations:
    """The rows that this process has published and not yet removed, or kept; a thread of its own does that.

    A confirmation costs the store as much as a commit, whether it is of one row or of a hundred.
    """

    outbox: Outbox
    owner: str  #: the lease token under which the rows were published
    lasts_s: float  #: the duration of the lease: after it, other processes send the rows, and confirm them
    publisher: Publisher  #: reports which of the posted messages are confirmed
    keep_ms: int = 0  #: how long the rows of timeouts and deadlines stay for their messages to be handled; 0: not at all
    _published: list[_Published] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _flushing: threading.Lock = field(default_factory=threading.Lock)
    #: Wakes the thread. Unlike an event it has no lock that a time limit could leave locked.
    _wake: "SimpleQueue[None]" = field(default_factory=SimpleQueue)
    _stop: threading.Event = field(default_factory=threading.Event)
    _is_failing: bool = False
    _thread: threading.Thread | None = None
    _process: Process = field(default_factory=Process)

    def add(self, ids: Sequence[str], kept: Sequence[str] = ()) -> None:
        """Have rows removed soon, with those that the broker confirms until then, and other ones kept."""
        self._note(ids)
        self._note(kept, is_kept=True)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"{BRIEF}confirmations", daemon=True)
                self._thread.start()
                atexit.register(self.settle)  # a script may end before the thread removes the rows
        self._wake.put(None)

    def add_now(self, ids: Sequence[str]) -> None:
        """Remove rows before this method returns."""
        self._note(ids)
        self.flush()

    def flush(self) -> None:
        """Remove the rows published until now. Never raises: rows that cannot be removed now are retried, while the lease lasts.

        In a child of the publishing process, every method does nothing.
        """
        if self._process.is_child:
            return
        self._collect()  # before locking: a thread that posts, and handles a message meanwhile, may get here
        with self._flushing:
            with self._lock:
                published, self._published = self._published, []
            if not published:
                return
            try:
                with OnFailure(lambda: self._keep(published)):  # a time limit may strike here
                    if removed := [each.id for each in published if not each.is_kept]:
                        self.outbox.confirm(self.owner, removed)
                    if kept := [each.id for each in published if each.is_kept]:
                        self.outbox.confirm(self.owner, kept, self.keep_ms)
                self._is_failing = False
            except StoreError as exc:
                self._log_failure(exc)

    def settle(self) -> None:
        """Remove the rows published until now, after waiting for a bounded time for the broker's confirmations."""
        if self._process.is_child:
            return
        awaited, deadline = self.publisher.awaited(), time.monotonic() + SETTLED_IN_S
        while awaited and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._collect()
            awaited = awaited & self.publisher.awaited()
        self.flush()

    def close(self) -> None:
        """End the thread, and remove the remaining rows."""
        if self._process.is_child:
            return
        atexit.unregister(self.settle)
        self._stop.set()
        self._wake.put(None)
        self.settle()

    def _collect(self) -> None:
        """Note the posted rows that the broker has confirmed."""
        if confirmed := self.publisher.collect():
            self._note(confirmed)
            for observer in observers:
                observer.published(len(confirmed), 0)

    def _note(self, ids: Sequence[str], *, is_kept: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            self._published += [_Published(id, is_kept, now) for id in ids]

    def _log_failure(self, error: StoreError) -> None:
        if not self._is_failing:  # once for each outage
            logger.warning("published messages could not be removed from the outbox, and that is tried again: %s", error)
        self._is_failing = True

    def _keep(self, published: list[_Published]) -> None:
        oldest = time.monotonic() - self.lasts_s
        kept = [each for each in published if each.at > oldest]
        if lost := len(published) - len(kept):
            logger.warning("%d published messages could not be removed from the outbox in time, and will be sent again", lost)
        with self._lock:
            self._published += kept
        if kept:
            self._wake.put(None)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.get()
            self._stop.wait(GATHERED_FOR_S)
            with suppress(Empty):
                while True:
                    self._wake.get_nowait()
            try:
                self.flush()
                if self.publisher.awaited():
                    self._wake.put(None)
            except Exception:
                logger.exception("published messages could not be removed from the outbox")
