"""The pending map: what an instance waits for, kept with its record and changed only by commits.

A timeout, or the outcome of a request, is handled only if it is still in the map, and the commit that handles, replaces or
cancels it removes it; a series stays until it is replaced or cancelled. So it does not matter where its message is at that
moment: in the outbox, under a lease, or in a broker's queue.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from celery_sagas.core.deferred import Deferred
from celery_sagas.core.encoding import check_decoded
from celery_sagas.core.requests.requests import ANSWERED, FAILURES, REQUESTS, UNDONE, Addressed, ReplyKind, Request
from celery_sagas.core.requests.undo import Undo, Undoable, Undoing
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.series import Series
from celery_sagas.core.timeouts import WITH_MAP, NewTimeout, Timeout

Keys = dict[str, str]

#: How many timeouts an instance may have.
TIMEOUTS = 1_000
#: The version of the map's format: code that knows only a lower one leaves the map alone.
FORMAT = 3
#: The format of a map of an instance that is not paused.
UNPAUSED_FORMAT = 2
#: The format of one without undos, retries of requests, interim answers, early gathers, series and deferred messages either.
PLAIN_FORMAT = 1
#: The text of an empty map; it has no format, since it has nothing to read.
NOTHING = "{}"
#: The tag by which paused instances are listed; no field has such a name.
PAUSED: Final = ("(paused)", "1")
#: The outcomes of a request that count only if no other one has come.
_OVERTAKEN: Final = FAILURES | {ReplyKind.GATHERED}


class NewerFormat(ValueError):
    """Raised when a map has a format that this code does not know; its argument is the format's number."""


class Pause(NamedTuple):
    """An operator's pause of the instance: all messages to it wait until it is resumed."""

    at: int  #: milliseconds since the epoch
    actor: str
    reason: str


