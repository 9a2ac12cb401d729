"""Plain tasks that are asked, and answer or fail in every way. They know nothing of sagas, nor is this library imported."""

import asyncio
import os
import time
from typing import Any

from celery import Signature, chain, chord, group, shared_task, signature
from deployed import FOLDER, first_time, note


@shared_task(name="participant.work", acks_late=True)
def work(name: str) -> str:
    return f"done {name}"


@shared_task(name="participant.answer_oddly", acks_late=True)
def answer_oddly(name: str) -> list[str]:
    """Answer with what nobody expects."""
    return [name]


@shared_task(name="participant.hold", acks_late=True)
def hold(name: str) -> str:
    """Answer once the test says so."""
    note("held", name)
    while not (FOLDER / "answer").exists():
        time.sleep(0.02)
    return f"done {name}"


@shared_task(name="participant.fail", bind=True, autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0)
def fail(self: object, name: str) -> str:
    note("failed", name)
    raise ValueError("it does not work")


@shared_task(name="participant.cancel")
def cancel(name: str) -> None:
    raise asyncio.CancelledError


@shared_task(name="participant.hang_softly", soft_time_limit=1)
def hang_softly(name: str) -> None:
    time.sleep(60)


@shared_task(name="participant.hang", time_limit=1)
def hang(name: str) -> None:
    time.sleep(60)


@shared_task(name="participant.crash")
def crash(name: str) -> None:
    os._exit(1)


@shared_task(name="participant.crash_once", acks_late=True, reject_on_worker_lost=True)
def crash_once(name: str) -> str:
    """Die between the work and the answer, the first time."""
    note("worked", name)
    if first_time(name):
        os._exit(1)
    return f"done {name}"


@shared_task(name="participant.tell_id", bind=True, acks_late=True)
def tell_id(self: Any, name: str) -> str:
    """Note under which id the work is asked for."""
    note("asked", f"{name}: {self.request.id}")
    return f"done {name}"


@shared_task(name="participant.spread")
def spread() -> None:
    """Have a step called that is found by nothing but what has caused its message."""
    group(pass_on.s("group 1"), pass_on.s("group 2")).delay()
    chord([echo.s("chord 1"), echo.s("chord 2")], join.s()).delay()
    chain(echo.s("chain"), echo.s(), pass_on.s()).delay()
    echo.apply_async(("link",), link=signature("quest.heard"))
    give_up.apply_async(link_error=heard_of("error"))
    hang.apply_async(("x",), link_error=heard_of("time limit"))
    crash.apply_async(("x",), link_error=heard_of("lost process"))


def heard_of(what: str) -> Signature[Any]:
    return signature("quest.heard", (what,), immutable=True)


@shared_task(name="participant.echo")
def echo(what: str) -> str:
    return what


@shared_task(name="participant.pass_on")
def pass_on(what: str) -> None:
    signature("quest.heard", (what,)).delay()


@shared_task(name="participant.join")
def join(parts: list[str]) -> None:
    signature("quest.heard", (", ".join(sorted(parts)),)).delay()


@shared_task(name="participant.give_up")
def give_up() -> None:
    raise ValueError("it does not work")
