"""``celery sagas export`` and ``celery sagas replay``."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from celery import Celery
from click.testing import CliRunner
from pydantic import Field

from celery_sagas import Saga
from celery_sagas.cli import sagas
from celery_sagas.core.registry import registry
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.testing.harness.timeline import ScenarioError
from tests.apps import Worker, backend_of
from tests.cli.test_describe import run
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]


def define(rise: int = 0, history: Any = "messages") -> Any:
    """Define the saga, and return its steps."""
    registry.sagas.clear()
    registry.steps.clear()

    class Order(Saga, correlate_by="order_id", history=history):
        order_id: str
        total: int = 0
        tags: set[str] = set()
        at: str = ""
        seen: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str, total: int, pin: Annotated[str, Field(repr=False)] = "") -> None:
        order.total = total + rise if total > 1 else total
        order.tags = {"new", "paid", "sent", "seen"}
        order.at = order.saga.now.isoformat()
        order.seen.append(f"{order.saga.id} {order.saga.created_at}")

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    return place, end


def place_three(worker: Worker, **options: Any) -> None:
    place, end = define(**options)
    for number in ("1", "2", "3"):
        place.delay(number, int(number), pin="secret-pin")
        place.delay(number, int(number))
        worker.run()
    end.delay("3")
    worker.run()


class TestEveryStore:
    """Wherever the sagas are kept."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_a_history_is_exported_and_replayed(self, app: Celery, worker: Worker, tmp_path: Path) -> None:
        place_three(worker)
        result = run(app, "export", "Order", "3")
        assert result.exit_code == 0, result.output
        exported = json.loads(result.output)
        assert (exported["format"], exported["saga"], exported["key"]) == (1, "order", "3")
        assert [message["outcome"] for message in exported["messages"]] == ["started", "handled", "completed"]
        assert exported["messages"][0]["arguments"] == {"order_id": "3", "total": 3, "pin": "(hidden)"}
        assert "secret-pin" not in result.output

        path = tmp_path / "3.json"
        assert run(app, "export", "order", "3", "-o", str(path)).output == ""
        with SagaHarness(app) as harness:
            assert harness.replay(path) is None
            define(rise=1)
            with pytest.raises(ScenarioError, match="total is 4 today"):
                harness.replay(path)

    def test_many_are_replayed(self, app: Celery, worker: Worker) -> None:
        place_three(worker)
        result = run(app, "replay", "order", "1", "2", "3")
        assert (result.output, result.exit_code) == ("3 instances were replayed, 0 of them with a difference.\n", 0)
        define(rise=1)
        journal = backend_of(app).journal.history(["order"], "2", 9)
        result = run(app, "replay", "order", "1", "2", "3")
        assert result.exit_code == 1
        lines = result.output.splitlines()
        assert [line.partition(" (")[0] for line in lines] == [
            "order '2' differs at message 1",
            "  total is 3 today",
            "  hidden, so that other values stood in: pin of order.place",
            "order '3' differs at message 1",
            "  total is 4 today",
            "  hidden, so that other values stood in: pin of order.place",
            "3 instances were replayed, 2 of them with a difference.",
        ]
        assert backend_of(app).journal.history(["order"], "2", 9) == journal

    def test_programs_are_told_of_each(self, app: Celery, worker: Worker) -> None:
        place_three(worker)
        define(rise=1)
        result = run(app, "replay", "order", "1", "2", "4", "--json")
        same, different, unknown = map(json.loads, result.stdout.splitlines())
        id = backend_of(app).journal.history(["order"], "1", 1)[0].instance_id
        about = {"saga": "order", "key": "1", "id": id, "messages": 2, "difference": None, "problem": None}
        assert (result.exit_code, same) == (1, about)
        assert different["difference"].startswith("message 1 (order.place, ")
        assert (unknown["key"], unknown["id"], unknown["messages"], unknown["difference"]) == ("4", "", 0, None)
        assert unknown["problem"].startswith("order '4': the journal knows no instance")

    def test_those_that_began_lately_are_replayed(self, app: Celery, worker: Worker) -> None:
        place_three(worker)
        assert run(app, "replay", "order", "--since", "1d").output == "3 instances were replayed, 0 of them with a difference.\n"
        result = run(app, "replay", "Order", "--since", "5m", "--limit", "2")
        assert result.output == "2 instances were replayed, 0 of them with a difference.\n"


