"""The status of an instance: the field that holds it, in which statuses a step runs, and in which it leaves the instance."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from functools import cached_property
from typing import Any, Final, Literal, get_args, get_origin

from celery_sagas.core.keys import spelled, unwrap
from celery_sagas.errors import DefinitionError


class IfNot(StrEnum):
    """The policy of a step for an instance that is not in the right status."""

    RAISE = "raise"
    IGNORE = "ignore"
    DEFER = "defer"


@dataclass(frozen=True)
class StatusRule:
    """When a step runs, and how it leaves the instance."""

    when: tuple[str, ...] = ()  #: in which statuses it runs; empty: in each
    condition: Callable[..., object] | None = None  #: whether it runs, asked with the state and the message's arguments
    to: tuple[str, ...] = ()  #: in which of these statuses it leaves the instance; empty: in any
    if_not: IfNot = IfNot.RAISE

    @cached_property
    def is_conditional(self) -> bool:
        """Whether there are instances for which the step does not run."""
        return bool(self.when) or self.condition is not None

    @property
    def expected(self) -> str:
        """What it expects of the instance, for errors and operators."""
        if self.condition is not None:
            return f"when {getattr(self.condition, '__qualname__', type(self.condition).__qualname__)}() is true"
        return f"when it is {' or '.join(map(repr, self.when))}" if self.when else "always"


#: The rule of a step that runs in any status.
ALWAYS: Final = StatusRule()


def status_rule(subject: str, when: object, to: object, if_not: object) -> StatusRule:
    """Check what a step declares, as far as that needs no annotation, and return its rule.

    Args:
        subject: The step, for errors.
        when: A status, several, or a function of the state and the message's arguments; ``None``: any.
        to: A status, or several; ``None``: any.
        if_not: A policy; ``None``: the default one.

    Raises:
        DefinitionError: It is declared wrongly.
    """
    condition = when if callable(when) and not isinstance(when, str | type) else None
    statuses = () if when is None or condition is not None else _texts(subject, "when", when)
    rule = StatusRule(statuses, condition, () if to is None else _texts(subject, "to", to), _policy(subject, if_not))
    if if_not is not None and not rule.is_conditional:
        raise DefinitionError(subject, f"it has if_not={str(if_not)!r} without when=", "Say when it may run")
    return rule


def _policy(subject: str, if_not: object) -> IfNot:
    if if_not is None:
        return IfNot.RAISE
    try:
        return IfNot(if_not)  # type: ignore[arg-type]
    except ValueError as exc:
        raise DefinitionError(subject, f"if_not={if_not!r} is no policy", f"Known: {', '.join(IfNot)}") from exc


def _texts(subject: str, keyword: str, given: object) -> tuple[str, ...]:
    are_several = isinstance(given, Collection) and not isinstance(given, str | type)
    texts = [text_of(each) for each in (given if are_several else (given,))]  # type: ignore[attr-defined]
    if not texts or None in texts:
        shown = given.__name__ if isinstance(given, type) else repr(given)
        raise DefinitionError(
            subject, f"{keyword}={shown} is neither a status nor several", 'Such as "paid", or {"placed", "paid"}'
        )
    return tuple(
        dict.fromkeys(text for text in (sorted(map(str, texts)) if isinstance(given, set | frozenset) else texts) if text)
    )


def text_of(status: object) -> str | None:
    """Return the text of a status, a text or a member of an ``Enum`` of texts; ``None`` if it is neither."""
    if type(status) is str:
        return status or None
    value = status.value if isinstance(status, Enum) else status
    return str(value) if isinstance(value, str) and value else None


def statuses_in(subject: str, field: str, annotation: Any) -> Mapping[str, Any]:
    """Return the statuses that an annotation allows, as the field holds them, by their texts.

    Raises:
        DefinitionError: It is neither a ``Literal`` of texts nor an ``Enum`` of texts.
    """
    bare, _ = unwrap(annotation)
    given: Iterable[Any] = ()
    if get_origin(bare) is Literal:
        given = get_args(bare)
    elif isinstance(bare, type) and issubclass(bare, Enum):
        given = bare
    statuses = {text: value for value in given if (text := text_of(value)) is not None}
    if not statuses or len(statuses) < len(list(given)):
        problem = f"status_by={field!r} is annotated {spelled(annotation)}"
        raise DefinitionError(subject, problem, 'Name the statuses: Literal["placed", "paid"], or an Enum of texts')
    return statuses


def check_statuses(step: str, saga: str, rule: StatusRule, statuses: Mapping[str, Any]) -> None:
    """Refuse statuses that the saga does not have.

    Args:
        step: The step's name.
        saga: The name of the saga's class.
        rule: The step's.
        statuses: Those of the saga, by their texts; empty: it has no status.

    Raises:
        DefinitionError: There is one.
    """
    for keyword, texts in (("when", rule.when), ("to", rule.to)):
        if texts and not statuses:
            remedy = f'class {saga}(Saga, …, status_by="status")'
            raise DefinitionError(step, f"it has {keyword}=, and {saga} has no status", remedy)
        for text in texts:
            if text not in statuses:
                near = get_close_matches(text, statuses, n=1)
                meant = f"Do you mean {near[0]!r}?" if near else f"Known: {', '.join(statuses)}"
                raise DefinitionError(step, f"{keyword}= names {text!r}, which is no status of {saga}", meant)
