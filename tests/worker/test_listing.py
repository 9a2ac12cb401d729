"""``Saga.all``: the live instances, or those with a value of a field in ``search_by``."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal
from unittest.mock import Mock

import pytest
from celery import Celery
from pydantic import Field

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import (
    ConfigurationError,
    CorrelationError,
    DefinitionError,
    InvalidState,
    MisuseError,
    StoreUnavailable,
    UnreadableState,
)
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Change, Record
from celery_sagas.testing.samples import effects
from celery_sagas.worker.runtime import Runtime, runtime_of
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

Status = Literal["new", "paid", "shipped"]


def define_order() -> Any:
    """Define a saga that is listed by two fields."""

    class Order(Saga, correlate_by="order_id", search_by=("status", "customer")):
        order_id: str
        status: Status = "new"
        customer: int | None = None

    @Order.starts
    def place(order: Order, order_id: str, customer: int | None = None) -> None:
        order.customer = customer

    @Order.handles
    def pay(order: Order, order_id: str) -> None:
        order.status = "paid"

    @Order.handles
    def cancel_order(order: Order, order_id: str) -> None:
        order.complete()

    return Order, place, pay, cancel_order


def keys(listing: Any) -> list[str]:
    """Return the keys of what is listed."""
    return [order.order_id for order in listing]


class TestEveryStore:
    """A listing reads what the commits of steps have written."""

    def test_live_instances_are_listed_and_counted(self, stored_app: Celery) -> None:
        Order, place, _, cancel_order = define_order()
        for number in range(130):
            place(str(number))
        cancel_order("7")
        expected = [str(number) for number in range(130) if number != 7]

        assert keys(Order.all()) == expected[::-1]
        assert keys(Order.all(oldest_first=True)) == expected
        assert Order.all().count() == 129
        assert [Order.all().count(at_most=most) for most in (0, 1, 129, 500, 10**20)] == [0, 1, 129, 129, 129]

    def test_instances_with_a_value(self, stored_app: Celery) -> None:
        Order, place, pay, cancel_order = define_order()
        for number in range(4):
            place(str(number), customer=number % 2)
        place("4")
        pay("1")
        pay("2")
        assert keys(Order.all(status="paid")) == ["2", "1"]
        assert keys(Order.all(status="new")) == ["4", "3", "0"]
        assert keys(Order.all(customer=1)) == keys(Order.all(customer="1")) == ["3", "1"]
        assert Order.all(status="shipped").count() == 0
        cancel_order("2")
        assert keys(Order.all(status="paid")) == ["1"]
        assert Order.all(status="new").count() == 3
        assert Order.all(status="new").count(at_most=2) == 2

    def test_instances_under_former_names(self, stored_app: Celery) -> None:
        _, place, pay, _ = define_order()
        place("1")
        pay("1")
        registry.sagas.clear()
        registry.steps.clear()

        class Purchase(Saga, correlate_by="order_id", search_by="status", formerly="order"):
            order_id: str
            status: Status = "paid"

        @Purchase.starts
        def begin(purchase: Purchase, order_id: str) -> None: ...

        begin("2")
        assert keys(Purchase.all()) == keys(Purchase.all(status="paid")) == ["2", "1"]
        assert Purchase.all().count() == Purchase.all().count(at_most=5) == Purchase.all(status="paid").count() == 2
        assert Purchase.all().count(at_most=1) == 1

    @pytest.mark.parametrize("by", [{}, {"status": "paid"}, {"oldest_first": True}])
    def test_instances_that_are_renamed_meanwhile_come_once(self, stored_app: Celery, by: dict[str, Any]) -> None:
        _, place, pay, _ = define_order()
        for number in range(120):
            place(str(number))
            pay(str(number))
        registry.sagas.clear()
        registry.steps.clear()

        class Purchase(Saga, correlate_by="order_id", search_by="status", formerly="order"):
            order_id: str
            status: Status = "paid"

        listing = iter(Purchase.all(**by))
        first = next(listing).order_id
        backend_of(stored_app).sagas.rename("purchase", "order", 500)
        assert sorted([first, *keys(listing)], key=int) == [str(number) for number in range(120)]

    def test_instance_that_is_renamed_before_its_state_is_read(self, stored_app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        _, place, *_ = define_order()
        place("1")
        registry.sagas.clear()
        registry.steps.clear()

        class Purchase(Saga, correlate_by="order_id", formerly="order"):
            order_id: str

        backend = backend_of(stored_app)
        read = backend.instances.read

        def renamed_first(name: str, ids: list[str]) -> Any:
            backend.sagas.rename("purchase", "order", 500)
            return read(name, ids)

        monkeypatch.setattr(backend.instances, "read", renamed_first)
        assert keys(Purchase.all()) == ["1"]


class TestCopies:
    """What is listed is as ``find`` returns it."""

    def test_copies_are_fresh_and_read_only(self, app: Celery) -> None:
        Order, place, *_ = define_order()
        place("1")
        listing = Order.all()
        (one,), (other,) = listing, listing
        assert one is not other
        assert one.saga.version == 1
        with pytest.raises(MisuseError, match="read-only"):
            one.status = "paid"

    def test_instance_that_cannot_be_read_raises_and_the_others_follow(self, app: Celery) -> None:
        Order, place, *_ = define_order()
        for key in ("1", "2", "3"):
            place(key)
        spoil(backend_of(app), "2")
        listing = iter(Order.all())
        assert next(listing).order_id == "3"
        with pytest.raises(UnreadableState, match="order '2'"):
            next(listing)
        assert keys(listing) == ["1"]

    def test_other_error_ends_the_iteration(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        Order, place, *_ = define_order()
        place("1")
        instances = backend_of(app).instances
        monkeypatch.setattr(instances, "read", Mock(side_effect=[StoreUnavailable("memory://", "refused"), []]))
        listing = iter(Order.all())
        with pytest.raises(StoreUnavailable, match="refused"):
            next(listing)
        assert list(listing) == []

    def test_damaged_record_raises_and_the_others_follow(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store refuses to read it with others."""
        Order, place, *_ = define_order()
        for key in ("1", "2", "3"):
            place(key)
        refuse_to_read(backend_of(app), "2", monkeypatch)
        listing = iter(Order.all())
        assert next(listing).order_id == "3"
        with pytest.raises(UnreadableState, match="it is damaged"):
            next(listing)
        assert keys(listing) == ["1"]


