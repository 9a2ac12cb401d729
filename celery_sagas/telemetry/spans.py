"""The span of one message of a step: ``process {step}``."""

from collections.abc import Generator, Mapping, Sequence
from time import perf_counter, time_ns
from typing import Any, NamedTuple, Self, TypeVar

from celery.exceptions import TaskPredicate
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from pydantic_core import from_json

from celery_sagas.core.pending import NOTHING
from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.errors import RevisionConflict
from celery_sagas.settings import Settings
from celery_sagas.stores.operations import Commit, Find
from celery_sagas.stores.records import Found
from celery_sagas.telemetry.contexts import read_context, stored_context

T = TypeVar("T")

#: What OpenTelemetry's conventions call the instance to which a message belongs.
_CONVERSATION = "messaging.message.conversation_id"
_FIND, _COMMIT = "saga.find.duration", "saga.commit.duration"


class Origin(NamedTuple):
    """Where a message has come from, and what its span says of it from the start."""

    name: str  #: of the span
    attributes: Mapping[str, str]
    settings: Settings
    sent: Context  #: as the headers of the message have it
    is_called: bool  #: directly, so that it has come from nowhere
    waits: bool  #: with the span, until the signals of a task were sent: another tool may make one upon them
    is_batched: bool  #: it is handled with others, so that what is done here belongs to it only at times


