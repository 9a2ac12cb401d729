"""Placement: the shard that keeps a saga's instances, its messages and what they send."""

import re
from collections.abc import Sequence
from copy import copy
from hashlib import blake2b
from itertools import count
from typing import Final, Self

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.layouts import Layout
from celery_sagas.stores.records import ID, Lookup
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.stores.redis.keys import Shard, new_call, tag_of
from celery_sagas.stores.redis.packing import encode

#: Of the keys and what they hold. The version is raised with every change of it, the oldest one with a change on which older code
#: cannot run.
LAYOUT: Final = Layout(version=6, oldest=5)
#: Registered for a saga whose instances lie in all shards, by their keys.
ALL_SHARDS: Final = "all"

_MIGRATE_LAYOUT: Final = load("layout_migrate")
_NOTE_APP: Final = load("app_note")
_REGISTER_LAYOUT: Final = load("layout_register")
_REGISTER_SHARD: Final = load("shard_register")
_TRY_RIGHTS: Final = load("rights_try")


class Placement:
    """The shards of one prefix.

    With one shard everything is there. With several the instances of a saga without alternate keys are in all of them, chosen by
    their keys. Those of any other saga are in one, chosen by its name: alternate keys are unique, and nothing is atomic between
    shards.
    """

    def __init__(self, client: Client, prefix: str, shards: int = 1) -> None:
        self._client = client
        #: A hash: layout -> <version> <oldest> <number of shards>; with several, saga:<saga> -> its shard, or all; app -> <call>
        #: <the app that has started last>; app:before -> another that was the last before it.
        self._meta = tag_of(prefix, "meta")
        self.dead = tag_of(prefix, "dead")  #: the hash tag of the dead letters
        self.shards = tuple(Shard(prefix, number, str(number) if shards > 1 else "") for number in range(shards))
        self._by_suffix = {shard.suffix: shard for shard in self.shards}
        self._registered: dict[tuple[str, ...], str] = {}
        self._turns = count()
        self._registered_at = -1  #: how many connections had been lost then
        self._is_checking = True  #: before each answer

    def register(self) -> None:
        """Register the layout, or compare it with the registered one: once, and again when a connection was lost.

        A server that keeps nothing on disk has forgotten it after a restart.

        Raises:
            ConfigurationError: The prefix was used with a layout on which this code cannot run.
        """
        losses = self._client.losses
        if self._registered_at == losses:
            return
        self._registered.clear()
        own = self._text_of(LAYOUT)
        stored = self._register(own)
        if stored != own:
            self._check_layout(stored)
        self._registered_at = losses

    def look(self) -> bool:
        """Return whether a layout is registered; register none.

        Raises:
            ConfigurationError: It is one on which this code cannot run.
        """
        stored = self._register("")
        if stored:
            self._check_layout(stored)
        return bool(stored)

    def migrate(self) -> int:
        """Register this layout in the place of an earlier one; return the version of that, or 0 if this one was registered.

        Raises:
            ConfigurationError: Nothing is registered, or what cannot be migrated.
        """
        stored, own = self._register(""), self._text_of(LAYOUT)
        if not stored:
            problem = f"nothing is stored under this saga_prefix: the Redis hash {self._meta!r} names no layout"
            raise ConfigurationError(problem, "Give the command the saga_backend and the saga_prefix of the workers")
        version, oldest, shards = _numbers_in(stored)
        is_migrated = Layout(version, oldest).leads_to(LAYOUT) and shards == len(self.shards)
        if is_migrated:
            stored = _text(self._client.run(_MIGRATE_LAYOUT, [self._meta], [stored, own]))
        if stored != own:
            self._check_layout(stored)
        return version if is_migrated else 0

    def check(self) -> None:
        """Compare the layout, if a connection was lost since; ignore, but the first time, a store that is unavailable."""
        if self._registered_at != self._client.losses:
            self._register_again()

    def without_checks(self) -> Self:
        """Return the same placement for callers that have called ``check`` once: while the server is away, each takes long."""
        unchecked = copy(self)  # what is registered is shared
        unchecked._is_checking = False
        return unchecked

    def note_app(self, name: str) -> str:
        """Note an app in place of the one that was noted last; return that one."""
        return _text(self._client.run(_NOTE_APP, [self._meta], [new_call(), name]))

    def try_rights(self) -> None:
        """Run each command that the scripts use once, on keys of its own, to reveal missing rights."""
        self._client.run(_TRY_RIGHTS, [f"{self._meta}:{kind}" for kind in ("hash", "zset", "list", "string")], [])

    def of_lookup(self, lookup: Lookup) -> Shard:
        """Return the shard in which to look."""
        if only := self._only():
            return only
        if lookup.property == ID:
            return self.of_id(lookup.value)
        suffix = self._suffix_of(lookup.names, self._number(lookup.names[0]) if lookup.has_alternate_keys else ALL_SHARDS)
        return self._by_suffix[self._number(lookup.value) if suffix == ALL_SHARDS else suffix]

    def of_id(self, id: str) -> Shard:
        """Return the shard of an id, or of one that begins with it; for a foreign id any shard, but always the same."""
        return self._only() or self._by_suffix.get(id.rpartition(".")[2].partition("-")[0]) or self._by_suffix[self._number(id)]

    def of_key(self, names: Sequence[str], key: str) -> list[Shard]:
        """Return the shards that may keep entries of a key."""
        if only := self._only():
            return [only]
        numbers = {self._number(key), self._suffix_of(tuple(names), "")} - {"", ALL_SHARDS}
        return [self._by_suffix[number] for number in sorted(numbers)]

    def first(self) -> Shard:
        """Return the shard that keeps what belongs to no instance."""
        return self._only() or self.shards[0]

    def of_group(self, aggregator: str, group: str) -> Shard:
        """Return the shard that keeps everything of a group."""
        return self._only() or self._by_suffix[self._number(f"{len(aggregator)}:{aggregator}:{group}")]

    def register_name(self, name: str, former: str) -> None:
        """Register a name of a saga where a former one is: its instances stay in their shards."""
        if not self._only() and (suffix := self._suffix_of((name, former), "")):
            self._client.run(_REGISTER_SHARD, [self._meta], [suffix, name, former])

    def in_turn(self) -> list[Shard]:
        """Return all shards; each time another one comes first."""
        self._only()
        first = next(self._turns) % len(self.shards)
        return [*self.shards[first:], *self.shards[:first]]

    def _text_of(self, layout: Layout) -> str:
        """Return what is registered of a layout."""
        return f"{layout.version} {layout.oldest} {len(self.shards)}"

    def _register(self, layout: str) -> str:
        """Register a layout, unless there is one, or only look for an empty text; return the one that is registered."""
        return _text(self._client.run(_REGISTER_LAYOUT, [self._meta], [layout]))

    def _only(self) -> Shard | None:
        """Return the shard, if there is no other; before that compare the layout."""
        if self._is_checking:
            self.check()
        return self.shards[0] if len(self.shards) == 1 else None

    def _register_again(self) -> None:
        """Compare the layout again; after a first success, ignore a store that is unavailable, such as another node."""
        was_registered = self._registered_at >= 0
        try:
            self.register()
        except ConfigurationError as exc:
            raise self._misplaced(str(exc)) from exc
        except StoreUnavailable:
            if not was_registered:
                raise

    def _misplaced(self, problem: str) -> StoreUnavailable:
        """Return the error that makes a message wait until operators have fixed the settings."""
        return StoreUnavailable(self._client.errors.shown, problem)

    def _number(self, text: str) -> str:
        """Choose a shard."""
        return str(int.from_bytes(blake2b(encode(text), digest_size=8).digest(), "big") % len(self.shards))

    def _suffix_of(self, names: tuple[str, ...], chosen: str) -> str:
        """Return where a saga lives: as registered under one of its names, else ``chosen``, which is empty to only look."""
        suffix = self._registered.get(names)
        if suffix is None:
            answer = self._client.run(_REGISTER_SHARD, [self._meta], [chosen, *names])
            if not answer:
                return chosen
            suffix = self._registered[names] = self._checked(names, [_text(word) for word in answer])
        if chosen and (suffix == ALL_SHARDS) != (chosen == ALL_SHARDS):
            raise self._misplaced(_moved(names[0], suffix))
        return suffix

    def _checked(self, names: tuple[str, ...], suffixes: list[str]) -> str:
        suffix, *others = suffixes
        if others or (suffix != ALL_SHARDS and suffix not in self._by_suffix):
            raise self._misplaced(
                f"the names of one saga, {', '.join(names)}, are registered in different shards, or in one that does not "
                f"exist: {', '.join(suffixes)}. "
                f"Give the saga a name that was never used, or fix the fields saga:<name> of the Redis hash {self._meta!r}"
            )
        return suffix

    def _check_layout(self, stored: str) -> None:
        version, oldest, shards = _numbers_in(stored)
        layout = Layout(version, oldest)
        if layout.leads_to(LAYOUT):
            self._check_shards(shards)
        if remedy := layout.remedy(LAYOUT):
            raise ConfigurationError(
                f"the Redis hash {self._meta!r} says layout {stored!r}, this celery-sagas knows layout {LAYOUT.version}", remedy
            )
        self._check_shards(shards)

    def _check_shards(self, shards: int) -> None:
        if shards != len(self.shards):
            raise ConfigurationError(
                f"saga_backend_options has shards={len(self.shards)}, but what is stored under this saga_prefix has {shards}: "
                "with another number nothing of it would be found",
                f"Set shards back to {shards}. To change it, let all sagas complete and the outbox run empty, then set "
                "saga_prefix to one that was never used",
            )


def _numbers_in(stored: str) -> tuple[int, int, int]:
    """Return the numbers of a registered layout: its version, the oldest one, how many shards; zeros, if it is none."""
    numbers = re.fullmatch(r"(\d+) (\d+) (\d+)", stored, re.ASCII)
    return (int(numbers[1]), int(numbers[2]), int(numbers[3])) if numbers else (0, 0, 0)


def _moved(saga: str, suffix: str) -> str:
    was, now = ("in all shards", "has") if suffix == ALL_SHARDS else ("in one shard", "no longer has")
    return (
        f"the instances of {saga} are {was}, and its class {now} alternate keys (also_by) since. "
        "Undo that, or give the saga a new name without formerly, and let the instances under the old name complete"
    )


def _text(word: bytes) -> str:
    return word.decode(errors="replace")
