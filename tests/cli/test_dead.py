"""``celery sagas dead``."""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.memory.dead_letters import MemoryDeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, backend_of, interposed
from tests.cli.test_describe import run
from tests.servers import unique

#: JSON that no parser reads.
TOO_DEEP = "[" * 100_000 + "]" * 100_000

WHY = ("--reason", "INC-881", "--actor", "ann")
REVEAL = ("--reveal", *WHY)


def dead_letter(id: str = "l1", **facts: Any) -> DeadLetter:
    """Return a dead letter."""
    given = {
        "task": "order.place",
        "message_id": "m1",
        "saga": "order",
        "key": "42",
        "error": "Boom",
        "text": "it broke",
        "traceback": "Traceback (most recent call last):\n  …\nBoom: it broke\n",
        "payload": json.dumps({"task": "order.place", "args": ["42"], "kwargs": {}, "options": {"task_id": "m1"}}),
    }
    return DeadLetter(id, **{**given, **facts})


def keep(app: Celery, *dead_letters: DeadLetter) -> None:
    """Keep dead letters, the last one the newest."""
    for each in dead_letters:
        backend_of(app).dead.add(each)


def kept(app: Celery) -> set[str]:
    """Return the ids of the dead letters."""
    return {each.id for each in backend_of(app).dead.list(10)}


@pytest.fixture
def order(app: Celery) -> Any:
    """A saga that works."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    return Order


@pytest.fixture
def reminded(app: Celery, worker: Worker) -> Any:
    """A saga whose order 42 waits for two timeouts; one of them has failed."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.schedule(remind, after=0, name="reminder")
        order.schedule(remind, after=3600, name="other")

    @Order.handles
    def remind(order: Order) -> None:
        raise ValueError

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    place.delay("42")
    worker.run()
    return Order


def failing(error: Exception) -> Callable[..., None]:
    """Return what raises an error."""

    def fail(*_: object) -> None:
        raise error

    return fail


class TestList:
    """What there is."""

    def test_table(self, app: Celery) -> None:
        keep(app, dead_letter(), dead_letter("a longer id", key="", error="InvalidMessage"))
        result = run(app, "dead", "list")

        assert result.exit_code == 0, result.output
        header, *rows = result.output.splitlines()
        assert header.split() == ["ID", "SINCE", "TASK", "KEY", "ERROR"]
        by_id = {row.split("  ")[0].strip(): row for row in rows}
        assert by_id.keys() == {"l1", "a longer id"}
        assert by_id["l1"].endswith("UTC  order.place  42   Boom")
        assert by_id["a longer id"].endswith("UTC  order.place  -    InvalidMessage")

    def test_key_that_forges_a_row(self, app: Celery) -> None:
        keep(
            app,
            dead_letter(task="order.place\x1b[2J", key="42\nl2  2026-03-02 10:41:07 UTC  order.pay  43   Boom", error="\x9b2J"),
        )
        _, *rows = run(app, "dead", "list").output.splitlines()

        assert len(rows) == 1
        assert r"order.place\x1b[2J  42\nl2  2026" in rows[0]
        assert rows[0].endswith(r"\x9b2J")

    def test_limit(self, app: Celery) -> None:
        keep(app, dead_letter(), dead_letter("l2"), dead_letter("l3"))

        assert len(run(app, "dead", "list", "--limit", "2").output.splitlines()) == 3

    def test_none(self, app: Celery) -> None:
        result = run(app, "dead", "list")

        assert (result.exit_code, result.output) == (0, "There are no dead letters.\n")

    def test_json(self, app: Celery) -> None:
        """One object in each line, for other programs."""
        keep(app, dead_letter(), dead_letter("l2"))
        lines = [json.loads(line) for line in run(app, "dead", "list", "--json").output.splitlines()]

        assert {line["id"]: line["tries"] for line in lines} == {"l1": 1, "l2": 1}
        assert lines[0]["traceback"].startswith("Traceback")
        assert lines[0]["at"] > 0

    @pytest.mark.parametrize("command", ["list", "groups"])
    @pytest.mark.parametrize(
        ("option", "said"),
        [
            (("--saga", "ordre"), "This app has no saga ordre. Did you mean order?\n"),
            (("--saga", "Order"), "This app has no saga Order. Did you mean order?\n"),
            (("--saga", "x\ny"), "This app has no saga x\\ny.\n"),
            (("--task", "order.plaec"), "This app has no task order.plaec. Did you mean order.place?\n"),
            (("--saga", "order"), ""),
            (("--task", "order.place"), ""),
            (("--task", "celery_sagas.gather"), ""),
        ],
    )
    def test_unknown_name(self, app: Celery, order: Any, command: str, option: tuple[str, str], said: str) -> None:
        """It may be mistyped; one that dead letters have is not."""
        result = run(app, "dead", command, *option)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "There are no dead letters.\n", said)
        result = run(app, "dead", command, *option, "--json")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", said)
        keep(app, dead_letter(**{option[0].removeprefix("--"): option[1]}))
        assert run(app, "dead", command, *option).stderr == ""

    def test_no_json(self, app: Celery) -> None:
        result = run(app, "dead", "list", "--json")

        assert (result.exit_code, result.output) == (0, "")


