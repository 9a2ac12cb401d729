"""The final state that the journal keeps of a finished instance."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import Field, SecretStr
from pydantic_core import from_json, to_json

from celery_sagas.core.state import State
from celery_sagas.engine import polling
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.query import outcome_of, wait_for
from celery_sagas.errors import InvalidState, MisuseError, NewerState, UnreadableState
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import Engine, handler, starter

DAY_MS = 86_400_000


class Order(State, correlate_by="order_id", keep=timedelta(days=1)):
    """An order whose final state is kept."""

    order_id: str
    items: list[str] = []
    receipt: str = Field("", repr=False)
    total: int = 0


class Plain(State, correlate_by="order_id"):
    """One whose final state is not."""

    order_id: str


class Renewed(State, correlate_by="order_id", name="order", schema_version=2, keep=timedelta(days=1)):
    """The order in a later version."""

    order_id: str
    goods: list[str]

    @classmethod
    def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
        return {"order_id": data["order_id"], "goods": [f"{each} of {schema_version}" for each in data["items"]]}


class Brief(State, correlate_by="order_id", name="order", keep=timedelta(hours=1)):
    """The order, kept for a shorter time."""

    order_id: str


class Unkept(State, correlate_by="order_id", name="order"):
    """The order, which is not kept any more."""

    order_id: str


def place(order: Any, order_id: str) -> None:
    """Start."""


def finish(order: Any, order_id: str, item: str = "book") -> None:
    """End."""
    order.items.append(item)
    order.receipt = "r-1"
    order.complete()


def end(order: Any, order_id: str) -> None:
    """End."""
    order.complete()


PLACE, FINISH, AT_ONCE = starter(place, saga=Order), handler(finish, saga=Order), starter(finish, saga=Order)


def ended(engine: Engine, saga: type[State] = Order) -> Outcome[Any]:
    """Return the outcome of the order 42."""
    definition = saga.__saga__
    assert definition is not None
    outcome = outcome_of(engine.backend, definition, "42", {})
    assert outcome is not None
    return outcome


def detail(engine: Engine) -> dict[str, Any]:
    """Return the details of the newest entry."""
    found: dict[str, Any] = from_json(engine.entries()[-1].detail)
    return found


def rewrite(engine: Engine, **final: Any) -> None:
    """Have the journal keep another final state of the order 42, or parts of one."""
    journal = engine.backend.sagas._state.journal  # type: ignore[attr-defined]
    handling, entry = next(each for each in journal.items() if each[1].outcome == "completed")
    kept = from_json(entry.detail)
    kept["final"] = {**kept["final"], **final} if final else None
    journal[handling] = entry._replace(detail=to_json(kept).decode())


class TestState:
    def test_it_is_the_state_after_the_last_message(self, engine: Engine, clock: Clock) -> None:
        engine.handle(PLACE, order_id="42")
        clock.advance(5_000)
        engine.handle(FINISH, order_id="42")

        outcome = ended(engine)
        state = outcome.state
        assert isinstance(state, Order)
        assert (state.order_id, state.items, state.receipt) == ("42", ["book"], "r-1")
        assert (state.saga.id, state.saga.key, state.saga.version, state.saga.is_new) == (outcome.instance_id, "42", 2, False)
        assert state.saga.updated_at == outcome.at
        assert state.saga.created_at == datetime.fromtimestamp(clock() / 1000, UTC) - timedelta(seconds=5)

    def test_instance_that_completes_in_its_first_message(self, engine: Engine) -> None:
        engine.handle(AT_ONCE, order_id="42")

        outcome = ended(engine)
        assert outcome.state.items == ["book"]
        assert (outcome.is_new, outcome.state.saga.version) == (True, 1)
        assert outcome.state.saga.created_at == outcome.state.saga.updated_at == outcome.at

    def test_copies_are_fresh_and_read_only(self, engine: Engine) -> None:
        engine.handle(AT_ONCE, order_id="42")
        state = ended(engine).state
        state.items.append("mine")

        assert ended(engine).state.items == ["book"]
        with pytest.raises(MisuseError, match="this copy of order is read-only"):
            state.total = 5
        with pytest.raises(MisuseError, match="outside a step"):
            state.complete()

    def test_it_is_that_of_the_newest_instance(self, engine: Engine, clock: Clock) -> None:
        for item in ("old", "new"):
            engine.handle(AT_ONCE, order_id="42", item=item)
            clock.advance(1)
        assert ended(engine).state.items == ["new"]

    def test_wait_returns_the_same(self, engine: Engine) -> None:
        engine.handle(AT_ONCE, order_id="42")
        outcome = polling.finish(wait_for(engine.backend, Order.__saga__, "42", {}, until="completed", timeout=0))  # type: ignore[arg-type]
        assert outcome.state.items == ["book"]
        assert outcome == ended(engine)

    def test_outcome_of_the_message_itself_has_none(self, engine: Engine) -> None:
        """As a signal carries it."""
        assert engine.handle(AT_ONCE, order_id="42").state is None

    def test_hidden_field_is_kept_and_not_shown(self, engine: Engine) -> None:
        """As in the stored state, and as in the state's own representation."""
        engine.handle(AT_ONCE, order_id="42")
        outcome = ended(engine)
        assert outcome.state.receipt == "r-1"
        assert "r-1" not in repr(outcome)


