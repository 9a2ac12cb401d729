"""The tables. All saga types share them; every table that holds data is partitioned by ``prefix``."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.dialects.mysql import LONGTEXT, VARBINARY
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

#: The version of everything in this module, raised with every change of it.
LAYOUT = 1
#: The kind of an outgoing row that stays when its instance completes.
SENT = "sent"

metadata = MetaData()
_MYSQL: Any = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _name(characters: int = 255) -> TypeEngine[str]:
    """A text that is compared byte by byte; MySQL's collations would find ``abc`` for ``ABC``, ``'abc '`` and ``ábc``.

    MySQL counts bytes, four for a character at worst, and allows 3,072 in an index. PostgreSQL's "C" is the one collation
    that no update of the system's libraries can change under an index.
    """
    binary = VARBINARY(4 * characters)
    return Text().with_variant(Text(collation="C"), "postgresql").with_variant(binary, "mysql")


#: A text of any length that a person can read. On PostgreSQL not JSONB, which rewrites it.
DOCUMENT = Text().with_variant(LONGTEXT(), "mysql")
NAME = _name()


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(name, metadata, Column("prefix", _name(64), nullable=False), *parts, **_MYSQL)


def _text(name: str) -> Column[str]:
    return Column(name, NAME, nullable=False)


def _document(name: str) -> Column[str]:
    return Column(name, DOCUMENT, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _time(name: str) -> Column[int]:
    """Milliseconds since the epoch."""
    return Column(name, BigInteger, nullable=False)


# Indexes begin with the column that tells rows apart, not with the prefix, which they all end with: as long as PostgreSQL has
# no statistics of a new table, it takes any index that begins with a column of the condition for as good as the right one.

instance = _table(
    "saga_instance",
    _text("id"),
    _text("saga"),
    _text("key"),
    Column("version", BigInteger, nullable=False),
    _number("schema_version"),
    _document("data"),
    _document("pending"),
    _time("created_at"),
    _time("updated_at"),
    _text("reserved_by"),
    _time("reserved_until"),
    PrimaryKeyConstraint("id", "prefix"),
    UniqueConstraint("key", "saga", "prefix", name="saga_instance_key"),
)

#: The alternate keys. ``saga`` is the name that the saga had when the key was added, only there to make the key unique:
#: an instance is found by its own saga name, which may be a former one.
key = _table(
    "saga_key",
    _text("saga"),
    Column("property", _name(128), nullable=False),
    _text("value"),
    _text("instance_id"),
    PrimaryKeyConstraint("value", "property", "prefix", "saga"),
    Index("saga_key_instance", "instance_id", "prefix"),
)

journal = _table(
    "saga_journal",
    _text("step"),
    _text("message_id"),
    _text("attempt"),
    _text("outcome"),
    _text("saga"),
    _text("key"),
    _text("instance_id"),
    Column("version", BigInteger, nullable=False),
    _document("detail"),
    _time("at"),
    PrimaryKeyConstraint("message_id", "step", "prefix"),
    Index("saga_journal_key", "key", "saga", "prefix", "at"),
)

outbox = _table(
    "saga_outbox",
    _text("id"),
    _text("kind"),
    _text("message_id"),
    _text("task"),
    _document("payload"),
    _time("due_at"),
    _time("available_at"),  # from when on the row may be claimed: its due time has come and no lease lasts
    _text("token"),
    _number("attempts"),
    _document("error"),
    _text("instance_id"),
    _text("step"),
    _text("cause"),
    PrimaryKeyConstraint("id", "prefix"),
    Index("saga_outbox_cause", "cause", "prefix"),
)
#: Always true. The indexes by time do begin with the prefix; only statements that name this condition use them.
HAS_AT = journal.c.at > literal_column("0")
HAS_AVAILABLE_AT = outbox.c.available_at > literal_column("0")
Index("saga_journal_at", journal.c.prefix, journal.c.at, postgresql_where=HAS_AT)
Index("saga_outbox_available", outbox.c.prefix, outbox.c.available_at, postgresql_where=HAS_AVAILABLE_AT)

#: The rows that end with their instance, as a condition that the partial index answers.
ENDS_WITH_INSTANCE = outbox.c.kind != literal_column(f"'{SENT}'")
Index(
    "saga_outbox_instance",
    outbox.c.instance_id,
    outbox.c.prefix,
    postgresql_where=ENDS_WITH_INSTANCE,
    sqlite_where=ENDS_WITH_INSTANCE,
)

#: Nothing here has a limit but the id: a letter that cannot be kept would be lost.
dead = _table(
    "saga_dead",
    _text("id"),
    _document("task"),
    _document("message_id"),
    _document("saga"),
    _document("key"),
    _document("error"),
    _document("text"),
    _document("traceback"),
    _document("payload"),
    _time("at"),
    PrimaryKeyConstraint("id", "prefix"),
    Index("saga_dead_at", "prefix", "at", "id"),
)

#: One row. The layout is that of the tables, which all prefixes share.
layout = Table("saga_layout", metadata, Column("version", Integer, primary_key=True, autoincrement=False), **_MYSQL)
