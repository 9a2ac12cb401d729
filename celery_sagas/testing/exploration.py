"""Exploration: one scenario in many orders, with repeats, failures and killed workers, until an invariant does not hold."""

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from celery_sagas.core.delays import Delay, seconds_of
from celery_sagas.testing.harness.broker import SentMessage
from celery_sagas.testing.harness.crashes import POINTS
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.testing.harness.timeline import ScenarioError

__all__ = ["Fault", "ParticipantFailed", "explore"]

#: What may go wrong, besides the order: a message is delivered twice; a participant fails, or never answers; a worker is killed.
Fault = Literal["repeat", "fail", "silence", "crash"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
#: Sets up a test: sends the first messages, and says how participants answer.
Scenario = Callable[[SagaHarness], object]
#: Asserts what must always be so; or returns whether it is.
Invariant = Callable[[SagaHarness], object]

#: What is drawn, the simplest first, to which a failing history is reduced: nothing; an ordinary delivery; what may go wrong.
_KINDS = ("nothing", *("deliver",) * 4, "wait", *FAULTS)
_OF_A_KIND = 10
#: How long virtual time passes, unless the caller says it. Seconds.
_LASTS_S = 90 * 86_400.0
_NOT_QUIET = (
    "after ninety days something is still to happen in {}: what its invariant asserts if harness.is_quiet may never be checked. "
    "Give the time that it lasts: explore(…, lasts=…)"
)
#: What an invariant raises; pytest.fail() raises no Exception.
_FAILURES = (Exception, pytest.fail.Exception)
#: Messages of one history; and how many of one without an end are shown.
_MOST, _LAST = 1_000, 5
#: Steps to play while steps are left out of a history that fails.
_REDUCING = 10_000
#: Steps that differ from an ordinary one: later messages first, a timeout that overtakes what waits, and what may go wrong.
_ORDERS = ("deliver", "wait")
_STEPS = [
    *(("deliver", which) for which in (1, 2, 3)),
    ("wait", 0),
    *((what, which) for what in ("repeat", "fail", "silence") for which in (0, 1)),
    *(("crash", point) for point in range(len(POINTS))),
]
#: What is done, step by step: one of ``_KINDS``, and a number that says to which message, or where.
Plan = list[tuple[str, int]]


class InvariantFalse(ScenarioError):
    """Raised when an invariant returns ``False``."""


class Endless(ScenarioError):
    """Raised when a scenario does not end."""


class _Found(Exception):
    """Raised within hypothesis for a history that fails."""


class ParticipantFailed(Exception):
    """Raised by a participant that fails in an exploration."""


def explore(
    scenario: Scenario,
    invariant: Invariant,
    *,
    examples: int = 200,
    faults: Collection[Fault] = FAULTS,
    lasts: Delay | None = None,
    app: Celery | None = None,
) -> None:
    """Look for a history of a scenario in which an invariant does not hold.

    Each history delivers the messages in an order of its own: repeats some, lets timeouts overtake them, lets participants fail
    or never answer, and kills workers. What is left in the end is delivered in order, until nothing happens any more. The
    invariant is checked after every step; of what must hold in the end it asserts it ``if harness.is_quiet``. The same histories
    are tried each time.

    Args:
        scenario: Sends the first messages with a harness, and says how participants answer.
        invariant: Asserts with the harness what must always be so; or returns whether it is.
        examples: How many histories are tried at most that differ in one step from the plain one; and how many others.
        faults: What may go wrong, besides the order.
        lasts: For how long virtual time passes, as a ``timedelta`` or in seconds: a saga that reminds somebody every day never
            ends. Without it ninety days, and a warning if something would still happen then.
        app: The Celery app; the current one if left out.

    Raises:
        ScenarioError: The scenario does not end; or the invariant has returned ``False``.
        Exception: Raised by the invariant, for the shortest history that was found: its note is a test that repeats it. If it
            does not hold from the start, its note says so.
    """
    if isinstance(faults, str) or (unknown := set(faults) - set(FAULTS)):
        shown = repr(faults) if isinstance(faults, str) else ", ".join(map(repr, sorted(unknown)))
        raise ValueError(f"faults= takes some of {list(FAULTS)}, not {shown}")
    seconds = _LASTS_S if lasts is None else seconds_of("lasts", lasts)
    explorer, failures = _Explorer(scenario, invariant, frozenset(faults), timedelta(seconds=seconds), app), list[_Played]()
    explorer.check_start()
    with _without_logs():
        plain = explorer.play([])
        if plain.error:
            raise plain.error  # no history is simpler
        if lasts is None and not plain.is_quiet:
            warnings.warn(_NOT_QUIET.format(_name(scenario, "the scenario")), stacklevel=2)
        failures += filter(_has_failed, map(explorer.play, islice(explorer.deviations_from(plain), examples)))
        shortest = explorer.reduced(min(failures or explorer.drawn(examples, plain), key=_size, default=plain))
    if shortest.error:
        raise shortest.error


class _Played(NamedTuple):
    """A history that was played."""

    plan: Plan  #: what was done
    tasks: list[str]  #: of the messages that were delivered, step by step
    error: BaseException | None  #: with which it ended
    is_quiet: bool  #: whether nothing happens after it


def _has_failed(played: _Played) -> bool:
    return played.error is not None


def _size(played: _Played) -> tuple[int, int]:
    """Return the length of a history, and how much goes wrong in it."""
    return len(played.plan), sum(what in FAULTS for what, _ in played.plan)


@dataclass(frozen=True)
class _Explorer:
    """Plays histories of a scenario, each with a harness of its own."""

    scenario: Scenario
    invariant: Invariant
    faults: frozenset[Fault]
    lasts: timedelta
    app: Celery | None

    def check_start(self) -> None:
        """Check the invariant before anything is delivered: if it is false then, that says nothing about the sagas."""
        with SagaHarness(self.app, most=_MOST) as harness:
            self.scenario(harness)
            try:
                _check(self.invariant, harness)
            except _FAILURES as exc:
                exc.add_note(
                    f"{_name(self.invariant, 'The invariant')} does not hold from the start, before anything is delivered."
                )
                raise

    def deviations_from(self, plain: _Played) -> Iterator[Plan]:
        """Yield all that differ from a history in one step: most mistakes need no more, and are shortest so.

        Those come first in which that is the first message to a task; then the second ones, and so on.
        """
        seen = [plain.tasks[:position].count(task) for position, task in enumerate(plain.tasks)]
        for position in sorted(range(len(seen)), key=seen.__getitem__):
            yield from ([*plain.plan[:position], step] for step in _STEPS if step[0] in (*self.faults, *_ORDERS))

    def play(self, plan: Plan) -> _Played:
        """Play a history."""
        with SagaHarness(self.app, most=_MOST) as harness:
            history = _History(harness, self.scenario, self.invariant, self.faults, harness.now + self.lasts)
            error: BaseException | None = None
            try:
                history.play(plan)
            except _FAILURES as exc:
                error = exc
                if not isinstance(exc, Endless):
                    exc.add_note(history.as_test(exc))
            return _Played(history.done, history.tasks, error, harness.is_quiet)

    def drawn(self, examples: int, plain: _Played) -> list[_Played]:
        """Return the histories that have failed among those that hypothesis draws, and among those to which it reduces them."""
        failures: list[_Played] = []
        least, most = len(plain.plan) // 2, 2 * len(plain.plan)
        choices = st.lists(st.integers(0, len(_KINDS) * _OF_A_KIND - 1), min_size=max(least, 10), max_size=max(most, 30))

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            print_blob=False,
            report_multiple_bugs=False,
        )
        @given(choices)
        def run(choices: list[int]) -> None:
            played = self.play([(_KINDS[choice // _OF_A_KIND], choice % _OF_A_KIND) for choice in choices])
            if played.error:
                failures.append(played)
                raise _Found

        with suppress(_Found):
            run()
        return failures

    def reduced(self, failure: _Played) -> _Played:
        """Leave out, one by one, the steps without which something fails as well."""
        position, left = 0, _REDUCING
        while position < len(failure.plan) and left > 0:
            left -= len(failure.plan)
            shorter = self.play(failure.plan[:position] + failure.plan[position + 1 :])
            if shorter.error and _size(shorter) < _size(failure):
                failure = shorter
            else:
                position += 1
        return failure


@dataclass
class _History:
    """One history of a scenario."""

    harness: SagaHarness
    scenario: Scenario
    invariant: Invariant
    faults: frozenset[Fault]
    until: datetime
    done: Plan = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)  #: step by step; an empty name where no message was delivered
    _calls: list[tuple[str, SentMessage | None]] = field(default_factory=list)  #: of the harness, and what they deliver
    _repeated: list[SentMessage] = field(default_factory=list)

    def play(self, plan: Plan) -> None:
        """Do what is planned, and then what is left, in order.

        Raises:
            ScenarioError: It does not end.
            Exception: Raised by the invariant.
        """
        self.scenario(self.harness)
        for what, which in plan:
            if self._is_over():
                return
            if what != "nothing":
                self._do(what, which)
        while not self._is_over():
            if len(self._calls) > _MOST:
                last = "\n".join(self.harness.timeline().splitlines()[-_LAST:])
                raise Endless(f"{_name(self.scenario, 'the scenario')} does not end after {_MOST} steps. The last ones:", last)
            self._do("deliver", 0)

    def _is_over(self) -> bool:
        return self.harness.is_quiet or self.harness.now > self.until

    def _do(self, what: str, which: int) -> None:
        """Do what was drawn, if it is possible now and may go wrong; or else an ordinary delivery."""
        act = getattr(self, f"_{what}") if what in (*self.faults, "wait") else self._deliver
        self.done.append((what, which))
        self.tasks.append("")
        if not act(which) and not self._deliver(which):
            self._wait(which)
        _check(self.invariant, self.harness)

    def _deliver(self, which: int) -> bool:
        return self._deliver_one(self._due(), which)

    def _wait(self, which: int) -> bool:
        self._calls.append(("saga_harness.wait()", None))
        self.harness.wait()
        return True

    def _repeat(self, which: int) -> bool:
        delivered = list(dict.fromkeys(message for _, message in self._calls if message is not None))
        messages = [message for message in delivered if message not in self.harness.pending]
        if not messages:
            return False
        message = messages[which % len(messages)]
        if message not in self._repeated:
            self._repeated.append(message)
        self._calls.append((f"saga_harness.deliver({self._variable(message)})", None))
        self.harness.deliver(message)
        return True

    def _fail(self, which: int) -> bool:
        return self._deliver_one(self._participants(), which, "fail=ParticipantFailed", fail=ParticipantFailed)

    def _silence(self, which: int) -> bool:
        return self._deliver_one(self._participants(), which, "silent=True", silent=True)

    def _crash(self, which: int) -> bool:
        which, point = divmod(which, len(POINTS))
        return self._deliver_one(self._due(), which, f"crash={POINTS[point]!r}", crash=POINTS[point])

    def _deliver_one(self, messages: Sequence[SentMessage], which: int, how: str = "", **options: Any) -> bool:
        """Deliver one of these messages; return whether there is any."""
        if not messages:
            return False
        message = messages[which % len(messages)]
        position = self.harness.pending.index(message)
        first = next(each for each in self.harness.pending if each.task == message.task)
        shown = repr(message.task) if first is message else f"saga_harness.pending[{position}]"
        self._calls.append((f"saga_harness.deliver({shown}{', ' if how else ''}{how})", message))
        self.tasks[-1] = message.task
        self.harness.deliver(message, **options)
        return True

    def _due(self) -> list[SentMessage]:
        return [message for message in self.harness.pending if self.harness.is_due(message)]

    def _participants(self) -> list[SentMessage]:
        return [message for message in self._due() if not _is_ours(message)]

    def as_test(self, error: BaseException) -> str:
        """Return a test that repeats it, and the error."""
        calls = [self._shown(call, message) for call, message in self._calls]
        checks = f"{'assert ' if isinstance(error, InvariantFalse) else ''}{_name(self.invariant, 'invariant')}(saga_harness)"
        lines = [f"{_name(self.scenario, 'scenario')}(saga_harness)", *calls, checks]
        is_used = any(ParticipantFailed.__name__ in call for call in calls)
        imports = [f"from {__name__} import {ParticipantFailed.__name__}", "", ""] if is_used else []
        return "\n".join(["To repeat it:", "", *imports, "def test_found(saga_harness):", *(f"    {line}" for line in lines)])

    def _shown(self, call: str, message: SentMessage | None) -> str:
        return call if message is None or message not in self._repeated else f"{self._variable(message)} = {call}"

    def _variable(self, message: SentMessage) -> str:
        return f"message_{self._repeated.index(message) + 1}"


def _is_ours(message: SentMessage) -> bool:
    """Return whether a message goes to a step, or to a task of the library's own."""
    task: Any = message.app.tasks.get(message.task)
    return hasattr(task, "saga_step") or hasattr(task, "saga_aggregator") or message.task.startswith("celery_sagas.")


def _check(invariant: Invariant, harness: SagaHarness) -> None:
    holds = invariant(harness)
    if holds is not None and not holds:
        raise InvariantFalse(f"{_name(invariant, 'the invariant')} does not hold", harness.timeline())


@contextmanager
def _without_logs() -> Iterator[None]:
    """Log nothing about killed workers and redelivered messages: of a history that fails, its timeline tells them."""
    loggers = [logging.getLogger(name) for name in ("celery", "celery_sagas")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _name(function: Callable[..., object], otherwise: str) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else otherwise
