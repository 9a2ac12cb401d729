"""Statuses: what a saga and its steps may declare, and when a step runs."""

import enum
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from typing_extensions import TypeAliasType

from celery_sagas.core.state import State
from celery_sagas.core.status import ALWAYS, IfNot, StatusRule, statuses_in, text_of
from celery_sagas.core.step import StepDefinition, define_step
from celery_sagas.errors import DefinitionError, InvalidState


class Stage(enum.Enum):
    """Statuses."""

    PLACED = "placed"
    PAID = "paid"


class Text(enum.StrEnum):
    """Statuses, which are texts."""

    PLACED = "placed"
    PAID = "paid"


class Number(enum.Enum):
    """What no status is."""

    ONE = 1


class Empty(enum.Enum):
    """No status."""


Placed = Literal["placed", "paid"]
Alias = TypeAliasType("Alias", Literal["placed", "paid"])
New = NewType("New", Stage)


class Order(State, correlate_by="order_id", status_by="status"):
    """An order."""

    order_id: str
    status: Literal["placed", "paid", "shipped", "cancelled"] = "placed"


class Staged(State, correlate_by="order_id", status_by="stage"):
    """An order whose status is a member."""

    order_id: str
    stage: Stage | None = None


class Late(State, correlate_by="order_id", status_by="status"):
    """An order whose statuses are defined after it."""

    order_id: str
    status: "Later"


Later = Literal["new"]


class Plain(State, correlate_by="order_id"):
    """An order without a status."""

    order_id: str


def packed(order: Order, order_id: str, ok: bool = True) -> None:
    """Handle a message."""


def define(
    saga: type[State] = Order, *, starts: bool = False, policy: str | None = None, bind: bool = False, **moment: Any
) -> StepDefinition:
    """Declare a step."""
    policy = policy or ("handle" if starts else "ignore")
    options = {"bind": True} if bind else {}
    function: Callable[..., Any] = packed
    return define_step(saga.__saga__, function, starts=starts, policy=policy, by=None, formerly=None, **moment, options=options)


class TestField:
    @pytest.mark.parametrize(
        "annotation",
        [
            Placed,
            Stage,
            Text,
            Optional[Placed],  # noqa: UP045
            Placed | None,
            Annotated[Placed, "a mark"],
            Alias,
            New,
            Literal[Stage.PLACED, Stage.PAID],
            Literal["placed", "paid"],
        ],
    )
    def test_names_the_statuses(self, annotation: Any) -> None:
        assert list(statuses_in("Order", "status", annotation)) == ["placed", "paid"]

    @pytest.mark.parametrize(
        "annotation", [str, int, Any, list[str], Number, Empty, Literal[1, 2], Literal["placed", 1], Literal[""], Placed | int]
    )
    def test_of_another_kind(self, annotation: Any) -> None:
        with pytest.raises(DefinitionError, match=r"""status_by='status' is annotated .*Name the statuses: Literal\["placed"""):
            statuses_in("Order", "status", annotation)

    @pytest.mark.parametrize("status_by", ["state", "", 1, ("status",), "saga"])
    def test_that_there_is_not(self, status_by: Any) -> None:
        with pytest.raises(DefinitionError, match=r"status_by=.* is no field of it. Its fields: order_id, status"):

            class Wrong(State, correlate_by="order_id", status_by=status_by):
                order_id: str
                status: Placed

    @pytest.mark.parametrize("correlate_by", ["order_id", ("shop", "order_id")])
    def test_of_the_key(self, correlate_by: Any) -> None:
        with pytest.raises(DefinitionError, match=r"'order_id' is both its key and its status. A key never changes: use another"):

            class Wrong(State, correlate_by=correlate_by, status_by="order_id"):
                order_id: Placed
                shop: str

    def test_of_an_abstract_base(self) -> None:
        class Base(State, status_by="status"):
            status: Placed = "placed"

        class Child(Base, correlate_by="order_id"):
            order_id: str

        assert Child.__saga__ is not None
        assert list(Child.__saga__.statuses) == ["placed", "paid"]

    def test_child_may_name_another(self) -> None:
        class Base(State, status_by="status"):
            status: Placed = "placed"

        class Child(Base, correlate_by="order_id", status_by="stage"):
            order_id: str
            stage: Stage

        assert Child.__saga__ is not None
        assert (Child.__saga__.status_by, list(Child.__saga__.statuses.values())) == ("stage", list(Stage))

    def test_base_s_status_may_not_become_the_key(self) -> None:
        class Base(State, status_by="status"):
            status: Placed

        with pytest.raises(DefinitionError, match="'status' is both its key and its status"):

            class Child(Base, correlate_by="status"): ...

    def test_forward_reference(self) -> None:
        assert Late.__saga__ is not None
        assert list(Late.__saga__.statuses) == ["new"]

    def test_saga_without_one(self) -> None:
        assert Plain.__saga__ is not None
        assert (Plain.__saga__.status_by, Plain.__saga__.statuses) == (None, {})


