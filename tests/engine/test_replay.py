"""Replay: today's code handles a history again."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from celery_sagas.core.history import History
from celery_sagas.core.pending import read_pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import Addressed, ReturnAddress, Target
from celery_sagas.core.state import State
from celery_sagas.core.step import deferred_step
from celery_sagas.engine.history import history_of
from celery_sagas.engine.replay import Replayed, replay
from celery_sagas.errors import HistoryError
from celery_sagas.stores.records import KEY, Lookup
from tests.engine.conftest import Engine, handler, send, starter


class Parcel(State, correlate_by="number", also_by="code", history="messages"):
    """A saga that keeps its history."""

    number: str
    code: str | None = None
    weight: int = 0
    pin: str = Field("", repr=False)
    at: Any = None
    id: str = ""
    sent: str = ""
    requester: str | None = None


def weigh(parcel: Parcel, number: str, weight: int = 1, pin: Annotated[str, Field(repr=False)] = "") -> None:
    """Start."""
    parcel.weight += weight
    parcel.pin = pin
    parcel.at = parcel.saga.created_at and parcel.saga.created_at.isoformat()
    parcel.id = parcel.saga.id
    parcel.sent = send(parcel, "mail")
    parcel.requester = parcel.saga.requester
    parcel.code = f"c{number}"


def deliver(parcel: Parcel, code: str) -> None:
    """End."""
    parcel.complete()


def heavier(parcel: Parcel, number: str, weight: int = 1, pin: Annotated[str, Field(repr=False)] = "") -> None:
    weigh(parcel, number, weight + 1, pin)


def failing(parcel: Parcel, number: str, weight: int = 1, pin: Annotated[str, Field(repr=False)] = "") -> None:
    raise RuntimeError(f"no scales for {pin}")


@pytest.fixture(autouse=True)
def definitions() -> Iterator[None]:
    """The definitions of these tests alone."""
    kept = dict(registry.sagas), dict(registry.steps)
    registry.sagas.clear()
    registry.steps.clear()
    assert Parcel.__saga__ is not None
    registry.add_saga(Parcel.__saga__)
    yield
    registry.sagas, registry.steps = kept


def define(*steps: Any) -> None:
    registry.steps.clear()
    for step in steps:
        registry.add_step(step)


def named(function: Callable[..., Any], name: str, **options: Any) -> Any:
    function.__name__ = name
    return starter(function, saga=Parcel, **options)


WEIGH, DELIVER = starter(weigh, saga=Parcel), handler(deliver, saga=Parcel)
REQUEST = ReturnAddress("shop", "i1", "r1", Target("shop.done", ("secret",)))


def history(engine: Engine) -> History:
    engine.handle(WEIGH, id="m1", number="1", weight=2, pin="secret-pin", asked_by=REQUEST)
    engine.handle(WEIGH, id="m2", number="1", weight=3)
    engine.handle(DELIVER, id="m3", code="c1")
    kept = history_of(engine.backend.journal, Parcel.__saga__, "1")  # type: ignore[arg-type]
    return History.from_text(kept.to_text())


def run(engine: Engine, kept: History) -> Replayed:
    def call(function: Any, first: Any, /, **arguments: Any) -> Any:
        return function(first, **arguments)

    return replay(kept, engine.services.terms, lambda step, session: call)


def test_the_same_code_does_the_same(engine: Engine) -> None:
    """With the instance's id, its times and its requester; the alternate key finds it."""
    define(WEIGH, DELIVER)
    replayed = run(engine, history(engine))
    assert (replayed.count, replayed.difference, replayed.stopped, replayed.state) == (3, None, "", None)
    assert str(replayed) == "parcel '1': 3 messages, and the same state after each"


def test_nothing_is_published_or_stored(engine: Engine) -> None:
    define(WEIGH, DELIVER)
    kept = history(engine)
    published, entries = len(engine.publisher.published), len(engine.backend.journal.history(["parcel"], "1", 99))
    run(engine, kept)
    assert len(engine.publisher.published) == published
    assert len(engine.backend.journal.history(["parcel"], "1", 99)) == entries


