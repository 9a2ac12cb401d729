"""``--where``: instances chosen by their states."""

import json
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery
from click.testing import Result
from pydantic import Field

from celery_sagas import Saga
from celery_sagas.errors import MisuseError, UnreadableState
from celery_sagas.operate import OperatedInstance, Operator
from celery_sagas.stores.records import Change
from celery_sagas.testing.samples import by_key, effects, found
from tests.apps import Worker, backend_of
from tests.cli.test_describe import run
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

WHY = ("--reason", "INC-881", "--actor", "ann")


@pytest.fixture
def order(app: Celery, definitions: None, worker: Worker) -> Any:
    """Six orders of 0 to 500, half of them in Oslo."""
    return orders(app, worker)


def orders(app: Celery, worker: Worker) -> Any:
    """Define orders, and begin six."""

    class Order(Saga, correlate_by="order_id", search_by="city"):
        order_id: str
        city: str = "Oslo"
        total: Decimal = Decimal(0)
        pin: int = Field(1234, repr=False)
        api_token: str = "t-1"

    @Order.starts
    def place(order: Order, order_id: str, total: Decimal, city: str) -> None:
        order.total, order.city = total, city

    for number in range(6):
        given = {"order_id": str(number), "total": number * 100, "city": "Bergen" if number % 2 else "Oslo"}
        app.send_task("order.place", kwargs=given, ignore_result=True)
    worker.run()
    return Order


def spoil(app: Celery, key: str, data: str = "{", schema_version: int = 1) -> None:
    """Have the store keep another state of an order."""
    backend = backend_of(app)
    record = found(backend, by_key(key, ("order",)))
    backend.sagas.update(record, Change(("order",), schema_version, data, record.pending), effects(record))


def keys(result: Result) -> list[str]:
    """Return the keys in a list."""
    return [line.split()[0] for line in result.stdout.splitlines()[1:]]


def test_list(app: Celery, order: Any) -> None:
    assert keys(run(app, "list", "order", "--where", "total > 200")) == ["5", "4", "3"]
    assert keys(run(app, "list", "order", "--where", "total > 200", "--limit", "2")) == ["5", "4"]
    assert keys(run(app, "list", "order", "--where", "total > 200", "--oldest-first")) == ["3", "4", "5"]
    assert keys(run(app, "list", "order", "--where", "total > 200", "--by", "city=Oslo")) == ["4"]
    assert keys(run(app, "list", "order", "--where", "total > 200", "--paused")) == []
    (line,) = run(app, "list", "order", "--where", 'order_id == "2"', "--json").stdout.splitlines()
    assert json.loads(line)["key"] == "2"


def test_each(app: Celery, order: Any) -> None:
    result = run(app, "each", "pause", "order", "--where", "total >= 400", "--expect", "2", *WHY)
    assert (result.exit_code, result.stderr) == (0, "2 done, 0 with nothing to be done, 0 failed.\n")
    result = run(app, "each", "resume", "order", "--paused", "--where", "total == 400", "--expect", "1", *WHY)
    assert result.stdout == "order 4 goes on\n"
    result = run(app, "each", "pause", "order", "--idle", "0s", "--where", 'city == "Bergen"', "--dry-run", *WHY)
    assert result.stderr.startswith("2 done (a dry run: nothing was written), 1 with nothing to be done")


def test_says_how_far_it_has_looked(app: Celery, order: Any) -> None:
    result = run(app, "list", "order", "--where", "total < 300", "--scan", "4", "--json")
    assert [json.loads(line)["key"] for line in result.stdout.splitlines()] == ["2"]
    assert result.stderr.startswith("Looked at 4 of more, back to 20")
    assert result.exit_code == 0
    assert "Looked at 4 of more, up to 20" in run(app, "list", "order", "--where", "true", "--scan", "4", "--oldest-first").stderr
    result = run(app, "each", "pause", "order", "--where", "total < 300", "--scan", "5", "--expect", "2", *WHY)
    assert "Looked at 5 of more, back to 20" in result.stderr
    assert result.stdout.count("is paused") == 2
    assert "Looked" not in run(app, "list", "order", "--where", "true", "--scan", "6").stderr


