"""What a step sends is encoded at the call, with ids, headers and parents of its own."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, signals
from celery.canvas import Signature
from celery.exceptions import QueueNotFound
from kombu import Exchange, Queue

from celery_sagas import Message, Saga
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.errors import InvalidMessage, InvalidState, MisuseError, PublishError
from celery_sagas.stores.records import Outgoing
from celery_sagas.testing.samples import dead_letter
from celery_sagas.worker.events import PUBLISH
from celery_sagas.worker.operators import retry_of
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.serialization import deserialized, restored, serialized
from tests.apps import NewApp, Worker, backend_of
from tests.worker.moments import Moment


@pytest.fixture
def plain(app: Celery) -> Any:
    """A plain task."""

    @app.task(name="plain")
    def plain(*args: Any, **kwargs: Any) -> Any: ...

    return plain


@pytest.fixture
def freeze(app: Celery) -> Callable[[object], SerializedMessage]:
    """Encode a message outside a task; ids are counted."""
    ids = count()
    return lambda message: serialized(app, message, lambda: f"id-{next(ids)}", 10_000)


def deserialize(app: Celery, message: SerializedMessage) -> Signature[Any]:
    """Decode it."""
    return restored(app, message.payload)


class TestWhatCanBeSent:
    """One-task signatures and chains only."""

    def test_signature(self, app: Celery, plain: Any, freeze: Any) -> None:
        message = freeze(plain.s(1, b="2"))

        assert (message.message_id, message.task) == ("id-0", "plain")
        sent = deserialize(app, message)
        assert (sent.task, list(sent.args), sent.kwargs, sent.options["task_id"]) == ("plain", [1], {"b": "2"}, "id-0")

    def test_values_that_celery_can_send(self, app: Celery, plain: Any, freeze: Any) -> None:
        class Event(Message):
            text: str

        values = [Decimal("9.99"), datetime(2030, 1, 1, tzinfo=UTC), [Event(text="x")]]

        assert list(deserialize(app, freeze(plain.s(*values))).args) == [*values[:2], [{"text": "x"}]]

    @pytest.mark.parametrize("kind", ["group", "chord", "chunks", "chain of a group", "chain of a chord"])
    def test_groups_are_refused(self, plain: Any, freeze: Any, kind: str) -> None:
        message = {
            "group": lambda: group(plain.s(), plain.s()),
            "chord": lambda: chord([plain.s(), plain.s()], plain.s()),
            "chunks": lambda: plain.chunks([(1,), (2,)], 1),
            "chain of a group": lambda: plain.s() | group(plain.s(), plain.s()),
            "chain of a chord": lambda: plain.s() | group(plain.s(), plain.s()) | plain.s(),
        }[kind]()

        with pytest.raises(TypeError, match="one task or a chain, not a group, chord"):
            freeze(message)

    @pytest.mark.parametrize("message", [None, "plain", 5, {"task": "plain"}])
    def test_anything_else_is_refused(self, freeze: Any, message: object) -> None:
        with pytest.raises(TypeError, match=r"such as task\.s"):
            freeze(message)

    def test_task_itself_is_refused(self, plain: Any, freeze: Any) -> None:
        with pytest.raises(TypeError, match=r"such as task\.s"):
            freeze(plain)

    def test_empty_chain_is_refused(self, app: Celery, freeze: Any) -> None:
        with pytest.raises(TypeError):
            freeze(chain(app=app))

    def test_arguments_that_the_task_does_not_take(self, app: Celery, freeze: Any) -> None:
        """As Celery refuses them where it publishes; those of the next of a chain are not complete."""

        @app.task
        def strict(amount: int) -> int:
            return amount

        @app.task(typing=False)
        def lenient(amount: int) -> None: ...

        class WithTenant(Task):
            """An app's own base, which adds arguments that Celery checks only then."""

            def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
                return super().apply_async(args, {**(kwargs or {}), "tenant": "t1"}, *rest, **options)

        @app.task(base=WithTenant)
        def of_tenant(amount: int, *, tenant: str) -> None: ...

        with pytest.raises(InvalidMessage, match="takes 1 positional argument but 2 were given"):
            freeze(strict.s(1, 2))
        unknown = app.signature("unknown", args=(1, 2))
        for fitting in (strict.s(1), chain(strict.s(1), strict.s()), lenient.s(1, 2), of_tenant.s(1), unknown):
            freeze(fitting)

    @pytest.mark.parametrize("value", [object(), [{1, 2, object()}], lambda: None])
    def test_value_that_is_no_json(self, plain: Any, freeze: Any, value: object) -> None:
        with pytest.raises(InvalidMessage, match=r"plain.*cannot be encoded as JSON"):
            freeze(plain.s(value))

    def test_value_that_kombu_could_not_read_again(self, plain: Any, freeze: Any) -> None:
        """It takes a dictionary of exactly these keys for a value of its own."""
        with pytest.raises(InvalidMessage, match="read again"):
            freeze(plain.s({"__type__": "nothing that it knows", "__value__": 1}))

    def test_too_large(self, plain: Any, freeze: Any) -> None:
        freeze(plain.s("x" * 9_000))

        with pytest.raises(InvalidMessage, match=r"saga_max_state_bytes allows 10000"):
            freeze(plain.s("x" * 10_000))


