"""The session of a message: nested, closed, and what it hands on."""

import threading
from collections.abc import Iterator

import pytest

from celery_sagas.core.context import Frozen, Sending
from celery_sagas.engine.session import MAX_CAUSATION, Session, close_session, current_session, open_session
from celery_sagas.errors import MisuseError


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No session is left open."""
    yield
    assert current_session() is None


def sending(step: str = "order.place") -> Sending:
    """Return what a handler sends with."""
    return Sending(step, "m1", lambda message, next_id: Frozen(next_id(), "", "task", "{}"))


def test_sessions_nest() -> None:
    """NP-03: one for each message; in eager mode one runs inside another."""
    outer = open_session("m1", {})
    inner = open_session("m2", {})
    assert current_session() is inner

    close_session(inner)
    assert current_session() is outer
    close_session(outer)


def test_closing_the_outer_session_closes_what_was_left_open_inside() -> None:
    """Whatever happened."""
    outer = open_session("m1", {})
    open_session("m2", {})

    close_session(outer)


def test_threads_have_sessions_of_their_own() -> None:
    """Per task, not per process."""
    seen: list[Session | None] = []
    session = open_session("m1", {})
    thread = threading.Thread(target=lambda: seen.append(current_session()))
    thread.start()
    thread.join()
    close_session(session)

    assert seen == [None]


def test_causation_is_a_copy() -> None:
    """What a step adds does not change the message's headers."""
    headers = {"order": "1"}
    session = Session("m1", dict(headers))
    session.belongs_to("parcel", "2")
    assert headers == {"order": "1"}


def test_belongs_to_one_instance_of_each_saga() -> None:
    """The newest."""
    session = Session("m1", {"order": "1", "parcel": "2"})

    session.belongs_to("order", "3")

    assert list(session.causation.items()) == [("parcel", "2"), ("order", "3")]


def test_causation_is_limited() -> None:
    """The oldest is left out."""
    session = Session("m1", {f"saga-{n}": str(n) for n in range(MAX_CAUSATION)})

    session.belongs_to("order", "x")

    assert len(session.causation) == MAX_CAUSATION == 8
    assert "saga-0" not in session.causation
    assert session.causation["order"] == "x"


def test_step_inside_a_step_is_refused() -> None:
    """WV-06: both would commit, whatever became of the outer one."""
    outer = Session("m1")
    nested = Session("m2", outer=Session("m3", outer=outer))
    nested.refuse_inline("order.place")

    with outer.running(sending()), pytest.raises(MisuseError, match=r"order\.add was called inside order\.place"):
        nested.refuse_inline("order.add")
    nested.refuse_inline("order.add")


def test_sending_ends_with_the_handler() -> None:
    """Also when it raised."""
    session, messages = Session("m1"), sending()

    def fail() -> None:
        with session.running(messages):
            messages.send("a")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert session.sending is None
    with pytest.raises(MisuseError):
        messages.send("b")
