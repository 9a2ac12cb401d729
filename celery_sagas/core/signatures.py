"""Signatures and tasks of Celery, as type checkers see them in what a message is sent with."""

from typing import Any, ClassVar, Protocol, TypeVar

#: A ``Signature``, which is a dictionary: to type checkers without Celery's types, every object would be one.
AnySignature = dict[str, Any]
R_co = TypeVar("R_co", covariant=True)


class AnyTask(Protocol):
    """A task, also a step."""

    @property
    def name(self) -> Any:
        """Its name."""

    def s(self, *args: Any, **kwargs: Any) -> Any:
        """Return a signature of it."""


class SignatureOf(Protocol[R_co]):
    """A signature of a task that returns an ``R_co``, as type checkers with celery-types see it."""

    __hash__: ClassVar[None]  # type: ignore[assignment]  # a signature is a dictionary; a task without .s() is none

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        """Run the task here, and return what it returns."""


class Piped(Protocol):
    """A chain, ``first.s() | second.s()``, as mypy sees it: a dictionary."""

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __or__(self, other: AnySignature, /) -> AnySignature:
        """Return a dictionary. ``Signature.__or__`` takes signatures only: so a ``Signature`` is a ``SignatureOf`` alone."""
