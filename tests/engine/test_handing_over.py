"""Messages that are handed over: the last one that another sends is handled in the next wave, or is published after all."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.engine.waves import BATCH_S, Batch, BatchedMessage, HandOver
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Outgoing
from celery_sagas.testing.clock import Clock
from tests.engine.conftest import GRACE_S, Boom, Engine, Order, patient, send, starter
from tests.engine.test_waves import delivery, kinds


def chain(order: Order, order_id: str, left: int) -> None:
    """Send the next one, until none is left."""
    if left < 0:
        raise Boom
    order.total += 1
    send(order, f"told {order_id}")
    if left:
        send(order, f"chain {order_id} {left - 1}")


CHAIN = starter(chain)
HOUR_MS = 3_600_000


@pytest.fixture
def engine(backend: MemoryBackend) -> Engine:
    return Engine(backend)


class Chains:
    """A batch of chains, each handed over to the process that handles it."""

    def __init__(self, engine: Engine, step: StepDefinition = CHAIN, **options: Any) -> None:
        self.engine = engine
        self.step = step
        self.most: int = options.pop("most", 10)
        self.options = {"clock": lambda: 0.0, **options}
        self.taken: list[list[str]] = []
        self.batch: Any = None

        engine.services.dispatcher.clock = self.options["clock"]

    def take(self, rows: Sequence[Outgoing]) -> BatchedMessage | None:
        """Take over the next one of a chain."""
        self.taken.append([row.task for row in rows])
        task, key, left = f"{rows[-1].task} 0".split()[:3]
        if task != "chain":
            return None
        return BatchedMessage(delivery(self.step, rows[-1].message_id, order_id=key, left=int(left)), nullcontext)

    def handle(self, *messages: tuple[str, int]) -> list[Outcome | None]:
        """Handle messages with a key and the number of those that follow."""
        deliveries = [delivery(self.step, f"m{number}", order_id=key, left=left) for number, (key, left) in enumerate(messages)]
        batched = [BatchedMessage(each, nullcontext) for each in deliveries]
        self.batch = Batch(self.engine.services, batched, hand_over=HandOver(self.most, self.take), **self.options)
        self.batch.handle()
        self.engine.services.dispatcher.confirmations.flush()
        outcomes: list[Outcome | None] = self.batch.outcomes
        return outcomes

    @property
    def published(self) -> list[str]:
        return [row.task for row in self.engine.publisher.published]

    def outbox(self) -> list[str]:
        """Return the tasks of all rows, whoever has leased them."""
        rows = self.engine.backend.outbox.claim_due("another", 100, 1)
        return [row.task for row in rows]


def test_a_chain_is_handled_in_one_batch_and_is_not_published(engine: Engine, clock: Clock) -> None:
    chains = Chains(engine)
    assert kinds(chains.handle(("1", 3))) == [Kind.STARTED]
    assert kinds(chains.batch.handed_over) == [Kind.HANDLED] * 3
    assert engine.data("1")["total"] == 4
    assert chains.published == ["told 1"] * 4
    clock.advance(int(GRACE_S * 1000))
    assert chains.outbox() == []


def test_each_is_in_the_journal_under_its_own_id(engine: Engine) -> None:
    Chains(engine).handle(("1", 2))
    assert len({entry.message_id for entry in engine.entries("1")}) == 3


def test_what_is_sent_before_it_is_published_before_it_is_handled(engine: Engine) -> None:
    seen: list[list[str]] = []

    def look(order: Order, order_id: str, left: int) -> None:
        seen.append(chains.published)
        chain(order, order_id, left)

    chains = Chains(engine, starter(look))
    chains.handle(("1", 1))
    assert seen == [[], ["told 1"]]
    assert chains.taken == [["told 1", "chain 1 0"], ["told 1", "told 1"]], "with what was sent before"


def test_no_more_follow_a_message_than_may(engine: Engine) -> None:
    chains = Chains(engine, most=2)
    chains.handle(("1", 5), ("2", 1))
    assert [engine.data(key)["total"] for key in "12"] == [3, 2]
    assert [task for task in chains.published if task.startswith("chain")] == ["chain 1 2"]


def test_chains_share_waves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    many = engine.backend.many
    monkeypatch.setattr(engine.backend, "many", lambda operations: sizes.append(len(operations)) or many(operations))
    Chains(engine).handle(("1", 2), ("2", 2), ("3", 1))
    assert sizes == [3, 3, 3, 3, 2, 2]


def test_one_that_fails_is_published(engine: Engine, clock: Clock) -> None:
    """It fails once more where it runs as a task."""

    def fail(order: Order, order_id: str, left: int) -> None:
        if left == 1:
            raise Boom
        chain(order, order_id, left)

    chains = Chains(engine, starter(fail))
    assert kinds(chains.handle(("1", 3), ("2", 0))) == [Kind.STARTED, Kind.STARTED]
    assert kinds(chains.batch.handed_over) == [Kind.HANDLED, None]
    assert sorted(chains.published) == ["chain 1 1", "told 1", "told 1", "told 2"]
    assert engine.data("1")["total"] == 2
    clock.advance(int(GRACE_S * 1000))
    assert chains.outbox() == []


def test_one_whose_instance_has_left_a_message_behind_is_published(engine: Engine) -> None:
    """It must not overtake it."""
    chains = Chains(engine)
    assert kinds(chains.handle(("1", 1), ("1", -1))) == [Kind.STARTED, None]
    assert chains.published == ["told 1", "chain 1 0"]
    assert engine.data("1")["total"] == 1


def test_one_that_was_handled_before_is_published(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by another worker, which got it from a relay: what it left in the outbox is published there."""
    chains = Chains(engine)
    take = chains.take

    def take_late(rows: Sequence[Outgoing]) -> BatchedMessage | None:
        if (message := take(rows)) is not None:
            engine.handle(CHAIN, id=message.delivery.message_id, order_id="1", left=0)
        return message

    monkeypatch.setattr(chains, "take", take_late)
    chains.handle(("1", 1))
    assert kinds(chains.batch.handed_over) == [None]
    assert chains.published[-1] == "chain 1 0"
    assert engine.data("1")["total"] == 2


