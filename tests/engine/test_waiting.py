"""Waiting for what messages make of an instance."""

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from celery_sagas.core.state import State
from celery_sagas.engine import polling
from celery_sagas.engine.query import refuse_in_task, wait_for
from celery_sagas.engine.session import Session
from celery_sagas.errors import CorrelationError, DefinitionError, MisuseError, SagaNotFound, StoreUnavailable, WaitTimeout
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Engine, Order, handler, starter


def place(order: Order, order_id: str, tracking: str | None = None) -> None:
    """Start."""
    order.tracking = tracking


def pay(order: Order, order_id: str, total: int) -> None:
    """Go on."""
    order.total = total


def lose(order: Order, order_id: str) -> None:
    """Give the alternate key up."""
    order.tracking = None


def finish(order: Order, order_id: str) -> None:
    """End."""
    order.complete()


def place_and_finish(order: Order, order_id: str) -> None:
    """Start and end in one."""
    order.complete()


class Basket(State, correlate_by="basket_id"):
    """An instance that is false as long as it is empty."""

    basket_id: str
    items: list[str] = []

    def __len__(self) -> int:
        return len(self.items)


def begin(basket: Basket, basket_id: str) -> None:
    """Start."""


PLACE, PAY, LOSE, FINISH = starter(place), handler(pay), handler(lose), handler(finish)
AT_ONCE = starter(place_and_finish)
ORDER, BASKET = Order.__saga__, Basket.__saga__
assert ORDER is not None
assert BASKET is not None

Act = Callable[[], Any]


