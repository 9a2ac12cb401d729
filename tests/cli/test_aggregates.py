"""``celery sagas aggregates``."""

import json
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner, Result
from pydantic import Field

from celery_sagas import Batch, Message, Saga, aggregator
from celery_sagas.cli import sagas
from celery_sagas.engine.requests.gathering import buffer_of
from celery_sagas.errors import PublishError, StoreUnavailable
from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.stores.memory.aggregates import MemoryBuffers
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import AuditEntry
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, interposed
from tests.cli.test_dead import WHY, failing
from tests.cli.test_describe import run
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

#: An aggregator that is in the store, and that no code here defines.
STRANGER = Rules("gone.store_meters", size=1)

pytestmark = pytest.mark.usefixtures("definitions")


class Reading(Message):
    """What a device has measured."""

    device_id: str
    celsius: float


@pytest.fixture
def flushed() -> list[list[str]]:
    """The ids of each batch."""
    return []


@pytest.fixture
def store_readings(app: Celery, flushed: list[list[str]]) -> Any:
    """An aggregator with groups, whose batches are never full."""

    @aggregator(name="meters.store_readings", size=100, within=60, group_by="device_id")
    def store_readings(batch: Batch[Reading]) -> None:
        flushed.append(list(batch.ids))

    return store_readings


@pytest.fixture
def beat(app: Celery) -> Any:
    """An aggregator without groups."""

    @aggregator(name="meters.beat", size=100)
    def beat(batch: Batch[int]) -> None: ...

    return beat


def batches_of(app: Celery) -> Backend:
    """Return the backend that keeps what is buffered."""
    return runtime_of(app).batches


def add(app: Celery, *ids: str, group: str = "d1", name: str = "meters.store_readings", is_unreadable: bool = False) -> None:
    """Buffer items, as an aggregator would whose trigger never fires."""
    items = tuple(NewItem(id, json.dumps({"device_id": group, "celsius": 21.5}), is_unreadable) for id in ids)
    batches_of(app).aggregates.insert(Rules(name, size=10_000), [Addition(group, items)])


def buffered(app: Celery, group: str = "d1", name: str = "meters.store_readings") -> list[str]:
    """Return the ids of a group's buffered items."""
    return [item.id for item in batches_of(app).buffers.read(name, group, 1_000)]


def ask(app: Celery, answer: str, *arguments: str) -> Result:
    """Run a command, and answer its question."""
    return CliRunner().invoke(sagas, ["aggregates", *arguments], obj=SimpleNamespace(app=app), input=answer)


