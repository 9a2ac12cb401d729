"""Everything that the samples can have left in a backend, to be compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, AuditEntry, DeadLetter, Entry, Lookup, Record
from celery_sagas.stores.switches import Switch
from celery_sagas.testing.samples import NAMES

OTHER = "parcel"  #: another saga than the one of the samples
KEYS = ("42", "43", "")
VALUES = ("T1", "T2", "T3")


@dataclass(frozen=True)
class View:
    """The observable state, but for the outgoing rows' leases."""

    records: dict[tuple[str, str, str], Record | None]
    journal: dict[tuple[str, str], tuple[Entry, ...]]
    rows: int
    dead_letters: tuple[DeadLetter, ...]
    audit: tuple[AuditEntry, ...]
    switches: tuple[Switch, ...]


def view(backend: Backend) -> View:
    """Return everything that can be observed, and change nothing."""
    sagas = (*NAMES, OTHER)
    paths = [(saga, KEY, key) for saga in sagas for key in KEYS if key]
    paths += [(saga, property, value) for saga in NAMES for property in ("tracking", "email") for value in VALUES]
    return View(
        records={path: backend.sagas.find(Lookup((path[0],), path[1], path[2])).record for path in paths},
        journal={(saga, key): tuple(backend.journal.history([saga], key, 100)) for saga in sagas for key in KEYS},
        rows=backend.outbox.count(),
        dead_letters=tuple(backend.dead.list(100)),
        audit=backend.audit.recent(100).entries if backend.has_audit else (),
        switches=tuple(backend.switches.held()) if backend.has_switches else (),
    )


@contextmanager
def nothing_written(backend: Backend) -> Iterator[None]:
    """Expect that everything is as it was before."""
    before = view(backend)
    yield
    assert view(backend) == before
