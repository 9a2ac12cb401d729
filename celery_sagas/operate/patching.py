"""Patches of states, as JSON values: what is set and removed, by paths such as ``lines.0.sku``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery_sagas.operate.redact import MARK

#: In the place of a value that is not there.
NOTHING: Final = object()


def patched(fields: dict[str, Any], values: Mapping[str, Any], removed: Sequence[str]) -> dict[str, Any]:
    """Return fields with other values.

    Args:
        fields: They are changed in place.
        values: What is set, by its path: names of fields and keys, and positions in lists, with points between them. What is
            set in an object may be new; a list is not made longer.
        removed: The paths of what is removed.

    Raises:
        ValueError: A path leads nowhere.
    """
    for path, value in values.items():
        container, last = _found(fields, path)
        container[last] = value
    for path in removed:
        container, last = _found(fields, path)
        try:
            del container[last]
        except KeyError:
            raise ValueError(f"there is no {path} that could be removed") from None
    return fields


def _found(fields: dict[str, Any], path: str) -> tuple[Any, Any]:
    """Return the object or list that a path ends in, and the last part of the path."""
    *parts, last = path.split(".")
    container: Any = fields
    for number, part in enumerate(parts):
        try:
            container = container[_index(container, part)]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"there is no {'.'.join(parts[: number + 1])} in the state, on the way to {path}") from None
    if not isinstance(container, dict | list):
        raise ValueError(f"{'.'.join(parts)} has no parts, on the way to {path}")  # noqa: TRY004 - it is about the path
    index = _index(container, last)
    if isinstance(index, int) and index >= len(container):
        raise ValueError(f"there is no {path} in the state: {'.'.join(parts)} has {len(container):,} parts, counted from 0")
    return container, index


def _index(container: Any, part: str) -> str | int:
    if not isinstance(container, list):
        return part
    if not part.isdecimal():
        raise ValueError(f"{part!r} is no position in a list: these are counted from 0")
    return int(part)


def restored_fields(edited: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return edited fields, with the hidden values that were left as they are.

    Raises:
        ValueError: A mark stands where no hidden value is; or they are nested too deeply.
    """
    try:
        return {name: restored(value, fields.get(name, NOTHING)) for name, value in edited.items()}
    except RecursionError as exc:
        raise ValueError("the state is nested too deeply") from exc


def restored(edited: Any, fields: Any) -> Any:
    """Return edited values, in which each mark of a hidden value is replaced by the value at its place in the stored fields.

    A list is told to be the stored one by its length, and a part of it that has marks by all that is visible of it: else a part
    would get what is hidden in another one.

    Raises:
        ValueError: There is no such value.
    """
    if isinstance(edited, dict):
        known = fields if isinstance(fields, dict) else {}
        return {name: restored(value, known.get(name, NOTHING)) for name, value in edited.items()}
    if isinstance(edited, list):
        known_parts = fields if isinstance(fields, list) and len(fields) == len(edited) else [NOTHING] * len(edited)
        pairs = zip(edited, known_parts, strict=True)
        return [restored(part, known if _shows(part, known) else NOTHING) for part, known in pairs]
    if edited != MARK:
        return edited
    if fields is NOTHING:
        where = "where no hidden value is, or in a part of a list that is not the one stored at its place"
        raise ValueError(f"{MARK} stands {where}: write a value, or change only what is to change with --set")
    return fields


def _shows(shown: Any, stored: Any) -> bool:
    """Return whether all that is visible of a value is that of a stored one."""
    if isinstance(shown, dict) and isinstance(stored, dict):
        return shown.keys() == stored.keys() and all(_shows(value, stored[name]) for name, value in shown.items())
    if isinstance(shown, list) and isinstance(stored, list):
        return len(shown) == len(stored) and all(map(_shows, shown, stored))
    return shown in (MARK, stored)


def finite(value: Any) -> Any:
    """Return JSON values as they are.

    Raises:
        ValueError: There is a number among them that JSON cannot have, such as 1e999.
    """
    json.dumps(value, allow_nan=False)
    return value
