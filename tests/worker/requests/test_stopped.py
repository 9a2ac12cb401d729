"""Gathers that are stopped: no more of them is sent, what waits is revoked, and what comes all the same is dropped."""

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain

from celery_sagas.core.pending import read_pending
from celery_sagas.engine.outbox.dispatch import Dispatcher
from tests.apps import Delivered, Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.quotes import collected, found, record_of, shop, start, way
from tests.worker.requests.test_early import HOUR, answer, ask, revoked
from tests.worker.requests.trips import app, held_back, on_every_store

__all__ = ["app", "revoked", "shop", "stored_app", "url", "way"]

pytestmark = on_every_store


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have a process publish so many of the messages of a commit, and die before the rest."""
    dispatch = Dispatcher.dispatch

    def die_after(count: int) -> None:
        def dispatched(self: Dispatcher, rows: Any, committed_at: float) -> None:
            dispatch(self, rows[:count], committed_at)
            self.outbox.release(self.owner, [row.id for row in rows[count:]])  # as when its lease has ended
            monkeypatch.setattr(Dispatcher, "dispatch", dispatch)

        monkeypatch.setattr(Dispatcher, "dispatch", dispatched)

    return die_after


@pytest.fixture
def cancel(shop: Any, worker: Worker) -> Callable[[str], bool]:
    """Have the order 42 stop waiting for a request, and return what it is told."""
    told: list[bool] = []

    @shop.saga.handles
    def stop(order: Any, order_id: str, request: str) -> None:
        told.append(order.cancel(request))

    def cancel(request: str) -> bool:
        stop.delay("42", request)
        assert worker.one().error is None
        return told[-1]

    return cancel


def rows(app: Celery) -> int:
    """Return how many rows the outbox has."""
    return backend_of(app).outbox.count()


class Sent:
    """What a step has sent, and its process has published so much of it."""

    def __init__(self, shop: Any, worker: Worker, act: Callable[[Any], list[str]]) -> None:
        self.ids: list[str] = []
        start(shop, worker, lambda order: self.ids.extend(act(order)))
        self.published: list[Delivered] = held_back(worker)


class TestNotPublished:
    """The rows of members that are not published yet leave the outbox with the commit that stops their gather."""

    @pytest.mark.parametrize("published", [0, 2])
    def test_members(
        self, app: Celery, shop: Any, worker: Worker, dying: Any, cancel: Any, revoked: list[str], published: int
    ) -> None:
        dying(published)
        sent = Sent(shop, worker, lambda order: [order.gather([shop.quote.s(price) for price in range(5)], then=shop.quoted)])
        assert (len(sent.published), rows(app)) == (published, 5 - published)
        assert cancel(sent.ids[0])

        assert rows(app) == 0
        assert len(revoked) == 5
        assert {each.id for each in sent.published} <= set(revoked)
        assert read_pending(record_of(app).pending).requests == {}

    def test_their_deadline(self, app: Celery, shop: Any, worker: Worker, dying: Any, cancel: Any) -> None:
        dying(0)
        options = {"then": shop.quoted, "otherwise": shop.too_few, "within": HOUR}
        sent = Sent(shop, worker, lambda order: [order.gather([shop.quote.s(1), shop.quote.s(2)], **options)])
        assert rows(app) == 3
        assert cancel(sent.ids[0])

        assert rows(app) == 0

    def test_everything_else_stays(self, app: Celery, shop: Any, worker: Worker, dying: Any, cancel: Any) -> None:
        """What the step has sent before, after and between."""

        def act(order: Any) -> list[str]:
            members = [shop.quote.s(1), chain(shop.quote.s(2), shop.double.s()), shop.quote.s(3)]
            never = order.gather([shop.quote.s(9)], then=shop.quoted)
            before = order.send(shop.double.s(1))
            first = order.gather(members, then=shop.quoted)
            between = order.send(shop.double.s(2), then="quoted", after=HOUR)
            second = order.gather(members, then=shop.quoted)
            after = order.send(shop.double.s(3))
            assert order.cancel(never)
            return [first, second, before, between, after]

        dying(0)
        sent = Sent(shop, worker, act)
        assert rows(app) == 9
        assert cancel(sent.ids[1])
        assert rows(app) == 6
        assert cancel(sent.ids[0])

        assert rows(app) == 3
        due = {row.message_id for row in backend_of(app).outbox.claim_due("relay", 100, 60_000)}
        assert due == {sent.ids[2], sent.ids[4]}, "the one between is due later"

    def test_many(self, app: Celery, shop: Any, worker: Worker, dying: Any, cancel: Any, revoked: list[str]) -> None:
        dying(10)
        sent = Sent(shop, worker, lambda order: [order.gather([shop.quote.s(1) for _ in range(1_000)], then=shop.quoted)])
        assert rows(app) == 990
        assert cancel(sent.ids[0])

        assert (rows(app), len(revoked)) == (0, 1_000)

    def test_of_one_that_has_ended_early(self, app: Celery, shop: Any, worker: Worker, dying: Any, revoked: list[str]) -> None:
        dying(2)
        held = ask(shop, worker, [5, 6, 7, 8], 2)
        assert rows(app) == 3, "two members and the deadline"
        answer(worker, held, 0, 1)

        assert found(shop).seen == ["quoted"]
        assert (rows(app), len(revoked)) == (0, 2)

    def test_with_an_undo_they_are_sent(self, app: Celery, shop: Any, worker: Worker, dying: Any, cancel: Any) -> None:
        """Only an answer says what there is to undo: all are awaited."""
        dying(1)
        options = {"then": shop.quoted, "otherwise": shop.too_few, "within": HOUR, "undo": shop.double}
        sent = Sent(shop, worker, lambda order: [order.gather([shop.quote.s(1), shop.quote.s(2)], **options)])
        assert rows(app) == 2
        assert cancel(sent.ids[0])

        assert rows(app) == 2


@pytest.mark.usefixtures("way")
class TestPublished:
    """What was published is revoked, and dropped if it comes all the same."""

    def test_in_the_middle(self, app: Celery, shop: Any, worker: Worker, cancel: Any, revoked: list[str]) -> None:
        sent = Sent(shop, worker, lambda order: [order.gather([shop.quote.s(price) for price in range(6)], then=shop.quoted)])
        answer(worker, sent.published, 0, 1, 2)
        assert collected(app) == 3
        (gather,) = found(shop).saga.gathers
        assert gather == sent.ids[0]
        assert cancel(gather)
        assert not cancel(gather), "it was stopped before"
        assert (collected(app), set(revoked)) == (0, {each.id for each in sent.published})
        answer(worker, sent.published, 3, 4, 5)

        assert (found(shop).seen, dict(found(shop).saga.gathers)) == ([], {})
        assert rows(app) == 0
