"""``celery -A proj inspect sagas_relay`` and ``inspect sagas_code``: what the workers' relays do, and which code runs there.

A worker answers in its main process, where its relay runs.
"""

import time
from functools import partial
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.worker.control import inspect_command

from celery_sagas.core.registry import registry
from celery_sagas.errors import SagaError
from celery_sagas.settings import read_settings
from celery_sagas.worker.backends import default_file, has_backend
from celery_sagas.worker.process.relay import relay_of
from celery_sagas.worker.runtime import main_process_backends, within

#: Seconds for the store to answer: the worker consumes nothing meanwhile, and ``celery inspect`` waits for a second.
_COUNT_S = 0.5


@inspect_command()  # type: ignore[untyped-decorator,unused-ignore]
def sagas_relay(state: Any, **_: Any) -> dict[str, Any]:
    """Return the relay's totals, its last sweep, and the number of dead letters in the store."""
    relay = relay_of(state.app)
    shown = {"running": False} if relay is None else relay.shown()
    may_have_dead_letters = has_backend(state.app) or default_file().exists()
    return {**shown, **_count_dead_letters(state.app)} if may_have_dead_letters else shown


@inspect_command()  # type: ignore[untyped-decorator,unused-ignore]
def sagas_code(state: Any, **_: Any) -> dict[str, Any]:
    """Return the version of celery-sagas, the schema version and the steps of each saga, the saga_prefix, and the time."""
    return {**code_here(), "prefix": read_settings(state.app.conf).prefix, "time": time.time()}


def code_here() -> dict[str, Any]:
    """Return which code this process has, as JSON values."""
    return {
        "version": version("celery-sagas"),
        "sagas": {
            name: {"schema_version": saga.schema_version, "steps": sorted(step.name for step in registry.steps_of(saga))}
            for name, saga in sorted(registry.sagas.items())
        },
    }


def _count_dead_letters(app: Celery) -> dict[str, Any]:
    """Return the number of dead letters; if the store does not answer in time, the reason."""
    try:
        return {"dead_letters": within(_COUNT_S, partial(_count, app))}
    except SagaError as exc:
        return {"dead_letters": None, "store_error": str(exc)}
    except TimeoutError:
        return {"dead_letters": None, "store_error": f"the store has not answered within {_COUNT_S} s"}


def _count(app: Celery) -> int:
    with main_process_backends(app) as backends:
        opened = list(backends)
        if len(opened) == 1:
            return opened[0].dead.count()
        # Two of them may be one database, under two names or URLs: their newest dead letter is the same one then.
        counts = {newest: backend.dead.count() for backend in opened for newest in backend.dead.list(1)}
        return sum(counts.values())
