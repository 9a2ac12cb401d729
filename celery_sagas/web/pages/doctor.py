"""What is wrong with the configuration and with the live system."""

from celery_sagas.operate.doctor import Finding, Level, diagnose
from celery_sagas.web.pages.overview import KEPT_S
from celery_sagas.web.visit import Page, Visit

_ORDER = (Level.FAIL, Level.WARN, Level.OK)


def doctor(visit: Visit) -> Page:
    """Show what the doctor finds; with ``live=1`` the broker, the workers and the backends are asked, which takes seconds."""
    is_live = visit.given("live") == "1"

    def read() -> list[Finding]:
        return sorted(diagnose(visit.runtime.app, is_live=is_live), key=lambda finding: _ORDER.index(finding.level))

    findings = visit.cache.get("doctor, live" if is_live else "doctor", KEPT_S, read)
    context = {"findings": findings, "is_live": is_live, "bad": sum(each.level is not Level.OK for each in findings)}
    return Page("doctor.html", context, {"items": [each._asdict() for each in findings]})
