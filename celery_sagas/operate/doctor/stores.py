"""Rules about a backend, and what is stored in it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from celery_sagas.operate.doctor.facts import Found, Rule, Store, named
from celery_sagas.operate.spans import span
from celery_sagas.stores.health import Level, Subject

#: Farther apart than this, clocks count as wrong. Milliseconds.
FAR_MS: Final = 2_000
#: What is due for longer than this waits for a relay. Milliseconds.
_WAITING_MS: Final = 60_000
#: The age of the journal, in times of its retention, from which on relays do not remove enough of it.
_TOO_OLD: Final = 1.5
#: How many characters of an error are shown.
_ERROR: Final = 100
_CLOCKS: Final = "Have all machines set their clocks by NTP (`timedatectl`, `chronyc tracking`)"
_STUCK: Final = "celery -A proj sagas stuck    shows which, and what helps"
_RELAYS: Final = "celery -A proj inspect sagas_relay    shows which relays run, and what they meet"


def _reached(facts: Store) -> Iterator[Found]:
    if facts.error:
        sentence = f"{facts.error.rstrip('.')}. Messages to its sagas are delivered again later, until it answers"
        yield Found(Level.FAIL, sentence, "Look at the server, at the network between, and at the URL in the settings")
    yield from _remarks(facts, Subject.LAYOUT)


def _remarks(facts: Store, subject: Subject) -> Iterator[Found]:
    for each in facts.remarks:
        if each.subject is subject:
            yield Found(each.level, f"{each.sentence}.", each.remedy)


def _about(subject: Subject) -> Callable[[Store], Iterable[Found]]:
    return lambda facts: _remarks(facts, subject)


def _clock(facts: Store) -> Iterator[Found]:
    if abs(facts.ahead_ms) > FAR_MS:
        shift = "too early" if facts.ahead_ms > 0 else "too late"
        sentence = f"The store's clock is {apart(facts.ahead_ms)} this machine's: timeouts that are set here come {shift}"
        yield Found(Level.WARN, sentence, _CLOCKS)


def apart(ahead_ms: int) -> str:
    """Return how far a clock is from another, in words that the other follows."""
    return f"{span(ahead_ms)} {'ahead of' if ahead_ms > 0 else 'behind'}"


def _outbox(facts: Store) -> Iterator[Found]:
    if facts.due and facts.oldest_due_ms > _WAITING_MS:
        count = _counted(facts, "due", facts.due, "message is", "messages are")
        sentence = (
            f"{count} due in the outbox, the first one for {span(facts.oldest_due_ms)}: no relay sends them, or "
            "relays send too slowly"
        )
        yield Found(Level.WARN, sentence, _RELAYS)
    if facts.failing:
        first = facts.failing[0]
        count = _counted(facts, "failing", len(facts.failing), "message", "messages")
        sentence = (
            f"{count} in the outbox cannot be published, to {named(row.task for row in facts.failing)}: {first.error[:_ERROR]}. "
            "Each becomes a dead letter after saga_max_deliveries attempts"
        )
        yield Found(Level.WARN, sentence, _STUCK)


def _counted(facts: Store, what: str, count: int, one: str, several: str) -> str:
    """Return a count in words."""
    text = f"{count:,} {one if count == 1 else several}"
    return f"At least {text}" if what in facts.cut else text


def _late(facts: Store) -> Iterator[Found]:
    if facts.dead_letters:
        letters = "is 1 dead letter" if facts.dead_letters == 1 else f"are {facts.dead_letters:,} dead letters"
        sentence = f"There {letters}: messages that have failed for good, and whose sagas do not go on"
        yield Found(Level.WARN, sentence, "celery -A proj sagas dead groups    counts them by error; dead retry sends them again")
    if facts.late:
        count = _counted(facts, "late", facts.late, "timeout or deadline is", "timeouts or deadlines are")
        sentence = f"{count} due for more than 15 minutes, and not handled: their sagas wait"
        yield Found(Level.WARN, sentence, _STUCK)


def _journal(facts: Store) -> Iterator[Found]:
    if facts.journal_ms > _TOO_OLD * facts.retention_ms:
        sentence = (
            f"The journal's oldest entry is {span(facts.journal_ms)} old, and entries are kept for {span(facts.retention_ms)}: "
            "relays remove too few, and the journal grows"
        )
        yield Found(Level.WARN, sentence, _RELAYS)


def _newer(facts: Store) -> Iterator[Found]:
    for saga, (stored, known) in facts.newer.items():
        sentence = (
            f"Instances of {saga} have the schema version {stored}, and the newest running code that is known has {known}: their "
            "messages wait until newer code runs"
        )
        yield Found(Level.WARN, sentence, "Deploy the code that has written them, to all workers")


def _held(facts: Store) -> Iterator[Found]:
    if facts.held:
        sentence = f"Operators hold {named(facts.held)}: messages wait until they release it"
        yield Found(Level.WARN, sentence, "celery -A proj sagas held    shows by whom, since when, and why")


#: For each backend.
REACHED: Final = (
    Rule[Store]("D10", lambda facts: "The store answers, and what is stored has a layout on which this release runs.", _reached),
    Rule[Store](
        "D11", lambda facts: "" if facts.error else "The server is set to keep what was committed.", _about(Subject.SAFETY)
    ),
    Rule[Store]("D19", lambda facts: "", _about(Subject.TABLES)),
    Rule[Store]("D20", lambda facts: "", _about(Subject.MEMORY)),
)
#: For each backend in which something is stored.
STORED: Final = (
    Rule[Store]("D12", lambda facts: "The store's clock is that of this machine.", _clock),
    Rule[Store]("D14", lambda facts: "The outbox is sent as it comes due.", _outbox),
    Rule[Store]("D17", lambda facts: "There are no dead letters, and no timeout is late.", _late),
    Rule[Store]("D18", lambda facts: "The journal has no entries that should be gone.", _journal),
    Rule[Store]("D22", lambda facts: "Running code knows the schema versions of the instances that changed last.", _newer),
    Rule[Store]("D23", lambda facts: "", _held),
)
