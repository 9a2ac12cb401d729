"""``celery sagas doctor``."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.operate.doctor import asking, configuration, stores, workers
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.samples import audited, dead_letter, entry, outgoing, send
from tests.apps import NewApp, backend_of
from tests.cli.test_describe import run
from tests.cli.test_show import HOSTILE
from tests.cli.test_tables import is_safe
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

STATIC = [rule.id for rule in configuration.RULES]
WITHOUT_SERVERS = {"broker_url": "amqp://guest:s3cret@127.0.0.1:1//", "saga_backend": "redis://:s3cret@127.0.0.1:2/0"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no workers here to wait for."""
    monkeypatch.setattr(asking, "_ANSWER_S", 0.05)


@pytest.fixture
def order(definitions: None) -> Any:
    """A saga."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    return SimpleNamespace(place=place)


def without_servers(new_app: NewApp) -> Celery:
    """Make an app whose broker and backend are away."""
    app = new_app()
    app.conf.update(WITHOUT_SERVERS, saga_backend_options={"retries": 0})
    app.conf.broker_write_url = app.conf.broker_read_url = app.conf.broker_url
    return app


def levels(app: Celery, *words: str, status: int = 3) -> dict[str, str]:
    """Return the level of each check that is printed."""
    result = run(app, "doctor", "--json", *words)
    assert result.exit_code == status, result.output
    return {each["id"]: each["level"] for each in map(json.loads, result.output.splitlines())}


class TestEachStore:
    """On every store; nobody answers on the broker, which is in memory."""

    def test_it_is_read(self, stored_app: Celery, order: Any) -> None:
        order.place("42")
        found = levels(stored_app)
        assert [found.pop(id) for id in STATIC] == ["OK"] * len(STATIC)
        assert found.pop("D13") == "WARN"
        assert found.pop("D11") in ("OK", "WARN")  # of the tests' servers some may lose what they keep
        found.pop("D19", "")
        found.pop("D20", "")
        assert found == dict.fromkeys(["D21", "D10", "D12", "D14", "D17", "D18", "D22"], "OK")
        backend_of(stored_app).switches.hold("order", audited(entry()))
        assert levels(stored_app)["D23"] == "WARN"

    def test_what_is_wrong_there(self, stored_app: Celery, order: Any) -> None:
        backend = backend_of(stored_app)
        backend.dead.add(dead_letter())
        send(backend, row := outgoing("scheduled", due_at=1))
        backend.outbox.fail("relay", backend.outbox.claim_due("relay", 9, 60_000)[0].id, f"no queue {HOSTILE}", 60_000)
        assert row.id
        found = levels(stored_app)
        assert (found["D14"], found["D17"]) == ("WARN", "WARN")
        assert all(map(is_safe, run(stored_app, "doctor").output.splitlines()))


def test_lines(app: Celery, order: Any) -> None:
    lines = run(app, "doctor", "--static").output.splitlines()
    assert lines[0] == "OK    D01  The settings and the definitions are valid."
    assert len(lines) == len(STATIC)
    app.conf.task_always_eager = True
    lines = run(app, "doctor", "--static").output.splitlines()
    assert lines[2].startswith("FAIL  D03  task_always_eager is on")
    assert lines[3] == "           → Remove task_always_eager from the settings of everything but tests"


def test_static_checks_need_no_server(new_app: NewApp, order: Any) -> None:
    app = without_servers(new_app)
    assert levels(app, "--static", status=0) == dict.fromkeys(STATIC, "OK")


def test_servers_that_are_away(new_app: NewApp, order: Any) -> None:
    """The rest is checked all the same, and no secret is shown."""
    app = without_servers(new_app)
    assert levels(app) == {**dict.fromkeys(STATIC, "OK"), "D21": "FAIL", "D10": "FAIL"}
    output = run(app, "doctor").output
    assert "s3cret" not in output
    assert "127.0.0.1:1" in output
    assert "127.0.0.1:2" in output


def test_one_backend_that_is_away(new_app: NewApp, order: Any) -> None:
    """The others are checked."""

    class Parcel(Saga, correlate_by="number", backend="away"):
        number: str

    options = {"retries": 0}
    app = new_app(saga_backends={"away": {"backend": "redis://127.0.0.1:2/0", "options": options}})
    found = [json.loads(line) for line in run(app, "doctor", "--json").output.splitlines()]
    assert [each["level"] for each in found if each["id"] == "D10"] == ["OK", "FAIL"]
    assert [each["about"] for each in found if each["id"] == "D17"] == [app.conf.saga_backend]


def test_broker_that_goes_away(app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> Any:
        raise ConnectionResetError("amqp://guest:s3cret@127.0.0.1")

    monkeypatch.setattr(app.control, "broadcast", away)
    result = run(app, "doctor")
    assert "it has stopped answering: ConnectionResetError" in result.output
    assert "s3cret" not in result.output
    assert "OK    D17" in result.output


def test_wrong_setting(app: Celery, order: Any) -> None:
    """What it does not hide is checked all the same."""
    app.conf.saga_batch = 0
    assert levels(app) == {**dict.fromkeys(STATIC, "OK"), "D01": "FAIL"}
    result = run(app, "doctor")
    assert "FAIL  D01  No worker starts: saga_batch: " in result.output


def test_eager_app(new_app: NewApp, order: Any) -> None:
    """It has no workers that could be asked, and its backend is not prepared."""
    app = new_app(eager=True)
    found = levels(app)
    assert found["D03"] == "FAIL"
    assert found["D10"] == "OK"
    assert not found.keys() & {"D13", "D15", "D16", "D21"}


def test_file_that_is_missing_is_not_made(new_app: NewApp, order: Any, tmp_path: Path) -> None:
    app = new_app()
    app.conf.saga_backend = f"sqlite:///{tmp_path}/none.sqlite3"
    found = levels(app)
    assert found["D10"] == "FAIL"
    assert "D17" not in found
    assert list(tmp_path.iterdir()) == []


def test_backends_are_closed(app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(MemoryBackend, "close", lambda self: closed.append(self.url))
    run(app, "doctor")
    assert closed == [app.conf.saga_backend]


def test_the_page_lists_all_checks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text("utf-8")
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `D")}
    rules: tuple[Any, ...] = (*configuration.RULES, *stores.REACHED, *stores.STORED, *workers.BROKER, *workers.ANSWERED)
    assert listed == {rule.id for rule in rules}, "list the check in the table of docs/operating.md"