@dataclass(slots=True)
class Pending:
    """The pending map that is kept with a record; and, while a step runs on the instance, the step's changes to it."""

    #: The alternate keys that the store has indexed for it: ``also_by`` may have changed since then.
    keys: Keys = field(default_factory=dict)
    timeouts: dict[str, Timeout] = field(default_factory=dict)  #: by name
    requests: dict[str, Request] = field(default_factory=dict)  #: by id
    #: The return address of the message that started the instance, until it is answered.
    requester: dict[str, Any] | None = None
    undo: Undo = field(default_factory=Undo)
    deferred: list[Deferred] = field(default_factory=list)  #: the messages that wait with it, in the order of their arrival
    tags: Keys = field(default_factory=dict)  #: the values by which the store lists it: ``search_by`` may have changed since then
    paused: Pause | None = None
    trace: str = ""  #: of the step that has created it: the values of the headers ``traceparent`` and ``tracestate``
    more: dict[str, Any] = field(default_factory=dict)  #: what newer code keeps in it; written back as it is
    new_timeouts: dict[str, NewTimeout] = field(default_factory=dict)  #: by name
    #: By id, with the deadline's message.
    new_requests: dict[str, tuple[Request, SerializedMessage | None]] = field(default_factory=dict)
    new_then: SerializedMessage | None = None  #: the message to the step with which a compensation ends
    released: list[Deferred] = field(default_factory=list)  #: deferred messages that are sent with this step's commit
    cancelled: list[str] = field(default_factory=list)  #: rows of the outbox
    about: dict[str, Any] = field(default_factory=dict)  #: the timeout or outcome that is handled now; for the journal

    def schedule(self, name: str, message: SerializedMessage, at: int, every: Series | None = None) -> None:
        """Add a timeout or a series, which replaces the one with its name."""
        self.unschedule(name)
        self.new_timeouts[name] = NewTimeout(message, at, every)

    def unschedule(self, name: str) -> None:
        """Cancel the timeout or the series of a name, if there is one."""
        self.new_timeouts.pop(name, None)
        timeout = self.timeouts.pop(name, None)
        if timeout is not None:
            self.cancelled.append(timeout.row)

    def send_then(self, message: SerializedMessage) -> None:
        """Send the message to the step with which the compensation ends; nothing but that step's run ends it."""
        if self.undo.undoing is not None:
            self.undo.undoing.then_id, self.new_then = message.message_id, message

    def withdraw_then(self) -> None:
        """Withdraw that message, if it was sent: the compensation goes on."""
        undoing = self.undo.undoing
        if undoing is None or not undoing.then_id:
            return
        if self.new_then is None:
            self.cancelled.append(undoing.then_row)
        self.new_then, undoing.then_id, undoing.then_row = None, "", ""

    def is_deferred(self, steps: tuple[str, ...], id: str) -> bool:
        """Return whether the message of an id, to a step known by its names, waits with the instance."""
        return any(each.is_of(steps, id) for each in self.deferred)

    def has_wake(self, id: str) -> bool:
        """Return whether the message of an id ends the waiting of a deferred one."""
        return any(each.wake == id for each in self.deferred)

    def release(self, deferred: Deferred) -> None:
        """Send a deferred message with this step's commit."""
        self.deferred.remove(deferred)
        self.released.append(deferred)
        if deferred.row:
            self.cancelled.append(deferred.row)

    def awaits(self, deferred: Deferred) -> bool:
        """Return whether a deferred message is still handled by its step: not if that is an outcome that the library handles."""
        if not deferred.awaited:
            return True
        if not deferred.came:
            is_then = self.undo.undoing is not None and self.undo.undoing.then_id == deferred.awaited
            return is_then or any(timeout.id == deferred.awaited for timeout in self.timeouts.values())
        request = self.requests.get(deferred.awaited)
        return request is not None and not (request.undoes or request.is_undone)

    def is_overtaken(self, addressed: Addressed, steps: tuple[str, ...], message_id: str) -> bool:
        """Return whether another outcome of a request has come before its failure, or before the end of a gather, and waits.

        Args:
            addressed: The outcome.
            steps: The names of the step that handles it. The ends of a gather have one id, whichever step they are for.
            message_id: The id of its message.
        """
        if addressed.came not in _OVERTAKEN:
            return False
        others = (each for each in self.deferred if each.is_outcome and not each.is_of(steps, message_id))
        return any(each.awaited == addressed.id for each in others)

    @property
    def rows(self) -> set[str]:
        """The rows of the outbox whose messages it waits for."""
        rows = {timeout.row for timeout in self.timeouts.values()} | {request.row for request in self.requests.values()}
        rows |= {deferred.row for deferred in self.deferred}
        return rows | {self.undo.undoing.then_row} if self.undo.undoing else rows

    def take(self, addressed: Addressed, steps: Collection[str]) -> tuple[bool, bool]:
        """Remove the timeout or request that is handled; a series stays, and a request with an interim answer.

        Args:
            addressed: The timeout, or the outcome of a request.
            steps: The names of the step that handles it.

        Returns:
            Whether it is still waited for, and whether it comes late.
        """
        if not addressed.came:
            return self._take_timeout(addressed), False
        request = self.take_request(addressed.id, addressed.came, steps)
        return request is not None, "late" in self.about

    def _take_timeout(self, addressed: Addressed) -> bool:
        if self.undo.undoing is not None and self.undo.undoing.then_id == addressed.id:
            self.cancelled.append(self.undo.undoing.then_row)
            self.undo.undoing = None
            return True
        if woken := next((each for each in self.deferred if each.wake == addressed.id), None):
            self.release(woken)
            return True
        name = next((name for name, timeout in self.timeouts.items() if timeout.id == addressed.id), None)
        if name is None:
            return False
        timeout = self.timeouts[name]
        if timeout.every is None:
            del self.timeouts[name]
            self.cancelled.append(timeout.row)
        elif addressed.due_at and addressed.due_at <= timeout.handled_at:
            return False
        else:
            self.timeouts[name] = replace(timeout, handled_at=WITH_MAP)
        return True

    def has_series(self, id: str) -> bool:
        """Return whether it has a series with an id."""
        return any(timeout.id == id and timeout.every for timeout in self.timeouts.values())

    def has_deferred_occurrence(self, id: str) -> bool:
        """Return whether an occurrence of the series of an id waits for the step to run."""
        return self.has_series(id) and any(each.awaited == id for each in self.deferred)

    @property
    def undoes(self) -> int:
        """How many undos are under way."""
        if not (self.requests or self.new_requests):
            return 0
        old, new = self.requests.values(), (request for request, _ in self.new_requests.values())
        return sum(bool(request.undoes) for requests in (old, new) for request in requests)

    @property
    def is_undoing(self) -> bool:
        """Whether a compensation goes on, or an undo is under way."""
        return self.undo.undoing is not None or self.undoes > 0

    @property
    def left_to_undo(self) -> int:
        """How many pieces of work are being undone, or wait for that: each known one, and each outcome that is waited for."""
        known = sum(each.task is not None for each in self.undo.undoing.queue) if self.undo.undoing else 0
        awaited = sum(request.is_undone and not request.has_timed_out for request in self.all_requests().values())
        return self.undoes + known + awaited

    @property
    def to_undo(self) -> int:
        """How many pieces of work it may have to undo: of the past, and at most of the requests that are open."""
        if not (self.undo or self.requests or self.new_requests):
            return 0
        asked = [each for each in self.all_requests().values() if each.undo and not each.is_undone and not each.has_timed_out]
        return len(self.undo.log) + self.left_to_undo + sum(request.most_to_undo for request in asked)

    def all_requests(self) -> dict[str, Request]:
        """Return the requests by their ids, also those of this step, in the order in which they were sent."""
        return {**self.requests, **{id: request for id, (request, _) in self.new_requests.items()}}

    def change(self, request: Request) -> None:
        """Put a request in the place of that with its id."""
        if request.id in self.new_requests:
            self.new_requests[request.id] = request, self.new_requests[request.id][1]
        else:
            self.requests[request.id] = request

    def remove(self, request: Request) -> None:
        """Stop waiting for a request, and cancel its deadline."""
        self.new_requests.pop(request.id, None)
        if self.requests.pop(request.id, None) and request.row:
            self.cancelled.append(request.row)

    def take_request(self, id: str, came: str, steps: Collection[str]) -> Request | None:
        """Remove the request that has an outcome; one that may be answered all the same stays, as after an interim answer.

        Args:
            id: The request's id.
            came: The kind of its outcome.
            steps: The names of the step that handles the outcome.

        Returns:
            The request as it was; ``None`` if it is no longer waited for, or not by this step.
        """
        request = self.requests.get(id)
        if request is None or not request.is_handled_by(steps, came):
            return None
        if came == ReplyKind.PROGRESS:
            self.about = {"request": id, "came": came}
            return request
        is_late = request.has_timed_out and not any(each for each in self._siblings(request) if not each.has_timed_out)
        self.end_request(request, came)
        if came == ReplyKind.ANSWER and request.again:
            self._supersede(request)
        self.about = {"request": id, "came": came} | ({"late": True} if is_late else {})
        return request

    def end_request(self, request: Request, came: str) -> None:
        """Remove a request that has an outcome, and its deadline; one that may be answered all the same stays for that."""
        del self.requests[request.id]
        is_uncertain = came in (ReplyKind.DEADLINE, ReplyKind.UNCERTAIN) and not request.then.endswith((ANSWERED, UNDONE))
        is_watched = request.undo is not None or (request.again is not None and request.again.is_left)
        if is_uncertain or (is_watched and came in FAILURES):  # another run may have done the work, and answer
            self.requests[request.id] = replace(request, has_timed_out=True, row="")
        if request.row:
            self.cancelled.append(request.row)

    def _siblings(self, request: Request) -> list[Request]:
        """Return the other requests that were sent because one of them had failed."""
        if request.again is None:
            return []
        return [each for each in self.requests.values() if each.first == request.first and each.id != request.id]

    def _supersede(self, request: Request) -> None:
        """Wait no longer for a second answer to what was sent again; one that comes is late, or undone."""
        for each in self._siblings(request):
            self.cancelled += [row for row in (each.row, each.sent_row) if row]  # it may wait for the end of its pause
            is_undone = each.undo is not None and each.undo.takes  # else it might undo the work of the one that has answered
            self.requests[each.id] = replace(each, has_timed_out=True, row="", sent_row="", is_undone=is_undone)

    def forget_oldest(self) -> None:
        """Keep only the newest of the requests that have timed out."""
        timed_out = [id for id, request in self.requests.items() if request.has_timed_out]
        for id in timed_out[:-REQUESTS]:
            del self.requests[id]

    def to_journal(self) -> dict[str, object]:
        """Return the journal's details of this step: the outcome that it handled, and its requests."""
        asked = [request.to_journal() for request, _ in self.new_requests.values()]
        return {**self.about, "asked": asked} if asked else self.about

    def text(self) -> str:
        """Return the map as JSON text, which a person can read."""
        parts: dict[str, Any] = dict(self.more)
        if self.keys:
            parts["keys"] = self.keys
        if self.tags:
            parts["tags"] = self.tags
        if self.timeouts:
            parts["timeouts"] = {name: timeout.to_json() for name, timeout in self.timeouts.items()}
        if self.requests:
            parts["requests"] = {id: request.to_json() for id, request in self.requests.items()}
        if self.requester:
            parts["requester"] = self.requester
        if self.undo.log:
            parts["undo"] = [each.to_json() for each in self.undo.log]
        if self.undo.undoing:
            parts["undoing"] = self.undo.undoing.to_json()
        if self.deferred:
            parts["deferred"] = [each.to_json() for each in self.deferred]
        if self.paused:
            parts["paused"] = self.paused._asdict()
        if self.trace:
            parts["trace"] = self.trace
        return to_json({"format": self._format(), **parts}).decode() if parts else NOTHING

    def _format(self) -> int:
        if self.paused:
            return FORMAT
        asked = self.requests.values()
        has_newer = any(request.undo or request.again or request.progress or request.early for request in asked)
        has_newer = has_newer or "progress" in (self.requester or ())
        has_newer = has_newer or any(timeout.every for timeout in self.timeouts.values())
        return UNPAUSED_FORMAT if has_newer or self.undo or self.deferred else PLAIN_FORMAT


