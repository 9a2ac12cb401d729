"""The tables. All saga types share them; every table that holds data is partitioned by ``prefix``."""

from typing import Any, Final, cast

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Computed,
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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from celery_sagas.stores.instances import SLOT_BITS
from celery_sagas.stores.layouts import Layout

#: Of everything in this module but what is optional. The version is raised with every change of it, the oldest one with a change
#: on which older code cannot run.
LAYOUT = Layout(version=7, oldest=5)
#: The kind of an outgoing row that stays when its instance completes.
SENT = "sent"
#: The property of the rows of ``saga_key`` that are tags. No property of a saga can have this name.
TAG: Final = "$tag"

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


def _table(name: str, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, Column("prefix", _name(64), nullable=False), *parts, **_MYSQL, **options)


def _text(name: str) -> Column[str]:
    return Column(name, NAME, nullable=False)


def _document(name: str) -> Column[str]:
    return Column(name, DOCUMENT, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _time(name: str) -> Column[int]:
    """Milliseconds since the epoch."""
    return Column(name, BigInteger, nullable=False)


def _digest(name: str) -> Column[str]:
    """A digest of several names, which together would be too long for an index."""
    return Column(name, _name(40), nullable=False)


def _word(name: str) -> Column[str]:
    return Column(name, _name(16), nullable=False)


def _big_number(name: str) -> Column[int]:
    """A number that grows for as long as the table exists, such as that of an item."""
    return Column(name, BigInteger, nullable=False)


def _growing(name: str) -> Column[int]:
    """A number that the database gives, larger than every one that it gave before, and never again."""
    return Column(name, BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True)


class _Generated(Computed):
    """An expression that the database computes: when it is written where the values of an index are in the row, else when it is
    read, which adds the column to a table without writing any row.
    """

    def _copy(self, **_: Any) -> "_Generated":
        return _Generated(str(self.sqltext))


@compiles(_Generated)
def _compile_generated(element: _Generated, compiler: Any, **_: Any) -> str:
    how = "STORED" if compiler.dialect.name == "postgresql" else "VIRTUAL"
    return f"GENERATED ALWAYS AS ({element.sqltext}) {how}"


#: Growing numbers never come again on SQLite either, and no insert asks for them.
_GROWS: Any = {"sqlite_autoincrement": True, "implicit_returning": False}


# Indexes begin with the column that distinguishes rows, not with the prefix, which they all end with: as long as PostgreSQL has
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
    _text("locked_by"),
    _time("locked_until"),
    # of the last commit. No commit writes it: most leave it as it is, and with it every index of the row
    Column("touched_in", BigInteger, _Generated(f"updated_at >> {SLOT_BITS}")),
    PrimaryKeyConstraint("id", "prefix"),
    UniqueConstraint("key", "saga", "prefix", name="saga_instance_key"),
)

#: The alternate keys. ``saga`` is the name of the saga when the key was added, or moved, only there to make the key unique:
#: an instance is found by its own saga name, which may be a former one. So are the tags: ``celery_sagas.stores.sql.sagas.tags``.
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

#: What operators have done. ``saga`` and ``key`` are those of the journal's entry.
audit = _table(
    "saga_audit",
    _text("id"),
    _text("actor"),
    _text("action"),
    _document("reason"),
    _text("saga"),
    _text("key"),
    _text("instance_id"),
    Column("version", BigInteger, nullable=False),
    _document("detail"),
    _time("at"),
    PrimaryKeyConstraint("id", "prefix"),
)

#: What operators hold: few rows, all of which are read together.
switch = _table(
    "saga_switch",
    _text("name"),
    _text("actor"),
    _document("reason"),
    _time("at"),
    PrimaryKeyConstraint("prefix", "name"),
)

#: The counts of redeliveries.
delivery = _table(
    "saga_delivery",
    _text("step"),
    _text("message_id"),
    _number("count"),
    _time("at"),  # of the last one
    PrimaryKeyConstraint("message_id", "step", "prefix"),
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
    _time("leased_until"),  # 0: there is no lease on it
    _text("token"),
    _number("attempts"),
    _document("error"),
    _text("instance_id"),
    _text("step"),
    _text("cause"),
    # when the message was published first, or first could not be published; 0: it was never tried. No insert writes it
    Column("tried_at", BigInteger, nullable=False, server_default=literal_column("0")),
    PrimaryKeyConstraint("id", "prefix"),
    Index("saga_outbox_cause", "cause", "prefix"),
)


def has_time(column: ColumnElement[int]) -> ColumnElement[bool]:
    """Return a condition that is always true. The indexes by time, which begin with the prefix, serve only statements with it."""
    return column > literal_column("0")


def has_unresolved(groups: Any) -> ColumnElement[bool]:
    """Return the condition of the partial index by unresolved items, as a statement must repeat it to use the index."""
    return cast(ColumnElement[bool], groups.c.unresolved > literal_column("0"))