def test_the_first_difference_is_shown(engine: Engine) -> None:
    kept = history(engine)
    define(named(heavier, "weigh"), DELIVER)
    replayed = run(engine, kept)
    assert replayed.difference is not None
    assert (replayed.difference.number, dict(replayed.difference.fields)) == (1, {"weight": 3})
    assert str(replayed).splitlines() == [
        f"parcel '1' differs at message 1 (parcel.weigh, {kept.messages[0].now:%Y-%m-%d %H:%M:%S} UTC): another state: weight",
        "  weight is 3 today",
        "  hidden, so that other values stood in: pin of parcel.weigh",
    ]


def test_an_error_of_today_is_a_difference(engine: Engine) -> None:
    kept = history(engine)
    define(named(failing, "weigh"), DELIVER)
    text = str(run(engine, kept))
    assert "today it raises RuntimeError: no scales for (hidden)" in text
    assert "secret-pin" not in text


def test_a_step_that_is_gone_is_a_difference(engine: Engine) -> None:
    kept = history(engine)
    define(WEIGH)
    replayed = run(engine, kept)
    assert replayed.difference is not None
    assert (replayed.difference.number, replayed.difference.problem) == (3, "there is no such step today")


def test_another_outcome_is_a_difference(engine: Engine) -> None:
    kept = history(engine)
    define(starter(weigh, saga=Parcel, if_exists="ignore"), DELIVER)
    assert "it was handled, and today it is ignored (exists)" in str(run(engine, kept))


def test_an_instance_that_lives_on_is_returned(engine: Engine) -> None:
    define(WEIGH, DELIVER)
    kept = history(engine)
    state: Any = run(engine, kept.model_copy(update={"messages": kept.messages[:2]})).state
    assert (state.weight, state.saga.version, state.id) == (5, 2, kept.instance)


def test_fields_that_are_new_or_gone_are_no_difference(engine: Engine) -> None:
    define(WEIGH, DELIVER)
    kept = history(engine)
    for message in kept.messages:
        del message.fields["weight"]
        message.fields["gone"] = "0123456789ab"
    assert run(engine, kept).difference is None


def test_arguments_that_were_not_kept_end_a_replay(engine: Engine) -> None:
    define(WEIGH, DELIVER)
    engine.handle(WEIGH, number="1")
    engine.handle(WEIGH, number="1", pin="x", weight=1)
    kept = history_of(engine.backend.journal, Parcel.__saga__, "1")  # type: ignore[arg-type]
    kept.messages[1].arguments, kept.messages[1].omitted = None, "they were too large"
    replayed = run(engine, kept)
    assert (replayed.count, replayed.stopped, replayed.difference) == (1, "they were too large", None)
    assert str(replayed) == "parcel '1' cannot be replayed beyond message 1: they were too large"


def test_a_hidden_value_that_nothing_stands_in_for_ends_a_replay(engine: Engine) -> None:
    def strict(parcel: Parcel, number: str, pin: Annotated[str, Field(repr=False, pattern="^[0-9]{16}$")]) -> None: ...

    step = named(strict, "weigh")
    define(step)
    engine.handle(step, number="1", pin="1234123412341234")
    kept = history_of(engine.backend.journal, Parcel.__saga__, "1")  # type: ignore[arg-type]
    assert run(engine, kept).stopped.startswith("pin: hidden, and nothing that could stand in fits")


def test_an_unknown_saga_is_refused(engine: Engine) -> None:
    kept = history(engine)
    registry.sagas.clear()
    with pytest.raises(HistoryError, match="there is no such saga"):
        run(engine, kept)


class Crate(State, correlate_by="number", status_by="status", history="messages"):
    """A saga with a status that keeps its history."""

    number: str
    status: Literal["open", "shut"] = "open"
    packed: int = 0
    waiting: int = 0


def make(crate: Crate, number: str) -> None:
    """Start."""


def shut(crate: Crate, number: str) -> None:
    """Change the status."""
    crate.waiting = len(crate.saga.deferred)
    crate.status = "shut"


