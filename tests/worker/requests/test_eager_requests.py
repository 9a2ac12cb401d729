"""Requests in eager mode: everything at once, and failures without a worker that could tell of them."""

from typing import Any

import pytest
from celery import Celery, chain

from tests.apps import NewApp
from tests.worker.requests.orders import Boom, Shop, define


@pytest.fixture
def shop(eager: Celery) -> Shop:
    """The saga and the tasks; errors do not pass to the caller, as is Celery's default."""
    eager.conf.task_eager_propagates = False
    return define(eager)


def ask(shop: Shop, sent: Any, **options: Any) -> None:
    """Have the order 42 ask."""
    shop.ask = lambda order: order.send(sent, **{"then": "paid", "otherwise": "unpaid", **options})
    shop.saga.place.delay("42")


def failing(*_: object) -> None:
    raise Boom("broken")


def test_answer(shop: Shop) -> None:
    ask(shop, shop.charge.s())

    assert shop.seen() == ["paid receipt"]
    assert (shop.pending().requests, shop.rows()) == ({}, [])


@pytest.mark.parametrize("then", [lambda saga: saga.paid.s("Rome"), lambda saga: saga.told.si()], ids=["more", "nothing"])
def test_targets(shop: Shop, then: Any) -> None:
    ask(shop, shop.charge.s(), then=then(shop.saga))

    assert shop.seen() in (["paid receipt Rome"], ["told"])


def test_chain(shop: Shop) -> None:
    ask(shop, chain(shop.charge.s(), shop.ship.s()))

    assert shop.seen() == ["paid shipped receipt"]


def test_failure(shop: Shop) -> None:
    shop.work = failing
    ask(shop, shop.charge.s())

    assert shop.seen() == ["unpaid error"]
    assert (shop.failure().task, shop.failure().error, shop.failure().text) == ("charge", "Boom", "broken")
    assert shop.pending().requests == {}


def test_failure_after_the_last_retry(eager: Celery, shop: Shop) -> None:
    @eager.task(name="stubborn", bind=True, autoretry_for=(Boom,), max_retries=2, default_retry_delay=0)
    def stubborn(self: Any) -> None:
        shop.ran.append(self.request.retries)
        raise Boom

    ask(shop, stubborn.s())

    assert shop.ran == [0, 1, 2]
    assert shop.seen() == ["unpaid error"]
    assert shop.failure().retries == 2


def test_failure_in_a_chain(shop: Shop) -> None:
    shop.work = failing
    ask(shop, chain(shop.charge.s(), shop.ship.s()))

    assert shop.ran == [[]]
    assert shop.seen() == ["unpaid error"]


def test_failure_that_passes_to_the_caller(new_app: NewApp) -> None:
    """With ``task_eager_propagates`` Celery tells nobody else."""
    shop = define(new_app(eager=True))
    shop.work = failing
    with pytest.raises(Boom):
        ask(shop, shop.charge.s())

    assert shop.seen() == []
    assert len(shop.pending().requests) == 1


def test_other_saga(shop: Shop) -> None:
    """It is the same one here: an order asks another order."""

    @shop.saga.starts
    def other(order: Any, order_id: str) -> None:
        order.reply(f"I am {order_id}")

    @shop.saga.handles
    def question(order: Any, order_id: str) -> str:
        return f"you ask {order_id}"

    ask(shop, other.s("43"))
    assert shop.seen() == ["paid I am 43"]
    shop.ask = lambda order: order.send(question.s("43"), then="paid")
    shop.saga.place("42")

    assert shop.seen() == ["paid I am 43", "paid you ask 43"]


def test_interim_answers(shop: Shop) -> None:
    @shop.saga.starts
    def other(order: Any, order_id: str) -> None:
        assert order.reply("1 of 2", last=False)
        assert order.reply("2 of 2")

    @shop.saga.handles
    def coming(order: Any, what: str) -> None:
        order.note(f"coming {what}")

    ask(shop, other.s("43"), progress=coming)

    assert shop.seen() == ["coming 1 of 2", "paid 2 of 2"]


def test_step_that_fails(shop: Shop) -> None:
    @shop.saga.starts
    def other(order: Any, order_id: str) -> None:
        raise Boom

    ask(shop, other.s("43"))

    assert shop.seen() == ["unpaid error"]


def test_task_that_nobody_has_asked(shop: Shop) -> None:
    shop.work = failing
    shop.charge.delay()

    assert shop.saga.find("42") is None
