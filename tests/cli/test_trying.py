"""``celery sagas try``."""

import json
from typing import Any

import pytest
from celery import Celery

from tests.apps import Worker, backend_of
from tests.cli.test_describe import run
from tests.cli.test_tables import is_safe
from tests.contents import contents_of
from tests.operate import shops

RAN = "Nothing was written or sent. The handler has run: what it does by itself, such as a request over HTTP, is done."
NOT_RAN = "Nothing was written or sent. The handler has not run."


@pytest.fixture
def shop(app: Celery) -> Any:
    """The order 42."""
    defined = shops.define()
    shops.send(app, "order.place", order_id="42", tracking="1Z")
    Worker(app).one()
    return defined


def test_what_would_come_of_it(app: Celery, shop: Any) -> None:
    before = contents_of(app)
    result = run(app, "try", "order.pay", "42", "--args", '{"receipt": "r-17"}')

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[:3] == ["order 42 · handled · version 2 · order.pay, as a message", "--- before", "+++ after"]
    assert {'-  "notes": []', '+    "r-17"', '+  "card": "•••",', "Would send"} <= set(lines)
    charge, ship = shops.charge.name, shops.ship.name
    assert f'  request  {charge}("42") | {ship}("42")  → order.charged | order.failed' in lines
    assert f'  event    {shops.Paid.__module__}.Paid({{"order_id": "42", "pin": "•••"}})' in lines
    assert any(line.startswith("  series   order.remind()") and " daily, due 2" in line for line in lines)
    assert lines[-2:] == ["Would wait no longer for: reminder", RAN]
    assert contents_of(app) == before


def test_hidden_field_that_would_change(app: Celery, shop: Any) -> None:
    shops.send(app, "order.pay", order_id="42", receipt="r-16")
    Worker(app).run()
    result = run(app, "try", "order.pay", "--by", "tracking=1Z", "--args", '{"receipt": "r-17"}')
    assert "Would change, and is hidden: card" in result.output.splitlines()


def test_new_instance(app: Celery, shop: Any) -> None:
    lines = run(app, "try", "order.place", "--args", '["43"]').output.splitlines()
    assert lines[0] == "order 43 · started · version 1 · order.place, as a message"
    assert '+  "order_id": "43",' in lines
    assert any(line.startswith("  timeout  order.remind()") and " reminder, due 2" in line for line in lines)


def test_key_among_the_arguments(app: Celery, shop: Any) -> None:
    lines = run(app, "try", "order.finish", "--args", '{"order_id": "42"}').output.splitlines()
    assert lines[0] == "order 42 · completed · version 2 · order.finish, as a message"


def test_timeout(app: Celery, shop: Any) -> None:
    for words in ([], ["--for", "reminder"]):
        lines = run(app, "try", "order.remind", "42", *words).output.splitlines()
        assert lines[0] == "order 42 · handled · version 2 · order.remind, as the timeout reminder"


@pytest.mark.parametrize(
    ("step", "arguments", "headline", "reason"),
    [
        ("send_off", "42", "order 42 · deferred · version 2", "The instance is in another status than the step is for."),
        ("track", "43", "order 43 · ignored", "There is no such instance."),
        ("wait", "43", "order · deferred", "There is no such instance."),
        ("place", "42", "order 42 · ignored", "The instance exists already."),
    ],
)
def test_handler_that_would_not_run(app: Celery, shop: Any, step: str, arguments: str, headline: str, reason: str) -> None:
    given = [arguments, "1Z"] if step == "track" else [arguments]
    result = run(app, "try", f"order.{step}", "--args", json.dumps(given))
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [f"{headline} · order.{step}, as a message", reason, NOT_RAN]


def test_paused(app: Celery, shop: Any) -> None:
    run(app, "pause", "order", "42", "--reason", "INC-1")
    lines = run(app, "try", "order.remind", "42").output.splitlines()
    assert lines == [
        "order 42 · deferred · version 3 · order.remind, as the timeout reminder",
        "The instance is paused: the message would wait with it until it is resumed.",
        NOT_RAN,
    ]


def test_handler_that_fails(app: Celery, shop: Any) -> None:
    result = run(app, "try", "order.broken", "42")

    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[:2] == ["order 42 · failed · order.broken, as a message", "Traceback (most recent call last):"]
    assert "in broken" in lines[2]
    assert lines[4:] == [
        r"KeyError: '\x1b[2Jno such thing'",
        "Would send",
        f'  direct  {shops.mail.name}("by itself")',
        RAN,
    ]
    assert all(map(is_safe, lines))


