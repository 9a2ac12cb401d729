"""The history of an instance, as the journal has it."""

import json
from typing import Any

import pytest

from celery_sagas.core.state import State
from celery_sagas.engine.final_states import completion
from celery_sagas.engine.history import history_of
from celery_sagas.engine.outcomes import read_entry
from celery_sagas.errors import HistoryError
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Engine, handler, starter


class Parcel(State, correlate_by="number", history="messages"):
    """A saga that keeps its history."""

    number: str
    weight: int = 0


class Letter(State, correlate_by="number"):
    """One that keeps none."""

    number: str


def weigh(parcel: Parcel, number: str, weight: int = 0) -> None:
    """Start."""
    parcel.weight += weight


def deliver(parcel: Parcel, number: str) -> None:
    """End."""
    parcel.complete()


def post(letter: Letter, number: str) -> None:
    """Start."""


WEIGH, DELIVER, POST = starter(weigh, saga=Parcel), handler(deliver, saga=Parcel), starter(post, saga=Letter)


def read(engine: Engine, key: str = "1", saga: Any = Parcel) -> Any:
    return history_of(engine.backend.journal, saga.__saga__, key)


def test_each_message_comes_with_what_it_was(engine: Engine, clock: Clock) -> None:
    engine.handle(WEIGH, id="m1", number="1", weight=3)
    clock.advance(1_000)
    engine.handle(WEIGH, id="m2", number="1", weight=4)
    engine.handle(DELIVER, id="m3", number="1")
    history = read(engine)
    assert (history.saga, history.key, history.format) == ("parcel", "1", 1)
    assert [(each.id, each.outcome, each.version) for each in history.messages] == [
        *(("m1", "started", 1), ("m2", "handled", 2), ("m3", "completed", 3)),
    ]
    assert [each.arguments for each in history.messages] == [
        {"number": "1", "weight": 3},
        {"number": "1", "weight": 4},
        {"number": "1"},
    ]
    first, second, third = (each.fields for each in history.messages)
    assert first["weight"] != second["weight"]
    assert second == third
    assert (history.messages[1].at - history.messages[0].at).total_seconds() == 1


def test_a_saga_without_history_keeps_nothing(engine: Engine) -> None:
    engine.handle(POST, number="1")
    assert [json.loads(entry.detail) for entry in engine.backend.journal.history(["letter"], "1", 9)] == [{}]
    with pytest.raises(
        HistoryError, match=r'letter \'1\': the journal has no message of version 1\. Declare .*history="messages"'
    ):
        read(engine, saga=Letter)


@pytest.mark.parametrize(("history", "named"), [("names", '"messages"'), ("values", r'\("messages", "values"\)')])
def test_a_saga_that_keeps_changes_is_told_how_to_keep_its_messages_too(engine: Engine, history: str, named: str) -> None:
    class Kept(State, correlate_by="number", name="letter", history=history):
        number: str

    def post(letter: Kept, number: str) -> None: ...

    engine.handle(starter(post, saga=Kept), number="1")
    with pytest.raises(HistoryError, match=rf"Declare class Kept\(Saga, …, history={named}\);"):
        read(engine, saga=Kept)


def test_an_instance_that_never_existed_has_none(engine: Engine) -> None:
    engine.handle(DELIVER, number="1")
    with pytest.raises(HistoryError, match=r"parcel '1': the journal knows no instance"):
        read(engine)


def test_the_newest_instance_counts(engine: Engine, clock: Clock) -> None:
    for number in range(2):
        engine.handle(WEIGH, number="1", weight=number)
        engine.handle(DELIVER, number="1")
        clock.advance(1)
    assert [each.arguments for each in read(engine).messages] == [{"number": "1", "weight": 1}, {"number": "1"}]


def test_messages_that_changed_nothing_are_left_out(engine: Engine) -> None:
    engine.handle(DELIVER, number="1")
    engine.handle(starter(weigh, saga=Parcel), number="1")
    engine.handle(starter(deliver, saga=Parcel, if_exists="ignore"), number="1")
    assert [each.outcome for each in read(engine).messages] == ["started"]


def test_a_purged_journal_is_refused(engine: Engine, clock: Clock) -> None:
    engine.handle(WEIGH, number="1")
    clock.advance(10_000)
    engine.handle(WEIGH, number="1")
    engine.backend.journal.purge(5_000, 9)
    with pytest.raises(HistoryError, match="begins with version 2: what came before was purged"):
        read(engine)


def test_an_entry_of_older_code_is_refused(engine: Engine) -> None:
    old = Letter.__saga__

    class Kept(State, correlate_by="number", name="letter", history="messages"):
        number: str

    engine.handle(POST, number="1")
    assert old is not None
    with pytest.raises(HistoryError, match="It was handled by code without"):
        read(engine, saga=Kept)


def test_an_entry_that_cannot_be_read_is_refused(engine: Engine) -> None:
    engine.handle(WEIGH, number="1")
    journal = engine.backend.sagas._state.journal  # type: ignore[attr-defined]
    ((handling, entry),) = journal.items()
    journal[handling] = entry._replace(detail="[" * 300 + "]" * 300)
    with pytest.raises(HistoryError, match="parcel '1': the journal's entry of version 1 cannot be read"):
        read(engine)


@pytest.mark.parametrize("history", ["values", "messages", ("messages", "values")])
def test_what_is_nested_deeply_leaves_the_history_readable(engine: Engine, history: Any) -> None:
    class Deep(State, correlate_by="number", name="deep", history=history, keep=60):
        number: str
        note: Any = None

    def note(deep: Deep, number: str, value: Any) -> None:
        deep.note = value

    def finish(deep: Deep, number: str, value: Any) -> None:
        deep.note = value
        deep.complete()

    for number, step in enumerate((starter(note, saga=Deep), handler(note, saga=Deep), handler(finish, saga=Deep))):
        engine.handle(step, number="1", value=json.loads("[" * (198 + number) + "]" * (198 + number)))
    entries = engine.backend.journal.history(["deep"], "1", 9)
    assert [read_entry(entry).kind for entry in entries] == ["started", "handled", "completed"]
    assert completion(engine.backend, Deep.__saga__, entries[-1]).state.number == "1"
    if "messages" in history:
        assert [each.arguments for each in read(engine, saga=Deep).messages] == [None] * 3
