"""``celery sagas list``."""

import json
from typing import Any

import pytest
from celery import Celery, shared_task

from celery_sagas import Saga
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.instances import PENDING, Glance, Page
from celery_sagas.stores.memory.instances import MemoryInstances
from celery_sagas.stores.records import Change
from celery_sagas.testing.samples import by_key, effects, entry, found, new_record
from tests.apps import NewApp, backend_of
from tests.cli.interrupting import pauses
from tests.cli.test_describe import run


@shared_task
def charge(order_id: str) -> None: ...


@pytest.fixture
def place(app: Celery) -> Any:
    """The first step of a saga that is listed by its city."""

    class Order(Saga, correlate_by="order_id", search_by="city"):
        order_id: str
        city: str = "Oslo"

    class Parcel(Saga, correlate_by="parcel_id"):
        parcel_id: str

    @Order.starts
    def place(order: Order, order_id: str, city: str = "Oslo", waits: int = 0) -> None:
        order.city = city
        for number in range(waits):
            order.schedule(remind, after=3_600, name=f"reminder {number}")
            order.send(charge.s(order_id), then=charged)

    @Order.handles
    def remind(order: Order) -> None: ...

    @Order.handles
    def charged(order: Order, answer: None) -> None: ...

    return place


def test_sagas_are_counted(app: Celery, place: Any) -> None:
    for number in range(3):
        place(str(number))
    result = run(app, "list")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.output.splitlines()] == [["SAGA", "INSTANCES"], ["order", "3"], ["parcel", "0"]]
    lines = run(app, "list", "--json").output.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"saga": "order", "instances": 3, "more": False},
        {"saga": "parcel", "instances": 0, "more": False},
    ]


def test_backend_that_is_away_hides_no_other(new_app: NewApp) -> None:
    app = new_app(saga_backends={"away": {"backend": "redis://127.0.0.1:1/0"}})

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    class Parcel(Saga, correlate_by="parcel_id", backend="away"):
        parcel_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    place("1")
    result = run(app, "list")
    assert result.exit_code == 1
    assert result.output.splitlines()[1].split() == ["order", "1"]
    assert "Error: parcel: The saga backend redis://127.0.0.1:1/0 is unavailable" in result.output


