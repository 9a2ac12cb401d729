"""The stored form of records, entries, rows, dead letters and items: a line of numbers and lengths, then the texts in order.

The lengths make every text safe, whatever is in it, and a cut or edited value detectable. The scripts read the first line only.
"""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from celery_sagas.errors import StoreError, UnreadableState
from celery_sagas.stores.instances import PENDING, Glance
from celery_sagas.stores.items import Item, NewItem
from celery_sagas.stores.records import BOUND_KINDS, KEY, AuditEntry, Change, DeadLetter, Entry, NewRecord, OutboxRow, Record
from celery_sagas.stores.switches import Switch

#: The end of the year 9999 in milliseconds: the last that Python can represent.
_LAST_TIME = 253_402_300_799_999


class Malformed(ValueError):
    """Raised when a stored value was not packed here, or was changed since."""


def encode(text: str) -> bytes:
    """Return the text's UTF-8.

    Raises:
        StoreError: It has none.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise StoreError(f"The Redis saga backend refused a text: {exc.reason} at {exc.start}. Nothing was stored.") from exc


@lru_cache(maxsize=512)  # the commits of a batch need those of its finds
def digest_of(step: str, message_id: str) -> bytes:
    """Return the name of a journal entry: 22 characters."""
    return urlsafe_b64encode(blake2b(encode(f"{step}\0{message_id}"), digest_size=16).digest())[:22]


def subject_of(saga: str, key: str) -> str:
    """Return the name under which a key's newest entry is kept; a saga's name has no equals sign."""
    return f"{saga}={key}"


def digest_of_subject(saga: str, key: str) -> bytes:
    """Return the name under which the audit's entries of a key are kept: 22 characters."""
    return urlsafe_b64encode(blake2b(encode(subject_of(saga, key)), digest_size=16).digest())[:22]


def key_path(key: str) -> str:
    """Return the name under which the id of the instance that has a key is kept."""
    return f"{KEY}={key}"


