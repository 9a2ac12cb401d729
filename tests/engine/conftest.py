"""The engine without Celery: a real store in memory, and a publisher that keeps what it is given."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from celery_sagas.core.requests.answers import NO_VALUE
from celery_sagas.core.requests.requests import Addressed, Request, ReturnAddress
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition, define_step
from celery_sagas.engine import conflicts
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.handling import Services, handle
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.engine.outbox.publishing import OutgoingMessage, Publisher, Receipt
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.session import Deferral, Delivery, Session
from celery_sagas.engine.waves import Batch, BatchedMessage
from celery_sagas.errors import PublishError
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Change, Entry, Handling, Lookup, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import by_id, effects, found
from celery_sagas.worker.asking.undo import UndoOutcomes
from tests.apps import Interposed

GRACE_S = 30.0
#: Milliseconds since the epoch.
NOW = 1_800_000_000_000


class Order(State, correlate_by="order_id", also_by=("tracking", "email")):
    """An order."""

    order_id: str
    total: int = 0
    tracking: str | None = None
    email: str | None = None
    note: str = ""


class Boom(Exception):
    """What a handler raises."""


class Recorder(Publisher):
    """A publisher that keeps what it is given, or fails; it publishes one by one."""

    inline = False

    def __init__(self) -> None:
        self.published: list[OutgoingMessage] = []
        self.errors: list[PublishError | None] = []

    def publish(self, message: OutgoingMessage) -> None:
        """Keep a message, or raise the next error."""
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.published.append(message)

    def probe(self) -> None:
        """Take messages."""

    def close(self) -> None:
        """Close nothing."""

    @property
    def ids(self) -> list[str]:
        """The ids of what was published, in order."""
        return [message.message_id for message in self.published]


class Batching(Recorder):
    """A publisher that confirms some of the rows that it publishes at once, and keeps which it was given."""

    def __init__(self, *confirmed: str, unconfirmed: Sequence[str] = ()) -> None:
        super().__init__()
        self.confirmed = {f"row-{name}" for name in confirmed}
        self.unconfirmed = {f"row-{name}" for name in unconfirmed}
        self.given: list[str] = []

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Receipt:
        """Keep the rows, and confirm those that it is to confirm."""
        ids = [message.id for message in messages]
        self.given += ids
        return Receipt(self.confirmed.intersection(ids), self.unconfirmed.intersection(ids))


class Asynchronous(Recorder):
    """A publisher that keeps what is posted, and confirms what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[str] = []
        self.confirmed: list[str] = []
        self.answers: list[PublishError | bool] = []  #: what comes of the next: an error, or whether it is written

    def post(self, messages: Iterable[OutgoingMessage]) -> int:
        """Keep messages, until one is not to be kept, or raise the next error."""
        count = len(self.posted)
        for message in messages:
            answer = self.answers.pop(0) if self.answers else True
            if isinstance(answer, PublishError):
                raise answer
            if not answer:
                break
            self.posted.append(message.id)
        return len(self.posted) - count

    def collect(self) -> list[str]:
        """Return what is confirmed."""
        confirmed, self.confirmed = self.confirmed, []
        self.posted = [id for id in self.posted if id not in confirmed]
        return confirmed

    def awaited(self) -> frozenset[str]:
        """Return what is neither confirmed nor told to be lost."""
        return frozenset(self.posted)


def patient(batch: Batch) -> Batch:
    """Let a batch take its time, however busy the machine is."""
    batch._until = math.inf
    return batch


