"""Stateful sagas for Celery: each message's effect happens exactly once."""

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.context import MessageView, SagaView
from celery_sagas.core.deferred import DeferredMessage
from celery_sagas.core.delays import Backoff
from celery_sagas.core.message import Message, SagaKey
from celery_sagas.core.requests.answers import Failure, Gathered
from celery_sagas.core.requests.views import GatherView, RequestView
from celery_sagas.engine.listing import Listing
from celery_sagas.engine.outcomes import Missing, Outcome
from celery_sagas.stores.urls import register_backend
from celery_sagas.telemetry import bootsteps as telemetry
from celery_sagas.worker import transport
from celery_sagas.worker.aggregators.aggregator import Aggregator, aggregator
from celery_sagas.worker.aggregators.client import BufferedItem
from celery_sagas.worker.ask import ask, ask_async
from celery_sagas.worker.events import publish, subscribe
from celery_sagas.worker.process import bootsteps, receivers
from celery_sagas.worker.saga import Saga
from celery_sagas.worker.step import Step
from celery_sagas.worker.transactions import send

__all__ = [
    "Aggregator",
    "Backoff",
    "Batch",
    "BufferedItem",
    "DeferredMessage",
    "Failure",
    "GatherView",
    "Gathered",
    "Listing",
    "Message",
    "MessageView",
    "Missing",
    "Outcome",
    "RequestView",
    "Saga",
    "SagaKey",
    "SagaView",
    "Step",
    "aggregator",
    "ask",
    "ask_async",
    "publish",
    "register_backend",
    "send",
    "subscribe",
]

receivers.connect()
bootsteps.connect()
telemetry.connect()
transport.register()
