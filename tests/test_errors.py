"""Every error passes through pickle and Celery's result backends, and says when to retry."""

import dataclasses
import inspect
import pickle
import traceback
import weakref

import pytest
from celery import Celery
from celery.backends.base import Backend

from celery_sagas import errors
from celery_sagas.errors import Retry, SagaError

#: Arguments of every class: plain JSON values, as the library passes them.
SAMPLES = {
    errors.SagaError: ("text",),
    errors.ConfigurationError: ("saga_prefix is empty", "Set it to a name"),
    errors.MissingExtra: ("starlette cannot be imported", 'Run pip install "celery-sagas[web]"'),
    errors.UnsafeBackend: ("Redis may evict sagas", "Set maxmemory-policy to noeviction"),
    errors.DefinitionError: ("Order", "correlate_by names no field", "Name one of: order_id"),
    errors.MisuseError: ("a step was called inside a step", "Use order.send"),
    errors.HistoryError: ("order", "42", "it never existed", "Name another"),
    errors.MessageError: ("text",),
    errors.InvalidMessage: ("order.place_order", [["total", "Input should be a valid decimal"], ["", "Unexpected argument"]]),
    errors.AnswerNotKept: ("cart.add_item", "it has 70,000 bytes, and 65,536 are kept"),
    errors.InvalidState: ("order", "42", [["total", "Field required"]], "set the total"),
    errors.CorrelationError: ("", "order_id is null", "Order"),
    errors.TooManyDeliveries: ("order.place", "m1", 11, 10),
    errors.UndoFailed: ("trip", "7", "cancel_flight", 11, "Timeout: the airline is away"),
    errors.WrongStatus: ("order", "42", "order.packed", "placed", "when it is 'paid'", 60.0),
    errors.SagaNotFound: ("order", "tracking", "1Z", True),
    errors.WaitTimeout: ("order", "order_id", "42", 2.5, 3, False),
    errors.AskTimeout: ("cart", "cart_id", "c1", 2.0, 0, False, "cart.add_item", "m1"),
    errors.StepFailed: ("cart.add_item", "ValueError", "no such article", "5f0a"),
    errors.SagaAlreadyExists: ("order", "order_id", "42", "3f1c"),
    errors.KeyTaken: ("order", "tracking", "1Z", "3f1c", "41"),
    errors.PublishError: ("ConnectionError: refused", True),
    errors.Unconfirmed: ("ConnectionError: reset", True),
    errors.Unroutable: ("parcels", "express"),
    errors.StoreError: ("text",),
    errors.RevisionConflict: ("order", "42", "version"),
    errors.TooManyDeferred: ("order", "42", "order.packed", "100 messages wait with it, and no more can"),
    errors.AlreadyHandled: ("order.place_order", "9b2e"),
    errors.StillUnsent: ("order.place", "m1", 3),
    errors.StoreUnavailable: ("redis://localhost", "ConnectionError: refused"),
    errors.NewerState: ("order", "42", 3, 2, "pending map format"),
    errors.StepHeld: ("order.charge", "order", "ann", "the bank is closed"),
    errors.UnreadableState: ("order", "42", "Field required: total", "Fix the record"),
    errors.UnreadableItem: ("shop.store", "d1", "m1", [["celsius", "Field required"]]),
    errors.ItemRejected: ("shop.store", "d1", "m1", "no such shop"),
    errors.BufferFull: ("shop.store", "d1", 1000, ["m1", "m2"]),
    errors.LeaseLost: ("shop.store", "d1", "5f0a"),
    errors.NotBuffered: ("text",),
    errors.NothingBuffered: ("shop.store", "d1"),
    errors.ItemNotBuffered: ("shop.store", "d1", "42", 7, "order_id"),
}

RETRY = {
    Retry.AT_ONCE: {errors.RevisionConflict},
    Retry.DONE: {errors.AlreadyHandled, errors.LeaseLost},
    Retry.LATER: {
        errors.PublishError,
        errors.Unconfirmed,
        errors.Unroutable,
        errors.StillUnsent,
        errors.StoreUnavailable,
        errors.NewerState,
        errors.TooManyDeferred,
        errors.StepHeld,
        errors.BufferFull,
    },
}