#: A condition that is always true, and follows from every comparison. The index serves only statements with one.
HAS_SLOT = instance.c.touched_in.is_not(None)
#: Serves pages of instances.
seen_index = Index(
    "saga_instance_seen",
    instance.c.prefix,
    instance.c.saga,
    instance.c.touched_in,
    instance.c.id,
    postgresql_where=HAS_SLOT,
    sqlite_where=HAS_SLOT,
)
journal_index = Index("saga_journal_at", journal.c.prefix, journal.c.at, postgresql_where=has_time(journal.c.at))
#: Serves operators, who look at what was done lately, and to one instance.
audit_index = Index(
    "saga_audit_at",
    audit.c.prefix,
    audit.c.at,
    audit.c.id,
    postgresql_where=has_time(audit.c.at),
    sqlite_where=has_time(audit.c.at),
)
audit_key_index = Index("saga_audit_key", audit.c.key, audit.c.saga, audit.c.prefix, audit.c.at)
Index("saga_delivery_at", delivery.c.prefix, delivery.c.at, postgresql_where=has_time(delivery.c.at))
Index("saga_outbox_available", outbox.c.prefix, outbox.c.available_at, postgresql_where=has_time(outbox.c.available_at))
#: Serves operators, who look at the rows whose messages were not handled for long, or fail to be published.
tried_index = Index(
    "saga_outbox_tried",
    outbox.c.prefix,
    outbox.c.tried_at,
    outbox.c.id,
    postgresql_where=has_time(outbox.c.tried_at),
    sqlite_where=has_time(outbox.c.tried_at),
)

#: The rows that end with their instance, as a condition that the partial index answers.
ENDS_WITH_INSTANCE = outbox.c.kind != literal_column(f"'{SENT}'")
Index(
    "saga_outbox_instance",
    outbox.c.instance_id,
    outbox.c.prefix,
    postgresql_where=ENDS_WITH_INSTANCE,
    sqlite_where=ENDS_WITH_INSTANCE,
)

#: Nothing here has a limit but the id: a dead letter that cannot be kept would be lost. Rejected items are among the messages.
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
    _big_number("number"),  # of a rejected item in its buffer; 0: a message
    _time("buffered_at"),
    PrimaryKeyConstraint("id", "prefix"),
    Index("saga_dead_at", "prefix", "at", "id"),
)

#: The aggregators that have ever buffered anything.
aggregator = _table("saga_aggregator", _text("name"), PrimaryKeyConstraint("name", "prefix"))

#: The groups that have buffered items. Every change of a group locks its row first.
group = _table(
    "saga_group",
    _digest("group_digest"),  # of aggregator and group
    _text("aggregator"),
    _text("grp"),
    _number("free"),
    _number("leased"),
    _number("unresolved"),
    _big_number("oldest"),  # the first free item
    _time("oldest_at"),
    _time("last_at"),
    _big_number("fired_to"),
    _word("fired_why"),
    _time("flush_requested_until"),
    _time("paused_until"),  # before that, no claim takes items
    _time("lease_end"),  # of the lease that ends first; 0: there is none
    _time("due_at"),  # 0: when the next item comes
    _big_number("removals"),  # how often ids of its items were remembered, for calls that have waited for the row meanwhile
    PrimaryKeyConstraint("group_digest", "prefix"),
    Index("saga_group_name", "aggregator", "prefix", "grp"),
)
Index(
    "saga_group_due",
    group.c.aggregator,
    group.c.prefix,
    group.c.due_at,
    group.c.grp,
    postgresql_where=has_time(group.c.due_at),
    sqlite_where=has_time(group.c.due_at),
)

Index(
    "saga_group_unresolved",
    group.c.aggregator,
    group.c.prefix,
    group.c.group_digest,
    group.c.unresolved,
    postgresql_where=has_unresolved(group),
    sqlite_where=has_unresolved(group),
)

#: The items. Few columns are indexed: every item is written two or three times.
buffer = _table(
    "saga_buffer",
    _growing("number"),
    _digest("group_digest"),
    _digest("key"),  # of aggregator, group and id
    _text("id"),
    _document("payload"),
    _time("at"),
    _number("attempts"),
    _word("state"),  # free, leased or unresolved
    _text("token"),  # of its lease
    UniqueConstraint("key", "prefix", name="saga_buffer_key"),
    Index("saga_buffer_state", "group_digest", "state", "prefix", "number"),
    **_GROWS,
)

#: The leases that were neither ended nor given up.
lease = _table(
    "saga_lease",
    _digest("group_digest"),
    _text("token"),
    _word("reason"),
    _time("ends_at"),
    PrimaryKeyConstraint("group_digest", "token", "prefix"),
)

#: The ids of removed items, as the digests in ``saga_buffer``.
seen = _table("saga_seen", _digest("key"), _time("ends_at"), PrimaryKeyConstraint("key", "prefix"))
Index("saga_seen_ends", seen.c.prefix, seen.c.ends_at, postgresql_where=has_time(seen.c.ends_at))

#: The app that has started last. It came after the others: a database may be without it.
app = Table("saga_app", metadata, Column("prefix", _name(64), primary_key=True), _document("name"), **_MYSQL)
#: One row: the id of this database, by which a user's connection to it is known. It came later, too.
database = Table(
    "saga_database", metadata, Column("number", Integer, primary_key=True, autoincrement=False), _text("id"), **_MYSQL
)
#: The tables without which everything works but what needs them.
OPTIONAL = frozenset({app.name, database.name})

#: One row. The layout is that of the tables, which all prefixes share.
layout = Table(
    "saga_layout", metadata, Column("version", Integer, primary_key=True, autoincrement=False), _number("oldest"), **_MYSQL
)
