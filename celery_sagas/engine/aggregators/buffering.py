"""Buffering items: they are inserted, flushes are requested, and full buffers are reported."""

from collections.abc import Callable, Sequence

from pydantic_core import to_json

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.items import Encoded
from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.errors import BUGS, BufferFull, InvalidMessage
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Addition, NewItem


def new_item(definition: AggregatorDefinition, id: str, value: object, max_bytes: int) -> tuple[str, NewItem]:
    """Return the group of an item, and the item as it is buffered.

    Args:
        definition: The aggregator.
        id: The id under which it is buffered once.
        value: The item, as JSON values.
        max_bytes: The maximum size of an item.

    Raises:
        InvalidMessage: It does not fit, is too large, or belongs to no group.
    """
    payload = _payload(definition, value, max_bytes)
    return definition.items.group_of(definition.items.read(payload)), NewItem(id, payload)


def encoded_item(definition: AggregatorDefinition, id: str, encoded: Encoded, max_bytes: int) -> tuple[str, NewItem]:
    """Return the group of an item that this process has encoded, and the item as it is buffered.

    Raises:
        InvalidMessage: It is too large, or belongs to no group.
    """
    return definition.items.group_of(encoded.item), NewItem(id, _limited(definition, encoded.payload, max_bytes))


def unread_item(definition: AggregatorDefinition, id: str, value: object, max_bytes: int) -> tuple[str, NewItem]:
    """Return the same for an item that this code cannot read. Other code may: the producer could encode it.

    Raises:
        InvalidMessage: It is too large, or does not show its group.
    """
    payload = _payload(definition, value, max_bytes)
    return definition.items.group_of(value), NewItem(id, payload, is_unreadable=True)


def buffer(store: AggregateStore, rules: Rules, items: Sequence[tuple[str, NewItem]], ask: Callable[[str], bool]) -> int:
    """Buffer items, and request the flushes that they trigger; return how many are new.

    Args:
        store: Stores the items.
        rules: The aggregator's rules.
        items: The items, each with its group.
        ask: Requests the flush of a group; returns whether it makes sense to request more.

    Raises:
        BufferFull: At least one group is full; the items of the others were added.
    """
    groups: dict[str, list[NewItem]] = {}
    for group, item in items:
        groups.setdefault(group, []).append(item)
    additions = [Addition(group, tuple(members)) for group, members in groups.items()]
    added = store.insert(rules, additions)
    full = [addition for addition, each in zip(additions, added, strict=True) if each.is_full]
    for addition, each in zip(additions, added, strict=True):
        if each.needs_flush and not ask(addition.group):
            break  # a relay requests the rest: the caller does not wait for a silent broker repeatedly
    if full:
        refused = [item.id for addition in full for item in addition.items]
        raise BufferFull(rules.name, full[0].group, rules.max_buffered, refused)
    return sum(each.added for each in added)


def _payload(definition: AggregatorDefinition, value: object, max_bytes: int) -> str:
    try:
        payload = to_json(value)
    except BUGS as exc:  # half a surrogate pair, say, which JSON can write and no store keeps
        raise InvalidMessage(definition.name, [("", "it cannot be encoded as JSON")]) from exc
    return _limited(definition, payload, max_bytes)


def _limited(definition: AggregatorDefinition, payload: bytes, max_bytes: int) -> str:
    if len(payload) > max_bytes:
        problem = f"it has {len(payload)} bytes, saga_max_state_bytes allows {max_bytes}"
        raise InvalidMessage(definition.name, [("", problem)])
    return payload.decode()
