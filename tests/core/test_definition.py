"""What a saga class may declare, and what it may not."""

import enum
import warnings
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, TypeVar
from uuid import UUID

import pytest
from pydantic import (
    AliasChoices,
    AliasGenerator,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    computed_field,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from celery_sagas.core.saga import RESERVED_FIELDS, resolve_fields
from celery_sagas.core.state import State
from celery_sagas.errors import DefinitionError

Key = Annotated[str, Field(min_length=1)]
ItemT = TypeVar("ItemT")


def saga(fields=None, *, base=State, **keywords):
    """Make a saga class named Order, with a string ``k`` for its key unless told otherwise."""
    keywords = {"correlate_by": "k", **keywords}
    namespace = {"__module__": __name__, "__qualname__": "Order", "__annotations__": {"k": str, **(fields or {})}}
    return type(base)("Order", (base,), namespace, **keywords)


def test_defaults():
    definition = saga().__saga__
    assert definition is not None
    assert (definition.name, definition.formerly, definition.schema_version) == ("order", (), 1)
    assert (definition.correlate_by, definition.also_by) == (("k",), ())
    assert definition.names == ("order",)
    assert definition.location == (__name__, "Order")


def test_every_keyword():
    definition = saga(
        {"a": str | None, "b": UUID, "c": int},
        correlate_by=("k", "c"),
        also_by=("b", "a"),
        name="shop.order",
        formerly=["purchase"],
        schema_version=3,
    ).__saga__
    assert definition.names == ("shop.order", "purchase")
    assert definition.schema_version == 3
    assert [part.field for part in definition.keys.key] == ["k", "c"]
    assert list(definition.keys.alternate_keys) == ["b", "a"]
    assert definition.keys.formerly == ("purchase",)


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        (
            {"colour": "red"},
            "unknown class keyword colour. "
            "Known: correlate_by, also_by, search_by, status_by, name, formerly, schema_version, history, keep, max_idle, "
            "backend",
        ),
        ({"correlated_by": "k", "also": "k"}, "unknown class keyword also, correlated_by"),
        ({"correlate_by": ()}, "correlate_by is empty"),
        ({"correlate_by": ""}, "no field ''"),
        ({"correlate_by": "nothing"}, "no field 'nothing' to correlate by. Its fields: k"),
        ({"also_by": "nothing"}, "no field 'nothing'"),
        ({"correlate_by": 3}, "correlate_by=3 is neither a name nor a tuple of names"),
        ({"also_by": {"k"}}, "also_by={'k'} is neither"),
        ({"also_by": "k"}, "k stands twice"),
        ({"correlate_by": ("k", "k")}, "k stands twice"),
        ({"search_by": "nothing"}, "search_by='nothing' is no field of it. Its fields: k"),
        ({"search_by": 3}, "search_by=3 is neither a name nor a tuple of names"),
        ({"search_by": "k"}, "'k' is both its key and in search_by. find() finds an instance by its key"),
        ({"name": ""}, "'' is no stored name"),
        ({"name": 3}, "3 is no stored name"),
        ({"formerly": "order"}, "a name stands twice"),
        ({"formerly": 3}, "formerly=3 is neither"),
        ({"schema_version": 0}, "schema_version=0 is not a whole number from 1"),
        ({"schema_version": True}, "schema_version=True is not"),
        ({"schema_version": "2"}, "schema_version='2' is not"),
        ({"schema_version": 1.0}, "schema_version=1.0 is not"),
        (
            {"history": "states"},
            'history=\'states\' is unknown. Known: "names", "values", "messages", "off", and ("messages", "values")',
        ),
        ({"history": True}, "history=True is unknown"),
        ({"history": ()}, "history=() is unknown"),
        ({"history": ("messages", 3)}, "history=('messages', 3) is unknown"),
        ({"history": ("names", "values")}, "history=('names', 'values') is unknown"),
        ({"history": ("messages", "off")}, "history=('messages', 'off') is unknown"),
        ({"history": ["messages"]}, "history=['messages'] is unknown"),
    ],
)
def test_wrong_class_keyword(keywords, problem):
    with pytest.raises(DefinitionError) as caught:
        saga(**keywords)
    assert str(caught.value).startswith("Order: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("history", "kept", "changes", "keeps_messages"),
    [
        (None, (), "", False),
        ("off", (), "", False),
        ("names", ("names",), "names", False),
        (("values",), ("values",), "values", False),
        ("messages", ("messages", "names"), "names", True),
        (("names", "messages"), ("messages", "names"), "names", True),
        (("values", "messages"), ("messages", "values"), "values", True),
    ],
)
def test_history(history, kept, changes, keeps_messages):
    definition = saga(history=history).__saga__
    assert (definition.history, definition.changes, definition.keeps_messages) == (kept, changes, keeps_messages)


