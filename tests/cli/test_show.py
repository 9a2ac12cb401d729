"""``celery sagas show``."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import redis
from celery import Celery, shared_task
from pydantic import BaseModel, Field, field_validator

from celery_sagas import Failure, Gathered, Saga
from celery_sagas.core.ids import row_id
from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_id_of
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.memory.journal import MemoryJournal
from celery_sagas.stores.memory.outbox import MemoryOutbox
from celery_sagas.stores.memory.sagas import MemorySagaStore
from celery_sagas.stores.records import Change, Effects, Outgoing
from celery_sagas.testing.samples import HOUR, MINUTE, by_key, dead_letter, entry, found
from celery_sagas.worker.runtime import Runtime, runtime_of
from tests.apps import NewApp, Worker, backend_of
from tests.cli.test_dead import WHY
from tests.cli.test_describe import run
from tests.cli.test_tables import is_safe
from tests.every_store import stored_app, url
from tests.servers import unique

__all__ = ["stored_app", "url"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Ends a line, moves the cursor, and turns the direction.
HOSTILE = "\x1b[2J\n\r\u202e\u2028x"


@shared_task
def charge(order_id: str) -> None: ...


@pytest.fixture
def shop(definitions: None) -> Any:
    """A saga with steps of each kind."""

    class Order(Saga, correlate_by="order_id", also_by="tracking", search_by="city", status_by="status"):
        order_id: str
        city: str = "Oslo"
        tracking: str | None = None
        status: Literal["placed", "paid"] = "placed"
        pin: str = Field(default="swordfish", repr=False)
        details: Any = None

    @Order.starts
    def place(order: Order, order_id: str, city: str = "Oslo", tracking: str | None = None, details: Any = None) -> None:
        order.city, order.tracking, order.details = city, tracking, details

    @Order.handles
    def ask(order: Order, order_id: str) -> None:
        order.send(charge.s(order_id), then=charged, otherwise=not_charged, within=2.5 * 3600)
        order.gather([charge.s("a"), charge.s("b")], then=all_charged)
        order.schedule(remind, after=1.5 * 3600, name="delivery")

    @Order.handles
    def fall_behind(order: Order, order_id: str) -> None:
        order.schedule(remind, at=datetime.now(UTC) - timedelta(hours=1), name="delivery")

    @Order.handles
    def remind(order: Order) -> None: ...

    @Order.handles
    def charged(order: Order, answer: Any) -> None: ...

    @Order.handles
    def not_charged(order: Order, failure: Failure) -> None: ...

    @Order.handles
    def all_charged(order: Order, gathered: Gathered) -> None: ...

    @Order.handles
    def found_by_tracking(order: Order, tracking: str) -> None: ...

    @Order.handles(when="paid", if_not="defer")
    def ship(order: Order, order_id: str) -> None: ...

    @Order.handles
    def explode(order: Order, order_id: str) -> None:
        raise LookupError("no such shelf")

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    class Parcel(Saga, correlate_by=("region", "number")):
        region: str
        number: int

    @Parcel.starts
    def pack(parcel: Parcel, region: str, number: int) -> None: ...

    return SimpleNamespace(
        place=place, fall_behind=fall_behind, ask=ask, ship=ship, explode=explode, end=end, pack=pack, Order=Order
    )


def show(app: Celery, *words: str) -> str:
    """Return what the command prints."""
    result = run(app, "show", *words)
    assert result.exit_code == 0, result.output
    return str(result.output)


def facts(app: Celery, *words: str) -> dict[str, Any]:
    """Return the JSON object."""
    (line,) = show(app, *words, "--json").splitlines()
    return dict(json.loads(line))


def verdict(app: Celery, key: str = "1") -> str:
    """Return the verdict, which both forms have."""
    given = facts(app, "order", key)
    headline, _, _, sentence = show(app, "order", key).splitlines()[:4]
    assert headline.startswith(f"order {key} · {given['verdict']} · version ")
    assert _without_seconds(sentence) == _without_seconds(given["sentence"])
    return str(given["verdict"])


def _without_seconds(sentence: str) -> str:
    """Return a sentence without spans of seconds, which go on between two looks."""
    return re.sub(r"\b\d+ s\b", "… s", sentence)


def put(
    app: Celery,
    pending: Any,
    *rows: Callable[[str], Outgoing],
    key: str = "1",
    data: str = "",
    schema_version: int = 1,
    saga: str = "order",
    **line: Any,
) -> list[str]:
    """Commit a change of an instance; return the ids of its rows, whose makers are given these."""
    backend = backend_of(app)
    answer = backend.sagas.find(by_key(key, (saga,)))
    assert answer.record is not None
    ids = [row_id(answer.new_id, number) for number in range(len(rows))]
    pending = pending(*ids) if callable(pending) else pending
    text = pending if isinstance(pending, str) else json.dumps(pending)
    change = Change((saga,), schema_version, data or answer.record.data, text)
    outgoing = tuple(make(id) for make, id in zip(rows, ids, strict=True))
    written = Effects(entry(answer.record, attempt=answer.new_id, **line), outgoing)
    backend.sagas.update(answer.record, change, written)
    return ids


def timeout(app: Celery, at: int) -> tuple[Callable[[str], Any], Callable[[str], Outgoing]]:
    """Return a pending map with a timeout, and its row; both are given the row's id."""
    noted = {"id": "of the timeout", "step": "order.remind", "at": at}
    return (
        lambda id: {"format": 1, "timeouts": {"delivery": {**noted, "row": id}}},
        lambda id: Outgoing(id, "scheduled", "of the timeout", "order.remind", "{}", at),
    )


