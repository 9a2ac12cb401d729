"""``transaction=``: the transaction that a function shares with the commit of its message or of its batch."""

from typing import Any, Final

from celery_sagas.errors import DefinitionError

#: What a function can be given, by its name in SQLAlchemy: this class, or one that derives from it; and that class itself.
_SESSION: Final = ("sqlalchemy.orm", "Session")
_CONNECTION: Final = ("sqlalchemy.engine", "Connection")
_REMEDY: Final = "Give transaction= the class Session or Connection of SQLAlchemy's, or the alias of a database of Django's"


def checked_transaction(subject: str, kind: Any) -> type | str | None:
    """Return the kind of transaction of a declaration: a class, of which the function is given an object, or an alias.

    Raises:
        DefinitionError: It is none.
    """
    if kind is None or (isinstance(kind, str) and kind):
        return kind
    names = [_name_of(base) for base in kind.__mro__] if isinstance(kind, type) else []
    if _SESSION in names or names[:1] == [_CONNECTION]:
        return kind  # type: ignore[no-any-return]
    shown = getattr(kind, "__name__", None) or repr(kind)
    if shown.startswith("Async"):
        raise DefinitionError(subject, f"transaction={shown} is asynchronous", "Celery tasks are synchronous: give it Session")
    raise DefinitionError(subject, f"transaction={shown} is no kind of transaction", _REMEDY)


def _name_of(cls: type) -> tuple[str, str]:
    return ".".join(cls.__module__.split(".")[:2]), cls.__qualname__
