"""Plain code that sends with its own transaction; steps and batches whose rows are committed with them."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery, chain, group
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from sqlalchemy import Connection, Engine, NullPool, String, create_engine, insert, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_sagas import Batch, Message, Saga, aggregator, publish, send
from celery_sagas.errors import ConfigurationError, InvalidMessage, MisuseError, PublishError
from celery_sagas.stores.records import Change
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import effects
from celery_sagas.worker.batches.handing_over import batch_size
from celery_sagas.worker.process.bootsteps import prepare
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker
from tests.every_store import DATABASES
from tests.servers import unique


class Base(DeclarativeBase):
    """The user's tables."""


class Payment(Base):
    """A row of the user's."""

    __tablename__ = "users_payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80))


class Paid(Message):
    """An event."""

    order_id: str


@pytest.fixture(params=DATABASES)
def app(request: pytest.FixtureRequest, new_app: NewApp, tmp_path: Path) -> Celery:
    """An app with its sagas in each kind of database."""
    own = {"sqlite": f"sqlite:///{tmp_path}/sagas.sqlite3"}
    app = new_app(saga_prefix=unique())
    app.conf.saga_backend = own.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    runtime_of(app).prepare(processes=1)
    return app


def engine_of(app: Celery) -> Engine:
    """Return an engine of the user's on the app's database."""
    backend = runtime_of(app).outbox
    assert isinstance(backend, SqlBackend)
    return create_engine(backend.database.location.url, poolclass=NullPool)


@pytest.fixture
def engine(app: Celery) -> Iterator[Engine]:
    """The user's engine, with an empty table."""
    engine = engine_of(app)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


def names(engine: Engine) -> list[str]:
    """Return the names in the user's table."""
    with Session(engine) as session:
        return sorted(session.scalars(select(Payment.name)))


class Failing(Exception):
    """Raised by the user's code."""


