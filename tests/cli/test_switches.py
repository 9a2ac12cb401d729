"""``celery sagas hold``, ``release`` and ``held``, what other commands say of them, and ``Operator.hold`` in Python."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.errors import ConfigurationError, MisuseError, StoreUnavailable
from celery_sagas.operate import Operator, Switched
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.switches import MemorySwitches
from celery_sagas.stores.records import AuditEntry
from celery_sagas.testing.samples import audited, entry
from tests.apps import NewApp, Worker, backend_of
from tests.cli.test_describe import run
from tests.cli.test_tables import is_safe
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

WHY = ("--reason", "INC-881", "--actor", "ann")
HOSTILE = "\x1b[2J\n\u202ex"


class WithoutSwitches(MemoryBackend):
    """A backend in memory in which nothing can be held."""

    def __init__(self, url: str, *, prefix: str, options: Any = None, clock: Any = None) -> None:
        super().__init__(url, prefix=prefix, options=options, clock=clock)
        del self.switches


@pytest.fixture
def shop(definitions: None) -> Any:
    """Two sagas and an aggregator."""

    class Order(Saga, correlate_by="order_id", name="order", formerly="purchase"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    @Order.handles(formerly="order.charge")
    def charge_card(order: Order, order_id: str) -> None: ...

    class Parcel(Saga, correlate_by="number"):
        number: str

    @Parcel.starts
    def pack(parcel: Parcel, number: str) -> None: ...

    @aggregator(size=3, name="shop.readings")
    def readings(batch: Batch[int]) -> None: ...

    return SimpleNamespace(Order=Order, place=place, charge_card=charge_card, Parcel=Parcel, pack=pack)


@pytest.fixture
def ann(app: Celery) -> Operator:
    """An operator."""
    return Operator(app, "ann")


def names(app: Celery) -> list[str]:
    """Return what is held."""
    return [switch.name for switch in backend_of(app).switches.held()]


def facts(app: Celery, *words: str) -> list[dict[str, Any]]:
    """Return the JSON objects that a command prints."""
    return [json.loads(line) for line in run(app, *words, "--json").output.splitlines()]


class TestEachStore:
    """On every store."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_held_and_released(self, app: Celery, shop: Any) -> None:
        worker = Worker(app)
        result = run(app, "hold", "order.place", *WHY)
        assert (result.exit_code, result.output) == (0, "order.place is held: its messages wait until it is released.\n")
        shop.place.delay("42")
        worker.one()
        assert shop.Order.find("42") is None
        result = run(app, "release", "order.place", *WHY)
        assert (result.exit_code, result.output) == (0, "order.place is released: its messages are handled again.\n")
        worker.run()
        assert shop.Order.find("42") is not None

    def test_what_is_held_is_shown(self, app: Celery, shop: Any) -> None:
        assert run(app, "held").output == "Nothing is held.\n"
        run(app, "hold", "order.place", *WHY)
        run(app, "hold", "Parcel", "--reason", f"closed {HOSTILE}", "--actor", "bob")
        result = run(app, "held")
        header, order, parcel, hint = result.output.splitlines()
        assert header.split() == ["HELD", "SINCE", "WHO", "REASON"]
        assert (order.split()[0], order.split()[-2:]) == ("order.place", ["ann", "INC-881"])
        assert parcel.split()[0] == "parcel"
        assert hint == "  → celery -A proj sagas release NAME --reason TEXT    has its messages handled again"
        assert all(map(is_safe, result.output.splitlines()))
        assert [(each["name"], each["actor"]) for each in facts(app, "held")] == [("order.place", "ann"), ("parcel", "bob")]

    def test_stuck_and_stats_say_so(self, app: Celery, shop: Any) -> None:
        run(app, "hold", "order.charge_card", *WHY)
        result = run(app, "stuck")
        assert result.exit_code == 3
        row = result.output.splitlines()[1]
        assert row.split()[:2] == ["held", "order"]
        assert row.endswith("ann holds order.charge_card: INC-881")
        assert "sagas release NAME --reason TEXT" in result.output
        (trouble,) = facts(app, "stuck", "order")
        assert (trouble["verdict"], trouble["task"], trouble["saga"]) == ("held", "order.charge_card", "order")
        assert run(app, "stuck", "parcel").exit_code == 0
        assert "order.charge_card" in run(app, "stats").output
        (held,) = [each for each in facts(app, "stats") if "held" in each]
        assert (held["held"], held["actor"], held["reason"]) == ("order.charge_card", "ann", "INC-881")

    def test_show_says_so(self, app: Celery, shop: Any) -> None:
        """Of its saga, and not of a step that nothing goes to."""
        shop.place.delay("42")
        Worker(app).one()
        run(app, "hold", "order.charge_card", *WHY)
        assert facts(app, "show", "order", "42")[0]["verdict"] == "idle"
        run(app, "hold", "purchase", *WHY)
        shown = facts(app, "show", "order", "42")[0]
        assert (shown["verdict"], shown["sentence"][:16]) == ("held", "ann held order 0")
        assert shown["remedies"][0]["command"] == "celery -A proj sagas release --reason WHY order"

    def test_audit_shows_both(self, app: Celery, shop: Any) -> None:
        run(app, "hold", "order.place", *WHY)
        run(app, "release", "order.place", *WHY)
        rows = sorted(line.split()[3:] for line in run(app, "audit", "order").output.splitlines()[1:])
        assert rows == [["ann", act, "order.place", "-", "-", "INC-881"] for act in ("hold", "release")]


