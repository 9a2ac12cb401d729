"""The pool of producers: bounded, and nothing that strikes in the middle of it leaves it locked."""

import gc
from contextlib import suppress
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Connection
from kombu.exceptions import LimitExceeded

from celery_sagas.worker import producers
from celery_sagas.worker.producers import Producers

POLICY = {"max_retries": 1}


def make(limit: int | None = 1) -> Producers:
    return Producers(lambda: Connection("memory://"), limit, patience_s=0.05)


def test_connection_is_used_again() -> None:
    pool = make()
    with pool.lent(POLICY) as first:
        assert first.connection.connected
    with pool.lent(POLICY) as second:
        assert second is first


def test_nobody_gets_more_than_there_may_be() -> None:
    pool = make()
    with pool.lent(POLICY), pytest.raises(LimitExceeded, match="broker_pool_limit"), pool.lent(POLICY):
        pass
    with pool.lent(POLICY):
        pass


@pytest.mark.parametrize("limit", [None, 0])
def test_nothing_is_kept_where_celery_is_told_so(limit: int | None) -> None:
    pool = make(limit)
    with pool.lent(POLICY) as first, pool.lent(POLICY) as second:
        assert first is not second
    assert not first.connection.connected
    assert not second.connection.connected


def test_failed_use_costs_the_connection_and_no_place() -> None:
    pool = make()
    for error in (OSError(), SoftTimeLimitExceeded(), KeyboardInterrupt()):
        with suppress(type(error)), pool.lent(POLICY) as lent:
            raise error
        assert not lent.connection.connected


def test_one_that_an_interruption_has_lost_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moment in which it is taken, and that in which somebody has it."""
    pool = make()
    borrow = pool._borrow

    def interrupted() -> Any:
        borrow()
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patched:
        patched.setattr(pool, "_borrow", interrupted)
        with pytest.raises(SoftTimeLimitExceeded), pool.lent(POLICY):
            pass
    gc.collect()
    with pool.lent(POLICY):
        pass


def test_waiting_ends_when_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make()
    lending = pool.lent(POLICY)
    first = lending.__enter__()
    monkeypatch.setattr(producers.time, "sleep", lambda _: lending.__exit__(None, None, None))

    with pool.lent(POLICY) as second:
        assert second is first


def test_closing_closes_idle_and_lent_ones() -> None:
    pool = make(2)
    with pool.lent(POLICY) as lent:
        with pool.lent(POLICY) as idle:
            pass
        pool.close()
        assert not lent.connection.connected
        assert not idle.connection.connected
