"""The ports of aggregators, with encoded texts: the items, and what batches send."""

from collections.abc import Collection, Sequence
from typing import Any

from celery_sagas.stores.aggregates import AggregateStore, Buffers
from celery_sagas.stores.encoded.records import Records
from celery_sagas.stores.items import Added, Addition, Counts, DueGroup, Group, Item, Rules, Snapshot
from celery_sagas.stores.records import DeadLetter, Sends


class EncodedAggregates(AggregateStore):
    """Items, and dead letters of those that are rejected. It sends if the store within can."""

    def __init__(self, inner: AggregateStore, records: Records) -> None:
        self.encodes = inner
        self._records = records

    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        return self.encodes.insert(rules, [self._encoded(rules, each) for each in additions])

    def _encoded(self, rules: Rules, addition: Addition) -> Addition:
        items = (self._records.encode_item(rules.name, addition.group, item) for item in addition.items)
        return addition._replace(items=tuple(items))

    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        snapshot = self.encodes.claim(rules, group, token)
        return snapshot and snapshot._replace(items=tuple(self._records.item(rules.name, group, item) for item in snapshot.items))

    def renew(self, rules: Rules, group: str, token: str) -> bool:
        return self.encodes.renew(rules, group, token)

    def new_id(self, rules: Rules, group: str) -> str:
        return self.encodes.new_id(rules, group)

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
        how: dict[str, Any] = {} if sends is None else {"sends": self._records.encode_sends(sends)}
        return self.encodes.remove(rules, group, token, rejected=self._letters(rejected), unreadable=unreadable, **how)

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
        how: dict[str, Any] = {"unreadable": unreadable, "counted": counted, "delay_ms": delay_ms}
        self.encodes.release(rules, group, token, rejected=self._letters(rejected), **how)

    def _letters(self, rejected: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        return list(map(self._records.encode_dead_letter, rejected))

    def resolve(self, rules: Rules, group: str, numbers: Collection[int]) -> int:
        return self.encodes.resolve(rules, group, numbers)

    def restore(self, rules: Rules, dead_letter: DeadLetter) -> bool:
        return self.encodes.restore(rules, self._records.encode_dead_letter(dead_letter))

    def claim_due(self, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
        return self.encodes.claim_due(names, limit, lease_ms)

    def purge(self, limit: int) -> int:
        return self.encodes.purge(limit)


class EncodedBuffers(Buffers):
    """Buffered items."""

    def __init__(self, inner: Buffers, records: Records) -> None:
        self._inner = inner
        self._records = records

    def names(self) -> list[str]:
        return self._inner.names()

    def count(self, name: str, group: str | None = None) -> Counts:
        return self._inner.count(name, group)

    def groups(self, name: str, limit: int, after: str = "") -> list[Group]:
        return self._inner.groups(name, limit, after)

    def read(self, name: str, group: str, limit: int, after: int = 0) -> list[Item]:
        return [self._records.item(name, group, item) for item in self._inner.read(name, group, limit, after)]

    def unresolved(self, name: str, limit: int, after: tuple[str, int] | None = None) -> list[tuple[str, Item]]:
        return [(group, self._records.item(name, group, item)) for group, item in self._inner.unresolved(name, limit, after)]

    def fire(self, rules: Rules, group: str) -> bool:
        return self._inner.fire(rules, group)

    def remove(self, rules: Rules, group: str, id: str, *, unresolved: bool = False) -> None:
        self._inner.remove(rules, group, id, unresolved=unresolved)

    def clear(self, rules: Rules, group: str) -> int:
        return self._inner.clear(rules, group)
