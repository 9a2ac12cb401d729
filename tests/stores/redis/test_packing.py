"""What is kept comes back text by text, and what was damaged is noticed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sagas.errors import StoreError
from celery_sagas.stores.records import Change, DeadLetter, Entry, NewRecord, OutboxRow, Outgoing, Record, outbox_row
from celery_sagas.stores.redis.packing import (
    Malformed,
    digest_of,
    pack_change,
    pack_dead_letter,
    pack_entry,
    pack_new,
    pack_row,
    unpack_dead_letter,
    unpack_entry,
    unpack_found,
    unpack_record,
    unpack_row,
)

#: Whatever may be in a text: digits, blanks and line ends too, which stand between the lengths.
texts = st.text(alphabet=st.one_of(st.sampled_from("0 9\n-=:"), st.characters(exclude_categories=["Cs"])), max_size=9)
numbers = st.integers(0, 253_402_300_799_999)

RECORD = Record("id", "order", "4\n2", 3, 7, '{"é": 1}', "{}", 5, 9)
ENTRY = Entry("order.place", "message", "attempt", "handled", "order", "4=2", "id", 3, "{}", at=5)
ROW = OutboxRow("row", "deadline", "message", "shop.ship", '{"é": 1}', -3, 0, "id", "order.place", "message")
DEAD_LETTER = DeadLetter("id", "task", "message", "order", "42", "Error", "té\nxt", "Traceback\n1 2", "{}", at=5)


@given(st.builds(Record, *[st.just("id"), st.just("order"), texts, numbers, numbers, texts, texts, numbers, numbers, texts]))
def test_changed_record_comes_back(record: Record) -> None:
    head, tail = pack_change(record._replace(version=record.version - 1), _change(record))
    assert unpack_record("order", "id", head + b"%d" % record.updated_at + tail, record.locked_by) == record


def test_new_record_comes_back_at_version_1() -> None:
    head, tail = pack_new(NewRecord("id", ("order", "purchase"), "4\n2", 7, '{"é": 1}', "{}", ()))
    assert unpack_record("order", "id", head + b"5 5" + tail, "") == RECORD._replace(version=1, updated_at=5)


@given(st.builds(Entry, *[texts] * 4, st.just("order"), texts, texts, numbers, texts, numbers))
def test_entry_comes_back(entry: Entry) -> None:
    assert unpack_entry(b"%d 3 - %b" % (entry.at, pack_entry(entry))) == entry


@given(st.builds(Outgoing, *[texts] * 5, st.integers(-(2**53), 2**53)), texts, texts)
def test_row_comes_back(row: Outgoing, instance_id: str, step: str) -> None:
    _, due_at, _, packed = pack_row(outbox_row(row, instance_id, step, ENTRY.message_id), b"digest")
    assert due_at == row.due_at
    back = unpack_row(row.id, bytes(packed), 2)  # type: ignore[arg-type]
    assert (back.id, back.kind, back.message_id, back.task) == (row.id, row.kind, row.message_id, row.task)
    assert (back.payload, back.due_at, back.attempts) == (row.payload, row.due_at, 2)
    assert (back.instance_id, back.step, back.cause) == (instance_id, step, ENTRY.message_id)


@given(st.builds(DeadLetter, st.just("id"), *[texts] * 8, numbers, numbers, numbers))
def test_dead_letter_comes_back(dead_letter: DeadLetter) -> None:
    assert unpack_dead_letter("id", b"%d %b" % (dead_letter.at, pack_dead_letter(dead_letter))) == dead_letter


@pytest.mark.parametrize(("kind", "ends"), [("sent", 0), ("scheduled", 1), ("deadline", 1)])
def test_row_says_whether_it_ends_with_its_instance(kind: str, ends: int) -> None:
    assert pack_row(ROW._replace(kind=kind), b"digest")[2] == ends


def test_digest_tells_step_and_message_apart() -> None:
    digests = {digest_of("order.a", "b"), digest_of("order.", "ab"), digest_of("order.ab", ""), digest_of("order.a", "B")}
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {22}
    assert digest_of("order.a", "b") in digests


#: Each kind of value as it is kept, with what reads it.
KEPT: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "record": (
        b"9".join(pack_change(RECORD, Change(("order",), 7, '{"é": 1}', "{}"))),
        lambda b: unpack_record("order", "id", b, ""),
    ),
    "entry": (b"5 1 - " + pack_entry(ENTRY), unpack_entry),
    "row": (bytes(pack_row(ROW, b"digest")[3]), lambda b: unpack_row("row", b, 0)),  # type: ignore[arg-type]
    "dead_letter": (b"5 " + pack_dead_letter(DEAD_LETTER), lambda b: unpack_dead_letter("id", b)),
}
each_kept = pytest.mark.parametrize(("packed", "unpack"), KEPT.values(), ids=KEPT)


@each_kept
def test_every_cut_is_noticed(packed: bytes, unpack: Callable[[bytes], object]) -> None:
    unpack(packed)
    for length in range(len(packed)):
        with pytest.raises(ValueError):  # noqa: PT011 - Malformed and UnicodeDecodeError are
            unpack(packed[:length])


@each_kept
@pytest.mark.parametrize(
    "damaged", [b"", b"\n", b"{}", b'{"version": 1}', b"a b c d e f g h i j k\n", b"1 -1 1 1 1 1 1 1 1 1\n", b"\xff\n"]
)
def test_strange_value_is_noticed(packed: bytes, unpack: Callable[[bytes], object], damaged: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unpack(damaged)


@each_kept
def test_every_inserted_byte_is_noticed(packed: bytes, unpack: Callable[[bytes], object]) -> None:
    texts_begin = packed.index(b"\n") + 1
    for at in range(texts_begin, len(packed) + 1):
        with pytest.raises(ValueError):  # noqa: PT011
            unpack(packed[:at] + b"x" + packed[at:])


def test_bytes_that_are_no_text_are_noticed() -> None:
    packed, unpack = KEPT["record"]
    with pytest.raises(Malformed):
        unpack(packed.replace("é".encode(), b"\xff\xff"))


def test_lone_surrogate_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="refused a text") as caught:
        pack_entry(ENTRY._replace(detail="secret \ud800"))
    assert "secret" not in str(caught.value)


def _change(record: Record) -> Change:
    return Change(("order",), record.schema_version, record.data, record.pending)


@pytest.mark.parametrize("word", [b"-1", b"01", b"", b"1.5", b"1_0", b"253402300800000", b"12345678901234567890"])
@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_number_that_no_script_writes_is_noticed(position: int, word: bytes) -> None:
    words = [b"1", b"1", b"5", b"5", b"1", b"2", b"2"]
    words[position] = word
    with pytest.raises(Malformed):
        unpack_record("order", "id", b" ".join(words) + b"\nk{}{}", "")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"0 0 - -\n", (0, b"", None, None, b"")),
        (b"2 2 - -\nid", (2, b"id", None, None, b"")),
        (b"1 2 0 -\nid", (1, b"id", b"", None, b"")),
        (b"1 2 3 4\nid1\n2- -\nby", (1, b"id", b"1\n2", b"- -\n", b"by")),
        (b"0 0 - 2\n-1", (0, b"", None, b"-1", b"")),
        (b"1 2 3 -\nid1 2holder\n", (1, b"id", b"1 2", None, b"holder\n")),
    ],
)
def test_what_a_script_has_found(answer: bytes, found: object) -> None:
    assert unpack_found(answer) == found
