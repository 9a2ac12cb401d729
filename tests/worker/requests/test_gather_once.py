"""Gathers end once, whatever comes twice, too late, or not at all."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Gathered
from celery_sagas.core.pending import read_pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.engine.requests.gathering import Gather, Member
from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import PublishError, StoreUnavailable, Unconfirmed
from celery_sagas.testing.clock import Clock
from celery_sagas.worker.headers import answer_headers
from celery_sagas.worker.operators import discard_dead_letter
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.requests.gather_task import GATHER
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of
from tests.worker.moments import Moment
from tests.worker.requests.quotes import (
    BUFFER,
    Failing,
    address,
    answer,
    begin,
    clock,
    collected,
    failing,
    fire,
    found,
    hurry,
    record_of,
    request_of,
    rows,
    shop,
    start,
    tasks_of,
    way,
)

__all__ = ["clock", "failing", "shop", "way"]

LEASE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def gather_of(app: Celery, shop: Any) -> Gather:
    """Return the gather for which the order 42 waits."""
    return Gather(shop.saga.__saga__, "order", found(shop).saga.id, request_of(app))


@pytest.mark.usefixtures("way")
class TestRepeats:
    """What comes twice counts once."""

    def test_answers(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])
        for _ in range(2):
            answer(app, address(shop), request_of(app), 0, 3)
        worker.run()

        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])

    def test_first_outcome_of_a_member_counts(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [-1])
        answer(app, address(shop), request_of(app), 0, 7)
        worker.run()

        assert tasks_of(worker.done)[1:4] == ["quote", GATHER, GATHER]  # its failure comes after the answer
        assert (found(shop).values, found(shop).failed) == ([7], {})

    def test_message_to_another_step_leaves_the_answers_alone(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])
        worker.one()
        request = request_of(app)
        headers = answer_headers(found(shop).saga.id, request, ReplyKind.GATHERED)
        app.send_task("order.end", ("42",), headers=headers)
        worker.run()

        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])

    def test_member_that_is_delivered_again(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])
        member = worker.one()
        rest = worker.waiting()

        worker.deliver_again(member)
        worker.run()

        assert len(rest) >= 1
        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])

    def test_step_that_is_delivered_again(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])
        step = worker.run()[-1]
        version = found(shop).saga.version

        assert worker.deliver_again(step).fate == "acked"

        assert (found(shop).seen, found(shop).saga.version) == (["quoted"], version)

    def test_starter_that_is_delivered_again(self, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])
        worker.run()

        worker.deliver_again(worker.done[0])
        worker.run()

        assert found(shop).seen == ["quoted"]

    def test_step_that_fails_keeps_what_has_come(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        """So that the relay tells it again if its message is lost, and a deadline finds it; its dead letter can be retried."""

        @shop.saga.handles
        def bad(order: Any, came: Gathered[int]) -> None:
            raise ZeroDivisionError

        start(shop, worker, lambda order: order.gather([shop.quote.s(3)], then=bad))
        failed = worker.run()[-1]
        (dead_letter,) = backend_of(app).dead.list(10)
        worker.deliver_again(failed)

        assert collected(app) == 1
        assert request_of(app)
        assert discard_dead_letter(runtime_of(app), dead_letter)
        clock.advance(LEASE_MS)
        sweep(app)
        assert collected(app) == 0


@pytest.mark.usefixtures("way")
class TestTooLate:
    """What comes when nobody waits for it is dropped."""

    def test_answers_after_the_end(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1])
        request = request_of(app)
        worker.run()

        for position in (0, 1):
            answer(app, address(shop), request, position, 9)
        worker.run()

        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])
        assert collected(app) == 0

    def test_it_is_logged(self, app: Celery, shop: Any, worker: Worker, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "celery_sagas")
        begin(shop, worker, [3, 1])
        request = request_of(app)
        worker.run()
        clock.advance(LEASE_MS)

        answer(app, address(shop), request, 0, 9)
        worker.run()

        assert f"comes too late for the gather {request} of order" in caplog.text
        assert collected(app) == 0

    def test_instance_has_completed(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1], otherwise="too_few", within=3600)
        request, headers, deadline = request_of(app), address(shop), rows(app)
        worker.one()
        shop.end("42")
        assert rows(app) == []

        fire(app, *deadline)
        answer(app, headers, request, 1, 9)
        worker.run()

        assert not {"order.quoted", "order.too_few"} & set(tasks_of(worker.done))
        assert collected(app) == 0

    def test_later_instance_of_the_same_key(self, shop: Any, worker: Worker) -> None:
        """It gets nothing of what the first has asked for."""
        begin(shop, worker, [3, 1])
        shop.end("42")
        shop.place("42", [5])
        worker.run()

        assert found(shop).values == [5]


@pytest.mark.usefixtures("way")
class TestDeadline:
    """``within``: what has not come then is silent."""

    @pytest.fixture
    def waits(self, shop: Any, worker: Worker) -> None:
        """The order 42 waits for two carriers that are slow."""
        begin(shop, worker, [3, 1], otherwise="too_few", within=3600, is_slow=True)

    def test_it_waits_in_the_backend(self, app: Celery, shop: Any, worker: Worker) -> None:
        moment = Moment()
        begin(shop, worker, [3, 1], otherwise="too_few", within=3600)

        (row,) = rows(app)
        assert (row.kind, row.task) == ("deadline", GATHER)
        assert moment.is_before(row.due_at, 3600)

    def test_members_expire_with_it(self, app: Celery, shop: Any, worker: Worker) -> None:
        begin(shop, worker, [3, 1], otherwise="too_few", within=3600)

        (row,) = rows(app)
        expire = {datetime.fromisoformat(member.headers["expires"]) for member in worker.waiting()}
        assert expire == {datetime.fromtimestamp(row.due_at / 1000, UTC)}

    @pytest.mark.usefixtures("waits")
    def test_nothing_has_come(self, app: Celery, shop: Any, worker: Worker) -> None:
        fire(app, *rows(app))
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, order.silent) == (["too few"], [], [0, 1])
        assert (read_pending(record_of(app).pending).requests, rows(app)) == ({}, [])

    @pytest.mark.parametrize(("at_least", "step"), [(1, "quoted"), (2, "too few"), (None, "too few")])
    def test_some_have_come(self, app: Celery, shop: Any, worker: Worker, at_least: int | None, step: str) -> None:
        begin(shop, worker, [3, 1, 2], otherwise="too_few", at_least=at_least, within=3600, is_slow=True)
        answer(app, address(shop), request_of(app), 1, 1)
        worker.run()
        fire(app, *rows(app))
        worker.run()

        order = found(shop)
        assert (order.seen, order.values, order.silent) == ([step], [1], [0, 2])
        assert collected(app) == 0

    @pytest.mark.usefixtures("waits")
    def test_what_comes_after_it_is_dropped(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        fire(app, *rows(app))
        worker.run()
        version = found(shop).saga.version
        clock.advance(LEASE_MS)

        hurry(app)
        worker.run()

        assert tasks_of(worker.done).count("quote") == 2
        assert (found(shop).seen, found(shop).saga.version) == (["too few"], version)
        assert collected(app) == 0

    @pytest.mark.usefixtures("waits")
    def test_it_crosses_the_last_answer(self, app: Celery, shop: Any, worker: Worker) -> None:
        """Both have a step told, and one of the steps runs."""
        gather = gather_of(app, shop)
        fire(app, *rows(app))
        worker.one()
        for position in (0, 1):
            runtime_of(app).gathering_of(gather.saga).collect(
                gather, Member(position, ReplyKind.ANSWER, 3, "quote", "of the member")
            )
        worker.run()

        assert {"order.quoted", "order.too_few"} <= set(tasks_of(worker.done))
        assert found(shop).seen == ["too few"]
        assert found(shop).saga.version == 2

    @pytest.mark.usefixtures("waits")
    def test_it_comes_when_all_has_been_told(self, app: Celery, shop: Any, worker: Worker) -> None:
        """What has come is kept until its step has handled it: that is told again, not that nothing has come."""
        for position in (0, 1):
            answer(app, address(shop), request_of(app), position, position)
        worker.one(), worker.one()
        fire(app, *rows(app))
        told = worker.waiting()
        worker.run()

        assert [message.task for message in told] == ["order.quoted", GATHER]
        assert tasks_of(worker.done).count("order.quoted") == 1
        assert (found(shop).seen, found(shop).values) == (["quoted"], [0, 1])

    @pytest.mark.usefixtures("waits")
    def test_it_is_cancelled_at_the_end(self, app: Celery, shop: Any, worker: Worker) -> None:
        deadline = rows(app)
        hurry(app)
        worker.run()
        assert rows(app) == []

        fire(app, *deadline)
        worker.run()

        assert found(shop).seen == ["quoted"]

    @pytest.mark.usefixtures("waits")
    def test_it_comes_twice(self, app: Celery, shop: Any, worker: Worker) -> None:
        fire(app, *rows(app), *rows(app))
        worker.run()

        assert found(shop).seen == ["too few"]
        assert found(shop).saga.version == 2

    @pytest.mark.usefixtures("waits")
    def test_broker_is_away(self, app: Celery, shop: Any, worker: Worker, failing: Failing) -> None:
        """Nobody else would end it: it is redelivered later."""
        fire(app, *rows(app))
        failing.told = 1
        worker.run()

        assert tasks_of(worker.done)[1:] == [GATHER, GATHER, "order.too_few"]
        assert found(shop).seen == ["too few"]

    @pytest.mark.usefixtures("waits")
    def test_broker_refuses_it(self, app: Celery, worker: Worker, failing: Failing) -> None:
        fire(app, *rows(app))
        failing.told, failing.error = 1, PublishError("it is too large", False)
        worker.run()

        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.error) == (GATHER, "PublishError")

    @pytest.mark.usefixtures("waits")
    def test_store_is_away(self, app: Celery, shop: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        fire(app, *rows(app))
        read, errors = backend_of(app).buffers.read, [StoreUnavailable("memory://", "it is away")]

        def failing_read(*args: Any) -> Any:
            if errors:
                raise errors.pop()
            return read(*args)

        monkeypatch.setattr(backend_of(app).buffers, "read", failing_read)
        worker.run()

        assert tasks_of(worker.done)[1:] == [GATHER, GATHER, "order.too_few"]
        assert found(shop).seen == ["too few"]


def sweep(app: Celery) -> Sweep:
    """Have a relay sweep that has just begun."""
    return open_relay(runtime_of(app)).sweep()


class TestRelay:
    """What nobody has ended is ended by a relay."""

    @pytest.fixture(autouse=True)
    def lost(self, app: Celery, shop: Any, worker: Worker, clock: Clock, failing: Failing) -> None:
        """The last member has answered, and could not have the step told."""
        begin(shop, worker, [3, 1])
        failing.told = 1
        worker.run()
        assert found(shop).seen == []

    def test_it_is_told(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        clock.advance(LEASE_MS)
        sweep(app)
        worker.run()

        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])
        assert collected(app) == 0

    def test_whoever_was_to_tell_has_its_time(self, app: Celery, worker: Worker, clock: Clock) -> None:
        clock.advance(LEASE_MS - 1)
        sweep(app)

        assert worker.waiting() == []

    def test_repeat_of_the_last_answer_tells_it_too(self, app: Celery, shop: Any, worker: Worker) -> None:
        answer(app, address(shop), request_of(app), 1, 1)
        worker.run()

        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])

    def test_it_is_told_again_while_its_step_has_not_run(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        """Less and less often; the step handles it once."""
        told = []
        for _ in range(20):
            clock.advance(LEASE_MS)
            sweep(app)
            told.append(len(worker.waiting()))
        worker.run()

        assert told[0] == 1
        assert 3 <= told[-1] <= 5
        assert found(shop).seen == ["quoted"]
        assert found(shop).saga.version == 2

    def test_instance_that_has_completed(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        shop.end("42")
        clock.advance(LEASE_MS)
        sweep(app)

        assert worker.waiting() == []
        assert collected(app) == 0

    def test_broker_that_is_away_ends_the_sweep(
        self, app: Celery, shop: Any, worker: Worker, clock: Clock, failing: Failing
    ) -> None:
        clock.advance(LEASE_MS)
        failing.told = 1

        assert sweep(app).is_broker_away
        assert worker.waiting() == []
        clock.advance(LEASE_MS)
        assert not sweep(app).error
        worker.run()
        assert found(shop).seen == ["quoted"]

    @pytest.mark.parametrize("error", [PublishError("it is too large", False), Unconfirmed("it ended the connection", True)])
    def test_what_the_broker_refuses_holds_nobody_up(
        self, app: Celery, worker: Worker, clock: Clock, failing: Failing, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock.advance(LEASE_MS)
        failing.told, failing.error = 1, error

        assert not sweep(app).error
        assert "cannot be ended, and is tried again" in caplog.text
        clock.advance(LEASE_MS)
        sweep(app)
        assert worker.waiting() == []  # later than the first time
        clock.advance(LEASE_MS)
        sweep(app)
        assert tasks_of(worker.run()) == ["order.quoted"]

    @pytest.mark.parametrize(
        "damaged", ["{", "[]", '{"instance": 3, "members": 2, "answer": 1}', '{"instance": "a", "members": 2}']
    )
    def test_what_cannot_be_read_holds_nobody_up(
        self, app: Celery, worker: Worker, clock: Clock, damaged: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        buffers = backend_of(app).buffers
        with pytest.MonkeyPatch.context() as damaging:
            read = buffers.read
            damaging.setattr(buffers, "read", lambda *of: [item._replace(payload=damaged) for item in read(*of)])
            clock.advance(LEASE_MS)

            assert not sweep(app).error
        assert "what came of the member 0 of this gather is not of its form" in caplog.text
        clock.advance(2 * LEASE_MS)
        sweep(app)
        assert tasks_of(worker.run()) == ["order.quoted"]

    def test_store_that_is_away_ends_the_sweep(self, app: Celery, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        clock.advance(LEASE_MS)

        def read(*_: Any) -> Any:
            raise StoreUnavailable("memory://", "it is away")

        monkeypatch.setattr(backend_of(app).buffers, "read", read)

        assert "it is away" in sweep(app).error

    def test_gathers_of_unknown_sagas_are_left_to_others(self, app: Celery, worker: Worker, clock: Clock) -> None:
        kept = dict(registry.sagas)
        registry.sagas.clear()
        clock.advance(LEASE_MS)
        sweep(app)
        registry.sagas.update(kept)

        assert worker.waiting() == []
        sweep(app)
        assert tasks_of(worker.waiting()) == ["order.quoted"]


class TestLeftovers:
    """What is kept of a gather, and never becomes complete."""

    def test_late_answers_are_cleared_away(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        begin(shop, worker, [3, 1])
        gather, elsewhere = gather_of(app, shop), replace(runtime_of(app).gathering_of(shop.saga.__saga__))
        elsewhere.collect(gather, Member(0, ReplyKind.ANSWER, 3, "quote", "of the member"))
        worker.run()
        elsewhere.collect(
            gather, Member(1, ReplyKind.ANSWER, 9, "quote", "of the member")
        )  # nobody waits, which is not known there
        assert collected(app) == 1

        clock.advance(7 * DAY_MS)
        sweep(app)

        assert collected(app) == 0

    def test_gather_that_takes_very_long_is_left_alone(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        begin(shop, worker, [3, 1], is_slow=True)
        answer(app, address(shop), request_of(app), 0, 3)
        worker.run()

        clock.advance(7 * DAY_MS)
        sweep(app)
        assert collected(app) == 1
        hurry(app)
        worker.run()

        assert (found(shop).seen, found(shop).values) == (["quoted"], [3, 1])

    def test_it_is_looked_at_less_and_less_often(self, app: Celery, shop: Any, worker: Worker, clock: Clock) -> None:
        begin(shop, worker, [3, 1], is_slow=True)
        answer(app, address(shop), request_of(app), 0, 3)
        worker.run()
        (group,) = backend_of(app).buffers.groups(BUFFER, 10)
        assert group.due_at == clock.now + 7 * DAY_MS

        clock.advance(7 * DAY_MS)
        sweep(app)

        (group,) = backend_of(app).buffers.groups(BUFFER, 10)
        assert group.due_at >= clock.now + 7 * DAY_MS - LEASE_MS