class MessageSpan:
    """A span that begins when the instance of the message is known, of which its parent or its links depend.

    It begins as of the time when the message arrived.
    """

    performed: float | None = None

    def __init__(self, tracer: trace.Tracer, origin: Origin) -> None:
        self._tracer = tracer
        self._origin = origin
        self._began = time_ns()
        self._ended: int | None = None
        self._start = trace.INVALID_SPAN_CONTEXT  #: of the span of the step that has created the instance
        self._span: Span | None = None
        self._context = origin.sent
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._conflicts: list[tuple[int, str]] = []  #: times and reasons
        self._durations: dict[str, float] = {}  #: of the attempts so far, by attributes

    def __enter__(self) -> Self:
        here = contexts.get_current()
        if trace.get_current_span(here).get_span_context().is_valid:
            self._context = here
        self._token = contexts.attach(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            self._error = error
            self._end()
        finally:
            contexts.detach(self._token)

    def attach(self) -> None:
        """Have what is done here belong to the span from now on."""
        self._begin()
        contexts.attach(self._context)

    def end(self) -> None:
        """End the span of a message that was handled with others."""
        self._error = None
        self._end()

    def leave(self) -> None:
        """End the span of a message that is handled alone again, if it has begun."""
        if self._span is not None:
            self._end()

    def around(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Return a unit of work that does the same, and whose operations and conflicts are noted."""
        resume, given, is_batched = steps.send, None, self._origin.is_batched
        try:
            while True:
                operation = self._resume(resume, given) if is_batched else resume(given)
                began = perf_counter()
                try:
                    given = yield operation
                except Exception as exc:
                    resume, given = steps.throw, exc
                else:
                    resume = steps.send
                self._note(operation, perf_counter() - began, given)
        except StopIteration as end:
            self._ended, self._outcome = time_ns(), end.value.outcome
            return end.value  # type: ignore[no-any-return]
        except Exception as exc:
            self._error = exc
            if isinstance(exc, RevisionConflict):
                self._conflicts.append((time_ns(), exc.reason))
            raise
        finally:
            steps.close()

    def _resume(self, resume: Any, given: Any) -> Any:
        """Have what a unit of work that is handled with others does belong to the span."""
        token = contexts.attach(self._context)
        try:
            return resume(given)
        finally:
            contexts.detach(token)

    def _note(self, operation: Any, seconds: float, answer: Any) -> None:
        """Note how long an operation took; once the instance is known, begin."""
        if self.performed is not None:
            seconds, self.performed = self.performed, None
        if isinstance(operation, Find):
            self._durations[_FIND] = self._durations.get(_FIND, 0.0) + seconds
            if isinstance(answer, Found) and self._span is None:
                self._find(answer)
        elif isinstance(operation, Commit):
            self._durations[_COMMIT] = self._durations.get(_COMMIT, 0.0) + seconds

    def _find(self, found: Found) -> None:
        record = found.record
        if record is not None and record.pending != NOTHING and '"trace"' in record.pending:
            self._start = _read(record.pending)
        if self._origin.is_batched and not self._origin.waits:
            self._begin()
        elif not self._origin.is_batched:
            self.attach()

    def _begin(self) -> None:
        if self._span is not None:
            return
        origin, start, here = self._origin, self._start, contexts.get_current()
        made = trace.get_current_span(here).get_span_context()  # by a tool, for the task
        is_made = made.is_valid and not made.is_remote
        sent = made if origin.sent is here else trace.get_current_span(origin.sent).get_span_context()
        if start.is_valid and origin.settings.trace == "parent":
            parent, below = start, trace.set_span_in_context(trace.NonRecordingSpan(start), self._context)
        elif is_made:
            parent, below = made, here
        elif sent.is_valid and self._context is not origin.sent:
            parent, below = sent, trace.set_span_in_context(trace.NonRecordingSpan(sent), self._context)
        else:
            parent, below = sent, self._context
        self._span = self._tracer.start_span(
            origin.name,
            below,
            SpanKind.INTERNAL if is_made or origin.is_called else SpanKind.CONSUMER,
            origin.attributes,
            _links((start, made, sent) if is_made else (start, sent), parent),
            self._began,
        )
        self._context = trace.set_span_in_context(self._span, self._context)

    def stored(self) -> str:
        """Return what is stored with an instance that the message creates; nothing unless the span is recorded."""
        return stored_context(self._span.get_span_context()) if self._span is not None and self._span.is_recording() else ""

    def _end(self) -> None:
        self._begin()
        span, self._span = self._span, None
        if span is not None and span.is_recording():
            self._describe(span)
        if span is not None:
            span.end(self._ended if self._origin.is_batched else None)

    def _describe(self, span: Span) -> None:
        attributes: dict[str, str | int | float] = {**self._durations}
        if self._outcome is not None:
            attributes |= _attributes_of(self._outcome, has_key=self._origin.settings.trace_keys)
        if self._conflicts:
            attributes["saga.conflicts"] = len(self._conflicts)
            for at, reason in self._conflicts:
                span.add_event("saga.conflict", {"saga.reason": reason}, at)
        span.set_attributes(attributes)
        if _is_put_off(self._outcome, self._error):
            cause = self._error and (self._error.__cause__ or self._error.__context__)
            span.add_event("saga.put_off", {"error.type": _name_of(cause)} if cause else None)
        elif not isinstance(self._error, TaskPredicate):
            _fail(span, self._error)


def _read(pending: str) -> SpanContext:
    """Return where the step is traced that has created the instance of a pending map; what cannot be read is nowhere."""
    try:
        return read_context(from_json(pending).get("trace", ""))
    except (ValueError, AttributeError):  # which the step meets, too
        return trace.INVALID_SPAN_CONTEXT


def _links(known: Sequence[SpanContext], parent: SpanContext) -> list[Link]:
    """Return a link to each of these spans, but for the parent."""
    others = {each.span_id: each for each in known if each.is_valid and each.span_id != parent.span_id}
    return [Link(each) for each in others.values()]


def _attributes_of(outcome: Outcome, *, has_key: bool) -> dict[str, str | int]:
    """Return what a span says of the outcome of its message."""
    attributes: dict[str, str | int] = {"saga.outcome": outcome.kind.value}
    if id := outcome.instance_id:
        attributes |= {_CONVERSATION: id, "saga.instance.id": id, "saga.instance.version": outcome.version}
    if outcome.reason:
        attributes["saga.reason"] = outcome.reason
    if has_key and outcome.key:
        attributes["saga.key"] = outcome.key
    return attributes


def _is_put_off(outcome: Outcome | None, error: BaseException | None) -> bool:
    """Return whether a message comes again: it waits with its instance, or was published again, or the broker keeps it."""
    if outcome is not None:
        return outcome.kind is Kind.DEFERRED
    return isinstance(error, TaskPredicate)


def _fail(span: Span, error: BaseException | None) -> None:
    """Have a span end in an error, by its class: what it says may hold what nobody should see."""
    if error is not None:
        span.set_attribute("error.type", _name_of(error))
        span.set_status(StatusCode.ERROR)


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
