"""One act on many instances."""

import json
import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from click.testing import Result

from celery_sagas import Saga
from celery_sagas.core.deferred import Deferred
from celery_sagas.core.registry import registry
from celery_sagas.errors import MisuseError
from celery_sagas.operate import Done, OperatedInstance, Operator
from celery_sagas.stores.records import Change, Outgoing
from celery_sagas.testing.samples import HOUR, by_key, effects, found
from tests.apps import Worker, backend_of
from tests.cli.test_describe import run
from tests.cli.test_show import put
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

WHY = ("--reason", "INC-881", "--actor", "ann")
CITIES = ("Oslo", "Bergen", "Oslo", "Oslo")


@pytest.fixture
def order(app: Celery, definitions: None, worker: Worker) -> Any:
    """Four orders, three of them in Oslo."""
    return orders(app, worker)


def orders(app: Celery, worker: Worker) -> Any:
    """Define orders, and begin four."""

    class Order(Saga, correlate_by="order_id", search_by="city"):
        order_id: str
        city: str = "Oslo"
        reminded: int = 0

    @Order.starts
    def place(order: Order, order_id: str, city: str) -> None:
        order.city = city
        if order_id != "3":
            order.schedule(remind, after=HOUR / 1000, name="delivery")

    @Order.handles
    def remind(order: Order) -> None:
        order.reminded += 1

    for number, city in enumerate(CITIES):
        app.send_task("order.place", kwargs={"order_id": str(number), "city": city}, ignore_result=True)
    worker.run()
    return Order


def actions(app: Celery) -> list[tuple[str, str]]:
    """Return what was done to which instance."""
    entries = backend_of(app).audit.recent(500).entries
    return sorted((entry.action, entry.key) for entry in entries)


def test_acts_on_those_with_a_value(app: Celery, order: Any) -> None:
    result = run(app, "each", "pause", "order", "--by", "city=Oslo", "--expect", "3", *WHY)
    assert result.exit_code == 0, result.output
    assert result.output.count("is paused: its messages wait until it is resumed\n") == 3
    assert result.output.endswith("3 done, 0 with nothing to be done, 0 failed.\n")
    assert actions(app) == [("pause", key) for key in ("0", "2", "3")]
    result = run(app, "each", "resume", "order", "--paused", "--expect", "3", "--json", *WHY)
    known = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(each["key"] for each in known) == ["0", "2", "3"]
    assert all(each["changed"] for each in known)


def test_repetition_does_what_is_left(app: Celery, order: Any) -> None:
    Operator(app, "bob").instance(order, "1").pause("before")
    result = run(app, "each", "pause", "order", "--expect", "4", *WHY)
    assert result.output.endswith("3 done, 1 with nothing to be done, 0 failed.\n")


def test_asks_with_the_number(app: Celery, order: Any) -> None:
    result = run(app, "each", "terminate", "order", *WHY)
    assert (result.exit_code, "terminate 4 instances of order?" in result.output) == (1, True)
    assert actions(app) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["pause", "order", "--expect", "3"], "there are 4 such instances, and 3 were expected: nothing was done"),
        (["pause", "order", "--by", "city=Oslo", "--paused"], "choose by one of these: a field in search_by, paused"),
        (["pause", "order", "--late", "--idle", "3d"], "choose by one of these: idle, late"),
        (["pause", "order", "--from", "/dev/null", "--where", "true"], "--from names the instances: no other option chooses"),
        (["pause", "order", "delivery"], "pause takes no NAME"),
        (["fire", "order"], "fire takes the NAME of a timeout"),
        (["answer", "order"], "'answer' is not one of"),
        (["pause", "ordr"], "Did you mean order?"),
        (["pause", "order", "--by", "town=Oslo"], "it cannot be listed by town"),
        (["pause", "order", "--per-second", "0"], "0"),
    ],
)
def test_wrong_input(app: Celery, order: Any, words: list[str], problem: str) -> None:
    result = run(app, "each", *words, *WHY)
    assert result.exit_code != 0
    assert problem in " ".join(result.output.split())
    assert actions(app) == []


def test_dry_run_asks_nothing_and_writes_nothing(app: Celery, order: Any) -> None:
    result = run(app, "each", "terminate", "order", "--dry-run", *WHY)
    assert result.exit_code == 0
    assert "4 done (a dry run: nothing was written), 0 with nothing to be done, 0 failed." in result.output
    assert actions(app) == []


