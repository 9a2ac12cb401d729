"""Gathers: many messages are sent, and one step gets what came of all of them, once."""

import json
import logging
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_sagas import Failure, Gathered, Saga
from celery_sagas.core.ids import derived_id
from celery_sagas.core.pending import read_pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker import timeouts
from celery_sagas.worker.operators import retry_dead_letter
from celery_sagas.worker.requests.gather_task import GATHER
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.worker.requests.quotes import (
    Failing,
    Quote,
    address,
    answer,
    begin,
    by_message,
    clock,
    collected,
    define,
    failing,
    fire,
    found,
    record_of,
    request_of,
    rows,
    shop,
    start,
    tasks_of,
    way,
)

__all__ = ["clock", "failing", "shop", "way"]


@pytest.mark.usefixtures("way")
class TestEnd:
    """A gather is over when each member has answered or failed; then one step gets everything."""

    def test_all_answer(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1, 2])
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, order.failed, order.silent) == (["quoted"], [3, 1, 2], {}, [])
        assert order.saga.version == 2

    def test_it_is_kept_nowhere_afterwards(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1, 2], otherwise="too_few", within=3600)
        assert len(rows(app)) == 1
        (request,) = found(shop).saga.requests.values()
        assert (request.id, request.task, request.members) == (request_of(app), "", 3)
        worker.run()

        assert read_pending(record_of(app).pending).requests == {}
        assert collected(app) == 0
        assert rows(app) == []

    def test_order_of_answers_does_not_matter(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1, 2])
        first = worker.waiting()[0]
        worker.run()
        assert found(shop).values == [3, 1, 2]
        assert first.args == [3]

    def test_one_member(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3])
        worker.run()

        assert found(shop).values == [3]

    def test_what_fails_is_told_beside_the_answers(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, -1, 2])
        worker.run()

        order = found(shop)
        assert (order.seen, order.values) == (["quoted"], [3, 2])
        assert order.failed == {1: "ValueError no price is -1"}

    @pytest.mark.parametrize(("at_least", "step"), [(None, "too few"), (3, "too few"), (2, "quoted"), (1, "quoted")])
    def test_at_least(self, shop: Any, worker: Worker, at_least: int | None, step: str) -> None:
        begin(shop, worker, [3, -1, 2], otherwise="too_few", at_least=at_least)
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, list(order.failed)) == ([step], [3, 2], [1])

    def test_it_waits_for_all_though_enough_have_answered(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1, 2], otherwise="too_few", at_least=1)
        while worker.waiting()[0].args != [2]:
            worker.one()

        assert found(shop).seen == []

    def test_all_fail(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [-1, -2], otherwise="too_few", at_least=1)
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, list(order.failed)) == (["too few"], [], [0, 1])

    def test_arguments_of_the_step(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3], extra="for Mr Smith")
        worker.run()

        assert found(shop).seen == ["quoted for Mr Smith"]

    def test_arguments_of_the_step_are_those_at_the_call(self, shop: Any, worker: Worker) -> None:
        extra = ["a"]

        @shop.saga.handles
        def told(order: Any, came: Gathered[int], extra: list[str]) -> None:
            order.seen.append(",".join(extra))

        def gather(order: Any) -> None:
            order.gather([shop.quote.s(3)], then=told.s(extra=extra))
            extra.append("late")

        start(shop, worker, gather)
        worker.run()

        assert found(shop).seen == ["a"]

    def test_arguments_of_the_step_are_bounded(self, shop: Any, worker: Worker) -> None:
        """They are kept beside the state until the gather ends."""
        start(shop, worker, lambda order: order.gather([shop.quote.s(3)], then=shop.quoted.s(extra="x" * 40_000)))

        assert isinstance(worker.done[-1].error, InvalidMessage)

    def test_step_that_takes_nothing(self, shop: Any, worker: Worker) -> None:
        @shop.saga.handles
        def told(order: Any, text: str) -> None:
            order.seen.append(text)

        def gather(order: Any) -> None:
            order.gather([shop.quote.s(3)], then=told.si("it is over"))

        start(shop, worker, gather)
        worker.run()

        assert found(shop).seen == ["it is over"]

    def test_chains(self, shop: Any, worker: Worker) -> None:
        """Their last task answers, or the first that fails does not."""

        def gather(order: Any) -> None:
            members = [chain(shop.quote.s(price), shop.double.s()) for price in (3, -1)]
            order.gather([*members, shop.quote.s(5)], then=shop.quoted)

        start(shop, worker, gather)
        worker.run()

        order = found(shop)
        assert (order.values, order.failed) == ([6, 5], {1: "ValueError no price is -1"})

    def test_saga_that_answers_later(self, shop: Any, worker: Worker) -> None:
        """And one that cannot begin, which counts as a failure."""

        class Carrier(Saga, correlate_by="name"):
            name: str

        @Carrier.starts
        def ask(carrier: Carrier, name: str) -> None:
            if name == "broken":
                raise ValueError("it is broken")

        @Carrier.handles
        def decide(carrier: Carrier, name: str, price: int) -> None:
            carrier.reply(price)

        start(shop, worker, lambda order: order.gather([ask.s("slow"), shop.quote.s(3), ask.s("broken")], then=shop.quoted))
        worker.run()
        assert found(shop).seen == []
        decide.delay("slow", 5)
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, order.failed) == (["quoted"], [5, 3], {2: "ValueError it is broken"})

    def test_answers_that_are_models(self, app: Celery, shop: Any, worker: Worker) -> None:
        @app.task(name="ask")
        def ask(carrier: str) -> Quote:
            return Quote(carrier=carrier, price=3)

        @shop.saga.handles
        def asked(order: Any, came: Gathered[Quote]) -> None:
            order.seen = [type(answer).__name__ + answer.carrier for answer in came.values]

        def gather(order: Any) -> None:
            order.gather([ask.s("ups"), ask.s("dhl")], then=asked)

        start(shop, worker, gather)
        worker.run()

        assert found(shop).seen == ["Quoteups", "Quotedhl"]

    def test_answer_of_nothing(self, app: Celery, shop: Any, worker: Worker) -> None:
        @app.task(name="silent")
        def silent() -> None: ...

        @shop.saga.handles
        def done(order: Any, came: Gathered[None]) -> None:
            order.values = came.values

        def gather(order: Any) -> None:
            order.gather([silent.s(), silent.s()], then=done)

        start(shop, worker, gather)
        worker.run()

        assert found(shop).values == [None, None]

    def test_answer_that_is_too_large_is_a_failure(self, new_app: NewApp) -> None:
        """It could not be kept; the gather ends all the same."""
        app = new_app(saga_max_state_bytes=20_000)
        shop, worker = define(app), Worker(app)

        @app.task(name="long")
        def long(size: int) -> str:
            return "x" * size

        @shop.saga.handles
        def done(order: Any, came: Gathered[str]) -> None:
            order.note("done", came)

        def gather(order: Any) -> None:
            order.gather([long.s(3), long.s(20_000)], then=done)

        start(shop, worker, gather)
        worker.run()

        order = found(shop)
        assert order.values == ["xxx"]
        assert "saga_max_state_bytes allows 20000" in order.failed[1]

    def test_two_gathers_of_one_instance(self, shop: Any, worker: Worker) -> None:
        @shop.saga.starts
        def start(order: Any, order_id: str) -> None:
            for prices in ([3, 1], [2, 4]):
                order.gather([shop.quote.s(price) for price in prices], then=more)

        @shop.saga.handles
        def more(order: Any, came: Gathered[int]) -> None:
            order.values.append(came.values)

        start.delay("42")
        worker.run()

        assert sorted(found(shop).values) == [[2, 4], [3, 1]]

    def test_a_thousand_members(self, app: Celery, shop: Any, worker: Worker) -> None:
        """One commit sends to them, and one handles what came of them; no step fails."""
        app.conf.saga_dispatch_grace = 600  # nothing is left for a relay, however slow the machine is
        begin(shop, worker, list(range(1_000)), otherwise="too_few")
        worker.run(limit=2_100)

        order = found(shop)
        assert order.values == list(range(1_000))
        assert order.saga.version == 2
        assert {delivered.fate for delivered in worker.done} == {"acked"}
        assert tasks_of(worker.done).count("order.quoted") == 1


