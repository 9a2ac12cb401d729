"""One act on many instances, whatever comes of each."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.acts.acting import Done
from celery_sagas.engine.instance import lookup_in
from celery_sagas.errors import SagaError, SagaNotFound
from celery_sagas.operate.instance import OperatedInstance
from celery_sagas.operate.operator import Operator
from celery_sagas.stores.records import ID

#: What is done to each, given the reason and the name of what comes or is skipped.
VERBS: Final[Mapping[str, Callable[[OperatedInstance, str, str], Done]]] = {
    "pause": lambda instance, reason, name: instance.pause(reason),
    "resume": lambda instance, reason, name: instance.resume(reason),
    "terminate": lambda instance, reason, name: instance.terminate(reason),
    "fire": lambda instance, reason, name: instance.fire(name, reason),
    "skip": lambda instance, reason, name: instance.skip(name, reason),
    "reindex": lambda instance, reason, name: instance.reindex(reason),
}
#: Those that take the name of a timeout.
WITH_NAME: Final = ("fire", "skip")


class Each(NamedTuple):
    """One act on many instances of a saga, in the operator's batch."""

    operator: Operator
    saga: SagaDefinition
    verb: str
    reason: str
    name: str = ""  #: of the timeout
    is_first: bool = True  #: whether the batch is new

    def act(self, id: str) -> "Acted":
        """Act on the instance with an id."""
        instance = OperatedInstance(self.operator, self.saga, lookup_in(self.saga, ID, id), self.is_first)
        try:
            done = VERBS[self.verb](instance, self.reason, self.name)
        except SagaNotFound:  # it has ended meanwhile
            return Acted(id, "gone")
        except SagaError as exc:
            return Acted(id, "failed", error=exc)
        return Acted(id, "done" if done.changed or done.planned else "idle", done)


class Acted(NamedTuple):
    """What has come of an act on one instance."""

    id: str
    outcome: Literal["done", "idle", "failed", "gone"]
    done: Done | None = None
    error: SagaError | None = None


def told(counts: Mapping[str, int], *, dry_run: bool) -> str:
    """Return what has come of an act on many instances, given how many outcomes of each kind there are."""
    plan = " (a dry run: nothing was written)" if dry_run else ""
    gone = f", {counts['gone']:,} gone" if counts["gone"] else ""
    return f"{counts['done']:,} done{plan}, {counts['idle']:,} with nothing to be done, {counts['failed']:,} failed{gone}."
