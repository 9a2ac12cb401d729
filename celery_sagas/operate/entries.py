"""Entries of the journal and of the audit, as operators see them: without the arguments and states that they may have."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from celery_sagas.core.changes import MANY
from celery_sagas.operate.changes import Changed, changed_in
from celery_sagas.operate.facts import detail_of, parts_of
from celery_sagas.operate.items import items_in, items_text
from celery_sagas.operate.switching import name_in
from celery_sagas.stores.records import AuditEntry, Entry

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


def sent_with(entry: Entry) -> Iterator[str]:
    """Yield what a message has sent: requests, with the steps that get their outcomes, other messages, and timeouts."""
    detail = detail_of(entry)
    asked = {_text(each, "request"): each for each in parts_of(detail, "asked")}
    sent = [_asked(each) for each in asked.values()]
    sent += [_text(each, "task") for each in parts_of(detail, "sent") if _text(each, "id", "") not in asked]
    sent += [f"timeout → {_text(each, 'task')}" for each in parts_of(detail, "scheduled")]
    for what, count in Counter(sent).items():
        yield what if count == 1 else f"{what} ({count:,} times)"


def _asked(request: Mapping[str, Any]) -> str:
    members = request.get("members")
    what = f"{members:,} members" if members and isinstance(members, int) else _text(request, "task")
    steps = dict.fromkeys(filter(None, (_text(request, "then", ""), _text(request, "otherwise", ""))))
    return f"{what} → {' | '.join(steps)}"


def _text(values: Mapping[str, Any], name: str, otherwise: str = "?") -> str:
    value = values.get(name)
    return value if isinstance(value, str) else otherwise


def audited_act(entry: AuditEntry) -> str:
    """Return what an operator has done, as the audit says it; to items also to how many."""
    about, act = items_in(entry), act_of(entry.action, detail_of(entry))
    return f"{act} ({items_text(about.items)})" if about.aggregator else act


def audited_subject(entry: AuditEntry) -> str:
    """Return to what it was done: the name of what was held, of an aggregator, or of the saga."""
    return name_in(entry) or items_in(entry).aggregator or entry.saga
