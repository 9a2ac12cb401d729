"""Compare a state with its reloaded copy, and find where they differ."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from celery_sagas.errors import BUGS

Difference = tuple[str, str]


def differences(kept: BaseModel, loaded: BaseModel) -> Iterator[Difference]:
    """Yield the innermost paths at which two states of one class differ, and how.

    Containers, models and dataclasses are the same if they are of one type and all their parts are the same; other values
    if they are equal. The private attributes of the states themselves are not stored, and not compared.
    """
    if _equal(kept.__dict__, loaded.__dict__) and _equal(kept.__pydantic_extra__, loaded.__pydantic_extra__):
        return
    for name, value in fields_of(kept).items():
        yield from _differ(name, value, fields_of(loaded).get(name))


def _differ(path: str, kept: object, loaded: object) -> Iterator[Difference]:
    if _equal(kept, loaded) or _same_instant(kept, loaded):
        return
    if type(kept) is not type(loaded):
        kept_as, comes_as = type(kept).__name__, type(loaded).__name__
        union = f": annotate it as {kept_as} | {comes_as}" if isinstance(kept, type(loaded)) and parts_of(kept) else ""
        yield path, f"a {kept_as} would come back as {comes_as}{union}"
        return
    left, right = parts_of(kept), parts_of(loaded)
    if left is None or right is None or left.keys() != right.keys():
        yield path, f"the {type(kept).__name__} would come back changed"
        return
    for part, value in left.items():
        yield from _differ(f"{path}.{part}", value, right[part])


def _equal(left: object, right: object) -> bool:
    try:
        return bool(left == right)
    except BUGS:  # the comparison is the user's code: what cannot be compared cannot be shown to be the same
        return False


def _same_instant(left: object, right: object) -> bool:
    """Return whether two times are one instant: in the hour repeated in autumn, times of different zones never compare equal."""
    if not isinstance(left, datetime) or not isinstance(right, datetime) or left.tzinfo is None or right.tzinfo is None:
        return False
    return left.astimezone(UTC) == right.astimezone(UTC)


def parts_of(value: object) -> Mapping[Any, object] | None:
    """Return the parts of a container, model or dataclass; ``None`` for any other value."""
    if isinstance(value, BaseModel):
        return {**fields_of(value), **(value.__pydantic_private__ or {})}
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


def fields_of(model: BaseModel) -> dict[str, object]:
    """Return the fields of a model, and its extra values."""
    names = type(model).model_fields
    held = {name: value for name, value in model.__dict__.items() if name in names}  # the rest are cached properties
    return {**held, **(model.__pydantic_extra__ or {})}
