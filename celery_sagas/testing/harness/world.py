"""The world of a test: a clock, a broker, a backend, and a worker with its relay, which move only when the test moves them."""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.states import READY_STATES

from celery_sagas import clock
from celery_sagas.core.requests.requests import Request
from celery_sagas.core.requests.views import MemberOutcomes
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.outbox.confirmations import Confirmations
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.relay import Relay
from celery_sagas.testing.harness.broker import Broker, SentMessage, TestPublisher
from celery_sagas.testing.harness.crashes import Crash, CrashPoint, WatchedBackend, check_point
from celery_sagas.testing.harness.delivering import Delivered, StandIn, deliver
from celery_sagas.testing.harness.real_time import warn_of_real_time
from celery_sagas.testing.harness.timeline import Line, ScenarioError, Timeline, shown_outcome
from celery_sagas.worker.celery_internals import add_task, as_current_app, is_stand_in, present_app, unregister
from celery_sagas.worker.headers import CAUSATION, read_return_address_of
from celery_sagas.worker.isolation import local, publishing_to
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import Runtime, runtime_of, runtimes_opened_by
from celery_sagas.worker.sessions import current_session
from celery_sagas.worker.targets import interim_answer

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class _PromptConfirmations(Confirmations):
    """Removes published rows at once, without a thread of its own."""

    def add(self, ids: Sequence[str], kept: Sequence[str] = ()) -> None:
        self.add_now([*ids, *kept])


