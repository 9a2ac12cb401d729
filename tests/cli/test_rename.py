"""``celery sagas rename``."""

import json
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.samples import start
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of, interposed
from tests.cli.test_describe import run
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

LATER = datetime(2130, 1, 1, tzinfo=UTC)


def define_old() -> Any:
    """Define the saga as it was, and return its first step."""

    class Buying(Saga, correlate_by="order_id", also_by="tracking"):
        order_id: str
        tracking: str | None = None

    @Buying.starts
    def begin(buying: Buying, order_id: str, tracking: str | None = None) -> None:
        buying.tracking = tracking
        buying.schedule("remind", at=LATER)

    @Buying.handles
    def remind(buying: Buying) -> None: ...

    return begin


def define_new(formerly: str | tuple[str, ...] = "buying") -> Any:
    """Define the saga as it is."""
    registry.sagas.clear()
    registry.steps.clear()

    class Purchase(Saga, correlate_by="order_id", also_by="tracking", formerly=formerly):
        order_id: str
        tracking: str | None = None
        reminded: bool = False

    @Purchase.handles(formerly="buying.remind")
    def remind(purchase: Purchase) -> None:
        purchase.reminded = True

    return Purchase


@pytest.fixture
def purchase(app: Celery, worker: Worker) -> Any:
    """A saga with three instances under its former name."""
    begin = define_old()
    for number in ("42", "43", "44"):
        begin.delay(number, f"T{number}")
    worker.run()
    return define_new()


def test_what_is_left_is_shown_and_nothing_is_moved(app: Celery, purchase: Any) -> None:
    result = run(app, "rename")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["SAGA      FORMERLY  LEFT", "purchase  buying    3"]
    assert json.loads(run(app, "rename", "--json").output) == {"saga": "purchase", "formerly": "buying", "left": 3}
    assert backend_of(app).sagas.count(["buying"]) == {"buying": 3}


class TestEveryStore:
    """Wherever the sagas are kept."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    @pytest.mark.parametrize("argument", ["purchase", "--all"])
    def test_instances_are_moved(self, app: Celery, purchase: Any, argument: str) -> None:
        result = run(app, "rename", argument)
        assert result.exit_code == 0, result.output
        assert result.output == "purchase: 3 instances were moved from buying, 0 are left.\n"
        assert run(app, "rename", argument).output == "purchase: 0 instances were moved from buying, 0 are left.\n"

    def test_moved_instances_live_on_without_their_former_name(self, app: Celery, worker: Worker, purchase: Any) -> None:
        """They are found by their keys, and by what was scheduled for them before."""
        prefix, after_all = app.conf.saga_prefix, int(LATER.timestamp() * 1_000)
        with closing(open_backend(app.conf.saga_backend, prefix=prefix, options={}, clock=lambda: after_all)) as later:
            [row] = [row for row in later.outbox.claim_due("relay", 9, 1) if row.instance_id == purchase.find("42").saga.id]
        run(app, "rename", "--all")
        saga = define_new(formerly=())
        assert [saga.find(number).tracking for number in ("42", "43", "44")] == ["T42", "T43", "T44"]
        assert saga.find(tracking="T43").order_id == "43"

        runtime_of(app).publisher.publish(row)
        worker.run()
        found = saga.find("42")
        assert (found.reminded, found.saga.timeouts, found.saga.version) == (True, {}, 2)

    def test_instances_whose_keys_are_taken_are_named(self, app: Celery, purchase: Any) -> None:
        """Old code and new code began one each."""
        former = purchase.find("43").saga.id
        start(backend_of(app), "43", names=("purchase",))
        result = run(app, "rename", "purchase")
        assert result.exit_code == 1
        assert "purchase: 2 instances were moved from buying, 1 is left.\n" in result.output
        assert "another instance under purchase has one of the keys" in result.output
        assert f"  43 (id {former})" in result.output
        assert purchase.find(id=former).tracking == "T43"

    def test_run_that_was_interrupted_is_completed_by_another(
        self, app: Celery, purchase: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def go() -> None:
            raise StoreUnavailable("memory://", "the server has gone")

        monkeypatch.setattr(import_module("celery_sagas.cli.rename"), "_BATCH", 2)
        interposed(app).once_before("rename", lambda: None, go)
        result = run(app, "rename", "purchase")
        assert result.exit_code == 1
        assert "the server has gone" in result.output
        assert run(app, "rename", "purchase").output == "purchase: 1 instance was moved from buying, 0 are left.\n"


def test_each_saga_is_moved_from_each_of_its_former_names(app: Celery) -> None:
    define_new(formerly=("buying", "shopping"))

    class Invoice(Saga, correlate_by="number", formerly="bill"):
        number: str

    for key, name in (("42", "buying"), ("43", "shopping"), ("44", "bill")):
        start(backend_of(app), key, names=(name,))
    assert run(app, "rename", "purchase").output.splitlines() == [
        "purchase: 1 instance was moved from buying, 0 are left.",
        "purchase: 1 instance was moved from shopping, 0 are left.",
    ]
    assert backend_of(app).sagas.count(["bill", "purchase"]) == {"bill": 1, "purchase": 2}
    assert run(app, "rename", "--all").exit_code == 0
    assert backend_of(app).sagas.count(["bill", "invoice"]) == {"bill": 0, "invoice": 1}


def test_long_list_of_them_is_cut(app: Celery, purchase: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("celery_sagas.cli.rename"), "_LISTED", 1)
    for key in ("42", "43", "44"):
        start(backend_of(app), key, names=("purchase",))
    result = run(app, "rename", "purchase")
    assert result.output.count("(id ") == 1
    assert "  and 2 more" in result.output


def test_progress_is_shown(app: Celery, purchase: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("celery_sagas.cli.rename"), "_BATCH", 1)
    monkeypatch.setattr(import_module("celery_sagas.cli.rename"), "_REPORT_S", 0.0)
    assert run(app, "rename", "purchase").output.splitlines() == [
        "purchase: 1 of 3 instances were moved from buying.",
        "purchase: 2 of 3 instances were moved from buying.",
        "purchase: 3 instances were moved from buying, 0 are left.",
    ]


def test_instances_that_older_code_makes_meanwhile_are_left(app: Celery, purchase: Any) -> None:
    def make() -> None:
        start(backend_of(app), "0", names=("buying",))

    interposed(app).once_after("rename", make)
    result = run(app, "rename", "purchase")
    assert result.exit_code == 1
    assert "workers with older code still make instances under buying: replace them, and run this again" in result.output
    assert run(app, "rename", "purchase").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["parcel"], "no saga parcel has former names (formerly=); those that have: purchase"),
        (["purchase", "--all"], "name sagas, or give --all"),
        (["purchase", "--json"], "--json shows what is left"),
        (["--all", "--json"], "--json shows what is left"),
    ],
)
def test_wrong_arguments(app: Celery, purchase: Any, arguments: list[str], text: str) -> None:
    result = run(app, "rename", *arguments)
    assert result.exit_code != 0
    assert text in result.output
    assert backend_of(app).sagas.count(["buying"]) == {"buying": 3}


def test_no_saga_has_former_names(app: Celery) -> None:
    define_old()
    assert run(app, "rename").output == "No saga has former names.\n"
    assert run(app, "rename", "--all").output == ""
