"""Questions from outside a step."""

from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

import pytest

from celery_sagas.core.state import State
from celery_sagas.engine.query import copy_of, outcome_of
from celery_sagas.errors import CorrelationError, DefinitionError, MisuseError
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Engine, Order, handler, starter


class Item(State, correlate_by=("shop", "number"), also_by="code"):
    """An item with a composite key."""

    shop: str
    number: int
    code: UUID | None = None
    tags: list[str] = []


class Mark(State, correlate_by="id"):
    """A saga whose key is named as the instance's id is."""

    id: int


def mark(mark: Mark, mark_id: int) -> None:
    """Start."""


def place(order: Order, order_id: str, tracking: str | None = None) -> None:
    """Start."""
    order.tracking = tracking


def finish(order: Order, order_id: str) -> None:
    """End."""
    order.complete()


def store(item: Item, shop: str, number: int, code: UUID) -> None:
    """Start."""
    item.code = code
    item.tags.append("new")


CODE = UUID("12345678-1234-5678-1234-567812345678")
PLACE, FINISH, STORE = starter(place), handler(finish), starter(store, saga=Item)
ORDER, ITEM = Order.__saga__, Item.__saga__
assert ORDER is not None
assert ITEM is not None


def find(engine: Engine, key: object = None, **by: object) -> Order | None:
    """Look an order up."""
    found: Order | None = copy_of(engine.backend, ORDER, key, by)
    return found


def find_item(engine: Engine, key: object = None, **by: object) -> Item | None:
    """Look an item up."""
    found: Item | None = copy_of(engine.backend, ITEM, key, by)
    return found


