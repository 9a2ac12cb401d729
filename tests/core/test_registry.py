"""The table of sagas and steps: order, replacement, clashes of names."""

import pytest

from celery_sagas.core.registry import Registry
from celery_sagas.core.state import State
from celery_sagas.core.step import define_step
from celery_sagas.errors import DefinitionError


@pytest.fixture
def registry():
    return Registry()


def saga(place, **keywords):
    """Define a saga at a place of its own, named by its qualified name unless told otherwise."""
    namespace = {"__module__": "shop", "__qualname__": place, "__annotations__": {"k": str}}
    return type(State)(place, (State,), namespace, correlate_by="k", **keywords).__saga__


def step(of, name, *, place=None, formerly=None):
    def function(state, k): ...

    function.__module__, function.__name__, function.__qualname__ = "shop", name, place or name
    return define_step(of, function, starts=True, policy="handle", by=None, formerly=formerly, options={})


def test_order_of_definition(registry):
    for place in ("Order", "Invoice", "Account"):
        registry.add_saga(saga(place))
    order = registry.sagas["order"]
    for name in ("place", "cancel", "archive"):
        registry.add_step(step(order, name))
    assert list(registry.sagas) == ["order", "invoice", "account"]
    assert list(registry.steps) == ["order.place", "order.cancel", "order.archive"]


def test_defined_again_at_the_same_place(registry):
    first, other, second = saga("Order"), saga("Invoice"), saga("Order")
    registry.add_saga(first)
    registry.add_saga(other)
    registry.add_saga(second)
    assert list(registry.sagas.values()) == [second, other]
    assert registry.sagas["order"] is second


def test_defined_again_under_another_name(registry):
    registry.add_saga(saga("Order"))
    registry.add_saga(saga("Order", name="purchase"))
    assert list(registry.sagas) == ["purchase"]
    registry.add_saga(saga("Sale", name="order"))


def test_renamed_with_its_former_name(registry):
    registry.add_saga(saga("Order"))
    registry.add_saga(saga("Order", name="purchase", formerly="order"))
    with pytest.raises(DefinitionError, match=r"'order' is a name of the saga shop\.Order"):
        registry.add_saga(saga("Sale", name="order"))


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({"name": "a"}, {"name": "a"}, "a"),
        ({"name": "a", "formerly": "b"}, {"name": "b"}, "b"),
        ({"name": "a"}, {"name": "b", "formerly": "a"}, "a"),
        ({"name": "a", "formerly": "c"}, {"name": "b", "formerly": ("d", "c")}, "c"),
    ],
)
def test_clash_of_sagas(registry, first, second, shared):
    registry.add_saga(saga("Order", **first))
    registry.add_saga(saga("Bystander"))
    with pytest.raises(DefinitionError) as caught:
        registry.add_saga(saga("Sale", **second))
    assert str(caught.value) == f"shop.Sale: {shared!r} is a name of the saga shop.Order. Set name=."
    assert list(registry.sagas) == ["a", "bystander"]


def test_a_clash_changes_nothing(registry):
    """Not even what the refused definition would have replaced."""
    first = saga("Order")
    registry.add_saga(first)
    registry.add_saga(saga("Invoice"))
    with pytest.raises(DefinitionError):
        registry.add_saga(saga("Order", name="invoice"))
    assert registry.sagas["order"] is first


def test_step_defined_again(registry):
    order = saga("Order")
    registry.add_step(step(order, "place"))
    registry.add_step(step(order, "cancel"))
    again = step(order, "place")
    registry.add_step(again)
    assert list(registry.steps) == ["order.place", "order.cancel"]
    assert registry.steps["order.place"] is again


def test_step_of_a_saga_that_was_defined_again(registry):
    """A notebook: the cell with the class runs again, then the cell with one of its steps."""
    first = saga("Order")
    registry.add_saga(first)
    registry.add_step(step(first, "place"))
    registry.add_step(step(first, "cancel"))
    second = saga("Order")
    registry.add_saga(second)
    assert [each.saga for each in registry.steps_of(second)] == [first, first]
    registry.add_step(step(second, "place"))
    assert [each.saga for each in registry.steps_of(second)] == [second, first]


def test_step_of_a_saga_that_was_renamed(registry):
    first = saga("Order")
    registry.add_step(step(first, "place"))
    registry.add_step(step(saga("Order", name="purchase"), "place"))
    assert list(registry.steps) == ["purchase.place"]


def test_one_function_for_two_sagas(registry):
    order, invoice = saga("Order"), saga("Invoice")
    registry.add_step(step(order, "cancel"))
    registry.add_step(step(invoice, "cancel"))
    assert list(registry.steps) == ["order.cancel", "invoice.cancel"]
    assert [each.name for each in registry.steps_of(invoice)] == ["invoice.cancel"]


@pytest.mark.parametrize(
    ("name", "formerly", "shared"),
    [
        ("place", None, "order.place"),
        ("other", "order.place", "order.place"),
        ("other", "old", "old"),
        ("old", None, "order.old"),
    ],
)
def test_clash_of_steps(registry, name, formerly, shared):
    order = saga("Order")
    registry.add_step(step(order, "place", formerly=("old", "order.old")))
    with pytest.raises(DefinitionError) as caught:
        registry.add_step(step(order, name, place=f"elsewhere.{name}", formerly=formerly))
    assert str(caught.value) == f"shop.elsewhere.{name}: {shared!r} is a name of the step shop.place. Rename one of them."
    assert list(registry.steps) == ["order.place"]


def test_two_steps_of_one_module_with_one_name(registry):
    """``def place`` twice in a module is Python's own replacement."""
    order = saga("Order")
    registry.add_step(step(order, "place"))
    again = step(order, "place", formerly="begin")
    registry.add_step(again)
    assert list(registry.steps.values()) == [again]
