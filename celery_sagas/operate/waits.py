"""For what an instance waits, in rows of a table."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from celery_sagas.core.pending import Pending
from celery_sagas.core.requests.requests import Request
from celery_sagas.operate.facts import Facts, name_of, time_of
from celery_sagas.operate.spans import span, time_text
from celery_sagas.stores.records import OutboxGlance

#: The cells of a row. Stored text in them is as it is.
Row: TypeAlias = tuple[str, ...]
#: A cell without text.
_BLANK: Final = " "


def waits_of(facts: Facts, pending: Pending) -> Iterator[Row]:
    """Yield a row for each thing that an instance waits for: timeouts by their times, requests, deferred messages, undos."""
    for name, timeout in sorted(pending.timeouts.items(), key=lambda each: time_of(each[1])):
        kind = "series" if timeout.every else "timeout"
        yield kind, name, f"due {_at(facts, time_of(timeout))}", f"→ {timeout.step}", _place(facts, timeout.row)
    yield from (_request(facts, request) for request in facts.requests)
    for deferred in pending.deferred:
        place = _place(facts, deferred.row) if deferred.row else _BLANK
        yield "deferred", deferred.step, f"since {time_text(deferred.since, facts.zone)}", _BLANK, place
    if pending.is_undoing:
        then = pending.undo.undoing.then if pending.undo.undoing else None
        yield "undo", f"{pending.left_to_undo:,} left", _BLANK, f"→ {then.task}" if then else _BLANK, _BLANK


def _request(facts: Facts, request: Request) -> Row:
    steps = " | ".join(dict.fromkeys(filter(None, (request.then, request.otherwise))))
    until = f"until {_at(facts, request.at)}" if request.at else "no deadline"
    outcomes = facts.members.get(request.id)
    about = [
        f"{len(outcomes.answered):,} answered, {len(outcomes.failed):,} failed" if outcomes else "",
        f"is sent in {span(request.sent_at - facts.now)}" if request.sent_at > facts.now else "",
        _place(facts, request.row).strip() if request.row else "",
    ]
    return "request", name_of(request), until, f"→ {steps}", ", ".join(filter(None, about)) or _BLANK


def _at(facts: Facts, at: int) -> str:
    left = at - facts.now
    return f"{time_text(at, facts.zone)} ({f'in {span(left)}' if left > 0 else f'{span(left)} ago'})"


def _place(facts: Facts, id: str) -> str:
    """Return where the message of a row is."""
    row = facts.rows.get(id)
    if row is None:
        return "row gone"
    if row.attempts:
        return f"{row.attempts:,} attempts failed"
    if row.tried_at:
        return f"published {span(facts.now - row.tried_at)} ago"
    return "not published" if row.due_at <= facts.now else _BLANK


def is_shown(facts: Facts, row: OutboxGlance) -> bool:
    """Return whether there is more to say of a row than that it waits for its time."""
    return bool(row.tried_at or row.attempts) or row.due_at <= facts.now


def row_of(facts: Facts, row: OutboxGlance) -> Row:
    """Return what is said of a row of the outbox: its task and kind, where it is, when it comes again, and an error."""
    again = f"available {_at(facts, row.available_at)}" if row.available_at else _BLANK
    return row.task, row.kind, _place(facts, row.id), again, row.error if row.error else _BLANK