class TestFind:
    """A fresh, read-only copy, or nothing."""

    def test_by_key(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")

        for order in (find(engine, "42"), find(engine, order_id="42")):
            assert order is not None
            assert (order.order_id, order.saga.version, order.saga.is_new) == ("42", 1, False)
            assert (order.saga.message.id, order.saga.message.step, order.saga.message.late) == ("", "", False)

    def test_by_an_alternate_key(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42", tracking="T1")

        order = find(engine, tracking="T1")
        assert order is not None
        assert order.order_id == "42"

    def test_missing_is_none(self, engine: Engine) -> None:
        assert find(engine, "42") is None
        assert find(engine, tracking="T1") is None

    def test_by_a_composite_key(self, engine: Engine) -> None:
        engine.handle(STORE, shop="a", number=1, code=str(CODE))

        lookups = [find_item(engine, ("a", 1)), find_item(engine, number="1", shop="a"), find_item(engine, code=str(CODE))]
        assert [item and item.code for item in lookups] == [CODE] * 3
        assert find_item(engine, ("a", 2)) is None

    @pytest.mark.parametrize(
        ("key", "by"),
        [
            (None, {"total": 1}),  # also on a store that could do it
            (None, {"nothing": 1}),
            (None, {"order_id": "42", "tracking": "T1"}),
            ("42", {"tracking": "T1"}),
            ("42", {"id": "42"}),
            (None, {"id": "42", "tracking": "T1"}),
            (None, {"$id": "42"}),
        ],
    )
    def test_by_anything_else(self, engine: Engine, key: object, by: Mapping[str, object]) -> None:
        with pytest.raises(DefinitionError, match="look it up by order_id, or by tracking or email or id; others"):
            find(engine, key, **by)

    @pytest.mark.parametrize(("key", "by"), [("a", {}), (("a",), {}), (("a", 1, 2), {}), (None, {"shop": "a"})])
    def test_by_a_part_of_a_composite_key(self, engine: Engine, key: object, by: Mapping[str, object]) -> None:
        with pytest.raises(DefinitionError, match="look it up by shop and number, or by code"):
            find_item(engine, key, **by)

    @pytest.mark.parametrize("value", [None, "", 1.5, True, b"42", "x" * 256])
    def test_value_that_is_no_key(self, engine: Engine, value: object) -> None:
        """There is never a silent miss."""
        for lookup in ({"key": value}, {"tracking": value}):
            with pytest.raises(CorrelationError):
                find(engine, **lookup)

    def test_by_the_instances_id(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.handle(STORE, shop="a", number=1, code=str(CODE))
        order = find(engine, "42")
        assert order is not None

        again = find(engine, id=order.saga.id)
        assert again is not None
        assert (again.order_id, again.saga.id) == ("42", order.saga.id)
        assert find(engine, id="no-such-id") is None
        assert find_item(engine, id=order.saga.id) is None

    def test_id_is_that_of_one_instance(self, engine: Engine) -> None:
        """A later instance with the same key is another."""
        engine.handle(PLACE, order_id="42")
        first = find(engine, "42")
        assert first is not None
        engine.handle(FINISH, order_id="42")
        engine.handle(PLACE, order_id="42")

        assert find(engine, id=first.saga.id) is None

    @pytest.mark.parametrize("value", [None, "", 42, UUID(int=1), b"x", "x" * 256])
    def test_what_is_no_id(self, engine: Engine, value: object) -> None:
        with pytest.raises(CorrelationError, match=r"^This names no instance of Order: id: .*\w\.$"):
            find(engine, id=value)

    def test_field_named_id_goes_first(self, engine: Engine) -> None:
        engine.handle(starter(mark, saga=Mark), mark_id=7)
        definition = Mark.__saga__
        assert definition is not None

        assert copy_of(engine.backend, definition, None, {"id": "7"}).id == 7
        with pytest.raises(DefinitionError, match=r"look it up by id; others"):
            copy_of(engine.backend, definition, None, {"nothing": 1})

    def test_value_is_converted(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")

        assert find(engine, 42) is not None

    def test_copies_are_fresh(self, engine: Engine) -> None:
        engine.handle(STORE, shop="a", number=1, code=str(CODE))
        first, second = find_item(engine, ("a", 1)), find_item(engine, ("a", 1))
        assert first is not None
        assert second is not None

        first.tags.append("mine")

        assert second.tags == ["new"]

    def test_copies_are_read_only(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        order = find(engine, "42")
        assert order is not None

        with pytest.raises(MisuseError, match="read-only"):
            order.total = 5
        with pytest.raises(MisuseError, match="outside a step"):
            order.complete()
        assert engine.data()["total"] == 0


class TestOutcome:
    """The last journal entry of a finished instance."""

    def test_of_the_newest(self, engine: Engine, clock: Clock) -> None:
        engine.handle(PLACE, order_id="42")
        assert outcome_of(engine.backend, ORDER, "42", {}) is None

        engine.handle(FINISH, order_id="42", id="m1")
        clock.advance(1)
        engine.handle(PLACE, order_id="42")
        engine.handle(FINISH, order_id="42", id="m2")

        for key, by in (("42", {}), (None, {"order_id": "42"})):
            outcome = outcome_of(engine.backend, ORDER, key, by)
            assert outcome is not None
            assert (outcome.kind, outcome.message_id, outcome.version) == ("completed", "m2", 2)
            assert outcome.at == datetime.fromtimestamp(clock() / 1000, UTC)
            assert (outcome.saga, outcome.key, outcome.is_new, outcome.reason) == ("order", "42", False, "")

    def test_of_one_that_completed_at_once(self, engine: Engine) -> None:
        def place(order: Order, order_id: str) -> None:
            order.complete()

        engine.handle(starter(place), order_id="42")

        outcome = outcome_of(engine.backend, ORDER, "42", {})
        assert outcome is not None
        assert (outcome.version, outcome.is_new) == (1, True)

    def test_is_forgotten_with_the_journal(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        engine.handle(FINISH, order_id="42")
        engine.backend.journal.purge(-1, 100)

        assert outcome_of(engine.backend, ORDER, "42", {}) is None

    def test_not_by_an_alternate_key(self, engine: Engine) -> None:
        with pytest.raises(DefinitionError, match=r"the journal knows no tracking.* found by order_id alone"):
            outcome_of(engine.backend, ORDER, None, {"tracking": "T1"})

    def test_not_by_the_id(self, engine: Engine) -> None:
        with pytest.raises(DefinitionError, match=r"the journal knows no id.* found by order_id alone"):
            outcome_of(engine.backend, ORDER, None, {"id": "x"})

    def test_not_by_two_at_once(self, engine: Engine) -> None:
        with pytest.raises(DefinitionError, match="it cannot be looked up by '42', tracking"):
            outcome_of(engine.backend, ORDER, "42", {"tracking": "T1"})

    def test_null(self, engine: Engine) -> None:
        with pytest.raises(CorrelationError):
            outcome_of(engine.backend, ORDER, None, {})
