"""Instances with very many timeouts, with large states, and with hostile text in every field."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import click
import pytest
from celery import Celery

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.cli import sagas
from celery_sagas.core.pending import TIMEOUTS
from celery_sagas.errors import InvalidState
from celery_sagas.operate import Operator
from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.stores.records import Effects
from celery_sagas.testing.samples import HOUR, MINUTE, audited, by_key, dead_letter, entry, found, outgoing
from tests.apps import backend_of
from tests.cli.test_describe import run
from tests.cli.test_tables import is_safe
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

WHY = ("--reason", "INC-881", "--actor", "ann")
HISTORY = ("messages", "values")
#: The longest output, and line, that fits a person who looks for one instance.
LINES, CHARACTERS = 260, 20_000


@pytest.fixture
def app(stored_app: Celery) -> Celery:
    """An app on each store."""
    return stored_app


@pytest.fixture
def order(definitions: None) -> Any:
    """Orders that may have many timeouts, and large states."""

    class Order(Saga, correlate_by="order_id", also_by="tracking", search_by="city", status_by="status", history=HISTORY):
        order_id: str
        tracking: str | None = None
        city: str = "Oslo"
        status: Literal["placed", "lost\x1b[2J\n"] = "placed"
        note: str = ""
        lines: list[Any] = []

    @Order.starts
    def place(order: Order, order_id: str, timeouts: int = 0, after: float = 3_600, note: str = "", lines: int = 0) -> None:
        order.note, order.status = note, "lost\x1b[2J\n" if "\n" in note else "placed"
        order.city, order.tracking = (note[:250] or "Oslo"), (note[:250] or None)
        order.lines = [{"sku": f"sku-{number}", "count": number} for number in range(lines)]
        for number in range(timeouts):
            order.schedule(remind, after=after + number, name=f"timeout-{number}")

    @Order.handles
    def add(order: Order, order_id: str) -> None:
        order.schedule(remind, after=3_600, name="one more")

    @Order.handles
    def count_all(order: Order, order_id: str) -> None:
        order.lines = [{**each, "count": each["count"] + 1} for each in order.lines]
        for name in [f"timeout-{number}" for number in range(TIMEOUTS)]:
            order.unschedule(name)
        for _ in range(200):
            order.send(add.s(order.note[:3_000]))

    @Order.handles
    def remind(order: Order) -> None: ...

    Order.place, Order.add = place, add  # type: ignore[attr-defined]
    return Order


def done(app: Celery, *words: str, status: int = 0) -> str:
    """Return what a command prints, which is bounded unless it is for a program."""
    result = run(app, *words)
    assert result.exit_code == status, result.output
    lines = result.output.splitlines()
    assert "--json" in words or (len(lines) <= LINES and len(result.output) <= CHARACTERS), (words, result.output[:2_000])
    return str(result.output)


class TestTimeouts:
    def test_one_instance_with_very_many(self, app: Celery, order: Any) -> None:
        order.place("1", TIMEOUTS)
        outbox = backend_of(app).outbox
        with pytest.raises(InvalidState, match="it has 1,001 timeouts, and 1,000 are allowed"):
            order.add("1")
        assert "… 990 more; --all shows them" in done(app, "show", "order", "1")
        assert len(json.loads(done(app, "show", "order", "1", "--json"))["waits_for"]["timeouts"]) == TIMEOUTS
        assert "timeout → order.remind (1,000 times)" in done(app, "timeline", "order", "1")
        assert done(app, "list", "order").count("\n") == 2
        assert "Nothing is stuck." in done(app, "stuck")
        done(app, "fire", "order", "1", "timeout-700", *WHY)
        assert [row.due_at > outbox.time() for row in outbox.claim_due("relay", 9, MINUTE)] == [True]
        done(app, "skip", "order", "1", "timeout-8", *WHY)
        assert outbox.count() == TIMEOUTS - 1
        assert "It waits for timeout-0, timeout-1" in done(app, "skip", "order", "1", "timeout-8", *WHY, status=1)
        tried = done(app, "try", "order.count_all", "1")
        assert "  … 180 more; --json has them" in tried
        assert " and 989 more\n" in tried
        for verb in ("pause", "resume"):
            done(app, verb, "order", "1", *WHY)
        assert outbox.count() == TIMEOUTS - 1
        done(app, "terminate", "order", "1", "--yes", *WHY)
        assert outbox.count() == 0

    def test_many_instances_with_very_many(self, app: Celery, order: Any) -> None:
        """Each is chosen, fired and named once, however many rows are due before another's."""
        for number in range(10):
            order.place(str(number), TIMEOUTS, 3_600 - TIMEOUTS * number)  # the last ones are due
        assert done(app, "list", "order").count("1000 timeouts") + done(app, "list", "order").count("too much to show") == 10
        assert [json.loads(line)["instances"] for line in done(app, "stats", "--json").splitlines()[:1]] == [10]
        assert "10 done, 0 with nothing to be done, 0 failed." in done(
            app, "each", "fire", "order", "timeout-7", "--expect", "10", *WHY
        )
        assert sorted(each.key for each in backend_of(app).audit.recent(99).entries) == sorted(map(str, range(10)))
        outbox = backend_of(app).outbox
        claimed = outbox.claim_due("relay", 5_000, MINUTE)
        outbox.confirm("relay", [row.id for row in claimed], HOUR)  # of most it was published, and of some never
        words = ("stuck", "--late", "0s", "--json")
        result = run(app, *words)
        late = [json.loads(line) for line in result.stdout.splitlines()]
        assert (result.exit_code, sorted(each["key"] for each in late)) == (3, list("0123456789"))
        result = run(app, *words, "--limit", "2")
        assert {each["key"] for each in map(json.loads, result.stdout.splitlines())} <= set("0123456789")
        assert "There may be more: of each kind 2 of a saga are shown" in result.stderr
        assert "10 done" in done(app, "each", "terminate", "order", "--expect", "10", *WHY)
        assert backend_of(app).outbox.count() == 0


