"""Answers of plain tasks: confirmed before the message that asks for them is acknowledged."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError

from celery_sagas import Gathered, Message
from celery_sagas.core.registry import registry
from celery_sagas.errors import PublishError, Unconfirmed, Unroutable
from celery_sagas.worker import runtime
from celery_sagas.worker.failures import redelivery
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher
from celery_sagas.worker.requests import answers
from celery_sagas.worker.requests.answers import confirm_answers
from celery_sagas.worker.runtime import close_runtime, publisher_of
from tests.apps import NewApp, Worker
from tests.processes import in_child
from tests.worker.requests.orders import Shop, shop

__all__ = ["shop"]

AWAY = PublishError("away", connection=True)
#: By which a broker does not confirm what it may take redelivery.
PASSING = [AWAY, Unconfirmed("full", connection=True)]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose messages were published and confirmed."""
    names, publish = list[str](), ConfirmedPublisher.publish_signature

    def note(publisher: ConfirmedPublisher, sent: Any) -> None:
        publish(publisher, sent)
        names.append(str(sent.task))

    monkeypatch.setattr(ConfirmedPublisher, "publish_signature", note)
    return names


@pytest.fixture
def asked(worker: Worker, shop: Shop, published: list[str]) -> Shop:
    """A shop that has asked, and whose task is about to answer."""
    shop.place(worker, lambda order: order.send(shop.charge.s(5), then=shop.saga.paid, otherwise=shop.saga.unpaid))
    published.clear()
    confirm_answers(shop.charge)
    return shop


def fail(monkeypatch: pytest.MonkeyPatch, error: PublishError, times: int | None = None) -> None:
    """Have nothing published, or not the first times."""
    publish, errors = ConfirmedPublisher.publish_signature, repeat(error) if times is None else repeat(error, times)

    def fail_first(publisher: ConfirmedPublisher, sent: Any) -> None:
        for each in errors:
            raise each
        publish(publisher, sent)

    monkeypatch.setattr(ConfirmedPublisher, "publish_signature", fail_first)


def test_answer_is_confirmed(worker: Worker, asked: Shop, published: list[str]) -> None:
    """And published once, under the id by which the request knows it."""
    assert worker.one().fate == "acked"
    assert published == ["order.paid"]
    assert len(worker.waiting()) == 1
    worker.run()
    assert asked.seen() == ["paid receipt"]