class TestNames:
    """What can be held, and how it is named."""

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ("order", "order"),
            ("purchase", "order"),
            ("Order", "order"),
            ("order.place", "order.place"),
            ("order.charge", "order.charge_card"),
        ],
    )
    def test_each_name(self, app: Celery, shop: Any, ann: Operator, given: str, name: str) -> None:
        assert ann.hold(given, "why").name == name
        assert names(app) == [name]
        assert ann.release(given, "why").changed
        assert names(app) == []

    def test_class_and_step(self, app: Celery, shop: Any, ann: Operator) -> None:
        ann.hold(shop.Order, "why")
        ann.hold(shop.pack, "why")
        assert names(app) == ["order", "parcel.pack"]

    def test_held_under_a_former_name(self, app: Celery, shop: Any, ann: Operator) -> None:
        """By the release before, which knew no other."""
        backend_of(app).switches.hold("purchase", audited(entry()))
        assert not ann.hold(shop.Order, "why").changed
        assert ann.release(shop.Order, "why").changed
        assert names(app) == []

    @pytest.mark.parametrize("verb", ["hold", "release"])
    def test_unknown_name_is_told_the_nearest(self, app: Celery, shop: Any, verb: str) -> None:
        result = run(app, verb, "order.charge_cart", *WHY)
        assert result.exit_code == 1
        assert "Error: order.charge_cart is no saga and no step of this app. Did you mean order.charge_card" in result.output
        assert names(app) == []

    def test_unknown_name_that_resembles_none_is_told_the_sagas(self, shop: Any, ann: Operator) -> None:
        with pytest.raises(MisuseError, match=r"^xyz is no saga and no step of this app\. Known sagas: order, parcel\.$"):
            ann.hold("xyz", "why")

    @pytest.mark.parametrize("given", [7, None, Saga, "order.undone"])
    def test_what_is_neither(self, shop: Any, ann: Operator, given: Any) -> None:
        with pytest.raises(MisuseError, match="is no saga and no step"):
            ann.hold(given, "why")

    def test_task_is_refused(self, app: Celery, shop: Any, ann: Operator) -> None:
        @app.task(name="shop.charge")
        def charge() -> None: ...

        with pytest.raises(MisuseError, match=r"^shop\.charge is a task, and no step: .*\. Hold the steps that send to it; or "):
            ann.hold("shop.charge", "why")

    def test_aggregator_is_refused(self, shop: Any, ann: Operator) -> None:
        with pytest.raises(MisuseError, match=r"^shop\.readings is an aggregator: only sagas and steps can be held\."):
            ann.hold("shop.readings", "why")

    def test_step_that_the_app_no_longer_has_is_released(self, app: Celery, shop: Any) -> None:
        backend_of(app).switches.hold("order.gone", audited(entry()))
        assert run(app, "release", "order.gone", *WHY).exit_code == 0
        assert names(app) == []


