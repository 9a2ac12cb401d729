"""What a run writes has the id that its find has returned: a store of several parts finds it by that."""

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
    """A saga store whose new ids end in its part 3."""

    def __init__(self, store: SagaStore) -> None:
        self._store = store
        self.new_ids: list[str] = []
        self.lookups: list[Lookup] = []
        self.commits: list[tuple[str, Effects]] = []

    def find(self, *args: Any) -> Found:
        """Look, and note for what."""
        self.lookups.append(args[0])
        self.new_ids.append(f"{len(self.new_ids)}.3")
        return self._store.find(*args)._replace(new_id=self.new_ids[-1])

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


def test_new_instance_and_what_it_sends_have_the_id(engine: Engine, parted: Parted) -> None:
    outcome = engine.handle(BEGIN, job_id="1")
    ((name, effects),) = parted.commits
    assert name == "insert"
    assert outcome.instance_id == effects.entry.attempt == "0.3"
    assert [row.id for row in effects.outgoing] == ["0.3-00000"]


def test_every_commit_has_the_id_of_its_find(engine: Engine, parted: Parted) -> None:
    for step in (FINISH, BEGIN, BEGIN, FINISH):
        engine.handle(step, job_id="1")
    assert [name for name, _ in parted.commits] == ["record", "insert", "update", "delete"]
    assert [effects.entry.attempt for _, effects in parted.commits] == parted.new_ids


def test_store_is_told_which_sagas_have_alternate_keys(engine: Engine, parted: Parted) -> None:
    engine.handle(BEGIN, job_id="1")
    engine.handle(starter(place), order_id="1")
    assert [lookup.has_alternate_keys for lookup in parted.lookups] == [False, True]
