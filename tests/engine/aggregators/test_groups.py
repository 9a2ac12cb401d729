"""What a relay does for aggregators: due groups are flushed, and what could not be read is tried again."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.engine.aggregators.groups import BATCH, LOOKED_AT, PAUSE_S, Groups
from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import PublishError, StoreUnavailable, Unconfirmed
from celery_sagas.stores.items import Addition, NewItem
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.testing.clock import Clock
from tests.engine.aggregators.batches import LEASE_MS, NAME, define, failing, payload, rules_of
from tests.engine.conftest import Recorder

HOUR_MS = 3_600_000
AWAY = PublishError("the broker is away", True)


class Deployment:
    """An aggregator whose groups are due after an hour, and relays over it."""

    def __init__(self, backend: MemoryBackend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self.definitions = [define(group_by="device", size=None)]
        self.asked: list[tuple[str, str]] = []
        self.messages: list[int] = []  #: how many groups each of them has
        self.errors: list[PublishError] = []
        self.must_end: Callable[[], bool] = lambda: False

    def groups(self) -> Groups:
        """Make what one relay does."""
        return Groups(
            self.backend, lambda: self.definitions, rules_of, self.ask, LEASE_MS / 1000, clock=lambda: self.clock.now / 1000
        )

    def ask(self, definition: AggregatorDefinition, groups: Sequence[str]) -> None:
        """Take a message, or raise the next error."""
        if self.errors:
            raise self.errors.pop(0)
        self.messages.append(len(groups))
        self.asked += [(definition.name, group) for group in groups]

    def add(self, *groups: str, name: str = NAME, text: str = "", is_unreadable: bool = False, **rules: Any) -> None:
        """Buffer an item in each of these groups."""
        additions = [Addition(group, (NewItem(f"{group}-id", text or payload(group), is_unreadable),)) for group in groups]
        self.backend.aggregates.insert(rules_of(define(name=name, size=None), **rules), additions)

    def sweep(self, groups: Groups | None = None) -> Sweep:
        """Sweep once."""
        sweep = Sweep(0.0)
        (groups or self.groups()).sweep(sweep, self.must_end)
        return sweep

    @property
    def asked_groups(self) -> list[str]:
        """The groups whose flushes were asked for."""
        return [group for _, group in self.asked]

    def states(self) -> dict[str, str]:
        """Return the state of what is buffered, by group."""
        groups = self.backend.buffers.groups(NAME, 1_000)
        return {each.group: item.state for each in groups for item in self.backend.buffers.read(NAME, each.group, 10)}


def collect_anything(batch: Batch[Any]) -> None:
    """Take whatever there is."""


@pytest.fixture
def deployment(backend: MemoryBackend, clock: Clock) -> Deployment:
    """A deployment with nothing buffered."""
    return Deployment(backend, clock)


class TestDueGroups:
    """No group is forgotten, whoever was to flush it."""

    def test_are_asked_for(self, deployment: Deployment) -> None:
        deployment.add("a", "b")
        deployment.clock.advance(HOUR_MS - 1)
        assert deployment.sweep().flushes == 0

        deployment.clock.advance(1)

        assert deployment.sweep().flushes == 2
        assert deployment.messages == [1, 1]
        assert sorted(deployment.asked) == [(NAME, "a"), (NAME, "b")]

    def test_share_messages_if_there_are_many(self, deployment: Deployment) -> None:
        """Of those of one aggregator that are claimed at once. A few are divided, for several processes."""
        deployment.definitions.append(define(name="other", group_by="device", size=None))
        deployment.add(*(f"{number}" for number in range(BATCH - 9)), name="other")
        deployment.clock.advance(1)
        deployment.add(*(f"{number}" for number in range(9)))
        deployment.clock.advance(HOUR_MS)

        assert deployment.sweep().flushes == BATCH

        assert deployment.messages == [22, 22, 22, 22, 3, 2, 2, 2, 2, 1]
        assert len(set(deployment.asked)) == BATCH

    def test_are_asked_for_once_while_a_flush_may_come(self, deployment: Deployment) -> None:
        deployment.add("a")
        deployment.clock.advance(HOUR_MS)
        deployment.sweep()
        deployment.clock.advance(LEASE_MS - 1)
        deployment.sweep()
        assert deployment.asked_groups == ["a"]

        deployment.clock.advance(1)  # the message is lost
        deployment.sweep()

        assert deployment.asked_groups == ["a", "a"]

    def test_group_whose_worker_has_died_is_flushed(self, deployment: Deployment) -> None:
        deployment.add("a")
        deployment.clock.advance(HOUR_MS)
        assert deployment.backend.aggregates.claim(rules_of(deployment.definitions[0]), "a", "dead") is not None
        assert deployment.sweep().flushes == 0

        deployment.clock.advance(LEASE_MS)

        assert deployment.sweep().flushes == 1

    def test_are_shared_by_relays(self, deployment: Deployment) -> None:
        deployment.add(*(f"{number:03}" for number in range(150)))
        deployment.clock.advance(HOUR_MS)
        rival, seen = deployment.groups(), []

        def must_end() -> bool:
            if not seen:
                seen.append(True)
                deployment.sweep(rival)
            return False

        deployment.must_end = must_end
        deployment.sweep()

        assert len(deployment.asked) == len(set(deployment.asked)) == 150

    def test_of_unknown_aggregators_are_left_to_others(self, deployment: Deployment) -> None:
        """They are not claimed either: who knows them need not wait."""
        deployment.add("a", name="shop.other")
        deployment.clock.advance(HOUR_MS)
        assert deployment.sweep().flushes == 0

        deployment.definitions.append(define(name="shop.other"))
        deployment.sweep()

        assert deployment.asked == [("shop.other", "a")]

    def test_without_aggregators_nothing_is_asked(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        deployment.definitions.clear()
        monkeypatch.setattr(deployment.backend.aggregates, "claim_due", failing(AssertionError()))

        deployment.clock.advance(HOUR_MS)

        assert deployment.sweep() == Sweep(0.0)


class TestBounds:
    """A sweep ends, whatever there is to do."""

    @pytest.fixture
    def many(self, deployment: Deployment) -> Deployment:
        """So many groups that they are claimed in three batches."""
        deployment.add(*(f"{number:03}" for number in range(2 * BATCH + 1)))
        deployment.clock.advance(HOUR_MS)
        return deployment

    def test_goes_on_while_batches_are_full(self, many: Deployment) -> None:
        assert many.sweep().flushes == 2 * BATCH + 1

    def test_ends_when_it_is_asked_to(self, many: Deployment) -> None:
        many.must_end = lambda: bool(many.asked)

        assert many.sweep().flushes == BATCH

    def test_ends_before_what_it_claimed_first_is_due_again(self, many: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a slow broker it would never end, and there is more to do than this."""
        ask = many.ask

        def slowly(definition: AggregatorDefinition, groups: Sequence[str]) -> None:
            ask(definition, groups)
            many.clock.advance(LEASE_MS // BATCH * len(groups))

        monkeypatch.setattr(many, "ask", slowly)

        assert many.sweep().flushes == BATCH

    @pytest.mark.parametrize("error", [AWAY, Unconfirmed("lost", True), PublishError("refused", False)])
    def test_broker_that_is_away_ends_it(self, many: Deployment, error: PublishError) -> None:
        many.errors = [error]

        sweep = many.sweep()

        assert (many.asked, sweep.flushes, sweep.error, sweep.is_broker_away) == ([], 0, error.reason, True)

    def test_after_an_outage(self, many: Deployment) -> None:
        """What was claimed in vain comes again, and the others at once."""
        many.errors = [AWAY]
        many.sweep()
        assert many.sweep().flushes == BATCH + 1

        many.clock.advance(LEASE_MS)
        many.sweep()

        assert set(many.asked_groups) == {f"{number:03}" for number in range(2 * BATCH + 1)}

    def test_nothing_is_claimed_once_the_broker_is_away(self, many: Deployment) -> None:
        """It was for the outbox too."""
        sweep = Sweep(0.0, error="away", is_broker_away=True)
        many.groups().sweep(sweep, many.must_end)

        assert (many.asked, sweep.flushes) == ([], 0)
        assert many.sweep().flushes == 2 * BATCH + 1

    def test_goes_on_after_an_error_of_another_store(self, many: Deployment) -> None:
        sweep = Sweep(0.0, error="the store of the outbox is away")
        many.groups().sweep(sweep, many.must_end)

        assert (sweep.flushes, sweep.error) == (2 * BATCH + 1, "the store of the outbox is away")


class TestChangedRules:
    """Groups that were buffered by other rules are due by these, after a start."""

    def changed(self, deployment: Deployment, **rules: Any) -> Groups:
        """Deploy an aggregator that asks for something else."""
        groups = deployment.groups()
        groups.rules_of = lambda definition: rules_of(definition, **rules)
        return groups

    def test_smaller_size(self, deployment: Deployment) -> None:
        """They are full now, and no item need come to tell."""
        deployment.add("a", "b", size=9)
        groups = self.changed(deployment, size=1)

        assert deployment.sweep(groups).flushes == 2
        assert sorted(deployment.asked) == [(NAME, "a"), (NAME, "b")]

    def test_shorter_time(self, deployment: Deployment) -> None:
        """Those whose time has passed are flushed at once, the others when it has."""
        deployment.add("a", within_ms=24 * HOUR_MS)
        deployment.clock.advance(HOUR_MS // 2)
        deployment.add("b", within_ms=24 * HOUR_MS)
        deployment.clock.advance(HOUR_MS // 2)
        groups = self.changed(deployment, within_ms=HOUR_MS)
        deployment.sweep(groups)
        assert deployment.asked_groups == ["a"]

        deployment.clock.advance(HOUR_MS // 2)
        deployment.sweep(groups)

        assert "b" in deployment.asked_groups

    def test_first_time(self, deployment: Deployment) -> None:
        """They had none, and would have waited indefinitely."""
        deployment.add("a", within_ms=0, size=9)
        groups = self.changed(deployment, idle_ms=HOUR_MS, within_ms=0)
        deployment.sweep(groups)
        assert deployment.asked == []

        deployment.clock.advance(HOUR_MS)
        deployment.sweep(groups)

        assert deployment.asked_groups == ["a"]

    def test_longer_time(self, deployment: Deployment) -> None:
        """Whoever asks by the old time finds that the trigger has not fired."""
        deployment.add("a", within_ms=HOUR_MS)
        groups = self.changed(deployment, within_ms=2 * HOUR_MS)
        deployment.sweep(groups)
        deployment.clock.advance(HOUR_MS)
        deployment.sweep(groups)
        assert deployment.asked == []

        deployment.clock.advance(HOUR_MS)
        deployment.sweep(groups)

        assert deployment.asked_groups == ["a"]

    def test_so_many_with_each_sweep(self, deployment: Deployment) -> None:
        """And each once."""
        names = [f"{number:03}" for number in range(2 * LOOKED_AT + 1)]
        deployment.add(*names, size=9)
        groups = self.changed(deployment, size=1)
        sweeps = [deployment.sweep(groups).flushes for _ in range(4)]

        assert sweeps == [LOOKED_AT, LOOKED_AT, 1, 0]
        assert deployment.asked_groups == names

    def test_exactly_as_many_as_one_sweep_looks_at(self, deployment: Deployment) -> None:
        deployment.add(*(f"{number:03}" for number in range(LOOKED_AT)), size=9)
        groups = self.changed(deployment, size=1)

        assert [deployment.sweep(groups).flushes for _ in range(3)] == [LOOKED_AT, 0, 0]

    def test_of_each_aggregator(self, deployment: Deployment) -> None:
        deployment.definitions.append(define(name="shop.other", size=None))
        deployment.add("a", size=9)
        deployment.add("b", name="shop.other", size=9)
        deployment.sweep(self.changed(deployment, size=1))

        assert sorted(deployment.asked) == [(NAME, "a"), ("shop.other", "b")]

    def test_once_after_a_start(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """What comes later is inserted by these rules."""
        deployment.add("a")
        groups = deployment.groups()
        deployment.sweep(groups)
        monkeypatch.setattr(deployment.backend.buffers, "groups", failing(AssertionError()))

        assert deployment.sweep(groups) == Sweep(0.0)

    def test_broker_that_is_away_has_it_done_again(self, deployment: Deployment) -> None:
        """What was requested in vain is due when the requests expire."""
        deployment.add("a", "b", size=9)
        groups = self.changed(deployment, size=1)
        deployment.errors = [AWAY]
        sweep = deployment.sweep(groups)
        assert (deployment.asked, sweep.error, sweep.is_broker_away) == ([], AWAY.reason, True)

        deployment.sweep(groups)
        deployment.clock.advance(LEASE_MS)
        deployment.sweep(groups)

        assert sorted(deployment.asked_groups) == ["a", "b"]

    def test_not_when_it_is_to_end(self, deployment: Deployment) -> None:
        """The next process does."""
        deployment.add("a", size=9)
        deployment.must_end = lambda: True
        groups = self.changed(deployment, size=1)
        assert deployment.sweep(groups).flushes == 0

        deployment.must_end = lambda: False

        assert deployment.sweep(groups).flushes == 1


class TestUnread:
    """Items that could not be read come back when they can be."""

    def sweep_later(self, deployment: Deployment, groups: Groups) -> None:
        """Sweep when it is time to look again."""
        deployment.clock.advance(int(PAUSE_S * 1000))
        deployment.sweep(groups)

    def test_readable_ones_come_back(self, deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "celery_sagas")
        deployment.add("a", is_unreadable=True)

        groups = deployment.groups()
        deployment.sweep(groups)

        assert deployment.states() == {"a": "free"}
        assert f"{NAME}: 1 items can be read now, and are flushed" in caplog.text
        deployment.sweep(groups)
        assert deployment.asked_groups == ["a"]

    def test_others_stay_until_they_can_be_read(self, deployment: Deployment) -> None:
        """They fire no trigger, and are due at no time."""
        deployment.add("a", text='{"device": "a"}', is_unreadable=True)
        groups = deployment.groups()
        deployment.sweep(groups)
        self.sweep_later(deployment, groups)
        assert (deployment.states(), deployment.asked) == ({"a": "unresolved"}, [])

        deployment.definitions = [define(collect_anything, group_by="device", size=None)]
        self.sweep_later(deployment, groups)

        assert deployment.states() == {"a": "free"}

    def test_items_behind_many_others_are_reached(self, deployment: Deployment) -> None:
        """One round after the other, each in as many sweeps as it takes."""
        deployment.add(*(f"{number:03}" for number in range(BATCH + 9)), text="{}", is_unreadable=True)
        deployment.add("last", is_unreadable=True)
        groups = deployment.groups()
        deployment.sweep(groups)
        deployment.sweep(groups)
        assert deployment.states()["last"] == "free"

        deployment.add("first", is_unreadable=True)
        deployment.sweep(groups)
        assert deployment.states()["first"] == "unresolved"
        self.sweep_later(deployment, groups)
        deployment.sweep(groups)

        assert deployment.states()["first"] == "free"

    def test_each_of_a_mixture(self, deployment: Deployment) -> None:
        deployment.add("a", "b", is_unreadable=True)
        deployment.add("c", "d", text="{}", is_unreadable=True)
        deployment.sweep()

        assert deployment.states() == {"a": "free", "b": "free", "c": "unresolved", "d": "unresolved"}

    def test_are_looked_for_now_and_then(self, deployment: Deployment) -> None:
        groups = deployment.groups()
        deployment.sweep(groups)
        deployment.add("a", is_unreadable=True)
        deployment.sweep(groups)
        assert deployment.states() == {"a": "unresolved"}

        self.sweep_later(deployment, groups)

        assert deployment.states() == {"a": "free"}

    def test_so_many_at_once(self, deployment: Deployment) -> None:
        """The next sweep goes on at once: it does not wait for its time."""
        deployment.add(*(f"{number:03}" for number in range(BATCH + 1)), is_unreadable=True)
        groups = deployment.groups()
        deployment.sweep(groups)
        assert list(deployment.states().values()).count("unresolved") == 1

        deployment.sweep(groups)

        assert "unresolved" not in deployment.states().values()

    def test_of_unknown_aggregators_are_left_to_others(self, deployment: Deployment) -> None:
        deployment.definitions = [define(name="shop.other")]
        deployment.add("a", is_unreadable=True)
        deployment.sweep()

        assert deployment.states() == {"a": "unresolved"}

    def test_not_when_it_is_to_end(self, deployment: Deployment) -> None:
        deployment.must_end = lambda: True
        deployment.add("a", is_unreadable=True)
        deployment.sweep()

        assert deployment.states() == {"a": "unresolved"}


class TestRelay:
    """A relay does it in each of its sweeps."""

    def relay(self, deployment: Deployment) -> Relay:
        terms = Terms(interval_s=1.0, lease_s=60.0, max_attempts=3, retention_s=3600.0)
        groups = deployment.groups()
        knows = {NAME}.__contains__
        return Relay(deployment.backend, Recorder(), knows, terms, clock=groups.clock, wall_clock=groups.clock, groups=groups)

    def test_counts_flushes(self, deployment: Deployment) -> None:
        relay = self.relay(deployment)
        deployment.add("a")
        deployment.clock.advance(HOUR_MS)

        assert relay.sweep().flushes == 1
        assert relay.tally.flushes == 1

    def test_store_that_is_away_ends_the_sweep(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        relay = self.relay(deployment)
        error = StoreUnavailable("memory://", "away")
        monkeypatch.setattr(deployment.backend.aggregates, "claim_due", lambda *_: failing(error)())

        assert relay.sweep().error == str(error)

    def test_outbox_that_is_away_ends_the_sweep(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would be asked in vain, after another timeout."""
        relay, error = self.relay(deployment), StoreUnavailable("memory://", "away")
        monkeypatch.setattr(deployment.backend.outbox, "claim_due", lambda *_: failing(error)())
        deployment.add("a")
        deployment.clock.advance(HOUR_MS)

        sweep = relay.sweep()

        assert (sweep.flushes, sweep.error, deployment.asked) == (0, str(error), [])

    def test_broker_that_is_away_for_the_outbox_is_asked_no_more(self, deployment: Deployment) -> None:
        entry = Entry("order.place", "cause", "a", "started", "order", "42", "i", 1, "{}")
        deployment.backend.sagas.record(Effects(entry, (Outgoing("row", "sent", "m", "charge", "{}", 0),)))
        relay = self.relay(deployment)
        relay.publisher = publisher = Recorder()
        publisher.errors = [AWAY]
        deployment.add("a")
        deployment.clock.advance(HOUR_MS)

        assert (relay.sweep().error, deployment.asked) == (AWAY.reason, [])
        assert relay.sweep().flushes == 1

    def test_forgets_ids_of_items(self, deployment: Deployment) -> None:
        """It forgets them when their time has passed."""
        relay, rules = self.relay(deployment), rules_of(deployment.definitions[0])
        deployment.add("a")
        deployment.backend.buffers.remove(rules, "a", "a-id")
        relay.sweep()
        deployment.add("a")
        assert deployment.states() == {}

        deployment.clock.advance(HOUR_MS)
        relay.sweep()

        assert deployment.backend.aggregates.purge(10) == 0
        deployment.add("a")
        assert deployment.states() == {"a": "free"}
