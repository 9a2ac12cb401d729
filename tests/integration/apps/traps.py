"""Traps before and after the commands of a port: whoever comes there may be killed."""

import functools
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from deployed import FOLDER, first_time, note

from celery_sagas.stores import operations

T = TypeVar("T")

#: By port and method: the stages of its traps, for whom, and what is told.
_traps: dict[tuple[int, str], list[tuple[str, Callable[..., Any], Callable[..., object]]]] = {}
#: The port and the method of each operation.
_METHODS: dict[type, tuple[str, str]] = {
    operations.Find: ("sagas", "find"),
    operations.Lock: ("sagas", "lock"),
    operations.Insert: ("sagas", "insert"),
    operations.Update: ("sagas", "update"),
    operations.Delete: ("sagas", "delete"),
    operations.Write: ("sagas", "record"),
    operations.CountDelivery: ("deliveries", "count"),
    operations.OutcomeOf: ("journal", "outcome_of"),
}


def set_trap(port: Any, method: str, stage: str, whose: Callable[..., T], come_to: Callable[[T, str], object]) -> None:
    """Have it told when a method is about to run, and when it has: for whom, and ``before …`` or ``after …`` the stage."""
    original = getattr(port, method)
    _traps.setdefault((id(port), method), []).append((stage, whose, come_to))

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        theirs = whose(*arguments)
        come_to(theirs, f"before {stage}")
        answer = original(*arguments, **options)
        if answer != []:  # a claim of nothing is no point of interest
            come_to(theirs, f"after {stage}")
        return answer

    setattr(port, method, wrapped)


def set_traps_of_many(backend: Any) -> None:
    """Set the traps of a backend's ports for the operations that it performs together, too."""
    original = backend.many

    def come(each: Any, when: str) -> None:
        port, method = _METHODS[type(each)]
        for stage, whose, come_to in _traps.get((id(getattr(backend, port)), method), ()):
            come_to(whose(*each), f"{when} {stage}")

    def many(wanted: Sequence[Any]) -> list[Any]:
        for each in wanted:
            come(each, "before")
        answers: list[Any] = original(wanted)
        for each in wanted:
            come(each, "after")
        return answers

    backend.many = many


def die(point: str, first: Callable[[], object] | None = None) -> None:
    """End this process as the kernel would, after something else, the first time that anybody comes here."""
    if first_time(point):
        if first:
            first()
        note("killed", f"{os.getpid()} {point}")
        os.kill(os.getpid(), signal.SIGKILL)


def die_if_told(point: str) -> None:
    """End this process as the kernel would, if the test asks one process to: by a file of that name."""
    try:
        (FOLDER / point).unlink()
    except FileNotFoundError:
        return
    note("killed", f"{os.getpid()} {point}")
    os.kill(os.getpid(), signal.SIGKILL)


def set_traps_of_transactions(backend: Any) -> None:
    """Set traps where a function's transaction ends: before and after what the library writes in it, and after its commit."""
    open_one = backend.shared.open

    def open_trapped(kind: object) -> Any:
        transaction = open_one(kind)
        transaction.commit = functools.partial(_commit_trapped, transaction.commit)
        return transaction

    backend.shared.open = open_trapped


def _commit_trapped(commit: Callable[[Callable[[Any], T]], T], operation: Callable[[Any], T]) -> T:
    def operate(backend: Any) -> T:
        die_if_told("before write")
        written = operation(backend)
        die_if_told("after write")
        return written

    answer = commit(operate)
    die_if_told("after commit")
    return answer