@pytest.mark.parametrize(
    "keywords",
    [{"name": "x"}, {"formerly": "x"}, {"schema_version": 2}, {"history": "messages"}, {"keep": 60}, {"max_idle": 60}],
)
def test_keywords_of_a_concrete_saga_on_an_abstract_one(keywords):
    with pytest.raises(DefinitionError, match=r"it has no correlate_by\. Name the field"):
        saga(correlate_by=None, **keywords)


class TestAlternateKeysOfAbstractSagas:
    """What a concrete saga inherits of ``also_by``."""

    def test_they_are_inherited_and_the_saga_adds_its_own(self):
        tracked = saga({"tracking": str | None}, correlate_by=None, also_by="tracking")
        assert tracked.__saga__ is None
        assert saga(base=tracked).__saga__.also_by == ("tracking",)
        order = saga({"email": str | None}, base=tracked, also_by="email").__saga__
        assert order.also_by == ("tracking", "email")
        assert list(order.keys.alternate_keys) == ["tracking", "email"]
        assert saga(base=tracked).__saga__.also_by == ("tracking",)

    def test_several_bases_and_bases_of_bases(self):
        class Tracked(State, also_by="tracking"):
            tracking: str | None = None

        class Mailed(Tracked, also_by="email"):
            email: str | None = None

        class Named(Tracked, also_by=("nick", "tracking")):
            nick: str | None = None

        class Order(Mailed, Named, correlate_by="k"):
            k: str

        assert Order.__saga__.also_by == ("tracking", "email", "nick")

    def test_generic_base(self):
        class Tracked(State, Generic[ItemT], also_by="tracking"):
            tracking: str | None = None
            item: ItemT

        class Order(Tracked[int], correlate_by="k"):
            k: str

        assert Order.__saga__.also_by == ("tracking",)

    @pytest.mark.parametrize(
        ("keywords", "problem"),
        [
            ({"also_by": "nothing"}, "no field 'nothing' to correlate by. Its fields: k"),
            ({"also_by": 3}, "also_by=3 is neither"),
        ],
    )
    def test_wrong_on_the_abstract_saga(self, keywords, problem):
        with pytest.raises(DefinitionError, match=problem):
            saga(correlate_by=None, **keywords)

    def test_key_that_is_an_inherited_alternate_key(self):
        tracked = saga({"tracking": str, "nick": str}, correlate_by=None, also_by=("tracking", "nick"))
        order = saga(base=tracked, correlate_by="tracking").__saga__
        assert (order.correlate_by, order.also_by) == (("tracking",), ("nick",))
        with pytest.raises(DefinitionError, match="tracking stands twice in correlate_by and also_by"):
            saga(base=tracked, correlate_by="tracking", also_by="tracking")


def test_class_name_that_is_no_stored_name():
    with pytest.raises(DefinitionError, match="'größe' is no stored name"):

        class Größe(State, correlate_by="k"):
            k: str


@pytest.mark.parametrize("setting", ["validate_assignment", "frozen"])
@pytest.mark.parametrize("abstract", [True, False])
def test_refused_model_setting(setting, abstract):
    with pytest.raises(DefinitionError, match=f"{setting} cannot be set on a saga: "):
        saga(correlate_by=None if abstract else "k", **{setting: True})

    with pytest.raises(DefinitionError, match=f"{setting} cannot be set on a saga: "):

        class Order(State, correlate_by="k"):
            model_config = ConfigDict(**{setting: True})
            k: str


def test_refused_model_setting_from_a_base():
    class Strict(BaseModel):
        model_config = ConfigDict(validate_assignment=True)

    with pytest.raises(DefinitionError, match="validate_assignment"):

        class Order(Strict, State, correlate_by="k"):
            k: str


