"""``@aggregator``, which returns a proxy for the aggregator's task in the current app, as ``shared_task`` does."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from uuid import UUID

from celery import Celery

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AS_JOURNAL, AggregatorDefinition, define_aggregator
from celery_sagas.core.aggregators.items import GroupBy
from celery_sagas.core.functions import check_spelling
from celery_sagas.core.registry import registry
from celery_sagas.errors import DefinitionError
from celery_sagas.worker.aggregators.client import AggregatorClient, BufferedItem
from celery_sagas.worker.aggregators.collecting import collecting
from celery_sagas.worker.aggregators.tasks import BufferTask, install_aggregator
from celery_sagas.worker.celery_internals import current_app, finalised_apps, on_finalise_last
from celery_sagas.worker.proxy import TaskProxy
from celery_sagas.worker.runtime import runtime_of

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
SessionT = TypeVar("SessionT")

KeyValue = str | int | UUID | Enum
#: The name of a group: the value by which its items are grouped, or the values of several fields.
GroupValue = KeyValue | tuple[KeyValue, ...]
Duration = float | timedelta
_KEYWORDS = ("size", "within", "idle", "group_by", "dedupe_for", "max_buffered", "correlate_by", "transaction")


class Aggregator(TaskProxy, Generic[ItemT]):
    """A durable buffer of items that are handled in batches, and the Celery task that fills it."""

    if TYPE_CHECKING:
        name: str

        def __init__(self, definition: AggregatorDefinition) -> None: ...

        @overload
        def delay(self, item: ItemT, /) -> "AsyncResult[None]": ...
        @overload
        def delay(self, **fields: Any) -> "AsyncResult[None]": ...
        def delay(self, *item: Any, **fields: Any) -> "AsyncResult[None]":
            """Publish an item: a worker buffers it, once per message id."""

        def apply_async(
            self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
        ) -> "AsyncResult[None]":
            """Publish an item with Celery's options (``countdown``, ``queue``, ``priority`` …)."""

        @overload
        def s(self, item: ItemT, /) -> "Signature[None]": ...
        @overload
        def s(self, **fields: Any) -> "Signature[None]": ...
        def s(self, *item: Any, **fields: Any) -> "Signature[None]":
            """Return a signature; without an item it is partial: an answer becomes the item."""

        @overload
        def si(self, item: ItemT, /) -> "Signature[None]": ...
        @overload
        def si(self, **fields: Any) -> "Signature[None]": ...
        def si(self, *item: Any, **fields: Any) -> "Signature[None]":
            """Return an immutable signature."""

    else:
        __slots__ = ()
        _stand_in = BufferTask

    def add(self, item: ItemT, *, id: str | None = None) -> str:
        """Buffer an item directly from this process, without the broker.

        Args:
            item: The item: any value that its type accepts.
            id: The id under which it is buffered once in its group, and remembered for ``dedupe_for`` after its flush.
                Without it each call adds an item, except the calls of a redelivered task.

        Returns:
            The id.

        Raises:
            InvalidMessage: It does not fit, is too large, or belongs to no group.
            BufferFull: Its group has ``max_buffered`` items.
            MisuseError: A step runs: use ``order.send(aggregator.s(item))``, which is sent if the step commits.
            StoreUnavailable: The store cannot be reached; it is safe to add the item again under the same id.
        """
        return _buffered(self).add([item], None if id is None else [id])[0]

    def add_many(self, items: Iterable[ItemT], *, ids: Iterable[str] | None = None) -> list[str]:
        """Buffer items from this process, in their order, in as few round trips as possible; return their ids.

        Raises:
            ValueError: There are not as many ids as items.
            BufferFull: At least one group is full: ``refused`` has the ids of the items that were not added.
            InvalidMessage: One of them does not fit; none was added.
            MisuseError: A step runs.
            StoreUnavailable: The store cannot be reached; it is safe to add the items again under the same ids.
        """
        return _buffered(self).add(list(items), None if ids is None else list(ids))

    def count(self, group: GroupValue | None = None) -> int:
        """Return how many items are buffered, whatever their state, in a group or in all."""
        return _buffered(self).count(group)

    def groups(self) -> Iterator[str]:
        """Return the groups that have buffered items, as text (see ``Batch.group``), in the order of their names.

        They are read from the store a page at a time. ``group`` of the other methods takes such a text, too.
        """
        return _buffered(self).groups()

    def items(self, group: GroupValue | None = None) -> Iterator[BufferedItem[ItemT]]:
        """Return the buffered items of a group, or of all, whatever their state: group by group, oldest first.

        They are read from the store a page at a time, each page as it is then: items that are buffered or removed meanwhile
        may be among them or not. ``item`` of one that cannot be read raises ``UnreadableItem``.
        """
        return _buffered(self).items(group)

    def read(self, group: GroupValue | None = None, *, limit: int = 1_000) -> list[ItemT]:
        """Return the first buffered items of a group, or of all, whatever their state: group by group, oldest first.

        Raises:
            UnreadableItem: One of them cannot be read; ``items`` has the others.
        """
        return _buffered(self).read(group, limit)

    def remove(self, id: str, group: GroupValue | None = None) -> None:
        """Remove the item that has an id from a group's buffer.

        Raises:
            NothingBuffered: The group has no items.
            ItemNotBuffered: It has items, but none with this id outside of a running flush.
        """
        _buffered(self).remove(id, group)

    def remove_correlated(self, correlation_id: KeyValue, group: GroupValue | None = None) -> int:
        """Remove all items that have a correlation id (``correlate_by``) from a group, or from all; return how many.

        Items in a running flush are not removed. All items of the group, or of all groups, are read to find them.

        Raises:
            NothingBuffered: The group, or the aggregator, has no items.
            ItemNotBuffered: It has items, but none with this correlation id outside of a running flush.
            UnreadableItem: One cannot be read, and its JSON does not show its correlation id either; nothing was removed.
            MisuseError: The aggregator has no ``correlate_by``.
        """
        return _buffered(self).remove_correlated(correlation_id, group)

    def clear(self, group: GroupValue | None = None) -> int:
        """Remove all items of a group, whatever their state; return how many there were.

        Raises:
            ValueError: The aggregator has ``group_by``, and no group is named: see ``clear_all``.
        """
        return _buffered(self).clear(group)

    def clear_all(self) -> int:
        """Remove all items of all groups, whatever their state; return how many there were."""
        return _buffered(self).clear_all()

    def flush(self, group: GroupValue | None = None) -> int:
        """Request an immediate flush of a group, or of all; return how many have something to flush.

        Raises:
            PublishError: The broker did not accept a message; a relay requests the flush later.
        """
        return _buffered(self).flush(group)

    @property
    def handler(self) -> Callable[..., Any]:
        """The plain function, to be called with ``Batch([…])`` in a test.

        What it sends with the batch does not leave the process: ``celery_sagas.testing.collected(batch)`` returns it.
        """
        return collecting(object.__getattribute__(self, "_definition"))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the Celery task."""


def _buffered(proxy: Aggregator[Any]) -> AggregatorClient:
    app = current_app()
    app.finalize(auto=True)
    return AggregatorClient(runtime_of(app), object.__getattribute__(proxy, "_definition"))


@overload
def aggregator(
    function: None = ...,
    /,
    *,
    size: int | None = ...,
    within: Duration | None = ...,
    idle: Duration | None = ...,
    group_by: GroupBy | None = ...,
    dedupe_for: Duration | str | None = ...,
    max_buffered: int | None = ...,
    correlate_by: str | None = ...,
    transaction: type[SessionT],
    name: str | None = ...,
    bind: Literal[True],
    **options: Any,
) -> Callable[[Callable[[Any, Batch[ItemT], SessionT], ResultT]], Aggregator[ItemT]]: ...
@overload
def aggregator(
    function: None = ...,
    /,
    *,
    size: int | None = ...,
    within: Duration | None = ...,
    idle: Duration | None = ...,
    group_by: GroupBy | None = ...,
    dedupe_for: Duration | str | None = ...,
    max_buffered: int | None = ...,
    correlate_by: str | None = ...,
    transaction: type[SessionT],
    name: str | None = ...,
    **options: Any,
) -> Callable[[Callable[[Batch[ItemT], SessionT], ResultT]], Aggregator[ItemT]]: ...
@overload
def aggregator(
    function: None = ...,
    /,
    *,
    size: int | None = ...,
    within: Duration | None = ...,
    idle: Duration | None = ...,
    group_by: GroupBy | None = ...,
    dedupe_for: Duration | str | None = ...,
    max_buffered: int | None = ...,
    correlate_by: str | None = ...,
    transaction: str | None = ...,
    name: str | None = ...,
    bind: Literal[True],
    **options: Any,
) -> Callable[[Callable[[Any, Batch[ItemT]], ResultT]], Aggregator[ItemT]]: ...
@overload
def aggregator(
    function: None = ...,
    /,
    *,
    size: int | None = ...,
    within: Duration | None = ...,
    idle: Duration | None = ...,
    group_by: GroupBy | None = ...,
    dedupe_for: Duration | str | None = ...,
    max_buffered: int | None = ...,
    correlate_by: str | None = ...,
    transaction: str | None = ...,
    name: str | None = ...,
    **options: Any,
) -> Callable[[Callable[[Batch[ItemT]], ResultT]], Aggregator[ItemT]]: ...
def aggregator(
    function: None = None,
    /,
    *,
    size: int | None = None,
    within: Duration | None = None,
    idle: Duration | None = None,
    group_by: GroupBy | None = None,
    dedupe_for: Duration | str | None = AS_JOURNAL,
    max_buffered: int | None = None,
    correlate_by: str | None = None,
    transaction: type | str | None = None,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Make a durable aggregator: items are buffered in the backend, and a function handles them in batches.

    ``def store(batch: Batch[Reading])`` receives items of the type in its annotation: a ``Message``, or any type that pydantic
    supports. All bounds apply to each group.

    Args:
        function: Not accepted: an aggregator requires a bound that triggers its flushes.
        size: A batch is flushed when this many items wait; none is larger. Without it, at most 1,000 are flushed together.
        within: The oldest item waits no longer than this: a ``timedelta``, or seconds.
        idle: Waiting items are flushed when none has arrived for this long.
        group_by: What items must share to be in one batch: a field (a dotted path), several, or a function of the item.
        dedupe_for: How long the ids of items are remembered after their flush, so that a redelivered message is not buffered
            again. Without it, as long as the journal (``saga_journal_retention``). With ``None`` they are forgotten at the flush.
        max_buffered: The maximum number of items in a group: beyond it ``add`` raises ``BufferFull``, and messages wait.
        correlate_by: The field (a dotted path) of the items' correlation id, by which ``remove_correlated`` finds them. Several
            items may share one, or have none.
        transaction: Has rows that the function writes committed with the removal of the batch, or not at all: ``Session`` or
            ``Connection`` of SQLAlchemy's, of which it is given one after the batch; or an alias of Django's. It must be the
            database that keeps the items.
        name: The stored name (default: that of a shared task, module and function). The buffered items are stored under it.
        **options: Celery's task options for the flush task: time limits, retries, ``bind``. Both tasks share its queue.

    Raises:
        DefinitionError: It is declared wrongly.
    """
    if function is not None:
        raise DefinitionError("the aggregator", "nothing would ever flush it", "@aggregator(size=100), or within= or idle=")
    check_spelling("the aggregator", options, *_KEYWORDS)

    bounds: dict[str, Any] = {"size": size, "within": within, "idle": idle, "group_by": group_by, "max_buffered": max_buffered}
    return partial(
        _define, name=name, dedupe_for=dedupe_for, correlate_by=correlate_by, transaction=transaction, options=options, **bounds
    )


def _define(function: Callable[..., Any], **declared: Any) -> Aggregator[Any]:
    definition = define_aggregator(function, **declared)
    registry.add_aggregator(definition)
    for app in finalised_apps():
        install_aggregator(app, definition)
    return Aggregator(definition)


def install_all(app: Celery) -> None:
    """Check every aggregator, and register its tasks with an app that is being finalised."""
    for definition in list(registry.aggregators.values()):
        definition.resolve()
        install_aggregator(app, definition)


on_finalise_last(install_all)
