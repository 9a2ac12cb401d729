"""Acts on an instance: what an act would do, and the act itself, on the version that was shown."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import InvalidState, MisuseError, NewerState, SagaError, SagaNotFound, StoreUnavailable
from celery_sagas.operate import Done, OperatedInstance, Operator
from celery_sagas.operate.difference import difference
from celery_sagas.operate.patching import finite, restored_fields
from celery_sagas.operate.reading import read_facts
from celery_sagas.operate.redact import redacted
from celery_sagas.operate.view import state_of
from celery_sagas.stores.records import Lookup, Record
from celery_sagas.web.pages.listing import lookup_named, saga_of_id
from celery_sagas.web.visit import Page, Refused, Visit

#: How long a state may be that is edited in a browser, in characters.
EDITED: Final = 100_000
Form = Mapping[str, str]
#: Acts on an instance, on a version, with what a form has.
Perform = Callable[[OperatedInstance, Form, int], Done]


class Verb(NamedTuple):
    """What an operator may do."""

    title: str
    says: str  #: what it does
    did: str  #: what is said when it is done
    perform: Perform
    fields: tuple[str, ...] = ()  #: of its form, besides the reason
    is_grave: bool = False  #: whether it cannot be taken back


def _pause(instance: OperatedInstance, form: Form, version: int) -> Done:
    return instance.pause(form["reason"], expected_version=version)


def _resume(instance: OperatedInstance, form: Form, version: int) -> Done:
    return instance.resume(form["reason"], expected_version=version)


def _terminate(instance: OperatedInstance, form: Form, version: int) -> Done:
    how = {"as_completed": form.get("as") == "completed", "leave_undone": form.get("leave_undone") == "1"}
    return instance.terminate(form["reason"], **how, expected_version=version)


def _fire(instance: OperatedInstance, form: Form, version: int) -> Done:
    return instance.fire(form.get("name", ""), form["reason"], expected_version=version)


def _skip(instance: OperatedInstance, form: Form, version: int) -> Done:
    return instance.skip(form.get("name", ""), form["reason"], expected_version=version)


def _answer(instance: OperatedInstance, form: Form, version: int) -> Done:
    arguments = _json("arguments", form.get("arguments", "").strip() or "{}")
    if not isinstance(arguments, dict):
        raise Refused(400, "The arguments are a JSON object, by their names.")
    request, reason = form.get("name", ""), form["reason"]
    if form.get("fail", "").strip():
        return instance.fail(request, form["fail"], reason, arguments=arguments, expected_version=version)
    value = _json("answer", form.get("value", ""))
    return instance.answer(request, value, reason, arguments=arguments, expected_version=version)


def _patch(instance: OperatedInstance, form: Form, version: int) -> Done:
    edited = _json("state", form.get("state", ""))
    if not isinstance(edited, dict):
        raise Refused(400, "The state is a JSON object.")
    return instance.patch(form["reason"], change=partial(restored_fields, edited), expected_version=version)


def _json(what: str, text: str) -> Any:
    try:
        return finite(json.loads(text))
    except RecursionError as exc:
        raise Refused(400, f"The {what} is nested too deeply.") from exc
    except ValueError as exc:
        raise Refused(400, f'The {what} is no JSON: {exc}. A text needs quotes, as in "Oslo".') from exc


VERBS: Final[Mapping[str, Verb]] = {
    "pause": Verb("Pause", "All messages to it wait until it is resumed, timeouts and answers, too.", "It is paused.", _pause),
    "resume": Verb("Resume", "The messages that waited are sent, in the order of their arrival.", "It goes on.", _resume),
    "patch": Verb(
        "Patch", "Its state is changed, and must be valid then. Leave ••• as it is.", "It is changed.", _patch, ("state",)
    ),
    "fire": Verb("Fire", "The timeout, or the deadline, comes now. It is handled once.", "It comes now.", _fire, ("name",)),
    "skip": Verb("Skip", "It no longer waits for this.", "It no longer waits for it.", _skip, ("name",), is_grave=True),
    "answer": Verb(
        "Answer",
        "The request is answered in the place of the task, whose own answer changes nothing any more.",
        "It is answered.",
        _answer,
        ("name", "value", "fail", "arguments"),
    ),
    "terminate": Verb(
        "Terminate",
        "It ends where it stands: none of its steps runs, and its timeouts end with it.",
        "It has ended.",
        _terminate,
        ("as", "leave_undone"),
        is_grave=True,
    ),
}


def confirmation(visit: Visit, id: str, verb: str) -> Page:
    """Ask whether an act is to be done, and why; show what it would do, if that can be told by now."""
    visit.demand("act")
    saga, lookup, record = _found(visit, id, verb)
    form = {"reason": "", "name": visit.given("name"), "version": str(record.version)}
    if verb == "patch":
        form["state"] = _state(visit, saga, lookup)
    needs_more = not {"state", "value"}.isdisjoint(VERBS[verb].fields)
    done, problem = (None, "") if needs_more else _planned(visit, saga, lookup, verb, form)
    return _page(visit, saga, record, verb, form, done, problem)


def act(visit: Visit, id: str, verb: str, form: Form) -> Page:
    """Do it, on the version that was shown; or only show what it would do."""
    visit.demand("act")
    saga, lookup, record = _found(visit, id, verb)
    if form.get("do") == "preview":
        done, problem = _planned(visit, saga, lookup, verb, form)
        return _page(visit, saga, record, verb, form, done, problem, 400 if problem else 200)
    done, problem = _tried(visit, saga, lookup, verb, form, dry_run=False)
    if done is None or not done.changed:
        return _page(
            visit, saga, record, verb, form, None, problem or f"Nothing was to be done: {done.text if done else ''}.", 409
        )
    if verb == "terminate":
        return Page("", {}, location=visit.links.to("timeline", saga=saga.name, key=done.key, did=verb))
    return Page("", {}, location=visit.links.to("instances", id, saga=saga.name, did=verb))


def _found(visit: Visit, id: str, verb: str) -> tuple[SagaDefinition, Lookup, Record]:
    if verb not in VERBS:
        raise Refused(404, "There is no such act.")
    saga = saga_of_id(visit, id)
    lookup = lookup_named(saga.names, id)
    record = visit.runtime.backends.of(saga).sagas.find(lookup).record
    if record is None:
        raise Refused(404, "There is no such instance: it has ended, or never was.")
    return saga, lookup, record


def _state(visit: Visit, saga: SagaDefinition, lookup: Lookup) -> str:
    facts = read_facts(visit.runtime, saga, lookup)
    text = json.dumps(state_of(facts, visit.hidden) if facts else None, indent=2, ensure_ascii=False)
    if len(text) > EDITED:
        raise Refused(413, f"It has {len(text):,} characters, which is too much for a form: use celery sagas patch.")
    return text


def _planned(visit: Visit, saga: SagaDefinition, lookup: Lookup, verb: str, form: Form) -> tuple[Done | None, str]:
    reason = form["reason"] if form.get("reason", "").strip() else "a preview"
    return _tried(visit, saga, lookup, verb, {**form, "reason": reason}, dry_run=True)


def _tried(
    visit: Visit, saga: SagaDefinition, lookup: Lookup, verb: str, form: Form, *, dry_run: bool
) -> tuple[Done | None, str]:
    """Return what has come of an act, or would; or why nothing does."""
    version = form.get("version", "")
    if not (version.isascii() and version.isdigit() and len(version) < 16):
        raise Refused(400, "This form has no version. Nothing was done.")
    if not form.get("reason", "").strip():
        return None, "Say why: the journal and the audit keep it."
    operator = Operator(visit.runtime.app, visit.access.actor, dry_run=dry_run)
    try:
        return VERBS[verb].perform(OperatedInstance(operator, saga, lookup), form, int(version)), ""
    except NewerState as exc:
        return None, str(exc)
    except (StoreUnavailable, SagaNotFound):
        raise
    except Refused as exc:
        return None, exc.sentence
    except (InvalidState, MisuseError, SagaError, ValueError) as exc:
        return None, str(exc)


def _page(
    visit: Visit, saga: SagaDefinition, record: Record, verb: str, form: Form, done: Done | None, problem: str, status: int = 200
) -> Page:
    changes = list(_changes(visit, saga, done)) if done and done.before else []
    context = {
        "saga": saga,
        "record": record,
        "name": verb,
        "verb": VERBS[verb],
        "form": {
            **dict.fromkeys(("reason", "name", "state", "value", "fail", "arguments", "leave_undone"), ""),
            "as": "failed",
            **form,
        },
        "done": done,
        "changes": changes,
        "problem": problem,
        "is_stale": form.get("version") != str(record.version),
    }
    return Page("act.html", context, {"error": problem} if problem else {"text": done.text if done else ""}, status)


def _changes(visit: Visit, saga: SagaDefinition, done: Done) -> Any:
    before, after = (redacted(saga, json.loads(text), visit.hidden) for text in (done.before, done.after))
    return difference(before, after)
