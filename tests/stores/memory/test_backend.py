"""What is particular to the memory backend."""

import time
import uuid

import pytest

from celery_sagas.errors import ConfigurationError, UnsafeBackend
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.samples import by_key, change, conflict, effects, found, is_there, outgoing, send, start


def test_url_without_a_name_is_private():
    start(MemoryBackend("memory://", prefix="test"))
    assert not is_there(MemoryBackend("memory://", prefix="test"), by_key())


def test_url_with_a_name_is_shared():
    url = f"memory://{uuid.uuid4()}"
    record = start(MemoryBackend(url, prefix="test"))
    assert found(MemoryBackend(url, prefix="test"), by_key()) == record
    assert not is_there(MemoryBackend(f"{url}-2", prefix="test"), by_key())


def test_backend_is_opened_by_its_url():
    backend = open_backend("memory://", prefix="test", options={})
    assert isinstance(backend, MemoryBackend)
    assert backend.url == "memory://"


def test_several_processes_are_refused():
    """Each of them would have its own sagas."""
    with pytest.raises(UnsafeBackend, match=r"runs 2 processes.*Set saga_backend to"):
        MemoryBackend("memory://name", prefix="test").prepare(create_schema=True, processes=2)


def test_one_process_is_ready_without_a_warning():
    assert MemoryBackend("memory://", prefix="test").prepare(create_schema=True, processes=1) == []


def test_options_are_refused():
    with pytest.raises(ConfigurationError, match="knows no options, got pool_recycle, shards"):
        MemoryBackend("memory://", prefix="test", options={"shards": 2, "pool_recycle": 5})


def test_time_is_that_of_this_machine_without_a_clock():
    before = time.time_ns() // 1_000_000
    record = start(MemoryBackend("memory://", prefix="test"))
    assert before <= record.created_at <= time.time_ns() // 1_000_000


def test_row_id_is_unique_as_a_primary_key():
    """Memory is as strict as a database."""
    backend = MemoryBackend("memory://", prefix="test")
    row = outgoing()
    send(backend, row)
    with conflict("unique"):
        backend.sagas.record(effects(None, row))
    assert backend.outbox.count() == 1


def test_rows_that_are_not_due_are_not_looked_at():
    """Claiming costs the same however many rows are not due."""
    backend = MemoryBackend("memory://", prefix="test", clock=lambda: 0)
    send(backend, outgoing(), *(outgoing("scheduled", due_at=1 + number) for number in range(1_000)))
    looked_at = list(backend.outbox._state.outbox.due(0))
    assert len(looked_at) == 1
    assert len(backend.outbox.claim_due("relay", 10, 1_000)) == 1


def test_nothing_is_kept_of_values_that_no_instance_has():
    """Otherwise it would grow with each value that was ever seen."""
    backend = MemoryBackend("memory://", prefix="test")
    tags = (("email", "a@example.org"),)
    record = start(backend, tags=tags)
    backend.sagas.update(record, change(removed_tags=tags), effects(record))
    assert [tag for _, tag in backend.sagas._state.instances._places] == [None]  # type: ignore[attr-defined]