class TestWhen:
    @pytest.mark.parametrize(
        ("when", "statuses"),
        [
            (None, ()),
            ("paid", ("paid",)),
            (Stage.PAID, ("paid",)),
            (Text.PAID, ("paid",)),
            (("placed", "paid"), ("placed", "paid")),
            (["paid", "placed", "paid"], ("paid", "placed")),
            ({"placed", "paid"}, ("paid", "placed")),
            (frozenset({Stage.PLACED, Stage.PAID}), ("paid", "placed")),
        ],
    )
    def test_is_one_status_or_several(self, when: Any, statuses: tuple[str, ...]) -> None:
        assert define(when=when).status.when == statuses

    @pytest.mark.parametrize(
        "when", [Stage, Order, str, "", (), set(), [], {}, 1, True, b"paid", {"paid", None}, ["paid", 1], [["paid"]], Number.ONE]
    )
    @pytest.mark.parametrize("keyword", ["when", "to"])
    def test_of_another_kind(self, keyword: str, when: Any) -> None:
        with pytest.raises(DefinitionError, match=rf"packed: {keyword}=.* is neither a status nor several. Such as "):
            define(**{keyword: when})

    @pytest.mark.parametrize("keyword", ["when", "to"])
    def test_misspelt(self, keyword: str) -> None:
        with pytest.raises(
            DefinitionError, match=f"{keyword}= names 'shiped', which is no status of Order. Do you mean 'shipped'?"
        ):
            define(**{keyword: "shiped"}).resolve()

    @pytest.mark.parametrize("keyword", ["when", "to"])
    def test_unknown(self, keyword: str) -> None:
        with pytest.raises(DefinitionError, match=r"which is no status of Order. Known: placed, paid, shipped, cancelled"):
            define(**{keyword: ("paid", "zzz")}).resolve()

    def test_misspelt_where_nothing_resolves_it(self) -> None:
        """A step that is defined after its app was finalised is checked with its first message."""
        with pytest.raises(DefinitionError, match=r"Do you mean 'shipped'?"):
            _ = define(when="shiped").arguments

    @pytest.mark.parametrize("keyword", ["when", "to"])
    def test_saga_without_statuses(self, keyword: str) -> None:
        remedy = r'it has .*=, and Plain has no status. class Plain\(Saga, …, status_by="status"\)'
        with pytest.raises(DefinitionError, match=remedy):
            define_step(
                Plain.__saga__, _plain, starts=False, policy="ignore", by=None, formerly=None, options={}, **{keyword: "paid"}
            ).resolve()

    def test_runs_in_those_statuses(self) -> None:
        step = define(when={"placed", "paid"})
        assert [step.admits(Order.model_construct(status=status), {}) for status in ("placed", "paid", "shipped")] == [
            True,
            True,
            False,
        ]
        assert define().admits(Order.model_construct(status="shipped"), {})

    @pytest.mark.parametrize("state", [Staged.model_construct(stage=None), Staged.model_construct()])
    def test_instance_without_a_status(self, state: Staged) -> None:
        assert not _staged(when="paid").admits(state, {})

    def test_members_and_texts_are_one(self) -> None:
        assert _staged(when="paid").admits(Staged.model_construct(stage=Stage.PAID), {})
        assert _staged(when=Stage.PAID).admits(Staged.model_construct(stage=Stage.PAID), {})


def _plain(order: Plain, order_id: str) -> None:
    """Handle a message."""


def _stage(order: Staged, order_id: str) -> None:
    """Handle a message."""


def _staged(**moment: Any) -> StepDefinition:
    return define_step(Staged.__saga__, _stage, starts=False, policy="ignore", by=None, formerly=None, **moment, options={})


async def asynchronous(order: Order, order_id: str, ok: bool) -> bool:
    """Answer later."""
    return True


def generating(order: Order, order_id: str, ok: bool) -> Any:
    """Answer again and again."""
    yield True


class Asynchronous:
    """An object that answers later."""

    async def __call__(self, order: Order, **_: object) -> bool:
        """Answer."""
        return True


class Ready:
    """An object that answers."""

    def __call__(self, order: Order, **_: object) -> bool:
        """Answer."""
        return True

    def method(self, order: Order, order_id: str, ok: bool) -> bool:
        """Answer."""
        return True


def with_limit(limit: int, order: Order, order_id: str, ok: bool) -> bool:
    """Answer."""
    return True