class Sleeps:
    """Time in which nobody sleeps; in each pause something may happen."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses: list[float] = []
        self.acts: list[Act] = []  #: what happens in the pauses, in order

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses.append(seconds)
        if self.acts:
            self.acts.pop(0)()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """The pauses between two looks."""
    sleeps = Sleeps()
    monkeypatch.setattr(polling, "time", sleeps)
    return sleeps


def wait(engine: Engine, until: Any, timeout: Any = 5, key: object = "42", **by: object) -> Any:
    """Wait for an order."""
    return polling.finish(wait_for(engine.backend, ORDER, None if by else key, by, until=until, timeout=timeout))


def is_paid(order: Order) -> bool:
    """Whether it is what is waited for."""
    return order.total > 0


class TestUntil:
    """A copy for which a function is true."""

    def test_what_is_there_already_is_returned_at_once(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42", tracking="T1")
        engine.handle(PAY, order_id="42", total=3)

        for order in (wait(engine, is_paid), wait(engine, is_paid, order_id="42"), wait(engine, is_paid, tracking="T1")):
            assert (order.order_id, order.total, order.saga.version) == ("42", 3, 2)
        assert sleeps.pauses == []

    def test_it_waits_for_the_start_and_for_the_change(self, engine: Engine, sleeps: Sleeps) -> None:
        sleeps.acts = [
            lambda: None,
            lambda: engine.handle(PLACE, order_id="42"),
            lambda: None,
            lambda: engine.handle(PAY, order_id="42", total=3),
        ]

        assert wait(engine, is_paid).saga.version == 2
        assert len(sleeps.pauses) == 4

    def test_each_look_gets_a_fresh_read_only_copy(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42")
        sleeps.acts = [lambda: engine.handle(PAY, order_id="42", total=3)]
        copies: list[Order] = []

        def until(order: Order) -> bool:
            copies.append(order)
            return is_paid(order)

        assert wait(engine, until) is copies[1]
        assert [copy.total for copy in copies] == [0, 3]
        with pytest.raises(MisuseError, match="read-only"):
            copies[1].total = 5

    def test_any_true_value_will_do(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42", tracking="T1")

        assert wait(engine, lambda order: order.tracking).tracking == "T1"

    def test_copy_may_be_false(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(starter(begin, saga=Basket), basket_id="7")

        basket = polling.finish(wait_for(engine.backend, BASKET, "7", {}, until=lambda basket: not basket, timeout=0))
        assert (basket.basket_id, len(basket)) == ("7", 0)

    def test_each_look_is_one_find(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42")
        store = engine.interpose()
        sleeps.acts = [lambda: None, lambda: engine.handle(PAY, order_id="42", total=3)]

        polling.finish(wait_for(engine.services.backend, ORDER, "42", {}, until=is_paid, timeout=5))

        assert store.calls.count("find") - 1 == 3  # one is that of the step
        assert len(sleeps.pauses) == 2

    def test_what_until_raises_passes(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42")

        with pytest.raises(ZeroDivisionError):
            wait(engine, lambda order: 1 / order.total)

    def test_error_of_the_store_passes(self, engine: Engine, sleeps: Sleeps) -> None:
        def fail() -> None:
            raise StoreUnavailable("memory://", "away")

        engine.interpose().once_before("find", lambda: None, fail)

        with pytest.raises(StoreUnavailable):
            polling.finish(wait_for(engine.services.backend, ORDER, "42", {}, until=is_paid, timeout=5))
        assert len(sleeps.pauses) == 1

    def test_instance_that_completes_meanwhile_is_not_waited_for(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42")
        sleeps.acts = [lambda: engine.handle(FINISH, order_id="42")]

        with pytest.raises(SagaNotFound) as caught:
            wait(engine, is_paid)
        assert caught.value.args == ("order", "order_id", "42", True)
        assert len(sleeps.pauses) == 1

    def test_later_instance_of_the_same_key_is_another(self, engine: Engine, sleeps: Sleeps) -> None:
        def replace() -> None:
            engine.handle(FINISH, order_id="42")
            engine.handle(PLACE, order_id="42")
            engine.handle(PAY, order_id="42", total=3)

        engine.handle(PLACE, order_id="42", tracking="T1")
        for by in ({}, {"tracking": "T1"}):
            sleeps.acts = [replace]
            with pytest.raises(SagaNotFound):
                wait(engine, is_paid, **by)
            engine.handle(FINISH, order_id="42")
            engine.handle(PLACE, order_id="42", tracking="T1")

    def test_instance_that_loses_its_alternate_key_is_followed(self, engine: Engine, sleeps: Sleeps) -> None:
        def lose_it() -> None:
            engine.handle(LOSE, order_id="42")
            engine.handle(PLACE, order_id="43", tracking="T1")

        engine.handle(PLACE, order_id="42", tracking="T1")
        sleeps.acts = [lose_it, lambda: engine.handle(PAY, order_id="42", total=3)]

        assert wait(engine, is_paid, tracking="T1").order_id == "42"

    def test_earlier_instance_that_has_completed_is_none(self, engine: Engine, sleeps: Sleeps) -> None:
        """The message that begins the next one may still be on its way."""
        engine.handle(PLACE, order_id="42")
        engine.handle(FINISH, order_id="42")
        sleeps.acts = [lambda: engine.handle(PLACE, order_id="42")]

        assert wait(engine, lambda order: True).saga.version == 1


class TestCompleted:
    """The journal entry of the completion."""

    def test_what_has_completed_is_returned_at_once(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42")
        engine.handle(FINISH, order_id="42", id="m2")

        for outcome in (wait(engine, "completed"), wait(engine, "completed", order_id="42")):
            assert (outcome.kind, outcome.message_id, outcome.version) == ("completed", "m2", 2)
        assert sleeps.pauses == []

    def test_it_waits_for_the_start_and_for_the_end(self, engine: Engine, sleeps: Sleeps) -> None:
        sleeps.acts = [
            lambda: engine.handle(PLACE, order_id="42"),
            lambda: None,
            lambda: engine.handle(FINISH, order_id="42", id="m2"),
        ]

        assert wait(engine, "completed").message_id == "m2"
        assert len(sleeps.pauses) == 3

    def test_instance_that_was_never_written(self, engine: Engine, sleeps: Sleeps) -> None:
        """It completed within its first message."""
        sleeps.acts = [lambda: engine.handle(AT_ONCE, order_id="42", id="m1")]

        assert wait(engine, "completed").message_id == "m1"

    def test_live_instance_counts_and_not_an_earlier_one(self, engine: Engine, sleeps: Sleeps, clock: Clock) -> None:
        engine.handle(AT_ONCE, order_id="42", id="m1")
        clock.advance(1)
        engine.handle(PLACE, order_id="42")
        sleeps.acts = [lambda: engine.handle(FINISH, order_id="42", id="m3")]

        assert wait(engine, "completed").message_id == "m3"

    def test_later_instance_of_the_same_key_is_another(self, engine: Engine, sleeps: Sleeps) -> None:
        def replace() -> None:
            engine.handle(FINISH, order_id="42", id="m2")
            engine.handle(PLACE, order_id="42")

        engine.handle(PLACE, order_id="42")
        sleeps.acts = [replace]

        assert wait(engine, "completed").message_id == "m2"

    def test_not_by_an_alternate_key(self, engine: Engine, sleeps: Sleeps) -> None:
        with pytest.raises(DefinitionError, match="the journal knows no tracking"):
            wait(engine, "completed", tracking="T1")


class TestTimeout:
    """An error that says how far it came."""

    def test_pauses_grow_and_the_last_look_is_at_the_end(self, engine: Engine, sleeps: Sleeps) -> None:
        with pytest.raises(WaitTimeout):
            wait(engine, is_paid, 2)
        grown = [0.005 * 1.5**number for number in range(12)]
        assert sleeps.pauses == pytest.approx([*grown, 0.5, 1.5 - sum(grown)])

        sleeps.acts = [lambda: None] * 13 + [lambda: engine.handle(PLACE, order_id="42")]
        sleeps.pauses.clear()
        assert wait(engine, lambda order: True, 2).order_id == "42"
        assert len(sleeps.pauses) == 14

    @pytest.mark.parametrize(("timeout", "seconds"), [(3, 3.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (0, 0.0)])
    def test_it_is_a_timedelta_or_seconds(self, engine: Engine, sleeps: Sleeps, timeout: Any, seconds: float) -> None:
        with pytest.raises(WaitTimeout) as caught:
            wait(engine, is_paid, timeout)
        assert caught.value.seconds == seconds
        assert sum(sleeps.pauses) == pytest.approx(seconds)

    def test_zero_is_one_look(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42")

        assert wait(engine, lambda order: True, 0).order_id == "42"
        with pytest.raises(WaitTimeout):
            wait(engine, is_paid, 0)
        assert sleeps.pauses == []

    def test_unknown(self, engine: Engine, sleeps: Sleeps) -> None:
        for until in (is_paid, "completed"):
            with pytest.raises(WaitTimeout, match="none is there") as caught:
                wait(engine, until)
            assert caught.value.args == ("order", "order_id", "42", 5.0, 0, False)

    def test_last_version_is_told(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(PLACE, order_id="42", tracking="T1")
        sleeps.acts = [lambda: engine.handle(PAY, order_id="42", total=0)]

        with pytest.raises(WaitTimeout, match="it is at version 2") as caught:
            wait(engine, is_paid, tracking="T1")
        assert caught.value.args == ("order", "tracking", "T1", 5.0, 2, False)
        with pytest.raises(WaitTimeout, match="it is at version 2"):
            wait(engine, "completed")

    def test_earlier_completion_is_told(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(AT_ONCE, order_id="42")

        with pytest.raises(WaitTimeout, match="knows of one that has completed") as caught:
            wait(engine, is_paid)
        assert caught.value.args == ("order", "order_id", "42", 5.0, 0, True)
        engine.handle(PLACE, order_id="42")
        with pytest.raises(WaitTimeout) as caught:
            wait(engine, is_paid)
        assert caught.value.args == ("order", "order_id", "42", 5.0, 1, False)

    def test_completion_of_whoever_has_that_key_is_none_of_an_alternate_key(self, engine: Engine, sleeps: Sleeps) -> None:
        engine.handle(AT_ONCE, order_id="T1")

        with pytest.raises(WaitTimeout) as caught:
            wait(engine, is_paid, tracking="T1")
        assert caught.value.args == ("order", "tracking", "T1", 5.0, 0, False)

    def test_by_the_instances_id(self, engine: Engine, sleeps: Sleeps) -> None:
        with pytest.raises(WaitTimeout) as caught:
            wait(engine, is_paid, id="i1")
        assert caught.value.args == ("order", "id", "i1", 5.0, 0, False)

    def test_it_is_caught_as_pythons_own(self, engine: Engine, sleeps: Sleeps) -> None:
        with pytest.raises(TimeoutError) as caught:
            wait(engine, is_paid)
        assert caught.value.errno is None


class TestMisuse:
    """Told before anything is waited for."""

    @pytest.mark.parametrize("until", [None, "paid", True, 3])
    def test_until_is_a_function_or_completed(self, engine: Engine, sleeps: Sleeps, until: Any) -> None:
        with pytest.raises(TypeError, match="until= takes"):
            wait(engine, until)

    @pytest.mark.parametrize("timeout", [None, "5", True])
    def test_timeout_of_another_type(self, engine: Engine, sleeps: Sleeps, timeout: Any) -> None:
        with pytest.raises(TypeError, match="timeout= takes"):
            wait(engine, is_paid, timeout)

    @pytest.mark.parametrize("timeout", [-1, -0.1, math.nan, timedelta(seconds=-1)])
    def test_timeout_that_is_no_time(self, engine: Engine, sleeps: Sleeps, timeout: Any) -> None:
        with pytest.raises(ValueError, match="no time to wait"):
            wait(engine, is_paid, timeout)

    @pytest.mark.parametrize("by", [{"total": 1}, {"order_id": "42", "tracking": "T1"}])
    def test_by_what_is_no_key(self, engine: Engine, sleeps: Sleeps, by: Mapping[str, object]) -> None:
        with pytest.raises(DefinitionError, match="look it up by order_id, or by tracking or email or id; others"):
            wait(engine, is_paid, **by)

    def test_value_that_is_no_key(self, engine: Engine, sleeps: Sleeps) -> None:
        with pytest.raises(CorrelationError, match=r"^This names no instance of Order: the key is null\.$"):
            wait(engine, is_paid, key=None)

    def test_inside_a_task(self) -> None:
        refuse_in_task("Order.wait", None)
        with pytest.raises(MisuseError, match=r"Order\.wait\(\) was called inside a task.*send\(.*schedule\("):
            refuse_in_task("Order.wait", Session("m1", {}))


def test_real_time_passes(backend: MemoryBackend) -> None:
    """With the clock that users have, it ends."""
    with pytest.raises(WaitTimeout):
        polling.finish(wait_for(backend, ORDER, "42", {}, until=is_paid, timeout=0.05))