class TestTime:
    def test_it_is_over_by_the_stores_clock(self, engine: Engine, clock: Clock) -> None:
        engine.handle(AT_ONCE, order_id="42")
        clock.advance(DAY_MS - 1)
        assert ended(engine).state is not None

        clock.advance(1)
        outcome = ended(engine)
        assert (outcome.state, outcome.step) == (None, AT_ONCE.name)

    def test_todays_declaration_counts(self, engine: Engine, clock: Clock) -> None:
        engine.handle(AT_ONCE, order_id="42")
        assert ended(engine, Unkept).state is None
        assert ended(engine, Brief).state is not None
        clock.advance(DAY_MS // 24)
        assert ended(engine, Brief).state is None
        assert ended(engine).state is not None

    def test_without_keep_nothing_is_kept(self, engine: Engine) -> None:
        def finish(order: Plain, order_id: str) -> None:
            order.complete()

        engine.handle(starter(finish, saga=Plain), order_id="42")
        (entry,) = engine.backend.journal.history(["plain"], "42", 9)
        assert entry.detail == "{}"
        assert ended(engine, Plain).state is None

    def test_instance_that_completed_before_keep_was_declared(self, engine: Engine) -> None:
        engine.handle(starter(end, saga=Unkept), order_id="42")
        assert ended(engine).state is None

    def test_the_clock_is_not_asked_in_vain(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        engine.handle(starter(end, saga=Unkept), order_id="42")
        monkeypatch.setattr(engine.backend.outbox, "time", lambda: pytest.fail("the clock was asked"))
        ended(engine)


class TestRefused:
    """A final state is one that could be stored: else the message fails, and nothing is written."""

    @pytest.mark.parametrize("record", [False, True])
    def test_state_that_could_not_be_loaded(self, engine: Engine, record: bool) -> None:
        def spoil(order: Any, order_id: str) -> None:
            order.items = [object()]
            order.complete()

        if record:
            engine.handle(PLACE, order_id="42")
        with pytest.raises(InvalidState, match="items"):
            engine.handle(starter(spoil, saga=Order), order_id="42")
        assert len(engine.entries()) == record

    def test_field_that_was_never_set(self, engine: Engine) -> None:
        with pytest.raises(InvalidState, match="goods: it is not set"):
            engine.handle(starter(end, saga=Renewed), order_id="42")

    def test_key_that_was_changed(self, engine: Engine) -> None:
        def rename(order: Any, order_id: str) -> None:
            order.order_id = "43"
            order.complete()

        with pytest.raises(InvalidState, match="the correlation key was changed"):
            engine.handle(starter(rename, saga=Order), order_id="42")

    def test_state_that_is_too_large(self, engine: Engine) -> None:
        engine.services = replace(engine.services, terms=replace(engine.services.terms, state_bytes=1_000))
        engine.handle(AT_ONCE, order_id="42", item="x" * 900)
        assert ended(engine).state.items == ["x" * 900]
        with pytest.raises(InvalidState, match="saga_max_state_bytes allows 1000 together"):
            engine.handle(AT_ONCE, order_id="43", item="x" * 1_000)

    def test_secret_that_would_be_lost(self, engine: Engine) -> None:
        class Vault(State, correlate_by="order_id", keep=60):
            order_id: str
            secret: SecretStr = SecretStr("s3")

        with pytest.raises(InvalidState, match="secret"):
            engine.handle(starter(end, saga=Vault), order_id="42")


class TestReading:
    def test_older_state_is_upgraded(self, engine: Engine) -> None:
        engine.handle(AT_ONCE, order_id="42")
        state = ended(engine, Renewed).state
        assert isinstance(state, Renewed)
        assert state.goods == ["book of 1"]

    def test_newer_state(self, engine: Engine) -> None:
        engine.handle(AT_ONCE, order_id="42")
        rewrite(engine, schema_version=2)
        with pytest.raises(NewerState):
            ended(engine)

    def test_unreadable_entry(self, engine: Engine) -> None:
        """It is nested too deeply; without a final state to read it is read without its reason."""
        engine.handle(AT_ONCE, order_id="42")
        journal = engine.backend.sagas._state.journal  # type: ignore[attr-defined]
        ((handling, entry),) = journal.items()
        journal[handling] = entry._replace(detail="[" * 300 + "]" * 300)
        with pytest.raises(UnreadableState, match="the entry of its completion"):
            ended(engine)
        outcome = ended(engine, Unkept)
        assert (outcome.kind, outcome.reason, outcome.state) == ("completed", "", None)

    @pytest.mark.parametrize(
        "final",
        [
            {"data": "no JSON"},
            {"data": '{"order_id": "42", "total": "secret"}'},
            {"data": 3},
            {"data": None},
            {"schema_version": "secret"},
            {"created_at": "secret"},
        ],
    )
    def test_unreadable_state(self, engine: Engine, final: dict[str, Any]) -> None:
        engine.handle(AT_ONCE, order_id="42")
        rewrite(engine, **final)
        with pytest.raises(UnreadableState) as caught:
            ended(engine)
        assert "order" in str(caught.value)
        assert "'42'" in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_final_state_that_is_none(self, engine: Engine) -> None:
        engine.handle(AT_ONCE, order_id="42")
        rewrite(engine)
        assert ended(engine).state is None

    def test_fields_of_newer_code_are_kept(self, engine: Engine) -> None:
        engine.handle(PLACE, order_id="42")
        record = engine.record()
        assert record is not None
        engine.rewrite(data=record.data.replace("{", '{"later":1,', 1))
        engine.handle(FINISH, order_id="42")

        assert from_json(detail(engine)["final"]["data"])["later"] == 1
        assert ended(engine).state.items == ["book"]
