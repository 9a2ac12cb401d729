"""Gathers that end as soon as enough members have answered; the rest are late."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas.core.pending import UNPAUSED_FORMAT, read_pending
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.quotes import begin, collected, found, record_of, request_of, shop, start, way
from tests.worker.requests.trips import app, held_back, hours_ago, on_every_store

__all__ = ["app", "shop", "stored_app", "url", "way"]

pytestmark = [on_every_store, pytest.mark.usefixtures("way")]

HOUR = timedelta(hours=1)


@pytest.fixture
def revoked(app: Celery) -> list[str]:
    """The ids of the tasks that workers are asked not to begin."""
    ids: list[str] = []
    runtime_of(app).revoke = ids.extend
    return ids


def ask(shop: Any, worker: Worker, prices: list[int], at_least: int, **options: Any) -> list[Delivered]:
    """Have the order 42 ask for prices; return the messages of the members, which no worker has taken yet."""
    options = {"then": shop.quoted, "otherwise": shop.too_few, "within": HOUR, "early": True, **options}
    start(shop, worker, lambda order: order.gather([shop.quote.s(price) for price in prices], at_least=at_least, **options))
    return held_back(worker)


def answer(worker: Worker, held: list[Delivered], *positions: int) -> None:
    """Have members run, one after the other, with all that follows."""
    for position in positions:
        worker.deliver_again(held[position])
        worker.run()


class TestEnd:
    """It ends with the answer that makes them enough."""

    def test_enough_have_answered(self, app: Celery, shop: Any, worker: Worker) -> None:
        held = ask(shop, worker, [5, 6, 7, 8], 2)
        answer(worker, held, 2)
        assert found(shop).seen == []
        answer(worker, held, 0)

        order = found(shop)
        assert (order.seen, order.values, order.silent) == (["quoted"], [5, 7], [1, 3])
        assert (read_pending(record_of(app).pending).requests, backend_of(app).outbox.count(), collected(app)) == ({}, 0, 0)

    def test_first_one_is_enough(self, shop: Any, worker: Worker) -> None:
        answer(worker, ask(shop, worker, [5, 6, 7], 1), 1)

        assert (found(shop).seen, found(shop).values) == (["quoted"], [6])

    def test_all_must_answer(self, shop: Any, worker: Worker) -> None:
        answer(worker, ask(shop, worker, [5, 6], 2), 1, 0)

        assert (found(shop).seen, found(shop).values) == (["quoted"], [5, 6])

    def test_failures_do_not_count(self, shop: Any, worker: Worker) -> None:
        held = ask(shop, worker, [-1, -2, 7, -3, 9, 10], 2)
        answer(worker, held, 0, 1, 2, 3)
        assert found(shop).seen == []
        answer(worker, held, 4)

        order = found(shop)
        assert (order.seen, order.values, sorted(order.failed), order.silent) == (["quoted"], [7, 9], [0, 1, 3], [5])

    def test_too_few_can_answer(self, shop: Any, worker: Worker) -> None:
        """It waits for all of them, as their outcomes are told."""
        held = ask(shop, worker, [-1, -2, 7], 2)
        answer(worker, held, 0, 1)
        assert found(shop).seen == []
        answer(worker, held, 2)

        assert (found(shop).seen, found(shop).values, found(shop).silent) == (["too few"], [7], [])

    def test_last_outcome_is_a_failure(self, shop: Any, worker: Worker) -> None:
        answer(worker, ask(shop, worker, [-1, 6, -2], 2), 0, 1, 2)

        assert (found(shop).seen, found(shop).values) == (["too few"], [6])

    @pytest.mark.parametrize(("count", "seen"), [(1, "too few"), (0, "too few")])
    def test_time_is_over(self, app: Celery, shop: Any, worker: Worker, count: int, seen: str) -> None:
        with hours_ago():
            held = ask(shop, worker, [5, 6, 7], 2)
        answer(worker, held, *range(count))
        outbox = backend_of(app).outbox
        (row,) = outbox.claim_due("relay", 10, 60_000)
        runtime_of(app).publisher.publish(row)
        outbox.confirm("relay", [row.id])
        worker.run()

        assert (found(shop).seen, found(shop).silent) == ([seen], list(range(count, 3)))

    def test_many_answer_at_once(self, shop: Any, worker: Worker) -> None:
        """Those that come before the step runs may be told with the rest."""
        held = ask(shop, worker, [5, 6, 7, 8, 9], 2)
        for each in held:
            worker.app.send_task(each.task, each.args, task_id=each.id, headers=own(each), link=each.embed["callbacks"])
        worker.run()

        order = found(shop)
        assert order.seen == ["quoted"]
        assert len(order.values) >= 2
        assert len(order.values) + len(order.silent) == 5

    def test_one_answers_twice(self, shop: Any, worker: Worker) -> None:
        held = ask(shop, worker, [5, 6, 7], 2)
        answer(worker, held, 0, 0, 0)
        assert found(shop).seen == []
        answer(worker, held, 2)

        assert found(shop).values == [5, 7]


def own(delivered: Delivered) -> dict[str, Any]:
    """Return the headers of a message that are the library's."""
    return {name: value for name, value in delivered.headers.items() if name.startswith("saga_")}


