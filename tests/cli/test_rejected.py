"""``celery sagas dead``: rejected items, which may be in a backend of their own, beside messages."""

import json
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Batch, Message, aggregator
from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.testing.batches import dead_letters_of
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker
from tests.cli.test_dead import WHY, dead_letter
from tests.cli.test_describe import run
from tests.servers import unique

NAME = "meters.store_readings"
#: An aggregator that no code here defines.
STRANGER = "gone.store_meters"

pytestmark = pytest.mark.usefixtures("definitions")


class Reading(Message):
    """What a device has measured."""

    task: str  # as the signature of a message has it
    celsius: float


@pytest.fixture(params=[False, True], ids=["one backend", "two backends"])
def app(new_app: NewApp, request: pytest.FixtureRequest) -> Celery:
    """An app whose aggregators may have a backend of their own."""
    other = {"saga_aggregator_backend": f"memory://{unique('batches')}"} if request.param else {}
    return new_app(**other)


@pytest.fixture
def flushed(app: Celery) -> list[list[str]]:
    """The ids of each batch of an aggregator."""
    flushed: list[list[str]] = []

    @aggregator(name=NAME, size=100, group_by="task")
    def store_readings(batch: Batch[Reading]) -> None:
        flushed.append(list(batch.ids))

    return flushed


def batches_of(app: Celery) -> Backend:
    """Return the backend that keeps what is buffered."""
    return runtime_of(app).batches


def add(app: Celery, *ids: str, name: str = NAME) -> None:
    """Buffer items in the group "d1"."""
    items = tuple(NewItem(id, json.dumps({"task": "d1", "celsius": 21.5})) for id in ids)
    batches_of(app).aggregates.insert(Rules(name, size=len(ids)), [Addition("d1", items)])


def reject(app: Celery, *ids: str, name: str = NAME) -> list[DeadLetter]:
    """Buffer items, and have them rejected by a flush."""
    add(app, *ids, name=name)
    rules = Rules(name, size=len(ids), remember_ms=3_600_000)
    snapshot = batches_of(app).aggregates.claim(rules, "d1", "run")
    assert snapshot is not None
    dead_letters = dead_letters_of(*snapshot.items, group="d1", name=name)
    batches_of(app).aggregates.remove(rules, "d1", "run", rejected=dead_letters)
    return dead_letters


def keep(app: Celery, *dead_letters: DeadLetter) -> None:
    """Keep dead letters of messages."""
    for each in dead_letters:
        runtime_of(app).backend.dead.add(each)


def kept(app: Celery) -> set[str]:
    """Return the ids of all dead letters."""
    return {each.id for backend in runtime_of(app).backends for each in backend.dead.list(1_000)}


def buffered(app: Celery, name: str = NAME) -> list[str]:
    """Return the ids of the buffered items."""
    return [item.id for item in batches_of(app).buffers.read(name, "d1", 1_000)]


class TestList:
    """One list has all."""

    def test_items_and_messages(self, app: Celery, flushed: Any) -> None:
        [rejected] = reject(app, "m1")
        keep(app, dead_letter())
        rows = run(app, "dead", "list").output.splitlines()[1:]

        assert {row.split()[0] for row in rows} == {"l1", rejected.id}
        assert any(row.endswith("UTC  meters.store_readings  d1   ItemRejected") for row in rows)

    def test_those_of_an_aggregator(self, app: Celery, flushed: Any) -> None:
        dead_letters = reject(app, "m1", "m2")
        keep(app, dead_letter())
        lines = run(app, "dead", "list", "--task", NAME, "--json").output.splitlines()

        assert {json.loads(line)["id"] for line in lines} == {each.id for each in dead_letters}
        assert {json.loads(line)["number"] for line in lines} == {each.number for each in dead_letters}

    @pytest.mark.parametrize("limit", [1, 2, 3, 9])
    def test_limit(self, app: Celery, flushed: Any, limit: int) -> None:
        reject(app, "m1", "m2")
        keep(app, dead_letter())

        assert len(run(app, "dead", "list", "--limit", f"{limit}").output.splitlines()) == 1 + min(limit, 3)

    def test_one_item(self, app: Celery, flushed: Any) -> None:
        [rejected] = reject(app, "m1")
        lines = run(app, "dead", "show", rejected.id).output.splitlines()

        assert lines[0] == f"id:      {rejected.id}"
        assert lines[2:5] == [f"task:    {NAME}", "item:    m1", "group:   d1"]
        assert lines[5].startswith("came:    20")
        assert lines[6] == "error:   ItemRejected: no such meter"
        assert lines[8:12] == ["The item:", "{", '  "task": "d1",', '  "celsius": 21.5']


