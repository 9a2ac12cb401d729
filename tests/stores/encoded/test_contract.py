"""A backend with a codec keeps the contract of the stores."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from celery_sagas.stores.encoded.backend import EncodedBackend
from celery_sagas.stores.instances import PENDING
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing import NewBackend, OutboxContract, WholeContract
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.aggregates.restore import RestoringContract
from celery_sagas.testing.contract.many import ManyContract
from celery_sagas.testing.machine import MachineContract
from celery_sagas.testing.samples import NAMES, effects, new_record, start
from tests import folders
from tests.stores.encoded.reversing import codec
from tests.stores.memory.test_contract import Watched

#: Threads that write into one file take turns, however long that takes.
PATIENT = {"busy_timeout": 60}


class Encoded(WholeContract):
    """The contract, but for what is measured: the stored text is longer."""

    class TestInstances(WholeContract.TestInstances):
        def test_glance(self, backend: Backend, clock: Clock) -> None:
            """A glance has the decoded pending map, and the size of what is stored."""
            order = new_record(data='{"name": "é"}', pending='{"left": 1}')
            backend.sagas.insert(order, effects(order))
            ((glance,), _) = backend.instances.page(NAMES[0], 9)
            assert glance.pending == order.pending == '{"left": 1}'
            assert glance.size > len(order.data.encode())

        def test_state_may_be_large(self, backend: Backend) -> None:
            start(backend, data='"' + "é" * 200_000 + '"')
            ((glance,), _) = backend.instances.page(NAMES[0], 9)
            assert 400_002 < glance.size < 400_200

        @pytest.mark.parametrize(("length", "is_there"), [(PENDING - 200, True), (PENDING, False)])
        @pytest.mark.parametrize("char", ["x", "é"])
        def test_pending_map_that_is_too_long(self, backend: Backend, char: str, length: int, is_there: bool) -> None:
            pending = f'"{char * ((length - 2) // len(char.encode()))}"'
            record = new_record(pending=pending)
            backend.sagas.insert(record, effects(record))
            ((glance,), _) = backend.instances.page(NAMES[0], 9)
            assert glance.pending == (pending if is_there else None)


class TestMemory(Encoded):
    """Backends on one shared name."""

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        url = f"memory://{uuid.uuid4()}"
        return lambda prefix, clock: EncodedBackend(MemoryBackend(url, prefix=prefix, clock=clock), codec)

    class TestInterleaving(Encoded.TestInterleaving):
        """A rival before each taking of the lock."""

        @contextmanager
        def commands(self, backend: Backend, before: Callable[[], None]) -> Iterator[None]:
            assert isinstance(backend, EncodedBackend)
            state = backend.inner.sagas._state  # type: ignore[attr-defined]
            lock: AbstractContextManager[bool] = state.lock
            state.lock = Watched(lock, before)
            yield
            state.lock = lock

    class TestMany(WholeContract.Part, ManyContract):
        """Operations of several messages at once."""

    class TestMachine(WholeContract.Part, MachineContract):
        """Many operations in any order."""


class TestSqlite(Encoded):
    """Backends on one file. No statement is the codec's: the interleaving is that of the backend within."""

    TestInterleaving = None

    @pytest.fixture
    def new_backend(self, tmp_path: Path) -> Iterator[NewBackend]:
        with folders.in_memory(otherwise=tmp_path) as folder:
            url = f"sqlite:///{folder}/sagas.sqlite3"
            yield lambda prefix, clock: EncodedBackend(SqlBackend(url, prefix=prefix, clock=clock, options=PATIENT), codec)


class OnServer:
    """Backends on PostgreSQL or Redis: what moves texts in the server."""

    @pytest.fixture(params=["postgresql", "redis"])
    def url(self, request: pytest.FixtureRequest) -> str:
        found: str = request.getfixturevalue(f"{request.param}_url")
        return found

    @pytest.fixture
    def new_backend(self, url: str) -> NewBackend:
        opener: Any = RedisBackend if url.startswith("redis") else SqlBackend
        return lambda prefix, clock: EncodedBackend(opener(url, prefix=prefix, clock=clock), codec)


class TestOutbox(OnServer, OutboxContract):
    """The outgoing rows, and series, whose rows are written again."""


class TestAggregates(OnServer, RestoringContract):
    """Rejected items, which come back."""


class TestMany(OnServer, ManyContract):
    """Operations of several messages at once."""