@pytest.mark.parametrize("is_eager", [False, True])
def test_nothing_is_published_run_or_looked_up(app: Celery, worker: Worker, is_eager: bool) -> None:
    ran: list[str] = []

    @app.task(name="mail")
    def mail(text: str) -> None:
        ran.append(text)

    app.conf.saga_direct_publish = "allow"
    registry.sagas.clear()

    class Order(Saga, correlate_by="order_id", history="messages"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        mail.delay("directly")
        order.send(mail.s("with the commit"))
        seen.append(Order.find("other"))

    seen: list[Any] = []
    place.delay("other")
    worker.run()
    place.delay("42")
    worker.run()
    ran.clear()
    seen.clear()
    app.conf.task_always_eager = is_eager
    result = run(app, "replay", "order", "42")
    app.conf.task_always_eager = False
    assert result.output == "1 instance was replayed, 0 of them with a difference.\n"
    assert (ran, seen, worker.waiting()) == ([], [None], [])


@pytest.mark.parametrize("arguments", [(), ("1", "--since", "1d")])
def test_keys_or_a_time(app: Celery, arguments: tuple[str, ...]) -> None:
    assert "name keys, or give --since" in run(app, "replay", "order", *arguments).output


@pytest.mark.parametrize("age", ["1", "d", "1.5d", "1y", "-1d", ""])
def test_a_time_that_is_none(app: Celery, age: str) -> None:
    assert "is no time such as 1d, 12h, 30m or 2w" in run(app, "replay", "order", "--since", age).output


def test_keys_come_from_stdin(app: Celery, worker: Worker) -> None:
    place_three(worker)
    given = ["replay", "order", "-"]
    result = CliRunner().invoke(sagas, given, obj=SimpleNamespace(app=app), input="1\n\n3\n")
    assert result.output == "2 instances were replayed, 0 of them with a difference.\n"


def test_those_that_cannot_be_replayed_are_counted(app: Celery, worker: Worker) -> None:
    place_three(worker)
    result = run(app, "replay", "order", "1", *(f"none-{number}" for number in range(12)))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("order 'none-0': the journal knows no instance")
    assert lines[10:] == [
        "and 2 more cannot be replayed",
        "1 instance was replayed, 0 of them with a difference.",
        "12 could not be replayed.",
    ]


def test_only_the_first_differences_are_shown(app: Celery, worker: Worker) -> None:
    place, _ = define()
    keys = [str(number) for number in range(12)]
    for key in keys:
        place.delay(key, 5)
    worker.run()
    define(rise=1)
    lines = run(app, "replay", "order", *keys).output.splitlines()
    assert sum("differs at message 1" in line for line in lines) == 10
    assert lines[-2:] == ["and 2 more differ", "12 instances were replayed, 12 of them with a difference."]


def test_what_cannot_be_read_is_one_of_those_that_cannot_be_replayed(app: Celery, worker: Worker) -> None:
    place_three(worker)
    journal = backend_of(app).sagas._state.journal  # type: ignore[attr-defined]
    unread = next(handling for handling, entry in journal.items() if entry.key == "2")
    journal[unread] = journal[unread]._replace(detail="[" * 300 + "]" * 300)
    result = run(app, "replay", "order", "--since", "1d")
    assert "order '2': the journal's entry of version" in result.output
    assert result.output.splitlines()[-2].startswith("2 instances were replayed")
    assert result.output.splitlines()[-1] == "1 could not be replayed."


def test_a_saga_without_history(app: Celery, worker: Worker) -> None:
    place_three(worker, history=None)
    result = run(app, "export", "order", "1")
    assert result.exit_code == 1
    assert 'Declare class Order(Saga, …, history="messages")' in result.output
    result = run(app, "replay", "order", "--since", "1d")
    assert (result.output.splitlines()[-1], result.exit_code) == ("3 could not be replayed.", 1)


def test_an_unknown_saga(app: Celery) -> None:
    define()
    assert "unknown saga parcel; known: order" in run(app, "export", "parcel", "1").output
    assert "unknown saga parcel; known: order" in run(app, "replay", "parcel", "1").output


def test_a_file_that_cannot_be_written_is_left_alone(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """An error leaves no empty file behind."""
    define()
    assert run(app, "export", "order", "none", "-o", str(tmp_path / "none.json")).exit_code == 1
    assert list(tmp_path.iterdir()) == []
