"""``SagaHarness``: sagas in virtual time, as a test sees them."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from celery import Celery
from kombu.utils.json import dumps

from celery_sagas.clock import utc_time
from celery_sagas.core.delays import Delay, seconds_of
from celery_sagas.core.history import History
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.instance import pending_of
from celery_sagas.engine.outcomes import Outcome, read_entry
from celery_sagas.engine.query import copy_of, journal_key, lookup_of, outcome_of
from celery_sagas.errors import MisuseError
from celery_sagas.stores.records import DeadLetter, Entry
from celery_sagas.testing.harness.broker import SentMessage
from celery_sagas.testing.harness.crashes import CrashPoint
from celery_sagas.testing.harness.timeline import ScenarioError
from celery_sagas.testing.harness.world import World, milliseconds, never_answer
from celery_sagas.worker.headers import STEP_RETRIES
from celery_sagas.worker.replaying import replaying
from celery_sagas.worker.saga import Saga

SagaT = TypeVar("SagaT", bound=Saga)
P = ParamSpec("P")

#: When a test begins, unless it says so itself: later than the real time, so that what is due by the real time is due at once.
START: Final = datetime(2040, 1, 1, tzinfo=UTC)
#: How many entries of a journal are read.
_ALL = sys.maxsize


class Sendable(Protocol[P]):
    """A step, a plain task, or an aggregator."""

    @property
    def name(self) -> str:
        """The name of the task."""

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Publish a message."""


class Named(Protocol):
    """A task."""

    @property
    def name(self) -> str:
        """The name of the task."""


class ScheduledTimeout(NamedTuple):
    """A timeout that an instance has."""

    saga: str
    key: str
    name: str  #: of the timeout, or its id
    step: str
    due_at: datetime  #: aware, UTC


