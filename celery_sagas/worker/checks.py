"""Checks of what is declared against the backends that the settings name; nothing is connected."""

import math

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.registry import registry
from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import Settings
from celery_sagas.stores.optional import no_aggregators, no_instances
from celery_sagas.stores.ports import Backend, shared_of
from celery_sagas.worker.backends import Backends, retention_s, setting_of


def check_definitions(settings: Settings, backends: Backends) -> None:
    """Refuse backends that cannot do what sagas, steps and aggregators need.

    Raises:
        ConfigurationError: One cannot; or a saga names one that the settings do not have.
    """
    if registry.aggregators and not backends.batches.has_aggregators:
        raise no_aggregators(backends.batches.url, f"the items of {', '.join(sorted(registry.aggregators))}")
    _check_kept_states(settings, backends)
    _check_listed(backends)
    _check_transactions(backends)
    if settings.outbox_backend is not None:
        shared_of(backends.outbox, "saga_outbox_backend")


def _check_kept_states(settings: Settings, backends: Backends) -> None:
    """Refuse a journal that forgets a final state before its saga says so."""
    for saga in registry.sagas.values():
        kept_s = retention_s(settings, backends.of(saga))
        if saga.keep_ms is not None and saga.keep_ms > kept_s * 1000:
            keep_s = math.ceil(saga.keep_ms / 1000)
            name = saga.cls.__qualname__
            problem = f"{name} keeps final states for {keep_s} s, and the journal its entries for {kept_s:g} s"
            raise ConfigurationError(problem, f"Set saga_journal_retention to at least {keep_s}, or shorten keep=")


def _check_listed(backends: Backends) -> None:
    """Refuse sagas that are to be listed where the backend lists none."""
    for saga in registry.sagas.values():
        backend = backends.of(saga)
        keyword = "search_by" if saga.search_properties else "max_idle" if saga.max_idle_ms is not None else ""
        if keyword and not backend.has_instances:
            raise no_instances(backend.url, f"the instances of {saga.cls.__qualname__}, which has {keyword}=,")


def _check_transactions(backends: Backends) -> None:
    """Refuse steps and aggregators whose transactions their backend does not share."""
    declared: list[tuple[StepDefinition | AggregatorDefinition, Backend, str]] = [
        *((step, backends.of(step.saga), setting_of(step.saga)) for step in registry.steps.values()),
        *((each, backends.batches, "saga_aggregator_backend, or saga_backend,") for each in registry.aggregators.values()),
    ]
    for definition, backend, setting in declared:
        kind = definition.transaction
        if kind is None:
            continue
        try:
            shared_of(backend, setting, *([f"django://{kind}"] if isinstance(kind, str) else [])).check(kind)
        except ConfigurationError as exc:
            raise ConfigurationError(f"{definition.name} has transaction=, but {exc.problem}", exc.remedy) from exc
