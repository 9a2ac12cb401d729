"""The ports of aggregators. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence.

A backend may lack them: see ``Backend``.

What ``celery_sagas.stores.ports`` says of all ports holds here too. Every call works on one group, or on one aggregator.
Aggregators and groups do not see one another's items: their names are compared byte by byte. No round trip is needed before the
first call, and no call takes longer because others have many items.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from inspect import Parameter, signature

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.stores.items import Added, Addition, Counts, DueGroup, Group, Item, Rules, Snapshot
from celery_sagas.stores.records import DeadLetter, Sends


class AggregateStore(ABC):
    """Buffers of items, flushed in batches under leases.

    An item is free, leased, unresolved or removed. Free items can be read, and are under no lease; those alone fire the trigger.
    An unresolved one is unreadable for the code that has met it; it stays in its place until code that can read it resolves it.
    Items keep their numbers, which grow in the order of insertion, so that an item which comes back stands where it stood.

    A group has a *flush request* from when a flush is asked for until it begins: no other caller asks then. It expires after
    ``lease_ms``, since a message may be lost. A group is *due* when its trigger fires by time, its flush request expires, or a
    lease on its items ends (``core.aggregators.rules.due_at``). Every call that changes a group leaves its due time right. A
    group without items leaves nothing behind.

    Each call is atomic for each group. A call that the store sends again, because a reply was lost, does nothing twice, and
    answers ``claim``, ``renew``, ``remove`` and ``release`` as the first time.
    """

    @abstractmethod
    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        """Buffer items, and return for each addition whether the caller must ask for a flush.

        One round trip on Redis, a constant number of statements in SQL. An addition without items adds nothing, and checks
        the trigger and the due time by these rules.

        An item is skipped if one with its id is buffered in the group, or was removed from it less than the ``remember_ms``
        of its removal ago; of several with one id in one call the first counts. If there are new ones, and they would make
        more than ``rules.max_buffered`` items, nothing of this addition is added (``is_full``), and no flush is requested.

        ``needs_flush`` is true if the trigger has fired and there is no flush request, also where every item was skipped: the
        process that asked before may have died. There is a request from then on. An unreadable item is unresolved; it neither
        fires the trigger nor counts as the last to come.
        """

    @abstractmethod
    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        """Lease the first free items to a token, for ``lease_ms``, if the trigger has fired.

        One round trip on Redis, a constant number of statements in SQL. ``None`` while the group pauses (see ``release``).

        First the leases of the group that have ended are given up: their items are free again, one attempt is counted on
        each, and the trigger has fired for them (reason ``"again"``). Then the trigger is checked, and the flush request
        removed. ``None``: it has not fired. The snapshot has as many items as ``core.aggregators.rules.taken`` says, at most
        ``rules.limit``.

        Where the reason is ``"age"`` or ``"idle"``, the trigger stays fired for everything that was free at this moment. Of
        several reasons the snapshot has the first: size, then what the trigger was fired for, then age, then idle. If it fired
        for what is left, for whatever reason, ``is_more`` is true and a flush is requested again. Two claims never have an item
        in common while both leases last. Each token is used for one claim only; a repeat of that claim returns the same items.
        """

    @abstractmethod
    def renew(self, rules: Rules, group: str, token: str) -> bool:
        """Restart the time of a lease; return ``False`` if it was given up, or ended by removal."""

    def new_id(self, rules: Rules, group: str) -> str:
        """Return a new id, without a round trip: the ids of what a removal of this group sends begin with it.

        A store of several parts, between which nothing is atomic, locates these rows by it. Any other need not override this.
        """
        return time_ordered_id()

    @abstractmethod
    def remove(
        self,
        rules: Rules,
        group: str,
        token: str,
        *,
        rejected: Sequence[DeadLetter] = (),
        unreadable: Collection[int] = (),
        sends: Sends | None = None,
    ) -> bool:
        """End a lease: remove exactly its items, except the unreadable ones.

        Their ids are remembered for ``rules.remember_ms``. The lease need not last: only whether it was given up counts.

        The outgoing rows of ``sends`` are written with it, both or neither, into the outbox of this backend, as ``SagaStore``
        says of a commit's; they belong to no instance. The argument is left out where there is nothing to send: so a store
        without it serves all aggregators but those whose functions send something.

        Args:
            rules: Of the aggregator.
            group: The group.
            token: The lease's.
            rejected: The dead letters of items of the lease, identified by their numbers. Each is written to the dead letters of
                this backend at the moment its item leaves the buffer; a repeated call writes it once.
            unreadable: The numbers of items of the lease that stay in the buffer as unresolved ones.
            sends: What is sent, under ids that begin with one of ``new_id``; a repeated call writes it once.

        Returns:
            Whether the trigger has fired and there was no flush request: there is one now, and the caller asks for the flush.

        Raises:
            LeaseLost: The lease was given up, and nothing was changed.
        """

    @abstractmethod
    def release(
        self,
        rules: Rules,
        group: str,
        token: str,
        *,
        rejected: Sequence[DeadLetter] = (),
        unreadable: Collection[int] = (),
        counted: bool = True,
        delay_ms: int = 0,
    ) -> None:
        """End a lease: its items are free again at once, except the rejected and the unreadable ones.

        For those see ``remove``. One attempt is counted on each that is free again, if ``counted``. The trigger
        has fired for them (reason ``"again"``).

        The group pauses for ``delay_ms``: until then no claim takes items of it, nor changes it, whichever caller has asked for
        the flush. A longer pause that was begun before lasts, and ``Buffers.fire`` ends the pause. The caller must ask for a
        flush after the delay: its request lasts for ``delay_ms`` plus ``lease_ms``, or longer if an earlier request does.

        Raises:
            LeaseLost: The lease was given up, and nothing was changed.
        """

    @abstractmethod
    def resolve(self, rules: Rules, group: str, numbers: Collection[int]) -> int:
        """Make unresolved items free again, where they stood, with no attempt counted; return how many of them there were.

        The trigger has fired for them (reason ``"again"``), and the group is due at once, whatever its flush request says.
        """

    @abstractmethod
    def restore(self, rules: Rules, dead_letter: DeadLetter) -> bool:
        """Put a rejected item back into its group's buffer, and remove its dead letter: both, or neither.

        It is free where it stood, with no attempt counted, also if its id is remembered, and whatever ``max_buffered`` says. The
        trigger has fired for it (reason ``"again"``), and the group is due at once.

        Returns:
            ``False`` if nothing was done: its id is buffered again, or the dead letter is gone.
        """

    @abstractmethod
    def claim_due(self, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
        """Return at most ``limit`` groups of these aggregators that are due, the longest due first, and request their flushes
        for ``lease_ms``: the caller asks for them.

        Two calls at once never return the same group. It costs the same however many groups are not due. A store of several
        parts takes the longest due of one part after the other, each time beginning with another.
        """

    @abstractmethod
    def purge(self, limit: int) -> int:
        """Forget at most ``limit`` ids of removed items whose time has passed; return how many."""


def can_send(store: AggregateStore) -> bool:
    """Return whether a store's removals can send something; of one that ``encodes`` for another, those of that."""
    parameters = signature(getattr(store, "encodes", store).remove).parameters.values()
    return any(parameter.name == "sends" or parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)