def _classes() -> list[type[SagaError]]:
    members = [member for _, member in inspect.getmembers(errors, inspect.isclass)]
    return [member for member in members if issubclass(member, SagaError)]


def _sample(cls: type[SagaError]) -> SagaError:
    assert cls in SAMPLES, f"{cls.__name__} has no sample: add its arguments to SAMPLES in {__file__}"
    return cls(*SAMPLES[cls])


def _assert_same(back: BaseException, error: SagaError) -> None:
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


each_class = pytest.mark.parametrize("cls", _classes(), ids=lambda cls: cls.__name__)
each_with_fields = pytest.mark.parametrize("cls", [*filter(dataclasses.is_dataclass, _classes())], ids=lambda cls: cls.__name__)


@each_class
def test_error_survives_pickle(cls):
    """Prefork pools and pickle result backends pass errors on."""
    error = _sample(cls)
    _assert_same(pickle.loads(pickle.dumps(error)), error)


@each_class
def test_error_survives_celerys_json_backend(cls):
    """Celery rebuilds an exception as ``cls(*exc.args)`` from JSON."""
    with Celery(set_as_current=False) as app:
        backend = Backend(app=app, url="disabled://", serializer="json")
        error = _sample(cls)
        stored = backend.decode(backend.encode(backend.prepare_exception(error)))
        _assert_same(backend.exception_to_python(stored), error)


@each_class
def test_error_passes_its_arguments_on_unchanged(cls):
    """So that ``cls(*exc.args)`` is the same error."""
    assert _sample(cls).args == SAMPLES[cls]


@each_with_fields
def test_keywords_and_defaults_are_arguments_too(cls):
    """Also what was not given by position is there when the error is built again."""
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    error = cls(**dict(zip(names, SAMPLES[cls], strict=True)))
    _assert_same(error, _sample(cls))
    _assert_same(cls(*error.args), error)


@each_class
def test_error_is_an_exception_like_any_other(cls):
    """Equal to itself alone, hashable, with a traceback, notes and weak references, and shown with its arguments."""
    error = _sample(cls)
    assert error != _sample(cls)
    assert len({error, error, _sample(cls)}) == 2
    assert repr(error) == f"{cls.__name__}{SAMPLES[cls]!r}".replace(",)", ")")
    error.add_note("while testing")
    assert weakref.ref(error)() is error
    with pytest.raises(cls) as caught:
        raise error from ValueError("the cause")
    assert caught.value.__traceback__ is not None
    assert isinstance(caught.value.__cause__, ValueError)
    text = "".join(traceback.format_exception(error))
    assert str(error) in text
    assert "while testing" in text


@pytest.mark.parametrize(
    "error", [_sample(errors.NewerState), _sample(errors.Unroutable)], ids=lambda error: type(error).__name__
)
def test_error_has_what_its_base_has(error):
    """Who catches ``StoreUnavailable`` or ``PublishError`` may read their fields."""
    assert [field.name for field in dataclasses.fields(type(error).__base__) if not hasattr(error, field.name)] == []


@each_class
def test_retry_is_a_property_of_the_class(cls):
    """Never, unless the table above says otherwise."""
    expected = next((retry for retry, classes in RETRY.items() if cls in classes), Retry.NEVER)
    assert cls.retry is expected


@each_class
def test_text_is_a_sentence(cls):
    """What happened, and what to do next."""
    text = str(_sample(cls))
    assert text == "text" or text.endswith(".")
    assert "None" not in text


@pytest.mark.parametrize(
    "cls", [errors.ConfigurationError, errors.MisuseError, errors.DefinitionError], ids=lambda cls: cls.__name__
)
def test_remedy_may_be_left_out(cls):
    """Then the text ends with the problem."""
    error = cls(*SAMPLES[cls][:-1])
    _assert_same(pickle.loads(pickle.dumps(error)), error)
    assert str(error).endswith(f"{SAMPLES[cls][-2]}.")


def test_key_taken_of_an_older_process() -> None:
    """It knew no key of the other instance."""
    back = errors.KeyTaken(*SAMPLES[errors.KeyTaken][:-1])

    assert (back.instance_id, back.key) == ("3f1c", "")
