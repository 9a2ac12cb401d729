"""What a codec encodes, and what becomes of texts that it cannot decode."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import InvalidToken
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from celery_sagas.core.encoding import MARK
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.encoded import Codec
from celery_sagas.stores.encoded.backend import EncodedBackend
from celery_sagas.stores.encoded.codec import Texts, load_codec
from celery_sagas.stores.items import Addition, NewItem
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Sends
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.batches import NAME, PAIRS
from celery_sagas.testing.samples import (
    STEP,
    audited,
    by_id,
    change,
    claim,
    dead_letter,
    effects,
    entry,
    found,
    new_record,
    outgoing,
    start,
)
from tests.apps import WithoutAggregators
from tests.stores.encoded.reversing import ReversingCodec, codec

SECRET = '{"secret": "tachycardia"}'


class Forgetful(ReversingCodec):
    """Decodes nothing."""

    def decode(self, text: str, about: str) -> str:
        raise ValueError(f"no key for {text}")


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[SqlBackend]:
    with closing(SqlBackend(f"sqlite:///{tmp_path}/sagas.sqlite3", prefix="")) as backend:
        backend.prepare(create_schema=True, processes=1)
        yield backend


@pytest.fixture
def encoded(inner: SqlBackend) -> EncodedBackend:
    return EncodedBackend(inner, codec)


def fill(backend: Backend) -> None:
    """Write each text that may have values of users, in each way in which it is written."""
    record = new_record("1", data=SECRET, pending=SECRET)
    line = entry(record)._replace(detail=SECRET)
    backend.sagas.insert(
        record, effects(record, outgoing(payload=SECRET), line=line, audit=audited(line)._replace(detail=SECRET))
    )
    first = found(backend, by_id(record.id))
    changed = change(data=SECRET)._replace(pending=SECRET)
    line = entry(first)._replace(detail=SECRET)
    backend.sagas.update(first, changed, effects(first, outgoing(payload=SECRET), line=line))
    line = entry()._replace(detail=SECRET)
    backend.sagas.record(effects(None, outgoing("series", payload=SECRET), line=line))
    rows = claim(backend)
    assert {row.payload for row in rows} == {SECRET}
    assert backend.outbox.reschedule("relay", [row for row in rows if row.kind == "series"]) == 1
    backend.switches.hold(STEP, audited(line)._replace(detail=SECRET))
    backend.dead.add(dead_letter()._replace(payload=SECRET))
    items = (NewItem("a", SECRET), NewItem("b", SECRET), NewItem("c", SECRET, is_unreadable=True))
    backend.aggregates.insert(PAIRS, [Addition("", items)])
    snapshot = backend.aggregates.claim(PAIRS, "", "one")
    assert snapshot is not None
    rejected = dead_letter()._replace(task=NAME, message_id="a", key="", payload=SECRET, number=snapshot.items[0].number)
    sends = Sends((outgoing(payload=SECRET),), NAME, "one")
    backend.aggregates.remove(PAIRS, "", "one", rejected=[rejected], sends=sends)
    last = found(backend, by_id(record.id))
    line = entry(last)._replace(detail=SECRET, outcome="completed")
    backend.sagas.delete(last, effects(last, outgoing(payload=SECRET), line=line))


def test_no_value_can_be_read_in_a_store(encoded: EncodedBackend, inner: SqlBackend, tmp_path: Path) -> None:
    fill(encoded)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"tachycardia" not in files
    assert b'{"secret"' not in files
    assert files.count(MARK.encode()) > 15


def test_without_a_codec_it_could(inner: SqlBackend, tmp_path: Path) -> None:
    """Otherwise the test above tests nothing."""
    fill(inner)
    assert b"".join(path.read_bytes() for path in tmp_path.iterdir()).count(b"tachycardia") > 15


def test_rows_of_a_session_are_encoded(encoded: EncodedBackend, inner: SqlBackend, tmp_path: Path) -> None:
    """Those that plain code sends, and the instance that a step commits in its transaction."""
    assert encoded.shared is not None
    engine = create_engine(f"sqlite:///{tmp_path}/sagas.sqlite3")
    with Session(engine) as session, session.begin():
        encoded.shared.add(session, [outgoing(payload=SECRET)], lambda _: None)
    engine.dispose()
    with closing(encoded.shared.open(Session)) as transaction:
        record = new_record(data=SECRET)
        transaction.handle.execute(text("SELECT 1"))
        transaction.commit(lambda joined: joined.sagas.insert(record, effects(record)))
    assert found(encoded, by_id(record.id)).data == SECRET
    assert found(inner, by_id(record.id)).data.startswith(MARK)
    (row,) = claim(inner)
    assert row.payload.startswith(MARK)


def test_what_was_stored_before_is_read_as_it_is(encoded: EncodedBackend, inner: SqlBackend) -> None:
    record = start(inner, data=SECRET)
    assert found(encoded, by_id(record.id)) == record
    encoded.sagas.update(record, change(data=SECRET), effects(record))
    assert found(inner, by_id(record.id)).data.startswith(MARK)
    assert found(encoded, by_id(record.id)).data == SECRET


def test_text_that_cannot_be_decoded_is_returned_as_it_is_stored(encoded: EncodedBackend, inner: SqlBackend) -> None:
    record = start(encoded, data=SECRET)
    forgetful = EncodedBackend(inner, Forgetful())
    assert found(forgetful, by_id(record.id)) == found(inner, by_id(record.id))


def test_text_in_the_place_of_another_is_not_decoded(encoded: EncodedBackend, inner: SqlBackend) -> None:
    one, two = start(encoded, "1", data=SECRET), start(encoded, "2")
    stolen = found(inner, by_id(one.id)).data
    inner.sagas.update(found(inner, by_id(two.id)), change(data=stolen), effects(two))
    assert found(encoded, by_id(two.id)).data == stolen


def test_row_that_could_not_be_decoded_can_be_as_a_dead_letter(encoded: EncodedBackend, inner: SqlBackend) -> None:
    """A relay with another key keeps it; it is not encoded twice."""
    row = outgoing(payload=SECRET)
    encoded.sagas.record(effects(None, row))
    forgetful = EncodedBackend(inner, Forgetful())
    (claimed,) = claim(forgetful)
    forgetful.dead.add(dead_letter("id")._replace(message_id=claimed.message_id, payload=claimed.payload))
    kept = encoded.dead.get("id")
    assert kept is not None
    assert kept.payload == SECRET


def test_other_errors_of_a_codec_pass() -> None:
    """A server of keys that is away says nothing about the text."""

    class Away(ReversingCodec):
        def decode(self, text: str, about: str) -> str:
            raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        Texts(Away()).decode(f"{MARK}x", "state", "1")


def test_text_that_a_codec_leaves_as_it_is_is_stored_as_without_one(inner: SqlBackend) -> None:
    """So that it can be switched off: what was encoded is still decoded."""

    class Leaving(ReversingCodec):
        def encode(self, text: str, about: str) -> str:
            return text

    encoded, leaving = EncodedBackend(inner, codec), EncodedBackend(inner, Leaving())
    record = start(encoded, data=SECRET)
    assert found(leaving, by_id(record.id)) == record
    leaving.sagas.update(record, change(data=SECRET), effects(record))
    assert found(inner, by_id(record.id)).data == SECRET


def test_about_is_json_of_the_kind_and_the_place() -> None:
    abouts: list[str] = []

    class Noting(ReversingCodec):
        def encode(self, text: str, about: str) -> str:
            abouts.append(about)
            return super().encode(text, about)

    backend = EncodedBackend(MemoryBackend("memory://", prefix=""), Noting())
    fill(backend)
    kinds = {json.loads(about)[0] for about in abouts}
    assert kinds == {"state", "pending", "journal", "message", "audit", "item"}
    assert json.dumps(["item", NAME, "", "a"]) in abouts


def _methods(port: type[Any]) -> set[str]:
    return {name for base in port.__mro__[:-1] for name, value in vars(base).items() if callable(value) and name[0] != "_"}


_PORTS = list(vars(EncodedBackend(MemoryBackend("memory://", prefix=""), codec)).values())


@pytest.mark.parametrize("port", [type(port) for port in _PORTS if type(port).__name__.startswith("Encoded")])
def test_every_method_of_a_port_is_passed_on(port: type[Any]) -> None:
    """Also one that has a default: override it, and encode what it is given and decode what it returns."""
    assert _methods(port) <= vars(port).keys()


def test_every_method_of_a_backend_is_passed_on() -> None:
    assert _methods(Backend) <= vars(EncodedBackend).keys()


def test_backend_has_the_ports_that_the_other_one_has() -> None:
    backend = EncodedBackend(WithoutAggregators("memory://", prefix=""), codec)
    assert not backend.has_aggregators
    assert backend.has_instances
    assert backend.has_audit
    assert backend.has_switches
    assert backend.shared is None


def test_codec_is_loaded() -> None:
    assert load_codec("tests.stores.encoded.reversing:codec") is codec


class Bytes(ReversingCodec):
    def encode(self, text: str, about: str) -> Any:
        return text.encode()


class Losing(ReversingCodec):
    def decode(self, text: str, about: str) -> str:
        return ""


class Refusing(ReversingCodec):
    def encode(self, text: str, about: str) -> str:
        raise ValueError("the key is hunter2")


class Unwrapped(ReversingCodec):
    """Raises its library's own error for a text that it has not encoded."""

    def decode(self, text: str, about: str) -> str:
        try:
            return super().decode(text, about)
        except ValueError as exc:
            raise InvalidToken from exc


broken: Codec = Bytes()
losing, forgetful, refusing, unwrapped = Losing(), Forgetful(), Refusing(), Unwrapped()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module:codec", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_module'\. Write it as"),
        (f"{__name__}:nothing", "cannot be imported: AttributeError: .* Write it as package.module:object"),
        (f"{__name__}:ReversingCodec", r"is a class\. Name an object\. Give it encode\(text, about\) and decode"),
        (f"{__name__}:SECRET", r"lacks encode or decode\. Name an object"),
        (f"{__name__}:broken", "encodes to no text. Give it encode"),
        (f"{__name__}:losing", "does not decode what it has encoded. Give it encode"),
        (f"{__name__}:forgetful", "fails: ValueError. Give it encode"),
        (f"{__name__}:refusing", "fails: ValueError. Give it encode"),
        (f"{__name__}:unwrapped", "raises InvalidToken for a text that it has not encoded. Have its decode raise ValueError"),
    ],
)
def test_codec_that_is_none_is_refused(path: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        load_codec(path)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None or "hunter2" not in str(caught.value.__cause__)
