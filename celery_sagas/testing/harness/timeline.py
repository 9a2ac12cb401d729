"""What happened in a test, in the order in which it happened, as its failures show it."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sagas.engine.outcomes import Kind, Outcome

#: How many lines of an endless scenario are shown.
_LAST = 5


class ScenarioError(AssertionError):
    """Raised when a test in virtual time cannot go on, or one of its assertions does not hold; it shows what has happened."""

    def __init__(self, problem: str, timeline: str = "") -> None:
        super().__init__(f"{problem}\n{timeline}" if timeline else problem)


class Line(NamedTuple):
    """One delivery of a message, or another event."""

    at: datetime
    message: object  #: shown as a text
    id: str  #: of the message
    outcome: str
    instances: frozenset[str]  #: the ids of those that it is about, as far as they are known


class Timeline:
    """The events of a test.

    Args:
        start: When the test begins.
    """

    def __init__(self, start: datetime) -> None:
        self._start = start
        self.lines: list[Line] = []

    def add(self, line: Line) -> None:
        """Add an event."""
        self.lines.append(line)

    def last(self) -> str:
        """Return the last lines."""
        return "\n".join(_rows(self.lines[-_LAST:], self._start))

    def shown(self, instances: frozenset[str] | None = None) -> str:
        """Return the lines of some instances, or all."""
        about = {line.id for line in self.lines if instances is None or line.instances & instances}
        lines = [line for line in self.lines if line.id in about]  # also deliveries before which there was no instance
        return "\n".join(_rows(lines, self._start)) or "  nothing has happened"


def shown_outcome(outcome: Outcome, sent: Sequence[str]) -> str:
    """Return what a step did with a message, in words.

    Args:
        outcome: The outcome of the message.
        sent: The tasks to which its commit sends messages.
    """
    version = f", version {outcome.version}" if outcome.version and outcome.kind is not Kind.DUPLICATE else ""
    reason = f" ({outcome.reason})" if outcome.reason else ""
    sends = f"; sends {', '.join(sent)}" if sent else ""
    return f"{_WORDS.get(outcome.kind, outcome.kind)}{version}{reason}{sends}"


_WORDS = {Kind.DUPLICATE: "handled before, ignored", Kind.FAILED: "failed before, ignored"}


def _rows(lines: Sequence[Line], start: datetime) -> Iterator[str]:
    times, messages = [f"+{line.at - start}" for line in lines], [str(line.message) for line in lines]
    time_width, width = max(map(len, times), default=0), max(map(len, messages), default=0)
    for time, message, line in zip(times, messages, lines, strict=True):
        yield f"  {time:>{time_width}}  {message:<{width}}  {line.outcome}"
