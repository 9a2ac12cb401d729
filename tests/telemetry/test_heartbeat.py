"""The files that probes look at."""

import os
import subprocess
import sys
import time
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _celery_sagas_probe as probe  # in the wheel it is not in the package
import pytest
from celery import Celery

from celery_sagas.engine.sweeps import Sweep, Tally
from celery_sagas.errors import ConfigurationError
from celery_sagas.settings import Settings
from celery_sagas.telemetry import heartbeat
from celery_sagas.telemetry.bootsteps import Beat
from celery_sagas.telemetry.heartbeat import Heartbeat, is_busy_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Two clocks, which stand still."""
    now = [1_000.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    return now


def beating(tmp_path: Path, **given: Any) -> Heartbeat:
    return Heartbeat(Celery(set_as_current=False), Settings(heartbeat=str(tmp_path / "worker")), **given)


def test_loop_that_hangs_is_not_alive(tmp_path: Path, clock: list[float]) -> None:
    """One without a connection waits for the broker, and is."""
    beat = beating(tmp_path)
    assert beat.is_alive
    beat.tick()
    clock[0] += heartbeat.SILENT_S - 1
    assert beat.is_alive
    clock[0] += 1
    assert not beat.is_alive
    beat.pause()
    assert beat.is_alive


def test_loop_in_which_a_task_runs_is_alive(tmp_path: Path, clock: list[float]) -> None:
    active: list[str] = []
    pool = type("TaskPool", (), {"__module__": "celery.concurrency.solo"})()
    beat = beating(tmp_path, is_busy=is_busy_in(pool, active))
    beat.tick()
    clock[0] += 1_000
    assert not beat.is_alive
    active.append("a task")
    assert beat.is_alive
    assert not is_busy_in(object(), active)()


@pytest.mark.parametrize(
    ("ended_s_ago", "is_away", "is_running", "is_alive"),
    [(50, False, True, True), (200, False, True, False), (200, True, True, True), (50, False, False, False)],
)
def test_relay_that_hangs_is_not_alive(
    tmp_path: Path,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    ended_s_ago: int,
    is_away: bool,
    is_running: bool,
    is_alive: bool,
) -> None:
    """While the store, or the broker, is known to be away, it is."""
    sweep = Sweep(0.0, clock[0] - ended_s_ago)
    tally = Tally(last=sweep, trouble=sweep if is_away else None)
    relay = SimpleNamespace(is_running=is_running, tallies=[("url", tally)])
    monkeypatch.setattr(heartbeat, "relay_of", lambda app: relay)
    assert beating(tmp_path).is_alive is is_alive


def test_relay_that_does_not_begin_is_not_alive(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "relay_of", lambda app: SimpleNamespace(is_running=True, tallies=[("url", Tally())]))
    beat = beating(tmp_path)
    assert beat.is_alive
    clock[0] += 200
    assert not beat.is_alive


def test_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"saga_heartbeat cannot be written: .*a folder that exists"):
        beating(tmp_path / "missing").start()


def test_file_that_a_killed_worker_has_left_says_nothing_of_the_next(tmp_path: Path) -> None:
    """It is not ready before its backend is."""
    ready = tmp_path / "worker.ready"
    ready.touch()
    app = Celery(set_as_current=False)
    app.conf.saga_heartbeat = str(tmp_path / "worker")
    worker = SimpleNamespace(app=app, pool=None)
    assert Beat(worker).include_if(worker)
    assert not ready.exists()


@pytest.mark.parametrize(
    ("words", "status"), [([], 0), (["--ready"], 1), (["--max-age", "100"], 0), (["--max-age", "-1"], 1)], ids=str
)
def test_probe(tmp_path: Path, words: list[str], status: int) -> None:
    (tmp_path / "worker.alive").touch()
    assert probe.main([str(tmp_path / "worker"), *words]) == status


@pytest.mark.parametrize("words", [[], ["a", "b"], ["a", "--max-age", "x"]], ids=str)
def test_wrong_arguments_of_a_probe(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        probe.main(words)
    assert ended.value.code == 2


def test_probe_of_a_worker_that_has_stopped_touching(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "worker")
    assert probe.main([path]) == 1
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "worker.alive").touch()
    os.utime(tmp_path / "worker.alive", (0, time.time() - 31))
    assert probe.main([path]) == 1
    assert "was touched 31 s ago" in capsys.readouterr().err


def test_probe_imports_neither_the_package_nor_celery(tmp_path: Path) -> None:
    """It runs every few seconds, and must start quickly."""
    script = f"import runpy, sys; sys.argv = ['probe', {str(tmp_path / 'worker')!r}]\ntry: runpy.run_path({probe.__file__!r}, "
    script += (
        "run_name='__main__')\nexcept SystemExit as end: print(end.code, {'celery', 'celery_sagas', 'pydantic'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "1 set()"


def test_probe_is_a_command_of_its_own_module() -> None:
    (command,) = distribution("celery-sagas").entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("celery-sagas-probe", "_celery_sagas_probe:main")
