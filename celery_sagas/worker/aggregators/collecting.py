"""A function of an aggregator that is called in a test: what it sends is collected, and none of it leaves the process."""

import functools
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery_sagas.core.aggregators.batch import Batch, attach, sender_of
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.engine.aggregators.sending import BatchMessages
from celery_sagas.settings import read_settings
from celery_sagas.worker.aggregators.flushes import send_terms_of
from celery_sagas.worker.celery_internals import current_app


def collecting(definition: AggregatorDefinition) -> Callable[..., Any]:
    """Return the function of an aggregator. It collects the messages of a batch that is the caller's own."""
    function = definition.function

    @functools.wraps(function)
    def handler(*args: Any, **kwargs: Any) -> Any:
        batch = next((each for each in (*args, *kwargs.values()) if isinstance(each, Batch)), None)
        messages = None if batch is None else _messages_of(definition, batch)
        if messages is None or messages.is_open:
            return function(*args, **kwargs)
        with messages.running():
            return function(*args, **kwargs)

    return handler


def _messages_of(definition: AggregatorDefinition, batch: Batch[Any]) -> BatchMessages | None:
    """Return the collected messages of a batch; ``None`` if it is a flush's, which sends them."""
    sender = sender_of(batch)
    if sender is not None:
        return sender if isinstance(sender, BatchMessages) and sender.store is None else None
    app = current_app()
    messages = BatchMessages(definition.name, str(uuid4()), send_terms_of(app, read_settings(app.conf).max_state_bytes))
    attach(batch, messages)
    return messages
