"""What is read in the code of a handler: each construct, and what cannot be told."""

import functools
import inspect
import logging
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from celery_sagas.core.graph.code import NO_SOURCE, HandlerCode, SendCall, read_code
from celery_sagas.core.graph.names import Ref
from celery_sagas.core.state import State
from tests.core.graph import elsewhere, sagas
from tests.core.graph.sagas import VOCABULARY, Delivered, Order, Status, Task, publish, step

charge, refund, quote, ship = Task("bank.charge"), Task("bank.refund"), Task("carriers.quote"), Task("carriers.ship")
charged, not_charged = Task("order.charged"), Task("order.not_charged")
CARRIERS = [quote, ship]
SHIP_BY_NAME = "carriers.ship"
HOUR = timedelta(hours=1)
logger = logging.getLogger(__name__)
signature: Any = None
chain: Any = None
shop: Any = ModuleType("shop")
shop.ship = ship
app: Any = object()


def read(function: Any, **declared: Any) -> HandlerCode:
    """Return what is read in a handler."""
    return read_code(step(function, **declared), VOCABULARY)


def sent(function: Any) -> list[str]:
    """Return the names of the tasks of the one message that a handler sends; those that are not known in brackets."""
    (call,) = read(function).sends
    return [ref.name if ref.is_known else f"({ref.name})" for ref in call.tasks]


# ---- what is sent


def test_nothing() -> None:
    def handler(order: Order) -> None:
        """Do nothing."""

    assert read(handler) == HandlerCode()


def test_a_message_and_its_outcomes() -> None:
    def handler(order: Any) -> None:
        order.send(
            charge.s(order.order_id),
            then=charged,
            otherwise=not_charged.s(1),
            progress="told",
            undo=refund.si(),
            within=HOUR,
            after=5,
        )

    assert read(handler).sends == [
        SendCall(
            (Ref("bank.charge"),),
            (Ref("order.charged"),),
            (Ref("order.not_charged"),),
            (Ref("told"),),
            (Ref("bank.refund"),),
            "HOUR",
            "5",
        )
    ]


def test_none_is_as_if_it_were_left_out() -> None:
    def handler(order: Any) -> None:
        order.send(charge.s(), then=None, otherwise=None, undo=None, within=None)

    assert read(handler).sends == [SendCall((Ref("bank.charge"),))]


def test_a_gather() -> None:
    def handler(order: Any) -> None:
        order.gather([quote.s(carrier) for carrier in "abc"], then=charged, otherwise=not_charged, within=order.patience)

    assert read(handler).sends == [
        SendCall(
            (Ref("carriers.quote"),),
            (Ref("order.charged"),),
            (Ref("order.not_charged"),),
            within="order.patience",
            is_gather=True,
        )
    ]


def test_arguments_by_name() -> None:
    def handler(order: Any) -> None:
        order.send(signature=charge.s())
        order.gather(signatures=[quote.s()], then=charged)
        order.schedule(target=charged, after=1)

    code = read(handler)
    assert [call.tasks for call in code.sends] == [(Ref("bank.charge"),), (Ref("carriers.quote"),)]
    assert code.links == [(Ref("order.charged"), "after 1")]


def test_the_same_is_read_once() -> None:
    def handler(order: Any) -> None:
        if order.patience:
            order.send(charge.s(1))
        else:
            order.send(charge.s(2))

    assert len(read(handler).sends) == 1


def one_of_two(order: Any) -> None:
    order.send(charge.s() if order.patience else refund.s())


def by_a_name(order: Any) -> None:
    message = charge.s(order.order_id)
    order.send(message.set(queue="bank"))


def by_names_of_a_pair(order: Any) -> None:
    hour, message = HOUR, charge.s(order.order_id)
    order.send(message, within=hour)


def a_chain(order: Any) -> None:
    order.send(charge.s() | ship.s() | quote.s())


def a_chain_by_its_function(order: Any) -> None:
    order.send(chain(charge.s(), ship.s()))


def a_chain_of_the_same(order: Any) -> None:
    message = charge.s()
    order.send(message | message)


def by_the_name_of_a_task(order: Any) -> None:
    order.send(signature("bank.charge", args=(1,)))


def by_the_name_in_a_constant(order: Any) -> None:
    order.send(signature(SHIP_BY_NAME))


def by_a_signature_of_the_app(order: Any) -> None:
    order.send(app.signature("bank.charge"))


def with_options(order: Any) -> None:
    order.send(charge.signature((1,), countdown=3))


def in_a_module(order: Any) -> None:
    order.send(shop.ship.s())