def test_large_state(app: Celery, order: Any) -> None:
    """No command prints it as a whole, or keeps it where it is read again."""
    order.place("1", 0, 0, "x" * 350_000, 17_000)
    assert len(found(backend_of(app), by_key("1", ("order",))).data) > 900_000
    assert "… (350,002 characters)" in done(app, "show", "order", "1")
    where, timeline = 'lines.16999.sku == "sku-16999"', ["timeline", "order", "1", "--values"]
    for words in (["list", "order"], ["list", "order", "--where", where], timeline):
        assert done(app, *words).count("\n") == 2
    changed = done(app, "try", "order.count_all", "1")
    assert '-      "count": 0\n+      "count": 1\n' in changed
    assert "… more has changed" in changed
    for value, shown in (
        ('lines.16999.sku="b"', '+      "sku": "b",\n'),
        (f'note="{"y" * 350_000}"', "yyy… (350,014 characters)\n"),
        (f"lines={json.dumps([{'sku': 'new', 'count': each} for each in range(10_000)])}", "… more has changed\n"),
        ("lines=[]", "more lines\n"),
    ):
        assert shown in done(app, "patch", "order", "1", "--set", value, *WHY)
    for verb in ("pause", "resume"):
        done(app, "each", verb, "order", "--where", 'city > "x"', "--expect", "1", *WHY)
        done(app, verb, "order", "1", *WHY)
    done(app, "terminate", "order", "1", "--yes", *WHY)
    done(app, "audit")
    assert max(map(len, done(app, "audit", "--json").splitlines())) < 1_000


