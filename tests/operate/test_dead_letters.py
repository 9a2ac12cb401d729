"""Dead letters that operators retry and discard: who has done it, and why."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Batch, Message, Saga, aggregator
from celery_sagas.errors import ConfigurationError, MisuseError, PublishError, RevisionConflict, StoreUnavailable, UnreadableState
from celery_sagas.operate import DeadLetters, Operator
from celery_sagas.operate.dead_letters import dead_letter_of
from celery_sagas.stores.items import Rules
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import AuditEntry, DeadLetter
from celery_sagas.testing.batches import dead_letters_of
from celery_sagas.worker.runtime import Runtime, runtime_of
from tests.apps import NewApp, Worker, backend_of, interposed
from tests.cli.test_dead import WHY, dead_letter, failing
from tests.cli.test_describe import run
from tests.cli.test_rejected import NAME, reject
from tests.every_store import stored_app, url
from tests.servers import unique
from tests.waiting import wait_until

__all__ = ["stored_app", "url"]


@pytest.fixture
def shop(definitions: None) -> Any:
    """A saga with a step that fails until it is fixed, and one with a timeout that always does."""
    is_fixed = []

    class Order(Saga, correlate_by="order_id", history="messages"):
        order_id: str
        notes: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.schedule(remind, after=0, name="delivery")

    @Order.handles
    def ship(order: Order, order_id: str) -> None:
        if not is_fixed:
            raise LookupError("no such shelf")
        order.notes.append("shipped")

    @Order.handles
    def remind(order: Order) -> None:
        raise LookupError("no such address")

    return SimpleNamespace(order=Order, place=place, ship=ship, fix=lambda: is_fixed.append(True))


def failed(app: Celery, worker: Worker, shop: Any) -> DeadLetter:
    """Begin an instance, and have a message to it fail; return its dead letter."""
    shop.place("42")
    app.send_task("order.ship", ["42"])
    worker.run()
    return next(each for each in backend_of(app).dead.list(9) if each.task == "order.ship")


def audit(app: Celery) -> list[AuditEntry]:
    """Return what operators have done, the oldest first."""
    return sorted(backend_of(app).audit.recent(500).entries, key=lambda entry: entry.at)


def acts(app: Celery) -> list[tuple[str, str, str]]:
    """Return who has done what, and why."""
    return [(entry.actor, entry.action, entry.reason) for entry in audit(app)]


def dead_letters(app: Celery, reason: str = "INC-1") -> DeadLetters:
    """Return the dead letters, as an operator acts on them."""
    return Operator(app, "ann").dead_letters(reason)


class TestEachStore:
    """On every store."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_retry(self, app: Celery, worker: Worker, shop: Any) -> None:
        letter = failed(app, worker, shop)
        shop.fix()
        treated = dead_letters(app).retry(letter.id)
        assert (treated.id, treated.text) == (letter.id, f"order.ship was sent again as {treated.sent_as}")
        worker.run()
        found = shop.order.find("42")
        assert found.notes == ["shipped"]
        [entry] = audit(app)
        assert (entry.actor, entry.action, entry.reason, entry.version) == ("ann", "retry", "INC-1", 0)
        assert (entry.saga, entry.key, entry.instance_id) == ("order", "42", found.saga.id)
        assert json.loads(entry.detail) == {
            "dead_letter": letter.id,
            "task": "order.ship",
            "message": letter.message_id,
            "error": "LookupError",
        }
        assert "retry (ann: INC-1)" in run(app, "timeline", "order", "42").output
        assert run(app, "replay", "order", "42").exit_code == 0  # the act has changed nothing

    def test_discard(self, app: Celery, worker: Worker, shop: Any) -> None:
        """Of a timeout: its instance is known by the address of the message."""
        failed(app, worker, shop)
        letter = next(each for each in backend_of(app).dead.list(9) if each.task == "order.remind")
        assert dead_letters(app).discard(letter.id).text == "order.remind was discarded, and its instance no longer waits for it"
        [entry] = audit(app)
        assert (entry.action, entry.saga, entry.key, entry.instance_id) == (
            "discard",
            "order",
            "42",
            shop.order.find("42").saga.id,
        )
        with pytest.raises(MisuseError, match=f"there is no dead letter {letter.id}. `celery sagas dead list` shows"):
            dead_letters(app).discard(letter.id)
        assert len(audit(app)) == 1

    def test_reveal(self, app: Celery, worker: Worker, shop: Any) -> None:
        """Each time has an entry, and changes nothing."""
        letter = failed(app, worker, shop)
        assert [dead_letters(app).reveal(letter.id) for _ in range(2)] == [letter, letter]
        assert acts(app) == [("ann", "reveal", "INC-1")] * 2
        assert {(entry.saga, entry.key, entry.instance_id) for entry in audit(app)} == {
            ("order", "42", shop.order.find("42").saga.id)
        }
        assert {json.loads(entry.detail)["dead_letter"] for entry in audit(app)} == {letter.id}
        assert run(app, "replay", "order", "42").exit_code == 0
        assert dead_letters(app).discard(letter.id).text == "order.ship was discarded"

    @pytest.mark.parametrize("reason", ["first", "second"])
    @pytest.mark.parametrize("is_forgotten", [False, True])
    def test_act_that_is_repeated_has_one_entry(
        self, app: Celery, worker: Worker, shop: Any, is_forgotten: bool, reason: str
    ) -> None:
        """Also if the journal has forgotten the first one; an act for another reason has its own."""
        letter = failed(app, worker, shop)
        runtime, publish = runtime_of(app), runtime_of(app).publisher.publish_signature
        runtime.publisher.publish_signature = failing(PublishError("it is away", connection=True))  # type: ignore[method-assign]
        with pytest.raises(PublishError):
            dead_letters(app, "first").retry(letter.id)
        assert acts(app) == [("ann", "retry", "first")]
        runtime.publisher.publish_signature = publish  # type: ignore[method-assign]
        if is_forgotten:
            backend_of(app).journal.purge(-1, 500)
        assert dead_letters(app, reason).retry(letter.id).sent_as
        assert sorted(acts(app)) == [("ann", "retry", each) for each in dict.fromkeys(["first", reason])]

    def test_message_of_no_instance_that_is_known(self, app: Celery, worker: Worker, shop: Any) -> None:
        backend = backend_of(app)
        backend.dead.add(dead_letter("l1", task="mail.write", saga="", key=""))
        backend.dead.add(dead_letter("l2", saga="parcel", task="parcel.pack", key="7"))
        backend.dead.add(dead_letter("l3", task="order.ship", saga="", key=""))
        backend.dead.add(dead_letter("l4", task="order.ship", payload="no JSON", key="43"))
        for id in ("l1", "l2", "l3", "l4"):
            dead_letters(app).discard(id)
        assert sorted((entry.saga, entry.key, entry.instance_id) for entry in audit(app)) == [
            ("", "", ""),
            ("order", "42", ""),
            ("order", "43", ""),
            ("parcel", "7", ""),
        ]
        known = [json.loads(line) for line in run(app, "audit", "--json").output.splitlines()]
        assert sorted(json.loads(each["detail"])["dead_letter"] for each in known) == ["l1", "l2", "l3", "l4"]


