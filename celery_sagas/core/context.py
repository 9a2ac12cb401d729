"""The context of a handler: its message, its instance, and the messages that it sends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from celery_sagas import clock
from celery_sagas.core.deferred import DeferredMessage
from celery_sagas.core.pending import Pending
from celery_sagas.core.requests.requests import Request
from celery_sagas.core.requests.views import GatherView, RequestView
from celery_sagas.core.sending import Sending
from celery_sagas.errors import MisuseError

R = TypeVar("R")


class MessageView(NamedTuple):
    """The message that is being handled."""

    id: str  #: under which it is remembered: the task's id, unless its producer has named another
    step: str  #: the step's name
    late: bool = False  #: it answers a request that was reported as failed before, such as when its deadline had passed
    at: datetime | None = None  #: when its step began, if the saga keeps its ``history``: aware, UTC


#: The message of a copy that ``find`` returned.
NO_MESSAGE: Final = MessageView("", "")


class SagaView(NamedTuple):
    """The library's view of an instance: ``order.saga`` inside a step and on a copy that ``find`` returned."""

    id: str  #: the instance's id, stable from its first message to its last
    name: str  #: the saga's stored name
    key: str  #: the canonical text of the correlation key
    version: int  #: how many messages it has handled; 0 while the first one runs
    is_new: bool  #: whether this message created it
    created_at: datetime | None  #: aware, UTC; ``None`` while it is new
    updated_at: datetime | None  #: aware, UTC; ``None`` while it is new
    message: MessageView  #: the one that is handled; on a copy that ``find`` returned, its id and step are empty
    #: The due times of the timeouts that it had when this step began, by name; aware, UTC; without the one that is handled. That
    #: of a series is its first one after this step began: an occurrence that is due already, and not handled yet, is not shown.
    timeouts: Mapping[str, datetime] = MappingProxyType({})
    #: The requests that were open when this step began, by id; without the one that is answered now, and those timed out.
    requests: Mapping[str, RequestView] = MappingProxyType({})
    #: Those of the requests that are gathers, by id, with what has come of their members so far. That is read from the backend
    #: when a gather is looked at, and does not change while the step runs.
    gathers: Mapping[str, GatherView] = MappingProxyType({})
    requester: str | None = None  #: the id of the message that started it, if that requests an answer and has none yet
    #: The messages that waited with it for another status when this step began, in the order of their arrival.
    deferred: tuple[DeferredMessage, ...] = ()
    undoing: bool = False  #: whether anything was being undone when this step began, or its ``compensate`` has not ended

    @property
    def now(self) -> datetime:
        """The time: aware, UTC. In a test with a ``SagaHarness`` it is the harness's, so that time passes as the test says.

        In a saga that keeps its ``history`` it is the time at which the step began, which a replay repeats.
        """
        return self.message.at or clock.now()


@dataclass(slots=True)
class StepContext:
    """One run of a handler on one instance."""

    view: SagaView
    sending: Sending | None  #: ``None`` on a read-only copy
    pending: Pending = field(default_factory=Pending)
    unknown: dict[str, Any] = field(default_factory=dict)  #: stored fields that this code does not know
    completed: bool = False
    compensates: bool = False  #: ``compensate`` was called
    compensated: bool = False  #: everything is undone
    cancelled: dict[str, Request] = field(default_factory=dict)  #: requests that need not be begun any more, by id
    unbegun: list[str] = field(default_factory=list)  #: ids of other tasks that need not be begun any more
    collects: bool = False  #: the state belongs to no instance: a handler was called on it as a function

    @property
    def is_running(self) -> bool:
        """Return whether the handler is still running."""
        return self.sending is not None and not self.sending.closed

    def leave_out(self, request: Request, positions: Sequence[int]) -> None:
        """Send no more of the members of a gather that has ended, and have those that were sent not begun any more."""
        self.unbegun += [request.member(position) for position in positions]
        if rows := request.member_rows:
            self.pending.cancelled += [rows[position] for position in positions]

    def check_undone(self) -> None:
        """Refuse to complete the instance while anything of it is being undone.

        Raises:
            MisuseError: It is.
        """
        if not (self.compensates or self.pending.is_undoing):
            return
        left, view = self.pending.left_to_undo, self.view
        rest = f"{left} {'is' if left == 1 else 'are'} left" if left else "and the step that follows has not run yet"
        problem = f"{view.name} {view.key!r} is being undone, {rest}"
        raise MisuseError(problem, "Complete it in the step that compensate(then=) names")

    def ask(self, question: Callable[..., R], *arguments: Any) -> R:
        """Call a function that may neither change the state nor send."""
        sending, self.sending = self.sending, None
        try:
            return question(*arguments)
        finally:
            self.sending = sending

    def require_sending(self, what: str) -> Sending:
        """Return the collector of outgoing messages; refuse if the state is a read-only copy or its step has ended."""
        if self.sending is None or self.sending.closed:
            raise MisuseError(f"{what}() was called outside a step", "Call it while a step of the saga runs")
        return self.sending