class TestFailures:
    def test_are_written_down_and_done_again(self, app: Celery, order: Any, tmp_path: Path) -> None:
        """The order 3 has no such timeout."""
        file = tmp_path / "failed.jsonl"
        result = run(app, "each", "skip", "order", "delivery", "--expect", "4", "--failed-to", str(file), *WHY)
        assert result.exit_code == 1
        assert "order '3' does not wait for delivery" in result.output
        assert "3 done, 0 with nothing to be done, 1 failed." in result.output
        (failed,) = [json.loads(line) for line in file.read_text().splitlines()]
        assert (failed["saga"], "does not wait for" in failed["error"]) == ("order", True)
        result = run(app, "each", "terminate", "order", "--from", str(file), "--expect", "1", *WHY)
        assert result.exit_code == 0, result.output
        assert [each for each in actions(app) if each[0] == "terminate"] == [("terminate", "3")]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [("{", "line 1 is none that --failed-to has written"), ('{"saga": "cart", "id": "x"}', "line 1 is about cart")],
    )
    def test_file_of_another_kind(self, app: Celery, order: Any, tmp_path: Path, text: str, problem: str) -> None:
        file = tmp_path / "failed.jsonl"
        file.write_text(text)
        result = run(app, "each", "pause", "order", "--from", str(file), "--expect", "1", *WHY)
        assert (result.exit_code, problem in result.output) == (1, True)

    def test_batch_that_cannot_be_kept(self, app: Celery, order: Any) -> None:
        result = run(app, "each", "pause", "order", "--batch", "\udcff", "--expect", "4", *WHY)
        assert (result.exit_code, "batch= " in result.output) == (2, True)
        assert actions(app) == []

    def test_instance_that_has_ended_meanwhile(self, app: Celery, order: Any, tmp_path: Path) -> None:
        file = tmp_path / "failed.jsonl"
        file.write_text(json.dumps({"saga": "order", "id": order.find("0").saga.id}))
        Operator(app, "bob").instance(order, "0").terminate("before")
        result = run(app, "each", "pause", "order", "--from", str(file), "--expect", "1", *WHY)
        assert (result.exit_code, "0 done, 0 with nothing to be done, 0 failed, 1 gone." in result.output) == (0, True)

    def test_file_of_an_earlier_run_is_overwritten(self, app: Celery, order: Any, tmp_path: Path) -> None:
        file = tmp_path / "failed.jsonl"
        file.write_text(json.dumps({"saga": "order", "id": order.find("0").saga.id}))
        named = ("--failed-to", str(file), *WHY)
        assert "overwrite the file of --from" in run(app, "each", "pause", "order", "--from", str(file), *named).output
        (link := tmp_path / "link").symlink_to(file)
        assert "overwrite the file of --from" in run(app, "each", "pause", "order", "--from", str(link), *named).output
        assert run(app, "each", "pause", "order", *named).exit_code == 1  # nobody has agreed
        assert file.read_text()
        assert run(app, "each", "pause", "order", "--expect", "4", *named).exit_code == 0
        assert file.read_text() == ""


