"""The history of an instance: the messages that it handled, and digests of the state after each, as its journal keeps them."""

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from celery_sagas.core.codec import encoded_fields, validation_problems
from celery_sagas.core.comparison import fields_of, parts_of
from celery_sagas.core.context import SagaView
from celery_sagas.core.hidden import HIDDEN, mark, marked, replaced
from celery_sagas.core.nesting import LEVELS_KEPT, is_deeper
from celery_sagas.core.requests.requests import Addressed
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import BUGS, HistoryError, problems_text

#: The most bytes of arguments that the journal keeps of one message.
MOST_BYTES: Final = 16_384
#: How many characters a digest has.
_DIGEST: Final = 12


class SentTo(BaseModel):
    """The address of a timeout, or of the outcome of a request."""

    id: str  #: of the timeout, or of the request
    came: str = ""  #: the kind of the request's outcome; empty for a timeout
    has_value: bool = True
    failure: str = ""  #: the kind of a failure that a process notified of


class AskedBy(BaseModel):
    """The instance that waits for the answer to a message."""

    saga: str
    instance: str
    request: str
    progress: bool = False  #: whether it takes interim answers


class HandledMessage(BaseModel):
    """A message that an instance has handled, with everything that is needed to handle it again."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    step: str
    id: str
    at: datetime  #: when it was committed, by the store's clock
    now: datetime  #: what ``order.saga.now`` was
    created_at: datetime | None = None  #: what ``order.saga.created_at`` was
    updated_at: datetime | None = None  #: what ``order.saga.updated_at`` was
    outcome: str
    version: int  #: of the instance after it
    arguments: dict[str, Any] | None = None  #: by name, in values of JSON; ``None``: they were not kept
    omitted: str = ""  #: why they were not kept
    hidden: list[str] = Field(default_factory=list)  #: the arguments that are hidden, or have hidden parts
    address: SentTo | None = None
    asked_by: AskedBy | None = None
    late: bool = False  #: it answers a request that was reported as failed before
    fields: dict[str, str] = Field(default_factory=dict)  #: digests of the fields of the state after it
    scheduled: list[tuple[str, str, str]] = Field(default_factory=list)  #: step, name and id of each timeout that was made
    requested: list[tuple[str, str, str]] = Field(default_factory=list)  #: task, step and id of each request that was made


class History(BaseModel):
    """The messages that one instance has handled, from the one that began it."""

    format: Literal[1] = 1
    saga: str  #: the stored name
    key: str  #: the canonical text of the correlation key
    instance: str  #: the instance's id
    messages: list[HandledMessage] = Field(min_length=1)

    def to_text(self) -> str:
        """Return it as JSON text."""
        messages = [message.model_dump(mode="json", exclude_defaults=True) for message in self.messages]
        return json.dumps({**self.model_dump(exclude={"messages"}), "messages": messages}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Return the history that JSON text describes, in UTF-8.

        Raises:
            HistoryError: It describes none that this code can read.
        """
        try:
            return cls.model_validate_json(text.removeprefix(BOM_UTF8) if isinstance(text, bytes) else text)
        except ValidationError as exc:
            problem = f"it is no history that this code can read: {problems_text(validation_problems(exc))}"
            raise HistoryError("", "", problem, "Write it with: celery sagas export SAGA KEY") from exc