class Buffers(ABC):
    """The buffered items, for programs and operators that inspect them, or change them by hand."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all aggregators that have ever buffered anything here, sorted."""

    @abstractmethod
    def count(self, name: str, group: str | None = None) -> Counts:
        """Count the items of an aggregator, or of one of its groups, without loading any; zeros if there are none."""

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
    def unresolved(self, name: str, limit: int, after: tuple[str, int] | None = None) -> list[tuple[str, Item]]:
        """Return at most ``limit`` unresolved items of an aggregator, each with its group; with ``after``, those that follow this
        group and number, whether an item still has them or not.

        The items of a group follow each other, in the order of insertion; the groups have an order of the store's own. It costs
        the same however many items are buffered that can be read.
        """

    @abstractmethod
    def fire(self, rules: Rules, group: str) -> bool:
        """Fire the trigger for everything that is free or leased in a group (reason ``"requested"``), request its flush, and
        end its pause: the caller asks for the flush. Return ``False``, and change nothing, if the group has no such item.
        """

    @abstractmethod
    def remove(self, rules: Rules, group: str, id: str, *, unresolved: bool = False) -> None:
        """Remove the free or unresolved item with an id, or only if it is unresolved; it is remembered as any that was removed.

        Raises:
            NothingBuffered: The group has no items.
            ItemNotBuffered: It has items, but none with this id that may be removed.
        """

    @abstractmethod
    def clear(self, rules: Rules, group: str) -> int:
        """Remove all items of a group, whatever their state; their leases are given up. Return how many.

        They are remembered as any that were removed. Dead letters of the group stay.
        """
