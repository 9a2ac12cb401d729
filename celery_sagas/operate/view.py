"""The view of an instance: what is known of it, as values of JSON, redacted. Its names are stable: programs read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from celery_sagas.core.requests.requests import Request
from celery_sagas.core.step import StepDefinition
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.outcomes import Kind
from celery_sagas.operate.explain import Explanation
from celery_sagas.operate.facts import Facts, detail_of, time_of
from celery_sagas.operate.redact import redacted
from celery_sagas.stores.records import DeadLetter, Entry, has_begun


def view_of(facts: Facts, explanation: Explanation, hidden: Sequence[str]) -> dict[str, Any]:
    """Return what is known of an instance.

    Args:
        facts: What was read.
        explanation: What follows from it.
        hidden: Patterns of the names that are hidden.
    """
    return {
        "saga": facts.saga.name,
        "key": facts.key,
        "id": facts.instance_id,
        "verdict": explanation.verdict.value,
        "sentence": explanation.sentence,
        "remedies": [{"command": each.command, "does": each.does} for each in explanation.remedies],
        **_record(facts),
        "paused": facts.pending.paused._asdict() if facts.pending and facts.pending.paused else None,
        "waits_for": _waits_for(facts),
        "outbox": [row._asdict() for row in facts.rows.values()],
        "dead_letters": [_dead_letter(each) for each in facts.dead_letters],
        "goes_on_with": [{"step": step.name, "by": step.rule.describe()} for step in facts.next_steps],
        "state": state_of(facts, hidden),
    }


def state_of(facts: Facts, hidden: Sequence[str]) -> Any:
    """Return the stored state, redacted; ``None`` if it is no JSON."""
    if facts.record is None:
        return None
    try:
        return redacted(facts.saga, from_json(facts.record.data), hidden)
    except (ValueError, TypeError):  # TypeError: half a surrogate pair
        return None


def began_with(facts: Facts) -> Entry | None:
    """Return the entry of the message that began the instance, if the journal remembers it."""
    return next(filter(has_begun, facts.entries), None)


def changed_with(facts: Facts) -> Entry | None:
    """Return the entry of the message that has changed the instance last, if the journal remembers it."""
    version = facts.record.version if facts.record else 0
    changed = (entry for entry in facts.entries if entry.version == version and entry.outcome != Kind.FAILED)
    return next(changed, None)


def author_of(entry: Entry) -> str:
    """Return the step that an entry is of, or the operator with the act."""
    detail = detail_of(entry)
    return f"{detail.get('actor')} ({detail['act']})" if detail.get("act") else entry.step


def property_of(step: StepDefinition) -> str:
    """Return the alternate key by which a step's messages find their instance; empty: it is another rule."""
    return step.rule.property if step.rule.property in step.saga.also_by else ""


def _record(facts: Facts) -> Mapping[str, Any]:
    record, began, changed = facts.record, began_with(facts), changed_with(facts)
    return {
        "version": record.version if record else None,
        "schema_version": record.schema_version if record else None,
        "size": len(record.data.encode(errors="replace")) if record else None,
        "created_at": record.created_at if record else None,
        "created_by": author_of(began) if began else None,
        "changed_at": record.updated_at if record else None,
        "changed_by": author_of(changed) if changed else None,
        "status": facts.status,
        "locked": bool(record and record.locked_by),
        "problems": [str(problem) for problem in facts.problems],
    }


def _waits_for(facts: Facts) -> Mapping[str, Any] | None:
    pending = facts.pending
    if pending is None:
        return None
    undoing = pending.undo.undoing
    return {
        "timeouts": [_timeout(*each) for each in pending.timeouts.items()],
        "requests": [_request(facts, each) for each in facts.requests],
        "deferred": [{"id": each.id, "step": each.step, "since": each.since, "row": each.row} for each in pending.deferred],
        "undo": {"left": pending.left_to_undo, "then": undoing.then.task if undoing and undoing.then else None}
        if pending.is_undoing
        else None,
    }


def _timeout(name: str, timeout: Timeout) -> Mapping[str, Any]:
    is_series = timeout.every is not None
    return {"name": name, "step": timeout.step, "due_at": time_of(timeout), "series": is_series, "row": timeout.row}


def _request(facts: Facts, request: Request) -> Mapping[str, Any]:
    outcomes = facts.members.get(request.id)
    return {
        "id": request.id,
        "task": request.task,
        "then": request.then,
        "otherwise": request.otherwise or None,
        "until": request.at or None,
        "row": request.row or None,
        "sent_at": request.sent_at or None,
        "sent_row": request.sent_row or None,
        "members": request.members or None,
        "at_least": request.at_least or None,
        "answered": len(outcomes.answered) if outcomes else None,
        "failed": len(outcomes.failed) if outcomes else None,
    }


def _dead_letter(dead_letter: DeadLetter) -> Mapping[str, Any]:
    return {name: getattr(dead_letter, name) for name in ("id", "task", "message_id", "error", "at")}
