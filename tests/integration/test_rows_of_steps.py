"""Steps that write rows with their commits, under workers that are killed: a row for each message, and none for what failed.

How much of it is run stands in ``CELERY_SAGAS_TEST_ROWS``: messages and kills. ``tox -e chaos`` runs the long one.
"""

import os
import random
from functools import partial

import pytest

from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.matrices import DATABASES, matrix
from tests.integration.rows import POINTS, deploy_rows, has_died, have_die, numbers_in
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ENTRIES, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_ROWS", "120,6").split(","))
#: Entries a second that even a slow machine handles between kills, on one instance.
SLOWEST = 5
#: A kill comes so many seconds after it was asked for, at most.
PAUSE_S = 0.5
#: Who is killed in turn: a process at a point, a whole worker, a process.
DEATHS = (*POINTS, "", "")
#: Processes of each of two workers: on SQLite all of them wait for one writer.
PROCESSES = {"sqlite": 2}
ENTER, HEAR = "ledger.enter", "echo.hear"

EACH = matrix(("postgresql", "rabbitmq"), ("mariadb", "redis"), ("sqlite", "redis"), engines=DATABASES)


@pytest.mark.parametrize(("engine", "broker"), EACH)
@pytest.mark.timeout(600 + ENTRIES // SLOWEST + 10 * KILLS)
def test_each_message_to_one_instance_writes_one_row_whoever_is_killed(deploy: Deploy, engine: str, broker: str) -> None:
    deployment, chance = deploy_rows(deploy, "rows_of_steps", engine, broker), random.Random(f"{engine} {broker}")
    crew = Crew(deployment, chance, ["", ""], spare_last=False, pause_s=PAUSE_S, processes=PROCESSES.get(engine, 4))
    for kill in range(KILLS):
        crew.wait_ready()
        where = DEATHS[kill % len(DEATHS)]
        if where:
            have_die(deployment, where)
        for number in range(ENTRIES * kill // KILLS, ENTRIES * (kill + 1) // KILLS):
            deployment.send(ENTER, name="a", number=number)
        if where:
            wait_until(partial(has_died, deployment, where, 1 + kill // len(DEATHS)), deployment.describe)
        else:
            wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    assert_entered(deployment)


def assert_entered(deployment: Deployment) -> None:
    """Assert that each message has one row, one entry in the journal, and one message of its own."""
    for step in (ENTER, HEAR):
        deployment.wait_handled(step, ENTRIES, 60 + ENTRIES / SLOWEST)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe)
    wanted = list(range(ENTRIES))
    assert numbers_in(deployment, "entry") == wanted
    assert [handled_by(deployment, *named) for named in (("ledger", "a"), ("echo", "echo of a"))] == [wanted] * 2
    assert [deployment.handled(step) for step in (ENTER, HEAR)] == [ENTRIES] * 2
    assert deployment.backend.dead.list(9) == []
    assert deployment.failures() == []


def handled_by(deployment: Deployment, saga: str, key: str) -> list[int]:
    """Return the numbers that an instance has got."""
    state = deployment.state(saga, key)
    return sorted(state["numbers"]) if state else []


@pytest.mark.parametrize(("engine", "broker"), EACH)
def test_what_the_database_refuses_leaves_nothing_but_a_dead_letter(deploy: Deploy, engine: str, broker: str) -> None:
    """The row before it, the instance, and the message that it would have sent are rolled back with it."""
    deployment = deploy_rows(deploy, "rows_of_steps", engine, broker)
    deployment.start("prefork", 2).wait_ready()
    deployment.send("ledger.open_account", name="first", account="x")
    deployment.wait_handled("ledger.open_account", 1)
    refused = deployment.send("ledger.open_account", name="second", account="x")
    wait_until(lambda: deployment.backend.dead.list(9), deployment.describe)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe)
    deployment.wait_handled(HEAR, 1)
    wait_until(lambda: deployment.history("ledger", "second"), deployment.describe)  # after the dead letter
    (dead_letter,) = deployment.backend.dead.list(9)
    assert (dead_letter.message_id, dead_letter.key) == (refused, "second")
    assert "IntegrityError" in dead_letter.error
    assert numbers_in(deployment, "entry") == numbers_in(deployment, "account") == [0]
    assert deployment.state("ledger", "second") is None
    assert [entry.outcome for entry in deployment.history("ledger", "second")] == ["failed"]
    assert deployment.handled(HEAR) == 1


@pytest.mark.parametrize(("engine", "broker"), [each for each in EACH if each[0] != "sqlite"])
def test_steps_that_lock_each_others_rows_both_succeed(deploy: Deploy, engine: str, broker: str) -> None:
    """The database undoes one of them, which runs again. On SQLite there is one writer at a time."""
    deployment = deploy_rows(deploy, "rows_of_steps", engine, broker, saga_batch=1)  # in a batch, one process has both
    deployment.start("prefork", 2).wait_ready()
    for account in ("x", "y"):
        deployment.send("ledger.open_account", name=account, account=account)
    deployment.wait_handled("ledger.open_account", 2)
    deployment.send("ledger.book", name="there", accounts=["x", "y"])
    deployment.send("ledger.book", name="back", accounts=["y", "x"])
    deployment.wait_handled("ledger.book", 2)
    assert numbers_in(deployment, "account") == [2, 2]
    assert [handled_by(deployment, "ledger", name) for name in ("there", "back")] == [[2], [2]]
    assert len(deployment.noted("attempts")) > 2, "there was no deadlock"
    assert deployment.backend.dead.list(9) == []
    assert deployment.failures() == []
