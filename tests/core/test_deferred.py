"""Deferred messages as stored, and how long they may wait."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sagas.core.deferred import Deferred, checked_defer_for
from celery_sagas.core.pending import UNPAUSED_FORMAT, Pending, read_pending
from celery_sagas.core.requests.requests import Addressed, ReplyKind, Request
from celery_sagas.core.state import State
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.instance import load_instance
from celery_sagas.errors import DefinitionError, UnreadableState
from celery_sagas.stores.records import Record

PLAIN = Deferred("m1", "order.packed", 1_800_000_000_000, "t1", "{}")
PACKED = ("order.packed",)
ANSWER = PLAIN._replace(id="m2", awaited="r1", came="answer", wake="w1", row="row-1")


class Order(State, correlate_by="order_id"):
    """An order."""

    order_id: str


def stored(**changes: Any) -> str:
    """Return the text of a pending map whose deferred message is another."""
    return json.dumps({"format": UNPAUSED_FORMAT, "deferred": [{**PLAIN.to_json(), **changes}]})


class TestForm:
    @pytest.mark.parametrize("deferred", [PLAIN, ANSWER])
    def test_is_read_as_it_was_written(self, deferred: Deferred) -> None:
        pending = read_pending(Pending(deferred=[deferred]).text())
        assert pending.deferred == [deferred]
        assert json.loads(pending.text())["format"] == UNPAUSED_FORMAT

    def test_map_without_any_does_not_mention_them(self) -> None:
        assert json.loads(Pending({"k": "1"}).text()) == {"format": 1, "keys": {"k": "1"}}

    def test_what_newer_code_keeps_is_written_back(self) -> None:
        text = stored(colour="red", paused={"by": "ann"})
        assert json.loads(read_pending(text).text()) == json.loads(text)

    def test_released_message_is_not_kept(self) -> None:
        pending = Pending(deferred=[PLAIN, ANSWER])
        pending.release(ANSWER)
        assert (pending.deferred, pending.released, pending.cancelled) == ([PLAIN], [ANSWER], ["row-1"])

    @pytest.mark.parametrize(
        "text",
        [
            *(stored(since=since) for since in ("x", None, 1.5, True, [], -1, 0, 10**18, 10**30)),
            *(stored(**{name: value}) for name in PLAIN._fields if name not in ("since", "more") for value in (1, None, {}, [])),
            json.dumps({"format": UNPAUSED_FORMAT, "deferred": [{}]}),
            *(
                json.dumps({"format": UNPAUSED_FORMAT, "deferred": value})
                for value in ([1], ["x"], [None], "x", 5, {"a": 1}, None)
            ),
        ],
    )
    def test_malformed_one_makes_the_instance_unreadable(self, text: str) -> None:
        with pytest.raises(ValueError, match="the pending map is not of its form"):
            read_pending(text)
        with pytest.raises(UnreadableState):
            load_instance(Order.__saga__, _record(text))  # type: ignore[arg-type]

    def test_copy_shows_it(self) -> None:
        (shown,) = load_instance(Order.__saga__, _record(stored())).saga.deferred  # type: ignore[arg-type]
        assert shown == ("m1", "order.packed", datetime(2027, 1, 15, 8, tzinfo=UTC))


def _record(pending: str) -> Record:
    about: dict[str, Any] = dict.fromkeys(Record._fields, "")
    times = {"created_at": 1_800_000_000_000, "updated_at": 1_800_000_000_000}
    data = json.dumps({"order_id": "42"})
    return Record(
        **{**about, **times, "saga": "order", "key": "42", "version": 1, "schema_version": 1, "data": data} | {"pending": pending}
    )


class TestAwaited:
    """A deferred message waits as long as its step would handle it."""

    TIMEOUT = PLAIN._replace(awaited="t1")

    def test_plain_message(self) -> None:
        assert Pending().awaits(PLAIN)

    def test_timeout(self) -> None:
        assert Pending(timeouts={"name": Timeout("t1", "row", "order.remind", 1)}).awaits(self.TIMEOUT)
        assert not Pending(timeouts={"t1": Timeout("t2", "row", "order.remind", 1)}).awaits(self.TIMEOUT)

    @pytest.mark.parametrize(
        ("changes", "is_awaited"),
        [({}, True), ({"has_timed_out": True}, True), ({"is_undone": True}, False), ({"undoes": "r0"}, False)],
    )
    def test_outcome(self, changes: dict[str, Any], is_awaited: bool) -> None:
        request = Request("r1", "charge", "order.paid", **changes)
        assert Pending(requests={"r1": request}).awaits(ANSWER) is is_awaited

    def test_outcome_of_a_request_that_is_gone(self) -> None:
        assert not Pending().awaits(ANSWER)

    @pytest.mark.parametrize("came", ["", "answer", "progress"])
    def test_what_no_answer_overtakes(self, came: str) -> None:
        assert not Pending(deferred=[ANSWER]).is_overtaken(Addressed("i1", "r1", came), PACKED, "m9")

    @pytest.mark.parametrize("came", [ReplyKind.FAILURE, ReplyKind.UNCERTAIN, ReplyKind.DEADLINE, ReplyKind.GATHERED])
    def test_what_an_answer_overtakes(self, came: ReplyKind) -> None:
        pending = Pending(deferred=[ANSWER])
        assert pending.is_overtaken(Addressed("i1", "r1", came), PACKED, "m9")
        assert pending.is_overtaken(Addressed("i1", "r1", came), ("order.late",), "m2")
        assert not pending.is_overtaken(Addressed("i1", "r1", came), PACKED, "m2")
        assert not pending.is_overtaken(Addressed("i1", "r2", came), PACKED, "m9")


def check(defer_for: Any, *, missing: bool = False, deferred: bool = True) -> float:
    """Check how long a step's messages may wait."""
    return checked_defer_for("order.packed", defer_for, may_be_missing=missing, is_deferred=deferred)


class TestTime:
    @pytest.mark.parametrize(
        ("defer_for", "seconds"), [(5, 5.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (timedelta(days=3650), 315_360_000.0)]
    )
    def test_is_a_timedelta_or_seconds(self, defer_for: Any, seconds: float) -> None:
        assert check(defer_for) == check(defer_for, missing=True, deferred=False) == seconds

    def test_may_be_left_out_while_there_is_an_instance(self) -> None:
        assert check(None) == 0

    @pytest.mark.parametrize("deferred", [True, False])
    def test_is_needed_where_there_is_none(self, deferred: bool) -> None:
        with pytest.raises(DefinitionError, match=r'if_missing="defer" without defer_for=. Say how long a message may wait'):
            check(None, missing=True, deferred=deferred)

    def test_needs_something_that_is_deferred(self) -> None:
        with pytest.raises(DefinitionError, match=r'it has defer_for= and defers nothing. Declare if_missing="defer", or if_not'):
            check(60, deferred=False)

    @pytest.mark.parametrize(
        "defer_for", [0, -1, timedelta(0), timedelta(seconds=-1), timedelta(days=3651), float("inf"), float("nan")]
    )
    def test_is_bounded(self, defer_for: Any) -> None:
        with pytest.raises(DefinitionError, match=r"is not between 0 and ten years|defer_for"):
            check(defer_for)

    @pytest.mark.parametrize("defer_for", ["5", True, [5], SimpleNamespace(), datetime.now(UTC)])
    def test_of_another_type(self, defer_for: Any) -> None:
        with pytest.raises(DefinitionError, match="defer_for"):
            check(defer_for)
