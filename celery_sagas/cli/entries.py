"""Entries of the journal, as operators see them: without the arguments and states that they may have."""

from collections.abc import Mapping
from typing import Any, Final

from celery_sagas.core.changes import MANY
from celery_sagas.operate.changes import Changed, changed_in
from celery_sagas.operate.facts import detail_of
from celery_sagas.stores.records import Entry

#: The details of an entry that are shown: others have arguments and states.
_SHOWN: Final = (
    *("reason", "request", "came", "late", "asked", "sent", "scheduled", "deadline"),
    *("act", "actor", "because", "fields", "skipped", "fired", "as", "dead_letter"),
)


def facts_of(entry: Entry) -> dict[str, Any]:
    """Return what a program is told of an entry."""
    detail = detail_of(entry)
    facts = {field: value for field, value in entry._asdict().items() if field not in ("attempt", "detail")}
    changed = changed_in(entry)
    facts["changed"] = {"names": changed.names, "many": changed.many} if changed else None
    return facts | {field: detail[field] for field in _SHOWN if field in detail}


def outcome_of(entry: Entry) -> str:
    """Return the outcome of an entry, with why it is that one."""
    detail = detail_of(entry)
    if detail.get("act"):
        return f"{act_of(detail['act'], detail)} ({detail.get('actor')}: {detail.get('because')})"
    reason, late = f" ({detail['reason']})" if detail.get("reason") else "", " late" if detail.get("late") else ""
    return f"{entry.outcome or 'unreadable'}{reason}{late}"


def act_of(name: str, detail: Mapping[str, Any]) -> str:
    """Return what an operator has done; of a termination, as what."""
    how = detail.get("as") if name == "terminate" else None
    return f"{name} as {how}" if how else name


def names_of(changed: Changed | None) -> str:
    """Return the names of changed fields as a cell of a table has them."""
    if changed is None:
        return "-"
    return MANY if changed.many else ", ".join(changed.names) or "-"
