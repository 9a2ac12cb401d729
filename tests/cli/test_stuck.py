"""``celery sagas stuck`` and ``celery sagas stats``."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signature

from celery_sagas import Failure, Saga
from celery_sagas.core.deferred import Deferred
from celery_sagas.errors import StoreUnavailable, UnreadableState
from celery_sagas.operate.doctor.facts import Broker, Code, Relay, Worker, Workers
from celery_sagas.operate.explain import LATE_MS
from celery_sagas.operate.operator import Operator
from celery_sagas.stores.instances import PENDING
from celery_sagas.stores.memory.dead_letters import MemoryDeadLetters
from celery_sagas.stores.memory.outbox import MemoryOutbox
from celery_sagas.stores.records import Lookup, OutboxRow, Outgoing
from celery_sagas.testing.samples import HOUR, MINUTE, dead_letter, entry, send
from tests.apps import backend_of
from tests.cli.test_describe import run
from tests.cli.test_show import HOSTILE, put
from tests.cli.test_tables import is_safe
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]


@pytest.fixture
def shop(definitions: None) -> Any:
    """Two sagas; the first has timeouts."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str, after: float) -> None:
        order.schedule(remind, after=after, name="delivery")

    @Order.handles
    def remind(order: Order) -> None: ...

    class Parcel(Saga, correlate_by="number"):
        number: str

    @Parcel.starts
    def pack(parcel: Parcel, number: str) -> None: ...

    class Letter(Saga, correlate_by="number", max_idle=timedelta(hours=12)):
        number: str

    @Letter.starts
    def write(letter: Letter, number: str, until: list[float], asks: list[float | None]) -> None:
        for position, seconds in enumerate(until):
            letter.schedule(sent, after=seconds, name=f"{position}")
        for within in asks:
            letter.send(signature("post.stamp"), then=sent, otherwise=failed, within=within)

    @Letter.handles
    def sent(letter: Letter, answer: str = "") -> None: ...

    @Letter.handles
    def failed(letter: Letter, failure: Failure) -> None: ...

    return SimpleNamespace(place=place, pack=pack, write=write)


def stuck(app: Celery, *words: str, status: int = 3) -> list[list[str]]:
    """Return the words of each line that the command prints below its header."""
    result = run(app, "stuck", *words)
    assert result.exit_code == status, result.output
    return [line.split() for line in result.output.splitlines()[1:]]


def facts(app: Celery, command: str, *words: str) -> list[dict[str, Any]]:
    """Return the JSON objects that a command prints."""
    return [json.loads(line) for line in run(app, command, *words, "--json").output.splitlines() if line.startswith("{")]


