"""Whether this code can go on with what is stored."""

import json
import os
import signal
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.core.encoding import MARK
from celery_sagas.core.registry import registry
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.operator import Operator
from celery_sagas.stores.encoded.backend import EncodedBackend
from celery_sagas.stores.records import Record
from celery_sagas.testing.samples import HOUR, by_key, effects, found, outgoing
from celery_sagas.worker.runtime import close_runtime
from tests.apps import Worker, backend_of
from tests.cli.test_describe import run
from tests.cli.test_show import put
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

WHY = ("--reason", "release 7", "--actor", "ann")
CODEC = "tests.stores.encoded.reversing:codec"
SECRET = "tachycardia"


@pytest.fixture
def worker(app: Celery) -> Worker:
    """A worker that runs each message as a task."""
    return Worker(app)


def define(version: int = 1, *, also: bool = False) -> Any:
    """Define the saga as the code of a release does; the second has pence, and lists by city."""
    names = {"search_by": "city"} if also else {}
    for table in (registry.sagas, registry.steps):
        table.clear()

    if version == 1:

        class Order(Saga, correlate_by="order_id", **names):
            order_id: str
            city: str = "Oslo"
            total: str = "1.50"

    else:

        class Order(Saga, correlate_by="order_id", schema_version=2, **names):
            order_id: str
            city: str = "Oslo"
            pence: int = 0

            @classmethod
            def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
                data["pence"] = round(float(data.pop("total")) * 100)
                return data

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.schedule(remind, after=HOUR / 1000, name="delivery")

    @Order.handles
    def remind(order: Order) -> None: ...

    return Order


def begin(app: Celery, worker: Worker, count: int = 3) -> None:
    """Have the code of the first release begin orders."""
    define()
    for number in range(count):
        app.send_task("order.place", kwargs={"order_id": str(number)}, ignore_result=True)
    worker.run()


def order(app: Celery, key: str = "0") -> Record:
    return found(backend_of(app), by_key(key, ("order",)))


def damage(app: Celery, key: str, data: str) -> None:
    put(app, order(app, key).pending, key=key, data=data)


def test_nothing_is_wrong(app: Celery, worker: Worker) -> None:
    begin(app, worker)
    result = run(app, "check")
    assert (result.exit_code, result.output) == (0, "order: 3 checked, 0 would fail, 0 of an older form.\n")
    assert run(app, "check", "order").output == result.output


def test_older_form_is_counted_and_nothing_is_written(app: Celery, worker: Worker) -> None:
    begin(app, worker)
    before = order(app)
    define(2)
    result = run(app, "check", "order")
    assert (result.exit_code, result.output) == (0, "order: 3 checked, 0 would fail, 3 of an older form.\n")
    assert order(app) == before


def test_those_that_would_fail_are_named_without_values(app: Celery, worker: Worker) -> None:
    begin(app, worker)
    damage(app, "1", f'{{"order_id": "1", "city": ["{SECRET}"], "total": "1"}}')
    damage(app, "2", f'{{"order_id": "2", "total": "{SECRET}"}}')
    result = run(app, "check", "order")
    assert result.exit_code == 1
    assert "order 1: city: Input should be a valid string\n" in result.output
    assert result.output.endswith("order: 3 checked, 1 would fail, 1 of an older form.\n")
    define(2)
    result = run(app, "check", "order")
    assert "order 2: upgrade() from schema version 1 raised ValueError\n" in result.output
    assert SECRET not in result.output