class TestLate:
    """What comes after the end changes nothing, and what has not begun is revoked."""

    def test_answers_and_failures(self, app: Celery, shop: Any, worker: Worker) -> None:
        held = ask(shop, worker, [5, 6, 7, -1], 2)
        answer(worker, held, 0, 1)
        version = record_of(app).version
        answer(worker, held, 2, 3)

        assert (found(shop).seen, record_of(app).version) == (["quoted"], version)
        assert backend_of(app).dead.list(10) == []

    def test_silent_members_are_revoked(self, app: Celery, shop: Any, worker: Worker, revoked: list[str]) -> None:
        held = ask(shop, worker, [5, -1, 7, 8, 9], 2)
        answer(worker, held, 3, 1)
        assert revoked == []
        answer(worker, held, 0)

        assert revoked == [held[2].id, held[4].id]

    def test_nobody_is_revoked_if_all_have_outcomes(self, shop: Any, worker: Worker, revoked: list[str]) -> None:
        answer(worker, ask(shop, worker, [5, -1], 1), 1, 0)

        assert (found(shop).seen, revoked) == (["quoted"], [])

    def test_step_is_given_nothing(self, shop: Any, worker: Worker, revoked: list[str]) -> None:
        """Then it is not known which ones are silent."""

        @shop.saga.handles
        def enough(order: Any) -> None:
            order.seen.append("enough")

        held = ask(shop, worker, [5, 6, 7], 1, then=enough.si())
        answer(worker, held, 0)

        assert (found(shop).seen, revoked) == (["enough"], [each.id for each in held])

    def test_without_early_nobody_is_revoked(self, shop: Any, worker: Worker, revoked: list[str]) -> None:
        held = ask(shop, worker, [5, 6], 1, early=False)
        answer(worker, held, 0)
        assert found(shop).seen == []
        answer(worker, held, 1)

        assert (found(shop).values, revoked) == ([5, 6], [])

    @pytest.mark.parametrize("early", [True, False])
    def test_time_is_over(self, app: Celery, shop: Any, worker: Worker, revoked: list[str], early: bool) -> None:
        """Without ``early`` they only expire."""
        with hours_ago():
            held = ask(shop, worker, [5, 6, 7], 2, early=early)
        answer(worker, held, 1)
        (row,) = backend_of(app).outbox.claim_due("relay", 10, 60_000)
        runtime_of(app).publisher.publish(row)
        worker.run()

        assert found(shop).seen == ["too few"]
        assert revoked == ([held[0].id, held[2].id] if early else [])

    def test_instance_completes_with_it(self, shop: Any, worker: Worker, revoked: list[str]) -> None:
        @shop.saga.handles
        def done(order: Any, came: Any) -> None:
            order.complete()

        held = ask(shop, worker, [5, 6], 1, then=done)
        answer(worker, held, 0, 1)

        assert (shop.saga.find("42"), revoked) == (None, [held[1].id])


class TestStored:
    """Code that knows no such gather leaves its instance alone."""

    def test_format(self, app: Celery, shop: Any, worker: Worker) -> None:
        ask(shop, worker, [5, 6], 1)
        noted = json.loads(record_of(app).pending)

        assert (noted["format"], noted["requests"][request_of(app)]["early"]) == (UNPAUSED_FORMAT, True)

    def test_format_of_others(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [5, 6], otherwise="too_few", at_least=1)
        noted = json.loads(record_of(app).pending)

        assert (noted["format"], "early" in noted["requests"][request_of(app)]) == (1, False)

    def test_journal(self, app: Celery, shop: Any, worker: Worker) -> None:
        ask(shop, worker, [5, 6], 1)
        (entry,) = backend_of(app).journal.history(["order"], "42", 10)

        assert json.loads(entry.detail)["asked"][0]["early"] is True


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"at_least": None}, TypeError, "early=True needs at_least=: say how many answers are enough"),
        ({"otherwise": None}, TypeError, "at_least= needs otherwise="),
        ({"at_least": 3}, ValueError, "at_least=3 is no number from 1 to 2"),
        ({"at_least": 0}, ValueError, "at_least=0 is no number from 1 to 2"),
        ({"early": 1}, TypeError, "early= takes True or False, not 1"),
        ({"early": "yes"}, TypeError, "early= takes True or False, not 'yes'"),
        ({"undo": "quote"}, TypeError, "early=True goes without undo="),
    ],
)
def test_refusals(app: Celery, shop: Any, worker: Worker, options: Any, error: type[Exception], text: str) -> None:
    errors: list[Exception] = []
    if "undo" in options:
        options = {"undo": shop.quote}

    def gather(order: Any) -> None:
        given = {"then": shop.quoted, "otherwise": shop.too_few, "at_least": 1, "early": True, **options}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            order.gather([shop.quote.s(1), shop.quote.s(2)], **given)
        except Exception as exc:
            errors.append(exc)

    refuse: Callable[[Any], None] = gather
    start(shop, worker, refuse)

    assert [type(each) for each in errors] == [error]
    assert text in str(errors[0])
    assert (worker.waiting(), json.loads(record_of(app).pending)) == ([], {})
