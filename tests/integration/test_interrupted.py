"""Steps that are interrupted anywhere: nobody gets another's answer, and every message counts once."""

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import ADD_AND_TELL, assert_conserved, increments, send_all

MESSAGES = 100


@pytest.mark.parametrize(
    ("engine", "pool"),
    [("sqlite", "solo"), *((engine, "prefork") for engine in ENGINES)],
)
def test_soft_time_limits_leave_nothing_behind(deploy: Deploy, engine: str, pool: str) -> None:
    deployment = deploy("interrupted", "redis", engine)
    deployment.start(pool, 2).wait_ready()
    wanted = increments(MESSAGES, counters=30)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    assert len(deployment.noted("interrupted")) >= MESSAGES / 4  # or nothing was tested
    assert deployment.noted("unsound") == []