def leave_alone(app: Celery, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass for the outbox, as far as a look at it shows."""
    outbox = backend_of(app).outbox
    now = outbox.time() + ms
    monkeypatch.setattr(type(outbox), "time", lambda self: now)


class TestEachStore:
    """On every store."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_nothing_is_stuck(self, app: Celery, shop: Any) -> None:
        shop.place("1", after=3600)
        result = run(app, "stuck")
        assert (result.exit_code, result.output) == (0, "Nothing is stuck.\n")
        assert facts(app, "stuck") == []

    def test_what_does_not_go_on(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        backend = backend_of(app)
        for number in range(1, 6):
            shop.place(str(number), after=7 * 24 * 3600)
        shop.pack("6")
        published, failing, *others = rows = [due_row(app, str(number)) for number in range(1, 5)]
        backend.outbox.confirm("relay", [published.id], HOUR)
        backend.outbox.fail("relay", failing.id, f"no such queue {HOSTILE}", MINUTE)
        backend.outbox.release("relay", [row.id for row in others])
        backend.dead.add(dead_letter()._replace(task="order.remind", saga="order", error="KeyError"))
        assert {row["verdict"] for row in facts(app, "stuck")} == {"failing", "overdue"}  # what was just tried is no trouble yet
        leave_alone(app, LATE_MS + MINUTE, monkeypatch)
        found = {row["id"]: row for row in facts(app, "stuck")}
        assert [found[row.instance_id]["verdict"] for row in rows] == ["overdue", "unsent", "overdue", "overdue"]
        assert "was published, and not handled; it is published again in" in found[published.instance_id]["sentence"]
        assert found[failing.instance_id]["sentence"].startswith("order.remind could not be published, once: no such queue")
        assert found[others[0].instance_id]["sentence"] == (
            "order.remind waits in the outbox: no relay that knows it has taken it"
        )
        assert sorted(row["key"] for row in found.values()) == ["1", "2", "3", "4", "42"]
        assert found[""]["sentence"] == "order.remind failed with KeyError: 1 dead letter"
        assert {row["saga"] for row in found.values()} == {"order"}
        assert len(stuck(app)) == 5 + 3
        assert len(stuck(app, "--limit", "1")) == 3 + 3 + 1
        assert all(map(is_safe, run(app, "stuck").output.splitlines()))
        assert stuck(app, "parcel", status=0) == []

    def test_instances_that_nothing_changes(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        shop.place("1", after=3600)
        shop.pack("2")
        assert stuck(app, "--idle", "1d", status=0) == []
        leave_alone(app, 25 * HOUR, monkeypatch)
        assert stuck(app, status=0) == []
        assert [(row["verdict"], row["saga"], row["key"]) for row in facts(app, "stuck", "--idle", "1d")] == [
            ("idle", "order", "1"),
            ("idle", "parcel", "2"),
        ]
        assert [row["key"] for row in facts(app, "stuck", "parcel", "--idle", "1d")] == ["2"]

    def test_instances_that_are_idle_for_longer_than_their_saga_says(
        self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number, until, asks in (
            ("1", [], []),
            ("2", [], [None]),
            ("3", [7 * 24 * 3600.0], []),
            ("4", [7 * 24 * 3600.0] * 100, []),  # more than a page has
            ("5", [], [7 * 24 * 3600.0]),
            ("6", [], [None] * 50),
        ):
            shop.write(number, until=until, asks=asks)
        shop.pack("7")  # its saga says nothing
        leave_alone(app, 11 * HOUR, monkeypatch)
        assert of_verdicts(app, "idle", "open") == []
        leave_alone(app, 2 * HOUR, monkeypatch)
        found = of_verdicts(app, "idle", "open")
        assert sorted((row["verdict"], row["saga"], row["key"]) for row in found) == [
            ("idle", "letter", "1"),
            ("open", "letter", "2"),
            ("open", "letter", "6"),
        ]
        sentences = {row["key"]: row["sentence"] for row in found}
        assert sentences["1"] == (
            "Nothing is sure to come: it goes on with the next message to one of letter.write, letter.sent, letter.failed"
        )
        assert sentences["2"] == "It waits for the answer of post.stamp. There is no deadline"
        shown = {row["key"]: row["verdict"] for row in facts(app, "stuck", "letter", "--idle", "1h")}
        assert shown == {"1": "idle", "2": "open", "3": "idle", "4": "idle", "5": "idle", "6": "open"}
        assert all(13 * HOUR <= row["for_ms"] < 14 * HOUR and row["messages"] == 1 for row in found)
        assert [row["key"] for row in of_verdicts(app, "idle", "open", words=["--limit", "1"])] == ["1"]
        assert of_verdicts(app, "idle", "open", words=["parcel"]) == []

    def test_paused_instances(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        shop.place("1", after=3600)
        shop.write("2", until=[], asks=[])
        shop.write("3", until=[], asks=[])
        ann = Operator(app, "ann")
        ann.instance("order", "1").pause(f"INC-1 {HOSTILE}.")
        ann.instance("letter", "2").pause("INC-2")
        ann.instance("letter", "3").pause("INC-3")
        ann.instance("letter", "3").resume("it works")
        leave_alone(app, 13 * HOUR, monkeypatch)
        rows = facts(app, "stuck", "--idle", "1h")
        assert [(row["verdict"], row["saga"], row["key"]) for row in rows] == [
            ("paused", "order", "1"),
            ("paused", "letter", "2"),
            ("idle", "letter", "3"),  # and each but once, although all of them are idle as well
        ]
        assert rows[1]["sentence"] == "ann paused it 13 h ago: INC-2. No message waits with it"
        assert rows[1]["id"] == ann.instance("letter", "2").show()["id"]  # type: ignore[index]
        assert [row["key"] for row in facts(app, "stuck", "letter", "--limit", "1")] == ["2", "3"]
        output = run(app, "stuck").output
        assert "  → celery -A proj sagas resume SAGA KEY --reason WHY    lets a paused instance go on" in output
        assert output.count("celery -A proj sagas show SAGA KEY") == 1
        assert all(map(is_safe, output.splitlines()))

    def test_instances_that_cannot_be_read(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a paused one it is said; of another one nobody knows what is sure to come."""
        shop.place("1", after=3600)
        Operator(app, "ann").instance("order", "1").pause("INC-1")
        put(app, json.dumps({"format": 1, "more": "x" * 2 * PENDING}), key="1")
        put(app, "nonsense", key="1")
        shop.write("2", until=[], asks=[])
        put(app, json.dumps({"format": 99}), key="2", saga="letter")
        leave_alone(app, 13 * HOUR, monkeypatch)
        [row] = facts(app, "stuck")
        assert (row["verdict"], row["key"]) == ("unreadable", "1")
        assert row["sentence"].startswith("It cannot be read: ")

    def test_instance_of_newer_code(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        shop.write("1", until=[], asks=[])
        put(app, "{}", key="1", saga="letter", schema_version=2)
        leave_alone(app, 13 * HOUR, monkeypatch)
        [row] = facts(app, "stuck")
        assert (row["verdict"], row["key"]) == ("newer", "1")
        assert row["sentence"] == "Newer code has written it: it has schema version 2, and this code knows 1"

    def test_timeout_whose_row_is_gone(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As that of a timeout which the code of a release before has published: it would not come again."""
        for number in ("1", "2"):
            shop.write(number, until=[3600.0], asks=[])
        timeout = {"id": "t", "row": "gone", "step": "letter.sent", "at": backend_of(app).outbox.time() - HOUR}
        put(app, json.dumps({"format": 1, "timeouts": {"end": timeout}}), key="1", saga="letter")
        leave_alone(app, 13 * HOUR, monkeypatch)
        [row] = facts(app, "stuck")  # a row that is there is another matter: the store's own clock has not moved
        assert (row["verdict"], row["key"]) == ("overdue", "1")
        assert "the outbox does not have it any more" in row["sentence"]

    def test_many(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(3):
            shop.write(str(number), until=[], asks=[])
        leave_alone(app, 13 * HOUR, monkeypatch)
        assert "There may be more" not in run(app, "stuck", "--limit", "4").output
        assert "There may be more" not in run(app, "stuck", "--limit", "3").output
        assert "There may be more: of each kind 2 of a saga are shown" in run(app, "stuck", "--limit", "2").output
        monkeypatch.setattr("celery_sagas.operate.stuck.LOOKED_AT", 2)
        assert "There may be more" in run(app, "stuck", "--limit", "4").output

    def test_instance_with_dead_letters_is_listed_once(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in ("1", "2"):
            shop.write(number, until=[], asks=[])
        for error in ("KeyError", "KeyError", "ValueError"):
            backend_of(app).dead.add(dead_letter()._replace(task="letter.sent", saga="letter", key="1", error=error))
        leave_alone(app, 13 * HOUR, monkeypatch)
        assert [(row["verdict"], row["key"], row["messages"]) for row in facts(app, "stuck")] == [
            ("failing", "1", 2),
            ("idle", "2", 1),
        ]
        backend_of(app).dead.add(dead_letter()._replace(task="letter.sent", saga="letter", key="2", error="KeyError"))
        assert [(row["verdict"], row["key"], row["messages"]) for row in facts(app, "stuck")] == [
            ("failing", "", 3),
            ("failing", "1", 1),
            ("idle", "2", 1),
        ]

    def test_what_is_late(self, app: Celery, shop: Any) -> None:
        shop.place("1", after=3600)
        row = due_row(app, "1")
        backend_of(app).outbox.confirm("relay", [row.id], HOUR)
        assert stuck(app, status=0) == []
        [only] = facts(app, "stuck", "--late", "0s")
        assert (only["verdict"], only["task"]) == ("overdue", "order.remind")

    @pytest.mark.parametrize("are_published", [False, True])
    def test_saga_beside_one_with_many(
        self, app: Celery, shop: Any, are_published: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is shown, whatever comes before it in the outbox."""
        monkeypatch.setattr("celery_sagas.operate.choosing.MOST", 4)
        monkeypatch.setattr("celery_sagas.operate.choosing.LOOKED_AT", 12)
        backend = backend_of(app)
        for number in range(4 + 4 * are_published):
            shop.place(str(number), after=3600)
            due(app, str(number), at=1)
        shop.write("1", until=[], asks=[])
        due(app, "1", at=2, saga="letter")
        if are_published:
            for row in sorted(backend.outbox.claim_due("relay", 9, HOUR), key=lambda row: row.due_at):
                backend.outbox.confirm("relay", [row.id], HOUR)
        leave_alone(app, MINUTE, monkeypatch)
        for words in (["letter"], []):
            found = facts(app, "stuck", *words, "--late", "0s", "--limit", "2")
            assert [row["saga"] for row in found if row["saga"] == "letter"] == ["letter"]
        assert "There may be more" in run(app, "stuck", "--late", "0s", "--limit", "2").output
        monkeypatch.setattr("celery_sagas.operate.choosing.LOOKED_AT", 4)
        result = run(app, "stuck", "parcel", "--late", "0s")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.startswith("There may be more")

    def test_numbers(self, app: Celery, shop: Any) -> None:
        backend = backend_of(app)
        for number in (1, 2):
            shop.place(str(number), after=3600)
        shop.pack("3")
        row, other = due_row(app, "1"), due_row(app, "2")
        backend.outbox.confirm("relay", [row.id], HOUR)
        backend.outbox.release("relay", [other.id])
        backend.dead.add(dead_letter())
        Operator(app, "ann").instance("order", "2").pause("INC-1")
        order, parcel, _, numbers = facts(app, "stats")
        assert (order["saga"], order["instances"], parcel["saga"], parcel["instances"]) == ("order", 2, "parcel", 1)
        assert order["oldest_change_ms"] >= 0
        assert (numbers["due"], numbers["tried"], numbers["dead_letters"]) == (1, 1, 1)
        assert (numbers["backend"], numbers["untaken"]) == (backend.url, ["order.remind"])
        lines = [line.split() for line in run(app, "stats").output.splitlines()]
        assert lines[0] == ["SAGA", "INSTANCES", "PAUSED", "OLDEST", "CHANGE"]
        assert [line[:3] for line in lines[1:3]] == [["order", "2", "1"], ["parcel", "1", "0"]]

    def test_messages_that_no_relay_has_taken(self, app: Celery, shop: Any) -> None:
        """They are named that are due for a quarter of an hour."""
        backend = backend_of(app)
        shop.place("1", after=3600)
        due(app, "1", backend.outbox.time() - LATE_MS + MINUTE)
        assert facts(app, "stats")[-1]["untaken"] == []
        due(app, "1", backend.outbox.time() - LATE_MS - MINUTE)
        assert facts(app, "stats")[-1]["untaken"] == ["order.remind"]
        assert run(app, "stats").output.splitlines()[-1].endswith("  order.remind")

    def test_messages_behind_many_others(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """That are read in pages; if the last one read has others behind it, that is said."""
        backend = backend_of(app)
        shop.place("1", after=3600)
        shop.write("3", until=[], asks=[])
        at = backend.outbox.time() - LATE_MS - MINUTE
        due(app, "1", at)
        due(app, "3", at + 1, "letter")
        monkeypatch.setattr("celery_sagas.operate.choosing.MOST", 1)
        assert facts(app, "stats")[-1]["untaken"] == ["letter.remind", "order.remind"]
        assert facts(app, "stats")[-1]["may_be_more_untaken"] is False
        monkeypatch.setattr("celery_sagas.operate.choosing.LOOKED_AT", 1)
        assert facts(app, "stats")[-1]["may_be_more_untaken"] is True
        assert run(app, "stats").output.splitlines()[-1].endswith("  order.remind, …")


class TestRelays:
    @pytest.fixture
    def workers(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Have workers answer, with their relays."""

        def answer(*relays: Relay | None, error: str = "", **about: Any) -> None:
            code = Code("1", {}, {"order": frozenset({"order.place"})})
            asked = None if error else Workers(code, [Worker("w", code, relay) for relay in relays], **about)
            monkeypatch.setattr(
                import_module("celery_sagas.cli.stats"), "ask_workers", lambda app, settings: (Broker("", "", error), asked)
            )

        return answer

    def test_at_work(self, app: Celery, shop: Any, workers: Callable[..., None]) -> None:
        unknown = ("order.place", "order.b\x1b", "order.a")
        workers(Relay(True, 4_000, unknown=unknown), Relay(True, 900), Relay(False, 5), Relay(True, None), None)
        assert facts(app, "stats", "--relays")[-1] == {
            "relays": 3,
            "workers": 5,
            "last_sweep_ms": 900,
            "unknown_steps": ["order.a", "order.b\x1b"],
        }
        assert run(app, "stats", "--relays").output.endswith(
            "\nRelays: 3 at work, in 5 workers that have answered; last sweep: 1 s ago; "
            "steps that no worker knows: order.a, order.b\\x1b\n"
        )

    def test_none(self, app: Celery, shop: Any, workers: Callable[..., None]) -> None:
        workers(Relay(False, 5))
        told = "Relays: 0 at work, in 1 worker that has answered; last sweep: -; steps that no worker knows: none\n"
        assert run(app, "stats", "--relays").output.endswith(told)

    def test_nobody_can_be_asked(self, app: Celery, shop: Any, workers: Callable[..., None]) -> None:
        """What the backends know is shown all the same."""
        workers(error="it is\naway")
        result = run(app, "stats", "--relays")
        assert (result.exit_code, result.stdout.split(maxsplit=1)[0]) == (1, "SAGA")
        assert result.stderr == "Error: the broker cannot be asked for the relays: it is away\n"
        workers(can_be_asked=False)
        result = run(app, "stats", "--relays", "--json")
        assert (result.exit_code, "sqlite" in result.stdout or "memory" in result.stdout) == (1, True)
        assert result.stderr.startswith("Error: workers cannot be asked over this broker")

    def test_are_asked_only_if_they_are_wanted(self, app: Celery, shop: Any, workers: Callable[..., None]) -> None:
        workers(error="it is away")
        assert "elay" not in run(app, "stats").output


def of_verdicts(app: Celery, *verdicts: str, words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the troubles with one of these verdicts."""
    return [row for row in facts(app, "stuck", *words) if row["verdict"] in verdicts]


def due_row(app: Celery, key: str) -> OutboxRow:
    """Commit a timeout of an instance that is due, and claim its row."""
    due(app, key)
    [row] = backend_of(app).outbox.claim_due("relay", 9, HOUR)
    return row


def due(app: Celery, key: str, at: int = 1, saga: str = "order") -> None:
    """Commit a timeout of an instance that is due."""
    step = {"order": "place", "letter": "write"}[saga]
    message = f"id of {saga} {key}", f"{saga}.remind", "{}", at
    put(app, "{}", lambda id: Outgoing(id, "scheduled", *message), key=key, saga=saga, step=f"{saga}.{step}")


def test_message_of_no_instance(app: Celery, shop: Any) -> None:
    """Plain code has sent it."""
    backend, outgoing = backend_of(app), Outgoing("row", "sent", "id", "mail.write", "{}", 1)
    send(backend, outgoing, line=entry(step="mail.write"))
    [found] = facts(app, "stuck")
    assert (found["verdict"], found["saga"], found["key"], found["task"]) == ("unsent", "", "", "mail.write")
    assert facts(app, "stuck", "order") == []


def test_backend_that_lists_no_instances(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instances of messages are found one by one; one that cannot be read is shown by its id."""
    backend = backend_of(app)
    shop.place("1", after=60)
    shop.place("2", after=60)
    rows = {key: due_row(app, key) for key in "12"}
    backend.outbox.release("relay", [row.id for row in rows.values()])
    leave_alone(app, LATE_MS + HOUR, monkeypatch)
    find, damaged = type(backend.sagas).find, rows["2"].instance_id

    def find_one(sagas: Any, lookup: Lookup, *args: Any) -> Any:
        if lookup.value == damaged:
            raise UnreadableState("order", "2", "it is damaged")
        return find(sagas, lookup, *args)

    monkeypatch.setattr(type(backend.sagas), "find", find_one)
    monkeypatch.setattr(type(backend), "has_instances", False)
    found = {row["id"]: row for row in facts(app, "stuck", "order")}
    assert found.keys() == {row.instance_id for row in rows.values()}
    assert [found[row.instance_id]["key"] for row in rows.values()] == ["1", ""]


def test_backend_that_is_away(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Any:
        raise StoreUnavailable("memory://", "it is away")

    monkeypatch.setattr(MemoryOutbox, "tried", away)
    result = run(app, "stuck")
    assert (result.exit_code, result.output) == (1, "Error: The saga backend memory:// is unavailable: it is away.\n")
    monkeypatch.setattr(MemoryDeadLetters, "count", away)
    result = run(app, "stats")
    assert result.exit_code == 1
    assert "Error: The saga backend memory:// is unavailable" in result.output


def test_unknown_saga(app: Celery, shop: Any) -> None:
    result = run(app, "stuck", "odrer")
    assert result.exit_code == 1
    assert "unknown saga odrer" in result.output


@pytest.fixture
def reads(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many instances were asked for at once, each time."""
    counts, instances = list[int](), type(backend_of(app).instances)
    read = instances.read

    def counted(self: Any, name: str, ids: Sequence[str]) -> Any:
        counts.append(len(ids))
        return read(self, name, ids)

    monkeypatch.setattr(instances, "read", counted)
    return counts


def test_instances_are_read_at_once_and_no_more_than_may_be_shown(app: Celery, shop: Any, reads: list[int]) -> None:
    """Each may have a megabyte."""
    for number in range(9):
        shop.place(str(number), after=60)
        due(app, str(number))
    for limit, at_once in ((2, [2]), (9, [9]), (50, [9])):
        reads.clear()
        assert len(facts(app, "stuck", "--limit", str(limit))) == min(limit, 9)
        assert reads == at_once


def test_so_many_instances_are_read_at_most(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch, reads: list[int]) -> None:
    monkeypatch.setattr("celery_sagas.operate.stuck._READ", 4)
    for number in range(6):
        shop.place(str(number), after=60)
        due(app, str(number))
    result = run(app, "stuck", "--json")
    assert (len(result.stdout.splitlines()), sum(reads)) == (4, 4)
    assert result.stderr.startswith("There may be more")


@pytest.mark.parametrize("gone_at", [1, 3])
@pytest.mark.parametrize("limit", ["1", "50"])
def test_instance_with_a_message_of_a_step_that_is_gone(app: Celery, shop: Any, limit: str, gone_at: int) -> None:
    """Its other messages have its key all the same, whichever comes first, and however many are looked at at once."""
    shop.place("1", after=60)
    due(app, "1", at=2)
    put(app, "{}", lambda id: Outgoing(id, "scheduled", "other", "order.remind", "{}", gone_at), key="1", step="purchase.remind")
    found = {row["saga"]: row for row in facts(app, "stuck", "--limit", limit)}
    assert found["order"]["key"] == "1"
    assert found[""]["id"] == found["order"]["id"]


def test_instances_with_one_key_and_messages_of_steps_that_are_gone(app: Celery, shop: Any) -> None:
    """They are of two sagas: neither hides the other."""
    shop.place("1", after=60)
    shop.write("1", until=[60], asks=[])
    for saga in ("order", "letter"):
        due(app, "1", saga=saga)
        message = "scheduled", f"other of {saga}", f"{saga}.remind", "{}", 2
        put(app, "{}", lambda id, message=message: Outgoing(id, *message), key="1", saga=saga, step="purchase.remind")
    assert sorted(row["saga"] for row in facts(app, "stuck")) == ["", "", "letter", "order"]


@pytest.mark.parametrize("lists_instances", [True, False])
def test_message_that_waits_with_its_instance(
    app: Celery, shop: Any, lists_instances: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has come: it is no trouble, and those that have not come are."""
    monkeypatch.setattr(type(backend_of(app)), "has_instances", lists_instances)
    shop.place("1", after=60)
    due(app, "1")
    waits = Deferred("id of order 1", "order.remind", 1, "id of order 1", "{}").to_json()
    put(app, json.dumps({"format": 1, "deferred": [waits]}), key="1")
    assert facts(app, "stuck") == []
    put(
        app,
        json.dumps({"format": 1, "deferred": [waits]}),
        lambda id: Outgoing(id, "scheduled", "other", "order.remind", "{}", 2),
        key="1",
    )
    assert [row["since"] for row in facts(app, "stuck")] == [2]
