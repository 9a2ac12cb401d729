"""Requests: what is sent with ``then``, and the answer that finds its saga."""

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, group

from celery_sagas import Batch, Message, Saga, aggregator
from celery_sagas.core.ids import derived_id
from celery_sagas.errors import InvalidMessage, InvalidState, MisuseError
from celery_sagas.worker.failures import dead_letters
from celery_sagas.worker.headers import ADDRESS, CAUSATION, CAUSE, RETURN_ADDRESS
from celery_sagas.worker.operators import Retried, discard_dead_letter, new_id_of, retry_dead_letter
from celery_sagas.worker.requests import sending
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, as_tasks, backend_of
from tests.worker.requests.orders import Boom, Shop, define, only, refused, shop

__all__ = ["shop"]

HOUR = timedelta(hours=1)
_GIVEN = {"then": "the answer", "otherwise": "the failure"}


class TestAnswer:
    """What a task returns, or the last one of a chain."""

    def test_runs_the_step_that_was_named(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(5), then=shop.saga.paid))
        worker.run()

        assert shop.ran == [[5]]
        assert shop.seen() == ["paid receipt"]
        assert shop.pending().requests == {}

    def test_goes_to_the_instance_that_asked(self, worker: Worker, shop: Shop) -> None:
        shop.work = lambda task, card: card
        for key in ("41", "42"):
            shop.place(worker, lambda order: order.send(shop.charge.s(f"card {order.order_id}"), then="paid"), key)
        worker.run()

        assert [shop.seen(key) for key in ("41", "42")] == [["paid card 41"], ["paid card 42"]]

    @pytest.mark.parametrize(
        ("then", "seen"),
        [
            (lambda saga: saga.paid, "paid receipt"),
            (lambda saga: "paid", "paid receipt"),
            (lambda saga: "order.paid", "paid receipt"),
            (lambda saga: saga.paid.s(), "paid receipt"),
            (lambda saga: saga.paid.s("Rome", how="cash"), "paid receipt Rome cash"),
            (lambda saga: saga.paid.s(where="Rome"), "paid receipt Rome"),
            (lambda saga: saga.paid.si("nothing"), "paid nothing"),
            (lambda saga: saga.told.si(), "told"),
        ],
    )
    def test_targets(self, worker: Worker, shop: Shop, then: Any, seen: str) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=then(shop.saga)))
        worker.run()

        assert shop.seen() == [seen]

    def test_starter_as_a_target_begins_nothing(self, worker: Worker, shop: Shop) -> None:
        @shop.saga.starts(if_exists="raise")
        def again(order: Any, order_id: str) -> None:
            order.note(f"again {order_id}")

        shop.work = lambda task: "42"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=again))
        worker.run()

        assert shop.seen() == ["again 42"]

    @pytest.mark.parametrize("answer", [None, 0, "", "text", 1.5, True, [1, None], {"a": {"b": [1]}}], ids=repr)
    def test_any_value_that_celery_can_send(self, worker: Worker, shop: Shop, answer: Any) -> None:
        got = []

        @shop.saga.handles
        def came(order: Any, answer: Any) -> None:
            got.append(answer)

        shop.work = lambda task: answer
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=came))
        worker.run()

        assert got == [answer]

    def test_is_converted_by_its_annotation(self, worker: Worker, shop: Shop) -> None:
        """Its own ``id`` is not taken for the order's."""

        class Receipt(Message):
            id: str
            cents: int

        got = []

        @shop.saga.handles
        def came(order: Any, receipt: Receipt) -> None:
            got.append(receipt)

        shop.work = lambda task: Receipt(id="r1", cents=5)
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=came))
        worker.run()

        assert got == [Receipt(id="r1", cents=5)]

    def test_that_names_another_instance_is_refused(self, worker: Worker, shop: Shop) -> None:
        shop.work = lambda task: "43"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="end"))
        worker.run()

        assert "it is addressed to order '42', and names '43'" in str(refused(worker.done[-1]))
        assert shop.seen() == []

    def test_nobody_named_for_it_ends_the_request(self, app: Celery, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), otherwise="unpaid", within=HOUR))
        assert len(shop.rows()) == 1
        worker.run()

        assert (shop.seen(), shop.pending().requests, shop.rows()) == ([], {}, [])

    def test_nothing_is_asked_without_a_step(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s()))

        assert shop.pending().requests == {}
        assert not {ADDRESS, RETURN_ADDRESS} & only(worker).headers.keys()
        assert only(worker).embed["callbacks"] is None

    def test_id_of_the_request_is_that_of_the_message(self, worker: Worker, shop: Shop) -> None:
        ids: list[str] = []
        shop.place(worker, lambda order: ids.append(order.send(shop.charge.s(), then="paid")))

        assert ids == [only(worker).id] == list(shop.pending().requests)

    def test_each_of_several_requests(self, worker: Worker, shop: Shop) -> None:
        shop.work = lambda task, name: name

        def ask(order: Any) -> None:
            order.send(shop.charge.s("a"), then="paid")
            order.send(shop.charge.s("b"), then=shop.saga.paid.s("Rome"))
            order.send(shop.charge.s("c"))

        shop.place(worker, ask)
        worker.run()

        assert sorted(shop.seen()) == ["paid a", "paid b Rome"]

    def test_step_may_ask_again(self, worker: Worker, shop: Shop) -> None:
        @shop.saga.handles
        def more(order: Any, receipt: str) -> None:
            order.note(f"more {receipt}")
            order.send(shop.charge.s(), then="paid")

        shop.place(worker, lambda order: order.send(shop.charge.s(), then=more))
        worker.run()

        assert shop.seen() == ["more receipt", "paid receipt"]

    def test_links_of_ones_own_stay(self, app: Celery, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s().set(link=shop.ship.s()), then="paid"))
        worker.run()

        assert shop.ran == [[], ["ship", "receipt"]]
        assert shop.seen() == ["paid receipt"]

    def test_signature_that_is_sent_twice(self, worker: Worker, shop: Shop) -> None:
        """What was added to it for one request is not there for the other."""
        sent = shop.charge.s()

        def ask(order: Any) -> None:
            order.send(sent, then="paid")
            order.send(sent, then=shop.saga.paid.s("Rome"))

        shop.place(worker, ask)
        worker.run()

        assert sent.options == {}
        assert sorted(shop.seen()) == ["paid receipt", "paid receipt Rome"]

    @pytest.mark.parametrize("routes", [{}, {"order.paid": {"queue": "answers", "priority": 5}}], ids=["default", "routed"])
    def test_says_where_it_goes(self, new_app: NewApp, routes: Any) -> None:
        """Who gives it may be another service."""
        app = new_app(task_routes=routes)
        shop, worker = define(app), Worker(app)

        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))

        (link,) = only(worker).embed["callbacks"]
        said = {name: value for name, value in link["options"].items() if name not in ("headers", "task_id")}
        assert said == {"queue": app.conf.task_default_queue, "serializer": "json"} | routes.get("order.paid", {})

    def test_step_that_fails_at_first(self, worker: Worker, shop: Shop) -> None:
        """It is a task like others."""

        @shop.saga.handles(bind=True, autoretry_for=(Boom,), default_retry_delay=0)
        def came(self: Any, order: Any, receipt: str) -> None:
            if self.request.retries < 2:
                raise Boom
            order.note(f"at last {receipt}")

        shop.place(worker, lambda order: order.send(shop.charge.s(), then=came))
        worker.run()

        assert shop.seen() == ["at last receipt"]
        assert shop.pending().requests == {}

    def test_aggregator_as_who_is_asked(self, app: Celery, worker: Worker, shop: Shop) -> None:
        @aggregator(size=10, name="readings")
        def readings(batch: Batch[int]) -> None: ...

        shop.place(worker, lambda order: order.send(readings.s(5), then="paid"))
        worker.run()

        assert readings.count() == 1
        assert shop.seen() == ["paid None"]


