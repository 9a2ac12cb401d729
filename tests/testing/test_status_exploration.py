"""Statuses, in every order of messages, repeats, delays and kills, held against the rule.

The rule: each message is handled once, on an instance whose status allows it, or ignored where its policy says so; it waits with
the instance no longer than until its step runs, and nowhere else; and it fails only after it has waited for as long as it may.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise, permutations
from typing import Any, Literal

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from celery_sagas import Saga
from celery_sagas.core.deferred import DEFERRED
from celery_sagas.engine import unit_of_work
from celery_sagas.stores.records import KEY, Entry, Handling, Lookup
from celery_sagas.testing import SagaHarness
from celery_sagas.testing.exploration import explore
from celery_sagas.testing.harness.broker import SentMessage
from celery_sagas.testing.harness.crashes import POINTS
from celery_sagas.testing.harness.harness import START
from celery_sagas.worker.runtime import runtime_of

HOUR = timedelta(hours=1)
STATUSES = ("new", "open", "shut")
#: The steps that need a status; those that wait for an hour at most; and the one that does not wait.
WORKS, BRIEF, IGNORING = ("work", "brief", "coded", "skip", "turn"), ("brief", "coded"), "skip"


class Jobs:
    """The saga."""

    def __init__(self, app: Celery) -> None:
        self.app = app

        class Job(Saga, correlate_by="job_id", also_by="code", status_by="status", history="messages"):
            job_id: str
            code: str = ""
            status: Literal["new", "open", "shut"] = "new"
            next: int = 0
            seen: list[int] = []

        @Job.starts(if_exists="ignore")
        def start(job: Job, job_id: str) -> None:
            job.code = f"c{job_id}"

        @Job.handles
        def move(job: Job, job_id: str, status: Any) -> None:
            job.status = status

        @Job.handles
        def finish(job: Job, job_id: str) -> None:
            job.complete()

        @Job.handles(when="open", if_not="defer")
        def work(job: Job, job_id: str, n: int) -> None:
            job.seen.append(n)

        @Job.handles(when="open", if_not="defer", if_missing="defer", defer_for=HOUR)
        def brief(job: Job, job_id: str, n: int) -> None:
            job.seen.append(n)

        @Job.handles(by="code", when="open", if_not="defer", if_missing="defer", defer_for=HOUR)
        def coded(job: Job, code: str, n: int) -> None:
            job.seen.append(n)

        @Job.handles(when="open", if_not="ignore")
        def skip(job: Job, job_id: str, n: int) -> None:
            job.seen.append(n)

        @Job.handles(when=lambda job, job_id, n: n == job.next, if_not="defer")
        def turn(job: Job, job_id: str, n: int) -> None:
            job.next += 1

        self.Job, self.steps = (
            Job,
            {step.name.rpartition(".")[2]: step for step in (start, move, finish, work, brief, coded, skip, turn)},
        )

    def entries(self) -> list[Entry]:
        """Return the journal."""
        return runtime_of(self.app).backend.journal.history(["job"], "7", 10_000)

    def is_journaled(self, step: str, id: str) -> bool:
        """Return whether the journal has a message, of whichever key."""
        sagas = runtime_of(self.app).backend.sagas
        return sagas.find(Lookup(("job",), KEY, "none"), Handling((step,), id)).handled is not None

    def ends(self) -> int:
        """Return how many messages wait that end the waiting of others."""
        rows = runtime_of(self.app).backend.outbox._state.outbox._by_id.values()  # type: ignore[attr-defined]
        return sum(row.message.task == "job.(deferred)" for row in rows)

    def rows(self) -> int:
        """Return how many rows the outbox has."""
        return runtime_of(self.app).backend.outbox.count()


class StatusMachine(RuleBasedStateMachine):
    """Delivers messages in any order, repeats them, kills workers, and lets time pass."""

    jobs: Jobs

    @initialize(is_early=st.sampled_from([False, False, True]))
    def begin(self, is_early: bool) -> None:
        self.sent: dict[str, tuple[str, Any, float]] = {}  #: by id: the step, its argument, and when it was sent
        self.harness = SagaHarness(self.jobs.app)
        self.harness.__enter__()
        if not is_early:
            self.send("start")
            self.harness.deliver()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        try:
            self.end()
        finally:
            self.harness.__exit__(None, None, None)

    def send(self, name: str, *given: Any) -> None:
        """Send a message."""
        key = "c7" if name == "coded" else "7"
        message = self.harness.send(self.jobs.steps[name], key, *given)
        self.sent[message.id] = name, (given or (None,))[0], self.harness.now.timestamp()

    def waiting(self) -> list[SentMessage]:
        return [message for message in self.harness.pending if self.harness.is_due(message)]

    @rule(names=st.sampled_from([("start",), ("start",), ("finish",), ("finish", "start")]), at_once=st.booleans())
    def live(self, names: tuple[str, ...], at_once: bool) -> None:
        """Begin a job, end it, or begin another with its key; perhaps before anything else is delivered."""
        for name in names:
            self.send(name)
            if at_once:
                self.harness.deliver(self.harness.sent[-1])

    @rule(status=st.sampled_from(STATUSES), at_once=st.sampled_from([True, True, False]))
    def move(self, status: str, at_once: bool) -> None:
        """Change the status."""
        self.send("move", status)
        if at_once:
            self.harness.deliver(self.harness.sent[-1])

    @rule(works=st.lists(st.tuples(st.sampled_from(WORKS), st.integers(0, 3)), min_size=1, max_size=4), at_once=st.booleans())
    def work(self, works: list[tuple[str, int]], at_once: bool) -> None:
        """Send messages that need a status, or their turn."""
        for name, n in works:
            self.send(name, n)
            if at_once:
                self.harness.deliver(self.harness.sent[-1])

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def deliver_any(self, data: st.DataObject) -> None:
        """Deliver some message."""
        self.harness.deliver(data.draw(st.sampled_from(self.waiting())))

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), point=st.sampled_from(POINTS))
    def kill(self, data: st.DataObject, point: Any) -> None:
        """Kill the worker while it handles some message."""
        self.harness.deliver(data.draw(st.sampled_from(self.waiting())), crash=point)

    @precondition(lambda self: self.harness.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Deliver a message that was delivered before, or before it was deferred."""
        delivered = [message for message in self.harness.sent if message.deliveries]
        if delivered:
            self.harness.deliver(data.draw(st.sampled_from(delivered)))

    @rule(minutes=st.sampled_from([0.1, 0.1, 0.1, 1, 30, 61]))
    def wait(self, minutes: float) -> None:
        """Let time pass: what falls due waits in the broker."""
        self.harness.wait(timedelta(minutes=minutes))

    @rule(minutes=st.sampled_from([0.1, 0.1, 0.1, 1, 30, 61]))
    def advance(self, minutes: float) -> None:
        """Let time pass, and everything happen."""
        self.harness.advance(timedelta(minutes=minutes))

    @invariant()
    def rule_holds(self) -> None:
        if hasattr(self, "harness"):
            self.check()

    def check(self) -> None:
        """Hold the journal, and what waits, against the rule."""
        timeline, entries = self.harness.timeline(), self.jobs.entries()
        once = Counter(entry.message_id for entry in entries if entry.outcome != "deferred")
        assert set(once.values()) <= {1}, timeline
        for instance in {entry.instance_id for entry in entries} - {""}:
            self.check_instance([entry for entry in entries if entry.instance_id == instance])
        job = self.harness.state(self.jobs.Job, "7")
        waiting = [message.id for message in job.saga.deferred] if job else []
        assert len(waiting) == len(set(waiting)), timeline
        assert self.jobs.ends() <= sum(self.sent[id][0] in BRIEF for id in waiting), timeline
        for message in job.saga.deferred if job else ():
            name, n, _ = self.sent[message.id]
            assert job is not None
            assert not admits(name, n, job.status, job.next), timeline
            assert message.id not in once, timeline

    def check_instance(self, entries: list[Entry]) -> None:
        """Hold what has happened to an instance against the rule."""
        timeline, states = self.harness.timeline(), {0: ("new", 0)}
        changes = sorted(
            (entry for entry in entries if entry.outcome != "failed" and entry.version), key=lambda entry: entry.version
        )
        assert all(after.version == before.version + 1 for before, after in pairwise(changes)), timeline
        for entry in changes:
            status, next = states[entry.version - 1]
            name, argument, _ = self.sent.get(entry.message_id, (entry.step.rpartition(".")[2], None, 0.0))
            if entry.outcome == "handled" and name == "move":
                status = argument
            if name in WORKS and entry.outcome != "deferred":
                is_admitted = admits(name, argument, status, next)
                assert is_admitted == (entry.outcome == "handled"), timeline
                assert is_admitted or name == IGNORING, timeline
                next += name == "turn"
            states[entry.version] = status, next
        for entry in entries:
            if entry.outcome == "failed":
                name, argument, sent_at = self.sent[entry.message_id]
                assert name in BRIEF, timeline
                assert entry.at / 1000 >= sent_at + HOUR.total_seconds(), timeline
                assert not admits(name, argument, *states[entry.version]), timeline

    def end(self) -> None:
        """Let everything come to its end, and look for what is lost, or left."""
        self.harness.run()
        self.harness.advance(timedelta(hours=3))
        self.check()
        timeline, job = self.harness.timeline(), self.harness.state(self.jobs.Job, "7")
        waiting = {message.id for message in job.saga.deferred} if job else set()
        done = {entry.message_id for entry in self.jobs.entries() if entry.outcome != "deferred"}
        lost = {id for id, (name, _, _) in self.sent.items() if name != "coded"} - done - waiting
        assert not lost, timeline
        assert not [id for id in waiting if self.sent[id][0] in BRIEF], timeline
        assert (self.harness.pending, self.jobs.rows()) == ([], 0), timeline
        self.check_coded(done)

    def check_coded(self, done: set[str]) -> None:
        """Messages by another key, which the journal of the key need not know: each was handled or ignored, or has failed."""
        failed = {letter.message_id: letter.error for letter in self.harness.dead}
        coded = {id for id, (name, _, _) in self.sent.items() if name == "coded"}
        lost = [id for id in coded - done - failed.keys() if not self.jobs.is_journaled("job.coded", id)]
        assert not lost, self.harness.timeline()
        assert set(failed.values()) <= {"WrongStatus", "SagaNotFound"}, self.harness.timeline()
        assert all(self.sent[id][0] in BRIEF for id in failed), self.harness.timeline()


