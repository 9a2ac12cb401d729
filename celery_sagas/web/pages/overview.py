"""The first page: how many instances and messages there are, and what does not go on."""

from typing import Any, Final

from celery_sagas.operate.counting import of_messages, of_sagas, of_switch, of_untaken
from celery_sagas.operate.doctor import Level, diagnose
from celery_sagas.operate.stuck import Look, each_once
from celery_sagas.operate.switching import held_in
from celery_sagas.stores.ports import Backend
from celery_sagas.web.pages.stuck import LOOKED_AT
from celery_sagas.web.visit import Page, Visit, of_each

#: The name of what it shows, in the cache.
OVERVIEW: Final = "overview"
#: For how long it is shown again as it was read. Seconds.
KEPT_S: Final = 15
#: How many troubles of each kind are shown.
_LIMIT: Final = 5


def overview(visit: Visit) -> Page:
    """Show how many instances and messages there are, and what does not go on."""
    read = visit.cache.get(OVERVIEW, KEPT_S, lambda: _read(visit))
    troubles = [each._asdict() for each in read["troubles"]]
    facts = {**read, "troubles": troubles, "findings": [each._asdict() for each in read["findings"]]}
    return Page(
        "overview.html", {**read, "did": visit.given("did"), "urls": [each.url for each in visit.runtime.backends]}, facts
    )


def _read(visit: Visit) -> dict[str, Any]:
    runtime = visit.runtime

    def counted(backend: Backend) -> dict[str, Any]:
        sagas = runtime.backends.sagas_in(backend)
        look = Look(backend, sagas, _LIMIT, looked_at=LOOKED_AT)
        troubles = look.troubles()
        return {
            "sagas": list(of_sagas(backend, sagas)),
            "backend": {**of_messages(backend), **of_untaken(look.untaken, look.cut)},
            "held": list(map(of_switch, held_in(backend))),
            "troubles": troubles,
            "more": bool(look.cut),
        }

    found, away = of_each(list(runtime.backends), counted)
    return {
        "sagas": [saga for each in found for saga in each["sagas"]],
        "backends": [each["backend"] for each in found],
        "held": [switch for each in found for switch in each["held"]],
        "troubles": each_once(trouble for each in found for trouble in each["troubles"]),
        "more": any(each["more"] for each in found),
        "findings": [each for each in diagnose(runtime.app, is_live=False) if each.level is not Level.OK],
        "away": away,
    }
