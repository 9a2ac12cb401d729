"""``--local``: times in the time zone of this machine."""

import re
import time
from collections.abc import Iterator
from itertools import count

import click
import pytest
from celery import Celery

from celery_sagas import Batch, Saga, aggregator
from celery_sagas.cli import sagas
from celery_sagas.clock import LAST_MS
from celery_sagas.operate import Operator
from celery_sagas.operate.spans import time_text
from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.testing.samples import dead_letter
from tests.apps import backend_of
from tests.cli.test_describe import run
from tests.cli.test_extremes import COMMANDS as HOSTILE
from tests.cli.test_extremes import hostile, leaves, order

__all__ = ["hostile", "order"]

#: Those that show a time, and what they are given.
COMMANDS = {
    "activity": [],
    "aggregates items": ["meters"],
    "aggregates list": ["meters"],
    "aggregates unreadable": ["meters"],
    "audit": [],
    "dead groups": [],
    "dead list": [],
    "dead show": ["letter"],
    "each": ["pause", "order", "--where", 'order_id != ""', "--scan", "1", "--dry-run", "--reason", "why"],
    "held": [],
    "list": ["order"],
    "replay": ["parcel", "1"],
    "show": ["order", "1"],
    "stats": [],
    "timeline": ["order", "1"],
    "try": ["order.place", "--args", '{"order_id": "9"}'],
}


@pytest.fixture(autouse=True)
def oslo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this machine be in Oslo, in the winter."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def orders(app: Celery, definitions: None) -> None:
    """Two orders that wait for a timeout, and one of everything else that has a time; a parcel is never handled as before."""
    weights = count()

    class Parcel(Saga, correlate_by="number", history="messages"):
        number: str
        weight: int = 0

    @Parcel.starts
    def pack(parcel: Parcel, number: str) -> None:
        parcel.weight = next(weights)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.schedule(remind, after=3_600, name="delivery")

    @Order.handles
    def remind(order: Order) -> None: ...

    @aggregator(name="meters", size=9, within=3_600)
    def meters(batch: Batch[int]) -> None: ...

    for key in ("1", "2"):
        place(key)
    pack("1")
    backend = backend_of(app)
    backend.dead.add(dead_letter("letter"))
    items = NewItem("1", "1"), NewItem("2", '"x"', is_unreadable=True)
    backend.aggregates.insert(Rules("meters", size=9, within_ms=3_600_000), [Addition("", items)])
    Operator(app, "ann").hold("order.remind", "why")


@pytest.mark.parametrize("name", COMMANDS)
def test_times_are_in_the_zone_of_this_machine(app: Celery, orders: None, name: str) -> None:
    utc, local = (run(app, *name.split(), *COMMANDS[name], *options) for options in ([], ["--local"]))
    assert (" UTC" in utc.output, " CET" in utc.output) == (True, False), utc.output
    assert (" UTC" in local.output, " CET" in local.output) == (False, True), local.output
    for_programs = run(app, *name.split(), *COMMANDS[name], "--local", "--json")
    assert for_programs.exit_code == local.exit_code
    assert " CET" not in for_programs.stdout


def test_sentence_of_show_has_no_local_time_for_programs(app: Celery, orders: None) -> None:
    assert "The timeout delivery is due in 1 h, at " in run(app, "show", "order", "1", "--local").output
    assert " UTC, and goes to order.remind." in run(app, "show", "order", "1", "--local", "--json").output


def test_each_command_that_has_it_is_tried() -> None:
    """Add a command to ``COMMANDS``."""
    assert {name for name, command in leaves_of(sagas) if "--local" in names_of(command)} == set(COMMANDS)


def test_each_command_that_prints_times_has_it(app: Celery, hostile: None) -> None:
    calls = [(*name.split(), *words) for name, given in HOSTILE.items() if name not in COMMANDS for words in given]
    shown = [words for words in calls if re.search(r":\d\d UTC", run(app, *words).output)]
    assert shown == [], "Give these commands the option --local"


def leaves_of(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands with their names."""
    for name in leaves(group):
        command: click.Command = group
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.commands[word]
        yield name, command


def names_of(command: click.Command) -> set[str]:
    """Return the options of a command."""
    return {name for parameter in command.params for name in parameter.opts}


def test_time_has_the_name_of_its_zone() -> None:
    assert time_text(1_767_268_800_000, None) == "2026-01-01 13:00:00 CET"
    assert time_text(1_767_268_800_000) == "2026-01-01 12:00:00 UTC"


def test_time_beyond_all_dates_is_in_utc() -> None:
    assert time_text(LAST_MS + 1, None) == "9999-12-31 23:59:59 UTC"
    assert time_text(-1, None) == "1970-01-01 01:00:00 CET"
