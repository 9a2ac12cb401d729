"""What a tool for tracing gets from a worker, if one is there: how messages are handled, and the context of what they send."""

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from celery_sagas.engine.tracing import MessageTrace


class HandlingTrace(MessageTrace, Protocol):
    """What traces the handling of one message in a process: a context manager around it, unless it is handled with others."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object, /) -> None: ...

    def attach(self) -> None:
        """Have what is done here belong to the message from now on."""

    def end(self) -> None:
        """Note that a message that is handled with others was handled."""

    def leave(self) -> None:
        """Note that a message that is handled with others is left, to be handled alone."""


class Tracer(Protocol):
    """A tool for tracing."""

    def message(self, task: Any, request: Any, message_id: str, *, is_batched: bool = False) -> HandlingTrace:
        """Return what traces the message of a step's request, from now on."""

    def headers(self) -> Mapping[str, str]:
        """Return the headers with which a message belongs to what is done here."""

    def is_in(self, headers: Mapping[str, Any]) -> bool:
        """Return whether a message with these headers belongs to something already."""

    def publishing(self, headers: Mapping[str, Any] | None) -> AbstractContextManager[None]:
        """Have a message be published where it belongs by its headers; leave nothing of that behind."""

    def forget(self, headers: MutableMapping[str, Any]) -> None:
        """Remove such headers: the messages of a series, which may last for years, belong to nothing."""


#: That of this process. It is looked for with each message.
tracer: Tracer | None = None


def trace_with(tool: Tracer | None) -> None:
    """Have messages be traced by a tool from now on, or by none."""
    global tracer
    tracer = tool
