"""Acts on dead letters."""

from collections.abc import Mapping
from typing import Final

from celery_sagas.errors import SagaError, StoreUnavailable
from celery_sagas.operate import Operator, Treated
from celery_sagas.operate.dead_letters import dead_letter_of
from celery_sagas.stores.records import DeadLetter
from celery_sagas.web.forms import Verb
from celery_sagas.web.visit import Page, Refused, Visit

#: What an operator may do to a dead letter.
VERBS: Final[Mapping[str, Verb]] = {
    "retry": Verb(
        "Retry",
        "Its message is sent again, under a new id, or its item is buffered again; the dead letter is removed.",
        is_grave=False,
    ),
    "discard": Verb(
        "Discard",
        "It is removed: its message is never handled, and its instance waits for it no longer.",
        is_grave=True,
    ),
}
#: What is said when it is done.
DID: Final[Mapping[str, str]] = {
    "retry": "It was sent again.",
    "buffered": "Its item is buffered again.",
    "unsent": "Nothing was sent: its message was handled since, or its instance does not wait for it any more. It was removed.",
    "discard": "It was discarded.",
}


def confirm_treatment(visit: Visit, id: str, verb: str) -> Page:
    """Ask whether an act on a dead letter is to be done, and why."""
    visit.demand("act")
    return _page(visit, _found(visit, id, verb), verb, "", "", 200)


def treat(visit: Visit, id: str, verb: str, form: Mapping[str, str]) -> Page:
    """Do it."""
    visit.demand("act")
    found, reason = _found(visit, id, verb), form.get("reason", "")
    if not reason.strip():
        return _page(visit, found, verb, reason, "Say why: the audit keeps it.", 409)
    try:
        dead_letters = Operator(visit.runtime.app, visit.access.actor).dead_letters(reason)
        treated = (dead_letters.retry if verb == "retry" else dead_letters.discard)(id)
    except StoreUnavailable:
        raise
    except (SagaError, ValueError) as exc:
        return _page(visit, found, verb, reason, str(exc), 409)
    return Page("", {}, location=visit.links.to("dead", did=_did(verb, treated, found), store=visit.given("store")))


def _did(verb: str, treated: Treated, found: DeadLetter) -> str:
    if verb == "retry" and found.number:
        return "buffered"
    return verb if verb == "discard" or treated.sent_as else "unsent"


def _found(visit: Visit, id: str, verb: str) -> DeadLetter:
    if verb not in VERBS:
        raise Refused(404, "There is no such act.")
    return dead_letter_of(visit.runtime, id)


def _page(visit: Visit, found: DeadLetter, verb: str, reason: str, problem: str, status: int) -> Page:
    context = {"dead_letter": found, "verb": VERBS[verb], "reason": reason, "problem": problem, "at": visit.given("store")}
    return Page("treat.html", context, {"error": problem} if problem else {}, status)
