"""The catalogue of keys in Redis. Data that must last never expires: old data is purged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from secrets import token_hex
from typing import Final

#: How many of a group's keys are needed where nothing is unresolved or rejected.
_USUAL: Final = 12


def dead_letters_in(tag: str) -> tuple[str, str]:
    """Return the keys of the dead letters that have a hash tag."""
    return f"{tag}:dead_letters", f"{tag}:dead_letters:at"


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
        self.dead_letters = dead_letters_in(tag)  #: those of rejected items

    def of(self, aggregator: str, *kinds: str) -> list[str]:
        """Return keys of an aggregator, by the words for them in the catalogue."""
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


#: What an empty prefix is called in keys; the colon keeps it apart from every real prefix.
_NO_PREFIX: Final = "celery-sagas:"


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A kind of key."""

    type: str  #: as the command ``TYPE`` names it
    meaning: str
    expires: str = "never"


#: By what follows the hash tag ``{<prefix>:<shard>}``; ``<saga>`` is a saga's stored name, ``<aggregator>`` an aggregator's, and
#: ``<group>`` stands for ``<characters of aggregator>:<aggregator>:<group>``.
SHARD_KEYS: Final[Mapping[str, KeyKind]] = {
    "instances:<saga>": KeyKind("hash", "instance id -> record"),
    "keys:<saga>": KeyKind(
        "hash", "<property>=<value> -> id of the instance that holds it; #<id> -> the alternate keys it holds"
    ),
    "locks": KeyKind("hash", "instance id -> <ends at, ms> <lock owner>"),
    "journal": KeyKind("hash", "digest of step and message id -> entry"),
    "journal:order": KeyKind("list", "digests of entries in the order of their commits: purged from its head"),
    "journal:heads": KeyKind("hash", "<saga>=<key> -> <number> <digest> of its newest entry; each entry names the one before it"),
    "journal:completed": KeyKind("hash", "<saga>=<key> -> digest of its newest entry with the outcome completed"),
    "outbox": KeyKind("hash", "row id -> row"),
    "outbox:due": KeyKind("zset", "row id, by the time in ms from which it is due: a lease's end while one lasts"),
    "outbox:leases": KeyKind(
        "hash", "row id -> <call> <token> of the lease that lasts or was last, if there was one; - once ended"
    ),
    "outbox:failures": KeyKind("hash", "row id -> <attempts> <error>, if publishing it has failed"),
    "outbox:index": KeyKind(
        "zset",
        "c:<digest of the deciding message>:<row id>; i:<bytes>:<instance id>:<that digest>:<row id> for one that ends with it",
    ),
    "buffer:groups:<aggregator>": KeyKind("hash", "group -> what lua/parts/state.lua says, of each group that has items"),
    "buffer:order:<aggregator>": KeyKind("zset", "groups that have items, by their names"),
    "buffer:due:<aggregator>": KeyKind("zset", "group, by the time in ms at which somebody looks at it"),
    "buffer:items:<aggregator>": KeyKind(
        "hash", "number -> <at, ms> <digest of its id> … item, and that digest -> number; but of fresh ones"
    ),
    "buffer:fresh:<group>": KeyKind(
        "list", "<number>, <item>, … of the fresh ones: free, and never taken by a flush; a number is used once in a shard"
    ),
    "buffer:fresh_ids:<aggregator>": KeyKind("hash", "digest of aggregator, group and id -> number of a fresh item"),
    "buffer:attempts:<aggregator>": KeyKind("hash", "number of an item -> how many of its flushes have failed, if one has"),
    "buffer:unread:<aggregator>": KeyKind("zset", "<bytes of group>:<group>:<number, 16 digits> of each unresolved item"),
    "buffer:free:<group>": KeyKind("zset", "numbers of the items that are free again, by themselves"),
    "buffer:leases:<group>": KeyKind("hash", "token -> <until, ms> <items> <unresolved> <1 if there is more> <reason>"),
    "buffer:leased:<group>": KeyKind("hash", "token -> <number> <digest> … of the items under the lease"),
    "buffer:seen": KeyKind(
        "zset", "digest of aggregator, group and id of a removed item, by the time in ms until when it is known"
    ),
    "buffer:sequence": KeyKind("hash", "number -> the last item's"),
    "buffer:names": KeyKind("zset", "aggregators that have ever buffered something, by their names"),
    "dead_letters": KeyKind("hash", "id -> dead letter of a rejected item"),
    "dead_letters:at": KeyKind("zset", "id of that, by its time in ms"),
    "answer:<call>": KeyKind("string", "what a call was answered whose repeat would be answered differently", "after a minute"),
}
#: By what follows the hash tag ``{<prefix>:dead}``, of what has to do with messages that fail.
DEAD_KEYS: Final[Mapping[str, KeyKind]] = {
    "dead_letters": KeyKind("hash", "id -> dead letter"),
    "dead_letters:at": KeyKind("zset", "id of a dead letter, by its time in ms"),
    "deliveries": KeyKind("hash", "digest of step and message id -> how often it was delivered again"),
    "deliveries:at": KeyKind("zset", "digest of step and message id, by the time in ms of the last delivery"),
    "answer:<call>": SHARD_KEYS["answer:<call>"],
}
#: Behind any hash tag, where ``wait_replicas`` is set.
WAITS_KEY: Final = KeyKind("hash", "waits: written with the repeat of a commit, so that WAIT has something to wait for")
#: The key ``{<prefix>:meta}`` itself.
META_KEY: Final = KeyKind(
    "hash",
    "layout -> <version> <oldest> <number of shards>; with several, saga:<saga> -> its shard, or all; "
    "app -> <call> <the app that has started last>, and app:before -> another that was the last before it",
)


