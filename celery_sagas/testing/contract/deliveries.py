"""``Deliveries``."""

from concurrent.futures import ThreadPoolExecutor

from celery_sagas.stores.ports import Backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, STEP, handled, send
from celery_sagas.testing.view import nothing_written

#: Pairs of a step and a message id that a store could confuse.
SIMILAR = (
    (STEP, "message"),
    (STEP, "MESSAGE"),
    (STEP, "message "),
    (STEP, "méssage"),
    (STEP, ""),
    (f"{STEP} message", ""),
    ("order", "message"),
    ("order message", "message"),
    ("order", "message message"),
)


class DeliveriesContract(StoreFixtures):
    """The requirements on every ``Deliveries``."""

    def test_deliveries_of_a_message_are_counted(self, backend: Backend) -> None:
        assert [backend.deliveries.count(STEP, "message") for _ in range(4)] == [1, 2, 3, 4]

    def test_each_step_and_message_is_counted_for_itself(self, backend: Backend) -> None:
        for number in (1, 2):
            assert [backend.deliveries.count(*pair) for pair in SIMILAR] == [number] * len(SIMILAR)

    def test_processes_count_together(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """Another process receives the message the next time."""
        backend.deliveries.count(STEP, "message")
        assert open_backend(prefix).deliveries.count(STEP, "message") == 2

    def test_deliveries_at_once_are_counted_each(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        backend.deliveries.count(STEP, "message")
        workers = [open_backend(prefix) for _ in range(4)]
        with ThreadPoolExecutor(len(workers)) as threads:
            counts = [threads.submit(_count, worker, 10) for worker in workers]
            counted = [number for count in counts for number in count.result()]
        assert sorted(counted) == list(range(2, 42))

    def test_counting_writes_nothing_else(self, backend: Backend) -> None:
        """That a message came again does not make it a handled one."""
        line = send(backend)
        with nothing_written(backend):
            backend.deliveries.count(line.step, line.message_id)
            backend.deliveries.count(line.step, "another message")

    def test_messages_are_forgotten_when_their_last_delivery_is_old(self, backend: Backend, clock: Clock) -> None:
        for message_id in ("old", "old, too", "delivered again"):
            backend.deliveries.count(STEP, message_id)
        clock.advance(HOUR)
        for message_id in ("young", "delivered again"):
            backend.deliveries.count(STEP, message_id)
        clock.advance(999)
        assert backend.deliveries.purge(1_000, limit=9) == 2
        assert backend.deliveries.purge(1_000, limit=9) == 0
        counts = [backend.deliveries.count(STEP, message_id) for message_id in ("old", "young", "delivered again")]
        assert counts == [1, 2, 3]

    def test_purge_forgets_no_more_than_its_limit(self, backend: Backend, clock: Clock) -> None:
        """A purge must not hold a lock on everything."""
        for number in range(5):
            backend.deliveries.count(STEP, f"message {number}")
        clock.advance(HOUR)
        assert [backend.deliveries.purge(1_000, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    def test_purge_touches_no_journal(self, backend: Backend, clock: Clock) -> None:
        """The journal's purge does not touch what is counted here, either."""
        line = send(backend)
        backend.deliveries.count(line.step, line.message_id)
        clock.advance(HOUR)
        assert backend.deliveries.purge(1_000, limit=9) == 1
        assert handled(backend, line) is not None
        backend.deliveries.count(line.step, line.message_id)
        assert backend.journal.purge(1_000, limit=9) == 1
        assert backend.deliveries.count(line.step, line.message_id) == 2


def _count(backend: Backend, times: int) -> list[int]:
    return [backend.deliveries.count(STEP, "message") for _ in range(times)]