def made_by_a_function(order: Any) -> None:
    order.send(charge_of(order.order_id))


def charge_of(order_id: str) -> Any:
    if not order_id:
        return refund.s()
    return charge.s(order_id)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (one_of_two, ["bank.charge", "bank.refund"]),
        (by_a_name, ["bank.charge"]),
        (by_names_of_a_pair, ["bank.charge"]),
        (a_chain, ["bank.charge | carriers.ship | carriers.quote"]),
        (a_chain_by_its_function, ["bank.charge | carriers.ship"]),
        (a_chain_of_the_same, ["bank.charge | bank.charge"]),
        (by_the_name_of_a_task, ["bank.charge"]),
        (by_the_name_in_a_constant, ["carriers.ship"]),
        (by_a_signature_of_the_app, ["bank.charge"]),
        (with_options, ["bank.charge"]),
        (in_a_module, ["carriers.ship"]),
        (made_by_a_function, ["bank.refund", "bank.charge"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_which_task_is_sent(function: Any, expected: list[str]) -> None:
    assert sent(function) == expected


def a_list(order: Any) -> None:
    order.gather([quote.s(1), ship.s(2)], then=charged)


def a_list_that_is_filled(order: Any) -> None:
    members = []
    for carrier in "abc":
        members.append(quote.s(carrier))  # noqa: PERF401
    members.extend([ship.s()])
    order.gather(members, then=charged)


def a_list_with_a_list(order: Any) -> None:
    members = [quote.s()]
    order.gather([*members, ship.s()], then=charged)


def each_of_a_tuple(order: Any) -> None:
    order.gather((task.s() for task in (quote, ship)), then=charged)


def each_of_the_modules_list(order: Any) -> None:
    order.gather(list(task.s() for task in CARRIERS), then=charged)  # noqa: C400


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (a_list, ["carriers.quote", "carriers.ship"]),
        (a_list_that_is_filled, ["carriers.quote", "carriers.ship"]),
        (a_list_with_a_list, ["carriers.quote", "carriers.ship"]),
        (each_of_a_tuple, ["carriers.quote", "carriers.ship"]),
        (each_of_the_modules_list, ["carriers.quote", "carriers.ship"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_which_tasks_are_gathered(function: Any, expected: list[str]) -> None:
    assert sent(function) == expected


# ---- what cannot be told


def an_unknown_name(order: Any) -> None:
    order.send(nowhere.s())  # type: ignore[name-defined]  # noqa: F821


def a_parameter(order: Any, charge: Any) -> None:
    order.send(charge)


def a_parameter_that_hides_a_task(order: Any, charge: Any) -> None:
    order.send(charge.s())


def a_name_that_hides_a_task(order: Any) -> None:
    with order.patience as charge:
        order.send(charge.s())


def a_loop_that_hides_a_task(order: Any) -> None:
    for charge in order.messages:
        order.send(charge)


def a_match_that_hides_a_task(order: Any) -> None:
    match order.patience:
        case {"message": charge}:
            order.send(charge)


def a_name_that_changes(order: Any) -> None:
    message = charge.s()
    if order.patience:
        message = refund.s()
    order.send(message)


def a_parameter_that_changes(order: Any) -> None:
    send_or_refund(order, charge.s())


def send_or_refund(order: Any, message: Any) -> None:
    if order.patience:
        message = refund.s()
    order.send(message)


def a_name_that_is_given_a_file(order: Any) -> None:
    ship = charge.s()
    with order.patience as ship:  # noqa: F811
        order.send(ship)


def a_name_that_a_function_in_it_changes(order: Any) -> None:
    message = charge.s()

    def change() -> None:
        nonlocal message
        message = refund.s()

    change()
    order.send(message)


def a_name_of_a_function_in_it(order: Any) -> None:
    def send(charge: Any) -> None:
        order.send(charge.s())

    send(refund)


def a_name_of_a_comprehension(order: Any) -> None:
    order.gather([charge.s() for charge in order.messages], then=charged)


def a_name_that_is_imported(order: Any) -> None:
    from tests.core.graph.elsewhere import message_of as ship

    order.send(ship.s())


def a_walrus(order: Any) -> None:
    if ship := charge.s():
        order.send(ship)


def a_sum_of_lists(order: Any) -> None:
    order.gather([quote.s("a secret")] + CARRIERS, then=charged)  # noqa: RUF005


def a_list_that_is_added_to(order: Any) -> None:
    members = [quote.s()]
    members += [ship.s()]
    order.gather(members, then=charged)


def a_list_that_is_filled_elsewhere(order: Any) -> None:
    members: list[Any] = []
    elsewhere.fill(members)
    order.gather(members, then=charged)


def a_chain_of_a_list(order: Any) -> None:
    order.send(chain(*CARRIERS))


def a_chain_of_what_is_not_known(order: Any) -> None:
    order.send(charge.s() | elsewhere.message_of("a secret"))


def made_by_an_object(order: Any) -> None:
    message = elsewhere.message_of("a secret")
    message.extend(task=charge)
    order.send(message)


def made_by_a_function_that_returns_nothing(order: Any) -> None:
    order.send(nothing("a secret"))


def nothing(order_id: str) -> Any: ...


def made_elsewhere(order: Any) -> None:
    order.send(elsewhere.message_of("a secret"))


def a_name_of_itself(order: Any) -> None:
    message = order.patience or message  # type: ignore[has-type]  # noqa: F821
    order.send(message)


def a_function_of_itself(order: Any) -> None:
    order.send(endless(1))


def endless(number: int) -> Any:
    return endless(number + 1)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (an_unknown_name, ["(nowhere.s(…))"]),
        (a_parameter, ["(charge)"]),
        (a_parameter_that_hides_a_task, ["(charge.s(…))"]),
        (a_name_that_hides_a_task, ["(charge.s(…))"]),
        (a_loop_that_hides_a_task, ["(order.messages)"]),
        (a_match_that_hides_a_task, ["(charge)"]),
        (a_name_that_changes, ["(message)"]),
        (a_parameter_that_changes, ["(message)"]),
        (a_name_that_is_given_a_file, ["(ship)"]),
        (a_name_that_a_function_in_it_changes, ["(message)"]),
        (a_name_of_a_function_in_it, ["(charge.s(…))"]),
        (a_name_of_a_comprehension, ["(charge.s(…))"]),
        (a_name_that_is_imported, ["(ship.s(…))"]),
        (a_walrus, ["(ship)"]),
        (a_sum_of_lists, ["([quote.s(…)] + CARRIERS)"]),
        (a_list_that_is_added_to, ["(members)"]),
        (a_list_that_is_filled_elsewhere, ["(members)"]),
        (a_chain_of_a_list, ["(chain(…))"]),
        (a_chain_of_what_is_not_known, ["(bank.charge | elsewhere.message_of(…))"]),
        (made_by_an_object, ["(elsewhere.message_of(…))"]),
        (made_by_a_function_that_returns_nothing, ["(nothing(…))"]),
        (made_elsewhere, ["(elsewhere.message_of(…))"]),
        (a_name_of_itself, ["(order.patience)", "(message)"]),
        (a_function_of_itself, ["(endless(…))"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_which_task_cannot_be_told(function: Any, expected: list[str]) -> None:
    """Then its source is shown, without the arguments."""
    assert sent(function) == expected


def test_long_source_is_shortened() -> None:
    def handler(order: Any) -> None:
        order.send(order.patience[order.patience[order.patience[order.patience[0]]]])

    (name,) = sent(handler)
    assert name == "(order.patience[order.patience[order.pat…)"


def test_names_of_a_helper_do_not_stand_for_those_of_the_handler() -> None:
    def handler(order: Any) -> None:
        ship = charge
        send_it(order, ship)

    assert sent(handler) == ["carriers.ship"]


# ---- what else is done


def test_timeouts_and_series() -> None:
    def handler(order: Any) -> None:
        pause = timedelta(hours=2)
        order.schedule(charged, after=pause, name="a")
        order.schedule("remind", every=HOUR)
        order.schedule(not_charged.s(1), every=HOUR, at=order.patience)
        order.schedule("again", after=HOUR if order.order_id else 5)

    assert read(handler).links == [
        (Ref("order.charged"), "after timedelta(hours=2)"),
        (Ref("remind"), "every HOUR"),
        (Ref("order.not_charged"), "every HOUR, at order.patience"),
        (Ref("again"), "after HOUR or 5"),
    ]


def test_the_end_and_the_rest() -> None:
    def handler(order: Any) -> None:
        order.compensate(then=charged)
        order.reply(1)
        order.complete()

    code = read(handler)
    assert (code.compensates, code.replies, code.completes) == (True, True, True)
    assert code.links == [(Ref("order.charged"), "once all is undone")]


def test_events() -> None:
    def handler(order: Any, event: Any) -> None:
        publish(Delivered(order_id=order.order_id))
        sagas.publish(sagas.Delivered(order_id="2"))
        delivered = Delivered(order_id="3")
        publish(delivered)
        publish(event)

    assert read(handler).events == ["Delivered", "event"]


def test_another_function_of_the_name_of_publish_publishes_nothing() -> None:
    def handler(order: Any) -> None:
        def publish(event: Any) -> None: ...

        publish(Delivered(order_id="1"))

    assert read(handler).events == []


def test_statuses() -> None:
    def handler(order: Any) -> None:
        if order.patience:
            order.status = "paid"
        elif order.order_id:
            order.status = Status.PLACED
        else:
            order.status, order.patience = "shipped" if order.order_id else "cancelled", 3
        order.patience = "paid"

    code = read(handler)
    assert (code.statuses, code.sets_unknown) == (["paid", "placed", "shipped", "cancelled"], False)


def test_a_status_by_a_name_and_by_its_value() -> None:
    def handler(order: Any) -> None:
        status: str = "shipped"
        order.status = status
        order.status = Status.PAID.value

    assert read(handler).statuses == ["shipped", "paid"]


def an_unknown_status(order: Any, status: Any) -> None:
    order.status = status


def a_text_that_is_none(order: Any) -> None:
    order.status = "delivered"


def a_status_in_a_pair(order: Any, pair: Any) -> None:
    order.status, _ = pair


def a_status_that_changes(order: Any) -> None:
    status = "paid"
    if order.patience:
        status = "shipped"
    order.status = status


@pytest.mark.parametrize("handler", [an_unknown_status, a_text_that_is_none, a_status_in_a_pair, a_status_that_changes])
def test_a_status_that_cannot_be_told(handler: Any) -> None:
    code = read(handler)
    assert (code.statuses, code.sets_unknown, len(code.notes)) == ([], True, 1)


def test_the_status_of_another_object() -> None:
    def handler(order: Any, parcel: Any) -> None:
        parcel.status = "paid"
        order.parcel.status = "shipped"

    assert read(handler) == HandlerCode()


# ---- by way of other functions


def send_it(order: Any, then: Any = None) -> None:
    order.send(ship.s(), then=then)


def send_twice(order: Any, task: Any, *, then: Any = charged) -> None:
    order.send(task.s(), then=then)
    if order.patience:
        send_twice(order, task)


def test_a_helper_of_the_module_with_what_it_is_given() -> None:
    def handler(order: Any) -> None:
        send_twice(order, charge)
        send_it(order, then=not_charged)

    assert read(handler).sends == [
        SendCall((Ref("bank.charge"),), (Ref("order.charged"),)),
        SendCall((Ref("carriers.ship"),), (Ref("order.not_charged"),)),
    ]


def test_a_function_in_the_handler_is_read_as_if_it_were_called_there() -> None:
    def handler(order: Any) -> None:
        def send(what: Any = None) -> None:
            order.send(charge.s(), then=what)

        send()
        _ = lambda: order.reply()  # noqa: E731

    code = read(handler)
    assert (code.replies, code.sends) == (True, [SendCall((Ref("bank.charge"),), (Ref("what", is_known=False),))])


def test_a_function_in_the_handler_that_is_given_the_state() -> None:
    def handler(order: Any) -> None:
        def end(each: Any) -> None:
            each.complete()

        end(order)

    code = read(handler)
    assert (code.completes, code.notes) == (False, ["it gives its state to end(), which is not read"])


def test_another_object_of_the_name_of_the_state() -> None:
    def handler(order: Any) -> None:
        _ = [order.complete() for order in order.parts], {order: order.reply() for order in order.parts}
        _ = lambda order: order.compensate()  # noqa: E731
        order.send(charge.s())
        for order in order.parts:  # noqa: B020
            order.complete()

    code = read(handler)
    assert [call.tasks for call in code.sends] == [(Ref("bank.charge"),)]
    assert (code.completes, code.replies, code.compensates) == (False, False, False)


def test_other_names_of_the_state_and_of_its_methods() -> None:
    def handler(order: Any) -> None:
        same, send = order, order.send
        same.complete()
        send(charge.s())

    code = read(handler)
    assert (code.completes, len(code.sends)) == (True, 1)


class Finishing(State):
    """An abstract saga with methods."""

    def finish(self, *, how: Any) -> None:
        """End it."""
        self.send(how)  # type: ignore[attr-defined]
        self.end_it()

    def end_it(self) -> None:
        """End it."""
        self.complete()  # type: ignore[attr-defined]


class Parcel(Finishing, correlate_by="parcel_id"):
    """A saga that inherits them."""

    parcel_id: str


def test_methods_of_the_saga() -> None:
    def handler(parcel: Any) -> None:
        parcel.finish(how=ship.s())

    code = read(handler, saga=Parcel)
    assert (code.completes, code.sends) == (True, [SendCall((Ref("carriers.ship"),))])


def test_what_the_task_of_a_bound_handler_does_is_not_of_the_state() -> None:
    def handler(self: Any, order: Any) -> None:
        self.send(charge.s())
        order.complete()

    code = read(handler, bind=True)
    assert (code.completes, code.sends) == (True, [])


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return inner


def replaced(function: Any) -> Any:
    def inner(order: Any) -> Any:
        return function(order)

    return inner


@pytest.mark.parametrize("decorate", [wrapped, replaced, elsewhere.wrapped])
def test_a_decorated_handler(decorate: Any) -> None:
    @decorate
    def handler(order: Any) -> None:
        order.complete()

    assert read(handler).completes


def test_a_decorator_that_takes_any_arguments() -> None:
    """What it says of itself is not what its code has."""

    def handler(order: Any) -> None: ...

    def inner(*given: Any) -> None:
        handler(*given)

    inner.__name__, inner.__signature__ = "handler", inspect.signature(handler)  # type: ignore[attr-defined]
    assert read(inner) == HandlerCode()


def test_helpers_that_call_each_other_without_an_end() -> None:
    """They are followed so far, and the rest is noted."""

    def handler(order: Any) -> None:
        first(order)

    assert read(handler).notes == ["it gives its state to fifth(), which is not read"]


def first(order: Any) -> None:
    second(order)


def second(order: Any) -> None:
    third(order)
    first(order)


def third(order: Any) -> None:
    fourth(order)


def fourth(order: Any) -> None:
    fifth(order)


def fifth(order: Any) -> None:
    first(order)


def test_a_lambda() -> None:
    handler = lambda order: order.send(charge.s())  # noqa: E731
    handler.__name__ = "handler"

    assert sent(handler) == ["bank.charge"]


# ---- what is not read


def test_keywords_that_cannot_be_told() -> None:
    def handler(order: Any, options: Any) -> None:
        order.send(charge.s(), **options)

    code = read(handler)
    assert code.notes == ["its call of order.send() with **options is not read whole"]
    assert code.sends == [SendCall((Ref("bank.charge"),))]


def test_arguments_of_a_helper_that_cannot_be_told() -> None:
    """Then none has its default."""

    def handler(order: Any, options: Any) -> None:
        send_twice(order, charge, **options)
        send_it(*options)

    code = read(handler)
    assert code.sends == [SendCall((Ref("bank.charge"),), (Ref("then", is_known=False),))]


def test_a_function_of_another_module_that_gets_the_state() -> None:
    def handler(order: Any) -> None:
        elsewhere.end(order)
        elsewhere.look_at(order.order_id)
        logger.info("%s", order)
        print(order, repr(order), str(order))

    code = read(handler)
    assert (code.notes, code.completes) == (["it gives its state to elsewhere.end(), which is not read"], False)


def test_no_source() -> None:
    space: dict[str, Any] = {"__name__": "typed"}
    exec("def handler(order): order.complete()", space)

    assert read(space["handler"]) == HandlerCode(notes=[NO_SOURCE], is_read=False)


def test_two_lambdas_that_cannot_be_told_apart() -> None:
    one, _ = (lambda order: order.complete()), (lambda order: order.reply())
    one.__name__ = "handler"

    assert not read(one).is_read


def test_two_lambdas_that_take_other_arguments() -> None:
    one, _ = (lambda order, number: order.complete()), (lambda order: order.reply())
    one.__name__ = "handler"

    assert read(one).completes


def test_a_source_that_has_changed(tmp_path: Any) -> None:
    """Lines of a newer file are not taken for those of the code that runs."""
    path = tmp_path / "handlers.py"
    text = "def handler(order):\n    order.complete()\n"
    path.write_text(f"\n\n{text}")
    space: dict[str, Any] = {"__name__": "handlers"}
    exec(compile(text, str(path), "exec"), space)

    assert not read(space["handler"]).is_read


def test_nothing_is_run() -> None:
    """A lazy object is not made to look up what it stands for; nor is a module that is loaded lazily."""

    class Lazy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    class LazyModule(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    lazy: Any = Lazy()
    module: Any = LazyModule("lazy")

    def handler(order: Any) -> None:
        order.send(lazy.s(), then=lazy, otherwise=lazy.step, within=lazy)
        order.send(module.task.s())
        order.status = lazy
        lazy(order)
        lazy.method(order)
        publish(lazy)

    code = read(handler)
    assert [call.tasks[0].name for call in code.sends] == ["lazy.s(…)", "module.task.s(…)"]
    assert code.sets_unknown
