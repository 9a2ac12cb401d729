"""One instance: why it does not go on or for what it waits, what it has handled, and what is stored of it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from celery_sagas.core.graph.drawing import drawing_of
from celery_sagas.core.graph.marks import awaited_steps, marks_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.operate.changes import Changed, changed_in, with_values
from celery_sagas.operate.entries import act_of, audited_act, facts_of, names_of, outcome_of, sent_with
from celery_sagas.operate.explain import Explanation, explain
from celery_sagas.operate.facts import Facts, detail_of
from celery_sagas.operate.graphs import registered_graph, taken_steps
from celery_sagas.operate.reading import ENTRIES, read_facts
from celery_sagas.operate.view import author_of, began_with, changed_with, property_of, state_of, view_of
from celery_sagas.operate.waits import Row as Waited
from celery_sagas.operate.waits import is_shown, row_of, waits_of
from celery_sagas.stores.records import AuditEntry, Entry
from celery_sagas.web.graph import Picture, picture_of
from celery_sagas.web.pages.acting import VERBS
from celery_sagas.web.pages.listing import lookup_named, saga_of_id
from celery_sagas.web.visit import Page, Refused, Visit

#: How many lines a section has, and how many fields of a state are shown.
LINES: Final = 50
FIELDS: Final = 200
#: How many entries of the audit, and of a timeline.
_AUDITED: Final = 50
#: What is left out of the view for whoever may not read states and messages.
_NOT_READ: Final = ("state", "problems")


class Row(NamedTuple):
    """A message that an instance has handled, or an act on it: what came, what has changed, and what was sent."""

    at: int
    step: str  #: or the operator who has acted
    outcome: str  #: or the act
    reason: str  #: of the act
    kind: str  #: the outcome's word
    version: int
    changed: Changed | None
    names: str
    sent: Sequence[str]


def rows_of(saga: SagaDefinition, entries: Iterable[Entry], hidden: Sequence[str], *, may_read: bool) -> list[Row]:
    """Return the rows of a timeline; with the values of changed fields for whoever may read these."""
    return [_row(entry, with_values(saga, entry, hidden) if may_read else changed_in(entry)) for entry in entries]


def _row(entry: Entry, changed: Changed | None) -> Row:
    detail = detail_of(entry)
    came = (entry.step, outcome_of(entry), "")
    if act := detail.get("act"):
        came = (str(detail.get("actor")), act_of(str(act), detail), str(detail.get("because")))
    return Row(entry.at, *came, entry.outcome, entry.version, changed, names_of(changed), list(sent_with(entry)))


def instance(visit: Visit, id: str) -> Page:
    """Show one instance."""
    saga = saga_of_id(visit, id)
    facts = read_facts(visit.runtime, saga, lookup_named(saga.names, id))
    if facts is None:
        raise Refused(404, "There is no such instance: it has ended, or never was.")
    explanation, state = explain(facts), state_of(facts, visit.hidden) if visit.may_read else None
    fields = list(state.items()) if isinstance(state, dict) else []
    context = {
        **_about(facts, explanation),
        "may_read": visit.may_read,
        "state": state,
        "fields": fields[:FIELDS],
        "more_fields": len(fields) - FIELDS,
        "rows": rows_of(saga, facts.entries, visit.hidden, may_read=visit.may_read),
        "is_cut": len(facts.entries) >= ENTRIES,
        "picture": _picture(saga, facts),
        "audit": _audit(visit, saga, facts),
        "audited_act": audited_act,
        "verbs": VERBS,
        "did": visit.given("did"),
    }
    view = view_of(facts, explanation, visit.hidden)
    return Page("instance.html", context, view if visit.may_read else _without_texts(view))


def _without_texts(view: dict[str, Any]) -> dict[str, Any]:
    """Return a view for whoever may not read states, messages and the texts of errors."""
    outbox = [{name: value for name, value in row.items() if name != "error"} for row in view["outbox"]]
    return {name: value for name, value in view.items() if name not in _NOT_READ} | {"outbox": outbox}


def _about(facts: Facts, explanation: Explanation) -> dict[str, Any]:
    waits = list(waits_of(facts, facts.pending)) if facts.pending is not None else []
    outbox = [row_of(facts, row) for row in facts.rows.values() if is_shown(facts, row)]
    began, changed = began_with(facts), changed_with(facts)
    return {
        "saga": facts.saga,
        "facts": facts,
        "record": facts.record,
        "size": len(facts.record.data.encode(errors="replace")) if facts.record else 0,
        "verdict": explanation.verdict.value,
        "explanation": explanation,
        "created_by": author_of(began) if began else "",
        "changed_by": author_of(changed) if changed else "",
        "waits": list(_with_acts(facts, waits[:LINES])),
        "more_waits": len(waits) - LINES,
        "outbox": outbox[:LINES],
        "more_outbox": len(outbox) - LINES,
        "goes_on_with": [(step.name, property_of(step)) for step in islice(facts.next_steps, LINES)],
    }


def _with_acts(facts: Facts, waits: Iterable[Waited]) -> Iterator[tuple[Waited, str, Sequence[str]]]:
    """Yield what an instance waits for, how that is named in acts, and the acts that it may need."""
    requests = iter(facts.requests)
    for row in waits:
        if row[0] in ("timeout", "series"):
            yield row, row[1], ("fire", "skip")
        elif row[0] == "request":
            request = next(requests)
            verbs = ["skip"] if request.members else ["answer"]
            yield row, request.id, ["fire", *verbs] if request.at else verbs
        else:
            yield row, "", ()


def _picture(saga: SagaDefinition, facts: Facts) -> Picture:
    graph = registered_graph(saga)
    awaited = awaited_steps(facts.pending) if facts.pending is not None else ()
    return picture_of(drawing_of(graph, marks_of(graph, taken_steps(facts.entries, facts.instance_id), awaited)))


def _audit(visit: Visit, saga: SagaDefinition, facts: Facts) -> list[AuditEntry]:
    backend = visit.runtime.backends.of(saga)
    if not backend.has_audit or not facts.key:
        return []
    entries = backend.audit.recent(_AUDITED, names=saga.names, key=facts.key).entries
    return [entry for entry in entries if entry.instance_id in ("", facts.instance_id)]


def timeline(visit: Visit) -> Page:
    """Show what the newest instance with a key has handled, also when it has ended."""
    saga, key = visit.saga(visit.given("saga")), visit.query.get("key", "")
    backend = visit.runtime.backends.of(saga)
    try:
        entries = backend.journal.history(saga.names, key, ENTRIES) if key and "\0" not in key else []
    except UnicodeError:
        entries = []
    if not entries:
        raise Refused(
            404, f"There is no instance of {saga.name} with this key, and the journal knows none: none came, or it was purged."
        )
    ids = list(dict.fromkeys(entry.instance_id for entry in reversed(entries) if entry.instance_id))
    shown = [entry for entry in entries if not ids or entry.instance_id in ("", ids[0])]
    rows = rows_of(saga, shown, visit.hidden, may_read=visit.may_read)
    context = {
        "saga": saga,
        "key": key,
        "id": ids[0] if ids else "",
        "rows": rows,
        "is_cut": len(entries) >= ENTRIES,
        "did": visit.given("did"),
    }
    return Page("timeline.html", context, {"items": list(map(facts_of, shown))})
