"""Deferred messages as text: their arguments, and the message that ends their waiting."""

import sys
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu.utils.json import loads

from celery_sagas.core.deferred import DEFERRED
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.worker.headers import address_headers
from celery_sagas.worker.serialization import serialized, serialized_again
from celery_sagas.worker.targets import signature_to, target_named
from celery_sagas.worker.timeouts import due_later


class DeferredSignatures:
    """What a deferred message holds, and the message that ends its waiting; see ``engine.commit.DeferredMessages``."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def is_admitted(self, step: StepDefinition, state: State, payload: str) -> bool:
        """Return whether a step runs on an instance for a message."""
        try:
            sent = loads(payload)
            return step.admits(state, step.arguments.validate(step.arguments.bind(sent["args"], sent["kwargs"])))
        except SoftTimeLimitExceeded:
            raise  # which says nothing about the message
        except Exception:  # of this message: it must not fail the one that is handled, and is raised again where this one is
            return True

    def message(self, task: str, id: str, bound: Mapping[str, Any]) -> SerializedMessage:
        """Return a message to a step."""
        return serialized_again(self._app, Signature(task, (), dict(bound), {"task_id": id}, app=self._app))

    def wake(self, saga: SagaDefinition, instance_id: str, id: str, due_at: int) -> SerializedMessage:
        """Return the message that ends the waiting."""
        target = target_named(self._app, f"{saga.name}.{DEFERRED}")
        sent = signature_to(self._app, target, headers=address_headers(instance_id, id))
        return due_later(serialized(self._app, sent, lambda: id, sys.maxsize), due_at, target.task)
