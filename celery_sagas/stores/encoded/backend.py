"""The backend around another one, whose texts with values of users are encoded."""

from collections.abc import Sequence
from typing import Any

from celery_sagas.stores.encoded.aggregators import EncodedAggregates, EncodedBuffers
from celery_sagas.stores.encoded.codec import Codec
from celery_sagas.stores.encoded.records import Records
from celery_sagas.stores.encoded.sagas import (
    EncodedAudit,
    EncodedDeadLetters,
    EncodedInstances,
    EncodedJournal,
    EncodedOutbox,
    EncodedSagas,
    EncodedSwitches,
)
from celery_sagas.stores.encoded.shared import EncodedTransactions
from celery_sagas.stores.health import Remark
from celery_sagas.stores.operations import CountDelivery, Delete, Find, Insert, Lock, OutcomeOf, Update, Write
from celery_sagas.stores.ports import Backend, Operation
from celery_sagas.stores.records import Entry, Found


class EncodedBackend(Backend):
    """A backend that encodes what it stores in another one. It has the ports that the other one has.

    Args:
        inner: The other one.
        codec: Encodes and decodes.
    """

    def __init__(self, inner: Backend, codec: Codec) -> None:
        self.inner = inner
        self.url = inner.url
        self.journal_retention_s = inner.journal_retention_s
        self._records = records = Records(codec)
        self.sagas = EncodedSagas(inner.sagas, records)
        self.outbox = EncodedOutbox(inner.outbox, records)
        self.journal = EncodedJournal(inner.journal, records)
        self.deliveries = inner.deliveries
        self.dead = EncodedDeadLetters(inner.dead, records)
        if inner.has_aggregators:
            self.aggregates = EncodedAggregates(inner.aggregates, records)
            self.buffers = EncodedBuffers(inner.buffers, records)
        if inner.has_instances:
            self.instances = EncodedInstances(inner.instances, records)
        if inner.has_audit:
            self.audit = EncodedAudit(inner.audit, records)
        if inner.has_switches:
            self.switches = EncodedSwitches(inner.switches, records)
        if inner.shared is not None:
            self.shared = EncodedTransactions(inner.shared, records)

    def __repr__(self) -> str:
        return f"EncodedBackend({self.inner!r})"

    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        return self.inner.prepare(create_schema=create_schema, processes=processes)

    def health(self) -> Sequence[Remark]:
        return self.inner.health()

    def many(self, operations: Sequence[Operation]) -> list[Any]:
        encoded = {number: self._encoded(each) for number, each in enumerate(operations)}
        together = {number: each for number, each in encoded.items() if each is not None}
        answers = dict(zip(together, map(self._decoded, self.inner.many(list(together.values()))), strict=True))
        alone = [number for number, each in encoded.items() if each is None]
        answers |= zip(alone, super().many([operations[number] for number in alone]), strict=True)
        return [answers[number] for number in range(len(operations))]

    def _encoded(self, operation: Operation) -> Operation | None:
        """Return an operation for the backend within; ``None`` for one that is performed by this one."""
        records = self._records
        match operation:
            case Find() | Lock() | CountDelivery() | OutcomeOf():
                return operation
            case Insert(new, effects):
                return Insert(records.encode_new(new), records.encode_effects(effects))
            case Update(record, change, effects):
                return Update(record, records.encode_change(record.id, change), records.encode_effects(effects))
            case Delete(record, effects):
                return Delete(record, records.encode_effects(effects))
            case Write(effects):
                return Write(records.encode_effects(effects))
        return None

    def _decoded(self, answer: Any) -> Any:
        if isinstance(answer, Found):
            return self._records.found(answer)
        return self._records.entry(answer) if isinstance(answer, Entry) else answer

    def note_app(self, name: str) -> str:
        return self.inner.note_app(name)

    def migrate(self) -> Sequence[str]:
        return self.inner.migrate()

    def migration(self) -> str:
        return self.inner.migration()

    def schema(self) -> str:
        return self.inner.schema()

    def close(self) -> None:
        self.inner.close()
