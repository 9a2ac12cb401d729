"""What the rules look at, and what they find. All of it is read by ``reading``; nothing here asks anybody."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from celery_sagas.stores.health import Level, Remark
from celery_sagas.stores.records import OutboxGlance

FactsT = TypeVar("FactsT")
#: How many names a sentence has.
_NAMED: Final = 3


class Finding(NamedTuple):
    """One line of a report. Its texts may have stored text in them, as it is."""

    level: Level
    id: str  #: of the rule: "D01"
    about: str  #: the URL of a backend or of the broker, as it may be shown; empty: the app
    sentence: str  #: what is so, and what follows from it
    remedy: str  #: what to do: a setting, or a command; empty: nothing


class Found(NamedTuple):
    """What a rule finds."""

    level: Level
    sentence: str
    remedy: str = ""


@dataclass(frozen=True)
class Rule(Generic[FactsT]):
    """Decides about some facts."""

    id: str
    #: Says that all is well, if nothing is found; an empty text: nothing is said.
    well: Callable[[FactsT], str]
    find: Callable[[FactsT], Iterable[Found]]


def apply(rules: Iterable[Rule[FactsT]], facts: FactsT, about: str = "") -> Iterator[Finding]:
    """Yield what each rule finds, or that it finds nothing."""
    for rule in rules:
        found = list(rule.find(facts))
        if not found and (well := rule.well(facts)):
            found = [Found(Level.OK, well)]
        for each in found:
            yield Finding(each.level, rule.id, about, f"{each.sentence.rstrip('.')}.", each.remedy)


@dataclass(frozen=True)
class Configuration:
    """What the app's settings and definitions say; no server is asked."""

    refusals: Sequence[tuple[str, str]] = ()  #: why a worker would not start: problem and remedy
    default_file: str = ""  #: that keeps the sagas, since no setting says where; else empty
    is_eager: bool = False
    retention_s: float | None = None  #: how long the journal remembers a message; ``None``: a wrong setting hides it
    redelivery_s: float | None = None  #: after which the broker delivers an unacknowledged message again; ``None``: unknown
    is_redelivery_assumed: bool = False  #: whether it is the broker's default, which cannot be read here
    limits_s: Mapping[str, float] = field(default_factory=dict)  #: by task that is acknowledged late: its hard time limit
    early_steps: Sequence[str] = ()  #: that acknowledge their messages early
    early_requests: Sequence[tuple[str, str]] = ()  #: step and task that it asks, whose answer may never come
    prefetch: int = 1  #: ``worker_prefetch_multiplier``


@dataclass(frozen=True)
class Broker:
    """The broker, as this process reaches it."""

    url: str  #: as it may be shown
    driver: str  #: kombu's name of its kind: "amqp", "redis"
    error: str = ""  #: why it cannot be reached; empty: it can
    confirms: bool | None = None  #: ``confirm_publish``; ``None``: it is not set
    has_timeouts: bool = False  #: whether publishing gives up when the broker is silent


@dataclass(frozen=True)
class Store:
    """A backend, and what is stored in it."""

    url: str  #: as it may be shown
    error: str = ""  #: why it cannot be read; empty: it was
    remarks: Sequence[Remark] = ()  #: its own
    is_read: bool = True  #: whether what follows was read: not, if nothing is stored yet
    ahead_ms: int = 0  #: how far its clock is ahead of this machine's, beyond what the question has taken
    due: int = 0  #: how many rows of the outbox
    oldest_due_ms: int = 0  #: for how long the first of them is due
    failing: Sequence[OutboxGlance] = ()  #: rows that could not be published
    late: int = 0  #: timeouts and deadlines that were not handled for long
    cut: Set[str] = frozenset()  #: of which of "due", "failing" and "late" there may be more
    dead_letters: int = 0
    journal_ms: int = 0  #: the age of the journal's oldest entry
    retention_ms: int = 0  #: how long the journal remembers
    newer: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  #: by saga: a schema version beyond all code, and the code's
    held: Sequence[str] = ()  #: sagas and steps that operators hold


class Relay(NamedTuple):
    """A worker's relay."""

    is_running: bool
    swept_ms: int | None  #: how long ago its last sweep has ended; ``None``: there was none
    error: str = ""  #: with which its sweeps end
    unknown: tuple[str, ...] = ()  #: steps whose rows it leaves to others


class Code(NamedTuple):
    """The code of a process."""

    version: str  #: of celery-sagas
    schema_versions: Mapping[str, int]  #: by saga
    steps: Mapping[str, frozenset[str]]  #: by saga


class Worker(NamedTuple):
    """A worker of the app, as it has answered."""

    name: str
    code: Code
    relay: Relay | None = None  #: ``None``: it has not said
    ahead_ms: int = 0  #: how far its clock is ahead of this machine's, beyond what the question has taken


@dataclass(frozen=True)
class Workers:
    """The workers of the app that have answered, and what all that have answered take messages from."""

    here: Code  #: that of this process
    workers: Sequence[Worker] = ()
    others: int = 0  #: how many have answered that are none of the app's, or run another release
    can_be_asked: bool = True  #: whether the broker passes on questions
    has_relays: bool = True  #: the setting ``saga_relay``
    interval_ms: int = 1_000  #: between two sweeps
    consumed: frozenset[str] | None = None  #: the queues; ``None``: no worker has said so
    wanted: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: by queue: the tasks whose messages go there


def named(names: Iterable[str]) -> str:
    """Return some names, and how many there are besides."""
    shown = list(dict.fromkeys(names))
    more = f" and {len(shown) - _NAMED:,} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more
