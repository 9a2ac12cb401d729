"""What does not go on."""

from typing import Final

from celery_sagas.core.saga import SagaDefinition
from celery_sagas.operate.explain import LATE_MS
from celery_sagas.operate.stuck import Look, Trouble, each_once
from celery_sagas.stores.ports import Backend
from celery_sagas.web.visit import Page, Visit, of_each

#: How many of each kind are shown, of each saga.
LIMIT: Final = 50
#: How many messages, dead letters and instances a page looks at, of each kind, to find what does not go on: somebody waits for
#: it, and it is needed most when there are many.
LOOKED_AT: Final = 1_000


def stuck(visit: Visit) -> Page:
    """Show what does not go on, as ``celery sagas stuck`` does."""
    saga, idle, late = visit.saga_given(), visit.age("idle"), visit.age("late")
    cut = set[str]()

    def look(backend: Backend) -> list[Trouble]:
        sagas: list[SagaDefinition] = [saga] if saga else visit.runtime.backends.sagas_in(backend)
        late_ms = LATE_MS if late is None else late
        looked = Look(backend, sagas, LIMIT, idle, is_whole=saga is None, late_ms=late_ms, looked_at=LOOKED_AT)
        troubles = looked.troubles()
        cut.update(looked.cut)
        return troubles

    found, away = of_each([visit.runtime.backends.of(saga)] if saga else list(visit.runtime.backends), look)
    troubles = each_once(trouble for part in found for trouble in part)
    context = {
        "troubles": troubles,
        "away": away,
        "is_cut": bool(cut),
        "limit": LIMIT,
        "looked_at": LOOKED_AT,
        "saga": saga.name if saga else "",
        "idle": visit.given("idle"),
        "late": visit.given("late"),
    }
    return Page("stuck.html", context, {"items": [each._asdict() for each in troubles], "more": bool(cut), "away": away})
