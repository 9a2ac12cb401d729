"""Gathering without Celery: what is kept of the members, and when an instance is told of it."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from celery_sagas.core.requests.requests import ReplyKind, Request, Target
from celery_sagas.engine.requests.gathering import (
    REMEMBERED_S,
    Collecting,
    Gather,
    Gathering,
    GatherState,
    Member,
    _Known,
    owner_of,
)
from celery_sagas.engine.requests.gathers import BATCH, Gathers
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import LeaseLost, PublishError, RevisionConflict, UnreadableState
from celery_sagas.stores.items import Addition, NewItem
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.clock import Clock
from tests.apps import Interposed
from tests.engine.conftest import Engine, Order, starter

SAGA: Any = Order.__saga__
LEASE_MS, DAY_MS = 60_000, 86_400_000
QUOTED, TOO_FEW = Target("order.quoted"), Target("order.too_few")


class Shop:
    """Orders that gather, and what they are told."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine, self.backend, self.clock = engine, engine.backend, clock
        self.told: list[tuple[str, str, Mapping[str, Any]]] = []  #: the request, the step, and what has come
        self.errors: list[Exception] = []
        self.gathering = self.process()

    def process(self) -> Gathering:
        """Begin another process over the same backend."""
        now = {"clock": lambda: self.clock.now / 1000, "wall_clock": lambda: self.clock.now / 1000}
        return Gathering(self.backend, self.backend, self.publish, LEASE_MS, DAY_MS, 1_000, **now)

    def publish(self, gather: Gather, target: Target, gathered: Mapping[str, Any]) -> None:
        """Note what is told, or raise the next error."""
        if self.errors:
            raise self.errors.pop(0)
        self.told.append((gather.request, target.task, gathered))

    def begin(self, key: str = "42", members: int = 2, request: str = "request", **noted: Any) -> Gather:
        """Have an order gather."""
        targets: dict[str, Any] = {"to_then": QUOTED, "to_otherwise": TOO_FEW, **noted}
        noted = {"at_least": members, **targets}
        asked = Request(request, "gather", QUOTED.task, TOO_FEW.task, members=members, **noted)

        def place(order: Order, order_id: str) -> None:
            assert order._context is not None
            order._context.pending.new_requests[request] = asked, None

        self.engine.handle(starter(place), order_id=key)
        record = self.engine.record(key)
        assert record is not None
        return Gather(SAGA, "order", record.id, request)

    def answer(self, gather: Gather, position: int, value: Any = None, process: Gathering | None = None) -> bool:
        """Have a member answer."""
        return (process or self.gathering).collect(gather, Member(position, ReplyKind.ANSWER, value, "quote", f"id {position}"))

    def fail(self, gather: Gather, position: int) -> bool:
        """Have a member fail."""
        return self.gathering.collect(gather, Member(position, ReplyKind.FAILURE, {}, "quote", f"id {position}"))

    def sweep(self) -> Sweep:
        """Sweep once, with a relay that has just begun."""
        sweep = Sweep(0.0)
        Gathers(self.gathering, lambda: [SAGA], clock=lambda: self.clock.now / 1000).sweep(sweep, lambda: False)
        return sweep


def raising(error: Exception) -> Any:
    """Return a function that raises an error."""

    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.fixture
def shop(engine: Engine, clock: Clock) -> Shop:
    """Orders that gather."""
    return Shop(engine, clock)