class SagaHarness:
    """Sagas in one process, in virtual time: nothing moves unless the test moves it, and nothing leaves the process.

    While it is open, whatever the process publishes waits in its broker, the backend is its own, in memory, and time stands
    still. Messages are handled by the code that workers run: the same unit of work, the same tasks, the same relay.

        with SagaHarness(app) as harness:
            harness.answer(charge_card, "r-1")
            harness.send(place_order, order_id="42", total=Decimal("9.99"))
            harness.run()
            harness.assert_state(Order, "42", receipt="r-1")

    Args:
        app: The Celery app; the current one if left out, which may be made later.
        now: The time at which the test begins; aware.
        most: The messages that one ``run`` or ``advance`` delivers at most, before it is an error that the scenario does not end.
    """

    def __init__(self, app: Celery | None = None, *, now: datetime = START, most: int = 10_000) -> None:
        if app is not None and not isinstance(app, Celery):
            raise TypeError(f"a SagaHarness takes a Celery app, not {type(app).__name__}")
        if not isinstance(now, datetime):
            raise TypeError(f"now= takes a datetime, not {type(now).__name__}")
        if now.tzinfo is None:
            raise ValueError(f"now= takes an aware time, and {now!r} names no time zone")
        self._app = app
        self._world = World(now, most)

    def __enter__(self) -> Self:
        self._world.open(self._app)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was replaced."""
        self._world.close()

    @property
    def now(self) -> datetime:
        """The virtual time: aware, UTC."""
        return self._world.now

    @property
    def sent(self) -> list[SentMessage]:
        """All messages that were sent, in order, including those of the test itself."""
        return list(self._world.broker.sent)

    @property
    def pending(self) -> list[SentMessage]:
        """The messages that wait in the broker, in the order in which they were sent; also those that are due later."""
        return list(self._world.broker.pending)

    @property
    def timeouts(self) -> list[ScheduledTimeout]:
        """The timeouts of all instances, the first due first; of a series its next one after now."""
        now = milliseconds(self.now)
        timeouts = [
            ScheduledTimeout(record.saga, record.key, name, timeout.step, utc_time(timeout.due_after(now)))
            for record in self._world.backend.records()
            for name, timeout in pending_of(record).timeouts.items()
        ]
        return sorted(timeouts, key=lambda timeout: timeout.due_at)

    @property
    def dead(self) -> list[DeadLetter]:
        """The dead letters, in the order in which they were made."""
        dead = self._world.backend.dead
        return dead.list(dead.count())[::-1]

    def state(self, saga: type[SagaT], key: object = None, /, **by: object) -> SagaT | None:
        """Return a read-only copy of an instance, or ``None``; its arguments are those of ``Saga.find``."""
        found: SagaT | None = copy_of(self._world.backend, _definition(saga), key, by, self._world.read_outcomes)
        return found

    def journal(self, saga: type[Saga], key: object = None, /, **by: object) -> list[Outcome]:
        """Return what became of the messages to instances with a key, in order."""
        return [read_entry(entry) for entry in self._entries(saga, key, by)]

    def send(self, task: Sendable[P], *args: P.args, **kwargs: P.kwargs) -> SentMessage:
        """Send a message, as ``task.delay(…)`` does, and return it; it waits to be delivered."""
        count = len(self._open_world.broker.sent)
        task.delay(*args, **kwargs)
        return self._world.broker.sent[count]

    def deliver(
        self,
        which: SentMessage | Named | str | None = None,
        *,
        crash: CrashPoint | None = None,
        fail: Exception | type[Exception] | None = None,
        silent: bool = False,
    ) -> SentMessage:
        """Deliver one message.

        Args:
            which: A message: if it was delivered before, it is delivered again, as brokers do now and then. A task, or its name:
                the first message that waits for it. Without it, the first message that is due.
            crash: Where the worker's process is killed while it handles the message: the broker then has the message again, if
                its task is ``acks_late``. Points that the message does not come by are at its end: what is sent was published,
                and nothing is acknowledged. What the process has not published waits for ``saga_dispatch_grace``.
            fail: What its task raises, this once, in the place of its own function; it is not retried.
            silent: Whether its task neither answers nor fails, this once.

        Returns:
            The message.

        Raises:
            ScenarioError: No such message waits; its task is not registered; or a step publishes past its commit.
            ValueError: There is no such point.
        """
        world = self._open_world
        message = which if isinstance(which, SentMessage) else self._waiting(which)
        stand_in = never_answer if silent else None
        world.deliver(message, crash, stand_in if fail is None else _failing(fail))
        return message

    def run(self) -> int:
        """Deliver messages in the order in which they were sent, with all that they cause, until nothing is due now.

        Returns:
            How many messages were delivered.

        Raises:
            ScenarioError: It does not end; or see ``deliver``.
        """
        return self._open_world.run()

    def advance(self, by: Delay) -> int:
        """Let time pass; deliver what falls due meanwhile, each when it is due, with all that it causes.

        Args:
            by: How long: a ``timedelta`` or seconds.

        Returns:
            How many messages were delivered.

        Raises:
            ScenarioError: It does not end; or see ``deliver``.
        """
        return self._open_world.advance(_milliseconds(by))

    def wait(self, by: Delay | None = None) -> None:
        """Let time pass without delivering anything: what falls due meanwhile waits in the broker.

        Args:
            by: How long: a ``timedelta`` or seconds; without it, until the next thing falls due.
        """
        world, now = self._open_world, milliseconds(self.now)
        world.wait(now + _milliseconds(by) if by is not None else world.next_due() or now)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens any more by itself: no message waits that is not held, and nothing falls due later."""
        held = self._world.held
        return all(message.task in held for message in self._world.broker.pending) and self._world.next_due() is None

    def is_due(self, message: SentMessage) -> bool:
        """Return whether ``run`` would deliver a message now: it is not held, and its time has come."""
        return self._world.is_due(message)

    def drop(self, message: SentMessage) -> None:
        """Have a message never delivered, as if the broker had lost it."""
        if message not in self._world.broker.pending:
            raise ScenarioError(f"{message} does not wait to be delivered", self._world.timeline.shown())
        self._world.broker.pending.remove(message)

    def answer(self, task: Named | str, result: object) -> None:
        """Have a task answer, from now on, in the place of its own function.

        Args:
            task: The task, or its name, which need not be registered here.
            result: What it returns; or a function that returns it, given the arguments of the message.
        """
        self._stand_in(task, result if callable(result) else lambda *_, **__: result)

    def progress(self, message: SentMessage, value: object) -> SentMessage:
        """Send an interim answer to a message that was sent with ``progress=``, as an instance does by ``reply(…, last=False)``.

        Args:
            message: The message: ``harness.assert_sent(task)[-1]`` is the last one to a task.
            value: The interim answer.

        Returns:
            Its message, which waits to be delivered.

        Raises:
            ScenarioError: The message names no step that takes interim answers.
        """
        return self._open_world.send_interim(message, value)

    def fail(self, task: Named | str, error: Exception | type[Exception]) -> None:
        """Have a task fail for good, from now on, with an error in the place of its own function; it is not retried."""
        self._stand_in(task, _failing(error))

    def silence(self, task: Named | str) -> None:
        """Have a task neither answer nor fail, from now on, as if its worker were lost each time."""
        self._stand_in(task, never_answer)

    def hold(self, task: Named | str) -> None:
        """Have the messages of a task wait, from now on, until the test delivers them by ``deliver``."""
        self._world.held.add(_name_of(task))

    def restore(self, task: Named | str) -> None:
        """Undo ``answer``, ``fail``, ``silence`` and ``hold``."""
        self._world.held.discard(_name_of(task))
        self._world.stand_ins.pop(_name_of(task), None)

    def timeline(self, saga: type[Saga] | None = None, key: object = None, /, **by: object) -> str:
        """Return what has happened to instances with a key, or to all: one line for each delivery of a message."""
        if saga is None:
            return self._world.timeline.shown()
        entries, definition = self._entries(saga, key, by), _definition(saga)
        record = self._world.backend.sagas.find(lookup_of(definition, key, by)).record
        instances = {entry.instance_id for entry in entries} | ({record.id} if record else set())
        completed = any(entry.outcome == "completed" for entry in entries)
        how = f"version {record.version}" if record else "completed" if completed else "never existed"
        shown = ", ".join([*([repr(key)] if key is not None else []), *(f"{name}={value!r}" for name, value in by.items())])
        return f"{saga.__name__} {shown}: {how}\n{self._world.timeline.shown(frozenset(instances))}"

    def assert_state(self, saga: type[SagaT], key: object = None, /, **fields: object) -> SagaT:
        """Assert that the instance with a key exists, with these values of its fields; return a copy of it."""
        if key is None:
            raise TypeError(f"assert_state() takes the key of an instance: assert_state({saga.__name__}, key, …)")
        found = self.state(saga, key)
        if found is None:
            raise ScenarioError(f"there is no {saga.__name__} {key!r}", self.timeline(saga, key))
        if unknown := [name for name in fields if name not in type(found).model_fields and not hasattr(found, name)]:
            raise TypeError(f"{saga.__name__} has no field {', '.join(unknown)}")
        different = {name: getattr(found, name, None) for name, value in fields.items() if getattr(found, name, None) != value}
        if different:
            problems = [f"{name} is {value!r}, not {fields[name]!r}" for name, value in different.items()]
            raise ScenarioError(f"{saga.__name__} {key!r}: {'; '.join(problems)}", self.timeline(saga, key))
        return found

    def assert_completed(self, saga: type[SagaT], key: object = None, /, *, by: Named | str | None = None) -> Outcome[SagaT]:
        """Assert that an instance has completed, and none with its key is alive; by a step, if one is given.

        Returns:
            The outcome, as ``Saga.outcome`` returns it.
        """
        last: Outcome[SagaT] | None = outcome_of(self._world.backend, _definition(saga), key, {})
        if last is None or self.state(saga, key) is not None:
            raise ScenarioError(f"{saga.__name__} {key!r} has not completed", self.timeline(saga, key))
        if by is not None and last.step != _name_of(by):
            problem = f"{saga.__name__} {key!r} was completed by {last.step}, not by {_name_of(by)}"
            raise ScenarioError(problem, self.timeline(saga, key))
        return last

    def assert_sent(self, task: Named | str, *args: object, times: int | None = None, **kwargs: object) -> list[SentMessage]:
        """Assert that a message was sent to a task; one that comes again for a retry of its step was sent once.

        Args:
            task: The task, or its name.
            *args: Its first arguments, as values of JSON, however they were given.
            times: How often, if that matters: 0 for never.
            **kwargs: Some of its arguments by their names, as values of JSON.

        Returns:
            The messages.
        """
        name, world = _name_of(task), self._world
        if name not in world.app.tasks and name not in world.stand_ins | dict.fromkeys(sent.task for sent in world.broker.sent):
            raise TypeError(f"there is no task {name!r}")
        parameters = _parameters(world.app.tasks.get(name))
        wanted_of = _named(parameters, args, kwargs)
        messages = [sent for sent in world.broker.sent if sent.task == name and not sent.headers.get(STEP_RETRIES)]
        found = [sent for sent in messages if wanted_of.items() <= _named(parameters, sent.args, sent.kwargs).items()]
        if len(found) != times if times is not None else not found:
            shown = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            wanted = "" if times is None else f", not {times} times"
            raise ScenarioError(f"{name}({shown}) was sent {len(found)} times{wanted}", self._world.timeline.shown())
        return found

    def assert_done(self) -> None:
        """Assert that nothing is left to do: no message waits, no instance has a timeout, and there is no dead letter."""
        left = [f"{message} waits" for message in self._world.broker.pending]
        left += [f"{each.saga} {each.key!r} has the timeout {each.name!r}, due at {each.due_at}" for each in self.timeouts]
        left += [f"{each.task} has failed: {each.error}: {each.text}" for each in self.dead]
        if left:
            raise ScenarioError("it is not done:\n" + "\n".join(f"  {each}" for each in left), self._world.timeline.shown())

    def replay(self, path: str | PathLike[str]) -> Saga | None:
        """Handle the messages of a history again with the steps of this process, and compare the state after each.

        Nothing is published, and neither the time nor the instances of this harness change.

        Args:
            path: A file that ``celery sagas export SAGA KEY`` has written.

        Returns:
            A read-only copy of the instance as it is then; ``None`` if it has completed.

        Raises:
            ScenarioError: The steps do something else with a message than they did; or it cannot be replayed.
            HistoryError: The file is no history, or that of an unknown saga.
        """
        history = History.from_text(Path(path).read_bytes())
        with replaying(self._world.app) as replay:
            replayed = replay(history)
        if replayed.difference or replayed.stopped:
            raise ScenarioError(str(replayed))
        state = replayed.state
        return state if isinstance(state, Saga) else None

    @property
    def _open_world(self) -> World:
        if not self._world.is_open:
            raise MisuseError("a SagaHarness is not open", "Write: with SagaHarness(app) as harness: …")
        return self._world

    def _entries(self, saga: type[Saga], key: object, by: Mapping[str, object]) -> list[Entry]:
        definition = _definition(saga)
        text = journal_key(definition, lookup_of(definition, key, by))
        return self._world.backend.journal.history(definition.names, text, _ALL)

    def _waiting(self, which: Named | str | None) -> SentMessage:
        pending = self._world.broker.pending
        name = None if which is None else _name_of(which)
        found = filter(self._world.is_due, pending) if name is None else (each for each in pending if each.task == name)
        message = next(iter(found), None)
        if message is None:
            what = "no message is due" if name is None else f"no message waits for {name}"
            raise ScenarioError(f"{what}; there are {', '.join(map(str, pending)) or 'none'}", self._world.timeline.shown())
        return message

    def _stand_in(self, task: Named | str, function: Callable[..., object]) -> None:
        self._world.stand_ins[_name_of(task)] = function