def admits(name: str, argument: Any, status: str, next: int) -> bool:
    """Return whether a step runs on a job."""
    return argument == next if name == "turn" else status == "open"


def explored(jobs: Jobs, examples: int) -> None:
    """Look for a history in which the rule does not hold."""

    class Machine(StatusMachine):
        pass

    Machine.jobs = jobs
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=checks,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(Machine, settings=run)


def test_rule_holds(app: Celery) -> None:
    explored(Jobs(app), 30)


def test_finds_messages_that_are_not_released(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_of_work, "release", lambda run, state: None)
    with pytest.raises(AssertionError):
        explored(Jobs(app), 100)


class Parcels:
    """A saga whose messages come from outside, each needed by the next one; with a mistake, or without one."""

    STATUSES = ("announced", "paid", "packed", "sent")

    def __init__(self, app: Celery, **moment: Any) -> None:
        self.app = app
        self.moment = {"if_not": "defer", "if_missing": "defer", "defer_for": HOUR, **moment}

        class Parcel(Saga, correlate_by="number", status_by="status"):
            number: str
            status: Literal["announced", "paid", "packed", "sent"] = "announced"
            seen: list[str] = []

        @Parcel.starts(if_exists="ignore")
        def announce(parcel: Parcel, number: str) -> None: ...

        @Parcel.handles(**self.after("announced"))
        def pay(parcel: Parcel, number: str) -> None:
            parcel.seen.append("paid")

        @Parcel.handles(**self.after("paid"))
        def pack(parcel: Parcel, number: str) -> None:
            parcel.seen.append("packed")

        @Parcel.handles(**self.after("packed"))
        def send(parcel: Parcel, number: str) -> None:
            parcel.send(self.delivered.si(parcel.seen))
            parcel.complete()

        @app.task(name="delivered", acks_late=True)
        def delivered(seen: list[str]) -> None:
            self.deliveries.append(seen)

        self.Parcel, self.delivered, self.steps = Parcel, delivered, (announce, pay, pack, send)
        self.deliveries: list[list[str]] = []

    def after(self, status: str) -> dict[str, Any]:
        """Return how a step is declared that runs in a status."""
        following = self.STATUSES[self.STATUSES.index(status) + 1]
        declared = {"when": status, "to": following, **self.moment}
        return {name: value for name, value in declared.items() if value is not None}

    def send(self, harness: SagaHarness, order: Iterable[int] = (3, 2, 1, 0)) -> None:
        """Send the messages in an order."""
        self.deliveries.clear()
        for number in order:
            harness.send(self.steps[number], "1")

    def is_delivered(self, harness: SagaHarness) -> None:
        """Assert that each message was handled once, in the order that makes sense, unless it has waited for too long."""
        if harness.is_quiet and harness.dead:
            assert harness.now >= START + HOUR
        elif harness.is_quiet:
            harness.assert_completed(self.Parcel, "1", by=self.steps[3])
            outcomes = [outcome for outcome in harness.journal(self.Parcel, "1") if not outcome.step.endswith(DEFERRED)]
            handled = [outcome.step for outcome in outcomes if outcome.kind in ("handled", "completed")]
            assert handled == ["parcel.pay", "parcel.pack", "parcel.send"]
            assert {tuple(seen) for seen in self.deliveries} == {("paid", "packed")}
            assert runtime_of(self.app).backend.outbox.count() == 0

    def explore(self) -> None:
        """Look for a history in which the parcel does not arrive."""
        explore(self.send, self.is_delivered, examples=30, faults=["repeat", "crash"], lasts=2 * HOUR, app=self.app)


class TestEveryOrder:
    def test_has_the_same_outcome(self, app: Celery) -> None:
        parcels = Parcels(app)
        for order in permutations(range(4)):
            with SagaHarness(app) as harness:
                parcels.send(harness, order)
                harness.advance(HOUR)
                assert harness.is_quiet
                parcels.is_delivered(harness)

    def test_with_repeats_and_kills(self, app: Celery) -> None:
        Parcels(app).explore()

    @pytest.mark.parametrize(
        "mistake",
        [
            {"if_not": "ignore", "defer_for": HOUR},
            {"if_not": None, "when": None, "to": None},
            {"if_missing": "ignore"},
            {"if_not": "raise"},
        ],
        ids=["ignored", "without when", "missing is ignored", "raised"],
    )
    def test_mistakes_are_found(self, app: Celery, mistake: dict[str, Any]) -> None:
        with pytest.raises(AssertionError):
            Parcels(app, **mistake).explore()
