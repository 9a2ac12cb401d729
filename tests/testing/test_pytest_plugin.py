"""The pytest plugin, in test runs of its own, with and beside the plugins of others."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

APP = """
from celery import Celery
from celery_sagas import Saga

app = Celery("shop", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/0")
app.conf.saga_backend = "redis://127.0.0.1:1/0"

class Order(Saga, correlate_by="order_id"):
    order_id: str
    receipt: str = ""

@Order.starts
def place(order: Order, order_id: str) -> None:
    order.send(charge.s(order_id), then=charged)

@Order.handles
def charged(order: Order, receipt: str) -> None:
    order.receipt = receipt

@app.task(acks_late=True)
def charge(order_id: str) -> str:
    return "r-" + order_id
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with an app, and no settings of pytest but its own."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


#: Options with which the plugins of others are not there.
ALONE = ("-p", "no:asyncio", "-p", "no:django")


def run(folder: Path, test: str, *options: str) -> str:
    """Run a test; return what pytest writes."""
    (folder / "test_shop.py").write_text(test)
    options = options or ALONE
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False).stdout


def test_entry_point_is_a_module_of_its_own():
    """A module of the package would import the package, with Celery and pydantic, into each test run."""
    (plugin,) = distribution("celery-sagas").entry_points.select(group="pytest11")
    assert plugin.value == "_celery_sagas_pytest"
    script = "import sys, pytest; before = set(sys.modules); import _celery_sagas_pytest; print(set(sys.modules) - before)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "{'_celery_sagas_pytest'}"


ONE_ORDER = """
from shop import *

def test(saga_harness):
    place.delay("1")
    assert saga_harness.run() == 3
"""


def test_fixture_needs_no_import(folder: Path):
    written = run(folder, ONE_ORDER)
    assert "1 passed" in written, written


def test_options_of_the_fixture_can_be_overridden(folder: Path):
    test = """
from datetime import UTC, datetime
import pytest

@pytest.fixture
def saga_harness_options():
    return {"now": datetime(2000, 1, 1, tzinfo=UTC)}

def test(saga_harness):
    assert saga_harness.now.year == 2000
"""
    written = run(folder, test)
    assert "1 passed" in written, written


def test_failure_shows_what_has_happened(folder: Path):
    written = run(folder, f"{ONE_ORDER}    assert Order.find('1').receipt == ''\n")
    assert "1 failed" in written, written
    assert "- sagas -" in written
    assert "+0:00:00  order.place('1')" in written
    assert "handled, version 2" in written


def test_other_tests_show_nothing(folder: Path):
    written = run(folder, "def test():\n    assert False\n")
    assert "1 failed" in written
    assert "- sagas -" not in written


def test_app_that_is_made_in_the_test(folder: Path):
    test = ONE_ORDER.replace("from shop import *", "").replace("place.delay", "from shop import place; place.delay")
    written = run(folder, test)
    assert "1 passed" in written, written


def test_beside_pytest_asyncio(folder: Path):
    test = ONE_ORDER.replace("def test", "import pytest\n\n@pytest.mark.asyncio\nasync def test")
    written = run(folder, test, "-p", "no:django", "-o", "asyncio_default_fixture_loop_scope=function")
    assert "1 passed" in written, written


def test_beside_pytest_django(folder: Path):
    """With a test that uses the database, and the task class that Celery gives to projects of Django."""
    databases = "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}"
    (folder / "settings.py").write_text(f"SECRET_KEY = 'x'\nUSE_TZ = True\n{databases}\n")
    test = """
import pytest
from django.db import transaction
from shop import *

@pytest.mark.django_db(transaction=True)
def test(saga_harness):
    with transaction.atomic():
        place.delay_on_commit("1")
        assert saga_harness.run() == 0
    assert saga_harness.run() == 3
"""
    written = run(folder, test, "--ds=settings", "-p", "no:asyncio")
    assert "1 passed" in written, written
