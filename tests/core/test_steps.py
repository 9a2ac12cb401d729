"""What a step may declare, and what its policies decide."""

import functools
from typing import Annotated, Any

import pytest
from celery import Task

from celery_sagas.core.message import SagaKey
from celery_sagas.core.state import State
from celery_sagas.core.step import Decision, IfExists, IfMissing, answered_step, define_step, undone_step, use_if_missing
from celery_sagas.errors import DefinitionError


class Base(State):
    order_id: str


class Order(Base, correlate_by="order_id", name="shop.order"):
    pass


class Invoice(Base, correlate_by="order_id"):
    pass


def place(order: Order, order_id: str, total: int = 0) -> None: ...


def bound(self, order: Order, order_id: str) -> None: ...


_DECLARED = ("by", "formerly", "batch", "when", "to", "if_not", "defer_for")


def define(function=place, *, saga=Order, starts=True, policy=None, **options):
    declared = {name: options.pop(name, None) for name in _DECLARED}
    declared["policy"] = policy or ("handle" if starts else "ignore")
    return define_step(saga.__saga__, function, starts=starts, options=options, **declared)


def refused(function=place, **declared):
    with pytest.raises(DefinitionError) as caught:
        define(function, **declared).resolve()
    return str(caught.value)


# --- names and options


def test_name_and_place():
    step = define(formerly=("shop.order.begin", "begin"))
    assert step.name == "shop.order.place"
    assert step.names == ("shop.order.place", "shop.order.begin", "begin")
    assert step.location == (__name__, "place")
    assert define(functools.wraps(place)(lambda *args: None)).name == "shop.order.place"


@pytest.mark.parametrize("batch", [None, 1, 500])
def test_size_of_a_batch(batch):
    assert define(batch=batch).batch == batch


@pytest.mark.parametrize("batch", [0, -1, 501, "10", 1.0, True])
def test_size_of_a_batch_that_cannot_be(batch):
    assert refused(batch=batch) == (
        f"tests.core.test_steps.place: batch={batch!r} is no number from 1 to 500. With 1 each message runs alone."
    )


def test_every_task_option_is_kept():
    options = {
        "bind": False,
        "autoretry_for": (KeyError,),
        "max_retries": 3,
        "serializer": "json",
        "anything": 1,
        "pydantic": False,
    }
    assert define(**options).options == options


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"pydantic": True}, "pydantic=True cannot be set on a step. A step's arguments are validated anyway"),
        ({"serializer": "pickle"}, "serializer='pickle' cannot be set on a step. Messages are JSON"),
        ({"name": "mine"}, "name='mine' cannot be set on a step. A step is named {saga}.{function}; formerly= keeps"),
        ({"if_missing": "raise"}, "if_missing='raise' cannot be set on a step. It says what a handler does"),
        ({"if_exists": "raise", "starts": False}, "if_exists='raise' cannot be set on a step. It says what a starter does"),
        ({"formerly": "a b"}, "'a b' is no stored name"),
        ({"formerly": "shop.order.place"}, "a name stands twice"),
        ({"formerly": 3}, "formerly=3 is neither a name nor a tuple of names"),
    ],
)
def test_refused_option(option, problem):
    text = refused(**option)
    assert text.startswith(f"{__name__}.place: ")
    assert problem in text


def test_abstract_saga():
    assert "its saga is abstract. Give the saga class correlate_by=" in refused(saga=Base)


# --- policies


@pytest.mark.parametrize(
    ("starts", "policy", "exists", "decision"),
    [
        (True, "handle", False, Decision.BEGIN),
        (True, "ignore", False, Decision.BEGIN),
        (True, "raise", False, Decision.BEGIN),
        (True, "handle", True, Decision.CONTINUE),
        (True, "ignore", True, Decision.IGNORE),
        (True, "raise", True, Decision.ALREADY_EXISTS),
        (False, "ignore", True, Decision.CONTINUE),
        (False, "raise", True, Decision.CONTINUE),
        (False, "defer", True, Decision.CONTINUE),
        (False, "ignore", False, Decision.IGNORE),
        (False, "raise", False, Decision.NOT_FOUND),
        (False, "defer", False, Decision.DEFER),
    ],
)
def test_policy_and_instance_decide_what_a_message_does(starts, policy, exists, decision):
    assert define(starts=starts, policy=policy, defer_for=60 if policy == "defer" else None).decide(exists) is decision


