"""Stored names."""

import pytest

from celery_sagas.core.names import MAX_NAME_CHARACTERS, as_names, checked_name, checked_names, snake_case
from celery_sagas.errors import DefinitionError


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("Order", "order"),
        ("OrderLine", "order_line"),
        ("HTTPOrder", "http_order"),
        ("OrderHTTP", "order_http"),
        ("Order2Ship", "order2_ship"),
        ("_Order", "_order"),
        ("order", "order"),
        ("Order_Line", "order_line"),
    ],
)
def test_snake_case(name, snake):
    assert snake_case(name) == snake


@pytest.mark.parametrize("name", ["order", "Order", "_", "a.b-c_9", "a" * MAX_NAME_CHARACTERS])
def test_good_name(name):
    assert checked_name(name, of="Order") == name


@pytest.mark.parametrize(
    "name",
    ["", "9a", ".a", "-a", "a b", "größe", "a\n", "a:b", "a{b}", "<lambda>", "a" * (MAX_NAME_CHARACTERS + 1), None, 3, b"a"],
)
def test_bad_name(name):
    with pytest.raises(DefinitionError, match=r"Order: .* is no stored name\. Use ASCII letters"):
        checked_name(name, of="Order")


@pytest.mark.parametrize(("value", "names"), [(None, ()), ("a", ("a",)), (("a", "b"), ("a", "b")), (["a"], ("a",)), ((), ())])
def test_names_given_to_a_keyword(value, names):
    assert as_names(value, of="Order", keyword="also_by") == names


@pytest.mark.parametrize("value", [3, {"a", "b"}, {"a": 1}, ("a", 3), [None], b"a", lambda: "a"])
def test_no_names(value):
    """A set has no order, and the order of a composite key is its text."""
    with pytest.raises(DefinitionError, match=r"Order: also_by=.* is neither a name nor a tuple of names"):
        as_names(value, of="Order", keyword="also_by")


def test_todays_name_stands_before_the_former_ones():
    assert checked_names("order", ("purchase", "sale"), of="Order") == ("order", "purchase", "sale")
    assert checked_names("order", None, of="Order") == ("order",)


@pytest.mark.parametrize("formerly", ["order", ("a", "a"), ("a", "order")])
def test_no_name_twice(formerly):
    with pytest.raises(DefinitionError, match="a name stands twice"):
        checked_names("order", formerly, of="Order")


@pytest.mark.parametrize("formerly", ["", "a b", ("a", ""), 3])
def test_bad_former_name(formerly):
    with pytest.raises(DefinitionError):
        checked_names("order", formerly, of="Order")
