"""Stored names: how they are made and what they may contain; and arbitrary text, made storable."""

import re

from celery_sagas.errors import DefinitionError

#: Names stand in keys, columns and task names of every backend.
MAX_NAME_CHARACTERS = 100
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """Return a class name in snake case: ``HTTPOrder`` becomes ``http_order``."""
    return _WORD_STARTS.sub("_", name).lower()


def checked_name(name: object, *, of: str) -> str:
    """Return a stored name, or raise ``DefinitionError``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise DefinitionError(
            of,
            f"{name!r} is no stored name",
            f"Use ASCII letters, digits, '_', '-' and '.', with a letter or '_' first, at most {MAX_NAME_CHARACTERS} characters",
        )
    return name


def checked_names(name: object, formerly: object, *, of: str) -> tuple[str, ...]:
    """Return a stored name and the former ones, each once, or raise ``DefinitionError``."""
    names = tuple(checked_name(each, of=of) for each in (name, *as_names(formerly, of=of, keyword="formerly")))
    if len(set(names)) < len(names):
        raise DefinitionError(of, f"a name stands twice in {', '.join(names)}", "formerly= lists the names it no longer has")
    return names


def as_names(value: object, *, of: str, keyword: str) -> tuple[str, ...]:
    """Return a keyword's value (one name, several or none) as a tuple, or raise ``DefinitionError``."""
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise DefinitionError(of, f"{keyword}={value!r} is neither a name nor a tuple of names")
    return tuple(names)


def storable(text: str, characters: int) -> str:
    """Return a text that every store accepts: escape what UTF-8 or PostgreSQL cannot hold, and cut off what is too long.

    Args:
        text: Any text, such as an error's, which may quote anything.
        characters: How many are kept at most.
    """
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:characters]