def tag_of(prefix: str, part: str) -> str:
    """Return the common hash tag of all keys of a part: a cluster keeps them on one node."""
    return f"{{{prefix or _NO_PREFIX}:{part}}}"


def new_call() -> str:
    """Return a name for a call, which identifies its repeat."""
    return token_hex(8)


def answer_to(call: str, tag: str) -> str:
    """Return the key of a call's answer."""
    return f"{tag}:answer:{call}"


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
        self.locks = f"{tag}:locks"
        self.journal = f"{tag}:journal"
        self.order = f"{tag}:journal:order"
        self.heads = f"{tag}:journal:heads"
        self.completed = f"{tag}:journal:completed"
        #: In the order in which ``lua/parts/rows.lua`` takes them.
        self.rows = tuple(f"{tag}:outbox{name}" for name in ("", ":due", ":leases", ":failures", ":index"))
        #: In the order in which ``lua/parts/effects.lua`` takes them.
        self.effects = (*self.rows, self.journal, self.order, self.heads, self.completed)
        self.buffers = BufferKeys(tag)
        self._of_find: dict[tuple[str, ...], list[str]] = {}
        self._of_commits: dict[tuple[str, ...], list[str]] = {}

    def id(self, id: str) -> str:
        """Return an id that leads to this shard."""
        return f"{id}.{self.suffix}" if self.suffix else id

    def answer(self, call: str) -> str:
        """Return the key of a call's answer."""
        return answer_to(call, self.tag)

    def instances(self, saga: str) -> str:
        """Return the key of a saga's instances."""
        return f"{self.tag}:instances:{saga}"

    def keys(self, saga: str) -> str:
        """Return the key of a saga's keys and alternate keys."""
        return f"{self.tag}:keys:{saga}"

    def find(self, names: tuple[str, ...]) -> list[str]:
        """Return the keys of ``saga_find``; made once, since there are few sagas and many messages."""
        keys = self._of_find.get(names)
        if keys is None:
            each = [key for name in names for key in (self.instances(name), self.keys(name))]
            keys = self._of_find[names] = [self.locks, self.journal, *each]
        return keys

    def commit(self, saga: str, names: tuple[str, ...] = ()) -> list[str]:
        """Return the keys of ``saga_insert``, ``saga_update`` and ``saga_delete``; made once.

        Args:
            saga: Of the instance.
            names: Under which no other instance may hold the same keys.
        """
        keys = self._of_commits.get((saga, *names))
        if keys is None:
            each = [self.keys(name) for name in dict.fromkeys((saga, *names))]
            keys = self._of_commits[saga, *names] = [*self.effects, self.instances(saga), self.locks, *each]
        return keys
