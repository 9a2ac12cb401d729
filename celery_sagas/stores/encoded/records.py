"""The records of stores, with their texts encoded or decoded. What is not named here is stored as it is."""

from collections.abc import Iterable
from typing import TypeVar

from celery_sagas.stores.audit import AuditPage
from celery_sagas.stores.encoded.codec import Texts
from celery_sagas.stores.instances import Glance, Page
from celery_sagas.stores.items import Item, NewItem
from celery_sagas.stores.records import (
    AuditEntry,
    Change,
    DeadLetter,
    Effects,
    Entry,
    Found,
    NewRecord,
    OutboxRow,
    Outgoing,
    Record,
    Sends,
)

M = TypeVar("M", Outgoing, OutboxRow)


class Records(Texts):
    """Encodes what is given to a store, and decodes what it returns."""

    def encode_new(self, new: NewRecord) -> NewRecord:
        """Encode a new instance."""
        return new._replace(data=self.encode(new.data, "state", new.id), pending=self.encode(new.pending, "pending", new.id))

    def encode_change(self, id: str, change: Change) -> Change:
        """Encode a change of the instance with an id."""
        return change._replace(data=self.encode(change.data, "state", id), pending=self.encode(change.pending, "pending", id))

    def encode_effects(self, effects: Effects) -> Effects:
        """Encode the effects of a commit."""
        entry = effects.entry
        return effects._replace(
            entry=entry._replace(detail=self.encode(entry.detail, "journal", entry.step, entry.message_id)),
            outgoing=self.encode_messages(effects.outgoing),
            audit=effects.audit and self.encode_audited(effects.audit),
        )

    def encode_audited(self, entry: AuditEntry) -> AuditEntry:
        """Encode an entry of the audit."""
        return entry._replace(detail=self.encode(entry.detail, "audit", entry.id))

    def encode_messages(self, messages: Iterable[M]) -> tuple[M, ...]:
        """Encode outgoing messages."""
        return tuple(each._replace(payload=self.encode(each.payload, "message", each.message_id)) for each in messages)

    def encode_sends(self, sends: Sends) -> Sends:
        """Encode what a batch sends."""
        return sends._replace(outgoing=self.encode_messages(sends.outgoing))

    def encode_item(self, name: str, group: str, item: NewItem) -> NewItem:
        """Encode a new item of a group."""
        return item._replace(payload=self.encode(item.payload, "item", name, group, item.id))

    def encode_dead_letter(self, dead_letter: DeadLetter) -> DeadLetter:
        """Encode a dead letter."""
        return dead_letter._replace(payload=self.encode(dead_letter.payload, *_about(dead_letter)))

    def record(self, record: Record) -> Record:
        """Decode an instance."""
        pending = self.decode(record.pending, "pending", record.id)
        return record._replace(data=self.decode(record.data, "state", record.id), pending=pending)

    def entry(self, entry: Entry) -> Entry:
        """Decode an entry of the journal."""
        return entry._replace(detail=self.decode(entry.detail, "journal", entry.step, entry.message_id))

    def found(self, found: Found) -> Found:
        """Decode the answer to a find."""
        return found._replace(
            record=found.record and self.record(found.record), handled=found.handled and self.entry(found.handled)
        )

    def row(self, row: OutboxRow) -> OutboxRow:
        """Decode an outgoing message."""
        return row._replace(payload=self.decode(row.payload, "message", row.message_id))

    def item(self, name: str, group: str, item: Item) -> Item:
        """Decode an item of a group."""
        return item._replace(payload=self.decode(item.payload, "item", name, group, item.id))

    def dead_letter(self, dead_letter: DeadLetter) -> DeadLetter:
        """Decode a dead letter."""
        return dead_letter._replace(payload=self.decode(dead_letter.payload, *_about(dead_letter)))

    def page(self, page: Page) -> Page:
        """Decode a page of instances."""
        return page._replace(instances=tuple(map(self._glance, page.instances)))

    def audit_page(self, page: AuditPage) -> AuditPage:
        """Decode a page of the audit."""
        entries = (each._replace(detail=self.decode(each.detail, "audit", each.id)) for each in page.entries)
        return page._replace(entries=tuple(entries))

    def _glance(self, glance: Glance) -> Glance:
        return glance._replace(pending=glance.pending and self.decode(glance.pending, "pending", glance.id))


def _about(dead_letter: DeadLetter) -> tuple[str, ...]:
    """Return what identifies a text, wherever it is kept: a message, or an item, may become a dead letter, and come back."""
    if dead_letter.number:
        return "item", dead_letter.task, dead_letter.key, dead_letter.message_id
    return "message", dead_letter.message_id
