"""What the journal's entries say of the changes of the state."""

import json
from typing import Any, Literal

from pydantic import Field

from celery_sagas.core.state import State
from celery_sagas.stores.records import Change
from celery_sagas.testing.samples import by_key, effects, found
from tests.engine.conftest import Engine, handler, starter


class Parcel(State, correlate_by="number", status_by="status", history="values"):
    """A saga that keeps the values of changed fields."""

    number: str
    weight: int = 0
    status: Literal["open", "closed"] = "open"
    marks: set[str] = set()
    text: str = ""


class Kept(State, correlate_by="number", history="names", keep=60):
    """One that keeps the names, and its final state."""

    number: str
    weight: int = 0


class Off(State, correlate_by="number"):
    """One that keeps nothing."""

    number: str
    weight: int = 0


class Heavier(State, correlate_by="number", name="parcel", schema_version=2, history="values"):
    """The parcel of newer code."""

    number: str
    grams: int = Field(0, ge=0)

    @classmethod
    def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
        """Turn kilograms into grams."""
        return {"number": data["number"], "grams": data["weight"] * 1_000}


def weigh(parcel: Any, number: str, weight: int = 0) -> None:
    """Add to its weight."""
    parcel.weight += weight


def write(parcel: Parcel, number: str, text: str) -> None:
    """Write on it."""
    parcel.text = text


def look(parcel: Any, number: str) -> None:
    """Change nothing."""


def end(parcel: Any, number: str, weight: int = 0) -> None:
    """Change it, and end."""
    parcel.weight += weight
    parcel.complete()


def details(engine: Engine, saga: str = "parcel") -> list[dict[str, Any]]:
    return [json.loads(entry.detail) for entry in engine.backend.journal.history([saga], "1", 99)]


def test_each_message_of_a_step(engine: Engine) -> None:
    for step in (starter(weigh, saga=Parcel), handler(weigh, saga=Parcel)):
        engine.handle(step, number="1", weight=3)
    engine.handle(handler(look, saga=Parcel), number="1")
    engine.handle(handler(end, saga=Parcel), number="1", weight=1)
    assert details(engine) == [
        {"changed": ["weight"], "values": {"weight": [0, 3]}},
        {"changed": ["weight"], "values": {"weight": [3, 6]}},
        {"changed": []},
        {},
    ]


def test_number_that_is_only_written_otherwise(engine: Engine) -> None:
    """The default of the first message is no float, and is read as one."""

    class Scale(State, correlate_by="number", history="values"):
        number: str
        grams: float = 0
        note: Any = 0

    def rest(scale: Scale, number: str, note: Any) -> None:
        scale.note = note

    engine.handle(starter(rest, saga=Scale), number="1", note=1)
    engine.handle(handler(rest, saga=Scale), number="1", note=True)
    engine.handle(handler(rest, saga=Scale), number="1", note=True)
    kept = [{"changed": ["note"], "values": {"note": note}} for note in ([0, 1], [1, True])]
    assert repr(details(engine, "scale")) == repr([*kept, {"changed": []}])


def test_last_message_of_an_instance_whose_final_state_is_kept(engine: Engine) -> None:
    engine.handle(starter(weigh, saga=Kept), number="1", weight=3)
    engine.handle(handler(end, saga=Kept), number="1", weight=1)
    engine.handle(starter(end, saga=Kept), number="1", weight=1)
    assert [detail["changed"] for detail in details(engine, "kept")] == [["weight"]] * 3


def test_saga_that_keeps_nothing(engine: Engine) -> None:
    engine.handle(starter(weigh, saga=Off), number="1", weight=3)
    assert details(engine, "off") == [{}]


def test_message_whose_step_does_not_run(engine: Engine) -> None:
    """It is missing, in the wrong status, or deferred, or it exists."""
    engine.handle(handler(weigh, saga=Parcel), number="1")
    engine.handle(starter(weigh, saga=Parcel), number="1", weight=3)
    engine.handle(starter(look, saga=Parcel, if_exists="ignore"), number="1")
    for policy in ("ignore", "defer"):
        engine.handle(handler(look, saga=Parcel, when=("closed",), if_not=policy), number="1")
    outcomes = [entry.outcome for entry in engine.backend.journal.history(["parcel"], "1", 99)]
    told = [outcome for outcome, detail in zip(outcomes, details(engine), strict=True) if "changed" in detail]
    assert (sorted(outcomes), told) == (["deferred", "ignored", "ignored", "ignored", "started"], ["started"])


def test_upgrade_is_part_of_what_has_changed(engine: Engine) -> None:
    engine.handle(starter(weigh, saga=Parcel), number="1", weight=3)
    engine.handle(handler(look, saga=Heavier), number="1")
    changed = details(engine)[1]
    assert changed["values"]["grams"] == [None, 3_000]
    assert set(changed["changed"]) == {"grams", "weight", "status", "marks", "text"}


def test_set_that_another_process_has_written(engine: Engine) -> None:
    """It comes back in another order."""

    def mark(parcel: Parcel, number: str) -> None:
        parcel.marks = set("abcdefgh")

    engine.handle(starter(mark, saga=Parcel), number="1")
    record = found(engine.backend, by_key("1", ("parcel",)))
    fields = json.loads(record.data)
    written = json.dumps({**fields, "marks": fields["marks"][::-1]})
    engine.backend.sagas.update(record, Change(("parcel",), 1, written, record.pending), effects(record))
    engine.handle(handler(weigh, saga=Parcel), number="1", weight=1)
    assert details(engine)[-1]["changed"] == ["weight"]
    assert found(engine.backend, by_key("1", ("parcel",))).data != written


def test_megabyte_of_state(engine: Engine) -> None:
    for number, text in enumerate(("x" * 900_000, "y" * 900_000, "y" * 900_000, "z")):
        step = handler if number else starter
        engine.handle(step(write, saga=Parcel), number="1", text=text)
    engine.handle(handler(write, saga=Parcel), number="1", text="y" * 2_000)
    assert details(engine) == [
        {"changed": "many"},
        {"changed": "many"},
        {"changed": []},
        {"changed": "many"},
        {"changed": ["text"], "values": {"text": ["z", None]}, "sizes": {"text": [0, 2_002]}},
    ]
