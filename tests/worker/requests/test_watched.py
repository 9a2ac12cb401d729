"""Gathers that are watched: a step, and a copy, tell what has come of the members so far."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import GatherView
from celery_sagas.core.pending import read_pending
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.quotes import found, record_of, request_of, shop, start, way
from tests.worker.requests.test_early import answer
from tests.worker.requests.trips import app, held_back, on_every_store

__all__ = ["app", "shop", "stored_app", "url", "way"]

pytestmark = [on_every_store, pytest.mark.usefixtures("way")]

HOUR = timedelta(hours=1)


def ask(shop: Any, worker: Worker, *prices: int, **options: Any) -> list[Delivered]:
    """Have the order 42 ask for prices; return the messages of the members, which no worker has taken yet."""
    options = {"then": shop.quoted, **options}
    start(shop, worker, lambda order: order.gather([shop.quote.s(price) for price in prices], **options))
    return held_back(worker)


def watched(shop: Any) -> GatherView:
    """Return the one gather of a copy of the order 42."""
    (gather,) = found(shop).saga.gathers.values()
    return gather  # type: ignore[no-any-return]


@pytest.fixture
def look(shop: Any, worker: Worker) -> Any:
    """Have a step of the order 42 look, and return what it has seen."""
    seen: list[Any] = []

    @shop.saga.handles
    def looked(order: Any, order_id: str) -> None:
        gathers = order.saga.gathers
        seen.append((dict(gathers), len(gathers), list(gathers)))

    def look() -> Any:
        looked.delay("42")
        assert worker.one().error is None
        return seen[-1]

    return look


class TestView:
    """Which members have answered, and which have failed."""

    def test_from_the_first_to_the_last(self, app: Celery, shop: Any, worker: Worker) -> None:
        held = ask(shop, worker, 5, -1, 7, 8)
        id = request_of(app)
        assert watched(shop) == GatherView(id, 4, 4, (), (), None)
        answer(worker, held, 3)
        assert (watched(shop).answered, watched(shop).failed, watched(shop).silent) == ((3,), (), [0, 1, 2])
        answer(worker, held, 1, 0)
        assert (watched(shop).answered, watched(shop).failed, watched(shop).silent) == ((0, 3), (1,), [2])
        answer(worker, held, 2)

        assert dict(found(shop).saga.gathers) == {}

    def test_what_was_asked_for(self, shop: Any, worker: Worker) -> None:
        before = datetime.now(UTC)
        ask(shop, worker, 5, 6, 7, otherwise=shop.too_few, at_least=2, within=HOUR)
        gather = watched(shop)

        assert (gather.members, gather.at_least) == (3, 2)
        assert gather.deadline is not None
        assert timedelta(0) <= gather.deadline - before - HOUR < timedelta(minutes=5)

    def test_within_a_step(self, app: Celery, shop: Any, worker: Worker, look: Any) -> None:
        held = ask(shop, worker, 5, -1, 7)
        answer(worker, held, 2, 1)
        gather = GatherView(request_of(app), 3, 3, (2,), (1,), None)

        assert look() == ({gather.id: gather}, 1, [gather.id])

    def test_several(self, shop: Any, worker: Worker, look: Any) -> None:
        ids: list[str] = []

        def gather(order: Any) -> None:
            ids.extend(order.gather([shop.quote.s(price), shop.quote.s(9)], then=shop.quoted) for price in (5, 6))
            order.send(shop.double.s(3), then="end")
            assert dict(order.saga.gathers) == {}, "it shows what there was when the step began"

        start(shop, worker, gather)
        held = held_back(worker)
        answer(worker, held, 1, 2)
        gathers, count, listed = look()

        assert (count, listed) == (2, ids)
        assert [gathers[id].answered for id in ids] == [(1,), (0,)]

    def test_of_which_nothing_is_known(self, shop: Any, worker: Worker) -> None:
        ask(shop, worker, 5, 6)
        gathers = found(shop).saga.gathers

        assert "unknown" not in gathers
        with pytest.raises(KeyError, match="unknown"):
            gathers["unknown"]

    def test_in_the_step_that_gets_it(self, shop: Any, worker: Worker) -> None:
        """It has ended."""
        seen: list[Any] = []

        @shop.saga.handles
        def came(order: Any, gathered: Any) -> None:
            seen.append(dict(order.saga.gathers))

        answer(worker, ask(shop, worker, 5, then=came), 0)

        assert seen == [{}]

    def test_cancelled_in_this_step(self, app: Celery, shop: Any, worker: Worker) -> None:
        """It is shown as it was when the step began."""
        held = ask(shop, worker, 5, 6)
        answer(worker, held, 1)
        id, seen = request_of(app), []

        @shop.saga.handles
        def stop(order: Any, order_id: str) -> None:
            assert order.cancel(id)
            seen.append(order.saga.gathers[id].answered)

        stop.delay("42")
        assert worker.one().error is None

        assert (seen, dict(found(shop).saga.gathers)) == ([(1,)], {})

    def test_of_a_saga_that_was_renamed_since_then(self, app: Celery, shop: Any, worker: Worker) -> None:
        """What came before is kept under its former name."""
        held = ask(shop, worker, 5, 6)
        answer(worker, held, 1)
        saga, runtime = shop.saga.__saga__, runtime_of(app)
        request = found(shop).saga.gathers[request_of(app)]
        renamed = type(saga)(**{**vars_of(saga), "name": "purchase", "formerly": ("order",)})
        (asked,) = (each for each in pending_requests(app) if each.id == request.id)

        assert runtime.read_outcomes(renamed, record_of(app).id, asked).answered == (1,)


def vars_of(saga: Any) -> dict[str, Any]:
    """Return the fields of the definition of a saga."""
    return {name: getattr(saga, name) for name in saga.__dataclass_fields__}


def pending_requests(app: Celery) -> Any:
    """Return the requests for which the order 42 waits."""
    return read_pending(record_of(app).pending).requests.values()


class TestCost:
    """What is not looked at costs nothing."""

    @pytest.fixture
    def reads(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The groups that were read."""
        groups: list[str] = []
        buffers: Any = backend_of(app).buffers
        read = buffers.read

        def noted(name: str, group: str, *args: Any) -> Any:
            groups.append(group)
            return read(name, group, *args)

        monkeypatch.setattr(buffers, "read", noted)
        return groups

    def test_it_is_read_once_when_it_is_looked_at(self, app: Celery, shop: Any, worker: Worker, reads: list[str]) -> None:
        ask(shop, worker, 5, 6)
        order = found(shop)
        assert len(order.saga.gathers) == 1
        assert list(order.saga.gathers) == [request_of(app)]
        assert request_of(app) in order.saga.gathers
        reads.clear()
        assert order.saga.requests[request_of(app)].members == 2
        assert reads == []
        for _ in range(3):
            assert order.saga.gathers[request_of(app)].answered == ()

        assert reads == [request_of(app)]
