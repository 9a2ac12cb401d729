"""Rules about settings and definitions: they need no server."""

from collections.abc import Iterator
from typing import Final

from celery_sagas.operate.doctor.facts import Configuration, Found, Rule, named
from celery_sagas.operate.spans import span
from celery_sagas.stores.health import Level


def _refusals(facts: Configuration) -> Iterator[Found]:
    for problem, remedy in facts.refusals:
        yield Found(Level.FAIL, f"No worker starts: {problem}", remedy)


def _default_file(facts: Configuration) -> Iterator[Found]:
    if facts.default_file:
        sentence = (
            f"saga_backend is not set: sagas are kept in the file {facts.default_file}. A process that starts in another "
            "directory, or on another machine, has another file, and finds none of them"
        )
        yield Found(Level.WARN, sentence, 'Set saga_backend = "postgresql://…", or another backend that all processes reach')


def _eager(facts: Configuration) -> Iterator[Found]:
    if facts.is_eager:
        sentence = (
            "task_always_eager is on: every message is handled in the process that sends it, and no worker gets any. Nothing is "
            "sent later: no timeout ever comes"
        )
        yield Found(Level.FAIL, sentence, "Remove task_always_eager from the settings of everything but tests")


def _retention(facts: Configuration) -> Iterator[Found]:
    if facts.retention_s is None or facts.redelivery_s is None or facts.retention_s > facts.redelivery_s:
        return
    kept, again = _span(facts.retention_s), _span(facts.redelivery_s)
    level = Level.WARN if facts.is_redelivery_assumed else Level.FAIL
    sentence = f"The journal remembers a message for {kept}, and {_redelivers(facts)} after {again}: its effect may come twice"
    yield Found(level, sentence, f"Set saga_journal_retention to more than {facts.redelivery_s:g} seconds, or leave it out")


def _limits(facts: Configuration) -> Iterator[Found]:
    redelivery_s = facts.redelivery_s
    if redelivery_s is None:
        return
    slow = sorted(name for name, limit_s in facts.limits_s.items() if limit_s >= redelivery_s)
    if slow:
        longest = _span(max(facts.limits_s[name] for name in slow))
        sentence = (
            f"{named(slow)} may run for {longest}, and {_redelivers(facts)} after {_span(redelivery_s)}: it then runs twice at "
            "once. A step recognizes the repeat; a plain task does not"
        )
        yield Found(Level.WARN, sentence, f"Set a time_limit below {redelivery_s:g} seconds, or raise {_timeout(facts)}")


def _early_steps(facts: Configuration) -> Iterator[Found]:
    if facts.early_steps:
        sentence = (
            f"{named(facts.early_steps)}: the messages are acknowledged before they are handled (acks_late=False, or "
            "reject_on_worker_lost=False). If a worker is killed, its messages are lost, and their sagas wait forever"
        )
        yield Found(
            Level.WARN, sentence, "Remove acks_late and reject_on_worker_lost from the options of the step: both are on then"
        )


def _early_requests(facts: Configuration) -> Iterator[Found]:
    for step, task in facts.early_requests:
        sentence = (
            f"{step} asks {task} without within=, and the task is not acks_late: if its worker is killed, no answer comes, and "
            "the saga waits forever"
        )
        yield Found(Level.WARN, sentence, "Give send() within= and otherwise=, or the task acks_late=True")


def _prefetch(facts: Configuration) -> Iterator[Found]:
    if facts.prefetch == 0:
        sentence = (
            "worker_prefetch_multiplier is 0: a worker takes all messages of its queues at once. Others get none, and what it "
            "holds comes again while it waits there"
        )
        yield Found(Level.WARN, sentence, "Set worker_prefetch_multiplier = 1")
    elif facts.redelivery_s is not None and facts.prefetch > 1:
        yield from _slow_queue(facts, facts.redelivery_s)


def _slow_queue(facts: Configuration, redelivery_s: float) -> Iterator[Found]:
    fast = {name: limit_s for name, limit_s in facts.limits_s.items() if limit_s < redelivery_s}  # another rule has the others
    slow = sorted(name for name, limit_s in fast.items() if limit_s * facts.prefetch >= redelivery_s)
    if slow:
        waiting = _span(fast[slow[0]] * facts.prefetch)
        sentence = (
            f"A worker takes {facts.prefetch} messages for each of its processes. Behind {named(slow)} the last of them may wait "
            f"{waiting}, and {_redelivers(facts)} after {_span(redelivery_s)}: it then runs twice"
        )
        yield Found(Level.WARN, sentence, "Set worker_prefetch_multiplier = 1 in the workers of slow tasks")


def _redelivers(facts: Configuration) -> str:
    return "RabbitMQ by default delivers it again" if facts.is_redelivery_assumed else "the broker delivers it again"


def _timeout(facts: Configuration) -> str:
    return "RabbitMQ's consumer_timeout" if facts.is_redelivery_assumed else "visibility_timeout in broker_transport_options"


def _span(seconds: float) -> str:
    return span(int(seconds * 1000))


#: In the order of their ids.
RULES: Final = (
    Rule("D01", lambda _: "The settings and the definitions are valid.", _refusals),
    Rule("D02", lambda _: "saga_backend is set.", _default_file),
    Rule("D03", lambda _: "Messages are handled by workers.", _eager),
    Rule("D04", lambda _: "The journal remembers messages for longer than the broker delivers them again.", _retention),
    Rule("D05", lambda _: "No time limit exceeds the time after which the broker delivers a message again.", _limits),
    Rule("D06", lambda _: "Every step acknowledges its messages when they were handled.", _early_steps),
    Rule("D07", lambda _: "Every request that is known here is answered, or has a deadline.", _early_requests),
    Rule("D08", lambda _: "No message waits in a worker until the broker delivers it again.", _prefetch),
)
