"""What is suspect in the statuses of a saga."""

from enum import StrEnum
from typing import Any, Literal

import pytest

from celery_sagas.core.graph.checks import warnings_of
from celery_sagas.core.state import State
from tests.core.graph.sagas import Order, graph, starter, step


def place(order: Order, order_id: str) -> None: ...


def place_paid(order: Order, order_id: str) -> None:
    order.status = "paid"


def place_and_end(order: Any, order_id: str) -> None:
    order.complete()


def place_somehow(order: Any, order_id: str, status: Any) -> None:
    order.status = status


def pay(order: Order) -> None: ...


def ship(order: Order) -> None: ...


def cancel(order: Order) -> None: ...


def cancel_in_code(order: Order) -> None:
    order.status = "cancelled"


def end(order: Any) -> None:
    order.complete()


def somehow(order: Any, status: Any) -> None:
    order.status = status


def unread() -> Any:
    """Return a handler without source."""
    space: dict[str, Any] = {"__name__": "typed"}
    exec("def unread(order): ...", space)
    return space["unread"]


WHOLE = [
    starter(place),
    step(pay, when="placed", to="paid"),
    step(ship, when="paid", to="shipped"),
    step(cancel, when=["placed", "paid"], to="cancelled"),
    step(end, when=["shipped", "cancelled"]),
]


def test_a_saga_without_a_flaw() -> None:
    assert warnings_of(graph(*WHOLE)) == []


def test_a_status_that_nothing_leads_to() -> None:
    steps = [each for each in WHOLE if each.name != "order.ship"]
    steps[-1] = step(end, when="cancelled")
    assert warnings_of(graph(*steps)) == [
        "order: nothing leads to the status 'shipped'. Name it in to= of the step that leads there, or remove it from Order.",
    ]


def test_steps_that_never_run() -> None:
    never = step(ship, when=["shipped"], to="shipped")
    assert warnings_of(graph(*(never if each.name == "order.ship" else each for each in WHOLE))) == [
        "order: nothing leads to the status 'shipped'. Name it in to= of the step that leads there, or remove it from Order.",
        "order: ship never runs, since nothing leads to the status 'shipped'. "
        "Name it in to= of the step that leads there, or remove it from when=.",
        "order: end never runs when it is 'shipped', since nothing leads to the status 'shipped'. "
        "Name it in to= of the step that leads there, or remove it from when=.",
    ]


def test_statuses_that_lead_to_each_other_and_no_other_to_them() -> None:
    """A step that leads to a status reaches it only if it ever runs."""
    steps = [
        starter(place),
        step(end, when="placed"),
        step(pay, when="shipped", to="paid"),
        step(ship, when="paid", to="shipped"),
    ]
    found = [each for each in warnings_of(graph(*steps)) if "nothing leads to the status" in each]
    assert [each.partition(". ")[0] for each in found] == [
        "order: nothing leads to the status 'paid'",
        "order: nothing leads to the status 'shipped'",
        "order: nothing leads to the status 'cancelled'",
        "order: pay never runs, since nothing leads to the status 'shipped'",
        "order: ship never runs, since nothing leads to the status 'paid'",
    ]


def test_a_status_that_nothing_leaves() -> None:
    steps = [*WHOLE[:-1], step(end, when="shipped")]
    assert warnings_of(graph(*steps)) == [
        "order: nothing leaves the status 'cancelled', and nothing completes the instance there. "
        "Let a step lead on from there, or complete() the instance.",
    ]


def test_a_step_that_stays_where_it_is_leaves_nothing() -> None:
    steps = [*WHOLE[:-1], step(cancel, when="cancelled", to="cancelled"), step(end, when="shipped")]
    assert [each for each in warnings_of(graph(*steps)) if "leaves the status 'cancelled'" in each]


@pytest.mark.parametrize("last", [step(end), step(pay, to="paid"), step(somehow), step(unread())], ids=lambda each: each.name)
def test_a_step_that_runs_in_any_status_may_leave_each(last: Any) -> None:
    steps = [*WHOLE[:-1], step(end, when=["shipped", "paid"]), last]
    assert warnings_of(graph(*steps)) == []


def test_what_the_code_sets_is_reached_and_left() -> None:
    steps = [starter(place), step(pay, to="paid"), step(ship, to="shipped"), step(cancel_in_code, when="placed"), step(end)]
    assert warnings_of(graph(*steps)) == []


def test_a_step_that_completes_where_it_leads_ends_that_status() -> None:
    def deliver(order: Any) -> None:
        order.complete()

    steps = [
        *WHOLE[:2],
        step(cancel, to="cancelled", when="placed"),
        step(end, when="cancelled"),
        step(deliver, when="paid", to="shipped"),
    ]
    assert warnings_of(graph(*steps)) == []


@pytest.mark.parametrize("first", [starter(place_somehow), starter(unread(), by="order_id")], ids=lambda each: each.name)
def test_what_may_be_anything_reaches_all(first: Any) -> None:
    """What is not known is no flaw."""
    steps = [first, *WHOLE[1:2], *WHOLE[3:]]
    assert warnings_of(graph(*steps)) == []


def test_the_default_is_no_status_where_nothing_leads_although_the_first_step_sets_another() -> None:
    """Nor is it one that must be left: no instance rests in it."""
    steps = [starter(place_paid), *WHOLE[2:3], step(cancel, when="paid", to="cancelled"), WHOLE[4]]
    assert warnings_of(graph(*steps)) == []
    steps[0] = starter(place, to="paid")
    assert warnings_of(graph(*steps)) == []


def test_a_first_step_that_may_leave_the_default() -> None:
    """What its code sets, it may set under a condition."""

    def place_perhaps_paid(order: Order, order_id: str) -> None:
        if order.patience:
            order.status = "paid"

    assert warnings_of(graph(starter(place_perhaps_paid), *WHOLE[1:])) == []


def test_an_instance_that_ends_in_its_first_step() -> None:
    steps = [starter(place_and_end), *WHOLE[2:]]
    assert [each for each in warnings_of(graph(*steps)) if "'placed'" in each] == []


def test_a_starter_that_runs_on_existing_instances_leads_on() -> None:
    """By default it does, ``if_exists="handle"``; its status is that of any step then."""
    steps = [starter(place), starter(pay_again, policy="handle", when="placed", to="paid"), *WHOLE[2:]]
    assert warnings_of(graph(*steps)) == []


def pay_again(order: Order, order_id: str) -> None: ...


def test_a_saga_of_handlers_begins_with_the_default() -> None:
    assert warnings_of(graph(*WHOLE[1:])) == []


class Phase(StrEnum):
    """Statuses."""

    NEW = "new"
    OLD = "old"


class Phased(State, correlate_by="k", status_by="phase"):
    """A saga whose status is an ``Enum``."""

    k: str
    phase: Phase = Phase.NEW


class Unset(State, correlate_by="k", status_by="phase"):
    """A saga whose first step has to set the status."""

    k: str
    phase: Literal["new", "old"]


@pytest.mark.parametrize("saga", [Phased, Unset])
def test_statuses_of_an_enum_and_without_a_default(saga: Any) -> None:
    def begin(state: Any, k: str) -> None: ...

    def age(state: Any) -> None:
        state.phase = Phase.OLD

    steps = [starter(begin, saga=saga, to="new"), step(age, saga=saga, when="new"), step(end, saga=saga, when="old")]
    assert warnings_of(graph(*steps)) == []
