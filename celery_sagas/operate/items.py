"""The buffered items of an aggregator, as operators act on them: the audit has who did what, and why."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.ids import time_ordered_id
from celery_sagas.core.registry import registry
from celery_sagas.engine.requests.gathering import buffer_of
from celery_sagas.errors import NotBuffered
from celery_sagas.operate.recording import record_act
from celery_sagas.operate.redact import MARK, redacted_item
from celery_sagas.stores.items import Counts
from celery_sagas.stores.optional import no_audit
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, AuditEntry, Lookup
from celery_sagas.worker.aggregators.client import AggregatorClient
from celery_sagas.worker.runtime import Runtime

#: How many items an entry of the audit names, at most: more have several entries.
_NAMED: Final = 100


class Discarded(NamedTuple):
    """What has come of an unreadable item."""

    group: str
    id: str
    discarded: bool  #: ``False``: it is not there, or can be read by now


class ItemsOf(NamedTuple):
    """Which items an entry of the audit is about."""

    aggregator: str = ""  #: empty: it is about something else
    items: int = 0


@dataclass(frozen=True)
class AggregatorItems:
    """The buffered items of an aggregator, as an operator acts on them for a reason.

    The entry of the audit is committed before anything is shown, sent or removed. Each act has entries of its own.

    All acts raise these errors:

    * ``ConfigurationError``: The backend of the aggregators keeps no audit: then nothing is done.
    * ``StoreError``, ``PublishError``: It is unknown whether it was done; it can be repeated.
    """

    _runtime: Runtime
    name: str
    actor: str
    reason: str

    def reveal(self, group: str | None, count: int) -> None:
        """Record that so many items of a group, or of all groups, are shown with what is hidden."""
        self._record("reveal", group, {"items": count})

    def discard(self, items: Iterable[tuple[str, str]]) -> Iterator[Discarded]:
        """Remove unreadable items, given group by group with their ids; yield what has come of each."""
        for group, found in groupby(items, itemgetter(0)):
            ids = [id for _, id in found]
            for named in (ids[first : first + _NAMED] for first in range(0, len(ids), _NAMED)):
                self._record("discard", group, {"items": len(named), "ids": named})
                yield from (Discarded(group, id, self._remove(group, id)) for id in named)

    def flush(self, aggregator: AggregatorDefinition, group: str | None) -> int:
        """Request the flush of a group, or of all groups; return of how many. Without items there is nothing to record.

        Raises:
            ValueError: The text is none of a group.
        """
        client = AggregatorClient(self._runtime, aggregator)
        count = client.count_readable(group)
        if not count:
            return 0
        self._record("flush", group, {"items": count})
        return client.flush(group)

    def _remove(self, group: str, id: str) -> bool:
        """Remove an item, unless it can be read now; return whether it was removed."""
        try:
            self._runtime.batches.buffers.remove(self._runtime.rules_named(self.name), group, id, unresolved=True)
        except NotBuffered:
            return False
        return True

    def _record(self, action: str, group: str | None, about: dict[str, Any]) -> None:
        backend, id = self._runtime.batches, time_ordered_id()
        if not backend.has_audit:
            raise no_audit(backend.url, f"what operators do to the items of {self.name}")
        detail = to_json({"aggregator": self.name, "group": group, **about}).decode()
        act = AuditEntry(id, self.actor, action, self.reason, "", group or "", "", 0, detail)
        run_id = backend.sagas.find(Lookup((act.saga,), ID, id)).new_id
        record_act(backend, act, run_id, self._runtime.settings.conflict_retries)


def items_in(entry: AuditEntry) -> ItemsOf:
    """Return which items of an aggregator an entry of the audit is about, if it is about any."""
    try:
        detail = json.loads(entry.detail)
        return ItemsOf(str(detail["aggregator"]), int(detail["items"]))
    except (ValueError, LookupError, TypeError, RecursionError):  # of another act, or a damaged one
        return ItemsOf()


def buffers_of(batches: Backend, limit: int) -> list[tuple[str, Counts]]:
    """Return the names of the aggregators of the app and of its store, with the numbers of their items."""
    names = sorted({*registry.aggregators, *batches.buffers.names()})
    return [(name, batches.buffers.count(name)) for name in names[:limit]]


def place_of(name: str) -> str:
    """Return whether an aggregator is defined here; the collected answers of gathers are listed under the saga's name."""
    if name in registry.aggregators:
        return "yes"
    gathers = {buffer_of(saga) for definition in registry.sagas.values() for saga in definition.names}
    return "answers to gathers" if name in gathers else "not in this app"


def redacted_text(name: str, payload: str, hidden: Sequence[str]) -> str:
    """Return the JSON text of an item without what is hidden; text that is not JSON, or nested too deeply, is hidden whole."""
    try:
        shown = redacted_item(name, json.loads(payload), hidden)
        return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return MARK


def items_text(number: int) -> str:
    """Return a number of items, in words."""
    return "1 item" if number == 1 else f"{number:,} items"
