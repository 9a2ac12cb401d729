"""Operators' acts: what they write, what waits while an instance is paused, and what becomes of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pydantic_core import from_json

from celery_sagas.core.pending import PAUSED
from celery_sagas.core.requests.requests import ReplyKind, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.engine.acts.acting import Act, Done, Planner, Subject, perform
from celery_sagas.engine.acts.verbs import fire, patch, pause, reindex, resume, settle, skip, terminate, upgrade
from celery_sagas.engine.instance import lookup_in
from celery_sagas.engine.outcomes import Kind, read_entry
from celery_sagas.errors import (
    ConfigurationError,
    InvalidState,
    KeyTaken,
    MisuseError,
    NewerState,
    RevisionConflict,
    SagaNotFound,
    TooManyDeferred,
    UnreadableState,
)
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import KEY, Change, Lookup
from celery_sagas.testing.samples import effects
from tests.engine.conftest import Engine, starter
from tests.engine.test_deferring import NOTED, noted
from tests.engine.tickets import ASKER, MESSAGES, Ticket, Tickets, rewrite, rows, steps, tickets

__all__ = ["steps"]
pytestmark = pytest.mark.usefixtures("steps")

every_message = pytest.mark.parametrize("what", MESSAGES)
every_policy = pytest.mark.parametrize("if_not", ["raise", "ignore", "defer"])
FAILURE = SerializedMessage("f1", "f1", "cart.failed", "{}")


def act(
    engine: Engine, plan: Planner, name: str = "act", *, id: str = "act-1", saga: SagaDefinition | None = None, **how: Any
) -> Done:
    """Act on the ticket 1."""
    saga = saga or definition()
    return perform(engine.services, saga, lookup_in(saga, KEY, "1"), Act(name, "ann", "carrier down", id), plan, **how)


def definition(**changes: Any) -> SagaDefinition:
    """Return the definition of tickets, with other fields in it."""
    assert Ticket.__saga__ is not None
    return replace(Ticket.__saga__, **changes)


def paused(engine: Engine, if_not: str = "raise", status: str = "open") -> Tickets:
    """Return a paused ticket."""
    made = tickets(engine, if_not)
    made.become(status)
    act(engine, pause, "pause", id="pause-1")
    return made


def changing(**fields: Any) -> Callable[[Subject], Any]:
    """Return the plan of a patch."""
    return lambda subject: patch(subject, lambda found: {**found, **fields}, 10_000)


def settling(subject: Subject) -> Any:
    """Plan the answer to a request."""
    return settle(subject, subject.pending.requests["r1"], FAILURE)


def ending(failure: SerializedMessage | None = None, *, leave_undone: bool = False) -> Callable[[Subject], Any]:
    """Return the plan of a termination."""
    return lambda subject: terminate(subject, lambda: failure, leave_undone=leave_undone)


def awaiting(made: Tickets, **changes: Any) -> None:
    """Have the ticket wait for a request of another kind."""
    pending = made.pending
    pending.requests["r1"] = replace(pending.requests["r1"], **changes)
    rewrite(made, pending.text())


def with_data(engine: Engine, made: Tickets, data: str) -> None:
    """Have the store keep another state of the ticket."""
    record = made.record
    engine.backend.sagas.update(record, Change(("ticket",), record.schema_version, data, record.pending), effects(record))


class TestPause:
    @every_policy
    @every_message
    def test_every_message_waits_and_is_handled_once_it_goes_on(self, engine: Engine, what: str, if_not: str) -> None:
        """Whatever becomes of messages in the wrong status."""
        made = paused(engine, if_not)
        before = made.record
        outcome = made.come(what)

        assert (outcome.kind, outcome.reason, outcome.message_id) == (Kind.DEFERRED, "paused", "m1")
        assert (made.record.data, made.record.version) == (before.data, before.version + 1)
        assert [each.id for each in made.deferred] == ["m1"]
        assert made.seen == []
        assert made.is_awaited(what) or what in NOTED

        done = act(engine, resume, "resume", id="resume-1")
        assert (done.changed, done.text) == (True, "goes on, and 1 message that waited is sent")
        assert made.released() == ["m1"]
        assert made.seen == [noted(what)]
        assert (made.deferred, made.pending.paused) == ([], None)

    @every_message
    def test_redelivery_waits_once(self, engine: Engine, what: str) -> None:
        made = paused(engine)
        made.come(what)
        version = made.record.version
        assert made.again("m1").kind is Kind.DEFERRED
        assert (made.record.version, len(made.deferred)) == (version, 1)

    def test_it_cannot_lose_against_a_message_under_way(self, engine: Engine, rival: Engine) -> None:
        """The step runs again from find, and sees the pause."""
        made = tickets(engine)
        made.become("open")
        engine.interpose().once_before("update", lambda: act(rival, pause, "pause") and None)
        assert made.come("message").kind is Kind.DEFERRED
        assert made.seen == []

    def test_message_under_way_comes_first_or_waits(self, engine: Engine, rival: Engine) -> None:
        """A pause that meets a commit is decided again on what that has left."""
        made = tickets(engine)
        made.become("open")
        engine.interpose().once_before("update", lambda: Tickets(rival, "defer").come("message") and None)
        assert act(engine, pause, "pause").changed
        assert made.seen == ["worked 1"]
        assert made.pending.paused is not None

    def test_is_written_down(self, engine: Engine) -> None:
        made = paused(engine)
        pending, entry = made.pending, made.entries[-1]
        assert pending.paused is not None
        assert pending.paused[1:] == ("ann", "carrier down")
        assert pending.tags == dict([PAUSED])
        assert (entry.step, entry.outcome, entry.version) == ("ticket.(operator)", "operated", made.record.version)
        assert from_json(entry.detail) == {"act": "pause", "actor": "ann", "because": "carrier down"}

    def test_is_listed(self, engine: Engine, backend: MemoryBackend) -> None:
        made = paused(engine)
        assert [glance.id for glance in backend.instances.tagged("ticket", PAUSED, 10).instances] == [made.record.id]
        act(engine, resume, "resume", id="resume-1")
        assert backend.instances.tagged("ticket", PAUSED, 10).instances == ()

    def test_again_changes_nothing(self, engine: Engine) -> None:
        made = paused(engine)
        version = made.record.version
        done = act(engine, pause, "pause", id="pause-2")
        assert (done.changed, done.text) == (False, "ann has paused it already: carrier down")
        assert made.record.version == version

    def test_what_it_no_longer_waits_for_is_dropped(self, engine: Engine) -> None:
        made = tickets(engine)
        made.become("open")
        made.come("timeout", "m1")
        act(engine, pause, "pause")
        assert made.come("timeout", "m2").kind is Kind.DROPPED
        assert made.deferred == []

    def test_second_occurrence_of_a_series_is_dropped(self, engine: Engine) -> None:
        made = paused(engine)
        assert [made.come("series", id).kind for id in ("m1", "m2")] == [Kind.DEFERRED, Kind.DROPPED]

    def test_more_messages_than_can_wait_come_later(self, engine: Engine) -> None:
        made = paused(engine)
        for number in range(100):
            made.come("message", f"m{number}")
        with pytest.raises(TooManyDeferred, match="100 messages wait with it"):
            made.come("message", "one more")
        act(engine, resume, "resume", id="resume-1")
        assert made.released() == [f"m{number}" for number in range(100)]
        assert len(made.seen) == 100

    def test_what_waits_for_another_status_waits_again(self, engine: Engine) -> None:
        made = tickets(engine, "defer")
        made.come("message", "m1")
        since = made.deferred[0].since
        act(engine, pause, "pause")
        act(engine, resume, "resume", id="resume-1")
        made.again("m1", since=since)
        assert [(each.id, each.since) for each in made.deferred] == [("m1", since)]
        made.become("open")
        made.released()
        assert made.seen == ["worked 1"]

    def test_starter_of_a_new_instance_begins_it(self, engine: Engine) -> None:
        made = paused(engine)
        assert engine.handle(made.begin, id="b2", number="2").kind is Kind.STARTED

    def test_requester_is_answered_when_it_goes_on(self, engine: Engine) -> None:
        made = paused(engine)
        made.come("message", asked_by=ASKER)
        assert engine.publisher.published == []
        act(engine, resume, "resume", id="resume-1")
        made.released()
        assert [json.loads(sent.payload) for sent in engine.publisher.published] == ["done 1"]


class TestPerform:
    def test_repetition_writes_nothing(self, engine: Engine) -> None:
        """Its reply was lost."""
        made = tickets(engine)
        act(engine, partial(skip, name="once"))
        version = made.record.version
        done = act(engine, pause)
        assert (done.changed, done.text) == (False, "it was done before")
        assert made.record.version == version

    def test_repetition_that_does_not_fit_any_more(self, engine: Engine) -> None:
        """A batch is run again: the instance waits no longer for what was skipped, and has another version."""
        version = tickets(engine).record.version
        again = Act("skip", "ann", "carrier down", "batch", may_be_done=True)
        where, plan = lookup_in(definition(), KEY, "1"), partial(skip, name="once")
        first, second = (perform(engine.services, definition(), where, again, plan, expected_version=version) for _ in range(2))
        assert (first.changed, second.changed, second.text) == (True, False, "it was done before")

    @pytest.mark.parametrize("verb", ["fire", "settle"])
    def test_version_is_kept_until_it_is_committed(self, engine: Engine, rival: Engine, verb: str) -> None:
        """Of acts, too, that leave the state as it is."""
        made = tickets(engine)
        made.become("open")
        plans = {"fire": partial(fire, name="once", message_in=lambda row: "m1"), "settle": settling}
        engine.interpose().once_before("update", lambda: Tickets(rival, "defer").come("message") and None)
        with pytest.raises(MisuseError, match="has version 3, and 2 was expected"):
            act(engine, plans[verb], expected_version=2)

    def test_dry_run_writes_nothing(self, engine: Engine) -> None:
        made = tickets(engine)
        before, entries = made.record, made.entries
        done = act(engine, pause, dry_run=True)
        assert (done.changed, done.text) == (False, "is paused: its messages wait until it is resumed")
        assert (made.record, made.entries) == (before, entries)

    def test_another_version_than_the_expected_one(self, engine: Engine) -> None:
        made = tickets(engine)
        with pytest.raises(MisuseError, match="has version 2, and 1 was expected"):
            act(engine, pause, expected_version=1)
        assert act(engine, pause, expected_version=2).version == made.record.version == 3

    def test_no_such_instance(self, engine: Engine) -> None:
        with pytest.raises(SagaNotFound, match="number='1': none was started"):
            act(engine, pause)

    def test_one_that_has_completed(self, engine: Engine) -> None:
        made = tickets(engine)
        engine.handle(made.end, id="e1", number="1")
        with pytest.raises(SagaNotFound, match="it has completed"):
            act(engine, pause)

    def test_locked_instance(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        made = tickets(engine)
        assert engine.backend.sagas.lock(made.record, "another", 60_000)
        monkeypatch.setattr("celery_sagas.engine.conflicts.time.sleep", lambda seconds: None)
        with pytest.raises(RevisionConflict, match="locked"):
            act(engine, pause)

    def test_instance_of_newer_code(self, engine: Engine) -> None:
        made = tickets(engine)
        rewrite(made, '{"format": 99}')
        with pytest.raises(NewerState):
            act(engine, pause)


class TestTerminate:
    def test_ends_the_instance_and_what_it_waits_for(self, engine: Engine, backend: MemoryBackend) -> None:
        made = paused(engine)
        made.come("message")
        done = act(engine, ending())
        assert (done.changed, done.text) == (True, "is terminated, and 1 message that waited is sent")
        assert backend.sagas.count(["ticket"]) == {"ticket": 0}
        engine.services.dispatcher.confirmations.flush()
        assert rows(backend) == []
        entry = backend.journal.outcome_of(["ticket"], "1")
        assert entry is not None
        outcome = read_entry(entry)
        assert (outcome.kind, outcome.reason, outcome.step) == (Kind.COMPLETED, "terminated", "ticket.(operator)")
        assert [message.message_id for message in engine.publisher.published] == ["m1"]
        assert made.again("m1").reason == "completed"

    def test_tells_who_waits_for_its_answer(self, engine: Engine) -> None:
        tickets(engine)
        act(engine, ending(FAILURE))
        assert engine.publisher.ids == ["f1"]

    def test_one_whose_pending_map_is_damaged(self, engine: Engine, backend: MemoryBackend) -> None:
        made = tickets(engine)
        rewrite(made, "[]")
        assert act(engine, ending()).changed
        assert backend.sagas.count(["ticket"]) == {"ticket": 0}


def upgrading(*, always: bool = False, most_bytes: int = 10_000) -> Callable[[Subject], Any]:
    """Return the plan of an upgrade."""
    return partial(upgrade, most_bytes=most_bytes, always=always)


class TestUpgrade:
    def test_current_form_is_left_alone(self, engine: Engine) -> None:
        made = tickets(engine)
        before = made.record, made.entries
        done = act(engine, upgrading())
        assert (done.changed, done.text) == (False, "it is stored as this code would store it")
        assert (made.record, made.entries) == before

    def test_current_form_is_stored_again(self, engine: Engine) -> None:
        made = tickets(engine)
        before = made.record
        assert act(engine, upgrading(always=True)).changed
        assert made.record == before._replace(version=before.version + 1, updated_at=made.record.updated_at)
        assert from_json(made.entries[-1].detail)["fields"] == []

    def test_form_of_today(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """State, version, and what it is found and listed by."""
        monkeypatch.setattr(Ticket, "upgrade", lambda data, version: {**data, "status": "open"})
        made = tickets(engine)
        done = act(engine, upgrading(), saga=definition(also_by=(), search_by=("status",), schema_version=2))
        assert (done.changed, made.data["status"], made.record.schema_version) == (True, "open", 2)
        assert (made.pending.keys, made.pending.tags) == ({}, {"status": "open"})
        assert from_json(made.entries[-1].detail)["fields"] == ["status"]

    def test_what_waited_is_sent_once_the_state_is_another(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ticket, "upgrade", lambda data, version: {**data, "status": "open"})
        made = tickets(engine, "defer")
        made.become("new")
        made.come("message")
        assert [each.id for each in made.deferred] == ["m1"]
        act(engine, upgrading(), saga=definition(schema_version=2))
        assert made.deferred == []

    def test_paused_instance_stays_paused(self, engine: Engine) -> None:
        made = paused(engine)
        act(engine, upgrading(), saga=definition(schema_version=2))
        assert made.pending.paused is not None
        assert made.pending.tags == dict([PAUSED])

    def test_form_that_is_too_large(self, engine: Engine) -> None:
        tickets(engine)
        with pytest.raises(InvalidState, match="saga_max_state_bytes allows 20"):
            act(engine, upgrading(always=True, most_bytes=20))

    def test_another_key(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ticket, "upgrade", lambda data, version: {**data, "number": "2"})
        tickets(engine)
        with pytest.raises(InvalidState, match="number: this code makes another correlation key of it"):
            act(engine, upgrading(), saga=definition(schema_version=2))


class TestReindex:
    def test_what_the_definition_says_now(self, engine: Engine) -> None:
        made = tickets(engine)
        before = made.record
        done = act(engine, reindex, "reindex", saga=definition(also_by=(), search_by=("status",)))
        assert (done.changed, done.text) == (True, "is indexed again by code, status")
        assert (made.pending.keys, made.pending.tags) == ({}, {"status": "new"})
        assert (made.record.data, made.record.version) == (before.data, before.version + 1)
        assert engine.backend.sagas.find(Lookup(("ticket",), "code", "c1")).record is None
        assert from_json(made.entries[-1].detail)["fields"] == ["code", "status"]

    def test_field_that_is_no_longer_a_key_is_listed(self, engine: Engine) -> None:
        made = tickets(engine)
        assert act(engine, reindex, saga=definition(also_by=(), search_by=("code",))).text == "is indexed again by code"
        assert (made.pending.keys, made.pending.tags) == ({}, {"code": "c1"})

    def test_nothing_to_change(self, engine: Engine) -> None:
        made = tickets(engine)
        before = made.record, made.entries
        done = act(engine, reindex)
        assert (done.changed, done.planned, done.text) == (False, False, "it is indexed as its saga says")
        assert (made.record, made.entries) == before

    def test_state_that_cannot_be_upgraded_is_replaced(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ticket, "upgrade", lambda data, version: data["lost"])
        made = tickets(engine)
        done = act(engine, changing(status="open", code="c2"), saga=definition(schema_version=2))
        assert (done.changed, made.data["status"], made.record.schema_version) == (True, "open", 2)
        assert done.text.endswith("status, and its schema from 1 to 2, so workers of older code leave it alone")

    def test_paused_instance_stays_paused(self, engine: Engine) -> None:
        made = paused(engine)
        act(engine, reindex, saga=definition(search_by=("status",)))
        assert made.pending.paused is not None
        assert made.pending.tags == {"status": "open", **dict([PAUSED])}

    def test_key_of_another_instance(self, engine: Engine) -> None:
        made = tickets(engine)
        act(engine, reindex, saga=definition(also_by=()))
        engine.handle(made.begin, id="b2", number="2", code="c1")
        with pytest.raises(KeyTaken):
            act(engine, reindex, id="act-2")

    @pytest.mark.parametrize(
        ("data", "version", "error"),
        [('{"number": "1", "status": "lost"}', 1, UnreadableState), ('{"number": "1"}', 2, NewerState)],
    )
    def test_state_that_does_not_load(self, engine: Engine, data: str, version: int, error: type[Exception]) -> None:
        made = tickets(engine)
        record = made.record
        engine.backend.sagas.update(record, Change(("ticket",), version, data, record.pending), effects(record))
        with pytest.raises(error):
            act(engine, reindex, saga=definition(search_by=("status",)))

    def test_state_of_an_earlier_version_stays_as_it_is_stored(self, engine: Engine) -> None:
        made = tickets(engine)
        before = made.record
        assert act(engine, reindex, saga=definition(search_by=("status",), schema_version=2)).changed
        assert (made.record.data, made.record.schema_version) == (before.data, 1)


class TestPatch:
    @pytest.mark.parametrize(("old", "new"), [(0, False), (True, 1), (1, 1.0), ([0], [0.0])])
    def test_equal_value_of_another_type(self, engine: Engine, old: object, new: object) -> None:
        class Note(State, correlate_by="number", name="note"):
            number: str
            text: Any = None

        def write(note: Note, number: str) -> None:
            note.text = old

        engine.handle(starter(write, saga=Note), number="1")
        assert act(engine, changing(text=new), saga=Note.__saga__).text == "has changed: text"

    def test_schema_that_rises_is_told_before(self, engine: Engine) -> None:
        made = tickets(engine)
        text = "has changed: status, and its schema from 1 to 2, so workers of older code leave it alone"
        done = act(engine, changing(status="open"), saga=definition(schema_version=2), dry_run=True)
        assert (done.changed, done.text, made.record.schema_version) == (False, text, 1)
        assert act(engine, changing(status="open"), saga=definition(schema_version=2)).text == text
        text = "has changed: only its schema from 2 to 3, so workers of older code leave it alone"
        assert act(engine, changing(), id="act-2", saga=definition(schema_version=3)).text == text
        again = act(engine, changing(status="new"), id="act-3", saga=definition(schema_version=3))
        assert again.text == "has changed: status"

    def test_other_text_of_equal_values(self, engine: Engine) -> None:
        made = tickets(engine)
        with_data(engine, made, json.dumps({**made.data, "extra": {"a": 1, "b": 2}}))
        assert act(engine, changing(extra={"b": 2, "a": 1})).text == "has changed: only how it is written"

    def test_changes_state_keys_and_status(self, engine: Engine) -> None:
        made = tickets(engine, "defer")
        made.come("message")
        done = act(engine, changing(code="c2", status="open"))
        assert (done.changed, done.text) == (True, "has changed: code, status")
        assert (json.loads(done.before)["code"], json.loads(done.after)["code"]) == ("c1", "c2")
        assert (made.data["code"], made.data["status"]) == ("c2", "open")
        assert made.pending.keys == {"code": "c2"}
        assert from_json(made.entries[-1].detail)["fields"] == ["code", "status"]
        made.released()
        assert made.seen == ["worked 1"]

    def test_paused_instance_stays_paused(self, engine: Engine) -> None:
        made = paused(engine)
        made.come("message")
        act(engine, changing(code="c2"))
        assert made.pending.paused is not None
        assert made.pending.tags == dict([PAUSED])
        assert len(made.deferred) == 1

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"status": "lost"}, "status: Input should be 'new', 'open' or 'shut'"),
            ({"number": "2"}, "number: the correlation key is the instance's for life"),
            ({"seen": ["x" * 20_000]}, "saga_max_state_bytes allows 10,000"),
            ({"seen": 5}, "seen: Input should be a valid array"),
        ],
    )
    def test_invalid_state_is_refused(self, engine: Engine, fields: dict[str, Any], problem: str) -> None:
        made = tickets(engine)
        before = made.record
        with pytest.raises(InvalidState) as raised:
            act(engine, changing(**fields))
        assert problem in str(raised.value)
        assert made.record == before

    def test_key_of_another_instance(self, engine: Engine) -> None:
        made = tickets(engine)
        engine.handle(made.begin, id="b2", number="2", code="c2")
        with pytest.raises(KeyTaken):
            act(engine, changing(code="c2"))

    def test_same_state_changes_nothing(self, engine: Engine) -> None:
        tickets(engine)
        done = act(engine, changing(code="c1"))
        assert (done.changed, done.text) == (False, "its state is like that already")

    def test_repairs_what_cannot_be_read(self, engine: Engine) -> None:
        made = tickets(engine)
        with_data(engine, made, '{"number": "1", "status": "lost"}')
        assert act(engine, changing(status="open")).changed
        assert made.data["status"] == "open"

    @pytest.mark.parametrize("data", ["", "{", "[1]", "null", "5"])
    def test_replaces_what_is_no_object(self, engine: Engine, data: str) -> None:
        made = tickets(engine)
        with_data(engine, made, data)
        done = act(engine, lambda subject: patch(subject, lambda _: {"number": "1", "status": "open", "code": "c1"}, 10_000))
        assert (done.changed, done.before) == (True, "{}")
        assert made.data["status"] == "open"

    def test_last_alternate_key_is_removed_and_set_again(self, engine: Engine) -> None:
        made = tickets(engine)
        engine.handle(made.begin, id="b2", number="2")
        by_code = Lookup(("ticket",), "code", "c1")
        act(engine, changing(code=None))
        assert made.pending.keys == {}
        assert engine.backend.sagas.find(by_code).record is None
        act(engine, changing(code="c1"), id="act-2")
        assert engine.backend.sagas.find(by_code).record == made.record
        with pytest.raises(KeyTaken):
            engine.handle(made.begin, id="b3", number="2", code="c1")

    def test_field_that_there_is_none_of(self, engine: Engine) -> None:
        made = tickets(engine)
        with pytest.raises(InvalidState, match=r"cod: there is no such field.*the fields are number, code, status, seen"):
            act(engine, changing(cod="c2"))
        assert "cod" not in made.data

    def test_field_of_newer_code_stays(self, engine: Engine) -> None:
        made = tickets(engine)
        with_data(engine, made, '{"number": "1", "code": "c1", "newer": 1}')
        act(engine, changing(status="open"))
        assert made.data["newer"] == 1

    def test_state_and_what_it_waits_for_are_too_large_together(self, engine: Engine) -> None:
        made = tickets(engine)
        room = 10_000 - len(made.record.data) - len(made.record.pending)
        with pytest.raises(InvalidState, match="with what it waits for it has"):
            act(engine, changing(seen=["x" * room]))


class TestSkip:
    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"undoes": "w"}, "is being undone, and goes on only with an outcome of charge"),
            ({"is_undone": True}, "is being undone, and goes on only with an outcome of charge"),
            ({"undo": Target("refund")}, "what charge does for ticket '1' can be undone"),
        ],
    )
    def test_undo_is_not_lost(self, engine: Engine, changes: dict[str, Any], problem: str) -> None:
        made = tickets(engine)
        awaiting(made, **changes)
        with pytest.raises(MisuseError, match=problem):
            act(engine, partial(skip, name="r1"))

    def test_request_that_was_not_sent_is_never_sent(self, engine: Engine) -> None:
        made = tickets(engine)
        awaiting(made, sent_row=made.pending.timeouts["once"].row, sent_at=1)
        act(engine, partial(skip, name="r1"))
        assert made.pending.timeouts["once"].row not in [row.id for row in rows(engine.backend)]

    @pytest.mark.parametrize(
        ("name", "what"), [("once", "timeout"), ("often", "series"), ("r1", ReplyKind.ANSWER), ("charge", ReplyKind.ANSWER)]
    )
    def test_waits_no_longer(self, engine: Engine, backend: MemoryBackend, name: str, what: str) -> None:
        made = tickets(engine)
        made.become("open")
        count = len(rows(backend))
        assert act(engine, partial(skip, name=name)).changed
        assert not made.is_awaited(what)
        assert len(rows(backend)) == count - 1
        assert made.come(what).kind is Kind.DROPPED

    def test_what_it_does_not_wait_for(self, engine: Engine) -> None:
        tickets(engine)
        with pytest.raises(MisuseError, match=r"does not wait for delivery\. It waits for once, often, charge"):
            act(engine, partial(skip, name="delivery"))


def test_answer_leaves_the_state(engine: Engine) -> None:
    made = tickets(engine)
    before = made.record
    done = act(engine, settling)
    assert (done.changed, done.version, made.record.data) == (True, before.version + 1, before.data)
    assert engine.publisher.ids == ["f1"]
    (entry,) = (each for each in made.entries if each.outcome == "operated")
    assert (entry.step, entry.version) == ("ticket.(operator)", done.version)
    assert from_json(entry.detail)["request"] == "r1"


def test_row_is_due_once_the_act_is_committed_also_if_that_was_before(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has died between the commit and what follows it."""
    made = tickets(engine)
    row, hurry = made.pending.timeouts["once"].row, engine.backend.outbox.hurry
    again = Act("fire", "ann", "carrier down", "batch", may_be_done=True)
    run = partial(perform, engine.services, definition(), lookup_in(definition(), KEY, "1"), again)
    plan = partial(fire, name="once", message_in=lambda row: engine.backend.outbox.read([row])[0].message_id)
    monkeypatch.setattr(engine.backend.outbox, "hurry", lambda ids: 0)
    assert run(plan).changed
    hurried = list[str]()
    monkeypatch.setattr(engine.backend.outbox, "hurry", lambda ids: hurried.extend(ids) or hurry(ids))
    assert (run(plan, dry_run=True).changed, hurried) == (False, [])
    assert (run(plan).changed, hurried) == (False, [row])
    assert row in [each.id for each in engine.backend.outbox.claim_due("relay", 9, 60_000)]


