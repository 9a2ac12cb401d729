"""What was handled, and what operators have done, the newest first."""

from typing import Final

from celery_sagas.engine.outcomes import Kind
from celery_sagas.operate.entries import audited_act, audited_subject, facts_of, outcome_of
from celery_sagas.stores.records import AuditEntry, Entry
from celery_sagas.web.visit import Page, Refused, Visit

#: How many a page has.
LIMIT: Final = 50
#: How often a backend is asked for one page: few that are chosen are found by looking at many.
_CALLS: Final = 10
OUTCOMES: Final = [kind.value for kind in Kind if kind not in (Kind.DROPPED, Kind.DUPLICATE)]


def activity(visit: Visit) -> Page:
    """Show what was handled lately in a backend."""
    store, saga, outcome = visit.store(), visit.saga_given(), visit.given("outcome")
    if outcome and outcome not in OUTCOMES:
        raise Refused(400, f"Choose one of these outcomes: {', '.join(OUTCOMES)}.")
    names, outcomes = saga.names if saga else (), [outcome] if outcome else []
    journal, after, found = store.backend.journal, visit.given("after"), list[Entry]()
    for _ in range(_CALLS):
        entries, after, _since = journal.recent(LIMIT - len(found), after, names, outcomes)
        found += entries
        if not after or len(found) == LIMIT:
            break
    context = {
        "rows": [(entry, outcome_of(entry)) for entry in found],
        "outcomes": OUTCOMES,
        "outcome": outcome,
        "saga": saga.name if saga else "",
        "store": store,
        "after": after,
        "now": store.backend.outbox.time(),
        "is_first": not visit.given("after"),
    }
    return Page("activity.html", context, {"items": list(map(facts_of, found)), "after": after})


def audit(visit: Visit) -> Page:
    """Show what operators have done, and why."""
    store, saga, actor = visit.store(), visit.saga_given(), visit.given("actor")
    after, found = visit.given("after"), list[AuditEntry]()
    for _ in range(_CALLS if store.backend.has_audit else 0):
        entries, after = store.backend.audit.recent(LIMIT - len(found), after, saga.names if saga else ())
        found += [entry for entry in entries if actor in ("", entry.actor)]
        if not after or len(found) == LIMIT:
            break
    context = {
        "rows": [(entry, audited_act(entry), audited_subject(entry)) for entry in found],
        "actor": actor,
        "saga": saga.name if saga else "",
        "store": store,
        "after": after,
        "now": store.backend.outbox.time(),
        "is_first": not visit.given("after"),
        "has_audit": store.backend.has_audit,
    }
    return Page("audit.html", context, {"items": [each._asdict() for each in found], "after": after})