class Engine:
    """The services of one process over one backend."""

    def __init__(
        self, backend: MemoryBackend, *, conflict_retries: int = 5, state_bytes: int = 1_000_000, is_batching: bool = False
    ) -> None:
        self.backend = backend
        self.is_batching = is_batching  #: whether a message is handled in a batch first, as in a worker
        self.publisher = Recorder()
        self.session: Session | None = None  #: of the last message, as it ended
        dispatcher = Dispatcher(backend.outbox, self.publisher, GRACE_S)
        terms = WorkTerms(_freeze, _answer, UndoOutcomes(_answer), Deferred(), state_bytes, dispatcher.owner, int(GRACE_S * 1000))
        self.services = Services(backend, dispatcher, terms, conflict_retries, self._revoke)
        self.revoked: list[str] = []  #: ids of requests
        self.now = NOW  #: as the steps see it

    def _revoke(self, outcome: Outcome, requests: Sequence[Request], tasks: Sequence[str]) -> None:
        self.revoked += [*(request.id for request in requests), *tasks]

    def handle(
        self,
        step: StepDefinition,
        *,
        id: str | None = None,
        causation: Mapping[str, str] | None = None,
        addressed: Addressed | None = None,
        asked_by: ReturnAddress | None = None,
        since: int | None = None,
        **arguments: Any,
    ) -> Outcome:
        """Handle a message, under a new id if none is given."""
        self.session = session = Session(id or str(uuid4()), dict(causation or {}))
        delivery = Delivery(step, session.message_id, arguments, session, _call, addressed, return_address=asked_by)
        delivery = delivery._replace(deferral=partial(self.deferral, delivery, since))
        outcome = (self.handle_together(delivery)[0] if self.is_batching else None) or handle(self.services, delivery)
        self.services.dispatcher.confirmations.flush()  # as happens a moment later
        return outcome

    def deferral(self, delivery: Delivery, since: int | None = None) -> Deferral:
        """Return what is needed to defer a message."""
        id, payload = delivery.message_id, json.dumps(delivery.bound)
        return Deferral(since or self.now, self.now, lambda: SerializedMessage(id, id, delivery.step.name, payload))

    def handle_together(self, *deliveries: Delivery) -> list[Outcome | None]:
        """Handle messages in one batch; those without an outcome are to be handled alone."""
        batch = patient(Batch(self.services, [BatchedMessage(delivery, nullcontext) for delivery in deliveries]))
        batch.handle()
        return batch.outcomes

    def interpose(self) -> Interposed:
        """Let something happen around the operations of this engine's store, and not of the rivals'."""
        backend = SimpleNamespace(**vars(self.backend), has_audit=self.backend.has_audit)
        backend.sagas = store = Interposed(self.backend.sagas)
        backend.many = partial(Backend.many, backend)
        services = self.services
        self.services = replace(services, backend=backend)  # type: ignore[arg-type]
        return store

    def record(self, key: str = "42", property: str = KEY) -> Record | None:
        """Look an order up."""
        return self.backend.sagas.find(Lookup(("order",), property, key)).record

    def rewrite(self, **values: Any) -> Record:
        """Have the store keep other values in the order 42, such as another pending map; return it."""
        record = self.record()
        assert record is not None, "there is no order 42"
        kept = {"schema_version": record.schema_version, "data": record.data, "pending": record.pending}
        self.backend.sagas.update(record, Change((record.saga,), **{**kept, **values}), effects(record))
        return found(self.backend, by_id(record.id))

    def data(self, key: str = "42") -> dict[str, Any]:
        """Return an order's stored fields."""
        record = self.record(key)
        assert record is not None, f"there is no order {key}"
        data: dict[str, Any] = json.loads(record.data)
        return data

    def entries(self, key: str = "42") -> list[Entry]:
        """Return the journal of an order."""
        return self.backend.journal.history(["order"], key, 100)

    def entry(self, step: StepDefinition, id: str) -> Entry | None:
        """Return the journal's entry of a message."""
        return self.backend.sagas.find(Lookup(("order",), KEY, "none"), Handling((step.name,), id)).handled


def starter(
    function: Callable[..., Any], *, if_exists: str = "handle", saga: type[State] = Order, by: Any = None, **moment: Any
) -> StepDefinition:
    """Make a starter of a function."""
    return define_step(saga.__saga__, function, starts=True, policy=if_exists, by=by, formerly=None, **moment, options={})


def handler(
    function: Callable[..., Any],
    *,
    if_missing: str = "ignore",
    saga: type[State] = Order,
    by: Any = None,
    formerly: str | None = None,
    **moment: Any,
) -> StepDefinition:
    """Make a handler of a function."""
    return define_step(saga.__saga__, function, starts=False, policy=if_missing, by=by, formerly=formerly, **moment, options={})


def send(order: State, message: object) -> str:
    """Send a message from a handler."""
    assert order._context is not None
    return order._context.require_sending("send").send(message)


def _freeze(message: object, next_id: Callable[[], str]) -> SerializedMessage:
    message_id = next_id()
    return SerializedMessage(message_id, message_id, str(message), json.dumps(message))


def _answer(requester: Mapping[str, Any], value: object) -> SerializedMessage:
    return SerializedMessage(
        f"answer to {requester['request']}", "", "answer", json.dumps("no value" if value is NO_VALUE else value)
    )


class Deferred:
    """What a deferred message holds, which is JSON here."""

    def is_admitted(self, step: StepDefinition, state: State, payload: str) -> bool:
        """Return whether a step runs on an instance for a message."""
        try:
            return step.admits(state, step.arguments.validate(json.loads(payload)))
        except Exception:
            return True

    def message(self, task: str, id: str, bound: Mapping[str, Any]) -> SerializedMessage:
        """Return a message to a step."""
        return SerializedMessage(id, id, task, json.dumps(bound))

    def wake(self, saga: SagaDefinition, instance_id: str, id: str, due_at: int) -> SerializedMessage:
        """Return the message that ends the waiting."""
        return SerializedMessage(id, id, f"{saga.name}.(deferred)", "{}", due_at)


def _call(function: Any, first: Any, **arguments: Any) -> Any:
    return function(first, **arguments)


@pytest.fixture
def clock() -> Clock:
    """The store's clock."""
    return Clock()


@pytest.fixture
def backend(clock: Clock) -> MemoryBackend:
    """A backend in memory."""
    return MemoryBackend("memory://", prefix="", clock=clock)


#: For tests that count the runs, or pauses, of a message that is handled alone.
alone = pytest.mark.parametrize("engine", ["alone"], indirect=True)


@pytest.fixture(params=["alone", "batch"])
def engine(request: pytest.FixtureRequest, backend: MemoryBackend) -> Engine:
    """The engine under test, which handles each message alone, or in a batch first."""
    return Engine(backend, is_batching=request.param == "batch")


@pytest.fixture
def rival(backend: MemoryBackend) -> Engine:
    """Another process on the same backend."""
    return Engine(backend, conflict_retries=0)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses after conflicts, which are not slept."""
    slept: list[float] = []
    monkeypatch.setattr(conflicts, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    return slept
