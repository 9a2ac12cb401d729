"""The instances of a saga, and the way to one of them."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from celery_sagas.core.graph.drawing import drawing_of
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.instance import lookup_in
from celery_sagas.engine.listing import count_live
from celery_sagas.engine.query import lookup_of
from celery_sagas.errors import UnreadableState
from celery_sagas.operate.addresses import key_of
from celery_sagas.operate.choosing import Selection, matching
from celery_sagas.operate.counting import COUNTED
from celery_sagas.operate.glances import facts_of, waits_for
from celery_sagas.operate.graphs import registered_graph
from celery_sagas.operate.where import where_of
from celery_sagas.stores.instances import Glance
from celery_sagas.stores.records import ID, KEY, Lookup
from celery_sagas.web.graph import picture_of
from celery_sagas.web.pages.stuck import LOOKED_AT
from celery_sagas.web.visit import Page, Refused, Visit

#: How many a page has.
LIMIT: Final = 50
#: How many an expression is tried on.
SCANNED: Final = 2_000
#: For how long a count is shown again. Seconds.
_COUNTED_S: Final = 15
#: The parameters that choose, and what one of them may be.
CHOICES: Final = ("show", "age", "field", "value", "where")
SHOWN: Final = ("recent", "oldest", "paused", "idle", "late")


def listing(visit: Visit, name: str) -> Page:
    """Show the instances of a saga, or those that are chosen."""
    saga = visit.saga(name)
    backend, selection = visit.runtime.backends.of(saga), selection_of(visit, saga)
    found, after, looked_at, is_cut = _found(visit, saga, selection)
    count = visit.cache.get(f"count of {saga.name}", _COUNTED_S, lambda: count_live(backend, saga, COUNTED + 1))
    context = {
        "saga": saga,
        "count": count,
        "now": backend.outbox.time(),
        "rows": [(glance, waits_for(glance)) for glance in found],
        "after": after,
        "looked_at": looked_at,
        "is_cut": is_cut,
        "limit": LIMIT,
        "messages": LOOKED_AT,
        "given": {each: visit.given(each) for each in (*CHOICES, "after")},
        "selection": chosen_by(visit),
        "fields": _fields(visit, saga),
        "picture": picture_of(drawing_of(registered_graph(saga))),
        "steps": [step for step in registry.steps_of(saga) if not step.is_internal],
    }
    return Page("listing.html", context, {"items": list(map(facts_of, found)), "after": after, "more": bool(after) or is_cut})


def _fields(visit: Visit, saga: SagaDefinition) -> list[str]:
    """Return the fields by whose values instances can be chosen; whoever sees no states may not ask for them, either."""
    return [*saga.search_by, *saga.also_by] if visit.may_read else []


def chosen_by(visit: Visit) -> Mapping[str, str]:
    """Return the parameters by which instances are chosen."""
    return {each: visit.query.get(each, "") for each in CHOICES}


def selection_of(visit: Visit, saga: SagaDefinition) -> Selection:
    """Return which instances are chosen by the parameters.

    Raises:
        Refused: They choose none, or what the visitor may not see.
    """
    shown, where = visit.given("show") or "recent", visit.given("where")
    if shown not in SHOWN:
        raise Refused(400, f"Choose one of these: {', '.join(SHOWN)}.")
    by: Mapping[str, object] = {}
    if visit.given("field") and "value" in visit.query:
        visit.demand("read")
        by = {visit.given("field"): visit.query["value"]}
    if where:
        visit.demand("read")
    age = visit.age("age")
    try:
        return Selection(
            by=by,
            paused=shown == "paused",
            idle_ms=(age if age is not None else 86_400_000) if shown == "idle" else None,
            late_ms=(age if age is not None else 900_000) if shown == "late" else None,
            oldest_first=shown == "oldest",
            where=where or None,
        )
    except TypeError as exc:
        raise Refused(400, f"{str(exc).capitalize()}.") from exc


def _found(visit: Visit, saga: SagaDefinition, selection: Selection) -> tuple[list[Glance], str, int, bool]:
    """Return the instances of a page, where the next one goes on, how many an expression was tried on (0: there is none), and
    whether there may be more that no next page has: late ones.
    """
    backend, after = visit.runtime.backends.of(saga), visit.given("after")
    chosen, cut = selection.chosen(backend, saga, after, LOOKED_AT)
    if selection.where is None:
        found = list(islice(chosen, LIMIT + 1))
        more = len(found) > LIMIT
        end = selection.place_of(found[LIMIT - 1]) if more else ""
        return found[:LIMIT], end, 0, bool(cut) or (more and not end)
    test = where_of(saga, selection.where, visit.hidden)
    last, looked_at = "", 0

    def limited() -> Iterator[Glance]:
        nonlocal last, looked_at
        for glance in islice(chosen, SCANNED):
            last, looked_at = selection.place_of(glance), looked_at + 1
            yield glance

    matches = (each for each in matching(backend, saga, limited(), test) if not isinstance(each, UnreadableState))
    found = list(islice(matches, LIMIT))
    if len(found) == LIMIT:
        end = selection.place_of(found[-1])
        return found, end, looked_at, not end
    return found, last if looked_at == SCANNED else "", looked_at, bool(cut) or (looked_at == SCANNED and not last)


def find(visit: Visit) -> Page:
    """Go to the instance with a key, or with a value of a field."""
    saga, key = visit.saga(visit.given("saga")), visit.query.get("key", "")
    if field := visit.given("field"):
        return _by_field(visit, saga, field, visit.query.get("value", ""))
    try:
        lookup = lookup_in(saga, KEY, key_of(saga, [key] if len(saga.correlate_by) == 1 else _words(key)))
    except ValueError as exc:
        raise Refused(400, f"This is no key of {saga.name}.") from exc
    id = _id_of(visit, saga, lookup)
    if not id:
        return Page("", {}, location=visit.links.to("timeline", saga=saga.name, key=lookup.value))
    return _at(visit, saga, id)


def _words(key: str) -> list[str]:
    return [key] if key.startswith("[") else key.split()


def _by_field(visit: Visit, saga: SagaDefinition, field: str, value: str) -> Page:
    visit.demand("read")
    if field in saga.search_by:
        return Page("", {}, location=visit.links.to("sagas", saga.name, field=field, value=value))
    id = _id_of(visit, saga, lookup_of(saga, None, {field: value}))
    if not id:
        raise Refused(404, f"No instance of {saga.name} has this value of {field}.")
    return _at(visit, saga, id)


def _id_of(visit: Visit, saga: SagaDefinition, lookup: Lookup) -> str:
    record = visit.runtime.backends.of(saga).sagas.find(lookup).record
    return record.id if record else ""


def _at(visit: Visit, saga: SagaDefinition, id: str) -> Page:
    return Page("", {}, location=visit.links.to("instances", id, saga=saga.name))


def saga_of_id(visit: Visit, id: str) -> SagaDefinition:
    """Return the saga of an instance.

    Raises:
        Refused: There is no such instance.
    """
    if saga := visit.saga_given():
        return saga
    for backend in visit.runtime.backends.of_sagas():
        names = tuple(name for saga in visit.runtime.backends.sagas_in(backend) for name in saga.names)
        record = backend.sagas.find(lookup_named(names, id)).record if names else None
        if record and (found := registry.saga_named(record.saga)):
            return found
    raise Refused(404, "There is no such instance: it has ended, or never was.")


def lookup_named(names: tuple[str, ...], id: str) -> Lookup:
    """Return the look-up of an instance by its id, under several names.

    Raises:
        Refused: It is no id.
    """
    if not id or "\0" in id or len(id) > 200:
        raise Refused(404, "There is no such instance.")
    return Lookup(names, ID, id)
