"""One act on each of the instances that a list has."""

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from celery_sagas.core.ids import derived_id, time_ordered_id
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import NewerState, StoreUnavailable, UnreadableState
from celery_sagas.operate import Operator
from celery_sagas.operate.choosing import matching
from celery_sagas.operate.each import WITH_NAME, Acted, Each, told
from celery_sagas.operate.where import where_of
from celery_sagas.stores.instances import Glance
from celery_sagas.web.pages.acting import VERBS
from celery_sagas.web.pages.listing import SCANNED, chosen_by, selection_of
from celery_sagas.web.visit import Page, Refused, Visit

#: On how many instances a browser acts at once: it waits for all of them.
MOST: Final = 1_000
#: For how many it is shown what would be done, or why it failed.
SHOWN: Final = 20
#: What may be done to each.
OFFERED: Final = ("pause", "resume", "fire", "skip", "terminate")
Form = Mapping[str, str]


class _Chosen(NamedTuple):
    saga: SagaDefinition
    verb: str
    found: list[Glance]
    unreadable: int  #: how many could not be read, for which the expression may hold

    @property
    def expected(self) -> str:
        """What a form has of them, to be done to these alone."""
        return derived_id("each", " ".join(sorted(glance.id for glance in self.found)))


def confirm_each(visit: Visit, name: str, verb: str) -> Page:
    """Ask whether an act is to be done to each, and why."""
    chosen = _chosen(visit, name, verb)
    form = {"reason": "", "name": "", "batch": time_ordered_id()}
    return _page(visit, chosen, form, _planned(visit, chosen, form))


def act_on_each(visit: Visit, name: str, verb: str, form: Form) -> Page:
    """Do it, if they are those that were shown; or only show what it would do."""
    chosen = _chosen(visit, name, verb)
    if form.get("do") == "preview":
        return _page(visit, chosen, form, _act(visit, chosen, form, dry_run=True))
    if not form.get("reason", "").strip():
        return _page(visit, chosen, form, _planned(visit, chosen, form), "Say why: the journal and the audit keep it.", 409)
    if form.get("expect") != chosen.expected:
        count = f"The list has {len(chosen.found):,} by now, and not the same as were shown"
        problem = f"{count}. This time nothing was done: decide again."
        return _page(visit, chosen, form, _planned(visit, chosen, form), problem, 409)
    acted = _act(visit, chosen, form, dry_run=False)
    if acted and _is_away(acted[-1]):
        return _page(visit, chosen, form, acted[:-1], _left(chosen, acted), 503, is_done=True)
    return _page(visit, chosen, form, acted, is_done=True)


def _chosen(visit: Visit, name: str, verb: str) -> _Chosen:
    """Return the instances that the parameters choose.

    Raises:
        Refused: There is no such act; or there are too many of them, or to be looked at.
    """
    visit.demand("act")
    saga = visit.saga(name)
    if verb not in OFFERED:
        raise Refused(404, "There is no such act.")
    backend, selection = visit.runtime.backends.of(saga), selection_of(visit, saga)
    listed, unreadable = selection.chosen(backend, saga).found, 0
    if selection.where is None:
        found = list(islice(listed, MOST + 1))
    else:
        found, test = [], where_of(saga, selection.where, visit.hidden)
        looked_at = list(islice(listed, SCANNED + 1))
        if len(looked_at) > SCANNED:
            raise Refused(409, f"More than {SCANNED:,} would be looked at: choose fewer, or use celery sagas each.")
        for each in matching(backend, saga, iter(looked_at), test):
            if isinstance(each, UnreadableState):
                unreadable += 1
            else:
                found.append(each)
    if len(found) > MOST:
        raise Refused(409, f"There are more than {MOST:,} such instances: choose fewer, or use celery sagas each.")
    return _Chosen(saga, verb, found, unreadable)


def _act(visit: Visit, chosen: _Chosen, form: Form, *, dry_run: bool) -> list[Acted]:
    """Act on each, or plan it for the first of them; the last one is the one at which the store went away, if it did."""
    operator = Operator(visit.runtime.app, visit.access.actor, dry_run=dry_run, batch=form.get("batch", ""))
    each = Each(operator, chosen.saga, chosen.verb, form.get("reason", "").strip() or "a preview", form.get("name", ""), False)
    acted = list[Acted]()
    for glance in chosen.found[:SHOWN] if dry_run else chosen.found:
        acted.append(each.act(glance.id))
        if _is_away(acted[-1]):
            break
    return acted


def _planned(visit: Visit, chosen: _Chosen, form: Form) -> list[Acted]:
    return [] if chosen.verb in WITH_NAME else _act(visit, chosen, form, dry_run=True)


def _is_away(acted: Acted) -> bool:
    return isinstance(acted.error, StoreUnavailable) and not isinstance(acted.error, NewerState)


def _left(chosen: _Chosen, acted: list[Acted]) -> str:
    """Return what is not done, as the store has gone away."""
    last = chosen.found[len(acted) - 1]
    unknown = f"It is not known whether it was done to {last.key or last.id}; not tried: {len(chosen.found) - len(acted):,}"
    return f"{acted[-1].error} {unknown}. To go on, send this again: nothing is done twice."


def _page(
    visit: Visit, chosen: _Chosen, form: Form, acted: list[Acted], problem: str = "", status: int = 200, *, is_done: bool = False
) -> Page:
    keys = {glance.id: glance.key or glance.id for glance in chosen.found}
    counts = Counter[str](each.outcome for each in acted)
    shown = [each for each in acted if each.outcome == "failed"] if is_done else acted
    context = {
        "saga": chosen.saga,
        "name": chosen.verb,
        "verb": VERBS[chosen.verb],
        "has_name": chosen.verb in WITH_NAME,
        "selection": chosen_by(visit),
        "count": len(chosen.found),
        "unreadable": chosen.unreadable,
        "form": {"reason": "", "name": "", "batch": "", **form, "expect": chosen.expected},
        "is_done": is_done and not problem,
        "rows": [(keys[each.id], each) for each in shown[:SHOWN]],
        "told": told(counts, dry_run=False) if is_done else "",
        "problem": problem,
    }
    facts = {"error": problem} if problem else {"count": len(chosen.found), **counts}
    return Page("each.html", context, facts, status)
