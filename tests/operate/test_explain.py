"""Which verdict is given, in which words, and which command helps."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_sagas.core.deferred import Deferred
from celery_sagas.core.pending import Pause, Pending
from celery_sagas.core.requests.requests import Request, Target
from celery_sagas.core.requests.undo import Undo, Undoing
from celery_sagas.core.requests.views import MemberOutcomes
from celery_sagas.core.series import Interval
from celery_sagas.core.state import State
from celery_sagas.core.status import IfNot, StatusRule
from celery_sagas.core.step import IfExists, IfMissing, StepDefinition
from celery_sagas.core.timeouts import Timeout
from celery_sagas.errors import NewerState, UnreadableState
from celery_sagas.operate.explain import LATE_MS, Explanation, Verdict, explain
from celery_sagas.operate.facts import Facts, is_left_alone
from celery_sagas.operate.spans import span
from celery_sagas.stores.records import DeadLetter, Entry, OutboxGlance, Record
from celery_sagas.stores.switches import Switch

MINUTE, HOUR = 60_000, 3_600_000
#: 2027-01-15 08:00:00 UTC
NOW = 1_800_000_000_000
LATER, LATE = NOW + HOUR, NOW - HOUR
ROW = "run-00001"


class Order(State, correlate_by="order_id"):
    """The saga."""

    order_id: str


def step(name: str, *, starts: bool = False, when: tuple[str, ...] = (), is_internal: bool = False) -> StepDefinition:
    """Make a step."""
    policy: Any = IfExists.IGNORE if starts else IfMissing.IGNORE
    assert Order.__saga__ is not None
    made = StepDefinition(Order.__saga__, name, (), lambda order: None, starts, False, policy, None, is_internal=is_internal)
    made.status = StatusRule(when=when, if_not=IfNot.RAISE)
    return made


def facts(pending: Pending | None = None, *rows: OutboxGlance, **others: Any) -> Facts:
    """Make what is known of an instance."""
    record = Record(
        "id", "order", "8841", 3, 1, '{"order_id": "8841"}', "{}", NOW - 9 * HOUR, NOW - 2 * HOUR, others.pop("lock", "")
    )
    assert Order.__saga__ is not None
    known = {"record": record, "pending": pending or Pending(), "steps": (step("order.shipped"),), **others}
    return Facts(Order.__saga__, "8841", "id", NOW, rows={row.id: row for row in rows}, **known)


def row(id: str = ROW, kind: str = "scheduled", **others: Any) -> OutboxGlance:
    """Make a row of the outbox that was not tried yet."""
    known = {"due_at": LATE, "attempts": 0, "tried_at": 0, "available_at": 0, "leased_until": 0, "error": "", **others}
    return OutboxGlance(id, kind, "message", known.pop("task", "order.remind"), instance_id="id", step="s", cause="c", **known)


def timeout(at: int = LATE, **others: Any) -> Pending:
    """Make a pending map with a timeout."""
    return Pending(timeouts={"delivery": Timeout("timeout", ROW, "order.remind", at, **others)})


def requests(*each: Request) -> Pending:
    """Make a pending map with requests."""
    return Pending(requests={request.id: request for request in each})


def charge(**others: Any) -> Request:
    """Make a request."""
    return Request(**{"id": "request", "task": "shop.charge", "then": "order.charged", "otherwise": "order.failed", **others})


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        (Pending(), True),
        (timeout(), True),  # it should have come
        (timeout(NOW - LATE_MS), False),
        (timeout(LATER), False),
        (requests(charge()), True),
        (requests(charge(at=LATE)), True),
        (requests(charge(at=LATER)), False),
        (requests(charge(at=LATE, has_timed_out=True)), True),
        (requests(charge(sent_at=LATER, sent_row=ROW)), False),
        (requests(charge(sent_at=LATE, sent_row=ROW)), True),
        (Pending(deferred=[Deferred("m", "order.shipped", NOW, "t", "{}")]), True),
        (Pending(deferred=[Deferred("m", "order.shipped", NOW, "t", "{}", wake="w", row=ROW)]), False),
        (Pending(paused=Pause(LATE, "ann", "INC-1")), False),
    ],
)
def test_nothing_is_sure_to_come(pending: Pending, expected: bool):
    assert is_left_alone(facts(pending), LATE_MS) is expected


def test_nothing_is_known_to_be_sure_where_the_pending_map_cannot_be_read():
    assert not is_left_alone(replace(facts(), pending=None), LATE_MS)


def test_timeout_that_has_come_and_waits_is_not_overdue():
    """It waits with the instance, for another status."""
    waits = Deferred("m", "order.remind", NOW - 3 * HOUR, "m", "{}", awaited="of the timeout")
    pending = Pending(timeouts={"delivery": Timeout("of the timeout", ROW, "order.remind", NOW - 3 * HOUR)}, deferred=[waits])
    kept = row(tried_at=NOW - 3 * HOUR, available_at=NOW + HOUR)
    assert explain(facts(pending, kept)).verdict is Verdict.DEFERRED


def deferred(*steps: str, **others: Any) -> Pending:
    """Make a pending map with messages that wait for another status."""
    waiting = [Deferred(f"message {name}", name, NOW - (3 - n) * HOUR, "id", "{}", **others) for n, name in enumerate(steps)]
    return Pending(deferred=waiting)


def undoing() -> Pending:
    """Make a pending map with a compensation that has sent the message with which it ends."""
    return Pending(undo=Undo(undoing=Undoing([], then=Target("order.undone"), then_id="then", then_row=ROW)))


def letter(id: str = "letter", at: int = LATE) -> DeadLetter:
    """Make a dead letter."""
    return DeadLetter(id, "order.shipped", "message", "order", "8841", "KeyError", "'tracking'", "", "{}", at)


def entry(detail: str, attempt: str = "run", at: int = NOW - 2 * HOUR) -> Entry:
    """Make an entry of the journal."""
    return Entry("order.place", "message", attempt, "handled", "order", "8841", "id", 3, detail, at)


HELD = Switch("order.remind", "ann", "carrier down.", NOW - 2 * HOUR)
PAUSE = Pause(NOW - 2 * HOUR, "ann", "carrier down.")
ASKED = entry('{"asked": [{"request": "request", "task": "shop.charge"}]}')
UNREADABLE, NEWER = UnreadableState("order", "8841", "it is no JSON"), NewerState("order", "8841", 3, 1)
DESCRIBE, RELAY, QUEUES = "sagas describe order", "inspect sagas_relay", "inspect active_queues"
FIRE, RESUME = "sagas fire --reason WHY order 8841 delivery", "sagas resume --reason WHY order 8841"


def untaken(task: str) -> str:
    """Return what is said of a row that was never published."""
    return f"waits in the outbox, and was never published: no relay that knows {task} has taken it."


#: Of each verdict, and of each sentence that it has: what is known; the sentence; the command.
TABLE: list[tuple[str, Callable[[], Facts], str, str]] = [
    (
        "unreadable",
        lambda: facts(problems=(NEWER, UNREADABLE), dead_letters=[letter()]),
        "It cannot be read: it is no JSON.",
        "sagas timeline order 8841",
    ),
    (
        "newer",
        lambda: facts(problems=(NEWER,), dead_letters=[letter()]),
        "Newer code has written it: it has schema version 3, and this code knows 1.",
        DESCRIBE,
    ),
    (
        "newer",
        lambda: facts(problems=(NewerState("order", "8841", 9, 3, "pending map format"),)),
        "Newer code has written it: it has pending map format 9, and this code knows 3.",
        DESCRIBE,
    ),
    (
        "paused",
        lambda: facts(Pending(paused=PAUSE), dead_letters=[letter()]),
        "ann paused it 2 h ago: carrier down. No message waits with it.",
        RESUME,
    ),
    (
        "paused",
        lambda: facts(Pending(paused=PAUSE, deferred=deferred("order.ship").deferred)),
        "ann paused it 2 h ago: carrier down. 1 message waits with it.",
        RESUME,
    ),
    (
        "paused",
        lambda: facts(Pending(paused=PAUSE, deferred=deferred("order.ship", "order.paid").deferred)),
        "ann paused it 2 h ago: carrier down. 2 messages wait with it.",
        RESUME,
    ),
    (
        "failing",
        lambda: facts(timeout(), dead_letters=[letter()]),
        "A message to order.shipped failed 1 h ago with KeyError, and is a dead letter.",
        "sagas dead show letter\nsagas dead retry --reason WHY letter",
    ),
    (
        "failing",
        lambda: facts(dead_letters=[letter("b"), letter("a", NOW - 2 * HOUR)]),
        "A message to order.shipped failed 1 h ago with KeyError, and is a dead letter. It is the newest of 2.",
        "sagas dead show b\nsagas dead retry --reason WHY b",
    ),
    (
        "held",
        lambda: facts(held=[Switch("order", "ann", "carrier down.", NOW - 2 * HOUR)]),
        "ann held order 2 h ago: carrier down. Its messages wait until it is released.",
        "sagas release --reason WHY order",
    ),
    (
        "held",
        lambda: facts(timeout(), row(), held=[HELD], steps=(step("order.remind"),)),
        "ann held order.remind 2 h ago: carrier down. Its messages wait until it is released.",
        "sagas release --reason WHY order.remind",
    ),
    (
        "held",
        lambda: facts(requests(charge()), held=[Switch("order.failed", "", "", LATE)], steps=(step("order.failed"),)),
        "Somebody held order.failed 1 h ago: no reason is known. Its messages wait until it is released.",
        "sagas release --reason WHY order.failed",
    ),
    (
        "waiting",
        lambda: facts(timeout(LATER), row(due_at=LATER), held=[HELD], steps=(step("order.remind"),)),
        "The timeout delivery is due in 1 h, at 2027-01-15 09:00:00 UTC, and goes to order.remind.",
        "",
    ),
    (
        "overdue",
        lambda: facts(timeout(), row()),
        f"The timeout delivery was due 1 h ago. It {untaken('order.remind')}",
        RELAY,
    ),
    (
        "overdue",
        lambda: facts(timeout(), row(attempts=3, tried_at=LATE, available_at=LATER, error="no route.")),
        "The timeout delivery was due 1 h ago. It cannot be published: 3 attempts have failed, the last one with: no route. "
        "The next one is at 2027-01-15 09:00:00 UTC.",
        RELAY,
    ),
    (
        "overdue",
        lambda: facts(timeout(), row(attempts=1, tried_at=LATE, available_at=LATE)),
        "The timeout delivery was due 1 h ago. It cannot be published: 1 attempt has failed, the last one with: an unknown "
        "error. The next one is due.",
        RELAY,
    ),
    (
        "overdue",
        lambda: facts(timeout(), row(tried_at=NOW - 59 * MINUTE, available_at=LATER)),
        "The timeout delivery was due 1 h ago. It was published 59 min ago and has not been handled: it is in a queue, or the "
        "broker has lost it. It is published again at 2027-01-15 09:00:00 UTC.",
        FIRE,
    ),
    (
        "overdue",
        lambda: facts(timeout(), row(tried_at=LATE, available_at=NOW)),
        "The timeout delivery was due 1 h ago. It was published 1 h ago and has not been handled: it is in a queue, or the "
        "broker has lost it. It is published again soon.",
        FIRE,
    ),
    (
        "overdue",
        lambda: facts(timeout()),
        "The timeout delivery was due 1 h ago. It is in a queue, or the broker has lost it: the outbox does not have it any "
        "more, and it is not published again.",
        DESCRIBE,
    ),
    (
        "overdue",
        lambda: facts(timeout(every=Interval(LATE, 2 * HOUR)), row(kind="series", due_at=LATER, available_at=LATER)),
        "The series delivery was due 1 h ago. It was published and has not been handled: it is in a queue, or the "
        "broker has lost it. The next one of the series is published at 2027-01-15 09:00:00 UTC.",
        FIRE,
    ),
    (
        "overdue",
        lambda: facts(requests(charge(at=LATE, row=ROW)), row(kind="deadline", task="order.failed")),
        f"The deadline of shop.charge was due 1 h ago. It {untaken('order.failed')}",
        RELAY,
    ),
    (
        "overdue",
        lambda: facts(deferred("order.ship", row=ROW), row(task="order.(deferred)")),
        f"The end of the time for which a message to order.ship waits was due 1 h ago. It {untaken('order.(deferred)')}",
        RELAY,
    ),
    (
        "overdue",
        lambda: facts(undoing(), row(tried_at=LATE, available_at=LATER)),
        "The message to order.undone, with which the compensation ends, was due 2 h ago. It was published 1 h ago and has not "
        "been handled: it is in a queue, or the broker has lost it. It is published again at 2027-01-15 09:00:00 UTC.",
        QUEUES,
    ),
    (
        "overdue",
        lambda: facts(requests(*(charge(id=str(n), members=n, at=LATE - n * HOUR) for n in range(3)))),
        "The deadline of 2 members was due 3 h ago. It is in a queue, or the broker has lost it: the outbox does not have it any "
        "more, and it is not published again. 2 more of what it waits for are overdue.",
        DESCRIBE,
    ),
    (
        "unsent",
        lambda: facts(
            requests(charge()), row(kind="sent", task="shop.charge", due_at=0, attempts=2, tried_at=LATE, error="no route")
        ),
        "A message to shop.charge cannot be published: 2 attempts have failed, the last one with: no route. The next one is due.",
        RELAY,
    ),
    (
        "unsent",
        lambda: facts(None, row(kind="sent", task="shop.charge", due_at=0), row("run-00002", due_at=0), entries=[ASKED]),
        f"A message to shop.charge {untaken('shop.charge')} 1 more is unsent, too.",
        RELAY,
    ),
    (
        "unsent",
        lambda: facts(
            requests(charge(sent_row=ROW, sent_at=LATE)), row(kind="sent", task="shop.charge"), row("other", attempts=1, task="b")
        ),
        "A message to b cannot be published: 1 attempt has failed, the last one with: an unknown error. The next one is due. "
        "1 more is unsent, too.",
        RELAY,
    ),
    (
        "deferred",
        lambda: facts(deferred("order.ship"), status="placed", lock="somebody"),
        "1 message waits for 3 h until it is in another status: for order.ship. It is 'placed' now.",
        DESCRIBE,
    ),
    (
        "deferred",
        lambda: facts(deferred("a", "a", "b", "c", "d")),
        "5 messages wait, one for 3 h, until it is in another status: for a, b, c and 1 more.",
        DESCRIBE,
    ),
    (
        "locked",
        lambda: facts(timeout(LATER), lock="somebody"),
        "It is locked for a message that others have overtaken several times. The lock ends by itself.",
        "",
    ),
    (
        "waiting",
        lambda: facts(timeout(LATER), row(due_at=LATER)),
        "The timeout delivery is due in 1 h, at 2027-01-15 09:00:00 UTC, and goes to order.remind.",
        "",
    ),
    (
        "waiting",
        lambda: facts(timeout(NOW - LATE_MS), row(due_at=NOW - LATE_MS)),
        "The timeout delivery is due now, and goes to order.remind.",
        "",
    ),
    (
        "waiting",
        lambda: facts(timeout(NOW - 9 * HOUR, every=Interval(NOW - 9 * HOUR, 2 * HOUR), handled_at=NOW - HOUR)),
        "The series delivery is due in 1 h, at 2027-01-15 09:00:00 UTC, and goes to order.remind.",
        "",
    ),
    (
        "waiting",
        lambda: facts(requests(charge(at=LATER, row=ROW), charge(id="other")), row(due_at=LATER)),
        "It waits for the answer of shop.charge. The deadline is due in 1 h, at 2027-01-15 09:00:00 UTC.",
        "",
    ),
    (
        "waiting",
        lambda: facts(requests(charge(sent_row=ROW, sent_at=LATER)), row(kind="sent", task="shop.charge", due_at=LATER)),
        "The request shop.charge is due in 1 h, at 2027-01-15 09:00:00 UTC.",
        "",
    ),
    (
        "open",
        lambda: facts(requests(charge()), entries=[ASKED]),
        "It waits for the answer of shop.charge, asked 2 h ago. There is no deadline.",
        "inspect query_task request\nsagas answer --reason WHY --value JSON order 8841 shop.charge",
    ),
    (
        "open",
        lambda: facts(requests(charge(id="-r", members=3, at_least=3), charge(), charge(id="old", has_timed_out=True))),
        "It waits for the answer of 3 members, and for 1 more. There is no deadline.",
        f"inspect query_task {charge(id='-r').member(0)}\nsagas skip --reason WHY -- order 8841 -r",
    ),
    (
        "open",
        lambda: facts(requests(charge(id="r", members=3)), members={"r": MemberOutcomes(answered=(0,), failed=(1,))}),
        "It waits for the answer of 3 members. There is no deadline.",
        f"inspect query_task {charge(id='r').member(2)}\nsagas skip --reason WHY order 8841 r",
    ),
    (
        "idle",
        lambda: facts(requests(charge(has_timed_out=True))),
        "Nothing is sure to come: it goes on with the next message to order.shipped.",
        DESCRIBE,
    ),
    (
        "idle",
        lambda: facts(
            status="placed",
            steps=[
                step("order.place", starts=True),
                step("order.(answered)", is_internal=True),
                step("order.ship", when=("paid",)),
                step("order.charged", when=("placed", "paid")),
            ],
        ),
        "Nothing is sure to come: it goes on with the next message to order.charged.",
        DESCRIBE,
    ),
    (
        "idle",
        lambda: facts(steps=[step(name) for name in "abcd"]),
        "Nothing is sure to come: it goes on with the next message to one of a, b, c and 1 more.",
        DESCRIBE,
    ),
    ("idle", lambda: facts(steps=()), "Nothing is sure to come: no step of it takes another message.", DESCRIBE),
]


@pytest.mark.parametrize(("verdict", "known", "sentence", "command"), TABLE, ids=[f"{n}-{row[0]}" for n, row in enumerate(TABLE)])
def test_verdict(verdict: str, known: Callable[[], Facts], sentence: str, command: str) -> None:
    found = explain(known())
    assert (found.verdict, found.sentence) == (verdict, sentence)
    assert [each.command for each in found.remedies] == [f"celery -A proj {each}" for each in command.splitlines()]


def test_table_has_each_verdict() -> None:
    assert {verdict for verdict, *_ in TABLE} == set(Verdict)


@pytest.mark.parametrize(
    ("key", "name", "command"),
    [
        ("", "delivery", "sagas fire --id id --reason WHY order delivery"),
        ("-x", "delivery", "sagas fire --reason WHY -- order -x delivery"),
        ("a b", "a'b", "sagas fire --reason WHY order 'a b' 'a'\"'\"'b'"),
    ],
)
def test_command_of_an_act(key: str, name: str, command: str) -> None:
    """As a shell takes it."""
    pending = Pending(timeouts={name: Timeout("timeout", ROW, "order.remind", LATE)})
    found = explain(replace(facts(pending, row(tried_at=LATE)), key=key)).remedies[0]
    assert found is not None
    assert found.command == f"celery -A proj {command}"


def test_message_that_was_just_committed_is_not_unsent() -> None:
    """The process that has committed it publishes it."""
    just = entry("{}", at=NOW - MINUTE)
    assert explain(facts(None, row(kind="sent", due_at=0), entries=[just])).verdict == "idle"
    assert explain(facts(None, row(kind="sent", due_at=0))).verdict == "idle"
    assert explain(facts(None, row(kind="scheduled", due_at=LATER))).verdict == "idle"


def test_timeout_that_was_published_and_waits_is_not_unsent() -> None:
    assert explain(facts(timeout(NOW - MINUTE), row(tried_at=NOW - MINUTE, available_at=LATER))).verdict == "waiting"


def test_record_that_is_damaged_is_explained() -> None:
    known = facts(record=None, pending=None, problems=(UNREADABLE,))
    assert known.pending is not None
    damaged = Facts(known.saga, "", "id", NOW, problems=(UNREADABLE,))
    assert explain(damaged) == Explanation(Verdict.UNREADABLE, "It cannot be read: it is no JSON.", (), [])


@pytest.mark.parametrize("key", ["$(reboot)", "a b", "'; reboot", "--all", "`reboot`", "a\nb"])
def test_command_is_safe_in_a_shell(key: str) -> None:
    assert Order.__saga__ is not None
    remedy = explain(Facts(Order.__saga__, key, "id", NOW, problems=(UNREADABLE,))).remedies[0]
    words = shlex.split(remedy.command)
    assert words[-1] == key
    assert "--" in words or not key.startswith("-")


@pytest.mark.parametrize("detail", ["", "no JSON", "[]", '{"asked": 1}', '{"asked": [1]}', '"\\ud800"', "[" * 2_000])
def test_entry_that_cannot_be_read(detail: str) -> None:
    found = explain(facts(requests(charge()), entries=[entry(detail)]))
    assert found.sentence == "It waits for the answer of shop.charge. There is no deadline."


def test_series_that_never_comes_again() -> None:
    assert explain(facts(timeout(NOW, every=Interval(NOW, 2**80)))).verdict == "waiting"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *[(0, "0 s"), (499, "0 s"), (500, "1 s"), (59_499, "59 s"), (59_980, "1 min"), (3_599_000, "59 min"), (3_599_980, "1 h")],
        *[
            (86_399_000, "23 h"),
            (86_400_000, "1 d"),
            (90_000_000, "1 d 1 h"),
            (-90_000_000, "1 d 1 h"),
            (86_400_000_000, "1,000 d"),
        ],
    ],
)
def test_span(ms: int, text: str) -> None:
    assert span(ms) == text