def test_row_with_another_message_is_left_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a series holds the next occurrence by now."""
    tickets(engine)
    again = Act("fire", "ann", "carrier down", "batch", may_be_done=True)
    plan = partial(fire, name="often", message_in=lambda row: "the occurrence before")
    run = partial(perform, engine.services, definition(), lookup_in(definition(), KEY, "1"), again, plan)
    assert (run().changed, run().changed) == (True, False)
    assert engine.backend.outbox.claim_due("relay", 9, 60_000) == []


def test_request_that_was_not_sent_and_is_answered_is_never_sent(engine: Engine) -> None:
    made = tickets(engine)
    row = made.pending.timeouts["once"].row  # in the place of its message's
    awaiting(made, sent_row=row, sent_at=1)
    version = made.record.version
    done = act(engine, lambda subject: settle(subject, subject.pending.requests["r1"], FAILURE))
    assert (done.version, engine.publisher.ids) == (version + 1, ["f1"])
    assert row not in [each.id for each in rows(engine.backend)]
    assert made.pending.requests["r1"].sent_row == ""


def test_backend_without_an_audit_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tickets(engine)
    monkeypatch.setattr(MemoryBackend, "has_audit", False)
    with pytest.raises(ConfigurationError, match="a backend without Audit"):
        act(engine, pause)
    assert made.pending.paused is None


def test_act_that_the_journal_has_forgotten_is_done_again(engine: Engine, backend: MemoryBackend) -> None:
    """With an entry of its own in the audit."""
    tickets(engine)
    act(engine, pause)
    backend.journal.purge(-1, 100)
    act(engine, resume)
    assert [entry.action for entry in backend.audit.recent(9).entries] == ["act", "act"]
