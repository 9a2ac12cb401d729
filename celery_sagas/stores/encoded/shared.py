"""Shared transactions in which the library writes encoded texts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.encoded.aggregators import EncodedAggregates
from celery_sagas.stores.encoded.records import Records
from celery_sagas.stores.encoded.sagas import EncodedSagas
from celery_sagas.stores.records import Outgoing
from celery_sagas.stores.shared import SharedTransaction, SharedTransactions

T = TypeVar("T")


class _Joined(NamedTuple):
    """The stores that write in a transaction."""

    sagas: EncodedSagas
    aggregates: EncodedAggregates


class EncodedTransactions(SharedTransactions):
    """Transactions of a backend within."""

    def __init__(self, inner: SharedTransactions, records: Records) -> None:
        self._inner = inner
        self._records = records

    def add(self, using: object, rows: Sequence[Outgoing], then: Callable[[str], object]) -> None:
        self._inner.add(using, self._records.encode_messages(rows), then)

    def check(self, kind: object) -> None:
        self._inner.check(kind)

    def open(self, kind: object) -> SharedTransaction:
        return _EncodedTransaction(self._inner.open(kind), self._records)


class _EncodedTransaction(SharedTransaction):
    def __init__(self, inner: SharedTransaction, records: Records) -> None:
        self._inner = inner
        self._records = records
        self.handle = inner.handle

    def flush(self) -> None:
        self._inner.flush()

    def commit(self, operation: Callable[[Any], T]) -> T:
        return self._inner.commit(lambda joined: operation(self._joined(joined)))

    def _joined(self, joined: Any) -> _Joined:
        return _Joined(EncodedSagas(joined.sagas, self._records), EncodedAggregates(joined.aggregates, self._records))

    def close(self) -> None:
        self._inner.close()

    def is_conflict(self, error: BaseException) -> bool:
        return self._inner.is_conflict(error)

    def loss_of(self, error: BaseException) -> StoreUnavailable | None:
        return self._inner.loss_of(error)
