"""The pending map, and what a run changes of it."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sagas import clock
from celery_sagas.core.pending import (
    FORMAT,
    NOTHING,
    PLAIN_FORMAT,
    UNPAUSED_FORMAT,
    NewerFormat,
    Pause,
    Pending,
    read_pending,
)
from celery_sagas.core.requests.requests import Addressed, Request
from celery_sagas.core.requests.views import OpenRequests, RequestView
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.series import Crontab, Interval
from celery_sagas.core.timeouts import NewTimeout, Timeout, due_times

A = Timeout("id-a", "row-a", "order.remind", 1_000)
B = Timeout("id-b", "row-b", "order.remind", 2_000)
MESSAGE = SerializedMessage("id-new", "id-new", "order.remind", "{}", 3_000)

texts = st.text(max_size=5)
timeouts = st.builds(Timeout, id=texts, row=texts, step=texts, at=st.integers(0, 2**53))


pauses = st.builds(Pause, at=st.integers(0, 2**53), actor=texts, reason=texts)


@given(st.dictionaries(texts, texts), st.dictionaries(texts, timeouts), st.dictionaries(texts, texts), st.none() | pauses)
def test_map_is_read_as_it_was_written(keys, named, tags, paused):
    pending = Pending(keys, named, tags=tags, paused=paused)
    assert read_pending(pending.text()) == pending


def test_older_code_leaves_a_paused_instance_alone():
    """It takes the map for that of newer code, and leaves the message to others."""
    pending = Pending(paused=Pause(1_000, "ann", "carrier down"))
    assert json.loads(pending.text()) == {"format": FORMAT, "paused": {"at": 1_000, "actor": "ann", "reason": "carrier down"}}
    pending.paused = None
    assert FORMAT > UNPAUSED_FORMAT
    assert pending.text() == NOTHING


@pytest.mark.parametrize("paused", [{"at": 1}, {"at": 1, "actor": "ann", "reason": "x", "why": 2}, [1, "ann"], "x", 5])
def test_damaged_pause_is_no_map(paused):
    with pytest.raises(ValueError, match="not of its form"):
        read_pending(json.dumps({"format": FORMAT, "paused": paused}))


def test_what_newer_code_keeps_is_written_back():
    text = '{"format":1,"later":{"a":1},"keys":{"k":"1"},"timeouts":{"t":{"colour":"red","id":"i","row":"r","step":"s","at":5}}}'
    pending = read_pending(text)
    assert pending.timeouts["t"].at == 5
    assert json.loads(pending.text()) == json.loads(text)


def test_map_says_its_format():
    assert json.loads(Pending({"k": "1"}).text()) == {"format": PLAIN_FORMAT, "keys": {"k": "1"}}


def test_newer_format_is_not_read():
    """Whatever else is in it: its parts may have another meaning."""
    with pytest.raises(NewerFormat) as caught:
        read_pending(json.dumps({"format": FORMAT + 1, "timeouts": []}))
    assert caught.value.args == (FORMAT + 1,)


def test_nothing_pending():
    """Has no format either: most instances wait for nothing."""
    assert Pending().text() == NOTHING == "{}"
    assert read_pending(NOTHING) == Pending()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"x"',
        "{",
        '{"keys": {}}',
        '{"format": "1"}',
        '{"format": null}',
        '{"format": 1, "timeouts": []}',
        '{"format": 1, "timeouts": {"a": {"id": "x"}}}',
        '{"format": 1, "timeouts": {"a": 1}}',
        '{"format": 1, "keys": 1}',
    ],
)
def test_text_that_holds_no_map(text):
    with pytest.raises(ValueError, match=r"."):
        read_pending(text)


def test_a_name_replaces():
    pending = Pending(timeouts={"a": A, "b": B})
    pending.schedule("a", MESSAGE, 3_000)
    assert pending.timeouts == {"b": B}
    assert pending.new_timeouts == {"a": NewTimeout(MESSAGE, 3_000)}
    assert pending.cancelled == ["row-a"]


def test_what_this_run_added_is_cancelled_without_a_trace():
    pending = Pending(timeouts={})
    pending.schedule("a", MESSAGE, 3_000)
    pending.unschedule("a")
    assert (pending.new_timeouts, pending.cancelled) == ({}, [])


def test_cancelling_what_is_not_there():
    pending = Pending(timeouts={"a": A})
    pending.unschedule("b")
    assert (pending.timeouts, pending.cancelled) == ({"a": A}, [])


def test_the_handled_one_is_taken_once_and_its_row_cancelled():
    pending = Pending(timeouts={"a": A, "b": B})
    assert pending.take(Addressed("1", "id-a"), ()) == (True, False)
    assert pending.take(Addressed("1", "id-a"), ()) == (False, False)
    assert (pending.timeouts, pending.cancelled) == ({"b": B}, ["row-a"])


def test_rescheduling_the_handled_one_keeps_the_new_one():
    pending = Pending(timeouts={"a": A})
    assert pending.take(Addressed("1", "id-a"), ()) == (True, False)
    pending.schedule("a", MESSAGE, 3_000)
    assert (pending.new_timeouts, pending.cancelled) == ({"a": NewTimeout(MESSAGE, 3_000)}, ["row-a"])


SERIES = Timeout("id-s", "row-s", "order.remind", 10_000, Interval(10_000, 1_000))


def test_series_is_read_as_it_was_written():
    zoned = replace(SERIES, every=Crontab((0,), (9,), (1,), (1,), (5,), "Europe/London"), handled_at=7)
    pending = Pending(timeouts={"a": SERIES, "b": zoned})
    assert read_pending(pending.text()) == pending
    assert json.loads(pending.text())["timeouts"]["a"]["every"] == {"first": 10_000, "ms": 1_000}


def test_series_that_cannot_be_read():
    text = Pending(timeouts={"a": SERIES}).text().replace('"ms"', '"moons"')
    with pytest.raises(ValueError, match="is no series"):
        read_pending(text)


def occurrence(due_at):
    return Addressed("1", "id-s", due_at=due_at)


def test_series_stays_when_an_occurrence_is_handled():
    pending = Pending(timeouts={"s": SERIES})
    assert pending.take(occurrence(10_000), ()) == (True, False)
    assert (pending.timeouts.keys(), pending.cancelled) == ({"s"}, [])


def test_occurrence_is_overtaken_by_one_that_was_handled_after_it_was_due():
    """By the clock of the store, which commits one and says when the other is due."""
    pending = Pending(timeouts={"s": SERIES})
    assert pending.take(occurrence(10_000), ()) == (True, False)
    for late in (11_000, 12_500):
        assert read_pending(pending.text(), 12_500).take(occurrence(late), ()) == (False, False)
    assert read_pending(pending.text(), 12_500).take(occurrence(12_501), ()) == (True, False)
    assert read_pending(pending.text(), 12_500).take(occurrence(0), ()) == (True, False), "one that is tried again"


def test_other_commits_do_not_change_when_an_occurrence_was_handled():
    pending = Pending(timeouts={"s": SERIES})
    pending.take(occurrence(10_000), ())
    later = read_pending(read_pending(pending.text(), 12_500).text(), 20_000)
    assert later.timeouts["s"].handled_at == 12_500
    assert later.take(occurrence(13_000), ()) == (True, False)


def test_cancelled_series_is_awaited_no_more():
    pending = Pending(timeouts={"s": SERIES})
    assert pending.has_series("id-s")
    pending.unschedule("s")
    assert pending.cancelled == ["row-s"]
    assert not pending.has_series("id-s")
    assert pending.take(occurrence(10_000), ()) == (False, False)


def test_due_time_of_a_series_is_its_next_one():
    for now, due_at in ((0, 10), (9.999, 10), (10, 11), (10.5, 11), (99.999, 100)):
        with clock.replaced_by(lambda now=now: now):
            assert due_times({"s": SERIES}) == {"s": datetime.fromtimestamp(due_at, UTC)}


def test_first_time_of_a_crontab_may_be_far_away():
    at = int(datetime(2030, 1, 1, 9, tzinfo=UTC).timestamp() * 1000)
    yearly = replace(SERIES, at=at, every=Crontab((0,), (9,), (1,), (1,), tuple(range(7)), "UTC"))
    assert (yearly.due_after(0), yearly.due_after(at)) == (at, at + 365 * 86_400_000)


def test_due_times_are_aware():
    assert due_times({"a": A}) == {"a": datetime.fromtimestamp(1, UTC)}


def test_open_requests_by_their_ids():
    plain = Request("a", "charge", "paid", at=1_700_000_000_500)
    chain, timed_out = Request("b", "stamp", "paid"), Request("c", "charge", "paid", has_timed_out=True)
    gather = Request("d", "celery_sagas.gather", "quoted", members=3)
    views = OpenRequests({each.id: each for each in (plain, chain, timed_out, gather)})

    assert list(views) == ["a", "b", "d"]
    assert views["a"] == RequestView("a", "charge", datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC))
    assert views["b"] == RequestView("b", "stamp", None)
    assert views["d"] == RequestView("d", "", None, members=3)
    assert "c" not in views
    assert repr(views) == repr(dict(views))
    with pytest.raises(TypeError):
        views["e"] = views["a"]  # type: ignore[index]
    with pytest.raises(TypeError):
        del views["a"]  # type: ignore[attr-defined]


def test_no_open_requests():
    assert OpenRequests({}) == {}


class TestTrace:
    """The context of the step that has created the instance."""

    CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    def test_it_is_kept(self) -> None:
        assert read_pending(Pending(trace=self.CONTEXT).text()).trace == self.CONTEXT

    def test_code_that_does_not_know_it_may_read_the_map(self) -> None:
        assert json.loads(Pending(trace=self.CONTEXT).text()) == {"format": PLAIN_FORMAT, "trace": self.CONTEXT}

    def test_there_is_none_without(self) -> None:
        assert Pending().text() == NOTHING
