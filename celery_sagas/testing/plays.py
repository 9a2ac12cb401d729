"""What the state machine plays with: few values, so that they meet. It needs hypothesis.

Due times, leases and ages end half a second past the full second, and the clock moves by full seconds: nothing is tested at
the very millisecond at which something ends.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from celery_sagas.stores.records import Effects, Handling, NewRecord, Outgoing, Record
from celery_sagas.testing.samples import NAMES, Keys, entry, outgoing

KEYS = ("a", "b")
VALUES = ("x", "y", "z")
PROPERTIES = ("email", "tracking")
STEPS = ("order.place", "order.pay")
TOKENS = ("one", "two")
HOLDERS = ("", "me", "you")


@dataclass(frozen=True)
class Message:
    """A delivery of a message, and what handling it decides."""

    step: str
    message_id: str
    attempt: str
    rows: tuple[tuple[str, int], ...]  #: kind, and the delay in milliseconds
    owner: str
    grace_ms: int
    holder: str

    def effects(self, about: NewRecord | Record | None, outcome: str, now: int, first_row: int) -> Effects:
        """Return the effects of the handling."""
        line = entry(about, step=self.step, message_id=self.message_id, attempt=self.attempt, outcome=outcome)
        rows = [self._row(number, kind, delay, now) for number, (kind, delay) in enumerate(self.rows, first_row)]
        return Effects(line, tuple(rows), self.owner, self.grace_ms, self.holder)

    def _row(self, number: int, kind: str, delay: int, now: int) -> Outgoing:
        return outgoing(kind, id=f"row {number}", due_at=now + delay if delay else 0)


keys = st.sampled_from(KEYS)
tokens = st.sampled_from(TOKENS)
seconds = st.integers(1, 6).map(lambda n: n * 1_000)
durations = st.integers(0, 6).map(lambda n: n * 1_000 + 500)
delays = st.one_of(st.just(0), durations)
names = st.sampled_from([NAMES, NAMES[::-1]])
positions = st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True)
outcomes = st.sampled_from(["handled", "handled", "handled", "completed", "ignored"])
steps = st.sampled_from(STEPS)
message_ids = st.integers(1, 20).map("message {}".format)
handlings = message_ids.map(lambda message_id: Handling(STEPS, message_id))
#: How long ago an instance was found: mostly now.
ages = st.sampled_from([0, 0, 0, 0, 1, 2, 3])


def alternates() -> st.SearchStrategy[Keys]:
    """Draw alternate keys: at most one value for each property."""
    values = st.tuples(*(st.none() | st.sampled_from(VALUES) for _ in PROPERTIES))
    return values.map(lambda drawn: tuple((name, value) for name, value in zip(PROPERTIES, drawn, strict=True) if value))


def messages(*kinds: str) -> st.SearchStrategy[Message]:
    """Draw deliveries that decide rows of these kinds."""
    return st.builds(
        Message,
        step=steps,
        message_id=message_ids,
        attempt=st.sampled_from(["1", "1", "2"]),
        rows=st.lists(st.tuples(st.sampled_from(kinds), delays), max_size=3).map(tuple),
        owner=tokens,
        grace_ms=delays,
        holder=st.sampled_from(HOLDERS),
    )
