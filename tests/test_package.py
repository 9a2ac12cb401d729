"""What users install."""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

import celery_sagas

DRIVERS = ["redis", "psycopg", "pymysql", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql"]


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="the source tree may be tested outside tox")
def test_built_wheel_is_what_is_tested():
    assert Path(celery_sagas.__file__).is_relative_to(sysconfig.get_path("purelib"))


def test_package_is_typed():
    assert Path(celery_sagas.__file__).with_name("py.typed").is_file()


def test_commands_are_registered_with_celery():
    commands = distribution("celery-sagas").entry_points.select(group="celery.commands")
    assert [(command.name, command.value) for command in commands] == [("sagas", "celery_sagas.cli:sagas")]


def test_celerys_command_loads_the_package_for_any_app():
    """So that each worker which it starts has what the library adds, whether its app has sagas or not."""
    script = "import celery, sys; before = 'celery_sagas' in sys.modules; import celery.bin.celery; "
    script += "print(before, 'celery_sagas' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False True\n"


def test_importing_the_package_loads_no_driver():
    script = f"import celery_sagas, sys; print([name for name in {DRIVERS} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"
