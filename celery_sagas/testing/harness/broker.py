"""The broker of a test: what is sent waits in this process until the test delivers it."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.serialization import dumps, loads, prepare_accept_content

from celery_sagas.engine.outbox.publishing import OutgoingMessage
from celery_sagas.errors import ConfigurationError, PublishError
from celery_sagas.testing.harness.crashes import Crash
from celery_sagas.worker.isolation import LocalProducer
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher

#: How many characters of the arguments of a message are shown.
_SHOWN = 100


@dataclass(eq=False)
class SentMessage:
    """A message that was sent in a test: to a step, a plain task, or an aggregator."""

    app: Celery = field(repr=False)
    task: str  #: the name of the task
    id: str
    headers: Mapping[str, Any] = field(repr=False)
    due_at: datetime | None  #: not to be delivered before; ``None``: at once
    expires_at: datetime | None
    queue: str
    deliveries: int = field(default=0, init=False)  #: how often it was delivered
    _content: tuple[str, str, Any] = field(repr=False, kw_only=True)  #: the type, the encoding and the text of the body

    @property
    def content(self) -> Any:
        """The content, decoded as by a worker: the arguments by position and by name, and what follows the task."""
        content_type, encoding, text = self._content
        return loads(text, content_type, encoding, accept=prepare_accept_content(self.app.conf.accept_content))

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, in values of JSON."""
        return tuple(self.content[0])

    @property
    def kwargs(self) -> dict[str, Any]:
        """The named arguments, in values of JSON."""
        return dict(self.content[1])

    def __str__(self) -> str:
        """Return the message as a call."""
        shown = ", ".join([*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())])
        return f"{self.task}({shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '...'})"


class Broker:
    """Keeps the messages of a test.

    Args:
        crash: What a process sends that has ended is not accepted.
        look_at: Called with the app and the task of each message before it is accepted.
    """

    def __init__(self, crash: Crash, look_at: Callable[[Celery, str], object]) -> None:
        self.sent: list[SentMessage] = []
        self.pending: list[SentMessage] = []  #: those that wait to be delivered, in the order in which they were sent
        self._crash = crash
        self._look_at = look_at

    def accept(self, app: Celery, content: Any, headers: Mapping[str, Any], serializer: str | None, queue: str) -> None:
        """Accept a message; one to the workers themselves, such as a revocation, is lost, since there are none."""
        self._crash.check()
        if "task" not in headers:
            if isinstance(content, Mapping) and "task" in content:
                raise ConfigurationError(f"{content['task']} is published by task_protocol 1", "Set task_protocol = 2")
            return
        task, due_at, expires_at = headers["task"], _time(app, headers.get("eta")), _time(app, headers.get("expires"))
        encoded = dumps(content, serializer or "json")
        message = SentMessage(app, task, headers["id"], dict(headers), due_at, expires_at, queue, _content=encoded)
        self._look_at(app, task)
        self.sent.append(message)
        self.pending.append(message)


class TestPublisher(ConfirmedPublisher):
    """Publishes to a test's broker, which confirms at once."""

    __test__ = False  # pytest would collect it
    longest_wait_s = math.inf

    def __init__(self, app: Celery, broker: Broker, crash: Crash) -> None:
        self._app = app
        self._options = {}
        self._connection_errors = ()
        self._to_broker: Any = LocalProducer(app, broker.accept)
        self._crash = crash
        self._posted: list[str] = []

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        yield self._to_broker

    def post(self, messages: Iterable[OutgoingMessage]) -> int:
        """Publish messages, up to the first that cannot be published."""
        with contextlib.suppress(PublishError):
            for message in messages:
                self.publish(message)
                self._posted.append(message.id)
        self._crash.reach("after_publishing")
        return len(self._posted)

    def collect(self) -> Sequence[str]:
        """Return the ids of the rows that were posted since the last call."""
        self._crash.check()
        posted, self._posted = self._posted, []
        return posted

    def probe(self) -> None:
        """Do nothing: the broker is there."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _time(app: Celery, text: str | None) -> datetime | None:
    time = maybe_iso8601(text)
    return None if time is None else maybe_make_aware(time, app.timezone)