def now_of(app: Celery) -> int:
    """Return the store's time."""
    return backend_of(app).outbox.time()


class TestEachStore:
    """On every store."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_what_it_waits_for(self, app: Celery, shop: Any) -> None:
        shop.place("1")
        shop.ask("1")
        shop.ship("1")
        output, given = show(app, "order", "1"), facts(app, "order", "1")
        record = found(backend_of(app), by_key("1", ("order",)))
        lines = [" ".join(line.split()) for line in output.splitlines()]
        assert lines[0] == f"order 1 · deferred · version 3 · {record.id} · schema 1 · {len(record.data)} bytes"
        assert re.fullmatch(r"created .* UTC by order.place; changed \d+ s ago by order.ship", lines[1])
        assert lines[3].endswith(" until it is in another status: for order.ship. It is 'placed' now.")
        assert lines[4] == "→ celery -A proj sagas describe order shows in which statuses its steps run"
        waits = lines[lines.index("Waits for") + 1 :]
        assert waits[0].startswith("timeout delivery due ")
        assert waits[0].endswith("(in 1 h) → order.remind")
        assert waits[1].startswith(f"request {charge.name} until ")
        assert waits[1].endswith("(in 2 h) → order.charged | order.not_charged")
        assert waits[2] == "request 2 members no deadline → order.all_charged 0 answered, 0 failed"
        assert waits[3].startswith("deferred order.ship since ")
        assert "Dead letters: none" in lines
        assert given["waits_for"]["requests"][1] | {"id": "", "sent_row": ""} == {
            **{"id": "", "task": "celery_sagas.gather", "then": "order.all_charged", "otherwise": None, "until": None},
            **{"row": None, "sent_at": None, "sent_row": "", "members": 2, "at_least": 2, "answered": 0, "failed": 0},
        }
        assert [each["step"] for each in given["waits_for"]["deferred"]] == ["order.ship"]
        assert (given["version"], given["size"], given["changed_at"]) == (3, len(record.data), record.updated_at)

    def test_timeout_that_does_not_come(self, app: Celery, shop: Any) -> None:
        """Where its row is says why."""
        shop.place("1")
        pending, row = timeout(app, now_of(app) - HOUR)
        (id,) = put(app, pending, row)
        outbox = backend_of(app).outbox
        assert verdict(app) == "overdue"
        assert "was never published: no relay that knows order.remind has taken it." in show(app, "order", "1")
        assert [each["id"] for each in facts(app, "order", "1")["outbox"]] == [id]
        assert [each.id for each in outbox.claim_due("token", 9, MINUTE)] == [id]
        outbox.fail("token", id, "no route", 0)
        assert verdict(app) == "overdue"
        assert "1 attempt has failed, the last one with: no route." in show(app, "order", "1")
        assert [each.id for each in outbox.claim_due("token", 9, MINUTE)] == [id]
        outbox.confirm("token", [id], HOUR)
        assert verdict(app) == "overdue"
        output = show(app, "order", "1")
        assert re.search(r"It was published \d+ s ago and has not been handled: it is in a queue", output)
        assert re.search(r" → order.remind  published \d+ s ago\n", output)
        record = found(backend_of(app), by_key("1", ("order",)))
        gone = Change(("order",), 1, record.data, record.pending, cancelled=(id,))
        backend_of(app).sagas.update(record, gone, Effects(entry(record)))
        assert verdict(app) == "overdue"
        assert "the outbox does not have it any more" in show(app, "order", "1")
        assert " → order.remind  row gone" in show(app, "order", "1")

    def test_timeout_that_waits_in_a_queue(self, app: Celery, shop: Any, worker: Worker) -> None:
        shop.place("1")
        shop.fall_behind.delay("1")
        worker.one()
        assert verdict(app) == "overdue"
        assert "and has not been handled: it is in a queue, or the broker has lost it." in show(app, "order", "1")
        worker.run()
        assert verdict(app) == "idle"

    def test_message_that_is_not_published(self, app: Celery, shop: Any) -> None:
        """That an instance has sent it is known by the journal."""
        shop.place("1")
        sent = json.dumps({"sent": [{"task": "shop.charge", "id": "m"}]})
        record = found(backend_of(app), by_key("1", ("order",)))
        answer = backend_of(app).sagas.find(by_key("1", ("order",)))
        (id, line) = row_id(answer.new_id, 0), entry(record, attempt=answer.new_id)._replace(detail=sent)
        backend_of(app).sagas.update(
            record,
            Change(("order",), 1, record.data, "{}"),
            Effects(line, (Outgoing(id, "sent", "m", "shop.charge", "{}", 0),), "owner", MINUTE),
        )
        assert verdict(app) == "idle"
        backend_of(app).outbox.fail("owner", id, "no route", HOUR)
        assert verdict(app) == "unsent"
        assert "A message to shop.charge cannot be published: 1 attempt has failed" in show(app, "order", "1")

    def test_message_that_has_failed(self, app: Celery, shop: Any, worker: Worker) -> None:
        shop.place("1")
        shop.explode.delay("1")
        worker.run()
        assert verdict(app) == "failing"
        (kept,) = backend_of(app).dead.list(9)
        output, given = show(app, "order", "1"), facts(app, "order", "1")
        assert f"→ celery -A proj sagas dead show {kept.id}" in output
        assert given["dead_letters"] == [
            {"id": kept.id, "task": "order.explode", "message_id": kept.message_id, "error": "LookupError", "at": kept.at}
        ]
        assert "no such shelf" not in output + json.dumps(given)
        assert run(app, "dead", "discard", *WHY, kept.id).exit_code == 0
        assert verdict(app) == "idle"

    def test_names_of_an_instance(self, app: Celery, shop: Any) -> None:
        shop.place("1", "Bergen", "1Z")
        shop.place("2")
        shop.place("3")
        shop.pack("eu", 42)
        given = facts(app, "order", "1")
        for words in (["--id", given["id"]], ["--by", "tracking=1Z"], ["--by", "city=Bergen"], ["--by", "order_id=1"]):
            assert facts(app, "order", *words)["id"] == given["id"]
        for key in ('["eu","42"]', '["eu", 42]'):
            assert facts(app, "parcel", key)["key"] == '["eu","42"]'
        several = run(app, "show", "order", "--by", "city=Oslo")
        assert several.exit_code == 1
        assert several.output == "Error: several instances of order have city=Oslo; name one: 3, 2\n"

    def test_instance_that_has_completed(self, app: Celery, shop: Any) -> None:
        shop.place("1")
        id = facts(app, "order", "1")["id"]
        shop.end("1")
        result = run(app, "show", "order", "1")
        assert result.exit_code == 1
        assert re.match(r"Error: there is no order 1 now; one completed \d+ s ago, at .* UTC, with order.end. ", result.output)
        assert result.output.endswith(" Show what it handled: celery -A proj sagas timeline order 1\n")
        assert run(app, "show", "order", "--id", id).output == f"Error: there is no order with the id {id}\n"

    def test_hostile_text_stays_in_its_line(self, app: Celery, shop: Any) -> None:
        """In each place that has stored text."""
        key = f"k{HOSTILE}"
        shop.place(key, "Oslo", f"t{HOSTILE}", {HOSTILE: [HOSTILE]})
        names = {"id": HOSTILE, "step": HOSTILE, "at": now_of(app) - HOUR}
        requests = {HOSTILE: {"task": HOSTILE, "then": HOSTILE, "otherwise": HOSTILE, "at": now_of(app) + HOUR, "row": HOSTILE}}
        deferred = [{"id": HOSTILE, "step": HOSTILE, "since": 1, "message_id": HOSTILE, "payload": HOSTILE}]
        (id,) = put(
            app,
            lambda id: {
                **{"format": 2, "timeouts": {HOSTILE: {**names, "row": id}}, "requests": requests, "deferred": deferred},
                **{"undoing": {"left": [], "then": [HOSTILE, [], {}, False, {}], "retry": [1, 1, 1, 1], "within": 1}},
            },
            lambda id: Outgoing(id, "scheduled", HOSTILE, HOSTILE, "{}", 1),
            key=key,
            step=HOSTILE,
        )
        backend_of(app).outbox.claim_due("token", 9, MINUTE)
        backend_of(app).outbox.fail("token", id, HOSTILE, MINUTE)
        record = found(backend_of(app), by_key(key, ("order",)))
        letter = dead_letter(id=f"letter{HOSTILE}")._replace(task=HOSTILE, error=HOSTILE)
        backend_of(app).dead.add(letter)
        failed = entry(record, step=HOSTILE, outcome="failed")._replace(detail=json.dumps({"dead_letter": letter.id}))
        for effects in (None, Effects(failed)):
            if effects:
                backend_of(app).sagas.record(effects)
            output = show(app, "order", key, "--all")
            assert all(map(is_safe, output.splitlines()))
            assert output.count(r"\x1b[2J\n\r\u202e\u2028x") >= 12
            assert all(map(is_safe, show(app, "order", key, "--json").splitlines()))
        assert facts(app, "order", key)["verdict"] == "failing"
        for words in (
            [HOSTILE],
            ["--id", HOSTILE],
            ["--by", f"city={HOSTILE}"],
            ["--by", f"{HOSTILE}=1"],
            ["--by", f"tracking={HOSTILE}"],
        ):
            assert all(map(is_safe, run(app, "show", "order", *words).output.splitlines()))
        assert all(map(is_safe, run(app, "show", HOSTILE, "1").output.splitlines()))

    def test_long_sections_are_bounded(self, app: Celery, shop: Any) -> None:
        many = {f"field {number}": number for number in range(60)}
        shop.place("1", details="x" * 900_000)
        record = found(backend_of(app), by_key("1", ("order",)))
        at, data = now_of(app) - HOUR, json.dumps({**json.loads(record.data), **many})
        noted = {
            f"n{n:03}": {"id": f"t{n}", "row": f"{record.id}-{n:05}", "step": "order.remind", "at": at + n} for n in range(1_000)
        }
        put(
            app,
            {"format": 1, "timeouts": noted},
            *[lambda id: Outgoing(id, "scheduled", "m", "order.remind", "{}", at)] * 600,
            data=data,
        )
        output = show(app, "order", "1")
        lines = output.splitlines()
        assert len(output) < 10_000
        assert len(lines) < 90
        assert [line.split()[1] for line in lines if line.startswith("  timeout")] == [f"n00{n}" for n in range(10)]
        assert "  … 990 more; --all shows them" in lines
        assert "  … 26 more; --all shows them" in lines
        assert f"{'x' * 100}" in output
        assert "… (900,002 characters)" in output
        everything = show(app, "order", "1", "--all")
        assert everything.count("\n  timeout") == 1_000
        assert "x" * 900_000 in everything
        assert len(facts(app, "order", "1")["waits_for"]["timeouts"]) == 1_000


def test_damaged_record(new_app: NewApp, shop: Any, redis_url: str) -> None:
    """What the journal knows is shown."""
    app = new_app(saga_prefix=unique())
    app.conf.saga_backend = redis_url
    runtime_of(app).prepare(processes=1)
    shop.place("1")
    record = found(backend_of(app), by_key("1", ("order",)))
    with redis.Redis.from_url(redis_url) as server:
        (stored_under,) = server.keys(f"*{app.conf.saga_prefix}*:instances:order")
        server.hset(stored_under, record.id, b"nonsense")
    output, given = show(app, "order", "1"), facts(app, "order", "1")
    assert output.startswith(f"order 1 · unreadable · {record.id}\n\nIt cannot be read: the field ")
    assert "\n  → celery -A proj sagas timeline order 1    shows which messages it has handled\n" in output
    assert "State: it cannot be shown" in output
    assert (given["verdict"], given["id"], given["waits_for"], given["state"], given["version"]) == (
        *("unreadable", record.id, None, None, None),
    )
    assert show(app, "order", "--id", record.id).startswith(f"order - · unreadable · {record.id}\n")


@pytest.mark.parametrize(
    ("pending", "data", "schema_version", "expected", "shown"),
    [
        ({"format": 99}, "", 1, "newer", "it has pending map format 99, and this code knows 3"),
        ({}, "", 7, "newer", "it has schema version 7, and this code knows 1"),
        ("{", "", 1, "unreadable", "EOF while parsing"),
        ("[]", "", 1, "unreadable", "the pending map is not of its form"),
        ({"format": 1, "timeouts": {"a": {"id": "a", "row": "r", "step": "s", "at": "x"}}}, "", 1, "unreadable", "pending map"),
        (
            {"format": 1, "timeouts": {"a": {"id": "a", "row": "r", "step": "s", "at": 10**20}}},
            "",
            1,
            "unreadable",
            "pending map",
        ),
        ({"format": 1, "requests": {"a": {"task": 1, "then": "s"}}}, "", 1, "unreadable", "the pending map is not of its form"),
        ({}, "swordfish", 1, "unreadable", "it is no JSON"),
        ({}, '["swordfish"]', 1, "unreadable", "it is no JSON object"),
        ({}, '{"city": "Oslo", "pin": ["swordfish"]}', 1, "unreadable", "order_id: missing"),
        ({}, '{"order_id": "1", "details": ' + "[" * 900 + "]" * 900 + "}", 1, "unreadable", "it is no JSON"),
    ],
)
def test_instance_that_cannot_be_read(
    app: Celery, shop: Any, pending: Any, data: str, schema_version: int, expected: str, shown: str
) -> None:
    shop.place("1")
    put(app, pending, data=data, schema_version=schema_version)
    assert verdict(app) == expected
    output = show(app, "order", "1", "--all")
    assert shown in output
    assert "swordfish" not in output + show(app, "order", "1", "--json")


def test_state_whose_upgrade_raises(app: Celery, definitions: None) -> None:
    class Oops(Exception):
        """None that the library expects."""

    class Order(Saga, correlate_by="order_id", schema_version=2):
        order_id: str

        @classmethod
        def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
            raise Oops("swordfish")

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    place("1")
    put(app, {})
    assert "It cannot be read: its code raised Oops." in show(app, "order", "1")
    assert 'order_id  "1"' in show(app, "order", "1")


def test_hidden_values_are_in_no_problem(app: Celery, definitions: None) -> None:
    """The texts of a validation may have them: those of validators of the user's, and of unions."""

    class Cat(BaseModel):
        kind: Literal["cat"]

    class Dog(BaseModel):
        kind: Literal["dog"]

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        pin: str = Field(default="1", repr=False)
        pet: Cat | Dog | None = Field(default=None, discriminator="kind", repr=False)
        password: Any = None

        @field_validator("pin", "password")
        @classmethod
        def check(cls, value: Any) -> Any:
            if value and "SWORDFISH" in value:
                raise ValueError(f"{value} is not allowed")
            return value

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    place("1")
    state = {"order_id": "1", "pin": "SWORDFISH", "pet": {"kind": "SWORDFISH"}, "password": "SWORDFISH"}
    put(app, {}, data=json.dumps(state))
    assert verdict(app) == "unreadable"
    for words in ((), ("--all",), ("--json",)):
        assert "SWORDFISH" not in show(app, "order", "1", *words)
    assert "It cannot be read: pin: value error; pet: union tag invalid; password: value error." in show(app, "order", "1")