def _definition(saga: type[Saga]) -> SagaDefinition:
    if not isinstance(saga, type) or not issubclass(saga, Saga):
        raise TypeError(f"the class of a saga is wanted, not {saga!r}")
    if saga.__saga__ is None:
        raise TypeError(f"{saga.__qualname__} is abstract, and has no instances")
    return saga.__saga__


def _failing(error: Exception | type[Exception]) -> Callable[..., None]:
    if not isinstance(error, Exception) and not (isinstance(error, type) and issubclass(error, Exception)):
        raise TypeError(f"a task fails with an Exception, not with {error!r}")

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _milliseconds(by: Delay) -> int:
    seconds = seconds_of("by", by)
    if not seconds >= 0:  # nor is it that of NaN
        raise ValueError(f"time goes forward: {by} is less than nothing")
    return round(seconds * 1000)


def _name_of(task: Named | str) -> str:
    return task if isinstance(task, str) else task.name


def _parameters(task: Any) -> list[str]:
    """Return the names of a task's parameters, by which its arguments may be given."""
    if task is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in inspect.signature(task.run).parameters.values() if each.kind in kinds]


def _named(parameters: list[str], args: Sequence[object], kwargs: Mapping[str, object]) -> dict[object, object]:
    """Return arguments by the names of their parameters, or by their positions if they have none; as texts that compare."""
    names: list[object] = [*parameters, *range(len(parameters), len(args))]
    return {name: dumps(value) for name, value in [*zip(names, args, strict=False), *kwargs.items()]}