class World:
    """Everything around the code under test.

    Args:
        start: The time at which the test begins; aware.
        most: The messages that one ``run`` or ``advance`` delivers at most.
    """

    def __init__(self, start: datetime, most: int) -> None:
        self._ms = milliseconds(start)
        self.is_open = False
        self.crash = Crash()
        self.backend = WatchedBackend(lambda: self._ms, self.crash)
        self.broker = Broker(self.crash, self._check_publisher)
        self.timeline = Timeline(self.now)
        self.stand_ins: dict[str, StandIn] = {}  #: by the name of a task
        self.held: set[str] = set()  #: names of tasks whose messages are not delivered by themselves
        self._most = most
        self._closing = ExitStack()
        self._given: Celery | None = None
        self._apps: list[Celery] = []  #: that have published something, or handled it
        self._relay: tuple[Celery, Relay] | None = None
        self._is_delivering = False
        self._outcome: Outcome | None = None
        self._problems: list[str] = []
        self._revoked: set[str] = set()  #: ids of tasks that need not begin
        self._looked_at: set[str] = set()  #: steps whose source was searched for the real time

    @property
    def now(self) -> datetime:
        """The time: aware, UTC."""
        return datetime.fromtimestamp(self._ms / 1000, UTC)

    def open(self, app: Celery | None) -> None:
        """Put this world in the place of the real one, for every app of the process."""
        with ExitStack() as opening:
            opening.enter_context(clock.replaced_by(lambda: self._ms / 1000))
            self._runtimes = opening.enter_context(runtimes_opened_by(self._open_runtime))
            opening.enter_context(publishing_to(self.broker.accept, self.attach))
            opening.enter_context(as_current_app(app))
            opening.callback(random.setstate, random.getstate())
            random.seed(0)  # of the pauses before retries, which the same test has each time
            self._closing = opening.pop_all()
        self.is_open, self._given = True, app
        if (present := app or present_app()) is not None:
            self.attach(present)  # it may be eager

    def close(self) -> None:
        """Put the real world back."""
        self.is_open = False
        self._closing.close()

    def attach(self, app: Celery) -> None:
        """Have an app's tasks run here only."""
        if app not in self._apps:
            self._apps.append(app)
            self._closing.enter_context(_moved(app))

    @property
    def app(self) -> Celery:
        """The app that the test is about: the given one, or the current one."""
        present = self._given or present_app()
        app = present if present and not is_stand_in(present) else next(iter(self._apps[::-1]), None)
        if app is None or is_stand_in(app):
            raise ScenarioError("there is no Celery app: make it, import the module that does, or give it, SagaHarness(app)")
        return app

    def _open_runtime(self, app: Celery) -> Runtime:
        self.attach(app)
        runtime = Runtime(app, self.backend, TestPublisher(app, self.broker, self.crash))
        runtime.resend_after_s = 0.0  # the test's broker loses nothing: a message that is held comes once
        dispatcher = runtime.services.dispatcher
        dispatcher.confirmations = _PromptConfirmations(*_parts(dispatcher.confirmations))
        runtime.observe = self._note
        runtime.revoke = self._revoked.update
        runtime.pause = self._let_pass
        return runtime

    def read_outcomes(self, saga: SagaDefinition, instance_id: str, request: Request) -> MemberOutcomes:
        """Return what has come of the members of a gather so far."""
        return runtime_of(self.app).read_outcomes(saga, instance_id, request)

    def _note(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def _check_publisher(self, app: Celery, task: str) -> None:
        """Note a message that a step publishes directly: it would be sent even if the step failed."""
        session = current_session()
        if session is None or session.sending is None or runtime_of(app).settings.direct_publish == "allow":
            return
        self._problems.append(
            f"{session.sending.step} publishes {task} itself: it is sent even if the step fails, and again whenever it runs. "
            "Use send(), or set saga_direct_publish = 'allow'"
        )

    def is_due(self, message: SentMessage) -> bool:
        """Return whether a message is delivered by itself now."""
        return message.task not in self.held and (message.due_at is None or milliseconds(message.due_at) <= self._ms)

    def deliver(self, message: SentMessage, crash: CrashPoint | None = None, stand_in: StandIn | None = None) -> None:
        """Deliver a message; one that was acknowledged before is delivered again, as a broker may do.

        Args:
            message: The message.
            crash: Where the process ends that handles it.
            stand_in: Runs in the place of its task, this once.

        Raises:
            ScenarioError: Its task is not known; or a step publishes directly.
        """
        if self._is_delivering:
            raise ScenarioError(f"{message} cannot be delivered while another message is: send it, and deliver it afterwards")
        check_point(crash)
        stand_in = stand_in or self.stand_ins.get(message.task)
        self._look_at_task(message, stand_in)
        if message in self.broker.pending:
            self.broker.pending.remove(message)
        sent, dead = len(self.broker.sent), self.backend.dead.count()
        self._outcome, self._problems = None, []
        delivered, killed = self._deliver(message, crash, stand_in)
        if delivered.is_kept:
            self.broker.pending.append(message)
        what = self._what_happened(message, delivered, killed, self.broker.sent[sent:], stand_in is never_answer)
        if self.backend.dead.count() > dead:
            what += "; kept as a dead letter"
        self._add_to_timeline(message, what)
        if self._problems:
            raise ScenarioError(self._problems[0], self.timeline.shown())

    def send_interim(self, message: SentMessage, value: object) -> SentMessage:
        """Send an interim answer to a message, and return it."""
        address = read_return_address_of(Context(headers=dict(message.headers)))
        sent = None if address is None else interim_answer(message.app, address.to_json(), value)
        if sent is None:
            raise ScenarioError(f"{message} was not sent with progress=, so that no step takes {value!r}", self.timeline.shown())
        count = len(self.broker.sent)
        runtime_of(message.app).publisher.publish_signature(sent)
        return self.broker.sent[count]

    def _deliver(
        self, message: SentMessage, crash: CrashPoint | None, stand_in: StandIn | None
    ) -> tuple[Delivered, CrashPoint | None]:
        """Deliver a message; return what became of it, and where its process was killed."""
        is_expired = message.id in self._revoked or (message.expires_at is not None and message.expires_at < self.now)
        self._is_delivering = True
        try:
            with as_current_app(message.app):
                self.crash.plan(crash)
                delivered = deliver(message, self.crash, is_expired=is_expired, stand_in=stand_in)
        finally:
            self._is_delivering, killed = False, self.crash.happened
            self.crash.plan(None)
        if killed:
            self._end_process(message.app)
        return delivered, killed

    def _look_at_task(self, message: SentMessage, stand_in: StandIn | None) -> None:
        name = message.task
        message.app = app = next((each for each in (message.app, *self._apps) if name in each.tasks), message.app)
        if name not in app.tasks:
            if stand_in is None:
                remedy = f"import its module, or say what comes of it: harness.answer({name!r}, …), fail or silence"
                raise ScenarioError(f"no task {name!r} is registered: {remedy}", self.timeline.shown())
            add_task(app, never_answer, name=name, acks_late=True, typing=False)
            self._closing.callback(unregister, app, name)
        step = getattr(app.tasks[name], "saga_step", None)
        if step is not None and name not in self._looked_at:
            self._looked_at.add(name)
            warn_of_real_time(step.function)

    def _end_process(self, app: Celery) -> None:
        """Go on with a new process, which knows nothing of what the one before has leased, or has not confirmed."""
        self._runtimes.pop(app, None)
        self._relay = None

    def _what_happened(
        self, message: SentMessage, delivered: Delivered, killed: CrashPoint | None, sent: list[SentMessage], is_silent: bool
    ) -> str:
        if killed:
            return f"worker killed {killed.replace('_', ' ')}{'' if delivered.is_kept else '; acknowledged early: lost'}"
        if self._outcome is not None:
            return shown_outcome(self._outcome, [each.task for each in sent])
        if delivered.is_expired or is_silent:
            return "expired" if delivered.is_expired else "never answers"
        again = next((each.task for each in sent if each.id == message.id), "")
        return _shown(delivered, "comes again later" if again == message.task else f"replaced by {again}" if again else "ignored")

    def _add_to_timeline(self, message: SentMessage, what: str) -> None:
        outcome = self._outcome
        instances = {str(id) for id in (message.headers.get(CAUSATION) or {}).values()}
        if outcome is not None and outcome.instance_id:
            instances.add(outcome.instance_id)
        self.timeline.add(Line(self.now, message, message.id, what, frozenset(instances)))

    def run(self) -> int:
        """Deliver what is due, in order, until nothing is; return how many messages were delivered."""
        return self._run(self._most)

    def _run(self, most: int) -> int:
        count = 0
        while True:
            message = next(filter(self.is_due, self.broker.pending), None)
            if message is None:
                if not self._sweep():
                    return count
                continue
            if count >= most:
                problem = f"it does not end: {self._most:,} messages were delivered, and SagaHarness(most=…) allows no more"
                raise ScenarioError(f"{problem}. The last ones:", self.timeline.last())
            self.deliver(message)
            count += 1

    def _sweep(self) -> bool:
        """Have the relay publish what is due; return whether it published anything."""
        due = self.backend.next_due()
        if due is None or due > self._ms:
            return False
        sent = len(self.broker.sent)
        self._use_relay()
        return len(self.broker.sent) > sent

    def _use_relay(self) -> None:
        """Have the relay do what it does once in an interval."""
        app, relay = self._open_relay()
        with as_current_app(app):
            relay.sweep()

    def _open_relay(self) -> tuple[Celery, Relay]:
        app = self.app
        if self._relay is None or self._relay[0] is not app:
            self._relay = app, open_relay(runtime_of(app), clock=lambda: self._ms / 1000)
        return self._relay

    def advance(self, ms: int) -> int:
        """Let time pass, and deliver what falls due meanwhile, when it does; return how many messages were delivered."""
        target, count = self._ms + ms, 0
        if self.broker.sent:
            self._open_relay()  # it begins before time passes
        while True:
            count += self._run(self._most - count)
            due = self.next_due()
            if due is None or due > target:
                break
            self._ms = due
        self._ms = target
        if self.broker.sent:
            self._use_relay()  # it forgets what is old
        return count

    def _let_pass(self, seconds: float) -> None:
        """Let time pass for plain code that waits for what the messages do."""
        self.advance(math.ceil(seconds * 1000))

    def wait(self, until: int) -> None:
        """Let time pass, and have the relay publish what falls due; deliver nothing.

        Args:
            until: Milliseconds since the epoch.
        """
        while (due := self.backend.next_due()) is not None and due <= until and due >= self._ms:
            self._ms = due
            if not self._sweep():
                break
        self._ms = max(until, self._ms)
        if self.broker.sent:
            self._use_relay()

    def next_due(self) -> int | None:
        """Return when the next thing happens by itself, if nothing happens now; in milliseconds since the epoch.

        What is due already, and cannot be published yet, is tried again with the next sweep.
        """
        messages = [message for message in self.broker.pending if message.task not in self.held]
        times = [milliseconds(message.due_at) for message in messages if message.due_at]
        if (in_backend := self.backend.next_due()) is not None:
            times.append(in_backend)
        sweep = self._ms + int(runtime_of(self.app).settings.relay_interval * 1000) if times else 0
        return min((time if time > self._ms else sweep for time in times), default=None)


def never_answer(*_: object, **__: object) -> None:
    """Stand in for a task: neither answers nor fails, as if its worker were lost."""
    raise Ignore()


def _shown(delivered: Delivered, ignored: str) -> str:
    """Return what became of a message.

    Args:
        delivered: Its delivery.
        ignored: The same, if its task has ignored it.
    """
    error = delivered.error
    if error is None:
        return f"returned {delivered.result}"
    if isinstance(error, Retry):
        return f"is retried: {error}"
    if isinstance(error, Ignore):
        return ignored
    if isinstance(error, Reject):
        return "rejected, and requeued" if delivered.is_kept else "rejected"
    return f"raised {error!r}"


@contextmanager
def _moved(app: Any) -> Iterator[None]:
    """Have an app publish its messages, with its results in memory and in virtual time, whatever its settings say."""
    is_moved = "now" in app.__dict__  # by a harness around this one
    app.now = lambda: clock.now().astimezone(app.timezone)
    with local(app):
        app.backend.wait_for = partial(_look_once, app.backend)
        try:
            yield
        finally:
            if not is_moved:
                del app.now


def _look_once(results: Any, task_id: str, *_: object, **__: object) -> Any:
    """Return the result of a task, in the place of waiting for it."""
    meta = results.get_task_meta(task_id)
    if meta["status"] not in READY_STATES:
        raise ScenarioError(f"nothing delivers the message of {task_id} while its result is waited for: deliver it first")
    return meta


def milliseconds(time: datetime) -> int:
    """Return a time in milliseconds since the epoch, rounded up."""
    return -((_EPOCH - time) // _MILLISECOND)


def _parts(confirmations: Confirmations) -> tuple[Any, ...]:
    return confirmations.outbox, confirmations.owner, confirmations.lasts_s, confirmations.publisher
