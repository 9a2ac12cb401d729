"""``celery sagas activity``."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import IO, Any, cast

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.journal import MemoryJournal
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import effects, entry, start
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, backend_of
from tests.cli.interrupting import pauses
from tests.cli.test_describe import run
from tests.waiting import PROGRAM_S

AWAY = {"saga_backends": {"away": {"backend": "redis://127.0.0.1:1/0"}}}


def _define(backend: str | None = None) -> Any:
    """Define two sagas; return steps of each."""

    class Order(Saga, correlate_by="order_id", formerly="purchase"):
        order_id: str
        secret: str = "swordfish"

    class Parcel(Saga, correlate_by="parcel_id", backend=backend):
        parcel_id: str

    @Order.starts(if_exists="ignore")
    def place(order: Order, order_id: str) -> None: ...

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    @Parcel.starts
    def pack(parcel: Parcel, parcel_id: str) -> None: ...

    return place, end, pack


@pytest.fixture
def shop(app: Celery) -> Any:
    """Steps of two sagas."""
    return _define()


def _rows(output: str) -> list[Sequence[str]]:
    """Return the rows of a table, without their times."""
    return [line.split()[3:] for line in output.splitlines()[1:]]


def test_everything_the_newest_first(app: Celery, shop: Any) -> None:
    place, end, pack = shop
    place("1")
    pack("7")
    place("1")
    end("1")
    result = run(app, "activity")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].split() == ["AT", "SAGA", "KEY", "STEP", "OUTCOME", "VERSION"]
    assert sorted(_rows(result.output)) == [
        ["order", "1", "order.end", "completed", "2"],
        ["order", "1", "order.place", "ignored", "(exists)", "-"],
        ["order", "1", "order.place", "started", "1"],
        ["parcel", "7", "parcel.pack", "started", "1"],
    ]
    times = [line[:19] for line in result.output.splitlines()[1:]]
    assert times == sorted(times, reverse=True)
    assert len(run(app, "activity", "--limit", "3").output.splitlines()) == 4


def test_of_one_saga(app: Celery, shop: Any) -> None:
    """By its name, that of its class, and also what it did under an earlier one."""
    place, _, pack = shop
    place("1")
    pack("7")
    backend_of(app).sagas.record(effects(line=entry(key="0", saga="purchase")))
    for name in ("order", "Order"):
        assert sorted(row[:2] for row in _rows(run(app, "activity", name).output)) == [["order", "1"], ["purchase", "0"]]


def test_of_some_outcomes(app: Celery, shop: Any) -> None:
    place, end, pack = shop
    place("1")
    pack("7")
    place("1")
    end("1")
    chosen = ("--outcome", "completed", "--outcome", "ignored")
    assert {row[3] for row in _rows(run(app, "activity", *chosen).output)} == {"completed", "ignored"}
    assert [row[:2] for row in _rows(run(app, "activity", "parcel", "--outcome", "started").output)] == [["parcel", "7"]]


def test_json_has_neither_arguments_nor_states(app: Celery, shop: Any) -> None:
    place, *_ = shop
    place("1")
    output = run(app, "activity", "--json").output
    facts = json.loads(output)
    assert (facts["saga"], facts["key"], facts["step"], facts["outcome"]) == ("order", "1", "order.place", "started")
    assert {"at", "message_id", "instance_id", "version"} <= facts.keys()
    assert "swordfish" not in output
    assert "attempt" not in facts


def test_nothing_to_show(app: Celery, shop: Any) -> None:
    result = run(app, "activity")
    assert (result.exit_code, result.output) == (0, "The journal has nothing of the kind.\n")
    assert run(app, "activity", "--json").output == ""


def test_backend_that_is_away_hides_no_other(new_app: NewApp) -> None:
    app = new_app(**AWAY)
    place, *_ = _define("away")
    place("1")
    result = run(app, "activity")
    assert result.exit_code == 1
    assert _rows(result.stdout) == [["order", "1", "order.place", "started", "1"]]
    assert result.stderr.startswith("Error: The saga backend redis://127.0.0.1:1/0 is unavailable")


def test_nothing_is_claimed_of_a_backend_that_is_away(new_app: NewApp) -> None:
    app = new_app(**AWAY)
    _define("away")
    result = run(app, "activity")
    assert (result.exit_code, result.stdout) == (1, "")


def test_two_backends_that_are_one_database(new_app: NewApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app(saga_backends={"same": {"backend": f"sqlite:///{tmp_path}/../{tmp_path.name}/sagas.sqlite3"}})
    app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"
    place, _, pack = _define("same")
    runtime_of(app).prepare(processes=1)
    place("1")
    pack("7")
    assert sorted(row[1] for row in _rows(run(app, "activity").output)) == ["1", "7"]
    pauses(monkeypatch, lambda: place("2"))
    assert sorted(row[1] for row in _rows(run(app, "activity", "--follow").output)) == ["1", "2", "7"]


def test_search_for_what_is_rare_ends(app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how far back it went."""
    command = sys.modules["celery_sagas.cli.activity"]
    monkeypatch.setattr(command, "_LEAST", 1)
    monkeypatch.setattr(command, "_CALLS", 2)
    place, end, _ = shop
    for number in range(30):
        place(str(number))
    result = run(app, "activity", "--outcome", "completed", "--limit", "1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("There may be more: what was handled before 20")
    assert result.stderr.endswith(" UTC was not looked at.\n")
    end("7")
    result = run(app, "activity", "--outcome", "completed", "--limit", "1")
    assert (_rows(result.stdout)[0][1], result.stderr) == ("7", "")


def test_hostile_text_stays_in_its_line(app: Celery, shop: Any) -> None:
    line = entry(step="order.\x1b[2J\n", key="\x1b7\u202e", outcome="\x9b1m")._replace(detail='{"reason": "\\u001b[H\\n"}')
    backend_of(app).sagas.record(effects(line=line))
    output = run(app, "activity").output
    assert len(output.splitlines()) == 2
    assert r"order.\x1b[2J\n  \x9b1m (\x1b[H\n)" in output
    assert "\x1b" not in output + run(app, "activity", "--json").output


def test_damaged_entry(app: Celery, shop: Any) -> None:
    """It is listed with what is known of it."""
    line = entry()._replace(step="", message_id="", outcome="", saga="", detail="")
    backend_of(app).sagas.record(effects(line=line))
    assert _rows(run(app, "activity").output) == [["-", "-", "-", "unreadable", "-"]]
    assert json.loads(run(app, "activity", "--json").output)["outcome"] == ""


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("orders",), 1, "unknown saga orders; known: order, parcel"),
        (("--outcome", "lost"), 2, "'lost' is not one of 'started', 'handled', 'completed'"),
        (("--limit", "0"), 2, "0 is not in the range"),
    ],
)
def test_wrong_arguments(app: Celery, shop: Any, arguments: tuple[str, ...], status: int, text: str) -> None:
    result = run(app, "activity", *arguments)
    assert result.exit_code == status
    assert text in " ".join(result.output.split())