#: It clears the screen, forges a line, moves the cursor, turns the direction; and is long.
EVIL = "\x1b[2J\nFORGED\r\x07\x9b1m\x85\u2028\u202e\u2066\x7f\ufeff"
LONG = EVIL + "x" * 10_000
KEY, TEXT, ACTOR = LONG[:200], LONG[:2_000], LONG[:200]
HOSTILE_WHY = ("--reason", TEXT, "--actor", ACTOR)
#: Each command, on what has hostile text in every field; those that print none are given hostile names.
COMMANDS = {
    "activity": [[], ["--json"]],
    "aggregates discard": [["meters", EVIL], [EVIL, "--all"], ["meters", "--all", "--yes"]],
    "aggregates flush": [["meters", EVIL], [EVIL], ["meters", KEY]],
    "aggregates items": [["meters"], ["meters", "--json"], ["meters", EVIL], [EVIL]],
    "aggregates list": [[], ["meters"], ["meters", "--json"], [EVIL]],
    "aggregates unreadable": [["meters"], ["meters", "--json"], [EVIL]],
    "answer": [["order", KEY, EVIL, "--value", "1", *HOSTILE_WHY], ["order", KEY, EVIL, "--value", EVIL, *HOSTILE_WHY]],
    "audit": [[], ["--json"], ["order", KEY], ["order", EVIL, "--actor", EVIL]],
    "check": [
        [],
        ["order", "--json"],
        ["order", "--upgrade", *HOSTILE_WHY],
        ["order", "--rewrite", *HOSTILE_WHY],
        ["order", "--after", EVIL],
        [EVIL],
    ],
    "dead discard": [[EVIL, *HOSTILE_WHY], ["--task", EVIL, *HOSTILE_WHY]],
    "dead groups": [[], ["--json"]],
    "dead list": [[], ["--json"], ["--error", EVIL]],
    "dead retry": [[EVIL, *HOSTILE_WHY], ["--all", *HOSTILE_WHY]],
    "dead show": [["letter"], ["letter", "--reveal"], [EVIL]],
    "describe": [[], [EVIL]],
    "doctor": [[], ["--json"]],
    "each": [
        ["pause", "order", "--expect", "1", *HOSTILE_WHY],
        ["pause", "order", "--expect", "1", "--json", *HOSTILE_WHY],
        ["fire", "order", EVIL, "--expect", "1", *HOSTILE_WHY],
        ["pause", "order", "--by", f"city={EVIL}", *HOSTILE_WHY],
        ["pause", "order", "--where", EVIL, *HOSTILE_WHY],
    ],
    "export": [["order", KEY], ["order", EVIL]],
    "fire": [["order", KEY, EVIL, *HOSTILE_WHY]],
    "graph": [["order"], ["order", "--of", KEY], ["order", "--of", EVIL], [EVIL]],
    "held": [[], ["--json"]],
    "hold": [["order", *HOSTILE_WHY], [EVIL, *HOSTILE_WHY]],
    "list": [["order"], ["order", "--json"], ["order", "--by", f"city={EVIL}"], ["order", "--where", EVIL], [EVIL]],
    "metrics": [[], ["--textfile", f"missing/{EVIL}"], ["--listen", EVIL]],
    "migrate": [[], ["--json"]],
    "patch": [
        ["order", KEY, "--set", f"note={json.dumps(EVIL)}", *HOSTILE_WHY],
        ["order", KEY, "--set", f"{EVIL}=1", *HOSTILE_WHY],
        ["order", KEY, "--set", EVIL, *HOSTILE_WHY],
        ["order", KEY, "--unset", EVIL, *HOSTILE_WHY],
    ],
    "pause": [["order", KEY, *HOSTILE_WHY], ["order", EVIL, *HOSTILE_WHY], [EVIL, EVIL, *HOSTILE_WHY]],
    "release": [[EVIL, *HOSTILE_WHY], ["order", *HOSTILE_WHY]],
    "rename": [[], [EVIL]],
    "replay": [["order", KEY], ["order", EVIL], ["order", EVIL, "--json"]],
    "resume": [["order", KEY, *HOSTILE_WHY], ["order", EVIL, *HOSTILE_WHY]],
    "show": [["order", KEY], ["order", KEY, "--all"], ["order", KEY, "--json"], ["order", EVIL], ["order", "--by", f"{EVIL}=1"]],
    "skip": [["order", KEY, EVIL, *HOSTILE_WHY]],
    "stats": [[], ["--json"]],
    "stuck": [["--late", "0s", "--idle", "0s"], ["--late", "0s", "--json"]],
    "terminate": [["order", EVIL, *HOSTILE_WHY], ["order", KEY, *HOSTILE_WHY], ["order", KEY, "--yes", *HOSTILE_WHY]],
    "timeline": [
        ["order", KEY],
        ["order", KEY, "--all", "--json"],
        ["order", EVIL],
        ["order", KEY, "--values"],
        ["order", KEY, "--values", "--json"],
    ],
    "try": [["order.add", KEY], ["order.add", KEY, "--json"], ["order.add", "--args", EVIL], [EVIL]],
}
#: Those that show everything that is stored of one thing.
UNBOUNDED = {"dead show", "export", "replay"}


