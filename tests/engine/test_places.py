"""A store of several parts gets back where it looked, with all that a run writes."""

from types import SimpleNamespace
from typing import Any

import pytest

from celery_sagas.core.state import State
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import Effects, Found, Lookup
from tests.engine.conftest import Engine, Order, handler, send, starter


class Job(State, correlate_by="job_id"):
    """A saga without alternate keys."""

    job_id: str


def begin(job: Any, job_id: str) -> None:
    """Start, and send."""
    send(job, "work")


def finish(job: Any, job_id: str) -> None:
    """End."""
    job.complete()


def place(order: Order, order_id: str) -> None:
    """Start."""


class Parted:
    """A saga store that looks in its part 3."""

    def __init__(self, store: SagaStore) -> None:
        self._store = store
        self.lookups: list[Lookup] = []
        self.commits: list[tuple[str, Effects]] = []

    def find(self, *args: Any) -> Found:
        """Look, and note for what."""
        self.lookups.append(args[0])
        return self._store.find(*args)._replace(place="3")

    def __getattr__(self, name: str) -> Any:
        def commit(*args: Any) -> None:
            self.commits.append((name, args[-1]))
            getattr(self._store, name)(*args)

        return commit


@pytest.fixture
def parted(backend: MemoryBackend) -> Parted:
    return Parted(backend.sagas)


@pytest.fixture
def engine(backend: MemoryBackend, parted: Parted) -> Engine:
    return Engine(SimpleNamespace(**{**vars(backend), "sagas": parted}))  # type: ignore[arg-type]


BEGIN, FINISH = starter(begin, saga=Job), handler(finish, saga=Job)


def test_new_instance_and_what_it_sends_end_in_the_place(engine: Engine, parted: Parted) -> None:
    outcome = engine.handle(BEGIN, job_id="1")
    assert outcome.instance_id.endswith(".3")
    ((name, effects),) = parted.commits
    assert name == "insert"
    assert all(row.id.endswith(".3") for row in effects.outgoing)
    assert len(effects.outgoing) == 1


def test_every_commit_gets_the_place(engine: Engine, parted: Parted) -> None:
    for step in (FINISH, BEGIN, BEGIN, FINISH):
        engine.handle(step, job_id="1")
    assert [name for name, _ in parted.commits] == ["record", "insert", "update", "delete"]
    assert {effects.place for _, effects in parted.commits} == {"3"}


def test_only_a_saga_without_alternate_keys_is_spread(engine: Engine, parted: Parted) -> None:
    engine.handle(BEGIN, job_id="1")
    engine.handle(starter(place), order_id="1")
    assert [lookup.spread for lookup in parted.lookups] == [True, False]