class TestList:
    """What there is."""

    def test_every_aggregator_of_the_app_and_of_the_store(self, app: Celery, store_readings: Any, beat: Any) -> None:
        add(app, "a", "b")
        add(app, "c", group="d2")
        add(app, "new", is_unreadable=True)
        add(app, "x", name=STRANGER.name)
        result = run(app, "aggregates", "list")

        assert result.exit_code == 0, result.output
        assert [line.split(maxsplit=4) for line in result.output.splitlines()] == [
            ["NAME", "GROUPS", "BUFFERED", "UNRESOLVED", "DEFINED"],
            ["gone.store_meters", "1", "1", "0", "not in this app"],
            ["meters.beat", "0", "0", "0", "yes"],
            ["meters.store_readings", "2", "4", "1", "yes"],
        ]

    def test_answers_to_gathers(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        add(app, "0", name=buffer_of("order"))

        assert run(app, "aggregates", "list").output.splitlines()[1].split(maxsplit=4) == [
            "order.(gathered)",
            *["1", "1", "0"],
            "answers to gathers",
        ]

    def test_json(self, app: Celery, store_readings: Any) -> None:
        """One object in each line, for other programs."""
        add(app, "a")
        (line,) = run(app, "aggregates", "list", "--json").output.splitlines()

        counts = {"groups": 1, "buffered": 1, "unresolved": 0}
        assert json.loads(line) == {"name": "meters.store_readings", **counts, "defined": True}

    def test_limit(self, app: Celery, store_readings: Any, beat: Any) -> None:
        assert len(run(app, "aggregates", "list", "--limit", "1").output.splitlines()) == 2

    def test_none(self, app: Celery) -> None:
        result = run(app, "aggregates", "list")

        assert (result.exit_code, result.output) == (0, "There are no aggregators.\n")


class TestListGroups:
    """The groups of one aggregator."""

    def test_each_group(self, app: Celery, store_readings: Any) -> None:
        add(app, "a", "b")
        batches_of(app).aggregates.claim(Rules("meters.store_readings", size=1), "d1", "run")
        add(app, "new", is_unreadable=True)
        add(app, "c", group="d2")
        result = run(app, "aggregates", "list", "meters.store_readings")

        header, first, second = result.output.splitlines()
        assert header.split() == ["GROUP", "FREE", "LEASED", "UNRESOLVED", "DUE"]
        assert first.split()[:4] == ["d1", "1", "1", "1"]
        assert first.endswith("UTC")
        assert second.split(maxsplit=4) == ["d2", "1", "0", "0", "with its next item"]

    def test_aggregator_without_groups(self, app: Celery, beat: Any) -> None:
        beat.add(7)

        assert run(app, "aggregates", "list", "meters.beat").output.splitlines()[1].split()[0] == "-"

    def test_name_that_would_break_the_table(self, app: Celery, store_readings: Any) -> None:
        add(app, "a", group="two\nlines\x1b[2J")

        assert r"two\nlines\x1b[2J" in run(app, "aggregates", "list", "meters.store_readings").output

    def test_json(self, app: Celery, store_readings: Any) -> None:
        add(app, "a")
        (line,) = run(app, "aggregates", "list", "meters.store_readings", "--json").output.splitlines()

        assert json.loads(line) == {"group": "d1", "free": 1, "leased": 0, "unresolved": 0, "due_at": 0}

    def test_limit(self, app: Celery, store_readings: Any) -> None:
        for number in range(3):
            add(app, "a", group=f"d{number}")

        assert len(run(app, "aggregates", "list", "meters.store_readings", "--limit", "2").output.splitlines()) == 3

    def test_nothing_buffered(self, app: Celery, beat: Any) -> None:
        result = run(app, "aggregates", "list", "meters.beat")

        assert (result.exit_code, result.output) == (0, "meters.beat has nothing buffered.\n")

    def test_aggregator_of_other_code(self, app: Celery) -> None:
        add(app, "x", name=STRANGER.name)

        assert "d1" in run(app, "aggregates", "list", STRANGER.name).output

    def test_unknown(self, app: Celery) -> None:
        result = run(app, "aggregates", "list", "nobody")

        assert result.exit_code == 1
        assert "there is no aggregator nobody" in result.output


class TestItems:
    """What waits."""

    def test_of_all_groups(self, app: Celery, store_readings: Any) -> None:
        """Whatever their state, group by group."""
        add(app, "z", "a", group="d2")
        add(app, "unread", group="d1", is_unreadable=True)
        add(app, "b", group="d1")
        assert batches_of(app).aggregates.claim(Rules("meters.store_readings", size=1), "d2", "run") is not None
        lines = run(app, "aggregates", "items", "meters.store_readings").output.splitlines()

        assert lines[0].split() == ["GROUP", "ID", "STATE", "ATTEMPTS", "BUFFERED", "ITEM"]
        assert [line.split()[:4] for line in lines[1:]] == [
            ["d1", "unread", "unresolved", "0"],
            ["d1", "b", "free", "0"],
            ["d2", "z", "leased", "0"],
            ["d2", "a", "free", "0"],
        ]
        assert all('UTC  {"device_id":"d' in line for line in lines[1:])

    def test_of_one_group(self, app: Celery, store_readings: Any) -> None:
        """An empty name is a name."""
        add(app, "a", group="d1")
        add(app, "b", group="d2")
        add(app, "c", group="")

        assert [fact["id"] for fact in items(app, "d2")] == ["b"]
        assert [fact["id"] for fact in items(app, "")] == ["c"]
        assert [fact["id"] for fact in items(app)] == ["c", "a", "b"]

    def test_json(self, app: Celery, store_readings: Any) -> None:
        add(app, "a")
        (stored,) = batches_of(app).buffers.read("meters.store_readings", "d1", 9)

        payload = '{"device_id":"d1","celsius":21.5}'
        assert items(app) == [{"group": "d1", **stored._replace(payload=payload)._asdict()}]

    def test_limit(self, app: Celery, store_readings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may be larger than a page, and end within one."""
        monkeypatch.setattr(import_module("celery_sagas.cli.aggregates"), "_PAGE", 2)
        add(app, *"abcde")
        add(app, *"fg", group="d2")

        assert [fact["id"] for fact in items(app)] == list("abcdefg")
        assert [fact["id"] for fact in items(app, "--limit", "6")] == list("abcdef")
        assert [fact["id"] for fact in items(app, "--limit", "1")] == ["a"]

    def test_stored_text_forges_no_row(self, app: Celery, store_readings: Any) -> None:
        add(app, "a\nb\x1b[2J", group="d\r1")
        add(app, "long", group="x" * 200)
        lines = run(app, "aggregates", "items", "meters.store_readings").output.splitlines()

        assert lines[1].startswith(r"d\r1")
        assert r"  a\nb\x1b[2J  free" in lines[1]
        assert (len(lines), lines[2].endswith("…")) == (3, True)

    def test_nothing(self, app: Celery, beat: Any) -> None:
        assert run(app, "aggregates", "items", "meters.beat").output == "meters.beat has nothing buffered.\n"
        assert run(app, "aggregates", "items", "meters.beat", "a\nb").output == (
            "meters.beat has nothing buffered in the group a\\nb.\n"
        )

    def test_aggregator_of_other_code(self, app: Celery) -> None:
        add(app, "x", name=STRANGER.name)

        assert "x   free" in run(app, "aggregates", "items", STRANGER.name).output

    def test_unknown(self, app: Celery) -> None:
        result = run(app, "aggregates", "items", "nobody")

        assert result.exit_code == 1
        assert "there is no aggregator nobody" in result.output


def items(app: Celery, *arguments: str) -> list[dict[str, Any]]:
    """Return what the command prints of each item."""
    result = run(app, "aggregates", "items", "meters.store_readings", *arguments, "--json")
    return [json.loads(line) for line in result.output.splitlines()]


class TestUnreadable:
    """What nobody could read."""

    def test_with_what_this_code_says_of_each(self, app: Celery, store_readings: Any) -> None:
        rules = Rules("meters.store_readings")
        items = (NewItem("m1", '{"device_id":"d1"}', True), NewItem("m2", '{"device_id":"d1","celsius":1}', True))
        batches_of(app).aggregates.insert(rules, [Addition("d1", items)])
        add(app, "m3")
        result = run(app, "aggregates", "unreadable", "meters.store_readings")

        assert result.exit_code == 0, result.output
        header, first, second = result.output.splitlines()
        assert header.split() == ["GROUP", "ID", "BUFFERED", "WHY", "ITEM"]
        assert first.split()[:2] == ["d1", "m1"]
        assert first.endswith('UTC  celsius: Field required  {"device_id":"d1"}')
        assert "readable for this app" in second

    def test_of_other_code(self, app: Celery) -> None:
        add(app, "m1", name=STRANGER.name, is_unreadable=True)

        assert "not in this app" in run(app, "aggregates", "unreadable", STRANGER.name).output

    def test_json(self, app: Celery, store_readings: Any) -> None:
        """In full."""
        add(app, "m1", is_unreadable=True)
        (line,) = run(app, "aggregates", "unreadable", "meters.store_readings", "--json").output.splitlines()

        [(group, item)] = batches_of(app).buffers.unresolved("meters.store_readings", 9)
        payload = '{"device_id":"d1","celsius":21.5}'
        assert json.loads(line) == {"group": group, **item._replace(payload=payload)._asdict()}

    @pytest.mark.parametrize("page", [2, 100])
    def test_limit(self, app: Celery, store_readings: Any, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
        monkeypatch.setattr(import_module("celery_sagas.cli.aggregates"), "_PAGE", page)
        add(app, *"abcde", is_unreadable=True)

        for limit in (1, 2, 4, 5):
            result = run(app, "aggregates", "unreadable", "meters.store_readings", "--limit", f"{limit}")
            assert len(result.output.splitlines()) == 1 + limit

    def test_nothing(self, app: Celery, beat: Any) -> None:
        assert run(app, "aggregates", "unreadable", "meters.beat").output == "meters.beat has no unreadable items.\n"

    def test_unknown(self, app: Celery) -> None:
        assert run(app, "aggregates", "unreadable", "nobody").exit_code == 1


class TestDiscard:
    """Unreadable items are removed for good."""

    def test_those_that_are_named(self, app: Celery, store_readings: Any) -> None:
        add(app, "m1", "m2", is_unreadable=True)
        result = ask(app, "y\n", "discard", *WHY, "meters.store_readings", "m1")

        assert result.exit_code == 0, result.output
        assert "Remove 1 item of meters.store_readings for good? [y/N]" in result.output
        assert "1 item of meters.store_readings was discarded." in result.output
        assert buffered(app) == ["m2"]

    @pytest.mark.parametrize(("group", "left"), [((), ([], [])), (("--group", "d2"), (["m1"], []))], ids=str)
    def test_of_each_group_or_of_one(
        self, app: Celery, store_readings: Any, group: tuple[str, ...], left: tuple[list[str], list[str]]
    ) -> None:
        for name in ("d1", "d2"):
            add(app, "m1", group=name, is_unreadable=True)
        run(app, "aggregates", "discard", *WHY, "meters.store_readings", "m1", *group, "--yes")

        assert (buffered(app), buffered(app, "d2")) == left

    @pytest.mark.parametrize("answer", ["n\n", ""])
    def test_nothing_without_a_yes(self, app: Celery, store_readings: Any, answer: str) -> None:
        add(app, "m1", is_unreadable=True)
        result = ask(app, answer, "discard", *WHY, "meters.store_readings", "--all")

        assert (result.exit_code, buffered(app)) == (1, ["m1"])

    def test_all_without_a_question(self, app: Celery, store_readings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many; those that can be read are left alone."""
        monkeypatch.setattr(import_module("celery_sagas.cli.aggregates"), "_PAGE", 2)
        add(app, *(f"m{number}" for number in range(5)), is_unreadable=True)
        add(app, "good")
        result = run(app, "aggregates", "discard", *WHY, "meters.store_readings", "--all", "--yes")

        assert result.output == "5 items of meters.store_readings were discarded.\n"
        assert buffered(app) == ["good"]

    def test_no_items_at_all(self, app: Celery, store_readings: Any) -> None:
        """There is nothing to ask."""
        result = run(app, "aggregates", "discard", *WHY, "meters.store_readings", "--all")

        assert (result.exit_code, result.output) == (0, "0 items of meters.store_readings were discarded.\n")

    def test_item_that_can_be_read(self, app: Celery, store_readings: Any) -> None:
        """Nor one that is not there."""
        add(app, "good")
        result = run(app, "aggregates", "discard", *WHY, "meters.store_readings", "good", "unknown", "--yes")

        assert (result.exit_code, buffered(app)) == (1, ["good"])
        assert "Error: 2 items were not discarded: no unreadable item has the id\n" in result.output

    def test_item_that_can_be_read_by_now(self, app: Celery, store_readings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A relay that can was faster."""
        add(app, "m1", is_unreadable=True)
        found = batches_of(app).buffers.unresolved("meters.store_readings", 9)
        batches_of(app).aggregates.resolve(Rules("meters.store_readings"), "d1", [item.number for _, item in found])
        pages = iter([found, []])
        monkeypatch.setattr(MemoryBuffers, "unresolved", lambda *_: next(pages))
        result = run(app, "aggregates", "discard", *WHY, "meters.store_readings", "--all", "--yes")

        assert (result.exit_code, buffered(app)) == (1, ["m1"])

    def test_json(self, app: Celery, store_readings: Any) -> None:
        """An object for each item, also for one that is not there; the question is not among them."""
        add(app, "m1", is_unreadable=True)
        result = ask(app, "y\n", "discard", *WHY, "meters.store_readings", "m1", "m9", "--json")

        assert result.exit_code == 1
        about = {"act": "discard", "aggregator": "meters.store_readings"}
        assert [json.loads(line) for line in result.stdout.splitlines()] == [
            {**about, "group": "d1", "id": "m1", "discarded": True},
            {**about, "group": None, "id": "m9", "discarded": False},
        ]
        assert "Error: 1 item was not discarded" in result.stderr
        assert run(app, "aggregates", "discard", *WHY, "meters.store_readings", "--all", "--json").output == ""

    def test_aggregator_of_other_code(self, app: Celery) -> None:
        """What else waits in the group is not forgotten: the group is due, and a relay that knows its rules looks at it."""
        add(app, "m1", name=STRANGER.name)
        add(app, "new", name=STRANGER.name, is_unreadable=True)
        result = run(app, "aggregates", "discard", *WHY, STRANGER.name, "--all", "--yes")

        assert result.exit_code == 0, result.output
        assert buffered(app, name=STRANGER.name) == ["m1"]
        (group,) = batches_of(app).buffers.groups(STRANGER.name, 10)
        assert group.due_at > 0

    def test_ids_of_other_code_are_remembered(self, app: Celery) -> None:
        """A message that is delivered again does not bring back what was discarded."""
        add(app, "new", name=STRANGER.name, is_unreadable=True)
        run(app, "aggregates", "discard", *WHY, STRANGER.name, "--all", "--yes")
        add(app, "new", name=STRANGER.name)

        assert buffered(app, name=STRANGER.name) == []

    @pytest.mark.parametrize("arguments", [(), ("1", "--all")], ids=str)
    def test_which(self, app: Celery, store_readings: Any, arguments: tuple[str, ...]) -> None:
        """One or the other."""
        result = run(app, "aggregates", "discard", *WHY, "meters.store_readings", *arguments)

        assert result.exit_code == 2
        assert "name the ids of items, or give --all" in result.output

    def test_unknown(self, app: Celery) -> None:
        assert "there is no aggregator nobody" in run(app, "aggregates", "discard", *WHY, "nobody", "--all").output


class TestFlush:
    """Groups are flushed now."""

    def test_all_groups(self, app: Celery, worker: Worker, store_readings: Any, flushed: list[list[str]]) -> None:
        add(app, "a")
        add(app, "b", group="d2")
        result = run(app, "aggregates", "flush", *WHY, "meters.store_readings")

        assert (result.exit_code, result.output) == (0, "2 groups of meters.store_readings will be flushed.\n")
        worker.run()
        assert flushed == [["a"], ["b"]]

    def test_one_group(self, app: Celery, worker: Worker, store_readings: Any, flushed: list[list[str]]) -> None:
        add(app, "a")
        add(app, "b", group="d2")
        result = run(app, "aggregates", "flush", *WHY, "meters.store_readings", "d2")

        assert result.output == "1 group of meters.store_readings will be flushed.\n"
        worker.run()
        assert flushed == [["b"]]

    def test_group_of_several_fields(self, app: Celery, worker: Worker) -> None:
        """Under the text that the list shows."""
        seen = []

        @aggregator(name="meters.pairs", size=100, group_by=("device_id", "celsius"))
        def pairs(batch: Batch[dict[str, Any]]) -> None:
            seen.append(batch.group)

        pairs.add({"device_id": "d1", "celsius": 3})
        shown = run(app, "aggregates", "list", "meters.pairs").output.splitlines()[1].split()[0]
        run(app, "aggregates", "flush", *WHY, "meters.pairs", shown)
        worker.run()
        assert seen == [shown]

    def test_json(self, app: Celery, worker: Worker, store_readings: Any) -> None:
        add(app, "a")
        about = {"act": "flush", "aggregator": "meters.store_readings"}
        for words, group in (((), None), (("d1",), "d1")):
            result = run(app, "aggregates", "flush", *WHY, "meters.store_readings", *words, "--json")
            assert json.loads(result.output) == {**about, "group": group, "groups": 1}

    def test_nothing_to_flush(self, app: Celery, worker: Worker, store_readings: Any) -> None:
        result = run(app, "aggregates", "flush", *WHY, "meters.store_readings", "d9")

        assert (result.exit_code, result.output) == (0, "0 groups of meters.store_readings will be flushed.\n")
        assert worker.waiting() == []

    def test_text_of_no_group(self, app: Celery, store_readings: Any) -> None:
        result = run(app, "aggregates", "flush", *WHY, "meters.store_readings", "d" * 256)

        assert result.exit_code == 2
        assert "Invalid value for GROUP" in result.output

    def test_aggregator_of_other_code(self, app: Celery) -> None:
        """Nobody knows here what flushes it."""
        add(app, "x", name=STRANGER.name)
        result = run(app, "aggregates", "flush", *WHY, STRANGER.name)

        assert result.exit_code == 1
        assert "this app does not define it: run the command with an app that does" in result.output

    def test_unknown(self, app: Celery) -> None:
        assert "there is no aggregator nobody" in run(app, "aggregates", "flush", *WHY, "nobody").output

    def test_broker_away(self, app: Celery, store_readings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise PublishError("refused", connection=True)

        monkeypatch.setattr(ConfirmedPublisher, "publish_signature", fail)
        add(app, "a")
        result = run(app, "aggregates", "flush", *WHY, "meters.store_readings")

        assert result.exit_code == 1
        assert result.output.startswith("Error: ")
        assert "refused" in result.output

    def test_not_in_eager_mode(self, eager: Celery) -> None:
        """The function would run here."""
        result = run(eager, "aggregates", "flush", *WHY, "meters.store_readings")

        assert result.exit_code == 1
        assert "task_always_eager" in result.output


class TestHidden:
    """What nobody sees without a reason."""

    @pytest.fixture
    def charges(self, app: Celery) -> str:
        """The name of an aggregator whose items hide something."""

        class Charge(Message):
            pin: str = Field(default="", repr=False)
            card_number: str = ""
            city: str = ""

        @aggregator(name="bank.charges", size=100)
        def charges(batch: Batch[Charge]) -> None: ...

        return "bank.charges"

    def keep(self, app: Celery, payload: str, name: str = "bank.charges") -> None:
        items = (NewItem("m1", payload), NewItem("m2", payload, True))
        batches_of(app).aggregates.insert(Rules(name, size=10_000), [Addition("", items)])

    def shown(self, app: Celery, *options: str, name: str = "bank.charges") -> str:
        """Return what the commands print, as tables and as JSON."""
        words = [(verb, *json) for verb in ("items", "unreadable") for json in ((), ("--json",))]
        return "".join(run(app, "aggregates", *each, name, *options).output for each in words)

    @pytest.mark.parametrize("name", ["bank.charges", STRANGER.name])
    def test_by_name(self, app: Celery, charges: str, name: str) -> None:
        """Also of other code."""
        self.keep(app, '{"card_number":"4711","city":"Oslo","deep":[{"password":"4711"}]}', name)
        output = self.shown(app, name=name)

        assert ("4711" in output, output.count("Oslo")) == (False, 6)
        assert '{"card_number":"•••","city":"Oslo"' in output
        facts = json.loads(run(app, "aggregates", "items", name, "--json").output.splitlines()[0])
        assert json.loads(facts["payload"])["deep"] in ([{"password": "•••"}], "•••")

    def test_by_declaration(self, app: Celery, charges: str) -> None:
        self.keep(app, '{"pin":"4711","city":"Oslo"}')
        output = self.shown(app)

        assert ("4711" in output, "Oslo" in output) == (False, True)

    @pytest.mark.parametrize("payload", ["4711 no JSON", "[" * 100_000 + "4711" + "]" * 100_000], ids=["text", "deep"])
    def test_text_that_is_no_json(self, app: Celery, charges: str, payload: str) -> None:
        self.keep(app, payload, STRANGER.name)
        output = self.shown(app, name=STRANGER.name)

        assert ("4711" in output, "•••" in output) == (False, True)

    def test_reveal(self, app: Celery, charges: str) -> None:
        payload = '{"pin": "4711"}'
        self.keep(app, payload)
        output = self.shown(app, "--reveal", *WHY)

        assert output.count("4711") == 6
        facts = json.loads(run(app, "aggregates", "unreadable", charges, "--json", "--reveal", *WHY).output)
        assert facts["payload"] == payload
        acts = [(entry.actor, entry.action, entry.reason, json.loads(entry.detail)) for entry in audit(app)]
        about = {"aggregator": "bank.charges", "group": None}
        assert sorted(acts, key=str) == [
            *[("ann", "reveal", "INC-881", {**about, "items": 1})] * 3,
            *[("ann", "reveal", "INC-881", {**about, "items": 2})] * 2,
        ]

    @pytest.mark.parametrize("verb", ["items", "unreadable"])
    def test_reveal_without_a_reason_or_an_audit(
        self, app: Celery, charges: str, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is shown."""
        self.keep(app, '{"pin": "4711"}')
        result = run(app, "aggregates", verb, charges, "--reveal")
        assert (result.exit_code, "--reveal needs --reason TEXT" in result.output) == (2, True)
        monkeypatch.setattr(MemoryBackend, "has_audit", False)
        result = run(app, "aggregates", verb, charges, "--reveal", *WHY)
        assert (result.exit_code, "4711" in result.output) == (1, False)
        assert "what operators do to the items of bank.charges cannot be recorded in memory://" in result.output


def audit(app: Celery) -> list[AuditEntry]:
    """Return what operators have done."""
    return list(batches_of(app).audit.recent(500).entries)


class TestAudit:
    """Who has done what, and why: before it is done."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_discard(self, app: Celery, store_readings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The entries name all items, group by group."""
        monkeypatch.setattr("celery_sagas.operate.items._NAMED", 2)
        add(app, "m1", "m2", "m3", is_unreadable=True)
        add(app, "m1", group="d2", is_unreadable=True)
        assert run(app, "aggregates", "discard", *WHY, "meters.store_readings", "--all", "--yes").exit_code == 0

        assert {(entry.actor, entry.action, entry.reason, entry.saga) for entry in audit(app)} == {
            ("ann", "discard", "INC-881", "")
        }
        details = [(entry.key, json.loads(entry.detail)) for entry in audit(app)]
        assert sorted(details, key=lambda each: (each[0], each[1]["ids"])) == [
            (group, {"aggregator": "meters.store_readings", "group": group, "items": len(ids), "ids": ids})
            for group, ids in [("d1", ["m1", "m2"]), ("d1", ["m3"]), ("d2", ["m1"])]
        ]
        assert "ann  discard (2 items)  meters.store_readings  d1   -        INC-881" in run(app, "audit").output

    def test_flush(self, app: Celery, worker: Worker, store_readings: Any) -> None:
        add(app, "a", "b")
        add(app, "c", group="d2")
        add(app, "unread", group="d3", is_unreadable=True)
        for group in ((), ("d2",), ("d3",), ("d9",)):
            assert run(app, "aggregates", "flush", *WHY, "meters.store_readings", *group).exit_code == 0

        details = [(entry.action, entry.key, json.loads(entry.detail)) for entry in audit(app)]
        assert sorted(details) == [
            ("flush", "", {"aggregator": "meters.store_readings", "group": None, "items": 3}),
            ("flush", "d2", {"aggregator": "meters.store_readings", "group": "d2", "items": 1}),
        ]
        assert [json.loads(line)["action"] for line in run(app, "audit", "--json").output.splitlines()] == ["flush"] * 2


@pytest.mark.parametrize("act", [("discard", "--all", "--yes"), ("flush",)], ids=" ".join)
class TestActsThatAreNotAudited:
    """Then nothing is done."""

    def test_reason(self, app: Celery, store_readings: Any, act: tuple[str, ...]) -> None:
        add(app, "m1", is_unreadable=True)
        result = run(app, "aggregates", *act, "meters.store_readings")

        assert (result.exit_code, "Missing option '--reason'" in result.output) == (2, True)
        assert run(app, "aggregates", *act, "meters.store_readings", "--reason", " ").exit_code == 2
        assert (buffered(app), audit(app)) == (["m1"], [])

    def test_backend_without_audit(
        self, app: Celery, worker: Worker, store_readings: Any, act: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add(app, "m1", is_unreadable=True)
        add(app, "m2")
        monkeypatch.setattr(MemoryBackend, "has_audit", False)
        result = run(app, "aggregates", *act, "meters.store_readings", *WHY)

        assert result.exit_code == 1
        assert "what operators do to the items of meters.store_readings cannot be recorded in memory://" in result.output
        assert (buffered(app), worker.waiting()) == (["m1", "m2"], [])

    def test_store_that_is_away(self, app: Celery, worker: Worker, store_readings: Any, act: tuple[str, ...]) -> None:
        add(app, "m1", is_unreadable=True)
        add(app, "m2")
        interposed(app).once_before("record", failing(StoreUnavailable("memory://", "refused")))
        result = run(app, "aggregates", *act, "meters.store_readings", *WHY)

        assert (result.exit_code, buffered(app), worker.waiting()) == (1, ["m1", "m2"], [])


def test_backend_of_the_aggregators(new_app: NewApp) -> None:
    """What they buffer may be kept elsewhere."""
    app = new_app(saga_aggregator_backend=f"memory://{uuid4()}")
    runtime_of(app).batches.aggregates.insert(STRANGER, [Addition("", (NewItem("x", "1"),))])

    assert STRANGER.name in run(app, "aggregates", "list").output
    assert runtime_of(app).backend.buffers.names() == []


def test_backend_without_aggregators(new_app: NewApp) -> None:
    """It says what to set."""
    app = new_app()
    app.conf.saga_backend = f"tests.apps:WithoutAggregators+memory://{uuid4()}"
    result = run(app, "aggregates", "list")

    assert result.exit_code == 1
    assert "Set saga_aggregator_backend" in result.output


def test_store_away(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, without a traceback."""

    def fail(*_: object) -> None:
        raise StoreUnavailable("memory://", "refused")

    monkeypatch.setattr(MemoryBuffers, "names", fail)
    result = run(app, "aggregates", "list")

    assert (result.exit_code, result.output) == (1, "Error: The saga backend memory:// is unavailable: refused.\n")