class TestActs:
    """What an act does, and says."""

    def test_held_already(self, app: Celery, shop: Any, ann: Operator) -> None:
        ann.hold(shop.place, "the bank is closed")
        result = run(app, "hold", "order.place", "--reason", "another", "--actor", "bob")
        text = "order.place: nothing to be done, it is held already, by ann: the bank is closed.\n"
        assert (result.exit_code, result.output) == (0, text)
        assert [each.actor for each in backend_of(app).switches.held()] == ["ann"]

    def test_not_held(self, shop: Any, ann: Operator) -> None:
        assert ann.release(shop.place, "why") == Switched("order.place", False, "it is not held")

    def test_step_whose_saga_is_held(self, shop: Any, ann: Operator) -> None:
        ann.hold(shop.Order, "closed")
        still = "; but all steps of order are held, by ann: closed"
        assert ann.release(shop.place, "why").text == f"it is not held{still}"
        ann.hold(shop.place, "why")
        assert ann.release(shop.place, "why").text == f"is released: its messages are handled again{still}"

    def test_two_operators_at_once(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one who comes second is told who was first."""
        ann, bob, real = Operator(app, "ann"), Operator(app, "bob"), MemorySwitches.hold

        def hold(self: MemorySwitches, name: str, made: AuditEntry) -> bool:
            monkeypatch.setattr(MemorySwitches, "hold", real)
            ann.hold(shop.place, "first")
            return self.hold(name, made)

        monkeypatch.setattr(MemorySwitches, "hold", hold)
        assert bob.hold(shop.place, "second") == Switched("order.place", False, "it is held already, by ann: first")
        assert [each.actor for each in backend_of(app).audit.recent(9).entries] == ["ann"]

    def test_two_operators_release_at_once(self, app: Celery, shop: Any, ann: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
        bob, real = Operator(app, "bob"), MemorySwitches.release
        ann.hold(shop.place, "why")

        def release(self: MemorySwitches, name: str, made: AuditEntry) -> bool:
            monkeypatch.setattr(MemorySwitches, "release", real)
            ann.release(shop.place, "first")
            return self.release(name, made)

        monkeypatch.setattr(MemorySwitches, "release", release)
        assert not bob.release(shop.place, "second").changed
        assert sorted(each.action for each in backend_of(app).audit.recent(9).entries) == ["hold", "release"]

    def test_dry_run_writes_nothing(self, app: Celery, shop: Any) -> None:
        result = run(app, "hold", "order", *WHY, "--dry-run")
        text = "order would be held: its messages would wait: this is a dry run, and nothing was written.\n"
        assert (result.output, names(app)) == (text, [])
        run(app, "hold", "order", *WHY)
        run(app, "release", "order", *WHY, "--dry-run")
        assert names(app) == ["order"]

    def test_json(self, app: Celery, shop: Any) -> None:
        (done,) = facts(app, "hold", "order", *WHY)
        assert done.pop("text")
        assert done == {"act": "hold", "dry_run": False, "name": "order", "changed": True, "planned": False}
        (done,) = facts(app, "release", "order", *WHY, "--dry-run")
        assert (done["act"], done["changed"], done["planned"]) == ("release", False, True)

    @pytest.mark.parametrize("reason", ["", "  ", "x" * 2_001, "\0"])
    def test_reason_must_be_one(self, app: Celery, shop: Any, ann: Operator, reason: str) -> None:
        assert run(app, "hold", "order", "--reason", reason).exit_code == 2
        with pytest.raises(ValueError, match=r"^reason= (takes|has)"):
            ann.hold(shop.Order, reason)
        assert names(app) == []

    def test_hundred_are_enough(self, app: Celery, shop: Any) -> None:
        for number in range(100):
            backend_of(app).switches.hold(f"step {number}", audited(entry()))
        result = run(app, "hold", "order", *WHY)
        assert result.exit_code == 1
        assert "Error: 100 sagas and steps are held, and no more can be. Nothing was stored." in result.output

    def test_backend_without_switches(self, app: Celery, shop: Any, ann: Operator) -> None:
        app.conf.saga_backend = f"{__name__}:WithoutSwitches+{app.conf.saga_backend}"
        with pytest.raises(ConfigurationError, match=r"order cannot be held in .*, a backend without Switches"):
            ann.hold(shop.Order, "why")
        shop.place("42")
        assert (run(app, "stuck").exit_code, run(app, "stats").exit_code, run(app, "held").exit_code) == (0, 0, 0)


class TestBackends:
    """Several backends: each saga's switches are in its own."""

    @pytest.fixture
    def app(self, new_app: NewApp) -> Celery:
        """An app with two backends."""
        app = new_app()
        app.conf.saga_backends = {"other": {"backend": f"{app.conf.saga_backend}-other"}}
        return app

    @pytest.fixture
    def invoice(self, shop: Any) -> type[Saga]:
        """A saga that is kept in the second one."""

        class Invoice(Saga, correlate_by="number", backend="other"):
            number: str

        @Invoice.starts
        def bill(invoice: Invoice, number: str) -> None: ...

        return Invoice

    def test_each_is_held_in_its_own(self, app: Celery, invoice: type[Saga], ann: Operator) -> None:
        ann.hold(invoice, "why")
        assert names(app) == []
        ann.hold("order", "why")
        assert [each["name"] for each in facts(app, "held")] == ["order", "invoice"]

    def test_one_that_is_away_hides_no_other(
        self, app: Celery, invoice: type[Saga], ann: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ann.hold(invoice, "why")
        real, first = MemorySwitches.held, backend_of(app).url

        def held(self: MemorySwitches) -> Any:
            if not (found := real(self)):
                raise StoreUnavailable(first, "it is away")
            return found

        monkeypatch.setattr(MemorySwitches, "held", held)
        result = run(app, "held")
        assert result.exit_code == 1
        assert "invoice" in result.output
        assert f"Error: The saga backend {first} is unavailable: it is away." in result.output
