"""The keys in Redis, with what they hold. Data that must last never expires: old data is purged."""

from collections.abc import Sequence
from functools import lru_cache
from secrets import token_hex
from typing import Final

#: What an empty prefix is called in keys; the colon keeps it apart from every real prefix.
_NO_PREFIX: Final = "celery-sagas:"
#: How many of a group's keys are needed where nothing is unresolved or rejected.
_USUAL: Final = 12


def tag_of(prefix: str, part: str) -> str:
    """Return the common hash tag of all keys of a part: a cluster keeps them on one node."""
    return f"{{{prefix or _NO_PREFIX}:{part}}}"


def dead_letters_in(tag: str) -> tuple[str, str]:
    """Return the keys of the dead letters that have a hash tag.

    A hash: id -> dead letter. A sorted set: ids by their times in ms.
    """
    return f"{tag}:dead_letters", f"{tag}:dead_letters:at"


def new_call() -> str:
    """Return a name for a call, which identifies its repeat."""
    return token_hex(8)


def answer_to(call: str, tag: str) -> str:
    """Return the key of a call's answer, a string that expires after a minute: a repeat would be answered differently."""
    return f"{tag}:answer:{call}"


class BufferKeys:
    """The keys of buffers.

    Those of an aggregator are, by the words for them:

    * ``groups``, a hash: group -> what ``lua/parts/state.lua`` says, of each group that has items
    * ``order``, a sorted set: groups that have items, by their names
    * ``due``, a sorted set: groups, by the times in ms at which they are checked
    * ``items``, a hash: number -> <at, ms> <digest of its id> … item, and that digest -> number; but of fresh ones
    * ``fresh_ids``, a hash: digest of aggregator, group and id -> number of a fresh item
    * ``attempts``, a hash: number of an item -> how many of its flushes have failed, if one has
    * ``unread``, a sorted set: <bytes of group>:<group>:<number, 16 digits> of each unresolved item

    Those of a group:

    * ``fresh``, a list: <number>, <item>, … of the fresh ones: free, and never taken by a flush
    * ``free``, a sorted set: the numbers of the items that are free again, by themselves
    * ``leases``, a hash: token -> <until, ms> <items> <unresolved> <1 if there is more> <reason>
    * ``leased``, a hash: token -> <number> <digest> … of the items under the lease

    Args:
        tag: The hash tag of the shard.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        #: A sorted set: digest of aggregator, group and id of a removed item, by the time in ms until when it is known.
        self.seen = f"{tag}:buffer:seen"
        self.sequence = f"{tag}:buffer:sequence"  #: A hash: number -> the last item's; each is used once in a shard.
        self.names = f"{tag}:buffer:names"  #: A sorted set: aggregators that have ever buffered something, by their names.
        self.dead_letters = dead_letters_in(tag)  #: Those of rejected items.

    def of(self, aggregator: str, *kinds: str) -> list[str]:
        """Return keys of an aggregator."""
        return [f"{self._tag}:buffer:{kind}:{aggregator}" for kind in kinds]

    def of_group(self, aggregator: str, group: str, *kinds: str) -> list[str]:
        """Return keys of a group."""
        return [f"{self._tag}:buffer:{kind}:{len(aggregator)}:{aggregator}:{group}" for kind in kinds]

    def change(self, aggregator: str, group: str, *, is_usual: bool = False) -> tuple[str, ...]:
        """Return the keys of the scripts that change one group.

        Args:
            aggregator: Its name.
            group: The group.
            is_usual: Whether they change nothing that is unresolved or rejected.
        """
        keys = _of_change(self, aggregator, group)
        return keys[:_USUAL] if is_usual else keys

    def insertion(self, aggregator: str, groups: Sequence[str], *, has_unreadable: bool) -> tuple[str, ...]:
        """Return the keys of ``aggregate_insert``.

        Args:
            aggregator: Its name.
            groups: In their order.
            has_unreadable: Whether an item is unreadable.
        """
        if len(groups) == 1 and not has_unreadable:  # other combinations hardly ever recur
            return _of_one_insertion(self, aggregator, groups[0])
        return (*_of_insertion(self, aggregator, groups), *(self.of(aggregator, "unread") if has_unreadable else ()))


def _of_all(keys: BufferKeys, aggregator: str) -> list[str]:
    """Return the keys that each of these scripts takes first."""
    return [*keys.of(aggregator, "groups", "order", "due", "items"), keys.sequence, keys.seen, *keys.of(aggregator, "fresh_ids")]


@lru_cache(maxsize=1024)
def _of_change(keys: BufferKeys, aggregator: str, group: str) -> tuple[str, ...]:
    shared = [*_of_all(keys, aggregator), *keys.of(aggregator, "attempts")]
    own = keys.of_group(aggregator, group, "free", "leases", "leased", "fresh")
    return (*shared, *own, *keys.of(aggregator, "unread"), *keys.dead_letters)


@lru_cache(maxsize=1024)
def _of_one_insertion(keys: BufferKeys, aggregator: str, group: str) -> tuple[str, ...]:
    return _of_insertion(keys, aggregator, [group])


def _of_insertion(keys: BufferKeys, aggregator: str, groups: Sequence[str]) -> tuple[str, ...]:
    fresh = [key for group in groups for key in keys.of_group(aggregator, group, "fresh")]
    return (*_of_all(keys, aggregator), keys.names, *fresh)


class Shard:
    """The keys of one shard.

    Args:
        prefix: The setting ``saga_prefix``.
        number: From 0.
        suffix: The end of the ids that are kept here; empty if there is one shard.
    """

    def __init__(self, prefix: str, number: int, suffix: str) -> None:
        self.suffix = suffix
        self.tag = tag = tag_of(prefix, str(number))  #: the hash tag of all of them
        self.locks = f"{tag}:locks"  #: A hash: instance id -> <ends at, ms> <lock owner>.
        self.journal = f"{tag}:journal"  #: A hash: digest of step and message id -> entry.
        self.order = f"{tag}:journal:order"  #: A list: digests of entries in the order of their commits; purged from its head.
        #: A hash: <saga>=<key> -> <number> <digest> of its newest entry; each entry names the one before it. purged -> how many
        #: were removed from the order; without it none, or since then it was empty.
        self.heads = f"{tag}:journal:heads"
        #: A hash: <saga>=<key> -> digest of its newest entry with the outcome completed.
        self.completed = f"{tag}:journal:completed"
        #: In the order in which ``lua/parts/rows.lua`` takes them:
        #: a hash: row id -> row;
        #: a sorted set: row ids, by the times in ms from which they are due: a lease's end while one lasts;
        #: a hash: row id -> <call> <token> of the lease that lasts or was last, if there was one; - once ended;
        #: a hash: row id -> <attempts> <error>, if publishing it has failed;
        #: a sorted set: c:<digest of the deciding message>:<row id>, and i:<bytes>:<instance id>:<that digest>:<row id> for one
        #: that ends with its instance.
        self.rows = tuple(f"{tag}:outbox{name}" for name in ("", ":due", ":leases", ":failures", ":index"))
        #: In the order in which ``lua/parts/effects.lua`` takes them.
        self.effects = (*self.rows, self.journal, self.order, self.heads, self.completed)
        #: A hash: id -> entry. A sorted set without scores: <at in ms, 16 digits><id>, and ~<digest of saga=key><at><id>.
        self.audit = (f"{tag}:audit", f"{tag}:audit:order")
        self.switches = f"{tag}:switches"  #: A hash: name of a saga or a step -> switch. Those of all shards are in the first.
        self.buffers = BufferKeys(tag)

    def id(self, id: str) -> str:
        """Return an id that leads to this shard."""
        return f"{id}.{self.suffix}" if self.suffix else id

    def instances(self, saga: str) -> str:
        """Return the key of a saga's instances, a hash: instance id -> record."""
        return f"{self.tag}:instances:{saga}"

    def keys(self, saga: str) -> str:
        """Return the key of a saga's keys and alternate keys.

        A hash: <property>=<value> -> id of the instance that holds it; #<id> -> the alternate keys and the tags that it holds.
        """
        return f"{self.tag}:keys:{saga}"

    def listed(self, saga: str) -> str:
        """Return the key of the orders in which a saga's instances are listed.

        A sorted set without scores: <slot of the last commit, 8 hex digits><instance id>, and <name of a tag><instance id> for
        each tag of the instance.
        """
        return f"{self.tag}:listed:{saga}"

    def find(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys of ``saga_find``."""
        return _of_find(self, names)

    def commit(self, saga: str, names: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the keys of ``saga_insert``, ``saga_update`` and ``saga_delete``.

        Args:
            saga: Of the instance.
            names: Under which no other instance may hold the same keys.
        """
        return _of_commit(self, saga, names)


@lru_cache(maxsize=4096)  # there are few sagas and many messages
def _of_find(shard: Shard, names: tuple[str, ...]) -> tuple[str, ...]:
    return (shard.locks, shard.journal, *(key for name in names for key in (shard.instances(name), shard.keys(name))))


@lru_cache(maxsize=4096)
def _of_commit(shard: Shard, saga: str, names: tuple[str, ...]) -> tuple[str, ...]:
    each = [shard.keys(name) for name in dict.fromkeys((saga, *names))]
    return (*shard.effects, shard.instances(saga), shard.locks, shard.listed(saga), *each)
