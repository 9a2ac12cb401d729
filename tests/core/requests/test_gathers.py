"""The gathers of an instance, as its steps see them: the rules, without any store."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from celery_sagas.core.requests.requests import Request
from celery_sagas.core.requests.views import GatherView, MemberOutcomes, OpenGathers

GATHER = Request("g", "celery_sagas.gather", "order.quoted", "order.too_few", at=1_700_000_000_500, members=4, at_least=2)
REQUESTS = {
    "g": GATHER,
    "h": replace(GATHER, id="h", at=0),
    "r": replace(GATHER, id="r", members=0),
    "o": replace(GATHER, id="o", has_timed_out=True),
}


class Reader:
    """Reads what has come of members, and notes of which gathers."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, request: Request) -> MemberOutcomes:
        self.read.append(request.id)
        return MemberOutcomes((0, 3), (1,))


def test_view() -> None:
    gathers = OpenGathers(REQUESTS, Reader())

    assert gathers["g"] == GatherView("g", 4, 2, (0, 3), (1,), datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC))
    assert (gathers["h"].deadline, gathers["h"].silent) == (None, [2])


def test_gathers_alone_that_have_not_ended() -> None:
    gathers = OpenGathers(REQUESTS, Reader())

    assert (list(gathers), len(gathers), "r" in gathers, "o" in gathers, 3 in gathers) == (["g", "h"], 2, False, False, False)
    with pytest.raises(KeyError, match="r"):
        gathers["r"]


def test_each_is_read_once_when_it_is_looked_at() -> None:
    reader = Reader()
    gathers = OpenGathers(REQUESTS, reader)
    assert (len(gathers), list(gathers), "g" in gathers, reader.read) == (2, ["g", "h"], True, [])
    assert gathers["h"] is gathers["h"]
    assert reader.read == ["h"]

    assert repr(gathers) == "<gathers g, h>"
    assert reader.read == ["h"]
    assert list(dict(gathers)) == ["g", "h"]
    assert reader.read == ["h", "g"]


def test_later_changes_of_the_requests_do_not_matter() -> None:
    requests = dict(REQUESTS)
    gathers = OpenGathers(requests, Reader())
    requests.clear()

    assert gathers["g"].members == 4
