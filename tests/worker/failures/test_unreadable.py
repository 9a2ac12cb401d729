"""Messages that cannot be read: each is refused, and the worker goes on; errors of brokers and stores pass."""

from functools import partial
from ssl import SSLCertVerificationError
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state
from celery.worker.request import Request as CeleryRequest
from kombu.common import QoS
from kombu.exceptions import ContentDisallowed

from celery_sagas.errors import StoreUnavailable
from celery_sagas.worker.failures.redelivery import HELD_S, Hold
from celery_sagas.worker.failures.unknown import refuse
from celery_sagas.worker.failures.unreadable import context_of, guard_consumer, guard_pool, guard_targets, refusing, request_of
from celery_sagas.worker.headers import MESSAGE_ID, STEP
from tests.apps import backend_of


class Message:
    """A message as kombu delivers it, without fault unless one is given."""

    def __init__(self, payload: Any = ([], {}, {}), **headers: Any) -> None:
        self.headers = {"task": "order.place", "id": "m1", **headers}
        self.properties: dict[str, Any] = {}
        self.delivery_info: dict[str, Any] = {}
        self.body, self.content_type, self.content_encoding = b"", "application/json", "utf-8"
        self.payload = payload
        self.acknowledged = self.requeued = False

    def reject_log_error(self, *_: Any, requeue: bool = False) -> None:
        """Reject it."""
        assert not self.acknowledged
        self.acknowledged, self.requeued = True, requeue


class Consumer:
    """A worker's consumer that raises an error over each message."""

    connection_errors = (OSError, KeyError)  # as on Redis

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def create_task_handler(self) -> Any:
        """Return what takes a message."""

        def on_task_received(message: Message) -> None:
            raise self.error

        return on_task_received


class Refused(list[tuple[Message, Exception]]):
    """What was refused."""

    def __init__(self, *, is_over: bool = True) -> None:
        super().__init__()
        self.is_over = is_over

    def __call__(self, consumer: Any, message: Any, error: Exception) -> bool:
        self.append((message, error))
        return self.is_over


#: What would be taken for the loss of the connection.
AS_IF_LOST = KeyError("NO_SUCH_TENANT")
UNREADABLE = [AS_IF_LOST, TypeError(), ValueError(), RecursionError(), AttributeError(), ContentDisallowed(), OverflowError()]
PASSING = [
    ConnectionError(),
    OSError(),
    SSLCertVerificationError(),  # a ValueError, too
    StoreUnavailable("memory://", "it is away"),
    RuntimeError("can't start new thread"),
    MemoryError(),
    SystemExit(),
]


@pytest.fixture(autouse=True)
def no_worker_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have none of this process end because of what a test has met."""
    monkeypatch.setattr(state, "should_stop", None)


class TestConsumer:
    """What the consumer raises over a message."""

    @pytest.mark.parametrize("error", UNREADABLE, ids=repr)
    def test_refuses_what_cannot_be_read(self, error: Exception) -> None:
        guard_consumer(consumer := Consumer(error), refused := Refused())
        consumer.create_task_handler()(message := Message(id=5))

        assert refused == [(message, error)]
        assert message.acknowledged

    @pytest.mark.parametrize("error", UNREADABLE, ids=repr)
    def test_ends_over_a_message_without_fault(self, error: Exception) -> None:
        """It fails in what a project has put there; the message comes again."""
        guard_consumer(consumer := Consumer(error), refused := Refused())

        with pytest.raises(RuntimeError if error is AS_IF_LOST else type(error)) as raised:
            consumer.create_task_handler()(message := Message())
        assert repr(error) in repr(raised.value)
        assert not message.acknowledged
        assert refused == []
        assert state.should_stop == 1  # where Celery swallows it

    @pytest.mark.parametrize("error", PASSING, ids=repr)
    def test_lets_others_pass(self, error: BaseException) -> None:
        guard_consumer(consumer := Consumer(error), refused := Refused())

        with pytest.raises(type(error)):
            consumer.create_task_handler()(message := Message())
        assert not message.acknowledged
        assert refused == []

    def test_leaves_a_message_that_cannot_be_kept(self) -> None:
        """It goes back to the broker."""
        guard_consumer(consumer := Consumer(ValueError()), Refused(is_over=False))
        consumer.create_task_handler()(message := Message(id=5))

        assert not message.acknowledged


class Request(CeleryRequest):
    """A request, as far as it is handed to a pool, or called by one."""

    acknowledged: Any = False

    def __init__(self, message: Any = None) -> None:
        super().__init__(message or Message(), task=SimpleNamespace(ignore_result=True))
        self.rejected: list[bool] = []

    def reject(self, requeue: bool = False) -> None:
        """Reject its message."""
        self.rejected.append(requeue)


class Foreign(Request):
    """A request of a project's own that cannot be read, whatever its message is."""

    @property
    def stamps(self) -> Any:
        """Fail."""
        raise AS_IF_LOST


