"""The session of a message: what it hands on, and what may not run inside it."""

import pytest

from celery_sagas.core.sending import Sending, SerializedMessage
from celery_sagas.engine.session import MAX_CAUSATION, Session, refuse_inline
from celery_sagas.errors import MisuseError


def sending(step: str = "order.place") -> Sending:
    """Return what a handler sends with."""
    return Sending(step, "m1", lambda message, next_id: SerializedMessage(next_id(), "", "task", "{}"))


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
    """Both would commit, whatever became of the outer one."""
    inner, outer = Session("m2"), Session("m1")
    refuse_inline("order.place", [inner, outer])

    with outer.running(sending()), pytest.raises(MisuseError, match=r"order\.add was called inside order\.place"):
        refuse_inline("order.add", [inner, outer])
    refuse_inline("order.add", [inner, outer])


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
