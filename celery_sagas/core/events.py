"""Events: their names, and the parameter with which a function subscribes to one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final, get_origin

from pydantic import ValidationError
from pydantic_core import SchemaValidator, to_json

from celery_sagas.core.arguments import reader_of, resolve_annotations
from celery_sagas.core.codec import validation_problems
from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import Message
from celery_sagas.errors import BUGS, DefinitionError, InvalidMessage

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_REMEDY: Final = "def on_order(event: OrderPlaced, …)"


def event_name(event: type[Message]) -> str:
    """Return the name under which an event is published."""
    return f"{event.__module__}.{event.__qualname__}"


def event_of(annotation: Any) -> type[Message] | None:
    """Return the class of events that an annotation names, perhaps beside ``None``."""
    kind, _ = unwrap(annotation)
    return kind if isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, Message) else None


@dataclass(frozen=True, slots=True)
class EventParameter:
    """The first parameter of a subscribing task: the event, which it is given as an object of its class."""

    task: str  #: the task's name
    name: str
    event: type[Message]
    _reader: SchemaValidator

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with the event as an object; one that is an object already stays.

        Raises:
            InvalidMessage: The event does not fit.
        """
        if args:
            return (self._event(args[0]), *args[1:]), kwargs
        return args, {**kwargs, self.name: self._event(kwargs[self.name])} if self.name in kwargs else kwargs

    def _event(self, value: Any) -> Any:
        if isinstance(value, self.event):
            return value
        try:
            return self._reader.validate_json(to_json({self.name: value}))[self.name]
        except ValidationError as exc:
            raise InvalidMessage(self.task, validation_problems(exc)) from exc
        except BUGS as exc:
            raise InvalidMessage(self.task, [(self.name, f"a {type(value).__name__} is no {self.event.__name__}")]) from exc


def event_parameter(task: str, function: Callable[..., Any]) -> EventParameter:
    """Return the parameter with which a task subscribes to an event.

    Args:
        task: The task's name.
        function: What a worker calls with the message's arguments.

    Raises:
        DefinitionError: Its first parameter is not annotated with one class of events, or the event is not all that it needs.
    """
    parameters = list(inspect.signature(function).parameters.values())
    hints = resolve_annotations(task, function)
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise DefinitionError(task, "it subscribes, and takes no argument first", _REMEDY)
    first, *others = parameters
    event = event_of(hints.get(first.name, Any))
    if event is None or event is Message:
        found = f"is annotated {_shown(hints[first.name])}" if first.name in hints else "has no annotation"
        problem = f"it subscribes, and its first parameter {first.name!r} {found}, not with one class of events"
        raise DefinitionError(task, problem, f"Annotate it with a subclass of Message: {_REMEDY}")
    if second := next((each.name for each in others if event_of(hints.get(each.name, Any))), None):
        raise DefinitionError(task, f"it subscribes with two parameters, {first.name!r} and {second!r}", "Write a task for each")
    if needed := [each.name for each in others if each.default is each.empty and each.kind not in _VARIABLE]:
        raise DefinitionError(task, f"it subscribes, and needs more than the event: {', '.join(needed)}", "Give it a default")
    return EventParameter(task, first.name, event, reader_of(task, first.name, hints[first.name]))


def _shown(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation))
