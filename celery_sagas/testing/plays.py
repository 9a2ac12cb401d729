"""The values that the state machine plays with: few, so that they meet. It needs hypothesis.

Due times, leases and ages end half a second past the full second, and the clock moves by full seconds: nothing is tested at
the very millisecond at which something ends.
"""

import operator
from dataclasses import dataclass

from hypothesis import strategies as st

from celery_sagas.stores.records import Effects, Entry, NewRecord, Outgoing, Record
from celery_sagas.testing.samples import NAMES, Keys, audited, entry, outgoing

KEYS = ("a", "b")
VALUES = ("x", "y", "z")
PROPERTIES = ("email", "tracking")
STEPS = ("order.place", "order.pay")
TOKENS = ("one", "two")
LOCK_OWNERS = ("me", "you")


@dataclass(frozen=True)
class PlayedInstance:
    """An instance: the one that is found by the key now, or one that was found some time ago."""

    key: str
    age: int


@dataclass(frozen=True)
class PlayedMessage:
    """A delivery of a message, and the decisions of its handling."""

    step: str
    message_id: str
    attempt: str
    rows: tuple[tuple[str, int], ...]  #: kind, and when it is due, in milliseconds from now; 0: at once
    owner: str
    grace_ms: int
    lock_owner: str
    is_audited: bool

    def effects(self, about: NewRecord | Record | None, outcome: str, now: int, first_row: int, audit_id: str) -> Effects:
        """Return the effects of the handling; its rows are numbered. There is an audit unless its id is empty."""
        line = entry(about, step=self.step, message_id=self.message_id, attempt=self.attempt, outcome=outcome)
        kinds = [(kind, delay) for kind, delay in self.rows if kind == "sent" or outcome != "completed"]
        rows = [_row(number, kind, delay, now) for number, (kind, delay) in enumerate(kinds, first_row)]
        audit = audited(line, id=audit_id) if self.is_audited and audit_id else None
        return Effects(line, tuple(rows), self.owner, self.grace_ms, self.lock_owner, audit)


def _row(number: int, kind: str, delay: int, now: int) -> Outgoing:
    return outgoing(kind, id=f"row {number}", due_at=now + delay if delay else 0)


@dataclass(frozen=True)
class HandlePlay:
    """Insert, update, delete or record, depending on what was found."""

    how: str
    subject: PlayedInstance
    names: tuple[str, ...]
    alternates: Keys
    cancelled: list[int]  #: rows, counted from the newest
    message: PlayedMessage


@dataclass(frozen=True)
class LockPlay:
    """Lock an instance."""

    subject: PlayedInstance
    lock_owner: str
    for_ms: int


@dataclass(frozen=True)
class ClaimPlay:
    """Claim rows that are due."""

    token: str
    limit: int
    lease_ms: int
    cause: Entry | None


@dataclass(frozen=True)
class SettlePlay:
    """Confirm, keep, release, fail or reschedule rows."""

    how: str
    token: str
    rows: list[int]  #: counted from the newest
    delay_ms: int


@dataclass(frozen=True)
class WaitPlay:
    """Let time pass, and perhaps purge the journal, the audit and the counts of deliveries."""

    ms: int
    purge_older_than_ms: int | None


@dataclass(frozen=True)
class DeliverPlay:
    """Count a delivery."""

    step: str
    message_id: str


@dataclass(frozen=True)
class SwitchPlay:
    """Hold or release a saga or a step."""

    how: str
    name: str


Play = HandlePlay | LockPlay | ClaimPlay | SettlePlay | DeliverPlay | SwitchPlay | WaitPlay

_tokens = st.sampled_from(TOKENS)
_durations = st.integers(0, 6).map(lambda n: n * 1_000 + 500)
_delays = st.just(0) | _durations
_due_times = _delays | _delays.map(operator.neg)
_rows = st.integers(0, 8)
_message_ids = st.integers(1, 12).map("message {}".format)
_subjects = st.builds(PlayedInstance, key=st.sampled_from(KEYS), age=st.sampled_from([0, 0, 0, 0, 1, 2, 3]))
_causes = st.builds(entry, step=st.sampled_from(STEPS), message_id=_message_ids)
_values = st.tuples(*(st.none() | st.sampled_from(VALUES) for _ in PROPERTIES))
_alternates = _values.map(lambda drawn: tuple((name, value) for name, value in zip(PROPERTIES, drawn, strict=True) if value))
_messages = st.builds(
    PlayedMessage,
    step=st.sampled_from(STEPS),
    message_id=_message_ids,
    attempt=st.sampled_from(["1", "2"]),
    rows=st.lists(st.tuples(st.sampled_from(["sent", "scheduled", "deadline", "series"]), _due_times), max_size=2).map(tuple),
    owner=_tokens,
    grace_ms=_delays,
    lock_owner=st.sampled_from(["", *LOCK_OWNERS]),
    is_audited=st.sampled_from([False, False, True]),
)
_handles = st.builds(
    HandlePlay,
    how=st.sampled_from(["handled", "handled", "handled", "completed", "ignored"]),
    subject=_subjects,
    names=st.sampled_from([NAMES, NAMES[::-1]]),
    alternates=_alternates,
    cancelled=st.just([]) | st.lists(_rows, max_size=4, unique=True),
    message=_messages,
)
_locks = st.builds(LockPlay, subject=_subjects, lock_owner=st.sampled_from(LOCK_OWNERS), for_ms=_durations)
_claims = st.builds(ClaimPlay, token=_tokens, limit=st.integers(1, 6), lease_ms=_durations, cause=st.none() | st.none() | _causes)
_settles = st.builds(
    SettlePlay,
    how=st.sampled_from(["confirm", "keep", "release", "fail", "reschedule"]),
    token=_tokens,
    rows=st.lists(_rows, min_size=1, max_size=6, unique=True),
    delay_ms=_delays,
)
_deliveries = st.builds(DeliverPlay, step=st.sampled_from(STEPS), message_id=_message_ids)
_switches = st.builds(SwitchPlay, how=st.sampled_from(["hold", "release"]), name=st.sampled_from(STEPS))
_waits = st.builds(
    WaitPlay,
    ms=st.sampled_from([1, 2, 3, 4, 5, 6, 600]).map(lambda seconds: seconds * 1_000),
    purge_older_than_ms=st.sampled_from([None, None, None, 4_500, 20_500]),
)

#: One play; most are about instances.
plays: st.SearchStrategy[Play] = st.one_of(
    *(_handles, _handles, _handles, _handles), _locks, _claims, _settles, _settles, _deliveries, _switches, _waits
)