class TestShow:
    """One of them."""

    def test_everything(self, app: Celery) -> None:
        keep(app, dead_letter())
        result = run(app, "dead", "show", "l1")

        assert result.exit_code == 0, result.output
        for line in (
            "id:      l1",
            "task:    order.place",
            "message: m1",
            "saga:    order",
            "key:     42",
            "error:   Boom: it broke",
            '  "task": "order.place",',
            "Boom: it broke",
        ):
            assert line in result.output.splitlines()

    def test_how_often_it_was_tried(self, app: Celery) -> None:
        options = {"task_id": "m1", "headers": {"saga_retries": 3}}
        payload = json.dumps({"task": "order.place", "args": ["42"], "kwargs": {}, "options": options})
        keep(app, dead_letter(payload=payload), dead_letter("l2"))

        assert "tries:   4" in run(app, "dead", "show", "l1").output.splitlines()
        assert "tries:" not in run(app, "dead", "show", "l2").output
        lines = [json.loads(line) for line in run(app, "dead", "list", "--json").output.splitlines()]
        assert {line["id"]: line["tries"] for line in lines} == {"l1": 4, "l2": 1}

    def test_payload_that_is_no_json(self, app: Celery) -> None:
        """It is revealed in one line."""
        keep(app, dead_letter(payload="<what>\n\nTraceback:\nnone", saga="", key="", traceback=""))
        assert "<what>" not in run(app, "dead", "show", "l1").output
        result = run(app, "dead", "show", "l1", *REVEAL)

        assert r"<what>\n\nTraceback:\nnone" in result.output.splitlines()
        assert "saga:" not in result.output

    def test_payload_that_is_nested_too_deep(self, app: Celery) -> None:
        """It is revealed as it is."""
        keep(app, dead_letter(payload=TOO_DEEP))
        result = run(app, "dead", "show", "l1", *REVEAL)

        assert result.exit_code == 0, result.output
        assert TOO_DEEP in result.output.splitlines()
        assert "\n•••\n" in run(app, "dead", "show", "l1").output

    def test_hidden_values(self, app: Celery) -> None:
        """Those with a name that saga_hidden has are shown nowhere, unless they are to be revealed."""
        payload = {"task": "pay", "args": [], "kwargs": {"card": "4711", "city": "Oslo"}, "options": {"headers": {"token": "t"}}}
        keep(app, dead_letter(payload=json.dumps(payload)))
        for words in (["show", "l1"], ["list", "--json"]):
            shown = run(app, "dead", *words).output
            assert ("4711" in shown, "Oslo" in shown, '"t"' in shown) == (False, True, False)
        assert json.loads(json.loads(run(app, "dead", "list", "--json").output)["payload"])["kwargs"]["card"] == "•••"
        assert "4711" in run(app, "dead", "show", "l1", *REVEAL).output

    def test_json(self, app: Celery) -> None:
        """The object of the list."""
        payload = json.dumps({"task": "pay", "kwargs": {"card": "4711"}})
        keep(app, dead_letter(payload=payload))
        shown = run(app, "dead", "show", "l1", "--json").output

        assert shown == run(app, "dead", "list", "--json").output
        assert "4711" not in shown
        revealed = json.loads(run(app, "dead", "show", "l1", "--json", *REVEAL).output)
        assert revealed == {**json.loads(shown), "payload": payload}

    def test_reveal_needs_a_reason(self, app: Celery) -> None:
        """Nothing is shown without one."""
        keep(app, dead_letter())
        result = run(app, "dead", "show", "l1", "--reveal")

        assert (result.exit_code, "--reveal needs --reason TEXT: the audit keeps who" in result.output) == (2, True)
        assert run(app, "dead", "show", "l1", "--reveal", "--reason", " ").exit_code == 2
        assert backend_of(app).audit.recent(9).entries == ()

    def test_reveal_is_in_the_audit(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before anything is shown; a look without it is not."""
        keep(app, dead_letter(text="4711"))
        run(app, "dead", "show", "l1")
        assert backend_of(app).audit.recent(9).entries == ()
        assert run(app, "dead", "show", "l1", *REVEAL).exit_code == 0
        [entry] = backend_of(app).audit.recent(9).entries
        assert (entry.actor, entry.action, entry.reason, entry.key) == ("ann", "reveal", "INC-881", "42")
        assert json.loads(entry.detail)["dead_letter"] == "l1"

        interposed(app).once_before("record", failing(StoreUnavailable("memory://", "refused")))
        result = run(app, "dead", "show", "l1", *REVEAL)
        assert (result.exit_code, "4711" in result.output) == (1, False)

    def test_text_for_a_terminal(self, app: Celery) -> None:
        """It does not reach it, and forges no line."""
        evil = "\x1b]0;mine\x07\x9b2J\x7f\u2028\u202e\r"
        shown = r"\x1b]0;mine\x07\x9b2J\x7f\u2028\u202e\r"
        payload = json.dumps({"args": [evil, "\ud800"]}, ensure_ascii=True)
        facts = dict.fromkeys(("task", "message_id", "saga", "key", "error"), f"{evil}\nid:      l2")
        keep(app, dead_letter(**facts, text=evil, traceback=f"one\n{evil}\n", payload=payload))
        output = run(app, "dead", "show", "l1").output

        assert "key:     " + shown + r"\nid:      l2" in output.splitlines()
        assert [line for line in output.splitlines() if line.startswith("id:")] == ["id:      l1"]
        assert r'    "\u001b]0;mine\u0007\x9b2J\x7f\u2028\u202e\r",' in output.splitlines()
        assert output.splitlines()[-2:] == ["one", shown.removesuffix(r"\r")]
        assert all(char == "\n" or char.isprintable() for char in output)

    def test_unknown(self, app: Celery) -> None:
        result = run(app, "dead", "show", "l9")

        assert result.exit_code == 1
        assert "there is no dead letter l9" in result.output


class TestRetry:
    """The message is sent again."""

    def test_those_that_are_named(self, app: Celery, worker: Worker, order: Any) -> None:
        keep(app, dead_letter(), dead_letter("l2", message_id="m2"))
        result = run(app, "dead", "retry", *WHY, "l1")

        assert result.exit_code == 0, result.output
        (sent,) = worker.waiting()
        assert result.output == f"l1: order.place was sent again as {sent.id}.\n"
        assert kept(app) == {"l2"}
        worker.run()
        assert order.find("42") is not None

    def test_all(self, app: Celery, worker: Worker, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many, in the order in which they failed."""
        monkeypatch.setattr(import_module("celery_sagas.cli.dead"), "_PAGE", 2)
        keep(app, *(dead_letter(f"l{number}", message_id=f"m{number}") for number in range(5)))
        result = run(app, "dead", "retry", *WHY, "--all")

        assert result.exit_code == 0, result.output
        assert [line.partition(":")[0] for line in result.output.splitlines()] == [f"l{number}" for number in range(5)]
        assert len(worker.waiting()) == 5
        assert kept(app) == set()

    @pytest.mark.parametrize("action", ["retry", "discard"])
    def test_no_dead_letters_at_all(self, app: Celery, order: Any, action: str) -> None:
        result = run(app, "dead", action, *WHY, "--all")
        assert (result.exit_code, result.output) == (0, "There are no dead letters.\n")
        assert run(app, "dead", action, *WHY, "--all", "--json").output == ""
        result = run(app, "dead", action, *WHY, "--saga", "ordre")
        assert result.stderr == "This app has no saga ordre. Did you mean order?\n"

    def test_json(self, app: Celery, worker: Worker, order: Any) -> None:
        """One object for each, in whatever it ends."""
        keep(app, dead_letter("bad", payload="{"), dead_letter())
        result = run(app, "dead", "retry", *WHY, "bad", "l1", "--json")

        assert result.exit_code == 1
        failed, done = map(json.loads, result.stdout.splitlines())
        assert result.stderr.startswith("Error: the dead letter bad holds no JSON")
        assert (failed.pop("text").startswith("the dead letter bad holds no JSON"), failed) == (
            True,
            {"act": "retry", "done": False, "id": "bad", "sent_as": ""},
        )
        (sent,) = worker.waiting()
        text = f"order.place was sent again as {sent.id}"
        assert done == {"act": "retry", "done": True, "id": "l1", "text": text, "sent_as": sent.id}
        result = run(app, "dead", "discard", *WHY, "bad", "--json")
        discarded = {"act": "discard", "done": True, "id": "bad", "text": "order.place was discarded", "sent_as": ""}
        assert json.loads(result.output) == discarded

    def test_what_fails_is_kept_and_the_others_go_on(self, app: Celery, worker: Worker, order: Any) -> None:
        deep = dead_letter("too deep", payload=TOO_DEEP)
        keep(app, dead_letter("no json", payload="<what>"), deep, dead_letter("no message", payload="{}"), dead_letter())
        result = run(app, "dead", "retry", *WHY, "no json", "too deep", "no message", "l9", "l1")

        assert result.exit_code == 1
        for sentence in (
            "Error: the dead letter no json holds no JSON",
            "Error: the dead letter too deep holds no JSON that can be read",
            "Error: the dead letter no message holds no message that can be sent. It can only be discarded.",
            "Error: there is no dead letter l9",
            "l1: order.place was sent again as",
        ):
            assert sentence in result.output
        assert kept(app) == {"no json", "too deep", "no message"}
        assert len(worker.waiting()) == 1

    def test_task_for_a_terminal(self, app: Celery) -> None:
        """Its name is escaped, in what was done and in errors."""
        keep(app, dead_letter(task="pay\x1b[2J", payload="{"), dead_letter("l2", task="pay\x1b[2J"))
        result = run(app, "dead", "retry", *WHY, "l1", "l2")

        assert r"pay\x1b[2J" in result.output
        assert "\x1b" not in result.output

    def test_message_that_does_not_fit(self, app: Celery, order: Any) -> None:
        """As its step is now: its task refuses to send it."""
        payload = {"task": "order.place", "args": [], "kwargs": {"order_id": {"a": 1}, "nonsense": 1}, "options": {}}
        keep(app, dead_letter(payload=json.dumps(payload)))
        result = run(app, "dead", "retry", *WHY, "l1")

        assert (result.exit_code, kept(app)) == (1, {"l1"})
        assert "does not fit: place() got an unexpected keyword argument 'nonsense'. It can only be discarded." in result.output

    def test_message_that_was_handled_since(self, app: Celery, worker: Worker, order: Any) -> None:
        """Its worker died between the dead letter and the journal, and another one handled it."""
        keep(app, dead_letter())
        app.send_task("order.place", ["42"], task_id="m1")
        worker.run()
        result = run(app, "dead", "retry", *WHY, "l1")

        assert result.exit_code == 0
        assert "l1: order.place was handled since" in result.output
        assert worker.waiting() == []

    @pytest.mark.parametrize("arguments", [(), ("l1", "--all"), ("l1", "--task", "a"), ("--all", "--error", "a")], ids=str)
    def test_which(self, app: Celery, arguments: tuple[str, ...]) -> None:
        """One or the other."""
        result = run(app, "dead", "retry", *WHY, *arguments)

        assert result.exit_code == 2
        assert "name the ids of dead letters, or give --all" in result.output


class TestDiscard:
    """The message is never handled."""

    def test_those_that_are_named(self, app: Celery, worker: Worker) -> None:
        keep(app, dead_letter(), dead_letter("l2"), dead_letter("l3"))
        result = run(app, "dead", "discard", *WHY, "l1", "l2")

        assert (result.exit_code, kept(app)) == (0, {"l3"})
        assert result.output == "l1: order.place was discarded.\nl2: order.place was discarded.\n"
        assert worker.waiting() == []

    @pytest.mark.parametrize(
        ("arguments", "left"),
        [
            (("--all",), set()),
            (("--task", "order.pay"), {"l1", "l3"}),
            (("--task", "order.pay", "--error", "Crash"), {"l1", "l2", "l3"}),
        ],
        ids=["all", "of a task", "of a task and an error"],
    )
    def test_all_or_those_of_a_task(self, app: Celery, arguments: tuple[str, ...], left: set[str]) -> None:
        keep(app, dead_letter(), dead_letter("l2", task="order.pay"), dead_letter("l3"))
        result = run(app, "dead", "discard", *WHY, *arguments, "--yes")

        assert (result.exit_code, kept(app)) == (0, left)

    def test_all_but_with_a_question(self, app: Celery) -> None:
        """The command has no answer here."""
        keep(app, dead_letter(), dead_letter("l2"))
        result = run(app, "dead", "discard", *WHY, "--all")

        assert (result.exit_code, kept(app)) == (1, {"l1", "l2"})
        assert "Remove 2 dead letters for good? [y/N]" in result.output

    def test_unknown(self, app: Celery) -> None:
        keep(app, dead_letter())
        result = run(app, "dead", "discard", *WHY, "l9", "l1")

        assert (result.exit_code, kept(app)) == (1, set())
        assert "there is no dead letter l9" in result.output

    def test_timeout(self, app: Celery, worker: Worker, reminded: Any) -> None:
        """Its instance no longer waits for it, and never hears of it."""
        (failed,) = backend_of(app).dead.list(10)
        assert reminded.find("42").saga.timeouts.keys() == {"other", "reminder"}

        result = run(app, "dead", "discard", *WHY, failed.id)

        assert (result.exit_code, kept(app)) == (0, set())
        assert result.output == f"{failed.id}: order.remind was discarded, and its instance no longer waits for it.\n"
        assert reminded.find("42").saga.timeouts.keys() == {"other"}
        worker.deliver_again(worker.done[-1])
        assert reminded.find("42").saga.version == 2

    def test_timeout_of_a_step_that_is_gone(self, app: Celery, worker: Worker, reminded: Any) -> None:
        """As long as its saga is known by one of its names, or was never renamed."""
        (failed,) = backend_of(app).dead.list(10)
        del registry.steps["order.remind"]

        assert "no longer waits for it" in run(app, "dead", "discard", *WHY, failed.id).output
        assert reminded.find("42").saga.timeouts.keys() == {"other"}

    def test_timeout_that_no_relay_could_publish(self, app: Celery, worker: Worker, reminded: Any) -> None:
        """The relay's dead letters do not always name a saga."""
        (failed,) = backend_of(app).dead.list(10)
        backend_of(app).dead.remove(failed.id)
        keep(app, failed._replace(id="l1", saga=""))

        assert "no longer waits for it" in run(app, "dead", "discard", *WHY, "l1").output
        assert reminded.find("42").saga.timeouts.keys() == {"other"}

    def test_timeout_whose_instance_is_gone(self, app: Celery, worker: Worker, reminded: Any) -> None:
        (failed,) = backend_of(app).dead.list(10)
        app.send_task("order.end", ["42"])
        worker.run()

        assert run(app, "dead", "discard", *WHY, failed.id).output == f"{failed.id}: order.remind was discarded.\n"
        assert kept(app) == set()

    @pytest.mark.parametrize(
        "payload",
        ["<what>", TOO_DEEP, "{}", json.dumps({"task": "order.place", "options": {"headers": {"saga_address": "nonsense"}}})],
        ids=["no JSON", "too deep", "no message", "no address"],
    )
    def test_message_that_cannot_be_read(self, app: Celery, payload: str) -> None:
        """Else nobody could discard it."""
        keep(app, dead_letter(payload=payload))

        assert run(app, "dead", "discard", *WHY, "l1").output == "l1: order.place was discarded.\n"
        assert kept(app) == set()

    def test_store_that_goes_away(self, app: Celery, worker: Worker, reminded: Any) -> None:
        """The dead letter stays until its instance has been told."""
        (failed,) = backend_of(app).dead.list(10)
        interposed(app).once_before("update", failing(StoreUnavailable("memory://", "refused")))
        result = run(app, "dead", "discard", *WHY, failed.id)

        assert (result.exit_code, kept(app)) == (1, {failed.id})
        assert result.output == "Error: The saga backend memory:// is unavailable: refused.\n"

    def test_none(self, app: Celery) -> None:
        assert run(app, "dead", "discard", *WHY).exit_code == 2


class TestSelections:
    """Which dead letters are meant."""

    @pytest.mark.parametrize(
        ("arguments", "shown"),
        [
            (("--task", "order.pay"), ["l2"]),
            (("--saga", "parcel"), ["l3"]),
            (("--error", "Boom"), ["l1", "l3"]),
            (("--error", "Boom", "--saga", "order"), ["l1"]),
            (("--error", "boom"), []),
            (("--since", "1h"), ["l1", "l2", "l3"]),
            (("--since", "0s"), []),
        ],
        ids=str,
    )
    def test_list(self, app: Celery, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], shown: list[str]) -> None:
        keep(app, dead_letter(), dead_letter("l2", task="order.pay", error="Crash"), dead_letter("l3", saga="parcel"))
        later = max(each.at for each in backend_of(app).dead.list(3)) / 1000 + 60
        monkeypatch.setattr(import_module("celery_sagas.cli.dead"), "time_s", lambda: later)
        result = run(app, "dead", "list", "--json", *arguments)
        assert result.exit_code == 0, result.output
        assert sorted(json.loads(line)["id"] for line in result.output.splitlines()) == shown

    @pytest.mark.parametrize(("age_s", "shown", "pages"), [(3_600, 5, 4), (59, 0, 1)])
    def test_nothing_is_read_behind_the_first_that_is_too_old(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch, age_s: int, shown: int, pages: int
    ) -> None:
        keep(app, *(dead_letter(f"l{number}") for number in range(5)))
        later = max(each.at for each in backend_of(app).dead.list(1)) / 1000 + 60
        read, calls = MemoryDeadLetters.list, list[str | None]()

        def counted(self: MemoryDeadLetters, limit: int, before: str | None = None) -> list[DeadLetter]:
            calls.append(before)
            return read(self, limit, before)

        commands = import_module("celery_sagas.cli.dead")
        monkeypatch.setattr(commands, "time_s", lambda: later)
        monkeypatch.setattr(commands, "_PAGE", 2)
        monkeypatch.setattr(MemoryDeadLetters, "list", counted)
        rows = run(app, "dead", "groups", "--json", "--since", f"{age_s}s").output.splitlines()
        assert (sum(json.loads(row)["dead_letters"] for row in rows), len(calls)) == (shown, pages)

    def test_age_that_is_none(self, app: Celery) -> None:
        result = run(app, "dead", "list", "--since", "soon")
        assert result.exit_code == 2
        assert "'soon' is no time such as 1d, 12h, 30m or 2w" in result.output

    def test_groups(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        keep(app, dead_letter("l0", error="\x1b[2J"), dead_letter(), dead_letter("l2"), dead_letter("l3", task="order.pay"))
        rows = [line.split() for line in run(app, "dead", "groups").output.splitlines()]
        assert rows[0][:4] == ["TASK", "ERROR", "DEAD", "LETTERS"]
        assert rows[1][:3] == ["order.place", "Boom", "2"]
        assert sorted(row[:3] for row in rows[2:]) == [["order.pay", "Boom", "1"], ["order.place", r"\x1b[2J", "1"]]
        (group,) = map(json.loads, run(app, "dead", "groups", "--json", "--task", "order.pay").output.splitlines())
        assert (group["task"], group["error"], group["dead_letters"]) == ("order.pay", "Boom", 1)
        assert group["newest"] == group["oldest"] > 0
        monkeypatch.setattr(import_module("celery_sagas.cli.dead"), "GROUPED", 3)
        assert "There are more: these are the newest 3." in run(app, "dead", "groups").output

    def test_no_groups(self, app: Celery) -> None:
        assert run(app, "dead", "groups").output == "There are no dead letters.\n"


class TestOneBackendAway:
    """Of several; the dead letters in the others are shown, and can be acted on."""

    @pytest.fixture
    def two(self, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> Celery:
        """An app with a backend that is away, and one with a dead letter."""
        app = new_app(saga_backends={"orders": {"backend": f"memory://{unique()}"}})

        class Order(Saga, correlate_by="order_id", backend="orders"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        away = backend_of(app)
        monkeypatch.setattr(away.dead, "list", failing(StoreUnavailable(away.url, "refused")))
        monkeypatch.setattr(away.dead, "get", failing(StoreUnavailable(away.url, "refused")))
        runtime_of(app).backends.of(Order.__saga__).dead.add(dead_letter())
        return app

    def test_list(self, two: Celery) -> None:
        result = run(two, "dead", "list")
        assert result.exit_code == 1
        assert result.output.splitlines()[1].startswith("l1 ")
        assert "is unavailable: refused." in result.output.splitlines()[2]

    def test_groups(self, two: Celery) -> None:
        result = run(two, "dead", "groups", "--task", "parcel.place")
        assert result.exit_code == 1
        assert "There are no dead letters" not in result.output

    def test_show(self, two: Celery) -> None:
        assert run(two, "dead", "show", "l1").exit_code == 0

    def test_one_that_may_be_in_the_backend_that_is_away(self, two: Celery) -> None:
        result = run(two, "dead", "show", "l2")
        assert result.exit_code == 1
        assert "is unavailable: refused." in result.output

    def test_retry(self, two: Celery) -> None:
        result = run(two, "dead", "retry", *WHY, "--all")
        assert result.exit_code == 1
        assert "l1: order.place was sent again as" in result.output
        assert "is unavailable: refused." in result.output

    def test_discard_of_one_that_is_named(self, two: Celery) -> None:
        result = run(two, "dead", "discard", *WHY, "l1")
        assert (result.exit_code, result.output) == (0, "l1: order.place was discarded.\n")


def test_store_away(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, without a traceback."""

    def fail(*_: object) -> None:
        raise StoreUnavailable("memory://", "refused")

    monkeypatch.setattr(MemoryDeadLetters, "list", fail)
    result = run(app, "dead", "list")

    assert result.exit_code == 1
    assert result.output == "Error: The saga backend memory:// is unavailable: refused.\n"


def test_nothing_is_retried_in_eager_mode(eager: Celery) -> None:
    """The message would run here, and its failure be lost with the dead letter."""
    keep(eager, dead_letter())
    result = run(eager, "dead", "retry", *WHY, "--all")

    assert (result.exit_code, kept(eager)) == (1, {"l1"})
    assert "task_always_eager" in result.output
