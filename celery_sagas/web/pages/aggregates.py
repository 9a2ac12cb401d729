"""The buffered items of aggregators."""

from itertools import islice
from typing import Final

from celery_sagas.operate.items import buffers_of, place_of, redacted_text
from celery_sagas.web.visit import Page, Visit
from celery_sagas.worker.aggregators.client import stored_items

#: How many a page has.
LIMIT: Final = 100


def aggregates(visit: Visit) -> Page:
    """Show the aggregators with the numbers of their items; or the groups of one; or the items of a group."""
    batches, name = visit.runtime.batches, visit.given("name")
    if not batches.has_aggregators:
        return Page("aggregates.html", {"rows": [], "limit": LIMIT, "has_aggregators": False}, {"items": []})
    if name and "group" in visit.query:
        return _items(visit, name, visit.query["group"])
    if name:
        groups = batches.buffers.groups(name, LIMIT)
        return Page(
            "groups.html", {"name": name, "groups": groups, "limit": LIMIT}, {"items": [each._asdict() for each in groups]}
        )
    counts = buffers_of(batches, LIMIT)
    facts = [{"name": each, **count._asdict(), "place": place_of(each)} for each, count in counts]
    return Page("aggregates.html", {"rows": facts, "limit": LIMIT, "has_aggregators": True}, {"items": facts})


def _items(visit: Visit, name: str, group: str) -> Page:
    found = islice(stored_items(visit.runtime.batches.buffers, name, group, LIMIT), LIMIT)
    items = [item._replace(payload=redacted_text(name, item.payload, visit.hidden)) for _, item in found]
    facts = [{key: value for key, value in each._asdict().items() if visit.may_read or key != "payload"} for each in items]
    context = {"name": name, "group": group, "items": items, "limit": LIMIT, "may_read": visit.may_read}
    return Page("items.html", context, {"items": facts})
