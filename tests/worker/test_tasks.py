"""A step as a Celery task: its options, its arguments, and what its errors leave behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from pydantic import PlainSerializer, PlainValidator

from celery_sagas import Batch, Message, Outcome, Saga, aggregator, signals
from celery_sagas.errors import InvalidMessage, InvalidState, KeyTaken, MisuseError, SagaAlreadyExists
from celery_sagas.worker.durable import DurableTask
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher
from celery_sagas.worker.tasks import StepTask
from tests.apps import NewApp, Worker, as_tasks, backend_of


class Boom(Exception):
    """What a handler raises."""


def nothing_written(app: Celery, saga: type[Saga], key: str = "42") -> None:
    """Expect that nothing was stored, and that nothing is to be sent."""
    backend = backend_of(app)
    assert saga.__saga__ is not None
    assert saga.find(key) is None
    assert [entry for entry in backend.journal.history(saga.__saga__.names, key, 10) if entry.outcome != "failed"] == []
    assert backend.outbox.count() == 0


class TestOptions:
    """Every Celery task option passes through."""

    def test_defaults_that_differ_from_celerys(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        task = app.tasks["order.place"]
        assert isinstance(task, StepTask)
        assert (task.acks_late, task.reject_on_worker_lost, task.ignore_result) == (True, True, True)
        assert task.acks_on_timeout is False

    def test_settings_do_not_weaken_them(self, new_app: NewApp) -> None:
        app = new_app(task_acks_late=False, task_reject_on_worker_lost=False)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        task = app.tasks["order.place"]
        assert (task.acks_late, task.reject_on_worker_lost) == (True, True)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("acks_late", False),
            ("reject_on_worker_lost", False),
            ("ignore_result", False),
            ("rate_limit", "10/m"),
            ("time_limit", 30),
            ("soft_time_limit", 20),
            ("max_retries", 7),
            ("default_retry_delay", 1),
            ("priority", 3),
            ("track_started", True),
            ("throws", (Boom,)),
            ("expires", 60),
            ("compression", "gzip"),
        ],
    )
    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_option(self, app: Celery, option: str, value: object) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        options: dict[str, Any] = {option: value}

        @Order.starts(**options)
        def place(order: Order, order_id: str) -> None: ...

        assert getattr(app.tasks["order.place"], option) == value

    def test_name_and_definition_are_never_options(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        options: dict[str, Any] = {"name": None, "saga_step": "another"}

        @Order.starts(**options)
        def place(order: Order, order_id: str) -> None: ...

        task = app.tasks["order.place"]
        assert task.name == task.saga_step.name == "order.place"

    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_queue_and_priority_reach_the_message(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(queue="other", priority=4)
        def place(order: Order, order_id: str) -> None: ...

        place.delay("42")

        other = Celery(broker="memory://", set_as_current=False)
        with other.connection_for_read() as connection, connection.SimpleQueue("other") as queue:
            message = queue.get_nowait()
            message.ack()
        assert message.properties["priority"] == 4
        other.close()

    def test_options_of_a_call(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place.apply_async(("42",), task_id="m1", headers={"tenant": "t"}, time_limit=9, shadow="seen as")

        (message,) = worker.waiting()
        assert message.id == "m1"
        assert (message.headers["tenant"], message.headers["timelimit"][0], message.headers["shadow"]) == ("t", 9, "seen as")
        assert worker.one().fate == "acked"


class Colour(Enum):
    """A colour."""

    RED = "red"


@dataclass
class Size:
    """A size."""

    width: int


class Gift(Message):
    """A gift."""

    colour: Colour
    sizes: list[Size]


class Money:
    """A class that pydantic does not know."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


Price = Annotated[Money, PlainValidator(Money), PlainSerializer(lambda money: money.cents)]


