"""Processes that start the same instance at the same time; one message that comes to many is in ``test_at_once``."""

import pytest

from tests.integration.conftest import ENGINES, Deploy

RACES = 30


@pytest.mark.parametrize("engine", ENGINES)
def test_starters_of_one_key_make_one_instance(deploy: Deploy, engine: str) -> None:
    deployment = deploy("counters", "redis", engine)
    deployment.start("prefork", 4).wait_ready()
    names = [f"counter {number}" for number in range(RACES)]
    for name in names:
        for _ in range(4):
            deployment.send("counter.start_together", name=name)
    deployment.wait_handled("counter.start_together", 4 * RACES)
    for name in names:
        state = deployment.state("counter", name)
        assert state is not None
        assert state["count"] == 4
        outcomes = sorted(entry.outcome for entry in deployment.history("counter", name))
        assert outcomes == ["handled", "handled", "handled", "started"]
    assert deployment.failures() == []
    assert len(deployment.noted("starters")) >= RACES * 1.5  # or there were no races
