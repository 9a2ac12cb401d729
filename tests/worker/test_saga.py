"""``Saga``: its decorators, and the questions from outside a step."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import CorrelationError, DefinitionError, MisuseError
from celery_sagas.testing.samples import start
from tests.apps import Worker, backend_of, interposed


class TestDecorators:
    """Bare or called."""

    def test_bare_and_called(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def one(order: Order, order_id: str) -> None: ...

        @Order.starts()
        def two(order: Order, order_id: str) -> None: ...

        @Order.handles
        def three(order: Order, order_id: str) -> None: ...

        @Order.handles()
        def four(order: Order, order_id: str) -> None: ...

        steps = {step.name: step.starts for step in registry.steps.values() if not step.is_internal}
        assert steps == {"order.one": True, "order.two": True, "order.three": False, "order.four": False}

    def test_abstract_saga_has_no_steps(self, definitions: None) -> None:
        class Base(Saga):
            order_id: str

        with pytest.raises(DefinitionError, match="abstract"):

            @Base.starts
            def place(base: Base, order_id: str) -> None: ...

    def test_if_missing_function_is_not_every_sagas(self, definitions: None) -> None:
        with pytest.raises(DefinitionError, match="Saga: an if_missing function is one saga's"):
            Saga.if_missing(lambda missing: None)

    def test_if_missing_returns_the_function(self, definitions: None) -> None:
        class Base(Saga):
            order_id: str

        def ask(missing: Any) -> None: ...

        assert Base.if_missing(ask) is ask

    def test_state_comes_first_then_the_message(self, app: Celery, worker: Worker) -> None:
        seen: list[Any] = []

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(bind=True)
        def place(self: Any, order: Order, /, order_id: str, *, note: str = "none") -> None:
            seen.append((self.name, self.request.id, type(order), order_id, note))

        sent = place.delay("42", note="x")
        worker.run()

        assert seen == [("order.place", sent.id, Order, "42", "x")]

    def test_fields_and_methods_of_an_abstract_base(self, app: Celery, worker: Worker) -> None:
        class Counted(Saga):
            count: int = 0

            def bump(self) -> None:
                self.count += 1

        class Order(Counted, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.bump()

        place.delay("42")
        worker.run()
        order = Order.find("42")
        assert order is not None
        assert order.count == 1

    def test_renamed_saga_finds_what_was_stored_under_its_former_name(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id", also_by="tracking"):
            order_id: str
            tracking: str | None = None

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            order.tracking = f"T{order_id}"

        place("42")
        registry.sagas.clear()
        registry.steps.clear()

        class Purchase(Saga, correlate_by="order_id", also_by="tracking", formerly="order"):
            order_id: str
            tracking: str | None = None
            seen: int = 0

        @Purchase.starts(formerly="order.place")
        def begin(purchase: Purchase, order_id: str) -> None:
            purchase.seen += 1

        begin("42")
        purchase = Purchase.find(tracking="T42")
        assert purchase is not None
        assert (purchase.seen, purchase.saga.version) == (1, 2)

    def test_step_whose_instance_is_renamed_meanwhile_runs_again(self, app: Celery) -> None:
        class Purchase(Saga, correlate_by="order_id", also_by="tracking", formerly="order", schema_version=3):
            order_id: str
            tracking: str | None = None
            seen: int = 0

        runs: list[str] = []

        @Purchase.handles
        def look(purchase: Purchase, order_id: str) -> None:
            purchase.tracking, purchase.seen = "T2", purchase.seen + 1
            runs.append(purchase.saga.key)

        start(backend_of(app), names=("order",), data='{"order_id": "42"}')
        sagas = interposed(app)
        sagas.once_before("update", lambda: sagas.inner.rename("purchase", "order", 9) and None)
        look("42")
        purchase = Purchase.find(tracking="T2")
        assert purchase is not None
        assert (purchase.seen, purchase.saga.version, runs) == (1, 2, ["42", "42"])
        assert sagas.count(("order", "purchase")) == {"order": 0, "purchase": 1}


class TestFindAndOutcome:
    """A fresh read-only copy, or the last journal entry."""

    @pytest.fixture
    def order(self, app: Celery) -> Any:
        class Order(Saga, correlate_by="order_id", also_by="tracking"):
            order_id: str
            tracking: str | None = None
            items: list[str] = []

        @Order.starts
        def place(order: Order, order_id: str, tracking: str | None = None) -> None:
            order.tracking = tracking

        @Order.handles
        def finish(order: Order, order_id: str) -> None:
            order.complete()

        Order.place, Order.finish = place, finish  # type: ignore[attr-defined]
        return Order

    def test_find(self, order: Any) -> None:
        order.place("42", "T1")

        id = order.find("42").saga.id
        for found in (order.find("42"), order.find(order_id="42"), order.find(tracking="T1"), order.find(id=id)):
            assert isinstance(found, order)
            assert (found.order_id, found.tracking) == ("42", "T1")
        assert order.find("43") is None

    def test_find_by_what_is_no_key(self, order: Any) -> None:
        """It is an error on the memory store, too."""
        for by in ({"items": "x"}, {"nothing": "x"}):
            with pytest.raises(DefinitionError, match="look it up by order_id, or by tracking"):
                order.find(**by)

    def test_find_by_null(self, order: Any) -> None:
        for look in (lambda: order.find(), lambda: order.find(None), lambda: order.find(tracking=None)):
            with pytest.raises(CorrelationError, match="null"):
                look()

    def test_copies_are_fresh_and_read_only(self, order: Any) -> None:
        order.place("42")
        first, second = order.find("42"), order.find("42")
        first.items.append("x")

        assert second.items == []
        with pytest.raises(MisuseError):
            first.tracking = "T2"
        with pytest.raises(MisuseError):
            first.complete()

    def test_outcome(self, order: Any) -> None:
        assert order.outcome("42") is None
        order.place("42")
        assert order.outcome("42") is None
        order.finish("42")

        outcome = order.outcome("42")
        assert (outcome.kind, outcome.step, outcome.version, outcome.key) == ("completed", "order.finish", 2, "42")
        assert order.outcome(order_id="42") == outcome
        assert str(outcome.kind) == "completed"
        assert outcome.at.utcoffset() == timedelta(0)

    def test_outcome_by_an_alternate_key(self, order: Any) -> None:
        with pytest.raises(DefinitionError):
            order.outcome(tracking="T1")

    def test_abstract_saga_has_no_instances(self, definitions: None) -> None:
        for look in (Saga.find, Saga.outcome):
            with pytest.raises(DefinitionError, match="abstract"):
                look("42")

    def test_inside_a_step_sees_what_is_committed(self, order: Any) -> None:
        seen: list[Any] = []

        @order.starts
        def look(state: Any, order_id: str) -> None:
            state.tracking = "T9"
            seen.append(order.find(order_id))

        look("42")
        look("42")

        assert seen[0] is None
        assert seen[1].saga.version == 1
