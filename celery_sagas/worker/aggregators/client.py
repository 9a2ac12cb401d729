"""The interface to an aggregator's buffer for programs: without the broker, from any process."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar
from uuid import uuid4

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.keys import key_text, text_of
from celery_sagas.engine.aggregators.buffering import encoded_item
from celery_sagas.errors import InvalidMessage, ItemNotBuffered, MisuseError, NotBuffered, NothingBuffered, UnreadableItem
from celery_sagas.stores.aggregates import Buffers
from celery_sagas.stores.items import Counts, Item, ItemState
from celery_sagas.worker.aggregators.flushes import add_items, publish_flush
from celery_sagas.worker.headers import is_name
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.sessions import current_session, new_message_id, open_sessions

ItemT = TypeVar("ItemT")

#: Groups, and items, to read at once: an item may be as large as a state.
_GROUPS = 1_000
_ITEMS = 100


@dataclass(frozen=True)
class BufferedItem(Generic[ItemT]):
    """An item in an aggregator's buffer, as ``Aggregator.items`` returns it."""

    group: str  #: the text of its group; empty without ``group_by``
    id: str  #: the id under which it is buffered once in its group
    state: ItemState  #: ``"free"``; ``"leased"``: in a running batch; ``"unresolved"``: a worker could not read it
    attempts: int  #: how many of its flushes have failed
    buffered_at: datetime  #: aware, UTC
    payload: str = field(repr=False)  #: the stored item, as JSON text
    _read: Callable[[], ItemT] = field(repr=False, compare=False)

    @property
    def item(self) -> ItemT:
        """The item itself.

        Raises:
            UnreadableItem: It does not fit the type of the items.
        """
        return self._read()