def test_a_conflict_is_resolved_within_the_batch(engine: Engine, rival: Engine) -> None:
    engine.interpose().once_before("update", lambda: rival.handle(CHAIN, order_id="1", left=0) and None)
    chains = Chains(engine)
    chains.handle(("1", 1))
    assert kinds(chains.batch.handed_over) == [Kind.HANDLED]
    assert engine.data("1")["total"] == 3


def test_once_the_batch_has_taken_too_long_none_is_handed_over(engine: Engine) -> None:
    now = [0.0]

    def slow(order: Order, order_id: str, left: int) -> None:
        now[0] += BATCH_S / 2
        chain(order, order_id, left)

    chains = Chains(engine, starter(slow), clock=lambda: now[0])
    chains.handle(("1", 9))
    assert engine.data("1")["total"] == 3
    assert chains.published[-1] == "chain 1 6"
    assert not chains.batch.is_cut


def test_those_that_are_not_begun_in_time_are_published(engine: Engine) -> None:
    now = [0.0]

    def slow(order: Order, order_id: str, left: int) -> None:
        now[0] += BATCH_S / 3
        chain(order, order_id, left)

    chains = Chains(engine, starter(slow), clock=lambda: now[0])
    assert kinds(chains.handle(("1", 1), ("2", 1), ("3", 1))) == [Kind.STARTED] * 3
    assert kinds(chains.batch.handed_over) == [Kind.HANDLED, None, None]
    assert [task for task in chains.published if task.startswith("chain")] == ["chain 2 0", "chain 3 0"]


def test_what_is_due_later_is_not_handed_over(engine: Engine) -> None:
    serialize = engine.services.terms.serialize

    def serialize_for_later(*args: Any) -> Any:
        return replace(serialize(*args), due_at=HOUR_MS)

    terms = replace(engine.services.terms, serialize=serialize_for_later)
    engine.services = replace(engine.services, terms=terms)
    chains = Chains(engine)
    chains.handle(("1", 1))
    assert chains.taken == []
    assert engine.data("1")["total"] == 1


def test_one_whose_process_dies_is_published_by_a_relay(engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, many = [0], engine.backend.many

    def die(operations: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise SystemExit
        return many(operations)

    monkeypatch.setattr(engine.backend, "many", die)
    chains = Chains(engine)
    with pytest.raises(SystemExit):
        chains.handle(("1", 1))
    engine.services.dispatcher.confirmations.flush()
    assert chains.published == ["told 1"]
    assert chains.outbox() == []
    clock.advance(int(GRACE_S * 1000))
    assert chains.outbox() == ["chain 1 0"]


def test_those_that_an_interruption_leaves_are_published(engine: Engine) -> None:
    """Such as a soft time limit, which strikes in one of them: the others must not wait for a relay."""

    class Interruption(Exception): ...

    def interrupt(order: Order, order_id: str, left: int) -> None:
        if left == 0 and order_id == "2":
            raise Interruption
        chain(order, order_id, left)

    chains = Chains(engine, starter(interrupt), interruptions=(Interruption,))
    with pytest.raises(Interruption):
        chains.handle(("1", 1), ("2", 1), ("3", 1))
    assert kinds(chains.batch.outcomes) == [Kind.STARTED] * 3
    assert [task for task in chains.published if task.startswith("chain")] == ["chain 1 0", "chain 2 0", "chain 3 0"]


def test_it_is_taken_and_published_in_the_context_of_its_sender(engine: Engine) -> None:
    """If somebody listens to what is published."""
    inside: list[str] = []
    seen: list[tuple[str, list[str]]] = []

    def within(call: Callable[[], None]) -> None:
        inside.append("context")
        call()
        inside.remove("context")

    chains = Chains(engine)
    take, publish = chains.take, engine.publisher.publish

    def take_inside(rows: Sequence[Outgoing]) -> BatchedMessage | None:
        seen.append((f"take {rows[-1].task}", [*inside]))
        message = take(rows)
        return message and message._replace(in_context=within)

    engine.publisher.publish = lambda row: seen.append((row.task, [*inside])) or publish(row)  # type: ignore[method-assign]
    messages = [BatchedMessage(delivery(CHAIN, "m1", order_id="1", left=0), nullcontext, within)]
    patient(Batch(engine.services, messages, publishes_each=True, hand_over=HandOver(1, take_inside))).handle()
    assert seen == [("take told 1", ["context"]), ("told 1", ["context"])]