class TestOpen:
    """``order.saga.requests``: what an instance waits for."""

    def test_until_it_is_answered(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(5), then="paid"))
        charge = only(worker)

        (request,) = shop.order().saga.requests.values()
        assert (request.id, request.task, request.deadline, request.members) == (charge.id, "charge", None, 0)
        worker.run()
        assert shop.order().saga.requests == {}

    def test_deadline(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(5), then="paid", otherwise="unpaid", within=HOUR))

        (request,) = shop.order().saga.requests.values()
        (row,) = shop.rows()
        assert request.deadline == datetime.fromtimestamp(row.due_at / 1000, UTC)
        worker.app.control.purge()
        shop.fire(row)
        worker.run()
        assert shop.seen() == ["unpaid deadline"]
        assert shop.order().saga.requests == {}  # an answer may still come, and nobody waits for it

    def test_step_sees_the_others(self, worker: Worker, shop: Shop) -> None:
        """Not the one that is answered now, nor those that it makes itself."""
        open_tasks: list[list[str]] = []

        @shop.saga.handles
        def came(order: Any, answer: Any) -> None:
            order.send(shop.ship.s())
            open_tasks.append([request.task for request in order.saga.requests.values()])

        def ask(order: Any) -> None:
            order.send(shop.charge.s(), then="came")
            order.send(shop.ship.s(), then="came")
            open_tasks.append(list(order.saga.requests))

        shop.place(worker, ask)
        worker.run()

        assert open_tasks == [[], ["ship"], []]


