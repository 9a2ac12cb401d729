"""What a handler may do beside changing the state."""

from uuid import UUID, uuid4

import pytest

from celery_sagas.core.context import NO_MESSAGE, SagaView, StepContext
from celery_sagas.core.sending import Sending, SerializedMessage
from celery_sagas.errors import MisuseError


def freeze(signature, next_id):
    """Draw an id for each character, as a chain does for each of its tasks; the last one is the message's."""
    ids = [next_id() for _ in signature]
    return SerializedMessage(ids[0], ids[-1], signature, "{}")


def sent(*signatures, step="order.place", message_id="6f1f9a9e-9a54-4b9b-b9b5-6f4a4a2f0b52"):
    sending = Sending(step, message_id, freeze)
    ids = [sending.send(signature) for signature in signatures]
    assert [message.answer_id for message in sending.messages] == ids
    return ids


def test_ids_are_derived_from_the_message():
    """A second run sends under the same ids, so that a saga step drops the repeat."""
    assert sent("a", "b") == sent("a", "b")
    assert all(UUID(each).version == 5 for each in sent("a", "b"))


def test_ids_differ_by_place_step_and_message():
    ids = [*sent("a", "b"), *sent("a", step="order.other"), *sent("a", message_id=str(uuid4())), *sent("a", message_id="m-1")]
    assert len(set(ids)) == 5


def test_every_id_is_counted():
    """Over all that the run sends: a chain takes one for each task."""
    assert sent("ab", "c") == [sent("a", "b", "c")[1], sent("a", "b", "c")[2]]


@pytest.mark.parametrize("message_id", ["m-1", "", "größe", "6F1F9A9E9A544B9BB9B56F4A4A2F0B52"])
def test_any_task_id_will_do(message_id):
    assert sent("a", message_id=message_id) == sent("a", message_id=message_id)


def test_nothing_is_sent_after_the_step_has_ended():
    sending = Sending("order.place", "m-1", freeze)
    sending.closed = True
    with pytest.raises(MisuseError, match="had ended"):
        sending.send("a")
    assert sending.messages == []


def test_what_fails_to_encode_is_not_sent():
    sending = Sending("order.place", "m-1", lambda signature, next_id: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sending.send("a")
    assert sending.messages == []


def test_context_without_a_step():
    view = SagaView("i-1", "order", "1", 1, False, None, None, NO_MESSAGE)
    ended = Sending("order.place", "m-1", freeze)
    ended.closed = True
    for sending in (None, ended):
        with pytest.raises(MisuseError, match=r"send\(\) was called outside a step"):
            StepContext(view, sending).require_sending("send")


def test_view_is_immutable():
    view = SagaView("i-1", "order", "1", 1, False, None, None, NO_MESSAGE)
    with pytest.raises(AttributeError):
        view.version = 2