def test_ctrl_c_ends_it_after_the_one_at_hand(app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    act = OperatedInstance.pause

    def interrupted(self: OperatedInstance, reason: str) -> Done:
        done = act(self, reason)
        os.kill(os.getpid(), signal.SIGINT)
        return done

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(OperatedInstance, "pause", interrupted)
    result = run(app, "each", "pause", "order", "--expect", "4", *WHY)
    assert result.exit_code == 1
    assert "Stopped after 1 of 4.\nRun it again with --batch " in result.output
    assert len(actions(app)) == 1
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert len(progress(run(app, "each", "pause", "order", "--expect", "4", "--per-second", "200", *WHY))) == 3


class TestBatch:
    def test_acts_once_on_each(self, app: Celery, order: Any) -> None:
        """Also if the act could be done again: only the order 3 has no such timeout."""
        fire = ("each", "fire", "order", "delivery", *WHY)
        result = run(app, *fire, "--expect", "4")
        assert (result.exit_code, "3 done, 0 with nothing to be done, 1 failed." in result.output) == (1, True)
        [batch] = re.findall(r"^Run it again with --batch (\S+) to go on\.$", result.output, re.MULTILINE)
        result = run(app, *fire, "--expect", "4", "--batch", batch)
        assert result.output.count("it was done before") == 3
        assert "0 done, 3 with nothing to be done, 1 failed." in result.output
        assert f"Run it again with --batch {batch} to go on." in result.output
        assert actions(app) == [("fire", key) for key in ("0", "1", "2")]
        assert "3 done" in run(app, *fire, "--expect", "4").output
        assert len(actions(app)) == 6

    def test_earlier_act_is_looked_for_only_in_an_earlier_batch(
        self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sagas = type(backend_of(app).sagas)
        find, looked_for = sagas.find, list[Any]()

        def noting(self: Any, lookup: Any, handling: Any = None) -> Any:
            looked_for.append(handling)
            return find(self, lookup, handling)

        monkeypatch.setattr(sagas, "find", noting)
        run(app, "each", "pause", "order", "--expect", "4", *WHY)
        assert looked_for == [None] * 4
        run(app, "each", "resume", "order", "--expect", "4", "--batch", "INC-881", *WHY)
        assert [each is None for each in looked_for[4:]] == [True, False] * 4

    def test_is_named_also_if_it_ends_at_once(self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(self: OperatedInstance, reason: str) -> Done:
            raise KeyboardInterrupt

        monkeypatch.setattr(OperatedInstance, "pause", interrupted)
        result = run(app, "each", "pause", "order", "--expect", "4", "--batch", "INC-881", *WHY)
        assert result.exit_code == 1
        assert "Stopped after 0 of 4.\nRun it again with --batch INC-881 to go on.\n" in result.output

    def test_is_not_named_if_nothing_is_left(self, app: Celery, order: Any) -> None:
        assert "--batch" not in run(app, "each", "pause", "order", "--expect", "4", *WHY).output
        assert "--batch" not in run(app, "each", "skip", "order", "delivery", "--dry-run", *WHY).output


def progress(result: Result) -> list[str]:
    """Return the lines about instances that were paused."""
    return [line for line in result.output.splitlines() if "is paused" in line]


def test_too_many(app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.cli.each._MOST", 3)
    assert "there are more than 3 such instances: choose fewer" in run(app, "each", "pause", "order", *WHY).output


def test_on_each_store(stored_app: Celery, definitions: None) -> None:
    """Those that were idle for a time are found by when they were changed."""
    order = orders(stored_app, Worker(stored_app))
    ann = Operator(stored_app, "ann")
    assert [instance.fire("delivery", "now").changed for instance in ann.instances(order, city="Bergen")] == [True]
    assert list(ann.instances("order", idle=3_600)) == []
    assert len(list(ann.instances("order", idle=0))) == 4
    assert all(instance.pause("INC-1").changed for instance in ann.instances(order))
    assert len(list(ann.instances(order, paused=True))) == 4
    assert all(instance.terminate("INC-1").changed for instance in ann.instances(order, paused=True))
    assert list(ann.instances(order)) == []


@pytest.fixture
def late_app(stored_app: Celery, definitions: None) -> Celery:
    """An app with four orders on each store. The reminders of 0 and 1 were published, and not handled; twice that of 1."""
    orders(stored_app, Worker(stored_app))
    outbox = backend_of(stored_app).outbox
    for key, times in (("0", 1), ("1", 2)):
        put(stored_app, "{}", *[partial(row_of, message=f"{key} {each}") for each in range(times)], key=key, step="order.place")
    outbox.confirm("relay", [row.id for row in outbox.claim_due("relay", 9, HOUR)], HOUR)
    return stored_app


def row_of(id: str, message: str) -> Outgoing:
    """Return the row of a reminder that is due."""
    return Outgoing(id, "scheduled", message, "order.remind", "{}", 1)


class TestLate:
    def test_are_found_once(self, late_app: Celery) -> None:
        ann = Operator(late_app, "ann")
        assert list(ann.instances("order", late=timedelta(minutes=15))) == []
        assert sorted(each.lookup.value for each in ann.instances("order", late=0)) == sorted(map(id_of(late_app), "01"))
        assert run(late_app, "list", "order", "--late").output == "There are no such instances of order.\n"
        listed = run(late_app, "list", "order", "--late", "0s").stdout.splitlines()
        assert [line.split()[0] for line in listed[1:]] == ["0", "1"]
        result = run(late_app, "each", "pause", "order", "--late", "0s", "--where", 'city == "Oslo"', "--expect", "1", *WHY)
        assert result.exit_code == 0, result.output
        assert actions(late_app) == [("pause", "0")]

    def test_those_that_have_come_and_wait_are_left_out(self, late_app: Celery) -> None:
        waiting = Deferred("0 0", "order.remind", 1, "again", "{}")
        put(late_app, json.dumps({"format": 2, "deferred": [waiting.to_json()]}), key="0", step="order.place")
        listed = run(late_app, "list", "order", "--late", "0s").stdout.splitlines()
        assert [line.split()[0] for line in listed[1:]] == ["1"]

    def test_those_that_are_gone_or_damaged(self, late_app: Celery) -> None:
        Operator(late_app, "bob").instance("order", "0").terminate("before")
        put(late_app, "nonsense", key="1", step="order.place")
        result = run(late_app, "each", "pause", "order", "--late", "0s", "--expect", "1", *WHY)
        assert (result.exit_code, "1 failed" in result.output) == (1, True)

    def test_many(self, late_app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        result = run(late_app, "list", "order", "--late", "0s", "--where", "true", "--scan", "1")
        assert result.stderr == "Looked at 1 of more: --scan looks at more.\n"
        monkeypatch.setattr("celery_sagas.operate.choosing.MOST", 1)
        monkeypatch.setattr("celery_sagas.operate.choosing.LOOKED_AT", 2)
        assert "There may be more" in run(late_app, "list", "order", "--late", "0s").stderr
        assert len(list(Operator(late_app, "ann").instances("order", late=0))) == 2
        assert "There may be more late instances of order" in caplog.text


def id_of(app: Celery) -> Callable[[str], str]:
    """Return a function that returns the id of an order."""
    return lambda key: found(backend_of(app), by_key(key, ("order",))).id


class TestReindex:
    def test_on_each_store(self, stored_app: Celery, definitions: None) -> None:
        """Instances that were stored before the saga named a field are found by it, once."""
        tickets(stored_app, Worker(stored_app))
        ticket = ticket_of(also_by=("code", "seat"), search_by=("row", "hall"))
        ann = Operator(stored_app, "ann")
        assert (list(ann.instances(ticket, hall="north")), ticket.find(seat="n-1")) == ([], None)
        planned = run(stored_app, "each", "reindex", "ticket", "--dry-run", *WHY)
        assert "2 done (a dry run: nothing was written), 0 with nothing to be done, 0 failed." in planned.output
        assert actions(stored_app) == []
        result = run(stored_app, "each", "reindex", "ticket", "--expect", "2", *WHY)
        assert (result.exit_code, result.output.count("is indexed again by seat, hall")) == (0, 2)
        assert len(list(ann.instances(ticket, hall="north"))) == 2
        assert ticket.find(seat="n-1").number == "1"
        result = run(stored_app, "each", "reindex", "ticket", "--expect", "2", *WHY)
        assert (result.exit_code, result.stdout.count(": it is indexed as its saga says\n")) == (0, 2)
        assert "0 done, 2 with nothing to be done, 0 failed." in result.output
        assert actions(stored_app) == [("reindex", "0"), ("reindex", "1")]
        assert {known.saga.version for known in ticket.all()} == {2}

    def test_those_that_fail_are_named(self, app: Celery, definitions: None, worker: Worker, tmp_path: Path) -> None:
        """A state that does not load, and a key that another instance has."""
        tickets(app, worker)
        app.send_task("ticket.issue", kwargs={"number": "2", "seat": "n-0"}, ignore_result=True)
        worker.run()
        backend = backend_of(app)
        record = found(backend, by_key("1", ("ticket",)))
        backend.sagas.update(record, Change(("ticket",), 1, '{"number": 5}', record.pending), effects(record))
        ticket_of(also_by=("code", "seat"))
        file = tmp_path / "failed.jsonl"
        result = run(app, "each", "reindex", "ticket", "--expect", "3", "--failed-to", str(file), *WHY)
        assert result.exit_code == 1
        assert "1 done, 0 with nothing to be done, 2 failed." in result.output
        errors = sorted(json.loads(line)["error"] for line in file.read_text().splitlines())
        assert ("ticket '1' cannot be read" in errors[0], "seat" in errors[1], "n-0" in errors[1]) == (True, True, True), errors

    def test_all_of_a_saga(self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_sagas.cli.each._MOST", 3)
        result = run(app, "each", "reindex", "order", "--expect", "4", *WHY)
        assert (result.exit_code, "4 with nothing to be done" in result.output) == (0, True)


def tickets(app: Celery, worker: Worker) -> None:
    """Issue two tickets, of a saga that names one field of each kind."""
    ticket_of(also_by="code", search_by="row")
    for number in range(2):
        app.send_task("ticket.issue", kwargs={"number": str(number), "seat": f"n-{number}"}, ignore_result=True)
    worker.run()


def ticket_of(**declared: Any) -> Any:
    """Define tickets, which are found by other fields than before."""
    registry.sagas.clear()
    registry.steps.clear()

    class Ticket(Saga, correlate_by="number", **declared):
        number: str
        code: str | None = None
        row: int | None = None
        seat: str | None = None
        hall: str = "north"

    @Ticket.starts
    def issue(ticket: Ticket, number: str, seat: str) -> None:
        ticket.seat = seat

    return Ticket


def test_wrong_choices(app: Celery, order: Any) -> None:
    ann = Operator(app, "ann")
    with pytest.raises(TypeError, match="choose by one of these"):
        ann.instances(order, paused=True, city="Oslo")
    with pytest.raises(MisuseError, match="is no saga of this app"):
        ann.instances("cart")
