"""The port that lists instances. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence.

A backend may lack it: see ``Backend``.
"""

import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from celery_sagas.stores.records import Record

#: How many instances one call returns at most.
MOST: Final = 500
#: The maximum length of a pending map that a page has, in bytes.
PENDING: Final = 4_096
#: A slot of the store's clock is this power of two in milliseconds: almost nine minutes.
SLOT_BITS: Final = 19
#: U+0000, and half a surrogate pair.
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_PLACE: Final = re.compile("[0-9a-f]{8}:[^\0\ud800-\udfff]*")


class Glance(NamedTuple):
    """An instance as a page shows it: a record without its state.

    Of one whose record is damaged nothing is known but its id: its key is empty, and its versions are 0.
    """

    id: str
    saga: str  #: the stored name
    key: str
    version: int
    schema_version: int
    size: int  #: of the state, in bytes
    pending: str | None  #: the pending map, as JSON text; ``None`` if it is longer than ``PENDING``
    created_at: int
    updated_at: int

    @property
    def place(self) -> str:
        """The instance's place in the order of pages, as text that sorts so."""
        return place(self.updated_at, self.id)


def glance_at(record: Record) -> Glance:
    """Return an instance as a page shows it."""
    pending = record.pending if len(record.pending.encode()) <= PENDING else None
    about = (record.id, record.saga, record.key, record.version, record.schema_version)
    return Glance(*about, len(record.data.encode()), pending, record.created_at, record.updated_at)


class Page(NamedTuple):
    """Some instances, in the order in which they were asked for."""

    instances: tuple[Glance, ...]
    after: str  #: where the next page goes on; empty: that was all


def slot_of(at: int) -> int:
    """Return the slot of a time in milliseconds since the epoch."""
    return at >> SLOT_BITS


def place(updated_at: int, id: str) -> str:
    """Return the place of an instance in the order of pages: the slot of its last commit, then its id."""
    return f"{slot_of(updated_at):08x}:{id}"


def check_place(text: str) -> None:
    """Refuse a text that is no place.

    Raises:
        ValueError: It is not of the form that ``place`` has.
    """
    if not _PLACE.fullmatch(text):
        raise ValueError(
            f"{reprlib.repr(text)} is no place in the order of pages: give Page.after, or an instance's Glance.place"
        )


def bound_of(id: str) -> str:
    """Return a text that every store can compare with ids, for one that may be none: the same ids precede both."""
    found = _UNSTORABLE.search(id)
    return id if found is None else id[: found.start()] + ("\1" if found[0] == "\0" else "\ue000")


class Instances(ABC):
    """Pages of instances, for operators and for programs that look at many.

    No call takes a lock, or leaves a transaction open. A call costs what it returns, not what is stored, unless it says so.

    Pages have an order: that of the slots of the last commits (see ``SLOT_BITS``), and within a slot that of the ids, which are
    made in the order of time. Instances may begin, change and end between two pages: one that is there all the time, and is not
    committed meanwhile, comes once. A page may have fewer instances than were asked for, or none, although others follow.

    What code of an earlier layout has committed comes once ``index`` has seen it.
    """

    @abstractmethod
    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        """Return instances that are stored under a name of a saga, those that were committed last first.

        Args:
            name: The stored name.
            limit: How many at most: 1 to ``MOST``.
            after: ``Page.after`` of the page before, or the place of any instance; empty, to begin.
            oldest_first: Whether the order is the opposite one.

        Raises:
            ValueError: ``after`` is no place (see ``check_place``), such as the garbage of a URL.
        """

    @abstractmethod
    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        """Return instances under a name that have a tag now: those with the greatest ids first, which began last.

        Args:
            name: The stored name.
            tag: Property and value.
            limit: How many at most: 1 to ``MOST``.
            after: ``Page.after`` of the page before, or the id of any instance; empty, to begin. Any other text will do, too:
                ids that precede it follow, in the order of their characters' numbers (see ``bound_of``).
        """

    @abstractmethod
    def read(self, name: str, ids: Sequence[str]) -> list[Record]:
        """Return the instances with these ids, at most ``MOST``, that are stored under a name: in this order, without those that
        are not there. ``locked_by`` is empty.

        Raises:
            UnreadableState: One of the records is damaged.
        """

    @abstractmethod
    def count(self, name: str, at_most: int, tag: tuple[str, str] | None = None) -> int:
        """Count the instances under a name, or those of them that have a tag.

        It costs what it counts: ``at_most`` is returned where there are as many, or more.
        """

    def index(self, name: str, limit: int, after: str = "") -> str:
        """Bring at most about ``limit`` instances under a name, which code of an earlier layout has written, into the order of
        pages.

        Any number of calls may run at once, beside commits. A store in which pages need nothing that earlier code does not write
        need not override this.

        Args:
            name: The stored name.
            limit: How many are looked at.
            after: What the call before has returned; empty, to begin.

        Returns:
            Where the next call goes on; empty: that was all.
        """
        return ""