class TestWays:
    """How an answer comes to where it is collected."""

    def test_at_once_there_is_no_message(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])

        assert sorted(tasks_of(worker.run())) == ["order.quoted", "quote", "quote"]

    def test_by_message(self, shop: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        by_message(monkeypatch)
        begin(shop, worker, [3, 1])
        done = worker.run()

        assert sorted(tasks_of(done)) == [GATHER, GATHER, "order.quoted", "quote", "quote"]
        assert len({delivered.id for delivered in done}) == 5

    def test_ids_are_the_same_each_time(self, app: Celery, shop: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        by_message(monkeypatch)
        begin(shop, worker, [3, 1])
        request = request_of(app)

        ids = {delivered.id for delivered in worker.run() if delivered.task in (GATHER, "order.quoted")}

        assert ids == {derived_id(request, name) for name in ("answer 0", "answer 1", ReplyKind.GATHERED)}

    def test_saga_of_another_service(self, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever has no such instance publishes the answer, as a worker without this library does."""
        app = new_app()
        shop, worker = define(app), Worker(app)
        begin(shop, worker, [3, 1])
        there = new_app()
        there.conf.task_default_queue = app.conf.task_default_queue
        elsewhere = Worker(there)

        elsewhere.one(), elsewhere.one()

        assert tasks_of(worker.waiting()) == [GATHER, GATHER]
        app.set_current()
        worker.run()
        assert found(shop).values == [3, 1]

    def test_store_that_is_away_where_the_member_ran(self, app: Celery, shop: Any, worker: Worker, failing: Failing) -> None:
        begin(shop, worker, [3])
        failing.insertions = 1

        assert tasks_of(worker.run()) == ["quote", GATHER, "order.quoted"]

    def test_store_that_is_away(self, app: Celery, shop: Any, worker: Worker, failing: Failing) -> None:
        """The answer is redelivered later."""
        begin(shop, worker, [3])
        failing.insertions = 3

        assert tasks_of(worker.run()) == ["quote", GATHER, GATHER, GATHER, "order.quoted"]
        assert found(shop).values == [3]

    def test_answers_go_to_the_queue_of_the_step(self, app: Celery, shop: Any, worker: Worker) -> None:
        """So that a worker which knows it takes them."""

        app.conf.task_routes = {"order.done": {"queue": "quotes", "priority": 3}}

        @shop.saga.handles
        def done(order: Any, came: Gathered[int]) -> None: ...

        def gather(order: Any) -> None:
            order.gather([shop.quote.s(3)], then=done, otherwise=shop.too_few, within=3600)

        start(shop, worker, gather)

        (member,), (deadline,) = worker.waiting(), rows(app)
        (link,) = member.embed["callbacks"]
        for sent in (link, json.loads(deadline.payload)):
            assert sent["task"] == GATHER
            assert (sent["options"]["queue"], sent["options"]["priority"]) == ("quotes", 3)

    @pytest.fixture
    def dead_letters(self, app: Celery, shop: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[DeadLetter]:
        """Two answers that a worker without the saga has got."""
        by_message(monkeypatch)
        begin(shop, worker, [3, 1])
        with monkeypatch.context() as without:
            without.setattr(registry, "sagas", {})
            worker.run()
        return backend_of(app).dead.list(10)

    def test_answers_that_could_not_be_collected_are_when_they_are_retried(
        self, app: Celery, shop: Any, worker: Worker, dead_letters: list[DeadLetter]
    ) -> None:
        """In any order: nobody has told that they failed, which would count."""
        assert [dead_letter.task for dead_letter in dead_letters] == [GATHER, GATHER]
        for dead_letter in dead_letters:
            assert retry_dead_letter(runtime_of(app), dead_letter).id
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, order.failed) == (["quoted"], [3, 1], {})

    def test_retrying_an_answer_for_which_nobody_waits_says_so(
        self, app: Celery, shop: Any, worker: Worker, dead_letters: list[DeadLetter], caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is not sent; or the worker that gets it too late says so."""
        retry_dead_letter(runtime_of(app), dead_letters[0])
        shop.end("42")
        worker.run()
        assert [record.levelname for record in caplog.records if "comes too late for the gather" in record.message] == ["WARNING"]

        assert "does not wait for it any more" in retry_dead_letter(runtime_of(app), dead_letters[1]).reason
        assert f"the dead letter {dead_letters[1].id} is not sent again" in caplog.text
        assert (backend_of(app).dead.list(10), worker.waiting()) == ([], [])

    def test_unknown_saga_is_a_dead_letter(self, app: Celery, shop: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        by_message(monkeypatch)
        begin(shop, worker, [3])
        app.send_task(GATHER, (3, "unheard", "request", 0, "quote"), headers=address(shop))
        worker.run()

        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.error) == (GATHER, "InvalidMessage")
        assert "knows no saga 'unheard'" in dead_letter.text

    def test_message_without_address_is_a_dead_letter(self, app: Celery, shop: Any, worker: Worker) -> None:
        app.send_task(GATHER, (3, "order", "request", 0, "quote"))
        worker.run()

        assert [dead_letter.error for dead_letter in backend_of(app).dead.list(10)] == ["InvalidMessage"]

    @pytest.mark.parametrize("came", [ReplyKind.PROGRESS, ReplyKind.GATHERED])
    def test_that_is_no_outcome_of_a_member(self, app: Celery, shop: Any, worker: Worker, came: ReplyKind) -> None:
        begin(shop, worker, [3])
        app.control.purge()
        answer(app, address(shop, came), request_of(app), 0, 5)
        worker.run()

        assert [dead_letter.error for dead_letter in backend_of(app).dead.list(10)] == ["InvalidMessage"]
        assert (collected(app), found(shop).seen) == (0, [])

    @pytest.mark.parametrize("position", [-1, 1, 7])
    def test_position_of_no_member_is_dropped(self, app: Celery, shop: Any, worker: Worker, position: int) -> None:
        begin(shop, worker, [3])
        answer(app, address(shop), request_of(app), position, 4)
        worker.run()

        assert found(shop).values == [3]
        assert collected(app) == 0


class TestBadInput:
    """What cannot be gathered is refused when it is asked for, and nothing is sent."""

    def refused(self, shop: Any, worker: Worker, error: type[Exception], text: str, *args: Any, **options: Any) -> None:
        """Have the order 42 gather, and see that it cannot."""
        options.setdefault("then", shop.quoted)

        def gather(order: Any) -> None:
            with pytest.raises(error, match=text):
                order.gather(*args, **options)

        start(shop, worker, gather)
        assert worker.waiting() == []
        assert worker.done[0].error is None
        assert read_pending(record_of(worker.app).pending).requests == {}

    def test_no_members(self, shop: Any, worker: Worker) -> None:
        self.refused(shop, worker, ValueError, "no members", [])

    def test_too_many_members(self, shop: Any, worker: Worker) -> None:
        self.refused(shop, worker, ValueError, "at most 1,000 members", [shop.quote.s(1)] * 1_001)

    @pytest.mark.parametrize("at_least", [0, 3, -1, True, 1.5, "1"])
    def test_at_least(self, shop: Any, worker: Worker, at_least: Any) -> None:
        members = [shop.quote.s(1)] * 2
        self.refused(shop, worker, ValueError, "is no number from 1 to 2", members, at_least=at_least, otherwise=shop.too_few)

    def test_at_least_without_otherwise(self, shop: Any, worker: Worker) -> None:
        self.refused(shop, worker, TypeError, "at_least= needs otherwise=", [shop.quote.s(1)], at_least=1)

    @pytest.mark.parametrize("kind", [group, chord])
    def test_canvas(self, shop: Any, worker: Worker, kind: Any) -> None:
        members = [shop.quote.s(1)]
        canvas = group(members) if kind is group else chord(members, shop.double.s())
        self.refused(shop, worker, TypeError, "takes a list of signatures", canvas)

    def test_canvas_as_a_member(self, shop: Any, worker: Worker) -> None:
        members = [shop.quote.s(1), group([shop.quote.s(1), shop.quote.s(2)])]
        self.refused(shop, worker, TypeError, "the member 1 of gather.*gather", members)

    def test_canvas_in_send_names_gather(self, shop: Any, worker: Worker) -> None:
        def send(order: Any) -> None:
            with pytest.raises(TypeError, match="gather"):
                order.send(group([shop.quote.s(1)]))

        start(shop, worker, send)
        assert worker.done[0].error is None

    @pytest.mark.parametrize("members", ["quote", [3], [None], [["quote"]]])
    def test_no_signatures(self, shop: Any, worker: Worker, members: Any) -> None:
        self.refused(shop, worker, TypeError, "signature", members)

    def test_one_signature(self, shop: Any, worker: Worker) -> None:
        self.refused(shop, worker, TypeError, "takes a list of signatures", shop.quote.s(1))

    def test_within_without_otherwise(self, shop: Any, worker: Worker) -> None:
        self.refused(shop, worker, TypeError, "within= needs otherwise=", [shop.quote.s(1)], within=3)

    @pytest.mark.parametrize("option", ["countdown", "eta"])
    def test_member_that_waits_and_a_deadline(self, shop: Any, worker: Worker, option: str) -> None:
        members = [shop.quote.s(1), shop.quote.s(2).set(**{option: 3})]
        text = "the member 1 of gather.. has a countdown or eta"
        self.refused(shop, worker, TypeError, text, members, otherwise="too_few", within=3)

    def test_step_of_another_saga(self, app: Celery, shop: Any, worker: Worker) -> None:
        class Other(Saga, correlate_by="other_id"):
            other_id: str

        @Other.handles
        def elsewhere(other: Other, came: Gathered[int]) -> None: ...

        self.refused(shop, worker, MisuseError, "no step of the saga order", [shop.quote.s(1)], then=elsewhere)

    @pytest.mark.parametrize("option", ["then", "otherwise"])
    def test_step_without_room(self, shop: Any, worker: Worker, option: str) -> None:
        @shop.saga.handles
        def full(order: Any) -> None: ...

        text = r"full: it is given what was gathered before .* no room .* def full\(order, gathered: Gathered\[Any\], …\)"
        self.refused(shop, worker, InvalidMessage, text, [shop.quote.s(1)], **{option: full})

    @pytest.mark.parametrize("option", ["then", "otherwise"])
    @pytest.mark.parametrize("annotation", [int, list[int], Failure])
    def test_step_that_takes_none(self, shop: Any, worker: Worker, option: str, annotation: Any) -> None:
        def one(order: Any, price: Any) -> None: ...

        one.__annotations__["price"] = annotation
        text = "one: it is given what was gathered, and 'price' is annotated as something else"
        self.refused(shop, worker, InvalidMessage, text, [shop.quote.s(1)], **{option: shop.saga.handles(one)})

    def test_member_that_cannot_be_encoded(self, shop: Any, worker: Worker) -> None:
        """The others are not sent either, though the step goes on."""
        members = [shop.quote.s(1), shop.quote.s(object())]
        self.refused(shop, worker, InvalidMessage, "encoded", members)

    def test_outside_of_a_step(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [1])

        with pytest.raises(MisuseError, match="outside a step"):
            found(shop).gather([shop.quote.s(1)], then=shop.quoted)

    def test_answers_of_a_wrong_type_are_a_dead_letter(self, app: Celery, shop: Any, worker: Worker) -> None:
        @app.task(name="chat")
        def chat() -> str:
            return "many"

        start(shop, worker, lambda order: order.gather([chat.s()], then=shop.quoted))
        worker.run()

        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.error) == ("order.quoted", "InvalidMessage")
        assert request_of(app)

    def test_answers_that_their_step_cannot_handle_are_no_silence(self, app: Celery, shop: Any, worker: Worker) -> None:
        """However often it is told of them: they wait for the retry of the dead letter, also when the time is over."""
        broken = [True]

        @app.task(name="chat")
        def chat() -> int:
            return 5

        @shop.saga.handles
        def came(order: Any, answers: Gathered[int]) -> None:
            if broken:
                raise ValueError
            order.note("came", answers)

        start(shop, worker, lambda order: order.gather([chat.s()], then=came, otherwise=shop.too_few, within=3600))
        worker.run()
        (deadline,) = rows(app)
        for _ in range(3):
            fire(app, deadline)
            worker.run()

        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, found(shop).seen) == ("order.came", [])
        broken.clear()
        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()
        assert (found(shop).seen, found(shop).values) == (["came"], [5])
        assert (collected(app), read_pending(record_of(app).pending).requests) == (0, {})


class TestJournal:
    """What was asked, and what came of it."""

    def test_it_is_in_the_journal(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1], otherwise="too_few", within=3600)
        request = request_of(app)
        worker.run()

        began, ended = backend_of(app).journal.history(["order"], "42", 10)
        detail = json.loads(began.detail)
        assert [sent["task"] for sent in detail["sent"]] == ["quote", "quote"]
        assert [sent["task"] for sent in detail["deadline"]] == [GATHER]
        (asked,) = detail["asked"]
        assert (asked["request"], asked["members"], asked["at_least"]) == (request, 2, 2)
        assert (ended.step, json.loads(ended.detail)) == ("order.quoted", {"request": request, "came": "gathered"})

    def test_id_is_returned(self, app: Celery, shop: Any, worker: Worker) -> None:
        ids = []
        start(shop, worker, lambda order: ids.append(order.gather([shop.quote.s(1)], then=shop.quoted)))

        assert ids == [request_of(app)]

    def test_what_is_noted_can_be_read_again(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1], otherwise="too_few", at_least=1, within=3600)
        pending = read_pending(record_of(app).pending)

        (request,) = pending.requests.values()
        assert (request.task, request.then, request.otherwise) == (GATHER, "order.quoted", "order.too_few")
        assert (request.members, request.at_least) == (2, 1)
        assert [target.task for target in map(request.target, (1, 0)) if target] == ["order.quoted", "order.too_few"]
        assert read_pending(pending.text()) == pending


