"""Outgoing messages in memory."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from celery_sagas.stores.memory.state import MemoryStore, Row, leased, unleased
from celery_sagas.stores.outbox import Outbox
from celery_sagas.stores.records import KEPT_MOST_MS, LOOK_MS, Entry, OutboxGlance, OutboxPage, OutboxRow, OutboxTally

#: How many characters of an error are kept.
ERROR_CHARACTERS = 2_000


class MemoryOutbox(MemoryStore, Outbox):
    """Outgoing rows in the order in which they fall due."""

    def claim_due(self, token: str, limit: int, lease_ms: int, cause: Entry | None = None) -> list[OutboxRow]:
        with self._state.lock:
            now = self._clock()
            due = (row for row in self._state.outbox.due(now) if _decided_by(row, cause))
            rows = list(islice(due, limit))
            for row in rows:
                self._state.outbox.put(leased(row, token, until=now + lease_ms))
            return [row.message for row in rows]

    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        with self._state.lock:
            rows, now = self._held(token, ids), self._clock()
            for row in rows:
                if keep_ms:
                    self._state.outbox.put(_kept(row, now, keep_ms))
                else:
                    self._state.outbox.remove(row.message.id)
            return len(rows)

    def reschedule(self, token: str, rows: Sequence[OutboxRow]) -> int:
        with self._state.lock:
            new = {row.id: row for row in rows}
            held = self._held(token, list(new))
            for row in held:
                self._state.outbox.put(_with_message_of(row, new[row.message.id]))
            return len(held)

    def release(self, token: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        with self._state.lock:
            rows = self._held(token, ids)
            due_since = self._clock() + delay_ms
            for row in rows:
                self._state.outbox.put(unleased(row, due_since))
            return len(rows)

    def fail(self, token: str, id: str, error: str, delay_ms: int) -> bool:
        with self._state.lock:
            rows = self._held(token, [id])
            for row in rows:
                message = row.message._replace(attempts=row.message.attempts + 1)
                failed = replace(row, message=message, error=error[:ERROR_CHARACTERS])
                self._state.outbox.put(unleased(_tried(failed, self._clock()), self._clock() + delay_ms))
            return bool(rows)

    def hurry(self, ids: Sequence[str]) -> int:
        with self._state.lock:
            now = self._clock()
            found = filter(None, map(self._state.outbox.get, dict.fromkeys(ids)))
            rows = [row for row in found if row.due_since > now and row.leased_until <= now]
            for row in rows:
                self._state.outbox.put(replace(row, due_since=now))
            return len(rows)

    def read(self, ids: Sequence[str]) -> list[OutboxGlance]:
        with self._state.lock:
            return [_glance(row) for row in map(self._state.outbox.get, ids) if row is not None]

    def tried(self, until: int, limit: int, after: str = "") -> list[OutboxGlance]:
        with self._state.lock:
            rows = [_glance(row) for row in self._state.outbox if 0 < row.message.tried_at <= until]
        return sorted((row for row in rows if row.place > after), key=lambda row: row.place)[:limit]

    def overdue(self, before: int, limit: int, after: str = "") -> OutboxPage:
        with self._state.lock:
            rows = list(self._state.outbox.due(self._clock() + LOOK_MS))
        left = [_glance(row) for row in rows if not row.message.tried_at and _due_at(row) <= before]
        page = sorted((row for row in left if row.due_place > after), key=lambda row: row.due_place)
        return OutboxPage(page[:limit], page[limit - 1].due_place if len(page) > limit else "")

    def tally(self, at_most: int) -> OutboxTally:
        with self._state.lock:
            due = [row.due_since for row in self._state.outbox.due(self._clock())]
            tried = sum(row.message.tried_at > 0 for row in self._state.outbox)
        return OutboxTally(min(len(due), at_most), due[0] if due else 0, min(tried, at_most))

    def time(self) -> int:
        return self._clock()

    def count(self) -> int:
        with self._state.lock:
            return len(self._state.outbox)

    def count_leased(self, cause: Entry) -> int:
        with self._state.lock:
            rows = (row for row in self._state.outbox.leased(self._clock()) if _decided_by(row, cause))
            return sum(not row.message.attempts for row in rows)

    def _held(self, token: str, ids: Sequence[str]) -> list[Row]:
        """Return the rows, each once, whose lease is, or was last, this token's."""
        rows = (self._state.outbox.held(id, token) for id in dict.fromkeys(ids))
        return [row for row in rows if row is not None]


def _due_at(row: Row) -> int:
    """Return since when a row is due; one that was due at once, since its lease has ended."""
    return row.message.due_at or row.due_since


def _kept(row: Row, now: int, keep_ms: int) -> Row:
    """Return a row whose message was published: due again, unless that is handled before."""
    tried = _tried(row, now)
    kept = replace(tried, message=tried.message._replace(attempts=0), error="")
    return unleased(kept, now + max(keep_ms, min(now - kept.message.tried_at, KEPT_MOST_MS)))


def _tried(row: Row, now: int) -> Row:
    return replace(row, message=row.message._replace(tried_at=row.message.tried_at or now))


def _glance(row: Row) -> OutboxGlance:
    message = {name: value for name, value in row.message._asdict().items() if name != "payload"}
    return OutboxGlance(**message, available_at=row.due_since, leased_until=row.leased_until, error=row.error)


def _with_message_of(row: Row, new: OutboxRow) -> Row:
    """Return a row with the message of another, under no lease."""
    message = row.message._replace(message_id=new.message_id, payload=new.payload, due_at=new.due_at, attempts=0, tried_at=0)
    return replace(row, message=message, due_since=new.due_at, token="", leased_until=0, error="")


def _decided_by(row: Row, cause: Entry | None) -> bool:
    return cause is None or (row.message.cause == cause.message_id and row.message.step == cause.step)