def test_hidden_values(app: Celery, shop: Any) -> None:
    details = {"password": "swordfish", "parts": [{"cardNumber": "swordfish", "sku": "a"}], "mine": "b"}
    shop.place("1", details=details)
    output, given = show(app, "order", "1", "--all"), facts(app, "order", "1")
    assert "swordfish" not in output + json.dumps(given)
    assert "  pin       •••\n" in output
    assert given["state"]["details"] == {"password": "•••", "parts": [{"cardNumber": "•••", "sku": "a"}], "mine": "b"}
    app.conf.saga_hidden = ["mine"]
    assert facts(app, "order", "1")["state"]["details"] == {**details, "mine": "•••"}
    assert facts(app, "order", "1")["state"]["pin"] == "•••"


def test_dead_letters_that_the_journal_does_not_know(app: Celery, shop: Any) -> None:
    """Of a timeout, and of a request whose task no worker knows."""
    shop.place("1")
    shop.ask("1")
    request = next(iter(found(backend_of(app), by_key("1", ("order",))).pending.split('"requests":{"')[1:]))[:36]
    letter = dead_letter(dead_letter_id_of(charge.name, request))
    backend_of(app).dead.add(letter)
    assert [each["id"] for each in facts(app, "order", "1")["dead_letters"]] == [letter.id]
    pending, row = timeout(app, now_of(app) - MINUTE)
    put(app, pending, row)
    assert facts(app, "order", "1")["dead_letters"] == []
    letter = dead_letter(dead_letter_id_of("order.remind", "of the timeout"))
    backend_of(app).dead.add(letter)
    assert [each["id"] for each in facts(app, "order", "1")["dead_letters"]] == [letter.id]


