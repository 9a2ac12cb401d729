"""Jobs that fail for a while."""

import os
import time

from deployed import FOLDER, make_app, note

from celery_sagas import Saga

app = make_app()


class Broken(Exception):
    """What a handler raises."""


class Job(Saga, correlate_by="name"):
    name: str
    runs: int = 0


def run(job: Job) -> int:
    """Note a run; return how many there were."""
    note("runs", job.name)
    job.runs += 1
    return (FOLDER / "runs.notes").read_text().splitlines().count(job.name)


@Job.starts
def work(job: Job, name: str, failures: int = 0) -> None:
    if run(job) <= failures:
        raise Broken("it broke")


@Job.starts(autoretry_for=(Broken,), max_retries=1, default_retry_delay=0)
def work_twice(job: Job, name: str) -> None:
    run(job)
    raise Broken("it broke")


@Job.starts(soft_time_limit=1)
def hurry(job: Job, name: str) -> None:
    """Take too long the first time."""
    if run(job) == 1:
        time.sleep(60)


@Job.starts
def hold(job: Job, name: str) -> None:
    """Fail the first time; then work for as long as the test wants it."""
    if run(job) == 1:
        raise Broken("it broke")
    note("holding", str(os.getpid()))
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