def test_time_is_when_those_with_a_value_began(app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed by that."""
    monkeypatch.setattr("celery_sagas.cli.tables.time", str)
    glances = {glance.key: glance for glance in backend_of(app).instances.page("order", 9).instances}
    Operator(app, "ann").instance(order, "2").pause("later")
    result = run(app, "list", "order", "--by", "city=Oslo", "--where", "true", "--scan", "2")
    assert f"back to {glances['2'].created_at}:" in result.stderr


def test_those_that_cannot_be_read_are_named(app: Celery, order: Any) -> None:
    spoil(app, "3")
    spoil(app, "1", "[]")
    result = run(app, "list", "order", "--where", "total > 200")
    assert (keys(result), result.exit_code) == (["5", "4"], 1)
    assert "Error: The stored state of order '3' cannot be read" in result.stderr
    assert "order '1' cannot be read: it is no JSON object" in result.stderr
    result = run(app, "each", "pause", "order", "--where", "total > 200", "--expect", "2", *WHY)
    assert (result.exit_code, "2 done" in result.stderr, "order '3' cannot be read" in result.stderr) == (1, True, True)


def test_state_that_this_code_does_not_load_is_tested_as_it_is_stored(app: Celery, order: Any) -> None:
    spoil(app, "3", '{"total": "950", "city": 5}')
    spoil(app, "4", '{"total": "960"}', schema_version=9)
    assert keys(run(app, "list", "order", "--where", "total > 900")) == ["4", "3"]


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["list", "order", "--where", "pin == 1234"], 1, "pin of order is hidden"),
        (["list", "order", "--where", "'t' in api_token"], 1, "api_token of order is hidden"),
        (["list", "order", "--where", "totl > 5"], 1, "order has no field totl"),
        (["list", "order", "--where", "len(city) > 5"], 1, "(Call)"),
        (["list", "--where", "total > 5"], 2, "name a saga with"),
        (["list", "order", "--where", "total > 5", "--follow"], 2, "--follow is for all instances"),
        (["list", "order", "--where", "total > 5", "--scan", "0"], 2, "--scan"),
        (["each", "terminate", "order", "--where", "pin == 1234", *WHY], 1, "pin of order is hidden"),
        (["each", "terminate", "order", "--where", "total > 5", "--from", "/dev/null", *WHY], 2, "--from names the instances"),
    ],
)
def test_wrong_input(app: Celery, order: Any, words: list[str], status: int, problem: str) -> None:
    result = run(app, *words)
    assert (result.exit_code, problem in result.output) == (status, True), result.output


def test_on_each_store(stored_app: Celery, definitions: None) -> None:
    order = orders(stored_app, Worker(stored_app))
    ann = Operator(stored_app, "ann")
    assert keys_of(ann, order, where="total > 200") == ["3", "4", "5"]
    assert keys_of(ann, order, where="total > 200", city="Oslo") == ["4"]
    assert keys_of(ann, order, where="total > 200", idle=0) == ["3", "4", "5"]
    assert all(instance.pause("INC-1").changed for instance in ann.instances(order, where="total == 400"))
    assert keys_of(ann, order, where="true", paused=True) == ["4"]
    assert run(stored_app, "list", "order", "--where", "total < 300", "--scan", "3").stderr.startswith("Looked at 3 of more")


def keys_of(ann: Operator, order: Any, **chosen: Any) -> list[str]:
    """Return the keys of the chosen instances."""
    return sorted(shown["key"] for each in ann.instances(order, **chosen) if (shown := each.show()))


def test_operator_goes_on_after_one_that_cannot_be_read(app: Celery, order: Any) -> None:
    spoil(app, "4")
    chosen, seen = Operator(app, "ann").instances(order, where="total > 200"), list[Any]()
    while True:
        try:
            seen.append(next(chosen))
        except StopIteration:
            break
        except UnreadableState as exc:
            seen.append(exc.key)
    assert (seen.count("4"), sum(isinstance(each, OperatedInstance) for each in seen), len(seen)) == (1, 2, 3)


def test_operator_refuses_what_is_no_expression(app: Celery, order: Any) -> None:
    with pytest.raises(MisuseError, match="cannot be read"):
        Operator(app, "ann").instances(order, where="total >")
