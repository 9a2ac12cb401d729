"""Cancellation: the timeout of a discarded dead letter leaves its instance's pending map."""

import json
from collections.abc import Callable

import pytest

from celery_sagas.core.pending import Pending, read_pending
from celery_sagas.core.requests.requests import Addressed
from celery_sagas.core.state import State
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.dead_letters.cancellation import Cancellation
from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_of
from celery_sagas.errors import NewerState, RevisionConflict, StoreError, StoreUnavailable, UnreadableState
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import DeadLetter, Record
from tests.engine.conftest import Boom, Engine, Order, starter

RETRIES = 2


def place(order: State, order_id: str, tracking: str | None = None) -> None:
    """Start an order."""
    assert isinstance(order, Order)
    order.total += 1
    order.tracking = tracking


PLACE = starter(place)


def dead_letter(message_id: str = "t1") -> DeadLetter:
    """Return the dead letter of a timeout."""
    return dead_letter_of("order.remind", message_id, "order", Boom(), "{}")


def instance(engine: Engine) -> Record:
    """Return the order 42, which has an alternate key and waits for two timeouts."""
    engine.handle(PLACE, order_id="42", tracking="1Z")
    waits = {"t1": Timeout("t1", "r1", "order.remind", 1), "delivery": Timeout("t2", "r2", "order.remind", 2)}
    return engine.rewrite(pending=Pending({"tracking": "1Z"}, waits).text())


def current(engine: Engine) -> Record:
    """Return the order 42 as it is now."""
    record = engine.record()
    assert record is not None
    return record


def timeouts(engine: Engine) -> list[str]:
    """Return the ids of the timeouts that the order 42 waits for."""
    return [timeout.id for timeout in read_pending(current(engine).pending).timeouts.values()]


def cancellation(record: Record, timeout: str = "t1") -> Cancellation:
    """Return the cancellation of a timeout of an instance."""
    return Cancellation(dead_letter(), ("order",), Addressed(record.id, timeout))


def failing(error: Exception) -> Callable[[], None]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


def test_timeout_leaves_the_map(engine: Engine, backend: MemoryBackend) -> None:
    """Everything else of the instance stays."""
    before = instance(engine)

    assert cancellation(before).perform(backend, RETRIES)

    after = current(engine)
    assert timeouts(engine) == ["t2"]
    assert read_pending(after.pending).keys == {"tracking": "1Z"}
    assert (after.version, after.data, after.schema_version) == (before.version + 1, before.data, before.schema_version)
    assert engine.record("1Z", "tracking") == after


def test_journal_says_why(engine: Engine, backend: MemoryBackend) -> None:
    """Its version is the instance's."""
    record = instance(engine)
    cancellation(record).perform(backend, RETRIES)

    entry = engine.entries()[-1]
    assert (entry.step, entry.outcome, entry.key, entry.version) == ("order.remind", "ignored", "42", record.version + 1)
    assert json.loads(entry.detail) == {"reason": "discarded", "dead_letter": dead_letter().id}


def test_map_of_newer_code_stays_whole(engine: Engine, backend: MemoryBackend) -> None:
    """What this code does not know is written back."""
    record = instance(engine)
    engine.rewrite(pending=json.dumps({**json.loads(record.pending), "later": {"x": 1}}))

    assert cancellation(record).perform(backend, RETRIES)
    assert json.loads(current(engine).pending)["later"] == {"x": 1}


def test_map_that_only_newer_code_can_read(engine: Engine, backend: MemoryBackend) -> None:
    """It may wait for it: newer code has to look."""
    record = instance(engine)
    newer = engine.rewrite(pending='{"format": 99}')

    assert cancellation(record).is_due(backend.sagas)
    with pytest.raises(NewerState):
        cancellation(record).perform(backend, RETRIES)
    assert engine.record() == newer


def test_rival_is_not_overwritten(engine: Engine, rival: Engine) -> None:
    """The version is compared, and all of it done again."""
    record, store = instance(engine), engine.interpose()
    store.once_before("update", lambda: rival.handle(PLACE, order_id="42"))

    assert cancellation(record).perform(engine.services.backend, RETRIES)
    assert engine.data()["total"] == 2
    assert timeouts(engine) == ["t2"]


def test_rivals_that_always_come_first(engine: Engine) -> None:
    """An operator may try again."""
    record, store = instance(engine), engine.interpose()
    store.once_before("update", *[failing(RevisionConflict("order", "42", "version"))] * 100)

    with pytest.raises(RevisionConflict):
        cancellation(record).perform(engine.services.backend, RETRIES)
    assert timeouts(engine) == ["t1", "t2"]


def test_timeout_that_is_handled_at_the_same_time(engine: Engine) -> None:
    """It is gone when it is looked for again."""
    record, store = instance(engine), engine.interpose()
    store.once_before("update", lambda: engine.rewrite(pending="{}"))

    assert not cancellation(record).perform(engine.services.backend, RETRIES)
    assert current(engine).version == record.version + 1


def test_reply_that_was_lost(engine: Engine, backend: MemoryBackend) -> None:
    """The dead letter is discarded again, and nothing more is written."""
    record, store = instance(engine), engine.interpose()
    store.once_after("update", failing(StoreUnavailable("memory://", "the reply was lost")))
    with pytest.raises(StoreUnavailable):
        cancellation(record).perform(engine.services.backend, RETRIES)
    after = current(engine)

    assert not cancellation(record).perform(backend, RETRIES)
    assert (timeouts(engine), current(engine)) == (["t2"], after)


def test_other_operator_at_the_same_time(engine: Engine, backend: MemoryBackend) -> None:
    """Both discard the same dead letter."""
    record, store = instance(engine), engine.interpose()
    store.once_before("update", lambda: cancellation(record).perform(backend, RETRIES))

    cancellation(record).perform(engine.services.backend, RETRIES)

    assert current(engine).version == record.version + 1
    assert timeouts(engine) == ["t2"]


def test_timeout_that_was_replaced_or_handled(engine: Engine, backend: MemoryBackend) -> None:
    record = instance(engine)

    assert not cancellation(record, "t0").perform(backend, RETRIES)
    assert current(engine) == record


def test_instance_that_is_gone(backend: MemoryBackend) -> None:
    assert not Cancellation(dead_letter(), ("order",), Addressed("i1", "t1")).perform(backend, RETRIES)


def test_map_that_cannot_be_read(engine: Engine, backend: MemoryBackend) -> None:
    """Nobody could discard the dead letter otherwise."""
    instance(engine)
    record = engine.rewrite(pending="[")

    assert not cancellation(record).perform(backend, RETRIES)
    assert current(engine) == record


@pytest.mark.parametrize("damage", [UnreadableState("order", "42", "no JSON"), StoreError("it is no hash")], ids=repr)
def test_instance_that_is_never_readable(engine: Engine, damage: StoreError) -> None:
    """Nor otherwise."""
    record, store = instance(engine), engine.interpose()
    store.once_before("find", failing(damage))

    assert not cancellation(record).perform(engine.services.backend, RETRIES)


def test_store_that_is_away(engine: Engine) -> None:
    record, store = instance(engine), engine.interpose()
    store.once_before("find", failing(StoreUnavailable("memory://", "away")))

    with pytest.raises(StoreUnavailable):
        cancellation(record).perform(engine.services.backend, RETRIES)
