"""The relay: it publishes what is due, in the place of whoever has died or could not wait."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_of
from celery_sagas.engine.relay import BATCH, Relay, Terms
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import PublishError, StoreError, StoreUnavailable, Unconfirmed
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import DeadLetter, Effects, Entry, Outgoing
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import operate
from tests.engine.conftest import Batching, Recorder

LEASE_S = 60.0
TERMS = Terms(interval_s=1.0, lease_s=LEASE_S, max_attempts=3, retention_s=3600.0)
POISON = PublishError("it is too large", False)
AWAY = PublishError("the broker is away", True)
LOST = Unconfirmed("the connection was lost", True)


class Clocks:
    """The store's clock and the relay's, which go together."""

    def __init__(self, store: Clock) -> None:
        self.store = store

    def monotonic(self) -> float:
        return self.store.now / 1000

    def advance(self, seconds: float) -> None:
        self.store.advance(int(seconds * 1000))


class Deployment:
    """A backend with rows, and relays over it."""

    def __init__(self, backend: MemoryBackend, clocks: Clocks) -> None:
        self.backend = backend
        self.clocks = clocks
        self.publisher: Recorder = Recorder()
        self.known = {"order.nudge"}

    def relay(self, publisher: Any = None, knows: Callable[[str], bool] | None = None, terms: Terms = TERMS) -> Relay:
        """Make a relay of a process."""
        clock = self.clocks.monotonic
        knows = knows or self.known.__contains__
        return Relay(self.backend, publisher or self.publisher, knows, terms, clock=clock, wall_clock=clock)

    def add(self, *names: str, kind: str = "sent", task: str = "charge", due_s: float = 0, leased_s: float = 0) -> None:
        """Commit rows: due in some seconds, or under a lease for some."""
        due_at = int((self.clocks.monotonic() + due_s) * 1000) if kind != "sent" or due_s else 0
        rows = tuple(Outgoing(f"row-{name}", kind, f"id-{name}", task, "{}", due_at) for name in names)
        entry = Entry("order.place", f"cause of {names}", "a", "started", "order", "42", "i", 1, "{}")
        self.backend.sagas.record(Effects(entry, rows, "a dead process", int(leased_s * 1000)))


@pytest.fixture
def deployment(backend: MemoryBackend, clock: Clock) -> Deployment:
    """A deployment with an empty outbox."""
    return Deployment(backend, Clocks(clock))


def test_publishes_what_is_due_and_removes_it(deployment: Deployment) -> None:
    """The decision to send was committed, whoever publishes it."""
    deployment.add("a", "b")
    relay = deployment.relay()

    sweep = relay.sweep()

    assert deployment.publisher.ids == ["id-a", "id-b"]
    assert deployment.backend.outbox.count() == 0
    assert (sweep.sent, sweep.released, sweep.failed, sweep.error) == (2, 0, 0, "")
    assert relay.tally.last is sweep


def test_leaves_what_is_leased_until_the_lease_has_ended(deployment: Deployment) -> None:
    """Who committed it may be publishing it."""
    deployment.add("a", leased_s=30)
    relay = deployment.relay()
    relay.sweep()
    assert deployment.publisher.ids == []

    deployment.clocks.advance(30)
    relay.sweep()

    assert deployment.publisher.ids == ["id-a"]


def test_leaves_what_is_not_due_yet(deployment: Deployment) -> None:
    deployment.add("a", kind="scheduled", task="order.nudge", due_s=10)
    relay = deployment.relay()
    for _ in range(10):
        relay.sweep()
        assert deployment.publisher.ids == []
        deployment.clocks.advance(1)

    relay.sweep()

    assert deployment.publisher.ids == ["id-a"]


def test_goes_on_while_batches_are_full(deployment: Deployment) -> None:
    """A backlog is not left to the interval."""
    names = [f"{number:03}" for number in range(2 * BATCH + 1)]
    deployment.add(*names)

    sweep = deployment.relay().sweep()

    assert deployment.publisher.ids == [f"id-{name}" for name in names]
    assert sweep.sent == len(names)


def test_confirms_each_batch(deployment: Deployment) -> None:
    """A relay that dies leaves one batch to be sent again, not a backlog."""
    deployment.add(*(f"{number:03}" for number in range(2 * BATCH)))
    counts: list[int] = []

    class Watching(Recorder):
        def publish(self, message: Any) -> None:
            super().publish(message)
            counts.append(deployment.backend.outbox.count())

    deployment.relay(Watching()).sweep()

    assert counts == [2 * BATCH] * BATCH + [BATCH] * BATCH


def test_two_relays_share_the_rows(deployment: Deployment) -> None:
    """Each row is one relay's, whenever the other looks."""
    deployment.add(*(f"{number:03}" for number in range(BATCH + 50)))
    rival = deployment.relay(other := Recorder())

    class Interrupted(Recorder):
        def publish(self, message: Any) -> None:
            rival.sweep()
            super().publish(message)

    deployment.relay(mine := Interrupted()).sweep()

    assert len(mine.ids) == BATCH
    assert len(other.ids) == 50
    assert not set(mine.ids) & set(other.ids)
    assert deployment.backend.outbox.count() == 0


