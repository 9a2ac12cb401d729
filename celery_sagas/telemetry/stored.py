"""The gauges of what is stored, as a registry of prometheus_client, which is optional."""

from importlib import import_module
from typing import TYPE_CHECKING

from celery_sagas.errors import needs_extra
from celery_sagas.worker.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def registry_of(runtime: Runtime) -> "CollectorRegistry":
    """Return a registry with the gauges of what an app has stored.

    Raises:
        MissingExtra: prometheus_client is not installed.
    """
    with needs_extra("prometheus", "prometheus_client"):
        client, store = import_module("prometheus_client"), import_module("celery_sagas.telemetry.prometheus_store")
    registry: CollectorRegistry = client.CollectorRegistry(auto_describe=False)
    registry.register(store.StoreCollector(runtime))
    return registry
