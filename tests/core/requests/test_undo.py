"""What can be undone, and in which order: the rules, without any store."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from celery_sagas.core.delays import Backoff
from celery_sagas.core.pending import PLAIN_FORMAT, UNPAUSED_FORMAT, Pending, read_pending
from celery_sagas.core.requests.requests import ROUTING, UNDONE, Addressed, Again, ReplyKind, Request, Target
from celery_sagas.core.requests.undo import Undo, Undoable, Undoing, undoable_by
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.timeouts import Timeout

CANCEL, CANCEL_NONE = Target("cancel", ("why",)), Target("cancel", ("A",), takes=False)
REQUEST = Request("r1", "book", "trip.came", "trip.failed", row="row", at=1_000, undo=CANCEL)
A, B, C = (Undoable(id, Target("cancel", (id,), takes=False)) for id in "abc")
THEN = Target("trip.undone", takes=False)
AGAIN = Again({"task": "book"}, Backoff(2, 10.0, 60.0), 3600.0, to_otherwise=Target("trip.failed"))
RETRIED = replace(REQUEST, undo=None, again=AGAIN)


def awaited(id: str) -> Undoable:
    """Return the place of an outcome that is waited for."""
    return Undoable(id, None)


texts = st.text(min_size=1, max_size=5)
values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2))
targets = st.builds(
    Target,
    texts,
    st.lists(values, max_size=2).map(tuple),
    st.dictionaries(texts, values, max_size=2),
    st.booleans(),
    st.dictionaries(st.sampled_from(sorted(ROUTING)), texts, max_size=2),
)
backoffs = st.builds(Backoff, st.integers(0, 1_000), st.floats(0.1, 10), st.floats(10, 1e6), st.floats(1, 9))
undoables = st.builds(Undoable, texts, st.none() | targets)
messages = st.builds(SerializedMessage, texts, texts, texts, texts, st.just(0))
undoings = st.builds(
    Undoing,
    st.lists(undoables, max_size=3),
    st.none() | targets,
    st.booleans(),
    backoffs,
    st.floats(0.1, 1e6),
    st.lists(messages, max_size=2),
    st.sampled_from(["", "then"]),
)
agains = st.builds(
    Again,
    st.dictionaries(texts, values, min_size=1, max_size=2),
    backoffs,
    st.sampled_from([0.0, 60.0]),
    st.integers(0, 5),
    st.sampled_from(["", "first"]),
    st.none() | targets,
    st.none() | targets,
    st.none() | targets,
)
requests = st.builds(
    Request,
    st.just("r1"),
    texts,
    texts,
    undo=st.none() | targets,
    is_undone=st.booleans(),
    undoes=st.sampled_from(["", "work"]),
    again=st.none() | agains,
    sent_row=st.sampled_from(["", "row"]),
    sent_at=st.sampled_from([0, 5]),
    progress=st.sampled_from(["", "trip.moved"]),
)


class TestJson:
    """What is stored is read as it was."""

    @given(undoings)
    def test_compensation(self, undoing: Undoing) -> None:
        assert Undoing.from_json(from_json(to_json(undoing.to_json()))) == undoing

    @given(agains)
    def test_retry(self, again: Again) -> None:
        assert Again.from_json(from_json(to_json(again.to_json()))) == again

    @given(st.lists(undoables.filter(lambda each: each.task is not None), max_size=3), st.none() | undoings, requests)
    def test_map(self, log: list[Undoable], undoing: Undoing | None, request: Request) -> None:
        if not (request.undo or request.undoes or request.again or request.sent_row):
            request = replace(request, is_undone=False, sent_at=0)
        pending = Pending(requests={"r1": request}, undo=Undo(log, undoing))

        assert read_pending(pending.text()) == pending

    @pytest.mark.parametrize(
        ("pending", "format"),
        [
            (Pending(requests={"r1": replace(REQUEST, undo=None)}), PLAIN_FORMAT),
            (Pending(requests={"r1": REQUEST}), UNPAUSED_FORMAT),
            (Pending(requests={"r1": RETRIED}), UNPAUSED_FORMAT),
            (Pending(requests={"r1": replace(REQUEST, undo=None, undoes="w", again=AGAIN)}), UNPAUSED_FORMAT),
            (Pending(undo=Undo([A])), UNPAUSED_FORMAT),
            (Pending(undo=Undo([], Undoing([]))), UNPAUSED_FORMAT),
        ],
    )
    def test_format(self, pending: Pending, format: int) -> None:
        assert json.loads(pending.text())["format"] == format


class TestUndoable:
    """Which work has to be undone after an outcome."""

    @pytest.mark.parametrize("came", list(ReplyKind)[:4])
    def test_without_an_undo(self, came: str) -> None:
        assert undoable_by(replace(REQUEST, undo=None), came, "ticket") == []

    @pytest.mark.parametrize("came", ["failure", "uncertain", "deadline"])
    def test_failure(self, came: str) -> None:
        assert undoable_by(REQUEST, came, {}) == []
        assert undoable_by(replace(REQUEST, undo=CANCEL_NONE), came, {}) == [Undoable("r1", CANCEL_NONE)]

    def test_answer(self) -> None:
        given = Target("cancel", ("ticket", "why"), takes=False)
        assert undoable_by(REQUEST, "answer", "ticket") == [Undoable("r1", given)]
        assert undoable_by(replace(REQUEST, undo=CANCEL_NONE), "answer", "ticket") == [Undoable("r1", CANCEL_NONE)]

    def test_members_in_their_order(self) -> None:
        gather = replace(REQUEST, members=12)
        ready = undoable_by(gather, "gathered", {"answers": {"10": "k", "2": "c", "0": "a"}, "failures": {"1": {}}})

        assert [each.task and each.task.args for each in ready] == [("a", "why"), ("c", "why"), ("k", "why")]
        assert [each.request for each in ready] == [gather.member(position) for position in (0, 2, 10)]


class TestLog:
    """The last outcome is the last one."""

    def test_later_outcome_takes_the_place_of_an_earlier_one(self) -> None:
        undo, overdue = Undo([]), replace(REQUEST, undo=CANCEL_NONE)
        for request in (overdue, replace(overdue, id="r2"), overdue):
            undo.note(request, "answer", "late")

        assert [each.request for each in undo.log] == ["r2", "r1"]

    def test_outcome_without_work_changes_nothing(self) -> None:
        undo = Undo([A])
        undo.note(REQUEST, "failure", {})
        assert undo.log == [A]


class TestQueue:
    """What is undone next."""

    def test_outcomes_that_are_waited_for_come_first(self) -> None:
        undo = Undo([A, B])
        undo.begin(Undoing([], THEN), ["r2", "r1"])

        assert undo.undoing is not None
        assert undo.undoing.queue == [awaited("r2"), awaited("r1"), B, A]
        assert undo.log == []

    def test_second_one_is_put_before_the_first(self) -> None:
        """It ends as the second one says; who waits for the first one is answered then."""
        message = SerializedMessage("m", "m", "t", "{}")
        undo = Undo([B], Undoing([awaited("r1"), A], THEN, answers=[message], then_id="sent"))
        undo.begin(Undoing([], None, True, Backoff(1), 5.0), ["r2", "r1"])

        assert undo.undoing == Undoing([awaited("r2"), B, awaited("r1"), A], THEN, True, Backoff(1), 5.0, [message], "")
        undo.begin(Undoing([], CANCEL), [])
        assert undo.undoing.then == CANCEL

    def test_outcome_comes_to_its_place(self) -> None:
        undo = Undo([], Undoing([awaited("r2"), awaited("r1"), A]))
        assert undo.receive(REQUEST, "answer", "ticket") == []
        assert undo.undoing is not None
        assert [each.request for each in undo.undoing.queue] == ["r2", "r1", "a"]
        assert undo.undoing.queue[1].task == CANCEL.given("ticket")
        assert undo.receive(replace(REQUEST, id="r2"), "failure", {}) == []

        assert [each.request for each in undo.undoing.queue] == ["r1", "a"]

    def test_one_that_comes_late_is_the_next(self) -> None:
        undo = Undo([], Undoing([A]))
        undo.receive(REQUEST, "answer", "ticket")
        assert undo.undoing is not None
        assert [each.request for each in undo.undoing.queue] == ["r1", "a"]

    def test_without_a_compensation_it_is_undone_at_once(self) -> None:
        gather = replace(REQUEST, members=2)
        ready = Undo([A]).receive(gather, "gathered", {"answers": {"0": "a", "1": "b"}})
        assert [each.request for each in ready] == [gather.member(1), gather.member(0)]

    @pytest.mark.parametrize(
        ("queue", "is_parallel", "is_busy", "ready", "left"),
        [
            ([A, B], False, False, [A], [B]),
            ([A, B], False, True, [], [A, B]),
            ([A, B], True, True, [A, B], []),
            ([awaited("r1"), A], False, False, [], [awaited("r1"), A]),
            ([awaited("r1"), A], True, False, [A], [awaited("r1")]),
            ([awaited("gone"), A, B], False, False, [A], [B]),
            ([awaited("gone")], False, False, [], []),
            ([], False, False, [], []),
        ],
    )
    def test_next(self, queue: Any, is_parallel: bool, is_busy: bool, ready: Any, left: Any) -> None:
        undo = Undo([], Undoing(list(queue), parallel=is_parallel))
        assert undo.next({"r1": REQUEST}, is_busy=is_busy) == ready
        assert undo.undoing is not None
        assert undo.undoing.queue == left

    def test_nothing_is_next_without_a_compensation(self) -> None:
        assert Undo([A]).next({}, is_busy=False) == []

    @given(
        st.permutations(["r1", "r2", "r3"]),
        st.lists(st.sampled_from(["answer", "failure", "deadline"]), min_size=3, max_size=3),
        st.booleans(),
    )
    def test_everything_is_undone_once(self, order: list[str], came: list[str], is_parallel: bool) -> None:
        """Whatever comes of what is waited for, and in whichever order."""
        open_ones = {id: replace(REQUEST, id=id) for id in ("r1", "r2", "r3")}
        undo, done = Undo([A, B]), []
        undo.begin(Undoing([], THEN, is_parallel), [*reversed(open_ones)])
        for id, outcome in zip(order, came, strict=True):
            undo.receive(open_ones.pop(id), outcome, id)
            while ready := undo.next(open_ones, is_busy=False):
                done += ready

        answered = {id for id, outcome in zip(order, came, strict=True) if outcome == "answer"}
        assert sorted(each.request for each in done) == sorted({"a", "b", *answered})
        assert undo.undoing is not None
        assert undo.undoing.queue == []
        if not is_parallel:
            assert [each.request for each in done] == [*sorted(answered, reverse=True), "b", "a"]


class TestRequest:
    """Whose outcomes the library handles."""

    @pytest.mark.parametrize(
        ("came", "failure", "is_tried"),
        [
            ("failure", "error", True),
            ("failure", "", True),  # from a worker with older code
            ("uncertain", "lost", True),
            ("uncertain", "revoked", False),
            ("uncertain", "unhandled", False),
            ("deadline", "", True),
            ("answer", "", False),
        ],
    )
    def test_is_tried_again(self, came: str, failure: str, is_tried: bool) -> None:
        addressed = Addressed("i", "r1", came, failure=failure)
        assert RETRIED.is_tried_again(addressed) is is_tried
        for never in (
            replace(RETRIED, again=AGAIN._replace(number=2)),
            replace(RETRIED, again=None),
            replace(RETRIED, has_timed_out=True),
            replace(RETRIED, undoes="work"),
        ):
            assert not never.is_tried_again(addressed)

    @pytest.mark.parametrize(
        ("request_", "came", "step", "is_settled"),
        [
            (REQUEST, "answer", "trip.came", False),
            (replace(REQUEST, is_undone=True), "answer", "trip.came", True),
            (replace(REQUEST, is_undone=True), "answer", "trip.other", False),
            (replace(REQUEST, is_undone=True), "failure", "trip.failed", True),
            (replace(REQUEST, is_undone=True, has_timed_out=True), "answer", "trip.came", True),
            (replace(REQUEST, is_undone=True, has_timed_out=True), "failure", "trip.failed", False),
            (RETRIED, "failure", "trip.failed", True),
            (RETRIED, "answer", "trip.came", False),
        ],
    )
    def test_is_settled(self, request_: Request, came: str, step: str, is_settled: bool) -> None:
        assert request_.is_settled([step], Addressed("i", "r1", came, failure="error")) is is_settled

    def test_is_known_by_its_first_id(self) -> None:
        assert (RETRIED.first, replace(RETRIED, again=AGAIN._replace(first="r0")).first) == ("r1", "r0")

    def test_overdue_one_with_an_undo_is_kept_without_a_step(self) -> None:
        request = replace(REQUEST, then=f"trip.{UNDONE}")
        for undo, left in ((CANCEL, {"r1": replace(request, has_timed_out=True, row="")}), (None, {})):
            pending = Pending(requests={"r1": replace(request, undo=undo)})
            pending.end_request(pending.requests["r1"], "deadline")
            assert pending.requests == left


class TestPending:
    """What is being undone, and what an answer leaves of other attempts."""

    def test_answer_ends_the_other_attempts(self) -> None:
        first = replace(REQUEST, again=AGAIN, has_timed_out=True, row="")
        second = replace(
            REQUEST, id="r2", row="r2-over", sent_row="r2-sent", sent_at=5, again=AGAIN._replace(number=1, first="r1")
        )
        pending = Pending(requests={"r1": first, "r2": second})
        assert pending.take_request("r1", "answer", ["trip.came"]) == first
        assert "late" not in pending.about

        left = replace(second, has_timed_out=True, row="", sent_row="", is_undone=True)
        assert (pending.requests, sorted(pending.cancelled)) == ({"r2": left}, ["r2-over", "r2-sent"])

    @pytest.mark.parametrize(
        ("pending", "left"),
        [
            (Pending(requests={"r1": REQUEST}), 0),
            (Pending(requests={"r1": replace(REQUEST, is_undone=True)}), 1),
            (Pending(requests={"r1": replace(REQUEST, is_undone=True, has_timed_out=True)}), 0),
            (Pending(requests={"r1": replace(REQUEST, undo=None, undoes="work")}), 1),
            (Pending(undo=Undo([A])), 0),
            (Pending(requests={"r1": replace(REQUEST, is_undone=True)}, undo=Undo([], Undoing([awaited("r1"), A]))), 2),
        ],
    )
    def test_left_to_undo(self, pending: Pending, left: int) -> None:
        assert pending.left_to_undo == left
        is_under_way = any(request.undoes for request in pending.requests.values())
        assert pending.is_undoing == (is_under_way or pending.undo.undoing is not None)

    def test_waits_for_the_step_that_ends_it(self) -> None:
        pending = Pending({}, {"t": Timeout("t", "row", "trip.undone", 5)}, undo=Undo([], Undoing([], THEN, then_id="t")))
        assert (pending.left_to_undo, pending.is_undoing) == (0, True)
        assert pending.take(Addressed("i", "t"), ["trip.undone"]) == (True, False)
        assert not pending.is_undoing
