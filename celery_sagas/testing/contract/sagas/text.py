"""Names, keys, values, message ids and texts come back as they were written, and are compared byte by byte."""

import json
import unicodedata

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Handling, Lookup
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import (
    NAMES,
    by_id,
    by_key,
    by_tracking,
    change,
    claim,
    complete,
    dead_letter,
    effects,
    entry,
    found,
    handled,
    ids,
    is_there,
    new_record,
    outgoing,
    send,
    start,
)

#: Texts that a collation, a pattern or a careless encoding confuses; no two of them are equal.
LOOK_ALIKES = (
    "abc",
    "ABC",
    "abc ",
    " abc",
    "abc\t",
    "abc\n",
    unicodedata.normalize("NFC", "ábc"),
    unicodedata.normalize("NFD", "ábc"),
    "\uff41\uff42\uff43",
    "ab\u200bc",
    "ss",
    "ß",
    "i",
    "\u0131",
    "😀",
    "😁",
    "👩‍👩‍👧",
    "it's",
    'it"s',
    "%",
    "%s",
    "%(key)s",
    "_",
    ":key",
    "?",
    "\\",
    "\\\\",
    "\\'",
    "a\\0",
    "null",
    "0",
    "00",
    "0.0",
    "{tag}",
    "a:b",
    "$key",
)
#: The longest that a key or a value may be, in characters of one to four bytes.
LONGEST = ("a" * 255, "é" * 255, "漢" * 255, "😀" * 255)

_EVERY_CHARACTER = "".join(map(chr, (*range(1, 0xD800), *range(0xE000, 0x11000), 0x1F600, 0xE0001, 0x10FFFF)))
#: JSON text with raw and escaped characters, and with blanks and repeated names that a store must not tidy up.
ODD_JSON = (
    '{ "b":1,\n\t"a": [1.0, 1e2, "\\u00e9\\ud83d\\ude00\\\\", ' + json.dumps(_EVERY_CHARACTER, ensure_ascii=False) + '], "b":2 }'
)

each_longest = pytest.mark.parametrize("text", LONGEST, ids=["1 byte", "2 bytes", "3 bytes", "4 bytes"])


