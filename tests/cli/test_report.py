"""``celery report``, which users paste into bug reports: it shows no secret of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launching import Forked
from tests.waiting import PROGRAM_S, wait_until

APP = """
from celery import Celery

import celery_sagas

app = Celery("shop", broker="memory://")
app.conf.update({settings!r})
"""


def report(folder: Path, **settings: object) -> tuple[int, str]:
    """Return the exit code of the command in a process of its own, and everything that it prints."""
    (folder / "shop.py").write_text(APP.format(settings=settings))
    environment = {"PYTHONPATH": "", **os.environ}
    output, errors = folder / "output", folder / "errors"
    process = Forked(["-m", "celery", "-A", "shop", "report"], environment, folder, output, errors)
    try:
        wait_until(lambda: process.poll() is not None, "the end of the command", PROGRAM_S)
        code = process.poll()
    finally:
        process.kill()
    assert code is not None
    return code, output.read_text() + errors.read_text()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/shop",
        "db+mysql://me:s3cret@host/shop?charset=utf8mb4",
        "rediss://:s3cret@host:6380/1",
        "unix://me:s3cret@/run/redis.sock?db=1",
        "sentinel://:s3cret@one:26379/1;sentinel://two:26379/1",
    ],
)
def test_passwords_are_masked(tmp_path: Path, url: str) -> None:
    """Those before the host, and those in the options."""
    options = {"connect_args": {"sslpassword": "s3cret"}, "ssl_password": "s3cret", "sentinel_kwargs": {"password": "s3cret"}}
    named = {"orders": {"backend": url, "options": options}}
    code, text = report(
        tmp_path, saga_backend=url, saga_aggregator_backend=url, saga_backend_options=options, saga_backends=named
    )

    assert code == 0, text
    assert "saga_backends: " in text
    assert f"saga_backend: '{url.replace('s3cret', '********')[:20]}" in text
    assert "saga_aggregator_backend: " in text
    assert "s3cret" not in text


@pytest.mark.parametrize("setting", ["saga_backend", "saga_aggregator_backend", "saga_backends"])
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://me@host/shop?sslpassword=s3cret", "has sslpassword in its query"),
        ("redis://host/1?password=s3cret", "has password in its query"),
        ("sentinel://:s3cret@one;sentinel://:s3cret@two", "more than once"),
        ("postgresql://me:x/s3cret@host/shop", "%-escaped"),
        ("celery_sagas.stores.sql.backend:SqlBackend+postgresql://me:s3cret@host/shop", "import path and a password"),
    ],
)
def test_secrets_that_it_would_show_are_refused(tmp_path: Path, setting: str, url: str, problem: str) -> None:
    """By the name of what holds them."""
    code, text = report(tmp_path, **{setting: {"orders": {"backend": url}} if setting == "saga_backends" else url})

    assert code != 0
    assert problem in text
    assert "s3cret" not in text


@pytest.mark.parametrize(
    "named", [{"orders": "postgresql://me:s3cret@host/shop"}, "postgresql://me:s3cret@host/shop", ["s3cret"]], ids=str
)
def test_named_backends_of_another_form_are_refused(tmp_path: Path, named: object) -> None:
    code, text = report(tmp_path, saga_backends=named)

    assert code != 0
    assert 'Write {"orders": {"backend": "postgresql://…", "options": {}}}' in text
    assert "s3cret" not in text


def test_secrets_are_refused_in_a_fresh_interpreter(tmp_path: Path) -> None:
    """Nothing of the library is imported before the app's module."""
    (tmp_path / "shop.py").write_text(APP.format(settings={"saga_backend": "redis://host/1?password=s3cret"}))
    command = [sys.executable, "-m", "celery", "-A", "shop", "report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S, check=False)

    assert done.returncode != 0
    assert "has password in its query" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
