"""Aggregators in SQL."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Added, Addition, DueGroup, Snapshot
from celery_sagas.stores.records import DeadLetter, Sends
from celery_sagas.stores.sql.aggregators.additions import insert, restore
from celery_sagas.stores.sql.aggregators.flushes import Flushes
from celery_sagas.stores.sql.aggregators.groups import claim_due
from celery_sagas.stores.sql.aggregators.joining import Joinable, join
from celery_sagas.stores.sql.connection.database import StatementRunner
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.purges import purge
from celery_sagas.stores.sql.tables import seen

T = TypeVar("T")


class SqlAggregateStore(AggregateStore):
    """Groups in the table ``saga_group``, their items in ``saga_buffer``."""

    def __init__(self, database: StatementRunner) -> None:
        self._database = database
        self._waiting = Joinable()

    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        if not additions:
            return []
        if self._waiting.is_worth_while(rules, additions) and self._join(rules, additions[0]):
            return [Added(1)]
        added = self._database.in_transaction(lambda session: insert(session, rules, additions))
        if self._database.name == "postgresql":
            self._waiting.note(rules, additions, added)
        return added

    def _join(self, rules: Rules, addition: Addition) -> bool:
        try:
            return self._database.run(lambda session: join(session, rules, addition))
        except StoreUnavailable as exc:
            if self._database.fault_of(exc) not in (Fault.LOCKED, Fault.UNIQUE):
                raise
            return False

    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        return self._flush(rules, group, lambda flushes: flushes.claim(token))

    def renew(self, rules: Rules, group: str, token: str) -> bool:
        return self._flush(rules, group, lambda flushes: flushes.renew(token))

    def remove(
        self,
        rules: Rules,
        group: str,
        token: str,
        *,
        rejected: Sequence[DeadLetter] = (),
        unreadable: Collection[int] = (),
        sends: Sends | None = None,
    ) -> bool:
        return self._flush(rules, group, lambda flushes: flushes.remove(token, rejected, unreadable, sends))

    def release(
        self,
        rules: Rules,
        group: str,
        token: str,
        *,
        rejected: Sequence[DeadLetter] = (),
        unreadable: Collection[int] = (),
        counted: bool = True,
        delay_ms: int = 0,
    ) -> None:
        how = {"attempts": int(counted), "delay_ms": delay_ms}
        self._flush(rules, group, lambda flushes: flushes.release(token, rejected, unreadable, **how))

    def resolve(self, rules: Rules, group: str, numbers: Collection[int]) -> int:
        return self._flush(rules, group, lambda flushes: flushes.resolve(numbers))

    def restore(self, rules: Rules, dead_letter: DeadLetter) -> bool:
        return self._database.in_transaction(lambda session: restore(session, rules, dead_letter))

    def _flush(self, rules: Rules, group: str, call: Callable[[Flushes], T]) -> T:
        return self._database.in_transaction(lambda session: call(Flushes(session, rules, group)))

    def claim_due(self, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
        return self._database.in_transaction(lambda session: claim_due(session, names, limit, lease_ms))

    def purge(self, limit: int) -> int:
        return purge(self._database, seen.c.ends_at, -1, limit)  # a millisecond that has come is over
