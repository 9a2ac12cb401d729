"""Asks the workers which code they run, what their relays do, and from which queues they take messages."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from celery import Celery

from celery_sagas.core.registry import registry
from celery_sagas.operate.doctor.facts import Code, Relay, Worker, Workers
from celery_sagas.operate.doctor.reading import outside, participants
from celery_sagas.settings import Settings
from celery_sagas.worker.celery_internals import routing_of
from celery_sagas.worker.process.control import code_here
from celery_sagas.worker.runtime import within

#: How long workers may take to answer a question, and how long all of it may take. Seconds.
_ANSWER_S: Final = 1.0
_LONGEST_S: Final = 15.0


def read_workers(app: Celery, settings: Settings) -> Workers:
    """Ask the workers. Those of the app have the same ``saga_prefix``, and one of its sagas; others only count as consumers."""
    here, interval_ms = code_of(code_here()), int(settings.relay_interval * 1000)
    if not _can_be_asked(app):
        return Workers(here, can_be_asked=False, has_relays=settings.relay, interval_ms=interval_ms)
    before = time.time_ns() // 1_000_000
    answers = _ask(app, "sagas_code")
    after = time.time_ns() // 1_000_000
    codes = {name: answer for name, answer in answers.items() if _is_ours(answer, here, settings.prefix)}
    relays, queues = (_ask(app, "sagas_relay", list(codes)), _ask(app, "active_queues")) if codes else ({}, {})
    now_ms = time.time_ns() // 1_000_000
    workers = [_worker(name, answer, relays.get(name), (before, after, now_ms)) for name, answer in sorted(codes.items())]
    consumed = frozenset(str(_get(queue, "name")) for answer in queues.values() for queue in _list(answer)) if queues else None
    others = len(answers) - len(workers)
    return Workers(here, workers, others, True, settings.relay, interval_ms, consumed, _wanted(app))


def _can_be_asked(app: Celery) -> bool:
    """Return whether the broker passes a message on to all workers."""
    return "fanout" in app.connection_for_write().transport.implements.exchange_type


def _ask(app: Celery, command: str, workers: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the answers of workers by their names; without ``workers`` those that come in time."""
    control: Any = app.control
    options = {"reply": True, "timeout": _ANSWER_S, "destination": workers, "limit": len(workers) if workers else None}
    answers = within(_LONGEST_S, partial(control.broadcast, command, **options))
    return {name: answer for each in answers or () for name, answer in each.items()}


def _is_ours(answer: Any, here: Code, prefix: str) -> bool:
    return _get(answer, "prefix") == prefix and not here.schema_versions.keys().isdisjoint(_dict(_get(answer, "sagas")))


def _worker(name: str, answer: Any, relay: Any, times: tuple[int, int, int]) -> Worker:
    before, after, now_ms = times
    ahead_ms = outside(int(_number(_get(answer, "time")) * 1000), before, after)
    return Worker(
        name, code_of(answer), _relay(relay, now_ms + ahead_ms) if _get(relay, "running") is not None else None, ahead_ms
    )


def code_of(answer: Any) -> Code:
    """Return what a process says of its code."""
    sagas = {name: _dict(saga) for name, saga in _dict(_get(answer, "sagas")).items()}
    schema_versions = {name: int(_number(saga.get("schema_version"))) for name, saga in sagas.items()}
    steps = {name: frozenset(map(str, _list(saga.get("steps")))) for name, saga in sagas.items()}
    return Code(str(_get(answer, "version")), schema_versions, steps)


def _relay(answer: Any, now_ms: int) -> Relay:
    """Return what a worker says of its relay, at a time of its own clock."""
    tallies = [tally for tally in (answer, *_list(_get(answer, "other_backends"))) if _get(tally, "last")]
    ended = [int(_number(_get(_get(tally, "last"), "ended_at")) * 1000) for tally in tallies]
    error = next((str(_get(tally, "last_error")) for tally in tallies if _get(tally, "trouble")), "")
    unknown = tuple(str(step) for tally in tallies for step in _dict(_get(_get(tally, "last"), "unknown")))
    return Relay(bool(_get(answer, "running")), now_ms - min(ended) if ended else None, error, unknown)


def _wanted(app: Celery) -> Mapping[str, Sequence[str]]:
    """Return the queues to which the app sends messages for its sagas, with the tasks that they are for."""
    steps = [step.name for step in registry.steps.values() if not step.is_internal]
    asked = [name for saga in registry.sagas.values() for name in participants(saga) if name in app.tasks]
    wanted = defaultdict[str, list[str]](list)
    for name, queue in _routes(app, [*steps, *registry.aggregators, *asked]):
        wanted[queue].append(name)
    return wanted


def _routes(app: Celery, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(names):
        if queue := routing_of(app, name).get("queue"):
            yield name, str(queue)


def _get(answer: Any, name: str) -> Any:
    return _dict(answer).get(name)


def _dict(answer: Any) -> Mapping[str, Any]:
    return answer if isinstance(answer, dict) else {}


def _list(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else []


def _number(answer: Any) -> float:
    return float(answer) if isinstance(answer, int | float) else 0.0