class AggregatorClient:
    """The buffer of one aggregator."""

    def __init__(self, runtime: Runtime, definition: AggregatorDefinition) -> None:
        self._definition = definition
        self._runtime = runtime
        self._rules = self._runtime.rules_of(definition)
        self._buffers = self._runtime.batches.buffers

    def add(self, items: Sequence[Any], ids: Sequence[str] | None) -> list[str]:
        """Buffer items; return their ids."""
        _refuse_in_step(self._definition.name)
        if ids is not None and len(ids) != len(items):
            raise ValueError(f"{len(ids)} ids were given for {len(items)} items")
        encoded = [self._definition.items.encode_and_read(item) for item in items]
        ids = self._new_ids([each.value for each in encoded]) if ids is None else ids
        if not all(map(is_name, ids)):
            raise InvalidMessage(self._definition.name, [("id", "it is no text of 1 to 255 printable characters")])
        max_bytes = self._runtime.settings.max_state_bytes
        new = [encoded_item(self._definition, id, each, max_bytes) for id, each in zip(ids, encoded, strict=True)]
        if new:
            add_items(self._runtime, self._definition, new)
        return list(ids)

    def count(self, group: Any) -> int:
        """Count the buffered items."""
        return self._counts(group).buffered

    def count_readable(self, group: Any) -> int:
        """Count the buffered items without the unreadable ones, which no flush takes."""
        return self._counts(group).resolved

    def _counts(self, group: Any) -> Counts:
        return self._buffers.count(self._definition.name, None if group is None else _text(group))

    def groups(self) -> Iterator[str]:
        """Return the groups that have items."""
        return group_names(self._buffers, self._definition.name)

    def items(self, group: Any, at_once: int = _ITEMS) -> Iterator[BufferedItem[Any]]:
        """Return the buffered items of a group, or of all."""
        text = None if group is None else _text(group)
        return (self._shown(*each) for each in stored_items(self._buffers, self._definition.name, text, at_once))

    def read(self, group: Any, limit: int) -> list[Any]:
        """Return the first items, which must all be readable."""
        if limit < 1:
            raise ValueError(f"limit={limit} is no positive number")
        return [each.item for each in islice(self.items(group, min(limit, _ITEMS)), limit)]

    def remove(self, id: str, group: Any) -> None:
        """Remove an item."""
        self._buffers.remove(self._rules, self._text_of(group), id)

    def remove_correlated(self, value: Any, group: Any) -> int:
        """Remove the items that have a correlation id."""
        if self._definition.correlate_by is None:
            name = self._definition.name
            raise MisuseError(f"{name} does not say which field is the correlation id", '@aggregator(correlate_by="order_id")')
        text = text_of(value)
        found = [(each.group, each.id) for each in self.items(group) if self._correlation_of(each) == text]
        removed = sum(self._remove_if_free(*each) for each in found)
        if not removed:
            raise self._not_buffered(text, None if group is None else _text(group))
        return removed

    def clear(self, group: Any) -> int:
        """Remove all items of a group."""
        return self._buffers.clear(self._rules, self._text_of(group))

    def clear_all(self) -> int:
        """Remove all items of all groups."""
        return sum(self._buffers.clear(self._rules, group) for group in self.groups())

    def flush(self, group: Any) -> int:
        """Request the flush of one group, or of all."""
        groups = self.groups() if group is None else iter([_text(group)])
        count = 0
        for each in groups:
            if self._buffers.fire(self._rules, each):
                publish_flush(self._runtime, self._definition, [each])
                count += 1
        return count

    def _text_of(self, group: Any) -> str:
        if group is not None:
            return _text(group)
        if self._definition.group_by is None:
            return ""
        raise ValueError(f"{self._definition.name} has groups: name one")

    def _shown(self, group: str, stored: Item) -> BufferedItem[Any]:
        buffered_at = datetime.fromtimestamp(stored.at / 1000, UTC)
        read = partial(self._read, group, stored)
        return BufferedItem(group, stored.id, stored.state, stored.attempts, buffered_at, stored.payload, read)

    def _read(self, group: str, stored: Item) -> Any:
        try:
            return self._definition.items.read(stored.payload)
        except InvalidMessage as exc:
            raise UnreadableItem(self._definition.name, group, stored.id, exc.problems) from exc

    def _correlation_of(self, each: BufferedItem[Any]) -> str | None:
        """Return an item's correlation id; for an unreadable item, the value in its JSON."""
        items = self._definition.items
        try:
            return items.correlation_of(each.item)
        except UnreadableItem:
            with suppress(ValueError, RecursionError):  # it is not JSON, as after a manual edit
                if (text := items.correlation_of(json.loads(each.payload))) is not None:
                    return text
            raise

    def _remove_if_free(self, group: str, id: str) -> bool:
        """Remove an item unless it is gone, or in a running flush; return whether it was removed."""
        try:
            self._buffers.remove(self._rules, group, id)
        except NotBuffered:
            return False
        return True

    def _not_buffered(self, correlation_id: str, group: str | None) -> NotBuffered:
        name = self._definition.name
        buffered = self._buffers.count(name, group).buffered
        if not buffered:
            return NothingBuffered(name, group or "")
        return ItemNotBuffered(name, group or "", correlation_id, buffered, self._definition.correlate_by or "")

    def _new_ids(self, values: Sequence[Any]) -> list[str]:
        session = current_session()
        if session is None:
            return [str(uuid4()) for _ in values]
        return [new_message_id(session, self._definition.name, value) for value in values]


def group_names(buffers: Buffers, name: str) -> Iterator[str]:
    """Return the groups of an aggregator that have buffered items, in the order of their names, reading a page at a time."""
    after = ""
    while page := buffers.groups(name, _GROUPS, after):
        yield from (each.group for each in page)
        if len(page) < _GROUPS:
            return
        after = page[-1].group


def stored_items(buffers: Buffers, name: str, group: str | None, at_once: int) -> Iterator[tuple[str, Item]]:
    """Return the buffered items of a group, or of all groups, each with its group, reading a page at a time."""
    for each in group_names(buffers, name) if group is None else [group]:
        after = 0
        while page := buffers.read(name, each, at_once, after):
            yield from ((each, item) for item in page)
            if len(page) < at_once:
                break
            after = page[-1].number


def _text(group: Any) -> str:
    return "" if group == "" else key_text([text_of(part) for part in (group if isinstance(group, tuple) else (group,))])


def _refuse_in_step(name: str) -> None:
    for session in open_sessions():
        if session.sending is not None:
            raise MisuseError(f"{name}.add() was called inside {session.sending.step}", f"send it: order.send({name}.s(…))")
