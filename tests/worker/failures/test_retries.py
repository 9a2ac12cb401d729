"""Retries: what a step raises may pass, and its message runs again after a pause; Celery's own retries come first."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.app.task import Context
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry, SoftTimeLimitExceeded

from celery_sagas import Backoff, Batch, Failure, Missing, Saga, aggregator
from celery_sagas.errors import InvalidMessage, KeyTaken, MisuseError, PublishError, SagaNotFound, StoreUnavailable
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.failures import redelivery, retries
from celery_sagas.worker.failures.dead_letters import tries_of
from celery_sagas.worker.failures.retries import NextRetry, mark_used_up, next_retry, pause_left_s
from celery_sagas.worker.headers import MESSAGE_ID, PAUSE_LEFT, REDELIVERIES, STEP_RETRIES
from celery_sagas.worker.operators import retry_dead_letter
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher, EagerPublisher
from celery_sagas.worker.runtime import runtime_of
from tests.apps import AgainWorker, NewApp, Worker, as_tasks, backend_of, interposed
from tests.worker.failures.test_redelivered_later import due_at
from tests.worker.moments import Moment

THRICE = Backoff(3, 1, factor=5)
AWAY = StoreUnavailable("memory://", "it is away")


class Boom(Exception):
    """What a handler raises."""


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    """An app with the retries that an app has which says nothing about them."""
    return new_app(saga_step_retries=THRICE)


class Steps:
    """Steps of an order, and what becomes of them."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.runs: list[str] = []
        self.errors: list[BaseException] = []  #: that the next runs raise

    def define(self, **options: Any) -> Any:
        """Define a saga whose starter raises what it is to raise."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            total: int = 0

        @Order.starts(**options)
        def place(order: Order, order_id: str, total: int = 1) -> None:
            order.total += total
            self.fail()

        Order.place = place  # type: ignore[attr-defined]
        return Order

    def fail(self) -> None:
        """Note a run of a handler, and raise what it is to raise."""
        self.runs.append("")
        if self.errors:
            raise self.errors.pop(0)

    @property
    def dead(self) -> list[DeadLetter]:
        """The dead letters."""
        return backend_of(self.app).dead.list(10)

    def outcomes(self, key: str = "42") -> list[str]:
        """What the journal says of an order."""
        return [entry.outcome for entry in backend_of(self.app).journal.history(["order"], key, 10)]


@pytest.fixture
def steps(app: Celery) -> Steps:
    """The steps of a test."""
    return Steps(app)


def task_with(**own: Any) -> Any:
    """Return a task with some options of its own."""
    return type("Own", (Task,), {"dont_autoretry_for": (), **own})()


def request_with(**headers: Any) -> Context:
    """Return the request of a message with some headers."""
    return Context(headers, headers=headers)


class TestRule:
    """What is retried, how often, and after which pauses."""

    def test_each_retry_has_its_number_and_its_pause(self) -> None:
        found = [next_retry(task_with(), request_with(**{STEP_RETRIES: made}), THRICE, Boom()) for made in range(4)]

        assert found == [NextRetry(1, 3, 1), NextRetry(2, 3, 5), NextRetry(3, 3, 25), None]

    @pytest.mark.parametrize("error", [TypeError(), KeyError(), SoftTimeLimitExceeded(), PublishError("away"), AWAY, Boom()])
    def test_error_that_may_pass(self, error: Exception) -> None:
        assert next_retry(task_with(), request_with(), THRICE, error) is not None

    @pytest.mark.parametrize(
        "error",
        [
            InvalidMessage("order.place", []),
            KeyTaken("order", "tracking", "1", "2"),
            MisuseError("it is misused"),
            SagaNotFound("order", "id", "1"),
        ],
    )
    def test_error_that_the_same_message_meets_again(self, error: Exception) -> None:
        assert next_retry(task_with(), request_with(), THRICE, error) is None

    def test_error_that_the_step_excludes(self) -> None:
        assert next_retry(task_with(dont_autoretry_for=(LookupError,)), request_with(), THRICE, KeyError()) is None

    def test_no_retries(self) -> None:
        assert next_retry(task_with(), request_with(), Backoff(0), Boom()) is None

    @pytest.mark.parametrize(("own", "times"), [({}, 5), ({"max_retries": None}, 5), ({"max_retries": 9}, 5)])
    def test_step_that_bounds_them_no_further(self, own: Any, times: int) -> None:
        """Celery's default of 3 is no word of the step's."""
        assert next_retry(task_with(**own), request_with(), Backoff(5), Boom()) == NextRetry(1, times, 10)

    def test_step_that_bounds_them(self) -> None:
        assert next_retry(task_with(max_retries=0), request_with(), Backoff(5), Boom()) is None
        assert next_retry(task_with(max_retries=1), request_with(), Backoff(5), Boom()) == NextRetry(1, 1, 10)

    def test_celerys_retries_that_are_used_up(self) -> None:
        request = request_with()
        mark_used_up(request)

        assert next_retry(task_with(), request, THRICE, Boom()) is None
        assert next_retry(task_with(), request_with(_celery_sagas_used_up=True), THRICE, Boom()) is not None

    @pytest.mark.parametrize(("forged", "number"), [(-1, 1), (10**9, 1), ("2", 1), (2.0, 1), (None, 1), ([], 1), (2, 3)])
    def test_forged_count_is_none(self, forged: Any, number: int) -> None:
        found = next_retry(task_with(), request_with(**{STEP_RETRIES: forged}), THRICE, Boom())

        assert found is not None
        assert found.number == number

    @pytest.mark.parametrize("count", [4, 999_999])
    def test_count_above_the_allowed_one_ends_it(self, count: int) -> None:
        assert next_retry(task_with(), request_with(**{STEP_RETRIES: count}), THRICE, Boom()) is None

    @pytest.mark.parametrize(
        ("left", "seconds"), [(2_500, 2.5), (10**400, 5), (-1, 0), ("5", 0), (None, 0), (float("inf"), 0), (5_000, 5)]
    )
    def test_what_is_left_of_a_pause_is_no_more_than_the_pause(self, left: Any, seconds: float) -> None:
        assert pause_left_s(request_with(**{STEP_RETRIES: 2, PAUSE_LEFT: left}), THRICE) == seconds

    def test_nothing_is_left_of_a_pause_without_retries(self) -> None:
        assert pause_left_s(request_with(**{STEP_RETRIES: 2, PAUSE_LEFT: 1_000}), Backoff(0)) == 0

    def test_parts_of_a_pause_add_up(self) -> None:
        pause_s, parts = 100.0, []
        while pause_s:
            delay, left_ms = retries._parts_of(pause_s, 30.0)
            parts.append(delay)
            pause_s = (left_ms or 0) / 1000

        assert parts == [30, 30, 30, 10]


class TestRetried:
    """A step that raises, in a worker."""

    def test_handler_that_fails_twice_has_one_effect(self, worker: Worker, steps: Steps) -> None:
        order = steps.define()
        steps.errors = [Boom(), Boom()] if not worker.is_batching else [Boom(), Boom(), Boom()]  # one in the batch
        order.place.delay("42")

        worker.run()

        assert (order.find("42").total, steps.outcomes(), steps.dead) == (1, ["started"], [])

    @as_tasks
    def test_handler_that_always_fails(self, worker: Worker, steps: Steps, caplog: pytest.LogCaptureFixture) -> None:
        order = steps.define()
        steps.errors = [Boom(f"no. {number}") for number in range(1, 9)]
        order.place.apply_async(("42",), task_id="m1")

        done = worker.run()

        assert len(steps.runs) == 4
        assert [type(delivered.error) for delivered in done] == [Retry, Retry, Retry, Boom]
        assert {delivered.fate for delivered in done} == {"acked"}
        (dead,) = steps.dead
        assert (dead.error, dead.text, dead.message_id, tries_of(dead)) == ("Boom", "no. 4", "m1", 4)
        assert steps.outcomes() == ["failed"]
        logged = [record.getMessage() for record in caplog.records if record.name == "celery_sagas"]
        assert [line for line in logged if "runs again" in line] == [
            "order.place[m1] of order '42' has failed (try 1 of 4), and runs again in 1 s: Boom: no. 1",
            "order.place[m1] of order '42' has failed (try 2 of 4), and runs again in 5 s: Boom: no. 2",
            "order.place[m1] of order '42' has failed (try 3 of 4), and runs again in 25 s: Boom: no. 3",
        ]
        assert f"order.place[m1] failed 4 times and is kept as the dead letter {dead.id}: Boom" in caplog.text

    def test_celerys_default_does_not_bound_them(self, new_app: NewApp) -> None:
        steps = Steps(new_app(saga_step_retries=5))
        order = steps.define()
        steps.errors = [Boom()] * 9
        order.place.delay("42")
        Worker(steps.app).run()

        assert len(steps.runs) == 6

    @as_tasks
    def test_result_of_a_step_is_still_to_come(self, worker: Worker, steps: Steps) -> None:
        order = steps.define(ignore_result=False)
        steps.errors = [Boom("no")]
        result = order.place.delay("42")
        worker.one()
        assert (result.state, repr(result.result)) == ("RETRY", "Boom('no')")
        worker.run()

        assert result.state == "SUCCESS"

    @as_tasks
    def test_text_of_an_error_is_one_line_of_the_log(
        self, worker: Worker, steps: Steps, caplog: pytest.LogCaptureFixture
    ) -> None:
        order = steps.define()
        steps.errors = [Boom("one\ntwo " + 5_000 * "x")]
        order.place.delay("42")
        worker.one()

        (line,) = [record.getMessage() for record in caplog.records if "runs again" in record.getMessage()]
        assert line.endswith("Boom: one two " + 1_992 * "x")

    @as_tasks
    def test_pauses(self, worker: Worker, steps: Steps) -> None:
        order = steps.define()
        steps.errors = [Boom(), Boom(), Boom()]
        order.place.delay("42")

        for pause_s in (1, 5, 25):
            moment = Moment()
            worker.one()
            (again,) = worker.waiting()
            assert moment.is_before(due_at(again), pause_s)
            assert PAUSE_LEFT not in again.headers

    def test_message_keeps_what_belongs_to_it(self, app: Celery, worker: Worker, steps: Steps) -> None:
        @app.task(name="noted")
        def noted(*args: Any) -> None: ...

        order = steps.define()
        steps.errors = [Boom()] * (2 if worker.is_batching else 1)
        sent = order.place.s("42", 7).set(link=noted.si("link"), link_error=noted.si("error"), expires=600, priority=3)
        (sent.set(task_id="m1", headers={"tenant": "t"}) | noted.si("chain")).delay()
        first = worker.one()
        (again,) = worker.waiting()
        worker.run()

        assert (again.id, again.args, again.headers["tenant"], again.headers["retries"]) == ("m1", ["42", 7], "t", 0)
        assert (again.headers["expires"], again.headers["root_id"]) == (first.headers["expires"], first.headers["root_id"])
        assert (again.headers[STEP_RETRIES], "saga_cause" in again.headers) == (1, False)
        assert order.find("42").total == 7
        assert sorted(done.args for done in worker.done if done.task == "noted") == [["chain"], ["link"]]

    @as_tasks
    def test_celerys_signal_and_hook_are_called(self, worker: Worker, steps: Steps) -> None:
        seen: list[Any] = []

        class Watching(Task):  # type: ignore[type-arg]
            def on_retry(self, exc: Any, task_id: str, *_: Any) -> None:
                seen.append((task_id, repr(exc)))

        order = steps.define(base=Watching)
        steps.errors = [Boom("no")]

        def note(reason: Any = None, **_: Any) -> None:
            seen.append(str(reason))

        signals.task_retry.connect(note)
        try:
            order.place.apply_async(("42",), task_id="m1")
            worker.run()
        finally:
            signals.task_retry.disconnect(note)

        assert seen == [("m1", "Boom('no')"), "Retry in 1.0s: Boom('no')"]

    @as_tasks
    @pytest.mark.parametrize("key", ["property", "id"])
    def test_log_shows_how_the_message_finds_its_instance(
        self, worker: Worker, steps: Steps, key: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Parcel(Saga, correlate_by="number", also_by="tracking"):
            number: str
            tracking: str | None = None

        @Parcel.starts
        def send_off(parcel: Parcel, number: str) -> None:
            parcel.tracking = "1Z"
            if key == "id":
                parcel.schedule(remind, after=timedelta(seconds=-1))

        @Parcel.handles(by="tracking")
        def scanned(parcel: Parcel, tracking: str) -> None:
            steps.fail()

        @Parcel.handles
        def remind(parcel: Parcel) -> None:
            steps.fail()

        steps.errors = [Boom("no")]
        send_off.delay("7")
        if key == "property":
            worker.one()
            scanned.delay("1Z")
        worker.run()

        found: Any = Parcel.find("7")
        wanted = "parcel tracking='1Z'" if key == "property" else f"parcel id='{found.saga.id}'"
        assert f"of {wanted} has failed (try 1 of 4), and runs again in 1 s: Boom: no" in caplog.text

    @as_tasks
    def test_redelivery_keeps_the_number_of_the_retry(self, app: Celery, worker: Worker, steps: Steps) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        order.place.delay("42")
        worker.one()
        interposed(app).once_before("find", failing(AWAY))
        worker.one()

        (again,) = worker.waiting()
        assert (again.headers[STEP_RETRIES], again.headers[REDELIVERIES]) == (1, 1)

    def test_error_of_the_message_is_a_dead_letter_at_once(self, worker: Worker, steps: Steps) -> None:
        steps.define()
        steps.app.send_task("order.place", ["42"], {"total": "none"})

        assert len(worker.run()) == 1
        assert ([dead.error for dead in steps.dead], steps.runs) == (["InvalidMessage"], [])

    @as_tasks
    def test_function_for_a_missing_instance_is_retried(self, worker: Worker, steps: Steps) -> None:
        order = steps.define()

        @order.handles
        def pay(order: Any, order_id: str) -> None: ...

        @pay.if_missing
        def unpaid(missing: Missing, order_id: str) -> None:
            steps.fail()

        steps.errors = [Boom()]
        pay.delay("42")
        worker.run()

        assert (len(steps.runs), steps.outcomes(), steps.dead) == (2, ["missing"], [])

    @as_tasks
    def test_answer_and_timeout_are_retried(self, app: Celery, worker: Worker) -> None:
        steps = Steps(app)

        @app.task(name="bank.charge")
        def charge() -> str:
            return "r-1"

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            receipt: str = ""
            reminded: int = 0

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(charge.s(), then=charged)
            order.schedule(remind, after=-1.0)

        @Order.handles
        def charged(order: Order, receipt: str) -> None:
            order.receipt = receipt
            steps.fail()

        @Order.handles
        def remind(order: Order) -> None:
            order.reminded += 1
            steps.fail()

        steps.errors = [Boom(), Boom()]
        place.delay("42")
        worker.run()

        found: Any = Order.find("42")
        assert (found.receipt, found.reminded, len(steps.runs), steps.dead) == ("r-1", 1, 4, [])

    @as_tasks
    @pytest.mark.parametrize("times", [9, 2])
    def test_requester_is_notified_once_at_the_end(self, app: Celery, worker: Worker, times: int) -> None:
        steps, failures, answers = Steps(app), list[Failure](), list[int]()

        class Trip(Saga, correlate_by="trip_id"):
            trip_id: str

        class Booking(Saga, correlate_by="booking_id"):
            booking_id: str

        @Trip.starts
        def begin(trip: Trip, trip_id: str) -> None:
            trip.send(book.s("b-1"), then=booked, otherwise=not_booked)

        @Trip.handles
        def booked(trip: Trip, answer: int) -> None:
            answers.append(answer)

        @Trip.handles
        def not_booked(trip: Trip, failure: Failure) -> None:
            failures.append(failure)

        @Booking.starts
        def book(booking: Booking, booking_id: str) -> None:
            steps.fail()
            booking.reply(7)

        steps.errors = [Boom("full")] * times
        begin.delay("t-1")
        worker.run()

        if times == 2:
            assert (answers, failures) == ([7], [])
            return
        (failure,) = failures
        assert answers == []
        assert (failure.text, failure.retries, failure.dead_letter) == ("full", 3, steps.dead[0].id)

    @as_tasks
    def test_dead_letter_that_is_retried_begins_anew(self, worker: Worker, steps: Steps) -> None:
        order = steps.define()
        steps.errors = [Boom()] * 7
        order.place.delay("42")
        worker.run()
        retry_dead_letter(runtime_of(steps.app), steps.dead[0])
        worker.run()

        assert (len(steps.runs), steps.dead, order.find("42").total) == (8, [], 1)

    def test_batch_leaves_a_message_that_is_retried_alone(self, steps: Steps) -> None:
        worker, order = Worker(steps.app, is_batching=True), steps.define()
        steps.errors = [Boom()] * 9
        order.place.delay("42")
        worker.run()

        assert len(steps.runs) == 5  # the first time in a batch, at once again alone, and three times after a pause

    def test_redelivered_message_does_not_lose_count(self, steps: Steps) -> None:
        """Its worker was killed after the message was published again."""
        worker, order = AgainWorker(steps.app), steps.define()
        steps.errors = [Boom()] * 20
        order.place.apply_async(("42",), task_id="m1")
        first = worker.one()
        worker.deliver_again(first)
        worker.run()

        (dead,) = steps.dead
        assert steps.outcomes() == ["failed"]
        assert len(steps.runs) <= 8
        assert dead.message_id == "m1"


class TestLongPause:
    """One that is longer than a worker may keep a message waiting."""

    @pytest.fixture
    def app(self, new_app: NewApp) -> Celery:
        return new_app(saga_step_retries=Backoff(1, 700))

    @as_tasks
    def test_message_carries_what_is_left(self, worker: Worker, steps: Steps) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        order.place.delay("42")
        waits = []
        for _ in range(3):
            moment = Moment()
            worker.one()
            (again,) = worker.waiting()
            assert len(steps.runs) == 1
            assert again.headers[STEP_RETRIES] == 1
            waits.append((again.headers.get(PAUSE_LEFT), moment.is_before(due_at(again), 100 if len(waits) == 2 else 300)))
        worker.run()

        assert waits == [(400_000, True), (100_000, True), (None, True)]
        assert (len(steps.runs), order.find("42").total) == (2, 1)

    @as_tasks
    def test_broker_that_takes_nothing_keeps_the_message(
        self, worker: Worker, steps: Steps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        order.place.delay("42")
        worker.one()
        with monkeypatch.context() as patch:
            patch.setattr(runtime_of(steps.app).publisher, "publish_signature", failing(PublishError("away", True)))
            delivered = worker.one()

        assert isinstance(delivered.error, Reject)
        assert (delivered.fate, len(steps.runs)) == ("requeued", 1)

    def test_worker_keeps_nothing_until_its_broker_redelivers_it(self, new_app: NewApp) -> None:
        app = new_app()
        app.conf.update(broker_url="redis://localhost", broker_transport_options={"visibility_timeout": 60})
        task: Any = SimpleNamespace(app=app)

        assert retries._longest_wait_s(task, ConfirmedPublisher(app)) == 20


class TestNotPublished:
    """The message cannot be published again."""

    @as_tasks
    def test_broker_that_takes_nothing_keeps_the_message(
        self, worker: Worker, steps: Steps, held: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        order.place.delay("42")
        with monkeypatch.context() as patch:
            patch.setattr(runtime_of(steps.app).publisher, "publish_signature", failing(PublishError("away", True)))
            delivered = worker.one()

        assert (delivered.fate, held, steps.dead) == ("requeued", [redelivery.HELD_S], [])

    @as_tasks
    def test_time_limit_meanwhile_keeps_the_message(self, worker: Worker, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        order.place.delay("42")
        monkeypatch.setattr(retries, "longest_redelivery_s", failing(SoftTimeLimitExceeded()))

        assert (worker.one().fate, steps.dead) == ("requeued", [])

    @as_tasks
    @pytest.mark.parametrize("error", [PublishError("it is too large", False), ValueError("it cannot be encoded")])
    def test_message_that_is_refused_is_a_dead_letter(
        self, worker: Worker, steps: Steps, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        order.place.delay("42")
        with monkeypatch.context() as patch:
            patch.setattr(runtime_of(steps.app).publisher, "publish_signature", failing(error))
            delivered = worker.one()

        assert (delivered.fate, [dead.error for dead in steps.dead]) == ("acked", ["Boom"])


class TestCelerysOwn:
    """What a step says by the options of its task comes first."""

    @as_tasks
    def test_autoretry_for_alone_retries_what_it_names(self, worker: Worker, steps: Steps) -> None:
        order = steps.define(autoretry_for=(Boom,), max_retries=2, default_retry_delay=0)
        steps.errors = [Boom()] * 9
        order.place.delay("42")
        worker.run()

        assert (len(steps.runs), tries_of(steps.dead[0])) == (3, 3)

    @as_tasks
    def test_other_errors_are_retried_beside_it(self, worker: Worker, steps: Steps) -> None:
        order = steps.define(autoretry_for=(Boom,), max_retries=2, default_retry_delay=0)
        steps.errors = [KeyError(), Boom(), KeyError(), Boom(), KeyError()]
        order.place.delay("42")
        worker.run()

        assert (len(steps.runs), tries_of(steps.dead[0])) == (5, 5)

    @as_tasks
    @pytest.mark.parametrize("names_error", [True, False])
    def test_own_retry_that_is_used_up(self, worker: Worker, steps: Steps, names_error: bool) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(bind=True)
        def place(self: Any, order: Order, order_id: str) -> None:
            try:
                steps.fail()
            except Boom as exc:
                raise self.retry(exc=exc if names_error else None, countdown=0, max_retries=1) from None

        steps.errors = [Boom()] * 9
        place.delay("42")
        worker.run()

        wanted = "Boom" if names_error else MaxRetriesExceededError.__name__
        assert (len(steps.runs), [dead.error for dead in steps.dead]) == (2, [wanted])

    @as_tasks
    @pytest.mark.parametrize(("options", "runs"), [({"max_retries": 0}, 1), ({"max_retries": 1}, 2)])
    def test_max_retries(self, worker: Worker, steps: Steps, options: Any, runs: int) -> None:
        order = steps.define(**options)
        steps.errors = [Boom()] * 9
        order.place.delay("42")
        worker.run()

        assert (len(steps.runs), len(steps.dead)) == (runs, 1)

    @as_tasks
    def test_excluded_error_is_a_dead_letter_at_once(self, worker: Worker, steps: Steps) -> None:
        order = steps.define(dont_autoretry_for=(Boom,))
        steps.errors = [Boom()]
        order.place.delay("42")

        assert (len(worker.run()), [dead.error for dead in steps.dead]) == (1, ["Boom"])

    @as_tasks
    @pytest.mark.parametrize("error", [Ignore(), Reject(), Reject(requeue=True)])
    def test_choice_of_the_step_is_left_to_it(self, worker: Worker, steps: Steps, error: Exception) -> None:
        order = steps.define()
        steps.errors = [error]
        order.place.delay("42")
        worker.one()

        assert (worker.waiting(), steps.dead) == ([], [])


class TestNotAStep:
    """Aggregators have retries of their own."""

    @as_tasks
    def test_item_that_cannot_be_buffered_is_a_dead_letter_at_once(
        self, app: Celery, worker: Worker, steps: Steps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @aggregator(size=2, name="shop.collect")
        def collect(batch: Batch[int]) -> None: ...

        monkeypatch.setattr("celery_sagas.worker.failures.raised.retry_later", failing(AssertionError("it is retried")))
        app.send_task("shop.collect", [1], headers={MESSAGE_ID: "a\nb", STEP_RETRIES: 1, PAUSE_LEFT: 1_000})
        worker.one()

        assert [dead.error for dead in steps.dead] == ["InvalidMessage"]


class TestRaisedAtOnce:
    """Where there is no message."""

    def test_direct_call(self, steps: Steps) -> None:
        order = steps.define()
        steps.errors = [Boom()]
        with pytest.raises(Boom):
            order.place("42")

        assert (len(steps.runs), Worker(steps.app).waiting()) == (1, [])

    def test_publisher_that_has_no_broker(self, steps: Steps, new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
        order = steps.define()
        task: Any = steps.app.tasks[order.place.name]
        task.push_request(called_directly=False, args=["42"], kwargs={}, id="m1")
        eager: Any = SimpleNamespace(settings=runtime_of(steps.app).settings, publisher=EagerPublisher(new_app(eager=True)))
        try:
            assert retries.retry_later(task, eager, Boom(), None) is None  # type: ignore[func-returns-value]
        finally:
            task.pop_request()

        assert (steps.runs, caplog.text) == ([], "")

    def test_eager_mode(self, new_app: NewApp) -> None:
        steps = Steps(new_app(eager=True, saga_step_retries=THRICE))
        order = steps.define()
        steps.errors = [Boom()]
        with pytest.raises(Boom):
            order.place.delay("42")

        assert len(steps.runs) == 1


@as_tasks
def test_retry_goes_through_a_pipe(worker: Worker, steps: Steps) -> None:
    """Without the frames of the library."""

    def deeply(depth: int) -> None:
        if depth:
            deeply(depth - 1)
        raise Boom("x" * 1_000)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        deeply(50)

    place.delay("42")
    delivered = worker.one()

    assert isinstance(delivered.error, Retry)
    assert delivered.size < 15 * 4096


@as_tasks
def test_step_that_does_not_raise_costs_nothing_more(worker: Worker, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.worker.failures.raised.retry_later", failing(AssertionError()))
    monkeypatch.setattr("celery_sagas.worker.failures.raised.go_on_waiting", failing(AssertionError()))
    steps.define().place.delay("42")
    worker.run()

    assert steps.outcomes() == ["started"]


@pytest.mark.parametrize(
    ("payload", "tries"),
    [
        ("", 1),
        ("[]", 1),
        ('{"options": {}}', 1),
        ('{"options": {"headers": {}, "retries": 2}}', 3),
        ('{"options": {"headers": {"saga_retries": 3}, "retries": 1}}', 5),
        ('{"options": {"headers": {"saga_retries": -3}, "retries": "1"}}', 1),
        ('{"options": {"headers": [1]}}', 1),
        ('{"options": {"retries": 2}}', 3),
    ],
)
def test_tries_that_a_dead_letter_tells(payload: str, tries: int) -> None:
    dead: Any = SimpleNamespace(payload=payload, number=0)

    assert tries_of(dead) == tries


def test_item_was_tried_once() -> None:
    dead: Any = SimpleNamespace(payload='{"options": {"retries": 7}}', number=3)

    assert tries_of(dead) == 1


def failing(error: Exception) -> Callable[..., None]:
    """Return what raises an error."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail
