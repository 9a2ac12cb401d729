"""An aggregator's buffer, as programs use it: past the broker, from any process."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from celery import Celery

from celery_sagas.core.aggregators import AggregatorDefinition
from celery_sagas.core.keys import key_text, text_of
from celery_sagas.engine.buffering import encoded_item
from celery_sagas.engine.session import Session
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.worker.aggregating import add_items, publish_flush
from celery_sagas.worker.headers import is_message_id
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import current_session, new_message_id, open_sessions

#: Groups that are read at once.
_PAGE = 1_000


class Buffered:
    """The buffer of one aggregator in one app."""

    def __init__(self, app: Celery, definition: AggregatorDefinition) -> None:
        self._app = app
        self._definition = definition
        self._runtime = runtime_of(app)
        self._rules = self._runtime.rules_of(definition)
        self._buffers = self._runtime.batches.buffers

    def add(self, items: Sequence[Any], ids: Sequence[str] | None) -> list[str]:
        """Buffer items; return their ids."""
        _refuse_in_step(self._definition.name, open_sessions())
        if ids is not None and len(ids) != len(items):
            raise ValueError(f"{len(ids)} ids were given for {len(items)} items")
        encoded = [self._definition.items.encode_and_read(item) for item in items]
        ids = self._new_ids([each.value for each in encoded]) if ids is None else ids
        if not all(map(is_message_id, ids)):
            raise InvalidMessage(self._definition.name, [("id", "it is no text of 1 to 255 printable characters")])
        max_bytes = self._runtime.settings.max_state_bytes
        new = [encoded_item(self._definition, id, each, max_bytes) for id, each in zip(ids, encoded, strict=True)]
        if new:
            add_items(self._app, self._definition, new)
        return list(ids)

    def count(self, group: Any) -> int:
        """Count the buffered items."""
        return self._buffers.count(self._definition.name, None if group is None else _text(group)).buffered

    def read(self, group: Any, limit: int) -> list[Any]:
        """Return the items that can be read."""
        if limit < 1:
            raise ValueError(f"limit={limit} is no positive number")
        stored = self._buffers.read(self._definition.name, self._text_of(group), limit)
        return [item for each in stored for item in self._readable(each.payload)]

    def remove(self, id: str, group: Any) -> None:
        """Remove an item."""
        self._buffers.remove(self._rules, self._text_of(group), id)

    def clear(self, group: Any) -> int:
        """Remove all items of a group."""
        return self._buffers.clear(self._rules, self._text_of(group))

    def flush(self, group: Any) -> int:
        """Ask for the flush of one group, or of all."""
        groups = self._groups() if group is None else iter([_text(group)])
        count = 0
        for each in groups:
            if self._buffers.open(self._rules, each):
                publish_flush(self._app, self._definition, each)
                count += 1
        return count

    def _groups(self) -> Iterator[str]:
        if self._definition.group_by is None:
            yield ""
            return
        after = ""
        while page := self._buffers.groups(self._definition.name, _PAGE, after):
            yield from (each.group for each in page)
            if len(page) < _PAGE:
                return
            after = page[-1].group

    def _text_of(self, group: Any) -> str:
        if group is not None:
            return _text(group)
        if self._definition.group_by is None:
            return ""
        raise ValueError(f"{self._definition.name} has groups: name one")

    def _readable(self, payload: str) -> Iterator[Any]:
        try:
            yield self._definition.items.read(payload)
        except InvalidMessage:
            return

    def _new_ids(self, values: Sequence[Any]) -> list[str]:
        session = current_session()
        if session is None:
            return [str(uuid4()) for _ in values]
        return [new_message_id(session, self._definition.name, value) for value in values]


def _text(group: Any) -> str:
    return "" if group == "" else key_text([text_of(part) for part in (group if isinstance(group, tuple) else (group,))])


def _refuse_in_step(name: str, around: Iterator[Session]) -> None:
    for session in around:
        if session.sending is not None:
            raise MisuseError(f"{name}.add() was called inside {session.sending.step}", f"send it: order.send({name}.s(…))")
