"""What plain tasks send is the same in each delivery of their message, and another in each publication of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from celery import Celery, Task, group

from celery_sagas import Saga
from celery_sagas.errors import StoreUnavailable
from celery_sagas.worker import tasks
from celery_sagas.worker.headers import CAUSE, PUBLICATION
from tests.apps import NewApp, Worker, as_tasks


@pytest.fixture
def counted() -> Any:
    """A saga that counts its messages."""

    class Counted(Saga, correlate_by="name"):
        name: str
        count: int = 0

    @Counted.starts
    def add(counted: Counted, name: str) -> None:
        counted.count += 1

    Counted.add = add  # type: ignore[attr-defined]
    return Counted


@pytest.fixture
def nightly(app: Celery, counted: Any) -> Any:
    """A job that a schedule sends under the same id each night."""

    @app.task
    def nightly() -> None:
        counted.add.delay("a")

    return nightly


def test_each_night_has_an_effect(worker: Worker, counted: Any, nightly: Any) -> None:
    for _ in range(2):
        nightly.apply_async(task_id="nightly")
        worker.run()

    assert counted.find("a").count == 2


def test_each_delivery_has_one(worker: Worker, counted: Any, nightly: Any) -> None:
    nightly.apply_async(task_id="nightly")
    delivered, _ = worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert counted.find("a").count == 1


def test_what_it_sends_to_another_plain_task(app: Celery, worker: Worker, counted: Any, nightly: Any) -> None:
    """It has a fixed id, too."""

    @app.task
    def evening() -> None:
        nightly.apply_async(task_id="nightly")

    for _ in range(2):
        evening.apply_async(task_id="evening")
        delivered, *_ = worker.run()
        worker.deliver_again(delivered)
        worker.run()

    assert counted.find("a").count == 2


#: Also one that looks as if Celery had made it, such as the key of a row.
IDS = ["nightly", "0b7cf4e6-6f5e-4f0f-9a53-3f8f5d1f6f0e"]


@pytest.mark.parametrize("id", IDS)
def test_task_that_publishes_it_each_time_that_it_looks(app: Celery, worker: Worker, counted: Any, nightly: Any, id: str) -> None:
    """It retries itself, and is one publication."""

    @app.task(bind=True)
    def poll(self: Any) -> None:
        nightly.apply_async(task_id=id)
        if self.request.retries < 2:
            raise self.retry(countdown=0)

    poll.delay()
    worker.run()

    assert counted.find("a").count == 3


@pytest.mark.parametrize("id", IDS)
def test_task_that_a_saga_has_sent(app: Celery, worker: Worker, counted: Any, nightly: Any, id: str) -> None:
    """It publishes the job twice, in each delivery."""

    @app.task
    def work() -> None:
        for _ in range(2):
            nightly.apply_async(task_id=id)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(work.s())

    place.delay("42")
    _, sent, *_ = worker.run()
    worker.deliver_again(sent)
    worker.run()

    assert counted.find("a").count == 2


def test_message_that_is_retried_is_the_same_publication(app: Celery, worker: Worker) -> None:
    @app.task(bind=True)
    def unsteady(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)

    unsteady.apply_async(task_id="nightly")
    delivered = worker.run()

    assert len(delivered) == 2
    assert len({each.headers[PUBLICATION] for each in delivered}) == 1


@pytest.mark.parametrize("named", [True, False], ids=["published", "sent by a commit"])
def test_message_in_the_place_of_another_is_another_publication(app: Celery, worker: Worker, counted: Any, named: bool) -> None:
    """A task that replaces itself, to poll, publishes anew each time; but the same if it is delivered again."""

    @app.task(bind=True)
    def poll(self: Any, left: int) -> None:
        counted.add.delay(name="a")
        if left:
            raise self.replace(self.si(left - 1))

    poll.apply_async((4,), task_id="nightly", headers={} if named else {CAUSE: "m1"})
    worker.run()
    for each in [each for each in worker.done if each.task == poll.name]:
        headers = {name: value for name, value in each.headers.items() if name.startswith("saga_")}
        poll.apply_async(each.args, task_id=each.id, headers=headers)
        worker.run()

    assert counted.find("a").count == 5


@pytest.mark.parametrize(("headers", "count"), [({}, 4), ({CAUSE: "m1"}, 2)], ids=["sent by hand", "sent by a commit"])
def test_eager_mode(eager: Celery, counted: Any, headers: dict[str, str], count: int) -> None:
    """Nothing is published there: each run is a publication, unless the id is one that a commit has made."""

    @eager.task
    def nightly() -> None:
        for _ in range(2):
            counted.add.delay("a")

    for _ in range(2):
        nightly.apply_async(task_id="nightly", headers=headers)

    assert counted.find("a").count == count


def test_task_that_another_one_applies(app: Celery, worker: Worker, nightly: Any, counted: Any) -> None:
    """It is the same in each delivery of that one."""

    @app.task
    def evening() -> None:
        nightly.apply(task_id="nightly")

    for _ in range(2):
        evening.apply_async(task_id="evening")
        delivered, *_ = worker.run()
        worker.deliver_again(delivered)
        worker.run()

    assert counted.find("a").count == 2


#: What follows a task, and has its id from when the whole was made.
FOLLOWING: dict[str, Callable[[Any, Any], Any]] = {
    "chain": lambda first, second: (first.si() | second.si()).apply_async(),
    "group": lambda first, second: (first.si() | group(second.si(), second.si())).apply_async(),
    "link": lambda first, second: first.apply_async(link=second.si().set(task_id="second")),
    "chain of ids of its own": lambda first, second: (first.si() | second.si().set(task_id="second")).apply_async(),
    "group of ids of its own": lambda first, second: (
        first.si() | group(second.si().set(task_id="second"), second.si().set(task_id="third"))
    ).apply_async(),
}


@pytest.mark.parametrize("again", ["sends less", "is not retried"])
@pytest.mark.parametrize("how", FOLLOWING)
def test_what_follows_a_task_is_the_same_in_each_delivery(
    app: Celery, worker: Worker, counted: Any, how: str, again: str
) -> None:
    """Also if the task then does less, as one does that finds its work done."""
    runs: list[str] = []

    @app.task
    def other() -> None: ...

    @app.task(bind=True)
    def first(self: Any) -> None:
        runs.append(self.request.id)
        if len(runs) > 1:
            return
        other.apply_async(task_id="second")
        if again == "is not retried":
            raise self.retry(countdown=0)

    @app.task
    def second() -> None:
        counted.add.delay("a")

    FOLLOWING[how](first, second)
    delivered, *_ = worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert len(runs) >= 2
    assert counted.find("a").count == (2 if how.startswith("group") else 1)


def test_producer_without_the_library(app: Celery, worker: Worker, counted: Any, nightly: Any) -> None:
    """Only the task's id says which message it is."""
    with app.amqp.producer_pool.acquire() as producer:
        body = ([], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
        headers = {"task": nightly.name, "id": "nightly", "lang": "py"}
        for _ in range(2):
            producer.publish(body, routing_key=app.conf.task_default_queue, headers=headers, serializer="json")
            worker.run()

    assert counted.find("a").count == 1


@pytest.mark.parametrize("odd", ["", "a" * 256, 7, None, ["a"]])
def test_publication_that_is_none(app: Celery, worker: Worker, counted: Any, nightly: Any, odd: Any) -> None:
    nightly.apply_async(headers={PUBLICATION: odd})
    worker.run()

    assert counted.find("a").count == 1


@pytest.fixture
def unsteady() -> Any:
    """A saga whose step fails the first time, and is retried then."""

    class Unsteady(Saga, correlate_by="name"):
        name: str
        runs: ClassVar[int] = 0

    @Unsteady.starts(autoretry_for=(OSError,), max_retries=1, default_retry_delay=0)
    def begin(unsteady: Unsteady, name: str) -> None:
        Unsteady.runs += 1
        if Unsteady.runs == 1:
            raise OSError

    Unsteady.begin = begin  # type: ignore[attr-defined]
    return Unsteady


def test_what_follows_a_step_that_was_retried(worker: Worker, counted: Any, nightly: Any, unsteady: Any) -> None:
    """It is the same in a delivery that finds the message handled."""
    unsteady.begin.apply_async(("1",), link=nightly.si().set(task_id="second"))
    delivered, *_ = worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert unsteady.runs == 2
    assert counted.find("a").count == 1


def test_what_follows_a_step_that_was_redelivered_later(
    worker: Worker, counted: Any, nightly: Any, unsteady: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store was away."""
    handle, errors = tasks.handle, [StoreUnavailable("memory://", "away")]

    def handle_later(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return handle(*args)

    monkeypatch.setattr(tasks, "handle", handle_later)
    unsteady.runs = 1
    unsteady.begin.apply_async(("1",), link=nightly.si().set(task_id="second"))
    delivered, *_ = worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert unsteady.runs == 2
    assert counted.find("a").count == 1


def test_what_follows_a_task_that_a_saga_has_sent(app: Celery, worker: Worker, counted: Any) -> None:
    """It is the same whether that one was retried or not."""
    runs: list[int] = []

    @app.task(bind=True)
    def first(self: Any) -> None:
        runs.append(self.request.retries)
        if len(runs) == 1:
            raise self.retry(countdown=0)

    class Order(Saga, correlate_by="name"):
        name: str

    @Order.starts
    def begin(order: Order, name: str) -> None:
        order.send(first.si().set(link=counted.add.si("a")))

    begin.delay("1")
    _, delivered, *_ = worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert runs == [0, 1, 0]
    assert counted.find("a").count == 1


@pytest.mark.parametrize("again", ["sends less", "is not retried"])
def test_link_to_a_step_is_the_same_in_each_delivery(app: Celery, worker: Worker, counted: Any, again: str) -> None:
    """Though it has no id."""
    runs: list[str] = []

    @app.task(bind=True)
    def first(self: Any) -> None:
        runs.append(self.request.id)
        if len(runs) > 1:
            return
        counted.add.delay("b")
        if again == "is not retried":
            raise self.retry(countdown=0)

    first.apply_async(link=counted.add.si("a"))
    delivered, *_ = worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert counted.find("a").count == 1


@pytest.mark.parametrize("kind", ["task", "step"])
@as_tasks
def test_what_a_retry_publishes_is_another_publication_each_time(
    app: Celery, worker: Worker, counted: Any, nightly: Any, kind: str
) -> None:
    """It does not follow the task, which has not ended."""

    class Telling(Task):  # type: ignore[type-arg]
        def on_retry(self, *_: object) -> None:
            nightly.apply_async(task_id="nightly")

    runs: list[str] = []

    def run(name: str) -> None:
        runs.append(name)
        if len(runs) < 4:
            raise OSError

    class Polling(Saga, correlate_by="name"):
        name: str

    options: dict[str, Any] = {"base": Telling, "autoretry_for": (OSError,), "max_retries": 3, "default_retry_delay": 0}

    @Polling.starts(**options)
    def step(polling: Polling, name: str) -> None:
        run(name)

    polled: Any = step if kind == "step" else app.task(**options)(run)
    polled.delay("1")
    worker.run()

    assert len(runs) == 4
    assert counted.find("a").count == 3


def test_body_of_a_chord_without_a_native_join(new_app: NewApp, counted: Any, tmp_path: Path) -> None:
    """Celery's task that looks whether all members are done is retried, and may be delivered twice."""
    app = new_app(result_backend=f"file://{tmp_path}", result_chord_retry_interval=0)
    worker = Worker(app)

    @app.task
    def member() -> None: ...

    @app.task
    def body(results: list[None]) -> None:
        counted.add.delay("a")

    unlock = app.tasks["celery.chord_unlock"]
    unlock.acks_late = True
    members = group(member.s(), member.s())
    waiting = members.freeze()
    unlock.apply_async((waiting.id, body.s().set(task_id="body")), {"result": [each.as_tuple() for each in waiting.results]})
    delivered = worker.one()
    members.apply_async()
    worker.run()
    worker.deliver_again(delivered)
    worker.run()

    assert delivered.headers["retries"] == 0
    assert counted.find("a").count == 1


def test_header_with_the_name_of_a_mark(app: Celery, worker: Worker, counted: Any, nightly: Any) -> None:
    """It means nothing."""

    @app.task(bind=True)
    def poll(self: Any) -> None:
        nightly.apply_async(task_id="nightly")
        if self.request.retries < 2:
            raise self.retry(countdown=0)

    poll.apply_async(headers={"_celery_sagas_over": True})
    worker.run()

    assert counted.find("a").count == 3