def test_rows_of_another_prefix_are_not_seen(deployment: Deployment, clock: Clock) -> None:
    """The backend's prefix partitions everything."""
    mine = MemoryBackend("memory://relays", prefix="mine", clock=clock)
    Deployment(MemoryBackend("memory://relays", prefix="theirs", clock=clock), deployment.clocks).add("a")
    deployment.backend = mine

    assert deployment.relay().sweep().sent == 0


class TestKept:
    """The row of a timeout stays until its message is handled: the broker may lose it."""

    @pytest.fixture
    def relay(self, deployment: Deployment) -> Relay:
        """A relay that has published a timeout."""
        deployment.add("a", kind="scheduled", task="order.nudge")
        relay = deployment.relay(terms=replace(TERMS, keep_s=100.0))
        relay.sweep()
        assert deployment.publisher.ids == ["id-a"]
        return relay

    def test_published_again_after_its_time(self, deployment: Deployment, relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
        deployment.clocks.advance(99)
        relay.sweep()
        assert deployment.publisher.ids == ["id-a"]
        deployment.clocks.advance(1)
        with caplog.at_level(logging.WARNING, "celery_sagas"):
            sweep = relay.sweep()
        assert (deployment.publisher.ids, sweep.sent) == (["id-a", "id-a"], 1)
        [warning] = caplog.messages
        assert warning.startswith(
            "1 timeouts or deadlines were published and not handled, and are published again; the first is "
        )
        assert "order.nudge of the instance i, published at 20" in warning

    def test_dead_letter_is_not_published_again(self, deployment: Deployment, relay: Relay) -> None:
        """It takes the place of the row."""
        dead_letter = dead_letter_of("order.nudge", "id-a", "order", ValueError("broken"), "{}")
        deployment.backend.dead.add(dead_letter)
        deployment.clocks.advance(100)
        sweep = relay.sweep()
        assert (deployment.publisher.ids, sweep.sent) == (["id-a"], 0)
        assert deployment.backend.outbox.count() == 0

    def test_one_that_cannot_be_published_any_more_is_a_dead_letter(self, deployment: Deployment, relay: Relay) -> None:
        """Its row goes, as that of any other dead letter."""
        deployment.clocks.advance(100)
        relay.publisher.errors = [POISON] * 3  # type: ignore[attr-defined]
        for _ in range(3):
            relay.sweep()
            deployment.clocks.advance(100)
        assert [each.message_id for each in deployment.backend.dead.list(10)] == ["id-a"]
        assert deployment.backend.outbox.count() == 0

    def test_other_messages_are_removed(self, deployment: Deployment, relay: Relay) -> None:
        deployment.add("b")
        deployment.add("c", kind="deadline", task="order.nudge")
        relay.sweep()
        assert deployment.publisher.ids == ["id-a", "id-b", "id-c"]
        assert [row.id for row in deployment.backend.outbox.read(["row-a", "row-b", "row-c"])] == ["row-a", "row-c"]


class TestStopping:
    """A worker that ends does not wait for a backlog."""

    def test_gives_back_what_it_does_not_come_to(self, deployment: Deployment) -> None:
        deployment.add("a", "b", "c")
        relay = deployment.relay()
        relay.is_stopping = lambda: len(deployment.publisher.published) == 1

        sweep = relay.sweep()

        assert deployment.publisher.ids == ["id-a"]
        assert (sweep.sent, sweep.released) == (1, 2)
        relay = deployment.relay()
        assert relay.sweep().sent == 2

    def test_claims_nothing(self, deployment: Deployment) -> None:
        deployment.add("a")
        relay = deployment.relay()
        relay.is_stopping = lambda: True

        assert relay.sweep() == Sweep(deployment.clocks.monotonic(), deployment.clocks.monotonic())
        assert deployment.relay().sweep().sent == 1


class TestHalfLease:
    """Whoever claims the rows when the lease has ended must be alone."""

    def slow(self, deployment: Deployment, seconds: float) -> Recorder:
        class Slow(Recorder):
            def publish(self, message: Any) -> None:
                super().publish(message)
                deployment.clocks.advance(seconds)

        return Slow()

    def test_stops_publishing(self, deployment: Deployment) -> None:
        deployment.add("a", "b", "c", "d")
        publisher = self.slow(deployment, LEASE_S / 4 + 1)

        sweep = deployment.relay(publisher).sweep()

        assert publisher.ids == ["id-a", "id-b"]
        assert (sweep.sent, sweep.released, sweep.error) == (2, 2, "")
        assert deployment.relay().sweep().sent == 2

    def test_lease_begins_before_the_claim(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store's answer may have been slow."""
        deployment.add("a")
        claim_due = deployment.backend.outbox.claim_due

        def slowly(*arguments: Any) -> Any:
            rows = claim_due(*arguments)
            deployment.clocks.advance(LEASE_S / 2 + 1)
            return rows

        monkeypatch.setattr(deployment.backend.outbox, "claim_due", slowly)

        assert deployment.relay().sweep().released == 1
        assert deployment.publisher.ids == []

    def test_ends_a_sweep_that_never_would(self, deployment: Deployment) -> None:
        """There is more to do than to publish."""
        deployment.add(*(f"{number:03}" for number in range(3 * BATCH)))
        publisher = self.slow(deployment, LEASE_S / 2 / BATCH)

        sweep = deployment.relay(publisher).sweep()

        assert sweep.sent == BATCH


class TestAbsentBroker:
    """It says nothing about any row."""

    def test_ends_the_sweep_and_counts_against_no_row(self, deployment: Deployment) -> None:
        deployment.add("a", "b", "c")
        deployment.publisher.errors = [None, AWAY]
        relay = deployment.relay()

        sweep = relay.sweep()

        assert deployment.publisher.ids == ["id-a"]
        assert (sweep.sent, sweep.released, sweep.failed) == (1, 2, 0)
        assert sweep.error == "the broker is away"
        rows = deployment.backend.outbox.claim_due("the test", 10, 1)
        deployment.clocks.advance(60)
        rows += deployment.backend.outbox.claim_due("the test", 10, 1)
        assert {row.attempts for row in rows} == {0}

    def test_any_number_of_times(self, deployment: Deployment) -> None:
        """Not even a long outage makes a dead letter."""
        deployment.add("a")
        relay = deployment.relay()
        for _ in range(3 * TERMS.max_attempts):
            deployment.publisher.errors = [AWAY]
            deployment.clocks.advance(60)
            assert relay.sweep().error

        deployment.clocks.advance(60)

        assert relay.sweep().sent == 1
        assert deployment.backend.dead.list(10) == []

    def test_is_told_once_and_so_is_its_end(self, deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
        """Not with each sweep; and a sweep that had nothing to send does not know that it is over."""
        caplog.set_level(logging.INFO, "celery_sagas")
        relay = deployment.relay()
        deployment.add("a")
        for _ in range(3):
            deployment.publisher.errors = [AWAY]
            assert relay.sweep().error
            deployment.backend.outbox.claim_due("another relay", 10, 10_000)
            assert not relay.sweep().error
            deployment.clocks.advance(10)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "the relay could not go on, and tries again: the broker is away" in caplog.text

        relay.sweep()
        relay.sweep()

        assert caplog.text.count("the relay works again after an outage of 30 s") == 1


class Choosy(Recorder):
    """A publisher whose broker ends the connection over some rows, and which may go away."""

    def __init__(self, *bad: str) -> None:
        super().__init__()
        self.bad = {f"id-{name}" for name in bad}
        self.tried: list[str] = []
        self.away: PublishError | None = None

    def publish(self, message: Any) -> None:
        """Keep a message, or fail."""
        self.tried.append(message.message_id)
        if self.away:
            raise self.away
        if message.message_id in self.bad:
            raise LOST
        super().publish(message)

    def probe(self) -> None:
        """Take messages, unless it is away."""
        if self.away:
            raise AWAY


def sweep_for(deployment: Deployment, relay: Relay, seconds: int) -> list[Sweep]:
    """Sweep once a second."""
    sweeps = []
    for _ in range(seconds):
        sweeps.append(relay.sweep())
        deployment.clocks.advance(1)
    return sweeps


class TestUnconfirmedFailures:
    """The connection is lost over a row, or the broker does not answer: a probe shows whether the row is the cause."""

    def test_row_fails_if_the_broker_takes_messages(self, deployment: Deployment) -> None:
        deployment.add("bad", "worse", "a", "b")
        relay = deployment.relay(publisher := Choosy("bad", "worse"))

        sweep = relay.sweep()

        assert publisher.ids == ["id-a", "id-b"]
        assert (sweep.sent, sweep.failed, sweep.released, sweep.error) == (2, 2, 0, "")

    def test_broker_that_takes_none_ends_the_sweep(self, deployment: Deployment) -> None:
        """It may accept connections."""
        deployment.add("a", "b", "c")
        relay = deployment.relay(publisher := Choosy())
        publisher.away = LOST

        sweep = relay.sweep()

        assert publisher.tried == ["id-a"]
        assert (sweep.released, sweep.failed, sweep.is_broker_away, sweep.error) == (3, 0, True, "the broker is away")
        publisher.away = None
        assert relay.sweep().sent == 3  # they had no lease to wait for

    def test_any_number_of_them_starves_no_other(self, deployment: Deployment) -> None:
        bad = [f"bad {number:03}" for number in range(BATCH - 1)]
        deployment.add(*bad, "good")
        relay = deployment.relay(publisher := Choosy(*bad))

        sweep = relay.sweep()

        assert publisher.ids == ["id-good"]
        assert (sweep.failed, sweep.error) == (len(bad), "")

    def test_many_batches_of_them_starve_no_other(self, deployment: Deployment) -> None:
        bad = [f"bad {number:03}" for number in range(3 * BATCH)]
        deployment.add(*bad)
        deployment.clocks.advance(1)
        deployment.add("good")
        relay = deployment.relay(publisher := Choosy(*bad))

        sweep_for(deployment, relay, 10)

        assert publisher.ids == ["id-good"]

    def test_slow_ones_starve_no_other(self, deployment: Deployment) -> None:
        """Each costs a deadline, and the sweep ends in time; those that have failed wait longer each time."""
        bad = [f"bad {number}" for number in range(10)]
        deployment.add(*bad)
        deployment.clocks.advance(1)
        deployment.add("good")

        class Slow(Choosy):
            def publish(self, message: Any) -> None:
                deployment.clocks.advance(10)
                super().publish(message)

        relay = deployment.relay(publisher := Slow(*bad), terms=Terms(1.0, LEASE_S, 10, 3600.0))
        began = deployment.clocks.monotonic()
        relay.sweep()
        assert deployment.clocks.monotonic() - began <= LEASE_S / 2 + 10

        sweep_for(deployment, relay, 30)

        assert publisher.ids == ["id-good"]

    @pytest.mark.parametrize("others", [(), ("a",)], ids=["alone", "with others"])
    def test_row_becomes_a_dead_letter(self, deployment: Deployment, others: tuple[str, ...]) -> None:
        deployment.add("bad", *others, "worse")
        relay = deployment.relay(Choosy("bad", "worse"))

        sweeps = sweep_for(deployment, relay, 60)

        assert {dead_letter.message_id for dead_letter in deployment.backend.dead.list(10)} == {"id-bad", "id-worse"}
        assert not any(sweep.error for sweep in sweeps)

    @pytest.mark.parametrize("with_others", [False, True], ids=["alone", "with others"])
    def test_nothing_counts_while_no_message_is_taken(self, deployment: Deployment, with_others: bool) -> None:
        """However long that lasts, and whatever was found before: a broker may have connections to give, and no memory."""
        deployment.add("bad", "a")
        relay = deployment.relay(publisher := Choosy("bad"), terms=Terms(1.0, LEASE_S, 2, 3600.0))
        assert relay.sweep().failed == 1
        publisher.away = LOST
        deployment.clocks.advance(2)
        if with_others:
            deployment.add("b", "c")

        sweeps = sweep_for(deployment, relay, 600)

        assert {(sweep.failed, sweep.dead_lettered, sweep.is_broker_away) for sweep in sweeps} == {(0, 0, True)}
        publisher.away = None
        publisher.bad.clear()
        sweep_for(deployment, relay, 1)
        assert publisher.ids[1:] == (["id-bad", "id-b", "id-c"] if with_others else ["id-bad"])
        assert deployment.backend.dead.list(10) == []

    def test_outage_that_is_over_when_the_broker_is_probed_counts_once(self, deployment: Deployment) -> None:
        """It cannot be distinguished from a row that is the cause; the row is tried again."""
        deployment.add("a")
        relay = deployment.relay(publisher := Choosy("a"))
        publisher.probe = publisher.bad.clear  # type: ignore[method-assign]

        assert relay.sweep().failed == 1
        deployment.clocks.advance(2)

        assert relay.sweep().sent == 1

    def test_nothing_is_written_after_an_outage_before_the_broker_takes_messages(self, deployment: Deployment) -> None:
        """A broker that is out of memory may keep what is written to it, and take it when there is some again."""
        deployment.add("a", "b")
        relay = deployment.relay(publisher := Choosy())
        publisher.away = LOST

        assert all(sweep.is_broker_away for sweep in sweep_for(deployment, relay, 30))

        assert publisher.tried == ["id-a"]
        publisher.away = None
        assert relay.sweep().sent == 2

    def test_broker_that_cannot_be_reached_ends_the_sweep_at_once(self, deployment: Deployment) -> None:
        deployment.add("a", "b", "c")
        deployment.publisher.errors = [LOST, AWAY]

        sweep = deployment.relay().sweep()

        assert (sweep.sent, sweep.released, sweep.failed, sweep.error) == (0, 2, 1, "the broker is away")


class TestAbsentStore:
    """It ends the sweep, and is told."""

    def away(self, *_: Any) -> Any:
        raise StoreUnavailable("store", "away")

    def test_claim(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "celery_sagas")
        relay = deployment.relay()
        with monkeypatch.context() as patch:
            patch.setattr(deployment.backend.outbox, "claim_due", self.away)
            for _ in range(2):
                assert "store is unavailable: away" in relay.sweep().error
        assert caplog.text.count("store is unavailable: away") == 1

        relay.sweep()

        assert "the relay works again" in caplog.text
        assert relay.tally.last_error == "The saga backend store is unavailable: away."

    def test_confirm(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was published is sent again, under its id: at least once."""
        deployment.add("a")
        with monkeypatch.context() as patch:
            patch.setattr(deployment.backend.outbox, "confirm", self.away)
            sweep = deployment.relay().sweep()
        assert (sweep.sent, bool(sweep.error)) == (0, True)
        deployment.clocks.advance(LEASE_S)

        deployment.relay().sweep()

        assert deployment.publisher.ids == ["id-a", "id-a"]

    def test_failure_that_cannot_be_noted_repeats_no_other(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was published before it is removed."""
        deployment.add("a", "b")
        deployment.publisher.errors = [None, POISON]
        monkeypatch.setattr(deployment.backend.outbox, "fail", self.away)

        assert deployment.relay().sweep().error

        assert deployment.backend.outbox.count() == 1


class TestPoison:
    """A row that no broker takes."""

    def test_holds_up_no_other(self, deployment: Deployment) -> None:
        deployment.add("a", "b", "c")
        deployment.publisher.errors = [POISON]

        sweep = deployment.relay().sweep()

        assert deployment.publisher.ids == ["id-b", "id-c"]
        assert (sweep.sent, sweep.failed, sweep.error) == (2, 1, "")

    def test_waits_twice_as_long_each_time(self, deployment: Deployment) -> None:
        deployment.add("a")
        terms = Terms(1.0, LEASE_S, 19, 3600.0)
        relay = deployment.relay(terms=terms)
        attempts: list[float] = []

        class Refusing(Recorder):
            def publish(self, message: Any) -> None:
                attempts.append(deployment.clocks.monotonic())
                raise POISON

        relay.publisher = Refusing()
        for _ in range(4_000):
            relay.sweep()
            deployment.clocks.advance(1)

        pauses = [round(late - early) for early, late in pairwise(attempts)]
        assert pauses[:11] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]

    def test_becomes_a_dead_letter(self, deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
        """With everything that a person needs, and with nothing that a store refuses."""
        deployment.add("a")
        relay, told = deployment.relay(), list[tuple[Any, ...]]()

        forks = Forks()

        def note(dead_letter: DeadLetter, error: PublishError) -> None:
            assert forks.are_kept_off
            told.append((dead_letter.id, error, deployment.backend.outbox.count(), len(deployment.backend.dead.list(10))))

        relay.notify_requester = relay.announce = note
        relay.publishing = forks.kept_off
        error = PublishError("it holds \0", False)
        error.__cause__ = ValueError("\0")
        sweeps = []
        for _ in range(TERMS.max_attempts):
            deployment.publisher.errors = [error]
            sweeps.append(relay.sweep())
            deployment.clocks.advance(600)

        (dead_letter,) = deployment.backend.dead.list(10)
        assert (dead_letter.task, dead_letter.message_id, dead_letter.payload, dead_letter.error) == (
            "charge",
            "id-a",
            "{}",
            "ValueError",
        )
        assert dead_letter.text == "it holds \\0"
        assert "ValueError" in dead_letter.traceback
        assert "\0" not in dead_letter.traceback
        assert deployment.backend.outbox.count() == 0
        assert [(sweep.failed, sweep.dead_lettered) for sweep in sweeps] == [(1, 0), (1, 0), (0, 1)]
        assert f"charge id-a failed 3 times and is kept as the dead letter {dead_letter.id}: " in caplog.text
        assert told == [
            (dead_letter.id, error, 1, 0),
            (dead_letter.id, error, 1, 1),
        ]  # whoever waits, then operators; then the row goes

    def test_is_kept_without_its_message_if_the_store_refuses_the_dead_letter(
        self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which is larger than the row; else that would hold up the others indefinitely."""
        add = deployment.backend.dead.add

        def small(dead_letter: DeadLetter) -> None:
            if dead_letter.payload == "{}":
                raise StoreError("too large")
            add(dead_letter)

        monkeypatch.setattr(deployment.backend.dead, "add", small)
        deployment.add("a")
        deployment.publisher.errors = [POISON]

        sweep = deployment.relay(terms=Terms(1.0, LEASE_S, 1, 3600.0)).sweep()

        (dead_letter,) = deployment.backend.dead.list(10)
        assert (sweep.dead_lettered, sweep.error, deployment.backend.outbox.count()) == (1, "", 0)
        assert dead_letter.payload == '{"unreadable":"the store refused it: StoreError"}'

    def test_stays_while_the_broker_does_not_even_take_that_it_has_failed(
        self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing else would end a request without a deadline."""
        deployment.add("a")
        relay = deployment.relay(terms=Terms(1.0, LEASE_S, 1, 3600.0))
        monkeypatch.setattr(deployment.publisher, "probe", failing_with([None, AWAY, None]))  # first: before a sweep
        relay.notify_requester = failing_with([AWAY, LOST, None])
        sweeps = []
        for _ in range(3):
            deployment.publisher.errors = [POISON]
            sweeps.append(relay.sweep())
            deployment.clocks.advance(600)

        assert [(sweep.released, sweep.dead_lettered, sweep.is_broker_away) for sweep in sweeps] == [
            (1, 0, True),
            (1, 0, True),
            (0, 1, False),
        ]
        assert len(deployment.backend.dead.list(10)) == 1
        assert deployment.backend.outbox.count() == 0

    def test_is_a_dead_letter_if_the_broker_takes_messages_but_not_that_it_has_failed(self, deployment: Deployment) -> None:
        """It ends the connection over that one, too."""
        deployment.add("a")
        relay = deployment.relay(terms=Terms(1.0, LEASE_S, 1, 3600.0))
        relay.notify_requester = failing(LOST)
        deployment.publisher.errors = [POISON]

        sweep = relay.sweep()

        assert (sweep.dead_lettered, sweep.released, sweep.error) == (1, 0, "")

    def test_outage_that_begins_when_they_are_dead_lettered_ends_the_sweep(self, deployment: Deployment) -> None:
        """Each of them would wait for it."""
        deployment.add("bad", "worse", "worst", "a")
        relay = deployment.relay(Choosy("bad", "worse", "worst"), terms=Terms(1.0, LEASE_S, 1, 3600.0))
        told: list[str] = []

        def notify(dead_letter: DeadLetter, error: PublishError) -> None:
            told.append(dead_letter.message_id)
            raise AWAY

        relay.notify_requester = notify
        sweep = relay.sweep()

        assert (sweep.sent, sweep.released, sweep.dead_lettered, sweep.is_broker_away) == (0, 4, 0, True)
        assert len(told) == 1

    def test_is_one_dead_letter_however_often_it_is_made(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store may go away between the dead letter and the row's removal."""
        deployment.add("a")
        relay = deployment.relay(terms=Terms(1.0, LEASE_S, 1, 3600.0))
        for is_away in (True, False):
            deployment.publisher.errors = [POISON]
            with monkeypatch.context() as patch:
                if is_away:
                    patch.setattr(deployment.backend.outbox, "confirm", TestAbsentStore().away)
                relay.sweep()
            deployment.clocks.advance(LEASE_S)

        assert len(deployment.backend.dead.list(10)) == 1
        assert deployment.backend.outbox.count() == 0


def failing(error: Exception) -> Any:
    """Return what raises an error."""

    def fail(*_: Any) -> None:
        raise error

    return fail


def failing_with(errors: list[PublishError | None]) -> Any:
    """Return what raises one error after the other, or none."""

    def fail(*_: Any) -> None:
        if error := errors.pop(0):
            raise error

    return fail


class Forks:
    """Keeps forks off while something is done."""

    are_kept_off = False

    @contextmanager
    def kept_off(self) -> Iterator[None]:
        self.are_kept_off = True
        yield
        self.are_kept_off = False


class TestUnknownStep:
    """A timeout is published by a worker that has its step: another's queue may be read by nobody who does."""

    @pytest.mark.parametrize("kind", ["scheduled", "deadline"])
    def test_is_left_to_a_worker_that_knows_it(self, deployment: Deployment, kind: str, caplog: pytest.LogCaptureFixture) -> None:
        deployment.add("a", kind=kind, task="order.renamed")
        ignorant = deployment.relay()
        for _ in range(3):
            sweep = ignorant.sweep()
            assert sweep.unknown == {"order.renamed": 1}
            deployment.clocks.advance(1)
        assert caplog.text.count("order.renamed is due, and is no step of this worker") == 1
        assert ignorant.tally.unknown == {"order.renamed": 3}

        sweep = deployment.relay(knows=lambda task: True).sweep()

        assert sweep.sent == 1
        assert deployment.publisher.ids == ["id-a"]

    def test_plain_task_is_sent_without_being_known(self, deployment: Deployment) -> None:
        """Its worker may have nothing to do with sagas."""
        deployment.add("a", task="charge", due_s=5)
        deployment.clocks.advance(5)

        assert deployment.relay(knows=lambda task: False).sweep().sent == 1

    def test_starves_no_other(self, deployment: Deployment) -> None:
        """However many there are."""
        deployment.add(*(f"{number:03}" for number in range(3 * BATCH)), kind="scheduled", task="order.renamed")
        deployment.clocks.advance(1)
        deployment.add("a")

        sweep = deployment.relay().sweep()

        assert deployment.publisher.ids == ["id-a"]
        assert sweep.unknown == {"order.renamed": 3 * BATCH}

    def test_is_looked_at_less_and_less(self, deployment: Deployment) -> None:
        """From the interval up to a minute."""
        deployment.add("a", kind="scheduled", task="order.renamed")
        relay = deployment.relay()
        looks: list[float] = []
        for _ in range(3_600):
            if relay.sweep().unknown:
                looks.append(deployment.clocks.monotonic())
            deployment.clocks.advance(1)

        pauses = [late - early for early, late in pairwise(looks)]
        assert pauses[0] == 1
        assert pauses == sorted(pauses)
        assert pauses[-1] == 60

    def test_is_not_hidden_from_a_worker_that_knows_it(self, deployment: Deployment) -> None:
        """Though others look at it as often."""
        due_s = [3 + number / 7 for number in range(60)]
        for number, at in enumerate(due_s):
            deployment.add(f"{number:02}", kind="scheduled", task="order.remind", due_s=at)
        ignorant = [deployment.relay(knows=lambda task: False) for _ in range(4)]
        relays = [*ignorant, deployment.relay(knows=lambda task: True)]
        sent: list[float] = []
        for _ in range(15):
            for relay in relays:  # each once a second
                sent += relay.sweep().sent * [deployment.clocks.monotonic()]
                deployment.clocks.advance(0.2)

        assert len(sent) == len(due_s)
        began = deployment.clocks.monotonic() - 15
        assert max(at - began - due for at, due in zip(sent, due_s, strict=True)) <= 1.001

    def test_that_was_due_at_once_is_looked_at_with_each_interval(self, deployment: Deployment) -> None:
        """Nobody knows since when it has been due."""
        row = Outgoing("row-a", "scheduled", "id-a", "order.renamed", "{}")
        entry = Entry("order.place", "cause", "a", "started", "order", "42", "i", 1, "{}")
        deployment.backend.sagas.record(Effects(entry, (row,)))
        relay = deployment.relay()

        sweeps = sweep_for(deployment, relay, 3)

        assert [sweep.unknown for sweep in sweeps] == 3 * [{"order.renamed": 1}]


class TestHousekeeping:
    """What has been kept for long enough is removed, once a minute."""

    def handled(self, deployment: Deployment, count: int) -> None:
        for number in range(count):
            entry = Entry("order.place", f"m{number}", "a", "started", "order", "42", "i", 1, "{}")
            deployment.backend.sagas.record(Effects(entry))
        deployment.backend.deliveries.count("order.place", "m0")

    def test_removes_what_is_older_than_the_retention(self, deployment: Deployment) -> None:
        self.handled(deployment, 3)
        relay = deployment.relay()
        deployment.clocks.advance(TERMS.retention_s - 1)
        assert relay.sweep().purged == 0

        deployment.clocks.advance(61)

        assert relay.sweep().purged == 4
        assert deployment.backend.journal.history(["order"], "42", 10) == []
        assert deployment.backend.deliveries.count("order.place", "m0") == 1

    def test_keeps_the_audit_for_as_long_as_it_is_told(self, deployment: Deployment) -> None:
        made = operate(deployment.backend)
        relay = deployment.relay(terms=replace(TERMS, audit_s=2 * TERMS.retention_s))
        deployment.clocks.advance(TERMS.retention_s + 1)
        assert relay.sweep().purged == 1
        assert [each.id for each in deployment.backend.audit.recent(9).entries] == [made.id]

        deployment.clocks.advance(TERMS.retention_s)

        assert relay.sweep().purged == 1
        assert deployment.backend.audit.recent(9) == ((), "")

    def test_passes_over_a_backend_without_an_audit(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handled(deployment, 3)
        monkeypatch.delattr(deployment.backend, "audit")
        relay = deployment.relay()
        deployment.clocks.advance(TERMS.retention_s + 1)
        assert relay.sweep().purged == 4

    def test_looks_once_a_minute(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[float] = []

        def purge(older_than_ms: int, limit: int) -> int:
            looks.append(deployment.clocks.monotonic())
            return 0

        monkeypatch.setattr(deployment.backend.journal, "purge", purge)
        relay = deployment.relay()
        for _ in range(200):
            relay.sweep()
            deployment.clocks.advance(1)

        assert [round(late - early) for early, late in pairwise(looks)] == [60, 60]

    def test_removes_a_bounded_number_and_goes_on_with_the_next_sweep(
        self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = [25_500]

        def purge(older_than_ms: int, limit: int) -> int:
            count = min(limit, left[0])
            left[0] -= count
            return count

        monkeypatch.setattr(deployment.backend.journal, "purge", purge)
        relay = deployment.relay()
        deployment.clocks.advance(60)

        assert [relay.sweep().purged for _ in range(4)] == [10_000, 10_000, 5_500, 0]


def test_what_it_has_done_can_be_shown(deployment: Deployment) -> None:
    """As JSON, to operators."""
    deployment.add("a", "b")
    deployment.add("c", kind="scheduled", task="order.renamed")
    deployment.publisher.errors = [POISON]
    relay = deployment.relay()
    relay.sweep()
    relay.sweep()

    shown = relay.tally.shown()

    assert (shown["sweeps"], shown["sent"], shown["failed"], shown["unknown"]) == (2, 1, 1, {"order.renamed": 1})
    assert shown["last"]["sent"] == 0


class TestBatches:
    """Publishing many messages before the broker confirms them, where it can."""

    def test_what_it_leaves_is_published_one_by_one(self, deployment: Deployment) -> None:
        """Each of them gets an answer of its own."""
        deployment.add("a", "b", "c", "d")
        deployment.publisher = publisher = Batching("a", "c")
        publisher.errors = [POISON, None]

        sweep = deployment.relay().sweep()

        assert publisher.given == ["row-a", "row-b", "row-c", "row-d"]
        assert publisher.ids == ["id-d"]
        assert (sweep.sent, sweep.failed) == (3, 1)
        assert deployment.backend.outbox.count() == 1

    def test_broker_that_goes_away_meanwhile(self, deployment: Deployment) -> None:
        """What was confirmed is removed, and the rest given back."""
        deployment.add("a", "b", "c")
        deployment.publisher = publisher = Batching("a")
        publisher.errors = [AWAY]

        sweep = deployment.relay().sweep()

        assert (sweep.sent, sweep.released, sweep.error) == (1, 2, "the broker is away")
        assert deployment.backend.outbox.count() == 2

    def test_broker_that_is_away(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is tried in another way."""
        deployment.add("a", "b", "c")
        monkeypatch.setattr(deployment.publisher, "publish_many", failing(AWAY))

        sweep = deployment.relay().sweep()

        assert (sweep.sent, sweep.released, sweep.error) == (0, 3, "the broker is away")
        assert deployment.publisher.ids == []

    def test_one_row_needs_none(self, deployment: Deployment) -> None:
        """It would take longer."""
        deployment.add("a")
        deployment.publisher = publisher = Batching("a")

        deployment.relay().sweep()

        assert publisher.given == []
        assert publisher.ids == ["id-a"]

    def test_does_not_begin_when_asked_to_stop(self, deployment: Deployment) -> None:
        deployment.add("a", "b")
        deployment.publisher = publisher = Batching("a", "b")
        relay = deployment.relay()
        answers = iter([False, True, True, True])
        relay.is_stopping = lambda: next(answers)

        sweep = relay.sweep()

        assert publisher.given == []
        assert sweep.released == 2

    def test_what_was_not_confirmed_is_published_again_in_the_same_sweep(self, deployment: Deployment) -> None:
        """It may have arrived: one by one, the broker tells of each."""
        deployment.add("a", "b", "c", "d")
        deployment.publisher = publisher = Batching("a", "d", unconfirmed="bc")

        sweep = deployment.relay().sweep()

        assert publisher.ids == ["id-b", "id-c"]
        assert (sweep.sent, sweep.unconfirmed, sweep.released, sweep.failed, sweep.error) == (4, 2, 0, 0, "")
        assert deployment.backend.outbox.count() == 0

    def test_what_was_not_confirmed_keeps_its_lease_if_the_broker_goes_away(self, deployment: Deployment) -> None:
        """Else each relay would send it to a broker that takes it when it is back."""
        deployment.add("a", "b", "c", "d")
        deployment.publisher = publisher = Batching("a", unconfirmed="bc")
        publisher.errors = [AWAY]
        relay = deployment.relay()

        sweep = relay.sweep()

        assert (sweep.sent, sweep.unconfirmed, sweep.released, sweep.is_broker_away) == (1, 2, 1, True)
        publisher.unconfirmed.clear()
        deployment.clocks.advance(LEASE_S - 1)
        assert relay.sweep().sent == 1
        deployment.clocks.advance(1)
        assert relay.sweep().sent == 2

    def test_no_batch_follows_one_that_was_not_confirmed(self, deployment: Deployment) -> None:
        """A broker that is slow would get them all, one after the other."""
        names = [f"{number:03}" for number in range(2 * BATCH)]
        deployment.add(*names)
        deployment.publisher = publisher = Batching(unconfirmed=names)

        assert deployment.relay().sweep().unconfirmed == BATCH
        assert len(publisher.given) == BATCH

    def test_row_that_has_failed_goes_alone(self, deployment: Deployment) -> None:
        """Others must not be lost with it."""
        deployment.add("bad")
        deployment.publisher = publisher = Batching("a", "b", "bad")
        relay = deployment.relay()
        publisher.errors = [POISON]
        relay.sweep()
        deployment.clocks.advance(2)
        deployment.add("a", "b")

        assert relay.sweep().sent == 3

        assert publisher.given == ["row-a", "row-b"]
        assert publisher.ids == ["id-bad"]

    def test_row_that_ends_the_connection_for_all(self, deployment: Deployment) -> None:
        """It fails, and the others do not."""
        deployment.add("bad", "a", "b")
        deployment.publisher = publisher = Batching(unconfirmed=("bad", "a"))
        publisher.errors = [LOST]

        sweep = deployment.relay().sweep()

        assert publisher.ids == ["id-a", "id-b"]
        assert (sweep.failed, sweep.error) == (1, "")