def test_other_model_settings_are_kept():
    class Order(State, correlate_by="k", extra="forbid"):
        model_config: ClassVar[ConfigDict] = ConfigDict(str_strip_whitespace=True, hide_input_in_errors=True)
        k: str

    assert Order(k=" a ").k == "a"
    assert Order.model_config["extra"] == "forbid"


@pytest.mark.parametrize(
    "field",
    [
        Field(alias="x"),
        Field(alias=""),
        Field(validation_alias="x"),
        Field(serialization_alias="x"),
        Field(validation_alias=AliasChoices("x", "y")),
        Field(validation_alias=AliasPath("x", 0)),
    ],
    ids=["alias", "empty", "validation", "serialization", "choices", "path"],
)
def test_alias(field):
    with pytest.raises(DefinitionError, match="the field 'total' has an alias"):

        class Order(State, correlate_by="k"):
            k: str
            total: int = field

    with pytest.raises(DefinitionError, match="the field 'total' has an alias"):

        class Base(State):
            total: Annotated[int, field] = 3


@pytest.mark.parametrize("generator", [to_camel, AliasGenerator(serialization_alias=to_camel)])
def test_alias_generator(generator):
    with pytest.raises(DefinitionError, match="alias_generator cannot be set on a saga: stored fields bear their own names"):

        class Order(State, correlate_by="order_id"):
            model_config = ConfigDict(alias_generator=generator)
            order_id: str


def test_alias_of_a_mixin():
    class Camel(BaseModel):
        order_id: str = Field(alias="orderId")

    with pytest.raises(DefinitionError, match="the field 'order_id' has an alias"):

        class Order(Camel, State, correlate_by="order_id"):
            pass


def test_excluded_field():
    with pytest.raises(DefinitionError, match=r"the field 'total' is excluded, so never stored\. Make it a PrivateAttr"):

        class Order(State, correlate_by="k"):
            k: str
            total: int = Field(3, exclude=True)


OURS = {
    *("starts", "handles", "send", "schedule", "unschedule", "complete", "reply"),
    *("find_async", "wait_async", "outcome_async"),
    *("gather", "find", "all", "wait", "outcome", "upgrade", "saga", "if_missing"),
}
OF_LATER = {"ask"}
PYDANTIC_HAS = {
    "model_dump",
    "model_fields",
    "model_copy",
    "json",
    "dict",
    "copy",
    "construct",
    "validate",
    "schema",
    "parse_raw",
}


