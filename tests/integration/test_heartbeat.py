"""The files of a real worker that probes look at."""

from collections.abc import Callable
from pathlib import Path

import _celery_sagas_probe as probe  # in the wheel it is not in the package

from celery_sagas.telemetry import heartbeat
from tests.integration.conftest import Deploy
from tests.integration.proxy import Proxy
from tests.waiting import wait_until


def test_worker_is_alive_while_its_broker_is_away(proxied: Callable[[str], Proxy], deploy: Deploy) -> None:
    """It waits for the broker in its main thread, and probes must not restart it. Once it stops, it is not ready."""
    proxy = proxied("rabbitmq")
    deployment = deploy("counters", proxy.url, "postgresql")
    path = deployment.folder / "worker"
    deployment.settings["saga_heartbeat"] = str(path)
    worker = deployment.start("prefork", 1).wait_ready()
    assert probe.main([str(path), "--ready"]) == 0

    proxy.refuse()
    worker.wait_logged("Connection to broker lost")
    alive = Path(f"{path}.alive")
    for _ in range(2):
        before = alive.stat().st_mtime_ns
        wait_until(lambda before=before: alive.stat().st_mtime_ns > before, worker.describe, 3 * heartbeat.BEAT_S)
    proxy.accept()
    assert worker.stop() == 0
    assert probe.main([str(path)]) == 1
    assert list(deployment.folder.glob("worker.*")) == []


def test_folder_that_is_missing_ends_the_worker(deploy: Deploy, tmp_path: Path) -> None:
    deployment = deploy("counters", "rabbitmq", "postgresql", saga_heartbeat=str(tmp_path / "missing" / "worker"))
    worker = deployment.start("prefork", 1)
    assert worker.wait_ended() != 0
    assert "saga_heartbeat cannot be written" in worker.log
