"""What is compiled once, and for whom."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from celery_sagas.stores.sql import deliveries
from celery_sagas.stores.sql.connection import statements
from celery_sagas.stores.sql.connection.names import OURS, Names
from celery_sagas.stores.sql.connection.statements import Statement, compile_statement


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without what other tests have compiled."""
    monkeypatch.setattr(statements, "_compiled", {})


def compiled(dialect: Any, prefix: str = "", clock: Any = None, names: Names = OURS) -> Statement:
    """Compile what counts a delivery."""
    return compile_statement(deliveries._insert, (dialect.name,), dialect, prefix=prefix, clock=clock, names=names)


def mysql(*, is_mariadb: bool) -> MySQLDialect_pymysql:
    """Return a dialect as it is once it is connected."""
    dialect = MySQLDialect_pymysql(is_mariadb=is_mariadb)
    dialect.server_version_info = (10, 11)
    dialect._requires_alias_for_on_duplicate_key = not is_mariadb
    return dialect


def test_a_statement_is_compiled_once_for_all_databases_of_a_kind() -> None:
    texts = {id(compiled(PGDialect_psycopg(), prefix).text) for prefix in ("shop", "bank")}
    assert (len(texts), len(statements._compiled)) == (1, 1)


def test_each_database_has_its_prefix() -> None:
    shop, bank = (compiled(PGDialect_psycopg(), prefix) for prefix in ("shop", "bank"))
    assert (shop.bind({})["prefix"], bank.bind({})["prefix"]) == ("shop", "bank")


def test_each_database_has_its_clock() -> None:
    early, late, server = (compiled(PGDialect_psycopg(), clock=clock) for clock in (lambda: 1, lambda: 2, None))
    assert (early.bind({})["now"], late.bind({})["now"], server.bind({}).get("now")) == (1, 2, None)
    assert early.text == late.text != server.text
    assert "statement_timestamp()" in server.text


def test_clock_of_mysql_converts_no_local_time() -> None:
    """``UNIX_TIMESTAMP(NOW())`` is an hour late in one of the two hours of autumn that have the same name."""
    assert "UNIX_TIMESTAMP()" in compiled(mysql(is_mariadb=True)).text


def test_each_kind_of_database_has_its_text() -> None:
    assert compiled(PGDialect_psycopg()).text != compiled(SQLiteDialect_pysqlite(paramstyle="named"), clock=lambda: 1).text


def test_databases_share_the_text_if_their_tables_have_the_same_names() -> None:
    choice = [OURS, Names(schema="orders"), Names(prefix="shop_"), Names(schema="orders", prefix="shop_")]
    first, second = ([compiled(PGDialect_psycopg(), names=replace(names)).text for names in choice] for _ in "ab")
    assert first == second
    assert [text.split()[2] for text in first] == [
        "saga_delivery",
        "orders.saga_delivery",
        "shop_saga_delivery",
        "orders.shop_saga_delivery",
    ]
    assert len(statements._compiled) == len(choice)


@pytest.mark.parametrize("is_mariadb_first", [False, True])
def test_mysql_and_mariadb_share_no_text(is_mariadb_first: bool) -> None:
    """They are one class to SQLAlchemy."""
    order = (is_mariadb_first, not is_mariadb_first)
    texts = {is_mariadb: compiled(mysql(is_mariadb=is_mariadb)).text for is_mariadb in order}
    assert "VALUES(at)" in texts[True]
    assert "new.at" in texts[False]
