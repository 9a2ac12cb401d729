"""Explanations: why an instance does not go on, or for what it waits, and the command that helps."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from celery_sagas.core.requests.requests import Request
from celery_sagas.errors import NewerState, UnreadableState
from celery_sagas.operate.facts import Due, Facts, What, due_of, name_of
from celery_sagas.operate.spans import span, time_text
from celery_sagas.stores.records import OutboxGlance

#: What is due for longer than this, in milliseconds, is overdue.
LATE_MS: Final = 15 * 60_000
#: How many names a sentence has.
_NAMED: Final = 3
#: How many characters of an error it has.
_ERROR: Final = 300
_IN_WORKERS: Final = ("inspect", "active_queues"), "shows which workers take messages, and from which queues"
_IN_RELAYS: Final = ("inspect", "sagas_relay"), "shows which relays run, and what they meet"


class Verdict(StrEnum):
    """Why an instance does not go on, or for what it waits: of several, the first one."""

    UNREADABLE = "unreadable"  #: its record, or its state, cannot be decoded
    NEWER = "newer"  #: newer code has written it
    PAUSED = "paused"  #: an operator has paused it
    FAILING = "failing"  #: a message of it is a dead letter
    HELD = "held"  #: an operator holds its saga, or a step for which it waits
    OVERDUE = "overdue"  #: a timeout or a deadline is due for long, and was not handled
    UNSENT = "unsent"  #: a message of it is not published
    DEFERRED = "deferred"  #: messages wait with it for another status
    LOCKED = "locked"  #: a message has it for its next run
    WAITING = "waiting"  #: something is sure to come
    OPEN = "open"  #: it waits for an answer, without a deadline
    IDLE = "idle"  #: nothing is sure to come


class Remedy(NamedTuple):
    """A command that helps."""

    words: tuple[str, ...]  #: behind ``celery -A proj``
    does: str

    @property
    def command(self) -> str:
        """The command, as a shell takes it."""
        return shlex.join(("celery", "-A", "proj", *self.words))


class Finding(NamedTuple):
    """What there is to say."""

    sentence: str
    remedies: tuple[Remedy, ...] = ()  #: the first one shows more, or mends it; empty: there is nothing to be done


class Explanation(NamedTuple):
    """One verdict, in a sentence, with what helps. Its texts may have stored text in them, as it is."""

    verdict: Verdict
    sentence: str
    remedies: tuple[Remedy, ...]
    due: Sequence[Due]  #: what comes to the instance, the first one first


def explain(facts: Facts) -> Explanation:
    """Return the first verdict that applies."""
    due = due_of(facts)
    for verdict, find in _FINDERS.items():
        if finding := find(facts, due):
            return Explanation(verdict, *finding, due)
    return Explanation(Verdict.IDLE, *_idle(facts), due)


def _found(sentence: str, *remedies: Remedy | None) -> Finding:
    return Finding(sentence, tuple(filter(None, remedies)))


def _unreadable(facts: Facts, due: Sequence[Due]) -> Finding | None:
    problem = next((each for each in facts.problems if isinstance(each, UnreadableState)), None)
    if problem is None:
        return None
    return _found(f"It cannot be read: {problem.problem}.", timeline_of(facts.saga.name, facts.key) if facts.key else None)


def _newer(facts: Facts, due: Sequence[Due]) -> Finding | None:
    problem = next((each for each in facts.problems if isinstance(each, NewerState)), None)
    if problem is None:
        return None
    sentence = f"Newer code has written it: it has {problem.number} {problem.stored}, and this code knows {problem.known}."
    return _found(sentence, _described(facts, "shows the saga in the code that is installed here"))


def _paused(facts: Facts, due: Sequence[Due]) -> Finding | None:
    paused = facts.pending.paused if facts.pending else None
    if facts.pending is None or paused is None:
        return None
    count = len(facts.pending.deferred)
    messages = ("No message waits", "1 message waits")[count] if count < 2 else f"{count:,} messages wait"
    reason = paused.reason.rstrip(".")
    sentence = f"{paused.actor} paused it {span(facts.now - paused.at)} ago: {reason}. {messages} with it."
    return _found(sentence, _act(facts, "resume", does="lets it go on"))


def _failing(facts: Facts, due: Sequence[Due]) -> Finding | None:
    if not facts.dead_letters:
        return None
    newest, count = facts.dead_letters[0], len(facts.dead_letters)
    ago, is_newest = span(facts.now - newest.at), f" It is the newest of {count:,}." if count > 1 else ""
    sentence = f"A message to {newest.task} failed {ago} ago with {newest.error}, and is a dead letter.{is_newest}"
    look = Remedy(("sagas", "dead", "show", *_argument(newest.id)), "shows why")
    mend = Remedy(("sagas", "dead", "retry", "--reason", "WHY", *_argument(newest.id)), "sends it again, once that is mended")
    return _found(sentence, look, mend)


def _held(facts: Facts, due: Sequence[Due]) -> Finding | None:
    switch = next((each for each in facts.held if each.name in facts.saga.names or _is_waited_for(facts, due, each.name)), None)
    if switch is None:
        return None
    who, reason = switch.actor or "Somebody", switch.reason.rstrip(".") or "no reason is known"
    sentence = f"{who} held {switch.name} {span(facts.now - switch.at)} ago: {reason}. Its messages wait until it is released."
    return _found(sentence, Remedy(("sagas", "release", "--reason", "WHY", *_argument(switch.name)), "has them handled again"))


def _is_waited_for(facts: Facts, due: Sequence[Due], name: str) -> bool:
    """Return whether a step gets what is due by now, or the outcome of an open request."""
    step = next((each for each in facts.steps if name in each.names), None)
    waited_for = {each.step for each in due if each.at <= facts.now} | {
        to for each in facts.requests for to in (each.then, each.otherwise)
    }
    return step is not None and not waited_for.isdisjoint(step.names)


def _overdue(facts: Facts, due: Sequence[Due]) -> Finding | None:
    late = [each for each in due if each.what is not What.REQUEST and facts.now - each.at > LATE_MS]
    if not late:
        return None
    first = late[0]
    sentence, remedies = _where(facts, first, facts.rows.get(first.row))
    others = f" {len(late) - 1:,} more of what it waits for {_is(len(late) - 1)} overdue." if len(late) > 1 else ""
    return Finding(f"{_capital(first.phrase)} was due {span(facts.now - first.at)} ago. {sentence}{others}", remedies)


def _where(facts: Facts, due: Due, row: OutboxGlance | None) -> Finding:
    """Return where what is due has stayed."""
    if row is None:
        return _found(
            "It is in a queue, or the broker has lost it: the outbox does not have it any more, and it is not published again.",
            _described(facts, "shows which messages the instance takes instead"),
        )
    if row.attempts:
        return _not_published(facts, row, "It")
    if row.tried_at or (due.is_series and row.due_at > due.at):
        return _not_handled(facts, due, row)
    return _not_taken(facts, row, "It")


def _not_handled(facts: Facts, due: Due, row: OutboxGlance) -> Finding:
    before = f" {span(facts.now - row.tried_at)} ago" if row.tried_at else ""
    what = "The next one of the series is published" if due.is_series else "It is published again"
    when = f"at {time_text(row.available_at, facts.zone)}" if row.available_at > facts.now else "soon"
    sentence = f"It was published{before} and has not been handled: it is in a queue, or the broker has lost it. {what} {when}."
    if due.what not in (What.TIMEOUT, What.DEADLINE):
        return _found(sentence, Remedy(*_IN_WORKERS))
    return _found(sentence, _act(facts, "fire", due.name, does="publishes it now; it is handled once, however often it comes"))


def _not_published(facts: Facts, row: OutboxGlance, subject: str) -> Finding:
    attempts = "1 attempt has" if row.attempts == 1 else f"{row.attempts:,} attempts have"
    again = (
        f"The next one is at {time_text(row.available_at, facts.zone)}."
        if row.available_at > facts.now
        else "The next one is due."
    )
    error = row.error[:_ERROR].rstrip(".") or "an unknown error"
    sentence = f"{subject} cannot be published: {attempts} failed, the last one with: {error}. {again}"
    return _found(sentence, Remedy(*_IN_RELAYS))


def _not_taken(facts: Facts, row: OutboxGlance, subject: str) -> Finding:
    sentence = f"{subject} waits in the outbox, and was never published: no relay that knows {row.task} has taken it."
    return _found(sentence, Remedy(*_IN_RELAYS))


def _unsent(facts: Facts, due: Sequence[Due]) -> Finding | None:
    failing = [row for row in facts.rows.values() if row.attempts]
    left = [row for row in facts.rows.values() if not row.attempts and _is_left(facts, row)]
    if not (failing or left):
        return None
    first = max(failing, key=lambda row: row.attempts) if failing else left[0]
    sentence, remedies = (_not_published if failing else _not_taken)(facts, first, f"A message to {first.task}")
    others = len(failing) + len(left) - 1
    return Finding(sentence + (f" {others:,} more {_is(others)} unsent, too." if others else ""), remedies)


def _is_left(facts: Facts, row: OutboxGlance) -> bool:
    """Return whether a message waits for long to be published for the first time."""
    if row.tried_at:
        return False
    run_id = row.id.rpartition("-")[0]
    at = row.due_at or next((entry.at for entry in facts.entries if entry.attempt == run_id), facts.now)
    return facts.now - at > LATE_MS


def _deferred(facts: Facts, due: Sequence[Due]) -> Finding | None:
    deferred = facts.pending.deferred if facts.pending else ()
    if not deferred:
        return None
    longest = span(facts.now - min(each.since for each in deferred))
    messages = f"1 message waits for {longest}" if len(deferred) == 1 else f"{len(deferred):,} messages wait, one for {longest},"
    status = f" It is {facts.status!r} now." if facts.status is not None else ""
    sentence = f"{messages} until it is in another status: for {_list(each.step for each in deferred)}.{status}"
    return _found(sentence, _described(facts, "shows in which statuses its steps run"))


def _locked(facts: Facts, due: Sequence[Due]) -> Finding | None:
    if facts.record is None or not facts.record.locked_by:
        return None
    return _found("It is locked for a message that others have overtaken several times. The lock ends by itself.")


def _waiting(facts: Facts, due: Sequence[Due]) -> Finding | None:
    if not due:
        return None
    first = due[0]
    is_ahead = first.at > facts.now
    when = f"is due in {span(first.at - facts.now)}, at {time_text(first.at, facts.zone)}" if is_ahead else "is due now"
    if first.what is What.DEADLINE:
        return _found(f"It waits for the answer of {first.name}. The deadline {when}.")
    to = f", and goes to {first.step}" if first.step not in ("", first.name) else ""
    return _found(f"{_capital(first.phrase)} {when}{to}.")


def _open(facts: Facts, due: Sequence[Due]) -> Finding | None:
    if not facts.requests:
        return None
    request, others = facts.requests[0], len(facts.requests) - 1
    asked_at = facts.asked_at(request)
    asked = f", asked {span(facts.now - asked_at)} ago" if asked_at else ""
    more = f", and for {others:,} more" if others else ""
    look = Remedy(("inspect", "query_task", *_argument(_silent(facts, request))), "shows which worker has the task, if one has")
    sentence = f"It waits for the answer of {name_of(request)}{asked}{more}. There is no deadline."
    return _found(sentence, look, _instead(facts, request))


def _instead(facts: Facts, request: Request) -> Remedy:
    """Return the act that helps where no answer comes."""
    if request.members:
        return _act(facts, "skip", request.id, does="has it wait for none, if none has it")
    is_only = [each.task for each in facts.requests].count(request.task) == 1
    name = request.task if is_only else request.id
    return _act(facts, "answer", name, options=("--value", "JSON"), does="answers in its place, if none has it")


def _silent(facts: Facts, request: Request) -> str:
    """Return the id of a task that has not answered."""
    outcomes = facts.members.get(request.id)
    known = {*outcomes.answered, *outcomes.failed} if outcomes else set[int]()
    silent = (id for position, id in enumerate(request.task_ids) if position not in known)
    return next(silent, request.id)


def _idle(facts: Facts) -> Finding:
    steps = [step.name for step in facts.next_steps]
    to = f"{'one of ' if len(steps) > 1 else ''}{_list(steps)}"
    goes_on = f"it goes on with the next message to {to}" if steps else "no step of it takes another message"
    return _found(f"Nothing is sure to come: {goes_on}.", _described(facts, "shows how messages find the instance"))


def timeline_of(saga: str, key: str) -> Remedy:
    """Return the command that shows what the newest instance with a key has handled."""
    return Remedy(("sagas", "timeline", saga, *_argument(key)), "shows which messages it has handled")


def _act(facts: Facts, verb: str, *arguments: str, options: tuple[str, ...] = (), does: str) -> Remedy:
    """Return an operator's act on the instance; who runs it puts the reason in the place of WHY."""
    options = ("--reason", "WHY", *options) if facts.key else ("--id", facts.instance_id, "--reason", "WHY", *options)
    given = (facts.saga.name, *([facts.key] if facts.key else []), *arguments)
    end = ("--",) if any(each.startswith("-") for each in given) else ()
    return Remedy(("sagas", verb, *options, *end, *given), does)


def _described(facts: Facts, does: str) -> Remedy:
    return Remedy(("sagas", "describe", facts.saga.name), does)


def _argument(text: str) -> tuple[str, ...]:
    """Return the words of a command for an argument, which may begin as an option does."""
    return ("--", text) if text.startswith("-") else (text,)


def _list(names: Iterable[str]) -> str:
    """Return names, each once, and how many more there are."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - _NAMED:,} more" if len(different) > _NAMED else ""
    return f"{', '.join(different[:_NAMED])}{more}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


_FINDERS: Final[Mapping[Verdict, Callable[[Facts, Sequence[Due]], Finding | None]]] = {
    Verdict.UNREADABLE: _unreadable,
    Verdict.NEWER: _newer,
    Verdict.PAUSED: _paused,
    Verdict.FAILING: _failing,
    Verdict.HELD: _held,
    Verdict.OVERDUE: _overdue,
    Verdict.UNSENT: _unsent,
    Verdict.DEFERRED: _deferred,
    Verdict.LOCKED: _locked,
    Verdict.WAITING: _waiting,
    Verdict.OPEN: _open,
}