def test_counts_stop(app: Celery, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sagas.operate.counting.COUNTED", 2)
    for number in range(3):
        place(str(number))
    assert "order   > 2" in run(app, "list").output
    assert json.loads(run(app, "list", "--json").output.splitlines()[0]) == {"saga": "order", "instances": 2, "more": True}


def test_backend_that_lists_nothing_counts(app: Celery, place: Any) -> None:
    place("1")
    del backend_of(app).instances
    assert run(app, "list").output.splitlines()[1].split() == ["order", "1"]


def test_instances_are_shown_the_last_one_first(app: Celery, place: Any) -> None:
    place("1", "Bergen")
    place("2", waits=1)
    place("3", waits=2)
    result = run(app, "list", "order")
    assert result.exit_code == 0, result.output
    header, *rows = result.output.splitlines()
    assert header.split() == ["KEY", "VERSION", "CREATED", "CHANGED", "WAITS", "FOR", "ID"]
    assert [row.split()[:2] for row in rows] == [["3", "1"], ["2", "1"], ["1", "1"]]
    assert "2 timeouts, 2 answers" in rows[0]
    assert f"timeout reminder 0, answer of {charge.name}" in rows[1]
    assert "UTC  nothing" in rows[2]
    ids = [row.split()[-1] for row in rows]
    assert ids == [glance.id for glance in backend_of(app).instances.page("order", 9).instances]
    assert [row.split()[0] for row in run(app, "list", "order", "--oldest-first").output.splitlines()[1:]] == ["1", "2", "3"]
    assert [row.split()[0] for row in run(app, "list", "order", "--limit", "1").output.splitlines()[1:]] == ["3"]
    assert [row.split()[0] for row in run(app, "list", "order", "--by", "city=Bergen").output.splitlines()[1:]] == ["1"]


def test_json(app: Celery, place: Any) -> None:
    place("1", waits=1)
    (line,) = run(app, "list", "order", "--json").output.splitlines()
    facts = json.loads(line)
    ((glance,), _) = backend_of(app).instances.page("order", 9)
    waits_for = facts.pop("waits_for")
    assert facts == {name: value for name, value in glance._asdict().items() if name != "pending"}
    assert list(waits_for["timeouts"]) == ["reminder 0"]
    assert waits_for["timeouts"]["reminder 0"] >= glance.created_at + 3_500_000
    assert list(waits_for["requests"].values()) == [{"task": charge.name, "until": None}]
    assert waits_for["deferred"] == 0


@pytest.mark.parametrize(
    ("pending", "shown"),
    [
        (json.dumps({"format": 1, "note": "x" * PENDING}), "too much to show"),
        (json.dumps({"format": 99}), "written by newer code"),
        ("{", "unreadable"),
    ],
)
def test_instance_whose_pending_map_cannot_be_shown(app: Celery, place: Any, pending: str, shown: str) -> None:
    """It is listed."""
    place("1")
    backend = backend_of(app)
    (record,) = backend.instances.read("order", [backend.instances.page("order", 1).instances[0].id])
    backend.sagas.update(record, Change(("order",), 1, record.data, pending), effects(record))
    assert shown in run(app, "list", "order").output
    assert json.loads(run(app, "list", "order", "--json").output)["waits_for"] is None


def test_damaged_instance_is_listed(app: Celery, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place("1")
    (glance,) = backend_of(app).instances.page("order", 9).instances
    damaged = Glance(glance.id, "order", "", 0, 0, 0, None, 0, 0)
    monkeypatch.setattr(MemoryInstances, "page", lambda *_, **__: Page((damaged,), ""))
    row = run(app, "list", "order").output.splitlines()[1]
    assert row.startswith("- ")
    assert row.endswith(f"unreadable  {glance.id}")


def test_hostile_key_stays_in_its_line(app: Celery, place: Any) -> None:
    place("\x1b[2J\n9\u202e")
    output = run(app, "list", "order").output
    assert len(output.splitlines()) == 2
    assert "\x1b" not in output
    assert r"\x1b[2J\n9\u202e" in output
    assert "\x1b" not in run(app, "list", "order", "--json").output


def test_nothing_to_show(app: Celery, place: Any) -> None:
    assert run(app, "list", "parcel").output == "There are no such instances of parcel.\n"
    assert run(app, "list", "order", "--by", "city=Bergen").output == "There are no such instances of order.\n"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("orders",), 1, "unknown saga orders; known: order, parcel"),
        (("order", "--by", "city"), 2, "--by takes FIELD=VALUE, such as --by status=paid"),
        (("order", "--by", "name=x"), 1, "it cannot be listed by name. It is listed by city; search_by= declares more"),
        (("order", "--by", "city="), 1, "city: '' is no value of it: it is empty"),
        (("--by", "city=Oslo"), 2, "name a saga with options that choose, --oldest-first and --follow"),
        (("--follow",), 2, "name a saga with options that choose, --oldest-first and --follow"),
        (("order", "--follow", "--by", "city=Oslo"), 2, "--follow is for all instances"),
        (("order", "--follow", "--oldest-first"), 2, "--follow is for all instances"),
        (("order", "--by", "city=Oslo", "--oldest-first"), 2, "choose by one of these: a field in search_by, oldest first"),
        (("order", "--follow", "--late"), 2, "--follow is for all instances"),
        (("order", "--limit", "0"), 2, "0 is not in the range"),
    ],
)
def test_wrong_arguments(app: Celery, place: Any, arguments: tuple[str, ...], status: int, text: str) -> None:
    result = run(app, "list", *arguments)
    assert result.exit_code == status
    assert text in " ".join(result.output.split())