def test_page_tells_each_name_of_the_object(app: Celery, shop: Any) -> None:
    shop.place("1")
    shop.ask("1")
    shop.ship("1")
    page = (DOCS / "operating.md").read_text().partition("`--json` prints")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", page, flags=re.MULTILINE)
    told = {name for names, _ in rows for name in re.findall(r"`([\w.]+)`", names)}
    given = facts(app, "order", "1")
    names = given.keys() - {"waits_for"} | {f"waits_for.{name}" for name in given["waits_for"]}
    assert told == names
    parts = dict(rows)
    for name, part in {
        "`waits_for.timeouts`": given["waits_for"]["timeouts"][0],
        "`waits_for.requests`": given["waits_for"]["requests"][0],
        "`waits_for.deferred`, `waits_for.undo`": given["waits_for"]["deferred"][0],
        "`outbox`": given["outbox"][0],
        "`goes_on_with`": given["goes_on_with"][0],
    }.items():
        assert {each for each in part if f"`{each}`" not in parts[name]} == set()


def test_lock(app: Celery, shop: Any) -> None:
    shop.place("1")
    backend_of(app).sagas.lock(found(backend_of(app), by_key("1", ("order",))), "somebody", HOUR)
    assert verdict(app) == "locked"
    assert "\nLocked\n" in show(app, "order", "1")
    assert facts(app, "order", "1")["locked"]