@pytest.mark.parametrize("name", sorted(OURS | OF_LATER | PYDANTIC_HAS))
@pytest.mark.parametrize("base", [State, "abstract"])
def test_locked_field(name, base):
    """No warning of pydantic's leaks: the error is all there is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parent = State if base is State else saga(correlate_by=None)
        with pytest.raises(DefinitionError, match=f"a field or method may not be named '{name}'"):
            saga({name: str}, base=parent)
        with pytest.raises(DefinitionError, match=f"a field or method may not be named '{name}'"):
            saga({name: str}, correlate_by=None)


@pytest.mark.parametrize("name", sorted(OF_LATER))
@pytest.mark.parametrize(
    "value", [lambda self: None, property(lambda self: 1), classmethod(lambda cls: 1)], ids=lambda each: type(each).__name__
)
def test_name_of_later_is_no_method_either(name, value):
    """It would hide what comes to have this name, in a saga and in its mixins."""
    namespace = {"__module__": __name__, "__annotations__": {"k": str}}
    mixin = type("Mixin", (), {name: value})
    for bases, own in (((State,), {name: value}), ((mixin, State), {})):
        with pytest.raises(DefinitionError, match=f"a field or method may not be named '{name}'"):
            type(State)("Order", bases, {**namespace, **own}, correlate_by="k")


def test_every_name_that_a_saga_has_of_us_is_reserved():
    assert OURS <= RESERVED_FIELDS


def test_locked_field_with_a_default():
    with pytest.raises(DefinitionError, match="'reply'"):

        class Order(State, correlate_by="k"):
            k: str
            reply: str = Field("x")


def test_locked_field_of_a_mixin():
    class Plain:
        send: str

    class Model(BaseModel):
        saga: str = ""

    for mixin in (Plain, Model):
        with pytest.raises(DefinitionError, match=r"a field or method may not be named 's\w+'"):
            type(State)("Order", (mixin, State), {"__module__": __name__, "__annotations__": {"k": str}}, correlate_by="k")


def test_context_cannot_be_overridden():
    with pytest.raises(DefinitionError, match="'_context'"):

        class Annotated_(State, correlate_by="k"):
            k: str
            _context: int = 3

    with pytest.raises(DefinitionError, match="'_context'"):

        class Bare(State, correlate_by="k"):
            k: str
            _context = PrivateAttr(default=3)


def test_names_that_only_look_reserved():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = saga({"model_name": str, "sent": str, "sends": str, "id": str, "name": str, "version": int, "key": str})
    assert "model_name" in order.model_fields


def test_deriving_from_a_concrete_saga():
    concrete = saga()
    with pytest.raises(DefinitionError, match=r"it derives from the concrete saga Order\. Put what both share into a base"):
        saga(base=concrete, name="other")
    with pytest.raises(DefinitionError, match="derives from the concrete saga"):

        class Abstract(concrete):
            pass


def test_abstract_bases_hand_on_fields_methods_and_settings():
    class Base(State):
        model_config = ConfigDict(str_strip_whitespace=True)
        k: str
        note: str = "none"

        def shout(self) -> str:
            return self.note.upper()

    class Middle(Base):
        count: int = 0

    class Order(Middle, correlate_by="k"):
        total: int

    class Invoice(Middle, correlate_by="k"):
        pass

    assert Base.__saga__ is Middle.__saga__ is None
    assert list(Order.model_fields) == ["k", "note", "count", "total"]
    assert Order(k=" 1 ", total=1).shout() == "NONE"
    assert Order.__saga__ is not Invoice.__saga__


def test_mixins():
    class Methods:
        def shout(self) -> str:
            return str(self.k).upper()

    class Audit(BaseModel):
        author: str = "nobody"

    class Order(Methods, Audit, State, correlate_by="k"):
        k: str

    assert Order(k="a").shout() == "A"
    assert set(Order.model_fields) == {"author", "k"}


def test_init_subclass_of_a_mixin_runs():
    seen = []

    class Watched:
        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            seen.append(cls.__name__)

    class Order(State, Watched, correlate_by="k"):
        k: str

    assert seen == ["Order"]


def test_generic_base():
    class Holder(State, Generic[ItemT]):
        k: str
        item: ItemT

    class Order(Holder[int], correlate_by="k"):
        pass

    assert Holder.__saga__ is None
    assert Order.__saga__.name == "order"
    assert Order(k="1", item="3").item == 3


def test_generic_concrete_saga_cannot_be_parametrised():
    class Holder(State, Generic[ItemT], correlate_by="k"):
        k: str
        item: ItemT

    with pytest.raises(DefinitionError, match="derives from the concrete saga"):
        Holder[int]


def test_everything_pydantic_has_may_stand_in_a_saga():
    class Colour(enum.Enum):
        RED = "red"

    @dataclass
    class Part:
        name: str

    class Order(State, correlate_by="k"):
        known: ClassVar[list[str]] = []
        k: str
        colour: Colour = Colour.RED
        part: Part | None = None
        _seen: int = PrivateAttr(default=0)

        @computed_field
        @property
        def loud(self) -> str:
            return self.k.upper()

        @cached_property
        def slow(self) -> str:
            return self.k * 2

        @field_validator("k")
        @classmethod
        def strip(cls, value: str) -> str:
            return value.strip()

        @model_validator(mode="before")
        @classmethod
        def before(cls, data: Any) -> Any:
            return data

        @model_validator(mode="after")
        def after(self) -> "Order":
            return self

    order = Order(k=" a ")
    order._seen += 1
    assert (order.loud, order.slow, order._seen) == ("A", "aa", 1)
    assert list(Order.model_fields) == ["k", "colour", "part"]


def test_made_by_create_model():
    order = create_model("Order", __base__=State, __cls_kwargs__={"correlate_by": "k"}, k=(str, ...))
    assert order.__saga__.name == "order"


def test_key_of_a_type_without_canonical_text():
    """The annotation may be a forward reference, so that this is seen when the app is finalised."""
    with pytest.raises(DefinitionError, match="declared as float"):
        _ = saga({"total": float}, correlate_by="total").__saga__.keys


def test_key_with_constraints():
    keys = saga({"n": Key}, correlate_by="n").__saga__.keys
    with pytest.raises(ValueError, match="at least 1 character"):
        keys.key[0].convert("")


class Forward(State, correlate_by="key", also_by="other"):
    key: "Later"
    other: "Later | None" = None
    lines: "list[Line]" = Field(default_factory=list)


Later = UUID


class Line(BaseModel):
    again: "Forward | None" = None


def test_forward_references_are_resolved_late():
    keys = Forward.__saga__.keys
    assert keys.key[0].type is UUID
    assert keys.alternate_keys["other"].type is UUID


def test_deferred_build():
    class Order(State, correlate_by="k"):
        model_config = ConfigDict(defer_build=True)
        k: str

    resolve_fields(Order)
    assert Order.__pydantic_complete__


def test_name_that_does_not_exist_at_run_time():
    class Order(State, correlate_by="k"):
        k: str
        lines: "list[NotImported]" = Field(default_factory=list)  # noqa: F821

    with pytest.raises(DefinitionError) as caught:
        _ = Order.__saga__.keys
    text = str(caught.value)
    assert "name 'NotImported' is not defined" in text
    assert "outside TYPE_CHECKING" in text
    assert "errors.pydantic.dev" not in text


class Stranger(State, correlate_by="k"):
    k: str
    other: "Strange | None" = None


class Strange:
    pass


def test_forward_reference_to_what_pydantic_cannot_validate():
    with pytest.raises(DefinitionError, match=r"Stranger: a field has a type that pydantic cannot validate: .*Strange") as caught:
        resolve_fields(Stranger)
    assert "errors.pydantic.dev" not in str(caught.value)


@pytest.mark.skipif("validate_by_alias" not in ConfigDict.__annotations__, reason="pydantic before 2.11 has no such setting")
def test_validate_by_alias_has_nothing_to_do():
    assert saga(validate_by_alias=False, validate_by_name=True)(k="1").k == "1"


@pytest.mark.parametrize(
    ("keep", "milliseconds"),
    [(timedelta(days=3), 259_200_000), (60, 60_000), (0.001, 1), (timedelta(days=36_500), 3_153_600_000_000)],
)
def test_keep(keep, milliseconds):
    assert saga(keep=keep).__saga__.keep_ms == milliseconds
    assert saga().__saga__.keep_ms is None


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        (0, "keep=0 is no time to keep a final state. Between a millisecond and 100 years"),
        (-1, "keep=-1 is no time"),
        (timedelta(0), "is no time"),
        (0.0001, "is no time"),
        (float("nan"), "keep=nan is no time"),
        (float("inf"), "keep=inf is no time"),
        (timedelta(days=36_501), "is no time"),
        (True, "keep= takes a timedelta or seconds, not bool"),
        ("1d", "keep= takes a timedelta or seconds, not str"),
    ],
)
def test_keep_that_is_no_time(keep, problem):
    with pytest.raises(DefinitionError, match=r"^Order: ") as caught:
        saga(keep=keep)
    assert problem in str(caught.value)


def test_max_idle():
    assert saga(max_idle=timedelta(days=7)).__saga__.max_idle_ms == 604_800_000
    assert saga(max_idle=0.5, keep=60).__saga__.max_idle_ms == 500
    assert saga(keep=60).__saga__.max_idle_ms is None


@pytest.mark.parametrize(
    ("max_idle", "problem"),
    [
        (0, "max_idle=0 is no time to leave an instance alone. Between a millisecond and 100 years"),
        (timedelta(days=36_501), "is no time"),
        ("7d", "max_idle= takes a timedelta or seconds, not str. max_idle=timedelta(days=3)"),
    ],
)
def test_max_idle_that_is_no_time(max_idle, problem):
    with pytest.raises(DefinitionError, match=r"^Order: ") as caught:
        saga(max_idle=max_idle)
    assert problem in str(caught.value)
