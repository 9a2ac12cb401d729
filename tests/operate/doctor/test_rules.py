"""What each rule finds, and when it finds nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from celery_sagas.operate.doctor import configuration, stores, workers
from celery_sagas.operate.doctor.facts import Broker, Code, Configuration, Relay, Rule, Store, Worker, Workers, apply, named
from celery_sagas.stores.health import Level, Remark, Subject
from celery_sagas.stores.records import OutboxGlance

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
WEEK_S = 7 * 86_400.0
RULES: tuple[Rule[Any], ...] = (*configuration.RULES, *stores.REACHED, *stores.STORED, *workers.BROKER, *workers.ANSWERED)
HERE = Code("1.0", {"order": 1}, {"order": frozenset({"order.place", "order.ship"})})


def configured(**facts: Any) -> Configuration:
    return Configuration(**{"retention_s": WEEK_S, "redelivery_s": 3600.0, **facts})


def stored(**facts: Any) -> Store:
    return Store("memory://", **{"retention_ms": DAY, **facts})


def relay(is_running: bool = True, swept_ms: int | None = SECOND, error: str = "", *unknown: str) -> Relay:
    return Relay(is_running, swept_ms, error, unknown)


def answered(*answers: Worker, **facts: Any) -> Workers:
    return Workers(HERE, answers or (Worker("w1", HERE, relay()),), **facts)


def row(error: str = "no queue 'billing'") -> OutboxGlance:
    return OutboxGlance("row", "sent", "message", "billing.charge", 0, 3, "id", "order.place", "cause", 1, 1, 0, error)


def remark(subject: Subject, level: Level = Level.WARN) -> Mapping[str, Any]:
    return {"remarks": [Remark(subject, level, "it forgets", "Set it")]}


OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
#: Id, facts, the level, and a part of the text.
CASES: Iterable[tuple[str, Any, Level, str]] = [
    ("D01", configured(), OK, "are valid"),
    (
        "D01",
        configured(refusals=[("saga_batch: too large", "Set it")]),
        FAIL,
        "No worker starts: saga_batch: too large. → Set it",
    ),
    ("D02", configured(), OK, "is set"),
    ("D02", configured(default_file="/srv/x.sqlite3"), WARN, "kept in the file /srv/x.sqlite3"),
    ("D03", configured(), OK, "by workers"),
    ("D03", configured(is_eager=True), FAIL, "no timeout ever comes"),
    ("D04", configured(), OK, "longer than"),
    ("D04", configured(retention_s=None), OK, "longer than"),
    ("D04", configured(redelivery_s=None), OK, "longer than"),
    ("D04", configured(retention_s=3600.0), FAIL, "for 1 h, and the broker delivers it again after 1 h"),
    ("D04", configured(retention_s=60.0, is_redelivery_assumed=True), WARN, "RabbitMQ by default delivers it again after 1 h"),
    ("D05", configured(limits_s={"a": 3599.0}), OK, "No time limit"),
    ("D05", configured(limits_s={"a": 9e9}, redelivery_s=None), OK, "No time limit"),
    ("D05", configured(limits_s={"a": 7200.0, "b": 3600.0}), WARN, "a, b may run for 2 h"),
    ("D05", configured(limits_s={"a": 7200.0}), WARN, "visibility_timeout in broker_transport_options"),
    ("D05", configured(limits_s={"a": 7200.0}, is_redelivery_assumed=True), WARN, "RabbitMQ's consumer_timeout"),
    ("D06", configured(), OK, "Every step"),
    ("D06", configured(early_steps=["order.place"]), WARN, "order.place: the messages are acknowledged before"),
    ("D07", configured(), OK, "answered, or has a deadline"),
    ("D07", configured(early_requests=[("order.place", "shop.pay")]), WARN, "order.place asks shop.pay without within="),
    ("D08", configured(prefetch=4), OK, "No message waits"),
    ("D08", configured(prefetch=4, limits_s={"a": 899.0}), OK, "No message waits"),
    ("D08", configured(prefetch=1, limits_s={"a": 3599.0}), OK, "No message waits"),
    ("D08", configured(prefetch=4, limits_s={"a": 900.0}, redelivery_s=None), OK, "No message waits"),
    ("D08", configured(prefetch=4, limits_s={"a": 900.0}), WARN, "Behind a the last of them may wait 1 h"),
    ("D08", configured(prefetch=0), WARN, "takes all messages of its queues at once"),
    ("D10", stored(), OK, "The store answers"),
    ("D10", stored(error="It is away."), FAIL, "It is away. Messages to its sagas are delivered again later"),
    ("D10", stored(**remark(Subject.LAYOUT, FAIL)), FAIL, "it forgets. → Set it"),
    ("D11", stored(), OK, "set to keep"),
    ("D11", stored(**remark(Subject.SAFETY)), WARN, "it forgets. → Set it"),
    ("D12", stored(ahead_ms=2 * SECOND), OK, "that of this machine"),
    ("D12", stored(ahead_ms=5 * SECOND), WARN, "5 s ahead of this machine's: timeouts that are set here come too early"),
    ("D12", stored(ahead_ms=-5 * SECOND), WARN, "5 s behind this machine's: timeouts that are set here come too late"),
    ("D12", answered(Worker("w1", HERE, relay(), 5 * SECOND)), WARN, "The clock of w1 is 5 s ahead of"),
    ("D13", answered(), OK, "1 of 1 workers"),
    ("D13", answered(Worker("w1", HERE, relay(False, None))), FAIL, "No worker that has answered runs a relay"),
    ("D13", answered(Worker("w1", HERE, relay(False, None)), has_relays=False), OK, "saga_relay is off: D14 says"),
    ("D13", answered(Worker("w1", HERE)), WARN, "No worker has said within a second whether its relay runs"),
    ("D13", answered(Worker("w1", HERE, relay(swept_ms=None))), OK, "1 of 1"),
    ("D13", answered(Worker("w1", HERE, relay(swept_ms=31 * SECOND))), WARN, "The relay of w1 has last swept 31 s ago"),
    ("D13", answered(Worker("w1", HERE, relay(swept_ms=31 * SECOND)), interval_ms=20 * SECOND), OK, "1 of 1"),
    ("D13", answered(Worker("w1", HERE, relay(error="it is away"))), WARN, "w1 cannot go on, and tries again: it is away"),
    ("D13", answered(Worker("w1", HERE, relay(True, 1, "", "order.ship"))), OK, "1 of 1"),
    ("D13", answered(Worker("w1", HERE, relay(True, 1, "", "order.gone"))), WARN, "No worker that has answered knows order.gone"),
    ("D14", stored(due=3, oldest_due_ms=MINUTE), OK, "as it comes due"),
    ("D14", stored(due=3, oldest_due_ms=2 * MINUTE), WARN, "3 messages are due in the outbox, the first one for 2 min"),
    ("D14", stored(due=1, oldest_due_ms=2 * MINUTE), WARN, "1 message is due"),
    ("D14", stored(failing=[row()]), WARN, "1 message in the outbox cannot be published, to billing.charge: no queue 'billing'"),
    ("D14", stored(failing=[row()] * 2), WARN, "2 messages in the outbox cannot be published, to billing.charge: no"),
    ("D14", stored(due=5_000, oldest_due_ms=DAY, cut={"due"}), WARN, "At least 5,000 messages are due in the outbox, the"),
    ("D14", stored(due=5_000, oldest_due_ms=DAY, cut={"failing", "late"}), WARN, "5,000 messages are due in the outbox, the"),
    ("D14", stored(failing=[row()], cut={"failing"}), WARN, "At least 1 message in the outbox cannot be published, to"),
    ("D15", answered(consumed=frozenset({"q"}), wanted={"q": ["order.place"]}), OK, "has a consumer"),
    (
        "D15",
        answered(wanted={"q": ["order.place"]}, consumed=frozenset()),
        WARN,
        "takes messages from the queue q, to which order.place go",
    ),
    ("D16", answered(), OK, "the same code"),
    ("D16", answered(Worker("w1", HERE._replace(version="0.9"))), WARN, "0.9 in w1; 1.0 in this command"),
    ("D16", answered(Worker("w1", HERE._replace(schema_versions={"order": 2}))), WARN, "order: 1 in this command; 2 in w1"),
    ("D16", answered(Worker("w1", HERE._replace(schema_versions={"parcel": 2}, steps={}))), OK, "the same code"),
    (
        "D16",
        answered(Worker("w1", HERE._replace(steps={"order": frozenset({"order.place"})}))),
        WARN,
        "w1 does not know order.ship, which other code has",
    ),
    ("D17", stored(), OK, "no dead letters"),
    ("D17", stored(dead_letters=1), WARN, "There is 1 dead letter"),
    ("D17", stored(dead_letters=1_200), WARN, "There are 1,200 dead letters"),
    ("D17", stored(late=1), WARN, "1 timeout or deadline is due for more than 15 minutes"),
    ("D17", stored(late=2), WARN, "2 timeouts or deadlines are due for more than 15 minutes"),
    ("D17", stored(late=5_000, cut={"late"}), WARN, "At least 5,000 timeouts or deadlines are due for more than 15 minutes"),
    ("D18", stored(journal_ms=DAY + DAY // 2), OK, "should be gone"),
    ("D18", stored(journal_ms=2 * DAY), WARN, "oldest entry is 2 d old, and entries are kept for 1 d"),
    ("D19", stored(**remark(Subject.TABLES)), WARN, "it forgets. → Set it"),
    ("D20", stored(**remark(Subject.MEMORY, FAIL)), FAIL, "it forgets. → Set it"),
    ("D21", Broker("amqp://", "amqp"), OK, "The broker answers"),
    ("D21", Broker("amqp://", "amqp", confirms=True, has_timeouts=True), OK, "The broker answers"),
    ("D21", Broker("amqp://", "amqp", "refused."), FAIL, "cannot be reached: refused. No message"),
    ("D21", Broker("amqp://", "amqp", confirms=False), FAIL, "a message counts as sent that it has never got"),
    ("D21", Broker("redis://", "redis", confirms=False), OK, "The broker answers"),
    ("D21", Broker("amqp://", "amqp", confirms=True), WARN, "without read_timeout"),
    ("D22", stored(), OK, "schema versions"),
    (
        "D22",
        stored(newer={"order": (3, 2)}),
        WARN,
        "order have the schema version 3, and the newest running code that is known has 2",
    ),
    ("D23", stored(held=["order.charge", "parcel"]), WARN, "Operators hold order.charge, parcel: messages wait"),
]


@pytest.mark.parametrize(("id", "facts", "level", "text"), CASES)
def test_rule(id: str, facts: Any, level: Level, text: str) -> None:
    kinds = {Configuration: configuration.RULES, Store: (*stores.REACHED, *stores.STORED), Broker: workers.BROKER}
    rules: Any = kinds.get(type(facts), workers.ANSWERED)
    found = [each for each in apply(rules, facts) if each.id == id]
    assert [each.level for each in found] == [level]
    shown = f"{found[0].sentence} → {found[0].remedy}"
    assert text in shown
    assert found[0].sentence.endswith(".")
    assert not found[0].sentence.endswith("..")
    assert bool(found[0].remedy) == (level is not OK)


def test_both_sides_of_every_rule_are_tested() -> None:
    ids = {rule.id for rule in RULES}
    assert {id for id, *_ in CASES} == ids
    assert {id for id, _, level, _ in CASES if level is OK} == ids - {"D19", "D20", "D23"}  # which say nothing where all is well


def test_what_is_not_known_is_not_said() -> None:
    """A store that is away may keep everything, and one that has no tables has no statistics of them."""
    assert [each.id for each in apply(stores.REACHED, stored(error="it is away", is_read=False))] == ["D10"]
    assert [each.id for each in apply(stores.REACHED, stored())] == ["D10", "D11"]
    assert [each.id for each in apply(workers.ANSWERED, answered(wanted={"q": ["order.place"]}))] == ["D13", "D16"]


class TestWorkersThatDoNotAnswer:
    """One of them may be busy: it is not known how many there are."""

    def found(self, facts: Workers) -> list[tuple[Level, str]]:
        return [(each.level, each.sentence) for each in apply(workers.ASKED, facts)]

    def test_none(self) -> None:
        [(level, sentence)] = self.found(Workers(HERE))
        assert level is WARN
        assert sentence.startswith("No worker of this app has answered within a second: none runs, or")

    def test_only_others(self) -> None:
        [(level, sentence)] = self.found(Workers(HERE, others=2))
        assert level is WARN
        assert "; 2 others have answered, of other apps or of another release:" in sentence

    def test_broker_that_passes_on_no_questions(self) -> None:
        [(level, sentence)] = self.found(Workers(HERE, can_be_asked=False))
        assert (level, sentence) == (OK, "Workers cannot be asked over this broker: D14 says whether what is due is sent.")

    def test_some(self) -> None:
        assert self.found(answered()) == []


def test_long_lists_are_shortened() -> None:
    assert named(["a", "b", "a", "c"]) == "a, b, c"
    assert named(map(str, range(1_005))) == "0, 1, 2 and 1,002 more"
