"""Eight processes on few instances: every increment counts, once."""

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import ADD, increments, send_all, sums, values
from tests.integration.matrices import IS_FULL

INCREMENTS, COUNTERS = (2_000, 100) if IS_FULL else (600, 30)


@pytest.mark.parametrize(("engine", "broker"), list(zip(ENGINES, ("redis", "redis", "rabbitmq", "redis"), strict=True)))
def test_sums_are_exact(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("counters", broker, engine)
    wanted = increments(INCREMENTS, COUNTERS)
    workers = [deployment.start("prefork", 4, level="WARNING") for _ in range(2)]
    send_all(deployment, ADD, wanted)
    for worker in workers:
        worker.wait_ready()
    deployment.wait_handled(ADD, INCREMENTS, deadline_s=120)
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.handled(ADD) == INCREMENTS
    assert deployment.failures() == []