class TextContract(StoreFixtures):
    """Texts are kept as they are, and compared byte by byte."""

    def test_keys_are_compared_byte_by_byte(self, backend: Backend) -> None:
        records = {key: start(backend, key) for key in LOOK_ALIKES}
        for key, record in records.items():
            assert found(backend, by_key(key)) == record

    def test_key_is_not_found_by_one_that_looks_alike(self, backend: Backend) -> None:
        start(backend, "abc")
        assert [key for key in LOOK_ALIKES if is_there(backend, by_key(key))] == ["abc"]

    def test_alternate_keys_are_compared_byte_by_byte(self, backend: Backend) -> None:
        records = {value: start(backend, f"order {n}", keys=(("tracking", value),)) for n, value in enumerate(LOOK_ALIKES)}
        for value, record in records.items():
            assert found(backend, by_tracking(value)) == record

    def test_removing_an_alternate_key_leaves_those_that_look_alike(self, backend: Backend) -> None:
        for n, value in enumerate(LOOK_ALIKES):
            start(backend, f"order {n}", keys=(("tracking", value),))
        record = found(backend, by_tracking("abc"))
        backend.sagas.update(record, change(removed=(("tracking", "abc"),)), effects(record))
        assert [value for value in LOOK_ALIKES if not is_there(backend, by_tracking(value))] == ["abc"]

    def test_names_are_compared_byte_by_byte(self, backend: Backend) -> None:
        for name in ("order", "Order", "order ", "örder"):
            start(backend, names=(name,), keys=(("tracking", "T1"), ("Tracking", "T1")))
            assert found(backend, by_key(names=(name,))).saga == name

    def test_message_ids_are_compared_byte_by_byte(self, backend: Backend) -> None:
        for message_id in LOOK_ALIKES:
            assert handled(backend, entry(message_id=message_id)) is None
            line = send(backend, outgoing(), line=entry(message_id=message_id))
            written = handled(backend, line)
            assert written is not None
            assert (written.message_id, written.attempt) == (message_id, line.attempt)
        for message_id in LOOK_ALIKES:
            rows = backend.outbox.claim_due("relay", 9, 1_000, entry(message_id=message_id))
            assert [row.cause for row in rows] == [message_id]

    def test_step_names_are_compared_byte_by_byte(self, backend: Backend) -> None:
        for step in ("order.place", "order.Place", "order.place ", "order.pläce"):
            send(backend, line=entry(step=step, message_id="message"))
            assert backend.sagas.find(by_key(), Handling((step,), "message")).handled is not None

    def test_journal_tells_keys_that_look_alike_apart(self, backend: Backend) -> None:
        for key in LOOK_ALIKES:
            complete(backend, start(backend, key))
        for key in LOOK_ALIKES:
            outcome = backend.journal.outcome_of(NAMES, key)
            assert outcome is not None
            assert outcome.key == key
            assert len(backend.journal.history(NAMES, key, 9)) == 2

    def test_tokens_and_row_ids_are_compared_byte_by_byte(self, backend: Backend) -> None:
        send(backend, outgoing(id="row"), outgoing(id="ROW"), owner="me", grace_ms=1_000)
        for token in ("ME", "me ", "mé"):
            assert backend.outbox.confirm(token, ["row", "ROW"]) == 0
        assert backend.outbox.confirm("me", ["row "]) == 0
        assert backend.outbox.confirm("me", ["row"]) == 1
        assert backend.outbox.count() == 1

    def test_holders_are_compared_byte_by_byte(self, backend: Backend) -> None:
        record = start(backend)
        backend.sagas.lock(record, "me", 1_000)
        assert not any(backend.sagas.lock(record, lock_owner, 1_000) for lock_owner in ("ME", "me ", "mé"))

    @each_longest
    def test_longest_key_and_value_are_kept_whole(self, backend: Backend, text: str) -> None:
        record = start(backend, text, keys=(("tracking", text),))
        start(backend, text[:-1], keys=(("tracking", text[:-1]),))
        for lookup in (by_key(text), by_tracking(text), Lookup(NAMES, KEY, record.key)):
            assert found(backend, lookup) == record
        assert record.key == text
        assert backend.journal.history(NAMES, text, 9)[0].key == text

    def test_state_of_a_megabyte_is_kept(self, backend: Backend) -> None:
        data = json.dumps({"lines": [f"line {n} é" for n in range(60_000)]})
        assert len(data) > 1_000_000
        record = start(backend, data=data)
        assert record.data == data
        backend.sagas.update(record, change(data=data[:-2] + ', "last"]}'), effects(record, outgoing(payload=data)))
        assert found(backend, by_key()).data == data[:-2] + ', "last"]}'
        assert claim(backend)[0].payload == data

    def test_state_comes_back_character_by_character(self, backend: Backend) -> None:
        record = start(backend, data=ODD_JSON)
        assert record.data == ODD_JSON
        new = new_record("43")
        backend.sagas.insert(new, effects(new))
        second = found(backend, by_id(new.id))
        backend.sagas.update(second, change(data=ODD_JSON), effects(second))
        assert found(backend, by_key("43")).data == ODD_JSON

    def test_payload_comes_back_character_by_character(self, backend: Backend) -> None:
        """A message's arguments may hold what a state may not."""
        payloads = (ODD_JSON, '"\\u0000"', '"\\ud800"', "not even JSON")
        rows = [outgoing(payload=payload) for payload in payloads]
        send(backend, *rows)
        payload_of = {row.id: row.payload for row in claim(backend)}
        assert [payload_of[id] for id in ids(rows)] == list(payloads)

    def test_dead_letter_comes_back_character_by_character(self, backend: Backend) -> None:
        kept = dead_letter(text=ODD_JSON)
        backend.dead.add(kept)
        back = backend.dead.get(kept.id)
        assert back is not None
        assert (back.text, back.traceback) == (kept.text, kept.traceback)
