"""Acts of operators, from the command line to the store and back to the steps."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from celery import Celery, shared_task
from pydantic import BaseModel, Field

from celery_sagas import Failure, Saga
from celery_sagas.core.pending import PAUSED
from celery_sagas.engine.acts.acting import Done
from celery_sagas.errors import MisuseError, StoreUnavailable
from celery_sagas.operate.actors import default_actor
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.operator import Operator
from celery_sagas.signals import instance_operated
from celery_sagas.stores.records import KEY, Lookup
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.serialization import deserialized
from tests.apps import Worker, backend_of
from tests.cli.test_describe import run
from tests.cli.test_show import put
from tests.cli.test_tables import is_safe
from tests.every_store import stored_app, url
from tests.waiting import wait_until

__all__ = ["stored_app", "url"]

WHY = ("--reason", "INC-881", "--actor", "ann")
#: What a step fails with.
UNLUCKY = 13
HOSTILE = "\x1b[2J\n\u202ex"


@shared_task
def charge(order_id: str) -> str:
    return "charged"


@shared_task
def weigh(order_id: str) -> int:
    return 5


class Card(BaseModel):
    number: str
    name: str = "Ann"


@pytest.fixture
def shop(definitions: None) -> Any:
    """Orders that pause, ask and wait; and carts that ask for orders."""

    class Order(Saga, correlate_by="order_id", also_by="tracking", search_by="city", status_by="status"):
        order_id: str
        city: str = "Oslo"
        tracking: str | None = None
        status: Literal["placed", "paid"] = "placed"
        card: Card | None = Field(default=None, repr=False)
        notes: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str, city: str = "Oslo", tracking: str | None = None) -> None:
        order.city, order.tracking, order.card = city, tracking, Card(number="4711")

    @Order.handles
    def ask(order: Order, order_id: str) -> None:
        order.send(charge.s(order_id), then=charged.s("visa"), otherwise=failed, within=3_600)
        order.send(weigh.s(order_id), then=weighed)
        order.schedule(remind, after=3_600, name="delivery")

    @Order.handles
    def add(order: Order, order_id: str, note: str) -> None:
        order.notes.append(note)

    @Order.handles
    def charged(order: Order, answer: str, by: str) -> None:
        order.notes.append(f"{answer} by {by}")

    @Order.handles
    def weighed(order: Order, answer: int) -> None:
        if answer == UNLUCKY:
            raise ValueError("it has no such weight")
        order.notes.append(f"weighs {answer}")

    @Order.handles
    def failed(order: Order, failure: Failure) -> None:
        order.notes.append(f"{failure.kind}: {failure.text}")

    @Order.handles
    def remind(order: Order) -> None:
        order.notes.append("reminded")

    class Cart(Saga, correlate_by="cart_id"):
        cart_id: str
        notes: list[str] = []

    @Cart.starts
    def fill(cart: Cart, cart_id: str, order_id: str) -> None:
        cart.send(place.s(order_id), then=placed, otherwise=lost)

    @Cart.handles
    def placed(cart: Cart, answer: Any) -> None:
        cart.notes.append(f"placed {answer}")

    @Cart.handles
    def lost(cart: Cart, failure: Failure) -> None:
        cart.notes.append(f"{failure.kind}: {failure.text}")

    return Order, Cart


def send(app: Celery, task: str, **arguments: Any) -> None:
    app.send_task(task, kwargs=arguments, ignore_result=True)


@pytest.fixture
def order(app: Celery, shop: Any, worker: Worker) -> Any:
    """The class of the order 42, which waits for a timeout, and for two answers; its tasks have not run."""
    order_class, _ = shop
    send(app, "order.place", order_id="42", city="Oslo", tracking="1Z")
    worker.run()
    send(app, "order.ask", order_id="42")
    worker.one()
    return order_class


def state(app: Celery) -> dict[str, Any]:
    """Return the stored fields of the order 42."""
    record = backend_of(app).sagas.find(Lookup(("order",), KEY, "42")).record
    assert record is not None, "there is no order 42"
    fields: dict[str, Any] = json.loads(record.data)
    return fields


def relay(app: Celery) -> None:
    """Publish what is due, and keep the rows of timeouts."""
    outbox = backend_of(app).outbox
    rows = outbox.claim_due("relay", 9, 60_000)
    for row in rows:
        deserialized(app, row.payload).apply_async()
    outbox.confirm("relay", [row.id for row in rows], 60_000)


def shown(app: Celery) -> dict[str, Any]:
    """Return what ``show`` tells of the order 42."""
    known: dict[str, Any] = json.loads(run(app, "show", "order", "42", "--json").output)
    return known


class TestPause:
    def test_night(self, app: Celery, order: Any, worker: Worker) -> None:
        """Pause, see it, resume."""
        result = run(app, "pause", "order", "42", *WHY)
        assert result.output == "order 42 is paused: its messages wait until it is resumed (version 3).\n"
        worker.run()
        send(app, "order.add", order_id="42", note="n")
        assert [each.task for each in worker.run()] == ["order.add"]
        assert state(app)["notes"] == []
        known = shown(app)
        assert known["verdict"] == "paused"
        assert known["sentence"].startswith("ann paused it ")
        assert known["sentence"].endswith(": INC-881. 3 messages wait with it.")
        assert (known["paused"]["actor"], known["paused"]["reason"]) == ("ann", "INC-881")
        remedy = known["remedies"][0]["command"].split()
        assert remedy == ["celery", "-A", "proj", "sagas", "resume", "--reason", "WHY", "order", "42"]

        result = run(app, *remedy[4:])
        assert result.output.startswith("order 42 goes on, and 3 messages that waited are sent (version ")
        worker.run()
        assert sorted(state(app)["notes"]) == ["charged by visa", "n", "weighs 5"]
        assert "pause (ann: INC-881)" in run(app, "timeline", "order", "42").output

    def test_again(self, app: Celery, order: Any) -> None:
        run(app, "pause", "order", "42", *WHY)
        result = run(app, "pause", "order", "42", *WHY)
        assert (result.exit_code, result.output) == (0, "order 42: nothing to be done, ann has paused it already: INC-881.\n")

    def test_dry_run(self, app: Celery, order: Any) -> None:
        result = run(app, "pause", "order", "42", "--dry-run", *WHY)
        assert result.output.endswith("this is a dry run, and nothing was written.\n")
        assert shown(app)["paused"] is None

    def test_is_listed(self, app: Celery, order: Any) -> None:
        assert run(app, "list", "order", "--paused").output == "There are no such instances of order.\n"
        run(app, "pause", "order", "42", *WHY)
        (known,) = [json.loads(line) for line in run(app, "list", "order", "--paused", "--json").output.splitlines()]
        assert (known["key"], known["waits_for"]["paused"]) == ("42", True)
        assert "its resumption, timeout delivery, 2 answers" in run(app, "list", "order", "--paused").output
        assert run(app, "list", "order", "--paused", "--by", "city=Oslo").exit_code == 2

    def test_as_json(self, app: Celery, order: Any) -> None:
        known = json.loads(run(app, "pause", "--by", "tracking=1Z", "order", "--json", *WHY).output)
        assert known == {
            "act": "pause",
            "dry_run": False,
            "saga": "order",
            "key": "42",
            "id": shown(app)["id"],
            "version": 3,
            "changed": True,
            "planned": False,
            "text": "is paused: its messages wait until it is resumed",
        }

    def test_show_says_who_has_changed_it(self, app: Celery, order: Any) -> None:
        run(app, "pause", "order", "42", *WHY)
        assert shown(app)["changed_by"] == "ann (pause)"
        assert run(app, "show", "order", "42").output.splitlines()[1].endswith(" ago by ann (pause)")

    def test_what_waits_is_not_stuck(self, app: Celery, order: Any, worker: Worker) -> None:
        runtime_of(app).resend_after_s = 0
        instance = Operator(app, "ann").instance(order, "42")
        instance.fire("delivery", "INC-1")
        relay(app)
        assert "order.remind" in run(app, "stuck", "--late", "0s").output
        instance.pause("INC-1")
        worker.run()
        assert "order.remind" not in run(app, "stuck", "--late", "0s").output


class TestNames:
    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (["pause", "order", "42"], "Missing option '--reason'"),
            (["pause", "order", *WHY], "give SAGA KEY, and name the instance once"),
            (["pause", "order", "42", "--id", "x", *WHY], "give SAGA, and name the instance once"),
            (["pause", "ordr", "42", *WHY], "Did you mean order?"),
            (["pause", "order", "43", *WHY], "order_id='43': none was started, or none that the journal knows by this order_id"),
            (["pause", "order", "--id", "x", *WHY], "There is no order with id='x': none was started, or it has ended."),
            (
                ["resume", "order", "--by", "tracking=x", *WHY],
                "none was started, or none that the journal knows by this tracking.",
            ),
            (["pause", "order", "42", "--reason", ""], "reason= takes a text, and is empty"),
            (["pause", "order", "42", "--reason", "x" * 2_001], "at most 2,000 characters, and has 2,001"),
            (["pause", "order", "42", "--reason", "\udcff"], "reason= has characters that cannot be stored"),
            (["pause", "order", "42", "--reason", "x", "--actor", ""], "actor= takes a text, and is empty"),
            (["pause", "order", "42", "--reason", "x", "--actor", "a" * 201], "at most 200 characters"),
            (["pause", "order", "42", "--expect-version", "1", *WHY], "has version 2, and 1 was expected"),
            (["fire", "order", "42", *WHY], "give SAGA KEY NAME"),
            (["fire", "order", "42", "deliver", *WHY], "does not wait for deliver. It waits for delivery, "),
            (["skip", "order", "42", HOSTILE, *WHY], "does not wait for"),
            (["answer", "order", "42", "x", *WHY], "give --value or --fail"),
            (["answer", "order", "42", "delivery", "--value", "1", *WHY], "is a timeout, and no request"),
            (["answer", "order", "42", "x", "--value", "Oslo", *WHY], "Oslo is no JSON; a text needs quotes"),
            (["patch", "order", "42", *WHY], "give --set and --unset, or --file, or --edit"),
            (["patch", "order", "42", "--set", "x", *WHY], "x is no assignment such as total=12"),
            (["patch", "order", "42", "--set", "city=Oslo", *WHY], "Oslo is no JSON"),
        ],
    )
    def test_wrong_input(self, app: Celery, order: Any, words: list[str], problem: str) -> None:
        before = shown(app)["version"]
        result = run(app, *words)
        assert result.exit_code != 0
        assert problem in result.output.replace("\n", " ")
        assert all(map(is_safe, result.output.splitlines()))
        assert shown(app)["version"] == before


class TestTerminate:
    def test_asks_first(self, app: Celery, order: Any) -> None:
        result = run(app, "terminate", "order", "42", *WHY)
        assert (result.exit_code, "End order 42 for good?" in result.output) == (1, True)
        assert shown(app)["version"] == 2

    def test_ends_it(self, app: Celery, order: Any, worker: Worker) -> None:
        result = run(app, "terminate", "order", "42", "--yes", *WHY)
        assert result.output == "order 42 is terminated (version 3).\n"
        worker.run()
        outcome = order.outcome("42")
        assert (outcome.kind, outcome.reason) == ("completed", "terminated")
        assert backend_of(app).outbox.count() == 0
        assert "terminate as failed (ann: INC-881)" in run(app, "timeline", "order", "42").output

    def test_tells_the_saga_that_started_it(self, app: Celery, shop: Any, worker: Worker) -> None:
        _, cart_class = shop
        send(app, "cart.fill", cart_id="c", order_id="42")
        worker.run()
        run(app, "terminate", "order", "42", "--yes", *WHY)
        worker.run()
        assert cart_class.find("c").notes == ["terminated: an operator has terminated order '42'"]
        [entry] = backend_of(app).audit.recent(9).entries
        assert json.loads(entry.detail)["as"] == "failed"

    def test_as_completed(self, app: Celery, shop: Any, worker: Worker) -> None:
        order_class, cart_class = shop
        send(app, "cart.fill", cart_id="c", order_id="42")
        worker.run()
        result = run(app, "terminate", "order", "42", "--as", "completed", "--yes", *WHY)
        assert result.output.startswith("order 42 is terminated as completed")
        worker.run()
        assert cart_class.find("c").notes == ["placed None"]
        outcome = order_class.outcome("42")
        assert (outcome.kind, outcome.reason) == ("completed", "")
        assert "terminate as completed" in run(app, "audit").output
        assert "terminate as completed (ann: INC-881)" in run(app, "timeline", "order", "42").output
        assert "terminate as completed (ann: INC-881)" in run(app, "activity").output
        [line] = [line for line in run(app, "timeline", "order", "42", "--json").output.splitlines() if "INC-881" in line]
        assert json.loads(line)["as"] == "completed"


class TestPatch:
    def test_state_of_newer_code(self, app: Celery, order: Any) -> None:
        put(app, {}, key="42", schema_version=2)
        result = run(app, "patch", "order", "42", "--set", 'city="Bergen"', *WHY)
        assert result.exit_code == 1
        assert "has schema version 2, this code knows 1. Newer code has written it, and is needed here;" in result.output

    def test_shows_the_difference_and_hides_what_is_hidden(self, app: Celery, order: Any) -> None:
        result = run(app, "patch", "order", "42", "--set", 'city="Bergen"', "--set", 'card.number="9"', *WHY)
        assert result.exit_code == 0, result.output
        assert '-  "city": "Oslo",' in result.output
        assert '+  "city": "Bergen",' in result.output
        assert "4711" not in result.output
        assert result.output.endswith("order 42 has changed: city, card (version 3).\n")
        assert (state(app)["city"], state(app)["card"]["number"]) == ("Bergen", "9")
        assert [each.order_id for each in order.all(city="Bergen")] == ["42"]

    def test_invalid_value(self, app: Celery, order: Any) -> None:
        result = run(app, "patch", "order", "42", "--set", 'status="lost"', *WHY)
        assert result.exit_code == 1
        assert "status: Input should be 'placed' or 'paid'. Nothing was stored or sent; give it other values." in result.output
        assert state(app)["status"] == "placed"

    def test_path_that_leads_nowhere(self, app: Celery, order: Any) -> None:
        assert "there is no lost in the state" in run(app, "patch", "order", "42", "--set", "lost.x=1", *WHY).output

    def test_file_keeps_what_is_hidden(self, app: Celery, order: Any, tmp_path: Path) -> None:
        fields = shown(app)["state"]
        assert "4711" not in json.dumps(fields)
        file = tmp_path / "state.json"
        file.write_text(json.dumps({**fields, "city": "Bergen"}))
        assert "say of which version they are" in run(app, "patch", "order", "42", "--file", str(file), *WHY).output
        assert run(app, "patch", "order", "42", "--file", str(file), "--expect-version", "2", *WHY).exit_code == 0
        assert (state(app)["city"], state(app)["card"]["number"]) == ("Bergen", "4711")

    @pytest.mark.parametrize(("text", "problem"), [("{", "it is no JSON"), ("[]", "it is no JSON object")])
    def test_file_without_an_object(self, app: Celery, order: Any, tmp_path: Path, text: str, problem: str) -> None:
        file = tmp_path / "state.json"
        file.write_text(text)
        assert problem in run(app, "patch", "order", "42", "--file", str(file), "--expect-version", "2", *WHY).output

    def test_edit(self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(click, "edit", lambda text, extension: text.replace('"Oslo"', '"Bergen"'))
        assert run(app, "patch", "order", "42", "--edit", *WHY).exit_code == 0
        assert (state(app)["city"], state(app)["card"]["number"]) == ("Bergen", "4711")

    def test_edit_that_comes_too_late(self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A message has changed the order meanwhile: the text is kept."""
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

        def edit(text: str, extension: str) -> str:
            Operator(app, "bob").instance(order, "42").patch("meanwhile", values={"notes": ["n"]})
            return text.replace('"Oslo"', '"Bergen"')

        monkeypatch.setattr(click, "edit", edit)
        result = run(app, "patch", "order", "42", "--edit", *WHY)
        assert (result.exit_code, "a message has changed the instance meanwhile" in result.output) == (1, True)
        (kept,) = tmp_path.glob("patch-*.json")
        assert '"Bergen"' in kept.read_text()
        assert "4711" not in kept.read_text()
        assert (state(app)["city"], state(app)["notes"]) == ("Oslo", ["n"])

    @pytest.mark.parametrize(("old", "new"), [('"placed"', '"lost"'), ("{", "")])
    def test_edit_that_is_not_valid(
        self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(click, "edit", lambda text, extension: text.replace(old, new, 1))
        result = run(app, "patch", "order", "42", "--edit", *WHY)
        assert (result.exit_code, "Nothing was stored; your text is in" in result.output) == (1, True)
        assert len(list(tmp_path.glob("patch-*.json"))) == 1

    @pytest.mark.parametrize(
        ("words", "problem"),
        [(["--set", "trakcing=1"], "trakcing: there is no such field"), (["--set", "notes=[1e999]"], "is no JSON")],
    )
    def test_values_that_cannot_be(self, app: Celery, order: Any, words: list[str], problem: str) -> None:
        result = run(app, "patch", "order", "42", *words, *WHY)
        assert (result.exit_code != 0, problem in result.output) == (True, True)
        assert state(app)["notes"] == []

    def test_edit_that_is_given_up(self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(click, "edit", lambda text, extension: None)
        assert run(app, "patch", "order", "42", "--edit", *WHY).exit_code == 1
        assert shown(app)["version"] == 2


class TestFireAndSkip:
    def test_timeout_comes_now_and_once(self, app: Celery, order: Any, worker: Worker) -> None:
        worker.run()
        result = run(app, "fire", "order", "42", "delivery", *WHY)
        assert result.output.startswith("order 42 delivery comes now (version ")
        (row,) = [each for each in backend_of(app).outbox.claim_due("relay", 9, 60_000) if each.kind == "scheduled"]
        assert row.due_at > backend_of(app).outbox.time()
        assert run(app, "skip", "order", "42", "delivery", *WHY).exit_code == 0
        assert "delivery" not in json.dumps(shown(app)["waits_for"])
        assert backend_of(app).outbox.count() == 0

    def test_request_without_a_deadline(self, app: Celery, order: Any) -> None:
        result = run(app, "fire", "order", "42", weigh.name, *WHY)
        assert "has no deadline that could come. Answer it, or skip it." in result.output


class TestAnswer:
    def test_in_the_place_of_the_task(self, app: Celery, order: Any, worker: Worker) -> None:
        """Its own answer, which comes later, changes nothing."""
        queued = [each for each in (worker.step(), worker.step()) if each is not None]
        assert [each.task for each in queued] == [charge.name, weigh.name]
        result = run(app, "answer", "order", "42", weigh.name, "--value", "7", *WHY)
        assert result.output == "order 42 order.weighed gets it (version 3).\n"
        worker.run()
        assert sorted(state(app)["notes"]) in (["charged by visa", "weighs 5"], ["charged by visa", "weighs 7"])

    def test_argument_that_the_step_takes_besides(self, app: Celery, order: Any, worker: Worker) -> None:
        result = run(app, "answer", "order", "42", charge.name, "--value", '"ok"', *WHY)
        assert "by: it is missing: give it as an argument of the step" in result.output
        result = run(app, "answer", "order", "42", charge.name, "--value", '"ok"', "--argument", 'by="hand"', *WHY)
        assert result.exit_code == 0, result.output
        tasks = [each.task for each in worker.run()]
        assert tasks.count("order.charged") == 2
        assert "charged by visa" in state(app)["notes"] or "ok by hand" in state(app)["notes"]
        assert len([note for note in state(app)["notes"] if " by " in note]) == 1

    def test_value_that_the_step_does_not_take(self, app: Celery, order: Any) -> None:
        result = run(app, "answer", "order", "42", weigh.name, "--value", '"heavy"', *WHY)
        assert (result.exit_code, "answer: Input should be a valid integer" in result.output) == (1, True)

    def test_again_after_the_step_has_failed_with_it(self, app: Celery, order: Any, worker: Worker) -> None:
        """The second answer is another message."""
        instance = Operator(app, "ann").instance(order, "42")
        with app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_purge(app.conf.task_default_queue)  # nobody will ever weigh it
        instance.answer(weigh.name, UNLUCKY, "by mistake")
        worker.run()
        assert backend_of(app).dead.count() == 1
        instance.answer(weigh.name, 7, "as it is")
        worker.run()
        assert state(app)["notes"] == ["weighs 7"]

    def test_two_operators(self, app: Celery, order: Any, worker: Worker) -> None:
        """One answer counts, and the other operator is told."""
        ann, ben = (Operator(app, name).instance(order, "42") for name in ("ann", "ben"))
        assert ann.answer(weigh.name, 7, "as it is").text == "order.weighed gets it"
        rival = "order.weighed gets it, unless the answer that ann has given comes first"
        assert ben.answer(weigh.name, 8, "as I see it").text == rival

    def test_text_that_no_store_keeps(self, app: Celery, order: Any) -> None:
        result = run(app, "answer", "order", "42", charge.name, "--value", '"a\\u0000"', "--argument", 'by="x"', *WHY)
        assert (result.exit_code, "U+0000" in result.output) == (1, True)

    def test_failure_is_final(self, app: Celery, order: Any, worker: Worker) -> None:
        result = run(app, "answer", "order", "42", charge.name, "--fail", "the bank is closed", *WHY)
        assert result.exit_code == 0, result.output
        worker.run()
        assert len([note for note in state(app)["notes"] if "revoked: the bank is closed" in note or "visa" in note]) == 1

    def test_no_step_for_a_failure(self, app: Celery, order: Any) -> None:
        result = run(app, "answer", "order", "42", weigh.name, "--fail", "no", *WHY)
        assert "no step of order '42' gets a failure of" in result.output


class TestStores:
    def test_every_act(self, stored_app: Celery, shop: Any) -> None:
        """On each store, with the messages that a worker takes."""
        app, worker = stored_app, Worker(stored_app)
        order_class, _ = shop
        send(app, "order.place", order_id="42", tracking="1Z")
        worker.run()
        ann = Operator(app, "ann").instance(order_class, "42")
        assert ann.pause("INC-1").changed
        assert [each.key for each in paused(app)] == ["42"]
        send(app, "order.add", order_id="42", note="n")
        worker.run()
        assert state(app)["notes"] == []
        assert ann.resume("INC-1").changed
        assert paused(app) == []
        worker.run()
        assert state(app)["notes"] == ["n"]
        assert ann.patch("INC-1", values={"tracking": "2Z", "city": "Bergen"}).changed
        assert order_class.find(tracking="2Z").city == "Bergen"
        assert order_class.find(tracking="1Z") is None
        assert [each.order_id for each in order_class.all(city="Bergen")] == ["42"]
        send(app, "order.ask", order_id="42")
        worker.run()
        assert ann.fire("delivery", "INC-1").changed
        outbox = backend_of(app).outbox
        assert [row.kind for row in outbox.claim_due("relay", 9, 60_000)] == ["scheduled"]
        assert ann.skip("delivery", "INC-1").changed
        assert ann.terminate("INC-1").changed
        assert order_class.find("42") is None
        assert outbox.count() == 0


def tick(app: Celery) -> None:
    """Wait until the clock of the store shows another time."""
    outbox = backend_of(app).outbox
    before = outbox.time()
    wait_until(lambda: outbox.time() > before, "another time")


def paused(app: Celery) -> list[Any]:
    """Return the paused orders."""
    return list(backend_of(app).instances.tagged("order", PAUSED, 10).instances)


class TestAudit:
    def test_who_has_done_what_and_why(self, app: Celery, order: Any) -> None:
        run(app, "pause", "order", "42", "--reason", "INC-1", "--actor", "ann")
        tick(app)
        run(app, "resume", "order", "42", "--reason", "INC-2", "--actor", "bob")
        known = [json.loads(line) for line in run(app, "audit", "--json").output.splitlines()]
        assert [(each["actor"], each["action"], each["reason"]) for each in known] == [
            ("bob", "resume", "INC-2"),
            ("ann", "pause", "INC-1"),
        ]
        assert {(each["saga"], each["key"]) for each in known} == {("order", "42")}
        table = run(app, "audit").output.splitlines()
        assert table[0].split() == ["AT", "WHO", "ACT", "SAGA", "KEY", "VERSION", "REASON"]
        assert table[1].split()[3:] == ["bob", "resume", "order", "42", "4", "INC-2"]

    @pytest.mark.parametrize(
        ("words", "actions"),
        [
            (["order"], ["fire", "pause"]),
            (["order", "42"], ["fire", "pause"]),
            (["order", "43"], []),
            (["cart"], []),
            (["--actor", "ann"], ["fire"]),
            (["--since", "1h"], ["fire", "pause"]),
            (["--since", "0s"], []),
            (["--limit", "1"], ["fire"]),
        ],
    )
    def test_some(self, app: Celery, order: Any, words: list[str], actions: list[str]) -> None:
        Operator(app, "bob").instance(order, "42").pause("INC-1")
        tick(app)
        Operator(app, "ann").instance(order, "42").fire("delivery", "INC-2")
        tick(app)
        known = [json.loads(line) for line in run(app, "audit", "--json", *words).output.splitlines()]
        assert [each["action"] for each in known] == actions

    def test_nothing(self, app: Celery, order: Any) -> None:
        assert run(app, "audit").output == "No operator has done anything of the kind.\n"

    def test_every_act_has_its_line(self, app: Celery, order: Any) -> None:
        """Whatever verb there will be: none writes without one."""
        instance = Operator(app, "ann").instance(order, "42")
        changed = replace(instance, saga=replace(instance.saga, search_by=("city", "status")))
        acts: dict[str, Callable[[], Done]] = {
            "pause": lambda: instance.pause(HOSTILE),
            "resume": lambda: instance.resume(HOSTILE),
            "patch": lambda: instance.patch(HOSTILE, values={"city": "Bergen"}),
            "fire": lambda: instance.fire("delivery", HOSTILE),
            "answer": lambda: instance.answer(weigh.name, 7, HOSTILE),
            "fail": lambda: instance.fail(charge.name, "no", HOSTILE),
            "skip": lambda: instance.skip("delivery", HOSTILE),
            "reindex": lambda: changed.reindex(HOSTILE),
            "upgrade": lambda: changed.upgrade(HOSTILE, always=True),
            "terminate": lambda: instance.terminate(HOSTILE),
        }
        verbs = {name for name, each in vars(OperatedInstance).items() if callable(each) and not name.startswith("_")}
        assert verbs - {"show", "changes", "try_step"} == set(acts)
        heard: list[str] = []

        def hear(sender: Celery, act: Any, done: Done, **_: object) -> None:
            heard.append(act.name)

        instance_operated.connect(hear)
        for act in acts.values():
            assert act().changed
        instance_operated.disconnect(hear)
        result = run(app, "audit", "--limit", "9")
        assert all(map(is_safe, result.output.splitlines()))
        known = [json.loads(line) for line in run(app, "audit", "--json").output.splitlines()]
        assert sorted(each["action"] for each in known) == sorted(acts)
        assert {(each["actor"], each["reason"]) for each in known} == {("ann", HOSTILE)}
        assert heard == list(acts)
        timeline = run(app, "timeline", "order", "42").output
        assert all(map(is_safe, timeline.splitlines()))
        assert timeline.count("(ann: ") == len(acts)

    def test_dry_run_has_none(self, app: Celery, order: Any) -> None:
        Operator(app, "ann", dry_run=True).instance(order, "42").pause("INC-1")
        assert run(app, "audit", "--json").output == ""

    def test_store_that_is_away(self, app: Celery, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("memory://", "it is away")

        monkeypatch.setattr("celery_sagas.stores.memory.audit.MemoryAudit.recent", away)
        result = run(app, "audit")
        assert (result.exit_code, "it is away" in result.output) == (1, True)


class TestOperator:
    def test_batch_is_done_once(self, app: Celery, order: Any) -> None:
        for changed in (True, False):
            instance = Operator(app, "ann", batch="INC-1").instance("order", "42")
            assert instance.patch("INC-1", values={"city": "Bergen"}).changed is changed
            Operator(app, "bob").instance(order, "42").patch("INC-2", values={"city": "Rome"})
        assert state(app)["city"] == "Rome"

    def test_batch_tells_acts_apart(self, app: Celery, order: Any) -> None:
        instance = Operator(app, "ann", batch="INC-1").instance(order, "42")
        assert [instance.fire(name, "r").changed for name in ("delivery", charge.name, "delivery")] == [True, True, False]
        assert instance.patch("r", values={"city": "Bergen"}).changed
        assert instance.patch("r", values={"city": "Rome"}).changed
        assert not instance.patch("r", values={"city": "Bergen"}).changed
        assert state(app)["city"] == "Rome"

    def test_dry_run(self, app: Celery, order: Any) -> None:
        done = Operator(app, "ann", dry_run=True).instance(order, tracking="1Z").fire("delivery", "INC-1")
        assert not done.changed
        assert backend_of(app).outbox.claim_due("relay", 9, 60_000) == []

    def test_show(self, app: Celery, order: Any) -> None:
        known = Operator(app, "ann").instance(order, "42").show()
        assert known is not None
        assert (known["key"], known["state"]["card"]) == ("42", "•••")
        assert Operator(app, "ann").instance(order, "43").show() is None

    @pytest.mark.parametrize(
        ("saga", "text"),
        [("lost", "order, cart\\.$"), (int, "order, cart\\.$"), ("ordr", "order, cart. Did you mean 'order'\\?$")],
    )
    def test_no_saga(self, app: Celery, order: Any, saga: Any, text: str) -> None:
        with pytest.raises(MisuseError, match=f"is no saga of this app. Known: {text}"):
            Operator(app, "ann").instance(saga, "42")

    @pytest.mark.parametrize("actor", ["", " ", "a" * 201, "\0"])
    def test_actor(self, app: Celery, actor: str) -> None:
        with pytest.raises(ValueError, match="actor="):
            Operator(app, actor)

    def test_default_actor(self) -> None:
        assert "@" in default_actor()


def test_runtime_is_the_apps(app: Celery, order: Any) -> None:
    """What an operator changes is what the app's tasks see."""
    Operator(app, "ann").instance(order, "42").patch("INC-1", values={"city": "Bergen"})
    assert runtime_of(app).backend.sagas.count(["order"]) == {"order": 1}
    assert order.find("42").city == "Bergen"