class TestFollowing:
    """``--follow`` shows instances as they are changed, until Ctrl-C."""

    @pytest.fixture
    def steps(self, app: Celery) -> Any:
        """Steps of a saga that had another name."""

        class Order(Saga, correlate_by="order_id", formerly="purchase"):
            order_id: str
            total: int = 0

        @Order.starts(if_exists="ignore")
        def place(order: Order, order_id: str) -> None: ...

        @Order.handles
        def add(order: Order, order_id: str) -> None:
            order.total += 1

        @Order.handles
        def end(order: Order, order_id: str) -> None:
            order.complete()

        return place, add, end

    def _rows(self, output: str) -> list[list[str]]:
        return [line.split()[:2] for line in output.splitlines()[1:]]

    def test_changes(self, app: Celery, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        place, add, end = steps
        place("1")
        place("2")
        pauses(monkeypatch, lambda: (add("1"), place("2")), lambda: place("3"), lambda: None, lambda: (add("2"), end("1")))
        result = run(app, "list", "order", "--follow")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.output.splitlines()[0].split() == ["KEY", "VERSION", "CREATED", "CHANGED", "WAITS", "FOR", "ID"]
        rows = self._rows(result.output)
        assert rows == [["1", "1"], ["2", "1"], ["1", "2"], ["3", "1"], ["2", "2"]]

    def test_several_changes_between_two_looks(self, app: Celery, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are one line, in which the instance is as it is then."""
        place, add, _ = steps
        place("1")
        pauses(monkeypatch, lambda: (add("1"), add("1")), lambda: None)
        assert self._rows(run(app, "list", "order", "--follow").output) == [["1", "1"], ["1", "3"]]

    def test_change_that_is_seen_before_its_entry(self, app: Celery, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """It comes once."""
        place, add, _ = steps
        place("1")
        read = MemoryInstances.read

        def read_late(instances: MemoryInstances, name: str, ids: list[str]) -> Any:
            monkeypatch.setattr(MemoryInstances, "read", read)
            add("1")
            return read(instances, name, ids)

        monkeypatch.setattr(MemoryInstances, "read", read_late)
        pauses(monkeypatch, lambda: add("1"), lambda: None)
        assert self._rows(run(app, "list", "order", "--follow").output) == [["1", "1"], ["1", "3"]]

    def test_the_newest_of_earlier_ones(self, app: Celery, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another one comes if it is changed, but not for a message that has failed."""
        place, *_ = steps
        for number in range(9):
            place(str(number))
        failed = entry(found(backend_of(app), by_key("1")), outcome="failed", version=1)
        pauses(monkeypatch, lambda: backend_of(app).sagas.record(effects(line=failed)))
        assert self._rows(run(app, "list", "order", "--follow", "--limit", "2").output) == [["7", "1"], ["8", "1"]]

    def test_instance_under_a_former_name(self, app: Celery, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        _, add, _ = steps
        new = new_record("1", names=("purchase",), data='{"order_id": "1"}')._replace(schema_version=1, pending="{}")
        backend_of(app).sagas.insert(new, effects(new))
        pauses(monkeypatch, lambda: add("1"))
        output = run(app, "list", "order", "--follow", "--json").output
        assert [(each["saga"], each["version"]) for each in map(json.loads, output.splitlines())] == [
            ("purchase", 1),
            ("purchase", 2),
        ]

    def test_store_that_is_away_for_a_while(self, app: Celery, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was changed meanwhile is not lost."""
        place, add, _ = steps
        place("1")
        place("2")
        read, failing = MemoryInstances.read, iter([True, True, False])

        def read_later(*args: Any) -> Any:
            if next(failing, False):
                raise StoreUnavailable("memory://", "it is away")
            return read(*args)

        monkeypatch.setattr(MemoryInstances, "read", read_later)
        pauses(monkeypatch, lambda: add("1"), lambda: add("2"), lambda: None)
        assert sorted(self._rows(run(app, "list", "order", "--follow").output)[2:]) == [["1", "2"], ["2", "2"]]