class TestFollowing:
    """``--follow`` shows what comes, until Ctrl-C."""

    def test_the_newest_last(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        place, end, pack = shop
        for key in ("0", "1"):
            place(key)
        pauses(monkeypatch, lambda: pack("7"), lambda: None, lambda: (end("1"), place("a very long key")))
        result = run(app, "activity", "--follow")
        assert (result.exit_code, result.stderr) == (0, "")
        rows = _rows(result.stdout)
        assert sorted(row[1] for row in rows[:2]) == ["0", "1"]
        assert rows[2][1] == "7"
        assert sorted((row[1], row[-2]) for row in rows[3:]) == [("1", "completed"), ("a", "started")]
        assert result.stdout.splitlines()[0].split() == ["AT", "SAGA", "KEY", "STEP", "OUTCOME", "VERSION"]

    def test_the_newest_of_earlier_ones(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is left out at first, does not come later; also if all of it is of the millisecond in which following begins."""
        place, *_ = shop
        now, memory = int(time.time() * 1000), cast(MemoryBackend, backend_of(app))
        for store in (memory.sagas, memory.outbox):
            monkeypatch.setattr(store, "_clock", lambda: now)
        for number in range(9):
            place(str(number))
        pauses(monkeypatch, lambda: None)
        assert len(_rows(run(app, "activity", "--follow", "--limit", "2").stdout)) == 2

    def test_only_what_is_asked_for(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        place, end, pack = shop
        pauses(monkeypatch, lambda: (place("1"), pack("1"), place("2")), lambda: end("1"))
        output = run(app, "activity", "order", "--outcome", "completed", "--follow", "--json").stdout
        assert [json.loads(line)["step"] for line in output.splitlines()] == ["order.end"]

    def test_header_without_rows(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that it is seen to work."""
        pauses(monkeypatch)
        assert run(app, "activity", "--follow").output == "AT  SAGA  KEY  STEP  OUTCOME  VERSION\n"

    def test_backend_that_is_away_is_named_once(self, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
        app = new_app(**AWAY)
        place, *_ = _define("away")
        pauses(monkeypatch, lambda: place("1"), lambda: place("2"))
        result = run(app, "activity", "--follow")
        assert result.exit_code == 0
        assert [row[1] for row in _rows(result.stdout)] == ["1", "2"]
        assert result.stderr.count("Error: The saga backend redis://127.0.0.1:1/0 is unavailable") == 1

    def test_interrupt_of_a_read(self, app: Celery, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(MemoryJournal, "recent", interrupted)
        result = run(app, "activity", "--follow")
        assert (result.exit_code, result.output) == (0, "")
        assert run(app, "activity").exit_code == 1

    def test_signal(self, tmp_path: Path) -> None:
        """As on a terminal."""
        url = f"sqlite:///{tmp_path}/sagas.sqlite3"
        (tmp_path / "shop.py").write_text(_MODULE.format(url=url), encoding="utf-8")
        words = [sys.executable, "-m", "celery", "-A", "shop", "sagas", "activity", "--follow"]
        with (
            closing(SqlBackend(url, prefix="")) as backend,
            (tmp_path / "errors").open("w+", encoding="utf-8") as errors,
            subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8") as command,
        ):
            ending = Timer(PROGRAM_S, command.kill)
            ending.start()
            backend.prepare(create_schema=True, processes=1)
            lines = iter(cast(IO[str], command.stdout))
            assert next(lines).split()[:2] == ["AT", "SAGA"]
            start(backend, "1", names=("order",))
            assert next(lines).split()[3:] == ["order", "1", "order.place_order", "started", "1"]
            command.send_signal(signal.SIGINT)
            assert list(lines) == []
            ending.cancel()
        assert (command.returncode, (tmp_path / "errors").read_text("utf-8")) == (0, "")


_MODULE = """
from celery import Celery
from celery_sagas import Saga

app = Celery("shop", broker="memory://")
app.conf.saga_backend = "{url}"


class Order(Saga, correlate_by="order_id"):
    order_id: str
"""