class TestRetry:
    """An item is put back under its own id."""

    def test_item_is_flushed(self, app: Celery, flushed: list[list[str]]) -> None:
        """Its group is due at once, although its id is remembered."""
        [rejected] = reject(app, "m1")
        result = run(app, "dead", "retry", *WHY, rejected.id)

        assert (result.exit_code, result.output) == (0, f"{rejected.id}: the item m1 of {NAME} was put back.\n")
        assert (buffered(app), kept(app)) == (["m1"], set())
        (due,) = batches_of(app).aggregates.claim_due([NAME], 10, 1_000)
        assert due.group == "d1"
        app.send_task(f"{NAME}.flush", ["d1"])
        Worker(app).run()
        assert flushed == [["m1"]]

    def test_all_of_an_aggregator(self, app: Celery, flushed: Any) -> None:
        reject(app, "m1", "m2", "m3")
        keep(app, dead_letter())
        result = run(app, "dead", "retry", *WHY, "--task", NAME)

        assert result.exit_code == 0, result.output
        assert (buffered(app), kept(app)) == (["m1", "m2", "m3"], {"l1"})

    def test_item_whose_id_is_buffered_again(self, app: Celery, flushed: Any) -> None:
        """The others are put back."""
        dead_letters = reject(app, "m1", "m2")
        batches_of(app).aggregates.purge(0)
        add(app, "m3")
        batches_of(app).aggregates.restore(Rules(NAME), dead_letters[0])
        again = dead_letters[0]._replace(id="again")
        batches_of(app).dead.add(again)
        result = run(app, "dead", "retry", *WHY, "again", dead_letters[1].id)

        assert (result.exit_code, kept(app)) == (1, {"again"})
        assert f"Error: the item m1 of {NAME} was not put back: its id is buffered again" in result.output
        assert buffered(app) == ["m1", "m2", "m3"]

    def test_aggregator_of_other_code(self, app: Celery) -> None:
        """Its group becomes due, so that a relay which knows it has it flushed."""
        [rejected] = reject(app, "m1", name=STRANGER)
        result = run(app, "dead", "retry", *WHY, rejected.id)

        assert result.exit_code == 0, result.output
        assert [due.group for due in batches_of(app).aggregates.claim_due([STRANGER], 10, 1_000)] == ["d1"]


class TestDiscard:
    """An item is never flushed."""

    def test_item_and_message(self, app: Celery, flushed: Any) -> None:
        """The item looks like a message, and is none."""
        [rejected, other] = reject(app, "m1", "m2")
        keep(app, dead_letter())
        result = run(app, "dead", "discard", *WHY, rejected.id, "l1")

        assert result.output == f"{rejected.id}: the item m1 of {NAME} was discarded.\nl1: order.place was discarded.\n"
        assert (buffered(app), kept(app)) == ([], {other.id})

    def test_all_of_an_aggregator(self, app: Celery, flushed: Any) -> None:
        reject(app, "m1", "m2")
        keep(app, dead_letter())
        result = run(app, "dead", "discard", *WHY, "--task", NAME, "--yes")

        assert (result.exit_code, kept(app)) == (0, {"l1"})


def test_items_are_put_back_in_eager_mode(eager: Celery) -> None:
    """Nothing is sent for it."""
    [rejected] = reject(eager, "m1")
    result = run(eager, "dead", "retry", *WHY, rejected.id)

    assert (result.exit_code, buffered(eager), kept(eager)) == (0, ["m1"], set())