def test_policies_are_told_apart():
    assert define().policy is IfExists.HANDLE
    assert define(starts=False).policy is IfMissing.IGNORE


@pytest.mark.parametrize(
    ("starts", "policy", "problem"),
    [
        (True, "retry", "if_exists='retry' is no policy. Known: handle, ignore, raise"),
        (False, "handle", "if_missing='handle' is no policy. Known: ignore, raise, defer"),
        (False, "RAISE", "if_missing='RAISE' is no policy"),
        (False, 3, "if_missing=3 is no policy"),
        (False, ["raise"], "is no policy"),
    ],
)
def test_unknown_policy(starts, policy, problem):
    assert problem in refused(starts=starts, policy=policy)


@pytest.mark.parametrize(
    ("starts", "wrong", "right"),
    [
        (True, "if_exist", "if_exists"),
        (False, "if_exist", "if_exists"),
        (False, "if_misssing", "if_missing"),
        (True, "formely", "formerly"),
    ],
)
def test_option_that_is_almost_one_of_ours(starts, wrong, right):
    """Celery would take it, and nobody would look at it."""
    assert f"{wrong}= is no option. Do you mean {right}=?" in refused(starts=starts, **{wrong: "ignore"})


@pytest.mark.parametrize("starts", [True, False])
def test_options_of_celery_are_none_of_ours(starts):
    for option in set(dir(Task)) - {"name"}:
        define(starts=starts, **{option: None})


def test_if_missing_function():
    step = define(starts=False)
    step.use_if_missing(lambda missing, order_id, total=0: None)
    assert step.decide(exists=False) is Decision.CALL_IF_MISSING
    assert step.decide(exists=True) is Decision.CONTINUE


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"starts": True}, "a starter has no if_missing function. It creates what is missing"),
        ({"starts": False, "policy": "raise"}, "it has if_missing='raise' already"),
        ({"starts": False, "policy": "defer", "defer_for": 60}, "it has if_missing='defer' already"),
    ],
)
def test_if_missing_function_where_it_cannot_be(declared, problem):
    with pytest.raises(DefinitionError) as caught:
        define(**declared).use_if_missing(lambda missing, order_id, total: None)
    assert problem in str(caught.value)


async def asynchronous(missing, order_id, total): ...


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda missing: None,
        lambda missing, order_id: None,
        lambda missing, order_id, total, more: None,
        lambda *missing: None,
        asynchronous,
    ],
)
def test_if_missing_function_that_cannot_take_the_message(function):
    step = define(starts=False)
    with pytest.raises(DefinitionError, match=r"shop\.order\.place: "):
        step.use_if_missing(function)
    assert step.if_missing is None


def test_if_missing_function_of_a_step_without_arguments():
    define(alone, starts=False).use_if_missing(lambda missing: None)


def alone(order: Order): ...


def test_if_missing_function_never_gets_the_task():
    define(bound, starts=False, bind=True).use_if_missing(lambda missing, order_id: None)


# --- the if_missing function of a saga


@pytest.fixture
def shared():
    """A base with a function for all steps, of a test alone."""

    class Shared(State):
        order_id: str

    use_if_missing(Shared, answer)
    return Shared


def answer(missing): ...


def derived(base, name="Derived"):
    return type(State)(name, (base,), {"__module__": __name__}, correlate_by="order_id")


def handle(order, order_id: str): ...


def test_if_missing_function_of_a_saga(shared):
    step = define(handle, saga=derived(shared), starts=False)
    assert step.missing_function is answer
    assert step.decide(exists=False) is Decision.CALL_IF_MISSING
    assert step.decide(exists=True) is Decision.CONTINUE
    assert step.if_missing is None


def test_if_missing_function_of_a_saga_serves_steps_defined_before():
    class Late(State, correlate_by="order_id"):
        order_id: str

    step = define(handle, saga=Late, starts=False)
    assert step.decide(exists=False) is Decision.IGNORE
    use_if_missing(Late, answer)
    assert step.decide(exists=False) is Decision.CALL_IF_MISSING


