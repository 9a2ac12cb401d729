"""``celery sagas timeline``."""

import json
from typing import Any

import pytest
from celery import Celery, shared_task
from pydantic import Field

from celery_sagas import Saga
from celery_sagas.operate import Operator
from celery_sagas.testing.samples import effects, entry
from tests.apps import backend_of
from tests.cli.test_describe import run
from tests.cli.test_tables import is_safe


@shared_task(acks_late=True)
def charge(order_id: str) -> None: ...


@pytest.fixture
def shop(app: Celery) -> Any:
    """A saga whose steps send messages of each kind."""

    class Order(Saga, correlate_by="order_id", history="messages"):
        order_id: str
        secret: str = "swordfish"

    @Order.starts
    def place(order: Order, order_id: str, password: str = "") -> None:
        order.send(charge.s(order_id), then=charged, otherwise=not_charged, within=60)
        order.gather([charge.s("a"), charge.s("b")], then=all_charged)
        order.send(charge.s("c"))
        order.schedule(remind, after=60)

    @Order.handles
    def charged(order: Order, answer: Any) -> None: ...

    @Order.handles
    def not_charged(order: Order, failure: Any) -> None: ...

    @Order.handles
    def all_charged(order: Order, answers: Any) -> None: ...

    @Order.handles
    def remind(order: Order) -> None: ...

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    return place, end


def test_timeline_of_the_newest_instance(app: Celery, shop: Any) -> None:
    place, end = shop
    place("1", "first")
    end("1")
    place("1", "swordfish")
    result = run(app, "timeline", "order", "1")
    assert result.exit_code == 0, result.output
    header, row, rest = result.output.splitlines()
    assert header.split() == ["AT", "STEP", "OUTCOME", "VERSION", "CHANGED", "SENT"]
    assert row.split()[3:6] == ["order.place", "started", "1"]
    requests = f"{charge.name} → order.charged | order.not_charged, 2 members → order.all_charged"
    assert row.endswith(f"{requests}, {charge.name} (3 times), timeout → order.remind")
    assert rest == "2 entries of earlier instances with this key are left out; --all shows them."
    everything = run(app, "timeline", "Order", "1", "--all").output.splitlines()[1:]
    assert [line.split()[3:6] for line in everything] == [
        ["order.place", "started", "1"],
        ["order.end", "completed", "2"],
        ["order.place", "started", "1"],
    ]
    assert [line.split()[3] for line in run(app, "timeline", "order", "1", "--all", "--limit", "2").output.splitlines()[1:]] == [
        "order.end",
        "order.place",
    ]


def test_json_has_neither_arguments_nor_states(app: Celery, shop: Any) -> None:
    place, end = shop
    place("1", "swordfish")
    end("1")
    output = run(app, "timeline", "order", "1", "--json").output
    began, ended = map(json.loads, output.splitlines())
    assert (began["step"], began["outcome"], began["version"], ended["outcome"]) == ("order.place", "started", 1, "completed")
    assert began["instance_id"] == ended["instance_id"]
    assert [each["then"] for each in began["asked"]] == ["order.charged", "order.all_charged"]
    assert "swordfish" not in output


def test_message_that_found_no_instance(app: Celery, shop: Any) -> None:
    _, end = shop
    end("1")
    (row,) = run(app, "timeline", "order", "1").output.splitlines()[1:]
    assert row.split()[3:] == ["order.end", "ignored", "(missing)", "-", "-", "-"]


def test_hostile_text_stays_in_its_line(app: Celery, shop: Any) -> None:
    place, _ = shop
    place("1")
    line = entry(step="order.\x1b[2J\n", key="1")._replace(detail="no JSON", saga="order")
    backend_of(app).sagas.record(effects(line=line))
    output = run(app, "timeline", "order", "1").output
    assert len(output.splitlines()) == 3
    assert "\x1b" not in output
    assert r"order.\x1b[2J\n" in output


def test_step_that_gets_answers_and_failures_is_named_once(app: Celery, shop: Any) -> None:
    """As is the one that gets the outcomes of undos."""
    asked = [{"request": "r", "task": "refund", "then": "order.(undone)", "otherwise": "order.(undone)"}]
    line = entry(step="order.end", key="1")._replace(detail=json.dumps({"asked": asked}), saga="order")
    backend_of(app).sagas.record(effects(line=line))
    assert run(app, "timeline", "order", "1").output.rstrip().endswith("  refund → order.(undone)")


@pytest.mark.parametrize(
    ("detail", "sent"),
    [
        ({"asked": 5, "sent": None, "scheduled": {"task": "x"}}, "-"),
        ({"asked": ["x", {}], "sent": ["x", {"task": "refund", "id": 7}], "scheduled": None}, "? → , refund"),
        ({"asked": [{"request": [], "task": {}, "then": 5, "otherwise": "order.end", "members": "x"}]}, "? → order.end"),
        ({"sent": [{"task": ["x"]}, {}], "scheduled": [{"task": 5}, []]}, "? (2 times), timeout → ?"),
        (["x"], "-"),
    ],
)
def test_details_of_another_form(app: Celery, shop: Any, detail: Any, sent: str) -> None:
    """What is as expected is shown."""
    line = entry(step="order.end", key="1")._replace(detail=json.dumps(detail), saga="order")
    backend_of(app).sagas.record(effects(line=line))
    result = run(app, "timeline", "order", "1")
    assert result.exit_code == 0, result.output
    assert result.output.rstrip().endswith(f"  {sent}")
    assert run(app, "timeline", "order", "1", "--json").exit_code == 0