def test_compensation(app: Celery, shop: Any) -> None:
    shop.place("1")
    undoing = {"left": [["r", None]], "then": ["order.undone", [], {}, False, {}], "retry": [1, 1, 1, 1], "within": 1}
    requests = {"r": {"task": "shop.charge", "then": "order.charged", "is_undone": True}}
    put(app, {"format": 2, "requests": requests, "undoing": undoing})
    assert "undo     1 left" in show(app, "order", "1")
    assert facts(app, "order", "1")["waits_for"]["undo"] == {"left": 1, "then": "order.undone"}


def test_request_that_is_sent_again(app: Celery, shop: Any) -> None:
    """After a pause."""
    shop.place("1")
    at = now_of(app) + 3 * HOUR // 2
    requests = {"r": {"task": "shop.charge", "then": "order.charged", "sent_at": at}}
    put(
        app,
        lambda id: {"format": 2, "requests": {"r": {**requests["r"], "sent_row": id}}},
        lambda id: Outgoing(id, "sent", "r", "shop.charge", "{}", at),
    )
    assert verdict(app) == "waiting"
    output = show(app, "order", "1")
    assert "The request shop.charge is due in 1 h, at " in output
    assert "  request  shop.charge  no deadline  → order.charged  is sent in 1 h\nOutbox: nothing is due\n" in output