def refuse_to_read(backend: Backend, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an order's record be damaged."""
    (id,) = (each.id for each in backend.instances.page("order", 9).instances if each.key == key)
    read = backend.instances.read

    def fail(name: str, ids: Sequence[str]) -> list[Record]:
        if id in ids:
            raise UnreadableState("order", "", "it is damaged")
        return read(name, ids)

    monkeypatch.setattr(backend.instances, "read", fail)


def spoil(backend: Backend, key: str) -> None:
    """Have an order's state be no JSON."""
    (glance,) = (each for each in backend.instances.page("order", 9).instances if each.key == key)
    (record,) = backend.instances.read("order", [glance.id])
    backend.sagas.update(record, Change(("order",), 1, "{", record.pending), effects(record))


class TestTags:
    """Which values are indexed, and when."""

    def test_null_and_empty_text_are_not_indexed(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id", search_by=("note", "by")):
            order_id: str
            note: str = ""
            by: str | None = None

        @Order.starts
        def place(order: Order, order_id: str, note: str) -> None:
            order.note = note

        place("1", "")
        place("2", "gift")
        assert keys(Order.all(note="gift")) == ["2"]
        with pytest.raises(CorrelationError, match="note: '' is no value of it: it is empty"):
            Order.all(note="")
        with pytest.raises(CorrelationError, match="by: None is no value of it: it is null"):
            Order.all(by=None)

    def test_text_that_no_store_can_index_is_refused(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id", search_by="note"):
            order_id: str
            note: str = ""

        @Order.starts
        def place(order: Order, order_id: str, note: str) -> None:
            order.note = note

        with pytest.raises(InvalidState, match="has 256 characters, and a key has at most 255"):
            place("1", "x" * 256)
        assert Order.find("1") is None

    def test_enum(self, app: Celery) -> None:
        class Colour(Enum):
            RED = "r"
            NONE = ""

        class Order(Saga, correlate_by="order_id", search_by="colour"):
            order_id: str
            colour: Colour = Colour.RED

        @Order.starts
        def place(order: Order, order_id: str, colour: Colour = Colour.RED) -> None:
            order.colour = colour

        place("1")
        place("2", Colour.NONE)
        assert keys(Order.all(colour=Colour.RED)) == keys(Order.all(colour="r")) == ["1"]
        assert keys(Order.all()) == ["2", "1"]
        with pytest.raises(CorrelationError, match="colour: 'green' is no value of it: it is no Colour"):
            Order.all(colour="green")

    def test_field_called_cls(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id", search_by="cls"):
            order_id: str
            cls: str = "first"

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place("1")
        assert keys(Order.all(cls="first")) == ["1"]

    def test_flag(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id", search_by=("is_gift", "is_late")):
            order_id: str
            is_gift: bool = False
            is_late: bool | None = None

        @Order.starts
        def place(order: Order, order_id: str, is_gift: bool) -> None:
            order.is_gift = is_gift

        place("1", True)
        place("2", False)
        assert keys(Order.all(is_gift=True)) == keys(Order.all(is_gift="true")) == keys(Order.all(is_gift=1)) == ["1"]
        assert keys(Order.all(is_gift=False)) == ["2"]
        assert Order.all(is_late=False).count() == 0
        with pytest.raises(CorrelationError, match="is_gift: 'yes' is no value of it: it is neither true nor false"):
            Order.all(is_gift="yes")

    def test_message_that_is_deferred_leaves_the_tags(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id", status_by="status", search_by="status"):
            order_id: str
            status: Status = "new"

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        @Order.handles(when="paid", to="shipped", if_not="defer")
        def ship(order: Order, order_id: str) -> None: ...

        @Order.handles(when="new", to="paid")
        def pay(order: Order, order_id: str) -> None: ...

        place.delay("1")
        ship.delay(order_id="1")
        worker.run()
        assert keys(Order.all(status="new")) == ["1"]
        pay.delay(order_id="1")
        worker.run()
        assert keys(Order.all(status="shipped")) == ["1"]
        assert Order.all(status="new").count() == Order.all(status="paid").count() == 0

    def test_new_field_is_indexed_at_the_next_commit(self, app: Celery) -> None:
        """And one that is gone is no longer."""
        _, place, pay, _ = define_order()
        place("1", customer=3)
        pay("1")
        registry.sagas.clear()
        registry.steps.clear()

        class Order(Saga, correlate_by="order_id", search_by=("status", "name")):
            order_id: str
            status: Status = "new"
            customer: int | None = None
            name: str = "ann"

        @Order.handles
        def touch(order: Order, order_id: str) -> None: ...

        assert keys(Order.all(name="ann")) == []
        touch("1")
        assert keys(Order.all(name="ann")) == keys(Order.all(status="paid")) == ["1"]
        assert backend_of(app).instances.count("order", 9, ("customer", "3")) == 0


class TestErrors:
    """Each says what to do."""

    @pytest.mark.parametrize(
        ("by", "error", "text"),
        [
            ({"order_id": "1"}, DefinitionError, "it cannot be listed by order_id. It is listed by status, customer; search_by="),
            ({"status": "new", "customer": 1}, DefinitionError, "it cannot be listed by status and customer"),
            ({"status": "old"}, CorrelationError, r"^This names no instance of \S*Order: status: 'old' is no value of it"),
            ({"customer": "x"}, CorrelationError, "customer: 'x' is no value of it"),
            ({"status": "new", "oldest_first": True}, TypeError, "oldest_first= is for all instances"),
        ],
    )
    def test_wrong_question(self, app: Celery, by: dict[str, Any], error: type[Exception], text: str) -> None:
        Order, *_ = define_order()
        with pytest.raises(error, match=text):
            Order.all(**by)

    def test_saga_without_search_by(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        with pytest.raises(DefinitionError, match=r"listed by status\. It is listed by no field; search_by= declares more"):
            Order.all(status="new")

    def test_abstract_saga(self, app: Celery) -> None:
        with pytest.raises(DefinitionError, match="abstract"):
            Saga.all()

    @pytest.mark.parametrize(
        ("declare", "text"),
        [
            (lambda: _with(float, "total"), "declared as float, .*Declare total as str, int, UUID, bool, or an enum"),
            (lambda: _with(Annotated[str, Field(repr=False)], "total"), "search_by names total, which is hidden"),
        ],
    )
    def test_field_that_cannot_be_listed_by(self, app: Celery, declare: Callable[[], Any], text: str) -> None:
        declare()
        with pytest.raises(DefinitionError, match=text):
            runtime_of(app).prepare(processes=1)

    def test_field_in_also_by(self, definitions: None) -> None:
        with pytest.raises(DefinitionError, match="total stands in also_by and search_by"):
            _with(str, "total", also_by="total")

    def test_field_called_as_the_argument_for_the_order(self, definitions: None) -> None:
        with pytest.raises(DefinitionError, match=r"search_by names oldest_first, which is an argument of all\(\)"):
            _with(str, "oldest_first")

    def test_too_many_fields(self, definitions: None) -> None:
        names = [f"field_{number}" for number in range(9)]
        with pytest.raises(DefinitionError, match="search_by has 9 fields, and 8 are allowed"):
            _with(str, *names)

    def test_fields_of_an_abstract_base(self, app: Celery) -> None:
        class Listed(Saga, search_by="status"):
            status: str = "new"

        class Order(Listed, correlate_by="order_id", search_by="city"):
            order_id: str
            city: str = "Oslo"

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place("1")
        assert keys(Order.all(status="new")) == keys(Order.all(city="Oslo")) == ["1"]

    @pytest.mark.parametrize(("keyword", "value"), [("search_by", "status"), ("max_idle", 60)])
    def test_backend_that_lists_nothing(self, app: Celery, keyword: str, value: Any) -> None:
        class Order(Saga, correlate_by="order_id", **{keyword: value}):
            order_id: str
            status: str = "new"

        backend = WithoutInstances("memory://", prefix="")
        runtime = Runtime(app, backend)
        with pytest.raises(ConfigurationError, match=rf"Order, which has {keyword}=, cannot be listed in memory://"):
            runtime.prepare(processes=1)
        with pytest.raises(ConfigurationError, match=r"a backend without Instances\. Keep them in another backend"):
            backend.instances.count("order", 1)


class WithoutInstances(MemoryBackend):
    """A backend that does not set the port."""

    def __init__(self, url: str, *, prefix: str) -> None:
        super().__init__(url, prefix=prefix)
        del self.instances


def _with(annotation: Any, *names: str, also_by: str | None = None) -> Any:
    """Define a saga that is listed by fields of a type."""
    namespace = {"__module__": __name__, "__annotations__": {"key": str, **dict.fromkeys(names, annotation)}}
    return type(Saga)("Order", (Saga,), namespace, correlate_by="key", also_by=also_by, search_by=names)
