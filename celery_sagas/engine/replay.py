"""Replay: today's code handles the messages of a history again, on a backend of its own, and is compared with what was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn

from pydantic_core import from_json, to_json

from celery_sagas import clock
from celery_sagas.clock import utc_time
from celery_sagas.core.hidden import replaced, stand_in
from celery_sagas.core.history import HandledMessage, History, digests_of, message_of, shown_fields
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import Addressed, Request, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.handling import Driver
from celery_sagas.engine.instance import load_instance, unknown_outcomes
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.session import Attempt, Deferral, Delivery, Session
from celery_sagas.engine.unit_of_work import handle_once
from celery_sagas.errors import HistoryError, InvalidMessage, MisuseError
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.sagas import MemorySagaStore
from celery_sagas.stores.memory.state import Clock, MemoryState
from celery_sagas.stores.records import ID, Found, Handling, Lookup

#: How many characters of a value, or of an error, are shown.
_SHOWN = 200
#: Answers of a replay go nowhere.
_NOBODY = Target("celery_sagas.replayed")

#: Returns the function that calls a step's handler, given the step and the session of its message.
CallerOf = Callable[[StepDefinition, Session], Callable[..., Any]]


class Difference(NamedTuple):
    """What today's code does with a message, where it once did something else."""

    number: int  #: of the message in its history, from 1
    message: HandledMessage
    problem: str
    fields: Mapping[str, Any] = {}  #: those of the state that differ, with their values of today as JSON values
    hidden: Sequence[str] = ()  #: the hidden arguments of the messages so far, with their steps

    def __str__(self) -> str:
        """Return it as text, without hidden values; the time is in UTC."""
        return self.text(_in_utc)

    def text(self, shown: Callable[[int], str]) -> str:
        """Return it as text, without hidden values.

        Args:
            shown: Returns a time, in milliseconds since the epoch, as text.
        """
        message = self.message
        lines = [f"message {self.number} ({message.step}, {shown(_milliseconds(message.now))}): {self.problem}"]
        lines += [f"  {name} is {_short(to_json(value).decode())} today" for name, value in self.fields.items()]
        if self.hidden:
            lines.append(f"  hidden, so that other values stood in: {', '.join(self.hidden)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Replayed:
    """What came of the replay of a history."""

    history: History
    count: int  #: how many messages were handled again
    difference: Difference | None = None  #: the first
    stopped: str = ""  #: why it did not come to its end
    state: State | None = None  #: a read-only copy of the instance as it is then; ``None``: it has completed

    def __str__(self) -> str:
        """Return it as text, without hidden values; times are in UTC."""
        return self.text(_in_utc)

    def text(self, shown: Callable[[int], str]) -> str:
        """Return it as text, without hidden values.

        Args:
            shown: Returns a time, in milliseconds since the epoch, as text.
        """
        what = f"{self.history.saga} {self.history.key!r}"
        if self.difference:
            return f"{what} differs at {self.difference.text(shown)}"
        if self.stopped:
            return f"{what} cannot be replayed beyond message {self.count}: {self.stopped}"
        return f"{what}: {self.count} messages, and the same state after each"


def replay(history: History, terms: WorkTerms, caller_of: CallerOf) -> Replayed:
    """Handle the messages of a history again, up to the first difference.

    Args:
        history: The history.
        terms: The settings of the units of work; what they encode is published nowhere.
        caller_of: Returns the function that calls a step's handler.

    Raises:
        HistoryError: Its saga is unknown.
    """
    saga = registry.saga_named(history.saga)
    if saga is None:
        known = ", ".join(registry.sagas) or "none"
        raise HistoryError(history.saga, history.key, "there is no such saga", f"Known: {known}")
    return _Replay(saga, history, terms, caller_of).run()


class _Stopped(Exception):
    """Raised where a replay cannot go on; its argument says why."""


class _Differs(Exception):
    """Raised where a replay differs; its arguments are those of a ``Difference``."""


@dataclass
class _Replay:
    """One replay."""

    saga: SagaDefinition
    history: History
    terms: WorkTerms
    caller_of: CallerOf
    _now_ms: int = 0
    _ids: dict[str, str] = field(default_factory=dict)  #: of timeouts and requests: those of then, and their ids of today
    _state: State | None = None  #: as the last handler has left it
    _unknown: str = ""  #: what a handler has looked at, and no history keeps

    def __post_init__(self) -> None:
        self._backend = _ReplayBackend(lambda: self._now_ms)

    def run(self) -> Replayed:
        """Handle the messages, up to the first difference."""
        for number, message in enumerate(self.history.messages, start=1):
            try:
                self._repeat(message)
            except _Differs as exc:
                difference = Difference(number, message, *exc.args)._replace(hidden=self._hidden(number))
                return Replayed(self.history, number, difference)
            except _Stopped as exc:
                return Replayed(self.history, number - 1, stopped=str(exc))
        return Replayed(self.history, len(self.history.messages), state=self._found_state())

    def _hidden(self, number: int) -> list[str]:
        """Return the hidden arguments of the first messages."""
        messages = self.history.messages[:number]
        return list(dict.fromkeys(f"{name} of {message.step}" for message in messages for name in message.hidden))

    def _repeat(self, message: HandledMessage) -> None:
        step = registry.step_named(message.step)
        if message.arguments is None:
            raise _Stopped(message.omitted or "its arguments were not kept")
        if step is None:
            raise _Differs("there is no such step today")
        self._now_ms, self._state = _milliseconds(message.at), None
        self._backend.replayed.begin(self.history.instance, message)
        with clock.replaced_by(message.now.timestamp):
            outcome = self._handle(step, message)
        self._compare(message, outcome)
        self._note_ids(step, message)

    def _handle(self, step: StepDefinition, message: HandledMessage) -> Outcome:
        try:
            terms = replace(self.terms, read_outcomes=self._refuse_outcomes)
            work = handle_once(self._delivery(step, message), terms, Attempt())
            return Driver(self._backend).drive(work).outcome
        except Exception as exc:  # of the handler, or of the library: then the message was handled
            if self._unknown:
                raise _Stopped(self._unknown) from exc
            if isinstance(exc, InvalidMessage) and (names := _hidden_in(message, step, exc)):
                raise _Stopped(f"{', '.join(names)}: hidden, and nothing that could stand in fits: {exc}") from exc
            raise _Differs(f"today it raises {type(exc).__name__}: {_short(str(exc))}") from exc

    def _refuse_outcomes(self, saga: SagaDefinition, instance_id: str, request: Request) -> NoReturn:
        """Note that a step looks at what has come of a gather, which no history keeps."""
        try:
            unknown_outcomes(saga, instance_id, request)
        except MisuseError as exc:
            self._unknown = str(exc)
            raise

    def _delivery(self, step: StepDefinition, message: HandledMessage) -> Delivery:
        bound, annotations = dict(message.arguments or {}), step.arguments.annotations
        bound |= {name: replaced(annotations[name], bound[name], stand_in) for name in step.hidden & bound.keys()}
        session = Session(message.id, {self.saga.name: self.history.instance})
        call = self._noting_state(self.caller_of(step, session))
        address, task = self._address(message), message.step
        deferral = partial(self._deferral, message, bound)
        asked_by = _return_address(message)
        return Delivery(step, message.id, bound, session, call, address, None, task, asked_by, message.now, deferral)

    def _deferral(self, message: HandledMessage, bound: Mapping[str, Any]) -> Deferral:
        """Return what is needed to defer a message; one that has failed in the end is in no history."""
        now = _milliseconds(message.now)
        return Deferral(now, now, lambda: self.terms.deferred.message(message.step, message.id, bound))

    def _noting_state(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(function: Any, first: Any, /, **arguments: Any) -> Any:
            self._state = first if isinstance(first, State) else None
            return call(function, first, **arguments)

        return noting

    def _address(self, message: HandledMessage) -> Addressed | None:
        if message.address is None:
            return None
        to = message.address
        return Addressed(self.history.instance, self._ids.get(to.id, to.id), to.came, to.has_value, to.failure)

    def _compare(self, message: HandledMessage, outcome: Outcome) -> None:
        """Compare what came of a message.

        Raises:
            _Differs: It is another outcome, or a field that both times have is another.
        """
        if outcome.kind != message.outcome:
            reason = f" ({outcome.reason})" if outcome.reason else ""
            raise _Differs(f"it was {message.outcome}, and today it is {outcome.kind}{reason}")
        fields = shown_fields(self.saga, self._state) if self._state is not None else {}
        digests = digests_of(fields)
        different = [name for name in message.fields if digests.get(name, message.fields[name]) != message.fields[name]]
        if different:
            raise _Differs(f"another state: {', '.join(different)}", {name: fields[name] for name in different})

    def _note_ids(self, step: StepDefinition, message: HandledMessage) -> None:
        """Note which of today's timeouts and requests are those of then: ids follow the order of all that a step sends."""
        entry = self._find(Handling((message.step,), message.id)).handled
        if entry is None:
            return
        about = {"step": entry.step, "id": entry.message_id, "outcome": entry.outcome, "version": entry.version}
        today = message_of(from_json(entry.detail), at=utc_time(entry.at), **about)
        self._ids |= _paired(message.scheduled, today.scheduled) | _paired(message.requested, today.requested)

    def _find(self, handling: Handling | None = None) -> Found:
        return self._backend.sagas.find(Lookup(self.saga.names, ID, self.history.instance), handling)

    def _found_state(self) -> State | None:
        self._backend.replayed.end()
        record = self._find().record
        return None if record is None else load_instance(self.saga, record)


def _hidden_in(message: HandledMessage, step: StepDefinition, error: InvalidMessage) -> list[str]:
    """Return the hidden arguments that an error is about."""
    named = {path.partition(".")[0] for path, _ in error.problems} if error.step == step.name else set()
    return sorted(named.intersection(message.hidden))


def _return_address(message: HandledMessage) -> ReturnAddress | None:
    asked_by = message.asked_by
    if asked_by is None:
        return None
    progress = _NOBODY if asked_by.progress else None
    return ReturnAddress(asked_by.saga, asked_by.instance, asked_by.request, _NOBODY, progress=progress)


def _paired(then: Sequence[tuple[str, str, str]], today: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Return the ids of today by those of then: of the same task and step, or name, the first for the first; then of the task."""
    paired: dict[str, str] = {}
    for parts in (2, 1):
        for *labels, id in then:
            left = [each for each in today if each[2] not in paired.values()]
            same = next((each for each in left if all(map(_same_task, each[:parts], labels))), None)
            if id not in paired and same is not None:
                paired[id] = same[2]
    return paired


def _same_task(today: str, then: str) -> bool:
    step = registry.step_named(today)
    return then == today or (step is not None and then in step.names)


def _in_utc(at: int) -> str:
    return f"{utc_time(at):%Y-%m-%d %H:%M:%S} UTC"


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _ReplayBackend(MemoryBackend):
    """A backend in memory, whose instance has the id and the times that it had."""

    def __init__(self, read: Clock) -> None:
        super().__init__("memory://", prefix="", clock=read)
        self.sagas = self.replayed = _ReplayStore(self._state, read)


class _ReplayStore(MemorySagaStore):
    def __init__(self, state: MemoryState, read: Clock) -> None:
        super().__init__(state, read)
        self._new_id = ""
        self._times: tuple[int, int] | None = None

    def begin(self, instance_id: str, message: HandledMessage) -> None:
        """Return from now on what a message has found: the times of a record and of its entry may be of two clock readings."""
        self._new_id = instance_id if message.version == 1 else ""
        created, updated = message.created_at, message.updated_at
        self._times = (_milliseconds(created), _milliseconds(updated)) if created and updated else None

    def end(self) -> None:
        """Return from now on what is stored."""
        self._new_id, self._times = "", None

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        found = super().find(lookup, handling)
        record = found.record
        if record is not None and self._times:
            record = record._replace(created_at=self._times[0], updated_at=self._times[1])
        return found._replace(record=record, new_id=self._new_id or found.new_id)