class TestFunction:
    @pytest.mark.parametrize(
        "when",
        [
            lambda order, order_id, ok: True,
            lambda order, **_: True,
            lambda order, ok, order_id, more=1: True,
            lambda *args, **_: True,
            Ready(),
            Ready().method,
            partial(with_limit, 3),
        ],
    )
    def test_takes_the_state_and_the_arguments(self, when: Any) -> None:
        step = define(when=when)
        assert step.admits(Order.model_construct(), {"order_id": "42", "ok": True}) is True
        assert step.status.is_conditional

    def test_of_a_bound_step(self) -> None:
        def bound(self: Any, order: Order, order_id: str) -> None: ...

        define_step(
            Order.__saga__,
            bound,
            starts=False,
            policy="ignore",
            by=None,
            formerly=None,
            when=lambda order, order_id: True,
            options={"bind": True},
        )

    @pytest.mark.parametrize(
        "when",
        [
            lambda: True,
            lambda order: True,
            lambda order, order_id: True,
            lambda order, order_id, okay: True,
            lambda **_: True,
            min,
        ],
    )
    def test_that_does_not_fit(self, when: Any) -> None:
        with pytest.raises(
            DefinitionError, match=r"its when= function does not fit the message: .*def function\(state, order_id, ok\)"
        ):
            define(when=when)

    @pytest.mark.parametrize("when", [asynchronous, generating, Asynchronous(), partial(asynchronous)])
    def test_that_answers_later(self, when: Any) -> None:
        """What it returns is true, whatever it would answer."""
        with pytest.raises(DefinitionError, match=r"its when= function is no plain function. Use def, without yield"):
            define(when=when)

    @pytest.mark.parametrize(
        ("when", "expected"),
        [
            (None, "always"),
            ("paid", "when it is 'paid'"),
            (("placed", "paid"), "when it is 'placed' or 'paid'"),
            (Ready(), "when Ready() is true"),
        ],
    )
    def test_is_named_in_errors(self, when: Any, expected: str) -> None:
        assert define(when=when).status.expected == expected


class TestPolicy:
    def test_default(self) -> None:
        assert define(when="paid").status.if_not is IfNot.RAISE

    @pytest.mark.parametrize("if_not", ["raise", "ignore", "defer"])
    def test_is_kept(self, if_not: str) -> None:
        step = define(when="paid", if_not=if_not)
        assert (step.status.if_not, step.is_deferred) == (IfNot(if_not), if_not == "defer")

    @pytest.mark.parametrize("if_not", ["retry", "DEFER", "", 1, ["defer"], True])
    def test_unknown(self, if_not: Any) -> None:
        with pytest.raises(DefinitionError, match=r"is no policy. Known: raise, ignore, defer"):
            define(when="paid", if_not=if_not)

    @pytest.mark.parametrize("if_not", ["raise", "ignore", "defer"])
    def test_without_when(self, if_not: str) -> None:
        with pytest.raises(DefinitionError, match=f"it has if_not='{if_not}' without when=. Say when it may run"):
            define(if_not=if_not, to="paid")

    @pytest.mark.parametrize("policy", ["ignore", "raise"])
    @pytest.mark.parametrize("when", ["paid", lambda order, **_: True])
    def test_starter_that_never_runs_on_an_instance(self, policy: str, when: Any) -> None:
        with pytest.raises(
            DefinitionError, match=f"it has when=, and if_exists='{policy}', with which it never runs on an instance"
        ):
            define(starts=True, policy=policy, when=when)

    def test_starter_that_does(self) -> None:
        assert define(starts=True, when="paid", if_not="defer").is_deferred


class TestTo:
    def leave(self, step: StepDefinition, status: Any, before: str | None = "placed") -> Any:
        """Return the status of an order that a handler has left in one."""
        order = Order.model_construct(status=status)
        step.leave(order, "42", before)
        return order.status

    def test_one_is_set(self) -> None:
        assert self.leave(define(to="paid"), "placed") == "paid"

    def test_unless_the_handler_has_set_it(self) -> None:
        assert self.leave(define(to="paid"), "paid") == "paid"

    def test_is_the_same_one(self) -> None:
        assert self.leave(define(to="paid"), "paid", before="paid") == "paid"

    def test_is_set_as_the_field_holds_it(self) -> None:
        staged = Staged.model_construct(stage=None)
        _staged(to="paid").leave(staged, "42", None)
        assert staged.stage is Stage.PAID

    @pytest.mark.parametrize("status", ["shipped", "cancelled"])
    def test_of_several_the_handler_sets_one(self, status: str) -> None:
        assert self.leave(define(to=("shipped", "cancelled")), status) == status

    @pytest.mark.parametrize(
        ("to", "status", "problem"),
        [
            ("paid", "shipped", r"order.packed leaves it 'shipped', and is declared with to='paid'"),
            (("shipped", "cancelled"), "placed", r"leaves it 'placed', and is declared with to=\('shipped', 'cancelled'\)"),
            (("shipped", "cancelled"), None, "leaves it None"),
        ],
    )
    def test_another_one_fails(self, to: Any, status: Any, problem: str) -> None:
        with pytest.raises(InvalidState, match=problem):
            self.leave(define(to=to), status)

    def test_step_without_it_may_leave_any(self) -> None:
        assert self.leave(define(), "cancelled") == "cancelled"


@pytest.mark.parametrize(
    ("status", "text"),
    [("a", "a"), (Stage.PAID, "paid"), (Text.PAID, "paid"), ("", None), (1, None), (Number.ONE, None), (None, None)],
)
def test_text_of_a_status(status: object, text: str | None) -> None:
    assert text_of(status) == text


def test_rule_of_a_step_that_always_runs() -> None:
    assert StatusRule() == ALWAYS
    assert not ALWAYS.is_conditional