class TestChains:
    """Each member has an id of its own; the last one's is the chain's."""

    def test_ids_and_headers(self, app: Celery, plain: Any, freeze: Any) -> None:
        message = freeze(plain.s(1) | plain.s(2).set(headers={"tenant": "t"}) | plain.s(3))

        members = deserialize(app, message).tasks
        assert [member.options["task_id"] for member in members] == ["id-0", "id-1", "id-2"]
        assert (message.message_id, message.answer_id, message.task) == ("id-0", "id-2", "plain")
        assert members[1].options["headers"] == {"tenant": "t"}

    def test_it_begins_with_its_first_task(self, app: Celery, plain: Any, freeze: Any) -> None:
        """Which bears the others: Celery would publish a chain over a producer of its own, without confirmation."""
        sent = chain(plain.s(1), plain.s(2), plain.s(3)).set(queue="fast", link_error=plain.si("failed"), link=plain.si("done"))
        first = deserialized(app, freeze(sent).payload)

        assert (first.task, list(first.args), first.options["task_id"], first.options["queue"]) == ("plain", [1], "id-0", "fast")
        last, second = first.options["chain"]
        assert [second.options["task_id"], last.options["task_id"]] == ["id-1", "id-2"]
        assert all(member.options["link_error"] for member in (first, second, last))
        assert (last.options["link"][0]["args"], first.options.get("link")) == (["done"], None)

    def test_every_member_is_caused_by_the_step(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> str:
            return order.send(plain.si(1) | plain.si(2))

        place.apply_async(("42",), task_id="m1")
        worker.run()

        first, second = worker.done[1:]
        order = Order.find("42")
        assert order is not None
        for member in (first, second):
            assert member.headers["saga_cause"] == "m1"
            assert member.headers["saga_causation"] == {"order": order.saga.id}
            assert member.headers["root_id"] == "m1"
        assert (first.headers["parent_id"], second.headers["parent_id"]) == ("m1", first.id)

    def test_headers_of_the_chain(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send((plain.si(1) | plain.si(2)).set(headers={"tenant": "t"}))

        place.delay("42")
        worker.run()

        first, second = worker.done[1:]
        assert first.headers["tenant"] == "t"
        assert "tenant" not in second.headers  # as Celery has it: a message id, say, must not be that of two
        for member in (first, second):
            assert member.headers["saga_cause"] == worker.done[0].id

    def test_delays_of_later_members_count_from_the_one_before(self, app: Celery, plain: Any, freeze: Any) -> None:
        """As Celery has it."""
        members = deserialize(app, freeze(plain.s(1).set(countdown=10) | plain.s(2).set(countdown=20, expires=30))).tasks

        assert "countdown" not in members[0].options
        assert (members[1].options["countdown"], members[1].options["expires"]) == (20, 30)
        assert "eta" not in members[1].options


class TestDeclaredOptions:
    """A relay may publish a message whose task it does not know."""

    @pytest.fixture
    def stranger(self, new_app: NewApp) -> Celery:
        """An app that does not know the task."""
        return new_app()

    def test_they_go_with_the_message(self, app: Celery, stranger: Celery, freeze: Any) -> None:
        @app.task(name="slow", shared=False, time_limit=9, soft_time_limit=5)
        def slow() -> None: ...

        payload = freeze(slow.si()).payload
        assert {"time_limit": 9, "soft_time_limit": 5}.items() <= deserialized(stranger, payload).options.items()
        assert "time_limit" not in deserialized(app, payload).options  # which knows better: they may have changed since

    def test_what_the_signature_says_goes_first(self, app: Celery, stranger: Celery, freeze: Any) -> None:
        @app.task(name="slow", shared=False, time_limit=9)
        def slow() -> None: ...

        assert deserialized(stranger, freeze(slow.si().set(time_limit=5)).payload).options["time_limit"] == 5

    def test_of_a_chain_those_of_its_first_task(self, app: Celery, stranger: Celery, plain: Any, freeze: Any) -> None:
        @app.task(name="slow", shared=False, time_limit=9)
        def slow() -> None: ...

        assert deserialized(stranger, freeze(slow.si() | plain.si()).payload).options["time_limit"] == 9

    def test_of_a_plain_task_there_are_none(self, plain: Any, freeze: Any) -> None:
        assert "declared_options" not in freeze(plain.si()).payload


def nothing() -> None:
    """Do nothing, as a task."""


def seen_of(sent: Signature[Any]) -> tuple[str, str, list[Any]]:
    """Publish a signature; return the exchange, the routing key and what is declared."""
    seen: list[tuple[str, str, list[Any]]] = []

    def note(exchange: str, routing_key: str, declare: list[Any], **_: object) -> None:
        seen.append((exchange, routing_key, declare))

    signals.before_task_publish.connect(note)
    try:
        sent.apply_async()
    finally:
        signals.before_task_publish.disconnect(note)
    return seen[0]


class TestRoute:
    """A message whose task is not known goes where the app that sends it routes it, whatever the relay's own app would do."""

    @pytest.fixture
    def app(self, new_app: NewApp) -> Celery:
        """The app that sends, on the broker of the other."""
        topic = Queue("dead_letters", Exchange("post", "topic"), routing_key="dead letter.#")
        app = new_app(
            task_queues=[Queue("own"), topic], task_routes={"slow": {"queue": "slowly"}, "post": {"queue": "dead_letters"}}
        )
        app.conf.task_default_queue = "own"
        return app

    @pytest.fixture
    def stranger(self, app: Celery, new_app: NewApp) -> Celery:
        """An app that knows none of the tasks; every queue that it declares is its own."""
        stranger = new_app(task_routes={"*": {"queue": "theirs", "exchange": "theirs", "routing_key": "x", "priority": 3}})
        stranger.conf.task_default_queue = "theirs"
        app.set_current()
        return stranger

    @pytest.fixture
    def published(self, stranger: Celery) -> Callable[[SerializedMessage], tuple[str, str, list[Any]]]:
        """Publish a message as the other app's relay does; return the exchange, the routing key and what is declared."""
        return lambda message: seen_of(deserialized(stranger, message.payload))

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"queue": "slowly"},
            {"queue": "dead_letters"},
            {"queue": "dead_letters", "routing_key": "dead letter.air"},
            {"routing_key": "dead letter.air"},
            {"exchange": "post"},
            {"exchange": "post", "routing_key": "dead letter.air"},
            {"queue": "own", "exchange": "post", "routing_key": "dead letter.air"},
            {"exchange": "post", "exchange_type": "topic"},
        ],
    )
    @pytest.mark.parametrize("task", ["slow", "post", "other"])
    def test_it_is_where_celery_publishes(self, app: Celery, freeze: Any, published: Any, task: str, options: Any) -> None:
        sent = app.signature(task, **options)
        message = freeze(sent)
        exchange, routing_key, _ = seen_of(sent)

        assert published(message)[:2] == (exchange, routing_key or "")

    @pytest.mark.parametrize(("task", "queue"), [("slow", "slowly"), ("other", "own")], ids=["routed", "default"])
    def test_queue(self, freeze: Any, published: Any, app: Celery, task: str, queue: str) -> None:
        assert published(freeze(app.signature(task))) == ("", queue, [])

    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_queue_that_a_task_declares(self, app: Celery, freeze: Any, published: Any) -> None:
        app.task(name="declared", shared=False, queue="dead_letters")(nothing)
        app.task(name="object", shared=False, queue=Queue("objects"))(nothing)

        assert published(freeze(app.signature("declared")))[:2] == ("post", "dead letter.#")
        assert published(freeze(app.signature("object"))) == ("", "objects", [])

    def test_queue_of_a_chain(self, app: Celery, freeze: Any, published: Any) -> None:
        assert published(freeze(app.signature("slow") | app.signature("other"))) == ("", "slowly", [])
        assert published(freeze((app.signature("slow") | app.signature("other")).set(queue="own")))[:2] == ("", "own")

    def test_custom_exchange(self, app: Celery, freeze: Any, published: Any) -> None:
        """Where the broker has no exchanges, each process must know the type, or nothing is found behind one."""
        exchange, routing_key, declared = published(freeze(app.signature("post").set(routing_key="dead letter.air")))

        assert (exchange, routing_key) == ("post", "dead letter.air")
        assert [(type(each), each.name, each.type) for each in declared] == [(Exchange, "post", "topic")]

    def test_rabbitmq_keeps_its_exchanges(self, app: Celery, stranger: Celery, freeze: Any) -> None:
        stranger.conf.broker_url = "amqp://"

        assert deserialized(stranger, freeze(app.signature("post")).payload).options["declare"] == []

    def test_queue_that_the_other_app_knows_is_declared(self, app: Celery, stranger: Celery, freeze: Any, published: Any) -> None:
        stranger.conf.task_queues = [Queue("theirs"), Queue("slowly")]

        assert published(freeze(app.signature("slow"))) == ("", "slowly", [stranger.amqp.queues["slowly"]])

    def test_arguments_are_shown_to_a_router_of_the_apps_own(self, app: Celery, freeze: Any, published: Any) -> None:
        app.conf.task_routes = [lambda name, args, kwargs, options, task=None: {"queue": args[0]}]

        assert published(freeze(app.signature("slow", ("a",))))[1] == "a"
        assert published(freeze(app.signature("slow", ("b",))))[1] == "b"

    def test_app_of_another_name_keeps_to_the_route_of_a_task_that_it_knows(
        self, app: Celery, stranger: Celery, freeze: Any, published: Any
    ) -> None:
        stranger.task(name="slow", shared=False)(nothing)

        assert published(freeze(app.signature("slow")))[:2] == ("", "slowly")

    @pytest.mark.parametrize("names", [("shop", "shop"), ("shop", None), (None, "shop")])
    def test_route_of_an_app_that_knows_the_task_is_its_own(
        self, app: Celery, stranger: Celery, freeze: Any, published: Any, names: tuple[str | None, str | None]
    ) -> None:
        """It may be the same app, whose configuration has changed since."""
        app.main, stranger.main = names
        stranger.task(name="slow", shared=False)(nothing)

        assert published(freeze(app.signature("slow")))[:2] == ("theirs", "x")

    def test_retried_dead_letter_goes_where_it_is_routed_now(self, app: Celery, stranger: Celery, freeze: Any) -> None:
        """The route that it had may be what was wrong."""
        kept = dead_letter()._replace(payload=freeze(app.signature("slow")).payload)

        assert seen_of(retry_of(stranger, kept))[:2] == ("theirs", "x")

    def test_event_goes_to_the_subscribers_of_its_own_app(
        self, app: Celery, stranger: Celery, freeze: Any, published: Any
    ) -> None:
        """Every app has the task that fans it out, each with subscribers of its own."""
        assert PUBLISH in stranger.tasks
        assert published(freeze(app.signature(PUBLISH, ("event", {}))))[:2] == ("", "own")

    def test_same_route_is_taken_as_ever(self, app: Celery, freeze: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Its queue is declared by whoever publishes."""
        sent = deserialized(app, freeze(app.signature("slow")).payload)

        assert sent.options.keys() == {"task_id", "headers"}
        assert not caplog.records

    def test_row_without_a_route_is_published_as_ever(self, app: Celery, freeze: Any, published: Any) -> None:
        message = freeze(app.signature("slow"))
        without = {name: value for name, value in json.loads(message.payload).items() if name != "route"}

        assert published(replace(message, payload=json.dumps(without)))[:2] == ("theirs", "x")

    def test_router_that_fails_fails_when_the_message_is_published(self, app: Celery, freeze: Any) -> None:
        app.conf.task_create_missing_queues = False
        sent = deserialized(app, freeze(app.signature("slow")).payload)

        with pytest.raises(QueueNotFound, match="slowly"):
            sent.apply_async()

    def test_app_that_cannot_route_it_sends_it_all_the_same(
        self, app: Celery, stranger: Celery, freeze: Any, published: Any
    ) -> None:
        stranger.conf.task_create_missing_queues = False
        stranger.conf.task_routes = None

        assert published(freeze(app.signature("slow").set(queue="dead_letters")))[:2] == ("post", "dead letter.#")

    def test_it_is_said_once(self, app: Celery, stranger: Celery, freeze: Any, caplog: pytest.LogCaptureFixture) -> None:
        for task in ("slow", "slow", "post"):
            deserialized(stranger, freeze(app.signature(task)).payload)

        assert len(caplog.messages) == 2
        assert "slow goes to the queue 'slowly', as the app that committed it has routed it" in caplog.text
        assert "this app would send it to the exchange 'theirs' with the routing key 'x'" in caplog.text
        assert "give each a saga_prefix of its own" in caplog.text


class TestOptions:
    """They are kept, but for those that say when: the backend holds the message back, not the broker."""

    def test_countdown_becomes_the_due_time(self, app: Celery, plain: Any, freeze: Any) -> None:
        moment = Moment()
        message = freeze(plain.s().set(countdown=60))

        assert deserialize(app, message).options.keys().isdisjoint(("countdown", "eta"))
        assert moment.is_before(message.due_at, 60)

    @pytest.mark.parametrize("options", [{}, {"countdown": 0}, {"countdown": -1}, {"eta": datetime(2000, 1, 1, tzinfo=UTC)}])
    def test_without_a_time_to_come_it_is_sent_at_once(self, plain: Any, freeze: Any, options: Any) -> None:
        assert freeze(plain.s().set(**options)).due_at == 0

    @pytest.mark.parametrize("eta", [datetime(2130, 1, 1, tzinfo=UTC), datetime(2130, 1, 1), "2130-01-01T00:00:00+00:00"])
    def test_eta_becomes_the_due_time(self, app: Celery, plain: Any, freeze: Any, eta: Any) -> None:
        """A naive one stands in the app's time zone, as for Celery."""
        message = freeze(plain.s().set(eta=eta))

        assert message.due_at == datetime(2130, 1, 1, tzinfo=UTC).timestamp() * 1000
        assert "eta" not in deserialize(app, message).options

    @pytest.mark.parametrize("expires", [60, 60.5])
    def test_expires_becomes_absolute(self, app: Celery, plain: Any, freeze: Any, expires: float) -> None:
        moment = Moment()
        options = deserialize(app, freeze(plain.s().set(expires=expires))).options

        assert moment.is_before(options["expires"].timestamp() * 1000, expires)

    def test_of_a_chain_too(self, app: Celery, plain: Any, freeze: Any) -> None:
        moment = Moment()
        message = freeze((plain.s(1) | plain.s(2)).set(countdown=60, expires=90))
        options = deserialize(app, message).options

        assert options.keys().isdisjoint(("countdown", "eta"))
        assert moment.is_before(message.due_at, 60)
        assert moment.is_before(options["expires"].timestamp() * 1000, 90)

    def test_the_next_of_a_chain_counts_from_the_end_of_the_one_before(self, app: Celery, plain: Any, freeze: Any) -> None:
        message = freeze(plain.s(1) | plain.s(2).set(countdown=60))

        assert message.due_at == 0
        assert deserialize(app, message).tasks[1].options["countdown"] == 60

    def test_absolute_expiry_stays(self, app: Celery, plain: Any, freeze: Any) -> None:
        at = datetime(2030, 1, 1, tzinfo=UTC)

        assert deserialize(app, freeze(plain.s().set(expires=at))).options["expires"] == at

    def test_others_reach_the_broker(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(
                plain.s("x").set(
                    link=plain.si("linked"),
                    link_error=plain.si("failed"),
                    headers={"tenant": "t", "saga_causation": {"parcel": "theirs"}},
                    priority=4,
                    time_limit=9,
                    expires=9_000,
                    shadow="seen as",
                )
            )

        place.delay("42")
        worker.one()
        (message,) = worker.waiting()

        assert (message.headers["tenant"], message.headers["timelimit"][0], message.headers["shadow"]) == ("t", 9, "seen as")
        assert message.headers["saga_causation"] == {"parcel": "theirs"}
        assert datetime.fromisoformat(message.headers["expires"]) > datetime.now(UTC)
        worker.run()
        assert [done.args for done in worker.done[1:]] == [["x"], ["linked"]]

    def test_root_and_parent_are_the_steps(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(plain.si())

        place.apply_async(("42",), task_id="m1", root_id="root")
        worker.one()

        (message,) = worker.waiting()
        assert (message.headers["root_id"], message.headers["parent_id"]) == ("root", "m1")

    @pytest.mark.parametrize("kind", ["signature", "chain"])
    def test_root_and_parent_are_the_steps_whoever_publishes(
        self, app: Celery, worker: Worker, plain: Any, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(plain.si() if kind == "signature" else plain.si() | plain.si())

        def fail(*_: Any) -> None:
            raise PublishError("away", True)

        publisher = runtime_of(app).publisher
        with monkeypatch.context() as patched:
            patched.setattr(publisher, "publish_signature", fail)
            place.apply_async(("42",), task_id="m1", root_id="root")
            worker.one()
        rows: list[Outgoing] = [row.message for row in backend_of(app).outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]
        assert worker.waiting() == []
        publisher.publish(rows[0])

        (message,) = worker.waiting()
        assert (message.headers["root_id"], message.headers["parent_id"]) == ("root", "m1")
        assert message.headers["saga_cause"] == "m1"
        assert backend_of(app).outbox.count() == 1


class TestEncodedAtTheCall:
    """Later changes are not seen."""

    def test_arguments(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            items: list[str] = []

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.items.append("book")
            order.send(plain.s(order.items))
            order.items.append("pen")

        place.delay("42")
        worker.run()

        assert worker.done[-1].args == [["book"]]

    @pytest.mark.parametrize("kind", ["signature", "chain"])
    def test_signature_is_the_callers(self, plain: Any, freeze: Any, kind: str) -> None:
        signature = plain.s(1).set(countdown=5, headers={"a": 1})
        sent = signature if kind == "signature" else signature | plain.s(2)
        members = [sent] if kind == "signature" else list(sent.tasks)
        before = [(tuple(member.args), dict(member.options)) for member in members]

        assert freeze(sent).payload != freeze(sent).payload  # other ids

        after = [sent] if kind == "signature" else list(sent.tasks)
        for seen in (members, after):
            assert [(tuple(member.args), dict(member.options)) for member in seen] == before

    def test_same_signature_twice_is_two_messages(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            sent = plain.si("x")
            assert order.send(sent) != order.send(sent)

        place.delay("42")
        worker.run()

        assert len({done.id for done in worker.done}) == 3

    def test_what_cannot_be_encoded_fails_the_step(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str, what: str) -> None:
            order.send(plain.si("first"))
            order.send(plain.si({"object": object(), "large": "x" * 2_000_000}[what]))

        place.delay("42", "object")
        place.delay("42", "large")

        assert [type(done.error) for done in worker.run()] == [InvalidMessage, InvalidMessage]
        assert Order.find("42") is None
        assert backend_of(app).outbox.count() == 0


class TestSend:
    """``order.send``."""

    def test_to_a_step_of_the_saga(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str
            total: Decimal = Decimal(0)

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.send(add.s(order_id, Decimal("1.5")))
            order.send(add.si(order_id=order_id, total=Decimal(2)))

        @Order.handles
        def add(order: Order, order_id: str, total: Decimal) -> None:
            order.total += total

        place.delay("42")
        worker.run()

        order = Order.find("42")
        assert order is not None
        assert order.total == Decimal("3.5")

    def test_returns_the_message_id(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        ids: list[str] = []

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            ids.append(order.send(plain.si("a")))
            ids.append(order.send(plain.si("b") | plain.si("c")))

        place.delay("42")
        worker.run()

        assert ids == [next(done.id for done in worker.done if done.args == [text]) for text in ("a", "c")]

    def test_outside_a_step(self, app: Celery, worker: Worker, plain: Any) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        kept: list[Order] = []

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            kept.append(order)

        place.delay("42")
        worker.run()
        copy = Order.find("42")
        assert copy is not None

        for order in (Order(order_id="42"), copy, kept[0]):
            with pytest.raises(MisuseError, match="outside a step"):
                order.send(plain.si())
        assert worker.waiting() == []

    def test_limit_is_the_setting(self, new_app: NewApp) -> None:
        app = new_app(saga_max_state_bytes=1_000)

        @app.task(name="plain")
        def plain(text: str) -> None: ...

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            text: str = ""

        @Order.starts
        def place(order: Order, order_id: str, sent: int, kept: int) -> None:
            order.send(plain.s("x" * sent))
            order.text = "x" * kept

        place("41", 100, 100)
        with pytest.raises(InvalidMessage):
            place("42", 1_000, 0)
        with pytest.raises(InvalidState):
            place("42", 0, 1_000)
