"""Which instance a command is about: by its key, its id, or a field."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from typing import Final

import click

from celery_sagas.cli import tables
from celery_sagas.core.keys import NotAKey, text_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.instance import lookup_in
from celery_sagas.engine.listing import glances, tag_of
from celery_sagas.engine.query import lookup_of
from celery_sagas.errors import SagaNotFound, StoreError
from celery_sagas.operate.addresses import key_of
from celery_sagas.stores.instances import MOST, Glance
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, Lookup

#: How many keys are named where one is asked for.
_NAMED: Final = 10
#: How many keys are suggested where none is found, and how much they must be like what was given.
_SUGGESTED, _LIKENESS = 3, 0.7


def value_of(by: str) -> Mapping[str, str]:
    """Return the field, with its value, that ``--by`` names."""
    field, separator, value = by.partition("=")
    if not separator:
        raise click.UsageError("--by takes FIELD=VALUE, such as --by status=paid")
    return {field: value}


def lookup_for(backend: Backend, saga: SagaDefinition, key: Sequence[str], id: str | None, by: str | None) -> Lookup:
    """Return the lookup for the one instance that is named: by the words of its key, by its id, or by a field.

    Raises:
        UsageError: Not exactly one of them is given, the key has another number of parts, or the saga's instances are not found
            by this field.
        ClickException: The field has this value in several instances, or in none.
        CorrelationError: The value is none of the field's.
    """
    if [bool(key), id is not None, by is not None].count(True) != 1:
        raise click.UsageError("name one instance: by its KEY, by --id, or by --by FIELD=VALUE")
    if by is not None:
        return _lookup_by(backend, saga, value_of(by))
    if id is not None:
        return lookup_in(saga, ID, _storable("id", id))
    return lookup_in(saga, KEY, key_text(saga, key))


def key_text(saga: SagaDefinition, words: Sequence[str]) -> str:
    """Return the canonical text of a key; one that is no key in today's code may be one of an instance that is stored.

    Args:
        saga: Its saga.
        words: One for each part; or one, which is the JSON array of several parts.

    Raises:
        UsageError: There are more words than the key has parts, or fewer.
    """
    names = saga.correlate_by
    if len(words) not in (1, len(names)):
        has = f"the key of {saga.name} has {_parts(names)}"
        raise click.UsageError(f"{has}, and {len(words)} are given: {tables.line(' '.join(words))}")
    try:
        return key_of(saga, words)
    except ValueError as exc:
        raise _bad("key", exc) from exc


def _parts(names: Sequence[str]) -> str:
    return f"{len(names)} part{'s' if len(names) > 1 else ''}: {', '.join(names)}"


@contextmanager
def suggesting(backend: Backend, saga: SagaDefinition, lookup: Lookup) -> Iterator[None]:
    """Add to the error that there is no such instance how it may be named.

    Raises:
        ClickException: There is none.
    """
    try:
        yield
    except SagaNotFound as exc:
        raise click.ClickException(unknown(backend, saga, lookup, tables.line(str(exc)))) from exc


def unknown(backend: Backend, saga: SagaDefinition, lookup: Lookup, sentence: str) -> str:
    """Return what is said where nothing is found by a lookup: a sentence, and the keys most like that one; or its parts."""
    if lookup.property != KEY:
        return sentence
    if problem := no_key(saga, lookup.value):
        return problem
    nearest = _nearest(backend, saga, lookup.value)
    return f"{sentence.removesuffix('.')}. Did you mean {' or '.join(map(tables.line, nearest))}?" if nearest else sentence


def no_key(saga: SagaDefinition, key: str) -> str:
    """Return what is said of a key that has another number of parts than the saga's; empty if it has so many."""
    parts = saga.correlate_by
    if len(parts) == 1 or _count_of_parts(key) == len(parts):
        return ""
    what = f"{tables.line(key)} is no key of {saga.name}, which has {_parts(parts)}"
    return f"""{what}. Give each as a word, such as eu 42, or their JSON array, such as '["eu","42"]'"""


def _count_of_parts(key: str) -> int:
    with suppress(ValueError, RecursionError):
        parts = json.loads(key)
        return len(parts) if isinstance(parts, list) else 1
    return 1


def _nearest(backend: Backend, saga: SagaDefinition, key: str) -> list[str]:
    """Return the keys most like one, of the instances that were changed last; none if one of them has it."""
    if not backend.has_instances:
        return []
    with suppress(StoreError):  # it is only a suggestion
        keys = [glance.key for glance in islice(glances(backend, saga, None, at_once=MOST), MOST) if glance.key]
        return [] if key in keys else get_close_matches(key, dict.fromkeys(keys), _SUGGESTED, _LIKENESS)
    return []


def _storable(what: str, text: str) -> str:
    try:
        return text_of(text)
    except ValueError as exc:
        raise _bad(what, exc) from exc


def _bad(what: str, exc: ValueError) -> click.BadParameter:
    shown, problem = exc.args if isinstance(exc, NotAKey) else ("this", str(exc))
    return click.BadParameter(tables.line(f"{shown} is no {what}: {problem}"))


def _lookup_by(backend: Backend, saga: SagaDefinition, by: Mapping[str, str]) -> Lookup:
    (name,) = by
    fields = (*saga.also_by, *saga.search_by, *(saga.correlate_by if len(saga.correlate_by) == 1 else ()))
    if name not in fields:
        raise click.BadParameter(f"{saga.name} is found by {', '.join(fields) or 'no field'}, and not by {tables.line(name)}")
    if name not in saga.search_by:
        return lookup_of(saga, None, by)
    found = list(islice(glances(backend, saga, tag_of(saga, by)), _NAMED + 1))
    field = "=".join(*by.items())
    if not found:
        raise click.ClickException(f"no instance of {saga.name} has {tables.line(field)}")
    if len(found) > 1:
        raise click.ClickException(f"several instances of {saga.name} have {tables.line(field)}; name one: {_names(found)}")
    return lookup_in(saga, ID, found[0].id)


def _names(found: list[Glance]) -> str:
    shown = (tables.line(glance.key) if glance.key else f"--id {tables.line(glance.id)}" for glance in found[:_NAMED])
    return ", ".join(shown) + (", …" if len(found) > _NAMED else "")
