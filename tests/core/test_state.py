"""The state of a saga as an object: unset fields, read-only copies, and what only a step may do."""

import copy
import pickle
from functools import cached_property

import pytest
from pydantic import Field, PrivateAttr, ValidationError

from celery_sagas.core.context import MessageView, SagaView, StepContext
from celery_sagas.core.sending import Sending
from celery_sagas.core.state import State
from celery_sagas.errors import MisuseError


class Order(State, correlate_by="order_id"):
    order_id: str
    total: int
    lines: list[str] = Field(default_factory=list)
    note: str | None = None
    _seen: int = PrivateAttr(default=0)

    @cached_property
    def slow(self) -> str:
        return self.order_id * 2

    @property
    def broken(self) -> str:
        return self.nothing


class Open(State, correlate_by="order_id", extra="allow"):
    order_id: str


def sending() -> Sending:
    return Sending("order.place", "m-1", lambda signature, next_id: pytest.fail("nothing is sent"))


def view() -> SagaView:
    return SagaView("i-1", "order", "1", 0, True, None, None, MessageView("m-1", "order.place"))


@pytest.fixture
def new():
    """An instance as its first message finds it."""
    order = Order.model_construct(None, order_id="1")
    order._context = StepContext(view(), sending())
    return order


@pytest.fixture
def read_only():
    order = Order(order_id="1", total=3)
    order._context = StepContext(view(), None)
    return order


def test_field_without_default_is_unset(new):
    with pytest.raises(AttributeError, match=r"^Order\.total is not set yet: it has no default, and no step has set it$"):
        _ = new.total
    assert not hasattr(new, "total")
    assert "total" not in repr(new)
    new.total = 3
    assert new.total == 3


def test_fields_with_defaults_are_set_and_fresh(new):
    new.lines.append("a")
    assert Order.model_construct(None, order_id="2").lines == []
    assert new.note is None


def test_unset_again_by_del(new):
    new.total = 3
    del new.total
    with pytest.raises(AttributeError, match="is not set yet"):
        _ = new.total


def test_attribute_that_is_no_field(new):
    with pytest.raises(AttributeError, match="'Order' object has no attribute 'totl'"):
        _ = new.totl
    with pytest.raises(AttributeError, match="'Order' object has no attribute 'nothing'"):
        _ = new.broken
    with pytest.raises(ValueError, match='no field "totl"'):
        new.totl = 3


def test_private_attributes_and_cached_properties(new):
    new._seen += 1
    assert (new._seen, new.slow) == (1, "11")


def test_extra_fields():
    order = Open(order_id="1", colour="red")
    assert order.colour == "red"
    order.size = 3
    assert order.model_extra == {"colour": "red", "size": 3}
    with pytest.raises(AttributeError, match="'Open' object has no attribute 'weight'"):
        _ = order.weight


def test_assignment_is_not_validated_nor_copied(new):
    lines = ["a"]
    new.lines = lines
    new.total = "many"
    assert new.lines is lines
    assert new.total == "many"


def test_construction_is_validated_without_showing_values():
    with pytest.raises(ValidationError) as caught:
        Order(order_id="1", total="tok_secret")
    assert "tok_secret" not in str(caught.value)


def test_read_only_copy(read_only):
    for change in (lambda: setattr(read_only, "total", 4), lambda: delattr(read_only, "note")):
        with pytest.raises(MisuseError, match=r"this copy of order is read-only\. Change the state in a step of the saga\."):
            change()
    assert (read_only.total, read_only.note) == (3, None)


def test_read_only_copy_keeps_caches_of_its_own(read_only):
    read_only._seen = 7
    assert (read_only._seen, read_only.slow) == (7, "11")


def test_view(new, read_only):
    assert new.saga.id == read_only.saga.id == "i-1"
    with pytest.raises(AttributeError):
        new.saga = None


def test_no_view_without_an_instance():
    order = Order(order_id="1", total=3)
    with pytest.raises(MisuseError, match=r"this Order belongs to no instance\. It has \.saga inside a step"):
        _ = order.saga


def test_complete(new):
    new.complete()
    assert new._context.completed


@pytest.mark.parametrize("context", ["none", "read-only", "ended"])
def test_complete_outside_a_step(context, read_only):
    order = Order(order_id="1", total=3)
    if context == "read-only":
        order = read_only
    elif context == "ended":
        order._context = StepContext(view(), sending())
        order._context.sending.closed = True
    with pytest.raises(MisuseError, match=r"complete\(\) was called outside a step\. Call it while a step of the saga runs"):
        order.complete()


def test_upgrade_changes_nothing_by_default():
    data = {"order_id": "1"}
    assert Order.upgrade(data, 1) is data


def test_context_is_no_part_of_the_state(new):
    new.total = 3
    assert "_context" not in new.model_dump()
    assert "context" not in repr(new)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda order: order.model_copy(deep=True)])
def test_copies(clone, read_only):
    again = clone(read_only)
    assert (again.total, again.lines) == (3, [])


def test_pickle_of_a_plain_state():
    order = Order(order_id="1", total=3)
    assert pickle.loads(pickle.dumps(order)) == order