class TestItems:
    """Rejected items, which may be in a backend of their own."""

    @pytest.fixture(params=[False, True], ids=["one backend", "two backends"])
    def app(self, new_app: NewApp, request: pytest.FixtureRequest) -> Celery:
        """An app with an aggregator."""
        return new_app(**({"saga_aggregator_backend": f"memory://{unique('batches')}"} if request.param else {}))

    @pytest.mark.parametrize("action", ["retry", "discard"])
    def test_item(self, app: Celery, definitions: None, action: str) -> None:
        class Meters(Saga, correlate_by="task"):  # the aggregator's name begins as its steps' names do
            task: str

        class Reading(Message):
            task: str
            celsius: float

        @aggregator(name=NAME, size=100, group_by="task")
        def store_readings(batch: Batch[Reading]) -> None: ...

        [rejected] = reject(app, "m1")
        treated = getattr(dead_letters(app), action)(rejected.id)
        assert treated.text == f"the item m1 of {NAME} was {'put back' if action == 'retry' else 'discarded'}"
        [entry] = runtime_of(app).batches.audit.recent(9).entries
        assert (entry.action, entry.saga, entry.key, entry.instance_id) == (action, "", "d1", "")
        assert len(run(app, "audit", "--json").output.splitlines()) == 1

    def test_item_that_is_rejected_again(self, app: Celery, definitions: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each retry has its entry: the dead letter has the same id."""

        class Reading(Message):
            task: str

        @aggregator(name=NAME, size=100, group_by="task")
        def store_readings(batch: Batch[Reading]) -> None: ...

        reject(app, "m1")
        for _ in range(2):
            [rejected] = runtime_of(app).batches.dead.list(9)
            assert dead_letters(app).retry(rejected.id).sent_as
            wait_until(lambda at=rejected.at: runtime_of(app).batches.outbox.time() > at, "the next millisecond")
            rules = Rules(NAME, size=1, remember_ms=0)
            snapshot = runtime_of(app).batches.aggregates.claim(rules, "d1", "again")
            assert snapshot is not None
            again = dead_letters_of(*snapshot.items, group="d1", name=NAME)
            runtime_of(app).batches.aggregates.remove(rules, "d1", "again", rejected=again)
        assert [entry.action for entry in runtime_of(app).batches.audit.recent(9).entries] == ["retry", "retry"]


class TestWhatCannotBeAudited:
    """Then nothing is done."""

    def test_backend_without_audit(self, app: Celery, worker: Worker, shop: Any) -> None:
        letter = failed(app, worker, shop)
        backend = WithoutAudit("memory://without", prefix="")
        backend.dead.add(letter)
        without = DeadLetters(Runtime(app, backend), "ann", "INC-1")
        for act in (without.retry, without.discard, without.reveal):
            with pytest.raises(ConfigurationError, match=f"the dead letter {letter.id} cannot be recorded in memory://without"):
                act(letter.id)
        assert backend.dead.get(letter.id)
        assert worker.waiting() == []

    @pytest.mark.parametrize("method", ["find", "record"])
    def test_store_that_is_away(self, app: Celery, worker: Worker, shop: Any, method: str) -> None:
        letter = failed(app, worker, shop)
        interposed(app).once_before(method, failing(StoreUnavailable("memory://", "refused")))
        with pytest.raises(StoreUnavailable):
            dead_letters(app).retry(letter.id)
        assert (worker.waiting(), audit(app)) == ([], [])
        assert backend_of(app).dead.get(letter.id)

    @pytest.mark.parametrize("payload", ["no JSON", json.dumps({"task": "order.ship", "args": [], "kwargs": {"nonsense": 1}})])
    def test_message_that_cannot_be_sent(self, app: Celery, shop: Any, payload: str) -> None:
        """It can be discarded, and that is audited."""
        backend_of(app).dead.add(dead_letter("l1", task="order.ship", payload=payload))
        with pytest.raises(MisuseError, match="It can only be discarded"):
            dead_letters(app).retry("l1")
        assert acts(app) == []
        dead_letters(app).discard("l1")
        assert acts(app) == [("ann", "discard", "INC-1")]


def test_instance_that_cannot_be_read(app: Celery, worker: Worker, shop: Any) -> None:
    letter = failed(app, worker, shop)
    interposed(app).once_before("find", failing(UnreadableState("order", "42", "it is damaged")))
    assert dead_letters(app).discard(letter.id).text == "order.ship was discarded"
    assert [(entry.saga, entry.key, entry.instance_id) for entry in audit(app)] == [("order", "42", "")]


def test_deadlock(app: Celery, worker: Worker, shop: Any) -> None:
    """The entry is committed again."""
    letter = failed(app, worker, shop)
    interposed(app).once_before("record", failing(RevisionConflict("order", "42", "deadlock")))
    dead_letters(app).discard(letter.id)
    assert acts(app) == [("ann", "discard", "INC-1")]


@pytest.mark.parametrize("action", ["retry", "discard"])
def test_command(app: Celery, worker: Worker, shop: Any, action: str) -> None:
    letter = failed(app, worker, shop)
    result = run(app, "dead", action, letter.id)
    assert (result.exit_code, "Missing option '--reason'" in result.output) == (2, True)
    assert run(app, "dead", action, letter.id, "--reason", " ").exit_code == 2
    assert acts(app) == []
    assert run(app, "dead", action, letter.id, *WHY).exit_code == 0
    assert acts(app) == [("ann", action, "INC-881")]
    assert f"{action}  order  42" in run(app, "audit", "order", "42").output


def test_who_runs_the_command_if_nobody_is_named(app: Celery, worker: Worker, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.cli.acts.default_actor", lambda: "ann@ops-1")
    run(app, "dead", "discard", failed(app, worker, shop).id, "--reason", "INC-1")
    assert acts(app) == [("ann@ops-1", "discard", "INC-1")]


def test_operator(app: Celery) -> None:
    with pytest.raises(MisuseError, match="acts on dead letters cannot be planned"):
        Operator(app, "ann", dry_run=True).dead_letters("INC-1")
    with pytest.raises(ValueError, match="reason= takes a text, and is empty"):
        Operator(app, "ann").dead_letters("")


def test_dead_letter_that_may_be_in_a_backend_that_is_away(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_of(app).dead, "get", failing(StoreUnavailable("memory://", "refused")))
    with pytest.raises(StoreUnavailable):
        dead_letter_of(runtime_of(app), "l1")


class WithoutAudit(MemoryBackend):
    """A backend that does not set the port."""

    def __init__(self, url: str, *, prefix: str) -> None:
        super().__init__(url, prefix=prefix)
        del self.audit