def paths(keys: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names under which the ids of the instances that have alternate keys are kept."""
    return [f"{property}={value}" for property, value in keys]


def tag_path(property: str, value: str) -> bytes:
    """Return the name of a tag, which begins as no property does: 8 bytes.

    A longer one would take more memory for each instance that has the tag. Of a million values, two have the same name with a
    probability of 1 in 140,000; a page of one of them would show the instances of both.
    """
    return b"~" + blake2b(encode(f"{property}={value}"), digest_size=7).digest()


def tag_paths(tags: Sequence[tuple[str, str]]) -> list[bytes]:
    """Return the names of tags."""
    return [tag_path(property, value) for property, value in tags]


def pack_new(record: NewRecord) -> tuple[bytes, bytes]:
    """Pack a new record: head and tail, between which the script writes the times."""
    key, pending, data = encode(record.key), encode(record.pending), encode(record.data)
    head = b"1 %d " % record.schema_version
    return head, b" %d %d %d\n%b%b%b" % (len(key), len(pending), len(data), key, pending, data)


def pack_change(record: Record, change: Change) -> tuple[bytes, bytes]:
    """Pack a changed record: head and tail, between which the script writes the time."""
    key, pending, data = encode(record.key), encode(change.pending), encode(change.data)
    head = b"%d %d %d " % (record.version + 1, change.schema_version, record.created_at)
    return head, b" %d %d %d\n%b%b%b" % (len(key), len(pending), len(data), key, pending, data)


def unpack_record(saga: str, id: str, packed: bytes, locked_by: str) -> Record:
    """Read a record."""
    words, (key, pending, data) = _split(packed, 4, 3)
    version, schema_version, created_at, updated_at = map(_number, words[:4])
    return Record(id, saga, key, version, schema_version, data, pending, created_at, updated_at, locked_by)


def unpack_glance(saga: str, id: str, packed: bytes) -> Glance:
    """Read what a page shows of a record: all but its state, and a pending map that is too long."""
    words = packed.partition(b"\n")[0].split(b" ")
    if len(words) < 7 or not (words[5].isdigit() and words[6].isdigit()):
        raise Malformed("its first line does not say how long its texts are")
    _, (key, *pending) = _split(packed, 4, 2 if int(words[5]) <= PENDING else 1)
    version, schema_version, created_at, updated_at = map(_number, words[:4])
    shown = pending[0] if pending else None
    return Glance(id, saga, key, version, schema_version, int(words[6]), shown, created_at, updated_at)


def unpack_found(answer: bytes) -> tuple[int, bytes, bytes | None, bytes | None, bytes]:
    """Return the parts of a script's answer: the number of the name, id, record, entry, lock owner."""
    line, _, rest = answer.partition(b"\n")
    number, of_id, of_record, of_entry = line.split(b" ")
    id_ends = int(of_id)
    record_ends = id_ends if of_record == b"-" else id_ends + int(of_record)
    entry_ends = record_ends if of_entry == b"-" else record_ends + int(of_entry)
    record = None if of_record == b"-" else rest[id_ends:record_ends]
    entry = None if of_entry == b"-" else rest[record_ends:entry_ends]
    return int(number), rest[:id_ends], record, entry, rest[entry_ends:]


def pack_entry(entry: Entry) -> bytes:
    """Pack an entry without its time and its place in the chain: the script writes them before it."""
    subject = subject_of(entry.saga, entry.key)
    texts = (entry.attempt, subject, entry.step, entry.message_id, entry.outcome, entry.instance_id, entry.detail)
    return _pack(texts, entry.version)


def unpack_entry(packed: bytes) -> Entry:
    """Read an entry."""
    words, texts = _split(packed, 3, 7)
    attempt, subject, step, message_id, outcome, instance_id, detail = texts
    saga, separator, key = subject.partition("=")
    if not separator or len(words) != 11:
        raise Malformed("it names no saga and key, or no version")
    return Entry(step, message_id, attempt, outcome, saga, key, instance_id, int(words[10]), detail, int(words[0]))


def pack_audit(entry: AuditEntry) -> bytes:
    """Pack an entry of the audit without its time and the digest of saga and key: the script writes them before it."""
    texts = (entry.saga, entry.key, entry.actor, entry.action, entry.reason, entry.instance_id, entry.detail)
    return _pack(texts, entry.version)


def unpack_audit(id: str, packed: bytes) -> AuditEntry:
    """Read an entry of the audit."""
    words, (saga, key, actor, action, reason, instance_id, detail) = _split(packed, 2, 7)
    if len(words) != 10:
        raise Malformed("it names no version")
    return AuditEntry(id, actor, action, reason, saga, key, instance_id, int(words[9]), detail, int(words[0]))


def pack_switch(entry: AuditEntry) -> bytes:
    """Pack the switch that an entry of the audit makes, without its time: the script writes it before it."""
    return _pack((entry.actor, entry.reason))


def unpack_switch(name: str, packed: bytes) -> Switch:
    """Read a switch; one that is damaged holds all the same, and hides no others."""
    try:
        words, (actor, reason) = _split(packed, 1, 2)
        return Switch(name, actor, reason, _number(words[0]))
    except ValueError:
        return Switch(name, "", "", 0)


def pack_row(row: OutboxRow, digest: bytes) -> list[bytes | str | int]:
    """Return the four arguments by which a script takes a row, given the digest of what decided it."""
    return [row.id, row.due_at, int(row.kind in BOUND_KINDS), _packed_row(row, digest)]


def pack_next(row: OutboxRow) -> list[bytes | str | int]:
    """Return the three arguments by which a script takes the next message of a row."""
    return [encode(row.id), row.due_at, _packed_row(row, digest_of(row.step, row.cause))]


def _packed_row(row: OutboxRow, digest: bytes) -> bytes:
    texts = (row.instance_id, row.kind, row.message_id, row.task, row.payload, row.step, row.cause)
    return b"%d %b %d %b" % (row.due_at, digest, row.kind in BOUND_KINDS, _pack(texts))


def unpack_row(id: str, packed: bytes, attempts: int, tried_at: int = 0) -> OutboxRow:
    """Read a row."""
    (due_at, *_), (instance_id, kind, message_id, task, payload, step, cause) = _split(packed, 3, 7)
    return OutboxRow(id, kind, message_id, task, payload, int(due_at), attempts, instance_id, step, cause, tried_at)


def pack_dead_letter(dead_letter: DeadLetter) -> bytes:
    """Pack a dead letter without its time: the script writes it before it."""
    texts = (
        dead_letter.task,
        dead_letter.message_id,
        dead_letter.saga,
        dead_letter.key,
        dead_letter.error,
        dead_letter.text,
        dead_letter.traceback,
        dead_letter.payload,
    )
    return _pack(texts, dead_letter.number, dead_letter.buffered_at)


def unpack_dead_letter(id: str, packed: bytes) -> DeadLetter:
    """Read a dead letter."""
    words, (task, message_id, saga, key, error, text, traceback, payload) = _split(packed, 1, 8)
    if len(words) != 11:
        raise Malformed("it does not say whether it is a message")
    numbers = int(words[0]), int(words[9]), int(words[10])
    return DeadLetter(id, task, message_id, saga, key, error, text, traceback, payload, *numbers)


def digest_of_item(aggregator: str, group: str, id: str) -> bytes:
    """Return the name under which an item's id is known: 22 characters."""
    text = encode(f"{len(aggregator)}:{aggregator}{len(group)}:{group}{id}")
    return urlsafe_b64encode(blake2b(text, digest_size=16).digest())[:22]


def pack_item(digest: bytes, item: NewItem) -> bytes:
    """Pack an item without its time: the script writes it before it, in the place of the flush request of an unreadable one."""
    id, payload = encode(item.id), encode(item.payload)
    mark = b"!" if item.is_unreadable else b""
    return b"%b%b %d %d\n%b%b" % (mark, digest, len(id), len(payload), id, payload)


def pack_rejected(digest: bytes, dead_letter: DeadLetter) -> bytes:
    """Pack the item of a dead letter."""
    return b"%d %b" % (dead_letter.buffered_at, pack_item(digest, NewItem(dead_letter.message_id, dead_letter.payload)))


def unpack_item(number: int, packed: bytes, attempts: int = 0) -> Item:
    """Read an item."""
    words, (id, payload) = _split(packed, 2, 2)
    return Item(number, id, payload, _number(words[0]), attempts)


def unreadable(saga: str, key: str, stored_under: str, field: str, problem: object) -> UnreadableState:
    """Return the error for something that is kept in a hash and cannot be read."""
    remedy = "look at it with HGET, then restore it or remove it with HDEL"
    return UnreadableState(saga, key, f"the field {field!r} of the Redis hash {stored_under!r} is damaged, {problem}; {remedy}")


def unreadable_in_list(aggregator: str, group: str, stored_under: str, number: str, problem: object) -> UnreadableState:
    """Return the error for a fresh item that cannot be read."""
    remedy = "look at it with LRANGE and restore it with LSET, or let a flush take it, and remove it then"
    text = f"what follows {number!r} in the Redis list {stored_under!r} is damaged, {problem}; {remedy}"
    return UnreadableState(aggregator, group, text)


def _pack(texts: Sequence[str], *numbers: int) -> bytes:
    parts = [encode(text) for text in texts]
    line = " ".join(map(str, (*map(len, parts), *numbers)))
    return b"".join((line.encode(), b"\n", *parts))


def _number(word: bytes) -> int:
    """Read a version or a time, spelled as the scripts spell it."""
    if word.isdigit():
        number = int(word)
        if number <= _LAST_TIME and b"%d" % number == word:
            return number
    raise Malformed(f"{word.decode(errors='replace')!r} is no version and no time")


def _split(packed: bytes, skipped: int, count: int) -> tuple[list[bytes], list[str]]:
    """Return the words of the first line, and the texts whose lengths follow the skipped words.

    Raises:
        Malformed: The line has too few words, or the lengths are not those of what follows.
    """
    line, _, rest = packed.partition(b"\n")
    words = line.split(b" ")
    texts, start = [], 0
    try:
        for word in words[skipped : skipped + count]:
            end = start + int(word)
            texts.append(rest[start:end].decode())
            start = end
    except ValueError as exc:  # UnicodeDecodeError is one
        raise Malformed(str(exc)) from exc
    if len(texts) != count or start != len(rest):
        raise Malformed(f"its first line does not describe the {len(rest)} bytes that follow")
    return words, texts