def keep_message(
    step: StepDefinition,
    bound: Mapping[str, Any],
    *,
    view: SagaView,
    sent_to: Addressed | None,
    asked_by: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what the journal keeps of a message, in values of JSON.

    Args:
        step: Its step.
        bound: Its arguments by name, as received.
        view: Of the instance, as its step saw it.
        sent_to: The address of a timeout, or of the outcome of a request.
        asked_by: The return address of a message that requests an answer.
    """
    times = {"now": view.message.at, "created_at": view.created_at, "updated_at": view.updated_at}
    kept: dict[str, Any] = {name: time.isoformat() for name, time in times.items() if time}
    kept |= _kept_arguments(step, bound)
    if sent_to:
        address = SentTo(id=sent_to.id, came=sent_to.came, has_value=sent_to.has_value, failure=sent_to.failure)
        kept["address"] = address.model_dump(exclude_defaults=True)
    if asked_by:
        kept["asked_by"] = {name: asked_by[name] for name in ("saga", "instance", "request")}
        kept["asked_by"] |= {"progress": True} if "progress" in asked_by else {}
    return kept


def _kept_arguments(step: StepDefinition, bound: Mapping[str, Any]) -> dict[str, Any]:
    arguments, hidden = dict(bound), sorted(step.hidden & bound.keys())
    text = _shallow_text(arguments)
    if text is None:
        return {"arguments": None, "omitted": f"its arguments are nested too deeply, and {LEVELS_KEPT} levels are kept"}
    if hidden:
        arguments = from_json(text)
        annotations = step.arguments.annotations
        arguments |= {name: replaced(annotations[name], arguments[name], mark) for name in hidden}
        text = to_json(arguments)
    if (size := len(text)) > MOST_BYTES:
        return {"arguments": None, "omitted": f"its arguments have {size:,} bytes, and {MOST_BYTES:,} are kept"}
    return {"arguments": arguments, "hidden": hidden} if hidden else {"arguments": arguments}


def _shallow_text(arguments: Mapping[str, Any]) -> bytes | None:
    """Return arguments as JSON; ``None`` if they are nested more deeply than is kept, or cannot be encoded for that."""
    try:
        text = to_json(arguments)
    except PydanticSerializationError:
        return None
    return None if is_deeper(text.decode(), LEVELS_KEPT) else text


def shown_fields(saga: SagaDefinition, state: State) -> dict[str, Any]:
    """Return the fields of a state as JSON values, in which sets have an order; hidden values are left out, or marked."""
    held, fields = fields_of(state), encoded_fields(state)
    shown = {name: ordered(held.get(name), value) for name, value in fields.items()}
    for name in saga.hidden & shown.keys():
        shown[name] = replaced(marked(saga.cls.model_fields[name]), shown[name], mark)
        if shown[name] == HIDDEN:
            del shown[name]
    return shown


def digests_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each of the fields that ``shown_fields`` has returned."""
    return {name: hashlib.sha256(canonical(value).encode()).hexdigest()[:_DIGEST] for name, value in fields.items()}


def canonical(value: Any) -> str:
    """Return a JSON value as text that does not depend on the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def ordered(value: object, encoded: Any) -> Any:
    """Return the JSON values of an object with those of sets in an order, which differs from process to process."""
    if isinstance(value, set | frozenset) and isinstance(encoded, list) and len(value) == len(encoded):
        return sorted(map(ordered, value, encoded), key=canonical)
    parts = parts_of(value)
    if isinstance(encoded, list) and parts is not None and len(parts) == len(encoded):
        return [ordered(*pair) for pair in zip(parts.values(), encoded, strict=True)]
    if not isinstance(encoded, dict) or parts is None:
        return encoded
    if isinstance(value, Mapping) and len(value) == len(encoded):
        return {name: ordered(part, encoded[name]) for name, part in zip(_names_in(value, encoded), parts.values(), strict=True)}
    aliases = {info.serialization_alias or name: name for name, info in getattr(type(value), "model_fields", {}).items()}
    return {name: ordered(parts.get(aliases.get(name, name)), part) for name, part in encoded.items()}


def _names_in(value: Mapping[Any, Any], encoded: Mapping[str, Any]) -> Sequence[str]:
    """Return the names that the keys of a map have in JSON values of as many, which may be in another order."""
    try:
        names = list(value) if all(isinstance(key, str) for key in value) else list(from_json(to_json(dict.fromkeys(value))))
    except BUGS:
        return list(encoded)
    return names if encoded.keys() == set(names) else list(encoded)  # the keys have a serializer of their own


def message_of(detail: Mapping[str, Any], **about: Any) -> HandledMessage:
    """Return the message that the details of an entry describe.

    Args:
        detail: What the entry says besides its columns.
        **about: The columns: step, id, outcome, version and time.
    """
    kept = {"now": about["at"], **detail.get("message", {})}
    asked = [(each["task"], each.get("then", ""), each["request"]) for each in detail.get("asked", ())]
    names = detail.get("names", {})
    scheduled = [(each["task"], names.get(each["id"], ""), each["id"]) for each in detail.get("scheduled", ())]
    was = {"late": detail.get("late", False), "fields": detail.get("state", {})}
    return HandledMessage.model_validate({**about, **kept, **was, "requested": asked, "scheduled": scheduled})
