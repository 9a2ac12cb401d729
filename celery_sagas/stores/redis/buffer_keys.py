"""The keys of buffers in one shard, in the orders in which the scripts take them.

Names of aggregators and groups stand at the end of a key, and the length of the first before both: whatever is in them, no two
keys are the same, and none leaves the hash tag.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

#: How many of a group's keys are needed where nothing is unresolved or rejected.
_USUAL: Final = 12


def letters_in(tag: str) -> tuple[str, str]:
    """Return the keys of the dead letters that have a hash tag."""
    return f"{tag}:letters", f"{tag}:letters:at"


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
        self.letters = letters_in(tag)  #: those of rejected items

    def of(self, aggregator: str, *kinds: str) -> list[str]:
        """Return keys of an aggregator, by the words for them in the catalogue."""
        return [f"{self._tag}:buffer:{kind}:{aggregator}" for kind in kinds]

    def of_group(self, aggregator: str, group: str, *kinds: str) -> list[str]:
        """Return keys of a group."""
        return [f"{self._tag}:buffer:{kind}:{len(aggregator)}:{aggregator}:{group}" for kind in kinds]

    def change(self, aggregator: str, group: str, *, is_usual: bool = False) -> tuple[str, ...]:
        """Return what the scripts take that change one group.

        Args:
            aggregator: Its name.
            group: The group.
            is_usual: Whether they change nothing that is unresolved or rejected.
        """
        keys = _of_change(self, aggregator, group)
        return keys[:_USUAL] if is_usual else keys

    def insertion(self, aggregator: str, groups: Sequence[str], *, has_unreadable: bool) -> tuple[str, ...]:
        """Return what ``aggregate_insert`` takes.

        Args:
            aggregator: Its name.
            groups: In their order.
            has_unreadable: Whether an item is unreadable.
        """
        if len(groups) == 1 and not has_unreadable:  # others hardly ever come together again
            return _of_one_insertion(self, aggregator, groups[0])
        return (*_of_insertion(self, aggregator, groups), *(self.of(aggregator, "unread") if has_unreadable else ()))


def _of_all(keys: BufferKeys, aggregator: str) -> list[str]:
    """Return what each of these scripts takes first."""
    return [*keys.of(aggregator, "groups", "order", "due", "items"), keys.sequence, keys.seen, *keys.of(aggregator, "fresh_ids")]


@lru_cache(maxsize=1024)
def _of_change(keys: BufferKeys, aggregator: str, group: str) -> tuple[str, ...]:
    shared = [*_of_all(keys, aggregator), *keys.of(aggregator, "attempts")]
    own = keys.of_group(aggregator, group, "free", "leases", "leased", "fresh")
    return (*shared, *own, *keys.of(aggregator, "unread"), *keys.letters)


@lru_cache(maxsize=1024)
def _of_one_insertion(keys: BufferKeys, aggregator: str, group: str) -> tuple[str, ...]:
    return _of_insertion(keys, aggregator, [group])


def _of_insertion(keys: BufferKeys, aggregator: str, groups: Sequence[str]) -> tuple[str, ...]:
    fresh = [key for group in groups for key in keys.of_group(aggregator, group, "fresh")]
    return (*_of_all(keys, aggregator), keys.names, *fresh)
