"""The messages of a commit, as people see them: redacted, and with what comes of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json

from celery_sagas.core.requests.requests import Request
from celery_sagas.operate.redact import redacted_message
from celery_sagas.stores.operations import Commit, Delete, Insert, Write
from celery_sagas.stores.records import SERIES, Outgoing
from celery_sagas.worker.events import PUBLISH, subscribers
from celery_sagas.worker.headers import ADDRESS, WAITED

Sort = Literal["message", "request", "timeout", "series", "answer", "event", "deferred", "direct"]
_CHAIN: Final = "celery.chain"


class Call(NamedTuple):
    """A task, or an event, with its arguments as values of JSON, redacted."""

    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class OutgoingMessage(NamedTuple):
    """A message that would be sent."""

    #: "deferred": one that has waited with the instance; "direct": the handler publishes it itself, whatever comes of the step.
    kind: Sort
    id: str
    calls: tuple[Call, ...]  #: more than one: a chain
    due_at: int = 0  #: milliseconds since the epoch; 0: at once
    name: str = ""  #: of a timeout, if it has one
    then: str = ""  #: of a request: the step that gets its answer
    otherwise: str = ""  #: and the step that gets its failure
    until: int = 0  #: its deadline; milliseconds since the epoch, 0: none


def messages_of(commit: Commit, hidden: Sequence[str]) -> tuple[OutgoingMessage, ...]:
    """Return the messages that a commit sends, in their order. The deadline of a request is told with the request.

    Args:
        commit: The commit.
        hidden: Patterns of the names that are hidden.
    """
    requests, names = _requests_of(commit), _timeouts_of(commit)
    rows = [row for row in commit.effects.outgoing if row.kind != "deadline"]
    return tuple(_message(row, requests, names.get(row.id, ""), hidden) for row in rows)


def direct_message(body: Any, headers: Mapping[str, Any], hidden: Sequence[str]) -> OutgoingMessage:
    """Return a message that a handler publishes by itself.

    Args:
        body: Of Celery's message: its arguments, and what follows it.
        headers: Of Celery's message.
        hidden: Patterns of the names that are hidden.
    """
    args, kwargs, _ = json.loads(json.dumps(body, default=repr))
    task = str(headers.get("task", ""))
    return OutgoingMessage("direct", str(headers.get("id", "")), (_call({"task": task, "args": args, "kwargs": kwargs}, hidden),))


def _message(row: Outgoing, requests: Mapping[str, Mapping[str, Any]], name: str, hidden: Sequence[str]) -> OutgoingMessage:
    sent = json.loads(row.payload)
    members = sent["kwargs"]["tasks"] if sent["task"] == _CHAIN else [sent]
    options = members[-1]["options"]
    asked = requests.get(options["task_id"], {})
    calls = tuple(_call(member, hidden) for member in members)
    kind = _kind(row, options.get("headers") or {}, is_request=bool(asked))
    to = {part: asked[part] for part in ("then", "otherwise", "until") if part in asked}
    return OutgoingMessage(kind, row.message_id, calls, row.due_at, name, **to)


def _kind(row: Outgoing, headers: Mapping[str, Any], *, is_request: bool) -> Sort:
    if row.kind != "sent":
        return "series" if row.kind == SERIES else "timeout"
    if headers.get(WAITED):
        return "deferred"
    if is_request:
        return "request"
    if row.task == PUBLISH:
        return "event"
    return "answer" if ADDRESS in headers else "message"


def _call(sent: Mapping[str, Any], hidden: Sequence[str]) -> Call:
    if sent["task"] == PUBLISH:
        name, fields = sent["args"]
        return _event(name, fields, hidden)
    shown = redacted_message(dict(sent), hidden)
    return Call(shown["task"], shown["args"], shown["kwargs"])


def _event(name: str, fields: Any, hidden: Sequence[str]) -> Call:
    """Return an event; what it hides is known from a step that subscribes to it."""
    step = next(iter(subscribers(name)), None)
    message = {"task": step.name if step else "", "args": [fields], "kwargs": {}}
    return Call(name, redacted_message(message, hidden)["args"], {})


def _requests_of(commit: Commit) -> dict[str, Mapping[str, Any]]:
    """Return what the journal keeps of the requests of a commit, by the ids of the tasks that answer them."""
    asked = from_json(commit.effects.entry.detail).get("asked", ())
    return {id: each for each in asked for id in _answering(each)}


def _answering(asked: Mapping[str, Any]) -> Iterable[str]:
    request = Request(asked["request"], asked["task"], asked.get("then", ""), members=asked.get("members", 0))
    return request.task_ids


def _timeouts_of(commit: Commit) -> dict[str, str]:
    """Return the names of the timeouts of an instance by their rows; of those without a name none."""
    if isinstance(commit, Delete | Write):
        return {}
    pending = commit.new.pending if isinstance(commit, Insert) else commit.change.pending
    timeouts = json.loads(pending).get("timeouts", {})
    return {each["row"]: name for name, each in timeouts.items() if name != each["id"]}
