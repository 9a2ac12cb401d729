"""Write the outputs of operating.md anew: ``python docs/make_operating.py``, with celery-sagas installed; or into another file.

The commands of the page are run in their order, in a night that is played in virtual time. What happens meanwhile is said here.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import click
from celery import Celery, shared_task
from click.testing import CliRunner
from pydantic import BaseModel, Field

from celery_sagas import Saga
from celery_sagas.cli import sagas
from celery_sagas.cli.doctor import _print
from celery_sagas.core.ids import row_id
from celery_sagas.core.registry import registry
from celery_sagas.operate.doctor import configuration, stores, workers
from celery_sagas.operate.doctor.facts import Broker, Code, Configuration, Finding, Relay, Store, Worker, Workers, apply
from celery_sagas.stores.records import Change, Effects, Outgoing, Record
from celery_sagas.testing import SagaHarness
from celery_sagas.testing.harness.world import World
from celery_sagas.testing.samples import by_key, entry
from celery_sagas.worker.runtime import Runtime, runtime_of

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ celery -A proj sagas (.*)\n", re.MULTILINE)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME_ORDERED_ID = re.compile(r"\b0[0-9A-Za-z]{21}\b")
#: Stands on the page for each id.
ID, MESSAGE_ID = "031elRpFDc2jNXWUEZAWzh", "3f1c9a52-8d40-4b7e-a6f1-0c2d5e8b9a17"
BEGUN = datetime(2026, 11, 13, 22, 10, tzinfo=UTC)
PLACED, LATE = datetime(2026, 11, 17, 21, 40, 44, tzinfo=UTC), datetime(2026, 11, 23, 1, 9, 10, tzinfo=UTC)
#: How many lines of what came of each instance are shown.
LONGEST = 8
HOUR_MS = 3_600_000


def page() -> str:
    """Return the page with its outputs."""
    text = (DOCS / "operating.md").read_text(encoding="utf-8")
    with night() as played:
        return BLOCK.sub(lambda block: "".join(map(played.output_of, COMMAND.findall(block[0]))), text)


@contextmanager
def night() -> Iterator["Night"]:
    """Put virtual time, a broker that loses messages, and an operator in the place of the real ones."""
    opened = World._open_runtime

    def open_lossy(world: World, app: Celery) -> Runtime:
        runtime = opened(world, app)
        runtime.resend_after_s = 3_600.0
        return runtime

    app = Celery("proj", broker="memory://")
    app.conf.saga_step_retries = 0
    app.set_current()
    order = shop()
    actor, folder = patch("celery_sagas.cli.acts.default_actor", lambda: "ann@ops-1"), CliRunner().isolated_filesystem()
    with folder, actor, patch.object(World, "_open_runtime", open_lossy), SagaHarness(app, now=BEGUN) as harness:
        yield Night(app, order, harness)


def shop() -> SimpleNamespace:
    """Define the saga of the page, and what it asks."""

    class Line(BaseModel):
        sku: str = "tea"
        count: int = 1

    class Order(
        Saga, correlate_by="order_id", also_by="tracking", search_by="carrier", history="values", max_idle=timedelta(days=7)
    ):
        order_id: str
        total: Decimal
        carrier: str
        card: str
        lines: list[Line] = Field(default=[Line()])
        receipt: str | None = None
        tracking: str | None = None

    @Order.starts
    def place_order(order: Order, order_id: str, carrier: str) -> None:
        order.total, order.carrier, order.card = Decimal("9.99"), carrier, "4111"
        order.send(charge.si(order_id), then=charged)

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.receipt = receipt
        order.send(ship.si(order.order_id), then=shipped)

    @Order.handles
    def shipped(order: Order, tracking: str) -> None:
        order.tracking = tracking
        order.schedule(still_waiting, after=timedelta(days=5), name="delivery")

    @Order.handles
    def still_waiting(order: Order) -> None: ...

    @Order.handles
    def postpone(order: Order, order_id: str) -> None:
        order.schedule(ask_again, after=timedelta(days=1), name="question")

    @Order.handles
    def ask_again(order: Order) -> None: ...

    @Order.handles
    def note(order: Order, order_id: str) -> None: ...

    @Order.handles
    def label(order: Order, order_id: str) -> None:
        raise KeyError("format")

    @Order.handles(by="tracking")
    def parcel_delivered(order: Order, tracking: str) -> None:
        order.complete()

    @shared_task(name="shop.charge", acks_late=True)
    def charge(order_id: str) -> str:
        return f"r-{int(order_id) % 100}"

    @shared_task(name="shop.ship", acks_late=True)
    def ship(order_id: str) -> str:
        return f"1Z-{order_id}"

    steps = {"place": place_order, "note": note, "label": label, "postpone": postpone, "ask_again": ask_again}
    return SimpleNamespace(**steps, still_waiting=still_waiting, charge=charge)


class Night:
    """A night with orders that do not go on."""

    def __init__(self, app: Celery, order: SimpleNamespace, harness: SagaHarness) -> None:
        self._app, self._order, self._harness, self._runner = app, order, harness, CliRunner()
        self._meanwhile: dict[str, Callable[[], object]] = {
            "resume order 8841": self._messages_come,
            "each pause order --by": self._many,
            "each reindex": self._forget_carriers,
        }
        self._go_wrong()

    def output_of(self, words: str) -> str:
        """Return a command of the page with its output."""
        for begin in [each for each in self._meanwhile if words.startswith(each)]:
            self._meanwhile[begin]()
        if words == "doctor":
            printed = doctor()
        else:
            done = self._runner.invoke(sagas, shlex.split(words), obj=SimpleNamespace(app=self._app), input="y\n")
            if done.exit_code not in (0, 1, 3):
                raise RuntimeError(f"{words}: {done.output}") from done.exception
            printed = done.output
        lines = TIME_ORDERED_ID.sub(ID, UUID.sub(MESSAGE_ID, printed)).splitlines(keepends=True)
        if words.startswith("each") and len(lines) > LONGEST:
            lines[4:-1] = ["…\n"]
        return f"$ celery -A proj sagas {words}\n{''.join(lines)}"

    def _go_wrong(self) -> None:
        order, harness = self._order, self._harness
        harness.hold(order.charge)
        self._place("8702")
        self._lose()
        harness.restore(order.charge)

        self._at(PLACED)
        harness.hold("shop.ship")
        self._place("8841")
        self._at(datetime(2026, 11, 18, 0, 10, 2, tzinfo=UTC))
        harness.restore("shop.ship")
        harness.run()

        self._at(datetime(2026, 11, 19, 0, 2, tzinfo=UTC))
        self._place("9002")
        harness.send(order.postpone, order_id="9002")
        harness.run()
        self._forget(order.ask_again)

        self._at(datetime(2026, 11, 22, 22, 40, tzinfo=UTC))
        for number in ("8790", "9017", "9101", "9102", "9103", "9104"):
            self._place(number)
        self.output_of('pause order 8790 --reason "carrier down, INC-881"')
        for _ in range(3):
            harness.send(order.note, order_id="8790")
        for order_id in range(9101, 9105):
            harness.send(order.label, order_id=str(order_id))
        harness.hold(order.still_waiting)
        harness.run()
        self._at(datetime(2026, 11, 23, 0, 49, 7, tzinfo=UTC))
        self._lose()
        self._refuse("9017")
        self._at(LATE)

    def _place(self, number: str, carrier: str = "ups") -> None:
        self._harness.send(self._order.place, order_id=number, carrier=carrier)
        self._harness.run()

    def _at(self, time: datetime) -> None:
        self._harness.advance(time - self._harness.now)

    def _lose(self) -> None:
        """Have the broker lose what waits in it."""
        for message in self._harness.pending:
            self._harness.drop(message)

    def _forget(self, step: Any) -> None:
        """Have the workers go on without a step."""
        del registry.steps[step.name]
        self._app.tasks.pop(step.name)

    def _refuse(self, number: str) -> None:
        """Have an order send a message that the broker does not take."""
        row = self._write(number)
        for _ in range(7):
            runtime_of(self._app).backend.outbox.fail("process", row, "no queue 'billing'", HOUR_MS)

    def _write(self, number: str, pending: str = "", removed_tags: tuple[tuple[str, str], ...] = ()) -> str:
        """Commit an order as it is, with a message that is not published; return the id of its row."""
        record, attempt = self._read(number)
        row = Outgoing(row_id(attempt, 0), "sent", MESSAGE_ID, "billing.charge", "{}", 0)
        change = Change(("order",), record.schema_version, record.data, pending or record.pending, removed_tags=removed_tags)
        effects = Effects(entry(record, attempt=attempt), (row,), "process", 60_000)
        runtime_of(self._app).backend.sagas.update(record, change, effects)
        return row.id

    def _read(self, number: str) -> tuple[Record, str]:
        """Return an order, and the id for a commit of it."""
        record, _, attempt = runtime_of(self._app).backend.sagas.find(by_key(number, ("order",)))
        if record is None:
            raise LookupError(number)
        return record, attempt

    def _many(self) -> None:
        """Have some orders wait for one carrier, of which one is paused, and one is written by newer code."""
        for number in range(9201, 9206):
            self._place(str(number), "dhl")
        self.output_of('pause order 9204 --reason "carrier down, INC-881"')
        before = self._read("9202")[0].pending
        self._write("9202", '{"format": 99}')
        self._meanwhile["each pause order --from"] = lambda: self._write("9202", before)

    def _forget_carriers(self) -> None:
        """Have some orders as code has written them that lists none by its carrier."""
        for each in ("9101", "9102", "9103"):
            pending = json.loads(self._read(each)[0].pending)
            del pending["tags"]
            self._write(each, json.dumps(pending), (("carrier", "ups"),))

    def _messages_come(self) -> None:
        self._harness.send(self._order.note, order_id="8841")
        self._harness.send(self._order.note, order_id="8841")
        self._harness.advance(timedelta(minutes=49))


def doctor() -> str:
    """Return what the doctor says of a system with some faults."""
    code = Code("1.0", {"order": 1}, {"order": frozenset({"order.place_order"})})
    relays = [Worker(name, code, Relay(is_running=True, swept_ms=400)) for name in ("w1", "w2")]
    wanted = {"celery": ["order.place_order"], "billing": ["shop.charge"]}
    asked = Workers(code, relays, consumed=frozenset({"celery"}), wanted=wanted)
    store = Store("postgresql://shop@db.example/shop", dead_letters=4, retention_ms=7 * 24 * HOUR_MS)
    broker = Broker("amqp://shop:**@mq.example:5672//", "amqp")
    settings = Configuration(early_requests=[("order.place_order", "shop.charge")])
    findings: list[Finding] = [
        *apply(configuration.RULES, settings),
        *apply(workers.BROKER, broker, broker.url),
        *apply(workers.ANSWERED, asked),
        *apply(stores.REACHED, store, store.url),
        *apply(stores.STORED, store, store.url),
    ]

    @click.command()
    def show() -> None:
        for finding in findings:
            _print(finding)

    return CliRunner().invoke(show).output


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else DOCS / "operating.md").write_text(page(), encoding="utf-8")