@pytest.mark.parametrize("policy", [each for each in IfMissing if each is not IfMissing.IGNORE])
def test_policy_of_a_step_comes_before_the_function_of_its_saga(shared, policy):
    step = define(handle, saga=derived(shared), starts=False, policy=policy, defer_for=60 if policy is IfMissing.DEFER else None)
    assert step.missing_function is None
    assert step.decide(exists=False) is not Decision.CALL_IF_MISSING


def test_function_of_a_step_comes_before_that_of_its_saga(shared):
    step = define(handle, saga=derived(shared), starts=False)
    step.use_if_missing(own := lambda missing, order_id: None)
    assert step.missing_function is own


def test_starters_and_internal_steps_have_no_if_missing_function(shared):
    saga = derived(shared)
    assert define(handle, saga=saga).decide(exists=False) is Decision.BEGIN
    for step in (answered_step(saga.__saga__), undone_step(saga.__saga__)):
        assert step.decide(exists=False) is Decision.IGNORE


def test_if_missing_function_of_a_saga_hides_that_of_its_base(shared):
    saga, other = derived(shared), derived(shared, "Other")
    use_if_missing(saga, own := lambda missing: None)
    assert (saga.__saga__.if_missing, other.__saga__.if_missing) == (own, answer)


def test_if_missing_function_is_replaced_by_one_of_its_place(shared):
    def function(missing): ...

    function.__qualname__, function.__module__ = answer.__qualname__, answer.__module__
    use_if_missing(shared, function)
    assert derived(shared).__saga__.if_missing is function


def test_second_if_missing_function(shared):
    with pytest.raises(DefinitionError, match=r"Shared: it has the if_missing function tests\.core\.test_steps\.answer already"):
        use_if_missing(shared, lambda missing: None)
    assert derived(shared).__saga__.if_missing is answer


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: None, "is given a Missing alone: too many positional arguments"),
        (lambda missing, order_id: None, "is given a Missing alone: missing a required argument: 'order_id'"),
        (lambda *, missing: None, "is given a Missing alone"),
        (asynchronous, "an if_missing function is a plain function. Use def, without yield"),
        (functools.partial(answer), "an if_missing function is a plain function. Decorate a def"),
        (State, "an if_missing function is a plain function. Decorate a def"),
        (None, "an if_missing function is a plain function. Decorate a def"),
    ],
)
def test_if_missing_function_that_cannot_be_one(function, problem):
    class Lone(State, correlate_by="order_id"):
        order_id: str

    with pytest.raises(DefinitionError) as caught:
        use_if_missing(Lone, function)
    assert problem in str(caught.value)
    assert Lone.__saga__.if_missing is None


# --- handlers


async def coroutine(order, order_id): ...


def generator(order, order_id):
    yield


async def stream(order, order_id):
    yield


@pytest.mark.parametrize("function", [coroutine, generator, stream, functools.partial(coroutine)])
def test_not_synchronous(function):
    assert "a step is a plain function" in refused(function)


class Callable_:
    def __call__(self, order, order_id): ...


@pytest.mark.parametrize(
    "function", [functools.partial(place), Callable_(), Callable_, None, "place", staticmethod(place), object()]
)
def test_no_function(function):
    if isinstance(function, staticmethod):
        function = functools.partial(function.__func__)
    text = refused(function)
    assert "a step is a plain function. Decorate a def" in text


def test_lambda():
    assert "'shop.order.<lambda>' is no stored name" in refused(lambda order, order_id: None)


def without(): ...


def named_self(order, order_id, self): ...


def only_arguments(*args): ...


def only_keywords(*, order, order_id): ...


def any_arguments(order, *args): ...


def any_keywords(order, order_id, **kwargs): ...


def positional_only(order, order_id, /): ...


@pytest.mark.parametrize(
    ("function", "bind", "problem"),
    [
        (without, False, "it does not take the state first. def without(order: Order, …)"),
        (only_arguments, False, "it does not take the state first"),
        (only_keywords, False, "it does not take the state first"),
        (without, True, "it does not take the task and the state first. def without(self, order: Order, …)"),
        (lambda order: None, True, "it does not take the task and the state first"),
        (only_keywords, True, "it does not take the task and the state first"),
        (any_arguments, True, "it does not take the task and the state first"),
        (any_arguments, False, "the parameter *args cannot be given by name. Name every argument of the message"),
        (any_keywords, False, "the parameter **kwargs cannot be given by name"),
        (named_self, False, "a parameter of the message is named 'self'. Celery calls the task that: rename it"),
        (positional_only, False, "the parameter order_id cannot be given by name"),
    ],
)
def test_parameters(function, bind, problem):
    assert problem in refused(function, bind=bind)


