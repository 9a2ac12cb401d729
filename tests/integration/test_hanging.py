"""A test that hangs: it is ended by its time limit, and shows what its workers do."""

import os
import subprocess
import sys
from pathlib import Path

#: A test whose time is over as soon as its worker runs the step, which does not end.
_HANGING = """
import os, signal
from tests.integration.conftest import deploy, deployments_folder, pytest_runtest_makereport
from tests.waiting import wait_until

def test_hanging(deploy):
    deployment = deploy("lingering", "filesystem", "sqlite")
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send("guest.visit", name="a")
    wait_until(lambda: deployment.noted("visits"), deployment.describe)
    os.kill(os.getpid(), signal.SIGALRM)  # as pytest-timeout has it sent
"""
ROOT = Path(__file__).resolve().parents[2]


def test_hanging_test_shows_the_stacks_of_its_workers(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(_HANGING)
    (tmp_path / "conftest.py").write_text("from tests.integration.conftest import pytest_runtest_makereport\n")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--timeout=300",
        "--timeout-method=signal",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Failed: Timeout" in done.stdout
    workers = done.stdout.partition("--- worker")[2]
    assert workers.count("most recent call first") >= 2, done.stdout
    assert "lingering.py" in workers, done.stdout