def seal(crate: Crate, number: str, seals: int) -> None:
    """Need the status."""
    crate.packed += seals


def pack(crate: Crate, number: str, place: int) -> None:
    """Need those before it."""
    crate.packed += 1


class TestStatus:
    MAKE, SHUT = starter(make, saga=Crate), handler(shut, saga=Crate)

    def seal(self, if_not: str, **moment: Any) -> Any:
        return handler(seal, saga=Crate, when="shut", if_not=if_not, **moment)

    def pack(self) -> Any:
        return handler(pack, saga=Crate, when=lambda crate, number, place: place == crate.packed, if_not="defer")

    def history(self, engine: Engine) -> History:
        kept = history_of(engine.backend.journal, Crate.__saga__, "1")  # type: ignore[arg-type]
        return History.from_text(kept.to_text())

    def replayed(self, engine: Engine) -> list[str]:
        """Return the outcomes of the messages, once they are the same again."""
        kept = self.history(engine)
        replayed = run(engine, kept)
        assert (replayed.count, replayed.difference, replayed.stopped) == (len(kept.messages), None, "")
        return [message.outcome for message in kept.messages]

    @pytest.fixture(autouse=True)
    def saga(self) -> None:
        assert Crate.__saga__ is not None
        registry.add_saga(Crate.__saga__)

    @pytest.mark.parametrize(("if_not", "outcome"), [("ignore", "ignored"), ("defer", "deferred")])
    def test_message_in_another_status(self, engine: Engine, if_not: str, outcome: str) -> None:
        step = self.seal(if_not)
        define(self.MAKE, self.SHUT, step)
        engine.handle(self.MAKE, number="1")
        engine.handle(step, id="m1", number="1", seals=2)
        engine.handle(self.SHUT, number="1")

        assert self.replayed(engine) == ["started", outcome, "handled"]

    def test_message_that_is_deferred_and_handled(self, engine: Engine) -> None:
        step = self.seal("defer", defer_for=60)
        define(self.MAKE, self.SHUT, step)
        engine.handle(self.MAKE, number="1")
        engine.handle(step, id="m1", number="1", seals=2)
        engine.handle(self.SHUT, number="1")
        engine.handle(step, id="m1", number="1", seals=2)

        assert self.replayed(engine) == ["started", "deferred", "handled", "handled"]
        assert run(engine, self.history(engine)).state.packed == 2  # type: ignore[union-attr]

    def test_function_that_decides(self, engine: Engine) -> None:
        step = self.pack()
        define(self.MAKE, step)
        engine.handle(self.MAKE, number="1")
        for place in (2, 1, 0, 1, 2):
            engine.handle(step, id=f"m{place}", number="1", place=place)

        assert self.replayed(engine) == ["started", "deferred", "deferred", "handled", "handled", "handled"]

    def test_other_policy_of_today(self, engine: Engine) -> None:
        """It is the first difference."""
        step = self.seal("defer")
        define(self.MAKE, self.SHUT, step)
        engine.handle(self.MAKE, number="1")
        engine.handle(step, id="m1", number="1", seals=2)
        define(self.MAKE, self.SHUT, self.seal("ignore"))

        difference = run(engine, self.history(engine)).difference
        assert difference is not None
        assert (difference.number, difference.problem) == (2, "it was deferred, and today it is ignored (status)")

    def test_end_of_the_waiting(self, engine: Engine) -> None:
        assert Crate.__saga__ is not None
        step, wake = self.seal("defer", defer_for=60), deferred_step(Crate.__saga__)
        define(self.MAKE, self.SHUT, step, wake)
        engine.handle(self.MAKE, number="1")
        engine.handle(step, id="m1", number="1", seals=2)
        record = engine.backend.sagas.find(Lookup(("crate",), KEY, "1")).record
        assert record is not None
        (waiting,) = read_pending(record.pending).deferred
        engine.handle(wake, id=waiting.wake, addressed=Addressed(record.id, waiting.wake))

        assert self.replayed(engine) == ["started", "deferred", "handled"]