class TestOnce:
    """One outcome is handled once, whatever is delivered how often."""

    def test_answer_that_is_doubled(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        worker.run()
        worker.deliver_again(worker.done[-1])

        assert shop.seen() == ["paid receipt"]

    def test_participant_that_is_delivered_again(self, worker: Worker, shop: Shop) -> None:
        """Also if it answers otherwise now: its answers have one id."""
        shop.work = lambda task: f"receipt {len(shop.ran)}"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        charged = worker.one()
        worker.run()
        worker.deliver_again(charged)
        worker.run()

        assert len(shop.ran) == 2
        assert worker.done[-1].id == worker.done[-3].id == derived_id(charged.id, "answer")
        assert shop.seen() == ["paid receipt 1"]

    def test_participant_that_died_before_it_could_answer(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        charged = only(worker)
        worker.app.control.purge()
        worker.deliver_again(charged)
        worker.run()

        assert shop.seen() == ["paid receipt"]

    def test_another_answer_to_what_is_answered(self, worker: Worker, shop: Shop) -> None:
        """As an operator gives it, under an id of its own."""
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        worker.run()
        version = shop.order().saga.version
        answer = worker.done[-1]
        worker.app.send_task("order.paid", ("again",), headers={ADDRESS: answer.headers[ADDRESS]})

        assert worker.one().fate == "acked"
        assert (shop.seen(), shop.order().saga.version) == (["paid receipt"], version)

    @pytest.mark.parametrize("step", ["order.told", "order.unpaid", "order.(answered)"])
    def test_answer_to_another_step_than_was_named(self, worker: Worker, shop: Shop, step: str) -> None:
        """Anybody may send anything."""
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        charge = only(worker)
        worker.app.control.purge()
        address = {"instance": shop.record().id, "request": charge.id, "came": "answer"}
        worker.app.send_task(step, (), headers={ADDRESS: address})
        worker.run()

        assert shop.seen() == []
        assert list(shop.pending().requests) == [charge.id]

    def test_answer_for_an_instance_of_another_saga(self, worker: Worker, shop: Shop) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str
            answers: list[str] = []

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> None: ...

        @Parcel.handles
        def packed(parcel: Parcel, answer: str) -> None:
            parcel.answers.append(answer)

        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        charge = only(worker)
        worker.app.control.purge()
        address = {"instance": shop.record().id, "request": charge.id, "came": "answer"}
        worker.app.send_task("parcel.packed", ("x",), headers={ADDRESS: address})

        assert worker.one().fate == "acked"
        assert (Parcel.find("42"), shop.seen(), list(shop.pending().requests)) == (None, [], [charge.id])

    def test_instance_that_has_completed(self, worker: Worker, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid", within=HOUR))
        shop.saga.end("42")
        assert shop.rows() == []
        worker.run()
        assert {delivered.fate for delivered in worker.done} == {"acked"}
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.name == "celery_sagas"]

    def test_later_instance_of_the_same_key(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        charge = only(worker)
        worker.app.control.purge()
        shop.saga.end("42")
        shop.place(worker, lambda order: None)
        worker.deliver_again(charge)
        worker.run()

        assert shop.seen() == []

    def test_step_that_fails_asks_nothing(self, worker: Worker, shop: Shop) -> None:
        def ask(order: Any) -> None:
            order.send(shop.charge.s(), then="paid", otherwise="unpaid", within=HOUR)
            raise Boom

        shop.place(worker, ask)

        assert (worker.waiting(), shop.rows(), shop.saga.find("42")) == ([], [], None)

    def test_retry_of_a_participant_keeps_the_request(self, worker: Worker, shop: Shop) -> None:
        def work(task: Any) -> str:
            if task.request.retries < 2:
                raise task.retry(countdown=0)
            return "at last"

        shop.work = work
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid"))
        worker.run()

        assert (len(shop.ran), shop.seen()) == (3, ["paid at last"])

    @pytest.mark.parametrize("how", ["task", "chain"])
    def test_replacement_of_a_participant_answers(self, worker: Worker, shop: Shop, how: str) -> None:
        sent = shop.ship.si("x") if how == "task" else chain(shop.ship.si("y"), shop.ship.si("x"))
        shop.work = lambda task: task.replace(sent)
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid"))
        worker.run()

        assert shop.seen() == ["paid shipped x"]


def deploy(shop: Shop, kind: type) -> Any:
    """Define a step that gets an answer of a type, in the place of its earlier self."""

    @shop.saga.handles
    def came(order: Any, answer: kind) -> None:  # type: ignore[valid-type]
        order.note(f"came {answer}")

    return came


class TestUnhandledAnswer:
    """An answer with which its step fails is a dead letter; the saga is told so, and the answer may be handled later."""

    @pytest.fixture
    def dead_letter(self, worker: Worker, shop: Shop) -> Any:
        shop.work = lambda task: "many"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=deploy(shop, int), otherwise="unpaid", within=HOUR))
        worker.run()
        (dead_letter,) = backend_of(worker.app).dead.list(10)
        return dead_letter

    def test_is_kept(self, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        assert (dead_letter.task, dead_letter.error, dead_letter.key) == ("order.came", "InvalidMessage", "42")

    def test_is_told_of_at_once(self, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        assert shop.seen() == ["unpaid unhandled"]
        failure = shop.failure()
        assert (failure.task, failure.error, failure.dead_letter) == ("order.came", "InvalidMessage", dead_letter.id)
        assert "valid integer" in failure.text
        (request,) = shop.pending().requests.values()
        assert (request.has_timed_out, shop.rows()) == (True, [])

    def test_is_handled_once_the_step_can(self, app: Celery, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        deploy(shop, str)
        assert retry_dead_letter(runtime_of(app), dead_letter) == Retried(new_id_of(dead_letter))
        worker.run()

        assert shop.seen() == ["unpaid unhandled", "came many late"]
        assert (shop.pending().requests, shop.rows()) == ({}, [])

    def test_that_fails_again_is_told_of_once(self, app: Celery, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()

        assert [each.task for each in backend_of(app).dead.list(10)] == ["order.came"]
        assert shop.seen() == ["unpaid unhandled"]

    def test_that_is_delivered_again(self, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        (answer,) = (delivered for delivered in worker.done if delivered.task == "order.came")
        worker.deliver_again(answer)
        worker.run()

        assert shop.seen() == ["unpaid unhandled"]

    def test_whose_worker_died_before_it_told(self, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """The message is delivered again, and its worker tells then."""
        shop.work = lambda task: "many"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=deploy(shop, int), otherwise="unpaid"))
        with monkeypatch.context() as patch:
            patch.setattr(dead_letters, "notify_requester", lambda *_, **__: False)
            worker.run()
        worker.deliver_again(worker.done[-1])
        worker.run()

        (dead_letter,) = backend_of(worker.app).dead.list(10)
        assert shop.seen() == ["unpaid unhandled"]
        assert shop.failure().dead_letter == dead_letter.id

    def test_of_a_step(self, worker: Worker, shop: Shop) -> None:
        """Its answer is committed with it."""

        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> None:
            parcel.reply("heavy")

        shop.place(worker, lambda order: order.send(pack.s("p"), then=deploy(shop, int), otherwise="unpaid"))
        worker.run()

        assert shop.seen() == ["unpaid unhandled"]

    def test_without_otherwise_the_request_stays_open(self, worker: Worker, shop: Shop) -> None:
        shop.work = lambda task: "many"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=deploy(shop, int)))
        worker.run()

        (request,) = shop.pending().requests.values()
        assert (request.has_timed_out, shop.seen()) == (False, [])

    def test_that_expired(self, app: Celery, worker: Worker, shop: Shop) -> None:
        """There is no dead letter."""
        app.conf.task_annotations = {"order.paid": {"expires": -1}}
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid"))
        worker.run()

        assert shop.seen() == ["unpaid unhandled"]
        assert (shop.failure().error, shop.failure().dead_letter) == ("", "")

    def test_that_nobody_waits_for_is_dropped(self, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        headers = {ADDRESS: {"instance": shop.record().id, "request": "another", "came": "answer"}}
        worker.app.send_task("order.came", ("many",), headers=headers)

        assert (worker.one().error, len(backend_of(worker.app).dead.list(10))) == (None, 1)

    def test_retrying_it_changes_nothing_once_the_instance_has_ended(
        self, app: Celery, worker: Worker, shop: Shop, dead_letter: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop.saga.end("42")

        assert "does not wait for it any more" in retry_dead_letter(runtime_of(app), dead_letter).reason
        assert (backend_of(app).dead.list(10), worker.waiting()) == ([], [])
        assert f"the dead letter {dead_letter.id} is not sent again: order.came changes nothing" in caplog.text

    def test_retry_that_comes_too_late(
        self, app: Celery, worker: Worker, shop: Shop, dead_letter: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The instance ends while it is on its way: its worker says so."""
        retry_dead_letter(runtime_of(app), dead_letter)
        shop.saga.end("42")
        worker.run()

        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert (
            f"order.came[{new_id_of(dead_letter)}] is the retry of the dead letter {dead_letter.id}, and changes nothing"
            in "".join(warned)
        )

    def test_discarding_it_ends_the_request(self, app: Celery, worker: Worker, shop: Shop, dead_letter: Any) -> None:
        assert discard_dead_letter(runtime_of(app), dead_letter)
        assert (shop.pending().requests, shop.rows(), shop.seen()) == ({}, [], ["unpaid unhandled"])

    def test_after_the_deadline(self, app: Celery, worker: Worker, shop: Shop) -> None:
        """The saga was told already; and the answer may be handled all the same, late."""
        shop.work = lambda task: "many"
        shop.place(worker, lambda order: order.send(shop.charge.s(), then=deploy(shop, int), otherwise="unpaid", within=HOUR))
        charge = only(worker)
        app.control.purge()
        shop.fire(*shop.rows())
        worker.run()
        worker.deliver_again(charge)
        worker.run()
        (dead_letter,) = backend_of(app).dead.list(10)
        assert shop.seen() == ["unpaid deadline"]

        deploy(shop, str)
        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()
        assert shop.seen() == ["unpaid deadline", "came many late"]


class TestChain:
    """It is answered by its last task."""

    def test_answer(self, worker: Worker, shop: Shop) -> None:
        ids: list[str] = []
        shop.place(worker, lambda order: ids.append(order.send(chain(shop.charge.s(5), shop.ship.s()), then="paid")))
        worker.run()

        assert shop.ran == [[5], ["ship", "receipt"]]
        assert shop.seen() == ["paid shipped receipt"]
        assert ids == [worker.done[2].id]
        assert shop.entries()[-1].message_id == derived_id(ids[0], "answer")

    def test_step_of_another_saga_within_it_answers_nothing(self, app: Celery, worker: Worker, shop: Shop) -> None:
        """Nor is the instance that it creates asked."""

        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str
            requester: str | None = None

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> str:
            parcel.requester = parcel.saga.requester
            return f"packed {parcel_id}"

        shop.place(worker, lambda order: order.send(chain(pack.s("1"), shop.ship.s()), then="paid", otherwise="unpaid"))
        worker.run()

        assert shop.seen() == ["paid shipped packed 1"]
        parcel = Parcel.find("1")
        assert parcel is not None
        assert parcel.requester is None

    def test_of_one_task(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(chain(shop.charge.s()), then="paid"))
        worker.run()

        assert shop.seen() == ["paid receipt"]

    def test_all_of_it_expires(self, worker: Worker, shop: Shop) -> None:
        sent = chain(shop.charge.s(), shop.ship.s(), shop.ship.s())
        shop.place(worker, lambda order: order.send(sent, then="paid", otherwise="unpaid", within=HOUR))
        worker.run()

        (request,) = [entry["until"] for entry in json.loads(shop.entries()[0].detail)["asked"]]
        expiries = {delivered.headers["expires"] for delivered in worker.done if delivered.task in ("charge", "ship")}
        assert len(worker.done) == 5
        assert len(expiries) == 1
        assert request / 1000 == pytest.approx(datetime.fromisoformat(expiries.pop()).timestamp(), abs=0.001)


class TestJournal:
    """What is asked, and what came, can be looked up."""

    def test_request_and_answer(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid", within=HOUR))
        (request,) = shop.pending().requests.values()
        worker.run()

        asked, answered = (json.loads(entry.detail) for entry in shop.entries())
        told = {"request": request.id, "task": "charge", "then": "order.paid", "otherwise": "order.unpaid", "until": request.at}
        assert asked["asked"] == [told]
        assert asked["sent"] == [{"task": "charge", "id": request.id}]
        assert asked["deadline"] == [{"task": "order.unpaid", "id": derived_id(request.id, "deadline")}]
        assert answered == {"request": request.id, "came": "answer"}


class TestCausation:
    """What a ``then`` step causes is caused by its saga."""

    def test_of_the_answer(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid"))
        charge = worker.one()

        paid = only(worker)
        assert paid.headers[CAUSE] == charge.id
        assert paid.headers[CAUSATION] == {"order": shop.record().id}

    def test_of_the_failure(self, worker: Worker, shop: Shop) -> None:
        shop.work = lambda task: 1 / 0
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid"))
        charge = worker.one()

        unpaid = only(worker)
        assert unpaid.headers[CAUSE] == charge.id
        assert unpaid.headers[CAUSATION] == {"order": shop.record().id}

    def test_of_the_deadline(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(shop.charge.s(), otherwise="unpaid", within=HOUR))
        worker.app.control.purge()
        shop.fire(*shop.rows())

        assert only(worker).headers[CAUSATION] == {"order": shop.record().id}

    def test_leads_on_without_a_key(self, worker: Worker, shop: Shop) -> None:
        """Also if the answer has come from a worker without this library, which hands nothing on."""

        @shop.saga.handles
        def came(order: Any, answer: Any) -> None:
            order.send(shop.saga.paid.s("by causation"))

        shop.place(worker, lambda order: order.send(shop.charge.s(), then=came))
        charge = only(worker)
        worker.app.control.purge()
        (link,) = charge.embed["callbacks"]
        options = {name: link["options"][name] for name in ("task_id", "headers")}
        worker.app.send_task(link["task"], ("answer", *link["args"]), **options)
        worker.run()

        assert shop.seen() == ["paid by causation"]


@as_tasks
class TestRefused:
    """What could never be answered is refused at the call."""

    def refuse(self, worker: Worker, shop: Shop, ask: Any) -> Any:
        errors: list[BaseException] = []

        def asking(order: Any) -> None:
            try:
                ask(order)
            except Exception as exc:
                errors.append(exc)
                raise

        shop.place(worker, asking)
        assert (worker.waiting(), shop.rows(), shop.saga.find("42")) == ([], [], None)
        (error,) = errors
        return error

    @pytest.mark.parametrize("option", ["then", "otherwise"])
    @pytest.mark.parametrize(
        "target",
        [
            "told",
            "order.told",
            lambda saga: saga.told,
            lambda saga: saga.paid.s(1, 2),
            lambda saga: saga.counted.s(count=1),
            lambda saga: saga.named,
        ],
        ids=["name", "full name", "step", "signature", "named argument", "keyword-only"],
    )
    def test_no_room(self, worker: Worker, shop: Shop, option: str, target: Any) -> None:
        @shop.saga.handles
        def named(order: Any, *, receipt: str) -> None: ...

        shop.saga.named = named
        given = {option: target if isinstance(target, str) else target(shop.saga)}
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), **given))

        assert isinstance(error, InvalidMessage)
        assert f"it is given {_GIVEN[option]} before its arguments, and has no room for it: write def" in str(error)

    def test_no_room_is_told_with_what_to_write(self, worker: Worker, shop: Shop) -> None:
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=shop.saga.told))

        assert str(error) == (
            "The message does not fit order.told: it is given the answer before its arguments, and has no room for it: "
            "write def told(order, answer, …), or name the step as told.si(…), which is not given it. Nothing was stored or sent."
        )

    @pytest.mark.parametrize("target", ["counted", lambda saga: saga.counted, lambda saga: saga.counted.s()])
    def test_otherwise_that_takes_no_failure(self, worker: Worker, shop: Shop, target: Any) -> None:
        given = target if isinstance(target, str) else target(shop.saga)
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), otherwise=given))

        assert isinstance(error, InvalidMessage)
        assert "order.counted: it is given the failure, and 'count' is annotated as something else: " in str(error)
        assert "write def counted(order, failure: Failure, …), or name the step as counted.si(…)" in str(error)

    def test_bound_step_is_shown_with_its_state(self, worker: Worker, shop: Shop) -> None:
        @shop.saga.handles(bind=True)
        def bound(self: Any, state: Any) -> None: ...

        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=bound))
        assert "write def bound(self, state, answer, …)" in str(error)

    def test_argument_that_is_missing(self, worker: Worker, shop: Shop) -> None:
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=shop.saga.counted.si()))
        assert isinstance(error, InvalidMessage)
        assert "count: it is missing" in str(error)

    def test_argument_that_is_unknown(self, worker: Worker, shop: Shop) -> None:
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=shop.saga.counted.s(colour="red")))
        assert isinstance(error, InvalidMessage)
        assert "colour: it is unknown" in str(error)

    def test_argument_that_is_too_large_for_a_header(self, worker: Worker, shop: Shop) -> None:
        """A broker takes them in one frame."""
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=shop.saga.paid.s("x" * 40_000)))
        assert isinstance(error, InvalidMessage)
        assert "32,768 are allowed: keep them in the state" in str(error)

    def test_arguments_count_as_the_message_does(self, app: Celery, worker: Worker, shop: Shop) -> None:
        app.conf.saga_max_state_bytes = 3_000
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=shop.saga.paid.s("x" * 2_000)))
        assert isinstance(error, InvalidMessage)
        assert "saga_max_state_bytes allows 3000" in str(error)

    @pytest.mark.parametrize("option", ["then", "otherwise"])
    @pytest.mark.parametrize("target", ["nothing", "parcel.packed", "order.(answered)", "(answered)", "charge"])
    def test_no_step_of_this_saga(self, worker: Worker, shop: Shop, option: str, target: str) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.handles
        def packed(parcel: Parcel, answer: Any) -> None: ...

        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), **{option: target}))
        assert isinstance(error, MisuseError)
        assert "Known: order.place, order.paid" in str(error)
        assert "answered" not in str(error).partition("Known")[2]

    def test_step_of_another_saga(self, worker: Worker, shop: Shop) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str

        @Parcel.handles
        def packed(parcel: Parcel, answer: Any) -> None: ...

        for target in (packed, packed.s()):
            error = self.refuse(worker, shop, lambda order, target=target: order.send(shop.charge.s(), then=target))
            assert isinstance(error, MisuseError)

    def test_task_that_is_no_step(self, worker: Worker, shop: Shop) -> None:
        error = self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=shop.ship))
        assert isinstance(error, MisuseError)

    @pytest.mark.parametrize("target", [5, ["paid"], b"paid"], ids=repr)
    def test_nothing_that_could_be_a_step(self, worker: Worker, shop: Shop, target: Any) -> None:
        assert isinstance(self.refuse(worker, shop, lambda order: order.send(shop.charge.s(), then=target)), TypeError)

    def test_group(self, worker: Worker, shop: Shop) -> None:
        error = self.refuse(worker, shop, lambda order: order.send(group(shop.charge.s(), shop.ship.s()), then="paid"))
        assert isinstance(error, TypeError)
        assert "gather" in str(error)

    def test_more_than_an_instance_may_wait_for(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: None)

        @shop.saga.handles
        def ask(order: Any, order_id: str, count: int) -> None:
            for _ in range(count):
                order.send(shop.charge.s(), then="paid")

        ask.delay("42", 600)
        worker.one()
        worker.app.control.purge()
        ask.delay("42", 401)
        worker.one()

        assert isinstance(worker.done[-1].error, InvalidState)
        assert "it waits for 1001 answers, and 1,000 are allowed: use gather()" in str(worker.done[-1].error)
        assert len(shop.pending().requests) == 600

    def test_outside_of_a_step(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: None)

        with pytest.raises(MisuseError):
            shop.order().send(shop.charge.s(), then="paid")


class TestWarning:
    """A task that is acknowledged early is lost with its worker, and nothing comes of the request."""

    @pytest.fixture(autouse=True)
    def untold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sending, "_told", set())

    def test_once_for_each_task(self, app: Celery, worker: Worker, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        @app.task(name="careless")
        def careless() -> None: ...

        for key in ("41", "42"):
            shop.place(worker, lambda order: order.send(chain(careless.si(), shop.charge.si()), then="paid"), key)

        (warning,) = [record.message for record in caplog.records if "acks_late" in record.message]
        assert warning.startswith("careless is asked without within=")

    @pytest.mark.parametrize("within", [None, HOUR])
    def test_not_if_it_is_late_or_has_a_deadline(
        self, app: Celery, worker: Worker, shop: Shop, caplog: pytest.LogCaptureFixture, within: timedelta | None
    ) -> None:
        @app.task(name="careless")
        def careless() -> None: ...

        asked = careless if within else shop.charge
        shop.place(worker, lambda order: order.send(asked.si(), then="paid", otherwise="unpaid", within=within))

        assert "acks_late" not in caplog.text