class TestEager:
    """``task_always_eager``: the members run after the commit, here and now."""

    @pytest.fixture
    def shop(self, eager: Celery) -> Any:
        return define(eager)

    def test_all_answer(self, shop: Any) -> None:
        shop.place("42", [3, 1, 2])

        order = found(shop)
        assert (order.seen, order.values) == (["quoted"], [3, 1, 2])

    def test_chain(self, shop: Any) -> None:
        @shop.saga.starts
        def start(order: Any, order_id: str) -> None:
            order.gather([chain(shop.quote.s(1), shop.double.s()), shop.quote.s(5)], then=shop.quoted)

        start("42")

        assert found(shop).values == [2, 5]

    def test_deadline_is_not_waited_for(
        self, shop: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timeouts, "_told", [])
        caplog.set_level(logging.WARNING, "celery_sagas")

        shop.place("42", [3, 1], otherwise="too_few", within=3600)

        assert found(shop).seen == ["quoted"]
        assert "nothing that is scheduled runs" in caplog.text

    def test_nothing_is_kept(self, eager: Celery, shop: Any) -> None:
        shop.place("42", [3, 1])

        assert collected(eager) == 0

    def test_failures_are_told(self, new_app: NewApp) -> None:
        app = new_app(eager=True)
        app.conf.task_eager_propagates = False
        shop = define(app)

        shop.place("42", [3, -1])

        assert (found(shop).values, list(found(shop).failed)) == ([3], [1])
