"""Run the second example as its reader does: the project's own commands, and its own tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = Path(__file__).resolve().parents[1] / "example_project" / "django_shop"


@pytest.mark.parametrize("command", ["check", "migrate", "test", "makemigrations --check"])
def test_command_of_the_django_shop(command: str, tmp_path: Path) -> None:
    shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = [sys.executable, "-W", "error", "manage.py", *command.split()]
    done = subprocess.run(run, cwd=tmp_path / "shop", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