class TestArguments:
    """Encoded where they are sent, converted where they are handled."""

    @pytest.fixture
    def seen(self, app: Celery) -> list[dict[str, Any]]:
        """What arrived."""
        seen: list[dict[str, Any]] = []

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(
            order: Order,
            order_id: str,
            total: Decimal = Decimal(0),
            colours: set[Colour] = frozenset(),  # type: ignore[assignment]
            wait: timedelta | None = None,
            gift: Gift | None = None,
            *,
            size: Size | None = None,
        ) -> None:
            seen.append({name: value for name, value in locals().items() if name not in ("order", "seen")})

        self.place = place
        return seen

    VALUES = {
        "total": Decimal("9.99"),
        "colours": {Colour.RED},
        "wait": timedelta(seconds=90),
        "gift": Gift(colour=Colour.RED, sizes=[Size(3)]),
        "size": Size(4),
    }

    @pytest.mark.parametrize("how", ["delay", "apply_async", "s", "si", "signature", "partial", "direct", "apply"])
    def test_arrive_as_their_annotations_want(self, worker: Worker, seen: list[dict[str, Any]], how: str) -> None:
        values = dict(self.VALUES)
        send = {
            "delay": lambda: self.place.delay("42", **values),
            "apply_async": lambda: self.place.apply_async(("42",), values),
            "s": lambda: self.place.s("42", **values).delay(),
            "si": lambda: self.place.si("42", **values).delay(),
            "signature": lambda: self.place.signature(("42",), values).delay(),
            "partial": lambda: self.place.s(values.pop("total"), **values).apply_async(("42",)),
            "direct": lambda: self.place("42", **values),
            "apply": lambda: self.place.apply(("42",), values),
        }[how]
        send()
        worker.run()

        assert seen == [{"order_id": "42", **self.VALUES}]

    def test_encoded_by_their_annotations(self, app: Celery, worker: Worker) -> None:
        """Not by their types, wherever their place is known."""
        seen: list[Money] = []

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str, price: Price) -> None:
            seen.append(price)

        place.delay("42", Money(1))
        place.si("42", Money(2)).delay()
        place.s("42", price=Money(3)).delay()
        with pytest.raises(InvalidMessage, match="Money cannot be encoded"):
            place.s("42", Money(4))  # an answer may still come before them
        worker.run()

        assert [(type(price), price.cents) for price in seen] == [(Money, 1), (Money, 2), (Money, 3)]

    def test_positional(self, worker: Worker, seen: list[dict[str, Any]]) -> None:
        self.place.delay("42", *list(self.VALUES.values())[:4], size=Size(4))
        worker.run()

        assert seen == [{"order_id": "42", **self.VALUES}]

    def test_defaults(self, worker: Worker, seen: list[dict[str, Any]]) -> None:
        self.place.delay("42")
        worker.run()

        assert seen == [{"order_id": "42", "total": Decimal(0), "colours": frozenset(), "wait": None, "gift": None, "size": None}]

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [((), {}), (("42",), {"surplus": 1}), (("42", 1, [], None, None, 5), {}), (("42",), {"order_id": "42"})],
    )
    def test_that_do_not_fit_are_refused_by_the_caller(
        self, worker: Worker, seen: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """As Celery does, before anything is encoded or published."""
        with pytest.raises(TypeError):
            self.place.delay(*args, **kwargs)

        assert worker.waiting() == []

    def test_that_cannot_be_encoded_are_refused_by_the_caller(self, worker: Worker, seen: list[Any]) -> None:
        with pytest.raises(InvalidMessage, match="size"):
            self.place.delay("42", size=object())

        assert worker.waiting() == []

    def test_of_a_wrong_value_fail_in_the_worker(self, app: Celery, worker: Worker, seen: list[Any]) -> None:
        self.place.delay("42", total="many")
        delivered = worker.one()

        assert isinstance(delivered.error, InvalidMessage)
        assert delivered.error.problems[0][0] == "total"
        assert delivered.fate == "acked"  # it can never succeed
        assert seen == []
        assert backend_of(app).outbox.count() == 0

    @pytest.mark.parametrize(
        ("args", "kwargs"), [([], {}), (["42"], {"surplus": 1}), (["42", 1, [], None, None, 5], {}), (["42"], {"order_id": "42"})]
    )
    def test_without_typing_the_worker_checks_them(
        self, app: Celery, worker: Worker, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(typing=False)
        def place(
            order: Order, order_id: str, total: int = 0, items: tuple[str, ...] = (), note: str | None = None, more: None = None
        ) -> None: ...

        place.apply_async(args, kwargs)

        assert isinstance(worker.one().error, InvalidMessage)
        nothing_written(app, Order)


class TestErrors:
    """A handler that raises, retries, ignores or rejects leaves nothing behind."""

    @pytest.mark.parametrize(
        ("error", "fate"),
        [(Boom(), "acked"), (Ignore(), "acked"), (Reject("no"), "rejected"), (Reject("no", requeue=True), "requeued")],
    )
    def test_handler_that_raises(self, app: Celery, worker: Worker, error: Exception, fate: str) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(place.s("43"))
            raise error

        place.delay("42")

        assert worker.one().fate == fate
        assert worker.waiting() == []
        nothing_written(app, Order)

    @as_tasks
    def test_retry(self, app: Celery, worker: Worker) -> None:
        """The task's id, and its headers, are the same; the effect happens once."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            runs: int = 0

        @Order.starts(bind=True, default_retry_delay=1)
        def place(self: Task, order: Order, order_id: str) -> None:
            order.runs += 1
            order.send(noted.si(self.request.retries))
            if self.request.retries < 2:
                raise self.retry()

        @app.task(name="noted")
        def noted(retries: int) -> None: ...

        sent = place.apply_async(("42",), headers={"tenant": "t", "saga_causation": {"parcel": "p"}})
        first = worker.one()
        nothing_written(app, Order)
        (again,) = worker.waiting()

        assert (again.id, again.headers["retries"], again.headers["tenant"]) == (sent.id, 1, "t")
        assert again.headers["saga_causation"] == {"parcel": "p"}
        assert "saga_cause" not in again.headers
        assert first.fate == "acked"
        worker.run()
        order = Order.find("42")
        assert order is not None
        assert (order.runs, order.saga.version) == (1, 1)
        assert [delivered.args for delivered in worker.done if delivered.task == "noted"] == [[2]]

    @as_tasks
    def test_retry_is_confirmed(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Celery's own publish is not, and the delivery is acknowledged after it."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(bind=True, default_retry_delay=0)
        def place(self: Any, order: Order, order_id: str) -> None:
            raise self.retry()

        leased: list[Any] = []
        confirming = ConfirmedPublisher.confirming

        @contextmanager
        def noted(self: ConfirmedPublisher) -> Iterator[dict[str, Any]]:
            with confirming(self) as options:
                leased.append(options["producer"])
                yield options

        monkeypatch.setattr(ConfirmedPublisher, "confirming", noted)
        place.delay("42")

        assert (worker.one().fate, len(leased), len(worker.waiting())) == ("acked", 1, 1)

    def test_retry_that_cannot_be_published(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        """The broker keeps the message."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(bind=True, default_retry_delay=0)
        def place(self: Any, order: Order, order_id: str) -> None:
            raise self.retry()

        def away(self: ConfirmedPublisher) -> Any:
            raise OSError

        place.delay("42")
        monkeypatch.setattr(ConfirmedPublisher, "confirming", away)

        assert worker.one().fate == "requeued"
        assert backend_of(app).dead.list(10) == []

    def test_message_that_is_run_inside_a_handler(self, app: Celery, worker: Worker) -> None:
        """As a solo worker does with what it has prefetched when it is told to end at once: it comes again."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        inner: list[Any] = []

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            if order_id == "outer":
                inner.append(Worker(app).one())

        place.delay("outer")
        place.delay("inner")

        assert worker.one().fate == "acked"
        assert inner[0].fate == "requeued"
        assert backend_of(app).dead.list(10) == []

    @as_tasks
    def test_autoretry_for(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        fails = [True, True, False]

        @Order.starts(autoretry_for=(Boom,), default_retry_delay=0)
        def place(order: Order, order_id: str) -> None:
            if fails.pop(0):
                raise Boom

        place.delay("42")
        assert [delivered.headers["retries"] for delivered in worker.run()] == [0, 1, 2]
        assert Order.find("42") is not None

    def test_autoretry_for_does_not_retry_what_is_hopeless(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            total: int = 0

        @Order.starts(autoretry_for=(Exception,))
        def place(order: Order, order_id: str, total: int) -> None:
            order.total = "x"  # type: ignore[assignment]

        place.delay("42", "many")
        place.delay("42", 1)
        place.delay("", 1)

        errors = [type(delivered.error).__name__ for delivered in worker.run()]
        assert errors == ["InvalidMessage", "InvalidState", "CorrelationError"]

    def test_autoretry_for_leaves_reject_to_the_broker(self, app: Celery, worker: Worker) -> None:
        """Celery's retry would publish the message, and lose it if that fails."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(autoretry_for=(Exception,))
        def place(order: Order, order_id: str) -> None:
            raise Reject("no", requeue=True)

        place.delay("42")

        assert worker.one().fate == "requeued"
        assert worker.waiting() == []

    def test_dont_autoretry_for_of_the_base_and_of_the_step_is_kept(self, new_app: NewApp) -> None:
        class Project(Task):
            autoretry_for = (Exception,)
            dont_autoretry_for = (KeyError,)

        app = new_app(task_cls=Project)
        worker = Worker(app)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def by_base(order: Order, order_id: str) -> None:
            raise KeyError

        @Order.starts(dont_autoretry_for=(IndexError,))
        def by_step(order: Order, order_id: str) -> None:
            raise IndexError

        by_base.delay("42")
        by_step.delay("42")

        assert [type(delivered.error) for delivered in worker.run()] == [KeyError, IndexError]

    def test_reject_is_never_retried_by_a_task_of_the_library(self, new_app: NewApp, definitions: None) -> None:
        """What rejects a message has it delivered again, or has kept it."""

        class Project(Task):
            autoretry_for = (Exception,)
            dont_autoretry_for = (KeyError,)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        @aggregator(size=2, name="collect")
        def collect(batch: Batch[int]) -> None: ...

        app = new_app(task_cls=Project)
        ours = {name: task for name, task in app.tasks.items() if isinstance(task, DurableTask)}
        assert {"order.place", "collect", "collect.flush", "celery_sagas.gather", "celery_sagas.publish"} <= ours.keys()
        assert [name for name, task in ours.items() if not {KeyError, Reject} <= set(task.dont_autoretry_for)] == []

    @pytest.mark.parametrize("hopeless", [InvalidState, KeyTaken, SagaAlreadyExists])
    def test_result_backend_rebuilds_them(self, app: Celery, worker: Worker, hopeless: type[Exception]) -> None:
        """With every value."""

        class Order(Saga, correlate_by="order_id", also_by="tracking"):
            order_id: str
            tracking: str | None = None

        @Order.starts(ignore_result=False, if_exists="raise")
        def place(order: Order, order_id: str, tracking: str) -> None:
            order.tracking = 5 if tracking == "5" else tracking  # type: ignore[assignment]

        place.delay("41", "T1")
        result = place.delay(*{InvalidState: ("42", "5"), KeyTaken: ("42", "T1"), SagaAlreadyExists: ("41", "T1")}[hopeless])
        worker.run()

        error = result.result
        assert type(error) is hopeless
        assert error.saga == "order"
        assert str(error)


class TestDirectCall:
    """A direct call handles the message at once, under a fresh id."""

    def test_each_call_is_another_message(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            ids: list[str] = []

        @Order.starts
        def place(order: Order, order_id: str) -> int:
            order.ids.append(order.saga.message.id)
            order.send(noted.si())
            return len(order.ids)

        @app.task(name="noted")
        def noted() -> None: ...

        assert [place("42"), place("42")] == [1, 2]
        order = Order.find("42")
        assert order is not None
        assert len(set(order.ids)) == 2
        assert [message.task for message in worker.waiting()] == ["noted", "noted"]

    def test_errors_are_the_callers(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            raise Boom

        with pytest.raises(Boom):
            place("42")
        with pytest.raises(InvalidMessage):
            place(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage):
            place()  # type: ignore[call-arg]
        nothing_written(app, Order)

    def test_inside_a_step_is_refused(self, app: Celery) -> None:

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def other(order: Order, order_id: str) -> None: ...

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            other("43")

        with pytest.raises(MisuseError, match=r"order\.other was called inside order\.place"):
            place("42")
        nothing_written(app, Order)
        nothing_written(app, Order, "43")

    @pytest.mark.parametrize("how", ["eager", "direct"])
    def test_inside_a_task_inside_a_step_is_refused(self, app: Celery, how: str) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def other(order: Order, order_id: str) -> None: ...

        @app.task
        def between() -> None:
            other("43")

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            if how == "eager":
                between.apply(throw=True)
            else:
                between()

        with pytest.raises(MisuseError):
            place("42")
        nothing_written(app, Order, "43")

    def test_inside_an_if_missing_function_is_refused(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        @Order.handles
        def add(order: Order, order_id: str) -> None: ...

        @add.if_missing
        def start(missing: object, order_id: str) -> None:
            place(order_id)

        with pytest.raises(MisuseError):
            add("42")

    def test_after_the_handler_the_outer_step_is_no_longer_running(self, app: Celery) -> None:
        """A task that calls two steps, one after the other."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        @app.task
        def both() -> None:
            place("42")
            place("43")

        both.apply(throw=True)
        assert Order.find("42") is not None
        assert Order.find("43") is not None

    def test_belongs_to_the_task_around_it(self, app: Celery, worker: Worker) -> None:
        """As a message that the task publishes would."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            receipt: str = ""

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(charge.si())

        @Order.handles
        def charged(order: Order, receipt: str) -> None:
            order.receipt = receipt

        @app.task
        def charge() -> None:
            charged("r1")

        place.delay("42")
        worker.run()

        order = Order.find("42")
        assert order is not None
        assert order.receipt == "r1"


class TestBases:
    """A step derives from the app's own ``Task``."""

    @pytest.mark.parametrize("name", ["_session", "handle", "_call", "_later", "step"])
    def test_names_of_the_project_stay_its_own(self, new_app: NewApp, name: str) -> None:
        """Such as a database session that a task keeps."""
        app = new_app(task_cls=type("Project", (Task,), {name: "the project's"}))
        worker = Worker(app)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(bind=True)
        def place(self: Any, order: Order, order_id: str) -> None:
            assert getattr(self, name) == "the project's"
            setattr(self, name, "still the project's")

        place.delay("42")
        assert worker.one().error is None
        assert Order.find("42") is not None

    def test_task_cls_of_the_project(self, new_app: NewApp) -> None:
        events: list[str] = []

        class Project(Task):
            acks_late = False

            def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
                events.append("before_start")

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                events.append("call")
                return super().__call__(*args, **kwargs)

            def on_failure(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
                events.append(f"on_failure {type(exc).__name__}")

            def delay_on_commit(self, *args: Any, **kwargs: Any) -> Any:
                events.append("delay_on_commit")
                return self.delay(*args, **kwargs)

        app = new_app(task_cls=Project)
        worker = Worker(app)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str, fail: bool = False) -> None:
            if fail:
                raise Boom

        task = app.tasks["order.place"]
        assert isinstance(task, Project)
        assert task.acks_late is True
        place.delay_on_commit("42")
        place.delay("43", fail=True)
        worker.run()

        assert events == ["delay_on_commit", "before_start", "call", "before_start", "call", "on_failure Boom"]
        assert Order.find("42") is not None

    def test_custom_call_keeps_the_messages_causation(self, new_app: NewApp) -> None:
        """Celery pushes another request for ``super().__call__`` where no worker has prepared the process."""

        class Project(Task):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs)

        app = new_app(task_cls=Project)

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            receipt: str = ""

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(charged.si("r1"))

        @Order.handles
        def charged(order: Order, receipt: str) -> None:
            order.receipt = receipt

        place.delay("42")
        Worker(app).run()

        order = Order.find("42")
        assert order is not None
        assert order.receipt == "r1"

    def test_base_of_a_step(self, app: Celery) -> None:
        class Special(Task):
            special = True

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(base=Special)
        def place(order: Order, order_id: str) -> None: ...

        assert place.special is True
        assert isinstance(app.tasks["order.place"], StepTask)

    def test_run_that_the_settings_wrap(self, new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
        """Celery wraps what ``__wrapped__`` names: that must not be the handler."""

        def around(run: Any) -> Any:
            return lambda self, *args: ("around", run(self, *args))

        new_app(task_annotations={"order.place": {"@run": around}})

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> str:
            return "placed"

        assert place("42") == ("around", "placed")
        assert Order.find("42") is not None

    def test_annotations_of_the_settings(self, new_app: NewApp) -> None:
        app = new_app(task_annotations={"order.place": {"rate_limit": "5/s"}})

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        assert app.tasks["order.place"].rate_limit == "5/s"


class TestCanvas:
    """Links and chains follow the commit."""

    def test_link_and_chain_follow(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> str:
            return f"placed {order_id}"

        @app.task(name="noted")
        def noted(text: str) -> None: ...

        place.apply_async(("42",), link=noted.s())
        (place.s("43") | noted.s()).delay()
        worker.run()

        assert sorted(done.args for done in worker.done if done.task == "noted") == [["placed 42"], ["placed 43"]]

    def test_link_of_a_duplicate_leads_to_the_instance(self, app: Celery, worker: Worker) -> None:
        """The first run may have died between commit and link."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            notes: int = 0

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        @Order.handles
        def noted(order: Order) -> None:
            order.notes += 1

        place.apply_async(("42",), task_id="m1")
        worker.run()
        place.apply_async(("42",), task_id="m1", link=noted.si())
        worker.run()

        assert [delivered.error for delivered in worker.done] == [None] * 3
        order = Order.find("42")
        assert order is not None
        assert order.notes == 1


class TestVisible:
    """What came of a message is logged and signalled, after the commit."""

    @pytest.fixture
    def told(self) -> Any:
        told: list[tuple[str, str]] = []

        def listen(name: str) -> Any:
            def receiver(sender: Any, outcome: Outcome, **_: Any) -> None:
                told.append((name, outcome.key))

            getattr(signals, name).connect(receiver, weak=False)
            return getattr(signals, name), receiver

        connected = [listen(name) for name in ("saga_started", "saga_completed", "step_ignored")]
        yield told
        for signal, receiver in connected:
            signal.disconnect(receiver)

    def test_signals_and_log(
        self, app: Celery, worker: Worker, told: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
    ) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(if_exists="ignore")
        def place(order: Order, order_id: str, at_once: bool = False) -> None:
            if at_once:
                order.complete()

        @Order.handles
        def finish(order: Order, order_id: str) -> None:
            order.complete()

        caplog.set_level("INFO", "celery_sagas")
        place.delay("42")
        place.apply_async(("42",), task_id="m2")
        finish.delay("42")
        finish.apply_async(("42",), task_id="m4")
        place.delay("43", at_once=True)
        worker.run()
        worker.deliver_again(worker.done[1])

        assert told == [
            ("saga_started", "42"),
            ("step_ignored", "42"),
            ("saga_completed", "42"),
            ("step_ignored", "42"),
            ("saga_started", "43"),
            ("saga_completed", "43"),
        ]
        assert "order.place[m2] ignored: order '42' (exists)" in caplog.text
        assert "order.finish[m4] ignored: order '42' (completed)" in caplog.text
        assert "order.place[m2] duplicate: order '42'" in caplog.text
        journal = backend_of(app).journal.history(["order"], "42", 10)
        assert sorted(entry.outcome for entry in journal) == ["completed", "ignored", "ignored", "started"]

    def test_receiver_that_fails_fails_nothing(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        def receiver(**_: Any) -> None:
            raise Boom

        signals.saga_started.connect(receiver, weak=False)
        try:
            place.delay("42")
            assert worker.one().error is None
        finally:
            signals.saga_started.disconnect(receiver)


def test_celery_knows_the_steps_source(app: Celery) -> None:
    """Celery's tools show a task's module, name and documentation."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        """Place it."""

    task = app.tasks["order.place"]
    assert (task.__module__, task.__name__, task.__doc__) == (__name__, "place", "Place it.")
