"""The producers' connections: bounded, used again, and closed when a use of theirs has failed."""

from contextlib import suppress

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Connection, Producer
from kombu.exceptions import LimitExceeded

from celery_sagas.worker.producers import Producers

POLICY = {"max_retries": 1}


def make(limit: int | None = 1) -> Producers:
    return Producers(lambda: Producer(Connection("memory://")), limit, patience_s=0.05)


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


def test_one_that_comes_back_after_the_end_is_closed() -> None:
    pool = make()
    with pool.lent(POLICY) as lent:
        pool.close()
        lent.connection.ensure_connection()
    assert not lent.connection.connected
    with pool.lent(POLICY) as other:
        assert other is not lent


def test_closing_closes_idle_and_lent_ones() -> None:
    pool = make(2)
    with pool.lent(POLICY) as lent:
        with pool.lent(POLICY) as idle:
            pass
        pool.close()
        assert not lent.connection.connected
        assert not idle.connection.connected
