"""An aggregator of numbered items, which notes each run of its function: what it has got, when it ends, and what came of that."""

import os
import time
from typing import Any

from celery import signals
from deployed import FOLDER, first_time, make_app, note

from celery_sagas import Batch, Message, aggregator
from celery_sagas.errors import LeaseLost, StoreError
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import current_session

app = make_app()

#: The largest batch, and the seconds that an item waits at most.
SIZE, WITHIN_S = 20, 1.0
#: Seconds that a run waits to be killed, at most.
HELD_S = 300
#: The part of its time after which a lease may have ended, by the clock of another machine.
_MOST_OF = 0.9


class Numbered(Message):
    group: str
    number: int


@app.task(name="batches.tell", ignore_result=True)
def tell(number: int) -> None:
    """Note what comes after an item was buffered."""
    note("told", str(number))


@aggregator(name="batches.collect", size=SIZE, within=WITHIN_S, group_by="group")
def collect(batch: Batch[Numbered]) -> None:
    run = current_session().message_id  # the token of its lease
    numbers = ",".join(str(item.number) for item in batch)
    note("batches", f"begin {run} {os.getpid()} {batch.reason} {batch.group} {numbers}")
    wait_for_kill()
    if batch.group.endswith("renew") and first_time(f"{batch.group} held"):
        time.sleep(HELD_S)
    if batch.group.endswith("release") and first_time(f"{batch.group} failed"):
        raise RuntimeError(batch.group)
    assert all(item.group == batch.group for item in batch)
    note("batches", f"end {run}")


def wait_for_kill() -> None:
    """Wait to be killed if the test asks one run to."""
    try:
        (FOLDER / "hold").unlink()
    except FileNotFoundError:
        return
    note("held", str(os.getpid()))
    time.sleep(HELD_S)


@signals.worker_process_init.connect
def note_removals(**_: object) -> None:
    """Note which runs' items were removed, and which the store refused to remove: it was away, or the lease has ended."""
    store = runtime_of(app).batches.aggregates
    claim, remove = store.claim, store.remove
    began: dict[str, float] = {}

    def claim_timed(rules: Any, group: str, token: str) -> Any:
        began[token] = time.monotonic()
        return claim(rules, group, token)

    def remove_noted(rules: Any, group: str, token: str, **exceptions: Any) -> Any:
        try:
            answer = remove(rules, group, token, **exceptions)
        except StoreError as exc:
            if not isinstance(exc, LeaseLost) or time.monotonic() - began[token] > _MOST_OF * rules.lease_ms / 1000:
                note("batches", f"refused {token}")
            raise
        note("batches", f"removed {token}")
        return answer

    store.claim, store.remove = claim_timed, remove_noted