def read_pending(text: str, written_at: int = 0) -> Pending:
    """Return the map that a text holds.

    Args:
        text: The text.
        written_at: When it was committed, by the store's clock; milliseconds since the epoch.

    Raises:
        NewerFormat: Newer code wrote it.
        ValueError: It is not a pending map.
    """
    if text == NOTHING:
        return Pending()
    check_decoded(text)
    stored = from_json(text)
    try:
        if (format := stored.pop("format")) > FORMAT:
            raise NewerFormat(format)
        keys, tags, timeouts, requests = (stored.pop(name, {}) for name in ("keys", "tags", "timeouts", "requests"))
        requester, undo = stored.pop("requester", None), _read_undo(stored)
        deferred = [Deferred.from_json(each) for each in stored.pop("deferred", ())]
        paused = Pause(**noted) if (noted := stored.pop("paused", None)) else None
        by_name = {str(name): Timeout.from_json(dict(noted), written_at) for name, noted in timeouts.items()}
        by_id = {str(id): Request.from_json(str(id), dict(noted)) for id, noted in requests.items()}
        trace = str(stored.pop("trace", ""))
        return Pending(dict(keys), by_name, by_id, requester, undo, deferred, dict(tags), paused, trace, stored)
    except (TypeError, AttributeError, KeyError) as exc:
        raise ValueError(f"the pending map is not of its form: {exc}") from exc


def _read_undo(stored: dict[str, Any]) -> Undo:
    log, undoing = stored.pop("undo", ()), stored.pop("undoing", None)
    return Undo([Undoable.from_json(each) for each in log], Undoing.from_json(undoing) if undoing else None)
