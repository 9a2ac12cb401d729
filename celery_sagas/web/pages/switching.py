"""Holding a step, or all steps of a saga, and releasing it."""

from collections.abc import Mapping
from typing import Final

from celery_sagas.errors import SagaError, StoreUnavailable
from celery_sagas.operate import Operator
from celery_sagas.operate.switching import Switched
from celery_sagas.web.forms import Verb
from celery_sagas.web.pages.overview import OVERVIEW
from celery_sagas.web.visit import Page, Refused, Visit

#: What an operator may do to a step, or to all steps of a saga.
VERBS: Final[Mapping[str, Verb]] = {
    "hold": Verb(
        "Hold",
        "Its messages wait until it is released; those that are being handled are handled. No clock stops.",
        is_grave=True,
    ),
    "release": Verb("Release", "The messages that waited are handled, each when its delay is over.", is_grave=False),
}


def confirm_switch(visit: Visit, verb: str) -> Page:
    """Ask whether it is to be held, or released, and why."""
    return _page(visit, verb, "", *_tried(visit, verb, "a preview", dry_run=True))


def switch(visit: Visit, verb: str, form: Mapping[str, str]) -> Page:
    """Do it."""
    reason = form.get("reason", "")
    if not reason.strip():
        return _page(visit, verb, reason, None, "Say why: the audit keeps it.", 409)
    done, problem = _tried(visit, verb, reason, dry_run=False)
    if done is None or not done.changed:
        return _page(visit, verb, reason, None, problem or f"Nothing was to be done: {done.text if done else ''}.", 409)
    visit.cache.forget(OVERVIEW)
    return Page("", {}, location=visit.links.to(did=verb))


def _tried(visit: Visit, verb: str, reason: str, *, dry_run: bool) -> tuple[Switched | None, str]:
    """Return what has come of it, or would; or why nothing does."""
    visit.demand("act")
    if verb not in VERBS:
        raise Refused(404, "There is no such act.")
    operator, name = Operator(visit.runtime.app, visit.access.actor, dry_run=dry_run), visit.given("name")
    try:
        return (operator.hold if verb == "hold" else operator.release)(name, reason), ""
    except StoreUnavailable:
        raise
    except (SagaError, ValueError) as exc:
        return None, str(exc)


def _page(visit: Visit, verb: str, reason: str, done: Switched | None, problem: str, status: int = 200) -> Page:
    context = {"verb": VERBS[verb], "name": visit.given("name"), "reason": reason, "done": done, "problem": problem}
    facts = {"error": problem} if problem else {"text": done.text if done else ""}
    return Page("switch.html", context, facts, 400 if problem and status == 200 else status)
