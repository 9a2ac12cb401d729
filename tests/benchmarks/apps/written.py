"""A row that a message writes: the same one for plain tasks, steps and batches."""

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase): ...


class Written(Base):
    __tablename__ = "written_by_messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
