"""A visit: who asks for a page, and with which parameters; and the page that is the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import StoreUnavailable
from celery_sagas.operate.spans import age_ms
from celery_sagas.stores.ports import Backend
from celery_sagas.web.access import Access, Level
from celery_sagas.web.cache import Cache
from celery_sagas.web.links import Links
from celery_sagas.worker.runtime import Runtime

T = TypeVar("T")


class Page(NamedTuple):
    """A page: a template with its values, and what a program gets in its place."""

    template: str
    context: Mapping[str, Any]
    facts: Any = None  #: values of JSON
    status: int = 200
    location: str = ""  #: where the browser goes instead


class Refused(Exception):
    """Raised when somebody may not see a page, or there is none. What it says is shown."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True)
class Visit:
    """Who asks for a page, and with which parameters."""

    runtime: Runtime
    access: Access
    links: Links
    cache: Cache
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> Sequence[str]:
        """Patterns of the names that are hidden."""
        return self.runtime.settings.hidden

    @property
    def may_read(self) -> bool:
        """Whether states and messages are shown."""
        return self.access.may("read")

    def demand(self, level: Level) -> None:
        """Refuse whoever has not this level of access.

        Raises:
            Refused: They have not.
        """
        if not self.access.may(level):
            raise Refused(403, f"This needs the level of access “{level}”, and yours is “{self.access.level}”.")

    def given(self, name: str) -> str:
        """Return a parameter; an empty text if it is not given."""
        return self.query.get(name, "").strip()

    def age(self, name: str) -> int | None:
        """Return a parameter that is an age, in milliseconds; ``None`` if it is not given.

        Raises:
            Refused: It is none.
        """
        try:
            return age_ms(given) if (given := self.given(name)) else None
        except ValueError as exc:
            raise Refused(400, f"{exc}.") from exc

    def saga(self, name: str) -> SagaDefinition:
        """Return the saga with a stored name.

        Raises:
            Refused: There is none.
        """
        found = registry.saga_named(name)
        if found is None:
            raise Refused(404, "This app has no such saga.")
        return found

    def saga_given(self) -> SagaDefinition | None:
        """Return the saga that a parameter names; ``None`` if it is not given.

        Raises:
            Refused: There is no such saga.
        """
        return self.saga(given) if (given := self.given("saga")) else None

    def store(self) -> "Store":
        """Return the backend to look at: that of the saga that is given, or the one that a parameter chooses."""
        saga, backends = self.saga_given(), list(self.runtime.backends)
        chosen = self.given("store")
        number = int(chosen) if chosen.isdecimal() and len(chosen) < 4 and int(chosen) < len(backends) else 0
        if not chosen and (task := self.given("task")):  # whose dead letters are asked for
            number = backends.index(self._backend_of(task))
        backend = self.runtime.backends.of(saga) if saga else backends[number]
        return Store(backend, number, [] if saga else [each.url for each in backends])

    def _backend_of(self, task: str) -> Backend:
        step = registry.step_named(task)
        return self.runtime.batches if task in registry.aggregators else self.runtime.backends.of(step.saga if step else None)


class Store(NamedTuple):
    """A backend, of which a page shows what it has."""

    backend: Backend
    number: int  #: among them
    urls: Sequence[str]  #: of those that can be chosen, without passwords

    @property
    def parameter(self) -> str:
        """What chooses it in the links of its page; empty: the first one."""
        return str(self.number or "")


def of_each(backends: Sequence[Backend], read: Callable[[Backend], T]) -> tuple[list[T], list[str]]:
    """Return what is read of each backend, and the errors of those that are away."""
    found, away = list[T](), list[str]()
    for backend in backends:
        try:
            found.append(read(backend))
        except StoreUnavailable as exc:
            away.append(str(exc))
    return found, away
