"""The ports of aggregators. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence.

What ``celery_sagas.stores.ports`` says of all ports holds here too. Every call works on one group, or on one aggregator, and
nothing that one writes is seen by another: aggregators and groups are compared byte by byte. Nothing needs a round trip of its
own before the first call, and no call takes longer because others have many items.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from celery_sagas.stores.items import Added, Addition, Counts, DueGroup, Group, Item, Keeping, Kept, Rules, Snapshot


class AggregateStore(ABC):
    """Buffers of items, flushed in batches under leases.

    An item is free, leased, unresolved or removed. Free items can be read, and are under no lease; those alone open the gate.
    Items keep their numbers, which grow in the order of insertion, so that an item which comes back stands where it stood.

    A group has a *mark* while a flush that was asked for has not begun: nobody else asks then. It expires after ``lease_ms``,
    since a message may be lost. A group is *due* when its gate opens by time, its mark expires, or a lease on its items ends
    (``core.aggregators.rules.due_at``). Every call that changes a group leaves its due time right. A group without items leaves
    nothing behind.

    Each call is atomic for each group. A call that the store sends again, because a reply was lost, does nothing twice, and
    answers ``claim``, ``renew``, ``remove`` and ``release`` as the first time.
    """

    @abstractmethod
    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        """Buffer items, and say for each addition whether a flush is to be asked for.

        One round trip on Redis, a constant number of statements in SQL. An addition without items adds nothing, and has the
        gate and the due time looked at by these rules.

        An item is skipped if one with its id is buffered in the group, or was removed from it less than the ``remember_ms``
        of its removal ago; of several with one id in one call the first counts. If there are new ones, and they would make
        more than ``rules.max_buffered`` items, nothing of this addition is added (``is_full``); nobody is told of the gate
        then.

        ``is_open`` is true if the gate is open and there is no mark, also where every item was skipped: whoever asked
        before may have died. The mark is set then. An item with ``unread_by`` is unresolved; it neither opens the gate nor
        counts as the last to come.
        """

    @abstractmethod
    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        """Lease the first free items to a token, for ``lease_ms``, if the gate is open.

        One round trip on Redis, a constant number of statements in SQL. ``None`` while the group pauses (see ``release``).

        First the leases of the group that have ended are given up: their items are free again, one attempt is counted on
        each, and the gate is open for them (reason ``"again"``). Then the gate is looked at, and the mark removed. ``None``:
        it is closed. The snapshot has as many items as ``core.aggregators.rules.taken`` says, at most ``rules.limit``.

        Where the reason is ``"age"`` or ``"idle"``, the gate stays open for everything that was free at this moment. Of
        several reasons the first is told: size, then what the gate was opened for, then age, then idle. If it is open for
        what is left, for whatever reason, ``is_more`` is true and the mark is set anew. Two claims never have an item in
        common while both leases last. A token is used for one claim only, but for its repeat, which returns the same items.
        """

    @abstractmethod
    def renew(self, rules: Rules, group: str, token: str) -> bool:
        """Begin the time of a lease anew; return ``False`` if it was given up, or ended by removal."""

    @abstractmethod
    def remove(self, rules: Rules, group: str, token: str, kept: Sequence[Keeping] = ()) -> bool:
        """End a lease: remove exactly its items, but for those that are kept.

        Their ids are remembered for ``rules.remember_ms``. ``kept`` names items of the lease only: those of the kind
        "unresolved" stay in the buffer as unresolved ones, those of the kind "rejected" leave it for the list of leftovers;
        their ids are remembered too. The lease need not last: only whether it was given up counts.

        Returns:
            Whether the gate is open and there was no mark: the caller asks for a flush, and the mark is set.

        Raises:
            LeaseLost: The lease was given up, and nothing was changed.
        """

    @abstractmethod
    def release(
        self, rules: Rules, group: str, token: str, kept: Sequence[Keeping] = (), *, counted: bool = True, delay_ms: int = 0
    ) -> None:
        """End a lease: its items are free again at once, but for those that are kept.

        One attempt is counted on each that is free again, if ``counted``. The gate is open for them (reason ``"again"``).

        The group pauses for ``delay_ms``: until then no claim gets anything of it, nor changes it, whoever has asked for the
        flush; a longer pause that somebody else has begun lasts, and ``Buffers.open`` ends it. The caller will ask for a
        flush after the delay: the mark is set, and lasts for ``delay_ms`` and ``lease_ms``, or longer if it did.

        Raises:
            LeaseLost: The lease was given up, and nothing was changed.
        """

    @abstractmethod
    def claim_due(self, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
        """Return at most ``limit`` groups of these aggregators that are due, the longest due first, and mark them for
        ``lease_ms``: the caller asks for their flushes.

        Two calls at once never return the same group. It costs the same however many groups are not due. A store of several
        parts takes the longest due of one part after the other, each time beginning with another.
        """

    @abstractmethod
    def purge(self, limit: int) -> int:
        """Forget at most ``limit`` ids of removed items whose time has passed; return how many."""


class Buffers(ABC):
    """What is buffered, for programs and people that look at it, or change it by hand."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all aggregators that have ever buffered anything here, sorted."""

    @abstractmethod
    def count(self, name: str, group: str | None = None) -> Counts:
        """Count the items of an aggregator, or of one of its groups, without loading any; zeros where nothing is."""

    @abstractmethod
    def groups(self, name: str, limit: int, after: str = "") -> list[Group]:
        """Return at most ``limit`` groups that have buffered items, in the order of their names; with ``after``, those that
        follow that name.
        """

    @abstractmethod
    def read(self, name: str, group: str, limit: int, after: int = 0) -> list[Item]:
        """Return the first ``limit`` buffered items of a group in the order of insertion, whatever their state; with ``after``,
        those that follow this number, whether an item still has it or not.
        """

    @abstractmethod
    def open(self, rules: Rules, group: str) -> bool:
        """Open the gate for everything that is free or leased in a group (reason ``"asked"``), mark it, and end its pause: the
        caller asks for the flush. Return ``False``, and change nothing, if nothing is.
        """

    @abstractmethod
    def remove(self, rules: Rules, group: str, id: str) -> None:
        """Remove the free or unresolved item with an id; it is remembered as any that was removed.

        Raises:
            NothingBuffered: The group has no items at all.
            ItemNotBuffered: It has items, and none with this id that is not under a lease.
        """

    @abstractmethod
    def clear(self, rules: Rules, group: str) -> int:
        """Remove all items of a group, whatever their state; their leases are given up. Return how many.

        They are remembered as any that were removed. What was rejected is in the buffer no more, and stays where it is.
        """


class Leftovers(ABC):
    """Items that wait for other code (unresolved), or for people (rejected)."""

    @abstractmethod
    def kept(self, name: str, kind: str, limit: int, after: str = "") -> list[Kept]:
        """Return at most ``limit`` items of an aggregator, the first that was kept first; with ``after``, those that follow this
        handle.
        """

    @abstractmethod
    def unread(self, name: str, reader: str, limit: int) -> list[Kept]:
        """Return at most ``limit`` unresolved items that this reader has not tried: whose note is another fingerprint."""

    @abstractmethod
    def note(self, name: str, handles: Sequence[str], reader: str) -> int:
        """Note on unresolved items that this reader cannot read them either; return on how many."""

    @abstractmethod
    def put_back(self, rules: Rules, handles: Sequence[str]) -> int:
        """Make items free again, where they stood, with no attempt counted; return how many there were.

        The gate is open for them (reason ``"again"``), and their groups are due at once. A rejected one is back in its
        group's buffer, whatever ``max_buffered`` says; but where its id is buffered again, it stays where it is, and is
        not counted.
        """

    @abstractmethod
    def discard(self, rules: Rules, handles: Sequence[str]) -> int:
        """Remove items for good; return how many there were."""
