"""Opening backends under the prefix of a test."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Protocol, TypeVar

from celery_sagas.stores.ports import Backend

B_co = TypeVar("B_co", bound=Backend, covariant=True)


class Open(Protocol[B_co]):
    """Opens a backend on the test's server under the test's prefix; it is closed when the test ends."""

    def __call__(
        self,
        *,
        prefix: str | None = None,
        options: Mapping[str, object] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> B_co: ...


class OpenAt(Protocol[B_co]):
    """Opens a backend on any server, else as ``Open`` does."""

    def __call__(
        self,
        url: str,
        *,
        prefix: str | None = None,
        options: Mapping[str, object] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> B_co: ...


@contextmanager
def opening(kind: Callable[..., B_co], own: str, patient: Mapping[str, object]) -> Iterator[OpenAt[B_co]]:
    """Open backends of a kind, under a prefix and with options unless others are given; close them at the end."""
    with ExitStack() as opened:

        def open_one(
            url: str,
            *,
            prefix: str | None = None,
            options: Mapping[str, object] | None = None,
            clock: Callable[[], int] | None = None,
        ) -> B_co:
            name, given = own if prefix is None else prefix, {**patient, **(options or {})}
            return opened.enter_context(closing(kind(url, prefix=name, options=given, clock=clock)))

        yield open_one