def an_order() -> Any:
    """Define a saga."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        count: int = 0

    @Order.starts
    def place(order: Order, order_id: str, times: int = 1) -> None:
        order.count += times

    @Order.handles
    def paid(order: Order, event: Paid) -> None:
        order.count += 100

    Order.place, Order.paid = place, paid  # type: ignore[attr-defined]
    return Order


class TestSend:
    """``send(…, using=session)``."""

    def test_is_sent_with_the_commit(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        with Session(engine) as session, session.begin():
            session.add(Payment(name="a"))
            id = send(order.place.si(order_id="1"), using=session)
            assert worker.waiting() == []
        assert [message.id for message in worker.waiting()] == [id]
        worker.run()
        assert (names(engine), order.find("1").count) == (["a"], 1)
        assert runtime_of(app).outbox.outbox.count() == 0

    def test_is_not_sent_without_it(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        with Session(engine) as session:
            session.add(Payment(name="a"))
            send(order.place.si(order_id="1"), using=session)
            session.rollback()
        assert (names(engine), worker.waiting(), runtime_of(app).outbox.outbox.count()) == ([], [], 0)

    def test_in_the_order_of_the_calls(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        with Session(engine) as session, session.begin():
            sent = [send(order.place.si(order_id=str(number)), using=session) for number in range(20)]
        assert [message.id for message in worker.waiting()] == sent

    def test_relay_sends_what_a_bare_connection_has_committed(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        with engine.begin() as connection:
            id = send(order.place.si(order_id="1"), using=connection)
        assert worker.waiting() == []
        assert open_relay(runtime_of(app)).sweep().sent == 1
        assert [message.id for message in worker.waiting()] == [id]

    def test_error_after_the_commit_is_logged_and_left_to_a_relay(
        self, app: Celery, worker: Worker, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        order, runtime = an_order(), runtime_of(app)

        def fail(*_: object) -> None:
            raise PublishError("the broker is away", connection=True)

        with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
            for name in ("post", "publish", "publish_many", "probe"):
                broken.setattr(runtime.publisher, name, fail)
            with Session(engine) as session, session.begin():
                session.add(Payment(name="a"))
                send(order.place.si(order_id="1"), using=session)
        assert names(engine) == ["a"]
        assert runtime.outbox.outbox.count() == 1
        assert "the broker is away" in caplog.text

    def test_time_limit_after_the_commit_reaches_the_task_that_sends(
        self, app: Celery, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else it would go on until the hard one ends it; the session can be used, and a relay publishes."""
        outbox = runtime_of(app).outbox.outbox
        with Session(engine) as session, monkeypatch.context() as meanwhile:
            meanwhile.setattr(outbox, "claim_due", Mock(side_effect=SoftTimeLimitExceeded))
            send(an_order().place.si(order_id="1"), using=session)
            with pytest.raises(SoftTimeLimitExceeded):
                session.commit()
            assert session.scalar(select(7)) == 7
        assert outbox.count() == 1

    def test_waits(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        with Session(engine) as session, session.begin():
            send(order.place.si(order_id="1"), using=session, after=timedelta(hours=1))
            send(order.place.si(order_id="2").set(countdown=3600), using=session)
        assert (worker.waiting(), runtime_of(app).outbox.outbox.count()) == ([], 2)
        with Session(engine) as session, pytest.raises(TypeError, match="countdown"):
            send(order.place.si(order_id="1").set(countdown=1), using=session, after=1)

    def test_own_id(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        for _ in range(2):
            with Session(engine) as session, session.begin():
                assert send(order.place.si(order_id="1"), using=session, id="order-1") == "order-1"
        assert len(worker.run()) == 2
        assert order.find("1").count == 1

    @pytest.mark.parametrize("id", ["", "a\nb", "x" * 256, 7])
    def test_impossible_id(self, app: Celery, engine: Engine, id: Any) -> None:
        with Session(engine) as session, pytest.raises(InvalidMessage):
            send(an_order().place.si(order_id="1"), using=session, id=id)

    def test_chain(self, app: Celery, worker: Worker, engine: Engine) -> None:
        @app.task(shared=False)
        def number(text: str) -> str:
            return text

        order = an_order()
        with Session(engine) as session, session.begin():
            last = send(chain(number.s("1"), order.place.s()), using=session, id="first")
        first, second = worker.run()
        assert (first.id, second.id, order.find("1").count) == ("first", last, 1)

    @pytest.mark.parametrize("wrong", ["group", "text", "unknown argument"])
    def test_message_that_cannot_be_sent(self, app: Celery, engine: Engine, wrong: str) -> None:
        place = an_order().place
        messages: dict[str, Any] = {
            "group": group(place.si(order_id="1")),
            "text": "order.place",
            "unknown argument": app.signature(place.name, kwargs={"no": 1}, immutable=True),
        }
        with Session(engine) as session, session.begin():
            with pytest.raises((TypeError, InvalidMessage)):
                send(messages[wrong], using=session)
            session.add(Payment(name="goes on"))
        assert names(engine) == ["goes on"]
        assert runtime_of(app).outbox.outbox.count() == 0

    def test_in_a_step(self, app: Celery, worker: Worker, engine: Engine) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            with Session(engine) as session:
                send(place.si(order_id="2"), using=session)

        with pytest.raises(MisuseError, match=r"order\.send"):
            place(order_id="1")

    def test_redelivered_task_sends_under_the_same_id(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()

        @app.task(shared=False)
        def buy(order_id: str) -> None:
            with Session(engine) as session, session.begin():
                send(order.place.si(order_id=order_id), using=session)

        buy.delay("1")
        first = worker.one()
        worker.run()
        worker.deliver_again(first)
        worker.run()
        assert order.find("1").count == 1

    def test_event(self, app: Celery, worker: Worker, engine: Engine) -> None:
        order = an_order()
        order.place(order_id="1")
        with Session(engine) as session, session.begin():
            publish(Paid(order_id="1"), using=session)
            assert worker.waiting() == []
        worker.run()
        assert order.find("1").count == 101

    def test_eager(self, new_app: NewApp, tmp_path: Path) -> None:
        app = new_app(eager=True)
        app.conf.saga_backend = f"sqlite:///{tmp_path}/eager.sqlite3"
        order = an_order()
        runtime_of(app)
        with Session(engine_of(app)) as session, session.begin():
            send(order.place.si(order_id="1"), using=session)
            assert order.find("1") is None
        assert order.find("1").count == 1


class TestOutboxBackend:
    """Sagas are kept elsewhere, and plain code sends with the transactions of its own database."""

    def test_sagas_elsewhere(self, new_app: NewApp, tmp_path: Path) -> None:
        app = new_app(saga_outbox_backend=f"sqlite:///{tmp_path}/shop.sqlite3")
        order, worker, runtime = an_order(), Worker(app), runtime_of(app)
        runtime.prepare(processes=1)
        with Session(engine_of(app)) as session, session.begin():
            send(order.place.si(order_id="1"), using=session)
        with engine_of(app).begin() as connection:
            send(order.place.si(order_id="2"), using=connection)
        assert open_relay(runtime, runtime.outbox).sweep().sent == 1
        worker.run()
        assert [order.find(id).count for id in "12"] == [1, 1]
        runtime.dispatcher_of(runtime.outbox).confirmations.settle()  # as happens a moment later
        assert runtime.outbox.outbox.count() == 0
        assert [backend.url for backend in runtime.backends] == [runtime.backend.url, runtime.outbox.url]

    def test_shares_a_backend_that_is_open(self, new_app: NewApp, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/shop.sqlite3"
        runtime = runtime_of(new_app(saga_outbox_backend=url, saga_aggregator_backend=url))
        assert runtime.outbox is runtime.batches

    def test_without_one(self, new_app: NewApp, tmp_path: Path) -> None:
        new_app()
        order = an_order()
        with Session(create_engine("sqlite://")) as session, pytest.raises(ConfigurationError, match="saga_outbox_backend"):
            send(order.place.si(order_id="1"), using=session)

    def test_that_shares_no_transaction(self, new_app: NewApp) -> None:
        app = new_app(saga_outbox_backend="memory://other")
        with pytest.raises(ConfigurationError, match="saga_outbox_backend"):
            prepare(app, processes=1)


class TestSteps:
    """``transaction=Session`` on steps."""

    @pytest.fixture(params=[Session, Connection])
    def pay(self, request: pytest.FixtureRequest, app: Celery) -> Any:
        """Two steps that write rows, one of which begins the saga."""
        kind = request.param

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            count: int = 0

        def write(session: Any, name: str) -> None:
            session.execute(insert(Payment).values(name=name))
            if name == "fails":
                raise Failing(name)

        @Order.starts(transaction=kind)
        def begin(order: Order, session: Any, order_id: str, name: str) -> None:
            write(session, name)
            order.count += 1

        @Order.handles(transaction=kind)
        def pay(order: Order, session: Any, order_id: str, name: str) -> None:
            write(session, name)
            order.count += 1
            order.send(pay.si(order_id=order_id, name=f"{name}'")) if len(name) == 1 else order.complete()

        return Order, begin, pay

    def test_rows_are_committed_with_the_saga(self, app: Celery, worker: Worker, engine: Engine, pay: Any) -> None:
        order, begin, pays = pay
        begin.delay(order_id="1", name="begun")
        worker.run()
        assert (names(engine), order.find("1").count) == (["begun"], 1)
        pays.delay(order_id="1", name="p")
        worker.run()
        assert names(engine) == ["begun", "p", "p'"]
        assert order.find("1") is None
        assert runtime_of(app).backend.outbox.count() == 0

    def test_repeat_writes_nothing(self, app: Celery, worker: Worker, engine: Engine, pay: Any) -> None:
        order, begin, _ = pay
        begin.delay(order_id="1", name="once")
        worker.deliver_again(worker.one())
        assert (names(engine), order.find("1").count) == (["once"], 1)

    def test_error_undoes_all(self, app: Celery, worker: Worker, engine: Engine, pay: Any) -> None:
        order, begin, _ = pay
        begin.delay(order_id="1", name="fails")
        worker.run()
        assert (names(engine), order.find("1"), runtime_of(app).backend.dead.count()) == ([], None, 1)

    def test_handler_runs_again_after_a_conflict(self, app: Celery, worker: Worker, engine: Engine) -> None:
        class Slow(Saga, correlate_by="id"):
            id: str

        runs: list[int] = []
        sagas = runtime_of(app).backend.sagas

        @Slow.starts
        def touch(slow: Slow, id: str) -> None: ...

        @Slow.handles(transaction=Session)
        def write(slow: Slow, session: Session, id: str) -> None:
            runs.append(slow.saga.version)
            session.add(Payment(name=f"run {len(runs)}"))

        def find(lookup: Any, handling: Any = None) -> Any:
            """Have another process change the instance once it is found."""
            found = inner(lookup, handling)
            if handling is not None and handling.steps[0] == write.name and not runs:
                record = found.record
                kept = Change((record.saga,), record.schema_version, record.data, record.pending)
                sagas.update(record, kept, effects(record))
            return found

        touch(id="s")
        inner, sagas.find = sagas.find, find  # type: ignore[method-assign]
        write.delay(id="s")
        worker.run()
        assert (runs, names(engine)) == ([1, 2], ["run 2"])

    def test_worker_does_not_start_without_a_database(self, new_app: NewApp, pay: Any) -> None:
        app = new_app()
        with pytest.raises(ConfigurationError, match=r"order\..* has transaction=, but memory.*saga_backend"):
            prepare(app, processes=1)

    def test_direct_call(self, app: Celery, engine: Engine, pay: Any) -> None:
        _, begin, _ = pay
        begin(order_id="1", name="direct")
        assert names(engine) == ["direct"]

    def test_it_is_handled_in_batches(self, app: Celery, engine: Engine, pay: Any) -> None:
        _, begin, _ = pay
        assert batch_size(app.tasks[begin.name], runtime_of(app).settings) > 1


class TestBatches:
    """``transaction=Session`` on aggregators."""

    @pytest.fixture
    def store(self, app: Celery) -> Any:
        """An aggregator that writes rows."""

        @aggregator(size=2, transaction=Session, retry_backoff=False, default_retry_delay=0)
        def store(batch: Batch[str], session: Session) -> None:
            session.add_all(Payment(name=name) for name in batch)
            if "fails" in batch:
                session.flush()
                raise Failing
            batch.send(counted.si("+".join(batch)))

        @app.task(shared=False)
        def counted(what: str) -> None: ...

        return store

    def test_rows_are_committed_with_the_removal(self, app: Celery, worker: Worker, engine: Engine, store: Any) -> None:
        store.add_many(["a", "b"])
        _, sent = worker.run()
        assert (names(engine), store.count(), sent.args) == (["a", "b"], 0, ["a+b"])
        assert runtime_of(app).batches.outbox.count() == 0

    def test_error_undoes_all(self, app: Celery, worker: Worker, engine: Engine, store: Any) -> None:
        store.add_many(["a", "fails"])
        worker.one()
        assert (names(engine), store.count()) == ([], 2)

    @pytest.mark.parametrize("is_refused", [False, True])
    def test_ignored_as_if_it_had_returned(self, app: Celery, worker: Worker, engine: Engine, is_refused: bool) -> None:
        """Its rows are written, or refused, also those that it has not flushed."""

        @aggregator(size=2, transaction=Session)
        def store(batch: Batch[str], session: Session) -> None:
            session.add_all(Payment(id=1 if is_refused else None, name=name) for name in batch)
            raise Ignore

        store.add_many(["a", "b"])
        worker.one()
        assert (names(engine), store.count()) == (([], 2) if is_refused else (["a", "b"], 0))

    def test_lost_lease_undoes_all(self, app: Celery, worker: Worker, engine: Engine) -> None:
        @aggregator(size=2, transaction=Session)
        def store(batch: Batch[str], session: Session) -> None:
            store.clear()  # an operator, meanwhile
            session.add_all(Payment(name=name) for name in batch)

        store.add_many(["a", "b"])
        if runtime_of(app).batches.database.name == "sqlite":
            return  # it has locked the file
        worker.one()
        assert (names(engine), store.count()) == ([], 0)

    def test_worker_does_not_start_without_a_database(self, new_app: NewApp, store: Any) -> None:
        app = new_app()
        with pytest.raises(ConfigurationError, match=r"has transaction=, but memory.*saga_aggregator_backend"):
            prepare(app, processes=1)


def test_deadlock_of_rows_is_run_again(app: Celery, worker: Worker, engine: Engine) -> None:
    """A serialization failure in the handler's own statement."""
    if runtime_of(app).backend.database.name != "postgresql":
        return

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    runs: list[str] = []

    @Order.starts(transaction=Connection)
    def place(order: Order, connection: Connection, order_id: str) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(select(Payment.name)).all()
        if not runs:
            with engine.begin() as rival:
                rival.execute(update(Payment).values(name="rival"))
        runs.append(order_id)
        connection.execute(update(Payment).values(name="mine"))

    with engine.begin() as connection:
        connection.execute(insert(Payment).values(name="nobody's"))
    place.delay(order_id="1")
    worker.run()
    assert (len(runs), names(engine), Order.find("1") is not None) == (2, ["mine"], True)