def test_any_error_of_upgrade_is_a_problem_of_one_instance(app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(app, worker)

    def refuse(data: dict[str, Any], schema_version: int) -> dict[str, Any]:
        if data["order_id"] == "1":
            raise OSError(SECRET)
        return data

    monkeypatch.setattr(define(2), "upgrade", refuse)
    result = run(app, "check", "order")
    assert result.exit_code == 1
    assert "order 1: loading it raised OSError\n" in result.output
    assert result.output.endswith("order: 3 checked, 1 would fail, 2 of an older form.\n")
    assert SECRET not in result.output


def test_json(app: Celery, worker: Worker) -> None:
    begin(app, worker, 2)
    damage(app, "1", '{"order_id": "1", "city": 7}')
    result = run(app, "check", "--json")
    problem, counts = map(json.loads, result.stdout.splitlines())
    id = order(app, "1").id
    assert problem == {"saga": "order", "key": "1", "id": id, "path": "city", "problem": "Input should be a valid string"}
    assert counts == {"saga": "order", "checked": 2, "failed": 1, "old": 0, "written": 0, "after": ""}


def test_step_that_is_gone(app: Celery, worker: Worker) -> None:
    """A timeout would come to nobody."""
    begin(app, worker, 1)
    del registry.steps["order.remind"]
    del app.tasks["order.remind"]
    result = run(app, "check", "order")
    assert result.exit_code == 1
    assert "order 0: timeouts.delivery: this app has no step order.remind\n" in result.output


def test_damaged_pending_map_and_newer_state(app: Celery, worker: Worker) -> None:
    begin(app, worker)
    put(app, "[]", key="1", data=order(app, "1").data)
    put(app, order(app, "2").pending, key="2", data=order(app, "2").data, schema_version=7)
    output = run(app, "check", "order").output
    assert "order 1: the pending map is not of its form" in output
    assert "order 2: newer code wrote it\n" in output


def test_task_that_no_app_has_is_told(app: Celery, worker: Worker) -> None:
    begin(app, worker, 1)
    backend = backend_of(app)
    backend.sagas.record(effects(None, outgoing()))
    result = run(app, "check")
    assert result.exit_code == 0
    assert "1 message is due to shop.ship, which this app does not have: is it that of another service?" in result.stderr


def test_upgrade_on_every_store(stored_app: Celery) -> None:
    begin(stored_app, Worker(stored_app))
    before = order(stored_app)
    define(2, also=True)
    result = run(stored_app, "check", "order", "--upgrade", *WHY)
    assert (result.exit_code, result.output) == (
        0,
        "order: 3 checked, 0 would fail, 3 of an older form, 3 stored again.\n",
    )
    after = order(stored_app)
    assert json.loads(after.data) == {"order_id": "0", "city": "Oslo", "pence": 150}
    assert (after.schema_version, after.version) == (2, before.version + 1)
    entry = backend_of(stored_app).audit.recent(1).entries[0]
    assert (entry.action, entry.actor, entry.reason) == ("upgrade", "ann", "release 7")
    assert len(backend_of(stored_app).instances.tagged("order", ("city", "Oslo"), 9).instances) == 3
    again = run(stored_app, "check", "order", "--upgrade", *WHY)
    assert again.output == "order: 3 checked, 0 would fail, 0 of an older form, 0 stored again.\n"


def test_rewrite_encodes_what_was_stored_before(stored_app: Celery) -> None:
    begin(stored_app, Worker(stored_app))
    before = order(stored_app)
    close_runtime(stored_app)
    stored_app.conf.saga_codec = CODEC
    result = run(stored_app, "check", "order", "--rewrite", *WHY)
    assert result.output == "order: 3 checked, 0 would fail, 0 of an older form, 3 stored again.\n"
    after = order(stored_app)
    assert after.data == before.data
    backend = backend_of(stored_app)
    assert isinstance(backend, EncodedBackend)
    assert found(backend.inner, by_key("0", ("order",))).data.startswith(MARK)
    stored_app.conf.saga_codec = None
    close_runtime(stored_app)
    output = run(stored_app, "check", "order").output
    assert output.count("it cannot be decoded by saga_codec\n") == 3
    assert output.endswith("order: 3 checked, 3 would fail, 0 of an older form.\n")


def test_goes_on_behind_a_cursor(app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it after the instance at hand; what was stored again is not stored once more."""
    begin(app, worker)
    define(2)
    upgrade = OperatedInstance.upgrade

    def interrupted(self: Any, reason: str, **how: Any) -> Any:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        return upgrade(self, reason, **how)

    monkeypatch.setattr(OperatedInstance, "upgrade", interrupted)
    result = run(app, "check", "order", "--rewrite", *WHY)
    assert result.exit_code == 1
    assert result.stdout == "order: 1 checked, 0 would fail, 1 of an older form, 1 stored again.\n"
    cursor = result.stderr.removeprefix("Go on with: check order --after ").strip()
    result = run(app, "check", "order", "--rewrite", "--after", cursor, *WHY)
    assert result.output == "order: 2 checked, 0 would fail, 2 of an older form, 2 stored again.\n"
    assert {order(app, key).version for key in "012"} == {2}


def test_upgrade_that_fails(app: Celery, worker: Worker) -> None:
    """The others are stored."""
    begin(app, worker)
    define(2)
    app.conf.saga_max_state_bytes = 1_000
    close_runtime(app)
    damage(app, "1", json.dumps({"order_id": "1", "total": "1", "city": "x" * 1_000}))
    result = run(app, "check", "order", "--upgrade", *WHY)
    assert result.exit_code == 1
    assert "saga_max_state_bytes allows 1,000" in result.output
    assert result.output.endswith("order: 3 checked, 1 would fail, 3 of an older form, 2 stored again.\n")


def test_in_python(app: Celery, worker: Worker) -> None:
    begin(app, worker, 1)
    instance = Operator(app, "ann").instance("order", "0")
    assert instance.upgrade("why").text == "it is stored as this code would store it"
    assert instance.upgrade("why", always=True).text == "is stored again as it is"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--after", "00000000:x"], "--after goes on with one saga: name it"),
        (["order", "--after", "x"], "is no place in the order of pages"),
        (["order", "--upgrade"], "say why it is written: --reason"),
        (["ordr"], "Did you mean order?"),
    ],
)
def test_wrong_input(app: Celery, worker: Worker, words: list[str], problem: str) -> None:
    begin(app, worker, 1)
    result = run(app, "check", *words)
    assert result.exit_code != 0
    assert problem in result.output
