"""The health of Redis: whether it keeps what is stored, in which layout, and how much memory is left."""

from collections.abc import Iterator, Mapping
from typing import Final

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.health import Level, Remark, Subject
from celery_sagas.stores.redis.checks import check_servers, infos_of
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.location import Topology
from celery_sagas.stores.redis.connection.options import Options
from celery_sagas.stores.redis.placement import Placement

#: The share of ``maxmemory`` from which on there is little left, and almost nothing.
_LITTLE_LEFT, _FULL = 0.8, 0.95
_MORE_MEMORY: Final = (
    "Raise maxmemory, remove what is no longer needed (`celery -A proj sagas dead list`), or shorten saga_journal_retention"
)
_SETTINGS: Final = "Change that setting of the server, or of saga_backend_options"
_DISK: Final = "Look at the server's log and at its disk: is it full, or not writable?"
#: What has failed, by the field of ``INFO`` that says so.
_WRITES: Final = {
    "aof_last_write_status": "could not write to its append-only file: it refuses commits until it can",
    "rdb_last_bgsave_status": "could not save its last snapshot: if it is set to stop then, it refuses commits until it can",
}


def health_of(client: Client, kind: Topology, options: Options, placement: Placement) -> list[Remark]:
    """Return what operators should know of the servers, and of what is stored in them.

    Raises:
        StoreUnavailable: One cannot be reached.
    """
    remarks = list(_safety(client, kind, options))
    for name, info in infos_of(client).items():
        remarks += memory_of(name, info)
    return [*remarks, *_layout(placement)]


def _safety(client: Client, kind: Topology, options: Options) -> Iterator[Remark]:
    try:
        warnings, unsafe = check_servers(client, kind, options)
    except ConfigurationError as exc:
        yield Remark(Subject.SAFETY, Level.FAIL, f"workers do not start: {exc.problem}", exc.remedy)
        return
    for warning in warnings:
        yield Remark(Subject.SAFETY, Level.WARN, warning.rstrip("."), _SETTINGS)
    if unsafe is not None:
        yield Remark(Subject.SAFETY, Level.FAIL, unsafe.problem, unsafe.remedy)


def _layout(placement: Placement) -> Iterator[Remark]:
    try:
        if not placement.look():
            remedy = "Start a worker, or give this command the saga_backend and the saga_prefix of the workers"
            yield Remark(Subject.LAYOUT, Level.FAIL, "nothing is stored yet under this saga_prefix", remedy)
    except ConfigurationError as exc:
        yield Remark(Subject.LAYOUT, Level.FAIL, f"workers do not start: {exc.problem}", exc.remedy)


def memory_of(name: str, info: Mapping[str, str]) -> Iterator[Remark]:
    """Yield what follows from a server's ``INFO``."""
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used / most > _LITTLE_LEFT:
        is_full = used / most > _FULL
        sentence = f"{name} uses {used / most:.0%} of its maxmemory: when it is full, it refuses every commit"
        yield Remark(Subject.MEMORY, Level.FAIL if is_full else Level.WARN, sentence, _MORE_MEMORY)
    for field, sentence in _WRITES.items():
        if info.get(field, "ok") != "ok":
            yield Remark(Subject.MEMORY, Level.FAIL, f"{name} {sentence}", _DISK)
