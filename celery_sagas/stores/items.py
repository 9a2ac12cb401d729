"""The arguments and results of the aggregators' stores: encoded text and plain values.

All times are integer milliseconds since the epoch, of the store's own clock. A group is a text, at most 255 characters long;
that of an aggregator without ``group_by`` is empty.
"""

from typing import Literal, NamedTuple

from celery_sagas.core.aggregators.rules import Rules

__all__ = [
    "Added",
    "Addition",
    "Counts",
    "DueGroup",
    "Group",
    "Item",
    "ItemState",
    "NewItem",
    "Rules",
    "Snapshot",
]


ItemState = Literal["free", "leased", "unresolved"]


class NewItem(NamedTuple):
    """A new item to buffer."""

    id: str  #: the message id, or that of the producer; unique in its group
    payload: str  #: the item, as JSON text; opaque to the store
    is_unreadable: bool = False  #: the code that inserts it cannot read it: it begins as unresolved


class Addition(NamedTuple):
    """Items of one group, in their order."""

    group: str
    items: tuple[NewItem, ...]


class Added(NamedTuple):
    """The result of an addition."""

    added: int  #: items that are new
    needs_flush: bool = False  #: the trigger has fired, and no flush is requested: the caller must ask for one
    is_full: bool = False  #: nothing was added: the group would have more than ``max_buffered`` items


class Item(NamedTuple):
    """A buffered item."""

    number: int  #: its place in the order of insertion; unique in its group, and kept whatever happens to the item
    id: str
    payload: str
    at: int  #: when it was inserted
    attempts: int = 0  #: how many of its flushes have failed, or have died
    state: ItemState = "free"


class Snapshot(NamedTuple):
    """Items under the lease of one run of a flush, in the order of insertion."""

    items: tuple[Item, ...]
    reason: str  #: see ``celery_sagas.core.aggregators.rules.Reason``
    unresolved: int  #: how many items of the group are unresolved now
    is_more: bool  #: the trigger has fired for what is left, and the caller asks for another flush


class Counts(NamedTuple):
    """The numbers of items."""

    groups: int  #: that have a buffered item
    buffered: int  #: free, leased and unresolved ones
    unresolved: int

    @property
    def resolved(self) -> int:
        """The buffered items that can be read."""
        return self.buffered - self.unresolved


class Group(NamedTuple):
    """A group that has buffered items."""

    group: str
    free: int
    leased: int
    unresolved: int
    due_at: int  #: when it is checked again; 0: when its next item comes


class DueGroup(NamedTuple):
    """A group to flush."""

    name: str  #: of the aggregator
    group: str
