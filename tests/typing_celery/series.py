"""Series as type checkers with celery-types see them. Checked, never run; see ``tests/typing/sagas.py``."""

from datetime import timedelta

from celery.schedules import crontab, schedule

from celery_sagas import Saga


class Meter(Saga, correlate_by="number"):
    number: str


@Meter.handles
def read(meter: Meter, number: str) -> None:
    meter.schedule(read, every=timedelta(hours=1))
    meter.schedule(read, every=crontab(minute=0))
    meter.schedule(read, every=60)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    meter.schedule(read, every="* * * * *")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    meter.schedule(read, every=schedule(60))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
