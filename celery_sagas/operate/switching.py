"""Switches: what an operator holds, a step or all steps of a saga, and the changes of that."""

import json
from collections.abc import Container, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.errors import MisuseError
from celery_sagas.stores.optional import no_switches
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.switches import Switch, Switches
from celery_sagas.worker.runtime import Runtime


class Switched(NamedTuple):
    """What has come of holding or releasing."""

    name: str  #: the stored name of a saga, or the name of a step's task
    changed: bool  #: whether anything was written; not if nothing was to be done, or if it is only planned
    text: str  #: what is done, or why there is nothing to be done
    planned: bool = False  #: whether something would be written, if it were not only planned


class Target(NamedTuple):
    """What is to be held, or released."""

    name: str  #: the present one
    names: tuple[str, ...]  #: with the former ones, under which it may have been held
    saga: SagaDefinition | None = None  #: itself, or that of the step; ``None``: this app does not define it
    is_step: bool = False


def target_of(given: Any, tasks: Container[str] = ()) -> Target:
    """Return a saga or a step, given as its class, as the step, or by its name; ``tasks`` are all that the app knows.

    Raises:
        MisuseError: It is none that this app defines.
    """
    saga = getattr(given, "__saga__", None)
    if isinstance(saga, SagaDefinition):
        return Target(saga.name, saga.names, saga)
    name = given if isinstance(given, str) else getattr(given, "name", None)
    found = _named(name) if isinstance(name, str) else None
    if found is None:
        raise _unknown(name if isinstance(name, str) else repr(given), tasks)
    return found


def _named(name: str) -> Target | None:
    named = (each for each in registry.sagas.values() if each.cls.__name__ == name)
    if saga := registry.saga_named(name) or next(named, None):
        return Target(saga.name, saga.names, saga)
    step = registry.step_named(name)
    return None if step is None or step.is_internal else Target(step.name, step.names, step.saga, is_step=True)


def _unknown(name: str, tasks: Container[str]) -> MisuseError:
    if any(name in each.names for each in registry.aggregators.values()):
        problem = f"{name} is an aggregator: only sagas and steps can be held"
        return MisuseError(problem, "Stop its workers: its items stay buffered")
    if name in tasks:
        problem = f"{name} is a task, and no step: only sagas and steps can be held"
        return MisuseError(problem, "Hold the steps that send to it; or stop its workers: its messages stay in their queue")
    steps = [step.name for step in registry.steps.values() if not step.is_internal]
    nearest = get_close_matches(name, [*registry.sagas, *steps], n=3)
    remedy = f"Did you mean {' or '.join(nearest)}?" if nearest else f"Known sagas: {', '.join(registry.sagas) or 'none'}"
    return MisuseError(f"{name} is no saga and no step of this app", remedy)


def hold(runtime: Runtime, given: Any, actor: str, reason: str, *, dry_run: bool) -> Switched:
    """Hold a saga or a step: see ``Operator.hold``."""
    target = target_of(given, runtime.app.tasks)
    switches = _switches_of(runtime, target)
    held = _of_target(switches.held(), target)
    if not held and dry_run:
        return Switched(target.name, False, "would be held: its messages would wait", planned=True)
    if not held and switches.hold(target.name, _entry("hold", target, actor, reason)):
        _notice(runtime, target)
        return Switched(target.name, True, "is held: its messages wait until it is released")
    switch = next(iter(held or _of_target(switches.held(), target)), None)
    by = f", by {switch.actor}: {switch.reason}" if switch else ""
    return Switched(target.name, False, f"it is held already{by}")


def release(runtime: Runtime, given: Any, actor: str, reason: str, *, dry_run: bool) -> Switched:
    """Release a saga or a step: see ``Operator.release``."""
    gone = _holding(runtime, given) if isinstance(given, str) and not _named(given) else None
    target = Target(given, (given,)) if gone else target_of(given, runtime.app.tasks)
    switches = gone.switches if gone else _switches_of(runtime, target)
    held = _of_target(switches.held(), target)
    if held and dry_run:
        return Switched(target.name, False, "would be released", planned=True)
    is_released = [switches.release(each.name, _entry("release", target, actor, reason)) for each in held]
    other = _other(switches.held(), target)
    if not any(is_released):
        return Switched(target.name, False, f"it is not held{other}")
    _notice(runtime, target)
    return Switched(target.name, True, f"is released: its messages are handled again{other}")


def held_in(backend: Backend) -> list[Switch]:
    """Return what is held in a backend, which may lack switches."""
    return backend.switches.held() if backend.has_switches else []


def name_in(entry: AuditEntry) -> str:
    """Return what was held or released, if an entry of the audit is about that; else an empty text."""
    if entry.action not in ("hold", "release"):
        return ""
    try:
        return str(json.loads(entry.detail)["name"])
    except (ValueError, LookupError, TypeError, RecursionError):  # a damaged one
        return ""


def _switches_of(runtime: Runtime, target: Target) -> Switches:
    backend = runtime.backends.of(target.saga)
    if not backend.has_switches:
        raise no_switches(backend.url, target.name)
    return backend.switches


def _holding(runtime: Runtime, name: str) -> Backend | None:
    """Return the backend in which a name is held that this app does not define: it was removed, or is another release's."""
    return next((each for each in runtime.backends if any(switch.name == name for switch in held_in(each))), None)


def _of_target(held: Iterable[Switch], target: Target) -> list[Switch]:
    return [each for each in held if each.name in target.names]


def _other(held: Iterable[Switch], target: Target) -> str:
    """Return that a step is held otherwise, with all of its saga."""
    names = target.saga.names if target.saga and target.is_step else ()
    switch = next((each for each in held if each.name in names), None)
    return f"; but all steps of {switch.name} are held, by {switch.actor}: {switch.reason}" if switch else ""


def _entry(action: str, target: Target, actor: str, reason: str) -> AuditEntry:
    saga = target.saga.name if target.saga else ""
    return AuditEntry(time_ordered_id(), actor, action, reason, saga, "", "", 0, json.dumps({"name": target.name}))


def _notice(runtime: Runtime, target: Target) -> None:
    """Have this process see the change at once."""
    if target.saga:
        runtime.switchboard_of(target.saga).look_again()
