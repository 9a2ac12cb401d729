"""An aggregator that writes rows with the removal of its items, and may be killed anywhere on the way."""

from celery import signals
from deployed import make_app
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from traps import die_if_told, set_traps_of_transactions

from celery_sagas import Batch, Message, aggregator
from celery_sagas.worker.runtime import runtime_of

app = make_app()


class Base(DeclarativeBase): ...


class Row(Base):
    """What was written of an item; nothing keeps a second one of the same number out."""

    __tablename__ = f"{app.conf.saga_prefix}_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class Numbered(Message):
    group: str
    number: int


@aggregator(name="rows.store", size=20, within=1.0, group_by="group", transaction=Session)
def store(batch: Batch[Numbered], session: Session) -> None:
    session.add_all(Row(number=item.number) for item in batch)
    session.flush()
    die_if_told("after insert")


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    set_traps_of_transactions(runtime_of(app).batches)