class TestCollect:
    """What came of a member is kept until it can be told with the rest."""

    def test_last_one_tells(self, shop: Shop) -> None:
        gather = shop.begin()
        assert shop.answer(gather, 1, "b")
        assert shop.told == []

        assert shop.answer(gather, 0, "a")

        assert shop.told == [("request", QUOTED.task, {"members": 2, "answers": {"0": "a", "1": "b"}, "failures": {}})]

    def test_members_in_many_processes(self, shop: Shop) -> None:
        gather = shop.begin(members=20)
        for position in range(20):
            shop.answer(gather, position, position, shop.process())

        ((_, _, gathered),) = shop.told
        assert gathered["answers"] == {str(position): position for position in range(20)}

    def test_answer_that_is_no_json_is_a_failure(self, shop: Shop) -> None:
        gather = shop.begin(members=1)
        shop.answer(gather, 0, object())

        ((_, step, gathered),) = shop.told
        failure = gathered["failures"]["0"]
        assert (step, failure["task"], failure["task_id"], failure["error"]) == (TOO_FEW.task, "quote", "id 0", "InvalidMessage")
        assert "cannot be encoded as JSON" in failure["text"]

    def test_answer_that_is_too_large_is_a_failure(self, shop: Shop) -> None:
        gather = shop.begin(members=1)
        shop.answer(gather, 0, "x" * 1_000)

        assert "saga_max_state_bytes allows 1000" in shop.told[0][2]["failures"]["0"]["text"]

    def test_of_no_gather(self, shop: Shop) -> None:
        gather = shop.begin()

        assert not shop.answer(gather._replace(request="another"), 0)
        assert not shop.answer(gather._replace(instance_id="another"), 0)
        assert not shop.answer(gather, 2)
        assert shop.backend.buffers.names() == []

    def test_instance_that_cannot_be_read(self, shop: Shop) -> None:
        gather = shop.begin()
        shop.engine.rewrite(pending='{"format": 1, "requests": 3}')

        with pytest.raises(UnreadableState, match="pending"):
            shop.answer(gather, 0)

    def test_whether_it_is_waited_for_is_remembered_for_a_while(self, shop: Shop) -> None:
        gather = shop.begin()
        store = shop.engine.backend.sagas = Interposed(shop.backend.sagas)  # type: ignore[assignment]
        shop.answer(gather, 0)
        shop.answer(gather, 0)
        assert store.calls == ["find"]

        shop.clock.advance(int(REMEMBERED_S * 1000))
        shop.answer(gather, 0)

        assert store.calls == ["find", "find"]

    def test_that_nobody_waits_is_not_remembered(self, shop: Shop) -> None:
        """Its commit may be lost with its store, and come again."""
        gather = shop.begin()
        asked = shop.engine.record().pending
        shop.engine.rewrite(pending="{}")
        assert not shop.answer(gather, 0)

        shop.engine.rewrite(pending=asked)

        assert shop.answer(gather, 0)

    def test_what_is_remembered_is_bounded(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_sagas.engine.requests.gathering.REMEMBERED", 3)
        gather = shop.begin()
        for number in range(10):
            shop.answer(gather._replace(request=f"request {number}"), 0)

        assert len(shop.gathering._known) <= 3
        assert shop.answer(gather, 0)

    def test_end_of_a_gather_is_known_at_once_where_it_was_handled(self, shop: Shop) -> None:
        gather = shop.begin()
        shop.answer(gather, 0)
        shop.engine.rewrite(pending="{}")
        shop.gathering.forget(gather.saga, gather.instance_id, gather.request)

        assert not shop.answer(gather, 1)
        assert shop.backend.buffers.count(gather.buffer).buffered == 0

    def test_repeat_in_the_place_of_one_that_died(self, shop: Shop) -> None:
        gather = shop.begin()
        shop.answer(gather, 0)
        shop.errors = [PublishError("killed", True)]
        with pytest.raises(PublishError):
            shop.answer(gather, 1)

        shop.answer(gather, 1)

        assert len(shop.told) == 1

    def test_gather_that_began_under_a_former_name(self, shop: Shop) -> None:
        """Its answers stay together, and are cleared away under that name too."""
        gather = shop.begin()._replace(name="purchase")
        shop.answer(gather, 0)
        assert shop.backend.buffers.names() == ["purchase.(gathered)"]
        shop.answer(gather, 1)

        assert len(shop.told) == 1

    def test_step_that_only_newer_code_can_read(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        gather = shop.begin(members=1, to_then=None, to_otherwise=None)

        shop.answer(gather, 0)

        assert shop.told == []
        assert "is left to newer code" in caplog.text
        assert shop.backend.buffers.count(gather.buffer).buffered == 1


class TestMark:
    """Whoever looks at a gather that is not complete must not keep its last member from telling."""

    def test_repeat_after_a_long_silence(self, shop: Shop) -> None:
        gather = shop.begin()
        shop.answer(gather, 0)
        shop.clock.advance(2 * DAY_MS)

        shop.answer(gather, 0)
        shop.answer(gather, 1)

        assert len(shop.told) == 1

    def test_look_of_a_relay(self, shop: Shop) -> None:
        gather = shop.begin()
        shop.answer(gather, 0)
        shop.clock.advance(2 * DAY_MS)

        shop.sweep()
        shop.answer(gather, 1)

        assert len(shop.told) == 1

    def test_last_member_comes_during_the_look(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        gather = shop.begin()
        shop.answer(gather, 0)
        shop.clock.advance(2 * DAY_MS)
        claim, other = shop.backend.aggregates.claim, shop.process()

        def late_claim(*args: Any) -> Any:
            shop.answer(gather, 1, process=other)
            return claim(*args)

        monkeypatch.setattr(shop.backend.aggregates, "claim", late_claim)
        shop.sweep()

        assert [step for _, step, _ in shop.told] == [QUOTED.task]

    def test_looks_become_rare(self, shop: Shop) -> None:
        gather, looks = shop.begin(), []
        shop.answer(gather, 0)
        for hour in range(20 * 24):
            shop.clock.advance(DAY_MS // 24)
            before = shop.backend.buffers.groups(gather.buffer, 1)
            shop.sweep()
            if shop.backend.buffers.groups(gather.buffer, 1) != before:
                looks.append(hour // 24 + 1)

        assert looks == [1, 2, 4, 8, 16]


class TestSweep:
    """What a relay does."""

    def lost(self, shop: Shop, *keys: str) -> list[Gather]:
        """Have gathers become complete, and not told."""
        gathers = [shop.begin(key, members=1, request=f"of {key}") for key in keys]
        for gather in gathers:
            shop.errors = [PublishError("killed", True)]
            with pytest.raises(PublishError):
                shop.answer(gather, 0)
        shop.clock.advance(LEASE_MS)
        return gathers

    def test_many(self, shop: Shop) -> None:
        keys = [str(number) for number in range(BATCH + 10)]
        self.lost(shop, *keys)

        shop.sweep()

        assert sorted(request for request, _, _ in shop.told) == sorted(f"of {key}" for key in keys)

    @pytest.mark.parametrize("format", [1, 2], ids=["damaged", "newer"])
    def test_one_that_cannot_be_read_holds_nobody_up(self, shop: Shop, caplog: pytest.LogCaptureFixture, format: int) -> None:
        self.lost(shop, "42", "43")
        shop.engine.rewrite(pending=f'{{"format": {format}, "requests": 3}}')

        assert shop.sweep().error == ""

        assert [request for request, _, _ in shop.told] == ["of 43"]
        assert "the gather of 42 of order cannot be ended, and is tried again" in caplog.text

    def test_one_that_somebody_else_ends_holds_nobody_up(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        gathers = self.lost(shop, "42", "43")
        release = shop.backend.aggregates.release

        def lost(rules: Any, group: str, token: str, *args: Any, **options: Any) -> None:
            if group == gathers[0].request:
                raise LeaseLost(rules.name, group, token)
            release(rules, group, token, *args, **options)

        monkeypatch.setattr(shop.backend.aggregates, "release", lost)

        assert shop.sweep().error == ""

        assert "of 43" in [request for request, _, _ in shop.told]

    def test_store_that_is_locked_ends_it(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        (gather,) = self.lost(shop, "42")

        def find(*_: Any) -> Any:
            raise RevisionConflict("order", "42", "deadlock")

        with monkeypatch.context() as patched:
            patched.setattr(shop.backend.sagas, "find", find)
            with pytest.raises(RevisionConflict):
                shop.sweep()
        shop.clock.advance(LEASE_MS)
        shop.sweep()

        assert [request for request, _, _ in shop.told] == [gather.request]

    def test_group_that_is_cleared_meanwhile(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        (gather,) = self.lost(shop, "42")
        claim_due = shop.backend.aggregates.claim_due

        def claim(*args: Any) -> Any:
            due = claim_due(*args)
            shop.gathering.clear(gather)
            return due

        monkeypatch.setattr(shop.backend.aggregates, "claim_due", claim)
        shop.sweep()

        assert shop.told == []

    def test_it_ends_when_it_must(self, shop: Shop) -> None:
        self.lost(shop, "42", "43")
        asked = iter([False, False, True])
        Gathers(shop.gathering, lambda: [SAGA], clock=lambda: shop.clock.now / 1000).sweep(Sweep(0.0), lambda: next(asked))

        assert len(shop.told) == 1

    def test_it_looks_a_few_times_in_a_lease(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[int] = []
        claim_due = shop.backend.aggregates.claim_due
        monkeypatch.setattr(shop.backend.aggregates, "claim_due", lambda *args: looks.append(shop.clock.now) or claim_due(*args))
        gathers = Gathers(shop.gathering, lambda: [SAGA], clock=lambda: shop.clock.now / 1000)

        for _ in range(LEASE_MS // 1000):
            gathers.sweep(Sweep(0.0), lambda: False)
            shop.clock.advance(1000)

        assert len(looks) == 4

    def test_rows_of_aggregators_are_left_alone(self, shop: Shop) -> None:
        backend: MemoryBackend = shop.backend
        rules = shop.gathering.rules(shop.begin())._replace(name="order", idle_ms=1)
        backend.aggregates.insert(rules, [Addition("group", (NewItem("1", "no payload of a gather"),))])
        shop.clock.advance(DAY_MS)

        assert shop.sweep().error == ""
        assert shop.gathering.conclude(shop.begin("43", request="r")) is GatherState.WAITING


class TestEarly:
    """A gather that ends early is told with the answer that makes them enough, whoever collects it."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        st.integers(2, 8).flatmap(
            lambda members: st.tuples(
                st.permutations([(position, process) for position in range(members) for process in range(2)]),
                st.sets(st.integers(0, members - 1)),
                st.integers(1, members),
            )
        )
    )
    def test_any_order(self, case: tuple[list[tuple[int, int]], set[int], int]) -> None:
        """Each member has its outcome twice, in two processes."""
        order, failing, at_least = case
        members = len(order) // 2
        with_engine = Engine(MemoryBackend("memory://", prefix=uuid4().hex))
        shop = Shop(with_engine, Clock(1_000_000))
        gather = shop.begin(members=members, at_least=at_least, early=True)
        processes, seen = [shop.gathering, shop.process()], set[int]()
        for position, process in order:
            came = ReplyKind.FAILURE if position in failing else ReplyKind.ANSWER
            processes[process].collect(gather, Member(position, came, {}, "quote", "id"))
            seen.add(position)
            if len(seen - failing) >= at_least or len(seen) == members:
                break
            assert shop.told == []

        ((_, step, gathered),) = shop.told
        assert len(gathered["answers"]) == len(seen - failing)
        assert step == (QUOTED.task if len(seen - failing) >= at_least else TOO_FEW.task)

    def test_answer_comes_while_another_process_checks(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its own process finds the flush requested, and does not check."""
        gather = shop.begin(members=5, at_least=2, early=True)
        shop.fail(gather, 0)
        read, process = shop.backend.buffers.read, shop.process()

        def read_and_be_overtaken(*args: Any) -> Any:
            monkeypatch.setattr(shop.backend.buffers, "read", read)
            items = read(*args)
            shop.answer(gather, 2, "c", process)
            return items

        monkeypatch.setattr(shop.backend.buffers, "read", read_and_be_overtaken)
        shop.answer(gather, 1, "b")

        ((_, step, gathered),) = shop.told
        assert (step, gathered["answers"]) == (QUOTED.task, {"1": "b", "2": "c"})

    def test_outcomes_are_not_read_again_before_there_may_be_enough(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        gather = shop.begin(members=30, at_least=5, early=True)
        reads, read = [], shop.backend.buffers.read
        monkeypatch.setattr(shop.backend.buffers, "read", lambda *args: [*map(reads.append, [args]), *read(*args)][1:])
        for position in range(20):
            shop.fail(gather, position)
        assert len(reads) == 12, "three for each check: after 5, 10, 15 and 20 outcomes"
        for position in range(20, 25):
            shop.answer(gather, position)

        assert len(reads) == 13
        assert len(shop.told) == 1

    def test_late_outcomes_are_cleared_soon(self, shop: Shop) -> None:
        gather, process = shop.begin(members=9, at_least=3, early=True), shop.process()
        for position in range(3):
            shop.answer(gather, position, process=process)
        shop.engine.rewrite(pending="{}")
        process.forget(gather.saga, gather.instance_id, gather.request)
        shop.gathering._known = dict(process._known)
        assert not shop.answer(gather, 3)
        other = shop.process()
        other._known[gather] = _Known(1e12, Request("request", "gather", "", members=9, at_least=3, early=True), 3)
        assert shop.answer(gather, 4, process=other)
        assert shop.backend.buffers.count(gather.buffer).buffered == 1
        shop.clock.advance(LEASE_MS)
        shop.sweep()

        assert shop.backend.buffers.count(gather.buffer).buffered == 0

    def test_process_dies_before_it_tells(self, shop: Shop) -> None:
        """A relay does."""
        gather = shop.begin(members=5, at_least=2, early=True)
        shop.answer(gather, 0)
        shop.errors = [PublishError("killed", True)]
        with pytest.raises(PublishError):
            shop.answer(gather, 1)
        shop.clock.advance(LEASE_MS)
        shop.sweep()

        assert [told[1] for told in shop.told] == [QUOTED.task]

    def test_relay_tells_again_later_each_time(self, shop: Shop) -> None:
        """The message may be lost, and its step fail."""
        gather = shop.begin(members=5, at_least=2, early=True)
        shop.answer(gather, 0)
        shop.answer(gather, 1)
        told = []
        for _ in range(8):
            shop.clock.advance(LEASE_MS)
            shop.sweep()
            told.append(len(shop.told))

        assert told[0] == 2
        assert told[-1] in range(3, 6), told

    def test_relay_that_checks_too_soon_takes_nothing_from_the_last_one(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process that should have checked has died."""
        gather = shop.begin(members=6, at_least=2, early=True)
        shop.answer(gather, 0)
        with monkeypatch.context() as dying:
            dying.setattr(shop.gathering, "conclude", raising(PublishError("killed", True)))
            with pytest.raises(PublishError):
                shop.fail(gather, 1)
        shop.clock.advance(LEASE_MS)
        looked = shop.backend.aggregates.claim_due
        due = list[Any]()
        monkeypatch.setattr(shop.backend.aggregates, "claim_due", lambda *args: due.extend(found := looked(*args)) or found)
        shop.sweep()
        assert (shop.told, [group.group for group in due]) == ([], [gather.request])
        shop.answer(gather, 3)

        assert len(shop.told) == 1

    def test_what_is_stored_beside_an_outcome(self, shop: Shop) -> None:
        gather = shop.begin(members=5, at_least=2, early=True)
        shop.answer(gather, 0, 3)
        (item,) = shop.backend.buffers.read(gather.buffer, gather.request, 10)

        assert from_json(item.payload) == {"instance": gather.instance_id, "members": 5, "fewest": 2, "answer": 3}
        assert owner_of(gather._replace(instance_id=""), item) == Collecting(gather, 5, 2)
        forged = item._replace(payload='{"instance": "i", "members": 5, "fewest": "2", "answer": 3}')
        assert owner_of(gather, forged).fewest == 5
