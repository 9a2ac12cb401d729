"""Plain tasks are not asked, as type checkers with celery-types see. Checked, never run; see ``tests/typing/asking.py``."""

from celery import chain, shared_task

from celery_sagas import ask


@shared_task(acks_late=True)
def charge(card: str) -> str:
    return card


def wrong_questions() -> None:
    ask(charge.si("visa"), timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ask(chain(charge.si("visa"), charge.s()), timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
