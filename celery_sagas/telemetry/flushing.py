"""The end of a process of a worker's pool, which is not that of a Python program: what it has not exported would be lost."""

import logging
from collections.abc import Callable
from threading import Thread
from typing import Any, Final

from celery import signals

logger = logging.getLogger("celery_sagas")

#: For how long a process that ends exports. The SDK may wait for longer, and the pool lacks a process meanwhile.
_FLUSHED_S: Final = 2.0


def flush_at_end(provider: Callable[[], Any], receiver: str) -> None:
    """Have a process of the pool that ends export what a provider of OpenTelemetry's SDK still has.

    Args:
        provider: Returns the provider.
        receiver: The name under which this can be disconnected.
    """

    def flush(**_: object) -> None:
        if hasattr(given := provider(), "force_flush"):  # of the SDK
            flushing = Thread(target=_flush, args=(given,), daemon=True)
            flushing.start()
            flushing.join(_FLUSHED_S)

    signals.worker_process_shutdown.connect(flush, weak=False, dispatch_uid=receiver)


def _flush(provider: Any) -> None:
    try:
        provider.force_flush(int(_FLUSHED_S * 1000))
    except Exception as exc:  # of any exporter
        logger.warning("the last spans or metrics of this process could not be exported: %s", exc)