def test_pool_without_processes_has_the_task_fail_that_cannot_be_run() -> None:
    """As a pool of processes does; Celery would drop the error, and keep the message."""

    def run(error: BaseException | None) -> str:
        if error:
            raise error
        return "done"

    run.__module__ = "celery.app.trace"
    pool: Any = SimpleNamespace(on_apply=lambda target, args, **_: target(*args))
    guard_targets(pool)

    with pytest.raises(ZeroDivisionError):
        pool.on_apply(lambda: 1 / 0, ())
    assert pool.on_apply(run, (None,)) == "done"
    failed, info, _ = pool.on_apply(run, (KeyError("task"),), callback=None)
    assert (failed, type(info.exception.exc)) == (1, KeyError)
    with pytest.raises(SystemExit):
        pool.on_apply(run, (SystemExit(),))


class TestPool:
    """What handing a message over to the pool raises."""

    @staticmethod
    def worker_of(error: BaseException, jobs: Any = ()) -> Any:
        """Return a worker that raises an error over each message."""
        released: list[None] = []

        def process(request: Any) -> None:
            raise error

        pool = SimpleNamespace(_pool=SimpleNamespace(_cache=dict(enumerate(jobs))))
        release = lambda: released.append(None)  # noqa: E731
        return SimpleNamespace(
            _process_task=process, pool=pool, consumer=Consumer(error), _quick_release=release, released=released
        )

    def test_refuses_what_cannot_be_handed_over(self) -> None:
        """The slot of the pool is free again, and the pool waits for nothing."""
        discarded: list[Any] = []
        request, other = Request(Message(id="\0")), Request(Message(id="\0"))
        jobs = [SimpleNamespace(_callback=each.on_success, discard=partial(discarded.append, each)) for each in (request, other)]
        guard_pool(worker := self.worker_of(error := RecursionError(), jobs), refused := Refused())
        state.task_reserved(request)
        worker._process_task(request)

        assert refused == [(request.message, error)]
        assert request.rejected == [False]
        assert len(worker.released) == 1
        assert discarded == [request]
        assert "\0" not in state.requests

    def test_does_not_reject_what_has_ended(self) -> None:
        """Without processes, the task runs there."""
        guard_pool(worker := self.worker_of(ValueError()), refused := Refused())
        request = Request(Message(id="\0"))
        request.acknowledged = True
        worker._process_task(request)

        assert (refused, request.rejected) == ([], [])

    @pytest.mark.parametrize(
        "message",
        [
            Message(timelimit=["a", 1]),
            Message(timelimit=[None, -1]),
            Message(timelimit=[float("nan"), None]),
            Message(timelimit=[10**400, None]),
            Message(timelimit=[5]),
            Message(timelimit=5),
            Message(shadow=["a"]),
            Message(id=["a"]),
            Message(stamps="a", stamped_headers=["a"]),
            Message("abc"),
            Message((None, {}, {})),
            Message(([], [], {})),
            Message(([], {}, 5)),
            Message(([], {}, {"chain": [{}]})),
            Message(([], {}, {"callbacks": [1], "errbacks": [1]})),
            Message(([], {}, {"chord": {"task": "a", "options": []}})),
            Message(([], {}, {"errbacks": [{"task": 5}]})),
            Message(([], {}, {"callbacks": "a"})),
            Message(([], {}, {"callbacks": [None]})),
        ],
        ids=lambda message: str((message.headers, message.payload))[:80],
    )
    def test_refuses_what_the_pool_would_choke_on(self, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
        """Later, where nobody could refuse it any more; other tasks run meanwhile."""
        monkeypatch.setitem(state.requests, "another", object())
        handed: list[Any] = []
        worker = SimpleNamespace(_process_task=handed.append, pool=None, consumer=None)
        guard_pool(worker, refused := Refused())
        worker._process_task(Request(message))
        worker._process_task(good := Request())

        assert [message for message, _ in refused] == [message]
        assert handed == [good]

    def test_hands_over_what_only_a_project_cannot_read(self) -> None:
        """Celery fails over it, or does not."""
        handed: list[Any] = []
        guard_pool(worker := SimpleNamespace(_process_task=handed.append, pool=None, consumer=None), refused := Refused())
        worker._process_task(request := Foreign())

        assert (handed, refused) == ([request], [])

    @pytest.mark.parametrize("error", [*PASSING, *UNREADABLE], ids=repr)
    def test_lets_others_pass(self, error: BaseException) -> None:
        """They are about the pool, the process or the project, and the message is a good one."""
        guard_pool(worker := self.worker_of(error), refused := Refused())

        with pytest.raises(RuntimeError if error is AS_IF_LOST else type(error)) as raised:
            worker._process_task(request := Request())
        assert repr(error) in repr(raised.value)
        assert (refused, request.rejected) == ([], [])
        assert worker.released == ([None] if isinstance(error, Exception) else [])
        assert state.should_stop == (1 if error in UNREADABLE else None)


def test_failing_callback_rejects_the_message() -> None:
    """The pool drops the error, and nobody else would."""

    class Failing(Request):
        @refusing
        def on_failure(self) -> None:
            raise TypeError

    request = Failing()
    request.on_failure()

    assert request.rejected == [False]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_callback_that_fails_over_the_process_rejects_nothing(error: BaseException) -> None:
    class Failing(Request):
        @refusing
        def on_failure(self) -> None:
            raise error

    request = Failing()
    with pytest.raises(type(error)):
        request.on_failure()

    assert request.rejected == []


class TestRefuse:
    """What becomes of a refused message."""

    def test_keeps_what_is_ours(self, app: Celery) -> None:
        consumer: Any = SimpleNamespace(app=app)
        consumer.saga_hold = Hold(consumer)

        assert refuse(consumer, Message(**{STEP: True, "get": 1, "headers": [], "retries": "\0"}), ValueError("it is odd"))

        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.message_id, dead_letter.error, dead_letter.text) == (
            "order.place",
            "m1",
            "ValueError",
            "it is odd",
        )

    def test_others_are_not_kept(self, app: Celery) -> None:
        assert refuse(SimpleNamespace(app=app), Message(), ValueError())
        assert backend_of(app).dead.list(10) == []

    def test_what_cannot_be_kept_is_rejected(self, app: Celery, caplog: pytest.LogCaptureFixture) -> None:
        message = Message(**{STEP: True})
        message.properties = None  # type: ignore[assignment]

        assert refuse(SimpleNamespace(app=app), message, ValueError())
        assert "cannot be kept as a dead letter, and is rejected" in caplog.text

    @pytest.mark.parametrize("error", PASSING[:-1], ids=repr)
    @pytest.mark.parametrize("header", [{STEP: True}, {}], ids=["ours", "other"])
    def test_what_cannot_be_kept_or_told_now_comes_again(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch, header: Any, error: Exception
    ) -> None:
        """After a while: it does not go round at full speed."""

        def fail(*_: Any, **__: Any) -> None:
            raise error

        held: list[tuple[float, Any]] = []
        timer = SimpleNamespace(call_after=lambda seconds, call, args: held.append((seconds, partial(call, *args))))
        consumer: Any = SimpleNamespace(app=app, timer=timer, call_soon=lambda call: call(), connection_errors=(), hub=None)
        consumer.qos, consumer.saga_hold = QoS(lambda prefetch_count: None, 1), Hold(consumer)
        monkeypatch.setattr("celery_sagas.worker.failures.unknown.within", fail)
        monkeypatch.setattr("celery_sagas.worker.failures.unknown.notify_requester_in_time", fail)

        assert not refuse(consumer, message := Message(**header), ValueError())
        assert not message.acknowledged
        ((seconds, requeue),) = held
        requeue()
        assert 0 < seconds <= HELD_S
        assert message.requeued


@pytest.mark.parametrize("payload", [None, 5, "abc", [], [[], {}], [[], {}, 5], [[], {}, "ab"], {}])
@pytest.mark.parametrize("headers", [{}, {"as_execution_options": 1, "get": 2, MESSAGE_ID: []}])
def test_request_of_any_message(payload: Any, headers: Any) -> None:
    """Where Celery cannot make one, too."""
    message = Message(payload, **headers)
    broken: Any = SimpleNamespace(message=message)

    for request in (request_of(message), context_of(broken)):
        assert (request.task, request.id, request.get("id")) == ("order.place", "m1", "m1")
        assert request.as_execution_options()["task_id"] == "m1"
