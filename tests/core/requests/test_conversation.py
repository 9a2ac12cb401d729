"""What an instance waits for, and where answers go: the rules, without any store."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from celery_sagas.core.pending import PLAIN_FORMAT, UNPAUSED_FORMAT, Pending, read_pending
from celery_sagas.core.requests.requests import (
    ANSWERED,
    REQUESTS,
    ROUTING,
    ReplyKind,
    Request,
    ReturnAddress,
    Target,
)
from celery_sagas.core.sending import SerializedMessage

REQUEST = Request("r1", "charge", "order.paid", "order.unpaid", row="row", at=1_000)
TIMED_OUT = replace(REQUEST, has_timed_out=True, row="")
WITHOUT_STEP = replace(REQUEST, then=f"order.{ANSWERED}")
GATHER = replace(REQUEST, members=3)
EARLY = replace(GATHER, members=5, at_least=2, early=True)
WATCHED = replace(REQUEST, progress="order.moved")
THEN, OTHERWISE = Target("order.paid", ("Rome",), {"how": "cash"}, True, {"queue": "q"}), Target("order.unpaid", takes=False)
ADDRESS = ReturnAddress("order", "i1", "r1", THEN, OTHERWISE)

GATHER_TO = replace(GATHER, at_least=3, to_then=THEN, to_otherwise=OTHERWISE)

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


class TestTake:
    """What came of a request is handled if the request is there, by the step that it names."""

    @pytest.mark.parametrize(
        ("request_", "came", "step", "left"),
        [
            (REQUEST, ReplyKind.ANSWER, "order.paid", None),
            (REQUEST, ReplyKind.FAILURE, "order.unpaid", None),
            (REQUEST, ReplyKind.DEADLINE, "order.unpaid", TIMED_OUT),
            (REQUEST, ReplyKind.UNCERTAIN, "order.unpaid", TIMED_OUT),
            (TIMED_OUT, ReplyKind.ANSWER, "order.paid", None),
            (WITHOUT_STEP, ReplyKind.ANSWER, f"order.{ANSWERED}", None),
            (WITHOUT_STEP, ReplyKind.DEADLINE, "order.unpaid", None),
            (WITHOUT_STEP, ReplyKind.UNCERTAIN, "order.unpaid", None),
            (GATHER, ReplyKind.GATHERED, "order.paid", None),
            (GATHER, ReplyKind.GATHERED, "order.unpaid", None),
            (WATCHED, ReplyKind.PROGRESS, "order.moved", WATCHED),
        ],
        ids=str,
    )
    def test_of_what_is_waited_for(self, request_: Request, came: ReplyKind, step: str, left: Request | None) -> None:
        pending = Pending(requests={"r0": REQUEST, "r1": request_})

        assert pending.take_request("r1", came, [step]) == request_
        assert pending.requests == {"r0": REQUEST} | ({"r1": left} if left else {})

    @pytest.mark.parametrize(
        ("request_", "came", "step"),
        [
            (REQUEST, ReplyKind.ANSWER, "order.unpaid"),
            (REQUEST, ReplyKind.FAILURE, "order.paid"),
            (REQUEST, ReplyKind.DEADLINE, "order.paid"),
            (REQUEST, "", "order.paid"),
            (REQUEST, "anything", "order.paid"),
            (TIMED_OUT, ReplyKind.FAILURE, "order.unpaid"),
            (TIMED_OUT, ReplyKind.DEADLINE, "order.unpaid"),
            (replace(REQUEST, otherwise=""), ReplyKind.FAILURE, "order.unpaid"),
            (GATHER, ReplyKind.GATHERED, "order.other"),
            (WATCHED, ReplyKind.PROGRESS, "order.paid"),
            (WATCHED, ReplyKind.PROGRESS, "order.unpaid"),
            (WATCHED, ReplyKind.ANSWER, "order.moved"),
            (WATCHED, ReplyKind.FAILURE, "order.moved"),
            (REQUEST, ReplyKind.PROGRESS, "order.paid"),
            (replace(WATCHED, has_timed_out=True, row=""), ReplyKind.PROGRESS, "order.moved"),
            (replace(WATCHED, is_undone=True), ReplyKind.PROGRESS, "order.moved"),
        ],
        ids=str,
    )
    def test_of_what_is_not(self, request_: Request, came: str, step: str) -> None:
        pending = Pending(requests={"r1": request_})

        assert pending.take_request("r1", came, [step]) is None
        assert (pending.requests, pending.cancelled, pending.to_journal()) == ({"r1": request_}, [], {})

    def test_of_nothing(self) -> None:
        assert Pending().take_request("r1", ReplyKind.ANSWER, ["order.paid"]) is None

    def test_step_under_an_earlier_name(self) -> None:
        assert Pending(requests={"r1": REQUEST}).take_request("r1", ReplyKind.ANSWER, ["order.charged", "order.paid"])

    def test_takes_once(self) -> None:
        pending = Pending(requests={"r1": REQUEST})
        assert pending.take_request("r1", ReplyKind.ANSWER, ["order.paid"])
        assert not pending.take_request("r1", ReplyKind.ANSWER, ["order.paid"])

    @pytest.mark.parametrize(
        ("request_", "came", "cancelled"),
        [
            (REQUEST, ReplyKind.ANSWER, ["row"]),
            (REQUEST, ReplyKind.FAILURE, ["row"]),
            (REQUEST, ReplyKind.DEADLINE, ["row"]),
            (REQUEST, ReplyKind.UNCERTAIN, ["row"]),
            (TIMED_OUT, ReplyKind.ANSWER, []),
            (WATCHED, ReplyKind.PROGRESS, []),
            (replace(REQUEST, row="", at=0), ReplyKind.ANSWER, []),
        ],
        ids=str,
    )
    def test_cancels_the_deadline(self, request_: Request, came: ReplyKind, cancelled: list[str]) -> None:
        """Also one that is handled: its row stays in the outbox until then."""
        pending = Pending(requests={"r1": request_})
        pending.take_request("r1", came, ["order.paid", "order.unpaid", "order.moved"])

        assert pending.cancelled == cancelled


class TestBounds:
    """Requests that nobody answers do not pile up."""

    def test_of_timed_out_requests_the_newest_are_kept(self) -> None:
        kept = {f"o{number}": replace(TIMED_OUT, id=f"o{number}") for number in range(REQUESTS + 2)}
        pending = Pending(requests={"w": REQUEST, **kept})
        pending.forget_oldest()

        assert "w" in pending.requests
        assert [id for id in kept if id not in pending.requests] == ["o0", "o1"]

    def test_one_becomes_the_newest_when_its_time_is_over(self) -> None:
        kept = {f"o{number}": replace(TIMED_OUT, id=f"o{number}") for number in range(REQUESTS)}
        pending = Pending(requests={"r1": REQUEST, **kept})
        pending.take_request("r1", ReplyKind.DEADLINE, ["order.unpaid"])

        pending.forget_oldest()
        assert list(pending.requests)[-1] == "r1"
        assert "o0" not in pending.requests

    def test_what_is_waited_for_is_never_forgotten(self) -> None:
        kept = {f"w{number}": replace(REQUEST, id=f"w{number}") for number in range(REQUESTS + 2)}

        pending = Pending(requests=dict(kept))
        pending.forget_oldest()
        assert pending.requests == kept


class TestGather:
    """When a gather is over before its time, and which members are late then."""

    @pytest.mark.parametrize(
        ("request_", "answers", "outcomes", "is_over"),
        [
            (replace(EARLY, early=False), 5, 5, True),
            (replace(EARLY, early=False), 0, 5, True),
            (replace(EARLY, early=False), 4, 4, False),
            (EARLY, 2, 2, True),
            (EARLY, 2, 4, True),
            (EARLY, 1, 4, False),
            (EARLY, 1, 5, True),
            (EARLY, 0, 0, False),
        ],
    )
    def test_is_over(self, request_: Request, answers: int, outcomes: int, is_over: bool) -> None:
        assert request_.is_over(answers, outcomes) is is_over

    @given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 20), st.integers(0, 20), st.booleans())
    def test_next_end_is_as_soon_as_can_be(self, members: int, at_least: int, answers: int, failures: int, early: bool) -> None:
        """With one outcome less it is not over, whatever comes; with so many it may be."""
        request, outcomes = replace(GATHER, members=members, at_least=min(at_least, members), early=early), answers + failures
        if outcomes > members or request.is_over(answers, outcomes):
            return
        end = request.next_end(answers, outcomes)
        assert request.fewest <= end <= members
        assert not request.is_over(answers + end - 1 - outcomes, end - 1)
        assert request.is_over(answers + end - outcomes, end)

    @pytest.mark.parametrize(
        ("gathered", "late"),
        [
            ({"answers": {"0": 1, "3": 1}, "failures": {"2": {}}}, [1, 4]),
            ({"answers": {}, "failures": {}}, [0, 1, 2, 3, 4]),
            ({"answers": {str(position): 0 for position in range(5)}}, []),
            ({"answers": [0, 1], "failures": None}, [0, 1, 2, 3, 4]),
            (None, [0, 1, 2, 3, 4]),
            ("0", [0, 1, 2, 3, 4]),
        ],
        ids=repr,
    )
    def test_without_outcome(self, gathered: object, late: list[int]) -> None:
        assert EARLY.without_outcome(gathered) == late

    def test_rows_of_members(self) -> None:
        rows = ["run-1-00098", "run-1-00099", "run-1-00100"]
        assert replace(GATHER, sent_row=rows[0]).member_rows == rows

    @pytest.mark.parametrize("row", ["", "row", "run-", "run-x1", "-"])
    def test_rows_of_members_that_are_not_known(self, row: str) -> None:
        """Code before this one has kept none."""
        assert replace(GATHER, sent_row=row).member_rows == []


class TestJournal:
    """What the journal says."""

    def test_of_what_is_asked(self) -> None:
        pending = Pending(new_requests={"r1": (REQUEST, SerializedMessage("d", "d", "order.unpaid", "{}"))})
        told = {"request": "r1", "task": "charge", "then": "order.paid", "otherwise": "order.unpaid", "until": 1_000}

        assert pending.to_journal() == {"asked": [told]}

    def test_leaves_out_what_is_not(self) -> None:
        assert replace(REQUEST, otherwise="", at=0).to_journal() == {"request": "r1", "task": "charge", "then": "order.paid"}

    @pytest.mark.parametrize("request_", [REQUEST, TIMED_OUT], ids=str)
    def test_of_what_came(self, request_: Request) -> None:
        pending = Pending(requests={"r1": request_})
        pending.take_request("r1", ReplyKind.ANSWER, ["order.paid"])

        assert pending.to_journal() == {"request": "r1", "came": "answer"} | ({"late": True} if request_.has_timed_out else {})


class TestNotes:
    """What is noted can be read again, and what cannot be read does no harm."""

    @given(targets)
    def test_target(self, target: Target) -> None:
        assert Target.from_json(from_json(to_json(target.to_json()))) == target

    @given(st.builds(ReturnAddress, texts, texts, texts, targets, st.none() | targets, st.none() | targets))
    def test_address(self, address: ReturnAddress) -> None:
        assert ReturnAddress.from_json(from_json(to_json(address.to_json()))) == address

    def test_target_says_only_where_its_message_goes(self) -> None:
        """Not when, nor what follows it: the options may come from another service."""
        options = {"queue": "q", "priority": 3, "countdown": "soon", "link": [{"task": "x"}], "exchange": {"type": "direct"}}
        target = Target.from_json(THEN._replace(options=options).to_json())
        assert target is not None
        assert target.options == {"queue": "q", "priority": 3}

    def test_targets_of_a_newer_form_stay_and_are_not_mistaken(self) -> None:
        noted = {**GATHER_TO.to_json(), "to_otherwise": {"step": "order.unpaid"}}
        request = Request.from_json("r1", dict(noted))
        assert (request.to_then, request.to_otherwise, request.to_json()) == (THEN, None, noted)
        assert request.target(0) is None
        assert request.target(3) == THEN

    def test_address_for_failures_alone(self) -> None:
        address = ADDRESS._replace(progress=THEN).of_failures
        assert ReturnAddress.from_json(address.to_json()) == address == ADDRESS._replace(then=None)

    def test_address_for_interim_answers_alone_is_none(self) -> None:
        """Each request has a step for its answer, or for its failure."""
        assert ReturnAddress.from_json(ADDRESS._replace(then=None, otherwise=None, progress=THEN).to_json()) is None

    def test_early_gather_is_of_the_newer_format(self) -> None:
        formats = [json.loads(Pending(requests={"r1": each}).text())["format"] for each in (EARLY, GATHER)]
        assert formats == [UNPAUSED_FORMAT, PLAIN_FORMAT]

    def test_interim_answers_are_of_the_newer_format(self) -> None:
        asking, asked = Pending(requests={"r1": WATCHED}), Pending(requester=ADDRESS._replace(progress=THEN).to_json())
        assert [json.loads(each.text())["format"] for each in (asking, asked)] == [UNPAUSED_FORMAT, UNPAUSED_FORMAT]
        plain = Pending(requests={"r1": REQUEST}, requester=ADDRESS.to_json())
        assert json.loads(plain.text())["format"] == PLAIN_FORMAT

    @given(st.builds(Request, texts, texts, texts, texts, row=texts, at=st.integers(1, 2**53), has_timed_out=st.booleans()))
    def test_request(self, request: Request) -> None:
        pending = Pending(requests={request.id: request})
        assert read_pending(pending.text()).requests == {request.id: request}

    @pytest.mark.parametrize(
        "request_", [REQUEST, TIMED_OUT, WITHOUT_STEP, GATHER, EARLY, WATCHED, Request("r", "t", "s")], ids=str
    )
    def test_each_kind_of_request(self, request_: Request) -> None:
        assert Request.from_json(request_.id, from_json(to_json(request_.to_json()))) == request_

    def test_what_newer_code_has_noted_stays(self) -> None:
        noted = {**REQUEST.to_json(), "colour": "red"}
        assert Request.from_json("r1", dict(noted)).to_json() == noted

    @pytest.mark.parametrize("noted", [{}, {"task": "charge"}, {"then": "order.paid"}], ids=repr)
    def test_request_that_cannot_be_read(self, noted: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="not of its form"):
            read_pending(json.dumps({"format": 1, "requests": {"r1": noted}}))

    def test_requester_is_kept(self) -> None:
        pending = Pending(requester=ADDRESS.to_json())
        assert read_pending(pending.text()).requester == ADDRESS.to_json()

    @pytest.mark.parametrize(
        "noted",
        [
            None,
            5,
            "order.paid",
            [],
            {},
            ["order.paid"],
            [5, [], {}, True, {}],
            ["order.paid", {}, {}, True, {}],
            ["order.paid", [], [], True, {}],
            ["order.paid", [], {}, True, []],
            ["order.paid", [], {}, True, {}, "more"],
        ],
        ids=repr,
    )
    def test_no_target(self, noted: object) -> None:
        assert Target.from_json(noted) is None

    @staticmethod
    def spoilt() -> Iterator[Any]:
        """Yield addresses that are none."""
        yield from (None, 5, "text", [], {})
        for name in ("saga", "instance", "request"):
            for value in (None, 5, "", "x" * 256, ["order"]):
                yield {**ADDRESS.to_json(), name: value}
        yield {**ADDRESS.to_json(), "then": "order.paid", "otherwise": 5}
        yield {name: value for name, value in ADDRESS.to_json().items() if name not in ("then", "otherwise")}

    def test_no_address(self) -> None:
        assert [noted for noted in self.spoilt() if ReturnAddress.from_json(noted) is not None] == []
