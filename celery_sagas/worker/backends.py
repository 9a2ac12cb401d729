"""The backends of an app, as its settings name them."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from celery import Celery

from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import UnsafeBackend
from celery_sagas.settings import DEFAULT_FILE, Settings, is_default_backend, no_backend
from celery_sagas.stores.encoded.backend import EncodedBackend
from celery_sagas.stores.encoded.codec import load_codec
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.urls import open_backend

logger = logging.getLogger("celery_sagas")


@dataclass(frozen=True)
class Backends:
    """The open backends of an app. Some may be the same one; iterating yields those that its definitions use, each once."""

    default: Backend  #: of sagas that name none, and of dead letters that belong to no saga
    batches: Backend  #: of the items of aggregators
    outbox: Backend  #: in whose transactions plain code sends
    #: By the names that sagas have for them; ``None`` where a test has one backend for all.
    named: Mapping[str, Backend] | None = field(default_factory=dict)

    def of(self, saga: SagaDefinition | None) -> Backend:
        """Return the backend that stores the instances of a saga.

        Raises:
            ConfigurationError: The settings do not have the one that the saga names.
        """
        if saga is None or saga.backend is None or self.named is None:
            return self.default
        if saga.backend not in self.named:
            raise no_backend(saga.backend, self.named, saga.cls.__qualname__)
        return self.named[saga.backend]

    def of_sagas(self) -> list[Backend]:
        """Return the backends that store sagas which this process defines, the default one first."""
        return list(dict.fromkeys((self.default, *map(self.of, registry.sagas.values()))))

    def sagas_in(self, backend: Backend) -> list[SagaDefinition]:
        """Return the sagas that a backend stores."""
        return [saga for saga in registry.sagas.values() if self.of(saga) is backend]

    def __iter__(self) -> Iterator[Backend]:
        return iter(dict.fromkeys((*self.of_sagas(), self.batches, self.outbox)))

    @property
    def opened(self) -> list[Backend]:
        """All of them, also those that no definition uses yet."""
        return list(dict.fromkeys((self.default, *(self.named or {}).values(), self.batches, self.outbox)))

    def close(self) -> None:
        """Close every connection."""
        for backend in self.opened:
            backend.close()


def open_backends(app: Celery, settings: Settings) -> Backends:
    """Open the backends that an app's settings name; nothing is connected yet.

    Raises:
        ConfigurationError: A setting is wrong, or a backend's driver is missing.
    """
    warn_of_default_backend(app)
    given = settings.all_backends()
    opened = [open_backend(each.backend, prefix=settings.prefix, options=each.options) for each in given]
    if settings.codec is not None:
        codec = load_codec(settings.codec)
        opened = [EncodedBackend(each, codec) for each in opened]

    def named(name: str | None) -> Backend:
        return opened[given.index(settings.backend_named(name))]

    default, batches, outbox = map(named, (None, settings.aggregator_backend, settings.outbox_backend))
    return Backends(default, batches, outbox, {name: named(name) for name in settings.backends})


def setting_of(saga: SagaDefinition) -> str:
    """Return the setting that names the backend of a saga."""
    return "saga_backend" if saga.backend is None else f'saga_backends["{saga.backend}"]["backend"]'


def retention_s(settings: Settings, backend: Backend) -> float:
    """Return how long a backend remembers handled messages. Seconds."""
    return settings.journal_retention or backend.journal_retention_s


def prepare_backend(backend: Backend, settings: Settings, processes: int) -> None:
    """Prepare a backend according to the settings; see ``Runtime.prepare``."""
    try:
        for warning in backend.prepare(create_schema=settings.create_schema, processes=processes):
            logger.warning("%s: %s", backend.url, warning)
    except UnsafeBackend as exc:
        if settings.unsafe_backend == "refuse":
            raise
        logger.warning("%s: %s", backend.url, exc)


def warn_of_default_backend(app: Celery) -> None:
    """Log the default file of an app without a configured backend: once, also if the process forks afterwards."""
    if not _told and is_default_backend(app.conf):
        _told.append(True)
        logger.warning("saga_backend is not set: sagas are kept in %s", default_file())


def default_file() -> Path:
    """Return the file that stores an app's sagas, or its dead letters, if no backend is configured."""
    return Path(DEFAULT_FILE).resolve()


def has_backend(app: Celery) -> bool:
    """Return whether an app has sagas, or a configured backend: otherwise it only stores dead letters, in the default file."""
    return bool(registry) or not is_default_backend(app.conf)


_told: list[bool] = []
