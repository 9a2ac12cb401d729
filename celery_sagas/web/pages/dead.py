"""The dead letters."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from celery_sagas.operate.dead_letters import dead_letter_of, facts_of
from celery_sagas.operate.groups import grouped
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.web.pages.dead_acting import DID
from celery_sagas.web.visit import Page, Visit

#: How many a page has, how many are read at once, and how many are looked at.
LIMIT: Final = 50
_AT_ONCE: Final = 100
_LOOKED_AT: Final = 2_000
#: Of how many, the newest, groups are made; each has its message.
GROUPED: Final = 200
#: What is left out for whoever may not read states and messages.
_NOT_READ: Final = ("payload", "text", "traceback")


def dead_letters(visit: Visit) -> Page:
    """Show the dead letters of a backend, the newest first."""
    store = visit.store()
    wanted = {name: given for name in ("task", "error", "saga") if (given := visit.given(name))}
    found, looked_at, last = list[DeadLetter](), 0, ""
    for dead_letter in islice(_newest(store.backend, visit.given("after")), _LOOKED_AT):
        if len(found) == LIMIT:
            break
        looked_at, last = looked_at + 1, dead_letter.id
        if all(getattr(dead_letter, name) == value for name, value in wanted.items()):
            found.append(dead_letter)
    else:
        last = last if looked_at == _LOOKED_AT else ""
    groups = grouped(store.backend.dead.list(GROUPED)) if not (wanted or visit.given("after")) else []
    context = {
        "rows": found,
        "groups": groups,
        "grouped": GROUPED,
        "store": store,
        "wanted": wanted,
        "after": last,
        "now": store.backend.outbox.time(),
        "is_first": not visit.given("after"),
        "did": visit.given("did"),
        "said": DID,
    }
    return Page("dead.html", context, {"items": [shown_facts(visit, each) for each in found], "after": last})


def _newest(backend: Backend, before: str) -> Iterator[DeadLetter]:
    page = backend.dead.list(_AT_ONCE, before or None)
    while page:
        yield from page
        page = backend.dead.list(_AT_ONCE, page[-1].id)


def dead_letter(visit: Visit, id: str) -> Page:
    """Show one dead letter."""
    found = dead_letter_of(visit.runtime, id)
    facts = shown_facts(visit, found)
    context = {
        "dead_letter": found,
        "facts": facts,
        "payload": _payload(facts),
        "may_read": visit.may_read,
        "at": visit.given("store"),
    }
    return Page("dead_letter.html", context, facts)


def _payload(facts: dict[str, Any]) -> Any:
    try:
        return json.loads(facts["payload"])
    except (ValueError, RecursionError, KeyError):
        return facts.get("payload")


def shown_facts(visit: Visit, found: DeadLetter) -> dict[str, Any]:
    """Return what is known of a dead letter, redacted, as far as the visitor may read it."""
    facts = facts_of(found, visit.hidden)
    return {name: value for name, value in facts.items() if visit.may_read or name not in _NOT_READ}