def test_gather_that_cannot_be_read(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers may be kept in a backend that is away."""

    def away(*_: object) -> None:
        raise StoreUnavailable("redis", "it is away")

    shop.place("1")
    shop.ask("1")
    monkeypatch.setattr(Runtime, "read_outcomes", away)
    assert facts(app, "order", "1")["waits_for"]["requests"][1]["answered"] is None


def test_steps_that_it_goes_on_with(app: Celery, shop: Any) -> None:
    shop.place("1")
    output = show(app, "order", "1")
    assert " · order.found_by_tracking (by tracking) · " in output
    assert "order.ship" not in output
    put(app, {}, data='{"order_id": "1", "status": "paid"}')
    assert " · order.ship · " in show(app, "order", "1")
    by = {each["step"]: each["by"] for each in facts(app, "order", "1")["goes_on_with"]}
    assert by["order.found_by_tracking"] == "tracking from argument tracking"


def test_earlier_instance_with_the_key(app: Celery, shop: Any) -> None:
    """Nothing of it is shown."""
    shop.place("1")
    shop.end("1")
    shop.place("1")
    given = facts(app, "order", "1")
    assert (given["created_by"], given["changed_by"], given["version"]) == ("order.place", "order.place", 1)


@pytest.mark.parametrize("times", [1, 9])
def test_instance_that_changes_meanwhile(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """A timeout that was just handled is not overdue; an instance that changes each time is shown all the same."""
    shop.place("1")
    pending, row = timeout(app, now_of(app) - HOUR)
    (id,) = put(app, pending, row)
    read, left = MemoryOutbox.read, [{} if number == 0 else pending(id) for number in range(times)]

    def read_late(outbox: MemoryOutbox, ids: Any) -> Any:
        if left:
            put(app, left.pop())
        return read(outbox, ids)

    monkeypatch.setattr(MemoryOutbox, "read", read_late)
    given = facts(app, "order", "1")
    assert (given["verdict"], given["version"]) == (("idle", 3) if times == 1 else ("overdue", 4))


def test_instance_that_ends_meanwhile(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.place("1")
    shop.ask("1")
    read = MemoryOutbox.read

    def read_late(outbox: MemoryOutbox, ids: Any) -> Any:
        shop.end("1")
        return read(outbox, ids)

    monkeypatch.setattr(MemoryOutbox, "read", read_late)
    assert "there is no order 1 now; one completed" in run(app, "show", "order", "1").output


def test_backend_that_is_away(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("memory", "it is away")

    monkeypatch.setattr(MemorySagaStore, "find", away)
    result = run(app, "show", "order", "1")
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert result.output.startswith("Error: The saga backend memory is unavailable")


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["show", "order", "o9999"], "there is no order o9999, and the journal knows none that has completed. "),
        (["timeline", "order", "o9999"], "the journal has nothing about order o9999: nothing came, or it was purged. "),
        (["graph", "order", "--of", "o9999"], "there is no order o9999, and the journal remembers none. "),
        (
            ["pause", "order", "o9999", *WHY],
            "There is no order with order_id='o9999': none was started, or none that the journal ",
        ),
        (["patch", "order", "o9999", "--set", "city=1", *WHY], "There is no order with order_id='o9999': none was started, or "),
        (["try", "order.end", "o9999"], "there is no order o9999, and the journal knows none that has completed. "),
    ],
)
def test_unknown_key_names_the_nearest(app: Celery, shop: Any, words: list[str], begins: str) -> None:
    for key in ("9999", "99\x1b99", "unlike"):
        shop.place(key)
    result = run(app, *words)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {begins}")
    assert result.output.endswith(". Did you mean 9999 or 99\\x1b99?\n")


def test_unknown_key_of_a_backend_that_lists_nothing(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.place("9999")
    monkeypatch.setattr(type(backend_of(app)), "has_instances", False)
    assert "Did you mean" not in run(app, "show", "order", "o9999").output


def test_key_whose_journal_was_purged_is_not_taken_for_another(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.place("9999")
    shop.place("9998")
    monkeypatch.setattr(MemoryJournal, "history", lambda *_: [])
    assert "Did you mean" not in run(app, "timeline", "order", "9999").output


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["orders", "1"], 1, "unknown saga orders; known: order, parcel. Did you mean order?"),
        (["Ordr", "1"], 1, "Did you mean order?"),
        (["zebra", "1"], 1, "unknown saga zebra; known: order, parcel\n"),
        (["order", "7"], 1, "Error: there is no order 7, and the journal knows none that has completed\n"),
        (["order", "--id", "7"], 1, "Error: there is no order with the id 7\n"),
        (["order", "--by", "tracking=7"], 1, "Error: there is no order with the tracking 7\n"),
        (["order", "--by", "city=Bergen"], 1, "Error: no instance of order has city=Bergen\n"),
        (
            ["parcel", "7"],
            1,
            """Error: 7 is no key of parcel, which has 2 parts: region, number. Give each as a word, such as eu 42, or""",
        ),
        (["parcel", '["eu"]'], 1, 'Error: ["eu"] is no key of parcel, which has 2 parts: region, number.'),
        (["parcel", '["eu",7]'], 1, 'Error: there is no parcel ["eu","7"], and'),
        (["order"], 2, "name one instance: by its KEY, by --id, or by --by FIELD=VALUE"),
        (["order", "1", "--id", "1"], 2, "name one instance"),
        (["order", "--by", "city"], 2, "--by takes FIELD=VALUE, such as --by status=paid"),
        (["order", "--by", "name=1"], 2, "order is found by tracking, city, order_id, and not by name"),
        (["parcel", "--by", "region=1"], 2, "parcel is found by no field, and not by region"),
        (["order", ""], 2, "'' is no key: it is empty"),
        (["order", "--id", "x\udcff"], 2, "is no id: it contains U+0000 or half a surrogate pair"),
        (["order", "--by", "city="], 1, "city: '' is no value of it: it is empty"),
        (["order", "x" * 300], 2, "a key has at most 255"),
    ],
)
def test_wrong_arguments(app: Celery, shop: Any, words: list[str], status: int, text: str) -> None:
    result = run(app, "show", *words)
    assert (result.exit_code, "Traceback" in result.output) == (status, False)
    assert text in result.output
