"""``celery sagas schema``."""

import pytest
from celery import Celery

from tests.cli.test_describe import run


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///x.sqlite3", ["CREATE TABLE", "saga_instance", "saga_journal", "saga_outbox", "saga_key", "saga_dead"]),
        ("postgresql+psycopg://user:secret@nowhere/x", ["CREATE TABLE", "saga_instance"]),
        ("mysql+pymysql://user:secret@nowhere/x", ["CREATE TABLE", "LONGTEXT"]),
    ],
)
def test_ddl_is_printed_without_connecting(app: Celery, url: str, words: list[str]) -> None:
    """For each engine."""
    app.conf.saga_backend = url
    result = run(app, "schema")

    assert result.exit_code == 0, result.output
    for word in words:
        assert word in result.output
    assert "secret" not in result.output


def test_tables_have_the_names_of_the_options(app: Celery) -> None:
    """In the schema, which comes first."""
    app.conf.update(saga_backend="postgresql://nowhere/x", saga_backend_options={"schema": "orders", "table_prefix": "shop_"})
    result = run(app, "schema")

    assert result.output.startswith("CREATE SCHEMA IF NOT EXISTS orders;")
    assert "CREATE TABLE orders.shop_saga_instance (" in result.output


def test_of_another_backend(app: Celery) -> None:
    """Than the app's."""
    result = run(app, "schema", "--backend", "sqlite://")

    assert "CREATE TABLE" in result.output


def test_backend_without_tables(app: Celery) -> None:
    """It says so."""
    result = run(app, "schema", "--backend", "memory://x")

    assert (result.exit_code, result.output.strip()) == (0, "This backend needs no schema.")


def test_unknown_backend(app: Celery) -> None:
    """It says so, without a traceback."""
    result = run(app, "schema", "--backend", "nosuch://x")

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