@pytest.fixture
def hostile(app: Celery, order: Any) -> None:
    """Hostile text in each field that has text."""

    @aggregator(name="meters", size=9, group_by=lambda item: str(item))
    def meters(batch: Batch[int]) -> None: ...

    backend = backend_of(app)
    order.place(KEY, note=LONG)
    rows = tuple(outgoing("scheduled", due_at=1)._replace(task=KEY, message_id=KEY) for _ in range(2))
    record = found(backend, by_key(KEY, ("order",)))
    line = entry(record, step=KEY, outcome="failed")._replace(detail=json.dumps({"dead_letter": "letter", "reason": TEXT}))
    backend.sagas.record(Effects(line, rows, audit=audited(line, action="pause", reason=TEXT)._replace(actor=ACTOR)))
    (row, *_) = backend.outbox.claim_due("relay", 9, MINUTE)
    backend.outbox.fail("relay", row.id, LONG[:1_000], HOUR)
    letter = dead_letter("letter", text=LONG)._replace(
        task="order.add", saga="order", key=KEY, error=KEY, payload=json.dumps(LONG)
    )
    backend.dead.add(letter)
    backend.dead.add(letter._replace(id=KEY, task=KEY, message_id=KEY, saga=KEY, traceback=LONG))
    items = (NewItem(KEY, json.dumps(LONG)), NewItem("2", json.dumps(LONG), is_unreadable=True))
    backend.aggregates.insert(Rules("meters", size=9), [Addition(KEY, items)])
    Operator(app, ACTOR).instance(order, KEY).pause(TEXT)
    Operator(app, ACTOR).hold("order", TEXT)


def test_every_command_is_tried_with_hostile_text() -> None:
    """Add a command to ``COMMANDS``, or say why it can print nothing that is stored."""
    assert set(leaves(sagas)) - {"relay", "schema", "web"} == set(COMMANDS)  # these print a log, what the code knows, a link


def leaves(group: click.Group, before: str = "") -> Iterator[str]:
    """Yield the names of the commands."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield before + name


def test_nothing_raw_reaches_the_terminal(app: Celery, hostile: None) -> None:
    """Whatever is stored, and whatever a command is given: it stays in its line, and nobody forges another one."""
    found = [
        (name, words, problem) for name, calls in COMMANDS.items() for words in calls if (problem := _problem(app, name, words))
    ]
    assert found == []


def _problem(app: Celery, name: str, words: list[str]) -> str:
    result = run(app, *name.split(), *words)
    if not (result.exception is None or isinstance(result.exception, SystemExit)):
        return f"it raised {result.exception!r}"
    if not all(map(is_safe, result.output.split("\n"))):  # not splitlines(): that takes controls for line ends
        return "raw text"
    if "\nFORGED" in result.output.partition("\nTraceback:\n")[0]:  # behind it are lines as they were
        return "a forged line"
    is_bounded = len(result.output) <= CHARACTERS or name in UNBOUNDED or {"--json", "--all", "--reveal"} & {*words}
    return "" if is_bounded else f"{len(result.output):,} characters"