@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_an_answer_that_is_not_confirmed_is_published_again(
    worker: Worker,
    asked: Shop,
    published: list[str],
    waited: list[float],
    error: PublishError,
    acks_late: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The work is not done again for it."""
    asked.charge.acks_late = acks_late
    fail(monkeypatch, error, times=3)

    assert worker.one().fate == "acked"
    assert (len(asked.ran), waited, published) == (1, [1, 2, 4], ["order.paid"])
    assert "charge[" in caplog.text
    assert "cannot answer yet, and tries again in 4.0 s" in caplog.text
    worker.run()
    assert asked.seen() == ["paid receipt"]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_a_message_whose_answer_is_not_confirmed_for_long_goes_back(
    worker: Worker,
    asked: Shop,
    waited: list[float],
    held: list[float],
    error: PublishError,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked.charge.acks_late = True
    fail(monkeypatch, error)

    assert worker.one().fate == "requeued"
    assert worker.waiting() == []
    assert len(asked.ran) == 1
    assert waited == [1, 2, 4, 8, pytest.approx(15, abs=1)]
    assert held == [redelivery.HELD_S]
    assert "cannot answer, and comes again" in caplog.text


def test_a_message_that_was_acknowledged_early_is_told_of(
    worker: Worker, asked: Shop, waited: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done, and the task has not failed."""
    asked.charge.acks_late = False
    fail(monkeypatch, AWAY)

    delivered = worker.one()

    assert (delivered.fate, delivered.error) == ("acked", None)
    assert sum(waited) == pytest.approx(30, abs=1)
    assert "cannot answer, and was acknowledged early" in caplog.text


@pytest.mark.parametrize(("limit_s", "timeout_s"), [(25, 10), (15, 0), (3_600, 30)])
def test_an_answer_is_not_published_again_until_the_hard_time_limit(
    worker: Worker, asked: Shop, waited: list[float], limit_s: float, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would end the task, and acknowledge its message."""
    asked.charge.acks_late = True
    asked.charge.time_limit = limit_s
    fail(monkeypatch, AWAY)

    assert worker.one().fate == "requeued"
    assert sum(waited) == pytest.approx(timeout_s, abs=1)


@pytest.mark.parametrize("moment", ["while it waits", "while it publishes"])
@pytest.mark.parametrize(("acks_late", "fate"), [(True, "requeued"), (False, "acked")])
def test_a_soft_time_limit_ends_the_repetition(
    worker: Worker, asked: Shop, moment: str, acks_late: bool, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is done: it is no failure."""
    asked.charge.acks_late = acks_late
    refusals = [AWAY, PublishError("in time", connection=True)]
    refusals[1].__cause__ = SoftTimeLimitExceeded()

    def publish(*_: Any) -> None:
        raise refusals.pop(0)

    def interrupt(_: float) -> None:
        if moment == "while it waits":
            raise SoftTimeLimitExceeded

    monkeypatch.setattr(ConfirmedPublisher, "publish_signature", publish)
    monkeypatch.setattr(answers.time, "sleep", interrupt)
    delivered = worker.one()

    assert (delivered.fate, len(refusals)) == (fate, 1 if moment == "while it waits" else 0)
    assert isinstance(delivered.error, Reject) is acks_late


def test_an_answer_that_cannot_be_sent_in_the_end_is_a_failure(
    worker: Worker, asked: Shop, published: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the broker said before."""
    asked.charge.acks_late = True
    fail(monkeypatch, Unroutable("", "gone"), times=1)
    fail(monkeypatch, AWAY, times=1)
    assert worker.one().fate == "acked"
    worker.run()

    assert asked.failure().error == "Unroutable"


@pytest.mark.parametrize("error", [Unroutable("", "gone"), SoftTimeLimitExceeded()], ids=repr)
@pytest.mark.parametrize("acks_late", [True, False])
def test_an_answer_that_cannot_be_sent_is_a_failure(
    worker: Worker, asked: Shop, error: Exception, acks_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a time limit: to run again would meet it again."""
    asked.charge.acks_late = acks_late
    publish, failing = ConfirmedPublisher.publish_signature, [error]

    def publish_later(publisher: ConfirmedPublisher, sent: Any) -> None:
        if failing:
            raised = failing.pop()
            if isinstance(raised, PublishError):
                raise raised
            raise PublishError(repr(raised), connection=True) from raised
        publish(publisher, sent)

    monkeypatch.setattr(ConfirmedPublisher, "publish_signature", publish_later)
    delivered = worker.one()
    worker.run()

    assert delivered.fate == "acked"
    assert asked.failure().error == type(error).__name__


@pytest.mark.parametrize("later", [None, Unroutable("", "gone")], ids=["interrupted", "refused later"])
def test_an_answer_that_arrives_although_its_task_has_failed_is_late(
    worker: Worker, asked: Shop, later: Unroutable | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written when the task's time was over, or before it was published again."""
    asked.charge.acks_late = True
    publish, written = ConfirmedPublisher.publish_signature, list[tuple[ConfirmedPublisher, Any]]()

    def interrupted(publisher: ConfirmedPublisher, sent: Any) -> None:
        if sent.task != asked.saga.paid.name:
            publish(publisher, sent)
        elif written:
            raise later or AssertionError
        else:
            written.append((publisher, sent))
            raise AWAY if later else PublishError("in time", connection=True) from SoftTimeLimitExceeded()

    monkeypatch.setattr(ConfirmedPublisher, "publish_signature", interrupted)
    monkeypatch.setattr(answers.time, "sleep", lambda _: None)
    worker.run()
    publish(*written[0])
    worker.run()

    assert asked.seen() == ["unpaid error", "paid receipt late"]


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")  # of Celery before 5.7
@pytest.mark.parametrize("error", [EncodeError("no JSON"), OperationalError("away")], ids=repr)
def test_an_answer_that_arrives_although_celery_has_failed_is_late(
    app: Celery, worker: Worker, shop: Shop, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the task has answered Celery publishes what follows, and encodes its result."""
    publish, written = ConfirmedPublisher.publish_signature, list[tuple[ConfirmedPublisher, Any]]()

    def hold_back(publisher: ConfirmedPublisher, sent: Any) -> None:
        if sent.task == shop.saga.paid.name:
            written.append((publisher, sent))
        else:
            publish(publisher, sent)

    def fail_next(*_: object, **__: object) -> None:
        raise error

    @app.task(acks_late=True)
    def other(receipt: str) -> None: ...

    monkeypatch.setattr(other, "apply_async", fail_next)
    charge = shop.charge.s(5).set(link=other.s())
    shop.place(worker, lambda order: order.send(charge, then=shop.saga.paid, otherwise=shop.saga.unpaid))
    monkeypatch.setattr(ConfirmedPublisher, "publish_signature", hold_back)
    worker.run()
    publish(*written[0])
    worker.run()

    assert shop.seen() == ["unpaid error", "paid receipt late"]


def test_failure_over_what_the_task_publishes_itself_is_certain(worker: Worker, asked: Shop) -> None:
    """It has the same error, and has not answered."""

    def away(task: Any, cents: int) -> str:
        raise OperationalError("away")

    asked.work = away
    worker.run()

    assert asked.failure().error == "OperationalError"
    assert asked.pending().requests == {}


def test_task_that_calls_its_own_run_answers_once(worker: Worker, asked: Shop) -> None:
    """With what it returns itself."""
    asked.work = lambda task, cents: f"outer {task.run(0)}" if cents else "inner"
    worker.run()

    assert asked.seen() == ["paid outer inner"]


def test_header_with_the_name_of_a_mark(worker: Worker, shop: Shop, published: list[str]) -> None:
    """It means nothing: the answer is confirmed."""
    charge = shop.charge.s(5).set(headers={"_celery_sagas_running": True})
    shop.place(worker, lambda order: order.send(charge, then=shop.saga.paid))
    published.clear()
    worker.run()

    assert published == ["order.paid"]


def test_what_celery_cannot_send_is_a_failure(worker: Worker, asked: Shop) -> None:
    asked.work = lambda task, cents: object()
    worker.run()

    assert asked.failure().error == "EncodeError"


def test_an_answer_that_would_lose_fields_is_a_failure(worker: Worker, asked: Shop) -> None:
    class Reading(Message):
        device: str

    class Special(Reading):
        extra: int

    class Report(Message):
        first: Reading

    asked.work = lambda task, cents: Report(first=Special(device="d1", extra=7))
    worker.run()

    failure = asked.failure()
    assert failure.error == "InvalidMessage"
    assert "first: a Special would arrive as Reading, without extra" in failure.text


def test_other_links_are_celerys(app: Celery, worker: Worker, asked: Shop, published: list[str]) -> None:
    """They follow the answer."""
    (message,) = worker.waiting()
    other = app.signature("plain", args=(1,))
    app.send_task(
        message.task, message.args, headers=headers_of(message), task_id="again", link=[*message.embed["callbacks"], other]
    )
    worker.one()
    worker.one()

    assert published == ["order.paid", "order.paid"]
    assert [each.task for each in worker.waiting()] == ["order.paid", "order.paid", "plain"]


def headers_of(message: Any) -> dict[str, Any]:
    return {name: value for name, value in message.headers.items() if name.startswith("saga_")}


def test_a_task_that_calls_its_own_run_answers_once(app: Celery, worker: Worker, asked: Shop, published: list[str]) -> None:
    task = asked.charge
    asked.work = lambda self, cents: task.run(cents - 1) if cents > 3 else f"{cents} left"
    worker.run()

    assert published == ["order.paid"]
    assert asked.seen() == ["paid 3 left"]


def test_a_call_of_its_own_is_over_before_the_answer(app: Celery, worker: Worker, shop: Shop, published: list[str]) -> None:
    """A transaction around the work, say. What it returns is the answer."""
    published_before: list[bool] = []

    class Around(Task):  # type: ignore[type-arg]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            result = super().__call__(*args, **kwargs)
            published_before.append("order.paid" in published)
            return f"{result}, committed"

    @app.task(name="around", base=Around, acks_late=True)
    def around(cents: int) -> str:
        return "done"

    confirm_answers(around)
    confirm_answers(around)
    shop.place(worker, lambda order: order.send(around.s(5), then=shop.saga.paid))
    worker.run()

    assert published_before == [False]
    assert published.count("order.paid") == 1
    assert shop.seen() == ["paid done, committed"]


def test_answer_to_a_gather_is_collected_at_once(app: Celery, worker: Worker, shop: Shop, published: list[str]) -> None:
    """Where the saga is known, it needs no message."""

    @shop.saga.handles
    def all_came(order: Any, gathered: Gathered[str]) -> None:
        order.note(f"{len(gathered.answers)} came")

    confirm_answers(shop.charge)
    shop.place(worker, lambda order: order.gather([shop.charge.s(5), shop.charge.s(6)], then=all_came))
    published.clear()
    worker.run()

    assert published == ["order.all_came"]
    assert shop.seen() == ["2 came"]


def test_nothing_else_is_touched(app: Celery, worker: Worker, asked: Shop, published: list[str]) -> None:
    """A task that nobody asks, one that is called, and a step, which answers with its commit."""
    run = asked.saga.paid.run
    confirm_answers(asked.saga.paid)
    asked.charge.delay(1)
    assert asked.charge(2) == "receipt"
    worker.run()

    assert asked.saga.paid.run is run
    assert published == ["order.paid"]


class TestPublisherWithoutSagas:
    """A service that has the library alone needs no backend."""

    @pytest.fixture
    def app(self, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
        monkeypatch.setattr(type(registry), "__bool__", lambda _: False)
        monkeypatch.setattr(runtime, "Runtime", lambda _: pytest.fail("a backend was opened"))
        app = new_app()
        yield app
        close_runtime(app)

    def test_is_kept_until_the_process_ends(self, app: Celery) -> None:
        first = publisher_of(app)
        assert publisher_of(app) is first
        close_runtime(app)
        assert publisher_of(app) is not first

    def test_is_not_that_of_the_parent_process(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whose connection it would use, or close."""
        first = publisher_of(app)

        def check() -> bool:
            monkeypatch.setattr(first, "close", lambda: pytest.fail("closed"))
            second = publisher_of(app)
            is_own = second is not first and publisher_of(app) is second
            close_runtime(app)
            return is_own and first in runtime._inherited

        assert in_child(check)