def test_nothing_is_known(app: Celery, shop: Any) -> None:
    result = run(app, "timeline", "order", "\x1b7")
    assert result.exit_code == 1
    assert result.output == "Error: the journal has nothing about order \\x1b7: nothing came, or it was purged\n"


def test_unknown_saga(app: Celery, shop: Any) -> None:
    result = run(app, "timeline", "parcel", "7")
    assert (result.exit_code, result.output) == (1, "Error: unknown saga parcel; known: order\n")


def test_backend_that_is_away(app: Celery, shop: Any) -> None:
    app.conf.saga_backend = "redis://127.0.0.1:1/0"
    result = run(app, "timeline", "order", "1")
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: The saga backend redis://127.0.0.1:1/0 is unavailable: ")


class TestChanges:
    """What each message has changed."""

    @pytest.fixture
    def paid(self, definitions: None) -> Any:
        class Order(Saga, correlate_by="order_id", history="values", name="paid"):
            order_id: str
            total: int = 0
            note: str = ""
            pin: str = Field(default="", repr=False)
            lines: list[Any] = []

        @Order.starts
        def write(order: Order, order_id: str, total: int = 0, note: str = "", pin: str = "", lines: int = 0) -> None:
            order.total, order.note, order.pin, order.lines = total, note, pin, ["x"] * lines

        return write

    def lines(self, app: Celery, *options: str) -> list[str]:
        result = run(app, "timeline", "paid", "1", *options)
        assert result.exit_code == 0, result.output
        return list(result.output.splitlines())

    def changed(self, app: Celery, *options: str) -> list[Any]:
        return [json.loads(line)["changed"] for line in self.lines(app, "--json", *options)]

    def test_column(self, app: Celery, paid: Any) -> None:
        paid("1", 5, "x")
        paid("1", 5, "x")
        paid("1", 6, "x", lines=20_000)
        Operator(app, "ann").instance("paid", order_id="1").patch("typo", values={"note": "y", "pin": "1"})
        header, *rows = self.lines(app)
        at = header.index("CHANGED"), header.index("SENT")
        assert [row[slice(*at)].strip() for row in rows] == ["total, note", "-", "many", "note, pin"]
        assert self.changed(app) == [
            {"names": ["total", "note"], "many": False},
            {"names": [], "many": False},
            {"names": [], "many": True},
            {"names": ["note", "pin"], "many": False},
        ]

    def test_values(self, app: Celery, paid: Any) -> None:
        paid("1", 5, "x", "4711")
        paid("1", 5, "y" * 500, "4711")
        paid("1", 5, "z" * 5_000, "4711")
        assert [line for line in self.lines(app, "--values") if line.startswith(" ")] == [
            "  total: 0 → 5",
            '  note: "" → "x"',
            "  pin: ••• → •••",
            f'  note: "x" → "{"y" * 199}… (502 characters)',
            f'  note: "{"y" * 199}… (502 characters) → (5,002 bytes)',
        ]
        first, _, last = self.changed(app, "--values")
        assert first["values"]["total"] == {"before": 0, "after": 5, "before_size": 0, "after_size": 0}
        assert first["values"]["pin"] == {"before": "•••", "after": "•••", "before_size": 0, "after_size": 0}
        assert (last["values"]["note"]["after"], last["values"]["note"]["after_size"]) == (None, 5_002)
        assert "4711" not in run(app, "timeline", "paid", "1", "--values", "--json").output

    def test_saga_that_keeps_none(self, app: Celery, definitions: None) -> None:
        class Order(Saga, correlate_by="order_id", name="paid"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place("1")
        assert self.lines(app, "--values")[1].endswith("  started  1        -        -")
        assert self.changed(app, "--values") == self.changed(app) == [None]

    @pytest.mark.parametrize(
        ("options", "lines"), [([], 3), (["--values"], 6), (["--json"], 2), (["--values", "--json"], 2)], ids=str
    )
    def test_hostile_text(self, app: Celery, paid: Any, options: list[str], lines: int) -> None:
        paid("1", 5, "\x1b[2J\n\u202e\u2028")
        detail = {"changed": ["\x1b[2J\n"], "values": {"\x1b[2J\n": ["\x1b", "\n"]}}
        line = entry(step="paid.write", key="1")._replace(detail=json.dumps(detail), saga="paid")
        backend_of(app).sagas.record(effects(line=line))
        found = self.lines(app, "--all", *options)
        assert len(found) == lines
        assert all(map(is_safe, found))

    def test_state_of_a_megabyte(self, app: Celery, paid: Any) -> None:
        for note in ("x" * 900_000, "y" * 900_000):
            paid("1", 5, note)
        assert [line.split()[6] for line in self.lines(app, "--values")[1:]] == ["many", "many"]
        assert sum(len(each.detail) for each in backend_of(app).journal.history(["paid"], "1", 9)) < 100