def test_as_json(app: Celery, shop: Any) -> None:
    known = json.loads(run(app, "try", "order.pay", "42", "--args", '{"receipt": "r-17"}', "--json").output)

    messages = known.pop("messages")
    assert known == {
        "saga": "order",
        "step": "order.pay",
        "arrived_as": "a message",
        "outcome": "handled",
        "ran": True,
        "reason": "",
        "key": "42",
        "id": shop.Order.find("42").saga.id,
        "version": 2,
        "before": {"order_id": "42", "city": "Oslo", "tracking": "1Z", "status": "placed", "card": None, "notes": []},
        "after": {"order_id": "42", "city": "Oslo", "tracking": "1Z", "status": "placed", "card": "•••", "notes": ["r-17"]},
        "changed": ["card", "notes"],
        "ended": ["reminder"],
        "error": None,
    }
    assert {name: value for name, value in messages[0].items() if name != "id"} == {
        "kind": "request",
        "calls": [{"task": each.name, "args": ["42"], "kwargs": {}} for each in (shops.charge, shops.ship)],
        "due_at": 0,
        "name": "",
        "then": "order.charged",
        "otherwise": "order.failed",
        "until": 0,
    }


def test_error_as_json(app: Celery, shop: Any) -> None:
    result = run(app, "try", "order.broken", "42", "--json")
    known = json.loads(result.output)
    assert (result.exit_code, known["outcome"], known["error"]["error"]) == (1, None, "KeyError")
    assert known["error"]["traceback"].endswith("KeyError: '\\x1b[2Jno such thing'")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["order.pya", "42"], "unknown step order.pya; celery sagas describe shows the steps. Did you mean order.pay?"),
        (["\x1b[2J"], "unknown step"),
        (["order.(answered)", "42"], "unknown step order.(answered)"),
        (["store_all"], "store_all is an aggregator, and only steps of sagas are tried"),
        ([shops.charge.name], "tests.operate.shops.charge is a plain task, and only steps of sagas are tried"),
        (["order.pay", "43"], "there is no order 43, and the journal knows none that has completed"),
        (["order.remind"], "the arguments of order.remind lead to no instance: name it"),
        (["order.remind", "42", "--id", "x"], "name one instance: by its KEY, by --id, or by --by FIELD=VALUE"),
        (["order.remind", "--for", "reminder"], "--for is about what an instance waits for: name it"),
        (["order.remind", "42", "--for", "lost"], "order '42' does not wait for lost. It waits for reminder, "),
        (["order.pay", "42", "--args", "r-17"], "--args: r-17 is no JSON; a text needs quotes"),
        (["order.pay", "42", "--args", '"r-17"'], "--args takes an object, with the arguments by their names, or an array"),
        (["order.pay", "42"], "The message does not fit order.pay: receipt: Field required."),
        (["order.pay", "42", "--args", '["42", "r", 1]'], "it has 3 positional arguments, and 2 are known"),
        (["order.pay", "42", "--args", '["43", "r"]'], "order '42' is meant, and the arguments of order.pay name '43'"),
        (["order.insist", "--args", '["43"]'], "There is no order with order_id='43'"),
        (["order.book", "42"], "a step with transaction= is not tried: its handler writes rows in a transaction"),
    ],
)
def test_wrong_input(app: Celery, shop: Any, words: list[str], problem: str) -> None:
    before = contents_of(app)
    result = run(app, "try", *words)
    assert result.exit_code != 0
    assert problem in result.output.replace("\n", " ")
    assert all(map(is_safe, result.output.splitlines()))
    assert contents_of(app) == before


def test_newer_schema(app: Celery, shop: Any) -> None:
    backend: Any = backend_of(app)
    for record in [*backend._state.instances]:
        backend._state.instances.put(record._replace(schema_version=2), frozenset())
    result = run(app, "try", "order.pay", "42", "--args", '{"receipt": "r"}')
    assert (result.exit_code, "schema version 2" in result.output) == (1, True)


def test_help_says_what_is_really_done(app: Celery) -> None:
    text = " ".join(run(app, "try", "--help").output.split())
    assert "what the handler does by itself, such as a request over HTTP or rows in a database, it does" in text
