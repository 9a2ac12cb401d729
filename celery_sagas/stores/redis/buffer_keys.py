"""The keys of buffers in one shard, in the orders in which the scripts take them.

Names of aggregators and groups stand at the end of a key, and the length of the first before both: whatever is in them, no two
keys are the same, and none leaves the hash tag.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

#: How many of a group's keys are needed where nothing is kept for other code, or for people.
_WITHOUT_KEPT: Final = 12


class BufferKeys:
    """The keys of buffers.

    Args:
        tag: The hash tag of the shard.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.seen = f"{tag}:buffer:seen"
        self.sequence = f"{tag}:buffer:sequence"
        self.names = f"{tag}:buffer:names"

    def of(self, aggregator: str, *kinds: str) -> list[str]:
        """Return keys of an aggregator, by the words for them in the catalogue."""
        return [f"{self._tag}:buffer:{kind}:{aggregator}" for kind in kinds]

    def of_group(self, aggregator: str, group: str, *kinds: str) -> list[str]:
        """Return keys of a group."""
        return [f"{self._tag}:buffer:{kind}:{len(aggregator)}:{aggregator}:{group}" for kind in kinds]

    def change(self, aggregator: str, group: str, *, keeps: bool = True) -> tuple[str, ...]:
        """Return what the scripts take that change one group.

        Args:
            aggregator: Its name.
            group: The group.
            keeps: Whether they may change what is unresolved or rejected.
        """
        keys = _of_change(self, aggregator, group)
        return keys if keeps else keys[:_WITHOUT_KEPT]

    def insertion(self, aggregator: str, groups: Sequence[str], *, keeps: bool) -> tuple[str, ...]:
        """Return what ``aggregate_insert`` takes.

        Args:
            aggregator: Its name.
            groups: In their order.
            keeps: Whether an item is unresolved.
        """
        if len(groups) == 1:  # several groups hardly ever come together again
            return _of_one_insertion(self, aggregator, groups[0], keeps)
        return _of_insertion(self, aggregator, groups, keeps)


def _of_all(keys: BufferKeys, aggregator: str) -> list[str]:
    """Return what each of these scripts takes first."""
    return [*keys.of(aggregator, "groups", "order", "due", "items"), keys.sequence, keys.seen, *keys.of(aggregator, "fresh_ids")]


@lru_cache(maxsize=1024)
def _of_change(keys: BufferKeys, aggregator: str, group: str) -> tuple[str, ...]:
    shared = [*_of_all(keys, aggregator), *keys.of(aggregator, "attempts")]
    own = keys.of_group(aggregator, group, "free", "leases", "leased", "fresh")
    waiting = [*keys.of(aggregator, "kept", "unresolved", "notes"), *keys.of_group(aggregator, group, "unread")]
    return (*shared, *own, *waiting, *keys.of(aggregator, "rejected", "rejected_of"))


@lru_cache(maxsize=1024)
def _of_one_insertion(keys: BufferKeys, aggregator: str, group: str, keeps: bool) -> tuple[str, ...]:
    return _of_insertion(keys, aggregator, [group], keeps)


def _of_insertion(keys: BufferKeys, aggregator: str, groups: Sequence[str], keeps: bool) -> tuple[str, ...]:
    shared = [*_of_all(keys, aggregator), keys.names]
    fresh = [key for group in groups for key in keys.of_group(aggregator, group, "fresh")]
    if not keeps:
        return (*shared, *fresh)
    unread = [key for group in groups for key in keys.of_group(aggregator, group, "unread")]
    return (*shared, *fresh, *keys.of(aggregator, "kept", "unresolved", "notes"), *unread)
