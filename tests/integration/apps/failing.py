"""Jobs that fail in every way, until they are fixed."""

import asyncio
import os
import select
import time
from pathlib import Path
from typing import Any

from celery import Task, signals
from deployed import FOLDER, make_app, note

from celery_sagas import Saga
from celery_sagas.signals import saga_started
from celery_sagas.worker.failures import requests

app = make_app()


class Broken(Exception):
    """What a handler raises."""


class Job(Saga, correlate_by="name"):
    name: str
    runs: int = 0
    load: str = ""


def work(job: Job, how: str) -> None:
    """Count a run; break unless the job is fixed."""
    note(how, job.name)
    job.runs += 1
    if not (FOLDER / "fixed").exists():
        raise Broken("it broke")


@Job.starts(autoretry_for=(Broken,), max_retries=2, default_retry_delay=0)
def try_thrice(job: Job, name: str) -> None:
    work(job, "try_thrice")


@Job.starts
def cancel(job: Job, name: str) -> None:
    try:
        work(job, "cancel")
    except Broken as exc:
        raise asyncio.CancelledError from exc


@Job.starts(bind=True, max_retries=1, default_retry_delay=0)
def try_twice(self: Any, job: Job, name: str) -> None:
    try:
        work(job, "try_twice")
    except Broken as exc:
        raise self.retry(exc=exc) from exc


@Job.starts
def swell(job: Job, name: str, size: int) -> None:
    """Store more than the database takes."""
    note("swell", name)
    job.load = "x" * size


class Picky(Task):
    """A base that fails before the step begins."""

    def before_start(self, *_: Any) -> None:
        raise Broken("it does not begin")


@Job.starts(base=Picky)
def never_begin(job: Job, name: str) -> None:
    note("never_begin", name)


@Job.starts
def crash(job: Job, name: str) -> None:
    note("crash", name)
    job.runs += 1
    if not (FOLDER / "fixed").exists():
        os._exit(1)


@Job.starts(time_limit=4)
def hang(job: Job, name: str) -> None:
    note("hang", name)
    job.runs += 1
    if not (FOLDER / "fixed").exists():
        _wait_for(FOLDER / "never")


@Job.starts(time_limit=4)
def hang_until_over(job: Job, name: str) -> None:
    """Go on once the main process says that the time is over, which it does before it kills this one."""
    job.runs += 1
    _wait_for(FOLDER / "over")


@Job.starts
def break_when_told(job: Job, name: str) -> None:
    (FOLDER / "running").touch()
    _wait_for(FOLDER / "fixed", FOLDER / "break")
    work(job, "break_when_told")


_dead_letter = requests._dead_letter


def dead_letter_beside_the_run(request: Any, error: Exception) -> None:
    """Keep a message as a dead letter when its job's name says: before or after its run commits, or once the store is away."""
    name = request.kwargs["name"]
    if name == "store away":
        _wait_for(FOLDER / "away")
    if name == "dead letter first":
        _dead_letter(request, error)
    if name in ("dead letter first", "run first"):
        (FOLDER / "over").touch()
        _wait_for(FOLDER / "ended")
        _wait_for_result(request)
    if name != "dead letter first":
        _dead_letter(request, error)


requests._dead_letter = dead_letter_beside_the_run


@saga_started.connect
def note_start(**_: object) -> None:
    note("started", "a job")


@signals.task_postrun.connect
def note_end(sender: Any = None, **_: object) -> None:
    """Tell that the run has ended whose time was over."""
    if sender.name == "job.hang_until_over":
        (FOLDER / "ended").touch()


def _wait_for_result(request: Any) -> None:
    """Wait until the process has written its result: if it is killed while it does, nothing can be read from it any more."""
    select.select([request._apply_result()._write_to.outq._reader], [], [])


def _wait_for(*files: Path) -> None:
    while not any(file.exists() for file in files):
        time.sleep(0.02)
