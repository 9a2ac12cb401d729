"""Steps that write rows with their commits, and may be killed anywhere on the way."""

from celery import signals
from deployed import make_app, note
from meeting import meet
from sqlalchemy import String, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from traps import die_if_told, set_traps_of_transactions

from celery_sagas import Saga
from celery_sagas.worker.runtime import runtime_of

app = make_app()


class Base(DeclarativeBase): ...


class Row(Base):
    """What an entry has written; nothing keeps a second one of the same number out."""

    __tablename__ = f"{app.conf.saga_prefix}_entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class Account(Base):
    __tablename__ = f"{app.conf.saga_prefix}_account"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    number: Mapped[int] = mapped_column(default=0)


class Ledger(Saga, correlate_by="name"):
    name: str
    numbers: list[int] = []


class Echo(Saga, correlate_by="name"):
    name: str
    numbers: list[int] = []


@Ledger.starts(transaction=Session)
def enter(ledger: Ledger, session: Session, name: str, number: int) -> None:
    session.add(Row(number=number))
    session.flush()
    die_if_told("after insert")
    ledger.numbers.append(number)
    ledger.send(hear.si(f"echo of {name}", number))


@Echo.starts
def hear(echo: Echo, name: str, number: int) -> None:
    echo.numbers.append(number)


@Ledger.starts(transaction=Session)
def open_account(ledger: Ledger, session: Session, name: str, account: str) -> None:
    """Write a row that can be there once."""
    session.add(Row(number=0))
    session.flush()
    session.add(Account(name=account))
    ledger.send(hear.si(f"echo of {name}", 0))


@Ledger.starts(transaction=Session)
def book(ledger: Ledger, session: Session, name: str, accounts: list[str]) -> None:
    """Change two accounts, the second one when two processes have changed their first."""
    note("attempts", name)
    for account in accounts:
        session.execute(update(Account).where(Account.name == account).values(number=Account.number + 1))
        meet("one each", 2, seconds=20)
    ledger.numbers.append(len(accounts))


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    set_traps_of_transactions(runtime_of(app).backend)