def test_task_comes_before_the_state():
    step = define(bound, bind=True)
    step.resolve()
    assert (step.bind, step.state_position) == (True, 1)
    assert list(step.arguments.annotations) == ["order_id"]


def positional_state(order, /, order_id): ...


def test_state_may_be_positional_only():
    define(positional_state).resolve()


# --- annotations, when the app is finalised


def any_state(order, order_id): ...


def really_any_state(order: Any, order_id: str): ...


def base_state(order: Base, order_id: str): ...


def union_state(order: Order | Invoice, order_id: str): ...


def marked_state(order: Annotated[Order, "mark"], order_id: str): ...


def text_state(order: "Order", order_id: "str"): ...


@pytest.mark.parametrize("function", [place, any_state, really_any_state, base_state, union_state, marked_state, text_state])
def test_state_annotation(function):
    define(function).resolve()


def wrong_state(order: Invoice, order_id: str): ...


def no_state(order: str, order_id: str): ...


@pytest.mark.parametrize(("function", "named"), [(wrong_state, "Invoice"), (no_state, "str")])
def test_wrong_state_annotation(function, named):
    text = refused(function)
    assert f"the parameter 'order' is the state, but is annotated {named}" in text
    assert f"def {function.__name__}(order: Order, …)" in text


def test_wrong_state_annotation_of_a_bound_step():
    def step(self, order: int, order_id: str): ...

    assert "the parameter 'order' is the state, but is annotated int" in refused(step, bind=True)


def test_annotation_of_an_earlier_self():
    """A reload: the step's module still knows the class as it was."""
    again = type(State)(
        "Order",
        (State,),
        {"__module__": __name__, "__qualname__": "Order", "__annotations__": {"order_id": str}},
        correlate_by="order_id",
    )
    define(place, saga=again).resolve()


def test_saga_that_is_local_to_a_function():
    """With annotations as strings no module knows its name."""

    class Local(State, correlate_by="order_id"):
        order_id: str

    def step(order: "Local", order_id: "str"): ...

    define(step, saga=Local).resolve()


def unimported(order: "Order", line: "NotImported"): ...  # noqa: F821


def unimported_state(order: "NotImported", order_id: str): ...  # noqa: F821


@pytest.mark.parametrize("function", [unimported, unimported_state])
def test_name_that_does_not_exist_at_run_time(function):
    """It may be defined later in the module, so that the definition itself is fine."""
    step = define(function)
    with pytest.raises(DefinitionError, match=r"'NotImported' is not defined\. Import what it names at run time"):
        step.resolve()


def test_fields_of_the_saga_are_resolved_too():
    class Unfinished(State, correlate_by="order_id"):
        order_id: str
        lines: "list[NotImported]" = []  # noqa: F821

    with pytest.raises(DefinitionError, match="name 'NotImported' is not defined"):
        define(any_state, saga=Unfinished).resolve()


# --- correlation


def test_rule():
    assert define().rule.describe().startswith("order_id")


def marked(order: Order, reference: Annotated[str, SagaKey]): ...


def keyless(order: Order, total: int): ...


def test_rule_from_marks_and_by():
    assert "reference" in define(marked).rule.describe()
    assert "total" in define(keyless, by={"order_id": "total"}).rule.describe()


def test_starter_without_a_key():
    assert "by={" in refused(keyless)
    define(keyless, starts=False).resolve()


def test_defining_resolves_nothing():
    """The decorator never touches the app, nor annotations."""
    calls: list[Any] = []

    def step(order, order_id): ...

    step.__annotations__ = _Watched(calls)
    define(step)
    assert calls == []


class _Watched(dict):
    def __init__(self, calls):
        super().__init__(order_id="1 / 0")
        self.calls = calls

    def items(self):
        self.calls.append("items")
        return super().items()
