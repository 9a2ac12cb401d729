"""The state of a saga: a pydantic model whose class keywords define the saga."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PrivateAttr

from celery_sagas.core.context import SagaView, StepContext
from celery_sagas.core.delays import Delay
from celery_sagas.core.saga import (
    RESERVED_FOR_LATER,
    SagaDefinition,
    alternate_keys,
    backend_name,
    check_fields,
    check_names,
    define,
    search_fields,
    status_field,
)
from celery_sagas.errors import DefinitionError, MisuseError

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    _WITHOUT_EVALUATION: dict[str, Any] = {"format": Format.FORWARDREF}
else:
    from inspect import get_annotations

    _WITHOUT_EVALUATION: dict[str, Any] = {}

#: Settings of a pydantic model that a state cannot have, and why.
_REFUSED_CONFIG = {
    "validate_assignment": "it copies lists and does not see nested changes; the state is validated at the commit",
    "frozen": "a step changes the state",
    "alias_generator": "stored fields bear their own names",
}


class State(BaseModel):
    """The state of an instance, and the context of the step that runs on it."""

    #: Values may be secret: no error shows them. Reserved names are checked here, not by prefix.
    model_config = ConfigDict(hide_input_in_errors=True, protected_namespaces=())

    #: Present on concrete sagas only.
    __saga__: ClassVar[SagaDefinition | None] = None
    #: The alternate keys of the class, those of its abstract bases first.
    __also_by__: ClassVar[tuple[str, ...]] = ()
    #: The fields by which instances are listed, those of its abstract bases first.
    __search_by__: ClassVar[tuple[str, ...]] = ()
    #: The field that holds the status, or that of an abstract base.
    __status_by__: ClassVar[str | None] = None
    #: The name of the backend that stores the instances, or that of an abstract base.
    __backend__: ClassVar[str | None] = None
    #: The function for missing instances, of the class or of a base.
    __if_missing__: ClassVar[Callable[..., Any] | None] = None

    # A slot, and no private attribute: pydantic sets those up in Python, each time a state is decoded.
    __slots__ = ("_context",)

    if TYPE_CHECKING:
        _context: StepContext | None = PrivateAttr(default=None)  # no parameter of the class

        def __init_subclass__(
            cls,
            *,
            correlate_by: str | tuple[str, ...] | None = None,
            also_by: str | tuple[str, ...] | None = None,
            search_by: str | tuple[str, ...] | None = None,
            status_by: str | None = None,
            name: str | None = None,
            formerly: str | tuple[str, ...] | None = None,
            schema_version: int = 1,
            history: Literal["off", "names", "values", "messages"] | tuple[str, ...] | None = None,
            keep: Delay | None = None,
            max_idle: Delay | None = None,
            backend: str | None = None,
        ) -> None: ...

    else:

        def __init_subclass__(cls, **keywords: object) -> None:
            """Check keywords that pydantic would otherwise refuse, or warn of, in its own words."""
            super().__init_subclass__()
            for base in cls.__bases__:
                if getattr(base, "__saga__", None) is not None:
                    raise DefinitionError(cls.__qualname__, f"it derives from the concrete saga {base.__qualname__}", _DERIVE)
            check_names(cls.__qualname__, _names(cls), frozenset(dir(BaseModel)))

        @classmethod
        def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
            """Define the saga, once pydantic has collected its fields."""
            for setting, reason in _REFUSED_CONFIG.items():
                if cls.model_config.get(setting):
                    raise DefinitionError(cls.__qualname__, f"{setting} cannot be set on a saga: {reason}")
            if "_context" in cls.__private_attributes__:
                check_names(cls.__qualname__, ["_context"], ())
            check_fields(cls.__qualname__, cls.model_fields)
            cls.__saga__ = _define(cls, **keywords)

        def __setattr__(self, name: str, value: object) -> None:
            """Set a field, unless this is a read-only copy."""
            self._check_writable(name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            """Unset a field, unless this is a read-only copy."""
            self._check_writable(name)
            super().__delattr__(name)

        def __getattr__(self, name: str) -> Any:
            """Report a field as unset, rather than as unknown; outside a step there is no context."""
            if name == "_context":
                return None
            if name in type(self).model_fields:
                raise AttributeError(f"{type(self).__name__}.{name} is not set yet: it has no default, and no step has set it")
            return super().__getattr__(name)

    @classmethod
    def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
        """Turn the data of an older schema version into today's, before it is validated.

        Override it when you raise ``schema_version``.

        Args:
            data: The stored fields, decoded from JSON; may be changed in place.
            schema_version: The version that wrote them, lower than the class's.
        """
        return data

    @property
    def saga(self) -> SagaView:
        """The library's view of this instance."""
        if self._context is None:
            raise MisuseError(f"this {type(self).__name__} belongs to no instance", "It has .saga inside a step, or from find()")
        return self._context.view

    def complete(self) -> None:
        """End the instance with this message: its state is removed, its journal stays.

        Raises:
            MisuseError: Something of it is being undone; or no step runs on this object.
        """
        context = self._in_step("complete")
        context.check_undone()
        context.completed = True

    def _check_writable(self, name: str) -> None:
        context = self._context
        if context is not None and context.sending is None and not name.startswith("_"):
            raise MisuseError(f"this copy of {context.view.name} is read-only", "Change the state in a step of the saga")

    def _in_step(self, what: str) -> StepContext:
        if self._context is None:
            raise MisuseError(f"{what}() was called outside a step", "Call it while a step of the saga runs")
        self._context.require_sending(what)
        return self._context


_DERIVE = "Put what both share into a base class without correlate_by"


def _define(
    cls: type[State],
    *,
    correlate_by: str | tuple[str, ...] | None = None,
    also_by: str | tuple[str, ...] | None = None,
    search_by: str | tuple[str, ...] | None = None,
    status_by: str | None = None,
    name: str | None = None,
    formerly: str | tuple[str, ...] | None = None,
    schema_version: int = 1,
    history: str | tuple[str, ...] | None = None,
    keep: Delay | None = None,
    max_idle: Delay | None = None,
    backend: str | None = None,
    **unknown: object,
) -> SagaDefinition | None:
    if unknown:
        raise DefinitionError(
            cls.__qualname__,
            f"unknown class keyword {', '.join(sorted(unknown))}",
            "Known: correlate_by, also_by, search_by, status_by, name, formerly, schema_version, history, keep, "
            "max_idle, backend",
        )
    cls.__also_by__ = alternate_keys(cls, also_by, correlate_by)
    cls.__search_by__ = search_fields(cls, search_by, correlate_by)
    cls.__status_by__ = status_field(cls, status_by, correlate_by)
    cls.__backend__ = backend_name(cls, backend)
    if correlate_by is None:
        if name or formerly or schema_version != 1 or any(each is not None for each in (history, keep, max_idle)):
            raise DefinitionError(cls.__qualname__, "it has no correlate_by", "Name the field that is the key of an instance")
        return None
    return define(
        cls,
        correlate_by=correlate_by,
        also_by=cls.__also_by__,
        search_by=cls.__search_by__,
        name=name,
        formerly=formerly,
        schema_version=schema_version,
        history=history,
        status_by=cls.__status_by__,
        keep=keep,
        max_idle=max_idle,
        backend=cls.__backend__,
    )


def _names(cls: type) -> Iterator[str]:
    """Yield the names that a class and its mixins annotate, which become fields, and their names reserved for later."""
    for base in cls.__mro__:
        if base not in State.__mro__:
            yield from get_annotations(base, **_WITHOUT_EVALUATION)
            yield from vars(base).keys() & RESERVED_FOR_LATER
